"""What does a ledger show its readers? Terms, charges, what is left, and whether the record still holds.

Everything here is computed from the entries alone, and all of it is public: mechanisms, prices and terms say how the
data were used, never what they contain.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tacit import accounting as acc
from tacit.accounting.bound import ADJACENCY_WORDS
from tacit.ledger import entries
from tacit.ledger.entries import ChainHead, Row, chain_problems
from tacit.ledger.errors import LedgerTampered, PriceError, UnreadableEntry
from tacit.ledger.rules import FAILURE_SHARE, Price, RenyiRule, Rule, Totals, certified, make_rule
from tacit.ledger.state import State, after, rule_at

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
        renewal: By how much the budget grows each period, and how often; None if it does not.
        window: Within how many consecutive versions of the data one person is, never returning; None if in any.

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
    renewal: dict[str, Any] | None = None
    window: int | None = None

    @property
    def words(self) -> str:
        """The adjacency and the unit in words, such as ``add/remove one person``."""
        return ADJACENCY_WORDS[self.adjacency].format(unit=self.unit)

    def to_terms(self) -> dict[str, Any]:
        """The terms as plain values, as the entry of the registration stores them."""
        names = ("fingerprint", "unit", "adjacency", "size_public", "epsilon", "delta", "charge_delta")
        more = {name: getattr(self, name) for name in ("renewal", "window") if getattr(self, name) is not None}
        return {name: getattr(self, name) for name in names} | self.rule.to_dict() | more

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
        data: The keyed fingerprint of the data that were read for it; None if that was not said.
        by: Who charged it, as role, name and team; empty if that was not said.
        hashes: The hashes of its entries, in order. The first is the head just after it was granted.
        plan: The number of the schedule that it is a run of, and that paid for it; empty if it paid for itself.
        version: The version of growing data that was read; None if there was one only.

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
    data: str | None = None
    by: dict[str, str] = dataclasses.field(default_factory=dict)
    hashes: tuple[str, ...] = ()
    plan: str = ""
    version: int | None = None

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
        about: dict[str, list[tuple[Row, dict[str, Any]]]] = {}
        for row in rows:
            entry = row.read()
            if "charge" in entry:
                about.setdefault(entry["charge"], []).append((row, entry))
        return [cls._read(found) for found in about.values() if found[0][1]["kind"] in ("reserve", "draw")]

    @classmethod
    def _read(cls, found: list[tuple[Row, dict[str, Any]]]) -> ChargeRecord:
        entry = found[0][1]
        bound = next((e for _, e in found if e["kind"] == "release"), {})
        return cls(
            entry["seq"],
            entry["charge"],
            entry["time"],
            entry["mechanism"],
            entry["purpose"],
            Price.from_dict(entry["price"]),
            any(e["kind"] == "confirm" for _, e in found),
            bound.get("release"),
            dict(bound.get("files", {})),
            entry.get("data"),
            dict(entry.get("by", {})),
            tuple(row.hash for row, _ in found),
            entry.get("plan", ""),
            entry.get("version"),
        )

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> ChargeRecord:
        """Read what :meth:`to_dict` wrote.

        Args:
            plain: The plain values.

        Returns:
            The record.
        """
        return cls(
            plain["seq"],
            plain["charge"],
            plain["time"],
            plain["mechanism"],
            plain["purpose"],
            Price.from_dict(plain),
            plain["state"] == "confirmed",
            plain["release"],
            dict(plain["files"]),
            plain["data"],
            dict(plain["by"]),
            tuple(plain["hashes"]),
            plain["plan"],
            plain["version"],
        )

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
            "files": self.files,
            "data": self.data,
            "by": self.by,
            "hashes": list(self.hashes),
            "plan": self.plan,
            "version": self.version,
            **self.price.to_dict(),
        }


@dataclasses.dataclass(frozen=True)
class ChangeRecord:
    """One decision about a data set: its registration, or a change of its budget, its data or its key.

    Args:
        seq: The place of the entry in the data set's chain.
        time: When it was made, in UTC (ISO 8601).
        kind: What was done: ``register``, ``raise``, ``split``, ``freeze``, ``thaw``, ``data`` (another form of the
            data), ``version`` (a new version of them), ``key`` or ``migrate``.
        because: The public reason.
        by: Who did it, as role, name and team; empty if that was not said.
        details: The rest of it, such as the new budget, the shares or the fingerprint.

    Example:
        >>> from tacit.ledger import Ledger
        >>> ledger = Ledger()
        >>> _ = ledger.register("people", epsilon=1.0, delta=1e-5)
        >>> ledger.raise_budget("people", epsilon=2.0, delta=1e-5, because="the board agreed")
        >>> [(change.kind, change.because) for change in ledger.changes("people")]
        [('register', ''), ('raise', 'the board agreed')]
    """

    seq: int
    time: str
    kind: str
    because: str
    by: dict[str, str]
    details: dict[str, Any]

    @classmethod
    def read(cls, row: Row) -> ChangeRecord:
        """The change that a stored entry is.

        Args:
            row: The stored entry.

        Returns:
            The record of it.
        """
        entry = row.read()
        about = {"kind": entry["kind"], **entry.get("change", entry.get("terms", {}))}
        about |= {
            name: entry[name] for name in ("because", "fingerprint", "version", "public", "from") if name in entry
        }
        kind, because = about.pop("kind"), about.pop("because", "")
        return cls(row.seq, entry["time"], kind, because, dict(entry.get("by", {})), about)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)


def table_of(budgets: Iterable[Budget]) -> str:
    """Budgets as a table for notebooks, each with a meter of what is used."""
    rows = "".join(
        f"<tr><th>{html.escape(one.dataset.name)}</th><td>{html.escape(one.dataset.words)}</td>"
        f"<td>ε = {one.epsilon:g}, δ = {one.delta:g}</td><td>ε = {one.left_epsilon:.4g}, δ = {one.left_delta:.3g}</td>"
        f'<td><meter min="0" max="1" value="{min(one.used, 1):.4f}"></meter> {one.used:.1%}</td>'
        f"<td>{one.charges}</td></tr>"
        for one in budgets
    )
    heads = ("data set", "neighbours", "budget", "left", "used", "charges")
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{rows}</table>"


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
            depended on results*; None if there is none, or it was not asked for. Nothing is granted on it.
        head: The newest hash of the chain.
        renyi: Order, divergence spent and limit for each order of the rule; empty where sums of ε are compared.
        epsilon: The budget's ε now, after raises and renewals.
        delta: The budget's δ now.
        frozen: Why nothing is granted now; empty where it is.
        shares: The share of each team, and the part of its share that it has used.
        version: The newest version of the data.

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
    epsilon: float = 0.0
    delta: float = 0.0
    frozen: str = ""
    shares: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    version: int = 1

    @classmethod
    def read(
        cls, dataset: DatasetTerms, state: State, head: str, time: str, composition: acc.Bound | None = None
    ) -> Budget:
        """The budget in some state.

        Args:
            dataset: The terms of the data set.
            state: What the entries so far add up to.
            head: The newest hash.
            time: Now, for renewals.
            composition: The exact price of all charges together, where it was computed.

        Returns:
            What is spent and left.
        """
        totals, rule = state.totals, rule_at(dataset, state, time)
        left_epsilon, left_delta = rule.left(totals)
        renyi: tuple[tuple[float, float, float], ...] = ()
        if isinstance(rule, RenyiRule) and totals.mode != "sum":
            spent = totals.renyi or ((0.0,),) * len(rule.limits)
            orders = (*rule.orders, float("inf"))
            renyi = tuple((o, entries.value(t), limit) for o, t, limit in zip(orders, spent, rule.limits, strict=False))
        shares = {
            team: (share, rule.used(state.spent.get(team, Totals())) / share if share else 0.0)
            for team, share in state.shares.items()
        }
        return cls(
            dataset,
            entries.value(totals.epsilon),
            entries.value(totals.delta),
            left_epsilon,
            left_delta,
            rule.used(totals),
            state.charges,
            state.charges - state.confirmed,
            composition,
            head,
            renyi,
            rule.epsilon,
            rule.delta,
            state.frozen,
            shares,
            state.version,
        )

    def _repr_html_(self) -> str:
        return table_of([self])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "dataset": self.dataset.name,
            "terms": self.dataset.to_terms(),
            "rule": self.dataset.rule.name,
            "budget": {"epsilon": self.epsilon, "delta": self.delta},
            "frozen": self.frozen,
            "shares": {team: {"share": share, "used": used} for team, (share, used) in self.shares.items()},
            "version": self.version,
            "spent": {"epsilon": entries.encode(self.spent_epsilon), "delta": self.spent_delta},
            "left": {"epsilon": self.left_epsilon, "delta": self.left_delta},
            "used": self.used,
            "charges": self.charges,
            "unconfirmed": self.unconfirmed,
            "renyi": [
                {"order": entries.encode(o), "spent": entries.encode(s), "limit": limit} for o, s, limit in self.renyi
            ],
            "exact_composition": None
            if self.composition is None
            else {"holds": NOT_ADAPTIVE, **self.composition.to_dict()},
            "head": self.head,
        }

    def __str__(self) -> str:
        d = self.dataset
        lines = [f"{d.name}: budget ε={self.epsilon:g}, δ={self.delta:g} ({d.words}), rule {d.rule.name}"]
        if self.frozen:
            lines.append(f"  FROZEN: {self.frozen}")
        if self.renyi:
            for order, spent, limit in self.renyi:
                lines.append(f"  order {order:g}: divergence {spent:.6g} of {limit:.6g}")
            lines.append(f"  charges by themselves: ε={self.spent_epsilon:.6g} in sum (not what this rule compares)")
        else:
            lines.append(f"  spent ε={self.spent_epsilon:.6g}, δ={self.spent_delta:.3g}")
            lines.append(f"  left  ε={self.left_epsilon:.6g}, δ={self.left_delta:.3g}")
        lines.append(f"  {self.used:.1%} used by {self.charges} charges, {self.unconfirmed} of them never confirmed")
        for team, (share, used) in self.shares.items():
            lines.append(f"  team {team}: {share:.1%} of the budget, {used:.1%} of that used")
        if self.version > 1:
            lines.append(f"  version {self.version} of the data")
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
    name: str, rows: Iterable[Row], head: ChainHead | None, heads: tuple[str, ...], *, reprice: bool
) -> list[str]:
    """Problems in the chain, the sums and the rule of one data set; the rows are read once, in order."""
    replay, missing = _Replay(name, reprice=reprice), set(heads)

    def read() -> Iterator[Row]:
        for row in rows:
            missing.discard(row.hash)
            replay.feed(row)
            yield row

    problems = chain_problems(name, read(), head)
    problems += [
        f"{name}: the published head {h} is not in the chain: history was rewritten, cut or rolled back"
        for h in heads
        if h in missing
    ]
    # what the entries say means nothing when they are not the ones that were written
    return problems or replay.problems


class _Replay:
    """The history played again: what each entry carries must be what the ones before it add up to."""

    def __init__(self, name: str, *, reprice: bool) -> None:
        self.name, self.reprice = name, reprice
        self.problems: list[str] = []
        self.terms: DatasetTerms | None = None
        self.state = State()
        self.time = ""
        self.known: set[str] = set()
        self.confirmed: set[str] = set()
        self.released: dict[str, str] = {}

    def feed(self, row: Row) -> None:
        """Take the next entry."""
        try:
            self._feed(row.read())
        except (KeyError, TypeError, ValueError) as error:
            self.problems.append(
                f"{self.name}: an entry cannot be understood ({type(error).__name__}: {error}, at {row.seq})"
            )

    def _feed(self, entry: dict[str, Any]) -> None:
        at = f"{self.name}: entry {entry['seq']}"
        if self.terms is None:
            if entry["kind"] != "register":
                self.problems.append(f"{self.name}: entry {entry['seq']} is not the registration")
                return
            self.terms = DatasetTerms.from_terms(self.name, entry["terms"])
            self.time = entry["time"]
            return
        if entry["time"] < self.time:
            self.problems.append(f"{at} says that it was written before the entry before it ({entry['time']})")
        self.time = max(self.time, entry["time"])
        kind = entry["kind"]
        found = after(self.terms, self.state, entry, self.confirmed)
        if isinstance(found, str):
            self.problems.append(f"{at} {found}")
            found = self.state
            if kind == "reserve":
                totals = self.terms.rule.add(self.state.totals, Price.from_dict(entry["price"]))
                found = dataclasses.replace(self.state, totals=totals, charges=self.state.charges + 1)
        self.state = found
        if kind in ("reserve", "draw"):
            if entry["charge"] in self.known:
                self.problems.append(f"{at} grants charge {entry['charge']} a second time")
            self.known.add(entry["charge"])
            if self.reprice and kind == "reserve":
                self.problems += _price_problems(at, self.terms, entry, Price.from_dict(entry["price"]))
        elif kind not in ENTRY_KINDS:
            self.problems.append(f"{at} is of the unknown kind {kind!r}")
        elif "charge" in entry:
            self._about(at, kind, entry)
        if Totals.from_dict(entry["totals"]) != self.state.totals or (
            "state" in entry and State.from_entry(entry) != self.state
        ):
            self.problems.append(f"{at} does not carry the sum of the charges before it")

    def _about(self, at: str, kind: str, entry: dict[str, Any]) -> None:
        if entry["charge"] not in self.known:
            self.problems.append(f"{at} is about charge {entry['charge']}, which was never reserved")
        elif kind == "release":
            if entries.digest(entries.canonical(entry["files"])) != entry["release"]:
                self.problems.append(f"{at} states a release that is not the hash of its files")
            if self.released.setdefault(entry["charge"], entry["release"]) != entry["release"]:
                self.problems.append(f"{at} binds charge {entry['charge']} to a second release")


#: What an entry after the registration may be.
ENTRY_KINDS = ("reserve", "draw", "confirm", "resume", "release", "budget", "data", "version", "key", "migrate")


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


def quick(records: Sequence[ChargeRecord]) -> bool:
    """Whether the exact price of these charges together takes no time: a search beside other charges takes minutes."""
    kinds = {entries.canonical(record.description) for record in records if not record.plan}
    return len(kinds) < 2 or not any('"kind":"Selected"' in kind for kind in kinds)


def composition(dataset: DatasetTerms, records: Sequence[ChargeRecord]) -> acc.Bound | None:
    """The exact price of all these charges together, if no choice had depended on results; None if there is none."""
    records = [record for record in records if not record.plan]  # its schedule is among them
    if not records or dataset.delta == 0:
        return None
    try:
        times: dict[str, int] = {}
        for record in records:
            text = entries.canonical(record.description)
            times[text] = times.get(text, 0) + 1
        kinds = {entries.canonical(record.description): record for record in records}
        total = acc.Composed(tuple((kinds[text].mechanism, n) for text, n in times.items()), unit=dataset.unit)
        return certified(total, dataset.delta, dataset.adjacency)
    except (PriceError, UnreadableEntry):  # shown as absent: a wrong number would be worse than none
        return None
