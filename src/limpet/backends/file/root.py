"""The directory of a ``file:`` store: making it, knowing it again, and what lies in it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from limpet.backends.file import disk
from limpet.backends.file.lines import FORMAT
from limpet.backends.file.names import LEASES, SUFFIX
from limpet.errors import NotAStore, SchemaTooNew, StoreNotFound, StoreReadOnly

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check_root", "directories", "lease_names", "make_root", "names"]

#: Says that a directory is a store.
MARKER = "limpet.json"


class Marker(Struct):
    """What is in that file."""

    limpet: str
    format: int


_MARK = msgspec.json.encode(Marker("store", FORMAT)) + b"\n"


def make_root(root: str, timeout: float) -> None:
    """Make *root* a store, with all directories above it, unless it is something else already."""
    missing = []
    path = root
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    if missing and not os.path.isdir(path):
        msg = f"{root} cannot be made: {path} is not a directory. Name another place."
        raise NotAStore(msg)
    for path in reversed(missing):
        disk.make_directory(path)
    if os.path.isdir(root) and not _is_used(root):
        _mark(root, timeout)


def _is_used(root: str) -> bool:
    """Whether there is anything in *root* but hidden files, such as version control keeps."""
    return any(not name.startswith(".") for name in os.listdir(root))


def _mark(root: str, timeout: float) -> None:
    with suppress(PermissionError):
        # Whoever made the directory may have died before that was durable.
        disk.sync_directory(os.path.dirname(root))
    lock = disk.Lock(root, 0, timeout=timeout, readonly=False)
    try:
        lock.alone(_write_marker, root)
    finally:
        lock.let_go()


def _write_marker(root: str) -> None:
    if not _is_used(root):
        disk.write_file(os.path.join(root, MARKER), _MARK, durable=True)


def check_root(root: str, *, readonly: bool) -> None:
    """Refuse what is not there, not ours, too new for us, or not to be written."""
    if os.path.lexists(root) and not os.path.isdir(root):
        msg = (
            f"{root} is a file, and a file: store is a directory. Name a directory; "
            f"if this is a SQLite store, open it as sqlite:{root}."
        )
        raise NotAStore(msg)
    if not os.path.isdir(root) or not _is_used(root):
        msg = f"There is no store at {root}. Check the name, or open it with create=True."
        raise StoreNotFound(msg)
    _check_marker(root)
    if not readonly and not os.access(root, os.W_OK | os.X_OK):
        msg = (
            f"{root} cannot be written: the directory or the file system is read-only for this "
            "user. Change owner or mode, or open it with readonly=True."
        )
        raise StoreReadOnly(msg)


def _check_marker(root: str) -> None:
    raw = disk.read_whole(os.path.join(root, MARKER))
    try:
        marker = None if raw is None else msgspec.json.decode(raw, type=Marker)
    except msgspec.DecodeError:
        marker = None
    if marker is None or marker.limpet != "store":
        msg = (
            f"{root} is no store: it has files in it, and no {MARKER} that says so. Nothing was "
            "changed. Name a new or an empty directory. If this was a store, make that file again, "
            f"with this line in it: {_MARK.decode().strip()}"
        )
        raise NotAStore(msg)
    if marker.format > FORMAT:
        msg = (
            f"{root} has format {marker.format}, but this version reads up to {FORMAT}.\n"
            "A newer release wrote to this directory. "
            "Upgrade limpet, or open a copy made before the upgrade."
        )
        raise SchemaTooNew(msg)


# -- what lies in it -------------------------------------------------------------------------------


def directories(root: str) -> Iterator[str]:
    """The directories with journals, as ``tenant/kind``."""
    for tenant in _inside(root):
        for kind in _inside(os.path.join(root, tenant)):
            yield f"{tenant}/{kind}"


def _inside(path: str) -> list[str]:
    try:
        with os.scandir(path) as found:
            return sorted(one.name for one in found if one.is_dir() and one.name[0] != ".")
    except FileNotFoundError:
        return []


def names(root: str, directory: str, suffix: str = SUFFIX) -> list[str]:
    """The names of what is in one of them, without their *suffix*."""
    try:
        found = os.listdir(os.path.join(root, directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name.removesuffix(suffix) for name in found if name.endswith(suffix) and name[0] != "."]


def lease_names(root: str, directory: str) -> set[str]:
    """The names of those on which there are leases, or have been."""
    return set(names(os.path.join(root, LEASES), directory, ".lease"))
