"""Connections to PostgreSQL: the URL, the pool, and an end to every wait."""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8BinaryDumper

from limpet.backends.postgresql.errors import Late
from limpet.backends.url import check_durability, flag, safe_url, seconds
from limpet.errors import InvalidURL, StoreBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = ["Connection", "Pool", "Slot", "connect_parameters", "own_parameters", "parted"]

#: The least that a call is given, whatever its timeout: the time for one try.
LEAST = 1.0
#: Seconds after which a statement that waits for a lock is asked again: those who append together
#: do not wait for one of them for longer.
LOCKED = 1.0


# -- the URL -----------------------------------------------------------------------------------


def schema(text: str) -> str:
    """A name for a schema that nobody has to quote with care."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,62}", text) or text.startswith("pg_"):
        msg = "a schema has up to 63 of A-Z, a-z, 0-9, _ and -, begins with a letter, not with pg_"
        raise InvalidURL(msg)
    return text


def pool_size(text: str | int) -> int:
    """A number of connections, from 1 up."""
    if int(text) < 1:
        msg = f"a pool has at least one connection, not {text}"
        raise InvalidURL(msg)
    return int(text)


#: Ours; all others are libpq's.
PARAMETERS: dict[str, Callable[[Any], Any]] = {
    "schema": schema,
    "timeout": seconds,
    "durability": check_durability,
    "readonly": flag,
    "create": flag,
    "pool": pool_size,
    "prepare": flag,
    "wakeups": flag,
}


def parted(url: str) -> tuple[str, str]:
    """What is before the ``?`` of *url*, and behind it; one in a password is libpq's, and none."""
    credentials = re.match(r"[^/]*//[^@/]*@", url)
    start = credentials.end() if credentials else 0
    place, _, query = url[start:].partition("?")
    return url[:start] + place, query


def own_parameters(url: str) -> tuple[str, dict[str, Any]]:
    """Split *url* into one for libpq and our own parameters."""
    from urllib.parse import unquote  # noqa: PLC0415 - slow to import

    place, query = parted(url)
    own: dict[str, Any] = {}
    theirs: list[str] = []
    for part in query.split("&"):
        name, _, text = part.partition("=")
        if name not in PARAMETERS:
            theirs.append(part)
            continue
        value = unquote(text)
        try:
            own[name] = PARAMETERS[name](value)
        except ValueError as error:
            msg = f"{safe_url(url)}: {name} cannot be {value!r} ({error})."
            raise InvalidURL(msg) from error
    return "?".join(filter(None, [place, "&".join(theirs)])), own


def connect_parameters(url: str, timeout: float, *, session: bool) -> dict[str, Any]:
    """What to connect with, from a URL for libpq: what it says goes before what we think best.

    Without *session* nothing is set that a pooler in front of the server would not pass on.
    """
    try:
        given: dict[str, Any] = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise InvalidURL(_malformed(url, str(error))) from None  # it may quote the password
    if re.search(r"(^|,)[^,/@][^,]*@", given.get("host") or ""):
        raise InvalidURL(_malformed(url, ""))  # what is before it is the end of a password
    patience = max(timeout, LEAST)
    best = {
        "fallback_application_name": "limpet",
        "client_encoding": "utf8",
        "connect_timeout": max(2, round(patience / 2)),
        # A peer that is gone without a word is found out by the kernel, also while we wait.
        "tcp_user_timeout": round(patience * 500),
        "keepalives_idle": max(1, round(patience / 2)),
        "keepalives_interval": max(1, round(patience / 6)),
        "keepalives_count": 3,
    }
    if session:
        # So that the server gives up as well, and holds no locks for a client that is gone.
        limits = {
            "statement_timeout": patience,
            "idle_in_transaction_session_timeout": patience,
            "lock_timeout": min(patience, LOCKED),
        }
        settings = " ".join(f"-c {name}={limit * 1000:.0f}" for name, limit in limits.items())
        more = given.get("options") or os.environ.get("PGOPTIONS", "")
        given["options"] = f"{settings} {more}".strip()
    return best | given


def _malformed(url: str, text: str) -> str:
    unknown = re.search(r'invalid URI query parameter: "(\w*)"', text)
    if unknown:
        return (
            f"{safe_url(url)} has a parameter {unknown[1]!r}, which neither Limpet "
            f"({', '.join(PARAMETERS)}) nor PostgreSQL's libpq knows."
        )
    return (
        "This is not a URL that PostgreSQL's libpq can read. It looks like "
        "postgresql://user:password@host:5432/database; in user name and password, write other "
        "characters than letters and digits as %40 and the like."
    )


# -- a connection ------------------------------------------------------------------------------


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """One that waits for the server no longer than `patience` seconds, each time it is silent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.patience = float("inf")
        #: Its process on the server, and the server's clock when it was new. None if unknown.
        self.session: tuple[int, int] | None = None
        #: What its commits wait for (``synchronous_commit``). None if unknown.
        self.commits: str | None = None
        self._cursors: dict[str, tuple[psycopg.Cursor[tuple[Any, ...]], bytes]] = {}

    def __del__(self, *_: object) -> None:
        """A store that is left open is no fault, and a forked child's copy is its parent's."""

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """As psycopg's, with an end, and an interrupt that is never lost."""
        try:
            return super().wait(_impatient(gen, self.patience), *args, **kwargs)
        except psycopg.Error as error:
            # If the statement fails that was interrupted, its error takes the interrupt's place.
            if isinstance(error.__context__, (KeyboardInterrupt, SystemExit)):
                raise error.__context__ from error
            raise

    def raw(self) -> psycopg.RawCursor[tuple[Any, ...]]:
        """A cursor for statements of ours, with $1 in them, whatever is set on the connection."""
        cursor = psycopg.RawCursor(self, row_factory=tuple_row)
        # One type whatever the size: a statement is prepared for types.
        cursor.adapters.register_dumper(int, Int8BinaryDumper)
        return cursor

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement; the rows that it returns."""
        return self.raw().execute(sql.encode(), values, binary=True).fetchall()

    def again(self, sql: str, values: Sequence[Any]) -> tuple[Any, ...] | None:
        """The same for a statement that is run often and returns a row or none: a little quicker.

        Keeps hold of the row until the next time.
        """
        if sql not in self._cursors:
            self._cursors[sql] = self.raw(), sql.encode()
        cursor, text = self._cursors[sql]
        return cursor.execute(text, values, binary=True).fetchone()

    def run(self, sql: str, values: Sequence[Any] | None = None) -> None:
        """Run a statement that returns nothing; or several, if there are no values."""
        self.raw().execute(sql.encode(), values)

    @property
    def usable(self) -> bool:
        """Whether the next caller can have it."""
        return self.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE

    def close(self) -> None:
        """Say goodbye."""
        self._cursors.clear()
        super().close()

    def abandon(self) -> None:
        """Let go of the socket and say nothing: after a fork it is the parent's."""
        if not self.closed:
            os.close(self.pgconn.socket)


def _impatient(gen: Generator[Any, Any, Any], patience: float) -> Generator[Any, Any, Any]:
    """*gen*, which psycopg resumes when there is news, and at times when there is none."""
    heard = time.monotonic()
    ready: Any = None
    try:
        while True:
            ready = yield gen.send(ready)
            if ready:
                heard = time.monotonic()
            elif time.monotonic() - heard > patience:
                raise Late(f"{patience:.1f} s")
    except StopIteration as end:
        return end.value


# -- the pool ----------------------------------------------------------------------------------


class Slot:
    """Room for one connection, which may not be there yet."""

    __slots__ = ("__weakref__", "connection")

    def __init__(self) -> None:
        self.connection: Connection | None = None


class _Waiter:
    """A thread that waits for a slot."""

    def __init__(self) -> None:
        self.slot: Slot | None = None
        self.woken = threading.Lock()
        self.woken.acquire()


class Pool:
    """Up to *size* connections, opened as they are needed; the one used last is used next.

    Not psycopg's own pool: that one starts threads. A slot is given back straight to whoever has
    waited longest. A slot that an interrupt has lost is forgotten with its last reference.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.closed = False
        self.begin()

    def begin(self) -> None:
        """Start with no connections, also in a forked child."""
        self._lock = threading.Lock()
        self._slots: weakref.WeakSet[Slot] = weakref.WeakSet()
        self._idle: list[Slot] = []
        self._waiting: deque[_Waiter] = deque()

    def take(self, deadline: float) -> Slot:
        """A slot for the caller alone; `StoreBusy` if there is none by *deadline*."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if len(self._slots) < self.size:
                return self._new_slot()
            waiter = _Waiter()
            self._waiting.append(waiter)
        try:
            waiter.woken.acquire(timeout=max(0, deadline - time.monotonic()))
        except BaseException:
            if self._served(waiter):
                self.give(cast("Slot", waiter.slot))
            raise
        if not self._served(waiter):
            msg = (
                f"All {self.size} connections of this store were in use for longer than the "
                "timeout. Open it with a larger pool=, or use it from fewer threads."
            )
            raise StoreBusy(msg)
        return cast("Slot", waiter.slot)

    def _served(self, waiter: _Waiter) -> bool:
        """Whether *waiter* was given a slot; it will not be given one from now on."""
        with self._lock:
            if waiter.slot is None:
                self._waiting.remove(waiter)
            return waiter.slot is not None

    def _new_slot(self) -> Slot:
        slot = Slot()
        self._slots.add(slot)
        return slot

    def give(self, slot: Slot) -> None:
        """Give *slot* back. Its connection is closed if it is not fit for another call."""
        connection = slot.connection
        with self._lock:
            if connection is not None and (self.closed or not connection.usable):
                slot.connection = None
            else:
                connection = None
            if self._waiting:
                waiter = self._waiting.popleft()
                waiter.slot = slot
                waiter.woken.release()
            elif slot.connection is not None:
                self._idle.append(slot)
            else:
                self._slots.discard(slot)
        if connection is not None:
            connection.close()

    def forget(self) -> None:
        """Close what is idle: one connection was lost, and the others probably are."""
        with self._lock:
            idle, self._idle = self._idle, []
            for slot in idle:
                self._slots.discard(slot)
        for slot in idle:
            if slot.connection is not None:
                slot.connection.close()

    def close(self, patience: float) -> None:
        """Close all connections, those in use when they are given back."""
        self.closed = True
        self.forget()
        deadline = time.monotonic() + patience
        while len(self._slots) and time.monotonic() < deadline:
            time.sleep(0.005)

    def abandon(self) -> None:
        """Begin anew in a forked child: what is open is its parent's."""
        for slot in list(self._slots):
            if slot.connection is not None:
                slot.connection.abandon()
        self.begin()
