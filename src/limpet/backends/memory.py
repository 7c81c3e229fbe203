"""``memory:``, a store that ends with its process; the contract in its plainest reading."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Self

from msgspec import structs

from limpet.backends import decide
from limpet.backends.contract import (
    Append,
    Appended,
    Backend,
    Expect,
    Head,
    Key,
    Lease,
    Page,
    Record,
)
from limpet.backends.facts import Fact
from limpet.errors import InvalidURL

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MemoryBackend"]


class _Journal:
    """One journal: its head as it is stored, and its records, also by id."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.records: list[Record] = []
        self.by_id: dict[str, Record] = {}


class MemoryBackend(Backend):
    """Journals in a dict, one lock around all of it."""

    blocks: ClassVar[bool] = False
    rewrites: ClassVar[bool] = True
    keeps: ClassVar[tuple[str, ...]] = (
        "The memory of this process is given back, and not overwritten; it may have been swapped.",
    )
    splits: ClassVar[bool] = True

    def __init__(self, url: str = "memory:", *, readonly: bool = False) -> None:
        super().__init__(url, readonly=readonly)
        self._lock = threading.Lock()
        self._journals: dict[Key, _Journal] = {}

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        if url != "memory:" or options:
            msg = "Each memory: store is new and its own, so its URL ends there; it has no options."
            raise InvalidURL(msg)
        return cls()

    def append(self, request: Append) -> Appended:
        self.check_writable()
        with self._lock:
            now = _now()
            journal = self._live(request.key, now)
            head = known = None
            if journal is not None:
                head = journal.head
                if request.id is not None and (first := journal.by_id.get(request.id)) is not None:
                    known = Appended(first.seq, first.at, head.incarnation)
            decision = decide.decide(head, request, now, known)
            if decision.head is not None:
                journal = self._set(decision.head)
                journal.records += decision.records
                if request.id is not None and decision.records:
                    journal.by_id[request.id] = decision.records[-1]
            return decision.answer

    def read(
        self,
        key: Key,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
    ) -> list[Record]:
        self.check_open()
        with self._lock:
            journal = self._live(key, _now())
            records = journal.records if journal else []
            found = [
                record
                for record in records
                if record.seq > after and (upto is None or record.seq - record.count < upto)
            ]
        return (found[::-1] if reverse else found)[:limit]

    def head(self, key: Key) -> Head | None:
        self.check_open()
        with self._lock:
            return self._visible(key, _now())

    def scan(
        self,
        tenant: str,
        kind: str,
        *,
        prefix: str = "",
        status: str | None = None,
        labels: Mapping[str, str] | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        self.check_open()
        wanted = dict(labels or {}).items()
        with self._lock:
            now = _now()
            heads = [
                head
                for key in sorted(self._journals, key=lambda key: key.id.encode())
                if key[:2] == (tenant, kind)
                and key.id.startswith(prefix)
                and (cursor is None or key.id.encode() > cursor.encode())
                and (head := self._visible(key, now)) is not None
                and (status is None or head.status == status)
                and wanted <= head.labels.items()
            ]
        more = len(heads) > limit
        return Page(heads[:limit], heads[limit - 1].key.id if more else None)

    def kinds(self) -> list[tuple[str, str]]:
        self.check_open()
        with self._lock:
            now = _now()
            return sorted({key[:2] for key in list(self._journals) if self._visible(key, now)})

    def delete(self, key: Key, *, expect: Expect | None = None) -> bool:
        self.check_writable()
        with self._lock:
            now = _now()
            if expect is not None:
                decide.check_delete(self._stored(key, now), key, expect, now)
            existed = self._visible(key, now) is not None
            self._journals.pop(key, None)
            return existed

    def compact(self, key: Key, before: int) -> int:
        self.check_writable()
        with self._lock:
            journal = self._live(key, _now())
            if journal is None:
                return 0
            gone = [record for record in journal.records if record.seq < before]
            if gone:
                journal.records = journal.records[len(gone) :]
                journal.by_id = {id_: r for id_, r in journal.by_id.items() if r.seq >= before}
                journal.head = structs.replace(
                    journal.head,
                    first=gone[-1].seq + 1,
                    size=sum(len(record.body) for record in journal.records),
                )
            return sum(record.count for record in gone)

    def rewrite(
        self,
        key: Key,
        bodies: Mapping[int, bytes],
        *,
        expect: Expect,
        renewed: str | None = None,
        labels: Mapping[str, str] | None = None,
        note: bytes | None = None,
    ) -> int:
        self.check_writable()
        with self._lock:
            journal = self._live(key, _now())
            if journal is None or journal.head.expect != expect:
                return 0
            count = sum(record.seq in bodies for record in journal.records)
            journal.records = [
                structs.replace(record, body=bodies.get(record.seq, record.body))
                for record in journal.records
            ]
            journal.by_id = {
                id_: structs.replace(record, body=bodies.get(record.seq, record.body))
                for id_, record in journal.by_id.items()
            }
            size = sum(len(record.body) for record in journal.records)
            journal.head = structs.replace(
                journal.head,
                size=size,
                incarnation=renewed or journal.head.incarnation,
                labels={**journal.head.labels, **(labels or {})},
                note=journal.head.note if note is None else note,
            )
            return count

    def scrub(self) -> bool:
        return True  # what is deleted or compacted is nowhere any more

    def sweep(self, limit: int = 1000) -> int:
        self.check_writable()
        with self._lock:
            now = _now()
            gone = [
                key
                for key, journal in self._journals.items()
                if decide.live(journal.head, now) is None
                or not (journal.head.seq or decide.is_leased(journal.head, now))
            ]
            for key in gone[:limit]:
                del self._journals[key]
            return len(gone[:limit])

    def acquire(self, key: Key, holder: str, ttl: float, *, over: int | None = None) -> Lease:
        self.check_writable()
        with self._lock:
            now = _now()
            head = decide.acquire(
                self._stored(key, now), key, now, holder=holder, ttl=ttl, over=over
            )
            return self._leased(head)

    def renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        self.check_writable()
        with self._lock:
            now = _now()
            return self._leased(decide.renew(self._stored(key, now), key, lease, ttl, now))

    def release(self, key: Key, lease: Lease) -> None:
        self.check_writable()
        with self._lock:
            now = _now()
            head = decide.release(self._stored(key, now), lease)
            if head is not None:
                self._set(head)

    def facts(self, *, deep: bool = False) -> list[Fact]:  # noqa: ARG002 - nothing deeper to check
        return [
            Fact("engine", "memory"),
            Fact("durability", "none: it ends with this process", ok=False, advice="Use a file."),
            Fact("journals", str(len(self._journals))),
        ]

    def _close(self) -> None:
        self._journals.clear()

    # -- under the lock ------------------------------------------------------------------------

    def _live(self, key: Key, now: int) -> _Journal | None:
        journal = self._journals.get(key)
        if journal is not None and decide.live(journal.head, now) is None:
            del self._journals[key]
            return None
        return journal

    def _stored(self, key: Key, now: int) -> Head | None:
        journal = self._live(key, now)
        return None if journal is None else journal.head

    def _visible(self, key: Key, now: int) -> Head | None:
        return decide.visible(self._stored(key, now), now)

    def _set(self, head: Head) -> _Journal:
        journal = self._journals.get(head.key)
        if journal is None:
            journal = self._journals[head.key] = _Journal(head)
        journal.head = head
        return journal

    def _leased(self, head: Head) -> Lease:
        self._set(head)
        assert head.lease is not None  # noqa: S101 - it has just been taken
        return head.lease


def _now() -> int:
    return time.time_ns() // 1000
