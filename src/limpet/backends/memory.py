"""``memory:``, a store that ends with its process; the contract in its plainest reading."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Self

from limpet.backends.contract import (
    UNSET,
    Append,
    Appended,
    Backend,
    Fact,
    Head,
    Key,
    Lease,
    Origin,
    Page,
    Record,
    conflict,
    fenced,
    held,
    micros,
    next_epoch,
)
from limpet.errors import InvalidURL

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MemoryBackend"]


class _Journal:
    """One journal's state."""

    def __init__(self, now: int) -> None:
        self.records: list[Record] = []
        self.ids: dict[str, Record] = {}
        self.seq = 0
        self.floor = 0
        self.created = now
        self.updated = now
        self.ttl: int | None = None
        self.expires: int | None = None
        self.status: str | None = None
        self.labels: dict[str, str] = {}
        self.lease: Lease | None = None

    def begin(self, origin: Origin) -> None:
        self.created = self.updated = origin.created
        self.seq = self.floor = origin.floor

    def change(self, request: Append, now: int) -> None:
        if request.status is not UNSET:
            self.status = request.status
        if request.labels is not UNSET:
            merged = {**self.labels, **request.labels}
            self.labels = {name: value for name, value in merged.items() if value is not None}
        if request.ttl is not UNSET:
            self.ttl = None if request.ttl is None else micros(request.ttl)
        elif not self.seq:
            self.ttl = None if request.default_ttl is None else micros(request.default_ttl)
        if request.count or request.ttl is not UNSET:
            self.expires = None if self.ttl is None else now + self.ttl

    def head(self, key: Key, now: int) -> Head:
        return Head(
            key=key,
            seq=self.seq,
            floor=self.floor,
            size=sum(len(record.body) for record in self.records),
            created=self.created,
            updated=self.updated,
            ttl=self.ttl,
            expires=self.expires,
            status=self.status,
            labels=dict(self.labels),
            lease=self.lease if _leased(self, now) else None,
        )


class MemoryBackend(Backend):
    """Journals in a dict, one lock around all of it."""

    blocks: ClassVar[bool] = False

    def __init__(self, url: str = "memory:") -> None:
        super().__init__(url)
        self._lock = threading.Lock()
        self._journals: dict[Key, _Journal] = {}

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        if url != "memory:" or options:
            msg = "Each memory: store is new and its own, so its URL ends there; it has no options."
            raise InvalidURL(msg)
        return cls()

    def append(self, request: Append) -> Appended:
        self._check_open()
        with self._lock:
            now = _now()
            journal = self._live(request.key, now)
            if journal and request.id is not None and request.id in journal.ids:
                first = journal.ids[request.id]
                return Appended(first.seq, first.at, repeated=True)
            self._check(request, journal)
            if journal is None:
                if not request.count:
                    return Appended(0, now)
                journal = self._journals[request.key] = _Journal(now)
            at = now if request.origin is None else request.origin.at
            journal.change(request, at)
            if request.origin and request.count and not journal.seq:
                journal.begin(request.origin)
            if request.count:
                _add(journal, request, max(at, journal.updated))
            return Appended(journal.seq, journal.updated)

    @staticmethod
    def _check(request: Append, journal: _Journal | None) -> None:
        if request.epoch is not None:
            lease = journal.lease if journal else None
            if lease is None or lease.epoch != request.epoch:
                raise fenced(request.key)
        seq = journal.seq if journal else 0
        if request.expect is not None and request.expect != seq:
            raise conflict(request, seq)

    def read(
        self,
        key: Key,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
    ) -> list[Record]:
        self._check_open()
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
        self._check_open()
        with self._lock:
            now = _now()
            journal = self._live(key, now)
            return journal.head(key, now) if journal and journal.seq else None

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
        self._check_open()
        wanted = dict(labels or {}).items()
        with self._lock:
            now = _now()
            heads = [
                journal.head(key, now)
                for key in sorted(self._journals, key=lambda key: key.id.encode())
                if key[:2] == (tenant, kind)
                and key.id.startswith(prefix)
                and (cursor is None or key.id.encode() > cursor.encode())
                and (journal := self._live(key, now)) is not None
                and journal.seq
                and (status is None or journal.status == status)
                and wanted <= journal.labels.items()
            ]
        more = len(heads) > limit
        return Page(heads[:limit], heads[limit - 1].key.id if more else None)

    def kinds(self) -> list[tuple[str, str]]:
        self._check_open()
        with self._lock:
            now = _now()
            found = {
                (key.tenant, key.kind)
                for key in list(self._journals)
                if (journal := self._live(key, now)) is not None and journal.seq
            }
        return sorted(found)

    def delete(self, key: Key) -> bool:
        self._check_open()
        with self._lock:
            was_there = self._live(key, _now())
            self._journals.pop(key, None)
            return was_there is not None and was_there.seq > 0

    def compact(self, key: Key, before: int) -> int:
        self._check_open()
        with self._lock:
            journal = self._live(key, _now())
            if journal is None:
                return 0
            gone = [record for record in journal.records if record.seq < before]
            if gone:
                journal.records = journal.records[len(gone) :]
                journal.floor = gone[-1].seq
                journal.ids = {k: r for k, r in journal.ids.items() if r.seq >= before}
            return sum(record.count for record in gone)

    def scrub(self) -> bool:
        return True  # what is deleted or compacted is nowhere any more

    def sweep(self, limit: int = 1000) -> int:
        self._check_open()
        with self._lock:
            now = _now()
            gone = [
                key
                for key, journal in self._journals.items()
                if _expired(journal, now) or not (journal.seq or _leased(journal, now))
            ]
            for key in gone[:limit]:
                del self._journals[key]
            return len(gone[:limit])

    def acquire(self, key: Key, holder: str, ttl: float, *, over: int | None = None) -> Lease:
        self._check_open()
        with self._lock:
            now = _now()
            journal = self._live(key, now)
            if journal is None:
                journal = self._journals[key] = _Journal(now)
            last = journal.lease
            if last and last.until > now and last.epoch != over:
                raise held(key, last)
            epoch = next_epoch(last.epoch if last else 0, now)
            journal.lease = Lease(holder, epoch, now + micros(ttl))
            return journal.lease

    def renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        self._check_open()
        with self._lock:
            now = _now()
            journal = self._live(key, now)
            if journal is None or journal.lease is None or journal.lease.epoch != lease.epoch:
                raise fenced(key)
            journal.lease = Lease(lease.holder, lease.epoch, now + micros(ttl))
            return journal.lease

    def release(self, key: Key, lease: Lease) -> None:
        self._check_open()
        with self._lock:
            now = _now()
            journal = self._live(key, now)
            if journal and journal.lease and journal.lease.epoch == lease.epoch:
                journal.lease = Lease(lease.holder, lease.epoch, now)

    def facts(self, *, deep: bool = False) -> list[Fact]:  # noqa: ARG002 - nothing deeper to check
        return [
            Fact("engine", "memory"),
            Fact("durability", "none: it ends with this process", ok=False, advice="Use a file."),
            Fact("journals", str(len(self._journals))),
        ]

    def _close(self) -> None:
        self._journals.clear()

    def _live(self, key: Key, now: int) -> _Journal | None:
        journal = self._journals.get(key)
        if journal is not None and _expired(journal, now):
            del self._journals[key]
            return None
        return journal


def _add(journal: _Journal, request: Append, now: int) -> None:
    seq = journal.seq + request.count
    record = Record(seq, request.count, now, request.body, request.id)
    journal.records.append(record)
    journal.seq = record.seq
    journal.updated = now
    if request.id is not None:
        journal.ids[request.id] = record


def _expired(journal: _Journal, now: int) -> bool:
    return journal.expires is not None and journal.expires <= now and not _leased(journal, now)


def _leased(journal: _Journal, now: int) -> bool:
    return journal.lease is not None and journal.lease.until > now


def _now() -> int:
    return time.time_ns() // 1000
