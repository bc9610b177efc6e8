"""What the tests of the commands share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tacit.report import card


@pytest.fixture(autouse=True, scope="module")
def _cards_with_few_points() -> Iterator[None]:
    """What is drawn on a card is not at stake here: tests/report looks at that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(card, "POINTS", 3)
        patch.setattr(card, "COUNTS", 2)
        patch.setattr(card, "DELTAS", (1e-3,))
        yield
