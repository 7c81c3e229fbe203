"""Runs of the OpenAI Agents SDK that wait for a person; none of this needs the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.core.calls import RESOLVED
from limpet.errors import LimpetError
from limpet.integrations.openai_agents.record import DECIDED, KIND, RunRecord
from limpet.views.chat import Mark, Stored, Usage
from limpet.views.journal import read_slice
from limpet.views.messages import summary, tool_call, written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from limpet.backends.contract import Head
    from limpet.core.scope import Scope

__all__ = ["ASKS", "RunMessages", "read_run"]

#: The title of the calls that nobody has decided about.
ASKS = "Waits for a yes or no"

#: Entries that are read: the SDK's snapshots and what was decided between them.
MOST = 200


class RunMessages(Struct, frozen=True):
    """What was said in a run so far, why calls have no result, and what it waits for."""

    messages: list[Stored]
    notes: dict[str, str]
    sections: list[tuple[str, list[str], str]]  # title, lines and tone


async def read_run(scope: Scope, head: Head) -> RunMessages:
    """The run of *head*, as its newest snapshot has it."""
    first = max(head.first, head.seq - MOST + 1)
    found = await read_slice(scope, head, first=first, last=head.seq)
    record = RunRecord(head.key.id)
    damaged = [one.why for one in found.damaged]
    decided: list[str] = []
    for one in found.entries:
        try:
            record.take(one)
        except LimpetError as error:
            damaged.append(str(error))
        if one.type in (DECIDED, RESOLVED):
            decided.append(_decision(one.body) if one.type == DECIDED else summary(one, KIND))
    state = record.saved.get("state")
    messages = _messages(state if isinstance(state, dict) else {})
    notes: dict[str, str] = {}
    waits: list[str] = []
    if record.saved and record.ended is None:
        for ask in record.asks():
            said = {None: "waits for a yes or no", True: "approved", False: "rejected"}
            by = f" by {ask.by}" if ask.by else ""
            notes[ask.call_id] = said[ask.approved] + by
            if ask.approved is None:
                waits.append(f"{tool_call(ask.tool, ask.arguments)} of {ask.agent} ({ask.call_id})")
        for id_ in record.calls.open:
            notes[id_] = "began, and has no result yet"
    output = [] if record.ended is None else [written(record.ended.get("output"))]
    sections = [
        ("Output", output, ""),
        (ASKS, waits, "warn"),
        ("Decided", decided, ""),
        ("Damaged", damaged, "bad"),
    ]
    return RunMessages(messages, notes, [section for section in sections if section[1]])


def _decision(body: Any) -> str:
    if not isinstance(body, dict):
        return written(body)
    how = "approved" if body.get("approved") else "rejected"
    by = f" by {body['by']}" if body.get("by") else ""
    always = ", and later calls of that tool" if body.get("always") else ""
    why = f": {body['message']}" if body.get("message") else ""
    return f"{body.get('call_id')} {how}{by}{always}{why}"


def _messages(state: Mapping[str, Any]) -> list[Stored]:
    """The input, and what the agents have made of it."""
    given = state.get("original_input")
    found: list[Stored] = []
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else _list(given):
        message = item if isinstance(item, dict) else {"role": "message", "content": item}
        found.append(Stored(len(found) + 1, message))
    usages = _usages(state)
    for item in _list(state.get("session_items")) or _list(state.get("generated_items")):
        if not isinstance(item, dict) or item.get("type") == "tool_approval_item":
            continue  # which stands for a call that is there already
        raw = item.get("raw_item")
        agent = item.get("agent") or item.get("source_agent")
        name = agent.get("name") if isinstance(agent, dict) else None
        message = raw if isinstance(raw, dict) else {"role": "message", "content": raw}
        usage = usages.pop(_key(message), None)
        is_handoff = str(item.get("type")).startswith("handoff")
        marks = [Mark("handoff")] if is_handoff else []
        found.append(Stored(len(found) + 1, message, name=name, usage=usage, marks=marks))
    return found


def _usages(state: Mapping[str, Any]) -> dict[str, Usage]:
    """What the model took for each of its answers, by the last item of the answer."""
    found: dict[str, Usage] = {}
    for response in _list(state.get("model_responses")):
        usage = response.get("usage") if isinstance(response, dict) else None
        output = _list(response.get("output")) if isinstance(response, dict) else []
        if isinstance(usage, dict) and output and isinstance(output[-1], dict):
            counts = [usage.get(name) for name in ("input_tokens", "output_tokens")]
            given, made = (count if count.__class__ is int else None for count in counts)
            if given or made:
                found[_key(output[-1])] = Usage(input=given, output=made)
    return found


def _key(item: Mapping[str, Any]) -> str:
    return str(item.get("id") or item.get("call_id") or id(item))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
