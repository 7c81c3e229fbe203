"""Chats of every kind in one store, as the frameworks themselves write them.

A conversation with all that may be noted in one, a chat on the OpenAI SDK, a session and a run of
the OpenAI Agents SDK, a thread of LangGraph's, and an agent and a team of AutoGen's.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agents import Agent, Runner, function_tool
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt
from openai import DefaultHttpxClient, OpenAI

import limpet
from limpet.errors import StoreUnavailable
from limpet.integrations import autogen
from limpet.integrations.langgraph import LimpetSaver
from limpet.integrations.openai import Chat
from limpet.integrations.openai_agents import AsyncRuns, LimpetSession, Runs
from tests.support.agents_sdk import call, say, strict
from tests.support.autogen_teams import KINDS, calling
from tests.support.autogen_teams import agent as assistant
from tests.support.openai_server import Answer, Server

if TYPE_CHECKING:
    from limpet import Store

__all__ = [
    "PNG",
    "a_conversation",
    "a_run",
    "a_session",
    "a_state",
    "a_thread",
    "doubtful_chat",
    "doubtful_run",
    "doubtful_team",
    "doubtful_thread",
    "every_chat",
]

PNG = "data:image/png;base64," + "A" * 4000


def tool(id_: str, name: str, arguments: str) -> dict[str, Any]:
    """A call in a message of OpenAI's chat."""
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def a_conversation(store: Store, id_: str = "alice") -> None:
    """Tools, an image, a thought, a pin, a summary, a repair, a fork, and what was taken back."""
    chat = store.conversation(id_, labels={"team": "support"})
    chat.append({"role": "system", "content": "You are a support agent. Be brief."})
    chat.append({"role": "user", "content": "I prefer e-mail."}, pin=True)
    chat.append(
        {"role": "user", "content": "Where is my order 7? Look at this."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "The parcel looks like this:"},
                {"type": "image_url", "image_url": {"url": PNG}},
            ],
        },
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [tool("c1", "find_order", '{"number": 7}'), tool("c2", "track", "{}")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"status": "sent", "by": "ship"}'},
        {"role": "tool", "tool_call_id": "c2", "content": "It is in Rotterdam. " * 100},
        {"role": "assistant", "content": "It is on a ship, in Rotterdam."},
    )
    chat.compact(lambda messages: f"{len(messages)} messages about order 7.", keep_tokens=30)
    chat.append({"role": "user", "content": "And my refund?"})
    chat.append(
        {"role": "assistant", "content": None, "tool_calls": [tool("c3", "refund", '{"eur": 30}')]},
        {"role": "user", "content": "Are you there?"},
    )
    chat.window(max_tokens=4_000)  # finds, and records, that the refund has no result
    chat.append({"role": "assistant", "content": "Nobody can say that."})
    chat.pop()
    chat.append({"role": "assistant", "content": "I ask a colleague."})


async def _session(store: Store) -> None:
    @function_tool
    def find_order(number: str) -> str:
        """Find an order."""
        return f"order {number} is on a ship"

    @function_tool(needs_approval=True)
    def refund(number: str) -> str:
        """Pay an order back."""
        return f"order {number} is paid back"

    model = strict(
        call(("find_order", "s1"), number="7"),
        say("It is on a ship."),
        call(("refund", "s2"), number="7"),
    )
    agent = Agent[Any](name="desk", model=model, tools=[find_order, refund])
    session = LimpetSession(store, "session-1")
    await Runner.run(agent, "Where is order 7?", session=session)
    waiting = await Runner.run(agent, "Pay it back.", session=session)
    await AsyncRuns(store).save("refund-7", waiting)


def a_session(store: Store) -> None:
    """A session, and a run that waits for a yes: `a_run` says it."""
    asyncio.run(_session(store))


def a_run(store: Store) -> None:
    """Somebody says yes."""
    Runs(store).approve("refund-7", "s2", by="maria")


def a_thread(store: Store) -> None:
    """An agent that calls a tool, which fails; then it asks a person."""

    def agent(state: MessagesState) -> Any:
        if isinstance(state["messages"][-1], ToolMessage):
            said = AIMessage("It cannot be found.", id="m2", usage_metadata=_usage(40, 6))
            return {"messages": [said]}
        call_ = {"name": "find_order", "args": {"number": 7}, "id": "t1"}
        metadata = {"model_name": "gpt-5-mini", "finish_reason": "tool_calls"}
        return {
            "messages": [
                AIMessage(
                    "I look.",
                    id="m1",
                    name="clerk",
                    tool_calls=[call_],
                    usage_metadata=_usage(21, 9),
                    response_metadata=metadata,
                )
            ]
        }

    def tools(state: MessagesState) -> Any:
        return {"messages": [ToolMessage("no such order", tool_call_id="t1", status="error")]}

    def person(state: MessagesState) -> Any:
        return {"messages": [HumanMessage(interrupt("Shall I ask the carrier?"))]}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_node("tools", tools)
    graph.add_node("person", person)
    graph.add_edge(START, "agent")
    graph.add_conditional_edges(
        "agent", lambda state: "tools" if state["messages"][-1].tool_calls else "person"
    )
    graph.add_edge("tools", "agent")
    graph.add_edge("person", END)
    compiled: Any = graph.compile(checkpointer=LimpetSaver(store))
    given = {"messages": [HumanMessage("Where is order 7?", id="u1")]}
    compiled.invoke(given, {"configurable": {"thread_id": "thread-1"}})


def _usage(given: int, made: int) -> Any:
    return {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}


def a_state(store: Store, kind: str, id_: str) -> None:
    """An agent or a team of AutoGen's, of a *kind* of `tests.support.autogen_teams`, that ran."""

    async def run() -> None:
        kept = await autogen.keep(KINDS[kind](), store, id_)
        await kept.run(task="Write about order 7, look it up.")

    asyncio.run(run())


# -- calls of which nobody knows whether they happened ---------------------------------------------


class Gone(BaseException):
    """Ends a process, as far as one can be ended here."""


def doubtful_chat(store: Store, id_: str = "chat") -> None:
    """A chat on the OpenAI SDK whose process ended in the tool."""

    def pay(bill: int) -> str:
        """Pay a bill."""
        raise Gone

    with Server(Answer(calls=(("pay", {"bill": 1}),))) as server:
        http = DefaultHttpxClient(verify=False, timeout=10)
        client = OpenAI(base_url=server.url, api_key="none", max_retries=0, http_client=http)
        with client, suppress(Gone):
            Chat(client, store.conversation(id_), model="gpt-5", tools=[pay]).send("Pay bill 1.")


def doubtful_run(store: Store, id_: str = "payment") -> None:
    """A run of the Agents SDK, with a session, whose worker ended in a call that was approved."""

    async def run() -> None:
        began = asyncio.Event()

        @function_tool(needs_approval=True)
        async def pay(to: str) -> str:
            """Pay somebody."""
            began.set()
            await asyncio.sleep(600)
            return to

        model = strict(call(("pay", "c1"), to="Bob"))
        agent = Agent[Any](name="desk", model=model, tools=[pay])
        session, runs = LimpetSession(store, f"{id_}-session"), AsyncRuns(store)
        (ask,) = await runs.save(id_, await Runner.run(agent, "Pay Bob.", session=session))
        await runs.approve(id_, ask.call_id)
        working = asyncio.create_task(runs.resume(id_, agent, session=session))
        await began.wait()
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working

    asyncio.run(run())


def doubtful_team(store: Store, id_: str = "bank") -> None:
    """A team of AutoGen's that lost its store while a tool ran."""
    backend = store.backend
    ways = backend.append, backend.append_async

    def away(_request: Any) -> Any:
        raise StoreUnavailable("The store is away.")

    async def pay(text: str) -> str:
        """Pay."""
        backend.append = away  # type: ignore[method-assign, assignment]
        backend.append_async = ways[1] and away
        return text

    async def run() -> None:
        members: list[Any] = [
            assistant("anna"),
            assistant("clerk", calling("pay"), tools=[pay]),
        ]
        stop = MaxMessageTermination(3)
        team = RoundRobinGroupChat(members, termination_condition=stop)
        kept = await autogen.keep(team, store, id_)
        with suppress(StoreUnavailable):
            await kept.run(task="Pay.")

    asyncio.run(run())
    backend.append, backend.append_async = ways  # type: ignore[method-assign]


def doubtful_thread(store: Store, id_: str = "payer") -> None:
    """A thread of LangGraph's with an effect that raised."""

    @limpet.effect(name="pay")
    def pay(to: str) -> str:
        """Pay somebody."""
        raise ConnectionError("lost")

    def node(state: MessagesState) -> Any:
        return {"messages": [AIMessage(pay("Bob"))]}

    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    compiled: Any = graph.compile(checkpointer=LimpetSaver(store))
    given = {"messages": [HumanMessage("Pay Bob.")]}
    with suppress(ConnectionError):
        compiled.invoke(given, {"configurable": {"thread_id": id_}})


def every_chat(store: Store) -> None:
    """One of each."""
    a_conversation(store)
    a_session(store)
    a_run(store)
    a_thread(store)
    a_state(store, "single", "helper")
    a_state(store, "round robin", "writers")
