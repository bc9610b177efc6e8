"""Does somebody else's private thing keep its ε? Audits of any function of data, or estimator, with a declared ε.

Two worlds: run it many times on data without and with one record, and see how well the outputs can be told apart. One
run: plant many canaries by coin, run it once, and guess which were in. Neither needs to know how the thing works.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.audit.evidence import CHOOSING, one_run_evidence, roc, two_world_evidence
from tacit.audit.result import Audit

Floats = npt.NDArray[np.float64]
Score = Callable[[Any], float]


def output_vector(release: Any) -> Floats:
    """What an attacker sees of a release, as numbers: an array, a mapping, a model's or estimator's parameters.

    >>> output_vector({"b": 2.0, "a": [1, 3]}).tolist()
    [1.0, 3.0, 2.0]
    """
    if hasattr(release, "state_dict"):
        release = {name: value.detach().cpu().double().numpy() for name, value in release.state_dict().items()}
    if isinstance(release, dict):
        parts = [output_vector(release[name]) for name in sorted(release, key=str)]
        return np.concatenate(parts) if parts else np.zeros(0)
    if hasattr(release, "get_params") and hasattr(release, "fit"):
        return output_vector(_fitted(release))
    if isinstance(release, list | tuple):
        parts = [output_vector(item) for item in release]
        return np.concatenate(parts) if parts else np.zeros(0)
    array = np.asarray(release.detach().cpu() if hasattr(release, "detach") else release)
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"a release must be numbers, not {array.dtype}: pass score=, a function from releases to numbers"
        )
    return array.astype(np.float64).ravel()


def _fitted(estimator: Any) -> dict[str, Any]:
    """What fitting wrote: public attributes that end in an underscore and hold numbers."""
    found = {}
    for name, value in vars(estimator).items():
        if name.endswith("_") and not name.startswith("_"):
            array = np.asarray(value) if not isinstance(value, dict) else np.zeros(0)
            if array.dtype.kind in "fiub" and array.size:
                found[name] = array
    if not found:
        raise TypeError(f"{type(estimator).__name__} has no fitted numbers: pass score=, a function of the estimator")
    return found


def _tame(outputs: Floats) -> Floats:
    """Numbers of any size on a scale on which they can be compared; what is not a number is very large."""
    return np.arcsinh(np.nan_to_num(outputs, nan=1e30, posinf=1e30, neginf=-1e30))


def _candidates(a: Floats, b: Floats) -> list[Callable[[Floats], Floats]]:
    """Ways to score outputs, from those that are given: each coordinate, its size, and the best linear direction."""
    both = np.concatenate([a, b])
    centre, spread = np.median(both, 0), both.std(0) + 1e-12
    away = (
        np.abs(a.mean(0) - b.mean(0)) / spread
        + np.abs(np.abs(a - centre).mean(0) - np.abs(b - centre).mean(0)) / spread
    )
    found: list[Callable[[Floats], Floats]] = []
    for k in np.argsort(-away)[:8].tolist():
        found.append(functools.partial(_coordinate, k=k))
        found.append(functools.partial(_size, k=k, centre=float(centre[k])))
    scaled_a, scaled_b = (a - centre) / spread, (b - centre) / spread
    ridge = np.cov(np.concatenate([scaled_a - scaled_a.mean(0), scaled_b - scaled_b.mean(0)]).T)
    ridge = np.atleast_2d(ridge) + 0.1 * np.eye(a.shape[1])
    if a.shape[1] <= 2000:
        direction = np.linalg.solve(ridge, scaled_b.mean(0) - scaled_a.mean(0))
        found.append(lambda x: ((x - centre) / spread) @ direction)
    return found


def _coordinate(x: Floats, k: int) -> Floats:
    return x[:, k]


def _size(x: Floats, k: int, centre: float) -> Floats:
    return np.abs(x[:, k] - centre)


def _learned(without: Floats, with_it: Floats) -> tuple[Floats, Floats]:
    """Scores of outputs by whatever tells the first tenth of them apart best."""
    a, b = (max(5, round(CHOOSING * len(x))) for x in (without, with_it))
    zero, one = _tame(without), _tame(with_it)
    coins = np.concatenate([np.zeros(a), np.ones(b)])
    best: tuple[float, Any, float] = (-1.0, None, 1.0)
    for way in _candidates(zero[:a], one[:b]):
        area = roc(np.concatenate([way(zero[:a]), way(one[:b])]), coins).area
        if max(area, 1 - area) > best[0]:
            best = (max(area, 1 - area), way, 1.0 if area >= 0.5 else -1.0)
    _, way, sign = best
    return sign * way(zero), sign * way(one)


def audit_two_worlds(
    fit: Callable[[Any], Any],
    without: Any,
    with_it: Any,
    *,
    epsilon: float,
    delta: float = 0.0,
    repeats: int = 1000,
    score: Score | None = None,
    significance: float = 0.05,
    terms: str = "as declared; the two data sets given",
    progress: bool | None = None,
) -> Audit:
    """Run ``fit`` on two neighbouring data sets, ``repeats`` times each, and see how well the outputs are told apart.

    ``fit(data)`` returns what is released: numbers, arrays, a fitted estimator, a model. ``score(release)`` says how
    much it looks like the data *with* the record; by default the first tenth of the runs decides what to look at, and
    is used for nothing else.

    Guarantee: where ``fit`` is (ε, δ)-DP for these two data sets and its runs are independent, the certified bound
    exceeds ε with probability at most ``significance``.

    >>> rng = np.random.default_rng(0)
    >>> def leaky(data):  # claims ε = 0.5, and adds noise for ε = 5
    ...     return sum(data) + rng.laplace(scale=1 / 5)
    >>> audit_two_worlds(leaky, [0, 1], [0, 1, 1], epsilon=0.5, repeats=2000, progress=False).verdict
    'fail'
    """
    if repeats < 50:
        raise ValueError(f"an audit needs 50 repeats or more, not {repeats}")
    outputs: tuple[list[Any], list[Any]] = ([], [])
    with _progress("two worlds", 2 * repeats, progress) as advance:
        for _ in range(repeats):
            for world, data in enumerate((without, with_it)):
                release = fit(copy.deepcopy(data))
                outputs[world].append(score(release) if score is not None else output_vector(release))
                advance()
    if score is not None:
        zero, one = np.asarray(outputs[0], dtype=np.float64), np.asarray(outputs[1], dtype=np.float64)
        zero, one = _tame(zero), _tame(one)
    else:
        sizes = {len(o) for world in outputs for o in world}
        if len(sizes) != 1:
            raise ValueError("releases differ in size: pass score=, a function from releases to numbers")
        zero, one = _learned(np.stack(outputs[0]), np.stack(outputs[1]))
    evidence = two_world_evidence(zero, one, delta, significance)
    member = np.concatenate([np.zeros(len(zero)), np.ones(len(one))])
    return Audit("two worlds", epsilon, delta, terms, evidence, scores=np.concatenate([zero, one]), member=member)


def audit_estimator(
    estimator: Any,
    without: tuple[Any, Any],
    with_it: tuple[Any, Any],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    **settings: Any,
) -> Audit:
    """Two worlds for an estimator with ``fit(X, y)``: a fresh copy of it is fitted each time.

    ε and δ are read from the estimator where they are not given. ``settings`` as in :func:`audit_two_worlds`.
    """
    parameters = estimator.get_params(deep=False) if hasattr(estimator, "get_params") else vars(estimator)
    epsilon = parameters.get("epsilon") if epsilon is None else epsilon
    delta = (parameters.get("delta") or 0.0) if delta is None else delta
    if epsilon is None:
        raise ValueError("say which ε is declared: epsilon=")

    def fit(data: tuple[Any, Any]) -> Any:
        return _fresh(estimator).fit(*data)

    return audit_two_worlds(fit, without, with_it, epsilon=float(epsilon), delta=float(delta), **settings)


def _fresh(estimator: Any) -> Any:
    """An estimator of the same settings that was never fitted, and so are those inside it."""
    if not hasattr(estimator, "get_params"):
        return type(estimator)(**vars(estimator))
    settings = estimator.get_params(deep=False)
    inside = {name: _fresh(v) for name, v in settings.items() if hasattr(v, "get_params") and not isinstance(v, type)}
    return type(estimator)(**settings | inside)


def audit_one_run(
    fit: Callable[[Any], Any],
    build: Callable[[npt.NDArray[np.bool_]], Any],
    canaries: int,
    *,
    score: Callable[[Any, int], float],
    epsilon: float,
    delta: float = 0.0,
    significance: float = 0.05,
    rng: np.random.Generator | None = None,
    terms: str = "as declared; the canaries given",
) -> Audit:
    """Plant ``canaries`` by fair coins, run ``fit`` once, and guess.

    ``build(member)`` makes the data with the canaries that are in; ``score(release, i)`` says how much canary ``i``
    seems to have been in. Independent of how ``fit`` works, and of how many records there are.

    >>> rng = np.random.default_rng(3)
    >>> def histogram(data):  # claims ε = 1, adds noise for ε = 8
    ...     return np.bincount(data, minlength=300) + rng.laplace(scale=1 / 8, size=300)
    >>> audit_one_run(histogram, np.flatnonzero, 300, score=lambda h, i: h[i], epsilon=1.0, rng=rng).verdict
    'fail'
    """
    rng = rng or np.random.default_rng()
    member = rng.integers(0, 2, canaries).astype(bool)
    release = fit(build(member))
    scores = _tame(np.array([score(release, i) for i in range(canaries)], dtype=np.float64))
    evidence = one_run_evidence(scores, member, delta, significance)
    return Audit("one run", epsilon, delta, terms, evidence, scores=scores, member=member)


class _progress:
    """A bar on a terminal, or nothing."""

    def __init__(self, name: str, total: int, wanted: bool | None) -> None:
        self._bar: Any = None
        if sys.stderr.isatty() if wanted is None else wanted:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True))
            self._task = self._bar.add_task(name, total=total)

    def __enter__(self) -> Callable[[], None]:
        if self._bar is None:
            return lambda: None
        self._bar.start()
        return lambda: self._bar.advance(self._task)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
