"""What the network suite does while the network fails, and what must be so afterwards.

Each prepares something and yields; does it and yields; checks it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from limpet.errors import Conflict, LeaseHeld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from limpet.backends.contract import Key
    from limpet.testing.conformance import Caller

    Operation: TypeAlias = Callable[[Caller, Key], Iterator[None]]

__all__ = ["ALL", "APPENDS", "LATE", "SIX", "Operation", "bodies_of", "read"]


def append(store: Caller, key: Key) -> Iterator[None]:
    """An append without an id is there once, in its place."""
    store.append(key, b"first")
    yield
    done = store.append(key, b"second")
    yield
    assert done.seq == 2
    assert store.append(key, b"third").seq == 3
    assert bodies_of(store, key) == [b"first", b"second", b"third"]
    assert [record.id for record in store.read(key)] == [None, None, None]


def append_with_an_id(store: Caller, key: Key) -> Iterator[None]:
    """The same with one of the caller's, which stays his."""
    yield
    done = store.append(key, b"first", id="mine", count=3)
    yield
    again = store.append(key, b"first", id="mine", count=3)
    assert (done.seq, again.seq, again.at, again.repeated) == (3, 3, done.at, True)
    assert [(r.seq, r.count, r.id) for r in store.read(key)] == [(3, 3, "mine")]


def append_again(store: Caller, key: Key) -> Iterator[None]:
    """An id that was known before all this gives what it gave then."""
    first = store.append(key, b"first", id="mine")
    store.append(key, b"second")
    yield
    again = store.append(key, b"first", id="mine", expect=0)
    yield
    assert (again.seq, again.at, again.repeated) == (first.seq, first.at, True)
    assert bodies_of(store, key) == [b"first", b"second"]


def append_where_expected(store: Caller, key: Key) -> Iterator[None]:
    """A writer is never told that somebody got there first when that was himself."""
    store.append(key, b"first", expect=0)
    yield
    done = store.append(key, b"second", expect=1)
    yield
    assert done.seq == 2
    assert store.append(key, b"third", expect=2).seq == 3
    assert bodies_of(store, key) == [b"first", b"second", b"third"]


def append_under_a_lease(store: Caller, key: Key) -> Iterator[None]:
    """With all else that an append can change."""
    lease = store.acquire(key, "me", 60)
    yield
    done = store.append(
        key, b"first", epoch=lease.epoch, status="open", labels={"team": "red"}, ttl=600
    )
    yield
    head = store.head(key)
    assert (done.seq, head.seq, head.status, head.labels) == (1, 1, "open", {"team": "red"})
    assert (head.lease.epoch, head.ttl) == (lease.epoch, 600_000_000)


def append_much(store: Caller, key: Key) -> Iterator[None]:
    """More than fits into one packet, or one item."""
    body = bytes(range(256)) * 4000
    yield
    store.append(key, body)
    yield
    assert bodies_of(store, key) == [body]


def change_attributes(store: Caller, key: Key) -> Iterator[None]:
    """Adds no record, however often it is tried."""
    store.append(key, b"first", labels={"a": "1", "b": "2"})
    yield
    assert store.append(key, body=b"", count=0, status="done", labels={"a": None}).seq == 1
    yield
    head = store.head(key)
    assert (head.seq, head.status, head.labels) == (1, "done", {"b": "2"})


def read(store: Caller, key: Key) -> Iterator[None]:
    """Every way of reading."""
    store.append(key, b"first", count=2, status="read")
    store.append(key, b"second")
    yield
    assert store.seqs(key) == [2, 3]
    assert store.seqs(key, reverse=True, limit=1) == [3]
    assert store.bodies(key) == [(2, b"first"), (3, b"second")]
    assert store.head(key).seq == 3
    assert store.wait(key, after=2, timeout=10) is True
    yield


def scan(store: Caller, key: Key) -> Iterator[None]:
    """What is there, and what is there to scan."""
    store.append(key, b"first", labels={"scanned": "yes"})
    yield
    found = store.scan(key.tenant, key.kind, prefix=key.id, labels={"scanned": "yes"})
    assert [head.key for head in found.heads] == [key]
    assert (key.tenant, key.kind) in store.kinds()
    yield


def acquire(store: Caller, key: Key) -> Iterator[None]:
    """A lease whose answer was lost is not held against its holder, and works."""
    store.append(key, b"first")
    yield
    lease = store.acquire(key, "me", 60)
    yield
    assert (lease.holder, store.head(key).lease) == ("me", lease)
    assert store.append(key, b"second", epoch=lease.epoch).seq == 2
    with pytest.raises(LeaseHeld, match="me"):
        store.acquire(key, "me", 60)
    renewed = store.renew(key, lease, 600)
    assert (renewed.epoch, renewed.until > lease.until) == (lease.epoch, True)


def acquire_over(store: Caller, key: Key) -> Iterator[None]:
    """The same for one that is taken from a holder who is known to be dead."""
    dead = store.acquire(key, "dead", 60)
    yield
    lease = store.acquire(key, "me", 60, over=dead.epoch)
    yield
    assert (lease.holder, lease.epoch > dead.epoch) == ("me", True)
    assert store.append(key, b"first", epoch=lease.epoch).seq == 1
    with pytest.raises(LeaseHeld, match="me"):
        store.acquire(key, "you", 60, over=dead.epoch)


def renew(store: Caller, key: Key) -> Iterator[None]:
    """The lease is the same, and lasts longer."""
    lease = store.acquire(key, "me", 60)
    yield
    renewed = store.renew(key, lease, 600)
    yield
    assert (renewed.holder, renewed.epoch) == (lease.holder, lease.epoch)
    assert renewed.until >= lease.until + 500_000_000
    assert store.append(key, b"first", epoch=renewed.epoch).seq == 1


def release(store: Caller, key: Key) -> Iterator[None]:
    """The next one need not wait, and is not harmed by what is tried again."""
    lease = store.acquire(key, "me", 60)
    yield
    store.release(key, lease)
    yield
    assert store.acquire(key, "you", 60).epoch > lease.epoch


def delete(store: Caller, key: Key) -> Iterator[None]:
    """It was there, and is gone; who deleted it is not told that it was not there."""
    store.append(key, b"first", id="mine", labels={"a": "1"})
    yield
    assert store.delete(key) is True
    yield
    assert (store.head(key), store.read(key)) == (None, [])
    assert store.append(key, b"new", id="mine").repeated is False
    assert store.head(key).labels == {}


def delete_where_expected(store: Caller, key: Key) -> Iterator[None]:
    """The same for whoever says where it stands: he is not told that somebody came back to it."""
    store.append(key, b"first", id="mine")
    yield
    assert store.delete(key, expect=store.head(key).expect) is True
    yield
    assert (store.head(key), store.read(key)) == (None, [])
    assert store.append(key, b"new", id="mine").repeated is False


def compact(store: Caller, key: Key) -> Iterator[None]:
    """What is dropped is dropped once, and nothing more."""
    for _ in range(4):
        store.append(key)
    yield
    store.compact(key, 3)
    yield
    assert (store.seqs(key), store.head(key).first) == ([3, 4], 3)
    assert store.append(key).seq == 5


def sweep(store: Caller, key: Key) -> Iterator[None]:
    """Frees what has expired, and only that."""
    other = key._replace(id=f"{key.id}-stays")
    store.append(key, ttl=0.01)
    store.append(other, ttl=600)
    time.sleep(0.05)
    yield
    store.sweep()
    yield
    assert (store.head(key), store.seqs(other)) == (None, [1])
    assert store.sweep() == 0


# -- and what has gone on when a request of it arrives late ----------------------------------------


def append_then_append(store: Caller, key: Key) -> Iterator[None]:
    """What was written meanwhile is not followed by what was written before."""
    store.append(key, b"first")
    yield
    store.append(key, b"second")
    yield
    store.append(key, b"third")
    yield
    assert bodies_of(store, key) == [b"first", b"second", b"third"]


def change_then_change(store: Caller, key: Key) -> Iterator[None]:
    """The newest status stays."""
    store.append(key, b"first", status="first")
    yield
    store.append(key, body=b"", count=0, status="second", labels={"a": "2"})
    yield
    store.append(key, body=b"", count=0, status="third", labels={"a": "3"})
    yield
    head = store.head(key)
    assert (head.seq, head.status, head.labels) == (1, "third", {"a": "3"})


def delete_then_append(store: Caller, key: Key) -> Iterator[None]:
    """What began anew is not deleted."""
    store.append(key, b"first")
    yield
    assert store.delete(key) is True
    yield
    store.append(key, b"second")
    yield
    assert bodies_of(store, key) == [b"second"]


def refused_delete_then_release(store: Caller, key: Key) -> Iterator[None]:
    """What was not deleted under a lease is not deleted when that ends."""
    done = store.append(key, b"first")
    lease = store.acquire(key, "you", 60)
    yield
    with pytest.raises(Conflict, match="held by you"):
        store.delete(key, expect=done.expect)
    yield
    store.release(key, lease)
    yield
    assert bodies_of(store, key) == [b"first"]


def acquire_then_release(store: Caller, key: Key) -> Iterator[None]:
    """Nobody holds what was given back."""
    yield
    lease = store.acquire(key, "me", 60)
    yield
    store.release(key, lease)
    yield
    assert store.acquire(key, "you", 60).epoch > lease.epoch


def renew_then_release(store: Caller, key: Key) -> Iterator[None]:
    """The same for a lease that was to last longer."""
    lease = store.acquire(key, "me", 60)
    yield
    store.renew(key, lease, 600)
    yield
    store.release(key, lease)
    yield
    assert store.acquire(key, "you", 60).epoch > lease.epoch


def release_then_acquire(store: Caller, key: Key) -> Iterator[None]:
    """The next one keeps what it has."""
    lease = store.acquire(key, "me", 60)
    yield
    store.release(key, lease)
    yield
    other = store.acquire(key, "you", 60)
    yield
    assert store.append(key, b"first", epoch=other.epoch).seq == 1
    held = store.head(key).lease
    assert (held.holder, held.epoch) == (other.holder, other.epoch)


def compact_then_append(store: Caller, key: Key) -> Iterator[None]:
    """Only what was to go is gone."""
    for _ in range(4):
        store.append(key)
    yield
    store.compact(key, 3)
    yield
    store.append(key)
    yield
    assert (store.seqs(key), store.head(key).first) == ([3, 4, 5], 3)


LATE: tuple[Operation, ...] = (
    *(append_then_append, change_then_change, delete_then_append, compact_then_append),
    refused_delete_then_release,
    *(acquire_then_release, renew_then_release, release_then_acquire),
)
APPENDS: tuple[Operation, ...] = (append, append_with_an_id, append_where_expected)
ALL: tuple[Operation, ...] = (
    *(*APPENDS, append_again, append_under_a_lease, append_much, change_attributes),
    *(acquire, acquire_over, renew, release),
    *(read, scan, delete, delete_where_expected, compact, sweep),
)

#: One of each, for tests that take long.
SIX: tuple[Operation, ...] = (append, read, acquire, renew, release, delete)


def bodies_of(store: Caller, key: Key) -> list[bytes]:
    """What is in the journal."""
    return [record.body for record in store.read(key)]
