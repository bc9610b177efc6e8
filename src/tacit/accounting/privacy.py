"""What does a run promise, in one value that every room shares? The interval of ε with the terms it holds under.

Whatever a room does, ``.privacy`` (``.privacy_`` on scikit-learn estimators) is a :class:`Privacy`. What has to be said
beside the number (steps, sampler, what is treated as public) is in ``details``: plain public values, which the printed
text, a notebook's table and the privacy card show.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Iterator, Mapping
from typing import Any

from tacit.accounting.base import Mechanism
from tacit.accounting.bound import Bound
from tacit.accounting.curves import tradeoff
from tacit.accounting.errors import AccountingError
from tacit.accounting.pricing import epsilon


@dataclasses.dataclass(frozen=True, repr=False)
class Privacy:
    """A guarantee and the terms it holds under; everything in it is public.

    Args:
        interval: The price, certified to contain the true ε, with its δ, adjacency and unit.
        mechanism: What the accountant priced and the ledger charged.
        details: Public values to show beside the number, by name (default: none).

    Example:
        >>> from tacit.accounting import Gaussian, Privacy
        >>> spent = Privacy.of(Gaussian(5.0, unit="person"), 1e-5, method="one noisy sum")
        >>> spent
        ε in [0.7255217, 0.7255218] at δ=1e-05, add/remove one person; method: one noisy sum
        >>> spent.claim < spent.at(1e-6).claim, spent.unit, spent.details["method"]
        (True, 'person', 'one noisy sum')
    """

    interval: Bound
    mechanism: Mechanism
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, mechanism: Mechanism, delta: float, *, adjacency: str = "add-remove", **details: Any) -> Privacy:
        """Price a mechanism now.

        Args:
            mechanism: What ran, with its unit.
            delta: The δ of the claim.
            adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
            details: Public values to show beside the number, by name.

        Returns:
            The guarantee.
        """
        return cls(epsilon(mechanism, delta, adjacency=adjacency), mechanism, details)

    @property
    def claim(self) -> float:
        """The ε that we state: the upper end of the interval."""
        return self.interval.upper

    @property
    def upper(self) -> float:
        """The upper end of the interval, which is the claim."""
        return self.interval.upper

    @property
    def lower(self) -> float:
        """The lower end of the interval: no accountant could claim less for the same mechanism."""
        return self.interval.lower

    @property
    def delta(self) -> float:
        """The δ of the claim."""
        return self.interval.given

    @property
    def adjacency(self) -> str:
        """What a neighbouring data set is."""
        return self.interval.adjacency

    @property
    def unit(self) -> str:
        """Whom the guarantee protects."""
        return self.interval.unit

    def at(self, delta: float) -> Privacy:
        """State the same guarantee at another δ.

        Args:
            delta: The new δ.

        Returns:
            A guarantee for the same mechanism, adjacency and unit, with the same details.
        """
        return dataclasses.replace(self, interval=epsilon(self.mechanism, delta, adjacency=self.adjacency))

    def with_details(self, **details: Any) -> Privacy:
        """The same guarantee with more details, or with some replaced.

        Args:
            details: Public values to show beside the number, by name.

        Returns:
            A new guarantee; this one stays as it is.
        """
        return dataclasses.replace(self, details={**self.details, **details})

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        details = {name: list(value) if isinstance(value, tuple) else value for name, value in self.details.items()}
        return {"interval": self.interval.to_dict(), "mechanism": self.mechanism.to_dict(), "details": details}

    def _said(self) -> Iterator[tuple[str, str]]:
        """Every detail in words; what is empty is left out."""
        for name, value in self.details.items():
            if value not in (None, "", ()):
                text = ", ".join(map(str, value)) if isinstance(value, tuple) else _text(value)
                yield name.replace("_", " "), text

    def __repr__(self) -> str:
        return "; ".join([repr(self.interval), *(f"{name}: {text}" for name, text in self._said())])

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self) -> str:
        """A small table with the trade-off curve, as notebooks show it.

        Returns:
            HTML in which every text is escaped.
        """
        rows = {
            "privacy": repr(self.interval).split(" at ")[0],
            "δ": f"{self.delta:g}",
            "neighbours": self.interval.terms,
            "mechanism": repr(self.mechanism),
            **dict(self._said()),
        }
        cells = "".join(
            f'<tr><th style="text-align:left">{html.escape(name)}</th>'
            f'<td style="text-align:left">{html.escape(text)}</td></tr>'
            for name, text in rows.items()
        )
        return f"<table>{cells}</table>{self._drawn()}"

    def _drawn(self) -> str:
        """The trade-off curve, small: how often somebody is missed against how often others are accused."""
        if math.isinf(self.interval.upper):
            return ""
        try:
            curve = tradeoff(self.mechanism, points=33, adjacency=self.adjacency, group=self.interval.group)
        except AccountingError:
            return ""
        points = " ".join(f"{200 * a:.1f},{200 * (1 - b):.1f}" for a, b in zip(curve.alpha, curve.lower, strict=True))
        told = "Trade-off curve: share missed (up) against share wrongly accused (across); dashed: blind guessing"
        frame = '<rect width="200" height="200" fill="none" stroke="gray"/>'
        guess = '<line x2="200" y2="200" stroke="gray" stroke-dasharray="5 4"/>'
        line = f'<polyline points="{points}" fill="none" stroke="#0a8080" stroke-width="2.5"/>'
        words = (
            '<text x="100" y="218">wrongly accused, 0 to 100%</text>'
            '<text x="-100" y="-9" transform="rotate(-90)">missed, 0 to 100%</text>'
            '<text x="150" y="122">guessing</text>'
        )
        labels = f'<g font-size="13" text-anchor="middle" fill="currentColor">{words}</g>'
        head = f'<svg viewBox="-26 -6 238 232" width="238" height="232" role="img" aria-label="{told}">'
        return f"{head}<title>{told}</title>{frame}{guess}{line}{labels}</svg>"


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def stated_adjacency(adjacency: str, *, counted: bool) -> str:
    """The adjacency that a guarantee is stated for if it was planned for ``adjacency``.

    If the number of units was counted, then that number, or a rate that follows from it, is public, and add/remove
    neighbours differ in it. The guarantee is then stated for neighbours of the same number: zero-out.

    Args:
        adjacency: The adjacency that the run was planned for.
        counted: Whether the number of units, or anything that follows from it, is treated as public.

    Returns:
        ``"zero-out"`` in place of ``"add-remove"`` if the number was counted, otherwise ``adjacency``.

    Example:
        >>> from tacit.accounting import stated_adjacency
        >>> stated_adjacency("add-remove", counted=True), stated_adjacency("replace-one", counted=True)
        ('zero-out', 'replace-one')
    """
    return "zero-out" if counted and adjacency == "add-remove" else adjacency
