"""A journal's file, read from either end, or from the entry that is asked for."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from limpet.backends.file import disk
from limpet.backends.file.format import (
    FORMAT,
    Header,
    Line,
    decode_header,
    decode_line,
    head_of,
    is_beginning,
    is_unfinished,
    is_whole,
    lease_in,
    leased_head,
)
from limpet.errors import NotAStore, SchemaTooNew, StoreCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.backends.contract import Head, Lease

__all__ = ["JournalFile", "TextFile", "entries", "opened", "read_lease", "read_leased_head"]

#: What is read at first, enough for most lines, and at most.
_PEEK = 8 * 1024
_CHUNK = 256 * 1024
_MOST = 16 * 1024 * 1024

#: A search by halves ends where all that is left is quickly read.
_NEAR = 64 * 1024

_ALTERED = "it does not match its checksum"


class TextFile:
    """The bytes of an open file, as far as there were any when it was opened, line by line."""

    def __init__(self, handle: int, path: str) -> None:
        self.handle = handle
        self.path = path
        self.size = os.fstat(handle).st_size

    def forward(self, start: int, end: int, chunk: int = _CHUNK) -> Iterator[tuple[int, bytes]]:
        """Offset and text of each line from *start* to *end*."""
        position = offset = start
        rest = b""
        while position < end:
            data = self._read(position, min(chunk, end - position))
            position += len(data)
            *whole, rest = (rest + data).split(b"\n")
            for raw in whole:
                yield offset, raw
                offset += len(raw) + 1
            chunk = min(2 * chunk, _MOST)
        if rest:
            yield offset, rest

    def backward(self, begin: int, end: int) -> Iterator[tuple[int, bytes, bool]]:
        """The same from the last to the first, and whether each has its end: the last may not."""
        position, chunk = end, _PEEK
        rest = b""
        closed = False
        while position > begin:
            data = self._read(max(begin, position - chunk), min(chunk, position - begin))
            position -= len(data)
            rest, *whole = (data + rest).split(b"\n")
            offset = position + len(rest) + sum(map(len, whole)) + len(whole)
            for raw in reversed(whole):
                offset -= len(raw)
                yield offset, raw, closed
                offset -= 1
                closed = True
            chunk = min(2 * chunk, _MOST)
        if end > begin:
            yield begin, rest, closed

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes from *start* to *end*, to be copied."""
        for offset in range(start, end, _CHUNK):
            yield self._read(offset, min(_CHUNK, end - offset))

    def _read(self, offset: int, size: int) -> bytes:
        data = os.pread(self.handle, size, offset)
        while len(data) < size:
            more = os.pread(self.handle, size - len(data), offset + len(data))
            if not more:
                raise self.damaged(offset, "the file has been cut off while it was read")
            data += more
        return data

    def damaged(self, offset: int, why: str) -> StoreCorrupt:
        """The error for the line at *offset*."""
        number = 1 + sum(
            os.pread(self.handle, min(_CHUNK, offset - start), start).count(b"\n")
            for start in range(0, offset, _CHUNK)
        )
        return StoreCorrupt(
            f"{self.path}, line {number}, is damaged: {why}. Nothing was changed. "
            "`limpet doctor --repair` moves what is damaged to a file beside it and keeps the "
            "rest; copy the directory first. `limpet restore BACKUP --replace` goes back to a "
            "backup."
        )


class JournalFile:
    """The lines of one journal, as far as they were written when it was opened.

    Lines are found without reading all of the file, and each is checked when it is read. What is
    behind the last whole line was being written when a process or the machine died, or is being
    written now, and was not acknowledged. ``torn`` is how many bytes of that there are.
    """

    def __init__(self, handle: int, path: str) -> None:
        self.text = text = TextFile(handle, path)
        raw = next(text.forward(0, text.size, _PEEK), (0, b""))[1]
        self.header = self._header(raw)
        self.begin = min(len(raw) + 1, text.size)
        offset, raw, self.closed = self._find_last()
        self.last = self._line(offset, raw)
        self.end = offset + len(raw) + self.closed

    @property
    def torn(self) -> int:
        """How many bytes there are behind the last whole line."""
        return self.text.size - self.end

    @property
    def head(self) -> Head:
        """Where the journal stands, without its lease."""
        return head_of(self.header, self.last)

    # -- both ends ---------------------------------------------------------------------------------

    def _header(self, raw: bytes) -> Header:
        """The first line, which is *raw*."""
        path = self.text.path
        if not is_beginning(raw):
            msg = (
                f"{path} does not begin as a journal of Limpet does. If it is something else, move "
                "it away; if it is damaged, `limpet doctor --repair` keeps what can be read."
            )
            raise NotAStore(msg)
        if not is_whole(raw):
            raise self.text.damaged(0, _ALTERED if raw else "the file is empty")
        try:
            header = decode_header(raw)
        except msgspec.DecodeError as error:
            raise self.text.damaged(0, f"it cannot be understood ({error})") from error
        if header.format > FORMAT:
            msg = (
                f"{path} has format {header.format}, but this version reads up to {FORMAT}.\n"
                "A newer release wrote this file. "
                "Upgrade limpet, or open a copy made before the upgrade."
            )
            raise SchemaTooNew(msg)
        return header

    def _find_last(self) -> tuple[int, bytes, bool]:
        """The last whole line: its offset, its text, and whether it ends as a line does."""
        torn = False
        for offset, raw, closed in self.text.backward(self.begin, self.text.size):
            if is_whole(raw):
                return offset, raw, closed
            if not raw and not closed:
                continue
            if torn or not is_unfinished(raw, closed=closed):
                raise self.text.damaged(offset, _ALTERED)
            torn = True
        # A journal comes to be with its first record, or not at all.
        raise self.text.damaged(self.begin, "the first record is missing")

    # -- lines -------------------------------------------------------------------------------------

    def lines(self, after: int = 0) -> Iterator[tuple[int, Line]]:
        """Every line that ends behind entry *after*, with its offset, and none missing."""
        last = max(after, self.header.first - 1)
        is_first = True
        for offset, raw in self.text.forward(self._search(last), self.end):
            line = self._line(offset, raw)
            if line.seq <= after:
                continue
            # The first may lie across the edge.
            if line.previous != last and not (is_first and line.previous < last):
                raise self._gap(offset, last, line)
            yield offset, line
            last, is_first = line.seq, False

    def lines_back(self, upto: int | None = None) -> Iterator[tuple[int, Line]]:
        """The same from the end, or from the line that holds entry *upto*, to the beginning."""
        later = None if upto is None else next(self.lines(upto - 1), None)
        if later is not None:
            yield later
        end = later[0] if later else self.end
        for offset, raw, closed in self.text.backward(self.begin, end):
            if not raw and not closed:
                continue
            line = self._line(offset, raw)
            if later is not None and later[1].previous != line.seq:
                raise self._gap(later[0], line.seq, later[1])
            later = offset, line
            yield later
        if later is not None and later[1].previous != self.header.first - 1:
            raise self._gap(later[0], self.header.first - 1, later[1])

    def _line(self, offset: int, raw: bytes) -> Line:
        """The line *raw*, which begins at *offset*."""
        if not is_whole(raw):
            raise self.text.damaged(offset, _ALTERED)
        try:
            return decode_line(raw)
        except msgspec.DecodeError as error:
            raise self.text.damaged(offset, f"it cannot be understood ({error})") from error

    def _search(self, after: int) -> int:
        """An offset not far before the first line that ends behind entry *after*, by halves."""
        low, high = self.begin, self.end
        if after < self.header.first:
            return low
        while high - low > _NEAR:
            middle = (low + high) // 2
            found = self._line_behind(middle, high)
            if found is None:
                high = middle
            elif found[1].seq <= after:
                low = found[2]
            else:
                high = found[0]
        return low

    def _line_behind(self, offset: int, end: int) -> tuple[int, Line, int] | None:
        """The first good line that begins behind *offset* and before *end*; from where to where."""
        lines = self.text.forward(offset, self.end, _PEEK)
        next(lines, None)  # the rest of a line that begins before
        for start, raw in lines:
            if start >= end:
                break
            if is_whole(raw):  # damage is not our business here, only on the way that is read
                return start, self._line(start, raw), start + len(raw) + 1
        return None

    def _gap(self, offset: int, last: int, line: Line) -> StoreCorrupt:
        if line.previous < last:
            return self.text.damaged(offset, f"entry {line.previous + 1} comes a second time")
        return self.text.damaged(offset, f"missing before it: {entries(last + 1, line.previous)}")


@contextmanager
def opened(path: str) -> Iterator[JournalFile | None]:
    """A journal's file, to be read; None if it is not there."""
    try:
        handle = disk.open_file(path)
    except FileNotFoundError:
        yield None
        return
    try:
        yield JournalFile(handle, path)
    finally:
        os.close(handle)


def read_leased_head(path: str, at: int) -> Head | None:
    """What the file of a lease says: the newest lease, valid or not, on a head without a record."""
    text = disk.read_file(path)
    return None if text is None else leased_head(text, at)


def read_lease(path: str) -> Lease | None:
    """The newest lease, valid or not."""
    text = disk.read_file(path)
    return None if text is None else lease_in(text)


def entries(first: int, last: int) -> str:
    """Numbers of entries, in words."""
    return f"entry {first}" if first == last else f"entries {first} to {last}"
