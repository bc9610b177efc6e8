"""How does an analyst use a ledger without holding the database? The same :class:`Ledger`, behind ``https://…``.

Every method asks the service. A request that writes has a key of its own and is sent again until it is answered, so a
lost answer or a restarted service is one charge. Only the standard library is needed here.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tacit import accounting as acc
from tacit.ledger import errors as kinds
from tacit.ledger.charge import Charge
from tacit.ledger.core import CHARGES, Ledger, opened, warn_of_twins
from tacit.ledger.entries import ChainHead, Row
from tacit.ledger.errors import (
    AccessDenied,
    Advice,
    BudgetExceeded,
    LedgerError,
    ServerUnreachable,
    StorageError,
    TermsError,
)
from tacit.ledger.rules import FAILURE_SHARE, Price
from tacit.ledger.state import State, charged
from tacit.ledger.terms import check_mechanism
from tacit.ledger.views import Budget, ChangeRecord, ChargeRecord, DatasetTerms

#: The environment variable that holds the token.
TOKEN = "TACIT_LEDGER_TOKEN"
#: For how many seconds a request is sent again where nobody answers.
PATIENCE = 60.0
#: For how many seconds one answer is waited for, before the request is sent again: less, so that it is.
WAIT = 20.0
# Tokens by address, for ledgers that are unpickled in this process or a fork of it. Never written anywhere.
_tokens: dict[str, str] = {}


class RemoteLedger(Ledger):
    """A ledger that a service keeps (``tacit ledger serve``). ``tacit.Ledger("https://…")`` makes it.

    Guarantee:
        That of the ledger behind it: the service grants, and a charge counts from the moment it is written there.

    Args:
        where: The address of the service. A token in it (``https://:TOKEN@host``) is shown nowhere; without one, it is
            taken from the environment variable ``TACIT_LEDGER_TOKEN``.
        key: Not used here: the service signs.

    Raises:
        StorageError: If the address is not one of a service, or would carry the token in clear over a network.

    Example:
        >>> ledger = RemoteLedger("https://:a-token@ledger.example.org")
        >>> ledger
        Ledger('https://ledger.example.org')
    """

    def __init__(self, where: str | os.PathLike[str] | None = None, *, key: Any = None) -> None:
        self._address, secret = split_address(os.fspath(where or ""))
        if key is not None:
            raise StorageError("a service signs with its own key: leave key out")
        self._secret_token = secret or _tokens.get(self._address) or os.environ.get(TOKEN, "")
        self._local = threading.local()
        self._data_secret: bytes | None = None
        self._terms: dict[str, DatasetTerms] = {}
        self._by: dict[str, str] = {}
        self._plan = None
        self._store: Any = _Written(self)  # verify reads what is written, and checks it here

    # -- asking --------------------------------------------------------------------------------------------------------

    def _ask(self, action: str, *, writes: bool = False, **asked: Any) -> dict[str, Any]:
        """The answer of the service; asked again while nobody answers, with the same key."""
        if not self._secret_token:
            raise AccessDenied(f"{self._address} needs a token: set {TOKEN}, or ask its owner for one")
        headers = {"Authorization": f"Bearer {self._secret_token}", "Content-Type": "application/json"}
        if writes:
            headers["Idempotency-Key"] = uuid.uuid4().hex
        try:
            body = json.dumps(asked, allow_nan=False).encode()
        except ValueError:
            raise TermsError("a number of this request is infinite or not a number (NaN): nothing was sent") from None
        until, pause = time.monotonic() + PATIENCE, 0.05
        while True:
            try:
                status, answer = self._send(f"/v1/{action}", headers, body)
                again = status in (429, 502, 503, 504) and answer.get("error") in (None, "LedgerBusy")
                if not again or time.monotonic() > until:
                    break
            except (OSError, http.client.HTTPException) as error:
                # a line that the service closed meanwhile ends without a word: that is no fault of its certificate
                ended = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)
                if (isinstance(error, ssl.SSLError) and not ended) or time.monotonic() > until:
                    raise self._silent(type(error).__name__) from None
            time.sleep(pause)
            pause = min(pause * 2, 2.0)
        if status == 200 and answer:
            return answer
        if not answer.get("error"):  # not from the service: a proxy whose service is down, or another page
            raise self._silent(f"HTTP status {status}")
        raise _error(answer, self._address)

    def _silent(self, why: str) -> ServerUnreachable:
        return ServerUnreachable(
            f"no answer from {self._address} ({why}): is the service running, and is the address right? Whether the "
            "last request was granted is not known; sent again with the same number it is one charge"
        )

    def _send(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, Any]]:
        line: _Line | None = getattr(self._local, "line", None)
        if line is None or line.process != os.getpid():
            line = self._local.line = _Line(self._address)
        connection = line.connection
        prefix = urllib.parse.urlsplit(self._address).path.rstrip("/")
        try:
            connection.request("POST", prefix + path, body, headers)
            response = connection.getresponse()
            text = response.read()
        except BaseException:
            self._local.line = None
            raise
        try:
            found = json.loads(text)
        except ValueError:
            found = {}
        return response.status, found if isinstance(found, dict) else {}

    # -- writing -------------------------------------------------------------------------------------------------------

    def register(self, name: str, *, fingerprint: Any = None, **terms: Any) -> DatasetTerms:
        """As :meth:`Ledger.register`, for the owner.

        Args:
            name: The name of the data set.
            fingerprint: The data, or their fingerprint.
            terms: The terms.

        Returns:
            The terms as they were recorded.
        """
        known = {"charges": CHARGES, "failure_share": FAILURE_SHARE}
        read = None if fingerprint is None else self._named(fingerprint)
        orders = terms.pop("orders", None)
        asked = {**known, **terms, "fingerprint": read, "orders": list(orders) if orders else None}
        told = self._ask("register", writes=True, dataset=name, terms=asked)
        warn_of_twins(name, told["twins"])
        return self.dataset(name)

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
        """As :meth:`Ledger.charge`. The number is chosen here, so that a request that is sent again is one charge.

        Args:
            dataset: The name of a registered data set.
            mechanism: What is about to be computed.
            delta: This charge's part of the data set's δ.
            purpose: Why it is computed.
            number: For work that survives a crash: a random number of your own.
            data: The fingerprint of the data that are read.
            version: The version of growing data that is read.

        Returns:
            The charge, granted and recorded.
        """
        return self._charge(dataset, mechanism, delta=delta, purpose=purpose, number=number, data=data, version=version)

    def fits(self, dataset: str, mechanism: acc.Mechanism, *, delta: float | None = None) -> bool:
        """As :meth:`Ledger.fits`.

        Args:
            dataset: The name of a registered data set.
            mechanism: What would be computed.
            delta: This charge's part of the data set's δ.

        Returns:
            Whether a charge would be granted now.
        """
        check_mechanism(self.dataset(dataset), mechanism)
        share = None if delta is None else float(delta)
        return bool(self._ask("fits", dataset=dataset, mechanism=mechanism.to_dict(), delta=share)["fits"])

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
        if self._plan is not None and schedule is None:
            return self.draw(dataset, self._plan, purpose=purpose, data=data, number=number, mechanism=mechanism)
        check_mechanism(self.dataset(dataset), mechanism)
        told = self._ask(
            "charge",
            writes=True,
            dataset=dataset,
            mechanism=mechanism.to_dict() if schedule is None else schedule["mechanism"],
            delta=None if delta is None else float(delta),
            purpose=str(purpose),
            number=number or uuid.uuid4().hex,
            data=data,
            version=version,
            **({} if schedule is None else {"schedule": {name: schedule[name] for name in ("every", "times")}}),
        )
        price = Price.from_dict(told["price"])
        made = Charge(self, dataset, told["charge"], mechanism, price, told["head"], str(purpose))
        made.confirmed = told["confirmed"]
        return made

    reserve = charge

    def quote(self, dataset: str, mechanism: acc.Mechanism, *, delta: float | None = None) -> Price:
        """As :meth:`Ledger.quote`.

        Args:
            dataset: The name of a registered data set.
            mechanism: What would be computed.
            delta: The charge's part of the data set's δ.

        Returns:
            The price.
        """
        check_mechanism(self.dataset(dataset), mechanism)
        share = None if delta is None else float(delta)
        return Price.from_dict(self._ask("quote", dataset=dataset, mechanism=mechanism.to_dict(), delta=share)["price"])

    def resume(self, dataset: str, number: str) -> Charge:
        """As :meth:`Ledger.resume`.

        Args:
            dataset: The name of the data set.
            number: The number of the charge.

        Returns:
            The charge, still to be confirmed.
        """
        return self._made(dataset, self._ask("resume", writes=True, dataset=dataset, charge=number))

    def draw(
        self,
        dataset: str,
        plan: str,
        *,
        purpose: str = "",
        data: str | None = None,
        number: str | None = None,
        mechanism: acc.Mechanism | None = None,
    ) -> Charge:
        """As :meth:`Ledger.draw`.

        Args:
            dataset: The name of the data set.
            plan: The number of the schedule's charge.
            purpose: Why, for everybody to read.
            data: The fingerprint of the data that are read.
            number: For work that survives a crash: a random number of your own.
            mechanism: What is about to run, which must be what was reserved.

        Returns:
            The charge of this run.
        """
        asked = {"purpose": purpose, "data": data, "number": number or uuid.uuid4().hex}
        described = None if mechanism is None else mechanism.to_dict()
        return self._made(
            dataset, self._ask("draw", writes=True, dataset=dataset, plan=plan, mechanism=described, **asked)
        )

    def _made(self, dataset: str, told: dict[str, Any]) -> Charge:
        record = ChargeRecord.from_dict(told["record"])
        made = Charge(self, dataset, record.charge, record.mechanism, record.price, told["head"], record.purpose)
        made.confirmed = record.confirmed
        return made

    def bind(self, dataset: str, charge: str, files: Mapping[str, str]) -> str:
        """As :meth:`Ledger.bind`.

        Args:
            dataset: The name of the data set.
            charge: The number of the charge.
            files: The SHA-256 of each file of the release.

        Returns:
            The hash of the release.
        """
        return str(self._ask("bind", writes=True, dataset=dataset, charge=charge, files=dict(files))["release"])

    def _confirm(self, dataset: str, number: str) -> str:
        return str(self._ask("confirm", writes=True, dataset=dataset, charge=number)["head"])

    def _change(self, dataset: str, kind: str, **rest: Any) -> Any:
        return self._ask("change", writes=True, dataset=dataset, change={"kind": kind, **rest})["result"]

    def raise_budget(self, dataset: str, *, epsilon: float, delta: float, because: str) -> None:
        """As :meth:`Ledger.raise_budget`.

        Args:
            dataset: The name of the data set.
            epsilon: The new ε.
            delta: The new δ.
            because: The public reason.
        """
        self._change(dataset, "raise", epsilon=epsilon, delta=delta, because=because)

    def split_budget(self, dataset: str, shares: Mapping[str, float], *, because: str) -> None:
        """As :meth:`Ledger.split_budget`.

        Args:
            dataset: The name of the data set.
            shares: The part of the budget of each team.
            because: The public reason.
        """
        self._change(dataset, "split", shares=dict(shares), because=because)

    def freeze(self, dataset: str, *, because: str) -> None:
        """As :meth:`Ledger.freeze`.

        Args:
            dataset: The name of the data set.
            because: The public reason.
        """
        self._change(dataset, "freeze", because=because)

    def thaw(self, dataset: str, *, because: str) -> None:
        """As :meth:`Ledger.thaw`.

        Args:
            dataset: The name of the data set.
            because: The public reason.
        """
        self._change(dataset, "thaw", because=because)

    def accept(self, dataset: str, data: Any, *, because: str, version: int | None = None) -> str:
        """As :meth:`Ledger.accept`.

        Args:
            dataset: The name of the data set.
            data: The data in their other form, or a fingerprint.
            because: The public reason.
            version: The version of growing data that these are.

        Returns:
            The fingerprint.
        """
        return str(self._change(dataset, "accept", data=self._named(data), because=because, version=version))

    def new_version(self, dataset: str, data: Any, *, because: str) -> int:
        """As :meth:`Ledger.new_version`.

        Args:
            dataset: The name of the data set.
            data: The new version, or its fingerprint.
            because: The public reason.

        Returns:
            The number of the version.
        """
        return int(self._change(dataset, "version", data=self._named(data), because=because))

    # -- reading -------------------------------------------------------------------------------------------------------

    def secret(self) -> bytes:
        """The secret of the fingerprints, for those who read the data."""
        if self._data_secret is None:
            self._data_secret = bytes.fromhex(self._ask("secret")["secret"])
        return self._data_secret

    def _knows(self, name: str, fingerprint: str) -> bool:
        return bool(self._ask("knows", dataset=name, fingerprint=fingerprint)["known"])

    def datasets(self) -> list[str]:
        """The names that are registered."""
        return list(self._ask("datasets")["datasets"])

    def dataset(self, name: str) -> DatasetTerms:
        """As :meth:`Ledger.dataset`; terms never change, so they are asked for once.

        Args:
            name: The name of the data set.

        Returns:
            Its terms.
        """
        if name not in self._terms:
            self._terms[name] = DatasetTerms.from_terms(name, self._ask("dataset", dataset=name)["terms"])
        return self._terms[name]

    def history(self, dataset: str, *, after: int = -1, limit: int | None = None) -> list[ChargeRecord]:
        """As :meth:`Ledger.history`, page by page.

        Args:
            dataset: The name of the data set.
            after: The place of the charge before the page.
            limit: How many charges.

        Returns:
            One record for each charge.
        """
        found: list[ChargeRecord] = []
        while True:
            wanted = None if limit is None else limit - len(found)
            told = self._ask("history", dataset=dataset, after=after, limit=wanted)
            found += [ChargeRecord.from_dict(record) for record in told["records"]]
            if not told["more"] or not told["records"] or (limit is not None and len(found) >= limit):
                return found
            after = found[-1].seq

    def changes(self, dataset: str) -> list[ChangeRecord]:
        """As :meth:`Ledger.changes`.

        Args:
            dataset: The name of the data set.

        Returns:
            One record for each decision.
        """
        return [ChangeRecord(**change) for change in self._ask("changes", dataset=dataset)["changes"]]

    def record(self, dataset: str, charge: str) -> ChargeRecord:
        """As :meth:`Ledger.record`.

        Args:
            dataset: The name of the data set.
            charge: The number of the charge.

        Returns:
            Its record.
        """
        return ChargeRecord.from_dict(self._ask("record", dataset=dataset, charge=charge)["record"])

    def mentions(self, dataset: str, charge: str) -> int:
        """As :meth:`Ledger.mentions`.

        Args:
            dataset: The name of the data set.
            charge: The number of the charge.

        Returns:
            The number of entries.
        """
        return int(self._ask("mentions", dataset=dataset, charge=charge)["mentions"])

    def budget(self, dataset: str, *, exact: bool | None = None) -> Budget:
        """As :meth:`Ledger.budget`.

        Args:
            dataset: The name of the data set.
            exact: Whether to compute the exact composition.

        Returns:
            The budget.
        """
        told = self._ask("budget", dataset=dataset)
        terms, state = DatasetTerms.from_terms(dataset, told["first"]["terms"]), State.from_entry(told["last"])
        together = self._composition(terms, state, exact=exact)
        return Budget.read(terms, state, told["head"], told["time"], together)

    def foresee(self, dataset: str, mechanism: acc.Mechanism, *, delta: float | None = None) -> Budget:
        """As :meth:`Ledger.foresee`.

        Args:
            dataset: The name of the data set.
            mechanism: What would be computed.
            delta: The charge's part of the data set's δ.

        Returns:
            The budget with this charge in it.

        Raises:
            TermsError: If the budget is split among teams: which team asks is known to the service only.
        """
        price = self.quote(dataset, mechanism, delta=delta)
        told = self._ask("budget", dataset=dataset)
        terms, state = DatasetTerms.from_terms(dataset, told["first"]["terms"]), State.from_entry(told["last"])
        after = charged(terms, state, price, told["time"], "", None)
        if isinstance(after, str):
            raise TermsError(f"what a charge leaves of a team's share of {dataset!r} is known to the service only")
        return Budget.read(terms, after, told["head"], told["time"])

    def head(self, dataset: str) -> str:
        """As :meth:`Ledger.head`.

        Args:
            dataset: The name of the data set.

        Returns:
            64 hexadecimal digits.
        """
        return str(self._ask("head", dataset=dataset)["head"])

    def _signature(self, dataset: str) -> tuple[ChainHead, str | None]:
        [line] = self._ask("heads", dataset=dataset)["heads"]
        return ChainHead(line["seq"], line["hash"]), line["signature"]

    def sign(self, dataset: str) -> str:
        """Refuse: the service signs with its own key.

        Args:
            dataset: The name of the data set.

        Returns:
            Never.
        """
        raise TermsError("a service signs with its own key: tacit ledger sign, where the database is")

    def __reduce__(self) -> tuple[Any, ...]:
        if self._secret_token:
            _tokens[self._address] = self._secret_token
        return opened, (self._address, None, self._plan)

    def __repr__(self) -> str:
        return f"Ledger({self._address!r})"


class _Line:
    """A connection of one thread in one process, closed when the thread or the ledger is gone."""

    def __init__(self, address: str) -> None:
        parts = urllib.parse.urlsplit(address)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.connection, self.process = kind(str(parts.hostname), parts.port, timeout=WAIT), os.getpid()

    def __del__(self) -> None:
        self.connection.close()


class _Written:
    """The entries of a service, for whoever verifies them: nothing is taken on its word."""

    def __init__(self, ledger: RemoteLedger) -> None:
        self._ledger = ledger
        self._lost: list[tuple[int, str]] = []

    def guards(self, names: Sequence[str]) -> list[str]:
        """What the service says is wrong with the triggers of its tables."""
        found = [self._ledger._ask("guards", dataset=name)["guards"] for name in names]
        return list(dict.fromkeys(str(problem) for problems in found for problem in problems))

    def head(self, dataset: str) -> ChainHead:
        """The record of the head."""
        return self._ledger._signature(dataset)[0]

    def scan(self, dataset: str) -> Iterator[Row]:
        """All rows in order, a page at a time."""
        at, self._lost = -1, []
        while (told := self._ledger._ask("entries", dataset=dataset, after=at))["rows"]:
            self._lost += [(seq, key) for seq, key in told["lost"]]
            yield from (Row(dataset, *row) for row in told["rows"])
            at = told["rows"][-1][0]

    def lost(self, dataset: str, rows: Sequence[Row]) -> list[tuple[int, str]]:
        """Which rows the service cannot look up, as it said with the last of these."""
        found, self._lost = self._lost, []
        return found


def split_address(where: str) -> tuple[str, str]:
    """The address of a service without its token, and the token.

    >>> split_address("https://:pony@ledger.example.org/team")
    ('https://ledger.example.org/team', 'pony')
    """
    try:
        parts = urllib.parse.urlsplit(where)
        port = parts.port
    except ValueError:
        raise StorageError("this is not the address of a service; it looks like https://ledger.example.org") from None
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host:
        raise StorageError("this is not the address of a service; it looks like https://ledger.example.org")
    if parts.scheme == "http" and host not in ("127.0.0.1", "localhost", "::1"):
        raise StorageError(f"http://{host} would carry the token in clear over the network: use https://")
    name = f"[{host}]" if ":" in host else host
    bare = f"{parts.scheme}://{name}{f':{port}' if port else ''}{parts.path.rstrip('/')}"
    return bare, urllib.parse.unquote(parts.password or "")


def _number(value: Any) -> Any:
    return float(value) if value == "inf" else value


def _error(answer: dict[str, Any], address: str) -> LedgerError:
    name, message = str(answer.get("error", "")), str(answer.get("message", ""))
    kind = getattr(kinds, name, None)
    if not (isinstance(kind, type) and issubclass(kind, LedgerError)):
        return StorageError(f"{address} gave an answer that this version of tacit does not understand")
    if kind is BudgetExceeded:
        advice = answer.get("advice")
        told = None if advice is None else Advice(**{k: v if k == "dataset" else _number(v) for k, v in advice.items()})
        return BudgetExceeded(message, told)
    if kind is AccessDenied:
        return AccessDenied(f"{address}: {message}")
    return kind(message)
