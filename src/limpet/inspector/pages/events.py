"""Events for a page that follows a journal; see `limpet.inspector.follow`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.core.ids import make_key
from limpet.inspector.site import Page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.inspector.site import Site

__all__ = ["PAGES"]


async def events(request: Request, site: Site) -> Response:
    """The journal of some kind and id, as often as it changes since the number *seen*."""
    query = request.query_params
    key = make_key(site.scope.tenant, query.get("kind", ""), query.get("id", ""))
    return site.followers.journal(key, site.number("seen"))


PAGES = [Page("events", "/events", events)]
