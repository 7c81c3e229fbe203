"""PostgreSQL: an append is one statement in one round trip; the server's clock is the only one."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Self

try:
    import psycopg  # noqa: F401 - all that follows needs it
except ImportError as error:
    from limpet.errors import MissingExtra

    raise MissingExtra.of("PostgreSQL", "psycopg", "postgres", "'psycopg[binary]'") from error

from limpet.backends.contract import (
    Append,
    Appended,
    Fact,
    Head,
    Key,
    Lease,
    Page,
    Record,
    fenced,
    given_id,
    held,
    micros,
    own_id,
)
from limpet.backends.postgresql import schema as tables
from limpet.backends.postgresql.append import new_journal
from limpet.backends.postgresql.calls import Calls
from limpet.backends.postgresql.connections import PARAMETERS, Connection, own_parameters
from limpet.backends.postgresql.facts import facts, settings
from limpet.backends.postgresql.lending import Lending
from limpet.backends.postgresql.sql import Statements
from limpet.backends.postgresql.wakeups import Wakeups, channel
from limpet.backends.postgresql.writer import Writer, check_time, clear
from limpet.backends.transactions import Transactional
from limpet.errors import DurabilityWarning, InvalidURL, NotDurable, StoreReadOnly

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from limpet.backends.transactions import Opened

__all__ = ["PostgresBackend"]

#: Journals that one transaction of a sweep removes.
PORTION = 50


class PostgresBackend(Transactional):
    """Journals in two tables of a PostgreSQL database.

    *schema*: where the tables are. *pool*: how many connections there may be, and how many async
    calls at once; as many more for transactions. *durability*: ``full``, or ``normal`` (a power
    loss may undo the last writes; faster); if it is not said, as full as the server can, with a
    warning if that is less. *prepare*: False behind a pooler that keeps no sessions. *wakeups*:
    appends notify, and `wait` listens; writers and waiters must both have it.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "limpet",
        create: bool = True,
        readonly: bool = False,
        timeout: float = 30.0,
        durability: str | None = None,
        pool: int = 8,
        prepare: bool = True,
        wakeups: bool = False,
    ) -> None:
        super().__init__(url)
        if wakeups and not prepare:
            msg = "wakeups listen on a session of their own, which prepare=false does without."
            raise InvalidURL(msg)
        self.schema: str = PARAMETERS["schema"](schema)
        self._readonly = readonly
        self._durability = durability and PARAMETERS["durability"](durability)
        self.hops = self.lends = PARAMETERS["pool"](pool)
        calls = partial(
            Calls,
            url,
            timeout=PARAMETERS["timeout"](timeout),
            durability=self._durability,
            pool=self.hops,
            prepare=prepare,
            check_open=self._check_open,
        )
        self._calls = calls()
        self._sql = Statements(self.schema)
        self._writer = Writer(
            self._calls,
            self._sql,
            channel(self.schema) if wakeups else None,
            lambda lead: self._threads().submit(lead),
        )
        self._lending = Lending(calls(lends=True), self._writer, self._sql)
        self._wakeups: Wakeups | None = None
        if wakeups:
            self._wakeups = Wakeups(self.schema, self._calls.listener, lambda: self._closed)
            self.wakes = True
        self._calls.open(partial(self._check, create=create))

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        theirs, own = own_parameters(url)
        return cls(theirs, **(own | options))

    # -- records -----------------------------------------------------------------------------

    def append(self, request: Append) -> Appended:
        self._check_writable()
        return self._writer.append(request)

    async def append_async(self, request: Append) -> Appended:
        """Joins those who append at the same time, without a thread of its own."""
        self._check_writable()
        write, done = await self._writer.gather(request)
        return await self.hop(self._writer.alone, write) if done is None else done

    def append_all(self, requests: Sequence[Append]) -> list[Appended]:
        self._check_writable()
        return self._writer.append_all(requests)

    def read(
        self,
        key: Key,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
    ) -> list[Record]:
        sql = self._sql.read(upto=upto is not None, reverse=reverse)
        values = [*key, after, limit]
        if upto is not None:
            values.append(upto)
        return [
            Record(seq, count, at, body, given_id(id_))
            for seq, count, at, body, id_ in self._calls.rows(sql, *values)
        ]

    def bodies(self, key: Key, *, after: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]:
        return self._calls.rows(self._sql.bodies, *key, after, limit)

    def head(self, key: Key) -> Head | None:
        rows = self._calls.rows(self._sql.head, *key)
        return _head(key.tenant, key.kind, rows[0]) if rows else None

    def wait(self, key: Key, *, after: int = 0, timeout: float) -> bool:
        if self._wakeups is None:
            return super().wait(key, after=after, timeout=timeout)

        def there() -> bool:
            head = self.head(key)
            return head is not None and head.seq > after

        return self._wakeups.wait(key, there, timeout)

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
        sql, values = self._sql.scan(prefix, status, labels, cursor)
        rows = self._calls.rows(sql, tenant, kind, limit + 1, *values)
        heads = [_head(tenant, kind, row) for row in rows[:limit]]
        return Page(heads, heads[-1].key.id if len(rows) > limit else None)

    def kinds(self) -> list[tuple[str, str]]:
        return [(tenant, kind) for tenant, kind in self._calls.rows(self._sql.kinds)]

    def delete(self, key: Key) -> bool:
        self._check_writable()
        seen, removed = None, False

        def work(connection: Connection) -> bool:
            # If the reply to COMMIT is lost, what this try saw counts: the next one finds nothing,
            # or a journal that somebody has begun since, which is not to go.
            nonlocal seen, removed
            with connection.transaction():
                for journal, there in connection.rows(self._sql.delete, (*key, seen)):
                    connection.run(self._sql.drop, ([journal],))
                    seen, removed = journal, removed or there
            return removed

        return self._calls.run(work, writes=True)

    def compact(self, key: Key, before: int) -> int:
        self._check_writable()
        floors: dict[Any, int] = {}  # where each journal's was, when first seen; as in delete

        def work(connection: Connection) -> int:
            with connection.transaction():
                for journal, floor in connection.rows(self._sql.lock, key):
                    if floors and journal not in floors:
                        return 0  # that one is gone, and another has begun
                    first = floors.setdefault(journal, floor)
                    last, size = connection.rows(self._sql.cut, (journal, before))[0]
                    if last is None:
                        return int(floor) - first
                    connection.run(self._sql.raise_floor, (*key, last, size))
                    return int(last) - first
            return 0

        return self._calls.run(work, writes=True)

    def sweep(self, limit: int = 1000) -> int:
        self._check_writable()
        swept = 0
        while swept < limit:
            count = self._calls.run(partial(self._sweep, min(PORTION, limit - swept)), writes=True)
            if not count:
                break
            swept += count
        return swept

    def _sweep(self, limit: int, connection: Connection) -> int:
        with connection.transaction():
            gone = [journal for (journal,) in connection.rows(self._sql.sweep, (limit,))]
            if gone:
                connection.run(self._sql.drop, (gone,))
        return len(gone)

    # -- leases ------------------------------------------------------------------------------

    def acquire(self, key: Key, holder: str, ttl: float, *, over: int | None = None) -> Lease:
        self._check_writable()
        values = [*key, new_journal(), holder, own_id(), micros(ttl), over]
        deadline = self._calls.deadline()
        return self._calls.run(
            partial(self._acquire, key, holder, values, deadline), deadline, writes=True
        )

    def _acquire(
        self, key: Key, holder: str, values: list[Any], deadline: float, connection: Connection
    ) -> Lease:
        while True:
            for epoch, until in connection.rows(self._sql.acquire, values):
                return Lease(holder, epoch, until)
            for live, valid, *lease in connection.rows(self._sql.lease, key):
                if not live:
                    clear(connection, self._sql, key)
                elif valid:
                    raise held(key, Lease(*lease))
            check_time(key, deadline)

    def renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        self._check_writable()
        values = (*key, lease.epoch, micros(ttl))
        for (until,) in self._calls.rows(self._sql.renew, *values, writes=True):
            return Lease(lease.holder, lease.epoch, until)
        raise fenced(key)

    def release(self, key: Key, lease: Lease) -> None:
        self._check_writable()
        self._calls.rows(self._sql.release, *key, lease.epoch, writes=True)

    def _lend(self) -> AbstractContextManager[Opened]:
        self._check_not_readonly()
        return self._lending.transaction()

    def _check_writable(self) -> None:
        self._check_open()
        self._check_outside()
        self._check_not_readonly()

    def _check_not_readonly(self) -> None:
        if self._readonly:
            msg = f"The store {self.url} was opened with readonly=True, so it is read-only."
            raise StoreReadOnly(msg)

    # -- the place itself ----------------------------------------------------------------------

    def _check(self, connection: Connection, *, create: bool) -> None:
        tables.check_server(connection, self._calls.place)
        durable = settings(connection).fact()
        if not durable.ok and self._durability != "normal":
            msg = f"{self._calls.place} may lose acknowledged writes: {durable.value}. "
            msg += durable.advice
            if self._durability == "full":
                raise NotDurable(msg)
            warnings.warn(msg, DurabilityWarning, stacklevel=2)
        tables.prepare(
            connection, self.schema, self._calls.place, create=create, readonly=self._readonly
        )

    def facts(self, *, deep: bool = False) -> list[Fact]:
        return self._calls.run(
            lambda connection: facts(connection, self.schema, self._sql, deep=deep)
        )

    def _close(self) -> None:
        if self._wakeups is not None:
            self._wakeups.close()
        super()._close()
        self._lending.close()
        self._calls.close()

    def _after_fork_in_child(self) -> None:
        super()._after_fork_in_child()
        self._calls.abandon()
        self._lending.abandon()
        self._writer.begin()
        if self._wakeups is not None:
            self._wakeups.abandon()


def _head(tenant: str, kind: str, row: tuple[Any, ...]) -> Head:
    id_, seq, floor, size, created, updated, ttl, expires, status, labels, *lease, valid = row
    return Head(
        key=Key(tenant, kind, id_),
        seq=seq,
        floor=floor,
        size=size,
        created=created,
        updated=updated,
        ttl=ttl,
        expires=expires,
        status=status,
        labels=labels or {},
        lease=Lease(*lease) if valid else None,
    )
