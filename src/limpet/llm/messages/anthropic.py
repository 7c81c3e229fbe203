"""Messages of Anthropic's, to and from what they say."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from limpet.llm.messages.parts import (
    UNSUPPORTED,
    Part,
    Turn,
    data_url,
    decoded,
    extra_of,
    joined,
    note_extra,
    note_unsupported,
    of_data_url,
    read_content,
)
from limpet.llm.messages.shape import kind_of
from limpet.llm.messages.tidy import UNREAD, read_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from limpet.llm.messages.parts import Note
    from limpet.llm.messages.tidy import Made

    Message = Mapping[str, Any]

__all__ = ["as_sent", "read", "system_turn", "write", "write_system"]

#: Images that Anthropic reads.
IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
PDF = "application/pdf"
TEXT = "text/plain"


def as_sent(message: Message, index: int, note: Note) -> dict[str, Any]:
    """*message*, of this shape already, without keys that the API refuses."""
    note_extra(index, extra_of(message, ("role", "content")), note)
    return {"role": message.get("role"), "content": message.get("content")}


# -- reading ---------------------------------------------------------------------------------------


def read(message: Message, index: int) -> list[Turn]:
    """What *message* says; the results in it are turns of their own."""
    role, content = str(message.get("role")), message.get("content")
    parts = read_content(content, _read_block)
    extra = extra_of(message, ("role", "content"))
    results = [part for part in parts if part.kind == "result"]
    others = [part for part in parts if part.kind != "result"]
    turns = [Turn("tool", [part], index) for part in results]
    if others or not results:
        turns.append(Turn(role, others, index, plain=isinstance(content, str), extra=extra))
    return turns


def system_turn(system: Any) -> Turn:
    """What stands beside the messages, as a turn before them."""
    return Turn("system", read_content(system, _read_block), -1, plain=isinstance(system, str))


def _read_block(block: Any) -> Part:
    kind = kind_of(block) if isinstance(block, dict) else ""
    reader = _READERS.get(kind)
    found = reader(block) if reader else None
    return found or Part("other", body=block, was=kind or type(block).__name__)


def _read_call(block: Message) -> Part:
    given = block.get("input")
    part = Part("call", id=str(block.get("id") or ""), name=str(block.get("name") or ""))
    part.extra = extra_of(block, ("name", "input", "caller"))
    if isinstance(given, dict) and list(given) == [UNREAD]:
        part.text = str(given[UNREAD])
    elif isinstance(given, dict):
        part.arguments = given
    else:
        part.text = given if isinstance(given, str) else ""
    return part


def _read_result(block: Message) -> Part:
    content = block.get("content", "")
    part = Part("result", id=str(block.get("tool_use_id") or ""))
    part.parts = read_content(content, _read_block)
    part.plain = isinstance(content, str)
    part.error = block.get("is_error") is True
    part.extra = extra_of(block, ("tool_use_id", "content", "is_error"))
    return part


def _read_media(block: Message) -> Part | None:
    """An image or a document, if its data is in a place that others can reach."""
    source, kind = block.get("source"), kind_of(block)
    if not isinstance(source, dict):
        return None
    if kind == "image":
        part = Part("image", extra=extra_of(block, ("source",)), body=block)
    else:
        extra = extra_of(block, ("source", "title"))
        part = Part("file", name=block.get("title") or "", extra=extra, body=block)
    data = str(source.get("data") or "")
    if source.get("type") == "url":
        part.url = str(source.get("url") or "")
    elif source.get("type") == "base64":
        part.url = data_url(str(source.get("media_type")), data)
    elif source.get("type") == "text" and kind == "document":
        part.url = data_url(TEXT, base64.b64encode(data.encode()).decode())
    return part if part.url else None


_READERS = {
    "text": lambda b: Part("text", str(b.get("text") or ""), extra=extra_of(b, ("text",))),
    "thinking": lambda b: Part("thought", body=b, was="thinking"),
    "redacted_thinking": lambda b: Part("thought", body=b, was="redacted_thinking"),
    "tool_use": _read_call,
    "tool_result": _read_result,
    "image": _read_media,
    "document": _read_media,
}


# -- writing ---------------------------------------------------------------------------------------


def write(turns: Iterable[Turn], note: Note) -> Made:
    """*turns* as messages; results that follow each other are in one."""
    made: Made = []
    results = False  # whether the last message is one of results
    for turn in joined(turns):
        note_extra(turn.index, turn.extra, note)
        blocks = [block for part in turn.parts if (block := _write_part(part, turn.index, note))]
        if not blocks:
            continue
        if turn.role == "tool" and results:
            made_of, message = made[-1]
            made[-1] = ((*made_of, *turn.made_of), message)
            message["content"] += blocks
            continue
        results = turn.role == "tool"
        is_text = turn.plain and len(blocks) == 1 and blocks[0]["type"] == "text"
        content: Any = blocks[0]["text"] if is_text else blocks
        made.append((turn.made_of, {"role": "user" if results else turn.role, "content": content}))
    return made


def write_system(turns: Iterable[Turn], note: Note) -> list[dict[str, Any]]:
    """What goes beside the messages, as blocks of text."""
    blocks = []
    for turn in turns:
        note_extra(turn.index, turn.extra, note)
        for part in turn.parts:
            if part.kind != "text":
                note_unsupported(turn.index, part, note, "{} cannot be written as instructions")
            elif block := _write_part(part, turn.index, note):
                blocks.append(block)
    return blocks


def _write_part(part: Part, index: int, note: Note, why: str = UNSUPPORTED) -> dict[str, Any]:
    """*part* as a block; {} if there is none for it."""
    written: dict[str, Any] = {}
    if part.kind in ("text", "refusal"):
        if part.kind == "refusal":
            note(index, "refusal", "a refusal is written as text", part.text)
        written = {"type": "text", "text": part.text} if part.text.strip() else {}
    elif part.kind in ("call", "custom"):
        written = _write_call(part, index, note)
    elif part.kind == "result":
        written = _write_result(part, index, note)
    elif part.kind == "image":
        source = _source(part.url, IMAGES)
        if source and part.detail not in ("", "auto"):
            note(index, "detail", "how closely an image is to be looked at", part.detail)
        written = {"type": "image", "source": source} if source else {}
    elif part.kind == "file":
        written = _write_document(part)
    if written:
        note_extra(index, part.extra, note)
    elif part.kind != "text" or part.text.strip():
        note_unsupported(index, part, note, why)
    return written


def _write_call(part: Part, index: int, note: Note) -> dict[str, Any]:
    if part.was or part.kind == "custom":
        what = part.was or "custom tool call"
        note(index, what, f"a {what} is written as a call with named arguments", part.body)
    if part.kind == "custom":
        given: dict[str, Any] = {"input": part.text}
    else:
        given = read_arguments(part.text if part.arguments is None else part.arguments)
    if UNREAD in given:
        note(index, "arguments", "arguments that are no JSON object are kept as text", part.text)
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": given}


def _write_result(part: Part, index: int, note: Note) -> dict[str, Any]:
    why = "{} cannot be written in a result"
    blocks = [_write_part(inner, index, note, why) for inner in part.parts]
    content: Any = [block for block in blocks if block]
    if part.plain:
        content = "".join(inner.text for inner in part.parts)
    error = {"is_error": True} if part.error else {}
    return {"type": "tool_result", "tool_use_id": part.id, "content": content, **error}


def _write_document(part: Part) -> dict[str, Any]:
    found = of_data_url(part.url)
    text = decoded(found[1]) if found and found[0] == TEXT else None
    source: dict[str, Any] = _source(part.url, (PDF,))
    if text is not None:
        source = {"type": "text", "media_type": TEXT, "data": text}
    titled = {"title": part.name} if part.name else {}
    return {"type": "document", "source": source, **titled} if source else {}


def _source(url: str, media_types: Iterable[str]) -> dict[str, Any]:
    """Where the data is, as Anthropic says it; {} if it cannot be reached from there."""
    found = of_data_url(url)
    if found and found[0] in media_types:
        return {"type": "base64", "media_type": found[0], "data": found[1]}
    web = url.startswith(("https://", "http://"))
    return {"type": "url", "url": url} if web else {}
