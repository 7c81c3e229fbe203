"""Kept agents of AutoGen within a task: what halts the task ends the run, and effects are steps."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent, UserProxyAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    RoundRobinGroupChat,
    SelectorGroupChat,
)
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core import FunctionCall
from autogen_core.tools import FunctionTool, StaticWorkbench

import limpet
from limpet.core.calls import all_in_doubt
from limpet.errors import (
    DeadlinePassed,
    LeaseLost,
    StoreUnavailable,
    TaskCancelled,
    TaskNotOpen,
    TaskWaiting,
)
from limpet.integrations import autogen
from limpet.llm.messages.repair import INTERRUPTED
from limpet.testing.boundaries import Boundaries
from tests.support.autogen_teams import agent, calling, played, talk
from tests.support.processes import in_a_process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from limpet.store import AsyncStore


def in_turn(*tools: str) -> Any:
    """A model that calls *tools*, one after the other, then says that it is done."""

    def answer(messages: Sequence[Any], _: Any) -> str | list[FunctionCall]:
        since = [message.type for message in messages]
        done = since.count("FunctionExecutionResultMessage")
        if done == len(tools):
            return "All is DONE."
        return [
            FunctionCall(id=f"{name}-{done}", name=name, arguments="{}")
            for name in tools[done].split("+")
        ]

    return answer


def clerk(tools: list[Any], *names: str) -> AssistantAgent:
    """An agent that calls *tools* in the order of their *names*."""
    return agent("clerk", in_turn(*names), tools=tools, max_tool_iterations=5)


def done() -> Any:
    """That one of a team is done."""
    return TextMentionTermination("DONE") | MaxMessageTermination(20)


def team_of(*members: Any, **options: Any) -> RoundRobinGroupChat:
    """A team that ends when somebody is done."""
    return RoundRobinGroupChat(list(members), termination_condition=done(), **options)


def handing(one: Any) -> AssistantAgent:
    """An agent whose tool *one* is: an agent, or a team."""
    tool: Any
    if isinstance(one, AssistantAgent):
        tool = AgentTool(one, return_value_as_last_message=True)
    else:
        tool = TeamTool(one, one.name, "Go.", return_value_as_last_message=True)
    asks = [FunctionCall(id="ask", name=one.name, arguments=json.dumps({"task": "Go."}))]

    def answer(messages: Sequence[Any], _: Any) -> Any:
        return asks if messages[-1].type == "UserMessage" else "All is DONE."

    return agent("boss", answer, tools=[tool], reflect_on_tool_use=True)


def graph_of(start: Any, *others: Any) -> GraphFlow:
    """A team in which all others speak at once when one has spoken."""
    builder = DiGraphBuilder().add_node(start)
    for other in others:
        builder.add_node(other).add_edge(start, other)
    return GraphFlow(builder.get_participants(), graph=builder.build())


#: Where the agent with the tools may sit.
PLACES: dict[str, Callable[[Any], Any]] = {
    "agent": lambda one: one,
    "team": lambda one: team_of(agent("anna"), one),
    "team within a team": lambda one: team_of(
        team_of(agent("anna"), one, name="inner"), agent("cleo")
    ),
    "society": lambda one: SocietyOfMindAgent(
        "society", team_of(one), played(lambda *_: "DONE, too.")
    ),
    "society in a team": lambda one: team_of(
        SocietyOfMindAgent("society", team_of(one), played(lambda *_: "DONE, too."))
    ),
    "graph": lambda one: graph_of(agent("start"), one, agent("ben")),
    "tool": handing,
}


class Gate:
    """Tools for a payment that somebody has to approve, and how often each was called."""

    def __init__(self) -> None:
        self.task: Any = None
        self.calls: list[str] = []

    async def approve(self) -> str:
        """Wait for an approval."""
        self.calls.append("approve")
        return str(await self.task.wait_for("approval"))

    async def pay(self) -> str:
        """Pay."""
        self.calls.append("pay")
        return str(await self.task.step("pay", lambda: "paid"))

    async def look(self) -> str:
        """Look something up."""
        self.calls.append("look")
        await asyncio.sleep(0.01)
        return "seen"

    async def run(self, store: AsyncStore, place: str, *names: str) -> Any:
        """What an agent that calls *names* comes to, in a process of its own for all it knows."""
        one = clerk([self.approve, self.pay, self.look], *names)
        self.it = PLACES[place](one)
        async with store.task("t", goal="g") as self.task:
            await autogen.keep(self.it, store, "it")
            return await self.it.run(task="Go.")


def in_store(work: Callable[[AsyncStore], Any]) -> None:
    """Do *work* with a store; AutoGen must not wait for ever."""

    async def main() -> None:
        async with limpet.open_async("memory:") as store:
            await asyncio.wait_for(work(store), 300)

    asyncio.run(main())


@pytest.mark.parametrize("place", list(PLACES))
def test_a_task_that_waits_ends_the_run_and_the_call_is_made_again(place: str) -> None:
    """A gate is not passed because AutoGen makes a text of what it raises."""

    async def work(store: AsyncStore) -> None:
        first, second = Gate(), Gate()
        with pytest.raises(TaskWaiting, match="waits for the signal 'approval'"):
            await first.run(store, place, "approve", "pay")
        kept = autogen.kept(first.it)
        assert kept.unfinished
        assert not kept.in_doubt
        assert not first.task.results
        await store.signal("t", "approval", "yes")
        result = await second.run(store, place, "approve", "pay")
        assert any("DONE" in message.to_text() for message in result.messages)
        assert second.calls == ["approve", "pay"]
        assert second.task.results["pay"] == "paid"
        assert not autogen.kept(second.it).repairs
        assert "waits for" not in json.dumps(await second.it.save_state())

    in_store(work)


@pytest.mark.parametrize("place", ["agent", "team"])
def test_tools_beside_the_one_that_waits_come_to_their_end(place: str) -> None:
    """What they have done is kept, and they are not run again."""

    async def work(store: AsyncStore) -> None:
        first, second = Gate(), Gate()
        with pytest.raises(TaskWaiting):
            await first.run(store, place, "look+look+approve", "pay")
        assert first.calls == ["look", "look", "approve"]
        await store.signal("t", "approval", "yes")
        await second.run(store, place, "look+look+approve", "pay")
        assert second.calls == ["approve", "pay"]
        assert not autogen.kept(second.it).repairs

    in_store(work)


def test_nothing_that_was_not_is_put_out() -> None:
    """Who listens is not told of results that no tool has given."""

    async def work(store: AsyncStore) -> None:
        for place in ("agent", "team"):
            heard: list[str] = []
            gate = Gate()
            it = await autogen.keep(PLACES[place](clerk([gate.approve], "approve")), store, place)

            async def listen(it: Any = it, gate: Gate = gate, heard: list[Any] = heard) -> None:
                async with store.task(it.name, goal="g") as gate.task:
                    async for message in it.run_stream(task="Go."):
                        heard.append(type(message).__name__)  # noqa: PERF401 - it ends with an error

            with pytest.raises(TaskWaiting):
                await listen()
            assert heard[-1] == "ToolCallRequestEvent"

    in_store(work)


HALTS: list[BaseException] = [
    TaskCancelled("It was cancelled.", "t"),
    LeaseLost("Another has it."),
    DeadlinePassed("Too late."),
    TaskNotOpen("It is not open."),
]


def raising(error: BaseException) -> Any:
    """A tool that raises *error*."""

    async def fail() -> str:
        """Fail."""
        raise error

    return fail


@pytest.mark.parametrize("place", list(PLACES))
def test_every_error_that_is_not_the_tools_ends_the_run(place: str) -> None:
    """So it does in a group of errors, or as what another came of; those of a tool are told."""

    async def run(store: AsyncStore, error: BaseException) -> Any:
        it = PLACES[place](clerk([raising(error)], "fail"))
        await autogen.keep(it, store, "it", component=False)
        return await it.run(task="Go.")

    async def work(store: AsyncStore) -> None:
        wrapped = ValueError("It failed.")
        wrapped.__cause__ = HALTS[0]
        for error in (*HALTS, BaseExceptionGroup("both", [ValueError("x"), HALTS[1]]), wrapped):
            with pytest.raises(tuple(map(type, HALTS))) as raised:
                await run(store, error)
            assert raised.value in HALTS
        assert await run(store, ValueError("It failed."))

    in_store(work)


def test_a_person_who_is_waited_for_ends_the_run() -> None:
    """Whoever asks by a task, a person or a function that chooses, is not asked by AutoGen."""

    def teams(task: Any) -> list[Any]:
        async def ask(prompt: str, token: Any = None) -> str:
            return str(await task.wait_for("approval"))

        async def choose(messages: Any) -> str:
            return str(await task.wait_for("approval"))

        members: list[Any] = [agent("anna", lambda *_: "DONE"), agent("ben")]
        chosen = SelectorGroupChat(
            members, played(talk), selector_func=choose, termination_condition=done()
        )
        asked = team_of(UserProxyAgent("person", input_func=ask))
        other = team_of(UserProxyAgent("person", input_func=ask), name="people")
        return [asked, chosen, handing(other)]

    async def work(store: AsyncStore) -> None:
        async def run(number: int) -> Any:
            async with store.task(f"t{number}", goal="g") as task:
                it = await autogen.keep(teams(task)[number], store, f"it{number}")
                return await it.run(task="Go.")

        for number, answer in enumerate(("DONE", "anna", "DONE")):
            with pytest.raises(TaskWaiting):
                await run(number)
            await store.signal(f"t{number}", "approval", answer)
            assert (await run(number)).messages

    in_store(work)


def test_a_workbench_that_raises_ends_the_run() -> None:
    """AutoGen would wait for ever; and the call is in doubt."""

    class Bench(StaticWorkbench):
        async def call_tool(self, *args: Any, **options: Any) -> Any:
            raise ConnectionError("The server is away.")

    async def work(store: AsyncStore) -> None:
        bench = Bench([FunctionTool(raising(ValueError()), "Pay", name="pay")])
        it = AssistantAgent("clerk", played(in_turn("pay")), workbench=bench)
        await autogen.keep(it, store, "it", component=False)
        with pytest.raises(ConnectionError, match="The server is away"):
            await it.run(task="Go.")
        assert [call.name for call in autogen.kept(it).in_doubt] == ["pay"]

    in_store(work)


# -- effects ---------------------------------------------------------------------------------------


class Till:
    """A tool that pays and is an effect; it may die when it has paid."""

    def __init__(self, path: Path, *, dies: bool = False, sync: bool = False, **how: Any) -> None:
        self.path = path

        def paid(text: str) -> str:
            with path.open("a") as file:
                file.write(f"{text}\n")
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            return f"paid {text}"

        async def pay(text: str) -> str:
            """Pay."""
            return paid(text)

        def pay_sync(text: str) -> str:
            """Pay."""
            return paid(text)

        pay_sync.__name__ = "pay"
        self.pay = limpet.effect(**how)(pay_sync if sync else pay)

    async def run(
        self, store: AsyncStore, place: str = "agent", id: str = "it", **options: Any
    ) -> str:
        """What the agent that pays says in the end."""
        one = agent("clerk", calling("pay"), tools=[self.pay], reflect_on_tool_use=True)
        it = one if place == "agent" else team_of(one, agent("ben", lambda *_: "DONE"))
        await autogen.keep(it, store, id, **options)
        result = await it.run(task=TextMessage(content="Go.", source="user", id="task-1"))
        said = [m.to_text() for m in result.messages if m.source == "clerk"]
        assert not autogen.kept(it).repairs
        return str(said[-1])


async def in_task(url: str, till: Till, kill_at: int | None = None, **options: Any) -> list[Any]:
    """What a process comes to; a waiting task is told."""
    async with limpet.open_async(url) as store:
        boundaries = Boundaries(store.backend, kill_at)
        try:
            async with store.task("t", goal="g") as task:
                said = await till.run(store, **options)
                steps = list(task.results)
                await task.finish("done")
        except TaskWaiting as waiting:
            return [waiting.waits_for, [], boundaries.passed]
        return [said, steps, boundaries.passed]


@pytest.mark.slow
@pytest.mark.parametrize("in_doubt", ["skip", "drop", "ask", "retry"])
def test_an_effect_that_was_cut_short_follows_its_own_policy(tmp_path: Path, in_doubt: Any) -> None:
    """Whatever the rule for other tools: the step knows, or verifies, or a person says."""

    def killed(name: str, **how: Any) -> tuple[str, Path]:
        url, path = f"sqlite:{tmp_path}/{name}.db?durability=normal", tmp_path / name
        till = Till(path, dies=True, **how)
        code, _ = in_a_process(lambda: asyncio.run(in_task(url, till, in_doubt=in_doubt)))
        assert code == signal.SIGKILL
        return url, path

    def goes_on(url: str, till: Till) -> Any:
        return asyncio.run(in_task(url, till, in_doubt=in_doubt))[0]

    async def says(url: str, step: str) -> None:
        async with limpet.open_async(url) as store:
            await store.resolve("t", step, "done", result="paid, says Ann")

    for sync in (False, True):
        url, path = killed(f"ask-{sync}", sync=sync)
        till = Till(path, sync=sync)
        assert goes_on(url, till) == "pay:call-2"
        asyncio.run(says(url, "pay:call-2"))
        assert goes_on(url, till) == "The tool says paid, says Ann"
        assert path.read_text() == "n2\n"
    url, path = killed("verify", verify=lambda key: "paid before")
    till = Till(path, verify=lambda key: f"paid as {key.rpartition(':')[2]}")
    assert goes_on(url, till) == "The tool says paid as call-2"
    assert path.read_text() == "n2\n"
    url, path = killed("retry", in_doubt="retry")
    assert goes_on(url, Till(path, in_doubt="retry")) == "The tool says paid n2"
    assert path.read_text() == "n2\nn2\n"
    url, path = killed("skip", in_doubt="skip")
    assert goes_on(url, Till(path, in_doubt="skip")) == f"The tool says {INTERRUPTED}"
    assert path.read_text() == "n2\n"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["agent", "team"])
def test_killed_at_every_write_an_effect_is_made_once(tmp_path: Path, place: str) -> None:
    """That of the task and that of the agent are two stores' worth of writes, in any order."""

    def till(number: int) -> Till:
        path = tmp_path / str(number)
        return Till(path, verify=lambda _: "paid n2" if path.exists() else None)

    def process(number: int, kill_at: int | None) -> tuple[int, Any]:
        url = f"sqlite:{tmp_path}/{number}.db?durability=normal"
        return in_a_process(lambda: asyncio.run(in_task(url, till(number), kill_at, place=place)))

    _, (said, steps, passed) = process(0, None)
    assert (said, steps) == ("The tool says paid n2", ["pay:call-2"])
    for number, moment in enumerate(passed, 1):
        if "before" in moment and number > 1:
            continue  # as after the one before
        assert process(number, number)[0] == signal.SIGKILL, moment
        if "finish" not in moment and number < len(passed) - 1:
            assert process(number, None)[1][:2] == [said, steps], moment
        assert (tmp_path / str(number)).read_text() == "n2\n", moment


def test_a_model_that_counts_from_one_again_makes_two_calls(tmp_path: Path) -> None:
    """Steps of effects are told apart, though their ids and arguments are the same."""

    async def work(store: AsyncStore) -> None:
        till = Till(tmp_path / "paid")
        steps: list[str] = []
        for turn in (1, 2):
            tool = FunctionTool(till.pay, "Pay.")  # of two agents, in two processes
            members: list[Any] = [
                agent(name, again, tools=[tool], reflect_on_tool_use=True)
                for name in ("ann", "ben")
            ]
            async with store.task("t", goal="g") as task:
                team = RoundRobinGroupChat(members, max_turns=2)
                await autogen.keep(team, store, "it")
                await team.run(task=f"Go {turn}.")
                steps = list(task.results)
        assert steps == ["pay:1", "pay:1#2", "pay:1#3", "pay:1#4"]
        assert till.path.read_text() == "x\n" * 4

    def again(messages: Sequence[Any], _: Any) -> Any:
        if messages[-1].type == "FunctionExecutionResultMessage":
            return "Paid."
        return [FunctionCall(id="1", name="pay", arguments='{"text": "x"}')]

    in_store(work)


def test_an_effect_in_doubt_is_its_tasks_to_say(tmp_path: Path) -> None:
    """Without that task nothing is made up, and nothing is done twice."""
    url, path = f"sqlite:{tmp_path}/a.db?durability=normal", tmp_path / "paid"
    till = Till(path, dies=True)
    assert in_a_process(lambda: asyncio.run(in_task(url, till)))[0] == signal.SIGKILL

    async def work() -> None:
        async with limpet.open_async(url) as store:
            (found,) = await all_in_doubt(store.scope)
            assert (found.kind, found.id, found.call.id) == ("task", "t", "pay:call-2")
            with pytest.raises(TaskNotOpen, match="begun as step 'pay:call-2' of task 't'"):
                await Till(path).run(store)
            with pytest.raises(TaskNotOpen, match="begun as step 'pay:call-2' of task 't'"):
                async with store.task("other", goal="g"):
                    await Till(path).run(store)

    asyncio.run(work())
    assert path.read_text() == "n2\n"


def test_an_effect_is_told_what_its_function_raised_and_no_more(tmp_path: Path) -> None:
    """What the store cannot take is the program's to know: a model would pay again."""

    async def work(store: AsyncStore) -> None:
        class Broken(Till):
            def __init__(self, error: Exception) -> None:
                super().__init__(tmp_path / "paid")

                @limpet.effect
                async def pay(text: str) -> str:
                    """Pay."""
                    raise error

                self.pay = pay

        async with store.task("t", goal="g") as task:
            assert "It failed." in await Broken(ValueError("It failed.")).run(store)

            async def away(*args: Any, **options: Any) -> None:
                raise StoreUnavailable("The store is away.")

            task.runner.record_result = away  # type: ignore[method-assign]
            with pytest.raises(StoreUnavailable, match="The store is away"):
                await Till(tmp_path / "paid").run(store, id="other")
            del task.runner.record_result

    in_store(work)


def test_a_tool_that_is_let_go_is_as_it_was(tmp_path: Path) -> None:
    """Nothing of ours stays in the tools of an agent that is no longer kept."""

    async def work(store: AsyncStore) -> None:
        till = Till(tmp_path / "paid")
        one = agent("clerk", tools=[till.pay])
        before = one._workbench[0]
        await autogen.keep(one, store, "it")
        autogen.kept(one).release()
        assert one._workbench[0] is before
        assert before._tools[0]._func is till.pay  # type: ignore[attr-defined]
        assert "_format_errors" not in vars(before)
        assert "on_messages_stream" not in vars(one)

    in_store(work)
