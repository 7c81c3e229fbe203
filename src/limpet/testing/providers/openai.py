"""What OpenAI refuses: in Chat Completions, and in Responses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from limpet.testing.providers.checks import each, keys, listed, need, refuse, text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from limpet.testing.providers.checks import Messages

__all__ = ["check_chat", "check_responses"]

# -- OpenAI Chat Completions -----------------------------------------------------------------------

_CHAT_KEYS = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {
        *("role", "content", "name", "refusal", "audio", "tool_calls", "function_call"),
        "annotations",  # its own replies have them, and are taken back
    },
    "tool": {"role", "content", "tool_call_id"},
    "function": {"role", "content", "name"},
}
_CHAT_PARTS = {
    "system": {"text"},
    "developer": {"text"},
    "user": {"text", "image_url", "input_audio", "file"},
    "assistant": {"text", "refusal"},
    "tool": {"text"},
    "function": set[str](),
}
#: Characters of a tool call's id.
CHAT_ID = 40
_FUNCTION = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def check_chat(messages: Messages) -> None:
    """Raise `Refused` if OpenAI's Chat Completions would not take *messages*."""
    pending: set[str] = set()
    opened = ""
    for where, message in each(messages, "messages"):
        role = message.get("role")
        if not isinstance(role, str) or role not in _CHAT_KEYS:
            refuse(where, f"{role!r} is no role.")
        keys(message, _CHAT_KEYS[role], where)
        if role == "tool":
            _chat_result(message, pending, opened, where)
            continue
        _answered(pending, opened, where)
        _chat_content(message, role, where)
        pending = _chat_calls(message, where)
        opened = where
    _answered(pending, opened, "the end")


def _answered(pending: set[str], opened: str, where: str) -> None:
    """A call stands open until each of its results is there."""
    if pending:
        ids = ", ".join(sorted(pending))
        refuse(opened, f"the calls {ids} must be answered by tool messages before {where}.")


def _chat_result(message: Mapping[str, Any], pending: set[str], opened: str, where: str) -> None:
    id_ = text(message, "tool_call_id", where, empty=False)
    need(pending, where, "a tool message must follow the call it answers.")
    need(id_ in pending, where, f"{id_!r} is no call of {opened} that is still unanswered.")
    _chat_content(message, "tool", where)
    pending.remove(id_)


def _chat_content(message: Mapping[str, Any], role: str, where: str) -> None:
    content = message.get("content")
    if isinstance(content, str):
        return
    if content is None:
        others = ("tool_calls", "function_call", "audio", "refusal")
        excused = role == "assistant" and any(message.get(key) for key in others)
        need(excused or role == "function", where, "content is missing.")
        return
    parts = listed(content, where)
    need(parts, where, "content must not be an empty list.")
    for place, part in parts:
        need(part["type"] in _CHAT_PARTS[role], place, f"no {part['type']} in a {role} message.")
        _CHAT_PART[part["type"]](part, place)


def _chat_image(part: Mapping[str, Any], where: str) -> None:
    image = part.get("image_url")
    if not isinstance(image, Mapping):
        refuse(where, "image_url must be an object with a url.")
    text(image, "url", where, empty=False)
    keys(image, ("url", "detail"), where)


def _chat_audio(part: Mapping[str, Any], where: str) -> None:
    audio = part.get("input_audio")
    if not isinstance(audio, Mapping):
        refuse(where, "input_audio must be an object with data and format.")
    text(audio, "data", where)
    need(audio.get("format") in ("wav", "mp3"), where, "format must be wav or mp3.")


def _chat_file(part: Mapping[str, Any], where: str) -> None:
    file = part.get("file")
    if not isinstance(file, Mapping):
        refuse(where, "file must be an object.")
    keys(file, ("file_data", "file_id", "filename"), where)
    need("file_data" in file or "file_id" in file, where, "file_data or file_id must be there.")


_CHAT_PART: dict[str, Callable[[Mapping[str, Any], str], object]] = {
    "text": lambda part, where: text(part, "text", where),
    "refusal": lambda part, where: text(part, "refusal", where),
    "image_url": _chat_image,
    "input_audio": _chat_audio,
    "file": _chat_file,
}


def _chat_calls(message: Mapping[str, Any], where: str) -> set[str]:
    """The ids of the calls in *message*."""
    calls = message.get("tool_calls")
    if calls is None:
        return set()
    need(message["role"] == "assistant", where, "only an assistant calls tools.")
    need(isinstance(calls, list) and calls, where, "tool_calls must be a list with something in.")
    ids: set[str] = set()
    for number, call in enumerate(calls):
        place = f"{where}.tool_calls[{number}]"
        need(isinstance(call, Mapping), place, "must be an object.")
        id_ = text(call, "id", place, empty=False)
        need(len(id_) <= CHAT_ID, place, f"an id has up to {CHAT_ID} characters.")
        need(id_ not in ids, place, f"duplicate id {id_!r}.")
        _chat_call(call, place)
        ids.add(id_)
    return ids


def _chat_call(call: Mapping[str, Any], where: str) -> None:
    kind = call.get("type")
    need(kind in ("function", "custom"), where, "type must be function or custom.")
    keys(call, ("id", "type", str(kind)), where)
    inner = call.get(str(kind))
    if not isinstance(inner, Mapping):
        refuse(where, f"{kind} must be an object.")
    value = "arguments" if kind == "function" else "input"
    keys(inner, ("name", value), where)
    text(inner, value, where)
    name = text(inner, "name", where)
    need(_FUNCTION.fullmatch(name), where, f"{name!r} cannot be a tool's name.")


# -- OpenAI Responses ------------------------------------------------------------------------------

_OUTPUT_OF = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
    "program": "program_output",
    "mcp_approval_request": "mcp_approval_response",
}
_CALL_OF = {output: call for call, output in _OUTPUT_OF.items()}
# Items of the model's own that need no answer.
_ALONE = {
    *("file_search_call", "web_search_call", "image_generation_call", "code_interpreter_call"),
    *("mcp_list_tools", "mcp_call", "reasoning", "compaction"),
}
_OTHERS = {"additional_tools", "configuration_update", "compaction_trigger", "item_reference"}
# What each must have, and what it may.
_ITEM_KEYS: dict[str, tuple[set[str], set[str]]] = {
    "function_call": (
        {"call_id", "name", "arguments"},
        {"id", "status", "caller", "namespace", "async"},
    ),
    "function_call_output": (
        {"call_id", "output"},
        {"id", "status", "caller", "name", "namespace"},
    ),
    "custom_tool_call": ({"call_id", "name", "input"}, {"id", "caller", "namespace", "async"}),
    "custom_tool_call_output": ({"call_id", "output"}, {"id", "caller"}),
    "computer_call_output": (
        {"call_id", "output"},
        {"id", "acknowledged_safety_checks", "status"},
    ),
    "local_shell_call": ({"id", "action", "call_id", "status"}, set()),
    "local_shell_call_output": ({"id", "output"}, {"status"}),
    "shell_call": ({"call_id", "action"}, {"id", "caller", "environment", "status"}),
    "shell_call_output": ({"call_id", "output"}, {"id", "caller", "max_output_length", "status"}),
    "apply_patch_call": ({"call_id", "operation", "status"}, {"id", "caller"}),
    "apply_patch_call_output": ({"call_id", "status"}, {"id", "caller", "output"}),
    "mcp_approval_request": ({"id", "arguments", "name", "server_label"}, set()),
    "mcp_approval_response": ({"approval_request_id", "approve"}, {"id", "reason"}),
    "reasoning": ({"id", "summary"}, {"content", "encrypted_content", "status"}),
    "program": ({"id", "call_id", "code", "fingerprint"}, set()),
    "program_output": ({"id", "call_id", "result", "status"}, set()),
}
_MESSAGE_KEYS = {"type", "role", "content", "id", "status", "phase"}
_INPUT_PARTS = {"input_text", "input_image", "input_file", "input_audio"}
_OUTPUT_PARTS = {"output_text", "refusal"}
_PART_TEXT = {
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
_ID_STARTS = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
#: Characters of a call_id.
RESPONSES_ID = 64


def check_responses(items: Messages) -> None:
    """Raise `Refused` if OpenAI's Responses would not take *items* as input."""
    found = each(items, "input")
    calls: dict[str, str] = {}
    answered: set[str] = set()
    ids: set[str] = set()
    for where, item in found:
        kind = _item_type(item, where)
        _item_id(item, kind, ids, where)
        if kind == "message":
            _item_message(item, where)
        elif kind in _OUTPUT_OF:
            _item_call(item, kind, calls, where)
        elif kind in _CALL_OF:
            _item_result(item, kind, calls, answered, where)
    for id_, kind in calls.items():
        done = id_ in answered or kind == "program"  # which the provider runs, and goes on with
        need(done, "input", f"no output found for the call {id_!r}.")
    _reasoning(found)


def _item_type(item: Mapping[str, Any], where: str) -> str:
    kind = item.get("type")
    if kind is None and "role" in item:
        kind = "message"
    known = kind in {"message", *_OUTPUT_OF, *_CALL_OF, *_ALONE, *_OTHERS}
    if not isinstance(kind, str) or not known:
        refuse(where, f"{kind!r} is no type of an item.")
    if kind in _ITEM_KEYS:
        must, may = _ITEM_KEYS[kind]
        missing = sorted(must - set(item))
        need(not missing, where, f"missing {', '.join(missing)}.")
        keys(item, {"type", *must, *may}, where)
    return kind


def _item_id(item: Mapping[str, Any], kind: str, ids: set[str], where: str) -> None:
    id_ = item.get("id")
    if id_ is None or kind in ("item_reference", "local_shell_call_output"):
        return
    need(isinstance(id_, str), where, "id must be text.")
    start = _ID_STARTS.get(kind, "")
    need(id_.startswith(start), where, f"expected an id that begins with {start!r}.")
    need(id_ not in ids, where, f"duplicate item with id {id_!r}.")
    ids.add(id_)


def _item_message(item: Mapping[str, Any], where: str) -> None:
    keys(item, _MESSAGE_KEYS, where)
    role = item.get("role")
    need(role in ("user", "assistant", "system", "developer"), where, f"{role!r} is no role.")
    content = item.get("content")
    if isinstance(content, str):
        return
    allowed = _OUTPUT_PARTS if role == "assistant" else _INPUT_PARTS
    for place, part in listed(content, where):
        _item_part(part, allowed, place)


def _item_part(part: Mapping[str, Any], allowed: Collection[str], where: str) -> None:
    kind = part["type"]
    need(kind in allowed, where, f"{kind} is not supported here.")
    if kind in _PART_TEXT:
        text(part, _PART_TEXT[kind], where)
    elif kind == "input_image":
        keys(part, ("type", "detail", "file_id", "image_url", "prompt_cache_breakpoint"), where)
        need(part.get("image_url") or part.get("file_id"), where, "no image_url and no file_id.")
        need(isinstance(part.get("image_url", ""), str | None), where, "image_url must be text.")
    elif kind == "input_file":
        known = ("file_data", "file_id", "file_url")
        need(any(part.get(key) for key in known), where, "no file_data, file_id or file_url.")


def _item_call(item: Mapping[str, Any], kind: str, calls: dict[str, str], where: str) -> None:
    key = "id" if kind == "mcp_approval_request" else "call_id"
    if kind == "tool_search_call" and item.get(key) is None:
        return  # run by the provider
    id_ = text(item, key, where, empty=False)
    need(len(id_) <= RESPONSES_ID, where, f"{key} has up to {RESPONSES_ID} characters.")
    need(id_ not in calls, where, f"duplicate call {id_!r}.")
    if kind == "function_call":
        text(item, "arguments", where)
        need(_FUNCTION.fullmatch(text(item, "name", where)), where, "no name of a tool.")
    calls[id_] = kind


def _item_result(
    item: Mapping[str, Any], kind: str, calls: dict[str, str], answered: set[str], where: str
) -> None:
    keys = {"mcp_approval_response": "approval_request_id", "local_shell_call_output": "id"}
    key = keys.get(kind, "call_id")
    if kind == "tool_search_output" and item.get(key) is None:
        return
    id_ = text(item, key, where, empty=False)
    need(calls.get(id_) == _CALL_OF[kind], where, f"no tool call found for the output of {id_!r}.")
    need(id_ not in answered, where, f"a second output for the call {id_!r}.")
    answered.add(id_)
    output = item.get("output")
    if kind in ("function_call_output", "custom_tool_call_output") and not isinstance(output, str):
        for place, part in listed(output, where):
            _item_part(part, _INPUT_PARTS, place)


def _reasoning(found: list[tuple[str, Mapping[str, Any]]]) -> None:
    """What the model thought stands before what it then did."""
    thought = ""
    for where, item in found:
        kind = item.get("type") or "message"
        if kind == "reasoning":
            thought = thought or where
            continue
        spoken = kind == "message" and item.get("role") == "assistant"
        own = spoken or kind in _OUTPUT_OF or kind in _ALONE or kind == "item_reference"
        need(own or not thought, thought, "a reasoning item without its required following item.")
        thought = ""
    need(not thought, thought, "a reasoning item without its required following item.")
