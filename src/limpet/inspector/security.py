"""Who may come in, and what a browser may do with what it gets: once, for every page.

A page in the same browser is the attacker to think of: it can send requests to this machine, have
a name of its own point to it, and put our pages into a frame. So: the Host is one that we know; a
request that another page made is refused; a change is a POST from a page of ours, with a token; no
script, style or frame is allowed but the files that come with this package.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlsplit

from msgspec import Struct, structs
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from limpet.inspector.rendering import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = [
    "SHORTEST",
    "Access",
    "Callback",
    "Gate",
    "Guard",
    "Tokens",
    "cookie_name",
    "read_form",
    "root_of",
]

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # Not no-referrer: a form would then be sent with the Origin null, which is anybody's.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

#: Bytes of a form; a signal may have a payload.
MOST_BYTES = 1024 * 1024
#: Seconds that a form may take to arrive: whoever sends a byte now and then holds nothing up.
PATIENCE = 30.0
#: Seconds for which somebody who came in may stay.
STAY = 12 * 3600
#: Characters of a token of the user's: those of a generated one are more.
SHORTEST = 16


class Access(Struct, frozen=True):
    """What somebody may do, and who that is: *by* is recorded with each change.

    *write*: whether they may change anything; None leaves it to what `app` was given.
    """

    by: str | None = None
    write: bool | None = None


class Gate(Protocol):
    """Says who a request is from."""

    async def access(self, request: Request) -> Access | None:
        """What the sender may do; None for nothing."""

    async def enter(self, request: Request, form: Mapping[str, str]) -> Response | None:
        """What to answer somebody who asks to be let in; None if this is no such request."""

    def refusal(self, request: Request) -> Response:
        """What to answer somebody who may not come in."""


class Callback:
    """A function of the user's says who may come in: the app is mounted into another one."""

    def __init__(self, authorize: Callable[[Request], Any]) -> None:
        self._authorize = authorize

    async def access(self, request: Request) -> Access | None:
        found = self._authorize(request)
        if hasattr(found, "__await__"):
            found = await found
        if isinstance(found, Access):
            return found
        if isinstance(found, str):
            return Access(by=found) if found else None
        return Access() if found is True else None

    async def enter(self, _request: Request, _form: Mapping[str, str]) -> Response | None:
        return None

    def refusal(self, _request: Request) -> Response:
        return PlainTextResponse("You may not see this.", status_code=403)


class Tokens:
    """A link that works once, or a token of the user's; then a cookie, for twelve hours."""

    def __init__(self, *, by: str | None = None, token: str | None = None) -> None:
        self._by = by
        self._token = token
        self._links: set[bytes] = set()
        self._sessions: dict[bytes, float] = {}

    def link(self) -> str:
        """A new token for a link: whoever brings it first comes in."""
        made = secrets.token_urlsafe(32)
        self._links.add(_digest(made))
        return made

    async def access(self, request: Request) -> Access | None:
        cookie = request.cookies.get(cookie_name(request))
        until = self._sessions.get(_digest(cookie)) if cookie else None
        if until is None or until < time.monotonic():
            return None
        return Access(by=self._by)

    async def enter(self, request: Request, form: Mapping[str, str]) -> Response | None:
        """Let somebody in who brings a token.

        Not by a redirect: where a link was followed from another site, a browser would keep the
        new cookie back until a page of ours asks for something.
        """
        brought = _digest(form.get("token") or request.query_params.get("token") or "")
        if request.method == "GET" and brought in self._links:
            self._links.discard(brought)
        elif (
            request.method != "POST"
            or self._token is None
            or not hmac.compare_digest(brought, _digest(self._token))
        ):
            return self.refusal(request)
        now = time.monotonic()
        self._sessions = {one: until for one, until in self._sessions.items() if until >= now}
        session = secrets.token_urlsafe(32)
        self._sessions[_digest(session)] = now + STAY
        response = _entered(request)
        _set_cookie(response, request, session, STAY)
        return response

    def refusal(self, request: Request) -> Response:
        return _small_page("refused.html", request, status=403, asks=self._token is not None)


class Guard:
    """Lets requests through to *app* that may come in; its answers get the headers above."""

    def __init__(
        self,
        app: ASGIApp,
        gate: Gate,
        *,
        hosts: Iterable[str] | None,
        write: bool,
        secret: bytes | None,
        entry: str,
    ) -> None:
        self._app = app
        self._gate = gate
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._write = write
        self._entry = entry
        self._secret = secret or secrets.token_bytes(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # there are none
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        request = Request(scope, receive)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if cookie := getattr(request.state, "new_cookie", None):
                    headers.append("set-cookie", cookie)
            await send(message)

        response = self._refused(request) or await self._admitted(request)
        await (response or self._app)(scope, receive, send_guarded)

    def _refused(self, request: Request) -> Response | None:
        """What is wrong with a request, whoever sent it."""
        host = request.headers.get("host", "").lower()
        if self._hosts is not None and host not in self._hosts:
            return PlainTextResponse("This is no name of the inspector's.", status_code=421)
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("Only GET and POST are known here.", status_code=405)
        # What other pages ask for: a page of another port of this machine is "same-site", and
        # would be sent our cookie. They may lead somebody here, and that is all.
        site = request.headers.get("sec-fetch-site", "none")
        leads_here = request.method == "GET" and (
            request.headers.get("sec-fetch-mode") == "navigate"
            and request.headers.get("sec-fetch-dest") == "document"
        )
        if site not in ("none", "same-origin") and not leads_here:
            return PlainTextResponse("Another page has asked for this.", status_code=403)
        # Where it is not encrypted and not this machine, browsers leave the headers above out.
        if request.method == "POST" or "origin" in request.headers:
            origin = urlsplit(request.headers.get("origin", ""))
            if not host or origin.netloc.lower() != host or origin.scheme not in ("http", "https"):
                return PlainTextResponse("This form is not from here.", status_code=403)
        return None

    async def _admitted(self, request: Request) -> Response | None:
        """None for a request that may go on, with what it may do in its state."""
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if path.startswith("/static/"):
            return None  # files of this package, which anybody can read
        access = await self._gate.access(request)
        if access is None:
            if path == self._entry and request.method != "POST":
                entered = await self._gate.enter(request, {})
            elif path == self._entry:
                try:
                    form = await read_form(request)
                except ValueError as error:
                    return PlainTextResponse(str(error), status_code=400)
                entered = await self._gate.enter(request, form)
            else:
                entered = None
            return entered or self._gate.refusal(request)
        if path == self._entry:  # a link that was followed twice by the same browser
            return _entered(request)
        may_write = self._write if access.write is None else access.write
        request.state.access = structs.replace(access, write=may_write)
        request.state.form_token = self._form_token(request)
        return None

    def _form_token(self, request: Request) -> str:
        """What a form must carry: only a page of ours, read with the same cookie, knows it."""
        cookie = request.cookies.get(cookie_name(request))
        if not cookie:  # where the user's own function says who may come in
            cookie = secrets.token_urlsafe(32)
            carrier = Response()
            _set_cookie(carrier, request, cookie, STAY)
            request.state.new_cookie = carrier.headers["set-cookie"]
        return hmac.new(self._secret, cookie.encode(), "sha256").hexdigest()


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form as browsers send it; `ValueError` if it is something else."""
    from urllib.parse import parse_qsl  # noqa: PLC0415 - rarely needed

    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":  # no JSON, no uploads
        raise ValueError("A form is expected.")
    body = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MOST_BYTES:
                    raise ValueError(f"A form has at most {MOST_BYTES:,} bytes.")
    except (TimeoutError, ClientDisconnect) as error:
        raise ValueError("The form did not arrive as a whole.") from error
    pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=100)
    # A browser ends lines with \r\n, whatever the user typed.
    return {name: value.replace("\r\n", "\n") for name, value in pairs}


def root_of(request: Request) -> str:
    """Where the app is mounted, as a link has it: a path of this host, whatever is in it."""
    root: str = request.scope.get("root_path", "").strip("/")
    return f"/{quote(root)}" if root else ""


def _small_page(template: str, request: Request, *, status: int = 200, **values: Any) -> Response:
    made = environment().get_template(template)
    return HTMLResponse(made.render(root=root_of(request), **values), status_code=status)


def _entered(request: Request) -> Response:
    """Leads to the first page, and tells nobody the address that it was reached by."""
    response = _small_page("entered.html", request)
    response.headers["referrer-policy"] = "no-referrer"
    return response


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def cookie_name(request: Request, what: str = "") -> str:
    """One for each port: browsers keep cookies by host alone.

    With TLS, no page of another host or port, and none without TLS, can set a cookie of this name.
    """
    _, _, port = request.headers.get("host", "").rpartition(":")
    name = "-".join(filter(None, ("limpet", what, port if port.isdecimal() else "")))
    if request.url.scheme != "https":
        return name
    return f"__Secure-{name}" if root_of(request) else f"__Host-{name}"


def _set_cookie(response: Response, request: Request, value: str, seconds: int) -> None:
    response.set_cookie(
        cookie_name(request),
        value,
        max_age=seconds,
        path=root_of(request) or "/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
