"""What `limpet doctor` finds in a ``file:`` store, and how it repairs a journal.

A repair writes the file anew without its damaged lines, and puts those into a file beside it, byte
for byte. Where entries have gone with them, a line with ``lost`` stands in their place: the gap is
then known, and numbers that were given out stay so.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct, structs

from limpet.backends.contract import Key, new_incarnation
from limpet.backends.facts import Fact, human_size
from limpet.backends.file import disk
from limpet.backends.file.directory import SUFFIX, name_of
from limpet.backends.file.format import (
    FORMAT,
    Header,
    Line,
    attributes_line,
    decode_header,
    decode_line,
    encode,
    head_of,
    is_unfinished,
    is_whole,
)
from limpet.backends.file.reading import TextFile, entries, opened
from limpet.errors import NotAStore, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.backends.file.directory import Directory, Paths
    from limpet.backends.file.writing import Stripe

__all__ = ["facts", "repair"]

T = TypeVar("T")

#: What follows a journal's name in that of a file with what was damaged in it.
QUARANTINE = ".damaged-"

NOTE = "damaged lines were moved to a file beside this one"

ADVICE = (
    "Copy the directory away first. Then go back to a backup (`limpet restore BACKUP --replace`), "
    "or run `limpet doctor --repair`: it moves what is damaged to a file beside it and keeps the "
    "rest."
)

# What can still be made out of a damaged line. It is believed only where something confirms it; an
# incarnation needs nothing: an altered one is a new one.
_TEXT = rb'("(?:[^"\\]|\\.)*")'
_KEY = re.compile(rb'"tenant":%b,"kind":%b,"id":%b' % (_TEXT, _TEXT, _TEXT))
_INCARNATION = re.compile(rb'"incarnation":"(\w+)"')
_NUMBERS = re.compile(rb'\{"seq":(\d{1,15}),"count":(\d{1,15}),')


# -- what is in a file -----------------------------------------------------------------------------


class Damage(Struct, frozen=True):
    """Bytes that are not as they were written, or not where they belong."""

    number: int  # of the line
    start: int
    end: int
    why: str


class Examination:
    """All that there is in a file: what can be kept, in order, and what cannot."""

    key: Key | None = None
    newer = False  # a newer release wrote it, and this one had better not touch it
    torn: Damage | None = None  # a last line that was never finished
    lines = 0

    _header: Header | None = None
    _incarnation = b""  # in a header that is damaged
    _last: Line | None = None  # the last one that is kept
    _other: Line | None = None  # the last one of another history, if it was before this
    _seq: int | None = None  # of the last entry that is kept; None: not known yet
    _claimed = 0  # the same, if damaged lines are believed
    _lost_bytes = 0

    def __init__(self, text: TextFile, name: str) -> None:
        self.damage: list[Damage] = []
        self.lost: list[tuple[int, int]] = []  # entries, from and to
        self.gaps: list[tuple[int, int]] = []  # the same, taken out by earlier repairs
        self._text = text
        self._name = name
        self._kept: list[tuple[int, int] | bytes] = []  # a run of good lines, or what to put in
        for offset, raw in text.forward(0, text.size):
            self.lines += 1
            end = min(offset + len(raw) + 1, text.size)
            closed = end - offset > len(raw)
            span = Damage(self.lines, offset, end, "it does not match its checksum")
            if self.lines == 1:
                self._examine_header(raw, span)
            elif end < text.size or is_whole(raw) or not is_unfinished(raw, closed=closed):
                self._examine_line(raw, span)
            else:
                self.torn = span
        if not text.size:
            self.damage.append(Damage(1, 0, 0, "the file is empty"))
        elif not self.damage and self._last is None:
            self.damage.append(Damage(2, text.size, text.size, "the first record is missing"))
        if self._seq is not None and self._claimed > self._seq:
            self._lose(self._seq, self._claimed, self._last)

    def _examine_header(self, raw: bytes, span: Damage) -> None:
        header = self._header = _decoded(decode_header, raw)
        if header is None:
            self.key = _key_in(raw, self._name)
            found = _INCARNATION.search(raw)
            self._incarnation = found[1] if found else b""
            self.damage.append(span)
            return
        self.key = header.key
        self.newer = header.format > FORMAT
        self._seq = self._claimed = header.first - 1
        if name_of(self.key) != self._name:
            why = f"it belongs into {name_of(self.key)}{SUFFIX}; the file was renamed or copied"
            self.damage.append(structs.replace(span, why=why))
            self.key = None

    def _examine_line(self, raw: bytes, span: Damage) -> None:
        line = _decoded(decode_line, raw)
        if line is None:
            self.damage.append(span)
            numbers = _NUMBERS.match(raw)
            if numbers and int(numbers[1]) - int(numbers[2]) == self._claimed:
                self._claimed = int(numbers[1])
            return
        if self._seq is None:
            self._seq = line.previous
            self._header = self._header_before(line)
        if why := self._misfit(line, self._seq):
            self.damage.append(structs.replace(span, why=why))
            self._other = line
            return
        if line.previous > self._seq:
            self._examine_gap(line, self._seq, span)
        self._keep(line, span)
        if span.end - span.start == len(raw):  # the last line, and it has no end
            self._kept.append(b"\n")

    def _header_before(self, line: Line) -> Header | None:
        """A header for a file whose own is damaged, and whose first good line is *line*."""
        if self.key is None:
            return None
        tenant, kind, id_ = self.key
        return Header(
            tenant=tenant,
            kind=kind,
            id=id_,
            incarnation=self._incarnation.decode() or new_incarnation(),
            created=line.at,
            first=line.previous + 1,
            dropped_bytes=line.total_bytes - len(line.record_body()),
        )

    def _misfit(self, line: Line, seq: int) -> str | None:
        """Why *line*, which is whole, has no place here: a merge of two files brings such lines.

        Of two histories the first is kept.
        """
        if line.previous < seq:
            return f"entry {line.previous + 1} comes a second time"
        last, other = self._last, self._other
        if other is not None and _follows(line, other):
            fits = last is not None and _follows(line, last) and last.record() == other.record()
        else:
            fits = last is None or line.previous != last.seq or _follows(line, last)
        return None if fits else "it goes on from another line than the one before it"

    def _examine_gap(self, line: Line, seq: int, span: Damage) -> None:
        """Entries are missing before *line*: lost with what is damaged there, or by themselves."""
        if not self.damage or self.damage[-1].end != span.start:
            why = f"missing before it: {entries(seq + 1, line.previous)}"
            self.damage.append(Damage(span.number, span.start, span.start, why))
        self._lose(seq, line.previous, self._last or line)
        before = 0
        if self._last is not None:
            before = self._last.total_bytes
        elif self._header is not None:
            before = self._header.dropped_bytes
        self._lost_bytes += max(0, line.total_bytes - len(line.record_body()) - before)

    def _lose(self, seq: int, upto: int, line: Line | None) -> None:
        """Put a line where entries over *seq*, up to *upto*, are not; with the status of *line*."""
        self.lost.append((seq + 1, upto))
        header = self._header
        if header is None:
            return
        if line is None:
            line = Line(seq=seq, count=0, at=header.created, total_bytes=header.dropped_bytes)
        head = structs.replace(head_of(header, line), seq=upto)
        dropped = header.dropped_bytes
        gap = attributes_line(head, dropped, disk.now(), lost=upto - seq, note=NOTE)
        self._kept.append(encode(gap))

    def _keep(self, line: Line, span: Damage) -> None:
        previous = self._kept[-1] if self._kept else b""
        if isinstance(previous, tuple) and previous[1] == span.start:
            self._kept[-1] = (previous[0], span.end)
        else:
            self._kept.append((span.start, span.end))
        if line.lost:
            self.gaps.append((line.previous + 1, line.seq - line.count))
        self._last = line
        self._seq = self._claimed = line.seq
        self._other = None

    # -- what to do about it -----------------------------------------------------------------------

    def good(self) -> Iterator[bytes] | None:
        """The file as it is to be; None if nothing of it can stay."""
        if self.key is None or self._header is None or not self._kept:
            return None
        dropped = self._header.dropped_bytes + self._lost_bytes
        header = encode(structs.replace(self._header, dropped_bytes=dropped))
        pieces = (
            [piece] if isinstance(piece, bytes) else self._text.pieces(*piece)
            for piece in self._kept
        )
        return chain([header], chain.from_iterable(pieces))

    def bad(self) -> Iterator[bytes]:
        """What does not stay, as it is."""
        for span in [*self.damage, *([self.torn] if self.torn else [])]:
            yield from self._text.pieces(span.start, span.end)

    def removed(self) -> str:
        """What does not stay, in words."""
        numbers = [str(span.number) for span in self.damage if span.end > span.start]
        parts = [f"line{'s' * (len(numbers) > 1)} {', '.join(numbers)}"] if numbers else []
        if self.torn:
            parts.append("an unfinished last line")
        what = " and ".join(parts) or "nothing"
        if self.lost:
            what += f" (lost: {', '.join(entries(*run) for run in self.lost)})"
        return what


def _decoded(decode: Callable[[bytes], T], raw: bytes) -> T | None:
    """The line that *raw* is; None if it is damaged."""
    if not is_whole(raw):
        return None
    try:
        return decode(raw)
    except msgspec.DecodeError:
        return None


def _follows(line: Line, before: Line) -> bool:
    """Whether *line* goes on from the one *before*: by its number, and by all that was stored."""
    known = not (before.lost or line.lost)  # what was in lines that were lost is not counted
    size = line.total_bytes - len(line.record_body())
    return line.previous == before.seq and (size == before.total_bytes or not known)


def _key_in(raw: bytes, name: str) -> Key | None:
    """The key of a journal whose first line is damaged, if the file's name gives or confirms it."""
    tenant, kind, id_ = name.split("/")
    keys = [Key(tenant, kind, id_)]
    found = _KEY.search(raw)
    if found is not None:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            keys.append(Key(*(msgspec.json.decode(part, type=str) for part in found.groups())))
    return next((key for key in keys if name_of(key) == name), None)


# -- repair ----------------------------------------------------------------------------------------


def repair(stripe: Stripe, paths: Paths) -> str | None:
    """Set a journal's file right, under its lock; what was done, or None if all was well.

    A symbolic link is left alone: what it leads to is not ours.
    """
    try:
        handle = disk.open_file(paths.journal)
    except (FileNotFoundError, NotAStore):
        return None
    try:
        found = Examination(TextFile(handle, paths.journal), paths.name)
        if found.newer or not (found.damage or found.torn):
            return None
        number = 1
        while os.path.lexists(f"{paths.journal}{QUARANTINE}{number}"):
            number += 1
        aside = f"{paths.journal}{QUARANTINE}{number}"
        good = found.good()
        if good is None:
            stripe.move(paths, aside)
            return f"{paths.journal}: nothing of it could be kept. It is now {aside}."
        disk.write_new(aside, found.bad())
        stripe.rewrite(paths, good)
        return f"{paths.journal}: {found.removed()} moved to {aside}."
    finally:
        os.close(handle)


# -- facts -----------------------------------------------------------------------------------------


def facts(directory: Directory, durability: str, *, deep: bool) -> list[Fact]:
    """All that there is to say of a store; *deep*: of every line."""
    paths = [found for found in directory.all_paths() if os.path.lexists(found.journal)]
    found = [*_settings(directory.root, durability), *_sizes(paths), *_set_aside(directory)]
    if deep:
        found += _integrity(paths, directory.links())
    return found


def _settings(root: str, durability: str) -> Iterator[Fact]:
    full = durability == "full"
    mode = os.stat(root).st_mode & 0o777
    yield Fact("engine", "files of JSON Lines")
    yield Fact("directory", root)
    yield Fact(
        "directory mode",
        f"{mode:o}",
        ok=not mode & 0o077,
        advice=f"Other users of this machine can look into it: chmod 700 {root}",
    )
    yield Fact("format", str(FORMAT))
    yield Fact(
        "durability",
        "every acknowledged write survives power loss (each append is synced)"
        if full
        else "a power loss may undo the last writes (appends are not synced)",
        ok=full,
        advice="Leave out durability=normal.",
    )


def _sizes(journals: list[Paths]) -> Iterator[Fact]:
    total = 0
    kinds: dict[str, list[int]] = {}
    for paths in journals:
        with suppress(FileNotFoundError):
            total += os.lstat(paths.journal).st_size
        try:
            with opened(paths.journal) as file:
                head = None if file is None else file.head
        except StoreError:  # `_integrity` says what is wrong
            continue
        if head is not None:
            sums = kinds.setdefault(head.key.kind, [0, 0, 0])
            sums[0] += 1
            sums[1] += head.seq - head.first + 1
            sums[2] += head.size
    yield Fact("size", human_size(total))
    for kind, (count, numbers, size) in sorted(kinds.items()):
        yield Fact.of_kind(kind, count, numbers, size)


def _set_aside(directory: Directory) -> Iterator[Fact]:
    for kind in directory.kinds():
        folder = os.path.join(directory.root, kind)
        for name in sorted(os.listdir(folder)):
            if f"{SUFFIX}{QUARANTINE}" in name:
                path = os.path.join(folder, name)
                size = human_size(os.lstat(path).st_size)
                yield Fact("set aside", f"{path}, {size} that a repair took out")


def _integrity(journals: list[Paths], links: list[str]) -> Iterator[Fact]:
    """Read every line of every journal."""
    well = not links
    lines = 0
    for link in links:
        yield _link(link)
    for paths in journals:
        try:
            handle = disk.open_file(paths.journal)
        except FileNotFoundError:  # deleted meanwhile
            continue
        except NotAStore:
            well = False
            yield _link(paths.journal)
            continue
        try:
            found = Examination(TextFile(handle, paths.journal), paths.name)
        finally:
            os.close(handle)
        lines += found.lines
        for fact in _findings(paths.journal, found):
            well = well and fact.ok
            yield fact
    if well:
        yield Fact("integrity", f"{lines:,} lines, all as they were written")


def _link(path: str) -> Fact:
    advice = "Put what it leads to there, or remove the link."
    return Fact("link", f"{path} is not followed", ok=False, advice=advice)


def _findings(path: str, found: Examination) -> Iterator[Fact]:
    if found.newer:
        yield Fact("newer", f"{path}: of a newer release", ok=False, advice="Upgrade limpet.")
        return
    for span in found.damage:
        yield Fact("damaged", f"{path}, line {span.number}: {span.why}", ok=False, advice=ADVICE)
    if found.torn is not None:
        size = found.torn.end - found.torn.start
        yield Fact(
            "unfinished",
            f"{path}, line {found.torn.number}: {size} bytes without an end, which the next append "
            "drops",
            advice="Either a process died while it appended, before that was acknowledged, and "
            "nothing is missing; or the file was cut off by something else, and then what came "
            "behind is lost. Nobody can tell by the file: if no process died, restore a backup "
            "(`limpet restore BACKUP --replace`).",
            unsure=True,
        )
    for run in found.gaps:
        yield Fact("taken out", f"{path}: {entries(*run)}, by a repair")
