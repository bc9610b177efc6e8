"""What did a vote cost, given how clear it was? The data-dependent Rényi bounds of PATE, for many queries at once.

A vote that nearly all teachers agree on comes out the same whoever is left out. Let q be (a bound on) the probability
that the noisy arg max is *not* the most voted class; the smaller q, the smaller the bound (Papernot et al., "Scalable
private learning with PATE", 2018, theorem 6, and for Laplace noise Papernot et al. 2017, theorem 3). All of it is
computed from ln q, because q itself underflows.

The bounds hold for D_α(M(D) || M(D')) with D the votes at hand, and not for the reverse direction. They are functions
of private votes: **not publishable** unless sanitised (:mod:`tacit.pate.smooth`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]
#: Queries at a time: what is worked on stays in the processor's cache.
_CHUNK = 1 << 14


def log_q(counts: ArrayLike, sigma: float) -> Array:
    """ln q of every histogram (a row): q = ½ Σ_{i≠i*} erfc((n_{i*} - n_i)/(2σ)), at most 1 - 1/m.

    >>> round(float(log_q([[250] + [0] * 9], 40.0)[0]), 8)
    -10.01922829
    """
    return _log_union(counts, lambda gap: special.log_ndtr(-gap / (math.sqrt(2) * sigma)))


def log_q_laplace(counts: ArrayLike, scale: float) -> Array:
    """ln q of LNMax: q = Σ_{i≠i*} (2 + g)/(4 e^g) with g = (n_{i*} - n_i)/λ, at most 1 - 1/m."""
    return _log_union(counts, lambda gap: np.log(2 + gap / scale) - math.log(4) - gap / scale)


def _log_union(counts: ArrayLike, log_beaten: Any) -> Array:
    """ln Σ_{i≠i*} exp(log_beaten(n_{i*} - n_i)), with a table over the whole numbers that votes are."""
    votes = np.atleast_2d(np.asarray(counts))
    if len(votes) > _CHUNK:
        pieces = [_log_union(votes[i : i + _CHUNK], log_beaten) for i in range(0, len(votes), _CHUNK)]
        return np.concatenate(pieces)
    rows = np.arange(len(votes))
    winner = votes.argmax(axis=1)
    gap = votes[rows, winner][:, None] - votes
    largest = int(gap.max()) if gap.size else 0
    if gap.dtype.kind in "iu" and largest <= 8 * gap.size + 4096:
        logs = log_beaten(np.arange(largest + 1, dtype=float))
        beaten = np.exp(logs)[gap]
    else:
        logs = None
        beaten = np.exp(log_beaten(gap.astype(float)))
    beaten[rows, winner] = 0.0
    total = beaten.sum(axis=1)
    with np.errstate(divide="ignore"):
        result = np.log(total)
    deep = np.flatnonzero(total < 1e-290)
    if len(deep):
        terms = log_beaten(gap[deep].astype(float)) if logs is None else logs[gap[deep]].copy()
        terms[np.arange(len(deep)), winner[deep]] = -np.inf
        result[deep] = special.logsumexp(terms, axis=1)
    classes = votes.shape[1]
    return np.minimum(result, math.log1p(-1 / classes)) if classes > 1 else np.full(len(votes), -np.inf)


def theorem6(log_q: ArrayLike, sigma: float, orders: ArrayLike) -> Array:
    """The data-dependent bound on D_α(M(D) || M(D')) of GNMax with noise σ: one row a query, one column an order.

    Where the theorem's conditions do not hold the data-independent α/σ² is returned, and never more than it.

    >>> round(float(theorem6(log_q([[220, 20, 5, 5] + [0] * 6], 40.0), 40.0, [20.0])[0, 0]), 13)
    0.0005108903274
    """
    logs = np.asarray(log_q, dtype=float).reshape(-1)
    alpha = np.asarray(orders, dtype=float).reshape(-1)
    if len(logs) > _CHUNK:
        return np.concatenate([theorem6(logs[i : i + _CHUNK], sigma, alpha) for i in range(0, len(logs), _CHUNK)])
    plain = alpha / sigma**2
    result = np.broadcast_to(plain, (len(logs), len(alpha))).copy()
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mu2 = sigma * np.sqrt(-logs)
        mu1 = mu2 + 1
        e1, e2 = mu1 / sigma**2, mu2 / sigma**2
        valid = (mu2 > 1) & (-logs > e2) & (logs > -np.inf)
        valid &= logs <= (mu2 - 1) * e2 - mu2 * np.log(mu1 / (mu1 - 1) * mu2 / (mu2 - 1))
    result[logs == -np.inf] = 0.0  # one class: there is nothing to learn
    keep = np.flatnonzero(valid)
    if not len(keep):
        return result
    logs, mu1, mu2, e1, e2 = logs[keep], mu1[keep], mu2[keep], e1[keep], e2[keep]
    stay = _log1mexp(logs)  # ln(1 - q)
    log_a = stay - _log1mexp((logs + e2) * (mu2 - 1) / mu2)
    log_b = e1 - logs / (mu1 - 1)
    c = alpha - 1
    rest = np.add.outer(stay, 0 * c)
    rest += np.multiply.outer(log_a, c)
    fail = np.multiply.outer(log_b, c)
    fail += logs[:, None]
    with np.errstate(over="ignore"):  # a bound that overflows is no better than α/σ²
        np.expm1(rest, out=rest)
        np.exp(fail, out=fail)
    rest += fail
    np.log1p(rest, out=rest)
    rest /= c
    # α <= μ1 where the theorem holds; a bound that rounding took below 0 is 0.
    np.maximum(rest, 0.0, out=rest)
    result[keep] = np.where(alpha <= mu1[:, None], np.minimum(rest, plain), plain)
    return result


def _log1mexp(x: Array) -> Array:
    """ln(1 - e^x) for x < 0, without cancellation at either end."""
    return np.where(x > -0.7, np.log(-np.expm1(x)), np.log1p(-np.exp(x)))


def log_check(largest: ArrayLike, threshold: float, sigma: float) -> tuple[Array, Array]:
    """ln Pr and ln(1 - Pr) that largest + N(0, σ²) reaches the threshold.

    >>> round(float(log_check([60.0], 300.0, 50.0)[0][0]), 8)
    -14.04702889
    """
    z = (np.asarray(largest, dtype=float).reshape(-1) - threshold) / sigma
    return special.log_ndtr(z), special.log_ndtr(-z)


def check_bound(largest: ArrayLike, threshold: float, sigma: float, orders: ArrayLike) -> Array:
    """The data-dependent bound of the threshold check: theorem 6 with q = min(Pr, 1 - Pr) and √2·σ; at most α/(2σ²).

    >>> round(float(check_bound([60.0], 300.0, 50.0, [2.0])[0, 0]), 16)
    1.774364183e-07
    """
    passed, failed = log_check(largest, threshold, sigma)
    return theorem6(np.minimum(passed, failed), math.sqrt(2) * sigma, orders)


def laplace_bound(counts: ArrayLike, scale: float, orders: ArrayLike) -> Array:
    """The data-dependent bound of LNMax: min(½ε0²α, ε0, the log term where q <= 1/(e^{ε0} + 1)), ε0 = 2/λ.

    >>> float(laplace_bound([[220, 20, 5, 5] + [0] * 6], 20.0, [2.0])[0, 0].round(14))
    0.00012590612257
    """
    logs = log_q_laplace(counts, scale)
    alpha = np.asarray(orders, dtype=float).reshape(-1)
    pure = 2 / scale
    plain = np.minimum(0.5 * pure**2 * alpha, pure)
    result = np.broadcast_to(plain, (len(logs), len(alpha))).copy()
    result[logs == -np.inf] = 0.0
    keep = np.flatnonzero((logs <= -np.logaddexp(pure, 0.0)) & (logs > -np.inf))
    if len(keep):
        kept, c = logs[keep][:, None], alpha - 1
        stay = _log1mexp(kept)
        ratio = stay - _log1mexp(pure + kept)
        with np.errstate(over="ignore"):
            term = np.log1p(np.expm1(stay + c * ratio) + np.exp(kept + pure * c)) / c
        result[keep] = np.minimum(np.maximum(term, 0.0), plain)
    return result
