"""What Anthropic refuses in Messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from limpet.testing.providers.checks import each, keys, listed, need, refuse, text

if TYPE_CHECKING:
    from limpet.testing.providers.checks import Messages

__all__ = ["check_anthropic"]

_BLOCKS: dict[str, tuple[set[str], set[str]]] = {
    "text": ({"text"}, {"cache_control", "citations"}),
    "image": ({"source"}, {"cache_control", "transformations"}),
    "document": ({"source"}, {"cache_control", "citations", "context", "title"}),
    "search_result": ({"content", "source", "title"}, {"cache_control", "citations"}),
    "container_upload": ({"file_id"}, {"cache_control"}),
    "thinking": ({"thinking", "signature"}, set()),
    "redacted_thinking": ({"data"}, set()),
    "tool_use": ({"id", "name", "input"}, {"cache_control", "caller", "toolset_name"}),
    "tool_result": ({"tool_use_id"}, {"cache_control", "content", "is_error", "toolset_name"}),
    "server_tool_use": ({"id", "name", "input"}, {"cache_control", "caller"}),
    "mcp_tool_use": ({"id", "name", "input", "server_name"}, {"cache_control"}),
}
_USERS = {"text", "image", "document", "search_result", "container_upload", "tool_result"}
_ASSISTANTS = {
    *("text", "thinking", "redacted_thinking"),
    *("tool_use", "server_tool_use", "mcp_tool_use"),
}
_RESULT_PARTS = {"text", "image", "document", "search_result", "tool_reference", "browser_state"}
_TOOL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")

Turn = tuple[str, str, list[tuple[str, Mapping[str, Any]]]]


def check_anthropic(messages: Messages) -> None:
    """Raise `Refused` if Anthropic's Messages would not take *messages*.

    What the model is told first goes into ``system``, beside the messages, and is not looked at.
    """
    turns = _turns(messages)
    need(turns[0][1] == "user", "messages[0]", "the first message must use the user role.")
    ids: set[str] = set()
    for number, (where, role, blocks) in enumerate(turns):
        before = turns[number - 1] if number else None
        last = number == len(turns) - 1
        if role == "user":
            _results_first(blocks, _asked(before), where)
        elif role == "assistant":
            _assistant(blocks, ids, where, last=last)
        else:
            after = None if last else turns[number + 1][1]
            _told(before, after, where)
    need(not _asked(turns[-1]), turns[-1][0], "tool_use without tool_result immediately after.")


def _turns(messages: Messages) -> list[Turn]:
    """The messages with their blocks; those of one role that follow each other are one."""
    turns: list[Turn] = []
    found = each(messages, "messages")
    for number, (where, message) in enumerate(found):
        keys(message, ("role", "content"), where)
        role = message.get("role")
        if role not in ("user", "assistant", "system"):
            refuse(where, f"{role!r} is no role.")
        final = number == len(found) - 1 and role == "assistant"
        blocks = _anthropic_blocks(message, str(role), where, final=final)
        if turns and turns[-1][1] == role:
            turns[-1][2].extend(blocks)
        else:
            turns.append((where, str(role), blocks))
    return turns


def _anthropic_blocks(
    message: Mapping[str, Any], role: str, where: str, *, final: bool
) -> list[tuple[str, Mapping[str, Any]]]:
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content or not final else []
    blocks = listed(content, where)
    need(blocks or final, where, "content must not be empty.")
    allowed = {"user": _USERS, "assistant": _ASSISTANTS, "system": {"text"}}[role]
    for place, block in blocks:
        kind = block["type"]
        own = role == "assistant" and kind.endswith("_tool_result")
        need(kind in allowed or own, place, f"no {kind} block in a message of the {role}.")
        _block(block, place)
    return blocks


def _block(block: Mapping[str, Any], where: str) -> None:
    kind = block["type"]
    if kind in _BLOCKS:
        must, may = _BLOCKS[kind]
        missing = sorted(must - set(block))
        need(not missing, where, f"missing {', '.join(missing)}.")
        keys(block, {"type", *must, *may}, where)
    if kind == "text":
        need(text(block, "text", where).strip(), where, "text must not be empty or only space.")
    elif kind == "image":
        _image(block["source"], where)
    elif kind == "thinking":
        text(block, "signature", where, empty=False)
    elif kind == "tool_result":
        content = block.get("content", "")
        for place, part in [] if isinstance(content, str) else listed(content, where):
            need(part["type"] in _RESULT_PARTS, place, f"no {part['type']} in a tool_result.")
            _block(part, place)


def _image(source: Any, where: str) -> None:
    if not isinstance(source, Mapping):
        refuse(where, "source must be an object.")
    kind = source.get("type")
    need(kind in ("base64", "url", "file"), where, f"{kind!r} is no type of a source.")
    if kind == "base64":
        need(source.get("media_type") in _IMAGES, where, "no media_type that is supported.")
        text(source, "data", where, empty=False)


def _asked(turn: Turn | None) -> list[str]:
    """The ids that the next message must answer."""
    if turn is None or turn[1] != "assistant":
        return []
    return [block["id"] for _, block in turn[2] if block["type"] == "tool_use"]


def _results_first(
    blocks: list[tuple[str, Mapping[str, Any]]], asked: list[str], where: str
) -> None:
    """A user's message answers what was asked just before: all of it, once, and first."""
    answered: list[str] = []
    begun = False
    for place, block in blocks:
        if block["type"] != "tool_result":
            begun = True
            continue
        id_ = block["tool_use_id"]
        need(id_ in asked, place, f"unexpected tool_use_id {id_!r}: no such tool_use just before.")
        need(id_ not in answered, place, f"each tool_use must have a single result, not {id_!r}.")
        need(not begun, place, "tool_result blocks must come first in the content.")
        answered.append(id_)
    missing = [id_ for id_ in asked if id_ not in answered]
    need(not missing, where, f"tool_use without tool_result just after: {', '.join(missing)}.")


def _assistant(
    blocks: list[tuple[str, Mapping[str, Any]]], ids: set[str], where: str, *, last: bool
) -> None:
    running: set[str] = set()
    for place, block in blocks:
        kind = block["type"]
        if kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
            _tool_use(block, ids, place)
            running |= set() if kind == "tool_use" else {block["id"]}
        elif kind.endswith("_tool_result"):
            id_ = block.get("tool_use_id")
            need(id_ in running, place, f"{kind} without its tool use {id_!r}.")
            running.discard(str(id_))
    need(not running or last, where, f"tool use without result: {', '.join(sorted(running))}.")
    if not blocks:
        return
    place, block = blocks[-1]
    thinking = block["type"] in ("thinking", "redacted_thinking")
    need(not thinking, place, "the final block of an assistant message cannot be thinking.")
    if last and block["type"] == "text":
        text = block["text"]
        need(text == text.rstrip(), place, "final assistant content ends with whitespace.")


def _tool_use(block: Mapping[str, Any], ids: set[str], where: str) -> None:
    id_ = text(block, "id", where)
    need(_TOOL_ID.fullmatch(id_), where, f"{id_!r} cannot be an id: only a-z, A-Z, 0-9, _ and -.")
    need(id_ not in ids, where, f"tool_use ids must be unique, and {id_!r} is not.")
    need(isinstance(block["input"], Mapping), where, "input must be an object.")
    need(_TOOL_NAME.fullmatch(text(block, "name", where)), where, "no name of a tool.")
    ids.add(id_)


def _told(before: Turn | None, after: str | None, where: str) -> None:
    """A system message amid others: only newer models take one, and only after a user's turn."""
    need(before and before[1] == "user", where, "a system message must follow a user's.")
    need(after in (None, "assistant"), where, "after a system message the assistant speaks.")
