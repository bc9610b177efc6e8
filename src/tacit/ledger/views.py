"""What does a ledger show its readers? Terms, charges, what is left, and whether the record still holds.

Everything here is computed from the entries alone, and all of it is public: mechanisms, prices and terms say how the
data were used, never what they contain.
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
    """The terms of a data set, fixed when it was registered.

    Args:
        name: The name of the data set.
        fingerprint: The keyed fingerprint of the data; None if none was registered.
        unit: Whom the guarantee protects, such as ``"person"``.
        adjacency: What a neighbour is: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
        size_public: Whether the number of units is public.
        epsilon: The ε of the whole budget.
        delta: The δ of the whole budget.
        charge_delta: The δ at which a charge is priced unless it states its own.
        rule: How charges add up, and when one more is granted.

    Example:
        >>> from tacit.ledger import Ledger
        >>> terms = Ledger().register("people", unit="person", epsilon=2.0, delta=1e-6)
        >>> terms.words
        'add/remove one person'
        >>> terms.charge_delta
        1e-08
    """

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
        """The adjacency and the unit in words, such as ``add/remove one person``."""
        return ADJACENCY_WORDS[self.adjacency].format(unit=self.unit)

    def to_terms(self) -> dict[str, Any]:
        """The terms as plain values, as the entry of the registration stores them."""
        names = ("fingerprint", "unit", "adjacency", "size_public", "epsilon", "delta", "charge_delta")
        return {name: getattr(self, name) for name in names} | self.rule.to_dict()

    @classmethod
    def from_terms(cls, name: str, terms: dict[str, Any]) -> DatasetTerms:
        """Read what :meth:`to_terms` wrote.

        Args:
            name: The name of the data set.
            terms: The plain values.

        Returns:
            The terms.
        """
        orders = tuple(terms["orders"]) if "orders" in terms else None
        share = terms.get("failure_share", FAILURE_SHARE)
        rule = make_rule(terms["rule"], terms["epsilon"], terms["delta"], orders, share)
        rest = {k: v for k, v in terms.items() if k not in ("rule", "orders", "failure_share")}
        return cls(name=name, rule=rule, **rest)


@dataclasses.dataclass(frozen=True)
class ChargeRecord:
    """One charge as it stands in the history. Its price counts whether or not its mechanism can be read here.

    Args:
        seq: The place of the charge in the data set's chain.
        charge: The charge's number.
        time: When it was reserved, in UTC (ISO 8601).
        description: The mechanism as plain values.
        purpose: The public text that says why.
        price: What it costs by itself.
        confirmed: Whether the release was confirmed. It counts as spent in either case.
        release: The hash of what was released, as :meth:`Ledger.bind` recorded it; None if nothing was bound.
        files: The SHA-256 of each file of that release, by its name.

    Example:
        >>> from tacit import accounting as acc
        >>> from tacit.ledger import Ledger
        >>> ledger = Ledger()
        >>> _ = ledger.register("people", epsilon=1.0, delta=1e-5)
        >>> _ = ledger.charge("people", acc.Laplace(10.0), purpose="one count")
        >>> [record] = ledger.history("people")
        >>> record.mechanism, record.purpose, record.confirmed
        (Laplace(10), 'one count', False)
    """

    seq: int
    charge: str
    time: str
    description: dict[str, Any]
    purpose: str
    price: Price
    confirmed: bool
    release: str | None = None
    files: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def mechanism(self) -> acc.Mechanism:
        """What was charged.

        Raises:
            UnreadableEntry: If this process has no such mechanism.
        """
        try:
            return acc.from_dict(self.description)
        except (acc.AccountingError, KeyError, TypeError, ValueError) as error:
            raise UnreadableEntry(
                f"entry {self.seq} (charge {self.charge[:8]}) describes a mechanism that cannot be read here: {error}. "
                "It stays charged at its price; the program that made it, or a newer tacit, can read it"
            ) from None

    @property
    def readable(self) -> bool:
        """Whether this process can read the mechanism."""
        with contextlib.suppress(UnreadableEntry):
            return isinstance(self.mechanism, acc.Mechanism)
        return False

    @property
    def words(self) -> str:
        """The mechanism in words, for a table."""
        return repr(self.mechanism) if self.readable else f"{self.description.get('kind')} (cannot be read here)"

    @classmethod
    def read(cls, rows: Sequence[Row]) -> list[ChargeRecord]:
        """The charges in these rows, in order.

        Args:
            rows: The stored entries of one data set.

        Returns:
            One record for each charge.
        """
        opened = [row.read() for row in rows]
        confirmed = {entry["charge"] for entry in opened if entry["kind"] == "confirm"}
        bound = {entry["charge"]: entry for entry in reversed(opened) if entry["kind"] == "release"}
        return [
            cls(
                entry["seq"],
                entry["charge"],
                entry["time"],
                entry["mechanism"],
                entry["purpose"],
                Price.from_dict(entry["price"]),
                entry["charge"] in confirmed,
                bound.get(entry["charge"], {}).get("release"),
                dict(bound.get(entry["charge"], {}).get("files", {})),
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
            "release": self.release,
            **self.price.to_dict(),
        }


@dataclasses.dataclass(frozen=True)
class Budget:
    """What is spent and what is left of one data set's budget. The guarantee is the registered (ε, δ).

    Args:
        dataset: The terms of the data set.
        spent_epsilon: The sum of the charges' own ε. Under the rule ``"sum"`` this is compared with the budget.
        spent_delta: The sum of the charges' δ.
        left_epsilon: The ε that is left. Under the rule ``"renyi"``, a pure ε that would still fit.
        left_delta: The δ that is left. Under the rule ``"renyi"``, what is left for failures.
        used: The part of the budget that is gone, from 0 to 1.
        charges: The number of charges.
        unconfirmed: How many of them were never confirmed. They count as spent.
        composition: The exact price of all charges together at the data set's δ, which holds *if the choices had not
            depended on results*; None if there is none.
        head: The newest hash of the chain.
        renyi: Order, divergence spent and limit for each order of the rule ``"renyi"``; empty under ``"sum"``.

    Example:
        >>> from tacit import accounting as acc
        >>> from tacit.ledger import Ledger
        >>> ledger = Ledger()
        >>> _ = ledger.register("people", epsilon=1.0, delta=1e-5)
        >>> _ = ledger.charge("people", acc.PureDP(0.25), delta=0)
        >>> budget = ledger.budget("people")
        >>> budget.spent_epsilon, budget.left_epsilon, budget.used
        (0.25, 0.75, 0.25)
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
    renyi: tuple[tuple[float, float, float], ...] = ()

    @classmethod
    def read(cls, dataset: DatasetTerms, rows: Sequence[Row], head: ChainHead | None) -> Budget:
        """The budget after these entries.

        Args:
            dataset: The terms of the data set.
            rows: Its stored entries, in order.
            head: The newest place and hash, which the store keeps apart from the entries.

        Returns:
            What is spent and left.

        Raises:
            LedgerTampered: If the record of the head is missing.
        """
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
    """The result of checking a ledger: ``ok``, or every problem in words.

    Args:
        datasets: The names of the data sets that were checked.
        entries: How many entries were read.
        problems: One sentence for each problem; empty if there is none.

    Example:
        >>> from tacit.ledger import Ledger
        >>> ledger = Ledger()
        >>> _ = ledger.register("people", epsilon=1.0, delta=1e-5)
        >>> ledger.verify()
        Verification(datasets=('people',), entries=1, problems=())
    """

    datasets: tuple[str, ...]
    entries: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def require(self) -> None:
        """Return if there is no problem, raise if there is one.

        Raises:
            LedgerTampered: If there are problems; the message lists them all.
        """
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
    released: dict[str, str] = {}
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
        elif entry["kind"] not in ("confirm", "resume", "release"):
            problems.append(f"{at} is of the unknown kind {entry['kind']!r}")
        elif entry["charge"] not in known:
            problems.append(f"{at} is about charge {entry['charge']}, which was never reserved")
        elif entry["kind"] == "release":
            if entries.digest(entries.canonical(entry["files"])) != entry["release"]:
                problems.append(f"{at} states a release that is not the hash of its files")
            if released.setdefault(entry["charge"], entry["release"]) != entry["release"]:
                problems.append(f"{at} binds charge {entry['charge']} to a second release")
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
