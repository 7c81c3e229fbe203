"""Transactions of the caller's own in a SQLite file: its rows and one append, in one commit."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import apsw

from limpet.backends.sqlite.appender import Appender, now
from limpet.backends.transactions import OpenTransaction, already_ended
from limpet.errors import StoreUnavailable, TransactionMisused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.backends.contract import Append, Appended
    from limpet.backends.group_commit import GroupCommit
    from limpet.backends.sqlite.database import Database

__all__ = ["Transactions"]


class Transactions:
    """Gives callers a connection of their own, while those who commit in groups wait."""

    def __init__(self, database: Database, group: GroupCommit) -> None:
        self._database = database
        self._group = group
        self._owner: int | None = None  # the thread that is in a transaction
        self._connection: apsw.Connection | None = None

    @contextmanager
    def open(self) -> Iterator[OpenTransaction]:
        """A transaction, when it is its turn."""
        with self._group.alone(), self._connected() as connection:
            with self._database.translated(connection):
                connection.execute("BEGIN IMMEDIATE")
            guard = _Guard(connection)
            opened = OpenTransaction(connection, partial(self._append, connection, guard))
            yield opened
            guard.check()
            if opened.is_to_commit():
                self._commit(connection, guard)

    def _append(self, connection: apsw.Connection, guard: _Guard, request: Append) -> Appended:
        guard.check()
        with self._database.translated(connection), guard.lifted():
            appender = Appender(connection)
            done = appender.append(request, now())
            appender.flush()
        return done

    def _commit(self, connection: apsw.Connection, guard: _Guard) -> None:
        try:
            with guard.lifted():
                connection.execute("COMMIT")
        except apsw.ConstraintError:  # a deferred one of the caller's
            raise
        except apsw.Error as error:
            explained = self._database.explained(error, connection)
            if isinstance(explained, StoreUnavailable):
                self._database.distrust()
            raise explained from error

    @contextmanager
    def _connected(self) -> Iterator[apsw.Connection]:
        """A connection for this once: one keeps what is done to it, say functions and hooks."""
        with self._database.translated():
            connection = self._database.connect()
        try:
            self._owner, self._connection = threading.get_ident(), connection
            yield connection
        finally:
            self._owner = self._connection = None
            # Undoes what was not committed. It is closed all the same if that fails: what could not
            # be moved into the file is in the log.
            with suppress(apsw.Error):
                connection.close(force=True)

    def before_fork(self) -> bool:
        """If this very thread is in one, undo it and say so: nothing may be forked."""
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
_SETTINGS: dict[str, Any] = {
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
        connection.exec_trace = self._before_statement

    def check(self) -> None:
        """Raise if the transaction is over."""
        try:
            over = not self._connection.in_transaction
        except apsw.ConnectionClosedError:
            over = True
        if over:
            raise already_ended()

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """For statements of ours, whatever the caller has set on the connection."""
        theirs = {name: getattr(self._connection, name) for name in _SETTINGS}
        try:
            self._lifted = True
            for name, value in _SETTINGS.items():
                setattr(self._connection, name, value)
            yield
        finally:
            self._lifted = False
            for name, value in theirs.items():
                setattr(self._connection, name, value)

    def _before_statement(self, *_: object) -> bool:
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
        ours = any(name is not None and name.lower().startswith("limpet_") for name in names[:2])
        if ours and operation not in _HARMLESS:
            _refuse("tables named limpet_… are the store's own. Write through the store")
        return apsw.SQLITE_OK


def _refuse(why: str) -> NoReturn:
    raise TransactionMisused(f"Not in the block of a transaction: {why}.")
