"""Lending a session to a transaction of the caller's.

The caller has a connection as psycopg makes it, on a session of a pool of its own: a long block
takes none from the calls of the store. Between two callers the session is made as new.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg
from psycopg.pq import TransactionStatus

from limpet.backends.postgresql.append import Write
from limpet.backends.postgresql.connections import LEAST, Connection
from limpet.backends.postgresql.errors import lost, passing, translate
from limpet.backends.retry import persist
from limpet.backends.transactions import Opened, ended
from limpet.errors import StoreUnavailable, TransactionMisused, TransactionUndone

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from limpet.backends.contract import Append, Appended
    from limpet.backends.postgresql.calls import Calls
    from limpet.backends.postgresql.sql import Statements
    from limpet.backends.postgresql.writer import Writer
    from limpet.errors import LimpetError

__all__ = ["Lending", "Lent"]

#: READ COMMITTED, because an append relies on it, whatever the server's default. The savepoint is
#: there for as long as the transaction is this one: a caller's own COMMIT takes it away.
BEGIN = """
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL lock_timeout = {:.0f};
SAVEPOINT limpet"""
COMMIT = "RELEASE SAVEPOINT limpet; {}COMMIT"
UNDO = "ROLLBACK TO SAVEPOINT limpet"


class Lent(Connection):
    """A connection over another's session, whose transaction is not the caller's to end."""

    def __init__(self, owner: Connection) -> None:
        super().__init__(owner.pgconn)
        self._over = False
        self.gone = False  # the session, as far as we know
        self.owner = owner
        self.patience = owner.patience
        self.set_autocommit(True)  # so that psycopg begins no transaction: there is one

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """As ever, until `end`: then the session is somebody else's."""
        if self._over:
            msg = "The transaction of this connection has ended. Use it within its block only."
            raise TransactionMisused(msg)
        try:
            return super().wait(gen, *args, **kwargs)
        except psycopg.Error as error:
            self.gone = self.gone or lost(error)
            raise

    def end(self) -> None:
        """Nothing more can be done with it."""
        self._over = True

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


class _Unknown(Exception):
    """Whether *write* was committed, since the answer was lost."""

    def __init__(self, write: Write) -> None:
        super().__init__(write)
        self.write = write


class Lending:
    """The transactions of one store; *calls* has a pool for nothing else."""

    def __init__(self, calls: Calls, writer: Writer, statements: Statements) -> None:
        self._calls = calls
        self._writer = writer
        self._sql = statements

    @contextmanager
    def transaction(self) -> Iterator[Opened]:
        """A transaction on a session of the pool."""
        try:
            stack, lent = self._begun()
            with stack:
                loan = _Loan(lent, self._writer, self._calls)
                opened = Opened(lent, loan.append)
                with loan.undone_by_errors():
                    yield opened
                    loan.end(keep=opened.to_commit())
        except _Unknown as unknown:
            self._find_out(unknown.write, unknown.__cause__)

    def _begun(self) -> tuple[ExitStack, Lent]:
        deadline = self._calls.deadline()
        try:
            return persist(
                partial(self._begin, deadline),
                timeout=deadline - time.monotonic(),
                passing=passing,
            )
        except psycopg.Error as error:
            raise translate(error, self._calls.place) from error

    def _begin(self, deadline: float) -> tuple[ExitStack, Lent]:
        with ExitStack() as stack:
            lent = Lent(stack.enter_context(self._calls.taken(deadline)))
            stack.callback(_renew, lent)
            lent.run(BEGIN.format(self._calls.timeout * 1000))
            lent.patience = self._calls.timeout + LEAST  # the server gives up first
            return stack.pop_all(), lent

    def _find_out(self, write: Write, cause: BaseException | None) -> None:
        """Return if *write* was committed. Its session is ended first, so that it cannot be yet."""
        place, request = self._calls.place, write.request
        *_, known, _ = self._calls.rows(self._sql.why, *request.key, write.id)[0]
        if known is not None:
            return
        if not self._calls.ends_sessions:  # it may still be on its way
            msg = (
                f"{place} was lost when a transaction was committed, and it may or may not be "
                "there. Run it again with the same id, and it is there once."
            )
            raise StoreUnavailable(msg) from cause
        raise _undone(place, "the connection was lost before the commit") from cause

    def close(self) -> None:
        """Close the sessions that are not in use."""
        self._calls.close()

    def abandon(self) -> None:
        """Begin anew in a forked child."""
        self._calls.abandon()


class _Loan:
    """One transaction, from its beginning to its end."""

    def __init__(self, lent: Lent, writer: Writer, calls: Calls) -> None:
        self._lent = lent
        self._writer = writer
        self._calls = calls
        self._write: Write | None = None

    def append(self, request: Append) -> Appended:
        """Add its record. All that it locks is held only from here to the commit."""
        self._check()
        self._write = Write(request, self._calls.deadline())
        try:
            return self._writer.add(self._write, self._lent)
        except psycopg.errors.InFailedSqlTransaction as error:
            # Its id came in just before it. Who wrote that has written the rows as well.
            self._lent.run(UNDO)
            done = self._writer.refused(self._lent, request, self._write.id)
            if done is None or not done.repeated:
                raise _undone(self._calls.place, "its id was used meanwhile") from error
            return done
        except psycopg.Error as error:
            raise self._trouble(error) from error

    def end(self, *, keep: bool) -> None:
        """Commit, as durably as every append, whatever the caller has set; or do not."""
        if not keep:
            self._lent.run("ROLLBACK")
            return
        commits = self._lent.owner.commits
        durably = "" if commits is None else f"SET LOCAL synchronous_commit = {commits}; "
        try:
            self._lent.run(COMMIT.format(durably))
        except (
            psycopg.errors.InvalidSavepointSpecification,
            psycopg.errors.NoActiveSqlTransaction,
        ):
            raise ended() from None
        except psycopg.errors.InFailedSqlTransaction as error:
            raise _failed() from error
        except psycopg.Error as error:
            if lost(error) and self._write is not None:
                raise _Unknown(self._write) from error
            raise

    @contextmanager
    def undone_by_errors(self) -> Iterator[None]:
        """Roll back if anything is raised; what the database did by itself is said in our words."""
        try:
            yield
        except BaseException as error:
            if not self._lent.gone:
                with suppress(psycopg.Error):
                    self._lent.run("ROLLBACK")
            if self._lent.gone:
                self._calls.lose(self._lent.owner)
            if isinstance(error, psycopg.Error) and (self._lent.gone or _gave_way(error)):
                raise self._trouble(error) from error
            raise

    def _check(self) -> None:
        """Raise if there is nothing to append to."""
        status = self._lent.pgconn.transaction_status
        if status == TransactionStatus.IDLE:
            raise ended()
        if status == TransactionStatus.INERROR:
            raise _failed()

    def _trouble(self, error: psycopg.Error) -> LimpetError:
        """*error*, which came up before the commit was sent, in our words."""
        if lost(error) or _gave_way(error):
            return _undone(self._calls.place, str(error).strip().partition("\n")[0])
        return translate(error, self._calls.place)


def _gave_way(error: psycopg.Error) -> bool:
    return error.sqlstate is not None and error.sqlstate.startswith("40")


def _undone(place: str, why: str) -> TransactionUndone:
    return TransactionUndone(
        f"A transaction on {place} was undone: {why.rstrip('.')}. Nothing of it was kept. Run it "
        "again; if it comes to nothing again, keep its block shorter, or open the store with a "
        "larger timeout=."
    )


def _failed() -> TransactionMisused:
    return TransactionMisused(
        "A statement in this transaction has failed, and PostgreSQL then undoes all of it, also if "
        "the error is caught. Put what may fail into `with connection.transaction():`, which is a "
        "savepoint."
    )


def _renew(lent: Lent) -> None:
    """Leave the session as if nobody had had it; behind a pooler it is the pooler's to do so."""
    try:
        if lent.owner.session is not None and not lent.gone:
            lent.run("DISCARD ALL")
    except psycopg.Error:
        lent.owner.close()
    finally:
        lent.end()
