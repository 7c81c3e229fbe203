"""Any journal entry by entry, from the newest backwards, and one entry with all that is in it."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.backends.contract import from_micros, given_id
from limpet.core.journal import Entry
from limpet.errors import NotFound, StoreCorrupt, Unreadable
from limpet.views import PAGE, WHOLE
from limpet.views.messages import summary
from limpet.views.text import json_line

if TYPE_CHECKING:
    from limpet.backends.contract import Head, Record
    from limpet.core.journal import AsyncJournal
    from limpet.core.scope import Scope

__all__ = [
    "Backwards",
    "EntryLine",
    "EntryView",
    "Gap",
    "JournalPage",
    "Slice",
    "entry_view",
    "journal_page",
    "line_of",
    "read_slice",
]

#: Records of the first read: how much is in one is known only then.
FIRST = 4
#: Stored bytes that one read asks for, and after which a page ends though it has room.
READ_BYTES = 1_000_000
PAGE_BYTES = 4_000_000
#: Characters of a summary; a page of one entry has all of it.
SUMMARY = 400


class Gap(Struct, frozen=True):
    """Entries that should be there and cannot be shown, and why."""

    first: int
    seq: int
    why: str


class Backwards:
    """The entries of a journal, newest first, read as they are asked for.

    What is missing or cannot be read comes as a `Gap` in its place.
    """

    def __init__(self, scope: Scope, head: Head, before: int | None = None) -> None:
        self._journal = scope.journal(head.key.kind, head.key.id)
        self._first = head.first
        self._upto = head.seq if before is None else min(before - 1, head.seq)
        self._entries = self._bytes = self._records = 0  # of what was read until now

    @property
    def next(self) -> int:
        """The number of the next one; at the end it is below the oldest."""
        return self._upto

    @property
    def bytes(self) -> int:
        """Stored bytes that were read."""
        return self._bytes

    @property
    def ended(self) -> bool:
        """Whether there are no more."""
        return self._upto < self._first

    async def some(self, wanted: int) -> list[Entry | Gap]:
        """The next ones: about *wanted*, perhaps fewer or a few more, none at the end."""
        if self.ended:
            return []
        try:
            records = await self._journal.page(
                upto=self._upto, limit=self._limit(wanted), reverse=True, gaps=True
            )
        except (StoreCorrupt, Unreadable) as error:
            return [self._rest(str(error))]
        if not records:
            return [self._rest()]
        found: list[Entry | Gap] = []
        for record in records:
            if record.seq < self._upto:
                found.append(missing(record.seq + 1, self._upto))
            begin = record.seq - record.count + 1
            entries = _entries_of(self._journal, record)
            if isinstance(entries, Gap):
                found.append(entries)
            else:
                upto = min(self._upto, record.seq)
                found += [entry for entry in reversed(entries) if entry.seq <= upto]
            self._upto = begin - 1
            self._entries += record.count
            self._bytes += len(record.body)
            self._records += 1
        return found

    def _limit(self, wanted: int) -> int:
        if not self._records:
            return min(FIRST, wanted)
        records = math.ceil(wanted * self._records / self._entries)
        affordable = READ_BYTES * self._records // (self._bytes or 1)
        return max(min(records, affordable, WHOLE), 1)

    def _missing(self, first: int) -> str:
        what = (
            f"Entry {first} is" if first == self._upto else f"Entries {first} to {self._upto} are"
        )
        key = self._journal.key
        return f"{what} missing from {key.kind} {key.id!r}."

    def _rest(self, why: str | None = None) -> Gap:
        first, last = self._first, self._upto
        self._upto = first - 1
        return missing(first, last) if why is None else Gap(first, last, why)


def missing(first: int, last: int) -> Gap:
    """Entries that are not there."""
    one = first == last
    why = f"Entry {first:,} is missing." if one else f"Entries {first:,} to {last:,} are missing."
    return Gap(first, last, why)


def _entries_of(journal: AsyncJournal, record: Record) -> list[Entry] | Gap:
    """What *record* holds, or why that cannot be read."""
    try:
        return journal.entries(record)
    except Exception as error:  # noqa: BLE001 - whatever it is, the others are shown
        return Gap(record.seq - record.count + 1, record.seq, str(error))


class Slice(Struct, frozen=True):
    """Entries, oldest first, from number *first* on, and what is missing or damaged among them."""

    entries: list[Entry]
    damaged: list[Gap]
    first: int


async def read_slice(
    scope: Scope, head: Head, *, first: int, last: int, bounded: bool = False
) -> Slice:
    """The entries *first* to *last*; *bounded*: of large ones only the newest."""
    reading = Backwards(scope, head, last + 1)
    entries: list[Entry] = []
    gaps: list[Gap] = []
    while reading.next >= first and not (bounded and reading.bytes >= PAGE_BYTES):
        for one in await reading.some(reading.next - first + 1):
            if isinstance(one, Gap):
                gaps.append(one)
            elif one.seq >= first:
                entries.append(one)
    if gaps:
        lost = await scope.runtime.call(scope.backend.lost, head.key)  # by a repair, which said so
        gaps = [
            gap
            for gap in reversed(gaps)
            if not any(begin <= gap.first and gap.seq <= end for begin, end in lost)
        ]
    return Slice(entries[::-1], gaps, max(first, reading.next + 1))


# -- a page ----------------------------------------------------------------------------------------


class EntryLine(Struct, frozen=True):
    """An entry on a line, or several (from *first* on) that cannot be read: *type* is then ""."""

    first: int
    seq: int
    at: datetime | None
    type: str
    text: str


class JournalPage(Struct, frozen=True):
    """Entries, newest first; *older* is what to give as *before* for those that come next.

    With a filter, *searched* is how many entries were looked at, whether or not they fit.
    """

    entries: list[EntryLine]
    older: int | None
    searched: int


async def journal_page(
    scope: Scope,
    head: Head,
    *,
    before: int | None = None,
    limit: int = PAGE,
    text: str = "",
    type: str = "",
) -> JournalPage:
    """The entries before number *before*, of those that have *text* in them and are of a *type*.

    The work is bounded: with a filter, at most `WHOLE` entries are looked at for a page, and of
    large entries fewer, so that a page may be short, or empty, and others follow.
    """
    reading = Backwards(scope, head, before)
    wanted = text.casefold()
    filtered = bool(wanted or type)
    found: list[EntryLine] = []
    searched, next_ = 0, reading.next
    while len(found) < limit and not reading.ended and reading.bytes < PAGE_BYTES:
        if filtered and searched >= WHOLE:
            break
        for one in await reading.some(PAGE if filtered else limit - len(found)):
            if len(found) == limit or (filtered and searched >= WHOLE):
                break
            line = line_of(one, head.key.kind)
            searched += 1
            next_ = line.first - 1
            if not filtered or _fits(one, line, wanted, type):
                found.append(line)
    return JournalPage(found, next_ + 1 if next_ >= head.first else None, searched)


def line_of(one: Entry | Gap, kind: str) -> EntryLine:
    """An entry of a journal of some *kind*, on a line."""
    if isinstance(one, Gap):
        return EntryLine(one.first, one.seq, None, "", one.why)
    try:
        text = summary(one, kind)
    except Exception as error:  # noqa: BLE001 - of our name and somebody else's shape
        text = f"It is not what is stored as {one.type!r} ({type(error).__name__}: {error})."
    return EntryLine(one.seq, one.seq, one.at, one.type, text)


def _fits(one: Entry | Gap, line: EntryLine, text: str, type_: str) -> bool:
    if isinstance(one, Gap):
        return False
    if type_ and one.type != type_:
        return False
    return (
        not text
        or text in line.text.casefold()
        or text in one.type.casefold()
        or text in json_line(one.body).casefold()
    )


# -- one entry -------------------------------------------------------------------------------------


class EntryView(Struct, frozen=True):
    """One entry whole, or why it cannot be read (*damage*).

    It was stored together with those from *first* to *last*, in one act, as *bytes*; *given_id* is
    what that append was called by whoever made it.
    """

    seq: int
    at: datetime | None
    type: str
    text: str
    body: Any
    damage: str | None
    first: int
    last: int
    bytes: int
    given_id: str | None
    previous: int | None
    next: int | None


async def entry_view(scope: Scope, head: Head, seq: int) -> EntryView:
    """Entry *seq*; `NotFound` if the journal has no such number."""
    kind, id_ = head.key.kind, head.key.id
    if not head.first <= seq <= head.seq:
        there = f"{head.first:,} to {head.seq:,}" if head.seq >= head.first else "none"
        raise NotFound(f"There is no entry {seq:,} in {kind} {id_!r}: it has {there}.")
    journal = scope.journal(kind, id_)
    found: list[Entry] | Gap = missing(seq, seq)
    first, last, size, name = seq, seq, 0, None
    try:
        records = await journal.page(upto=seq, limit=1, reverse=True, gaps=True)
    except (StoreCorrupt, Unreadable) as error:
        records, found = [], Gap(seq, seq, str(error))
    for record in records:
        if record.seq >= seq:
            found = _entries_of(journal, record)
            first, last = record.seq - record.count + 1, record.seq
            size, name = len(record.body), given_id(record.id)
            at: datetime | None = from_micros(record.at)
            break
    else:
        at = None
    gap = found if isinstance(found, Gap) else None
    entry = None if isinstance(found, Gap) else found[seq - first]
    return EntryView(
        seq=seq,
        at=at,
        type="" if entry is None else entry.type,
        text="" if entry is None else line_of(entry, kind).text,
        body=None if entry is None else entry.body,
        damage=None if gap is None else gap.why,
        first=first,
        last=last,
        bytes=size,
        given_id=name,
        previous=seq - 1 if seq > head.first else None,
        next=seq + 1 if seq < head.seq else None,
    )
