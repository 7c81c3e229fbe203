"""The versions of a journal, and what differs between any two."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from limpet.core.changes import line_by_line
from limpet.errors import NotFound
from limpet.inspector.site import Page
from limpet.integrations.langgraph.thread import KIND as THREAD
from limpet.states.format import KIND as STATE
from limpet.views.diff import diff_view
from limpet.views.heads import HeadView, head_of
from limpet.views.versions import KINDS, is_short, last_two, versions_page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.inspector.site import Site

__all__ = ["PAGES"]

#: Changes on a page, and characters of a text that was changed; a page of one change has all of it.
CHANGES = 200
TEXT = 600


async def versions(request: Request, site: Site) -> Response:
    """The newest versions, or those before some number."""
    query = request.query_params
    head = await head_of(site.scope, query.get("kind", ""), query.get("id", ""))
    before = site.number("before", least=1)
    whole = query.get("whole") == "1"
    found = await versions_page(site.scope, head, before=before, whole=whole)
    here = partial(site.url, "versions", kind=head.key.kind, id=head.key.id)
    return site.page(
        "versions.html",
        view=HeadView.of(head),
        found=found,
        here=here,
        before=before,
        whole=whole,
        one=partial(_one, site, head.key.kind, head.key.id),
    )


def _one(site: Site, kind: str, id_: str, number: int) -> str:
    """Where one version is shown."""
    if kind in (STATE, THREAD):
        page = "state" if kind == STATE else "chat"
        return site.url(page, kind=kind, id=id_, at=number)
    return site.url("journal", kind=kind, id=id_, seq=number)


async def diff(request: Request, site: Site) -> Response:
    """What differs between the versions *a* and *b*, by default the last two."""
    query = request.query_params
    head = await head_of(site.scope, query.get("kind", ""), query.get("id", ""))
    whole = query.get("whole") == "1"
    a, b = site.number("a", least=1), site.number("b", least=1)
    if a is None or b is None:
        last = await last_two(site.scope, head, whole=whole)
        if len(last) < 2 and a is None:  # noqa: PLR2004 - it takes two to compare
            raise NotFound(f"{head.key.kind}/{head.key.id} has one version only.")
        a, b = last[0] if a is None else a, last[-1] if b is None else b
    found = await diff_view(site.scope, head, a, b, whole=whole)
    here = partial(site.url, "diff", kind=head.key.kind, id=head.key.id)
    start = site.number("start") or 0
    only = site.number("change")
    if only is not None and only >= len(found.changes):
        raise NotFound(f"There is no change {only:,} between these versions.")
    shown = slice(start, start + CHANGES) if only is None else slice(only, only + 1)
    return site.page(
        "diff.html",
        view=HeadView.of(head),
        found=found,
        changes=list(enumerate(found.changes))[shown],
        only=only,
        start=start,
        more=max(len(found.changes) - start - CHANGES, 0) if only is None else 0,
        most=None if only is not None else TEXT,
        line_by_line=line_by_line,
        here=partial(here, a=a, b=b, whole=1 if whole else None),
        swapped=here(a=b, b=a),
        whole=here(a=a, b=b, whole=1),
        numbered=not is_short(head),
        one=partial(_one, site, head.key.kind, head.key.id),
    )


PAGES = [
    Page("versions", "/versions", versions, tab="Versions", fits=lambda view: view.kind in KINDS),
    Page("diff", "/diff", diff),
]
