"""Items of OpenAI's Responses, to and from what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from limpet.llm.messages.parts import (
    Part,
    Turn,
    arguments_text,
    extra_of,
    note_extra,
    note_unsupported,
    read_content,
)
from limpet.llm.messages.shape import ITEM_RESULTS, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from limpet.llm.messages.parts import Note
    from limpet.llm.messages.tidy import Made

    Message = Mapping[str, Any]

__all__ = ["as_sent", "read", "write"]

#: Calls that other shapes have as calls of functions, and where what is asked for stands.
_LIKE_FUNCTIONS = {
    "computer_call": ("action", "actions"),
    "shell_call": ("action",),
    "local_shell_call": ("action",),
    "apply_patch_call": ("operation",),
}
_MESSAGE = ("type", "role", "content", "id", "status", "phase")
_TEXTS = ("input_text", "output_text", "text")
#: Keys that the SDK adds to what it parsed, and that the API does not take back.
_PARSED = ("parsed", "parsed_arguments")


def as_sent(item: Message, index: int, note: Note) -> dict[str, Any]:
    """*item*, of this shape already, without keys that the API refuses."""
    sent = {key: value for key, value in item.items() if key not in _PARSED}
    if "role" in item and kind_of(item) in ("", "message"):
        note_extra(index, extra_of(item, _MESSAGE), note)
        sent = {key: value for key, value in sent.items() if key in _MESSAGE}
    return sent


# -- reading ---------------------------------------------------------------------------------------


def read(item: Message, index: int) -> list[Turn]:
    """What *item* says."""
    kind = kind_of(item)
    if kind in ("", "message") and "role" in item:
        role, content = str(item.get("role")), item.get("content")
        extra = extra_of(item, _MESSAGE)
        if item.get("phase") is not None:
            extra["phase"] = item["phase"]
        parts, plain = read_content(content, _read_part), isinstance(content, str)
        return [Turn(role, parts, index, plain=plain, loose=role == "assistant", extra=extra)]
    if kind in ITEM_RESULTS:
        part = _read_result(item, kind)
        return [Turn("tool" if part.kind == "result" else "assistant", [part], index)]
    return [Turn("assistant", [_read_own(item, kind)], index, loose=True)]


def _read_part(piece: Any) -> Part:
    kind = kind_of(piece) if isinstance(piece, dict) else ""
    if kind in _TEXTS:
        return Part("text", str(piece.get("text") or ""), extra=extra_of(piece, ("text",)))
    if kind == "refusal":
        return Part("refusal", str(piece.get("refusal") or ""))
    if kind in ("input_image", "computer_screenshot"):
        detail = piece.get("detail") or ""
        part = Part("image", detail="" if detail == "auto" else detail, body=piece)
        part.url, part.file_id = piece.get("image_url") or "", piece.get("file_id") or ""
        part.extra = extra_of(piece, ("image_url", "file_id", "detail"))
        return part
    if kind == "input_file":
        part = Part("file", name=piece.get("filename") or "", body=piece)
        part.url = piece.get("file_data") or piece.get("file_url") or ""
        part.file_id = piece.get("file_id") or ""
        known = ("filename", "file_data", "file_url", "file_id", "detail")
        part.extra = extra_of(piece, known)
        return part
    if kind == "input_audio":
        return Part("audio", body=piece.get("input_audio"))
    return Part("other", body=piece, was=kind or type(piece).__name__)


def _read_own(item: Message, kind: str) -> Part:
    """An item that the model made."""
    id_, name = str(item.get("call_id") or ""), str(item.get("name") or "")
    if kind == "function_call":
        text = item.get("arguments")
        extra = extra_of(item, ("call_id", "name", "arguments", "caller"))
        part = Part("call", text if isinstance(text, str) else "", id=id_, name=name, extra=extra)
        part.arguments = text if isinstance(text, dict) else None
        return part
    if kind == "custom_tool_call":
        return Part("custom", str(item.get("input") or ""), id=id_, name=name)
    if kind in _LIKE_FUNCTIONS:
        arguments = {key: item[key] for key in _LIKE_FUNCTIONS[kind] if item.get(key) is not None}
        part = Part("call", id=id_, name=kind.removesuffix("_call"), was=kind, body=item)
        part.arguments = arguments
        return part
    if kind == "reasoning":
        return Part("thought", body=item, was=kind)
    return Part("other", body=item, was=kind or "item")


def _read_result(item: Message, kind: str) -> Part:
    """What came of a call; of those calls that others have too."""
    call = kind.removesuffix("_output")
    if call not in (*_LIKE_FUNCTIONS, "function_call", "custom_tool_call"):
        return Part("other", body=item, was=kind)
    ids = [item.get(key) for key in ITEM_RESULTS[kind] if isinstance(item.get(key), str)]
    output = item.get("output")
    part = Part("result", id=str(ids[0] if ids else ""), body=item)
    if call in _LIKE_FUNCTIONS:
        part.was = kind
    part.plain = not isinstance(output, list) or call == "shell_call"
    if isinstance(output, dict):
        part.parts = [_read_part(output)]  # a screenshot
    elif isinstance(output, list) and call == "shell_call":
        part.parts = [Part("text", msgspec.json.encode(output).decode())]
    elif output is None:
        part.parts = [Part("text", str(item.get("status") or ""))]
    else:
        part.parts = read_content(output, _read_part)
    return part


# -- writing ---------------------------------------------------------------------------------------


def write(turns: Iterable[Turn], note: Note) -> Made:
    """*turns* as items: messages, then calls, then results, each by itself."""
    made: Made = []
    custom: set[str] = set()
    for turn in turns:
        note_extra(turn.index, turn.extra, note)
        custom |= {part.id for part in turn.parts if part.kind == "custom"}
        if turn.role == "tool":
            items = [_write_result(part, turn.index, custom, note) for part in turn.parts]
        else:
            items = [*_write_message(turn, note), *_write_calls(turn, note)]
        made += [(turn.made_of, item) for item in items]
    return made


def _write_message(turn: Turn, note: Note) -> Iterator[dict[str, Any]]:
    speaks = "output" if turn.role == "assistant" else "input"
    pieces = [
        piece
        for part in turn.parts
        if part.kind not in ("call", "custom")
        if (piece := _write_part(part, speaks, turn.index, note))
    ]
    is_text = len(pieces) == 1 and pieces[0]["type"] in _TEXTS
    if is_text and (turn.plain or speaks == "output"):
        yield {"role": turn.role, "content": pieces[0]["text"]}
    elif pieces:
        yield {"type": "message", "role": turn.role, "content": pieces}


def _write_calls(turn: Turn, note: Note) -> Iterator[dict[str, Any]]:
    for part in turn.parts:
        named = {"call_id": part.id, "name": part.name}
        if part.kind == "call":
            note_extra(turn.index, part.extra, note)
            yield {"type": "function_call", **named, "arguments": arguments_text(part)}
        elif part.kind == "custom":
            yield {"type": "custom_tool_call", **named, "input": part.text}


def _write_result(part: Part, index: int, custom: set[str], note: Note) -> dict[str, Any]:
    note_extra(index, part.extra, note)
    if part.error:
        note(index, "is_error", "this shape has no key for a result that is an error", value=True)
    pieces = [_write_part(inner, "input", index, note) for inner in part.parts]
    output: Any = [piece for piece in pieces if piece]
    if part.plain:
        output = "".join(inner.text for inner in part.parts)
    kind = "custom_tool_call_output" if part.id in custom else "function_call_output"
    return {"type": kind, "call_id": part.id, "output": output}


def _write_part(part: Part, speaks: str, index: int, note: Note) -> dict[str, Any]:
    """*part* as a part of a message; {} if it cannot be said by who *speaks*."""
    if part.kind == "text" and speaks == "output" and not part.text:
        return {}
    write = _WRITERS[speaks].get(part.kind)
    written: dict[str, Any] = write(part) if write else {}
    if written:
        note_extra(index, part.extra, note)
    else:
        note_unsupported(index, part, note)
    return written


def _write_image(part: Part) -> dict[str, Any]:
    if not (part.url or part.file_id):
        return {}
    where = {"image_url": part.url} if part.url else {"file_id": part.file_id}
    return {"type": "input_image", **where, "detail": part.detail or "auto"}


def _write_file(part: Part) -> dict[str, Any]:
    if part.file_id:
        return {"type": "input_file", "file_id": part.file_id}
    if part.url.startswith("data:"):
        named = {"filename": part.name} if part.name else {}
        return {"type": "input_file", "file_data": part.url, **named}
    return {"type": "input_file", "file_url": part.url} if part.url else {}


#: By who speaks, the model ("output") or others, and by the kind of a part.
_WRITERS: dict[str, dict[str, Callable[[Part], dict[str, Any]]]] = {
    "input": {
        "text": lambda part: {"type": "input_text", "text": part.text},
        "image": _write_image,
        "file": _write_file,
        "audio": lambda part: {"type": "input_audio", "input_audio": part.body},
    },
    "output": {
        "text": lambda part: {"type": "output_text", "text": part.text, "annotations": []},
        "refusal": lambda part: {"type": "refusal", "refusal": part.text},
    },
}
