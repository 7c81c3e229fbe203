"""What is written to a conversation's journal, and what its head remembers of that."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from limpet.backends.contract import UNSET
from limpet.conversations.marks import Marks
from limpet.conversations.notes import PINNED, UNPINNED, find_summary, repair_entry
from limpet.conversations.transcript import CLEARED, POPPED, is_system
from limpet.errors import Conflict, IdReused, InvalidMessage, StoreReadOnly
from limpet.llm.messages.shape import binds_next, calls_of, results_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from limpet.backends.contract import Head, UnsetType
    from limpet.conversations.transcript import Item, Transcript
    from limpet.core.journal import AsyncJournal
    from limpet.llm.messages.repair import Repair, Rule

    Entries = list[tuple[str, Any]]

__all__ = ["Writer"]


class Writer:
    """Writes to one conversation, with the labels and the time to live that it is to have."""

    def __init__(
        self,
        journal: AsyncJournal,
        said: Transcript,
    ) -> None:
        self._journal = journal
        self._said = said

    async def append(self, entries: Entries, *, expect: int | None, id_: str | None) -> int:
        """Add *entries*; the position of the last one."""
        record = await self._journal.write(entries, expect=expect, id=id_)
        return record.seq

    async def append_pinned(self, entries: Entries, *, expect: int | None, id_: str | None) -> int:
        """The same for messages that stay in every window."""
        _check_pins(message for _, message in entries)
        note = (PINNED, {"next": len(entries)})

        def change(head: int, marks: Marks) -> Marks:
            return marks.pinned(range(head + 2, head + 2 + len(entries)))

        return await self._mark([note, *entries], change, expect=expect, id_=id_)

    async def replace(self, entries: Entries, *, expect: int | None, id_: str | None) -> int:
        """Add *entries*, in place of all before, which stays where it is."""

        def behind(head: int, _: Marks) -> Marks:
            return Marks(start=head + 1)

        entries = [(CLEARED, {"replaced": True}), *entries]
        return await self._mark(entries, behind, expect=expect, id_=id_)

    async def _mark(
        self,
        entries: Entries,
        change: Callable[[int, Marks], Marks],
        *,
        expect: int | None = None,
        id_: str | None = None,
    ) -> int:
        """Append *entries* and change the marks, given the head's number, in the same act."""
        while True:
            head = await self._journal.head()
            seq = 0 if head is None else head.seq
            status = change(seq, Marks.of(head)).text
            try:
                record = await self._journal.write(
                    entries,
                    expect=seq if expect is None else expect,
                    id=id_,
                    status=status,
                )
            except Conflict as error:
                if expect is not None or isinstance(error, IdReused):
                    raise
            else:
                return record.seq

    async def pin(self, positions: Sequence[int]) -> None:
        """Let the messages at *positions* stay in every window."""
        note = (PINNED, {"positions": list(positions)})
        while True:
            head = await self._journal.head()
            await self._check_there(positions)
            # Only what was there then: it may be popped or replaced just now.
            with suppress(Conflict):
                seq = 0 if head is None else head.seq
                await self._mark([note], lambda _, marks: marks.pinned(positions), expect=seq)
                return

    async def _check_there(self, positions: Sequence[int]) -> None:
        items = dict(await self._said.items(after=min(positions) - 1))
        missing = [position for position in positions if position not in items]
        if missing:
            msg = (
                f"Conversation {self._journal.key.id!r} has no message at {missing[0]}. "
                "items() gives the positions that there are."
            )
            raise InvalidMessage(msg)
        _check_pins(items[position] for position in positions)

    async def unpin(self, positions: Sequence[int]) -> None:
        """Let them be as any other message again."""
        head = await self._journal.head()
        if not set(Marks.of(head).pins).intersection(positions):
            return
        note = (UNPINNED, {"positions": list(positions)})
        await self._mark([note], lambda _, marks: marks.unpinned(positions))

    async def pop(self) -> dict[str, Any] | None:
        """Take back the newest message."""
        while True:
            head = await self._journal.head()
            found = await self._said.last(2)
            if head is None or not found:
                return None
            position, message = found.pop()
            status = await self._without(position, found, head)
            entry = (POPPED, {"position": position})
            with suppress(Conflict):
                await self._journal.append(entry, expect=head.seq, status=status)
                return message

    async def _without(self, position: int, left: list[Item], head: Head) -> str | UnsetType | None:
        """The status of *head* without the message at *position*, given the newest that is left."""
        before = Marks.of(head)
        marks = before.unpinned([position])
        # A summary that speaks of it no longer stands, but the one before it may.
        while (summary := await find_summary(self._journal, marks.summary)) is not None:
            if summary.upto < position:
                break
            marks = marks.but(summary=summary.previous)
        # The first messages are read from the beginning, and there it must be known what is gone.
        newest = left[-1][0] if left else marks.start
        if not left or is_system(left[-1][1]):
            opening, _ = await self._said.opening(marks)
            if not left or newest in dict(opening):
                marks = marks.without(newest + 1, head.seq + 1)
        return UNSET if marks == before else marks.text

    async def clear(self) -> None:
        """Remove all messages."""
        while (head := await self._journal.head()) is not None:
            # In this order: a crash between the two leaves room unfreed, never half a conversation.
            # The status is for those who read from the beginning, and would not know till the end.
            marks = Marks(start=head.seq + 1)
            with suppress(Conflict):
                await self._journal.append((CLEARED, None), expect=head.seq, status=marks.text)
                await self._journal.compact(marks.start)
                return

    async def record(self, found: Sequence[tuple[int, Repair]], rule: Rule) -> None:
        """Record repairs of messages at these positions, once."""
        if not found:
            return
        import hashlib  # noqa: PLC0415 - most conversations are whole

        entry = repair_entry(found, rule)
        digest = hashlib.sha256(repr(entry).encode()).hexdigest()
        with suppress(StoreReadOnly):  # then it is found, and shown so, every time
            await self._journal.append(entry, id=f"repair-{digest[:32]}")


def _check_pins(messages: Iterable[Mapping[str, Any]]) -> None:
    for message in messages:
        if calls_of(message) or results_of(message) or binds_next(message):
            msg = (
                "A tool call, its result and a thought before it cannot be pinned: "
                "no model takes one without the others. Pin what was said."
            )
            raise InvalidMessage(msg)
