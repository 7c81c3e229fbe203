"""What people have in JSON files today, as conversations, tasks and states of a store.

    document = importing.parse(Path("agent_memory.json").read_bytes())
    with limpet.open("agents.db") as store:
        for item in importing.understand(document, name="agent_memory"):
            importing.put(store, item)

An import may be cut short at any moment and is taken up by the same call again; what is all there
is left as it is. It never adds to something else: a file that has changed since is refused. What a
model has no place for is not lost: the whole document is then stored as well, as a state, in one
entry of type "imported".
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from limpet.backends.contract import UNSET, Append, Expect, Origin, UnsetType, new_incarnation
from limpet.conversations import conversation
from limpet.conversations.forks import chunks, copies
from limpet.conversations.transcript import MESSAGE, ConversationMeta
from limpet.core.codec import MAX_BYTES, Codec
from limpet.core.ids import check_labels, make_key
from limpet.errors import Conflict, NotImportable, NotStorable, TooLarge
from limpet.states.format import IMPORTED
from limpet.states.format import KIND as STATE
from limpet.store import as_async
from limpet.tasks import task
from limpet.transfer.shapes import (
    agents,
    chatgpt_messages,
    is_autogen,
    is_chatgpt,
    is_checkpoint,
    is_messages,
    is_shown,
    messages_of,
    shown_checkpoint,
    task_of,
    without_half,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.backends.contract import Key
    from limpet.store import Store

__all__ = ["STATE", "Item", "look", "parse", "put", "salvage", "understand"]

# What there is of an item in a store.
NEW = "new"
PART = "part"  # an import was cut short
THERE = "there"
OTHER = "other"  # something else has that id

#: Files over this are not read: nobody has a conversation as long as that.
MAX_FILE = 64 * MAX_BYTES

#: Under these names a document in a list of them says what it is known by.
_IDS = ("id", "conversation_id", "session_id", "thread_id")


class Item(Struct, kw_only=True):
    """One thing to import: what it will be, and its entries.

    ``about`` says in words what is in it, ``notes`` what is odd about it.
    """

    kind: str
    id: str
    entries: list[tuple[str, Any]]
    about: str
    status: str | UnsetType | None = UNSET
    meta: bytes | UnsetType = UNSET
    labels: dict[str, str] = field(default_factory=dict)
    created: int | None = None
    updated: int | None = None
    notes: list[str] = field(default_factory=list)

    def digest(self) -> str:
        """The same for the same content."""
        content = msgspec.json.encode([self.kind, self.entries])
        return hashlib.sha256(content).hexdigest()[:24]


# -- reading ---------------------------------------------------------------------------------------


def parse(data: bytes, *, lines: bool = False, encoding: str | None = None) -> Any:
    """The document in a file of JSON, or the list of those in JSON Lines.

    *lines*: it is JSON Lines for certain; otherwise that is found out. *encoding*: that of the
    text, where it is not Unicode. `NotImportable` says where the trouble is, and whether the file
    was cut off: then `salvage` finds what is whole.
    """
    try:
        return _parsed(_decoded(data, encoding), lines=lines)
    except _CutOff as error:
        msg = (
            f"It is cut off ({error.where}): whoever wrote it did not come to the end. Import an "
            "older version; or, with --salvage, what is whole of this one."
        )
        raise NotImportable(msg) from error


def salvage(
    data: bytes, *, lines: bool = False, encoding: str | None = None
) -> tuple[Any, str | None]:
    """What is whole in a file that may be cut off, and where it was; None if it was not."""
    if (encoding or json.detect_encoding(data)).startswith("utf-8"):
        data = data.rstrip(b"\0")  # as a power cut leaves a file that was being written
    text = _decoded(data, encoding, cut=True)
    try:
        return _parsed(text, lines=lines), None
    except _CutOff as error:
        before, _, last = text.rstrip().rpartition("\n") if error.of_lines else ("", "", text)
        document, path = _closed(last)
        if error.of_lines:
            whole = _lines(before)
            document, path = [*whole, document], [len(whole), *path]
        left = without_half(document, path)
        if left in ([], {}):
            raise NotImportable(
                f"It is cut off ({error.where}), and nothing before that is whole."
            ) from error
        return left, error.where


class _CutOff(Exception):
    """The end of a file is missing; *of_lines*: of one of JSON Lines."""

    def __init__(self, where: str, *, of_lines: bool = False) -> None:
        super().__init__(where)
        self.where = where
        self.of_lines = of_lines


def _decoded(data: bytes, encoding: str | None, *, cut: bool = False) -> str:
    if len(data) > MAX_FILE:
        raise NotImportable(f"It has {len(data):,} bytes, and {MAX_FILE:,} is the most.")
    try:
        decoder = codecs.getincrementaldecoder(encoding or json.detect_encoding(data))()
        text = decoder.decode(data, final=not cut)  # of the last character half may be there
    except LookupError as error:
        raise NotImportable(f"There is no encoding {encoding!r}.") from error
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            raise _CutOff(f"within a character, byte {len(data):,}") from error
        hint = (
            "" if encoding else " If it is text of another encoding, name that: --encoding cp1252."
        )
        raise NotImportable(f"It is not text: {error}.{hint}") from error
    if not text.strip():
        raise NotImportable("It is empty.")
    return text


def _parsed(text: str, *, lines: bool) -> Any:
    if lines:
        return _lines(text)
    try:
        return _loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and "\n" in text[: error.pos]:
            return _lines(text)
        raise _trouble(error, text) from error


#: A token of JSON: a whole string, a bracket or sign, or a number or word.
_TOKEN = re.compile(r'\s*(?:("[^"\\]*(?:\\.[^"\\]*)*")|([][{},:])|([^][{},:"\s]+))', re.DOTALL)


def _closed(text: str) -> tuple[Any, list[Any]]:
    """The document that *text* is the beginning of, closed behind the last whole value in it.

    And the path to the innermost object or list that the text does not close.
    """
    closing: list[str] = []
    at = end = 0
    before = ""
    while token := _TOKEN.match(text, at):
        at = token.end()
        string, sign, word = token.groups()
        if sign in ("[", "{"):
            closing.append("]" if sign == "[" else "}")
        elif sign in ("]", "}"):
            closing.pop()
        # What a word is, is known when something follows; a string may be a key.
        is_value = before == ":" or closing[-1:] == ["]"]
        if sign in tuple("[]{}") or (is_value and (string or (word and at < len(text)))):
            end = at
        before = sign
    document = _loads(text[:end] + "".join(reversed(closing))) if closing else {}
    path: list[Any] = []
    inner = document
    for _ in closing[1:]:
        path.append(next(reversed(inner)) if isinstance(inner, dict) else len(inner) - 1)
        inner = inner[path[-1]]
    return document, path


def _loads(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise _NotJson(name)

    try:
        return json.loads(text, parse_constant=refuse, object_pairs_hook=_object)
    except RecursionError as error:
        raise NotImportable("It is nested too deep to be read.") from error
    except (json.JSONDecodeError, NotImportable):
        raise
    except ValueError as error:  # Python takes such a number for an attack
        msg = "It has a number with thousands of digits. Make it text, or remove it."
        raise NotImportable(msg) from error
    except _NotJson as error:
        outside = re.finditer(r'"(?:[^"\\]|\\.)*"|(NaN|-?Infinity)', text)
        at = next((found.start() for found in outside if found[1]), 0)
        raise json.JSONDecodeError(f"{error} is not JSON", text, at) from error


class _NotJson(Exception):
    """NaN or Infinity, which Python writes although JSON has no such thing."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, if no key of it is there twice: all but the last would be lost without a word."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        msg = f"The key {twice!r} is there twice in one object. Rename or remove one of the two."
        raise NotImportable(msg)
    return made


def _lines(text: str) -> list[Any]:
    found: list[Any] = []
    split = text.rstrip().split("\n")
    for number, line in enumerate(split, 1):
        if not line.strip():
            continue
        try:
            found.append(_loads(line))
        except json.JSONDecodeError as error:
            trouble = _trouble(error, line, number)
            if isinstance(trouble, _CutOff) and number < len(split):
                msg = (
                    f"It is cut off in the middle ({trouble.where}), and goes on in the next line."
                )
                trouble = NotImportable(msg)
            raise trouble from error
    return found


def _trouble(error: json.JSONDecodeError, text: str, line: int = 0) -> NotImportable | _CutOff:
    """*error* with its line and column, and whether the end of the *text* is missing."""
    where = f"line {line or error.lineno}, column {error.colno}"
    try:
        msgspec.json.decode(text.encode(errors="replace"))
    except msgspec.DecodeError as other:
        if "truncated" in str(other):
            return _CutOff(where, of_lines=bool(line))
    except RecursionError:
        pass
    return NotImportable(f"It is not JSON: {error.msg} ({where}).")


# -- understanding ---------------------------------------------------------------------------------


def understand(
    document: Any,
    *,
    name: str,
    id: str | None = None,
    as_: str | None = None,
    goal: str | None = None,
    codec: Codec | None = None,
    cut: bool = False,
) -> list[Item]:
    """What is in *document*, by its shape.

    *id*: what it shall be known by; otherwise by what it says itself, or by *name*. *as_*: only as
    a conversation, a task or a state. *goal*: that of a checkpoint that has none. *codec*: that of
    the store, if it has one of its own. *cut*: the document is what `salvage` found of one.
    `NotImportable` if it is nothing we know or may be several things, `NotStorable` or `TooLarge`
    if no store can keep it.
    """
    asked = _Asked(name=name, id=id, as_=as_, goal=goal, cut=cut)
    items = [_state(document, id or name)] if as_ == STATE else _read(document, asked)
    seen: set[tuple[str, str]] = set()
    for item in items:
        _check(item, codec or Codec())
        if (item.kind, item.id) in seen:
            raise NotImportable(f"Two of them are known as {item.kind} {item.id!r}.")
        seen.add((item.kind, item.id))
    return items


class _Asked(Struct, frozen=True):
    """What the caller wants of a document."""

    name: str
    id: str | None
    as_: str | None
    goal: str | None
    cut: bool

    @property
    def known_by(self) -> str:
        return self.id or self.name


_WANTED = {
    None: "a list of messages, a state of AutoGen, a chat of ChatGPT, or a checkpoint of a task",
    conversation.KIND: "a list of messages, a state of AutoGen, or a chat of ChatGPT",
    task.KIND: "a checkpoint of a task (with a goal, and a plan, completed steps or results)",
}


def _read(document: Any, asked: _Asked) -> list[Item]:
    found = _readers(document, asked.as_)
    if not found and isinstance(document, (dict, list)) and document:
        parts = document.values() if isinstance(document, dict) else document
        found = [_from_many] if all(_readers(part, asked.as_) for part in parts) else []
    if not found:
        raise NotImportable(
            f"{_odd_one(document, asked.as_)} is not {_WANTED[asked.as_]}. What is not known can "
            "be kept whole with --as state."
        )
    if len(found) > 1:
        raise NotImportable(
            "It has messages, and is the checkpoint of a task. Say which you mean: "
            "--as conversation, --as task, or --as state for all of it."
        )
    items = [item for item in found[0](document, asked) if asked.as_ in (None, item.kind)]
    if not items:
        raise NotImportable("It has no messages. It can be kept whole with --as state.")
    return items


def _readers(document: Any, as_: str | None) -> list[Callable[[Any, _Asked], Iterator[Item]]]:
    """How *document*, if it is one thing, can be read."""
    found: list[Callable[[Any, _Asked], Iterator[Item]]] = []
    if is_shown(document) and as_ in (None, document["kind"]):
        return [_from_shown]
    if as_ != task.KIND and is_autogen(document):
        return [_from_autogen]
    if as_ != task.KIND and is_chatgpt(document):
        return [_from_chatgpt]
    held = document.get("messages") if isinstance(document, dict) else None
    if as_ != task.KIND and any(map(is_messages, (document, held, [document]))):
        found.append(_from_messages)
    if as_ != conversation.KIND and is_checkpoint(document):
        found.append(_from_checkpoint)
    return found


def _odd_one(document: Any, as_: str | None) -> str:
    """What cannot be read: all of *document*, or the first of many things of which others can."""
    named = isinstance(document, dict)
    many = isinstance(document, list) or named
    parts = dict(document.items() if named else enumerate(document, 1)) if many else {}
    odd = [key for key, part in parts.items() if not _readers(part, as_)]
    if len(odd) == len(parts):
        return _described(document)
    where = f"under {odd[0]!r}" if named else f"in place {odd[0]}"
    return f"{_described(parts[odd[0]])} {where}"


def _from_messages(document: Any, asked: _Asked) -> Iterator[Item]:
    found, more = document, False
    if isinstance(document, dict) and is_messages(document.get("messages")):
        known = {name for name in _IDS if document.get(name) == asked.known_by}
        found, more = document["messages"], bool(document.keys() - known - {"messages"})
    elif isinstance(document, dict):
        found = [document]
    messages = messages_of(found)
    if messages:
        yield _conversation(messages, asked.known_by)
    if more or messages != found:
        yield _whole_file(document, asked.known_by)


def _from_autogen(document: Any, asked: _Asked) -> Iterator[Item]:
    # An agent is kept as the state of that id; its conversation has another, or an id would be two
    # things. One that is all that is asked for can have it.
    single = "/messages" if asked.as_ is None else ""
    for path, messages in agents(document):
        yield _conversation(messages, asked.known_by + (path or single))
    yield _state(document, asked.known_by)


def _from_chatgpt(document: Any, asked: _Asked) -> Iterator[Item]:
    ids = (document[name] for name in _IDS if isinstance(document.get(name), str))
    known_by = asked.id or next(ids, asked.name)
    messages = chatgpt_messages(document)
    if messages:
        yield _conversation(messages, known_by)
    yield _whole_file(document, known_by)


def _from_shown(document: Any, asked: _Asked) -> Iterator[Item]:
    """What ``limpet show --json`` has printed, known by the id that it has there."""
    known_by = asked.id or document["id"]
    if document["kind"] == task.KIND:
        yield from _from_checkpoint(
            shown_checkpoint(document), msgspec.structs.replace(asked, id=known_by)
        )
        return
    if document.get("in_doubt"):
        raise NotImportable(
            "It has calls in doubt, and not all that is known of them. Take it over with `limpet "
            "copy`, or with `limpet export`, which has all of a conversation."
        )
    if document["kind"] == STATE:
        item = _state(document["document"], known_by)
    else:
        item = _conversation(document["messages"], known_by)
    item.labels = document.get("labels") or {}
    check_labels(item.labels)
    yield item


def _from_checkpoint(document: Any, asked: _Asked) -> Iterator[Item]:
    found = task_of(document, asked.goal, cut=asked.cut)
    known_by = asked.id or found.id or asked.name
    yield Item(
        kind=task.KIND,
        id=known_by,
        entries=found.entries,
        about=found.about,
        status=found.status,
        meta=UNSET if found.meta is None else found.meta,
        labels=found.labels,
        created=found.created,
        updated=found.updated,
        notes=found.notes,
    )
    if not found.complete:
        yield _whole_file(document, known_by)


def _from_many(document: Any, asked: _Asked) -> Iterator[Item]:
    """Each by its key, by what it says itself, or by its number; under the id, if one is given."""
    named = isinstance(document, dict)
    for number, (key, part) in enumerate(document.items() if named else enumerate(document, 1), 1):
        own = key
        if not named:
            known = part if isinstance(part, dict) else {}
            ids = (str(known[name]) for name in ("task_id", *_IDS) if known.get(name))
            own = next(ids, f"{asked.name}-{key}")
        id_ = f"{asked.id}/{own}" if asked.id else own
        cut = asked.cut and number == len(document)
        yield from _read(part, msgspec.structs.replace(asked, id=id_, cut=cut))


def _conversation(messages: list[dict[str, Any]], id: str) -> Item:
    return Item(
        kind=conversation.KIND,
        id=id,
        entries=[(MESSAGE, message) for message in messages],
        about="1 message" if len(messages) == 1 else f"{len(messages):,} messages",
    )


def _state(document: Any, id: str) -> Item:
    return Item(kind=STATE, id=id, entries=[(IMPORTED, document)], about="the whole document")


def _whole_file(document: Any, id: str) -> Item:
    """The file as it was, beside what was made of it: under an id of its own."""
    return _state(document, f"{id}/file")


def _described(document: Any) -> str:
    if isinstance(document, dict):
        names = ", ".join(map(repr, list(document)[:8])) or "nothing"
        return f"An object with {names}"
    if isinstance(document, list):
        return f"A list of {len(document)}" if document else "An empty list"
    return f"The value {json.dumps(document):.40}"


def _check(item: Item, codec: Codec) -> None:
    """Raise if a store cannot keep it, and say where the trouble sits."""
    make_key("any", item.kind, item.id)
    for number, (kind, value) in enumerate(item.entries, 1):
        try:
            codec.encode([(kind, value)])
        except (NotStorable, TooLarge) as error:
            where = "the document" if item.kind == STATE else f"{kind} {number}"
            raise error.under(kind, where) from error
    if item.kind == task.KIND:
        codec.encode(item.entries)  # which are one record


# -- writing ---------------------------------------------------------------------------------------


def look(store: Store, item: Item) -> str:
    """What there is of *item*: `NEW`, `PART`, `THERE`, or `OTHER` than that under its id."""
    key = _key(store, item)
    head = store.backend.head(key)
    if head is None:
        return NEW
    first = store.backend.read(key, limit=1)
    if not first or first[0].id != f"import-{item.digest()}-0":
        return OTHER
    is_part = item.kind == conversation.KIND and ConversationMeta.of(head).forking
    return PART if is_part else THERE


def put(store: Store, item: Item, progress: Callable[[int], object] = lambda _: None) -> bool:
    """Store *item*; False if it was there already. `Conflict` if something else has its id.

    *progress* is called with how many more entries are there.
    """
    was = look(store, item)
    if was == OTHER:
        raise taken(item)
    if was != THERE:
        for request in requests(store, item):
            try:
                store.backend.append(request)
            except Conflict as error:
                raise taken(item) from error
            progress(request.count)
    return was != THERE


def requests(store: Store, item: Item) -> list[Append]:
    """The appends that make *item*. None of them can fail for what is in it."""
    scope = as_async(store).scope
    codec, journal = scope.store.codec, scope.journal(item.kind, item.id)
    key, digest = _key(store, item), item.digest()
    origin: Origin | None = None
    at = item.updated or item.created
    if at is not None:  # the times that a checkpoint says
        created = min(item.created or at, at)
        origin = Origin(at=at, created=created, first=1, incarnation=new_incarnation())
    made: list[Append] = []
    position = 0
    for found, meta in _records(item):
        entries = [(kind, journal.redacted(value)) for kind, value in found]
        try:
            body = codec.encode(entries)
        except (NotStorable, TooLarge):
            _check(item, codec)  # which says where, if this store takes less than most
            raise
        made.append(
            Append(
                key=key,
                body=body,
                count=len(entries),
                id=f"import-{digest}-{position}",
                expect=Expect(None, position),
                status=item.status,
                meta=meta,
                labels=item.labels or UNSET,
                origin=origin,
            )
        )
        position += len(entries)
    return made


def taken(item: Item) -> Conflict:
    """The error for an id that something else has."""
    return Conflict(
        f"There is a {item.kind} {item.id!r} already, and it is not what is in this file: the file "
        "has changed since it was imported, or the id is somebody else's. It was left alone. "
        "Import the file under another id (--id)."
    )


def _key(store: Store, item: Item) -> Key:
    return make_key(store.tenant, item.kind, item.id)


def _records(item: Item) -> Iterator[tuple[list[tuple[str, Any]], bytes | UnsetType | None]]:
    """The entries of each append, and the meta that goes with them.

    A task or a state is one. A long conversation is many, as in a fork: so that reading its end is
    not reading all of it, and its messages count once all of them are there.
    """
    if item.kind != conversation.KIND or len(list(chunks(item.entries))) == 1:
        yield item.entries, item.meta
        return
    items = [(number, message) for number, (_, message) in enumerate(item.entries, 1)]
    for entries, meta in copies(items, {"from": "an import", "at": len(items)}):
        yield entries, meta.encode()
