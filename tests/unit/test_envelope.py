"""The format of what is encrypted: it is what was published, and every bit of it counts."""

from __future__ import annotations

import json
import zlib
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.backends.contract import Key
from limpet.core.codec import Codec
from limpet.crypto.envelope import OVERHEAD, START, DataKey, Forged, chain_of, is_sealed, tag_of
from limpet.crypto.keys import Keys
from limpet.errors import KeyMissing, TooLarge
from tests.support.paths import ROOT

VECTORS: dict[str, Any] = json.loads((ROOT / "tests/data/encryption-1.json").read_text())
KEY = Key("acme", "conversation", "alice")
KEYS = Keys({1: b"1" * 32})


def made(vector: dict[str, Any]) -> tuple[Key, Keys, DataKey]:
    """Key, keys and data key of a test vector."""
    key = Key(vector["tenant"], vector["kind"], vector["id"])
    keys = Keys({vector["key_number"]: bytes.fromhex(vector["key"])})
    return key, keys, DataKey(bytes.fromhex(vector["data_key"]), key)


@pytest.mark.parametrize("vector", VECTORS["journals"], ids=lambda one: one["id"])
def test_the_published_vectors_are_what_is_written(vector: dict[str, Any]) -> None:
    """Byte for byte, given the same random numbers."""
    _, keys, data = made(vector)
    wrap_nonce = bytes.fromhex(vector["wrap_nonce"])
    with mock.patch("limpet.crypto.envelope.os.urandom", return_value=wrap_nonce):
        assert data.wrapped(keys) == vector["wrapped"]
    chain = START
    for record in vector["records"]:
        nonce = bytes.fromhex(record["nonce"])
        with mock.patch("limpet.crypto.envelope.os.urandom", return_value=nonce):
            body = data.seal(
                bytes.fromhex(record["body"]), seq=record["seq"], count=record["count"], chain=chain
            )
        assert body.hex() == record["sealed"]
        chain = tag_of(body)
    assert data.end_note(record["seq"], chain).hex() == vector["end"]
    assert data.cut_note(vector["cut_at"]) == vector["cut"]
    meta = vector["meta"]
    with mock.patch("limpet.crypto.envelope.os.urandom", return_value=bytes.fromhex(meta["nonce"])):
        assert data.seal_meta(meta["meta"].encode(), meta["seq"]).decode() == meta["sealed"]


@pytest.mark.parametrize("vector", VECTORS["journals"], ids=lambda one: one["id"])
def test_the_published_vectors_are_read(vector: dict[str, Any]) -> None:
    """By what was wrapped alone."""
    key, keys, _ = made(vector)
    data = DataKey.unwrapped(vector["wrapped"], keys, key)
    chain = START
    for record in vector["records"]:
        sealed = bytes.fromhex(record["sealed"])
        assert is_sealed(sealed)
        assert chain_of(sealed) == chain
        opened = data.open(sealed, seq=record["seq"], count=record["count"])
        assert opened.hex() == record["body"]
        chain = tag_of(sealed)
    assert data.read_end(bytes.fromhex(vector["end"])) == (record["seq"], chain)
    assert data.read_cut(vector["cut"]) == vector["cut_at"]
    meta = vector["meta"]
    assert data.open_meta(meta["sealed"].encode(), record["seq"]).decode() == meta["meta"]


@given(st.binary(max_size=300), st.data())
@settings(max_examples=300, deadline=None)
def test_a_flipped_bit_is_noticed_wherever_it_is(body: bytes, data: st.DataObject) -> None:
    """In the header, the chain, the nonce, the content and the tag; also with a new checksum."""
    key = DataKey(b"d" * 32, KEY)
    whole = bytearray(key.seal(body, seq=7, count=2, chain=b"c" * 16))
    assert len(whole) == len(body) + OVERHEAD
    at = data.draw(st.integers(0, len(whole) - 5))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    assert not is_sealed(bytes(whole))
    whole[-4:] = zlib.crc32(whole[:-4], 0x2144DF1C).to_bytes(4, "little")
    with pytest.raises(Forged):
        key.open(bytes(whole), seq=7, count=2)


@pytest.mark.parametrize(
    "change", [{"seq": 8}, {"count": 1}, {"seq": 6}, {"seq": 7 + (1 << 32)}, {"count": 3}]
)
def test_a_record_belongs_to_its_number(change: dict[str, int]) -> None:
    """And to how many entries it has."""
    data = DataKey(b"d" * 32, KEY)
    whole = data.seal(b"body", seq=7, count=2, chain=START)
    with pytest.raises(Forged):
        data.open(whole, **{"seq": 7, "count": 2, **change})


@pytest.mark.parametrize(
    "other", [KEY._replace(tenant="b"), KEY._replace(kind="task"), KEY._replace(id="alic")]
)
def test_what_belongs_to_one_journal_is_refused_in_another(other: Key) -> None:
    """Also where both have the same data key, as a copy of its wrap would make it."""
    data, there = DataKey(b"d" * 32, KEY), DataKey(b"d" * 32, other)
    with pytest.raises(Forged):
        there.open(data.seal(b"body", seq=1, count=1, chain=START), seq=1, count=1)
    with pytest.raises(Forged):
        there.open_meta(data.seal_meta(b"{}", 1), 1)
    with pytest.raises(Forged):
        there.read_end(data.end_note(1, START))
    with pytest.raises(Forged):
        there.read_cut(data.cut_note(1))
    with pytest.raises(Forged):
        DataKey.unwrapped(data.wrapped(KEYS), KEYS, other)


def test_keys_are_told_apart() -> None:
    """One that is missing, and another one of the same number."""
    wrapped = DataKey.new(KEY).wrapped(KEYS)
    with pytest.raises(KeyMissing, match="key 1"):
        DataKey.unwrapped(wrapped, Keys({2: b"2" * 32}), KEY)
    with pytest.raises(Forged, match="your key 1"):
        DataKey.unwrapped(wrapped, Keys({1: b"2" * 32}), KEY)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_changed_note_is_noticed(data: st.DataObject) -> None:
    """Of a cut, the wrapped key, and meta."""
    made = DataKey(b"d" * 32, KEY)
    read: list[tuple[str, Any]] = [
        (made.cut_note(5), made.read_cut),
        (made.wrapped(KEYS), lambda text: DataKey.unwrapped(text, KEYS, KEY)),
        (made.seal_meta(b"{}", 3).decode(), lambda text: made.open_meta(text.encode(), 3)),
    ]
    text, how = data.draw(st.sampled_from(read))
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(min_codepoint=33, max_codepoint=126))
    changed = text[:at] + other + text[at + 1 :]
    if changed == text:
        return
    try:
        found = how(changed)
    except (Forged, KeyMissing):
        return
    assert found == how(text)  # the bits of base64 that mean nothing


@given(st.integers(0, 40), st.integers(0, 255))
def test_a_changed_note_of_the_end_is_noticed(at: int, other: int) -> None:
    """Every byte of it, and its length."""
    made = DataKey(b"d" * 32, KEY)
    note = made.end_note(5, b"t" * 16)
    assert len(note) == 40
    for changed in (note[:at] + bytes([other]) + note[at + 1 :], note[:at], note + b"\0"):
        if changed != note:
            with pytest.raises(Forged):
                made.read_end(changed)


def test_meta_that_is_ahead_of_its_journal_is_noticed() -> None:
    """The records that it was set with are gone."""
    data = DataKey(b"d" * 32, KEY)
    meta = data.seal_meta(b'{"a":1}', 5)
    assert msgspec.json.decode(meta).keys() == {"sealed"}
    assert data.open_meta(meta, 5) == b'{"a":1}'
    with pytest.raises(Forged, match="set at 5"):
        data.open_meta(meta, 4)


def test_a_data_key_takes_no_more_than_its_nonces_allow() -> None:
    """Random ones of 96 bits, 2^32 of them."""
    data = DataKey(b"d" * 32, KEY)
    data.seal(b"", seq=1 << 32, count=1, chain=START)
    with pytest.raises(TooLarge, match="nonces"):
        data.seal(b"", seq=(1 << 32) + 1, count=1, chain=START)


def test_nothing_shows_a_data_key() -> None:
    """Neither its representation nor that of a sealed body."""
    assert repr(DataKey(b"d" * 32, KEY)) == "DataKey(…)"


def test_a_codec_without_the_key_says_what_is_missing() -> None:
    """By name: it is no damage."""
    sealed = DataKey.new(KEY).seal(Codec().encode([("a", 1)]), seq=1, count=1, chain=START)
    with pytest.raises(KeyMissing, match="LIMPET_KEYS"):
        Codec().decode(sealed)
