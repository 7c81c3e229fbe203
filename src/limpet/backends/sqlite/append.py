"""A batch of appends as a handful of statements.

Every statement gives up Python's global lock, and with many threads waiting to run, getting it back
costs more than the statement. So a batch is read, decided in Python, and written with a few
statements of many rows, however many callers are in it.
"""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from limpet.backends.contract import UNSET, Append, Appended, Key, Origin, conflict, fenced, micros

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import apsw

    from limpet.errors import LimpetError

__all__ = ["append_all", "append_one", "create", "find", "now", "remove"]

#: Rows to a statement. Few sizes, so that all of them stay in the cache of prepared statements.
SIZES = (64, 16, 4, 1)

_COLUMNS = "journal, seq, epoch, ttl, updated, expires, until"
_BY_KEY = f"SELECT {_COLUMNS} FROM limpet_journals WHERE tenant = ? AND kind = ? AND id = ?"  # noqa: S608


class _Head:
    """A journal's head as this batch changes it."""

    __slots__ = ("added", "epoch", "expires", "ids", "journal", "seq", "ttl", "updated")

    def __init__(
        self, journal: int, seq: int, epoch: int | None, ttl: int | None, updated: int
    ) -> None:
        self.journal = journal
        self.seq = seq
        self.epoch = epoch
        self.ttl = ttl
        self.updated = updated
        self.expires: int | None = None
        self.added = 0  # bytes
        self.ids: dict[str, Appended] = {}  # appends of this batch, by their ids

    def row(self) -> tuple[Any, ...]:
        return self.journal, self.seq, self.added, self.updated, self.ttl, self.expires


def append_all(
    connection: apsw.Connection, requests: Sequence[Append]
) -> list[Appended | LimpetError]:
    """Do *requests* in their order, within the open transaction; what each came to."""
    at = now()
    heads = _read_heads(connection, {request.key for request in requests}, at)
    changed: dict[int, _Head] = {}
    records: list[tuple[Any, ...]] = []
    outcomes: list[Appended | LimpetError] = []
    for request in requests:
        outcome, head = _append(connection, heads.get(request.key), request, records, at)
        if head is not None:
            heads[request.key] = changed[head.journal] = head
        outcomes.append(outcome)
    _write(connection, _insert_sql, records)
    _write(connection, _update_sql, [head.row() for head in changed.values()])
    return outcomes


def append_one(connection: apsw.Connection, request: Append) -> Appended | LimpetError:
    """`append_all` for a lone caller: nothing to gather, nothing to portion out."""
    at = now()
    rows = connection.execute(_BY_KEY, request.key).fetchall()
    done = _follow(connection, rows[0], request, at) if rows else None
    if done is not None:
        return done
    head = _head(connection, rows[0], at) if rows else None
    records: list[tuple[Any, ...]] = []
    outcome, head = _append(connection, head, request, records, at)
    for record in records:
        connection.execute(_insert_sql(1), record)
    if head is not None:
        connection.execute(_update_sql(1), head.row())
    return outcome


def _follow(
    connection: apsw.Connection, row: Sequence[Any], request: Append, at: int
) -> Appended | None:
    """The commonest append, in few words: a record alone, to a journal that is there.

    None if it is more than that, or if it is to be refused.
    """
    journal, seq, epoch, ttl, updated, expires, until = row
    if not (seq and _only_adds(request)):
        return None
    if expires is not None and expires <= at and (until is None or until <= at):
        return None
    if request.epoch not in (None, epoch) or request.expect not in (None, seq):
        return None
    seq, updated = seq + request.count, max(at, updated)
    connection.execute(_insert_sql(1), (journal, seq, request.count, updated, None, request.body))
    expires = None if ttl is None else at + ttl
    connection.execute(_update_sql(1), (journal, seq, len(request.body), updated, ttl, expires))
    return Appended(seq, updated)


def _only_adds(request: Append) -> bool:
    return (
        request.count > 0
        and request.id is None
        and request.status is UNSET
        and request.labels is UNSET
        and request.ttl is UNSET
        and request.origin is None
    )


def _append(
    connection: apsw.Connection,
    head: _Head | None,
    request: Append,
    records: list[tuple[Any, ...]],
    at: int,
) -> tuple[Appended | LimpetError, _Head | None]:
    """What *request* comes to, its record, and the head if it moved."""
    outcome = _known(connection, head, request) or _refusal(head, request)
    if outcome is not None:
        return outcome, None
    if head is None:
        if not request.count:
            return Appended(0, at), None
        head = _Head(create(connection, request.key, at), 0, None, None, at)
    if request.origin is not None:
        at = request.origin.at
        if request.count and not head.seq:
            head.ttl = _micros(request.default_ttl)
            _begin(connection, head, request.origin)
    if request.status is not UNSET or request.labels is not UNSET:
        _set_status_and_labels(connection, head.journal, request)
    return _advance(head, request, records, at), head


def _known(connection: apsw.Connection, head: _Head | None, request: Append) -> Appended | None:
    """What the append with this id came to the first time, if there was one."""
    if head is None or request.id is None:
        return None
    if request.id in head.ids:
        return head.ids[request.id]
    rows = connection.execute(
        "SELECT seq, at FROM limpet_records WHERE journal = ? AND id = ?",
        (head.journal, request.id),
    ).fetchall()
    return _repeated(*rows[0]) if rows else None


def _repeated(seq: Any, at: Any) -> Appended:
    return Appended(seq, at, repeated=True)


def _refusal(head: _Head | None, request: Append) -> LimpetError | None:
    if request.epoch is not None and (head is None or head.epoch != request.epoch):
        return fenced(request.key)
    seq = 0 if head is None else head.seq
    if request.expect is not None and request.expect != seq:
        return conflict(request, seq)
    return None


def _advance(head: _Head, request: Append, records: list[tuple[Any, ...]], at: int) -> Appended:
    if request.ttl is not UNSET:
        head.ttl = _micros(request.ttl)
    elif not head.seq:  # it may be there before its first record, for a lease
        head.ttl = _micros(request.default_ttl)
    if request.count or request.ttl is not UNSET:
        head.expires = None if head.ttl is None else at + head.ttl
    if request.count:
        head.seq += request.count
        head.added += len(request.body)
        head.updated = max(at, head.updated)  # a clock may be set back, a journal's times do not
        records.append(
            (head.journal, head.seq, request.count, head.updated, request.id, request.body)
        )
        if request.id is not None:
            head.ids[request.id] = _repeated(head.seq, head.updated)
    return Appended(head.seq, head.updated)


def _begin(connection: apsw.Connection, head: _Head, origin: Origin) -> None:
    """Let a journal begin as its copy in another store did."""
    connection.execute(
        "UPDATE limpet_journals SET created = ?, floor = ? WHERE journal = ?",
        (origin.created, origin.floor, head.journal),
    )
    head.seq, head.updated = origin.floor, origin.created


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else micros(seconds)


def _set_status_and_labels(connection: apsw.Connection, journal: int, request: Append) -> None:
    if request.status is not UNSET:
        connection.execute(
            "UPDATE limpet_journals SET status = ?1 WHERE journal = ?2 AND status IS NOT ?1",
            (request.status, journal),
        )
    for name, value in ({} if request.labels is UNSET else request.labels).items():
        if value is None:
            connection.execute(
                "DELETE FROM limpet_labels WHERE journal = ? AND name = ?", (journal, name)
            )
        else:
            connection.execute(
                "INSERT INTO limpet_labels VALUES (?, ?, ?) ON CONFLICT DO UPDATE"
                " SET value = excluded.value WHERE value IS NOT excluded.value",
                (journal, name, value),
            )


# -- heads ---------------------------------------------------------------------------------------


def find(connection: apsw.Connection, key: Key, at: int) -> tuple[int, int, int | None] | None:
    """journal, seq and epoch of a journal that is there; or make one that has expired go."""
    head = _read_heads(connection, {key}, at).get(key)
    return None if head is None else (head.journal, head.seq, head.epoch)


def _read_heads(connection: apsw.Connection, keys: set[Key], at: int) -> dict[Key, _Head]:
    heads: dict[Key, _Head] = {}
    for key, row in _select(connection, keys):
        head = _head(connection, row, at)
        if head is not None:
            heads[key] = head
    return heads


def _head(connection: apsw.Connection, row: Sequence[Any], at: int) -> _Head | None:
    """The head of *row*; None for a journal that has expired, which is then removed."""
    journal, seq, epoch, ttl, updated, expires, until = row
    if expires is not None and expires <= at and (until is None or until <= at):
        remove(connection, journal)
        return None
    head = _Head(journal, seq, epoch, ttl, updated)
    head.expires = expires
    return head


def _select(connection: apsw.Connection, asked: set[Key]) -> Iterator[tuple[Key, Sequence[Any]]]:
    keys = list(asked)
    if len(keys) == 1:
        for row in connection.execute(_BY_KEY, keys[0]).fetchall():
            yield keys[0], row
        return
    for some in _portions(keys):
        values = [value for index, key in enumerate(some) for value in (index, *key)]
        # All rows as one text: one step, not one a row.
        text = connection.execute(_select_sql(len(some)), values).get
        for index, *row in msgspec.json.decode(text):
            yield some[index], row


def create(connection: apsw.Connection, key: Key, at: int) -> int:
    """A new journal without records; its number in the file."""
    connection.execute(
        "INSERT INTO limpet_journals (tenant, kind, id, created, updated) VALUES (?, ?, ?, ?, ?)",
        (*key, at, at),
    )
    return connection.last_insert_rowid()


def remove(connection: apsw.Connection, journal: int) -> None:
    """All that is stored of one journal."""
    for table in ("records", "labels", "journals"):
        connection.execute(f"DELETE FROM limpet_{table} WHERE journal = ?", (journal,))  # noqa: S608


# -- statements of many rows -----------------------------------------------------------------------


def _write(
    connection: apsw.Connection, sql: Callable[[int], str], rows: Sequence[tuple[Any, ...]]
) -> None:
    if len(rows) == 1:  # a lone caller's, and worth not going round
        connection.execute(sql(1), rows[0])
        return
    for some in _portions(rows):
        connection.execute(sql(len(some)), [value for row in some for value in row])


def _portions(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """*rows* in portions for which there is a statement: 23 are 16 + 4 + 1 + 1 + 1."""
    start = 0
    for size in SIZES:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


def _values(columns: int, rows: int) -> str:
    row = "(" + ", ".join("?" * columns) + ")"
    return "VALUES " + ", ".join([row] * rows)


@cache
def _select_sql(rows: int) -> str:
    return (  # all from here: column names, and as many question marks as there are values
        f"SELECT json_group_array(json_array(v.column1, {_COLUMNS})) FROM ({_values(4, rows)}) v"  # noqa: S608
        " JOIN limpet_journals ON tenant = v.column2 AND kind = v.column3 AND id = v.column4"
    )


@cache
def _insert_sql(rows: int) -> str:
    return f"INSERT INTO limpet_records (journal, seq, count, at, id, body) {_values(6, rows)}"


_UPDATE_MANY = (
    "UPDATE limpet_journals SET seq = v.column2, size = size + v.column3,"
    " updated = v.column4, ttl = v.column5, expires = v.column6"
    " FROM ({values}) v WHERE journal = v.column1"
)


@cache
def _update_sql(rows: int) -> str:
    if rows == 1:
        return (
            "UPDATE limpet_journals SET seq = ?2, size = size + ?3, updated = ?4, ttl = ?5,"
            " expires = ?6 WHERE journal = ?1"
        )
    return _UPDATE_MANY.format(values=_values(6, rows))


def now() -> int:
    """This machine's clock, in microseconds."""
    return time.time_ns() // 1000
