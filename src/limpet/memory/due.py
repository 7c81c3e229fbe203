"""Which memories are still to be embedded, and what became of those that were tried."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, NamedTuple

from limpet.memory.index import ONE_OF

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet.memory.index import Index

__all__ = ["Due", "due", "note_failure", "put_vectors", "try_again"]

# Context and text as one, for what an answer means depends on the question: by itself it may mean
# nothing.
_WHOLE = "context || ' ' || text"
_PUT = f"""
INSERT OR REPLACE INTO vector(n, value)
SELECT n, ? FROM memory WHERE n = ? AND id = ? AND text = ? AND {_WHOLE} IS ?
"""  # noqa: S608 - all of it from here
_WITHOUT = "NOT EXISTS (SELECT 1 FROM vector v WHERE v.n = m.n)"


class Due(NamedTuple):
    """A memory without a vector: its row, id and text, and the text behind its context."""

    n: int
    id: str
    text: str
    whole: str | None


def due(index: Index, model: str, like: bytes | None, most: int | None) -> tuple[int, list[Due]]:
    """How many memories have no vector of *model*, and the newest of them, up to *most*.

    One of its vectors is *like* this: those of another length are another model's, whatever it is
    called.
    """
    with index.lock:
        index.spare = None  # what was not put back by now is of no use
        if index.value("SELECT name FROM model") != model or not _fits(index, like):
            _start_over(index, model)
        refused = json.dumps(index.refusals.now(time.monotonic()))
        count = _count(index, refused)
        size = index.refusals.size if most is None else min(index.refusals.size, most)
        return count, _newest(index, refused, min(size, count))


def _fits(index: Index, value: bytes | None) -> bool:
    length = index.value("SELECT length(value) FROM vector LIMIT 1")
    return value is None or length in (None, len(value))


def _start_over(index: Index, model: str) -> None:
    with index.writing() as database:
        database.execute("DELETE FROM vector")
        database.execute("UPDATE model SET name = ?, failed = NULL", (model,))
    index.refusals.clear()


def _count(index: Index, refused: str) -> int:
    every = "SELECT (SELECT count(*) FROM memory) - (SELECT count(*) FROM vector)"
    not_now = f"SELECT count(*) FROM memory m WHERE m.id {ONE_OF} AND {_WITHOUT}"  # noqa: S608
    return int(index.value(every) - index.value(not_now, [refused]))


def _newest(index: Index, refused: str, most: int) -> list[Due]:
    sql = (
        f"SELECT n, id, text, {_WHOLE} FROM memory m WHERE {_WITHOUT}"  # noqa: S608
        f" AND m.id NOT {ONE_OF} ORDER BY n DESC LIMIT ?"
    )
    # No more than there are: to look for one that is not there is to look at all.
    rows = index.run(sql, [refused, most]) if most > 0 else []
    return [Due(*row) for row in rows]


def put_vectors(index: Index, model: str, vectors: Sequence[tuple[Due, bytes]]) -> None:
    """Store what *model* made of memories, if they still are what they were.

    While it was made, words may have been forgotten that were in a context.
    """
    with index.lock:
        if not _fits(index, vectors[0][1]):
            _start_over(index, model)
        with index.writing() as database:
            if index.value("SELECT name FROM model") == model:
                database.executemany(_PUT, [(value, *one) for one, value in vectors])
                database.execute("UPDATE model SET failed = NULL")
        index.refusals.succeeded()


def note_failure(index: Index, tried: Sequence[Due], why: str) -> None:
    """Note that no vectors could be made of those that were *tried*: *why* is an error's name."""
    with index.writing() as database:
        database.execute("UPDATE model SET failed = ?", (why,))
        index.refusals.failed([one.id for one in tried], time.monotonic())


def try_again(index: Index) -> None:
    """Leave out nothing because it was refused before."""
    with index.lock:
        index.refusals.clear()
