"""How journals end in DynamoDB, which removes items by itself; and whose clock says when."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.backends.contract import Appended, Key, Origin
from limpet.backends.dynamodb import clock as server_clock
from limpet.backends.dynamodb import expiry, heads
from limpet.backends.dynamodb import table as calls
from limpet.backends.dynamodb.backend import DynamoBackend
from limpet.backends.dynamodb.expiry import Stamps
from limpet.backends.dynamodb.layout import item_key, partition
from limpet.testing.crash import seeded, soak
from tests.support import tables
from tests.support.processes import until
from tests.support.servers import DynamoServer
from tests.support.tables import (
    DAY,
    HOUR,
    KEY,
    Later,
    append,
    bodies,
    change,
    fill,
    items,
    moments,
    small_items,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

url, store, other = tables.url, tables.store, tables.other


@pytest.fixture
def long_expired(aws_environment: None) -> Iterator[DynamoBackend]:
    """A journal that DynamoDB may remove, from the beginning of these tests on.

    On a server of its own: with hundreds of tables DynamoDB Local takes many minutes.
    """
    with DynamoServer() as server, pytest.MonkeyPatch.context() as patch:
        backend = DynamoBackend.from_url(server.place())
        for name in ("HOUR", "DAY"):
            patch.setattr(expiry, name, 0)
        patch.setattr(heads, "DAY", 0)
        patch.setattr(expiry, "ROUNDED", 1)
        for number in range(40):
            append(backend, b"x" * 300, ttl=2, id=f"n{number}")
        append(backend, b"x" * 500_000, ttl=2)
        patch.undo()
        assert len(items(backend)) > 10  # it may have begun
        yield backend
        backend.close()


# -- time to live ----------------------------------------------------------------------------------


def end(backend: DynamoBackend) -> float:
    """When the journal ends, in seconds."""
    head = backend.head(KEY)
    assert head is not None
    assert head.expires is not None
    until = head.lease.until if head.lease else 0
    return max(head.expires, until) / 1e6


def test_nothing_of_a_journal_without_an_end_is_removed(store: DynamoBackend) -> None:
    """No item bears a moment."""
    fill(store)
    append(store, b"x" * 500_000, id="a")
    store.acquire(KEY, "me", 60)
    assert len(items(store)) > 6
    assert set(moments(store).values()) == {math.inf}


def test_every_item_of_a_journal_outlasts_it_and_goes(store: DynamoBackend) -> None:
    """Chunks, parts, ids, the head, the index: some time after the end."""
    for number in range(40):
        append(store, b"x" * 300, ttl=HOUR, id=f"n{number}")
    append(store, b"x" * 500_000)
    found = moments(store)
    assert {name[12:15] for name in found} >= {"/r/", "/b/", "/i/"}
    assert end(store) + HOUR < min(found.values())
    assert max(found.values()) < end(store) + 3 * DAY


@pytest.mark.parametrize("size", [5_000, 100_000, 1_000_000])
def test_a_journal_may_begin_with_a_long_body_and_an_end(store: DynamoBackend, size: int) -> None:
    """On nothing, under a lease, and where another has expired."""
    later, lease = Later(store), None
    for _ in range(2):
        append(store, b"x" * size, ttl=HOUR, epoch=lease and lease.epoch)
        assert bodies(store.read(KEY)) == [b"x" * size]
        assert end(store) + HOUR / 2 < min(moments(store).values())
        assert max(moments(store).values()) < end(store) + 3 * DAY
        assert sum("/b/" in name for name in items(store)) == -(-size // 390_000)
        later.by(3 * HOUR)
        lease = store.acquire(KEY, "me", 10)


def test_a_journal_in_use_outlives_the_moments_of_its_items(
    store: DynamoBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Days of use, with a time to live of an hour; and its items are not rewritten all the time."""
    stamped: list[object] = []
    stamp = Stamps.stamp

    def counted(*args: Any) -> Any:
        stamped.append(args)
        return stamp(*args)

    monkeypatch.setattr(Stamps, "stamp", counted)
    later = Later(store)
    fill(store, 20, ttl=HOUR)
    for _ in range(200):
        later.by(50 * 60)
        append(store, b"y" * 300)
        assert end(store) < min(moments(store).values())
    assert len(store.read(KEY)) == 220
    assert 1 <= len(stamped) <= 5
    assert max(moments(store).values()) < end(store) + 8 * DAY


@pytest.mark.parametrize("first", [None, HOUR])
def test_a_copy_of_what_ended_years_ago_is_removed_as_well(
    store: DynamoBackend, first: int | None
) -> None:
    """DynamoDB passes over a moment that is more than five years back."""
    origin = Origin(at=10**15, created=10**15, first=1, incarnation="abc")
    for number in range(3):
        append(store, b"x" * 5_000, origin=origin, ttl=first if not number else HOUR)
    assert store.read(KEY) == []
    assert time.time() < min(moments(store).values())
    assert max(moments(store).values()) < time.time() + 92 * DAY


def test_a_lease_keeps_all_items(store: DynamoBackend) -> None:
    """Also one that is longer than the moments of all items; renewed, or taken anew."""
    fill(store, ttl=60)
    lease = store.acquire(KEY, "me", 10 * DAY)
    assert end(store) == pytest.approx(lease.until / 1e6)
    assert end(store) + HOUR / 2 < min(moments(store).values())
    append(store)
    assert end(store) + HOUR / 2 < min(moments(store).values())
    store.renew(KEY, lease, 40 * DAY)
    assert end(store) + HOUR / 2 < min(moments(store).values())
    assert len(store.read(KEY)) == 61


def test_a_lease_without_records_keeps_its_head(store: DynamoBackend) -> None:
    """As long as it is, and not for ever."""
    lease = store.acquire(KEY, "me", 10 * DAY)
    assert min(moments(store).values()) > lease.until / 1e6
    lease = store.renew(KEY, lease, 40 * DAY)
    assert lease.until / 1e6 < moments(store)["head"] < lease.until / 1e6 + 2 * DAY


@pytest.mark.parametrize("size", [0, 100, 5_000, 500_000])
def test_an_end_can_be_given_and_taken_later(store: DynamoBackend, size: int) -> None:
    """With a record or without one; no item is forgotten."""
    count, body = (1, b"x" * size) if size else (0, b"")
    fill(store)
    append(store, b"x" * 500_000, id="a")
    for _ in range(2):
        append(store, body, count=count, ttl=HOUR)
        assert end(store) + HOUR / 2 < min(moments(store).values())
        assert max(moments(store).values()) < end(store) + 3 * DAY
        append(store, body, count=count, ttl=None)
        assert set(moments(store).values()) == {math.inf}
        fill(store, 12)
    assert len(store.read(KEY)) == 61 + 24 + 4 * count
    assert "stamping" not in items(store)["head"]


@pytest.mark.parametrize("ttl", [HOUR, None])
def test_whoever_dies_while_giving_an_end_is_succeeded(
    store: DynamoBackend, other: DynamoBackend, monkeypatch: pytest.MonkeyPatch, ttl: int | None
) -> None:
    """Until all items are done the head stays, so that somebody can go on."""
    fill(store, ttl=HOUR if ttl is None else None)

    def die(*_: object) -> None:
        raise limpet.StoreUnavailable("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(Stamps, "_stamp_items", die)
        try:
            change(store, ttl=ttl)
        except limpet.StoreUnavailable:
            assert ttl is None  # that comes before the change itself
    assert moments(store)["head"] == math.inf
    assert len(other.read(KEY)) == 60
    fill(other, 15)
    assert "stamping" not in items(store)["head"]
    assert end(store) + HOUR / 2 < min(moments(store).values())
    assert max(moments(store).values()) < end(store) + 3 * DAY


def test_two_who_give_and_take_an_end_at_once_lose_nothing(
    store: DynamoBackend, other: DynamoBackend
) -> None:
    """Whatever DynamoDB may remove before the journal ends is a copy that nobody needs.

    A writer who was overtaken while it moved a tail leaves one, with the moment of that time.
    """
    fill(store, 100)
    with ThreadPoolExecutor(3) as pool:
        filled = pool.submit(fill, other, 40)
        turns = [
            pool.submit(lambda one, ttl: [change(one, ttl=t) for t in (ttl, None) * 3], one, ttl)
            for one, ttl in ((store, HOUR), (other, DAY))
        ]
        filled.result()
        assert [len(turn.result()) for turn in turns] == [6, 6]
    fill(store, 15)
    head = store.head(KEY)
    assert head is not None
    needed = math.inf if head.expires is None else head.expires / 1e6 + HOUR / 2
    early = [name for name, moment in moments(store).items() if moment < needed]
    assert all("/r/" in name for name in early)
    store._table.remove(item for name, item in items(store).items() if name in early)
    assert len(store.read(KEY)) == 155


def test_an_expired_journal_is_gone_although_its_items_lie_there(store: DynamoBackend) -> None:
    """All, some, or the head alone: DynamoDB removes in any order, and late."""
    fill(store, ttl=HOUR)
    later = Later(store)
    later.by(2 * HOUR)
    chunks = [name for name in items(store) if "/r/" in name]
    for left in (chunks, chunks[1:], []):
        keep = {"index", "head", *left}
        store._table.remove(item for name, item in items(store).items() if name not in keep)
        assert (store.head(KEY), store.read(KEY)) == (None, [])
        assert store.scan("acme", "note").heads == []


def test_a_journal_that_begins_anew_finds_nothing_of_the_old(store: DynamoBackend) -> None:
    """Not its chunks, not its ids, also if it could not remove them."""
    for number in range(40):
        append(store, b"old" * 100, ttl=HOUR, id=f"n{number}")
    old = items(store)
    later = Later(store)
    later.by(2 * HOUR)
    done, head = append(store, b"new", id="n1"), store.head(KEY)
    assert head is not None
    assert done == Appended(1, head.updated, head.incarnation)
    assert set(items(store)) == {"index", "head"}
    store._table.write({"PutRequest": {"Item": item}} for name, item in old.items() if "/" in name)
    for number in range(40):
        assert not append(store, b"new", id=f"m{number}").repeated
    assert set(bodies(store.read(KEY))) == {b"new"}
    assert len(store.read(KEY, reverse=True)) == 41


def test_a_copy_that_is_made_again_finds_nothing_of_the_first(store: DynamoBackend) -> None:
    """It has the same incarnation, and yet is another journal in this table."""
    origin = Origin(at=10**15, created=10**15, first=1, incarnation="abc")
    for number in range(40):
        append(store, b"old" * 100, id=f"n{number}", origin=origin)
    old = items(store)
    store.delete(KEY)
    append(store, b"new", origin=origin)
    store._table.write({"PutRequest": {"Item": item}} for name, item in old.items() if "/" in name)
    for number in range(40):
        assert not append(store, b"new", id=f"n{number}", origin=origin).repeated
    assert store.head(KEY).incarnation == "abc"  # type: ignore[union-attr]
    assert bodies(store.read(KEY)) == [b"new"] * 41


def _do_anything(backend: DynamoBackend, writer: int, draw: Random) -> dict[int, bytes]:
    """What can be done to a journal, and what of it was written."""
    written: dict[int, bytes] = {}
    for number in range(60 * soak()):
        body = f"{writer}:{number}:".encode() + b"x" * draw.choice([0, 1, 10, 20])
        kind = draw.choice("aaaaiirctrtl")
        if kind == "c":
            backend.compact(KEY, max(written, default=0) - 40)
        elif kind == "r":
            records = backend.read(KEY, reverse=True, limit=draw.choice([3, 1000]))
            assert all(a.seq - a.count == b.seq for a, b in pairwise(records))
        elif kind == "t":
            change(backend, ttl=draw.choice([None, HOUR, DAY]))
        else:
            request: dict[str, Any] = {"count": draw.randint(1, 3)}
            if kind == "i":
                request["id"] = f"{writer}-{number}"
            if kind == "l":
                with suppress(limpet.LeaseHeld):  # another was faster
                    backend.release(KEY, backend.acquire(KEY, "me", 3 * DAY))
            written[append(backend, body, **request).seq] = body
    return written


@pytest.mark.soak
def test_whatever_is_done_at_once_nothing_is_lost(
    store: DynamoBackend, other: DynamoBackend
) -> None:
    """Not even if DynamoDB removes all that it may remove before the journal's end."""
    with seeded() as draw, small_items(), ThreadPoolExecutor(3) as pool:
        append(store, b"first")
        work = [
            pool.submit(_do_anything, backend, writer, Random(draw.random()))
            for writer, backend in enumerate((store, other, store))
        ]
        written = {seq: body for one in work for seq, body in one.result().items()}
        records = store.read(KEY, limit=100_000)
        head = store.head(KEY)
        assert head is not None
        assert [head.first - 1, *(r.seq for r in records)] == [
            *(r.seq - r.count for r in records),
            head.seq,
        ]
        assert {r.seq: r.body for r in records}.items() <= (written | {1: b"first"}).items()
        ends = math.inf if head.expires is None else end(store) + 1
        short = [name for name, moment in moments(store).items() if moment < ends]
        pk = partition(KEY)
        store._table.remove(item_key(pk, name) for name in short)
        assert store.read(KEY, limit=100_000) == records
        for record in records:
            assert record.id is None or append(other, id=record.id).seq == record.seq


# -- sweeping --------------------------------------------------------------------------------------


def test_a_sweep_removes_all_of_what_has_expired(store: DynamoBackend) -> None:
    """At last also what it leaves behind for a while, and the entry in the index."""
    fill(store, ttl=HOUR)
    append(store, b"x" * 500_000, id="large")
    later = Later(store)
    later.by(2 * HOUR)
    assert store.sweep() == 1
    assert set(items(store)) == {"index", "head"}
    assert store.sweep() == 0
    later.by(2 * HOUR)
    assert store.sweep() == 0
    assert items(store) == {}


def test_a_sweep_removes_a_lease_that_came_to_nothing(store: DynamoBackend) -> None:
    """And epochs go on growing."""
    lease = store.acquire(KEY, "me", 60)
    assert store.sweep() == 0
    store.release(KEY, lease)
    assert store.sweep() == 1
    assert store.acquire(KEY, "me", 60).epoch > lease.epoch


def dies_at_the_second_call(write: Callable[..., None]) -> Callable[..., None]:
    """The first lists the body in the head, the second would name it in a record."""
    calls: list[object] = []

    def once(*args: Any) -> None:
        calls.append(args)
        if len(calls) > 1:
            raise limpet.StoreUnavailable("power cut")
        write(*args)

    return once


def test_a_sweep_removes_a_large_body_that_nobody_finished(
    store: DynamoBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer died in the middle; not one that is being written."""
    append(store)
    with monkeypatch.context() as patch:
        patch.setattr(store._heads, "write", dies_at_the_second_call(store._heads.write))
        with pytest.raises(limpet.StoreUnavailable, match="power cut"):
            append(store, b"x" * 1_000_000)
    later = Later(store)
    assert store.sweep() == 0
    assert sum("/b/" in name for name in items(store)) == 3
    later.by(2 * DAY)
    assert store.sweep() == 0
    assert set(items(store)) == {"index", "head"}
    assert "uploads" not in items(store)["head"]


def test_a_sweep_removes_what_dynamodb_left_over(store: DynamoBackend) -> None:
    """Its head is gone, its chunks are not yet."""
    fill(store)
    head = items(store)["head"]
    store._table.remove([head])
    assert store.read(KEY) == []
    assert store.sweep() == 0
    assert items(store) == {}


def test_a_sweep_goes_on_where_it_stopped(store: DynamoBackend) -> None:
    """Of many, some with each call."""
    for kind in ("note", "task"):
        for number in range(7):
            append(store, b"x", Key("acme", kind, f"n{number}"), ttl=HOUR)
    later = Later(store)
    later.by(2 * HOUR)
    assert [store.sweep(5) for _ in range(4)] == [5, 5, 4, 0]


# -- clocks ----------------------------------------------------------------------------------------


@pytest.fixture
def off(
    store: DynamoBackend, url: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[DynamoBackend]:
    """Another client, on a machine whose clock is off by some seconds."""
    wrong = SimpleNamespace(time=lambda: time.time() + request.param, monotonic=time.monotonic)
    monkeypatch.setattr(server_clock, "time", wrong)
    backend = DynamoBackend.from_url(url)
    yield backend
    backend.close()


@pytest.mark.parametrize("off", [HOUR, -HOUR], indirect=True)
def test_a_clients_clock_does_not_matter(store: DynamoBackend, off: DynamoBackend) -> None:
    """One that is an hour off takes no lease that is valid, and sees nothing expire early."""
    append(store, ttl=60)
    lease = store.acquire(KEY, "me", 60)
    with pytest.raises(limpet.LeaseHeld):
        off.acquire(KEY, "you", 60)
    append(off, ttl=60)
    assert abs(off.head(KEY).updated - lease.until + 60e6) < 2e6  # type: ignore[union-attr]
    store.release(KEY, lease)
    assert len(off.read(KEY)) == len(store.read(KEY)) == 2
    rival = off.acquire(KEY, "you", 60)
    assert rival.epoch > lease.epoch
    with pytest.raises(limpet.LeaseHeld):
        store.acquire(KEY, "me", 60)
    off.delete(KEY)
    assert store.acquire(KEY, "me", 60).epoch > rival.epoch


@pytest.mark.parametrize("begins", [False, True])
def test_epochs_grow_over_a_deletion_although_clocks_differ(
    store: DynamoBackend, other: DynamoBackend, *, begins: bool
) -> None:
    """Whether a journal has begun anew since, or not."""
    Later(store).by(5)
    lease = store.acquire(KEY, "me", 60)
    append(store, epoch=lease.epoch)
    store.delete(KEY)
    if begins:
        append(other)
    with pytest.raises(limpet.LeaseLost):
        append(other, epoch=lease.epoch)
    assert other.acquire(KEY, "you", 60).epoch > lease.epoch


def test_times_of_clients_who_differ_never_go_back(
    store: DynamoBackend, other: DynamoBackend
) -> None:
    """The one that is behind takes the time of the record before."""
    Later(store).by(5)
    done = [append(one, ttl=HOUR) for one in (store, other, other, store, other)]
    assert [d.at for d in done] == sorted(d.at for d in done)
    assert [d.at for d in done] == [r.at for r in other.read(KEY)]
    head = other.head(KEY)
    assert head is not None
    assert (head.updated, head.expires) == (done[-1].at, done[-1].at + HOUR * 10**6)
    fill(other, 20)
    assert [r.at for r in store.read(KEY)][:5] == [d.at for d in done]


def test_a_client_that_slept_does_not_go_by_the_time_when_it_fell_asleep(
    store: DynamoBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its append would come to a journal that has expired, and be gone; its lease be over."""
    slept = 0
    machine = SimpleNamespace(
        time=time.time, sleep=time.sleep, monotonic=lambda: time.monotonic() - slept
    )
    for module in (server_clock, calls):
        monkeypatch.setattr(module, "time", machine)
    append(store, b"old", ttl=1.5)
    time.sleep(3)
    slept += 3
    assert append(store, b"new").seq == 1
    assert [record.body for record in store.read(KEY)] == [b"new"]
    other = KEY._replace(id="other")
    append(store, key=other)
    time.sleep(3)
    slept += 3
    began = time.time()
    assert store.acquire(other, "me", 60).until > (began + 58) * 1e6


# -- DynamoDB itself -------------------------------------------------------------------------------


@pytest.mark.soak
def test_dynamodb_removes_the_whole_of_what_has_expired(long_expired: DynamoBackend) -> None:
    """With nobody sweeping. DynamoDB Local looks every ten seconds, and takes some of it."""
    assert until(lambda: not items(long_expired))
