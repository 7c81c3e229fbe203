"""Conversations, tasks and threads as files: all there is of them, or only the messages.

    with limpet.open("agents.db") as store:
        for line in exporting.lines(store, exporting.heads(store, ["alice"])):
            print(json.dumps(line))

A whole export has every entry with its number and time, labels, what the head remembers and the
ids of appends: imported elsewhere it is the same conversation, and an agent that retries an append
there adds nothing twice. It goes through a store in memory and `copying`, so that an import is
checked like a copy: it may be cut short and taken up again, and overwrites nothing. The last of its
lines says how many journals there are: of a file without it the end is missing.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
from limpet.core.journal import Entry
from limpet.errors import (
    Conflict,
    ConversationNotFound,
    InvalidId,
    LimpetError,
    NotFound,
    NotImportable,
    StoreCorrupt,
    TaskNotFound,
    Unreadable,
)
from limpet.store import as_async
from limpet.tasks import task
from limpet.tasks.entries import DONE, FORKING, RESULTS
from limpet.tasks.record import calls_meta
from limpet.tasks.state import TaskState
from limpet.transfer import copy as copying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from limpet.backends.contract import Backend, Head, Key
    from limpet.store import Store
    from limpet.transfer.copy import Copied

__all__ = ["document", "heads", "is_export", "lines", "messages_lines", "put", "stream"]

VERSION = 1
#: Under this key a document, the first line of a journal, and the last of all, say what they are.
MARK = "limpet"
END = "end"
#: LangGraph's threads are known here by name only: what is in them, their integration knows.
THREAD = "thread"
#: What a document has many of.
MANY = {conversation.KIND: "conversations", task.KIND: "tasks", THREAD: "threads"}
#: The large results of a task are a journal besides.
JOURNALS = (*MANY, RESULTS)

#: Records that are read at once, first and at most, and how many bytes of them, about.
FIRST, PAGE = 16, 500
BYTES = 1_000_000

#: Times before or behind these are no store's.
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


# -- out -------------------------------------------------------------------------------------------


def heads(
    store: Store, ids: Iterable[str] = (), *, kind: str = conversation.KIND, **filters: Any
) -> Iterator[Head]:
    """Those of one *kind* that *ids* name, or all that fit *filters*; `NotFound` if one is not."""
    named = list(ids)
    missing = {conversation.KIND: ConversationNotFound, task.KIND: TaskNotFound}
    for id_ in named:
        head = store.backend.head(make_key(store.tenant, kind, id_))
        if head is None:
            raise missing.get(kind, NotFound)(f"There is no {kind} {id_!r} (or it has expired).")
        yield head
    if not named:
        yield from store.backend.heads(store.tenant, kind, **filters)


def lines(store: Store, found: Iterable[Head]) -> Iterator[dict[str, Any]]:
    """The lines of JSON Lines: of each journal what its head says, then its records; then the end.

    `Conflict` if one of them is deleted or compacted meanwhile: then the export is not whole.
    """
    journals = 0
    for head in _journals(store, found):
        journals += 1
        yield _about(head)
        yield from _records(store, head)
    yield {MARK: END, "journals": journals}


def document(store: Store, found: Iterable[Head], kind: str = conversation.KIND) -> dict[str, Any]:
    """Many of one *kind* as one document; `Conflict` as in `lines`."""
    every = [
        {**_about(head), "records": list(_records(store, head))} for head in _journals(store, found)
    ]
    return {MARK: MANY[kind], "version": VERSION, MANY[kind]: every}


def stream(store: Store, head: Head) -> Iterator[bytes]:
    """One journal, of whatever kind, as a document in pieces: however long it is, it needs little.

    `document`, where there can be many of its kind in one; else what that has of each.
    """
    many = MANY.get(head.key.kind)
    if many is not None:
        about = msgspec.json.encode({MARK: many, "version": VERSION})
        yield about[:-1] + f',"{many}":['.encode()
    for number, journal in enumerate(_journals(store, [head]) if many else [head]):
        about = msgspec.json.encode(_about(journal))
        yield (b"," if number else b"") + about[:-1] + b',"records":['
        first = True
        for page in _pages(store, journal):
            yield (b"" if first else b",") + b",\n".join(map(msgspec.json.encode, page))
            first = False
        yield b"]}"
    yield b"]}\n" if many is not None else b"\n"


def _journals(store: Store, found: Iterable[Head]) -> Iterator[Head]:
    """Those with something in them; before a task, the journal of its large results."""
    for head in found:
        if head.key.kind == task.KIND:
            # Looked at after the task: all that the task points to is there.
            large = store.backend.head(head.key._replace(kind=RESULTS))
            if large is not None:
                yield large
        if head.seq >= head.first:  # of one that was compacted away only numbers are left
            yield head


def messages_lines(store: Store, found: Iterable[Head]) -> Iterator[dict[str, Any]]:
    """Only what was said: a line for each conversation, with its id and its messages."""
    for head in found:
        messages = store.conversation(head.key.id).messages()
        yield {"id": head.key.id, "messages": messages}


def _about(head: Head) -> dict[str, Any]:
    return {
        MARK: head.key.kind,
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
    for page in _pages(store, head):
        yield from page


def _pages(store: Store, head: Head) -> Iterator[list[dict[str, Any]]]:
    """The records of a journal, as many at once as are about as large as one that is large."""
    journal = as_async(store).journal(head.key.kind, head.key.id)
    after, limit = head.first - 1, FIRST
    while after < head.seq:
        records = store.backend.read(head.key, after=after, upto=head.seq, limit=limit)
        found = []
        for record in records:
            if record.seq - record.count != after:
                raise _missing(store, head, after)
            named = {} if record.id is None else {"id": record.id}
            entries = [list(entry) for entry in journal.pairs(record)]
            found.append({"seq": record.seq, "at": _time(record.at), **named, "entries": entries})
            after = record.seq
        if not records:
            raise _missing(store, head, after)
        yield found
        size = sum(len(record.body) for record in records) or 1
        limit = min(max(BYTES * len(records) // size, 1), PAGE)


def _missing(store: Store, head: Head, after: int) -> LimpetError:
    """The error for entries behind *after* that cannot be exported."""
    kind = head.key.kind.capitalize()
    what = f"{kind} {head.key.id!r} cannot be exported whole: the entries behind {after}"
    if store.backend.lost(head.key):
        left = "`limpet export --messages` has what is left; a backup may have the rest."
        if head.key.kind != conversation.KIND:
            left = "A backup may have them."
        return StoreCorrupt(f"{what} were damaged, and a repair took them out. {left}")
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


def is_export(found: Any, kind: str | None = None) -> bool:
    """Whether *found*, a document or the list of lines, is an export; of that *kind*, if any."""
    first = found[0] if isinstance(found, list) and found else found
    mark = first.get(MARK) if isinstance(first, dict) else None
    of = {END: None, RESULTS: task.KIND, **{name: name for name in MANY}}
    of |= {many: name for name, many in MANY.items()}
    return isinstance(mark, str) and mark in of and kind in (None, of[mark])


def lacks_end(found: Any) -> bool:
    """Whether *found*, a document or the list of lines, is an export without its last line."""
    if not isinstance(found, list) or not is_export(found):
        return False
    return not isinstance(found[-1], dict) or found[-1].get(MARK) != END


def put(
    store: Store,
    found: Any,
    *,
    id: str | None = None,
    dry_run: bool = False,
    salvage: bool = False,
    folds: Mapping[str, Callable[[], Callable[[Entry], object]]] | None = None,
) -> list[Copied]:
    """Store what is in *found*, a document or the list of lines, and say what became of each.

    *id*: what it shall be known by, if it is one conversation or task. *salvage*: its end may be
    missing; of the last conversation what is whole is stored, of tasks those that are. Else
    `NotImportable` says what is wrong with a file. One that is there already and the same is left
    as it is; another one of that name is left alone, and reported. *folds* make, for a kind that
    is known here by name only, what is given each entry and fails where it makes no sense of one.
    """
    documents = list(_documents(found, salvage=salvage))
    with limpet.open("memory:") as passing:
        wholes = []
        for number, (where, one) in enumerate(documents, 1):
            try:
                cut = salvage and number == len(documents)
                if (whole := _Whole.of(one, cut=cut)) is not None:
                    if fold := (folds or {}).get(whole.kind):
                        whole.check_by(fold())
                    wholes.append(whole)
            except (msgspec.ValidationError, InvalidId, _Damaged) as error:
                raise NotImportable(f"{where} is damaged: {str(error).rstrip('.')}.") from error
        if salvage and wholes and wholes[-1].kind == RESULTS:
            wholes.pop()  # its task comes behind it
        if id is not None and len({whole.id for whole in wholes}) != 1:
            raise NotImportable(f"It has {len(wholes)} journals, which cannot all be {id!r}.")
        if len({(whole.kind, whole.id) for whole in wholes}) < len(wholes):
            raise NotImportable("Two of its journals have the same id.")
        keys = [_fill(passing.backend, store, whole, id) for whole in wholes]
        done = {c.key: c for c in copying.copy(passing.backend, store.backend, dry_run=dry_run)}
    for key in keys:
        over = copying.Copied(key=key, outcome=copying.GONE, why="Its time to live is over.")
        done.setdefault(key, over)
    return [done[key] for key in keys]


def _documents(found: Any, *, salvage: bool) -> Iterator[tuple[str, Any]]:
    """Each journal as one document, and where it stands."""
    mark = found.get(MARK) if isinstance(found, dict) else END
    if mark == END:
        yield from _from_lines([found] if isinstance(found, dict) else found, salvage=salvage)
        return
    _check(found)
    every = found.get(mark) if mark in MANY.values() else [found]
    if not isinstance(every, list):
        raise NotImportable(f"It has no list of {mark!r}: it is damaged.")
    name = next((kind for kind, many in MANY.items() if many == mark), str(mark))
    for number, one in enumerate(every, 1):
        yield f"{name.capitalize()} {number} of it", one


def _from_lines(found: list[Any], *, salvage: bool) -> Iterator[tuple[str, Any]]:
    current: dict[str, Any] = {}
    where, journals = "", 0
    for number, line in enumerate(found, 1):
        mark = line.get(MARK) if isinstance(line, dict) else None
        if current and mark in (*JOURNALS, END):
            yield where, current
            current = {}
        if mark in JOURNALS:
            _check(line)
            held = line.get("records")  # a document on one line
            current = {**line, "records": [*held] if isinstance(held, list) else []}
            where = f"The {mark} that begins in line {number}"
            journals += 1
        elif mark == END:  # and another export may follow
            if line.get("journals") != journals:
                counted = f"{journals} of {line.get('journals')}"
                raise NotImportable(f"There are {counted} journals before line {number}.")
            journals = 0
        elif current and isinstance(line, dict):
            current["records"].append(line)
        else:
            raise NotImportable(f"Line {number} is nothing that a conversation has.")
    if current:
        yield where, current
    if lacks_end(found) and not salvage:
        raise NotImportable(
            "It is cut off: the line that ends an export is missing, and with it perhaps more. "
            "Export again; or import what is whole of it with --salvage."
        )


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

    def numbered(self) -> Iterator[tuple[int, str, Any]]:
        """The number, type and body of each entry."""
        for number, (kind, body) in enumerate(self.entries, self.seq - len(self.entries) + 1):
            yield number, kind, body


class _Whole(msgspec.Struct):
    """A journal of a file, checked."""

    id: str
    position: _Number
    first: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
    created_at: _Time
    updated_at: _Time
    records: list[_RecordOf]
    labels: dict[str, str]
    incarnation: str
    kind: Literal["conversation", "task", "task-result", "thread"] = msgspec.field(name=MARK)
    status: str | None = None
    meta: ConversationMeta | None = None
    ttl: Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)] | None = None
    expires_at: _Time | None = None

    @classmethod
    def of(cls, found: Any, *, cut: bool = False) -> _Whole | None:
        """*found*, checked. If its end may be *cut* off, what is whole; None if nothing is."""
        whole = msgspec.convert(found, cls)
        check_id(whole.id, f"{whole.kind} id")
        check_id(whole.incarnation, "journal's incarnation", 64)
        check_labels(whole.labels)
        last = whole.records[-1].seq if whole.records else 0
        if cut and last < whole.position:
            # A task as it was earlier would do again what it has done since.
            if not last or whole.kind != conversation.KIND:
                return None
            whole.position = last
            if whole.last_known() > last:
                whole.meta = None
        whole.check_records()
        whole.check_times()
        if whole.status is not None:
            check_id(whole.status, "status")
        if whole.last_known() > whole.position:
            msg = f"its meta speaks of {whole.last_known()}, and it ends at {whole.position}"
            raise _Damaged(msg)
        return whole

    def last_known(self) -> int:
        """The last entry that its meta speaks of."""
        meta = self.meta or ConversationMeta()
        return max(meta.start, meta.summary, *meta.pins, *(end for _, end in meta.gaps))

    def counted(self) -> bytes | None:
        """Its meta, worked out here, whatever the file says: its length, or its calls in doubt."""
        if self.kind == task.KIND:
            return None if self.status == DONE else calls_meta(self.folded().calls.open)
        if self.kind != conversation.KIND:
            return None
        messages = Messages()
        for record in self.records:
            for kind, body in record.entries:
                messages.take(kind, [body])
        meta = self.meta or ConversationMeta()
        return meta.with_length(self.position, len(messages.found)).encode()

    def folded(self) -> TaskState:
        """What a task has come to."""
        state = TaskState(self.id)
        for record in self.records:
            for number, kind, body in record.numbered():
                try:
                    state.apply(Entry(number, record.at, kind, body))
                except Unreadable as error:
                    raise _Damaged(f"its entry {number}, a {kind}: {error.__cause__}") from error
        if not state.exists and state.status != FORKING:
            raise _Damaged("the beginning of the task is missing")
        return state

    def check_entries(self) -> None:
        """Each is what its model must find in it."""
        if self.kind == task.KIND:
            self.folded()
        for record in self.records if self.kind == conversation.KIND else ():
            for number, kind, body in record.numbered():
                try:
                    msgspec.convert(body, _SHAPES.get(kind, Any))
                except msgspec.ValidationError as error:
                    raise _Damaged(f"its entry {number}, a {kind}: {error}") from error

    def check_by(self, take: Callable[[Entry], object]) -> None:
        """Each is what *take* can make sense of."""
        for record in self.records:
            for number, kind, body in record.numbered():
                try:
                    take(Entry(number, record.at, kind, body))
                except (LookupError, TypeError, ValueError, AttributeError) as error:
                    why = f"its entry {number}, a {kind}: {type(error).__name__}: {error}"
                    raise _Damaged(why) from error

    def check_records(self) -> None:
        """Their numbers have no gap, and their ids are ids, each there once."""
        last = self.first - 1
        for record in self.records:
            if record.seq - len(record.entries) != last or not record.entries:
                raise NotImportable(f"{self.id!r} has a gap behind {last}: lines are missing.")
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
        self.check_entries()

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
    key = make_key(store.tenant, whole.kind, id_ or whole.id)
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
            meta=whole.counted(),
            labels=dict(whole.labels),
            ttl=whole.ttl,
            origin=Origin(to_micros(whole.set_at), created, whole.first, whole.incarnation),
        )
    )
    return key
