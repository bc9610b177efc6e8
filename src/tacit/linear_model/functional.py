"""What does the functional mechanism give? Laplace noise on the coefficients of a quadratic loss: pure ε.

The loss θᵀAθ - 2bᵀθ has A = Σxxᵀ and b = Σyx. A gets the budget ε1 and -2b the budget ε2; then the noisy loss is
minimised (Zhang et al. 2012). The published sensitivities, 2D² and 4D, are kept as ``sensitivity="textbook"``; the
exact ones, on the upper triangle alone, are the default.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit import accounting as acc
from tacit.linear_model import releases
from tacit.linear_model.moments import ROUNDING
from tacit.linear_model.sensitivity import Shape
from tacit.linear_model.solve import Noise

Floats = npt.NDArray[np.float64]

SENSITIVITIES = ("exact", "textbook")
SPLITS = ("variance", "equal", "sensitivity")


@dataclasses.dataclass(frozen=True)
class FunctionalPlan:
    """The two Laplace releases: the scales of their noise, and what both together cost.

    ``added`` and ``replaced`` are the L1 sensitivities of (A, -2b), each divided by its scale, for adding a row and for
    replacing one: the pure ε under either adjacency. ``epsilons`` are the budgets as they were divided.
    """

    scales: tuple[float, float]
    added: float
    replaced: float
    epsilons: tuple[float, float]
    width: int

    @property
    def noises(self) -> Noise:
        """Standard deviations of the noise on an entry of A and of b."""
        one, two = self.scales
        return Noise(math.sqrt(2) * one, math.sqrt(2) * two / 2)

    def mechanism(self, unit: str) -> acc.Mechanism:
        """What is priced and charged: one Laplace release of scale 1 of the pair."""
        return acc.Laplace(1 / self.added, replace=self.replaced / self.added, unit=unit)

    def release(self, source: Any) -> tuple[Floats, Floats]:
        """Noisy A and b.

        Guarantee: ``added``-DP for adding or removing a row, ``replaced``-DP for replacing one; L1 sensitivities are
        those of the upper triangle of A and of -2b, with room for the rounding of the sums.
        """
        size = self.width
        exact = releases.moments(source, target=True)
        one, two = self.scales
        gram = releases.upper_laplace(exact[:size, :size], one)
        linear = releases.vector_laplace(-2 * exact[:size, size], two)
        return gram, linear / -2


def plan(
    shape: Shape,
    width: int,
    epsilon: float,
    adjacency: str,
    *,
    sensitivity: str = "exact",
    split: Any = "variance",
    guess: float = 1.0,
) -> FunctionalPlan:
    """Scales of the noise of a functional mechanism with ``width`` coefficients that costs ``epsilon`` under
    ``adjacency``.

    ``split`` is ``"variance"`` (ε1/ε2 = (2|θ|Δ1/Δ2)^(2/3), which minimises the variance of the gradient at a public
    guess of |θ|), ``"equal"``, ``"sensitivity"`` (ε1/ε2 = Δ1/Δ2), the fraction ε1/ε, or the pair (ε1, ε2). A pair is
    taken as it is: scales Δ1/ε1 and Δ2/ε2. Otherwise both scales are made smaller together until the *joint*
    sensitivity costs ε.

    >>> plan(Shape(scalars=14), 15, 1.0, "replace-one").epsilons
    (0.6759..., 0.3240...)
    """
    if sensitivity not in SENSITIVITIES:
        raise ValueError(f"sensitivity must be 'exact' or 'textbook', not {sensitivity!r}")
    room = width * (width + 1) / 2 * ROUNDING, 2 * width * ROUNDING
    if sensitivity == "exact":
        sizes = {a: (shape.quadratic(a) + room[0], shape.linear(a) + room[1]) for a in ("add-remove", "replace-one")}
    else:
        rows, size = shape.rows, shape.size
        sizes = {
            "add-remove": (rows * size**2 + room[0], 2 * rows * size + room[1]),
            "replace-one": (2 * rows * size**2 + room[0], 4 * rows * size + room[1]),
        }
    quadratic, linear = sizes["replace-one" if adjacency == "replace-one" else "add-remove"]

    def costs(scales: tuple[float, float]) -> tuple[float, float]:
        both = {a: one / scales[0] + two / scales[1] for a, (one, two) in sizes.items()}
        if sensitivity == "exact":
            more = room[0] / scales[0] + room[1] / scales[1]
            both = {a: min(cost, shape.joint(a, *scales) + more) for a, cost in both.items()}
        return both["add-remove"], both["replace-one"]

    def scales_of(epsilons: tuple[float, float]) -> tuple[float, float]:
        scales = (releases.laplace_scale(quadratic, epsilons[0]), releases.laplace_scale(linear, epsilons[1]))
        if sensitivity == "textbook" or isinstance(split, (tuple, list)):
            return scales
        # Scaling both divides every cost by the same factor.
        cost = costs(scales)[1 if adjacency == "replace-one" else 0]
        factor = cost / epsilon * (1 + 1e-12)
        return (scales[0] * factor, scales[1] * factor)

    epsilons = _split(split, epsilon, quadratic, linear, guess)
    if split == "variance" and sensitivity == "exact" and adjacency == "replace-one":
        # The closed form is for two separate prices; under the joint price the least variance lies close to it.
        parts = [epsilons[0] / epsilon * factor for factor in np.linspace(0.7, 1.3, 121).tolist()]
        tried = [(epsilon * part, epsilon * (1 - part)) for part in parts if part < 1]
        epsilons = min(tried, key=lambda pair: _gradient_variance(scales_of(pair), guess))
    scales = scales_of(epsilons)
    return FunctionalPlan(scales, *costs(scales), epsilons, width)


def _gradient_variance(scales: tuple[float, float], guess: float) -> float:
    """The variance of an entry of the noisy gradient 2Aθ - 2b at |θ| = ``guess``."""
    return 8 * guess**2 * scales[0] ** 2 + 2 * scales[1] ** 2


def _split(split: Any, epsilon: float, quadratic: float, linear: float, guess: float) -> tuple[float, float]:
    if isinstance(split, (tuple, list)):
        if len(split) != 2 or not all(
            isinstance(part, (int, float, np.floating, np.integer)) and part > 0 for part in split
        ):
            raise ValueError(f"split=(ε1, ε2) must be two positive numbers, not {split!r}")
        if not math.isclose(sum(split), epsilon, rel_tol=1e-9):
            raise ValueError(f"split=(ε1, ε2) must add up to epsilon={epsilon:g}, not {sum(split):g}")
        part = split[0] / sum(split)
    elif isinstance(split, str):
        ratios = {
            "variance": (2 * guess * quadratic / linear) ** (2 / 3),
            "equal": 1.0,
            "sensitivity": quadratic / linear,
        }
        if split not in ratios:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, a fraction, or (ε1, ε2), not {split!r}")
        part = ratios[split] / (1 + ratios[split])
    elif isinstance(split, (int, float, np.floating, np.integer)) and not isinstance(split, bool) and 0 < split < 1:
        part = float(split)
    else:
        raise ValueError(f"split, the fraction ε1/ε, must be between 0 and 1, not {split!r}")
    return epsilon * part, epsilon * (1 - part)
