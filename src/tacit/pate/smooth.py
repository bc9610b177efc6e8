"""How can a data-dependent ε be published? Its smooth sensitivity, and what publishing it with noise costs.

The data-dependent price of the votes is a function F of private votes. F + SS·N(0, σ²) may be published, SS a β-smooth
upper bound on F's local sensitivity (Nissim, Raskhodnikova & Smith 2007; for PATE: Papernot et al. 2018, section 4.3
and appendix B), at the price of :class:`tacit.accounting.SmoothRelease`. α, β and σ are chosen without looking at the
votes.

Write r(q) for theorem 6 at one order α. One vote moves q to at most B_U(q) and at least B_L(q); r meets α/σ² at q0, and
q1 = B_L(q0). Given that r does not decrease on (0, q0), and r(B_U(q)) - r(q) does not on (0, q1), the local sensitivity
is largest, and flat, on [q1, q0], and the votes at distance d that are most sensitive are those d votes nearer to it.
Both conditions are checked for each (σ, m, α). If they fail, nothing is released.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from tacit.pate import bounds

Array = NDArray[np.float64]


class SmoothnessError(ValueError):
    """The smooth sensitivity is not known at this Rényi order, noise and number of classes, so nothing is released."""


class VoteSensitivity:
    """Local sensitivities of theorem 6 for GNMax with noise ``sigma`` over ``classes``, at one order.

    >>> part = VoteSensitivity(sigma=40.0, classes=10, order=20.0, teachers=250)
    >>> round(part.log_q0, 9), round(part.log_q1, 9)
    (-3.156873049, -3.260312837)
    """

    def __init__(self, sigma: float, classes: int, order: float, teachers: int) -> None:
        if classes < 2:
            raise SmoothnessError("with one class there is nothing to sanitise")
        if not (sigma > 0 and order > 1 and teachers >= 1):
            raise ValueError("sigma must be above 0, order above 1, and teachers 1 or more")
        self.sigma, self.classes, self.order, self.teachers = float(sigma), int(classes), float(order), int(teachers)
        self.plain = self.order / self.sigma**2
        self.log_q0 = self._meet()
        self.log_q1 = float(self.lower(np.array([self.log_q0]))[0])
        self._check()
        #: the largest local sensitivity there is, reached on [q1, q0]
        self.flat = self.plain - float(self.bound(np.array([self.log_q1]))[0])

    def bound(self, log_q: Array) -> Array:
        """r: theorem 6, or α/σ² where it does not apply or is no better."""
        return bounds.theorem6(log_q, self.sigma, [self.order])[:, 0]

    def lower(self, log_q: Array) -> Array:
        """ln B_L: the smallest ln q that one moved vote can give."""
        return self._shifted(log_q, -math.sqrt(2) / self.sigma)

    def upper(self, log_q: Array) -> Array:
        """ln B_U: the largest ln q that one moved vote can give, at most 0."""
        return self._shifted(log_q, math.sqrt(2) / self.sigma)

    def _shifted(self, log_q: Array, by: float) -> Array:
        share = math.log(self.classes - 1)
        # ½ erfc(x) = Φ(-√2 x), in logs
        with np.errstate(invalid="ignore"):
            z = special.ndtri_exp(np.minimum(np.asarray(log_q) - share, 0.0))
        return np.asarray(np.minimum(share + special.log_ndtr(z + by), 0.0))

    def _meet(self) -> float:
        """ln q0: from here on theorem 6 is no better than α/σ²."""

        def better(log_q: float) -> bool:
            return float(self.bound(np.array([log_q]))[0]) < self.plain * (1 - 1e-13)

        # theorem 6 needs α <= 1 + σ√(ln 1/q): below this ln q it may apply
        high = min(-(((self.order - 1) / self.sigma) ** 2), math.log1p(-1 / self.classes))
        low = high - 1.0
        for _ in range(200):
            if better(low):
                break
            low = high + 2 * (low - high)
        else:
            raise SmoothnessError(f"theorem 6 never improves on α/σ² at order {self.order:g} and noise {self.sigma:g}")
        if better(high):
            return high
        return float(optimize.bisect(lambda x: -1.0 if better(x) else 1.0, low, high, xtol=1e-13, rtol=1e-15))

    def _check(self) -> None:
        """The two conditions, at a thousand places between the clearest vote there can be and q0 or q1."""
        clearest = bounds.log_q(np.array([[self.teachers + 2] + [0] * (self.classes - 1)]), self.sigma)[0]
        ends = (self.log_q0, self.log_q1)
        if clearest >= ends[1]:
            return
        whole, part = (np.linspace(clearest, end, 1001) for end in ends)
        r = self.bound(whole)
        step = self.bound(self.upper(part)) - self.bound(part)
        for name, values in (("r(q)", r), ("r(B_U(q)) - r(q)", step)):
            # the last place lies on the edge, where rounding decides which side it is on
            falls = np.diff(values[:-1]) < -1e-9 * values[:-2] - 1e-15
            if falls.any():
                raise SmoothnessError(
                    f"{name} is not non-decreasing at order {self.order:g}, noise {self.sigma:g} and {self.classes} "
                    "classes, so its smooth sensitivity is not known. Choose another order. "
                    "See: tacit explain data-dependent-epsilon"
                )

    def local(self, log_q: Array) -> Array:
        """LS(q): how far r can move with one vote."""
        log_q = np.asarray(log_q, dtype=float)
        here = self.bound(log_q)
        found = np.maximum(self.bound(self.upper(log_q)) - here, here - self.bound(self.lower(log_q)))
        return np.where(self._is_flat(log_q), self.flat, np.clip(found, 0.0, self.flat))

    def _is_flat(self, log_q: Array) -> NDArray[np.bool_]:
        return (log_q >= self.log_q1) & (log_q <= self.log_q0)

    def at_distance(self, counts: ArrayLike, length: int | None = None) -> Array:
        """Σ over queries of LS_d for d = 0, 1, …: the largest local sensitivity of any votes that differ in d votes.

        >>> part = VoteSensitivity(sigma=40.0, classes=10, order=20.0, teachers=250)
        >>> float(part.at_distance([[220, 20, 5, 5] + [0] * 6])[20].round(13))
        0.0002364109095
        """
        votes = -np.sort(-np.atleast_2d(np.asarray(counts, dtype=np.int64)), axis=1)
        length = self.teachers + 2 if length is None else length
        if votes.size == 0:
            return np.zeros(length)
        once, times = np.unique(votes, axis=0, return_counts=True)
        total = np.zeros(length)
        best = np.zeros(len(once))
        open_ = np.ones(len(once), bool)
        for d in range(length):
            if not open_.any():
                total[d:] = float(best @ times)
                break
            logs = bounds.log_q(once, self.sigma)
            best = np.where(open_, np.maximum(best, self.local(logs)), best)
            total[d] = float(best @ times)
            up, down = open_ & (logs < self.log_q1), open_ & (logs > self.log_q0)
            down &= once[:, 1] > 0  # all votes agree and q is still large: it gets no smaller
            open_ = up | down
            once[:, 0] += down.astype(np.int64) - up
            once[:, 1] += up.astype(np.int64) - down
            once = -np.sort(-once, axis=1)
        return total


def check_at_distance(bound: Callable[[Array], Array], largest: ArrayLike, teachers: int, length: int) -> Array:
    """Σ over queries of the local sensitivities of the check's bound, a function of the largest count alone.

    One vote moves the largest count by at most 1, so the largest sensitivity within d votes is that within d counts.
    """
    counts, times = np.unique(np.asarray(largest, dtype=np.int64), return_counts=True)
    if not len(counts):
        return np.zeros(length)
    price = bound(np.arange(0, teachers + 2, dtype=float))
    local = np.abs(np.diff(price))
    local = np.maximum(np.concatenate([[0.0], local]), np.concatenate([local, [0.0]]))  # to either side
    total = np.zeros(length)
    for count, often in zip(counts.tolist(), times.tolist(), strict=True):
        reach = np.zeros(length)
        for d in range(length):
            low, high = max(count - d, 0), min(count + d, teachers + 1)
            reach[d] = max(reach[d - 1] if d else 0.0, local[low], local[high])
        total += often * reach
    return total


def smooth_sensitivity(local: Array, beta: float) -> float:
    """max_d e^{-βd} Σ LS_d.

    >>> part = VoteSensitivity(sigma=40.0, classes=10, order=20.0, teachers=250)
    >>> round(smooth_sensitivity(part.at_distance([[220, 20, 5, 5] + [0] * 6]), 0.02), 13)
    0.0003220160893
    """
    if not beta >= 0:
        raise ValueError(f"beta is 0 or more, not {beta!r}")
    return float((np.exp(-beta * np.arange(len(local))) * local).max()) if len(local) else 0.0
