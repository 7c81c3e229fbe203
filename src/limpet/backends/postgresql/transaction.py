"""Transactions of the caller's own in PostgreSQL: its rows and one append, in one commit.

They have sessions of a pool of their own: a long block takes none from the calls of the store. The
caller gets a connection as psycopg makes it, and a new one each time over a session that is as new.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg
from psycopg.pq import TransactionStatus

from limpet.backends.postgresql.appender import IdCameIn, Write
from limpet.backends.postgresql.connections import LEAST, Connection
from limpet.backends.postgresql.errors import is_lost, is_undone, translate
from limpet.backends.retry import repeat
from limpet.backends.transactions import OpenTransaction, already_ended
from limpet.errors import StoreReadOnly, StoreUnavailable, TransactionMisused, TransactionUndone

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from limpet.backends.contract import Append, Appended
    from limpet.backends.postgresql.appender import Appender
    from limpet.backends.postgresql.connections import Connections, Slot
    from limpet.errors import LimpetError

__all__ = ["GuardedConnection", "Transactions"]

#: READ COMMITTED, because an append relies on it, whatever the server's default. The savepoint is
#: there for as long as the transaction is this one: a caller's own COMMIT takes it away.
BEGIN = """
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL lock_timeout = {:.0f};
SAVEPOINT limpet"""
COMMIT = "RELEASE SAVEPOINT limpet; {}COMMIT"
UNDO = "ROLLBACK TO SAVEPOINT limpet"


class GuardedConnection(Connection):
    """A connection for the length of a block, whose transaction is not the caller's to end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_lost = False  # as far as we know
        self._is_over = False

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """As ever, until `end`: then the session is somebody else's."""
        if self._is_over:
            msg = "The transaction of this connection has ended. Use it within its block only."
            raise TransactionMisused(msg)
        try:
            return super().wait(gen, *args, **kwargs)
        except psycopg.Error as error:
            self.is_lost = self.is_lost or is_lost(error)
            raise

    def end(self) -> Connection:
        """Nothing more can be done with it; a connection for the next block."""
        try:
            # Behind a pooler it is the pooler's to leave a session as if nobody had had it.
            if self.session is not None and not self.is_lost:
                self.run("DISCARD ALL")
        except BaseException as error:
            self.finish()  # as it is now, nobody else is to have it
            if not isinstance(error, psycopg.Error):
                raise
        finally:
            self._is_over = True
        return self.hand_over(Connection, prepares=False) if self.is_usable else self

    def commit(self) -> None:
        """Refused."""
        _refuse("commit()")

    def rollback(self) -> None:
        """Refused."""
        _refuse("rollback()")

    def close(self) -> None:
        """Refused."""
        _refuse("close()")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Refused, unless there is something worse."""
        if kind is None:
            _refuse("`with connection`, which commits and closes")


def _refuse(what: str) -> NoReturn:
    raise TransactionMisused(
        f"Not in the block of a transaction: {what}. Leaving the block commits, an exception rolls "
        "back. To undo a part, use connection.transaction() inside, which is a savepoint."
    )


class _CommitUnanswered(Exception):
    """Whether *write* was committed is not known, since the answer was lost."""

    def __init__(self, write: Write) -> None:
        super().__init__(write)
        self.write = write


class Transactions:
    """The transactions of one store; *connections* are for nothing else."""

    def __init__(self, connections: Connections, appender: Appender) -> None:
        self._connections = connections
        self._appender = appender

    @contextmanager
    def open(self) -> Iterator[OpenTransaction]:
        """A transaction on a session of the pool."""
        deadline = self._connections.deadline()
        begin = partial(self._begin, deadline)
        stack, block = repeat(begin, self._connections.errors, timeout=deadline - time.monotonic())
        try:
            with stack:
                opened = OpenTransaction(block.connection, block.append)
                with block.undone_by_errors():
                    yield opened
                    block.end(commit=opened.is_to_commit())
        except _CommitUnanswered as unanswered:
            self._find_out(unanswered.write, unanswered.__cause__)

    def _begin(self, deadline: float) -> tuple[ExitStack, _Block]:
        with ExitStack() as stack:
            slot = stack.enter_context(self._connections.taken(deadline))
            in_session = slot.connected.session is not None
            connection = slot.connected.hand_over(GuardedConnection, prepares=in_session)
            block = _Block(slot, connection, self._connections, self._appender)
            stack.callback(block.hand_back)
            connection.run(BEGIN.format(self._connections.timeout * 1000))
            # The server gives up first.
            connection.max_silence = self._connections.timeout + LEAST
            return stack.pop_all(), block

    def _find_out(self, write: Write, cause: BaseException | None) -> None:
        """Return if *write* was committed. Its session is ended first, so that it cannot be yet."""
        key, place = write.request.key, self._connections.place

        def is_there(connection: Connection) -> bool:
            if self._appender.stored(connection, key, write.id).known is None:
                return False
            self._appender.wait_for_standbys(connection, key)
            return True

        if self._connections.run(is_there, writes=True, unanswered=True):
            return
        if not self._connections.ends_sessions:  # it may still be on its way
            msg = (
                f"{place} was lost when a transaction was committed, and it may or may not be "
                "there. Run it again with the same id, and it is there once."
            )
            raise StoreUnavailable(msg) from cause
        raise _undone(place, "the connection was lost before the commit") from cause


class _Block:
    """One transaction, from its beginning to its end."""

    def __init__(
        self,
        slot: Slot,
        connection: GuardedConnection,
        connections: Connections,
        appender: Appender,
    ) -> None:
        slot.connection = connection
        self.connection = connection
        self._slot = slot
        self._connections = connections
        self._appender = appender
        self._write: Write | None = None

    def append(self, request: Append) -> Appended:
        """Add its record. All that it locks is held only from here to the commit."""
        status = self.connection.pgconn.transaction_status
        if status == TransactionStatus.IDLE:
            raise already_ended()
        if status == TransactionStatus.INERROR:
            raise _statement_failed()
        self._write = Write(request, self._connections.deadline())
        try:
            return self._appender.add(self._write, self.connection)
        except IdCameIn as error:
            # Who wrote that has written the rows as well.
            self.connection.run(UNDO)
            done = self._appender.refused(self._write, self.connection)
            if done is None or not done.repeated:
                raise _undone(self._connections.place, "its id was used meanwhile") from error
            return done
        except psycopg.Error as error:
            raise self._translated(error) from error

    def end(self, *, commit: bool) -> None:
        """Commit, as durably as every append, whatever the caller has set; or do not."""
        if not commit:
            self.connection.run("ROLLBACK")
            return
        commits = self.connection.commits
        durably = "" if commits is None else f"SET LOCAL synchronous_commit = {commits}; "
        try:
            self.connection.run(COMMIT.format(durably))
        except (
            psycopg.errors.InvalidSavepointSpecification,
            psycopg.errors.NoActiveSqlTransaction,
        ):
            raise already_ended() from None
        except psycopg.errors.InFailedSqlTransaction as error:
            raise _statement_failed() from error
        except psycopg.Error as error:
            if is_lost(error) and self._write is not None:
                raise _CommitUnanswered(self._write) from error
            raise

    @contextmanager
    def undone_by_errors(self) -> Iterator[None]:
        """Roll back if anything is raised; what the database did by itself is said in our words."""
        try:
            yield
        except BaseException as error:
            if not self.connection.is_lost:
                with suppress(psycopg.Error):
                    self.connection.run("ROLLBACK")
            if self.connection.is_lost:
                self._connections.lose(self._slot)
            elif isinstance(error, StoreReadOnly):  # as in `Connections.taken`
                self._connections.lose(self._slot, sent=False)
            if isinstance(error, psycopg.Error) and (self.connection.is_lost or is_undone(error)):
                raise self._translated(error) from error
            raise

    def hand_back(self) -> None:
        """Leave the session to the next block."""
        self._slot.connection = self.connection.end()

    def _translated(self, error: psycopg.Error) -> LimpetError:
        """*error*, which came up before the commit was sent, as one of ours."""
        if is_lost(error) or is_undone(error):
            return _undone(self._connections.place, str(error).strip().partition("\n")[0])
        return translate(error, self._connections.place)


def _undone(place: str, why: str) -> TransactionUndone:
    return TransactionUndone(
        f"A transaction on {place} was undone: {why.rstrip('.')}. Nothing of it was kept. Run it "
        "again; if it comes to nothing again, keep its block shorter, or open the store with a "
        "larger timeout=."
    )


def _statement_failed() -> TransactionMisused:
    return TransactionMisused(
        "A statement in this transaction has failed, and PostgreSQL then undoes all of it, also if "
        "the error is caught. Put what may fail into `with connection.transaction():`, which is a "
        "savepoint."
    )
