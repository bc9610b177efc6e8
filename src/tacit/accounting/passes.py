"""What is the privacy loss of one pass in which every record falls into one of t batches at random?

Under Q (without the record) the likelihood ratio of a pass is R = (X_1 + … + X_t)/t, X_i = exp(Z_i/σ - 1/(2σ²)) with
independent normal Z_i. Both δ of removing, E(R - e^ε)₊, and δ of adding, E(1 - e^ε R)₊, are convex in R, and so are
those of several passes in each factor. So a law that is larger in convex order bounds δ from above and a smaller one
from below. Here the law of R is computed twice, by adding halves of the sum on grids e^{gk}:

- from above: a sum that lies between two grid points moves to both, so that its mean stays;
- from below: all sums that belong to one grid point are replaced by their common mean.

Both errors are of second order in g. All terms are positive, so every mass has a bounded *relative* rounding error.
What is left out beyond the ends counts as an infinite loss from above, and as nothing from below. Where δ is far above
the unit round-off, even_sums.py does the same faster and finer, by FFT. Proofs: docs/explanation/passes.md.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from tacit.accounting.even_sums import even_laws
from tacit.accounting.losses import ROUND, Array, GaussianLoss, Loss

#: Grid points of the laws, coarse to fine; the last is as fine as a law gets.
SIZES = (500, 1000, 2000)
#: A smaller noise multiplier is priced without amplification: its ε is in the hundreds.
LEAST_NOISE = 0.08
#: A larger one too: its grids would be finer than floating point resolves.
MOST_NOISE = 1e4
#: More bins than this are priced without amplification.
MOST_BINS = 1 << 22
#: Relative error of an integral over one cell of the first grid: ten Gauss points, a density with a rounded exponent.
CELL = 1e-12
#: How far a loss is moved to the safe side before it is put into a cell: more than it can be rounded.
NUDGE = 1e-12
#: How much finer the last grid is than the others.
LAST = 4
#: What the law by FFT may leave out, in units of what a lattice may; and where δ is not known.
OF_TAIL, ONE_TAIL = 100.0, 1e-12
#: From so many bins on that law is the quicker; it has narrow cells for lattices finer than this, in its steps.
LEAST_EVEN, NARROW = 8, 0.3
#: A share above the rounding of sums of its masses.
SUMS = 1e-10
#: How many lattice points lie between outcomes that are merged on the lattice, so that a good one is always near.
APART = 4
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)


class FinitePair(Loss):
    """Masses of two measures on finitely many outcomes; ``infinity`` is that of P where Q has nothing.

    The outcomes need not be in order of their loss. The masses may add up to a little more than 1 (from above) or less.
    """

    analytic = False

    def __init__(self, loss: Array, p: Array, q: Array, infinity: float = 0.0, *, above: bool = True) -> None:
        """``above`` says on which side of an edge a loss that lies on it is counted: the safe one."""
        order = np.argsort(loss, kind="stable")
        self.p, self.q, self.infinity = p[order], q[order], infinity
        self.loss = loss[order] + (NUDGE if above else -NUDGE) * (1 + np.abs(loss[order]))

    def cells(self, edges: Array) -> tuple[Array, Array]:
        p, q = self.finite(edges)
        p[-1] += self.infinity
        return p, q

    def finite(self, edges: Array) -> tuple[Array, Array]:
        """Masses of the outcomes with a finite loss."""
        # the outcomes are in order, so that each cell is a run of them; an empty one has the sum 0
        start = np.append(0, np.searchsorted(self.loss, edges, side="right"))
        empty = np.diff(np.append(start, len(self.loss))) == 0
        found = []
        for mass in (self.p, self.q):
            one = np.add.reduceat(np.append(mass, 0.0), start)
            one[empty] = 0.0
            found.append(one)
        return found[0], found[1]

    def between(self, step: float, tail: float) -> tuple[Loss, Loss]:
        return self, self

    def hockey_stick(self, epsilon: float) -> tuple[float, float]:
        """Bounds on Σ (p - e^ε q)₊."""
        if epsilon > 700:
            return 0.0, float(self.p[self.loss > 700].sum()) * (1 + 1e-12) + self.infinity
        above = self.loss > epsilon - 1e-6
        terms = self.p[above] - self.q[above] * math.exp(epsilon)
        value = float(terms[terms > 0].sum()) + self.infinity
        slack = 8 * ROUND * (2 + epsilon + math.log2(len(terms) + 1)) * (float(self.p[above].sum()) + self.infinity)
        return max(value - slack, 0.0), value + slack


@dataclasses.dataclass(frozen=True)
class _Law:
    """The law under Q of the mean of ``terms`` of the X_i: masses at (or around) e^{gk}, k = ``first``, ….

    ``moment`` is the mean times the mass, given from below only; from above it is e^{gk} times the mass. ``lost`` are
    the masses of Q and of P that were left out, ``error`` bounds the relative rounding of every number.
    """

    terms: int
    first: int
    mass: Array
    moment: Array | None
    lost: tuple[float, float]
    error: float

    def points(self, step: float) -> Array:
        return step * (self.first + np.arange(len(self.mass)))

    def means(self, step: float) -> Array:
        """Mass times value: the masses under P."""
        return np.asarray(self.mass * np.exp(self.points(step))) if self.moment is None else self.moment


class PassLoss(Loss):
    """The loss of one pass over t bins with Gaussian noise, removing (P the mixture) or adding (Q the mixture)."""

    analytic = False

    def __init__(self, sigma: float, bins: int, *, mixture_is_p: bool) -> None:
        self.sigma, self.bins, self.mixture_is_p = float(sigma), int(bins), mixture_is_p

    def unsampled(self) -> Loss:
        return GaussianLoss(1 / self.sigma)

    def ends(self, size: int, tail: float) -> tuple[FinitePair, FinitePair]:
        """The laws from above and from below on about ``size`` points that leave out at most ``tail`` of P."""
        return tuple(  # type: ignore[return-value]
            _pair(self.sigma, self.bins, size, tail, self.mixture_is_p, above) for above in (True, False)
        )

    def between(self, step: float, tail: float) -> tuple[Loss, Loss]:
        coarse = self._even(tail * OF_TAIL)
        if coarse is not None:
            return ((self._even(tail * OF_TAIL, 1) if step <= NARROW * coarse[2] else None) or coarse)[:2]
        # as many points would a grid of this step have
        points = self._reach(tail) / step
        return self.ends(next((n for n in SIZES if n >= points / APART), SIZES[-1]), _tail(tail))

    def resolution(self, tail: float) -> float:
        coarse = self._even(tail * OF_TAIL)
        return NARROW * coarse[2] if coarse is not None else self._reach(tail) / (4 * SIZES[-1])

    def total_variation(self) -> float:
        return min(1.0, 0.5 * math.sqrt(math.expm1(self.sigma**-2) / self.bins) * (1 + 1e-9))  # half the root of χ²

    def _reach(self, tail: float) -> float:
        """The range of the loss."""
        return SIZES[0] * LAST * _sum(self.sigma, self.bins, SIZES[0], _tail(tail), True)[1]

    def _even(self, tail: float, fine: int = 0) -> tuple[FinitePair, FinitePair, float] | None:
        """The laws by FFT, and their step, where this has digits enough."""
        if self.bins < LEAST_EVEN:
            return None
        kept = 10.0 ** math.floor(math.log10(min(tail, 1e-9)))
        return _even_pairs(self.sigma, self.bins, kept, fine, self.mixture_is_p)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        # only where the engine looks for the range of the loss: what it claims comes from ``between``
        even = self._even(ONE_TAIL)
        return (even[0] if even is not None else self.ends(SIZES[0], 1e-20)[0]).finite(edges)

    def profile(self, epsilon: float) -> tuple[float, float]:
        # a smaller δ than this tail resolves is left to the lattice; the total variation is asked for in passing
        even = self._even(ONE_TAIL)
        above, below = even[:2] if even is not None else self.ends(SIZES[-1] if epsilon > 0 else SIZES[0], 1e-20)
        high = min(1.0, above.hockey_stick(epsilon)[1])
        low = min(below.hockey_stick(epsilon)[0], high)
        return 0.5 * (low + high), 0.5 * (high - low) * (1 + 1e-12)


@functools.lru_cache(maxsize=32)
def largest_of_batches(sigma: float, bins: int, points: int = 4000) -> FinitePair:
    """What the largest of t batches shows where a record at 2 or a blank at 1 is in one of them, the others at 0.

    This is what shuffled batches are like where all other records pull against this one (Chua et al. 2024, arXiv
    2411.04205). The law of the largest does not depend on which batch it is, so it bounds the price from below.
    """
    from tacit.accounting.special import log_ndtr

    grid = np.linspace(-8.0, 2 / sigma + 9.0, points)
    others = (bins - 1) * log_ndtr(grid)
    # the masses above each point, and so between neighbours; what is below the first and above the last is left out
    first, second = (-np.expm1(others + log_ndtr(grid - shift / sigma)) for shift in (2.0, 1.0))
    slack = 1e-12
    p = np.maximum(-np.diff(first) - slack * first[:-1], 0.0)
    q = np.maximum(-np.diff(second), 0.0) + slack * second[:-1]
    keep = p > 0
    p, q = p[keep], q[keep]
    return FinitePair(np.log(p / q), p, q, above=False)


def _tail(tail: float) -> float:
    """A round number at most a quarter of ``tail``, so that few laws serve all questions."""
    if not tail > 1e-270:
        raise OverflowError("the law of a pass is not computed that far out")
    return math.pow(10.0, -20.0 * max(1, math.ceil(-math.log10(tail / 4) / 20)))


@functools.lru_cache(maxsize=128)
def _pair(sigma: float, bins: int, size: int, tail: float, mixture_is_p: bool, above: bool) -> FinitePair:
    law, step = _sum(sigma, bins, size, tail, above)
    q, p = law.mass, law.means(step)
    keep = (p > 0) & (q > 0)
    q, p = q[keep], p[keep]
    lost = law.lost if mixture_is_p else law.lost[::-1]
    first, second = (p, q) if mixture_is_p else (q, p)
    if above:
        # e^{gk} is exact as a definition of the grid; both masses are rounded up together, so that the loss stays
        grow = (1 + law.error) * (1 + 1e-13)
        loss = law.points(step)[keep]
        return FinitePair(loss if mixture_is_p else -loss, first * grow, second * grow, lost[1] * (1 + 1e-9))
    first, second = first * (1 - law.error), second * (1 + law.error)
    return FinitePair(np.log(first / second), first, second, above=False)


@functools.lru_cache(maxsize=32)
def _even_pairs(
    sigma: float, bins: int, tail: float, fine: int, mixture_is_p: bool
) -> tuple[FinitePair, FinitePair, float] | None:
    laws = even_laws(sigma, bins, tail, fine)
    if laws is None:
        return None
    above, below = laws[0], laws[1 if mixture_is_p else 2]
    keep = above.q > 0
    p, q, logs = above.p[keep], above.q[keep], above.logs[keep]
    first, second, loss, lost = (p, q, logs, above.lost[1]) if mixture_is_p else (q, p, -logs, above.lost[0])
    keep = (below.p > 0) & (below.q > 0)
    p, q = below.p[keep], below.q[keep]
    one, other = (p, q) if mixture_is_p else (q, p)
    return (
        FinitePair(loss + SUMS, first * (1 + SUMS), second, lost * (1 + 1e-9)),
        FinitePair(np.log(one / other), one, other, above=False),
        above.step,
    )


@functools.lru_cache(maxsize=64)
def _sum(sigma: float, bins: int, size: int, tail: float, above: bool) -> tuple[_Law, float]:
    """The law of R on a grid, and the step of that grid."""
    from scipy.special import ndtri

    depth = bins.bit_length() - 1
    left = -float(ndtri(tail / (8 * bins)))
    right = max(-float(ndtri(tail / 8)) + 1 / sigma, left)
    step = (left + right) / sigma / size
    budget = tail / (8 * max(depth, 1))
    laws = {1: _first(sigma, step, left, right, above)}

    def added(a: int, b: int, finer: int) -> _Law:
        law = _add(laws[a], laws[b], step, finer, above)
        return _trimmed(law, step / finer, budget * law.terms / bins, budget)

    # S_m is the sum of S_⌊m/2⌋ and S_⌈m/2⌉: two neighbouring counts at each level are enough for any number of bins
    if bins > 1 << depth:
        laws[2] = added(1, 1, 1)
    for level in range(depth - 1, -1, -1):
        finer = max(1, int(size / max(len(law.mass) for law in laws.values()) + 0.6))
        if level == 0:
            finer *= LAST  # what the last sum is put on costs nothing: no pairs are made of it
        wanted = {bins >> level, -(-bins >> level)}
        laws = {m: added(m // 2, m - m // 2, finer) for m in sorted(wanted)}
        step /= finer
    return laws[bins], step


def _first(sigma: float, step: float, left: float, right: float, above: bool) -> _Law:
    """The law of one X_i: from above on the edges of cells of the grid, from below at the means of cells around it."""
    shift = 0.0 if above else -0.5
    centre = 0.5 / sigma**2
    ends = ((-left / sigma - centre) / step - shift, (right / sigma - centre) / step - shift)
    first, last = math.floor(ends[0]), math.ceil(ends[1])
    edges = sigma * (step * (np.arange(first, last + 1) + shift) + centre)  # in units of the noise
    width = sigma * step
    z = edges[:-1, None] + 0.5 * width * (_NODES + 1)
    weight = np.exp(-0.5 * z * z) * (0.5 * width / math.sqrt(2 * math.pi) * _WEIGHTS)
    if above:
        upper = (np.expm1((z - edges[:-1, None]) / sigma) * weight).sum(axis=1) / math.expm1(step)
        lower = (-np.expm1((z - edges[1:, None]) / sigma) * weight).sum(axis=1) / -math.expm1(-step)
        mass = np.zeros(len(edges))
        mass[1:] += upper
        mass[:-1] += lower
        moment = None
    else:
        mass = weight.sum(axis=1)
        moment = (np.exp(z / sigma - centre) * weight).sum(axis=1)
    from tacit.accounting.special import ndtr

    outside = [float(ndtr(x)) * (1 + 1e-9) for x in (-left, -right, -left - 1 / sigma, 1 / sigma - right)]
    return _Law(1, first, mass, moment, (outside[0] + outside[1], outside[2] + outside[3]), CELL)


def _trimmed(law: _Law, step: float, least_q: float, least_p: float) -> _Law:
    """The law without the ends that hold less than this of Q, and on the right also less than this of P."""
    p = law.means(step)
    left = int(np.searchsorted(np.cumsum(law.mass), least_q))
    drops = (np.searchsorted(np.cumsum(x[::-1]), least) for x, least in ((p, least_p), (law.mass, least_q)))
    right = len(p) - int(min(drops))
    keep = slice(left, max(right, left + 1))
    gone = [float(x[:left].sum() + x[keep.stop :].sum()) * (1 + law.error + 1e-9) for x in (law.mass, p)]
    lost = (law.lost[0] + gone[0], law.lost[1] + gone[1])
    moment = None if law.moment is None else law.moment[keep]
    return _Law(law.terms, law.first + left, law.mass[keep], moment, lost, law.error)


def _add(a: _Law, b: _Law, step: float, finer: int, above: bool) -> _Law:
    """The law of the mean of both together, on a grid whose step is ``step / finer``."""
    terms = a.terms + b.terms
    low = finer * min(a.first, b.first) - 2 - finer
    high = finer * max(a.first + len(a.mass), b.first + len(b.mass)) + 3
    mass = np.zeros(high - low)
    moment = None if above else np.zeros(high - low)
    same = a is b
    # pairs in which a has the higher grid point (or the same), then those in which b has
    for one, other, start, times in ((a, b, 0, 1.0), (b, a, 1, 1.0)) if not same else ((a, a, 0, 2.0),):
        share = other.terms / terms
        length = one.first + len(one.mass) - other.first
        if length <= 0:
            continue
        if above:
            _spread(one, other, _Splits(share, step, finer, length), start, times, mass, low)
        else:
            assert moment is not None
            _gather(one, other, _nearest(share, step, finer, length), start, times, (mass, moment), low)
    p, q = a.terms / terms, b.terms / terms
    lost_q = a.lost[0] + b.lost[0]
    lost_p = p * a.lost[1] + q * a.lost[0] + q * b.lost[1] + p * b.lost[0]
    # each number is a sum of at most this many products, every one rounded a few times
    count = 8 * (len(a.mass) + len(b.mass)) + 64
    error = (1 + a.error) * (1 + b.error) * (1 + count * ROUND + 1e-13) - 1
    used = np.flatnonzero(mass)
    keep = slice(int(used[0]), int(used[-1]) + 1)
    return _Law(terms, low + keep.start, mass[keep], None if moment is None else moment[keep], (lost_q, lost_p), error)


class _Splits:
    """Where (1 - s) e^{gi} + s e^{g(i-d)} lies on the finer grid, for every d: from ρi + ``place`` to ``gap`` above.

    ``up`` and ``down`` are the shares that go to either, each rounded up. From ``far`` on the place is the same for all
    d, and up = ``base`` + ``slope`` e^{-gd}.
    """

    def __init__(self, share: float, step: float, finer: int, length: int) -> None:
        small = step / finer
        d = np.arange(length)
        value = np.log1p(share * np.expm1(-step * d))
        where = value / small
        place = np.floor(where)
        near = np.abs(where - np.rint(where)) < 1e-10 * (1 + np.abs(where))
        near[0] = False  # two equal points stay where they are
        # a value that may lie on either side of a grid point is spread over both its neighbours
        place[near] = np.rint(where[near]) - 1
        self.gap = np.where(near, 2, 1)
        up = np.expm1(value - small * place) / np.expm1(small * self.gap)
        slack = 64 * ROUND * (1 + np.abs(where)) * (d > 0)
        self.up, self.down = np.minimum(up + slack, 1.0), np.minimum(1 - up + slack, 1.0)
        self.down[0], self.up[0] = 1.0, 0.0
        self.place = place.astype(np.int64)
        # far out only the larger of the two counts
        limit = math.log1p(-share)
        self.limit = math.floor(limit / small)
        self.base = math.expm1(limit - small * self.limit) / math.expm1(small)
        self.slope = share * math.exp(-small * self.limit) / math.expm1(small)
        self.far = length
        if 1e-6 < self.base < 1 - 1e-6:
            self.far = min(length, max(1, math.ceil(math.log(max(2 * self.slope / (1 - self.base), 1.0)) / step)))
        self.step, self.finer = step, finer


def _spread(one: _Law, other: _Law, s: _Splits, start: int, times: float, out: Array, low: int) -> None:
    """Add the pairs in which ``one`` lies d >= ``start`` grid points above ``other``, each split so that its mean
    stays."""
    x, y = one.mass * times, other.mass
    rho, place, gap, up, down = s.finer, s.place.tolist(), s.gap.tolist(), s.up.tolist(), s.down.tolist()
    top = other.first + len(y)
    for d, i, stop in _overlaps(one, other, start, s.far):
        pairs = x[i - one.first : stop - one.first] * y[i - d - other.first : stop - d - other.first]
        if d == 0 and times != 1:
            pairs /= times  # equal grid points are one pair, not two
        at = rho * i + place[d] - low
        end = at + rho * (stop - i - 1) + 1
        out[at:end:rho] += pairs * down[d]
        pairs *= up[d]
        at, end = at + gap[d], end + gap[d]
        out[at:end:rho] += pairs
    high = np.arange(max(one.first, other.first + s.far), one.first + len(x))
    if len(high):
        j = np.minimum(high - s.far - other.first, len(y) - 1)
        # Σ y_j and Σ y_j e^{-g(high-j)} over all j that far below high
        weighed = np.cumsum(y * np.exp(s.step * (np.arange(len(y)) - len(y))))[j] * np.exp(s.step * (top - high))
        plain = np.cumsum(y)[j]
        weight = x[high - one.first]
        at = rho * high + s.limit - low
        raised = s.base * plain + s.slope * weighed
        out[at] += weight * np.maximum(plain - raised, 0.0) * (1 + 1e-12 / (1 - s.base))
        out[at + 1] += weight * raised * (1 + 1e-12 / s.base)


def _overlaps(one: _Law, other: _Law, start: int, stop: int) -> list[tuple[int, int, int]]:
    """For each distance d the grid points i of ``one`` for which ``other`` has i - d: (d, first, after the last)."""
    d = np.arange(start, stop)
    first = np.maximum(one.first, other.first + d)
    last = np.minimum(one.first + len(one.mass), other.first + len(other.mass) + d)
    some = first < last
    return list(zip(d[some].tolist(), first[some].tolist(), last[some].tolist(), strict=True))


def _nearest(share: float, step: float, finer: int, length: int) -> tuple[list[int], int, int]:
    """For each d the grid point nearest to (1 - s) e^{gi} + s e^{g(i-d)}, less ρi; and the d from which it stays."""
    where = np.rint(np.log1p(share * np.expm1(-step * np.arange(length))) / (step / finer)).astype(np.int64)
    return where.tolist(), int(np.searchsorted(-where, -int(where[-1]))), finer


def _gather(
    one: _Law,
    other: _Law,
    nearest: tuple[list[int], int, int],
    start: int,
    times: float,
    out: tuple[Array, Array],
    low: int,
) -> None:
    """Add masses and moments of the pairs in which ``one`` lies d >= ``start`` grid points above ``other``."""
    place, far, rho = nearest
    assert one.moment is not None
    assert other.moment is not None
    terms = one.terms + other.terms
    x, y = one.mass * times, other.mass
    xs, ys = one.moment * (times * one.terms / terms), other.moment * (other.terms / terms)
    mass, moment = out
    far = max(far, 1)
    for d, i, stop in _overlaps(one, other, start, far):
        a, b = slice(i - one.first, stop - one.first), slice(i - d - other.first, stop - d - other.first)
        pairs = x[a] * y[b]
        means = xs[a] * y[b]
        means += x[a] * ys[b]
        if d == 0 and times != 1:
            pairs /= times
            means /= times
        at = rho * i + place[d] - low
        end = at + rho * (stop - i - 1) + 1
        mass[at:end:rho] += pairs
        moment[at:end:rho] += means
    high = np.arange(max(one.first, other.first + far), one.first + len(x))
    if len(high):
        j = np.minimum(high - far - other.first, len(y) - 1)
        spot = rho * high + place[-1] - low
        below, below_moment = np.cumsum(y)[j], np.cumsum(ys)[j]
        k = high - one.first
        mass[spot] += x[k] * below
        moment[spot] += xs[k] * below + x[k] * below_moment
