"""How a store reaches its server: what its URL says, connections, a pool of them, calls."""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections import deque
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8, Int8BinaryDumper

from limpet.backends.postgresql.errors import (
    READ_ONLY,
    NotConnected,
    OpeningErrors,
    PostgresErrors,
    ServerSilent,
    is_lost,
)
from limpet.backends.retry import repeat
from limpet.backends.url import check_durability, flag, safe_url, seconds
from limpet.errors import InvalidURL, StoreBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

__all__ = [
    "OPTIONS",
    "Connection",
    "Connections",
    "LostSessions",
    "Pool",
    "Slot",
    "int8s",
    "split_url",
]

T = TypeVar("T")
C = TypeVar("C", bound="Connection")

#: The least that a call is given, whatever its timeout: the time for one try.
LEAST = 1.0

#: Seconds after which a statement that waits for a lock is tried again: those who append together
#: do not wait for one of them for longer.
LOCKED = 1.0

#: Cursors that a connection keeps for its next appends; none that holds a body over so many bytes.
MOST_CURSORS = 64
LARGE = 65_536

#: Seconds for which closing waits for calls that are under way.
CLOSING = 60.0


# -- the URL -------------------------------------------------------------------------------------


def _schema(text: str) -> str:
    """A name for a schema that nobody has to quote with care."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,62}", text) or text.startswith("pg_"):
        msg = "a schema has up to 63 of A-Z, a-z, 0-9, _ and -, begins with a letter, not with pg_"
        raise InvalidURL(msg)
    return text


def _pool_size(text: str | int) -> int:
    if int(text) < 1:
        msg = f"a pool has at least one connection, not {text}"
        raise InvalidURL(msg)
    return int(text)


#: The parameters of a URL that are ours, and how each is checked; all others are libpq's.
OPTIONS: dict[str, Callable[[Any], Any]] = {
    "schema": _schema,
    "timeout": seconds,
    "durability": check_durability,
    "readonly": flag,
    "create": flag,
    "pool": _pool_size,
    "prepare": flag,
    "wakeups": flag,
}


def split_url(url: str) -> tuple[str, dict[str, Any]]:
    """*url* as libpq takes it, without what is ours, and our own options."""
    from urllib.parse import unquote  # noqa: PLC0415 - slow to import

    place, query = _split_query(url)
    options: dict[str, Any] = {}
    rest: list[str] = []
    for part in query.split("&"):
        name, _, text = part.partition("=")
        if name not in OPTIONS:
            rest.append(part)
            continue
        value = unquote(text)
        try:
            options[name] = OPTIONS[name](value)
        except ValueError as error:
            msg = f"{safe_url(url)}: {name} cannot be {value!r} ({error})."
            raise InvalidURL(msg) from error
    return "?".join(filter(None, [place, "&".join(rest)])), options


def _split_query(url: str) -> tuple[str, str]:
    """What is before the ``?`` of *url*, and behind it; one in a password does not count."""
    credentials = re.match(r"[^/]*//[^@/]*@", url)
    start = credentials.end() if credentials else 0
    place, _, query = url[start:].partition("?")
    return url[:start] + place, query


def _connect_parameters(url: str, timeout: float, *, session: bool) -> dict[str, Any]:
    """What to connect with, from a URL for libpq: what it says goes before what we think best.

    Without *session* nothing is set that a pooler in front of the server would not pass on.
    """
    try:
        given: dict[str, Any] = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise InvalidURL(_malformed(url, str(error))) from None  # it may quote the password
    if re.search(r"(^|,)[^,/@][^,]*@", given.get("host") or ""):
        raise InvalidURL(_malformed(url, ""))  # what is before it is the end of a password
    best = {
        "fallback_application_name": "limpet",
        "client_encoding": "utf8",
        "connect_timeout": max(2, round(timeout / 2)),
        # A peer that is gone without a word is found out by the kernel, also while we wait.
        "tcp_user_timeout": round(timeout * 500),
        "keepalives_idle": max(1, round(timeout / 2)),
        "keepalives_interval": max(1, round(timeout / 6)),
        "keepalives_count": 3,
    }
    if session:
        # So that the server gives up as well, and holds no locks for a client that is gone.
        limits = {
            "statement_timeout": timeout,
            "idle_in_transaction_session_timeout": timeout,
            "lock_timeout": min(timeout, LOCKED),
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
            f"({', '.join(OPTIONS)}) nor PostgreSQL's libpq knows."
        )
    return (
        "This is not a URL that PostgreSQL's libpq can read. It looks like "
        "postgresql://user:password@host:5432/database; in user name and password, write other "
        "characters than letters and digits as %40 and the like."
    )


@lru_cache(1000)
def _encoded(sql: str) -> bytes:
    """Once: psycopg looks up each statement, and of the same object it knows the hash."""
    return sql.encode()


def int8s(values: Iterable[int]) -> list[Int8]:
    """*values* as a list for a statement: psycopg takes the first list's size for all of them."""
    return [Int8(value) for value in values]


# -- a connection --------------------------------------------------------------------------------


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """One that waits for the server no longer than `max_silence` seconds at a time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_silence = float("inf")
        #: The server's process, and when it began, by the server's clock. None if unknown.
        self.session: tuple[int, int] | None = None
        #: What its commits wait for (``synchronous_commit``). None if unknown.
        self.commits: str | None = None
        self._cursors: list[psycopg.Cursor[tuple[Any, ...]]] = []

    def __del__(self, *_: object) -> None:
        """A store that is left open is no fault, and a forked child's copy is its parent's."""

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """As psycopg's, with an end, and an interrupt that is never lost."""
        try:
            return super().wait(_not_for_ever(gen, self.max_silence), *args, **kwargs)
        except psycopg.Error as error:
            # If the statement fails that was interrupted, its error takes the interrupt's place.
            if isinstance(error.__context__, (KeyboardInterrupt, SystemExit)):
                raise error.__context__ from error
            raise

    def run(self, sql: str, **values: Any) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run a statement of ours, whatever is set on the connection; or several without values."""
        cursor = self._new_cursor()
        return cursor.execute(_encoded(sql), values or None, binary=bool(values) or None)

    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """The rows that a statement returns."""
        return self.run(sql, **values).fetchall()

    def row(self, sql: str, **values: Any) -> tuple[Any, ...] | None:
        """The row that a statement returns, if it returns one."""
        return self.run(sql, **values).fetchone()

    def run_many(self, sql: str, all_values: list[dict[str, Any]]) -> list[tuple[Any, ...] | None]:
        """Run an append once with each of *all_values*; the row that each returns, if any.

        In one transaction and one round trip.
        """
        text, count = _encoded(sql), len(all_values)
        # Cursors are kept, because each has learnt how to send its types; not those that hold much.
        kept, self._cursors = self._cursors, []
        cursors = kept[:count] + [self._new_cursor() for _ in range(count - len(kept))]
        # Not psycopg's `executemany`: to return rows, it goes to the server twice.
        with self.pipeline() if count > 1 else nullcontext():
            for cursor, values in zip(cursors, all_values, strict=True):
                cursor.execute(text, values, binary=True)
        rows = [cursor.fetchone() for cursor in cursors]
        small = [
            cursor
            for cursor, values in zip(cursors, all_values, strict=True)
            if len(values["body"]) < LARGE
        ]
        self._cursors = (small + kept[count:])[:MOST_CURSORS]
        return rows

    def _new_cursor(self) -> psycopg.Cursor[tuple[Any, ...]]:
        cursor = psycopg.Cursor(self, row_factory=tuple_row)
        # One type whatever the size: a statement is prepared for types.
        cursor.adapters.register_dumper(int, Int8BinaryDumper)
        return cursor

    @property
    def is_usable(self) -> bool:
        """Whether the next caller can have it."""
        return self.pgconn.transaction_status == TransactionStatus.IDLE

    def hand_over(self, kind: type[C], *, prepares: bool) -> C:
        """A new object over the same session, without anything that was set on this one.

        This one is not to be used any more. *prepares*: statements may stay prepared in it.
        """
        new = kind(self.pgconn)
        new.set_autocommit(True)
        new.max_silence, new.session, new.commits = self.max_silence, self.session, self.commits
        if not prepares:
            new.prepare_threshold = None
        return new

    def finish(self) -> None:
        """Close it, also where its user may not."""
        psycopg.Connection.close(self)

    def abandon(self) -> None:
        """Let go of the socket and say nothing: after a fork it is the parent's."""
        if not self.closed:
            # Something in its place: libpq says goodbye there, when this object goes.
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, self.pgconn.socket)
            os.close(nowhere)


def _not_for_ever(gen: Generator[Any, Any, Any], limit: float) -> Generator[Any, Any, Any]:
    """*gen*, which psycopg resumes when there is news, and at times when there is none."""
    heard = time.monotonic()
    ready: Any = None
    try:
        while True:
            ready = yield gen.send(ready)
            if ready:
                heard = time.monotonic()
            elif time.monotonic() - heard > limit:
                raise ServerSilent(f"{limit:.1f} s")
    except StopIteration as end:
        return end.value


# -- a pool --------------------------------------------------------------------------------------


class Slot:
    """Room for one connection, which may not be there yet."""

    __slots__ = ("__weakref__", "connection")

    def __init__(self) -> None:
        self.connection: Connection | None = None

    @property
    def connected(self) -> Connection:
        """The connection, which is there in a slot that `Connections.taken` gives."""
        assert self.connection is not None  # noqa: S101 - as it says
        return self.connection


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
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._slots: weakref.WeakSet[Slot] = weakref.WeakSet()
        self._idle: list[Slot] = []
        self._waiting: deque[_Waiter] = deque()

    @property
    def in_use(self) -> int:
        """How many connections are."""
        return len(self._slots) - len(self._idle)

    def take(self, deadline: float) -> Slot:
        """A slot for the caller alone; `StoreBusy` if there is none by *deadline*."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if len(self._slots) < self.size:
                slot = Slot()
                self._slots.add(slot)
                return slot
            waiter = _Waiter()
            self._waiting.append(waiter)
        try:
            waiter.woken.acquire(timeout=max(0, deadline - time.monotonic()))
        except BaseException:
            if self._was_served(waiter):
                self.give(cast("Slot", waiter.slot))
            raise
        if not self._was_served(waiter):
            msg = (
                f"All {self.size} connections of this store were in use for longer than the "
                "timeout. Open it with a larger pool=, or use it from fewer threads."
            )
            raise StoreBusy(msg)
        return cast("Slot", waiter.slot)

    def _was_served(self, waiter: _Waiter) -> bool:
        """Whether *waiter* was given a slot; it will not be given one from now on."""
        with self._lock:
            if waiter.slot is None:
                self._waiting.remove(waiter)
            return waiter.slot is not None

    def give(self, slot: Slot) -> None:
        """Give *slot* back. Its connection is closed if it is not fit for another call."""
        connection = slot.connection
        with self._lock:
            if connection is not None and (self.closed or not connection.is_usable):
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
            connection.finish()

    def close_idle(self) -> None:
        """Close what is idle: one connection was lost, and the others probably are."""
        with self._lock:
            idle, self._idle = self._idle, []
            for slot in idle:
                self._slots.discard(slot)
        for slot in idle:
            if slot.connection is not None:
                slot.connection.finish()

    def close(self) -> None:
        """Close all connections, those in use when they are given back."""
        self.closed = True
        self.close_idle()
        deadline = time.monotonic() + CLOSING
        while len(self._slots) and time.monotonic() < deadline:
            time.sleep(0.005)

    def abandon(self) -> None:
        """Begin anew in a forked child: what is open is its parent's."""
        for slot in list(self._slots):
            if slot.connection is not None:
                slot.connection.abandon()
        self._reset()


class LostSessions:
    """Sessions whose connection was lost, perhaps in the middle of a request.

    The server may not know yet: it may still hold locks, or receive the request when the network
    has healed, and do what was meanwhile done by a second try. So before anything is tried again,
    such a session is ended, and its end awaited.
    """

    def __init__(self, queries: Mapping[str, str]) -> None:
        self._queries = queries
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
            lost = set(self._sessions)
            if not lost:
                return
            # All at once: on a bad network, a request for each may never get to the last of them.
            pids, ats = zip(*lost, strict=True)
            which = {"pids": int8s(pids), "ats": int8s(ats)}
            deadline = time.monotonic() + connection.max_silence
            # Not every engine has such a thing.
            with suppress(psycopg.errors.ProgrammingError, psycopg.errors.NotSupportedError):
                connection.run(self._queries["end_sessions"], **which)
                while connection.row(self._queries["find_sessions"], **which) is not None:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.005)
            self._sessions -= lost


# -- calls ---------------------------------------------------------------------------------------


class Connections:
    """The connections of one store, and calls that are made on them.

    All that is to be run may be run twice. With *prepare* off there is a pooler in between, and
    nothing is asked of a session. *for_callers*: others use the sessions, so that no statement of
    ours may stay prepared in one.
    """

    def __init__(
        self,
        url: str,
        queries: Mapping[str, str],
        *,
        timeout: float,
        durability: str | None,
        pool: int,
        prepare: bool,
        check_open: Callable[[], None],
        for_callers: bool = False,
    ) -> None:
        self.errors = PostgresErrors(safe_url(_split_query(url)[0]))
        self.place = self.errors.place
        self.timeout = max(timeout, LEAST)  # there is always time for one try
        self.pool = Pool(pool)
        self._queries = queries
        self._opening = timeout
        self._durability = durability
        self._prepare = prepare
        self._threshold = 1 if prepare and not for_callers else None
        self._check_open = check_open
        self._parameters = _connect_parameters(url, self.timeout, session=prepare)
        self._lost = LostSessions(queries)

    def open(self, check: Callable[[Connection], None]) -> None:
        """Connect for the first time and *check* what is there.

        A server that is starting is waited for; one that is not there is reported at once.
        """

        def attempt() -> None:
            with self.taken(self.deadline()) as slot:
                check(slot.connected)

        try:
            repeat(attempt, OpeningErrors(self.place), timeout=self._opening)
        except BaseException:
            self.pool.close_idle()
            raise

    def deadline(self) -> float:
        """When a call that begins now must have ended."""
        return time.monotonic() + self.timeout

    def rows(self, sql: str, *, writes: bool = False, **values: Any) -> list[Any]:
        """The rows that a statement returns."""
        return self.run(lambda connection: connection.rows(sql, **values), writes=writes)

    def run(
        self,
        work: Callable[[Connection], T],
        deadline: float | None = None,
        *,
        writes: bool = False,
        unanswered: bool = False,
    ) -> T:
        """Do *work*, again and again until *deadline* if connections go away. See `repeat`."""
        last = deadline or self.deadline()

        def attempt() -> T:
            with self.taken(last) as slot:
                return work(slot.connected)

        left = last - time.monotonic()
        return repeat(attempt, self.errors, timeout=left, writes=writes, unanswered=unanswered)

    @contextmanager
    def taken(self, deadline: float) -> Iterator[Slot]:
        """A connection that is the caller's until the end of the block. Errors are psycopg's."""
        self._check_open()
        slot = self.pool.take(deadline)
        try:
            left = max(deadline - time.monotonic(), LEAST)
            if slot.connection is None:
                self._check_open()
                slot.connection = self._connect(left)
            else:
                # It may be dead without knowing: leave time for another try, with a new one.
                slot.connection.max_silence = max(left / 2, LEAST)
            try:
                self._lost.end(slot.connection)
            except psycopg.OperationalError as error:
                raise NotConnected(error) from error  # the caller has sent nothing yet
            yield slot
        except psycopg.Error as error:
            if is_lost(error):
                self.lose(slot, sent=not isinstance(error, NotConnected))
            elif error.sqlstate == READ_ONLY and slot.connection is not None:
                # Another server may have taken its place: the next caller looks again for one.
                slot.connection.finish()
                self.pool.close_idle()
            raise
        finally:
            self.pool.give(slot)

    @property
    def ends_sessions(self) -> bool:
        """Whether a session whose connection was lost is known to have ended, when that matters."""
        return self._prepare

    def lose(self, slot: Slot, *, sent: bool = True) -> None:
        """The connection in *slot* went away, and others probably with it.

        *sent*: its user may have sent something, which the server must not do any more.
        """
        if slot.connection is not None:
            if sent:
                self._lost.add(slot.connection.session)
            slot.connection.finish()
        self.pool.close_idle()

    def _connect(self, max_silence: float) -> Connection:
        try:
            connection = Connection.connect(
                autocommit=True, prepare_threshold=self._threshold, **self._parameters
            )
            connection.max_silence = max_silence
            # An append relies on it in a transaction, too, whatever the server's default.
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            try:
                if self._prepare:
                    self._set_up(connection)
            except BaseException:
                connection.close()
                raise
        except psycopg.OperationalError as error:
            raise NotConnected(error) from error
        return connection

    def _set_up(self, connection: Connection) -> None:
        """Have every commit wait for the disk, whatever the server's default; or not, if asked."""
        at, commits, *_ = connection.rows(self._queries["settings"])[0]
        connection.session = connection.info.backend_pid, at
        wanted = "on" if commits == "off" else commits
        if self._durability == "normal":
            wanted = "off"
        if wanted != commits:
            connection.run(f"SET synchronous_commit = {wanted}")
        connection.commits = wanted

    def listener(self) -> Connection:
        """A connection that is not of the pool, and waits for ever."""
        connection = self._connect(self.timeout)
        connection.max_silence = float("inf")
        return connection

    def close(self) -> None:
        """Close all connections, when they are no longer in use."""
        self.pool.close()

    def abandon(self) -> None:
        """Begin anew in a forked child."""
        self._lost = LostSessions(self._queries)
        self.pool.abandon()
