"""Power loss for SQLite, without pulling a plug.

`Recorder` registers an apsw VFS that logs what SQLite does to its files; `crash_states` turns such
a log into the files that a power cut could have left.

What a power cut may leave is, on purpose, worse than on most file systems:

- What was written to a file before its last sync began is there.
- Every later write is there, or is not, or is there for some of its 512-byte sectors, whatever
  became of the writes before and after it. Later truncations are there or are not. A sector is
  atomic, and bytes next to those written are unharmed: SQLite's unix VFS takes that much of a disk
  for granted (`SQLITE_IOCAP_POWERSAFE_OVERWRITE`).
- A created file may be missing altogether, and an unlinked one may be back, until the directory
  entry is durable: with the first sync of that file, or with any sync of the directory. SQLite
  syncs the directory along with the first sync of a rollback journal or WAL that it opened for
  creation, and after an unlink if asked to.

The ``-shm`` file is left out: it means nothing after a restart, and SQLite builds it anew.
"""

# ruff: noqa: N802  # xOpen, xWrite and the like are the names that SQLite gives them

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import apsw

from limpet.testing.crash import experiments

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
    from os import PathLike
    from random import Random
    from typing import Self

    from typing_extensions import Buffer

    _Opener: TypeAlias = Callable[[str | apsw.URIFilename, list[int]], apsw.VFSFile]

__all__ = [
    "Ack",
    "CrashState",
    "Delete",
    "Event",
    "Open",
    "Recorder",
    "Sync",
    "Truncate",
    "Write",
    "crash_states",
]

SECTOR = 512

JOURNAL = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL
#: The files whose loss matters; temporary ones are gone after a restart anyway.
KEPT = apsw.SQLITE_OPEN_MAIN_DB | JOURNAL

_serial = itertools.count(1)


# What a log is made of. Files go by their basename.


@dataclass(frozen=True, slots=True)
class Open:
    """A file seen for the first time with its *content*, or created (None) by being opened."""

    file: str
    content: bytes | None


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes handed to the operating system; on the disk only after a `Sync`."""

    file: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """A file's length set to *size*."""

    file: str
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """A sync that has ended; it *covers* the events of the log before that position.

    These are the ones from before it began: another thread may have written while it went on.
    """

    file: str
    covers: int
    directory: bool


@dataclass(frozen=True, slots=True)
class Delete:
    """A file unlinked; for good only if the *directory* was synced with it."""

    file: str
    directory: bool


@dataclass(frozen=True, slots=True)
class Ack:
    """The program under test was told that *label* is safe."""

    label: Hashable


Change: TypeAlias = Write | Truncate
Event: TypeAlias = Open | Change | Sync | Delete | Ack


# Between SQLite and the default VFS. `limpet.testing.faults` stands on this too.


class RegisteredVFS:
    """A VFS of its own for the length of a ``with``: pass its name, `vfs`, as ``vfs=`` to apsw.

    In a URI (``file:x?vfs=...``) the name works too, but then the connection does not keep the VFS
    alive: using it when this object is gone crashes Python.
    """

    #: Held here, not only by its user: were a VFS collected as garbage in one go with a connection,
    #: it could lose its attributes first, and SQLite would call it once more to close the files.
    _in_use: ClassVar[set[apsw.VFS]] = set()

    def __init__(self) -> None:
        self.vfs = f"limpet-{type(self).__name__.lower()}-{next(_serial)}"
        self._vfs: apsw.VFS | None = None

    def __enter__(self) -> Self:
        self._vfs = self._register()
        self._in_use.add(self._vfs)
        return self

    def __exit__(self, *_: object) -> None:
        """Take the name away; connections that are still open go on working."""
        assert self._vfs is not None
        self._vfs.unregister()
        self._in_use.remove(self._vfs)

    def _register(self) -> apsw.VFS:
        raise NotImplementedError


class PassingVFS(apsw.VFS):
    """The default VFS, with files of our own making where they are kept."""

    def __init__(self, name: str, open_kept: _Opener) -> None:
        super().__init__(name, base="", maxpathname=0)
        self._open_kept = open_kept

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if name is None or not flags[0] & KEPT:
            return super().xOpen(name, flags)
        return self._open_kept(name, flags)

    def xSleep(self, microseconds: int) -> int:
        # apsw's own sleeps with the GIL held: whoever waits for a lock would stop its holder too.
        time.sleep(microseconds / 1_000_000)
        return microseconds


class Recorder(RegisteredVFS):
    """Logs every change that SQLite makes to its files, in one order over all files and threads.

        with Recorder() as recorder:
            connection = apsw.Connection("agents.db", vfs=recorder.vfs)
            ...
            recorder.ack("entry 1")
        for state in crash_states(recorder.log, Random(1), 1000): ...

    The files of one log must be in one directory, and only this process may write them: a child's
    changes are not seen. What was in them when they were first opened counts as durable.

    Nothing is really synced: a sync waits *sync_seconds* with the GIL released, so that threads
    meet as they do on a real disk. (Over a real sync, apsw would hold the GIL.)
    """

    def __init__(self, *, sync_seconds: float = 0.0) -> None:
        super().__init__()
        self._tape = _Tape(sync_seconds)
        self.log: Sequence[Event] = self._tape.events

    def ack(self, label: Hashable) -> None:
        """Note that the program under test has been told that *label* is safe."""
        self._tape.note(Ack(label))

    def _register(self) -> apsw.VFS:
        return _RecordingVFS(self.vfs, self._tape)


class _Tape:
    """The log while it is being written."""

    def __init__(self, sync_seconds: float) -> None:
        self.events: list[Event] = []
        self.sync_seconds = sync_seconds
        self._seen: set[str] = set()
        # No deadlock: the default VFS, called under this lock, never calls back.
        self._lock = threading.Lock()

    def note(self, event: Event, real: Callable[[], None] | None = None) -> None:
        """Do what *real* does and log it as one step, so that the log has the order of the file."""
        with self._lock:
            if real is not None:
                real()
            self.events.append(event)

    def open(self, path: str | apsw.URIFilename, flags: list[int]) -> _RecordedFile:
        with self._lock:
            there = _path(path).exists()
            file = _RecordedFile(self, path, flags)
            if not there:
                self.events.append(Open(file.name, None))
            elif file.name not in self._seen:
                self.events.append(Open(file.name, file.content()))
            self._seen.add(file.name)
            return file

    def has(self, name: str) -> bool:
        return name in self._seen


class _RecordingVFS(PassingVFS):
    def __init__(self, name: str, tape: _Tape) -> None:
        super().__init__(name, tape.open)
        self._tape = tape

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: FBT001  # called by SQLite
        name = _path(filename).name
        if self._tape.has(name):
            self._tape.note(Delete(name, syncdir), partial(super().xDelete, filename, syncdir))
        else:
            super().xDelete(filename, syncdir)


class _RecordedFile(apsw.VFSFile):
    """An open database, rollback journal or WAL.

    apsw forwards the shared-memory methods to the inherited file in C, so WAL mode works. It has
    none for memory-mapping, so no change can go around this class.
    """

    def __init__(self, tape: _Tape, path: str | apsw.URIFilename, flags: list[int]) -> None:
        super().__init__("", path, flags)
        self.name = _path(path).name
        self._tape = tape
        self._directory_due = bool(flags[0] & apsw.SQLITE_OPEN_CREATE and flags[0] & JOURNAL)

    def xWrite(self, data: Buffer, offset: int) -> None:
        event = Write(self.name, offset, bytes(data))
        self._tape.note(event, partial(super().xWrite, data, offset))

    def xTruncate(self, newsize: int) -> None:
        self._tape.note(Truncate(self.name, newsize), partial(super().xTruncate, newsize))

    def xSync(self, flags: int) -> None:  # noqa: ARG002  # all kinds of sync keep the data
        covers = len(self._tape.events)
        time.sleep(self._tape.sync_seconds)
        self._tape.note(Sync(self.name, covers, self._directory_due))
        self._directory_due = False

    def content(self) -> bytes:
        # Not with open(): closing that would drop the locks this process holds on the file.
        return self.xRead(self.xFileSize(), 0)


def _path(name: str | apsw.URIFilename) -> Path:
    return Path(name.filename() if isinstance(name, apsw.URIFilename) else name)


# From a log to what a power cut leaves.


@dataclass(frozen=True, slots=True)
class CrashState:
    """The files after one power cut: *point* events of the log had happened.

    *acked* are the labels acknowledged by then, in order; *files* has None for a missing file.
    """

    point: int
    acked: tuple[Hashable, ...]
    files: Mapping[str, bytes | None]

    def write_to(self, directory: str | PathLike[str]) -> None:
        """Put the files into *directory*, in place of what an earlier state left of them."""
        folder = Path(directory)
        for name in self.files:
            for suffix in ("", "-wal", "-journal", "-shm"):
                (folder / f"{name}{suffix}").unlink(missing_ok=True)
        for name, content in self.files.items():
            if content is not None:
                (folder / name).write_bytes(content)


def crash_states(log: Sequence[Event], rng: Random, count: int) -> Iterator[CrashState]:
    """Yield *count* random crash states of *log*, in the order of their crash points.

    The same log and seed give the same states. A third of the crash points are just after an `Ack`,
    a third next to a sync or unlink, where most is at stake, and a third anywhere.
    """
    disk = _Disk()
    played = 0
    for point in _crash_points(log, rng, count):
        for event in log[played:point]:
            disk.play(event)
        played = point
        experiments["power losses"] += 1
        yield CrashState(point, tuple(disk.acked), disk.after_crash(rng))


def _crash_points(log: Sequence[Event], rng: Random, count: int) -> list[int]:
    acks = [at + 1 for at, event in enumerate(log) if isinstance(event, Ack)]
    ends = [at for at, event in enumerate(log) if isinstance(event, Sync | Delete)]
    edges = [*ends, *(at + 1 for at in ends)]
    pools = [pool for pool in (acks, edges, range(len(log) + 1)) if pool]
    return sorted(rng.choice(rng.choice(pools)) for _ in range(count))


class _Content:
    """A file's bytes, whatever its name: those on the disk, and the changes that may be."""

    def __init__(self, content: bytes = b"") -> None:
        self.durable = bytearray(content)
        self.pending: deque[tuple[int, Change]] = deque()

    def settle(self, before: int) -> None:
        while self.pending and self.pending[0][0] < before:
            _apply(self.durable, self.pending.popleft()[1])

    def after_crash(self, rng: Random) -> bytes:
        image = bytearray(self.durable)
        for change in _survivors([change for _, change in self.pending], rng):
            _apply(image, change)
        return bytes(image)


class _Entry:
    """What a name stands for in its directory: the durable answer first, then the newer ones."""

    def __init__(self, content: _Content | None = None) -> None:
        self._versions: deque[tuple[int, _Content | None]] = deque([(-1, content)])

    @property
    def content(self) -> _Content:
        content = self._versions[-1][1]
        assert content is not None, "SQLite closes a file before it deletes it"
        return content

    def change(self, at: int, content: _Content | None) -> None:
        self._versions.append((at, content))

    def settle(self, before: int) -> None:
        while len(self._versions) > 1 and self._versions[1][0] < before:
            self._versions.popleft()

    def after_crash(self, rng: Random) -> bytes | None:
        content = rng.choice(self._versions)[1]
        return None if content is None else content.after_crash(rng)


class _Disk:
    """A directory as it is known at one point of a log."""

    def __init__(self) -> None:
        self.acked: list[Hashable] = []
        self._entries: dict[str, _Entry] = {}
        self._played = 0

    def play(self, event: Event) -> None:
        match event:
            case Ack(label):
                self.acked.append(label)
            case Open(file, None):
                self._entries.setdefault(file, _Entry()).change(self._played, _Content())
            case Open(file, bytes(content)):
                self._entries[file] = _Entry(_Content(content))
            case Write(file) | Truncate(file):
                self._entries[file].content.pending.append((self._played, event))
            case Sync(file, covers, directory):
                self._entries[file].content.settle(covers)
                self._settle_entries(self._entries if directory else [file], covers)
            case Delete(file, directory):
                self._entries[file].change(self._played, None)
                self._settle_entries(self._entries if directory else [], self._played + 1)
        self._played += 1

    def after_crash(self, rng: Random) -> dict[str, bytes | None]:
        return {name: entry.after_crash(rng) for name, entry in self._entries.items()}

    def _settle_entries(self, names: Iterable[str], before: int) -> None:
        for name in names:
            self._entries[name].settle(before)


def _apply(image: bytearray, change: Change) -> None:
    match change:
        case Truncate(_, size):
            del image[size:]
            image.extend(bytes(size - len(image)))
        case Write(_, offset, data):
            image.extend(bytes(max(0, offset - len(image))))  # a hole reads as zeros
            image[offset : offset + len(data)] = data


def _survivors(changes: list[Change], rng: Random) -> Iterator[Change]:
    """Choose what is left of unsynced *changes*.

    With a toss of the coin for each, states in which nothing or nearly everything survived would
    hardly come up, and they are where losses and half-done work show best.
    """
    if not changes:
        return
    style = rng.choice(("none", "all", "first", "scattered"))
    if style == "all":
        yield from changes
    elif style == "first":
        whole = rng.randrange(len(changes))
        yield from changes[:whole]
        yield from _torn(changes[whole], rng)
    elif style == "scattered":
        yield from _scattered(changes, rng)


def _scattered(changes: list[Change], rng: Random) -> Iterator[Change]:
    odds = [rng.random() for _ in range(3)]
    for change, fate in zip(
        changes, rng.choices(("whole", "torn", "lost"), odds, k=len(changes)), strict=True
    ):
        if fate == "whole":
            yield change
        elif fate == "torn":
            yield from _torn(change, rng)


def _torn(change: Change, rng: Random) -> Sequence[Change]:
    """Return what is left of a change that power loss caught: its first sectors, or any of them."""
    sectors = _sectors(change) if isinstance(change, Write) else [change]
    if rng.random() < 0.5:
        return sectors[: rng.randrange(len(sectors) + 1)]
    return [sector for sector in sectors if rng.random() < 0.5]


def _sectors(write: Write) -> list[Write]:
    size = len(write.data)
    cuts = [0, *range(SECTOR - write.offset % SECTOR, size, SECTOR), size]
    return [
        Write(write.file, write.offset + start, write.data[start:end])
        for start, end in itertools.pairwise(cuts)
    ]
