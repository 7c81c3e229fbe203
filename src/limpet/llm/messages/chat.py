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
    role = str(message.get("role"))
    if role in ("tool", "function"):
        return [Turn("tool", [_result(message)], index)]
    content = message.get("content")
    parts = [*_content(content), *_refusal(message), *_calls(message)]
    if message.get("audio") is not None:
        parts.append(Part("other", body={"audio": message["audio"]}, was="audio"))
    extra = extra_of(message, _KEYS["assistant"] if role == "assistant" else ("role", "content"))
    if message.get("name") is not None:
        extra["name"] = message["name"]
    return [Turn(role, parts, index, plain=isinstance(content, str), extra=extra)]


def _result(message: Message) -> Part:
    id_ = message.get("tool_call_id")
    if message.get("role") == "function":
        id_ = f"function:{message.get('name')}"
    content = message.get("content")
    plain = isinstance(content, str)
    return Part("result", id=str(id_ or ""), parts=list(_content(content)), plain=plain)


def _content(content: Any) -> Iterator[Part]:
    if isinstance(content, str):
        yield Part("text", content)
    for piece in content if isinstance(content, list) else ():
        yield _part(piece)


def _part(piece: Any) -> Part:
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


def _refusal(message: Message) -> Iterator[Part]:
    if message.get("refusal"):
        yield Part("refusal", str(message["refusal"]))


def _calls(message: Message) -> Iterator[Part]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        yield _call(call)
    old = message.get("function_call")
    if isinstance(old, dict):
        yield _function(old, f"function:{old.get('name')}")


def _call(call: Any) -> Part:
    inner = call.get("function") if isinstance(call, dict) else None
    if isinstance(inner, dict):
        return _function(inner, str(call.get("id") or ""))
    inner = call.get("custom") if isinstance(call, dict) else None
    if isinstance(inner, dict):
        name, text = str(inner.get("name") or ""), str(inner.get("input") or "")
        return Part("custom", text, id=str(call.get("id") or ""), name=name)
    return Part("other", body=call, was="tool_call")


def _function(function: dict[str, Any], id_: str) -> Part:
    arguments = function.get("arguments")
    part = Part("call", id=id_, name=str(function.get("name") or ""))
    if isinstance(arguments, dict):
        part.arguments = arguments
    else:
        part.text = arguments if isinstance(arguments, str) else ""
    return part


# -- writing ---------------------------------------------------------------------------------------


def write(turns: Iterable[Turn], note: Note) -> Made:
    """*turns* as messages."""
    made: Made = []
    for turn in joined(turns):
        note_extra(turn.index, {k: v for k, v in turn.extra.items() if k != "name"}, note)
        if turn.role == "tool":
            made += [(turn.made_of, _tool(part, turn.index, note)) for part in turn.parts]
        else:
            message = _assistant(turn, note) if turn.role == "assistant" else _other(turn, note)
            if message:
                made.append((turn.made_of, message))
    return made


def _named(turn: Turn) -> dict[str, Any]:
    name = turn.extra.get("name")
    return {"role": turn.role, **({"name": name} if name else {})}


def _other(turn: Turn, note: Note) -> dict[str, Any]:
    """A message of the user's, or of those who instruct."""
    kinds = _USERS if turn.role == "user" else ("text",)
    pieces = [_piece(part, turn.index, note, kinds) for part in turn.parts]
    content = _flat([piece for piece in pieces if piece], plain=turn.plain)
    return {} if content is None else {**_named(turn), "content": content}


def _flat(pieces: list[dict[str, Any]], *, plain: bool) -> Any:
    """A list of contents, as one text where that is what it was; None for none."""
    if plain and len(pieces) == 1 and pieces[0]["type"] == "text":
        return pieces[0]["text"]
    return pieces or None


def _assistant(turn: Turn, note: Note) -> dict[str, Any]:
    calls = [_written_call(p, turn.index, note) for p in turn.parts if p.kind in _CALLS]
    pieces = [
        _piece(part, turn.index, note, ("text", "refusal"))
        for part in turn.parts
        if part.kind not in _CALLS
    ]
    said = [piece for piece in pieces if piece]
    refusals = [piece for piece in said if piece["type"] == "refusal"]
    message = _named(turn)
    if len(refusals) == len(said) == 1:
        message |= {"content": None, "refusal": said[0]["refusal"]}
    else:
        message["content"] = _flat(said, plain=turn.plain or _only_text(turn))
    if calls:
        message["tool_calls"] = calls
    return message if said or calls else {}


def _only_text(turn: Turn) -> bool:
    """Whether the text of a reply is best written as just that."""
    return turn.loose or any(part.kind in _CALLS for part in turn.parts)


_CALLS = ("call", "custom")
_USERS = ("text", "image", "file", "audio")


def _written_call(part: Part, index: int, note: Note) -> dict[str, Any]:
    note_extra(index, part.extra, note)
    if part.was:
        note(index, part.was, f"a {part.was} is written as a call of a function", part.body)
    if part.kind == "custom":
        custom = {"name": part.name, "input": part.text}
        return {"id": part.id, "type": "custom", "custom": custom}
    function = {"name": part.name, "arguments": arguments_text(part)}
    return {"id": part.id, "type": "function", "function": function}


def _tool(part: Part, index: int, note: Note) -> dict[str, Any]:
    note_extra(index, part.extra, note)
    if part.error:
        note(index, "is_error", "that a result is an error is not said by its own key", value=True)
    pieces = [_piece(inner, index, note, ("text",)) for inner in part.parts]
    content = [
        piece or {"type": "text", "text": NOT_HERE.format(inner.kind)}
        for piece, inner in zip(pieces, part.parts, strict=True)
    ]
    flat = _flat(content, plain=part.plain)
    return {"role": "tool", "tool_call_id": part.id, "content": "" if flat is None else flat}


def _piece(part: Part, index: int, note: Note, kinds: Iterable[str]) -> dict[str, Any]:
    """*part* as a part of a message; {} if it is none of the *kinds* that go there."""
    written = _WRITTEN[part.kind](part) if part.kind in kinds else {}
    if part.kind == "refusal" and not written:
        written = {"type": "text", "text": part.text}
    if written:
        note_extra(index, part.extra, note)
        return written
    what = part.was or part.kind
    note(index, what, f"no {what} can be said here", part.body or part)
    return {}


def _image(part: Part) -> dict[str, Any]:
    if not part.url:
        return {}
    detail = {"detail": part.detail} if part.detail else {}
    return {"type": "image_url", "image_url": {"url": part.url, **detail}}


def _file(part: Part) -> dict[str, Any]:
    if part.file_id:
        return {"type": "file", "file": {"file_id": part.file_id}}
    if not part.url.startswith("data:"):
        return {}
    named = {"filename": part.name} if part.name else {}
    return {"type": "file", "file": {"file_data": part.url, **named}}


_WRITTEN: dict[str, Callable[[Part], dict[str, Any]]] = {
    "text": lambda part: {"type": "text", "text": part.text},
    "refusal": lambda part: {"type": "refusal", "refusal": part.text},
    "image": _image,
    "file": _file,
    "audio": lambda part: {"type": "input_audio", "input_audio": part.body},
}
