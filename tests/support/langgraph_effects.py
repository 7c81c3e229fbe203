"""Graphs whose nodes and tools have effects, and processes that run them and die.

An effect is a line in a file: whoever counts the lines knows what has happened how often.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypedDict

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send

import limpet
from limpet.integrations.langgraph import LimpetSaver
from limpet.testing.boundaries import Boundaries
from limpet.testing.crash import ack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from langgraph.checkpoint.base import BaseCheckpointSaver

__all__ = ["KINDS", "World", "config_of", "finish", "run", "work"]

Graph: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]

#: How often the node goes round, or the model calls its tools.
ROUNDS = 2


class World:
    """Where effects take place: a file. They can be looked for, so a call in doubt is verified."""

    def __init__(self, path: str, kill_at: int = 0) -> None:
        self.path = path
        self._left = kill_at

    def act(self, what: str) -> str:
        """Do it. At moment *kill_at*, just before or after that, the process kills itself."""
        self._pass()
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, f"{limpet.current_step().idempotency_key}\t{what}\n".encode())
        finally:
            os.close(file)
        self._pass()
        return f"did {what}"

    def _pass(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def happened(self) -> list[tuple[str, str]]:
        """The calls that took place, in order: their keys and what was done."""
        with suppress(FileNotFoundError):
            lines = Path(self.path).read_text("utf-8").splitlines()
            return [(key, what) for key, _, what in (line.partition("\t") for line in lines)]
        return []

    def done(self, thread: str = "") -> list[str]:
        """What was done, sorted; in one *thread*, whose name it begins with."""
        return sorted(what for _, what in self.happened() if what.startswith(thread))

    def look(self, key: str) -> str | None:
        """What became of the call with this key; None if it did not happen."""
        found = [what for known, what in self.happened() if known == key]
        return f"did {found[0]}" if found else None

    def effect(self, way: str, in_doubt: Any = "verify") -> Callable[[str], Any]:
        """`act` as an effect."""
        verify = self.look if in_doubt == "verify" else None
        marked = limpet.effect(name="act", in_doubt=in_doubt, verify=verify)

        def plain(what: str) -> str:
            return self.act(what)

        async def awaited(what: str) -> str:
            await asyncio.sleep(0)
            return self.act(what)

        return marked(awaited if way == "async" else plain)


class Log(TypedDict, total=False):
    """What was done, in order."""

    thread: str
    round: int
    log: Annotated[list[str], operator.add]


class Branch(TypedDict):
    """What a branch is sent."""

    thread: str
    round: int
    name: str


def _nodes(saver: BaseCheckpointSaver[Any], act: Callable[[str], Any], way: str) -> Graph:
    """Rounds of a node with two effects, and three branches at once with the same one each."""

    def plan(state: Log) -> Any:
        number, who = state.get("round", 0) + 1, state["thread"]
        return {"round": number, "log": [act(f"{who} plan {number}"), act(f"{who} go {number}")]}

    def branch(state: Branch) -> Any:
        return {"log": [act(f"{state['thread']} {state['name']} {state['round']}")]}

    async def aplan(state: Log) -> Any:
        number, who = state.get("round", 0) + 1, state["thread"]
        done = await asyncio.gather(act(f"{who} plan {number}"), act(f"{who} go {number}"))
        return {"round": number, "log": done}

    async def abranch(state: Branch) -> Any:
        return {"log": [await act(f"{state['thread']} {state['name']} {state['round']}")]}

    def fan_out(state: Log) -> list[Send]:
        who, number = state["thread"], state["round"]
        return [Send("branch", Branch(thread=who, round=number, name=name)) for name in "abc"]

    graph = StateGraph(Log)
    graph.add_node("plan", aplan if way == "async" else plan)
    graph.add_node("branch", abranch if way == "async" else branch)
    graph.add_node("join", lambda state: {"log": [f"join {state['round']}"]})
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", fan_out, ["branch"])
    graph.add_edge("branch", "join")
    graph.add_conditional_edges(
        "join", lambda state: END if state["round"] >= ROUNDS else "plan", ["plan", END]
    )
    return graph.compile(checkpointer=saver)


class Scripted(BaseChatModel):
    """A model that calls the tool twice at once, ROUNDS times, and then says that it is done."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        """The same: it knows them."""
        assert tools
        return self

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        who = next(str(one.content) for one in messages if isinstance(one, HumanMessage))
        told = sum(isinstance(one, ToolMessage) for one in messages)
        number = told // 2
        calls = [
            {"name": "act", "args": {"what": f"{who} {name} {number}"}, "id": f"{name}-{number}"}
            for name in ("left", "right")
        ]
        said = (
            AIMessage("", tool_calls=calls, id=f"ai-{number}")
            if number < ROUNDS
            else AIMessage("done", id="ai-done")
        )
        return ChatResult(generations=[ChatGeneration(message=said)])


def _agent(saver: BaseCheckpointSaver[Any], act: Callable[[str], Any], way: str) -> Graph:
    """An agent with a tool that is an effect."""
    given: Any = {"coroutine": act} if way == "async" else {"func": act}
    tool = StructuredTool.from_function(**given, name="act", description="Do it.")
    made: Graph = create_agent(Scripted(), [tool], checkpointer=saver)
    return made


def _nested(saver: BaseCheckpointSaver[Any], act: Callable[[str], Any], way: str) -> Graph:
    """The nodes with effects in a graph of their own, which a node of another one is."""
    inner = _nodes(None, act, way)  # type: ignore[arg-type] # that of the other one
    graph = StateGraph(Log)
    graph.add_node("inner", inner)
    graph.add_edge(START, "inner")
    return graph.compile(checkpointer=saver)


KINDS = {"nodes": _nodes, "agent": _agent, "nested": _nested}


def config_of(thread: str) -> Any:
    """What says that it is about *thread*."""
    return {"configurable": {"thread_id": thread}}


def _begin(kind: str, thread: str) -> Any:
    if kind == "agent":
        return {"messages": [HumanMessage(thread, id="user")]}
    return {"thread": thread, "log": ["begin"]}


def _told(values: Any) -> Any:
    if "messages" in values:
        return [[one.type, str(one.content)] for one in values["messages"]]
    return values["log"]


def finish(graph: Graph, kind: str, thread: str, durability: Any = "async") -> Any:
    """Do what is left of *thread*; its state at the end."""
    config = config_of(thread)
    # That nothing is next does not say that all is done, where writes of a step are stored and the
    # checkpoint after it is not.
    begun = graph.get_state(config).metadata is not None
    graph.invoke(None if begun else _begin(kind, thread), config, durability=durability)
    return _told(graph.get_state(config).values)


async def finish_async(graph: Graph, kind: str, thread: str, durability: Any = "async") -> Any:
    """The same, awaited."""
    config = config_of(thread)
    begun = (await graph.aget_state(config)).metadata is not None
    await graph.ainvoke(None if begun else _begin(kind, thread), config, durability=durability)
    return _told((await graph.aget_state(config)).values)


def run(  # noqa: PLR0917 - a program, which is given them in a row
    url: str,
    world: World,
    kind: str,
    way: str,
    thread: str,
    kill_at: int | None = None,
    in_doubt: Any = "verify",
) -> tuple[Any, list[str]]:
    """Do what is left of *thread*; its state at the end, and the boundaries that were passed."""
    act = world.effect(way, in_doubt)

    async def awaited() -> tuple[Any, list[str]]:
        async with limpet.open_async(url) as store:
            boundaries = Boundaries(store.backend, kill_at)
            graph = KINDS[kind](LimpetSaver(store), act, way)
            return await finish_async(graph, kind, thread), boundaries.passed

    if way == "async":
        return asyncio.run(awaited())
    with limpet.open(url) as store:
        boundaries = Boundaries(store.backend, kill_at)
        return finish(KINDS[kind](LimpetSaver(store), act, way), kind, thread), boundaries.passed


def work(  # noqa: PLR0917 - as above
    url: str, world: str, kind: str, way: str, durability: str, first: str
) -> None:
    """Do one thread after the other, from *first* on, for ever."""
    act = World(world).effect(way)

    async def awaited() -> None:
        async with LimpetSaver(url) as saver:
            graph = KINDS[kind](saver, act, way)
            for number in itertools.count(int(first)):
                found = await finish_async(graph, kind, f"<{number}>", durability)
                ack(f"{number} {len(found)}")

    if way == "async":
        asyncio.run(awaited())
        return
    with LimpetSaver(url) as saver:
        graph = KINDS[kind](saver, act, way)
        for number in itertools.count(int(first)):
            found = finish(graph, kind, f"<{number}>", durability)
            ack(f"{number} {len(found)}")
