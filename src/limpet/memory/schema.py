"""The file of an index: its tables, and how it is opened, written and thrown away."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import apsw

from limpet.core.text_index import MEMORY, opened, remove

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["IndexFile"]

#: The form of the file; one of another version is thrown away.
VERSION = 4

_SCHEMA = """
CREATE TABLE state(
    incarnation TEXT NOT NULL, first INTEGER NOT NULL, seen INTEGER NOT NULL,
    updated INTEGER NOT NULL
) STRICT;
CREATE TABLE model(name TEXT, gone INTEGER NOT NULL, failed TEXT) STRICT;
INSERT INTO model VALUES(NULL, 0, NULL);
CREATE TABLE memory(
    n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, context TEXT,
    kind TEXT NOT NULL, tags TEXT, source TEXT, maker TEXT, trust REAL, key TEXT UNIQUE,
    at INTEGER NOT NULL, valid INTEGER, expires INTEGER,
    supersedes TEXT, superseded TEXT, because TEXT, contradicted TEXT,
    confirmed INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX memory_source ON memory(source) WHERE source IS NOT NULL;
CREATE INDEX memory_expires ON memory(expires) WHERE expires IS NOT NULL;
CREATE INDEX memory_superseded ON memory(superseded) WHERE superseded IS NOT NULL;
CREATE TABLE tag(tag TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY(tag, n)) STRICT, WITHOUT ROWID;
CREATE TABLE used(
    n INTEGER NOT NULL, seq INTEGER NOT NULL, at INTEGER NOT NULL, PRIMARY KEY(n, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE vector(v INTEGER PRIMARY KEY, n INTEGER NOT NULL UNIQUE, value BLOB NOT NULL) STRICT;
CREATE TRIGGER gone AFTER DELETE ON vector BEGIN UPDATE model SET gone = gone + 1; END;
CREATE VIRTUAL TABLE words USING fts5(
    text, context, content=memory, content_rowid=n,
    tokenize="porter unicode61 remove_diacritics 2"
);
INSERT INTO words(words, rank) VALUES('secure-delete', 1);
INSERT INTO words(words, rank) VALUES('hashsize', 16000000);
"""


class IndexFile:
    """A SQLite file that can be made again at any time. For one thread at a time, under `lock`."""

    def __init__(self, path: str = MEMORY) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._opened: apsw.Connection | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    @property
    def database(self) -> apsw.Connection:
        """The connection, made when it is first asked for."""
        if self._opened is None:
            self._opened = opened(self.path, VERSION, _SCHEMA)
            self._opened.execute("PRAGMA cache_size=-16000")  # KB
        return self._opened

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
                if database.in_transaction:  # of a full disk SQLite goes back by itself
                    database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """One state of the file for all that is asked of it, whatever other processes write."""
        with self.lock:
            database = self.database
            try:
                database.execute("BEGIN")
                yield
            finally:
                if database.in_transaction:
                    database.execute("ROLLBACK")  # there is nothing to keep

    def let_go(self) -> None:
        """Close the file, until somebody asks again; what is in memory stays."""
        if self.path != MEMORY:
            self._close()

    def start_anew(self) -> None:
        """Throw all of it away."""
        with self.lock:
            self._close()
            if self.path != MEMORY:
                remove(self.path)

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def scrub(self) -> None:
        """Leave nothing in the log of what is no longer in the tables."""
        # While another process reads, that has to wait until it writes there again.
        with contextlib.suppress(apsw.BusyError):
            self.run("PRAGMA wal_checkpoint(TRUNCATE)")

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return int(self.value("PRAGMA page_count") * self.value("PRAGMA page_size"))
