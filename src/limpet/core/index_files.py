"""Where derived files lie: one directory of this user's, with the indexes of all stores.

An index holds what people wrote, so it must not outlive its store. Beside the indexes of a store
lies a note of where that store is; those whose store is gone are removed when the next index comes
to be, or a process uses its first, and so are those without a note. Other files are left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.core.codec import Codec

if TYPE_CHECKING:
    from limpet.backends.contract import Backend

__all__ = ["Cached", "cached", "is_private", "own_file", "prune"]

#: Which store, which part of it; what it is; and SQLite's own beside it.
_OURS = re.compile(
    r"([0-9a-f]{32})(?:-[0-9a-f]{32})?\."
    r"(?:(?:search|memory)(?:-wal|-shm|-journal)?|store(?:\.new\d+)?)"
)
_NOTE = ".store"
#: How a note begins, of a store that is here and of one on a server.
_HERE, _THERE = b"path ", b"url "

_INDEXES = (".search", ".memory")

#: Directories that this process has looked through.
_SEEN: set[str] = set()


class Cached(Struct, frozen=True):
    """What is in the directory: indexes, of so many stores, of which so many are gone; bytes."""

    directory: str
    indexes: int
    stores: int
    gone: int
    size: int


def own_file(backend: Backend, suffix: str, *parts: str, create: bool = True) -> str | None:
    """The file for *backend*, or *parts* of what it holds, which only this user may read.

    None if there can be none; or if there is none, unless it is to be made.
    """
    directory = _directory()
    if directory is None or not backend.blocks:
        return None
    place: Any = getattr(backend, "path", None)
    note = _THERE + os.fsencode(backend.url)
    if isinstance(place, (str, os.PathLike)):
        # Others' backends may call something else a path: only what is here can be missed here.
        where = os.fsencode(os.path.realpath(place))
        note = (_HERE if os.path.lexists(where) else _THERE) + where
    store = os.path.join(directory, _digest(note.partition(b" ")[2]))
    part = f"-{_digest(os.fsencode(chr(0).join(parts)))}" if parts else ""
    path = f"{store}{part}.{suffix}"
    if not create and not os.path.exists(path):
        return None
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        # Before the index: what has no note is removed.
        if _read(store + _NOTE) != note:
            beside = f"{store}{_NOTE}.new{threading.get_native_id()}"
            handle = os.open(beside, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
            with open(handle, "wb") as file:
                file.write(note)
            os.replace(beside, store + _NOTE)
        new = _create(path)
    except OSError:
        return None
    if new or directory not in _SEEN:
        _SEEN.add(directory)
        prune(directory)
    return path


def is_private(backend: Backend, codec: Codec) -> bool:
    """Whether nothing of a store may be written beside it, because somebody took care to encrypt.

    A codec of the user's own may be there for that, too.
    """
    return backend.private or type(codec) is not Codec


def _directory() -> str | None:
    cache = os.environ.get("LIMPET_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return None if cache == "none" else cache or os.path.join(base, "limpet")


def _digest(name: bytes) -> str:
    return hashlib.blake2b(name, digest_size=16).hexdigest()


def _create(path: str) -> bool:
    """Make the file, for this user alone; False if it is there."""
    try:
        # One that is there is not opened: closing it would drop the locks that SQLite has on it.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(path) from None
        return False
    return True


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


# -- what is there ---------------------------------------------------------------------------------


def prune(directory: str) -> None:
    """Remove the indexes of stores that are not there any more."""
    for store, files in _stores(directory).items():
        if _is_gone(os.path.join(directory, store)):
            # The note last: who comes meanwhile would else find an index without one.
            for name in sorted(files, key=lambda name: name.endswith(_NOTE)):
                with contextlib.suppress(OSError):  # another was faster, or has it open
                    os.remove(os.path.join(directory, name))


def cached() -> Cached | None:
    """What there is now; None if there is nothing."""
    directory = _directory()
    stores = _stores(directory) if directory is not None else {}
    if directory is None or not stores:
        return None
    indexes = [name for names in stores.values() for name in names if name.endswith(_INDEXES)]
    gone = sum(_is_gone(os.path.join(directory, store)) for store in stores)
    size = 0
    for name in [name for names in stores.values() for name in names]:
        with contextlib.suppress(OSError):
            size += os.stat(os.path.join(directory, name)).st_size
    return Cached(directory, len(indexes), len(stores), gone, size)


def _stores(directory: str) -> dict[str, list[str]]:
    """The names of our files in *directory*, by the store that they are of."""
    try:
        names = os.listdir(directory)
    except OSError:
        return {}
    found: dict[str, list[str]] = {}
    for name in names:
        if ours := _OURS.fullmatch(name):
            found.setdefault(ours[1], []).append(name)
    return found


def _is_gone(store: str) -> bool:
    note = _read(store + _NOTE)
    if note is None:
        return True
    return note.startswith(_HERE) and not os.path.lexists(note.removeprefix(_HERE))
