"""What is stored under which key; lua/common.lua describes the fields of a journal's hash."""

from __future__ import annotations

import struct
from binascii import a2b_base64
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import msgspec

from limpet.backends import decide
from limpet.backends.contract import Head, Lease, Record
from limpet.backends.redis.servers import slot_of

if TYPE_CHECKING:
    from limpet.backends.contract import Key

__all__ = ["Index", "Keys", "body_of", "decoded_head", "decoded_record", "format_key"]


class Index(NamedTuple):
    """The part of a tenant's and kind's index that one shard has."""

    slot: int
    members: bytes
    kinds: bytes
    kind: bytes  # the index's member of the kinds


class Keys:
    """Keys are ``PREFIX:{SHARD}:WHAT:TENANT/KIND/ID``; all keys of a shard are in one hash slot."""

    def __init__(self, prefix: str, shards: int) -> None:
        self.prefix = prefix
        self.shards = shards
        self._starts = [f"{prefix}:{{{shard}}}:" for shard in range(shards)]
        self._slots = [slot_of(start.encode()) for start in self._starts]

    def shard(self, key: Key) -> int:
        """The shard that *key* belongs to, for ever."""
        return crc32("/".join(key).encode()) % self.shards if self.shards > 1 else 0

    def slot(self, key: Key) -> int:
        """The hash slot of the journal *key*."""
        return self._slots[self.shard(key)]

    def journal(self, key: Key) -> bytes:
        """The hash that is the journal *key*."""
        kind = _kind(key.tenant, key.kind)
        return f"{self._starts[self.shard(key)]}journal:{kind}/{key.id}".encode()

    def index(self, tenant: str, kind: str, shard: int) -> Index:
        """The part of an index that *shard* has."""
        start, name = self._starts[shard], _kind(tenant, kind)
        return Index(
            self._slots[shard],
            f"{start}index:{name}".encode(),
            f"{start}kinds".encode(),
            name.encode(),
        )

    def indexes(self, tenant: str, kind: str) -> list[Index]:
        """All parts of an index."""
        return [self.index(tenant, kind, shard) for shard in range(self.shards)]

    def kinds(self) -> list[tuple[int, bytes]]:
        """Slot and key of the kinds that each shard has."""
        return [
            (slot, f"{start}kinds".encode())
            for slot, start in zip(self._slots, self._starts, strict=True)
        ]

    @staticmethod
    def tenant_and_kind(member: bytes) -> tuple[str, str]:
        """What a member of the kinds stands for."""
        tenant, _, kind = member.decode().rpartition("/")
        return tenant.replace("%2F", "/").replace("%25", "%"), kind


def format_key(prefix: str) -> bytes:
    """The key that says that there is a store, and of what format."""
    return f"{prefix}:format".encode()


def _kind(tenant: str, kind: str) -> str:
    """Tenant and kind with one slash between them, whatever is in the tenant's name."""
    return f"{tenant.replace('%', '%25').replace('/', '%2F')}/{kind}"


# -- records and heads -----------------------------------------------------------------------------

#: Time, count and whether there is an id, before the body.
_RECORD = struct.Struct(">QIB")


def decoded_record(seq: int, stored: bytes, id_: bytes | None = None) -> Record:
    """The record with the number *seq*."""
    at, count, _ = _RECORD.unpack_from(stored)
    return Record(seq, count, at, body_of(stored), None if id_ is None else id_.decode())


def body_of(stored: bytes) -> bytes:
    """The body of a record."""
    return stored[_RECORD.size :]


class _StoredHead(msgspec.Struct):
    """The head of a journal; what it remembers of calls is for the scripts alone."""

    incarnation: str
    seq: int
    first: int
    size: int
    created: int
    updated: int
    ttl: int | None = None
    expires: int | None = None
    status: str | None = None
    labels: dict[str, str] = {}
    meta: str | None = None
    note: str | None = None  # in base64: the scripts' texts are read as UTF-8
    holder: str = ""
    epoch: int | None = None
    until: int = 0


_decode = msgspec.msgpack.Decoder(_StoredHead).decode


def decoded_head(key: Key, stored: bytes, now: int) -> Head | None:
    """The head of the journal *key* as readers see it."""
    head = _decode(stored)
    return decide.visible(
        Head(
            key,
            head.incarnation,
            head.seq,
            head.first,
            head.size,
            head.created,
            head.updated,
            head.ttl,
            head.expires,
            head.status,
            head.labels,
            None if head.meta is None else head.meta.encode(),
            None if head.epoch is None else Lease(head.holder, head.epoch, head.until),
            None if head.note is None else a2b_base64(head.note),
        ),
        now,
    )
