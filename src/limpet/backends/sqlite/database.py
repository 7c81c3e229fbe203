"""Connections to a SQLite file: opening, settings, schema, pooling, fork, our own errors."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from array import array
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import apsw

from limpet.backends.directories import make_parents, sync_directory
from limpet.backends.sqlite.errors import foreign_log, gone, meaning, not_synced, translate
from limpet.errors import InvalidURL, NotAStore, SchemaTooNew, StoreNotFound, StoreReadOnly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.errors import StoreError

__all__ = [
    "SQLITE_ERRORS",
    "Database",
    "check_content",
    "check_ours",
    "check_path",
    "migrations",
    "readonly_uri",
    "schema_version",
]

MIGRATIONS = os.path.join(os.path.dirname(__file__), "migrations")

#: What SQLite's errors arrive as.
SQLITE_ERRORS = (apsw.Error, UnicodeDecodeError)

#: How a SQLite file begins; and how it says, at that place, that it is not used with a log.
MAGIC = b"SQLite format 3\0"
LOGGED, NO_LOG = slice(18, 20), b"\1\1"

#: What the system says when a disk, a quota or a limit on files is full.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

#: What SQLite says when a write has gone through, and the sync behind it has not.
_NOT_SYNCED = {apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC}

#: Connections kept open for the next reader; more are opened under load and closed after it.
IDLE_READERS = 8


class Database:
    """One SQLite file: a connection to write, any number to read, and what both are opened with.

    The writer is used by one thread at a time, under `writing`. Readers never wait for it: in WAL
    mode each sees the last commit. Before a fork everything is closed, because a connection, and
    SQLite's own table of the locks a process holds, must not be in two processes.
    """

    def __init__(
        self, path: str, *, timeout: float, durability: str, readonly: bool, vfs: str | None
    ) -> None:
        if vfs is not None and vfs not in apsw.vfs_names():
            msg = f"There is no VFS {vfs!r}. SQLite knows {', '.join(apsw.vfs_names())} here."
            raise InvalidURL(msg)
        self.path = path
        self.readonly = readonly
        self.timeout = min(timeout, threading.TIMEOUT_MAX)
        self._durability = durability
        self._vfs = vfs
        self._writer: apsw.Connection | None = None
        self._file: tuple[int, int] | None = None  # which one the writer has open
        self._moved = array("i", [0])  # where SQLite puts an answer,
        self._moved_at = self._moved.buffer_info()[0]  # and its address
        self._closed = False
        self._held = False  # `writing`, for the length of a fork
        self._reset_locks()

    def _reset_locks(self) -> None:
        self.writing = threading.RLock()  # of a kind that only its holder can release
        self._reading = threading.Lock()  # held for the length of a fork: nobody begins to read
        # Held by `with self._lock`, which Python lets go whatever strikes; a condition has methods
        # for that, and an interrupt might come before them.
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._idle: list[apsw.Connection] = []
        self._busy = 0

    # -- connections -------------------------------------------------------------------------

    def writer(self) -> apsw.Connection:
        """The connection for writing. Hold `writing` while you use it."""
        writer = self._writer
        if writer is None:
            with self.translated():
                writer = self.connect()
            self._writer, self._file = writer, self._identity()
            return writer
        # Whether another file has our name now, or none; sometimes also if that is not so.
        writer.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, self._moved_at)
        if self._moved[0] and self._identity() != self._file:
            # SQLite would go on with what has no name any more, and acknowledge what nobody finds.
            raise gone(self.path)
        return writer

    def _identity(self) -> tuple[int, int] | None:
        """Which file has our name now; None if none has, or only the VFS knows."""
        if self._vfs is not None:
            return None
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:  # its directory; the file that we have open is still there
            return self._file
        return found.st_dev, found.st_ino

    @contextmanager
    def reader(self) -> Iterator[apsw.Connection]:
        """A connection that nobody else uses meanwhile."""
        connection, counted = None, 0
        try:
            with self._reading, self._lock:
                if self._closed:
                    raise translate(apsw.ConnectionClosedError(), self.path)
                connection = self._idle.pop() if self._idle else None
                self._busy, counted = self._busy + 1, 1
            with self.translated():
                if connection is None:
                    connection = self.connect()
                yield connection
        finally:
            with self._lock:
                self._busy -= counted  # first: a call is where an interrupt may come
                if connection is not None and len(self._idle) < IDLE_READERS:
                    self._idle.append(connection)
                    connection = None
                self._news.notify_all()
            if connection is not None:
                connection.close()

    def connect(self) -> apsw.Connection:
        """A new connection, set up as all of them are."""
        if self._closed:
            raise apsw.ConnectionClosedError
        if self.readonly:
            name, flags = readonly_uri(self.path), apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        else:
            name, flags = self.path, apsw.SQLITE_OPEN_READWRITE
        connection = apsw.Connection(name, flags=flags, vfs=self._vfs)
        try:
            connection.set_busy_handler(_patience(self.timeout))
            # Otherwise a statement is prepared anew whenever a value is bound to it that a partial
            # index could depend on: that takes longer than to run it.
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            # FULL syncs the log at every commit: an acknowledged write survives power loss.
            synchronous = "FULL" if self._durability == "full" else "NORMAL"
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.execute("PRAGMA journal_size_limit = 67108864")
            connection.execute("PRAGMA cache_size = -8000")  # KB: a long conversation, read again
            connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        except BaseException:
            connection.close()
            raise
        return connection

    def distrust(self) -> None:
        """Close what is open, after a failure of the disk: what SQLite takes for so may not be.

        The next one to come opens the file anew, and finds what is there. Hold `writing`.
        """
        with self._lock:
            idle, self._idle = self._idle, []
        writer, self._writer = self._writer, None
        for connection in (*idle, writer):
            if connection is not None:
                # It is closed all the same; what could not be moved into the file is in the log.
                with suppress(apsw.Error):
                    connection.close(force=True)

    def scrub(self) -> bool:
        """Empty the log: deleted rows are overwritten in the file, and still stand there."""
        with self.translated(), self.writing:
            ((busy, *_),) = self.writer().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return not busy

    def open(self, *, create: bool) -> None:
        """Make sure that the file is there, is ours, and has the newest schema."""
        with _creating:
            if create and not self.readonly:
                _create(self.path)
        check_path(self.path)
        with self.translated(), self.writing:
            check_content(self.path, self._vfs)
            try:
                self._prepare(create=create)
            except BaseException:
                self._close_all(patience=0)
                raise

    def _prepare(self, *, create: bool) -> None:
        connection = self.writer()
        if not create or self.readonly:
            check_ours(self.path, connection, readonly=self.readonly)
        if not self.readonly:
            _use_wal(connection, self.timeout)
            _migrate(self.path, connection)

    def close(self) -> None:
        """Close all connections, waiting for those in use."""
        with self._lock:
            self._closed = True
        with self.writing, self.translated():
            self._close_all(patience=60)

    def _close_all(self, patience: float) -> None:
        with self._lock:
            self._news.wait_for(lambda: not self._busy, timeout=patience)
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    # -- fork --------------------------------------------------------------------------------

    def before_fork(self, *, writing: bool = False) -> None:
        """Let nobody begin to write or read, and close all. *writing*: this thread holds that."""
        self._held = not writing
        if self._held:
            self.writing.acquire()
        self._reading.acquire()
        self._close_all(patience=10)

    def after_fork_in_parent(self) -> None:
        self._reading.release()
        if self._held:
            self.writing.release()

    def after_fork_in_child(self) -> None:
        self._reset_locks()

    # -- errors ------------------------------------------------------------------------------

    @contextmanager
    def translated(self, connection: apsw.Connection | None = None) -> Iterator[None]:
        """Turn the errors of *connection*, or else the writer, into ours."""
        try:
            yield
        except SQLITE_ERRORS as error:
            raise self.explained(error, connection or self._writer) from error

    def explained(
        self, error: apsw.Error | UnicodeDecodeError, used: apsw.Connection | None
    ) -> StoreError:
        """*error* of the connection that was *used*, as one of ours."""
        if isinstance(error, UnicodeDecodeError):  # text is always stored as UTF-8
            error = apsw.CorruptError(f"text that is {error.reason}")
        elif getattr(error, "extendedresult", 0) in _NOT_SYNCED:
            return not_synced(self.path, error)
        elif isinstance(error, apsw.IOError) and used is not None and used.system_errno in _NO_ROOM:
            error = apsw.FullError()  # a quota is no broken disk, but SQLite has one word for it
        return translate(error, self.path)


def readonly_uri(path: str) -> str:
    """How to open *path* for reading only.

    SQLite keeps an index beside the log, even to read. Where that cannot be written and there is no
    log, nobody else can be writing either, and the file is read as it is.
    """
    from urllib.parse import quote  # noqa: PLC0415 - rarely needed

    fixed = not os.access(os.path.dirname(path), os.W_OK) and not os.path.exists(path + "-wal")
    return f"file:{quote(path)}?mode=ro" + ("&immutable=1" if fixed else "")


def _patience(timeout: float) -> Callable[[int], bool]:
    """A busy handler that waits in short, uneven naps.

    SQLite's own naps grow to 100 ms, and with several processes the unlucky sleep while the lucky
    write: here everybody asks again within two milliseconds.
    """
    began = 0.0

    def wait(tries: int) -> bool:
        nonlocal began
        now = time.monotonic()
        if tries == 0:
            began = now
        if now - began > timeout:
            return False
        time.sleep(random.uniform(0.0001, 0.002))  # noqa: S311 - jitter, not a secret
        return True

    return wait


# -- opening -----------------------------------------------------------------------------------


#: Held while a file is created: closing it gives up every lock that this process has on it, so
#: nobody may have it open yet.
_creating = threading.Lock()


def _create(path: str) -> None:
    """Create an empty file that only its owner can read, unless there is one."""
    try:
        make_parents(path)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError):
        return  # check_path says what is wrong, if anything is
    except OSError as error:
        full = error.errno in _NO_ROOM
        raise meaning(apsw.FullError() if full else apsw.ReadOnlyError(), path) from error
    sync_directory(os.path.dirname(path))


def check_path(path: str) -> None:
    directory = os.path.dirname(path) or "."
    if not os.path.isdir(directory):
        above = directory
        while not os.path.lexists(above):
            above = os.path.dirname(above)
        if not os.path.isdir(above):
            msg = f"{above} is no directory, so {path} cannot be opened. Name a file elsewhere."
            raise StoreNotFound(msg)
        msg = (
            f"The directory {directory} does not exist, so {path} cannot be opened. "
            f"Create it first (mkdir -p {directory}), or name another file."
        )
        raise StoreNotFound(msg)
    if os.path.isdir(path):
        msg = f"{path} is a directory. Name a file in it, for example {path.rstrip('/')}/agents.db."
        raise NotAStore(msg)
    if not os.path.exists(path):
        if os.access(directory, os.W_OK):
            msg = f"There is no store at {path}. Check the name."
            raise StoreNotFound(msg, hint="To begin one there, open it with create=True.")
        msg = (
            f"{path} cannot be created: the directory is not writable for this user. "
            "Change its owner or mode, or name a file elsewhere."
        )
        raise StoreReadOnly(msg)


def check_content(path: str, vfs: str | None) -> None:
    """Refuse a file that is something else, before SQLite takes a short one for an empty database.

    Nothing, or zeros, may be what a crash during creation left: SQLite knows what to do with that.
    And refuse a backup that was put beside a log which a killed process has left: SQLite would read
    the one into the other. A file says that it has a log before there is anything in that.
    """
    has_log = False
    with suppress(OSError):
        has_log = vfs is None and os.path.getsize(f"{path}-wal") > 0
    # By SQLite's own means: closing a file of our own would give up the locks of other connections.
    flags = [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0]
    file = apsw.VFSFile(vfs or "", path, flags)
    try:
        start = file.xRead(LOGGED.stop, 0)
    finally:
        file.xClose()
    if not start.startswith(MAGIC) and start.strip(b"\0"):
        raise translate(apsw.NotADBError(), path)
    if has_log and start[LOGGED] == NO_LOG:
        raise foreign_log(path)


def _use_wal(connection: apsw.Connection, timeout: float) -> None:
    """Switch to the write-ahead log; the busy handler is not asked for this, so ask again here."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


# -- schema ------------------------------------------------------------------------------------


def migrations() -> list[tuple[int, str]]:
    """The numbered steps, oldest first, as (number, SQL)."""
    steps = []
    for name in _files():
        with open(os.path.join(MIGRATIONS, name), encoding="utf-8") as file:
            steps.append((int(name[:4]), file.read()))
    return steps


def _files() -> list[str]:
    return sorted(name for name in os.listdir(MIGRATIONS) if name.endswith(".sql"))


def schema_version(connection: apsw.Connection) -> int:
    """The last migration that this file has had; 0 for a file that has none of our tables.

    In a table of our own, not in ``user_version``: the file may hold the user's tables as well.
    """
    found = connection.execute(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'limpet_schema'"
    ).fetchall()
    if not found:
        return 0
    version: int = connection.execute("SELECT version FROM limpet_schema").get
    return version


def _check_schema(path: str, connection: apsw.Connection) -> bool:
    """True if the schema is the newest; raises if it is newer than this release knows."""
    version, newest = schema_version(connection), int(_files()[-1][:4])
    if version > newest:
        msg = (
            f"{path} has schema {version}, but this version reads up to {newest}.\n"
            "A newer release wrote to this file. "
            "Upgrade limpet, or open a copy made before the upgrade."
        )
        raise SchemaTooNew(msg)
    return version == newest


def check_ours(path: str, connection: apsw.Connection, *, readonly: bool) -> None:
    """Refuse a database without our tables, or, for reading only, with an older form of them."""
    newest = _check_schema(path, connection)
    if schema_version(connection) == 0:
        msg = f"{path} is a SQLite database, but there is no Limpet store in it. Check the name."
        raise NotAStore(msg, hint="To begin a store in it, open it with create=True.")
    if readonly and not newest:
        msg = f"{path} was written by an older release. Open it once for writing to upgrade it."
        raise StoreReadOnly(msg)


def _migrate(path: str, connection: apsw.Connection) -> None:
    if _check_schema(path, connection):
        return
    # BEGIN IMMEDIATE: of several processes that start at once, one migrates and the others find it
    # done when they get the lock.
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = schema_version(connection)
        if version == 0:
            connection.execute("CREATE TABLE limpet_schema (version INTEGER NOT NULL) STRICT")
            connection.execute("INSERT INTO limpet_schema VALUES (0)")
        for number, sql in migrations():
            if number > version:
                connection.execute(sql)
                connection.execute("UPDATE limpet_schema SET version = ?", (number,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
