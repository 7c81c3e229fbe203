"""Conversations as files: all there is of them, or only their messages.

    with holdfast.open("agents.db") as store:
        for line in transfer.lines(store, ["alice"]):
            print(json.dumps(line))

A whole export has every entry with its number and time, labels, what the head remembers and the
ids of appends: imported elsewhere it is the same conversation, and an agent that retries an append
there adds nothing twice. It goes through a store in memory and `copying`, so that an import is
checked like a copy: it may be cut short and taken up again, and overwrites nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

import holdfast
from holdfast import conversation, copying
from holdfast.backends.base import Append, Origin, from_micros
from holdfast.errors import ConversationNotFound, NotImportable
from holdfast.ids import make_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.backends.base import Backend, Head, Key, Record
    from holdfast.codec import Codec
    from holdfast.copying import Copied
    from holdfast.store import Store

__all__ = ["document", "heads", "is_export", "lines", "messages_lines", "put"]

VERSION = 1
#: Under this key a document, or the first line of a conversation, says what it is.
MARK = "holdfast"
ONE = "conversation"
MANY = "conversations"

PAGE = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# -- out -------------------------------------------------------------------------------------------


def heads(store: Store, ids: Iterable[str] = (), **filters: Any) -> Iterator[Head]:
    """The conversations *ids*, or all that fit *filters*; `ConversationNotFound` if one is not."""
    named = list(ids)
    for id_ in named:
        head = store.backend.head(make_key(store.tenant, conversation.KIND, id_))
        if head is None:
            raise ConversationNotFound(f"There is no conversation {id_!r} (or it has expired).")
        yield head
    cursor: str | None = None
    while not named:
        page = store.backend.scan(store.tenant, conversation.KIND, cursor=cursor, **filters)
        yield from page.heads
        cursor = page.cursor
        if cursor is None:
            return


def lines(store: Store, found: Iterable[Head]) -> Iterator[dict[str, Any]]:
    """The lines of JSON Lines: of each conversation what its head says, then its records."""
    for head in found:
        if head.seq > head.floor:  # of one that was compacted away only numbers are left
            yield _about(head)
            yield from _records(store, head)


def _conversation(store: Store, head: Head) -> dict[str, Any]:
    """One conversation as a document."""
    return {**_about(head), "records": list(_records(store, head))}


def document(store: Store, found: Iterable[Head]) -> dict[str, Any]:
    """Many as one document."""
    every = [_conversation(store, head) for head in found if head.seq > head.floor]
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
        "floor": head.floor,
        "status": head.status,
        "labels": head.labels,
        "created_at": _time(head.created),
        "updated_at": _time(head.updated),
        "ttl": None if head.ttl is None else head.ttl / 1e6,
        "expires_at": None if head.expires is None else _time(head.expires),
    }


def _records(store: Store, head: Head) -> Iterator[dict[str, Any]]:
    codec = _codec(store)
    after = head.floor
    while after < head.seq:
        page = store.backend.read(head.key, after=after, upto=head.seq, limit=PAGE)
        if not page:
            return
        for record in page:
            yield _record(record, codec)
        after = page[-1].seq


def _record(record: Record, codec: Codec) -> dict[str, Any]:
    entries = [list(entry) for entry in codec.decode(record.body)]
    named = {} if record.id is None else {"id": record.id}
    return {"seq": record.seq, "at": _time(record.at), **named, "entries": entries}


def _codec(store: Store) -> Codec:
    codec: Codec = store._core._codec  # noqa: SLF001 - it may hold a key that only the store has
    return codec


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
    with holdfast.open("memory:") as passing:
        wholes = [_whole(one, number) for number, one in enumerate(documents, 1)]
        if len({whole.id for whole in wholes}) < len(wholes):
            raise NotImportable("Two of its conversations have the same id.")
        keys = [_fill(passing.backend, store, whole, id) for whole in wholes]
        done = {c.key: c for c in copying.copy(passing.backend, store.backend, dry_run=dry_run)}
    return [done.get(key) or _expired(key) for key in keys]


def _expired(key: Key) -> Copied:
    return copying.Copied(key=key, outcome=copying.GONE, why="Its time to live is over.")


def _whole(found: Any, number: int) -> _Whole:
    try:
        return _Whole.of(found)
    except msgspec.ValidationError as error:
        raise NotImportable(f"Conversation {number} of it is damaged: {error}.") from error


def _documents(found: Any) -> Iterator[dict[str, Any]]:
    """Each conversation as one document."""
    if isinstance(found, dict):
        _check(found)
        yield from found[MANY] if found[MARK] == MANY else [found]
        return
    current: dict[str, Any] | None = None
    for number, line in enumerate(found, 1):
        if isinstance(line, dict) and line.get(MARK) == ONE:
            if current is not None:
                yield current
            _check(line)
            current = {**line, "records": list(line.get("records") or ())}
        elif current is None or not isinstance(line, dict):
            raise NotImportable(f"Line {number} is nothing that a conversation has.")
        else:
            current["records"].append(line)
    if current is not None:
        yield current


def _check(found: dict[str, Any]) -> None:
    version = found.get("version")
    if version != VERSION:
        msg = f"It has version {version!r}, and this release reads {VERSION}. Upgrade holdfast."
        raise NotImportable(msg)


class _RecordOf(msgspec.Struct):
    seq: int
    at: datetime
    entries: list[tuple[str, Any]]
    id: str | None = None


class _Whole(msgspec.Struct):
    """A conversation, checked."""

    id: str
    position: int
    floor: int
    created_at: datetime
    updated_at: datetime
    records: list[_RecordOf]
    labels: dict[str, str]
    status: str | None = None
    ttl: float | None = None
    expires_at: datetime | None = None

    @classmethod
    def of(cls, found: Any) -> _Whole:
        whole = msgspec.convert(found, cls)
        last = whole.floor
        for record in whole.records:
            if record.seq - len(record.entries) != last or not record.entries:
                raise NotImportable(f"{whole.id!r} has a gap behind {last}: lines are missing.")
            last = record.seq
        if not whole.records:
            raise NotImportable(f"{whole.id!r} has nothing in it.")
        if last != whole.position:
            msg = f"{whole.id!r} is cut off: it ends at {last}, and not at {whole.position}."
            raise NotImportable(msg)
        return whole


def _fill(passing: Backend, store: Store, whole: _Whole, id_: str | None) -> Key:
    """Put *whole* into a store in memory, from where it is copied."""
    key = make_key(store.tenant, conversation.KIND, id_ or whole.id)
    codec, created = _codec(store), _micros(whole.created_at)
    expect = 0
    for record in whole.records:
        origin = Origin(at=_micros(record.at), created=created, floor=whole.floor)
        body, count = codec.encode(record.entries), len(record.entries)
        passing.append(
            Append(key=key, body=body, count=count, id=record.id, expect=expect, origin=origin)
        )
        expect = record.seq
    at = whole.updated_at
    if whole.ttl is not None and whole.expires_at is not None:
        at = whole.expires_at - timedelta(seconds=whole.ttl)
    passing.append(
        Append(
            key=key,
            status=whole.status,
            labels=dict(whole.labels),
            ttl=whole.ttl,
            origin=Origin(at=_micros(at), created=created, floor=whole.floor),
        )
    )
    return key


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)
