"""LimpetStore: what is reported of LangGraph's stores, and what it promises beyond them."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedStore, ToolNode
from langgraph.runtime import Runtime  # noqa: TC002 - LangGraph reads the annotation
from langgraph.store.base import BaseStore, InvalidNamespaceError, PutOp
from typing_extensions import TypedDict

import limpet
from limpet.core.journal import Journal
from limpet.errors import (
    EmbeddingFailed,
    InvalidId,
    LimpetError,
    MissingExtra,
    NotStorable,
    StoreClosed,
    StoreReadOnly,
)
from limpet.integrations import langgraph as integration
from limpet.integrations.langgraph import LimpetStore
from limpet.integrations.langgraph.store import journal as store_journal
from limpet.integrations.langgraph.store import store as langgraph_store
from limpet.integrations.langgraph.store.names import KIND, id_of, namespace_of
from limpet.testing.boundaries import Boundaries
from tests.support.commands import run
from tests.support.langgraph_stores import PLACES, Rig, embed
from tests.support.places import SERVERS
from tests.support.processes import in_a_process, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INDEX: Any = {"dims": 5, "embed": embed, "fields": ["text"]}
NS = ("users", "ann")
MINUTE = 60_000_000_000  # nanoseconds


def _rigs(names: list[str]) -> Iterator[Any]:
    for name in names:
        marks = [pytest.mark.server] if name in SERVERS else []
        for way in ("sync", "async"):
            yield pytest.param(f"{name}-{way}", marks=marks)


def _rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    name, _, way = request.param.rpartition("-")
    made = Rig(name, way, request)
    yield made
    made.close()


@pytest.fixture(params=_rigs(["memory", "sqlite"]))
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Two places, by sync and async methods."""
    yield from _rig(request)


@pytest.fixture(params=_rigs(PLACES))
def everywhere(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Each place, by sync and async methods."""
    yield from _rig(request)


class Clock:
    """The time of this process, which tests move on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._moved = 0.0
        now, monotonic = time.time_ns, time.monotonic
        monkeypatch.setattr(time, "time_ns", lambda: now() + int(self._moved * MINUTE))
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + self._moved * 60)

    def move(self, minutes: float) -> None:
        """Let so many *minutes* pass."""
        self._moved += minutes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of this process, and of a backend in it."""
    return Clock(monkeypatch)


def journal_of(rig: Rig, namespace: tuple[str, ...] = NS) -> Journal:
    """The journal of a *namespace* of the newest store."""
    return Journal(rig.again().store._scope.journal(KIND, id_of(namespace)))


def head_of(rig: Rig, namespace: tuple[str, ...] = NS) -> Any:
    """Its head."""
    return journal_of(rig, namespace).head()


# -- names -----------------------------------------------------------------------------------------

ODD: list[tuple[str, ...]] = [
    (),
    ("",),
    ("", ""),
    ("a",),
    ("a", ""),
    ("", "a"),
    ("a.b",),
    ("a", "b"),
    ("%",),
    ("%2E",),
    ("%%",),
    (" a",),
    ("a ",),
    (" ",),
    ("a b",),
    ("\n",),
    ("\u200d",),
    ("ü", "日本"),
    ("\ud800",),
    ("\x00",),
    ("x" * 600,),
    ("x" * 600, "y"),
    ("x" * 601,),
    ("é" * 300, "z"),
]


def test_each_namespace_has_an_id_of_its_own() -> None:
    """Labels are any text: none may lead into another namespace."""
    ids = [id_of(path) for path in ODD]
    assert len(set(ids)) == len(ODD)
    assert id_of(("users", "ann")) == "users.ann"  # as LangGraph's own stores write it


def test_odd_namespaces_are_listed_and_searched_as_they_were_put(rig: Rig) -> None:
    """Also those that are too long for an id."""
    store = rig.store()
    for path in ODD:
        store.batch([PutOp(path, "k", {"n": 1})])
    again = rig.again()
    assert again.list_namespaces(limit=100) == sorted(ODD)
    long = ("x" * 600,)
    assert {hit.namespace for hit in again.search(long, limit=100)} == {long, (*long, "y")}
    assert [hit.namespace for hit in again.search(("a",), limit=100)] == [
        path for path in ODD if path[:1] == ("a",)
    ]
    for path in ODD:
        assert again.batch([PutOp(path, "k", None)]) == [None]
    assert again.list_namespaces(limit=100) == []


def test_a_namespace_that_langgraph_refuses_is_refused(rig: Rig) -> None:
    """By its own error; and one that is not text, by ours."""
    store = rig.store()
    for wrong in ((), ("a.b",), ("",), ("langgraph",)):
        with pytest.raises(InvalidNamespaceError):
            store.put(wrong, "k", {})
    with pytest.raises(InvalidId, match="tuple of text"):
        store.batch([PutOp((1,), "k", {})])  # type: ignore[arg-type]


# -- values ----------------------------------------------------------------------------------------


def test_what_cannot_be_stored_is_an_error_that_says_where(rig: Rig) -> None:
    """And nothing of its batch is stored, in whichever namespace."""
    store = rig.store()
    with pytest.raises(NotStorable, match=r"users\.ann/k\['deep'\]\[1\] is nan"):
        store.batch(
            [PutOp(("a",), "k", {}), PutOp(NS, "k", {"deep": [1, float("nan")]})],
        )
    with pytest.raises(NotStorable, match=r"users\.ann/k is a value of type list"):
        store.put(NS, "k", [1])
    assert store.search(()) == []


def test_what_a_caller_does_to_a_value_changes_nothing_that_is_stored(rig: Rig) -> None:
    """InMemoryStore hands out its own objects (langgraph #8835)."""
    store = rig.store()
    value = {"tags": ["a"]}
    store.put(NS, "k", value)
    value["tags"].append("b")
    store.get(NS, "k").value["tags"].append("c")
    store.search(NS)[0].value["tags"].append("d")
    assert store.get(NS, "k").value == {"tags": ["a"]}


def test_an_item_keeps_the_time_at_which_it_was_created(rig: Rig) -> None:
    """InMemoryStore forgets it with each new value (langgraph #7411, #8340)."""
    store = rig.store()
    store.put(NS, "k", {"n": 1})
    first = store.get(NS, "k")
    assert first.created_at == first.updated_at
    store.put(NS, "k", {"n": 2})
    second = store.get(NS, "k")
    assert second.created_at == first.created_at
    assert second.updated_at > first.updated_at
    store.delete(NS, "k")
    store.put(NS, "k", {"n": 3})
    assert store.get(NS, "k").created_at > first.created_at


def test_a_filter_may_name_the_field_of_a_field(rig: Rig) -> None:
    """As with LangGraph's SQLite store (langgraph #7795); a field of that very name goes first."""
    store = rig.store()
    store.put(NS, "nested", {"user": {"level": 3}})
    store.put(NS, "plain", {"user.level": 3})
    store.put(NS, "other", {"user": 3})
    found = store.search(NS, filter={"user.level": {"$gte": 3}})
    assert [hit.key for hit in found] == ["nested", "plain"]
    with pytest.raises(ValueError, match=r"'\$near' is no operator"):
        store.search(NS, filter={"user": {"$near": 3}})


def test_a_negative_limit_or_offset_is_refused(rig: Rig) -> None:
    """InMemoryStore leaves results out then, and says nothing (langgraph #8696)."""
    store = rig.store()
    for wrong in ({"limit": -1}, {"offset": -1}):
        with pytest.raises(ValueError, match="count from 0"):
            store.search((), **wrong)
        with pytest.raises(ValueError, match="count from 0"):
            store.list_namespaces(**wrong)


# -- by meaning ------------------------------------------------------------------------------------


def test_another_process_finds_by_meaning_and_embeds_nothing_again(everywhere: Rig) -> None:
    """Vectors are stored with their items: whoever searches pays for the question alone."""
    everywhere.store(index=INDEX).put(NS, "k", {"text": "aab"})
    asked: list[str] = []

    def noting(texts: list[str]) -> list[list[float]]:
        asked.extend(texts)
        return embed(texts)

    again = everywhere.again(index={**INDEX, "embed": noting})
    (hit,) = again.search((), query="aab")
    assert hit.score == pytest.approx(1)
    assert asked == ["aab"]


def test_meaning_needs_no_numpy(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is quicker with it."""
    store = rig.store(index=INDEX)
    store.put(NS, "one", {"text": "aab"})
    store.put(NS, "two", {"text": "b"})
    store.put(NS, "none", {"text": ""})
    found = [(hit.key, round(hit.score, 9)) for hit in store.search((), query="ab")]
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert [(hit.key, round(hit.score, 9)) for hit in store.search((), query="ab")] == found


def test_vectors_of_another_model_are_no_vectors(rig: Rig) -> None:
    """They have another length; such an item comes last, and has no score."""
    rig.store(index=INDEX).put(NS, "k", {"text": "aab"})
    again = rig.again(index={"dims": 2, "embed": lambda texts: [[1.0, 0.0] for _ in texts]})
    again.put(NS, "l", {"text": "b"})
    assert [(hit.key, hit.score) for hit in again.search((), query="a")] == [("l", 1), ("k", None)]


def test_an_embedder_that_returns_too_little_is_an_error(rig: Rig) -> None:
    """And nothing is stored: an item that nobody finds is lost as well."""
    store = rig.store(index={"dims": 2, "embed": lambda _texts: []})
    with pytest.raises(EmbeddingFailed, match="returned 0 vectors"):
        store.put(NS, "k", {"text": "aab"})
    assert store.get(NS, "k") is None


def test_an_async_embedder_is_for_async_methods(tmp_path: Path) -> None:
    """As with LangGraph's own stores."""

    async def slow(texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        return embed(texts)

    async def put_and_find(store: LimpetStore) -> Any:
        await store.aput(NS, "k", {"text": "aab"})
        return await store.asearch((), query="aab")

    index: Any = {**INDEX, "embed": slow}
    with LimpetStore(tmp_path / "a.db", index=index) as store:
        (hit,) = asyncio.run(put_and_find(store))
        assert hit.score == pytest.approx(1)
        with pytest.raises(ValueError, match="async"):
            store.put(NS, "k", {"text": "aab"})


def test_what_is_not_json_is_embedded_as_it_is_stored(rig: Rig) -> None:
    """And what cannot be stored is an error of ours here as well."""
    store = rig.store(index={"dims": 5, "embed": embed})
    store.put(NS, "k", {"when": datetime(2026, 1, 2, tzinfo=UTC), "said": ("aab",)})
    (hit,) = store.search((), query="aab")
    assert hit.value == {"when": "2026-01-02T00:00:00Z", "said": ["aab"]}
    assert hit.score > 0
    with pytest.raises(NotStorable, match=r"users\.ann/k\['x'\]"):
        store.put(NS, "k", {"x": object()})


# -- time to live ----------------------------------------------------------------------------------


def test_what_has_expired_is_returned_by_nothing(rig: Rig, clock: Clock) -> None:
    """Before any sweep: LangGraph's SqliteStore returns it until then (langgraph #8902)."""
    config: Any = {"default_ttl": 5, "refresh_on_read": False}
    store = rig.store(ttl=config)
    store.put(NS, "k", {"n": 1})
    store.put(("other",), "k", {"n": 1}, ttl=None)
    store.put(NS, "longer", {"n": 1}, ttl=9)
    clock.move(4.9)
    assert [hit.key for hit in store.search(NS)] == ["k", "longer"]
    clock.move(0.2)
    for one in (store, rig.again(ttl=config)):
        assert one.get(NS, "k") is None
        assert [hit.key for hit in one.search(NS)] == ["longer"]
    clock.move(5)
    for one in (store, rig.again(ttl=config)):
        assert one.search(NS) == []
        assert one.list_namespaces() == [("other",)]
    store.put(NS, "k", {"n": 2})
    assert store.get(NS, "k").value == {"n": 2}


def test_expired_items_expire_everywhere(everywhere: Rig) -> None:
    """By the clock of the backend."""
    store = everywhere.store()
    store.put(NS, "k", {"n": 1}, ttl=1 / 60)
    store.put(NS, "l", {"n": 1}, ttl=60)
    assert store.get(NS, "l", refresh_ttl=False).value == {"n": 1}
    assert until(lambda: store.get(NS, "k", refresh_ttl=False) is None)
    assert [hit.key for hit in everywhere.again().search(NS)] == ["l"]
    assert store.sweep_ttl() == 1
    assert [hit.key for hit in everywhere.again().search(NS)] == ["l"]


def test_a_ttl_is_never_dropped(rig: Rig, clock: Clock) -> None:
    """Neither by put, nor by a batch (langgraph #8921, #8832); and one that is none is refused."""
    store = rig.store()
    assert store.store.supports_ttl
    store.put(NS, "by put", {}, ttl=5)
    store.batch([PutOp(NS, "by batch", {}, ttl=5), PutOp(NS, "stays", {}, ttl=None)])
    for wrong in (0, -1, float("nan"), "5"):
        with pytest.raises(ValueError, match="number of minutes over 0"):
            store.put(NS, "k", {}, ttl=wrong)
        with pytest.raises(ValueError, match="number of minutes over 0"):
            store.batch([PutOp(NS, "k", {}, ttl=wrong)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="default_ttl"):
        rig.again(ttl={"default_ttl": 0})
    clock.move(6)
    assert [hit.key for hit in store.search(NS)] == ["stays"]


def test_a_new_value_has_the_ttl_that_it_is_put_with(rig: Rig, clock: Clock) -> None:
    """Not that of the old one."""
    store = rig.store()
    store.put(NS, "stays", {}, ttl=5)
    store.put(NS, "stays", {})
    store.put(NS, "goes", {})
    store.put(NS, "goes", {}, ttl=5)
    clock.move(6)
    assert [hit.key for hit in store.search(NS)] == ["stays"]


@pytest.mark.parametrize("how", ["get", "search"])
def test_a_read_lets_an_item_live_on(rig: Rig, clock: Clock, how: str) -> None:
    """For whoever reads it, in this process or in another; but not one that asks not to."""
    store = rig.store(ttl={"refresh_on_read": True})
    store.put(NS, "read", {"n": 1}, ttl=5)
    store.put(NS, "unread", {"n": 2}, ttl=5)
    for _ in range(4):
        clock.move(2)
        if how == "get":
            assert rig.again().get(NS, "read") is not None
        else:
            assert rig.again().search(NS, filter={"n": 1})
        store.get(NS, "unread", refresh_ttl=False)
    assert [hit.key for hit in store.search(NS)] == ["read"]


def test_reads_that_follow_each_other_write_nothing(rig: Rig, clock: Clock) -> None:
    """A read is no write: until a hundredth of the ttl has passed, it may go on as it was."""
    store = rig.store()
    store.put(NS, "k", {}, ttl=100)
    before = head_of(rig).seq
    for _ in range(5):
        store.get(NS, "k")
    assert head_of(rig).seq == before
    clock.move(1.1)
    store.get(NS, "k")
    assert head_of(rig).seq == before + 1


def test_a_store_that_is_read_only_can_be_read(tmp_path: Path, clock: Clock) -> None:
    """Though what is read cannot live on by that."""
    with LimpetStore(tmp_path / "a.db") as store:
        store.put(NS, "k", {}, ttl=5)
    clock.move(2)
    with limpet.open(tmp_path / "a.db", readonly=True) as opened:
        store = LimpetStore(opened)
        assert store.get(NS, "k") is not None
        assert store.search(NS)
        with pytest.raises(StoreReadOnly):
            store.put(NS, "k", {})


def test_a_late_read_brings_nothing_back(rig: Rig, clock: Clock) -> None:
    """What has expired stays so, though somebody's read of it is stored afterwards."""
    store = rig.store()
    store.put(NS, "k", {}, ttl=5)
    clock.move(6)
    journal_of(rig).append(("refreshed", {"keys": ["k", "never there"]}))
    assert store.get(NS, "k") is None
    assert rig.again().get(NS, "k") is None


def test_the_clock_of_the_backend_counts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose clock is an hour ahead drops nothing that another has just put."""
    rig.store().put(NS, "k", {"n": 1}, ttl=5)
    here = time.time_ns() // 1000
    monkeypatch.setattr(langgraph_store, "_here", lambda: here + 3600_000_000)
    again = rig.again()
    assert again.sweep_ttl() == 0
    assert again.get(NS, "k").value == {"n": 1}
    again.put(NS, "l", {"n": 2}, ttl=5)
    assert [hit.key for hit in again.search(NS)] == ["k", "l"]


def test_a_sweep_leaves_nothing_of_what_has_gone(rig: Rig, clock: Clock) -> None:
    """What has expired, was deleted or replaced is in no record; an empty namespace goes, too."""
    store = rig.store()
    store.put(NS, "expired", {"n": 1}, ttl=5)
    store.put(NS, "deleted", {"n": 2})
    store.put(NS, "stays", {"n": 3}, ttl=60)
    store.put(NS, "stays", {"n": 4}, ttl=60)
    store.delete(NS, "deleted")
    store.put(("empty",), "k", {}, ttl=5)
    clock.move(6)
    again = rig.again()
    assert again.sweep_ttl() == 2
    entries = journal_of(rig).read()
    assert [(one.type, one.body["value"]) for one in entries] == [("kept", {"n": 4})]
    (item,) = again.search(())
    assert item.updated_at > item.created_at
    clock.move(2)
    assert head_of(rig, ("empty",)) is None
    assert again.sweep_ttl() == 0
    clock.move(60)
    assert again.search(()) == []


def test_writes_sweep_now_and_then(rig: Rig, clock: Clock) -> None:
    """With an interval: what has expired makes room, and no thread is needed for it."""
    store = rig.store(ttl={"default_ttl": 1, "sweep_interval_minutes": 10})
    store.put(NS, "k", {"text": os.urandom(10_000).hex()})
    clock.move(5)
    store.put(("other",), "k", {})
    assert head_of(rig).size > 10_000
    clock.move(6)
    store.put(("other",), "k", {})
    head = head_of(rig)
    assert head is None or head.size < 1_000


# -- how it is stored ------------------------------------------------------------------------------


def test_a_put_is_one_append_and_reads_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to a namespace that this process has not seen."""
    rig.store().put(NS, "k", {})
    store = rig.again()
    backend = store.store._scope.backend
    boundaries = Boundaries(backend)
    for name in ("read", "head", "scan"):
        monkeypatch.setattr(backend, name, None)
    store.put(NS, "l", {})
    assert len(boundaries.passed) == 2  # before it, and after it


def test_a_get_of_what_is_known_reads_no_record(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head says that nothing is new."""
    store = rig.store()
    store.put(NS, "k", {"n": 1})
    store.get(NS, "k")
    monkeypatch.setattr(store.store._scope.backend, "read", None)
    assert store.get(NS, "k").value == {"n": 1}


def test_a_namespace_that_is_rewritten_for_ever_does_not_grow(rig: Rig) -> None:
    """By a process that stays, and by many that write once and end."""
    store = rig.store()
    for number in range(300):
        writer = store if number % 2 else rig.again()
        writer.put(NS, "k", {"n": number, "text": f"{number} " * 500})
    assert head_of(rig).size < 3 * store_journal.SLACK
    assert store.get(NS, "k").value["n"] == 299
    assert rig.again().get(NS, "k").value["n"] == 299


def test_a_namespace_that_was_deleted_is_empty_and_can_begin_anew(rig: Rig) -> None:
    """By a command, or by another process; numbers begin again, and are not taken for the old."""
    store = rig.store()
    for name in "abc":
        store.put(NS, name, {})
    assert len(store.search(NS)) == 3
    other = rig.again()
    assert journal_of(rig).delete()
    assert store.search(NS) == []
    for name in "def":
        other.put(NS, name, {})
    assert [hit.key for hit in store.search(NS)] == ["d", "e", "f"]


def test_a_delete_of_what_is_not_there_writes_nothing(rig: Rig) -> None:
    """No namespace begins by a deletion, nor by a read (langgraph #8734)."""
    store = rig.store()
    store.delete(NS, "k")
    store.get(NS, "k")
    assert head_of(rig) is None
    assert store.list_namespaces() == []


def test_a_store_that_is_open_is_not_closed_with_it(tmp_path: Path) -> None:
    """One that it has opened, is."""
    with limpet.open(tmp_path / "a.db") as opened:
        with LimpetStore(opened) as store:
            store.put(NS, "k", {})
        assert store.get(NS, "k") is not None
    with pytest.raises(StoreClosed):
        store.get(NS, "k")
    with LimpetStore(tmp_path / "a.db") as own:
        assert own.get(NS, "k") is not None
    with pytest.raises(StoreClosed):
        own.put(NS, "k", {})


def test_sync_and_async_work_on_one_object(tmp_path: Path) -> None:
    """In one loop, in another, and in threads."""

    async def use(store: LimpetStore, number: int) -> int:
        await asyncio.gather(*(store.aput(NS, f"{number}.{i}", {}) for i in range(10)))
        store.put(NS, f"{number}", {})
        return len(await store.asearch(NS, limit=100))

    with LimpetStore(tmp_path / "a.db") as store:
        assert asyncio.run(use(store, 1)) == 11
        assert asyncio.run(use(store, 2)) == 22
        threads = [
            threading.Thread(target=lambda n=n: store.put(NS, f"thread {n}", {})) for n in range(8)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert len(store.search(NS, limit=100)) == 30


def test_no_task_and_no_thread_is_left(tmp_path: Path) -> None:
    """LangGraph's async stores leave a task that waits for ever (langgraph #6367)."""
    before = set(threading.enumerate())

    async def use() -> None:
        config: Any = {"default_ttl": 1, "sweep_interval_minutes": 1}
        async with LimpetStore(tmp_path / "a.db", ttl=config) as store:
            await store.aput(NS, "k", {})
            await asyncio.gather(*(store.aget(NS, "k") for _ in range(5)))
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(use(), debug=True)
    gc.collect()
    assert set(threading.enumerate()) <= before


def test_a_put_that_is_cancelled_does_not_land_later(tmp_path: Path) -> None:
    """It ends first: whoever was told that it is over finds it stored, or never will."""

    async def use(store: LimpetStore) -> None:
        for number in range(20):
            writing = asyncio.ensure_future(store.aput(NS, f"{number}", {}))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait({writing})
            found = store.get(NS, f"{number}")
            await asyncio.sleep(0.005)
            assert store.get(NS, f"{number}") == found

    with LimpetStore(tmp_path / "a.db") as store:
        asyncio.run(use(store))


def test_without_langgraph_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is not there at all is no attribute."""
    monkeypatch.setitem(sys.modules, "langgraph.store.base", None)
    monkeypatch.delitem(sys.modules, "limpet.integrations.langgraph.store.store")
    with pytest.raises(MissingExtra, match=r"\[langgraph\]"):
        _ = integration.LimpetStore
    with pytest.raises(AttributeError, match="nothing"):
        _ = integration.nothing


# -- processes -------------------------------------------------------------------------------------

WRITER = """
import sys
from limpet.integrations.langgraph import LimpetStore
url, name = sys.argv[1:]
with LimpetStore(url) as store:
    for number in range(16):
        store.put(("shared",), f"{name} {number}", {"n": number})
        store.put(("shared",), "both", {"by": name, "n": number, "text": "x" * 3000})
        assert store.get(("shared",), f"{name} {number}").value == {"n": number}
        if number % 4 == 3:
            store.delete(("shared",), f"{name} {number}")
"""


@pytest.mark.parametrize(
    "name",
    [
        "sqlite",
        pytest.param("file", marks=pytest.mark.slow),
        pytest.param("postgresql", marks=pytest.mark.server),
    ],
)
def test_two_processes_in_one_namespace_lose_nothing(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Nor does one read what is not so any more; though both compact it again and again."""
    rig = Rig(name, "sync", request)
    with LimpetStore(rig.url) as store:
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, rig.url, which])
            for which in ("one", "two")
        ]
        seen = 0
        while any(writer.poll() is None for writer in writers):
            now = [hit.value["n"] for hit in store.search(("shared",), limit=1000)]
            assert len(now) >= seen - 10
            seen = max(seen, len(now))
        assert [writer.wait() for writer in writers] == [0, 0]
        for one in (store, LimpetStore(limpet.open(rig.url))):
            found = {hit.key for hit in one.search(("shared",), limit=1000)}
            assert found == {"both"} | {
                f"{which} {number}"
                for which in ("one", "two")
                for number in range(16)
                if number % 4 != 3
            }
    rig.close()


def _work(url: str, kill_at: int | None) -> list[Any]:
    """Put, replace, delete and read items, and compact, from where the work stopped."""
    store_journal.LOOK_EVERY, store_journal.SLACK, store_journal.CHUNK = 3, 100, 200
    with LimpetStore(url) as store:
        boundaries = Boundaries(store._scope.backend, kill_at)
        done = store.get(("progress",), "n")
        for number in range(0 if done is None else done.value["n"], 12):
            store.put(NS, f"k{number % 5}", {"n": number, "text": "x" * 40})
            store.batch(
                [PutOp(NS, "last", {"n": number}), PutOp(("progress",), "n", {"n": number})]
            )
            if number % 3 == 2:
                store.delete(NS, f"k{(number + 1) % 5}")
        items = sorted((hit.key, hit.value) for hit in store.search(NS, limit=100))
        return [items, boundaries.passed]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite", "file"])
def test_killed_at_every_write_nothing_is_lost_or_comes_back(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Also in the midst of a compaction: another process goes on, and all is as without a kill."""
    rig = Rig(name, "sync", request)
    expected, passed = json.loads(json.dumps(_work("memory:", None)))
    url = rig.url.replace("agents", "first") if name == "sqlite" else f"{rig.url}-first"
    _, (_, passed) = in_a_process(lambda: _work(url, None))
    assert len(passed) > 60
    for number in range(1, len(passed) + 1, 11):
        one = url.replace("first", f"killed{number}")
        code, _ = in_a_process(partial(_work, one, number))
        assert code == signal.SIGKILL
        _, (found, _) = in_a_process(partial(_work, one, None))
        assert found == expected, f"killed {passed[number - 1]}"
    rig.close()


# -- LangGraph and Limpet around it ----------------------------------------------------------------


class Counted(TypedDict):
    """The state of a graph that remembers."""

    user: str
    seen: int


def remember(state: Counted, runtime: Runtime[None]) -> dict[str, int]:
    """A node that knows how often it has seen somebody."""
    assert runtime.store is not None
    before = runtime.store.get(("seen",), state["user"])
    seen = 1 + (before.value["n"] if before else 0)
    runtime.store.put(("seen",), state["user"], {"n": seen})
    return {"seen": seen}


async def aremember(state: Counted, runtime: Runtime[None]) -> dict[str, int]:
    """The same, awaited."""
    assert runtime.store is not None
    before = await runtime.store.aget(("seen",), state["user"])
    seen = 1 + (before.value["n"] if before else 0)
    await runtime.store.aput(("seen",), state["user"], {"n": seen})
    return {"seen": seen}


@tool
def look_up(key: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """What is known under a key."""
    found = store.get(("facts",), key)
    return "nothing" if found is None else str(found.value["text"])


def _graph(node: Any, store: LimpetStore) -> Any:
    builder = StateGraph(Counted)
    builder.add_node("remember", node)
    builder.add_edge(START, "remember")
    builder.add_edge("remember", END)
    return builder.compile(store=store)


def test_a_graph_remembers_across_processes(tmp_path: Path) -> None:
    """By ``runtime.store``, in nodes that block and in nodes that await."""
    for number in (1, 2):
        with LimpetStore(tmp_path / "a.db") as store:
            graph = _graph(remember, store)
            assert graph.invoke({"user": "ann", "seen": 0})["seen"] == 2 * number - 1

            async def run_async(store: LimpetStore = store) -> Any:
                graph = _graph(aremember, store)
                return await graph.ainvoke({"user": "ann", "seen": 0})

            assert asyncio.run(run_async())["seen"] == 2 * number


def test_a_tool_is_given_the_store(tmp_path: Path) -> None:
    """By ``InjectedStore``."""
    with LimpetStore(tmp_path / "a.db") as store:
        store.put(("facts",), "sky", {"text": "blue"})
        builder = StateGraph(MessagesState)
        builder.add_node("tools", ToolNode([look_up]))
        builder.add_edge(START, "tools")
        graph = builder.compile(store=store)
        call = {"name": "look_up", "args": {"key": "sky"}, "id": "1", "type": "tool_call"}
        asked: Any = {"messages": [AIMessage("", tool_calls=[call])]}
        assert graph.invoke(asked)["messages"][-1].content == "blue"
        assert asyncio.run(graph.ainvoke(asked))["messages"][-1].content == "blue"


def test_the_commands_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is listed, shown, copied to another backend with its vectors, and deleted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIMPET_URL", raising=False)
    with LimpetStore("limpet.db", index=INDEX) as store:
        store.put(NS, "food", {"text": "aab"})
        store.put(("x" * 600,), "k", {"text": "b"})
    assert "users.ann" in run("ls", KIND).stdout
    assert '"aab"' in run("show", f"{KIND}/users.ann").stdout
    run("copy", "limpet.db", "file:copied")
    with LimpetStore("file:copied", index=INDEX) as copied:
        assert copied.list_namespaces() == [NS, ("x" * 600,)]
        assert copied.search((), query="aab")[0].score == pytest.approx(1)
    run("delete", f"{KIND}/users.ann", "--yes")
    with LimpetStore("limpet.db") as store:
        assert store.list_namespaces() == [("x" * 600,)]


def test_what_is_damaged_is_an_error_that_names_the_entry(rig: Rig) -> None:
    """And never an item that is not what was put."""
    store = rig.store()
    store.put(NS, "k", {})
    journal_of(rig).append(("put", {"value": {}}))
    with pytest.raises(LimpetError, match=r"Entry 2 of langgraph-store 'users\.ann'"):
        store.get(NS, "k")


def test_entries_of_a_later_release_change_nothing(rig: Rig) -> None:
    """What is not known is passed over, as everywhere."""
    store = rig.store()
    store.put(NS, "k", {"n": 1})
    journal_of(rig).append(("pinned", {"key": "k"}))
    assert store.get(NS, "k").value == {"n": 1}
    head = head_of(rig)
    assert namespace_of(head) == NS
