"""Entries of a journal as they are: what cannot be read hides none of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.core.journal import Entry
from limpet.errors import Unreadable

if TYPE_CHECKING:
    from limpet.core.journal import AsyncJournal

__all__ = ["Damaged", "Slice", "read_slice"]

#: Records that one request to the backend asks for.
REQUEST = 1_000


class Damaged(Struct, frozen=True):
    """Entry *seq*, or the record that ends with it, and why nobody can read it."""

    seq: int
    why: str


class Slice(Struct, frozen=True):
    """The entries from number *first* to *last*, oldest first, and what is damaged among them."""

    entries: list[Entry]
    damaged: list[Damaged]
    first: int
    last: int


async def read_slice(
    journal: AsyncJournal, *, first: int = 1, last: int, most: int | None = None
) -> Slice:
    """The entries *first* to *last*, or of these the *most* newest ones."""
    entries: list[Entry] = []
    damaged: list[Damaged] = []
    missing: list[tuple[int, int]] = []
    low = first if most is None else max(first, last - most + 1)
    above, more = last, True  # what is to be read still ends there
    while more and above >= low:
        limit = min(REQUEST, above - low + 1)
        records = await journal.page(
            after=low - 1, upto=above, limit=limit, reverse=True, gaps=True
        )
        more = len(records) == limit
        for record in records:
            if record.seq < above:
                missing.append((record.seq + 1, above))
            try:
                found = [one for one in journal.entries(record) if low <= one.seq <= last]
                entries += found[::-1]
            except Unreadable as error:
                damaged.append(Damaged(record.seq, str(error)))
            above = record.seq - record.count
    if above >= low:
        missing.append((low, above))
    if missing:
        key, runtime = journal.key, journal.runtime
        taken = await runtime.call(runtime.backend.lost, key)  # by a repair, which has said so
        damaged += [
            Damaged(end, f"Entries {begin} to {end} of {key.kind} {key.id!r} are not there.")
            for begin, end in missing
            if not any(one <= begin and end <= other for one, other in taken)
        ]
    return Slice(entries[::-1], sorted(damaged, key=lambda one: one.seq), low, last)
