"""PostgreSQL: an append is one statement in one round trip; the server's clock is the only one."""

from __future__ import annotations

import os
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

try:
    import psycopg  # noqa: F401 - all that follows needs it
except ImportError as error:
    from limpet.errors import MissingExtra

    raise MissingExtra.of("PostgreSQL", "psycopg", "postgres", "'psycopg[binary]'") from error

import msgspec

from limpet.backends import decide, forks, sql
from limpet.backends.contract import (
    Append,
    Appended,
    Expect,
    Head,
    Key,
    Lease,
    Page,
    Record,
    generated_id,
    given_id,
    micros,
)
from limpet.backends.postgresql import schema as tables
from limpet.backends.postgresql.appender import (
    APPENDS,
    Appender,
    check_time,
    head_of,
    new_journal,
    remove_expired,
)
from limpet.backends.postgresql.connections import OPTIONS, Connection, Connections, split_url
from limpet.backends.postgresql.facts import durability as durability_fact
from limpet.backends.postgresql.facts import facts
from limpet.backends.postgresql.transaction import Transactions
from limpet.backends.postgresql.wakeups import Wakeups, channel
from limpet.backends.transactions import TransactionalBackend
from limpet.errors import DurabilityWarning, InvalidURL, NotDurable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from limpet.backends.contract import Transaction
    from limpet.backends.facts import Fact

__all__ = ["PostgresBackend"]

#: Journals that one transaction of a sweep removes.
PORTION = 50


class PostgresBackend(TransactionalBackend):
    """Journals in two tables of a PostgreSQL database.

    *schema*: where the tables are. *pool*: how many connections there may be, and how many async
    calls at once; as many more for transactions. *durability*: ``full``, or ``normal`` (a power
    loss may undo the last writes; faster); if it is not said, as full as the server can, with a
    warning if that is less. *prepare*: False behind a pooler that keeps no sessions. *wakeups*:
    appends notify, and `wait` listens; writers and waiters must both have it.
    """

    rewrites: ClassVar[bool] = True
    keeps: ClassVar[tuple[str, ...]] = (
        "Old versions of rows stay in pages until VACUUM, and in the log until it is recycled.",
        "Replicas, archived logs (point-in-time recovery), dumps and server logs are not reached.",
    )

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
        super().__init__(url, readonly=readonly)
        if wakeups and not prepare:
            msg = "wakeups listen on a session of their own, which prepare=false does without."
            raise InvalidURL(msg)
        self.schema: str = OPTIONS["schema"](schema)
        self.concurrency = self.transactions = OPTIONS["pool"](pool)
        self.wakes = wakeups
        self._durability = durability and OPTIONS["durability"](durability)
        parts = {"schema": tables.quoted(self.schema), "channel": channel(self.schema)}
        if not wakeups:
            parts["notify"] = ""
        here = os.path.dirname(__file__)
        self._queries = sql.load(here, earlier="", **parts)
        several = sql.load(here, earlier="{earlier_records}", **parts)
        self._queries |= {f"{name}_several": several[name] for name in APPENDS}
        connections = partial(
            Connections,
            url,
            self._queries,
            timeout=OPTIONS["timeout"](timeout),
            durability=self._durability,
            pool=self.concurrency,
            prepare=prepare,
            check_open=self.check_open,
        )
        self._connections = connections()
        self._callers_connections = connections(for_callers=True)
        self._appender = Appender(self._connections, self._queries)
        self._transactions = Transactions(self._callers_connections, self._appender)
        self._wakeups = Wakeups(self.schema, self._connections.listener, lambda: self.closed)
        self._connections.open(partial(self._check, create=create))
        forks.register(self)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        for_libpq, parameters = split_url(url)
        return cls(for_libpq, **(parameters | options))

    # -- records -----------------------------------------------------------------------------

    def append(self, request: Append) -> Appended:
        self.check_writable()
        return self._appender.append(request)

    async def append_async(self, request: Append) -> Appended:
        self.check_writable()
        return await self._appender.append_async(request)

    def append_all(self, requests: Sequence[Append]) -> list[Appended]:
        self.check_writable()
        return self._appender.append_all(requests)

    def read(
        self,
        key: Key,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
    ) -> list[Record]:
        text = self._queries["read"]
        if upto is not None:
            text += f" {self._queries['and_upto']}"
        text += f" ORDER BY r.seq {'DESC' if reverse else ''} LIMIT %(limit)s"
        values = {**key._asdict(), "after": after, "upto": upto, "limit": limit}
        return [
            Record(seq, count, at, body, given_id(id_))
            for seq, count, at, body, id_ in self._connections.rows(text, **values)
        ]

    def bodies(self, key: Key, *, after: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]:
        values = {**key._asdict(), "after": after, "limit": limit}
        return self._connections.rows(self._queries["bodies"], **values)

    def head(self, key: Key) -> Head | None:
        for now, *row in self._connections.rows(self._queries["visible_head"], **key._asdict()):
            return decide.visible(head_of(key.tenant, key.kind, row), now)
        return None

    def wait(self, key: Key, *, after: int = 0, timeout: float) -> bool:
        if not self.wakes:
            return super().wait(key, after=after, timeout=timeout)

        def is_there() -> bool:
            head = self.head(key)
            return head is not None and head.seq > after

        return self._wakeups.wait(key, is_there, timeout)

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
        text = self._queries["scan"]
        values: dict[str, Any] = {"tenant": tenant, "kind": kind, "limit": limit + 1}
        if prefix:
            # U+10FFFF is the last code point, and no id contains it.
            text += " AND j.id >= %(prefix)s AND j.id < %(behind)s"
            values |= {"prefix": prefix, "behind": prefix + "\U0010ffff"}
        if cursor is not None:
            text += " AND j.id > %(cursor)s"
            values["cursor"] = cursor
        if status is not None:
            text += " AND j.status = %(status)s"
            values["status"] = status
        if labels:
            text += " AND j.labels @> %(labels)s::jsonb"
            values["labels"] = msgspec.json.encode(labels).decode()
        rows = self._connections.rows(f"{text} ORDER BY j.id LIMIT %(limit)s", **values)
        found = [decide.visible(head_of(tenant, kind, row), now) for now, *row in rows[:limit]]
        heads = [head for head in found if head is not None]
        return Page(heads, rows[limit - 1][1] if len(rows) > limit else None)

    def kinds(self) -> list[tuple[str, str]]:
        return self._connections.rows(self._queries["kinds"])

    def delete(self, key: Key, *, expect: Expect | None = None) -> bool:
        self.check_writable()
        deadline = self._connections.deadline()
        statement, expected = "delete_journal", {}
        if expect is not None:
            statement = "delete_expected"
            expected = {"expect_seq": expect.seq, "expect_incarnation": expect.incarnation}
        seen: Any = None  # the UUID of the journal that a try removed
        removed = False

        def work(connection: Connection) -> bool:
            # If the reply to COMMIT is lost, what this try saw counts: the next one finds nothing,
            # or a journal that somebody has begun since, which is not to go.
            nonlocal seen, removed
            while True:
                values = {**key._asdict(), **expected, "journal": seen}
                with connection.transaction():
                    if seen is not None:  # as in `Appender.wait_for_standbys`; the row is gone
                        connection.run(self._queries["lock_version"])
                    gone = connection.rows(self._queries[statement], **values)
                    for journal, existed in gone:
                        connection.run(self._queries["delete_records"], journals=[journal])
                        seen, removed = journal, removed or existed
                    if gone or expect is None:
                        return removed
                    if seen is not None:
                        there = connection.row(self._queries["lock_journal"], **key._asdict())
                        if there is None or there[0] != seen:
                            return removed
                stored = self._appender.stored(connection, key, None)
                head = decide.live(stored.head, stored.now)
                decide.check_delete(head, key, expect, stored.now)  # or Conflict
                if head is None:
                    return False
                check_time(key, deadline)

        return self._connections.run(work, deadline, writes=True)

    def compact(self, key: Key, before: int) -> int:
        self.check_writable()
        began_at: dict[Any, int] = {}  # each journal's first number, when first seen; as in delete

        def work(connection: Connection) -> int:
            with connection.transaction():
                found = connection.row(self._queries["lock_journal"], **key._asdict())
                if found is None:
                    return 0
                journal, first = found
                if began_at and journal not in began_at:
                    return 0  # that one is gone, and another has begun
                before_us = began_at.setdefault(journal, first)
                values = {"journal": journal, "before": before}
                last, size = connection.rows(self._queries["drop_records"], **values)[0]
                if last is not None:
                    first = last + 1
                    values = {**key._asdict(), "first": first, "dropped": size}
                    connection.run(self._queries["set_first"], **values)
                return int(first) - before_us

        return self._connections.run(work, writes=True)

    def rewrite(
        self,
        key: Key,
        bodies: Mapping[int, bytes],
        *,
        expect: Expect,
        renewed: str | None = None,
        labels: Mapping[str, str] | None = None,
        note: bytes | None = None,
    ) -> int:
        self.check_writable()

        def work(connection: Connection) -> int:
            with connection.transaction():
                values = {**key._asdict(), "incarnation": expect.incarnation, "seq": expect.seq}
                found = connection.row(self._queries["lock_expected"], **values)
                if found is None:
                    return 0
                (journal,) = found
                count = grown = 0
                for seq, body in bodies.items():
                    record = {"journal": journal, "seq": seq, "body": body}
                    for (size,) in connection.rows(self._queries["set_body"], **record):
                        count, grown = count + 1, grown + len(body) - size
                values = {
                    **key._asdict(),
                    "grown": grown,
                    "renewed": renewed or expect.incarnation,
                    "labels": msgspec.json.encode(labels or {}).decode(),
                    "note": note,
                }
                connection.run(self._queries["set_rewritten"], **values)
                return count

        return self._connections.run(work, writes=True)

    def sweep(self, limit: int = 1000) -> int:
        self.check_writable()
        swept = 0
        while swept < limit:
            portion = min(PORTION, limit - swept)
            count = self._connections.run(partial(self._sweep, portion), writes=True)
            if not count:
                break
            swept += count
        return swept

    def _sweep(self, limit: int, connection: Connection) -> int:
        with connection.transaction():
            gone = [journal for (journal,) in connection.rows(self._queries["sweep"], limit=limit)]
            if gone:
                connection.run(self._queries["delete_records"], journals=gone)
        return len(gone)

    # -- leases ------------------------------------------------------------------------------

    def acquire(self, key: Key, holder: str, ttl: float, *, over: int | None = None) -> Lease:
        self.check_writable()
        deadline = self._connections.deadline()
        values = {
            **key._asdict(),
            "journal": new_journal(),
            "holder": holder,
            "token": generated_id(),
            "ttl": micros(ttl),
            "over": over,
        }

        def work(connection: Connection) -> Lease:
            while True:
                row = connection.row(self._queries["acquire"], **values)
                if row is not None:
                    return Lease(holder, *row)
                stored = self._appender.stored(connection, key, None)
                head = decide.live(stored.head, stored.now)
                if head is None:
                    remove_expired(connection, self._queries, key)
                decide.acquire(
                    head, key, stored.now, holder=holder, ttl=ttl, over=over
                )  # or LeaseHeld
                check_time(key, deadline)

        return self._connections.run(work, deadline, writes=True)

    def renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        until = self._renew(key, lease, ttl)
        if until is None:
            raise decide.lease_lost(key)
        return Lease(lease.holder, lease.epoch, until)

    def release(self, key: Key, lease: Lease) -> None:
        self._renew(key, lease, 0)

    def _renew(self, key: Key, lease: Lease, ttl: float) -> int | None:
        """Until when it is valid; None if it is not the newest."""
        self.check_writable()
        values = {**key._asdict(), "epoch": lease.epoch, "ttl": micros(ttl)}
        rows = self._connections.rows(self._queries["renew"], writes=True, **values)
        return rows[0][0] if rows else None

    def _transaction(self) -> AbstractContextManager[Transaction]:
        return self._transactions.open()

    # -- the place itself --------------------------------------------------------------------

    def _check(self, connection: Connection, *, create: bool) -> None:
        place = self._connections.place
        tables.check_server(connection, place)
        durable = durability_fact(connection, self._queries)
        if not durable.ok and self._durability != "normal":
            msg = f"{place} may lose acknowledged writes: {durable.value}. {durable.advice}"
            if self._durability == "full":
                raise NotDurable(msg)
            warnings.warn(msg, DurabilityWarning, stacklevel=2)
        tables.prepare(
            connection, self._queries, self.schema, place, create=create, readonly=self.readonly
        )

    def facts(self, *, deep: bool = False) -> list[Fact]:
        return self._connections.run(
            lambda connection: facts(connection, self._queries, self.schema, deep=deep)
        )

    def _close(self) -> None:
        self._wakeups.close()
        self._appender.close()
        self._callers_connections.close()
        self._connections.close()

    # -- fork --------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Nothing has to come to rest: what is under way goes on in the parent."""

    def after_fork_in_parent(self) -> None:
        """Nothing was stopped."""

    def after_fork_in_child(self) -> None:
        self._forget_other_threads()
        self._connections.abandon()
        self._callers_connections.abandon()
        self._appender.after_fork_in_child()
        self._wakeups.abandon()
