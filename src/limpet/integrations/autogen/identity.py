"""What a saved state depends on: names, classes, prompts, models, tools."""

# ruff: noqa: SLF001 - AutoGen has no other way to a prompt, a model or a graph

from __future__ import annotations

import warnings
from typing import Any

from autogen_agentchat.teams import BaseGroupChat, GraphFlow
from autogen_core.tools import StaticWorkbench

from limpet.core.codec import plain
from limpet.errors import LimpetError
from limpet.integrations.autogen.recorded import RecordedClient, RecordedTools

__all__ = ["component_of", "fingerprint_of"]


async def fingerprint_of(it: Any) -> dict[str, Any]:
    """What *it* is, in so far as a state that it saved depends on that."""
    found: dict[str, Any] = {"name": it.name, "type": type(it).__name__}
    prompts = getattr(it, "_system_messages", None)
    if prompts:
        found["prompt"] = "\n\n".join(str(message.content) for message in prompts)
    model = model_of(getattr(it, "_model_client", None))
    if model is not None:
        found["model"] = model
    tools = await tools_of(it)
    if tools:
        found["tools"] = tools
    handoffs = getattr(it, "_handoffs", None)
    if handoffs:
        found["handoffs"] = {name: handoff.target for name, handoff in handoffs.items()}
    members = members_of(it)
    if members:
        found["members"] = {name: await fingerprint_of(member) for name, member in members.items()}
    if isinstance(it, GraphFlow):
        nodes = it._graph.nodes.items()
        found["graph"] = {name: [edge.target for edge in node.edges] for name, node in nodes}
    return found


def members_of(it: Any) -> dict[str, Any]:
    """The agents and teams within *it*."""
    if isinstance(it, BaseGroupChat):
        return {member.name: member for member in it._participants}
    inner = getattr(it, "_wrapped_agent", None) or getattr(it, "_team", None)
    return {inner.name: inner} if inner is not None and hasattr(inner, "name") else {}


def model_of(client: Any) -> str | None:
    """The model's name, as far as its client tells; else the client's class."""
    if client is None:
        return None
    inner = client.inner if isinstance(client, RecordedClient) else client
    arguments = getattr(inner, "_create_args", None)
    named = arguments.get("model") if isinstance(arguments, dict) else None
    return str(named or getattr(inner, "model", None) or type(inner).__name__)


async def tools_of(it: Any) -> dict[str, Any]:
    """The schemas of the tools. What a server offers is not known before it is started."""
    found: dict[str, Any] = {}
    for bench in getattr(it, "_workbench", None) or ():
        inner = bench.inner if isinstance(bench, RecordedTools) else bench
        if isinstance(inner, StaticWorkbench):
            found |= {tool["name"]: dict(tool) for tool in await inner.list_tools()}
        else:
            found[type(inner).__name__] = None
    return found


def component_of(it: Any) -> dict[str, Any] | None:
    """What AutoGen's ``dump_component`` says; None if a part of *it* cannot be told so.

    Never loaded here: it names what to import. Secrets are masked by AutoGen's own clients.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return plain(it.dump_component().model_dump(mode="json"))  # type: ignore[no-any-return]
    except (NotImplementedError, ValueError, TypeError, AttributeError, OSError, LimpetError):
        return None
