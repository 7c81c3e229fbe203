"""Appends to PostgreSQL: an append is one statement, and what was refused is decided once more.

The statements say in SQL what `limpet.backends.decide` says in Python. Where one changes nothing,
the head that is stored is fetched, and `decide` says why; or that it may be tried again, because
others were faster.
"""

from __future__ import annotations

import os
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
from limpet.errors import StoreBusy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from limpet.backends.postgresql.connections import Connection, Connections

__all__ = [
    "Appender",
    "IdCameIn",
    "Stored",
    "Write",
    "check_time",
    "head_of",
    "new_journal",
    "remove_expired",
]


class IdCameIn(Exception):
    """The id of an append came in while its transaction was under way, which has failed by that."""


def new_journal() -> str:
    """A UUID that begins with the time: what is written together lies together in the index."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


class Write:
    """An append on its way, under an id that it keeps through every try until *deadline*."""

    __slots__ = ("deadline", "id", "request", "tried", "unanswered")

    def __init__(self, request: Append, deadline: float) -> None:
        self.request = request
        self.deadline = deadline
        self.id = request.id or generated_id()
        self.tried = False  # so that its id may be known
        self.unanswered = False  # a try of it had no answer

    def statements(self) -> tuple[str, ...]:
        """What to try, one after the other, until one returns something."""
        request = self.request
        if not request.count:
            return ("change",)
        if request.expect is None:
            return "append", "begin"
        return ("append",) if request.expect.seq else ("begin",)

    def values(self) -> dict[str, Any]:
        """What these are given."""
        request = self.request
        expect, origin, ttl = request.expect, request.origin, request.ttl
        labels = None if request.labels is UNSET else msgspec.json.encode(request.labels).decode()
        lifetime = None if ttl is UNSET or ttl is None else micros(ttl)
        values = {
            **request.key._asdict(),
            "append_id": self.id,
            "known": self.tried or request.id is not None,
            "epoch": request.epoch,
            "expect_seq": None if expect is None else expect.seq,
            "expect_incarnation": None if expect is None else expect.incarnation,
            "sets_status": request.status is not UNSET,
            "status": None if request.status is UNSET else request.status,
            "labels": labels,
            "sets_meta": request.meta is not UNSET,
            "meta": None if request.meta is UNSET else request.meta,
            "sets_ttl": ttl is not UNSET,
            "ttl": lifetime,
            "at": None if origin is None else origin.at,
        }
        if not request.count:
            return values
        values |= {"count": request.count, "body": request.body}
        if expect is None or not expect.seq:  # it may be the first of a journal
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


class Stored(Struct, frozen=True):
    """What is stored of a journal at one moment, and what an append to it was answered."""

    now: int
    head: Head | None  # as `decide` has it: expired or not, with the newest lease
    known: Appended | None


def head_of(tenant: str, kind: str, row: Sequence[Any]) -> Head:
    """The head that the columns of a *row* tell of, as it is stored."""
    *columns, status, labels, meta, holder, epoch, until = row
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
    )


class Appender:
    """The appends of one store."""

    def __init__(self, connections: Connections, queries: Mapping[str, str]) -> None:
        self._connections = connections
        self._queries = queries

    def append(self, request: Append) -> Appended:
        """`Backend.append`."""
        write = Write(request, self._connections.deadline())
        return self._connections.run(partial(self.add, write), write.deadline, writes=True)

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

    def add(self, write: Write, connection: Connection) -> Appended:
        """Do it, or say why not.

        In a transaction, `IdCameIn` if its id came in just before it.
        """
        while True:
            values = write.values()
            write.tried = True
            try:
                for name in write.statements():
                    row = connection.row(self._queries[name], **values)
                    if row is not None:
                        return Appended(*row[:3])
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
        decision = decide.decide(head, request, stored.now, known)
        if decision.head is not None:
            return None
        if request.id is None and known is not None:  # an id of ours, from a try before this one
            return known
        return decision.answer

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
