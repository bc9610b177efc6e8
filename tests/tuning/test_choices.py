"""What a choice may cost: its score is bounded, its rate follows the adjacency, and a run that failed is over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tacit import accounting as acc
from tacit.tuning import PrivateSearch, Score, bounded_loss
from tacit.tuning.runs import RunOutcome
from tests.catalogue.seam import watched

CANDIDATES = [{"which": which} for which in "abc"]


def search(score: Score, method: str = "exponential", **changes: Any) -> PrivateSearch:
    return PrivateSearch(
        CANDIDATES,
        changes.pop("train", lambda candidate, noise: candidate["which"]),
        score,
        **{"epsilon": 3.0, "delta": 1e-6, "method": method} | changes,
        mechanism=lambda candidate, noise: acc.Gaussian(noise),
    )


@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize(
    ("adjacency", "replace", "moves"),
    [
        # By how much neighbours move the scores of two candidates: up and down, or both the same way where monotone.
        ("add-remove", None, {True: (1.0, 0.0), False: (1.0, -1.0)}),
        ("replace-one", None, {True: (2.0, -2.0), False: (2.0, -2.0)}),
        ("replace-one", 1.0, {True: (1.0, -1.0), False: (1.0, -1.0)}),
    ],
)
def test_the_rate_of_a_choice_keeps_its_epsilon_under_every_adjacency(adjacency, replace, moves, monotone):
    score = Score(lambda model: 0.0, sensitivity=5.0, replace=replace and 5.0 * replace, monotone=monotone)
    made = search(score, adjacency=adjacency)
    finished = [RunOutcome(one, one["which"], float(n), n) for n, one in enumerate(CANDIDATES)]
    with watched() as seen:
        made._choose(finished)
    (choice,) = seen.drawn
    rate = choice.scale[0]
    up, down = moves[monotone]
    assert rate * 5.0 * (up - down) == pytest.approx(made.choice_epsilon)  # the range of the exponents' changes


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("method", ["poisson", "exponential"])
def test_a_run_that_failed_is_not_tried_again(method, workers, monkeypatch):
    tried: list[str] = []

    def train(candidate: dict[str, Any], noise: float) -> str:
        tried.append(candidate["which"])
        if len(tried) == tried.index(candidate["which"]) + 1 and candidate["which"] != "c":
            raise MemoryError("the first time")  # a second time it would not
        return str(candidate["which"])

    kinds = {"runs": 5} if method == "poisson" else {}
    made = search(Score(lambda model: {"c": 1e9}.get(model, 2e9)), method, train=train, workers=workers, **kinds)
    if method == "poisson":
        begin = made._begin
        drawn = [(dict(one), lot) for lot, one in enumerate(CANDIDATES)]
        monkeypatch.setattr(made, "_begin", lambda: begin() | {"waiting": list(drawn)})
    found = made.run()
    assert sorted(tried) == ["a", "b", "c"]
    assert found.model == "c"  # trying again would have selected another


def test_a_threshold_search_pays_a_coin_for_a_run_that_failed(monkeypatch):
    coins: list[int] = []

    def train(candidate: dict[str, Any], noise: float) -> str:
        coins.append(0)
        if coins.count(0) < 4:
            raise RuntimeError("the first three times")
        return str(candidate["which"])

    made = search(Score(lambda model: 1e9), "threshold", train=train, threshold=0.0, runs=4)
    monkeypatch.setattr("tacit.tuning.search.exact.bernoulli", lambda gamma: coins.append(1) or False)
    assert made.run().model in "abc"
    assert coins == [0, 1] * 4


values = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(-3, 3))


@given(st.lists(values, min_size=1, max_size=8), values, st.floats(0.01, 100.0))
@example([0.5], -7.0, 1.0)
@example([0.5], float("-inf"), 2.0)
@example([0.5], float("nan"), 2.0)
@example([0.5], 9.0, 2.0)
def test_one_record_moves_a_bounded_loss_by_its_bound_and_adding_it_never_raises_it(others, one, bound):
    def exact(losses: list[float]) -> float:
        return bounded_loss(lambda model: np.array(losses), bound=bound).exact(None)

    without, with_it = exact(others), exact([*others, one])
    assert with_it <= without
    assert without - with_it <= bound * (1 + 1e-9)
    changed = exact([*others[1:], one])
    assert abs(changed - without) <= bound * (1 + 1e-9)
