"""Backups: all of a store in another place, checked, also while the store is in use; and back.

    saved = backup("agents.db", "backups/monday.db")
    restore("backups/monday.db", "agents.db", replace=True)

A backup is a store like any other, of any kind: it can be opened, looked at and copied. Of a SQLite
store into a file it is one moment of all of it, the user's own tables too; elsewhere each journal
is copied as it is at a moment of its own. It is there whole or not at all: what is written goes by
another name until everything in it was read.

What is restored takes the place of a store by one rename. The store that was there is kept beside
it, with its log: a log that stayed behind would be read into the file that was restored.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.backends.decide import holder_for_people
from limpet.backends.directories import make_parents, sync_directory
from limpet.backends.url import connect, find, safe_url
from limpet.core.leases import is_dead
from limpet.errors import (
    InvalidURL,
    LimpetError,
    StoreBusy,
    StoreCorrupt,
    StoreExists,
    StoreReadOnly,
)
from limpet.transfer.copy import Survey, check, copy, heads

if TYPE_CHECKING:
    from limpet.backends.contract import Backend, Head

__all__ = ["Saved", "backup", "restore"]


#: Journals that an error names.
NAMED = 5


class Saved(Struct, frozen=True, kw_only=True):
    """What was written: where, and how much; what was there before is now at *replaced*."""

    url: str
    journals: int
    entries: int
    size: int  # bytes
    replaced: str | None = None


def backup(source: str | os.PathLike[str], target: str, *, replace: bool = False) -> Saved:
    """Write all of the store *source* to a new store, *target*, and check it.

    Nobody has to wait for it. `StoreExists` if there is one already, unless it is to be *replaced*;
    `StoreCorrupt` if not all of *source* can be read. Then there is no new backup, and an earlier
    one is as it was.
    """
    place = _Place(target)
    place.check(source, replace=replace, hint="Name another, or replace it with --replace.")
    saved = place.fill(source)
    if saved.replaced is not None:
        _remove(place, saved.replaced)
    return Saved(url=place.url, journals=saved.journals, entries=saved.entries, size=saved.size)


def restore(source: str | os.PathLike[str], target: str, *, replace: bool = False) -> Saved:
    """Make *target* what the backup *source* is, and check it.

    `StoreExists` if there is a store already, unless it is to be *replaced*: it is then kept beside
    the new one. A server's store must be empty. `StoreBusy` if a program has it open, as far as
    that can be known. Nothing has changed then, nor after any other error.
    """
    place = _Place(target)
    hint = "Replace it with --replace; it is kept beside the restored one."
    place.check(source, replace=replace, hint=hint)
    place.check_leases()
    return place.fill(source)


class _Place:
    """Where a store is to be written."""

    def __init__(self, target: str) -> None:
        self._kind, self._target = find(target)
        self._path = self._kind.path_of(self._target)
        self.url = safe_url(self._target)
        self.endings = ("", *self._kind.beside)

    @property
    def _is_there(self) -> bool:
        return self._path is not None and os.path.lexists(self._path)

    def check(self, source: str | os.PathLike[str], *, replace: bool, hint: str) -> None:
        """Raise if it must not be written to."""
        other, url = find(source)
        path = other.path_of(url)
        if self._path is None:
            if url == self._target:
                raise InvalidURL(f"{self.url} is the store itself.")
            with closing(connect(self._target)) as store:
                if store.kinds():
                    msg = (
                        f"There is something in {self.url} already, and it was left alone. Name an "
                        "empty place: another database, schema, prefix or table."
                    )
                    raise StoreExists(msg)
        elif self._is_there:
            if path is not None and os.path.exists(path) and os.path.samefile(path, self._path):
                raise InvalidURL(f"{self.url} is the store itself.")
            if not replace:
                raise StoreExists(f"{self._path} is there already, and was left alone. {hint}")

    def check_leases(self) -> None:
        """`StoreBusy` if somebody works on a journal of the store that is there."""
        if not self._is_there or self._kind.beside:  # `alone` knows it better
            return
        held: list[Head] = []
        with suppress(LimpetError), closing(self._open(self._path, readonly=True)) as store:
            held += (head for head in heads(store, (), ()) if head.lease)
        for head in held:
            if head.lease is not None and not is_dead(head.lease.holder):
                msg = (
                    f"{self.url} is in use: {head.key.kind} {head.key.id!r} is held by "
                    f"{holder_for_people(head.lease.holder)}. Nothing was changed. Stop whoever "
                    "works with it, and try again."
                )
                raise StoreBusy(msg)

    def _open(self, path: str | None, **options: Any) -> Backend:
        return self._kind(path, **options)  # type: ignore[arg-type] # of a kind with a path

    def fill(self, source: str | os.PathLike[str]) -> Saved:
        """Write *source* there, in one act."""
        if self._path is None:
            with (
                closing(connect(source, create=False, readonly=True)) as old,
                closing(connect(self._target)) as new,
            ):
                _copy(old, new)
                found = check(new)
            return _saved(self.url, found)
        make_parents(self._path)
        new_path = f"{self._path}.new-{os.urandom(4).hex()}"
        try:
            with self._kind.alone(self._path) if self._is_there else nullcontext():
                found = self._write(source, new_path)
                return _saved(self.url, found, self._put_in_place(self._path, new_path))
        finally:
            _remove(self, new_path)

    def _write(self, source: str | os.PathLike[str], new: str) -> Survey:
        """Write *source* to the path *new*, and read it."""
        kind, url = find(source)
        path = kind.path_of(url)
        if kind is not self._kind or path is None or not kind.write_snapshot(path, new):
            with (
                closing(connect(source, create=False, readonly=True)) as old,
                closing(self._open(new)) as target,
            ):
                _copy(old, target)
        try:
            with closing(self._open(new, create=False, readonly=True)) as store:
                return check(store)
        except StoreReadOnly:
            return Survey()  # of an older release, which alone can read it as it is
        finally:
            for ending in self._kind.beside:  # nobody has written to it
                _remove(self, new + ending)

    def _put_in_place(self, path: str, new: str) -> str | None:
        """Give *new* the name *path*; where what was there is now.

        At any moment all of it has a name, with its log; and no log is beside a file that it does
        not belong to.
        """
        there = [ending for ending in self.endings if os.path.lexists(path + ending)]
        aside = None
        if there:
            number = 1
            while any(os.path.lexists(f"{path}.replaced-{number}{e}") for e in self.endings):
                number += 1
            aside = f"{path}.replaced-{number}"
            for ending in there:
                try:
                    os.link(path + ending, aside + ending)
                except OSError:  # a directory, or a file system without links
                    os.rename(path + ending, aside + ending)
            sync_directory(os.path.dirname(path))
            for ending in there:
                if ending and os.path.lexists(path + ending):
                    os.remove(path + ending)
        os.replace(new, path)
        sync_directory(os.path.dirname(path))
        return aside


def _copy(old: Backend, new: Backend) -> None:
    """Copy all journals, or raise."""
    problems = [one for one in copy(old, new) if not one.ok]
    if problems:
        named = "; ".join(f"{p.key.kind}/{p.key.id}: {p.why}" for p in problems[:NAMED])
        more = f" (and {len(problems) - NAMED:,} more)" if len(problems) > NAMED else ""
        msg = (
            f"Not all of {old.url} can be read: {named}{more}. Do not take {new.url} for a backup. "
            f"`limpet salvage {old.url} NEW` writes what can be read to a new store."
        )
        raise StoreCorrupt(msg)


def _saved(url: str, found: Survey, replaced: str | None = None) -> Saved:
    return Saved(
        url=url,
        journals=found.journals,
        entries=found.entries,
        size=found.size,
        replaced=replaced,
    )


def _remove(place: _Place, path: str) -> None:
    """Remove a store that nobody has open, if it is there."""
    for ending in place.endings:
        if os.path.isdir(path + ending):
            shutil.rmtree(path + ending)
        else:
            with suppress(FileNotFoundError):
                os.remove(path + ending)
