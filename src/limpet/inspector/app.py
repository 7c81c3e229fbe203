"""The app: its pages, and what holds for each of them."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from limpet import AsyncStore, Store
from limpet.backends.url import safe_url
from limpet.core import audit
from limpet.core.runtime import core_of
from limpet.errors import LimpetError, NotFound, StoreError, Unreadable
from limpet.inspector.follow import Followers
from limpet.inspector.pages import ACTIONS, PAGES
from limpet.inspector.security import Access, Callback, Guard, read_form
from limpet.inspector.site import Done, Parts, Site
from limpet.memory import KIND as MEMORY
from limpet.tasks.entries import KIND as TASK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from limpet.inspector.security import Gate
    from limpet.inspector.site import Action, Page

__all__ = ["ENTRY", "Inspector", "app"]

#: The page that streams what changes.
EVENTS = "events"

#: What an act is called, and the kind of what its form names, by the action's name.
_ACTS = {
    "resolve": ("resolved", None),
    "forget": ("forgot", MEMORY),
    "fork-task": ("forked", TASK),
    "signal": ("signalled", TASK),
    "pause": ("paused", TASK),
    "cancel": ("cancelled", TASK),
    "resume": ("resumed", TASK),
}

#: Where a link with a token leads.
ENTRY = "/enter"


def app(
    store: Store | AsyncStore,
    *,
    authorize: Callable[[Request], Any],
    write: bool = False,
    hosts: Iterable[str] | None = None,
    secret: bytes | None = None,
    place: bool = False,
) -> ASGIApp:
    """The inspector of *store*, and of its tenant only, as an ASGI app to mount into your own.

    For example::

        app.mount("/agents", limpet.inspector.app(store, authorize=is_admin))

    *authorize* is given each request (Starlette's) and says who may come in: True; a name, which is
    recorded with each change; an `Access`, which also says whether they may write; and for anything
    else nobody. It may be async. There is no default: what agents know is not for everybody.

    Without *write* it shows and changes nothing. *hosts*: the names, with ports, by which browsers
    may call it, where your own app does not see to that. *secret*: the same bytes for each process,
    where several serve it; forms of one are then accepted by another. *place*: let the doctor's
    page say what is so of the whole place too, of which all tenants are a part: where it is, its
    engine and settings, its sizes, its damage.
    """
    return Inspector(
        store, Callback(authorize), write=write, hosts=hosts, secret=secret, place=place
    )


async def _record(
    site: Site, what: str, fields: Mapping[str, str], kind: str | None = None
) -> None:
    """Record an act upon what *fields* name, where acts are recorded and the store is writable."""
    if not site.scope.backend.readonly:
        await audit.record(
            site.scope,
            what,
            via="inspector",
            who=site.access.by,
            kind=fields.get("kind") or kind,
            id=fields.get("id"),
        )


class Inspector:
    """The pages of one store, behind a gate."""

    def __init__(
        self,
        store: Store | AsyncStore,
        gate: Gate,
        *,
        write: bool = False,
        hosts: Iterable[str] | None = None,
        secret: bytes | None = None,
        place: bool = False,
        pages: Sequence[Page] = PAGES,
        actions: Sequence[Action] = ACTIONS,
    ) -> None:
        core = core_of(store) if isinstance(store, Store) else store
        scope = core.scope.as_async()
        if write:
            scope.backend.check_writable()
        paths = {page.name: page.path for page in pages} | {"static": "/static"}
        paths |= {action.name: action.path for action in actions}
        menu = [(page.name, page.menu) for page in pages if page.menu]
        shown_by = {kind: page.name for page in pages for kind in page.kinds}
        self._parts = Parts(
            scope=scope,
            followers=Followers(scope),
            paths=paths,
            menu=menu,
            pages_of_kinds=shown_by,
            tabs=[page for page in pages if page.tab],
            title=safe_url(scope.backend.url),
            place=place,
            shared={},
        )
        routes = [
            *(Route(one.path, self._shown(one), methods=["GET"]) for one in pages),
            *(Route(one.path, self._changed(one), methods=["POST"]) for one in actions),
            Mount("/static", StaticFiles(packages=[("limpet.inspector", "static")])),
        ]
        inner = Starlette(
            routes=routes,
            exception_handlers={
                HTTPException: self._failed,
                LimpetError: self._failed,
                ValueError: self._failed,
            },
        )
        self._guarded = Guard(inner, gate, hosts=hosts, write=write, secret=secret, entry=ENTRY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._guarded(scope, receive, send)

    def _site(self, request: Request) -> Site:
        access: Access = getattr(request.state, "access", Access(write=False))
        return Site(request, self._parts, access, getattr(request.state, "form_token", ""))

    def _shown(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def show(request: Request) -> Response:
            site = self._site(request)
            response = await page.handler(request, site)
            # What follows a page, or fills in a part of it, is no other look at it.
            if "id" in request.query_params and not site.partial and page.name != EVENTS:
                what = "exported" if page.name == "export" else "opened"
                await _record(site, what, request.query_params)
            if request.method == "HEAD" and isinstance(response, StreamingResponse):
                # All of it would be made, and sent to nobody: of events, for ever.
                return Response(status_code=response.status_code, headers=response.headers)
            return response

        return show

    def _changed(self, action: Action) -> Callable[[Request], Awaitable[Response]]:
        """All that holds for a change, whichever it is."""

        async def change(request: Request) -> Response:
            site = self._site(request)
            form = await read_form(request)
            if not hmac.compare_digest(
                form.pop("form_token", "").encode(), request.state.form_token.encode()
            ):
                raise HTTPException(403, "This form is not from here, or too old: load it again.")
            if not site.write:
                raise HTTPException(
                    403, "This inspector is read-only. Start it with `limpet inspect --write`."
                )
            done = await action.handler(request, site, form)
            what, kind = _ACTS.get(action.name, (action.name, None))
            await _record(site, what, form, kind)
            return site.done(done) if isinstance(done, Done) else done

        return change

    async def _failed(self, request: Request, error: Exception) -> Response:
        """A page that says what went wrong, as a command would."""
        if isinstance(error, HTTPException):
            status, said = error.status_code, error.detail
        elif isinstance(error, NotFound):
            status, said = 404, str(error)
        elif isinstance(error, StoreError) and not isinstance(error, Unreadable):
            status, said = 503, error.message
        elif isinstance(error, ValueError) and not isinstance(error, Unreadable):
            status, said = 400, str(error)
        else:
            status, said = 409, str(error)
        site = self._site(request)
        titles = {404: "Not found", 403: "Not allowed", 503: "The store does not answer"}
        title = titles.get(status, "That cannot be done")
        damaged = isinstance(error, Unreadable)
        if damaged:
            title = "That cannot be read"
        return site.page("failed.html", status=status, title=title, said=said, damaged=damaged)
