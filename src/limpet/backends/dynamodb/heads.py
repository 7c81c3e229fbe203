"""Heads of journals: read, and remembered as hints for the next append."""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from limpet.backends.contract import Key
from limpet.backends.dynamodb.layout import (
    HEAD_ONLY,
    Item,
    Journal,
    head_key,
    index_partition,
    partition,
    split_index,
)
from limpet.backends.dynamodb.table import MOST_READS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.backends.dynamodb.table import Table

__all__ = ["Heads"]

#: How many are remembered: some kilobytes each.
REMEMBERED = 1_000


class Heads:
    """What is known of journals' heads.

    A hint spares the read before a write. It may be out of date: every write is conditional on
    the revision that it was made for, and one that fails brings the head as it is.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self.begin()

    def begin(self) -> None:
        """Know nothing, as in a forked child."""
        self._lock = threading.Lock()
        self._known: dict[Key, Journal] = {}

    def load(self, key: Key) -> Journal | None:
        """The head as it is now, None where nothing is."""
        return self.found(key, self._table.get(partition(key), "head"))

    def found(self, key: Key, item: Item | None) -> Journal | None:
        """The head that a reply brought."""
        journal = Journal.of(item) if item else None
        with self._lock:
            self._known.pop(key, None)
        if journal is not None:
            self.remember(key, journal)
        return journal

    def listed(
        self, tenant: str, kind: str, low: str, high: str, *, at_once: int = MOST_READS
    ) -> Iterator[tuple[Key, Journal | None]]:
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
            items = self._table.get_many((head_key(key) for key in keys), HEAD_ONLY)
            found = {item["pk"]["S"]: Journal.of(item) for item in items}
            for key in keys:
                yield key, found.get(partition(key))

    def kinds(self) -> list[tuple[str, str]]:
        """The pairs of tenant and kind under which there may be journals."""
        listed = self._table.query("kinds", " ", "\U0010ffff")
        return sorted(split_index(item["sk"]["S"]) for item in listed)

    def hint(self, key: Key) -> Journal | None:
        """The head as it was when we last saw it, if we did."""
        return self._known.get(key)

    def remember(self, key: Key, journal: Journal) -> None:
        """Keep it for the next append. Of one revision, what several threads know is joined."""
        with self._lock:
            known = self._known.pop(key, None)
            if known is not None and known.rev == journal.rev and known.seq != journal.seq:
                newer = max(known, journal, key=lambda one: one.seq)
                journal = replace(newer, tail=known.tail | journal.tail)
            self._known[key] = journal
            if len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
