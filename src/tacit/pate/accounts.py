"""What did the answers cost, given how clearly the teachers agreed? Two accounts for the operator's eyes.

- *theorem 6*: along the queries that were asked and answered (Papernot et al. 2018);
- *exact*: Rényi divergences of the output law over every one-vote neighbour, in both directions.

Both are computed from private votes, so they come as a :class:`tacit.ledger.OperatorView`, which no release takes.
:meth:`Accounts.sanitise` draws a noisy one that may be published. The guarantee, which holds for any votes, is
``answers.privacy``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import accounting as acc
from tacit import noise
from tacit.accounting.renyi import convert
from tacit.ledger import Charge, Ledger, OperatorView
from tacit.pate import smooth

Array = NDArray[np.float64]
NOT_PUBLISHABLE = "not publishable: computed from private votes"
#: Orders at which data-dependent divergences are first computed; then closer around the best.
ORDERS = np.array(
    [1.25, 1.5, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256, 512, 1024], dtype=float
)
#: The grid to which a sanitised divergence is rounded. Fixed: a grid that followed its noise would tell how much.
GRID = 2.0**-40
#: The default price of a sanitised release, as a share of the data-independent ε.
RELEASE_SHARE = 0.03


class DataDependent(OperatorView):
    """An ε that was computed from private votes, for the operator only. ``float()`` gives the number.

    >>> DataDependent(epsilon=1.25, delta=1e-5, order=18.0, way="theorem 6")
    ε = 1.25 at δ=1e-05 (theorem 6) [not publishable: computed from private votes]
    """

    __slots__ = ()

    def __float__(self) -> float:
        return float(self.epsilon)

    def __repr__(self) -> str:
        shown = "left behind by pickling" if self.epsilon is None else f"ε = {_up(self.epsilon)} at δ={self.delta:g}"
        return f"{shown} ({self.way}) [{NOT_PUBLISHABLE}]"


@dataclasses.dataclass(frozen=True)
class Sanitised:
    """A data-dependent divergence with noise, and the ε that follows from it.

    The noise has mean 0 and the result is cut at 0, so the number estimates the true one and does not bound it. The
    guarantee is the data-independent ε, which includes this release.

    Args:
        epsilon: What ``renyi`` and ``cost`` give together at ``delta``.
        delta: The δ of ``epsilon``.
        order: The Rényi order, above 1.
        renyi: The noisy divergence at that order.
        cost: The price of publishing it, as a divergence at that order.
        beta: The smoothness β of the sensitivity.
        noise: The noise, in units of the smooth sensitivity.
    """

    epsilon: float
    delta: float
    order: float
    renyi: float
    cost: float
    beta: float
    noise: float

    def __repr__(self) -> str:
        return f"ε ≈ {self.epsilon:.4g} at δ={self.delta:g} (sanitised at order {self.order:g}) [publishable estimate]"


class Accounts:
    """The data-dependent accounts of a set of answers, next to the guarantee that holds for any votes."""

    def __init__(
        self,
        mechanism: acc.Mechanism,
        *,
        delta: float,
        adjacency: str,
        asked: int,
        theorem6: Callable[[Array], Array],
        exact: Callable[[Array], Array] | None,
        sensitivity: Callable[[float], Array] | None,
        partition: str = "any",
        charge: Charge | None = None,
    ) -> None:
        self.mechanism, self.delta, self.adjacency = mechanism, delta, adjacency
        #: queries that were asked
        self.asked = asked
        self.partition, self.charge = partition, charge
        self.sanitised: Sanitised | None = None
        #: the charge of the sanitised release, if there is a ledger
        self.release_charge: Charge | None = None
        self._theorem6, self._exact, self._sensitivity = theorem6, exact, sensitivity
        self._known: dict[tuple[str, float], DataDependent | None] = {}

    @property
    def guarantee(self) -> acc.Privacy:
        """What holds for any votes, including a sanitised release. It may be published."""
        return acc.Privacy.of(self.mechanism, self.delta, adjacency=self.adjacency)

    @property
    def theorem6(self) -> DataDependent:
        """The data-dependent ε by theorem 6, checks included, for this transcript. Not publishable."""
        found = self._searched("theorem 6", lambda orders: self._theorem6(orders)[None], self.delta)
        assert found is not None
        return found

    @property
    def exact(self) -> DataDependent | None:
        """The ε of the exact output law, the larger of both directions; None for LNMax. Not publishable."""
        return self._searched("exact", self._exact, self.delta)

    def _searched(self, way: str, rdp: Callable[[Array], Array] | None, delta: float) -> DataDependent | None:
        """The smallest ε over orders: a grid, refined twice. Any order is valid for fixed votes."""
        if rdp is None:
            return None
        if (way, delta) not in self._known:
            orders, found = ORDERS, rdp(ORDERS)
            for _ in range(2):
                best = int(np.argmin(convert(orders, found.max(axis=0), delta)))
                low, high = orders[max(best - 1, 0)], orders[min(best + 1, len(orders) - 1)]
                added = np.setdiff1d(np.linspace(low, high, 7), orders)
                orders, found = np.concatenate([orders, added]), np.concatenate([found, rdp(added)], axis=1)
                line = np.argsort(orders)
                orders, found = orders[line], found[:, line]
            values = convert(orders, found.max(axis=0), delta)
            best = int(np.argmin(values))
            value = float(values[best]) if self.asked else 0.0
            self._known[way, delta] = DataDependent(epsilon=value, delta=delta, order=float(orders[best]), way=way)
        return self._known[way, delta]

    def renyi(self, orders: Any, way: str = "theorem 6") -> OperatorView:
        """Data-dependent divergences at these orders, one row per direction (theorem 6 has one). Not publishable."""
        wanted = np.asarray(orders, dtype=float).reshape(-1)
        if way == "exact" and self._exact is None:
            raise ValueError("LNMax has no exact account: it exists for Gaussian votes only")
        found = self._exact(wanted) if way == "exact" and self._exact is not None else self._theorem6(wanted)[None]
        return OperatorView(orders=wanted, divergences=found)

    # -- the sanitised one ----

    def release_plan(
        self, order: float | None = None, beta: float | None = None, noise: float | None = None
    ) -> tuple[float, acc.SmoothRelease]:
        """The order and the mechanism of a sanitised release. The defaults do not look at the votes.

        By default the order is that of the data-independent price, or the next smaller one (by tenths) whose smooth
        sensitivity is known; β = 0.4/α, divided by the number of teachers that one neighbour changes; and the noise
        costs 3% of that price.
        """
        claim = self.guarantee.claim
        if order is None:
            order = self._known_order()
        if not order > 1:
            raise ValueError(f"order, a Rényi order, must be above 1, not {order!r}")
        same: dict[str, Any] = {"unit": self.mechanism.unit, "partition": self.partition}
        changed = acc.SmoothRelease(0.0, 1.0, **same).teachers(self.adjacency)
        beta = 0.4 / order / changed if beta is None else float(beta)

        def cost(scale: float) -> float:
            return float(acc.renyi(acc.SmoothRelease(beta, scale, **same), [order], adjacency=self.adjacency)[0])

        if math.isinf(cost(1e9)):
            raise ValueError(f"beta = {beta:g} is too large for order {order:g}: α(1 - e^(-2β)) must be below 1")
        if noise is None:
            noise = 1.0
            limit = max(RELEASE_SHARE * claim, 1.05 * cost(1e9))
            while cost(noise) > limit:
                noise *= 1.25
        return float(order), acc.SmoothRelease(beta, float(noise), **same)

    def _known_order(self) -> float:
        # Whether the sensitivity is known depends on order, noise, classes and teachers, all public, and on no vote.
        order = _public_order(self.mechanism, self.delta, self.adjacency)
        for tried in (order * 0.9**k for k in range(40)):
            if tried <= 1 or self._sensitivity is None:
                break
            try:
                self._sensitivity(tried)
            except smooth.SmoothnessError:
                continue
            return tried
        return order

    def sanitise(
        self,
        *,
        order: float | None = None,
        beta: float | None = None,
        noise: float | None = None,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        delta: float | None = None,
        number: str | None = None,
    ) -> Sanitised:
        """Publish the data-dependent divergence with noise in proportion to its smooth sensitivity. Once; it costs.

        Guarantee:
            The release is the mechanism ``SmoothRelease(beta, noise)`` for one changed teacher. It is charged before it
            is drawn and added to :attr:`mechanism`, so :attr:`guarantee` covers it.

        Args:
            order: The Rényi order, above 1, chosen without looking at the votes. None: see :meth:`release_plan`.
            beta: The smoothness β, chosen without looking at the votes. None means 0.4/order.
            noise: The noise in units of the smooth sensitivity, chosen likewise. None costs 3% of the guarantee's ε.
            ledger: The ledger to charge. None takes the one that the answers were charged to, if any.
            dataset: The name of the data set in ``ledger``.
            delta: The δ of the charge; None takes the ledger's default.
            number: The number of a charge that was kept before a crash. None makes a new charge.

        Returns:
            The noisy divergence and the ε that follows from it.

        Raises:
            ValueError: If a sanitised ε was published before, or if the smooth sensitivity is not known.
        """
        if self.sanitised is not None:
            raise ValueError(
                "a sanitised ε was published already; a second one would cost again. "
                "See: tacit explain data-dependent-epsilon"
            )
        if self._sensitivity is None:
            raise ValueError(
                "the smooth sensitivity is known for Gaussian votes only: use GNMax or ConfidentGNMax. "
                "See: tacit explain data-dependent-epsilon"
            )
        order, mechanism = self.release_plan(order, beta, noise)
        cost = float(acc.renyi(mechanism, [order], adjacency=self.adjacency)[0])
        local = self._sensitivity(order)  # raises before anything is charged where the conditions do not hold
        if ledger is None and self.charge is not None:
            ledger, dataset = self.charge.ledger, self.charge.dataset
        if ledger is not None:
            if dataset is None:
                raise ValueError("give dataset=, the name of the data set in the ledger")
            before = self.charge if self.charge is not None and self.charge.dataset == dataset else None
            read = None if before is None else before.ledger.record(dataset, before.number).data
            self.release_charge = ledger.charge(
                dataset,
                mechanism,
                delta=delta,
                purpose="sanitised data-dependent price of teachers' votes",
                number=number,
                data=read,
            )
        # A constant floor keeps it a smooth bound, and the noise above zero.
        scale = max(smooth.smooth_sensitivity(local, mechanism.beta), GRID)
        value = noise_draw(float(self._theorem6(np.array([order]))[0]), scale * mechanism.noise)
        found = max(value, 0.0)  # post-processing: a divergence is never negative
        epsilon = float(convert(np.array([order]), np.array([found + cost]), self.delta)[0])
        self.sanitised = Sanitised(epsilon, self.delta, order, found, cost, mechanism.beta, mechanism.noise)
        self.mechanism = self.mechanism + mechanism
        if self.release_charge is not None and not self.release_charge.confirmed:
            self.release_charge.confirm()
        return self.sanitised

    def __repr__(self) -> str:
        exact = "no exact law for Laplace votes" if self.exact is None else repr(self.exact)
        sanitised = "none yet: accounts.sanitise()" if self.sanitised is None else repr(self.sanitised)
        bound = self.guarantee.interval
        lines = [
            f"Accounts of {self.asked} queries, {bound.terms}, δ={self.delta:g}",
            f"  data-independent  ε ≤ {_up(bound.upper)}  [publishable: this is the guarantee]",
            f"  theorem 6         {self.theorem6!r}",
            f"  exact             {exact}",
            f"  sanitised         {sanitised}",
        ]
        return "\n".join(lines)


def noise_draw(value: float, sigma: float) -> float:
    """value + N(0, σ²), drawn exactly and rounded to a fixed grid."""
    return float(noise.add_gaussian(value, sigma, granularity=GRID))


def _up(value: float) -> str:
    """Four significant digits, rounded up."""
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    digits = 3 - math.floor(math.log10(value))
    return f"{math.ceil(value * 10.0**digits - 1e-9) / 10.0**digits:.10g}"


def _public_order(mechanism: acc.Mechanism, delta: float, adjacency: str) -> float:
    """The order that suits the data-independent price, to a tenth."""
    rho = float(acc.renyi(mechanism, [2.0], adjacency=adjacency)[0]) / 2
    if not 0 < rho < math.inf:
        return 20.0
    # ρα + ln(1/δ)/(α-1) is least here; what the votes really cost is less, so look at half of it
    return float(np.clip(round(1 + math.sqrt(math.log(1 / delta) / (rho / 2)), 1), 2.0, 256.0))
