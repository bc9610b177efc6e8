"""May this still run? Stopping rules and running totals for mechanisms that are chosen along the way.

Composition theorems fix all parameters beforehand. If the next mechanism depends on what earlier ones released (noise
lowered because the loss is flat, training stopped early), composing privacy-loss distributions is not valid in general;
Rényi divergences of a fixed order do add up. The filter refuses before a budget would be exceeded. The odometer never
refuses and reports a valid ε at every moment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.base import DEFAULT_UNIT, Mechanism, check_adjacency, unit_message
from tacit.accounting.errors import AccountingError, UnitError
from tacit.accounting.renyi import RenyiCurve, renyi

Array = NDArray[np.float64]
#: Orders of a filter or odometer that was told nothing about what will run.
ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class FilterExceeded(AccountingError):
    """The filter's budget does not cover this mechanism; nothing was charged for it."""


class _Adaptive:
    """What a filter and an odometer share: the orders, and what has been spent at each."""

    def __init__(self, delta: float, orders: Sequence[float], adjacency: str, group: int, unit: str) -> None:
        if not 0 < delta < 1:
            raise AccountingError(f"δ must lie strictly between 0 and 1, not {delta!r}. See: tacit explain delta")
        self.orders: Array = np.array(sorted({float(a) for a in orders}))
        if len(self.orders) == 0 or not np.all((self.orders > 1) & np.isfinite(self.orders)):
            raise AccountingError(f"Rényi orders are finite numbers above 1, not {list(orders)!r}")
        self.delta, self.adjacency, self.group, self.unit = delta, check_adjacency(adjacency), group, unit
        #: Rényi divergence spent at every order
        self.spent: Array = np.zeros(len(self.orders))

    def _cost(self, mechanism: Mechanism) -> Array:
        if mechanism.unit != self.unit:
            raise UnitError(unit_message(mechanism.unit, self.unit))
        return renyi(mechanism, self.orders, adjacency=self.adjacency, group=self.group)


class RenyiFilter(_Adaptive):
    """Lets adaptively chosen mechanisms run while the whole interaction stays within a budget.

    Guarantee:
        Everything released after :meth:`spend` allowed it is together (``epsilon``, ``delta``)-DP, however the
        mechanisms were chosen from earlier releases, under ``adjacency`` for ``group`` units at once.

    Theorem (Feldman & Zrnic 2021, fully adaptive Rényi composition; also Lécuyer 2021): if, whatever was released
    before, the sum of the divergences of order α of the mechanisms run never exceeds B, the interaction has divergence
    at most B at that fixed order. B is chosen so that (α, B) converts to (ε, δ) (Canonne, Kamath & Steinke 2020).

    With several orders, each gets the share δ/k, and the filter goes on while any order has budget left: split the
    transcripts by an order that lasted to their end; on each piece the interaction equals the one that this order alone
    would have stopped, and the k failures add up to δ. The orders are fixed before anything runs.

    Args:
        epsilon: The ε of the budget, finite and above 0.
        delta: The δ of the budget, between 0 and 1.
        orders: The Rényi orders to watch, all above 1 (default 2, 4, … 64). :meth:`planned` chooses a better single
            one.
        adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        group: How many units one neighbour changes together (default 1).
        unit: The unit of all mechanisms that will be charged (default ``"record"``).

    Raises:
        AccountingError: If ε is not a finite number above 0, or too small for every order.

    Example:
        >>> from tacit import accounting as acc
        >>> budget = acc.RenyiFilter(epsilon=2.0, delta=1e-5)
        >>> budget.spend(acc.Gaussian(10.0))
        >>> budget.allows(acc.Gaussian(0.1))
        False
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        orders: Sequence[float] = ORDERS,
        *,
        adjacency: str = "add-remove",
        group: int = 1,
        unit: str = DEFAULT_UNIT,
    ) -> None:
        super().__init__(delta, orders, adjacency, group, unit)
        if not 0 < epsilon < math.inf:
            raise AccountingError(f"the budget ε must be a finite number above 0, not {epsilon!r}")
        self.epsilon = float(epsilon)
        share = delta / len(self.orders)
        c = self.orders - 1
        # improved conversion, solved for the divergence: ε = B + ln((α-1)/α) - (ln δ + ln α)/(α-1)
        self.budget: Array = self.epsilon - np.log(c / self.orders) + (math.log(share) + np.log(self.orders)) / c
        if not np.any(self.budget > 0):
            raise AccountingError(
                f"ε = {epsilon:g} at δ = {delta:g} is too small a budget for every one of the orders; "
                "give larger orders, fewer orders, or a larger ε"
            )

    @classmethod
    def planned(cls, plan: Mechanism, epsilon: float, delta: float, *, adjacency: str = "add-remove") -> RenyiFilter:
        """A filter with the one order that suits a plan best; the plan may change while it runs.

        Args:
            plan: What you expect to run in all.
            epsilon: The ε of the budget.
            delta: The δ of the budget.
            adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.

        Returns:
            A filter with nothing spent yet.
        """
        _, order = RenyiCurve(plan, adjacency=adjacency).epsilon(delta)
        return cls(epsilon, delta, (order,), adjacency=adjacency, unit=plan.unit)

    def allows(self, mechanism: Mechanism) -> bool:
        """Whether the budget covers a mechanism now.

        Args:
            mechanism: What would run next.

        Returns:
            True if :meth:`spend` would accept it.
        """
        return bool(np.any(self.spent + self._cost(mechanism) <= self.budget))

    def spend(self, mechanism: Mechanism) -> None:
        """Charge a mechanism, before it runs.

        Args:
            mechanism: What will run next.

        Raises:
            FilterExceeded: If the budget does not cover it; nothing is charged then.
        """
        after = self.spent + self._cost(mechanism)
        if not np.any(after <= self.budget):
            raise FilterExceeded(
                f"{mechanism!r} would exceed (ε, δ) = ({self.epsilon:g}, {self.delta:g}); "
                f"{self.left:.1%} of the budget is left. Use more noise, or stop here"
            )
        # An order that ran out stays out: its sum never falls.
        self.spent = after

    @property
    def left(self) -> float:
        """The share of the budget that is left, at the order with the most left."""
        open_orders = self.budget > 0
        return max(0.0, float((1 - self.spent[open_orders] / self.budget[open_orders]).max()))


class RenyiOdometer(_Adaptive):
    """A running ε for adaptively chosen mechanisms, valid at every moment at once; it refuses nothing.

    Theorem (Lécuyer 2021, on the odometers of Rogers et al. 2016): lay filters with growing budgets B_1 < B_2 < … over
    each of k orders and give filter f the failure probability δ_f = 6δ/(π² k f²). With L the privacy loss so far and ρ
    the divergence spent, e^{(α-1)(L-ρ)} is a supermartingale of mean at most 1; by Ville's inequality the loss ever
    exceeds B_f + ln(1/δ_f)/(α-1) before filter f is passed with probability at most δ_f, and all failures add up to at
    most δ. So with probability 1 - δ the loss is at every moment below the bound of the first filter not yet passed.

    If the sequence is fixed beforehand, :func:`tacit.accounting.epsilon` is far tighter.

    Args:
        delta: The δ of the running guarantee, between 0 and 1.
        orders: The Rényi orders to watch, all above 1 (default 2, 4, … 64).
        adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        group: How many units one neighbour changes together (default 1).
        unit: The unit of all mechanisms that will be charged (default ``"record"``).

    Example:
        >>> from tacit import accounting as acc
        >>> meter = acc.RenyiOdometer(delta=1e-5)
        >>> first = meter.spend(acc.Gaussian(10.0))
        >>> first < meter.spend(acc.Gaussian(2.0))
        True
    """

    #: Each budget is this many times the one before it.
    GROWTH = math.sqrt(2.0)

    def __init__(
        self,
        delta: float,
        orders: Sequence[float] = ORDERS,
        *,
        adjacency: str = "add-remove",
        group: int = 1,
        unit: str = DEFAULT_UNIT,
    ) -> None:
        super().__init__(delta, orders, adjacency, group, unit)
        # The first budget is a quarter of what the conversion adds anyway, so that a coarse grid costs little.
        self.first: Array = -math.log(delta) / (4 * (self.orders - 1))

    def spend(self, mechanism: Mechanism) -> float:
        """Charge a mechanism, before it runs.

        Args:
            mechanism: What will run next.

        Returns:
            The ε that holds once it has run.
        """
        self.spent = self.spent + self._cost(mechanism)
        return self.epsilon

    @property
    def epsilon(self) -> float:
        """The ε that holds now; 0 before anything ran."""
        if not np.any(self.spent > 0):
            return 0.0
        finite = np.isfinite(self.spent)
        if not np.any(finite):
            return math.inf
        spent, first, orders = self.spent[finite], self.first[finite], self.orders[finite]
        number = np.maximum(0.0, np.ceil(np.log(spent / first) / math.log(self.GROWTH)))
        number = number + (first * self.GROWTH**number < spent)  # the logarithm may have been rounded down
        budget = first * self.GROWTH**number
        share = 6 * self.delta / (math.pi**2 * len(self.orders) * (number + 1) ** 2)
        return float((budget - np.log(share) / (orders - 1)).min())
