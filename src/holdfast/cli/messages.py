"""Messages and entries in words: whatever shape a framework gave them, nothing here may fail."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import checkpoint as kinds
from holdfast import conversation
from holdfast.cli.text import json_line, one_line, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from holdfast.journal import Entry

__all__ = ["Part", "parts", "role", "summary", "tool_call", "written"]

CALL = "→ "
RESULT = "← "

# Types of parts, as OpenAI and Anthropic have them, and where they keep what matters.
_TEXTS = ("text", "input_text", "output_text")
_CALLS = {"tool_use": "input", "function_call": "arguments"}
_RESULTS = {"tool_result": "content", "function_call_output": "output"}


class Part(NamedTuple):
    """A piece of a message: what stands before it ("", → for a call, ← for a result), and it."""

    mark: str
    text: str


def role(message: Mapping[str, Any]) -> str:
    """Who speaks."""
    return str(message.get("role") or message.get("type") or "message")


def parts(message: Mapping[str, Any]) -> list[Part]:
    """What *message* says: its text, its tool calls and its results, in order."""
    found = [*_content(message), *_calls(message)]
    if found:
        return found
    rest = {key: value for key, value in message.items() if key != "role" and value is not None}
    return [_piece(rest)] if rest else []


def _content(message: Mapping[str, Any]) -> Iterator[Part]:
    content = message.get("content")
    mark = RESULT if message.get("role") in ("tool", "function") else ""
    if isinstance(content, list):
        yield from (_piece(piece) for piece in content)
    elif content is not None and content != "":
        yield Part(mark, written(content))


def _calls(message: Mapping[str, Any]) -> Iterator[Part]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield Part(CALL, tool_call(function.get("name"), function.get("arguments")))
        else:
            yield Part(CALL, written(call))


def _piece(piece: Any) -> Part:
    """A part of a list of contents; one of a type we do not know as JSON."""
    if not isinstance(piece, dict):
        return Part("", written(piece))
    kind = piece.get("type")
    if kind in _TEXTS:
        return Part("", written(piece.get("text")))
    if kind in _CALLS:
        return Part(CALL, tool_call(piece.get("name"), piece.get(_CALLS[kind])))
    if kind in _RESULTS:
        return Part(RESULT, _texts(piece.get(_RESULTS[kind])))
    return Part("", json_line(piece))


def _texts(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(_piece(piece).text for piece in content)
    return written(content)


def tool_call(name: Any, arguments: Any) -> str:
    """A call as a programmer would write it.

    >>> tool_call("search", '{"text": "timeout", "limit": 5}')
    'search(text="timeout", limit=5)'
    """
    try:
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        found = arguments
    if isinstance(found, dict):
        inner = ", ".join(f"{key}={json_line(value)}" for key, value in found.items())
    else:
        inner = "" if found is None else written(found)
    return f"{written(name)}({inner})"


def written(value: Any) -> str:
    """*value* as text: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json_line(value)


# -- entries ---------------------------------------------------------------------------------------

#: Characters of one value in a summary of several.
SHORT = 200


def summary(entry: Entry) -> str:
    """What *entry* says, on one line."""
    say = _SUMMARIES.get(entry.type)
    if say is None or not isinstance(entry.body, dict):
        return "" if entry.body is None else one_line(entry.body)
    try:
        return one_line(say(entry.body))
    except (LookupError, TypeError, ValueError):  # of our name, and somebody else's shape
        return one_line(entry.body)


def _message(body: dict[str, Any]) -> str:
    return f"{role(body)}: " + " ".join(part.mark + part.text for part in parts(body))


def _plan(body: dict[str, Any]) -> str:
    names = [kinds.item_name(item) for item in body["steps"]]
    return f"{len(names)} steps: {', '.join(names)}"


def _step(body: dict[str, Any]) -> str:
    result = shorten(one_line(body["result"]), SHORT)
    return f"{body['name']} {RESULT}{result} ({body['took']:.2f} s)"


def _decision(body: dict[str, Any]) -> str:
    because = body.get("because")
    return f"{body['decision']} (because {because})" if because else str(body["decision"])


_SUMMARIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    conversation.MESSAGE: _message,
    conversation.COPIED: _message,
    conversation.FORKED: lambda body: f"from {body['from']} at {body['at']}",
    kinds.CREATED: lambda body: body["goal"],
    kinds.RESUMED: lambda body: f"by {body['agent']}" if body["agent"] else "",
    kinds.PLANNED: _plan,
    kinds.STEP: _step,
    kinds.DECIDED: _decision,
    kinds.DISCOVERED: lambda body: body["discovery"],
    kinds.STOPPED: lambda body: body["error"],
    kinds.FAILED: lambda body: body["error"],
    kinds.FINISHED: lambda body: body["outcome"],
}
