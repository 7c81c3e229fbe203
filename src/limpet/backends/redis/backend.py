"""Redis and Valkey, alone or as clusters: every call that changes something is one Lua script.

*Keys.* A journal is one hash: its head, its records and their ids (``lua/common.lua`` has the
layout). A store on a cluster has `SHARDS` hash slots, and a journal belongs to one of them by its
name; on a lone server all are in one.

*Index.* Each shard has its part of the index: for each tenant and kind a sorted set of ids, in the
very slot of the journals. So the script that begins or deletes a journal also puts it in or takes
it out, and the two can never disagree. Only what expires by itself stays in the index until
`sweep`; scans look at the heads and pass over it. An append names the index only when it begins a
journal (a first call finds that out, a second one does it): while a slot moves to another server of
a cluster, calls that need several keys must wait, and calls that need one are sent on.

*Once.* An answer may be lost on its way, so calls are repeated. Every call that writes has a writer
(of which each is used for one call at a time), a number that grows, and a random token. The last
answer to each writer is kept in the head for two minutes: a call that comes again is answered from
there, and one that comes late, when its writer has gone on, does nothing. That is all that is ever
remembered of calls: one line for each writer, not one for each append.

*Expiry.* The server frees expired journals by itself; the scripts look at the clock all the same,
for a journal is gone to the microsecond, and not while it is leased.
"""

from __future__ import annotations

import re
import struct
import warnings
from typing import TYPE_CHECKING, Any, Self

import msgspec

from limpet.errors import (
    DurabilityWarning,
    MissingExtra,
    NotAStore,
    NotDurable,
    SchemaTooNew,
    StoreCorrupt,
    StoreNotFound,
    StoreReadOnly,
)

try:
    import redis  # noqa: F401 - the modules below need it
except ImportError as missing:
    raise MissingExtra.of("Redis", "redis", "redis") from missing

from limpet.backends.contract import (
    UNSET,
    Append,
    Appended,
    Backend,
    Fact,
    Head,
    Key,
    Lease,
    Page,
    Record,
    conflict,
    fenced,
    held,
    micros,
)
from limpet.backends.redis.calls import Calls
from limpet.backends.redis.durability import choose
from limpet.backends.redis.facts import examine, settings
from limpet.backends.redis.names import Index, Names
from limpet.backends.redis.url import PARAMETERS, Target, check_durability, check_prefix, count
from limpet.backends.url import seconds, url_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from limpet.backends.redis.durability import Barrier, Standing
    from limpet.backends.redis.wire import Word

__all__ = ["RedisBackend"]

FORMAT = 1

#: Hash slots that a store on a cluster uses; of these each server has its share.
SHARDS = 128

#: Bytes that are read at once, and numbers looked at for compaction: others wait meanwhile.
PORTION = 1 << 20
NUMBERS = 5000

#: Heads that are asked for at once.
HEADS = 500

#: Time, count and whether there is an id, before the body.
_RECORD = struct.Struct(">QIB")


class _Head(msgspec.Struct):
    """A head as it is stored; what the scripts remember of calls is theirs."""

    seq: int
    floor: int
    size: int
    created: int
    updated: int
    ttl: int | None = None
    expires: int | None = None
    status: str | None = None
    labels: dict[str, str] = {}
    holder: str = ""
    epoch: int = 0
    until: int = 0


_decode = msgspec.msgpack.Decoder(_Head).decode


class RedisBackend(Backend):
    """Journals on a Redis or Valkey server, or on a cluster of them.

    *durability*: ``full`` (an acknowledged write is on the server's disk), ``second`` (it is within
    a second) or ``none``; what the server cannot give is refused. Without it the server is taken as
    it is, with a warning if that is less than full. *replicas*: how many must have a write before
    it is acknowledged. *prefix*: what all keys begin with. *pool*: connections kept for reuse. What
    begins with *ssl* is redis-py's.
    """

    def __init__(
        self,
        url: str,
        *,
        create: bool = True,
        readonly: bool = False,
        timeout: float = 30.0,
        durability: str | None = None,
        replicas: int = 0,
        prefix: str = "limpet",
        pool: int = 8,
        db: int | None = None,
        ssl_ca_certs: str | None = None,
        ssl_certfile: str | None = None,
        ssl_keyfile: str | None = None,
        ssl_check_hostname: bool | None = None,
    ) -> None:
        super().__init__(url)
        self._readonly = readonly
        self._durability = check_durability(durability)
        self._replicas = count(replicas)
        self._names = Names(check_prefix(prefix), 1)
        timeout = seconds(timeout)
        target = Target(
            url,
            timeout=timeout,
            db=db,
            ssl_ca_certs=ssl_ca_certs,
            ssl_certfile=ssl_certfile,
            ssl_keyfile=ssl_keyfile,
            ssl_check_hostname=ssl_check_hostname,
        )
        self._calls = Calls(self.url, target, timeout=timeout, pool=count(pool))
        try:
            self._open(create=create)
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        _, parameters = url_parameters(url, PARAMETERS)
        return cls(url.partition("?")[0], **(parameters | options))

    # -- opening -------------------------------------------------------------------------------

    def _open(self, *, create: bool) -> None:
        if not self._calls.open() and not self._readonly:
            raise StoreReadOnly(
                f"{self.url} is a replica, which takes no writes. Open its master, "
                "or this one with readonly=true."
            )
        if not self._readonly:
            self._calls.barrier, warning = self._choose(self._calls.standings())
            self._calls.try_disk()
            if warning:
                warnings.warn(warning, DurabilityWarning, stacklevel=2)
        self._names = Names(self._names.prefix, self._shards(create=create))

    def _choose(self, standings: Sequence[Standing]) -> tuple[Barrier | None, str | None]:
        return choose(
            standings,
            self.url,
            durability=self._durability,
            replicas=self._replicas,
            wait=0.8 * self._calls.attempt,
        )

    def _shards(self, *, create: bool) -> int:
        """How many shards the store has; it is made if there is none."""
        key = self._names.format
        try:
            found = self._calls.command(key, "GET", key)
            if found is None and create and not self._readonly:
                shards = SHARDS if self._calls.clustered else 1
                self._calls.command(key, "SET", key, f"limpet {FORMAT} shards {shards}", "NX")
                found = self._calls.command(key, "GET", key)
        except StoreCorrupt as error:
            raise self._not_ours(key) from error
        if found is None:
            raise StoreNotFound(
                f"There is no store at {self.url} with the prefix {self._names.prefix!r}. "
                "Check the names, or open it with create=True."
            )
        words = re.match(rb"limpet (\d+)(?: shards (\d+)$)?", found)
        if words is None:
            raise self._not_ours(key)
        if int(words[1]) > FORMAT:
            raise SchemaTooNew(
                f"{self.url} has format {int(words[1])}, but this version reads up to {FORMAT}. "
                "A newer release made this store: upgrade limpet."
            )
        return int(words[2])

    def _not_ours(self, key: bytes) -> NotAStore:
        return NotAStore(f"{key.decode()} at {self.url} is not ours. Use another prefix=.")

    # -- records -------------------------------------------------------------------------------

    def append(self, request: Append) -> Appended:
        answer = self._write("append", request.key, *_asked(request), begin=request.expect == 0)
        outcome = answer[0]
        if outcome == b"done":
            return Appended(answer[1], answer[2])
        if outcome == b"known":
            return Appended(answer[1], answer[2], repeated=True)
        if outcome == b"fenced":
            raise fenced(request.key)
        raise conflict(request, answer[1])

    def read(
        self,
        key: Key,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
    ) -> list[Record]:
        self._check_open()
        found, ids = self._read(key, after, upto, limit, reverse=reverse)
        return [_record(seq, data, ids.get(seq)) for seq, data in found]

    def bodies(self, key: Key, *, after: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]:
        self._check_open()
        found, _ = self._read(key, after, None, limit, reverse=False)
        return [(seq, data[_RECORD.size :]) for seq, data in found]

    def _read(
        self, key: Key, after: int, upto: int | None, limit: int, *, reverse: bool
    ) -> tuple[list[tuple[int, bytes]], dict[int, bytes]]:
        """Numbers and records as they are stored, and the ids of those that have one."""
        slot, keys = self._names.slot(key), (self._names.journal(key),)
        way = "backward" if reverse else "forward"
        found: list[tuple[int, bytes]] = []
        ids: dict[int, bytes] = {}
        born, low, high = None, after, upto
        while True:
            asked = (low, "" if high is None else high, limit - len(found), way, PORTION)
            created, more, records, given = self._calls.run("read", slot, keys, asked)
            if found and created != born:  # deleted, and perhaps begun anew: so are we
                found, ids, born, low, high = [], {}, None, after, upto
                continue
            born = created
            found += zip(records[::2], records[1::2], strict=True)
            ids.update(zip(given[::2], given[1::2], strict=True))
            if not more or len(found) >= limit:
                return found, ids
            seq, data = found[-1]
            if reverse:
                high = seq - _RECORD.unpack_from(data)[1]
            else:
                low = seq

    def head(self, key: Key) -> Head | None:
        self._check_open()
        keys = (self._names.journal(key),)
        now, stored = self._calls.run("heads", self._names.slot(key), keys, ())
        return _head(key, stored, now) if stored else None

    def scan(
        self,
        tenant: str,
        kind: str,
        *,
        prefix: str = "",
        status: str | None = None,
        labels: Mapping[str, str] | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        self._check_open()
        wanted: list[str] = [] if status is None else ["status", status]
        for name, value in (labels or {}).items():
            wanted += [f"label:{name}", value]
        heads: list[Head] = []
        size = HEADS if wanted else min(limit + 1, HEADS)
        for keys in self._index(tenant, kind, prefix=prefix, after=cursor, size=size):
            heads += self._heads(keys, wanted)
            if len(heads) > limit:
                return Page(heads[:limit], heads[limit - 1].key.id)
        return Page(heads, None)

    def _heads(self, keys: Sequence[Key], wanted: Sequence[str] = ()) -> list[Head]:
        """The heads of those of *keys* that are there and as *wanted*, in the order of *keys*."""
        groups: dict[Key | int, list[Key]] = {}
        for key in keys:
            # In a cluster a call for each journal: while their slot moves, they go one by one.
            groups.setdefault(key if self._calls.clustered else 0, []).append(key)
        found: dict[Key, Head] = {}
        answers = self._calls.run_all(
            "heads",
            [
                (self._names.slot(group[0]), [self._names.journal(key) for key in group], wanted)
                for group in groups.values()
            ],
        )
        for group, (now, *heads) in zip(groups.values(), answers, strict=True):
            for key, stored in zip(group, heads, strict=True):
                if stored:
                    found[key] = _head(key, stored, now)
        return [found[key] for key in keys if key in found]

    def _index(
        self, tenant: str, kind: str, *, prefix: str = "", after: str | None = None, size: int
    ) -> Iterator[list[Key]]:
        """The keys in the index, in order, in lists of about *size*. Some may be gone already.

        The lists grow: whoever asks for more has met many that are.
        """
        start = prefix.encode()
        low = b"[" + start if prefix else b"-"
        high = b"(" + start + b"\xff" if prefix else b"+"  # no id contains this byte
        if after is not None and after.encode() >= start:
            low = b"(" + after.encode()
        parts = self._names.indexes(tenant, kind)
        while True:
            share = size if len(parts) == 1 else 2 * size // len(parts) + 8
            lists = self._members(parts, low, high, share)
            # Beyond the end of a list that was cut there may be ids that we have not seen.
            ends = [members[-1] for members in lists if len(members) == share]
            edge = min(ends, default=None)
            ids = sorted(id_ for members in lists for id_ in members if edge is None or id_ <= edge)
            for first in range(0, len(ids), size):
                yield [Key(tenant, kind, id_.decode()) for id_ in ids[first : first + size]]
            if edge is None:
                return
            low = b"(" + edge
            size = min(2 * size, HEADS)

    def _members(
        self, parts: Sequence[Index], low: bytes, high: bytes, most: int
    ) -> list[list[bytes]]:
        commands = [
            (part.slot, (b"ZRANGE", part.members, low, high, b"BYLEX", b"LIMIT", 0, most))
            for part in parts
        ]
        return self._calls.commands(commands)

    def kinds(self) -> list[tuple[str, str]]:
        return [pair for pair in self._known_kinds() if self.scan(*pair, limit=1).heads]

    def _known_kinds(self) -> list[tuple[str, str]]:
        """What has an index, though perhaps nothing in it is there any more."""
        self._check_open()
        commands = [(slot, (b"SMEMBERS", key)) for slot, key in self._names.kinds()]
        members = {member for answer in self._calls.commands(commands) for member in answer}
        return sorted(map(self._names.tenant_and_kind, members))

    def delete(self, key: Key) -> bool:
        return bool(self._write("delete", key, begin=True)[1])

    def compact(self, key: Key, before: int) -> int:
        dropped, more = 0, 1
        while more:
            _, entries, more = self._write("compact", key, before, NUMBERS)
            dropped += entries
        return dropped

    def sweep(self, limit: int = 1000) -> int:
        self._check_writable()
        swept = 0
        for tenant, kind in self._known_kinds():
            for keys in self._index(tenant, kind, size=HEADS):
                swept += self._sweep(tenant, kind, keys, limit - swept)
                if swept >= limit:
                    return swept
        return swept

    def _sweep(self, tenant: str, kind: str, keys: Sequence[Key], most: int) -> int:
        swept = 0
        for shard in {self._names.shard(key) for key in keys}:
            group = [key for key in keys if self._names.shard(key) == shard]
            index = self._names.index(tenant, kind, shard)
            journals = [self._names.journal(key) for key in group]
            swept += self._calls.run(
                "sweep",
                index.slot,
                (index.members, index.kinds, *journals),
                (index.kind, most - swept, *(key.id for key in group)),
            )
        return swept

    # -- leases --------------------------------------------------------------------------------

    def acquire(self, key: Key, holder: str, ttl: float, *, over: int | None = None) -> Lease:
        answer = self._write("acquire", key, holder, micros(ttl), "" if over is None else over)
        if answer[0] == b"held":
            _, epoch, until, other = answer
            raise held(key, Lease(other.decode(), epoch, until))
        return Lease(holder, answer[1], answer[2])

    def renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        answer = self._write("renew", key, lease.epoch, micros(ttl))
        if answer[0] == b"fenced":
            raise fenced(key)
        return Lease(lease.holder, lease.epoch, answer[2])

    def release(self, key: Key, lease: Lease) -> None:
        self._write("renew", key, lease.epoch, 0)

    # -- the place itself ----------------------------------------------------------------------

    def _write(self, name: str, key: Key, *args: Word, begin: bool = False) -> list[Any]:
        """Run a script on one journal; *begin* if that comes or goes by it, as far as is known."""
        self._check_writable()
        keys = [self._names.journal(key)]

        def indexed() -> tuple[Sequence[bytes], Sequence[Word]]:
            index = self._names.index(key.tenant, key.kind, self._names.shard(key))
            return (index.members, index.kinds), ("name", key.id, "kind", index.kind)

        if begin:
            more_keys, more_args = indexed()
            keys, args = [*keys, *more_keys], (*args, *more_args)
        return self._calls.write(name, self._names.slot(key), keys, *args, begin=indexed)

    def _check_writable(self) -> None:
        self._check_open()
        if self._readonly:
            raise StoreReadOnly(f"{self.url} was opened with readonly=true, and takes no writes.")

    def facts(self, *, deep: bool = False) -> list[Fact]:
        self._check_open()
        names, standings = self._names, self._calls.standings()
        facts = settings(standings, self._promise(standings), names.shards, names.prefix)
        if deep:
            return facts + examine(self._all_heads(), self.head, self.read)
        totals: dict[str, int] = {}
        for tenant, kind in self._known_kinds():
            parts = names.indexes(tenant, kind)
            sizes = self._calls.commands([(part.slot, (b"ZCARD", part.members)) for part in parts])
            totals[kind] = totals.get(kind, 0) + sum(sizes)
        return facts + [Fact.of_kind(kind, total) for kind, total in sorted(totals.items())]

    def _promise(self, standings: Sequence[Standing]) -> Barrier | NotDurable | None:
        """What goes behind each write; for who only reads, what would by this URL."""
        if not self._readonly:
            return self._calls.barrier
        try:
            return self._choose(standings)[0]
        except NotDurable as refusal:
            return refusal

    def _all_heads(self) -> Iterator[Head]:
        for tenant, kind in self._known_kinds():
            for keys in self._index(tenant, kind, size=HEADS):
                yield from self._heads(keys)

    def _close(self) -> None:
        self._calls.close()

    def _after_fork_in_child(self) -> None:
        super()._after_fork_in_child()
        self._calls.after_fork_in_child()


def _asked(request: Append) -> list[Word]:
    """What ``append.lua`` is told: count, body, and pairs for what else there is."""
    asked: list[Word] = [request.count, request.body]
    if request.id is not None:
        asked += ("id", request.id)
    if request.expect is not None:
        asked += ("expect", request.expect)
    if request.epoch is not None:
        asked += ("epoch", request.epoch)
    if request.status is not UNSET:
        asked += ("no-status", "") if request.status is None else ("status", request.status)
    if request.labels is not UNSET:
        for name, value in request.labels.items():
            asked += (f"no-label:{name}", "") if value is None else (f"label:{name}", value)
    if request.ttl is not UNSET:
        asked += ("no-ttl", "") if request.ttl is None else ("ttl", micros(request.ttl))
    if request.default_ttl is not None:
        asked += ("default_ttl", micros(request.default_ttl))
    if request.origin is not None:
        origin = request.origin
        asked += ("at", origin.at, "created", origin.created, "floor", origin.floor)
    return asked


def _record(seq: int, data: bytes, id_: bytes | None) -> Record:
    at, entries, _ = _RECORD.unpack_from(data)
    return Record(seq, entries, at, data[_RECORD.size :], None if id_ is None else id_.decode())


def _head(key: Key, stored: bytes, now: int) -> Head:
    head = _decode(stored)
    leased = head.until > now
    return Head(
        key=key,
        seq=head.seq,
        floor=head.floor,
        size=head.size,
        created=head.created,
        updated=head.updated,
        ttl=head.ttl,
        expires=head.expires,
        status=head.status,
        labels=head.labels,
        lease=Lease(head.holder, head.epoch, head.until) if leased else None,
    )
