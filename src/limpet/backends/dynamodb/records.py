"""Reading records from chunks and tail as one, and dropping the oldest."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from limpet.backends.dynamodb.bodies import Gone
from limpet.backends.dynamodb.errors import Refused
from limpet.backends.dynamodb.layout import (
    INLINE,
    MOST,
    TAIL,
    Change,
    Item,
    Journal,
    Kept,
    chunk_key,
    head_key,
    id_key,
    item_key,
    made_token,
    partition,
    unpack_chunk,
)
from limpet.errors import StoreCorrupt, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from limpet.backends.contract import Key, Record
    from limpet.backends.dynamodb.bodies import Bodies
    from limpet.backends.dynamodb.heads import Heads
    from limpet.backends.dynamodb.table import Table

__all__ = ["Records"]

#: Behind every number that an entry can have.
END = 10**16 - 1


class Records:
    """The records of journals.

    The head is read first. It has the newest records itself, and says up to which number the
    others are in chunks: those were written before it, so nothing is missing; what comes later is
    not asked for, so nothing comes twice. Chunks only ever hold records that are true. Two writers
    who moved the same tail may have left two that overlap.
    """

    def __init__(self, table: Table, heads: Heads, bodies: Bodies) -> None:
        self._table = table
        self._heads = heads
        self._bodies = bodies

    def read(
        self, key: Key, *, after: int, upto: int | None, limit: int, reverse: bool
    ) -> list[Record]:
        """See `Backend.read`."""
        seen: tuple[str, int] | None = None
        while True:
            journal = self._heads.load(key)
            if journal is None or not journal.live(self._table.clock.now()):
                return []
            try:
                found = self._find(key, journal, after, upto, limit, reverse=reverse)
                bodies = self._bodies.of(key, journal.gen, found)
            except Gone:
                if seen == (journal.gen, journal.floor):
                    raise _corrupt(key, self._table.where) from None
                # Compacted or deleted since the head was read: look again.
                seen = journal.gen, journal.floor
            else:
                return [kept.record(body) for kept, body in zip(found, bodies, strict=True)]

    def _find(
        self, key: Key, journal: Journal, after: int, upto: int | None, limit: int, *, reverse: bool
    ) -> list[Kept]:
        low, high = max(after, journal.floor), journal.seq if upto is None else upto
        found: list[Kept] = []
        for kept in self._all(key, journal, low, high, limit, reverse=reverse):
            if len(found) == limit:
                break
            found.append(kept)
        return found

    def _all(
        self, key: Key, journal: Journal, low: int, high: int, limit: int, *, reverse: bool
    ) -> Iterator[Kept]:
        """The records with entries over *low* up to *high*, in order and each once."""
        tail = [k for k in journal.in_order() if k.seq > low and k.start < high]
        page = _page(journal, limit)
        if reverse:
            yield from tail[::-1]
            if low < journal.stored and journal.floor < high:
                yield from self._downward(key, journal, low, high, page)
        else:
            if low < journal.stored and journal.floor < high:
                yield from self._upward(key, journal, low, high, page)
            yield from tail

    def _upward(self, key: Key, journal: Journal, low: int, high: int, page: int) -> Iterator[Kept]:
        last = low
        for kept in self.chunks(key, journal, after=low, page=page):
            if kept.seq <= last:
                continue
            if kept.start > last:
                raise Gone
            if kept.start >= high:
                return
            yield kept
            last = kept.seq
            if last >= min(high, journal.stored):
                return
        raise Gone

    def _downward(
        self, key: Key, journal: Journal, low: int, high: int, page: int
    ) -> Iterator[Kept]:
        first = min(high, journal.stored)
        for kept in self._chunks_down(key, journal, first, page):
            if kept.start >= first:
                continue
            if kept.seq < first:
                raise Gone
            if kept.seq <= low:
                return
            yield kept
            first = kept.start
            if first <= low:
                return
        raise Gone

    def chunks(
        self, key: Key, journal: Journal, *, after: int, page: int | None = None
    ) -> Iterator[Kept]:
        """What is in the chunks that end behind *after*, up to where the tail begins."""
        low = chunk_key(journal.gen, after + 1)
        high = chunk_key(journal.gen, journal.stored + 1)
        for item in self._table.query(partition(key), low, high, page=page):
            yield from unpack_chunk(item)

    def _chunks_down(self, key: Key, journal: Journal, top: int, page: int) -> Iterator[Kept]:
        """The same from the chunk that holds *top* down, newest first."""
        pk, gen = partition(key), journal.gen
        high = chunk_key(gen, top + 1)
        if top < journal.stored:
            holding = self._table.query(pk, chunk_key(gen, top), chunk_key(gen, END), page=1)
            for item in islice(holding, 1):
                high = item["sk"]["S"]
        for item in self._table.query(pk, chunk_key(gen, 0), high, reverse=True, page=page):
            yield from reversed(unpack_chunk(item))

    # -- dropping ------------------------------------------------------------------------------

    def compact(self, key: Key, before: int) -> int:
        """See `Backend.compact`."""
        deadline, turn = time.monotonic() + self._table.timeout, 0
        total = 0
        ours: tuple[str, int, int] | None = None  # what a try without an answer may have done
        while True:
            journal = self._heads.load(key)
            if journal is None or not journal.live(self._table.clock.now()):
                return total if ours is None else total + ours[2]
            if ours is not None and ours[0] != journal.gen:
                return total + ours[2]  # that one is gone, and another has begun
            if ours is not None and ours[:2] == (journal.gen, journal.floor):
                total, ours = total + ours[2], None
            items = list(self._old_chunks(key, journal, before))
            gone = _dropped(journal, items, before)
            if not gone:
                return total
            floor, count = gone[-1].seq, gone[-1].seq - journal.floor
            try:
                self._raise_floor(key, journal, gone)
            except Refused as refused:
                ours = (journal.gen, floor, count) if refused.in_doubt else ours
                turn += 1
                self._table.try_again(turn, deadline)
            else:
                total += count
                with suppress(StoreUnavailable):
                    self._remove(key, journal, items, gone)
                if len(journal.tail) <= MOST:
                    return total

    def _old_chunks(self, key: Key, journal: Journal, before: int) -> Iterator[Item]:
        """Chunks that may hold something to drop: the last of them holds *before*, or ends there.

        From the first on, also under the floor: what a crash left behind is found again here.
        """
        low, high = chunk_key(journal.gen, 0), chunk_key(journal.gen, journal.stored + 1)
        for item in self._table.query(partition(key), low, high):
            yield item
            if unpack_chunk(item)[-1].seq >= before:
                return

    def _raise_floor(self, key: Key, journal: Journal, gone: list[Kept]) -> None:
        change = Change(head_key(key))
        change.when("#rev = :old", old=journal.rev)
        floor = gone[-1].seq
        change.put(rev=made_token(), floor=floor, stored=max(journal.stored, floor))
        dropped = sum(kept.size for kept in gone)
        change.set("#size = #size - :dropped", dropped=dropped)
        for kept in gone:
            if kept.mark in journal.tail:
                forget(change, kept)
        self._table.update(change)

    def _remove(self, key: Key, journal: Journal, chunks: list[Item], gone: list[Kept]) -> None:
        """The items of what was dropped: those of a chunk that is in use in part stay."""
        pk, floor = partition(key), gone[-1].seq
        records = {kept.seq: kept for item in chunks for kept in unpack_chunk(item)}
        records |= {kept.seq: kept for kept in gone}
        old = [kept for kept in records.values() if kept.seq <= floor]
        self._bodies.remove(
            key, journal.gen, [(k.payload.decode(), k.parts) for k in old if k.parts]
        )
        for kept in old:
            if kept.id is not None and kept.mark not in journal.tail:
                change = Change(item_key(pk, id_key(journal.gen, kept.id)))
                change.when("#seq = :seq", seq=kept.seq)  # it may have been given again since
                with suppress(Refused):
                    self._table.delete(change)
        self._table.write(
            {"DeleteRequest": {"Key": {"pk": item["pk"], "sk": item["sk"]}}}
            for item in chunks
            if unpack_chunk(item)[-1].seq <= floor
        )


def forget(change: Change, kept: Kept) -> None:
    """Take a record out of the tail."""
    mark = change.name(kept.mark)
    change.remove(f"#tail.{mark}", f"#nums.{mark}", f"#late.{mark}")


def _dropped(journal: Journal, chunks: Iterable[Item], before: int) -> list[Kept]:
    """The records that end before *before*, in order and each once.

    Of a tail at most as many as one update can name; the others are for the next.
    """
    found = {kept.seq: kept for item in chunks for kept in unpack_chunk(item)}
    found |= {kept.seq: kept for kept in journal.in_order()[:MOST]}
    return [found[seq] for seq in sorted(found) if journal.floor < seq < before]


def _page(journal: Journal, limit: int) -> int:
    """How many chunks will do for *limit* records, about; another page costs one more request."""
    each = min(journal.size / max(journal.seq - journal.floor, 1), INLINE) + 60
    return min(int(limit * each / TAIL) + 2, 1_000)


def _corrupt(key: Key, where: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"Records of {key.kind} {key.id!r} are missing in {where}, and nobody has removed them "
        "through Limpet. Nothing was changed. Restore the table to a point in time before that."
    )
