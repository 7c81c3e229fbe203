"""Branches of a thread that somebody means are made, whatever was written meanwhile."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

from limpet.integrations.langgraph import LimpetSaver

CONFIG: Any = {"configurable": {"thread_id": "alice"}}


class State(TypedDict):
    """A list of what happened."""

    log: Annotated[list[str], operator.add]


def test_a_checkpoint_can_be_copied_beside_itself() -> None:
    """``as_node="__copy__"`` runs a step again: the copy has the parent that the original has."""
    graph = StateGraph(State)
    graph.add_node("one", lambda state: {"log": [f"one after {len(state['log'])}"]})
    graph.add_node("two", lambda state: {"log": ["two"]})
    graph.add_edge(START, "one")
    graph.add_edge("one", "two")
    with LimpetSaver("memory:") as saver:
        made = graph.compile(checkpointer=saver)
        expected = made.invoke({"log": ["begin"]}, CONFIG)
        history = list(made.get_state_history(CONFIG))
        for state in history:
            copied = made.update_state(state.config, None, as_node="__copy__")
            found = made.get_state(copied)
            assert found.parent_config == state.parent_config
            assert found.values == state.values
            assert made.invoke(None, copied) == expected
