"""How journals end: when DynamoDB may remove their items, and how we do.

DynamoDB removes an item some time after the moment in its attribute ``remove_after``. A journal's
end moves on with each append, and not every item can be written again each time. So:

*The head* says when it may go itself: a day after the journal's end. It is written anyway.

*All other items* bear a later moment, no earlier than the head's ``keep``, and the end never
comes near that: before it does, all items are given a new one. It is as far ahead as the journal
is old, so that a journal of any age was rewritten a few times and no more; it goes within about
the time that it lived, or when `sweep` is called.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from limpet.backends.dynamodb.errors import Refused, Stale
from limpet.backends.dynamodb.layout import (
    REMOVE_AFTER,
    Change,
    Item,
    Journal,
    head_key,
    in_groups,
    index_item,
    index_key,
    index_partition,
    item_key,
    made_token,
    partition,
)
from limpet.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.backends.contract import Key
    from limpet.backends.dynamodb.heads import Heads
    from limpet.backends.dynamodb.table import Table

__all__ = ["DAY", "HOUR", "Life", "beginning", "keep_until", "removal"]

HOUR = 3_600
DAY = 24 * HOUR

#: A journal that is older than this is as if it were this old.
OLDEST = 90 * DAY

#: Items to a transaction: DynamoDB takes 100, and 4 MB of them.
TOUCHED = 90
TOUCHED_BYTES = 3_500_000

#: Attributes of a head that say nothing of its next life.
_OF_ONE_LIFE = (
    *("seq", "floor", "stored", "size", "created", "updated", "life", "expires", "keep"),
    *("status", "labels", "tail", "nums", "late", "items", "named", "touch", "pending"),
    *("holder", "epoch", "until", "token"),
)


def removal(*ends: int | None) -> int:
    """When a head may be removed whose journal is there until the last of *ends*."""
    return max(end or 0 for end in ends) // 1_000_000 + DAY


def keep_until(created: int, life: int, ends: int, now: int) -> int:
    """How long to keep the items of a journal that is to end at *ends*, in seconds."""
    age = min(max(now - created, 0) // 1_000_000, OLDEST)
    return ends // 1_000_000 + max(DAY, life // 1_000_000, age) + HOUR


class Life:
    """What keeps a journal's items from being removed, and what removes them."""

    def __init__(self, table: Table, heads: Heads) -> None:
        self._table = table
        self._heads = heads
        self._announced: set[str] = set()

    # -- beginning ---------------------------------------------------------------------------

    def announce(self, key: Key) -> None:
        """List tenant and kind among those that there are to scan. It stays there."""
        kind = index_partition(key.tenant, key.kind)
        if kind not in self._announced:
            self._table.put(item_key("kinds", kind))
            self._announced.add(kind)

    def found(self, key: Key, former: Journal | None, **attributes: Any) -> None:
        """Make a head without records, for a lease or for what is to come; it goes with time."""
        self.announce(key)
        now = self._table.clock.now()
        change = beginning(key, former, now)
        remove_after = removal(now, attributes.get("until"))
        change.put(**attributes, remove_after=remove_after)
        self._table.transact(
            self._table.updating(change), self._table.putting(index_item(key, remove_after + DAY))
        )
        if former is not None:
            self.clear_former(key, former)

    # -- keeping -----------------------------------------------------------------------------

    @staticmethod
    def covers(journal: Journal, ends: int) -> bool:
        """Whether nothing is removed before *ends*, or soon after."""
        return journal.keep is None or ends // 1_000_000 + HOUR < journal.keep

    def extend(self, key: Key, journal: Journal, ends: int) -> None:
        """Keep the items of a journal that has a life for longer. The caller looks again."""
        keep = journal.keep
        if not self.covers(journal, ends):
            keep = keep_until(journal.created, journal.life or 0, ends, self._table.clock.now())
            if journal.items:
                journal = self.touch(key, journal, keep)
        self._settle(key, journal, keep, removal(ends, journal.until))

    def check_untouched(self, key: Key, journal: Journal) -> None:
        """Make sure that nobody is giving the items a moment, before there is another item."""
        if journal.touch is not None:
            self.finish(key, journal)
            raise Stale

    def finish(self, key: Key, journal: Journal) -> None:
        """Do what somebody began and did not end, or is about to: give the items their moment."""
        journal = self.touch(key, journal, journal.keep)
        ends = None if journal.expires is None else removal(journal.expires, journal.until)
        self._settle(key, journal, journal.keep, ends)

    def _settle(
        self, key: Key, journal: Journal, keep: int | None, remove_after: int | None
    ) -> None:
        change = Change(head_key(key))
        change.when("#rev = :old", old=journal.rev)
        change.put(rev=made_token(), keep=keep, remove_after=remove_after, touch=None)
        if remove_after is not None:
            change.when(
                "(attribute_not_exists(#until) OR #until < :ends)", ends=remove_after * 10**6
            )
        self._table.transact(
            self._table.updating(change), self._table.putting(index_item(key, keep))
        )

    def touch(self, key: Key, journal: Journal, keep: int | None) -> Journal:
        """Give every item of the journal the moment *keep*; the head, which says who is at it.

        Each write is conditional on that: of two who are at it, or of one who is late, only the
        last one's count. While it goes on nobody adds items. `Refused` if another took over.
        """
        token = made_token()
        change = Change(head_key(key))
        change.when("#rev = :old", old=journal.rev)
        change.put(rev=made_token(), touch=token)
        if keep is None or journal.keep is None:
            # Until all items bear a moment the head must stay: it alone leads to them.
            change.remove(f"#{REMOVE_AFTER}")
        begun = Journal.of(self._table.update(change, "ALL_NEW"))
        for group in _portions(self._untouched(key, begun.gen, keep)):
            self._touch(key, group, token, keep)
        return begun

    def _untouched(self, key: Key, gen: str, keep: int | None) -> Iterator[Item]:
        """Items that bear another moment: none where one is due, or an earlier one."""
        for item in self.items(key, gen):
            borne = int(item[REMOVE_AFTER]["N"]) if REMOVE_AFTER in item else None
            if borne is None if keep is None else borne is not None and borne >= keep:
                continue
            yield item

    def _touch(self, key: Key, items: list[Item], token: str, keep: int | None) -> None:
        check = Change(head_key(key))
        check.when("#touch = :touch", touch=token)
        while items:
            changes = []
            for item in items:
                change = Change({"pk": item["pk"], "sk": item["sk"]})
                change.when("attribute_exists(#pk)")
                change.put(remove_after=keep)
                changes.append(self._table.updating(change))
            try:
                self._table.transact(self._table.checking(check), *changes)
            except Refused as refused:
                if refused.place == 0:
                    raise
                del items[refused.place - 1]  # compacted away meanwhile
            else:
                return

    def items(self, key: Key, gen: str) -> Iterator[Item]:
        """Keys and moments of all items of one generation."""
        wanted = ("pk", "sk", REMOVE_AFTER)
        return self._table.query(partition(key), f"{gen}/", f"{gen}0", names=wanted)

    # -- ending ------------------------------------------------------------------------------

    def bury(self, key: Key, journal: Journal, *, expired: bool) -> None:
        """Make an end of a journal, at once; then remove its items.

        What stays for a day is a head without records: it knows the last lease's epoch, so that
        none is given out again, and turns away a first append that was long under way. `Refused`
        if the journal is not as it was.
        """
        now = self._table.clock.now()
        change = _emptied(key, journal)
        if expired:
            _still_expired(change, now)
        change.put(remove_after=removal(now))
        self._table.transact(
            self._table.updating(change), self._table.putting(index_item(key, removal(now) + DAY))
        )
        self._heads.found(key, None)
        self.clear_former(key, journal)

    def clear_former(self, key: Key, journal: Journal) -> None:
        """Remove the items of a life that has ended, now if that is possible, else some day."""
        if journal.leaves or journal.trash:
            with suppress(StoreUnavailable):
                self.clear(key, [*journal.trash, journal.gen])

    def clear(self, key: Key, gens: list[str]) -> None:
        """Remove the items of generations that have ended."""
        for gen in gens:
            self._table.write(
                {"DeleteRequest": {"Key": {"pk": item["pk"], "sk": item["sk"]}}}
                for item in self.items(key, gen)
            )
        change = Change(head_key(key))
        change.when("attribute_exists(#trash)")
        change.take_from("trash", gens)
        try:
            self._table.update(change)
        except Refused:
            return  # the head is gone too

    def forget(self, key: Key, journal: Journal | None) -> None:
        """Remove a head without records, and the index's entry; both or none."""
        head, listed = Change(head_key(key)), Change(index_key(key))
        if journal is None:
            head.when("attribute_not_exists(#pk)")
            action = self._table.checking(head)
        else:
            head.when("#rev = :rev", rev=journal.rev)
            action = self._table.removing(head)
        self._table.transact(action, self._table.removing(listed))
        self._heads.found(key, None)

    def clear_all(self, key: Key) -> None:
        """Remove whatever is left of a journal whose head DynamoDB has removed."""
        pk = partition(key)
        found = [item["sk"]["S"] for item in self._table.query(pk, " ", "~", names=("sk",))]
        # Only what we have seen: a journal that begins meanwhile has another generation.
        self._table.write(
            {"DeleteRequest": {"Key": item_key(pk, sk)}} for sk in found if sk != "head"
        )


def _emptied(key: Key, journal: Journal) -> Change:
    """A change that ends one life of a journal, and leaves its head without records or lease."""
    change = Change(head_key(key))
    change.when("#rev = :old", old=journal.rev)
    change.put(**dict.fromkeys(_OF_ONE_LIFE))
    change.put(rev=made_token(), gen=made_token(), past=max(journal.past, journal.epoch or 0))
    if journal.leaves:
        change.add_to("trash", [journal.gen])
    return change


def beginning(key: Key, former: Journal | None, now: int) -> Change:
    """A change from nothing, or from a *former* life that has expired, to a head that is new."""
    if former is not None:
        change = _emptied(key, former)
        _still_expired(change, now)
        return change
    change = Change(head_key(key))
    change.when("attribute_not_exists(#pk)")
    change.put(rev=made_token(), gen=made_token())
    return change


def _still_expired(change: Change, now: int) -> None:
    """Let *change* be made only if the journal is not there any more: not if it was prolonged."""
    change.when("(attribute_not_exists(#until) OR #until <= :now)", now=now)
    change.when("(attribute_not_exists(#expires) OR #expires <= :now)")


def _portions(items: Iterator[Item]) -> Iterator[list[Item]]:
    # A part of a body is the largest item there is; what is not a part is small.
    parts: list[Item] = []
    small: list[Item] = []
    for item in items:
        (parts if "/b/" in item["sk"]["S"] else small).append(item)
    yield from in_groups(small, TOUCHED)
    yield from in_groups(parts, TOUCHED_BYTES // 400_000)
