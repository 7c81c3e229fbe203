"""The text of a ``file:`` store: what each field means, and how lines become text and back.

A journal is a file of JSON objects, one a line. The first line says whose journal this is:

.. code-block:: json

    {"limpet":"journal","format":1,"tenant":"default","kind":"conversation","id":"alice",
     "incarnation":"8d0c51f2a7b3e964","created":"2026-01-31T12:00:00.123456Z","first":1,
     "dropped_bytes":0,"crc":"1f0e2d3c"}

=================  =================================================================================
limpet, format     what this is, and which version of this page it follows
tenant, kind, id   the journal's key; the file's name is made of it
incarnation        tells this journal from earlier ones under the same key
created            when it began
first              number of the oldest entry that was not compacted away
dropped_bytes      bytes of the bodies that are gone: compacted away, or lost before a repair
=================  =================================================================================

Every other line is an append. It repeats the journal's attributes, so that the last line and the
first are all that is needed to know where the journal stands:

.. code-block:: json

    {"seq":2,"count":1,"at":"2026-01-31T12:00:05.000001Z","status":"open","total_bytes":57,
     "body_prefix":"01000000","body":["message",{"role":"user","content":"Hello"}],
     "body_suffix":"5ac81a00","crc":"0a1b2c3d"}

================================  ==================================================================
seq                               number of its last entry
count                             how many entries it adds; 0: only attributes have changed
at                                when that was
id                                the append's id, where its caller gave one
status, labels, meta              the journal's attributes from here on, where they are set
record_note                       the note that goes with the newest record, in base64
ttl, expires                      seconds to live after an append; when that will be over
total_bytes                       bytes of all bodies so far, also of those that are gone
updated                           when the last entry was added, in a line that adds none
lost, note                        how many entries before this line a repair took out, and why
body                              the record's JSON text, as the store's codec made it
body_prefix, body_suffix          the bytes before and behind that text, in hex
body_base64, meta_base64          a body or a meta that is not JSON text on one line, in base64
crc                               in every line: the CRC-32 of all that stands before it, in hex
================================  ==================================================================

A lease is a file of one such line: the journal's ``tenant``, ``kind`` and ``id``; ``holder``,
``epoch`` and ``until``; and while there is no record, the attributes that the journal will have.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from limpet.backends.contract import Head, Key, Lease, Record, from_micros, micros, to_micros

__all__ = [
    "FORMAT",
    "MARKER_TEXT",
    "Header",
    "Line",
    "Marker",
    "attributes_line",
    "changed_line",
    "decode_header",
    "decode_line",
    "decode_marker",
    "encode",
    "head_of",
    "header_of",
    "id_text",
    "is_beginning",
    "is_unfinished",
    "is_whole",
    "lease_in",
    "lease_text",
    "leased_head",
    "record_line",
]

FORMAT = 1

#: The length of ``,"crc":"01234567"}``, which ends every line.
_CRC = 18

#: The bytes before, and behind, the JSON text of a body.
_EDGE = 4

#: How every journal begins.
_BEGINNING = b'{"limpet":"journal",'

#: That many zero bytes are no flipped bit but room that was never written.
_HOLE = b"\0" * 8


class Marker(Struct):
    """The content of ``limpet.json``, which says that a directory is a store."""

    limpet: str
    format: int


class Header(Struct, kw_only=True):
    """The first line of a journal."""

    limpet: str = "journal"
    format: int = FORMAT
    tenant: str
    kind: str
    id: str
    incarnation: str
    created: datetime
    first: int
    dropped_bytes: int

    @property
    def key(self) -> Key:
        """Whose journal this is."""
        return Key(self.tenant, self.kind, self.id)


class Line(Struct, kw_only=True, omit_defaults=True):
    """Any other line, in the order in which people want to read it."""

    seq: int
    count: int
    at: datetime
    id: str | None = None
    status: str | None = None
    labels: dict[str, str] = {}
    meta: Raw | UnsetType = UNSET
    meta_base64: bytes | None = None
    record_note: bytes | None = None
    ttl: float | None = None
    expires: datetime | None = None
    total_bytes: int
    updated: datetime | None = None
    lost: int = 0
    note: str | None = None
    body_prefix: str = ""
    body: Raw | UnsetType = UNSET
    body_suffix: str = ""
    body_base64: bytes | None = None

    @property
    def previous(self) -> int:
        """The number of the entry that must be right before it."""
        return self.seq - self.count - self.lost

    def record_body(self) -> bytes:
        """The body of its record, to the byte; empty if it has none."""
        if self.body is UNSET:
            return self.body_base64 or b""
        prefix, suffix = bytes.fromhex(self.body_prefix), bytes.fromhex(self.body_suffix)
        return b"".join((prefix, self.body, suffix))

    def record(self) -> Record:
        """The record that it holds."""
        return Record(self.seq, self.count, to_micros(self.at), self.record_body(), self.id)


class _LeaseLine(Struct, kw_only=True, omit_defaults=True):
    """What is in the file of a lease."""

    tenant: str
    kind: str
    id: str
    holder: str
    epoch: int
    until: datetime
    status: str | None = None
    labels: dict[str, str] = {}
    meta: Raw | UnsetType = UNSET
    meta_base64: bytes | None = None
    ttl: float | None = None
    expires: datetime | None = None


_encode = msgspec.json.Encoder().encode
_decode_raw = msgspec.json.Decoder(Raw).decode
_decode_lease = msgspec.json.Decoder(_LeaseLine).decode

#: These raise `msgspec.DecodeError` for anything else.
decode_marker = msgspec.json.Decoder(Marker).decode
decode_header = msgspec.json.Decoder(Header).decode
decode_line = msgspec.json.Decoder(Line).decode

MARKER_TEXT = _encode(Marker("store", FORMAT)) + b"\n"


# -- heads and records as lines --------------------------------------------------------------------


def header_of(head: Head, dropped: int) -> Header:
    """The first line of a journal with this *head*, of which *dropped* bytes of bodies are gone."""
    tenant, kind, id_ = head.key
    return Header(
        tenant=tenant,
        kind=kind,
        id=id_,
        incarnation=head.incarnation,
        created=from_micros(head.created),
        first=head.first,
        dropped_bytes=dropped,
    )


def record_line(head: Head, dropped: int, record: Record) -> Line:
    """The line of a *record*, after which the journal has this *head*."""
    line = _line(head, dropped, record.count, record.at)
    line.id = record.id
    _set_body(line, record.body)
    return line


def _set_body(line: Line, body: bytes) -> None:
    text = body[_EDGE:-_EDGE]
    if _is_json(text):
        line.body_prefix = body[:_EDGE].hex()
        line.body = Raw(text)
        line.body_suffix = body[-_EDGE:].hex()
    else:
        line.body_base64 = body


def changed_line(line: Line, head: Head, total: int, body: bytes | None) -> Line:
    """*line* with another *body*, if there is one, of a journal with this *head* in the end."""
    made = structs.replace(line, total_bytes=total, status=head.status, labels=head.labels)
    made.meta, made.meta_base64, made.record_note = UNSET, None, head.note
    _set_meta(made, head.meta)
    if body is not None:
        made.body, made.body_base64 = UNSET, None
        made.body_prefix = made.body_suffix = ""
        _set_body(made, body)
    return made


def attributes_line(
    head: Head, dropped: int, at: int, *, lost: int = 0, note: str | None = None
) -> Line:
    """A line without a record, after which the journal has this *head*."""
    line = _line(head, dropped, 0, at)
    line.updated, line.lost, line.note = from_micros(head.updated), lost, note
    return line


def _line(head: Head, dropped: int, count: int, at: int) -> Line:
    line = Line(
        seq=head.seq,
        count=count,
        at=from_micros(at),
        status=head.status,
        labels=head.labels,
        record_note=head.note,
        ttl=None if head.ttl is None else head.ttl / 1e6,
        expires=None if head.expires is None else from_micros(head.expires),
        total_bytes=dropped + head.size,
    )
    _set_meta(line, head.meta)
    return line


def head_of(header: Header, last: Line) -> Head:
    """The head of a journal with this *header* and this *last* line, without its lease."""
    return Head(
        header.key,
        header.incarnation,
        last.seq,
        header.first,
        last.total_bytes - header.dropped_bytes,
        to_micros(header.created),
        to_micros(last.updated or last.at),
        None if last.ttl is None else micros(last.ttl),
        None if last.expires is None else to_micros(last.expires),
        last.status,
        last.labels,
        _meta(last),
        note=last.record_note,
    )


def lease_text(head: Head, lease: Lease) -> bytes:
    """The content of the file for a *lease* on the journal with this *head*."""
    tenant, kind, id_ = head.key
    line = _LeaseLine(
        tenant=tenant,
        kind=kind,
        id=id_,
        holder=lease.holder,
        epoch=lease.epoch,
        until=from_micros(lease.until),
    )
    if not head.seq:
        line.status, line.labels = head.status, head.labels
        _set_meta(line, head.meta)
        line.ttl = None if head.ttl is None else head.ttl / 1e6
        line.expires = None if head.expires is None else from_micros(head.expires)
    return encode(line)


def leased_head(text: bytes, at: int) -> Head | None:
    """What `lease_text` was given, as a head without a record at the time *at*.

    None if that cannot be read. Nothing is at risk then: by the clock, the next lease gets a higher
    epoch all the same.
    """
    line = _lease_line(text)
    if line is None:
        return None
    return Head(
        Key(line.tenant, line.kind, line.id),
        "",
        0,
        1,
        0,
        at,
        at,
        None if line.ttl is None else micros(line.ttl),
        None if line.expires is None else to_micros(line.expires),
        line.status,
        line.labels,
        _meta(line),
        Lease(line.holder, line.epoch, to_micros(line.until)),
    )


@lru_cache(maxsize=128)  # under a lease, it is read again for every append
def lease_in(text: bytes) -> Lease | None:
    """The lease alone."""
    line = _lease_line(text)
    return None if line is None else Lease(line.holder, line.epoch, to_micros(line.until))


def _lease_line(text: bytes) -> _LeaseLine | None:
    if not is_whole(text.removesuffix(b"\n")):
        return None
    try:
        return _decode_lease(text)
    except msgspec.DecodeError:
        return None


def _set_meta(line: Line | _LeaseLine, meta: bytes | None) -> None:
    if meta is not None:
        if _is_json(meta):
            line.meta = Raw(meta)
        else:
            line.meta_base64 = meta


def _meta(line: Line | _LeaseLine) -> bytes | None:
    return line.meta_base64 if line.meta is UNSET else bytes(line.meta)


def _is_json(text: bytes) -> bool:
    """Whether *text* is one JSON value on one line that comes back as it went in."""
    if not text or b"\n" in text or b"\r" in text:
        return False
    try:
        if not text.isascii():
            text.decode()  # msgspec does not look into text that it leaves as it is
        return bytes(_decode_raw(text)) == text
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


# -- lines as text ---------------------------------------------------------------------------------


def encode(content: Struct) -> bytes:
    """*content* as a line, with its checksum and its end."""
    text = _encode(content)[:-1]
    return text + b',"crc":"%08x"}\n' % crc32(text)


def id_text(id_: str) -> bytes:
    """What is in the line of a record with that id, and perhaps in some others."""
    return b'"id":' + _encode(id_)


def is_whole(raw: bytes) -> bool:
    r"""Whether *raw*, a line without its end, is as it was written.

    No line holds a bare ``\r``: one behind it is half of a line end that git has made of ours
    (``core.autocrlf``), and will make ours again.
    """
    if raw[-1:] == b"\r":
        raw = raw[:-1]
    return raw[-_CRC:] == b',"crc":"%08x"}' % crc32(memoryview(raw)[:-_CRC])


def is_unfinished(raw: bytes, *, closed: bool) -> bool:
    """Whether *raw*, which is not whole, can be the last line of a writer that died.

    Then its end is missing, or it has room that was never filled, as after a power loss. A line
    with a wrong byte, be it the one that ends it, was altered later.
    """
    if closed:
        return raw[:1] == b"\0" or _HOLE in raw
    return not is_whole(raw[:-1])


def is_beginning(raw: bytes) -> bool:
    """Whether *raw* can be the first line of a journal, or a part of it that was written."""
    return raw[: len(_BEGINNING)] == _BEGINNING[: len(raw)]
