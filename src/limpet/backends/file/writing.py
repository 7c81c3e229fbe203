"""Changes of journals, by whoever holds their lock; and the files that are kept open for that."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING

from msgspec import structs

from limpet.backends import decide
from limpet.backends.contract import Appended, to_micros
from limpet.backends.file import disk
from limpet.backends.file.directory import misplaced
from limpet.backends.file.format import (
    attributes_line,
    changed_line,
    encode,
    header_of,
    id_text,
    lease_text,
    record_line,
)
from limpet.backends.file.locks import Lock
from limpet.backends.file.reading import JournalFile, opened, read_lease, read_leased_head
from limpet.backends.logs import warn
from limpet.errors import NotAStore, SchemaTooNew, StoreCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from limpet.backends.contract import Append, Expect, Head, Key, Lease, Record
    from limpet.backends.file.directory import Paths

__all__ = ["UNUSABLE", "OpenJournal", "Stripe", "is_idle"]

#: Journals that one stripe keeps open.
MOST_OPEN = 4

#: Names that it knows to be durable: what was forgotten is synced once more.
MOST_NAMES = 10_000

#: Ids that are looked for in the text of a file before all that are in it are read.
MOST_LOOKS = 20

#: Bytes of a file that are searched at a time.
CHUNK = 1024 * 1024

#: What is raised for a file in a journal's place that this release cannot use.
UNUSABLE = (StoreCorrupt, NotAStore, SchemaTooNew)

_FLAGS = os.O_RDWR | os.O_APPEND


class OpenJournal:
    """One journal's file, open for writing, and its head as of the last line, without a lease.

    Used under the journal's lock. Another process may have written meanwhile: `is_current` tells
    by the file's size, and by whether it is still the one of that name. It cannot be another with
    the same inode, because this one is open.
    """

    def __init__(self, handle: int, path: str, *, durable: bool) -> None:
        self.handle = handle
        self._path = path
        self._durable = durable
        self._ids: dict[str, Appended] | None = None  # None: not read yet
        self._looks = 0
        self.doubtful = False  # a sync has failed
        try:
            found = os.fstat(handle)
            self.inode = (found.st_dev, found.st_ino)
            self._load()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        if self.handle >= 0:
            handle, self.handle = self.handle, -1
            os.close(handle)

    __del__ = close  # of a store that was dropped and never closed

    def _load(self) -> JournalFile:
        """Take in what the file holds, and cut off what was never acknowledged."""
        file = JournalFile(self.handle, self._path)
        self.head, self._dropped = file.head, file.header.dropped_bytes
        self._end, self._closed = file.end, file.closed  # the last line ends as a line does
        self._synced = False
        if file.torn:
            warn(
                "%s: the last line has no end: its writer died before it was acknowledged, or "
                "something has cut the file off. Its %d bytes are dropped.",
                self._path,
                file.torn,
            )
            os.ftruncate(self.handle, self._end)
        return file

    def is_current(self) -> bool:
        """Whether this is still the journal's file; what others have added is then taken in."""
        try:
            there = os.lstat(self._path)
        except FileNotFoundError:
            return False
        inode = (there.st_dev, there.st_ino)
        if self.doubtful or inode != self.inode or there.st_size < self._end:
            return False
        if there.st_size > self._end:
            ids, self._ids = self._ids, None
            known = self.head.seq
            file = self._load()
            if ids is not None:
                self._ids = ids | _ids_in(file, known)
        return True

    def known(self, id_: str) -> Appended | None:
        """What the append under that id was answered, if there was one; then it is durable."""
        if self._ids is None:
            # Most ids are new, and most journals are asked for few before they are closed again:
            # to look for the text of one costs less than to read them all.
            self._looks += 1
            if self._looks <= MOST_LOOKS and not self._holds(id_text(id_)):
                return None
            self._ids = _ids_in(JournalFile(self.handle, self._path), 0)
        found = self._ids.get(id_)
        if found is not None and not self._synced:
            self._sync()  # the writer may have died between the write and the sync
        return found

    def _holds(self, text: bytes) -> bool:
        """Whether *text* may be in the file."""
        rest = b""
        for offset in range(0, self._end, CHUNK):
            size = min(CHUNK, self._end - offset)
            data = os.pread(self.handle, size, offset)
            if len(data) < size:
                return True  # whoever reads it all will see why
            data = rest + data
            if text in data:
                return True
            rest = data[-len(text) :]  # it may lie across two pieces
        return False

    def append(self, head: Head, record: Record | None, at: int) -> None:
        """Add a line for *record*, or for attributes alone, that leads to *head*; durably.

        If that fails, everything is left as it was.
        """
        if head.lease is not None:
            head = structs.replace(head, lease=None)
        if record is not None:
            text = encode(record_line(head, self._dropped, record))
        else:
            text = encode(attributes_line(head, self._dropped, at))
        if not self._closed:
            text = b"\n" + text
        try:
            disk.write_all(self.handle, text)
            self._sync()
        except BaseException:
            self._cut_back()
            raise
        if record is not None and record.id is not None and self._ids is not None:
            self._ids[record.id] = Appended(record.seq, record.at, head.incarnation)
        self.head = head
        self._closed = True
        # Last: an interrupt may come before, and then `is_current` takes in what the file has more.
        self._end += len(text)

    def _sync(self) -> None:
        try:
            if self._durable:
                disk.sync(self.handle)
        except OSError as error:
            # The system now takes for written what is not, and would call the next sync a success.
            self.doubtful = True
            raise disk.NotSynced(error.errno, error.strerror) from error
        self._synced = True

    def _cut_back(self) -> None:
        """Undo an append that failed, although a reader may have seen it."""
        try:
            os.ftruncate(self.handle, self._end)
        except OSError as error:
            self.doubtful = True
            warn("%s: a failed append could not be undone: %s", self._path, error)

    # -- written anew ------------------------------------------------------------------------------

    def anew(self) -> Iterator[bytes]:
        """The text of a file to take the place of this one, with the same in it."""
        file = JournalFile(self.handle, self._path)
        return _copied(file, file.begin, self.head, self._dropped)

    def compacted(self, before: int) -> tuple[int, Iterator[bytes]]:
        """How many entries are in records under *before*, and the text of a file without them."""
        file = JournalFile(self.handle, self._path)
        count, size, cut, first = 0, 0, file.end, self.head.seq + 1
        for offset, line in file.lines():
            if line.count and line.seq >= before:
                cut, first = offset, line.previous + 1
                break
            count += line.count
            size += len(line.record_body())
        head = structs.replace(self.head, first=first, size=self.head.size - size)
        return count, _copied(file, cut, head, self._dropped + size)

    def changed(self, bodies: Mapping[int, bytes], head: Head) -> tuple[int, Iterator[bytes]]:
        """How many records get another of *bodies*, and the text of a file in which they have it.

        Of status, labels and meta, its lines have what *head* says, and nothing from before.
        """
        file = JournalFile(self.handle, self._path)
        numbers = {line.seq for _, line in file.lines() if line.count}

        def text() -> Iterator[bytes]:
            yield encode(header_of(head, self._dropped))
            total = self._dropped
            for _, line in file.lines():
                body = bodies.get(line.seq) if line.count else None
                total += len(line.record_body() if body is None else body)
                yield encode(changed_line(line, head, total, body))

        return len(numbers & bodies.keys()), text()


def _copied(file: JournalFile, start: int, head: Head, dropped: int) -> Iterator[bytes]:
    """A journal with this *head*, and with the lines of *file* from *start* on."""
    yield encode(header_of(head, dropped))
    if start == file.end:
        yield encode(attributes_line(head, dropped, disk.now()))
    yield from file.text.pieces(start, file.end)
    if start < file.end and not file.closed:
        yield b"\n"


def _ids_in(file: JournalFile, after: int) -> dict[str, Appended]:
    incarnation = file.header.incarnation
    return {
        line.id: Appended(line.seq, to_micros(line.at), incarnation)
        for _, line in file.lines(after)
        if line.id is not None and line.count
    }


class Stripe:
    """One of the locks that all journals share, and those under it that were written last, open.

    All methods that change a journal are for whoever holds ``lock``; *paths* are the journal's.
    """

    def __init__(
        self, root: str, number: int, *, timeout: float, readonly: bool, durable: bool
    ) -> None:
        self.lock = Lock(root, number, timeout=timeout, readonly=readonly)
        self._durable = durable
        self._journals: OrderedDict[str, OpenJournal] = OrderedDict()
        self._durable_names: dict[str, tuple[int, int]] = {}  # and the inode of each
        self._doubtful: set[str] = set()  # paths of files that could not be synced

    # -- as the contract has it --------------------------------------------------------------------

    def append(self, paths: Paths, request: Append) -> Appended:
        """`Backend.append`."""
        at = disk.now()
        journal = self._live(paths, request.key, at)
        known = None
        if journal is None:
            head = decide.live(read_leased_head(paths.lease, at), at)
        else:
            head = journal.head
            if request.epoch is not None:
                head = structs.replace(head, lease=read_lease(paths.lease))
            if request.id is not None:
                known = journal.known(request.id)
        decision = decide.decide(head, request, at, known)
        after, record = decision.head, decision.record
        if after is None:
            return decision.answer
        if journal is not None:
            if record is not None or after != head:
                journal.append(after, record, at)
        elif record is not None:
            # With its first record: a journal is never there without.
            line = record_line(after, 0, record)
            self.rewrite(paths, [encode(header_of(after, 0)), encode(line)])
        else:
            self._set_lease(paths, after)
        return decision.answer

    def delete(self, paths: Paths, key: Key, expect: Expect | None) -> bool:
        """`Backend.delete`. A journal that cannot be read is deleted like any other.

        But not where *expect* says how it is to be: that cannot be told of it.
        """
        at = disk.now()
        if expect is not None:
            decide.check_delete(self._stored(paths, key, at), key, expect, at)
        try:
            existed = self._live(paths, key, at) is not None
        except UNUSABLE:
            existed = True
        self._remove(paths)
        return existed

    def compact(self, paths: Paths, key: Key, before: int) -> int:
        """`Backend.compact`."""
        journal = self._live(paths, key, disk.now())
        if journal is None:
            return 0
        count, text = journal.compacted(before)
        if count:
            self.rewrite(paths, text)
        return count

    def change(
        self,
        paths: Paths,
        key: Key,
        bodies: Mapping[int, bytes],
        *,
        expect: Expect,
        renewed: str | None,
        labels: Mapping[str, str],
        note: bytes | None,
    ) -> int:
        """`Backend.rewrite`."""
        journal = self._live(paths, key, disk.now())
        if journal is None or journal.head.expect != expect:
            return 0
        head = structs.replace(
            journal.head,
            incarnation=renewed or expect.incarnation,
            labels={**journal.head.labels, **labels},
            note=journal.head.note if note is None else note,
        )
        count, text = journal.changed(bodies, head)
        self.rewrite(paths, text)
        return count

    def sweep(self, paths: Paths) -> bool:
        """Remove what has expired, and a lease that came to nothing; whether there was any."""
        idle = is_idle(paths)
        if idle:
            self._remove(paths)
        return idle

    def acquire(self, paths: Paths, key: Key, holder: str, ttl: float, over: int | None) -> Lease:
        """`Backend.acquire`."""
        at = disk.now()
        head = self._stored(paths, key, at)
        return self._set_lease(
            paths, decide.acquire(head, key, at, holder=holder, ttl=ttl, over=over)
        )

    def renew(self, paths: Paths, key: Key, lease: Lease, ttl: float) -> Lease:
        """`Backend.renew`."""
        at = disk.now()
        return self._set_lease(
            paths, decide.renew(self._stored(paths, key, at), key, lease, ttl, at)
        )

    def release(self, paths: Paths, lease: Lease) -> None:
        """`Backend.release`. Not even a damaged journal is in the way."""
        at = disk.now()
        head = decide.release(read_leased_head(paths.lease, at), lease)
        if head is not None:
            self._set_lease(paths, head)

    # -- heads and leases --------------------------------------------------------------------------

    def _live(self, paths: Paths, key: Key, at: int) -> OpenJournal | None:
        """The journal; None if it is not there, or has expired: then it is removed."""
        journal = self._find(paths, key)
        if journal is None or journal.head.expires is None or journal.head.expires > at:
            return journal
        head = structs.replace(journal.head, lease=read_lease(paths.lease))
        if decide.live(head, at) is None:
            self._remove(paths)
            return None
        return journal

    def _stored(self, paths: Paths, key: Key, at: int) -> Head | None:
        """The live head, with the newest lease, as `decide` wants it."""
        journal = self._live(paths, key, at)  # first: what has expired takes its lease with it
        leased = read_leased_head(paths.lease, at)
        if journal is None:
            return decide.live(leased, at)
        return journal.head if leased is None else structs.replace(journal.head, lease=leased.lease)

    def _set_lease(self, paths: Paths, head: Head) -> Lease:
        """Store the lease of *head*, and its attributes where it has no record yet."""
        assert head.lease is not None  # noqa: S101 - the caller has just seen or made it
        # Not synced: whoever holds a lease on this machine does not outlive a power loss.
        disk.make_directories(os.path.dirname(paths.lease))
        disk.replace_file(paths.lease, lease_text(head, head.lease))
        return head.lease

    # -- files -------------------------------------------------------------------------------------

    def _find(self, paths: Paths, key: Key) -> OpenJournal | None:
        """The journal, expired or not; None if it is not there."""
        path = paths.journal
        journal = self._journals.get(path)
        if journal is not None:
            if journal.is_current():
                self._journals.move_to_end(path)
                return journal
            self._forget(path)
        try:
            handle = disk.open_file(path, _FLAGS)
        except FileNotFoundError:
            return None
        journal = self._hold_open(path, handle)
        if journal.head.key != key:
            self._forget(path)
            raise misplaced(path, journal.head.key)
        if path in self._doubtful:
            return self.rewrite(paths, journal.anew())
        # Whoever gave the file this name may have died before that was durable.
        if self._durable_names.get(path) != journal.inode:
            self._sync_name(path, journal.inode)
        return journal

    def _hold_open(self, path: str, handle: int) -> OpenJournal:
        journal = self._journals[path] = OpenJournal(handle, path, durable=self._durable)
        if len(self._journals) > MOST_OPEN:
            self._forget(next(iter(self._journals)))
        return journal

    def _forget(self, path: str) -> None:
        """Close the journal's file, if it is open."""
        journal = self._journals.pop(path, None)
        if journal is not None:
            if journal.doubtful:
                self._doubtful.add(path)
            journal.close()

    def rewrite(self, paths: Paths, pieces: Iterable[bytes]) -> OpenJournal:
        """Put *pieces* in the place of the journal's file: all of them, or nothing changes."""
        kind = os.path.dirname(paths.journal)
        if not os.path.isdir(kind):
            disk.make_directory(os.path.dirname(kind))
            disk.make_directory(kind)
        disk.make_directories(os.path.dirname(paths.new))
        handle = disk.open_file(paths.new, _FLAGS | os.O_CREAT | os.O_TRUNC)
        try:
            for piece in pieces:
                disk.write_all(handle, piece)
            disk.sync(handle)  # always: a name without content would be damage, not delay
            self._forget(paths.journal)
            os.replace(paths.new, paths.journal)
        except BaseException:
            os.close(handle)
            disk.remove(paths.new)
            raise
        journal = self._hold_open(paths.journal, handle)
        self._sync_name(paths.journal, journal.inode)
        self._doubtful.discard(paths.journal)
        return journal

    def move(self, paths: Paths, path: str) -> None:
        """Give the journal's file another name."""
        self._forget(paths.journal)
        os.rename(paths.journal, path)
        self._sync_name(paths.journal)

    def _remove(self, paths: Paths) -> None:
        self._forget(paths.journal)
        # First: its holder must not find a journal that came after this one.
        disk.remove(paths.lease)
        if disk.remove(paths.journal):
            self._sync_name(paths.journal)

    def _sync_name(self, path: str, inode: tuple[int, int] | None = None) -> None:
        """Make it durable that the journal's file has this name; or, without an inode, has none."""
        if not self._durable:
            return
        kind = os.path.dirname(path)
        try:
            if kind not in self._durable_names:  # nor may be its own name, nor its parent's
                disk.sync_directory(os.path.dirname(os.path.dirname(kind)))
                disk.sync_directory(os.path.dirname(kind))
            disk.sync_directory(kind)
        except BaseException as error:
            self._forget(path)  # so that it is asked again before anything goes on
            if isinstance(error, OSError) and not isinstance(error, disk.GONE):
                raise disk.NotSynced(error.errno, error.strerror) from error
            raise
        if len(self._durable_names) > MOST_NAMES:
            self._durable_names.clear()
        self._durable_names[kind] = (0, 0)
        self._durable_names.pop(path, None)
        if inode is not None:
            self._durable_names[path] = inode

    # -- the end, and forks ------------------------------------------------------------------------

    def close(self) -> None:
        """Close everything, once whoever is at work has finished."""
        with self.lock.mutex:
            self.lock.close()
            self._close_journals()

    def after_fork_in_child(self) -> None:
        """Start anew: what is open is the parent's, too."""
        self._close_journals()
        self.lock.after_fork_in_child()

    def _close_journals(self) -> None:
        for path in list(self._journals):
            self._forget(path)


def is_idle(paths: Paths) -> bool:
    """Whether there is only what has expired, or a lease that came to nothing."""
    at = disk.now()
    leased = read_leased_head(paths.lease, at)
    head = leased
    try:
        with opened(paths.journal) as file:
            if file is not None:
                head = structs.replace(file.head, lease=None if leased is None else leased.lease)
    except UNUSABLE:
        return False  # for the doctor to look at
    if head is None:
        return True
    return decide.live(head, at) is None or not (head.seq or decide.is_leased(head, at))
