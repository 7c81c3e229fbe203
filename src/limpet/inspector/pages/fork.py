"""A fork of a conversation or of a state: what it would begin with, and making it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from limpet.conversations.conversation import KIND as CONVERSATION
from limpet.errors import NotFound
from limpet.inspector.documents import shown
from limpet.inspector.pages.chat import FORKED, cache_of, look
from limpet.inspector.site import Action, Done, Page, field
from limpet.states.format import KIND as STATE
from limpet.views.chat import Message
from limpet.views.heads import HeadView, head_of
from limpet.views.states import state_view
from limpet.views.transcript import is_chat, transcript

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.backends.contract import Head
    from limpet.inspector.site import Site
    from limpet.views.chat import Line

__all__ = ["ACTIONS", "PAGES"]

#: Messages that are shown of what the fork would end with.
LAST = 4

NOT_HERE = (
    "Conversations and states are forked here. A thread or a run is forked by the framework that "
    "it is of, a task on its own page."
)


async def preview(request: Request, site: Site) -> Response:
    """What the fork would begin with, before anything is made: the last of it, if it is long."""
    kind, id_ = request.query_params.get("kind", ""), request.query_params.get("id", "")
    if kind not in FORKED:
        raise NotFound(NOT_HERE)
    head = await head_of(site.scope, kind, id_)
    given = site.number("at", least=1)
    at = min(given or head.seq, head.seq)
    if is_chat(head):
        begins = await _as_chat(site, head, given, at)
    else:
        found = await state_view(site.scope, head, given)
        here = partial(site.url, "fork", kind=kind, id=id_, at=given)
        begins = {
            "document": shown(request, site, found.document, here),
            "problem": found.damage,
            "open_calls": [],
        }
    return site.page("fork.html", view=HeadView.of(head), at=at, **begins, **look(whole=False))


async def _as_chat(site: Site, head: Head, given: int | None, at: int) -> dict[str, Any]:
    """The last messages, and the calls among them that would have no result."""
    is_state = head.key.kind == STATE
    found = await transcript(
        site.scope,
        head,
        before=None if is_state else at + 1,
        at=given if is_state else None,
        size=LAST,
        cache=cache_of(site),
    )
    lines, open_calls = (found.lines, []) if is_state else _up_to(found.lines, at)
    return {"lines": lines, "problem": found.problem, "open_calls": open_calls}


def _up_to(lines: Sequence[Line], at: int) -> tuple[list[Line], list[str]]:
    """*lines* without results after *at*, which are not copied; and the calls that have none."""
    shown: list[Line] = []
    open_calls: list[str] = []
    for line in lines:
        if isinstance(line, Message):
            parts = []
            for part in line.parts:
                if part.kind == "call" and (part.result is None or part.result.number > at):
                    open_calls += [part.text] if line.counts else []
                    parts.append(structs.replace(part, result=None, note=part.note or "no result"))
                else:
                    parts.append(part)
            shown.append(structs.replace(line, parts=parts))
        else:
            shown.append(line)
    return shown, open_calls


async def fork(_request: Request, site: Site, form: Mapping[str, str]) -> Done:
    """Make the fork that was looked at."""
    kind, id_, at = field(form, "kind"), field(form, "id"), field(form, "at")
    new = field(form, "new").strip()
    if not at.isdecimal():
        raise ValueError("at is the number of an entry.")
    if kind == CONVERSATION:
        await site.store.conversation(id_).fork(new, at=int(at))
        what = f"message {at}"
    elif kind == STATE:
        await site.store.state(id_).fork(new, at=int(at))
        what = f"save {at}"
    else:
        raise ValueError(NOT_HERE)
    made = HeadView.of(await head_of(site.scope, kind, new))
    return Done(f"{new} begins with {id_} up to {what}.", site.head_url(made))


PAGES = [Page("fork", "/fork", preview)]
ACTIONS = [Action("make-fork", "/fork", fork)]
