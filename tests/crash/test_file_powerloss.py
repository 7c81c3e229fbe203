"""The power fails at any moment: what a disk may then hold is what was acknowledged, and no less.

Every call that changes a file or a directory is recorded. For a moment in between, a disk is then
made up as it may look after a power loss: all that was synced is there; of what was not, some is
and some is not, sector by sector and name by name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import limpet
from limpet.backends.contract import Append, Key
from limpet.backends.file.backend import FileBackend
from limpet.testing.crash import experiments, seeded, soak

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

#: How often the power fails in each history.
FAILURES = 150

SECTOR = 512

KEYS = [Key("default", "note", id_) for id_ in ("one", "Two/2", "é" * 250)]


class Op(NamedTuple):
    """A change of a file, or of the names in a directory; a sync; or an acknowledgement."""

    what: str
    file: int = 0
    path: str = ""
    offset: int = 0
    data: bytes = b""


class Recorder:
    """What is done to the files under *root*, as the system is asked for it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[Op] = []
        self._scope = str(root.parent)
        self._handles: dict[int, int] = {}
        self._files: dict[str, int] = {}  # the number of the file that has a name now
        self._paths: dict[int, str] = {}  # of directories that are open
        self._patch = monkeypatch
        self._real: dict[str, Callable[..., Any]] = {}
        self._take_in(root)
        self.begun = len(self.log)
        for name in ("open", "write", "ftruncate", "fsync", "fdatasync", "mkdir", "unlink"):
            self._take_over(name)
        for name in ("replace", "rename"):
            self._take_over(name)

    def _take_in(self, root: Path) -> None:
        """What is there already is certain."""
        for path in sorted([root, *root.rglob("*")] if root.exists() else []):
            file = 0 if path.is_dir() else len(self.log) + 1
            self.log.append(Op("link", file, str(path)))
            self.log.append(Op("sync names", path=str(path.parent)))
            if file:
                self._files[str(path)] = file
                self.log.append(Op("write", file, data=path.read_bytes()))
                self.log.append(Op("sync", file))

    def _take_over(self, name: str) -> None:
        self._real[name] = getattr(os, name)
        self._patch.setattr(os, name, getattr(self, f"_{name}"))

    def ack(self) -> None:
        """The last call has returned."""
        self.log.append(Op("ack"))

    def _open(self, path: str, flags: int, *args: Any, **how: Any) -> int:
        handle: int = self._real["open"](path, flags, *args, **how)
        self._handles.pop(handle, None)
        self._paths.pop(handle, None)
        if not str(path).startswith(self._scope):
            return handle
        if Path(path).is_dir():
            self._paths[handle] = str(path)
            return handle
        if flags & os.O_CREAT and path not in self._files:
            self._files[path] = len(self.log) + 1
            self.log.append(Op("link", self._files[path], path))
        elif flags & os.O_TRUNC:
            self.log.append(Op("cut", self._files[path]))
        self._handles[handle] = self._files[path]
        return handle

    def _write(self, handle: int, data: bytes) -> int:
        if handle in self._handles:
            size = os.fstat(handle).st_size
            self.log.append(Op("write", self._handles[handle], offset=size, data=bytes(data)))
        return int(self._real["write"](handle, data))

    def _ftruncate(self, handle: int, size: int) -> None:
        self._real["ftruncate"](handle, size)
        self.log.append(Op("cut", self._handles[handle], offset=size))

    def _fdatasync(self, handle: int) -> None:
        self._real["fdatasync"](handle)
        if handle in self._handles:
            self.log.append(Op("sync", self._handles[handle]))

    def _fsync(self, handle: int) -> None:
        self._real["fsync"](handle)
        if handle in self._paths:
            self.log.append(Op("sync names", path=self._paths[handle]))

    def _mkdir(self, path: str, *args: Any) -> None:
        self._real["mkdir"](path, *args)
        if str(path).startswith(self._scope):
            self.log.append(Op("link", path=path))

    def _replace(self, old: str, new: str) -> None:
        self._real["replace"](old, new)
        self._files[new] = self._files.pop(old)
        self.log.append(Op("link", self._files[new], new))
        self.log.append(Op("unlink", path=old))

    _rename = _replace

    def _unlink(self, path: str) -> None:
        self._real["unlink"](path)
        del self._files[path]
        self.log.append(Op("unlink", path=path))


class Disk:
    """What the disk holds after some changes, as far as it is certain, and what may be besides."""

    def __init__(self, log: list[Op], rng: Random) -> None:
        self._rng = rng
        self._stable: dict[int, bytes] = {}  # by file
        self._pending: dict[int, list[Op]] = {}
        self._names: dict[str, dict[str, int]] = {}  # by directory: names, and their files
        self._changes: dict[str, list[Op]] = {}
        for op in log:
            self._do(op)

    def _do(self, op: Op) -> None:
        if op.what in ("write", "cut"):
            self._pending.setdefault(op.file, []).append(op)
        elif op.what == "sync":
            self._stable[op.file] = self._content(op.file)
            self._pending[op.file] = []
        elif op.what in ("link", "unlink"):
            self._changes.setdefault(str(Path(op.path).parent), []).append(op)
        elif op.what == "sync names":
            names = self._names.setdefault(op.path, {})
            for change in self._changes.pop(op.path, []):
                _rename(names, change)

    def _content(self, file: int) -> bytes:
        content = self._stable.get(file, b"")
        for op in self._pending.get(file, []):
            content = _written(content, op)
        return content

    def make(self, root: Path, target: Path) -> None:
        """Put what is in *root* into a real directory."""
        self._make_directory(str(root.parent), target.parent)

    def _make_directory(self, path: str, real: Path) -> None:
        real.mkdir(exist_ok=True)
        names = dict(self._names.get(path, {}))
        for change in self._changes.get(path, []):
            if self._rng.random() < 0.5:
                _rename(names, change)
        for name, file in names.items():
            if file == 0:
                self._make_directory(f"{path}/{name}", real / name)
            else:
                (real / name).write_bytes(self._found(file))

    def _found(self, file: int) -> bytes:
        """The content that is found: of what was not synced, some."""
        content = self._stable.get(file, b"")
        pending = self._pending.get(file, [])
        for op in pending[: self._rng.randint(0, len(pending))]:
            content = self._torn(content, op) if op.what == "write" else _written(content, op)
        return content

    def _torn(self, content: bytes, op: Op) -> bytes:
        """The sectors of a write in any order: some have come through."""
        whole = _written(content, op)
        found = bytearray(content.ljust(len(whole), b"\0"))
        for start in range(0, len(whole), SECTOR):
            if self._rng.random() < 0.7:
                found[start : start + SECTOR] = whole[start : start + SECTOR]
        if self._rng.random() < 0.3:  # nor has all of the new size
            del found[self._rng.randint(len(content), len(whole)) :]
        return bytes(found)


def _written(content: bytes, op: Op) -> bytes:
    if op.what == "cut":
        return content[: op.offset]
    return content[: op.offset].ljust(op.offset, b"\0") + op.data


def _rename(names: dict[str, int], change: Op) -> None:
    name = Path(change.path).name
    if change.what == "unlink":
        names.pop(name, None)
    else:
        names[name] = change.file


# -- histories -------------------------------------------------------------------------------------

State = dict[Key, tuple[list[tuple[int, bytes]], str | None]]


class History:
    """A life of a store: what was done to its files, and its state after each acknowledgement."""

    def __init__(self, root: Path, rng: Random, durability: str = "full", steps: int = 40) -> None:
        self.root = root
        self._rng = rng
        self._durability = durability
        with pytest.MonkeyPatch.context() as patch:
            recorder = Recorder(root, patch)
            self.states = [state_of(root) if root.exists() else {}]
            backend = self._opened()
            for _ in range(steps):
                if rng.random() < 0.1:
                    backend.close()
                    backend = self._opened()
                self._step(backend)
                recorder.ack()
                self.states.append(state_of(root))
            backend.close()
        self.log, self._begun = recorder.log, recorder.begun

    def _opened(self) -> FileBackend:
        return FileBackend(str(self.root), durability=self._durability)

    def _step(self, backend: FileBackend) -> None:
        rng, key = self._rng, self._rng.choice(KEYS)
        match rng.randrange(12):
            case 0:
                backend.delete(key)
            case 1:
                head = backend.head(key)
                backend.compact(key, rng.randint(0, head.seq + 1) if head else 1)
            case 2:
                backend.append(Append(key=key, status=rng.choice(["open", "done"])))
            case _:
                body = rng.randbytes(rng.choice([1, 10, 100, 400, 1500, 6000]))
                backend.append(Append(key=key, body=body, count=rng.randint(1, 3)))

    def fail(self, target: Path) -> int:
        """Leave in *target* what a power loss at some moment leaves; how much was acknowledged."""
        moment = self._rng.randint(self._begun, len(self.log))
        log = self.log[:moment]
        Disk(log, self._rng).make(self.root, target)
        experiments["power losses"] += 1
        return sum(op.what == "ack" for op in log)


def state_of(root: Path) -> State:
    """All that a reader can see."""
    found: State = {}
    backend = FileBackend(str(root), readonly=True)
    for key in KEYS:
        head = backend.head(key)
        if head is not None:
            found[key] = ([(r.seq, r.body) for r in backend.read(key)], head.status)
    assert [
        fact for fact in backend.facts(deep=True) if not fact.ok and fact.name == "damaged"
    ] == []
    backend.close()
    return found


def targets(tmp_path: Path) -> Iterator[Path]:
    """Directories that nothing is in yet."""
    number = 0
    while True:
        number += 1
        (tmp_path / f"{number}").mkdir()
        yield tmp_path / f"{number}" / "state"


@pytest.mark.soak
def test_nothing_acknowledged_is_lost_and_nothing_is_torn(tmp_path: Path) -> None:
    """Each step has happened or has not, over several lives of a store that end in the dark."""
    with seeded() as rng:
        new = targets(tmp_path)
        for _ in range(soak()):
            history = History(next(new), rng)
            for _life in range(4):
                history = History(survived(history, new, FAILURES), rng)


def survived(history: History, new: Iterator[Path], failures: int) -> Path:
    """Check many ends of one history; the last is where the next begins."""
    target = next(new)
    for _ in range(failures):
        target = next(new)
        acked = history.fail(target)
        FileBackend(str(target)).close()  # a store whose creation was cut short is made again
        found = state_of(target)
        assert found in history.states[acked : acked + 2], f"after {acked} steps"
    return target


def test_a_store_that_does_not_sync_is_found_out(tmp_path: Path) -> None:
    """An experiment that cannot see a loss would prove nothing."""
    with seeded() as rng:
        new = targets(tmp_path)
        history = History(next(new), rng, durability="normal")
        lost = 0
        for _ in range(FAILURES):
            target = next(new)
            acked = history.fail(target)
            try:
                FileBackend(str(target)).close()
                lost += state_of(target) not in history.states[acked : acked + 2]
            except (limpet.StoreError, AssertionError):
                lost += 1
        assert lost > FAILURES // 4
