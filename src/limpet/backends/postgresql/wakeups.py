"""Waiting for an append without asking again and again: LISTEN, one connection for all waiters.

There is no thread for it. Of those who wait, one listens and tells the others; when it leaves,
the next one does.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg

from limpet.backends.postgresql.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.backends.contract import Key
    from limpet.backends.postgresql.connections import Connection

__all__ = ["Wakeups", "channel"]

#: It looks after so many seconds all the same: a writer may have been opened without wakeups.
LOOK_AGAIN = 5.0
#: How soon it notices that the store was closed, or that it is its turn to listen.
SLICE = 0.25


def channel(schema: str) -> str:
    """What writers notify and waiters listen to; a name has at most 63 bytes."""
    return f"limpet_{schema[:54]}"


class _Waiter:
    """Somebody who waits for a journal, and whether it was heard of."""

    def __init__(self, key: Key) -> None:
        self.name = " ".join(key)
        self.told = False


class Wakeups:
    """The waiters of one store."""

    def __init__(
        self, schema: str, connect: Callable[[], Connection], closed: Callable[[], bool]
    ) -> None:
        self._channel = quoted(channel(schema))
        self._connect = connect
        self._closed = closed
        self._begin()

    def _begin(self) -> None:
        self._news = threading.Condition()
        self._waiters: list[_Waiter] = []
        self._connection: Connection | None = None
        self._listens = False  # one of the waiters does, and may use the connection

    def wait(self, key: Key, there: Callable[[], bool], timeout: float) -> bool:
        """Wait until *there* is true; False if *timeout* seconds pass."""
        deadline = time.monotonic() + timeout
        with self._waiting(key) as waiter:
            while True:
                waiter.told = False  # from here on: what came before, we see for ourselves
                if there():
                    return True
                now = time.monotonic()
                if now >= deadline:
                    return False
                self._sleep(waiter, min(deadline, now + LOOK_AGAIN))

    @contextmanager
    def _waiting(self, key: Key) -> Iterator[_Waiter]:
        waiter = _Waiter(key)
        with self._news:
            if not self._waiters:
                self._say("LISTEN")
            self._waiters.append(waiter)
        try:
            yield waiter
        finally:
            with self._news:
                self._waiters.remove(waiter)
                if not self._waiters:  # or the server would keep for us what nobody reads
                    self._say("UNLISTEN")

    def _say(self, what: str) -> None:
        """Begin or end to listen; without a connection, waiters just look more often."""
        try:
            if self._connection is None and what == "LISTEN":
                self._connection = self._connect()
            if self._connection is not None:
                self._connection.run(f"{what} {self._channel}")
        except psycopg.Error:
            self._let_go()

    def _sleep(self, waiter: _Waiter, until: float) -> None:
        """Until *waiter* is told, or it is time to look."""
        with self._news:
            if self._connection is None:
                self._news.wait(SLICE)
                self._say("LISTEN")
                return
            while not (waiter.told or self._closed() or time.monotonic() >= until):
                if self._listens:
                    self._news.wait(SLICE)
                else:
                    self._listen(min(SLICE, until - time.monotonic()))

    def _listen(self, timeout: float) -> None:
        """Listen for all, without holding the lock meanwhile."""
        connection, self._listens = self._connection, True
        names: set[str] | None = None
        self._news.release()
        try:
            if connection is not None:
                news = connection.notifies(timeout=max(0, timeout), stop_after=1)
                names = {told.payload for told in news}
        except psycopg.Error:
            pass  # nobody knows what was missed
        finally:
            self._news.acquire()
            self._listens = False
            for waiter in self._waiters:
                waiter.told = waiter.told or names is None or waiter.name in names
            self._news.notify_all()
        if names is None:
            self._let_go()

    def close(self) -> None:
        """Let go of the connection, when nobody listens on it any more."""
        with self._news:
            self._news.wait_for(lambda: not self._listens, timeout=60)
            self._let_go()

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def abandon(self) -> None:
        """Begin anew in a forked child."""
        if self._connection is not None:
            self._connection.abandon()
        self._begin()
