"""What a search asks of the index: how common words are, which rows have them, what those are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.memory.index import LIVE, ONE_OF, filtered
from limpet.memory.ranking import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from limpet.memory.index import Index

__all__ = ["Candidate", "candidates", "counts", "matches", "passing"]

_NEWEST = f"""
WITH RECURSIVE line(found, n, next, depth) AS (
    SELECT m.n, m.n, m.superseded, 0 FROM memory m WHERE m.n {ONE_OF}
    UNION ALL
    SELECT line.found, m.n, m.superseded, depth + 1 FROM line JOIN memory m ON m.id = line.next
    WHERE depth < 1000
)
SELECT line.found, m.n, m.at, (SELECT group_concat(u.at) FROM used u WHERE u.n = m.n)
FROM line JOIN memory m ON m.n = line.n
WHERE line.next IS NULL AND {LIVE} ORDER BY line.found
"""  # noqa: S608 - all of it from here


class Candidate(Struct, frozen=True, gc=False):
    """A row that was *found*, the row *n* that it stands for, and when that was of use."""

    found: int
    n: int
    at: int
    uses: tuple[int, ...]


def counts(index: Index, words: Iterable[str]) -> tuple[int, dict[str, int]]:
    """How many texts there are, and how many of them have each of *words*."""
    known = _counted(index)
    for word in words:
        if word not in known:
            count = "SELECT count(*) FROM words WHERE words MATCH ?"
            known[word] = index.value(count, [f'"{word}"'])
    return known[""], {word: known[word] for word in words}


def _counted(index: Index) -> dict[str, int]:
    """What was counted since the index last changed, here or in another process."""
    known = index.word_counts
    version = (index.value("SELECT seen FROM state") or 0, index.database.data_version())
    if known.get(" ") != hash(version):
        known.clear()
        known[" "] = hash(version)
        known[""] = index.value("SELECT count(*) FROM memory")
    return known


def matches(
    index: Index,
    match: str,
    filters: dict[str, Any],
    now: int,
    limit: int,
    *,
    among: str | None = None,
) -> list[tuple[int, float]]:
    """Rows by words, with what BM25 gives them, the best first; only rows that *among* matches."""
    where, values = filtered(filters)
    if among is not None:
        # A plus, so that it sieves what is found: to score a row costs most.
        where += " AND +words.rowid IN (SELECT rowid FROM words WHERE words MATCH ?)"
        values.append(among)
    if index.value("SELECT 1 FROM memory WHERE expires NOTNULL LIMIT 1"):
        where += " AND (m.expires IS NULL OR m.expires > ?)"
        values.append(now)
    # Only where it must be: a row of the table costs more than one of the words.
    joined = "JOIN memory m ON m.n = words.rowid" if "m." in where else ""
    # Not by FTS5's own "rank", which takes half as long again.
    sql = (
        f"SELECT words.rowid, bm25(words, 1.0, {CONTEXT}) AS score FROM words {joined}"  # noqa: S608
        f" WHERE words MATCH ? AND {where} ORDER BY score LIMIT ?"
    )
    return [(n, -score) for n, score in index.run(sql, [match, *values, limit])]


def passing(index: Index, filters: dict[str, Any]) -> list[int] | None:
    """The rows that *filters* let pass; None if that is all of them."""
    where, values = filtered(filters)
    if where == "1":
        return None
    sql = f"SELECT m.n FROM memory m WHERE {where}"  # noqa: S608 - conditions of ours
    return [n for (n,) in index.run(sql, values)]


def candidates(index: Index, found: Iterable[int], now: int) -> list[Candidate]:
    """What the rows *found* stand for: themselves or their newest version, where that counts."""
    rows = index.run(_NEWEST, [json.dumps(list(found)), now, now])
    return [Candidate(row, n, at, _times(uses)) for row, n, at, uses in rows]


def _times(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()
