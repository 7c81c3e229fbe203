"""What lies where in the table: keys, records, the head item of a journal, and how it is changed.

``docs/dynamodb.md`` has the picture.
"""

from __future__ import annotations

import os
import re
import struct
from base64 import urlsafe_b64encode
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from limpet.backends import decide
from limpet.backends.contract import Head, Key, Lease, Record, given_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "FORMAT",
    "LAST_ID",
    "REMOVE_AFTER",
    "WITHOUT_TAIL",
    "Item",
    "Stored",
    "StoredRecord",
    "attribute",
    "chunk_key",
    "current",
    "ended",
    "head_key",
    "head_update",
    "id_key",
    "in_groups",
    "index_item",
    "index_key",
    "index_partition",
    "item_key",
    "item_request",
    "new_token",
    "pack_records",
    "part_keys",
    "partition",
    "removal",
    "split_index",
    "stored_head",
    "unpack_records",
]

Item = dict[str, Any]

#: The version of this layout; a store that says more was written by a newer release.
FORMAT = 1

#: The attribute by which DynamoDB removes items itself (its "time to live"), in seconds.
REMOVE_AFTER = "remove_after"

#: Behind every id: the last code point, which no id contains.
LAST_ID = "\U0010ffff"


# -- keys ------------------------------------------------------------------------------------------


def index_partition(tenant: str, kind: str) -> str:
    """Where the ids of one tenant and kind are listed. A kind contains no slash."""
    return f"{tenant.replace('%', '%25').replace('/', '%2F')}/{kind}"


def split_index(text: str) -> tuple[str, str]:
    """Tenant and kind of an `index_partition`."""
    tenant, _, kind = text.partition("/")
    return tenant.replace("%2F", "/").replace("%25", "%"), kind


def partition(key: Key) -> str:
    """Where all of one journal lies."""
    return f"{index_partition(key.tenant, key.kind)}/{key.id}"


def item_key(pk: str, sk: str) -> Item:
    return {"pk": {"S": pk}, "sk": {"S": sk}}


def head_key(key: Key) -> Item:
    return item_key(partition(key), "head")


def index_key(key: Key) -> Item:
    return item_key(index_partition(key.tenant, key.kind), key.id)


def index_item(key: Key, remove_after: int | None) -> Item:
    return {**index_key(key), **removal(remove_after)}


def removal(remove_after: int | None) -> Item:
    """The attribute that says from when on DynamoDB may remove an item, if ever."""
    return {} if remove_after is None else {REMOVE_AFTER: {"N": str(remove_after)}}


def chunk_key(generation: str, seq: int, token: str = "") -> str:
    """Of the chunk that ends at *seq*; without *token*, what is before all that end there."""
    return f"{generation}/r/{seq:016}/{token}"


def id_key(generation: str, id_: str) -> str:
    return f"{generation}/i/{id_}"


def part_keys(generation: str, name: str, parts: int) -> list[str]:
    return [f"{generation}/b/{name}/{number:05}" for number in range(parts)]


def new_token(size: int = 9) -> str:
    """A name that nobody else makes; of no special characters."""
    return urlsafe_b64encode(os.urandom(size)).decode().rstrip("=")


# -- records ---------------------------------------------------------------------------------------


class StoredRecord(NamedTuple):
    """A record as it lies in a tail or a chunk.

    *payload* is the body, or with *parts* the name of the items that hold it.
    """

    seq: int
    entries: int
    at: int
    id: str  # the caller's, or a generated one
    size: int  # of the body
    parts: int
    payload: bytes

    @property
    def start(self) -> int:
        """The number of the last entry before it."""
        return self.seq - self.entries

    @property
    def weight(self) -> int:
        """What it takes up in a tail, about."""
        return _RECORD.size + len(self.id.encode()) + len(self.payload) + 4

    def record(self, body: bytes) -> Record:
        return Record(self.seq, self.entries, self.at, body, given_id(self.id))


# number, count, time, size of the body, number of parts, length of the id; then id and payload
_RECORD = struct.Struct("<QIqIHH")


def pack_records(records: Iterable[StoredRecord]) -> Item:
    """*records* as a list attribute."""
    packed = []
    for record in records:
        id_ = record.id.encode()
        fixed = (record.seq, record.entries, record.at, record.size, record.parts, len(id_))
        packed.append({"B": _RECORD.pack(*fixed) + id_ + record.payload})
    return {"L": packed}


def unpack_records(value: Item) -> tuple[StoredRecord, ...]:
    """The records of a list attribute."""
    records = []
    for one in value["L"]:
        data: bytes = one["B"]
        seq, entries, at, size, parts, length = _RECORD.unpack_from(data)
        end = _RECORD.size + length
        id_ = data[_RECORD.size : end].decode()
        records.append(StoredRecord(seq, entries, at, id_, size, parts, data[end:]))
    return tuple(records)


# -- heads -----------------------------------------------------------------------------------------


class Stored(Struct, frozen=True):
    """A head item: the journal's head, its newest records, and how the others are stored.

    Every change of it gives it another *rev*, and is made on the condition of the one before.
    """

    rev: str
    #: The keys of the journal's other items begin with it. It is never used twice in a table, as
    #: an incarnation may be: that of a copy comes from elsewhere, and may come again.
    generation: str
    head: Head | None = None  # None: neither a record nor a lease
    tail: tuple[StoredRecord, ...] = ()
    items: bool = False  # whether there may be other items: chunks, parts, ids
    ids: bool = False  # whether there are ids among them
    lease_token: str = ""  # of the call that took the lease
    last_epoch: int = 0  # of the leases on journals that were here before
    remove_after: int | None = None  # when DynamoDB may remove this item
    items_remove_after: int | None = None  # no other item may be removed before this
    stamping: str | None = None  # the token of whoever gives the other items another time
    uploads: frozenset[str] = frozenset()  # large bodies that are being written
    garbage: frozenset[str] = frozenset()  # generations whose items are still to be removed

    @property
    def seq(self) -> int:
        return 0 if self.head is None else self.head.seq

    @property
    def chunked(self) -> int:
        """Records up to this number are in chunks, the others in the tail."""
        return self.tail[0].start if self.tail else self.seq

    @property
    def epoch(self) -> int:
        """The newest epoch that was ever given out here."""
        lease = None if self.head is None else self.head.lease
        return self.last_epoch if lease is None else max(self.last_epoch, lease.epoch)


def current(stored: Stored | None, now: int) -> Stored:
    """What a write begins from: *stored*, or an empty head if there is none or it has expired."""
    if stored is None:
        return Stored(rev="", generation=new_token())
    if stored.head is not None and decide.live(stored.head, now) is None:
        return ended(stored)
    return stored


def ended(stored: Stored) -> Stored:
    """What is left of a journal that is deleted, or makes room for a new one: an empty head.

    It knows the last epoch, so that none is given out again, and what is still to be removed.
    """
    leaves = stored.items or stored.uploads
    return Stored(
        rev="",
        generation=new_token(),
        last_epoch=stored.epoch,
        garbage=stored.garbage | {stored.generation} if leaves else stored.garbage,
    )


def stored_head(key: Key, item: Item) -> Stored:
    """The head *item* of the journal *key*."""
    labels = item["labels"]["M"] if "labels" in item else {}
    found = {name: _plain(value) for name, value in item.items() if name not in ("labels", "tail")}
    get = found.get
    head = None
    if "seq" in found:
        lease = None
        if "epoch" in found:
            lease = Lease(found["holder"], found["epoch"], found["until"])
        head = Head(
            key=key,
            incarnation=get("incarnation", ""),
            seq=found["seq"],
            first=found["first"],
            size=found["size"],
            created=found["created"],
            updated=found["updated"],
            ttl=get("ttl"),
            expires=get("expires"),
            status=get("status"),
            labels={name: value["S"] for name, value in labels.items()},
            meta=get("meta"),
            lease=lease,
            note=get("note"),
        )
    return Stored(
        rev=get("rev", ""),
        generation=found["generation"],
        head=head,
        tail=unpack_records(item["tail"]) if "tail" in item else (),
        items=get("items", False),
        ids=get("ids", False),
        lease_token=get("lease_token", ""),
        last_epoch=get("last_epoch", 0),
        remove_after=get(REMOVE_AFTER),
        items_remove_after=get("items_remove_after"),
        stamping=get("stamping"),
        uploads=frozenset(get("uploads", ())),
        garbage=frozenset(get("garbage", ())),
    )


def _attributes(stored: Stored) -> Item:
    """What a head item says, but for its key and its tail."""
    head = stored.head
    values: Item = {
        "rev": stored.rev,
        "generation": stored.generation,
        "items": stored.items or None,
        "ids": stored.ids or None,
        "lease_token": stored.lease_token or None,
        "last_epoch": stored.last_epoch or None,
        REMOVE_AFTER: stored.remove_after,
        "items_remove_after": stored.items_remove_after,
        "stamping": stored.stamping,
        "uploads": stored.uploads or None,
        "garbage": stored.garbage or None,
    }
    if head is not None:
        values |= {
            "incarnation": head.incarnation or None,
            "seq": head.seq,
            "first": head.first,
            "size": head.size,
            "created": head.created,
            "updated": head.updated,
            "ttl": head.ttl,
            "expires": head.expires,
            "status": head.status,
            "labels": head.labels or None,
            "meta": head.meta,
            "note": head.note,
        }
        if head.lease is not None:
            values |= {
                "holder": head.lease.holder,
                "epoch": head.lease.epoch,
                "until": head.lease.until,
            }
    return {name: attribute(value) for name, value in values.items() if value is not None}


#: For looking at many heads, without their tails: a projection. It leaves out the rev as well, so
#: that nothing can be written on the ground of what is not whole.
_LISTED = (
    *("pk", "generation", "incarnation", "seq", "first", "size", "created", "updated", "ttl"),
    *("expires", "status", "labels", "meta", "note", "holder", "epoch", "until"),
    *(REMOVE_AFTER, "uploads", "garbage"),
)
WITHOUT_TAIL: Item = {
    "ProjectionExpression": ", ".join(f"#{name}" for name in _LISTED),
    "ExpressionAttributeNames": {f"#{name}": name for name in _LISTED},
}


# -- requests --------------------------------------------------------------------------------------


def head_update(key: Key, old: Stored | None, new: Stored) -> Item:
    """The update that makes *new* of *old*, on the condition that it is still there as it was."""
    before, after = {} if old is None else _attributes(old), _attributes(new)
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    sets = [f"#{name} = :{name}" for name in changed]
    removes = [f"#{name}" for name in before if name not in after]
    had = () if old is None else old.tail
    if not new.tail:
        removes += ["#tail"] if had else []
    elif had and new.tail[: len(had)] == had:
        if len(new.tail) > len(had):  # only what is new is sent
            sets.append("#tail = list_append(#tail, :tail)")
            changed["tail"] = pack_records(new.tail[len(had) :])
    else:
        sets.append("#tail = :tail")
        changed["tail"] = pack_records(new.tail)
    values = {f":{name}": value for name, value in changed.items()}
    if old is None:
        return item_request(head_key(key), "attribute_not_exists(#pk)", values, SET=sets)
    values[":was"] = {"S": old.rev}
    return item_request(head_key(key), "#rev = :was", values, SET=sets, REMOVE=removes)


def item_request(key: Item, when: str, values: Item, **actions: list[str]) -> Item:
    """What an update, a removal or a check of one item says: *actions*, on the condition *when*.

    Attributes are written ``#name`` there, so that none is taken for a word of DynamoDB's language.
    """
    update = " ".join(f"{verb} {', '.join(them)}" for verb, them in actions.items() if them)
    made: Item = {
        "Key": key,
        "ConditionExpression": when,
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        "ExpressionAttributeNames": {f"#{name}": name for name in _names(f"{update} {when}")},
    }
    if update:
        made["UpdateExpression"] = update
    if values:
        made["ExpressionAttributeValues"] = values
    return made


@lru_cache(maxsize=512)
def _names(expression: str) -> frozenset[str]:
    return frozenset(re.findall(r"#([a-z_]+)", expression))


def attribute(value: Any) -> Item:
    """A plain value as DynamoDB has it: text, number, bytes, bool, a set or a dict of texts."""
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int):
        return {"N": str(value)}
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, bytes):
        return {"B": value}
    if isinstance(value, frozenset):
        return {"SS": sorted(value)}
    return {"M": {name: {"S": text} for name, text in value.items()}}


def _plain(value: Item) -> Any:
    ((kind, content),) = value.items()
    return int(content) if kind == "N" else content


def in_groups(items: Iterable[Any], most: int) -> Iterator[list[Any]]:
    """*items* in lists of up to *most*."""
    group: list[Any] = []
    for item in items:
        group.append(item)
        if len(group) == most:
            yield group
            group = []
    if group:
        yield group
