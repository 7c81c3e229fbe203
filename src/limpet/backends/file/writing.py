"""A journal's file, written: one line an append, synced; and a few such files, kept open."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from limpet.backends.contract import to_micros
from limpet.backends.file import disk
from limpet.backends.file.lines import id_text
from limpet.backends.file.reading import File, misplaced

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from limpet.backends.contract import Key
    from limpet.backends.file.lines import State
    from limpet.backends.file.names import Place

__all__ = ["Journal", "Shelf", "compacted"]

#: Journals that one shelf keeps open.
_OPEN = 4

#: Names that it knows to be durable: what was forgotten is synced once more.
_NAMES = 10_000

#: Ids that are looked for in the text of a file before all that are in it are read.
_LOOKS = 20

_CHUNK = 1024 * 1024

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC


class Journal:
    """One journal's file, open for writing, and its state as of the last line.

    Used under the journal's lock. Another process may have written meanwhile: `is_current` tells
    by the file's size, and by whether it is still the one of that name. It cannot be another with
    the same inode, because this one is open.
    """

    def __init__(self, handle: int, path: str, *, durable: bool) -> None:
        self.handle = handle
        self._path = path
        self._durable = durable
        opened = os.fstat(handle)
        self.inode = (opened.st_dev, opened.st_ino)
        self._ids: dict[str, tuple[int, int]] | None = None  # number and time
        self._looks = 0
        self.doubtful = False  # a sync has failed
        self._load()

    def _load(self) -> File:
        """Take in what the file holds, and cut off what nobody was told is safe."""
        file = File(self.handle, self._path)
        self.state = file.state
        self._end, self._closed = file.end, file.closed  # the last line ends as a line does
        self._synced = False
        if file.torn:
            disk.note(
                "%s: the last line was not finished when its writer died, and nobody was told that "
                "it is safe. Its %d bytes are dropped.",
                self._path,
                file.torn,
            )
            os.ftruncate(self.handle, self._end)
        return file

    def is_current(self) -> bool:
        """Whether this is still the journal's file; what others have added is then taken in."""
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False
        inode = (there.st_dev, there.st_ino)
        if self.doubtful or inode != self.inode or there.st_size < self._end:
            return False
        if there.st_size > self._end:
            self._catch_up()
        return True

    def _catch_up(self) -> None:
        ids, self._ids = self._ids, None
        known = self.state.seq
        file = self._load()
        if ids is not None:
            self._ids = ids | _ids_in(file, known)

    def known(self, id_: str) -> tuple[int, int] | None:
        """Number and time of the record of that id, if there is one; then it is durable."""
        if self._ids is None:
            if not self._may_know(id_):
                return None
            self._ids = _ids_in(File(self.handle, self._path), 0)
        found = self._ids.get(id_)
        if found is not None and not self._synced:
            self._sync()  # the writer may have died between the write and the sync
        return found

    def _may_know(self, id_: str) -> bool:
        """Whether to read all ids: this one may be among them, or many have been asked for.

        Most ids are new, and most journals are asked for few before they are closed again.
        """
        self._looks += 1
        return self._looks > _LOOKS or _holds(self.handle, self._end, id_text(id_))

    def append(self, line: bytes, state: State, id_: str | None = None) -> None:
        """Add *line*, which leads to *state*, durably; or leave everything as it was."""
        if not self._closed:
            line = b"\n" + line
        try:
            disk.write_all(self.handle, line)
            self._sync()
        except BaseException:
            self._cut_back()
            raise
        self._end += len(line)
        self._closed = True
        self.state = state
        if id_ is not None and self._ids is not None:
            self._ids[id_] = state.seq, state.updated

    def _sync(self) -> None:
        try:
            if self._durable:
                disk.sync(self.handle)
        except OSError:
            # The system now takes for written what is not, and the next sync would tell us so.
            self.doubtful = True
            raise
        self._synced = True

    def _cut_back(self) -> None:
        """Undo an append that failed, although a reader may have seen it."""
        try:
            os.ftruncate(self.handle, self._end)
        except OSError as error:
            self.doubtful = True
            disk.note("%s: a failed append could not be undone: %s", self._path, error)


class Shelf(disk.Lock):
    """A lock, and the journals under it that were written last, kept open."""

    def __init__(
        self, root: str, number: int, *, timeout: float, readonly: bool, durable: bool
    ) -> None:
        super().__init__(root, number, timeout=timeout, readonly=readonly)
        self._durable = durable
        self._journals: OrderedDict[str, Journal] = OrderedDict()
        self._durable_names: dict[str, tuple[int, int]] = {}  # and the inode of each
        self._doubtful: set[str] = set()  # paths of files that could not be synced

    def find(self, place: Place, key: Key) -> Journal | None:
        """The journal at *place*, or None if it is not there."""
        journal = self._journals.get(place.path)
        if journal is not None:
            if journal.is_current():
                self._journals.move_to_end(place.path)
                return journal
            self.forget(place)
        try:
            handle = os.open(place.path, _FLAGS)
        except FileNotFoundError:
            return None
        journal = self._keep(place, handle)
        if journal.state.key != key:
            self.forget(place)
            raise misplaced(place.path, journal.state.key)
        if place.path in self._doubtful:
            file = File(handle, place.path)
            return self.rewrite(place, _from(file, file.begin, journal.state))
        # Whoever gave the file this name may have died before that was durable.
        if self._durable_names.get(place.path) != journal.inode:
            self._sync_name(place, journal.inode)
        return journal

    def _keep(self, place: Place, handle: int) -> Journal:
        try:
            journal = Journal(handle, place.path, durable=self._durable)
        except BaseException:
            os.close(handle)
            raise
        self._journals[place.path] = journal
        if len(self._journals) > _OPEN:
            self._forget(next(iter(self._journals)))
        return journal

    def begin(self, place: Place, line: bytes, state: State) -> None:
        """Make the journal at *place*, with its first record: it is never there without."""
        kind = os.path.dirname(place.path)
        if not os.path.isdir(kind):
            disk.make_directory(os.path.dirname(kind))
            disk.make_directory(kind)
        self.rewrite(place, [state.header(), line])

    def rewrite(self, place: Place, pieces: Iterable[bytes]) -> Journal:
        """Put *pieces* in the place of the journal's file: all of them, or nothing changes."""
        disk.make_directories(os.path.dirname(place.spare))
        handle = os.open(place.spare, _FLAGS | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for piece in pieces:
                disk.write_all(handle, piece)
            disk.sync(handle)  # always: a name without content would be damage, not delay
            self.forget(place)
            os.replace(place.spare, place.path)
        except BaseException:
            os.close(handle)
            _unlink(place.spare)
            raise
        journal = self._keep(place, handle)
        self._sync_name(place, journal.inode)
        self._doubtful.discard(place.path)
        return journal

    def move(self, place: Place, path: str) -> None:
        """Give the journal's file another name."""
        self.forget(place)
        os.rename(place.path, path)
        self._sync_name(place)

    def remove(self, place: Place) -> None:
        """Remove the journal's file, if there is one, and its lease."""
        self.forget(place)
        _unlink(place.lease)  # first: its holder must not find a journal that came after this one
        if _unlink(place.path):
            self._sync_name(place)

    def remove_spare(self, place: Place) -> None:
        """Remove what a writer that was killed has left of a new form of the journal."""
        _unlink(place.spare)

    def forget(self, place: Place) -> None:
        """Close the journal's file."""
        self._forget(place.path)

    def _forget(self, path: str) -> None:
        journal = self._journals.pop(path, None)
        if journal is not None:
            if journal.doubtful:
                self._doubtful.add(path)
            os.close(journal.handle)

    def let_go(self) -> None:
        """Close everything."""
        super().let_go()
        while self._journals:
            self._forget(next(iter(self._journals)))

    def _sync_name(self, place: Place, inode: tuple[int, int] | None = None) -> None:
        """Make it durable that the journal's file has this name, or none."""
        if not self._durable:
            return
        kind = os.path.dirname(place.path)
        try:
            if kind not in self._durable_names:  # nor may be its own name, nor its parent's
                disk.sync_directory(os.path.dirname(os.path.dirname(kind)))
                disk.sync_directory(os.path.dirname(kind))
            disk.sync_directory(kind)
        except BaseException:
            self.forget(place)  # so that it is asked again before anything goes on
            raise
        if len(self._durable_names) > _NAMES:
            self._durable_names.clear()
        self._durable_names[kind] = (0, 0)
        self._durable_names.pop(place.path, None)
        if inode is not None:
            self._durable_names[place.path] = inode


def _unlink(path: str) -> bool:
    """Remove a file. False if it was not there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def compacted(file: File, state: State, before: int) -> tuple[int, Iterator[bytes]]:
    """How many entries of *file* go if it is cut before entry *before*, and what stays."""
    entries, size, cut, floor = 0, state.floor_size, file.end, state.seq
    for offset, line in file.lines():
        if line.count and line.seq >= before:
            cut, floor = offset, line.start
            break
        entries += line.count
        size = line.size
    new = msgspec.structs.replace(state, floor=floor, floor_size=size)
    return entries, _from(file, cut, new)


def _from(file: File, cut: int, state: State) -> Iterator[bytes]:
    """A journal in *state*, with what is in *file* from *cut* on."""
    yield state.header()
    if cut == file.end:
        yield state.mark(time.time_ns() // 1000)
    for offset in range(cut, file.end, _CHUNK):
        yield os.pread(file.handle, min(_CHUNK, file.end - offset), offset)
    if cut < file.end and not file.closed:
        yield b"\n"


def _holds(handle: int, end: int, text: bytes) -> bool:
    """Whether *text* may be in the first *end* bytes of a file."""
    rest = b""
    for offset in range(0, end, _CHUNK):
        size = min(_CHUNK, end - offset)
        data = os.pread(handle, size, offset)
        if len(data) < size:
            return True  # whoever reads it all will tell
        data = rest + data
        if text in data:
            return True
        rest = data[-len(text) :]  # it may lie across two pieces
    return False


def _ids_in(file: File, after: int) -> dict[str, tuple[int, int]]:
    return {
        line.id: (line.seq, to_micros(line.at))
        for _, line in file.lines(after)
        if line.id is not None and line.count
    }
