"""Agents of the OpenAI Agents SDK for the tests, and scenes that die where they are told to.

The runner, agents, tools, handoffs, streams and run states are the SDK's own. Only the model is
scripted, by the SDK's `ScriptedModel`: it answers what the test says and keeps what it was asked.
"""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

import limpet
from limpet.integrations.openai_agents import AsyncRuns, LimpetSession, Runs
from limpet.testing.providers import check_responses
from tests.support.processes import in_a_process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from agents import RunResult, Session

set_tracing_disabled(disabled=True)  # it would send what it sees to a server

_number = count(1)

Step = Any  # what ScriptedModel takes
Act: TypeAlias = "Callable[[Scene], Awaitable[Any]]"


def say(text: str) -> list[Any]:
    """The model's answer."""
    return [assistant_message(text, item_id=f"msg_{next(_number)}")]


def call(*calls: tuple[str, str], **arguments: str) -> list[Any]:
    """The model calls tools: pairs of name and call id, all with the same arguments."""
    return [function_call(name, arguments, call_id=id_, item_id=f"fc_{id_}") for name, id_ in calls]


def strict(*steps: Step, asked: list[Any] | None = None) -> ScriptedModel:
    """A model with a script that refuses what the provider would refuse."""
    seen = asked if asked is not None else []

    def answer(step: Step) -> Callable[..., Any]:
        def respond(question: Any) -> Any:
            items = question.input
            items = [{"role": "user", "content": items}] if isinstance(items, str) else items
            check_responses(items)
            seen.append(items)
            return step(question) if callable(step) else step

        return respond

    return ScriptedModel([ModelStep.respond(answer(step)) for step in steps])


def texts(items: Sequence[Any]) -> list[str]:
    """Items in short: who said what, what was called, what came of it."""
    return [_short(item) for item in items]


def _short(item: Any) -> str:
    if item.get("type") == "function_call":
        return f"call {item['name']} {item['call_id']}"
    if item.get("type") == "function_call_output":
        return f"result {item['call_id']}: {item['output']}"
    content = item["content"]
    text = content if isinstance(content, str) else content[0]["text"]
    return f"{item['role']}: {text}"


# -- as a program --------------------------------------------------------------------------------


class Scene:
    """What an act has: the store, a place for effects, and where to die."""

    def __init__(self, store: limpet.AsyncStore, side: Path, die: str) -> None:
        self.store = store
        self.session = LimpetSession(store, "alice")
        self._side = side
        self._die = die

    def effect(self, what: str) -> None:
        """Something that happens in the world."""
        with self._side.open("a") as file:
            file.write(f"{what}\n")

    def maybe_die(self, where: str) -> None:
        """The end of the process, without a word, if it is to be here."""
        if where == self._die:
            os.kill(os.getpid(), signal.SIGKILL)

    def model(self, *steps: Step) -> ScriptedModel:
        """A strict model that may be a process's death."""

        def mortal(number: int, step: Step) -> Callable[..., Any]:
            def respond(_: object) -> Any:
                self.maybe_die(f"in model {number}")
                return step

            return respond

        return strict(*(mortal(number, step) for number, step in enumerate(steps, 1)))

    def agent(self, *steps: Step, approval: bool = False) -> Agent[Any]:
        """An agent with a tool that has an effect, and one to hand over to."""

        @function_tool(needs_approval=approval)
        def pay(to: str) -> str:
            """Pay somebody."""
            self.effect(f"paid {to}")
            self.maybe_die("in tool")
            return f"{to} is paid"

        model = self.model(*steps)
        clerk = Agent[Any](name="clerk", model=model, tools=[pay])
        return Agent[Any](name="desk", model=model, tools=[pay], handoffs=[clerk])


async def talk(scene: Scene) -> Any:
    """A turn with a handoff and a tool call, begun under an id, so that it can be done again."""
    stored = texts(await scene.session.get_items())
    script = [
        call(("transfer_to_clerk", "c1")),
        call(("pay", "c2"), to="Bob"),
        say("Bob is paid."),
    ]
    done = sum(item.startswith("result") for item in stored)
    agent = scene.agent(*script[done:])
    assert await scene.session.begin("Pay Bob.", id="message-1")
    # Who was handed over to goes on; the SDK leaves that to its user.
    starting: Any = agent.handoffs[0] if done else agent
    result = await Runner.run(starting, [], session=scene.session)
    return result.final_output


async def ask(scene: Scene) -> Any:
    """A run that comes to a call which needs approval, and is kept."""
    agent = scene.agent(call(("pay", "c1"), to="Bob"), approval=True)
    result = await Runner.run(agent, "Pay Bob.", session=scene.session)
    asks = await AsyncRuns(scene.store).save("payment", result, labels={"of": "Bob"})
    return [[ask.tool, ask.arguments] for ask in asks]


async def resume(scene: Scene) -> Any:
    """The run goes on."""
    return await _resumed(scene, "ask")


async def retry(scene: Scene) -> Any:
    """The run goes on, though it is in doubt."""
    return await _resumed(scene, "retry")


async def _resumed(scene: Scene, in_doubt: Any) -> Any:
    agent = scene.agent(say("Bob is paid."), approval=True)
    runs = AsyncRuns(scene.store)
    try:
        result = await runs.resume("payment", agent, session=scene.session, in_doubt=in_doubt)
    except limpet.LimpetError as error:
        return f"{type(error).__name__}: {error}"
    return result.final_output


def approve(url: str) -> None:
    """Somebody says yes, in a program that knows no agents and has no event loop."""
    with limpet.open(url) as store:
        runs = Runs(store)
        for run in runs.list(status="waiting"):
            for waiting in runs.asks(run.id):
                runs.approve(run.id, waiting.call_id, by="maria")


async def _play(act: Act, url: str, side: Path, die: str) -> Any:
    async with limpet.open_async(url) as store:
        return await act(Scene(store, side, die))


def play(act: Act, url: str, side: Path, die: str = "") -> Any:
    """*act* in a process of its own: what it returns, or None if it was killed.

    *side* gets a line for each effect of a tool; *die* says where the process kills itself:
    ``in model N`` or ``in tool``.
    """
    code, found = in_a_process(lambda: asyncio.run(_play(act, url, side, die)))
    assert code == (signal.SIGKILL if die else 0)
    return found


def run_by(method: str, agent: Agent[Any], given: Any, session: Session, **options: Any) -> Any:
    """One turn by a method of the runner, each in an event loop of its own."""
    if method == "run_sync":
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)  # or the runner makes one, and leaves it open
        try:
            return Runner.run_sync(agent, given, session=session, **options)
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    async def run() -> RunResult:
        return await Runner.run(agent, given, session=session, **options)

    async def stream() -> Any:
        result = Runner.run_streamed(agent, given, session=session, **options)
        async for _ in result.stream_events():
            pass
        return result

    return asyncio.run(run() if method == "run" else stream())
