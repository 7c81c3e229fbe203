"""Bodies that are too long for a head's tail: in items of their own, of one part or many."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.backends.dynamodb.errors import Refused
from limpet.backends.dynamodb.layout import (
    INLINE,
    PART,
    Change,
    Item,
    Journal,
    Kept,
    head_key,
    item_key,
    lasting,
    made_token,
    part_keys,
    partition,
)
from limpet.backends.dynamodb.table import MOST_READS
from limpet.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from limpet.backends.contract import Append, Key
    from limpet.backends.dynamodb.effort import Effort
    from limpet.backends.dynamodb.life import Life
    from limpet.backends.dynamodb.table import Table

__all__ = ["Bodies", "Gone", "Upload", "part_items", "parts_of"]

#: A body up to this size is written without telling the head before.
SMALL = 64_000

#: Parts to a request: DynamoDB takes 16 MB.
PARTS_AT_ONCE = 10
BYTES_AT_ONCE = 12_000_000


class Upload(Struct, frozen=True):
    """A body that lies in the table, and is nothing until a record names it."""

    gen: str
    keep: int | None
    name: str
    parts: int
    pending: str | None  # how the head knows of it, if it does


class Gone(Exception):
    """A part is not there: its record has been compacted away, or its journal deleted."""


def parts_of(body: bytes) -> int:
    """In how many items *body* lies; 0 if it goes with its record."""
    return 0 if len(body) <= INLINE else -(-len(body) // PART)


class Bodies:
    """Long bodies, written before their records and read after them."""

    def __init__(self, table: Table, life: Life) -> None:
        self._table = table
        self._life = life

    def write(self, effort: Effort, journal: Journal) -> None:
        """Write the body of an append, unless it is there from an earlier try."""
        self._life.check_untouched(effort.key, journal)
        made = effort.upload
        if made is None or (made.gen, made.keep) != (journal.gen, journal.keep):
            self.take_back(effort)
            effort.upload = self.upload(effort.request, journal)
            effort.deadline = time.monotonic() + self._table.timeout

    def take_back(self, effort: Effort) -> None:
        """Remove a body that was written for nothing; not if a record may name it."""
        made, effort.upload = effort.upload, None
        if made is not None and not effort.in_doubt:
            self.discard(effort.key, made)

    def upload(self, request: Append, journal: Journal) -> Upload:
        """Write the body of *request*; it can be seen once a record names it.

        Of a large one the head is told before, so that `sweep` finds it if no record ever does. A
        small one, left behind by a crash just between the two, goes with its journal.
        """
        key, body, name = request.key, request.body, made_token()

        def one() -> Item:
            nonlocal name
            name = made_token()  # another each time: a try that comes late overwrites nothing
            return next(part_items(key, journal.gen, journal.keep, name, body))

        if len(body) <= SMALL:
            self._table.put(one)
            return Upload(journal.gen, journal.keep, name, 1, None)
        pending = self._announce(request, journal, name)
        in_doubt = self._table.write(
            (
                {"PutRequest": {"Item": item}}
                for item in part_items(key, journal.gen, journal.keep, name, body)
            ),
            most=PARTS_AT_ONCE,
        )
        upload = Upload(journal.gen, journal.keep, name, parts_of(body), pending)
        if in_doubt and journal.keep is not None:
            self.discard(key, upload)
            return self.upload(request, journal)
        return upload

    def _announce(self, request: Append, journal: Journal, name: str) -> str:
        """Tell the head what is coming; and be refused now rather than after all the writing."""
        change = Change(head_key(request.key))
        change.when("#rev = :rev", rev=journal.rev)
        if request.epoch is not None:
            change.when("#epoch = :epoch", epoch=request.epoch)
        if request.expect:
            change.when("#seq = :seq", seq=request.expect)
        pending = f"{self._table.clock.now() // 1_000_000}.{parts_of(request.body)}.{name}"
        change.add_to("pending", [pending])
        self._table.update(change)
        return pending

    def discard(self, key: Key, upload: Upload) -> None:
        """Remove what no record names, as far as that can be done now."""
        with suppress(StoreError, Refused):
            self.remove(key, upload.gen, [(upload.name, upload.parts)])
            if upload.pending is not None:
                self.settled(key, upload.gen, [upload.pending])

    def settled(self, key: Key, gen: str, pending: list[str]) -> None:
        """Let the head forget what was coming."""
        change = Change(head_key(key))
        change.when("#gen = :gen", gen=gen)
        change.take_from("pending", pending)
        self._table.update(change)

    def remove(self, key: Key, gen: str, bodies: Iterable[tuple[str, int]]) -> None:
        """Remove the parts of *bodies*, each a name and how many."""
        pk = partition(key)
        self._table.write(
            {"DeleteRequest": {"Key": item_key(pk, sk)}}
            for name, parts in bodies
            for sk in part_keys(gen, name, parts)
        )

    def of(self, key: Key, gen: str, records: list[Kept]) -> list[bytes]:
        """The bodies of *records*; `Gone` if one is not there."""
        pk, found = partition(key), {}
        for keys in _requests(gen, records):
            for item in self._table.get_many(item_key(pk, sk) for sk in keys):
                found[item["sk"]["S"]] = item["body"]["B"]
        bodies = []
        for kept in records:
            if not kept.parts:
                bodies.append(kept.payload)
                continue
            try:
                parts = [found[sk] for sk in part_keys(gen, kept.payload.decode(), kept.parts)]
            except KeyError:
                raise Gone from None
            bodies.append(b"".join(parts))
        return bodies


def part_items(key: Key, gen: str, keep: int | None, name: str, body: bytes) -> Iterator[Item]:
    """The items that hold *body*."""
    pk = partition(key)
    for number, sk in enumerate(part_keys(gen, name, parts_of(body))):
        part = body[number * PART : (number + 1) * PART]
        yield {**item_key(pk, sk), "body": {"B": part}, **lasting(keep)}


def _requests(gen: str, records: list[Kept]) -> Iterator[list[str]]:
    """The keys of all parts, in portions that a reply has room for."""
    keys: list[str] = []
    size = 0
    for kept in records:
        if not kept.parts:
            continue
        for sk in part_keys(gen, kept.payload.decode(), kept.parts):
            keys.append(sk)
            size += min(kept.size, PART)
            if size > BYTES_AT_ONCE or len(keys) == MOST_READS:
                yield keys
                keys, size = [], 0
    if keys:
        yield keys
