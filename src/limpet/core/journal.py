"""Journals of entries: what every noun stands on.

A journal is an ordered run of entries under one key. This module turns entries into the records
that backends store, and back; it holds no meaning of its own.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from limpet.backends.contract import UNSET, Append, Head, Key, Lease, Record, UnsetType, from_micros
from limpet.core.ids import check_id, check_labels, check_ttl
from limpet.core.runtime import Face, Pulled, blocking, blocking_iter
from limpet.errors import IdReused, Unreadable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from limpet.core.codec import Codec, Run
    from limpet.core.runtime import Port
    from limpet.errors import NotFound

__all__ = ["AsyncJournal", "Entry", "Journal", "Lasting", "about"]

#: Records a call to the backend: enough to be quick, few enough to be held at once.
PAGE = 1000


class Entry(Struct, frozen=True):
    """One change: its number, when it was stored, what kind of change, and its value."""

    seq: int
    at: datetime
    type: str
    body: Any


def about(head: Head) -> dict[str, Any]:
    """What every noun shows of its journal's *head* in a list."""
    return {
        "id": head.key.id,
        "position": head.seq,
        "size": head.size,
        "created_at": from_micros(head.created),
        "updated_at": from_micros(head.updated),
        "labels": head.labels,
    }


class AsyncJournal:
    """An append-only run of entries under one key."""

    def __init__(
        self, port: Port, codec: Codec, key: Key, default_ttl: float | None = None
    ) -> None:
        self.key = key
        self._default_ttl = default_ttl
        self._port = port
        self._codec = codec

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key.kind!r}, {self.key.id!r})"

    async def append(
        self,
        *entries: tuple[str, Any],
        id: str | None = None,
        expect: int | None = None,
        lease: Lease | None = None,
        status: str | UnsetType | None = UNSET,
        labels: Mapping[str, str | None] | UnsetType = UNSET,
        ttl: float | UnsetType | None = UNSET,
    ) -> int:
        """Add *entries*, pairs of type and value, all or none; the number of the last one.

        Durable on return. An *id* makes a repeated append a no-op that returns the first one's
        number; `IdReused` if its content is another. *expect* is the head's number, or `Conflict`
        is raised; *lease* must be the newest, or `Fenced`.
        """
        record = await self.write(
            entries, id=id, expect=expect, lease=lease, status=status, labels=labels, ttl=ttl
        )
        return record.seq

    async def record(self, *entries: tuple[str, Any], **conditions: Any) -> list[Entry]:
        """`append`, returning the entries as every reader will see them."""
        return self.entries(await self.write(entries, **conditions))

    async def write(
        self,
        entries: Sequence[tuple[str, Any]],
        *,
        id: str | None = None,
        expect: int | None = None,
        lease: Lease | None = None,
        status: str | UnsetType | None = UNSET,
        labels: Mapping[str, str | None] | UnsetType = UNSET,
        ttl: float | UnsetType | None = UNSET,
        body: bytes | None = None,
    ) -> Record:
        """`append`, returning the record: for nouns, which are in a hurry.

        *body* is what `encode` made of the entries, for whoever had to know its size.
        """
        request = self.request(
            entries,
            id=id,
            expect=expect,
            lease=lease,
            status=status,
            labels=labels,
            ttl=ttl,
            body=body,
        )
        done = await self._port.append(request)
        if done.repeated:
            await self._check_same(request, done.seq)
        return Record(done.seq, len(entries), done.at, request.body)

    def request(
        self,
        entries: Sequence[tuple[str, Any]],
        *,
        id: str | None = None,
        expect: int | None = None,
        lease: Lease | None = None,
        status: str | UnsetType | None = UNSET,
        labels: Mapping[str, str | None] | UnsetType = UNSET,
        ttl: float | UnsetType | None = UNSET,
        body: bytes | None = None,
    ) -> Append:
        """What `write` asks of the backend."""
        if id is not None:
            check_id(id, "append id")
        if labels is not UNSET:
            labels = check_labels(labels)
        return Append(
            key=self.key,
            body=self.encode(entries) if body is None else body,
            count=len(entries),
            id=id,
            expect=expect,
            epoch=None if lease is None else lease.epoch,
            status=status,
            labels=labels,
            ttl=check_ttl(ttl),
            default_ttl=self._default_ttl,
        )

    def encode(self, entries: Sequence[tuple[str, Any]], over: int | None = None) -> bytes:
        """What *entries* are stored as; see `Codec.encode`."""
        return self._codec.encode(entries, over) if entries else b""

    async def _check_same(self, request: Append, seq: int) -> None:
        records = await self.page(after=seq - 1, upto=seq)
        decode = self._codec.decode
        if records and decode(records[0].body) != decode(request.body):
            msg = (
                f"The id {request.id!r} was used at {seq} of {self.key.kind} {self.key.id!r} for "
                "other content, and nothing was written. Give new content a new id."
            )
            raise IdReused(msg, actual=seq)

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

        return Pulled(pull)

    async def page(
        self, *, after: int = 0, upto: int | None = None, limit: int = PAGE, reverse: bool = False
    ) -> list[Record]:
        """One page of records as they are stored; see `Backend.read`."""
        return await self._port.call(
            self._port.backend.read, self.key, after=after, upto=upto, limit=limit, reverse=reverse
        )

    def entries(self, record: Record) -> list[Entry]:
        """What a record holds."""
        if record.count == 1:
            ((kind, value),) = self._decode(record.seq, record.body)
            return [Entry(record.seq, from_micros(record.at), kind, value)]
        return list(self._entries(record))

    def _entries(self, record: Record) -> Iterator[Entry]:
        at = from_micros(record.at)
        first = record.seq - record.count + 1
        for seq, (kind, value) in enumerate(self._decode(record.seq, record.body), first):
            yield Entry(seq, at, kind, value)

    def _decode(self, seq: int, body: bytes) -> list[tuple[str, Any]]:
        try:
            return self._codec.decode(body)
        except Unreadable as error:
            msg = (
                f"Entry {seq} of {self.key.kind} {self.key.id!r} cannot be read: {error} "
                "`limpet doctor` finds all such entries."
            )
            raise Unreadable(msg) from error

    def runs(self) -> AsyncIterator[list[Run]]:
        """Everything, as runs [type, value, value, …] in pages: no cost of an `Entry` each.

        The lists are the caller's own.
        """
        after, more = 0, True

        async def pull() -> list[Run] | None:
            nonlocal after, more
            if not more:
                return None
            page = await self._port.call(
                self._port.backend.bodies, self.key, after=after, limit=PAGE
            )
            more = len(page) == PAGE
            after = page[-1][0] if page else after
            return self._runs(page)

        return Pulled(pull)

    def _runs(self, page: list[tuple[int, bytes]]) -> list[Run]:
        try:
            return self._codec.runs([body for _, body in page])
        except Unreadable:
            for seq, body in page:  # slowly now, to find out which it is
                self._decode(seq, body)
            raise

    async def head(self) -> Head | None:
        """Where the journal stands, or None if it is not there."""
        return await self._port.call(self._port.backend.head, self.key)

    async def delete(self) -> bool:
        """Remove all of it. False if it was not there."""
        return await self._port.call(self._port.backend.delete, self.key)

    async def compact(self, before: int) -> int:
        """Drop records that end before entry *before*; returns how many entries went."""
        return await self._port.call(self._port.backend.compact, self.key, before)


class _Writer(Protocol):
    """Gives labels and a time to live to all that it appends."""

    labels: Mapping[str, str | None] | UnsetType
    ttl: float | UnsetType | None


class Lasting:
    """A noun whose journal has labels and a time to live, to be changed at any time."""

    _journal: AsyncJournal
    _writer: _Writer

    async def label(self, /, **labels: str | None) -> None:
        """Set labels; None removes one. They are what the store's lists find by."""
        await self._change(labels=labels)
        if self._writer.labels is not UNSET:
            self._writer.labels = {**self._writer.labels, **labels}

    async def expire(self, ttl: float | None) -> None:
        """Let it end *ttl* seconds after it was last added to, from now on; None: never."""
        await self._change(ttl=check_ttl(ttl))
        self._writer.ttl = ttl

    async def _change(self, **changes: Any) -> None:
        if not await self._journal.append(**changes):
            raise self._not_found()

    def _not_found(self) -> NotFound:
        """The error for one that is not there."""
        raise NotImplementedError


class Journal(Face[AsyncJournal]):
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

    append = blocking(AsyncJournal.append)
    read = blocking(AsyncJournal.read)
    pages = blocking_iter(AsyncJournal.pages)
    head = blocking(AsyncJournal.head)
    delete = blocking(AsyncJournal.delete)
    compact = blocking(AsyncJournal.compact)
