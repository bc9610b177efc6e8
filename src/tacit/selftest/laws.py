"""Is all of this noise, in every place, out to its tails? Findings about standardised residuals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from tacit.audit import implementation, statistics
from tacit.audit.findings import Finding, holds

Floats = npt.NDArray[np.float64]
#: Beyond how many standard deviations the tails are counted.
TAIL = 3.0


def check_law(parts: Sequence[Floats], name: str = "") -> list[Finding]:
    """Whether rows of standardised numbers, one a step, are fresh normal noise: everywhere, and out to the tails.

    Size, shape and repetition are those of the audit. Two more: the share of numbers beyond three standard deviations,
    and the size of the noise in every single place, over the steps.
    """
    rows = [np.asarray(part, dtype=np.float64).ravel() for part in parts]
    found = implementation.check_noise(rows)
    flat = np.concatenate(rows)
    rate = float(2 * special.ndtr(-TAIL))
    beyond = int((np.abs(flat) > TAIL).sum())
    found.append(
        Finding(
            "noise tails",
            statistics.frequency_p_value(beyond, len(flat), rate),
            f"{beyond} of {len(flat):,} numbers beyond {TAIL:g} deviations, {rate * len(flat):.0f} expected",
        )
    )
    widths = {len(row) for row in rows}
    if len(widths) == 1 and len(rows) > 1:
        found.append(_everywhere(np.stack(rows)))
    return [Finding(f"{f.check} ({name})" if name else f.check, f.p_value, f.detail, f.best, f.powered) for f in found]


def _everywhere(table: Floats) -> Finding:
    """Each column's sum of squares against χ², with Bonferroni's correction."""
    if not np.isfinite(table).all():
        return holds("noise in every place", False, "a number is not finite")
    sums = (table**2).sum(0)
    low, high = stats.chi2.cdf(sums, len(table)), stats.chi2.sf(sums, len(table))
    p = float(min(1.0, 2 * len(sums) * min(low.min(), high.min())))
    place = int(np.argmin(np.minimum(low, high)))
    least = f"place {place} of {len(sums)} has {np.sqrt(sums[place] / len(table)):.3g} of the stated noise"
    return Finding("noise in every place", p, least)
