"""Everything that this integration needs of AutoGen and that AutoGen calls private.

Checked with autogen-core and autogen-agentchat 0.7.5, the last release of their line. No other
module here touches an attribute or imports a module whose name begins with an underscore. Each part
below says why the public API does not do.
"""

# ruff: noqa: SLF001 - this module is the one place for AutoGen's private attributes

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autogen_agentchat.agents import MessageFilterAgent, SocietyOfMindAgent
from autogen_agentchat.conditions import TimeoutTermination
from autogen_agentchat.teams import BaseGroupChat, GraphFlow
from autogen_agentchat.teams._group_chat._events import (
    GroupChatAgentResponse,
    GroupChatRequestPublish,
    GroupChatStart,
    GroupChatTeamResponse,
    GroupChatTermination,
    SerializableException,
)
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core import AgentId, SingleThreadedAgentRuntime
from autogen_core.code_executor import CodeExecutor
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import FunctionTool, StaticWorkbench

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from autogen_agentchat.messages import MessageFactory

__all__ = [
    "FORMAT_ERRORS",
    "OF_A_RUN",
    "TOOL_FUNCTION",
    "GroupChatStart",
    "GroupChatTermination",
    "active_speakers",
    "code_executor",
    "containers_of",
    "counter_attributes",
    "edges",
    "function_of",
    "handoffs",
    "has_own_runtime",
    "inner",
    "inner_conditions",
    "is_runtime_done",
    "join",
    "manager_name",
    "manager_of",
    "message_factory",
    "messages_of",
    "model_client",
    "model_context",
    "output_content_type",
    "output_queue",
    "participants",
    "plans_at_start",
    "replace_code_executor",
    "replace_model_client",
    "replace_workbenches",
    "reset_manager",
    "runner_of",
    "runtime_of",
    "set_start_time",
    "set_stop_messages",
    "set_triggered_groups",
    "shown_name",
    "signal_error",
    "speaker_choice",
    "start_time",
    "stop_messages",
    "system_messages",
    "termination_condition",
    "tools_of",
    "triggered_groups",
    "workbenches",
]

# -- what agents are made of -----------------------------------------------------------------------
# Agents show their model context and nothing else: not their client, tools, prompt or members. A
# component's configuration would say it, but not every agent has one, and it holds no live objects.


def model_client(it: Any) -> ChatCompletionClient | None:
    """The model client of an agent, or of a manager that has one."""
    client = getattr(it, "_model_client", None)
    return client if isinstance(client, ChatCompletionClient) else None


def replace_model_client(it: Any, client: ChatCompletionClient) -> None:
    """Let *it* use another model client."""
    it._model_client = client


def workbenches(it: Any) -> list[Any]:
    """The workbenches of an agent."""
    return list(getattr(it, "_workbench", None) or ())


def replace_workbenches(it: Any, benches: list[Any]) -> None:
    """Let the agent *it* use other workbenches."""
    it._workbench = benches


def code_executor(it: Any) -> CodeExecutor | None:
    """What the agent *it* runs code by."""
    executor = getattr(it, "_code_executor", None)
    return executor if isinstance(executor, CodeExecutor) else None


def replace_code_executor(it: Any, executor: CodeExecutor) -> None:
    """Let the agent *it* run code by another executor."""
    it._code_executor = executor


def model_context(it: Any) -> ChatCompletionContext | None:
    """The model context of an agent, or of a manager, which does not show it."""
    found = getattr(it, "model_context", None) or getattr(it, "_model_context", None)
    return found if isinstance(found, ChatCompletionContext) else None


def messages_of(context: ChatCompletionContext) -> list[Any]:
    """All messages that *context* has; ``get_messages()`` returns those that it shows."""
    return context._messages


def system_messages(it: Any) -> list[Any]:
    """The prompt of an agent."""
    return list(getattr(it, "_system_messages", None) or ())


def handoffs(it: Any) -> dict[str, Any]:
    """To whom an agent can hand over, by the names of the tools for it."""
    return dict(getattr(it, "_handoffs", None) or {})


def output_content_type(it: Any) -> type[Any] | None:
    """The model that an agent answers with; ``produced_message_types`` does not say which."""
    return getattr(it, "_output_content_type", None)


def inner(it: Any) -> dict[str, Any]:
    """The agent or the team that an agent stands for."""
    if isinstance(it, SocietyOfMindAgent):
        return {"team": it._team}
    if isinstance(it, MessageFilterAgent):
        return {"wrapped": it._wrapped_agent}
    return {}


# -- teams -----------------------------------------------------------------------------------------
# A team shows its name and description. It has no hook between two turns, and its manager, which
# knows whose turn it is, lives within a runtime that is made anew with the team.


def participants(team: BaseGroupChat) -> list[Any]:
    """The members of a team."""
    return list(team._participants)


def termination_condition(team: BaseGroupChat) -> Any | None:
    """When a team ends."""
    return team._termination_condition


def message_factory(team: BaseGroupChat) -> MessageFactory:
    """What makes the team's messages of what is stored."""
    return team._message_factory


def manager_name(team: BaseGroupChat) -> str:
    """The name of its manager among the states of its members."""
    return team._group_chat_manager_name


def has_own_runtime(team: BaseGroupChat) -> bool:
    """Whether its runtime is its own; one that the user gave it may run other things as well."""
    return team._embedded_runtime


def runtime_of(team: BaseGroupChat) -> Any:
    """What delivers its messages."""
    return team._runtime


def output_queue(team: BaseGroupChat) -> asyncio.Queue[Any]:
    """The messages that it has put out and nobody has read."""
    return team._output_message_queue


def edges(team: BaseGroupChat) -> dict[str, list[str]]:
    """Of a graph, which nodes follow each; nothing, if it is none."""
    nodes = team._graph.nodes if isinstance(team, GraphFlow) else {}
    return {name: [edge.target for edge in node.edges] for name, node in nodes.items()}


async def manager_of(team: BaseGroupChat) -> Any | None:
    """The manager of a team, made now if it has not run yet; None in a runtime far away."""
    if not team._initialized:
        await team._init(team._runtime)
    if not isinstance(team._runtime, SingleThreadedAgentRuntime):
        return None
    address = AgentId(team._group_chat_manager_topic_type, team._team_id)
    return await team._runtime.try_get_underlying_agent_instance(address)


#: What a manager and the containers of its agents tell each other in a run.
OF_A_RUN = (
    GroupChatStart,
    GroupChatRequestPublish,
    GroupChatAgentResponse,
    GroupChatTeamResponse,
)


async def containers_of(team: BaseGroupChat) -> list[Any]:
    """What gives the members of a team their messages; nothing, in a runtime far away."""
    if not isinstance(team._runtime, SingleThreadedAgentRuntime):
        return []
    addresses = [AgentId(topic, team._team_id) for topic in team._participant_topic_types]
    return [await team._runtime.try_get_underlying_agent_instance(at) for at in addresses]


def speaker_choice(manager: Any) -> str:
    """The name of the method by which *manager* lets the next speak. MagenticOne's has its own."""
    name = "_orchestrate_step" if plans_at_start(manager) else "_transition_to_next_speakers"
    assert hasattr(manager, name)  # noqa: S101 - or a turn would never be stopped
    return name


def plans_at_start(manager: Any) -> bool:
    """Whether it makes a new plan at each start: MagenticOne's."""
    return hasattr(manager, "_orchestrate_step")


async def signal_error(manager: Any, error: Exception) -> None:
    """End the team's run with *error*."""
    await manager._signal_termination_with_error(SerializableException.from_exception(error))


def active_speakers(manager: Any) -> list[str]:
    """Who speaks just now."""
    return list(manager._active_speakers)


def reset_manager(manager: Any, *, turns: bool) -> None:
    """Forget who was to speak; with *turns* also how many have spoken."""
    manager._active_speakers = []
    if turns:
        manager._current_turn = 0


def triggered_groups(manager: Any) -> dict[str, set[str]]:
    """Of a graph's manager: which groups of edges have been triggered. AutoGen does not save it."""
    return dict(getattr(manager, "_triggered_activation_groups", None) or {})


def set_triggered_groups(manager: Any, groups: dict[str, set[str]]) -> None:
    """Put them back; `LookupError` if the graph has no such groups."""
    if not hasattr(manager, "_triggered_activation_groups"):
        return
    for node, names in groups.items():
        if not names <= manager._remaining[node].keys():
            raise LookupError(f"the graph has no such groups at {node!r}")
    manager._triggered_activation_groups = groups


# -- a runtime -------------------------------------------------------------------------------------
# ``stop_when_idle()`` waits until nothing is on its way, and then stops; there is no wait alone.


async def join(runtime: SingleThreadedAgentRuntime) -> None:
    """Wait until no message is on its way."""
    await runtime._message_queue.join()


def is_runtime_done(runtime: SingleThreadedAgentRuntime) -> bool:
    """Whether it runs no more: something has failed."""
    return runtime._run_context is None or runtime._run_context._run_task.done()


# -- tools -----------------------------------------------------------------------------------------
# A workbench shows the schemas of its tools, and makes a text of every error of theirs.

#: The method of a `StaticWorkbench` that makes a text of an error.
FORMAT_ERRORS = "_format_errors"
#: The attribute of a `FunctionTool` that is its function.
TOOL_FUNCTION = "_func"


def tools_of(bench: Any) -> list[Any]:
    """The tools of a workbench; none, if it is a server's."""
    return list(bench._tools) if isinstance(bench, StaticWorkbench) else []


def shown_name(bench: StaticWorkbench, tool: Any) -> str:
    """What models know *tool* by, which may have been renamed."""
    override = bench._tool_overrides.get(tool.name)
    return (override and override.name) or str(tool.name)


def function_of(tool: Any) -> Callable[..., Any] | None:
    """The function that *tool* is, if it is one."""
    return tool._func if isinstance(tool, FunctionTool) else None


def runner_of(tool: Any) -> Any | None:
    """The agent or the team that *tool* is, if it is one."""
    return tool._task_runner if isinstance(tool, (AgentTool, TeamTool)) else None


# -- termination conditions ------------------------------------------------------------------------
# They have no state to save, so their counters are read from their attributes.

_START_TIME = "_start_time"
_STOP_MESSAGES = "_stop_messages"
_PLAIN = (bool, int, float, str, type(None))


def counter_attributes(condition: Any) -> dict[str, Any]:
    """The attributes of *condition* that may be counters, limits among them."""
    found = {name: v for name, v in vars(condition).items() if isinstance(v, _PLAIN)}
    if isinstance(condition, TimeoutTermination):
        del found[_START_TIME]  # by a clock that only this process has
    return found


def inner_conditions(condition: Any) -> list[Any]:
    """Those that it is made of by ``&`` and ``|``."""
    return list(getattr(condition, "_conditions", ()))


def stop_messages(condition: Any) -> list[Any] | None:
    """Of an ``&``, those of its conditions that are met; None: it is no ``&``."""
    return getattr(condition, _STOP_MESSAGES, None)


def set_stop_messages(condition: Any, messages: list[Any]) -> None:
    """Put them back."""
    setattr(condition, _STOP_MESSAGES, messages)


def start_time(condition: TimeoutTermination) -> float:
    """When it began, by ``time.monotonic()``."""
    return condition._start_time


def set_start_time(condition: TimeoutTermination, when: float) -> None:
    """Let it have begun *when*, by ``time.monotonic()``."""
    condition._start_time = when
