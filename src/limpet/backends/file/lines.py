"""The lines of a journal's file: what is in them, and how they become text and back.

The first line says what this is and whose; every other is one append::

    {"limpet":"journal","format":1,"tenant":"default","kind":"conversation","id":"alice",…}
    {"seq":1,"count":1,"at":"2026-01-31T12:00:00.123456Z","size":57,…,"body":["message",{…}],…}

A line holds all that a head needs, so that the last one is the journal's present: ``status``,
``labels``, ``ttl`` and ``expires`` where they are set; ``size``, the bytes of all bodies so far.
With ``count`` 0 it adds no record. ``lost`` says how many entries before it a repair took out.

A body is opaque bytes. Where all but its first and last four are JSON text, as the core's codec
writes it, that text stands in the line as it is, with the others in hex as ``head`` and ``tail``.
Any other is given as ``base64``. Each line ends with the CRC-32 of what is before it.
"""

from __future__ import annotations

from binascii import b2a_base64
from datetime import datetime
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec
from msgspec import Raw, Struct

from limpet.backends.contract import (
    UNSET,
    Head,
    Key,
    Lease,
    Record,
    from_micros,
    micros,
    to_micros,
)

if TYPE_CHECKING:
    from limpet.backends.contract import Append, Origin

__all__ = [
    "FORMAT",
    "Header",
    "Line",
    "State",
    "body_of",
    "entries",
    "id_text",
    "is_beginning",
    "is_unfinished",
    "is_whole",
    "pack",
    "read_header",
    "read_line",
    "record_of",
    "seal",
    "to_micros",
]

FORMAT = 1

#: ``,"crc":"01234567"}``
_SEAL = 18

#: The bytes around the JSON text of a body.
_EDGE = 4

#: How every journal begins.
_BEGINNING = b'{"limpet":"journal",'

#: That many zero bytes are no flipped bit but room that was never written.
_HOLE = b"\0" * 8


class Header(Struct, kw_only=True):
    """A file's first line."""

    limpet: str = "journal"
    format: int = FORMAT
    tenant: str
    kind: str
    id: str
    created: datetime
    floor: int
    floor_size: int  # bytes of the bodies up to the floor

    @property
    def key(self) -> Key:
        """Whose journal this is."""
        return Key(self.tenant, self.kind, self.id)


class _Written(Struct, kw_only=True, omit_defaults=True):
    """Any other line, but for its body; in the order in which people want to read it."""

    seq: int
    count: int
    at: datetime
    id: str | None = None
    status: str | None = None
    labels: dict[str, str] = {}
    ttl: float | None = None  # seconds
    expires: datetime | None = None
    size: int
    updated: datetime | None = None  # of the last record, in a line that is none
    lost: int = 0
    note: str | None = None


class Line(_Written, kw_only=True):
    """Any other line, as it is read."""

    head: str = ""
    body: Raw = Raw()
    tail: str = ""
    base64: bytes | None = None

    @property
    def start(self) -> int:
        """The number of the entry that must be right before it."""
        return self.seq - self.count - self.lost


_encode = msgspec.json.Encoder().encode
_header = msgspec.json.Decoder(Header).decode
_line = msgspec.json.Decoder(Line).decode
_raw = msgspec.json.Decoder(Raw).decode


# -- text ------------------------------------------------------------------------------------------


def seal(content: Struct, more: bytes = b"") -> bytes:
    """*content* as a line, with *more* fields, its checksum and its end."""
    text = _encode(content)[:-1] + more
    return text + b',"crc":"%08x"}\n' % crc32(text)


def is_whole(raw: bytes) -> bool:
    r"""Whether *raw*, a line without its end, is as it was written.

    No line holds a bare ``\r``: one behind it is half of a line end that git has made of ours
    (``core.autocrlf``), and will make ours again.
    """
    if raw[-1:] == b"\r":
        raw = raw[:-1]
    return raw[-_SEAL:] == b',"crc":"%08x"}' % crc32(memoryview(raw)[:-_SEAL])


def is_unfinished(raw: bytes, *, closed: bool) -> bool:
    """Whether *raw*, which is not whole, can be the last line of a writer that died.

    Then its end is missing, or it has room that was never filled, as after a power loss. A line
    with a wrong byte, be it the one that ends it, was altered later.
    """
    if closed:
        return raw[:1] == b"\0" or _HOLE in raw
    return not is_whole(raw[:-1])


def id_text(id_: str) -> bytes:
    """What is in the line of a record of that id, and perhaps in some others."""
    return b'"id":' + _encode(id_)


def is_beginning(raw: bytes) -> bool:
    """Whether *raw* can be the first line of a journal, or a part of it that was written."""
    return raw[: len(_BEGINNING)] == _BEGINNING[: len(raw)]


def read_header(raw: bytes) -> Header:
    """The header that *raw* is; `msgspec.MsgspecError` if it is something else."""
    return _header(raw)


def read_line(raw: bytes) -> Line:
    """The line that *raw* is; `msgspec.MsgspecError` if it is something else."""
    return _line(raw)


# -- bodies ----------------------------------------------------------------------------------------


def pack(body: bytes) -> bytes:
    """The fields of a line that hold *body*."""
    text = body[_EDGE:-_EDGE]
    if not _is_json(text):
        return b',"base64":"' + b2a_base64(body, newline=False) + b'"'
    head, tail = body[:_EDGE].hex().encode(), body[-_EDGE:].hex().encode()
    return b',"head":"' + head + b'","body":' + text + b',"tail":"' + tail + b'"'


def body_of(line: Line) -> bytes:
    """The body, to the byte."""
    if line.base64 is not None:
        return line.base64
    return b"".join((bytes.fromhex(line.head), line.body, bytes.fromhex(line.tail)))


def _is_json(text: bytes) -> bool:
    """Whether *text* is one JSON value on one line that comes back as it went in."""
    if not text or b"\n" in text or b"\r" in text:
        return False
    try:
        if not text.isascii():
            text.decode()  # msgspec does not look into text that it leaves as it is
        return bytes(_raw(text)) == text
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def record_of(line: Line) -> Record:
    """The record that *line* holds."""
    return Record(line.seq, line.count, to_micros(line.at), body_of(line), line.id)


def entries(first: int, last: int) -> str:
    """Numbers of entries, in words."""
    return f"entry {first}" if first == last else f"entries {first} to {last}"


# -- a journal's present ---------------------------------------------------------------------------


class State(Struct):
    """Where a journal stands, by its first and its last line."""

    key: Key
    created: int
    updated: int
    seq: int = 0
    floor: int = 0
    size: int = 0
    floor_size: int = 0
    ttl: int | None = None
    expires: int | None = None
    status: str | None = None
    labels: dict[str, str] = {}

    @classmethod
    def of(cls, header: Header, line: Line) -> State:
        """The present of a journal whose last line is *line*."""
        return cls(
            key=header.key,
            created=to_micros(header.created),
            updated=to_micros(line.updated or line.at),
            seq=line.seq,
            floor=header.floor,
            size=line.size,
            floor_size=header.floor_size,
            ttl=None if line.ttl is None else micros(line.ttl),
            expires=None if line.expires is None else to_micros(line.expires),
            status=line.status,
            labels=line.labels,
        )

    def changed(self, request: Append, now: int) -> State:
        """The journal's present after *request*."""
        new = msgspec.structs.replace(self)
        at = now if request.origin is None else request.origin.at
        new._set(request, at)  # noqa: SLF001 - its own
        if request.origin is not None and not self.seq:
            new._begin(request.origin)  # noqa: SLF001
        if request.count:
            new.seq += request.count
            new.size += len(request.body)
            new.updated = max(at, new.updated)  # a clock may be set back, a journal's times do not
        return new

    def _set(self, request: Append, at: int) -> None:
        if request.status is not UNSET:
            self.status = request.status
        if request.labels is not UNSET:
            merged = {**self.labels, **request.labels}
            self.labels = {name: value for name, value in merged.items() if value is not None}
        if request.ttl is not UNSET:
            self.ttl = None if request.ttl is None else micros(request.ttl)
        elif not self.seq:
            self.ttl = None if request.default_ttl is None else micros(request.default_ttl)
        if request.count or request.ttl is not UNSET:
            self.expires = None if self.ttl is None else at + self.ttl

    def _begin(self, origin: Origin) -> None:
        self.created = self.updated = origin.created
        self.seq = self.floor = origin.floor

    def header(self) -> bytes:
        """The first line."""
        tenant, kind, id_ = self.key
        return seal(
            Header(
                tenant=tenant,
                kind=kind,
                id=id_,
                created=from_micros(self.created),
                floor=self.floor,
                floor_size=self.floor_size,
            )
        )

    def record(self, request: Append, body: bytes) -> bytes:
        """The line of *request*, which has led to this state; *body* is its body, packed."""
        return seal(self._line(request.count, from_micros(self.updated), request.id), body)

    def mark(self, now: int, *, lost: int = 0, note: str | None = None) -> bytes:
        """A line that adds no record, for what has changed besides."""
        line = self._line(0, from_micros(now), None)
        line.updated, line.lost, line.note = from_micros(self.updated), lost, note
        return seal(line)

    def _line(self, count: int, at: datetime, id_: str | None) -> _Written:
        return _Written(
            seq=self.seq,
            count=count,
            at=at,
            id=id_,
            status=self.status,
            labels=self.labels,
            ttl=None if self.ttl is None else self.ttl / 1e6,
            expires=None if self.expires is None else from_micros(self.expires),
            size=self.size,
        )

    def head(self, lease: Lease | None) -> Head:
        """The same as the contract has it."""
        return Head(
            key=self.key,
            seq=self.seq,
            floor=self.floor,
            size=self.size - self.floor_size,
            created=self.created,
            updated=self.updated,
            ttl=self.ttl,
            expires=self.expires,
            status=self.status,
            labels=dict(self.labels),
            lease=lease,
        )
