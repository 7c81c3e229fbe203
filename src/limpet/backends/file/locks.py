"""Locks that keep out other threads and other processes."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import threading
import time
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from limpet.backends.file import disk
from limpet.backends.file.directory import LOCKS, make_private
from limpet.errors import StoreBusy, StoreClosed

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Lock"]

P = ParamSpec("P")
R = TypeVar("R")


class Lock:
    """Keeps out the other threads of this process, and all other processes.

    The lock between processes is ``flock`` on a file that is kept open and never removed. It ends
    with its process, however that ends. A fork must find it free, because the child would share it:
    who holds ``mutex`` while it forks sees to that.

    An interrupt (Ctrl-C) at any point leaves it free.
    """

    def __init__(self, root: str, number: int, *, timeout: float, readonly: bool) -> None:
        self._handle = -1
        self._inode = (0, 0)
        self._root = root
        self._path = os.path.join(root, LOCKS, f"{number:02}")
        self._timeout = timeout
        self._readonly = readonly
        self._closed = False
        self.mutex = threading.Lock()

    def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What *work* returns, done with all others kept out.

        No context manager: an interrupt might come before its ``__exit__`` has begun.
        """
        deadline = time.monotonic() + self._timeout
        with self.mutex:  # not for ever, unless *work* is: to wait for the lock has a deadline
            try:
                self._acquire(deadline)
                return work(*args, **kwargs)
            finally:
                if self._handle >= 0:
                    fcntl.flock(self._handle, fcntl.LOCK_UN)

    def _acquire(self, deadline: float) -> None:
        if self._closed:
            msg = f"The store {self._root} is closed. Open it again, or close it later."
            raise StoreClosed(msg)
        while self._handle >= 0 or self._open():
            self._wait(deadline)
            try:
                there = os.stat(self._path)
                if (there.st_dev, there.st_ino) == self._inode:
                    return
            except FileNotFoundError:
                pass
            # What we have locked is no longer the file that others find: `git clean`, perhaps.
            self._close_file()

    def _wait(self, deadline: float) -> None:
        """Take the lock, asking again in short, uneven naps: flock itself knows no timeout."""
        while True:
            try:
                return fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    msg = (
                        f"Another process held the write lock on {self._root} for longer than "
                        "the timeout. Look for one that hangs, or open the store with a larger "
                        "timeout=."
                    )
                    raise StoreBusy(msg) from None
                time.sleep(random.uniform(0.0001, 0.001))  # noqa: S311 - jitter, not a secret

    def _open(self) -> bool:
        """Open the lock's file. False: there is none, and so nobody who writes."""
        flags = os.O_RDONLY if self._readonly else os.O_RDWR | os.O_CREAT
        for _ in range(2):
            try:
                self._handle = disk.open_file(self._path, flags)
            except FileNotFoundError:
                if self._readonly:
                    return False
                make_private(self._root)
            else:
                opened = os.fstat(self._handle)
                self._inode = (opened.st_dev, opened.st_ino)
                return True
        raise FileNotFoundError(errno.ENOENT, "The lock cannot be made", self._path)

    def close(self) -> None:
        """Let nobody in any more. Hold ``mutex`` meanwhile."""
        self._closed = True
        self._close_file()

    def after_fork_in_child(self) -> None:
        """Start anew: the file that is open is the parent's, too."""
        self._close_file()
        self.mutex = threading.Lock()

    def _close_file(self) -> None:
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            os.close(handle)

    __del__ = _close_file  # of a store that was dropped and never closed
