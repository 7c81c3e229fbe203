"""A full-text index over journals: local, derived, and never the truth.

What is in a journal decides; the index says which incarnation of each one it has read, and how far.
Where it is missing, behind, damaged or of another version it is made anew. It lies in a cache
directory (``$LIMPET_CACHE``, else that of the user) and may be deleted at any time; with
``LIMPET_CACHE=none`` it is only in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
import weakref
from typing import TYPE_CHECKING, NamedTuple

import apsw
from msgspec import Struct

from limpet.core import vocabulary
from limpet.core.index_files import own_file
from limpet.core.words import TOKENIZER, indexed, required

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from limpet.backends.contract import Backend, Head, Key

__all__ = [
    "Document",
    "Hit",
    "Known",
    "Read",
    "TextIndex",
    "forget_journal",
    "index_of",
    "opened",
    "own_file",
    "remove",
]

#: The path of what is in no file.
MEMORY = ":memory:"
#: The form of the file; one of another version is thrown away.
VERSION = 3
#: Milliseconds to wait for another process that writes.
PATIENCE = 10_000
#: Characters of an excerpt.
EXCERPT = 160

_SCHEMA = f"""
CREATE TABLE source(
    id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    incarnation TEXT NOT NULL, first INTEGER NOT NULL, seen INTEGER NOT NULL,
    updated INTEGER NOT NULL, UNIQUE(tenant, kind, name)
) STRICT;
CREATE TABLE document(
    id INTEGER PRIMARY KEY, source INTEGER NOT NULL, position INTEGER NOT NULL,
    at INTEGER NOT NULL, label TEXT NOT NULL, text TEXT NOT NULL, UNIQUE(source, position)
) STRICT;
CREATE VIRTUAL TABLE words USING fts5(
    text, content=document, content_rowid=id, tokenize="{TOKENIZER}"
);
INSERT INTO words(words, rank) VALUES('secure-delete', 1);
{vocabulary.TABLE}
"""

_FIND = """
SELECT source.kind, source.name, document.position, document.at, document.label, document.text,
    -bm25(words)
FROM words JOIN document ON document.id = words.rowid JOIN source ON source.id = document.source
WHERE words MATCH ? AND source.tenant = ? AND source.kind IN (SELECT value FROM json_each(?))
ORDER BY bm25(words), document.at DESC
"""

#: What may stand before or behind a word.
_MARKS = ".,;:!?()[]{}<>'*"
_TERM = re.compile(r'"([^"]*)"|(\S+)')


class Known(Struct, frozen=True):
    """How far a journal has been read, and which incarnation of it."""

    incarnation: str
    first: int
    seen: int
    updated: int

    @classmethod
    def of(cls, head: Head, seen: int | None = None) -> Known:
        """What is known once all of *head* has been read, or what is up to *seen*."""
        return cls(head.incarnation, head.first, head.seq if seen is None else seen, head.updated)

    def has(self, at: int) -> bool:
        """Whether what is where we stopped, and was written *at* that time, can be what we read.

        It is not if the store went back to a backup, and then another way.
        """
        return at <= self.updated

    def within(self, now: Known | None) -> bool:
        """Whether what is known *now* is all of this, at least.

        Of a journal that was compacted since, nobody can tell by a position.
        """
        if now is None or (now.incarnation, now.first) != (self.incarnation, self.first):
            return False
        return now.seen >= self.seen


class Document(Struct, frozen=True):
    """A text at one position of a journal; *label* is for the reader: a role, a tag."""

    position: int
    at: int
    label: str
    text: str

    def __repr__(self) -> str:
        return f"Document({self.position}, {self.label!r})"


class Read(NamedTuple):
    """What was read of a journal: it was known as *before*, and is *now* read so far.

    With a *before* of None the *documents* are all that is in it.
    """

    key: Key
    before: Known | None
    now: Known
    documents: Sequence[Document]


class Hit(Struct, frozen=True):
    """A text that was found; the better it fits, the higher its *score*."""

    kind: str
    id: str
    position: int
    at: int
    label: str
    excerpt: str
    score: float

    def __repr__(self) -> str:
        return f"Hit({self.kind}/{self.id!r}, {self.position}, score={self.score:.2f})"


class _Outdated(Exception):
    """A file of another version."""


class TextIndex:
    """Texts of journals, and how far each journal has been read. For one thread at a time."""

    def __init__(self, path: str = MEMORY) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._database = opened(path, VERSION, _SCHEMA)

    def let_go(self) -> None:
        """Close the file; what is in memory stays."""
        if self._path != MEMORY:
            self._database.close()

    def known(self, tenant: str, kind: str) -> dict[str, Known]:
        """How far each journal of a *tenant* and *kind* has been read."""
        with self._lock:
            rows = self._database.execute(
                "SELECT name, incarnation, first, seen, updated FROM source"
                " WHERE tenant = ? AND kind = ?",
                (tenant, kind),
            )
            return {name: Known(*row) for name, *row in rows}

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        # IMMEDIATE: a lock that is only asked for after reading can be refused.
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._database.in_transaction:  # of a full disk SQLite goes back by itself
                    self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    def forget(self, tenant: str, kind: str, names: Iterable[str]) -> None:
        """Leave nothing of these journals: they are not there any more."""
        with self._writing():
            for name in names:
                self._clear(tenant, kind, name)

    def scrub(self) -> None:
        """Leave nothing in SQLite's log of what is no longer in the tables."""
        # While another process reads, it has to wait for the next write there.
        with self._lock, contextlib.suppress(apsw.BusyError):
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _clear(self, tenant: str, kind: str, name: str) -> None:
        which = "SELECT id FROM source WHERE tenant = ? AND kind = ? AND name = ?"
        for source in list(self._database.execute(which, (tenant, kind, name))):
            documents = "SELECT id, text FROM document WHERE source = ?"
            rows = [(id_, indexed(text)) for id_, text in self._database.execute(documents, source)]
            # Told what was there, it leaves no trace of it.
            gone = "INSERT INTO words(words, rowid, text) VALUES('delete', ?, ?)"
            self._database.executemany(gone, rows)
            vocabulary.count_texts(self._database, (text for _, text in rows), -1, tenant)
            self._database.execute("DELETE FROM document WHERE source = ?", source)
            self._database.execute("DELETE FROM source WHERE id = ?", source)

    def add(self, reads: Iterable[Read]) -> bool:
        """Take in what was read of some journals, in one commit.

        False if another process was at one of them meanwhile, for which then nothing is done.
        """
        undisturbed = True
        with self._writing():
            for read in reads:
                undisturbed = self._add(read) and undisturbed
        return undisturbed

    def _add(self, read: Read) -> bool:
        execute, (key, before, now, documents) = self._database.execute, read
        if before is None:
            self._clear(*key)
        else:
            row = execute(
                "SELECT incarnation, first, seen, updated FROM source"
                " WHERE tenant = ? AND kind = ? AND name = ?",
                tuple(key),
            ).fetchone()
            if row is None or Known(*row) != before:
                return False
        source: int = execute(
            "INSERT INTO source(tenant, kind, name, incarnation, first, seen, updated)"
            " VALUES(?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " incarnation = excluded.incarnation,"
            " first = excluded.first, seen = excluded.seen, updated = excluded.updated"
            " RETURNING id",
            (*key, now.incarnation, now.first, now.seen, now.updated),
        ).get
        texts = []
        for document in documents:
            id_: int = execute(
                "INSERT INTO document(source, position, at, label, text) VALUES(?, ?, ?, ?, ?)"
                " RETURNING id",
                (source, document.position, document.at, document.label, document.text),
            ).get
            text = indexed(document.text)
            execute("INSERT INTO words(rowid, text) VALUES(?, ?)", (id_, text))
            texts.append(text)
        vocabulary.count_texts(self._database, texts, 1, key.tenant)
        return True

    def find(
        self, query: str, tenant: str, *, k: int, among: Mapping[str, Collection[str]]
    ) -> list[Hit]:
        """The *k* texts that fit *query* best: those with all of its words, then those with some.

        *among*: in which journals, by their kinds and names. A word that the tenant's texts do not
        have may be a part of one that they have, or have a typing error.
        """
        kinds = json.dumps(list(among))
        found: dict[tuple[str, str, int], Hit] = {}
        with self._lock:
            terms, shown = [], query
            for term, word in _terms(query):
                near: list[str] = []
                if word and not vocabulary.has(self._database, word, tenant):
                    near = vocabulary.nearest(self._database, word, tenant)
                terms.append(" OR ".join([term, *(f'"{other}"' for other in near)]))
                shown = " ".join([shown, *near])
            for joint in (" AND ", " OR ")[: len(terms)]:
                rows = self._database.execute(
                    _FIND, (joint.join(f"({term})" for term in terms), tenant, kinds)
                )
                for kind, name, position, at, label, text, score in rows:
                    if len(found) >= k:
                        break
                    if name in among.get(kind, ()):
                        hit = Hit(kind, name, position, at, label, excerpt(text, shown), score)
                        found.setdefault((kind, name, position), hit)
        return list(found.values())


def opened(path: str, version: int, schema: str) -> apsw.Connection:
    """The derived file at *path*, with the tables of *schema*; one that is no use is made anew."""
    try:
        return _opened(path, version, schema)
    except (apsw.CorruptError, apsw.NotADBError, _Outdated):
        remove(path)  # nothing is lost: it can be made again
        return _opened(path, version, schema)


def _opened(path: str, version: int, schema: str) -> apsw.Connection:
    database = apsw.Connection(path)
    try:
        database.set_busy_timeout(PATIENCE)
        for left in range(PATIENCE // 20, -1, -1):
            try:
                # Readers and a writer do not wait for each other. While another connection does
                # the same, SQLite refuses this at once, without its patience.
                database.execute("PRAGMA journal_mode=WAL")
                break
            except apsw.BusyError:
                if not left:
                    raise
                time.sleep(0.02)
        database.execute("PRAGMA synchronous=NORMAL")  # what a power loss takes is read again
        database.execute("PRAGMA secure_delete=ON")  # what is deleted is gone
        _prepare(database, version, schema)
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: apsw.Connection, version: int, schema: str) -> None:
    """Make the tables, unless another process has; `_Outdated` if they are of another version."""
    database.execute("BEGIN IMMEDIATE")
    found = database.execute("PRAGMA user_version").get
    if found not in (0, version):
        raise _Outdated
    if found == 0:
        database.execute(schema)
        database.execute(f"PRAGMA user_version={version}")
    database.execute("COMMIT")


def _terms(query: str) -> Iterator[tuple[str, str]]:
    """The words of *query*, and what is between quotes, for FTS5; a last * is a word's beginning.

    With each the word that it was, if it need not be there exactly. Everything is quoted, so that
    nothing in a query is an operator, or an error. Half a character, which no stored text has,
    divides words.
    """
    for found in _TERM.finditer(query.encode(errors="replace").decode()):
        text = (found[1] if found[1] is not None else found[2]).replace('"', " ")
        beginning = found[1] is None and text.endswith("*")
        if found[1] is None and not beginning:
            yield from ((term, text.strip(_MARKS)) for term in required(text))
        elif any(sign.isalnum() for sign in text):
            yield f'"{indexed(text).strip()}"{"*" if beginning else ""}', ""


def excerpt(text: str, query: str, most: int = EXCERPT) -> str:
    """The part of *text* around the first word of *query* that is in it, on one line."""
    line = " ".join(text.split())
    low = line.casefold()
    words = [(found[1] or found[2] or "").strip('*"').casefold() for found in _TERM.finditer(query)]
    at = min((place for word in words if word and (place := low.find(word)) >= 0), default=0)
    start = max(0, min(at - most // 3, len(line) - most))
    cut = line[start : start + most]
    return ("…" if start else "") + cut + ("…" if start + most < len(line) else "")


# -- where it lies ---------------------------------------------------------------------------------

_IN_MEMORY: weakref.WeakKeyDictionary[Backend, TextIndex] = weakref.WeakKeyDictionary()
_GUARD = threading.Lock()


def index_of(backend: Backend, *, private: bool = False) -> TextIndex:
    """The index over what *backend* holds; *private*: nothing of it may be written anywhere.

    The caller lets it go when done.
    """
    path = None if private else own_file(backend, "search")
    if path is not None:
        # A directory that cannot be written: then without it.
        with contextlib.suppress(apsw.Error, OSError):
            return TextIndex(path)
    with _GUARD:
        return _IN_MEMORY.get(backend) or _IN_MEMORY.setdefault(backend, TextIndex())


def forget_journal(backend: Backend, key: Key) -> None:
    """Leave nothing of a journal in the index, if there is one; the next search reads it anew."""
    with _GUARD:
        indexes = [_IN_MEMORY.get(backend)]
    path = own_file(backend, "search", create=False)
    if path is not None:
        with contextlib.suppress(apsw.Error, OSError):  # as in `index_of`
            indexes.append(TextIndex(path))
    for index in filter(None, indexes):
        try:
            index.forget(key.tenant, key.kind, [key.id])
            index.scrub()
        finally:
            index.let_go()


def remove(path: str) -> None:
    """Leave nothing of an index."""
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(path + suffix)
