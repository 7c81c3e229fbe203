"""Reads a state: its newest save, an earlier one, or the list of all."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from limpet.backends.contract import from_micros
from limpet.core.journal import PAGE
from limpet.errors import StateDamaged, StateNotFound
from limpet.states.kept import Damage, Kept, Marks, StateVersion, copy_of, fold, ground_of, listed

if TYPE_CHECKING:
    from limpet.backends.contract import Head, Record
    from limpet.core.journal import AsyncJournal, Entry

__all__ = ["Reader"]

#: No backend counts further.
LAST = 2**53


class Reader:
    """Reads the states of one journal; every one that it gives is proved."""

    def __init__(self, journal: AsyncJournal) -> None:
        self._journal = journal

    @property
    def _id(self) -> str:
        return self._journal.key.id

    async def newest(self, head: Head | None = None) -> Kept | None:
        """The state as it is now; None if there is none."""
        head = head or await self._journal.head()
        while head is not None:
            try:
                copy = Marks.of(head).copy or await self._copy_of(head.seq)
                kept = await self._fold(copy, head.seq)
            except Damage as error:
                again = await self._journal.head()
                if again == head:
                    raise self._damaged(head.seq, error) from error
                head = again  # somebody has compacted it meanwhile
            else:
                kept.created = head.created
                return kept
        return None

    async def at(self, when: int | datetime) -> Kept:
        """The state at a position, or as it was at a time; `StateNotFound` if there was none."""
        if when.__class__ is not int and not isinstance(when, datetime):
            raise TypeError(f"A save is known by its position or by a datetime, not {when!r:.80}.")
        position = await self._position(when) if isinstance(when, datetime) else when
        try:
            return await self._fold(await self._copy_of(position), position)
        except Damage as error:
            raise self._damaged(position, error) from error

    async def _copy_of(self, position: int) -> int:
        """Where the whole copy is that the save at *position* goes back to."""
        records = []
        if 0 < position <= LAST:
            records = await self._journal.page(after=position - 1, upto=position)
        if not records:
            raise await self._missing(position)
        return copy_of(self._entry(records[0]))

    async def ground(self, position: int) -> tuple[int, str] | None:
        """What a patch behind *position* must be made for, or `Damage`; None if it is not there."""
        records = await self._journal.page(after=position - 1, upto=position)
        if not records:
            await self._missing(position)
            return None
        return ground_of(self._entry(records[0]))

    async def _position(self, time: datetime) -> int:
        """The newest save at or before *time*."""
        if time.tzinfo is None:
            msg = "at() takes a time with its zone, such as datetime.now(UTC); this one has none."
            raise ValueError(msg)
        head = await self._journal.head()
        if head is None:
            raise self.not_found()
        found, low, high = 0, head.first, head.seq
        while low <= high:  # by halves: times only grow
            middle = (low + high) // 2
            records = await self._journal.page(after=middle - 1, upto=high, limit=1)
            if records and from_micros(records[0].at) <= time:
                found = records[0].seq
                low = found + 1
            else:
                high = middle - 1
        if not found:
            msg = f"State {self._id!r} has no save from before {time:%Y-%m-%d %H:%M:%S %Z}."
            raise StateNotFound(msg)
        return found

    async def history(self, last: int | None = None) -> list[StateVersion]:
        """Every save, oldest first, or the *last* few."""
        head = await self._journal.head()
        if head is None:
            raise self.not_found()
        first = head.first
        if last is not None:
            # Patches do not say what they are patches of: their copy does.
            wanted = max(head.seq - last + 1, first)
            with suppress(Damage):
                first = max(first, await self._copy_of(wanted))
        found = listed([self._listed(record) for record in await self._records(first - 1)])
        return found if last is None else found[max(len(found) - last, 0) :]

    def _listed(self, record: Record) -> tuple[Entry | None, int, int, int]:
        entry: Entry | None = None
        with suppress(Damage):
            entry = self._entry(record)
        return entry, record.seq, record.at, len(record.body)

    def _entry(self, record: Record) -> Entry:
        """What *record* holds, which is one save; `Damage` if it is anything else."""
        try:
            (entry,) = self._journal.entries(record)
        except (ValueError, TypeError, LookupError) as error:
            raise Damage(str(error)) from error
        return entry

    async def _fold(self, copy: int, upto: int) -> Kept:
        """What the saves from *copy* to *upto* make."""
        records = await self._records(max(copy, 1) - 1, upto)
        numbers = [record.seq for record in records]
        if numbers != list(range(copy, upto + 1)):
            raise Damage(f"some of the entries {copy} to {upto} are missing")
        return fold([self._entry(record) for record in records])

    async def _records(self, after: int, upto: int | None = None) -> list[Record]:
        found: list[Record] = []
        while True:
            page = await self._journal.page(after=after, upto=upto, limit=PAGE)
            found += page
            if len(page) < PAGE:
                return found
            after = page[-1].seq

    async def _missing(self, position: int) -> StateNotFound:
        """The error for a save that is not there; `Damage` if it should be."""
        head = await self._journal.head()
        if head is None:
            return self.not_found()
        if (head.first - 1) < position <= head.seq:
            raise Damage(f"entry {position} is missing")
        there = f"{head.first:,} to {head.seq:,}"
        return StateNotFound(f"State {self._id!r} has no save {position:,}: it has {there}.")

    def not_found(self) -> StateNotFound:
        """The error for a state that is not there."""
        return StateNotFound(f"There is no state {self._id!r} (or it has expired).")

    def _damaged(self, position: int, error: Exception) -> StateDamaged:
        why = str(error).rstrip(".")
        return StateDamaged(
            f"State {self._id!r} at {position} cannot be given: {why}. Nothing was changed. "
            "Earlier saves may be whole: history() lists them, restore(position) goes back to one; "
            "a save writes a whole copy again."
        )
