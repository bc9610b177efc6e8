"""How does an organisation share one ledger without sharing the database? A small HTTP service with tokens and roles.

``tacit ledger serve`` runs it. Every request is ``POST /v1/ACTION`` with a JSON object and a bearer token. A request
that writes carries a key of its own: sent again after a lost answer, it writes nothing and gets the first answer.
Charges that arrive together are written in one transaction, on disk before any of them is answered.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TextIO

from tacit import accounting as acc
from tacit.ledger import signing
from tacit.ledger.book import time_after
from tacit.ledger.changes import check_schedule
from tacit.ledger.core import Ledger
from tacit.ledger.entries import Row, canonical, digest, encode
from tacit.ledger.errors import (
    AccessDenied,
    BudgetExceeded,
    ChargeError,
    DatasetExists,
    LedgerError,
    LedgerTampered,
    StorageError,
    TermsError,
    UnknownDataset,
)
from tacit.ledger.rules import Price
from tacit.ledger.store import Decide
from tacit.ledger.terms import check_name
from tacit.ledger.tokens import Token, Tokens, require

#: The largest body of a request, in bytes.
LARGEST = 1 << 20
#: How many seconds a request may take to arrive.
SLOWEST = 20.0
#: How many charges one answer of ``history`` holds at most.
PAGE = 1000

#: How many requests of one token are worked on at once, and of all: whoever asks for prices that take minutes stops
#: nobody else, also where fifty tokens do.
AT_ONCE, THREADS = 20, 1000

READ = ("owner", "analyst", "auditor")
CHARGE = ("analyst", "owner")
OWNER = ("owner",)


class Grouped:
    """A store whose entries are written by one thread, all that wait in one transaction."""

    def __init__(self, store: Any, most: int = 128) -> None:
        self._store, self._most = store, most
        self._waiting: queue.SimpleQueue[tuple[str, Decide, concurrent.futures.Future[Row]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="ledger writer").start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, dataset: str, decide: Decide) -> Row:
        """Write one entry; returns when it is on disk."""
        done: concurrent.futures.Future[Row] = concurrent.futures.Future()
        self._waiting.put((dataset, decide, done))
        return done.result()

    def _work(self) -> None:
        while True:
            some = [self._waiting.get()]
            while len(some) < self._most and not self._waiting.empty():
                some.append(self._waiting.get())
            try:
                found = self._store.append_all([(dataset, decide) for dataset, decide, _ in some])
            except Exception:  # noqa: BLE001 - nothing was written: each by itself, and each gets its own error
                found = [self._alone(dataset, decide) for dataset, decide, _ in some]
            for (_, _, done), row in zip(some, found, strict=True):
                if isinstance(row, Exception):
                    done.set_exception(row)
                else:
                    done.set_result(row)

    def _alone(self, dataset: str, decide: Decide) -> Row | Exception:
        try:
            return self._store.append(dataset, decide)  # type: ignore[no-any-return]
        except Exception as error:  # noqa: BLE001 - handed to the one who asked
            return error


class Limit:
    """So many requests a second for each name, with a burst of as many."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._left: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def allows(self, name: str) -> bool:
        """Whether one more request of this name is answered now."""
        with self._lock:
            now = time.monotonic()
            left, before = self._left.get(name, (self.rate, now))
            left = min(self.rate, left + (now - before) * self.rate)
            self._left[name] = (left - 1 if left >= 1 else left, now)
            if len(self._left) > 10_000:
                self._left.clear()
            return left >= 1


class Service:
    """What the service does with a request, apart from HTTP.

    Args:
        ledger: The ledger in SQLite or PostgreSQL, opened with its key if heads are signed.
        tokens: Who may do what.
        rate: Requests a second for each token.
        log: Where each request is noted, one line of JSON, without tokens; None for nowhere.
    """

    def __init__(self, ledger: Ledger, tokens: Tokens, *, rate: float = 200.0, log: TextIO | None = None) -> None:
        self.ledger, self.tokens, self.limit, self._log = ledger, tokens, Limit(rate), log
        self.failed, self._noting = Limit(5.0), threading.Lock()
        self._working: collections.Counter[str] = collections.Counter()
        if hasattr(ledger._store, "append_all"):
            ledger._store = Grouped(ledger._store)

    def answer(self, action: str, secret: str, key: str | None, body: bytes, peer: str) -> tuple[int, dict[str, Any]]:
        """The status and the JSON of an answer."""
        start = time.perf_counter()
        token: Token | None = None
        dataset: Any = None
        working = ""
        try:
            token = self.tokens.check(secret)
            if token is None:
                status, told = (401, "no valid token") if self.failed.allows(peer) else (429, "too many attempts")
                answer: dict[str, Any] = {"error": "AccessDenied", "message": told}
            elif not self.limit.allows(token.name) or not self._begins(token.name):
                status, answer = 429, {"error": "LedgerBusy", "message": f"{token.name} asks too often; try again"}
            else:
                working = token.name
                asked = json.loads(body or b"{}")
                if not isinstance(asked, dict) or b"\\u0000" in body:  # no database holds this character in a text
                    raise ValueError
                dataset = asked.get("dataset")
                status, answer = 200, self._act(action, token, key, asked)
        except LedgerError as error:
            status, answer = _status(error), _told(error)
            answer["message"] = self._without_places(answer["message"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, acc.AccountingError) as error:
            text = str(error) if isinstance(error, acc.AccountingError) else type(error).__name__
            status, answer = 422, {"error": "TermsError", "message": f"the request cannot be understood ({text})"}
        except Exception as error:  # noqa: BLE001 - a fault of the service: its operator sees where, the client does not
            traceback.print_exc()
            told = f"the service failed ({type(error).__name__}); its operator sees why in its standard error"
            status, answer = 500, {"error": "StorageError", "message": told}
        finally:
            if working:
                with self._noting:
                    self._working[working] -= 1
        self._note(start, token, action, dataset, status, peer)
        return status, answer

    def _without_places(self, message: str) -> str:
        """Where the database and the tokens are, is nobody's business."""
        place = self.ledger._store.place()
        for text, told in (
            (f"the ledger {place}", "this service's ledger"),
            (place, "this service"),
            (str(self.tokens.path), "the file of tokens"),
        ):
            message = message.replace(text, told)
        return message

    def cut_off(self, action: str, secret: str, peer: str) -> None:
        """Note a request whose sender went away before it was whole."""
        self._note(time.perf_counter(), self.known(secret), action, None, 400, peer)

    def known(self, secret: str) -> Token | None:
        """The token; None also where the file of tokens cannot be read, which the answer tells."""
        with contextlib.suppress(LedgerError):
            return self.tokens.check(secret)
        return None

    def _begins(self, name: str) -> bool:
        """Whether one more request of this token is worked on now."""
        with self._noting:
            if self._working[name] >= AT_ONCE:
                return False
            self._working[name] += 1
        return True

    def _act(self, action: str, token: Token, key: str | None, asked: dict[str, Any]) -> dict[str, Any]:
        known = ACTIONS.get(action)
        if known is None:
            raise TermsError(f"there is no action {action!r}")
        dataset = None if known.everywhere else asked.get("dataset")
        if not known.everywhere and not (dataset is None and known.optional and not token.datasets):
            check_name(dataset)
        require(token, action, known.roles, dataset)
        request = None
        if known.writes:
            # a colon ends the name of the bearer
            if not key or not key.isprintable() or len(key) > 100 or ":" in key:
                raise TermsError("a request that writes needs a key of its own: the header Idempotency-Key")
            # Only the same request of the same bearer is answered again.
            request = {"key": f"{token.name}:{key}", "body": digest(action + canonical(asked))}
        answer = known.act(self.ledger.acting(token.by, request), asked)
        if action == "datasets" and token.datasets:
            answer["datasets"] = [name for name in answer["datasets"] if name in token.datasets]
        return answer

    def _note(self, start: float, token: Token | None, action: str, dataset: Any, status: int, peer: str) -> None:
        if self._log is None:
            return
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
            "peer": peer,
            "name": None if token is None else token.name,
            "action": action[:40],
            "dataset": str(dataset)[:200] if dataset is not None else None,
            "status": status,
            "ms": round((time.perf_counter() - start) * 1000, 1),
        }
        try:
            with self._noting:
                self._log.write(json.dumps(line) + "\n")
                self._log.flush()
        except OSError as error:  # what was granted is granted: the answer goes out, and the operator is told
            sys.stderr.write(f"tacit: the log cannot be written ({error.strerror}): {json.dumps(line)}\n")


def _told(error: LedgerError) -> dict[str, Any]:
    told: dict[str, Any] = {"error": type(error).__name__, "message": str(error)}
    if isinstance(error, BudgetExceeded) and error.advice is not None:
        advice = dataclasses.asdict(error.advice)
        told["advice"] = {name: encode(v) if isinstance(v, float) else v for name, v in advice.items()}
    return told


def _status(error: LedgerError) -> int:
    kinds: list[tuple[type[Exception], int]] = [
        (AccessDenied, 403),
        (UnknownDataset, 404),
        (BudgetExceeded, 409),
        (ChargeError, 409),
        (DatasetExists, 409),
        (StorageError, 503),
        (LedgerTampered, 500),
    ]
    return next((status for kind, status in kinds if isinstance(error, kind)), 422)


# -- the actions -------------------------------------------------------------------------------------------------------

Act = Callable[[Ledger, dict[str, Any]], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Action:
    """What a request asks for, who may, whether it writes, and whether it is about no data set in particular.

    One that is ``optional`` may leave the data set out, for all of them.
    """

    roles: tuple[str, ...]
    act: Act
    writes: bool = False
    everywhere: bool = False
    optional: bool = False


def _mechanism(plain: Any) -> acc.Mechanism:
    try:
        return acc.from_dict(plain)
    except (AttributeError, TypeError, KeyError):
        raise TermsError("the mechanism of the request cannot be read") from None


def _charge(ledger: Ledger, asked: dict[str, Any]) -> dict[str, Any]:
    mechanism, schedule = _mechanism(asked["mechanism"]), None
    if asked.get("schedule") is not None:
        every, times = asked["schedule"]["every"], asked["schedule"]["times"]
        schedule = check_schedule(ledger.dataset(asked["dataset"]), mechanism, every, times)
        mechanism = mechanism * times
    made = ledger._charge(
        asked["dataset"],
        mechanism,
        delta=asked.get("delta"),
        purpose=asked.get("purpose", ""),
        number=asked["number"],
        data=asked.get("data"),
        version=asked.get("version"),
        schedule=schedule,
    )
    return {"charge": made.number, "price": made.price.to_dict(), "head": made.head, "confirmed": made.confirmed}


def _quote(ledger: Ledger, asked: dict[str, Any]) -> dict[str, Any]:
    price: Price = ledger.quote(asked["dataset"], _mechanism(asked["mechanism"]), delta=asked.get("delta"))
    return {"price": price.to_dict()}


def _fits(ledger: Ledger, asked: dict[str, Any]) -> dict[str, Any]:
    return {"fits": ledger.fits(asked["dataset"], _mechanism(asked["mechanism"]), delta=asked.get("delta"))}


def _resume(ledger: Ledger, asked: dict[str, Any]) -> dict[str, Any]:
    made = ledger.resume(asked["dataset"], asked["charge"])
    return {"head": made.head, "record": ledger.record(asked["dataset"], asked["charge"]).to_dict()}


def _draw(ledger: Ledger, asked: dict[str, Any]) -> dict[str, Any]:
    made = ledger.draw(
        asked["dataset"],
        asked["plan"],
        purpose=asked.get("purpose", ""),
        data=asked.get("data"),
        number=asked.get("number"),
        mechanism=None if asked.get("mechanism") is None else _mechanism(asked["mechanism"]),
    )
    return {"head": made.head, "record": ledger.record(asked["dataset"], made.number).to_dict()}


def _history(ledger: Ledger, asked: dict[str, Any]) -> dict[str, Any]:
    limit = min(max(int(asked.get("limit") or PAGE), 1), PAGE)
    records = ledger.history(asked["dataset"], after=_place(asked), limit=limit)
    return {"records": [record.to_dict() for record in records], "more": len(records) == limit}


def _budget(ledger: Ledger, asked: dict[str, Any]) -> dict[str, Any]:
    # the same time however long the history is: whoever wants the exact composition computes it from the history
    ends, _ = ledger._now(asked["dataset"])
    return {
        "first": ends.first.read(),
        "last": ends.last.read(),
        "head": ends.last.hash,
        "time": time_after(ends.last)["time"],
    }


def _entries(ledger: Ledger, asked: dict[str, Any]) -> dict[str, Any]:
    store: Any = ledger._store
    rows = store.after(asked["dataset"], _place(asked))
    return {"rows": [[row.seq, row.body, row.hash] for row in rows], "lost": store.lost(asked["dataset"], rows)}


def _guards(ledger: Ledger, asked: dict[str, Any]) -> dict[str, Any]:
    return {"guards": ledger._store.guards([asked["dataset"]])}


def _place(asked: dict[str, Any]) -> int:
    """The place after which entries are asked for, as a number that every database takes."""
    return min(max(int(asked.get("after", -1)), -1), 2**31 - 1)


def _register(ledger: Ledger, asked: dict[str, Any]) -> dict[str, Any]:
    made = ledger.register(asked["dataset"], **asked["terms"])
    return {"terms": made.to_terms(), "twins": ledger._twins(made)}


def _change(ledger: Ledger, asked: dict[str, Any]) -> dict[str, Any]:
    dataset, rest = asked["dataset"], dict(asked["change"])
    kind = rest.pop("kind")
    known: Mapping[str, Callable[..., Any]] = {
        "raise": ledger.raise_budget,
        "split": ledger.split_budget,
        "freeze": ledger.freeze,
        "thaw": ledger.thaw,
        "transfer": ledger.transfer,
        "accept": ledger.accept,
        "version": ledger.new_version,
    }
    if kind not in known:
        raise TermsError(f"there is no change {kind!r}; there are {', '.join(known)}")
    return {"result": known[kind](dataset, **rest)}


ACTIONS: dict[str, Action] = {
    "register": Action(OWNER, _register, writes=True),
    # the roles of each change are checked where it is made, for every kind of ledger
    "change": Action(READ, _change, writes=True),
    "charge": Action(CHARGE, _charge, writes=True),
    "confirm": Action(CHARGE, lambda led, a: {"head": led._confirm(a["dataset"], a["charge"])}, writes=True),
    "resume": Action(CHARGE, _resume, writes=True),
    "draw": Action(CHARGE, _draw, writes=True),
    "bind": Action(CHARGE, lambda led, a: {"release": led.bind(a["dataset"], a["charge"], a["files"])}, writes=True),
    "quote": Action(CHARGE, _quote),
    "fits": Action(CHARGE, _fits),
    # whoever reads the data computes their fingerprints
    "secret": Action(CHARGE, lambda led, a: {"secret": led.secret().hex()}, everywhere=True),
    "knows": Action(READ, lambda led, a: {"known": led._knows(a["dataset"], a["fingerprint"])}),
    "datasets": Action(READ, lambda led, a: {"datasets": led.datasets()}, everywhere=True),
    "dataset": Action(READ, lambda led, a: {"terms": led.dataset(a["dataset"]).to_terms()}),
    "record": Action(READ, lambda led, a: {"record": led.record(a["dataset"], a["charge"]).to_dict()}),
    "mentions": Action(READ, lambda led, a: {"mentions": led.mentions(a["dataset"], a["charge"])}),
    "history": Action(READ, _history),
    "budget": Action(READ, _budget),
    "head": Action(READ, lambda led, a: {"head": led.head(a["dataset"])}),
    "heads": Action(READ, lambda led, a: {"heads": signing.heads_of(led, a.get("dataset"))}, optional=True),
    "changes": Action(READ, lambda led, a: {"changes": [c.to_dict() for c in led.changes(a["dataset"])]}),
    # everybody who reads verifies for themselves: the service only hands out what is written
    "entries": Action(READ, _entries),
    "guards": Action(READ, _guards),
}


# -- HTTP --------------------------------------------------------------------------------------------------------------


def listen(
    service: Service,
    host: str,
    port: int,
    *,
    certificate: tuple[Path | None, Path | None] = (None, None),
    anchor: tuple[Path | None, float] = (None, 60.0),
    behind_proxy: bool = False,
    ready: Callable[[str], None] = print,
) -> None:
    """Answer requests until the process is stopped; heads go to the anchor from time to time and at the end."""
    import uvicorn

    # whoever is not behind a proxy could write any address into the log by a header
    options: dict[str, Any] = {"log_level": "warning", "access_log": False, "proxy_headers": behind_proxy}
    # a client that keeps its connection open does not keep the service from stopping
    options |= {
        "server_header": False,
        "timeout_graceful_shutdown": 10,
        "timeout_keep_alive": SLOWEST,
        "http": "h11",
        "ws": "none",
    }
    if certificate[0] is not None:
        options |= {"ssl_certfile": str(certificate[0]), "ssl_keyfile": certificate[1] and str(certificate[1])}
    try:
        door = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=512
        )
    except OSError as error:
        raise StorageError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    ready(f"{'https' if certificate[0] else 'http'}://{host}:{door.getsockname()[1]}")
    sys.stdout.flush()
    open_ = uvicorn.server.ServerState()
    server = uvicorn.Server(uvicorn.Config(app(service, *anchor, open_.connections), **options))
    server.server_state = open_
    server.run(sockets=[door])


async def hang_up(connections: Collection[Any]) -> None:
    """Close connections on which nothing was asked for some time, such as those that send a header letter by letter."""
    before: dict[Any, Any] = {}
    while True:
        await asyncio.sleep(SLOWEST)
        waiting = {one: one.cycle for one in connections if one.cycle is None or one.cycle.response_complete}
        for one, cycle in waiting.items():
            if one in before and before[one] is cycle:
                one.transport.abort()
        before = waiting


def app(service: Service, anchor: Path | None = None, every: float = 60.0, connections: Collection[Any] = ()) -> Any:
    """The service as an application of Starlette; heads go to the anchor from time to time and at the end."""
    try:
        from starlette.applications import Starlette
        from starlette.requests import ClientDisconnect, Request
        from starlette.responses import Response
        from starlette.routing import Route
    except ImportError:
        raise LedgerError(
            "tacit ledger serve needs Starlette and uvicorn: pip install 'tacit[service]'. "
            "See: tacit explain missing-extra"
        ) from None

    pool = concurrent.futures.ThreadPoolExecutor(THREADS, "ledger request")

    async def aside(function: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(pool, function, *given)

    async def act(request: Request) -> Response:
        body, action = b"", request.path_params["action"]
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        secret = secret if scheme.lower() == "bearer" else ""
        peer = request.client.host if request.client else ""
        if await aside(service.known, secret) is None:  # the body of a stranger is not read
            status, answer = await aside(service.answer, action, secret, None, b"", peer)
            return said(answer, status)
        try:
            async with asyncio.timeout(SLOWEST):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > LARGEST:
                        return said({"error": "TermsError", "message": "the request is too large"}, 413)
        except TimeoutError:
            return said({"error": "TermsError", "message": f"the request took more than {SLOWEST:g} s to arrive"}, 408)
        except ClientDisconnect:
            await aside(service.cut_off, action, secret, peer)
            return said({"error": "TermsError", "message": "the request was cut off"}, 400)
        key = request.headers.get("idempotency-key")
        status, answer = await aside(service.answer, action, secret, key, body, peer)
        return said(answer, status)

    async def alive(request: Request) -> Response:
        return said({"service": "tacit ledger", "version": 1})

    def said(answer: dict[str, Any], status: int = 200) -> Response:
        # in ASCII: what a client wrote and cannot be encoded comes back as it was
        return Response(json.dumps(answer, allow_nan=False), status, media_type="application/json")

    @contextlib.asynccontextmanager
    async def life(_: Any) -> AsyncIterator[None]:
        stop = threading.Event()

        def keep() -> None:
            ended, known = anchor is None, None
            while not ended:
                ended = stop.wait(every)
                try:
                    heads = signing.heads_of(service.ledger)
                    signing.anchor(heads, str(anchor), known)
                    known = heads
                except LedgerError as error:  # told, and tried again: charges go on
                    sys.stderr.write(f"tacit: {error}\n")

        keeper, sweeper = threading.Thread(target=keep, daemon=True), asyncio.create_task(hang_up(connections))
        keeper.start()
        yield
        sweeper.cancel()
        stop.set()
        keeper.join()

    return Starlette(routes=[Route("/v1/{action}", act, methods=["POST"]), Route("/", alive)], lifespan=life)
