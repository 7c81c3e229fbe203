"""Leases: conditional updates of the head, timed by the server's clock."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from limpet.backends.contract import Key, Lease, fenced, held, micros, next_epoch
from limpet.backends.dynamodb.errors import Refused
from limpet.backends.dynamodb.layout import Change, Journal, head_key, made_token
from limpet.backends.dynamodb.life import HOUR, removal

if TYPE_CHECKING:
    from limpet.backends.dynamodb.heads import Heads
    from limpet.backends.dynamodb.life import Life
    from limpet.backends.dynamodb.table import Table

__all__ = ["Leases"]


class Leases:
    """Takes, renews and ends leases."""

    def __init__(self, table: Table, heads: Heads, life: Life) -> None:
        self._table = table
        self._heads = heads
        self._life = life

    def acquire(self, key: Key, holder: str, ttl: float, over: int | None) -> Lease:
        """See `Backend.acquire`.

        The token is stored with the lease: if the reply is lost, the next try finds it.
        """
        token, turn, deadline = made_token(), 0, time.monotonic() + self._table.timeout
        journal, known = self._heads.hint(key), False
        while True:
            now = self._table.clock.now()
            last = 0 if journal is None else max(journal.epoch or 0, journal.past)
            lease = Lease(holder, next_epoch(last, now), now + micros(ttl))
            try:
                self._take(key, journal, lease, token, over, known=known)
            except Refused as refused:
                journal, known = self._heads.found(key, refused.item), True
            else:
                return lease
            if journal is not None:
                if journal.token == token and journal.epoch is not None:
                    return Lease(holder, journal.epoch, journal.until)
                self._check_free(key, journal, over)
                self._let_last(key, journal, lease)
            turn += 1
            self._table.try_again(turn, deadline)

    def _take(
        self,
        key: Key,
        journal: Journal | None,
        lease: Lease,
        token: str,
        over: int | None,
        *,
        known: bool,
    ) -> None:
        now = self._table.clock.now()
        journal = journal if known else None
        fields = {"holder": lease.holder, "epoch": lease.epoch, "until": lease.until}
        if known and (journal is None or (journal.seq and journal.expired(now))):
            self._life.found(key, journal, **fields, token=token)
            return
        change = Change(head_key(key))
        change.when("attribute_exists(#pk)")
        change.when("(attribute_not_exists(#epoch) OR #epoch < :epoch)", epoch=lease.epoch)
        change.when("(attribute_not_exists(#past) OR #past < :epoch)")
        free = (
            "(attribute_not_exists(#until) OR #until <= :now)"
            " AND (attribute_not_exists(#expires) OR #expires > :now)"
        )
        if over is not None:
            free = f"({free}) OR (#epoch = :over AND #until > :now)"
            change.when(f"({free})", now=now, over=over)
        else:
            change.when(free, now=now)
        _lasting(change, journal, lease.until)
        change.put(**fields, token=token)
        self._table.update(change)

    def _check_free(self, key: Key, journal: Journal, over: int | None) -> None:
        lease = journal.lease(self._table.clock.now())
        if lease is not None and lease.epoch != over:
            raise held(key, lease)

    def _let_last(self, key: Key, journal: Journal, lease: Lease) -> None:
        """Have DynamoDB remove nothing of a journal that has an end before its lease has one."""
        if not journal.seq or journal.expired(self._table.clock.now()):
            return
        if not _lasts(journal, lease.until):
            with suppress(Refused):  # it is not as it was: look again
                self._life.extend(key, journal, max(journal.expires or 0, lease.until))

    def renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        """See `Backend.renew`.

        On condition of the end that it had: so a renewal that comes late, when the lease has been
        released since, does not bring it back.
        """
        turn, deadline = 0, time.monotonic() + self._table.timeout
        journal: Journal | None = None
        last = lease.until
        while True:
            now = self._table.clock.now()
            renewed = Lease(lease.holder, lease.epoch, now + micros(ttl))
            try:
                self._table.update(_renewing(key, journal, renewed, last, now))
            except Refused as refused:
                journal = self._heads.found(key, refused.item)
            else:
                return renewed
            if journal is None or journal.epoch != lease.epoch or journal.expired(now):
                raise fenced(key)
            if journal.until == renewed.until:
                return renewed  # a try whose reply was lost
            last = journal.until
            self._let_last(key, journal, renewed)
            turn += 1
            self._table.try_again(turn, deadline)

    def release(self, key: Key, lease: Lease) -> None:
        """See `Backend.release`.

        A lease without an end is over: also for a client whose idea of the time is behind ours.
        """
        change = Change(head_key(key))
        change.when("#epoch = :epoch", epoch=lease.epoch)
        change.put(until=None)
        try:
            self._table.update(change)
        except Refused:
            return  # taken over


def _renewing(key: Key, journal: Journal | None, lease: Lease, last: int, now: int) -> Change:
    """Let *lease* last, if it is the newest and has ended at *last* so far, or not (0)."""
    change = Change(head_key(key))
    change.when("#epoch = :epoch", epoch=lease.epoch)
    if last:
        change.when("#until = :last", last=last)
    else:
        change.when("attribute_not_exists(#until)")
    if last <= now:
        change.when("(attribute_not_exists(#expires) OR #expires > :now)", now=now)
    _lasting(change, journal, lease.until)
    change.put(until=lease.until)
    return change


def _lasting(change: Change, journal: Journal | None, until: int) -> None:
    """Let *change* make a lease only if the head, and all that belongs to it, outlasts it."""
    if journal is not None and not journal.seq:
        change.when("attribute_not_exists(#seq)")
        change.put(remove_after=removal(until))
        return
    lasts = until // 1_000_000 + HOUR
    change.when("(attribute_not_exists(#remove_after) OR #remove_after > :lasts)", lasts=lasts)
    change.when("(attribute_not_exists(#keep) OR #keep > :lasts)")


def _lasts(journal: Journal, until: int) -> bool:
    moments = (journal.remove_after, journal.keep)
    return all(moment is None or moment > until // 1_000_000 + HOUR for moment in moments)
