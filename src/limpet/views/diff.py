"""Two versions of a task, a state, a conversation or a thread, compared."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.backends.contract import from_micros
from limpet.conversations import conversation, transcript
from limpet.core.changes import Change, as_lines
from limpet.errors import NotFound
from limpet.integrations.langgraph import reading, thread
from limpet.states import diff as states
from limpet.states import state
from limpet.states.reader import Reader
from limpet.tasks import task
from limpet.tasks import versions as tasks
from limpet.tasks.record import read_state
from limpet.views import WHOLE, threads
from limpet.views.messages import summary
from limpet.views.text import timestamp
from limpet.views.versions import describe_message, is_short

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from limpet.backends.contract import Head
    from limpet.core.checkpoint import Checkpoint
    from limpet.core.journal import AsyncJournal, Entry
    from limpet.core.scope import Scope

__all__ = ["Diff", "diff_lines", "diff_view"]

#: Changes that are listed; of more only the number is given.
CHANGES = 1_000


class Diff(Struct, frozen=True):
    """What makes the version *b* of the version *a*.

    *heading* names the two, *more* changes are not listed. *unread*: so many entries are to be
    read for it, which is done when asked for *whole*; until then there are no changes here.
    """

    kind: str
    id: str
    a: int
    b: int
    heading: tuple[str, str]
    changes: list[Change]
    more: int = 0
    unread: int = 0


async def diff_view(scope: Scope, head: Head, a: int, b: int, *, whole: bool = False) -> Diff:
    """What differs between the versions *a* and *b*; `NotFound` if one is not there.

    `ValueError` for a kind that has no versions. The work is bounded, unless *whole*.
    """
    make = _KINDS.get(head.key.kind)
    if make is None:
        raise ValueError(f"A {head.key.kind} has no versions.")
    return await make(scope, head, a, b, whole=whole)


def diff_lines(diff: Diff) -> list[str]:
    """*diff* in lines: its heading, and the changes, below the place of each."""
    limited = {"places": states.PLACES, "lines": states.LINES}
    lines = as_lines(diff.changes, **(limited if diff.kind in (state.KIND, thread.KIND) else {}))
    if diff.more:
        lines.append(f"… and {diff.more:,} more changes")
    return [f"--- {diff.heading[0]}", f"+++ {diff.heading[1]}", *(lines or ["Nothing differs."])]


def _diff(head: Head, a: int, b: int, heading: tuple[str, str], changes: Iterable[Change]) -> Diff:
    left = iter(changes)
    listed = list(islice(left, CHANGES))
    return Diff(head.key.kind, head.key.id, a, b, heading, listed, sum(1 for _ in left))


def _unread(head: Head, a: int, b: int, entries: int) -> Diff:
    heading = (f"{head.key.id}, {a:,}", f"{head.key.id}, {b:,}")
    return Diff(head.key.kind, head.key.id, a, b, heading, [], unread=entries)


async def _task(scope: Scope, head: Head, a: int, b: int, *, whole: bool) -> Diff:
    unread = max(a, b) - head.first + 1
    if unread > WHOLE and not whole:
        return _unread(head, a, b, unread)
    journal = scope.journal(task.KIND, head.key.id)
    before, after = [await _checkpoint(journal, number) for number in (a, b)]
    was, is_ = (f"{head.key.id}, {timestamp(one.updated_at)}" for one in (before, after))
    return _diff(head, a, b, (was, is_), tasks.changes_between(before, after))


async def _checkpoint(journal: AsyncJournal, seq: int) -> Checkpoint:
    folded = await read_state(journal, seq)
    if not folded.exists or folded.seq != seq:
        raise NotFound(f"Task {journal.key.id!r} has no version {seq:,}.")
    return folded.checkpoint()


async def _state(scope: Scope, head: Head, a: int, b: int, *, whole: bool) -> Diff:
    del whole  # a version is read from its whole copy on, which bounds it
    journal = scope.journal(state.KIND, head.key.id)
    reader = Reader(journal)
    before, after = await reader.at(a), await reader.at(b)
    times = []
    for one in (before, after):
        records = await journal.page(upto=one.position, limit=1, reverse=True, gaps=True)
        times.append(timestamp(from_micros(records[0].at)) if records else f"{one.position:,}")
    was, is_ = (f"{head.key.id}, {time}" for time in times)
    return _diff(head, a, b, (was, is_), states.changes_between(before, after))


async def _conversation(scope: Scope, head: Head, a: int, b: int, *, whole: bool) -> Diff:
    journal = scope.journal(conversation.KIND, head.key.id)
    low, high = min(a, b), max(a, b)
    between: list[Entry] | None = None
    if high - low <= WHOLE:
        between = await journal.read(after=low - 1, upto=high)
    entries = between or []
    if between is None or _reaches_back(between, low):
        unread = high - head.first + 1
        if unread > WHOLE and not whole:
            return _unread(head, a, b, unread)
        entries = await journal.read(upto=high)
    times = {entry.seq: timestamp(entry.at) for entry in entries}
    heading = (f"{head.key.id}, {times.get(a, a)}", f"{head.key.id}, {times.get(b, b)}")
    return _diff(head, a, b, heading, _message_changes(entries, a, b))


def _reaches_back(entries: list[Entry], low: int) -> bool:
    """Whether something behind entry *low* is about messages from before it.

    *entries* begin with that one. What is taken back is otherwise one of those that came since.
    """
    new = 0
    for entry in entries:
        if entry.seq <= low:
            continue
        if entry.type in (transcript.CLEARED, transcript.FORKED):
            return True
        new += (entry.type == transcript.MESSAGE) - (entry.type == transcript.POPPED)
        if new < 0:
            return True
    return False


def _message_changes(entries: list[Entry], a: int, b: int) -> list[Change]:
    """The messages that were added and taken back from entry *a* to *b*, and what else happened."""

    def messages_at(seq: int) -> dict[int, Entry]:
        messages = transcript.Messages()
        for entry in entries:
            if entry.seq <= seq:
                messages.take(entry.type, [entry])
        return {entry.seq: entry for entry in messages.found}

    def text(entry: Entry) -> str:
        return summary(entry, conversation.KIND)

    before, after = messages_at(a), messages_at(b)
    gone = [Change("messages", before=text(before[seq])) for seq in before if seq not in after]
    new = [Change("messages", after=text(after[seq])) for seq in after if seq not in before]
    notes = []
    for entry in entries:
        if min(a, b) < entry.seq and entry.type not in _OF_MESSAGES:
            said = describe_message(entry)
            notes.append(Change("notes", after=said) if a < b else Change("notes", before=said))
    return [*gone, *new, *notes]


#: Entries of a conversation that only say what is a message of it.
_OF_MESSAGES = {
    *(transcript.MESSAGE, transcript.COPIED, transcript.FORKED),
    *(transcript.POPPED, transcript.CLEARED),
}


async def _thread(scope: Scope, head: Head, a: int, b: int, *, whole: bool) -> Diff:
    if not whole and not is_short(head):
        return _unread(head, a, b, head.seq - head.first + 1)
    log = await threads.read(scope, head)
    try:
        before, after = (reading.node_of(log, str(number)) for number in (a, b))
    except LookupError as error:
        raise NotFound(str(error.args[0])) from error
    heading = (f"{before.seq}, {before.id}", f"{after.seq}, {after.id}")
    values = (threads.comparable(log, before), threads.comparable(log, after))
    return _diff(head, a, b, heading, states.document_changes(*values))


_KINDS: dict[str, Callable[..., Awaitable[Diff]]] = {
    task.KIND: _task,
    state.KIND: _state,
    conversation.KIND: _conversation,
    thread.KIND: _thread,
}
