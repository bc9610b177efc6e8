"""What does it cost to run one of several mechanisms, drawn without looking at the data?

The outcome shows which mechanism was drawn, so δ(ε) is the mean over the draw.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from tacit.accounting.base import Mechanism, check_share, inherit_unit, unit_message
from tacit.accounting.derived import DrawnLoss
from tacit.accounting.errors import AccountingError, UnitError
from tacit.accounting.losses import Loss
from tacit.accounting.mechanisms import nothing_revealed
from tacit.accounting.pricing import Reader
from tacit.accounting.pricing import epsilon as certified_epsilon
from tacit.accounting.renyi import RenyiCurve


@dataclasses.dataclass(frozen=True, repr=False)
class Either(Mechanism):
    """One of two mechanisms, drawn without the data; which one it was is released.

    Nested, it describes a draw from a grid of candidates; see :func:`one_of`.

    Guarantee:
        δ(ε) is the mean of both, because the two kinds of outcome are disjoint. The moments of the Rényi divergence are
        averaged likewise. Adjacency and unit are those that both mechanisms state.

    Args:
        one: The mechanism that runs with probability ``share``.
        other: The mechanism that runs otherwise.
        share: The probability of ``one``, in [0, 1] (default ½).
        unit: Taken from the mechanisms; leave it out.

    Raises:
        AccountingError: If ``one`` or ``other`` is not a mechanism.
        UnitError: If the two protect different units.

    Example:
        >>> from tacit import accounting as acc
        >>> drawn = acc.Either(acc.Gaussian(1.0), acc.Gaussian(2.0))
        >>> acc.delta(drawn, 1.0).upper < acc.delta(acc.Gaussian(1.0), 1.0).upper
        True
    """

    tight: ClassVar[bool] = False
    one: Mechanism
    other: Mechanism
    share: float = 0.5
    unit: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.one, Mechanism) and isinstance(self.other, Mechanism)):
            raise AccountingError("Either takes two mechanisms")
        check_share("a probability", self.share)
        if self.one.unit != self.other.unit:
            raise UnitError(unit_message(self.one.unit, self.other.unit))
        inherit_unit(self, self.one)

    def members(self) -> list[tuple[Mechanism, float]]:
        """All mechanisms that may be drawn, with their probabilities."""
        found: list[tuple[Mechanism, float]] = []
        for part, weight in ((self.one, self.share), (self.other, 1 - self.share)):
            nested = part.members() if isinstance(part, Either) else [(part, 1.0)]
            found.extend((inner, weight * w) for inner, w in nested)
        return found

    def adjacencies(self) -> tuple[str, ...]:
        return tuple(a for a in self.one.adjacencies() if a in self.other.adjacencies())

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return self._drawn([(part.pair(adjacency, direction, group), w) for part, w in self._single()])

    def floor(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        found = [(part.floor(adjacency, direction, group) or nothing_revealed(), w) for part, w in self._single()]
        return self._drawn(found)

    def is_tight(self, adjacency: str, group: int = 1) -> bool:
        single = self._single()
        return bool(single) and all(part.is_tight(adjacency, group) for part, w in single if w > 0)

    def _single(self) -> list[tuple[Mechanism, float]]:
        """The members, if each is one mechanism that ran once; otherwise none."""
        found = [(part.parts(), weight) for part, weight in self.members()]
        if any(len(parts) != 1 or parts[0][1] != 1 or parts[0][0].extra_delta() for parts, _ in found):
            return []
        return [(parts[0][0], weight) for parts, weight in found]

    @staticmethod
    def _drawn(found: Sequence[tuple[Loss | None, float]]) -> Loss | None:
        losses = [(loss, weight) for loss, weight in found if loss is not None and weight > 0]
        whole = losses and len(losses) == sum(weight > 0 for _, weight in found)
        return DrawnLoss(losses) if whole else None

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        total = np.full(len(orders), -math.inf)
        for part, weight in self.members():
            curve = RenyiCurve(part, adjacency=adjacency, group=group)
            if curve.failure > 0 or curve.spill > 0:
                return np.full(len(orders), math.inf)
            if weight > 0:
                total = np.logaddexp(total, math.log(weight) + curve.moments(orders - 1).max(axis=0))
        return np.asarray(np.maximum(total / (orders - 1), 0.0) * (1 + 1e-12))

    def largest_loss(self, adjacency: str, direction: str, group: int = 1) -> float:
        drawn = [part for part, weight in self.members() if weight > 0]
        return max(certified_epsilon(part, 0.0, adjacency=adjacency, group=group).upper for part in drawn)

    def own_delta(self, epsilon: float, adjacency: str, group: int) -> tuple[float, float]:
        """Bounds on δ: 0, and the mean of the members' upper ends.

        Args:
            epsilon: The ε at which δ is asked for.
            adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
            group: How many records one neighbour changes together.

        Returns:
            The lower and the upper end.
        """
        return 0.0, upper_profile(self, adjacency, group)(epsilon)

    def own_epsilon(self, delta: float, adjacency: str, group: int) -> tuple[float, float]:
        """Bounds on ε: 0, and a value between the cheapest and the dearest member.

        Args:
            delta: The δ at which ε is asked for.
            adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
            group: How many records one neighbour changes together.

        Returns:
            The lower and the upper end.
        """
        prices = [certified_epsilon(m, delta, adjacency=adjacency, group=group) for m, w in self.members() if w > 0]
        low, high = min(p.upper for p in prices), max(p.upper for p in prices)
        for _ in range(40):
            if high - low <= 1e-6 * high or math.isinf(high):
                break
            middle = 0.5 * (low + high)
            inside = self.own_delta(middle, adjacency, group)[1] <= delta
            low, high = (low, middle) if inside else (middle, high)
        return 0.0, high


def one_of(mechanisms: Sequence[Mechanism]) -> Mechanism:
    """One of several mechanisms, each equally likely, drawn without the data.

    Args:
        mechanisms: The candidates, at least one. Equal ones count as often as they occur.

    Returns:
        A mechanism that describes the draw (nested :class:`Either`); a single candidate is returned as it is.

    Raises:
        AccountingError: If there are no candidates.

    Example:
        >>> from tacit import accounting as acc
        >>> grid = [acc.Gaussian(noise) for noise in (1.0, 2.0, 3.0)]
        >>> len(acc.one_of(grid).members())
        3
    """
    if not mechanisms:
        raise AccountingError("one_of takes at least one mechanism")
    counts: dict[Mechanism, int] = {}
    for mechanism in mechanisms:
        counts[mechanism] = counts.get(mechanism, 0) + 1
    kinds = list(counts.items())
    result, left = kinds[-1]
    for mechanism, times in reversed(kinds[:-1]):
        left += times
        result = Either(mechanism, result, times / left)
    return result


@functools.lru_cache(maxsize=64)
def upper_profile(mechanism: Mechanism, adjacency: str, group: int) -> Callable[[float], float]:
    """The certified upper end of the base's δ(ε), each value computed once."""
    parts = mechanism.members() if isinstance(mechanism, Either) else [(mechanism, 1.0)]
    readers = [(Reader(part, adjacency, group), weight * (1 + 1e-15)) for part, weight in parts]

    @functools.lru_cache(maxsize=4096)
    def at(epsilon: float) -> float:
        return min(1.0, sum(weight * reader.upper(epsilon) for reader, weight in readers))

    return at
