"""Lending the right to write a SQLite file to a transaction of the caller's.

There is one writer at a time. A transaction and those who commit in groups take turns, so that
neither starves; who waits for a transaction waits no longer than the timeout.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import apsw

from limpet.backends.sqlite.append import append_one
from limpet.backends.transactions import Opened, ended
from limpet.errors import LimpetError, StoreBusy, TransactionMisused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.backends.contract import Append, Appended
    from limpet.backends.sqlite.database import Database

__all__ = ["Lending"]


class Lending:
    """Who may write to *database* now: the groups, or the one to whom it is lent."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.begin()

    def begin(self) -> None:
        """Nobody waits. Also in a forked child, where nobody else is."""
        self.lent: object | None = None  # whoever has it
        # Held by `with self._lock`: an interrupt might come before a condition's own `__exit__`.
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._groups: set[int] = set()  # threads that wait to commit
        self._owner: int | None = None  # the thread that has the connection
        self._connection: apsw.Connection | None = None

    def wait(self) -> None:
        """Wait, as a leader that is to commit, while it is `lent`."""
        with self._lock:
            try:
                self._groups.add(threading.get_ident())
                self._wait(lambda: self.lent is None)
            finally:
                self._groups.discard(threading.get_ident())
                self._news.notify_all()

    @contextmanager
    def transaction(self) -> Iterator[Opened]:
        """A transaction, when it is its turn."""
        with self._turn(), self._database.writing, self._connected() as connection:
            with self._database.translated(connection):
                connection.execute("BEGIN IMMEDIATE")
            guard = _Guard(connection)
            opened = Opened(connection, partial(self._append, connection, guard))
            yield opened
            guard.check()
            if opened.to_commit():
                self._commit(connection, guard)

    def _append(self, connection: apsw.Connection, guard: _Guard, request: Append) -> Appended:
        guard.check()
        with self._database.translated(connection), guard.lifted():
            outcome = append_one(connection, request)
        if isinstance(outcome, LimpetError):
            raise outcome
        return outcome

    def _commit(self, connection: apsw.Connection, guard: _Guard) -> None:
        try:
            with guard.lifted():
                connection.execute("COMMIT")
        except apsw.ConstraintError:  # a deferred one of the caller's
            raise
        except apsw.Error:
            with self._database.translated(connection):
                raise

    @contextmanager
    def _turn(self) -> Iterator[None]:
        mine = object()
        try:
            with self._lock:
                # A group that waits goes first: it has waited for the last transaction already.
                self._wait(lambda: self.lent is None and not self._groups)
                self.lent = mine
            yield
        finally:
            with self._lock:
                if self.lent is mine:
                    self.lent = None
                self._news.notify_all()

    def _wait(self, free: Callable[[], bool]) -> None:
        if not self._news.wait_for(free, self._database.timeout):
            msg = (
                f"A transaction of this process kept {self._database.path} for longer than the "
                "timeout. Keep its block short, or open the store with a larger timeout=."
            )
            raise StoreBusy(msg)

    @contextmanager
    def _connected(self) -> Iterator[apsw.Connection]:
        """A connection for this once: one keeps what is done to it, say functions and hooks."""
        with self._database.translated():
            if self._database.readonly:  # SQLite would notice only at the first write
                raise apsw.ReadOnlyError
            connection = self._database.connect()
        try:
            self._owner, self._connection = threading.get_ident(), connection
            yield connection
        finally:
            self._owner = self._connection = None
            connection.close(force=True)  # undoes what was not committed

    def before_fork(self) -> bool:
        """If this very thread has it, undo its transaction and say so: nothing may be forked."""
        if self._connection is None or self._owner != threading.get_ident():
            return False
        self._connection.close(force=True)
        return True


#: What a statement may do to tables of ours.
_HARMLESS = {
    *(apsw.SQLITE_READ, apsw.SQLITE_SELECT, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE),
    *(apsw.SQLITE_SAVEPOINT, apsw.SQLITE_PRAGMA, apsw.SQLITE_ANALYZE, apsw.SQLITE_REINDEX),
}

#: What a caller may set on a connection, and what our own statements need there.
_WAYS: dict[str, Any] = {
    "exec_trace": None,
    "row_trace": None,
    "convert_binding": None,
    "convert_jsonb": None,
    "cursor_factory": apsw.Cursor,
}


class _Guard:
    """Keeps a caller's statements within the transaction, and off the tables that are ours."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._lifted = False
        connection.authorizer = self._authorize
        connection.exec_trace = self._before

    def check(self) -> None:
        """Raise if the transaction is over."""
        try:
            over = not self._connection.in_transaction
        except apsw.ConnectionClosedError:
            over = True
        if over:
            raise ended()

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """For statements of ours, whatever the caller has set on the connection."""
        theirs = {name: getattr(self._connection, name) for name in _WAYS}
        try:
            self._lifted = True
            self._set(_WAYS)
            yield
        finally:
            self._lifted = False
            self._set(theirs)

    def _set(self, ways: dict[str, Any]) -> None:
        for name, value in ways.items():
            setattr(self._connection, name, value)

    def _before(self, *_: object) -> bool:
        """Let a statement run, but not after ``OR ROLLBACK``: it would commit by itself."""
        self.check()
        return True

    def _authorize(self, operation: int, *names: str | None) -> int:
        if self._lifted:
            return apsw.SQLITE_OK
        if operation == apsw.SQLITE_TRANSACTION:
            _refuse("leaving the block commits, an exception rolls back. Use savepoints inside")
        if operation in (apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH):
            _refuse("a commit to several files is not atomic. Keep your tables in the store's file")
        if operation not in _HARMLESS and any(map(_is_ours, names[:2])):
            _refuse("tables named limpet_… are the store's own. Write through the store")
        return apsw.SQLITE_OK


def _is_ours(name: str | None) -> bool:
    return name is not None and name.lower().startswith("limpet_")


def _refuse(why: str) -> NoReturn:
    raise TransactionMisused(f"Not in the block of a transaction: {why}.")
