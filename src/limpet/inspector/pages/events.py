"""Events for a page that follows a journal; see `limpet.inspector.follow`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.core.ids import make_key
from limpet.inspector.site import Page
from limpet.integrations.langgraph import thread

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.inspector.site import Site

__all__ = ["PAGES"]


async def events(request: Request, site: Site) -> Response:
    """The journal of some kind and id, as often as it changes since the number *seen*.

    Of a thread also that of its effects, since the number *effects*: in one stream, of which a
    browser has few for all of its pages.
    """
    query = request.query_params
    keys = [make_key(site.scope.tenant, query.get("kind", ""), query.get("id", ""))]
    seen, effects = site.number("seen"), site.number("effects")
    if keys[0].kind == thread.KIND and effects is not None:
        keys.append(keys[0]._replace(kind=thread.EFFECTS))
        seen = None if seen is None else seen + effects
    return site.followers.journals(keys, seen)


PAGES = [Page("events", "/events", events)]
