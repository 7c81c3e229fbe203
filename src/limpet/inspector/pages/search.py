"""The search over everything."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from limpet.conversations.conversation import KIND as CONVERSATION
from limpet.inspector.site import Page
from limpet.views import PAGE
from limpet.views.heads import kinds_of
from limpet.views.search import KINDS, marked, search_view

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.inspector.site import Site
    from limpet.views.search import SearchHit

__all__ = ["PAGES"]

#: Hits that one page shows at most.
MOST = 500
#: Entries that are shown behind a message that was found.
BEHIND = 20


async def search(request: Request, site: Site) -> Response:
    """What fits, by journal; of one kind, if the query has a ``kind``."""
    query, kind = request.query_params.get("q", "").strip(), request.query_params.get("kind", "")
    if kind and kind not in KINDS:
        raise ValueError(f"kind is one of {', '.join(KINDS)}.")
    most = min(site.number("most", least=1) or PAGE, MOST)
    found = None
    if query:
        found = await search_view(site.scope, query, kinds=[kind] if kind else (), k=most)

    def link(hit: SearchHit) -> str:
        if hit.memory is not None:
            return site.url("memory", kind=hit.kind, id=hit.id, memory=hit.memory)
        if hit.kind == CONVERSATION:  # amid what was said before and after it
            before = hit.position + BEHIND
            return f"{site.url('chat', kind=hit.kind, id=hit.id, before=before)}#m{hit.position}"
        return site.url("journal", kind=hit.kind, id=hit.id, seq=hit.position)

    there = await kinds_of(site.scope)
    return site.page(
        "search.html",
        query=query,
        kind=kind,
        kinds=[one for one in KINDS if one in there or one == kind],
        found=found,
        link=link,
        marked=marked,
        here=partial(site.url, "search", q=query),
        wider=min(most * 4, MOST) if most < MOST else None,
    )


PAGES = [Page("search", "/search", search)]
