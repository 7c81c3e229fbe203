"""What lies where in the table: partitions, heads with their tails, chunks, parts.

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

from limpet.backends.contract import Head, Key, Lease, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "Change",
    "Item",
    "Journal",
    "Kept",
    "chunk_key",
    "head_key",
    "id_key",
    "index_item",
    "index_key",
    "index_partition",
    "item_key",
    "made_token",
    "pack_chunk",
    "pack_record",
    "part_keys",
    "partition",
    "split_index",
    "unpack_chunk",
]

Item = dict[str, Any]

#: The version of this layout; a store that says more was written by a newer release.
FORMAT = 1

#: A tail of more bytes than this is moved to a chunk. The head with it stays under 4 KB: it is
#: written with each append, and pays by the kilobyte.
TAIL = 3_400

#: Records in a tail at the most: an update that moves them all away must name each.
MOST = 32

#: A longer body does not go into the tail, but into items of its own.
INLINE = 3_000

#: Bytes of a body in one item, which may have 400 KB with its key.
PART = 390_000

#: The attribute that DynamoDB's own removal goes by.
REMOVE_AFTER = "remove_after"

# count, time, number of parts, size of the body; then the body, or the name of its parts
_RECORD = struct.Struct("<IqHI")
# number of the last entry, length of the mark, length of the record; then the mark, the record
_LINK = struct.Struct("<QHI")


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
    return {**index_key(key), **lasting(remove_after)}


def lasting(remove_after: int | None) -> Item:
    """The attribute that says from when on DynamoDB may remove an item, if ever."""
    return {} if remove_after is None else {REMOVE_AFTER: {"N": str(remove_after)}}


def chunk_key(gen: str, seq: int, token: str = "") -> str:
    """Of the chunk that ends at *seq*; without *token*, what is before all that end there."""
    return f"{gen}/r/{seq:016}/{token}"


def id_key(gen: str, id_: str) -> str:
    return f"{gen}/i/{id_}"


def part_keys(gen: str, name: str, parts: int) -> list[str]:
    return [f"{gen}/b/{name}/{number:05}" for number in range(parts)]


def made_token(size: int = 9) -> str:
    """A name that nobody else makes; of no special characters."""
    return urlsafe_b64encode(os.urandom(size)).decode().rstrip("=")


# -- records ---------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """A record as it is kept in a tail or a chunk.

    *mark* is ``=`` and the id that a caller gave, or a token of our own. *payload* is the body, or
    with *parts* the name of the items that hold it.
    """

    seq: int
    entries: int
    at: int
    mark: str
    parts: int
    size: int
    payload: bytes

    @property
    def start(self) -> int:
        return self.seq - self.entries

    @property
    def id(self) -> str | None:
        return self.mark[1:] if self.mark[0] == "=" else None

    @property
    def weight(self) -> int:
        """What it takes up in a tail, about: its mark is there twice."""
        return 2 * len(self.mark.encode()) + len(self.payload) + 32

    def record(self, body: bytes) -> Record:
        return Record(self.seq, self.entries, self.at, body, self.id)


def pack_record(kept: Kept) -> bytes:
    return _RECORD.pack(kept.entries, kept.at, kept.parts, kept.size) + kept.payload


def pack_chunk(records: Iterable[Kept]) -> bytes:
    pieces: list[bytes] = []
    for kept in records:
        mark = kept.mark.encode()
        body = pack_record(kept)
        pieces += (_LINK.pack(kept.seq, len(mark), len(body)), mark, body)
    return b"".join(pieces)


def unpack_chunk(item: Item) -> list[Kept]:
    data: bytes = item["records"]["B"]
    found, place = [], 0
    while place < len(data):
        seq, mark, length = _LINK.unpack_from(data, place)
        place += _LINK.size
        count, at, parts, size = _RECORD.unpack_from(data, place + mark)
        payload = data[place + mark + _RECORD.size : place + mark + length]
        found.append(
            Kept(seq, count, at, data[place : place + mark].decode(), parts, size, payload)
        )
        place += mark + length
    return found


def _tail(item: Item) -> dict[str, Kept]:
    tail, late = _map(item, "tail"), _map(item, "late")
    found = {}
    for mark, number in _map(item, "nums").items():
        data = tail[mark]["B"]
        count, at, parts, size = _RECORD.unpack_from(data)
        if mark in late:
            at = int(late[mark]["N"])
        found[mark] = Kept(int(number["N"]), count, at, mark, parts, size, data[_RECORD.size :])
    return found


# -- heads -----------------------------------------------------------------------------------------


class Journal(Struct, frozen=True):
    """A head item, with the newest records in its tail. Without records *seq* is 0."""

    rev: str  # new with each change of what an append must know: all but records, labels, lease
    gen: str  # never used twice: what a former life of the journal left behind is not mistaken
    seq: int
    floor: int
    stored: int  # records up to this number are in chunks
    size: int
    created: int
    updated: int
    life: int | None
    expires: int | None
    keep: int | None  # no item of the journal is removed by DynamoDB before this, in seconds
    remove_after: int | None
    status: str | None
    labels: dict[str, str]
    holder: str
    epoch: int | None
    until: int
    token: str  # of the call that acquired the lease
    past: int  # the epoch of a lease that was there before, in a former life
    tail: dict[str, Kept]
    items: bool  # whether there are chunks, parts or ids
    named: bool  # whether there are ids among them
    touch: str | None  # of whoever is changing `remove_after` of the items
    pending: list[str]  # bodies of many parts that are being written
    trash: list[str]  # generations whose items are still to be removed

    @classmethod
    def of(cls, item: Item) -> Journal:
        return cls(
            rev=item["rev"]["S"],
            gen=item["gen"]["S"],
            seq=_number(item, "seq") or 0,
            floor=_number(item, "floor") or 0,
            stored=_number(item, "stored") or 0,
            size=_number(item, "size") or 0,
            created=_number(item, "created") or 0,
            updated=_number(item, "updated") or 0,
            life=_number(item, "life"),
            expires=_number(item, "expires"),
            keep=_number(item, "keep"),
            remove_after=_number(item, REMOVE_AFTER),
            status=_text(item, "status"),
            labels={name: value["S"] for name, value in _map(item, "labels").items()},
            holder=_text(item, "holder") or "",
            epoch=_number(item, "epoch"),
            until=_number(item, "until") or 0,
            token=_text(item, "token") or "",
            past=_number(item, "past") or 0,
            tail=_tail(item),
            items="items" in item,
            named="named" in item,
            touch=_text(item, "touch"),
            pending=item["pending"]["SS"] if "pending" in item else [],
            trash=item["trash"]["SS"] if "trash" in item else [],
        )

    @property
    def leaves(self) -> bool:
        """Whether there is more of it than the head."""
        return self.items or bool(self.pending)

    def leased(self, now: int) -> bool:
        return self.until > now

    def live(self, now: int) -> bool:
        """Whether it is there: it has records, and has not expired."""
        return self.seq > 0 and not self.expired(now)

    def expired(self, now: int) -> bool:
        return self.expires is not None and self.expires <= now and not self.leased(now)

    def lease(self, now: int) -> Lease | None:
        if self.epoch is None or not self.leased(now):
            return None
        return Lease(self.holder, self.epoch, self.until)

    def head(self, key: Key, now: int) -> Head:
        return Head(
            key=key,
            seq=self.seq,
            floor=self.floor,
            size=self.size,
            created=self.created,
            updated=self.updated,
            ttl=self.life,
            expires=self.expires,
            status=self.status,
            labels=self.labels,
            lease=self.lease(now),
        )

    def in_order(self) -> list[Kept]:
        """The tail, oldest first."""
        return sorted(self.tail.values())

    def attributes(self) -> Item:
        """What a head says of its records; not of its lease, nor of what is under way."""
        return {
            **{name: getattr(self, name) for name in _OF_RECORDS},
            "items": self.items or None,
            "labels": {name: attribute(value) for name, value in self.labels.items()},
            "tail": {mark: attribute(pack_record(kept)) for mark, kept in self.tail.items()},
            "nums": {mark: attribute(kept.seq) for mark, kept in self.tail.items()},
            "late": {},
        }


_OF_RECORDS = (
    *("rev", "gen", "seq", "floor", "stored", "size", "created", "updated"),
    *("life", "expires", "keep", "remove_after", "status"),
)


#: What a head is made of but for its tail, as a projection: for looking at many.
_WITHOUT_TAIL = ("pk", *(name for name in Journal.__struct_fields__ if name != "tail"))
HEAD_ONLY: Item = {
    "ProjectionExpression": ", ".join(f"#{name}" for name in _WITHOUT_TAIL),
    "ExpressionAttributeNames": {f"#{name}": name for name in _WITHOUT_TAIL},
}


def _number(item: Item, name: str) -> int | None:
    return int(item[name]["N"]) if name in item else None


def _text(item: Item, name: str) -> str | None:
    return item[name]["S"] if name in item else None


def _map(item: Item, name: str) -> Item:
    return item[name]["M"] if name in item else {}


# -- changes ---------------------------------------------------------------------------------------


class Change:
    """An update of one item in the making: what becomes of it, and on which conditions.

    Attributes are written ``#name``, so that none is taken for a word of DynamoDB's language.
    """

    def __init__(self, key: Item) -> None:
        self.key = key
        self._plain: dict[str, Any] = {}
        self._set: list[str] = []
        self._remove: list[str] = []
        self._sets: dict[str, list[str]] = {"ADD": [], "DELETE": []}
        self._when: list[str] = []
        self._names: dict[str, str] = {}
        self._values: Item = {}

    def put(self, **attributes: Any) -> None:
        """Set attributes to plain values, None to remove them; what was said before is undone."""
        self._plain |= attributes

    def set(self, expression: str, **values: Any) -> None:
        """``#seq = #seq + :count``, with *values* by name."""
        self._set.append(expression)
        self._let(values)

    def remove(self, *paths: str) -> None:
        self._remove += paths

    def add_to(self, name: str, texts: list[str]) -> None:
        """Add to a set of texts."""
        self._sets["ADD"].append(f"#{name} :{name}")
        self._values[f":{name}"] = {"SS": texts}

    def take_from(self, name: str, texts: list[str]) -> None:
        """Take from a set of texts."""
        self._sets["DELETE"].append(f"#{name} :{name}")
        self._values[f":{name}"] = {"SS": texts}

    def when(self, condition: str, **values: Any) -> None:
        """Make it only if this holds, with all else that must."""
        self._when.append(condition)
        self._let(values)

    def name(self, text: str) -> str:
        """A placeholder for *text* as a key in a map."""
        place = f"#{len(self._names)}"
        self._names[place] = text
        return place

    def _let(self, values: Item) -> None:
        for name, value in values.items():
            self._values[f":{name}"] = attribute(value)

    def parameters(self) -> Item:
        """As an UpdateItem, or an update in a transaction, has it."""
        sets, removes, values = list(self._set), list(self._remove), dict(self._values)
        for name, value in self._plain.items():
            if value is None:
                removes.append(f"#{name}")
            else:
                sets.append(f"#{name} = :new_{name}")
                values[f":new_{name}"] = attribute(value)
        actions = {"SET": sets, "REMOVE": removes, **self._sets}
        said = " ".join(f"{verb} {', '.join(them)}" for verb, them in actions.items() if them)
        made = self._with(said, values)
        if said:
            made["UpdateExpression"] = said
        return made

    def check(self) -> Item:
        """As a transaction has it that checks the conditions, or a removal on them."""
        return self._with("", self._values)

    def _with(self, actions: str, values: Item) -> Item:
        when = " AND ".join(self._when)
        made: Item = {"Key": self.key, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        if when:
            made["ConditionExpression"] = when
        names = self._names | {name: name[1:] for name in _attributes(f"{actions} {when}")}
        if names:
            made["ExpressionAttributeNames"] = names
        if values:
            made["ExpressionAttributeValues"] = values
        return made


@lru_cache(maxsize=512)
def _attributes(expression: str) -> list[str]:
    return list(set(re.findall(r"#[a-z_]+", expression)))


def attribute(value: Any) -> Item:
    """A plain value as DynamoDB has it; a dict is a map, of values that already are."""
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int):
        return {"N": str(value)}
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, bytes):
        return {"B": value}
    return {"M": value}


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
