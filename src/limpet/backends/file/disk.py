"""Files made durable, locks between processes, and what the system's errors mean."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from limpet.backends.file.names import LOCKS, PRIVATE
from limpet.errors import (
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreNotFound,
    StoreReadOnly,
    StoreUnavailable,
)

try:
    import fcntl
except ImportError as error:
    msg = "A file: store needs the file locks of Unix, and there are none here. Use SQLite."
    raise StoreError(msg) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "Lock",
    "explain",
    "make_directories",
    "make_directory",
    "make_private",
    "note",
    "read_whole",
    "sync",
    "sync_directory",
    "write_all",
    "write_file",
    "write_new",
]

P = ParamSpec("P")
R = TypeVar("R")

#: What the system says when a disk, a quota or a limit on files is full.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR}

#: What most files have less of that are read whole.
_SMALL = 65536

# macOS has a sync that reaches the disk, and others that do not.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def write_all(handle: int, data: bytes) -> None:
    """Write *data*; the system may take it in portions."""
    written = os.write(handle, data)
    while written < len(data):
        written += os.write(handle, memoryview(data)[written:])


def sync(handle: int) -> None:
    """Return when what was written survives power loss."""
    if _FULL_SYNC is not None:
        fcntl.fcntl(handle, _FULL_SYNC)
    else:
        os.fdatasync(handle)


def sync_directory(path: str) -> None:
    """The same for names: a file that is synced and has no name is gone."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(path: str) -> None:
    """Make a directory that is its owner's only, unless there is one."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    sync_directory(os.path.dirname(path))


def make_directories(path: str) -> None:
    """The same with those above it, for what need not be durable."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_directories(os.path.dirname(path))
        make_directories(path)


def make_private(root: str) -> None:
    """Make the directory for what is not to be kept under version control."""
    make_directory(os.path.join(root, PRIVATE))
    ignore = os.path.join(root, PRIVATE, ".gitignore")
    if not os.path.exists(ignore):
        handle = os.open(ignore, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            write_all(handle, b"*\n")
        finally:
            os.close(handle)
    make_directory(os.path.join(root, LOCKS))


def write_file(path: str, data: bytes, *, durable: bool = False) -> None:
    """Put *data* in the place of what is at *path*: all of it, or nothing changes.

    For one caller at a time.
    """
    directory, name = os.path.split(path)
    spare = os.path.join(directory, f".{name}.new")
    handle = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(handle, data)
        if durable:
            sync(handle)
    finally:
        os.close(handle)
    os.replace(spare, path)
    if durable:
        sync_directory(directory)


def write_new(path: str, pieces: Iterable[bytes]) -> None:
    """Make a file of *pieces*, durably. Never over another."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for piece in pieces:
            write_all(handle, piece)
        sync(handle)
    finally:
        os.close(handle)
    sync_directory(os.path.dirname(path))


def read_whole(path: str) -> bytes | None:
    """All that is in a file, which is small as a rule; None if it is not there."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        data = os.read(handle, _SMALL)
        while data and len(data) % _SMALL == 0:  # as a rule one call is enough
            more = os.read(handle, _SMALL)
            if not more:
                break
            data += more
        return data
    finally:
        os.close(handle)


def note(text: str, *values: object) -> None:
    """Leave a word in the log about what was found and set right."""
    import logging  # noqa: PLC0415 - rarely needed

    logger = logging.getLogger("limpet")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())  # a library is silent until it is asked
    logger.warning(text, *values)


# -- locks -----------------------------------------------------------------------------------------


class Lock:
    """Keeps out the other threads of this process, and all other processes.

    The lock between processes is ``flock`` on a file that is kept open and never removed. It ends
    with its process, however that ends. A fork must find it free: the child would share it.

    An interrupt (Ctrl-C) at any point leaves it free.
    """

    def __init__(self, root: str, number: int, *, timeout: float, readonly: bool) -> None:
        self._root = root
        self._path = os.path.join(root, LOCKS, f"{number:02}")
        self._timeout = timeout
        self._readonly = readonly
        self._handle = -1
        self._inode = (0, 0)
        self.closed = False
        self.mutex = threading.Lock()

    def alone(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What *work* returns, done with all others kept out.

        No context manager: an interrupt might come before its ``__exit__`` has begun.
        """
        deadline = time.monotonic() + self._timeout
        with self.mutex:  # not for ever, unless *work* is: to wait for the lock has a deadline
            try:
                self._lock(deadline)
                return work(*args, **kwargs)
            finally:
                if self._handle >= 0:
                    fcntl.flock(self._handle, fcntl.LOCK_UN)

    def _lock(self, deadline: float) -> None:
        if self.closed:
            msg = f"The store {self._root} is closed. Open it again, or close it later."
            raise StoreClosed(msg)
        while self._open():
            self._wait(deadline)
            if self._is_the_one():
                return
            self.let_go()

    def _open(self) -> bool:
        """Open the lock's file. False: there is none, and so nobody who writes."""
        if self._handle >= 0:
            return True
        flags = os.O_RDONLY if self._readonly else os.O_RDWR | os.O_CREAT
        for _ in range(2):
            try:
                self._handle = os.open(self._path, flags | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                if self._readonly:
                    return False
                make_private(self._root)
            else:
                opened = os.fstat(self._handle)
                self._inode = (opened.st_dev, opened.st_ino)
                return True
        raise FileNotFoundError(errno.ENOENT, "The lock cannot be made", self._path)

    def _wait(self, deadline: float) -> None:
        """Take the lock, asking again in short, uneven naps: flock itself knows no timeout."""
        while True:
            try:
                return fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise self._busy() from None
                time.sleep(random.uniform(0.0001, 0.001))  # noqa: S311 - jitter, not a secret

    def _is_the_one(self) -> bool:
        """Whether the file we have locked is still the one that others find."""
        try:
            there = os.stat(self._path)
        except FileNotFoundError:  # `git clean`, perhaps
            return False
        return (there.st_dev, there.st_ino) == self._inode

    def let_go(self) -> None:
        """Close the lock's file."""
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            os.close(handle)

    def _busy(self) -> StoreBusy:
        return StoreBusy(
            f"Another process held the write lock on {self._root} for longer than the timeout. "
            "Look for one that hangs, or open the store with a larger timeout=."
        )


# -- errors ----------------------------------------------------------------------------------------


def explain(error: OSError, path: str) -> StoreError:
    """*error* as one of ours, with what to do about it."""
    if error.errno in _NO_ROOM:
        return StoreFull(
            f"There is no room left for {path}, and the write was not kept. Everything "
            "acknowledged before is safe. Free some space and try again."
        )
    if error.errno in _NOT_ALLOWED:
        return StoreReadOnly(
            f"{path} cannot be written or read ({error.strerror}): a file, a directory or the file "
            "system is closed to this user. Change owner or mode, or open it with readonly=True."
        )
    if error.errno in _NOT_THERE:
        return StoreNotFound(
            f"The store {path} is no longer there: {error.strerror} ({error.filename}). "
            "Look for who has moved or removed it."
        )
    return StoreUnavailable(
        f"The disk under {path} failed: {error}. The write may not be there; "
        "check the disk before trying again."
    )
