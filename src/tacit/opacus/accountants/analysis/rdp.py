"""What is the Rényi divergence of sampled Gaussian noise, and which ε does a Rényi curve prove? Opacus' two functions.

The divergences are the upper bounds of :func:`tacit.accounting.renyi`, in the larger of the two directions, for adding
or removing one record. ``PrivacyEngine`` and the accountants do not go this way: they state the certified ε, which is
smaller than what a Rényi curve proves.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import accounting as acc
from tacit.accounting.renyi import convert


def compute_rdp(
    *, q: float, noise_multiplier: float, steps: int, orders: Sequence[float] | float
) -> NDArray[np.float64] | float:
    """Upper bounds on the Rényi divergence of ``steps`` Gaussian releases on Poisson samples at rate ``q``.

    Guarantee: for data that differ by one added or removed record, whose clipped value moves the sum by at most 1, and
    noise of standard deviation ``noise_multiplier``, D_α in either direction is at most the value at α. A single order
    gives a number, several give an array.

    >>> rdp = compute_rdp(q=0.01, noise_multiplier=1.0, steps=1000, orders=[2, 8, 32])
    >>> [round(float(x), 2) for x in rdp]
    [0.17, 0.89, 11246.28]
    """
    spent = acc.PoissonSampled(acc.Gaussian(noise_multiplier), q) * steps
    wanted = np.asarray(orders, dtype=float)
    found = np.zeros(wanted.shape)
    if q > 0 and steps > 0:
        limited = ~np.isposinf(wanted)
        found[~limited] = math.inf  # Gaussian noise has no pure guarantee
        if limited.any():
            found[limited] = acc.renyi(spent, wanted[limited])
    return float(found) if wanted.ndim == 0 else found


def get_privacy_spent(*, orders: ArrayLike, rdp: ArrayLike, delta: float) -> tuple[float, float]:
    """The smallest ε that one of the ``orders`` proves at ``delta``, and that order.

    Guarantee: a mechanism whose Rényi divergence of every order is at most the given one is (ε, ``delta``)-DP for the
    same neighbours (Canonne, Kamath & Steinke 2020, proposition 12). A divergence that is not a number proves nothing.

    >>> orders = [1.5, 2, 4, 8, 16, 32]
    >>> rdp = compute_rdp(q=0.01, noise_multiplier=1.0, steps=1000, orders=orders)
    >>> epsilon, order = get_privacy_spent(orders=orders, rdp=rdp, delta=1e-5)
    >>> round(epsilon, 2), order
    (2.11, 8.0)
    """
    alphas, divergences = (np.atleast_1d(np.asarray(x, dtype=float)) for x in (orders, rdp))
    if alphas.shape != divergences.shape or alphas.ndim != 1:
        raise ValueError(
            f"one divergence for every order: there are {alphas.size} orders and {divergences.size} of them"
        )
    if not np.all((alphas > 1) & np.isfinite(alphas)):
        raise ValueError(f"Rényi orders are finite numbers above 1, not {alphas.tolist()}")
    if np.any(divergences < 0):
        raise ValueError("a Rényi divergence is not negative")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, not {delta!r}")
    proven: NDArray[Any] = convert(alphas, np.where(np.isnan(divergences), math.inf, divergences), float(delta))
    best = int(np.argmin(proven))
    if math.isinf(proven[best]):
        return math.inf, math.nan
    if proven[best] > 0 and len(alphas) > 1 and best in (0, len(alphas) - 1):
        end = "first" if best == 0 else "last"
        warnings.warn(f"the best order is the {end} one given: others beyond it may prove a smaller ε", stacklevel=2)
    return float(proven[best]), float(alphas[best])


__all__ = ["compute_rdp", "get_privacy_spent"]
