"""Real runs of the OpenAI Agents SDK on a store: killed, resumed, approved, in several processes.

The SDK is the real one; its model is scripted by its own `ScriptedModel`, see agents_sdk.py.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from agents import Agent, RunConfig, RunHooks, Runner, SessionSettings, function_tool
from agents.tool_context import ToolContext  # noqa: TC002 - the SDK reads the annotation
from msgspec import Struct

import limpet
from limpet.core.calls import SKIPPED, Resolution, all_in_doubt, resolve_call
from limpet.errors import Conflict, LeaseHeld, NotFound, StoreClosed, TaskNotOpen, Unreadable
from limpet.integrations.openai_agents import (
    AsyncRuns,
    CallsInDoubt,
    LimpetSession,
    RunFinished,
    RunHeld,
    RunNotFound,
    Runs,
)
from limpet.llm.messages.repair import INTERRUPTED
from limpet.testing.providers import check_responses
from tests.support import agents_sdk, places
from tests.support.agents_sdk import approve, call, play, run_by, say, strict, texts
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from tests.support.places import Where


METHODS = ["run", "run_sync", "run_streamed"]
by_each_method = pytest.mark.parametrize("method", METHODS)
PAID = [
    "user: Pay Bob.",
    "call pay c1",
    "result c1: Bob is paid",
    "assistant: Bob is paid.",
]


@pytest.fixture
def where(backend: str, request: pytest.FixtureRequest) -> Where:
    """A place that several processes can open."""
    return places.find(backend, request)


def effects(side: Path) -> list[str]:
    """What has happened in the world."""
    return side.read_text().splitlines() if side.exists() else []


def stored(url: str) -> list[str]:
    """What the session has, as it is stored."""
    with limpet.open(url) as store:
        return texts(asyncio.run(LimpetSession(store, "alice", repair=None).get_items()))


# -- sessions --------------------------------------------------------------------------------------


@by_each_method
def test_a_second_turn_knows_the_first(method: str, tmp_path: Path) -> None:
    """By every method of the runner, each with an event loop of its own, and another store."""
    asked: list[Any] = []
    model = strict(say("Berlin."), say("3.7 million."), asked=asked)
    agent = Agent(name="guide", model=model)
    for question in ("The capital of Germany?", "How many live there?"):
        with limpet.open(tmp_path / "agents.db") as store:
            run_by(method, agent, question, LimpetSession(store, "alice"))
    assert texts(asked[1]) == [
        "user: The capital of Germany?",
        "assistant: Berlin.",
        "user: How many live there?",
    ]
    with limpet.open(tmp_path / "agents.db") as store:
        items = asyncio.run(LimpetSession(store, "alice").get_items())
        assert texts(items) == [*texts(asked[1]), "assistant: 3.7 million."]


@by_each_method
def test_a_tool_call_and_its_result_are_stored_together(method: str) -> None:
    """So that a crash can leave neither without the other."""

    @function_tool
    def look_up(what: str) -> str:
        """Look something up."""
        return f"{what}: 42"

    model = strict(call(("look_up", "c1"), ("look_up", "c2"), what="it"), say("42."))
    agent = Agent(name="guide", model=model, tools=[look_up])
    with limpet.open("memory:") as store:
        run_by(method, agent, "What is it?", LimpetSession(store, "alice"))
        journal = store.journal("conversation", "alice")
        records = asyncio.run(journal._core.page())
        assert [record.count for record in records] == [1, 4, 1]


@by_each_method
def test_the_model_gets_whole_pairs_wherever_a_limit_cuts(method: str) -> None:
    """The session cuts exactly where it is told; the runner leaves out the other half."""

    @function_tool
    def look_up(what: str) -> str:
        """Look something up."""
        return what

    with limpet.open("memory:") as store:
        session = LimpetSession(store, "alice")
        both = call(("look_up", "c1"), ("look_up", "c2"), what="it")
        agent = Agent(name="guide", model=strict(both, say("Done.")), tools=[look_up])
        run_by(method, agent, "Look.", session)
        history = asyncio.run(session.get_items())
        for limit in range(len(history) + 2):
            asked: list[Any] = []
            agent = Agent(name="guide", model=strict(say("Yes."), asked=asked), tools=[look_up])
            config = RunConfig(session_settings=SessionSettings(limit=limit))
            run_by(method, agent, "Sure?", session, run_config=config)
            assert texts(asked[0])[-1] == "user: Sure?"
            assert len(asked[0]) <= limit + 1


def test_a_limit_of_the_session_counts_unless_the_run_has_one() -> None:
    """The runner asks the session for it."""
    asked: list[Any] = []
    model = strict(*(say(str(number)) for number in range(4)), asked=asked)
    agent = Agent(name="guide", model=model)
    with limpet.open("memory:") as store:
        session = LimpetSession(store, "alice", session_settings={"limit": 1})
        for _ in range(3):
            run_by("run", agent, "Next.", session)
        config = RunConfig(session_settings=SessionSettings(limit=3))
        run_by("run", agent, "Next.", session, run_config=config)
    assert [len(items) for items in asked] == [1, 2, 2, 4]


@by_each_method
def test_a_callback_changes_what_is_sent_and_not_what_is_stored(method: str) -> None:
    """Only the turn's own items are added, whatever it makes of the history."""
    asked: list[Any] = []
    agent = Agent(name="guide", model=strict(say("1."), say("2."), asked=asked))

    def only_users(history: list[Any], new: list[Any]) -> list[Any]:
        return [item for item in history if item["role"] == "user"] + new

    with limpet.open("memory:") as store:
        session = LimpetSession(store, "alice")
        config = RunConfig(session_input_callback=only_users)
        for said in ("One", [{"role": "user", "content": "Two"}]):
            run_by(method, agent, said, session, run_config=config)
        items = asyncio.run(session.get_items())
    assert texts(asked[1]) == ["user: One", "user: Two"]
    assert texts(items) == ["user: One", "assistant: 1.", "user: Two", "assistant: 2."]


@by_each_method
def test_a_store_that_fails_fails_the_run(method: str, tmp_path: Path) -> None:
    """Nobody is told that a turn is kept when it is not."""
    agent = Agent(name="guide", model=strict(say("Hi.")))
    with limpet.open(tmp_path / "agents.db") as store:
        session = LimpetSession(store, "alice")
    with pytest.raises(StoreClosed):
        run_by(method, agent, "Hello", session)


@pytest.mark.parametrize(
    ("backend", "die"),
    [
        *(("sqlite", where) for where in ("in model 1", "in model 2", "in tool", "in model 3")),
        pytest.param("postgresql", "in tool", marks=pytest.mark.server),
    ],
)
def test_a_turn_that_was_killed_goes_on_where_it_was(
    where: Where, die: str, tmp_path: Path
) -> None:
    """The user is not heard twice; a call whose result is stored is not made again."""
    side = tmp_path / "side"
    play(agents_sdk.talk, where.url, side, die)
    assert play(agents_sdk.talk, where.url, side) == "Bob is paid."
    assert stored(where.url) == [
        "user: Pay Bob.",
        "call transfer_to_clerk c1",
        'result c1: {"assistant": "clerk"}',
        "call pay c2",
        "result c2: Bob is paid",
        "assistant: Bob is paid.",
    ]
    # A tool that was killed is called again: for effects, see the guide on tasks.
    assert effects(side) == ["paid Bob"] * (2 if die == "in tool" else 1)


def test_a_turn_that_is_answered_is_known_to_be() -> None:
    """Whoever delivers a message twice gets one answer."""
    agent = Agent(name="guide", model=strict(say("Hi.")))
    with limpet.open("memory:") as store:
        session = LimpetSession(store, "alice")
        assert asyncio.run(session.begin("Hello", id="message-1"))
        assert asyncio.run(session.begin("Hello", id="message-1"))
        run_by("run", agent, [], session)
        assert not asyncio.run(session.begin("Hello", id="message-1"))
        assert asyncio.run(session.begin("Hello", id="message-2"))
        assert texts(asyncio.run(session.get_items())) == [
            "user: Hello",
            "assistant: Hi.",
            "user: Hello",
        ]


# -- approval --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "backend", ["sqlite", pytest.param("postgresql", marks=pytest.mark.server)]
)
def test_a_run_waits_for_approval_in_three_processes(where: Where, tmp_path: Path) -> None:
    """One asks and ends; one that knows no agents approves; one goes on."""
    side = tmp_path / "side"
    assert play(agents_sdk.ask, where.url, side) == [["pay", '{"to":"Bob"}']]
    assert effects(side) == [], "nobody has said yes"
    approve(where.url)
    assert play(agents_sdk.resume, where.url, side) == "Bob is paid."
    assert effects(side) == ["paid Bob"]
    assert stored(where.url) == PAID


@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_worker_killed_in_an_approved_call_leaves_it_in_doubt(
    where: Where, tmp_path: Path
) -> None:
    """Nobody knows whether Bob was paid, so nobody pays him again without being told to."""
    side = tmp_path / "side"
    play(agents_sdk.ask, where.url, side)
    approve(where.url)
    play(agents_sdk.resume, where.url, side, "in tool")
    said = play(agents_sdk.resume, where.url, side)
    assert said.startswith("CallsInDoubt: ")
    assert "pay (c1)" in said
    assert effects(side) == ["paid Bob"]
    assert play(agents_sdk.retry, where.url, side) == "Bob is paid."
    assert effects(side) == ["paid Bob"] * 2
    assert stored(where.url) == PAID


@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_worker_killed_after_an_approved_call_does_not_make_it_again(
    where: Where, tmp_path: Path
) -> None:
    """What came of the call is kept before the model is asked; the rest is only thinking."""
    side = tmp_path / "side"
    play(agents_sdk.ask, where.url, side)
    approve(where.url)
    play(agents_sdk.resume, where.url, side, "in model 1")
    assert play(agents_sdk.resume, where.url, side) == "Bob is paid."
    assert effects(side) == ["paid Bob"]
    assert stored(where.url) == PAID


class Desk:
    """An agent that may pay when somebody says yes, and the runs of a store in memory."""

    def __init__(self, *steps: Any, store: limpet.AsyncStore | None = None) -> None:
        self.store = store or limpet.open_async("memory:")
        self.session = LimpetSession(self.store, "alice")
        self.runs = AsyncRuns(self.store)
        self.paid: list[str] = []
        self.asked: list[Any] = []
        self.agent = self.made(*steps)

    def made(self, *steps: Any) -> Agent[Any]:
        """The agent as another process would make it, with what its model says from now on."""

        @function_tool(needs_approval=True)
        def pay(to: str) -> str:
            """Pay somebody."""
            self.paid.append(to)
            return f"{to} is paid"

        @function_tool
        def look_up(what: str) -> str:
            """Look something up, which needs nobody's approval."""
            return what

        return Agent(name="desk", model=strict(*steps, asked=self.asked), tools=[pay, look_up])

    async def ask(self, id_: str = "payment", **options: Any) -> list[Any]:
        """Start the run, and keep it where it waits."""
        result = await Runner.run(self.agent, "Pay.", session=self.session)
        return await self.runs.save(id_, result, **options)


TWO = call(("pay", "c1"), ("pay", "c2"), to="Bob")
ONE = call(("pay", "c1"), to="Bob")


def at_the_desk(*steps: Any) -> Callable[..., Callable[[], None]]:
    """An async test that is given a `Desk` with a model that says *steps*."""

    def decorate(test: Callable[[Desk], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        def run() -> None:
            asyncio.run(test(Desk(*steps)))

        run.__doc__, run.__name__ = test.__doc__, test.__name__
        return run

    return decorate


@at_the_desk(TWO)
async def test_what_a_run_waits_for_is_known_without_its_agents(desk: Desk) -> None:
    """By those who decide; what the model wrote is in no name."""
    asks = await desk.ask(labels={"of": "Bob"})
    assert asks == await desk.runs.asks("payment")
    assert [(ask.call_id, ask.tool, ask.agent, ask.approved) for ask in asks] == [
        ("c1", "pay", "desk", None),
        ("c2", "pay", "desk", None),
    ]
    assert asks[0].arguments == '{"to":"Bob"}'
    assert "Bob" not in repr(asks)
    assert [run.id async for run in desk.runs.list(status="waiting")] == ["payment"]
    assert [run.id async for run in desk.runs.list(labels={"of": "Ann"})] == []
    assert await desk.runs.output("payment") is None


@at_the_desk(TWO)
async def test_a_run_goes_on_as_far_as_was_decided(desk: Desk) -> None:
    """And waits again for the rest; the calls that were made are not made again."""
    await desk.ask()
    await desk.runs.resume("payment", desk.made(), session=desk.session)
    assert desk.paid == [], "nobody has said yes"
    await desk.runs.approve("payment", "c1", by="maria")
    result = await desk.runs.resume("payment", desk.made(), session=desk.session)
    assert [item.call_id for item in result.interruptions] == ["c2"]
    (left,) = await desk.runs.asks("payment")
    assert (left.call_id, left.approved) == ("c2", None)
    assert desk.paid == ["Bob"]
    await desk.runs.reject("payment", "c2", by="john", message="Once is enough.")
    agent = desk.made(say("Paid once."))
    result = await desk.runs.resume("payment", agent, session=desk.session)
    assert result.final_output == await desk.runs.output("payment") == "Paid once."
    assert desk.paid == ["Bob"]
    assert texts(desk.asked[-1])[-2:] == ["result c1: Bob is paid", "result c2: Once is enough."]
    check_responses(await desk.session.get_items())


@at_the_desk(ONE)
async def test_the_first_decision_stands(desk: Desk) -> None:
    """The same again is no harm; another is told whose the first was."""
    await desk.ask()
    await desk.runs.reject("payment", "c1", by="maria")
    await desk.runs.reject("payment", "c1", by="john")
    with pytest.raises(Conflict, match="rejected by maria"):
        await desk.runs.approve("payment", "c1", by="john")
    (ask,) = await desk.runs.asks("payment")
    assert (ask.approved, ask.by) == (False, "maria")


@at_the_desk(ONE, call(("pay", "c2"), to="Ann"))
async def test_a_decision_can_be_for_all_calls_of_a_tool(desk: Desk) -> None:
    """The SDK keeps that in its state."""
    await desk.ask()
    await desk.runs.approve("payment", "c1", always=True)
    agent = desk.made(call(("pay", "c2"), to="Ann"), say("Both."))
    result = await desk.runs.resume("payment", agent, session=desk.session)
    assert (result.final_output, desk.paid) == ("Both.", ["Bob", "Ann"])


@at_the_desk(TWO)
async def test_a_decision_made_while_the_run_goes_on_is_kept(desk: Desk) -> None:
    """It counts when the run is resumed the next time."""
    await desk.ask()
    await desk.runs.approve("payment", "c1")
    agent = desk.made()
    async with desk.runs.open("payment", agent) as run:
        await desk.runs.approve("payment", "c2")
        await run.save(await Runner.run(agent, run.state, session=desk.session))
    (left,) = await desk.runs.asks("payment")
    assert (left.call_id, left.approved) == ("c2", True)
    await desk.runs.resume("payment", desk.made(say("Both.")), session=desk.session)
    assert desk.paid == ["Bob", "Bob"]


@at_the_desk(ONE)
async def test_one_worker_at_a_time_resumes_a_run(desk: Desk) -> None:
    """The other is told who does, and can wait for it."""
    await desk.ask()
    await desk.runs.approve("payment", "c1")
    async with desk.runs.open("payment", desk.made()):
        info = await desk.runs.info("payment")
        assert info.status == "running"
        assert info.held_by is not None
        with pytest.raises(RunHeld, match="payment"):
            await desk.runs.resume("payment", desk.made())
    assert (await desk.runs.info("payment")).held_by is None


@at_the_desk(ONE)
async def test_a_run_that_has_ended_cannot_be_resumed_decided_or_saved_again(desk: Desk) -> None:
    """Its output is kept, and nothing of it happens twice."""
    await desk.ask()
    await desk.runs.approve("payment", "c1")
    result = await desk.runs.resume("payment", desk.made(say("Done.")), session=desk.session)
    with pytest.raises(RunFinished):
        await desk.runs.resume("payment", desk.made())
    with pytest.raises(RunFinished):
        await desk.runs.approve("payment", "c1")
    with pytest.raises(RunFinished):
        await desk.runs.save("another", result)
    assert await desk.runs.asks("payment") == []
    assert (await desk.runs.info("payment")).status == "done"
    assert desk.paid == ["Bob"]


@at_the_desk(ONE)
async def test_a_run_is_saved_once(desk: Desk) -> None:
    """The same again is no harm; another run under its id is refused."""
    result = await Runner.run(desk.agent, "Pay.")
    await desk.runs.save("payment", result)
    await desk.runs.save("payment", result.to_state())
    with pytest.raises(Conflict, match="already"):
        await desk.runs.save("payment", await Runner.run(desk.made(TWO), "Pay more."))
    assert len(await desk.runs.asks("payment")) == 1


@at_the_desk()
async def test_the_sync_face_takes_a_sync_store(desk: Desk) -> None:
    """And the other one any."""
    store: Any = desk.store
    with pytest.raises(TypeError, match="AsyncRuns"):
        Runs(store)
    with pytest.raises(TypeError, match="not a str"):
        AsyncRuns("agents.db")  # type: ignore[arg-type]


@at_the_desk(ONE)
async def test_what_is_not_there_is_named(desk: Desk) -> None:
    """A run, or a call of one."""
    for use in (
        desk.runs.asks("none"),
        desk.runs.info("none"),
        desk.runs.approve("none", "c1"),
        desk.runs.resume("none", desk.agent),
    ):
        with pytest.raises(RunNotFound, match="'none'"):
            await use
    await desk.ask()
    with pytest.raises(NotFound, match="'c9'"):
        await desk.runs.approve("payment", "c9")
    assert await desk.runs.delete("payment")
    assert not await desk.runs.delete("payment")


@at_the_desk(ONE)
async def test_an_error_after_an_approved_call_does_not_repeat_the_call(desk: Desk) -> None:
    """The model was away; the next worker goes on behind the call."""

    def away(_: object) -> Any:
        msg = "the model is away"
        raise ConnectionError(msg)

    await desk.ask()
    await desk.runs.approve("payment", "c1")
    with pytest.raises(ConnectionError):
        await desk.runs.resume("payment", desk.made(away), session=desk.session)
    assert (await desk.runs.info("payment")).status == "waiting"
    result = await desk.runs.resume("payment", desk.made(say("Done.")), session=desk.session)
    assert (result.final_output, desk.paid) == ("Done.", ["Bob"])
    check_responses(await desk.session.get_items())


@at_the_desk(ONE)
async def test_an_error_is_as_good_without_our_hooks(desk: Desk) -> None:
    """Who runs the runner by hand may leave them out."""

    def away(_: object) -> Any:
        msg = "the model is away"
        raise ConnectionError(msg)

    await desk.ask()
    await desk.runs.approve("payment", "c1")
    agent = desk.made(away)
    with pytest.raises(ConnectionError):
        async with desk.runs.open("payment", agent) as run:
            await Runner.run(agent, run.state, session=desk.session)
    await desk.runs.resume("payment", desk.made(say("Done.")), session=desk.session)
    assert desk.paid == ["Bob"]


@at_the_desk(ONE)
async def test_an_error_some_turns_later_goes_back_to_behind_the_approved_call(desk: Desk) -> None:
    """What came then needed nobody's approval, and the model is asked once more."""
    await desk.ask()
    await desk.runs.approve("payment", "c1")

    def away(_: object) -> Any:
        msg = "the model is away"
        raise ConnectionError(msg)

    agent = desk.made(call(("look_up", "c2"), what="it"), away)
    with pytest.raises(ConnectionError):
        await desk.runs.resume("payment", agent, session=desk.session)
    result = await desk.runs.resume("payment", desk.made(say("Done.")), session=desk.session)
    assert (result.final_output, desk.paid) == ("Done.", ["Bob"])
    check_responses(await desk.session.get_items())


@at_the_desk(ONE)
async def test_an_effect_that_is_a_step_of_a_task_is_not_repeated(desk: Desk) -> None:
    """The call's id is the same on every retry, so it can name the task."""
    await desk.ask()
    await desk.runs.approve("payment", "c1")
    kept = asyncio.Event()

    @function_tool(needs_approval=True)
    async def pay(context: ToolContext[Any], to: str) -> str:
        """Pay somebody."""
        async with desk.store.task(f"call-{context.tool_call_id}", "Pay somebody.") as task:
            await task.step("pay", desk.paid.append, to)
        if not kept.is_set():
            kept.set()
            await asyncio.sleep(60)
        return f"{to} is paid"

    agent = Agent[Any](name="desk", model=strict(say("Done.")), tools=[pay])
    working = asyncio.create_task(desk.runs.resume("payment", agent))
    await kept.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    result = await desk.runs.resume("payment", agent, in_doubt="retry")
    assert (result.final_output, desk.paid) == ("Done.", ["Bob"])


@at_the_desk(ONE)
async def test_a_worker_that_is_cancelled_in_a_call_leaves_it_in_doubt(desk: Desk) -> None:
    """As one that is killed: nobody knows how far the tool has come."""
    await desk.ask()
    await desk.runs.approve("payment", "c1")
    started = asyncio.Event()

    @function_tool(needs_approval=True)
    async def pay(to: str) -> str:
        """Pay somebody."""
        started.set()
        await asyncio.sleep(60)
        return to

    agent = Agent[Any](name="desk", model=strict(), tools=[pay])
    working = asyncio.create_task(desk.runs.resume("payment", agent, session=desk.session))
    await started.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    with pytest.raises(CallsInDoubt, match=r"pay \(c1\)") as caught:
        await desk.runs.resume("payment", desk.made())
    assert [(doubt.id, doubt.name) for doubt in caught.value.calls] == [("c1", "pay")]
    agent = desk.made(say("Done."))
    await desk.runs.resume("payment", agent, session=desk.session, in_doubt="retry")
    assert desk.paid == ["Bob"]
    with pytest.raises(ValueError, match="ask, retry, skip; not 'hope'"):
        desk.runs.open("payment", agent, in_doubt="hope")  # type: ignore[arg-type]


# -- calls in doubt --------------------------------------------------------------------------------


async def die_in_calls(desk: Desk) -> None:
    """Approve what the run waits for, and let the worker end within the first call."""
    for ask in await desk.ask():
        await desk.runs.approve("payment", ask.call_id)
    started = asyncio.Event()

    @function_tool(needs_approval=True)
    async def pay(to: str) -> str:
        """Pay somebody."""
        started.set()
        await asyncio.sleep(60)
        return to

    agent = Agent[Any](name="desk", model=strict(), tools=[pay])
    working = asyncio.create_task(desk.runs.resume("payment", agent, session=desk.session))
    await started.wait()
    assert await all_in_doubt(desk.store.scope) == [], "it is just being made"
    with pytest.raises(LeaseHeld, match="'c1' of agents-run 'payment' is running"):
        await desk.runs.resolve("payment", "c1", "done")
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working


async def results(desk: Desk) -> list[str]:
    """What the model was told of its calls."""
    return [text for text in texts(await desk.session.get_items()) if text.startswith("result")]


@pytest.mark.parametrize(
    ("resolution", "told", "paid"),
    [
        (Resolution("c1", "done", "Bob has it", by="maria"), "Bob has it", []),
        (Resolution("c1", "done", {"paid": 3}), '{"paid":3}', []),
        (Resolution("c1", "retry"), "Bob is paid", ["Bob"]),
        (Resolution("c1", "skip"), SKIPPED, []),
    ],
    ids=["done", "done-data", "retry", "skip"],
)
def test_a_call_in_doubt_is_listed_and_the_run_goes_by_what_a_person_says(
    resolution: Resolution, told: str, paid: list[str]
) -> None:
    """Through the functions that serve every kind of journal."""

    async def main(desk: Desk) -> None:
        await die_in_calls(desk)
        scope = desk.store.scope
        (doubt,) = await all_in_doubt(scope)
        assert (doubt.kind, doubt.id) == ("agents-run", "payment")
        assert (doubt.call.id, doubt.call.name, doubt.call.agent) == ("c1", "pay", "desk")
        await resolve_call(scope, doubt.kind, doubt.id, resolution)
        assert await all_in_doubt(scope) == []
        # Whatever breaks off before the SDK has come to the call does not change that.
        with pytest.raises(ZeroDivisionError):
            async with desk.runs.open("payment", desk.made()):
                raise ZeroDivisionError
        agent = desk.made(say("Done."))
        result = await desk.runs.resume("payment", agent, session=desk.session)
        assert (result.final_output, desk.paid) == ("Done.", paid)
        assert await results(desk) == [f"result c1: {told}"]
        check_responses(await desk.session.get_items())
        assert await all_in_doubt(scope) == []

    asyncio.run(main(Desk(ONE)))


@at_the_desk(TWO)
async def test_each_call_in_doubt_is_resolved_by_itself(desk: Desk) -> None:
    """The run waits for the last of them."""
    await die_in_calls(desk)
    assert [doubt.call.id for doubt in await all_in_doubt(desk.store.scope)] == ["c1", "c2"]
    with pytest.raises(CallsInDoubt, match=r"pay \(c1\), pay \(c2\).*runs\.resolve\('payment'"):
        await desk.runs.resume("payment", desk.made())
    with pytest.raises(NotFound, match="'c9' of agents-run 'payment' is not in doubt"):
        await desk.runs.resolve("payment", "c9", "done")
    await desk.runs.resolve("payment", "c1", "done", result="Bob has it", by="maria")
    with pytest.raises(CallsInDoubt) as caught:
        await desk.runs.resume("payment", desk.made())
    assert [doubt.id for doubt in caught.value.calls] == ["c2"]
    await desk.runs.resolve("payment", "c2", "retry")
    await desk.runs.resume("payment", desk.made(say("Done.")), session=desk.session)
    assert desk.paid == ["Bob"]
    assert sorted(await results(desk)) == ["result c1: Bob has it", "result c2: Bob is paid"]


@at_the_desk(ONE)
async def test_calls_in_doubt_can_be_skipped(desk: Desk) -> None:
    """The model is told that nobody knows; also when an error comes in between."""
    await die_in_calls(desk)
    with pytest.raises(ZeroDivisionError):
        async with desk.runs.open("payment", desk.made(), in_doubt="skip"):
            raise ZeroDivisionError
    await desk.runs.resume("payment", desk.made(say("Done.")), session=desk.session)
    assert desk.paid == []
    assert await results(desk) == [f"result c1: {INTERRUPTED}"]


@at_the_desk(ONE)
async def test_a_call_that_was_resolved_is_not_made_though_its_tool_is_approved_for_always(
    desk: Desk,
) -> None:
    """Which is about later calls."""
    await desk.ask()
    await desk.runs.approve("payment", "c1", always=True)
    with pytest.raises(asyncio.CancelledError):
        async with desk.runs.open("payment", desk.made()):
            raise asyncio.CancelledError
    await desk.runs.resolve("payment", "c1", "skip")
    agent = desk.made(call(("pay", "c2"), to="Ann"), say("Done."))
    await desk.runs.resume("payment", agent, session=desk.session)
    assert desk.paid == ["Ann"]
    assert await results(desk) == [f"result c1: {SKIPPED}", "result c2: Ann is paid"]


def test_a_person_resolves_a_call_without_an_event_loop(tmp_path: Path) -> None:
    """Nor an agent."""

    async def leave_in_doubt() -> None:
        async with limpet.open_async(tmp_path / "agents.db") as store:
            desk = Desk(ONE, store=store)
            await die_in_calls(desk)

    asyncio.run(leave_in_doubt())
    with limpet.open(tmp_path / "agents.db") as store:
        Runs(store).resolve("payment", "c1", "done", result="Bob has it", by="maria")
        desk = Desk(store=limpet.open_async(tmp_path / "agents.db"))
        asyncio.run(_go_on(desk))


async def _go_on(desk: Desk) -> None:
    await desk.runs.resume("payment", desk.made(say("Done.")), session=desk.session)
    assert (desk.paid, await results(desk)) == ([], ["result c1: Bob has it"])
    await desk.store.close()


@at_the_desk(ONE)
async def test_hooks_of_ones_own_are_called_as_ever(desk: Desk) -> None:
    """All of them, beside ours."""
    heard: list[str] = []

    class Hooks(RunHooks[Any]):
        async def on_llm_start(self, *_: Any) -> None:
            heard.append("llm start")

        async def on_tool_end(self, *_: Any) -> None:
            heard.append("tool end")

    await desk.ask()
    await desk.runs.approve("payment", "c1")
    await desk.runs.resume("payment", desk.made(say("Done.")), hooks=Hooks())
    assert heard == ["tool end", "llm start"]


@at_the_desk(ONE)
async def test_a_run_can_be_resumed_as_a_stream(desk: Desk) -> None:
    """By hand, within the lease."""
    await desk.ask()
    await desk.runs.approve("payment", "c1")
    agent = desk.made(say("Done."))
    async with desk.runs.open("payment", agent) as run:
        result = Runner.run_streamed(agent, run.state, session=desk.session, hooks=run.hooks())
        kinds = [event.type async for event in result.stream_events()]
        await run.save(result)
    assert "raw_response_event" in kinds
    assert (await desk.runs.output("payment"), desk.paid) == ("Done.", ["Bob"])
    with pytest.raises(TaskNotOpen):
        _ = run.state


@at_the_desk(call(("clerk", "c1"), input="Pay Bob."))
async def test_an_agent_that_is_a_tool_can_need_approval_for_its_own(desk: Desk) -> None:
    """The SDK nests the states, and we keep them nested."""
    outer = desk.agent
    outer.tools = [
        desk.made(call(("pay", "c2"), to="Bob"), say("Paid.")).as_tool("clerk", "Ask the clerk.")
    ]
    (ask,) = await desk.ask()
    assert (ask.call_id, ask.tool) == ("c2", "pay")
    await desk.runs.approve("payment", "c2")
    outer.model = strict(say("The clerk has paid."))
    result = await desk.runs.resume("payment", outer, session=desk.session)
    assert (result.final_output, desk.paid) == ("The clerk has paid.", ["Bob"])


@at_the_desk(ONE)
async def test_a_snapshot_of_a_newer_sdk_is_refused_by_name(desk: Desk) -> None:
    """With the versions, and what to do; nothing has happened."""
    await desk.ask()
    journal = desk.store.journal("agents-run", "payment")
    (entry,) = await journal.read()
    await journal.append(("state", {**entry.body, "schema": "9.1", "sdk": "7.0.0"}))
    with pytest.raises(Unreadable, match=r"openai-agents 7\.0\.0 in its format 9\.1"):
        await desk.runs.resume("payment", desk.made())
    assert (await desk.runs.info("payment")).held_by is None


@at_the_desk(ONE)
async def test_an_entry_of_another_shape_is_refused_by_its_number(desk: Desk) -> None:
    """Never a KeyError, and never a run that forgets what was decided."""
    await desk.ask()
    journal = desk.store.journal("agents-run", "payment")
    (entry,) = await journal.read()
    for bad in (
        ("state", {**entry.body, "asks": [{"tool": "pay"}]}),
        ("state", "nothing"),
        ("decided", {"approved": True}),
        ("began", {"name": "pay"}),
        ("resolved", {"id": "c1", "how": "perhaps"}),
        ("ended", None),
    ):
        await journal.delete()
        await journal.append(("state", entry.body))
        await journal.append(bad)
        for refused in (desk.runs.asks("payment"), desk.runs.approve("payment", "c1")):
            with pytest.raises(Unreadable, match=r"^Entry 2 of run 'payment' is not what was wr"):
                await refused
        with pytest.raises(Unreadable):
            await desk.runs.resume("payment", desk.made())


@at_the_desk(ONE)
async def test_a_run_takes_the_agents_it_was_started_with(desk: Desk) -> None:
    """Another has not its tools, or not its name."""
    await desk.ask()
    with pytest.raises(Unreadable, match="'other'"):
        await desk.runs.resume("payment", Agent[Any](name="other", model=strict()))


@at_the_desk(ONE)
async def test_a_context_that_is_no_dict_takes_functions_of_its_own(desk: Desk) -> None:
    """Those that the SDK has for it, given once."""

    class Customer(Struct):
        name: str

    desk.runs = AsyncRuns(
        desk.store,
        context_serializer=lambda customer: {"name": customer.name},
        context_deserializer=lambda stored: Customer(stored["name"]),
        strict_context=True,
    )
    result = await Runner.run(desk.agent, "Pay.", context=Customer("Bob"))
    await desk.runs.save("payment", result)
    await desk.runs.approve("payment", "c1")
    result = await desk.runs.resume("payment", desk.made(say("Done.")))
    assert result.context_wrapper.context == Customer("Bob")


@at_the_desk(ONE)
async def test_an_output_comes_back_as_its_type_or_as_text(desk: Desk) -> None:
    """What no store can keep is kept as a text: it has happened all the same."""

    class Receipt(Struct):
        total: int

    for number, (output, kept) in enumerate([(Receipt(3), {"total": 3}), (len, str(len))]):
        result = await Runner.run(desk.made(ONE), "Pay.")
        await desk.runs.save(f"payment-{number}", result)
        async with desk.runs.open(f"payment-{number}", desk.made()) as run:
            result.final_output = output
            result.interruptions = []
            await run.save(result)
        assert await desk.runs.output(f"payment-{number}") == kept
    assert await desk.runs.output("payment-0", as_=Receipt) == Receipt(3)


def test_those_who_decide_need_no_event_loop(tmp_path: Path) -> None:
    """Nor the SDK: a web application with a sync store, for one."""
    path = tmp_path / "agents.db"
    agent = Agent[Any](name="desk", model=strict(ONE), tools=Desk().agent.tools)
    with limpet.open(path) as store:
        result = asyncio.run(Runner.run(agent, "Pay."))
        assert [ask.tool for ask in Runs(store).save("payment", result)] == ["pay"]
    script = """if True:
        import sys, limpet
        from limpet.integrations.openai_agents import Runs
        with limpet.open(sys.argv[1]) as store:
            runs = Runs(store)
            for run in runs.list(status="waiting"):
                for ask in runs.asks(run.id):
                    runs.approve(run.id, ask.call_id, by="maria")
            print(runs.asks("payment")[0].by, runs.info("payment").status, "agents" in sys.modules)
    """
    command = [sys.executable, "-W", "error", "-c", script, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "maria waiting False\n"
    with limpet.open(path) as store:
        agent.model = strict(say("Done."))
        asyncio.run(AsyncRuns(store).resume("payment", agent))
        assert Runs(store).output("payment") == "Done."
        assert repr(Runs(store)).startswith("Runs(")


@pytest.mark.slow
def test_the_example_waits_over_a_crash_for_somebody_to_decide(tmp_path: Path) -> None:
    """As its own description says, in one process after the other."""
    example = str(ROOT / "examples" / "agents_sdk.py")

    def do(*arguments: str) -> tuple[int, list[str]]:
        command = [sys.executable, "-W", "error", "-u", example, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines()

    assert do("ask", "--crash") == (-9, ["The agent wants to call refund."])
    assert do("list") == (0, ['refund-17: refund {"order":17,"euros":40}'])
    assert do("approve") == (
        0,
        [
            "  (40 euros for order 17 are on their way)",
            "Your money is on its way.",
            "4 items are kept.",
        ],
    )
    assert do("list") == (0, [])
    assert do("approve")[0] == 1
