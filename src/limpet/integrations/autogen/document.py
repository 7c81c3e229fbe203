"""The stored document: what it has to look like, and how a damaged one is repaired.

What is missing in a state AutoGen takes for nothing, and forgets what the agent knew; what is of
another kind it finds out halfway, by a ``KeyError``. So a state is checked before it is loaded. And
a model context in which a call has no result, which AutoGen saves without a word after an error or
a cancelled run, is repaired: a provider would refuse the whole history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import autogen_agentchat.state as states
import msgspec
from autogen_core.models import CreateResult
from autogen_core.tools import ToolResult
from msgspec import Struct
from pydantic import ValidationError

from limpet.errors import BrokenHistory, WrongState
from limpet.integrations.autogen.recording import CODE_RESULT
from limpet.integrations.autogen.run import EXECUTOR, SECTION
from limpet.llm.messages.repair import INTERRUPTED, Repair
from limpet.states.format import type_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.states.state import AsyncState

__all__ = [
    "FORMAT",
    "MISMATCHES",
    "Mismatch",
    "check_section",
    "check_state",
    "check_type",
    "member_states",
    "repair_contexts",
    "take_section",
    "wrong_state",
]

#: Of what is stored besides AutoGen's own.
FORMAT = 1

Dumped = dict[str, Any]

#: What code raises that takes one thing for another.
MISMATCHES = (AttributeError, LookupError, TypeError, ValueError)


class Mismatch(ValueError):
    """Where a stored state is not what it should be, and in what."""


# -- what is stored besides AutoGen's own ----------------------------------------------------------


class Extra(Struct):
    """What AutoGen does not save of an agent or a team."""

    termination: Dumped | None = None
    groups: dict[str, list[str]] = {}
    context: Dumped | None = None
    wrapped: Dumped | None = None
    tools: list[Dumped] = []
    members: dict[str, Extra] = {}


class SavedCall(Struct):
    """A tool call of a turn that is not over; see `ActorLog`."""

    tool: str
    id: str | None = None
    task: str | None = None
    step: str | None = None
    result: Dumped | None = None


class SavedActor(Struct):
    """What one agent's model answered, and its tools did, in that turn."""

    replies: list[Dumped] = []
    calls: dict[str, SavedCall] = {}


class SavedMessage(Struct):
    """A message; its class knows what else is in it."""

    type: str
    id: str | None = None


class SavedRun(Struct):
    """A run that is not over, or may be asked for again."""

    task: list[SavedMessage]
    output: list[SavedMessage | str] = []
    started: bool = False
    resumed: int = 0
    done: bool = False
    reason: str | None = None
    forgotten: bool = False
    log: dict[str, SavedActor] = {}


class Section(Struct):
    """All that is under our key."""

    format: int = FORMAT
    extra: Extra | None = None
    repairs: list[Dumped] = []
    run: SavedRun | None = None


class GraphState(Struct):
    """The manager of a graph; AutoGen has no model of its state."""

    message_thread: list[Dumped]
    current_turn: int
    remaining: dict[str, dict[str, int]]
    enqueued_any: dict[str, dict[str, bool]]
    ready: list[str]


# -- checks ----------------------------------------------------------------------------------------


def take_section(document: Any) -> Dumped:
    """What is stored besides AutoGen's own in *document*, taken out of it."""
    if not isinstance(document, dict):
        raise Mismatch("it is no dict")
    found = document.pop(SECTION, None) or {}
    if not isinstance(found, dict):
        raise Mismatch(f"{SECTION!r} in it is no dict")
    return found


def check_type(first: Any, document: Any, it: Any) -> None:
    """That *it* is not given the state of something else: AutoGen takes it, and forgets all."""
    found, wanted = type_of(document), type_of(first)
    if None not in (found, wanted) and found != wanted:
        msg = (
            f"A state of type {found!r} was given to {type(it).__name__}, whose own are of type "
            f"{wanted!r}. Loading it would lose what is in it, and what there was before."
        )
        raise WrongState(msg)


def check_section(section: Dumped) -> None:
    """That what is stored besides AutoGen's own can be loaded; `Mismatch` and the like."""
    run = msgspec.convert(section, Section).run
    for path, actor in run.log.items() if run is not None else ():
        whose = path or "the agent"
        for reply in actor.replies:
            if CreateResult.model_validate(reply).content == []:
                raise Mismatch(f"a reply to {whose} has neither text nor calls")
        for key, call in actor.calls.items():
            number, colon, _ = key.partition(":")
            if not colon or not number.isdecimal() or int(number) > len(actor.replies):
                raise Mismatch(f"no model has made the call {key!r} of {whose}")
            if call.result is None and call.id is None and None in (call.task, call.step):
                raise Mismatch(f"the call {key!r} of {whose} has neither a result nor an id")
            if call.result is not None and call.tool == EXECUTOR:
                CODE_RESULT.validate_python(call.result)
            elif call.result is not None:
                ToolResult.model_validate(call.result)


def member_states(state: Any) -> dict[str, Dumped]:
    """The states of the members of a team and of its manager, by name."""
    found = (state if isinstance(state, dict) else {}).get("agent_states")
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise Mismatch("its 'agent_states' are not those of a team")
    return found


def check_state(first: Dumped, found: Any, path: str = "") -> None:
    """That *found* has the shape of *first*, which the same agent or team gave when it was new."""
    if not isinstance(found, dict):
        raise Mismatch(f"{path or 'it'} is no dict")
    if first.keys() == set(GraphState.__struct_fields__):
        _check_graph(first, found, path)
    model = getattr(states, type_of(first) or "", None)
    if model is None or found.get("type") == "BaseState":
        return  # a class of somebody's own, which knows by itself; or there was nothing to save
    for name in model.model_fields:
        if name not in found:
            raise Mismatch(f"{path or 'it'} has no {name!r}")
    if found["type"] != first["type"]:
        raise Mismatch(f"{path or 'it'} is of type {found['type']!r:.80}, not {first['type']!r}")
    for name in first.keys() & {"agent_state", "inner_team_state"}:
        check_state(first[name], found[name], f"{path}.{name}".lstrip("."))
    members = first.get("agent_states", {})
    for name, state in members.items():
        check_state(state, found["agent_states"][name], f"{path}.{name}".lstrip("."))
        _check_speaker(list(members)[:-1], found["agent_states"][name])  # the manager comes last
    if first.get("llm_context") and "messages" not in found["llm_context"]:
        raise Mismatch(f"{path}.llm_context has no 'messages'".lstrip("."))


def _check_graph(first: Dumped, found: Dumped, path: str) -> None:
    """That it knows every node: AutoGen would find out when it comes there."""
    msgspec.convert(found, GraphState)
    for name in ("remaining", "enqueued_any"):
        missing = [node for node in first[name] if node not in found[name]]
        if missing:
            raise Mismatch(f"{path}.{name} has no {missing[0]!r}")


def _check_speaker(names: list[str], manager: Dumped) -> None:
    """That the next to speak is there: AutoGen would find out when it is their turn."""
    index, speaker = manager.get("next_speaker_index", 0), manager.get("current_speaker")
    if not 0 <= int(index) < len(names):
        raise Mismatch(f"number {int(index) + 1} is to speak next, and there are {len(names)}")
    if speaker and speaker not in names:
        raise Mismatch(f"{speaker!r:.80} spoke last, and is not there")


def wrong_state(state: AsyncState, it: Any, error: Exception) -> WrongState:
    """The error for a *state* that *it* cannot be loaded from, as *error* says."""
    return WrongState(
        f"State {state.id!r}, saved at {state.position}, is none that this {type(it).__name__} can "
        f"be loaded from: {_reason(error)}. Nothing in the store was changed. If a program or a "
        "person has altered it, repair it by a migration; or go back: "
        f"store.state({state.id!r}).history() lists its saves, restore(position) saves one again. "
        "Messages of types of your own are known by keep(message_types=…), or by the team's "
        "custom_message_types."
    )


def _reason(error: Exception) -> str:
    """What was wrong, without what is stored there: that is the user's, and may be long."""
    if isinstance(error.__cause__, ValidationError):  # of which AutoGen says something else
        error = error.__cause__
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        return ": ".join(filter(None, (error.title, where, first["msg"])))
    if isinstance(error, (Mismatch, msgspec.ValidationError)):
        return str(error).rstrip(".")
    return f"{type(error).__name__}: {error!s:.80}".rstrip(".")


# -- repairs ---------------------------------------------------------------------------------------

_RESULTS = "FunctionExecutionResultMessage"


def repair_contexts(state: Any, rule: str) -> list[tuple[str, Repair]]:
    """Make every model context in *state* whole, in place; what was done, and in whose.

    *rule*: "stub", "drop", or "raise" for `BrokenHistory`; see `limpet.llm.messages.repair`.
    """
    found: list[tuple[str, Repair]] = []
    for where, context in _contexts(state):
        context["messages"], repairs = _repaired(context["messages"], rule)
        found += [(where, repair) for repair in repairs]
    if found and rule == "raise":
        lines = "\n".join(
            f"- {where or 'the agent'}: {repair.what}" for where, repair in found[:10]
        )
        msg = (
            f"No provider would take this state as it is:\n{lines}\n"
            'keep(…, repair="stub" or "drop") makes it whole; what is stored stays as it was.'
        )
        raise BrokenHistory(msg, [repair for _, repair in found])
    return found


def _contexts(state: Any, path: str = "") -> Iterator[tuple[str, Dumped]]:
    """Every model context in what AutoGen has saved, or in what is stored besides."""
    if not isinstance(state, dict):
        return
    for name in ("llm_context", "context"):
        context = state.get(name)
        if isinstance(context, dict) and isinstance(context.get("messages"), list):
            yield path, context
    for name in ("agent_state", "inner_team_state", "wrapped"):
        yield from _contexts(state.get(name), path)
    for name in ("agent_states", "members"):
        for member, inner in (state.get(name) or {}).items():
            yield from _contexts(inner, f"{path}/{member}" if path else member)


def _repaired(messages: list[Dumped], rule: str) -> tuple[list[Dumped], list[Repair]]:
    """*messages* with every call answered, right behind it, and no answer to nothing."""
    if not all(isinstance(message, dict) for message in messages):
        raise TypeError("a model context has what is no message")
    repaired: list[Dumped] = []
    repairs: list[Repair] = []
    calls: dict[str, Dumped] = {}  # those of the message before
    for index, message in enumerate([*messages, None]):
        results = message if message is not None and message.get("type") == _RESULTS else None
        if calls or results:
            answers, missing, wrong = _answers(results, calls, index, rule)
            repairs += wrong
            if missing and rule == "drop":
                repaired[-1:] = _without(repaired[-1], missing)
            if answers:
                repaired.append({"type": _RESULTS, **(results or {}), "content": answers})
        calls = {}
        if message is not None and results is None:
            content = message.get("content")
            if message.get("type") == "AssistantMessage" and isinstance(content, list):
                calls = {c["id"]: c for c in content if isinstance(c, dict) and "id" in c}
            repaired.append(message)
    return repaired, repairs


def _answers(
    results: Dumped | None, calls: dict[str, Dumped], index: int, rule: str
) -> tuple[list[Dumped], list[Dumped], list[Repair]]:
    """The results that are to be there, the calls that have none, and what was wrong."""
    there = [] if results is None else results["content"]
    answers = [result for result in there if result.get("call_id") in calls]
    repairs = [
        Repair(index, "orphan_result", "a result that answers no call was left out", id_)
        for id_ in (result.get("call_id") for result in there)
        if id_ not in calls
    ]
    answered = {result["call_id"] for result in answers}
    missing = [call for id_, call in calls.items() if id_ not in answered]
    done = "it was left out" if rule == "drop" else "one that says so stands in for it"
    for call in missing:
        name = call.get("name")
        what = f"the call of {name!r} has no result; {done}"
        repairs.append(Repair(index - 1, "unanswered_call", what, call["id"], name))
        if rule != "drop":
            stub = {"content": INTERRUPTED, "name": name or "", "call_id": call["id"]}
            answers.append({**stub, "is_error": True})
    return answers, missing, repairs


def _without(message: Dumped, calls: list[Dumped]) -> list[Dumped]:
    """*message* without these *calls*; its thought stays as text; nothing, if that is all."""
    rest = [call for call in message["content"] if call not in calls]
    if rest:
        return [{**message, "content": rest}]
    thought = message.get("thought")
    return [{**message, "content": thought, "thought": None}] if thought else []
