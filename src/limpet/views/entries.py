"""Entries of a journal, newest or oldest first, where a damaged one hides no other."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.backends.contract import from_micros
from limpet.core.journal import PAGE
from limpet.errors import LimpetError

if TYPE_CHECKING:
    from limpet.backends.contract import Record
    from limpet.core.journal import AsyncJournal, Entry

__all__ = ["Damaged", "backwards", "forwards"]


class Damaged(Struct, frozen=True):
    """Entries that cannot be read, the last of which has the number *seq*."""

    seq: int
    count: int
    at: datetime
    why: str


async def backwards(
    journal: AsyncJournal, upto: int, size: int, *, after: int = 0
) -> list[Entry | Damaged]:
    """Some of the entries from *upto* down to behind *after*, newest first: *size* records.

    None at all, if there is nothing more. The last one's ``seq`` less one is the next *upto*.
    """
    if upto <= after:
        return []
    records = await journal.page(after=after, upto=upto, limit=size, reverse=True, gaps=True)
    found = [one for record in records for one in reversed(_entries(journal, record))]
    return [one for one in found if after < one.seq <= upto]


async def forwards(journal: AsyncJournal, after: int, upto: int) -> list[Entry | Damaged]:
    """The entries behind *after* up to *upto*, oldest first: of a short stretch."""
    found: list[Entry | Damaged] = []
    low = after
    while low < upto:
        limit = min(upto - low, PAGE)
        records = await journal.page(after=low, upto=upto, limit=limit, gaps=True)
        if not records:
            break
        found += (one for record in records for one in _entries(journal, record))
        low = records[-1].seq
    return [one for one in found if after < one.seq <= upto]


def _entries(journal: AsyncJournal, record: Record) -> list[Entry | Damaged]:
    try:
        return list(journal.entries(record))
    except (LimpetError, ValueError, TypeError, LookupError) as error:
        return [Damaged(record.seq, record.count, from_micros(record.at), str(error))]
