"""What does it cost to try several candidates and keep the best? Private selection with a random number of runs.

The number of runs is drawn from a distribution that does not depend on the data, each run draws a candidate at random
and runs the same mechanism (training *and* private score), and only the best result is released. Its price is a Rényi
bound (Papernot & Steinke 2022, "Hyperparameter tuning with Rényi differential privacy", theorems 2 and 6).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from tacit.accounting.base import Mechanism, check_positive
from tacit.accounting.contour import log_kappa
from tacit.accounting.errors import AccountingError
from tacit.accounting.losses import Loss
from tacit.accounting.renyi import RenyiCurve

#: Orders of the second divergence in the bound, of which the best is taken.
_SECOND = np.exp(np.linspace(math.log(1e-2), math.log(1e4), 120))


@dataclasses.dataclass(frozen=True, repr=False)
class Selected(Mechanism):
    """The best of K runs of ``mechanism``, K random.

    ``distribution="negative-binomial"``: K from the truncated negative binomial law with ``eta`` > -1 (1: geometric, 0:
    logarithmic) and ``gamma`` in (0, 1). ``distribution="poisson"``: K Poisson with mean ``mean`` (K = 0 releases
    nothing).

    Guarantee (negative binomial): if the mechanism has Rényi divergence ε(λ), the selection has at most
    ε(λ) + (1+η)(1 - 1/λ')ε(λ') + (1+η)log(1/γ)/λ' + log(E K)/(λ - 1), for every λ' >= 1. (Poisson): at most
    ε(λ) + μδ' + log(μ)/(λ - 1), where the mechanism is (ε', δ')-DP with e^{ε'} <= 1 + 1/(λ - 1).
    """

    tight: ClassVar[bool] = False
    mechanism: Mechanism
    distribution: str = "negative-binomial"
    eta: float = 1.0
    gamma: float = 0.1
    mean: float = 10.0
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Mechanism):
            raise AccountingError(f"{self.mechanism!r} is not a mechanism")
        if self.distribution not in ("negative-binomial", "poisson"):
            raise AccountingError(f"the number of runs is 'negative-binomial' or 'poisson', not {self.distribution!r}")
        if not (self.eta > -1 and math.isfinite(self.eta)):
            raise AccountingError(f"eta must be above -1, not {self.eta!r}")
        if not 0 < self.gamma < 1:
            raise AccountingError(f"gamma must lie between 0 and 1, not {self.gamma!r}")
        check_positive("mean", self.mean)
        object.__setattr__(self, "unit", self.unit or self.mechanism.unit)

    @property
    def runs(self) -> float:
        """How many runs to expect."""
        if self.distribution == "poisson":
            return self.mean
        if self.eta == 0:
            return (1 / self.gamma - 1) / math.log(1 / self.gamma)
        return float(self.eta * (1 - self.gamma) / (self.gamma * (1 - self.gamma**self.eta)))

    def adjacencies(self) -> tuple[str, ...]:
        return self.mechanism.adjacencies()

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return None

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        curve = RenyiCurve(self.mechanism, adjacency=adjacency, group=group)
        if curve.failure > 0 or curve.spill > 0:
            return np.full(len(orders), math.inf)  # no finite divergence
        c = orders - 1
        first = curve.moments(c).max(axis=0) / c
        moments = curve.moments(_SECOND).max(axis=0)
        if self.distribution == "poisson":
            # δ' at ε' = log(1 + 1/(λ-1)), by the best of the same orders
            kappa = np.array([log_kappa(float(x)) for x in _SECOND])
            log_delta = np.min(moments + kappa - np.multiply.outer(np.log1p(1 / c), _SECOND), axis=1)
            extra = self.mean * np.exp(np.minimum(log_delta, 0.0)) + math.log(self.mean) / c
            return np.asarray(np.maximum(first + extra, 0.0))
        order = _SECOND + 1
        rest = (1 + self.eta) * ((1 - 1 / order) * moments / _SECOND + math.log(1 / self.gamma) / order)
        return np.asarray(first + max(float(np.nanmin(rest)), 0.0) + math.log(self.runs) / c)
