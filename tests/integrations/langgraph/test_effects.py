"""Effects in nodes and tools of graphs happen once, whatever becomes of the process."""

from __future__ import annotations

import asyncio
import json
import operator
import signal
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.errors import GraphBubbleUp
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

import limpet
from limpet.errors import CallsInDoubt, Conflict, LeaseHeld, NotDurable, TaskNotOpen
from limpet.integrations.langgraph import LimpetSaver
from limpet.testing.crash import Moment, Program, crash, seeded, soak
from tests.support import commands
from tests.support import langgraph_effects as effects
from tests.support.dying import Killed
from tests.support.langgraph_effects import World, config_of
from tests.support.processes import in_a_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from langgraph.graph.state import CompiledStateGraph

ways = pytest.mark.parametrize("way", ["sync", "async"])
kinds = pytest.mark.parametrize("kind", list(effects.KINDS))

T = config_of("t")


class State(TypedDict):
    """What is done."""

    log: Annotated[list[Any], operator.add]


def graph_of(
    saver: LimpetSaver, *nodes: Any, retry: RetryPolicy | None = None
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """A graph of *nodes*, one after the other."""
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    before = START
    for number, node in enumerate(nodes):
        graph.add_node(f"n{number}", node, retry_policy=retry)
        graph.add_edge(before, f"n{number}")
        before = f"n{number}"
    return graph.compile(checkpointer=saver)


class Sent:
    """An effect that notes its calls, and does what it is told to at each."""

    def __init__(self, *errors: BaseException | None, **options: Any) -> None:
        self.calls: list[Any] = []
        self.keys: list[str] = []
        errors_ = list(errors)

        @limpet.effect(name="send", **options)
        def send(to: str) -> Any:
            self.calls.append(to)
            self.keys.append(limpet.current_step().idempotency_key)
            error = errors_.pop(0) if errors_ else None
            if error is not None:
                raise error
            return {"to": to, "number": len(self.calls)}

        self.send = send


# -- kills -----------------------------------------------------------------------------------------


def killed_and_finished(
    url: str, path: Path, kind: str, way: str, number: int, *, within: bool
) -> tuple[bool, Any, list[str]]:
    """Whether a thread was killed, at moment *number*; its end at last; and what was done.

    Nodes side by side share a lease if they meet, so a run may have fewer moments than another.
    """
    thread = f"{'in' if within else 'at'}-{number}-"
    at, world = (None, World(str(path), number)) if within else (number, World(str(path)))
    code, _ = in_a_process(lambda: effects.run(url, world, kind, way, thread, at))
    assert code in {0, signal.SIGKILL}
    _, (found, _) = in_a_process(lambda: effects.run(url, World(str(path)), kind, way, thread))
    done = [what.replace(thread, "T") for what in world.done(thread)]
    return code == signal.SIGKILL, json.loads(json.dumps(found).replace(thread, "T")), done


def check_kills(tmp_path: Path, kind: str, way: str, every: int) -> None:
    """Kill at every so many of all moments: before, within and after each write and effect."""
    url, path = f"sqlite:{tmp_path}/agents.db?durability=normal", tmp_path / "world"
    expected, passed = effects.run(url, World(str(path)), kind, way, "T")
    once = World(str(path)).done("T")
    assert len(set(once)) == len(once) >= 2 * effects.ROUNDS
    moments = 0
    for within, count in ((False, len(passed)), (True, 2 * len(once))):
        for number in range(1 + count % every, count + 1, every):
            killed, found, done = killed_and_finished(url, path, kind, way, number, within=within)
            moments += killed
            assert done == once, f"killed at {number} ({within=}), it did otherwise"
            assert found == json.loads(json.dumps(expected)), f"killed at {number} ({within=})"
    assert moments > (len(passed) + 2 * len(once)) / every / 2
    with limpet.open(url) as store:
        assert store.in_doubt() == []


@pytest.mark.slow
@kinds
@ways
def test_killed_around_an_effect_a_graph_has_it_once(kind: str, way: str, tmp_path: Path) -> None:
    """Done, it is not made again; in doubt, it is looked for; and the end is the same."""
    check_kills(tmp_path, kind, way, every=9)


@pytest.mark.long
@kinds
@ways
def test_killed_at_every_moment_a_graph_has_each_effect_once(
    kind: str, way: str, tmp_path: Path
) -> None:
    """The same at each moment that there is."""
    check_kills(tmp_path, kind, way, every=1)


@pytest.mark.soak
@ways
def test_killed_at_any_moment_a_graph_has_each_effect_once(way: str, tmp_path: Path) -> None:
    """Nothing is lost, no effect happens twice, and each thread ends as it would have."""
    with seeded() as rng:
        first, seen = dict.fromkeys(effects.KINDS, 1), dict.fromkeys(effects.KINDS, 0)
        for number in range(10 * soak()):
            kind = rng.choice(list(effects.KINDS))
            world = World(str(tmp_path / f"{kind}.log"))
            url = f"sqlite:{tmp_path}/{kind}.db"
            durability = ("async", "sync")[number % 2]
            args = (url, world.path, kind, way, durability, str(first[kind]))
            moment = Moment(rng.randint(1, 4), rng.uniform(0, rng.choice([0.001, 0.03])))
            (outcome,) = crash([Program(f"{effects.__name__}:work", args)], [moment])
            assert outcome.killed
            for line in outcome.acked:
                thread, length = map(int, line.split())
                assert thread == first[kind]
                assert length == (seen[kind] or length)
                first[kind], seen[kind] = thread + 1, length
            done = world.done()
            assert len(set(done)) == len(done), f"{kind}: an effect happened twice"
            each = 2 * effects.ROUNDS if kind == "agent" else 5 * effects.ROUNDS
            for thread in range(1, first[kind]):
                found = [what for what in done if what.startswith(f"<{thread}>")]
                assert len(found) == each, f"{kind}: an effect of thread {thread} was lost"


@pytest.mark.slow
@ways
def test_what_is_in_doubt_after_a_kill_is_resolved_by_command(way: str, tmp_path: Path) -> None:
    """A person who has looked says so, and the graph goes on with that result."""
    url, path = f"sqlite:{tmp_path}/agents.db", str(tmp_path / "world")
    code, _ = in_a_process(lambda: effects.run(url, World(path, 2), "agent", way, "t", None, "ask"))
    assert code == signal.SIGKILL
    with pytest.raises(CallsInDoubt, match=r"limpet .*resolve .*thread-effects/t") as raised:
        effects.run(url, World(path), "agent", way, "t", None, "ask")
    (call,) = raised.value.calls
    assert (call.name, call.agent, call.policy) == ("act", "tools", "ask")
    listed = commands.run("in-doubt", "--store", url).output
    assert "thread-effects" in listed
    assert "act" in listed
    words = ("resolve", "--store", url, "thread-effects/t", call.id, "done")
    commands.run(*words, "--result", '"did it, as I saw"')
    found, _ = effects.run(url, World(path), "agent", way, "t", None, "verify")
    assert ["tool", "did it, as I saw"] in found
    done = World(path).done()  # the call may not have happened, whatever the person has said
    assert len(done) == len(set(done)) >= 2 * effects.ROUNDS - 1
    assert "thread-effects" not in commands.run("in-doubt", "--store", url).output


# -- the node is run again -------------------------------------------------------------------------


def test_an_effect_that_is_done_is_not_made_again_when_its_node_is() -> None:
    """The node failed behind it: run again, it gets the recorded result."""
    sent, failures = Sent(), [OSError("the network")]

    def node(_: State) -> Any:
        found = [sent.send("alice"), sent.send("bob")]
        if failures:
            raise failures.pop()
        return {"log": found}

    with LimpetSaver("memory:") as saver:
        graph = graph_of(saver, node)
        with pytest.raises(OSError, match="network"):
            graph.invoke({"log": []}, T)
        assert graph.invoke(None, T) == {
            "log": [{"to": "alice", "number": 1}, {"to": "bob", "number": 2}]
        }
    assert sent.calls == ["alice", "bob"]


def test_a_retry_policy_of_langgraphs_makes_no_effect_twice() -> None:
    """It runs the node again from its beginning, in the same run."""
    sent, failures = Sent(), [OSError("once"), OSError("twice")]

    def node(_: State) -> Any:
        found = [sent.send("alice"), sent.send("alice")]  # the same call, and meant twice
        if failures:
            raise failures.pop()
        return {"log": [one["number"] for one in found]}

    policy = RetryPolicy(initial_interval=0.001, jitter=False, retry_on=OSError)
    with LimpetSaver("memory:") as saver:
        assert graph_of(saver, node, retry=policy).invoke({"log": []}, T) == {"log": [1, 2]}
    assert sent.calls == ["alice", "alice"]
    assert len(set(sent.keys)) == 2


def test_a_node_that_makes_its_calls_in_another_order_gets_the_recorded_answers() -> None:
    """A call is known by its arguments, and not by its place."""
    sent, orders = Sent(), [["alice", "bob"], ["bob", "carol", "alice"]]

    def node(_: State) -> Any:
        found = {to: sent.send(to)["number"] for to in orders.pop(0)}
        if orders:
            raise OSError("behind both")
        return {"log": [found]}

    with LimpetSaver("memory:") as saver:
        graph = graph_of(saver, node)
        with pytest.raises(OSError, match="behind"):
            graph.invoke({"log": []}, T)
        assert graph.invoke(None, T)["log"] == [{"bob": 2, "carol": 3, "alice": 1}]


def test_each_turn_makes_its_own_call() -> None:
    """The same arguments on another checkpoint are another call, and so is time travel."""
    sent = Sent()

    def node(_: State) -> Any:
        return {"log": [sent.send("alice")["number"]]}

    with LimpetSaver("memory:") as saver:
        graph = graph_of(saver, node)
        assert graph.invoke({"log": []}, T)["log"] == [1]
        assert graph.invoke({"log": []}, T)["log"] == [1, 2]
        (before, *_) = [one for one in graph.get_state_history(T) if one.next == ("n0",)]
        forked = graph.update_state(before.config, {"log": ["fork"]})
        assert graph.invoke(None, forked)["log"] == [1, "fork", 3]
    assert len(set(sent.keys)) == 3


def test_a_node_that_is_sent_several_times_makes_as_many_calls() -> None:
    """They are tasks of their own, side by side, though they call the same."""
    sent = Sent()
    failures = [OSError("behind the effect")]

    def node(state: State) -> Any:
        sent.send("alice")
        if failures:
            raise failures.pop()
        return {"log": [1]}

    graph: Any = StateGraph(State)
    graph.add_node("n", node)
    graph.add_conditional_edges(START, lambda _: [Send("n", State(log=[]))] * 3, ["n"])
    with LimpetSaver("memory:") as saver:
        made = graph.compile(checkpointer=saver)
        with pytest.raises(OSError, match="behind"):
            made.invoke({"log": []}, T)
        assert made.invoke(None, T) == {"log": [1, 1, 1]}
    assert sent.calls == ["alice"] * 3


def test_functions_of_the_functional_api_have_effects_too() -> None:
    """A `@task` is a task of its own, and so is the entry point."""
    sent, failures = Sent(), [OSError("behind all of them")]

    @task
    def do(to: str) -> int:
        return int(sent.send(to)["number"])

    with LimpetSaver("memory:") as saver:

        @entrypoint(checkpointer=saver)
        def flow(to: str) -> list[str]:
            futures = [do(to), do(to)]
            found = {future.result() for future in futures}
            sent.send(to)
            if failures:
                raise failures.pop()
            return sorted(map(str, found))

        with pytest.raises(OSError, match="behind"):
            flow.invoke("alice", T)
        assert flow.invoke(None, T) == ["1", "2"]
    assert sent.calls == ["alice"] * 3


@ways
def test_a_plain_tool_of_an_async_agent_has_effects_too(way: str, tmp_path: Path) -> None:
    """LangChain runs it in a thread; and what an agent's tools return, the model reads."""
    world = World(str(tmp_path / "world"))

    async def main() -> Any:
        async with LimpetSaver("memory:") as saver:
            graph = effects.KINDS["agent"](saver, world.effect(way), way)
            return await graph.ainvoke({"messages": [HumanMessage("t")]}, T)

    said = [one.content for one in asyncio.run(main())["messages"] if one.type == "tool"]
    assert sorted(said) == [f"did {what}" for what in world.done()]
    assert len(said) == 2 * effects.ROUNDS


# -- what failed, and what is in doubt -------------------------------------------------------------


def test_an_effect_that_raised_is_in_doubt_until_a_person_says_what_became_of_it() -> None:
    """LangGraph's retries do not make it again, and no model hears of it."""
    sent = Sent(ConnectionError("lost"))

    def node(_: State) -> Any:
        return {"log": [sent.send("alice")]}

    with limpet.open("memory:") as store:
        retry = RetryPolicy(initial_interval=0.001, retry_on=Exception)
        graph = graph_of(LimpetSaver(store), node, retry=retry)
        with pytest.raises(CallsInDoubt, match="ended with ConnectionError: lost") as raised:
            graph.invoke({"log": []}, T)
        assert isinstance(raised.value, GraphBubbleUp)
        (doubtful,) = store.in_doubt()
        assert (doubtful.kind, doubtful.id, doubtful.call.name) == ("thread-effects", "t", "send")
        with pytest.raises(CallsInDoubt):
            graph.invoke(None, T)
        assert sent.calls == ["alice"]
        store.resolve("t", doubtful.call.id, "retry", kind=doubtful.kind)
        assert graph.invoke(None, T) == {"log": [{"to": "alice", "number": 2}]}
        assert store.in_doubt() == []


@pytest.mark.parametrize(
    ("options", "calls", "result"),
    [
        ({"in_doubt": "retry"}, 2, {"to": "alice", "number": 2}),
        ({"in_doubt": "skip"}, 1, None),
        ({"verify": lambda key: {"key": key[:10]}}, 1, {"key": "default:t:"}),
        ({"verify": lambda _: None}, 2, {"to": "alice", "number": 2}),
    ],
)
def test_the_policy_of_an_effect_decides_what_becomes_of_it(
    options: Any, calls: int, result: Any
) -> None:
    """As for a step of a task."""
    sent = Sent(Killed(), **options)

    def node(_: State) -> Any:
        return {"log": [sent.send("alice")]}

    with LimpetSaver("memory:") as saver:
        graph = graph_of(saver, node)
        with pytest.raises(Killed):
            graph.invoke({"log": []}, T)
        assert graph.invoke(None, T) == {"log": [result]}
    assert len(sent.calls) == calls


@ways
def test_an_error_after_which_nothing_has_happened_is_tried_again(way: str) -> None:
    """The effect names such errors: `Retry(on=…)`."""
    refused = limpet.Retry(on=ConnectionRefusedError, wait=0.001)
    calls = []

    @limpet.effect(retry=refused)
    async def asend(to: str) -> str:
        return note(to)

    @limpet.effect(retry=refused)
    def send(to: str) -> str:
        return note(to)

    def note(to: str) -> str:
        calls.append(limpet.current_step().attempt)
        if len(calls) < 3:
            raise ConnectionRefusedError
        return to

    async def anode(_: State) -> Any:
        return {"log": [await asend("alice")]}

    def node(_: State) -> Any:
        return {"log": [send("alice")]}

    with LimpetSaver("memory:") as saver:
        if way == "async":
            found = asyncio.run(graph_of(saver, anode).ainvoke({"log": []}, T))
        else:
            found = graph_of(saver, node).invoke({"log": []}, T)
    assert found == {"log": ["alice"]}
    assert calls == [1, 2, 3]


def test_an_effect_may_ask_a_human_before_it_happens() -> None:
    """It has done nothing yet, and is not in doubt: with the answer, it is made."""
    sent: list[str] = []

    @limpet.effect
    def send(to: str) -> str:
        if interrupt(f"Send to {to}?") == "yes":
            sent.append(to)
        return to

    with limpet.open("memory:") as store:
        graph = graph_of(LimpetSaver(store), lambda _: {"log": [send("alice")]})
        graph.invoke({"log": []}, T)
        assert graph.get_state(T).interrupts
        assert store.in_doubt() == []
        assert graph.invoke(Command(resume="yes"), T) == {"log": ["alice"]}
    assert sent == ["alice"]


def test_an_effect_within_an_effect_is_recorded_by_itself() -> None:
    """When the outer one is made again, the inner one is not, if it is done."""
    sent, errors = Sent(), [ConnectionError("behind")]

    @limpet.effect(in_doubt="retry")
    def tell_all() -> list[int]:
        found = [sent.send("alice")["number"], sent.send("alice")["number"]]
        if errors:
            raise errors.pop()
        return found

    with LimpetSaver("memory:") as saver:
        graph = graph_of(saver, lambda _: {"log": tell_all()})
        with pytest.raises(ConnectionError):
            graph.invoke({"log": []}, T)
        assert graph.invoke(None, T) == {"log": [1, 2]}


def test_an_effect_around_one_that_is_in_doubt_is_in_doubt_itself() -> None:
    """What it did before that, it may have done."""
    sent, outer = Sent(ConnectionError("lost")), []

    @limpet.effect
    def tell_all() -> Any:
        outer.append("told")
        return sent.send("alice")["number"]

    with limpet.open("memory:") as store:
        graph = graph_of(LimpetSaver(store), lambda _: {"log": [tell_all()]})
        with pytest.raises(ConnectionError):
            graph.invoke({"log": []}, T)
        for name in ("tell_all", "send"):
            with pytest.raises(CallsInDoubt) as raised:
                graph.invoke(None, T)
            (call,) = raised.value.calls
            assert call.name == name
            store.resolve("t", call.id, "retry", kind="thread-effects")
        assert [doubt.call.name for doubt in store.in_doubt()] == ["tell_all"]
        assert (len(outer), len(sent.calls)) == (2, 1)
        (doubtful,) = store.in_doubt()
        store.resolve("t", doubtful.call.id, "retry", kind="thread-effects")
        assert graph.invoke(None, T) == {"log": [2]}
        assert store.in_doubt() == []


# -- where it cannot be, and whose it is -----------------------------------------------------------


def test_without_durable_checkpoints_an_effect_is_refused() -> None:
    """Nobody could find it again: the next run would have other checkpoints."""
    sent = Sent()
    with LimpetSaver("memory:") as saver:
        graph = graph_of(saver, lambda _: {"log": [sent.send("alice")]})
        with pytest.raises(NotDurable, match='durability="exit"'):
            graph.invoke({"log": []}, T, durability="exit")
        inner = StateGraph(State)
        inner.add_node("n", lambda _: {"log": [sent.send("alice")]})
        inner.add_edge(START, "n")
        outer = graph_of(saver, inner.compile(checkpointer=False))
        with pytest.raises(NotDurable, match="without checkpoints"):
            outer.invoke({"log": []}, T)
    assert sent.calls == []


def test_without_a_saver_or_a_task_an_effect_is_refused_as_ever() -> None:
    """Unless it says that it may be just a call."""
    sent, free = Sent(), Sent(outside="call")
    graph = StateGraph(State)
    graph.add_node("n", lambda _: {"log": [sent.send("alice")]})
    graph.add_edge(START, "n")
    with pytest.raises(TaskNotOpen):
        graph.compile().invoke({"log": []}, T)

    @limpet.effect(outside="call")
    def call(to: str) -> str:
        free.calls.append(to)
        return to

    other = StateGraph(State)
    other.add_node("n", lambda _: {"log": [call("alice")]})
    other.add_edge(START, "n")
    assert other.compile().invoke({"log": []}) == {"log": ["alice"]}


def test_within_a_task_an_effect_is_a_step_of_that() -> None:
    """As it was before: the task is what resumes."""
    sent = Sent()
    with limpet.open("memory:") as store:
        graph = graph_of(LimpetSaver(store), lambda _: {"log": [sent.send("alice")]})
        with store.task("job", "Tell her") as job:
            graph.invoke({"log": []}, T)
            assert [name.partition(":")[0] for name in job.results] == ["send"]
        assert store.journal("thread-effects", "t").head() is None


def test_another_process_that_runs_the_same_node_does_not_have_its_effect(tmp_path: Path) -> None:
    """It is told who is at it."""
    url = f"sqlite:{tmp_path}/agents.db"
    said: list[Any] = []

    @limpet.effect
    def send(to: str) -> str:
        if not said:
            said.append(in_a_process(other))
        return to

    def other() -> str:
        with LimpetSaver(url) as saver:
            graph = graph_of(saver, lambda _: {"log": [send("alice")]})
            try:
                graph.invoke(None, T)
            except LeaseHeld as error:
                return str(error)
        return "it was made"

    with LimpetSaver(url) as saver:
        graph = graph_of(saver, lambda _: {"log": [send("alice")]})
        assert graph.invoke({"log": []}, T) == {"log": ["alice"]}
    assert "process" in said[0][1]
    assert "it was made" not in said[0][1]


def test_two_runs_of_one_node_in_a_process_have_its_effect_once() -> None:
    """The second is refused while the first is at it."""
    begun: list[str] = []

    async def both() -> None:
        inside, go_on = asyncio.Event(), asyncio.Event()

        @limpet.effect
        async def send(to: str) -> str:
            begun.append(to)
            inside.set()
            await go_on.wait()
            return to

        async def node(_: State) -> Any:
            return {"log": [await send("alice")]}

        async with LimpetSaver("memory:") as saver:
            graph = graph_of(saver, node)
            first = asyncio.create_task(graph.ainvoke({"log": []}, T))
            await inside.wait()
            with pytest.raises(Conflict, match="is running"):
                await graph.ainvoke(None, T)
            go_on.set()
            assert await first == {"log": ["alice"]}

    asyncio.run(both())
    assert begun == ["alice"]


def test_a_thread_that_is_deleted_takes_its_effects_along() -> None:
    """A new thread of that name begins with nothing."""
    sent = Sent()
    with limpet.open("memory:") as store:
        saver = LimpetSaver(store)
        graph = graph_of(saver, lambda _: {"log": [sent.send("alice")]})
        ways: list[Callable[[], None]] = [
            lambda: saver.delete_thread("t"),
            lambda: saver.prune(["t"], strategy="delete"),
            lambda: asyncio.run(saver.adelete_thread("t")),
        ]
        for delete in ways:
            graph.invoke({"log": []}, T)
            assert store.journal("thread-effects", "t").head() is not None
            delete()
            assert store.journal("thread-effects", "t").head() is None


def test_what_is_pruned_takes_its_effects_along_and_what_is_under_way_does_not() -> None:
    """A result that was stored may be private; what a node may be run again for is still needed."""
    sent = Sent(None, None, None, ConnectionError("lost"))
    failures: list[Exception] = []

    def node(_: State) -> Any:
        found = [sent.send("alice")["number"]]
        if failures:
            raise failures.pop()
        return {"log": found}

    def known(store: limpet.Store) -> int:
        return sum(entry.type == "ended" for entry in store.journal("thread-effects", "t").read())

    with limpet.open("memory:") as store:
        saver = LimpetSaver(store)
        graph = graph_of(saver, node)
        for _ in range(2):
            graph.invoke({"log": []}, T)
        failures.append(OSError("behind the third"))
        with pytest.raises(OSError, match="third"):
            graph.invoke({"log": []}, T)
        assert known(store) == 3
        saver.prune(["t"])
        assert known(store) == 1
        assert graph.invoke(None, T)["log"] == [1, 2, 3]
        with pytest.raises(ConnectionError):
            graph.invoke({"log": []}, T)
        saver.prune(["t"])
        (doubtful,) = store.in_doubt()
        assert doubtful.call.error == "ConnectionError: lost"
        store.resolve("t", doubtful.call.id, "done", result={"number": 4}, kind="thread-effects")
        assert LimpetSaver(store).get_tuple(T) is not None
        assert graph_of(LimpetSaver(store), node).invoke(None, T)["log"] == [1, 2, 3, 4]
        graph.invoke({"log": []}, T)
        saver.prune(["t"])
        assert known(store) == 0
    assert sent.calls == ["alice"] * 5


def test_a_copy_of_a_thread_has_had_its_effects() -> None:
    """What was cut short in the one is not done again by the other; what comes later is."""
    sent, failures = Sent(), [OSError("behind"), OSError("behind"), OSError("behind")]

    def node(_: State) -> Any:
        found = [sent.send("alice")["number"]]
        if failures:
            raise failures.pop()
        return {"log": found}

    with LimpetSaver("memory:") as saver:
        graph = graph_of(saver, node)
        with pytest.raises(OSError, match="behind"):
            graph.invoke({"log": []}, T)
        saver.copy_thread("t", "u")
        failures.clear()
        assert graph.invoke(None, config_of("u")) == {"log": [1]}
        assert graph.invoke({"log": []}, config_of("u")) == {"log": [1, 2]}
        assert graph.invoke(None, T) == {"log": [1]}


def test_an_expiring_thread_has_expiring_effects() -> None:
    """Nothing of it outlives it."""
    sent = Sent()
    with limpet.open("memory:") as store:
        graph = graph_of(LimpetSaver(store, ttl=3600), lambda _: {"log": [sent.send("alice")]})
        graph.invoke({"log": []}, T)
        for kind in ("thread", "thread-effects"):
            head = store.journal(kind, "t").head()
            assert head is not None
            assert head.expires_at is not None


def test_a_tool_of_an_agent_gets_its_result_as_text(tmp_path: Path) -> None:
    """`@tool` on top of `@effect`, as people write it, in an agent with more than one turn."""
    world = World(str(tmp_path / "world"))
    with LimpetSaver("memory:") as saver:
        graph = effects.KINDS["agent"](saver, world.effect("sync"), "sync")
        said = graph.invoke({"messages": [HumanMessage("t")]}, T)["messages"]
        assert [one.content for one in said if one.type == "tool"] == [
            f"did t {side} {number}"
            for number in range(effects.ROUNDS)
            for side in ("left", "right")
        ]
    assert len(world.done()) == 2 * effects.ROUNDS
