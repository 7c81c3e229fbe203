"""What a kept state has to look like, so that all of it is taken back.

What is missing in a state AutoGen takes for nothing, and forgets what the agent knew; what is of
another kind it finds out halfway, by a ``KeyError``. So a state is looked at before it is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import autogen_agentchat.state as states
import msgspec
from autogen_core.models import CreateResult
from autogen_core.tools import ToolResult
from msgspec import Struct
from pydantic import ValidationError

from limpet.errors import WrongState
from limpet.integrations.autogen.recorded import CODE, EXECUTOR
from limpet.integrations.autogen.run import OURS
from limpet.states.format import type_of

if TYPE_CHECKING:
    from limpet.states.state import AsyncState

__all__ = [
    "MISFITS",
    "Misfit",
    "check_ours",
    "check_state",
    "check_type",
    "members_of",
    "misfit",
    "ours_in",
]

Dumped = dict[str, Any]

#: What is raised by who takes one thing for another.
MISFITS = (AttributeError, LookupError, TypeError, ValueError)


class Misfit(ValueError):
    """Where a stored state is not what it should be, and in what."""


# -- what is kept beside AutoGen's own -------------------------------------------------------------


class Beside(Struct):
    """What AutoGen does not save of an agent or a team."""

    termination: Dumped | None = None
    groups: dict[str, list[str]] = {}
    context: Dumped | None = None
    wrapped: Dumped | None = None
    tools: list[Dumped] = []
    parts: dict[str, Beside] = {}


class Call(Struct):
    """A tool call of a turn that is not over."""

    tool: str
    task: str = ""
    step: str = ""
    result: Dumped | None = None


class Actor(Struct):
    """What one agent's model said, and its tools did, in that turn."""

    replies: list[Dumped] = []
    calls: dict[str, Call] = {}


class Message(Struct):
    """A message; its class knows what else is in it."""

    type: str
    id: str | None = None


class SavedRun(Struct):
    """A run that is not over, or may be asked for again."""

    task: list[Message]
    said: list[Message | str] = []
    started: bool = False
    taken: int = 0
    done: bool = False
    reason: str | None = None
    log: dict[str, Actor] = {}


class Ours(Struct):
    """All that is under our key."""

    format: int = 1
    beside: Beside | None = None
    repairs: list[Dumped] = []
    run: SavedRun | None = None


class GraphState(Struct):
    """The manager of a graph; AutoGen has no model of its state."""

    message_thread: list[Dumped]
    current_turn: int
    remaining: dict[str, dict[str, int]]
    enqueued_any: dict[str, dict[str, bool]]
    ready: list[str]


# -- looking at it ---------------------------------------------------------------------------------


def ours_in(document: Any) -> Dumped:
    """What is kept beside AutoGen's own in *document*, and no longer is there."""
    if not isinstance(document, dict):
        raise Misfit("it is no dict")
    found = document.pop(OURS, None) or {}
    if not isinstance(found, dict):
        raise Misfit(f"{OURS!r} in it is no dict")
    return found


def check_type(made: Dumped, document: Any, it: Any) -> None:
    """That *it* is not given the state of something else: AutoGen takes it, and forgets all."""
    found, wanted = type_of(document), type_of(made)
    if None not in (found, wanted) and found != wanted:
        msg = (
            f"A state of type {found!r} was given to {type(it).__name__}, whose own are of type "
            f"{wanted!r}. Loading it would lose what is in it, and what there was before."
        )
        raise WrongState(msg)


def check_ours(ours: Dumped) -> None:
    """That *ours*, which is kept beside AutoGen's own, can be taken back; `Misfit` and the like."""
    found = msgspec.convert(ours, Ours)
    if found.run is not None:
        for path, actor in found.run.log.items():
            _check_actor(actor, path or "the agent")


def members_of(state: Any) -> dict[str, Dumped]:
    """The states of the members of a team and of its manager, by name."""
    found = (state if isinstance(state, dict) else {}).get("agent_states")
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise Misfit("its 'agent_states' are not those of a team")
    return found


def check_state(made: Dumped, found: Any, path: str = "") -> None:
    """That *found* has the shape of *made*, which the same agent or team gave when it was new."""
    if not isinstance(found, dict):
        raise Misfit(f"{path or 'it'} is no dict")
    if made.keys() == set(GraphState.__struct_fields__):
        msgspec.convert(found, GraphState)
        _check_graph(made, found, path)
    model = getattr(states, type_of(made) or "", None)
    if model is None or found.get("type") == "BaseState":
        return  # a class of somebody's own, which knows by itself; or there was nothing to save
    for name in model.model_fields:
        if name not in found:
            raise Misfit(f"{path or 'it'} has no {name!r}")
    if found["type"] != made["type"]:
        raise Misfit(f"{path or 'it'} is of type {found['type']!r:.80}, not {made['type']!r}")
    _check_within(made, found, path)


def _check_within(made: Dumped, found: Dumped, path: str) -> None:
    for name in ("agent_state", "inner_team_state"):
        if name in made:
            check_state(made[name], found[name], f"{path}.{name}".lstrip("."))
    members = made.get("agent_states", {})
    for name, state in members.items():
        check_state(state, found["agent_states"][name], f"{path}.{name}".lstrip("."))
        _check_speaker(list(members)[:-1], found["agent_states"][name])  # the manager comes last
    context = made.get("llm_context")
    if context and "messages" not in found["llm_context"]:
        raise Misfit(f"{path}.llm_context has no 'messages'".lstrip("."))


def _check_speaker(names: list[str], manager: Dumped) -> None:
    """That the next to speak is there: AutoGen would find out when it is their turn."""
    index, speaker = manager.get("next_speaker_index", 0), manager.get("current_speaker")
    if not 0 <= int(index) < len(names):
        raise Misfit(f"number {int(index) + 1} is to speak next, and there are {len(names)}")
    if speaker and speaker not in names:
        raise Misfit(f"{speaker!r:.80} spoke last, and is not there")


def _check_graph(made: Dumped, found: Dumped, path: str) -> None:
    """That it knows every node: AutoGen would find out when it comes there."""
    for name in ("remaining", "enqueued_any"):
        missing = [node for node in made[name] if node not in found[name]]
        if missing:
            raise Misfit(f"{path}.{name} has no {missing[0]!r}")


def _check_actor(actor: Actor, path: str) -> None:
    for reply in actor.replies:
        if CreateResult.model_validate(reply).content == []:
            raise Misfit(f"a reply to {path} has neither text nor calls")
    for key, call in actor.calls.items():
        number, colon, _ = key.partition(":")
        if not colon or not number.isdecimal() or int(number) > len(actor.replies):
            raise Misfit(f"no model has made the call {key!r} of {path}")
        if call.result is not None and call.tool == EXECUTOR:
            CODE.validate_python(call.result)
        elif call.result is not None:
            ToolResult.model_validate(call.result)


def misfit(state: AsyncState, it: Any, error: Exception) -> WrongState:
    """The error for a *state* that *it* cannot be loaded from."""
    return WrongState(
        f"State {state.id!r}, saved at {state.position}, is none that this {type(it).__name__} can "
        f"be loaded from: {_why(error)}. Nothing in the store was changed. If a program or a "
        "person has altered it, mend it by a migration; or go back: "
        f"store.state({state.id!r}).history() lists its saves, restore(position) saves one again. "
        "Messages of types of your own are known by keep(message_types=…), or by the team's "
        "custom_message_types."
    )


def _why(error: Exception) -> str:
    """What was wrong, without what is stored there: that is the user's, and may be long."""
    if isinstance(error.__cause__, ValidationError):  # of which AutoGen says something else
        error = error.__cause__
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        return (
            f"{error.title}: {where}: {first['msg']}" if where else f"{error.title}: {first['msg']}"
        )
    if isinstance(error, (Misfit, msgspec.ValidationError)):
        return str(error).rstrip(".")
    return f"{type(error).__name__}: {error!s:.80}".rstrip(".")
