"""Who said what: one view of conversations, threads, runs, agents and teams.

A page is the newest messages in front of some number, with their tools and results. What is known
only from a whole fold is read whole: a thread of LangGraph's is, once, and after that only what is
new (`Cache`); the state of an agent or a team is one document.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from msgspec import Struct

from limpet.backends.contract import Head
from limpet.conversations import conversation
from limpet.conversations.transcript import ConversationMeta
from limpet.core.scope import Scope
from limpet.errors import LimpetError, NotFound, Unreadable
from limpet.integrations.langgraph import thread as langgraph
from limpet.integrations.openai_agents import record as agents_run
from limpet.states import format as states
from limpet.states.reader import Reader
from limpet.views import PAGE, autogen, threads
from limpet.views.chat import REACH, Line, Message, Stored, called_in, together
from limpet.views.conversations import read_part
from limpet.views.heads import HeadView
from limpet.views.runs import read_run

__all__ = ["CHATS", "Cache", "Section", "Source", "Transcript", "is_chat", "transcript"]

#: The kinds of which each is a chat; a state is one only where an agent or a team has saved it.
CHATS = (conversation.KIND, langgraph.KIND, agents_run.KIND)

#: Messages that are looked through for a word, at most, before a page is shown.
SCAN = 1_000
#: Documents of agents and teams that are held for the next page, in bytes of their JSON.
MOST_BYTES = 32 * 1024 * 1024

#: What gives the part before a number, of some size: lines, oldest first, and the next number.
Read = Callable[[int | None, int | None], Awaitable[tuple[list[Line], int | None]]]


class Source(Struct, frozen=True):
    """One of several lists of messages: a channel, the thread of a team, what one agent knows."""

    name: str
    title: str
    messages: int


class Section(Struct, frozen=True):
    """What else is known: a title, and lines. *tone*: ``warn``, ``bad`` or nothing."""

    title: str
    lines: list[str]
    tone: str = ""


class Transcript(Struct, frozen=True):
    """A page of what was said, oldest first.

    *older* is what to give as ``before`` for the next page; None at the beginning.
    """

    kind: str
    id: str
    lines: list[Line]
    older: int | None = None
    total: int | None = None  # messages that count, of all pages
    sources: list[Source] = []
    source: str = ""
    sections: list[Section] = []
    notes: list[str] = []  # what this page does not say
    writing: str = ""  # the beginning of a reply that is just being made
    scanned: int | None = None  # of a filtered page: how many messages were looked through
    problem: str = ""  # why nothing of it can be read

    @property
    def messages(self) -> list[Message]:
        """The messages among the lines."""
        return [line for line in self.lines if isinstance(line, Message)]


class Cache:
    """What was read for the page before: threads, and documents of agents and teams."""

    def __init__(self) -> None:
        self.threads = threads.Threads()
        self._documents: dict[tuple[str, str, int], tuple[int, Any]] = {}

    async def document(self, scope: Scope, head: Head, at: int | None) -> Any:
        """The state of *head*, or that *at* an earlier position."""
        key = (head.key.id, head.incarnation, at or head.seq)
        known = self._documents.pop(key, None)
        if known is None:
            reader = Reader(scope.journal(states.KIND, head.key.id))
            if at is None:
                head, snapshot = await reader.newest(head)
                key = (head.key.id, head.incarnation, head.seq)
            else:
                snapshot = await reader.at(at)
            known = snapshot.total, snapshot.document
        self._documents[key] = known
        while sum(size for size, _ in self._documents.values()) > MOST_BYTES:
            del self._documents[next(iter(self._documents))]
        return known[1]


def is_chat(head: Head | HeadView) -> bool:
    """Whether what *head* is of can be shown as who said what. Costs nothing."""
    view = head if isinstance(head, HeadView) else HeadView.of(head)
    return view.kind in CHATS or view.type in autogen.CHATS


async def transcript(
    scope: Scope,
    head: Head,
    *,
    before: int | None = None,
    size: int | None = PAGE,
    source: str | None = None,
    at: int | None = None,
    match: str = "",
    cache: Cache | None = None,
) -> Transcript:
    """The newest *size* messages of *head* with a number under *before*; without a size all.

    *source*: of a list that is not the first of several, by its name. *at*: of an earlier version
    or checkpoint, by the number of its entry. *match*: only messages with these words in them.
    """
    asked = _Asked(scope, head, source, at, cache or Cache())
    opened = await _OPENERS[head.key.kind](asked)
    scanned = None
    if match:
        lines, older, scanned = await _matching(opened.read, before, size, match)
    else:
        lines, older = await opened.read(before, size)
    return Transcript(
        kind=head.key.kind,
        id=head.key.id,
        lines=lines,
        older=older,
        total=opened.total,
        sources=opened.sources,
        source=opened.source,
        sections=opened.sections,
        notes=opened.notes,
        writing=opened.writing,
        scanned=scanned,
        problem=opened.problem,
    )


class _Asked(Struct, frozen=True):
    """Which chat is to be shown, and which part of it."""

    scope: Scope
    head: Head
    source: str | None
    at: int | None
    cache: Cache


class _Opened(Struct):
    """A chat of some kind, ready to be read in parts; *read* may add to its notes."""

    read: Read
    total: int | None = None
    sources: list[Source] = []
    source: str = ""
    sections: list[Section] = []
    notes: list[str] = []
    writing: str = ""
    problem: str = ""


async def _matching(
    read: Read, before: int | None, size: int | None, match: str
) -> tuple[list[Line], int | None, int]:
    """The messages with *match* in them, as far as a bounded number of messages goes."""
    wanted = match.casefold()
    found: list[Line] = []
    scanned = 0
    while True:
        lines, before = await read(before, 4 * PAGE)
        messages = [line for line in lines if isinstance(line, Message)]
        scanned += len(messages)
        found = [*(message for message in messages if _has(message, wanted)), *found]
        if before is None or len(found) >= (size or PAGE) or scanned >= SCAN:
            return found, before, scanned


def _has(message: Message, wanted: str) -> bool:
    texts = [message.role, message.name or ""]
    for part in message.parts:
        texts += [part.text, part.result.text if part.result else ""]
    return any(wanted in text.casefold() for text in texts)


# -- each kind -------------------------------------------------------------------------------------


async def _conversation(asked: _Asked) -> _Opened:
    async def read(before: int | None, size: int | None) -> tuple[list[Line], int | None]:
        part = await read_part(asked.scope, asked.head, before=before, size=size)
        opened.notes, opened.writing = part.notes, part.writing
        return part.lines, part.older

    opened = _Opened(read)
    with suppress(Unreadable):
        opened.total = ConversationMeta.of(asked.head).length(asked.head.seq)
    return opened


async def _thread(asked: _Asked) -> _Opened:
    head = asked.head
    try:
        thread = await asked.cache.threads.take(asked.scope, head)
    except LimpetError as error:
        return _Opened(_listed(0, None), problem=str(error))
    view = threads.view_of(thread, head, asked.at)
    asked.cache.threads.put(head, thread)
    sources = [Source(name, name, total) for name, total in view.channels]
    chosen = _chosen(sources, asked.source)
    total = chosen.messages if chosen else 0

    def load(low: int, high: int) -> list[Stored]:
        return threads.messages_at(thread, view.node, chosen.name, low, high) if chosen else []

    sections = [Section(title, lines, tone) for title, lines, tone in view.sections]
    return _Opened(
        _listed(total, load),
        total,
        sources,
        "" if chosen is None else chosen.name,
        sections,
        view.notes,
    )


async def _state(asked: _Asked) -> _Opened:
    try:
        document = await asked.cache.document(asked.scope, asked.head, asked.at)
    except NotFound:
        raise
    except LimpetError as error:
        return _Opened(_listed(0, None), problem=str(error))
    told = autogen.messages_in(document)
    sources = [Source(_name(one), _title(one), len(one.messages)) for one in told]
    chosen = _chosen(sources, asked.source)
    models = autogen.models_in(document)
    messages = told[sources.index(chosen)].messages if chosen else []

    def load(low: int, high: int) -> list[Stored]:
        return [
            autogen.stored(message, number, models)
            for number, message in enumerate(messages[low:high], low + 1)
        ]

    sections = [Section(title, lines, tone) for title, lines, tone in autogen.notes_on(document)]
    name = "" if chosen is None else chosen.name
    return _Opened(_listed(len(messages), load), len(messages), sources, name, sections)


def _name(told: autogen.Told) -> str:
    return f"{'thread' if told.is_thread else 'context'}:{told.path}"


def _title(told: autogen.Told) -> str:
    if told.is_thread:
        return f"What was said in {told.path}" if told.path else "What was said"
    return f"What {told.path} knows" if told.path else "What its model knows"


async def _run(asked: _Asked) -> _Opened:
    run = await read_run(asked.scope, asked.head)
    sections = [Section(title, lines, tone) for title, lines, tone in run.sections]
    total = len(run.messages)
    read = _listed(total, lambda low, high: run.messages[low:high], run.notes)
    return _Opened(read, total, sections=sections)


def _chosen(sources: list[Source], name: str | None) -> Source | None:
    if name:
        found = next(
            (one for one in sources if name in (one.name, one.name.partition(":")[2])), None
        )
        if found is None:
            known = ", ".join(one.name for one in sources) or "none"
            raise NotFound(f"There are no messages of {name!r} here; there are: {known}.")
        return found
    return sources[0] if sources else None


def _listed(
    total: int,
    load: Callable[[int, int], list[Stored]] | None,
    notes: dict[str, str] | None = None,
) -> Read:
    """What reads parts of a list of *total* messages, which *load* gives by their places."""

    async def read(before: int | None, size: int | None) -> tuple[list[Line], int | None]:
        high = total if before is None else max(0, min(before - 1, total))
        low = 0 if size is None else max(0, high - size)
        if load is None or not high:
            return [], None
        stored = load(low, high)
        least = max(0, low - REACH)
        while low > least and called_in(stored):  # not between a call and its result
            low -= 1
            stored = [*load(low, low + 1), *stored]
        later = load(high, min(total, high + REACH))
        complete = high + REACH >= total
        lines: list[Line] = [*together(stored, later, complete=complete, notes=notes)]
        return lines, low + 1 if low else None

    return read


_OPENERS: dict[str, Callable[[_Asked], Awaitable[_Opened]]] = {
    conversation.KIND: _conversation,
    langgraph.KIND: _thread,
    states.KIND: _state,
    agents_run.KIND: _run,
}
