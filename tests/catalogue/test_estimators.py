"""What takes private data charges before it releases, and moves no further than it says; what is not listed fails."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit import accounting as acc
from tacit import noise
from tacit.ledger import Ledger
from tests.catalogue import estimators as catalogue
from tests.catalogue.estimators import CHECKED_ELSEWHERE, ENTRIES, RELEASES_NOTHING, Entry, Released

ROOT = Path(__file__).parents[2]
CASES = [pytest.param(entry, id=f"{name} {i}") for name, made in ENTRIES.items() for i, entry in enumerate(made)]


@pytest.mark.parametrize("entry", CASES)
def test_a_release_is_charged_first_and_costs_no_more(entry: Entry) -> None:
    assert catalogue.problems(entry) == []


def test_everything_public_that_takes_private_data_is_in_the_catalogue() -> None:
    public = catalogue.public()
    assert catalogue.unlisted(public) == []
    assert sorted({*ENTRIES, *RELEASES_NOTHING, *CHECKED_ELSEWHERE} - public) == [], "listed, and no longer public"


@pytest.mark.parametrize("name", CHECKED_ELSEWHERE)
def test_what_is_checked_elsewhere_is_there(name: str) -> None:
    assert name.split(".")[-1] in (ROOT / CHECKED_ELSEWHERE[name]).read_text(encoding="utf-8")


# -- mistakes that the catalogue must find --------------------------------------------------------------------------


def _total(data: Any) -> float:
    return float(np.clip(data[0][:, 0], 0, 10).sum())


def exact_mean(data: Any, ledger: Ledger) -> Released:
    """Publishes a mean as it is, and charges nothing."""
    return Released(_total(data) / 24, acc.nothing())


def charged_and_exact(data: Any, ledger: Ledger) -> Released:
    """Charges, draws noise, and publishes the sum without it too."""
    with ledger.charge("people", acc.Gaussian(2.0), purpose="a sum"):
        noisy = noise.add_gaussian(_total(data), 20.0)
    return Released([noisy, _total(data)], acc.Gaussian(2.0))


def never_charged(data: Any, ledger: Ledger) -> Released:
    return Released(noise.add_gaussian(_total(data), 20.0), acc.Gaussian(2.0))


def charged_late(data: Any, ledger: Ledger) -> Released:
    noisy = noise.add_gaussian(_total(data), 20.0)
    with ledger.charge("people", acc.Gaussian(2.0), purpose="a sum"):
        return Released(noisy, acc.Gaussian(2.0))


def half_sensitivity(data: Any, ledger: Ledger) -> Released:
    """One row moves the sum by 10, and the noise is right for 5."""
    with ledger.charge("people", acc.Gaussian(2.0), purpose="a sum"):
        return Released(noise.add_gaussian(_total(data), 10.0), acc.Gaussian(2.0))


def scaled_by_the_data(data: Any, ledger: Ledger) -> Released:
    """Noise for bounds that are taken from the data."""
    top = float(data[0][:, 0].max())
    with ledger.charge("people", acc.Gaussian(2.0), purpose="a sum"):
        return Released(noise.add_gaussian(float(data[0][:, 0].sum()), 2 * top), acc.Gaussian(2.0))


def as_it_should_be(data: Any, ledger: Ledger) -> Released:
    with ledger.charge("people", acc.Gaussian(2.0), purpose="a sum"):
        return Released(noise.add_gaussian(_total(data), 20.0), acc.Gaussian(2.0))


def _sums() -> Any:
    return itertools.islice(ENTRIES["linear_model.Ridge"][0].neighbours(), 5)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (exact_mean, "no noise was drawn"),
        (exact_mean, "nothing was charged"),
        (exact_mean, "depends on the data"),
        (charged_and_exact, "other than through the noise"),
        (never_charged, "nothing was charged"),
        (charged_late, "before anything was charged"),
        (half_sensitivity, "apart; ε"),
        (scaled_by_the_data, "the scale depends on the data"),
    ],
)
def test_a_mistake_is_found(run: Any, words: str) -> None:
    assert any(words in found for found in catalogue.problems(Entry(run, _sums)))


def test_the_same_without_a_mistake_passes() -> None:
    assert catalogue.problems(Entry(as_it_should_be, _sums)) == []


def test_a_public_name_without_an_entry_fails() -> None:
    assert catalogue.unlisted({"linear_model.Ridge", "linear_model.ExactMean"}) == ["linear_model.ExactMean"]
