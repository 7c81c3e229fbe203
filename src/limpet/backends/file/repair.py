"""What is wrong with a journal's file, and how to keep the rest of it.

A repair writes the file anew without its damaged lines, and puts those into a file beside it, byte
for byte. Where entries have gone with them, a line with ``lost`` stands in their place: the gap is
then known, and numbers that were given out stay so.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct

from limpet.backends.contract import Key
from limpet.backends.file import disk
from limpet.backends.file.lines import (
    FORMAT,
    Header,
    Line,
    State,
    body_of,
    entries,
    is_unfinished,
    is_whole,
    read_header,
    read_line,
    seal,
    to_micros,
)
from limpet.backends.file.names import name_of
from limpet.backends.file.reading import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.backends.file.names import Place
    from limpet.backends.file.writing import Shelf

__all__ = ["QUARANTINE", "Damage", "Survey", "repair"]

T = TypeVar("T")

#: What follows a journal's name in that of a file with what was damaged in it.
QUARANTINE = ".damaged-"

_CHUNK = 1024 * 1024

# What can still be made out of a damaged line. It is believed only where something confirms it.
_TEXT = rb'("(?:[^"\\]|\\.)*")'
_KEY = re.compile(rb'"tenant":%b,"kind":%b,"id":%b' % (_TEXT, _TEXT, _TEXT))
_NUMBERS = re.compile(rb'\{"seq":(\d{1,15}),"count":(\d{1,15}),')


class Damage(Struct, frozen=True):
    """Bytes that are not as they were written, or not where they belong."""

    number: int  # of the line
    start: int
    end: int
    why: str


class Survey:
    """All that there is in a file: what can be kept, in order, and what cannot."""

    def __init__(self, text: Text, place: Place) -> None:
        self.key: Key | None = None
        self.newer = False  # a newer release wrote it, and this one had better not touch it
        self.damage: list[Damage] = []
        self.torn: Damage | None = None  # a last line that was never finished
        self.lost: list[tuple[int, int]] = []  # entries, from and to
        self.gaps: list[tuple[int, int]] = []  # the same, taken out by earlier repairs
        self._text = text
        self._place = place
        self._header: Header | None = None
        self._kept: list[tuple[int, int] | bytes] = []  # a run of good lines, or a line to put in
        self._last: Line | None = None
        self._seq: int | None = None  # of the last entry that is kept; None: not known yet
        self._claimed = 0  # the same, if damaged lines are believed
        self._strange: Line | None = None  # the last one of another history, if it was before this
        self._lost_size = 0
        self.lines = 0
        for number, (offset, raw) in enumerate(text.forward(0, text.size), 1):
            self._see(number, offset, raw)
        self._finish()

    def _finish(self) -> None:
        size = self._text.size
        if not size:
            self.damage.append(Damage(1, 0, 0, "the file is empty"))
        elif not self.damage and self._last is None:
            self.damage.append(Damage(2, size, size, "the first record is missing"))
        if self._seq is not None and self._claimed > self._seq:
            self._lose(self._seq, self._claimed, self._last)

    def _see(self, number: int, offset: int, raw: bytes) -> None:
        self.lines = number
        end = min(offset + len(raw) + 1, self._text.size)
        closed = end - offset > len(raw)
        span = Damage(number, offset, end, "it does not match its checksum")
        if number == 1:
            self._see_header(raw, span)
        elif end < self._text.size or is_whole(raw) or not is_unfinished(raw, closed=closed):
            self._see_line(raw, span)
        else:
            self.torn = span

    def _see_header(self, raw: bytes, span: Damage) -> None:
        self._header = _read(read_header, raw)
        if self._header is None:
            self.key = _key_of(self._place.name, raw)
            self.damage.append(span)
            return
        self.key = self._header.key
        self.newer = self._header.format > FORMAT
        self._seq = self._claimed = self._header.floor
        if name_of(self.key) != self._place.name:
            why = f"it belongs into {name_of(self.key)}.jsonl; the file was renamed or copied"
            self.damage.append(msgspec.structs.replace(span, why=why))
            self.key = None

    def _see_line(self, raw: bytes, span: Damage) -> None:
        line = _read(read_line, raw)
        if line is None:
            self.damage.append(span)
            numbers = _NUMBERS.match(raw)
            if numbers and int(numbers[1]) - int(numbers[2]) == self._claimed:
                self._claimed = int(numbers[1])
            return
        if self._seq is None:
            self._seq = line.start
            self._header = self._reconstructed(line)
        if why := self._misfit(line):
            self.damage.append(msgspec.structs.replace(span, why=why))
            self._strange = line
            return
        if line.start > self._seq:
            self._see_gap(line, span)
        self._keep(line, span)

    def _misfit(self, line: Line) -> str | None:
        """Why *line*, which is whole, has no place here: a merge of two files brings such lines.

        Of two histories the first is kept.
        """
        if line.start < (self._seq or 0):
            return f"entry {line.start + 1} comes a second time"
        last, strange = self._last, self._strange
        if strange is not None and _follows(line, strange):
            fits = last is not None and _follows(line, last) and _are_same(last, strange)
        else:
            fits = last is None or line.start != last.seq or _follows(line, last)
        return None if fits else "it goes on from another line than the one before it"

    def _see_gap(self, line: Line, span: Damage) -> None:
        """Entries are missing before *line*: lost with what is damaged there, or by themselves."""
        seq = self._seq or 0
        if not self.damage or self.damage[-1].end != span.start:
            why = f"missing before it: {entries(seq + 1, line.start)}"
            self.damage.append(Damage(span.number, span.start, span.start, why))
        self._lose(seq, line.start, self._last or line)
        size = self._last.size if self._last else self._header.floor_size if self._header else 0
        self._lost_size += max(0, line.size - len(body_of(line)) - size)

    def _lose(self, seq: int, upto: int, line: Line | None) -> None:
        """Put a line where entries over *seq*, up to *upto*, are not; with the status of *line*."""
        self.lost.append((seq + 1, upto))
        if self._header is None:
            return
        created = to_micros(self._header.created)
        state = State(key=self._header.key, created=created, updated=created)
        if line is not None:
            state = State.of(self._header, line)
        state.seq = upto
        note = "damaged lines were moved to a file beside this one"
        self._kept.append(state.mark(time.time_ns() // 1000, lost=upto - seq, note=note))

    def _keep(self, line: Line, span: Damage) -> None:
        previous = self._kept[-1] if self._kept else b""
        if isinstance(previous, tuple) and previous[1] == span.start:
            self._kept[-1] = (previous[0], span.end)
        else:
            self._kept.append((span.start, span.end))
        if line.lost:
            self.gaps.append((line.start + 1, line.seq - line.count))
        self._last = line
        self._seq = self._claimed = line.seq
        self._strange = None

    def _reconstructed(self, line: Line) -> Header | None:
        """A header for a file whose own is damaged, and whose first good line is *line*."""
        if self.key is None:
            return None
        tenant, kind, id_ = self.key
        return Header(
            tenant=tenant,
            kind=kind,
            id=id_,
            created=line.at,
            floor=line.start,
            floor_size=line.size - len(body_of(line)),
        )

    # -- what to do about it -----------------------------------------------------------------------

    def good(self) -> Iterator[bytes] | None:
        """The file as it is to be; None if nothing of it can stay."""
        if self.key is None or self._header is None or not self._kept:
            return None
        return self._good(self._header)

    def _good(self, header: Header) -> Iterator[bytes]:
        floor_size = header.floor_size + self._lost_size
        yield seal(msgspec.structs.replace(header, floor_size=floor_size))
        for piece in self._kept:
            if isinstance(piece, bytes):
                yield piece
                continue
            data = b""
            for data in self._pieces(*piece):
                yield data
            if not data.endswith(b"\n"):
                yield b"\n"

    def bad(self) -> Iterator[bytes]:
        """What does not stay, as it is."""
        for span in self._bad_spans():
            yield from self._pieces(span.start, span.end)

    def _bad_spans(self) -> list[Damage]:
        return [*self.damage, *([self.torn] if self.torn else [])]

    def _pieces(self, start: int, end: int) -> Iterator[bytes]:
        for offset in range(start, end, _CHUNK):
            yield os.pread(self._text.handle, min(_CHUNK, end - offset), offset)


def _read(decode: Callable[[bytes], T], raw: bytes) -> T | None:
    try:
        return decode(raw) if is_whole(raw) else None
    except msgspec.DecodeError:
        return None


def _follows(line: Line, before: Line) -> bool:
    """Whether *line* was written right behind *before*: it tells the size of all that there was."""
    known = not (before.lost or line.lost)  # what was in lines that were lost is not counted
    was = line.size - len(body_of(line))
    return line.start == before.seq and (was == before.size or not known)


def _are_same(one: Line, other: Line) -> bool:
    return (one.seq, one.at, body_of(one)) == (other.seq, other.at, body_of(other))


def _key_of(name: str, raw: bytes) -> Key | None:
    """The key of a journal whose first line is damaged, if its name gives or confirms it."""
    tenant, kind, id_ = name.split("/")
    keys = [Key(tenant, kind, id_)]
    found = _KEY.search(raw)
    if found is not None:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            keys.append(Key(*(msgspec.json.decode(part, type=str) for part in found.groups())))
    return next((key for key in keys if name_of(key) == name), None)


# -- repair ----------------------------------------------------------------------------------------


def repair(shelf: Shelf, place: Place) -> str | None:
    """Set the file at *place* right, under its lock; what was done, or None if all was well."""
    try:
        handle = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        found = Survey(Text(handle, place.path), place)
        if found.newer or not (found.damage or found.torn):
            return None
        aside = _free_name(place)
        good = found.good()
        if good is None:
            shelf.move(place, aside)
            return f"{place.path}: nothing of it could be kept. It is now {aside}."
        disk.write_new(aside, found.bad())
        shelf.rewrite(place, good)
        return f"{place.path}: {_what(found)} moved to {aside}."
    finally:
        os.close(handle)


def _free_name(place: Place) -> str:
    number = 1
    while os.path.lexists(f"{place.path}{QUARANTINE}{number}"):
        number += 1
    return f"{place.path}{QUARANTINE}{number}"


def _what(found: Survey) -> str:
    """What was taken out, in words."""
    numbers = [str(span.number) for span in found.damage if span.end > span.start]
    parts = [f"line{'s' * (len(numbers) > 1)} {', '.join(numbers)}"] if numbers else []
    if found.torn:
        parts.append("an unfinished last line")
    what = " and ".join(parts) or "nothing"
    if found.lost:
        what += f" (lost: {', '.join(entries(*run) for run in found.lost)})"
    return what
