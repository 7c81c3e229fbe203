"""Other bodies in the place of sealed records: whoever reads, writes or forges afterwards."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from limpet.backends.contract import Append, Backend, Expect, Key
from limpet.backends.url import connect
from limpet.crypto.keys import Keys
from limpet.crypto.rotation import rotate, status
from limpet.crypto.sealed import Sealed
from limpet.errors import Conflict, Tampered
from tests.contract.test_tampering import put_together, taken_apart, with_body
from tests.support import places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.places import Where

KEY = Key("default", "note", "one")
KEYS = Keys({1: b"1" * 32, 2: b"2" * 32}, current=1)


@pytest.fixture(params=["sqlite", "file", pytest.param("postgresql", marks=pytest.mark.server)])
def where(request: pytest.FixtureRequest) -> Where:
    """Each place that can change what is stored."""
    return places.find(request.param, request)


@pytest.fixture
def store(where: Where) -> Iterator[Sealed]:
    """A journal of six records, of which the first was compacted away."""
    with closing(sealed(where)) as store:
        for number in range(1, 7):
            store.append(Append(key=KEY, body=b"%d" % number, count=1, id=f"id-{number}"))
        store.compact(KEY, 2)
        yield store


def sealed(where: Where, keys: Keys = KEYS) -> Sealed:
    """Another program, say, over the same place."""
    return Sealed(connect(where.url), keys)


def present(store: Backend) -> Expect:
    """Where the journal is."""
    head = store.head(KEY)
    assert head is not None
    return head.expect


def bodies(store: Backend) -> list[bytes]:
    """What is in it."""
    return [record.body for record in store.read(KEY)]


AFTER = [b"2", b"3", b"changed", b"5", b"6"]


@pytest.mark.parametrize("renewed", [None, "anew"])
def test_what_follows_the_change_is_sealed_again(
    where: Where, store: Sealed, renewed: str | None
) -> None:
    """And what comes before it stays as it is stored; whoever comes later sees nothing amiss."""
    before = {record.seq: record.body for record in store.inner.read(KEY)}
    was = present(store)
    assert store.rewrite(KEY, {4: b"changed", 1: b"gone"}, expect=was, renewed=renewed) == 1
    after = {record.seq: record.body for record in store.inner.read(KEY)}
    assert [seq for seq in after if after[seq] == before[seq]] == [2, 3]
    with closing(sealed(where)) as other:
        for one in (store, other):
            assert bodies(one) == AFTER
            assert present(one) == Expect(renewed or was.incarnation, 6)
            assert [trouble for _, trouble in one.examine(KEY)] == [None] * 5
        assert other.append(Append(key=KEY, body=b"7", count=1)).seq == 7
        assert other.append(Append(key=KEY, body=b"6", count=1, id="id-6")).repeated
    assert bodies(store) == [*AFTER, b"7"]


@pytest.mark.parametrize("renewed", [None, "anew"])
def test_a_program_that_knew_the_journal_goes_on_behind_what_is_there_now(
    where: Where, store: Sealed, renewed: str | None
) -> None:
    """It remembers a last record that is not there any more: it must not write behind that."""
    with closing(sealed(where)) as other:
        was = present(store)
        other.rewrite(KEY, {4: b"changed"}, expect=was, renewed=renewed)
        if renewed is None:
            done = store.append(Append(key=KEY, body=b"7", count=1, expect=was))
            assert done.expect == Expect(was.incarnation, 7)
            assert store.append(Append(key=KEY, labels={"a": "b"}, expect=done.expect)).seq == 7
            assert store.append(Append(key=KEY, status="x")).incarnation == was.incarnation
        else:
            with pytest.raises(Conflict):
                store.append(Append(key=KEY, body=b"7", count=1, expect=was))
            store.append(Append(key=KEY, body=b"7", count=1))
        for one in (store, other):
            assert bodies(one) == [*AFTER, b"7"]
            assert [trouble for _, trouble in one.examine(KEY)] == [None] * 6


def test_it_can_be_rewritten_again_and_its_key_rotated(where: Where, store: Sealed) -> None:
    """Neither undoes the other."""
    for text in (b"once", b"twice"):
        assert store.rewrite(KEY, {2: text}, expect=present(store)) == 1
    later = Keys({1: b"1" * 32, 2: b"2" * 32}, current=2)
    with closing(sealed(where, later)) as other:
        assert rotate(other).rewrapped == 1
        assert store.rewrite(KEY, {3: b"three"}, expect=present(store)) == 1
        assert status(other).journals == {2: 1}
    with closing(sealed(where, Keys({2: b"2" * 32}))) as only:
        assert bodies(only) == [b"twice", b"three", b"4", b"5", b"6"]


def test_what_was_cut_off_or_put_back_after_a_rewrite_is_noticed(store: Sealed) -> None:
    """Its notes and its chain are those of what is there now."""
    old = taken_apart(store.inner)
    store.rewrite(KEY, {4: b"changed"}, expect=present(store))
    new = taken_apart(store.inner)
    for change in ("cut", "put back", "put all back", "put the last back", "put the notes back"):
        forged = taken_apart(store.inner)
        records, before = forged[KEY].records, old[KEY].records
        if change == "cut":
            del records[-1]
        elif change == "put back":
            records[2] = with_body(records[2], before[2].body)
        elif change == "put all back":
            forged[KEY].records = before
        elif change == "put the last back":
            records[-1] = with_body(records[-1], before[-1].body)
        else:
            forged[KEY].labels, forged[KEY].note = old[KEY].labels, old[KEY].note
        put_together(store.inner, forged)
        with pytest.raises(Tampered):
            Sealed(store.inner, KEYS).read(KEY)
        put_together(store.inner, new)
    assert bodies(Sealed(store.inner, KEYS)) == AFTER


def test_what_is_written_meanwhile_is_neither_lost_nor_unchained(
    where: Where, store: Sealed
) -> None:
    """If somebody comes between, nothing is changed, and that is said."""
    stop = threading.Event()
    written: list[int] = []

    def write() -> None:
        with closing(sealed(where)) as other:
            while not stop.is_set() and len(written) < 200:
                body = b"more %d" % len(written)
                written.append(other.append(Append(key=KEY, body=body, count=1)).seq)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            text = b"changed %d" % number
            while not store.rewrite(KEY, {3: text}, expect=present(store)):
                pass
    finally:
        stop.set()
        writer.join()
    with closing(sealed(where)) as fresh:
        expected = [b"more %d" % number for number in range(len(written))]
        assert bodies(fresh) == [b"2", b"changed 4", b"4", b"5", b"6", *expected]
        assert written == list(range(7, 7 + len(written)))
