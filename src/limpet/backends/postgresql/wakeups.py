"""Waiting for an append without asking again and again: LISTEN, one connection for all waiters.

There is no thread for it. Of those who wait, one listens and notifies the others; when it leaves,
the next one listens.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg

from limpet.backends.postgresql.schema import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.backends.contract import Key
    from limpet.backends.postgresql.connections import Connection

__all__ = ["Wakeups", "channel"]

#: A waiter looks after so many seconds all the same: a writer may have been opened without wakeups.
LOOK_AGAIN = 5.0

#: Seconds in which it notices that the store was closed, or that it is its turn to listen.
SLICE = 0.25


def channel(schema: str) -> str:
    """What writers notify and waiters listen to; a name has at most 63 bytes."""
    return f"limpet_{schema[:54]}"


class _Waiter:
    """Somebody who waits for a journal, and whether it has changed since they looked."""

    def __init__(self, key: Key) -> None:
        self.name = " ".join(key)
        self.notified = False
        #: Taken while there is nothing to do. A plain lock, not a condition: an interrupt leaves it
        #: as it is, whenever it comes.
        self.woken = threading.Lock()
        self.woken.acquire()

    def wake(self) -> None:
        """Let it look whether there is something to do; under the lock of all."""
        if self.woken.locked():
            self.woken.release()


class Wakeups:
    """The waiters of one store."""

    def __init__(
        self, schema: str, connect: Callable[[], Connection], closed: Callable[[], bool]
    ) -> None:
        self._channel = quoted(channel(schema))
        self._connect = connect
        self._closed = closed
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._waiters: list[_Waiter] = []
        self._connection: Connection | None = None
        self._listens = False  # one of the waiters does, and may use the connection

    def wait(self, key: Key, is_there: Callable[[], bool], timeout: float) -> bool:
        """Wait until *is_there* returns true; False if *timeout* seconds pass."""
        deadline = time.monotonic() + timeout
        with self._waiting(key) as waiter:
            while True:
                waiter.notified = False  # from here on: what came before, we see for ourselves
                if is_there():
                    return True
                now = time.monotonic()
                if now >= deadline:
                    return False
                self._sleep(waiter, min(deadline, now + LOOK_AGAIN))

    @contextmanager
    def _waiting(self, key: Key) -> Iterator[_Waiter]:
        waiter = _Waiter(key)
        try:
            with self._lock:
                if not self._waiters:
                    self._send("LISTEN")
                self._waiters.append(waiter)
            yield waiter
        finally:
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                if not self._waiters:  # or the server would keep for us what nobody reads
                    self._send("UNLISTEN")

    def _send(self, what: str) -> None:
        """Begin or end to listen; without a connection, waiters just look more often."""
        try:
            if self._connection is None and what == "LISTEN":
                self._connection = self._connect()
            if self._connection is not None:
                self._connection.run(f"{what} {self._channel}")
        except psycopg.Error:
            self._disconnect()

    def _sleep(self, waiter: _Waiter, until: float) -> None:
        """Until *waiter* is notified, or it is time to look."""
        if self._connection is None:
            waiter.woken.acquire(timeout=SLICE)
            with self._lock:
                if self._connection is None:
                    self._send("LISTEN")
            return
        while not (waiter.notified or self._closed() or time.monotonic() >= until):
            listens = False
            try:
                with self._lock:
                    if not self._listens:
                        self._listens = listens = True
                if listens:
                    self._listen(min(SLICE, until - time.monotonic()))
                else:
                    waiter.woken.acquire(timeout=SLICE)
            finally:
                if listens:
                    with self._lock:
                        self._listens = False
                        for other in self._waiters:  # one of them is to listen now
                            other.wake()

    def _listen(self, timeout: float) -> None:
        """Listen for all."""
        connection = self._connection
        names: set[str] | None = None
        try:
            if connection is not None:
                news = connection.notifies(timeout=max(0, timeout), stop_after=1)
                names = {one.payload for one in news}
        except psycopg.Error:
            pass  # nobody knows what was missed
        with self._lock:
            for waiter in self._waiters:
                waiter.notified = waiter.notified or names is None or waiter.name in names
            if names is None:
                self._disconnect()

    def close(self) -> None:
        """Let go of the connection, when nobody listens on it any more."""
        deadline = time.monotonic() + 60
        while self._listens and time.monotonic() < deadline:
            time.sleep(0.01)
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def abandon(self) -> None:
        """Begin anew in a forked child."""
        if self._connection is not None:
            self._connection.abandon()
        self._reset()
