"""Sessions whose connection was lost, perhaps in the middle of a request.

The server may not know yet: it may still hold locks, or receive the request when the network has
healed, and do what was meanwhile done by a second try. So before anything is tried again, such a
session is ended, and its end awaited.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from limpet.backends.postgresql.connections import Connection

__all__ = ["Lost"]

#: A process number is used again: a session that began later is another's. So is one that began
#: long before we had ours, on a server that has taken the place of the one we had it on.
_IT = """
    FROM pg_stat_activity WHERE pid = $1
    AND extract(epoch FROM backend_start) * 1000000 BETWEEN $2 - 600000000 AND $2"""
_END = f"SELECT pg_terminate_backend(pid) {_IT}"
_LOOK = f"SELECT pid {_IT}"


class Lost:
    """The sessions of one store that are to be ended."""

    def __init__(self) -> None:
        self._sessions: set[tuple[int, int]] = set()
        self._ending = threading.Lock()

    def add(self, session: tuple[int, int] | None) -> None:
        """The connection of *session* is lost."""
        if session is not None:
            self._sessions.add(session)

    def end(self, connection: Connection) -> None:
        """End them all, by way of *connection*; on return they can do nothing more."""
        if not self._sessions:
            return
        with self._ending:  # who comes meanwhile waits, since theirs may be among them
            for session in list(self._sessions):
                # Not every engine has such a thing.
                with suppress(psycopg.errors.ProgrammingError, psycopg.errors.NotSupportedError):
                    _end(connection, session)
                self._sessions.discard(session)


def _end(connection: Connection, session: tuple[int, int]) -> None:
    deadline = time.monotonic() + connection.patience
    connection.rows(_END, session)
    while connection.rows(_LOOK, session) and time.monotonic() < deadline:
        time.sleep(0.005)
