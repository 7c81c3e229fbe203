"""Graphs of LangGraph for the tests, and processes that run them and die.

Each graph is deterministic: whatever was run how often, what comes out is the same. A node
acknowledges how much it was given: with ``durability="sync"`` LangGraph has then been told that all
of it is stored. A process goes on with a thread from wherever it is.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig  # noqa: TC002 - LangGraph reads annotations
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Send, interrupt

import limpet
from limpet.errors import Conflict, LeaseHeld
from limpet.integrations.langgraph import LimpetSaver
from limpet.testing.boundaries import Boundaries
from limpet.testing.crash import ack
from tests.support.processes import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.checkpoint.base import BaseCheckpointSaver

__all__ = ["KINDS", "clash", "config_of", "run", "seen", "told", "work"]

Graph: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]

#: How often a graph goes round.
ROUNDS = 2


def _joined(found: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*found, *itertools.chain.from_iterable(writes)]


class State(TypedDict, total=False):
    """Lists that grow, each by another kind of channel."""

    round: int
    log: Annotated[list[str], operator.add]
    trail: Annotated[list[str], DeltaChannel(_joined, list, snapshot_frequency=4)]
    messages: Annotated[list[AnyMessage], add_messages]
    answers: Annotated[list[str], operator.add]


class Branch(TypedDict):
    """What a branch is sent."""

    round: int
    name: str


def seen(state: Any) -> int:
    """How much of the work is in *state*: it only ever grows."""
    return sum(len(state.get(name, ())) for name in ("log", "trail", "messages", "answers"))


def _plan(state: State, config: RunnableConfig) -> Any:
    ack(f"{config['configurable']['thread_id']} {seen(state)}")
    number = state.get("round", 0) + 1
    said = HumanMessage(f"Round {number}", id=f"user-{number}")
    return {"round": number, "log": [f"plan {number}"], "messages": [said]}


def _fan_out(state: State) -> list[Send]:
    return [Send("branch", Branch(round=state["round"], name=name)) for name in "abc"]


def _branch(state: Branch) -> Any:
    done = f"{state['name']} {state['round']}"
    return {"log": [done], "trail": [done]}


def _join(state: State, config: RunnableConfig) -> Any:
    ack(f"{config['configurable']['thread_id']} {seen(state)}")
    number = state["round"]
    counted = AIMessage(f"{len(state['log'])} done", id="count")  # takes the place of the last one
    did = AIMessage(f"Did round {number}", id=f"bot-{number}")
    return {"log": [f"join {number}"], "trail": [f"join {number}"], "messages": [counted, did]}


def _more(state: State) -> str:
    return END if state["round"] >= ROUNDS else "plan"


def _plain(saver: BaseCheckpointSaver[Any]) -> Graph:
    """Rounds of a plan, three branches at once, and what joins them."""
    graph = StateGraph(State)
    graph.add_node("plan", _plan)
    graph.add_node("branch", _branch)
    graph.add_node("join", _join)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", _fan_out, ["branch"])
    graph.add_edge("branch", "join")
    graph.add_conditional_edges("join", _more, ["plan", END])
    return graph.compile(checkpointer=saver)


# -- with a human ----------------------------------------------------------------------------------


class Round(TypedDict):
    """What the subgraph is told."""

    round: int


class Answers(TypedDict):
    """What it returns."""

    answers: list[str]


class Asking(Round, Answers, total=False):
    """What it knows."""

    question: str


def _question(state: Asking) -> Any:
    return {"question": f"Go on with round {state['round']}?"}


def _ask(state: Asking) -> Any:
    return {"answers": [interrupt(state["question"])]}


def _nested(saver: BaseCheckpointSaver[Any]) -> Graph:
    """The same, and in each round a graph of its own that asks a human."""
    asking = StateGraph(Asking, input_schema=Round, output_schema=Answers)
    asking.add_node("question", _question)
    asking.add_node("ask", _ask)
    asking.add_edge(START, "question")
    asking.add_edge("question", "ask")

    graph = StateGraph(State)
    graph.add_node("plan", _plan)
    graph.add_node("branch", _branch)
    graph.add_node("asking", asking.compile())
    graph.add_node("join", _join)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", _fan_out, ["branch"])
    graph.add_edge("branch", "asking")
    graph.add_edge("asking", "join")
    graph.add_conditional_edges("join", _more, ["plan", END])
    return graph.compile(checkpointer=saver)


KINDS = {"plain": _plain, "nested": _nested}


# -- a run, in as many processes as it takes -------------------------------------------------------


def config_of(thread: str) -> RunnableConfig:
    """What says that it is about *thread*."""
    return {"configurable": {"thread_id": thread}}


def told(values: Any) -> dict[str, Any]:
    """A state as JSON."""
    messages = [[one.type, one.id, one.content] for one in values.get("messages", ())]
    return {**values, "messages": messages}


def _next(state: Any) -> Any:
    """With what to invoke a graph in this *state*, to go on; END, if it is done."""
    if state.metadata is None:
        return {"log": ["begin"]}
    if state.interrupts:
        (asked,) = state.interrupts
        return Command(resume=f"{asked.value} Yes.")
    # Not by `next`, which leaves out the tasks whose writes are stored and not yet applied.
    return None if state.tasks else END


def finish(graph: Graph, thread: str, durability: Any = "sync") -> dict[str, Any]:
    """Do what is left of *thread*; its state at the end."""
    config = config_of(thread)
    while (given := _next(graph.get_state(config))) is not END:
        graph.invoke(given, config, durability=durability)
    return told(graph.get_state(config).values)


async def finish_async(graph: Graph, thread: str, durability: Any = "sync") -> dict[str, Any]:
    """The same, awaited."""
    config = config_of(thread)
    while (given := _next(await graph.aget_state(config))) is not END:
        await graph.ainvoke(given, config, durability=durability)
    return told((await graph.aget_state(config)).values)


def run(
    url: str, thread: str, kind: str, way: str, kill_at: int | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Do what is left of *thread*; its state at the end, and the boundaries that were passed."""
    if way == "async":
        return asyncio.run(_run_async(url, thread, kind, kill_at))
    with limpet.open(url) as store:
        boundaries = Boundaries(store.backend, kill_at)
        return finish(KINDS[kind](LimpetSaver(store)), thread), boundaries.passed


async def _run_async(
    url: str, thread: str, kind: str, kill_at: int | None
) -> tuple[dict[str, Any], list[str]]:
    async with limpet.open_async(url) as store:
        boundaries = Boundaries(store.backend, kill_at)
        return await finish_async(KINDS[kind](LimpetSaver(store)), thread), boundaries.passed


def work(url: str, kind: str, way: str, durability: str, first: str) -> None:
    """Do one thread after the other, from *first* on, for ever."""
    numbers = itertools.count(int(first))

    async def awaited() -> None:
        async with LimpetSaver(url) as saver:
            graph = KINDS[kind](saver)
            for number in numbers:
                await finish_async(graph, f"{kind}-{number}", durability)
                ack(f"{kind}-{number} done")

    if way == "async":
        asyncio.run(awaited())
        return
    with LimpetSaver(url) as saver:
        graph = KINDS[kind](saver)
        for number in numbers:
            finish(graph, f"{kind}-{number}", durability)
            ack(f"{kind}-{number} done")


# -- two at once -----------------------------------------------------------------------------------


class Told(TypedDict):
    """Who did what, in order."""

    log: Annotated[list[str], operator.add]


def clash(  # noqa: PLR0917 - what a process is told comes by position
    url: str, way: str, options: str, who: str, begin: str, end: str
) -> None:
    """Run a graph of three nodes on the thread ``shared``, and acknowledge what became of it.

    It begins when there is the file *begin*, and its second node ends when there is the file *end*.
    It makes the files ``ready-ann``, ``in-ann`` (in that node) and ``done-ann``, if that is *who*.
    """
    place = Path(url.partition(":")[2]).parent
    given: dict[str, Any] = {options: True} if options else {}

    def second(state: Told) -> Any:
        (place / f"in-{who}").touch()
        assert not end or until((place / end).exists)
        return {"log": [f"{who} 2"]}

    graph = StateGraph(Told)
    graph.add_node("first", lambda state: {"log": [f"{who} 1"]})
    graph.add_node("second", second)
    graph.add_node("third", lambda state: {"log": [f"{who} 3"]})
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", "third")

    async def awaited() -> None:
        async with LimpetSaver(url, **given) as saver:
            made = graph.compile(checkpointer=saver)
            await made.ainvoke({"log": [who]}, config_of("shared"), durability="sync")

    (place / f"ready-{who}").touch()
    assert until((place / begin).exists)
    try:
        if way == "async":
            asyncio.run(awaited())
        else:
            with LimpetSaver(url, **given) as saver:
                made = graph.compile(checkpointer=saver)
                made.invoke({"log": [who]}, config_of("shared"), durability="sync")
        ack("ended")
    except (Conflict, LeaseHeld) as error:
        ack(f"{type(error).__name__} {error}".replace("\n", " "))
    finally:
        (place / f"done-{who}").touch()
