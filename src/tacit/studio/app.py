"""How does a browser reach the studio, and who else does not? One Starlette application behind four guards.

1. Host: only the names that the studio was started for, so that no foreign name can be pointed at it (DNS rebinding).
2. Token: a cookie that no script reads and no other site sends (HttpOnly, SameSite=Strict). It does not hold the token.
3. Origin: whatever is posted must come from the studio's own pages, as JSON (CSRF). There is no CORS.
4. Content-Security-Policy: only the studio's own script and style; reports have no script at all.
"""

from __future__ import annotations

import functools
import hmac
import json
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tacit import accounting as acc
from tacit.ledger import LedgerError, PrivateValueError
from tacit.ledger.service import Limit
from tacit.ledger.tokens import Token
from tacit.report import CardError
from tacit.report.texts import languages, translated
from tacit.schema import SchemaError
from tacit.studio import books, cost, expected, folders, shell, written
from tacit.studio.fields import FieldError, alert, kept
from tacit.studio.state import Studio

#: The largest body of a request, in bytes.
LARGEST = 1 << 18
#: What the pages may load and do: nothing that is not the studio's own.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
#: A report brings its style and nothing else.
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; frame-ancestors 'none'"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
STATIC = {"studio.css": "text/css", "studio.js": "text/javascript", "report.css": "text/css"}

Question = Callable[[Studio, Token, Mapping[str, Any]], dict[str, Any]]


def _public(ask: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Question:
    """A question about public numbers, whoever asks."""
    return lambda studio, who, values: ask(values)


def _about_runs(ask: Callable[[Studio, Mapping[str, Any]], dict[str, Any]]) -> Question:
    return lambda studio, who, values: ask(studio, values)


QUESTIONS: dict[str, Question] = {
    "cost/price": _public(cost.price),
    "cost/attack": _public(cost.attack),
    "cost/curves": _public(cost.curves),
    "cost/samplers": _public(cost.samplers),
    "cost/accountants": _public(cost.accountants),
    "expected/statistics": _public(expected.statistics),
    "expected/regression": _public(expected.regression),
    "expected/training": _public(expected.training),
    "ledger/overview": books.overview,
    "ledger/history": books.history,
    "ledger/planned": books.planned,
    "ledger/verify": books.verify,
    "runs/listed": _about_runs(folders.listed),
    "runs/one": _about_runs(folders.one),
    "runs/compared": _about_runs(folders.compared),
    "schema/toml": _public(written.toml),
}
#: What a question may raise that is the asker's to mend; everything else is a fault of the studio.
MENDABLE = (FieldError, acc.AccountingError, LedgerError, CardError, PrivateValueError, SchemaError)


def hosts(host: str, port: int, allowed: tuple[str, ...] = ()) -> frozenset[str]:
    """The Host headers that a studio answers to.

    >>> sorted(hosts("127.0.0.1", 8760))
    ['127.0.0.1:8760', '[::1]:8760', 'localhost:8760']
    """
    own = ("127.0.0.1", "localhost", "[::1]") if host in LOOPBACK else (f"[{host}]" if ":" in host else host,)
    with_port = {f"{name}:{port}" for name in own}
    return frozenset(with_port | {name for one in allowed for name in (one, f"{one}:{port}")})


LOOPBACK = ("127.0.0.1", "localhost", "::1")


def make_app(studio: Studio, names: frozenset[str], *, secure: bool = False) -> Any:
    """The studio as an application of Starlette.

    Args:
        studio: What it shows, and to whom.
        names: The Host headers that it answers to, as :func:`hosts` gives them.
        secure: Whether it is reached over https only.

    Returns:
        The application.

    Raises:
        LedgerError: If Starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError:
        raise LedgerError(
            "tacit studio needs Starlette and uvicorn: pip install 'tacit[service]'. See: tacit explain missing-extra"
        ) from None
    desk = _Desk(studio, names, secure)
    get, post = ["GET"], ["POST"]
    return Starlette(
        routes=[
            Route("/", desk.home, methods=get),
            Route("/enter", desk.enter, methods=post),
            Route("/static/{name}", desk.static, methods=get),
            Route("/api/{part}/{name}", desk.ask, methods=post),
            Route("/runs/{run}/report", desk.report, methods=get),
            Route("/runs/{run}", desk.page, methods=get),
            Route("/{page}", desk.page, methods=get),
        ],
    )


def _guarded(
    act: Callable[[_Desk, Any, Token], Awaitable[Any]],
) -> Callable[[_Desk, Any], Awaitable[Any]]:
    """Only with a known Host and a token."""

    @functools.wraps(act)
    async def guarded(self: _Desk, request: Any) -> Any:
        if (no := self.foreign(request)) is not None:
            return no
        sent = request.cookies.get(self.cookie(request), "")
        who = self.studio.enter(self.sessions.get(sent, ""))
        if who is None:
            return self.refused("", request, 401)
        return await act(self, request, who)

    return guarded


class _Desk:
    """What answers requests, apart from what is answered."""

    def __init__(self, studio: Studio, names: frozenset[str], secure: bool) -> None:
        self.studio, self.names, self.secure, self.tries = studio, names, secure, Limit(5.0)
        self.key, self.sessions = secrets.token_bytes(32), dict[str, str]()

    # -- the cookie ----------------------------------------------------------------------------------------------------

    @staticmethod
    def cookie(request: Any) -> str:
        """The name of the cookie, with the port: browsers send cookies to every port of a host."""
        port = urlsplit(f"//{request.headers.get('host', '')}").port
        return "tacit_studio" if port is None else f"tacit_studio_{port}"

    def session(self, secret: str) -> str:
        """What the cookie holds in place of a valid token: of use to this studio only, and until it ends."""
        made = hmac.new(self.key, secret.encode(), "sha256").hexdigest()
        self.sessions[made] = secret
        return made

    # -- guards --------------------------------------------------------------------------------------------------------

    def foreign(self, request: Any) -> Any:
        """Nothing for a request to one of the studio's own names; else the refusal."""
        if request.headers.get("host", "") in self.names:
            return None
        return self.reply("This is not one of the studio's names.", "text/plain", 421)

    def posted_here(self, request: Any) -> bool:
        """Whether a request was posted by one of the studio's own pages."""
        origin = urlsplit(request.headers.get("origin", ""))
        scheme = "https" if self.secure else "http"
        same = request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
        return bool(same and origin.scheme == scheme and origin.netloc == request.headers.get("host", ""))

    @staticmethod
    async def body(request: Any) -> bytes | None:
        """What was sent; None if it is too much."""
        found = b""
        async for chunk in request.stream():
            found += chunk
            if len(found) > LARGEST:
                return None
        return found

    # -- answers -------------------------------------------------------------------------------------------------------

    def reply(self, text: str, kind: str = "text/html", status: int = 200, policy: str = POLICY) -> Any:
        """An answer with the headers that all have."""
        from starlette.responses import Response

        headers = HEADERS | {"Content-Security-Policy": policy}
        return Response(text, status, headers=headers, media_type=kind)

    def told(self, values: dict[str, Any], status: int = 200) -> Any:
        return self.reply(json.dumps(_plain(values), allow_nan=False), "application/json", status)

    def refused(self, message: str, request: Any, status: int) -> Any:
        return self.reply(shell.door(message, _language(request)), status=status)

    # -- the ways in ---------------------------------------------------------------------------------------------------

    async def home(self, request: Any) -> Any:
        """The first page; with the token in the address, which is taken out of it."""
        if (no := self.foreign(request)) is not None:
            return no
        secret = request.query_params.get("token")
        if secret is not None:
            # A redirect would still be the other place's navigation, which gets no strict cookie: the page goes on.
            return self._let_in(request, secret, self.reply(shell.onward("/cost")))
        return self._to("/cost")

    async def enter(self, request: Any) -> Any:
        """The token from the form."""
        if (no := self.foreign(request)) is not None:
            return no
        sent = await self.body(request)
        if sent is None or not self.posted_here(request):
            return self.refused("", request, 403)
        given = parse_qs(sent.decode("utf-8", "replace")).get("token", [""])
        return self._let_in(request, given[0], self._to(f"/cost{kept({'lang': _language(request)})}"))

    def _let_in(self, request: Any, secret: str, answer: Any) -> Any:
        peer = request.client.host if request.client else ""
        if self.studio.enter(secret) is None:
            allowed = self.tries.allows(peer)
            return self.refused(alert("This token is not valid."), request, 401 if allowed else 429)
        held = self.session(secret)
        answer.set_cookie(self.cookie(request), held, httponly=True, samesite="strict", secure=self.secure, path="/")
        return answer

    def _to(self, place: str) -> Any:
        from starlette.responses import RedirectResponse

        return RedirectResponse(place, 303, headers=HEADERS | {"Content-Security-Policy": POLICY})

    async def static(self, request: Any) -> Any:
        """The script and the styles, which are no secret."""
        if (no := self.foreign(request)) is not None:
            return no
        name = request.path_params["name"]
        if name not in STATIC:
            return self.reply("There is no such file.", "text/plain", 404)
        return self.reply(_static(name), STATIC[name])

    @_guarded
    async def page(self, request: Any, who: Token) -> Any:
        """A page with its form."""
        from starlette.concurrency import run_in_threadpool

        name, run = request.path_params.get("page", "runs"), request.path_params.get("run")
        if name not in shell.PAGES:
            return self.reply("There is no such page.", "text/plain", 404)
        language = _language(request)
        values = dict(request.query_params) | {"lang": language} | ({} if run is None else {"run": run})
        try:
            return self.reply(await run_in_threadpool(shell.page, self.studio, who, name, values, language))
        except MENDABLE as error:
            return self.refused(alert(str(error)), request, 422)

    @_guarded
    async def report(self, request: Any, who: Token) -> Any:
        """The report of a run that has ended."""
        from starlette.concurrency import run_in_threadpool

        try:
            made = await run_in_threadpool(folders.report, self.studio, request.path_params["run"], _language(request))
        except MENDABLE as error:
            return self.reply(str(error), "text/plain", 404)
        return self.reply(made, policy=REPORT_POLICY)

    @_guarded
    async def ask(self, request: Any, who: Token) -> Any:
        """A question of a page."""
        from starlette.concurrency import run_in_threadpool

        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if not self.posted_here(request) or kind != "application/json":
            return self.told({"html": "", "error": "only the studio's own pages may ask"}, 403)
        sent = await self.body(request)
        if sent is None:
            return self.told({"html": alert("This is too much."), "error": "too large"}, 413)
        ask = QUESTIONS.get(f"{request.path_params['part']}/{request.path_params['name']}")
        if ask is None:
            return self.told({"html": "", "error": "there is no such question"}, 404)
        language = _language(request)
        status, answer = await run_in_threadpool(self._answered, ask, who, sent, language)
        return self.told(answer | {"html": translated(answer["html"], language)}, status)

    def _answered(self, ask: Question, who: Token, sent: bytes, language: str) -> tuple[int, dict[str, Any]]:
        try:
            values = json.loads(sent or b"{}")
            if not isinstance(values, dict):
                raise FieldError("The question cannot be understood.")
            return 200, ask(self.studio, who, values | {"lang": language})
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
            return 422, {"html": alert("The question cannot be understood."), "error": "not JSON"}
        except MENDABLE as error:
            return 422, {"html": alert(str(error)), "error": str(error), "field": getattr(error, "field", "")}


def _language(request: Any) -> str:
    asked = request.query_params.get("lang", "en")
    return asked if asked in languages() else "en"


def _plain(value: Any) -> Any:
    """Values for JSON, which has no infinity."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not abs(value) < float("inf") else value


@functools.cache
def _static(name: str) -> str:
    import importlib.resources

    room, file = ("tacit.report", "style.css") if name == "report.css" else ("tacit.studio", name)
    return (importlib.resources.files(room) / file).read_text(encoding="utf-8")


def serve(
    studio: Studio,
    host: str = "127.0.0.1",
    port: int = 8760,
    *,
    allowed: tuple[str, ...] = (),
    certificate: tuple[Path | None, Path | None] = (None, None),
    behind_proxy: bool = False,
    ready: Callable[[str], None] = print,
) -> None:
    """Answer requests until the process is stopped.

    Args:
        studio: What it shows, and to whom.
        host: The address to listen on.
        port: The port; 0 takes a free one.
        allowed: Names under which it may be reached beside the address, such as ``"studio.example.org"``.
        certificate: Certificate and key, for https.
        behind_proxy: Whether a proxy in front does TLS.
        ready: What is called with the address that lets its reader in, once requests are answered.

    Raises:
        LedgerError: If it cannot listen there, or Starlette and uvicorn are not installed.
    """
    secure = certificate[0] is not None or behind_proxy
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        door = socket.create_server((host, port), family=family, backlog=64)
    except OSError as error:
        raise LedgerError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    taken = door.getsockname()[1]
    app = make_app(studio, hosts(host, taken, allowed), secure=secure)
    import uvicorn

    options: dict[str, Any] = {"log_level": "warning", "access_log": False, "proxy_headers": False}
    options |= {"server_header": False, "timeout_graceful_shutdown": 5}
    if certificate[0] is not None:
        options |= {"ssl_certfile": str(certificate[0]), "ssl_keyfile": certificate[1] and str(certificate[1])}
    shown = allowed[0] if allowed else (f"[{host}]" if ":" in host else host)
    base = f"{'https' if secure else 'http'}://{shown}" + ("" if behind_proxy else f":{taken}")
    ready(shell.address(base, studio.secret) if studio.tokens is None else base)
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, **options)).run(sockets=[door])
