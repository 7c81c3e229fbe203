"""Journals of entries: what every model stands on.

A journal is an ordered run of entries under one key. This module turns entries into the records
that backends store, and back; it gives them no meaning.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import MsgspecError, Struct, structs

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
from limpet.errors import IdReused, NotStorable, StoreCorrupt, StoreError, TooLarge, Unreadable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from limpet.core.codec import Codec, Run
    from limpet.core.redaction import Redactor
    from limpet.core.runtime import Runtime

__all__ = ["MALFORMED", "AsyncJournal", "Entry", "Journal", "listed_fields"]

E = TypeVar("E")
R = TypeVar("R")
T = TypeVar("T")

#: Entries to a record, where an append stores several: whoever wants the newest entries reads no
#: more than that. And so many records at the most.
PORTION = 16
MOST_PORTIONS = 256

#: How often to look when there seem to be gaps: somebody may have compacted it, or begun it anew.
LOOKS = 3

#: Behind every number.
END = 1 << 62

#: What comes of reading an entry that is not what we write: a number may be too large for a time.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError, MsgspecError)

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


def _gap(
    records: Sequence[Record], after: int, upto: int | None, *, full: bool, reverse: bool
) -> tuple[int, int] | None:
    """The first and last number that may be missing in a page of *records*, oldest first.

    They were asked for from *after* to *upto*. A *full* page may end before, at its far side.
    """
    last = after
    if records and (not reverse or not full):
        last = records[0].seq - records[0].count
        if last > after:
            return after + 1, last
    for number, record in enumerate(records):
        begin = record.seq - record.count
        if begin != last and number:
            return min(last, begin) + 1, max(last, begin)
        last = record.seq
    if upto is not None and last < upto and (reverse or not full):
        return last + 1, upto
    return None


class AsyncJournal:
    """An append-only run of entries under one key.

    *labels* and *ttl* go with every append; *default_ttl* is that of a journal which begins. The
    *redactor* sees every value before it is encoded.
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
        redactor: Redactor | None = None,
    ) -> None:
        self.key = key
        self.runtime = runtime
        self.codec = codec
        self._redactor = redactor
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
        if len(entries) <= PORTION:
            return await self._send(self.request(entries, **conditions))
        entries = self._redacted(entries)
        earlier, last = self._portions(entries, self.codec.encode)
        request = self.request(last, body=self.encode(last), **conditions)
        return await self._send(structs.replace(request, earlier=earlier))

    async def add(
        self, kind: str, values: Sequence[Any], *, id: str | None, expect: int | None
    ) -> int:
        """`append` for values that are all of one kind, at the least cost: what is written most."""
        if id is not None:
            check_id(id, "append id")
        encode = self.codec.encode_run
        if self._redactor is not None:
            values = [self.redacted(value) for value in values]
        earlier: Sequence[tuple[int, bytes]] = ()
        if len(values) > PORTION:
            earlier, values = self._portions(values, lambda portion: encode([kind, *portion]))
        request = Append(
            key=self.key,
            body=encode([kind, *values]),
            count=len(values),
            earlier=earlier,
            id=id,
            expect=None if expect is None else Expect(None, expect),
            labels=self.labels,
            ttl=self.ttl,
            default_ttl=self._default_ttl,
        )
        done = await self.runtime.append(request)
        if done.repeated:
            await self._check_repeated(request, done)
        return done.seq

    def _portions(
        self, entries: Sequence[E], encode: Callable[[Sequence[E]], bytes]
    ) -> tuple[list[tuple[int, bytes]], Sequence[E]]:
        """The records of many *entries*, but the last one, of which there are the entries."""
        if not self.runtime.backend.splits:
            return [], entries
        size = max(PORTION, -(-len(entries) // MOST_PORTIONS))
        portions = [entries[start : start + size] for start in range(0, len(entries), size)]
        try:
            bodies = [encode(portion) for portion in portions]
        except (NotStorable, TooLarge):
            encode(entries)  # to say where it is, among all of them
            raise
        if sum(map(len, bodies)) > self.codec.max_bytes:
            encode(entries)  # which is refused, for all of it
        return list(zip(map(len, portions[:-1]), bodies, strict=False)), portions[-1]

    async def _send(self, request: Append) -> Appended:
        """Have it appended; `IdReused` if other content was stored under the same id before."""
        done = await self.runtime.append(request)
        if done.repeated:
            await self._check_repeated(request, done)
        return done

    async def _check_repeated(self, request: Append, done: Appended) -> None:
        bodies = [*(body for _, body in request.earlier), request.body]
        wanted = [entry for body in bodies for entry in self.codec.decode(body)]
        found = await self.read(after=done.seq - len(wanted), upto=done.seq)
        # It may have been stored before anything was redacted.
        if self._redacted([(entry.type, entry.body) for entry in found]) != wanted:
            msg = (
                f"The id {request.id!r} was used at {done.seq} of {self.key.kind} "
                f"{self.key.id!r} for other content, and nothing was written. Give new content "
                "a new id."
            )
            raise IdReused(msg, actual=done.seq)

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

        *body* is what `encode` made of the entries, for whoever had to know its size; then they
        are `redacted` already.
        """
        if id is not None:
            check_id(id, "append id")
        labels = self.labels if labels is UNSET else check_labels(labels)
        if body is None:
            body = self.encode(self._redacted(entries))
        if self._redactor is not None and isinstance(meta, bytes):
            meta = self._redactor.meta(meta)
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
        """What *entries* are stored as, which are `redacted` already; see `Codec.encode`."""
        return self.codec.encode(entries, compress_over) if entries else b""

    def redacted(self, value: T) -> T:
        """*value*, of an entry, without what the store is not to have: itself, if it has none."""
        if self._redactor is None:
            return value
        return self._redactor.entry(self.key.kind, value)  # type: ignore[no-any-return]

    def _redacted(self, entries: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
        if self._redactor is None:
            return entries
        return [(kind, self.redacted(value)) for kind, value in entries]

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

    async def delete(self, *, expect: Expect | None = None) -> bool:
        """Remove all of it. False if it did not exist. See `Backend.delete`."""
        return await self.runtime.call(self.runtime.backend.delete, self.key, expect=expect)

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
        to_end = upto is None

        async def pull() -> list[Entry] | None:
            nonlocal low, high, more
            records = []
            if more:
                records = await self.page(after=low, upto=high, limit=size, reverse=reverse)
                more = len(records) == size
                if to_end and reverse and high is None:
                    await self.check_end(records[0].seq if records else low)
                elif to_end and not reverse and not more:
                    more = await self.check_end(records[-1].seq if records else low)
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
        self,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = PAGE,
        reverse: bool = False,
        gaps: bool = False,
    ) -> list[Record]:
        """One page of records as they are stored; see `Backend.read`.

        `StoreCorrupt`, if there should be others between them; unless the caller sees to *gaps*.
        """
        looks = 0
        while True:
            records = await self.runtime.call(
                self.runtime.backend.read,
                self.key,
                after=after,
                upto=upto,
                limit=limit,
                reverse=reverse,
            )
            ordered, full = records[::-1] if reverse else records, len(records) == limit
            gap = None if gaps else _gap(ordered, after, upto, full=full, reverse=reverse)
            missing = None if gap is None else await self._missing(*gap)
            if missing is None:
                return records
            looks += 1
            if looks == LOOKS:
                raise self._corrupt(*missing)

    async def _missing(self, first: int, last: int) -> tuple[int, int] | None:
        """Of the entries *first* to *last*, which were not there, those that should be."""
        head = await self.head()
        if head is None:
            return None
        first, last = max(first, head.first), min(last, head.seq)
        if first > last:
            return None  # they were compacted away, or are not written yet
        taken = await self.runtime.call(self.runtime.backend.lost, self.key)
        if any(begin <= first and last <= end for begin, end in taken):
            return None  # a repair took them out, and recorded that
        return first, last

    async def check_end(self, end: int) -> bool:
        """Whether there are entries behind *end*, where the last record ended that was read.

        They may have come since. `StoreCorrupt` if they should be there, and are not.
        """
        missing = await self._missing(end + 1, END)
        if missing is None:
            return False
        if not await self.page(after=end, limit=1) and await self._missing(*missing) is not None:
            raise self._corrupt(*missing)
        return True

    def _corrupt(self, first: int, last: int) -> StoreCorrupt:
        url, kind, id_ = self.runtime.backend.url, self.key.kind, self.key.id
        what = f"Entry {first}" if first == last else f"Entries {first} to {last}"
        return StoreCorrupt(
            f"{what} of {kind} {id_!r} should be in {url}, and {'is' if first == last else 'are'} "
            "not there: the storage has lost them, or somebody has removed them by hand. Nothing "
            "was changed. `limpet doctor` finds all such places. Go back to a backup (`limpet "
            "restore BACKUP --replace`), write what is left to a new store (`limpet salvage FROM "
            f"NEW`), or delete this {kind} if you can do without it."
        )

    def entries(self, record: Record) -> list[Entry]:
        """What a record holds."""
        return list(self._entries(record))

    def _entries(self, record: Record) -> Iterator[Entry]:
        at = from_micros(record.at)
        first = record.seq - record.count + 1
        for seq, (kind, value) in enumerate(self.pairs(record), first):
            yield Entry(seq, at, kind, value)

    def pairs(self, record: Record) -> list[tuple[str, Any]]:
        """Type and value of each entry in a *record*, which are as many as it says."""
        entries = self.decode(record.seq, record.body)
        if len(entries) != record.count:
            why = (
                f"It should be {record.count} entries in one record, and there are {len(entries)}."
            )
            raise self.unreadable(record.seq, why)
        return entries

    def decode(self, seq: int, body: bytes) -> list[tuple[str, Any]]:
        """Type and value of each entry in a record; `Unreadable` says which one it was."""
        try:
            return self.codec.decode(body)
        except StoreError:  # it is encrypted, and nobody has given us the key
            raise
        except Unreadable as error:
            raise self.unreadable(seq, str(error)) from error

    def understand(self, entry: Entry, how: Callable[[Entry], R]) -> R:
        """What *how* makes of an *entry*; `Unreadable` if it cannot: it is not what we write."""
        try:
            return how(entry)
        except MALFORMED as error:
            why = f"it is not what is stored as {entry.type!r} ({type(error).__name__}: {error})."
            raise self.unreadable(entry.seq, why) from error

    def unreadable(self, seq: int, why: str) -> Unreadable:
        """The error for an entry that is not what can be stored under its type."""
        return Unreadable(
            f"Entry {seq} of {self.key.kind} {self.key.id!r} cannot be read: {why} "
            "`limpet doctor` finds all such entries."
        )

    async def gather(self, kind: str, found: list[Any], other: Callable[[Run], object]) -> None:
        """Add the values of all entries of one *kind* to *found*: no cost of an `Entry` each.

        *other* is given the others in their order, as runs [type, value, value, …] of its own.
        """
        after, more = 0, True
        while more:
            page = await self.runtime.call(
                self.runtime.backend.bodies, self.key, after=after, limit=PAGE
            )
            last = page[-1][0] if page else after
            with self._saying_which(page):
                count = self.codec.gather([body for _, body in page], kind, found, other)
            if count != last - after:  # then some are missing, or were compacted away
                async for _ in self.pages(after=after, upto=last):
                    pass
            after, more = last, len(page) == PAGE or await self.check_end(last)

    def runs(self, page: list[tuple[int, bytes]]) -> list[Run]:
        """What the records of a *page*, given by number and body, hold; run by run."""
        with self._saying_which(page):
            return self.codec.runs([body for _, body in page])

    @contextmanager
    def _saying_which(self, page: list[tuple[int, bytes]]) -> Iterator[None]:
        """Where the records of a *page* cannot be read, raise an error that says which it is."""
        try:
            yield
        except Unreadable:
            for seq, body in page:
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
