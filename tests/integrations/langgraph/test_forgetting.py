"""What `Store.forget` does to threads and to LangGraph's store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph

import limpet
from limpet.integrations.langgraph import LimpetSaver, LimpetStore
from tests.integrations.langgraph.test_redaction import State, send
from tests.models.test_redaction import everything_in

if TYPE_CHECKING:
    from pathlib import Path

    from langchain_core.runnables import RunnableConfig

NAME = "Ada Lovelace"


def answer(state: State) -> dict[str, Any]:
    """What a node makes of what was said, by an effect."""
    said = send(f"{state['messages'][-1].content} {len(state['messages'])}")
    return {"log": [said], "settings": {"last": said}}


def filled(store: limpet.Store) -> Any:
    """A graph that was told of her twice, in a thread and in a namespace."""
    graph: Any = StateGraph(State)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    app = graph.compile(checkpointer=LimpetSaver(store))
    for thread in ("alice", "bob"):
        config: RunnableConfig = {"configurable": {"thread_id": thread}}
        for _ in range(2):
            app.invoke({"messages": [HumanMessage(f"I met {NAME}")]}, config)
    LimpetStore(store).put(("users", "17"), "friend", {"name": NAME})
    return app


def test_a_thread_goes_with_its_effects(tmp_path: Path) -> None:
    """And with nothing of others."""
    with limpet.open(tmp_path / "s.db") as store:
        app = filled(store)
        done = store.forget(thread="alice")
        assert {(one.kind, one.id) for one in done.journals} == {
            ("thread", "alice"),
            ("thread-effects", "alice"),
        }
        assert app.get_state({"configurable": {"thread_id": "alice"}}).values == {}
        assert len(app.get_state({"configurable": {"thread_id": "bob"}}).values["log"]) == 2


def test_a_thread_that_mentioned_somebody_goes_on(tmp_path: Path) -> None:
    """Each text is replaced where it stands; a run goes on from there."""
    with limpet.open(tmp_path / "s.db") as store:
        running = filled(store)
        done = store.forget(subject=NAME)
        # Whoever has the thread in mind reads it again.
        bob: RunnableConfig = {"configurable": {"thread_id": "bob"}}
        assert running.get_state(bob).values["log"] == ["[forgotten]"] * 2
        assert [one for one in done.mentions if one.stays] == []
        assert NAME.encode() not in everything_in(tmp_path)
    with limpet.open(tmp_path / "s.db") as store:
        graph: Any = StateGraph(State)
        graph.add_node("answer", answer)
        graph.add_edge(START, "answer")
        app = graph.compile(checkpointer=LimpetSaver(store))
        config: RunnableConfig = {"configurable": {"thread_id": "bob"}}
        before = app.get_state(config).values
        assert [one.content for one in before["messages"]] == ["[forgotten]"] * 2
        assert before["log"] == ["[forgotten]"] * 2
        after = app.invoke({"messages": [HumanMessage("And now?")]}, config)
        assert len(after["log"]) == 3
        assert len(list(app.get_state_history(config))) == 9
        item = LimpetStore(store).get(("users", "17"), "friend")
        assert item is not None
        assert item.value == {"name": "[forgotten]"}
