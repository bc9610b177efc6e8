"""What does Poisson sampling cost? Any mechanism with a dominating pair, on a sample that each record joins by itself.

Under add/remove the pair of the mechanism becomes that of the sample (:class:`tacit.accounting.derived.SampledLoss`).
Gaussian noise has mixtures of normals of its own, for groups and for replace-one. docs/explanation/pairs.md and
derived-pairs.md have the proofs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from tacit.accounting.base import Composed, Mechanism, check_share, check_whole, inherit_unit
from tacit.accounting.derived import (
    DrawnLoss,
    binomial,
    least_of,
    reach,
    sampled,
    symmetric_law,
    upper_end,
)
from tacit.accounting.errors import AccountingError, AdjacencyError
from tacit.accounting.lattice import MISPLACED, dominating
from tacit.accounting.losses import ROUND, Array, AtomsLoss, Loss, discrete_gaussian_atoms
from tacit.accounting.mechanisms import (
    GDP,
    LARGEST_RATIO,
    ApproxDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    PureDP,
    RandomizedResponse,
    nothing_revealed,
    replaced_with,
    revealed_with,
)
from tacit.accounting.mixture import MixtureLoss
from tacit.accounting.pricing import LEAST, OwnPrice, own_pair
from tacit.accounting.renyi import standing_pair

#: Noise on a sum to which a blank adds nothing.
NOISE = (Gaussian, Laplace, DiscreteGaussian, DiscreteLaplace)
#: Cells into which the outcomes of Laplace noise are put for a lower end.
CELLS = 4000
#: Outcomes of discrete noise on all sums of a group together, and as many as are told apart in a lower bound.
MOST_OUTCOMES, MOST_SEEN = 1 << 19, 1 << 17


@dataclasses.dataclass(frozen=True, repr=False)
class PoissonSampled(Mechanism):
    """A mechanism run on a Poisson sample: every record takes part independently with probability ``rate``.

    With (P, Q) a pair that dominates the mechanism under add/remove, removing has (1-q)Q + qP against Q and adding the
    reverse (Zhu, Dong & Wang 2022, theorem 11). Gaussian noise under replace-one: (1-q)N(0) + qN(1) against (1-q)N(0) +
    qN(-1); groups of k added or removed: Binomial(k, q) shifts (Ganesh 2024). Other noise under replace-one, and groups
    of it: an upper bound (``tight=False``). The proofs are in docs/explanation/pairs.md and derived-pairs.md.

    A mechanism known only by its guarantee (PureDP, GDP, a curve, …) is amplified under add/remove only. Under zero-out
    a sampled blank is still a record: a mechanism may count it, and then shows whether it was sampled. Noise is taken
    to be on a sum to which a blank adds nothing, so that a blank is as good as absent. Of randomised response everybody
    sees who was sampled: ε stays and δ is multiplied by q.

    Args:
        mechanism: What runs on the sample: any one mechanism with a price under add/remove, or RandomizedResponse.
        rate: The probability that a record takes part in one run, in [0, 1].
        unit: Taken from ``mechanism``; leave it out.

    Raises:
        AccountingError: If no theorem covers ``mechanism``, or the rate is no probability.

    Example:
        >>> from tacit.accounting import Gaussian, PoissonSampled, epsilon
        >>> step = PoissonSampled(Gaussian(1.1), rate=256 / 60000)
        >>> epsilon(step * 3515, delta=1e-5)
        ε in [1.133706, 1.133707] at δ=1e-05, add/remove one record
    """

    mechanism: Mechanism
    rate: float
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        wrap_one(self)
        check_share("a sampling rate", self.rate)
        if type(self.mechanism).__module__ in (__name__, "tacit.accounting.sampling"):
            raise AccountingError(
                f"PoissonSampled has no amplification theorem for {self.mechanism!r}, which is sampled already; "
                "sample once, at the product of the rates"
            )
        check_stated(self)

    def adjacencies(self) -> tuple[str, ...]:
        inner = self.mechanism
        if isinstance(inner, (*NOISE, RandomizedResponse)) or not 0 < self.rate < 1:
            return inner.adjacencies()
        # The theorem is about a record that is there or not.
        return tuple(a for a in inner.adjacencies() if a == "add-remove")

    def advice(self, adjacency: str) -> str:
        return (
            "sampling amplifies a bare guarantee only if a record is present or absent (a sampled blank differs from a "
            "record that was not sampled). Describe the noise itself, Gaussian or Laplace on a sum to which a blank "
            "adds nothing, or use add-remove with a guarantee stated for it"
        )

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        inner, rate = self.mechanism, self.rate
        if rate == 0:
            return nothing_revealed()
        if rate == 1:
            return inner.pair(adjacency, direction, group)
        if _noiseless(inner):
            return self._revealed(adjacency, direction, group)
        normal = isinstance(inner, Gaussian | GDP) and inner.is_tight(adjacency, group)
        if normal and (adjacency != "replace-one" or group == 1):
            return self._gaussian(inner, adjacency, direction, group)
        return _sampled_pair(self, adjacency, direction, group)

    def _chained(self, direction: str, chain: int) -> Loss | None:
        """The lemma for one record of a pure mechanism, and a chain of neighbours; None where it is not pure."""
        largest = self.mechanism.largest_loss("add-remove", direction)
        if not math.isfinite(largest):
            return None
        return PureDP(amplified(largest, self.rate)).pair("add-remove", direction, chain)

    def _one_of(self, adjacency: str, direction: str, group: int, count: int) -> Loss | None:
        """The pair of what is sampled; one of fewer outcomes that dominates it, where ``count`` would be too many."""
        loss = _pair(self.mechanism, adjacency, direction, group)
        if count == 1 or not isinstance(loss, AtomsLoss) or len(loss.values) * count <= MOST_OUTCOMES:
            return loss
        law = dominating(loss, float(np.ptp(loss.values)) / (MOST_OUTCOMES // count + 1), 0.0)
        return AtomsLoss(law.values + 2 * MISPLACED * law.step, law.p, symmetric=loss.symmetric)

    def _there_or_not(self, direction: str, group: int) -> Loss | None:
        """Records that are there or not: the theorem, with the number of sampled ones told if there are several."""
        chained = self._chained(direction, group)
        if chained is not None and self.mechanism.largest_loss("add-remove", direction) * group > LARGEST_RATIO:
            return chained  # e to the loss has no number
        members = [self._one_of("add-remove", direction, j, group) for j in range(1, group + 1)]
        if any(loss is None for loss in members):
            return None
        if group == 1:
            return sampled(members[0], self.rate, direction)  # type: ignore[arg-type]
        none, *some = binomial(group, self.rate)
        told = [(loss, w / (1 - none)) for loss, w in zip(members, some, strict=True) if loss is not None]
        bounds: list[Loss] = [sampled(DrawnLoss(told), 1 - none, direction)]
        if chained is not None:
            bounds.append(chained)
        elif isinstance(self.mechanism, ApproxDP):
            lemma = ApproxDP(amplified(self.mechanism.epsilon, self.rate), self.rate * self.mechanism.delta)
            bounds.append(lemma.pair("add-remove", direction, group))  # type: ignore[arg-type]
        return least_of(bounds)

    def _replaced(self, adjacency: str, direction: str, group: int) -> Loss | None:
        """Records that change: the number of sampled ones told, or for noise on a sum the lemma, or a chain."""
        inner = self.mechanism
        chained = self._chained(direction, 2 * group) if isinstance(inner, NOISE) else None
        if chained is not None and inner.largest_loss(adjacency, direction, group) > LARGEST_RATIO:
            return chained
        none, *some = binomial(group, self.rate)
        sizes = range(1, group + 1)
        changed = [self._one_of(adjacency, direction, j, 2 * group) for j in sizes]
        if not isinstance(inner, NOISE):
            found = [(loss, w) for loss, w in zip(changed, some, strict=True) if loss is not None]
            return DrawnLoss([(nothing_revealed(), none), *found]) if len(found) == group else None
        there = [self._one_of("add-remove", "remove", j, 2 * group) for j in sizes]
        drawn = []
        for losses in (there, changed):
            found = [(loss, w / (1 - none)) for loss, w in zip(losses, some, strict=True) if loss is not None]
            if len(found) < group:
                return None
            drawn.append(DrawnLoss(found))
        bounds: list[Loss] = [_amplified_replacement(drawn[0], drawn[1], 1 - none)]
        if chained is not None:
            bounds.append(chained)
        return least_of(bounds)

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        inner = self.mechanism
        if not inner.is_tight(adjacency, group):
            return False
        if not 0 < self.rate < 1 or _noiseless(inner):
            return True
        if isinstance(inner, Gaussian | GDP):
            return not (adjacency == "replace-one" and (group > 1 or self._near()))
        return isinstance(inner, RandomizedResponse) or (adjacency != "replace-one" and group == 1)

    def _near(self) -> bool:
        """Whether two records that replace each other cannot lie at opposite ends of what one can add."""
        return isinstance(self.mechanism, Gaussian) and self.mechanism.replace < 2

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        inner = self.mechanism
        if self.is_tight(adjacency, group):
            return self.pair(adjacency, direction, group)
        if not 0 < self.rate < 1:
            return inner.floor(adjacency, direction, group) if self.rate == 1 else nothing_revealed()
        if isinstance(inner, Gaussian) and adjacency == "replace-one" and inner.noise_multiplier > 0:
            # two records as far apart as they may be, on either side of the middle
            return _either_side(inner.noise_multiplier, inner.replace / 2, self.rate, group)
        listed = isinstance(inner, NOISE) and not isinstance(inner, Gaussian) and group <= 64
        listed = listed and inner.is_tight(adjacency)
        if listed and (loss := _seen(inner, self.rate, adjacency, direction, group)) is not None:
            return loss
        below = inner.floor("add-remove", direction) if adjacency != "replace-one" else None
        return sampled(below, self.rate, direction) if below is not None else None

    def _gaussian(self, inner: Mechanism, adjacency: str, direction: str, group: int) -> Loss:
        if isinstance(inner, GDP):
            sigma, far = (1 / inner.mu if inner.mu else math.inf), 1.0
        else:
            assert isinstance(inner, Gaussian)
            sigma, far = inner.noise_multiplier, inner.replace
        if math.isinf(sigma):
            return nothing_revealed()
        if adjacency == "replace-one":
            # The two records may pull opposite ways, each as far as adding one can, however little replacing moves.
            return _either_side(sigma, max(far / 2, 1.0), self.rate)
        shifts = {float(j): w for j, w in enumerate(binomial(group, self.rate))}
        if direction == "remove":
            return MixtureLoss(sigma, shifts, {0.0: 1.0})
        return MixtureLoss(sigma, {0.0: 1.0}, shifts)

    def _revealed(self, adjacency: str, direction: str, group: int) -> Loss:
        """Without noise whoever is sampled is seen."""
        some = -math.expm1(group * math.log1p(-self.rate))
        return replaced_with(some) if adjacency == "replace-one" else revealed_with(some, direction)

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        inner = self.mechanism
        if self.rate == 1:
            return inner.largest_loss(adjacency, direction, group)
        if self.rate == 0 or _noiseless(inner):
            return super().largest_loss(adjacency, direction, group)
        if isinstance(inner, RandomizedResponse):
            return inner.largest_loss(adjacency, direction, group)
        largest = inner.largest_loss("add-remove", direction)
        if not math.isfinite(largest):
            # not what the pair says: it leaves out what has no number in binary64
            seldom = direction == "add" and adjacency != "replace-one"
            return -group * math.log1p(-self.rate) * (1 + 8 * ROUND) if seldom else math.inf
        if direction == "add" and adjacency != "replace-one" and group == 1:
            return max(0.0, -math.log1p(self.rate * math.expm1(-largest))) * (1 + 8 * ROUND)
        chain = amplified(largest, self.rate) * group
        return min(chain * 2, inner.largest_loss(adjacency, direction, group)) if adjacency == "replace-one" else chain


@dataclasses.dataclass(frozen=True, repr=False)
class Accumulated(Mechanism):
    """``draws`` independent Poisson draws whose sums are added up under one noise (gradient accumulation), or one draw
    of records of which a unit owns up to ``draws``.

    A record may be in several of the draws and moves the sum once for each: Binomial(draws, rate) times. That is the
    pair of a group of ``draws`` records in a single draw, and it is priced as such.

    >>> from tacit import accounting as acc
    >>> step = acc.PoissonSampled(acc.Gaussian(1.0), 0.01)
    >>> twice = acc.epsilon(Accumulated(step, 2) * 100, 1e-5).upper
    >>> acc.epsilon(step * 100, 1e-5).upper < twice
    True
    """

    mechanism: PoissonSampled
    draws: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", self.mechanism.unit)
        super().__post_init__()
        if not isinstance(self.mechanism, PoissonSampled):
            raise AccountingError("draws are added up here for Poisson sampling only")
        check_whole("draws", self.draws)

    def adjacencies(self) -> tuple[str, ...]:
        return tuple(a for a in self.mechanism.adjacencies() if a != "replace-one" or self.draws == 1)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return self.mechanism.pair(adjacency, direction, group * self.draws)

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        return self.mechanism.is_tight(adjacency, group * self.draws)

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        return self.mechanism.renyi(adjacency, orders, group * self.draws)

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        return self.mechanism.largest_loss(adjacency, direction, group * self.draws)


# -- helpers ----


def _noiseless(inner: Mechanism) -> bool:
    """Whether whoever is sampled is seen as they are, because there is no noise or too little to compute with."""
    if isinstance(inner, Gaussian):
        return not inner.is_tight("add-remove") or inner.noise_multiplier == 0
    if isinstance(inner, GDP):
        return math.isinf(inner.mu) or not inner.is_tight("add-remove")
    return isinstance(inner, NOISE) and 0 in (getattr(inner, "scale", 1), getattr(inner, "sigma", 1))


@functools.lru_cache(maxsize=4)
def _sampled_pair(sampled: PoissonSampled, adjacency: str, direction: str, group: int) -> Loss | None:
    """The pair of what is not Gaussian noise, made once."""
    if adjacency == "replace-one" or isinstance(sampled.mechanism, RandomizedResponse):
        return sampled._replaced(adjacency, direction, group)
    return sampled._there_or_not(direction, group)


def _pair(inner: Mechanism, adjacency: str, direction: str, group: int) -> Loss | None:
    if (loss := inner.pair(adjacency, direction, group)) is not None:
        return loss
    if isinstance(inner, OwnPrice):
        return own_pair(inner, adjacency, group, LEAST)
    return standing_pair(inner, adjacency, group)


def _amplified_replacement(there: Loss, changed: Loss, rate: float, points: int = 500) -> Loss:
    """The symmetric pair of min(q·δ_r(ε'), q((1-β)δ_a(ε) + βδ_r(ε))), e^{ε'} = 1 + q(e^ε - 1) and β = e^{ε' - ε}.

    δ_a is that of adding or removing the record, δ_r that of replacing it: the joint convexity of Balle, Barthe &
    Gaboardi 2018 (theorem 2), with the part of the mixture that both sides share.
    """
    top = reach([changed])
    step = top / points
    grid = step * np.arange(points + 1)
    deltas = []
    for at in grid.tolist():
        inner = math.log1p(math.expm1(at) / rate) if at < 50 else at - math.log(rate)
        share = math.exp(min(at - inner, 0.0))
        told = rate * upper_end(changed, at)
        deltas.append(min(told, rate * ((1 - share) * upper_end(there, inner) + share * upper_end(changed, inner))))
    return symmetric_law(grid, np.array(deltas), spacing=step)


def _seen(inner: Mechanism, rate: float, adjacency: str, direction: str, group: int) -> Loss | None:
    """What is seen of noise on a sum that neighbours move by up to ``group`` records, all one way: a lower bound.

    Laplace noise is seen in cells only, which shows less. None where there are too many outcomes to list.
    """
    weights = binomial(group, rate)
    far = 1.0
    if isinstance(inner, Laplace):
        scale = inner.scale
        far = inner.replace / 2 if adjacency == "replace-one" else 1.0
        reach = far * group
        inside = np.linspace(-reach, reach, CELLS)
        edges = np.unique(np.concatenate([inside, far * np.arange(-group, group + 1)]))

        def law(shift: float) -> Array:
            return _laplace_cells((edges - far * shift) / scale)
    else:
        assert isinstance(inner, DiscreteGaussian | DiscreteLaplace)
        one = inner.sensitivity
        half = (inner.replace or 2 * one) // 2 if adjacency == "replace-one" else one
        if half * group > MOST_OUTCOMES:
            return None
        law = functools.partial(_whole_number_law, inner, half, group)
    with_record = sum(w * law(float(j)) for j, w in enumerate(weights))
    other: Array = law(0.0)
    if adjacency == "replace-one":
        other = np.asarray(sum(w * law(-float(j)) for j, w in enumerate(weights)))
    p, q = (np.asarray(with_record), other) if direction == "remove" else (other, np.asarray(with_record))
    both = (p > 1e-290) & (q > 1e-290)
    # an outcome without a number on one side tells nothing here
    values = np.log(p[both]) - np.log(q[both])
    order = np.argsort(values, kind="stable")
    lost = 1 - math.fsum(p[both])
    values, masses = values[order], p[both][order]
    if lost > 0:
        values, masses = np.append(values.min(initial=0.0) - 1.0, values), np.append(lost, masses)
    return AtomsLoss(values, masses, symmetric=adjacency == "replace-one")


def _laplace_cells(edges: Array) -> Array:
    """Masses of Laplace noise of scale 1 below, between and above ascending edges."""
    low, high = np.concatenate([[-np.inf], edges]), np.concatenate([edges, [np.inf]])
    right = low > 0
    a, b = np.where(right, -high, low), np.where(right, -low, high)
    below = np.where(b <= 0, 0.5 * np.exp(np.minimum(b, 0.0)), 1 - 0.5 * np.exp(-np.maximum(b, 0.0)))
    return np.asarray(np.maximum(below - 0.5 * np.exp(np.minimum(a, 0.0)), 0.0))


def _whole_number_law(inner: DiscreteGaussian | DiscreteLaplace, far: int, group: int, shift: float) -> Array:
    """Masses on whole numbers of discrete noise moved by ``shift`` times ``far``; of many, of some next to each other.

    Beyond the furthest shift all outcomes of Laplace noise have one loss, and are one outcome here.
    """
    room, moved = far * group, round(shift) * far
    if isinstance(inner, DiscreteGaussian):
        _, mass = discrete_gaussian_atoms(inner.sigma, 1)
        law = np.zeros(len(mass) + 2 * room)
        law[room + moved : room + moved + len(mass)] = mass
    else:
        law = math.tanh(0.5 / inner.scale) * np.exp(-np.abs(np.arange(-room, room + 1) - moved) / inner.scale)
        for end, distance in ((0, room + moved), (-1, room - moved)):
            law[end] = math.exp(-distance / inner.scale) / (1 + math.exp(-1 / inner.scale))
    each = -(-len(law) // MOST_SEEN)
    return law if each == 1 else np.asarray(np.add.reduceat(law, np.arange(0, len(law), each)))


def amplified(epsilon: float, rate: float) -> float:
    """ln(1 + q(e^ε - 1)), rounded up: the amplification lemma for Poisson sampling, add/remove (Balle et al. 2018).

    >>> round(amplified(1.0, 0.01), 6)
    0.017037
    """
    if rate == 0:
        return 0.0
    if epsilon > 700:
        value = float(np.logaddexp(math.log1p(-rate) if rate < 1 else -math.inf, math.log(rate) + epsilon))
    else:
        value = math.log1p(rate * math.expm1(epsilon))
    return value * (1 + 8 * ROUND)


def _either_side(sigma: float, half: float, rate: float, group: int = 1) -> Loss:
    """(1-q)N(0) + qN(h) against (1-q)N(0) + qN(-h), or the same of several records that all move."""
    weights = binomial(group, rate)
    up, down = ({sign * half * j: w for j, w in enumerate(weights)} for sign in (1, -1))
    return MixtureLoss(sigma, up, down)


def check_stated(sampled: Mechanism) -> None:
    """An error where what is sampled states its guarantee for adjacencies under which sampling it proves nothing."""
    if not sampled.adjacencies():
        stated = " or ".join(sampled.mechanism.adjacencies())  # type: ignore[attr-defined]
        raise AdjacencyError(
            f"{sampled!r} has no price under any adjacency. Reason: {sampled.advice(stated)}. "
            "See: tacit explain adjacency"
        )


def wrap_one(sampled: Any) -> None:
    inner = sampled.mechanism
    if not isinstance(inner, Mechanism) or isinstance(inner, Composed):
        raise AccountingError(f"a sampler wraps one mechanism, not {inner!r}; compose after sampling")
    inherit_unit(sampled, inner)
