"""What is in doubt, and the answer of a person: one page and one action for every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.core.ids import make_key
from limpet.inspector.site import Action, Done, Page, field, json_field
from limpet.inspector.walker import walker_of
from limpet.integrations.langgraph import thread
from limpet.views.doubts import doubts_page
from limpet.views.heads import HeadView

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.inspector.site import Site

__all__ = ["ACTIONS", "PAGES"]

#: The answers, and what each says when it was given.
ANSWERS = {
    "done": "It has happened",
    "retry": "It is to be made again",
    "skip": "It goes on without it",
}


async def doubts(request: Request, site: Site) -> Response:
    """The calls in doubt of the tenant, as far as its journals were looked through."""
    before = request.query_params.get("before")
    walker = walker_of(site)
    await walker.look()
    page = await doubts_page(site.scope, walker.survey, before=before)
    return site.page("doubts.html", found=page, before=before, survey=walker.survey)


async def resolve(_request: Request, site: Site, form: Mapping[str, str]) -> Done:
    """Record what became of a call."""
    kind, id_, call, how = (field(form, name) for name in ("kind", "id", "call", "how"))
    if how not in ANSWERS:
        raise ValueError(f"how is one of {', '.join(ANSWERS)}.")
    if form.get("result", "").strip() and how != "done":
        raise ValueError("A result is for a call that has happened: choose that, or leave it out.")
    result = json_field(form, "result")
    await site.store.resolve(id_, call, how, result=result, by=site.access.by, kind=kind)
    return Done(f"{call} of {kind}/{id_}: {ANSWERS[how]}.", await _back(site, kind, id_))


async def _back(site: Site, kind: str, id_: str) -> str:
    """Where the journal is shown that a call is of: the effects of a thread with the thread."""
    for shown in (thread.KIND, kind) if kind == thread.EFFECTS else (kind,):
        key = make_key(site.scope.tenant, shown, id_)
        head = await site.scope.runtime.call(site.scope.backend.head, key)
        if head is not None:
            return site.head_url(HeadView.of(head))
    return site.url("home")


PAGES = [Page("doubts", "/doubts", doubts, "In doubt")]
ACTIONS = [Action("resolve", "/resolve", resolve)]
