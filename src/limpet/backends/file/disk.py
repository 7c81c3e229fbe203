"""What is asked of the file system: writes that survive power loss, and what its errors mean."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING

from limpet.backends.directories import make_directory, sync_directory
from limpet.errors import (
    NotAStore,
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
    from collections.abc import Iterable

__all__ = [
    "GONE",
    "NotSynced",
    "explain",
    "linked",
    "make_directories",
    "make_directory",
    "now",
    "open_file",
    "read_file",
    "remove",
    "replace_file",
    "sync",
    "sync_directory",
    "write_all",
    "write_new",
]

#: What the system says when a disk, a quota or a limit on files is full.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
#: What is raised where a file, or a directory above it, is no longer there.
GONE = (FileNotFoundError, NotADirectoryError)

#: What most files have less of that are read whole.
_SMALL = 65536

# macOS has a sync that reaches the disk, and others that do not.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def now() -> int:
    """This machine's clock, in microseconds."""
    return time.time_ns() // 1000


# -- files -----------------------------------------------------------------------------------------


def open_file(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a file of the store; one that is made is its owner's only.

    `NotAStore` for a symbolic link: whoever has placed it there could have us write anywhere.
    """
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise linked(path) from error


def linked(path: str) -> NotAStore:
    """The error for a symbolic link at *path*."""
    return NotAStore(
        f"{path} is a symbolic link, and within its directory a file: store follows none. "
        "Nothing was changed. Put what it leads to there, or remove the link."
    )


def read_file(path: str) -> bytes | None:
    """All that is in a file, which is small as a rule; None if it is not there."""
    try:
        handle = open_file(path)
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


def replace_file(path: str, data: bytes, *, durable: bool = False) -> None:
    """Put *data* in the place of what is at *path*: all of it, or nothing changes.

    For one caller at a time.
    """
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.new")
    handle = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(handle, data)
        if durable:
            sync(handle)
    finally:
        os.close(handle)
    os.replace(temporary, path)
    if durable:
        sync_directory(directory)


def write_new(path: str, pieces: Iterable[bytes]) -> None:
    """Make a file of *pieces*, durably. Never over another."""
    handle = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        for piece in pieces:
            write_all(handle, piece)
        sync(handle)
    finally:
        os.close(handle)
    sync_directory(os.path.dirname(path))


def remove(path: str) -> bool:
    """Remove a file. False if it was not there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


# -- directories -----------------------------------------------------------------------------------


def make_directories(path: str) -> None:
    """The same with those above it, for what need not be durable."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_directories(os.path.dirname(path))
        make_directories(path)


# -- errors ----------------------------------------------------------------------------------------


class NotSynced(OSError):
    """What was written could not be synced: nobody knows whether it stays."""


def explain(error: OSError, path: str) -> StoreError:
    """*error* as one of ours, with what to do about it."""
    if isinstance(error, NotSynced):
        return StoreUnavailable(
            f"The disk under {path} failed while a write was being synced ({error.strerror}). The "
            "write may be there after the next start, or may be not. Check the disk, then repeat "
            "it under the same id: then it is there once."
        )
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
    if isinstance(error, GONE):
        return StoreNotFound(
            f"The store {path} is no longer there: {error.strerror} ({error.filename}). "
            "Look for who has moved or removed it."
        )
    return StoreUnavailable(
        f"The disk under {path} failed: {error}. The write may not be there; "
        "check the disk before trying again."
    )
