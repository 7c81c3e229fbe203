"""Who said what: conversations, sessions, threads, runs, agents and teams."""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

from limpet.conversations.conversation import KIND as CONVERSATION
from limpet.errors import NotFound, Unreadable
from limpet.inspector.site import Action, Done, Page, field
from limpet.integrations.langgraph import thread
from limpet.integrations.openai_agents import AsyncRuns
from limpet.integrations.openai_agents.record import KIND as RUN
from limpet.integrations.openai_agents.record import WAITING
from limpet.states.format import KIND as STATE
from limpet.views.chat import Message
from limpet.views.doubts import doubts_of, effects_of
from limpet.views.heads import HeadView, head_of
from limpet.views.messages import call_arguments
from limpet.views.runs import ASKS
from limpet.views.transcript import CHATS, Cache, is_chat, transcript

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.backends.contract import Head
    from limpet.inspector.site import Site
    from limpet.integrations.openai_agents import Ask
    from limpet.views.chat import Line

__all__ = ["ACTIONS", "FORKED", "PAGES", "cache_of", "chat_head", "look", "tone_of"]

#: The kinds that can be looked at as they were.
VERSIONED = (thread.KIND, STATE)
#: Those that Limpet itself can fork; a thread and a run only their framework can.
FORKED = (CONVERSATION, STATE)

#: Characters of a text, and of an argument or result, which is folded; pieces of one message. The
#: page of one message has all of it.
TEXT, FOLDED, PIECES = 4_000, 2_000, 40


async def chat(request: Request, site: Site) -> Response:
    """The newest messages, or those before some number, or those with some words, or one."""
    head = await chat_head(request, site)
    query, view = request.query_params, HeadView.of(head)
    at = site.number("at", least=1) if view.kind in VERSIONED else None
    source, match = query.get("of") or None, query.get("text", "").strip()
    before, number = site.number("before", least=1), site.number("message", least=1)
    find = partial(transcript, site.scope, head, source=source, at=at, cache=cache_of(site))
    one = None
    if number is None:
        found = await find(before=before, match=match)
    else:
        found = await find(before=number + 1, size=1)
        one = _only(found.lines, number)
    effects, seen = await effects_of(site.scope, view), {"seen": view.seq}
    if view.kind == thread.KIND:
        seen["effects"] = 0 if effects is None else effects.seq
    here = partial(site.url, "chat", kind=view.kind, id=view.id, of=source, at=at, text=match)
    return site.page(
        "chat.html",
        view=view,
        found=found,
        one=one,
        here=here,
        before=before,
        at=at,
        text=match,
        doubts=doubts_of(view, effects),
        events=site.url("events", kind=view.kind, id=view.id, **seen),
        asks=await _asks(site, view),
        asks_title=ASKS,
        live=not (before or at or match or one),
        can_fork=site.write and view.kind in FORKED,
        versioned=view.kind in VERSIONED,
        **look(whole=one is not None),
    )


async def _asks(site: Site, view: HeadView) -> list[Ask]:
    """The calls of a run that wait for a yes or no."""
    if view.kind != RUN or view.status != WAITING:
        return []
    try:
        asks = await AsyncRuns(site.store).asks(view.id)
    except Unreadable:  # which the transcript says
        return []
    return [ask for ask in asks if ask.approved is None]


async def chat_head(request: Request, site: Site) -> Head:
    """The head of the chat that is asked for; `NotFound` if that is something else."""
    kind, id_ = request.query_params.get("kind", ""), request.query_params.get("id", "")
    head = await head_of(site.scope, kind, id_)
    if not is_chat(head):
        raise NotFound(f"Nobody says anything in {kind}/{id_}: it is no chat.")
    return head


def cache_of(site: Site) -> Cache:
    """What was read for the pages before."""
    found = site.shared.get("chat")
    if not isinstance(found, Cache):
        found = site.shared["chat"] = Cache()
    return found


def _only(lines: Sequence[Line], number: int) -> Message:
    """The message *number*, or the one with the call that it is the result of."""
    for line in lines:
        if isinstance(line, Message):
            results = [part.result.number for part in line.parts if part.result is not None]
            if number in (line.number, *results):
                return line
    raise NotFound(f"There is no message {number:,} here.")


async def decide(_request: Request, site: Site, form: Mapping[str, str]) -> Done:
    """Say yes or no to a call that a run waits for; the first answer stands."""
    id_, call, how = (field(form, name) for name in ("id", "call", "how"))
    runs, always = AsyncRuns(site.store), "always" in form
    message = form.get("message", "").strip() or None
    head = await head_of(site.scope, RUN, id_)
    if how == "approve":
        if message is not None:
            raise ValueError("Words for the model are for a no: say no, or leave them out.")
        await runs.approve(id_, call, by=site.access.by, always=always)
    elif how == "reject":
        await runs.reject(id_, call, by=site.access.by, always=always, message=message)
    else:
        raise ValueError("how is approve or reject.")
    said = "Approved" if how == "approve" else "Rejected"
    text = f"{said} {call} of {id_}. It counts when the run is resumed."
    return Done(text, site.head_url(HeadView.of(head)))


# -- how messages look -----------------------------------------------------------------------------

_TONES = {"user": "tone-user", "tool": "tone-tool", "function": "tone-tool"}
#: Agents of a team are told apart by theirs.
_NAMED = ("tone-a", "tone-b", "tone-c", "tone-d")


def look(*, whole: bool) -> dict[str, Any]:
    """What templates of messages need; *whole*: with nothing cut."""
    return {
        "most": None if whole else TEXT,
        "most_folded": None if whole else FOLDED,
        "pieces": None if whole else PIECES,
        "call_arguments": call_arguments,
        "tone_of": tone_of,
    }


def tone_of(role: str, name: str | None = None) -> str:
    """The class of whoever speaks: by role, or by the name where there are several."""
    if name and role not in _TONES:
        return _NAMED[zlib.crc32(name.encode("utf-8", "backslashreplace")) % len(_NAMED)]
    return _TONES.get(role, "tone-a" if role == "assistant" else "tone-system")


PAGES = [Page("chat", "/chat", chat, tab="Chat", kinds=CHATS, fits=is_chat)]
ACTIONS = [Action("decide", "/chat/decide", decide)]
