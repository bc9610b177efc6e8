"""What did a vote cost exactly? Rényi divergences of the output law itself, over every one-vote neighbour.

The law of GNMax is a list of m one-dimensional integrals, g_i = ∫ φ(x - n_i) Π_{k≠i} Φ(x - n_k) dx in units of σ. Here
they are computed by the trapezoid rule for the votes at hand and for each of the m(m-1) histograms in which one vote
moved, and the divergences are taken in both directions. A neighbour changes two of the m factors, so that all the
neighbours of a query are one product of matrices. Histograms that are permutations of each other are priced once.

Certificate. |φ(x + iy)| = e^{y²/2} φ(x) and |Φ(x + iy)| <= e^{y²/2} Φ(x), so on a line at distance y from the real one
the integrand is at most e^{my²/2} times what it is on it, and the trapezoid rule of step h has a *relative* error of at
most 2e^{my²/2} / (e^{2πy/h} - 1), for every g_i however small; with y = 2π/(mh) that is 2/(e^{2π²/(mh²)} - e^{…}) and h
is chosen to make it 1e-14. The integrand is log-concave with second derivatives of its logarithm between -m and -1, so
cutting it L from its mode costs at most a share √m·2Φ(-L) (of the sum: a step more); the mode lies between
(n_i + n_*)/2 and n_* + c, c the root of c = (m-1)φ(c)/Φ(c). Rounding is bounded from the size of the logarithms. The
bound on the error of each moment is added to it, so what is returned is an upper bound, and never above α/σ².

The result depends on private votes: **not publishable**.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import math
import os

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

Array = NDArray[np.float64]
#: Relative error of the trapezoid rule, and where the integrals are cut (in σ beyond the mode).
QUADRATURE = 1e-14
CUT = 8.2
#: Votes further apart than this (in σ) are left to the data-independent price: their ratios have no binary64 number.
WIDEST = 600.0
_EPS = 2.0**-52
#: Floating-point numbers that one piece of work may hold.
_WORK = 60_000


@dataclasses.dataclass(frozen=True)
class ThresholdCheck:
    """The noisy comparison before a vote: statistic + N(0, noise²) >= threshold.

    The statistic is the largest count, or with ``scores`` (one row of public numbers a query) the largest count less
    its score.
    """

    threshold: float
    noise: float
    scores: Array | None = None


def divergences(
    counts: ArrayLike, sigma: float, orders: ArrayLike, *, check: ThresholdCheck | None = None, abstain: bool = False
) -> Array:
    """Upper bounds on the Rényi divergences between what a query gives on these votes and on any one-vote neighbour.

    Guarantee: ``result[0, j, k]`` is at least D_α(M(D) || M(D')) and ``result[1, j, k]`` at least D_α(M(D') || M(D))
    for query j at order α_k, for the worst D' in which one teacher votes otherwise (with ``abstain`` also not at all,
    or where it did not); it exceeds the truth by no more than the certified numerical error. With ``check`` the output
    is "no answer" or a label, without it a label. Add/remove of a person changes one teacher where the partition is
    keyed.

    >>> both = divergences([[220, 20, 5, 5, 0, 0, 0, 0, 0, 0]], 40.0, [2.0, 20.0])
    >>> both.shape
    (2, 1, 2)
    >>> bool(both[0, 0, 0] < 1.884574517e-4)  # less than theorem 6
    True
    """
    votes = np.atleast_2d(np.asarray(counts, dtype=float))
    alpha = np.asarray(orders, dtype=float).reshape(-1)
    if votes.ndim != 2 or not np.isfinite(votes).all() or (votes < 0).any():
        raise ValueError("votes are a table of counts, 0 or more: one row a query, one column a class")
    if not sigma > 0 or (check is not None and not check.noise > 0):
        raise ValueError("the noise of a vote and of its check is more than 0")
    if alpha.size == 0 or not (np.isfinite(alpha) & (alpha > 1)).all():
        raise ValueError(f"Rényi orders are finite numbers above 1, not {alpha.tolist()}")
    queries, classes = votes.shape
    if queries == 0 or (classes == 1 and check is None):
        return np.zeros((2, queries, len(alpha)))
    if check is None or check.scores is None:
        # The order of the classes does not matter: each multiset of counts once.
        once, where = np.unique(-np.sort(-votes, axis=1), axis=0, return_inverse=True)
        result = _spread(once, None, sigma, alpha, check, abstain=abstain)[:, where.reshape(-1)]
    else:
        scores = np.asarray(check.scores, dtype=float)
        if scores.shape != votes.shape:
            raise ValueError(f"one score a class and query: {votes.shape}, not {scores.shape}")
        result = _spread(votes, scores, sigma, alpha, check, abstain=abstain)
    plain = alpha / sigma**2 + (alpha / (2 * check.noise**2) if check is not None else 0.0)
    return np.asarray(np.minimum(result, plain))


def law(counts: ArrayLike, sigma: float) -> Array:
    """The probability of every label under GNMax, one row a query: relative error below 1e-11 for each.

    >>> law([[3, 3]], 40.0).round(12)
    array([[0.5, 0.5]])
    """
    votes = np.atleast_2d(np.asarray(counts, dtype=float)) / sigma
    if votes.shape[1] == 1:
        return np.ones(votes.shape)
    nodes, step = _nodes(votes, 0.0)
    _, _, weight, scale = _weights(votes, nodes, step)
    return np.asarray(weight.sum(axis=2) * np.exp(scale))


# -- the quadrature ----


@functools.cache
def _step(classes: int) -> float:
    """The step at which the trapezoid rule has a relative error of QUADRATURE."""
    return math.sqrt(2 * math.pi**2 / (classes * math.log(2 / QUADRATURE + 1)))


@functools.cache
def _highest(classes: int) -> float:
    """c with c = (m-1) φ(c)/Φ(c): no mode lies further above the largest count."""

    def slope(c: float) -> float:
        return c - (classes - 1) * math.exp(-c * c / 2) / math.sqrt(2 * math.pi) / float(special.ndtr(c))

    return float(optimize.brentq(slope, 0.0, math.sqrt(2 * math.log(classes + 1)) + 2)) + 1e-6


def _lengths(votes: Array, shift: float) -> tuple[Array, Array]:
    """From where to where the integrals of each query run, relative to its largest count, in σ."""
    classes = votes.shape[1]
    low = (votes.min(axis=1) - votes.max(axis=1)) / 2 - CUT - shift
    return low, np.full(len(votes), _highest(classes) + CUT + shift)


def _nodes(votes: Array, shift: float) -> tuple[Array, float]:
    """Nodes that suit all of these queries, relative to each one's largest count."""
    low, high = _lengths(votes, shift)
    step = _step(votes.shape[1])
    return float(low.min()) + step * np.arange(math.ceil((high.max() - low.min()) / step) + 2), step


def _weights(votes: Array, nodes: Array, step: float) -> tuple[Array, Array, Array, Array]:
    """x - n_k, ln Φ(x - n_k), and the integrand of every g_i at the nodes, as weight·e^scale."""
    u = nodes - (votes - votes.max(axis=1, keepdims=True))[:, :, None]
    logs = special.log_ndtr(u)
    heights = logs.sum(axis=1)[:, None] - logs - 0.5 * u * u
    top = heights.max(axis=2)
    weight = np.exp(heights - top[:, :, None])
    return u, logs, weight, top + math.log(step / math.sqrt(2 * math.pi))


def _spread(
    once: Array, scores: Array | None, sigma: float, alpha: Array, check: ThresholdCheck | None, *, abstain: bool
) -> Array:
    """Share the queries out in pieces of like width, over the processor's cores."""
    queries, classes = once.shape
    result = np.full((2, queries, len(alpha)), np.inf)
    width = once.max(axis=1) - once.min(axis=1)
    line = np.argsort(width, kind="stable")
    line = line[width[line] / sigma * max(1.0, 1 / sigma) <= WIDEST]
    size = max(1, _WORK // (classes + int(abstain)) ** 2 // max(classes, 8))
    pieces = [line[i : i + size] for i in range(0, len(line), size)]

    def work(piece: NDArray[np.intp]) -> None:
        part = None if scores is None else scores[piece]
        result[:, piece] = _piece(once[piece], part, sigma, alpha, check, abstain=abstain)

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if len(pieces) <= 1 or cores == 1:
        for piece in pieces:
            work(piece)
    else:
        with concurrent.futures.ThreadPoolExecutor(min(cores, len(pieces))) as pool:
            list(pool.map(work, pieces))
    return result


def _laws(votes: Array, sigma: float, *, abstain: bool) -> tuple[Array, Array, Array]:
    """ln g_i of each query, ln g_i of each neighbour (a vote moved from class a to class b), and their relative error.

    With ``abstain`` there is one more place a vote can come from or go to.
    """
    queries, classes = votes.shape
    s = 1 / sigma
    nodes, step = _nodes(votes / sigma, s)
    u, logs, weight, scale = _weights(votes / sigma, nodes, step)
    less = np.exp(special.log_ndtr(u + s) - logs)  # Φ of a count with one vote less, over that of the count
    more = np.exp(special.log_ndtr(u - s) - logs)
    if abstain:
        one = np.ones((queries, 1, len(nodes)))
        from_, to = np.concatenate([less, one], axis=1), np.concatenate([more, one], axis=1)
    else:
        from_, to = less, more
    places = from_.shape[1]
    pairs = (from_[:, :, None, :] * to[:, None, :, :]).reshape(queries, places * places, -1)
    moved = (pairs @ weight.transpose(0, 2, 1)).reshape(queries, places, places, classes)
    # The class that lost or won the vote has its own density moved, and its Φ is not among the factors.
    lost = (weight * np.exp(-u * s - s * s / 2)) @ to.transpose(0, 2, 1)
    won = (weight * np.exp(u * s - s * s / 2)) @ from_.transpose(0, 2, 1)
    i = np.arange(classes)
    moved[:, i, :, i] = lost.transpose(1, 0, 2)
    moved[:, :, i, i] = won.transpose(0, 2, 1)
    base = np.log(weight.sum(axis=2)) + scale
    near = np.log(moved) + scale[:, None, None, :]
    # cut: tails of the sum and of the integral; rounding: every logarithm is right to a few units of its size
    cut = math.sqrt(classes) * (2 * float(special.ndtr(-CUT)) + 2 * step * math.exp(-CUT * CUT / 2))
    size = np.abs(scale).max(axis=1) + classes + float(np.abs(nodes).max()) ** 2
    return base, near, QUADRATURE + cut + 32 * _EPS * size


def _piece(
    votes: Array, scores: Array | None, sigma: float, alpha: Array, check: ThresholdCheck | None, *, abstain: bool
) -> Array:
    """The divergences of some queries in both directions, at their worst neighbours."""
    queries, classes = votes.shape
    if classes > 1:
        base, near, relative = _laws(votes, sigma, abstain=abstain)
    else:
        places = classes + int(abstain)
        base, near = np.zeros((queries, 1)), np.zeros((queries, places, places, 1))
        relative = np.zeros(queries)
    places = near.shape[1]
    allowed = np.ones((queries, places, places), bool)
    allowed[:, np.arange(places), np.arange(places)] = False
    allowed[:, :classes] &= (votes >= 1)[:, :, None]  # nobody can take back a vote that nobody cast
    near = near.reshape(queries, -1, classes)
    allowed = allowed.reshape(queries, -1)
    p, q = np.exp(base)[:, None, :], np.exp(near)
    loss = base[:, None, :] - near
    gone = p.sum(axis=2) - q.sum(axis=2)  # 0 but for rounding
    variation = 0.5 * np.abs(p - q).sum(axis=2)
    error = 2 * relative[:, None]
    first, second = (None, None) if check is None else _passing(votes, scores, check, abstain=abstain)
    result = np.empty((2, queries, len(alpha)))
    buffer = np.empty_like(loss)
    with np.errstate(over="ignore", invalid="ignore"):
        for direction, (ours, sign) in enumerate(((near, 1.0), (base[:, None, :], -1.0))):
            total = (q if direction == 0 else p).sum(axis=2)
            for k, a in enumerate(alpha.tolist()):
                np.multiply(loss, sign * a, out=buffer)
                np.add(buffer, ours, out=buffer)
                np.exp(buffer, out=buffer)
                # Σ Q(ρ^α - 1 - α(ρ - 1)), every term of which is at least 0: errors of the law enter to second order
                extra = np.maximum(buffer.sum(axis=2) - total - sign * a * gone, 0.0)
                extra += a * error * (extra + 4 * a * variation) + 8 * _EPS * (extra + 2 * a)
                if first is not None and second is not None:
                    extra = _with_check(extra, first, second, a, direction)
                worst = np.where(allowed, extra, 0.0).max(axis=1)
                result[direction, :, k] = np.log1p(worst) / (a - 1)
    return np.where(np.isnan(result), np.inf, result)


# -- the check before the vote ----


def _passing(
    votes: Array, scores: Array | None, check: ThresholdCheck, *, abstain: bool
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """(ln Pr, ln(1 - Pr)) of passing the check, on the votes and on each neighbour."""
    queries, classes = votes.shape
    value = votes if scores is None else votes - scores
    places = classes + int(abstain)
    near = np.broadcast_to(value[:, None, None, :], (queries, places, places, classes)).copy()
    i = np.arange(classes)
    near[:, i, :, i] -= 1
    near[:, :, i, i] += 1
    z = (value.max(axis=1) - check.threshold) / check.noise
    moved = (near.max(axis=3).reshape(queries, -1) - check.threshold) / check.noise
    ours = special.log_ndtr(z)[:, None], special.log_ndtr(-z)[:, None]
    return ours, (special.log_ndtr(moved), special.log_ndtr(-moved))


def _with_check(
    extra: Array, ours: tuple[Array, Array], theirs: tuple[Array, Array], a: float, direction: int
) -> Array:
    """The moment less 1 of "no answer or a label", from that of the label and the two chances of an answer."""
    (p, not_p), (q, not_q) = (ours, theirs) if direction == 0 else (theirs, ours)
    answered = np.exp(a * p + (1 - a) * q)
    silent = np.exp(a * not_p + (1 - a) * not_q)
    alone = (answered - np.exp(q) - a * (np.exp(p) - np.exp(q))) + (
        silent - np.exp(not_q) - a * (np.exp(not_p) - np.exp(not_q))
    )
    size = np.abs(a * p) + np.abs((a - 1) * q) + np.abs(a * not_p) + np.abs((a - 1) * not_q)
    rounding = (
        8 * _EPS * (answered + silent + 2 * a + (answered * np.abs(p - q) + silent * np.abs(not_p - not_q)) * size)
    )
    return np.asarray(np.maximum(alone, 0.0) + rounding + answered * extra)
