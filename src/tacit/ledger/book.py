"""What does every reader and writer of a ledger share? The record: its checks, its next entry, and what it shows.

Whatever grants looks at the registration and the newest entries only, in the same time however long the history is.
"""

from __future__ import annotations

import datetime
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tacit import accounting as acc
from tacit.ledger import entries, signing
from tacit.ledger.entries import Row, digest
from tacit.ledger.errors import BudgetExceeded, ChargeError, LedgerTampered, NotALedger, TermsError
from tacit.ledger.rules import Price
from tacit.ledger.state import State, after, charged
from tacit.ledger.store import Already, Decide, Ends, MemoryStore, Store
from tacit.ledger.views import (
    Budget,
    ChangeRecord,
    ChargeRecord,
    DatasetTerms,
    Verification,
    composition,
    quick,
    table_of,
    verify_dataset,
)

#: Up to how many charges ``budget`` shows their exact composition without being asked: it reads all of them.
EXACT = 200


class Book:
    """The record of a ledger: how an entry is checked and written, and what can be read."""

    quote: Callable[..., Price]
    _store: Store
    _by: dict[str, str]
    _request: dict[str, str] | None
    #: The schedule whose runs this ledger's charges are; None where they are paid.
    _plan: str | None
    #: The newest head of each data set that was seen here: what goes behind it was rolled back.
    _seen: dict[str, Row]
    _firsts: dict[str, Row]

    # -- what every entry is made of -----------------------------------------------------------------------------------

    def _append(self, dataset: str, decide: Decide) -> Row:
        """Write one entry; a request that was answered before is answered again."""
        request = self._request

        def once(ends: Ends) -> dict[str, Any]:
            if request is None:
                return decide(ends)
            for row in ends.find(f"request:{request['key']}"):
                if row.read()["request"]["body"] != request["body"]:
                    raise ChargeError("this key was used for another request: every request needs its own")
                raise Already(row)
            return decide(ends) | {"request": request}

        row = self._store.append(dataset, once)
        if row.seq >= self._seen.get(dataset, row).seq:
            self._seen[dataset] = row
        return row

    def _who(self) -> dict[str, Any]:
        return {"by": self._by} if self._by else {}

    def _follow(self, ends: Ends, kind: str, number: str) -> dict[str, Any]:
        return {"kind": kind, "charge": number, **time_after(ends.last), **self._state(ends).to_dict(), **self._who()}

    def _now(self, dataset: str) -> tuple[Ends, State]:
        """The ends of the chain and its state, read without the lock: others may write meanwhile."""
        seen = self._seen.get(dataset)
        ends = self._store.ends(dataset)
        return ends, self._state(ends, seen)

    def _state(self, ends: Ends, seen: Row | None = None) -> State:
        """What the newest entry carries, after the checks that take the same time however long the history is.

        The entry and the registration are the ones that were hashed, they belong together, the state follows from the
        entry before, and nothing that was seen here is gone. Whether everything between is whole, ``verify`` says.

        Args:
            ends: The ends of the chain, read under its lock, unless ``seen`` is given.
            seen: What had been seen before they were read.
        """
        first, before, last = ends.first, ends.before, ends.last
        dataset = last.dataset
        seen = seen or self._seen.get(dataset)
        for row in (first, last, *([before] if before else [])):
            if digest(row.body) != row.hash:
                raise self._tampered(dataset, f"entry {row.seq} was changed after it was written")
            entry = row.read()
            if (entry["dataset"], entry["seq"]) != (dataset, row.seq):
                raise self._tampered(dataset, f"the entry at place {row.seq} was moved there")
        if entries.root_of(last) != first.hash:
            raise self._tampered(dataset, "the registration is not the one that the newest entry was written under")
        entry = last.read()
        if before is not None and entry["previous"] != before.hash:
            raise self._tampered(dataset, f"entry {last.seq} does not follow the entry before it")
        if seen is not None and (last.seq < seen.seq or (last.seq == seen.seq and last.hash != seen.hash)):
            raise self._tampered(dataset, f"it was rolled back: entry {seen.seq} was here, and is gone")
        state = State.from_entry(entry)
        if before is not None and not _follows(terms_of(first), before.read(), entry, state):
            raise self._tampered(dataset, f"the sums of entry {last.seq} do not follow from the entry before it")
        self._seen.setdefault(dataset, last)
        self._firsts.setdefault(dataset, first)
        return state

    def _tampered(self, dataset: str, what: str) -> LedgerTampered:
        return LedgerTampered(
            f"the record of {dataset!r} in {self._store.place()} was altered: {what}; nothing more is granted. "
            "tacit ledger verify shows where"
        )

    def _own(self, record: ChargeRecord) -> None:
        """Refuse that one analyst goes on with, confirms or binds what another one charged."""
        if self._by and record.by and self._by["role"] == "analyst" and record.by.get("name") != self._by["name"]:
            raise ChargeError(f"charge {record.charge} was made by {record.by.get('name')}, not by {self._by['name']}")

    # -- reading -------------------------------------------------------------------------------------------------------

    def datasets(self) -> list[str]:
        """The names that are registered."""
        return self._store.names()

    def dataset(self, name: str) -> DatasetTerms:
        """The terms of a data set.

        Args:
            name: The name it was registered under.

        Returns:
            Its fingerprint, unit, adjacency, budget and rule.
        """
        return terms_of(self._first(name))

    def _first(self, name: str) -> Row:
        """The registration, which never changes: once it was checked, it is compared with what is there."""
        return self._firsts.get(name) or self._store.first(name)

    def history(self, dataset: str, *, after: int = -1, limit: int | None = None) -> list[ChargeRecord]:
        """The charges of a data set, in order: all of them, or a page.

        Args:
            dataset: The name of the data set.
            after: The place (``seq``) of the charge before the page. The default begins with the first one.
            limit: How many charges. None, the default, reads all of them.

        Returns:
            One record for each charge, with its price and whether it was confirmed.
        """
        if limit is None:
            rows = self._store.rows(dataset)[0]
            return [record for record in ChargeRecord.read(rows) if record.seq > after]
        self._store.first(dataset)
        page = self._store.page(dataset, "reserve", after, limit)
        keys = [f"charge:{row.read()['charge']}" for row in page]
        return ChargeRecord.read(self._store.find(dataset, keys)) if keys else []

    def changes(self, dataset: str) -> list[ChangeRecord]:
        """What was decided about a data set: its registration, every change of its budget, its data and its key.

        Args:
            dataset: The name of the data set.

        Returns:
            One record for each, in order, with who decided it and why.
        """
        return [ChangeRecord.read(row) for row in self._store.find(dataset, ["change"])]

    def record(self, dataset: str, charge: str) -> ChargeRecord:
        """One charge as it stands, looked up without reading the others.

        Args:
            dataset: The name of the data set.
            charge: The number of the charge.

        Returns:
            Its record.

        Raises:
            ChargeError: If there is no such charge.
        """
        self._store.first(dataset)
        return self._record(dataset, charge, self._store.find(dataset, [f"charge:{charge}"]))

    def _record(self, dataset: str, charge: str, found: list[Row]) -> ChargeRecord:
        records = ChargeRecord.read(found)
        if not records:
            raise ChargeError(
                f"no charge {charge!r} on {dataset!r}: tacit ledger history lists the charges that there are"
            )
        return records[0]

    def mentions(self, dataset: str, charge: str) -> int:
        """Count the entries about a charge: one when it was reserved, one each time it was taken up or confirmed.

        The entry of its release is not counted.

        Args:
            dataset: The name of the data set.
            charge: The number of the charge.

        Returns:
            The number of entries; 0 if there is no such charge.
        """
        return sum(row.read()["kind"] != "release" for row in self._store.find(dataset, [f"charge:{charge}"]))

    def budget(self, dataset: str, *, exact: bool | None = None) -> Budget:
        """What is spent and left, and what the exact composition would be if no choice had depended on results.

        Args:
            dataset: The name of the data set.
            exact: Whether to compute the exact composition, which reads every charge. None, the default, does so for
                up to 200 charges, unless a search is among several: its exact composition with others takes minutes.
                There is none with a ``window``: nobody is in all that was charged.

        Returns:
            The budget; ``str()`` of it is the text that ``tacit ledger budget`` prints.
        """
        ends, state = self._now(dataset)
        terms = terms_of(ends.first)
        together = self._composition(terms, state, exact=exact)
        return Budget.read(terms, state, ends.last.hash, time_after(ends.last)["time"], together)

    def _composition(self, terms: DatasetTerms, state: State, *, exact: bool | None) -> acc.Bound | None:
        """The exact price of all charges, where it was asked for or takes no time.

        None with a window: charges on different versions are paid by different people, and nobody pays them all.
        """
        if terms.window is not None or exact is False or (exact is None and state.charges > EXACT):
            return None
        records = self.history(terms.name)
        return composition(terms, records) if exact or quick(records) else None

    def foresee(self, dataset: str, mechanism: acc.Mechanism, *, delta: float | None = None) -> Budget:
        """The budget as it would be after a charge. Nothing is recorded.

        Args:
            dataset: The name of a registered data set.
            mechanism: What would be computed.
            delta: The charge's part of the data set's δ. None takes the registered share.

        Returns:
            The budget with this charge in it, by the rule of the data set.

        Raises:
            BudgetExceeded: If the charge would be refused, with what would still fit.
            TermsError: If the mechanism does not match the data set's terms.
        """
        price = self.quote(dataset, mechanism, delta=delta)
        ends, state = self._now(dataset)
        terms, time = terms_of(ends.first), time_after(ends.last)["time"]
        after = charged(terms, state, price, time, self._by.get("team", ""), None)
        if isinstance(after, str):  # somebody else charged between the two looks
            raise BudgetExceeded(f"another charge on {dataset!r} came between: ask again")
        return Budget.read(terms, after, ends.last.hash, time)

    def _repr_html_(self) -> str:
        return table_of(self.budget(name, exact=False) for name in self.datasets())

    def head(self, dataset: str) -> str:
        """The newest hash of a data set's chain. Printed on a card, it fixes the whole history before it.

        Args:
            dataset: The name of the data set.

        Returns:
            64 hexadecimal digits.

        Raises:
            LedgerTampered: If the record of the head was deleted.
        """
        head = self._store.head(dataset)
        if head is None:
            raise LedgerTampered(f"the record of the head of {dataset!r} is missing")
        return head.hash

    def _signature(self, dataset: str) -> tuple[entries.ChainHead, str | None]:
        if isinstance(self._store, MemoryStore):
            return self._store.ends(dataset).last.head, None
        return self._store.signature(dataset)  # type: ignore[attr-defined, no-any-return]

    def sign(self, dataset: str) -> str:
        """Check the whole history and sign its head, once, for a ledger that is older than its key.

        Args:
            dataset: The name of the data set.

        Returns:
            The new head, which is signed. An entry says with which key.

        Raises:
            LedgerTampered: If the history does not hold: then nothing is signed.
            TermsError: If the ledger was opened without a key.
        """
        store: Any = self._store
        signer = getattr(store, "signer", None)
        if signer is None:
            raise TermsError("open the ledger with its key: Ledger(where, key=…), --key, or TACIT_LEDGER_KEY")
        self.verify(dataset).require()
        store.trusting = True
        try:
            unsigned = store.ends(dataset).last

            def decide(ends: Ends) -> dict[str, Any]:
                if ends.last != unsigned:
                    raise LedgerTampered(f"somebody charged {dataset!r} while it was checked: sign it again")
                state = self._state(ends).to_dict()
                return {"kind": "key", "public": signer.public, **time_after(ends.last), **state, **self._who()}

            head = self._append(dataset, decide).hash
        finally:
            store.trusting = False
        store.seal_all(dataset)
        return head

    def verify(
        self,
        dataset: str | None = None,
        *,
        heads: tuple[str, ...] | list[str] = (),
        reprice: bool = False,
        anchors: Sequence[str | os.PathLike[str]] = (),
        public_key: str | None = None,
    ) -> Verification:
        """Check the hash chain, the sums and the rule.

        Args:
            dataset: The name of one data set. None, the default, checks all of them.
            heads: Hashes of ``dataset`` that were printed elsewhere, on a card for example. Each must still be in
                its chain.
            reprice: Whether to ask the accountant for every price again, and report charges that were priced too low.
            anchors: Files or git repositories with heads that were written there earlier (``tacit ledger anchor``).
                Each must still be in its chain: what was cut off or rolled back is found.
            public_key: The public key of the ledger. With it every head, here and in the anchors, must be signed.

        Returns:
            What was checked, and every problem in words.

        Raises:
            TermsError: If ``heads`` are given without the data set they belong to.
        """
        if heads and dataset is None:
            raise TermsError("heads belong to one data set: give its name as dataset")
        names = [dataset] if dataset is not None else self.datasets()
        problems: list[str] = []
        count = 0
        anchored: dict[str, list[str]] = {}
        for place in anchors:
            for line in signing.read_anchor(place, public_key):
                anchored.setdefault(line["dataset"], []).append(line["hash"])
        gone = sorted(set(anchored) - set(self.datasets())) if dataset is None else []
        problems += self._store.guards(names)
        problems += [f"{name}: an anchor holds its head, and the whole data set is gone" for name in gone]
        for name in names:
            rows = _Counted(self._store, name)
            known = (*heads, *anchored.get(name, ()))
            found = verify_dataset(name, rows, rows.head, known, reprice=reprice)
            # rows that somebody put there are in no index
            problems += found or [f"{name}: the index lacks entry {seq} ({key}): it was cut" for seq, key in rows.lost]
            count += rows.count
            if public_key is not None and not signing.signed_by(public_key, name, *self._signature(name)):
                problems.append(f"{name}: its head is not signed with the given key")
        return Verification(tuple(names), count, tuple(problems))


# -- helpers ---------------------------------------------------------------------------------------------------------


class _Counted:
    """The rows of a data set as they are read, page by page, and the head that belongs to the last of them."""

    def __init__(self, store: Store, name: str) -> None:
        self.count, self._store, self._name = 0, store, name
        #: The rows that cannot be looked up, and by what.
        self.lost: list[tuple[int, str]] = []
        # Read before the rows: what others append meanwhile is left for the next check.
        self.head = store.head(name)

    def __iter__(self) -> Iterator[Row]:
        rows = self._rows()
        while page := list(itertools.islice(rows, 1000)):
            self.count += len(page)
            self.lost += self._store.lost(self._name, page)
            yield from page

    def _rows(self) -> Iterator[Row]:
        appended = False
        for row in self._store.scan(self._name):
            if self.head is not None and row.seq > self.head.seq and not appended:
                later = self._store.head(self._name)
                appended = later is not None and later.seq >= row.seq  # else nobody wrote it who keeps the head
            if appended:
                return
            yield row


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def time_after(last: Row) -> dict[str, str]:
    """The time of the next entry, which never goes back: where the clock does, the entry says what it showed."""
    shown, before = now(), last.read()["time"]
    return {"time": shown} if shown >= before else {"time": before, "clock": shown}


def _follows(terms: DatasetTerms, was: dict[str, Any], entry: dict[str, Any], state: State) -> bool:
    """Whether an entry carries the state that follows from the entry before it; one of tacit 0.1 carries none."""
    if "state" not in was:
        return True
    # a charge may be confirmed again, which counts once: whether it was before, these two entries do not say
    confirmed = ({entry["charge"]}, set()) if entry["kind"] == "confirm" else (set[str](),)
    return any(after(terms, State.from_entry(was), entry, known) == state for known in confirmed)


def terms_of(row: Row) -> DatasetTerms:
    """The terms in a registration."""
    entry = row.read()
    if entry["format"] > entries.FORMAT:
        raise NotALedger(
            f"{row.dataset!r} was registered by a newer version of tacit (format {entry['format']}); "
            f"this one reads format {entries.FORMAT}: upgrade tacit"
        )
    return DatasetTerms.from_terms(row.dataset, entry["terms"])
