"""The contract of a backend: everything a store asks of the place where it keeps its journals.

A backend stores **records** in **journals** and knows nothing of what they mean.

*Journal.* An append-only run of entries under a `Key`. Entries are numbered 1, 2, 3 …; one call of
`append` adds one record of one or more entries, all or none. Bodies are opaque bytes. A journal
exists from its first record until it is deleted or expires.

*Incarnation.* A journal that begins, also one that begins again under the key of a deleted or
expired one, gets a new incarnation: a text that is never used twice. Numbers begin again at 1, so
a compare-and-set names both (`Expect`), and anything derived from a journal remembers both.

*Durable.* When `append` returns, the record survives power loss, as far as the place allows; a
backend that promises less says so in `facts`.

*Order.* All appends to one journal have one order, the same for every reader. Whoever has been
told of an append sees it in every later read, from any process.

*Time* is the backend's own clock: the server's where there is one. Two clients' clocks are never
compared. Times are whole microseconds since 1970 (UTC). A journal's times never go back.

*Records of one append.* An append may also store several records (`Append.earlier`), all or none,
under one id, so that whoever reads the end of a journal reads no more than that. A backend says
whether it can (``splits``).

*Attributes.* Status, labels, meta and ttl change with an append, in the same act. ``status`` and
``labels`` are what people list by. (A label whose name begins with `HIDDEN` belongs to a backend
that wraps another one: it is in the head like any, and `scan` need not find by it.) ``meta`` is the
model's own: what it wants to know of a journal without reading it. It is small, it is JSON, and the
backend returns it as it was given.

*Note.* A few bytes that go with the newest record alone (``note``): each append that adds records
replaces it, and without one it is gone. Nothing else changes it but `rewrite`. A backend that wraps
another one keeps there what it is to find again at the end of a journal.

*Expiry.* A journal with a ``ttl`` expires that many seconds after its last append (or after the ttl
was set, if that is later), but not while a lease on it is valid. From that moment it does not
exist: reads are empty, an append begins a new journal at 1. `sweep` frees the room.

*Leases.* At most one lease per journal is valid. Its epoch is a number that only grows, even over
`delete` and re-creation, so a late holder can never pass for a new one. Writes that name an epoch
are refused with `LeaseLost` unless it is the newest; writes that name none are not bound by leases.

*Copies.* An append with an `Origin` is a copy of a record in another store. The record keeps the
time ``origin.at`` (or that of the record before it, if that is later), expiry counts from that
time, and a journal that it begins takes over ``created``, ``first`` and ``incarnation``.

*Transactions.* Some places commit more than one journal at once, and may also hold tables of the
callers' own. Where that is so (``transactional``), `append_all` commits several appends together,
and `transaction` commits one append with the caller's rows.

*Errors* are those of `limpet.errors`, with the driver's error as cause. A call that raises has
changed nothing, except for `StoreUnavailable`, after which an append may or may not be there:
repeat it with the same id, and it is there once. A backend over a network does that by itself, for
as long as its ``timeout``; it gives every append without an id one of its own (`generated_id`).

A backend is written blocking and must be safe to call from many threads; async callers reach it
through threads of theirs. The rules of an append are written once, in `limpet.backends.decide`.
The suite in `limpet.testing` holds every backend to this page.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

from msgspec import UNSET, Struct, UnsetType

from limpet.errors import NotTransactional, StoreClosed, StoreError, StoreReadOnly

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from contextlib import AbstractContextManager

    from limpet.backends.facts import Fact

__all__ = [
    "HIDDEN",
    "UNSET",
    "Append",
    "Appended",
    "Backend",
    "Expect",
    "Head",
    "Key",
    "Lease",
    "Origin",
    "Page",
    "Record",
    "Transaction",
    "UnsetType",
    "from_micros",
    "generated_id",
    "given_id",
    "micros",
    "new_incarnation",
    "to_micros",
]


#: What the name of a label begins with that is hidden.
HIDDEN = "\x1f"


class Key(NamedTuple):
    """A journal's name. The parts are valid ids: the core has checked them."""

    tenant: str
    kind: str
    id: str


class Expect(NamedTuple):
    """Where an append or a delete expects the journal: this incarnation of it, at this number.

    Number 0 expects no journal. Without an incarnation, any will do.
    """

    incarnation: str | None
    seq: int


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
    incarnation: str
    seq: int  # number of the newest entry
    first: int  # number of the oldest entry that was not compacted away
    size: int  # stored bytes of the records that are there
    created: int
    updated: int
    ttl: int | None = None  # microseconds after the last append
    expires: int | None = None
    status: str | None = None
    labels: dict[str, str] = {}
    meta: bytes | None = None
    lease: Lease | None = None  # the newest one while it is valid
    note: bytes | None = None  # that of the newest record

    @property
    def expect(self) -> Expect:
        """What an append expects that is to come right behind this head."""
        return Expect(self.incarnation, self.seq)

    @property
    def expires_at(self) -> datetime | None:
        """When it expires, as a datetime."""
        return None if self.expires is None else from_micros(self.expires)


class Origin(Struct, frozen=True, gc=False):
    """What a copied record, and its journal, were given in the store that they come from."""

    at: int
    created: int
    first: int
    incarnation: str


class Append(Struct, frozen=True, kw_only=True):
    """One write: a record to add, conditions, and what else changes with it.

    With ``count=0`` and no body it adds no record and only changes attributes. Where there is
    neither a journal nor a lease it then does nothing; where there is only a lease, the journal
    has those attributes when it begins. Either way it reports number 0.
    """

    key: Key
    body: bytes = b""
    count: int = 0
    earlier: Sequence[tuple[int, bytes]] = ()  # records before it: how many entries, and the body
    id: str | None = None  # unique in the journal; a second append under it adds nothing
    expect: Expect | None = None  # where the journal is, or Conflict
    epoch: int | None = None  # the newest lease's epoch, or LeaseLost
    status: str | UnsetType | None = UNSET
    labels: Mapping[str, str | None] | UnsetType = UNSET  # merged; None removes
    meta: bytes | UnsetType | None = UNSET
    note: bytes | None = None  # of the record; the one before it goes with the record before
    ttl: float | UnsetType | None = UNSET  # None: never expires
    default_ttl: float | None = None  # of a journal that this append begins, if it sets no ttl
    origin: Origin | None = None  # for a copy: its times are kept, not the clock's


class Appended(Struct, frozen=True, gc=False):
    """What an append did. *repeated*: its id was known, and *seq* is what it was given then."""

    seq: int
    at: int
    incarnation: str  # of the journal; "" where there is none
    repeated: bool = False

    @property
    def expect(self) -> Expect:
        """What an append expects that is to come right behind this one."""
        return Expect(self.incarnation, self.seq)


class Page(Struct, frozen=True):
    """Heads in the order of their ids; *cursor* continues after the last, None at the end.

    *damaged*: what cannot be listed, because nobody can read it, and why.
    """

    heads: list[Head]
    cursor: str | None
    damaged: list[tuple[Key, StoreError]] = []


class Transaction(Protocol):
    """An open transaction, for the caller's own statements and one append."""

    @property
    def connection(self) -> Any:
        """The driver's (apsw's, psycopg's), within the transaction, and of no use after it."""

    def append(self, request: Append) -> Appended:
        """`Backend.append` as a part of it: once, and with a record."""


class Backend(ABC):
    """One place where journals live. *url* is as it may be shown: without a password.

    A backend says what it is like by these attributes:

    - ``blocks``: False where calls return at once (memory); async callers then need no thread.
    - ``splits``: True where one append may store several records.
    - ``concurrency``: how many calls of async callers may be under way at the same time.
    - ``readable``: True where people read what is stored; the store then compresses no bodies.
    - ``private``: True where nothing of what is stored may be written anywhere else: indexes of it
      are kept in memory.
    - ``overhead``: bytes that each record takes beside its body, and that count as size.
    - ``wakes``: True where `wait` is woken by whoever appends, and does not look again and again.
    - ``transactional``: True where callers may have tables of their own, and `transaction` and
      `append_all` work; elsewhere both raise `NotTransactional`.
    - ``transactions``: how many transactions of async callers may be open at the same time.
    - ``rewrites``: True where `rewrite` works.
    - ``keeps``: what of something that was erased may be left here, and elsewhere, where no program
      of ours gets at it: sentences for a receipt.
    - ``beside``: how the names of the files end that belong to the one at its path.
    - ``append_async``: `append` for async callers, where a backend can wait for it without a thread
      of theirs. If the caller is cancelled, it returns only when the append has ended, or never
      will begin.

    A backend with connections, locks or threads, which must not be in two processes, calls
    `limpet.backends.forks.register` when it is open, and has ``before_fork``,
    ``after_fork_in_parent`` and ``after_fork_in_child`` (see `limpet.backends.forks.Forked`).
    """

    blocks: ClassVar[bool] = True
    splits: ClassVar[bool] = False
    concurrency: int = 8
    readable: ClassVar[bool] = False
    private: bool = False
    overhead: int = 0
    wakes: bool = False
    transactional: ClassVar[bool] = False
    transactions: int = 1
    rewrites: ClassVar[bool] = False
    keeps: ClassVar[tuple[str, ...]] = ("Backups, copies and logs of this place are not reached.",)
    beside: ClassVar[tuple[str, ...]] = ()
    append_async: Callable[[Append], Coroutine[Any, Any, Appended]] | None = None

    def __init__(self, url: str, *, readonly: bool = False) -> None:
        self.url = url
        self.readonly = readonly
        self.closed = False

    @classmethod
    @abstractmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Open what *url* names; *options* go before its parameters (see `backends.url`).

        Two options, which are parameters too, are the same wherever a store can be opened again:
        with ``create=False`` opening creates nothing; with ``readonly=True`` it creates nothing
        either, and every write is refused with `StoreReadOnly`. If there is no store, both are
        `StoreNotFound`. A parameter that the backend does not know is `InvalidURL`.
        """

    # -- records ---------------------------------------------------------------------------

    @abstractmethod
    def append(self, request: Append) -> Appended:
        """Add one record, all of it or nothing; durable on return.

        In this order: a known id → the first outcome, ``repeated``; a stale epoch → `LeaseLost`;
        a head other than ``expect`` → `Conflict`. A journal that does not exist has number 0.
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

    def examine(
        self, key: Key, *, after: int = 0, upto: int | None = None, limit: int = 1000
    ) -> list[tuple[Record, str | None]]:
        """`read`, and of each record what is wrong with it: for who looks at damage.

        Where a backend can tell that a record is not what was written, `read` raises. Here it comes
        without a body, if that cannot be had.
        """
        return [(r, None) for r in self.read(key, after=after, upto=upto, limit=limit)]

    @abstractmethod
    def head(self, key: Key) -> Head | None:
        """The journal's head, or None where no record was ever added."""

    def has(self, key: Key) -> bool:
        """Whether there is a journal: what is asked once, of a store that was just opened."""
        return self.head(key) is not None

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

        All filters must hold. A journal that exists all through a run of pages appears in it
        exactly once; one that comes or goes meanwhile, at most once. One that nobody can read does
        not hide the others: the page says which, and why.
        """

    def heads(
        self,
        tenant: str,
        kind: str,
        *,
        damaged: list[tuple[Key, StoreError]] | None = None,
        **filters: Any,
    ) -> Iterator[Head]:
        """All that `scan` finds, whatever the number of its pages.

        What cannot be listed is added to *damaged*; without that, the error is raised.
        """
        cursor: str | None = None
        while True:
            page = self.scan(tenant, kind, cursor=cursor, **filters)
            if damaged is not None:
                damaged += page.damaged
            for _, error in page.damaged if damaged is None else ():
                raise error
            yield from page.heads
            cursor = page.cursor
            if cursor is None:
                return

    @abstractmethod
    def kinds(self) -> list[tuple[str, str]]:
        """The (tenant, kind) pairs under which there are journals, in order: what to scan."""

    @abstractmethod
    def delete(self, key: Key, *, expect: Expect | None = None) -> bool:
        """Remove the journal, its records, labels and lease. False if it did not exist.

        With *expect* in one act with a look at it: only if it stands there and no lease on it is
        valid, else `Conflict`. So what somebody adds meanwhile is not lost.
        """

    @abstractmethod
    def compact(self, key: Key, before: int) -> int:
        """Drop the records all of whose entries are numbered under *before*; how many entries.

        Numbers are never given out again. Ids of dropped records are forgotten.
        """

    def rewrite(
        self,
        key: Key,
        bodies: Mapping[int, bytes],
        *,
        expect: Expect,
        renewed: str | None = None,
        labels: Mapping[str, str] | None = None,
        note: bytes | None = None,
    ) -> int:
        """Put *bodies* in the place of those of the records with these numbers; how many it were.

        All or none, and none where the journal is not as *expect* says. Its incarnation is
        *renewed* to another if one is given: whoever remembers what there was learns so that it is
        not that any more. *labels* are set in the same act, and so is the *note*, if one is given.
        Records that are gone are passed over; numbers, times and ids stay.
        """
        msg = f"{self.url} cannot change what is stored: it only appends, compacts and deletes."
        raise NotImplementedError(msg)

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
        """The same lease, valid for *ttl* seconds from now; `LeaseLost` if it is not the newest."""

    @abstractmethod
    def release(self, key: Key, lease: Lease) -> None:
        """End the lease now. Does nothing if it is not the newest."""

    # -- several journals, and the caller's own rows -----------------------------------------

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

    # -- the place itself ------------------------------------------------------------------

    @abstractmethod
    def facts(self, *, deep: bool = False) -> list[Fact]:
        """What `limpet doctor` reports; *deep* also reads everything and checks it."""

    def repair(self) -> list[str]:
        """Set aside what is damaged and keep the rest, deleting nothing; what was done, in words.

        For ``limpet doctor --repair``, where damaged parts can be told from the others.
        """
        msg = (
            f"{self.url} cannot be repaired in place: only file: stores can. `limpet doctor` says "
            "what is wrong, `limpet restore BACKUP --replace` goes back to a backup, and "
            f"`limpet salvage {self.url} NEW` writes what can be read to a new store."
        )
        raise StoreError(msg)

    def lost(self, key: Key) -> list[tuple[int, int]]:  # noqa: ARG002 - nothing, unless it repairs
        """The entries that repairs have taken out: the first and last of each run."""
        return []

    # -- a store that is a file or a directory: for backups ----------------------------------

    @classmethod
    def path_of(cls, url: str) -> str | None:  # noqa: ARG003 - most have none
        """The file or directory that *url* names, there or not, if that is all of the store.

        The class is then called with it, as with ``create=`` and ``readonly=``.
        """
        return None

    @classmethod
    def write_snapshot(cls, path: str, new: str) -> bool:  # noqa: ARG003 - for those that can
        """Write the store at *path*, as it is at one moment, to a *new* one, and check that.

        False where a store has no such moment: then journals are copied, one by one.
        """
        return False

    @classmethod
    def alone(cls, path: str) -> AbstractContextManager[None]:  # noqa: ARG003 - for those that can
        """Keep others out of the store at *path*; `StoreBusy` if it is in use and that is known."""
        return nullcontext()

    @classmethod
    def from_damaged(cls, url: str) -> Backend:
        """What can be read of the store at *url*, to be copied with ``salvage=True``."""
        return cls.from_url(url, create=False, readonly=True)

    def close(self) -> None:
        """Finish what is under way and let go of everything. A second call does nothing."""
        if not self.closed:
            self.closed = True
            self._close()

    @abstractmethod
    def _close(self) -> None:
        """Let go of connections and files. Called once."""

    def check_open(self) -> None:
        """`StoreClosed`, if it is."""
        if self.closed:
            msg = f"The store {self.url} is closed. Open it again, or close it later."
            raise StoreClosed(msg)

    def check_writable(self) -> None:
        """`StoreClosed` or `StoreReadOnly`, if a write cannot be."""
        self.check_open()
        if self.readonly:
            msg = (
                f"The store {self.url} is read-only: it was opened with readonly=True. Open it "
                "without that to write."
            )
            raise StoreReadOnly(msg)


# -- times and ids -----------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def from_micros(at: int) -> datetime:
    """*at* as an aware datetime, exactly (a float would round)."""
    seconds, rest = divmod(at, 1_000_000)  # by parts: a timedelta is slow with large numbers
    return _EPOCH + timedelta(0, seconds, rest)


def to_micros(at: datetime) -> int:
    """*at* as whole microseconds since 1970, as exactly."""
    return (at - _EPOCH) // _MICROSECOND


def micros(seconds: float) -> int:
    """*seconds* as whole microseconds."""
    return round(seconds * 1e6)


def new_incarnation() -> str:
    """What tells a journal that begins now from all others under its key."""
    return os.urandom(8).hex()


def generated_id() -> str:
    """An id for an append whose caller gave none, which no caller's can be. See `given_id`."""
    return "\x1f" + os.urandom(12).hex()


def given_id(id_: str | None) -> str | None:
    """*id_* if a caller gave it, None if it is a `generated_id`."""
    return None if id_ is None or id_[0] == "\x1f" else id_
