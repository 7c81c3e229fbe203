"""Agents and teams of AutoGen's as their states have them; none of this needs AutoGen.

A state is a document. What was said in a team is in its manager's thread; what a model is shown, in
each agent's context. Both are lists of messages, each with a type of AutoGen's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.integrations.autogen.run import SECTION
from limpet.views.chat import Mark, Stored, Usage, timestamp_in, usage_in
from limpet.views.messages import written
from limpet.views.text import count

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CHATS", "Told", "messages_in", "models_in", "notes_on", "stored"]

#: The types of states that are agents or teams with something to read.
CHATS = frozenset({"AssistantAgentState", "SocietyOfMindAgentState", "TeamState"})

#: What stands between an agent and what was said to it, in the path of a context.
_INNER = ("agent_state", "inner_team_state", "wrapped")

#: Messages that say what came of what a model asked for.
_OF_TOOLS = ("ToolCallExecutionEvent", "FunctionExecutionResultMessage", "CodeExecutionEvent")


class Told(Struct, frozen=True):
    """A list of messages in a document: the thread of a team, or what one agent's model knows."""

    path: str  # of the agent or team, "" for the outermost
    is_thread: bool
    messages: list[Any]


def messages_in(document: Any) -> list[Told]:
    """Every list of messages in *document*: threads first, the outermost first of all."""

    def order(told: Told) -> tuple[bool, int]:
        return not told.is_thread, len(told.path.split("/")) if told.path else 0

    return sorted(_messages_in(document, ""), key=order)


def _messages_in(state: Any, path: str) -> Iterator[Told]:
    if not isinstance(state, dict):
        return
    if isinstance(state.get("message_thread"), list):
        yield Told(path.rpartition("/")[0], is_thread=True, messages=state["message_thread"])
    for name in ("llm_context", "context"):
        context = state.get(name)
        if isinstance(context, dict) and isinstance(context.get("messages"), list):
            yield Told(path, is_thread=False, messages=context["messages"])
    for name in _INNER:
        yield from _messages_in(state.get(name), path)
    members = state.get("agent_states")
    for name, member in members.items() if isinstance(members, dict) else ():
        yield from _messages_in(member, f"{path}/{name}" if path else str(name))
    section = state.get(SECTION)
    extra = section.get("extra") if isinstance(section, dict) and not path else None
    yield from _in_extra(extra, path)


def _in_extra(extra: Any, path: str) -> Iterator[Told]:
    """Contexts that AutoGen itself does not save."""
    if not isinstance(extra, dict):
        return
    context = extra.get("context")
    if isinstance(context, dict) and isinstance(context.get("messages"), list):
        yield Told(path, is_thread=False, messages=context["messages"])
    yield from _messages_in(extra.get("wrapped"), path)
    members = extra.get("members")
    for name, member in members.items() if isinstance(members, dict) else ():
        yield from _in_extra(member, f"{path}/{name}" if path else str(name))


def models_in(document: Any) -> dict[str, str]:
    """The model of each agent, by the agent's name, as the stored component says it."""
    section = document.get(SECTION) if isinstance(document, dict) else None
    component = section.get("component") if isinstance(section, dict) else None
    return dict(_models_in(component))


def _models_in(component: Any) -> Iterator[tuple[str, str]]:
    config = component.get("config") if isinstance(component, dict) else None
    if not isinstance(config, dict):
        return
    client = config.get("model_client")
    inner = client.get("config") if isinstance(client, dict) else None
    model = inner.get("model") if isinstance(inner, dict) else None
    if isinstance(model, str) and isinstance(config.get("name"), str):
        yield config["name"], model
    participants = config.get("participants")
    for one in participants if isinstance(participants, list) else ():
        yield from _models_in(one)
    for name in ("team", "wrapped_agent"):
        yield from _models_in(config.get(name))


def notes_on(document: Any) -> list[tuple[str, list[str], str]]:
    """What there is to know of the run, as sections: a title, its lines and its tone."""
    section = document.get(SECTION) if isinstance(document, dict) else None
    if not isinstance(section, dict):
        return []
    found: list[tuple[str, list[str], str]] = []
    run = section.get("run")
    if isinstance(run, dict) and not run.get("done"):
        task = [stored(one, 0).message.get("content") for one in _list(run.get("task"))]
        lines = [f"It was asked: {_text(content)}" for content in task]
        if run.get("resumed"):
            lines.append(f"It was resumed {run['resumed']} times.")
        for path, actor in _dict(run.get("log")).items():
            calls = list(_dict(_dict(actor).get("calls")).values())
            done = sum("result" in call for call in calls if isinstance(call, dict))
            replies = count(len(_list(_dict(actor).get("replies"))), "reply", "replies")
            lines.append(
                f"{path or 'the agent'}, in the turn that is not over: {replies} of its model, "
                f"{count(len(calls), 'tool call')}, {done} of them with a result"
            )
        found.append(("A run that is not over", lines, "warn"))
    elif isinstance(run, dict) and run.get("reason"):
        found.append(("The last run ended", [str(run["reason"])], ""))
    repairs = [one for one in _list(section.get("repairs")) if isinstance(one, dict)]
    if repairs:
        what = [f"{one.get('agent') or 'the agent'}: {one.get('what')}" for one in repairs]
        found.append(("Repaired", what, "warn"))
    return found


def stored(message: Any, number: int, models: dict[str, str] | None = None) -> Stored:
    """A *message* of AutoGen's in a shape that is known, with all that its state says of it."""
    if not isinstance(message, dict):
        return Stored(number, {"role": "message", "content": message})
    kind = str(message.get("type") or "")
    source = message.get("source")
    name = source if isinstance(source, str) else None
    usage = usage_in(message)
    if usage.input is not None and name is not None:
        known = (models or {}).get(name)
        usage = Usage(known or usage.model, usage.input, usage.output)
    return Stored(
        number=number,
        # Blocks are Anthropic's, where results are in a message of the user's.
        message={"role": "user", "content": _blocks(kind, message)},
        role=_role(kind, name),
        at=timestamp_in(message.get("created_at")),
        name=name,
        usage=usage,
        marks=[Mark(_KINDS[kind])] if kind in _KINDS else [],
    )


#: What there is to say of a message beside its content.
_KINDS = {
    "HandoffMessage": "handoff",
    "StopMessage": "stop",
    "MemoryQueryEvent": "memory",
    "UserInputRequestedEvent": "asks a person",
    "SelectSpeakerEvent": "chooses who speaks",
    "SelectorEvent": "chooses who speaks",
    "CodeGenerationEvent": "code",
    "ToolCallSummaryMessage": "summary of tool calls",
}


def _role(kind: str, name: str | None) -> str:
    if kind == "SystemMessage":
        return "system"
    if kind in _OF_TOOLS:
        return "tool"
    # In a context, whoever is not the agent itself is a user.
    return "user" if name == "user" or (name is None and kind == "UserMessage") else "assistant"


def _blocks(kind: str, message: dict[str, Any]) -> Any:
    """The content as a list of blocks, or as text."""
    content, result = message.get("content"), message.get("result")
    if kind == "ThoughtEvent":
        return [_thought(content)]
    if kind == "CodeExecutionEvent" and isinstance(result, dict):
        return [_result("", result.get("output"), failed=bool(result.get("exit_code")))]
    blocks = [_thought(message["thought"])] if message.get("thought") else []
    if isinstance(content, list):
        return blocks + [_block(one) for one in content]
    if isinstance(content, str) and blocks:
        return [*blocks, {"type": "text", "text": content}]
    return content


def _block(one: Any) -> dict[str, Any]:
    """A piece of a content: text, a call, a result, an image, or what a memory had."""
    if isinstance(one, dict):
        if "call_id" in one:
            return _result(one["call_id"], one.get("content"), failed=bool(one.get("is_error")))
        if {"id", "name", "arguments"} <= one.keys():
            arguments = one["arguments"]
            return {"type": "tool_use", "id": one["id"], "name": one["name"], "input": arguments}
        if isinstance(one.get("data"), str):
            source = {"type": "base64", "media_type": "image/png", "data": one["data"]}
            return {"type": "image", "source": source}
        if "mime_type" in one and "content" in one:
            one = one["content"]
    return {"type": "text", "text": _text(one)}


def _thought(text: Any) -> dict[str, Any]:
    return {"type": "thinking", "thinking": _text(text)}


def _result(call_id: Any, content: Any, *, failed: bool) -> dict[str, Any]:
    return {
        "type": "tool_result",
        "tool_use_id": call_id,
        "content": _text(content),
        "is_error": failed,
    }


def _text(value: Any) -> str:
    return written(value) if value is not None else ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
