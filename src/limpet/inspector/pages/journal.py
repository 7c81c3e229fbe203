"""Any journal entry by entry, and one entry whole: where every deep link leads."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from limpet.inspector.documents import shown
from limpet.inspector.site import Page
from limpet.views.heads import HeadView, head_of
from limpet.views.journal import entry_view, journal_page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.backends.contract import Head
    from limpet.inspector.site import Site

__all__ = ["PAGES"]


async def journal(request: Request, site: Site) -> Response:
    """The newest entries, those before some number, or one."""
    query = request.query_params
    head = await head_of(site.scope, query.get("kind", ""), query.get("id", ""))
    seq = site.number("seq", least=1)
    if seq is not None:
        return await _entry(request, site, head, seq)
    before = site.number("before", least=1)
    text, type_ = query.get("text", ""), query.get("type", "")
    found = await journal_page(site.scope, head, before=before, text=text, type=type_)
    here = partial(site.url, "journal", kind=head.key.kind, id=head.key.id, text=text, type=type_)
    return site.page(
        "journal.html",
        view=HeadView.of(head),
        found=found,
        here=here,
        before=before,
        text=text,
        type=type_,
        types=sorted({one.type for one in found.entries if one.type}),
    )


async def _entry(request: Request, site: Site, head: Head, seq: int) -> Response:
    entry = await entry_view(site.scope, head, seq)
    here = partial(site.url, "journal", kind=head.key.kind, id=head.key.id)
    document = shown(request, site, entry.body, partial(here, seq=seq))
    return site.page(
        "entry.html", view=HeadView.of(head), entry=entry, document=document, here=here
    )


PAGES = [Page("journal", "/journal", journal, tab="Entries", fits=lambda _view: True)]
