"""The index of one namespace: what its journal amounts to, in tables.

Derived and local. It says how far it has read the journal, and of which one; where it is missing,
behind a compaction, damaged or of another version, it is made anew. One file a namespace, so that
nothing of another one's can be found in it, nor weighs in its scores.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from limpet.backends.contract import from_micros
from limpet.core.text_index import MEMORY, Known
from limpet.memory.entries import FORGOTTEN
from limpet.memory.fold import Fold
from limpet.memory.hits import Remembered
from limpet.memory.refusals import Refusals
from limpet.memory.schema import IndexFile
from limpet.memory.spare import Spare
from limpet.memory.subjects import plain, same_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    import apsw

    from limpet.memory.entries import Told
    from limpet.memory.vectors import Vectors

__all__ = ["LIVE", "ONE_OF", "Index", "filtered"]

_ROW = """
SELECT m.n, m.id, m.text, m.kind, m.tags, m.source, m.maker, m.trust, m.context, m.key, m.at,
       m.valid, m.expires, m.supersedes, m.superseded, m.because, m.contradicted, m.confirmed,
       (SELECT count(*) FROM used u WHERE u.n = m.n)
FROM memory m
"""

#: Of a memory that counts now; the parameters are the time, twice.
LIVE = (
    "m.superseded IS NULL AND (m.expires IS NULL OR m.expires > ?)"
    " AND (m.valid IS NULL OR m.valid <= ?)"
)
#: Any of a list, which is bound as JSON.
ONE_OF = "IN (SELECT value FROM json_each(?))"

#: Of a memory that has other letters than those of ASCII: it has more bytes than characters.
_LETTERS = (
    "octet_length(m.text) > length(m.text)"
    " OR octet_length(coalesce(m.context, '')) > length(coalesce(m.context, ''))"
)

_FILTERS = {
    "kinds": f"m.kind {ONE_OF}",
    "tags": "NOT EXISTS (SELECT 1 FROM json_each(?) j WHERE NOT EXISTS"
    " (SELECT 1 FROM tag t WHERE t.tag = j.value AND t.n = m.n))",
    "since": "m.at >= ?",
    "source": "m.source = ?",
}


class Index(IndexFile):
    """The memories of one namespace, and how far its journal has been read."""

    def __init__(self, path: str = MEMORY) -> None:
        super().__init__(path)
        #: How many texts have each word, for `lookup.counts`: true until the index changes.
        self.word_counts: dict[str, int] = {}
        #: The vectors in memory, once somebody has asked for them.
        self.vectors: Vectors | None = None
        #: Those that may be put back while the index is made anew.
        self.spare: Spare | None = None
        self.refusals = Refusals()

    def start_anew(self) -> None:
        """Throw all of it away, with what was known of it."""
        with self.lock:
            super().start_anew()
            self.word_counts.clear()
            self.vectors = self.spare = None

    # -- following the journal -----------------------------------------------------------------

    def known(self) -> Known | None:
        """How far the journal has been read, and which one it was."""
        rows = self.run("SELECT incarnation, first, seen, updated FROM state")
        return Known(*rows[0]) if rows else None

    def add(self, before: Known | None, now: Known, told: Iterable[Told]) -> bool:
        """Take in what was *told* since *before*, which is *now* read so far.

        With a *before* of None it is all that there is. False if another process was here
        meanwhile, and nothing was done.
        """
        said = list(told)
        with self.writing() as database:
            known = self.known()
            if before is not None and known != before:
                return False
            if before is None:
                self.spare = Spare(database, now)
                _clear(database)
            Fold(database).take(said)
            self._put_back(database, now)
            database.execute("DELETE FROM state")
            position = (now.incarnation, now.first, now.seen, now.updated)
            database.execute("INSERT INTO state VALUES(?, ?, ?, ?)", position)
        if known != before or any(one.type == FORGOTTEN for one in said):
            self.scrub()
        return True

    def _put_back(self, database: apsw.Connection, now: Known) -> None:
        if self.spare is not None and self.spare.serves(now):
            self.spare.put_back(database)
        else:
            self.spare = None

    def empty(self) -> None:
        """There is no such journal."""
        with self.writing() as database:
            _clear(database)

    # -- memories ------------------------------------------------------------------------------

    def get(self, ids: Iterable[str]) -> dict[str, Remembered]:
        """The memories of these *ids*, superseded or not."""
        return {one.id: one for one in self.select(f"m.id {ONE_OF}", [json.dumps(list(ids))])}

    def keyed(self, key: str) -> Remembered | None:
        """The memory that a caller gave this *key*."""
        return next(iter(self.select("m.key = ?", [key])), None)

    def rows(self, numbers: list[int]) -> dict[int, Remembered]:
        """The memories in these rows."""
        found = self.run(f"{_ROW} WHERE m.n {ONE_OF}", [json.dumps(numbers)])
        return {row[0]: _remembered(row) for row in found}

    def all(
        self, filters: dict[str, Any], now: int, limit: int | None = None, *, live: bool = True
    ) -> list[Remembered]:
        """The memories that pass *filters*, newest first."""
        where, values = filtered(filters)
        if live:
            where, values = f"{where} AND {LIVE}", [*values, now, now]
        return self.select(where, values, "m.at DESC, m.n DESC", limit)

    def select(
        self, where: str, values: list[Any], order: str = "m.n", limit: int | None = None
    ) -> list[Remembered]:
        """The memories for which a condition of ours holds."""
        sql = f"{_ROW} WHERE {where} ORDER BY {order} LIMIT ?"
        rows = self.run(sql, [*values, -1 if limit is None else limit])
        return [_remembered(row) for row in rows]

    def ids(self, where: str, value: Any) -> list[str]:
        """Only their ids."""
        sql = f"SELECT m.id FROM memory m WHERE {where}"  # noqa: S608 - a condition of ours
        return [id_ for (id_,) in self.run(sql, [value])]

    def about(self, subject: str) -> list[str]:
        """The ids of memories that have *subject* as a tag, or may have it in their words."""
        words = plain(subject.replace('"', " ")).strip()
        if not any(sign.isalnum() for sign in words):
            return [id_ for (id_,) in self.run("SELECT id FROM memory")]  # signs are not indexed
        tags = [
            tag for (tag,) in self.run("SELECT DISTINCT tag FROM tag") if same_name(tag, subject)
        ]
        tagged = f"m.n IN (SELECT t.n FROM tag t WHERE t.tag {ONE_OF})"  # noqa: S608 - of ours
        found = self.ids(tagged, json.dumps(tags))
        # Of other letters than ours the index of words knows too few capitals: Weiß is WEISS.
        match = f"m.n IN (SELECT rowid FROM words WHERE words MATCH ?) OR {_LETTERS}"  # noqa: S608
        return list(dict.fromkeys([*found, *self.ids(match, f'"{words}"')]))

    def family(self, ids: Iterable[str]) -> tuple[list[str], list[str]]:
        """What *ids* replaced, and that again; and what replaced them, or was made from them."""
        newer = "SELECT superseded FROM memory WHERE id = ? AND superseded NOTNULL"
        older = "SELECT id FROM memory WHERE superseded = ?"
        named = list(ids)
        return self._closure(named, older), self._closure(named, newer)

    def _closure(self, ids: list[str], step: str) -> list[str]:
        found: dict[str, None] = {}
        ahead = list(ids)
        while ahead:
            for (id_,) in self.run(step, [ahead.pop()]):
                if id_ not in found:
                    found[id_] = None
                    ahead.append(id_)
        return list(found)

    def figures(self, now: int) -> dict[str, Any]:
        """What `Stats` is made of."""
        (row,) = self.run(
            "SELECT count(superseded), coalesce(sum(expires <= ?), 0), count(contradicted),"
            " count(DISTINCT source), min(at), max(at) FROM memory",
            [now],
        )
        live = f"JOIN memory m USING (n) WHERE {LIVE} GROUP BY 1"
        kinds = f"SELECT m.kind, count(*) FROM (SELECT n FROM memory) {live} ORDER BY 1"  # noqa: S608
        tags = f"SELECT t.tag, count(*) FROM tag t {live} ORDER BY 2 DESC, 1"  # noqa: S608
        by_kind = dict(self.run(kinds, [now, now]))
        return {
            "superseded": row[0],
            "expired": row[1],
            "contradicted": row[2],
            "sources": row[3],
            "oldest": _time(row[4]),
            "newest": _time(row[5]),
            "kinds": by_kind,
            "tags": dict(self.run(tags, [now, now])),
            "memories": sum(by_kind.values()),
        } | self._embedding()

    def _embedding(self) -> dict[str, Any]:
        ((model, failed),) = self.run("SELECT name, failed FROM model")
        every, embedded = (self.value(f"SELECT count(*) FROM {t}") for t in ("memory", "vector"))  # noqa: S608
        return {
            "embedded": embedded,
            "unembedded": every - embedded if model else 0,
            "model": model,
            "embedding_failed": failed,
        }


def filtered(filters: dict[str, Any]) -> tuple[str, list[Any]]:
    """A condition for what *filters* let pass, and the values to bind."""
    given = {name: value for name, value in filters.items() if value is not None}
    where = " AND ".join(_FILTERS[name] for name in given) or "1"
    return where, [json.dumps(v) if isinstance(v, list) else v for v in given.values()]


def _clear(database: apsw.Connection) -> None:
    # The words are those of the rows, and are taken out with them: that leaves no trace.
    database.execute("INSERT INTO words(words) VALUES('delete-all')")
    for table in ("state", "memory", "tag", "used", "vector"):
        database.execute(f"DELETE FROM {table}")  # noqa: S608 - all of it from here


def _remembered(row: tuple[Any, ...]) -> Remembered:
    _, id_, text, kind, tags, source, by, trust, context, key, at, valid, expires, *rest = row
    supersedes, superseded, because, contradicted, confirmed, uses = rest
    return Remembered(
        id=id_,
        text=text,
        kind=kind,
        tags=_listed(tags),
        source=source,
        by=by,
        trust=trust,
        context=context,
        key=key,
        at=from_micros(at),
        valid_from=_time(valid),
        expires_at=_time(expires),
        supersedes=_listed(supersedes),
        superseded_by=superseded,
        because=because,
        contradicted_by=_listed(contradicted),
        confirmed=confirmed,
        uses=uses,
    )


def _time(at: int | None) -> Any:
    return None if at is None else from_micros(at)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(json.loads(text)) if text else ()
