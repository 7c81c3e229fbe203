"""What providers refuse beside calls and results: nothing said, thoughts that lead nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from limpet.llm.messages.shape import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from limpet.llm.messages.shape import Shape

    Message = Mapping[str, Any]
    Note = Callable[[int, str, str], None]
    #: Messages, each with the numbers of those it is made of.
    Made = list[tuple[tuple[int, ...], dict[str, Any]]]

__all__ = ["UNREAD", "read_arguments", "remaining", "tidy_each", "tidy_turns"]

#: The name under which a tool's input is kept that is no JSON object: a stream was cut in it.
UNREAD = "limpet_unread"

#: What a model reads in place of the beginning, where a conversation has to begin with the user.
BEGINNING = "[limpet: the beginning of this conversation is not here.]"

_THOUGHTS = ("thinking", "redacted_thinking")
_SPOKEN = ("content", "tool_calls", "function_call", "refusal", "audio")


# -- each message by itself ------------------------------------------------------------------------


def tidy_each(messages: Sequence[Message], shape: Shape | None, note: Note) -> list[Message]:
    """*messages* with each as its provider takes it; {} in the place of one that says nothing."""
    tidy = {"chat": _tidy_chat, "responses": _tidy_item, "anthropic": _tidy_blocks}.get(shape or "")
    found: list[Message] = []
    ids: dict[str, Message] = {}  # of items, which are their own
    for index, given in enumerate(messages):
        message = given if tidy is None else tidy(given, index, note)
        id_, kind = message.get("id"), kind_of(message)
        if kind and isinstance(id_, str) and not kind.endswith("_output"):
            first = ids.setdefault(id_, message)
            if first is not message and first == message:
                note(index, "repeated_item", f"the item {id_!r} was stored twice; left out here")
                message = {}
            elif first is not message:
                what = f"an item with the id {id_!r} of another; the id is left out"
                note(index, "repeated_item", what)
                message = {key: value for key, value in message.items() if key != "id"}
        found.append(message)
    return found


def _tidy_chat(message: Message, index: int, note: Note) -> Message:
    if message.get("content") == []:
        note(index, "empty_text", "an empty list of contents; left out")
        message = {**message, "content": "" if message.get("role") == "tool" else None}
    calls = message.get("tool_calls")
    if calls == []:
        note(index, "empty_message", "an empty list of calls; left out")
        message = {key: value for key, value in message.items() if key != "tool_calls"}
    elif isinstance(calls, list):
        written = list(calls)
        for number, call in enumerate(calls):
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and not isinstance(function.get("arguments"), str):
                note(index, "arguments", "arguments that are not text; written as JSON")
                arguments = _json(function.get("arguments"))
                written[number] = {**call, "function": {**function, "arguments": arguments}}
                message = {**message, "tool_calls": written}
    spoken = any(message.get(key) or message.get(key) == "" for key in _SPOKEN)
    if message.get("role") in ("function", "tool") or spoken or kind_of(message):
        return message
    note(index, "empty_message", "a message without content; left out")
    return {}


def _tidy_item(message: Message, index: int, note: Note) -> Message:
    arguments = message.get("arguments", "")
    if kind_of(message) == "function_call" and not isinstance(arguments, str):
        note(index, "arguments", "arguments that are not text; written as JSON")
        return {**message, "arguments": _json(arguments)}
    if "role" in message and message.get("content") is None:
        note(index, "empty_message", "a message without content; left out")
        return {}
    return message


def _tidy_blocks(message: Message, index: int, note: Note) -> Message:
    content = message.get("content")
    if content in ("", [], None) or (isinstance(content, str) and not content.strip()):
        note(index, "empty_message", "a message without content; left out")
        return {}
    if not isinstance(content, list):
        return message
    blocks: list[Any] = []
    for block in content:
        kind = kind_of(block) if isinstance(block, dict) else ""
        if kind == "text":
            text = block.get("text")
            if not (isinstance(text, str) and text.strip()):
                continue
        if kind == "tool_use" and not isinstance(block.get("input"), dict):
            note(index, "arguments", "input that is no object; kept as what was there")
            block = {**block, "input": read_arguments(block.get("input"))}  # noqa: PLW2901 - the same, tidied
        blocks.append(block)
    if len(blocks) < len(content):
        note(index, "empty_text", "an empty block of text; left out")
    elif all(new is old for new, old in zip(blocks, content, strict=True)):
        return message
    return remaining({**message, "content": blocks}) or {}


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


def remaining(message: Message) -> Message | None:
    """*message* as it is after parts were taken out; None if it says nothing more."""
    if message.get("tool_calls") == []:
        message = {key: value for key, value in message.items() if key != "tool_calls"}
        if not any(message.get(key) for key in _SPOKEN):
            return None
    return None if message.get("content") == [] else message


# -- how turns begin and end -----------------------------------------------------------------------


def tidy_turns(messages: Made, shape: Shape | None, note: Note) -> Made:
    """The messages that are given out, once it is known how each turn ends."""
    found = _without_last_thoughts(messages, note)
    if shape == "anthropic" and found:
        found = _beginning_with_user(_without_last_space(found, note), note)
    return found


def _without_last_thoughts(messages: Made, note: Note) -> Made:
    """A turn of Anthropic's assistant does not end in a thought."""
    found: Made = []
    following = ""  # the role of what comes next
    for made_of, given in reversed(messages):
        message, content = given, given.get("content")
        if given.get("role") == "assistant" != following and isinstance(content, list):
            end = len(content)
            while end and isinstance(content[end - 1], dict):
                if kind_of(content[end - 1]) not in _THOUGHTS:
                    break
                end -= 1
            if end < len(content):
                what = "thinking without what it led to; left out"
                note(made_of[0], "orphan_reasoning", what)
                message = {**given, "content": content[:end]} if end else {}
        if message:
            found.append((made_of, message))
            following = str(given.get("role"))
    return found[::-1]


def _without_last_space(messages: Made, note: Note) -> Made:
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


def _beginning_with_user(messages: Made, note: Note) -> Made:
    """The user speaks first, but for the system."""
    number = next((n for n, (_, m) in enumerate(messages) if m.get("role") != "system"), None)
    if number is None or messages[number][1].get("role") == "user":
        return messages
    made_of = messages[number][0]
    note(made_of[0], "headless", "the beginning is missing; a user's message stands in for it")
    beginning = {"role": "user", "content": BEGINNING}
    return [*messages[:number], (made_of, beginning), *messages[number:]]
