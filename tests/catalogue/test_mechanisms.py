"""Every mechanism costs what its releases reveal, found by other means; one that is not in the catalogue fails."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import tacit
from tacit import accounting as acc
from tacit.accounting.losses import Loss
from tests.catalogue import mechanisms as catalogue
from tests.catalogue.mechanisms import ALL, Entry

CASES = [(name, adjacency) for name, entry in ALL.items() for adjacency in entry.mechanism.adjacencies()]


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_a_price_is_what_the_release_reveals(name: str, adjacency: str) -> None:
    assert catalogue.problems(ALL[name], adjacency) == []


@pytest.mark.parametrize("name", ALL)
def test_a_description_means_one_thing_and_more_noise_costs_less(name: str) -> None:
    assert catalogue.description_problems(ALL[name].mechanism) == []


def test_every_mechanism_and_every_parameter_is_in_the_catalogue() -> None:
    assert catalogue.unlisted(ALL, catalogue.kinds()) == []


def test_no_mechanism_is_defined_outside_the_accounting() -> None:
    known = {cls.__name__ for cls in catalogue.kinds()} | {"Mechanism", "Composed"}
    source = Path(tacit.__file__).parent
    for path in source.rglob("*.py"):
        for name, bases in re.findall(r"^ *class (\w+)\((.*?)\)", path.read_text(encoding="utf-8"), re.M | re.S):
            if known & {base.split(".")[-1] for base in re.split(r"[,\s]+", bases)}:
                assert path.parent.name == "accounting", f"{path}: {name} is found by no catalogue"


# -- mistakes that the catalogue must find --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, repr=False)
class HalfShift(acc.Gaussian):
    """Gaussian noise priced as if one record moved the value half as far as it does."""

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return acc.Gaussian(2 * self.noise_multiplier, self.replace).pair(adjacency, direction, group)

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return self.pair(adjacency, direction, group)


@dataclasses.dataclass(frozen=True, repr=False)
class ForgetsToReplace(acc.Laplace):
    """Laplace noise priced under replace-one as if a record were only added."""

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return super().pair("add-remove", direction, group)


@dataclasses.dataclass(frozen=True, repr=False)
class HalfRate(acc.PoissonSampled):
    """Poisson sampling amplified by half the rate."""

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return acc.PoissonSampled(self.mechanism, self.rate / 2).pair(adjacency, direction, group)


@pytest.mark.parametrize("adjacency", acc.ADJACENCIES)
def test_half_a_shift_is_found(adjacency: str) -> None:
    right = ALL["Gaussian"]
    assert catalogue.problems(right, adjacency) == []
    assert catalogue.problems(dataclasses.replace(right, mechanism=HalfShift(2.0)), adjacency)
    # also by an entry that says nothing of how close the price is
    assert catalogue.problems(Entry(HalfShift(2.0), right.laws, (), float("inf")), adjacency)


def test_a_forgotten_adjacency_and_half_a_rate_are_found() -> None:
    laplace, sampled = ALL["Laplace"], ALL["PoissonSampled Gaussian"]
    forgets = dataclasses.replace(laplace, mechanism=ForgetsToReplace(4.0))
    assert catalogue.problems(forgets, "replace-one")
    half = HalfRate(acc.Gaussian(1.0), 0.05)
    assert catalogue.problems(dataclasses.replace(sampled, mechanism=half), "add-remove")


def test_a_mechanism_without_an_entry_fails() -> None:
    assert catalogue.unlisted(ALL, catalogue.kinds() | {HalfShift}) == ["HalfShift has no entry"]
    one_value = {name: entry for name, entry in ALL.items() if name != "Laplace, near"}
    assert "Laplace.replace is 2.0 in every entry" in catalogue.unlisted(one_value, catalogue.kinds())
