"""Messages of Anthropic's, to and from what they say."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from limpet.llm.messages.parts import (
    Part,
    Turn,
    data_url,
    decoded,
    extra_of,
    joined,
    note_extra,
    of_data_url,
)
from limpet.llm.messages.shape import kind_of
from limpet.llm.messages.tidy import UNREAD, read_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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
    parts = list(_content(content))
    extra = extra_of(message, ("role", "content"))
    results = [part for part in parts if part.kind == "result"]
    said = [part for part in parts if part.kind != "result"]
    turns = [Turn("tool", [part], index) for part in results]
    if said or not results:
        turns.append(Turn(role, said, index, plain=isinstance(content, str), extra=extra))
    return turns


def system_turn(system: Any) -> Turn:
    """What stands beside the messages, as a turn before them."""
    return Turn("system", list(_content(system)), -1, plain=isinstance(system, str))


def _content(content: Any) -> Iterator[Part]:
    if isinstance(content, str):
        yield Part("text", content)
    for block in content if isinstance(content, list) else ():
        yield _part(block)


def _part(block: Any) -> Part:
    kind = kind_of(block) if isinstance(block, dict) else ""
    reader = _READERS.get(kind)
    found = reader(block) if reader else None
    return found or Part("other", body=block, was=kind or type(block).__name__)


def _call(block: Message) -> Part:
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


def _result(block: Message) -> Part:
    content = block.get("content", "")
    part = Part("result", id=str(block.get("tool_use_id") or ""), parts=list(_content(content)))
    part.plain = isinstance(content, str)
    part.error = block.get("is_error") is True
    part.extra = extra_of(block, ("tool_use_id", "content", "is_error"))
    return part


def _image(block: Message) -> Part | None:
    source = block.get("source")
    if not isinstance(source, dict):
        return None
    part = Part("image", extra=extra_of(block, ("source",)), body=block)
    return part if _placed(part, source) else None


def _document(block: Message) -> Part | None:
    source = block.get("source")
    if not isinstance(source, dict):
        return None
    extra = extra_of(block, ("source", "title"))
    part = Part("file", name=block.get("title") or "", extra=extra, body=block)
    if source.get("type") == "text":
        data = base64.b64encode(str(source.get("data") or "").encode()).decode()
        part.url = data_url(TEXT, data)
        return part
    return part if _placed(part, source) else None


def _placed(part: Part, source: Mapping[str, Any]) -> bool:
    """Say in *part* where its data is, if it is in a place that others can reach."""
    kind = source.get("type")
    if kind == "url":
        part.url = str(source.get("url") or "")
    elif kind == "base64":
        part.url = data_url(str(source.get("media_type")), str(source.get("data") or ""))
    return bool(part.url)


_READERS = {
    "text": lambda b: Part("text", str(b.get("text") or ""), extra=extra_of(b, ("text",))),
    "thinking": lambda b: Part("thought", body=b, was="thinking"),
    "redacted_thinking": lambda b: Part("thought", body=b, was="redacted_thinking"),
    "tool_use": _call,
    "tool_result": _result,
    "image": _image,
    "document": _document,
}


# -- writing ---------------------------------------------------------------------------------------


def write(turns: Iterable[Turn], note: Note) -> Made:
    """*turns* as messages; results that follow each other are in one."""
    made: Made = []
    results = False  # whether the last message is one of results
    for turn in joined(turns):
        note_extra(turn.index, turn.extra, note)
        blocks = [block for part in turn.parts if (block := _block(part, turn, note))]
        if not blocks:
            continue
        if turn.role == "tool" and results:
            made_of, message = made[-1]
            made[-1] = ((*made_of, *turn.made_of), message)
            message["content"] += blocks
            continue
        results = turn.role == "tool"
        role = "user" if results else turn.role
        made.append((turn.made_of, {"role": role, "content": _flat(blocks, turn)}))
    return made


def write_system(turns: Iterable[Turn], note: Note) -> list[dict[str, Any]]:
    """What goes beside the messages, as blocks of text."""
    blocks = []
    for turn in turns:
        note_extra(turn.index, turn.extra, note)
        for part in turn.parts:
            block = _block(part, turn, note) if part.kind == "text" else {}
            if block:
                blocks.append(block)
            elif part.kind != "text":
                what = part.was or part.kind
                note(turn.index, what, f"no {what} can be said by the system", part.body or part)
    return blocks


def _flat(blocks: list[dict[str, Any]], turn: Turn) -> Any:
    if turn.plain and len(blocks) == 1 and blocks[0]["type"] == "text":
        return blocks[0]["text"]
    return blocks


def _block(part: Part, turn: Turn, note: Note) -> dict[str, Any]:
    """*part* as a block; {} if there is none for it."""
    index = turn.index
    written = _write_block(part, index, note)
    if written:
        note_extra(index, part.extra, note)
    elif not (part.kind == "text" and not part.text.strip()):
        what = part.was or part.kind
        note(index, what, f"no {what} can be said here", part.body or part)
    return written


def _write_block(part: Part, index: int, note: Note) -> dict[str, Any]:
    if part.kind in ("text", "refusal"):
        if part.kind == "refusal":
            note(index, "refusal", "a refusal is written as text", part.text)
        return {"type": "text", "text": part.text} if part.text.strip() else {}
    if part.kind in ("call", "custom"):
        return _tool_use(part, index, note)
    if part.kind == "result":
        return _tool_result(part, index, note)
    if part.kind == "image":
        return _written_image(part, index, note)
    return _written_document(part) if part.kind == "file" else {}


def _tool_use(part: Part, index: int, note: Note) -> dict[str, Any]:
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


def _tool_result(part: Part, index: int, note: Note) -> dict[str, Any]:
    blocks = []
    for inner in part.parts:
        block = _write_block(inner, index, note)
        if block:
            note_extra(index, inner.extra, note)
            blocks.append(block)
        elif inner.kind != "text":
            what = inner.was or inner.kind
            note(index, what, f"no {what} can be in a result", inner.body or inner)
    content: Any = blocks
    if part.plain:
        content = "".join(inner.text for inner in part.parts)
    error = {"is_error": True} if part.error else {}
    return {"type": "tool_result", "tool_use_id": part.id, "content": content, **error}


def _written_image(part: Part, index: int, note: Note) -> dict[str, Any]:
    source = _source(part.url, IMAGES)
    if source and part.detail not in ("", "auto"):
        note(index, "detail", "how closely an image is to be looked at", part.detail)
    return {"type": "image", "source": source} if source else {}


def _written_document(part: Part) -> dict[str, Any]:
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
