"""Freeing the room of what has ended, for those who do not wait for DynamoDB to do it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from limpet.backends.dynamodb.errors import Refused
from limpet.backends.dynamodb.life import DAY, HOUR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.backends.contract import Key
    from limpet.backends.dynamodb.bodies import Bodies
    from limpet.backends.dynamodb.heads import Heads
    from limpet.backends.dynamodb.layout import Journal
    from limpet.backends.dynamodb.life import Life
    from limpet.backends.dynamodb.table import Table

__all__ = ["Sweeper"]


class Sweeper:
    """Looks at every head, a portion with each call; where it stopped it goes on."""

    def __init__(self, table: Table, heads: Heads, life: Life, bodies: Bodies) -> None:
        self._table = table
        self._heads = heads
        self._life = life
        self._bodies = bodies
        self._reached: Key | None = None

    def sweep(self, limit: int) -> int:
        """See `Backend.sweep`."""
        count = 0
        for key, journal in self._all():
            with suppress(Refused):  # it is not as it was: the next sweep will see
                count += self._visit(key, journal)
            if count >= limit:
                self._reached = key
                return count
        self._reached = None
        return count

    def _all(self) -> Iterator[tuple[Key, Journal | None]]:
        """Every journal of the index, from where the last call came to."""
        reached = self._reached
        for tenant, kind in self._heads.kinds():
            low = " "
            if reached is not None and (tenant, kind) <= reached[:2]:
                if (tenant, kind) < reached[:2]:
                    continue
                low = reached.id
            yield from self._heads.listed(tenant, kind, low, "\U0010ffff")

    def _visit(self, key: Key, journal: Journal | None) -> bool:
        """Do what is to be done about one head; True if a journal went."""
        now = self._table.clock.now()
        if journal is None:
            self._life.clear_all(key)
            self._life.forget(key, None)
            return False
        if journal.seq and not journal.expired(now):
            self._tidy(key, journal, now)
            return False
        if journal.seq or journal.epoch is not None:
            if journal.leased(now):
                return False
            self._life.bury(key, journal, expired=True)
            return True
        self._tidy(key, journal, now)
        buried = (journal.remove_after or 0) - DAY
        if not journal.pending and buried + HOUR < now // 1_000_000:
            self._life.forget(key, journal)
        return False

    def _tidy(self, key: Key, journal: Journal, now: int) -> None:
        """Remove what was never finished, or never removed, about a head that stays."""
        if journal.trash:
            self._life.clear(key, journal.trash)
        for pending in journal.pending:
            begun, parts, name = pending.split(".")
            if int(begun) + DAY < now // 1_000_000:
                self._bodies.remove(key, journal.gen, [(name, int(parts))])
                self._bodies.settled(key, journal.gen, [pending])
