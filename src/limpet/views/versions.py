"""The versions of what has some: a task, a state, a conversation, a thread of LangGraph's."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from limpet.backends.facts import human_size
from limpet.conversations import conversation, transcript
from limpet.errors import NotFound, Unreadable
from limpet.integrations.langgraph import reading, thread
from limpet.states import state
from limpet.states.reader import Reader
from limpet.tasks import task
from limpet.tasks.versions import describe_entries
from limpet.views import PAGE, WHOLE, threads
from limpet.views.journal import PAGE_BYTES, Backwards, Gap, line_of
from limpet.views.messages import summary

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from limpet.backends.contract import Head
    from limpet.core.journal import Entry
    from limpet.core.scope import Scope
    from limpet.integrations.langgraph.thread import ThreadLog
    from limpet.states.format import StateVersion

__all__ = [
    "KINDS",
    "Version",
    "VersionsPage",
    "describe_message",
    "find_version",
    "is_short",
    "last_two",
    "versions_page",
]

#: Entries before a page of a task that are read too: a resumption names the calls that it found.
CONTEXT = 50


class Version(Struct, frozen=True):
    """A version: the number by which it is known, when it was made, and what it is, in words.

    *name*: of a checkpoint its id. *size*: of a state the document's, as JSON. *facts*: all that is
    known of it, for programs; None where that is no more than this.
    """

    number: int
    at: datetime | None
    what: str
    damaged: bool = False
    name: str | None = None
    size: int | None = None
    facts: Any = None


class VersionsPage(Struct, frozen=True):
    """Versions, newest first; *older* is what to give as *before* for those that come next.

    *partial*: of a long thread the checkpoints are listed without its forks, and what each has
    changed is not counted; that takes all of it.
    """

    versions: list[Version]
    older: int | None
    partial: bool = False


class _List(Protocol):
    def __call__(
        self, scope: Scope, head: Head, before: int | None, limit: int, *, whole: bool
    ) -> Awaitable[VersionsPage]: ...


async def versions_page(
    scope: Scope,
    head: Head,
    *,
    before: int | None = None,
    limit: int = PAGE,
    whole: bool = False,
) -> VersionsPage:
    """The versions before number *before*; `ValueError` for a kind that has none."""
    make = _LISTS.get(head.key.kind)
    if make is None:
        raise ValueError(f"A {head.key.kind} has no versions.")
    return await make(scope, head, before, limit, whole=whole)


def is_short(head: Head) -> bool:
    """Whether a journal is read whole without being asked."""
    return head.seq - head.first < WHOLE


# -- tasks and conversations: each entry makes a version -------------------------------------------


async def _read(
    scope: Scope, head: Head, before: int | None, limit: int, context: int = 0
) -> tuple[list[Entry | Gap], list[Entry | Gap], int | None]:
    """The entries of a page, newest first; some that come before them; and where to go on."""
    reading_ = Backwards(scope, head, before)
    found: list[Entry | Gap] = []
    while len(found) < limit + context and not reading_.ended and reading_.bytes < PAGE_BYTES:
        found += await reading_.some(limit + context - len(found))
    shown = found[:limit]
    last = shown[-1] if shown else None
    next_ = reading_.next if last is None else _first(last) - 1
    return shown, found[limit:], next_ + 1 if next_ >= head.first else None


def _first(one: Entry | Gap) -> int:
    return one.first if isinstance(one, Gap) else one.seq


async def _task(
    scope: Scope, head: Head, before: int | None, limit: int, *, whole: bool
) -> VersionsPage:
    shown, earlier, older = await _read(scope, head, before, limit, CONTEXT)
    del whole
    entries = [one for one in reversed([*shown, *earlier]) if not isinstance(one, Gap)]
    described = {one.seq: one for one in describe_entries(entries)}
    versions = [
        _damaged(one) if isinstance(one, Gap) else Version(one.seq, one.at, described[one.seq].what)
        for one in shown
    ]
    return VersionsPage(versions, older)


async def _conversation(
    scope: Scope, head: Head, before: int | None, limit: int, *, whole: bool
) -> VersionsPage:
    del whole
    shown, _, older = await _read(scope, head, before, limit)
    versions = [
        _damaged(one) if isinstance(one, Gap) else Version(one.seq, one.at, describe_message(one))
        for one in shown
    ]
    return VersionsPage(versions, older)


def describe_message(entry: Entry) -> str:
    """What an entry of a conversation says; of a message, who said what."""
    text = line_of(entry, conversation.KIND).text
    return text if entry.type == transcript.MESSAGE else f"{entry.type}: {text}".rstrip(": ")


def _damaged(gap: Gap) -> Version:
    return Version(gap.seq, None, gap.why, damaged=True)


# -- states ----------------------------------------------------------------------------------------


async def _state(
    scope: Scope, head: Head, before: int | None, limit: int, *, whole: bool
) -> VersionsPage:
    del whole
    reader = Reader(scope.journal(state.KIND, head.key.id))
    saves = (await reader.history(limit + 1, before))[::-1]
    versions = [
        Version(
            one.position,
            one.at,
            _describe_save(one),
            damaged=one.damaged,
            size=None if one.damaged else one.total,
            facts=one,
        )
        for one in saves[:limit]
    ]
    return VersionsPage(versions, versions[-1].number if len(saves) > limit else None)


def _describe_save(save: StateVersion) -> str:
    if save.damaged:
        return "cannot be read"
    what = f"{'all of it' if save.full else 'changes'}, {human_size(save.bytes)}"
    return f"version {save.version}, {what}" + (f": {save.note}" if save.note else "")


# -- threads ---------------------------------------------------------------------------------------


async def _thread(
    scope: Scope, head: Head, before: int | None, limit: int, *, whole: bool
) -> VersionsPage:
    if whole or is_short(head):
        try:
            return _of_log(await threads.read(scope, head), before, limit)
        except Unreadable:
            pass  # entry by entry it is seen where
    found: list[Version] = []
    reading_ = Backwards(scope, head, before)
    searched, next_ = 0, reading_.next
    while len(found) < limit and searched < WHOLE and not reading_.ended:
        if reading_.bytes >= PAGE_BYTES:
            break
        for one in await reading_.some(limit):
            if len(found) == limit:
                break
            searched += 1
            next_ = _first(one) - 1
            if isinstance(one, Gap):
                found.append(_damaged(one))
            elif one.type == thread.CHECKPOINT:
                body = one.body if isinstance(one.body, dict) else {}
                name = str(body.get("id", ""))
                found.append(Version(one.seq, one.at, summary(one, thread.KIND), name=name))
    return VersionsPage(found, next_ + 1 if next_ >= head.first else None, partial=True)


def _of_log(log: ThreadLog, before: int | None, limit: int) -> VersionsPage:
    begun: set[int] = set()
    versions = []
    for one in reading.checkpoints_of(log):
        line = threads.checkpoint_line(one, begins=one.line not in begun)
        at = datetime.fromisoformat(one.at)
        versions.append(Version(one.number, at, line, name=one.id, facts=one))
        begun.add(one.line)
    fitting = [one for one in reversed(versions) if before is None or one.number < before]
    older = fitting[limit - 1].number if len(fitting) > limit else None
    return VersionsPage(fitting[:limit], older)


# -- one of them -----------------------------------------------------------------------------------


async def find_version(scope: Scope, head: Head, named: str) -> int:
    """The number of the version that somebody has *named*; `NotFound` if there is none.

    By its number; a checkpoint also by its id, or a beginning of that which no other has.
    """
    if head.key.kind == thread.KIND:
        try:
            return reading.node_of(await threads.read(scope, head), named).seq
        except LookupError as error:
            raise NotFound(str(error.args[0])) from error
    number = int(named) if named.isdecimal() and named.isascii() else 0
    if not head.first <= number <= head.seq:
        there = f"{head.first:,} to {head.seq:,}"
        shown = f"{number:,}" if number else repr(named)
        raise NotFound(f"There is no entry {shown}: {head.key.id!r} has {there}.")
    return number


async def last_two(scope: Scope, head: Head, *, whole: bool = False) -> list[int]:
    """The numbers of the last two versions, the older first; fewer where there are not so many.

    Of a thread, of its newest checkpoint and the one that it came from; of a long one that is not
    read *whole*, of its last two.
    """
    if head.key.kind == thread.KIND and not whole and not is_short(head):
        page = await versions_page(scope, head, limit=2)
        return [one.number for one in page.versions[::-1]]
    if head.key.kind == thread.KIND:
        log = await threads.read(scope, head)
        node = log.newest("")
        before = None if node is None or node.parent is None else log.node("", node.parent)
        return [one.seq for one in (before, node) if one is not None]
    if head.key.kind == state.KIND:
        reader = Reader(scope.journal(state.KIND, head.key.id))
        return [one.position for one in await reader.history(2)]
    return [seq for seq in (head.seq - 1, head.seq) if seq >= head.first]


_LISTS: dict[str, _List] = {
    task.KIND: _task,
    state.KIND: _state,
    conversation.KIND: _conversation,
    thread.KIND: _thread,
}

#: What has versions; the first is meant where several have the same id.
KINDS = tuple(_LISTS)
