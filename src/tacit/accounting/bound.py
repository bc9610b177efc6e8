"""What does a price look like? An interval that contains the true value, with the terms it holds under."""

from __future__ import annotations

import dataclasses
import decimal
import math
from typing import Any

ADJACENCY_WORDS = {
    "add-remove": "add/remove one {unit}",
    "replace-one": "replace one {unit}",
    "zero-out": "zero out one {unit}",
}
GROUP_WORDS = {
    "add-remove": "add/remove {group} {unit}s together",
    "replace-one": "replace {group} {unit}s",
    "zero-out": "zero out {group} {unit}s",
}


@dataclasses.dataclass(frozen=True)
class Bound:
    """A price: an interval ``[lower, upper]`` certified to contain the true ε (or δ).

    You may claim ``upper``. Printed ends are rounded outward, so the printed interval still contains the truth.

    Args:
        lower: The lower end: no accountant could claim less for the same mechanism.
        upper: The upper end, which is the claim; may be infinite.
        tight: True if both ends belong to the exact worst case. If False, only upper bounds are known for some
            mechanism, and ``lower`` is the best known lower bound or 0.
        quantity: What the interval bounds: ``"epsilon"`` (default) or ``"delta"``.
        given: The other number: δ if the interval bounds ε, and ε if it bounds δ.
        adjacency: The adjacency of the guarantee: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        unit: Whom the guarantee protects (default ``"record"``).
        group: How many units are protected together (default 1).

    Raises:
        ArithmeticError: If the ends do not form an interval of numbers from 0 up.

    Example:
        >>> price = Bound(1.1337058, 1.1337069, quantity="epsilon", given=1e-5)
        >>> price
        ε in [1.133705, 1.133707] at δ=1e-05, add/remove one record
        >>> 1.13370600 in price, price.terms
        (True, 'add/remove one record')
    """

    lower: float
    upper: float
    tight: bool = True
    quantity: str = "epsilon"
    given: float = math.nan
    adjacency: str = "add-remove"
    unit: str = "record"
    group: int = 1

    def __post_init__(self) -> None:
        if math.isnan(self.lower) or math.isnan(self.upper) or not 0 <= self.lower <= self.upper:
            raise ArithmeticError(f"not an interval of privacy values: [{self.lower}, {self.upper}]")

    @property
    def width(self) -> float:
        """The distance between the two ends; 0 if both are infinite."""
        return 0.0 if self.lower == self.upper else self.upper - self.lower

    @property
    def terms(self) -> str:
        """The adjacency and the unit of privacy in words."""
        words = ADJACENCY_WORDS if self.group == 1 else GROUP_WORDS
        return words[self.adjacency].format(unit=self.unit, group=self.group)

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    def __repr__(self) -> str:
        name, other = ("ε", "δ") if self.quantity == "epsilon" else ("δ", "ε")
        if self.tight:
            interval = f"{name} in [{_down(self.lower)}, {_up(self.upper)}]"
        else:
            interval = f"{name} at most {_up(self.upper)} (at least {_down(self.lower)})"
        return f"{interval} at {other}={self.given:g}, {self.terms}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinities are written as the string ``"inf"``."""
        plain = dataclasses.asdict(self)
        return {k: "inf" if isinstance(v, float) and math.isinf(v) else v for k, v in plain.items()}


def _down(x: float) -> str:
    return _rounded(x, decimal.ROUND_FLOOR)


def _up(x: float) -> str:
    return _rounded(x, decimal.ROUND_CEILING)


def _rounded(x: float, rule: str) -> str:
    """Seven significant digits, rounded outward from the number's own digits: what is printed contains the truth."""
    if math.isinf(x):
        return "inf"
    if x == 0:
        return "0"
    exact = decimal.Decimal(repr(float(x)))
    exponent = exact.adjusted()
    last = decimal.Decimal(1).scaleb(min(exponent, 0) - 6)
    places = exact.quantize(last, rounding=rule, context=decimal.Context(prec=400))
    if x < 1e-4:
        if places.adjusted() > exponent:
            exponent += 1
        return f"{places.scaleb(-exponent):.6f}e{exponent:d}"
    return f"{places:f}"
