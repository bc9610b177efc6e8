"""Do budgets hold whatever is asked in which order? Filters and the ledger's rules, against one order by itself."""

from __future__ import annotations

import contextlib
import math

import numpy as np

from tacit import accounting as acc
from tacit.audit.findings import Finding, holds
from tacit.ledger import BudgetExceeded, Ledger
from tacit.ledger.rules import epsilon_alone
from tacit.selftest.scene import Scene

ORDERS, EPSILON, DELTA = (3.0, 8.0, 24.0), 2.0, 1e-2
#: Some of these are dear at low orders, some at high ones.
ASKED: tuple[acc.Mechanism, ...] = (
    acc.Gaussian(8.0),
    acc.Gaussian(40.0),
    acc.PureDP(0.4),
    acc.PureDP(0.05),
    acc.PoissonSampled(acc.Gaussian(0.9), 0.02),
    acc.PoissonSampled(acc.Gaussian(0.9), 0.02) * 20,
)


def _kept_by_one(granted: list[acc.Mechanism]) -> bool:
    """Whether all that was granted is within the budget of one order, with its share of δ: only that composes."""
    for order in ORDERS:
        alone = acc.RenyiFilter(EPSILON, DELTA / len(ORDERS), [order])
        spent = sum(float(acc.renyi(mechanism, [order])[0]) for mechanism in granted)
        if spent <= float(alone.budget[0]) * (1 + 1e-9):
            return True
    return False


def filters_keep_one_order(seed: int) -> list[Finding]:
    """Whatever is asked, one order holds in the end all that was granted: an order that ran out stays out."""
    rng, counts, broken = np.random.default_rng(seed), [], 0
    for _ in range(6):
        budget, granted = acc.RenyiFilter(EPSILON, DELTA, ORDERS), []
        for place in rng.integers(len(ASKED), size=120):
            with contextlib.suppress(acc.FilterExceeded):
                budget.spend(ASKED[place])
                granted.append(ASKED[place])
        counts.append(len(granted))
        broken += not _kept_by_one(granted)
    return [holds("filters: any order", min(counts) > 0 and not broken, f"{counts} granted, {broken} beyond an order")]


def failures_stay_failures(seed: int) -> list[Finding]:
    """What fails to protect in one of many runs fails in the best of them: no choice makes it rarer."""
    low = []
    for law in ("geometric", "poisson", "threshold"):
        for part, failing in ((acc.ApproxDP(0.1, 1e-3), 1e-3), (acc.Gaussian(4.0) + acc.ApproxDP(0.0, 1e-4), 1e-4)):
            selected = acc.Selected.of(part, 5.0, distribution=law)
            at = failing * 0.5
            told = [acc.epsilon(selected, at).upper, float(acc.renyi(selected, [4.0])[0])]
            if not all(math.isinf(one) for one in told):
                low.append(f"{law}: ε = {told[0]:.4g} at δ = {at:g}, Rényi {told[1]:.4g}")
    # Releases that fail one by one fail together as often as all of them.
    several = acc.ApproxDP(0.1, 1e-3) * 3
    for delta in (1e-3, 2e-3, 2.9e-3):
        if not epsilon_alone(several, delta, "add-remove") >= acc.epsilon(several, delta).lower:
            low.append(f"three releases that fail with δ = 0.001 each, at δ = {delta:g}")
    with contextlib.suppress(acc.UnitError):
        low.append(f"records and people: {acc.Gaussian(1.0, unit='record') + acc.Gaussian(1.0, unit='person')!r}")
    return [holds("selection: failures", not low, "; ".join(low) or "no ε below the probability of a failure")]


def _granted(ledger: Ledger, name: str, asked: acc.Mechanism, delta: float, most: int = 200) -> int:
    for count in range(most):
        try:
            ledger.charge(name, asked, delta=delta)
        except BudgetExceeded:
            return count
    return most


def rules_hold_in_any_order(seed: int) -> list[Finding]:
    """What a rule grants in turn, or after a raise, it would have granted from the start."""
    found = []
    cut = acc.TruncatedPoissonSampled(acc.Laplace(40.0), 0.3, 40, 23)
    for rule, asked, delta in (("sum", ASKED[0], 1e-4), ("renyi", ASKED[0], 1e-4), ("renyi", cut, 1e-2)):
        ledger = Ledger()
        terms = {"rule": rule, "delta": 0.05} | ({} if rule == "sum" else {"orders": (4.0, 8.0), "failure_share": 0.5})
        ledger.register("raised", epsilon=1.0, **terms)  # type: ignore[arg-type]
        ledger.register("fresh", epsilon=2.5, **terms)  # type: ignore[arg-type]
        counts = [_granted(ledger, "raised", asked, delta, 3)]
        ledger.raise_budget("raised", epsilon=2.5, delta=0.05, because="agreed")
        counts += [_granted(ledger, name, asked, delta) for name in ("raised", "fresh")]
        text = f"{counts[0]} granted, {counts[1]} after a raise; {counts[2]} from the start"
        found.append(holds(f"rules: raised ({rule}, {type(asked).__name__})", 0 < sum(counts[:2]) <= counts[2], text))
    # The first charge chooses between the sum and the orders. A run that no order allows is for the sum alone.
    whole = acc.Gaussian(acc.calibrate(acc.Gaussian, epsilon=1.95, delta=8e-6))
    orders = [acc.RenyiFilter(2.0, 1e-5, [order]) for order in np.geomspace(8, 200, 60)]
    late = Ledger()
    late.register("late", epsilon=2.0, delta=1e-5)
    late.charge("late", acc.Gaussian(200.0), delta=1e-6)
    late.register("first", epsilon=2.0, delta=1e-5)
    told = [_granted(late, name, whole, 8e-6, 1) for name in ("late", "first")]
    none = not any(one.allows(whole) for one in orders)
    text = f"by no order: {none}; after a charge that orders allow {told[0]}, as the first {told[1]}"
    return [*found, holds("rules: the first charge chooses", none and told == [0, 1], text)]


SCENES = (
    Scene("prices: filters", "accounting", filters_keep_one_order),
    Scene("prices: failures", "accounting", failures_stay_failures),
    Scene("ledger: in any order", "ledger", rules_hold_in_any_order),
)
