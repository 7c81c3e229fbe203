"""Moving a full tail to a chunk, and the ids in it to items of their own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from limpet.backends.dynamodb.errors import Refused, Stale
from limpet.backends.dynamodb.layout import (
    MOST,
    REMOVE_AFTER,
    TAIL,
    Item,
    Journal,
    Kept,
    attribute,
    chunk_key,
    id_key,
    item_key,
    lasting,
    made_token,
    pack_chunk,
    partition,
)
from limpet.backends.dynamodb.records import forget

if TYPE_CHECKING:
    from limpet.backends.contract import Key
    from limpet.backends.dynamodb.effort import Draft, Effort
    from limpet.backends.dynamodb.life import Life
    from limpet.backends.dynamodb.table import Table

__all__ = ["Mover"]

#: How often an append waits for another thread to make room, before it does so itself.
PATIENT = 8


class Mover:
    """Makes room in tails."""

    def __init__(self, table: Table, life: Life) -> None:
        self._table = table
        self._life = life
        self.begin()

    def begin(self) -> None:
        """Nothing is under way: at first, and in a forked child."""
        self._lock = threading.Lock()
        self._moving: set[Key] = set()

    def done(self, effort: Effort) -> None:
        """It has been moved, or not: others may now."""
        if effort.moves:
            with self._lock:
                self._moving.discard(effort.key)

    def make_room(self, draft: Draft, effort: Effort, journal: Journal) -> None:
        """Copy a tail that has no room for another record to a chunk, and let *draft* empty it."""
        known = journal.in_order()
        others = journal.seq - journal.stored - sum(kept.entries for kept in known)
        if _has_room(known, others, effort) or not self._may_move(effort, known):
            return
        if others:
            raise Stale  # of other writers' records we know only how many entries they have
        self._life.check_untouched(effort.key, journal)
        moved = known[:MOST]
        pk, last, data = partition(effort.key), moved[-1].seq, pack_chunk(moved)

        def chunk() -> Item:
            sk = chunk_key(journal.gen, last, made_token(3))
            return {**item_key(pk, sk), "records": {"B": data}, **lasting(journal.keep)}

        self._table.put(chunk)
        draft.say(rev=made_token(), stored=last, items=True)
        draft.then["tail"] = {kept.mark: kept for kept in known if kept.seq > last}
        for kept in moved:
            forget(draft, kept)
        named = [kept for kept in moved if kept.id is not None]
        if named:
            self._name(effort.key, journal, named)
            draft.say(named=True)

    def _may_move(self, effort: Effort, known: list[Kept]) -> bool:
        """One thread moves a tail; the others need not wait for it, while there is room."""
        with self._lock:
            if effort.key not in self._moving or effort.moves or effort.turn > PATIENT:
                self._moving.add(effort.key)
                effort.moves = True
                return True
        if len(known) < 4 * MOST and sum(kept.weight for kept in known) < 10 * TAIL:
            return False
        raise Stale

    def _name(self, key: Key, journal: Journal, named: list[Kept]) -> None:
        """An item for each id, by which it is known as long as its record is there."""
        left = list(named)
        while left:
            try:
                self._table.transact(*(self._naming(key, journal, kept) for kept in left))
            except Refused as refused:
                del left[refused.place]  # it has one
            else:
                return

    def _naming(self, key: Key, journal: Journal, kept: Kept) -> Item:
        """Where there is one already, the later record counts, and of one record the later end.

        So a try that comes late undoes nothing.
        """
        values = {":seq": attribute(kept.seq)}
        longer = f"attribute_exists(#{REMOVE_AFTER})"
        if journal.keep is not None:
            values[":keep"] = attribute(journal.keep)
            longer = f"#{REMOVE_AFTER} < :keep"
        return self._table.putting(
            {
                **item_key(partition(key), id_key(journal.gen, kept.id or "")),
                "seq": values[":seq"],
                "at": attribute(kept.at),
                **lasting(journal.keep),
            },
            ConditionExpression=(
                f"attribute_not_exists(#pk) OR #seq < :seq OR (#seq = :seq AND {longer})"
            ),
            ExpressionAttributeNames={f"#{name}": name for name in ("pk", "seq", REMOVE_AFTER)},
            ExpressionAttributeValues=values,
        )


def _has_room(known: list[Kept], others: int, effort: Effort) -> bool:
    """Whether a tail takes another record: of *known* ones, and of *others* that are guessed."""
    weight, entries = sum(kept.weight for kept in known), sum(kept.entries for kept in known)
    more = effort.kept(0).weight
    guess = others * (weight // entries if entries else more)
    if not known and not others:
        return True
    return weight + guess + more <= TAIL and len(known) + others < MOST
