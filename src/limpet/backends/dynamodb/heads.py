"""The heads of journals: read, remembered, and changed on the condition that nobody else did.

Every write of a journal is a change of its head item, in `Heads.change`: what is known of the head
goes through the rules, and what they say is written if the head's rev is still the one that is
known. If it is not, the refusal brings the head as it is, and the rules are asked again.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from limpet.backends.contract import Key
from limpet.backends.dynamodb.errors import Refused
from limpet.backends.dynamodb.expiry import DAY, StampFirst, Stamps, items_of, removal_times
from limpet.backends.dynamodb.layout import (
    LAST_ID,
    WITHOUT_TAIL,
    Item,
    Stored,
    head_key,
    head_update,
    index_item,
    index_partition,
    item_key,
    new_token,
    partition,
    split_index,
    stored_head,
)
from limpet.backends.dynamodb.table import MOST_READS
from limpet.backends.retry import may_be_there
from limpet.errors import Conflict, LeaseHeld, LeaseLost, StoreBusy, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.backends.dynamodb.table import Action, Table

__all__ = ["Attempt", "Heads", "Stale"]

T = TypeVar("T")

#: How many heads are remembered: some kilobytes each.
REMEMBERED = 1_000

#: Seconds for which a thread waits for another one that writes to the same journal.
LONGEST_TURN = 1.0

#: Refusals that are nothing special; after more of them it waits a little before the next try.
AT_ONCE = 2


class Stale(Exception):
    """What is known of a head is not enough, or not so any more: read it."""


class Attempt:
    """One try to change a head: what is known of it, and of the tries before."""

    def __init__(self, key: Key, stored: Stored | None, *, fresh: bool) -> None:
        self.key = key
        self.stored = stored
        self.fresh = fresh  # False: it is remembered, and may be out of date
        self.unanswered = False  # whether an earlier try may have been carried out
        self.stamped: tuple[str, int | None] | None = None  # what `Stamps.stamp` has done
        self.deadline = 0.0

    def require_fresh(self) -> None:
        """Before an answer that no write confirms: have the head read, if it is remembered."""
        if not self.fresh:
            raise Stale


class Heads:
    """What is known of journals' heads, and how they are changed.

    A head that is remembered spares the read before a write. It may be out of date: then the write
    is refused.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._stamps = Stamps(table)
        self._listed: set[str] = set()  # the kinds of which we know that they are listed
        self.begin()

    def begin(self) -> None:
        """Know nothing, as in a forked child."""
        self._lock = threading.Lock()
        self._known: dict[Key, Stored] = {}
        self._turns: WeakValueDictionary[Key, threading.RLock] = WeakValueDictionary()

    # -- reading -----------------------------------------------------------------------------

    def load(self, key: Key) -> Stored | None:
        """The head item as it is now, None where there is none."""
        return self._take(key, self._table.get(partition(key), "head"))

    def _take(self, key: Key, item: Item | None) -> Stored | None:
        """The head that an answer brought."""
        stored = stored_head(key, item) if item else None
        self.remember(key, stored)
        return stored

    def remember(self, key: Key, stored: Stored | None) -> None:
        """Begin the next change of the head from this. None: there is no head item any more."""
        with self._lock:
            self._known.pop(key, None)
            if stored is not None:
                self._known[key] = stored
                if len(self._known) > REMEMBERED:
                    del self._known[next(iter(self._known))]

    def listed(
        self,
        tenant: str,
        kind: str,
        low: str = " ",
        high: str = LAST_ID,
        *,
        at_once: int = MOST_READS,
    ) -> Iterator[tuple[Key, Stored | None]]:
        """The journals of the index with ids from *low* to *high*, without their tails.

        None for one whose head is gone. Heads are read *at_once*, then ever more: whoever goes on
        has met many that are gone.
        """
        listed = self._table.query(
            index_partition(tenant, kind), low, high, page=MOST_READS + 1, names=("sk",)
        )
        while group := list(islice(listed, at_once)):
            at_once = min(2 * at_once, MOST_READS)
            keys = [Key(tenant, kind, item["sk"]["S"]) for item in group]
            items = self._table.get_many((head_key(key) for key in keys), WITHOUT_TAIL)
            found = {item["pk"]["S"]: item for item in items}
            for key in keys:
                item = found.get(partition(key))
                yield key, None if item is None else stored_head(key, item)

    def kinds(self) -> list[tuple[str, str]]:
        """The pairs of tenant and kind under which there may be journals."""
        listed = self._table.query("kinds", " ", LAST_ID)
        return sorted(split_index(item["sk"]["S"]) for item in listed)

    # -- changing ----------------------------------------------------------------------------

    def change(self, key: Key, work: Callable[[Attempt], T]) -> T:
        """Call *work* with what is known of the head, until its `write` is not refused.

        What it raises or returns without a write must not rest on a head that may be out of date:
        see `Attempt.require_fresh`. Conflicts and leases are looked at again here.
        """
        with self._turn(key):
            known = self._known.get(key)
            attempt = Attempt(key, known or self.load(key), fresh=known is None)
            attempt.deadline = time.monotonic() + self._table.timeout
            tries = 0
            while True:
                try:
                    return work(attempt)
                except Refused as refused:
                    attempt.unanswered = attempt.unanswered or refused.unanswered
                    attempt.stored = self._take(key, refused.item)
                except (Stale, Conflict, LeaseHeld, LeaseLost) as error:
                    if attempt.fresh and not isinstance(error, Stale):
                        raise
                    attempt.stored = self.load(key)
                attempt.fresh = True
                tries += 1
                if time.monotonic() > attempt.deadline:
                    msg = (
                        f"Others wrote to the same journal in {self._table.where} again and again, "
                        "for longer than the timeout, and nothing was written. Have fewer writers, "
                        "or try again."
                    )
                    busy = StoreBusy(msg)
                    raise may_be_there(busy) if attempt.unanswered else busy
                if tries > AT_ONCE:
                    pause = min(0.002 * 2**tries, 0.2)
                    time.sleep(random.uniform(0, pause))  # noqa: S311 - not a secret

    @contextmanager
    def _turn(self, key: Key) -> Iterator[None]:
        """Let the threads of this process write to one journal one after the other.

        That spares them refusals and is not needed for more: so whoever waits too long, for one
        that uploads much or is not answered, goes on beside it.
        """
        with self._lock:
            turn = self._turns.get(key)
            if turn is None:
                turn = self._turns[key] = threading.RLock()
        mine = turn.acquire(timeout=LONGEST_TURN)
        try:
            yield
        finally:
            if mine:
                turn.release()

    def prepare(
        self, attempt: Attempt, base: Stored, new: Stored, *, adds_items: bool = False
    ) -> Stored:
        """*new*, made of *base*, as it is to be written: with a rev, and when it may be removed.

        *adds_items*: chunks or parts are to be written, now that it is known how long they stay.
        """
        stamped, was = attempt.stamped, base
        if stamped is not None and stamped[0] == base.stamping:
            was = replace(base, stamping=None, items_remove_after=stamped[1])
        try:
            planned = removal_times(was, new, self._table.clock.now(), adds_items=adds_items)
        except StampFirst as first:
            attempt.stamped = self._stamps.stamp(attempt.key, base, first.remove_after)
            attempt.deadline = time.monotonic() + self._table.timeout
            raise Stale from None
        return replace(planned, rev=new_token())

    def write(self, attempt: Attempt, new: Stored, *more: Action) -> None:
        """Write *new* in place of what is known, with *more* that must go with it or not at all.

        `Refused` if the head is not what is known. The index goes with it where that changes.
        """
        key, old = attempt.key, attempt.stored
        update = head_update(key, old, new)
        if more or old is None or _indexed(old) != _indexed(new):
            kind = index_partition(key.tenant, key.kind)
            if kind not in self._listed:
                self._table.put(item_key("kinds", kind))  # it stays
                self._listed.add(kind)
            until = new.items_remove_after
            if not new.seq:
                until = (new.remove_after or 0) + DAY
            self._table.transact(
                ("Update", update), ("Put", {"Item": index_item(key, until)}), *more
            )
        else:
            self._table.update(update)
        self.remember(key, new)
        if old is not None and old.generation != new.generation:
            with suppress(StoreError):  # else a sweep does it some day
                self.clear_garbage(key, new.garbage)

    def finish_stamping(self, key: Key) -> None:
        """Give the items the time that the head says they have.

        Now if that is possible, else whoever adds an item does it.
        """

        def work(attempt: Attempt) -> None:
            stored = attempt.stored
            if stored is not None and stored.stamping is not None:
                self.write(attempt, self.prepare(attempt, stored, stored, adds_items=True))

        with suppress(StoreError):
            self.change(key, work)

    def clear_garbage(self, key: Key, generations: frozenset[str]) -> None:
        """Remove the items of *generations*, which have ended."""
        for generation in generations:
            self._table.remove(items_of(self._table, key, generation))

        def work(attempt: Attempt) -> None:
            stored = attempt.stored
            if stored is None or not stored.garbage & generations:
                attempt.require_fresh()
                return
            clean = replace(stored, garbage=stored.garbage - generations)
            self.write(attempt, self.prepare(attempt, stored, clean))

        if generations:
            self.change(key, work)


def _indexed(stored: Stored) -> tuple[bool, str, int | None]:
    """What the index's entry depends on."""
    return stored.seq > 0, stored.generation, stored.items_remove_after
