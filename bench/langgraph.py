"""A LangGraph thread that grows: what a turn takes, and what is kept, beside LangGraph's savers.

The graph has one node, which answers, and one channel, the messages. A turn is an `invoke`: three
checkpoints and what the node has written, with LangGraph's own settings (``durability="async"``:
all of it is stored when `invoke` returns).
"""

from __future__ import annotations

import operator
import random
import re
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import psycopg
import psycopg.sql
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph, add_messages

import limpet
from bench._measure import (
    Bench,
    Contest,
    Contestant,
    Row,
    Stopwatch,
    Took,
    milliseconds,
    settle,
    timed,
)
from limpet.integrations.langgraph import LimpetSaver
from tests.support.servers import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

    Saver = BaseCheckpointSaver[Any]
    Graph = CompiledStateGraph[Any, Any, Any, Any]

LENGTHS, QUICK = (10, 100, 1_000, 3_000), (10, 100)
ROUNDS = 6

#: A turn follows a turn of the same thread: what the processor has at hand from the last one is
#: a part of what a turn costs, and would be gone if each were another thread's.
IN_A_ROW = 5

#: How long the threads of others grow by real turns, to see what is kept: it grows by the square.
PEERS_GROWN = 1_000


def _make_turns(count: int) -> list[tuple[str, str]]:
    """What a user asks and an assistant answers, 800 bytes a turn, in words of a language."""
    draw = random.Random(5)
    words = ["".join(draw.choices("aeioubcdfglmnprst", k=draw.randint(2, 9))) for _ in range(3_000)]

    def said(least: int, most: int) -> str:
        return " ".join(draw.choices(words, k=most // 3))[: draw.randint(least, most)]

    return [(said(160, 240), said(540, 660)) for _ in range(count)]


TURNS = _make_turns(LENGTHS[-1] + IN_A_ROW * (ROUNDS + 2))


class Dicts(TypedDict):
    """Messages as plain dicts."""

    messages: Annotated[list[dict[str, str]], operator.add]


class Messages(TypedDict):
    """Messages as LangChain's objects."""

    messages: Annotated[list[AnyMessage], add_messages]


def _as_dicts(asked: str, answered: str) -> list[Any]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]


def _as_messages(asked: str, answered: str) -> list[Any]:
    return [HumanMessage(asked), AIMessage(answered)]


#: Kinds of threads: the state, and how a turn is written in it.
KINDS: dict[str, tuple[Any, Callable[[str, str], list[Any]]]] = {
    "dicts": (Dicts, _as_dicts),
    "messages": (Messages, _as_messages),
}


def _graph(kind: str, saver: Saver | None) -> Graph:
    state, turn = KINDS[kind]

    def answer(state: Any) -> Any:
        number = len(state["messages"]) // 2
        return {"messages": turn(*TURNS[number])[1:]}

    graph = StateGraph(state)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile(checkpointer=saver)


class _Thread:
    """A thread in one saver, and how long it is."""

    def __init__(
        self, kind: str, make: Callable[[], Saver], name: str = "thread", turns: int = 0
    ) -> None:
        self.turns = turns
        self._config: Any = {"configurable": {"thread_id": name}}
        self._turn = KINDS[kind][1]
        self._make = make
        self._graph = _graph(kind, make())

    def fill(self, turns: int) -> None:
        """Make it so long by one update."""
        messages = [one for turn in TURNS[:turns] for one in self._turn(*turn)]
        self._graph.update_state(self._config, {"messages": messages}, as_node="answer")
        self.turns = turns

    def grow(self, turns: int) -> None:
        """Make it so long by real turns."""
        while self.turns < turns:
            self.turn()

    def turn(self) -> None:
        """The user asks, and the node answers."""
        asked = self._turn(*TURNS[self.turns])[:1]
        found = self._graph.invoke({"messages": asked}, self._config)
        self.turns += 1
        if len(found["messages"]) != 2 * self.turns:
            msg = f"after {self.turns} turns there are {len(found['messages'])} messages"
            raise AssertionError(msg)

    def read(self) -> None:
        """The newest checkpoint, by a saver that knows nothing yet."""
        found = self._make().get_tuple(self._config)
        if found is None or len(found.checkpoint["channel_values"]["messages"]) != 2 * self.turns:
            raise AssertionError("the newest checkpoint has not all messages")


# -- the savers ------------------------------------------------------------------------------------


@contextmanager
def _limpet(path: Path, kind: str, turns: int) -> Iterator[_Thread]:
    with limpet.open(path, durability="normal") as store:
        _Thread(kind, partial(LimpetSaver, store)).grow(turns)
    with limpet.open(path) as store:
        settle(store)
        yield _Thread(kind, partial(LimpetSaver, store), turns=turns)


@contextmanager
def _sqlite(path: Path, kind: str, turns: int) -> Iterator[_Thread]:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        filler = _Thread(kind, lambda: saver, "filler")
        filler.fill(len(TURNS) // 2)  # its log has its full size, too
        filler.fill(len(TURNS) // 2)
        thread = _Thread(kind, lambda: saver)
        thread.fill(turns)
        yield thread


@contextmanager
def _postgresql(path: Path, kind: str, turns: int) -> Iterator[_Thread]:
    with PostgresSaver.from_conn_string(_database(path)) as saver:
        saver.setup()
        thread = _Thread(kind, lambda: saver)
        thread.fill(turns)
        yield thread


def _database(path: Path) -> str:
    """A new one, for *path*."""
    server: Any = shared("postgresql_server")
    name = re.sub(r"\W", "_", f"bench_{path.stem}")
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(
            psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name))
        )
    return str(server.url()).rpartition("/")[0] + f"/{name}"


@contextmanager
def _in_memory(path: Path, kind: str, turns: int) -> Iterator[_Thread]:  # noqa: ARG001 - as the others
    saver = InMemorySaver()
    thread = _Thread(kind, lambda: saver)
    thread.fill(turns)
    yield thread


SAVERS: dict[str, Callable[[Path, str, int], AbstractContextManager[_Thread]]] = {
    "Limpet": _limpet,
    "SqliteSaver": _sqlite,
    "PostgresSaver": _postgresql,
    "InMemorySaver": _in_memory,
}


def _alone(kind: str, turns: int) -> Contestant:
    """The graph without a checkpointer, given the whole state: what LangGraph itself takes."""
    graph, turn = _graph(kind, None), KINDS[kind][1]
    messages = [one for said in TURNS[:turns] for one in turn(*said)]
    asked = turn(*TURNS[turns])[:1]
    return _in_a_row(lambda: graph.invoke({"messages": [*messages, *asked]}))


def _in_a_row(turn: Callable[[], object]) -> Contestant:
    """What one of some turns takes."""

    def contestant() -> Took:
        began = Stopwatch()
        for _ in range(IN_A_ROW):
            turn()
        all_of_them = began.took()
        took = Took(all_of_them / IN_A_ROW)
        took.cpu = all_of_them.cpu / IN_A_ROW
        return took

    return contestant


# -- the rows --------------------------------------------------------------------------------------


def measure(bench: Bench) -> list[Row]:
    """A turn at each length with each saver, in turn; then what is kept of threads that grow."""
    lengths = QUICK if bench.quick else LENGTHS
    rows: list[Row] = []
    for kind in KINDS:
        turning, reading = Contest(), Contest()
        with ExitStack() as stack:
            turns: dict[str, Contestant] = {}
            reads: dict[str, Contestant] = {}
            for length in lengths:
                turns[f"alone {length}"] = _alone(kind, length)
                for name, open_ in SAVERS.items():
                    thread = stack.enter_context(open_(bench.path(f"{name}-{kind}"), kind, length))
                    turns[f"{name} {length}"] = _in_a_row(thread.turn)
                    if length == lengths[-1]:
                        reads[name] = timed(thread.read)
            Contest().round(turns)  # to warm up
            for _ in bench.rounds(ROUNDS):
                turning.round(turns)
                reading.round(reads)
        rows += [*_turns(turning, kind, lengths), _read(reading, kind, lengths[-1])]
    return [*rows, *_kept(bench, lengths)]


def _turns(contest: Contest, kind: str, lengths: Sequence[int]) -> Iterator[Row]:
    for length in lengths:
        ours, theirs = f"Limpet {length}", f"SqliteSaver {length}"
        took = {name: contest.typical(f"{name} {length}") for name in (*SAVERS, "alone")}
        yield Row(
            name=f"LangGraph, {kind}: a turn at {length:,}, SqliteSaver to Limpet",
            value=contest.ratio(theirs, to=ours),
            at_least=10 if length == 1_000 and kind == "dicts" else None,
            note=", ".join(f"{name} {milliseconds(seconds)}" for name, seconds in took.items())
            + f"; {contest.cpu(ours, to=theirs)}",
            figures={
                "length": length,
                **{f"{name}_{kind}_ms": seconds * 1e3 for name, seconds in took.items()},
            },
        )
    first, last = f"Limpet {lengths[0]}", f"Limpet {lengths[-1]}"
    alone = contest.ratio(f"alone {lengths[-1]}", to=f"alone {lengths[0]}")
    yield Row(
        name=f"LangGraph, {kind}: a turn at {lengths[-1]:,} to one at {lengths[0]:,}",
        value=contest.ratio(last, to=first),
        at_most=1.2 if kind == "dicts" else None,
        note=f"CPU {contest.cpu_ratio(last, to=first):.2f}; without a checkpointer {alone:.2f}",
    )


def _read(contest: Contest, kind: str, length: int) -> Row:
    took = {name: milliseconds(contest.typical(name)) for name in SAVERS}
    return Row(
        name=f"LangGraph, {kind}: {length:,} turns read by a new saver, SqliteSaver to Limpet",
        value=contest.ratio("SqliteSaver", to="Limpet"),
        note=", ".join(f"{name} {time}" for name, time in took.items()),
    )


# -- what is kept ----------------------------------------------------------------------------------


def _kept(bench: Bench, lengths: Sequence[int]) -> Iterator[Row]:
    """What each has on its disk of a thread of dicts, all history included."""
    peers = [length for length in lengths if length <= PEERS_GROWN]
    limpets = _limpet_grown(bench.path("grown"), lengths)
    sqlites = _sqlite_grown(bench.path("grown-sqlite"), peers)
    postgres = _postgresql_grown(bench.path("grown-postgres"), peers)
    for length in lengths:
        found = {"Limpet": limpets[length]}
        if length in sqlites:
            found |= {"SqliteSaver": sqlites[length], "PostgresSaver": postgres[length]}
        text = sum(len(said) for turn in TURNS[:length] for said in turn)
        yield Row(
            name=f"LangGraph, dicts: kept after {length:,} turns, with time travel to each",
            value=found["Limpet"] / 1e6,
            unit="MB",
            at_most=6 if length == 3_000 else None,
            note=f"{text / 1e6:.2f} MB of text"
            + "".join(f"; {name} {size / 1e6:,.1f} MB" for name, size in found.items()),
            figures={"length": length, **{f"{name}_bytes": n for name, n in found.items()}},
        )


def _limpet_grown(path: Path, lengths: Sequence[int]) -> dict[int, int]:
    found = {}
    for before, length in pairwise((0, *lengths)):
        with limpet.open(path, durability="normal") as store:
            _Thread("dicts", partial(LimpetSaver, store), turns=before).grow(length)
        found[length] = path.stat().st_size
    return found


def _sqlite_grown(path: Path, lengths: Sequence[int]) -> dict[int, int]:
    found = {}
    for before, length in pairwise((0, *lengths)):
        with SqliteSaver.from_conn_string(str(path)) as saver:
            saver.conn.execute("PRAGMA synchronous = OFF")  # it is the size that counts here
            _Thread("dicts", lambda it=saver: it, turns=before).grow(length)  # type: ignore[misc]
        found[length] = path.stat().st_size
    return found


def _postgresql_grown(path: Path, lengths: Sequence[int]) -> dict[int, int]:
    found = {}
    url = _database(path)
    with PostgresSaver.from_conn_string(url) as saver, psycopg.connect(url) as asking:
        saver.setup()
        thread = _Thread("dicts", lambda: saver)
        for length in lengths:
            thread.grow(length)
            row = asking.execute("SELECT pg_database_size(current_database())").fetchone()
            found[length] = row[0] if row else 0
            asking.rollback()
    return found
