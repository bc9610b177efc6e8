"""The reference answers: every public name says what it takes, gives and raises, and shows how it is used."""

from __future__ import annotations

import inspect

import pytest
from tests.catalogue.estimators import ENTRIES
from tests.package.public import MODULES, Public, public


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_described(module):
    gaps = {item.name: item.gaps() for item in public() if item.name.rpartition(".")[0].startswith(module)}
    assert {name: found for name, found in gaps.items() if found} == {}


def test_what_takes_private_data_states_its_guarantee():
    names = {item.name: item for item in public()}
    without = [
        name for name in ENTRIES if f"tacit.{name}" in names and not names[f"tacit.{name}"].section("Guarantee").strip()
    ]
    assert without == []


def test_a_gap_is_found():
    def price(noise: float, steps: int) -> float:
        """What it costs.

        Args:
            noise: The noise multiplier.
        """
        if steps < 0:
            raise ValueError(steps)
        return noise * steps

    found = Public("price", price, "function", inspect.cleandoc(price.__doc__ or "")).gaps()
    assert found == ["steps is not described", "Raises: leaves out ValueError", "Returns: is missing", "has no example"]
