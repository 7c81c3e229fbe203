"""Graphs of LangGraph's, as people have them: each is run on a checkpointer, and run on later."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["GRAPHS", "Colour", "Invoice", "Rehearsal", "chat", "config", "everything", "say"]

Graph = Any


class Colour(Enum):
    """An enum of the user's."""

    RED = "red"
    BLUE = "blue"


@dataclass
class Invoice:
    """A class of the user's."""

    number: int
    lines: list[str]
    colour: Colour


def config(thread: str = "alice", **more: Any) -> Any:
    """What names a thread."""
    return {"configurable": {"thread_id": thread, **more}}


class Rehearsal:
    """A graph, what is done with it before it moves, and what afterwards."""

    def __init__(
        self,
        build: Callable[[Any], Graph],
        before: Callable[[Graph], object],
        after: Callable[[Graph], object],
    ) -> None:
        self.build = build
        self.before = before
        self.after = after


def everything(graph: Graph, thread: str = "alice") -> list[Any]:
    """All that a graph can say of a thread's past, with what is under it."""
    history = list(graph.get_state_history(config(thread)))
    return [
        *history,
        *(graph.get_state(snapshot.config, subgraphs=True) for snapshot in history),
        graph.get_state(config(thread), subgraphs=True),
    ]


# -- a chat --------------------------------------------------------------------------------------


class Chat(TypedDict):
    """A list of messages, and what is no list."""

    messages: Annotated[list[AnyMessage], add_messages]
    mood: str
    count: int
    seen: set[str]


def _answer(state: Chat) -> dict[str, Any]:
    said = state["messages"][-1].content
    count = state.get("count", 0) + 1
    return {
        "messages": [AIMessage(f"You said {said}.", id=f"ai-{count}")],
        "count": count,
        "mood": "good" if count % 2 else "bad",
        "seen": {f"{said}-{number}" for number in range(3)},
    }


def chat(saver: Any) -> Graph:
    """Asks and answers."""
    builder = StateGraph(Chat)
    builder.add_node("answer", _answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


def say(graph: Graph, text: str, thread: str = "alice", **more: Any) -> Any:
    """One turn."""
    message = HumanMessage(text, id=f"human-{text}")
    return graph.invoke({"messages": [message]}, config(thread, **more))


def _chat_before(graph: Graph) -> None:
    for text in ("one", "two", "three"):
        say(graph, text)


def _chat_after(graph: Graph) -> None:
    state = say(graph, "four")
    assert [message.content for message in state["messages"]] == [
        said for text in ("one", "two", "three", "four") for said in (text, f"You said {text}.")
    ]
    history = list(graph.get_state_history(config()))
    earlier = next(s for s in history if len(s.values.get("messages", ())) == 2)
    state = graph.invoke({"messages": [HumanMessage("again", id="again")]}, earlier.config)
    assert [message.content for message in state["messages"]][:3] == [
        "one",
        "You said one.",
        "again",
    ]


# -- forks ---------------------------------------------------------------------------------------


def _forks_before(graph: Graph) -> None:
    _chat_before(graph)
    history = list(graph.get_state_history(config()))
    for snapshot in (history[4], history[1], history[4]):
        fork = graph.update_state(
            snapshot.config, {"messages": [HumanMessage("forked", id=f"f-{snapshot.config}")]}
        )
        graph.invoke(None, fork)
    graph.update_state(config(), {"mood": "edited"}, as_node="answer")


def _forks_after(graph: Graph) -> None:
    say(graph, "five")
    assert graph.get_state(config()).values["messages"][-1].content == "You said five."
    history = list(graph.get_state_history(config()))
    assert graph.invoke(None, history[-2].config)


# -- a human is asked ----------------------------------------------------------------------------


class Order(TypedDict):
    """What is done, and what people have said to it."""

    done: Annotated[list[str], operator.add]


def _order(state: Order) -> dict[str, Any]:
    answer = interrupt({"question": "Buy?", "price": 12.5})
    more = interrupt("Sure?")
    return {"done": [f"bought: {answer}, {more}"]}


def order(saver: Any) -> Graph:
    """Asks twice within a node; another works beside it."""
    builder = StateGraph(Order)
    builder.add_node("begin", lambda _state: {"done": ["began"]})
    builder.add_node("order", _order)
    builder.add_node("beside", lambda _state: {"done": ["beside"]})
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "order")
    builder.add_edge("begin", "beside")
    return builder.compile(checkpointer=saver)


def _order_before(graph: Graph) -> None:
    graph.invoke({"done": []}, config())
    graph.invoke(Command(resume="yes"), config())


def _order_after(graph: Graph) -> None:
    (task,) = [task for task in graph.get_state(config()).tasks if task.interrupts]
    assert task.interrupts[0].value == "Sure?"
    state = graph.invoke(Command(resume="quite"), config())
    assert state["done"] == ["began", "beside", "bought: yes, quite"] or state["done"] == [
        *("began", "bought: yes, quite", "beside")
    ]


# -- a graph in a graph --------------------------------------------------------------------------


def subgraphs(saver: Any) -> Graph:
    """A subgraph of a call that waits for a human, and one that remembers."""
    inner = StateGraph(Order)
    inner.add_node("first", lambda _state: {"done": ["first"]})
    inner.add_node("ask", lambda _state: {"done": [f"asked: {interrupt('Go on?')}"]})
    inner.add_edge(START, "first")
    inner.add_edge("first", "ask")
    keeper = StateGraph(Order)
    keeper.add_node("keep", lambda state: {"done": [f"kept {len(state['done'])}"]})
    keeper.add_edge(START, "keep")
    builder = StateGraph(Order)
    builder.add_node("inner", inner.compile())
    builder.add_node("keeper", keeper.compile(checkpointer=True))
    builder.add_edge(START, "keeper")
    builder.add_edge("keeper", "inner")
    return builder.compile(checkpointer=saver)


def _subgraphs_before(graph: Graph) -> None:
    graph.invoke({"done": ["x"]}, config())
    graph.invoke(Command(resume="yes"), config())
    graph.invoke({"done": ["y"]}, config())


def _subgraphs_after(graph: Graph) -> None:
    (task,) = graph.get_state(config(), subgraphs=True).tasks
    assert task.state.next == ("ask",)
    state = graph.invoke(Command(resume="no"), config())
    assert state["done"][-1] == "asked: no"
    graph.invoke({"done": ["z"]}, config())


# -- many at once --------------------------------------------------------------------------------


class Work(TypedDict):
    """What one of the tasks is to do."""

    at: int


def sends(saver: Any) -> Graph:
    """Sends work to many tasks; the last of them waits."""
    builder = StateGraph(Order)
    builder.add_node("plan", lambda _state: {"done": ["plan"]})
    builder.add_node("work", _work, input_schema=Work)
    builder.add_conditional_edges("plan", lambda _s: [Send("work", {"at": n}) for n in range(12)])
    builder.add_edge(START, "plan")
    return builder.compile(checkpointer=saver)


def _work(state: Work) -> dict[str, Any]:
    if state["at"] == 7:
        return {"done": [f"work 7 {interrupt('Seven?')}"]}
    return {"done": [f"work {state['at']}"]}


def _sends_before(graph: Graph) -> None:
    graph.invoke({"done": []}, config())


def _sends_after(graph: Graph) -> None:
    state = graph.invoke(Command(resume="ok"), config())
    assert state["done"] == ["plan", *(f"work {n}" + (" ok" if n == 7 else "") for n in range(12))]


# -- a channel of deltas -------------------------------------------------------------------------


def _joined(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class Deltas(TypedDict):
    """A list that is rebuilt from what was written, with a whole copy now and then."""

    log: Annotated[list[str], DeltaChannel(_joined, snapshot_frequency=4)]
    count: int


def deltas(saver: Any) -> Graph:
    """Writes a line each time, in two nodes."""
    builder = StateGraph(Deltas)
    builder.add_node("one", lambda state: {"log": [f"one {len(state['log'])}"], "count": 1})
    builder.add_node("two", lambda state: {"log": [f"two {len(state['log'])}"]})
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    return builder.compile(checkpointer=saver)


def _deltas_before(graph: Graph) -> None:
    for number in range(5):
        graph.invoke({"log": [f"in {number}"]}, config())
    history = list(graph.get_state_history(config()))
    graph.invoke({"log": ["fork"]}, history[6].config)
    graph.invoke({"log": ["on"]}, config())


def _deltas_after(graph: Graph) -> None:
    before = graph.get_state(config()).values["log"]
    state = graph.invoke({"log": ["later"]}, config())
    assert state["log"][: len(before) + 1] == [*before, "later"]


# -- types of the user's -------------------------------------------------------------------------


class Books(TypedDict):
    """Objects in a list, alone, and in a dict."""

    invoices: Annotated[list[Invoice], operator.add]
    newest: Invoice
    by_colour: dict[str, Colour]


def _book(state: Books) -> dict[str, Any]:
    number = len(state["invoices"])
    invoice = Invoice(number, ["tea"] * number, Colour.RED if number % 2 else Colour.BLUE)
    return {"invoices": [invoice], "newest": invoice, "by_colour": {"mine": invoice.colour}}


def books(saver: Any) -> Graph:
    """Makes an invoice each time."""
    builder = StateGraph(Books)
    builder.add_node("book", _book)
    builder.add_edge(START, "book")
    return builder.compile(checkpointer=saver)


def _books_before(graph: Graph) -> None:
    for _ in range(3):
        graph.invoke({"invoices": []}, config())


def _books_after(graph: Graph) -> None:
    state = graph.invoke({"invoices": []}, config())
    assert [invoice.number for invoice in state["invoices"]] == [0, 1, 2, 3]
    assert state["newest"] == Invoice(3, ["tea"] * 3, Colour.RED)


GRAPHS = {
    "chat": Rehearsal(chat, _chat_before, _chat_after),
    "forks": Rehearsal(chat, _forks_before, _forks_after),
    "interrupts": Rehearsal(order, _order_before, _order_after),
    "subgraphs": Rehearsal(subgraphs, _subgraphs_before, _subgraphs_after),
    "sends": Rehearsal(sends, _sends_before, _sends_after),
    "deltas": Rehearsal(deltas, _deltas_before, _deltas_after),
    "types": Rehearsal(books, _books_before, _books_after),
}
