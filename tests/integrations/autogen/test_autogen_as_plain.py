"""Scenario by scenario: a kept agent or team does what a plain one of AutoGen's does.

Each scenario is played twice, with what AutoGen made and with the same kept. What was said, what
was raised, by whom and in which order, and what the agents know in the end must be equal.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import Response, TaskResult, TerminationCondition
from autogen_agentchat.conditions import (
    ExternalTermination,
    HandoffTermination,
    MaxMessageTermination,
    TextMentionTermination,
)
from autogen_agentchat.messages import HandoffMessage, StructuredMessage, TextMessage
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core import CancellationToken, FunctionCall, SingleThreadedAgentRuntime
from pydantic import BaseModel

import limpet
from limpet.integrations import autogen
from tests.support.autogen_teams import agent, played, talk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from autogen_agentchat.base import ChatAgent, Team

    Keep = Callable[[Any], Awaitable[Any]]
    Scenario = Callable[[Keep], Awaitable[Any]]

SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str) -> Callable[[Scenario], Scenario]:
    """Add one to the table."""

    def add(play: Scenario) -> Scenario:
        assert name not in SCENARIOS
        return SCENARIOS.setdefault(name, play)

    return add


async def as_it_is(it: Any) -> Any:
    """In place of keeping it."""
    return it


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The table is complete when this file has been read."""
    if "play" in metafunc.fixturenames:
        metafunc.parametrize("play", list(SCENARIOS.values()), ids=list(SCENARIOS))


def test_a_kept_one_does_what_a_plain_one_does(play: Scenario) -> None:
    """Whoever keeps an agent or a team learns no new behaviour, and loses none."""

    async def main() -> None:
        plain = await asyncio.wait_for(play(as_it_is), 30)
        async with limpet.open_async("memory:") as store:
            numbers = iter(range(100))

            async def keep(it: Any) -> Any:
                return await autogen.keep(it, store, f"it-{next(numbers)}")

            assert await asyncio.wait_for(play(keep), 30) == plain

    asyncio.run(main())


# -- what is compared ------------------------------------------------------------------------------


def said(message: Any) -> str:
    """What a message says, and who says it."""
    if isinstance(message, TaskResult):
        return f"result of {len(message.messages)}: {message.stop_reason}"
    return f"{type(message).__name__} of {message.source}: {message.to_text()}"


def raised(error: BaseException) -> str:
    """The type of an error, and how it begins: the rest may be a traceback."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


async def outcome(work: Awaitable[Any]) -> Any:
    """What came of it."""
    try:
        result = await work
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is compared
        return raised(error)
    if isinstance(result, TaskResult):
        return [*map(said, result.messages), result.stop_reason]
    return result


async def pieces(it: Any, **options: Any) -> list[str]:
    """What a stream puts out, and how it ends."""
    found: list[str] = []
    try:
        async with aclosing(it.run_stream(**options)) as stream:
            async for item in stream:
                found.append(said(item))  # noqa: PERF401 - what came before an error is found too
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is compared
        found.append(raised(error))
    return found


async def known(it: Any) -> Any:
    """What it knows, but for what is new each time."""

    def slim(value: Any) -> Any:
        if isinstance(value, dict):
            new = ("id", "created_at")
            return {name: slim(item) for name, item in value.items() if name not in new}
        return [slim(item) for item in value] if isinstance(value, list) else value

    return slim(json.loads(json.dumps(await it.save_state(), default=str)))


# -- what is played --------------------------------------------------------------------------------


def call_once(tool: str) -> Any:
    """A model that calls *tool* when it is first asked, and talks from then on."""
    calls = iter([[FunctionCall(id="call-1", name=tool, arguments="{}")]])

    def answer(messages: Sequence[Any], tools: Any) -> Any:
        return next(calls, None) or talk(messages)

    return answer


def failing(*turns: int) -> Any:
    """A model that fails when it is asked for these times."""
    asked = iter(range(1, 100))

    def answer(messages: Sequence[Any], tools: Any) -> str:
        if next(asked) in turns:
            raise OSError("the line is dead")
        return talk(messages)

    return answer


def trio(most: int = 4, **options: Any) -> RoundRobinGroupChat:
    """Three in turn."""
    options.setdefault("termination_condition", MaxMessageTermination(most))
    return RoundRobinGroupChat([agent(name) for name in ("anna", "ben", "cleo")], **options)


def with_tool(tool: Any) -> RoundRobinGroupChat:
    """A team, the second of which calls *tool*."""
    ben = agent("ben", call_once(tool.__name__), tools=[tool], max_tool_iterations=3)
    return RoundRobinGroupChat([agent("anna"), ben], termination_condition=MaxMessageTermination(6))


class Waiting:
    """A tool that waits until it is let go on."""

    def __init__(self) -> None:
        self.is_running, self.go_on = asyncio.Event(), asyncio.Event()

    async def wait(self) -> str:
        """Wait."""
        self.is_running.set()
        await self.go_on.wait()
        return "waited"


class Own(BaseChatAgent):
    """An agent of the user's own, which does what a function says."""

    def __init__(self, name: str, act: Callable[..., Awaitable[str]]) -> None:
        super().__init__(name, "It acts.")
        self.act = act

    @property
    def produced_message_types(self) -> Sequence[type[Any]]:
        """Text."""
        return (TextMessage,)

    async def on_messages(self, messages: Sequence[Any], cancellation_token: Any) -> Response:
        """What the function says."""
        text = await self.act(self, messages)
        return Response(chat_message=TextMessage(content=text, source=self.name))

    async def on_reset(self, cancellation_token: Any) -> None:
        """It knows nothing."""


# -- a team that is running ------------------------------------------------------------------------


async def during(keep: Keep, act: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """What comes of *act* while a team runs, and then of the run, and of another."""
    tool = Waiting()
    team = await keep(with_tool(tool.wait))
    run = asyncio.create_task(team.run(task="Go."))
    await tool.is_running.wait()
    acted = await outcome(act(team))
    tool.go_on.set()
    ended = await outcome(run)
    return [acted, ended, await known(team), await outcome(team.run(task="Again."))]


@scenario("a second run")
async def _(keep: Keep) -> Any:
    return await during(keep, lambda team: team.run(task="Me too."))


@scenario("a second run without a task")
async def _(keep: Keep) -> Any:
    return await during(keep, lambda team: team.run())


@scenario("a second run of a wrong task")
async def _(keep: Keep) -> Any:
    return await during(keep, lambda team: team.run(task=17))


@scenario("a second stream")
async def _(keep: Keep) -> Any:
    return await during(keep, lambda team: pieces(team, task="Me too."))


@scenario("a reset while it runs")
async def _(keep: Keep) -> Any:
    return await during(keep, lambda team: team.reset())


@scenario("a load while it runs")
async def _(keep: Keep) -> Any:
    state = await trio().save_state()
    return await during(keep, lambda team: team.load_state(state))


@scenario("a save while it runs")
async def _(keep: Keep) -> Any:
    return await during(keep, known)


@scenario("a second run that is cancelled")
async def _(keep: Keep) -> Any:
    async def act(team: Any) -> Any:
        second = asyncio.create_task(team.run(task="Me too."))
        await asyncio.sleep(0)
        second.cancel()
        return await outcome(second)

    return await during(keep, act)


@scenario("another run after one that was cancelled, on a runtime of the user's")
async def _(keep: Keep) -> Any:
    speaks, go_on = asyncio.Event(), asyncio.Event()

    async def act(_: Any, messages: Sequence[Any]) -> str:
        speaks.set()
        await go_on.wait()
        return "Done."

    runtime = SingleThreadedAgentRuntime()
    runtime.start()
    own: list[ChatAgent | Team] = [Own(name, act) for name in ("anna", "ben")]
    team = await keep(RoundRobinGroupChat(own, max_turns=20, runtime=runtime))
    found = []
    for task, token in (("A.", CancellationToken()), (None, None)):
        run = asyncio.create_task(team.run(task=task, cancellation_token=token))
        await speaks.wait()
        if token is not None:
            token.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)  # who speaks comes to an end first
        ended = await outcome(run)
        found.append(ended if isinstance(ended, str) else ended[-1])
    await runtime.stop_when_idle()
    return found


@scenario("two runs at once")
async def _(keep: Keep) -> Any:
    team = await keep(trio())
    return await asyncio.gather(outcome(team.run(task="A.")), outcome(team.run(task="B.")))


@scenario("a run and a reset at once")
async def _(keep: Keep) -> Any:
    team = await keep(trio())
    return await asyncio.gather(outcome(team.run(task="A.")), outcome(team.reset()))


@scenario("two resets at once")
async def _(keep: Keep) -> Any:
    team = await keep(trio())
    await team.run(task="A.")
    found = await asyncio.gather(outcome(team.reset()), outcome(team.reset()))
    return [found, await known(team)]


@scenario("a run by who listens")
async def _(keep: Keep) -> Any:
    team, found = await keep(trio()), []
    async for item in team.run_stream(task="Go."):
        found.append(said(item))
        if not isinstance(item, TaskResult):  # by then a kept one is ready for more
            found.append(await outcome(team.run(task="Me too.")))
            found.append(await outcome(team.reset()))
    return [found, await known(team)]


async def from_a_tool(keep: Keep, act: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """What comes of *act* in a tool of the team's, and of the run."""
    there: list[Any] = []

    async def use() -> str:
        """Use the team."""
        there.append(await outcome(act(team)))
        return str(there[0])

    team = await keep(with_tool(use))
    return [await outcome(team.run(task="Go.")), there, await known(team)]


@scenario("a run by its own tool")
async def _(keep: Keep) -> Any:
    return await from_a_tool(keep, lambda team: team.run(task="Me too."))


@scenario("a stream by its own tool")
async def _(keep: Keep) -> Any:
    return await from_a_tool(keep, lambda team: pieces(team, task="Me too."))


@scenario("a reset by its own tool")
async def _(keep: Keep) -> Any:
    return await from_a_tool(keep, lambda team: team.reset())


@scenario("a load by its own tool")
async def _(keep: Keep) -> Any:
    state = await trio().save_state()
    return await from_a_tool(keep, lambda team: team.load_state(state))


@scenario("a run by its own member")
async def _(keep: Keep) -> Any:
    there: list[Any] = []

    async def act(own: Any, messages: Any) -> str:
        there.append(await outcome(team.run(task="Me too.")))
        there.append(await outcome(team.reset()))
        return "Acted."

    team = await keep(RoundRobinGroupChat([agent("anna"), Own("own", act)], max_turns=2))
    return [await outcome(team.run(task="Go.")), there, await known(team)]


@scenario("a run by the choice of a speaker")
async def _(keep: Keep) -> Any:
    there: list[Any] = []

    async def choose(messages: Any) -> str:
        there.append(await outcome(team.run(task="Me too.")))
        return "anna"

    team = await keep(choosing(choose))
    return [await outcome(team.run(task="Go.")), there, await known(team)]


# -- tasks that are refused ------------------------------------------------------------------------


class Fact(BaseModel):
    """What an own type of message has."""

    fact: str


WRONG_TASKS: dict[str, Any] = {
    "a number": 17,
    "a tuple": (TextMessage(content="Go.", source="user"),),
    "an empty list": [],
    "a list of numbers": [17],
    "a dict": {"content": "Go."},
    "bytes": b"Go.",
    "a class": TextMessage,
    "an unknown type": StructuredMessage[Fact](content=Fact(fact="x"), source="user"),
}


def _refused(task: Any) -> Scenario:
    async def play(keep: Keep) -> Any:
        team = await keep(trio())
        first = await outcome(team.run(task=task))
        stream = await pieces(team, task=task)
        return [first, stream, await outcome(team.run(task="Go.")), await known(team)]

    return play


def _refused_by_an_agent(task: Any) -> Scenario:
    async def play(keep: Keep) -> Any:
        one = await keep(agent("anna"))
        first = await outcome(one.run(task=task))
        return [first, await outcome(one.run(task="Go.")), await known(one)]

    return play


for what, wrong in WRONG_TASKS.items():
    scenario(f"the task is {what}")(_refused(wrong))
    scenario(f"the task of an agent is {what}")(_refused_by_an_agent(wrong))


def handing(*, to: str = "ben", **options: Any) -> Swarm:
    """A swarm whose first hands over."""

    def hand_over(messages: Sequence[Any], tools: Any) -> Any:
        return [FunctionCall(id=f"h{len(messages)}", name=f"transfer_to_{to}", arguments="{}")]

    anna = agent("anna", hand_over, handoffs=[to])
    condition = MaxMessageTermination(3) | HandoffTermination("user")
    return Swarm([anna, agent("ben")], termination_condition=condition, **options)


@scenario("a handoff to nobody")
async def _(keep: Keep) -> Any:
    team = await keep(handing())
    nobody = HandoffMessage(content="You.", source="user", target="nobody")
    first = await outcome(team.run(task=nobody))
    after = await known(team)
    second = await pieces(team, task=nobody)
    return [first, after, second, await outcome(team.run(task="Go.")), await known(team)]


@scenario("a handoff to nobody after a run")
async def _(keep: Keep) -> Any:
    team = await keep(handing())
    before = await outcome(team.run(task="Go."))
    nobody = HandoffMessage(content="You.", source="user", target="nobody")
    first = await outcome(team.run(task=nobody))
    return [before, first, await outcome(team.run(task="On.")), await known(team)]


@scenario("a handoff to nobody after a state was loaded")
async def _(keep: Keep) -> Any:
    other = handing()
    await other.run(task="Before.")
    team = await keep(handing())
    await team.load_state(await other.save_state())
    nobody = HandoffMessage(content="You.", source="user", target="nobody")
    first = await outcome(team.run(task=nobody))
    return [first, await known(team), await outcome(team.run(task="On.")), await known(team)]


@scenario("a swarm that waits for a person")
async def _(keep: Keep) -> Any:
    team = await keep(handing(to="user"))
    found = [await outcome(team.run(task="Go."))]
    found.append(await outcome(team.run(task="Not a handoff.")))
    found.append(await outcome(team.run()))
    back = HandoffMessage(content="Here.", source="user", target="ben")
    found.append(await outcome(team.run(task=back)))
    return [found, await known(team)]


@scenario("an orchestrator without a task")
async def _(keep: Keep) -> Any:
    team = await keep(MagenticOneGroupChat([agent("anna")], model_client=played()))
    return (await outcome(team.run())).partition(":")[0]


# -- errors ----------------------------------------------------------------------------------------


def choosing(choose: Any, **options: Any) -> SelectorGroupChat:
    """Two, of whom a function chooses the next."""
    return SelectorGroupChat(
        [agent("anna"), agent("ben")],
        model_client=played(),
        selector_func=choose,
        termination_condition=MaxMessageTermination(3),
        **options,
    )


def wrong_choice(at: int, error: Exception | None) -> Any:
    """A choice that fails the time *at*, by an *error* or by naming a stranger."""
    times = iter(range(1, 100))

    def choose(messages: Any) -> str:
        if next(times) != at:
            return "anna"
        if error is not None:
            raise error
        return "stranger"

    return choose


def _chosen(at: int, error: Exception | None, *, is_streamed: bool, **options: Any) -> Scenario:
    async def play(keep: Keep) -> Any:
        team = await keep(choosing(wrong_choice(at, error), **options))
        run = pieces(team, task="Go.") if is_streamed else outcome(team.run(task="Go."))
        return [await run, await known(team)]

    return play


for is_streamed in (False, True):
    for at, when in ((1, "first"), (2, "second")):
        for error, what in ((KeyError("x"), "fails"), (None, "is a stranger")):
            played_so = _chosen(at, error, is_streamed=is_streamed)
            scenario(f"the {when} choice {what}{' in a stream' * is_streamed}")(played_so)
scenario("the first choice fails with team events")(
    _chosen(1, RuntimeError("x"), is_streamed=True, emit_team_events=True)
)


@scenario("a run goes on after the first choice failed")
async def _(keep: Keep) -> Any:
    team = await keep(choosing(wrong_choice(1, OSError("x"))))
    first = await outcome(team.run(task="Go."))
    found = await outcome(team.run())
    return [first, found[-2:], await known(team)]


@scenario("the model that chooses fails")
async def _(keep: Keep) -> Any:
    members: list[Any] = [agent("anna"), agent("ben")]
    team = await keep(SelectorGroupChat(members, model_client=played(failing(1))))
    return [await outcome(team.run(task="Go.")), await known(team)]


@scenario("the model that plans fails")
async def _(keep: Keep) -> Any:
    team = await keep(MagenticOneGroupChat([agent("anna")], model_client=played(failing(1))))
    return await pieces(team, task="Go.")


@scenario("the first ledger fails")
async def _(keep: Keep) -> Any:
    team = await keep(MagenticOneGroupChat([agent("anna")], model_client=played(failing(3))))
    return await pieces(team, task="Go.")


@scenario("a member fails")
async def _(keep: Keep) -> Any:
    team = await keep(RoundRobinGroupChat([agent("a"), agent("b", failing(1))], max_turns=2))
    return await pieces(team, task="Go.")


@scenario("the model of an agent fails")
async def _(keep: Keep) -> Any:
    one = await keep(agent("anna", failing(1)))
    first = await outcome(one.run(task="Go."))
    return [first, await outcome(one.run(task="Again.")), await known(one)]


class Strict(TerminationCondition):
    """A condition that fails."""

    terminated = False

    def __init__(self, at: int) -> None:
        self.left = at

    async def __call__(self, messages: Any) -> None:
        """Fail when it is time."""
        self.left -= 1
        if self.left == 0:
            raise LookupError("no such thing")

    async def reset(self) -> None:
        """It counts on."""


def _condition(at: int) -> Scenario:
    async def play(keep: Keep) -> Any:
        team = await keep(trio(termination_condition=Strict(at), max_turns=2))
        return await outcome(team.run(task="Go."))

    return play


for at, when in ((1, "at the start"), (2, "after a turn")):
    scenario(f"the condition fails {when}")(_condition(at))


# -- how a run ends --------------------------------------------------------------------------------


@scenario("a run that was stopped before it began")
async def _(keep: Keep) -> Any:
    stop = ExternalTermination()
    team = await keep(trio(termination_condition=stop | MaxMessageTermination(3)))
    stop.set()
    first = await pieces(team, task="Go.")
    return [first, await pieces(team, task="Again."), await known(team)]


@scenario("a condition that is met by the task")
async def _(keep: Keep) -> Any:
    team = await keep(trio(termination_condition=TextMentionTermination("STOP")))
    first = await pieces(team, task="STOP now.")
    return [first, await known(team), await pieces(team, task="STOP again.")]


@scenario("turns that go on without a task")
async def _(keep: Keep) -> Any:
    team = await keep(trio(termination_condition=None, max_turns=2))
    found = [await pieces(team, task="Go."), await pieces(team), await pieces(team)]
    return [found, await known(team)]


@scenario("a first run without a task")
async def _(keep: Keep) -> Any:
    team = await keep(trio(termination_condition=None, max_turns=2))
    return [await pieces(team), await known(team)]


@scenario("a run without its task in the output")
async def _(keep: Keep) -> Any:
    team = await keep(trio())
    first = await pieces(team, task="Go.", output_task_messages=False)
    second = await outcome(team.run(task="Again.", output_task_messages=False))
    return [first, second]


@scenario("a reset between two runs")
async def _(keep: Keep) -> Any:
    team = await keep(trio())
    found = [await outcome(team.run(task="Go."))]
    await team.reset()
    found.append(await known(team))
    return [*found, await outcome(team.run(task="Again.")), await known(team)]


@scenario("a run that is cancelled by its token")
async def _(keep: Keep) -> Any:
    token = CancellationToken()

    async def act(own: Any, messages: Any) -> str:
        token.cancel()
        return "Too late."

    team = await keep(RoundRobinGroupChat([agent("anna"), Own("own", act)]))
    return (await pieces(team, task="Go.", cancellation_token=token))[-1]


@scenario("a first choice that is cancelled")
async def _(keep: Keep) -> Any:
    token = CancellationToken()

    async def choose(messages: Any) -> str:
        token.cancel()
        await asyncio.Event().wait()
        return "anna"

    team = await keep(choosing(choose))
    return await pieces(team, task="Go.", cancellation_token=token)


@scenario("a pause before the first run")
async def _(keep: Keep) -> Any:
    team = await keep(trio())
    return [(await outcome(act())).partition(":")[0] for act in (team.pause, team.resume)]


@scenario("a pause while it runs")
async def _(keep: Keep) -> Any:
    async def act(team: Any) -> Any:
        return [await outcome(team.pause()), await outcome(team.resume())]

    return await during(keep, act)


@scenario("a pause of a team within that has not run")
async def _(keep: Keep) -> Any:
    tool = Waiting()
    first = agent("first", call_once("wait"), tools=[tool.wait])
    inner = trio(3, name="inner", description="Three.")
    team = await keep(RoundRobinGroupChat([first, inner], max_turns=2))
    run = asyncio.create_task(team.run(task="Go."))
    await tool.is_running.wait()
    found = await outcome(team.pause())
    tool.go_on.set()
    return [found.partition(":")[0], await outcome(run)]


@scenario("a graph is run twice")
async def _(keep: Keep) -> Any:
    one, two, three = agent("one"), agent("two"), agent("three")
    builder = DiGraphBuilder().add_node(one).add_node(two).add_node(three)
    builder.add_edge(one, two).add_edge(two, three)
    team = await keep(GraphFlow([one, two, three], graph=builder.build()))
    first = await pieces(team, task="Go.")
    return [first, await pieces(team, task="Again."), await known(team)]


@scenario("a runtime of the users own")
async def _(keep: Keep) -> Any:
    runtime = SingleThreadedAgentRuntime()
    runtime.start()
    team = await keep(trio(runtime=runtime))
    first = await pieces(team, task="Go.")
    both = await asyncio.gather(outcome(team.run(task="A.")), outcome(team.run(task="B.")))
    found = [first, both, await outcome(team.run(task=17)), await known(team)]
    await runtime.stop()
    return found


# -- an agent that is called from within -----------------------------------------------------------


async def from_its_tool(keep: Keep, act: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """What comes of *act* in a tool of the agent's, and of the run, and of another."""
    there: list[Any] = []

    async def use() -> str:
        """Use the agent."""
        there.append(await outcome(act(one)))
        return "used"

    one = await keep(agent("anna", call_once("use"), tools=[use], max_tool_iterations=3))
    first = await outcome(one.run(task="Go."))
    return [first, there, await known(one), await outcome(one.run(task="Again."))]


@scenario("an agent is run by its own tool")
async def _(keep: Keep) -> Any:
    return await from_its_tool(keep, lambda one: one.run(task="You too."))


@scenario("an agent is run by its own tool without a task")
async def _(keep: Keep) -> Any:
    return await from_its_tool(keep, lambda one: one.run())


@scenario("an agent is streamed by its own tool")
async def _(keep: Keep) -> Any:
    return await from_its_tool(keep, lambda one: pieces(one, task="You too."))


@scenario("an agent is reset by its own tool")
async def _(keep: Keep) -> Any:
    return await from_its_tool(keep, lambda one: one.on_reset(CancellationToken()))


@scenario("an agent is loaded by its own tool")
async def _(keep: Keep) -> Any:
    other = agent("anna")
    await other.run(task="Another life.")
    state = await other.save_state()
    return await from_its_tool(keep, lambda one: one.load_state(state))


@scenario("a member is run by its own tool")
async def _(keep: Keep) -> Any:
    there: list[Any] = []

    async def use() -> str:
        """Use the agent."""
        there.append(await outcome(ben.run(task="You too.")))
        return "used"

    ben = agent("ben", call_once("use"), tools=[use], max_tool_iterations=3)
    team = await keep(RoundRobinGroupChat([agent("anna"), ben], max_turns=3))
    return [await outcome(team.run(task="Go.")), there, await known(team)]


@scenario("two agents are tools of each other")
async def _(keep: Keep) -> Any:
    async def ask_ben() -> str:
        """Ask Ben."""
        return str(await outcome(ben.run(task="From Anna.")))

    async def ask_anna() -> str:
        """Ask Anna."""
        return str(await outcome(anna.run(task="From Ben.")))

    anna = await keep(agent("anna", call_once("ask_ben"), tools=[ask_ben]))
    ben = await keep(agent("ben", call_once("ask_anna"), tools=[ask_anna]))
    found = await outcome(anna.run(task="Go."))
    return [found, await known(anna), await known(ben)]


@scenario("a kept agent is a tool")
async def _(keep: Keep) -> Any:
    inner = await keep(agent("inner"))

    def ask(messages: Sequence[Any], tools: Any) -> Any:
        if messages[-1].type == "FunctionExecutionResultMessage":
            return talk(messages)
        return [FunctionCall(id="c", name="inner", arguments='{"task": "Help."}')]

    outer = await keep(agent("outer", ask, tools=[AgentTool(inner)]))
    return [await outcome(outer.run(task="Go.")), await known(inner), await known(outer)]


@scenario("a kept team is a tool")
async def _(keep: Keep) -> Any:
    inner = await keep(trio())

    def ask(messages: Sequence[Any], tools: Any) -> Any:
        if messages[-1].type == "FunctionExecutionResultMessage":
            return talk(messages)
        return [FunctionCall(id="c", name="inner", arguments='{"task": "Help."}')]

    tool = TeamTool(inner, "inner", "Three.")
    outer = await keep(agent("outer", ask, tools=[tool]))
    return [await outcome(outer.run(task="Go.")), await known(inner), await known(outer)]


@scenario("an agent is run by who listens")
async def _(keep: Keep) -> Any:
    found: list[Any] = []

    async def look() -> str:
        """Look."""
        return "seen"

    one = await keep(agent("anna", call_once("look"), tools=[look]))
    async for item in one.run_stream(task="Go."):
        found.append(said(item))
        if len(found) == 2:
            found.append(await outcome(one.run(task="You too.")))
    return [found, await known(one)]


@scenario("an own agent calls itself in a task")
async def _(keep: Keep) -> Any:
    async def act(own: Any, messages: Any) -> str:
        if len(messages) > 1:
            return "inner"
        again = own.on_messages([*messages, *messages], CancellationToken())
        return f"outer, then {(await asyncio.create_task(again)).chat_message.content}"

    one = await keep(Own("own", act))
    return [await outcome(one.run(task="Go.")), await pieces(one, task="Again.")]


@scenario("an own agent refuses a task")
async def _(keep: Keep) -> Any:
    async def act(own: Any, messages: Any) -> str:
        if any(message.content == "Bad." for message in messages):
            raise ValueError("I do not do that.")
        return f"did {[message.content for message in messages]}"

    one = await keep(Own("own", act))
    first = await outcome(one.run(task="Bad."))
    return [first, await outcome(one.run(task="Go.")), await outcome(one.run(task="On."))]


# -- and it is durable -----------------------------------------------------------------------------


def test_a_task_that_is_refused_is_nowhere_in_the_store() -> None:
    """Another process goes on with what there was, as if nobody had asked."""

    async def main() -> None:
        nobody = HandoffMessage(content="You.", source="user", target="nobody")
        async with limpet.open_async("memory:") as store:
            team = await autogen.keep(handing(), store, "it")
            await team.run(task="Go.")
            before = await autogen.kept(team).state.info()
            assert "not one of the participants" in await outcome(team.run(task=nobody))
            assert await autogen.kept(team).state.info() == before
            assert not autogen.kept(team).unfinished
            other = await autogen.keep(handing(), store, "it")
            assert (await outcome(other.run(task="On.")))[0] == "TextMessage of user: On."
            assert "You." not in str(await known(other))

    asyncio.run(main())


def test_an_agent_that_refused_a_task_takes_the_next_in_another_process() -> None:
    """It has no trace of the one; told of it with every other, it would refuse them all."""

    async def act(own: Any, messages: Any) -> str:
        if any(message.content == "Bad." for message in messages):
            raise ValueError("I do not do that.")
        return f"did {[message.content for message in messages]}"

    async def main() -> None:
        async with limpet.open_async("memory:") as store:
            one = await autogen.keep(Own("own", act), store, "it")
            assert await outcome(one.run(task="Bad.")) == "ValueError: I do not do that."
            other = await autogen.keep(Own("own", act), store, "it")
            assert autogen.kept(other).unfinished  # nobody said yet that it is given up
            assert (await outcome(other.run(task="Go.")))[1] == "TextMessage of own: did ['Go.']"

    asyncio.run(main())


@pytest.mark.parametrize("is_kept_in_a_team", [False, True])
def test_what_a_tool_asks_of_its_own_agent_is_part_of_its_call(*, is_kept_in_a_team: bool) -> None:
    """A run that goes on knows the tool's result; what was said within is not its next answer."""
    is_dead = True

    def answer(messages: Sequence[Any], tools: Any) -> Any:
        if messages[-1].type == "FunctionExecutionResultMessage":
            if is_dead:
                raise OSError("the line is dead")
            return f"The tool says {messages[-1].content[0].content}"
        if messages[-1].content == "Inner.":
            return "said within"
        return [FunctionCall(id="call-1", name="use", arguments="{}")]

    uses: list[Any] = []

    def made() -> Any:
        async def use() -> str:
            """Use the agent."""
            uses.append(await outcome(one.run(task="Inner.")))
            return "used"

        one = agent("anna", answer, tools=[use], max_tool_iterations=3)
        return RoundRobinGroupChat([one], max_turns=1) if is_kept_in_a_team else one

    async def main() -> None:
        nonlocal is_dead
        async with limpet.open_async("memory:") as store:
            it = await autogen.keep(made(), store, "it")
            assert "the line is dead" in await asyncio.wait_for(outcome(it.run(task="Go.")), 30)
            is_dead = False
            it = await autogen.keep(made(), store, "it")
            result = await it.run()
            assert result.messages[-1].content == "The tool says used"
            assert len(uses) == 1

    asyncio.run(main())


def test_what_a_tool_does_with_what_is_kept_of_its_agent_neither_hangs_nor_tears() -> None:
    """A save within a turn is that of its beginning; what needs the run to be over is refused."""
    is_dead = True
    found: list[Any] = []

    def answer(messages: Sequence[Any], tools: Any) -> Any:
        if messages[-1].type == "FunctionExecutionResultMessage":
            if is_dead:
                raise OSError("the line is dead")
            return talk(messages)
        return [FunctionCall(id="call-1", name="use", arguments="{}")]

    def made() -> Any:
        async def use() -> str:
            """Use what is kept."""
            kept = autogen.kept(one)
            found.append(await outcome(kept.save()))
            found.append((await outcome(kept.reload())).partition(":")[0])
            found.append((await outcome(kept.resolve("call-1", "skip"))).partition(":")[0])
            return "used"

        one = agent("anna", answer, tools=[use], max_tool_iterations=3)
        return one

    async def main() -> None:
        nonlocal is_dead
        async with limpet.open_async("memory:") as store:
            it = await autogen.keep(made(), store, "it")
            assert "the line is dead" in await asyncio.wait_for(outcome(it.run(task="Go.")), 30)
            assert found == [None, "RuntimeError", "NotFound"]
            is_dead = False
            it = await autogen.keep(made(), store, "it")
            assert (await it.run()).messages[-1].content.startswith("4 after")

    asyncio.run(main())
