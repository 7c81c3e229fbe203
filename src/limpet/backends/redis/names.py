"""What things are called on the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from limpet.backends.redis.servers import slot_of

if TYPE_CHECKING:
    from limpet.backends.contract import Key

__all__ = ["Index", "Names"]


class Index(NamedTuple):
    """The part of a tenant's and kind's index that one shard has."""

    slot: int
    members: bytes
    kinds: bytes
    kind: bytes  # the index's member of the kinds


class Names:
    """Keys are ``PREFIX:{SHARD}:WHAT:TENANT/KIND/ID``; all keys of a shard are in one hash slot."""

    def __init__(self, prefix: str, shards: int) -> None:
        self.prefix = prefix
        self.shards = shards
        self._starts = [f"{prefix}:{{{shard}}}:" for shard in range(shards)]
        self._slots = [slot_of(start.encode()) for start in self._starts]

    @property
    def format(self) -> bytes:
        """The key that says that there is a store, and of what format."""
        return f"{self.prefix}:format".encode()

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


def _kind(tenant: str, kind: str) -> str:
    """Tenant and kind with one slash between them, whatever is in the tenant's name."""
    return f"{tenant.replace('%', '%25').replace('/', '%2F')}/{kind}"
