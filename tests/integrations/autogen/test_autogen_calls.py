"""Tool calls of kept agents in doubt: the store lists them, and a run heeds what a person said."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from autogen_agentchat.agents import ApprovalResponse, CodeExecutorAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat
from autogen_core.code_executor import CodeExecutor, CodeResult
from pydantic import BaseModel

import limpet
from limpet.core.calls import Resolution, all_in_doubt, resolve_call
from limpet.errors import LeaseHeld, NotFound, StoreUnavailable
from limpet.integrations import autogen
from limpet.integrations.autogen.run import DONE, SKIPPED
from tests.support.autogen_teams import agent, calling, played, talk
from tests.support.processes import in_a_process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from limpet.store import AsyncStore


def in_store(work: Callable[[AsyncStore], Awaitable[Any]], url: str = "memory:") -> Any:
    """What *work* makes of a store."""

    async def main() -> Any:
        async with limpet.open_async(url) as store:
            return await asyncio.wait_for(work(store), 20)

    return asyncio.run(main())


class Bank:
    """A tool that pays. With a *store* that is gone when it has begun, nobody knows whether."""

    def __init__(
        self, store: AsyncStore | None = None, *, hangs: bool = False, at_once: int = 1
    ) -> None:
        self.paid: list[str] = []
        self.together = asyncio.Barrier(at_once)
        self.began = asyncio.Event()
        self.hangs = hangs
        self.store = store

    async def pay(self, text: str) -> str:
        """Pay."""
        self.began.set()
        if self.hangs:
            await asyncio.sleep(600)
        await self.together.wait()
        if self.store is not None:
            self.store.backend.append = away  # type: ignore[method-assign]
        self.paid.append(text)
        return "paid"

    def clerk(self, name: str = "clerk") -> Any:
        """An agent that pays, then says what came of it."""
        return agent(name, calling("pay"), tools=[self.pay], reflect_on_tool_use=True)

    def team(self) -> Any:
        """It in a team."""
        members: list[Any] = [agent("anna"), self.clerk()]
        return RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(3))

    def it(self, place: str) -> Any:
        """It by itself, or in a team."""
        return self.clerk() if place == "agent" else self.team()


def away(request: Any) -> Any:
    """In place of a write."""
    raise StoreUnavailable("The store is away.")


async def cut_short(store: AsyncStore, it: Any, id: str = "it", **options: Any) -> None:
    """Run *it*, whose tools are a `Bank` of this *store*, until that is gone, and bring it back."""
    append = store.backend.append
    await autogen.keep(it, store, id, **options)
    with pytest.raises(StoreUnavailable):
        await it.run(task="Pay.")
    store.backend.append = append  # type: ignore[method-assign]


async def left_in_doubt(store: AsyncStore, place: str) -> None:
    """A run that ended, for all the store knows, while its tool ran."""
    await cut_short(store, Bank(store).it(place))


async def listed(store: AsyncStore) -> list[tuple[str, ...]]:
    """What the store has in doubt."""
    found = await all_in_doubt(store.scope)
    return [(one.kind, one.id, one.call.id, one.call.name, one.call.agent) for one in found]


def last_of(result: Any, name: str = "clerk") -> str:
    """What *name* said last."""
    return str([m.to_text() for m in result.messages if m.source == name][-1])


@pytest.mark.parametrize("in_doubt", ["skip", "ask", "drop", "retry"])
@pytest.mark.parametrize("place", ["agent", "team"])
@pytest.mark.parametrize(
    ("how", "result", "text", "is_paid"),
    [
        ("done", "paid, says Ann", "paid, says Ann", False),
        ("done", {"receipt": 7}, '{"receipt":7}', False),
        ("done", None, DONE, False),
        ("retry", None, "paid", True),
        ("skip", None, SKIPPED, False),
    ],
    ids=["done", "done with data", "done without a result", "retry", "skip"],
)
def test_a_call_in_doubt_is_resolved_like_any_other(
    *, place: str, in_doubt: Any, how: Any, result: Any, text: str, is_paid: bool
) -> None:
    """By the functions for calls of whatever kind; whatever policy it would have met otherwise."""

    async def work(store: AsyncStore) -> None:
        await left_in_doubt(store, place)
        ((kind, id_, call, name, who),) = await listed(store)
        assert (kind, id_, name, who) == ("state", "it", "pay", "" if place == "agent" else "clerk")
        await resolve_call(store.scope, kind, id_, Resolution(call, how, result, by="ann"))
        assert await listed(store) == []
        bank = Bank()
        it = await autogen.keep(bank.it(place), store, "it", in_doubt=in_doubt)
        assert not autogen.kept(it).in_doubt
        assert last_of(await it.run()) == f"The tool says {text}"
        assert bool(bank.paid) == is_paid
        assert not autogen.kept(it).repairs
        assert await listed(store) == []

    in_store(work)


@pytest.mark.parametrize("in_doubt", ["skip", "ask"])
@pytest.mark.parametrize("hold", [False, True])
def test_an_agent_that_is_loaded_already_learns_of_the_resolution(
    in_doubt: Any, *, hold: bool
) -> None:
    """A service has the agent in memory when somebody answers on the command line."""

    async def work(store: AsyncStore) -> None:
        await left_in_doubt(store, "agent")
        one = await autogen.keep(Bank().clerk(), store, "it", in_doubt=in_doubt, hold=hold)
        assert [call.title for call in autogen.kept(one).in_doubt] == ["pay (call-2)"]
        resolution = Resolution("call-2", "done", "paid, says Ann")
        await resolve_call(store.scope, "state", "it", resolution)
        assert last_of(await one.run()) == "The tool says paid, says Ann"

    in_store(work)


def test_a_resolution_outlives_the_process_that_was_to_heed_it() -> None:
    """It counts until a save has it; and once only: the next time the same call is in doubt."""

    async def work(store: AsyncStore) -> None:
        await left_in_doubt(store, "agent")
        await resolve_call(store.scope, "state", "it", Resolution("call-2", "retry"))
        for _ in range(2):  # loaded, and gone again
            one = await autogen.keep(Bank().clerk(), store, "it", in_doubt="ask")
            assert not autogen.kept(one).in_doubt
        await cut_short(store, Bank(store).clerk(), in_doubt="ask")
        assert [row[2:] for row in await listed(store)] == [("call-2", "pay", "")]
        one = await autogen.keep(Bank().clerk(), store, "it", in_doubt="ask")
        with pytest.raises(autogen.CallsInDoubt, match=r"pay \(call-2\)") as raised:
            await one.run()
        assert [call.id for call in raised.value.calls] == ["call-2"]

    in_store(work)


def test_a_killed_process_leaves_its_call_in_doubt(tmp_path: Path) -> None:
    """With the lease it had: that of a dead process is nobody's."""
    url = f"sqlite:{tmp_path}/agents.db?durability=normal"

    async def dies(text: str) -> str:
        """Pay."""
        os.kill(os.getpid(), signal.SIGKILL)
        return text

    async def first(store: AsyncStore) -> None:
        one = agent("clerk", calling("dies"), tools=[dies], reflect_on_tool_use=True)
        await autogen.keep(one, store, "it", hold=True)
        await one.run(task="Pay.")

    assert in_a_process(lambda: in_store(first, url))[0] == signal.SIGKILL

    async def then(store: AsyncStore) -> None:
        assert [row[2:] for row in await listed(store)] == [("call-2", "dies", "")]
        await resolve_call(store.scope, "state", "it", Resolution("call-2", "done", "paid"))
        one = agent("clerk", calling("dies"), tools=[dies], reflect_on_tool_use=True)
        await autogen.keep(one, store, "it", hold=True)
        assert last_of(await one.run()) == "The tool says paid"

    in_store(then, url)


def test_a_call_that_is_being_made_under_a_lease_is_not_in_doubt() -> None:
    """Who resolved it now would be wrong in a moment."""

    async def work(store: AsyncStore) -> None:
        bank = Bank(hangs=True)
        one = await autogen.keep(bank.clerk(), store, "it", hold=True)
        run = asyncio.create_task(one.run(task="Pay."))
        await bank.began.wait()
        assert await listed(store) == []
        with pytest.raises(LeaseHeld, match="'call-2' of state 'it' is running"):
            await resolve_call(store.scope, "state", "it", Resolution("call-2", "skip"))
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert len(await listed(store)) == 1

    in_store(work)


def test_a_call_that_has_ended_is_not_in_doubt() -> None:
    """Neither after its result, nor after its run, nor of a run that nobody goes on with."""

    async def work(store: AsyncStore) -> None:
        seen: list[Any] = []

        async def look(text: str) -> str:
            """Look."""
            seen.append(await listed(store))
            return text

        def away(messages: Any, tools: Any) -> Any:
            if messages[-1].type != "UserMessage":
                raise ConnectionError("The model is away.")
            return calling("look")(messages, tools)

        one = agent("clerk", away, tools=[look], reflect_on_tool_use=True)
        await autogen.keep(one, store, "one")
        with pytest.raises(ConnectionError):
            await one.run(task="Look.")
        assert seen == [[("state", "one", "call-2", "look", "")]]  # no lease says who is at it
        assert await listed(store) == []
        await left_in_doubt(store, "agent")
        other = await autogen.keep(agent("clerk"), store, "it", on_change="ignore")
        await other.run(task="Never mind.")
        assert await listed(store) == []
        with pytest.raises(NotFound, match="is not in doubt"):
            await resolve_call(store.scope, "state", "it", Resolution("call-2", "skip"))

    in_store(work)


def test_calls_with_the_same_id_are_told_apart() -> None:
    """Models number their calls each for itself."""

    async def work(store: AsyncStore) -> None:
        bank = Bank(store, at_once=2)

        def graph(left: Bank, right: Bank) -> GraphFlow:
            start, one, two = agent("start"), left.clerk("one"), right.clerk("two")
            builder = DiGraphBuilder().add_node(start).add_node(one).add_node(two)
            builder.add_edge(start, one).add_edge(start, two)
            return GraphFlow(builder.get_participants(), graph=builder.build())

        await cut_short(store, graph(bank, bank))
        assert len(bank.paid) == 2
        found = {row[4]: row[2] for row in await listed(store)}
        assert sorted(found) == ["one", "two"]
        assert found["one"].partition("#")[0] == found["two"].partition("#")[0]
        assert found["one"] != found["two"]
        await resolve_call(store.scope, "state", "it", Resolution(found["one"], "done", "first"))
        await resolve_call(store.scope, "state", "it", Resolution(found["two"], "done", "second"))
        team = await autogen.keep(graph(Bank(), Bank()), store, "it", in_doubt="ask")
        result = await team.run()
        assert last_of(result, "one") == "The tool says first"
        assert last_of(result, "two") == "The tool says second"

    in_store(work)


def test_a_forked_or_restored_state_has_its_calls_in_doubt() -> None:
    """They are part of the document: a copy of it does not pay a second time."""

    async def work(store: AsyncStore) -> None:
        await left_in_doubt(store, "agent")
        position = (await store.state("it").info()).position
        await store.state("it").fork("fork")
        bank = Bank()
        one = await autogen.keep(bank.clerk(), store, "it", in_doubt="ask")
        await autogen.kept(one).resolve("call-2", "done", result="paid, says Ann")
        await one.run()
        await autogen.kept(one).state.restore(position)
        await autogen.kept(one).reload()
        two = await autogen.keep(bank.clerk(), store, "fork", in_doubt="ask")
        for id_, it in (("it", one), ("fork", two)):
            with pytest.raises(autogen.CallsInDoubt):
                await it.run()
            assert ("state", id_, "call-2", "pay", "") in await listed(store)
            await resolve_call(store.scope, "state", id_, Resolution("call-2", "skip"))
            assert last_of(await it.run()) == f"The tool says {SKIPPED}"
        await store.state("it").fork("third", at=position)
        three = await autogen.keep(bank.clerk(), store, "third")
        await autogen.kept(three).resolve("call-2", "skip")
        assert last_of(await three.run()) == f"The tool says {SKIPPED}"
        assert not bank.paid

    in_store(work)


def test_a_call_in_doubt_is_made_again_if_it_may_be() -> None:
    """By the policy "retry", as a step of a task has it."""

    async def work(store: AsyncStore) -> None:
        await left_in_doubt(store, "team")
        bank = Bank()
        team = await autogen.keep(bank.team(), store, "it", in_doubt="retry")
        assert last_of(await team.run()) == "The tool says paid"
        assert len(bank.paid) == 1
        assert not autogen.kept(team).repairs

    in_store(work)


def test_what_cannot_be_said_of_a_call_is_refused() -> None:
    """As of a step of a task, and nothing is recorded."""

    async def work(store: AsyncStore) -> None:
        await left_in_doubt(store, "agent")
        kept = autogen.kept(await autogen.keep(Bank().clerk(), store, "it"))
        with pytest.raises(ValueError, match="resolved as one of done, retry, skip"):
            await kept.resolve("call-2", "maybe")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="Only a call that is done has a result"):
            await kept.resolve("call-2", "skip", result="paid")
        assert [call.id for call in kept.in_doubt] == ["call-2"]

    in_store(work)


class Shell(CodeExecutor):
    """A code executor that may wait for ever."""

    component_config_schema = BaseModel

    def __init__(self, *, hangs: bool) -> None:
        self.hangs = hangs
        self.began = asyncio.Event()
        self.ran = 0

    async def execute_code_blocks(self, code_blocks: Any, cancellation_token: Any) -> CodeResult:
        """Run it."""
        self.began.set()
        if self.hangs:
            await asyncio.sleep(600)
        self.ran += 1
        return CodeResult(exit_code=0, output="42")

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def restart(self) -> None:
        """Nothing to restart."""

    def coder(self) -> CodeExecutorAgent:
        """An agent that runs what its model writes."""

        def answer(messages: Any, tools: Any) -> str:
            code = "```python\nprint(42)\n```"
            return code if messages[-1].content == "Run it." else talk(messages)

        def approve(request: Any) -> ApprovalResponse:
            return ApprovalResponse(approved=True, reason="It is played.")

        return CodeExecutorAgent("coder", self, model_client=played(answer), approval_func=approve)


@pytest.mark.parametrize(("how", "ran"), [("done", 0), ("retry", 1), ("skip", 0)])
def test_code_in_doubt_is_resolved_too(how: Any, ran: int) -> None:
    """It is run like a tool."""

    async def work(store: AsyncStore) -> None:
        hangs = Shell(hangs=True)
        one = await autogen.keep(hangs.coder(), store, "it")
        task = TextMessage(content="Run it.", source="user", id="task-1")
        run = asyncio.create_task(one.run(task=task))
        await hangs.began.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        ((_, _, call, name, _),) = await listed(store)
        assert name == "code executor"
        result = "43" if how == "done" else None
        await resolve_call(store.scope, "state", "it", Resolution(call, how, result))
        shell = Shell(hangs=False)
        two = await autogen.keep(shell.coder(), store, "it", in_doubt="ask")
        messages = (await two.run(task=task)).messages
        assert shell.ran == ran
        output = {"done": "43", "retry": "42", "skip": SKIPPED}[how]
        assert output[-20:] in messages[-1].to_text()

    in_store(work)
