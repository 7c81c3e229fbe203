"""Appends to PostgreSQL: an append is one statement, and what was refused is decided once more.

The statements say in SQL what `limpet.backends.decide` says in Python. Where one changes nothing,
the head that is stored is fetched, and `decide` says why; or that it may be tried again, because
others were faster.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
from msgspec import Struct

from limpet.backends import decide
from limpet.backends.contract import (
    UNSET,
    Append,
    Appended,
    Head,
    Key,
    Lease,
    generated_id,
    micros,
    new_incarnation,
)
from limpet.backends.group_commit import GroupCommit, Ticket, tell
from limpet.backends.postgresql.connections import int8s
from limpet.errors import StoreBusy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from limpet.backends.postgresql.connections import Connection, Connections

__all__ = [
    "APPENDS",
    "Appender",
    "IdCameIn",
    "Stored",
    "Write",
    "check_time",
    "head_of",
    "new_journal",
    "remove_expired",
]

#: What an append may be, in the order in which they are tried. SEVERAL are for several records.
APPENDS = ("append", "append_and_change", "begin")
SEVERAL = tuple(f"{name}_several" for name in APPENDS)
STATEMENTS = (*APPENDS, *SEVERAL, "change")

#: Up to so many callers are served side by side.
SIDE_BY_SIDE = 4

#: From so many in a batch on, all are served together.
CROWD = 4


class IdCameIn(Exception):
    """The id of an append came in while its transaction was under way, which has failed by that."""


def new_journal() -> str:
    """A UUID that begins with the time: what is written together lies together in the index."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


class Write:
    """An append on its way, under an id that it keeps through every try until *deadline*."""

    __slots__ = ("deadline", "id", "request", "statements", "tried", "unanswered")

    def __init__(self, request: Append, deadline: float) -> None:
        self.request = request
        self.deadline = deadline
        self.id = request.id or generated_id()
        self.statements = _statements(request)
        self.tried = False  # so that its id may be known
        self.unanswered = False  # a try of it had no answer

    def values(self, statement: str) -> dict[str, Any]:
        """What a *statement* is given."""
        request = self.request
        key, expect, origin, ttl = request.key, request.expect, request.origin, request.ttl
        values: dict[str, Any] = {
            "tenant": key.tenant,
            "kind": key.kind,
            "id": key.id,
            "append_id": self.id,
            "known": self.tried or request.id is not None,
            "epoch": request.epoch,
            "expect_seq": None if expect is None else expect.seq,
            "expect_incarnation": None if expect is None else expect.incarnation,
            "at": None if origin is None else origin.at,
            "count": request.count,
            "body": request.body,
            "note": request.note,
            "total": request.count,
            "size": len(request.body),
        }
        if request.earlier:
            counts, bodies = zip(*request.earlier, strict=True)
            behind = [request.count + sum(counts[number:]) for number in range(1, len(counts) + 1)]
            values |= {"counts": int8s(counts), "bodies": list(bodies), "behind": int8s(behind)}
            values["total"] += sum(counts)
            values["size"] += sum(map(len, bodies))
        if statement in ("append", "append_several"):
            return values
        lifetime = None if ttl is UNSET or ttl is None else micros(ttl)
        labels = None if request.labels is UNSET else msgspec.json.encode(request.labels).decode()
        values |= {
            "sets_status": request.status is not UNSET,
            "status": None if request.status is UNSET else request.status,
            "labels": labels,
            "sets_meta": request.meta is not UNSET,
            "meta": None if request.meta is UNSET else request.meta,
            "sets_ttl": ttl is not UNSET,
            "ttl": lifetime,
        }
        if statement in ("begin", "begin_several"):
            if ttl is UNSET and request.default_ttl is not None:
                lifetime = micros(request.default_ttl)
            values |= {
                "journal": new_journal(),
                "new_incarnation": new_incarnation() if origin is None else origin.incarnation,
                "new_ttl": lifetime,
                "created": None if origin is None else origin.created,
                "first": 1 if origin is None else origin.first,
            }
        return values


def _statements(request: Append) -> tuple[str, ...]:
    """What to try for it, one after the other, until one returns something."""
    changes = not (request.status is request.labels is request.meta is request.ttl is UNSET)
    if not request.count:
        return ("change",)
    append, begin = "append_and_change" if changes else "append", "begin"
    if request.earlier:
        append, begin = f"{append}_several", f"{begin}_several"
    if request.expect is None:
        return append, begin
    return (append,) if request.expect.seq else (begin,)


class Stored(Struct, frozen=True):
    """What is stored of a journal at one moment, and what an append to it was answered."""

    now: int
    head: Head | None  # as `decide` has it: expired or not, with the newest lease
    known: Appended | None


def head_of(tenant: str, kind: str, row: Sequence[Any]) -> Head:
    """The head that the columns of a *row* tell of, as it is stored."""
    *columns, status, labels, meta, holder, epoch, until, note = row
    id_, incarnation, seq, first, size, created, updated, ttl, expires = columns
    return Head(
        Key(tenant, kind, id_),
        incarnation,
        seq,
        first,
        size,
        created,
        updated,
        ttl,
        expires,
        status,
        labels or {},
        meta,
        None if epoch is None else Lease(holder, epoch, until),
        note,
    )


class Appender:
    """The appends of one store.

    Few callers are served side by side, each on a connection of the pool. Where many come at once,
    and for async callers, those who wait are served together, as one transaction: each of its
    statements costs less than a transaction of its own. Whoever could not be served so at the first
    try (it was refused, or met a lock or a lost connection) goes on alone.
    """

    def __init__(self, connections: Connections, queries: Mapping[str, str]) -> None:
        self._connections = connections
        self._queries = queries
        self.start()

    def start(self) -> None:
        """With nobody waiting."""
        self._group = GroupCommit(
            self._commit,
            self._commit_one,
            threading.RLock(),
            timeout=self._connections.timeout,
            what=self._connections.place,
        )
        self._side_by_side = min(SIDE_BY_SIDE, self._connections.pool.size)
        self._crowd = 0  # how many were served together lately
        self._threads: ThreadPoolExecutor | None = None

    def after_fork_in_child(self) -> None:
        """Nobody waits here."""
        self._group.after_fork_in_child()
        self.start()

    def append(self, request: Append) -> Appended:
        """`Backend.append`."""
        write = Write(request, self._connections.deadline())
        if self._crowd >= CROWD or self._connections.pool.in_use >= self._side_by_side:
            done: Appended | None = self._group.run(write)
            if done is not None:
                return done
        return self._alone(write)

    async def append_async(self, request: Append) -> Appended:
        """`Backend.append_async`."""
        done: Appended = await self._group.run_async(Write(request, self._connections.deadline()))
        return done

    def append_all(self, requests: Sequence[Append]) -> list[Appended]:
        """`Backend.append_all`, as one transaction."""
        deadline = self._connections.deadline()
        writes = [Write(request, deadline) for request in requests]
        done = self._connections.run(partial(self._transact, writes), deadline, writes=True)
        return [done[write] for write in writes]

    def _transact(self, writes: list[Write], connection: Connection) -> dict[Write, Appended]:
        # In the order of their keys, in every process, so that no two wait for each other.
        ordered = sorted(writes, key=lambda write: write.request.key)
        while True:
            try:
                with connection.transaction():
                    return {write: self.add(write, connection) for write in ordered}
            except IdCameIn:
                # An id came in just before one of them: of a rival, or all of ours at a first try.
                known = {write: self.refused(write, connection) for write in ordered}
                done = {write: answer for write, answer in known.items() if answer is not None}
            if len(done) == len(writes):
                return done
            check_time(ordered[0].request.key, ordered[0].deadline)

    def _alone(self, write: Write) -> Appended:
        return self._connections.run(
            partial(self.add, write), write.deadline, writes=True, unanswered=write.unanswered
        )

    def _commit_one(self, write: Write) -> Any:
        """The same for one; others gather behind it meanwhile."""
        ticket = Ticket(write)
        self._commit([ticket])
        return ticket.outcome()

    def _commit(self, batch: list[Ticket]) -> None:
        """Serve *batch* as `GroupCommit` asks, as far as that goes at the first try."""
        # Half of it: after a crowd comes the one who was too late for it, and then a crowd.
        self._crowd = max(len(batch), self._crowd // 2)
        # In the order of their keys, in every process, so that no two wait for each other.
        batch.sort(key=lambda ticket: ticket.work.request.key)
        try:
            with self._connections.taken(batch[0].work.deadline) as slot:
                self._try_together(batch, slot.connected)
        except psycopg.Error as error:
            for ticket in batch:
                ticket.work.unanswered = self._connections.errors.unanswered(error)
        for ticket in [one for one in batch if one.result is None and one.inbox is not None]:
            batch.remove(ticket)
            if self._threads is None:
                from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - rarely needed

                size = self._connections.pool.size
                self._threads = ThreadPoolExecutor(size, thread_name_prefix="limpet-append")
            self._threads.submit(self._finish, ticket)

    def _try_together(self, batch: list[Ticket], connection: Connection) -> None:
        for name in STATEMENTS:
            some = [one for one in batch if one.result is None and name in one.work.statements]
            if some:
                answers = self._run(name, [ticket.work for ticket in some], connection)
                for ticket, answer in zip(some, answers, strict=True):
                    ticket.result = answer

    def _run(self, name: str, writes: list[Write], connection: Connection) -> list[Appended | None]:
        """Try a statement for each of *writes*, all in one transaction."""
        values = [write.values(name) for write in writes]
        for write in writes:
            write.tried = True
        rows = connection.run_many(self._queries[name], values)
        return [None if row is None else Appended(*row[:3]) for row in rows]

    def _finish(self, ticket: Ticket) -> None:
        """Do alone what an async caller waits for."""
        try:
            ticket.result = self._alone(ticket.work)
        except Exception as error:  # noqa: BLE001 - the caller's to see
            ticket.error = error
        tell([ticket])

    def close(self) -> None:
        """Finish what has come."""
        self._group.close()
        if self._threads is not None:
            self._threads.shutdown()

    def add(self, write: Write, connection: Connection) -> Appended:
        """Do it, or say why not.

        In a transaction, `IdCameIn` if its id came in just before it.
        """
        while True:
            try:
                for name in write.statements:
                    (answer,) = self._run(name, [write], connection)
                    if answer is not None:
                        return answer
            except psycopg.errors.UniqueViolation as error:
                if error.diag.constraint_name != "limpet_records_id":
                    raise
                if not connection.is_usable:
                    raise IdCameIn from error
            done = self.refused(write, connection)
            if done is not None:
                return done
            check_time(write.request.key, write.deadline)

    def refused(self, write: Write, connection: Connection) -> Appended | None:
        """What a write is to be answered that changed nothing; None if it may be done by now."""
        request = write.request
        stored = self.stored(connection, request.key, write.id)
        head = decide.live(stored.head, stored.now)
        if head is None and stored.head is not None:
            remove_expired(connection, self._queries, request.key)
        known = None if head is None else stored.known
        if known is not None:
            self.wait_for_standbys(connection, request.key)
        decision = decide.decide(head, request, stored.now, known)
        if decision.head is not None:
            return None
        if request.id is None and known is not None:  # an id of ours, from a try before this one
            return known
        return decision.answer

    def wait_for_standbys(self, connection: Connection, key: Key) -> None:
        """Have the commit wait for them, before what an earlier try wrote is acknowledged.

        With synchronous replication, a session that is ended while it waits for them has committed
        all the same, and only here. To lock the row is a write, and its commit waits again.
        """
        connection.run(self._queries["lock_journal"], **key._asdict())

    def stored(self, connection: Connection, key: Key, append_id: str | None) -> Stored:
        """What there is, expired or not."""
        values = {**key._asdict(), "append_id": append_id}
        now, seq, at, *row = connection.rows(self._queries["stored"], **values)[0]
        head = None if row[0] is None else head_of(key.tenant, key.kind, row)
        known = None if head is None or seq is None else Appended(seq, at, head.incarnation)
        return Stored(now, head, known)


def remove_expired(connection: Connection, queries: Mapping[str, str], key: Key) -> None:
    """Remove a journal, if it has expired."""
    # Two statements: the second one sees what was appended since the first one began.
    with connection.transaction():
        for (journal,) in connection.rows(queries["delete_expired"], **key._asdict()):
            connection.run(queries["delete_records"], journals=[journal])


def check_time(key: Key, deadline: float) -> None:
    """Bound the tries of a call that others keep overtaking."""
    if time.monotonic() > deadline:
        msg = (
            f"{key.kind} {key.id!r} kept changing for longer than the timeout. "
            "Try again, or open the store with a larger timeout=."
        )
        raise StoreBusy(msg)
