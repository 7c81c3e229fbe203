"""The conformance suite: what every backend must do, as tests.

To hold your own backend to it, subclass the suite, name the class, and give it a place by its URL::

    class TestMyBackend(BackendContract):
        backend = MyBackend

        @pytest.fixture
        def url(self, tmp_path):
            return f"mine:{tmp_path}/journals"

Each test has a place of its own, and opens it as often as it likes. What is called is tested twice:
with blocking calls, and through the async path.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest

from limpet.backends.contract import Append, Appended, Backend, Expect, Key, Lease, Origin
from limpet.core.runtime import AsyncRuntime
from limpet.errors import (
    Conflict,
    InvalidURL,
    LeaseHeld,
    LeaseLost,
    NotTransactional,
    StoreClosed,
    StoreNotFound,
    StoreReadOnly,
)
from limpet.testing.leaks import nothing_left

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["BackendContract", "Caller"]

KEY = Key("acme", "note", "one")
OTHER = Key("acme", "list", "other")


class Caller:
    """A backend's methods, called in place or by the async path; the tests cannot tell."""

    def __init__(self, backend: Backend, loop: asyncio.AbstractEventLoop | None) -> None:
        self.backend = backend
        self.runtime = AsyncRuntime(backend)
        self.overhead = backend.overhead
        self._loop = loop

    def append(self, key: Key = KEY, *bodies: bytes, **request: Any) -> Appended:
        """Append one record of ``count`` entries (one, unless it says otherwise)."""
        made = _add(key, *bodies, **request)
        if self._loop is None:
            return self.backend.append(made)
        return self._loop.run_until_complete(self.runtime.append(made))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.backend, name)
        if self._loop is None:
            return method  # type: ignore[no-any-return]
        loop = self._loop
        return lambda *args, **kwargs: loop.run_until_complete(
            self.runtime.call(method, *args, **kwargs)
        )

    def close(self) -> None:
        """Close the backend, and the threads of the async path."""
        self.runtime.close()
        self.backend.close()

    def seqs(self, key: Key = KEY, **how: Any) -> list[int]:
        """The numbers that `read` gives."""
        return [record.seq for record in self.read(key, **how)]


class BackendContract:
    """What `limpet.backends.contract` promises."""

    #: The class to test.
    backend: type[Backend]
    #: False for one that wraps another backend and keeps something of its own in the note.
    notes = True

    @pytest.fixture
    def url(self) -> str:
        """The URL of one place, at which there is no store when a test begins.

        Where no URL opens the same store twice, as with ``memory:``, call `pytest.skip` here, and
        override `opened`.
        """
        raise NotImplementedError

    @pytest.fixture
    def opened(self, url: str) -> Callable[[], Backend]:
        """Opens a new connection to that place each time."""
        return partial(self.backend.from_url, url)

    @pytest.fixture(params=["sync", "async"])
    def loop(self, request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop | None]:
        """None for blocking calls."""
        if request.param == "sync":
            yield None
            return
        loop = asyncio.new_event_loop()
        yield loop
        loop.close()

    @pytest.fixture
    def store(
        self, opened: Callable[[], Backend], loop: asyncio.AbstractEventLoop | None
    ) -> Iterator[Caller]:
        """A backend, closed afterwards, that must leave no thread and no file open."""
        with nothing_left():
            caller = Caller(opened(), loop)
            yield caller
            caller.close()

    # -- opening -------------------------------------------------------------------------------

    def test_a_url_opens_the_store_that_was_written_under_it(self, url: str) -> None:
        """With all its journals, after everybody has closed it."""
        with nothing_left():
            with closing(self.backend.from_url(url)) as store:
                first = store.append(_add(KEY, b"abc", labels={"a": "b"}))
            for options in ({}, {"create": False}, {"readonly": True}):
                with closing(self.backend.from_url(url, **options)) as store:
                    assert [record.body for record in store.read(KEY)] == [b"abc"]
                    head = store.head(KEY)
                    assert head is not None
                    assert (head.expect, head.labels) == (first.expect, {"a": "b"})

    @pytest.mark.parametrize("parameter", ["create=false", "readonly=true"])
    def test_a_store_that_is_not_there_is_not_found_and_not_created(
        self, url: str, parameter: str
    ) -> None:
        """Neither by an option nor by the same parameter of the URL."""
        name, _, value = parameter.partition("=")
        with nothing_left():
            for _ in range(2):  # the second time, it finds what the first may have left
                with pytest.raises(StoreNotFound):
                    self.backend.from_url(url, **{name: value == "true"})
                with pytest.raises(StoreNotFound):
                    self.backend.from_url(_with_parameter(url, parameter))

    def test_an_option_goes_before_the_same_parameter_of_the_url(self, url: str) -> None:
        """The code that opens a store has the last word."""
        read_only = _with_parameter(url, "readonly=true")
        with nothing_left():
            with closing(self.backend.from_url(read_only, readonly=False)) as store:
                assert store.append(_add()).seq == 1
            with (
                closing(self.backend.from_url(read_only)) as store,
                pytest.raises(StoreReadOnly),
            ):
                store.append(_add())

    def test_an_unknown_parameter_of_a_url_is_refused(self, url: str) -> None:
        """A misspelt option is not ignored, and no store begins."""
        with nothing_left():
            with pytest.raises(InvalidURL, match="red_only"):
                self.backend.from_url(_with_parameter(url, "red_only=true"))
            with pytest.raises(StoreNotFound):
                self.backend.from_url(url, create=False)

    def test_a_store_opened_read_only_is_read_and_not_written(
        self, url: str, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        """Every read works, and every write is refused and changes nothing."""
        with nothing_left(), closing(self.backend.from_url(url)) as writer:
            writer.append(_add(count=2, status="open", labels={"a": "b"}))
            writer.append(_add(OTHER, ttl=0.001))
            lease = writer.acquire(KEY, "me", 60)
            time.sleep(0.01)
            before = writer.head(KEY)
            with closing(Caller(self.backend.from_url(url, readonly=True), loop)) as store:
                assert (store.head(KEY), store.seqs(), store.bodies(KEY)) == (
                    before,
                    [2],
                    [(2, b"x")],
                )
                assert store.wait(KEY, timeout=0) is True
                assert (_scanned(store), store.kinds()) == (["one"], [("acme", "note")])
                assert store.facts()
                for write in (
                    store.append,
                    partial(store.append, KEY._replace(id="new")),
                    partial(store.append, body=b"", count=0, status="done"),
                    partial(store.acquire, KEY._replace(id="new"), "you", 60),
                    partial(store.acquire, KEY, "you", 60, over=lease.epoch),
                    partial(store.renew, KEY, lease, 60),
                    partial(store.release, KEY, lease),
                    partial(store.delete, KEY),
                    partial(store.compact, KEY, 3),
                    store.sweep,
                ):
                    with pytest.raises(StoreReadOnly):
                        write()
                if store.backend.transactional:
                    with pytest.raises(StoreReadOnly):
                        store.append_all([_add()])
                    with pytest.raises(StoreReadOnly), store.backend.transaction() as block:
                        block.append(_add())
            assert writer.head(KEY) == before
            assert writer.head(KEY._replace(id="new")) is None
            assert writer.append(_add(KEY._replace(id="new"), expect=0)).seq == 1

    # -- append and read -----------------------------------------------------------------------

    def test_a_journal_that_was_never_written_is_not_there(self, store: Caller) -> None:
        """Nothing is nothing, not an error."""
        assert store.head(KEY) is None
        assert store.has(KEY) is False
        assert store.read(KEY) == store.examine(KEY) == []
        assert store.delete(KEY) is False
        assert store.compact(KEY, 5) == 0

    def test_entries_are_numbered_from_one(self, store: Caller) -> None:
        """An append of two takes two numbers and is one record."""
        assert store.append(count=2).seq == 2
        assert store.append().seq == 3
        assert [(r.seq, r.count) for r in store.read(KEY)] == [(2, 2), (3, 1)]
        assert store.has(KEY) is True
        assert store.examine(KEY, after=2) == [(record, None) for record in store.read(KEY)[1:]]

    @pytest.mark.parametrize("size", [1, 100, 5_000, 1_500_000])
    def test_bodies_come_back_to_the_byte(self, store: Caller, size: int) -> None:
        """Zero bytes, high bytes, no bytes that mean anything."""
        body = (bytes(range(256)) * (size // 256 + 1))[:size]
        store.append(KEY, body)
        assert [record.body for record in store.read(KEY)] == [body]

    def test_times_never_go_back(self, store: Caller) -> None:
        """The order of the numbers is the order of the times."""
        done = [store.append() for _ in range(5)]
        assert [d.at for d in done] == sorted(d.at for d in done)
        assert [r.at for r in store.read(KEY)] == [d.at for d in done]

    def test_reading_forward_backward_and_in_pages(self, store: Caller) -> None:
        """After is exclusive, limit counts records, reverse starts at the end."""
        for _ in range(6):
            store.append()
        assert store.seqs(after=2) == [3, 4, 5, 6]
        assert store.seqs(after=2, limit=2) == [3, 4]
        assert store.seqs(reverse=True, limit=2) == [6, 5]
        assert store.seqs(upto=4, reverse=True, limit=2) == [4, 3]
        assert store.seqs(after=1, upto=3) == [2, 3]
        assert store.seqs(after=6) == []

    def test_a_record_across_an_edge_comes_whole(self, store: Caller) -> None:
        """The caller cuts it; the backend cannot."""
        store.append(count=3)
        store.append(count=3)
        assert store.seqs(after=1) == [3, 6]
        assert store.seqs(after=3) == [6]
        assert store.seqs(upto=1) == [3]
        assert store.seqs(upto=3) == [3]
        assert store.seqs(upto=4) == [3, 6]
        assert store.seqs(after=1, upto=2, reverse=True) == [3]

    def test_an_append_of_several_records_is_one_act(self, store: Caller) -> None:
        """Numbered and read one by one, under one id, with one time; or refused as one."""
        if not store.backend.splits:
            pytest.skip("An append to this backend is one record.")
        several: dict[str, Any] = {"earlier": [(2, b"first"), (1, b"second")], "count": 3}
        for number in (1, 2):  # it begins a journal, and goes on with one
            done = store.append(KEY, b"last", id=f"a{number}", **several)
            assert done.seq == 6 * number
            again = store.append(KEY, b"last", id=f"a{number}", **several)
            assert (again.seq, again.at, again.repeated) == (done.seq, done.at, True)
        records = store.read(KEY)
        assert [(r.seq, r.count, r.body) for r in records[:3]] == [
            (2, 2, b"first"),
            (3, 1, b"second"),
            (6, 3, b"last"),
        ]
        assert [r.seq for r in records[3:]] == [8, 9, 12]
        assert [r.id for r in records] == [None, None, "a1", None, None, "a2"]
        assert len({r.at for r in records[3:]}) == 1
        with pytest.raises(Conflict):
            store.append(KEY, b"last", **several, expect=11)
        head = store.head(KEY)
        assert (head.seq, head.size) == (12, 2 * len(b"firstsecondlast") + 6 * store.overhead)
        assert store.seqs(reverse=True, limit=2) == [12, 9]
        assert store.compact(KEY, 9) == 8
        assert store.seqs() == [9, 12]
        assert store.head(KEY).size == len(b"secondlast") + 2 * store.overhead

    def test_the_records_of_one_append_may_hold_very_many_entries(self, store: Caller) -> None:
        """Numbers of every size are sent as they are."""
        if not store.backend.splits:
            pytest.skip("An append to this backend is one record.")
        counts = [16, 40_000]
        done = store.append(KEY, b"last", earlier=[(count, b"some") for count in counts])
        assert done.seq == sum(counts) + 1
        assert [record.count for record in store.read(KEY)] == [*counts, 1]

    def test_several_records_begin_a_journal_that_was_leased(self, store: Caller) -> None:
        """With attributes, and conditional on the lease."""
        if not store.backend.splits:
            pytest.skip("An append to this backend is one record.")
        lease = store.acquire(KEY, "me", 60)
        several: dict[str, Any] = {"earlier": [(1, b"first")], "labels": {"a": "b"}, "meta": b"{}"}
        with pytest.raises(LeaseLost):
            store.append(epoch=lease.epoch - 1, **several)
        assert store.append(epoch=lease.epoch, **several).seq == 2
        assert store.append(epoch=lease.epoch, expect=2, **several).seq == 4
        assert store.seqs() == [1, 2, 3, 4]
        assert store.head(KEY).labels == {"a": "b"}

    def test_what_was_acknowledged_is_seen_by_every_connection(
        self, store: Caller, opened: Callable[[], Backend]
    ) -> None:
        """No reader is behind the writer's acknowledgement."""
        other = opened()
        try:
            for number in range(1, 6):
                store.append()
                assert [r.seq for r in other.read(KEY)][-1:] == [number]
        finally:
            other.close()

    def test_a_waiter_is_told_when_there_is_more(
        self, store: Caller, opened: Callable[[], Backend]
    ) -> None:
        """By another connection's append; not by the entries that it knows."""
        other = opened()
        try:
            store.append()
            assert store.wait(KEY, timeout=0) is True
            assert store.wait(KEY, after=1, timeout=0.05) is False
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(other.wait, KEY, after=1, timeout=60)
                time.sleep(0.05)
                store.append()
                assert waiting.result() is True
        finally:
            other.close()

    # -- conditions ----------------------------------------------------------------------------

    def test_the_second_writer_at_one_position_gets_a_conflict(self, store: Caller) -> None:
        """Two agents never silently overwrite each other."""
        store.append(expect=0)
        with pytest.raises(Conflict) as caught:
            store.append(expect=0)
        assert (caught.value.expected, caught.value.actual) == (0, 1)
        assert store.append(expect=1).seq == 2
        assert store.seqs() == [1, 2]

    def test_an_append_repeated_under_its_id_adds_nothing(self, store: Caller) -> None:
        """A reply that was lost can be asked for again, also after others have written."""
        first = store.append(id="a", count=2)
        store.append()
        again = store.append(id="a", count=2)
        assert (again.seq, again.at, again.repeated) == (first.seq, first.at, True)
        assert store.seqs() == [2, 3]

    def test_a_known_id_goes_before_all_conditions(self, store: Caller) -> None:
        """The retry of a write that succeeded must not fail because it succeeded."""
        lease = store.acquire(KEY, "me", 60)
        store.append(id="a", expect=0, epoch=lease.epoch)
        store.release(KEY, lease)
        store.acquire(KEY, "you", 60)
        assert store.append(id="a", expect=0, epoch=lease.epoch).repeated

    def test_ids_belong_to_their_journal(self, store: Caller) -> None:
        """The same id elsewhere is another append."""
        store.append(id="a")
        assert not store.append(KEY._replace(id="two"), id="a").repeated

    def test_a_refused_append_leaves_no_trace(self, store: Caller) -> None:
        """Neither record, nor id, nor label, nor status."""
        store.append(status="open")
        with pytest.raises(Conflict):
            store.append(expect=7, id="a", labels={"x": "y"}, status="done", ttl=1)
        head = store.head(KEY)
        assert (head.seq, head.status, head.labels, head.expires) == (1, "open", {}, None)
        assert not store.append(id="a").repeated

    # -- incarnations ----------------------------------------------------------------------------

    def test_a_journal_that_begins_anew_is_another_incarnation(self, store: Caller) -> None:
        """A writer that knew the old one is refused, although the number is the same."""
        before = store.append(count=2)
        assert store.head(KEY).expect == before.expect == Expect(before.incarnation, 2)
        store.delete(KEY)
        after = store.append(count=2)
        assert after.incarnation not in ("", before.incarnation)
        with pytest.raises(Conflict, match="begun anew") as caught:
            store.append(expect=before.expect)
        assert (caught.value.expected, caught.value.actual) == (2, 2)
        assert store.append(expect=after.expect).seq == 3

    def test_an_incarnation_lasts_as_long_as_its_journal(self, store: Caller) -> None:
        """Over appends, attributes, leases, compaction and other connections."""
        first = store.append(id="a")
        lease = store.acquire(KEY, "me", 60)
        assert store.append(epoch=lease.epoch).incarnation == first.incarnation
        store.append(body=b"", count=0, labels={"a": "b"}, status="x")
        store.release(KEY, lease)
        assert store.append(id="a").incarnation == first.incarnation
        store.compact(KEY, 2)
        assert store.head(KEY).incarnation == first.incarnation
        assert store.scan("acme", "note").heads[0].incarnation == first.incarnation
        assert store.append(expect=Expect(first.incarnation, 2)).incarnation == first.incarnation

    def test_a_journal_that_expired_is_another_incarnation(self, store: Caller) -> None:
        """Expired is gone, as deleted is."""
        before = store.append(ttl=0.001)
        time.sleep(0.01)
        with pytest.raises(Conflict):
            store.append(expect=before.expect)
        assert store.append(expect=0).incarnation != before.incarnation

    def test_a_lease_alone_is_no_incarnation(self, store: Caller) -> None:
        """It begins with the first record, whoever holds the lease."""
        lease = store.acquire(KEY, "me", 60)
        assert store.append(body=b"", count=0, status="x").incarnation == ""
        with pytest.raises(Conflict):
            store.append(expect=Expect("abc", 1))
        done = store.append(expect=Expect("abc", 0), epoch=lease.epoch)
        assert store.head(KEY).incarnation == done.incarnation != ""

    # -- heads ---------------------------------------------------------------------------------

    def test_a_head_tells_where_the_journal_stands(self, store: Caller) -> None:
        """Number, size, times, status and labels."""
        first = store.append(KEY, b"abc", count=2, status="open", labels={"team": "red", "x": ""})
        last = store.append(KEY, b"de")
        head = store.head(KEY)
        assert (head.key, head.seq, head.first, head.size) == (KEY, 3, 1, 5 + 2 * store.overhead)
        assert (head.created, head.updated) == (first.at, last.at)
        assert (head.status, head.labels, head.expires) == ("open", {"team": "red", "x": ""}, None)

    def test_labels_are_merged_and_none_removes_one(self, store: Caller) -> None:
        """Two writers of two labels both keep theirs."""
        store.append(labels={"a": "1", "b": "2"})
        store.append(labels={"b": None, "c": "3", "a": "4"})
        assert store.head(KEY).labels == {"a": "4", "c": "3"}

    def test_meta_comes_back_to_the_byte_until_it_is_changed(self, store: Caller) -> None:
        """It is the model's own: kept as it is, with an append or without one."""
        meta = b'{"start":12,"text":"\\u00e9 \xc3\xa9","pins":[3,17]}'
        store.append()
        assert store.head(KEY).meta is None
        store.append(meta=meta)
        store.append(status="x")
        assert store.head(KEY).meta == store.scan("acme", "note").heads[0].meta == meta
        with pytest.raises(Conflict):
            store.append(meta=b"{}", expect=7)
        assert store.head(KEY).meta == meta
        store.append(body=b"", count=0, meta=b"{}")
        assert store.head(KEY).meta == b"{}"
        store.append(meta=None)
        assert store.head(KEY).meta is None
        store.append(meta=meta)
        store.delete(KEY)
        store.append()
        assert store.head(KEY).meta is None

    def test_attributes_change_without_a_record(self, store: Caller) -> None:
        """Number and time of the last append stay; on a journal that is not there, nothing."""
        assert store.append(body=b"", count=0, status="x", labels={"a": "1"}).seq == 0
        assert store.head(KEY) is None
        before = store.append()
        assert store.append(body=b"", count=0, status="done", labels={"a": "1"}).seq == 1
        head = store.head(KEY)
        assert (head.seq, head.status, head.labels, head.updated) == (
            1,
            "done",
            {"a": "1"},
            before.at,
        )
        store.append(body=b"", count=0, status=None)
        assert store.head(KEY).status is None

    # -- notes ---------------------------------------------------------------------------------

    def test_a_note_goes_with_the_newest_record_alone(self, store: Caller) -> None:
        """The next record replaces it or takes it away, and nothing else does."""
        self.skip_without_notes()
        note, other = bytes(range(0, 256, 3)), b"\xff\x00\xfe" * 13
        store.append(note=note)
        assert store.head(KEY).note == store.scan("acme", "note").heads[0].note == note
        store.append(note=other)
        with pytest.raises(Conflict):
            store.append(note=note, expect=7)
        for change in ({"status": "x"}, {"labels": {"a": "b"}}, {"meta": b"{}"}, {"ttl": 60}):
            store.append(body=b"", count=0, **change)
        lease = store.acquire(KEY, "me", 60)
        store.renew(KEY, lease, 60)
        store.release(KEY, lease)
        head = store.head(KEY)
        assert (head.seq, head.note, head.status, head.labels) == (2, other, "x", {"a": "b"})
        store.append(status="y", note=note, ttl=None)
        assert (store.head(KEY).note, store.head(KEY).status) == (note, "y")
        store.append(count=2)
        assert store.head(KEY).note is store.scan("acme", "note").heads[0].note is None
        store.append()
        store.append(note=note)
        assert store.head(KEY).note == note

    def test_a_note_is_not_that_of_a_journal_before(self, store: Caller) -> None:
        """Deleted, expired, or only leased until now."""
        self.skip_without_notes()
        store.append(note=b"deleted")
        store.delete(KEY)
        store.append()
        assert store.head(KEY).note is None
        store.append(note=b"expires", ttl=0.001)
        time.sleep(0.01)
        lease = store.acquire(KEY, "me", 60)
        store.append(body=b"", count=0, note=b"of no record", labels={"a": "b"})
        assert store.append(epoch=lease.epoch).seq == 1
        assert (store.head(KEY).note, store.head(KEY).labels) == (None, {"a": "b"})
        store.delete(KEY)
        lease = store.acquire(KEY, "me", 60)
        store.append(epoch=lease.epoch, note=b"leased")
        assert store.head(KEY).note == b"leased"

    def test_a_note_stays_when_what_is_before_is_compacted(self, store: Caller) -> None:
        """And when all is."""
        self.skip_without_notes()
        for number in range(4):
            store.append(note=b"%d" % number)
        assert store.compact(KEY, 3) == 2
        assert store.head(KEY).note == b"3"
        store.compact(KEY, 5)
        assert (store.seqs(), store.head(KEY).note) == ([], b"3")
        store.append(note=b"4")
        assert store.head(KEY).note == b"4"

    def test_a_repeated_append_leaves_the_note_of_a_later_one(self, store: Caller) -> None:
        """It was replaced, and what replaced it was acknowledged."""
        self.skip_without_notes()
        store.append(id="a", note=b"a")
        store.append(id="b", note=b"b")
        assert store.append(id="a", note=b"a").repeated
        assert store.head(KEY).note == b"b"

    def test_the_records_of_one_append_have_one_note(self, store: Caller) -> None:
        """That of the last of them."""
        self.skip_without_notes()
        if not store.backend.splits:
            pytest.skip("An append to this backend is one record.")
        several: dict[str, Any] = {"earlier": [(2, b"first"), (1, b"second")]}
        store.append(note=b"one", **several)
        assert (store.head(KEY).seq, store.head(KEY).note) == (4, b"one")
        store.append(note=b"two", labels={"a": "b"}, **several)
        assert store.head(KEY).note == b"two"
        store.append(**several)
        assert store.head(KEY).note is None

    def test_a_copy_has_a_note(self, store: Caller) -> None:
        """As any append."""
        self.skip_without_notes()
        origin = Origin(at=2_000_000, created=1_000_000, first=8, incarnation="abc")
        store.append(note=b"copied", origin=origin)
        store.append(body=b"", count=0, labels={"a": "b"}, origin=origin)
        assert store.head(KEY).note == b"copied"

    def test_a_note_is_set_where_records_are_rewritten(self, store: Caller) -> None:
        """Or stays, if none is given."""
        self.skip_without_notes()
        if not store.backend.rewrites:
            pytest.skip("This backend only appends.")
        head = store.append(note=b"before").expect
        assert store.rewrite(KEY, {1: b"x"}, expect=head) == 1
        assert store.head(KEY).note == b"before"
        assert store.rewrite(KEY, {1: b"y"}, expect=head, note=b"after", renewed="anew") == 1
        assert (store.head(KEY).note, store.head(KEY).incarnation) == (b"after", "anew")
        assert store.append(expect=Expect("anew", 1)).seq == 2
        assert store.head(KEY).note is None
        assert store.rewrite(KEY, {2: b"z"}, expect=Expect("anew", 2), note=b"again") == 1
        assert store.head(KEY).note == b"again"

    def test_of_appends_that_are_one_act_the_last_has_the_note(self, store: Caller) -> None:
        """In each journal; in a transaction, too."""
        self.skip_without_notes()
        if not store.backend.transactional:
            pytest.skip("This backend commits one journal at a time.")
        store.append(note=b"before")
        store.append_all([_add(note=b"1"), _add(OTHER, note=b"2"), _add(note=b"3"), _add(OTHER)])
        assert (store.head(KEY).note, store.head(OTHER).note) == (b"3", None)
        with store.backend.transaction() as block:
            block.append(_add(note=b"4"))
        assert store.head(KEY).note == b"4"
        with store.backend.transaction() as block:
            block.append(_add())
        assert store.head(KEY).note is None

    def test_many_at_once_leave_the_note_of_the_last_record(
        self, store: Caller, opened: Callable[[], Backend]
    ) -> None:
        """To one journal and to several, from two connections, with notes and without."""
        self.skip_without_notes()
        keys = [KEY._replace(id=f"n{number}") for number in range(3)]
        other = opened()

        def write(writer: int) -> None:
            for number in range(21):
                text = b"%d:%d" % (writer, number)
                note = None if number % 7 == 6 else text
                backend = other if writer % 4 == 3 else store.backend
                backend.append(Append(key=keys[number % 3], body=text, count=1, note=note))

        async def write_async(number: int) -> None:
            text = b"async %d" % number
            await store.runtime.append(Append(key=keys[number % 3], body=text, count=1, note=text))

        async def many() -> None:
            await asyncio.gather(*map(write_async, range(50)))

        try:
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(write, range(8)))
            for key in keys:
                self.check_note(store, key)
            asyncio.run(many())
            for key in keys:
                self.check_note(store, key)
                assert other.head(key) == store.head(key)
        finally:
            other.close()

    def skip_without_notes(self) -> None:
        """Skip a test where the note is taken."""
        if not self.notes:
            pytest.skip("This backend keeps something of its own in the note.")

    def check_note(self, store: Caller, key: Key) -> None:
        """The note of a journal is the body of its last record, or there is none."""
        (last,) = store.read(key, reverse=True, limit=1)
        number = int(last.body.rpartition(b":")[2]) if b":" in last.body else 0
        assert store.head(key).note == (None if number % 7 == 6 else last.body)

    # -- keys ----------------------------------------------------------------------------------

    def test_keys_that_differ_in_anything_are_different_journals(self, store: Caller) -> None:
        """Tenant, kind, id; case, accents, slashes, dots, quotes, wildcards."""
        keys = [Key(t, k, i) for t in ("acme", "Acme") for k in ("note", "task") for i in _IDS]
        for number, key in enumerate(keys):
            store.append(key, str(number).encode())
        for number, key in enumerate(keys):
            assert [r.body for r in store.read(key)] == [str(number).encode()], key

    def test_an_id_as_long_as_ids_may_be(self, store: Caller) -> None:
        """512 bytes, and two that differ in the last one."""
        one, two = (KEY._replace(id="é" * 255 + end) for end in ("aa", "ab"))
        store.append(one)
        assert store.head(two) is None
        assert store.head(one).key == one

    # -- scan ----------------------------------------------------------------------------------

    def test_a_scan_is_ordered_and_keeps_to_tenant_and_kind(self, store: Caller) -> None:
        """By the bytes of the ids; nobody else's."""
        for id_ in _IDS:
            store.append(KEY._replace(id=id_))
        store.append(Key("other", "note", "hidden"))
        store.append(Key("acme", "task", "hidden"))
        page = store.scan("acme", "note")
        assert [head.key.id for head in page.heads] == sorted(_IDS, key=str.encode)
        assert page.cursor is None

    def test_a_scan_in_pages_gives_each_journal_once(self, store: Caller) -> None:
        """Whatever the size of the page, and although journals come and go meanwhile."""
        ids = [f"n{number:02}" for number in range(10)]
        for id_ in ids:
            store.append(KEY._replace(id=id_))
        for size in (1, 3, 10, 11):
            assert _scanned(store, limit=size) == ids
        first = store.scan("acme", "note", limit=5)
        store.delete(KEY._replace(id="n02"))
        store.append(KEY._replace(id="n99"))
        rest = store.scan("acme", "note", limit=50, cursor=first.cursor)
        assert [head.key.id for head in rest.heads] == [*ids[5:], "n99"]

    def test_kinds_are_what_there_is_to_scan(self, store: Caller) -> None:
        """Of every tenant; not what is deleted, expired, or only leased."""
        assert store.kinds() == []
        for tenant, kind in [("b", "task"), ("a", "task"), ("a", "note"), ("a", "note")]:
            store.append(Key(tenant, kind, "x"))
        store.append(Key("c", "note", "x"), ttl=0.01)
        store.acquire(Key("d", "note", "x"), "me", 60)
        store.append(Key("e", "note", "x"))
        store.delete(Key("e", "note", "x"))
        time.sleep(0.05)
        assert store.kinds() == [("a", "note"), ("a", "task"), ("b", "task")]

    @pytest.mark.parametrize(
        ("prefix", "found"),
        [("a", ["a%b", "a_b", "ab"]), ("a%", ["a%b"]), ("a_", ["a_b"]), ("é", ["é!"]), ("x", [])],
    )
    def test_a_prefix_is_taken_literally(
        self, store: Caller, prefix: str, found: list[str]
    ) -> None:
        """No character in it is a wildcard."""
        for id_ in ("ab", "a_b", "a%b", "b", "é!"):
            store.append(KEY._replace(id=id_))
        assert _scanned(store, prefix=prefix) == found

    def test_a_scan_by_status_and_labels_wants_all_of_them(self, store: Caller) -> None:
        """Every filter must hold."""
        for id_, status, labels in [
            ("a", "open", {"team": "red", "x": "1"}),
            ("b", "done", {"team": "red"}),
            ("c", "open", {"team": "blue"}),
            ("d", None, {}),
        ]:
            store.append(KEY._replace(id=id_), status=status, labels=labels)
        assert _scanned(store, status="open") == ["a", "c"]
        assert _scanned(store, labels={"team": "red"}) == ["a", "b"]
        assert _scanned(store, labels={"team": "red"}, status="open") == ["a"]
        assert _scanned(store, labels={"team": "red", "x": "1"}) == ["a"]
        assert _scanned(store, labels={"team": "' OR 1=1 --"}) == []
        store.append(KEY._replace(id="a"), status="done")
        assert _scanned(store, status="open") == ["c"]

    # -- delete and compact --------------------------------------------------------------------

    def test_a_deleted_journal_begins_anew(self, store: Caller) -> None:
        """Records, labels, status and ids are gone."""
        store.append(id="a", labels={"x": "y"}, status="open", ttl=60)
        assert store.delete(KEY) is True
        assert store.head(KEY) is None
        assert store.delete(KEY) is False
        again = store.append(id="a")
        head = store.head(KEY)
        assert again == Appended(1, head.updated, head.incarnation)
        assert (head.labels, head.status, head.expires) == ({}, None, None)
        assert head.size == 1 + store.overhead

    def test_a_journal_is_deleted_where_it_is_expected(self, store: Caller) -> None:
        """As it was when somebody looked at it; with any incarnation if none is named."""
        store.append(count=2, id="a", labels={"x": "y"})
        assert store.delete(KEY, expect=store.head(KEY).expect) is True
        assert store.head(KEY) is None
        done = store.append(id="a")
        assert (done.seq, done.repeated) == (1, False)
        assert store.delete(KEY, expect=Expect(None, 1)) is True
        assert store.delete(KEY, expect=Expect(None, 0)) is False

    def test_what_was_added_is_not_deleted_by_who_has_not_seen_it(self, store: Caller) -> None:
        """What is acknowledged between a look and a delete is not lost by it."""
        seen = store.append(KEY, b"first").expect
        store.append(KEY, b"second")
        with pytest.raises(Conflict, match="at 2, not at 1") as caught:
            store.delete(KEY, expect=seen)
        assert (caught.value.expected, caught.value.actual) == (1, 2)
        assert [record.body for record in store.read(KEY)] == [b"first", b"second"]
        assert store.delete(KEY, expect=store.head(KEY).expect) is True

    def test_a_journal_that_began_anew_is_not_deleted_for_the_old_one(self, store: Caller) -> None:
        """The same number, and another's."""
        seen = store.append(KEY, b"old").expect
        store.delete(KEY)
        with pytest.raises(Conflict, match="at 0, not at 1"):
            store.delete(KEY, expect=seen)
        store.append(KEY, b"new")
        with pytest.raises(Conflict, match="begun anew"):
            store.delete(KEY, expect=seen)
        assert [record.body for record in store.read(KEY)] == [b"new"]

    def test_what_somebody_holds_is_not_deleted_where_it_is_expected(self, store: Caller) -> None:
        """Until the lease has ended; before the first record, too."""
        seen = store.append().expect
        lease = store.acquire(KEY, "me", 60)
        with pytest.raises(Conflict, match="held by me") as caught:
            store.delete(KEY, expect=seen)
        assert (caught.value.expected, caught.value.actual) == (1, 1)
        assert store.append(expect=1, epoch=lease.epoch).seq == 2
        store.release(KEY, lease)
        assert store.delete(KEY, expect=store.head(KEY).expect) is True

        lease = store.acquire(KEY, "me", 60)
        with pytest.raises(Conflict, match="held by me"):
            store.delete(KEY, expect=Expect(None, 0))
        seen = store.append(epoch=lease.epoch).expect
        store.renew(KEY, lease, 0.01)
        time.sleep(0.1)
        assert store.delete(KEY, expect=seen) is True

    def test_compacting_drops_what_ends_before(self, store: Caller) -> None:
        """A record across the edge stays; numbers go on."""
        store.append(KEY, b"aaa", count=2)
        store.append(KEY, b"bb", count=2)
        assert store.compact(KEY, 2) == 0
        assert store.compact(KEY, 4) == 2
        assert store.seqs() == [4]
        head = store.head(KEY)
        assert (head.seq, head.first, head.size) == (4, 3, 2 + store.overhead)
        assert store.append().seq == 5
        assert store.seqs(upto=1) == []
        assert store.compact(KEY, 100) == 3
        assert (store.seqs(), store.head(KEY).seq) == ([], 5)
        assert store.append(expect=5).seq == 6

    # -- copies --------------------------------------------------------------------------------

    def test_a_read_tells_the_ids_that_callers_gave(self, store: Caller) -> None:
        """And none that the backend may have made for itself."""
        store.append(id="a")
        store.append()
        assert [record.id for record in store.read(KEY)] == ["a", None]

    def test_a_body_is_put_in_the_place_of_another(self, store: Caller) -> None:
        """Numbers, times and ids stay; and whoever knew the journal learns that it is another."""
        if not store.backend.rewrites:
            with pytest.raises(NotImplementedError):
                store.rewrite(KEY, {1: b"x"}, expect=Expect("abc", 1))
            return
        for number in range(3):
            store.append(body=b"%d" % number, count=2, id=str(number))
        assert store.compact(KEY, 3) == 2
        before, head = store.read(KEY), store.head(KEY)
        changed = {2: b"gone", 4: b"changed"}
        for wrong in (Expect("another", 6), Expect(head.incarnation, 4)):
            assert store.rewrite(KEY, changed, expect=wrong) == 0
        assert store.rewrite(KEY, changed, expect=head.expect) == 1
        assert store.head(KEY).expect == head.expect
        after, head = store.read(KEY), store.head(KEY)
        assert [record.body for record in after] == [b"changed", b"2"]
        assert [(r.seq, r.count, r.at, r.id) for r in after] == [
            (r.seq, r.count, r.at, r.id) for r in before
        ]
        assert head.size == 8 + 2 * store.backend.overhead
        labels = {"a": "b"}
        assert store.rewrite(KEY, {}, expect=head.expect, renewed="anew", labels=labels) == 0
        assert (store.head(KEY).incarnation, store.head(KEY).labels) == ("anew", labels)
        assert _scanned(store, labels=labels) == [KEY.id]
        with pytest.raises(Conflict):
            store.append(expect=head.expect)
        assert store.append(id="2", count=2).repeated
        assert store.append(body=b"3", expect=Expect("anew", 6)).seq == 7
        assert store.head(KEY).size == 9 + 3 * store.backend.overhead
        assert [record.body for record in store.read(KEY)] == [b"changed", b"2", b"3"]

    def test_a_copy_keeps_its_times_and_its_first_number(self, store: Caller) -> None:
        """As if it had been written here, then."""
        origin = Origin(at=2_000_000, created=1_000_000, first=8, incarnation="abc")
        assert store.append(count=2, expect=0, origin=origin).seq == 9
        later = Origin(at=3_000_000, created=1_000_000, first=8, incarnation="abc")
        done = store.append(expect=Expect("abc", 9), origin=later)
        assert done == Appended(10, 3_000_000, "abc")
        head = store.head(KEY)
        assert (head.incarnation, head.seq, head.first) == ("abc", 10, 8)
        assert (head.created, head.updated) == (1_000_000, 3_000_000)
        assert [(r.seq, r.at) for r in store.read(KEY)] == [(9, 2_000_000), (10, 3_000_000)]
        assert store.append().at > 3_000_000

    def test_a_copy_of_attributes_alone_begins_nothing(self, store: Caller) -> None:
        """Not even where there is a lease."""
        origin = Origin(at=2_000_000, created=1_000_000, first=8, incarnation="abc")
        store.acquire(KEY, "me", 60)
        assert store.append(body=b"", count=0, labels={"a": "b"}, origin=origin).seq == 0
        assert store.head(KEY) is None
        assert store.append().seq == 1

    def test_the_expiry_of_a_copy_counts_from_its_own_time(self, store: Caller) -> None:
        """What was to be gone tomorrow is not given another month by being copied."""
        at = store.append(KEY._replace(id="clock")).at - 10_000_000
        origin = Origin(at=at, created=at, first=1, incarnation="abc")
        store.append(origin=origin)
        store.append(body=b"", count=0, ttl=60, origin=origin)
        head = store.head(KEY)
        assert (head.ttl, head.expires) == (60_000_000, at + 60_000_000)
        store.append(body=b"", count=0, ttl=5, origin=origin)
        assert store.head(KEY) is None

    # -- expiry --------------------------------------------------------------------------------

    def test_an_expired_journal_is_gone_at_once(self, store: Caller) -> None:
        """For every way of looking, with nobody sweeping."""
        store.append(ttl=60, labels={"a": "b"}, status="open", id="first")
        assert store.head(KEY).expires is not None
        store.append(body=b"", count=0, ttl=0.001)
        time.sleep(0.01)
        assert (store.head(KEY), store.read(KEY)) == (None, [])
        assert _scanned(store) == _scanned(store, labels={"a": "b"}) == []
        assert store.delete(KEY) is False

    def test_an_append_to_an_expired_journal_begins_a_new_one(self, store: Caller) -> None:
        """Nothing of the old one shines through."""
        store.append(ttl=0.001, labels={"a": "b"}, count=3, id="x")
        time.sleep(0.01)
        assert not store.append(id="x", expect=0).repeated
        head = store.head(KEY)
        assert (head.seq, head.labels, head.expires) == (1, {}, None)

    def test_a_lease_on_an_expired_journal_brings_nothing_of_it_back(self, store: Caller) -> None:
        """Whoever takes it finds no journal, and begins a new one at 1."""
        late = store.acquire(KEY, "late", 0.001)
        before = store.append(
            count=3, id="x", status="open", labels={"a": "b"}, meta=b"{}", ttl=0.001
        )
        time.sleep(0.01)
        lease = store.acquire(KEY, "me", 60)
        assert lease.epoch > late.epoch
        assert (store.head(KEY), store.seqs(), _scanned(store)) == (None, [], [])
        assert store.compact(KEY, 4) == 0
        done = store.append(KEY, b"new", id="x", expect=0, epoch=lease.epoch)
        assert (done.seq, done.repeated) == (1, False)
        assert done.incarnation != before.incarnation
        head = store.head(KEY)
        assert (head.seq, head.first, head.created) == (1, 1, done.at)
        assert head.size == 3 + store.overhead
        assert (head.status, head.labels, head.meta, head.ttl) == (None, {}, None, None)
        assert [record.body for record in store.read(KEY)] == [b"new"]
        assert _scanned(store, labels={"a": "b"}) == _scanned(store, status="open") == []

    def test_compacting_an_expired_journal_does_nothing(self, store: Caller) -> None:
        """There is nothing to drop, and nothing to begin after."""
        for _ in range(3):
            store.append(ttl=0.05)
        time.sleep(0.1)
        assert store.compact(KEY, 3) == 0
        assert (store.head(KEY), store.seqs()) == (None, [])
        store.append(expect=0)
        head = store.head(KEY)
        assert (head.seq, head.first, head.size) == (1, 1, 1 + store.overhead)

    def test_every_append_moves_the_end(self, store: Caller) -> None:
        """The time to live counts from the last append."""
        store.append(ttl=60)
        first = store.head(KEY).expires
        time.sleep(0.01)
        at = store.append().at
        assert first < at + 60_000_000 <= store.head(KEY).expires
        assert store.seqs() == [1, 2]

    def test_the_time_to_live_can_be_changed_later(self, store: Caller) -> None:
        """Longer, shorter, for ever; the number stays."""
        at = store.append(ttl=60).at
        store.append(body=b"", count=0, ttl=90)
        assert store.head(KEY).expires >= at + 90_000_000
        store.append(body=b"", count=0, ttl=None)
        assert store.head(KEY).expires is None
        store.append(body=b"", count=0, ttl=0.001)
        time.sleep(0.01)
        assert store.head(KEY) is None

    def test_a_default_time_to_live_is_for_new_journals_only(self, store: Caller) -> None:
        """What was said later about one journal is not undone by the next append."""
        store.append(default_ttl=60)
        assert store.head(KEY).expires is not None
        store.append(body=b"", count=0, ttl=None)
        store.append(default_ttl=60)
        assert store.head(KEY).expires is None
        other = KEY._replace(id="leased")
        store.acquire(other, "me", 60)
        store.append(other, default_ttl=60)
        assert store.head(other).expires is not None

    def test_a_leased_journal_does_not_expire(self, store: Caller) -> None:
        """A task is not gone in the middle of a long step."""
        lease = store.acquire(KEY, "me", 60)
        store.append(ttl=0.05, epoch=lease.epoch)
        time.sleep(0.1)
        assert store.sweep() == 0
        assert store.append(epoch=lease.epoch).seq == 2
        assert (store.seqs(), _scanned(store)) == ([1, 2], ["one"])
        time.sleep(0.1)
        store.release(KEY, lease)
        assert (store.head(KEY), store.seqs()) == (None, [])

    def test_changing_a_label_does_not_move_the_end(self, store: Caller) -> None:
        """Only appends do."""
        store.append(ttl=60)
        before = store.head(KEY).expires
        store.append(body=b"", count=0, labels={"a": "b"})
        assert store.head(KEY).expires == before

    def test_a_sweep_frees_what_has_expired(self, store: Caller) -> None:
        """And says how many that were."""
        for id_ in "abc":
            store.append(KEY._replace(id=id_), ttl=0.05)
        store.append(KEY._replace(id="d"))
        time.sleep(0.1)
        assert store.sweep(2) + store.sweep() <= 3  # a server may have been faster
        assert store.sweep() == 0
        assert _scanned(store) == ["d"]

    def test_a_sweep_frees_no_more_than_its_limit(self, store: Caller) -> None:
        """It can be done in small parts, beside other work, until there is nothing left."""
        for number in range(5):
            store.append(KEY._replace(id=f"n{number}"), ttl=0.05)
        time.sleep(0.1)
        freed = [store.sweep(2)]
        while freed[-1]:
            freed.append(store.sweep(2))
        assert max(freed) <= 2
        assert sum(freed) <= 5  # a server may have been faster

    def test_a_sweep_leaves_a_lease_that_is_valid(self, store: Caller) -> None:
        """Although there is no journal yet; with the attributes that it has prepared."""
        lease = store.acquire(KEY, "me", 60)
        store.append(body=b"", count=0, epoch=lease.epoch, status="new")
        assert store.sweep() == 0
        with pytest.raises(LeaseHeld):
            store.acquire(KEY, "you", 60)
        assert store.renew(KEY, lease, 60).epoch == lease.epoch
        assert store.append(epoch=lease.epoch).seq == 1
        assert store.head(KEY).status == "new"

    # -- leases --------------------------------------------------------------------------------

    def test_a_lease_keeps_others_out_and_says_who_has_it(self, store: Caller) -> None:
        """Until it is released."""
        lease = store.acquire(KEY, "me, process 1", 60)
        with pytest.raises(LeaseHeld) as caught:
            store.acquire(KEY, "you", 60)
        assert (caught.value.holder, caught.value.epoch) == ("me, process 1", lease.epoch)
        assert "me, process 1" in str(caught.value)
        store.release(KEY, lease)
        assert store.acquire(KEY, "you", 60).epoch > lease.epoch

    def test_a_lease_ends_with_its_time(self, store: Caller) -> None:
        """Whoever died holds nothing for ever."""
        lease = store.acquire(KEY, "me", 0.1)
        time.sleep(0.15)
        assert store.acquire(KEY, "you", 60).epoch > lease.epoch

    def test_a_lease_known_to_be_dead_can_be_taken_over(self, store: Caller) -> None:
        """But only that one: not the one that came after it."""
        dead = store.acquire(KEY, "dead", 60)
        lease = store.acquire(KEY, "me", 60, over=dead.epoch)
        with pytest.raises(LeaseHeld):
            store.acquire(KEY, "you", 60, over=dead.epoch)
        assert store.head(KEY) is None
        assert lease.epoch > dead.epoch

    def test_a_late_writer_is_fenced_off(self, store: Caller) -> None:
        """After a takeover the former holder can neither write nor renew nor release."""
        late = store.acquire(KEY, "late", 0.1)
        store.append(epoch=late.epoch)
        time.sleep(0.15)
        rival = store.acquire(KEY, "rival", 60)
        for write in (
            lambda: store.append(epoch=late.epoch),
            lambda: store.append(body=b"", count=0, status="x", epoch=late.epoch),
            lambda: store.renew(KEY, late, 60),
        ):
            with pytest.raises(LeaseLost):
                write()
        store.release(KEY, late)
        assert store.append(epoch=rival.epoch).seq == 2

    def test_a_lease_that_ended_still_writes_while_nobody_else_has_one(self, store: Caller) -> None:
        """Late is not too late: only a takeover fences."""
        lease = store.acquire(KEY, "me", 0.05)
        time.sleep(0.1)
        assert store.append(epoch=lease.epoch).seq == 1
        assert store.renew(KEY, lease, 60).epoch == lease.epoch
        with pytest.raises(LeaseHeld):
            store.acquire(KEY, "you", 60)

    def test_renewing_moves_the_end(self, store: Caller) -> None:
        """The epoch stays, the time grows."""
        lease = store.acquire(KEY, "me", 1)
        renewed = store.renew(KEY, lease, 60)
        assert (renewed.epoch, renewed.holder) == (lease.epoch, "me")
        assert renewed.until > lease.until

    def test_epochs_grow_even_over_a_deletion(self, store: Caller) -> None:
        """The holder of a deleted journal cannot write to one that came after it."""
        old = store.acquire(KEY, "me", 60)
        store.append(epoch=old.epoch)
        store.delete(KEY)
        with pytest.raises(LeaseLost):
            store.append(epoch=old.epoch)
        new = store.acquire(KEY, "you", 60)
        assert new.epoch > old.epoch
        with pytest.raises(LeaseLost):
            store.append(epoch=old.epoch)

    def test_a_lease_alone_makes_no_journal(self, store: Caller) -> None:
        """It is there from its first record on."""
        store.acquire(KEY, "me", 60)
        assert store.head(KEY) is None
        assert _scanned(store) == []
        done = store.append(expect=0)
        assert done.seq == 1
        head = store.head(KEY)
        assert (head.created, head.updated) == (done.at, done.at)
        assert head.lease is not None

    def test_status_and_labels_of_a_lease_alone_are_those_of_the_journal(
        self, store: Caller
    ) -> None:
        """Whoever prepares a task under a lease loses nothing of it; a time to live comes later."""
        store.append(body=b"", count=0, status="lost", labels={"a": "lost"})  # no lease, no effect
        lease = store.acquire(KEY, "me", 60)
        asked: dict[str, Any] = {"status": "new", "labels": {"a": "1", "b": "2"}, "ttl": 1000}
        assert store.append(body=b"", count=0, epoch=lease.epoch, **asked).seq == 0
        assert store.append(body=b"", count=0, labels={"b": None, "c": "3"}).seq == 0
        assert store.head(KEY) is None
        store.append(labels={"c": "4"})
        head = store.head(KEY)
        assert (head.status, head.labels, head.ttl) == ("new", {"a": "1", "c": "4"}, None)

    def test_a_head_shows_the_lease_while_it_is_valid(self, store: Caller) -> None:
        """Who works on it, and until when."""
        store.append()
        lease = store.acquire(KEY, "me", 60)
        assert store.head(KEY).lease == Lease("me", lease.epoch, lease.until)
        store.release(KEY, lease)
        assert store.head(KEY).lease is None

    def test_writers_without_a_lease_are_not_bound_by_it(self, store: Caller) -> None:
        """A signal can be left for whoever holds the task."""
        store.acquire(KEY, "me", 60)
        assert store.append().seq == 1

    # -- many at once --------------------------------------------------------------------------

    def test_many_threads_on_one_journal_lose_nothing(self, store: Caller) -> None:
        """One order, every number once."""
        backend = store.backend

        def write(writer: int) -> list[int]:
            bodies = [f"{writer}:{n}".encode() for n in range(20)]
            return [backend.append(Append(key=KEY, body=b, count=1)).seq for b in bodies]

        with ThreadPoolExecutor(8) as pool:
            seqs = list(pool.map(write, range(8)))
        assert sorted(seq for own in seqs for seq in own) == list(range(1, 161))
        assert all(own == sorted(own) for own in seqs)
        bodies = {record.seq: record.body for record in store.read(KEY)}
        assert all(
            bodies[seq] == f"{writer}:{n}".encode()
            for writer, own in enumerate(seqs)
            for n, seq in enumerate(own)
        )

    def test_of_many_at_one_position_exactly_one_wins(self, store: Caller) -> None:
        """Compare-and-set under contention."""
        backend = store.backend

        def race(position: int) -> bool:
            try:
                backend.append(_add(expect=position))
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            for position in range(10):
                assert sum(pool.map(race, [position] * 8)) == 1
        assert store.head(KEY).seq == 10

    def test_deleting_what_was_seen_loses_nothing_that_many_add(self, store: Caller) -> None:
        """What is gone stood where it was expected when it went."""
        backend = store.backend
        deleted: dict[str, int] = {}

        def write(_: int) -> list[Appended]:
            return [backend.append(_add()) for _ in range(20)]

        with ThreadPoolExecutor(4) as pool:
            writing = [pool.submit(write, number) for number in range(4)]
            while not all(one.done() for one in writing):
                head = backend.head(KEY)
                with suppress(Conflict):
                    if head is not None and backend.delete(KEY, expect=head.expect):
                        deleted[head.incarnation] = head.seq
        head = backend.head(KEY)
        left = {} if head is None else {head.incarnation: head.seq}
        assert not left.keys() & deleted.keys()
        done = [answer for one in writing for answer in one.result()]
        for incarnation, seq in (deleted | left).items():
            told = [one.seq for one in done if one.incarnation == incarnation]
            assert sorted(told) == list(range(1, seq + 1))
        assert sum((deleted | left).values()) == len(done) == 80

    def test_many_async_tasks_on_one_journal_lose_nothing(self, store: Caller) -> None:
        """The same on an event loop."""

        async def writers() -> list[int]:
            requests = [Append(key=KEY, body=b"x", count=1) for _ in range(50)]
            done = await asyncio.gather(*map(store.runtime.append, requests))
            return [one.seq for one in done]

        assert sorted(asyncio.run(writers())) == list(range(1, 51))

    def test_one_of_many_ids_is_written_once(self, store: Caller) -> None:
        """A retry that overtakes its first attempt is still one append."""
        backend = store.backend

        def same(_: int) -> bool:
            return backend.append(Append(key=KEY, body=b"x", count=1, id="same")).repeated

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(same, range(16))).count(False) == 1
        assert store.seqs() == [1]

    # -- together ------------------------------------------------------------------------------

    def test_appends_to_several_journals_are_one_act(self, store: Caller) -> None:
        """With all that an append can do; a backend that cannot says so, and writes nothing."""
        acts = [_add(OTHER, count=2, status="open", ttl=60), _add(id="a"), _add(expect=1)]
        if not store.backend.transactional:
            with pytest.raises(NotTransactional):
                store.append_all(acts)
            assert (store.head(KEY), store.head(OTHER)) == (None, None)
            return
        done = store.append_all(acts)
        assert [(one.seq, one.repeated) for one in done] == [(2, False), (1, False), (2, False)]
        head = store.head(OTHER)
        assert (head.status, head.ttl, head.updated) == ("open", 60_000_000, done[0].at)
        assert [record.at for record in store.read(KEY)] == [one.at for one in done[1:]]
        again = store.append_all([_add(id="a"), _add(OTHER)])
        assert [(one.seq, one.repeated) for one in again] == [(1, True), (3, False)]

    def test_one_append_that_is_refused_refuses_all_of_them(self, store: Caller) -> None:
        """Wherever it stands among them; a worker that was taken over writes nowhere."""
        if not store.backend.transactional:
            return  # as the test above has it, all are refused
        late = store.acquire(KEY, "late", 60)
        store.acquire(KEY, "new", 60, over=late.epoch)
        store.append(status="open")
        fine = _add(OTHER, id="a", status="done", labels={"a": "b"})
        for error, refused in (
            (LeaseLost, _add(epoch=late.epoch)),
            (Conflict, _add(expect=0)),
            (Conflict, _add(KEY._replace(id="zero"), expect=1)),
        ):
            for acts in ([fine, refused], [refused, fine]):
                with pytest.raises(error):
                    store.append_all(acts)
                assert (store.seqs(), store.head(OTHER)) == ([1], None)
        assert [one.repeated for one in store.append_all([fine])] == [False]

    def test_a_backend_has_transactions_if_it_says_so(self, store: Caller) -> None:
        """All of a block or nothing; a backend without them says so, and writes nothing."""
        backend = store.backend
        if not backend.transactional:
            with pytest.raises(NotTransactional), backend.transaction() as block:
                block.append(_add())
            assert store.head(KEY) is None
            return
        with backend.transaction() as block:
            assert block.connection is not None
            assert block.append(_add(id="a")).seq == 1

        def interrupted() -> None:
            with backend.transaction() as block:
                block.append(_add(id="b", status="lost"))
                raise KeyError("of the caller's own")

        with pytest.raises(KeyError):
            interrupted()
        assert (store.seqs(), store.head(KEY).status) == ([1], None)
        assert not store.append(id="b").repeated

    def test_as_many_transactions_are_open_at_once_as_the_backend_says(self, store: Caller) -> None:
        """Async callers get so many threads for them: none of these waits for another."""
        backend = store.backend
        if not backend.transactional:
            return  # there are none, whatever it says
        all_open = Barrier(backend.transactions)

        def commit(number: int) -> int:
            with backend.transaction() as block:
                all_open.wait(30)
                return block.append(_add(KEY._replace(id=f"n{number}"))).seq

        with ThreadPoolExecutor(backend.transactions) as pool:
            seqs = list(pool.map(commit, range(backend.transactions)))
        assert seqs == [1] * backend.transactions

    # -- the place itself ----------------------------------------------------------------------

    def test_a_closed_backend_says_so(self, store: Caller) -> None:
        """And can be closed twice."""
        store.append()
        store.backend.close()
        store.backend.close()
        with pytest.raises(StoreClosed):
            store.backend.append(Append(key=KEY, body=b"x", count=1))
        with pytest.raises(StoreClosed):
            store.backend.read(KEY)

    def test_it_reports_on_itself(self, store: Caller) -> None:
        """At least its engine and how durable it is."""
        names = {fact.name for fact in store.facts(deep=True)}
        assert {"engine", "durability"} <= names


_IDS = [
    "a",
    "A",
    "b/c",
    "../../etc/passwd",
    "é",
    "e\u0301",
    "日本",
    "😀",
    "x'y",
    'x"y',
    "100%",
    "a.b",
    "con",
]


def _add(key: Key = KEY, *bodies: bytes, **request: Any) -> Append:
    """One record of one entry, unless *request* says otherwise; a number to expect will do."""
    if isinstance(request.get("expect"), int):
        request["expect"] = Expect(None, request["expect"])
    return Append(**{"key": key, "body": b"".join(bodies) or b"x", "count": 1, **request})


def _with_parameter(url: str, parameter: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{parameter}"


def _scanned(store: Caller, limit: int = 100, **filters: str | Mapping[str, str]) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = store.scan("acme", "note", limit=limit, cursor=cursor, **filters)
        found += [head.key.id for head in page.heads]
        cursor = page.cursor
        if cursor is None:
            return found
