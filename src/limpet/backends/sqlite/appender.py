"""Changes of journals within an open transaction, and the heads that their writer has seen.

Every statement gives up Python's global lock, and with many threads waiting to run, getting it back
costs more than the statement. So an append to a journal whose head is known reads nothing and
writes its record, and the records of a batch are written by a few statements of many rows.
"""

from __future__ import annotations

import os
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from limpet.backends import decide, sql
from limpet.backends.contract import Appended, Head, Key, Lease

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import apsw

    from limpet.backends.contract import Append
    from limpet.backends.decide import Decision

__all__ = ["QUERIES", "Appender", "Heads", "Stored", "find", "now", "stored"]

QUERIES = sql.load(os.path.dirname(__file__))

#: Heads that a writer remembers; where there are more, those that were read first are read again.
MOST_HEADS = 10_000

#: Rows to a statement. Few sizes, so that all of them stay in the cache of prepared statements.
SIZES = (64, 16, 4, 1)


def now() -> int:
    """This machine's clock, in microseconds."""
    return time.time_ns() // 1000


class Stored(Struct, frozen=True):
    """A journal as it is stored: its head, its row's number, and the bytes compacted away."""

    head: Head
    journal: int
    dropped: int


def stored(tenant: str, kind: str, row: tuple[Any, ...]) -> Stored:
    """What a *row* of the queries for heads says.

    A number of 0 means that there is only a lease.
    """
    journal, id_, incarnation, created, dropped_seq, dropped_at, dropped, ttl, ttl_from, *rest = row
    status, meta, labels, holder, epoch, until, seq, at, total = rest
    if seq is None:  # all of its records were compacted away
        seq, at, total = dropped_seq, dropped_at, dropped
    head = Head(
        Key(tenant, kind, id_),
        incarnation,
        seq if incarnation else 0,
        dropped_seq + 1,
        total - dropped,
        created,
        at,
        ttl,
        None if ttl is None else max(at, ttl_from) + ttl,
        status,
        {} if labels is None else msgspec.json.decode(labels),
        meta,
        None if epoch is None else Lease(holder, epoch, until),
    )
    return Stored(head, journal, dropped)


def find(connection: apsw.Connection, key: Key) -> Stored | None:
    """The journal as it is stored, expired or not; None where there is nothing."""
    for query in ("stored_head_with_record", "stored_head"):
        row = connection.execute(QUERIES[query], key).fetchone()
        if row is not None:
            return stored(key.tenant, key.kind, row)
    return None


class Heads:
    """The heads that a connection has seen or written: right while nobody else has written.

    That nobody has is asked of SQLite within each transaction. What was put here by a transaction
    that was not committed is forgotten by the next one.
    """

    def __init__(self) -> None:
        self._found: dict[Key, Stored | None] = {}
        self._connection: apsw.Connection | None = None
        self._version: object = None  # which says something about this connection only
        self._open = False

    def begin(self, connection: apsw.Connection) -> None:
        """A transaction has begun, and holds the lock for writing."""
        version = connection.execute("PRAGMA data_version").get
        if (
            self._open
            or connection is not self._connection
            or version != self._version
            or len(self._found) > MOST_HEADS
        ):
            self._found.clear()
            self._connection, self._version = connection, version
        self._open = True

    def committed(self) -> None:
        """It was committed: what it has put here is so."""
        self._open = False

    def get(self, connection: apsw.Connection, key: Key) -> Stored | None:
        """The journal, as `find` finds it."""
        try:
            return self._found[key]
        except KeyError:
            found = self._found[key] = find(connection, key)
            return found

    def put(self, key: Key, value: Stored | None) -> None:
        """It has become this, or is gone."""
        self._found[key] = value


class Appender:
    """Appends and other changes on *connection*, within a transaction that holds the write lock."""

    def __init__(self, connection: apsw.Connection, heads: Heads) -> None:
        self._connection = connection
        self._heads = heads
        heads.begin(connection)
        self._records: list[tuple[Any, ...]] = []  # to be inserted
        self._ids: dict[tuple[int, str], Appended] = {}  # of those

    # -- appends -----------------------------------------------------------------------------

    def append(self, request: Append, at: int) -> Appended:
        """`Backend.append`. Its record is written by `flush`, or with the next that reads any."""
        before = self.live(request.key, at)
        if before is None:
            decision = decide.decide(None, request, at)
        else:
            known = None if request.id is None else self._known(before, request)
            decision = decide.decide(before.head, request, at, known)
        if decision.head is not None:
            self._apply(before, decision)
        return decision.answer

    def append_all(self, requests: Sequence[Append], at: int) -> list[Appended]:
        """`Backend.append_all`: all of them are decided before the first is applied."""
        for request in requests:
            self.live(request.key, at)
        heads: dict[Key, Head | None] = {}
        ids: dict[tuple[Key, str], Appended] = {}
        decisions: list[Decision] = []
        for request in requests:
            key = request.key
            before = self._heads.get(self._connection, key)
            head = heads.get(key, None if before is None else before.head)
            known = None if request.id is None else ids.get((key, request.id))
            if known is None and before is not None:
                known = self._known(before, request)
            decision = decide.decide(head, request, at, known)
            if decision.head is not None:
                heads[key] = decision.head
                if request.id is not None and decision.record is not None:
                    ids[key, request.id] = decision.answer
            decisions.append(decision)
        for request, decision in zip(requests, decisions, strict=True):
            if decision.head is not None:
                self._apply(self._heads.get(self._connection, request.key), decision)
        return [decision.answer for decision in decisions]

    def _known(self, before: Stored, request: Append) -> Appended | None:
        """What the append under this id was answered, if there was one."""
        if request.id is None:
            return None
        known = self._ids.get((before.journal, request.id))
        if known is None:
            row = self._connection.execute(
                QUERIES["known"], (before.journal, request.id)
            ).fetchone()
            if row is not None:
                known = Appended(row[0], row[1], before.head.incarnation)
        return known

    def _apply(self, before: Stored | None, decision: Decision) -> None:
        """Write what changes of the journal's row, if anything does, and note its record."""
        head, record = decision.head, decision.record
        assert head is not None  # noqa: S101 - the caller has seen to it
        if before is None:
            journal, dropped, labels = self._create(head), 0, {}
        else:
            journal, dropped, old = before.journal, before.dropped, before.head
            labels = old.labels
            if (
                head.status != old.status
                or head.meta != old.meta
                or head.ttl != old.ttl
                or head.labels != labels
                or head.incarnation != old.incarnation
                or (record is None and head.expires != old.expires)
            ):
                self._connection.execute(
                    QUERIES["change_journal"],
                    (
                        head.incarnation,
                        head.created,
                        head.first - 1,
                        head.created if head.incarnation != old.incarnation else None,
                        *_attributes(head),
                        journal,
                    ),
                )
        if head.labels != labels:
            self._set_labels(journal, labels, head.labels)
        self._heads.put(head.key, Stored(head, journal, dropped))
        if record is not None:
            total = dropped + head.size
            self._records.append(
                (journal, record.seq, record.count, record.at, total, record.id, record.body)
            )
            if record.id is not None:
                self._ids[journal, record.id] = decision.answer

    def _create(self, head: Head) -> int:
        """A new row; its number."""
        lease = head.lease or Lease(None, None, None)  # type: ignore[arg-type] # no lease
        self._connection.execute(
            QUERIES["create_journal"],
            (
                *head.key,
                head.incarnation,
                head.created,
                head.first - 1,
                head.created,
                *_attributes(head),
                lease.holder,
                lease.epoch,
                lease.until,
            ),
        )
        return self._connection.last_insert_rowid()

    def _set_labels(self, journal: int, old: dict[str, str], new: dict[str, str]) -> None:
        for name in old.keys() - new.keys():
            self._connection.execute(QUERIES["remove_label"], (journal, name))
        for name, value in new.items():
            if old.get(name) != value:
                self._connection.execute(QUERIES["set_label"], (journal, name, value))

    def flush(self) -> None:
        """Write the records that were appended."""
        rows, self._records = self._records, []
        if len(rows) == 1:  # a lone caller's, and worth not going round
            self._connection.execute(_insert(1), rows[0])
            return
        for some in _portions(rows):
            self._connection.execute(_insert(len(some)), [value for row in some for value in row])

    # -- other changes -----------------------------------------------------------------------

    def live(self, key: Key, at: int) -> Stored | None:
        """The journal, unless it has expired: then it is removed."""
        found = self._heads.get(self._connection, key)
        if found is not None and decide.live(found.head, at) is None:
            self._remove(key, found.journal)
            return None
        return found

    def live_head(self, key: Key, at: int) -> Head | None:
        """The head of the same."""
        found = self.live(key, at)
        return None if found is None else found.head

    def delete(self, key: Key, at: int) -> bool:
        """`Backend.delete`."""
        found = self.live(key, at)
        if found is None:
            return False
        self._remove(key, found.journal)
        return found.head.seq > 0

    def _remove(self, key: Key, journal: int) -> None:
        self.flush()
        for query in ("delete_records", "delete_labels", "delete_journal"):
            self._connection.execute(QUERIES[query], (journal,))
        self._heads.put(key, None)

    def compact(self, key: Key, before: int, at: int) -> int:
        """`Backend.compact`."""
        found = self.live(key, at)
        if found is None:
            return 0
        self.flush()
        row = self._connection.execute(QUERIES["droppable"], (found.journal, before)).fetchone()
        if row is None:
            return 0
        seq, dropped_at, total = row
        count: int = self._connection.execute(QUERIES["count_entries"], (found.journal, before)).get
        self._connection.execute(QUERIES["drop_records"], (found.journal, before))
        self._connection.execute(QUERIES["note_dropped"], (seq, dropped_at, total, found.journal))
        head = msgspec.structs.replace(
            found.head, first=seq + 1, size=found.head.size - (total - found.dropped)
        )
        self._heads.put(key, Stored(head, found.journal, total))
        return count

    def sweep(self, limit: int, at: int) -> int:
        """`Backend.sweep`."""
        rows: Any = self._connection.execute(QUERIES["expired"], (at, limit)).fetchall()
        for journal, *key in rows:
            self._remove(Key(*key), journal)
        return len(rows)

    def set_lease(self, key: Key, head: Head) -> Lease:
        """Store the lease of *head*, which `decide` has made; it, once more."""
        lease = head.lease
        assert lease is not None  # noqa: S101 - the caller has just made it
        before = self._heads.get(self._connection, key)
        if before is None:
            self._heads.put(key, Stored(head, self._create(head), 0))
            return lease
        self._connection.execute(
            QUERIES["set_lease"], (lease.holder, lease.epoch, lease.until, before.journal)
        )
        self._heads.put(key, Stored(head, before.journal, before.dropped))
        return lease


def _attributes(head: Head) -> tuple[Any, ...]:
    """ttl, ttl_from, status, meta and labels of a row."""
    ttl_from = None
    if head.ttl is not None and head.expires is not None:
        ttl_from = head.expires - head.ttl
    labels = msgspec.json.encode(head.labels).decode() if head.labels else None
    return head.ttl, ttl_from, head.status, head.meta, labels


def _portions(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """*rows* in portions for which there is a statement: 23 are 16 + 4 + 1 + 1 + 1."""
    start = 0
    for size in SIZES:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


@cache
def _insert(rows: int) -> str:
    values = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * rows)
    return QUERIES["insert_records"] + values
