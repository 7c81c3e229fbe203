"""Redis and Valkey, alone or as clusters: every call that changes something is one Lua script.

*Keys.* A journal is one hash: its head, its records and their ids (``lua/common.lua`` describes the
fields). A store on a cluster has `SHARDS` hash slots, and a journal belongs to one of them by its
name; on a lone server all are in one.

*Index.* Each shard has its part of the index: for each tenant and kind a sorted set of ids, in the
very slot of the journals. So the script that begins or deletes a journal also puts it in or takes
it out, and the two can never disagree. Only what expires by itself stays in the index until
`sweep`; scans look at the heads and pass over it. An append names the index only when it begins a
journal (a first call finds that out, a second one does it): while a slot moves to another server of
a cluster, calls that need several keys must wait, and calls that need one are redirected.

*Once.* An answer may be lost on its way, so calls are repeated. Every call that writes has a writer
(of which each is used for one call at a time), a number that grows, and a random token. The last
answer to each writer is kept in the head for two minutes: a call that comes again is answered from
there, and one that comes late, when its writer has gone on, does nothing. That is all that is ever
remembered of calls: one line for each writer, not one for each append.

*Durability.* What the server promises is looked at when the store is opened, and before the first
write of every new connection: see `limpet.backends.redis.durability`.

*Expiry.* The server frees expired journals by itself; the scripts look at the clock all the same,
for a journal is gone to the microsecond, and not while it is leased.
"""

from __future__ import annotations

import re
import warnings
from binascii import b2a_base64
from typing import TYPE_CHECKING, Any, ClassVar, Self

from limpet.errors import (
    DurabilityWarning,
    MissingExtra,
    NotAStore,
    SchemaTooNew,
    StoreCorrupt,
    StoreNotFound,
    StoreReadOnly,
)

try:
    import redis  # noqa: F401 - the modules below need it
except ImportError as missing:
    raise MissingExtra.of("Redis", "redis", "redis") from missing

from limpet.backends import decide, forks
from limpet.backends.contract import (
    UNSET,
    Append,
    Appended,
    Backend,
    Expect,
    Head,
    Key,
    Lease,
    Page,
    Record,
    micros,
    new_incarnation,
)
from limpet.backends.facts import Fact
from limpet.backends.redis.client import Client
from limpet.backends.redis.durability import Durability
from limpet.backends.redis.facts import journal_facts, server_facts
from limpet.backends.redis.layout import Keys, body_of, decoded_head, decoded_record, format_key
from limpet.backends.redis.url import PARAMETERS, Address, check_durability, check_prefix, count
from limpet.backends.url import safe_url, seconds, url_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from limpet.backends.redis.servers import Word

__all__ = ["RedisBackend"]

FORMAT = 1

#: Hash slots that a store on a cluster uses; of these each server has its share.
SHARDS = 128

#: Bytes that are read at once, and numbers looked at for compaction: others wait meanwhile.
PORTION = 1 << 20
NUMBERS = 5000

#: Heads that are asked for at once.
HEADS = 500


class RedisBackend(Backend):
    """Journals on a Redis or Valkey server, or on a cluster of them.

    *durability*: ``full`` (an acknowledged write is on the server's disk), ``second`` (it is within
    a second) or ``none``; what the server cannot give is refused. Without it the server is taken as
    it is, with a warning if that is less than full. *replicas*: how many must have a write before
    it is acknowledged. *prefix*: what all keys begin with. *pool*: connections kept for reuse.
    *sentinel*: the URL names Sentinels, and this is the name of their master. What begins with
    *ssl* is redis-py's.
    """

    splits: ClassVar[bool] = True
    keeps: ClassVar[tuple[str, ...]] = (
        "The append-only file keeps what was deleted until it is rewritten (BGREWRITEAOF).",
        "Snapshots (RDB), replicas, backups and the slow log are not reached.",
    )

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
        sentinel: str | None = None,
        sentinel_username: str | None = None,
        sentinel_password: str | None = None,
    ) -> None:
        super().__init__(safe_url(url), readonly=readonly)
        timeout = seconds(timeout)
        address = Address(
            url,
            timeout=timeout,
            db=db,
            sentinel=sentinel,
            sentinel_login=(sentinel_username, sentinel_password),
            ssl_ca_certs=ssl_ca_certs,
            ssl_certfile=ssl_certfile,
            ssl_keyfile=ssl_keyfile,
            ssl_check_hostname=ssl_check_hostname,
        )
        self._durability = Durability(
            self.url,
            check_durability(durability),
            replicas=count(replicas),
            patience=0.8 * address.attempt,
        )
        self._client = Client(
            self.url, address, self._durability, timeout=timeout, pool=count(pool)
        )
        try:
            self._keys = self._open(check_prefix(prefix), create=create)
        except BaseException:
            self.close()
            raise
        forks.register(self)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        _, parameters = url_parameters(url, PARAMETERS)
        return cls(url.partition("?")[0], **(parameters | options))

    # -- opening -------------------------------------------------------------------------------

    def _open(self, prefix: str, *, create: bool) -> Keys:
        """Look at the servers, find the store or make it; the names of its keys."""
        standings = self._client.open()
        if not self.readonly:
            if not self._client.clustered and not standings[0].master:
                raise StoreReadOnly(
                    f"{self.url} is a replica, which takes no writes. Open its master, "
                    "or this one with readonly=true."
                )
            for standing in standings:
                self._durability.confirmation(standing)
            warning = self._durability.warning(standings)
            if warning:
                warnings.warn(warning, DurabilityWarning, stacklevel=2)
        return Keys(prefix, self._shards(prefix, create=create and not self.readonly))

    def _shards(self, prefix: str, *, create: bool) -> int:
        """How many shards the store has; with *create* it is made if there is none."""
        key = format_key(prefix)
        not_ours = NotAStore(f"{key.decode()} at {self.url} is not ours. Use another prefix=.")
        try:
            found = self._client.command(key, "GET", key)
            if found is None and create:
                shards = SHARDS if self._client.clustered else 1
                made = f"limpet {FORMAT} shards {shards}"
                self._client.command(key, "SET", key, made, "NX", writes=True)
                found = self._client.command(key, "GET", key)
        except StoreCorrupt as error:
            raise not_ours from error
        if found is None:
            raise StoreNotFound(
                f"There is no store at {self.url} with the prefix {prefix!r}. Check the names.",
                hint="To begin one there, open it with create=True.",
            )
        words = re.match(rb"limpet (\d+)(?: shards (\d+)$)?", found)
        if words is None:
            raise not_ours
        if int(words[1]) > FORMAT:
            raise SchemaTooNew(
                f"{self.url} has format {int(words[1])}, but this version reads up to {FORMAT}. "
                "A newer release made this store: upgrade limpet."
            )
        return int(words[2])

    # -- appending -----------------------------------------------------------------------------

    def append(self, request: Append) -> Appended:
        self.check_writable()
        key, args = request.key, _arguments(request)

        def begin() -> tuple[Sequence[bytes], Sequence[Word]]:
            index = self._keys.index(key.tenant, key.kind, self._keys.shard(key))
            members = ("index", key.id, "kinds", index.kind, "incarnation", new_incarnation())
            return (index.members, index.kinds), members

        keys: list[bytes] = [self._keys.journal(key)]
        if request.expect is not None and request.expect.seq == 0:
            more_keys, more_args = begin()
            keys, args = [*keys, *more_keys], [*args, *more_args]
        answer = self._client.write("append", self._keys.slot(key), keys, args, begin=begin)
        match answer[0]:
            case b"done" | b"known":
                seq, at, incarnation = answer[1:]
                return Appended(seq, at, incarnation.decode(), repeated=answer[0] == b"known")
            case b"lost":
                raise decide.lease_lost(key)
            case _:
                raise decide.conflict(key, request.expect, answer[1])

    # -- reading -------------------------------------------------------------------------------

    def read(
        self,
        key: Key,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
    ) -> list[Record]:
        found, ids = self._read(key, after, upto, limit, reverse=reverse)
        return [decoded_record(seq, stored, ids.get(seq)) for seq, stored in found]

    def bodies(self, key: Key, *, after: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]:
        found, _ = self._read(key, after, None, limit, reverse=False)
        return [(seq, body_of(stored)) for seq, stored in found]

    def _read(
        self, key: Key, after: int, upto: int | None, limit: int, *, reverse: bool
    ) -> tuple[list[tuple[int, bytes]], dict[int, bytes]]:
        """Numbers and records as they are stored, and the ids of those that have one."""
        self.check_open()
        slot, keys = self._keys.slot(key), (self._keys.journal(key),)
        direction = "backward" if reverse else "forward"
        found: list[tuple[int, bytes]] = []
        ids: dict[int, bytes] = {}
        low, high, incarnation = after, upto, None
        while True:
            args = (low, "" if high is None else high, limit - len(found), direction, PORTION)
            now, more, records, given = self._client.run("read", slot, keys, args)
            if found and now != incarnation:  # deleted, and perhaps begun anew: so do we
                found, ids, low, high = [], {}, after, upto
                continue
            incarnation = now
            found += zip(records[::2], records[1::2], strict=True)
            ids.update(zip(given[::2], given[1::2], strict=True))
            if not more or len(found) >= limit:
                return found, ids
            last = decoded_record(*found[-1])
            if reverse:
                high = last.seq - last.count
            else:
                low = last.seq

    def head(self, key: Key) -> Head | None:
        self.check_open()
        keys = (self._keys.journal(key),)
        now, stored = self._client.run("heads", self._keys.slot(key), keys, ())
        return decoded_head(key, stored, now) if stored else None

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
        self.check_open()
        wanted: list[str] = [] if status is None else ["status", status]
        for name, value in (labels or {}).items():
            wanted += [f"label:{name}", value]
        heads: list[Head] = []
        size = HEADS if wanted else min(limit + 1, HEADS)
        for keys in self._indexed(tenant, kind, prefix=prefix, after=cursor, size=size):
            heads += self._heads(keys, wanted)
            if len(heads) > limit:
                return Page(heads[:limit], heads[limit - 1].key.id)
        return Page(heads, None)

    def _heads(self, keys: Sequence[Key], wanted: Sequence[str] = ()) -> list[Head]:
        """The heads of those of *keys* that are there and as *wanted*, in the order of *keys*."""
        # In a cluster a call for each journal: while their slot moves, they go one by one.
        groups = [[key] for key in keys] if self._client.clustered else [list(keys)]
        answers = self._client.run_each(
            "heads",
            [
                (self._keys.slot(group[0]), [self._keys.journal(key) for key in group], wanted)
                for group in groups
            ],
        )
        heads = [
            decoded_head(key, stored, now)
            for group, (now, *found) in zip(groups, answers, strict=True)
            for key, stored in zip(group, found, strict=True)
            if stored
        ]
        return [head for head in heads if head is not None]

    def _indexed(
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
        parts = self._keys.indexes(tenant, kind)
        while True:
            share = size if len(parts) == 1 else 2 * size // len(parts) + 8
            lists = self._client.commands(
                [
                    (part.slot, (b"ZRANGE", part.members, low, high, b"BYLEX", b"LIMIT", 0, share))
                    for part in parts
                ]
            )
            # Beyond the end of a list that was cut there may be ids that we have not seen.
            edge = min((ids[-1] for ids in lists if len(ids) == share), default=None)
            found = sorted(id_ for ids in lists for id_ in ids if edge is None or id_ <= edge)
            for first in range(0, len(found), size):
                yield [Key(tenant, kind, id_.decode()) for id_ in found[first : first + size]]
            if edge is None:
                return
            low = b"(" + edge
            size = min(2 * size, HEADS)

    def kinds(self) -> list[tuple[str, str]]:
        return [pair for pair in self._indexed_kinds() if self.scan(*pair, limit=1).heads]

    def _indexed_kinds(self) -> list[tuple[str, str]]:
        """What has an index, though perhaps nothing in it is there any more."""
        self.check_open()
        answers = self._client.commands(
            [(slot, (b"SMEMBERS", key)) for slot, key in self._keys.kinds()]
        )
        members = {member for answer in answers for member in answer}
        return sorted(map(self._keys.tenant_and_kind, members))

    # -- removing ------------------------------------------------------------------------------

    def delete(self, key: Key, *, expect: Expect | None = None) -> bool:
        self.check_writable()
        index = self._keys.index(key.tenant, key.kind, self._keys.shard(key))
        keys = (self._keys.journal(key), index.members, index.kinds)
        args: tuple[Word, ...] = (key.id, index.kind)
        if expect is not None:
            args += (expect.seq, expect.incarnation or "")
        answer = self._client.write("delete", index.slot, keys, args)
        if expect is not None and answer[0] == b"conflict":
            raise decide.conflict(key, expect, answer[1])
        if expect is not None and answer[0] == b"held":
            _, epoch, until, holder = answer
            raise decide.leased(key, expect, Lease(holder.decode(), epoch, until))
        return bool(answer[1])

    def compact(self, key: Key, before: int) -> int:
        dropped, more = 0, 1
        while more:
            _, entries, more = self._write("compact", key, before, NUMBERS)
            dropped += entries
        return dropped

    def sweep(self, limit: int = 1000) -> int:
        self.check_writable()
        swept = 0
        for tenant, kind in self._indexed_kinds():
            for keys in self._indexed(tenant, kind, size=HEADS):
                for shard in {self._keys.shard(key) for key in keys}:
                    group = [key for key in keys if self._keys.shard(key) == shard]
                    index = self._keys.index(tenant, kind, shard)
                    journals = [self._keys.journal(key) for key in group]
                    gone: int = self._client.run(
                        "sweep",
                        index.slot,
                        (index.members, index.kinds, *journals),
                        (index.kind, limit - swept, *(key.id for key in group)),
                    )
                    swept += gone
                    if swept >= limit:
                        return swept
        return swept

    # -- leases --------------------------------------------------------------------------------

    def acquire(self, key: Key, holder: str, ttl: float, *, over: int | None = None) -> Lease:
        answer = self._write("acquire", key, holder, micros(ttl), "" if over is None else over)
        if answer[0] == b"held":
            _, epoch, until, other = answer
            raise decide.lease_held(key, Lease(other.decode(), epoch, until))
        return Lease(holder, answer[1], answer[2])

    def renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        answer = self._write("renew", key, lease.epoch, micros(ttl))
        if answer[0] == b"lost":
            raise decide.lease_lost(key)
        return Lease(lease.holder, lease.epoch, answer[2])

    def release(self, key: Key, lease: Lease) -> None:
        self._write("renew", key, lease.epoch, 0)

    def _write(self, script: str, key: Key, *args: Word) -> list[Any]:
        """Run a script on a journal that neither begins nor ends by it."""
        self.check_writable()
        keys = (self._keys.journal(key),)
        return self._client.write(script, self._keys.slot(key), keys, args)

    # -- the place itself ----------------------------------------------------------------------

    def facts(self, *, deep: bool = False) -> list[Fact]:
        self.check_open()
        facts = [*server_facts(self._client.standings(), self._durability, self._keys)]
        kinds = self._indexed_kinds()
        if deep:
            heads = (
                head
                for tenant, kind in kinds
                for keys in self._indexed(tenant, kind, size=HEADS)
                for head in self._heads(keys)
            )
            return [*facts, *journal_facts(self, heads)]
        totals: dict[str, int] = {}
        for tenant, kind in kinds:
            sizes = self._client.commands(
                [(part.slot, (b"ZCARD", part.members)) for part in self._keys.indexes(tenant, kind)]
            )
            totals[kind] = totals.get(kind, 0) + sum(sizes)
        return [*facts, *(Fact.of_kind(kind, total) for kind, total in sorted(totals.items()))]

    def _close(self) -> None:
        self._client.close()

    # -- fork ----------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Nothing is held that a fork could find in the middle of something."""

    def after_fork_in_parent(self) -> None:
        """Nothing has changed."""

    def after_fork_in_child(self) -> None:
        self._client.after_fork_in_child()


def _arguments(request: Append) -> list[Word]:
    """*request* as append.lua takes it: records, and names and values of what else it has."""
    args: list[Word] = [request.count, request.body, len(request.earlier)]
    for record in request.earlier:
        args += record
    if request.id is not None:
        args += ("id", request.id)
    if request.epoch is not None:
        args += ("epoch", request.epoch)
    if request.expect is not None:
        args += ("expect", request.expect.seq)
        if request.expect.incarnation is not None:
            args += ("expect-incarnation", request.expect.incarnation)
    if request.default_ttl is not None:
        args += ("default-ttl", micros(request.default_ttl))
    if request.origin is not None:
        origin = request.origin
        args += ("at", origin.at, "created", origin.created)
        args += ("first", origin.first, "origin", origin.incarnation)
    if request.note is not None:
        args += ("note", b2a_base64(request.note, newline=False))
    for name, value in _changes(request):
        args += (f"no-{name}", "") if value is None else (name, value)
    return args


def _changes(request: Append) -> Iterator[tuple[str, Word | None]]:
    """The attributes that change; None removes one."""
    if request.status is not UNSET:
        yield "status", request.status
    if request.meta is not UNSET:
        yield "meta", request.meta
    if request.ttl is not UNSET:
        yield "ttl", None if request.ttl is None else micros(request.ttl)
    if request.labels is not UNSET:
        for name, value in request.labels.items():
            yield f"label:{name}", value
