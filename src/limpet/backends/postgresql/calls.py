"""Calls of a PostgreSQL server: on a connection of the pool, and again if that goes away."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from limpet.backends.postgresql.connections import (
    LEAST,
    Connection,
    Pool,
    connect_parameters,
    parted,
)
from limpet.backends.postgresql.errors import READ_ONLY, lost, passing, raced, translate
from limpet.backends.postgresql.facts import settings
from limpet.backends.postgresql.lost import Lost
from limpet.backends.retry import persist, unsure
from limpet.backends.url import safe_url
from limpet.errors import StoreBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Calls"]

T = TypeVar("T")


class Calls:
    """How one store reaches its server.

    All that it is given to do may be done twice. With *prepare* off there is a pooler in between,
    and nothing is asked of a session. *lends*: others use the sessions, so nothing stays in them.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        durability: str | None,
        pool: int,
        prepare: bool,
        check_open: Callable[[], None],
        lends: bool = False,
    ) -> None:
        self.place = safe_url(parted(url)[0])
        self.timeout = max(timeout, LEAST)  # there is always time for one try
        self._timeout = timeout
        self._durability = durability
        self._prepare = prepare
        self._check_open = check_open
        self._threshold = 1 if prepare and not lends else None
        self._parameters = connect_parameters(url, timeout, session=prepare)
        self._pool = Pool(pool)
        self._lost = Lost()

    def open(self, check: Callable[[Connection], None]) -> None:
        """Connect for the first time and *check* what is there.

        A server that is starting is waited for; one that is not there is reported at once.
        """
        try:
            persist(
                lambda: self.attempt(check, self.deadline()),
                timeout=self._timeout,
                passing=lambda error: isinstance(error, psycopg.Error) and raced(error),
            )
        except BaseException as error:
            self._pool.forget()
            if isinstance(error, psycopg.Error):
                raise translate(error, self.place) from error
            raise

    def deadline(self) -> float:
        """When a call that begins now must have ended."""
        return time.monotonic() + self.timeout

    def rows(self, sql: str, *values: Any, writes: bool = False) -> list[Any]:
        """The rows that a statement returns."""
        return self.run(lambda connection: connection.rows(sql, values), writes=writes)

    def run(
        self,
        work: Callable[[Connection], T],
        deadline: float | None = None,
        *,
        writes: bool = False,
        unanswered: bool = False,
    ) -> T:
        """Do *work*, again and again until *deadline* if connections go away.

        *writes*: what a try did that had no answer may stay. *unanswered*: there was such a try.
        """
        last = deadline or self.deadline()

        def attempt() -> T:
            nonlocal unanswered
            with self.taken(last) as connection:
                try:
                    return work(connection)
                except psycopg.Error as error:
                    unanswered = unanswered or (writes and lost(error))
                    raise

        try:
            return persist(attempt, timeout=last - time.monotonic(), passing=passing)
        except psycopg.Error as error:
            ours = translate(error, self.place)
            raise (unsure(ours) if unanswered and not lost(error) else ours) from error
        except StoreBusy as error:
            if unanswered:
                raise unsure(error) from error
            raise

    def attempt(self, work: Callable[[Connection], T], deadline: float) -> T:
        """Do *work* once. Errors are psycopg's."""
        with self.taken(deadline) as connection:
            return work(connection)

    @contextmanager
    def taken(self, deadline: float) -> Iterator[Connection]:
        """A connection that is the caller's until the end of the block. Errors are psycopg's."""
        self._check_open()
        slot = self._pool.take(deadline)
        try:
            left = max(deadline - time.monotonic(), LEAST)
            if slot.connection is None:
                self._check_open()
                slot.connection = self._connect(left)
            else:
                # It may be dead without knowing: leave time for another try, with a new one.
                slot.connection.patience = max(left / 2, LEAST)
            self._lost.end(slot.connection)
            yield slot.connection
        except psycopg.Error as error:
            if lost(error):
                self.lose(slot.connection)
            elif error.sqlstate == READ_ONLY and slot.connection is not None:
                # Another server may have taken its place: the next caller looks again for one.
                slot.connection.close()
                self._pool.forget()
            raise
        finally:
            self._pool.give(slot)

    @property
    def ends_sessions(self) -> bool:
        """Whether a session whose connection was lost is known to have ended, when that matters."""
        return self._prepare

    def lose(self, connection: Connection | None) -> None:
        """*connection* went away, and others probably with it."""
        if connection is not None:
            self._lost.add(connection.session)
            connection.close()
        self._pool.forget()

    def _connect(self, patience: float) -> Connection:
        connection = Connection.connect(
            autocommit=True,
            prepare_threshold=self._threshold,
            **self._parameters,
        )
        connection.patience = patience
        # An append relies on it in a transaction, too, whatever the server's default.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        try:
            if self._prepare:
                self._begin(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin(self, connection: Connection) -> None:
        """Have every commit wait for the disk, whatever the server's default; or not, if asked."""
        found = settings(connection)
        connection.session = connection.info.backend_pid, found.at
        connection.commits = found["synchronous_commit"]
        wanted = connection.commits
        if self._durability == "normal":
            wanted = "off"
        elif wanted == "off":
            wanted = "on"
        if wanted != connection.commits:
            connection.run(f"SET synchronous_commit = {wanted}")
            connection.commits = wanted

    def listener(self) -> Connection:
        """A connection that is not of the pool, and waits for ever."""
        connection = self._connect(self.timeout)
        connection.patience = float("inf")
        return connection

    def close(self) -> None:
        """Close all connections, when they are no longer in use."""
        self._pool.close(patience=60)

    def abandon(self) -> None:
        """Begin anew in a forked child."""
        self._lost = Lost()
        self._pool.abandon()
