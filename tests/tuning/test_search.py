"""A private search stays within its total budget, charges once, and lets nothing out but the selected run."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import random
import re
import stat
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tacit import accounting as acc
from tacit import tuning
from tacit.ledger import BudgetExceeded, Ledger
from tacit.noise import add_gaussian
from tacit.sgd import Training
from tacit.tuning import AdaptiveError, LogUniform, PrivateSearch, Score, SearchFailed, TuningError, correct_count

DELTA = 1e-6


def gaussian(candidate: dict[str, Any], noise: float) -> acc.Mechanism:
    return acc.Gaussian(noise)


def name_of(candidate: dict[str, Any], noise: float) -> str:
    return str(candidate["which"])


def points(model: str) -> float:
    return {"bad": 0.0, "fair": 300.0, "good": 900.0}[model]


def search(**changes: Any) -> PrivateSearch:
    """A toy whose runs cost nothing to make: the model is the candidate's name."""
    usual: dict[str, Any] = {
        "mechanism": gaussian,
        "epsilon": 1.0,
        "delta": DELTA,
        "runs": 12,
        "space": {"which": ["bad", "fair", "good"]},
        "train": name_of,
        "score": Score(points),
    } | changes
    return PrivateSearch(usual.pop("space"), usual.pop("train"), usual.pop("score"), **usual)


@functools.cache
def table() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(1300, 4, generator=generator) * 2 - 1
    y = (x[:, 0] + 0.5 * x[:, 1] > 0).long()
    return x[:1000], y[:1000], x[1000:], y[1000:]


def logistic(candidate: dict[str, Any], noise: float) -> Training:
    x, y, _, _ = table()
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=candidate["learning_rate"])
    return Training(
        model,
        optimizer,
        torch.nn.CrossEntropyLoss(reduction="none"),
        (x, y),
        batch_size=candidate.get("batch", 100),
        steps=20,
        noise_multiplier=noise,
        delta=DELTA,
    )


# -- the budget ----


@pytest.mark.parametrize("method", ["geometric", "logarithmic", "negative-binomial", "poisson", "exponential"])
def test_the_total_budget_is_met_from_below(method: str) -> None:
    """Total ε = 1 → base noise → priced back: at most 1, within 1e-3."""
    made = search(method=method, eta=0.5)
    assert made.noise is not None
    if method == "exponential":
        whole = acc.Gaussian(made.noise) * 3 + acc.PureDP(made.choice_epsilon)
    else:
        base = acc.Gaussian(made.noise) + acc.Gaussian(20.0)  # training and score
        whole = acc.Selected.of(base, 12, distribution=method, eta=0.5)
    assert 1 - 1e-3 <= acc.epsilon(whole, DELTA).upper <= 1
    assert made.privacy.upper == pytest.approx(acc.epsilon(whole, DELTA).upper, rel=1e-6)
    assert "tuning: charged" in repr(made.privacy)


def test_a_search_over_private_training_runs_what_it_priced() -> None:
    _, _, held_x, held_y = table()
    made = PrivateSearch(
        {"learning_rate": [1e-4, 1.0]},
        logistic,
        correct_count(held_x, held_y.numpy()),
        epsilon=3.0,
        delta=DELTA,
        runs=6,
    )
    found = made.run()
    assert 3 * (1 - 1e-3) <= found.privacy.upper <= 3.0
    assert found.noise == made.noise
    assert isinstance(found.model, torch.nn.Linear)
    assert found.best is not None
    assert found.best["learning_rate"] in (1e-4, 1.0)
    assert found.score is not None
    if found.best["learning_rate"] == 1.0:
        right = int((found.model(held_x).argmax(1) == held_y).sum())
        assert abs(found.score - right) < 6 * 20


def test_candidates_of_different_price_get_the_same_budget_each() -> None:
    _, _, held_x, held_y = table()
    made = PrivateSearch(
        {"learning_rate": [1.0, 2.0], "batch": [50, 200]},
        logistic,
        correct_count(held_x, held_y.numpy()),
        epsilon=2.0,
        delta=DELTA,
        runs=4,
    )
    small, large = (made.noise_of({"learning_rate": 1.0, "batch": batch}) for batch in (50, 200))
    assert made.noise is None
    assert small < large
    prices = [acc.epsilon(logistic({"learning_rate": 1.0, "batch": b}, z).plan.mechanism, DELTA / 4).upper
              for b, z in ((50, small), (200, large))]  # fmt: skip
    assert prices[0] == pytest.approx(prices[1], rel=1e-3)
    assert 2 * (1 - 2e-3) <= made.privacy.upper <= 2.0


def test_a_training_that_is_not_what_was_priced_never_counts() -> None:
    """A run that adds less noise than it was asked to fails, like every other, and nothing is released."""
    _, _, held_x, held_y = table()
    calls: list[float] = []

    def cheat(candidate: dict[str, Any], noise: float) -> Training:
        calls.append(noise)
        return logistic(candidate, noise if len(calls) < made_after else noise / 2)

    made_after = 10**9
    made = PrivateSearch(
        {"learning_rate": [1.0]}, cheat, correct_count(held_x, held_y.numpy()), epsilon=2.0, delta=DELTA, runs=2
    )
    made_after = 0
    with pytest.raises(SearchFailed, match="was priced"):
        made.run()


# -- the selection ----


def test_the_selected_candidate_follows_the_exact_law() -> None:
    """With scores far apart the best drawn wins: P(only bad) = E[(1/3)^K], geometric K."""
    made = search(score=Score(points, noise=1.0), epsilon=8.0, runs=4)
    gamma, total = 0.25, 400
    drawn = Counter(str(made.run().model) for _ in range(total))

    def below(share: float) -> float:
        return gamma * share / (1 - (1 - gamma) * share)

    expected = [below(1 / 3), below(2 / 3) - below(1 / 3), 1 - below(2 / 3)]
    seen = [drawn["bad"], drawn["fair"], drawn["good"]]
    assert stats.chisquare(seen, [total * p for p in expected]).pvalue > 1e-9


def test_ties_are_broken_by_lot() -> None:
    same = search(score=_Constant(lambda model: 0.0, noise=20.0), runs=3)
    drawn = Counter(str(same.run().model) for _ in range(300))
    assert stats.chisquare([drawn["bad"], drawn["fair"], drawn["good"]]).pvalue > 1e-9


class _Constant(Score):
    def __call__(self, model: Any) -> float:
        return 0.0


def test_a_threshold_stops_at_the_first_good_run_or_with_nothing() -> None:
    made = search(method="threshold", threshold=600.0, score=Score(points, noise=1.0), epsilon=8.0, runs=4)
    drawn = Counter(str(made.run().model) for _ in range(600))
    assert set(drawn) == {"good", "None"}
    passed = (1 / 3) / (1 / 4 + 3 / 4 * 1 / 3)  # p / (γ + (1-γ)p)
    assert drawn["good"] / 600 == pytest.approx(passed, abs=0.12)  # six standard deviations
    assert made.run().privacy.upper <= 8.0


def test_a_poisson_search_may_release_nothing() -> None:
    made = search(method="poisson", runs=0.2)
    found = [made.run() for _ in range(30)]
    assert any(f.nothing for f in found)
    assert all(f.score is None for f in found if f.nothing)


def test_the_exponential_mechanism_trains_every_candidate_and_releases_no_score() -> None:
    for method in ("exponential", "permute-and-flip"):
        made = search(method=method, choice_epsilon=0.5)
        found = made.run()
        assert found.best == {"which": "good"}
        assert found.score is None
        assert found.privacy.upper <= made.epsilon
    wide = search(method="generalised-exponential", sensitivities=[1.0, 1.0, 500.0], choice_epsilon=0.5)
    # The third is better by less than its own sensitivity; it is still chosen about once in 45 times.
    assert Counter((wide.run().best or {})["which"] for _ in range(40))["fair"] > 30


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_runs_go_on_side_by_side(executor: str) -> None:
    # Poisson, as a geometric number may be one; that the best of three is never drawn has probability exp(-80/3).
    made = search(workers=2, executor=executor, method="poisson", runs=80, epsilon=2.0)
    assert {made.run().model for _ in range(3)} == {"good"}


# -- what stays inside ----


def noisy(candidate: dict[str, Any], noise: float) -> str:
    """A training that says all it can."""
    print(f"PRIVATE-{candidate['which']}")
    print(f"PRIVATE-{candidate['which']}", file=sys.stderr)
    logging.getLogger("someone").error("PRIVATE-%s", candidate["which"])
    warnings.warn(f"PRIVATE-{candidate['which']}", stacklevel=1)
    return str(candidate["which"])


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_about_runs_that_were_not_selected_is_printed_logged_or_kept(
    workers: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    logging.basicConfig(handlers=[logging.FileHandler(tmp_path / "log.txt")], force=True)
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.register("people", epsilon=2.0, delta=2e-6)
    made = search(train=noisy, workers=workers, scratch=tmp_path / "run" / "scratch", ledger=ledger, dataset="people")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = made.run()
    logging.basicConfig(handlers=[], force=True)
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err == ""
    assert not caught
    assert not (tmp_path / "run" / "scratch").exists()
    kept = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert set(kept) <= {"ledger.db", "ledger.db-wal", "ledger.db-shm", "log.txt", "ledger.db.key"}
    for text in (b"PRIVATE", b"fair", b"which", b'"bad"'):  # bad alone may be part of a hash
        assert all(text not in content for content in kept.values())
    # the result knows of the selected run only
    whole = repr(found.__dict__) + json.dumps(found.release().to_dict()) + repr(made.privacy)
    for other in {"bad", "fair", "good"} - {str(found.model)}:
        assert f"'{other}'" not in whole
        assert f'"{other}"' not in whole
    record = ledger.history("people")
    assert len(record) == 1
    assert record[0].confirmed


def test_the_terminal_shows_elapsed_time_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from tacit.tuning import runs

    screen = io.StringIO()
    with runs.clock(screen, wanted=True):
        import time

        time.sleep(1.2)
    shown = screen.getvalue().replace("\r", "").replace("\033[K", "")
    assert re.fullmatch(r"(searching  0:0\d)+", shown.strip())  # a busy machine may come to the next second


# -- the ledger, and going on ----


def test_the_ledger_is_charged_once_and_before_anything_runs() -> None:
    ledger = Ledger()
    ledger.register("people", epsilon=1.5, delta=2e-6)
    seen: list[int] = []

    def train(candidate: dict[str, Any], noise: float) -> str:
        seen.append(ledger.budget("people").charges)
        return str(candidate["which"])

    found = search(train=train, ledger=ledger, dataset="people").run()
    assert set(seen) == {1}
    assert ledger.budget("people").charges == 1
    assert found.charge is not None
    assert found.charge.epsilon <= 1.0
    assert found.release().source("best").startswith("charged to people")
    seen.clear()
    with pytest.raises(BudgetExceeded):
        search(train=train, ledger=ledger, dataset="people").run()
    assert not seen  # refused before anything ran


def test_an_interrupted_search_goes_on_with_the_same_charge_and_leaves_no_trace(tmp_path: Path) -> None:
    ledger = Ledger()
    ledger.register("people", epsilon=1.5, delta=2e-6)
    place = tmp_path / "scratch"
    lives = [3]

    def fragile(candidate: dict[str, Any], noise: float) -> str:
        lives[0] -= 1
        if lives[0] == 0:
            raise KeyboardInterrupt
        return str(candidate["which"])

    made = search(train=fragile, ledger=ledger, dataset="people", method="poisson", runs=60, scratch=place)
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert stat.S_IMODE(os.stat(place).st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in place.iterdir())
    with pytest.raises(TuningError, match="other settings"):
        search(train=fragile, ledger=ledger, dataset="people", method="poisson", runs=50, scratch=place).run()
    lives[0] = 10**9
    found = search(train=fragile, ledger=ledger, dataset="people", method="poisson", runs=60, scratch=place).run()
    assert found.model == "good"
    assert ledger.budget("people").charges == 1
    assert not place.exists()


def test_what_was_selected_is_kept_until_the_search_is_ended(tmp_path: Path) -> None:
    ledger = Ledger()
    ledger.register("people", epsilon=3.5, delta=4e-6)
    place = tmp_path / "scratch"

    def again() -> PrivateSearch:
        return search(ledger=ledger, dataset="people", method="exponential", scratch=place)

    first = again().select()
    for _ in range(3):  # whoever was killed with the result in hand gets the same one, and pays nothing
        found = again().select()
        assert (found.best, found.model) == (first.best, first.model)
    again().end()
    assert not place.exists()
    assert [record.confirmed for record in ledger.history("people")] == [True]


@pytest.mark.parametrize("method", ["geometric", "threshold", "exponential"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_was_interrupted_is_done_again_as_it_was(tmp_path: Path, method: str, workers: int) -> None:
    """A run drawn anew would be one given that it was not lost, which nobody has priced."""
    attempts: list[list[tuple[float, float]]] = [[]]

    def drawing(candidate: dict[str, Any], noise: float) -> str:
        # from tacit's exact noise, and from the generator that everybody shares
        attempts[-1].append((float(add_gaussian(0.0, 1.0)), random.random()))
        if len(attempts) == 1:
            raise KeyboardInterrupt
        return str(candidate["which"])

    options: dict[str, Any] = {"method": method, "workers": workers, "train": drawing, "scratch": tmp_path / "scratch"}
    if method == "threshold":
        options["threshold"] = 500.0
    with pytest.raises(KeyboardInterrupt):
        search(**options).run()
    attempts.append([])
    search(**options).run()
    lost, again = ([noise for noise, _ in runs] for runs in attempts)
    assert lost
    assert set(lost) <= set(again)
    assert len(set(again)) == len(again)  # and no two runs share a draw
    if workers == 1:
        assert set(attempts[0]) <= set(attempts[1])


def test_a_scratch_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    os.chmod(tmp_path / "open", 0o755)
    with pytest.raises(TuningError, match="other users"):
        search(scratch=tmp_path / "open").run()
    mine = tmp_path / "mine"
    mine.mkdir()
    os.chmod(mine, 0o700)
    (mine / "thesis.txt").write_text("do not delete")
    with pytest.raises(TuningError, match="something else"):
        search(scratch=mine).run()
    assert (mine / "thesis.txt").exists()


def test_failures_are_outcomes_like_any_other() -> None:
    def train(candidate: dict[str, Any], noise: float) -> str:
        if candidate["which"] == "good":
            raise RuntimeError("this one never works")
        return str(candidate["which"])

    models = {search(train=train, method="poisson", runs=80, epsilon=2.0).run().model for _ in range(5)}
    assert models == {"fair"}
    assert search(train=train, method="exponential", choice_epsilon=0.5).run().model == "fair"
    with pytest.raises(SearchFailed, match=r"RuntimeError \(its text may hold rows\)"):
        search(train=train, space={"which": ["good"]}).run()


def test_a_score_that_is_not_a_number_loses() -> None:
    class Odd(Score):
        def __call__(self, model: Any) -> float:
            return math.nan if model == "good" else points(model)

    assert search(score=Odd(points), method="poisson", runs=80, epsilon=2.0).run().model == "fair"


# -- what is refused ----


def test_adaptive_candidates_are_refused_with_the_reason() -> None:
    class Study:
        def ask(self) -> None: ...

    for adaptive in (Study(), lambda trial: {"which": "good"}, {"which": Study()}):
        with pytest.raises(AdaptiveError, match="do not cover"):
            search(space=adaptive)


def test_a_plain_function_is_no_score() -> None:
    with pytest.raises(TuningError, match="no stated sensitivity"):
        search(score=points)


def test_a_price_that_depends_on_a_continuous_draw_is_refused() -> None:
    with pytest.raises(TuningError, match="continuous range"):
        search(space={"scale": LogUniform(1.0, 2.0)}, mechanism=lambda c, z: acc.Gaussian(z * c["scale"]))
    free = search(space={"which": ["good"], "rate": LogUniform(0.1, 10.0)})
    assert 0.1 <= (free.run().best or {})["rate"] <= 10.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"method": "best of three"}, "method must be one of"),
        ({"epsilon": 0.0}, "total budget"),
        ({"threshold": 3.0}, "belongs to"),
        ({"method": "threshold"}, "belongs to"),
        ({"method": "exponential", "choice_epsilon": 2.0}, "a part of"),
        ({"method": "exponential", "space": {"which": LogUniform(1.0, 2.0)}}, "finite grid"),
        ({"method": "generalised-exponential"}, "sensitivities"),
        ({"sensitivities": [1.0]}, "belongs to"),
        ({"workers": 0}, "workers"),
        ({"executor": "cluster"}, "executor"),
        ({"dataset": "people"}, "together"),
        ({"space": {}}, "empty"),
        ({"space": {"which": []}}, "list of values"),
        ({"score": Score(points, noise=0.5)}, "no noise of the training"),
        ({"mechanism": None}, "give mechanism="),
        ({"mechanism": lambda c, z: "cheap"}, "described by a mechanism"),
    ],
)
def test_wrong_settings_are_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(TuningError, match=said):
        search(**change)


def test_scores_state_what_one_record_can_do() -> None:
    x, y, _, _ = table()
    model = torch.nn.Linear(4, 2)
    count = correct_count(x, y.numpy(), noise=7.0)
    assert count.exact(model) == int((model(x).argmax(1) == y).sum())
    assert count.mechanism == acc.Gaussian(7.0, replace=1.0)
    losses = np.array([0.2, 5.0, math.nan, 0.1])
    bounded = tuning.bounded_loss(lambda model: losses, bound=2.0)
    assert bounded.exact(None) == pytest.approx(-(0.2 + 2.0 + 2.0 + 0.1), abs=1e-5)
    assert -2 <= bounded.exact(None) - tuning.bounded_loss(lambda m: losses[:-1], bound=2.0).exact(None) <= 0
    laplace = Score(lambda m: 3.0, kind="laplace", noise=2.0)
    assert acc.epsilon(laplace.mechanism, 1e-9).upper <= 0.5


@pytest.mark.parametrize("shape", [(6, 2), ()])
def test_a_score_that_one_record_could_move_by_more_is_refused(shape):
    with pytest.raises(TuningError, match="for each record"):
        correct_count(np.zeros((6, 3)), np.zeros(shape, int))
    with pytest.raises(TuningError, match="for each record"):
        tuning.bounded_loss(lambda model: np.ones(shape)).exact(None)


def nearest(model, rows):
    return (np.asarray(rows)[:, 0] > model).astype(int)


def constant(candidate, noise):
    return candidate["at"]


def test_the_scores_of_the_house_go_to_processes_and_arrays_are_lists_of_values():
    rows = np.linspace(-1, 1, 400)[:, None]
    score = correct_count(rows, (rows[:, 0] > 0).astype(int), predict=nearest)
    search = PrivateSearch(
        {"at": np.array([-1.0, 0.0])}, constant, score, mechanism=gaussian, epsilon=2.0, delta=1e-6, runs=12,
        workers=2, executor="process",
    )  # fmt: skip
    assert search.run().best["at"] in (-1.0, 0.0)
    for wrong in ({"runs": math.nan}, {"method": "threshold", "threshold": math.nan}):
        with pytest.raises(TuningError, match="number"):
            PrivateSearch({"at": [0.0]}, constant, score, mechanism=gaussian, epsilon=2.0, delta=1e-6, **wrong)


def test_a_search_takes_numbers_out_of_numpy():
    score = tuning.Score(lambda model: 1.0, sensitivity=np.float32(1.0), noise=np.int64(20))
    numbers = {"epsilon": np.float32(2.0), "delta": np.float64(1e-6), "runs": np.int64(3), "workers": np.int64(1)}
    search = PrivateSearch({"at": [0.0]}, constant, score, mechanism=gaussian, **numbers)
    assert search.run().privacy.claim <= 2.0
