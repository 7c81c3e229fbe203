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

from limpet.errors import MissingExtra

try:
    import langgraph.checkpoint.base  # noqa: F401 - the rest of this package stands on it
except ImportError as error:
    raise MissingExtra.of("LangGraph", "langgraph", "langgraph") from error

from limpet.integrations.langgraph.saver import LimpetSaver
from limpet.integrations.langgraph.values import StrictSerializer

__all__ = ["LimpetSaver", "StrictSerializer"]
