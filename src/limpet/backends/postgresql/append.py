"""An append as one statement: it moves the head, if the conditions hold, and inserts the record.

Under READ COMMITTED a statement sees what was committed when it began, but for the row that it
locks: of that one it sees the newest version. So every condition is about the head's row alone, the
labels are in that row, and that an id was used before is known for certain by a unique index.

Several appends to different journals can be one statement as well. Their rows are locked in the
order of their keys, in every process, so that no two wait for each other.
"""
# ruff: noqa: S608  # texts of our own, the schema's quoted name, and $1 for all that others say

from __future__ import annotations

import os
import time
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from limpet.backends.contract import UNSET, Append, Key, micros, own_id
from limpet.backends.postgresql.sql import BEGAN, HOUR, NOW, json, live

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from limpet.backends.postgresql.sql import Statements

__all__ = ["Appends", "Write", "new_journal", "rounds"]

#: How many appends a statement may hold. Few sizes, so that all of them stay prepared.
SIZES = (4, 16, 64)

#: What an append can be given, in this order, and the types.
_TYPES = {
    "tenant": "text",
    "kind": "text",
    "id": "text",
    "count": "bigint",
    "body": "bytea",
    "name": "text",  # the append's id
    "journal": "uuid",
    "epoch": "bigint",
    "expect": "bigint",
    "status": "text",
    "labels": "jsonb",
    "removed": "text[]",
    "ttl": "bigint",
    "default": "bigint",
    "at": "bigint",
    "created": "bigint",
    "floor": "bigint",
}


class _Shape(NamedTuple):
    """All that the text of a statement depends on."""

    adds: bool  # a record, not only attributes
    known: bool  # its id may have been used before
    epoch: bool
    expect: str  # "", "nothing" or "something"
    status: bool
    labels: str  # "", "set" or "remove"
    ttl: str  # "", "set" or "never"
    default: bool
    origin: bool

    @property
    def may_begin(self) -> bool:
        """Whether it can be the first of a journal that is not there."""
        return self.adds and not self.epoch and self.expect != "something"

    @property
    def joins(self) -> bool:
        """Whether it can be one of several: all must be said by the row that is to be inserted."""
        return not self.origin and not (self.may_begin and self.labels == "remove")

    def names(self) -> list[str]:
        """What it is given. `Write.values` has the values in the same order."""
        given = {
            "count": self.adds,
            "body": self.adds,
            "name": self.adds or self.known,
            "journal": self.may_begin,
            "epoch": self.epoch,
            "expect": self.expect,
            "status": self.status,
            "labels": self.labels,
            "removed": self.labels == "remove",
            "ttl": self.ttl == "set",
            "default": self.default,
            "at": self.origin,
            "created": self.origin and self.adds,
            "floor": self.origin and self.adds,
        }
        return [name for name in _TYPES if given.get(name, True)]


class Write:
    """An append on its way, under an id that it keeps through every try until *deadline*."""

    __slots__ = ("deadline", "id", "request", "shape", "unanswered")

    def __init__(self, request: Append, deadline: float) -> None:
        self.request = request
        self.deadline = deadline
        self.id = request.id or own_id()
        self.shape = _shape(request)
        self.unanswered = False  # whether a try of it had no answer

    def values(self) -> list[Any]:
        """What its statement is given."""
        request, shape = self.request, self.shape
        values: list[Any] = [*request.key]
        if shape.adds:
            values += (request.count, request.body)
        if shape.adds or shape.known:
            values.append(self.id)
        if shape.may_begin:
            values.append(new_journal())
        if request.epoch is not None:
            values.append(request.epoch)
        if request.expect is not None:
            values.append(request.expect)
        values += _attributes(request)
        return values


def _shape(request: Append) -> _Shape:
    labels, ttl, expect = request.labels, request.ttl, request.expect
    return _Shape(
        adds=request.count > 0,
        known=request.id is not None,
        epoch=request.epoch is not None,
        expect="" if expect is None else "something" if expect else "nothing",
        status=request.status is not UNSET,
        labels="" if labels is UNSET else "remove" if None in labels.values() else "set",
        ttl="" if ttl is UNSET else "never" if ttl is None else "set",
        default=ttl is UNSET and request.default_ttl is not None,
        origin=request.origin is not None,
    )


def _attributes(request: Append) -> Iterator[Any]:
    """The values of what changes with the record."""
    if request.status is not UNSET:
        yield request.status
    if request.labels is not UNSET:
        yield json({name: value for name, value in request.labels.items() if value is not None})
        removed = [name for name, value in request.labels.items() if value is None]
        if removed:
            yield removed
    if request.ttl is UNSET:
        if request.default_ttl is not None:
            yield micros(request.default_ttl)
    elif request.ttl is not None:
        yield micros(request.ttl)
    if request.origin is not None:
        yield request.origin.at
        if request.count:
            yield from (request.origin.created, request.origin.floor)


def rounds(writes: Iterable[Write]) -> Iterator[list[Write]]:
    """*writes* in portions, each for a statement: of one shape, and of each journal only one.

    Those of one journal keep their order.
    """
    of: dict[Key, list[Write]] = {}
    for write in writes:
        of.setdefault(write.request.key, []).append(write)
    waiting = [queue[::-1] for _, queue in sorted(of.items())]
    while waiting:
        first = sorted((queue.pop() for queue in waiting), key=_shape_of)
        for shape, alike in groupby(first, key=_shape_of):
            portion, most = list(alike), SIZES[-1] if shape.joins else 1
            for start in range(0, len(portion), most):
                yield portion[start : start + most]
        waiting = [queue for queue in waiting if queue]


def _shape_of(write: Write) -> _Shape:
    return write.shape


# -- statements ------------------------------------------------------------------------------------


class Appends:
    """The statements for appends of every shape."""

    def __init__(self, statements: Statements, channel: str | None) -> None:
        self._journals = statements.journals
        self._records = statements.records
        self._channel = channel
        self._texts: dict[tuple[_Shape, int], str] = {}

    def one(self, write: Write) -> tuple[str, list[Any]]:
        """A statement that returns number and time, or nothing; and its values."""
        return self._text(write.shape, 1), write.values()

    def many(self, writes: Sequence[Write]) -> tuple[str, list[Any]]:
        """The same for a portion of `rounds`: for each that is done, the key goes before."""
        size = next(size for size in SIZES if size >= len(writes))
        values = [value for write in writes for value in write.values()]
        # Filled up with appends to nobody, which do nothing.
        values += ["", *writes[-1].values()[1:]] * (size - len(writes))
        return self._text(writes[0].shape, size), values

    def _text(self, shape: _Shape, size: int) -> str:
        text = self._texts.get((shape, size))
        if text is None:
            text = self._one(shape) if size == 1 else self._many(shape, size)
            self._texts[shape, size] = text
        return text

    def _one(self, shape: _Shape) -> str:
        parts = _Parts(shape, {name: f"${n}" for n, name in enumerate(shape.names(), 1)})
        head = self._insert(parts, parts) if shape.may_begin else self._update(parts)
        if not shape.adds:
            return f"{head} RETURNING j.seq, j.updated"
        head = f"WITH head AS ({head} RETURNING j.journal, j.seq, j.updated)"
        told = self._told("$1::text, $2::text, $3::text")
        return f"{head} {self._record(parts, 'head')} RETURNING seq, at{told}"

    def _many(self, shape: _Shape, size: int) -> str:
        names = shape.names()
        rows = [
            ", ".join(f"${row * len(names) + n}" for n in range(1, len(names) + 1))
            for row in range(1, size)
        ]
        # The first one says of what types they are.
        first = ", ".join(f"${n}::{_TYPES[name]}" for n, name in enumerate(names, 1))
        wanted = f"w ({', '.join(names)}) AS (VALUES ({'), ('.join([first, *rows])}))"
        parts = _Parts(shape, {name: f"w.{name}" for name in names})
        if shape.may_begin:
            head = self._insert(parts, _Parts(shape, _EXCLUDED), " FROM w WHERE w.tenant <> ''")
        else:
            head = self._update(parts, " FROM w")
        head = f"head AS ({head} RETURNING j.tenant, j.kind, j.id, j.journal, j.seq, j.updated)"
        if not shape.adds:
            return f"WITH {wanted}, {head} SELECT tenant, kind, id, seq, updated FROM head"
        record = self._record(parts, "head JOIN w USING (tenant, kind, id)")
        told = self._told("tenant, kind, id")
        return (
            f"WITH {wanted}, {head}, record AS ({record})"
            f" SELECT tenant, kind, id, seq, updated{told} FROM head"
        )

    def _insert(self, given: _Parts, wanted: _Parts, source: str = "") -> str:
        """Begin a journal with what is *given*, or change the one that is there as is *wanted*."""
        columns, values = zip(*given.values(), strict=True)
        return (
            f"INSERT INTO {self._journals} AS j ({', '.join(columns)})"
            f" SELECT {', '.join(values)}{source}"
            f" ON CONFLICT (tenant, kind, id) DO UPDATE SET {_assigned(wanted)}"
            f" WHERE {' AND '.join(self._conditions(wanted))}"
        )

    def _update(self, parts: _Parts, source: str = "") -> str:
        key = [f"j.{name} = {parts.of[name]}" for name in ("tenant", "kind", "id")]
        return (
            f"UPDATE {self._journals} AS j SET {_assigned(parts)}{source}"
            f" WHERE {' AND '.join([*key, *self._conditions(parts)])}"
        )

    def _record(self, parts: _Parts, source: str) -> str:
        of = parts.of
        return (
            f"INSERT INTO {self._records} (journal, seq, count, at, id, body)"
            f" SELECT head.journal, head.seq, {of['count']}, head.updated, {of['name']}::text,"
            f" {of['body']} FROM {source}"
        )

    def _told(self, key: str) -> str:
        """Wakes those who wait for it."""
        if self._channel is None:
            return ""
        return f", pg_notify('{self._channel}', concat_ws(' ', {key}))::text"

    def _conditions(self, parts: _Parts) -> Iterator[str]:
        """What must be so of the head."""
        yield live(NOW)
        if parts.shape.epoch:
            yield f"j.epoch = {parts.of['epoch']}"
        if parts.shape.expect:
            yield f"j.seq = {parts.of['expect']}"
        if parts.shape.known and "name" in parts.of:
            # Only spares the server an error in its log: what came in just now is not seen here.
            yield (
                f"NOT EXISTS (SELECT 1 FROM {self._records} r"
                f" WHERE r.journal = j.journal AND r.id = {parts.of['name']})"
            )


#: What a row of several is given, as it can be said where the journal is there already.
_EXCLUDED = {
    "count": "EXCLUDED.seq",
    "size": "EXCLUDED.size",
    "expect": "0",
    "status": "EXCLUDED.status",
    "labels": "coalesce(EXCLUDED.labels, '{}')",
    "ttl": "EXCLUDED.ttl",
    "default": "EXCLUDED.ttl",
}


class _Parts:
    """What becomes of each column, where what an append was given is called as *of* says."""

    def __init__(self, shape: _Shape, of: Mapping[str, str]) -> None:
        self.shape = shape
        self.of = of

    def values(self) -> Iterator[tuple[str, str]]:
        """The columns of a journal that begins."""
        of = self.of
        at, floor = of.get("at", BEGAN), of.get("floor", "0")
        for column in ("tenant", "kind", "id"):
            yield column, f"{of[column]}::text"
        yield "journal", f"{of['journal']}::uuid"
        yield "seq", f"{floor} + {of['count']}"
        yield "floor", floor
        yield "size", f"octet_length({of['body']})"
        yield "created", of.get("created", at)
        yield "updated", f"greatest({at}, {of.get('created', at)})" if self.shape.origin else at
        ttl = of.get("ttl") or of.get("default")
        if ttl:
            yield "ttl", ttl
            yield "expires", f"{at} + {ttl}"
            yield "due", f"({at} + {ttl}) / {HOUR}"
        if self.shape.status:
            yield "status", f"{of['status']}::text"
        if self.shape.labels:
            yield "labels", f"nullif({of['labels']}::jsonb, '{{}}')"

    def sets(self) -> Iterator[tuple[str, str]]:
        """The columns of a journal that is there; with number 0, it is so only for a lease."""
        of, at = self.of, self.of.get("at", NOW)
        if self.shape.adds:
            origin = self.shape.origin
            updated = _first(of["created"], "j.updated") if origin else "j.updated"
            size = of.get("size") or f"octet_length({of['body']})"
            yield "seq", f"{_first(of['floor'], 'j.seq') if origin else 'j.seq'} + {of['count']}"
            yield "size", f"j.size + {size}"
            yield "updated", f"greatest({updated}, {at})"  # a clock may be set back, times do not
            if origin:
                yield "floor", _first(of["floor"], "j.floor")
                yield "created", _first(of["created"], "j.created")
        yield from self._expiry(at)
        if self.shape.status:
            yield "status", of["status"]
        if self.shape.labels:
            merged = f"(coalesce(j.labels, '{{}}') || {of['labels']}::jsonb)"
            removed = f" - {of['removed']}::text[]" if self.shape.labels == "remove" else ""
            yield "labels", f"nullif({merged}{removed}, '{{}}')"

    def _expiry(self, at: str) -> Iterator[tuple[str, str]]:
        shape, never = self.shape, "NULL::bigint"
        ttl = _first(self.of["default"] if shape.default else never, "j.ttl")
        if shape.ttl:
            ttl = self.of["ttl"] if shape.ttl == "set" else never
        yield "ttl", ttl
        if shape.adds or shape.ttl:
            yield "expires", f"{at} + {ttl}"
            due = f"({at} + {ttl}) / {HOUR}"
            # Without a record it stays a mere lease's, and is swept when that has ended.
            yield "due", due if shape.adds else f"coalesce({due}, {_first('j.due', 'NULL')})"


def _assigned(parts: _Parts) -> str:
    return ", ".join(f"{column} = {value}" for column, value in parts.sets())


def _first(value: str, otherwise: str) -> str:
    """*value*, if the journal has no record yet."""
    return f"(CASE WHEN j.seq = 0 THEN {value} ELSE {otherwise} END)"


def new_journal() -> str:
    """A UUID that begins with the time: what is written together lies together in the index."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"
