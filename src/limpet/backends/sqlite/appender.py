"""Changes of journals on one connection, and the heads that it has seen.

Every statement gives up Python's global lock, and with many threads waiting to run, getting it back
costs more than the statement. So an append to a journal whose head is known reads nothing and
writes its record, and the records of a batch are written by a few statements of many rows.
"""

from __future__ import annotations

import os
import time
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import apsw
import msgspec
from msgspec import Struct

from limpet.backends import decide, sql
from limpet.backends.contract import HIDDEN, Appended, Head, Key, Lease
from limpet.errors import LimpetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from limpet.backends.contract import Append, Expect, Record
    from limpet.backends.decide import Decision

__all__ = ["END", "QUERIES", "Appender", "Stored", "find", "listed", "now"]

T = TypeVar("T")

QUERIES = sql.load(os.path.dirname(__file__))

#: Heads that a writer remembers; where there are more, all are read again.
MOST_HEADS = 10_000

#: Rows to a statement. Few sizes, so that all of them stay in the cache of prepared statements.
SIZES = (64, 16, 4, 1)

#: Over every number.
END = 1 << 62


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
    status, meta, labels, holder, epoch, until, note, last, seq, at, total = rest
    if last is None:  # all of its records were compacted away
        seq, at, total = dropped_seq, dropped_at, dropped
    elif seq is None:
        raise apsw.CorruptError(f"the last record of {kind} {id_!r} is missing")
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
        note,
    )
    return Stored(head, journal, dropped)


def listed(connection: apsw.Connection, tenant: str, kind: str, row: tuple[Any, ...]) -> Head:
    """The head that a *row* says, for a list: damage to one journal does not hide the others."""
    try:
        return stored(tenant, kind, row).head
    except apsw.CorruptError:
        seq = connection.execute(QUERIES["last_number"], (row[0],)).get
        return stored(tenant, kind, (*row[:-3], seq, row[5], row[6])).head


def find(connection: apsw.Connection, key: Key) -> Stored | None:
    """The journal as it is stored, expired or not; None where there is nothing."""
    # All of them, though there is one at most: a statement that is not at its end keeps a snapshot.
    rows = connection.execute(QUERIES["stored_head"], key).fetchall()
    return stored(key.tenant, key.kind, rows[0]) if rows else None


class Appender:
    """Appends and other changes on *connection*, each between `begin` and `commit`.

    It remembers the heads that it has read or written. They are right while no other connection has
    written, which SQLite is asked within the transaction; what was not committed is forgotten.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self._heads: dict[Key, Stored | None] = {}
        self._version: int | None = None  # of the file after our last commit
        self._records: list[tuple[Any, ...]] = []  # to be inserted
        self._ids: dict[tuple[int, str], Appended] = {}  # of those
        self._without_note: set[int] = set()  # journals that have had one until now
        self._guessed: int | None = None  # the version that `append_one` takes the file to be of

    def transact(self, work: Callable[[Appender, int], T]) -> T:
        """Do *work*, which is given the time, in a transaction.

        What it refuses has changed nothing: that is committed, so that all heads stay known.
        """
        try:
            self.begin()
            try:
                done = work(self, now())
            except LimpetError:
                self.commit()
                raise
            self.commit()
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise
        return done

    def begin(self) -> None:
        """Begin a transaction, and take the lock for writing."""
        connection = self.connection
        if connection.in_transaction:  # an interrupt came before its end
            connection.execute("ROLLBACK")
        # BEGIN IMMEDIATE: a deferred lock could be lost between the read and the write.
        connection.execute("BEGIN IMMEDIATE")
        if connection.data_version() != self._version or len(self._heads) > MOST_HEADS:
            self._heads.clear()
            self._records.clear()
            self._ids.clear()
            self._without_note.clear()
        self._version = None

    def commit(self) -> None:
        """Write what was appended, and end the transaction."""
        if self._records:
            self.flush()
        self.connection.execute("COMMIT")
        self._version = self.connection.data_version()

    # -- appends -----------------------------------------------------------------------------

    def append(self, request: Append, at: int) -> Appended:
        """`Backend.append`. Its record is written by `flush`, or with the next that reads any."""
        before = self.live(request.key, at)
        if before is None:
            decision = decide.decide(None, request, at)
        elif request.id is None:
            decision = decide.decide(before.head, request, at)
        else:
            known = self._known(before, request.id)
            decision = decide.decide(before.head, request, at, known)
        if decision.head is not None:
            self._apply(before, decision)
        return decision.answer

    def append_one(self, request: Append) -> Appended | None:
        """`append` by one statement that commits by itself; None if it takes a transaction.

        It is decided by the head that is known, before there is a lock. That head is right if
        nobody else has written when the statement commits: SQLite asks `is_overtaken` then.
        """
        before = self._heads.get(request.key)
        if before is None or self._version is None or before.head.expires is not None:
            return None
        if request.id is not None or request.earlier or not request.count:
            return None
        try:
            decision = decide.decide(before.head, request, now())
        except LimpetError:  # by a head that may be an old one
            return None
        note = request.note
        goes = note is None and before.head.note is not None
        if decision.head is None or goes or _changes(before.head, decision):
            return None
        (record,) = decision.records
        self._guessed, self._version = self._version, None
        try:
            row = _row(before, record, before.head.size)
            if note is None:
                self.connection.execute(INSERT_ONE, row)
            else:
                self.connection.execute(INSERT_ONE_NOTED, (*row, note))
        except apsw.ConstraintError:  # overtaken, or the number is taken
            return None
        finally:
            self._guessed = None
        self._heads[request.key] = Stored(decision.head, before.journal, before.dropped)
        self._version = self.connection.data_version()
        return decision.answer

    def is_overtaken(self) -> bool:
        """For SQLite, before it commits: whether it must not, because others have written."""
        return self._guessed is not None and self._guessed != self.connection.data_version()

    def append_all(self, requests: Sequence[Append], at: int) -> list[Appended]:
        """`Backend.append_all`: all of them are decided before the first is applied."""
        for request in requests:
            self.live(request.key, at)
        heads: dict[Key, Head | None] = {}
        ids: dict[tuple[Key, str], Appended] = {}
        decisions: list[Decision] = []
        for request in requests:
            key = request.key
            before = self._find(key)
            head = heads.get(key, None if before is None else before.head)
            known = None
            if request.id is not None:
                known = ids.get((key, request.id))
                if known is None and before is not None:
                    known = self._known(before, request.id)
            decision = decide.decide(head, request, at, known)
            if decision.head is not None:
                heads[key] = decision.head
                if request.id is not None and decision.records:
                    ids[key, request.id] = decision.answer
            decisions.append(decision)
        for request, decision in zip(requests, decisions, strict=True):
            if decision.head is not None:
                self._apply(self._find(request.key), decision)
        return [decision.answer for decision in decisions]

    def _known(self, before: Stored, id_: str) -> Appended | None:
        """What the append under this id was answered, if there was one."""
        known = self._ids.get((before.journal, id_))
        if known is None:
            rows: Any = self.connection.execute(QUERIES["known"], (before.journal, id_)).fetchall()
            for seq, at in rows:
                known = Appended(seq, at, before.head.incarnation)
        return known

    def _apply(self, before: Stored | None, decision: Decision) -> None:
        """Write what changes of the journal's row, if anything does, and note its record."""
        head, records = decision.head, decision.records
        assert head is not None  # noqa: S101 - the caller has seen to it
        if before is None:
            before = Stored(
                Head(head.key, "", 0, 1, 0, head.created, head.created), self._create(head), 0
            )
        elif _changes(before.head, decision):
            self.connection.execute(
                QUERIES["change_journal"],
                (
                    head.incarnation,
                    head.created,
                    head.first - 1,
                    head.created if head.incarnation != before.head.incarnation else None,
                    *_attributes(head),
                    before.journal,
                ),
            )
        if head.labels != before.head.labels:
            self._set_labels(before.journal, before.head.labels, head.labels)
        self._heads[head.key] = Stored(head, before.journal, before.dropped)
        size = before.head.size
        for record in records:
            self._records.append(_row(before, record, size))
            size += len(record.body)
            if record.id is not None:
                self._ids[before.journal, record.id] = decision.answer
        if head.note == before.head.note:
            return
        if head.note is None:
            self._without_note.add(before.journal)
        else:
            self._records[-1] += (head.note,)
            self._without_note.discard(before.journal)

    def _create(self, head: Head) -> int:
        """A new row; its number."""
        lease = head.lease or Lease(None, None, None)  # type: ignore[arg-type] # no lease
        self.connection.execute(
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
        return self.connection.last_insert_rowid()

    def _set_labels(self, journal: int, old: dict[str, str], new: dict[str, str]) -> None:
        """Change the rows by which journals are found; nobody looks for those that are hidden."""
        for name in old.keys() - new.keys():
            if name[:1] != HIDDEN:
                self.connection.execute(QUERIES["remove_label"], (journal, name))
        for name, value in new.items():
            if old.get(name) != value and name[:1] != HIDDEN:
                self.connection.execute(QUERIES["set_label"], (journal, name, value))

    def flush(self) -> None:
        """Write the records that were appended, and their notes."""
        execute = self.connection.execute
        # In their order: what is in the large index already has lower numbers.
        for columns, rows in groupby(self._records, len):
            insert = "insert_records" if columns == COLUMNS else "insert_noted"
            for some in _portions(list(rows)):
                values = some[0] if len(some) == 1 else [value for row in some for value in row]
                execute(_insert(insert, columns, len(some)), values)
        for journal in self._without_note:
            self._delete_note(journal)
        self._without_note.clear()
        self._records.clear()
        self._ids.clear()

    def _delete_note(self, journal: int) -> None:
        for query in ("delete_recent_note", "delete_note"):
            self.connection.execute(QUERIES[query], (journal,))

    # -- other changes -----------------------------------------------------------------------

    def live(self, key: Key, at: int) -> Stored | None:
        """The journal, unless it has expired: then it is removed."""
        try:
            found = self._heads[key]
        except KeyError:
            found = self._find(key)
        if found is not None and found.head.expires is not None and not decide.live(found.head, at):
            self._remove(key, found.journal)
            return None
        return found

    def _find(self, key: Key) -> Stored | None:
        """The journal, expired or not."""
        try:
            return self._heads[key]
        except KeyError:
            found = self._heads[key] = find(self.connection, key)
            return found

    def live_head(self, key: Key, at: int) -> Head | None:
        """The head of the same."""
        found = self.live(key, at)
        return None if found is None else found.head

    def delete(self, key: Key, at: int, expect: Expect | None) -> bool:
        """`Backend.delete`."""
        found = self.live(key, at)
        if expect is not None:
            decide.check_delete(None if found is None else found.head, key, expect, at)
        if found is None:
            return False
        self._remove(key, found.journal)
        return found.head.seq > 0

    def _remove(self, key: Key, journal: int) -> None:
        self._drop(journal, END)
        self._delete_note(journal)
        for query in ("delete_labels", "delete_journal"):
            self.connection.execute(QUERIES[query], (journal,))
        self._heads[key] = None

    def _drop(self, journal: int, before: int) -> None:
        """Remove the records numbered under *before*."""
        self.flush()
        for query in ("delete_records", "delete_indexed", "delete_recent"):
            self.connection.execute(QUERIES[query], (journal, before))

    def compact(self, key: Key, before: int, at: int) -> int:
        """`Backend.compact`."""
        found = self.live(key, at)
        if found is None:
            return 0
        self.flush()
        rows: Any = self.connection.execute(
            QUERIES["droppable"], (found.journal, before)
        ).fetchall()
        if not rows:
            return 0
        ((seq, dropped_at, total),) = rows
        self._drop(found.journal, before)
        self.connection.execute(QUERIES["note_dropped"], (seq, dropped_at, total, found.journal))
        head = msgspec.structs.replace(
            found.head, first=seq + 1, size=found.head.size - (total - found.dropped)
        )
        self._heads[key] = Stored(head, found.journal, total)
        return int(seq) + 1 - found.head.first

    def rewrite(
        self,
        key: Key,
        bodies: Mapping[int, bytes],
        at: int,
        *,
        expect: Expect,
        renewed: str | None,
        labels: Mapping[str, str],
        note: bytes | None,
    ) -> int:
        """`Backend.rewrite`."""
        found = self.live(key, at)
        if found is None or found.head.expect != expect:
            return 0
        self.flush()
        count, total = 0, found.dropped
        rows: Any = self.connection.execute(QUERIES["sizes_of"], (found.journal,)).fetchall()
        for seq, record, size, was in rows:
            body = bodies.get(seq)
            total += size if body is None else len(body)
            if body is not None:
                self.connection.execute(QUERIES["set_body"], (body, total, record))
                count += 1
            elif total != was:
                self.connection.execute(QUERIES["set_total"], (total, record))
        head = found.head
        all_labels = {**head.labels, **labels}
        self._set_labels(found.journal, head.labels, all_labels)
        encoded = msgspec.json.encode(all_labels).decode() if all_labels else None
        values = (renewed or head.incarnation, encoded, found.journal)
        self.connection.execute(QUERIES["set_rewritten"], values)
        if note is not None:
            self._delete_note(found.journal)
            self.connection.execute(QUERIES["set_note"], (found.journal, note))
        self._heads.pop(key, None)
        return count

    def sweep(self, limit: int, at: int) -> int:
        """`Backend.sweep`."""
        rows: Any = self.connection.execute(QUERIES["expired"], (at, limit)).fetchall()
        for journal, *key in rows:
            self._remove(Key(*key), journal)
        return len(rows)

    def set_lease(self, key: Key, head: Head) -> Lease:
        """Store the lease of *head*, which `decide` has made; it, once more."""
        lease = head.lease
        assert lease is not None  # noqa: S101 - the caller has just made it
        before = self._find(key)
        if before is None:
            self._heads[key] = Stored(head, self._create(head), 0)
            return lease
        self.connection.execute(
            QUERIES["set_lease"], (lease.holder, lease.epoch, lease.until, before.journal)
        )
        self._heads[key] = Stored(head, before.journal, before.dropped)
        return lease


def _changes(old: Head, decision: Decision) -> bool:
    """Whether a journal's row changes by *decision*; mostly there is only a record more."""
    head = decision.head
    return head is not None and (
        head.meta != old.meta
        or head.status != old.status
        or head.labels != old.labels
        or head.ttl != old.ttl
        or head.incarnation != old.incarnation
        or (head.expires != old.expires and not decision.records)
    )


def _row(journal: Stored, record: Record, size: int) -> tuple[Any, ...]:
    """The values of a *record*; the journal had so many bytes before it."""
    total = journal.dropped + size + len(record.body)
    id_, body = record.id, record.body
    return (journal.journal, record.seq, record.count, record.at, total, id_, body)


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
def _insert(query: str, columns: int, rows: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return QUERIES[query] + ", ".join([row] * rows)


#: Columns of a record, without its note.
COLUMNS = 7

INSERT_ONE = _insert("insert_records", COLUMNS, 1)
INSERT_ONE_NOTED = _insert("insert_noted", COLUMNS + 1, 1)
