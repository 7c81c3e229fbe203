"""``file:``, a directory that people can read: a journal is a file, and an append a line of JSON.

::

    state/
      limpet.json                      says that this is a store, and in which format
      default/conversation/alice.jsonl   tenant, kind, id
      .limpet/                         locks and leases; not for version control

Every append is synced before it returns. Writers keep each other out by the locks of the system;
readers need none. What is in a line is told in `limpet.backends.file.lines`.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left, bisect_right
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from limpet.backends.contract import (
    Append,
    Appended,
    Backend,
    Fact,
    Head,
    Key,
    Lease,
    Page,
    Record,
    conflict,
    fenced,
    held,
    micros,
    next_epoch,
)
from limpet.backends.file import disk
from limpet.backends.file.facts import describe
from limpet.backends.file.leases import hold, newest, valid
from limpet.backends.file.lines import State, body_of, pack, record_of
from limpet.backends.file.listing import Listing
from limpet.backends.file.names import LEASES, STRIPES, Place, name_of
from limpet.backends.file.reading import File, check_key, opened
from limpet.backends.file.repair import repair
from limpet.backends.file.root import check_root, directories, make_root, names
from limpet.backends.file.writing import Shelf, compacted
from limpet.backends.url import at_home, check_durability, flag, seconds, url_parameters
from limpet.errors import (
    InvalidURL,
    LimpetError,
    NotAStore,
    SchemaTooNew,
    StoreCorrupt,
    StoreReadOnly,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from limpet.backends.file.writing import Journal

__all__ = ["FileBackend"]

T = TypeVar("T")

#: Files in a journal's place that this release cannot use, and that are there all the same.
_UNUSABLE = (StoreCorrupt, NotAStore, SchemaTooNew)


_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "timeout": seconds,
    "durability": check_durability,
    "readonly": flag,
    "create": flag,
}


class FileBackend(Backend):
    """Journals in a directory, one file each.

    Several processes may have it open. *timeout*: how long a write waits for another process's.
    *durability*: ``full`` (survives power loss) or ``normal`` (survives the process only; faster).
    """

    readable: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        *,
        create: bool = True,
        readonly: bool = False,
        timeout: float = 30.0,
        durability: str = "full",
    ) -> None:
        super().__init__(f"file:{path}")
        self.path = os.path.abspath(path)
        self._readonly = readonly
        self._durability = check_durability(durability)
        self._listing = Listing(self.path)
        self._shelves = [
            Shelf(
                self.path,
                number,
                timeout=seconds(timeout),
                readonly=readonly,
                durable=durability == "full",
            )
            for number in range(STRIPES)
        ]
        with self._explaining():
            if create and not readonly:
                make_root(self.path, seconds(timeout))
            check_root(self.path, readonly=readonly)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        path, parameters = url_parameters(url.removeprefix("file:"), _PARAMETERS)
        if path.startswith("//"):
            host, slash, rest = path[2:].partition("/")
            if host or not slash:
                msg = (
                    f"file:{path} names a host. Write file:state for a directory here, or "
                    "file:/var/lib/state for one anywhere."
                )
                raise InvalidURL(msg)
            path = "/" + rest
        if not path:
            msg = "file: names no directory. Write file:state, or file:/var/lib/state."
            raise InvalidURL(msg)
        return cls(at_home(path), **(parameters | options))

    # -- records -----------------------------------------------------------------------------------

    def append(self, request: Append) -> Appended:
        body = pack(request.body) if request.count else b""  # before the lock is taken
        return self._write(request.key, partial(self._append, request, body))

    def _append(self, request: Append, body: bytes, shelf: Shelf, place: Place) -> Appended:
        now = _now()
        journal = self._live(shelf, place, request.key, now)
        if journal is not None and request.id is not None:
            known = journal.known(request.id)
            if known is not None:
                return Appended(*known, repeated=True)
        _check(request, journal.state if journal else None, place)
        if journal is None:
            return _begin(request, body, shelf, place, now)
        after = journal.state.changed(request, now)
        if request.count:
            journal.append(after.record(request, body), after, request.id)
        elif after != journal.state:
            journal.append(after.mark(now), after)
        return Appended(after.seq, after.updated)

    def read(
        self,
        key: Key,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
    ) -> list[Record]:
        def look(file: File, _state: State) -> list[Record]:
            found: list[Record] = []
            for _, line in file.lines_back(upto) if reverse else file.lines(after):
                behind = upto is not None and line.seq - line.count >= upto
                if len(found) >= limit or (line.seq <= after if reverse else behind):
                    break
                if line.count and not behind:
                    found.append(record_of(line))
            return found

        return self._look(key, look) or []

    def bodies(self, key: Key, *, after: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]:
        def look(file: File, _: State) -> list[tuple[int, bytes]]:
            records = (line for _, line in file.lines(after) if line.count)
            return [(line.seq, body_of(line)) for line in islice(records, limit)]

        return self._look(key, look) or []

    def head(self, key: Key) -> Head | None:
        place = self._place(key)
        return self._look(key, lambda _, state: state.head(valid(place, _now())))

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
        self._check_open()
        wanted = dict(labels or {}).items()
        directory = os.path.dirname(name_of(Key(tenant, kind, "any")))
        with self._explaining():
            ids = self._listing.ids(directory, again=cursor is not None)
        first = max(bisect_left(ids, prefix), bisect_right(ids, cursor or ""))
        heads: list[Head] = []
        for number in range(first, len(ids)):
            id_ = ids[number]
            if not id_.startswith(prefix):
                break
            head = self.head(Key(tenant, kind, id_))
            if head is None or (status is not None and head.status != status):
                continue
            if wanted <= head.labels.items():
                heads.append(head)
                if len(heads) > limit:
                    return Page(heads[:limit], heads[limit - 1].key.id)
        self._listing.let_go()
        return Page(heads, None)

    def kinds(self) -> list[tuple[str, str]]:
        self._check_open()
        with self._explaining():
            found = [self._inhabited(directory) for directory in directories(self.path)]
        return sorted(key[:2] for key in found if key is not None)

    def _inhabited(self, directory: str) -> Key | None:
        """The key of any journal that is there, in a directory of one tenant and kind."""
        for key in self._listing.keys(directory):
            try:
                if self.head(key) is not None:
                    return key
            except _UNUSABLE:
                return key
        return None

    def delete(self, key: Key) -> bool:
        return self._write(key, partial(self._delete, key))

    def _delete(self, key: Key, shelf: Shelf, place: Place) -> bool:
        try:
            was_there = self._live(shelf, place, key, _now()) is not None
        except _UNUSABLE:
            was_there = True
        shelf.remove(place)
        return was_there

    def compact(self, key: Key, before: int) -> int:
        return self._write(key, partial(self._compact, key, before))

    def _compact(self, key: Key, before: int, shelf: Shelf, place: Place) -> int:
        journal = self._live(shelf, place, key, _now())
        if journal is None:
            return 0
        entries, pieces = compacted(File(journal.handle, place.path), journal.state, before)
        if entries:
            shelf.rewrite(place, pieces)
        return entries

    def scrub(self) -> bool:
        return True  # what is deleted or compacted is in no file any more

    def sweep(self, limit: int = 1000) -> int:
        self._check_open()
        self._check_writable()
        count = 0
        with self._explaining():
            for place in self._places():
                if count >= limit:
                    break
                count += self._sweep(place)
            for place in self._places(spare=True):
                shelf = self._shelves[place.stripe]
                shelf.alone(shelf.remove_spare, place)
        return count

    def _sweep(self, place: Place) -> bool:
        """Remove what has expired, and what a lease that came to nothing has left behind."""
        if not self._is_idle(place):
            return False
        shelf = self._shelves[place.stripe]
        return shelf.alone(self._remove_idle, shelf, place)

    def _remove_idle(self, shelf: Shelf, place: Place) -> bool:
        idle = self._is_idle(place)
        if idle:
            shelf.remove(place)
        return idle

    def _is_idle(self, place: Place) -> bool:
        now = _now()
        with opened(place.path) as handle:
            try:
                state = None if handle is None else File(handle, place.path).state
            except _UNUSABLE:
                return False  # for the doctor to look at
        if state is not None and (state.expires is None or state.expires > now):
            return False
        return valid(place, now) is None

    def _places(self, *, spare: bool = False) -> Iterator[Place]:
        """Every place where there is a journal or a lease; or one that a killed writer has left."""
        private = os.path.join(self.path, LEASES)
        for directory in {*directories(self.path), *directories(private)}:
            found = names(private, directory, ".new" if spare else ".lease")
            if not spare:
                found += names(self.path, directory)
            for name in set(found):
                yield Place.of(self.path, f"{directory}/{name}")

    # -- leases ------------------------------------------------------------------------------------

    def acquire(self, key: Key, holder: str, ttl: float, *, over: int | None = None) -> Lease:
        def work(shelf: Shelf, place: Place) -> Lease:
            now = _now()
            self._live(shelf, place, key, now)  # what has expired must not be leased back to life
            last = newest(place)
            if last is not None and last.until > now and last.epoch != over:
                raise held(key, last.lease)
            epoch = next_epoch(last.epoch if last else 0, now)
            return hold(place, last, holder=holder, epoch=epoch, until=now + micros(ttl))

        return self._write(key, work)

    def renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        return self._write(key, partial(self._renew, key, lease, ttl))

    def _renew(self, key: Key, lease: Lease, ttl: float, shelf: Shelf, place: Place) -> Lease:
        now = _now()
        self._live(shelf, place, key, now)
        last = newest(place)
        if last is None or last.epoch != lease.epoch:
            raise fenced(key)
        return hold(place, last, until=now + micros(ttl))

    def release(self, key: Key, lease: Lease) -> None:
        self._write(key, partial(self._release, lease))

    def _release(self, lease: Lease, _: Shelf, place: Place) -> None:
        last = newest(place)
        if last is not None and last.epoch == lease.epoch:
            hold(place, last, until=_now())

    # -- reading and writing -----------------------------------------------------------------------

    def _place(self, key: Key) -> Place:
        return Place.of(self.path, name_of(key))

    def _look(self, key: Key, work: Callable[[File, State], T]) -> T | None:
        """What *work* makes of the journal's file; None if the journal is not there."""
        self._check_open()
        place = self._place(key)
        with self._explaining():
            try:
                return self._peek(key, place, work)
            except StoreCorrupt:
                # Or did we see a writer undo what has failed? Look again with writers kept out.
                return self._shelves[place.stripe].alone(self._peek, key, place, work)

    def _peek(self, key: Key, place: Place, work: Callable[[File, State], T]) -> T | None:
        with opened(place.path) as handle:
            if handle is None:
                return None
            file = File(handle, place.path)
            check_key(file, key)
            state = file.state
            return None if _is_expired(state, place, _now()) else work(file, state)

    def _write(self, key: Key, work: Callable[[Shelf, Place], T]) -> T:
        """Do *work* with all others kept out of the journal."""
        self._check_open()
        self._check_writable()
        place = self._place(key)
        shelf = self._shelves[place.stripe]
        try:  # in place, not by `_explaining`: every append comes this way
            return shelf.alone(work, shelf, place)
        except LimpetError:
            raise
        except OSError as error:
            raise disk.explain(error, self.path) from error

    def _live(self, shelf: Shelf, place: Place, key: Key, now: int) -> Journal | None:
        """The journal, or None; one that has expired is made to go."""
        journal = shelf.find(place, key)
        if journal is not None and _is_expired(journal.state, place, now):
            shelf.remove(place)
            return None
        return journal

    def _check_writable(self) -> None:
        if self._readonly:
            msg = f"{self.path} was opened read-only. Open it without readonly=True to write."
            raise StoreReadOnly(msg)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turn the system's errors into ours."""
        try:
            yield
        except LimpetError:
            raise
        except OSError as error:
            raise disk.explain(error, self.path) from error

    # -- the place itself --------------------------------------------------------------------------

    def facts(self, *, deep: bool = False) -> list[Fact]:
        self._check_open()
        with self._explaining():
            return describe(self.path, self._places(), self._durability, deep=deep)

    def repair(self) -> list[str]:
        """Move damaged lines to files beside their journals and keep the rest; what was done."""
        self._check_open()
        self._check_writable()
        done = []
        with self._explaining():
            for place in self._places():
                shelf = self._shelves[place.stripe]
                done.append(shelf.alone(repair, shelf, place))
        return [text for text in done if text is not None]

    def lost(self, key: Key) -> list[tuple[int, int]]:
        """The entries that repairs have taken out of a journal: the first and last of each run."""

        def look(file: File, _state: State) -> list[tuple[int, int]]:
            runs: list[tuple[int, int]] = []
            for _, line in file.lines():
                if line.lost:
                    first = runs.pop()[0] if runs and runs[-1][1] == line.start else line.start + 1
                    runs.append((first, line.start + line.lost))
            return runs

        return self._look(key, look) or []

    def _close(self) -> None:
        for shelf in self._shelves:
            with shelf.mutex:
                shelf.closed = True
                shelf.let_go()

    # -- fork --------------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        for shelf in self._shelves:  # nobody may be holding a lock that the child would share
            shelf.mutex.acquire()

    def _after_fork_in_parent(self) -> None:
        for shelf in self._shelves:
            shelf.mutex.release()

    def _after_fork_in_child(self) -> None:
        super()._after_fork_in_child()
        for shelf in self._shelves:
            shelf.let_go()
            shelf.mutex = threading.Lock()


def _check(request: Append, state: State | None, place: Place) -> None:
    if request.epoch is not None:
        held = newest(place)
        if held is None or held.epoch != request.epoch:
            raise fenced(request.key)
    seq = state.seq if state else 0
    if request.expect is not None and request.expect != seq:
        raise conflict(request, seq)


def _begin(request: Append, body: bytes, shelf: Shelf, place: Place, now: int) -> Appended:
    """Make a journal with its first record. Without one, a lease alone can have attributes."""
    held = newest(place)
    before = State(key=request.key, created=now, updated=now)
    if held is not None:
        before.status, before.labels = held.status, held.labels
    after = before.changed(request, now)
    if request.count:
        shelf.begin(place, after.record(request, body), after)
    elif held is not None:
        hold(place, held, status=after.status, labels=after.labels)
    return Appended(after.seq if request.count else 0, after.updated)


def _is_expired(state: State, place: Place, now: int) -> bool:
    return state.expires is not None and state.expires <= now and valid(place, now) is None


def _now() -> int:
    return time.time_ns() // 1000
