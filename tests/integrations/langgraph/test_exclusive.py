"""One run of a thread at a time: the second is refused, and told who is at it."""

from __future__ import annotations

import asyncio
import gc
import operator
import os
import signal
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from langchain_core.callbacks import CallbackManager
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import limpet
from limpet.errors import LeaseHeld, LeaseLost
from limpet.integrations.langgraph import LimpetSaver
from tests.support.langgraph_effects import config_of
from tests.support.processes import in_a_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from langgraph.graph.state import CompiledStateGraph

ways = pytest.mark.parametrize("way", ["sync", "async"])

T, OTHER = config_of("t"), config_of("other")


class State(TypedDict):
    """What was done."""

    log: Annotated[list[str], operator.add]


def graph_of(saver: Any, *nodes: Any) -> CompiledStateGraph[Any, Any, Any, Any]:
    """A graph of *nodes*, one after the other."""
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    before = START
    for number, node in enumerate(nodes):
        graph.add_node(f"n{number}", node)
        graph.add_edge(before, f"n{number}")
        before = f"n{number}"
    return graph.compile(checkpointer=saver)


def say(what: str) -> Callable[[Any], Any]:
    """A node that says *what*."""
    return lambda _: {"log": [what]}


def held(store: limpet.Store, thread: str = "t") -> bool:
    """Whether somebody holds the lease on a thread that has a checkpoint."""
    head = store.journal("thread", thread).head()
    return head is not None and head.lease is not None


@pytest.fixture
def store() -> Iterator[limpet.Store]:
    """A store in memory."""
    with limpet.open("memory:") as opened:
        yield opened


def fail(_: Any) -> Any:
    """A node that fails."""
    raise OSError("the network")


# -- refused ---------------------------------------------------------------------------------------


def test_while_a_run_is_under_way_another_is_refused_and_nothing_of_it_is_run(
    store: limpet.Store,
) -> None:
    """Neither a run nor an update; but whoever looks may look."""
    saver = LimpetSaver(store, exclusive=True)
    graph_of(saver, say("source of a copy")).invoke({"log": []}, config_of("s"))
    ran: list[str] = []

    def second(_: Any) -> Any:
        ran.append("first")
        if len(ran) == 1:
            other = graph_of(LimpetSaver(store, exclusive=True), lambda _: ran.append("second"))
            with pytest.raises(LeaseHeld, match=f"process {os.getpid()}"):
                graph_of(saver, lambda _: ran.append("second")).invoke({"log": []}, T)
            in_a_chain: RunnableLambda[Any, Any] = RunnableLambda(
                lambda given: other.invoke(given, T)
            )
            with pytest.raises(LeaseHeld, match=f"process {os.getpid()}"):
                in_a_chain.invoke({"log": []})
            with pytest.raises(LeaseHeld, match="nothing was run, or stored"):
                other.update_state({"configurable": {"thread_id": "t"}}, {"log": ["x"]})
            changes: list[Callable[[], None]] = [
                lambda: saver.delete_thread("t"),
                lambda: saver.prune(["t"]),
                lambda: saver.copy_thread("s", "t"),
            ]
            for change in changes:
                with pytest.raises(LeaseHeld, match="nothing was run, or stored"):
                    change()
            assert other.get_state(T).values == {"log": ["begin", "1"]}
            assert other.invoke({"log": []}, OTHER) is not None  # another thread
        return {"log": ["2"]}

    graph = graph_of(saver, say("1"), second)
    assert graph.invoke({"log": ["begin"]}, T, durability="sync") == {"log": ["begin", "1", "2"]}
    assert ran == ["first", "second"]
    assert not held(store)
    graph.update_state(T, {"log": ["and that"]})
    assert graph.invoke(None, T)["log"][-1] == "and that"


def test_of_two_async_runs_of_a_thread_one_is_refused(store: limpet.Store) -> None:
    """Side by side in one event loop, as in a server."""

    async def slow(_: Any) -> Any:
        await asyncio.sleep(0.05)
        return {"log": ["slow"]}

    async def both() -> list[Any]:
        graph = graph_of(LimpetSaver(store, exclusive=True), slow)
        runs = [graph.ainvoke({"log": []}, one) for one in (T, T, OTHER)]
        found = await asyncio.gather(*runs, return_exceptions=True)
        assert (await graph.ainvoke({"log": []}, T))["log"] == ["slow", "slow"]
        return found

    first, second, other = asyncio.run(both())
    assert first == other == {"log": ["slow"]}
    assert isinstance(second, LeaseHeld)


@pytest.mark.slow
@ways
def test_a_process_that_died_in_a_run_is_succeeded_at_once(way: str, tmp_path: Path) -> None:
    """The kernel can tell, and the lease need not run out."""
    url = f"sqlite:{tmp_path}/agents.db"

    def die(_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def first() -> Any:
        with LimpetSaver(url, exclusive=True, lease=3600) as saver:
            graph = graph_of(saver, say("1"), die)
            if way == "sync":
                return graph.invoke({"log": []}, T, durability="sync")
            return asyncio.run(graph.ainvoke({"log": []}, T, durability="sync"))

    code, _ = in_a_process(first)
    assert code == signal.SIGKILL
    with limpet.open(url) as opened:
        assert held(opened)
        graph = graph_of(LimpetSaver(opened, exclusive=True), say("1"), say("2"))
        assert graph.invoke(None, T) == {"log": ["1", "2"]}
        assert not held(opened)


@pytest.mark.slow
def test_another_process_is_told_who_holds_the_thread(tmp_path: Path) -> None:
    """By host and process."""
    url = f"sqlite:{tmp_path}/agents.db"

    def other() -> str:
        with LimpetSaver(url, exclusive=True) as saver:
            try:
                graph_of(saver, say("other")).invoke({"log": []}, T)
            except LeaseHeld as error:
                return str(error)
        return "it ran"

    said = []

    def ask(_: Any) -> Any:
        said.append(in_a_process(other))
        return {"log": ["mine"]}

    with LimpetSaver(url, exclusive=True) as saver:
        assert graph_of(saver, ask).invoke({"log": []}, T) == {"log": ["mine"]}
    assert f"process {os.getpid()}" in said[0][1]


# -- given back ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["normally", "interrupt", "error", "stream closed", "stream lost"])
def test_when_a_run_has_ended_however_its_lease_is_given_back(
    how: str, store: limpet.Store
) -> None:
    """At once: the next run need not wait."""
    ends = {"interrupt": lambda _: interrupt("?") and None, "error": fail}
    graph = graph_of(LimpetSaver(store, exclusive=True), say("1"), ends.get(how, say("2")))
    if how == "error":
        with pytest.raises(OSError, match="network"):
            graph.invoke({"log": []}, T)
    elif how.startswith("stream"):
        stream: Any = graph.stream({"log": []}, T, durability="sync")
        next(stream)
        assert held(store)
        stream.close() if how == "stream closed" else None
        del stream
        gc.collect()
    else:
        graph.invoke({"log": []}, T)
    assert not held(store)
    again = graph_of(LimpetSaver(store, exclusive=True), say("1"), say("2"))
    again.invoke(Command(resume="!") if how == "interrupt" else {"log": []}, T)
    assert not held(store)


@pytest.mark.parametrize("how", ["normally", "interrupt", "error", "stream closed", "cancelled"])
def test_when_an_async_run_has_ended_however_its_lease_is_given_back(
    how: str, store: limpet.Store
) -> None:
    """The same, awaited."""
    ends = {"interrupt": lambda _: interrupt("?") and None, "error": fail}

    async def main() -> None:
        inside = asyncio.Event()

        async def wait(_: Any) -> Any:
            inside.set()
            await asyncio.sleep(60)

        end = wait if how == "cancelled" else ends.get(how, say("2"))
        graph = graph_of(LimpetSaver(store, exclusive=True), say("1"), end)
        if how == "error":
            with pytest.raises(OSError, match="network"):
                await graph.ainvoke({"log": []}, T)
        elif how == "cancelled":
            run = asyncio.create_task(graph.ainvoke({"log": []}, T))
            await inside.wait()
            assert held(store)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
        elif how == "stream closed":
            stream: Any = graph.astream({"log": []}, T, durability="sync")
            await anext(stream)
            assert held(store)
            await stream.aclose()
        else:
            await graph.ainvoke({"log": []}, T)
        # A run that is cancelled tells of its end in a task of its own.
        for _ in range(100):
            if not held(store):
                break
            await asyncio.sleep(0.01)
        assert not held(store)

    asyncio.run(main())


def test_a_batch_runs_threads_side_by_side_each_with_its_lease(store: limpet.Store) -> None:
    """In threads of the process, as LangChain does it."""
    graph = graph_of(LimpetSaver(store, exclusive=True), say("1"))
    configs = [config_of(f"t{number}") for number in range(4)]
    assert graph.batch([{"log": []}] * 4, configs) == [{"log": ["1"]}] * 4
    assert not any(held(store, f"t{number}") for number in range(4))


def test_a_run_with_a_callback_manager_of_its_own_is_a_run_as_any(store: limpet.Store) -> None:
    """LangGraph lets it hear what others hear."""
    graph = graph_of(LimpetSaver(store, exclusive=True), lambda _: {"log": [str(held(store))]})
    silent: Any = {**T, "callbacks": CallbackManager([])}
    assert graph.invoke({"log": []}, silent, durability="sync") == {"log": ["True"]}
    assert not held(store)


def test_a_run_whose_end_nobody_would_tell_is_refused(
    store: limpet.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease would never be given back; a block needs no callbacks."""
    saver = LimpetSaver(store, exclusive=True)
    graph = graph_of(saver, say("1"))
    graph.invoke({"log": []}, T)
    monkeypatch.setattr("langchain_core.tracers.context._configure_hooks", [])
    with pytest.raises(RuntimeError, match="exclusively"):
        graph.invoke({"log": []}, T)
    assert not held(store)
    with saver.exclusively("t"):
        assert graph.invoke({"log": []}, T) == {"log": ["1", "1"]}
    assert not held(store)


# -- what belongs to a run -------------------------------------------------------------------------


@ways
def test_subgraphs_belong_to_the_run(way: str, store: limpet.Store) -> None:
    """They write under its lease; and a graph of another thread, within a node, takes its own."""
    saver = LimpetSaver(store, exclusive=True)
    inner, other = graph_of(None, say("inner")), graph_of(saver, say("other"))

    def call(_: Any) -> Any:
        assert held(store)
        found = other.invoke({"log": []}, OTHER)
        assert not held(store, "other")
        return found

    graph = graph_of(saver, inner, call)
    if way == "sync":
        found = graph.invoke({"log": ["x"]}, T)
    else:
        found = asyncio.run(graph.ainvoke({"log": ["x"]}, T))
    assert found["log"][-1] == "other"
    assert not held(store)


def test_graphs_of_other_savers_are_not_concerned(store: limpet.Store) -> None:
    """Though the thread has the same name: only a saver that is exclusive takes leases."""
    exclusive = graph_of(LimpetSaver(store, exclusive=True), say("1"))
    exclusive.invoke({"log": []}, T)
    for saver in (InMemorySaver(), LimpetSaver("memory:")):
        graph = graph_of(saver, lambda _: {"log": [str(held(store))]})
        assert graph.invoke({"log": []}, T) == {"log": ["False"]}


def test_a_run_whose_lease_was_taken_over_writes_nothing_more(store: limpet.Store) -> None:
    """It slept for too long, and another goes on with the thread."""
    saver = LimpetSaver(store, exclusive=True)

    def sleep(_: Any) -> Any:
        backend, key = store.scope.backend, store.journal("thread", "t").key
        head = backend.head(key)
        assert head is not None
        assert head.lease is not None
        backend.acquire(key, "another", 60, over=head.lease.epoch)
        return {"log": ["late"]}

    with pytest.raises(LeaseLost):
        graph_of(saver, say("1"), sleep).invoke({"log": []}, T, durability="sync")
    assert LimpetSaver(store).get_tuple(T).checkpoint["channel_values"]["log"] == ["1"]  # type: ignore[union-attr]


# -- the block -------------------------------------------------------------------------------------


@ways
def test_a_block_holds_a_thread_for_several_runs_and_updates(way: str, store: limpet.Store) -> None:
    """Read, decide, update and run, with nobody in between."""
    saver = LimpetSaver(store, exclusive=True)
    graph = graph_of(saver, say("1"))

    def within() -> None:
        graph.invoke({"log": []}, T)
        graph.update_state(T, {"log": ["update"]})
        assert graph.invoke({"log": []}, T)["log"] == ["1", "update", "1"]
        assert held(store)

    async def awaited() -> None:
        async with saver.exclusively("t"):
            await graph.ainvoke({"log": []}, T)
            await graph.aupdate_state(T, {"log": ["update"]})
            found = await graph.ainvoke({"log": []}, T)
            assert found["log"] == ["1", "update", "1"]
            assert held(store)

    if way == "sync":
        with saver.exclusively("t"):
            within()
    else:
        asyncio.run(awaited())
    assert not held(store)


def test_a_block_of_a_saver_that_is_not_exclusive_excludes_other_blocks_and_exclusive_runs(
    store: limpet.Store,
) -> None:
    """Who does not ask for a lease is not refused one."""
    saver, exclusive = LimpetSaver(store), LimpetSaver(store, exclusive=True)
    with saver.exclusively("t"):
        assert graph_of(saver, say("1")).invoke({"log": []}, T) == {"log": ["1"]}
        with pytest.raises(LeaseHeld), LimpetSaver(store).exclusively("t"):
            pass
        with pytest.raises(LeaseHeld):
            graph_of(exclusive, say("2")).invoke({"log": []}, T)
    assert graph_of(exclusive, say("2")).invoke({"log": []}, T) == {"log": ["1", "2"]}


def test_a_block_lets_nobody_in_who_is_not_within_it(store: limpet.Store) -> None:
    """Another task of the same process, with the same saver, is another."""
    saver = LimpetSaver(store, exclusive=True)
    graph = graph_of(saver, say("1"))

    async def main() -> None:
        entered, leave = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with saver.exclusively("t"):
                entered.set()
                await leave.wait()

        holding = asyncio.create_task(hold())
        await entered.wait()
        with pytest.raises(LeaseHeld):
            await graph.ainvoke({"log": []}, T)
        leave.set()
        await holding
        await graph.ainvoke({"log": []}, T)

    asyncio.run(main())
