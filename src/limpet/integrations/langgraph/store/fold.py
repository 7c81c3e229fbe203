"""What a namespace of a store has come to: its entries folded, pure."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from limpet.backends.contract import micros

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.backends.contract import Record
    from limpet.core.journal import AsyncJournal

__all__ = [
    "DELETED",
    "EMBEDDED",
    "EMPTIED",
    "KEPT",
    "PUT",
    "REFRESHED",
    "Fold",
    "StoredItem",
    "embedded",
    "put",
]

# Entry types.
PUT = "put"  # an item, or a new value for it
EMBEDDED = "embedded"  # the vectors of the item that was put right before
DELETED = "deleted"  # an item, by its key
REFRESHED = "refreshed"  # items with a ttl that were read: it counts from now
KEPT = "kept"  # an item as it was, written again by a compaction
EMPTIED = "emptied"  # a compaction found nothing to keep


class StoredItem(Struct, frozen=True):
    """An item as it is stored. Times are microseconds; *ttl* counts from the last put or read."""

    value: dict[str, Any]
    created: int
    updated: int
    size: int  # bytes that it takes in the journal
    ttl: int | None = None
    expires: int | None = None
    vectors: dict[str, bytes] = {}  # by the path of the text: numbers of four bytes, little-endian

    def is_there(self, now: int) -> bool:
        """Whether it has not expired."""
        return self.expires is None or self.expires > now

    def is_read_long_since(self, now: int) -> bool:
        """Whether it has a ttl of which over a hundredth has passed.

        A read that comes sooner writes nothing: most reads then cost no write.
        """
        if self.ttl is None or self.expires is None:
            return False
        return now - (self.expires - self.ttl) > self.ttl // 100

    def entries(self, key: str) -> Iterator[tuple[str, Any]]:
        """What a compaction writes to keep it."""
        body = {"key": key, "value": self.value, "created": self.created, "updated": self.updated}
        if self.ttl is not None:
            body |= {"ttl": self.ttl / 1e6, "expires": self.expires}
        yield KEPT, body
        if self.vectors:
            yield embedded(key, self.vectors)


def put(key: str, value: Any, ttl: float | None) -> tuple[str, Any]:
    """The entry for an item that is put; *ttl* in seconds."""
    body = {"key": key, "value": value}
    return PUT, body if ttl is None else body | {"ttl": ttl}


def embedded(key: str, vectors: dict[str, bytes]) -> tuple[str, Any]:
    """The entry for the *vectors* of an item that is put right before, in the same record."""
    texts = {path: base64.b64encode(vector).decode() for path, vector in vectors.items()}
    return EMBEDDED, {"key": key, "vectors": texts}


class Fold:
    """The items of a namespace, in the order in which they first came, up to entry *seq*.

    *at* is the time of the record that ends there; *dead*, how many entries hold what was replaced
    or deleted since.
    """

    def __init__(self, incarnation: str = "", seq: int = 0) -> None:
        self.incarnation = incarnation
        self.seq = seq
        self.at = 0
        self.dead = 0
        self.items: dict[str, StoredItem] = {}

    def take(self, journal: AsyncJournal, record: Record) -> None:
        """Apply a *record*, which comes next; `Unreadable` if it is not what is written here."""
        pairs = journal.pairs(record)
        size = len(record.body) // max(len(pairs), 1)
        for seq, (type_, body) in enumerate(pairs, record.seq - record.count + 1):
            try:
                self._take(type_, body, record.at, size)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                why = f"it is not what is stored as {type_!r} ({type(error).__name__}: {error})."
                raise journal.unreadable(seq, why) from error
        self.seq, self.at = record.seq, record.at

    def _take(self, type_: str, body: Any, at: int, size: int) -> None:
        items = self.items
        if type_ == PUT:
            key, ttl = body["key"], body.get("ttl")
            ttl = None if ttl is None else micros(ttl)
            before = items.get(key)
            self.dead += before is not None
            if before is not None and not before.is_there(at):
                del items[key]  # it comes anew, and last
                before = None
            items[key] = StoredItem(
                body["value"],
                at if before is None else before.created,
                at,
                size,
                ttl,
                None if ttl is None else at + ttl,
            )
        elif type_ == KEPT:
            ttl = body.get("ttl")
            items[body["key"]] = StoredItem(
                body["value"],
                body["created"],
                body["updated"],
                size,
                None if ttl is None else micros(ttl),
                body.get("expires"),
            )
        elif type_ == EMBEDDED:
            item = items[body["key"]]
            vectors = {
                path: base64.b64decode(text, validate=True)
                for path, text in body["vectors"].items()
            }
            items[body["key"]] = structs.replace(item, vectors=vectors, size=item.size + size)
        elif type_ == DELETED:
            self.dead += items.pop(body["key"], None) is not None
        elif type_ == REFRESHED:
            for key in body["keys"]:
                read = items.get(key)
                # What has expired before it was read stays so, whoever did not see that yet.
                if read is not None and read.ttl is not None and read.is_there(at):
                    items[key] = structs.replace(read, expires=at + read.ttl)
