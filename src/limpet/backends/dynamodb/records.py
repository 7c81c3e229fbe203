"""Records: read from chunks and tail as one, and dropped; and bodies that are long.

A long body lies in items of its own, of one part or many. They are written before the record that
names them, and are nothing until it does.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from limpet.backends import decide
from limpet.backends.contract import given_id
from limpet.backends.dynamodb.errors import Refused
from limpet.backends.dynamodb.layout import (
    Item,
    Stored,
    StoredRecord,
    attribute,
    chunk_key,
    id_key,
    item_key,
    item_request,
    new_token,
    part_keys,
    partition,
    removal,
    unpack_records,
)
from limpet.backends.dynamodb.table import MOST_READS
from limpet.errors import StoreCorrupt, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from limpet.backends.contract import Key, Record
    from limpet.backends.dynamodb.heads import Attempt, Heads
    from limpet.backends.dynamodb.table import Table

__all__ = ["TAIL", "Bodies", "Records", "Upload", "part_items", "parts_of"]

#: Bytes of records in a tail. The head with it stays under 4 KB: it is written with each append,
#: and pays by the kilobyte. A fuller tail is moved to a chunk.
TAIL = 3_400

#: A longer body does not go into the tail, but into items of its own.
INLINE = 3_000

#: Bytes of a body in one item, which may have 400 KB with its key.
PART = 390_000

#: A longer body is listed in the head before it is written.
UNLISTED = 64_000

#: Parts to a request: DynamoDB takes 16 MB.
PARTS_AT_ONCE = 10
BYTES_AT_ONCE = 12_000_000

#: Behind every number that an entry can have.
END = 10**16 - 1


class Missing(Exception):
    """An item is not there: its record has been compacted away, or its journal deleted."""


# -- long bodies -----------------------------------------------------------------------------------


class Upload(Struct):
    """A long body on its way into the table.

    A large one is listed in the head before, as *listing*, so that `sweep` finds it if no record
    ever names it. A smaller one that a crash has left behind goes with its journal.
    """

    generation: str
    remove_after: int | None
    parts: int
    name: str
    listing: str | None = None
    written: bool = False

    @classmethod
    def of(cls, body: bytes, generation: str, remove_after: int | None, now: int) -> Upload:
        name, parts = new_token(), parts_of(body)
        listing = None if len(body) <= UNLISTED else f"{now // 1_000_000}.{parts}.{name}"
        return cls(generation, remove_after, parts, name, listing)


class Bodies:
    """Long bodies: written, read and removed."""

    def __init__(self, table: Table, heads: Heads) -> None:
        self._table = table
        self._heads = heads

    def write(self, key: Key, upload: Upload, body: bytes) -> bool:
        """Write *body*; False if it must be done again, under another name.

        That is, if a try may arrive late, when the parts have got another time to be removed.
        """

        def items() -> Iterator[Item]:
            return part_items(key, upload.generation, upload.name, body, upload.remove_after)

        def first() -> Item:
            upload.name = new_token()  # another each time: a late try overwrites nothing
            return next(items())

        if upload.listing is None:
            self._table.put(first)
        else:
            puts = ({"PutRequest": {"Item": item}} for item in items())
            if self._table.write(puts, most=PARTS_AT_ONCE) and upload.remove_after is not None:
                return False
        upload.written = True
        return True

    def discard(self, key: Key, upload: Upload) -> None:
        """Remove a body that no record names, as far as that can be done now."""
        with suppress(StoreError):
            self.remove(key, upload.generation, [(upload.name, upload.parts)])
            if upload.listing is not None:
                self.unlist(key, upload.generation, upload.listing)

    def sweep(self, key: Key, stored: Stored, before: int) -> None:
        """Remove what was listed *before* that second: its writer died in the middle of it."""
        for listing in stored.uploads:
            began, parts, name = listing.split(".")
            if int(began) < before:
                self.remove(key, stored.generation, [(name, int(parts))])
                self.unlist(key, stored.generation, listing)

    def unlist(self, key: Key, generation: str, listing: str) -> None:
        """Take an upload out of the head's list."""

        def work(attempt: Attempt) -> None:
            stored = attempt.stored
            if stored is None or stored.generation != generation or listing not in stored.uploads:
                attempt.require_fresh()
                return
            new = replace(stored, uploads=stored.uploads - {listing})
            self._heads.write(attempt, self._heads.prepare(attempt, stored, new))

        self._heads.change(key, work)

    def remove(self, key: Key, generation: str, bodies: Iterable[tuple[str, int]]) -> None:
        """Remove the parts of *bodies*, each a name and how many."""
        pk = partition(key)
        self._table.remove(
            item_key(pk, sk) for name, parts in bodies for sk in part_keys(generation, name, parts)
        )

    def read(self, key: Key, generation: str, records: list[StoredRecord]) -> list[bytes]:
        """The bodies of *records*; `Missing` if one is not there."""
        pk, found = partition(key), {}
        for keys in _requests(generation, records):
            for item in self._table.get_many(item_key(pk, sk) for sk in keys):
                found[item["sk"]["S"]] = item["body"]["B"]
        bodies = []
        for record in records:
            if not record.parts:
                bodies.append(record.payload)
                continue
            keys = part_keys(generation, record.payload.decode(), record.parts)
            if not found.keys() >= set(keys):
                raise Missing
            bodies.append(b"".join(found[sk] for sk in keys))
        return bodies


def parts_of(body: bytes) -> int:
    """In how many items *body* lies; 0 if it goes with its record."""
    return 0 if len(body) <= INLINE else -(-len(body) // PART)


def part_items(
    key: Key, generation: str, name: str, body: bytes, remove_after: int | None
) -> Iterator[Item]:
    """The items that hold *body*."""
    pk = partition(key)
    for number, sk in enumerate(part_keys(generation, name, parts_of(body))):
        part = body[number * PART : (number + 1) * PART]
        yield {**item_key(pk, sk), "body": {"B": part}, **removal(remove_after)}


def _requests(generation: str, records: list[StoredRecord]) -> Iterator[list[str]]:
    """The keys of all parts, in portions that an answer has room for."""
    keys: list[str] = []
    size = 0
    for record in records:
        if not record.parts:
            continue
        for sk in part_keys(generation, record.payload.decode(), record.parts):
            keys.append(sk)
            size += min(record.size, PART)
            if size > BYTES_AT_ONCE or len(keys) == MOST_READS:
                yield keys
                keys, size = [], 0
    if keys:
        yield keys


# -- records ---------------------------------------------------------------------------------------


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
            stored = self._heads.load(key)
            head = None if stored is None else decide.visible(stored.head, self._table.clock.now())
            if stored is None or head is None:
                return []
            low, high = max(after, head.first - 1), head.seq if upto is None else upto
            try:
                between = self._between(key, stored, low, high, limit, reverse=reverse)
                found = list(islice(between, limit))
                bodies = self._bodies.read(key, stored.generation, found)
            except Missing:
                if seen == (stored.generation, head.first):
                    msg = (
                        f"Records of {key.kind} {key.id!r} are missing in {self._table.where}, and "
                        "nobody has removed them through Limpet. Nothing was changed. Restore the "
                        "table to a point in time before that."
                    )
                    raise StoreCorrupt(msg) from None
                # Compacted or deleted since the head was read: look again.
                seen = stored.generation, head.first
            else:
                return [record.record(body) for record, body in zip(found, bodies, strict=True)]

    def _between(
        self, key: Key, stored: Stored, low: int, high: int, limit: int, *, reverse: bool
    ) -> Iterator[StoredRecord]:
        """The records with entries over *low* up to *high*, in order and each once."""
        head, end = stored.head, min(high, stored.chunked)
        tail = [r for r in stored.tail if r.seq > low and r.start < high]
        if head is None or low >= end:
            yield from tail[::-1] if reverse else tail
            return
        # How many chunks will do for the limit, about; another page costs one more request.
        each = min(head.size / max(head.seq + 1 - head.first, 1), INLINE) + 60
        page = min(int(limit * each / TAIL) + 2, 1_000)
        if reverse:
            yield from tail[::-1]
            yield from self._downward(key, stored, low, end, page)
        else:
            yield from self._upward(key, stored, low, end, page)
            yield from tail

    def _upward(
        self, key: Key, stored: Stored, low: int, high: int, page: int
    ) -> Iterator[StoredRecord]:
        for record in self.chunks(key, stored, after=low, page=page):
            if record.seq <= low:
                continue  # before the first, or in two chunks
            if record.start > low:
                break
            yield record
            low = record.seq
            if low >= high:
                return
        raise Missing

    def _downward(
        self, key: Key, stored: Stored, low: int, high: int, page: int
    ) -> Iterator[StoredRecord]:
        pk, generation = partition(key), stored.generation
        top = chunk_key(generation, high + 1)
        if high < stored.chunked:  # the chunk that holds it may end later
            holding = self._table.query(
                pk, chunk_key(generation, high), chunk_key(generation, END), page=1
            )
            top = next((item["sk"]["S"] for item in holding), top)
        down = self._table.query(pk, chunk_key(generation, 0), top, reverse=True, page=page)
        for record in (r for item in down for r in reversed(unpack_records(item["records"]))):
            if record.start >= high:
                continue
            if record.seq < high:
                break
            yield record
            high = record.start
            if high <= low:
                return
        raise Missing

    def chunks(
        self, key: Key, stored: Stored, *, after: int, page: int | None = None
    ) -> Iterator[StoredRecord]:
        """What is in the chunks that end behind *after*, up to where the tail begins."""
        for item in self._chunk_items(key, stored, after, page):
            yield from unpack_records(item["records"])

    def _chunk_items(
        self, key: Key, stored: Stored, after: int = -1, page: int | None = None
    ) -> Iterator[Item]:
        low = chunk_key(stored.generation, after + 1)
        high = chunk_key(stored.generation, stored.chunked + 1)
        return self._table.query(partition(key), low, high, page=page)

    # -- dropping ----------------------------------------------------------------------------

    def compact(self, key: Key, before: int) -> int:
        """See `Backend.compact`."""
        tried: tuple[str, int, int] | None = None  # generation, the new first number, how many

        def work(attempt: Attempt) -> int:
            nonlocal tried
            stored, now = attempt.stored, self._table.clock.now()
            if attempt.unanswered and tried is not None:
                generation, first, count = tried
                if stored is None or stored.generation != generation:
                    return count  # that journal is gone, and another may have begun
                if stored.head is not None and stored.head.first == first:
                    return count
            head = None if stored is None else decide.visible(stored.head, now)
            if stored is None or stored.head is None or head is None:
                attempt.require_fresh()
                return 0
            # From the first chunk on, also before the first number: what a crash left behind is
            # found again here. The last one holds *before*, or ends there.
            chunks: list[tuple[Item, tuple[StoredRecord, ...]]] = []
            for item in self._chunk_items(key, stored):
                chunks.append((item, unpack_records(item["records"])))
                if chunks[-1][1][-1].seq >= before:
                    break
            there = {r.seq: r for _, records in chunks for r in records}
            there |= {r.seq: r for r in stored.tail}
            gone = [there[seq] for seq in sorted(there) if head.first <= seq < before]
            if not gone:
                attempt.require_fresh()
                return 0
            first, size = gone[-1].seq + 1, head.size - sum(r.size for r in gone)
            new = replace(
                stored,
                head=replace(stored.head, first=first, size=size),
                tail=tuple(r for r in stored.tail if r.seq >= first),
            )
            tried = stored.generation, first, first - head.first
            self._heads.write(attempt, self._heads.prepare(attempt, stored, new))
            with suppress(StoreUnavailable):
                old = [r for r in there.values() if r.seq < first]
                ended = [item for item, records in chunks if records[-1].seq < first]
                self._remove(key, stored, old, ended)
            return first - head.first

        return self._heads.change(key, work)

    def _remove(
        self, key: Key, stored: Stored, old: list[StoredRecord], chunks: list[Item]
    ) -> None:
        """The items of what was dropped; a chunk that is in use in part stays."""
        pk = partition(key)
        long = [(r.payload.decode(), r.parts) for r in old if r.parts]
        self._bodies.remove(key, stored.generation, long)
        for record in old:
            if given_id(record.id) is not None and record not in stored.tail:
                same = {":seq": attribute(record.seq)}  # it may have been given again since
                with suppress(Refused):
                    self._table.delete(
                        item_request(
                            item_key(pk, id_key(stored.generation, record.id)), "#seq = :seq", same
                        )
                    )
        self._table.remove(chunks)
