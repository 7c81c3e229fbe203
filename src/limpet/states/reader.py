"""Reads a state: its newest save, an earlier one, or the list of all."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from limpet.backends.contract import from_micros
from limpet.core.journal import PAGE
from limpet.errors import StateDamaged, StateNotFound
from limpet.states.format import (
    SAVES,
    Damage,
    Snapshot,
    StateMeta,
    StateVersion,
    copy_of,
    is_save,
    replay,
    versions,
)

if TYPE_CHECKING:
    from limpet.backends.contract import Head, Record
    from limpet.core.journal import AsyncJournal, Entry

__all__ = ["Reader"]

#: No backend counts further.
LAST = 2**53
#: As many entries as may lie behind the newest save, nearly always.
FEW = 8


class Reader:
    """Reads the saves of one journal. Every snapshot that it gives was verified."""

    def __init__(self, journal: AsyncJournal) -> None:
        self._journal = journal
        self._id = journal.key.id

    async def newest(self, head: Head | None = None) -> tuple[Head, Snapshot]:
        """The newest save, and the head that it was found by; `StateNotFound` if there is none."""
        head = head or await self._journal.head()
        while head is not None:
            try:
                copy = StateMeta.of(head).copy
                if not copy:  # the head does not say: it was imported, or written by hand
                    copy = copy_of(await self._last_save(head.seq))
                return head, await self._replay(copy, head.seq)
            except (Damage, StateNotFound) as error:
                again = await self._journal.head()
                if again == head:
                    raise self._damaged(head.seq, error) from error
                head = again  # somebody has compacted or deleted it meanwhile
        raise self.not_found()

    async def at(self, when: int | datetime) -> Snapshot:
        """The state at a position, or as it was at a time; `StateNotFound` if there was none."""
        if isinstance(when, datetime):
            position = await self._position_at(when)
        elif when.__class__ is int:
            position = when
        else:
            raise TypeError(f"A save is known by its position or by a datetime, not {when!r:.80}.")
        try:
            save = await self._last_save(position)
            return await self._replay(copy_of(save), save.seq)
        except Damage as error:
            raise self._damaged(position, error) from error

    async def history(
        self, last: int | None = None, before: int | None = None
    ) -> list[StateVersion]:
        """Every save, oldest first, or the *last* few; only those *before* a position."""
        head = await self._journal.head()
        if head is None:
            raise self.not_found()
        upto = head.seq if before is None else min(before - 1, head.seq)
        first = head.first if last is None else await self._start_of_last(last, head.first, upto)
        records = [] if upto < first else await self._records(first - 1, upto)
        listed: list[tuple[Record, list[Entry] | None]] = []
        for record in records:
            entries: list[Entry] | None = None
            with suppress(Damage):
                entries = self._entries(record)
            listed.append((record, entries))
        found = [version for version in versions(listed) if version.position <= upto]
        return found if last is None else found[max(len(found) - last, 0) :]

    async def other_entries(self, after: int | None) -> list[Entry]:
        """The entries behind position *after*, or behind the newest save, that are no saves."""
        found: list[Entry] = []
        size = FEW if after is None else PAGE
        async for page in self._journal.pages(after=after or 0, reverse=True, size=size):
            for entry in page:
                if entry.type not in SAVES:
                    found.append(entry)
                elif after is None:
                    return found[::-1]
        return found[::-1]

    def not_found(self) -> StateNotFound:
        """The error for a state that is not there."""
        return StateNotFound(f"There is no state {self._id!r} (or it has expired).")

    # -- finding saves ---------------------------------------------------------------------------

    async def _last_save(self, position: int) -> Entry:
        """The newest save up to *position*.

        `StateNotFound` if there is none, `Damage` if entries are missing on the way to it.
        """
        upto, limit = position, 1  # nearly always the entry at that position is one
        while True:
            records: list[Record] = []
            if 0 < upto <= LAST:
                records = await self._journal.page(upto=upto, limit=limit, reverse=True, gaps=True)
            if not records or not records[0].seq - records[0].count < upto <= records[0].seq:
                raise await self._missing(upto, position)
            for record in records:
                if record.seq < upto:
                    break  # entries are missing between the two: the next read says so
                for entry in reversed(self._entries(record)):
                    if entry.seq <= position and is_save(entry):
                        return entry
                upto = record.seq - record.count
            limit = PAGE

    async def _missing(self, number: int, position: int) -> StateNotFound | Damage:
        """Why there is no entry *number*, when a save was looked for from *position* on down."""
        head = await self._journal.head()
        if head is None:
            return self.not_found()
        if head.first <= number <= head.seq:
            return Damage(f"entry {number} is missing")
        if head.first <= position <= head.seq:
            msg = f"State {self._id!r} has no save up to {position:,} that this release knows."
            return StateNotFound(msg)
        there = f"{head.first:,} to {head.seq:,}"
        return StateNotFound(f"State {self._id!r} has no save {position:,}: it has {there}.")

    async def _start_of_last(self, last: int, first: int, upto: int) -> int:
        """Where to begin to read for the *last* saves up to *upto*: patches need their whole copy.

        The last that was looked at, where that cannot be known.
        """
        left, oldest = last, None
        while left > 0 and upto >= first:
            records = await self._journal.page(
                upto=upto, limit=min(left, PAGE), reverse=True, gaps=True
            )
            for record in records:
                try:
                    saves = [entry for entry in self._entries(record) if is_save(entry)]
                except Damage:  # listed as one that cannot be loaded
                    left -= 1
                    continue
                left -= len(saves)
                oldest = saves[0] if saves else oldest
            if not records:
                break
            upto = records[-1].seq - records[-1].count
        if oldest is not None:
            with suppress(Damage):
                return max(first, min(copy_of(oldest), upto + 1))
        return max(first, upto + 1)

    async def _position_at(self, time: datetime) -> int:
        """The number of the newest entry at or before *time*."""
        if time.tzinfo is None:
            msg = "at() takes a time with its zone, such as datetime.now(UTC); this one has none."
            raise ValueError(msg)
        head = await self._journal.head()
        if head is None:
            raise self.not_found()
        found, low, high = 0, head.first, head.seq
        while low <= high:  # by halves: times only grow
            middle = (low + high) // 2
            records = await self._journal.page(after=middle - 1, upto=high, limit=1, gaps=True)
            if records and from_micros(records[0].at) <= time:
                found = records[0].seq
                low = found + 1
            else:
                high = middle - 1
        if not found:
            msg = f"State {self._id!r} has no save from before {time:%Y-%m-%d %H:%M:%S %Z}."
            raise StateNotFound(msg)
        return found

    # -- reading records -------------------------------------------------------------------------

    async def _replay(self, copy: int, upto: int) -> Snapshot:
        """What the saves from *copy* up to *upto* make."""
        entries: list[Entry] = []
        last = max(copy, 1) - 1
        for record in await self._records(last, upto):
            if record.seq - record.count > last:
                break
            entries += (entry for entry in self._entries(record) if entry.seq > last)
            last = record.seq
        if last < upto:
            raise Damage(f"some of the entries {copy} to {upto} are missing")
        return replay(entry for entry in entries if entry.seq <= upto)

    async def _records(self, after: int, upto: int | None = None) -> list[Record]:
        found: list[Record] = []
        while True:
            page = await self._journal.page(after=after, upto=upto, limit=PAGE, gaps=True)
            found += page
            if len(page) < PAGE:
                return found
            after = page[-1].seq

    def _entries(self, record: Record) -> list[Entry]:
        """What *record* holds; `Damage` if that cannot be read."""
        try:
            entries = self._journal.entries(record)
        except (ValueError, TypeError, LookupError) as error:
            raise Damage(str(error)) from error
        if len(entries) != record.count:
            raise Damage(f"entry {record.seq} does not hold what it should")
        return entries

    def _damaged(self, position: int, error: Exception) -> StateDamaged:
        why = str(error).rstrip(".")
        return StateDamaged(
            f"State {self._id!r} at {position} cannot be loaded: {why}. Nothing was changed. "
            "Earlier saves may be whole: history() lists them, restore(position) goes back to one; "
            "a save writes a whole copy again."
        )
