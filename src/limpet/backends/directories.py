"""Directories that are their owner's only, and whose names are durable."""

from __future__ import annotations

import os

__all__ = ["make_directory", "make_parents", "sync_directory"]


def sync_directory(path: str) -> None:
    """Make the names in a directory durable: a file that is synced and has no name is gone."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(path: str) -> None:
    """Make a directory, durably, unless there is one."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    sync_directory(os.path.dirname(path))


def make_parents(path: str) -> None:
    """Make the directories that *path*, which is absolute, lies in, as far as they are missing."""
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        make_parents(parent)
        make_directory(parent)
