"""Journals of entries: what every model stands on.

A journal is an ordered run of entries under one key. This module turns entries into the records
that backends store, and back; it gives them no meaning.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.backends.contract import (
    UNSET,
    Append,
    Appended,
    Expect,
    Head,
    Key,
    Lease,
    Record,
    UnsetType,
    from_micros,
)
from limpet.core.ids import check_id, check_labels, check_ttl
from limpet.core.runtime import Pages, SyncWrapper, sync, sync_iter
from limpet.errors import IdReused, Unreadable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from limpet.core.codec import Codec, Run
    from limpet.core.runtime import Runtime

__all__ = ["AsyncJournal", "Entry", "Journal", "listed_fields"]

#: Records a call to the backend: enough to be quick, few enough to be held at once.
PAGE = 1000


class Entry(Struct, frozen=True):
    """One change: its number, when it was stored, what kind of change, and its value."""

    seq: int
    at: datetime
    type: str
    body: Any


def listed_fields(head: Head) -> dict[str, Any]:
    """What every model shows of its journal's *head* in a list."""
    return {
        "id": head.key.id,
        "position": head.seq,
        "size": head.size,
        "created_at": from_micros(head.created),
        "updated_at": from_micros(head.updated),
        "expires_at": head.expires_at,
        "labels": head.labels,
    }


class AsyncJournal:
    """An append-only run of entries under one key.

    *labels* and *ttl* go with every append; *default_ttl* is that of a journal which begins.
    """

    def __init__(
        self,
        runtime: Runtime,
        codec: Codec,
        key: Key,
        *,
        labels: Mapping[str, str | None] | UnsetType = UNSET,
        ttl: float | UnsetType | None = UNSET,
        default_ttl: float | None = None,
    ) -> None:
        self.key = key
        self.runtime = runtime
        self.codec = codec
        self.labels = labels if labels is UNSET else check_labels(labels)
        self.ttl = check_ttl(ttl)
        self._default_ttl = default_ttl

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key.kind!r}, {self.key.id!r})"

    # -- writing -----------------------------------------------------------------------------

    async def append(
        self,
        *entries: tuple[str, Any],
        id: str | None = None,
        expect: Expect | int | None = None,
        lease: Lease | None = None,
        status: str | UnsetType | None = UNSET,
        labels: Mapping[str, str | None] | UnsetType = UNSET,
        meta: bytes | UnsetType | None = UNSET,
        ttl: float | UnsetType | None = UNSET,
    ) -> int:
        """Add *entries*, pairs of type and value, all or none; the number of the last one.

        Durable on return. An *id* makes a repeated append a no-op that returns the first one's
        number; `IdReused` if its content is another. *expect* is where the journal is (a number,
        or a head's ``expect``), or `Conflict` is raised; *lease* must be the newest, or
        `LeaseLost`.
        """
        done = await self.write(
            entries,
            id=id,
            expect=expect,
            lease=lease,
            status=status,
            labels=labels,
            meta=meta,
            ttl=ttl,
        )
        return done.seq

    async def write(self, entries: Sequence[tuple[str, Any]], **conditions: Any) -> Appended:
        """`append`, with all that the backend says of it; *conditions* are those of `request`."""
        request = self.request(entries, **conditions)
        done = await self.runtime.append(request)
        if done.repeated:
            records = await self.page(after=done.seq - 1, upto=done.seq)
            decode = self.codec.decode
            if records and decode(records[0].body) != decode(request.body):
                msg = (
                    f"The id {request.id!r} was used at {done.seq} of {self.key.kind} "
                    f"{self.key.id!r} for other content, and nothing was written. Give new content "
                    "a new id."
                )
                raise IdReused(msg, actual=done.seq)
        return done

    def request(
        self,
        entries: Sequence[tuple[str, Any]],
        *,
        id: str | None = None,
        expect: Expect | int | None = None,
        lease: Lease | None = None,
        status: str | UnsetType | None = UNSET,
        labels: Mapping[str, str | None] | UnsetType = UNSET,
        meta: bytes | UnsetType | None = UNSET,
        ttl: float | UnsetType | None = UNSET,
        body: bytes | None = None,
    ) -> Append:
        """What `write` asks of the backend.

        *body* is what `encode` made of the entries, for whoever had to know its size.
        """
        if id is not None:
            check_id(id, "append id")
        labels = self.labels if labels is UNSET else check_labels(labels)
        if body is None:
            body = self.codec.encode(entries) if entries else b""
        return Append(
            key=self.key,
            body=body,
            count=len(entries),
            id=id,
            expect=Expect(None, expect) if isinstance(expect, int) else expect,
            epoch=None if lease is None else lease.epoch,
            status=status,
            labels=labels,
            meta=meta,
            ttl=self.ttl if ttl is UNSET else check_ttl(ttl),
            default_ttl=self._default_ttl,
        )

    def encode(self, entries: Sequence[tuple[str, Any]], compress_over: int | None = None) -> bytes:
        """What *entries* are stored as; see `Codec.encode`."""
        return self.codec.encode(entries, compress_over) if entries else b""

    async def label(self, labels: Mapping[str, str | None]) -> bool:
        """Set labels, now and with every append; None removes one. False if there is no journal."""
        changed = await self.append(labels=labels)
        if self.labels is not UNSET:
            self.labels = {**self.labels, **labels}
        return changed > 0

    async def expire(self, ttl: float | None) -> bool:
        """Set the time to live, now and with every append. False if there is no journal."""
        changed = await self.append(ttl=ttl)
        self.ttl = ttl
        return changed > 0

    async def delete(self) -> bool:
        """Remove all of it. False if it did not exist."""
        return await self.runtime.call(self.runtime.backend.delete, self.key)

    async def compact(self, before: int) -> int:
        """Drop records that end before entry *before*; returns how many entries went."""
        return await self.runtime.call(self.runtime.backend.compact, self.key, before)

    # -- reading -----------------------------------------------------------------------------

    async def head(self) -> Head | None:
        """Where the journal stands, or None if it does not exist."""
        return await self.runtime.call(self.runtime.backend.head, self.key)

    async def read(
        self,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[Entry]:
        """The entries numbered over *after*, up to and with *upto*, oldest first or *reverse*."""
        found: list[Entry] = []
        async for page in self.pages(after=after, upto=upto, reverse=reverse, size=limit or PAGE):
            found += page
            if limit is not None and len(found) >= limit:
                return found[:limit]
        return found

    def pages(
        self,
        *,
        after: int = 0,
        upto: int | None = None,
        reverse: bool = False,
        size: int = PAGE,
    ) -> AsyncIterator[list[Entry]]:
        """The same in pages of about *size* entries, each read when it is asked for."""
        low, high, more = after, upto, True
        size = min(max(size, 1), PAGE)

        async def pull() -> list[Entry] | None:
            nonlocal low, high, more
            records = []
            if more:
                records = await self.page(after=low, upto=high, limit=size, reverse=reverse)
                more = len(records) == size
            if not records:
                return None
            if reverse:
                high = records[-1].seq - records[-1].count
                records.reverse()
            else:
                low = records[-1].seq
            entries = [
                entry
                for record in records
                for entry in self._entries(record)
                if entry.seq > after and (upto is None or entry.seq <= upto)
            ]
            return entries[::-1] if reverse else entries

        return Pages(pull)

    async def page(
        self, *, after: int = 0, upto: int | None = None, limit: int = PAGE, reverse: bool = False
    ) -> list[Record]:
        """One page of records as they are stored; see `Backend.read`."""
        return await self.runtime.call(
            self.runtime.backend.read,
            self.key,
            after=after,
            upto=upto,
            limit=limit,
            reverse=reverse,
        )

    def entries(self, record: Record) -> list[Entry]:
        """What a record holds."""
        if record.count == 1:
            ((kind, value),) = self.decode(record.seq, record.body)
            return [Entry(record.seq, from_micros(record.at), kind, value)]
        return list(self._entries(record))

    def _entries(self, record: Record) -> Iterator[Entry]:
        at = from_micros(record.at)
        first = record.seq - record.count + 1
        for seq, (kind, value) in enumerate(self.decode(record.seq, record.body), first):
            yield Entry(seq, at, kind, value)

    def decode(self, seq: int, body: bytes) -> list[tuple[str, Any]]:
        """Type and value of each entry in a record; `Unreadable` says which one it was."""
        try:
            return self.codec.decode(body)
        except Unreadable as error:
            msg = (
                f"Entry {seq} of {self.key.kind} {self.key.id!r} cannot be read: {error} "
                "`limpet doctor` finds all such entries."
            )
            raise Unreadable(msg) from error

    def all_runs(self) -> AsyncIterator[list[Run]]:
        """Everything, as runs [type, value, value, …] in pages: no cost of an `Entry` each.

        The lists are the caller's own.
        """
        after, more = 0, True

        async def pull() -> list[Run] | None:
            nonlocal after, more
            if not more:
                return None
            page = await self.runtime.call(
                self.runtime.backend.bodies, self.key, after=after, limit=PAGE
            )
            more = len(page) == PAGE
            after = page[-1][0] if page else after
            return self.runs(page)

        return Pages(pull)

    def runs(self, page: list[tuple[int, bytes]]) -> list[Run]:
        """What the records of a *page*, given by number and body, hold; run by run."""
        try:
            return self.codec.runs([body for _, body in page])
        except Unreadable:
            for seq, body in page:  # slowly now, to find out which it is
                self.decode(seq, body)
            raise


class Journal(SyncWrapper[AsyncJournal]):
    """An append-only run of entries under one key.

    >>> import limpet
    >>> with limpet.open("memory:") as store:
    ...     journal = store.journal("note", "todo")
    ...     journal.append(("added", "water the plants"), ("added", "call home"))
    ...     [entry.body for entry in journal.read()]
    2
    ['water the plants', 'call home']
    """

    @property
    def key(self) -> Key:
        """Tenant, kind and id."""
        return self._core.key

    append = sync(AsyncJournal.append)
    read = sync(AsyncJournal.read)
    pages = sync_iter(AsyncJournal.pages)
    head = sync(AsyncJournal.head)
    label = sync(AsyncJournal.label)
    expire = sync(AsyncJournal.expire)
    delete = sync(AsyncJournal.delete)
    compact = sync(AsyncJournal.compact)
