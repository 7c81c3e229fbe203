"""Full disks and I/O errors for SQLite, on demand."""

# ruff: noqa: N802  # xWrite and xSync are the names that SQLite gives them

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import apsw

from limpet.testing.powerloss import JOURNAL, KEPT, PassingVFS, RegisteredVFS

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

__all__ = ["Faults"]


class Faults(RegisteredVFS):
    """A disk that fails on demand, with the codes by which the default VFS would report it.

        with Faults() as disk:
            store = limpet.open("agents.db", vfs=disk.vfs)
            disk.arm(error="full", after=3)
            ...
            disk.disarm()

    `failures` counts how often it did. The ``-shm`` file never fails: SQLite's unix VFS writes it
    unasked. One thing is not as on a real disk: apsw raises the error from the call during which it
    came up, even where SQLite takes no notice, namely in a checkpoint after a commit or at closing.
    The commit then stands although its call raises; ``where="journal"`` leaves checkpoints alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self._lock = threading.Lock()
        self._fault: _Fault | None = None

    def arm(
        self,
        *,
        after: int = 0,
        error: Literal["full", "ioerr"] = "full",
        op: Literal["write", "sync"] = "write",
        where: Literal["anywhere", "database", "journal"] = "anywhere",
        once: bool = False,
    ) -> None:
        """Let *after* such operations pass, then fail them all until `disarm`, or one if *once*.

        The "journal" is the WAL or the rollback journal.
        """
        files = {"anywhere": KEPT, "database": apsw.SQLITE_OPEN_MAIN_DB, "journal": JOURNAL}
        with self._lock:
            self._fault = _Fault(after, error, op, files[where], once)

    def disarm(self) -> None:
        """Work again, as a disk does on which somebody has made room."""
        with self._lock:
            self._fault = None

    def _register(self) -> apsw.VFS:
        return PassingVFS(self.vfs, partial(_FaultyFile, self._check))

    def _check(self, op: str, flags: int) -> None:
        with self._lock:
            fault = self._fault
            if fault is None or not fault.strikes(op, flags):
                return
            self.failures += 1
            if fault.once:
                self._fault = None
        raise fault.exception()


@dataclass(slots=True)
class _Fault:
    passes: int
    error: str
    op: str
    files: int
    once: bool

    def strikes(self, op: str, flags: int) -> bool:
        if op != self.op or not flags & self.files:
            return False
        self.passes -= 1
        return self.passes < 0

    def exception(self) -> Exception:
        if self.op == "sync":  # whatever the reason, SQLite has one word for it
            return _exception(apsw.SQLITE_IOERR_FSYNC, "disk I/O error")
        if self.error == "full":
            return _exception(apsw.SQLITE_FULL, "database or disk is full")
        return _exception(apsw.SQLITE_IOERR_WRITE, "disk I/O error")


def _exception(code: int, message: str) -> Exception:
    exception = apsw.exception_for(code)
    exception.args = (message,)  # apsw leaves it empty; SQLite would have said this
    return exception


class _FaultyFile(apsw.VFSFile):
    def __init__(
        self, check: Callable[[str, int], None], path: str | apsw.URIFilename, flags: list[int]
    ) -> None:
        super().__init__("", path, flags)
        self._flags = flags[0]
        self._check = check

    def xWrite(self, data: Buffer, offset: int) -> None:
        self._check("write", self._flags)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._check("sync", self._flags)
        super().xSync(flags)
