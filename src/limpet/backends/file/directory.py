"""The directory of a ``file:`` store: what lies where, and under which names.

::

    state/
      limpet.json                               says that this is a store, and in which format
      default/conversation/alice.jsonl            a journal: tenant, kind, id
      .limpet/                                  this machine's own, and not for version control:
        locks/00 … 15                             whoever writes a journal holds one of them
        journals/default/conversation/alice.lease   who has the right to write it
        journals/default/conversation/alice.new     a new form of the journal, until it is whole

An id that is a good file name is one: ``alice.jsonl``. Any other becomes what is readable of it and
a hash: ``acme-support~5f2b….jsonl``. Names are in small letters only, so that they stay apart where
case does not count; the true key is in the file's first line.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import zlib
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from limpet.backends.contract import Key
from limpet.backends.file import disk
from limpet.backends.file.format import FORMAT, MARKER_TEXT, decode_marker
from limpet.backends.file.reading import opened
from limpet.errors import NotAStore, SchemaTooNew, StoreCorrupt, StoreNotFound, StoreReadOnly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.backends.file.locks import Lock

__all__ = [
    "LOCKS",
    "STRIPES",
    "SUFFIX",
    "Directory",
    "Paths",
    "make_private",
    "misplaced",
    "name_of",
    "paths_of",
]

#: Says that a directory is a store.
MARKER = "limpet.json"

#: What is nobody's business but this machine's.
PRIVATE = ".limpet"
LOCKS = f"{PRIVATE}/locks"
LEASES = f"{PRIVATE}/journals"

#: Every journal ends so, and nothing else does.
SUFFIX = ".jsonl"

#: How many locks all journals share. Each costs an open file. Part of the format: releases that
#: count differently would not keep each other out.
STRIPES = 16

# Names that Windows keeps for itself, whatever follows the dot.
_FREE = r"(?!(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$))"
_DIRECTORY = re.compile(_FREE + r"[a-z0-9_][a-z0-9_-]{0,79}")
_FILE = re.compile(_FREE + r"[a-z0-9_][a-z0-9_.@+-]{0,79}")

#: A directory, when a file last came there or went, and the ids that were there.
_NOTHING_LISTED: tuple[str, int, list[str]] = ("", 0, [])


# -- names -----------------------------------------------------------------------------------------


class Paths(NamedTuple):
    """The files of one journal; *name* is ``tenant/kind/id``, as they are written there."""

    name: str
    journal: str
    lease: str
    new: str
    stripe: int


@lru_cache(maxsize=4096)
def paths_of(root: str, name: str) -> Paths:
    """The files of the journal of that *name*."""
    private = os.path.join(root, LEASES, name)
    stripe = zlib.crc32(name.encode()) % STRIPES
    return Paths(
        name, os.path.join(root, name + SUFFIX), private + ".lease", private + ".new", stripe
    )


@lru_cache(maxsize=4096)
def name_of(key: Key) -> str:
    """The name of the files of *key*."""
    tenant, kind = _name(key.tenant, _DIRECTORY), _name(key.kind, _DIRECTORY)
    return f"{tenant}/{kind}/{_name(key.id, _FILE)}"


def _name(text: str, plain: re.Pattern[str]) -> str:
    if plain.fullmatch(text):
        return text
    readable = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].rstrip("-")
    return f"{readable}~{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def misplaced(path: str, key: Key) -> StoreCorrupt:
    """The error for a file at *path* that is the journal of *key*, and does not belong there."""
    return StoreCorrupt(
        f"{path} is the journal of {key.kind} {key.id!r} of tenant {key.tenant!r}, and belongs "
        f"into {name_of(key)}{SUFFIX}: it was renamed or copied. Nothing was changed. Put it back "
        "there, or move it out of the store."
    )


def names(directory: str, suffix: str = SUFFIX) -> list[str]:
    """The names of what is in a *directory*, without their *suffix*."""
    try:
        found = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name.removesuffix(suffix) for name in found if name.endswith(suffix) and name[0] != "."]


# -- the directory ---------------------------------------------------------------------------------


class Directory:
    """The directory *root*, and the journals in it by their names."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._known: dict[str, Key] = {}  # of names that do not tell them
        self._checked: set[tuple[str, ...]] = set()  # tenants and kinds without a link above them
        self._listed = _NOTHING_LISTED

    def paths(self, key: Key) -> Paths:
        """The files of one journal. `NotAStore` if a directory above them is a symbolic link."""
        paths = paths_of(self.root, name_of(key))
        if key[:2] not in self._checked:
            directory = os.path.dirname(paths.name)
            self._refuse_links(directory)
            if all(os.path.isdir(os.path.join(self.root, top, directory)) for top in ("", LEASES)):
                self._checked.add(key[:2])
        return paths

    def _refuse_links(self, directory: str | None = None) -> None:
        """Whoever has placed a link above a ``tenant/kind`` could have us write anywhere."""
        paths = [PRIVATE, LOCKS, LEASES]
        if directory is not None:
            tenant = os.path.dirname(directory)
            paths += [tenant, directory, f"{LEASES}/{tenant}", f"{LEASES}/{directory}"]
        for path in paths:
            if os.path.islink(full := os.path.join(self.root, path)):
                raise disk.linked(full)

    # -- opening -----------------------------------------------------------------------------------

    def create(self, lock: Lock) -> None:
        """Make it a store, with all directories above it, unless it is something else already."""
        missing = []
        path = self.root
        while not os.path.lexists(path):
            missing.append(path)
            path = os.path.dirname(path)
        if missing and not os.path.isdir(path):
            msg = f"{self.root} cannot be made: {path} is not a directory. Name another place."
            raise NotAStore(msg)
        for path in reversed(missing):
            disk.make_directory(path)
        if os.path.isdir(self.root) and self._is_unused():
            self._refuse_links()
            with suppress(PermissionError):
                # Whoever made the directory may have died before that was durable.
                disk.sync_directory(os.path.dirname(self.root))
            lock.run(self._write_marker)

    def _is_unused(self) -> bool:
        """Whether there is nothing but hidden files, such as version control keeps."""
        return all(name.startswith(".") for name in os.listdir(self.root))

    def _write_marker(self) -> None:
        if self._is_unused():
            disk.replace_file(os.path.join(self.root, MARKER), MARKER_TEXT, durable=True)

    def check(self, *, readonly: bool) -> None:
        """Refuse what is not there, not ours, too new for us, or not to be written."""
        root = self.root
        if os.path.lexists(root) and not os.path.isdir(root):
            msg = (
                f"{root} is a file, and a file: store is a directory. Name a directory; "
                f"if this is a SQLite store, open it as sqlite:{root}."
            )
            raise NotAStore(msg)
        if not os.path.isdir(root) or self._is_unused():
            msg = f"There is no store at {root}. Check the name."
            raise StoreNotFound(msg, hint="To begin one there, open it with create=True.")
        raw = disk.read_file(os.path.join(root, MARKER))
        try:
            marker = None if raw is None else decode_marker(raw)
        except msgspec.DecodeError:
            marker = None
        if marker is None or marker.limpet != "store":
            msg = (
                f"{root} is no store: it has files in it, and no {MARKER} that says so. Nothing "
                "was changed. Name a new or an empty directory. If this was a store, make that "
                f"file again, with this line in it: {MARKER_TEXT.decode().strip()}"
            )
            raise NotAStore(msg)
        if marker.format > FORMAT:
            msg = (
                f"{root} has format {marker.format}, but this version reads up to {FORMAT}.\n"
                "A newer release wrote to this directory. "
                "Upgrade limpet, or open a copy made before the upgrade."
            )
            raise SchemaTooNew(msg)
        if not readonly and not os.access(root, os.W_OK | os.X_OK):
            msg = (
                f"{root} cannot be written: the directory or the file system is read-only for this "
                "user. Change owner or mode, or open it with readonly=True."
            )
            raise StoreReadOnly(msg)

    # -- what is in it -----------------------------------------------------------------------------

    def kinds(self) -> list[str]:
        """The directories with journals, as ``tenant/kind``."""
        return _kinds(self.root)

    def keys(self, kind: str) -> Iterator[Key]:
        """The keys of all journals in such a directory."""
        for name in names(os.path.join(self.root, kind)):
            full = f"{kind}/{name}"
            key = Key(*full.split("/")) if "~" not in full else self._known.get(full)
            if key is None:  # a hash does not tell it
                paths = paths_of(self.root, full)
                with opened(paths.journal) as file:
                    if file is None:
                        continue  # it has gone meanwhile
                    key = file.header.key
                if name_of(key) != full:
                    raise misplaced(paths.journal, key)
                self._known[full] = key
            yield key

    def ids(self, tenant: str, kind: str, *, again: bool) -> list[str]:
        """The ids of one tenant and kind, in order: of code points, which is that of UTF-8.

        *again*: for a further page, for which the last listing does if no file has come or gone.
        """
        directory = os.path.dirname(name_of(Key(tenant, kind, "any")))
        self._refuse_links(directory)
        try:
            changed = os.stat(os.path.join(self.root, directory)).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            changed = 0
        if again and self._listed[:2] == (directory, changed):
            return self._listed[2]
        ids = sorted(key.id for key in self.keys(directory))
        self._listed = directory, changed, ids
        return ids

    def forget_ids(self) -> None:
        """There was the last page: do not keep the ids of them all."""
        self._listed = _NOTHING_LISTED

    def all_paths(self) -> Iterator[Paths]:
        """The files of everything that has a journal or a lease."""
        self._refuse_links()
        leases = os.path.join(self.root, LEASES)
        for kind in sorted({*self.kinds(), *_kinds(leases)}):
            journals = names(os.path.join(self.root, kind))
            for name in sorted({*journals, *names(os.path.join(leases, kind), ".lease")}):
                yield paths_of(self.root, f"{kind}/{name}")

    def links(self) -> list[str]:
        """Symbolic links in the place of directories with journals, which are not followed."""
        inside = (os.path.join(glob.escape(self.root), depth) for depth in ("*", "*/*"))
        found = (path for pattern in inside for path in glob.iglob(pattern))
        return sorted(path for path in found if os.path.islink(path) and os.path.isdir(path))

    def unfinished(self) -> Iterator[Paths]:
        """The files of journals of which a writer may have left a new form when it was killed."""
        self._refuse_links()
        leases = os.path.join(self.root, LEASES)
        for kind in _kinds(leases):
            for name in names(os.path.join(leases, kind), ".new"):
                yield paths_of(self.root, f"{kind}/{name}")


def _kinds(root: str) -> list[str]:
    """The directories two levels below *root*, as ``tenant/kind``."""
    found = [""]
    for _ in range(2):
        above, found = found, []
        for path in above:
            with suppress(FileNotFoundError), os.scandir(os.path.join(root, path)) as inside:
                directories = [
                    one.name
                    for one in inside
                    if one.is_dir(follow_symlinks=False) and one.name[0] != "."
                ]
                found += [f"{path}/{name}".lstrip("/") for name in sorted(directories)]
    return found


def make_private(root: str) -> None:
    """Make the directory for what is not to be kept under version control."""
    disk.make_directory(os.path.join(root, PRIVATE))
    ignore = os.path.join(root, PRIVATE, ".gitignore")
    if not os.path.exists(ignore):
        handle = disk.open_file(ignore, os.O_WRONLY | os.O_CREAT)
        try:
            disk.write_all(handle, b"*\n")
        finally:
            os.close(handle)
    disk.make_directory(os.path.join(root, LOCKS))
