"""How is a clipped sum released? With noise, divided by a public number. This is the only place that releases one.

:class:`~tacit.sgd.Training` and other people's loops (:class:`~tacit.sgd.hooked.loop.Loop`) both come here, and so does
the adaptive clip norm. Everything here is a function of a secret key, the step and the sums.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from tacit.accounting.correlated import INDEPENDENT, Correlation
from tacit.ledger import OperatorView
from tacit.noise.keys import Key
from tacit.noise.tensor import add_laplace_many_, add_normal_many_, normal
from tacit.sgd.sharding.shards import ShardedParameters, add_noise_
from tacit.sgd.torch_compat import foreach_add_, foreach_copy_, foreach_div_, foreach_neg_, foreach_norm

#: The noise of the adaptive clip norm's count; an integer cannot be the name of a parameter.
COUNT = 0
#: How far the adaptive clip norm may move from the first one. No data decide it, and it stays a usable number.
FURTHEST = 1e6


@dataclasses.dataclass(frozen=True)
class ReleaseNoise:
    """The noise of one release: its ``scale`` (Gaussian: standard deviation) on the sum, which is then divided.

    ``growth`` is the variance of correlated noise in units of that of independent noise of this scale.

    >>> ReleaseNoise(2.0, divisor=4.0).variance, ReleaseNoise(2.0, divisor=4.0, mechanism="laplace").variance
    (0.25, 0.5)
    """

    scale: float
    divisor: float
    mechanism: str = "gaussian"
    growth: float = 1.0

    @property
    def variance(self) -> float:
        """The variance of the noise in each coordinate of the released gradient, a public number."""
        return (2 if self.mechanism == "laplace" else self.growth) * (self.scale / self.divisor) ** 2


def noisy_gradients(
    sums: dict[str, Tensor],
    parameters: Mapping[str, Tensor],
    key: Key,
    step: int,
    noise: ReleaseNoise,
    shards: ShardedParameters | None = None,
    earlier: EarlierNoise | None = None,
) -> dict[str, Tensor]:
    """Gradients for the optimizer: the sums with noise, divided, in the types of the parameters.

    The sums are used up: they hold these gradients, or what nobody may see. ``shards`` says which piece of each sum
    this rank holds, where the model is spread over ranks, and ``earlier`` which noise of earlier steps is taken back.

    Guarantee: the Gaussian mechanism on sums of L2 sensitivity C (the Laplace mechanism on sums of L1 sensitivity C)
    with noise multiplier ``noise.scale`` / C, for the adjacency for which C was stated; the rest is post-processing.
    Each (key, step) serves one release. With ``earlier`` the guarantee is that of all steps together, as
    :class:`tacit.sgd.training.plan.Plan` states it.

    >>> sums = {"weight": torch.zeros(3)}
    >>> found = noisy_gradients(sums, {"weight": torch.zeros(3)}, Key(bytes(32)), 0, ReleaseNoise(2.0, divisor=4.0))
    >>> bool((found["weight"] == normal(Key(bytes(32)), 0, "weight", 3) * 2 / 4).all())
    True
    """
    # The real and the imaginary part of a complex number are two coordinates.
    sums = {name: torch.view_as_real(s) if s.is_complex() else s for name, s in sums.items()}
    values = list(sums.values())
    found = {name: _room(sums[name], p.dtype.to_real()) for name, p in parameters.items()}
    if noise.scale > 0 and earlier is not None:
        earlier.add_(sums, key, step, noise.scale, shards)
    elif noise.scale > 0 and noise.mechanism == "gaussian" and shards is None:
        targets = [found[name] for name in sums]
        add_normal_many_(values, key, step, list(sums), noise.scale, divisor=noise.divisor, into=targets)
        return found
    elif noise.scale > 0 and shards is not None:
        add_noise_(shards, sums, key, step, noise.scale)
    elif noise.scale > 0:
        add_laplace_many_(values, key, step, noise.scale)
    foreach_div_(values, noise.divisor)
    cast = [name for name in found if found[name] is not sums[name]]
    if cast:
        foreach_copy_([found[name] for name in cast], [sums[name] for name in cast])
    return found if shards is None else {n: shards.gradient(n, g) for n, g in found.items()}


class EarlierNoise:
    """Noise that takes back noise of earlier steps: x_t of C x = z, as a function of (key, step) alone.

    For a banded C, x_t = (z_t - Σ_j c_j x_{t-j})/c_0: the last x are kept, in memory only, because they reveal what
    earlier releases hid. A resumed run computes them again from the key. For a banded inverse, x_t = Σ_j a_j z_{t-j} is
    drawn anew from the key, and nothing is kept.

    >>> one, key = EarlierNoise(Correlation((0.8, 0.6))), Key(bytes(32))
    >>> sums = [{"w": torch.zeros(3)}, {"w": torch.zeros(3)}]
    >>> for step, some in enumerate(sums):
    ...     one.add_(some, key, step, 1.0, None)
    >>> z = normal(key, 1, "w", 3)  # C x is independent noise
    >>> bool(torch.allclose(0.8 * sums[1]["w"] + 0.6 * sums[0]["w"], z, atol=1e-6))
    True
    """

    def __init__(self, correlation: Correlation, steps: int = 1) -> None:
        self.correlation = correlation
        #: By how much the variance of x_t is larger than that of z_t, at each step.
        self.growth: list[float] = correlation.growth(steps).tolist()
        self._kept: dict[int, dict[str, Tensor]] = {}
        self._key: Key | None = None

    @classmethod
    def of(cls, correlation: Correlation, steps: int) -> EarlierNoise | None:
        """The noise of a run; None where each step's is its own."""
        return None if correlation == INDEPENDENT else cls(correlation, steps)

    def add_(
        self, sums: dict[str, Tensor], key: Key, step: int, scale: float, shards: ShardedParameters | None
    ) -> None:
        """Add ``scale`` times x_t to the sums, in place. A step may be asked for again."""
        if self.correlation.inverse:
            self._draw_again(sums, key, step, scale, shards)
            return
        if self._key is not key:
            self._key, self._kept = key, {}
        have = max((s for s in self._kept if s <= step), default=-1)
        for number in range(have + (have < step), step + 1):  # all steps from the first, where nothing is kept
            self._make(number, sums, key, shards)
        foreach_add_(list(sums.values()), [self._kept[step][name] for name in sums], alpha=scale)

    def _make(self, step: int, like: dict[str, Tensor], key: Key, shards: ShardedParameters | None) -> None:
        if step in self._kept:
            return
        first, *rest = self.correlation.coefficients
        found = {name: torch.zeros_like(value) for name, value in like.items()}
        for j, c in enumerate(rest[:step], 1):
            foreach_add_(list(found.values()), [self._kept[step - j][name] for name in found], alpha=-c / first)
        _add_normal(found, key, step, 1 / first, shards)
        self._kept[step] = found
        self._kept.pop(step - len(rest), None)

    def _draw_again(
        self, sums: dict[str, Tensor], key: Key, step: int, scale: float, shards: ShardedParameters | None
    ) -> None:
        numbers = list(enumerate(self.correlation.coefficients[: step + 1]))
        values = list(sums.values())
        for sign in (-1.0, 1.0):  # a scale has no sign: what is taken away is added to the negative
            if sign < 0:
                foreach_neg_(values)
            for j, a in numbers:
                if a * sign > 0:
                    _add_normal(sums, key, step - j, abs(a) * scale, shards)
            if sign < 0:
                foreach_neg_(values)


def _add_normal(sums: dict[str, Tensor], key: Key, step: int, scale: float, shards: ShardedParameters | None) -> None:
    if shards is not None:
        add_noise_(shards, sums, key, step, scale)
    else:
        add_normal_many_(list(sums.values()), key, step, list(sums), scale)


def hand_over(
    gradients: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    noise: ReleaseNoise,
) -> None:
    """Set ``p.grad``, and tell an optimizer that asks for it (:class:`~tacit.sgd.DPAdam`) how noisy it is."""
    for name, p in parameters.items():
        p.grad = torch.view_as_complex(gradients[name]) if p.is_complex() else gradients[name]
    if hasattr(optimizer, "noise_variance"):
        optimizer.noise_variance = noise.variance


def _room(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor itself, or, where it has another type, room for it in this one."""
    return value if value.dtype == dtype else torch.empty_like(value, dtype=dtype)


# -- the clip norm that follows a quantile -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class AdaptiveClipping:
    """Let the clip norm follow a quantile of the gradient norms, by a noisy count (Andrew et al. 2021).

    Each step counts the norms below the clip norm, with Gaussian noise, and multiplies the clip norm by
    exp(-``rate`` · (noisy fraction - ``quantile``)). It stays within a factor of a million of the first clip norm.

    Guarantee:
        The count, centred by ½ for each participant, has sensitivity ½ for adding or removing one unit: noise
        multiplier 2·``count_noise``. Sum and count together are one Gaussian mechanism of multiplier z with
        z⁻² = z_gradient⁻² + (2·count_noise)⁻² (theorem 1 there). z is what the plan states and what is priced; the
        gradient gets the larger z_gradient.

    Args:
        quantile: The share of gradient norms that should lie below the clip norm, between 0 and 1. Default: 0.5.
        rate: How fast the clip norm moves; positive. Default: 0.2.
        count_noise: The standard deviation of the noise on the count. Default: 0, which stands for a twentieth of the
            batch size.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> AdaptiveClipping(count_noise=10.0).gradient_noise(1.0)
        1.00125...
    """

    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float = 0.0

    def __post_init__(self) -> None:
        for name in ("quantile", "rate", "count_noise"):  # numpy's have no place in a plan
            object.__setattr__(self, name, float(getattr(self, name)))
        if not 0 < self.quantile < 1:
            raise ValueError(f"quantile must lie strictly between 0 and 1, not {self.quantile}")
        if not (self.rate > 0 and math.isfinite(self.rate)):
            raise ValueError(f"rate must be positive and finite, not {self.rate}")
        if not (self.count_noise >= 0 and math.isfinite(self.count_noise)):
            raise ValueError(f"count_noise must be finite and not negative, not {self.count_noise}")

    def gradient_noise(self, noise_multiplier: float) -> float:
        """The noise multiplier of the gradient alone.

        Args:
            noise_multiplier: The multiplier that gradient and count have together.

        Returns:
            The multiplier of the gradient's own noise, a little larger.

        Raises:
            ValueError: If ``count_noise`` is so small that the count alone would cost more than both may.
        """
        if noise_multiplier == 0:
            return 0.0
        rest = noise_multiplier**-2 - (2 * self.count_noise) ** -2
        if rest <= 0:
            raise ValueError(
                f"the count alone (count_noise={self.count_noise:g}) costs more than noise_multiplier="
                f"{noise_multiplier:g} allows: choose count_noise above {noise_multiplier / 2:g}"
            )
        # One unit up, so that rounding never makes the noise smaller than what is priced.
        return math.nextafter(rest**-0.5 * (1 + 4e-16), math.inf)


def clip_range(first: float, low: float | None = None, high: float | None = None) -> tuple[float, float]:
    """The range of an adaptive clip norm: within a factor of a million of the first one, unless it is given.

    >>> clip_range(0.5), clip_range(0.5, high=2.0)
    ((5e-07, 500000.0), (5e-07, 2.0))
    """
    near = min(first / FURTHEST, high or math.inf) if low is None else low
    return near, max(first * FURTHEST, near) if high is None else high


def count_inside(norms: Tensor, bound: float, mask: Tensor | None = None) -> Tensor:
    """How many norms lie inside the clip norm, less ½ for each participant: sensitivity ½ for adding or removing one.

    >>> float(count_inside(torch.tensor([0.5, 2.0, 3.0]), 1.0, torch.tensor([True, True, False])))
    0.0
    """
    centred = (norms <= bound).float() - 0.5
    return (centred if mask is None else centred * mask).sum()


def adapted(
    adaptive: AdaptiveClipping,
    clip_norm: float,
    count: Tensor | float,
    key: Key,
    step: int,
    *,
    divisor: float,
    within: tuple[float, float],
    noisy: bool,
) -> tuple[float, float]:
    """The next clip norm and the noisy fraction of norms inside this one, from :func:`count_inside`.

    ``divisor`` is the expected number of participants; with ``noisy=False`` the whole run has no noise and no ε.

    Guarantee: the Gaussian mechanism of standard deviation ``adaptive.count_noise`` on a count of sensitivity ½ (add or
    remove one unit), which :meth:`AdaptiveClipping.gradient_noise` includes in the price of the step; the rest is
    post-processing of that and of public numbers.
    """
    noise = float(normal(key, step, COUNT, 1)) * adaptive.count_noise if noisy else 0.0
    fraction = (float(count) + noise) / divisor + 0.5
    factor = torch.exp(torch.tensor(-adaptive.rate * (fraction - adaptive.quantile), dtype=torch.float64))
    return min(max(clip_norm * float(factor), within[0]), within[1]), fraction


# -- what can be told of a release -------------------------------------------------------------------------------------


def norms_of(gradients: list[Tensor]) -> Sequence[Tensor]:
    """The norm of each released gradient, computed in 32 bits or more; no GPU is waited for."""
    if any(g.element_size() < 4 for g in gradients):
        return [torch.linalg.vector_norm(g, dtype=torch.promote_types(g.dtype, torch.float32)) for g in gradients]
    return foreach_norm(gradients)


def signal_to_noise(norms: Iterable[Tensor], elements: int, variance: float) -> float | None:
    """An estimate of |clipped sum| / |noise| from the norms of released gradients alone: it may leave with them.

    The noise has squared norm d·s² for d numbers of variance s², up to its own fluctuation; what the noisy gradient has
    beyond that is signal. None where there is no noise.

    >>> signal_to_noise([torch.tensor(2.0)], 1, 1.0)
    1.73...
    """
    if variance == 0:
        return None
    total = sum(float(norm) ** 2 for norm in norms)
    return math.sqrt(max(0.0, total / (elements * variance) - 1.0))


def diagnostics(step: int, norms: Tensor, clipped: Tensor, losses: Tensor | None = None) -> OperatorView:
    """What a step did to these examples: for the operator, **not** covered by the guarantee."""
    if not len(norms):
        return OperatorView(step=step, records=0)
    return OperatorView(
        step=step,
        records=len(norms),
        **({} if losses is None else {"loss": float(losses.mean())}),
        median_norm=float(norms.median()),
        clipped_fraction=float(clipped.float().mean()),
    )
