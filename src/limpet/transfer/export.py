"""Conversations as files: all there is of them, or only their messages.

    with limpet.open("agents.db") as store:
        for line in transfer.lines(store, ["alice"]):
            print(json.dumps(line))

A whole export has every entry with its number and time, labels, what the head remembers and the
ids of appends: imported elsewhere it is the same conversation, and an agent that retries an append
there adds nothing twice. It goes through a store in memory and `copying`, so that an import is
checked like a copy: it may be cut short and taken up again, and overwrites nothing.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

import limpet
from limpet.backends.contract import Append, Expect, Origin, from_micros, to_micros
from limpet.conversations import conversation
from limpet.conversations.repair import RecordedRepair
from limpet.conversations.transcript import (
    COPIED,
    MESSAGE,
    REPAIRED,
    SHORTENED,
    SUMMARY,
    ConversationMeta,
    Messages,
)
from limpet.core.ids import MAX_SECONDS, check_id, check_labels, make_key
from limpet.errors import (
    Conflict,
    ConversationNotFound,
    InvalidId,
    LimpetError,
    NotImportable,
    StoreCorrupt,
)
from limpet.store import as_async
from limpet.transfer import copy as copying

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from limpet.backends.contract import Backend, Head, Key
    from limpet.store import Store
    from limpet.transfer.copy import Copied

__all__ = ["document", "heads", "is_export", "lines", "messages_lines", "put"]

VERSION = 1
#: Under this key a document, or the first line of a conversation, says what it is.
MARK = "limpet"
ONE = "conversation"
MANY = "conversations"

PAGE = 500

#: Times before or behind these are no store's.
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


# -- out -------------------------------------------------------------------------------------------


def heads(store: Store, ids: Iterable[str] = (), **filters: Any) -> Iterator[Head]:
    """The conversations *ids*, or all that fit *filters*; `ConversationNotFound` if one is not."""
    named = list(ids)
    for id_ in named:
        head = store.backend.head(make_key(store.tenant, conversation.KIND, id_))
        if head is None:
            raise ConversationNotFound(f"There is no conversation {id_!r} (or it has expired).")
        yield head
    if not named:
        yield from store.backend.heads(store.tenant, conversation.KIND, **filters)


def lines(store: Store, found: Iterable[Head]) -> Iterator[dict[str, Any]]:
    """The lines of JSON Lines: of each conversation what its head says, then its records.

    `Conflict` if one of them is deleted or compacted meanwhile: then the export is not whole.
    """
    for head in found:
        if head.seq >= head.first:  # of one that was compacted away only numbers are left
            yield _about(head)
            yield from _records(store, head)


def document(store: Store, found: Iterable[Head]) -> dict[str, Any]:
    """Many as one document; `Conflict` as in `lines`."""
    every = [
        {**_about(head), "records": list(_records(store, head))}
        for head in found
        if head.seq >= head.first
    ]
    return {MARK: MANY, "version": VERSION, MANY: every}


def messages_lines(store: Store, found: Iterable[Head]) -> Iterator[dict[str, Any]]:
    """Only what was said: a line for each conversation, with its id and its messages."""
    for head in found:
        messages = store.conversation(head.key.id).messages()
        yield {"id": head.key.id, "messages": messages}


def _about(head: Head) -> dict[str, Any]:
    return {
        MARK: ONE,
        "version": VERSION,
        "id": head.key.id,
        "position": head.seq,
        "incarnation": head.incarnation,
        "first": head.first,
        "meta": None if head.meta is None else msgspec.json.decode(head.meta),
        "status": head.status,
        "labels": head.labels,
        "created_at": _time(head.created),
        "updated_at": _time(head.updated),
        "ttl": None if head.ttl is None else head.ttl / 1e6,
        "expires_at": None if head.expires is None else _time(head.expires),
    }


def _records(store: Store, head: Head) -> Iterator[dict[str, Any]]:
    codec = as_async(store).scope.store.codec
    after = head.first - 1
    while after < head.seq:
        page = store.backend.read(head.key, after=after, upto=head.seq, limit=PAGE)
        for record in page:
            if record.seq - record.count != after:
                raise _missing(store, head, after)
            named = {} if record.id is None else {"id": record.id}
            entries = [list(entry) for entry in codec.decode(record.body)]
            yield {"seq": record.seq, "at": _time(record.at), **named, "entries": entries}
            after = record.seq
        if not page:
            raise _missing(store, head, after)


def _missing(store: Store, head: Head, after: int) -> LimpetError:
    """The error for entries behind *after* that cannot be exported."""
    what = f"Conversation {head.key.id!r} cannot be exported whole: the entries behind {after}"
    if store.backend.lost(head.key):
        return StoreCorrupt(
            f"{what} were damaged, and a repair took them out. `limpet export --messages` has "
            "what is left; a backup may have the rest."
        )
    return Conflict(
        f"{what} are not there any more. It was at {head.seq} when the export began, and was "
        "deleted or compacted since, or has expired. Throw away what was written, and export "
        "again.",
        head.seq,
        after,
    )


def _time(at: int) -> str:
    return from_micros(at).isoformat()


# -- in --------------------------------------------------------------------------------------------


def is_export(found: Any) -> bool:
    """Whether *found*, a document or the list of lines, was written here."""
    first = found[0] if isinstance(found, list) and found else found
    return isinstance(first, dict) and first.get(MARK) in (ONE, MANY)


def put(store: Store, found: Any, *, id: str | None = None, dry_run: bool = False) -> list[Copied]:
    """Store what is in *found*, a document or the list of lines, and say what became of each.

    *id*: what it shall be known by, if it is one conversation. `NotImportable` says what is wrong
    with a file. One that is there already and the same is left as it is; another one of that name
    is left alone, and reported.
    """
    documents = list(_documents(found))
    if id is not None and len(documents) != 1:
        raise NotImportable(f"It has {len(documents)} conversations, which cannot all be {id!r}.")
    with limpet.open("memory:") as passing:
        wholes = []
        for where, one in documents:
            try:
                wholes.append(_Whole.of(one))
            except (msgspec.ValidationError, InvalidId, _Damaged) as error:
                raise NotImportable(f"{where} is damaged: {str(error).rstrip('.')}.") from error
        if len({whole.id for whole in wholes}) < len(wholes):
            raise NotImportable("Two of its conversations have the same id.")
        keys = [_fill(passing.backend, store, whole, id) for whole in wholes]
        done = {c.key: c for c in copying.copy(passing.backend, store.backend, dry_run=dry_run)}
    for key in keys:
        over = copying.Copied(key=key, outcome=copying.GONE, why="Its time to live is over.")
        done.setdefault(key, over)
    return [done[key] for key in keys]


def _documents(found: Any) -> Iterator[tuple[str, Any]]:
    """Each conversation as one document, and where it stands."""
    if not isinstance(found, dict):
        yield from _from_lines(found)
        return
    _check(found)
    every = found.get(MANY) if found.get(MARK) == MANY else [found]
    if not isinstance(every, list):
        raise NotImportable(f"It has no list of {MANY!r}: it is damaged.")
    for number, one in enumerate(every, 1):
        yield f"Conversation {number} of it", one


def _from_lines(found: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    current: dict[str, Any] = {}
    began = 0
    for number, line in enumerate(found, 1):
        if isinstance(line, dict) and line.get(MARK) == ONE:
            if current:
                yield f"The conversation that begins in line {began}", current
            _check(line)
            held = line.get("records")  # a document on one line
            current = {**line, "records": [*held] if isinstance(held, list) else []}
            began = number
        elif not current or not isinstance(line, dict):
            raise NotImportable(f"Line {number} is nothing that a conversation has.")
        else:
            current["records"].append(line)
    if current:
        yield f"The conversation that begins in line {began}", current


def _check(found: dict[str, Any]) -> None:
    version = found.get("version")
    if version != VERSION:
        msg = f"It has version {version!r}, and this release reads {VERSION}. Upgrade limpet."
        raise NotImportable(msg)


#: Of a time zone that is known, or it could be any time.
_Time = Annotated[datetime, msgspec.Meta(tz=True)]
#: What any backend can count.
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class _Damaged(Exception):
    """What no store has written; the text says what."""


class _SummaryOf(msgspec.Struct):
    upto: _Number
    messages: _Number
    text: str | None
    previous: _Number = 0


class _ShortenedOf(msgspec.Struct):
    upto: _Number
    most: _Number


class _RepairedOf(msgspec.Struct):
    repairs: list[RecordedRepair]


#: What a conversation must find in entries that it looks into.
_SHAPES: dict[str, Any] = {
    MESSAGE: dict[str, Any],
    COPIED: dict[str, Any],
    SUMMARY: _SummaryOf,
    SHORTENED: _ShortenedOf,
    REPAIRED: _RepairedOf,
}


class _RecordOf(msgspec.Struct):
    seq: _Number
    at: _Time
    entries: list[tuple[str, Any]]
    id: str | None = None

    def check_entries(self) -> None:
        for number, (kind, body) in enumerate(self.entries, self.seq - len(self.entries) + 1):
            try:
                msgspec.convert(body, _SHAPES.get(kind, Any))
            except msgspec.ValidationError as error:
                raise _Damaged(f"its entry {number}, a {kind}: {error}") from error


class _Whole(msgspec.Struct):
    """A conversation, checked."""

    id: str
    position: _Number
    first: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
    created_at: _Time
    updated_at: _Time
    records: list[_RecordOf]
    labels: dict[str, str]
    incarnation: str
    status: str | None = None
    meta: ConversationMeta | None = None
    ttl: Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)] | None = None
    expires_at: _Time | None = None

    @classmethod
    def of(cls, found: Any) -> _Whole:
        whole = msgspec.convert(found, cls)
        check_id(whole.id, "conversation id")
        check_id(whole.incarnation, "journal's incarnation", 64)
        check_labels(whole.labels)
        whole.check_records()
        whole.check_times()
        if whole.status is not None:
            check_id(whole.status, "status")
        meta = whole.meta or ConversationMeta()
        last = max(meta.start, meta.summary, *meta.pins, *(end for _, end in meta.gaps))
        if last > whole.position:
            raise _Damaged(f"its meta speaks of {last}, and it ends at {whole.position}")
        return whole

    def counted(self) -> ConversationMeta:
        """Its meta, by which its length is known; counted here, whatever the file says."""
        messages = Messages()
        for record in self.records:
            for kind, body in record.entries:
                messages.take(kind, [body])
        meta = self.meta or ConversationMeta()
        return meta.with_length(self.position, len(messages.found))

    def check_records(self) -> None:
        """Their numbers have no gap, and their ids are ids, each there once."""
        last = self.first - 1
        for record in self.records:
            if record.seq - len(record.entries) != last or not record.entries:
                raise NotImportable(f"{self.id!r} has a gap behind {last}: lines are missing.")
            record.check_entries()
            last = record.seq
        if not self.records:
            raise NotImportable(f"{self.id!r} has nothing in it.")
        if last != self.position:
            msg = f"{self.id!r} is cut off: it ends at {last}, and not at {self.position}."
            raise NotImportable(msg)
        ids = [check_id(record.id, "record id") for record in self.records if record.id is not None]
        twice = next((id_ for id_, count in Counter(ids).items() if count > 1), None)
        if twice is not None:
            raise _Damaged(f"two of its records have the id {twice!r}")

    def check_times(self) -> None:
        """Within what every backend can keep, with a time to live behind it."""
        times = {"created_at": self.created_at, "updated_at": self.updated_at}
        times |= {f"the time of record {record.seq}": record.at for record in self.records}
        if self.expires_at is not None:
            times["expires_at"] = self.expires_at
        for name, at in times.items():
            if not _FIRST <= at <= _LAST:
                raise _Damaged(f"{name} is {at.isoformat()}")
        if not _FIRST <= self.set_at <= _LAST:  # it can be calculated, now that the others are well
            raise _Damaged(f"expires_at less ttl is {self.set_at.isoformat()}")

    @property
    def set_at(self) -> datetime:
        """When status, labels and time to live were set: from then on it has that time to live."""
        if self.ttl is None or self.expires_at is None:
            return self.updated_at
        return self.expires_at - timedelta(seconds=self.ttl)


def _fill(passing: Backend, store: Store, whole: _Whole, id_: str | None) -> Key:
    """Put *whole* into a store in memory, from where it is copied."""
    key = make_key(store.tenant, conversation.KIND, id_ or whole.id)
    codec, created = as_async(store).scope.store.codec, to_micros(whole.created_at)
    expect = 0
    for record in whole.records:
        origin = Origin(to_micros(record.at), created, whole.first, whole.incarnation)
        passing.append(
            Append(
                key=key,
                body=codec.encode(record.entries),
                count=len(record.entries),
                id=record.id,
                expect=Expect(None, expect),
                origin=origin,
            )
        )
        expect = record.seq
    passing.append(
        Append(
            key=key,
            status=whole.status,
            meta=whole.counted().encode(),
            labels=dict(whole.labels),
            ttl=whole.ttl,
            origin=Origin(to_micros(whole.set_at), created, whole.first, whole.incarnation),
        )
    )
    return key
