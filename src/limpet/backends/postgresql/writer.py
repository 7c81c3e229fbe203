"""Appends to PostgreSQL: who appends at the same time gathers, and is served by one statement.

A lone caller's append is a statement of its own, in the caller's thread.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg

from limpet.backends.contract import Append, Appended, Key, conflict, fenced
from limpet.backends.group_commit import GroupCommit, Ticket
from limpet.backends.postgresql.append import Appends, Write, rounds
from limpet.backends.postgresql.errors import lost
from limpet.errors import StoreBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from limpet.backends.postgresql.calls import Calls
    from limpet.backends.postgresql.connections import Connection
    from limpet.backends.postgresql.sql import Statements

__all__ = ["Writer", "check_time", "clear"]

#: Few callers are best served side by side, with up to so many statements at a time.
SIDE_BY_SIDE = 4
#: From so many in a statement on, they are best served together, by one statement at a time.
CROWD = 4

#: Bodies over this are not kept in a cursor for the next append to replace.
LARGE = 65_536


class Writer:
    """The appends of one store. *hire* runs a function on another thread."""

    def __init__(
        self,
        calls: Calls,
        statements: Statements,
        channel: str | None,
        hire: Callable[[Callable[[], None]], object],
    ) -> None:
        self._calls = calls
        self._sql = statements
        self._appends = Appends(statements, channel)
        self._hire = hire
        self.begin()

    def begin(self) -> None:
        """Start with nobody waiting, also in a forked child."""
        commits = [self._commit_crowd, *[self._commit] * (SIDE_BY_SIDE - 1)]
        self._groups = [GroupCommit(commit, self._hire) for commit in commits]
        self._crowd = 0  # how many the first group has served lately

    def append(self, request: Append) -> Appended:
        """`Backend.append`."""
        write = Write(request, self._calls.deadline())
        done: Appended | None = self._group().run(write)
        return self.alone(write) if done is None else done

    async def gather(self, request: Append) -> tuple[Write, Appended | None]:
        """The same for async callers, as far as it goes without a thread: see `alone`."""
        write = Write(request, self._calls.deadline())
        return write, await self._group().run_async(write)

    def alone(self, write: Write) -> Appended:
        """Do what could not be done together with others at the first try."""
        return self._calls.run(
            partial(self.add, write), write.deadline, writes=True, unanswered=write.unanswered
        )

    def append_all(self, requests: Sequence[Append]) -> list[Appended]:
        """`Backend.append_all`, as one transaction."""
        deadline = self._calls.deadline()
        writes = [Write(request, deadline) for request in requests]
        done = self._calls.run(partial(self._transact, writes), deadline, writes=True)
        return [done[write] for write in writes]

    def _transact(self, writes: list[Write], connection: Connection) -> dict[Write, Appended]:
        # In the order of their keys, as everywhere, so that no two wait for each other.
        ordered = sorted(writes, key=lambda write: write.request.key)
        while True:
            try:
                with connection.transaction():
                    return {write: self.add(write, connection) for write in ordered}
            except psycopg.errors.InFailedSqlTransaction:
                # An id came in just before one of them: of a rival, or all of ours at a first try.
                known = [self.refused(connection, one.request, one.id) for one in ordered]
                done = {one: was for one, was in zip(ordered, known, strict=True) if was}
            if len(done) == len(writes):
                return done
            check_time(ordered[0].request.key, ordered[0].deadline)

    def _group(self) -> GroupCommit:
        """The first group, where all gather; or another one, if nobody leads it and few come."""
        if self._crowd < CROWD:
            for group in self._groups:
                if not group.busy:
                    return group
        return self._groups[0]

    def _commit_crowd(self, batch: list[Ticket]) -> None:
        # Half, not at once: after a crowd comes the one who was too late for it, and then a crowd.
        self._crowd = max(len(batch), self._crowd // 2)
        self._commit(batch)

    def _commit(self, batch: list[Ticket]) -> None:
        """Commit *batch* as `GroupCommit` asks, as far as that goes at the first try.

        Who was refused, met a lock or a lost connection is not done, and goes on alone: the others
        do not wait for that.
        """
        writes: list[Write] = [ticket.work for ticket in batch]
        done: dict[Write, Appended] = {}
        with suppress(psycopg.Error):
            self._calls.attempt(partial(self._first_try, writes, done), writes[0].deadline)
        for ticket, write in zip(batch, writes, strict=True):
            ticket.result = done.get(write)

    def _first_try(
        self, writes: list[Write], done: dict[Write, Appended], connection: Connection
    ) -> None:
        try:
            self._append_all(writes, done, connection)
        except psycopg.Error as error:
            for write in writes:
                write.unanswered = lost(error)
            raise

    def _append_all(
        self, writes: list[Write], done: dict[Write, Appended], connection: Connection
    ) -> None:
        if len(writes) == 1:
            done[writes[0]] = self.add(writes[0], connection)
            return
        for some in rounds(writes):
            if len(some) == 1:
                row = connection.again(*self._appends.one(some[0]))
                if row is not None:
                    done[some[0]] = Appended(row[0], row[1])
                continue
            of = {write.request.key: write for write in some}
            for tenant, kind, id_, seq, at, *_ in connection.rows(*self._appends.many(some)):
                done[of[Key(tenant, kind, id_)]] = Appended(seq, at)

    def add(self, write: Write, connection: Connection) -> Appended:
        """Do it, or say why not."""
        sql, values = self._appends.one(write)
        while True:
            row = _try(connection, write.request, sql, values)
            if row is not None:
                return Appended(row[0], row[1])
            done = self.refused(connection, write.request, write.id)
            if done is not None:
                return done
            check_time(write.request.key, write.deadline)

    def refused(self, connection: Connection, request: Append, id_: str) -> Appended | None:
        """Why an append changed nothing; None if that is no longer so."""
        now, seq, epoch, live, known, at = connection.rows(self._sql.why, (*request.key, id_))[0]
        if seq is not None and not live:
            clear(connection, self._sql, request.key)
            seq = epoch = known = None
        if known is not None:
            return Appended(known, at, repeated=request.id is not None)
        if request.epoch is not None and request.epoch != epoch:
            raise fenced(request.key)
        if request.expect is not None and request.expect != (seq or 0):
            raise conflict(request, seq or 0)
        return None if seq is not None or request.count else Appended(0, now)


def _try(
    connection: Connection, request: Append, sql: str, values: list[Any]
) -> tuple[Any, ...] | None:
    try:
        if len(request.body) > LARGE:
            return next(iter(connection.rows(sql, values)), None)
        return connection.again(sql, values)
    except psycopg.errors.UniqueViolation as error:
        if error.diag.constraint_name != "limpet_records_id":
            raise
        return None  # its id came in just before it


def clear(connection: Connection, sql: Statements, key: Key) -> None:
    """Remove a journal that has expired."""
    with connection.transaction():
        for (journal,) in connection.rows(sql.clear, key):
            connection.run(sql.drop, ([journal],))


def check_time(key: Key, deadline: float) -> None:
    """Bound the tries of a call that others keep overtaking."""
    if time.monotonic() > deadline:
        msg = (
            f"{key.kind} {key.id!r} kept changing for longer than the timeout. "
            "Try again, or open the store with a larger timeout=."
        )
        raise StoreBusy(msg)
