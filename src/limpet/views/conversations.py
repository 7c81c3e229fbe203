"""A part of a conversation as it was stored, with what is noted of its messages.

Read from the newest end by number. What is noted of a message lies behind it: its result, what the
model took, a repair, that it was taken back. So a page looks some way ahead, in a long conversation
by a fixed number of entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.conversations import transcript as types
from limpet.conversations.conversation import KIND
from limpet.conversations.transcript import ConversationMeta
from limpet.core import calls
from limpet.core.journal import PAGE
from limpet.errors import Unreadable
from limpet.integrations.openai import turn
from limpet.integrations.openai_agents.session import WRAPPED
from limpet.views import WHOLE
from limpet.views.chat import DAMAGED, REACH, Event, Line, Mark, Stored, Usage, called_in, together
from limpet.views.heads import HeadView
from limpet.views.journal import Backwards, Gap, read_slice
from limpet.views.messages import summary
from limpet.views.text import count

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal, Entry
    from limpet.core.scope import Scope

__all__ = ["ConversationPart", "read_part"]

#: How far a page of a long conversation looks ahead for what is noted of its messages.
AHEAD = 200

#: Entries that a page reads at most for each message that it shows: others are notes.
NOTES_EACH = 8


class ConversationPart(Struct, frozen=True):
    """The lines, oldest first; *older* is the number before which the next part begins."""

    lines: list[Line]
    older: int | None
    notes: list[str]
    writing: str = ""  # the beginning of a reply that is just being made


async def read_part(
    scope: Scope,
    head: Head,
    *,
    before: int | None = None,
    size: int | None = None,
) -> ConversationPart:
    """The newest *size* messages in front of number *before*; without a *size* all of them."""
    notes: list[str] = []
    meta = _meta(head, notes)
    end = head.seq if before is None else min(before - 1, head.seq)
    look = head.seq if head.seq - head.first < WHOLE else min(end + AHEAD, head.seq)
    ahead: list[Entry] = []
    if end < look:
        ahead = (await read_slice(scope, head, first=end + 1, last=look)).entries
    if look < head.seq:
        notes.append(f"What was noted of these messages after entry {look:,} is not shown.")

    reading, journal = Backwards(scope, head, before), scope.journal(KIND, head.key.id)
    found: list[Entry | Gap] = []  # newest first
    low, messages, full = end, 0, False
    while not (full or reading.ended):
        for one in await reading.some(PAGE if size is None else max(size - messages, 8)):
            found.append(_as_read(journal, one))
            low = (one.first if isinstance(one, Gap) else one.seq) - 1
            messages += _is_message(one)
            full = size is not None and _is_full(found, messages - size, size)
            if full:
                break
    reader = _Reader(head, meta)
    lines = reader.lines(found[::-1], ahead, complete=look == head.seq)
    older = low + 1 if low >= head.first else None
    writing = reader.writing if before is None else ""
    return ConversationPart(lines, older, notes, writing)


def _meta(head: Head, notes: list[str]) -> ConversationMeta:
    try:
        return ConversationMeta.of(head)
    except Unreadable as error:
        notes.append(str(error))
        return ConversationMeta()


def _is_message(one: Entry | Gap) -> bool:
    return not isinstance(one, Gap) and one.type in (types.MESSAGE, types.COPIED)


def _as_read(journal: AsyncJournal, one: Entry | Gap) -> Entry | Gap:
    """*one*, or what is damaged, where it is stored as a message and is none."""
    if _is_message(one) and not isinstance(one, Gap) and not isinstance(one.body, dict):
        return Gap(one.seq, one.seq, str(journal.unreadable(one.seq, types.NO_MESSAGE)))
    return one


def _is_full(found: list[Entry | Gap], extra: int, size: int) -> bool:
    """Whether *found*, newest first, is a page that ends nowhere between a call and its result.

    *extra* says how many messages over its *size* it has.
    """
    most = size * NOTES_EACH
    if extra < 0 and len(found) < most:
        return False
    if extra >= REACH or len(found) >= most + REACH:
        return True
    oldest = [one for one in reversed(found[-2 * REACH :]) if not isinstance(one, Gap)]
    return not called_in([_stored(one) for one in oldest if _is_message(one)])


def _stored(entry: Entry) -> Stored:
    body = entry.body
    if (
        isinstance(body, dict)
        and body.get("type") == WRAPPED
        and isinstance(body.get("item"), dict)
    ):
        body = body["item"]
    message = body if isinstance(body, dict) else {"role": "message", "content": body}
    return Stored(entry.seq, message, entry.at, entry=entry.seq)


class _Reader:
    """Makes lines of entries."""

    def __init__(self, head: Head, meta: ConversationMeta) -> None:
        self._head = head
        self._meta = meta
        self._marks: dict[int, list[Mark]] = {pin: [Mark("pinned")] for pin in meta.pins}
        self._usage: dict[int, Usage] = {}
        self.writing = ""

    def lines(
        self, entries: list[Entry | Gap], ahead: list[Entry], *, complete: bool
    ) -> list[Line]:
        """The lines of *entries*, oldest first, of which *ahead* may note something."""
        events: list[Event] = []
        for one in reversed([*entries, *ahead]):  # the newest first: it notes what lies before it
            if not isinstance(one, Gap) and isinstance(one.body, dict):
                self._note(one)
        for one in entries:
            event = self._event(one)
            if event is not None:
                events.append(event)
        stored = [
            self._message(one) for one in entries if not isinstance(one, Gap) and _is_message(one)
        ]
        later = [_stored(one) for one in ahead if _is_message(one)]
        doubts = {
            call.id: "in doubt: it began, and nobody knows whether it happened"
            for call in HeadView.of(self._head).doubts
        }
        messages = together(stored, later, complete=complete, notes=doubts)
        return sorted([*messages, *events], key=lambda line: line.number)

    def _message(self, entry: Entry) -> Stored:
        one = _stored(entry)
        one.marks += self._marks.get(entry.seq, ())
        one.usage = self._usage.get(entry.seq)
        if entry.seq <= self._meta.start:
            one.marks.append(Mark("replaced", "it was replaced later"))
        elif entry.type == types.COPIED and self._meta.forking:
            one.marks.append(Mark("replaced", "the fork that it was copied by is not whole"))
        return one

    def _mark(self, position: Any, kind: str, text: str = "") -> None:
        if position.__class__ is int:
            self._marks.setdefault(position, []).append(Mark(kind, text))

    def _note(self, entry: Entry) -> None:
        """What *entry* says of a message before it."""
        body = entry.body
        if entry.type == types.POPPED:
            self._mark(body.get("position"), "taken back", "it was taken back later")
        elif entry.type == turn.REQUEST:
            self._usage[entry.seq - 1] = _usage(body)
        elif entry.type == turn.CUT:
            self._mark(entry.seq - 1, "cut off", "its end never came")
        elif entry.type == types.REPAIRED:
            for repair in _dicts(body.get("repairs")):
                self._mark(repair.get("position"), "repaired", str(repair.get("what")))

    def _is_marked(self, position: Any, noted: int) -> bool:
        """Whether the page of the message at *position* looks as far as what is *noted* of it."""
        if position.__class__ is not int:
            return False
        return noted - position <= AHEAD or self._head.seq - self._head.first < WHOLE

    def _event(self, one: Entry | Gap) -> Event | None:
        """What *one* is, if it is to be shown between messages."""
        if isinstance(one, Gap):
            entries = count(one.seq - one.first + 1, "entry", "entries")
            return Event(one.seq, None, DAMAGED, f"{entries} cannot be read", one.why)
        body = one.body if isinstance(one.body, dict) else {}
        if one.type == turn.PIECE:
            self.writing = (self.writing if body.get("more") else "") + str(body.get("text") or "")
        elif one.type in (types.MESSAGE, types.COPIED, turn.REQUEST, turn.CUT):
            self.writing = ""
        elif one.type == types.REPAIRED:
            elsewhere = [
                f"message {found.get('position')}: {found.get('what')}"
                for found in _dicts(body.get("repairs"))
                if not self._is_marked(found.get("position"), one.seq)
            ]
            if elsewhere:
                return Event(one.seq, one.at, "repaired", "; ".join(elsewhere))
        elif one.type not in _SILENT:
            words = _WORDS.get(one.type)
            text = words(body) if words is not None else summary(one, KIND)
            if one.type == types.SUMMARY and one.seq != self._meta.summary:
                text += ", until something else took its place"
            detail = str(body.get("text") or "") if one.type == types.SUMMARY else ""
            return Event(one.seq, one.at, one.type, text, detail) if text else None
        return None


#: What is shown with the messages that it is about.
_SILENT = (calls.BEGAN, types.POPPED)


_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    types.SUMMARY: lambda body: (
        ("A summary stands" if body.get("text") else "Nothing stands")
        + f" in windows for the messages up to {body.get('upto')}"
    ),
    types.CLEARED: lambda body: (
        "All messages before this were "
        + ("replaced by what follows" if body.get("replaced") else "removed")
    ),
    types.FORKED: lambda body: f"A fork of {body.get('from')}, at {body.get('at')}",
    types.SHORTENED: lambda body: (
        f"Models are shown outputs up to message {body.get('upto')} cut to "
        f"{body.get('most')} characters"
    ),
    # Pins of the messages that follow say no positions: those messages are marked.
    types.PINNED: lambda body: f"Pinned: {_list(body['positions'])}" if "positions" in body else "",
    types.UNPINNED: lambda body: f"No longer pinned: {_list(body.get('positions'))}",
    turn.REDACTED: lambda body: f"Redacted in the arguments of calls: {_list(body.get('calls'))}",
    turn.DROPPED: lambda body: (
        f"Left out, as nobody knows what came of them: {_list(body.get('calls'))}"
    ),
}


def _usage(body: dict[str, Any]) -> Usage:
    """What is known about a reply, as chats on the OpenAI SDK note it."""
    usage, model, seconds = body.get("usage"), body.get("model"), body.get("seconds")
    usage = usage if isinstance(usage, dict) else {}
    ended = body.get("finish_reason")
    counts = [usage.get(key) for key in ("input_tokens", "output_tokens")]
    return Usage(
        model=model if isinstance(model, str) else None,
        input=counts[0] if counts[0].__class__ is int else None,
        output=counts[1] if counts[1].__class__ is int else None,
        seconds=float(seconds) if seconds.__class__ in (int, float) else None,
        ended=ended if ended in ("length", "content_filter", "incomplete") else None,
    )


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _list(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
