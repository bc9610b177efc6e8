"""What has been spent on this data, and what is left?

A data set is registered once, with its terms: fingerprint, unit of privacy, adjacency, whether its size is public, a
budget (ε, δ) and the rule that adds charges up. Every release is charged: the charge is reserved before the release and
confirmed after it. A charge that is never confirmed still counts as spent, because somebody may have seen the result.
Nothing is ever refunded.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import re
import uuid
import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from tacit import accounting as acc
from tacit.ledger import advice as advising
from tacit.ledger import entries
from tacit.ledger.entries import Row
from tacit.ledger.errors import (
    Advice,
    BudgetExceeded,
    ChargeError,
    CopyError,
    DatasetExists,
    FingerprintMismatch,
    LedgerTampered,
    NotALedger,
    PriceError,
    TermsError,
)
from tacit.ledger.fingerprint import PREFIX, fingerprint
from tacit.ledger.rules import FAILURE_SHARE, Price, Rule, Totals, make_rule
from tacit.ledger.store import WHY_NOT_COPIED, MemoryStore, Store
from tacit.ledger.terms import check_mechanism, check_terms, is_number
from tacit.ledger.views import Budget, ChargeRecord, DatasetTerms, Verification, verify_dataset

#: How many charges δ is divided into unless the registration says otherwise.
CHARGES = 100


class _BoundBefore(Exception):
    """These files are in the charge's entry already."""


class Ledger:
    """The record of everything that was released about the data sets registered in it.

    Guarantee:
        Everything charged to a data set together is (ε, δ)-DP for its unit under its adjacency, with the ε and δ it was
        registered with, even if each charge was chosen after seeing earlier results.

    Args:
        where: The path of a SQLite file (created at the first registration, mode 0600) or an address
            ``"postgresql://…"``. None, the default, or ``":memory:"`` keeps the ledger in this process only.

    Raises:
        StorageError: If ``where`` is an address that tacit cannot use.

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

    def __init__(self, where: str | os.PathLike[str] | None = None) -> None:
        self._store: Store
        if where is None or where == ":memory:":
            self._store = MemoryStore()
        else:
            from tacit.ledger.sql import SqlStore  # SQLAlchemy is loaded only where a file or a server is used

            self._store = SqlStore(where)

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
        rule: str = "sum",
        orders: tuple[float, ...] | list[float] | None = None,
        charges: int = CHARGES,
        failure_share: float = FAILURE_SHARE,
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
            rule: How charges add up: ``"sum"`` (Σε and Σδ) or ``"renyi"`` (a Rényi filter).
            orders: The Rényi orders of the rule ``"renyi"``. None chooses the order that is best for Gaussian noise.
            charges: How many charges share δ: each is priced at ``delta / charges`` unless it states its own.
            failure_share: Under ``"renyi"``, the part of δ kept for failures (cut batches and (ε, δ)-mechanisms).

        Returns:
            The terms as they were recorded.

        Raises:
            DatasetExists: If the name is registered on other terms.
            TermsError: If the terms contradict each other.
        """
        terms = check_terms(name, unit, adjacency, epsilon, delta, charges, size_public=size_public)
        chosen = make_rule(rule, terms["epsilon"], terms["delta"], tuple(orders) if orders else None, failure_share)
        known = isinstance(fingerprint, str) and fingerprint.startswith(PREFIX)
        terms["fingerprint"] = fingerprint if known or fingerprint is None else self.fingerprint(fingerprint)
        terms |= chosen.to_dict()
        entry = {"kind": "register", "time": _now(), "terms": terms, "totals": Totals().to_dict()}
        try:
            made = _dataset(self._store.create(name, entry))
        except DatasetExists:
            there = made = self.dataset(name)
            differ = sorted(k for k, v in there.to_terms().items() if terms.get(k) != v)
            if differ:
                raise DatasetExists(
                    f"{name!r} is registered in {self._store.place()} on other terms ({', '.join(differ)}); terms "
                    "are never changed. A second budget for the same data adds to the first"
                ) from None
        self._warn_of_twins(made)
        return made

    def _warn_of_twins(self, made: DatasetTerms) -> None:
        """Say aloud that the same data have a second budget under another name."""
        others = [n for n in self.datasets() if n != made.name] if made.fingerprint is not None else []
        firsts = {n: row for n in others for row in self._store.rows(n)[0][:1]}
        twins = [n for n, row in firsts.items() if row.read().get("terms", {}).get("fingerprint") == made.fingerprint]
        if twins:
            warnings.warn(
                f"the data of {made.name!r} are registered already, as {', '.join(map(repr, twins))}: what is spent "
                "under each name adds up for the same people, and no budget here covers the sum. Charge the name that "
                "was there first, unless two budgets are what everybody concerned was told",
                acc.PrivacyWarning,
                stacklevel=3,
            )

    def fingerprint(self, data: Any) -> str:
        """The fingerprint of data under this ledger's secret. It may be published: it tells an outsider nothing.

        Args:
            data: A path (the file's bytes), bytes, a text, an array or table, or a list, tuple or mapping of these.
                The order matters.

        Returns:
            A text that begins with ``blake2b-keyed:``. Another ledger gives the same data another one.
        """
        return fingerprint(data, self._store.key())

    def check_data(self, name: str, data: Any) -> None:
        """Check that these are the data that were registered.

        Args:
            name: The name of the data set.
            data: The data at hand, in the form that was registered.

        Raises:
            FingerprintMismatch: If the data differ, or ``name`` was registered without a fingerprint.
        """
        expected = self.dataset(name).fingerprint
        if expected is None:
            raise FingerprintMismatch(
                f"{name!r} was registered without a fingerprint, so there is nothing to compare these data with. "
                "See: tacit explain fingerprint"
            )
        if self.fingerprint(data) != expected:
            raise FingerprintMismatch(
                f"these are not the data registered as {name!r}: the fingerprints differ. A fingerprint covers the "
                "exact bytes, so the same table in another format, order or type has another one. Use the file or "
                "array that was registered. See: tacit explain fingerprint"
            )

    # -- charging ------------------------------------------------------------------------------------------------------

    def charge(
        self,
        dataset: str,
        mechanism: acc.Mechanism,
        *,
        delta: float | None = None,
        purpose: str = "",
        number: str | None = None,
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

        Returns:
            The charge, granted and recorded.

        Raises:
            BudgetExceeded: If it does not fit, with what would still fit. Then nothing is recorded.
            TermsError: If the mechanism does not match the data set's unit, adjacency, size or δ.
            UnknownDataset: If no data set of this name is registered.
            ChargeError: If ``number`` was used for something else.
        """
        terms, price = self._priced(dataset, mechanism, delta)
        rule = terms.rule
        if number is not None and (there := self._taken_up(dataset, number, mechanism, price)) is not None:
            return there
        number = number or uuid.uuid4().hex
        refused: list[Totals] = []

        def decide(last: Row) -> dict[str, Any]:
            totals = self._totals(last)
            after = totals.plus(price)
            if not rule.within(after):
                refused.append(totals)
                raise BudgetExceeded("")
            return {
                "kind": "reserve",
                "charge": number,
                "time": _now(),
                "mechanism": mechanism.to_dict(),
                "purpose": str(purpose),
                "price": price.to_dict(),
                "totals": after.to_dict(),
            }

        try:
            row = self._store.append(dataset, decide)
        except BudgetExceeded:
            # Looking for what would fit takes many prices: only now, after the lock is released.
            raise self._refusal(terms, mechanism, price, refused[-1]) from None
        return Charge(self, dataset, number, mechanism, price, row.hash, str(purpose))

    #: Another name for :meth:`charge`, after the first of its two steps.
    reserve = charge

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
        terms, price = self._priced(dataset, mechanism, delta)
        totals = self._totals(self._store.rows(dataset)[0][-1])
        if not terms.rule.within(totals.plus(price)):
            raise self._refusal(terms, mechanism, price, totals)
        return price

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
        found = [record for record in self.history(dataset) if record.charge == number]
        if not found:
            raise ChargeError(
                f"no charge {number!r} on {dataset!r}: tacit ledger history lists the charges that there are"
            )
        record = found[0]
        if record.confirmed:
            raise ChargeError(f"charge {number} was confirmed: what it paid for has been released. Make a new charge")
        row = self._store.append(dataset, lambda last: self._follow(last, "resume", number))
        return Charge(self, dataset, number, record.mechanism, record.price, row.hash, record.purpose)

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
        given = {str(name): str(digest) for name, digest in files.items()}
        if not given or not all(re.fullmatch("[0-9a-f]{64}", digest) for digest in given.values()):
            raise ChargeError("bind: give the SHA-256 of each file of the release, as 64 hexadecimal digits")
        release = entries.digest(entries.canonical(given))

        def decide(last: Row) -> dict[str, Any]:
            record = next((record for record in self.history(dataset) if record.charge == charge), None)
            if record is None:
                raise ChargeError(
                    f"no charge {charge!r} on {dataset!r}: a release is bound to the charge that paid for it"
                )
            if record.release == release:
                raise _BoundBefore
            if record.release is not None:
                raise ChargeError(
                    f"charge {charge} on {dataset!r} is bound to another release: what it paid for has been released. "
                    "Another release needs its own charge"
                )
            return self._follow(last, "release", charge) | {"release": release, "files": given}

        with contextlib.suppress(_BoundBefore):
            self._store.append(dataset, decide)
        return release

    def _taken_up(self, dataset: str, number: str, mechanism: acc.Mechanism, price: Price) -> Charge | None:
        """The charge of this number, where it was made before."""
        record = next((record for record in self.history(dataset) if record.charge == number), None)
        if record is None:
            return None
        if (record.mechanism, record.price.delta) != (mechanism, price.delta):
            raise ChargeError(f"charge {number} on {dataset!r} was for something else; this needs its own charge")
        if not record.confirmed:
            return self.resume(dataset, number)
        last = [row for row in self._store.rows(dataset)[0] if row.read().get("charge") == number][-1]
        charge = Charge(self, dataset, number, mechanism, record.price, last.hash, record.purpose)
        charge.confirmed = True
        return charge

    def _confirm(self, dataset: str, number: str) -> str:
        return self._store.append(dataset, lambda last: self._follow(last, "confirm", number)).hash

    def _follow(self, last: Row, kind: str, number: str) -> dict[str, Any]:
        totals = self._totals(last).to_dict()
        return {"kind": kind, "charge": number, "time": _now(), "totals": totals}

    def _priced(self, dataset: str, mechanism: acc.Mechanism, delta: float | None) -> tuple[DatasetTerms, Price]:
        terms = self.dataset(dataset)
        check_mechanism(terms, mechanism)
        if delta is not None and not (is_number(delta) and 0 <= delta < 1):
            raise TermsError(f"a charge's δ lies in [0, 1), not {delta!r}")
        share = terms.charge_delta if delta is None else float(delta)
        price = terms.rule.price(mechanism, share, terms.adjacency)
        if share == 0 and math.isinf(price.epsilon) and terms.rule.name == "sum":
            raise TermsError(f"{mechanism!r} has no pure guarantee: state the charge's part of δ, as in delta=1e-7")
        if price.renyi and all(math.isinf(x) for x in price.renyi):
            raise TermsError(
                f"{mechanism!r} has no finite Rényi divergence at the orders of {dataset!r}: its rule never grants it; "
                "use a mechanism without a failure probability (rule='sum' would grant it; terms are never changed)"
            )
        return terms, price

    def _totals(self, last: Row) -> Totals:
        if entries.digest(last.body) != last.hash:
            raise LedgerTampered(
                f"entry {last.seq} of {last.dataset!r} was changed after it was written; nothing more is granted. "
                "tacit ledger verify shows where"
            )
        return Totals.from_dict(last.read()["totals"])

    def _refusal(self, terms: DatasetTerms, mechanism: acc.Mechanism, price: Price, totals: Totals) -> BudgetExceeded:
        rule: Rule = terms.rule
        left_epsilon, left_delta = rule.left(totals)
        blank = Advice(terms.name, price.epsilon, price.delta, left_epsilon, left_delta, asked_repeats=1)

        def fits(other: acc.Mechanism) -> bool:
            try:
                return rule.within(totals.plus(rule.price(other, price.delta, terms.adjacency)))
            except PriceError:  # what has no price is not offered
                return False

        advice = advising.advise(mechanism, fits, blank)
        if rule.name == "sum":
            rest = f"ε={left_epsilon:.6g} and δ={left_delta:.3g}"
            left = f"left of the budget (ε={rule.epsilon:g}, δ={rule.delta:g}): {rest}"
        else:
            share = max(0.0, 1 - rule.used(totals))
            failures = f" and δ={left_delta:.3g} for failures" if price.failure else ""
            left = f"left of the Rényi budget (ε={rule.epsilon:g}, δ={rule.delta:g}): {share:.2%}{failures}"
        text = (
            f"{mechanism!r} on {terms.name!r} costs ε={price.epsilon:.6g} at δ={price.delta:.3g} "
            f"({terms.words}); {left}. {advising.sentence(advice)}"
        )
        return BudgetExceeded(f"{text.strip()} See: tacit explain budget-exceeded", advice)

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
        return _dataset(self._store.first(name))

    def history(self, dataset: str) -> list[ChargeRecord]:
        """Every charge of a data set, in order.

        Args:
            dataset: The name of the data set.

        Returns:
            One record for each charge, with its price and whether it was confirmed.
        """
        return ChargeRecord.read(self._store.rows(dataset)[0])

    def mentions(self, dataset: str, charge: str) -> int:
        """Count the entries about a charge: one when it was reserved, one each time it was taken up or confirmed.

        The entry of its release is not counted.

        Args:
            dataset: The name of the data set.
            charge: The number of the charge.

        Returns:
            The number of entries; 0 if there is no such charge.
        """
        opened = (row.read() for row in self._store.rows(dataset)[0])
        return sum(entry.get("charge") == charge and entry["kind"] != "release" for entry in opened)

    def budget(self, dataset: str) -> Budget:
        """What is spent and left, and what the exact composition would be if no choice had depended on results.

        Args:
            dataset: The name of the data set.

        Returns:
            The budget; ``str()`` of it is the text that ``tacit ledger budget`` prints.
        """
        return Budget.read(self.dataset(dataset), *self._store.rows(dataset))

    def head(self, dataset: str) -> str:
        """The newest hash of a data set's chain. Printed on a card, it fixes the whole history before it.

        Args:
            dataset: The name of the data set.

        Returns:
            64 hexadecimal digits.

        Raises:
            LedgerTampered: If the record of the head was deleted.
        """
        self._store.first(dataset)
        head = self._store.rows(dataset)[1]
        if head is None:
            raise LedgerTampered(f"the record of the head of {dataset!r} is missing")
        return head.hash

    def verify(
        self, dataset: str | None = None, *, heads: tuple[str, ...] | list[str] = (), reprice: bool = False
    ) -> Verification:
        """Check the hash chain, the sums and the rule.

        Args:
            dataset: The name of one data set. None, the default, checks all of them.
            heads: Hashes of ``dataset`` that were printed elsewhere, on a card for example. Each must still be in
                its chain.
            reprice: Whether to ask the accountant for every price again, and report charges that were priced too low.

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
        for name in names:
            rows, head = self._store.rows(name)
            count += len(rows)
            problems += verify_dataset(name, rows, head, tuple(heads), reprice=reprice)
        return Verification(tuple(names), count, tuple(problems))

    # -- one ledger, however often it is copied ----------------------------------------------------------------------

    def __copy__(self) -> Ledger:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Ledger:
        # clone() of scikit-learn copies parameters deeply: the estimators share the one ledger.
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self._store, MemoryStore):
            raise CopyError(f"not pickled: {WHY_NOT_COPIED}")
        return Ledger, (self._store.address(),)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"Ledger({self._store.place()!r})"


class Charge:
    """A granted charge. It counts as spent from the moment it exists; ``confirm`` says that the release happened.

    :meth:`Ledger.charge` returns it. In a ``with`` block it is confirmed at the end. If the block raises, it stays
    reserved, and spent.

    Args:
        ledger: The ledger that granted it.
        dataset: The name of the data set.
        number: The charge's number in the ledger.
        mechanism: What was charged.
        price: What it costs by itself.
        head: The head of the data set's chain just after this charge was recorded. Confirming renews it.
        purpose: The public text that says why.

    Example:
        >>> from tacit import accounting as acc
        >>> ledger = Ledger()
        >>> _ = ledger.register("people", epsilon=1.0, delta=1e-5)
        >>> charge = ledger.charge("people", acc.Gaussian(10.0), purpose="mean age")
        >>> charge.confirmed, charge.epsilon < 1
        (False, True)
        >>> charge.confirm()
        >>> charge.confirmed
        True
    """

    def __init__(
        self, ledger: Ledger, dataset: str, number: str, mechanism: acc.Mechanism, price: Price, head: str, purpose: str
    ) -> None:
        self.ledger, self.dataset, self.number, self.mechanism = ledger, dataset, number, mechanism
        self.price, self.purpose = price, purpose
        self.head = head
        self.confirmed = False

    @property
    def epsilon(self) -> float:
        """The certified ε of this charge by itself, at :attr:`delta`."""
        return self.price.epsilon

    @property
    def delta(self) -> float:
        """The δ at which :attr:`epsilon` is stated."""
        return self.price.delta

    def confirm(self) -> None:
        """Record that what was paid for has been released.

        Raises:
            ChargeError: If it was confirmed before.
        """
        if self.confirmed:
            raise ChargeError(f"charge {self.number} was confirmed before; another release needs its own charge")
        self.head = self.ledger._confirm(self.dataset, self.number)
        self.confirmed = True

    def __enter__(self) -> Charge:
        if self.confirmed:
            raise ChargeError(f"charge {self.number} was used before; another release needs its own charge")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self.confirmed:
            self.confirm()

    def __repr__(self) -> str:
        state = "confirmed" if self.confirmed else "reserved"
        return f"<Charge {self.number[:8]} on {self.dataset!r}: ε={self.epsilon:.6g} at δ={self.delta:g}, {state}>"


# -- helpers ---------------------------------------------------------------------------------------------------------


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _dataset(row: Row) -> DatasetTerms:
    entry = row.read()
    if entry["format"] > entries.FORMAT:
        raise NotALedger(
            f"{row.dataset!r} was registered by a newer version of tacit (format {entry['format']}); "
            f"this one reads format {entries.FORMAT}: upgrade tacit"
        )
    return DatasetTerms.from_terms(row.dataset, entry["terms"])
