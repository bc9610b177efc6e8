"""Does somebody else's code keep its ε? Audits of any function of data, or any estimator, with a declared ε.

*Two worlds*: run it many times on data without and with one record, and see how well the outputs can be told apart.
*One run*: plant many canaries, each included with probability ½, run it once, and guess which were in. Neither needs to
know how the code works.
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
from tacit.audit.power import one_run_powers, two_world_powers
from tacit.audit.result import Audit

Floats = npt.NDArray[np.float64]
Score = Callable[[Any], float]


def output_vector(release: Any) -> Floats:
    """What an attacker sees of a release, as one vector: an array, a mapping, the parameters of a model or estimator.

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
            f"fit returned values of type {array.dtype}, which are not numbers: pass score=, a function that turns a "
            "release into one number"
        )
    return array.astype(np.float64).ravel()


def _fitted(estimator: Any) -> dict[str, Any]:
    """What fitting wrote: public attributes whose names end in an underscore and that hold numbers."""
    found = {}
    for name, value in vars(estimator).items():
        if name.endswith("_") and not name.startswith("_"):
            array = np.asarray(value) if not isinstance(value, dict) else np.zeros(0)
            if array.dtype.kind in "fiub" and array.size:
                found[name] = array
    if not found:
        raise TypeError(
            f"{type(estimator).__name__} has no fitted attributes that hold numbers: pass score=, a function that "
            "turns the fitted estimator into one number"
        )
    return found


def _finite(outputs: Any) -> Floats:
    """Numbers of any size; NaN becomes a very large one."""
    return np.nan_to_num(np.asarray(outputs, dtype=np.float64), nan=1e30, posinf=1e30, neginf=-1e30)


def _candidates(a: Floats, b: Floats) -> list[Callable[[Floats], Floats]]:
    """Ways to score outputs, learned from these: each coordinate, its size, and the best linear direction."""
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
    """Scores of all outputs, by whatever tells the first tenth of them apart best; of one output, that output."""
    a, b = (max(5, round(CHOOSING * len(x))) for x in (without, with_it))
    zero, one = np.arcsinh(_finite(without)), np.arcsinh(_finite(with_it))  # of any size, on one scale
    coins = np.concatenate([np.zeros(a), np.ones(b)])
    best: tuple[float, Any, float] = (-1.0, None, 1.0)
    for way in _candidates(zero[:a], one[:b]):
        area = roc(np.concatenate([way(zero[:a]), way(one[:b])]), coins).area
        if max(area, 1 - area) > best[0]:
            best = (max(area, 1 - area), way, 1.0 if area >= 0.5 else -1.0)
    _, way, sign = best
    if isinstance(way, functools.partial) and way.func is _coordinate:
        zero, one = _finite(without), _finite(with_it)  # where less noise is a larger shift
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
    """Run ``fit`` on two neighbouring data sets, many times each, and see how well its outputs can be told apart.

    Guarantee:
        If ``fit`` is (ε, δ)-DP for these two data sets and its runs are independent, the certified bound exceeds ε with
        probability at most ``significance``. The audit protects nobody: give it data that need no protection.

    Args:
        fit: The code to audit: ``fit(data)`` returns what is released, as numbers, arrays, a fitted estimator or a
            model. It gets a copy of the data each time.
        without: The data without the record.
        with_it: A neighbour of these data: with the record, or with another one in its place.
        epsilon: The ε that the code declares.
        delta: The δ that it declares; 0 means pure ε.
        repeats: How many runs on each data set, 50 or more. They limit what can be certified: 400 reach ε ≥ 4.21.
        score: Turns a release into one number that is larger if the record seems to be there. By default the first
            tenth of the runs decides what to look at; these runs are then not used as evidence.
        significance: Probability that the certified bound is wrong; 0.05 gives 95% confidence.
        terms: Unit and adjacency of the claim, in words, for the sentence of the result.
        progress: Whether to show a progress bar; None shows it on a terminal.

    Returns:
        The audit; ``verdict`` and ``sentence`` say what it found, and with which probability it would have found half
        the noise. If that is below 0.95, a claim that is not refuted is ``underpowered``.

    Raises:
        ValueError: If ``repeats`` is below 50, or releases differ in size and there is no ``score``.
        TypeError: If a release is not made of numbers and there is no ``score``.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> def leaky(data):  # claims ε = 0.5, and adds noise for ε = 5
        ...     return sum(data) + rng.laplace(scale=1 / 5)
        >>> audit_two_worlds(leaky, [0, 1], [0, 1, 1], epsilon=0.5, repeats=500, progress=False).verdict
        'fail'
    """
    if repeats < 50:
        raise ValueError(f"repeats: a two-world audit needs 50 repeats or more, not {repeats}")
    outputs: tuple[list[Any], list[Any]] = ([], [])
    with _progress("two worlds", 2 * repeats, progress) as advance:
        for _ in range(repeats):
            for world, data in enumerate((without, with_it)):
                release = fit(copy.deepcopy(data))
                outputs[world].append(score(release) if score is not None else output_vector(release))
                advance()
    if score is not None:
        zero, one = _finite(outputs[0]), _finite(outputs[1])
    else:
        sizes = {len(o) for world in outputs for o in world}
        if len(sizes) != 1:
            raise ValueError(
                "releases of fit differ in size: pass score=, a function that turns a release into one number"
            )
        zero, one = _learned(np.stack(outputs[0]), np.stack(outputs[1]))
    evidence = two_world_evidence(zero, one, delta, significance)
    refuted = evidence.verdict(epsilon) == "fail"
    powers = () if refuted else two_world_powers(zero, one, epsilon, delta, significance)
    scores, member = np.arcsinh(np.concatenate([zero, one])), np.concatenate([np.zeros(len(zero)), np.ones(len(one))])
    return Audit("two worlds", epsilon, delta, terms, evidence, scores=scores, member=member, powers=powers)


def audit_estimator(
    estimator: Any,
    without: tuple[Any, Any],
    with_it: tuple[Any, Any],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    **settings: Any,
) -> Audit:
    """Audit an estimator with ``fit(X, y)`` in two worlds; each run fits a fresh copy.

    Guarantee:
        As for :func:`audit_two_worlds`: the certified bound exceeds the ε of a correct estimator with probability at
        most ``significance``. Give it data that need no protection.

    Args:
        estimator: The estimator to audit; it is not fitted itself.
        without: ``(X, y)`` without the record.
        with_it: A neighbour of these data: with the record, or with another one in its place.
        epsilon: The ε that it declares; None reads its parameter ``epsilon``.
        delta: The δ that it declares; None reads its parameter ``delta``, and takes 0 if it has none.
        settings: ``repeats``, ``score``, ``significance``, ``terms`` and ``progress`` of :func:`audit_two_worlds`.

    Returns:
        The audit; ``verdict`` and ``sentence`` say what it found.

    Raises:
        ValueError: If no ε is given and the estimator has none, or as in :func:`audit_two_worlds`.

    Example:
        >>> class Mean:  # claims ε = 0.1, and adds no noise
        ...     def __init__(self, epsilon):
        ...         self.epsilon = epsilon
        ...     def fit(self, X, y):
        ...         self.mean_ = sum(y) / len(y)
        ...         return self
        ...     def get_params(self, deep=False):
        ...         return {"epsilon": self.epsilon}
        >>> audit = audit_estimator(Mean(0.1), ([[0]], [0.0]), ([[0]], [1.0]), repeats=100, progress=False)
        >>> audit.verdict, audit.claimed
        ('fail', 0.1)
    """
    parameters = estimator.get_params(deep=False) if hasattr(estimator, "get_params") else vars(estimator)
    epsilon = parameters.get("epsilon") if epsilon is None else epsilon
    delta = (parameters.get("delta") or 0.0) if delta is None else delta
    if epsilon is None:
        raise ValueError(f"{type(estimator).__name__} has no parameter epsilon: pass the declared ε as epsilon=")

    def fit(data: tuple[Any, Any]) -> Any:
        return _fresh(estimator).fit(*data)

    return audit_two_worlds(fit, without, with_it, epsilon=float(epsilon), delta=float(delta), **settings)


def _fresh(estimator: Any) -> Any:
    """An unfitted estimator with the same settings; estimators inside it are copied in the same way."""
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
    """Include each canary with probability ½, run ``fit`` once, and guess which canaries were in.

    Guarantee:
        If ``fit`` is (ε, δ)-DP for adding or removing one canary, the certified bound exceeds ε with probability at
        most ``significance``, however ``fit`` works and however many other records there are.

    Args:
        fit: The code to audit: ``fit(data)`` returns what is released.
        build: ``build(member)`` makes the data; ``member`` is a boolean array that says which canaries are in.
        canaries: How many canaries there are, 2 or more. They limit what can be certified: 1,000 reach ε ≥ 5.24 at
            δ = 1e-5.
        score: ``score(release, i)`` is larger if canary ``i`` seems to have been in.
        epsilon: The ε that the code declares, for adding or removing one canary.
        delta: The δ that it declares; 0 means pure ε.
        significance: Probability that the certified bound is wrong; 0.05 gives 95% confidence.
        rng: Where the coins come from; None makes a fresh generator.
        terms: Unit and adjacency of the claim, in words, for the sentence of the result.

    Returns:
        The audit; ``verdict`` and ``sentence`` say what it found.

    Example:
        >>> rng = np.random.default_rng(3)
        >>> def histogram(data):  # claims ε = 1, and adds noise for ε = 8
        ...     return np.bincount(data, minlength=300) + rng.laplace(scale=1 / 8, size=300)
        >>> audit_one_run(histogram, np.flatnonzero, 300, score=lambda h, i: h[i], epsilon=1.0, rng=rng).verdict
        'fail'
    """
    rng = rng or np.random.default_rng()
    member = rng.integers(0, 2, canaries).astype(bool)
    release = fit(build(member))
    scores = _finite([score(release, i) for i in range(canaries)])
    evidence = one_run_evidence(scores, member, delta, significance, claimed=epsilon)
    refuted = evidence.verdict(epsilon) == "fail"
    powers = () if refuted else one_run_powers(scores, member, epsilon, delta, significance)
    return Audit("one run", epsilon, delta, terms, evidence, scores=np.arcsinh(scores), member=member, powers=powers)


class _progress:
    """A progress bar on a terminal, else nothing."""

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
