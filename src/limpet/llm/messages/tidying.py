"""What providers refuse beside calls and results: nothing said, thoughts that lead nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from limpet.llm.messages.shape import kind_of
from limpet.llm.messages.stubs import BEGINNING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from limpet.llm.messages.shape import Shape

    Message = Mapping[str, Any]
    Note = Callable[[int, str, str], None]
    #: Messages that are given out, each with the numbers of those it is made of.
    Numbered = list[tuple[tuple[int, ...], dict[str, Any]]]

__all__ = ["UNREAD", "after", "before", "left", "read_arguments"]

#: The name under which a tool's input is kept that is no JSON object: a stream was cut in it.
UNREAD = "limpet_unread"

_THOUGHTS = ("thinking", "redacted_thinking")
_SPOKEN = ("content", "tool_calls", "function_call", "refusal", "audio")


def before(messages: Sequence[Message], shape: Shape | None, note: Note) -> list[Message]:
    """*messages* with each as its provider takes it; {} in the place of one that says nothing."""
    tidy = {"chat": _chat, "responses": _item, "anthropic": _blocks}.get(shape or "", _any)
    found: list[Message] = []
    ids: dict[str, Message] = {}
    for index, message in enumerate(messages):
        tidied = tidy(message, index, note)
        found.append(_once(tidied, ids, index, note))
    return found


def _any(message: Message, _index: int, _note: Note) -> Message:
    return message


def _chat(message: Message, index: int, note: Note) -> Message:
    calls = message.get("tool_calls")
    if message.get("content") == []:
        note(index, "empty_text", "an empty list of contents; left out")
        message = {**message, "content": "" if message.get("role") == "tool" else None}
    if isinstance(calls, list):
        message = _chat_calls(message, calls, index, note)
    spoken = any(message.get(key) or message.get(key) == "" for key in _SPOKEN)
    if message.get("role") in ("function", "tool") or spoken or kind_of(message):
        return message
    note(index, "empty_message", "a message without content; left out")
    return {}


def _chat_calls(message: Message, calls: list[Any], index: int, note: Note) -> Message:
    if not calls:
        note(index, "empty_message", "an empty list of calls; left out")
        return {key: value for key, value in message.items() if key != "tool_calls"}
    written = [_chat_call(call, index, note) for call in calls]
    same = all(new is old for new, old in zip(written, calls, strict=True))
    return message if same else {**message, "tool_calls": written}


def _chat_call(call: Any, index: int, note: Note) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(function, dict) and not isinstance(function.get("arguments"), str):
        note(index, "arguments", "arguments that are not text; written as JSON")
        return {**call, "function": {**function, "arguments": _json(function.get("arguments"))}}
    return call


def _item(message: Message, index: int, note: Note) -> Message:
    arguments = message.get("arguments", "")
    if kind_of(message) == "function_call" and not isinstance(arguments, str):
        note(index, "arguments", "arguments that are not text; written as JSON")
        return {**message, "arguments": _json(arguments)}
    if "role" in message and message.get("content") is None:
        note(index, "empty_message", "a message without content; left out")
        return {}
    return message


def _once(message: Message, ids: dict[str, Message], index: int, note: Note) -> Message:
    """*message*, or {} if it is an item that was here before: their ids are their own."""
    id_ = message.get("id")
    if not kind_of(message) or not isinstance(id_, str) or kind_of(message).endswith("_output"):
        return message
    if ids.setdefault(id_, message) is message:
        return message
    if ids[id_] == message:
        note(index, "repeated_item", f"the item {id_!r} was stored twice; left out here")
        return {}
    note(index, "repeated_item", f"an item with the id {id_!r} of another; the id is left out")
    return {key: value for key, value in message.items() if key != "id"}


def _blocks(message: Message, index: int, note: Note) -> Message:
    content = message.get("content")
    if content in ("", [], None) or (isinstance(content, str) and not content.strip()):
        note(index, "empty_message", "a message without content; left out")
        return {}
    if not isinstance(content, list):
        return message
    kept = [_block(block, index, note) for block in content if not _is_empty(block)]
    if len(kept) < len(content):
        note(index, "empty_text", "an empty block of text; left out")
    same = len(kept) == len(content) and all(map(_is, kept, content))
    return message if same else left({**message, "content": kept}) or {}


def _is(one: object, other: object) -> bool:
    return one is other


def _is_empty(block: Any) -> bool:
    if not isinstance(block, dict) or block.get("type") != "text":
        return False
    text = block.get("text")
    return not (isinstance(text, str) and text.strip())


def _block(block: Any, index: int, note: Note) -> Any:
    if not isinstance(block, dict):
        return block
    if block.get("type") == "tool_use" and not isinstance(block.get("input"), dict):
        note(index, "arguments", "input that is no object; kept as what was there")
        return {**block, "input": read_arguments(block.get("input"))}
    return block


def read_arguments(arguments: Any) -> dict[str, Any]:
    """A tool's *arguments* as an object; what is none, under the name `UNREAD`."""
    if isinstance(arguments, dict):
        return arguments
    try:
        found = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        found = arguments
    if isinstance(found, dict):
        return found
    return {} if arguments in ("", None) else {UNREAD: arguments}


def _json(value: Any) -> str:
    return msgspec.json.encode({} if value is None else value).decode()


def left(message: Message) -> Message | None:
    """*message* as it is after parts were taken out; None if it says nothing more."""
    if message.get("tool_calls") == []:
        message = {key: value for key, value in message.items() if key != "tool_calls"}
        if not any(message.get(key) for key in _SPOKEN):
            return None
    return None if message.get("content") == [] else message


def after(messages: Numbered, shape: Shape | None, note: Note) -> Numbered:
    """The messages that are given out, once it is known how each turn ends."""
    kept = _without_last_thoughts(messages, note)
    if shape == "anthropic" and kept:
        kept = _begun(_ended(kept, note), note)
    return kept


def _without_last_thoughts(messages: Numbered, note: Note) -> Numbered:
    """A turn of Anthropic's assistant does not end in a thought."""
    kept: Numbered = []
    following = ""  # the role of what comes next
    for made_of, message in reversed(messages):
        ends = message.get("role") == "assistant" != following
        cut = _cut_thoughts(message) if ends else message
        if cut is not message:
            note(made_of[0], "orphan_reasoning", "thinking without what it led to; left out")
        if cut:
            kept.append((made_of, dict(cut) if cut is not message else message))
            following = str(message.get("role"))
    return kept[::-1]


def _cut_thoughts(message: dict[str, Any]) -> Message:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    end = len(content)
    while end and kind_of(content[end - 1]) in _THOUGHTS:
        end -= 1
    if end == len(content):
        return message
    return {**message, "content": content[:end]} if end else {}


def _ended(messages: Numbered, note: Note) -> Numbered:
    """The assistant's last words end without a space."""
    made_of, message = messages[-1]
    content = message.get("content")
    last = content[-1] if isinstance(content, list) else content
    text = last.get("text") if isinstance(last, dict) else last
    if message.get("role") != "assistant" or not isinstance(text, str) or text == text.rstrip():
        return messages
    note(made_of[0], "trailing_space", "space at the end of the last message; cut off")
    if isinstance(content, list):
        content = [*content[:-1], {**content[-1], "text": text.rstrip()}]
    else:
        content = text.rstrip()
    return [*messages[:-1], (made_of, {**message, "content": content})]


def _begun(messages: Numbered, note: Note) -> Numbered:
    """The user speaks first, but for the system."""
    number = next((n for n, (_, m) in enumerate(messages) if m.get("role") != "system"), None)
    if number is None or messages[number][1].get("role") == "user":
        return messages
    made_of = messages[number][0]
    note(made_of[0], "headless", "the beginning is missing; a user's message stands in for it")
    beginning = {"role": "user", "content": BEGINNING}
    return [*messages[:number], (made_of, beginning), *messages[number:]]
