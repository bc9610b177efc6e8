"""Broken versions of tacit are caught, and tacit as it is is not."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os

import pytest

from tacit import accounting as acc
from tacit.audit.findings import FAMILY_WISE, Finding, failures, holds, verdict
from tacit.noise.sampling import bernoulli_threshold
from tacit.selftest import mutation, try_mutants
from tacit.selftest.battery import battery
from tacit.selftest.mutants import FAMILIES, MUTANTS, replaced
from tacit.selftest.mutation import run_one
from tacit.selftest.scene import SIGNIFICANCE, Scene

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
    assert len(MUTANTS) >= 90
    assert all(mutant.story for mutant in MUTANTS.values())
    for family in FAMILIES:
        later = [m for m in MUTANTS.values() if m.family == family and m.later]
        assert len(later) >= 2


@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_is_caught(name):
    outcome = run_one(MUTANTS[name])
    assert outcome.caught, name
    assert outcome.good


@pytest.mark.parametrize(
    "name",
    [
        *("bounded: tied weight", "noise", "sampling", "votes", "schema: values", "table: people", "selection: scores"),
        *("prices: filters", "ledger: in any order", "kinds: correlated noise", "report: cards", "runs: fits"),
        *("correlated: inverse", "ledger: terms", "noise: draws", "selection: methods", "votes: partitions"),
    ],
)
def test_tacit_as_it_is_passes(name):
    for finding in battery()[name].check(1):
        assert finding.passes(SIGNIFICANCE), finding


def test_a_mutant_that_no_longer_fits_is_an_error_and_not_a_pass():
    with pytest.raises(AttributeError, match="no longer fits"), replaced(mutation, "nothing", None):
        pass
    with pytest.raises(ValueError, match="no mutant"):
        try_mutants(names=("there is none",))


def test_a_mutant_that_ends_its_process_is_not_caught_and_the_others_are_tried(monkeypatch):
    @contextlib.contextmanager
    def dies():
        os._exit(3)
        yield

    dead = dataclasses.replace(MUTANTS["noise × 0.9"], name="dead", apply=dies)
    scene = Scene("look", "sgd", lambda seed: [holds("seen", math.pi > 3, "π")])
    monkeypatch.setattr(mutation, "battery", lambda: {"look": scene})
    wrong = dataclasses.replace(dead, name="wrong", apply=lambda: replaced(math, "pi", 3.0))
    right = dataclasses.replace(dead, name="right", apply=contextlib.nullcontext)
    found = {o.name: o.caught for o in mutation.tried([dead, wrong, right], 0, lambda name: None, None)}
    assert found == {"dead": False, "wrong": True, "right": False}
    assert math.pi > 3


def test_a_mutant_does_not_meet_prices_that_were_computed_before_it():
    price = acc.epsilon(acc.Gaussian(2.0), 1e-5).upper
    mutation.forget()
    assert bernoulli_threshold.cache_info().currsize == 0
    assert acc.epsilon(acc.Gaussian(2.0), 1e-5).upper == price


def test_each_finding_has_its_part_of_the_significance():
    findings = [Finding("a", FAMILY_WISE / 5, ""), Finding("b", 1.0, "")]
    assert verdict(findings) == "fail"
    assert verdict([findings[0]] * 1 + [findings[1]] * 9) == "pass"
    assert failures([Finding("a", 0.0, "")])
    assert verdict([]) == "underpowered"


@pytest.mark.slow
def test_every_mutant_is_caught_in_under_two_minutes():
    outcomes = list(try_mutants())
    assert [o.name for o in outcomes if not o.good] == []
    assert [o for o in outcomes if o.caught_by.startswith("error")] == []
    assert max(o.seconds for o in outcomes) < 120
