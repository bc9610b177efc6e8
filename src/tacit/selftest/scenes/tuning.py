"""Does choosing keep its promises? Private selection, the exponential mechanism and scores, from outside."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from tacit import accounting as acc
from tacit.audit import bounds, statistics
from tacit.audit.findings import Finding, holds
from tacit.ledger import BudgetExceeded
from tacit.selftest import tap
from tacit.selftest.scene import Scene, charged, ledger_of, refused
from tacit.tuning import (
    LogUniform,
    PrivateSearch,
    Score,
    SearchFailed,
    TuningError,
    Uniform,
    bounded_loss,
    correct_count,
    exponential_mechanism,
    generalised_exponential_mechanism,
    good_defaults,
    permute_and_flip,
    tune_on_public,
)
from tacit.tuning.exponential import comparisons
from tacit.tuning.space import Space

Floats = npt.NDArray[np.float64]


def selected_delta(noise: float, runs: float, epsilon: float) -> float:
    """δ(ε) of the best of a geometric number of N(0, σ²) against N(1, σ²), the score being the value itself.

    With P[K = k] = p(1 - p)^(k-1) the selected value has density p·f / (1 - (1 - p)F)².
    """
    grid = np.linspace(-9 * noise, 9 * noise + 1, 200_001)
    p = 1 / runs

    def density(centre: float) -> Floats:
        z = (grid - centre) / noise
        return np.asarray(p * stats.norm.pdf(z) / noise / (1 - (1 - p) * special.ndtr(z)) ** 2)

    zero, one = density(0.0), density(1.0)
    return max(
        float(np.trapezoid(np.maximum(a - math.exp(epsilon) * b, 0.0), grid)) for a, b in ((zero, one), (one, zero))
    )


def selection_is_charged(seed: int) -> list[Finding]:
    """The claim of a private search against the law of what it selects; the noise and sensitivity of scores."""
    runs, epsilon, delta = 10.0, 1.0, 1e-3
    ledger = ledger_of()
    rng = np.random.default_rng(seed)
    score = Score(lambda model: 1e6 * model, noise=20.0)
    search = PrivateSearch(
        {"candidate": [0]},
        lambda candidate, noise: float(noise * rng.standard_normal()),
        score,
        mechanism=lambda candidate, noise: acc.Gaussian(noise),
        epsilon=epsilon,
        delta=delta,
        runs=runs,
        ledger=ledger,
        dataset="people",
        progress=False,
    )
    noise = search.noise
    assert noise is not None
    true = selected_delta(noise, runs, search.privacy.upper)
    search.run()
    spent = charged(ledger, delta)
    drawn = Score(lambda model: 3.0, sensitivity=2.0, noise=5.0)
    left = [(drawn(None) - 3.0) / 10.0 for _ in range(1000)]
    ids, right = np.append(np.arange(5), [5] * 30), np.ones(35)  # five people, and one with thirty records
    counts = [correct_count(right[:n], right[:n], predict=lambda _, x: x, groups=ids[:n]) for n in (5, 35)]
    losses = [bounded_loss(lambda _, n=n: right[:n], groups=ids[:n]) for n in (5, 35)]  # type: ignore[misc]
    moved = max(abs(many.exact(None) - few.exact(None)) / few.sensitivity for few, many in (counts, losses))
    return [
        holds(
            "selection: price", true <= delta * (1 + 1e-3), f"claimed δ = {delta:g} at ε = {epsilon:g}, true {true:.2g}"
        ),
        holds(
            "selection: charged",
            spent >= epsilon * 0.98,
            f"the ledger holds ε = {spent:.4f} for a search of {epsilon}",
        ),
        holds("selection: one person's score", moved <= 1.0, f"thirty records of one person move it by {moved:g}"),
        Finding("selection: score noise", statistics.variance_p_value(left), "noise of a score, 1,000 draws"),
    ]


# -- choosing by exact scores ------------------------------------------------------------------------------------------


def choices_follow_their_law(seed: int) -> list[Finding]:
    """How often each of a few scores is chosen, against the law that keeps ε."""
    many, epsilon, scores = 700, 1.0, [0.0, 2.0, 3.0]
    found = []
    laws: list[tuple[str, Callable[[], int], list[float]]] = [
        ("exponential", lambda: exponential_mechanism(scores, epsilon), [math.exp(s / 2) for s in scores]),
        ("monotone", lambda: exponential_mechanism(scores, epsilon, monotone=True), [math.exp(s) for s in scores]),
        ("wide", lambda: exponential_mechanism(scores, epsilon, sensitivity=2.0), [math.exp(s / 4) for s in scores]),
    ]
    for name, choose, weights in laws:
        hits = int(sum(choose() == 2 for _ in range(many)))
        p = statistics.frequency_p_value(hits, many, weights[2] / sum(weights))
        found.append(Finding(f"choice: {name}", p, f"the best score was chosen {hits} of {many} times"))
    for monotone, gap in ((False, 1.0), (True, 2.0)):
        hits = sum(permute_and_flip([0.0, 2.0], epsilon, monotone=monotone) == 1 for _ in range(many))
        p = statistics.frequency_p_value(hits, many, 1 - math.exp(-gap) / 2)
        found.append(Finding(f"choice: permute and flip (monotone: {monotone})", p, f"{hits} of {many}"))
    widths = [1.0, 5.0]
    moved = 0.0
    for a in (-1, 0, 1):
        for b in (-1, 0, 1):
            one = comparisons([10.0, 12.0], widths, epsilon)
            other = comparisons([10.0 + a * widths[0], 12.0 + b * widths[1]], widths, epsilon)
            moved = max(moved, max(abs(float(x - y)) for x, y in zip(one, other, strict=True)))
    hits = sum(generalised_exponential_mechanism([0.0, 400.0], [1.0, 2.0], epsilon) == 1 for _ in range(50))
    # Each comparison moves by at most 1; with both in the exponent the choice keeps ε with half of it.
    # Scores 0 and 8 of sensitivity 1: the first falls short by (8 - 0)/2 comparisons.
    short = sum(generalised_exponential_mechanism([0.0, 8.0], [1.0, 1.0], epsilon) == 1 for _ in range(many))
    even = sum(generalised_exponential_mechanism([5.0, 5.0], [1.0, 1.0], epsilon) == 1 for _ in range(many))
    return [
        *found,
        holds("choice: comparisons", moved <= 1 + 1e-9, f"one person moves a comparison by {moved:.4f}"),
        holds("choice: generalised", hits == 50, f"the far better score was chosen {hits} of 50 times"),
        Finding(
            "choice: generalised, its law",
            statistics.frequency_p_value(short, many, 1 / (1 + math.exp(-epsilon / 2 * 4))),
            f"the better score was chosen {short} of {many} times",
        ),
        Finding("choice: equal scores", statistics.frequency_p_value(even, many, 0.5), f"{even} of {many}"),
        refused(
            "choice: refusals",
            {
                "nothing": (lambda: exponential_mechanism([], 1.0), TuningError),
                "not a number": (lambda: permute_and_flip([math.nan], 1.0), TuningError),
                "no ε": (lambda: exponential_mechanism([1.0], 0.0), TuningError),
                "no sensitivity": (lambda: exponential_mechanism([1.0], 1.0, sensitivity=0.0), TuningError),
                "one sensitivity too few": (
                    lambda: generalised_exponential_mechanism([1.0, 2.0], [1.0], 1.0),
                    TuningError,
                ),
                "a probability of 1": (
                    lambda: generalised_exponential_mechanism([1.0], [1.0], 1.0, beta=1.0),
                    TuningError,
                ),
            },
        ),
    ]


def _search(score: Score, **settings: Any) -> PrivateSearch:
    usual: dict[str, Any] = {
        "mechanism": lambda candidate, noise: acc.Gaussian(noise, replace=2.0),
        "epsilon": 2.0,
        "delta": 1e-5,
        "progress": False,
    }
    train = settings.pop("train", lambda candidate, noise: candidate["which"])
    return PrivateSearch({"which": [0, 1]}, train, score, **(usual | settings))


def choices_under_each_adjacency(seed: int) -> list[Finding]:
    """The exponential methods of a search: a score's move under the adjacency decides how sharply is chosen."""
    found, many, gap = [], 400, 4.0
    cases: list[tuple[str, dict[str, Any], str, float]] = [
        # monotone, and only added or removed: no 2 in the exponent
        ("monotone, add-remove", {"monotone": True, "replace": 1.0}, "add-remove", 1.0),
        ("add-remove", {}, "add-remove", 2.0),
        ("monotone, replace-one", {"monotone": True, "replace": 1.0}, "replace-one", 2.0),
        ("replace-one", {}, "replace-one", 4.0),
    ]
    for name, kind, adjacency, divisor in cases:
        score = Score(lambda model: gap * model, **kind)
        search = _search(score, method="exponential", choice_epsilon=0.5, adjacency=adjacency)
        hits = sum(search.run().best == {"which": 1} for _ in range(many))
        p = statistics.frequency_p_value(hits, many, 1 / (1 + math.exp(-0.5 * gap / divisor)))
        found.append(Finding(f"choice: {name}", p, f"the better candidate was chosen {hits} of {many} times"))
        noise = search.noise
        assert noise is not None
        trained = bounds.gaussian_epsilon(math.sqrt(2) / noise * (2 if adjacency == "replace-one" else 1), 1e-5)
        claim = search.privacy.upper
        text = f"two trainings cost {trained:.4f} and the choice 0.5, claimed {claim:.4f}"
        # Basic composition of a pure ε with the rest is never below the exact price of both.
        found.append(holds(f"choice: price ({name})", trained <= claim <= 2.0 * (1 + 1e-6) and claim >= 0.5, text))
    return found


# -- searches ----------------------------------------------------------------------------------------------------------


def _with_less_noise(seed: int) -> Callable[[], object]:
    """A search whose runs are not those that were priced: later ones have less noise than the first says."""
    import torch
    from torch import nn

    from tacit.sgd import Training

    x, y = torch.randn(40, 3, generator=torch.Generator().manual_seed(seed)), torch.arange(40) % 2
    priced = [False]

    def train(candidate: Any, noise: float) -> Any:
        model = nn.Linear(3, 2)
        settings: dict[str, Any] = {"batch_size": 40, "steps": 2, "delta": 1e-6, "size": 40, "clip_norm": 1.0}
        own = noise / 2 if priced[0] else noise
        optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(reduction="none")
        return Training(model, optimizer, loss, (x, y), noise_multiplier=own, **settings)

    def work() -> None:
        score = correct_count(x, y, noise=8.0)
        search = PrivateSearch({"a": [1, 2]}, train, score, epsilon=3.0, delta=1e-5, runs=3, progress=False)
        priced[0] = True
        search.run()

    return work


def _fitted_for_more(seed: int) -> Callable[[], object]:
    """A search over an estimator that takes twice the ε where the rows are not made up."""
    from tacit.linear_model import LogisticRegression
    from tacit.tuning import PrivateSearchCV

    table = np.random.default_rng(seed + 7).uniform(-0.9, 0.9, (60, 2))
    known = set(table[:, 0].tolist())

    class Greedy(LogisticRegression):
        def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> Any:
            if set(np.asarray(X)[:, 0].tolist()) <= known:
                self.epsilon *= 2
            return super().fit(X, y, sample_weight, groups)

    def work() -> None:
        made = Greedy(bounds=(-1, 1), method="objective-perturbation")
        grid = {"fit_intercept": [True]}
        search = PrivateSearchCV(made, grid, epsilon=3.0, delta=1e-5, score_noise=20.0, runs=2)
        search.fit(table, (table[:, 0] > 0).astype(int))

    return work


def _as_many(name: str, runs: int, searches: int, mean: float) -> Finding:
    """The number of runs of a search is geometric of this mean, whatever happens in them."""
    more, p = runs - searches, 1 / mean
    tails = stats.nbinom.cdf(more, searches, p), stats.nbinom.sf(more - 1, searches, p)
    return Finding(name, float(min(1.0, 2 * min(tails))), f"{runs} runs in {searches} searches")


def failed_runs_are_runs(seed: int) -> list[Finding]:
    """A run that fails is an outcome: not tried again, not chosen over others, and nothing of it is told."""
    searches, mean = 150, 3.0
    calls = {"all": 0, "failed": 0}

    def train(candidate: Any, noise: float) -> Any:
        calls["all"] += 1
        if candidate["which"] == 0:
            calls["failed"] += 1
            raise ZeroDivisionError("row 17 is 42")
        return 1.0

    chosen, told = [], []
    others = {"half the noise": _with_less_noise(seed), "twice the ε in a fit": _fitted_for_more(seed)}
    less = refused("search: other runs", {name: (work, SearchFailed) for name, work in others.items()})
    search = _search(Score(lambda model: 1e6 * model), train=train, runs=mean, method="geometric")
    for _ in range(searches):
        try:
            chosen.append(search.run().best)
        except SearchFailed as error:
            told.append(str(error))
    without: list[Any] = []  # the runs of searches that no score ends
    never = {"train": lambda candidate, noise: without.append(candidate), "method": "threshold", "threshold": 1e9}
    ended = [_search(Score(lambda model: 0.0), runs=mean, **never).run().best for _ in range(searches)]
    half = statistics.frequency_p_value(calls["failed"], calls["all"], 0.5)
    return [
        _as_many("search: number of runs", calls["all"], searches, mean),
        _as_many("search: number of runs without success", len(without), len(ended), mean),
        Finding("search: candidates", half, f"{calls['failed']} of {calls['all']} runs had the first candidate"),
        holds(
            "search: failures lose", all(best == {"which": 1} for best in chosen), f"{len(chosen)} searches ended well"
        ),
        less,
        holds("search: failures say nothing", not any("42" in text for text in told), "no row in an error"),
    ]


def searches_end_as_priced(seed: int) -> list[Finding]:
    """Every method runs, charges once before its first run, and claims no less than one of its runs costs."""
    found = []
    rng = np.random.default_rng(seed)
    methods: dict[str, dict[str, Any]] = {
        "geometric": {},
        "logarithmic": {},
        "negative-binomial": {"eta": 0.5},
        "poisson": {},
        "threshold": {"threshold": -1e9},
        "permute-and-flip": {},
        "generalised-exponential": {"sensitivities": [1.0, 2.0]},
    }
    for method, more in methods.items():
        ledger = ledger_of()
        seen: list[int] = []

        def train(candidate: Any, noise: float, seen: list[int] = seen, ledger: Any = ledger) -> float:
            seen.append(ledger.budget("people").charges)
            return float(noise * rng.standard_normal())

        score = Score(lambda model: 0.0 if model is None else 1e-9 * model, noise=30.0)
        settings = more if "exponential" in method or "permute" in method else {"runs": 4.0} | more
        search = _search(score, train=train, method=method, ledger=ledger, dataset="people", **settings)
        result = search.run()
        noise = search.noise_of({"which": 0})
        one = bounds.gaussian_epsilon(1 / noise, 1e-5)
        spent, claim = charged(ledger, 1e-5), search.privacy.upper
        text = f"claimed {claim:.4f}, one run costs {one:.4f}, charged {spent:.4f} in {len(seen)} runs"
        right = one <= claim <= 2.0 * (1 + 1e-6) and spent >= claim * 0.98
        found.append(holds(f"search: {method}", right and ledger.budget("people").charges == 1, text))
        found.append(
            holds(f"search: {method} charged first", set(seen) <= {1}, f"charges when runs began: {set(seen)}")
        )
        del result
    return [*found, *_one_of_many_kinds()]


def _one_of_many_kinds() -> list[Finding]:
    """Candidates of different price: the order in which they are listed changes nothing. Failure releases nothing."""

    def run(candidate: Any, noise: float) -> acc.Mechanism:
        return acc.Gaussian(noise) if candidate["which"] else acc.Laplace(noise) * 3

    found = []
    for method, more in {"geometric": {}, "exponential": {}, "threshold": {"threshold": 1e9}}.items():
        settings: dict[str, Any] = {"method": method, "epsilon": 3.0, "delta": 1e-5} | more
        score = Score(lambda model: 0.0, noise=30.0)
        both = [
            PrivateSearch({"which": order}, lambda c, noise: c, score, mechanism=run, runs=3.0, **settings)
            for order in ([0, 1], [1, 0])
        ]
        noises = np.array([[search.noise_of({"which": one}) for one in (0, 1)] for search in both])
        alike = bool(np.allclose(noises[0], noises[1], rtol=0.02))
        found.append(holds(f"search: kinds ({method})", alike, f"noise of both kinds in both orders: {noises}"))
    released = [one for one in (both[0].run() for _ in range(5)) if (one.best, one.model) != (None, None)]
    return [*found, holds("search: no success", not released, f"{len(released)} of 5 released a model")]


def outside_estimator(seed: int) -> Finding:
    """A search over an estimator of training, by people: what is claimed is the plan of its runs, and it answers."""
    from tacit.sgd import Classifier
    from tacit.tuning import PrivateSearchCV

    table = np.random.default_rng(seed).uniform(-1, 1, (120, 2))
    labels = (table[:, 0] > 0).astype(int)
    estimator = Classifier(delta=1e-6, epochs=1, batch_size=60, classes=[0, 1], unit="person")
    search = PrivateSearchCV(
        estimator, [{"learning_rate": 0.5}, {"learning_rate": 1.0}], epsilon=3.0, delta=1e-5, score_noise=9.0, runs=2
    ).fit(table, labels, groups=np.arange(120) // 2)
    right = search.predict(table).shape == (120,) and search.predict_proba(table).shape == (120, 2)
    claim = search.privacy_
    good = right and 0 < claim.upper <= 3.0 * (1 + 1e-6) and claim.unit == "person" and search.score(table, labels) >= 0
    return holds("search: by people", good, f"claimed {claim}")


def people_are_whole(seed: int) -> Finding:
    """In a search by people, nobody is trained on and scored on: only then does one person change one of the two."""
    from tacit.linear_model import LogisticRegression
    from tacit.tuning import PrivateSearchCV

    trained, scored = set[float](), set[float]()

    class Seen(LogisticRegression):
        """Notes whose rows it is given; the first column says whose."""

        def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> Any:
            trained.update(np.asarray(X)[:, 0].tolist())
            return super().fit(X, y, sample_weight, groups)

        def predict(self, X: Any) -> Any:
            scored.update(np.asarray(X)[:, 0].tolist())
            return super().predict(X)

    owners = np.repeat(np.arange(60), 4)
    table = np.column_stack([owners / 64, np.random.default_rng(seed).uniform(-1, 1, len(owners))])
    made = Seen(bounds=(-1, 1), method="objective-perturbation", max_rows=4, unit="person")
    grid = {"fit_intercept": [True, False]}
    search = PrivateSearchCV(made, grid, epsilon=3.0, delta=1e-5, validation_every=2, score_noise=20.0, runs=2)
    search.fit(table, (table[:, 1] > 0).astype(int), groups=owners)
    both = len(trained & scored)
    return holds("search: people are whole", bool(scored) and not both, f"{both} people are on both sides")


def _draws_are_uniform(seed: int) -> list[Finding]:
    """Candidates are drawn without the data: uniform on lists and ranges, and on the logarithm where that is asked."""
    space = Space({"a": Uniform(2.0, 4.0), "b": LogUniform(0.1, 10.0), "c": ["x", "y", "z"]})
    drawn = [space.draw() for _ in range(600)]
    listed = Space([{"c": 1}, {"c": 2}])
    counts = [sum(one["c"] == word for one in drawn) for word in "xyz"]
    line = [one["a"] for one in drawn]
    logs = [math.log10(one["b"]) for one in drawn]
    chosen = sum(listed.draw()["c"] == 1 for _ in range(600))
    return [
        Finding("search: ranges", float(stats.kstest(line, "uniform", (2.0, 2.0)).pvalue), "uniform"),
        Finding("search: ranges of logarithms", float(stats.kstest(logs, "uniform", (-1.0, 2.0)).pvalue), "uniform"),
        Finding("search: lists", float(stats.chisquare(counts).pvalue), f"{counts}"),
        Finding("search: listed candidates", float(stats.binomtest(chosen, 600, 0.5).pvalue), f"{chosen} of 600"),
    ]


def searches_go_on(seed: int) -> list[Finding]:
    """Workers, folders of interrupted searches, trainings of tacit, public tuning and the scikit-learn search."""
    import torch
    from torch import nn

    from tacit.linear_model import LogisticRegression
    from tacit.sgd import Training
    from tacit.tuning import PrivateSearchCV

    x, y = torch.randn(40, 3, generator=torch.Generator().manual_seed(seed)), torch.arange(40) % 2

    def train(candidate: Any, noise: float) -> Any:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=candidate["lr"])
        loss = nn.CrossEntropyLoss(reduction="none")
        settings: dict[str, Any] = {"batch_size": 40, "steps": candidate["steps"], "delta": 1e-6, "size": 40}
        return Training(model, optimizer, loss, (x, y), noise_multiplier=noise, clip_norm=1.0, **settings)

    score = correct_count(x, y, noise=8.0)
    with tempfile.TemporaryDirectory() as folder:
        search = PrivateSearch(
            {"lr": [0.1, 0.2], "steps": [2, 3]},
            train,
            score,
            epsilon=3.0,
            delta=1e-5,
            runs=3,
            workers=2,
            progress=False,
            scratch=f"{folder}/private",
        )
        kinds = len(search.noises)
        result = search.run()
        gone = not os.path.exists(f"{folder}/private")
    beside, whole = outside_estimator(seed), people_are_whole(seed)
    tuned = tune_on_public({"a": [1, 2, 3]}, lambda c: c["a"], lambda m: -abs(m - 2), because="made up", repeats=2)
    drawn = tune_on_public({"a": Uniform(0, 1), "b": LogUniform(1, 9)}, lambda c: c["a"], float, because="x", trials=4)
    usual = good_defaults(6000, 100, epsilon=2.0, delta=1e-5)
    exact = _rate_one(usual.noise_multiplier, usual.steps)
    ledger = ledger_of(adjacency="zero-out")
    table = np.random.default_rng(seed).uniform(-1, 1, (120, 2))
    outside = PrivateSearchCV(
        LogisticRegression(bounds=(-1, 1), adjacency="zero-out"),
        {"coef_norm": [1.0, 2.0]},
        epsilon=3.0,
        delta=1e-5,
        score_noise=6.0,
        runs=2,
        ledger=ledger,
        dataset="people",
    ).fit(table, (table[:, 0] > 0).astype(int))
    spent = charged(ledger, 1e-5, "zero-out")
    cases: dict[str, tuple[Any, Any]] = {
        "a score without a sensitivity": (lambda: _search(lambda model: 1.0), TuningError),  # type: ignore[arg-type]
        "an unknown method": (lambda: _search(score, method="best"), TuningError),
        "no budget": (lambda: _search(score, epsilon=0.0), TuningError),
        "scores that cost too much": (lambda: _search(Score(lambda m: 1.0, noise=0.1)), TuningError),
        "a threshold of another method": (lambda: _search(score, threshold=1.0), TuningError),
        "no threshold": (lambda: _search(score, method="threshold"), TuningError),
        "sensitivities of another method": (lambda: _search(score, sensitivities=[1.0]), TuningError),
        "a choice above ε": (lambda: _search(score, method="exponential", choice_epsilon=9.0), TuningError),
        "half a worker": (lambda: _search(score, workers=0), TuningError),
        "an unknown executor": (lambda: _search(score, executor="fast"), TuningError),
        "a ledger without a data set": (lambda: _search(score, ledger=ledger_of()), TuningError),
        "no runs": (lambda: _search(score, runs=0), TuningError),
        "no mechanism": (lambda: _search(score, mechanism=None), TuningError),
        "a mechanism that is none": (lambda: _search(score, mechanism=lambda c, n: 3), TuningError),
        "an adaptive optimizer": (
            lambda: PrivateSearch(
                {"a": type("Trial", (), {"suggest_float": 1})()}, train, score, epsilon=1.0, delta=1e-5
            ),
            TuningError,
        ),
        "an empty space": (lambda: PrivateSearch({}, train, score, epsilon=1.0, delta=1e-5), TuningError),
        "no reason": (lambda: tune_on_public({"a": [1]}, id, float, because=""), TuningError),
        "a range in reverse": (lambda: Uniform(1, 0), TuningError),
        "no noise of a score": (lambda: Score(lambda m: 1.0, noise=0.0), TuningError),
        "another law of a score": (lambda: Score(lambda m: 1.0, kind="uniform"), TuningError),
        "answers of two dimensions": (lambda: correct_count(x, np.zeros((40, 2))), TuningError),
        "a bound of 0": (lambda: bounded_loss(lambda m: [1.0], bound=0.0), TuningError),
        "people without ids": (lambda: correct_count(x, y, unit="person"), Exception),
        "more than is left": (
            lambda: _search(score, ledger=ledger_of(0.1, 1e-6), dataset="people").run(),
            BudgetExceeded,
        ),
    }
    return [
        beside,
        whole,
        *_draws_are_uniform(seed),
        holds("search: kinds of candidates", kinds == 2, f"{kinds} amounts of noise for two lengths"),
        holds(
            "search: released", result.best is not None and result.privacy.upper <= 3.0 * (1 + 1e-6), repr(result.best)
        ),
        holds("search: folder", gone, "the private folder is deleted at the end"),
        holds("public tuning", tuned.best == {"a": 2} and 0 <= drawn.best["a"] <= 1, repr(tuned.best)),
        holds("defaults", usual.batch_size < 6000 and exact > 0, f"noise {usual.noise_multiplier:.3f}"),
        holds(
            "scikit-learn search",
            outside.privacy_.upper <= 3.0 * (1 + 1e-6) and spent >= 0.98 * min(outside.privacy_.upper, 3.0),
            f"claimed {outside.privacy_.upper:.4f}, charged {spent:.4f}",
        ),
        refused("search: refusals", cases),
    ]


def _rate_one(noise: float, steps: int) -> float:
    return bounds.gaussian_epsilon(math.sqrt(steps) / noise, 1e-5)


def scores_are_bounded(seed: int) -> list[Finding]:
    """One record, or one person with many, moves a score by its sensitivity, whatever the loss or the answer is."""
    odd = [math.nan, math.inf, -math.inf, -1e6, 1e6, -0.3, 0.7]
    base = [0.2, 0.9, 0.0]
    worst = {"add-remove": 0.0, "replace-one": 0.0, "people": 0.0}
    for bound in (1.0, 2.5):

        def total(values: list[float], groups: Any = None, bound: float = bound) -> float:
            score = bounded_loss(lambda _: np.array(values), bound=bound, groups=groups)
            return score.exact(None) / score.sensitivity

        for one in odd:
            worst["add-remove"] = max(worst["add-remove"], abs(total(base) - total([*base, one])))
            for other in odd:
                worst["replace-one"] = max(worst["replace-one"], abs(total([*base, one]) - total([*base, other])))
            many = total([*base, *[one] * 9], [1, 2, 3, *[4] * 9])
            worst["people"] = max(worst["people"], abs(total(base, [1, 2, 3]) - many))
    right = correct_count(np.zeros(4), np.array([0, 1, 0, 1]), predict=lambda model, x: np.zeros(4))
    given, draws = tap.listen(
        lambda: [Score(lambda m: 3.0, 2.0, 5.0)(None), Score(lambda m: 3.0, 2.0, 5.0, kind="laplace")(None)]
    )
    scales = [(draw.kind, draw.scale) for draw in draws]
    claimed = [Score(lambda m: 3.0, 2.0, 5.0, replace=r).mechanism for r in (None, 2.0)]
    prices = [acc.epsilon(m, 1e-5, adjacency="replace-one").upper for m in claimed]
    exact = [bounds.gaussian_epsilon(2 / 5.0, 1e-5), bounds.gaussian_epsilon(1 / 5.0, 1e-5)]
    return [
        *(holds(f"score: {name}", moved <= 1 + 1e-6, f"moved by {moved:.4f}") for name, moved in worst.items()),
        holds("score: right answers", right.exact(None) == 2.0, "two of four"),
        holds("score: noise", scales == [("gaussian", 10.0), ("laplace", 10.0)] and len(given) == 2, f"{scales}"),
        holds("score: price", all(p >= e * (1 - 1e-6) for p, e in zip(prices, exact, strict=True)), f"{prices}"),
    ]


SCENES = (
    Scene("selection", "tuning", selection_is_charged),
    Scene("selection: scores", "tuning", scores_are_bounded),
    Scene("selection: choices", "tuning", choices_follow_their_law),
    Scene("selection: adjacencies", "tuning", choices_under_each_adjacency, long=True),
    Scene("selection: failed runs", "tuning", failed_runs_are_runs, long=True),
    Scene("selection: methods", "tuning", searches_end_as_priced, long=True),
    Scene("selection: searches", "tuning", searches_go_on),
)
