"""LimpetSaver by itself, and beside LangGraph's own: what it keeps, refuses and costs."""

from __future__ import annotations

import asyncio
import enum
import math
import shutil
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime
from operator import add
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

import limpet
from limpet.errors import Conflict, NotStorable, StoreClosed, Unreadable
from limpet.integrations.langgraph import LimpetSaver
from tests.support import places

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointTuple

    from tests.support.places import Where


@pytest.fixture(params=list(places.LOCAL))
def where(request: pytest.FixtureRequest) -> Where:
    """An empty place; what differs by backend, LangGraph's own suite asks of all of them."""
    return places.find(request.param, request)


CONFIG: RunnableConfig = {"configurable": {"thread_id": "alice", "checkpoint_ns": ""}}


def checkpoint(values: dict[str, Any], versions: dict[str, Any]) -> Checkpoint:
    """A checkpoint as LangGraph makes them."""
    return {
        "v": 4,
        "id": str(uuid6(clock_seq=-2)),
        "ts": datetime.now(UTC).isoformat(),
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {"node": dict(versions)},
        "updated_channels": sorted(versions),
    }


def upon(config: RunnableConfig, **more: Any) -> RunnableConfig:
    """What a writer passes that has read, or written, the checkpoint of *config*."""
    conf = {**config["configurable"], **more}
    return {"configurable": {**conf, "checkpoint_id": str(conf["checkpoint_id"])}}


@dataclass
class Point:
    """A type of a user's."""

    x: Any


class Colour(enum.Enum):
    """Another."""

    RED = "red"


class Chat(TypedDict):
    """The state of a graph."""

    messages: Annotated[list[Any], add_messages]


class Said(TypedDict):
    """The state of a simpler one."""

    said: Annotated[list[Any], add]


def echo(state: Said) -> dict[str, Any]:
    """Answer what was said last."""
    return {"said": [f"you said {state['said'][-1]}"]}


def echoing(saver: BaseCheckpointSaver[Any]) -> Any:
    """A graph of one node."""
    builder = StateGraph(Said)
    builder.add_node("echo", echo)
    builder.add_edge(START, "echo")
    return builder.compile(checkpointer=saver)


@pytest.fixture
def saver(where: Where) -> Iterator[LimpetSaver]:
    """A saver over an empty place."""
    with LimpetSaver(where.url) as opened:
        yield opened


class TestValues:
    """What goes in comes out, and costs what is new."""

    def test_values_come_back_as_langgraph_s_own_serialiser_gives_them(self) -> None:
        """Types, odd keys, numbers that JSON has not, and keys that look like ours."""
        value = {
            "text": "é\x00\n",
            "moment": datetime(2026, 1, 1, tzinfo=UTC),
            "day": date(2026, 1, 1),
            "id": uuid.UUID(int=7),
            "set": {1, 2},
            "bytes": b"\x00\xff",
            "tuple": (1, (2,)),
            "numbers": {1: "one", 2.5: [math.inf, -math.inf]},
            "$ext": [1, 2],
            "$": {"$map": []},
            "message": HumanMessage("hello", id="1"),
            "none": None,
        }
        theirs, ours = InMemorySaver(), LimpetSaver("memory:")
        for saver in (theirs, ours):
            saver.put(
                CONFIG,
                checkpoint({"c": value, "l": [value]}, {"c": 1, "l": 1}),
                {},
                {"c": 1, "l": 1},
            )
        found, expected = ours.get_tuple(CONFIG), theirs.get_tuple(CONFIG)
        assert found is not None
        assert expected is not None
        assert found.checkpoint["channel_values"] == expected.checkpoint["channel_values"]

    def test_a_type_that_is_not_allowed_is_refused_by_name_and_nothing_is_stored(
        self, saver: LimpetSaver
    ) -> None:
        """A dict in its place, or None, would be found out when it is too late."""
        with pytest.raises(NotStorable, match=r"test_saver\.Point.*allow=\[Point\]"):
            saver.put(CONFIG, checkpoint({"p": Point(1)}, {"p": 1}), {}, {"p": 1})
        assert saver.get_tuple(CONFIG) is None

    def test_a_class_that_nobody_could_find_again_is_refused(self, where: Where) -> None:
        """Before it is stored, and not when it is read."""

        @dataclass
        class Local:
            x: int

        with LimpetSaver(where.url, allow=[Local]) as allowing:
            with pytest.raises(NotStorable, match="at the top of the module"):
                allowing.put(CONFIG, checkpoint({"p": Local(1)}, {"p": 1}), {}, {"p": 1})
            assert allowing.get_tuple(CONFIG) is None

    def test_an_allowed_type_comes_back_and_is_refused_by_who_does_not_allow_it(
        self, where: Where
    ) -> None:
        """What may be made is up to the reader."""
        with LimpetSaver(where.url, allow=[Point]) as saver:
            saver.put(CONFIG, checkpoint({"p": [Point(1)]}, {"p": 1}), {}, {"p": 1})
            found = saver.get_tuple(CONFIG)
            assert found is not None
            assert found.checkpoint["channel_values"] == {"p": [Point(1)]}
        with LimpetSaver(where.url) as saver, pytest.raises(NotStorable, match="Point"):
            saver.get_tuple(CONFIG)

    def test_a_type_that_is_not_there_any_more_is_named(
        self, where: Where, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A renamed class is not silently a dict."""
        with LimpetSaver(where.url, allow=[Point]) as saver:
            saver.put(CONFIG, checkpoint({"p": Point(1)}, {"p": 1}), {}, {"p": 1})
        monkeypatch.delitem(globals(), "Point")
        with LimpetSaver(where.url, allow=[(__name__, "Point")]) as saver:
            with pytest.raises(Unreadable, match="Point cannot be made again"):
                saver.get_tuple(CONFIG)
            monkeypatch.undo()

    def test_nor_is_one_within_another_object(
        self, where: Where, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An enum that has lost a member is not its text where a field should have it."""
        allow = [(__name__, "Point"), (__name__, "Colour")]
        now = checkpoint({"p": Point(Colour.RED)}, {"p": 1})
        with LimpetSaver(where.url, allow=allow) as saver:
            saver.put(CONFIG, now, {}, {"p": 1})
            found = saver.get_tuple(CONFIG)
            assert found is not None
            assert found.checkpoint["channel_values"] == {"p": Point(Colour.RED)}
        monkeypatch.setitem(globals(), "Colour", enum.Enum("Colour", {"RED": "rouge"}))
        with (
            LimpetSaver(where.url, allow=allow) as saver,
            pytest.raises(Unreadable, match="Colour cannot be made again"),
        ):
            saver.get_tuple(CONFIG)

    def test_elements_that_are_made_anew_each_time_are_stored_once(self, where: Where) -> None:
        """A reducer may give equal elements that are other objects."""
        with LimpetSaver(where.url) as saver:
            config = CONFIG
            for turn in range(1, 60):
                said = [{"text": f"{number} " + "x" * 60} for number in range(turn)]
                now = checkpoint({"said": said}, {"said": turn})
                config = upon(saver.put(config, now, {}, {"said": turn}))
        with limpet.open(where.url) as store:
            stored = str([entry.body for entry in store.journal("thread", "alice").read()])
        assert stored.count("x" * 60) == 59

    def test_each_message_is_stored_once(self, where: Where) -> None:
        """Neither as input nor as a write nor in a later checkpoint is its text there again."""
        with LimpetSaver(where.url) as saver:
            graph, text = echoing(saver), "a text that is longer than what names it, " * 3
            for turn in range(20):
                graph.invoke({"said": [f"{turn} {text}"]}, CONFIG)
        with limpet.open(where.url) as store:
            stored = str([entry.body for entry in store.journal("thread", "alice").read()])
        for turn in range(20):
            assert stored.count(f"'{turn} {text}") == 1

    def test_an_element_that_a_node_changed_in_its_place_is_stored_as_it_is_now(
        self, saver: LimpetSaver
    ) -> None:
        """LangGraph's own savers would have stored it."""

        def change(state: Said) -> dict[str, Any]:
            state["said"][-1]["text"] = "changed"
            return {"said": [{"text": "new"}]}

        builder = StateGraph(Said)
        builder.add_node("change", change)
        builder.add_edge(START, "change")
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"said": [{"text": "old"}]}, CONFIG)
        assert graph.get_state(CONFIG).values["said"] == [{"text": "changed"}, {"text": "new"}]

    def test_what_is_read_is_what_another_process_reads(self, where: Where) -> None:
        """Not the objects that were put: JSON has no tuples, and what works now works later."""
        with LimpetSaver(where.url) as saver:
            said = [(number, "x" * 60) for number in range(40)]
            saver.put(CONFIG, checkpoint({"said": said}, {"said": 1}), {}, {"said": 1})
            here = saver.get_tuple(CONFIG)
        with LimpetSaver(where.url) as saver:
            there = saver.get_tuple(CONFIG)
        assert here == there
        assert here is not None
        assert here.checkpoint["channel_values"]["said"] == [list(one) for one in said]

    def test_who_changes_what_was_read_changes_nothing_that_is_stored(
        self, saver: LimpetSaver
    ) -> None:
        """A list that was handed out, and its newest elements, are the reader's own."""
        graph = echoing(saver)
        graph.invoke({"said": [{"text": "hello"}]}, CONFIG)
        state = graph.get_state(CONFIG).values["said"]
        state[0]["text"] = "changed"
        state.append("more")
        said = graph.get_state(CONFIG).values["said"]
        assert said == [{"text": "hello"}, "you said {'text': 'hello'}"]

    def test_messages_are_removed_and_replaced_by_id(self, saver: LimpetSaver) -> None:
        """As LangChain's reducer does, and every earlier version stays."""

        def answer(state: Chat) -> dict[str, Any]:
            first = state["messages"][0]
            if len(state["messages"]) > 2:
                edited = HumanMessage("edited", id=state["messages"][1].id)
                return {"messages": [RemoveMessage(id=first.id), edited]}
            return {"messages": [AIMessage("hi", id="a")]}

        builder = StateGraph(Chat)
        builder.add_node("answer", answer)
        builder.add_edge(START, "answer")
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"messages": [HumanMessage("one", id="1")]}, CONFIG)
        graph.invoke({"messages": [HumanMessage("two", id="2")]}, CONFIG)
        history = [
            [message.content for message in state.values.get("messages", [])]
            for state in graph.get_state_history(CONFIG)
        ]
        assert history == [
            ["edited", "two"],
            ["one", "hi", "two"],
            ["one", "hi"],
            ["one", "hi"],
            ["one"],
            [],
        ]


NAMES = st.sampled_from(["a", "b"])
ITEMS = st.one_of(
    st.integers(0, 3),
    st.text("xy", min_size=60, max_size=61),
    st.builds(lambda text: {"role": "user", "content": text}, st.sampled_from("pqr")),
    st.builds(lambda text: HumanMessage(text, id=text), st.sampled_from(["m" * 60, "n"])),
    st.just((1, 2)),
)
VALUES = st.one_of(st.lists(ITEMS, max_size=40), ITEMS, st.dictionaries(NAMES, st.lists(ITEMS)))
STEPS = st.lists(
    st.tuples(
        st.integers(0, 5),  # how far back the parent is
        st.dictionaries(NAMES, VALUES, max_size=2),  # the channels that changed
        st.sampled_from(["keep", "grow", "trim", "turn"]),  # what became of the list
        st.lists(st.tuples(NAMES, ITEMS), max_size=2),  # writes upon it
    ),
    min_size=1,
    max_size=12,
)


class TestBesideInMemorySaver:
    """Whatever LangGraph stores, it reads back what InMemorySaver would have given it."""

    @settings(max_examples=60, deadline=None)
    @given(STEPS, st.booleans())
    def test_any_tree_of_checkpoints_is_the_same(self, steps: Any, cold: bool) -> None:  # noqa: FBT001
        """Forks, lists that grow, shrink and turn, writes; as it is written, and read anew."""
        with limpet.open("memory:") as store:
            ours, theirs = LimpetSaver(store, forks="allow"), InMemorySaver()
            said: list[Any] = []
            made: list[tuple[Checkpoint, RunnableConfig]] = []
            for number, (back, changed, how, writes) in enumerate(steps, 1):
                said = _changed(said, how, number)
                values: dict[str, Any] = {**changed, "said": said}
                parent = made[-1 - back % len(made)] if made else None
                before: Any = {} if parent is None else parent[0]
                # A version of its own for each value: theirs keeps one value for each.
                new: dict[str, Any] = {name: f"{number:04}.{name}" for name in values}
                kept = {
                    name: value
                    for name, value in before.get("channel_values", {}).items()
                    if name not in values
                }
                versions = {**before.get("channel_versions", {}), **new}
                now = checkpoint({**kept, **values}, versions)
                config = CONFIG if parent is None else parent[1]
                stored = theirs.put(config, now, {"step": number, "source": "loop"}, new)
                assert ours.put(config, now, {"step": number, "source": "loop"}, new) == stored
                for saver in (theirs, ours):
                    saver.put_writes(stored, writes, f"task-{number}")
                made.append((now, stored))
            if cold:
                ours = LimpetSaver(store)
            assert [*map(_seen, ours.list(CONFIG))] == [*map(_seen, theirs.list(CONFIG))]
            for _, config in made:
                assert _seen(ours.get_tuple(config)) == _seen(theirs.get_tuple(config))


def _changed(said: list[Any], how: str, number: int) -> list[Any]:
    new = {"role": "user", "content": f"{number} " + "x" * 50}
    if how == "grow":
        return [*said, *([new] * (number % 3)), HumanMessage(f"{number}" * 30, id=str(number))]
    if how == "trim":
        return [*said[2:], new]
    if how == "turn":
        return said[::-1]
    return list(said)


def _seen(found: CheckpointTuple | None) -> Any:
    assert found is not None
    return found.config, found.checkpoint, found.metadata, found.parent_config, found.pending_writes


class TestForks:
    """No branch that nobody asked for."""

    def test_the_second_child_of_a_checkpoint_is_a_conflict(self, saver: LimpetSaver) -> None:
        """Two writers that both read the newest: the later one is told, and nothing is lost."""
        root = saver.put(CONFIG, checkpoint({}, {}), {"step": 0}, {})
        one = saver.put(upon(root), checkpoint({}, {}), {"step": 1}, {})
        with pytest.raises(Conflict, match="has gone on from checkpoint"):
            saver.put(upon(root), checkpoint({}, {}), {"step": 1}, {})
        newest = saver.get_tuple(CONFIG)
        assert newest is not None
        assert newest.config == one

    @pytest.mark.parametrize("name", places.EVERYWHERE)
    def test_of_two_who_go_on_from_one_checkpoint_one_is_told(
        self, name: str, request: pytest.FixtureRequest
    ) -> None:
        """Whoever was first, each by a saver of its own, on every backend."""
        url = places.find(name, request).url
        with LimpetSaver(url) as one, LimpetSaver(url) as other:
            root = one.put(CONFIG, checkpoint({}, {}), {}, {})
            for saver in (one, other):
                saver.get_tuple(CONFIG)
            kept = other.put(upon(root), checkpoint({"c": 1}, {"c": 1}), {}, {"c": 1})
            with pytest.raises(Conflict):
                one.put(upon(root), checkpoint({"c": 2}, {"c": 1}), {}, {"c": 1})
            for saver in (one, other):
                newest = saver.get_tuple(CONFIG)
                assert newest is not None
                assert newest.config == kept

    def test_a_run_whose_thread_was_deleted_does_not_bring_it_back(
        self, saver: LimpetSaver
    ) -> None:
        """Half of it, without what was before."""

        def node(state: Said) -> dict[str, Any]:
            saver.delete_thread("alice")
            return {"said": ["late"]}

        builder = StateGraph(Said)
        builder.add_node("node", node)
        builder.add_edge(START, "node")
        with pytest.raises(Conflict, match="was deleted"):
            builder.compile(checkpointer=saver).invoke({"said": ["x"]}, CONFIG, durability="sync")
        assert saver.get_tuple(CONFIG) is None

    def test_two_first_runs_of_a_thread_are_not_two_beginnings(self, where: Where) -> None:
        """Each found the thread empty; one of them is told."""
        with LimpetSaver(where.url) as one, LimpetSaver(where.url) as other:
            assert one.get_tuple(CONFIG) is other.get_tuple(CONFIG) is None
            one.put(CONFIG, checkpoint({}, {}), {"step": -1, "source": "input"}, {})
            with pytest.raises(Conflict, match="the beginning"):
                other.put(CONFIG, checkpoint({}, {}), {"step": -1, "source": "input"}, {})

    def test_a_run_that_was_overtaken_ends_with_a_conflict(self, where: Where) -> None:
        """The turn that came between stays the newest, and the thread goes on from it."""
        with LimpetSaver(where.url) as ours, LimpetSaver(where.url) as theirs:
            theirs_graph = echoing(theirs)

            def slow(state: Said) -> dict[str, Any]:
                theirs_graph.invoke({"said": ["between"]}, CONFIG)
                return {"said": ["late"]}

            builder = StateGraph(Said)
            builder.add_node("slow", slow)
            builder.add_edge(START, "slow")
            with pytest.raises(Conflict):
                builder.compile(checkpointer=ours).invoke(
                    {"said": ["first"]}, CONFIG, durability="sync"
                )
            said = echoing(ours).invoke({"said": ["next"]}, CONFIG)["said"]
            assert "late" not in said
            assert said[-3:] == ["you said between", "next", "you said next"]

    def test_time_travel_makes_the_branch_that_is_asked_for(self, saver: LimpetSaver) -> None:
        """By update_state and by a run from an earlier checkpoint; the other branch stays."""
        graph = echoing(saver)
        graph.invoke({"said": ["one"]}, CONFIG)
        graph.invoke({"said": ["two"]}, CONFIG)
        first = next(
            s for s in graph.get_state_history(CONFIG) if len(s.values.get("said", ())) == 2
        )
        branch = graph.update_state(first.config, {"said": ["instead"]}, as_node="echo")
        assert graph.get_state(branch).values["said"] == ["one", "you said one", "instead"]
        assert graph.invoke({"said": ["three"]}, first.config)["said"][-2:] == [
            "three",
            "you said three",
        ]
        all_said = [state.values.get("said") for state in graph.get_state_history(CONFIG)]
        assert ["one", "you said one", "two", "you said two"] in all_said

    def test_an_id_that_was_asked_for_is_text_like_any_other(self, saver: LimpetSaver) -> None:
        """Whatever it is compared with, and wherever it is a key."""

        class Anything(str):
            __slots__ = ()
            __hash__ = str.__hash__

            def __eq__(self, other: object) -> bool:
                return isinstance(other, str)

        root = saver.put(CONFIG, checkpoint({}, {}), {}, {})
        found = saver.get_tuple(root)
        assert found is not None
        id_ = found.config["configurable"]["checkpoint_id"]
        assert id_ == root["configurable"]["checkpoint_id"]
        assert not id_ != root["configurable"]["checkpoint_id"]  # noqa: SIM202 - both ways count
        assert {id_: 1} == {str(id_): 1}
        assert id_ == Anything()
        assert Anything() == id_

    def test_forks_may_be_allowed(self, where: Where) -> None:
        """For whoever wants LangGraph's own way."""
        with LimpetSaver(where.url, forks="allow") as saver:
            root = saver.put(CONFIG, checkpoint({}, {}), {}, {})
            for _ in range(2):
                saver.put(upon(root), checkpoint({}, {}), {}, {})
            assert len(list(saver.list(CONFIG))) == 3


class TestThreads:
    """A thread as a journal."""

    @pytest.mark.parametrize(
        "name", [1, "", " x ", "a\x00b", "x" * 600, "../../etc", "thread-id:x"]
    )
    def test_any_id_that_langgraph_takes_is_a_thread(self, where: Where, name: Any) -> None:
        """And no two of them are one."""
        others = ["other", "1 ", "x" * 601]
        with LimpetSaver(where.url) as saver:
            for one in (name, *others):
                echoing(saver).invoke({"said": [str(one)]}, {"configurable": {"thread_id": one}})
        with LimpetSaver(where.url) as saver:
            state = echoing(saver).get_state({"configurable": {"thread_id": name}})
            assert state.values["said"][0] == str(name)
            listed = {found.config["configurable"]["thread_id"] for found in saver.list(None)}
            assert listed == {str(name), *others}

    def test_a_thread_waits_for_a_person_in_another_process(self, where: Where) -> None:
        """An interrupt, and its answer, are in the store."""

        def ask(state: Said) -> dict[str, Any]:
            return {"said": [interrupt("sure?")]}

        def graph(saver: LimpetSaver) -> Any:
            builder = StateGraph(Said)
            builder.add_node("ask", ask)
            builder.add_edge(START, "ask")
            return builder.compile(checkpointer=saver)

        with LimpetSaver(where.url) as saver:
            graph(saver).invoke({"said": ["go"]}, CONFIG)
        with LimpetSaver(where.url) as saver:
            assert [i.value for i in graph(saver).get_state(CONFIG).interrupts] == ["sure?"]
            assert graph(saver).invoke(Command(resume="yes"), CONFIG)["said"] == ["go", "yes"]

    def test_what_was_pruned_is_gone_from_the_store(self, where: Where) -> None:
        """Of a thread that grew for a year, the newest checkpoint with all it needs stays."""
        with LimpetSaver(where.url) as saver:
            graph = echoing(saver)
            for turn in range(5):
                graph.invoke({"said": [{"turn": turn, "text": "x" * 60}]}, CONFIG)
            said = graph.get_state(CONFIG).values["said"]
            with limpet.open(where.url) as store:
                before = len(store.journal("thread", "alice").read())
            saver.prune(["alice"])
            assert graph.get_state(CONFIG).values["said"] == said
            assert len(list(saver.list(CONFIG))) == 1
            assert graph.invoke({"said": ["more"]}, CONFIG)["said"][:-2] == said
        with limpet.open(where.url) as store:
            left = store.journal("thread", "alice").read()
            assert len(left) < before / 2
        with LimpetSaver(where.url) as saver:  # nothing that is read needs what went
            assert echoing(saver).get_state(CONFIG).values["said"][: len(said)] == said

    def test_another_process_that_knew_the_thread_follows_its_pruning(self, where: Where) -> None:
        """It does not go on upon what is gone."""
        with LimpetSaver(where.url) as ours, LimpetSaver(where.url) as theirs:
            for turn in range(3):
                echoing(theirs).invoke({"said": [f"{turn} " + "x" * 60]}, CONFIG)
            said = echoing(ours).get_state(CONFIG).values["said"]
            theirs.prune(["alice"])
            repeated = said[0]
            assert echoing(ours).invoke({"said": [repeated]}, CONFIG)["said"][:-2] == said
            assert echoing(theirs).get_state(CONFIG).values["said"][:-2] == said
        with LimpetSaver(where.url) as later:
            assert echoing(later).get_state(CONFIG).values["said"][:-2] == said

    def test_what_runs_have_made_is_deleted_from_every_thread(self, where: Where) -> None:
        """And nothing of it can be found in the store."""
        runs = [str(uuid.uuid4()), str(uuid.uuid4())]
        with LimpetSaver(where.url) as saver:
            root = saver.put(
                CONFIG,
                checkpoint({"c": "kept " * 20}, {"c": 1}),
                {"run_id": str(runs[0])},
                {"c": 1},
            )
            saver.put(
                upon(root),
                checkpoint({"c": "gone " * 20}, {"c": 2}),
                {"run_id": str(runs[1])},
                {"c": 2},
            )
            saver.delete_for_runs([str(runs[1])])
            newest = saver.get_tuple(CONFIG)
            assert newest is not None
            assert newest.checkpoint["channel_values"] == {"c": "kept " * 20}
        with limpet.open(where.url) as store:
            assert "gone" not in str([e.body for e in store.journal("thread", "alice").read()])

    def test_a_thread_expires(self, where: Where) -> None:
        """So many seconds after its last checkpoint."""
        with LimpetSaver(where.url, ttl=0.2) as saver:
            saver.put(CONFIG, checkpoint({}, {}), {}, {})
        with limpet.open(where.url) as store:
            head = store.journal("thread", "alice").head()
            assert head is None or head.ttl == 200_000

    def test_a_closed_saver_says_so(self, where: Where) -> None:
        """And does not open the store again by itself."""
        saver = LimpetSaver(where.url)
        saver.close()
        with pytest.raises(StoreClosed):
            saver.get_tuple(CONFIG)

    def test_sync_and_async_are_one_thread(self, where: Where) -> None:
        """Turns by invoke and by ainvoke, on one saver, in several loops."""
        with LimpetSaver(where.url) as saver:
            graph = echoing(saver)
            graph.invoke({"said": ["one"]}, CONFIG)
            asyncio.run(graph.ainvoke({"said": ["two"]}, CONFIG))
            asyncio.run(graph.ainvoke({"said": ["three"]}, CONFIG))
            said = graph.invoke({"said": ["four"]}, CONFIG)["said"]
            assert [one for one in said if " " not in one] == ["one", "two", "three", "four"]

    def test_a_store_that_goes_back_under_a_run_is_noticed_by_its_next_write(
        self, tmp_path: Path
    ) -> None:
        """A backup that was put in its place: nothing is stored upon what is not there any more."""
        place = tmp_path / "agents"
        with LimpetSaver(f"file:{place}") as saver:
            graph = echoing(saver)
            graph.invoke({"said": ["one"]}, CONFIG)
            shutil.copytree(place, tmp_path / "backup")

            def node(state: Said) -> dict[str, Any]:
                shutil.copytree(tmp_path / "backup", place, dirs_exist_ok=True)
                return {"said": ["lost"]}

            builder = StateGraph(Said)
            builder.add_node("node", node)
            builder.add_edge(START, "node")
            with pytest.raises(Conflict, match="went back"):
                builder.compile(checkpointer=saver).invoke(
                    {"said": ["two"]}, CONFIG, durability="sync"
                )
            said = graph.invoke({"said": ["three"]}, CONFIG)["said"]
            assert said == ["one", "you said one", "three", "you said three"]

    def test_entries_of_another_release_are_passed_over(self, where: Where) -> None:
        """What a later version adds does not brick the thread for this one."""
        with LimpetSaver(where.url) as saver:
            echoing(saver).invoke({"said": ["one"]}, CONFIG)
        with limpet.open(where.url) as store:
            store.journal("thread", "alice").append(("later", {"x": 1}))
        with LimpetSaver(where.url) as saver:
            assert echoing(saver).invoke({"said": ["two"]}, CONFIG)["said"][2] == "two"

    @pytest.mark.parametrize("body", [5, {"id": "x"}, {"task": 1, "writes": [1]}, ["checkpoint"]])
    @pytest.mark.parametrize("kind", ["checkpoint", "writes", "dropped"])
    def test_an_entry_of_another_shape_is_named(self, where: Where, kind: str, body: Any) -> None:
        """By its journal and number, as everywhere."""
        with limpet.open(where.url) as store:
            store.journal("thread", "alice").append((kind, body))
        with LimpetSaver(where.url) as saver, pytest.raises(Unreadable, match="Entry 1 of thread"):
            saver.get_tuple(CONFIG)
