"""What somebody does to an encrypted store who can write all of it, and has no keys.

The store is taken apart as its backend gives it, changed, and put together again. Then all of it is
read with the keys: there is a typed error, or there is what was written; never anything else.
"""

from __future__ import annotations

import random
import zlib
from base64 import urlsafe_b64encode
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.backends.contract import Append, Expect, Key, Origin
from limpet.backends.url import connect
from limpet.crypto.envelope import DataKey
from limpet.crypto.keys import Keys
from limpet.crypto.sealed import CUT, END, WRAPPED, Sealed
from limpet.errors import LimpetError, NotEncrypted, StoreCorrupt, StoreError, Tampered, Unreadable
from limpet.store import Store, scope_over
from tests.support import places

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.backends.contract import Backend, Head, Record
    from tests.support.places import Where

where = places.where

KEYS = Keys({1: b"1" * 32})
NOTED = (Tampered, NotEncrypted, StoreCorrupt, Unreadable)


@dataclass
class Journal:
    """One journal as it is stored."""

    head: Head
    records: list[Record]
    labels: dict[str, str]
    meta: bytes | None
    first: int
    note: bytes | None


Stored = dict[Key, Journal]


def taken_apart(backend: Backend) -> Stored:
    """All that is stored, as somebody sees it who has no keys."""
    return {
        head.key: Journal(
            head=head,
            records=backend.read(head.key, limit=10_000),
            labels=dict(head.labels),
            meta=head.meta,
            first=head.first,
            note=head.note,
        )
        for tenant, kind in backend.kinds()
        for head in backend.heads(tenant, kind)
    }


def put_together(backend: Backend, stored: Stored) -> None:
    """Make the store hold that, with the same incarnations, numbers and times."""
    for tenant, kind in backend.kinds():
        for head in list(backend.heads(tenant, kind)):
            backend.delete(head.key)
    for key, journal in stored.items():
        head, seq = journal.head, journal.first - 1
        for record in journal.records:
            request = Append(
                key=key,
                body=record.body,
                count=record.count,
                id=record.id,
                note=journal.note if record is journal.records[-1] else None,
                expect=Expect(None, seq if record is not journal.records[0] else 0),
                origin=Origin(record.at, head.created, journal.first, head.incarnation),
            )
            seq = backend.append(request).seq
        backend.append(
            Append(key=key, labels=journal.labels, meta=journal.meta, status=head.status)
        )


def filled(url: str) -> dict[str, Any]:
    """Write a bit of everything to an encrypted store, and say what all of it is."""
    with limpet.open(url, keys=KEYS) as store:
        for name in ("alice", "bob"):
            chat = store.conversation(name)
            for number in range(40):
                chat.append({"role": "user", "content": f"{name} says {number}"})
            chat.pin(3)
        state = store.state("settings")
        for number in range(6):
            state.save({"number": number, "text": "x" * 50})
        journal = store.journal("note", "short")
        for number in range(5):
            journal.append(("n", number), ("n", -number))
        cut = store.journal("note", "cut")
        for number in range(40):
            cut.append(("n", number))
        cut.compact(11)
    return content(url)


def content(url: str) -> dict[str, Any]:
    """All that is in the store, read as programs read it; what of it is refused, as its error."""
    found: dict[str, Any] = {}
    with limpet.open(url, keys=KEYS) as store:
        reads: dict[str, Callable[[], Any]] = {
            "alice": lambda: (store.conversation("alice").messages(), all_of(store, "alice")),
            "bob": lambda: (store.conversation("bob").messages(), all_of(store, "bob")),
            "settings": lambda: (store.state("settings").load(), all_of(store, "settings")),
            "short": lambda: all_of(store, "short"),
            "cut": lambda: all_of(store, "cut"),
        }
        for name, read in reads.items():
            try:
                found[name] = read()
            except NOTED as error:  # any other is a failure
                found[name] = error
    return found


#: The kind of each.
KINDS = {"alice": "conversation", "bob": "conversation", "settings": "state"}


def all_of(store: Store, name: str) -> Any:
    """The entries of a journal, and what its head says."""
    journal = store.journal(KINDS.get(name, "note"), name)
    head = journal.head()
    return [(entry.seq, entry.type, entry.body) for entry in journal.read()], head and head.meta


# -- what somebody does ----------------------------------------------------------------------------


def renumbered(records: list[Record], first: int) -> list[Record]:
    """*records* as they come after one of them was taken out, or put in."""
    seq = first - 1
    made = []
    for record in records:
        seq += record.count
        made.append(type(record)(seq, record.count, record.at, record.body, None))
    return made


def with_body(record: Record, body: bytes) -> Record:
    """*record* with another body."""
    return type(record)(record.seq, record.count, record.at, body, record.id)


def checked(body: bytes) -> bytes:
    """*body* with the checksum that goes with it."""
    return body[:-4] + zlib.crc32(body[:-4], 0x2144DF1C).to_bytes(4, "little")


def flip(stored: Stored, chance: random.Random) -> None:
    """One bit, with a checksum made new."""
    journal = chance.choice(list(stored.values()))
    at = chance.randrange(len(journal.records))
    body = bytearray(journal.records[at].body)
    body[chance.randrange(len(body) - 4)] ^= 1 << chance.randrange(8)
    journal.records[at] = with_body(journal.records[at], checked(bytes(body)))


def flip_carelessly(stored: Stored, chance: random.Random) -> None:
    """One bit, as a disk does."""
    journal = chance.choice(list(stored.values()))
    at = chance.randrange(len(journal.records))
    body = bytearray(journal.records[at].body)
    body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    journal.records[at] = with_body(journal.records[at], bytes(body))


def swap(stored: Stored, chance: random.Random) -> None:
    """Two records of one journal."""
    journal = chance.choice([one for one in stored.values() if len(one.records) > 1])
    one, other = chance.sample(range(len(journal.records)), 2)
    records = journal.records
    a, b = records[one], records[other]
    records[one], records[other] = with_body(a, b.body), with_body(b, a.body)


def move(stored: Stored, chance: random.Random) -> None:
    """A record of one journal to the same place in another."""
    one, other = chance.sample([j for j in stored.values() if j.first == 1], 2)
    at = chance.randrange(min(len(one.records), len(other.records)))
    other.records[at] = with_body(other.records[at], one.records[at].body)


def move_with_key(stored: Stored, chance: random.Random) -> None:
    """All of a journal, its wrapped data key and its notes to another name."""
    one, other = chance.sample(list(stored.values()), 2)
    other.records, other.labels, other.first = one.records, one.labels, one.first
    other.meta, other.note = one.meta, one.note


def take_out(stored: Stored, chance: random.Random) -> None:
    """A record from the middle; those behind it move up."""
    journal = chance.choice([one for one in stored.values() if len(one.records) > 2])
    del journal.records[chance.randrange(len(journal.records) - 1)]
    journal.records = renumbered(journal.records, journal.first)


def replay(stored: Stored, chance: random.Random) -> None:
    """A record once more, at the end or in between."""
    journal = chance.choice(list(stored.values()))
    again = chance.choice(journal.records)
    journal.records.insert(chance.randrange(len(journal.records) + 1), again)
    journal.records = renumbered(journal.records, journal.first)


def cut_front(stored: Stored, chance: random.Random) -> None:
    """What came first, as if it had been compacted away."""
    journal = chance.choice([one for one in stored.values() if len(one.records) > 2])
    del journal.records[: chance.randrange(1, len(journal.records) - 1)]
    journal.first = journal.records[0].seq - journal.records[0].count + 1


def write_plainly(stored: Stored, chance: random.Random) -> None:
    """A record that is not encrypted."""
    journal = chance.choice(list(stored.values()))
    at = chance.randrange(len(journal.records))
    count = journal.records[at].count
    body = limpet.Codec().encode([("message", {"role": "user", "content": "forged"})] * count)
    journal.records[at] = with_body(journal.records[at], body)


def swap_notes(stored: Stored, chance: random.Random) -> None:
    """A note, or the wrapped data key, of another journal."""
    one, other = chance.sample(list(stored.values()), 2)
    if chance.random() < 0.5:
        other.note = one.note
    else:
        other.labels[WRAPPED] = one.labels[WRAPPED]


def drop_note(stored: Stored, chance: random.Random) -> None:
    """A note, or the wrapped data key; or what says how much was compacted away."""
    journal = chance.choice(list(stored.values()))
    names = [name for name in journal.labels if name == WRAPPED or name.startswith(CUT)]
    if chance.random() < 0.5:
        journal.note = None
    else:
        del journal.labels[chance.choice(names)]


def change_note(stored: Stored, chance: random.Random) -> None:
    """One bit of the note of the end; or a part of it."""
    journal = chance.choice(list(stored.values()))
    assert journal.note is not None
    note = bytearray(journal.note)
    note[chance.randrange(len(note))] ^= 1 << chance.randrange(8)
    journal.note = chance.choice([bytes(note), journal.note[:-1], journal.note + b"\0", b""])


def swap_meta(stored: Stored, chance: random.Random) -> None:
    """The meta of another journal; or one that is not encrypted."""
    one, other = chance.sample([j for j in stored.values() if j.meta is not None], 2)
    other.meta = chance.choice([one.meta, b'{"pins":[1]}', b'{"sealed":"AAAA"}'])


CHANGES = [
    *(flip, flip_carelessly, swap, move, move_with_key, take_out, replay, cut_front),
    *(write_plainly, swap_notes, drop_note, change_note, swap_meta),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
def test_what_was_changed_is_refused_and_nothing_else_is_given(
    where: Where, change: Callable[[Stored, random.Random], None]
) -> None:
    """By name; and what nobody has touched can be read as before."""
    chance = random.Random(f"{change.__name__}")
    expected = filled(where.url)
    with closing(connect(where.url)) as raw:
        stored = {
            key: one for key, one in taken_apart(raw).items() if key.kind != "limpet-encryption"
        }
        marker = {key: one for key, one in taken_apart(raw).items() if key not in stored}
        for _ in range(2):
            forged = deepcopy(stored)
            change(forged, chance)
            put_together(raw, {**marker, **forged})
            found = content(where.url)
            refused = [name for name, one in found.items() if isinstance(one, LimpetError)]
            assert refused
            assert {name: one for name, one in found.items() if name not in refused} == {
                name: one for name, one in expected.items() if name not in refused
            }
        put_together(raw, {**marker, **stored})
    assert content(where.url) == expected


def test_what_was_cut_off_at_the_end_is_noticed(where: Where) -> None:
    """Be it one record; and nothing else is refused for it."""
    expected = filled(where.url)
    with closing(connect(where.url)) as raw:
        stored = taken_apart(raw)
        for name in ("short", "cut"):
            key = Key("default", "note", name)
            for left in range(1, len(stored[key].records), 4):
                forged = deepcopy(stored)
                del forged[key].records[left:]
                put_together(raw, forged)
                found = content(where.url)
                assert isinstance(found[name], Tampered)
                assert {**found, name: None} == {**expected, name: None}


def test_a_cut_journal_takes_no_more(where: Where) -> None:
    """No read, and no append either: it would hide what is missing."""
    journal = Key("default", "note", "one")
    with closing(Sealed(connect(where.url), KEYS)) as store:
        for number in range(5):
            store.append(Append(key=journal, body=b"%d" % number, count=1))
        stored = taken_apart(store.inner)
        del stored[journal].records[-1]
        put_together(store.inner, stored)
    with closing(Sealed(connect(where.url), KEYS)) as store:
        with pytest.raises(Tampered, match="ends at 4, and was at 5"):
            store.read(journal)
        with pytest.raises(Tampered):
            store.append(Append(key=journal, body=b"x", count=1))
        with pytest.raises(Tampered):
            store.head(journal)


def test_a_note_of_an_earlier_end_does_not_hide_a_cut(where: Where) -> None:
    """It is that of another moment: the journal ended there, and nowhere else."""
    journal = Key("default", "note", "one")
    with closing(Sealed(connect(where.url), KEYS)) as store:
        store.append(Append(key=journal, body=b"0", count=1))
        early = taken_apart(store.inner)[journal].note
        for number in range(1, 5):
            store.append(Append(key=journal, body=b"%d" % number, count=1))
        stored = taken_apart(store.inner)
        del stored[journal].records[3:]
        stored[journal].note = early
        put_together(store.inner, stored)
    with closing(Sealed(connect(where.url), KEYS)) as store, pytest.raises(Tampered):
        store.read(journal)


def test_an_older_state_of_a_whole_journal_is_what_was_once_true(where: Where) -> None:
    """Its note with its records: nothing in a store can tell that, and the guide says so."""
    journal = Key("default", "note", "one")
    with closing(Sealed(connect(where.url), KEYS)) as store:
        for number in range(4):
            store.append(Append(key=journal, body=b"%d" % number, count=1))
        old = taken_apart(store.inner)
        store.append(Append(key=journal, body=b"4", count=1))
        put_together(store.inner, old)
    with closing(Sealed(connect(where.url), KEYS)) as store:
        assert [record.body for record in store.read(journal)] == [b"0", b"1", b"2", b"3"]


def end_label(key: Key, journal: Journal, note: bytes) -> str:
    """What *note* was, where it was among the labels."""
    data = DataKey.unwrapped(journal.labels[WRAPPED], KEYS, key)
    return urlsafe_b64encode(note[:24] + data._mac(b"limpet/1 end", note[:24])).decode()


def test_a_note_among_the_labels_goes_no_further_than_an_older_state(where: Where) -> None:
    """There it lay in stores that were made before it went with the record."""
    journal = Key("default", "note", "one")
    with closing(Sealed(connect(where.url), KEYS)) as store:
        for number in range(3):
            store.append(Append(key=journal, body=b"%d" % number, count=1))
        early = taken_apart(store.inner)[journal].note
        store.append(Append(key=journal, body=b"3", count=1))
        stored = taken_apart(store.inner)
    assert early is not None
    forged = deepcopy(stored)
    forged[journal].note = None
    forged[journal].labels[END] = end_label(journal, stored[journal], early)
    cut = deepcopy(forged)
    del cut[journal].records[2:]
    with_both = deepcopy(forged)
    with_both[journal].note = stored[journal].note
    with_both_cut = deepcopy(with_both)
    del with_both_cut[journal].records[3:]
    for wrong in (forged, cut, with_both_cut):
        with closing(connect(where.url)) as raw:
            put_together(raw, wrong)
        with closing(Sealed(connect(where.url), KEYS)) as store, pytest.raises(Tampered):
            store.read(journal)
    with closing(connect(where.url)) as raw:
        put_together(raw, with_both)
    with closing(Sealed(connect(where.url), KEYS)) as store:
        store.append(Append(key=journal, body=b"4", count=1))
        assert len(store.read(journal)) == 5
        assert END not in taken_apart(store.inner)[journal].labels


def test_a_record_of_another_history_is_noticed(where: Where) -> None:
    """One that was written after a backup was put in place, and then replaced again."""
    journal = Key("default", "note", "one")

    def append(*texts: bytes) -> Stored:
        with closing(Sealed(connect(where.url), KEYS)) as store:
            for text in texts:
                store.append(Append(key=journal, body=text, count=1))
            return taken_apart(store.inner)

    backup = append(b"1", b"2")
    other = append(b"other 3")
    with closing(connect(where.url)) as raw:
        put_together(raw, backup)
        ours = append(b"3", b"4")
        ours[journal].records[2] = other[journal].records[2]
        put_together(raw, ours)
    with closing(Sealed(connect(where.url), KEYS)) as store:
        with pytest.raises(Tampered, match="behind another one"):
            store.read(journal)
        assert len(store.read(journal, limit=3)) == 3
        with pytest.raises(Tampered):  # page by page, too
            store.read(journal, after=3)
    with closing(Sealed(connect(where.url), KEYS)) as store:
        assert len(store.read(journal, limit=1, reverse=True)) == 1
        with pytest.raises(Tampered):
            store.read(journal, upto=3, reverse=True)
        examined = store.examine(journal)
        # It can be saved all the same: it was written by who had the keys.
        assert [record.body for record, _ in examined] == [b"1", b"2", b"other 3", b"4"]
        assert [bool(trouble) for _, trouble in examined] == [False, False, False, True]


def test_a_damaged_journal_does_not_hide_the_others_of_a_list(where: Where) -> None:
    """It is named beside them, with the reason."""
    filled(where.url)
    key = Key("default", "conversation", "alice")
    with closing(connect(where.url)) as raw:
        stored = taken_apart(raw)
        stored[key].note = None
        put_together(raw, stored)
    with closing(Sealed(connect(where.url), KEYS)) as store:
        page = store.scan("default", "conversation")
        assert [head.key.id for head in page.heads] == ["bob"]
        ((damaged, error),) = page.damaged
        assert damaged == key
        assert isinstance(error, Tampered)
        assert isinstance(error, StoreError)
    scope = scope_over(Sealed(connect(where.url), KEYS))
    with Store(limpet.AsyncStore(scope.as_sync())) as opened:
        assert [chat.id for chat in opened.conversations()] == ["bob"]
