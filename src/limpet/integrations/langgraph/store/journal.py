"""The journal of one namespace, with a fold of it that is brought up to date by number."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from limpet.backends.contract import Expect
from limpet.core.runtime import run_to_end
from limpet.errors import Conflict
from limpet.integrations.langgraph.store.fold import EMPTIED, Fold, StoredItem
from limpet.integrations.langgraph.store.names import DIGEST, KIND, NamespaceMeta, id_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from limpet.backends.contract import Append, Appended, Head
    from limpet.core.scope import Scope

    Entries = Sequence[tuple[str, Any]]

__all__ = ["Namespace"]

#: How many bytes there may be of what was replaced, deleted or has expired, before it is worth a
#: compaction; and never more than there are of what is left.
SLACK = 64 * 1024
#: Every so many entries somebody looks whether it is: whoever writes the one with such a number.
LOOK_EVERY = 16
#: Bytes of items that a compaction writes in one append.
CHUNK = 1024 * 1024
#: Seconds for which an empty namespace stays: a put that comes meanwhile, or later, is as safe as
#: any other, for it takes the time to live away.
EMPTY_TTL = 60


class Namespace:
    """One namespace: reads it, writes to it, and keeps it from growing for ever.

    All of it blocks. It may be used from any thread.
    """

    def __init__(self, scope: Scope, path: tuple[str, ...]) -> None:
        self.path = path
        self.journal = scope.journal(KIND, id_of(path))
        self._is_shortened = DIGEST in self.journal.key.id
        self._fold = Fold()
        self._lock = threading.RLock()

    # -- reading -------------------------------------------------------------------------------

    def items(self, now: int, head: Head | None = None) -> dict[str, StoredItem]:
        """All that is in it, in its order; *head* is the journal's, if it was read just now."""
        with self._lock:
            found = self._up_to_date(head).items
            return {key: item for key, item in found.items() if item.is_there(now)}

    def item(self, key: str, now: int) -> StoredItem | None:
        """One item, if it is there."""
        with self._lock:
            found = self._up_to_date().items.get(key)
        return found if found is not None and found.is_there(now) else None

    def known_item(self, key: str, now: int) -> StoredItem | None:
        """The same, as far as it was read last."""
        found = self._fold.items.get(key)
        return found if found is not None and found.is_there(now) else None

    def is_empty(self, now: int, head: Head) -> bool:
        """Whether nothing is in it, by its *head* that was read just now; often by that alone."""
        return not NamespaceMeta.of(head).lasting and not self.items(now, head)

    def _up_to_date(self, head: Head | None = None) -> Fold:
        """The fold, with all that had been written when this was called."""
        if head is None or head.seq < self._fold.seq:
            head = run_to_end(self.journal.head())
        while True:
            if head is None:
                self._fold = Fold()
                return self._fold
            fold = self._fold
            if (fold.incarnation, fold.seq, fold.at) == (head.incarnation, head.seq, head.updated):
                return fold
            if fold.incarnation != head.incarnation or not head.first - 1 <= fold.seq <= head.seq:
                # It was deleted and begun anew, or compacted before all of it was read.
                self._fold = fold = Fold(head.incarnation, head.first - 1)
            if self._read(fold, head):
                return fold
            head = run_to_end(self.journal.head())

    def _read(self, fold: Fold, head: Head) -> bool:
        """Bring *fold* to *head*; False if the journal was changed meanwhile, or restored."""
        # With the record that was read last, if it is there: its time says that it is the same.
        after = fold.seq - 1 if fold.seq >= head.first else fold.seq
        while fold.seq < head.seq or after < fold.seq:
            records = run_to_end(self.journal.page(after=after, upto=head.seq))
            for record in records:
                if record.seq == fold.seq and record.at != fold.at:
                    self._fold = Fold()  # other entries have the numbers that we had read
                    return False
                if record.seq <= fold.seq:
                    continue
                if record.seq - record.count != fold.seq and self._is_changed(fold, head):
                    return False
                fold.take(self.journal, record)
            if not records:
                if self._is_changed(fold, head):
                    return False
                fold.seq, fold.at = head.seq, head.updated  # a repair has taken the rest out
            after = fold.seq
        return fold.at == head.updated

    def _is_changed(self, fold: Fold, head: Head) -> bool:
        """Whether the journal was compacted beyond the end of *fold*, or is another one."""
        now = run_to_end(self.journal.head())
        return now is None or now.incarnation != head.incarnation or now.first - 1 > fold.seq

    # -- writing -------------------------------------------------------------------------------

    def request(self, entries: Entries, *, lasting: bool) -> Append:
        """The append of *entries* that put and delete; for *lasting* see `NamespaceMeta`."""
        # What is in a store has times to live of its own, and does not expire with the journal.
        return self.journal.request(entries, meta=self._meta(lasting=lasting), ttl=None)

    def note(self, entries: Entries) -> Appended:
        """Append *entries* that put and delete nothing."""
        return run_to_end(self.journal.write(entries))

    def _meta(self, *, lasting: bool) -> bytes | None:
        path = list(self.path) if self._is_shortened else None
        return NamespaceMeta(namespace=path, lasting=lasting).encode()

    # -- compaction ----------------------------------------------------------------------------

    def compact_if_due(self, done: Appended, count: int, now: int) -> None:
        """Compact it if that is worth it; *done*: what was said to the append of *count* entries.

        A look costs a read of what is new, so that not every write takes one; and whose it is
        depends on the number alone, so that processes which write once and end take their turns.
        """
        if done.seq // LOOK_EVERY == (done.seq - count) // LOOK_EVERY:
            return
        with self._lock:
            head = run_to_end(self.journal.head())
            if head is None:
                return
            items = self._up_to_date(head).items.values()
            live = sum(item.size for item in items if item.is_there(now))
            if head.size - live > max(live, SLACK):
                self.compact(now)

    def sweep(self, now: int, head: Head | None = None) -> int:
        """Compact it if something has expired, or was deleted or replaced; how many had expired."""
        with self._lock:
            fold = self._up_to_date(head)
            if fold.dead or not all(item.is_there(now) for item in fold.items.values()):
                return self.compact(now)
            return 0

    def compact(self, now: int) -> int:
        """Write what is there anew and drop all before it; how many items had expired.

        Where another process writes at the same time, nothing is dropped: it is for next time.
        """
        with self._lock:
            fold = self._up_to_date()
            if not fold.incarnation:
                return 0
            expired = sum(not item.is_there(now) for item in fold.items.values())
            items = {key: item for key, item in fold.items.items() if item.is_there(now)}
            lasting = any(item.expires is None for item in items.values())
            expect = Expect(fold.incarnation, fold.seq)
            ttl = None if items else EMPTY_TTL
            try:
                for entries in _chunks(items):
                    done = run_to_end(
                        self.journal.write(
                            entries, expect=expect, meta=self._meta(lasting=lasting), ttl=ttl
                        )
                    )
                    expect = done.expect
            except Conflict:
                return 0
            run_to_end(self.journal.compact(fold.seq + 1))
            fold.dead = 0
            fold.items = items
            return expired


def _chunks(items: dict[str, StoredItem]) -> Iterator[list[tuple[str, Any]]]:
    """The entries of *items*, as many at a time as go into one append."""
    size = 0
    entries: list[tuple[str, Any]] = []
    for key, item in items.items():
        if entries and size + item.size > CHUNK:
            yield entries
            size, entries = 0, []
        entries += item.entries(key)
        size += item.size
    yield entries or [(EMPTIED, None)]
