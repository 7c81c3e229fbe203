"""LangGraph: checkpoints that cost what is new in them, and no fork that nobody asked for.

>>> from typing import Annotated, TypedDict
>>> from operator import add
>>> from langgraph.graph import START, StateGraph
>>> from limpet.integrations.langgraph import LimpetSaver
>>> class State(TypedDict):
...     said: Annotated[list[str], add]
>>> builder = StateGraph(State)
>>> _ = builder.add_node("answer", lambda state: {"said": [f"You said {state['said'][-1]}."]})
>>> _ = builder.add_edge(START, "answer")
>>> with LimpetSaver("memory:") as saver:
...     graph = builder.compile(checkpointer=saver)
...     graph.invoke({"said": ["hello"]}, {"configurable": {"thread_id": "alice"}})
{'said': ['hello', 'You said hello.']}
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from limpet.errors import MissingExtra

if TYPE_CHECKING:
    from limpet.integrations.langgraph.saver import LimpetSaver
    from limpet.integrations.langgraph.store.store import LimpetStore
    from limpet.integrations.langgraph.values import StrictSerializer

__all__ = ["LimpetSaver", "LimpetStore", "StrictSerializer"]

#: What is made of classes of LangGraph's, and where that is: what reads threads needs none of them.
_MODULES = {"LimpetSaver": "saver", "LimpetStore": "store.store", "StrictSerializer": "values"}


def __getattr__(name: str) -> Any:
    """What is made of a class of LangGraph's, when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(("langgraph", "ormsgpack")):
            raise
        raise MissingExtra.of("LangGraph", "langgraph", "langgraph") from error
    return getattr(module, name)
