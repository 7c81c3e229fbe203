"""The index of one namespace: what its journal amounts to, in tables.

It is derived and local. It records which journal it was made of and how far it has read; where it
is missing, damaged, of another version, or behind a compaction, it is made again. Each namespace
has a file of its own, so that nothing of another one can be found in it or influence its scores.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import apsw
from msgspec import Struct

from limpet.backends.contract import from_micros
from limpet.core import vocabulary
from limpet.core.recalled import STANDING
from limpet.core.text_index import MEMORY, Known, opened, own_file, remove
from limpet.core.words import TOKENIZER
from limpet.errors import MemoryNotFound
from limpet.memory.entries import FORGOTTEN
from limpet.memory.fold import Fold
from limpet.memory.results import MemoryPage, Remembered
from limpet.memory.vectors import Backoff, SavedVectors, Vectors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from limpet.backends.contract import Backend, Key
    from limpet.memory.entries import MemoryEntry

__all__ = ["LIVE", "ONE_OF", "Index", "condition", "open_index"]

#: The form of the file; one of another version is thrown away.
VERSION = 9

_IS_STANDING = "kind IN ({})".format(", ".join(f"'{kind}'" for kind in STANDING))

_SCHEMA = f"""
CREATE TABLE state(
    incarnation TEXT NOT NULL, first INTEGER NOT NULL, seen INTEGER NOT NULL,
    updated INTEGER NOT NULL
) STRICT;
CREATE TABLE model(name TEXT, removed INTEGER NOT NULL, failed TEXT) STRICT;
INSERT INTO model VALUES(NULL, 0, NULL);
CREATE TABLE memory(
    n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, context TEXT,
    kind TEXT NOT NULL, tags TEXT, source TEXT, maker TEXT, trust REAL, speaker TEXT,
    first REAL NOT NULL, standing INTEGER NOT NULL, about TEXT, key TEXT UNIQUE,
    at INTEGER NOT NULL, said INTEGER NOT NULL, valid INTEGER, expires INTEGER,
    supersedes TEXT, superseded TEXT, because TEXT, contradicted TEXT,
    confirmed INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX memory_said ON memory(said);
CREATE INDEX memory_standing ON memory(said) WHERE {_IS_STANDING};
CREATE INDEX memory_source ON memory(source) WHERE source IS NOT NULL;
CREATE INDEX memory_expires ON memory(expires) WHERE expires IS NOT NULL;
CREATE INDEX memory_superseded ON memory(superseded) WHERE superseded IS NOT NULL;
CREATE TABLE dated(
    n INTEGER NOT NULL, start INTEGER NOT NULL, end INTEGER NOT NULL, PRIMARY KEY(n, start, end)
) STRICT, WITHOUT ROWID;
CREATE INDEX dated_start ON dated(start);
CREATE TABLE tag(tag TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY(tag, n)) STRICT, WITHOUT ROWID;
CREATE TABLE used(
    n INTEGER NOT NULL, seq INTEGER NOT NULL, at INTEGER NOT NULL, PRIMARY KEY(n, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE passage(p INTEGER PRIMARY KEY, n INTEGER NOT NULL, text TEXT) STRICT;
CREATE INDEX passage_n ON passage(n);
CREATE TABLE vector(
    v INTEGER PRIMARY KEY, p INTEGER NOT NULL UNIQUE, value BLOB NOT NULL, words BLOB
) STRICT;
CREATE TRIGGER vector_removed AFTER DELETE ON vector
BEGIN UPDATE model SET removed = removed + 1; END;
CREATE VIRTUAL TABLE words USING fts5(
    text, content=passage, content_rowid=p, tokenize="porter {TOKENIZER}"
);
CREATE VIRTUAL TABLE around USING fts5(
    context, content=memory, content_rowid=n, tokenize="porter {TOKENIZER}"
);
INSERT INTO words(words, rank) VALUES('secure-delete', 1);
INSERT INTO around(around, rank) VALUES('secure-delete', 1);
INSERT INTO around(around, rank) VALUES('hashsize', 16000000);
INSERT INTO words(words, rank) VALUES('hashsize', 16000000);
{vocabulary.TABLE}
"""  # noqa: S608 - all of it is ours

_ROW = """
SELECT m.n, m.id, m.text, m.kind, m.tags, m.source, m.maker, m.trust, m.context, m.key, m.at,
       m.said, m.valid, m.expires, m.supersedes, m.superseded, m.because, m.contradicted,
       m.confirmed,
       (SELECT count(*) FROM used u WHERE u.n = m.n)
FROM memory m
"""

#: The condition of a memory that counts now; its parameters are the time, twice.
LIVE = (
    "m.superseded IS NULL AND (m.expires IS NULL OR m.expires > ?)"
    " AND (m.valid IS NULL OR m.valid <= ?)"
)
#: One of a list, which is bound as JSON.
ONE_OF = "IN (SELECT value FROM json_each(?))"

_FILTERS = {
    "kinds": f"m.kind {ONE_OF}",
    "tags": "NOT EXISTS (SELECT 1 FROM json_each(?) j WHERE NOT EXISTS"
    " (SELECT 1 FROM tag t WHERE t.tag = j.value AND t.n = m.n))",
    "since": "m.said >= ?",
    "until": "m.said < ?",
    "source": "m.source = ?",
}


def condition(filters: dict[str, Any]) -> tuple[str, list[Any]]:
    """An SQL condition for what *filters* let pass, and the values to bind."""
    given = {name: value for name, value in filters.items() if value is not None}
    where = " AND ".join(_FILTERS[name] for name in given) or "1"
    return where, [json.dumps(v) if isinstance(v, list) else v for v in given.values()]


class _WordCounts(Struct):
    """How many texts have each word; true as long as the index is at this version."""

    version: tuple[int, int]
    total: int
    counts: dict[str, int]
    near: dict[str, list[str]] = {}


class Index:
    """The memories of one namespace in a SQLite file, and how far its journal has been read.

    For one thread at a time, under `lock`; the methods take it, a transaction holds it.
    """

    def __init__(self, path: str = MEMORY) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._connection: apsw.Connection | None = None
        self._word_counts: _WordCounts | None = None
        self._vectors: Vectors | None = None
        #: Vectors that go back to their texts while the index is made again.
        self.saved_vectors: SavedVectors | None = None
        #: What the embedding function has refused in this process.
        self.backoff = Backoff()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    # -- the file ------------------------------------------------------------------------------

    @property
    def database(self) -> apsw.Connection:
        """The connection, opened at its first use."""
        if self._connection is None:
            self._connection = opened(self.path, VERSION, _SCHEMA)
            self._connection.execute("PRAGMA cache_size=-16000")  # KB
        return self._connection

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of one statement."""
        with self.lock:
            return self.database.execute(sql, values).fetchall()

    def value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """The first column of the first row, or None."""
        rows = self.run(sql, values)
        return rows[0][0] if rows else None

    @contextlib.contextmanager
    def writing(self) -> Iterator[apsw.Connection]:
        """A transaction: all of it or nothing."""
        with self.lock:
            database = self.database
            try:
                # IMMEDIATE: a lock that is only asked for after reading can be refused.
                database.execute("BEGIN IMMEDIATE")
                yield database
            except BaseException:
                if database.in_transaction:  # SQLite has rolled back by itself if the disk is full
                    database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """One snapshot of the file for all queries within, whatever other processes write."""
        with self.lock:
            database = self.database
            try:
                database.execute("BEGIN")
                yield
            finally:
                if database.in_transaction:
                    database.execute("ROLLBACK")  # nothing was written

    def close(self) -> None:
        """Close the file until its next use; an index in memory stays."""
        if self.path != MEMORY:
            self._close()

    def discard(self) -> None:
        """Delete all of it."""
        with self.lock:
            self._close()
            if self.path != MEMORY:
                remove(self.path)
            self._word_counts = self._vectors = self.saved_vectors = None

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def scrub(self) -> None:
        """Leave nothing in SQLite's log of what is no longer in the tables."""
        # While another process reads, it has to wait for the next write there.
        with contextlib.suppress(apsw.BusyError):
            self.run("PRAGMA wal_checkpoint(TRUNCATE)")

    # -- following the journal -----------------------------------------------------------------

    def known(self) -> Known | None:
        """Which journal it was made of, and how far that has been read."""
        rows = self.run("SELECT incarnation, first, seen, updated FROM state")
        return Known(*rows[0]) if rows else None

    def add(
        self, before: Known | None, now: Known, entries: Iterable[MemoryEntry], *, last: bool = True
    ) -> bool:
        """Apply *entries*, which follow *before*; it has then read as far as *now*.

        With *before* None they are the first ones of a journal, and what the index held is removed;
        with *last* none are left to read. False, and nothing is done, if another process has
        changed the index meanwhile.
        """
        added = list(entries)
        with self.lock:
            with self.writing() as database:
                known = self.known()
                if before is not None and known != before:
                    return False
                if before is None:
                    self.saved_vectors = SavedVectors(database)
                    _clear(database)
                Fold(database).apply(added)
                if self.saved_vectors is not None:
                    self.saved_vectors.put_back(database)
                database.execute("DELETE FROM state")
                position = (now.incarnation, now.first, now.seen, now.updated)
                database.execute("INSERT INTO state VALUES(?, ?, ?, ?)", position)
            if last:
                self.saved_vectors = None
        if known != before or any(entry.type == FORGOTTEN for entry in added):
            self.scrub()
        return True

    def clear(self) -> None:
        """Hold nothing: the journal does not exist."""
        with self.writing() as database:
            _clear(database)

    # -- memories ------------------------------------------------------------------------------

    def get(self, ids: Iterable[str]) -> dict[str, Remembered]:
        """Those of the memories *ids* that are there, superseded or not."""
        return {one.id: one for one in self.select(f"m.id {ONE_OF}", [json.dumps(list(ids))])}

    def existing(self, ids: Sequence[str], key: Key) -> list[Remembered]:
        """The memories *ids*; `MemoryNotFound` if one is not in the namespace of *key*."""
        for id_ in ids:
            given: Any = id_
            if not isinstance(given, str):
                raise TypeError(f"The id of a memory is text, not {type(given).__name__}: hit.id.")
        found = self.get(ids)
        for id_ in ids:
            if id_ not in found:
                msg = (
                    f"There is no memory {id_!r:.80} in {key.id!r}. It was forgotten, or belongs "
                    "to another namespace; recall() and list() show which there are."
                )
                raise MemoryNotFound(msg)
        return [found[id_] for id_ in ids]

    def with_key(self, key: str) -> Remembered | None:
        """The memory that its writer gave this *key*."""
        return next(iter(self.select("m.key = ?", [key])), None)

    def rows(self, numbers: list[int]) -> dict[int, Remembered]:
        """The memories in these rows."""
        found = self.run(f"{_ROW} WHERE m.n {ONE_OF}", [json.dumps(numbers)])
        return {row[0]: _remembered(row) for row in found}

    def filtered(
        self, filters: dict[str, Any], now: int, limit: int | None = None, *, live: bool = True
    ) -> list[Remembered]:
        """The memories that pass *filters*, newest first; those that count *now*, if *live*."""
        where, values = condition(filters)
        if live:
            where, values = f"{where} AND {LIVE}", [*values, now, now]
        return self.select(where, values, "m.said DESC, m.n DESC", limit)

    def standing(self, now: int) -> list[Remembered]:
        """The instructions and preferences that count *now*, newest first."""
        return self.select(f"m.{_IS_STANDING} AND {LIVE}", [now, now], "m.said DESC, m.n DESC")

    def select(
        self, where: str, values: list[Any], order: str = "m.n", limit: int | None = None
    ) -> list[Remembered]:
        """The memories for which an SQL condition holds."""
        sql = f"{_ROW} WHERE {where} ORDER BY {order} LIMIT ?"
        rows = self.run(sql, [*values, -1 if limit is None else limit])
        return [_remembered(row) for row in rows]

    def page(
        self, filters: dict[str, Any], now: int, before: int | None, limit: int, *, live: bool
    ) -> MemoryPage:
        """As many as *limit* of the memories that pass *filters*, before row *before*."""
        where, values = condition(filters)
        if live:
            where, values = f"{where} AND {LIVE}", [*values, now, now]
        if before is not None:
            where, values = f"{where} AND m.n < ?", [*values, before]
        # By row, which costs what is on the page; by time, all would have to be sorted.
        rows = self.run(f"{_ROW} WHERE {where} ORDER BY m.n DESC LIMIT ?", [*values, limit + 1])
        older = rows[limit - 1][0] if len(rows) > limit else None
        return MemoryPage([_remembered(row) for row in rows[:limit]], older)

    def embedded_by(self) -> str | None:
        """The name of the model of which there are vectors."""
        name: str | None = self.value("SELECT name FROM model WHERE EXISTS (SELECT 1 FROM vector)")
        return name

    def versions(self, ids: Iterable[str]) -> tuple[list[str], list[str]]:
        """What *ids* have replaced, and what has replaced them or was made from them."""
        older, newer = (
            "SELECT id FROM memory WHERE superseded = ?",
            "SELECT superseded FROM memory WHERE id = ? AND superseded NOTNULL",
        )
        named = list(ids)
        return self._follow(named, older), self._follow(named, newer)

    def _follow(self, ids: list[str], step: str) -> list[str]:
        """All that is reached from *ids* by the query *step*, again and again."""
        found: dict[str, None] = {}
        ahead = list(ids)
        while ahead:
            for (id_,) in self.run(step, [ahead.pop()]):
                if id_ not in found:
                    found[id_] = None
                    ahead.append(id_)
        return list(found)

    # -- words and vectors ---------------------------------------------------------------------

    def count_words(self, words: Iterable[str]) -> tuple[int, dict[str, int]]:
        """How many passages there are, and how many of them have each of *words*.

        Of a word that is in contexts alone: how many of these have it.
        """
        known = self._words_now()
        found = {}
        for word in words:
            if word not in known.counts:
                in_texts = "SELECT count(*) FROM words WHERE words MATCH ?"
                in_contexts = "SELECT count(*) FROM around WHERE around MATCH ?"
                match = [f'"{word}"']
                count = self.value(in_texts, match) or self.value(in_contexts, match)
                known.counts[word] = count
            found[word] = known.counts[word]
        return known.total, found

    def near_words(self, words: Iterable[str]) -> dict[str, list[str]]:
        """What each of *words*, which no text has, may stand for; without those for nothing."""
        known = self._words_now()
        for word in words:
            if word not in known.near:
                known.near[word] = vocabulary.nearest(self.database, word)
        return {word: near for word in words if (near := known.near[word])}

    def _words_now(self) -> _WordCounts:
        # Counted again when this process or another has changed the index.
        version = (self.value("SELECT seen FROM state") or 0, self.database.data_version())
        known = self._word_counts
        if known is None or known.version != version:
            total = self.value("SELECT count(*) FROM passage")
            known = self._word_counts = _WordCounts(version, total, {})
        return known

    @property
    def vectors(self) -> Vectors:
        """The vectors, which stay in memory from their first use. Needs numpy."""
        if self._vectors is None:
            self._vectors = Vectors()
        return self._vectors

    # -- figures -------------------------------------------------------------------------------

    def stats(self, now: int) -> dict[str, Any]:
        """What `Stats` says of the index."""
        ((superseded, expired, contradicted, sources, oldest, newest),) = self.run(
            "SELECT count(superseded), coalesce(sum(expires <= ?), 0), count(contradicted),"
            " count(DISTINCT source), min(at), max(at) FROM memory",
            [now],
        )
        live = f"JOIN memory m USING (n) WHERE {LIVE} GROUP BY 1"
        kinds = f"SELECT m.kind, count(*) FROM (SELECT n FROM memory) {live} ORDER BY 1"  # noqa: S608 - all of it is ours
        tags = f"SELECT t.tag, count(*) FROM tag t {live} ORDER BY 2 DESC, 1"  # noqa: S608 - as above
        by_kind = dict(self.run(kinds, [now, now]))
        ((model, failed),) = self.run("SELECT name, failed FROM model")
        every = self.value("SELECT count(*) FROM memory")
        lacking = "SELECT count(DISTINCT n) FROM passage WHERE p NOT IN (SELECT p FROM vector)"
        embedded = every - self.value(lacking)
        return {
            "memories": sum(by_kind.values()),
            "superseded": superseded,
            "expired": expired,
            "contradicted": contradicted,
            "kinds": by_kind,
            "tags": dict(self.run(tags, [now, now])),
            "sources": sources,
            "embedded": embedded,
            "unembedded": every - embedded if model else 0,
            "model": model,
            "embedding_failed": failed,
            "index_size": self.value("PRAGMA page_count") * self.value("PRAGMA page_size"),
            "oldest": _time(oldest),
            "newest": _time(newest),
        }


def _clear(database: apsw.Connection) -> None:
    # The indexes of words have no rows of their own to delete: they are those of other tables.
    database.execute("INSERT INTO words(words) VALUES('delete-all')")
    database.execute("INSERT INTO around(around) VALUES('delete-all')")
    for table in ("state", "memory", "dated", "passage", "tag", "used", "vector", "vocabulary"):
        database.execute(f"DELETE FROM {table}")  # noqa: S608 - a table of ours


def _remembered(row: tuple[Any, ...]) -> Remembered:
    _, id_, text, kind, tags, source, by, trust, context, key, *times_and_rest = row
    at, said, valid, expires, *rest = times_and_rest
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
        said_at=None if said == at else from_micros(said),
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


# -- the open indexes of this process --------------------------------------------------------------

#: Indexes that a store keeps open; more are opened again when they are needed.
MOST_OPEN = 32

_open: weakref.WeakKeyDictionary[Backend, dict[tuple[str, str, str], Index]]
_open = weakref.WeakKeyDictionary()
#: Those, too, that are no longer kept open but still in use.
_every: weakref.WeakSet[Index] = weakref.WeakSet()
_guard = threading.Lock()


def open_index(backend: Backend, key: Key, *, private: bool = False) -> Index:
    """The index of the namespace *key*, one in a process; *private*: it is written to no file."""
    path = None if private else own_file(backend, "memory", key.tenant, key.id)
    name = (key.tenant, key.id, path or MEMORY)
    with _guard:
        indexes = _open.setdefault(backend, {})
        index = indexes.pop(name, None) or Index(path or MEMORY)
        indexes[name] = index  # now the last to be dropped
        _every.add(index)
        while len(indexes) > MOST_OPEN:
            del indexes[next(iter(indexes))]  # closed when its last user is done
    return index


_locked_for_fork: list[Index] = []


def _before_fork() -> None:
    """Close the files: a SQLite connection must not be used by two processes."""
    _guard.acquire()
    _locked_for_fork[:] = _every
    for index in _locked_for_fork:
        index.lock.acquire()
        index.close()


def _after_fork() -> None:
    while _locked_for_fork:
        _locked_for_fork.pop().lock.release()
    _guard.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )
