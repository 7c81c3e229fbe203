"""A SQLite store as a file: a snapshot of it, and nobody else in it while it is replaced."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import apsw

from limpet.backends.sqlite.database import (
    check_content,
    check_ours,
    check_path,
    readonly_uri,
)
from limpet.backends.sqlite.errors import translate
from limpet.errors import StoreBusy, StoreCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["alone", "write_snapshot"]


def write_snapshot(path: str, new: str) -> None:
    """Write what is in the file at *path* and its log, at one moment, to the file *new*.

    Nobody has to wait for it: SQLite's own backup reads one snapshot, and others go on writing. All
    tables come along, the user's too. `StoreCorrupt` if what was written is not sound.
    """
    check_path(path)
    try:
        check_content(path, None)
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        source = apsw.Connection(readonly_uri(path), flags=flags)
        try:
            check_ours(path, source, readonly=False)
            os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            target = apsw.Connection(new, flags=apsw.SQLITE_OPEN_READWRITE)
            try:
                with target.backup("main", source, "main") as backup:
                    backup.step()  # all of it, and synced
                # So that it says of itself that no log belongs to it: see `check_content`.
                target.execute("PRAGMA journal_mode = DELETE").fetchall()
                found = [row[0] for row in target.execute("PRAGMA integrity_check(5)")]
            finally:
                target.close()
        finally:
            source.close()
    except apsw.Error as error:
        raise translate(error, path) from error
    if found != ["ok"]:
        msg = (
            f"{path} is damaged: {'; '.join(map(str, found))}. Nothing was changed. "
            f"`limpet salvage {path} NEW` writes what can be read to a new store."
        )
        raise StoreCorrupt(msg)


@contextmanager
def alone(path: str) -> Iterator[None]:
    """Keep every other connection out of the file at *path*; `StoreBusy` if there is one.

    Whoever has opened a file with a log holds a lock on it for as long as it is open.
    """
    try:
        file = apsw.VFSFile("", path, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE, 0])
    except apsw.Error as error:
        raise translate(error, path) from error
    try:
        try:
            for lock in ("SHARED", "RESERVED", "EXCLUSIVE"):
                file.xLock(getattr(apsw, f"SQLITE_LOCK_{lock}"))
        except apsw.BusyError as error:
            msg = (
                f"The store {path} is in use: a process has it open, and would go on with what is "
                "replaced. Nothing was changed. Stop whoever works with it, and try again."
            )
            raise StoreBusy(msg) from error
        yield
    finally:
        file.xUnlock(apsw.SQLITE_LOCK_NONE)
        file.xClose()
