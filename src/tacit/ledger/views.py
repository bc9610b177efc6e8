"""How does the ledger look to a reader? Terms, charges, what is left, and whether the record still holds.

Everything here is computed from the entries alone. All of it is public: mechanisms, prices and terms say how the data
were used, never what they hold.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from tacit import accounting as acc
from tacit.accounting.bound import ADJACENCY_WORDS
from tacit.ledger import entries
from tacit.ledger.entries import ChainHead, Row, chain_problems
from tacit.ledger.errors import LedgerTampered, PriceError, UnreadableEntry
from tacit.ledger.rules import FAILURE_SHARE, Price, RenyiRule, Rule, Totals, certified, make_rule

#: What the exact composition of adaptively chosen charges may be called, and nothing more.
NOT_ADAPTIVE = "if the choices had not depended on results"


@dataclasses.dataclass(frozen=True)
class DatasetTerms:
    """The terms of a data set, fixed when it was registered."""

    name: str
    fingerprint: str | None
    unit: str
    adjacency: str
    size_public: bool
    epsilon: float
    delta: float
    charge_delta: float
    rule: Rule

    @property
    def words(self) -> str:
        """The adjacency and the unit in words."""
        return ADJACENCY_WORDS[self.adjacency].format(unit=self.unit)

    def to_terms(self) -> dict[str, Any]:
        """The terms as the registration's entry holds them."""
        names = ("fingerprint", "unit", "adjacency", "size_public", "epsilon", "delta", "charge_delta")
        return {name: getattr(self, name) for name in names} | self.rule.to_dict()

    @classmethod
    def from_terms(cls, name: str, terms: dict[str, Any]) -> DatasetTerms:
        """Reads what :meth:`to_terms` wrote."""
        orders = tuple(terms["orders"]) if "orders" in terms else None
        share = terms.get("failure_share", FAILURE_SHARE)
        rule = make_rule(terms["rule"], terms["epsilon"], terms["delta"], orders, share)
        rest = {k: v for k, v in terms.items() if k not in ("rule", "orders", "failure_share")}
        return cls(name=name, rule=rule, **rest)


@dataclasses.dataclass(frozen=True)
class ChargeRecord:
    """One charge as it stands in the history. Its price counts whether or not its mechanism can be read here."""

    seq: int
    charge: str
    time: str
    description: dict[str, Any]
    purpose: str
    price: Price
    confirmed: bool

    @property
    def mechanism(self) -> acc.Mechanism:
        """What was charged; :class:`UnreadableEntry` where this process has no such mechanism."""
        try:
            return acc.from_dict(self.description)
        except (acc.AccountingError, KeyError, TypeError, ValueError) as error:
            raise UnreadableEntry(
                f"entry {self.seq} (charge {self.charge[:8]}) describes a mechanism that cannot be read here: {error}. "
                "It stays charged at its price; what it was, only the program that made it or a newer tacit knows"
            ) from None

    @property
    def readable(self) -> bool:
        """Whether this process can read the mechanism."""
        with contextlib.suppress(UnreadableEntry):
            return isinstance(self.mechanism, acc.Mechanism)
        return False

    @property
    def words(self) -> str:
        """The mechanism for a table."""
        return repr(self.mechanism) if self.readable else f"{self.description.get('kind')} (cannot be read here)"

    @classmethod
    def read(cls, rows: Sequence[Row]) -> list[ChargeRecord]:
        """The charges in these rows, in order."""
        opened = [row.read() for row in rows]
        confirmed = {entry["charge"] for entry in opened if entry["kind"] == "confirm"}
        return [
            cls(
                entry["seq"],
                entry["charge"],
                entry["time"],
                entry["mechanism"],
                entry["purpose"],
                Price.from_dict(entry["price"]),
                entry["charge"] in confirmed,
            )
            for entry in opened
            if entry["kind"] == "reserve"
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "seq": self.seq,
            "charge": self.charge,
            "time": self.time,
            "purpose": self.purpose,
            "mechanism": self.description,
            "state": "confirmed" if self.confirmed else "reserved",
            **self.price.to_dict(),
        }


@dataclasses.dataclass(frozen=True)
class Budget:
    """What is spent and what is left of one data set's budget.

    The guarantee is the registered (ε, δ). ``spent_epsilon`` and ``spent_delta`` are the sums of the charges' own
    prices; under the rule ``"sum"`` they are what the budget is compared with. ``composition`` is the exact
    price of all charges together at the data set's δ, true *if the choices had not depended on results*.
    """

    dataset: DatasetTerms
    spent_epsilon: float
    spent_delta: float
    left_epsilon: float
    left_delta: float
    used: float
    charges: int
    unconfirmed: int
    composition: acc.Bound | None
    head: str
    renyi: tuple[tuple[float, float, float], ...] = ()  # order, spent, limit

    @classmethod
    def read(cls, dataset: DatasetTerms, rows: Sequence[Row], head: ChainHead | None) -> Budget:
        """The state after these rows."""
        if head is None:
            raise LedgerTampered(f"the record of the head of {dataset.name!r} is missing")
        records = ChargeRecord.read(rows)
        totals = Totals()
        for record in records:
            totals = totals.plus(record.price)
        rule = dataset.rule
        left_epsilon, left_delta = rule.left(totals)
        renyi: tuple[tuple[float, float, float], ...] = ()
        if isinstance(rule, RenyiRule):
            spent = totals.renyi or ((0.0,),) * len(rule.orders)
            renyi = tuple(
                (o, entries.value(t), limit) for o, t, limit in zip(rule.orders, spent, rule.limits, strict=True)
            )
        return cls(
            dataset,
            entries.value(totals.epsilon),
            entries.value(totals.delta),
            left_epsilon,
            left_delta,
            rule.used(totals),
            len(records),
            sum(not record.confirmed for record in records),
            _composition(dataset, records),
            head.hash,
            renyi,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "dataset": self.dataset.name,
            "terms": self.dataset.to_terms(),
            "rule": self.dataset.rule.name,
            "spent": {"epsilon": entries.encode(self.spent_epsilon), "delta": self.spent_delta},
            "left": {"epsilon": self.left_epsilon, "delta": self.left_delta},
            "used": self.used,
            "charges": self.charges,
            "unconfirmed": self.unconfirmed,
            "renyi": [{"order": o, "spent": entries.encode(s), "limit": limit} for o, s, limit in self.renyi],
            "exact_composition": None
            if self.composition is None
            else {"holds": NOT_ADAPTIVE, **self.composition.to_dict()},
            "head": self.head,
        }

    def __str__(self) -> str:
        d = self.dataset
        lines = [f"{d.name}: budget ε={d.epsilon:g}, δ={d.delta:g} ({d.words}), rule {d.rule.name}"]
        if self.renyi:
            for order, spent, limit in self.renyi:
                lines.append(f"  order {order:g}: divergence {spent:.6g} of {limit:.6g}")
            lines.append(f"  charges by themselves: ε={self.spent_epsilon:.6g} in sum (not what this rule compares)")
        else:
            lines.append(f"  spent ε={self.spent_epsilon:.6g}, δ={self.spent_delta:.3g}")
            lines.append(f"  left  ε={self.left_epsilon:.6g}, δ={self.left_delta:.3g}")
        lines.append(f"  {self.used:.1%} used by {self.charges} charges, {self.unconfirmed} of them never confirmed")
        if self.composition is not None:
            lines.append(f"  exact composition: {self.composition!r}, {NOT_ADAPTIVE}")
        lines.append(f"  head {self.head}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Verification:
    """The result of checking a ledger: ``ok``, or every problem in words."""

    datasets: tuple[str, ...]
    entries: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.problems

    def require(self) -> None:
        """Raise :class:`LedgerTampered` with every problem, unless there is none."""
        if self.problems:
            raise LedgerTampered("\n".join(self.problems))


def verify_dataset(
    name: str, rows: Sequence[Row], head: ChainHead | None, heads: tuple[str, ...], *, reprice: bool
) -> list[str]:
    """Problems in the chain, the sums and the rule of one data set."""
    problems = chain_problems(name, rows, head)
    hashes = {row.hash for row in rows}
    problems += [
        f"{name}: the published head {h} is not in the chain: history was rewritten" for h in heads if h not in hashes
    ]
    if problems:
        return problems  # what the entries say means nothing when they are not the ones that were written
    try:
        return _content_problems(name, [row.read() for row in rows], reprice=reprice)
    except (KeyError, TypeError, ValueError) as error:
        return [f"{name}: an entry cannot be understood ({type(error).__name__}: {error})"]


def _content_problems(name: str, opened: list[dict[str, Any]], *, reprice: bool) -> list[str]:
    problems: list[str] = []
    if opened[0]["kind"] != "register":
        return [f"{name}: entry 0 is not the registration"]
    terms = DatasetTerms.from_terms(name, opened[0]["terms"])
    totals = Totals()
    known: set[str] = set()
    for entry in opened[1:]:
        at = f"{name}: entry {entry['seq']}"
        if entry["kind"] == "reserve":
            price = Price.from_dict(entry["price"])
            totals = totals.plus(price)
            known.add(entry["charge"])
            if not terms.rule.within(totals):
                problems.append(f"{at} was granted although it exceeds the budget")
            if reprice:
                problems += _price_problems(at, terms, entry, price)
        elif entry["kind"] not in ("confirm", "resume"):
            problems.append(f"{at} is of the unknown kind {entry['kind']!r}")
        elif entry["charge"] not in known:
            problems.append(f"{at} speaks of charge {entry['charge']}, which was never reserved")
        if Totals.from_dict(entry["totals"]) != totals:
            problems.append(f"{at} does not carry the sum of the charges before it")
    return problems


def _price_problems(at: str, terms: DatasetTerms, entry: dict[str, Any], price: Price) -> list[str]:
    try:
        mechanism = acc.from_dict(entry["mechanism"])
    except (acc.AccountingError, KeyError, TypeError, ValueError) as error:
        return [f"{at} cannot be priced again: {error}"]
    again = terms.rule.price(mechanism, price.delta, terms.adjacency)
    # Another version of the accountant may be a little tighter or looser: only a price that is too low matters.
    low = price.epsilon < again.epsilon * (1 - 1e-3) - 1e-6
    low |= any(old < new * (1 - 1e-3) - 1e-9 for old, new in zip(price.renyi, again.renyi, strict=True))
    return [f"{at} was charged ε={price.epsilon:.6g}; the accountant asks {again.epsilon:.6g}"] if low else []


def _composition(dataset: DatasetTerms, records: Sequence[ChargeRecord]) -> acc.Bound | None:
    if not records or dataset.delta == 0:
        return None
    try:
        total = acc.Composed(tuple((r.mechanism, 1) for r in records), unit=dataset.unit)
        return certified(total, dataset.delta, dataset.adjacency)
    except (PriceError, UnreadableEntry):  # shown as absent: a wrong number would be worse than none
        return None
