"""Home: what needs somebody, then everything that there is, then how large it is."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from limpet.inspector.site import Page
from limpet.inspector.walker import walker_of
from limpet.views.attention import attention
from limpet.views.listing import Filters, listing, ordered_kinds, where
from limpet.views.measures import AGES, SIZES, measured

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams
    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.inspector.site import Site
    from limpet.views.listing import Order, Row

__all__ = ["PAGES"]

#: The statuses that the form offers; any other can be typed.
STATUSES = ("open", "waiting", "paused", "done", "failed", "cancelled", "interrupted")

_ORDERS: dict[str, Order] = {"": "id", "id": "id", "updated": "updated", "size": "size"}


async def home(request: Request, site: Site) -> Response:
    """The first page."""
    query, now = request.query_params, datetime.now(UTC)
    filters = _filters(query, now)
    walker = walker_of(site)
    await walker.look()
    number = walker.topic.number  # what comes after this is told
    found = await listing(site.scope, filters, after=query.get("after") or None)

    def here(**changes: object) -> str:
        """This page with another query."""
        given = {name: query.get(name) for name in _NAMES} | {"label": query.getlist("label")}
        return site.url("home", **(given | changes))

    return site.page(
        "home.html",
        needs=await attention(site.scope, walker.survey),
        survey=walker.survey,
        sizes=walker.survey.sizes.view(),
        every=walker.every,
        events=site.url("home-events", seen=number),
        found=found,
        filters=filters,
        given=query,
        more=any(query.get(name) for name in ("prefix", "newer", "older", "larger")),
        kinds=await ordered_kinds(site.scope),
        statuses=STATUSES,
        here=here,
        where=where,
        row_id=_row_id,
    )


_NAMES = ("kind", "status", "q", "prefix", "newer", "older", "larger", "order", "after")


def _filters(query: QueryParams, now: datetime) -> Filters:
    """What the query asks for; `ValueError` if that cannot be understood."""
    labels: dict[str, str] = {}
    for given in query.getlist("label"):
        name, equals, value = given.partition("=")
        if given and not equals:
            raise ValueError("A label is asked for as name=value.")
        labels |= {name.strip(): value.strip()} if given else {}
    order = _ORDERS.get(query.get("order", ""))
    if order is None:
        raise ValueError(f"The order is one of {', '.join(filter(None, _ORDERS))}.")

    def ago(name: str) -> datetime | None:
        given = query.get(name, "").strip()
        try:
            return now - timedelta(seconds=measured(given, AGES)) if given else None
        except OverflowError:  # before there were years
            return datetime.min.replace(tzinfo=UTC)

    larger = query.get("larger", "").strip()
    return Filters(
        kinds=[query["kind"]] if query.get("kind") else None,
        prefix=query.get("prefix", ""),
        status=query.get("status", "").strip() or None,
        labels=labels,
        text=query.get("q", "").strip(),
        before=ago("older"),
        since=ago("newer"),
        larger=measured(larger, SIZES) if larger else None,
        order=order,
    )


def _row_id(group: str, row: Row) -> str:
    """The id of a row's link: the same after the row was exchanged, so that it keeps the focus."""
    name = f"{group}/{row.head.kind}/{row.head.id}"
    return f"row-{zlib.crc32(name.encode('utf-8', 'backslashreplace')):x}"


async def events(_request: Request, site: Site) -> Response:
    """An event whenever something has changed that home shows."""
    walker = walker_of(site)
    await walker.look()
    return site.followers.topic(walker.topic, site.number("seen"))


PAGES = [Page("home", "/", home, "Home"), Page("home-events", "/home/events", events)]
