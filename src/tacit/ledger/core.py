"""What has been spent on this data, and what is left?

A data set is registered once, with its terms: fingerprint, unit of privacy, adjacency, whether its size is public, a
budget (ε, δ) and the rule that adds charges up. Every release is charged: the charge is reserved before the release and
confirmed after it. A charge that is never confirmed still counts as spent, because somebody may have seen the result.
Nothing is ever refunded.
"""

from __future__ import annotations

import dataclasses
import os
import re
import uuid
import warnings
from collections.abc import Mapping
from typing import Any

from tacit import accounting as acc
from tacit.ledger import advice as advising
from tacit.ledger import entries
from tacit.ledger.book import Book, now, terms_of, time_after
from tacit.ledger.changes import Changes, version_read
from tacit.ledger.charge import Charge
from tacit.ledger.entries import Row
from tacit.ledger.errors import (
    Advice,
    BudgetExceeded,
    ChargeError,
    CopyError,
    DatasetExists,
    FingerprintMismatch,
    PriceError,
    TermsError,
)
from tacit.ledger.fingerprint import FORMER, PREFIX, fingerprint, former_fingerprint
from tacit.ledger.rules import FAILURE_SHARE, Price, make_rule
from tacit.ledger.state import State, charged, rule_at, scheduled
from tacit.ledger.store import WHY_NOT_COPIED, Already, Ends, MemoryStore
from tacit.ledger.terms import check_growth, check_number, check_terms, check_text, priced
from tacit.ledger.views import ChargeRecord, DatasetTerms

#: The environment variable that names the file of the key.
KEY = "TACIT_LEDGER_KEY"
#: How many charges δ is divided into unless the registration says otherwise.
CHARGES = 100


class Ledger(Changes, Book):
    """The record of everything that was released about the data sets registered in it.

    Guarantee:
        Everything charged to a data set together is (ε, δ)-DP for its unit under its adjacency, with the ε and δ it was
        registered with, even if each charge was chosen after seeing earlier results.

    Args:
        where: The path of a SQLite file (created at the first registration, mode 0600), an address
            ``"postgresql://…"``, or that of a service, ``"https://…"`` (:class:`tacit.ledger.remote.RemoteLedger`).
            None, the default, or ``":memory:"`` keeps the ledger in this process only.
        key: The file of an Ed25519 key (``tacit ledger key``). With it every head is signed, and nothing is granted on
            a head that is not. None, the default, takes the file that the environment variable ``TACIT_LEDGER_KEY``
            names, and signs nothing without it.

    Raises:
        StorageError: If ``where`` is an address that tacit cannot use, or others can read the key.

    Example:
        >>> from tacit import accounting as acc
        >>> ledger = Ledger()
        >>> _ = ledger.register("people", unit="record", epsilon=1.0, delta=1e-5)
        >>> with ledger.charge("people", acc.Laplace(10.0), purpose="one count") as charge:
        ...     released = 42 + 3  # what the mechanism gave
        >>> charge.epsilon <= 0.1
        True
        >>> ledger.charge("people", acc.PureDP(2.0))
        Traceback (most recent call last):
        tacit.ledger.errors.BudgetExceeded: ...
    """

    def __new__(
        cls, where: str | os.PathLike[str] | None = None, *, key: str | os.PathLike[str] | None = None
    ) -> Ledger:
        """A ledger behind an address of HTTP is a :class:`tacit.ledger.remote.RemoteLedger`."""
        if cls is Ledger and isinstance(where, str) and where.startswith(("http://", "https://")):
            from tacit.ledger.remote import RemoteLedger

            return object.__new__(RemoteLedger)
        return object.__new__(cls)

    def __init__(
        self, where: str | os.PathLike[str] | None = None, *, key: str | os.PathLike[str] | None = None
    ) -> None:
        self._key_file = key = key if key is not None else os.environ.get(KEY) or None
        self._by = {}
        self._request = None
        self._plan = None
        self._seen = {}
        self._firsts = {}
        if where is None or where == ":memory:":
            self._store = MemoryStore()
        else:
            from tacit.ledger.sql import SqlStore  # SQLAlchemy is loaded only where a file or a server is used

            self._store = SqlStore(where)
            if key is not None:
                from tacit.ledger.signing import SigningKey

                self._store.signer = SigningKey.load(key)

    def acting(self, by: Mapping[str, str], request: Mapping[str, str] | None = None) -> Ledger:
        """The same ledger on behalf of somebody: every entry says by whom.

        Args:
            by: The role, the name and, if there is one, the team.
            request: The ``key`` of the request and the digest of its ``body``. A second request with this key writes
                nothing and gets the first one's answer.

        Returns:
            The same ledger; the store is shared.
        """
        other = self._alike()
        other._by, other._request = dict(by), None if request is None else dict(request)
        return other

    def with_plan(self, plan: str) -> Ledger:
        """The same ledger for the runs of a schedule: a charge takes the next run that is due and pays nothing.

        Give it to ``Training``, an estimator or an integration in place of the ledger. What runs must be what was
        reserved, with the same parameters.

        Args:
            plan: The number of the schedule's charge, as :meth:`plan` returned it.

        Returns:
            The same ledger; the store is shared.

        Example:
            >>> from tacit import accounting as acc
            >>> ledger = Ledger()
            >>> _ = ledger.register("people", epsilon=3.0, delta=1e-5)
            >>> year = ledger.plan("people", acc.Gaussian(20.0), every="month", times=12)
            >>> january = ledger.with_plan(year.number).charge("people", acc.Gaussian(20.0), purpose="January")
            >>> ledger.budget("people").charges
            1
        """
        other = self._alike()
        other._plan = plan
        return other

    def _alike(self) -> Ledger:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    # -- registering ---------------------------------------------------------------------------------------------------

    def register(
        self,
        name: str,
        *,
        fingerprint: Any = None,
        unit: str = "record",
        adjacency: str = "add-remove",
        size_public: bool = True,
        epsilon: float,
        delta: float,
        rule: str = "tight",
        orders: tuple[float, ...] | list[float] | None = None,
        charges: int = CHARGES,
        failure_share: float = FAILURE_SHARE,
        renewal: Mapping[str, Any] | None = None,
        window: int | None = None,
    ) -> DatasetTerms:
        """Register a data set and fix its terms forever. Registering it again on the same terms changes nothing.

        If the same data are registered under another name, this warns: the two budgets add up for the same people, and
        nobody counts the sum.

        Guarantee:
            Everything charged to it together is (``epsilon``, ``delta``)-DP for one ``unit`` under ``adjacency``,
            however the charges were chosen.

        Args:
            name: A short printable text under which charges name the data set.
            fingerprint: The data (a path, bytes, an array, a table, or a list of these) or a text that
                :meth:`fingerprint` returned. None, the default, registers no fingerprint: data cannot be checked then.
            unit: Whom the guarantee protects, such as ``"record"`` or ``"person"``. Each mechanism charged must
                protect the same unit.
            adjacency: What a neighbour is: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
            size_public: Whether the number of units is public. False needs ``"add-remove"`` and refuses mechanisms
                that contain the size.
            epsilon: The ε that all charges together may spend.
            delta: The δ that all charges together may spend, in [0, 1).
            rule: How charges add up: ``"tight"``, the default (a Rényi filter, or the sum if the first charge needs
                it), ``"renyi"`` (a Rényi filter) or ``"sum"`` (Σε and Σδ). With δ = 0 it is ``"sum"``.
            orders: The Rényi orders. None chooses those that are best for Gaussian noise.
            charges: How many charges share δ: each is priced at ``delta / charges`` unless it states its own.
            failure_share: Under a Rényi filter, the part of δ kept for failures (cut batches and (ε, δ)-mechanisms).
            renewal: By how much the budget grows, fixed now: ``every`` (a period such as ``"year"``), ``epsilon``,
                ``delta`` and ``times``. The guarantee is then that of the budget at the time. None: it never grows.
            window: All versions of growing data that one person is in lie within so many consecutive ones: whoever is
                gone for longer never returns. Something public tells it, such as the month they joined. Everybody then
                pays for the versions within their window. The ledger cannot check it. None: they may be in any.

        Returns:
            The terms as they were recorded.

        Raises:
            DatasetExists: If the name is registered on other terms.
            TermsError: If the terms contradict each other.
        """
        terms = check_terms(name, unit, adjacency, epsilon, delta, charges, size_public=size_public)
        chosen = make_rule(rule, terms["epsilon"], terms["delta"], tuple(orders) if orders else None, failure_share)
        terms["fingerprint"] = None if fingerprint is None else self._named(fingerprint)
        terms |= chosen.to_dict() | check_growth(renewal, window, now())
        return self._register(name, terms)

    def _register(self, name: str, terms: dict[str, Any]) -> DatasetTerms:
        """Write the registration, or compare it with the one that is there."""
        entry = {"kind": "register", "time": now(), "terms": terms, **State().to_dict(), **self._who()}
        if name in self._seen and name not in self._store.names():
            raise self._tampered(name, "it was registered here, and the whole of it is gone")
        try:
            made = terms_of(self._seen.setdefault(name, self._store.create(name, entry)))
        except DatasetExists:
            there = made = self.dataset(name)
            old, new = (_comparable(plain) for plain in (there.to_terms(), terms))
            differ = sorted(k for k in old | new if old.get(k) != new.get(k))
            if differ:
                raise DatasetExists(
                    f"{name!r} is registered in {self._store.place()} on other terms ({', '.join(differ)}); terms "
                    "are never changed. A second budget for the same data adds to the first"
                ) from None
        warn_of_twins(name, self._twins(made))
        return made

    def _twins(self, made: DatasetTerms) -> list[str]:
        """The other names under which the same data are registered."""
        owners = [] if made.fingerprint is None else self._store.owners(f"data:{made.fingerprint}")
        return [name for name in owners if name != made.name]

    def fingerprint(self, data: Any) -> str:
        """The fingerprint of data under this ledger's secret. It may be published: it tells an outsider nothing.

        Args:
            data: A path (a table is read as one, a folder of Parquet files too, anything else by its bytes), bytes, an
                array, a table, or a list, tuple or mapping of arrays with the same rows. The order of rows and of named
                columns does not matter.

        Returns:
            A text that begins with ``rows-keyed:``. Another ledger gives the same data another one.
        """
        return fingerprint(data, self.secret())

    def secret(self) -> bytes:
        """The secret of the fingerprints, for those who read the data. It is never released."""
        return self._store.key()

    def _named(self, data: Any) -> str:
        """The fingerprint of data, or the text where somebody has it already."""
        if isinstance(data, str):
            if not data.startswith((PREFIX, FORMER)):
                raise TermsError(
                    f"fingerprint={data!r} is a text, not data: give the file as pathlib.Path({data!r}), the table "
                    "itself, or a text that ledger.fingerprint(data) returned"
                )
            return data
        return self.fingerprint(data)

    def recognise(self, name: str, data: Any) -> str | None:
        """The fingerprint to charge with, after checking that these are the data registered under this name.

        Every entry point of tacit calls it on what it reads. If no fingerprint was registered there is nothing to
        compare, and the charge still states which data were read.

        Args:
            name: The name of the data set.
            data: What was read, or its fingerprint. None if the caller does not know.

        Returns:
            The fingerprint, for ``charge(..., data=...)``; None for None.

        Raises:
            FingerprintMismatch: If a fingerprint is registered, and the data have another one, or nobody says which
                data they are.
        """
        terms = self.dataset(name)
        if data is None:
            if terms.fingerprint is not None:
                raise FingerprintMismatch(
                    f"{name!r} is registered with a fingerprint, and nothing says which data are read here: give them "
                    "(source= or data=, as the call has it). See: tacit explain fingerprint"
                )
            return None
        former = terms.fingerprint is not None and terms.fingerprint.startswith(FORMER)
        if former and not isinstance(data, str) and former_fingerprint(data, self.secret()) == terms.fingerprint:
            return str(terms.fingerprint)  # registered by tacit 0.1, by bytes in their order
        found = self._named(data)
        if terms.fingerprint is not None and not self._knows(name, found):
            raise FingerprintMismatch(
                f"these are not the data registered as {name!r}: the fingerprints differ. If they are the same people "
                "in another form, or a new version of the data, their owner says so once (ledger.accept or "
                "ledger.new_version; tacit ledger data). See: tacit explain fingerprint"
            )
        return found

    def _knows(self, name: str, fingerprint: str) -> bool:
        return bool(self._store.find(name, [f"data:{fingerprint}"]))

    def check_data(self, name: str, data: Any) -> None:
        """Check that these are the data that were registered.

        Args:
            name: The name of the data set.
            data: The data at hand.

        Raises:
            FingerprintMismatch: If the data differ, or ``name`` was registered without a fingerprint.
        """
        if self.dataset(name).fingerprint is None:
            raise FingerprintMismatch(
                f"{name!r} was registered without a fingerprint, so there is nothing to compare these data with. "
                "See: tacit explain fingerprint"
            )
        self.recognise(name, data)

    # -- charging ------------------------------------------------------------------------------------------------------

    def charge(
        self,
        dataset: str,
        mechanism: acc.Mechanism,
        *,
        delta: float | None = None,
        purpose: str = "",
        number: str | None = None,
        data: str | None = None,
        version: int | None = None,
    ) -> Charge:
        """Charge a mechanism to the budget, before anybody sees anything it computes.

        When this returns, the charge is recorded and counts, whatever happens next. Use it in a ``with`` block,
        which confirms it at the end, or call :meth:`Charge.confirm`.

        Args:
            dataset: The name of a registered data set.
            mechanism: What is about to be computed, as a mechanism of :mod:`tacit.accounting` for the data set's unit.
            delta: This charge's part of the data set's δ. None takes the registered share, by default δ/100.
            purpose: Why it is computed. This is public: write it for readers of the card.
            number: For work that survives a crash: a random number of your own, saved *before* this call. If the
                ledger already has it, for the same mechanism at the same δ, that charge is taken up (see
                :meth:`resume`) and nothing is charged again. A confirmed one comes back confirmed. Then what is
                computed must be what was computed before, with the same random numbers. None draws a new number.
            data: The fingerprint of the data that are read, as :meth:`recognise` returned it. The entry and the card
                state it. None says nothing about the data.
            version: The version of growing data that is read. None means the one that ``data`` are, or the newest.

        Returns:
            The charge, granted and recorded.

        Raises:
            BudgetExceeded: If it does not fit, with what would still fit. Then nothing is recorded.
            TermsError: If the mechanism does not match the data set's unit, adjacency, size or δ.
            UnknownDataset: If no data set of this name is registered.
            ChargeError: If ``number`` was used for something else.
            FingerprintMismatch: If ``data`` are not registered under this name.
        """
        return self._charge(dataset, mechanism, delta=delta, purpose=purpose, number=number, data=data, version=version)

    def fits(self, dataset: str, mechanism: acc.Mechanism, *, delta: float | None = None) -> bool:
        """Whether a charge would be granted now. Nothing is charged, and another process may charge meanwhile.

        Args:
            dataset: The name of a registered data set.
            mechanism: What would be computed.
            delta: This charge's part of the data set's δ. None takes the registered share.

        Returns:
            True if :meth:`charge` would grant it.

        Example:
            >>> ledger = Ledger()
            >>> _ = ledger.register("people", epsilon=1.0, delta=1e-5)
            >>> ledger.fits("people", acc.Laplace(1.0)), ledger.fits("people", acc.Laplace(0.5))
            (True, False)
        """
        return not isinstance(self._foreseen(dataset, mechanism, delta)[-1], str)

    def _charge(
        self,
        dataset: str,
        mechanism: acc.Mechanism,
        *,
        delta: float | None,
        purpose: str,
        number: str | None = None,
        data: str | None = None,
        version: int | None = None,
        schedule: Mapping[str, Any] | None = None,
    ) -> Charge:
        """A charge, of one run or of the runs of a ``schedule``."""
        if self._plan is not None and schedule is None:
            return self.draw(dataset, self._plan, purpose=purpose, data=data, number=number, mechanism=mechanism)
        first = self._first(dataset)
        terms = terms_of(first)
        price = priced(terms, mechanism, delta)
        new = check_number(number) or uuid.uuid4().hex
        text = check_text("a purpose", purpose)
        refused: list[tuple[State, str, str]] = []
        fresh: list[str] = []

        def decide(ends: Ends) -> dict[str, Any]:
            fresh.clear()  # where the database asks for a second try
            state = self._state(ends)
            if ends.first != first:
                raise self._tampered(dataset, "the registration was replaced")
            if number is not None and (found := ends.find(f"charge:{number}")):
                return self._take_up(ends, found, mechanism, price.delta)
            on = version_read(terms, state, ends, data, version)
            when = time_after(ends.last)
            after = charged(terms, state, price, when["time"], self._by.get("team", ""), on)
            if isinstance(after, str):
                refused.append((state, when["time"], after))
                raise BudgetExceeded("")
            about: dict[str, Any] = {} if on is None else {"version": on}
            if schedule is not None:
                about, after = about | {"schedule": schedule}, scheduled(after, new, schedule["times"])
            fresh.append(new)
            return {
                "kind": "reserve",
                "charge": new,
                "mechanism": mechanism.to_dict(),
                "purpose": text,
                "price": price.to_dict(),
                "data": data,
                **about,
                **when,
                **after.to_dict(),
                **self._who(),
            }

        try:
            row = self._append(dataset, decide)
        except BudgetExceeded:
            # Looking for what would fit takes many prices: only now, after the lock is released.
            raise self._refusal(terms, mechanism, price, *refused[-1]) from None
        return self._granted(dataset, row, mechanism, fresh=bool(fresh))

    def _granted(
        self, dataset: str, row: Row, mechanism: acc.Mechanism | None = None, *, fresh: bool = False
    ) -> Charge:
        """The charge that a row is about, as it stands; a ``fresh`` one was made by this row."""
        entry = row.read()
        if fresh and mechanism is not None:
            price = Price.from_dict(entry["price"])
            return Charge(self, dataset, entry["charge"], mechanism, price, row.hash, entry["purpose"])
        return self._taken(dataset, row, self.record(dataset, entry["charge"]))

    def _taken(self, dataset: str, row: Row, record: ChargeRecord) -> Charge:
        """A charge that was made before, after an entry about it."""
        made = Charge(self, dataset, record.charge, record.mechanism, record.price, row.hash, record.purpose)
        made.confirmed = record.confirmed
        return made

    def _take_up(self, ends: Ends, found: list[Row], mechanism: acc.Mechanism, delta: float = 0.0) -> dict[str, Any]:
        """What follows where the charge of a caller's number was made before: it is taken up, once it is the same."""
        [record] = ChargeRecord.read(found)
        if (record.mechanism, record.price.delta) != (mechanism, delta):
            raise ChargeError(
                f"charge {record.charge} on {ends.last.dataset!r} was for something else; this needs its own charge"
            )
        self._own(record)
        if record.confirmed:
            raise Already(found[-1])
        return self._follow(ends, "resume", record.charge)

    reserve = charge  #: Another name for :meth:`charge`, after the first of its two steps.

    def quote(self, dataset: str, mechanism: acc.Mechanism, *, delta: float | None = None) -> Price:
        """The price that :meth:`charge` would record now. Nothing is recorded.

        Args:
            dataset: The name of a registered data set.
            mechanism: What would be computed.
            delta: The charge's part of the data set's δ. None takes the registered share.

        Returns:
            The price of the charge alone. It would be granted now.

        Raises:
            BudgetExceeded: If the charge would be refused, with what would still fit.
            TermsError: If the mechanism does not match the data set's terms.
        """
        terms, price, state, time, after = self._foreseen(dataset, mechanism, delta)
        if isinstance(after, str):
            raise self._refusal(terms, mechanism, price, state, time, after)
        return price

    def _foreseen(
        self, dataset: str, mechanism: acc.Mechanism, delta: float | None
    ) -> tuple[DatasetTerms, Price, State, str, State | str]:
        """Terms, price, state and time of a charge that would be made now, and what would come of it."""
        ends, state = self._now(dataset)
        terms, time = terms_of(ends.first), time_after(ends.last)["time"]
        price = priced(terms, mechanism, delta)
        return terms, price, state, time, charged(terms, state, price, time, self._by.get("team", ""), None)

    def resume(self, dataset: str, number: str) -> Charge:
        """Take up a charge that was reserved and not confirmed, after a crash. The resumption is recorded.

        Nothing is charged again. So what is computed now must be what the charge was for, with the same random numbers
        for what may have been seen already. A fresh draw is a new release and needs a new charge.

        Args:
            dataset: The name of the data set.
            number: The number of the charge, as :meth:`history` lists it.

        Returns:
            The charge, still to be confirmed.

        Raises:
            ChargeError: If there is no such charge, or it was confirmed.
        """

        taken: list[ChargeRecord] = []

        def decide(ends: Ends) -> dict[str, Any]:
            record = self._record(dataset, number, ends.find(f"charge:{number}"))
            self._own(record)
            if record.confirmed:
                raise ChargeError(
                    f"charge {number} was confirmed: what it paid for has been released. Make a new charge"
                )
            taken.append(record)
            return self._follow(ends, "resume", number)

        row = self._append(dataset, decide)
        return self._taken(dataset, row, taken[-1] if taken else self.record(dataset, number))

    def bind(self, dataset: str, charge: str, files: Mapping[str, str]) -> str:
        """Record what a charge released: the hash of each file. It changes no sum, and is never changed itself.

        A folder can be forged together with the hashes in it. What stands here cannot, so ``tacit audit`` compares a
        release with its entry. Binding the same files again changes nothing.

        Args:
            dataset: The name of the data set.
            charge: The number of the charge that paid for the release.
            files: The SHA-256 of each file of the release, in hexadecimal digits, by the file's name. They are public.

        Returns:
            The hash of the release: the SHA-256 of the canonical JSON of ``files``.

        Raises:
            ChargeError: If there is no such charge, it is bound to other files, or ``files`` holds no such hashes.

        Example:
            >>> import hashlib
            >>> from tacit import accounting as acc
            >>> ledger = Ledger()
            >>> _ = ledger.register("people", epsilon=1.0, delta=1e-5)
            >>> with ledger.charge("people", acc.Laplace(10.0)) as charge:
            ...     released = b"45.2"  # what the mechanism gave
            >>> name = ledger.bind("people", charge.number, {"count": hashlib.sha256(released).hexdigest()})
            >>> [record] = ledger.history("people")
            >>> record.release == name, ledger.verify().ok
            (True, True)
        """
        named = files.items() if isinstance(files, Mapping) else ()
        given = {check_text("the name of a file", name): str(digest) for name, digest in named}
        if not given or not all(re.fullmatch("[0-9a-f]{64}", digest) for digest in given.values()):
            raise ChargeError("bind: give the SHA-256 of each file of the release, as 64 hexadecimal digits")
        release = entries.digest(entries.canonical(given))

        def decide(ends: Ends) -> dict[str, Any]:
            self._state(ends)
            found = ends.find(f"charge:{charge}")
            if not found:
                raise ChargeError(
                    f"no charge {charge!r} on {dataset!r}: a release is bound to the charge that paid for it"
                )
            record = self._record(dataset, charge, found)
            self._own(record)
            self._unbound(record, release, found[-1])
            return self._follow(ends, "release", charge) | {"release": release, "files": given}

        self._append(dataset, decide)
        return release

    @staticmethod
    def _unbound(record: ChargeRecord, release: str, row: Row) -> None:
        """Refuse to bind a charge to a second release; to bind it to the same one again writes nothing."""
        if record.release == release:
            raise Already(row)
        if record.release is not None:
            raise ChargeError(
                f"charge {record.charge} is bound to another release: what it paid for has been released. "
                "Another release needs its own charge"
            )

    def _confirm(self, dataset: str, number: str) -> str:
        def decide(ends: Ends) -> dict[str, Any]:
            state = self._state(ends)
            record = self._record(dataset, number, ends.find(f"charge:{number}"))
            self._own(record)
            counts = dataclasses.replace(state, confirmed=state.confirmed + (not record.confirmed))
            return self._follow(ends, "confirm", number) | counts.to_dict()

        return self._append(dataset, decide).hash

    def _refusal(
        self, terms: DatasetTerms, mechanism: acc.Mechanism, price: Price, state: State, time: str, why: str
    ) -> BudgetExceeded:
        name, rule, totals = terms.name, rule_at(terms, state, time), state.totals
        left_epsilon, left_delta = rule.left(totals)
        blank = Advice(name, price.epsilon, price.delta, left_epsilon, left_delta, asked_repeats=1)
        if why == "frozen":
            return BudgetExceeded(f"the budget of {name!r} is frozen: {state.frozen}. Ask its owner", blank)
        if why == "version":
            return BudgetExceeded(f"this version of {name!r} does not exist or is out of use", blank)
        team = self._by.get("team", "")

        def fits(other: acc.Mechanism) -> bool:
            try:
                price_of = terms.rule.price(other, price.delta, terms.adjacency)
                return not isinstance(charged(terms, state, price_of, time, team, None), str)
            except PriceError:  # what has no price is not offered
                return False

        advice = advising.advise(mechanism, fits, blank)
        if why == "team":
            whose = f"the share of team {team!r} ({state.shares.get(team, 0.0):.1%})" if team else "what no team has"
            left = f"{whose} of the budget is not enough"
        elif rule.name == "sum" or totals.mode == "sum" or not totals.renyi:
            rest = f"ε={left_epsilon:.6g} and δ={left_delta:.3g}"
            if rule.name != "sum" and not totals.renyi:
                rest = "all of it"
            left = f"left of the budget (ε={rule.epsilon:g}, δ={rule.delta:g}): {rest}"
        else:
            part = max(0.0, 1 - rule.used(totals))
            failures = f" and δ={left_delta:.3g} for failures" if price.failure or left_delta <= 0 else ""
            left = f"left of the Rényi budget (ε={rule.epsilon:g}, δ={rule.delta:g}): {part:.2%}{failures}"
        text = (
            f"{mechanism!r} on {name!r} costs ε={price.epsilon:.6g} at δ={price.delta:.3g} "
            f"({terms.words}); {left}. {advising.sentence(advice)}"
        )
        return BudgetExceeded(f"{text.strip()} See: tacit explain budget-exceeded", advice)

    # -- one ledger, however often it is copied ----------------------------------------------------------------------

    def __copy__(self) -> Ledger:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Ledger:
        return self  # clone() of scikit-learn copies parameters deeply: the estimators share the one ledger

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self._store, MemoryStore):
            raise CopyError(f"not pickled: {WHY_NOT_COPIED}")
        return opened, (self._store.address(), self._key_file, self._plan)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"Ledger({self._store.place()!r})"


# -- helpers ---------------------------------------------------------------------------------------------------------


def opened(where: str, key: str | os.PathLike[str] | None, plan: str | None) -> Ledger:
    """The ledger of a pickle."""
    ledger = Ledger(where, key=key)
    return ledger if plan is None else ledger.with_plan(plan)


def warn_of_twins(name: str, twins: list[str]) -> None:
    """Say aloud that the same data have a second budget under another name."""
    if twins:
        warnings.warn(
            f"the data of {name!r} are registered already, as {', '.join(map(repr, twins))}: what is spent "
            "under each name adds up for the same people, and no budget here covers the sum. Charge the name that "
            "was there first, unless two budgets are what everybody concerned was told",
            acc.PrivacyWarning,
            stacklevel=4,
        )


def _comparable(terms: dict[str, Any]) -> dict[str, Any]:
    """Terms without the moment at which they were stated."""
    renewal = terms.get("renewal")
    return terms if renewal is None else terms | {"renewal": {k: v for k, v in renewal.items() if k != "since"}}
