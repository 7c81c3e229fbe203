"""How journals end: when DynamoDB may remove their items, and how we do.

DynamoDB removes an item some time after the moment in its attribute ``remove_after``. A journal's
end moves on with each append, and not every item can be written again each time. So:

*The head* bears its own time: a day after the journal's end. It is written anyway.

*All other items* bear a later time, no earlier than the head's ``items_remove_after``, and the end
never comes near that: before it does, all items are stamped with a new one. It is as far ahead as
the journal is old, so that a journal of any age was stamped a few times and no more; it goes within
about the time that it lived, or when `sweep` is called.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from limpet.backends import decide
from limpet.backends.dynamodb.errors import Refused
from limpet.backends.dynamodb.layout import (
    REMOVE_AFTER,
    Item,
    Stored,
    attribute,
    ended,
    head_key,
    head_update,
    in_groups,
    index_key,
    item_key,
    item_request,
    new_token,
    partition,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.backends.contract import Expect, Key
    from limpet.backends.dynamodb.heads import Attempt, Heads
    from limpet.backends.dynamodb.records import Bodies
    from limpet.backends.dynamodb.table import Action, Table

__all__ = ["DAY", "HOUR", "Remover", "StampFirst", "Stamps", "items_of", "removal_times"]

HOUR = 3_600
DAY = 24 * HOUR

#: The times of items are rounded up to so many seconds: two who come to one at nearly the same
#: moment, or one who tries again, then come to the same.
ROUNDED = HOUR

#: A journal that is older than this is as if it were this old.
OLDEST = 90 * DAY

#: Items to a transaction: DynamoDB takes 100, and 4 MB of them.
STAMPED = 90
STAMPED_BYTES = 3_500_000


class StampFirst(Exception):
    """Before a change, all items but the head must bear *remove_after*; None: no time at all."""

    def __init__(self, remove_after: int | None) -> None:
        super().__init__(remove_after)
        self.remove_after = remove_after


def removal_times(base: Stored, new: Stored, now: int, *, adds_items: bool) -> Stored:
    """*new*, made of *base*, with the times from which on DynamoDB may remove it.

    `StampFirst`, if other items would be removed too early otherwise, or never. *adds_items*: it
    comes with other items than there are.
    """
    head, until = new.head, 0
    if head is not None and head.lease is not None:
        until = head.lease.until
    if head is None or not head.seq:
        return replace(new, remove_after=max(until, now) // 1_000_000 + DAY)
    if base.stamping is not None and adds_items:
        # Somebody began to stamp the items, and may have died: a new one might be passed over.
        raise StampFirst(base.items_remove_after)
    times = base.items_remove_after
    if head.ttl is None or head.expires is None:
        if times is not None and base.items:
            raise StampFirst(None)
        return replace(new, remove_after=None, items_remove_after=None, stamping=None)

    # A copy may have ended long ago; DynamoDB passes over times that are years back.
    lasts = max(head.expires, until, now) // 1_000_000
    stamping = base.stamping
    remove_after: int | None = lasts + DAY
    if times is None or lasts + HOUR >= times:
        age = min(max(now - head.created, 0) // 1_000_000, OLDEST)
        later = lasts + max(DAY, head.ttl // 1_000_000, age) + HOUR
        later = -(-later // ROUNDED) * ROUNDED
        if times is not None and base.items:
            raise StampFirst(later)
        if base.items:
            stamping = new_token()  # they bear no time; they can get one when this is written
        times = later
    if stamping is not None and (base.items_remove_after is None or base.remove_after is None):
        # Until all items bear a time the head must stay: it alone leads to them.
        remove_after = None
    return replace(new, remove_after=remove_after, items_remove_after=times, stamping=stamping)


class Stamps:
    """Gives all items of a journal but its head another time from which on they may be removed."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def stamp(self, key: Key, stored: Stored, remove_after: int | None) -> tuple[str, int | None]:
        """Do that. The caller goes on when the head still has the token that is returned.

        Each write is conditional on that token: of two who are at it, or of one who is late, only
        the last one's count. While it goes on nobody adds items. `Refused` if another took over.
        """
        token = new_token()
        began = replace(stored, rev=new_token(), stamping=token)
        if remove_after is None or stored.items_remove_after is None:
            # Until all items bear a time the head must stay: it alone leads to them.
            began = replace(began, remove_after=None)
        self._table.update(head_update(key, stored, began))
        small: list[Item] = []
        parts: list[Item] = []  # of bodies: the largest items there are
        for item in items_of(self._table, key, stored.generation):
            borne = int(item[REMOVE_AFTER]["N"]) if REMOVE_AFTER in item else None
            if borne != remove_after and (
                borne is None or remove_after is None or borne < remove_after
            ):
                (parts if "/b/" in item["sk"]["S"] else small).append(item)
        for group in in_groups(small, STAMPED):
            self._stamp_items(key, group, token, remove_after)
        for group in in_groups(parts, STAMPED_BYTES // 400_000):
            self._stamp_items(key, group, token, remove_after)
        return token, remove_after

    def _stamp_items(
        self, key: Key, items: list[Item], token: str, remove_after: int | None
    ) -> None:
        ours = item_request(head_key(key), "#stamping = :token", {":token": attribute(token)})
        there = "attribute_exists(#pk)"
        action, values = {"REMOVE": [f"#{REMOVE_AFTER}"]}, {}
        if remove_after is not None:
            action = {"SET": [f"#{REMOVE_AFTER} = :time"]}
            values = {":time": attribute(remove_after)}
        while items:
            updates = [
                item_request(item_key(item["pk"]["S"], item["sk"]["S"]), there, values, **action)
                for item in items
            ]
            try:
                self._table.transact(
                    ("ConditionCheck", ours), *(("Update", update) for update in updates)
                )
            except Refused as refused:
                if refused.place == 0:
                    raise
                del items[refused.place - 1]  # compacted away meanwhile
            else:
                return


def items_of(table: Table, key: Key, generation: str) -> Iterator[Item]:
    """Keys and times of all items of one generation."""
    wanted = ("pk", "sk", REMOVE_AFTER)
    return table.query(partition(key), f"{generation}/", f"{generation}0", names=wanted)


# -- removing --------------------------------------------------------------------------------------


class Remover:
    """Deletes journals, and frees the room of those that have expired.

    A journal ends at once, by a change of its head; then its items go. What stays for a day is an
    empty head: it knows the last lease's epoch, so that none is given out again, and turns away a
    first append that was long under way.
    """

    def __init__(self, table: Table, heads: Heads, bodies: Bodies) -> None:
        self._table = table
        self._heads = heads
        self._bodies = bodies
        self._reached: Key | None = None

    def delete(self, key: Key, expect: Expect | None) -> bool:
        """See `Backend.delete`."""
        now = self._table.clock.now()

        def work(attempt: Attempt) -> bool:
            stored = attempt.stored
            if expect is not None:
                # Nobody appends or takes the lease between this and the write: its rev would move.
                head = None if stored is None else decide.live(stored.head, now)
                decide.check_delete(head, key, expect, now)
            if stored is None or (stored.head is None and not stored.uploads):
                attempt.require_fresh()
                return False
            self._end(attempt, stored)
            return decide.visible(stored.head, now) is not None

        return self._heads.change(key, work)

    def _end(self, attempt: Attempt, stored: Stored) -> None:
        # An answer that is lost is no loss: the transaction's token makes it known again.
        empty = ended(stored)
        self._heads.write(attempt, self._heads.prepare(attempt, empty, empty))

    def sweep(self, limit: int) -> int:
        """See `Backend.sweep`. Looks at every head; where one call stopped, the next goes on."""
        count, reached = 0, self._reached
        for tenant, kind in self._heads.kinds():
            low = " "
            if reached is not None and (tenant, kind) <= reached[:2]:
                if (tenant, kind) < reached[:2]:
                    continue
                low = reached.id
            for key, stored in self._heads.listed(tenant, kind, low):
                count += self._sweep_one(key, stored)
                if count >= limit:
                    self._reached = key
                    return count
        self._reached = None
        return count

    def _sweep_one(self, key: Key, listed: Stored | None) -> bool:
        """Do what is to be done about one head; True if a journal went."""
        now = self._table.clock.now()
        if listed is None:
            # DynamoDB has removed the head. Only what we see now: a journal that begins meanwhile
            # has another generation.
            found = list(self._table.query(partition(key), " ", "~", names=("pk", "sk")))
            self._table.remove(item for item in found if item["sk"]["S"] != "head")
            self._forget(key, None)
            return False
        if _is_over(listed, now):

            def end(attempt: Attempt) -> bool:
                if attempt.stored is None or not _is_over(attempt.stored, now):
                    attempt.require_fresh()
                    return False
                self._end(attempt, attempt.stored)
                return True

            return self._heads.change(key, end)
        self._heads.clear_garbage(key, listed.garbage)
        self._bodies.sweep(key, listed, now // 1_000_000 - DAY)
        ended_at = (listed.remove_after or 0) - DAY
        if listed.head is None and not listed.uploads and ended_at + HOUR < now // 1_000_000:
            self._forget(key, self._heads.load(key))
        return False

    def _forget(self, key: Key, stored: Stored | None) -> None:
        """Remove an empty head, and the index's entry; both or none."""
        head: Action = (
            "ConditionCheck",
            item_request(head_key(key), "attribute_not_exists(#pk)", {}),
        )
        if stored is not None:
            if stored.head is not None or stored.uploads:
                return
            rev = {":rev": attribute(stored.rev)}
            head = "Delete", item_request(head_key(key), "#rev = :rev", rev)
        with suppress(Refused):  # it is not as it was: the next sweep will see
            self._table.transact(head, ("Delete", {"Key": index_key(key)}))
            self._heads.remember(key, None)


def _is_over(stored: Stored, now: int) -> bool:
    """Whether it has expired, or is a lease that has ended without a record."""
    head = stored.head
    if head is None:
        return False
    return decide.live(head, now) is None or not (head.seq or decide.is_leased(head, now))
