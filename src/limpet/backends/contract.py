"""The contract of a backend: all that a store asks of the place where it keeps its journals.

A backend stores **records** in **journals** and knows nothing of what they mean.

*Journal.* An append-only run of entries under a `Key`. Entries are numbered 1, 2, 3 …; one call of
`append` adds one record of one or more entries, all or none. Bodies are opaque bytes. A journal
is there from its first record until it is deleted or expires.

*Durable.* When `append` returns, the record survives power loss, as far as the place allows; a
backend that can promise less says so in `facts`.

*Order.* All appends to one journal have one order, the same for every reader. Whoever has been
told of an append sees it in every later read, from any process.

*Time* is the backend's own clock: the server's where there is one. Two clients' clocks are never
compared. Times are whole microseconds since 1970 (UTC).

*Expiry.* A journal with a ``ttl`` expires that many seconds after its last append, but not while a
lease on it is valid. From that moment it is not there: reads are empty, an append starts a new
journal at 1. `sweep` frees the room.

*Leases.* At most one lease per journal is valid. Its epoch is a number that only grows, even over
`delete` and re-creation, so a late holder can never pass for a new one. Writes that name an epoch
are refused with `Fenced` unless it is the newest; writes that name none are not bound by leases.

*Copies.* An append with an `Origin` is a copy of what another store has. Its record keeps the time
``origin.at`` (or that of the record before it, if that is later), expiry counts from that time, and
a journal that it begins takes over ``created`` and ``floor``: its first number is ``floor`` + 1.

*Transactions.* Some places commit more than one journal at once, and may also hold tables of the
callers' own. Where that is so (``transactional``), `append_all` commits several appends together,
and `transaction` one append and rows of theirs.

*Errors* are those of `limpet.errors`, with the driver's error as cause. A call that raises has
changed nothing, except for `StoreUnavailable`, after which an append may or may not be there:
repeat it with the same id, and it is there once. A backend over a network does that by itself, for
as long as its ``timeout``; it gives every append without an id one of its own (`own_id`).

A backend is written blocking and must be safe to call from many threads. Async callers reach it
through one thread hop a call (`hop`); a backend that can do better for appends overrides
`append_async`. The suite in `limpet.testing` holds every backend to this page.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
)

from msgspec import UNSET, Struct, UnsetType

from limpet.backends.url import safe_url
from limpet.errors import Conflict, Fenced, LeaseHeld, NotTransactional, StoreClosed, StoreError

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import ThreadPoolExecutor
    from contextlib import AbstractContextManager

__all__ = [
    "UNSET",
    "Append",
    "Appended",
    "Backend",
    "Fact",
    "Head",
    "Key",
    "Lease",
    "Origin",
    "Page",
    "Record",
    "Transaction",
    "UnsetType",
    "conflict",
    "fenced",
    "for_people",
    "from_micros",
    "given_id",
    "held",
    "micros",
    "next_epoch",
    "own_id",
    "settle",
    "shown_size",
    "to_micros",
]

P = ParamSpec("P")
R = TypeVar("R")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def from_micros(at: int) -> datetime:
    """*at* as an aware datetime, exactly (a float would round)."""
    seconds, rest = divmod(at, 1_000_000)  # by parts: a timedelta is slow with large numbers
    return _EPOCH + timedelta(0, seconds, rest)


def to_micros(at: datetime) -> int:
    """*at* as whole microseconds since 1970, as exactly."""
    return (at - _EPOCH) // _MICROSECOND


class Key(NamedTuple):
    """A journal's name. The parts are valid ids: the core has checked them."""

    tenant: str
    kind: str
    id: str


class Record(Struct, frozen=True, gc=False):
    """What one append stored: *count* entries, the last of which has number *seq*."""

    seq: int
    count: int
    at: int
    body: bytes
    id: str | None = None  # the append's, where its caller gave one


class Lease(Struct, frozen=True, gc=False):
    """The right to write one journal until *until*, by the backend's clock."""

    holder: str
    epoch: int
    until: int


class Head(Struct, frozen=True):
    """A journal's present, without its records."""

    key: Key
    seq: int  # number of the newest entry
    floor: int  # entries up to this number were compacted away
    size: int  # stored bytes of the records that are there
    created: int
    updated: int
    ttl: int | None  # microseconds after the last append
    expires: int | None
    status: str | None
    labels: dict[str, str]
    lease: Lease | None  # the newest one while it is valid

    @property
    def expires_at(self) -> datetime | None:
        """When it expires, as people have it."""
        return None if self.expires is None else from_micros(self.expires)


class Origin(Struct, frozen=True, gc=False):
    """What another store gave to a record that is copied from it, and to that record's journal."""

    at: int
    created: int
    floor: int


class Append(Struct, frozen=True, kw_only=True):
    """One write: a record to add, conditions, and what else changes with it.

    With ``count=0`` and no body it adds no record and only changes status, labels and ttl. Where
    there is neither a journal nor a lease it then does nothing; where there is only a lease, the
    journal has that status and those labels when it begins. Either way it reports number 0.
    """

    key: Key
    body: bytes = b""
    count: int = 0
    id: str | None = None  # unique in the journal; a second append under it adds nothing
    expect: int | None = None  # the head's number, or Conflict
    epoch: int | None = None  # the newest lease's epoch, or Fenced
    status: str | UnsetType | None = UNSET
    labels: Mapping[str, str | None] | UnsetType = UNSET  # merged; None removes
    ttl: float | UnsetType | None = UNSET  # None: never expires
    default_ttl: float | None = None  # of a journal that this append begins, if it sets no ttl
    origin: Origin | None = None  # for a copy: its times are kept, not the clock's (see `Backend`)


class Appended(Struct, frozen=True, gc=False):
    """What an append did. *repeated*: its id was known, and *seq* is what it was given then."""

    seq: int
    at: int
    repeated: bool = False


class Page(Struct, frozen=True):
    """Heads in the order of their ids; *cursor* continues after the last, None at the end."""

    heads: list[Head]
    cursor: str | None


class Fact(Struct, frozen=True):
    """One line of `limpet doctor`: what is so, whether that is well, and if not, what to do."""

    name: str
    value: str
    ok: bool = True
    advice: str = ""

    @classmethod
    def of_kind(cls, kind: str, journals: int, entries: int | None = None, size: int = 0) -> Fact:
        """How much there is of one *kind* of journal."""
        name = f"{kind.removesuffix('y')}ies" if kind.endswith("y") else f"{kind}s"
        if entries is None:
            return cls(name, f"{journals:,}")
        word = "entry" if entries == 1 else "entries"
        return cls(name, f"{journals:,} with {entries:,} {word}, {shown_size(size)}")


class Transaction(Protocol):
    """A transaction that is open, for statements of the caller's own and one append."""

    @property
    def connection(self) -> Any:
        """The driver's (apsw's, psycopg's), within the transaction, and of no use after it."""

    def append(self, request: Append) -> Appended:
        """`Backend.append` as a part of it: once, and with a record."""


class _Living(ABCMeta):
    """Knows the backends that there are, once they are made: one that could not be is none."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        _live.add(made)
        return made


class Backend(ABC, metaclass=_Living):
    """One place where journals live."""

    #: False where calls return at once (memory): async callers then need no thread.
    blocks: ClassVar[bool] = True

    #: How many async calls may be waiting on this backend at the same time.
    hops: int = 8

    #: True where people read what is stored: the store then compresses no bodies.
    readable: ClassVar[bool] = False

    #: True where `wait` is woken by whoever appends, and does not look again and again.
    wakes: bool = False

    #: True where callers may have tables of their own, and `transaction` and `append_all` work.
    transactional: ClassVar[bool] = False

    def __init__(self, url: str) -> None:
        self.url = safe_url(url)
        self._closed = False
        self._pool: ThreadPoolExecutor | None = None
        self._pool_lock = threading.Lock()

    @classmethod
    @abstractmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Open what *url* names; *options* go before its parameters (see `backends.options`).

        Two options are the same everywhere: with ``create=False`` nothing comes to be by opening
        (`StoreNotFound` if there is no store), with ``readonly=True`` nothing is written.
        """

    # -- records ---------------------------------------------------------------------------

    @abstractmethod
    def append(self, request: Append) -> Appended:
        """Add one record, all of it or nothing; durable on return.

        In this order: a known id → the first outcome, ``repeated``; a stale epoch → `Fenced`;
        a head other than ``expect`` → `Conflict`. A journal that is not there has head 0.
        """

    @abstractmethod
    def read(
        self,
        key: Key,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
    ) -> list[Record]:
        """The records that hold entries numbered over *after*, up to and with *upto*.

        At most *limit* records, oldest first, or newest first with *reverse*. A record that lies
        across an edge comes whole.
        """

    def bodies(self, key: Key, *, after: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]:
        """Number and body of each record, as `read` gives them: for reading much, at less cost."""
        return [(r.seq, r.body) for r in self.read(key, after=after, limit=limit)]

    @abstractmethod
    def head(self, key: Key) -> Head | None:
        """The journal's head, or None where no record was ever added."""

    def wait(self, key: Key, *, after: int = 0, timeout: float) -> bool:
        """Wait until there are entries numbered over *after*; False if *timeout* seconds pass.

        Here by looking again, ever less often; a backend that can be woken overrides it.
        """
        deadline, pause = time.monotonic() + timeout, 0.01
        while True:
            head = self.head(key)
            if head is not None and head.seq > after:
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, 0.5)

    @abstractmethod
    def scan(
        self,
        tenant: str,
        kind: str,
        *,
        prefix: str = "",
        status: str | None = None,
        labels: Mapping[str, str] | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Journals of one tenant and kind, ordered by id as UTF-8 bytes order it.

        All filters must hold. A journal that is there all through a run of pages appears in it
        exactly once; one that comes or goes meanwhile, at most once.
        """

    def heads(self, tenant: str, kind: str, **filters: Any) -> Iterator[Head]:
        """All that `scan` finds, whatever the number of its pages."""
        cursor: str | None = None
        while True:
            page = self.scan(tenant, kind, cursor=cursor, **filters)
            yield from page.heads
            cursor = page.cursor
            if cursor is None:
                return

    @abstractmethod
    def kinds(self) -> list[tuple[str, str]]:
        """The (tenant, kind) pairs under which there are journals, in order: what to scan."""

    @abstractmethod
    def delete(self, key: Key) -> bool:
        """Remove the journal, its records, labels and lease. False if it was not there."""

    @abstractmethod
    def compact(self, key: Key, before: int) -> int:
        """Drop the records all of whose entries are numbered under *before*; how many entries.

        Numbers are never given out again. Ids of dropped records are forgotten.
        """

    def scrub(self) -> bool:
        """Leave nothing of what was deleted in the files, as far as that can be; whether it is so.

        Here that is not known: a server keeps logs and old versions of its own.
        """
        return False

    @abstractmethod
    def sweep(self, limit: int = 1000) -> int:
        """Free the room of up to *limit* expired journals; how many. Call again until 0."""

    # -- leases ----------------------------------------------------------------------------

    @abstractmethod
    def acquire(self, key: Key, holder: str, ttl: float, *, over: int | None = None) -> Lease:
        """Take the lease for *ttl* seconds, with a new epoch.

        While another is valid: `LeaseHeld`, unless its epoch is *over*, by which the caller says
        that it knows that holder to be dead.
        """

    @abstractmethod
    def renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        """The same lease, valid for *ttl* seconds from now; `Fenced` if it is not the newest."""

    @abstractmethod
    def release(self, key: Key, lease: Lease) -> None:
        """End the lease now. Does nothing if it is not the newest."""

    # -- together --------------------------------------------------------------------------

    def append_all(self, requests: Sequence[Append]) -> list[Appended]:  # noqa: ARG002 - for those that can
        """`append` each of *requests*, to one journal or several: all of them or none.

        In their order, each under its own conditions; if one is refused, so are all. One whose id
        is known is ``repeated`` and adds nothing, as ever, and the others are added.
        """
        msg = (
            f"{self.url} cannot append to several journals in one act: SQLite and PostgreSQL "
            "stores can. Append to one after the other, in an order that loses nothing."
        )
        raise NotTransactional(msg)

    def transaction(self) -> AbstractContextManager[Transaction]:
        """A transaction for statements of the caller's own and one append: all of it or nothing.

        Leaving the block commits, as durably as `append` does. An exception undoes all of it and
        goes on; that of a refused append, too. An append whose id is known is ``repeated``, and
        undoes the rest: the rows that belong to it are there from the first time.

        `TransactionUndone`: the database gave way to another transaction, or was lost before the
        commit. Whether to run the block again is the caller's to say: it may have done more than
        SQL. `StoreUnavailable`, after a lost answer to the commit: it may be there or not; run it
        again with the same id, and it is there once.

        Within the block this thread may read the store but not write to it; nor commit by itself,
        nor leave without an append: `TransactionMisused`. Keep it short: others wait for it.
        """
        msg = (
            f"{self.url} cannot commit your own rows together with a record: SQLite and PostgreSQL "
            "stores can. Use an ordinary step, and write the rows under its idempotency key."
        )
        raise NotTransactional(msg)

    def transact(
        self, work: Callable[[Any], R], request: Callable[[R], Append]
    ) -> tuple[R, Appended]:
        """`transaction` in one call: what *work* made with the connection, and what its append did.

        *work* gets the connection; *request* makes an append of what it returned.
        """
        with self.transaction() as opened:
            made = work(opened.connection)
            done = opened.append(request(made))
        return made, done

    async def transact_async(
        self, work: Callable[[Any], R], request: Callable[[R], Append]
    ) -> tuple[R, Appended]:
        """`transact` for async callers, on one thread from its beginning to its end.

        If the caller is cancelled, it is settled first.
        """
        return await self.hop(self.transact, work, request)

    # -- the place itself ------------------------------------------------------------------

    @abstractmethod
    def facts(self, *, deep: bool = False) -> list[Fact]:
        """What `limpet doctor` reports; *deep* also reads everything and checks it."""

    def repair(self) -> list[str]:
        """Set aside what is damaged and keep the rest, deleting nothing; what was done, in words.

        For ``limpet doctor --repair``, where damaged parts can be told from the others.
        """
        msg = (
            f"{self.url} cannot be repaired in place: only file: stores can. Restore a backup; "
            "`limpet doctor` says what is wrong."
        )
        raise StoreError(msg)

    def lost(self, key: Key) -> list[tuple[int, int]]:  # noqa: ARG002 - nothing, unless it repairs
        """The entries that repairs have taken out: the first and last of each run."""
        return []

    @abstractmethod
    def _close(self) -> None:
        """Let go of connections and files. Called once."""

    def close(self) -> None:
        """Finish what is under way and let go of everything. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown()
        self._close()

    def _check_open(self) -> None:
        if self._closed:
            msg = f"The store {self.url} is closed. Open it again, or close it later."
            raise StoreClosed(msg)

    # -- async callers ---------------------------------------------------------------------

    async def append_async(self, request: Append) -> Appended:
        """`append` for async callers. If the caller is cancelled, the write is settled first."""
        if not self.blocks:
            return self.append(request)
        return await settle(self._start(self.append, request))

    async def hop(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *call* on a thread of this backend, and settle it even if the caller is cancelled."""
        if not self.blocks:
            return call(*args, **kwargs)
        return await settle(self._start(lambda: call(*args, **kwargs)))

    def _start(self, call: Callable[..., R], *args: object) -> Future[R]:
        import asyncio  # noqa: PLC0415 - sync programs never pay for it

        return asyncio.get_running_loop().run_in_executor(self._threads(), call, *args)

    def _threads(self) -> ThreadPoolExecutor:
        self._check_open()
        with self._pool_lock:
            if self._pool is None:
                from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - as above

                self._pool = ThreadPoolExecutor(self.hops, thread_name_prefix="limpet")
            return self._pool

    # -- fork ------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        """Come to rest: hold what must not be forked in the middle of something."""

    def _after_fork_in_parent(self) -> None:
        """Go on."""

    def _after_fork_in_child(self) -> None:
        """The parent's threads are not there, and its connections are the parent's: start anew."""
        self._pool = None
        self._pool_lock = threading.Lock()


_live: weakref.WeakSet[Backend] = weakref.WeakSet()
_forking: list[Backend] = []

#: Held for the length of a fork: another thread's would undo what this one has prepared.
_fork = threading.Lock()


def _before_fork() -> None:
    _fork.acquire()
    _forking[:] = [backend for backend in _live if not backend._closed]  # noqa: SLF001 - its own
    for backend in _forking:
        backend._before_fork()  # noqa: SLF001


def _after_fork_in_parent() -> None:
    try:
        while _forking:
            _forking.pop()._after_fork_in_parent()  # noqa: SLF001
    finally:
        _fork.release()


def _after_fork_in_child() -> None:
    try:
        while _forking:
            _forking.pop()._after_fork_in_child()  # noqa: SLF001
    finally:
        _fork.release()  # it was this very thread that took it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


def own_id() -> str:
    """An id for an append whose caller gave none, which no caller's can be. See `given_id`."""
    return "\x1f" + os.urandom(12).hex()


def given_id(id_: str | None) -> str | None:
    """*id_* if a caller gave it, None if it is an `own_id`."""
    return None if id_ is None or id_[0] == "\x1f" else id_


def micros(seconds: float) -> int:
    """*seconds* as whole microseconds."""
    return round(seconds * 1e6)


def conflict(request: Append, actual: int) -> Conflict:
    """The error for a head that is not where the writer expected it."""
    expected = request.expect or 0
    return Conflict(
        f"{request.key.kind} {request.key.id!r} is at {actual}, not at {expected}: another writer "
        "got there first. Read what is new, decide again, and retry with the new position.",
        expected,
        actual,
    )


def fenced(key: Key) -> Fenced:
    """The error for a write under a lease that is not the newest."""
    return Fenced(
        f"The lease on {key.kind} {key.id!r} has been taken over, and nothing was written. "
        "Another worker goes on with it; stop this one."
    )


def held(key: Key, lease: Lease) -> LeaseHeld:
    """The error for a lease that somebody else has."""
    until = from_micros(lease.until)
    return LeaseHeld(
        f"{key.kind} {key.id!r} is held by {for_people(lease.holder)} until "
        f"{until:%Y-%m-%d %H:%M:%S} UTC. It can be taken over when that lease ends.",
        lease.holder,
        until,
        lease.epoch,
    )


def for_people(holder: str) -> str:
    """A holder's name without the mark in brackets that only programs can read."""
    return holder.partition(" [")[0]


def shown_size(count: int) -> str:
    """*count* bytes, as people say it.

    >>> shown_size(999), shown_size(49_152)
    ('999 B', '49.2 KB')
    """
    amount = float(count)
    for unit in ("B", "KB", "MB"):
        if amount < 1000:  # noqa: PLR2004 - as the SI has it
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def next_epoch(last: int, now: int) -> int:
    """A number over *last*, and over all given out before a deletion: time does not go back."""
    return max(last + 1, now)


async def settle(future: Future[R]) -> R:
    """Await *future*; if cancelled meanwhile, wait for its end, then let the cancellation go on.

    So a cancelled write never lands after its caller was told that it is over.
    """
    import asyncio  # noqa: PLC0415 - sync programs never pay for it

    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError:
                continue
        if not future.cancelled():
            future.exception()  # seen, so that the loop does not report it as lost
        raise
