"""The format: how a data key is wrapped, and how records, meta and notes are sealed with it.

A journal has a data key of 32 random bytes. What it is used for has keys of its own, each the
HMAC-SHA256 of a name under the data key. All numbers are big-endian; *context* is tenant, kind and
id, each as four bytes of length and its UTF-8. Each use begins what it authenticates with its name.

::

    the wrapped data key   1, key number (2), nonce (12), AES-256-GCM of the data key (48)
                           under the user's key; authenticated: "limpet/1 key", the first three
                           bytes, context
    a record's body        header (4), chain (16), nonce (12), AES-256-GCM of the body (n + 16),
                           CRC-32 (4) as that of every body. Authenticated: "limpet/1 record",
                           header, chain, number and count of entries (8 each), context
    meta                   {"sealed": base64 of header (4), nonce (12), AES-256-GCM of the number at
                           which it was set (8) and the model's meta}. Authenticated: "limpet/1
                           meta", header, context. What is set under a lease, before there is a
                           record, has a data key of its own: "key" is that, wrapped
    a note of the end      number (8), tag (16), keyed BLAKE2b of those and context (16). With every
                           record there is a new one, and of what makes such a code this is the
                           quickest by far
    a note of a cut        base64 of number (8), HMAC-SHA256 of "limpet/1 cut", that, context (16)

The header is that of `limpet.core.codec`: format 1, flag 2 for encrypted, and the number of the
data key, 1. *Chain* is the tag (the last 16 bytes of what AES-GCM gave) of the record before; of
the first record it is zero.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import struct
import zlib
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from limpet.errors import MissingExtra, TooLarge

if TYPE_CHECKING:
    from limpet.backends.contract import Key
    from limpet.crypto.keys import Keys

__all__ = [
    "OVERHEAD",
    "START",
    "DataKey",
    "Forged",
    "chain_of",
    "is_sealed",
    "key_of_meta",
    "tag_of",
    "wrapped_under",
]

#: format 1, encrypted, data key 1.
HEADER = bytes((1, 0b10, 0, 1))
NONCE = 12
TAG = 16
CHECK = 4
#: Bytes that a sealed body has more than what is in it.
OVERHEAD = len(HEADER) + TAG + NONCE + TAG + CHECK
#: Bytes of a data key that is wrapped.
WRAPPED_SIZE = 63
#: The chain of a first record.
START = bytes(TAG)
#: Records under one data key: nonces are random, and of 2^32 two are the same with a probability of
#: 2^-33.
MOST_RECORDS = 1 << 32

# As in the codec: the CRC-32 of what ends with its own.
_WHOLE = 0x2144DF1C

# Number and count of a record.
_PLACE = struct.Struct(">QQ").pack

_RECORD, _META, _WRAP = b"limpet/1 record", b"limpet/1 meta", b"limpet/1 key"
_END, _CUT = b"limpet/1 end", b"limpet/1 cut"
_NOTE_CHANGED = "a note in its head is not what was written there."


class Forged(Exception):
    """Something is not what was written there; the text says what."""


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtra.of("Encryption", "cryptography", "crypto") from error
    return AESGCM(key)


def _opened(cipher: Any, nonce: bytes, sealed: bytes, context: bytes, why: str) -> bytes:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

    try:
        found: bytes = cipher.decrypt(nonce, sealed, context)
    except InvalidTag:
        raise Forged(why) from None
    return found


def context_of(key: Key) -> bytes:
    """Tenant, kind and id, such that no two keys have the same."""
    parts = [part.encode() for part in key]
    return b"".join(len(part).to_bytes(4) + part for part in parts)


class DataKey:
    """The secret of one journal, and all that is done with it."""

    def __init__(self, secret: bytes, key: Key) -> None:
        self._secret = secret
        self._context = context_of(key)
        self._records = _cipher(self._subkey(_RECORD))
        self._ends = self._subkey(_END)
        self._notes = self._subkey(b"limpet/1 note")

    def __repr__(self) -> str:
        return "DataKey(…)"

    @classmethod
    def new(cls, key: Key) -> DataKey:
        """A random one, for the journal *key*."""
        return cls(os.urandom(32), key)

    def _subkey(self, name: bytes) -> bytes:
        return hmac.digest(self._secret, name, "sha256")

    # -- wrapped by a key of the user's --------------------------------------------------------

    def wrapped(self, keys: Keys) -> str:
        """The data key under the user's current key, as text."""
        keys.refresh()
        head = b"\x01" + keys.current.to_bytes(2)
        nonce = os.urandom(NONCE)
        cipher = _cipher(keys.secret(keys.current))
        sealed = cipher.encrypt(nonce, self._secret, _WRAP + head + self._context)
        return base64.urlsafe_b64encode(head + nonce + sealed).decode()

    @classmethod
    def unwrapped(cls, text: str, keys: Keys, key: Key) -> DataKey:
        """The data key of the journal *key*, of which *text* is what `wrapped` gave."""
        number = wrapped_under(text)
        raw = _wrapped(text)
        head, nonce, sealed = raw[:3], raw[3 : 3 + NONCE], raw[3 + NONCE :]
        secret = _opened(
            _cipher(keys.secret(number)),
            nonce,
            sealed,
            _WRAP + head + context_of(key),
            f"its data key, wrapped under key {number}, was changed or is another journal's; or "
            f"your key {number} is not the one that it was wrapped under.",
        )
        return cls(secret, key)

    # -- records -------------------------------------------------------------------------------

    def seal(self, body: bytes, *, seq: int, count: int, chain: bytes) -> bytes:
        """The body of a record of *count* entries that ends at *seq*, behind the one with *chain*.

        Its own tag is `tag_of` it.
        """
        if seq > MOST_RECORDS:
            msg = (
                f"This journal has {MOST_RECORDS:,} entries under one data key, and takes no "
                "more. Go on in another one: nonces are random, and would begin to repeat."
            )
            raise TooLarge(msg)
        nonce = os.urandom(NONCE)
        head = HEADER + chain
        sealed = self._records.encrypt(nonce, body, self._record_context(head, seq, count))
        whole = b"".join((head, nonce, sealed))
        return whole + zlib.crc32(whole, _WHOLE).to_bytes(CHECK, "little")

    def open(self, sealed: bytes, *, seq: int, count: int) -> bytes:
        """What `seal` was given; `Forged` if this is not that."""
        head, begin = sealed[: len(HEADER) + TAG], len(HEADER) + TAG + NONCE
        return _opened(
            self._records,
            sealed[len(head) : begin],
            sealed[begin:-CHECK],
            self._record_context(head, seq, count),
            f"the record that ends at {seq} was changed, or was written in another place.",
        )

    def _record_context(self, head: bytes, seq: int, count: int) -> bytes:
        return b"".join((_RECORD, head, _PLACE(seq, count), self._context))

    # -- meta ----------------------------------------------------------------------------------

    def seal_meta(self, meta: bytes, seq: int, wrapped: str | None = None) -> bytes:
        """*meta*, set at the number *seq*, as JSON; with this key *wrapped*, if it has its own."""
        nonce = os.urandom(NONCE)
        cipher = _cipher(self._subkey(_META))
        sealed = cipher.encrypt(nonce, seq.to_bytes(8) + meta, _META + HEADER + self._context)
        text = base64.urlsafe_b64encode(HEADER + nonce + sealed).decode()
        own = {} if wrapped is None else {"key": wrapped}
        return msgspec.json.encode({"sealed": text, **own})

    def open_meta(self, stored: bytes, seq: int) -> bytes:
        """What `seal_meta` was given, in a journal that is at *seq*."""
        try:
            raw = base64.b64decode(_envelope(stored)["sealed"], altchars=b"-_", validate=True)
        except (LookupError, ValueError):
            raise Forged("its meta is not encrypted, or was changed.") from None
        head, nonce, sealed = raw[:4], raw[4 : 4 + NONCE], raw[4 + NONCE :]
        if len(sealed) < 8 + TAG:
            raise Forged("its meta is cut short.")
        found = _opened(
            _cipher(self._subkey(_META)),
            nonce,
            sealed,
            _META + head + self._context,
            "its meta was changed, or was written in another place.",
        )
        if int.from_bytes(found[:8]) > seq:
            raise Forged(f"its meta was set at {int.from_bytes(found[:8])}, and it ends at {seq}.")
        return found[8:]

    # -- notes of where it ends, and up to where it was cut off --------------------------------

    def end_note(self, seq: int, tag: bytes) -> bytes:
        """A note that the record which ends at *seq* has this *tag*."""
        content = seq.to_bytes(8) + tag
        return content + self._end_mac(content)

    def read_end(self, note: bytes) -> tuple[int, bytes]:
        """What `end_note` was given."""
        content, mac = note[: 8 + TAG], note[8 + TAG :]
        if not hmac.compare_digest(mac, self._end_mac(content)):
            raise Forged(_NOTE_CHANGED)
        return int.from_bytes(content[:8]), content[8:]

    def read_end_label(self, label: str) -> tuple[int, bytes]:
        """The same, where it is a label: so it was before backends kept notes."""
        content = self._checked(label, _END, 8 + TAG)
        return int.from_bytes(content[:8]), content[8:]

    def _end_mac(self, content: bytes) -> bytes:
        return blake2b(content + self._context, digest_size=TAG, key=self._ends).digest()

    def cut_note(self, seq: int) -> str:
        """A note that entries up to *seq* may be gone: somebody has compacted them away."""
        content = seq.to_bytes(8)
        return base64.urlsafe_b64encode(content + self._mac(_CUT, content)).decode()

    def read_cut(self, note: str) -> int:
        """What `cut_note` was given."""
        return int.from_bytes(self._checked(note, _CUT, 8))

    def _mac(self, name: bytes, content: bytes) -> bytes:
        return hmac.digest(self._notes, name + content + self._context, "sha256")[:TAG]

    def _checked(self, label: str, name: bytes, size: int) -> bytes:
        """The *size* bytes of content in a *label*, if it is what was written."""
        raw = _decoded(label, "a note in its head")
        if not hmac.compare_digest(raw[size:], self._mac(name, raw[:size])):
            raise Forged(_NOTE_CHANGED)
        return raw[:size]


def key_of_meta(stored: bytes) -> str | None:
    """The wrapped key of a meta that was set before its journal began, and so has its own."""
    return _envelope(stored).get("key")


def _envelope(stored: bytes) -> dict[str, str]:
    try:
        return msgspec.json.decode(stored, type=dict[str, str])
    except msgspec.DecodeError:
        raise Forged("its meta is not encrypted, or was changed.") from None


def wrapped_under(text: str) -> int:
    """The number of the user's key that wrapped a data key."""
    raw = _wrapped(text)
    if raw[0] != 1:
        raise Forged(f"its wrapped data key has format {raw[0]}, which this version does not read.")
    return int.from_bytes(raw[1:3])


def is_sealed(body: bytes) -> bool:
    """Whether *body* is one that `DataKey.seal` could have made, as far as its form goes."""
    return (
        body[: len(HEADER)] == HEADER
        and len(body) >= OVERHEAD
        and zlib.crc32(body, _WHOLE) == _WHOLE
    )


def chain_of(sealed: bytes) -> bytes:
    """The tag of the record before the one with this body."""
    return sealed[len(HEADER) : len(HEADER) + TAG]


def tag_of(sealed: bytes) -> bytes:
    """The tag of a record, by its body."""
    return sealed[-TAG - CHECK : -CHECK]


def _decoded(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise Forged(f"{what} is not what was written there.") from None


def _wrapped(text: str) -> bytes:
    raw = _decoded(text, "its wrapped data key")
    if len(raw) != WRAPPED_SIZE:
        raise Forged(f"its wrapped data key has {len(raw)} bytes, and should have {WRAPPED_SIZE}.")
    return raw
