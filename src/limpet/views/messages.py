"""Messages and entries in words: whatever shape a framework gave them, nothing here may fail."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct

from limpet.backends.facts import human_size
from limpet.conversations import transcript
from limpet.core.calls import BEGAN, RESOLVED, Call, Resolution
from limpet.integrations.langgraph import thread
from limpet.integrations.langgraph.reading import is_own
from limpet.llm.messages.parts import of_data_url
from limpet.llm.messages.text import parts_of, thought
from limpet.states import format as states
from limpet.tasks import entries as kinds
from limpet.tasks.state import TaskState
from limpet.tasks.versions import describe_entries
from limpet.views.text import json_document, json_line, one_line, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from limpet.core.journal import Entry
    from limpet.llm.messages.parts import Part as Piece

__all__ = [
    "Part",
    "Spoken",
    "call_arguments",
    "parts",
    "role",
    "spoken",
    "summary",
    "tool_call",
    "written",
]

CALL = "→ "
RESULT = "← "
THOUGHT = "~ "

# What a provider's own call has beside what is asked for.
_ABOUT = ("id", "type", "status", "name", "output", "result", "container_id", "server_label")

#: Characters of data that nobody reads: an image, a signature.
DATA = 200


class Part(NamedTuple):
    """A piece of a message, and what stands before it: → for a call, ← a result, ~ a thought."""

    mark: str
    text: str


def role(message: Mapping[str, Any]) -> str:
    """Who speaks."""
    return str(message.get("role") or message.get("type") or "message")


def parts(message: Mapping[str, Any]) -> list[Part]:
    """What *message* says: its text, its tool calls and its results, in order.

    Images, files and sounds are described, and what no model says in words is shown as JSON.
    """
    return [_marked(said) for said in spoken(message)]


def _marked(said: Spoken) -> Part:
    """The same as a line, with a mark before it."""
    match said.kind:
        case "call":
            return Part(CALL, said.text)
        case "result":
            return Part(RESULT, ("(error) " if said.error else "") + said.text)
        case "thought":
            return Part(THOUGHT, said.text)
        case "refusal":
            return Part("", f"(refused) {said.text}")
    return Part("", said.text)


class Spoken(Struct, frozen=True):
    """A piece of a message in words.

    *kind*: ``text``, ``refusal``, ``thought``, ``call``, ``result``; ``image``, ``file`` and
    ``audio``, which are described; or ``other``, as JSON. A call is written as a programmer would;
    its *arguments* are there as well. *id* tells which call a result is of.
    """

    kind: str
    text: str
    id: str = ""
    name: str = ""
    arguments: Any = None
    error: bool = False


def spoken(message: Mapping[str, Any]) -> list[Spoken]:
    """What *message* says, piece by piece."""
    content = message.get("content")
    if content is None or isinstance(content, (str, list)):
        found = [said for piece in parts_of(message) for said in _spoken(piece)]
    else:
        found = [Spoken("other", written(content))]
    if found:
        return found
    rest = {key: value for key, value in message.items() if key != "role" and value is not None}
    return [Spoken("other", _trimmed(rest))] if rest else []


def _spoken(piece: Piece) -> Iterator[Spoken]:
    if piece.kind in ("call", "custom"):
        arguments = piece.text if piece.arguments is None else piece.arguments
        yield _call(piece.id, piece.name, arguments)
    elif piece.kind == "result":
        inner = [_marked(said).text for one in piece.parts for said in _spoken(one)]
        yield Spoken("result", "\n".join(inner), piece.id, error=piece.error)
    elif piece.kind == "thought":
        unsaid = "(what it thought, its provider keeps to itself)"
        yield Spoken("thought", thought(piece.body) or unsaid)
    elif piece.kind in ("text", "refusal"):
        if piece.text:
            yield Spoken(piece.kind, piece.text)
    elif piece.was.endswith(("_call", "_tool_use")) and isinstance(piece.body, dict):
        # A call that the provider has run, with its answer.
        body = piece.body
        id_ = str(body.get("id") or "")
        name = body.get("name") or piece.was.removesuffix("_call")
        given = body.get("arguments") or body.get("input")
        rest = {
            key: value for key, value in body.items() if key not in _ABOUT and value is not None
        }
        yield _call(id_, name, given or _without_data(rest))
        if body.get("output") is not None:
            yield Spoken("result", _trimmed(body["output"]), id_)
    elif piece.was.endswith("_tool_result"):
        body = piece.body if isinstance(piece.body, dict) else {}
        yield Spoken("result", _described(piece), str(body.get("tool_use_id") or ""))
    elif piece.was == "tool_call":
        yield Spoken("call", _described(piece))
    else:
        kind = piece.kind if piece.kind in ("image", "file", "audio") else "other"
        yield Spoken(kind, _described(piece))


def _call(id_: str, name: Any, arguments: Any) -> Spoken:
    return Spoken("call", tool_call(name, arguments), id_, written(name), arguments)


def _described(piece: Piece) -> str:
    """What is no text: an image, a file, a sound, or something else as JSON."""
    if piece.kind == "audio" and isinstance(piece.body, dict):
        data = str(piece.body.get("data") or "")
        return f"[audio: {piece.body.get('format')}, {_size(data)}]"
    if piece.kind not in ("image", "file"):
        return _trimmed(piece.body)
    where = of_data_url(piece.url)
    about = f"{where[0]}, {_size(where[1])}" if where else piece.url or piece.file_id
    return f"[{piece.kind}: {', '.join(text for text in (piece.name, about) if text)}]"


def _size(data: str) -> str:
    return human_size(len(data) * 3 // 4)


def _trimmed(value: Any) -> str:
    """*value* as JSON, without the data in it that nobody reads."""
    return value if isinstance(value, str) else json_line(_without_data(value))


def _without_data(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_data(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_data(inner) for inner in value]
    if isinstance(value, str) and len(value) > DATA and not any(map(str.isspace, value)):
        return f"{value[:20]}… ({len(value):,} characters)"
    return value


def tool_call(name: Any, arguments: Any) -> str:
    """A call as a programmer would write it.

    >>> tool_call("search", '{"text": "timeout", "limit": 5}')
    'search(text="timeout", limit=5)'
    """
    try:
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
        if isinstance(found, dict):
            inner = ", ".join(f"{key}={json_line(value)}" for key, value in found.items())
        else:
            inner = "" if found is None else written(found)
    except _NOT_JSON:
        inner = written(arguments)
    return f"{written(name)}({inner})"


def call_arguments(arguments: Any) -> str:
    """The arguments of a call to be read one by one: as JSON over several lines, if they are JSON.

    >>> print(call_arguments('{"text": "timeout", "limit": 5}'))
    {
      "text": "timeout",
      "limit": 5
    }
    """
    try:
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
        return "" if found is None else json_document(found)
    except _NOT_JSON:
        return written(arguments)


#: What a model's text may be in place of JSON: none at all, lone surrogates, or nested too deeply.
_NOT_JSON = (ValueError, RecursionError)


def written(value: Any) -> str:
    """*value* as text: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json_line(value)


# -- entries ---------------------------------------------------------------------------------------

#: Characters of one value in a summary of several.
SHORT = 200


def summary(entry: Entry, kind: str) -> str:
    """What *entry*, of a journal of some *kind*, says, on one line."""
    summarise = _SUMMARIES.get(entry.type)
    if kind != kinds.KIND and entry.type in _CALLS:  # a task calls them steps
        summarise = _CALLS[entry.type]
    summarise = _OF_KINDS.get(kind, {}).get(entry.type, summarise)
    if summarise is not None and isinstance(entry.body, dict):
        try:
            return one_line(summarise(entry.body))
        except (LookupError, TypeError, ValueError):  # of our name, and somebody else's shape
            return one_line(entry.body)
    # What a task's history says of it; if that is no more than its type, what is in it.
    (version,) = describe_entries([entry])
    if entry.type in TaskState.CHANGES and version.what != entry.type:
        return one_line(version.what)
    return "" if entry.body is None else one_line(entry.body)


def _message(body: dict[str, Any]) -> str:
    return f"{role(body)}: " + " ".join(part.mark + part.text for part in parts(body))


def _plan(body: dict[str, Any]) -> str:
    names = [kinds.item_name(item) for item in body["steps"]]
    count = "1 step" if len(names) == 1 else f"{len(names)} steps"
    return f"{count}: {', '.join(names)}" + _because(body)


def _because(body: dict[str, Any]) -> str:
    return f" (because {body['because']})" if body.get("because") else ""


def _step(body: dict[str, Any]) -> str:
    if "timed_out" in body:
        return f"{body['name']}: waited in vain"
    large = body.get("large")
    result = shorten(one_line(large["preview"] if large else body["result"]), SHORT)
    notes = [
        f"{body['took']:.2f} s" if "took" in body else "",
        f"{human_size(large['size'])}, kept apart" if large else "",
        "found to be done" if "verified" in body else "",
    ]
    known = "; ".join(note for note in notes if note)
    return f"{body['name']} {RESULT}{result}" + (f" ({known})" if known else "")


def _began(body: dict[str, Any]) -> str:
    call = msgspec.convert(body, Call)
    notes = [
        f"attempt {call.attempt}" if call.attempt > 1 else "",
        f"if in doubt: {call.policy}" if call.policy else "",
    ]
    known = "; ".join(note for note in notes if note)
    return f"call {call.title} begins" + (f" ({known})" if known else "")


def _resolved(body: dict[str, Any]) -> str:
    found = msgspec.convert(body, Resolution)
    return f"call {found.id} resolved{f' by {found.by}' if found.by else ''}: {found.how}"


def _checkpoint(body: dict[str, Any]) -> str:
    changed = {name for how in ("put", "list", "add", "patch") for name in body.get(how, ())}
    known = ", ".join(sorted(name for name in changed if not is_own(name)))
    where = f" in {body['ns']}" if body.get("ns") else ""
    return f"{body['id']}{where}" + (f": {known}" if known else "")


def _writes(body: dict[str, Any]) -> str:
    where = f" in {body['ns']}" if body.get("ns") else ""
    return f"task {body['task']}{where}: " + ", ".join(str(write[0]) for write in body["writes"])


def _save(body: dict[str, Any]) -> str:
    changed = "the same again" if body.get("patch", body) is None else "changed"
    what = changed if "patch" in body else "all of it"
    note = f": {body['note']}" if body.get("note") else ""
    return f"version {body['version']}, {what}, {human_size(body['total'])} as JSON{note}"


_OF_KINDS: dict[str, dict[str, Callable[[dict[str, Any]], Any]]] = {
    thread.KIND: {
        thread.CHECKPOINT: _checkpoint,
        thread.WRITES: _writes,
        thread.DROPPED: lambda body: f"{len(body['ids']):,} checkpoints",
    },
    states.KIND: {states.SAVED: _save, states.PATCHED: _save},
}

_CALLS: dict[str, Callable[[dict[str, Any]], Any]] = {BEGAN: _began, RESOLVED: _resolved}

_SUMMARIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    transcript.MESSAGE: _message,
    transcript.COPIED: _message,
    transcript.FORKED: lambda body: f"from {body['from']} at {body['at']}",
    transcript.POPPED: lambda body: f"the message at {body['position']}",
    transcript.SUMMARY: lambda body: f"up to {body['upto']}: {body['text'] or 'left out'}",
    transcript.SHORTENED: lambda body: (
        f"outputs up to {body['upto']} to {body['most']:,} characters"
    ),
    transcript.REPAIRED: lambda body: "; ".join(found["what"] for found in body["repairs"]),
    kinds.CREATED: lambda body: body["goal"],
    kinds.RESUMED: lambda body: f"by {body['agent']}" if body["agent"] else "",
    kinds.PLANNED: _plan,
    kinds.REPLANNED: _plan,
    kinds.STEP: _step,
    kinds.SIGNALLED: lambda body: (
        f"{body['name']} {RESULT}{shorten(one_line(body.get('payload')), SHORT)}"
    ),
    kinds.DECIDED: lambda body: f"{body['decision']}{_because(body)}",
    kinds.DISCOVERED: lambda body: body["discovery"],
    kinds.STOPPED: lambda body: body["error"],
    kinds.FAILED: lambda body: body["error"],
    kinds.FINISHED: lambda body: body["outcome"],
}
