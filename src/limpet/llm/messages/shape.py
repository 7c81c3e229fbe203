"""Which shape a message has, and which tool calls it makes or answers.

Three shapes are known: messages of OpenAI's Chat Completions, items of OpenAI's Responses, and
messages of Anthropic's with blocks of content. A message that is the same in all of them, such as
``{"role": "user", "content": "Hello"}``, has none. Nothing here fails, whatever it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Shape = Literal["chat", "responses", "anthropic"]

__all__ = [
    "CallSite",
    "ResultSite",
    "binds_next",
    "blocks_of",
    "calls_of",
    "ids_of",
    "is_result",
    "kind_of",
    "name_of",
    "results_of",
    "role_of",
    "shape_of",
    "shape_of_all",
    "sites_in",
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


#: Families: a call is answered by a result of its own family. Items are their own: the type.
CHAT = "tool_calls"
TOOL_USE = "tool_use"
SERVER = "server_tool_use"  # and others that the provider runs and answers by itself
LEGACY = "function"  # of before there were ids: known by the function's name

#: The family of what an item answers.
_ANSWERED = {
    **{f"{kind}_output": kind for kind in ITEM_CALLS},
    "tool_search_output": "tool_search_call",
    "mcp_approval_response": "mcp_approval_request",
}


class Site(Struct, frozen=True):
    """A tool call in a message, or the result of one, and where in the message it stands."""

    family: str
    id: str  # of the call; "" where a result or a block does not say it
    block: int | None  # which of the calls or blocks; None for all of the message
    body: Mapping[str, Any]


class CallSite(Site, frozen=True):
    """A tool call."""

    @property
    def name(self) -> str | None:
        """The name of what is called, if it has one."""
        inner = self.body.get("function") or self.body.get("custom") or self.body
        name = inner.get("name") if isinstance(inner, Mapping) else None
        return name if isinstance(name, str) else None


class ResultSite(Site, frozen=True):
    """The result of a tool call."""


def sites_in(message: Mapping[str, Any]) -> Iterator[CallSite | ResultSite]:
    """The calls and the results in *message*, in order."""
    kind = kind_of(message)
    if kind in ITEM_CALLS:
        id_ = _text(message.get(ITEM_CALLS[kind]))
        if id_:
            yield CallSite(kind, id_, None, message)
    elif kind in ITEM_RESULTS:
        id_ = next(filter(None, (_text(message.get(key)) for key in ITEM_RESULTS[kind])), "")
        if id_:
            yield ResultSite(_ANSWERED[kind], id_, None, message)
    else:
        yield from _in_chat(message)
        yield from _in_blocks(message)


def _in_chat(message: Mapping[str, Any]) -> Iterator[CallSite | ResultSite]:
    calls, legacy = message.get("tool_calls"), message.get("function_call")
    for number, call in enumerate(calls if isinstance(calls, list) else ()):
        id_ = _text(call.get("id")) if isinstance(call, Mapping) else ""
        if id_:
            yield CallSite(CHAT, id_, number, call)
    if isinstance(legacy, Mapping) and _text(legacy.get("name")):
        yield CallSite(LEGACY, f"function:{legacy['name']}", None, legacy)
    role = message.get("role")
    if role == "tool":
        yield ResultSite(CHAT, _text(message.get("tool_call_id")), None, message)
    elif role == "function" and _text(message.get("name")):
        yield ResultSite(LEGACY, f"function:{message['name']}", None, message)


def _in_blocks(message: Mapping[str, Any]) -> Iterator[CallSite | ResultSite]:
    content = message.get("content")
    for number, block in enumerate(content if isinstance(content, list) else ()):
        kind = kind_of(block) if isinstance(block, Mapping) else ""
        if kind in BLOCK_CALLS:
            family = TOOL_USE if kind == TOOL_USE else SERVER
            yield CallSite(family, _text(block.get("id")), number, block)
        elif kind == BLOCK_RESULT or kind.endswith(BLOCK_RESULTS):
            family = TOOL_USE if kind == BLOCK_RESULT else SERVER
            yield ResultSite(family, _text(block.get("tool_use_id")), number, block)


def ids_of(message: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The ids of the tool calls that *message* makes, and of those that it answers.

    But for those that it both makes and answers.
    """
    calls: list[str] = []
    results: list[str] = []
    for site in sites_in(message):
        if site.id:
            (calls if isinstance(site, CallSite) else results).append(site.id)
    if calls and results:
        both = {*calls} & {*results}
        calls = [id_ for id_ in calls if id_ not in both]
        results = [id_ for id_ in results if id_ not in both]
    return calls, results


def calls_of(message: Mapping[str, Any]) -> list[str]:
    """The ids of the tool calls that *message* makes, but for those that it answers itself.

    >>> calls_of({"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"})
    ['c1']
    """
    return ids_of(message)[0]


def results_of(message: Mapping[str, Any]) -> list[str]:
    """The ids of the tool calls that *message* answers, but for its own.

    >>> results_of({"role": "tool", "tool_call_id": "c1", "content": "12:00"})
    ['c1']
    """
    return ids_of(message)[1]


def is_result(block: Mapping[str, Any]) -> bool:
    """Whether *block*, of Anthropic's, says what came of a call."""
    kind = kind_of(block)
    return kind == BLOCK_RESULT or kind.endswith(BLOCK_RESULTS)


def binds_next(message: Mapping[str, Any]) -> bool:
    """Whether *message* means nothing without the one after it: a reasoning item of Responses."""
    return kind_of(message) == REASONING


def name_of(message: Mapping[str, Any], call_id: str) -> str | None:
    """The name of the tool that *message* calls under *call_id*, if it says."""
    for site in sites_in(message):
        if isinstance(site, CallSite) and site.id == call_id:
            # What has no name is called by what it does: "shell" for a shell_call.
            unnamed = site.family.removesuffix("_call") if site.family in ITEM_CALLS else None
            return site.name or unnamed
    return None


def role_of(message: Mapping[str, Any]) -> str:
    """Who speaks: the role, and for items without one "assistant" or "tool"."""
    role = message.get("role")
    if isinstance(role, str):
        return role
    return "tool" if kind_of(message) in ITEM_RESULTS else "assistant"


def shape_of(message: Mapping[str, Any]) -> Shape | None:
    """The shape of *message*, or None if it is the same in all."""
    shapes = (shape for shape in map(_shape_of_part, blocks_of(message)) if shape)
    if isinstance(message.get("type"), str):
        # Anthropic's replies say that they are messages, and so do items.
        is_reply = kind_of(message) == "message" and (
            "stop_reason" in message or next(shapes, None) == "anthropic"
        )
        return "anthropic" if is_reply else "responses"
    if message.get("role") in ("tool", "function") or any(map(message.get, _CHAT_KEYS)):
        return "chat"
    return next(shapes, None)


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


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def kind_of(thing: Mapping[str, Any]) -> str:
    """The type of an item, a block or a part; "" if it has none."""
    kind = thing.get("type")
    return kind if isinstance(kind, str) else ""
