"""SQLite's errors in our words, with what to do about them."""

from __future__ import annotations

import os

import apsw

from limpet.errors import (
    NotAStore,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreNotFound,
    StoreReadOnly,
    StoreUnavailable,
)

__all__ = ["foreign_log", "gone", "meaning", "not_synced", "translate"]


def translate(error: apsw.Error, path: str) -> StoreError:
    """*error* as one of ours, with what to do about it."""
    if isinstance(error, _UNREACHABLE) and not os.path.lexists(path):
        return gone(path)
    return meaning(error, path)


def meaning(error: apsw.Error, path: str) -> StoreError:
    """The same of a file that need not be there yet."""
    for kind, make, text in _MEANINGS:
        if isinstance(error, kind):
            return make(text.format(path=path, error=error))
    return StoreUnavailable(f"SQLite could not do its work on {path}: {error}.")


def gone(path: str) -> StoreNotFound:
    """The error for a file that is no longer there, or no longer the same."""
    other = os.path.lexists(path)
    what = "no longer the file that was opened" if other else "no longer there"
    return StoreNotFound(f"The store {path} is {what}. Look for who has moved or removed it.")


def foreign_log(path: str) -> StoreCorrupt:
    """The error for a log that was left by a process which had another file open."""
    return StoreCorrupt(
        f"{path}-wal does not belong to {path}: a process that was killed has left it, and a "
        "backup was put there since. SQLite would read the one into the other, and neither would "
        f"be left. Nothing was changed. Move {path}-wal and {path}-shm away, or use `limpet "
        "restore BACKUP --replace`, which does that."
    )


def not_synced(path: str, error: Exception) -> StoreUnavailable:
    """The error for a commit that was written, and of which nobody knows whether it stays."""
    return StoreUnavailable(
        f"The disk under {path} failed while a write was being synced ({error}). The write may be "
        "there, now or after the next start, or may be not. Check the disk, then repeat it under "
        "the same id: then it is there once."
    )


#: What SQLite says when the file was taken from under it; each may also mean other things.
_UNREACHABLE = (apsw.ReadOnlyError, apsw.CantOpenError, apsw.IOError)

_MEANINGS: list[tuple[type[apsw.Error], type[StoreError], str]] = [
    (
        apsw.NotADBError,
        NotAStore,
        (
            "{path} is not a SQLite database (or it is encrypted). Nothing was changed. "
            "Name another file; to import JSON, start with a new store."
        ),
    ),
    (
        apsw.CorruptError,
        StoreCorrupt,
        (
            "{path} is damaged: {error}. Nothing was changed. Before anything else, copy the file "
            "with its -wal file to a safe place. Then see `limpet doctor`; go back to a backup "
            "(`limpet restore BACKUP --replace`), or write what can be read to a new store "
            "(`limpet salvage {path} NEW`)."
        ),
    ),
    (
        apsw.ReadOnlyError,
        StoreReadOnly,
        (
            "{path} cannot be written: the file, its directory or the file system is read-only for "
            "this user. Change owner or mode, or open it with readonly=True."
        ),
    ),
    (
        apsw.FullError,
        StoreFull,
        (
            "There is no room left for {path}, and the write was not kept. Everything acknowledged "
            "before is safe. Free some space and try again."
        ),
    ),
    (
        apsw.BusyError,
        StoreBusy,
        (
            "Another process held the write lock on {path} for longer than the timeout. "
            "Look for a long transaction there, or open the store with a larger timeout=."
        ),
    ),
    (
        apsw.CantOpenError,
        StoreReadOnly,
        (
            "{path} or its -wal file cannot be opened by this user. "
            "Change owner or mode of the file and its directory."
        ),
    ),
    (
        apsw.TooBigError,
        StoreError,
        "SQLite refused a value as too large for {path}.",
    ),
    (
        apsw.IOError,
        StoreUnavailable,
        (
            "The disk under {path} failed: {error}. The write may not be there; "
            "check the disk before trying again."
        ),
    ),
    (
        apsw.ConnectionClosedError,
        StoreClosed,
        "The store {path} is closed. Open it again, or close it later.",
    ),
]
