"""Model contexts that a crash has damaged, by the rule of conversations, in AutoGen's own shape.

One call without its result and the provider refuses the whole history. AutoGen saves such a context
without a word, for instance after an error or a cancelled run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.errors import BrokenHistory
from limpet.llm.messages.repair import INTERRUPTED, Repair

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["contexts", "mend"]

_CALLS = "AssistantMessage"
_RESULTS = "FunctionExecutionResultMessage"

Message = dict[str, Any]


def mend(state: Any, rule: str, path: str = "") -> list[tuple[str, Repair]]:
    """Make every model context in *state* whole, in place; what was done, and in whose.

    *rule*: "stub", "drop", or "raise" for `BrokenHistory`.
    """
    found: list[tuple[str, Repair]] = []
    for where, context in contexts(state, path):
        mended, repairs = _mended(context["messages"], rule)
        context["messages"] = mended
        found += [(where, repair) for repair in repairs]
    if found and rule == "raise":
        said = "\n".join(f"- {where or 'the agent'}: {repair.what}" for where, repair in found[:10])
        msg = (
            f"No provider would take this state as it is:\n{said}\n"
            'keep(…, repair="stub" or "drop") makes it whole; what is stored stays as it was.'
        )
        raise BrokenHistory(msg, [repair for _, repair in found])
    return found


def contexts(state: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every model context in what AutoGen has saved, or in what is kept beside it."""
    if not isinstance(state, dict):
        return
    for name in ("llm_context", "context"):
        context = state.get(name)
        if isinstance(context, dict) and isinstance(context.get("messages"), list):
            yield path, context
    for name in ("agent_state", "inner_team_state", "wrapped"):
        yield from contexts(state.get(name), path)
    for name in ("agent_states", "parts"):
        for member, part in (state.get(name) or {}).items():
            yield from contexts(part, f"{path}/{member}" if path else member)


def _mended(messages: list[Message], rule: str) -> tuple[list[Message], list[Repair]]:
    """*messages* with every call answered, right behind it, and no answer to nothing."""
    if not all(isinstance(message, dict) for message in messages):
        raise TypeError("a model context has what is no message")
    mended: list[Message] = []
    repairs: list[Repair] = []
    waiting: list[Message] = []  # the calls of the message before
    for index, message in enumerate([*messages, None]):
        results = message if message is not None and message.get("type") == _RESULTS else None
        if waiting or results:
            given, missing, repaired = _answers(results, waiting, index, rule)
            repairs += repaired
            if missing and rule == "drop":
                mended[-1:] = _without(mended[-1], missing)
            if given:
                mended.append({"type": _RESULTS, **(results or {}), "content": given})
        waiting = []
        if message is not None and results is None:
            waiting = _calls(message)
            mended.append(message)
    return mended, repairs


def _answers(
    results: Message | None, waiting: list[Message], index: int, rule: str
) -> tuple[list[Message], list[Message], list[Repair]]:
    """The results that are to stand there, the calls that have none, and what was wrong."""
    asked = {call["id"]: call for call in waiting}
    there = [] if results is None else results["content"]
    given = [result for result in there if result.get("call_id") in asked]
    orphans = [result.get("call_id") for result in there if result.get("call_id") not in asked]
    what = "a result that answers no call was left out"
    repairs = [Repair(index, "orphan_result", what, call_id) for call_id in orphans]
    answered = {result["call_id"] for result in given}
    missing = [call for id_, call in asked.items() if id_ not in answered]
    repairs += [_unanswered(call, index - 1, rule) for call in missing]
    return given + ([] if rule == "drop" else [_stub(call) for call in missing]), missing, repairs


def _without(message: Message, calls: list[Message]) -> list[Message]:
    """*message* without these *calls*: what was said beside them stays; nothing, if that is all."""
    left = [call for call in message["content"] if call not in calls]
    if left:
        return [{**message, "content": left}]
    said = message.get("thought")
    return [{**message, "content": said, "thought": None}] if said else []


def _calls(message: Message) -> list[Message]:
    content = message.get("content")
    if message.get("type") != _CALLS or not isinstance(content, list):
        return []
    return [call for call in content if isinstance(call, dict) and "id" in call]


def _stub(call: Message) -> Message:
    return {
        "content": INTERRUPTED,
        "name": call.get("name", ""),
        "call_id": call["id"],
        "is_error": True,
    }


def _unanswered(call: Message, index: int, rule: str) -> Repair:
    done = "it was left out" if rule == "drop" else "one that says so stands in for it"
    what = f"the call of {call.get('name')!r} has no result; {done}"
    return Repair(index, "unanswered_call", what, call["id"], call.get("name"))
