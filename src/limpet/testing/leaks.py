"""Nothing stays behind: threads and files that are open when a block ends and were not before."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["nothing_left"]

#: Seconds that a thread which has been told to end may take for it on a busy machine.
PATIENCE = 10


@contextmanager
def nothing_left() -> Iterator[None]:
    """Raise an `AssertionError` if the block leaves a thread running or a file open.

        with nothing_left():
            limpet.open("memory:").close()

    Threads are told apart by name, so that one which another of its name has replaced is no leak.
    """
    threads, files = _threads(), _files()
    yield
    deadline = time.monotonic() + PATIENCE
    while (_threads() - threads or len(_files()) > len(files)) and time.monotonic() < deadline:
        gc.collect()  # an error's traceback may hold what its connection had
        time.sleep(0.02)
    if left := _threads() - threads:
        raise AssertionError(f"threads still run: {', '.join(sorted(left.elements()))}")
    if len(now := _files()) > len(files):
        raise AssertionError(f"files are still open: {', '.join(sorted(now - files))}")


def _threads() -> Counter[str]:
    return Counter(thread.name for thread in threading.enumerate())


def _files() -> set[str]:
    """What this process has open, each as its number and name; nothing where that is not told."""
    found = set()
    with suppress(FileNotFoundError):  # not Linux
        for number in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # such as the directory that was read
                found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return found
