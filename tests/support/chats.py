"""Chats of every kind in one store, as the frameworks themselves write them.

A conversation with all that may be noted in one, a chat on the OpenAI SDK, a session and a run of
the OpenAI Agents SDK, a thread of LangGraph's, and an agent and a team of AutoGen's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agents import Agent, Runner, function_tool
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from limpet.integrations import autogen
from limpet.integrations.langgraph import LimpetSaver
from limpet.integrations.openai_agents import AsyncRuns, LimpetSession, Runs
from tests.support.agents_sdk import call, say, strict
from tests.support.autogen_teams import KINDS

if TYPE_CHECKING:
    from limpet import Store

__all__ = ["PNG", "a_conversation", "a_run", "a_session", "a_state", "a_thread", "every_chat"]

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


def every_chat(store: Store) -> None:
    """One of each."""
    a_conversation(store)
    a_session(store)
    a_run(store)
    a_thread(store)
    a_state(store, "single", "helper")
    a_state(store, "round robin", "writers")
