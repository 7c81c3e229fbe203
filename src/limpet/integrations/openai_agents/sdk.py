"""What the integration needs of the SDK: its modules, when they are used, and its snapshots."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from limpet.core.redaction import FORGOTTEN
from limpet.errors import MissingExtra, Unreadable
from limpet.integrations.openai_agents.record import RunFinished

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import ModuleType

    from agents import Agent, RunState
    from agents.result import RunResultBase

    #: A run that waits: its state, or a result with interruptions.
    Waiting = RunState[Any, Any] | RunResultBase

__all__ = ["Snapshots", "sdk"]


def sdk(module: str = "agents") -> ModuleType:
    """A module of the SDK; `MissingExtra` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra.of("The OpenAI Agents SDK", "openai-agents", "openai-agents") from error


class Snapshots:
    """Runs as entries of a journal, and back.

    The options are for contexts that are no dicts, see ``RunState.to_json`` of the SDK. *redacted*
    is what is stored of a value.
    """

    def __init__(
        self,
        serializer: Callable[[Any], Any] | None,
        deserializer: Callable[[Any], Any] | None,
        *,
        strict: bool,
        redacted: Callable[[Any], Any],
    ) -> None:
        self._serializer = serializer
        self._deserializer = deserializer
        self._strict = strict
        self._redacted = redacted

    def take(self, run: Waiting, known: Collection[str | None] = ()) -> dict[str, Any]:
        """The entry for *run*: what the SDK writes, and what can be read without it.

        Calls are marked of which the arguments are not stored as they are; *known* are those of
        which that is so already, where *run* was restored.
        """
        agents = sdk()
        state: Any = run if isinstance(run, agents.RunState) else run.to_state()  # type: ignore[union-attr]
        found = state.to_json(context_serializer=self._serializer, strict_context=self._strict)
        if found["current_step"] is None:
            msg = "This run has ended, and there is nothing to go on with. Store its result."
            raise RunFinished(msg)
        asks = [
            {
                "call_id": item.call_id,
                "tool": item.qualified_name or item.name,
                "agent": getattr(item.agent, "name", None),
                "arguments": item.arguments,
            }
            for item in state.get_interruptions()
        ]
        redacted = _calls_with(found, lambda text: self._redacted(text) != text)
        for ask in asks:
            changes = self._redacted(ask["arguments"]) != ask["arguments"]
            if changes or ask["call_id"] in {*redacted, *known}:
                ask["redacted"] = True
        found = _without_digests(found, redacted)
        schema = found["$schemaVersion"]
        return {"schema": schema, "sdk": agents.__version__, "asks": asks, "state": found}

    async def restore(
        self, id_: str, agent: Agent[Any], saved: dict[str, Any]
    ) -> RunState[Any, Any]:
        """The SDK's state. `Unreadable` if this SDK or this agent can do nothing with it."""
        agents, module = sdk(), sdk("agents.run_state")
        if saved["schema"] not in module.SUPPORTED_SCHEMA_VERSIONS:
            msg = (
                f"Run {id_!r} was saved by openai-agents {saved['sdk']} in its format "
                f"{saved['schema']}; {agents.__version__} reads up to "
                f"{module.CURRENT_SCHEMA_VERSION}. Resume it with the version that saved it."
            )
            raise Unreadable(msg)
        forgotten = _calls_with(saved["state"], lambda text: FORGOTTEN in text)
        try:
            return await agents.RunState.from_json(  # type: ignore[no-any-return]
                agent,
                _without_digests(saved["state"], forgotten),
                context_deserializer=self._deserializer,
                strict_context=self._strict,
            )
        except (agents.AgentsException, ValueError, TypeError, LookupError) as error:
            msg = (
                f"Run {id_!r} cannot be resumed with the agent {agent.name!r}: {error} "
                "It takes the agents and tools that it was started with."
            )
            raise Unreadable(msg) from error


def _calls_with(state: dict[str, Any], holds_for: Callable[[str], bool]) -> set[str]:
    """The ids of the calls in a snapshot with such arguments."""
    items = [item.get("raw_item") for item in state.get("generated_items") or ()]
    return {
        item["call_id"]
        for item in items
        if isinstance(item, dict) and "call_id" in item and holds_for(item.get("arguments") or "")
    }


def _without_digests(state: dict[str, Any], calls: set[str]) -> dict[str, Any]:
    """The snapshot without the SDK's digests of what these *calls* were made with.

    It refuses to go on with a call whose arguments are others by now; and a digest tells whoever
    guesses what they were.
    """
    invocations = state["context"].get("tool_invocations") if calls else None
    if not invocations:
        return state
    left = {id_: one for id_, one in invocations.items() if id_ not in calls}
    return {**state, "context": {**state["context"], "tool_invocations": left}}
