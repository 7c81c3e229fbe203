"""Random histories in the three shapes of messages, and the damage that crashes do to them."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

    Message = dict[str, Any]

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Z"]), min_size=1)
NAMES = st.sampled_from(["search", "send_mail", "now"])
VALUES = st.one_of(st.integers(-5, 5), st.booleans(), st.none(), TEXT)
ARGUMENTS = st.dictionaries(st.sampled_from(["q", "to", "limit"]), VALUES, max_size=2)
PNG = "iVBORw0KGgo="


@dataclass
class Use:
    """A tool call and what came of it."""

    id: str
    name: str
    arguments: dict[str, Any]
    result: str
    kind: str = "function_call"


@dataclass
class Said:
    """One turn: what the user or the assistant says, thinks, shows and does."""

    role: str
    text: str
    thought: str = ""
    image: str = ""
    uses: list[Use] = field(default_factory=list)


@st.composite
def spoken(draw: Any, kinds: tuple[str, ...] = ("function_call",), most: int = 6) -> list[Said]:
    """A conversation that went well; the user begins, and may speak twice."""
    turns: list[Said] = []
    number = 0
    for _ in range(draw(st.integers(1, most))):
        image = draw(st.sampled_from(["", "", "https://example.org/a.png", "data"]))
        turns.append(Said("user", draw(TEXT), image=image))
        for _ in range(draw(st.integers(0, 3))):
            uses = []
            for _ in range(draw(st.integers(0, 3))):
                number += 1
                kind = draw(st.sampled_from(kinds))
                uses.append(Use(f"c{number}", draw(NAMES), draw(ARGUMENTS), draw(TEXT), kind))
            thought = draw(st.sampled_from(["", "Hm."]))
            text = draw(TEXT) if draw(st.booleans()) or not uses else ""
            turns.append(Said("assistant", text, thought, uses=uses))
    return turns


def chat(turns: list[Said]) -> list[Message]:
    """The turns as messages of Chat Completions, which has no thoughts."""
    found: list[Message] = []
    for turn in turns:
        message: Message = {"role": turn.role, "content": turn.text or None}
        if turn.image:
            message["content"] = [{"type": "text", "text": turn.text}, _chat_image(turn.image)]
        if turn.uses:
            message["tool_calls"] = [_chat_call(use) for use in turn.uses]
        found.append(message)
        found += [
            {"role": "tool", "tool_call_id": use.id, "content": use.result} for use in turn.uses
        ]
    return found


def _chat_image(image: str) -> Message:
    url = f"data:image/png;base64,{PNG}" if image == "data" else image
    return {"type": "image_url", "image_url": {"url": url}}


def _chat_call(use: Use) -> Message:
    if use.kind == "custom_tool_call":
        inner = {"name": use.name, "input": use.result}
        return {"id": use.id, "type": "custom", "custom": inner}
    function = {"name": use.name, "arguments": json.dumps(use.arguments)}
    return {"id": use.id, "type": "function", "function": function}


def responses(turns: list[Said]) -> list[Message]:
    """The turns as items of Responses."""
    found: list[Message] = []
    for number, turn in enumerate(turns):
        if turn.role == "user":
            content: list[Message] = [{"type": "input_text", "text": turn.text}]
            if turn.image:
                url = _chat_image(turn.image)["image_url"]["url"]
                content.append({"type": "input_image", "image_url": url, "detail": "auto"})
            found.append({"type": "message", "role": "user", "content": content})
            continue
        if turn.thought:
            summary = [{"type": "summary_text", "text": turn.thought}]
            thought = {"type": "reasoning", "id": f"rs_{number}", "summary": summary}
            found.append({**thought, "encrypted_content": "gAAA"})
        if turn.text:
            found.append(_output_message(number, turn.text))
        found += [CALLS[use.kind](use) for use in turn.uses]
        found += [RESULTS[use.kind](use) for use in turn.uses]
    return found


def _output_message(number: int, text: str) -> Message:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "role": "assistant", "content": content}
    return {"id": f"msg_{number}", **message, "status": "completed"}


def _call(use: Use, **more: Any) -> Message:
    return {"type": use.kind, "call_id": use.id, **more}


def _result(use: Use, **more: Any) -> Message:
    return {"type": f"{use.kind}_output", "call_id": use.id, **more}


CALLS: dict[str, Callable[[Use], Message]] = {
    "function_call": lambda use: _call(
        use, id=f"fc_{use.id}", name=use.name, arguments=json.dumps(use.arguments)
    ),
    "custom_tool_call": lambda use: _call(use, name=use.name, input=use.result),
    "computer_call": lambda use: _call(
        use,
        id=f"cu_{use.id}",
        action={"type": "screenshot"},
        pending_safety_checks=[],
        status="completed",
    ),
    "shell_call": lambda use: _call(use, action={"commands": ["ls"]}),
    "local_shell_call": lambda use: _call(
        use,
        id=f"lsh_{use.id}",
        action={"type": "exec", "command": ["ls"], "env": {}},
        status="completed",
    ),
    "apply_patch_call": lambda use: _call(
        use, operation={"type": "delete_file", "path": "a"}, status="completed"
    ),
    "mcp_approval_request": lambda use: {
        "type": use.kind,
        "id": use.id,
        "name": use.name,
        "arguments": json.dumps(use.arguments),
        "server_label": "files",
    },
}
RESULTS: dict[str, Callable[[Use], Message]] = {
    "function_call": lambda use: _result(use, output=use.result),
    "custom_tool_call": lambda use: _result(use, output=use.result),
    "computer_call": lambda use: _result(
        use, output={"type": "computer_screenshot", "image_url": "https://example.org/s.png"}
    ),
    "shell_call": lambda use: _result(
        use,
        output=[{"stdout": use.result, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    ),
    "local_shell_call": lambda use: {
        "type": "local_shell_call_output",
        "id": use.id,
        "output": use.result,
    },
    "apply_patch_call": lambda use: _result(use, status="completed", output=use.result),
    "mcp_approval_request": lambda use: {
        "type": "mcp_approval_response",
        "approval_request_id": use.id,
        "approve": True,
    },
}
KINDS = tuple(CALLS)


def anthropic(turns: list[Said]) -> list[Message]:
    """The turns as messages of Anthropic's."""
    found: list[Message] = []
    results: list[Message] = []
    for turn in turns:
        if turn.role == "user":
            content = [*results, {"type": "text", "text": turn.text}]
            if turn.image:
                content.append(_anthropic_image(turn.image))
            found.append({"role": "user", "content": content})
            results = []
            continue
        if results:
            found.append({"role": "user", "content": results})
        found.append({"role": "assistant", "content": _anthropic_blocks(turn)})
        results = [
            {"type": "tool_result", "tool_use_id": use.id, "content": use.result}
            for use in turn.uses
        ]
    return [*found, {"role": "user", "content": results}] if results else found


def _anthropic_blocks(turn: Said) -> list[Message]:
    blocks: list[Message] = []
    if turn.thought:
        blocks.append({"type": "thinking", "thinking": turn.thought, "signature": "EqQB"})
    if turn.text:
        blocks.append({"type": "text", "text": turn.text})
    blocks += [
        {"type": "tool_use", "id": use.id, "name": use.name, "input": use.arguments}
        for use in turn.uses
    ]
    return blocks


def _anthropic_image(image: str) -> Message:
    if image == "data":
        source = {"type": "base64", "media_type": "image/png", "data": PNG}
    else:
        source = {"type": "url", "url": image}
    return {"type": "image", "source": source}


# -- damage ----------------------------------------------------------------------------------------


@st.composite
def damaged(draw: Any, whole: st.SearchStrategy[list[Message]]) -> list[Message]:
    """A history with messages, or parts of them, gone, doubled, swapped; or its end cut off."""
    messages: list[Message] = copy.deepcopy(draw(whole))
    for _ in range(draw(st.integers(1, 4))):
        lists = _lists(messages)
        target = lists[draw(st.integers(0, len(lists) - 1))]
        if target:
            harm = draw(st.sampled_from(HARMS))
            harm(target, draw(st.integers(0, len(target) - 1)), draw(st.integers(0, 3)))
    return messages


def _lists(messages: list[Message]) -> list[list[Message]]:
    """What can be damaged: the history, three times as often, and the parts of a message."""
    found = [messages] * 3
    for message in messages:
        parts = (message.get("content"), message.get("tool_calls"))
        found += [part for part in parts if isinstance(part, list)]
    return found


def _delete(target: list[Message], at: int, _more: int) -> None:
    del target[at]


def _double(target: list[Message], at: int, more: int) -> None:
    target.insert(min(at + more, len(target)), copy.deepcopy(target[at]))


def _swap(target: list[Message], at: int, more: int) -> None:
    other = (at + more) % len(target)
    target[at], target[other] = target[other], target[at]


def _cut(target: list[Message], at: int, _more: int) -> None:
    del target[at + 1 :]


HARMS = (_delete, _double, _swap, _cut)
