"""What will a run do to the data, and what does that cost? The frozen description of a training run.

A :class:`Plan` is fixed before the first step: the sampler, the noise and the clip norm of each step, the number of
steps. ``plan.mechanism`` is what the accountant prices, the ledger charges and the card shows, and the run takes its
noise and its batches from the same object.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tacit import accounting as acc
from tacit.accounting.correlated import INDEPENDENT, Correlation, Workload, choose_bands
from tacit.accounting.poisson import Accumulated
from tacit.noise.stream import UNRESOLVED_PAIR
from tacit.noise.tensor import GENERATOR, tail_delta
from tacit.sgd.correlation import Banded, BandedInverse, NoiseKind
from tacit.sgd.release import AdaptiveClipping
from tacit.sgd.training.optimizers import workload_of
from tacit.sgd.training.sampling import CyclicPoisson, Poisson, Sampler

Schedule = float | Sequence[float] | Callable[[int], float]
#: Bands of noise where more of them cost memory but no privacy.
USUAL_BANDS = 16


def schedule(values: Schedule, steps: int, name: str) -> tuple[float, ...]:
    """Evaluate a schedule for every step, before training, so that nothing in it can depend on the data.

    >>> schedule(lambda step: 1.0 + step, 3, "clip_norm")
    (1.0, 2.0, 3.0)
    """
    if callable(values):
        found = tuple(float(values(step)) for step in range(steps))
    elif isinstance(values, Sequence) and not isinstance(values, str):
        found = tuple(float(v) for v in values)
        if len(found) != steps:
            raise ValueError(f"{name} has {len(found)} values for {steps} steps")
    else:
        found = (float(values),) * steps
    if not all(math.isfinite(v) for v in found):
        raise ValueError(f"{name} must be finite")
    return found


@dataclasses.dataclass(frozen=True)
class Plan:
    """The description of a run. Everything in it is public.

    :class:`Training` makes it; ``training.plan`` is fixed before the first step.

    Args:
        sampler: Who takes part in each step, and the mechanism that this choice is.
        noise: One noise multiplier per step. With adaptive clipping it is that of gradient and count together.
        clip: One clip norm per step.
        delta: The δ of the guarantee; 0 for pure ε-DP.
        adjacency: Which data sets are neighbours: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        unit: The name of what is protected. Default: ``"record"``.
        clipping: How gradients are bounded: ``"flat"`` (default), ``"per_layer"``, ``"automatic"``, or patterns and
            bounds as JSON.
        kind: The noise, ``"gaussian"`` (default) or ``"laplace"``.
        adaptive: How the clip norm follows the data, if it does. Default: it does not.
        records_per_unit: The most records of a unit in a step. Default: 1.
        elements: How many noise numbers a step draws. Default: 0.
        tail: What the unresolved tail of the noise generator adds to δ. Default: 0.
        size_given: Whether the number of units was given in advance rather than counted. Default: ``False``.
        earlier: What was spent on the weights that the run starts from, if it is a fork. Default: nothing.
        correlation: How the noise of steps hangs together. Default: it is independent.
        kept: The most rows of a unit in the run, where rows are drawn and not units. Default: 1.

    Raises:
        ValueError: If noise and clip norms differ in number, there is no step, a value is out of range, or the noise
            hangs together over more steps than lie between two in which a unit takes part.

    Example:
        >>> from tacit.sgd.training.sampling import Poisson
        >>> plan = Plan(Poisson(1000, 100), (1.0,) * 50, (1.0,) * 50, delta=1e-5)
        >>> plan.mechanism
        PoissonSampled(Gaussian(1), rate=0.1) * 50
    """

    sampler: Sampler
    noise: tuple[float, ...]
    clip: tuple[float, ...]
    delta: float
    adjacency: str = "add-remove"
    unit: str = "record"
    clipping: str = "flat"
    kind: str = "gaussian"
    adaptive: AdaptiveClipping | None = None
    records_per_unit: int = 1
    elements: int = 0
    tail: float = 0.0
    size_given: bool = False
    earlier: acc.Mechanism | None = None
    correlation: Correlation = INDEPENDENT
    kept: int = 1

    def __post_init__(self) -> None:
        if len(self.noise) != len(self.clip):
            raise ValueError(f"noise has {len(self.noise)} values and clip {len(self.clip)}: give one of each per step")
        if not self.noise:
            raise ValueError("a run must have at least one step")
        if min(self.noise) < 0:
            raise ValueError("noise_multiplier must not be negative")
        if min(self.clip) <= 0:
            raise ValueError(f"clip_norm must be positive, not {min(self.clip):g}")
        if self.sampler.name == "truncated" and self.size_given and self.adjacency != "add-remove":
            raise ValueError(
                f"sampler='truncated' under {self.adjacency} is priced for exactly as many units as there are, which "
                "is then public: leave size= out, or choose adjacency='add-remove', for which size= may be more"
            )
        if self.kind not in ("gaussian", "laplace"):
            raise ValueError(f"mechanism must be 'gaussian' or 'laplace', not {self.kind!r}")
        if self.correlation != INDEPENDENT:
            self._check_correlation()
        usual = type(self.sampler) is Poisson and self.kind == "gaussian" and self.correlation == INDEPENDENT
        if self.kept > 1 and not usual:
            raise ValueError(
                "draw='rows' with several rows of a unit is priced for Poisson sampling and independent Gaussian "
                "noise: use sampler='poisson', or draw='units'"
            )

    def _check_correlation(self) -> None:
        """Refuse what the price of correlated noise does not cover."""
        one = len(set(self.noise)) == len(set(self.clip)) == 1
        if self.kind != "gaussian" or self.adaptive is not None or not one:
            raise ValueError(
                "correlated noise needs Gaussian noise of one noise multiplier and one clip norm for all steps: leave "
                "out adaptive=, noise_schedule= and schedules"
            )
        if self.correlation.inverse and self.sampler.name != "chunks":
            raise ValueError("BandedInverse has no amplification by sampling: use sampler='chunks', or Banded()")
        if not self.correlation.inverse and self.correlation.bands > self.sampler.apart:
            raise ValueError(
                f"noise of {self.correlation.bands} bands needs as many steps between two in which a unit takes part; "
                f"sampler={self.sampler.name!r} has {self.sampler.apart}. Use sampler='poisson' (which becomes "
                "CyclicPoisson) or 'chunks'"
            )
        if not self.correlation.inverse and self.correlation.squared_sensitivity(self.steps) > 1 + 1e-9:
            raise ValueError("the columns of a banded matrix must have norm 1 or less: let Banded make them")

    @functools.cached_property
    def moved(self) -> float:
        """What a unit of clip norm 1 moves, seen through C, in units of what the price of a step or a run assumes."""
        if not self.correlation.inverse:
            return 1.0  # columns do not overlap and have norm at most 1
        passes = -(-self.steps // self.sampler.apart)
        return math.sqrt(self.correlation.squared_sensitivity(self.steps, passes, self.sampler.apart)) * (1 + 1e-15)

    @property
    def steps(self) -> int:
        """How many steps the run is planned for."""
        return len(self.noise)

    def prefix(self, steps: int) -> acc.Mechanism:
        """The mechanism of the first steps.

        Args:
            steps: How many steps.

        Returns:
            What these steps do to the data, with the tail of the noise generator over the whole run.
        """
        kind = acc.Gaussian if self.kind == "gaussian" else acc.Laplace
        made = {z: kind(z, unit=self.unit) for z in set(self.noise[:steps])}
        # noise that hangs together over all steps is scaled so that the whole run is one Gaussian mechanism
        counted = self.noise[: 1 if self.correlation.inverse and steps else steps]
        mechanism = self.sampler.describe([made[z] for z in counted]) if steps else acc.nothing(self.unit)
        if self.kept > 1 and steps:
            parts = [(Accumulated(part, self.kept), n) for part, n in mechanism.parts()]  # type: ignore[arg-type]
            mechanism = acc.Composed(tuple(parts), unit=self.unit)
        if self.tail and steps:
            mechanism = mechanism + acc.ApproxDP(0.0, self.tail, unit=self.unit)
        return mechanism

    @functools.cached_property
    def mechanism(self) -> acc.Mechanism:
        """The mechanism of the whole run: what the accountant prices and the ledger charges."""
        return self.prefix(self.steps)

    def spent(self, steps: int | None = None) -> acc.Mechanism:
        """The mechanism of this run and of those it was forked from.

        Args:
            steps: How many steps of this run. Default: all of them.

        Returns:
            What all of it does to the data.
        """
        spent = self.mechanism if steps is None else self.prefix(steps)
        return spent if self.earlier is None else self.earlier + spent

    def price(self, steps: int | None = None) -> acc.Bound:
        """The price of this run and of those it was forked from.

        Args:
            steps: How many steps of this run. Default: all of them.

        Returns:
            Certified bounds of ε at the plan's δ and adjacency.
        """
        spent = self.spent(steps)
        if self.delta == 0:
            return _pure(spent, self.adjacency)
        return acc.epsilon(spent, self.delta, adjacency=self.adjacency)

    def _repr_html_(self) -> str:
        """The plan in a notebook: its price with the trade-off curve, and what is known before the first step."""
        bound = self.stated.price()
        said = {"steps": self.steps, "sampler": self.sampler.words}
        return acc.Privacy(bound, self.spent(), said).to_html()

    @property
    def counted(self) -> bool:
        """Whether the number of units counts as public: it was counted, or the sampler reveals it."""
        return self.sampler.exact or not self.size_given

    @functools.cached_property
    def stated(self) -> Plan:
        """The plan under the adjacency that its guarantee states (:func:`tacit.accounting.stated_adjacency`)."""
        return dataclasses.replace(self, adjacency=acc.stated_adjacency(self.adjacency, counted=self.counted))

    @functools.cached_property
    def gradient_noise(self) -> tuple[float, ...]:
        """The multiplier of the gradient's own noise at each step."""
        if self.correlation.inverse:
            return tuple(z * self.moved for z in self.noise)
        return tuple(map(self.adaptive.gradient_noise, self.noise)) if self.adaptive else self.noise

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the card and the checkpoint; repeated values are written once, with their count."""
        return {
            "sampler": self.sampler.to_dict(),
            "steps": self.steps,
            "noise": _runs(self.noise),
            "clip": _runs(self.clip),
            "delta": self.delta,
            "adjacency": self.adjacency,
            "unit": self.unit,
            "clipping": self.clipping,
            "kind": self.kind,
            "adaptive": dataclasses.asdict(self.adaptive) if self.adaptive else None,
            "records_per_unit": self.records_per_unit,
            "size": "given" if self.size_given else "number of records treated as public",
            "divisor": self.sampler.divisor,
            "generator": self.generator,
            "tail_delta": self.tail,
            "elements": self.elements,
            "mechanism": self.mechanism.to_dict(),
            "earlier": self.earlier.to_dict() if self.earlier is not None else None,
            "correlation": dataclasses.asdict(self.correlation) if self.correlation != INDEPENDENT else None,
            **({"kept": self.kept} if self.kept > 1 else {}),
        }

    @property
    def generator(self) -> str:
        """Where the noise comes from, for the card."""
        return generator_of(self.kind, self.correlation)

    def digest(self) -> str:
        """A digest of the whole description: equal for equal plans only."""
        text = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def generator_of(kind: str, correlation: Correlation) -> str:
    """Where noise comes from and how it hangs together, in words."""
    if correlation != INDEPENDENT:
        how = "a banded inverse" if correlation.inverse else "a banded matrix"
        return f"{GENERATOR}, correlated over {correlation.bands} steps by {how}"
    return GENERATOR if kind == "gaussian" else "exact Laplace on a grid, bits from ChaCha12"


def size_in_words(unit: str, *, given: bool) -> str:
    """What a guarantee says about the number of units."""
    return "given in advance" if given else f"number of {unit}s treated as public"


def correlated(
    noise: NoiseKind | None,
    sampler: Sampler,
    steps: int,
    adjacency: str,
    target: Any,
    optimizer: torch.optim.Optimizer,
    scheduler: Any = None,
) -> tuple[Sampler, Correlation]:
    """The sampler and the correlation of a run: what was asked for, with what was left open chosen by public numbers.

    >>> from types import SimpleNamespace
    >>> target, weight = SimpleNamespace(epsilon=2.0, delta=1e-5), torch.nn.Parameter(torch.ones(1))
    >>> optimizer = torch.optim.SGD([weight], lr=0.1)
    >>> sampler, found = correlated(Banded(), Poisson(50_000, 500), 2000, "zero-out", target, optimizer)
    >>> sampler.groups, found.bands
    (8, 8)
    """
    if noise is None:
        return sampler, INDEPENDENT
    workload = workload_of(optimizer, scheduler, steps)
    if isinstance(noise, BandedInverse):
        return sampler, noise.correlation(steps, workload)
    if noise.bands is None:
        noise = Banded(bands=_bands_for(sampler, steps, adjacency, target, workload))
    assert noise.bands is not None
    if noise.bands > 1 and type(sampler) is Poisson:
        sampler = CyclicPoisson(sampler.size, sampler.batch_size, noise.bands)
    return sampler, noise.correlation(steps, workload)


def _bands_for(sampler: Sampler, steps: int, adjacency: str, target: Any, workload: Workload) -> int:
    if type(sampler) is not Poisson:
        return min(sampler.apart, steps, USUAL_BANDS)  # the price does not depend on them
    if target.epsilon is None:
        raise ValueError("Banded() chooses its bands for an epsilon: give epsilon=, or the number, Banded(bands=8)")
    size, batch = sampler.size, sampler.batch_size
    found = choose_bands(
        size, batch, steps, epsilon=target.epsilon, delta=target.delta, adjacency=adjacency, workload=workload
    )
    return found[0].bands


def make_plan(
    sampler: Sampler,
    *,
    steps: int,
    epsilon: float | None,
    noise_multiplier: Schedule | None,
    noise_schedule: Schedule = 1.0,
    clip_norm: Schedule,
    delta: float,
    adjacency: str,
    elements: int,
    adaptive: AdaptiveClipping | None = None,
    **rest: Any,
) -> Plan:
    """A plan that costs at most ``epsilon``, or one with the noise that is given.

    ``noise_schedule`` gives the noise of each step relative to the multiplier that is sought or given.
    """
    shape = schedule(noise_schedule, steps, "noise_schedule")
    if min(shape) <= 0:
        raise ValueError("noise_schedule is relative to the noise multiplier: its values must be positive")
    clip = schedule(clip_norm, steps, "clip_norm")
    blank = Plan(sampler, (1.0,) * steps, clip, delta, adjacency, elements=elements, adaptive=adaptive, **rest)
    gaussian = blank.kind == "gaussian"

    if noise_multiplier is not None:
        base = schedule(noise_multiplier, steps, "noise_multiplier")
        plan = dataclasses.replace(blank, noise=tuple(a * b for a, b in zip(base, shape, strict=True)))
        if gaussian and elements:
            plan = _with_tail(plan)
    else:
        assert epsilon is not None
        claimed = epsilon

        def planned(noise: float) -> Plan:
            plan = dataclasses.replace(blank, noise=tuple(noise * f for f in shape))
            return dataclasses.replace(plan, tail=_tail(plan, claimed)) if gaussian else plan

        def family(noise: float) -> acc.Mechanism:
            return planned(noise).mechanism

        if delta > 0:
            noise = acc.calibrate(family, epsilon=epsilon, delta=delta, adjacency=adjacency)
        else:
            noise = _calibrate_pure(family, epsilon, adjacency)
        plan = planned(noise)
    if adaptive is not None:
        for z in set(plan.noise):
            adaptive.gradient_noise(z)
    return plan


def generator_delta(noise: Sequence[float], elements: int, shift: float) -> float:
    """What the part of the tail that the noise generator does not resolve adds to δ, over all steps.

    A pair of noise numbers is resolved unless its radius is above a = √(160 ln 2), which has probability p = 2⁻⁸⁰
    (docs/explanation/tensor-noise.md). Write P, Q for the ideal outputs of a step on neighbours, given which other
    units take part, P', Q' for the real ones, and R for the outputs in which no pair lies further than a from any value
    that Q can have before noise. Then P'(S) ≤ P(S) + mp for m pairs, and Q'(S) ≥ Q(S ∩ R), so that
    P'(S) - e^ε Q'(S) ≤ δ(ε) + mp + P(Rᶜ). The hockey-stick divergence is jointly convex, so this holds for the sampled
    step as well, and a pair with an additional mass at infinity dominates it, which composes.

    The values before noise lie at most s = ``shift`` / noise multiplier apart. A pair that is moved by v leaves the
    radius a with probability at most p e^{av}. Over pairs with Σv² ≤ s² these add up to at most
    p·(m + 1.72·a·s·√m + max(1.72(as)², e^{as})): (e^x - 1)/x ≤ 1.72 where x = av ≤ 1, and where it is above,
    (e^x - 1)/x² is at most the larger of its ends. Q has at most two values given the others: twice that.

    >>> 0 < generator_delta([1.0] * 1000, 26_000, 1.0) < 1e-15
    True
    """
    pairs = elements  # at most: two numbers share a pair
    radius = math.sqrt(160 * math.log(2))
    total = 0.0
    counts: dict[float, int] = {}
    for z in noise:
        counts[z] = counts.get(z, 0) + 1
    for z, times in counts.items():
        if z <= 0:
            return 1.0
        x = radius * shift / z
        if x > 600 or shift / z >= radius:
            return 1.0
        moved = pairs + 1.72 * x * math.sqrt(pairs) + max(1.72 * x * x, math.exp(x))
        total += times * UNRESOLVED_PAIR * (pairs + 2 * moved) * (1 + 1e-9)
    return min(1.0, total)


def _tail(plan: Plan, claimed: float) -> float:
    """The smaller of two bounds on what the generator's tail adds to δ at the ε that is claimed."""
    shift = 2.0 if plan.adjacency == "replace-one" or plan.sampler.name == "fixed" else float(plan.kept)
    return min(generator_delta(plan.noise, plan.elements, shift), tail_delta(plan.steps * plan.elements, claimed))


def _with_tail(plan: Plan) -> Plan:
    """The plan with what the tail adds to δ at the ε that is then claimed."""
    claimed = plan.price().upper
    for _ in range(20):
        if math.isinf(claimed):
            return plan  # nothing is claimed
        plan = dataclasses.replace(plan, tail=_tail(plan, claimed))
        again = plan.price().upper
        if again <= claimed:
            return plan
        claimed = again * (1 + 1e-9)
    return dataclasses.replace(plan, tail=1.0)


def _pure(mechanism: acc.Mechanism, adjacency: str) -> acc.Bound:
    """ε at δ = 0: the largest privacy loss there is, which composes by adding up.

    >>> _pure(acc.Laplace(10.0) * 5, "add-remove").upper
    0.5...
    """
    if adjacency not in mechanism.adjacencies():
        raise acc.AdjacencyError(f"{mechanism!r} states no guarantee under {adjacency!r}")
    total = 0.0
    for part, times in mechanism.parts():
        losses = [part.pair(adjacency, direction) for direction in ("remove", "add")]
        total += times * max(math.inf if loss is None or loss.infinity else loss.supremum for loss in losses)
    # Rounded up: each product and sum may have lost half a unit.
    upper = total * (1 + 1e-12)
    return acc.Bound(total * (1 - 1e-12), upper, given=0.0, adjacency=adjacency, unit=mechanism.unit)


def _calibrate_pure(family: Callable[[float], acc.Mechanism], epsilon: float, adjacency: str) -> float:
    """The least Laplace noise at which the largest loss is at most ``epsilon``."""
    low, high = 1e-6, 1.0
    while _pure(family(high), adjacency).upper > epsilon:
        low, high = high, 2 * high
        if high > 1e12:
            raise ValueError(f"no amount of noise reaches ε={epsilon:g} at δ=0: choose a larger epsilon or fewer steps")
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        if _pure(family(middle), adjacency).upper > epsilon:
            low = middle
        else:
            high = middle
    return high


def _runs(values: Sequence[float]) -> list[list[float]]:
    """[value, how often] for stretches of equal values."""
    found: list[list[float]] = []
    for value in values:
        if found and found[-1][0] == value:
            found[-1][1] += 1
        else:
            found.append([value, 1])
    return found
