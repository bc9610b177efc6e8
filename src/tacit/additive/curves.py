"""How does each column move the prediction? Curves with the band that the noise leaves open, and pictures of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.accounting.errors import optional
from tacit.additive.basis import Basis, Part

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class ColumnCurve:
    """What one column adds to the prediction, from released values alone.

    The mean over the rows, as far as the noise lets it be known, is taken off and belongs to the intercept.

    Args:
        name: The column.
        at: Where the curve is given: both ends of each cell of a number, in its own unit, or the names of categories.
        value: What is added there: log-odds of the second class (with several classes, one column for each), or the
            unit of the target.
        error: One standard deviation of the noise in each value, and of what the noise made the fit leave out. It says
            nothing about the sample.
        missing: What is added where the value is missing.

    Example:
        >>> curve = ColumnCurve("age", np.array([18.0, 90.0]), np.array([-1.0, 1.0]), np.array([0.1, 0.1]))
        >>> curve.band()[1].round(2).tolist()
        [-0.8, 1.2]
    """

    name: str
    at: npt.NDArray[Any]
    value: Floats
    error: Floats
    missing: Any = None

    def band(self, width: float = 2.0) -> tuple[Floats, Floats]:
        """The curve, less and more some standard deviations of the noise.

        Args:
            width: How many standard deviations; 2 by default.

        Returns:
            The lower and the upper end at each place.

        Example:
            >>> ColumnCurve("age", np.array([18.0]), np.array([0.0]), np.array([0.5])).band(1.0)[0].tolist()
            [-0.5]
        """
        error = self.error if self.value.ndim == 1 else self.error[:, None]
        return self.value - width * error, self.value + width * error


def curves_of(
    basis: Basis, theta: Floats, covariance: Floats, half_width: float
) -> tuple[dict[str, ColumnCurve], Floats]:
    """The curve of every column, and what their means add to the constant, one for each output."""
    found, constant = {}, theta[0] * half_width
    for part, where in zip(basis.parts, basis.slices, strict=False):
        functions, missing, weights = _functions(part)
        mean = weights @ functions
        value = (functions - mean) @ theta[where] * half_width
        spread = np.einsum("ij,jk,ik->i", functions - mean, covariance[where, where], functions - mean)
        absent = (missing - mean) @ theta[where] * half_width if part.column.optional else None
        column = part.column
        at: npt.NDArray[Any] = column.middle + column.half_width * column.ends().ravel()
        if column.labels:
            at = np.array(column.labels, dtype=object)
        elif column.flag:
            at = np.array(["false", "true"], dtype=object)
        single = theta.shape[1] == 1
        found[column.name] = ColumnCurve(
            column.name,
            at,
            value[:, 0] if single else value,
            np.sqrt(np.maximum(spread, 0.0)) * half_width,
            absent[0] if absent is not None and single else absent,
        )
        constant = constant + mean @ theta[where] * half_width
    return found, constant


def _functions(part: Part) -> tuple[Floats, Floats, Floats]:
    """A column's functions at the places of its curve and where it is missing, and the part of the rows at each."""
    table, absent = part.table[:-1], part.table[-1]
    if part.column.labels:
        return table, absent, part.share
    if part.column.flag:
        return np.column_stack([[-1.0, 1.0], table]), np.r_[0.0, absent], part.share
    functions = np.column_stack([part.column.ends().ravel(), np.repeat(table, 2, axis=0)])
    return functions, np.r_[0.0, absent], np.repeat(part.share, 2) / 2


def draw(curves: Sequence[ColumnCurve], unit: str, classes: Sequence[Any]) -> Any:
    """A figure with one panel for each curve."""
    across = min(3, len(curves))
    down = math.ceil(len(curves) / across)
    figure = optional("matplotlib.figure").Figure(figsize=(4 * across, 2.8 * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel in panels[len(curves) :]:
        panel.set_axis_off()
    for panel, curve in zip(panels, curves, strict=False):
        low, high = curve.band()
        several = curve.value.ndim == 2
        for k in range(curve.value.shape[1] if several else 1):
            pick = (slice(None), k) if several else slice(None)
            label = str(classes[k]) if several else None
            if curve.at.dtype == object:
                places = np.arange(len(curve.at))
                panel.errorbar(places, curve.value[pick], curve.value[pick] - low[pick], fmt="o", label=label)
                panel.set_xticks(places, [str(name)[:12] for name in curve.at], rotation=60, fontsize=7)
            else:
                panel.plot(curve.at, curve.value[pick], label=label)
                panel.fill_between(curve.at, low[pick], high[pick], alpha=0.25)
        panel.axhline(0.0, color="black", linewidth=0.5)
        panel.set_title(curve.name, fontsize=9)
        panel.set_ylabel(unit, fontsize=8)
        if several:
            panel.legend(fontsize=7)
    return figure
