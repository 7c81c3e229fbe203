"""What a page has of the request that it answers; and how pages and actions are declared."""

from __future__ import annotations

import hmac
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlencode

from markupsafe import Markup
from msgspec import Struct
from starlette.responses import HTMLResponse, RedirectResponse, Response

from limpet import AsyncStore
from limpet.core.scope import Scope
from limpet.inspector.follow import Followers
from limpet.inspector.rendering import environment
from limpet.inspector.security import cookie_name, root_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request

    from limpet.inspector.security import Access
    from limpet.views.heads import HeadView

__all__ = ["Action", "Done", "Page", "Parts", "Site", "field", "json_field"]

#: Characters of the one sentence that a page says after an action: a cookie has little room.
SAID = 600


class Page(NamedTuple):
    """A page: what ``url(…)`` calls it, its path, what makes it, and its name in the menu.

    *kinds*: of which it is the page of one journal, given as ``kind`` and ``id``. *tab*: its name
    in the header of the journals that it can show, which are those of *kinds*, or that it *fits*.
    """

    name: str
    path: str
    handler: Callable[[Request, Site], Awaitable[Response]]
    menu: str | None = None
    kinds: tuple[str, ...] = ()
    tab: str | None = None
    fits: Callable[[HeadView], bool] | None = None


class Action(NamedTuple):
    """A change: what ``url(…)`` calls it, its path, and what makes it; by POST only."""

    name: str
    path: str
    handler: Callable[[Request, Site, Mapping[str, str]], Awaitable[Response | Done]]


class Done(NamedTuple):
    """What an action did, in a sentence, and the page that comes after it."""

    text: str
    to: str


class Parts(Struct, frozen=True):
    """What the pages of one app share."""

    scope: Scope  # async
    followers: Followers
    paths: dict[str, str]
    menu: list[tuple[str, str]]
    pages_of_kinds: dict[str, str]  # the page that shows a journal of a kind
    tabs: list[Page]  # the pages of a journal, in their order
    title: str  # the store's URL, without a password
    place: bool  # whether what is so of the whole place, of all tenants, may be shown
    shared: dict[str, Any]  # what a page's module keeps between requests, by its name


class Site:
    """One request's view of the app. *write*: whether it may change something."""

    def __init__(self, request: Request, parts: Parts, access: Access, form_token: str) -> None:
        self._request = request
        self._parts = parts
        self._form_token = form_token
        self.access = access
        self.write = bool(access.write)

    @property
    def scope(self) -> Scope:
        """The tenant that is shown."""
        return self._parts.scope

    @property
    def store(self) -> AsyncStore:
        """The same as a store, for what changes something."""
        return AsyncStore(self.scope)

    @property
    def shows_place(self) -> bool:
        """Whether what is so of the whole place may be shown, of which all tenants are a part."""
        return self._parts.place

    @property
    def followers(self) -> Followers:
        """Who waits to be told that something has changed."""
        return self._parts.followers

    @property
    def shared(self) -> dict[str, Any]:
        """What a page's module keeps between requests, under a name of its own."""
        return self._parts.shared

    @property
    def menu(self) -> list[tuple[str, str]]:
        """The pages that every page leads to, with their labels."""
        return self._parts.menu

    def url(self, name: str, **query: object) -> str:
        """Where the page *name* is, within whatever the app is mounted into.

        Ids go into the query: one may be ``..``, or have slashes.
        """
        known = {key: value for key, value in query.items() if value not in (None, "", [])}
        path = root_of(self._request) + self._parts.paths[name]
        return f"{path}?{urlencode(known, doseq=True)}" if known else path

    def has(self, name: str) -> bool:
        """Whether there is such a page or action: an app may have been given others."""
        return name in self._parts.paths

    def journal_url(self, kind: str, id_: str, **query: object) -> str:
        """Where a journal is shown: on the page of its kind, or else entry by entry."""
        page = self._parts.pages_of_kinds.get(kind, "journal")
        if page not in self._parts.paths:
            page = "home"
        return self.url(page, kind=kind, id=id_, **query)

    def head_url(self, view: HeadView) -> str:
        """Where a journal is shown whose head is known: a state of a team as what was said."""
        for name, _ in self.tabs(view):
            return self.url(name, kind=view.kind, id=view.id)
        return self.journal_url(view.kind, view.id)

    def tabs(self, view: HeadView) -> list[tuple[str, str]]:
        """The pages that show this journal, with their labels."""
        return [
            (page.name, page.tab or page.name)
            for page in self._parts.tabs
            if (page.fits(view) if page.fits else view.kind in page.kinds)
        ]

    def static(self, name: str) -> str:
        """Where a file of ours is."""
        return self.url("static") + f"/{name}"

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """The page that *template* makes of *values*."""
        notice = None if self.partial else self._notice()
        made = (
            environment()
            .get_template(template)
            .render(
                {
                    "site": self,
                    "url": self.url,
                    "journal_url": self.journal_url,
                    "static": self.static,
                    "form_token": self.form_token,
                    "notice": notice,
                    "tenant": self.scope.tenant,
                    "store": self._parts.title,
                    "partial": self.partial,
                    **values,
                }
            )
        )
        response = HTMLResponse(made, status_code=status)
        if notice is not None:
            response.delete_cookie(self._notice_name, path=self.url("home"))
        return response

    def _notice(self) -> str | None:
        """What the action before this page has said; not what a page of another port says."""
        sealed, _, said = self._request.cookies.get(self._notice_name, "").partition(".")
        if not (said and self._form_token) or not hmac.compare_digest(
            sealed.encode(), self._seal(said).encode()
        ):
            return None
        return unquote(said)

    @property
    def _notice_name(self) -> str:
        return cookie_name(self._request, "notice")

    def _seal(self, said: str) -> str:
        return hmac.new(self._form_token.encode(), said.encode(), "sha256").hexdigest()

    def form_token(self) -> Markup:
        """The hidden field without which a form is refused."""
        return Markup('<input type="hidden" name="form_token" value="{}">').format(self._form_token)

    def done(self, done: Done) -> Response:
        """What follows an action: the page that it leads to, which says what was done."""
        response = RedirectResponse(done.to, status_code=303)
        said = quote(done.text[:SAID], errors="backslashreplace")
        response.set_cookie(
            self._notice_name,
            f"{self._seal(said)}.{said}",
            max_age=60,
            path=self.url("home"),
            httponly=True,
            samesite="strict",
            secure=self._request.url.scheme == "https",
        )
        return response

    @property
    def partial(self) -> bool:
        """Whether a part of a page was asked for, by htmx, and not all of it."""
        return self._request.headers.get("hx-request") == "true"

    def number(self, name: str, *, least: int = 0) -> int | None:
        """The number *name* of the query; None if it has none. `ValueError` if it is no number."""
        given = self._request.query_params.get(name)
        if not given:
            return None
        if not re.fullmatch(r"\d{1,15}", given, re.ASCII) or int(given) < least:
            raise ValueError(f"{name} is to be a number from {least}.")
        return int(given)


def field(form: Mapping[str, str], name: str) -> str:
    """The field *name* of a form; `ValueError` if it is not there."""
    found = form.get(name)
    if not found:
        raise ValueError(f"The form has no {name}.")
    return found


def json_field(form: Mapping[str, str], name: str) -> Any:
    """The value that is in the field *name* as JSON, None if that is empty; `ValueError`."""
    given = form.get(name, "").strip()
    try:
        return json.loads(given) if given else None
    except ValueError as error:
        raise ValueError(f"The {name} is not JSON: {error}. Text needs quotes.") from error
