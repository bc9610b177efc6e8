"""Broken versions of tacit are caught, and tacit as it is is not."""

from __future__ import annotations

import pytest

from tacit.audit import mutation as selftest_module
from tacit.audit import selftest
from tacit.audit.battery import MOST, SIGNIFICANCE, battery
from tacit.audit.findings import FAMILY_WISE, Finding, failures, verdict
from tacit.audit.mutants import FAMILIES, MUTANTS, replaced
from tacit.audit.mutation import CORRECT, run_one

#: Mutants that a quick check catches; the rest is left to the slow test, which runs all.
QUICK = (
    "noise × 0.9",
    "the same noise in every shard (summed step)",
    "one sampling seed on every worker (4 shards of one process)",
    "the batch is clipped instead of its examples",
    "the check of Confident-GNMax is not charged",
    "private selection is not charged",
    "bounds of a regression are taken from the data",
    "public rows are taken by their number",
    "every record of a person counts for itself in a score",
    "one step is not priced",
)


def test_there_are_enough_mutants_of_every_family():
    assert len(MUTANTS) >= 25
    assert all(mutant.story for mutant in MUTANTS.values())
    for family in FAMILIES:
        later = [m for m in MUTANTS.values() if m.family == family and m.later]
        assert len(later) >= 2


@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_is_caught(name):
    outcome = run_one(MUTANTS[name])
    assert outcome.caught, name
    assert outcome.good


@pytest.mark.parametrize("name", ["bounded: tied weight", "noise", "sampling", "votes", "rows alone", "table noise"])
def test_tacit_as_it_is_passes(name):
    for finding in battery()[name](1):
        assert finding.passes(SIGNIFICANCE), finding


def test_a_mutant_that_no_longer_fits_is_an_error_and_not_a_pass():
    with pytest.raises(AttributeError, match="no longer fits"), replaced(selftest_module, "nothing", None):
        pass
    with pytest.raises(ValueError, match="no mutant"):
        list(selftest(names=("there is none",)))


def test_each_finding_has_its_part_of_the_significance():
    findings = [Finding("a", FAMILY_WISE / 5, ""), Finding("b", 1.0, "")]
    assert verdict(findings) == "fail"
    assert verdict([findings[0]] * 1 + [findings[1]] * 9) == "pass"
    assert failures([Finding("a", 0.0, "")])
    assert verdict([]) == "underpowered"


@pytest.mark.slow
def test_every_mutant_is_caught_in_under_two_minutes():
    outcomes = list(selftest())
    assert outcomes[0].name == CORRECT
    assert [o.name for o in outcomes if not o.good] == []
    assert max(o.seconds for o in outcomes) < 120


@pytest.mark.slow
def test_tacit_as_it_is_passes_with_200_of_200_seeds():
    """Family-wise significance 1e-4: one false alarm is expected in 10,000 runs of the battery."""
    for seed in range(200):
        count = 0
        for name, check in battery().items():
            for finding in check(seed):
                count += 1
                assert finding.passes(SIGNIFICANCE), (seed, name, finding)
        assert count <= MOST
