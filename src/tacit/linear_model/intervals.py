"""How uncertain are the coefficients? Intervals from what a fit released, for every estimator that has them."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.stats import norm
from sklearn.utils.validation import check_is_fitted

from tacit.accounting.errors import PrivacyWarning
from tacit.linear_model.bounds import Features
from tacit.linear_model.inference import Estimate

Floats = npt.NDArray[np.float64]


class WithIntervals:
    """Intervals for the coefficients, or the reason why there are none."""

    features_: Features
    covariance_: Floats

    def _keep_intervals(self, matrix: Floats, found: Estimate | None, why: str, shift: Floats) -> None:
        """Store centre and covariance in the table's units; ``matrix`` takes scaled θ there (the constant first)."""
        self._why = why
        size, table = len(matrix), sparse.csr_array(matrix)
        if found is None:
            self.covariance_ = np.full((size, size), np.nan)
            self._centre = np.full(size, np.nan)
            return
        self._centre = matrix @ found.theta + shift
        spread = table @ found.covariance @ table.T
        refused = found.refused(matrix)
        spread[refused] = np.nan
        spread[:, refused] = np.nan
        self.covariance_ = spread

    def confidence_interval(self, level: float = 0.95, *, intercept: bool = False) -> Floats:
        """Intervals for the coefficients that cover the uncertainty of the sample and of the noise.

        They are computed from released values, so they cost nothing. They are normal approximations. They are about
        the coefficients that the same fit without noise has on the population, with features and target clipped to
        their bounds, whatever the errors look like. Their middle is an estimate without shrinkage, which can differ
        from ``coef_``. Rows count as independent of each other.

        Args:
            level: The coverage, between 0 and 1; 0.95 by default.
            intercept: Whether the first row is the interval of the intercept. By default only coefficients are listed.

        Returns:
            One row (lower, upper) for each coefficient, in the order of ``coef_``. A coefficient that the noise hides
            has the interval from -inf to inf, and a warning names it.

        Raises:
            ValueError: If ``level`` is not between 0 and 1, or if the method has no intervals; the message says why.
        """
        check_is_fitted(self)
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, not {level!r}")
        if self._why:
            raise ValueError(f"there are no intervals for this fit: {self._why}")
        variance = np.diag(self.covariance_)
        half = norm.ppf(0.5 + level / 2) * np.sqrt(np.maximum(variance, 0.0))
        both = np.column_stack([self._centre - half, self._centre + half])
        both[np.isnan(variance)] = (-np.inf, np.inf)
        names = ["intercept", *self.features_.names]
        hidden = [names[i] for i in np.flatnonzero(np.isnan(variance)) if intercept or i]
        if hidden:
            more = f" and {len(hidden) - 3} more" if len(hidden) > 3 else ""
            warnings.warn(
                f"the noise hides {', '.join(map(str, hidden[:3]))}{more}: too few rows tell about it at this epsilon, "
                "or it nearly equals a combination of other columns. Its interval is everything; use a larger epsilon, "
                "tighter bounds or fewer columns",
                PrivacyWarning,
                stacklevel=2,
            )
        return both if intercept else both[1:]
