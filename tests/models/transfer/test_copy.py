"""A store is copied to another one: whole, verified, once, whatever happens on the way."""

from __future__ import annotations

import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest
from msgspec import structs

import limpet
from limpet.backends.contract import UNSET, Append, Appended, Backend, Key, Origin, Record
from limpet.backends.file.backend import FileBackend
from limpet.backends.memory import MemoryBackend
from limpet.backends.sqlite.backend import SqliteBackend
from limpet.backends.url import connect
from limpet.core.codec import LOST, Codec
from limpet.errors import InvalidURL, StoreCorrupt, StoreUnavailable, TooLarge
from limpet.testing.crash import Moment, Program, ack, crash, run, seeded, soak
from limpet.transfer import copy as copying
from tests.cli.test_cli import LIMPET, in_terminal, lines_of
from tests.support import places
from tests.support.commands import run as run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.transfer.copy import Copied

ONE = Key("acme", "note", "one")
TWO = Key("acme", "note", "two")

#: What is compressed by default.
LONG = Codec().encode([("message", {"role": "user", "content": "All work and no play. " * 1000})])

#: Encrypted, says its header; nobody here has the key.
SECRET = b"\x01\x03\x00\x07" + bytes(range(256)) * 40


def write(backend: Backend, key: Key, *bodies: bytes, **request: Any) -> None:
    """Append each of *bodies* as a record, with *request* to go with the last."""
    for body in bodies[:-1]:
        backend.append(Append(key=key, body=body, count=1))
    backend.append(Append(**{"key": key, "body": bodies[-1], "count": 1, **request}))


def entry(text: str) -> bytes:
    """The body of a record of one entry."""
    return Codec().encode([("said", text)])


def fill(backend: Backend) -> None:
    """Journals of all sorts."""
    for number in range(30):
        key = Key("acme", "conversation", f"chat-{number:02}")
        write(backend, key, *(entry(f"{number} {n}") for n in range(number % 5 + 1)))
    for tenant, kind, id_ in (
        ("acme", "task", "é/日本😀"),
        ("Acme", "task", "x'y%_"),
        ("other", "note", "é" * 255),
    ):
        write(backend, Key(tenant, kind, id_), entry("a"), entry("b"), count=1)
    several = Codec().encode([("said", n) for n in range(7)])
    write(backend, Key("acme", "task", "several"), entry("a"), several, count=7, id="the id")
    write(
        backend,
        Key("acme", "task", "open"),
        entry("a"),
        entry("b"),
        status="open",
        labels={"agent": "agent-01", "empty": ""},
        meta=b'{"calls":{}}',
    )
    write(backend, Key("acme", "task", "brief"), entry("a"), ttl=3600)
    later = Key("acme", "task", "brief-later")
    write(backend, later, entry("a"))
    backend.append(Append(key=later, ttl=7200.5))
    write(backend, Key("acme", "note", "long"), LONG, SECRET, b"\x00\xff not ours", b"x")
    compacted, emptied = Key("acme", "note", "compacted"), Key("acme", "note", "emptied")
    for key in (compacted, emptied):
        write(backend, key, *map(entry, "abcde"), labels={"kept": "yes"})
    backend.compact(compacted, 4)
    backend.compact(emptied, 6)


def shown(record: Record, *, by_meaning: bool = False) -> tuple[object, ...]:
    """A record, or what is in it."""
    body: object = record.body
    if by_meaning and body[:2] in (b"\x01\x00", b"\x01\x01"):  # type: ignore[index]
        body = Codec().decode(record.body)
    return record.seq, record.count, record.at, record.id, body


def content(backend: Backend, **how: bool) -> dict[Key, Any]:
    """All that is in a store, but for leases."""
    found = {}
    for tenant, kind in backend.kinds():
        for head in backend.scan(tenant, kind, limit=1000).heads:
            records = [shown(record, **how) for record in backend.read(head.key)]
            found[head.key] = (copying.comparable(head), records)
    return found


def copied(source: Backend, target: Backend | None, **how: Any) -> dict[Key, Copied]:
    """Copy, and what became of each."""
    return {one.key: one for one in copying.copy(source, target, **how)}


def outcomes(source: Backend, target: Backend, **how: Any) -> set[str]:
    """Copy, and what became of them all."""
    return {one.outcome for one in copying.copy(source, target, **how)}


@pytest.fixture
def source() -> MemoryBackend:
    """A store with journals of all sorts."""
    backend = MemoryBackend()
    fill(backend)
    return backend


@pytest.fixture
def target() -> MemoryBackend:
    """An empty store."""
    return MemoryBackend()


class Readable(MemoryBackend):
    """A store that people read."""

    readable: ClassVar[bool] = True


# -- all of it, everywhere -------------------------------------------------------------------------


def test_a_copy_has_everything_that_the_source_has(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    """Numbers, times, ids, bodies, counts; incarnation, created, status, labels, meta, expiry."""
    done = copied(source, target)
    assert {one.outcome for one in done.values()} == {"new"}
    assert content(target) == content(source)
    left = {head.key: head.seq - head.first + 1 for head in copying.heads(source, (), ())}
    assert 0 in left.values()  # such as a memory that has forgotten everything
    assert {key: one.verified for key, one in done.items()} == left
    assert {key: one.entries for key, one in done.items()} == left


@pytest.mark.slow
@pytest.mark.parametrize("name", places.EVERYWHERE)
def test_a_store_comes_back_the_same_from_every_other(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """From SQLite there and back again, to the byte; a second copy finds nothing to do."""
    there = places.find(name, request)
    with_files = [f"sqlite:{tmp_path}/from.db", there.url, f"sqlite:{tmp_path}/back.db"]
    first, middle, last = (connect(url) for url in with_files)
    try:
        fill(first)
        before = content(first)
        assert outcomes(first, middle) == {"new"}
        assert content(middle, by_meaning=True) == content(first, by_meaning=True)
        assert outcomes(middle, last) == {"new"}
        assert content(last) == before
        assert outcomes(first, middle) == outcomes(middle, last) == {"same"}
        assert content(first) == before
    finally:
        for backend in (first, middle, last):
            backend.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", places.EVERYWHERE)
def test_agents_go_on_in_the_copy(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Conversations and tasks are what they were; the next append has the next number."""
    there = places.find(name, request)
    with limpet.open(tmp_path / "from.db") as old, limpet.open(there.url) as new:
        chat = old.conversation("alice", labels={"channel": "web"})
        chat.append({"role": "user", "content": "Hello"}, id="first")
        with old.task("report", goal="Count", agent="agent-01") as task:
            task.plan(["fetch", "count"])
            task.step("fetch", lambda: [1, 2])
        assert outcomes(old.backend, new.backend) == {"new"}
        assert new.conversation("alice").append({"role": "user", "content": "Hello"}, id="first")
        assert new.conversation("alice").append({"role": "assistant", "content": "Hi"}) == 2
        assert [info.id for info in new.tasks(status="open")] == ["report"]
        ran: list[str] = []
        new.run("report", "Count", plan=[], execute=lambda step: ran.append(step.name))
        assert ran == ["count"]


def test_a_second_copy_adds_nothing(source: MemoryBackend, target: MemoryBackend) -> None:
    """It compares everything, and says that it is the same."""
    copied(source, target)
    before = content(target)
    again = copied(source, target)
    assert {one.outcome for one in again.values()} == {"same"}
    assert sum(one.records for one in again.values()) == 0
    assert sum(one.verified for one in again.values()) > 0
    assert content(target) == before


def test_only_some_tenants_or_kinds(source: MemoryBackend, target: MemoryBackend) -> None:
    """Those that are named."""
    copied(source, target, tenants=["acme"], kinds=["task"])
    assert target.kinds() == [("acme", "task")]
    copied(source, target, tenants=["Acme", "other"])
    assert target.kinds() == [("Acme", "task"), ("acme", "task"), ("other", "note")]
    assert copying.survey(source, kinds=["note"]).journals == 4


def test_a_kind_comes_with_what_it_keeps_apart(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    """A task without its large results would not be one."""
    write(source, Key("acme", "task", "t"), b"x")
    write(source, Key("acme", "task-result", "t"), b"x")
    copied(source, target, tenants=["acme"], kinds=["task"])
    assert target.kinds() == [("acme", "task"), ("acme", "task-result")]


def test_what_has_expired_is_not_copied(source: MemoryBackend, target: MemoryBackend) -> None:
    """It is not there."""
    write(source, ONE, b"x", ttl=0.01)
    time.sleep(0.05)
    assert ONE not in copied(source, target)


def test_leases_are_named_and_not_copied(source: MemoryBackend, target: MemoryBackend) -> None:
    """Who works on the source does not hold the copy."""
    write(source, ONE, b"x")
    source.acquire(ONE, "agent-01 on host [mark]", 60)
    assert copied(source, target)[ONE].held_by == "agent-01 on host"
    head = target.head(ONE)
    assert head is not None
    assert head.lease is None
    target.acquire(ONE, "somebody else", 60)


def test_what_only_a_lease_keeps_alive_is_gone_from_the_copy(target: MemoryBackend) -> None:
    """Its time has passed, and the lease stays behind."""
    source = MemoryBackend()
    source.acquire(ONE, "agent", 60)
    write(source, ONE, b"x", ttl=0.01)
    time.sleep(0.05)
    assert copied(source, target)[ONE].ok
    assert target.head(ONE) is None


def test_a_long_journal_is_read_in_small_pages(
    source: MemoryBackend, target: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record may have megabytes; a thousand of them must not be held at once."""
    monkeypatch.setattr(copying, "PAGE_BYTES", 500)
    pages: list[int] = []
    read = source.read

    def noted(*args: Any, **how: Any) -> list[Record]:
        page = read(*args, **how)
        pages.append(sum(len(record.body) for record in page))
        return page

    monkeypatch.setattr(source, "read", noted)
    write(source, ONE, *(entry("x" * (n % 7 * 20)) for n in range(100)))
    assert copied(source, target)[ONE].outcome == "new"
    assert content(target)[ONE] == content(source)[ONE]
    assert max(size for size in pages if size < 5000) < 1500


# -- readable places -------------------------------------------------------------------------------


def test_nothing_is_compressed_where_people_read_it() -> None:
    """The same content, in plain letters; what only its writer can read stays as it is."""
    source, target, back = MemoryBackend(), Readable(), MemoryBackend()
    write(source, ONE, LONG, SECRET, entry("short"), b"\x01\x01 not ours")
    assert outcomes(source, target) == {"new"}
    bodies = [record.body for record in target.read(ONE)]
    assert bodies[0] == Codec(compress_over=None).encode(Codec().decode(LONG))
    assert bodies[1:] == [record.body for record in source.read(ONE)][1:]
    assert outcomes(source, target) == {"same"}
    assert outcomes(target, back) == {"new"}
    assert content(back) == content(source)


def test_another_meaning_is_seen_through_another_form() -> None:
    """1 and 1.0 and true are three things, and none is taken for another."""
    source = Readable()
    write(source, ONE, Codec().encode([("x", 1)]))
    (head,) = source.scan("acme", "note").heads
    for value in (1.0, True, "1"):
        target = MemoryBackend()
        copied(source, target)
        (record,) = target._journals[ONE].records
        other = Codec().encode([("x", value)])
        target._journals[ONE].records = [Record(record.seq, 1, record.at, other)]
        assert copied(source, target)[ONE].outcome == "differs"
    assert head.seq == 1


# -- again, and later ------------------------------------------------------------------------------


def test_a_later_copy_catches_up(source: MemoryBackend, target: MemoryBackend) -> None:
    """New journals, new records, new status, new labels: and only those."""
    copied(source, target)
    task = Key("acme", "task", "open")
    write(source, task, entry("c"), status="done", labels={"agent": None, "more": "1"})
    write(source, Key("acme", "conversation", "chat-03"), entry("c"), id="c", ttl=60)
    write(source, ONE, b"new")
    source.compact(Key("acme", "note", "compacted"), 5)
    done = copied(source, target)
    assert {key.id: one.records for key, one in done.items() if one.outcome != "same"} == {
        "one": 1,
        "open": 1,
        "chat-03": 1,
        "compacted": 0,
    }
    assert content(target) == content(source)


def test_a_conversation_that_was_cleared_is_cleared_in_the_copy(target: MemoryBackend) -> None:
    """What was dropped in the source is dropped there, and the numbers go on."""
    with limpet.open("memory:") as store:
        chat = store.conversation("alice")
        for number in range(5):
            chat.append({"role": "user", "content": str(number)})
        copied(store.backend, target)
        chat.clear()
        chat.append({"role": "user", "content": "Anew"})
        assert outcomes(store.backend, target) == {"continued"}
        assert content(target) == content(store.backend)


def test_what_is_written_meanwhile_is_said_to_have_moved(target: MemoryBackend) -> None:
    """The copy is the journal as it was when it was looked at; the next one catches up."""

    class Busy(MemoryBackend):
        busy = False

        def read(self, key: Key, **how: Any) -> list[Record]:
            page = super().read(key, **how)
            if key == ONE and self.busy:
                self.busy = False
                write(self, ONE, b"meanwhile")
            return page

    source = Busy()
    write(source, ONE, b"a", b"b")
    write(source, TWO, b"a")
    source.busy = True
    done = copied(source, target)
    assert (done[ONE].moved, done[TWO].moved) == (True, False)
    assert done[ONE].outcome == "new"
    assert [record.seq for record in target.read(ONE)] == [1, 2]
    again = copied(source, target)
    assert (again[ONE].outcome, again[ONE].moved) == ("continued", False)
    assert content(target) == content(source)


@pytest.mark.parametrize("what", ["delete", "expire", "compact", "begin anew"])
def test_what_changes_its_past_meanwhile_is_looked_at_anew(
    what: str, target: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what is no longer there is no copy of it."""
    monkeypatch.setattr(copying, "PAGE_BYTES", 1)

    class Restless(MemoryBackend):
        reads = 0

        def read(self, key: Key, **how: Any) -> list[Record]:
            self.reads += 1
            if self.reads == 3:
                self.change()
            return super().read(key, **how)

        def change(self) -> None:
            if what == "compact":
                self.compact(ONE, 8)
            elif what == "expire":
                self.append(Append(key=ONE, ttl=1e-6))
                time.sleep(0.01)
            else:
                self.delete(ONE)
            if what == "begin anew":
                write(self, ONE, b"x", b"y")

    source = Restless()
    write(source, ONE, *(bytes([n]) * 100 for n in range(10)))
    done = copied(source, target)[ONE]
    assert done.ok
    assert done.outcome == ("gone" if what in ("delete", "expire") else "new")
    assert content(target) == content(source)


# -- what is there already -------------------------------------------------------------------------


def another_record(target: MemoryBackend) -> None:
    """The first record has another body."""
    journal = target._journals[ONE]
    journal.records[0] = Record(1, 1, journal.records[0].at, b"another")


def another_id(target: MemoryBackend) -> None:
    """The first record has an id."""
    journal = target._journals[ONE]
    journal.records[0] = Record(1, 1, journal.records[0].at, b"a", "an id")


def another_journal(target: MemoryBackend) -> None:
    """It was not copied, but written there."""
    target.delete(ONE)
    write(target, ONE, b"a", b"b", b"c")


def gone_on(target: MemoryBackend) -> None:
    """Somebody wrote to the copy."""
    write(target, ONE, b"own")


def compacted(target: MemoryBackend) -> None:
    """Somebody compacted the copy."""
    target.compact(ONE, 2)


def relabelled(target: MemoryBackend) -> None:
    """Somebody gave the copy a label."""
    target.append(Append(key=ONE, labels={"own": "label"}))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (another_record, "something else at 1"),
        (another_id, "something else at 1"),
        (another_journal, "another one of this name"),
        (gone_on, "gone on by itself"),
        (compacted, "compacted by itself"),
        (relabelled, "labels"),
    ],
)
@pytest.mark.parametrize("more", [False, True], ids=["", "and-more-in-the-source"])
def test_what_is_not_a_copy_is_named_and_left_alone(
    change: Callable[[MemoryBackend], None], word: str, *, more: bool
) -> None:
    """Nothing is overwritten and nothing merged; everything else is copied."""
    source, target = MemoryBackend(), MemoryBackend()
    write(source, ONE, b"a", b"b", b"c", labels={"x": "y"})
    copied(source, target)
    change(target)
    before = content(target)[ONE]
    write(source, TWO, b"a")
    if more and change not in (gone_on, relabelled):
        write(source, ONE, b"d")
    done = copied(source, target)
    assert (done[ONE].outcome, done[TWO].outcome) == ("differs", "new")
    assert word in done[ONE].why
    assert not done[ONE].ok
    assert content(target)[ONE] == before


def test_a_copy_is_known_by_the_incarnation_that_it_has_in_common() -> None:
    """Another journal may have the same entries at the same times."""
    source, target = MemoryBackend(), MemoryBackend()
    write(source, ONE, b"a")
    head = source.head(ONE)
    assert head is not None
    for incarnation, outcome in (("another", "differs"), (head.incarnation, "same")):
        origin = Origin(head.updated, head.created, 1, incarnation)
        write(target, ONE, b"a", origin=origin)
        assert copied(source, target)[ONE].outcome == outcome
        target.delete(ONE)


def test_a_copy_and_a_source_that_both_went_on_are_not_merged() -> None:
    """Whichever is longer."""
    source, target = MemoryBackend(), MemoryBackend()
    write(source, ONE, b"a", b"b")
    copied(source, target)
    write(target, ONE, b"own")
    write(source, ONE, b"c", b"d", b"e")
    before = content(target)
    assert "something else at 3" in copied(source, target)[ONE].why
    assert content(target) == before


def test_a_copy_that_somebody_works_on_is_left_alone() -> None:
    """Its holder would not notice."""
    source, target = MemoryBackend(), MemoryBackend()
    write(source, ONE, b"a")
    copied(source, target)
    target.acquire(ONE, "agent-02 on host [mark]", 60)
    assert copied(source, target)[ONE].outcome == "same"
    write(source, ONE, b"b")
    done = copied(source, target)[ONE]
    assert (done.outcome, done.why) == ("differs", "agent-02 on host is working on the copy.")
    assert len(target.read(ONE)) == 1


def test_a_copy_that_the_source_has_left_behind_says_what_to_do() -> None:
    """The entries between the two are nowhere any more."""
    source, target = MemoryBackend(), MemoryBackend()
    write(source, ONE, b"a")
    copied(source, target)
    write(source, ONE, *(b"x" for _ in range(5)))
    source.compact(ONE, 5)
    assert "Delete the copy" in copied(source, target)[ONE].why
    target.delete(ONE)
    copied(source, target)
    assert content(target) == content(source)


def test_one_damaged_journal_does_not_keep_the_others(target: MemoryBackend) -> None:
    """It is named, and what can be read is copied."""

    class Damaged(MemoryBackend):
        def read(self, key: Key, **how: Any) -> list[Record]:
            if key == ONE:
                raise StoreCorrupt("A page is damaged.")
            return super().read(key, **how)

    source = Damaged()
    write(source, ONE, b"a")
    write(source, TWO, b"a")
    done = copied(source, target)
    assert (done[ONE].outcome, done[ONE].why) == ("failed", "A page is damaged.")
    assert done[TWO].outcome == "new"


def test_a_journal_that_cannot_even_be_listed_does_not_keep_the_others(
    target: MemoryBackend, tmp_path: Path
) -> None:
    """As after a crash of another program: a file of no bytes; in a dry run, too."""
    with closing(FileBackend(str(tmp_path / "state"))) as source:
        for key in (ONE, TWO):
            write(source, key, b"a")
        Path(source._directory.paths(ONE).journal).write_bytes(b"")
        for dry_run in (True, False):
            done = {one.key: one for one in copying.copy(source, target, dry_run=dry_run)}
            assert done[ONE].outcome == "failed"
            assert "the file is empty" in done[ONE].why
            assert done[TWO].outcome == "new"
        assert copying.survey(source).journals == 1
    assert target.head(TWO) is not None


def test_entries_that_are_missing_in_the_source_are_noticed(target: MemoryBackend) -> None:
    """A hole is not copied over as if nothing were."""
    source = MemoryBackend()
    write(source, ONE, b"a", b"b", b"c")
    del source._journals[ONE].records[1]
    done = copied(source, target)[ONE]
    assert (done.outcome, done.records) == ("failed", 0)
    assert "missing in the source, behind 1" in done.why
    assert target.head(ONE) is None


@pytest.mark.parametrize("last", [False, True])
def test_a_journal_with_a_repaired_gap_is_copied_with_its_numbers(
    tmp_path: Path, *, last: bool
) -> None:
    """What a repair has left can be moved like everything else, there and back."""
    with limpet.open(f"file:{tmp_path}/state") as store:
        chat = store.conversation("alice")
        for number in range(1, 7):
            chat.append({"role": "user", "content": f"This is number {number}."})
        state = store.state("robot", type="arm")
        state.save({"at": 1})
        state.save({"at": 2})
    damaged = b"number 6" if last else b"number 3"
    file = tmp_path / "state/default/conversation/alice.jsonl"
    file.write_bytes(file.read_bytes().replace(damaged, b"number X"))
    run_command("--store", f"file:{tmp_path}/state", "doctor", "--repair")
    places = [f"file:{tmp_path}/state", f"{tmp_path}/new.db", f"file:{tmp_path}/back"]
    for old, new in itertools.pairwise(places):
        run_command("copy", old, new)
        assert "2 there already" in run_command("copy", old, new).stdout
        with limpet.open(old) as one, limpet.open(new) as other:
            chats = [one.conversation("alice"), other.conversation("alice")]
            assert chats[0].messages() == chats[1].messages()
            assert [c.length() for c in chats] == [5, 5]
            assert [c.window(max_messages=9) for c in chats] == [chats[0].messages()] * 2
            assert other.state("robot", type="arm").load() == {"at": 2}
    shown = run_command("--store", places[1], "doctor").stdout
    assert f"conversation/alice: entry {6 if last else 3}, before it was copied here" in shown
    assert shown.endswith("All is well.\n")
    with limpet.open(places[1]) as store:
        assert store.conversation("alice").append({"role": "user", "content": "on"}) == 7


def test_a_salvaging_copy_takes_what_is_left_and_says_what_is_not(target: MemoryBackend) -> None:
    """Entries that are gone, and one that no longer matches its checksum."""
    source = MemoryBackend()
    write(source, ONE, *map(entry, "abcdef"), status="open")
    records = source._journals[ONE].records
    records[4] = structs.replace(records[4], body=records[4].body[:-1] + b"?")
    del records[1:3]
    write(source, TWO, entry("a"))
    done = copied(source, target, salvage=True)
    assert (done[ONE].outcome, done[ONE].lost) == ("new", ((2, 3), (5, 5)))
    assert (done[TWO].outcome, done[TWO].lost) == ("new", ())
    found = [entry for record in target.read(ONE) for entry in Codec().decode(record.body)]
    lost = (LOST, None)
    assert found == [("said", "a"), lost, lost, ("said", "d"), lost, ("said", "f")]
    head = target.head(ONE)
    assert head is not None
    assert (head.seq, head.status) == (6, "open")
    assert copied(source, target, salvage=True)[ONE].outcome == "same"


def test_half_of_what_cannot_be_read_is_not_left_behind(
    target: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would pass for a conversation that ends there."""

    class Damaged(MemoryBackend):
        def read(self, key: Key, **how: Any) -> list[Record]:
            if how.get("after", 0) >= 2:
                raise StoreCorrupt("A page is damaged.")
            return super().read(key, **how)

    monkeypatch.setattr(copying, "PAGE", 2)
    source = Damaged()
    write(source, ONE, b"a", b"b", b"c")
    done = copied(source, target)[ONE]
    assert (done.outcome, done.why, done.records) == ("failed", "A page is damaged.", 0)
    assert target.head(ONE) is None


def test_an_earlier_copy_that_cannot_be_continued_is_still_found(target: MemoryBackend) -> None:
    """An open task must not go from the list because its source was damaged since."""
    source = MemoryBackend()
    write(source, ONE, b"a", status="open", labels={"team": "red"}, meta=b"{}", ttl=3600)
    copied(source, target)
    before = target.head(ONE)
    write(source, ONE, b"b", b"c", b"d", status="done")
    del source._journals[ONE].records[2]
    assert copied(source, target)[ONE].outcome == "failed"
    after = target.head(ONE)
    assert before is not None
    assert after is not None
    assert (after.status, after.labels, after.meta) == ("open", {"team": "red"}, b"{}")
    # It has a record more than before, which is later, and its time to live counts from that.
    assert (after.seq, after.updated >= before.updated) == (before.seq + 1, True)
    assert (after.ttl, after.expires) == (before.ttl, after.updated + 3600 * 1_000_000)


def test_a_record_that_the_target_does_not_take_leaves_nothing_behind(
    source: MemoryBackend,
) -> None:
    """All of it, or none; and the others are copied."""

    class Small(MemoryBackend):
        def append(self, request: Append) -> Appended:
            if request.body == b"too large":
                raise TooLarge("A record is too large.")
            return super().append(request)

    write(source, ONE, b"a", b"too large")
    target = Small()
    done = copied(source, target)
    assert done[ONE].outcome == "failed"
    assert target.head(ONE) is None
    assert {one.outcome for key, one in done.items() if key != ONE} == {"new"}


def test_a_target_that_stores_something_else_is_found_out(source: MemoryBackend) -> None:
    """All of it is read back."""

    class Liar(MemoryBackend):
        def append(self, request: Append) -> Appended:
            body = request.body.replace(b"All work", b"All play")
            return super().append(Append(**{**_fields(request), "body": body}))

    write(source, ONE, b"a", b"All work", b"c")
    done = copied(source, Liar())
    assert [key for key, one in done.items() if not one.ok] == [ONE]
    assert "something else at 2" in done[ONE].why


def test_a_target_that_forgets_an_attribute_is_found_out(source: MemoryBackend) -> None:
    """Status, labels and expiry are verified too."""

    class Forgetful(MemoryBackend):
        def append(self, request: Append) -> Appended:
            return super().append(Append(**{**_fields(request), "ttl": UNSET}))

    done = copied(source, Forgetful())
    assert {key.id for key, one in done.items() if not one.ok} == {"brief", "brief-later"}
    assert "expires" in done[Key("acme", "task", "brief")].why


def _fields(request: Append) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__struct_fields__}


# -- interrupted -----------------------------------------------------------------------------------


class Unsteady(MemoryBackend):
    """A store that is away for one write: before it is done, or before anybody is told."""

    def __init__(self, at: int, *, lost_reply: bool) -> None:
        super().__init__()
        self.at = at
        self.lost_reply = lost_reply
        self.writes = 0

    def append(self, request: Append) -> Appended:
        """Fail once."""
        return cast("Appended", self._once(super().append, request))

    def compact(self, key: Key, before: int) -> int:
        """Fail once."""
        return cast("int", self._once(super().compact, key, before))

    def _once(self, write: Callable[..., Any], *args: object) -> Any:
        self.writes += 1
        away = StoreUnavailable("The server is away.")
        if self.writes == self.at and not self.lost_reply:
            raise away
        done = write(*args)
        if self.writes == self.at:
            raise away
        return done


def small() -> MemoryBackend:
    """A store with a few journals that take a few writes each."""
    source = MemoryBackend()
    write(source, ONE, *map(entry, "abc"), status="open", labels={"x": "y"}, ttl=60)
    write(source, TWO, *map(entry, "ab"), id="b")
    for key in (ONE._replace(id="compacted"), ONE._replace(id="emptied")):
        write(source, key, *map(entry, "abc"), status="done")
    source.compact(ONE._replace(id="compacted"), 2)
    source.compact(ONE._replace(id="emptied"), 4)
    return source


@pytest.mark.parametrize("lost_reply", [False, True], ids=["not-done", "reply-lost"])
def test_a_copy_cut_short_at_any_write_is_finished_by_the_next(*, lost_reply: bool) -> None:
    """Nothing is doubled, nothing left out; and nobody sees half a task by its status."""
    source = small()
    at = 0
    while True:
        at += 1
        target = Unsteady(at, lost_reply=lost_reply)
        try:
            copied(source, target, threads=1)
        except StoreUnavailable:
            _check_halves(source, target)
        else:
            break
        copied(source, target, threads=1)
        assert content(target) == content(source)
    assert at == 1 + target.writes == 13


@pytest.mark.parametrize("lost_reply", [False, True], ids=["not-done", "reply-lost"])
def test_catching_up_cut_short_at_any_write_is_finished_by_the_next(*, lost_reply: bool) -> None:
    """The same when there is a copy already, with a status that must not show half of it."""
    for at in range(1, 20):
        source, target = small(), Unsteady(0, lost_reply=lost_reply)
        copied(source, target)
        before = content(target)
        write(source, ONE, entry("d"), entry("e"), status="done", labels={"x": None, "z": "1"})
        write(source, TWO, entry("c"), status="new")
        source.compact(TWO, 2)
        target.at = target.writes + at
        try:
            copied(source, target, threads=1)
        except StoreUnavailable:
            _check_halves(source, target, before)
            copied(source, target, threads=1)
        else:
            assert at > 7
        assert content(target) == content(source)


def _check_halves(source: Backend, target: Backend, before: dict[Key, Any] | None = None) -> None:
    """Each copy is whole, as it was *before*, or a beginning that is found under no status."""
    whole, filler = content(source, by_meaning=True), [("compacted", None)]
    for key, (state, records) in content(target, by_meaning=True).items():
        first = whole[key][0].first
        found = [record for record in records if record[4] != filler and record[0] >= first]
        assert found == whole[key][1][: len(found)]
        is_blank = copying._Attributes.of(state) == copying.BLANK
        if not is_blank and (before or {}).get(key) != content(target)[key]:
            assert (state, records) == whole[key]


def test_an_error_of_the_store_ends_the_copy(source: MemoryBackend) -> None:
    """Every other journal would run into the same; and no thread stays behind."""
    before = threading.active_count()
    with pytest.raises(StoreUnavailable):
        copied(source, Unsteady(5, lost_reply=False))
    assert threading.active_count() == before


def test_a_copy_that_nobody_waits_for_stops(source: MemoryBackend, target: MemoryBackend) -> None:
    """As with Ctrl-C: no thread goes on."""
    before = threading.active_count()
    run = copying.copy(source, target)
    next(run)
    run.close()
    assert threading.active_count() == before
    copied(source, target)
    assert content(target) == content(source)


def test_two_copies_at_once_make_one(source: MemoryBackend) -> None:
    """Whoever comes second continues what the first has begun, or finds it done."""
    for key in source.kinds():
        for head in source.scan(*key).heads:
            write(source, head.key, *(entry(f"more {n}") for n in range(20)))
    target = MemoryBackend()
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: copied(source, target, threads=4), range(3)))
    assert content(target) == content(source)
    problems = [one for each in done for one in each.values() if not one.ok]
    assert problems == []


def copy_on(source: str, target: str) -> None:
    """A program that copies, and tells of each journal that is done."""
    old, new = connect(source, create=False, readonly=True), connect(target)
    for journal in copying.copy(old, new, threads=3):
        assert journal.ok, journal
        ack(f"{journal.outcome} {journal.key.id}")
    new.close()
    old.close()


#: Where a copy is killed most often: each kill is two processes, and what goes on is the same.
OFTEN = ("sqlite", "postgresql")


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("name", places.EVERYWHERE)
def test_a_copy_that_is_killed_again_and_again_comes_to_its_end(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """At random moments; every next process goes on where the last one was killed."""
    there = places.find(name, request)
    url = f"sqlite:{tmp_path}/from.db"
    program = Program("tests.models.transfer.test_copy:copy_on", (url, there.url))
    with connect_all(url) as (source,), seeded() as rng:
        fill(source)
        for number in range(20 * soak()):
            write(source, ONE._replace(id=f"long-{number}"), *map(entry, "abcdefgh"), status="open")
        kills = 0
        while kills < (8 if name in OFTEN else 3) * soak():
            moment = Moment(rng.randint(0, 5 * kills + 1), rng.uniform(0, 0.05))
            (outcome,) = crash([program], [moment])
            if not outcome.killed:
                break
            kills += 1
            with connect_all(there.url) as (target,):
                _check_halves(source, target)
        assert kills
        (last,) = run(program)
        assert len(last.acked) == len(content(source))
        with connect_all(there.url) as (target,):
            assert content(target, by_meaning=True) == content(source, by_meaning=True)


class connect_all:  # noqa: N801 - reads as a word
    """Open stores, and close them."""

    def __init__(self, *urls: str) -> None:
        self._backends = [connect(url) for url in urls]

    def __enter__(self) -> list[Backend]:
        return self._backends

    def __exit__(self, *_: object) -> None:
        for backend in self._backends:
            backend.close()


# -- dry runs --------------------------------------------------------------------------------------


def test_a_dry_run_writes_nothing_and_says_what_would_be(source: MemoryBackend) -> None:
    """Also where there is no target yet, and where something differs."""

    class Untouched(MemoryBackend):
        def append(self, request: Append) -> Appended:
            raise AssertionError(request)

    assert {one.outcome for one in copied(source, None, dry_run=True).values()} == {"new"}
    would = copied(source, Untouched(), dry_run=True)
    assert {one.outcome for one in would.values()} == {"new"}
    assert sum(one.entries for one in would.values()) == copying.survey(source).entries

    target = Untouched()
    target.append = super(Untouched, target).append  # type: ignore[method-assign]
    copied(source, target)
    write(target, Key("acme", "conversation", "chat-01"), b"own")
    del target.append
    write(source, Key("acme", "conversation", "chat-02"), b"more")
    done = copied(source, target, dry_run=True)
    assert {key.id: one.outcome for key, one in done.items() if one.outcome != "same"} == {
        "chat-01": "differs",
        "chat-02": "continued",
    }


# -- one and the same ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", places.LOCAL)
def test_a_store_is_not_copied_onto_itself(name: str, tmp_path: Path) -> None:
    """By whatever name: that is a slip of the hand."""
    url = places.LOCAL[name].format(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    with connect_all(url, url.replace(str(tmp_path), f"{tmp_path}/link")) as (one, other):
        with pytest.raises(InvalidURL, match="same store"):
            copied(one, other)
        with pytest.raises(InvalidURL, match="same store"):
            copied(one, one)


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A SQLite store with journals of all sorts, in the directory where we are."""
    monkeypatch.chdir(tmp_path)
    for name in ("LIMPET_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    with connect_all("from.db") as (backend,):
        fill(backend)
    return "from.db"


@pytest.fixture
def _files(path: str) -> Iterator[None]:
    """FROM is as it was afterwards."""
    with connect_all(path) as (backend,):
        before = content(backend)
    yield
    with connect_all(path) as (backend,):
        assert content(backend) == before


@pytest.mark.usefixtures("_files")
def test_the_command_copies_and_counts(path: str) -> None:
    """In one line, if all went well."""
    result = run_command("copy", path, "to.db")
    assert result.stdout.startswith("journals: 40 copied. 1")
    assert result.stdout.count("\n") == 1
    assert result.stderr == ""
    again = run_command("copy", path, "to.db").stdout
    assert again.startswith("journals: 40 there already. 0 entries (0 B) copied, ")
    with connect_all(path, "to.db") as (source, target):
        assert content(target) == content(source)


@pytest.mark.usefixtures("_files")
def test_the_command_reports_to_programs(path: str) -> None:
    """One document: counts, and lists of what is worth a look."""
    with connect_all(path) as (backend,):
        backend.acquire(Key("acme", "task", "open"), "agent-01 [mark]", 600)
    with connect_all("to.db") as (backend,):
        write(backend, Key("acme", "task", "several"), b"own")
    found = json.loads(run_command("copy", path, "to.db", "--json", code=1).stdout)
    assert found["journals"] == {"new": 39, "differs": 1}
    assert (found["ok"], found["dry_run"], found["to"]) == (False, False, "sqlite:to.db")
    open_ = {"tenant": "acme", "kind": "task", "id": "open", "held_by": "agent-01"}
    assert found["held"] == [open_]
    (problem,) = found["problems"]
    assert (problem["id"], problem["outcome"]) == ("several", "differs")


def test_the_command_names_what_it_left_alone_and_ends_with_1(path: str) -> None:
    """A script must notice; a person must know which."""
    with connect_all("to.db") as (backend,):
        write(backend, Key("acme", "task", "several"), b"own")
    shown = run_command("copy", path, "to.db", code=1).stdout
    assert "Not copied; what TO has was left alone." in shown
    assert "\n  task/several (tenant acme): There is another one of this name" in shown


def test_the_command_in_a_dry_run_makes_no_store(path: str, tmp_path: Path) -> None:
    """Not even an empty one."""
    shown = run_command("copy", path, "to.db", "--dry-run").stdout
    assert shown.startswith("journals: 40 would be copied.")
    assert shown.endswith("Nothing was written.\n")
    assert not (tmp_path / "to.db").exists()


def test_the_command_copies_only_what_was_asked_for(path: str) -> None:
    """By tenant, also before the command, and by kind; what is not there is not a success."""
    run_command("copy", path, "to.db", "--tenant", "Acme", "--tenant", "other", "--kind", "task")
    run_command("--tenant", "other", "copy", path, "to.db")
    with connect_all("to.db") as (backend,):
        assert backend.kinds() == [("Acme", "task"), ("other", "note")]
    result = run_command("copy", path, "to.db", "--kind", "tasks", code=3)
    assert "nothing of that tenant or kind" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["missing.db", "to.db"], 1, "StoreNotFound: "),
        (["from.db", "from.db"], 1, "same store"),
        (["from.db", "nosuch://joe:secret@host"], 1, "InvalidURL: nosuch: is not a kind"),
        (["memory:", "to.db"], 2, "ends with its process"),
        (["from.db", "memory:"], 2, "ends with its process"),
        (["--store", "x", "from.db"], 2, "Usage:"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(
    path: str, tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    """With one message, and without a file that was not there before."""
    result = run_command("copy", *words, code=code)
    assert said in result.stderr
    assert "secret" not in result.output
    assert not (tmp_path / "to.db").exists()


def test_a_store_named_before_the_command_is_not_ignored(path: str) -> None:
    """FROM and TO say it all."""
    assert "FROM and TO" in run_command("--store", path, "copy", path, "to.db", code=2).stderr


def test_there_is_a_bar_on_a_terminal_only(path: str) -> None:
    """Journals and bytes, and gone when it is done."""
    shown = in_terminal("copy", path, "to.db", columns=100)
    assert "of 40 journals" in shown
    assert lines_of(shown)[-1].startswith("journals: 40 copied.")
    assert "\x1b" not in run_command("copy", path, "other.db").output


def test_an_error_half_way_says_how_to_go_on(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been copied is safe."""
    append = SqliteBackend.append
    writes = iter(range(100))

    def away(self: Any, request: Append) -> Appended:
        if next(writes) == 20:
            raise StoreUnavailable("The server is away.")
        return append(self, request)

    monkeypatch.setattr(SqliteBackend, "append", away)
    result = run_command("copy", path, "to.db", code=1)
    assert result.stderr.startswith("StoreUnavailable: The server is away.\n")
    assert "Run the same command again to go on" in result.stderr
    monkeypatch.undo()


def test_the_installed_command_copies(path: str) -> None:
    """As people run it."""
    assert Path(LIMPET).exists()
    assert "journals: 40 copied" in in_terminal("copy", path, "to.db")
