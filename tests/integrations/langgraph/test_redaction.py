"""What is redacted of a graph's checkpoints and effects."""

from __future__ import annotations

from operator import add
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

import limpet
from limpet.integrations.langgraph import LimpetSaver

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from langchain_core.runnables import RunnableConfig

KEY = "sk-proj-Zq8vT1mN4xW7cB2kL9dF"
CONFIG: RunnableConfig = {"configurable": {"thread_id": "alice"}}


class State(TypedDict):
    """What the graph has."""

    messages: Annotated[list[Any], add_messages]
    log: Annotated[list[str], add]
    settings: dict[str, str]


@limpet.effect
def send(text: str) -> str:
    """Something that must not happen twice."""
    return f"sent {text}"


def node(state: State) -> dict[str, Any]:
    """Answer, and log it, with the key."""
    answer = send(f"{KEY} {len(state['messages'])}")
    return {
        "messages": [AIMessage(f"I used {KEY}")],
        "log": [answer],
        "settings": {"password": "swordfish"},
    }


def test_no_byte_of_a_secret_is_in_a_thread(tmp_path: Path) -> None:
    """Neither in messages, nor in what grows, nor in results of effects; and it goes on."""
    graph: Any = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    for turn in range(3):
        with limpet.open(tmp_path / "s.db", redact=["secrets"]) as store:
            app = graph.compile(checkpointer=LimpetSaver(store))
            app.invoke({"messages": [HumanMessage(f"Use {KEY}")]}, CONFIG)
            values = app.get_state(CONFIG).values
            assert len(values["messages"]) == 2 * turn + 2
            assert values["messages"][-1].content == "I used [redacted: api key]"
            assert values["log"][-1] == f"sent [redacted: api key] {2 * turn + 1}"
            assert values["settings"]["password"].startswith("[redacted: ")
    for file in tmp_path.iterdir():
        assert KEY.encode() not in file.read_bytes()
        assert b"swordfish" not in file.read_bytes()


def test_an_effect_with_redacted_arguments_is_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    """A thread that waited goes on with what is stored; who sends that to somebody is warned."""
    graph: Any = StateGraph(State)
    graph.add_node("ask", lambda _: {"log": [interrupt("Send it?")]})
    graph.add_node("send", lambda state: {"log": [send(state["messages"][0].content)]})
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "send")
    with limpet.open("memory:", redact=["secrets"]) as store:
        app = graph.compile(checkpointer=LimpetSaver(store))
        app.invoke({"messages": [HumanMessage(f"Use {KEY}")]}, CONFIG)
        assert "The effect" not in caplog.text
        app.invoke(Command(resume="yes"), CONFIG)
    assert "The effect 'send' is called with arguments in which something was" in caplog.text
