"""How far can one person move a sum over rows? Exact sensitivities of second moments, under each adjacency.

A row is x = (1, features), where a *scalar* feature lies in [-1, 1] and the features of a *block* (the one-hot encoding
of a categorical column) are all 0 but one, which is 1. Nothing else about the data is assumed.
docs/explanation/sensitivity.md has the proofs; tests/linear_model/test_sensitivity.py attacks every number with
neighbouring rows.
"""

from __future__ import annotations

import dataclasses
import math

from tacit.accounting import ADJACENCIES


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is publicly known of every row: how many scalars and blocks it has, and what one person owns of the table.

    ``intercept`` says whether x begins with the constant 1. ``whole`` is False where a row may be absent or be scaled
    down (several rows a person, or weights in [0, 1]): its first entry then is anything in [0, 1]. ``rows`` is the most
    rows that one person owns. ``norm`` is the largest L2 norm of a row's features where a public bound limits it.

    >>> Shape(scalars=14).size, Shape(scalars=2, blocks=3).norm_squared
    (15, 6)
    """

    scalars: int
    blocks: int = 0
    intercept: bool = True
    whole: bool = True
    rows: int = 1
    norm: float | None = None

    @property
    def size(self) -> int:
        """D, the largest L1 norm of a row: the constant, each scalar and each block count one."""
        return self.scalars + self.blocks + self.intercept

    @property
    def norm_squared(self) -> float:
        """The largest squared L2 norm of a row, R²: the same number as :attr:`size`, unless ``norm`` says less."""
        return self.size if self.norm is None else min(float(self.size), self.intercept + self.norm**2)

    # -- Laplace noise: L1 --------------------------------------------------------------------------------------------

    def quadratic(self, adjacency: str, *, triangle: bool = True) -> float:
        """L1 sensitivity of Σxxᵀ: of its upper triangle with the diagonal, or of the full matrix.

        Add/remove: D(D+1)/2, or D². Replace-one, d scalars and the constant: d(d+2)²/(2(d+1)), or D². Exact for rows
        without blocks; with blocks the triangle is exact to within 1/2.

        >>> Shape(scalars=14).quadratic("replace-one"), Shape(scalars=14).quadratic("replace-one", triangle=False)
        (119.46666666666667, 225.0)
        >>> Shape(scalars=14).quadratic("add-remove")
        120.0
        """
        check(adjacency)
        size = self.size
        if adjacency != "replace-one":
            return self.rows * (size * (size + 1) / 2 if triangle else size**2)
        return self.rows * (self._replaced_triangle() if triangle else self._replaced_full())

    def _replaced_triangle(self) -> float:
        d, blocks = self.scalars, self.blocks
        if not blocks:
            if self.intercept and self.whole:
                return d * (d + 2) ** 2 / (2 * (d + 1))
            # The same maximisation without a fixed entry: no more than what adding a row can do.
            return self.size * (self.size + 1) / 2
        if self.whole:
            entries = d + self.intercept
            scalars = 0.0 if d == 0 else entries**2 / 2
            # Each block: 2 on its diagonal, 2 against the constant, 2 for each scalar; 2 for each pair of blocks.
            return blocks * (blocks - 1) + 2 * blocks * (1 + self.intercept + d) + scalars
        return float(self.size * (self.size + 1))  # one row leaves, another comes

    def _replaced_full(self) -> float:
        if not self.blocks:
            return float(self.size**2) if self.size > 1 or not (self.intercept and self.whole) else 0.0
        return 2.0 * self.size**2

    def linear(self, adjacency: str) -> float:
        """L1 sensitivity of -2Σyx with |y| ≤ 1: 2D for add/remove, 4D for replace-one (tight).

        >>> Shape(scalars=14).linear("replace-one")
        60
        """
        check(adjacency)
        return self.rows * (4 if adjacency == "replace-one" else 2) * self.size

    def joint(self, adjacency: str, quadratic_scale: float, linear_scale: float) -> float:
        """L1 sensitivity of both together, each divided by its scale: what one Laplace release of the pair costs.

        For replace-one it is less than the sum of the two: rows that move A the most move -2b by about half of 4D.
        With S = Σ|x+x'|/2 over the scalars, A moves by at most 2(1+S)(d-S) + 2S(1-S/d) and -2b by 4·max(1+S, d-S).

        >>> shape = Shape(scalars=14)
        >>> round(shape.joint("replace-one", 1.0, 1.0), 2), round(shape.quadratic("replace-one") + 60, 2)
        (151.47, 179.47)
        """
        check(adjacency)
        alone = self.quadratic(adjacency) / quadratic_scale + self.linear(adjacency) / linear_scale
        if adjacency != "replace-one" or self.blocks or self.scalars == 0:
            return alone
        # Without a fixed constant the first entry is one more scalar.
        d = self.scalars if self.intercept and self.whole else self.size
        fixed = 1.0 if self.intercept and self.whole else 0.0
        best = 0.0
        for slope, start, low, high in (
            (-4.0, 4.0 * d, 0.0, (d - fixed) / 2),
            (4.0, 4 * fixed, (d - fixed) / 2, float(d)),
        ):
            # (2(fixed+S)(d-S) + 2S(1-S/d))/q + (start + slope·S)/l is concave in S: its vertex, or the nearer end.
            vertex = ((2 * d - 2 * fixed + 2) + slope * quadratic_scale / linear_scale) / (4 * (1 + 1 / d))
            s = min(max(vertex, low), high)
            moved = 2 * (fixed + s) * (d - s) + 2 * s * (1 - s / d)
            best = max(best, moved / quadratic_scale + (start + slope * s) / linear_scale)
        return min(self.rows * best, alone)

    # -- Gaussian noise: L2 -------------------------------------------------------------------------------------------

    def frobenius(self, adjacency: str, target: float = 0.0) -> float:
        """Frobenius sensitivity of Σzzᵀ for z = (x, ``target``·y), |y| ≤ 1: R² + c², √2 times that for replace-one.

        >>> Shape(scalars=3).frobenius("add-remove"), round(Shape(scalars=3).frobenius("replace-one", 1.0), 4)
        (4.0, 7.0711)
        """
        check(adjacency)
        root = math.sqrt(2) if adjacency == "replace-one" else 1.0
        return self.rows * root * (self.norm_squared + target**2)

    def clipped_sum(self, clip_norm: float, adjacency: str) -> float:
        """L2 sensitivity of a sum of one vector a row, each of norm at most ``clip_norm``."""
        check(adjacency)
        return self.rows * (2.0 if adjacency == "replace-one" else 1.0) * clip_norm

    def bounded_sum(self, high: float) -> float:
        """Sensitivity of a sum of one number in [0, ``high``] a row, under every adjacency."""
        return self.rows * high

    def smallest_eigenvalue(self) -> float:
        """Sensitivity of the smallest eigenvalue of Σxxᵀ under every adjacency: by Weyl, the largest eigenvalue of a
        difference of two positive matrices of norm at most R².
        """
        return float(self.rows * self.norm_squared)


def check(adjacency: str) -> str:
    """The adjacency, or an error that lists those there are."""
    if adjacency not in ADJACENCIES:
        raise ValueError(f"unknown adjacency {adjacency!r}; choose one of {', '.join(ADJACENCIES)}")
    return adjacency
