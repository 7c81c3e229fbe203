"""Which of a journal's entries are the messages of a conversation: forwards, backwards, in part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.core.journal import PAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from limpet.backends.contract import Record
    from limpet.conversations.marks import Marks
    from limpet.core.journal import AsyncJournal, Entry

__all__ = ["CLEARED", "COPIED", "FORKED", "MESSAGE", "POPPED", "Item", "Transcript", "is_system"]

# Entry types that say what is a message of the conversation. Others change nothing of that.
MESSAGE = "message"
CLEARED = "cleared"  # what came before it is no longer part of the conversation
POPPED = "popped"  # nor is the newest message
COPIED = "copied"  # a message of the conversation this one was forked from …
FORKED = "forked"  # … which counts once all of them are here

#: Records that are decoded at a time, going backwards.
FEW = 16
#: Behind every position.
END = 1 << 62

#: A message and its position.
Item = tuple[int, dict[str, Any]]


class Transcript:
    """The messages in a conversation's journal."""

    def __init__(self, journal: AsyncJournal) -> None:
        self._journal = journal

    async def all(self, *, everything: bool = False) -> list[dict[str, Any]]:
        """Every message; *everything*: with those that were taken back or replaced."""
        found: list[dict[str, Any]] = []
        copied: list[dict[str, Any]] = []
        async for runs in self._journal.all_runs():
            for run in runs:
                kind = run[0]
                del run[0]
                if kind == MESSAGE:
                    found += run
                elif kind == COPIED:
                    copied += run
                elif kind == FORKED:
                    found += copied
                elif kind == CLEARED and not (everything and run[-1]):
                    found.clear()
                elif kind == POPPED and not everything:
                    del found[-len(run) :]
        return found

    async def newest_first(
        self,
        take: Callable[[int, dict[str, Any]], bool],
        size: int,
        *,
        after: int = 0,
        upto: int | None = None,
        copied: bool = False,
        see: Callable[[Entry], object] | None = None,
    ) -> None:
        """Give *take* messages from the end, in pages of about *size*, until it returns False.

        *copied*: the copy is known to be whole, though what says so lies behind *upto*. *see* is
        shown the entries that are no messages.
        """
        reader = _Backwards(take, see, copied=copied)
        size = min(max(size, 1), PAGE)
        high, more = upto, True
        while more:
            records = await self._journal.page(after=after, upto=high, limit=size, reverse=True)
            more = len(records) == size
            high = records[-1].seq - records[-1].count if records else 0
            # Decoded a few at a time: those that say enough may be among the first.
            for start in range(0, len(records), FEW):
                few = records[start : start + FEW]
                if not self._read(few, reader, after, END if upto is None else upto):
                    return

    def _read(self, records: list[Record], reader: _Backwards, after: int, upto: int) -> bool:
        """Show *records* to *reader*, newest first; False if none before them matters."""
        messages = self._only_messages(records)
        if messages is None:
            entries = [e for record in records for e in reversed(self._journal.entries(record))]
            return all(reader.read(e) for e in entries if after < e.seq <= upto)
        for position, message in messages:
            if after < position <= upto and not reader.take(position, message):
                return False
        return True

    def _only_messages(self, records: list[Record]) -> list[Item] | None:
        """What *records* hold, newest first, if that is messages only: as it nearly always is."""
        bodies = [(record.seq, record.body) for record in reversed(records)]
        runs = self._journal.runs(bodies)
        if any(run[0] != MESSAGE for run in runs):
            return None
        positions = (
            position
            for record in reversed(records)
            for position in range(record.seq - record.count + 1, record.seq + 1)
        )
        messages = (message for run in runs for message in run[1:])
        return list(zip(positions, messages, strict=True))[::-1]

    async def last(self, count: int) -> list[Item]:
        """The *count* newest messages, oldest first."""
        found: list[Item] = []

        def take(position: int, message: dict[str, Any]) -> bool:
            found.append((position, message))
            return len(found) < count

        if count:
            await self.newest_first(take, count)
        return found[::-1]

    async def items(
        self, *, after: int = 0, see: Callable[[Entry], object] | None = None
    ) -> list[Item]:
        """The messages behind position *after*."""
        found: list[Item] = []

        def take(position: int, message: dict[str, Any]) -> bool:
            found.append((position, message))
            return True

        await self.newest_first(take, PAGE, after=after, see=see)
        return found[::-1]

    async def at(self, positions: Sequence[int]) -> list[Item]:
        """The messages at *positions*, by one read for each run of them."""
        found: list[Item] = []
        for first, last in _spans(positions):
            entries = await self._journal.read(after=first - 1, upto=last)
            found += ((e.seq, e.body) for e in entries if e.type in (MESSAGE, COPIED))
        return found

    async def opening(self, marks: Marks) -> tuple[list[Item], bool]:
        """The system messages before all others, and whether there are others: none will come."""
        found: list[Item] = []
        after = marks.start
        while True:
            records = await self._journal.page(after=after, limit=2)
            entries = [entry for record in records for entry in self._journal.entries(record)]
            end = records[-1].seq if records else after
            for entry in entries:
                gap = marks.gap_at(entry.seq)
                end = end if gap is None else max(end, gap)
                if entry.seq > after and gap is None and not _opens(entry, marks, found):
                    return found, True
            if not records:
                return found, False
            after = end


class _Backwards:
    """Knows, of entries that come newest first, which are messages of the conversation."""

    def __init__(
        self,
        take: Callable[[int, dict[str, Any]], bool],
        see: Callable[[Entry], object] | None,
        *,
        copied: bool,
    ) -> None:
        self._take = take
        self._see = see
        self._wanted = {MESSAGE, COPIED} if copied else {MESSAGE}
        self._popped = 0

    def take(self, position: int, message: dict[str, Any]) -> bool:
        """Take in the next older message; False if none before it matters."""
        if not self._popped:
            return self._take(position, message)
        self._popped -= 1
        return True

    def read(self, entry: Entry) -> bool:
        """Take in the next older *entry*, whatever it is."""
        kind = entry.type
        if kind in self._wanted:
            return self.take(entry.seq, entry.body)
        if kind == POPPED:
            self._popped += 1
        elif kind == FORKED:
            self._wanted.add(COPIED)
        elif self._see is not None:
            self._see(entry)
        return kind != CLEARED


def _spans(positions: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of neighbours among *positions*."""
    spans: list[tuple[int, int]] = []
    for position in sorted(positions):
        if spans and spans[-1][1] == position - 1:
            spans[-1] = (spans[-1][0], position)
        else:
            spans.append((position, position))
    return spans


def _opens(entry: Entry, marks: Marks, found: list[Item]) -> bool:
    """Add *entry* to *found* if it is a system message; False if it is another one."""
    if entry.type == CLEARED:
        found.clear()
    elif entry.type == MESSAGE or (entry.type == COPIED and not marks.forking):
        if not is_system(entry.body):
            return False
        found.append((entry.seq, entry.body))
    return True


def is_system(message: dict[str, Any]) -> bool:
    """Whether *message* is the developer's, not the user's or the model's."""
    return message.get("role") in ("system", "developer")
