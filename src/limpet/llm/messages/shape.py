"""Which shape a message has, and which tool calls it makes or answers.

Three shapes are known: messages of OpenAI's Chat Completions, items of OpenAI's Responses, and
messages of Anthropic's with blocks of content. A message that is the same in all of them, such as
``{"role": "user", "content": "Hello"}``, has none. Nothing here fails, whatever it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Shape = Literal["chat", "responses", "anthropic"]

__all__ = [
    "binds_next",
    "blocks_of",
    "call_ids",
    "calls_of",
    "is_result",
    "kind_of",
    "name_of",
    "result_ids",
    "results_of",
    "role_of",
    "shape_of",
    "shape_of_all",
]

#: Items of Responses that ask for something to be done, and where they say by what id.
ITEM_CALLS = {
    "function_call": "call_id",
    "custom_tool_call": "call_id",
    "computer_call": "call_id",
    "local_shell_call": "call_id",
    "shell_call": "call_id",
    "apply_patch_call": "call_id",
    "tool_search_call": "call_id",
    "program": "call_id",
    "mcp_approval_request": "id",
}
#: And those that say what came of it. The first key that is there counts: a local shell's output
#: has the call's id as its own.
ITEM_RESULTS = {
    "function_call_output": ("call_id",),
    "custom_tool_call_output": ("call_id",),
    "computer_call_output": ("call_id",),
    "local_shell_call_output": ("call_id", "id"),
    "shell_call_output": ("call_id",),
    "apply_patch_call_output": ("call_id",),
    "tool_search_output": ("call_id",),
    "program_output": ("call_id",),
    "mcp_approval_response": ("approval_request_id",),
}

#: Blocks of Anthropic's that call a tool. All but the first are run by the provider, which answers
#: them within the same turn.
BLOCK_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
BLOCK_RESULT = "tool_result"
BLOCK_RESULTS = "_tool_result"  # web_search_tool_result, mcp_tool_result, …

#: What the model thought before it spoke or called, and what goes with that.
REASONING = "reasoning"

# What only one shape has, in a list of contents.
_RESPONSES_PARTS = frozenset(
    {"input_text", "input_image", "input_file", "output_text", "summary_text"}
)
_CHAT_PARTS = frozenset({"image_url", "file"})
_BOTH_OPENAI = frozenset({"input_audio", "refusal"})
_ANTHROPIC_BLOCKS = frozenset(
    {
        *(*BLOCK_CALLS, BLOCK_RESULT),
        *("thinking", "redacted_thinking", "image", "document", "search_result"),
        *("container_upload", "tool_reference", "browser_state"),
    }
)
_CHAT_KEYS = ("tool_calls", "tool_call_id", "function_call", "refusal", "audio")


def calls_of(message: Mapping[str, Any]) -> list[str]:
    """The ids of the tool calls that *message* makes, but for those that it answers itself.

    >>> calls_of({"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"})
    ['c1']
    """
    calls = list(call_ids(message))
    if not calls:
        return calls
    answered = set(result_ids(message))
    return [id_ for id_ in calls if id_ not in answered]


def results_of(message: Mapping[str, Any]) -> list[str]:
    """The ids of the tool calls that *message* answers, but for its own.

    >>> results_of({"role": "tool", "tool_call_id": "c1", "content": "12:00"})
    ['c1']
    """
    results = list(result_ids(message))
    if not results:
        return results
    made = set(call_ids(message))
    return [id_ for id_ in results if id_ not in made]


def call_ids(message: Mapping[str, Any]) -> Iterator[str]:
    """The id of each call in *message*, in order."""
    key = ITEM_CALLS.get(kind_of(message))
    if key is not None:
        yield from _texts([message.get(key)])
        return
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        yield from _texts(call.get("id") for call in calls if isinstance(call, Mapping))
    call = message.get("function_call")
    if isinstance(call, Mapping):
        yield from _named(call)
    for block in blocks_of(message):
        if kind_of(block) in BLOCK_CALLS:
            yield from _texts([block.get("id")])


def result_ids(message: Mapping[str, Any]) -> Iterator[str]:
    """The id that each result in *message* answers, in order."""
    keys = ITEM_RESULTS.get(kind_of(message))
    if keys is not None:
        yield from list(_texts(message.get(key) for key in keys))[:1]
        return
    role = message.get("role")
    if role == "tool":
        yield from _texts([message.get("tool_call_id")])
    elif role == "function":
        yield from _named(message)
    for block in blocks_of(message):
        if is_result(block):
            yield from _texts([block.get("tool_use_id")])


def is_result(block: Mapping[str, Any]) -> bool:
    """Whether *block*, of Anthropic's, says what came of a call."""
    kind = kind_of(block)
    return kind == BLOCK_RESULT or kind.endswith(BLOCK_RESULTS)


def binds_next(message: Mapping[str, Any]) -> bool:
    """Whether *message* means nothing without the one after it: a reasoning item of Responses."""
    return kind_of(message) == REASONING


def name_of(message: Mapping[str, Any], call_id: str) -> str | None:
    """The name of the tool that *message* calls under *call_id*, if it says."""
    for call in _each_call(message):
        if call_id not in (call.get("call_id"), call.get("id")):
            continue
        inner = call.get("function") or call.get("custom") or call
        name = inner.get("name") if isinstance(inner, Mapping) else None
        return name if isinstance(name, str) else _kind_name(kind_of(call))
    return None


def _each_call(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if kind_of(message) in ITEM_CALLS:
        yield message
    calls = message.get("tool_calls")
    for call in [*(calls if isinstance(calls, list) else []), *blocks_of(message)]:
        if isinstance(call, Mapping):
            yield call


def _kind_name(kind: str) -> str | None:
    """What a call that has no name does: "shell" for a shell_call."""
    return kind.removesuffix("_call") if kind in ITEM_CALLS else None


def role_of(message: Mapping[str, Any]) -> str:
    """Who speaks: the role, and for items without one "assistant" or "tool"."""
    role = message.get("role")
    if isinstance(role, str):
        return role
    return "tool" if kind_of(message) in ITEM_RESULTS else "assistant"


def shape_of(message: Mapping[str, Any]) -> Shape | None:
    """The shape of *message*, or None if it is the same in all."""
    role = message.get("role")
    if isinstance(message.get("type"), str):
        # Anthropic's replies say that they are messages, and so do items.
        return "anthropic" if _is_reply(message) else "responses"
    if role in ("tool", "function") or any(message.get(key) for key in _CHAT_KEYS):
        return "chat"
    for block in blocks_of(message):
        shape = _shape_of_part(block)
        if shape:
            return shape
    return None


def _is_reply(message: Mapping[str, Any]) -> bool:
    if kind_of(message) != "message":
        return False
    return "stop_reason" in message or _first(blocks_of(message)) == "anthropic"


def _first(blocks: Iterable[Mapping[str, Any]]) -> Shape | None:
    return next((shape for shape in map(_shape_of_part, blocks) if shape), None)


def _shape_of_part(part: Mapping[str, Any]) -> Shape | None:
    kind = kind_of(part)
    if kind in _RESPONSES_PARTS:
        return "responses"
    if kind in _CHAT_PARTS or kind in _BOTH_OPENAI:
        return "chat"
    if kind in _ANTHROPIC_BLOCKS or kind.endswith(BLOCK_RESULTS):
        return "anthropic"
    if kind == "text" and ("cache_control" in part or "citations" in part):
        return "anthropic"
    return None


def shape_of_all(messages: Iterable[Mapping[str, Any]]) -> Shape | None:
    """The one shape of *messages*, or None if they have none or several."""
    shapes = {shape for shape in map(shape_of, messages) if shape}
    return shapes.pop() if len(shapes) == 1 else None


def blocks_of(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The parts of a *message* whose content is a list."""
    content = message.get("content")
    if not isinstance(content, list):
        return []
    return [part for part in content if isinstance(part, Mapping)]


def _named(call: Mapping[str, Any]) -> Iterator[str]:
    """Calls of before there were ids are known by their names."""
    yield from (f"function:{name}" for name in _texts([call.get("name")]))


def _texts(values: Iterable[Any]) -> Iterator[str]:
    yield from (value for value in values if isinstance(value, str) and value)


def kind_of(thing: Mapping[str, Any]) -> str:
    """The type of an item, a block or a part; "" if it has none."""
    kind = thing.get("type")
    return kind if isinstance(kind, str) else ""
