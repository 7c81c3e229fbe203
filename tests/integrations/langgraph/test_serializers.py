"""What serialisers are shown, and what is said where one cannot make a value again."""

from __future__ import annotations

import operator
from base64 import b64decode, b64encode
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph

import limpet
from limpet.integrations.langgraph import LimpetSaver

CONFIG: Any = {"configurable": {"thread_id": "alice"}}


class State(TypedDict):
    """A list of whatever."""

    found: Annotated[list[Any], operator.add]


def graph(saver: LimpetSaver, *found: Any) -> Any:
    """A node that finds that."""
    made = StateGraph(State)
    made.add_node("find", lambda state: {"found": list(found)})
    made.add_edge(START, "find")
    return made.compile(checkpointer=saver)


class Sealing(JsonPlusSerializer):
    """Hides what it stores, as one that encrypts does, under LangGraph's own name for a type."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Not in clear."""
        kind, data = super().dumps_typed(obj)
        return kind, b64encode(data[::-1])

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """In clear again."""
        return super().loads_typed((data[0], b64decode(data[1])[::-1]))


def test_a_serializer_made_of_langgraphs_sees_every_value(tmp_path: Any) -> None:
    """One that encrypts has encrypted all of it, the text that JSON could hold as it is, too."""
    path = tmp_path / "agents.db"
    with LimpetSaver(path, serde=Sealing()) as saver:
        made = graph(saver, "a secret", None, {"a": "second secret"})
        made.invoke({"found": ["first of secrets"]}, CONFIG)
    with LimpetSaver(path, serde=Sealing()) as saver:
        assert graph(saver).get_state(CONFIG).values == {
            "found": ["first of secrets", "a secret", None, {"a": "second secret"}]
        }
    with limpet.open(path) as store:
        stored = store.journal("thread", "alice").read()
        assert "secret" not in str([entry.body for entry in stored])
