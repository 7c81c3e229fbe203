"""Messages of OpenAI's Chat Completions, to and from what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.llm.messages.parts import (
    Part,
    Turn,
    arguments_text,
    extra_of,
    joined,
    note_extra,
    note_unsupported,
    read_content,
)
from limpet.llm.messages.shape import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from limpet.llm.messages.parts import Note
    from limpet.llm.messages.tidy import Made

    Message = Mapping[str, Any]

__all__ = ["as_sent", "read", "write"]

_KEYS = {
    "system": ("role", "content", "name"),
    "developer": ("role", "content", "name"),
    "user": ("role", "content", "name"),
    "assistant": (
        *("role", "content", "name", "refusal", "audio", "tool_calls", "function_call"),
        "annotations",
    ),
    "tool": ("role", "content", "tool_call_id"),
    "function": ("role", "content", "name"),
}
#: What a result says in place of what it cannot hold.
NOT_HERE = "[limpet: a part of this result cannot be shown in this form: {}]"


def as_sent(message: Message, index: int, note: Note) -> dict[str, Any]:
    """*message*, of this shape already, without keys that the API refuses."""
    allowed = _KEYS.get(str(message.get("role")))
    if allowed is None:
        return dict(message)
    note_extra(index, extra_of(message, allowed), note)
    return {
        key: value
        for key, value in message.items()
        if key in allowed and not (key in ("tool_calls", "annotations") and value is None)
    }


# -- reading ---------------------------------------------------------------------------------------


def read(message: Message, index: int) -> list[Turn]:
    """What *message* says."""
    role, content = str(message.get("role")), message.get("content")
    plain = isinstance(content, str)
    parts = read_content(content, _read_part)
    if role in ("tool", "function"):
        id_ = message.get("tool_call_id")
        id_ = f"function:{message.get('name')}" if role == "function" else str(id_ or "")
        return [Turn("tool", [Part("result", id=id_, parts=parts, plain=plain)], index)]
    if message.get("refusal"):
        parts.append(Part("refusal", str(message["refusal"])))
    parts += _read_calls(message)
    if message.get("audio") is not None:
        parts.append(Part("other", body={"audio": message["audio"]}, was="audio"))
    extra = extra_of(message, _KEYS["assistant"] if role == "assistant" else ("role", "content"))
    if message.get("name") is not None:
        extra["name"] = message["name"]
    return [Turn(role, parts, index, plain=plain, extra=extra)]


def _read_part(piece: Any) -> Part:
    kind = kind_of(piece) if isinstance(piece, dict) else ""
    if kind == "text":
        return Part("text", str(piece.get("text") or ""), extra=extra_of(piece, ("text",)))
    if kind == "refusal":
        return Part("refusal", str(piece.get("refusal") or ""))
    if kind == "image_url":
        image = piece.get("image_url") or {}
        image = image if isinstance(image, dict) else {"url": image}
        extra = extra_of(piece, ("image_url",))
        detail = image.get("detail") or ""
        return Part("image", url=str(image.get("url") or ""), detail=detail, extra=extra)
    if kind == "file" and isinstance(piece.get("file"), dict):
        file = piece["file"]
        named = Part("file", name=file.get("filename") or "", extra=extra_of(piece, ("file",)))
        named.url, named.file_id = file.get("file_data") or "", file.get("file_id") or ""
        return named
    if kind == "input_audio":
        return Part("audio", body=piece.get("input_audio"), extra=extra_of(piece, ("input_audio",)))
    return Part("other", body=piece, was=kind or type(piece).__name__)


def _read_calls(message: Message) -> Iterator[Part]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        custom = call.get("custom") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield _read_function(function, str(call.get("id") or ""))
        elif isinstance(custom, dict):
            name, text = str(custom.get("name") or ""), str(custom.get("input") or "")
            yield Part("custom", text, id=str(call.get("id") or ""), name=name)
        else:
            yield Part("other", body=call, was="tool_call")
    legacy = message.get("function_call")
    if isinstance(legacy, dict):
        yield _read_function(legacy, f"function:{legacy.get('name')}")


def _read_function(function: dict[str, Any], id_: str) -> Part:
    arguments = function.get("arguments")
    part = Part("call", id=id_, name=str(function.get("name") or ""))
    if isinstance(arguments, dict):
        part.arguments = arguments
    else:
        part.text = arguments if isinstance(arguments, str) else ""
    return part


# -- writing ---------------------------------------------------------------------------------------


_CALLS = ("call", "custom")
_OF_USER = ("text", "image", "file", "audio")


def write(turns: Iterable[Turn], note: Note) -> Made:
    """*turns* as messages."""
    made: Made = []
    for turn in joined(turns):
        name = turn.extra.get("name")
        note_extra(turn.index, {k: v for k, v in turn.extra.items() if k != "name"}, note)
        if turn.role == "tool":
            made += [(turn.made_of, _write_result(part, turn.index, note)) for part in turn.parts]
            continue
        if turn.role == "assistant":
            fields = _write_reply(turn, note)
        else:
            kinds = _OF_USER if turn.role == "user" else ("text",)
            pieces = [_write_part(part, turn.index, note, kinds) for part in turn.parts]
            content = _flat([piece for piece in pieces if piece], plain=turn.plain)
            fields = {} if content is None else {"content": content}
        if fields:
            named = {"name": name} if name else {}
            made.append((turn.made_of, {"role": turn.role, **named, **fields}))
    return made


def _flat(pieces: list[dict[str, Any]], *, plain: bool) -> Any:
    """A list of contents, as one text where that is what it was; None for none."""
    if plain and len(pieces) == 1 and pieces[0]["type"] == "text":
        return pieces[0]["text"]
    return pieces or None


def _write_reply(turn: Turn, note: Note) -> dict[str, Any]:
    """What the assistant says, and its calls; {} if that is nothing."""
    calls = []
    for part in turn.parts:
        if part.kind not in _CALLS:
            continue
        note_extra(turn.index, part.extra, note)
        if part.was:
            what = f"a {part.was} is written as a call of a function"
            note(turn.index, part.was, what, part.body)
        if part.kind == "custom":
            custom = {"name": part.name, "input": part.text}
            calls.append({"id": part.id, "type": "custom", "custom": custom})
        else:
            function = {"name": part.name, "arguments": arguments_text(part)}
            calls.append({"id": part.id, "type": "function", "function": function})
    pieces = [
        _write_part(part, turn.index, note, ("text", "refusal"))
        for part in turn.parts
        if part.kind not in _CALLS
    ]
    written = [piece for piece in pieces if piece]
    if not (written or calls):
        return {}
    reply: dict[str, Any] = {}
    if len(written) == 1 and written[0]["type"] == "refusal":
        reply |= {"content": None, "refusal": written[0]["refusal"]}
    else:
        # An item's text, and that beside calls, is best written as just that.
        reply["content"] = _flat(written, plain=turn.plain or turn.loose or bool(calls))
    if calls:
        reply["tool_calls"] = calls
    return reply


def _write_result(part: Part, index: int, note: Note) -> dict[str, Any]:
    note_extra(index, part.extra, note)
    if part.error:
        note(index, "is_error", "this shape has no key for a result that is an error", value=True)
    content = [
        _write_part(inner, index, note, ("text",))
        or {"type": "text", "text": NOT_HERE.format(inner.kind)}
        for inner in part.parts
    ]
    flat = _flat(content, plain=part.plain)
    return {"role": "tool", "tool_call_id": part.id, "content": "" if flat is None else flat}


def _write_part(part: Part, index: int, note: Note, kinds: Iterable[str]) -> dict[str, Any]:
    """*part* as a part of a message; {} if it is none of the *kinds* that go there."""
    written = _WRITERS[part.kind](part) if part.kind in kinds else {}
    if part.kind == "refusal" and not written:
        written = {"type": "text", "text": part.text}
    if written:
        note_extra(index, part.extra, note)
    else:
        note_unsupported(index, part, note)
    return written


def _write_image(part: Part) -> dict[str, Any]:
    if not part.url:
        return {}
    detail = {"detail": part.detail} if part.detail else {}
    return {"type": "image_url", "image_url": {"url": part.url, **detail}}


def _write_file(part: Part) -> dict[str, Any]:
    if part.file_id:
        return {"type": "file", "file": {"file_id": part.file_id}}
    if not part.url.startswith("data:"):
        return {}
    named = {"filename": part.name} if part.name else {}
    return {"type": "file", "file": {"file_data": part.url, **named}}


_WRITERS: dict[str, Callable[[Part], dict[str, Any]]] = {
    "text": lambda part: {"type": "text", "text": part.text},
    "refusal": lambda part: {"type": "refusal", "refusal": part.text},
    "image": _write_image,
    "file": _write_file,
    "audio": lambda part: {"type": "input_audio", "input_audio": part.body},
}
