"""Taking words out of a journal that can only be added to.

What is to stay is written again at its end, entry by entry, as it was; then all that stood before
that is compacted away. A crash at any moment loses nothing and doubles nothing: an entry that comes
twice counts once, and what is forgotten was said to be so before. Others may write meanwhile: each
portion is written only where nothing unknown stands before it, and what came between is read first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from limpet.errors import Conflict
from limpet.memory.entries import FORGOTTEN, living

if TYPE_CHECKING:
    from limpet.memory.desk import Desk
    from limpet.memory.entries import Told
    from limpet.memory.index import Index

__all__ = ["Rewritten", "rewrite", "scrub"]

#: Bytes of a portion, about: any backend takes them in one record.
PORTION = 256 * 1024


class Rewritten(Struct, frozen=True):
    """How many entries are gone, and how many bytes they had."""

    entries: int = 0
    bytes: int = 0


async def rewrite(desk: Desk) -> Rewritten:
    """Write the journal again without what is forgotten."""
    head = await desk.journal.head()
    if head is None:
        return Rewritten()
    start = seen = head.seq
    told = await desk.told((head.first - 1), start)
    before = {one.seq: one for one in told if one.type != FORGOTTEN}
    done: set[int] = set()
    pending = living(told)
    while portion := _portion(pending):
        try:
            await desk.write([one.kept() for one in portion], expect=seen)
        except Conflict:
            latest = await desk.journal.head()
            if latest is None or (latest.first - 1) > seen:
                # Another has rewritten it meanwhile, and what it said to forget may be gone.
                return await rewrite(desk)
            news = await desk.told(seen, latest.seq)
            seen = latest.seq
            # It stands behind the start, and stays there. But it may be about what is still to be
            # written, and would then stand before it: so it is said again, after that.
            told += news
            if any(one.type == FORGOTTEN for one in news):
                pending = [one for one in living(told) if one.seq not in done]
            else:  # soon, or a busy writer is always first
                pending += [one for one in news if one.seq > start]
        else:
            seen += len(portion)
            done |= {one.seq for one in portion}
            pending = pending[len(portion) :]
    await desk.journal.compact(start + 1)
    gone = [one for seq, one in before.items() if seq not in done]
    return Rewritten(len(gone), sum(map(_size, gone)))


def _portion(pending: list[Told]) -> list[Told]:
    """As many as go into one record; at least one."""
    size = 0
    for count, one in enumerate(pending):
        size += _size(one)
        if size > PORTION and count:
            return pending[:count]
    return pending


def _size(one: Told) -> int:
    return len(msgspec.json.encode(one.body))


async def scrub(desk: Desk) -> bool:
    """Overwrite where the words were, in the index and in the store, if that is one that can."""
    await desk.work(_scrub)
    return await desk.call(desk.backend.scrub)


def _scrub(index: Index) -> None:
    index.scrub()
