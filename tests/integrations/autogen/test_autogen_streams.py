"""What a kept agent or team of AutoGen has put out is what it puts out, in whatever process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent, UserProxyAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import (
    ModelClientStreamingChunkEvent,
    TextMessage,
    UserInputRequestedEvent,
)
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat
from autogen_core import FunctionCall, SingleThreadedAgentRuntime
from autogen_ext.models.replay import ReplayChatCompletionClient

import limpet
from limpet.integrations import autogen
from tests.support.autogen_teams import agent, look, played
from tests.support.processes import in_a_process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


class Cast:
    """Agents whose models say who they are: those of another process would say something else."""

    def __init__(self, who: str) -> None:
        self.who = who

    def says(self, messages: Sequence[Any], tools: Any) -> str:
        """A text that no other process says."""
        return f"{self.who} {len(messages)}"

    def looks(self, messages: Sequence[Any], tools: Any) -> Any:
        """A tool call, then a text."""
        if messages[-1].type == "FunctionExecutionResultMessage":
            return self.says(messages, tools)
        arguments = json.dumps({"text": self.says(messages, tools)})
        return [FunctionCall(id=f"{self.who}-{len(messages)}", name="look", arguments=arguments)]

    def talker(self, name: str) -> Any:
        """One who talks."""
        return agent(name, self.says)

    def looker(self, name: str) -> Any:
        """One who has a tool."""
        return agent(name, self.looks, tools=[look], reflect_on_tool_use=True)

    def person(self, name: str) -> Any:
        """One who is asked by a function."""
        return UserProxyAgent(name, input_func=lambda _: f"{self.who} says so")


def team(cast: Cast) -> RoundRobinGroupChat:
    """One who talks, one with a tool, and a person."""
    members = [cast.talker("anna"), cast.looker("ben"), cast.person("person")]
    return RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(6))


def graph(cast: Cast) -> GraphFlow:
    """Two at once, and one who waits for them."""
    left, right, end = cast.looker("left"), cast.talker("right"), cast.talker("end")
    start, builder = cast.talker("start"), DiGraphBuilder()
    for node in (start, left, right, end):
        builder.add_node(node)
    builder.add_edge(start, left).add_edge(start, right).add_edge(left, end).add_edge(right, end)
    builder.set_entry_point(start)
    return GraphFlow(builder.get_participants(), graph=builder.build())


def society(cast: Cast) -> SocietyOfMindAgent:
    """A team that looks like one agent."""
    inner = RoundRobinGroupChat(
        [cast.talker("poet"), cast.looker("editor")],
        termination_condition=MaxMessageTermination(5),
    )
    return SocietyOfMindAgent("society", inner, played(cast.says))


KINDS: dict[str, Callable[[Cast], Any]] = {
    "agent": lambda cast: cast.looker("ben"),
    "team": team,
    "graph": graph,
    "society": society,
}


async def heard(url: str, id: str, it: Any, path: Path | None, most: int = 0) -> list[str]:
    """What is put out. With number *most*, what came so far is in *path*, and the process dies."""
    found: list[str] = []
    task = TextMessage(content="Go.", source="user", id="task-1")
    async with limpet.open_async(url) as store:
        await autogen.keep(it, store, id, idempotent=["look"] if most % 2 else [])
        async for message in it.run_stream(task=task):
            if isinstance(message, TaskResult):
                assert [text(one) for one in message.messages] == found
                break
            found.append(text(message))
            if path is not None and len(found) == most:
                die(path, found)
    return found


def die(path: Path, found: list[str]) -> None:
    """End this process, with *found* in *path*."""
    path.write_text(json.dumps(found))
    os.kill(os.getpid(), signal.SIGKILL)


def text(message: Any) -> str:
    """What was said, and by whom."""
    return f"{message.source}: {message.to_text()}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_what_was_put_out_before_a_crash_is_put_out_after_it(kind: str, tmp_path: Path) -> None:
    """Who has read a message is not told another in its place."""
    made = KINDS[kind]
    url = f"sqlite:{tmp_path}/agents.db?durability=normal"
    whole = asyncio.run(heard("memory:", "it", made(Cast("one")), None))

    def dies(most: int) -> list[str]:
        path = tmp_path / str(most)
        run = heard(url, f"it {most}", made(Cast("one")), path, most)
        code, _ = in_a_process(lambda: asyncio.run(run))
        run.close()
        assert code == signal.SIGKILL
        return list(json.loads(path.read_text()))

    # A society whose run has ended says no more than its answer, for so it is with AutoGen.
    for most in range(1, len(whole) + (kind != "society")):
        before = dies(most)
        after = asyncio.run(heard(url, f"it {most}", made(Cast("two")), None, most))
        if kind == "graph":  # those who speak at once do so in any order
            assert Counter(before) <= Counter(after), most
        else:
            assert (before, after[:most]) == (whole[:most], before), most


def saves(it: Any, *, streamed: bool) -> int:
    """How many saves a run of *it* takes."""

    async def work() -> int:
        async with limpet.open_async("memory:") as store:
            await autogen.keep(it, store, "it")
            if streamed:
                assert [type(item) async for item in it.run_stream(task="Go.")][-1] is TaskResult
            else:
                await it.run(task="Go.")
            return len(await autogen.kept(it).state.history())

    return asyncio.run(work())


def test_what_is_put_out_costs_no_save_that_was_not_needed() -> None:
    """An answer waits for the save of its turn; a call of a tool, for one of its own at most."""

    def talk() -> Any:
        members = [Cast("one").talker(name) for name in ("anna", "ben", "cleo")]
        return RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(7))

    assert saves(talk(), streamed=False) == saves(talk(), streamed=True) == 8
    one = Cast("one")
    assert saves(one.talker("anna"), streamed=True) == 2
    assert saves(one.looker("ben"), streamed=False) == 4
    assert saves(one.looker("ben"), streamed=True) == 5


def test_pieces_of_an_answer_are_put_out_as_they_come() -> None:
    """They are no messages yet, and nobody waits for a save of them."""

    async def work() -> list[str]:
        async with limpet.open_async("memory:") as store:
            one = AssistantAgent(
                "anna", ReplayChatCompletionClient(["one two three"]), model_client_stream=True
            )
            members: list[Any] = [one]
            team = RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(2))
            await autogen.keep(team, store, "it")
            return [type(item).__name__ async for item in team.run_stream(task="Go.")]

    kinds = asyncio.run(work())
    assert kinds.count(ModelClientStreamingChunkEvent.__name__) > 1
    assert kinds[-2:] == ["TextMessage", "TaskResult"]


def test_a_person_is_told_that_he_is_asked_before_he_answers() -> None:
    """What is put out within a turn does not wait for its end."""

    async def work() -> list[str]:
        asked = asyncio.Event()

        async def answer(prompt: str, token: Any = None) -> str:
            await asked.wait()
            return "yes"

        async with limpet.open_async("memory:") as store:
            members: list[Any] = [UserProxyAgent("person", input_func=answer)]
            team = RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(2))
            await autogen.keep(team, store, "it")
            found = []
            async for item in team.run_stream(task="Go."):
                found.append(type(item).__name__)
                if isinstance(item, UserInputRequestedEvent):
                    asked.set()
            return found

    found = asyncio.run(asyncio.wait_for(work(), 60))
    assert found == ["TextMessage", "UserInputRequestedEvent", "TextMessage", "TaskResult"]


def test_a_team_on_a_runtime_of_ones_own_puts_out_what_is_durable(tmp_path: Path) -> None:
    """Its turns cannot be stopped; what was said in them is stored all the same."""

    async def work(who: str, most: int) -> list[str]:
        async with limpet.open_async(f"sqlite:{tmp_path}/agents.db") as store:
            runtime = SingleThreadedAgentRuntime()
            runtime.start()
            members: list[Any] = [Cast(who).talker("anna"), Cast(who).talker("ben")]
            team = RoundRobinGroupChat(
                members, runtime=runtime, termination_condition=MaxMessageTermination(5)
            )
            await autogen.keep(team, store, "it")
            found = []
            async for item in team.run_stream(task="Go."):
                found += [] if isinstance(item, TaskResult) else [text(item)]
                if len(found) == most:
                    die(tmp_path / "found", found)
            await runtime.stop_when_idle()
            return found

    assert in_a_process(lambda: asyncio.run(work("one", 3)))[0] == signal.SIGKILL
    before = json.loads((tmp_path / "found").read_text())
    assert len(before) == 3
    assert asyncio.run(work("two", 0))[:3] == before
