"""A fork of a conversation or of a team's state: what it would begin with, and making it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from limpet.conversations.conversation import KIND as CONVERSATION
from limpet.errors import NotFound
from limpet.inspector.pages.chat import FORKED, cache_of, chat_head, look
from limpet.inspector.site import Action, Done, Page, field
from limpet.states.format import KIND as STATE
from limpet.views.chat import Message
from limpet.views.heads import HeadView, head_of
from limpet.views.transcript import transcript

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.inspector.site import Site
    from limpet.views.chat import Line

__all__ = ["ACTIONS", "PAGES"]

#: Messages that are shown of what the fork would end with.
LAST = 4


async def preview(request: Request, site: Site) -> Response:
    """The last that the fork would have, before anything is made."""
    head = await chat_head(request, site)
    view = HeadView.of(head)
    if view.kind not in FORKED:
        raise NotFound(f"A {view.kind} is forked by the framework that it is of.")
    given = site.number("at", least=1)
    at = min(given or head.seq, head.seq)
    is_state = view.kind == STATE
    found = await transcript(
        site.scope,
        head,
        before=None if is_state else at + 1,
        at=given if is_state else None,
        size=LAST,
        cache=cache_of(site),
    )
    lines, open_calls = (found.lines, []) if is_state else _up_to(found.lines, at)
    return site.page(
        "chat_fork.html",
        view=view,
        at=at,
        lines=lines,
        problem=found.problem,
        open_calls=open_calls,
        **look(whole=False),
    )


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
        raise ValueError(f"A {kind} is forked by the framework that it is of.")
    made = HeadView.of(await head_of(site.scope, kind, new))
    return Done(f"{new} begins with {id_} up to {what}.", site.head_url(made))


PAGES = [Page("chat-fork", "/chat/fork", preview)]
ACTIONS = [Action("fork-chat", "/chat/fork", fork)]
