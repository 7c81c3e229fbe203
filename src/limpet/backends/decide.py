"""The rules of the contract, once, as pure functions of a journal's head, a request and the time.

Here a head is as it is stored: its lease is the newest one, valid or not, and it may have no
record yet (number 0), only a lease. `live` leaves out what has expired, `visible` is what readers
are shown. memory:, file:, SQLite and DynamoDB call these functions; PostgreSQL and Redis say the
same in SQL and Lua, and the conformance suite holds them to it.
"""

from __future__ import annotations

from msgspec import Struct, structs

from limpet.backends.contract import (
    UNSET,
    Append,
    Appended,
    Expect,
    Head,
    Key,
    Lease,
    Record,
    from_micros,
    micros,
    new_incarnation,
)
from limpet.errors import Conflict, LeaseHeld, LeaseLost

__all__ = [
    "Decision",
    "acquire",
    "check_delete",
    "check_expect",
    "conflict",
    "decide",
    "holder_for_people",
    "is_leased",
    "lease_held",
    "lease_lost",
    "leased",
    "live",
    "next_epoch",
    "release",
    "renew",
    "visible",
]


class Decision(Struct, frozen=True):
    """What an append comes to: the answer, the head that there is then, and the records to add."""

    answer: Appended
    head: Head | None = None  # None: nothing changes
    records: tuple[Record, ...] = ()

    @property
    def record(self) -> Record | None:
        """The one to add, if there is one: for a backend that takes one at a time."""
        if len(self.records) > 1:
            msg = "An append of several records came to a backend that does not split appends."
            raise ValueError(msg)
        return self.records[0] if self.records else None


def decide(  # noqa: C901, PLR0912 - all the rules, in their order, at one sitting
    head: Head | None, request: Append, now: int, known: Appended | None = None
) -> Decision:
    """What *request* does to the journal with this live *head*; or `LeaseLost`, or `Conflict`.

    *known* is what the append under the same id was answered, if there was one.
    """
    if known is not None:
        return Decision(Appended(known.seq, known.at, known.incarnation, repeated=True))
    lease = None if head is None else head.lease
    if request.epoch is not None and (lease is None or lease.epoch != request.epoch):
        raise lease_lost(request.key)
    if request.expect is not None:
        check_expect(head, request.key, request.expect)
    if head is None:
        if not request.count:
            return Decision(Appended(0, now, ""))
        head = Head(request.key, "", 0, 1, 0, now, now)

    incarnation, seq, first, size = head.incarnation, head.seq, head.first, head.size
    created, updated, ttl, expires = head.created, head.updated, head.ttl, head.expires
    status, labels, meta, note = head.status, head.labels, head.meta, head.note
    origin, at = request.origin, now
    if origin is not None:
        at = origin.at
    if request.count and not seq:  # it begins; until now there was at most a lease
        if origin is None:
            incarnation, created, updated = new_incarnation(), now, now
        else:
            incarnation, first = origin.incarnation, origin.first
            seq, created, updated = first - 1, origin.created, origin.created
        ttl = None if request.default_ttl is None else micros(request.default_ttl)
    at = max(at, updated)  # a clock may be set back, a journal's times do not
    if request.ttl is not UNSET:
        ttl = None if request.ttl is None else micros(request.ttl)
    if request.count or request.ttl is not UNSET:
        expires = None if ttl is None else at + ttl
    if request.status is not UNSET:
        status = request.status
    if request.labels is not UNSET:
        merged = {**labels, **request.labels}
        labels = {name: value for name, value in merged.items() if value is not None}
    if request.meta is not UNSET:
        meta = request.meta

    records: tuple[Record, ...] = ()
    if request.count:
        updated, note = at, request.note
        for count, body in request.earlier:
            seq += count
            size += len(body)
            records += (Record(seq, count, at, body),)
        seq += request.count
        size += len(request.body)
        records += (Record(seq, request.count, at, request.body, request.id),)
    head = Head(
        head.key,
        incarnation,
        seq,
        first,
        size,
        created,
        updated,
        ttl,
        expires,
        status,
        labels,
        meta,
        head.lease,
        note,
    )
    return Decision(Appended(seq, updated, incarnation), head, records)


def check_expect(head: Head | None, key: Key, expect: Expect) -> None:
    """`Conflict`, if the journal with this live *head* is not where *expect* says."""
    incarnation, seq = ("", 0) if head is None else (head.incarnation, head.seq)
    if expect.seq != seq or (seq and expect.incarnation not in (None, incarnation)):
        raise conflict(key, expect, seq)


def check_delete(head: Head | None, key: Key, expect: Expect, now: int) -> None:
    """`Conflict`, if the same, or if somebody has the right to write the journal."""
    check_expect(head, key, expect)
    if head is not None and head.lease is not None and is_leased(head, now):
        raise leased(key, expect, head.lease)


# -- expiry --------------------------------------------------------------------------------------


def is_leased(head: Head, now: int) -> bool:
    """Whether somebody has the right to write it."""
    return head.lease is not None and head.lease.until > now


def live(head: Head | None, now: int) -> Head | None:
    """*head*, unless it has expired; what a lease holds does not expire."""
    if head is None or head.expires is None or head.expires > now or is_leased(head, now):
        return head
    return None


def visible(head: Head | None, now: int) -> Head | None:
    """*head* as readers see it: None without a record, and without a lease that has ended."""
    head = live(head, now)
    if head is None or not head.seq:
        return None
    if head.lease is None or head.lease.until > now:
        return head
    return structs.replace(head, lease=None)


# -- leases --------------------------------------------------------------------------------------


def acquire(
    head: Head | None, key: Key, now: int, *, holder: str, ttl: float, over: int | None
) -> Head:
    """The live *head* with a new lease; or `LeaseHeld`."""
    last = None if head is None else head.lease
    if last is not None and last.until > now and last.epoch != over:
        raise lease_held(key, last)
    lease = Lease(holder, next_epoch(0 if last is None else last.epoch, now), now + micros(ttl))
    if head is None:
        return Head(key, "", 0, 1, 0, now, now, lease=lease)
    return structs.replace(head, lease=lease)


def renew(head: Head | None, key: Key, lease: Lease, ttl: float, now: int) -> Head:
    """The live *head* with *lease* renewed; or `LeaseLost`."""
    if head is None or head.lease is None or head.lease.epoch != lease.epoch:
        raise lease_lost(key)
    renewed = Lease(lease.holder, lease.epoch, now + micros(ttl))
    return structs.replace(head, lease=renewed)


def release(head: Head | None, lease: Lease) -> Head | None:
    """The live *head* with *lease* ended; None if that is not the newest, and nothing changes.

    It ended before all times, not now: the clock may be ahead, and be set right later.
    """
    if head is None or head.lease is None or head.lease.epoch != lease.epoch:
        return None
    return structs.replace(head, lease=Lease(lease.holder, lease.epoch, 0))


def next_epoch(last: int, now: int) -> int:
    """A number over *last*, and over all given out before a deletion: time does not go back."""
    return max(last + 1, now)


# -- refusals ------------------------------------------------------------------------------------


def conflict(key: Key, expect: Expect | None, actual: int) -> Conflict:
    """The error for a journal that is not where the writer expected it."""
    kind, id_ = key.kind, key.id
    expected = 0 if expect is None else expect.seq
    if expected == actual:
        what = f"{kind} {id_!r} was deleted and begun anew: what is at {actual} now is another's."
    else:
        what = f"{kind} {id_!r} is at {actual}, not at {expected}: another writer got there first."
    return Conflict(
        f"{what} Read what is new, decide again, and retry with the new position.",
        expected,
        actual,
    )


def leased(key: Key, expect: Expect, lease: Lease) -> Conflict:
    """The error for a journal that was to be deleted, and that somebody works on."""
    until = from_micros(lease.until)
    return Conflict(
        f"{key.kind} {key.id!r} is held by {holder_for_people(lease.holder)} until "
        f"{until:%Y-%m-%d %H:%M:%S} UTC, and was not deleted. Read it anew when that lease ends, "
        "and decide again.",
        expect.seq,
        expect.seq,
    )


def lease_lost(key: Key) -> LeaseLost:
    """The error for a write under a lease that is not the newest."""
    return LeaseLost(
        f"The lease on {key.kind} {key.id!r} has been taken over, and nothing was written. "
        "Another worker goes on with it; stop this one."
    )


def lease_held(key: Key, lease: Lease) -> LeaseHeld:
    """The error for a lease that somebody else has."""
    until = from_micros(lease.until)
    return LeaseHeld(
        f"{key.kind} {key.id!r} is held by {holder_for_people(lease.holder)} until "
        f"{until:%Y-%m-%d %H:%M:%S} UTC. It can be taken over when that lease ends.",
        lease.holder,
        until,
        lease.epoch,
    )


def holder_for_people(holder: str) -> str:
    """A holder's name without the part in brackets that only programs can read."""
    return holder.partition(" [")[0]
