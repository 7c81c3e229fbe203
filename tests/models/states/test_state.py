"""States: what is saved is what is loaded, at every position, for what has changed in it."""

import asyncio
import copy
import json
import shutil
import signal
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, assert_type

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import BaseModel

import limpet
from limpet import (
    AsyncState,
    Codec,
    Conflict,
    FingerprintChange,
    Migrations,
    NotStorable,
    State,
    StateInfo,
    StateVersion,
    Store,
    StoreUnavailable,
    TooLarge,
)
from limpet.backends.contract import Append, Appended, Key, Record
from limpet.core.calls import Call, Resolution, all_in_doubt, resolve_call
from limpet.core.deltas import encode
from limpet.core.runtime import run_to_end
from limpet.errors import InvalidId, StateDamaged, StateNotFound
from limpet.states.format import StateMeta
from limpet.testing.boundaries import Boundaries
from limpet.transfer import copy as copying
from tests.support import stores
from tests.support.corpus import PLACES
from tests.support.documents import histories
from tests.support.paths import DATA
from tests.support.processes import in_a_process
from tests.support.stores import Place

place, store, everywhere = stores.place, stores.store, stores.everywhere

#: Examples share a store, each with an id of its own.
SHARED = settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
_numbers = count(1)


@dataclass
class Address:
    """A part of an order."""

    street: str
    since: datetime = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Order:
    """What somebody has in Python."""

    number: int
    to: Address
    tags: set[str] = field(default_factory=set)


class Case(BaseModel):
    """The same with pydantic."""

    customer: str
    notes: list[str] = []


def fresh_id() -> str:
    """An id that no example had."""
    return f"example-{next(_numbers)}"


def said(number: int) -> dict[str, Any]:
    """One message, as AutoGen has them."""
    text = f"{number}: " + "what was said " * 20
    return {"content": text, "source": "user", "thought": None, "type": "UserMessage"}


def agent(length: int) -> dict[str, Any]:
    """The state of an agent that has seen so many messages."""
    messages = [said(number) for number in range(length)]
    return {
        "type": "AssistantAgentState",
        "version": "1.0.0",
        "llm_context": {"messages": messages},
    }


def saved(state: State, *documents: Any) -> list[int]:
    """Save *documents*, one after the other; their positions."""
    return [state.save(document) for document in documents]


# -- what is saved is what is loaded ---------------------------------------------------------------


def check_history(store: Store, documents: list[Any], reopened: Store) -> None:
    """Save *documents*, and find every one of them again."""
    id_ = fresh_id()
    state = store.state(id_)
    positions = saved(state, *documents)
    assert encode(state.load()) == encode(documents[-1])
    other = reopened.state(id_)
    assert encode(other.load()) == encode(documents[-1])
    for position, document in zip(positions, documents, strict=True):
        assert encode(other.at(position)) == encode(document)
    assert [one.position for one in other.history()] == sorted(set(positions))


@pytest.mark.slow
@given(documents=histories())
@SHARED
def test_every_version_is_what_was_saved(place: Place, documents: list[Any]) -> None:
    """For random documents and random edits: to the byte, from any process."""
    check_history(place.open(), documents, place.open())


@pytest.mark.slow
@given(documents=histories(4))
@settings(SHARED, max_examples=5)
def test_on_every_backend_too(everywhere: Place, documents: list[Any]) -> None:
    """They store bytes, and that is enough."""
    check_history(everywhere.open(), documents, everywhere.open())


@pytest.mark.slow
@given(documents=histories())
@settings(SHARED, max_examples=20)
def test_a_writer_that_remembers_nothing_writes_the_same(
    place: Place, documents: list[Any]
) -> None:
    """A new process for each save: it compares with what it reads."""
    store, id_ = place.open(), fresh_id()
    positions = [store.state(id_).save(document) for document in documents]
    for position, document in zip(positions, documents, strict=True):
        assert encode(store.state(id_).at(position)) == encode(document)


@pytest.mark.slow
def test_a_large_state_is_stored_whole_and_in_parts(everywhere: Place) -> None:
    """Over what some servers take in one piece, and its patches are as small as ever."""
    store = everywhere.open()
    large: dict[str, Any] = {
        "log": [chr(0x4E00 + n % 20_000) * 100 for n in range(4_000)],
        "turn": 0,
    }
    state = store.state("large")
    state.save(large)
    for turn in (1, 2, 3):
        state.save(large | {"turn": turn, "log": [*large["log"], f"line {turn}"]})
    again = everywhere.open().state("large")
    assert again.load() == large | {"turn": 3, "log": [*large["log"], "line 3"]}
    assert again.at(1) == large
    first, *others = again.history()
    assert first.total > 1_000_000
    assert [one.full for one in others] == [False] * 3
    assert max(one.bytes for one in others) < 500


def test_what_is_loaded_is_the_callers_own(store: Store) -> None:
    """Changing it changes no save, and is seen by the next one."""
    state = store.state("a")
    mine = {"messages": [said(n) for n in range(9)]}
    state.save(mine)
    mine["messages"].append(said(9))
    loaded = state.load()
    assert len(loaded["messages"]) == 9
    loaded["messages"].append(said(9))
    assert state.save(loaded) == 2
    mine["messages"][0]["content"] = "otherwise"
    loaded["messages"].clear()
    assert [len(state.at(n)["messages"]) for n in (1, 2)] == [9, 10]
    assert state.load()["messages"][0] == said(0)


def test_a_document_changed_in_place_is_saved_as_it_is(store: Store) -> None:
    """As programs do: one dict that lives on."""
    state, document = store.state("a"), agent(3)
    for number in range(3, 30):
        document["llm_context"]["messages"].append(said(number))
        state.save(document)
    assert [len(state.at(n)["llm_context"]["messages"]) for n in range(1, 28)] == list(range(4, 31))


@pytest.mark.slow
@pytest.mark.parametrize("document", [None, 7, "text", [1, 2], {}, [], True, 1.5])
def test_a_document_is_anything_that_json_has(store: Store, document: Any) -> None:
    """Not only dicts."""
    state = store.state("a")
    assert saved(state, document, document, [document]) == [1, 1, 2]
    assert state.at(1) == document


def test_the_order_of_keys_is_kept(store: Store) -> None:
    """Prompts are made of dicts, and a change of order alone is a change."""
    state = store.state("a")
    old = {"messages": [said(n) for n in range(9)], "a": 1, "b": {"x": 1, "y": 2}}
    new = {"b": {"y": 2, "x": 1}, "messages": old["messages"], "a": 1}
    assert saved(state, old, new, new) == [1, 2, 2]
    assert list(state.load()) == ["b", "messages", "a"]
    assert list(state.load()["b"]) == ["y", "x"]
    assert list(state.at(1)) == ["messages", "a", "b"]
    assert [one.full for one in state.history()] == [True, False]


def test_true_and_one_are_not_the_same(store: Store) -> None:
    """Though Python says so; and a patch says it, however large the rest."""
    state, rest = store.state("a"), [said(n) for n in range(9)]
    documents = [{"rest": rest, "flag": flag} for flag in (1, True, 1.0, 0, False, -0.0, 0.0)]
    assert saved(state, *documents) == [1, 2, 3, 4, 5, 6, 7]
    for number, document in enumerate(documents, 1):
        assert encode(state.at(number)) == encode(document)
    documents = [{"rest": rest[n:], "flag": flag} for n, flag in enumerate((1, True))]
    saved(state, *documents)
    assert encode(store.state("a").load()) == encode(documents[-1])


def test_what_was_imported_from_a_file_goes_on(store: Store) -> None:
    """A journal of an earlier release has the document and nothing else."""
    document = agent(9) | {"copy": 7}
    store.journal("state", "a").append(("imported", document))
    state = store.state("a")
    assert state.load() == document
    assert state.save(document) == 1
    assert saved(state, agent(9), agent(10)) == [2, 3]
    assert [one.full for one in state.history()] == [True, False, False]
    assert [one.type for one in state.history(last=1)] == ["AssistantAgentState"]
    assert store.state("a").load() == agent(10)
    assert store.state("a").at(1) == document


# -- objects and types -----------------------------------------------------------------------------


def test_dataclasses_and_models_come_back_by_their_type(store: Store) -> None:
    """No class is found by a name in the data: the caller names it."""
    order = Order(7, Address("Main Street"), {"new"})
    state = store.state("order")
    assert saved(state, order, order) == [1, 1]
    assert state.load(as_=Order) == order
    assert state.load() == {
        "number": 7,
        "to": {"street": "Main Street", "since": "2026-01-01T00:00:00Z"},
        "tags": ["new"],
    }
    order.number = 8
    state.save(order)
    assert state.at(1, as_=Order).number == 7
    case = store.state("case")
    case.save(Case(customer="Zoë", notes=["e-mail"]))
    assert case.load(as_=Case) == Case(customer="Zoë", notes=["e-mail"])


def test_values_that_json_has_not_are_compared_as_they_are_stored(store: Store) -> None:
    """A tuple is a list there, a time is text: saved again, they are unchanged."""
    state = store.state("a")
    document: dict[Any, Any] = {
        "when": datetime(2026, 1, 1, tzinfo=UTC),
        "place": (1, 2),
        "rest": [said(n) for n in range(9)],
        "model": Case(customer="a"),
        7: None,
    }
    assert saved(state, document, copy.deepcopy(document)) == [1, 1]
    document["rest"].append(said(9))
    assert state.save(document) == 2
    assert state.load()["7"] is None
    assert state.history()[1].bytes < 700


class Agent:
    """What has a state of its own, in the manner of most frameworks."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = agent(2)

    def save_state(self) -> dict[str, Any]:
        """What is to be saved."""
        return self.state

    def load_state(self, state: dict[str, Any]) -> None:
        """Be as it was."""
        self.state = state


class AsyncAgent(Agent):
    """The same, awaited."""

    def __init__(self) -> None:
        super().__init__()
        self.may_save = asyncio.Event()
        self.may_save.set()

    async def save_state(self) -> dict[str, Any]:  # type: ignore[override]
        """What is to be saved."""
        await self.may_save.wait()
        return self.state

    async def load_state(self, state: dict[str, Any]) -> None:  # type: ignore[override]
        """Be as it was."""
        await asyncio.sleep(0)
        self.state = state


def test_an_object_saves_and_loads_itself(store: Store) -> None:
    """By save_state and load_state, as AutoGen's agents do."""
    state, first, second = store.state("a"), Agent(), Agent()
    first.state["llm_context"]["messages"].append(said(2))
    assert state.save(first) == 1
    document = state.load(into=second)
    assert second.state == first.state == document
    second.state["llm_context"]["messages"].clear()
    assert document == first.state


def test_async_objects_need_an_async_store(place: Place, store: Store) -> None:
    """Where there is no event loop, the error says what to do."""
    state, first, second = store.state("a"), AsyncAgent(), AsyncAgent()
    if not place.is_async:
        with pytest.raises(TypeError, match="open_async"):
            state.save(first)
        state.save(first.state)
        with pytest.raises(TypeError, match="open_async"):
            state.load(into=second)
        return
    first.state["llm_context"]["messages"].append(said(2))
    state.save(first)
    state.load(into=second)
    assert second.state == first.state


def test_what_has_no_load_state_says_so(store: Store) -> None:
    """And names the other way."""
    state = store.state("a")
    state.save({"number": 1})
    with pytest.raises(TypeError, match=r"load\(as_=…\)"):
        state.load(into=Address("Main Street"))


# -- what cannot be saved --------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, 1.0, "x"])
def test_a_number_that_is_none_is_refused(store: Store, before: Any) -> None:
    """It would come back as None: in a first save, in a patch, and where there was None before."""
    state, rest = store.state("a"), [said(n) for n in range(9)]
    bad = {"rest": rest, "score": {"mean": float("nan")}}
    with pytest.raises(NotStorable, match=r"state\['score'\]\['mean'\] is nan, which"):
        state.save(bad)
    state.save({"rest": rest, "score": {"mean": before}})
    for number in ("nan", "inf"):
        with pytest.raises(NotStorable, match=r"state\['score'\]\['mean'\]"):
            state.save({"rest": rest, "score": {"mean": float(number)}})
    assert state.load()["score"] == {"mean": before}
    assert state.save({"rest": rest, "score": {"mean": 2.0}}) == 2


@pytest.mark.parametrize("first", [True, False])
def test_keys_that_become_the_same_are_refused(store: Store, *, first: bool) -> None:
    """One of them would be lost."""
    state = store.state("a")
    if not first:
        state.save({"rest": [said(n) for n in range(9)], "by": {"1": "a"}})
    with pytest.raises(NotStorable, match=r"state\['by'\] has the keys 1 and '1', which"):
        state.save({"rest": [said(n) for n in range(9)], "by": {1: "a", "1": "b"}})


def test_what_has_no_stored_form_is_named(store: Store) -> None:
    """With the path to it, whichever way it would be stored; and what is there stays as it is."""
    state = store.state("a")
    for _ in range(2):
        with pytest.raises(NotStorable, match=r"state\['rest'\]\[9\] is a (L|l)ock, which"):
            state.save({"rest": [*map(said, range(9)), threading.Lock()]})
        state.save({"rest": [said(n) for n in range(9)]})
    assert len(state.history()) == 1


def test_a_state_has_the_limits_of_the_store(place: Place) -> None:
    """On its size and on its depth; a patch cannot get round them."""
    store = place.open(codec=Codec(max_bytes=10_000, max_depth=20))
    state = store.state("a")
    state.save(agent(20))
    with pytest.raises(TooLarge, match="state takes"):
        state.save(agent(40))
    deep: Any = "end"
    for _ in range(25):
        deep = [deep]
    with pytest.raises(TooLarge, match="deep"):
        state.save(agent(20) | {"deep": deep})
    assert state.load() == agent(20)
    for _ in range(12):  # it fits, but its patch does not
        deep = deep[0]
    assert state.save(agent(20) | {"deep": deep}) == 2
    assert state.load()["deep"] == deep


# -- what it costs ---------------------------------------------------------------------------------


def test_nothing_is_written_where_nothing_changed(place: Place, store: Store) -> None:
    """A position is a change."""
    state = store.state("a")
    assert saved(state, agent(3), agent(3)) == [1, 1]
    assert place.open().state("a").save(agent(3)) == 1
    assert state.info().position == 1


@pytest.mark.slow
def test_a_turn_costs_what_is_new_in_it(store: Store) -> None:
    """However long the history is; whole copies come ever more seldom."""
    state = store.state("a")
    for length in range(1, 300):
        state.save(agent(length))
    found = state.history()
    new = len(encode(said(299)))
    assert max(one.bytes for one in found if not one.full) < new + 250
    assert sum(one.full for one in found) < 20
    assert sum(one.bytes for one in found) < 2 * found[-1].total + 300 * (new + 250)


def test_reading_takes_no_more_than_twice_the_state(store: Store) -> None:
    """Whatever was done to it: grown, shrunk, changed all over; compressed or not."""
    state = store.state("a")
    for number in range(120):
        document = agent(number if number < 60 else 120 - number)
        document["notes"] = f"{number}" * 300
        state.save(document)
    read, most = 0, 0.0
    entries = store.journal("state", "a").read()
    for one, entry in zip(state.history(), entries, strict=True):
        read = one.total if one.full else read + len(encode(entry.body["patch"]))
        most = max(most, read / one.total)
    assert most <= 2


#: Every call of a backend that takes the way to the store and back.
CALLS = (
    *("append", "append_async", "append_all", "transaction", "read", "bodies", "head", "wait"),
    *("scan", "delete", "compact", "acquire", "renew", "release"),
)


@pytest.fixture
def called(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the store's backend, as they are made."""
    found: list[str] = []

    def watched(name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            found.append(name.removesuffix("_async"))
            return method(*args, **kwargs)

        return call

    for name in CALLS:
        method = getattr(store.backend, name)
        if method is not None:
            monkeypatch.setattr(store.backend, name, watched(name, method))
    return found


@pytest.mark.parametrize(
    "options", [{}, {"labels": {"team": "x"}, "ttl": 60}], ids=["plain", "labelled"]
)
def test_a_save_is_one_append(store: Store, called: list[str], options: dict[str, Any]) -> None:
    """After a load or a save, of a patch or a whole copy: nothing is read before or behind it."""
    first, changed = agent(9) | {"flag": 1, "n": 0}, agent(9) | {"flag": True, "n": 1}
    documents = [agent(2), agent(9), agent(10), {"all": "new"}, first, changed, agent(9), []]
    state = store.state("a", **options)
    assert state.load(default=None) is None
    called.clear()
    for document in documents:
        state.save(document)
    assert called == ["append"] * len(documents)
    assert {one.full for one in state.history()} == {True, False}

    other = store.state("a", **options)
    assert other.load() == documents[-1]
    called.clear()
    assert other.save(agent(20)) == len(documents) + 1
    assert called == ["append"]
    with pytest.raises(Conflict):  # as quickly
        state.save(agent(21))
    assert called == ["append"] * 2
    assert encode(store.state("a").at(6)) == encode(changed)
    assert (other.info().labels, other.info().expires_at is None) == (
        options.get("labels", {}),
        not options,
    )


def test_a_first_save_that_must_be_the_first_is_one_append(store: Store, called: list[str]) -> None:
    """There is nothing to compare with; and one that is deleted here is known to be gone."""
    state = store.state("a")
    assert state.save(agent(1), expect=0) == 1
    assert called == ["append"]
    with pytest.raises(Conflict, match="is at 1, not at 0"):
        state.save(agent(2), expect=0)
    assert called == ["append"] * 2
    state.delete()
    called.clear()
    assert state.save(agent(2)) == 1
    assert called == ["append"]


def test_a_save_of_what_is_there_only_looks_whether_it_is(store: Store, called: list[str]) -> None:
    """Somebody else may have saved, and then what is here is old."""
    state = store.state("a")
    state.save(agent(3))
    called.clear()
    assert state.save(agent(3)) == 1
    assert called == ["head"]


# -- two writers -----------------------------------------------------------------------------------


def test_the_second_of_two_writers_gets_a_conflict(everywhere: Place) -> None:
    """Two processes save the same agent: nothing is lost, and nobody is overwritten unseen."""
    first, second = (everywhere.open().state("a") for _ in range(2))
    first.save(agent(3))
    second.load()
    assert first.save(agent(4)) == 2
    for document in (agent(5), agent(3)):  # the second is what it had, which is old now
        with pytest.raises(Conflict) as caught:
            second.save(document)
        assert (caught.value.expected, caught.value.actual) == (1, 2)
    assert second.load() == agent(4)
    assert second.save(agent(5)) == 3
    with pytest.raises(Conflict):
        first.save(agent(6))
    assert first.load() == agent(5)


def test_a_position_can_be_expected(store: Store) -> None:
    """By who has it from somewhere else; 0 is for a state that is to be new."""
    state = store.state("a")
    with pytest.raises(Conflict):
        state.save(agent(1), expect=7)
    assert state.save(agent(1), expect=0) == 1
    with pytest.raises(Conflict):
        store.state("a").save(agent(2), expect=0)
    assert store.state("a").save(agent(2), expect=1) == 2
    with pytest.raises(Conflict):
        state.save(agent(3))
    assert state.save(agent(3), expect=2) == 3


def test_one_that_found_nothing_does_not_overwrite_one_that_began(place: Place) -> None:
    """Both started at the same moment, and only one of them is first."""
    first, second = (place.open().state("a") for _ in range(2))
    assert first.load(default=None) is None
    assert second.load(default={}) == {}
    first.save(agent(1))
    with pytest.raises(Conflict):
        second.save(agent(2))


@pytest.mark.slow
def test_a_state_that_is_gone_begins_anew(place: Place, store: Store) -> None:
    """It was deleted, or has expired, while its agent went on: then there is no conflict."""
    state = store.state("a")
    saved(state, agent(1), agent(9))
    place.open().state("a").delete()
    assert state.save(agent(10)) == 1
    assert state.load() == agent(10)
    place.open().state("a").delete()
    assert state.save(agent(10)) == 1
    state.delete()
    assert state.save(agent(2)) == 1
    assert place.open().state("a").load() == agent(2)
    brief = store.state("brief", ttl=0.3)
    saved(brief, agent(1), agent(9))
    time.sleep(0.4)
    assert brief.save(agent(10)) == 1
    brief.expire(None)
    assert place.open().state("brief").load() == agent(10)


def test_a_state_that_was_begun_anew_is_another(place: Place, store: Store) -> None:
    """Though it is at the same position: what has changed since is no change of that one."""
    state = store.state("a")
    saved(state, agent(9), agent(10))
    state.load()
    other = place.open().state("a")
    other.delete()
    saved(other, agent(20), agent(21))
    with pytest.raises(Conflict, match="begun anew"):
        state.save(agent(11))
    assert state.load() == agent(21)
    assert saved(state, agent(22), agent(22), agent(23)) == [3, 3, 4]


@pytest.mark.parametrize("saves", [1, 2])
@pytest.mark.parametrize("after", [agent(11), agent(10)], ids=["changed", "as it was"])
def test_one_that_was_begun_anew_at_once_is_another_too(
    place: Place, store: Store, saves: int, after: Any
) -> None:
    """It was there a moment ago, and is gone; whether or not anything has changed here."""
    state, other = store.state("a"), place.open().state("a")
    saved(state, *[agent(9), agent(10)][-saves:])
    other.delete()
    saved(other, *[agent(20), agent(21)][-saves:])
    for _ in range(2):
        with pytest.raises(Conflict, match="begun anew"):
            state.save(after)
    assert other.load() == state.load() == agent(21)
    assert state.save(after) == saves + 1


def turns(length: int, count: int = 12) -> list[Any]:
    """What an agent is, turn by turn."""
    return [agent(length) | {"turn": turn} for turn in range(count)]


@pytest.mark.parametrize(
    "theirs", [turns(30), [*range(11), {"turn": 0}]], ids=["it fits", "it does not"]
)
@pytest.mark.parametrize("ours", [agent(21), {"all": "new"}], ids=["patch", "copy"])
def test_a_save_upon_another_state_is_refused_and_leaves_no_trace(
    place: Place, theirs: list[Any], ours: Any
) -> None:
    """It came to the same position just before the write, and nobody looked: none loses a save."""
    state, other = (place.open().state("a") for _ in range(2))
    saved(state, *turns(20))
    state.load()
    other.delete()
    assert saved(other, *theirs)[-1] == state.position
    for _ in range(2):
        with pytest.raises(Conflict, match="begun anew"):
            state.save(ours)
    assert place.open().state("a").load() == other.at(12) == state.load() == theirs[-1]
    assert [one.position for one in state.history()] == list(range(1, 13))
    assert state.save(ours) == 13
    assert other.load() == ours


@pytest.fixture
def brought_back(place: Place) -> tuple[State, Any]:
    """A state whose backup went on elsewhere, and was then brought back to the same position."""
    with limpet.open("memory:") as beside:
        ours = place.open()
        state, other = ours.state("a"), beside.state("a")
        saved(state, *turns(20, 10))
        list(copying.copy(ours.backend, beside.backend))
        saved(state, agent(21))
        saved(other, agent(22))
        place.open().state("a").delete()
        list(copying.copy(beside.backend, ours.backend))
    return state, agent(22)


def test_a_copy_of_the_same_state_that_went_another_way_is_another(
    brought_back: tuple[State, Any],
) -> None:
    """It has the incarnation of ours, and its position; what it was last written at tells."""
    state, theirs = brought_back
    for document in (agent(21), agent(23)):
        with pytest.raises(Conflict, match="begun anew"):
            state.save(document)
    assert state.load() == theirs


def test_what_is_saved_upon_such_a_copy_is_never_mixed_with_it(
    place: Place, brought_back: tuple[State, Any]
) -> None:
    """Who does not look before does not see it; but whoever reads it does."""
    state, theirs = brought_back
    assert state.save(agent(23)) == 12
    again = place.open().state("a")
    with pytest.raises(StateDamaged):
        again.load()
    assert again.at(11) == theirs
    assert again.save(agent(23)) == 13
    assert place.open().state("a").load() == agent(23)


def test_saves_of_one_object_at_the_same_time_take_turns(place: Place) -> None:
    """Tasks and threads share an agent; that is no conflict. They are saved as they came."""
    if place.is_async:

        async def race() -> list[int]:
            async with limpet.open_async(place.url if place.memory is None else "memory:") as store:
                state = store.state("a")
                first = AsyncAgent()
                first.may_save.clear()
                documents = [first, *({"n": n} for n in range(9))]
                saves = [asyncio.create_task(state.save(document)) for document in documents]
                await asyncio.sleep(0)
                saves.pop(5).cancel()  # one that waits for its turn
                first.may_save.set()
                positions = await asyncio.gather(*saves)
                assert positions == list(range(1, 10))
                return [(await state.at(position))["n"] for position in positions[1:]]

        assert asyncio.run(race()) == [0, 1, 2, 3, 5, 6, 7, 8]
        return
    state = place.open().state("a")
    with ThreadPoolExecutor(4) as pool:
        positions = list(pool.map(lambda n: state.save({"n": n}), range(20)))
    assert sorted(positions) == list(range(1, 21))


def test_an_object_that_saves_itself_while_it_is_saved_is_told_so(place: Place) -> None:
    """It would wait for itself; afterwards the state can be used."""
    state = place.open().state("a")
    core = state._core

    class Eager:
        def save_state(self) -> Any:
            return core.save({}) if place.is_async else state.save({})

    with pytest.raises(RuntimeError, match=r"within the save_state\(\) that it was waiting for"):
        state.save(Eager())
    assert state.save({"n": 1}) == 1


def test_a_save_that_was_cut_off_is_known_again(
    place: Place, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been stored or not: the next save finds out, and there is no conflict."""
    if place.is_async:
        pytest.skip("the sync classes show it")
    state, backend = store.state("a"), store.backend
    saved(state, agent(5), agent(6))
    stored = backend.append

    def lost_after(request: Append) -> Appended:
        stored(request)
        raise StoreUnavailable("the answer was lost")

    def lost_before(_request: Append) -> Appended:
        raise StoreUnavailable("the server is away")

    for lost, position in ((lost_after, 4), (lost_before, 5)):
        with monkeypatch.context() as patch:
            patch.setattr(backend, "append", lost)
            with pytest.raises(StoreUnavailable):
                state.save(agent(10 * position))
        assert state.save(agent(10 * position + 1)) == position
    assert [len(state.at(n)["llm_context"]["messages"]) for n in (3, 4, 5)] == [40, 41, 51]
    with monkeypatch.context() as patch:
        patch.setattr(backend, "append", lost_after)
        with pytest.raises(StoreUnavailable):
            state.save(agent(60))
    assert state.save(agent(60)) == 6
    for number, away in enumerate((lost_after, lost_before)):  # and nobody looked in between
        with monkeypatch.context() as patch:
            patch.setattr(backend, "append", away)
            with pytest.raises(StoreUnavailable):
                state.save(agent(61 + number))
    assert (state.save(agent(63)), state.position) == (8, 8)
    with monkeypatch.context() as patch:  # nor where it is seen by loading it
        patch.setattr(backend, "append", lost_after)
        with pytest.raises(StoreUnavailable):
            state.save(agent(64))
    assert (state.load(), state.save(agent(65))) == (agent(64), 10)


class Interrupted:
    """Raises KeyboardInterrupt at line number *at* of those that run in limpet/states."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *raised: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if Path(frame.f_code.co_filename).parent.name != "states":
            return None
        if event == "line":
            self._left -= 1
            if not self._left:
                raise KeyboardInterrupt
        return self._trace


@pytest.mark.slow
def test_a_save_that_is_interrupted_anywhere_is_in_nobodys_way(in_memory: Store) -> None:
    """It was stored or not; the next one goes on from there, in any thread, without a conflict."""
    with ThreadPoolExecutor(1) as pool:
        for at in count(1):
            state = in_memory.state(f"{at}")
            saved(state, agent(9), agent(10))
            try:
                with Interrupted(at):
                    state.save(agent(11))
            except KeyboardInterrupt:
                position = pool.submit(state.save, agent(12)).result(60)
            else:
                break
            lengths = [
                len(in_memory.state(f"{at}").at(n)["llm_context"]["messages"])
                for n in range(1, position + 1)
            ]
            assert lengths in ([9, 10, 12], [9, 10, 11, 12]), at
    assert at > 100


def test_a_state_knows_whether_it_is_current(place: Place, store: Store) -> None:
    """Without loading it."""
    state, other = store.state("a"), place.open().state("a")
    assert state.is_current()
    other.save(agent(1))
    assert not state.is_current()
    state.load()
    assert state.is_current()
    other.delete()
    assert not state.is_current()
    other.save(agent(2))
    assert not state.is_current()
    state.load()
    state.save(agent(3))
    assert state.is_current()


# -- calls in doubt --------------------------------------------------------------------------------


def resolve(place: Place, call_id: str) -> None:
    """Somebody says that a call of the state "a" has happened."""
    scope = place.beside()._core.scope
    resolution = Resolution(call_id, "done", result=7, by="Zoë")
    run_to_end(resolve_call(scope, "state", "a", resolution))


def in_doubt(place: Place) -> list[str]:
    """The calls that the store finds to be in doubt."""
    found = run_to_end(all_in_doubt(place.beside()._core.scope))
    return [f"{one.kind} {one.id}: {one.call.title}" for one in found]


CALLED = {"c1": Call("c1", "pay"), "c2": Call("c2", "send")}


def test_a_state_says_which_calls_have_not_ended(place: Place, store: Store) -> None:
    """They are found by its head; they stay until they are said to be others."""
    state = store.state("a", version=2)
    state.save(agent(9), calls=CALLED)
    assert in_doubt(place) == ["state a: pay (c1)", "state a: send (c2)"]
    saved(state, agent(10), {"all": "new"})
    assert len(in_doubt(place)) == 2
    assert state.save({"all": "new"}, calls={"c2": CALLED["c2"]}) == 4  # which is a change
    assert in_doubt(place) == ["state a: send (c2)"]
    store.state("a", version=2).save({"all": "newer"})
    assert in_doubt(place) == ["state a: send (c2)"]
    head = store.journal("state", "a").head()
    assert head is not None
    assert (head.status, StateMeta.of(head).version, StateMeta.of(head).copy) == (None, 2, 5)
    store.state("a", version=2).save({"all": "newest"}, calls={})
    assert in_doubt(place) == []


def test_what_a_person_says_of_a_call_lies_between_saves(everywhere: Place) -> None:
    """It is no save: the history, the patches and the positions of the others are as they were."""
    store = everywhere.open()
    state = store.state("a")
    state.save(agent(9), calls=CALLED)
    state.save(agent(10))
    resolve(everywhere, "c1")
    with pytest.raises(Conflict, match="is at 3, not at 2"):
        state.save(agent(11))  # it has not heard of that yet
    assert state.load() == agent(10)
    assert state.save(agent(10)) == 2
    assert state.save(agent(11)) == 4
    assert in_doubt(everywhere) == ["state a: send (c2)"]
    resolve(everywhere, "c2")
    assert [(one.position, one.full) for one in state.history()] == [
        (1, True),
        (2, False),
        (4, False),
    ]
    assert [one.position for one in state.history(last=2)] == [2, 4]
    lengths = [len(state.at(n)["llm_context"]["messages"]) for n in (1, 2, 3, 4, 5)]
    assert lengths == [9, 10, 10, 11, 11]
    assert state.at(datetime.now(UTC) + timedelta(hours=1)) == agent(11)
    again = everywhere.open().state("a")
    assert again.load() == agent(11)
    assert again.save(agent(12)) == 6
    assert again.fork("b").load() == agent(12)
    assert again.compact() == 0
    assert again.restore(3) == 7
    assert again.load() == agent(10)
    again.save([])
    assert again.compact() == 7
    assert everywhere.open().state("a").load() == []


def test_what_is_no_save_can_be_asked_for(place: Place, store: Store) -> None:
    """By who has to heed it: what came since the newest save, or since any position."""
    state = store.state("a")
    assert state.other_entries() == []
    state.save(agent(9), calls=CALLED)
    assert state.other_entries() == []
    resolve(place, "c1")
    resolve(place, "c2")
    assert [(entry.seq, entry.type) for entry in state.other_entries()] == [
        (2, "resolved"),
        (3, "resolved"),
    ]
    assert [entry.body["id"] for entry in state.other_entries(after=2)] == ["c2"]
    state.load()
    state.save(agent(10))
    assert state.other_entries() == []
    assert [entry.seq for entry in state.other_entries(after=0)] == [2, 3]


def test_a_position_that_is_no_save_can_be_expected_too(place: Place, store: Store) -> None:
    """It is held to the save: whoever knows the newest one has seen all of the document."""
    state = store.state("a")
    state.save(agent(9), calls=CALLED)
    resolve(place, "c1")
    assert store.state("a").save(agent(10), expect=1) == 3
    resolve(place, "c2")
    with pytest.raises(Conflict):
        store.state("a").save(agent(11), expect=2)
    with pytest.raises(Conflict):
        store.state("a").save(agent(11), expect=5)
    assert store.state("a").save(agent(11), expect=4) == 5
    state.load()
    assert state.save(agent(12), expect=5) == 6


# -- history ---------------------------------------------------------------------------------------


def test_history_says_what_was_saved_and_what_it_took(store: Store) -> None:
    """For people who look for the save to go back to."""
    state = store.state("a", version=2)
    began = datetime.now(UTC) - timedelta(seconds=1)
    state.save(agent(9), fingerprint={"model": "small"}, note="the first")
    state.save(agent(10))
    state.save(agent(11), fingerprint={"model": "large"})
    state.save(agent(11), note="before the release")
    first, second, third, fourth = state.history()
    assert [one.position for one in state.history()] == [1, 2, 3, 4]
    assert (first.version, first.full, first.note) == (2, True, "the first")
    assert (second.version, second.full, second.note) == (2, False, None)
    assert {one.type for one in state.history()} == {"AssistantAgentState"}
    assert [one.total for one in (first, second)] == [len(encode(agent(n))) for n in (9, 10)]
    assert [one.fingerprint for one in state.history()] == [
        *([{"model": "small"}] * 2),
        *([{"model": "large"}] * 2),
    ]
    assert fourth.note == "before the release"
    assert began < first.at <= second.at <= third.at
    assert sum(one.bytes for one in state.history()) == state.info().size
    assert state.history(last=2) == [third, fourth]
    assert state.history(last=9) == state.history()
    with pytest.raises(ValueError, match="from 1 up"):
        state.history(last=0)


def test_a_state_is_there_as_it_was_at_a_time(store: Store) -> None:
    """By the store's clock."""
    state = store.state("a")
    times = []
    for length in (1, 2, 3):
        state.save(agent(length))
        time.sleep(0.002)
        times.append(datetime.now(UTC))
        time.sleep(0.002)
    assert [state.at(when) for when in times] == [agent(1), agent(2), agent(3)]
    with pytest.raises(StateNotFound, match="from before"):
        state.at(times[0] - timedelta(hours=1))
    with pytest.raises(ValueError, match="zone"):
        state.at(datetime(2026, 1, 1))  # noqa: DTZ001 - the mistake


def test_what_is_not_there_is_an_error_that_says_what_is(store: Store) -> None:
    """Never an empty state by mistake."""
    state = store.state("a")
    for call in (state.load, state.history, state.info, lambda: state.at(1), lambda: state.diff(1)):
        with pytest.raises(StateNotFound, match="no state 'a'"):
            call()
    with pytest.raises(StateNotFound):
        state.label(team="x")
    assert state.load(default=agent(1)) == agent(1)
    assert state.delete() is False
    saved(state, agent(1), agent(2))
    for position in (0, -1, 3):
        with pytest.raises(StateNotFound, match="it has 1 to 2"):
            state.at(position)
    with pytest.raises(InvalidId):
        store.state("")
    with pytest.raises(TypeError, match="by its position or by a datetime, not '1'"):
        state.at("1")  # type: ignore[call-overload]


def test_a_position_is_a_whole_number(store: Store) -> None:
    """Nothing else is taken for one, and none is too large to be asked for."""
    state = store.state("a")
    saved(state, agent(1), agent(2))
    wrong: Any
    for wrong in (True, 1.0, "1"):
        for asked in (
            partial(state.at, wrong),
            partial(state.save, {}, expect=wrong),
            partial(state.restore, 1, expect=wrong),
            partial(state.history, last=wrong),
            partial(state.compact, before=wrong),
        ):
            with pytest.raises(TypeError, match=r"position|whole number"):
                asked()
    with pytest.raises(StateNotFound, match="has no save 1,180,591,620,717,411,303,424"):
        state.at(2**70)


def test_a_state_knows_where_it_was_seen(place: Place, store: Store) -> None:
    """By loading or by saving, here."""
    state, other = store.state("a"), place.open().state("a")
    if not place.is_async:
        assert state.position is None
    assert state.load(default=None) is None
    other.save(agent(1))
    if not place.is_async:
        assert (state.position, other.position) == (0, 1)
        state.load()
        assert state.position == 1


@pytest.mark.parametrize("note", [7, "\ud800"], ids=["number", "surrogate"])
def test_a_note_is_text(store: Store, note: Any) -> None:
    """What could be stored and not read again is not stored."""
    state = store.state("a")
    for _ in range(2):
        with pytest.raises(NotStorable, match="note"):
            state.save(agent(2), note=note)
        state.save(agent(1))
    assert state.history()[-1].position == 1


DIFF = """\
version
  - 1
  + 2
saved by
  ~ model 'small' is now 'large'
document
  - draft: "gone"
  + turn: 2
llm_context.messages[0].content
  - "0: what was said what was said what was s…"
  + "0: what I had said what was said what was s…"
llm_context.messages
  + [2] {"role":"user"}
"odd key"
  - 1
  + true"""


def test_a_difference_can_be_read_by_people(store: Store) -> None:
    """Where it is, what was, what is; long texts only around the change."""
    old = agent(2) | {"draft": "gone", "odd key": 1}
    old["llm_context"]["messages"][0]["content"] = "0: what was said " + "what was said " * 20
    new = copy.deepcopy(old) | {"odd key": True, "turn": 2}
    del new["draft"]
    new["llm_context"]["messages"][0]["content"] = "0: what I had said " + "what was said " * 20
    new["llm_context"]["messages"].append({"role": "user"})
    store.state("a").save(old, fingerprint={"model": "small"})
    state = store.state("a", version=2)
    state.save(new, fingerprint={"model": "large"})
    assert state.diff(1) == state.diff(1, 2) == DIFF
    assert state.diff(2) == "Nothing changed."
    assert '  - [2] {"role":"user"}' in state.diff(2, 1)


def test_a_difference_of_much_is_cut_short(store: Store) -> None:
    """Nobody reads a thousand lines."""
    state = store.state("a")
    saved(state, agent(1), agent(100), {"x": "long " * 1000})
    assert "  … and 79 more" in state.diff(1, 2)
    assert max(map(len, state.diff(1).splitlines())) < 300
    other = store.state("b")
    saved(other, [{"n": n, "a": []} for n in range(300)], [{"n": n, "a": [1]} for n in range(300)])
    assert other.diff(1).endswith("… and 200 more places")
    assert "another order" in (saved(state, {"a": 1, "b": 2}, {"b": 2, "a": 1}), state.diff(4))[1]


def test_an_earlier_save_is_restored_by_saving_it_again(store: Store) -> None:
    """Nothing is lost by going back."""
    state = store.state("a")
    state.save(agent(1), fingerprint={"model": "small"})
    state.save(agent(2), fingerprint={"model": "large"})
    state.save(agent(3))
    assert state.restore(1) == 4
    assert state.load() == agent(1)
    newest = state.history()[-1]
    assert (newest.note, newest.fingerprint) == ("restored from 1", {"model": "small"})
    assert state.at(3) == agent(3)
    with pytest.raises(StateNotFound):
        state.restore(9)


def test_a_call_in_doubt_is_in_doubt_in_a_fork_of_the_newest_save_too(store: Store) -> None:
    """Whoever goes on with the fork must not make it again as if it had not begun."""
    state = store.state("support")
    state.save({"turn": 1})
    state.save({"turn": 2}, calls={"c1": Call("c1", "pay")})
    state.fork("newest")
    state.fork("older", at=1)
    found = [(doubt.id, doubt.call.title) for doubt in store.in_doubt()]
    assert found == [("newest", "pay (c1)"), ("support", "pay (c1)")]


def test_a_fork_goes_its_own_way(store: Store) -> None:
    """From now, or from any save."""
    state = store.state("a", labels={"team": "x"}, ttl=3600)
    saved(state, agent(1), agent(2))
    fork, old = state.fork("b"), state.fork("c", at=1)
    assert (fork.load(), old.load()) == (agent(2), agent(1))
    fork.save(agent(3))
    assert state.load() == agent(2)
    assert fork.history()[0].note == "forked from a at 2"
    assert fork.info().labels == {"team": "x"}
    assert fork.info().expires_at is not None
    assert state.fork("c", at=1).load() == agent(1)  # again, after a lost answer
    with pytest.raises(Conflict, match="already"):
        state.fork("b", at=1)
    with pytest.raises(StateNotFound):
        store.state("nobody").fork("d")


def test_older_saves_can_be_forgotten(place: Place, store: Store) -> None:
    """All that the newest does not need, or all before a position."""
    state = store.state("a")
    for length in range(1, 60):
        state.save(agent(length))
    kept = [one.position for one in state.history() if one.full]
    assert state.compact(before=kept[2]) == kept[2] - 1
    assert state.history()[0].position == kept[2]
    assert state.at(kept[2]) == agent(kept[2])
    with pytest.raises(StateNotFound, match=f"it has {kept[2]} to 59"):
        state.at(1)
    state.compact()
    assert state.history()[0].position == kept[-1]
    assert place.open().state("a").load() == agent(59)
    assert state.save(agent(60)) == 60
    assert state.compact() == 0


def test_states_are_listed_labelled_and_expire(everywhere: Place) -> None:
    """As conversations and tasks are."""
    store = everywhere.open()
    store.state("team/a", labels={"team": "x"}, version=3).save(agent(1))
    store.state("team/b", ttl=3600).save(agent(2))
    store.state("other").save(agent(3))
    assert [info.id for info in store.states()] == ["other", "team/a", "team/b"]
    assert [info.id for info in store.states(prefix="team/")] == ["team/a", "team/b"]
    (info,) = store.states(labels={"team": "x"})
    assert (info.id, info.version, info.position) == ("team/a", 3, 1)
    state = store.state("team/b")
    assert state.info().expires_at is not None
    state.expire(None)
    state.label(team="y", since=None)
    assert state.info().expires_at is None
    assert [one.id for one in store.states(labels={"team": "y"})] == ["team/b"]
    assert state.delete()
    assert [info.id for info in store.states()] == ["other", "team/a"]
    assert everywhere.open(tenant="another").state("other").load(default=None) is None


# -- damage ----------------------------------------------------------------------------------------


def altered(store: Store, id_: str, position: int, change: Any) -> None:
    """Let *change* have its way with the stored body at *position*, in memory."""
    journal = store.backend._journals[Key("default", "state", id_)]  # type: ignore[attr-defined]
    for number, record in enumerate(journal.records):
        if record.seq == position:
            body = change(record.body)
            journal.records[number] = Record(record.seq, record.count, record.at, body, record.id)


def checked(payload: bytes) -> bytes:
    """A body whose checksum fits: as somebody would make it who meant to."""
    body = b"\x01\x00\x00\x00" + payload
    return body + zlib.crc32(body, 0x2144DF1C).to_bytes(4, "little")


@pytest.fixture
def in_memory() -> Iterator[Store]:
    """A store whose records a test can get at, and read."""
    with limpet.open("memory:", codec=Codec(compress_over=None)) as opened:
        yield opened


@pytest.mark.parametrize("fixed", [False, True], ids=["torn", "forged"])
def test_every_altered_byte_of_a_patch_is_noticed(in_memory: Store, *, fixed: bool) -> None:
    """With a checksum that fits, too: what is given is what was saved, or nothing."""
    state = in_memory.state("a")
    positions = saved(state, agent(4), agent(5) | {"n": 1.5}, agent(6) | {"n": None})
    bodies = [record.body for record in in_memory.backend.read(Key("default", "state", "a"))]
    noticed = 0
    for position in positions[1:]:
        body = bodies[position - 1]
        for index in range(len(body)):
            for flip in (0x01, 0x20, 0xFF):
                bad = bytearray(body)
                bad[index] ^= flip
                forged = checked(bytes(bad[4:-4])) if fixed else bytes(bad)
                altered(in_memory, "a", position, lambda _, forged=forged: forged)
                try:
                    found = in_memory.state("a").load()
                except StateDamaged:
                    noticed += 1
                else:
                    assert found == agent(6) | {"n": None}
        altered(in_memory, "a", position, lambda _, body=body: body)
    assert in_memory.state("a").load() == agent(6) | {"n": None}
    assert noticed > 3000


def test_a_patch_that_is_cut_short_is_noticed(in_memory: Store) -> None:
    """At every length."""
    state = in_memory.state("a")
    saved(state, agent(4), agent(5))
    body = in_memory.backend.read(Key("default", "state", "a"))[1].body
    for length in range(len(body)):
        altered(in_memory, "a", 2, lambda _, length=length: body[:length])
        with pytest.raises(StateDamaged):
            in_memory.state("a").load()


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_save_that_is_missing_is_noticed(in_memory: Store, lost: int) -> None:
    """Patches are never put upon what they were not made for."""
    state = in_memory.state("a")
    saved(state, agent(5), agent(6), agent(7))
    journal = in_memory.backend._journals[Key("default", "state", "a")]  # type: ignore[attr-defined]
    journal.records[:] = [record for record in journal.records if record.seq != lost]
    state = in_memory.state("a")
    with pytest.raises(StateDamaged, match=r"State 'a' at 3 cannot be loaded: some of .* missing"):
        state.load()
    with pytest.raises(
        StateDamaged, match=f"State 'a' at {lost} cannot be loaded: entry {lost} is"
    ):
        state.at(lost)
    damaged = {one.position: one.damaged for one in state.history()}
    assert damaged == {n: n > lost for n in (1, 2, 3) if n != lost}


def test_patches_in_another_order_are_noticed(in_memory: Store) -> None:
    """Each has its place."""
    state = in_memory.state("a")
    saved(state, agent(9), agent(10), agent(11))
    one, two = (record.body for record in in_memory.backend.read(Key("default", "state", "a"))[1:])
    altered(in_memory, "a", 2, lambda _: two)
    altered(in_memory, "a", 3, lambda _: one)
    with pytest.raises(StateDamaged, match="digest"):
        in_memory.state("a").load()


def test_a_damaged_state_says_what_is_left_and_can_go_on(in_memory: Store) -> None:
    """Earlier saves are whole; a new one is a whole copy, and can be read."""
    state = in_memory.state("a")
    saved(state, agent(9), agent(10), agent(11))
    altered(in_memory, "a", 3, lambda body: body[:-9])
    again = in_memory.state("a")
    with pytest.raises(StateDamaged, match=r"state 'a' at 3 cannot .*|State 'a' at 3 cannot .*"):
        again.load()
    assert [one.damaged for one in again.history()] == [False, False, True]
    assert again.at(2) == agent(10)
    assert again.restore(2) == 4
    assert again.history()[-1].full
    assert in_memory.state("a").load() == agent(10)
    altered(in_memory, "a", 4, lambda body: body[:-9])
    assert in_memory.state("a").save(agent(12)) == 5
    assert in_memory.state("a").load() == agent(12)
    altered(in_memory, "a", 2, lambda body: body[:-9])  # and what goes back to it
    assert [one.damaged for one in again.history()] == [False, True, True, True, False]
    assert [one.damaged for one in again.history(last=3)] == [True, True, False]


@pytest.mark.parametrize("gone", [False, True], ids=["altered", "missing"])
def test_what_is_saved_by_one_who_finds_damage_is_saved_whole(
    in_memory: Store, *, gone: bool
) -> None:
    """The store has spoiled what was there since: whoever reads it notices, and can go on."""
    state = in_memory.state("a")
    saved(state, agent(9), agent(10))
    altered(in_memory, "a", 2, lambda body: body[:-1])
    if gone:
        in_memory.backend._journals[Key("default", "state", "a")].records.pop()  # type: ignore[attr-defined]
    assert state.save(agent(11)) == 3  # one append: it does not read what is there
    other = in_memory.state("a")
    with pytest.raises(StateDamaged, match="State 'a' at 3 cannot be loaded"):
        other.load()
    assert other.save(agent(11)) == 4
    assert [(one.full, one.damaged) for one in other.history(last=2)] == [
        (False, True),
        (True, False),
    ]
    assert in_memory.state("a").load() == state.load() == agent(11)
    assert state.save(agent(12)) == 5
    assert in_memory.state("a").load() == agent(12)


def test_what_a_newer_release_wrote_is_not_guessed_at(in_memory: Store) -> None:
    """A patch with a word that this release does not know."""
    state = in_memory.state("a")
    saved(state, agent(9), agent(10))

    def renamed(body: bytes) -> bytes:
        said = msgspec.json.decode(body[4:-4])
        said[1]["patch"] = {"rotate": 1}
        return checked(msgspec.json.encode(said))

    altered(in_memory, "a", 2, renamed)
    with pytest.raises(StateDamaged, match="this release does not know"):
        in_memory.state("a").load()
    in_memory.journal("state", "b").append(("unheard", {}))
    with pytest.raises(StateDamaged):
        in_memory.state("b").load()
    assert in_memory.state("b").history() == []


# -- a process that dies ---------------------------------------------------------------------------

#: An agent that grows, shrinks and grows: some of it is stored whole, most of it is not.
LENGTHS = [1, 9, 10, 11, 2, 3]


def save_the_rest(url: str, id_: str, kill_at: int | None) -> list[str]:
    """What a process does, or one that goes on after it; the boundaries that it passed."""
    with limpet.open(url) as store:
        boundaries = Boundaries(store.backend, kill_at)
        state = store.state(id_)
        state.load(default=None)
        for length in LENGTHS[state.position or 0 :]:
            state.save(agent(length))
        return boundaries.passed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_one_that_is_killed_at_any_write_has_lost_nothing(scheme: str, tmp_path: Path) -> None:
    """Before a save it is as it was, after it as it is, of patches and whole copies alike."""
    url = f"{scheme}:{tmp_path / 'place'}"
    passed = save_the_rest(url, "0", None)
    assert passed.count("before append state saved") == 3
    assert passed.count("before append state patched") == 3
    for number, moment in enumerate(passed, 1):
        process = partial(save_the_rest, url, f"{number}")
        assert in_a_process(partial(process, number)) == (signal.SIGKILL, None), moment
        there = number // 2  # saves, of which the last may be one that nobody was told of
        assert len(process(None)) == 2 * (len(LENGTHS) - there), moment
    with limpet.open(url) as store:
        for info in store.states():
            state = store.state(info.id)
            assert len(state.history()) == len(LENGTHS)
            for position, length in enumerate(LENGTHS, 1):
                assert state.at(position) == agent(length)


# -- what earlier releases saved -------------------------------------------------------------------

CORPORA = sorted(DATA.glob("states-*"))


@pytest.mark.parametrize("place", list(PLACES))
@pytest.mark.parametrize("corpus", CORPORA, ids=lambda corpus: str(corpus.name))
def test_what_an_older_release_saved_can_be_loaded(
    corpus: Path, place: str, tmp_path: Path
) -> None:
    """For ever: every save of every state, and a new one goes on from it."""
    old = shutil.copytree(corpus, tmp_path / "old")
    scheme, _, name = PLACES[place].rpartition(":")
    expected = json.loads((old / "expected.json").read_text("utf-8"))
    known = Migrations()
    known.migration("Support", 1, 2)(lambda document: {**document, "tickets": [7]})
    with limpet.open(f"{scheme or 'sqlite'}:{old / name}") as store:
        assert [info.id for info in store.states()] == sorted(expected)
        for id_, documents in expected.items():
            state = store.state(id_, version=2, migrations=known)
            for position, document in enumerate(documents, 1):
                assert encode(state.at(position, migrate=False)) == encode(document)
            grown = store.state(id_, version=state.history()[-1].version)
            assert encode(grown.load()) == encode(documents[-1])
            assert grown.save({**documents[-1], "more": 1}) == len(documents) + 1
        zoe = store.state("support/zoë").history()
        assert [one.full for one in zoe] == [True] + [False] * 9
        assert [one.note for one in zoe][1:4] == [None, "with a note", None]
        assert [(one.fingerprint or {}).get("model") for one in zoe][2:4] == ["small", "large"]
        called = store.state("called")
        assert [one.position for one in called.history()] == [1, 3, 4]
        assert [entry.body["by"] for entry in called.other_entries(after=0)] == ["Zoë"]
        found = run_to_end(all_in_doubt(store._core.scope))
        assert [(one.id, one.call.title) for one in found] == [("called", "send (c2)")]
        versioned = store.state("versioned", version=2, type="Support", migrations=known)
        assert versioned.at(1)["tickets"] == [7]


def test_a_type_checker_knows_states(in_memory: Store) -> None:
    """Sync and async, the same."""
    state = in_memory.state("a", version=1, type="basket", labels={"team": "x"}, ttl=60)
    assert_type(state, State)
    assert_type(state.save({"a": 1}, fingerprint={}, expect=0, note="first"), int)
    assert_type(state.load(), Any)
    assert_type(state.at(1), Any)
    assert_type(state.history(last=1), list[StateVersion])
    assert_type(state.diff(1), str)
    assert_type(state.check({}), FingerprintChange | None)
    assert_type(state.restore(1), int)
    assert_type(state.fork("b", at=1), State)
    assert_type(state.compact(), int)
    assert_type(state.position, int | None)
    assert_type(state.info(), StateInfo)
    assert_type(in_memory.states(prefix="a"), Iterator[StateInfo])
    assert_type(state.delete(), bool)

    async def awaited() -> None:
        async with limpet.open_async("memory:") as store:
            assert_type(store.state("a"), AsyncState)
            assert_type(await store.state("a").save({}), int)
            assert_type(await store.state("a").fork("b"), AsyncState)

    asyncio.run(awaited())
