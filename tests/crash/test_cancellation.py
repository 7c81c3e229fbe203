"""Cancellation, wherever it comes: a web handler whose client has left leaves nothing held."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest
from agents import Agent, Runner, function_tool
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

import limpet
from limpet.core.recorded_calls import RecordedCalls
from limpet.integrations import autogen
from limpet.integrations.openai import AsyncChat
from limpet.integrations.openai_agents import AsyncRuns, CallsInDoubt, LimpetSession
from tests.support.agents_sdk import call, say, strict
from tests.support.autogen_teams import agent
from tests.support.cancelling import cancelled_everywhere
from tests.support.openai_server import Answer, Request, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from limpet.store import AsyncStore

    Work = Callable[[AsyncStore, str], Coroutine[Any, Any, Any]]

QUESTION = {"role": "user", "content": "Where is my order?"}
ANSWER = {"role": "assistant", "content": "On its way."}


def play(work: Work, tmp_path: Path) -> None:
    """Cancel *work* everywhere; each time nothing is held, and it can be done once more."""

    async def main() -> None:
        async with limpet.open_async(f"sqlite:{tmp_path}/db?durability=normal") as store:

            async def check(name: str) -> None:
                assert store.scope.store.leases._held == [], f"{name}: it is renewed"
                for kind in ("conversation", "task", "state", "memory", "run", "toybot"):
                    heads = store.backend.scan(store.tenant, kind).heads
                    held = [head.key.id for head in heads if head.lease is not None]
                    assert not held, f"{name}: {kind} {held} is held"

            await cancelled_everywhere(lambda name: work(store, name), check)

    asyncio.run(main())


# -- models ----------------------------------------------------------------------------------------


async def converse(store: AsyncStore, id_: str) -> None:
    """What can be done with a conversation."""
    chat = store.conversation(id_)
    await chat.delete()
    await chat.append(QUESTION, ANSWER)
    await chat.append(QUESTION, id="again")
    await chat.pin(1)
    await chat.unpin(1)
    await chat.pop()
    await chat.window(max_tokens=1000)
    await chat.compact(lambda _: "A summary", keep_tokens=1)
    await store.conversation(f"fork of {id_}").delete()
    await chat.fork(f"fork of {id_}")
    await chat.label(topic="orders")
    await chat.expire(600)
    await chat.replace(QUESTION)
    await chat.clear()
    await store.search_conversations("order")
    await chat.delete()


async def perform(store: AsyncStore, id_: str) -> None:
    """What can be done with a task."""
    async with store.task(id_, "Fetch them") as task:
        if task.done:
            return
        await task.plan(["fetch", "pay"])
        for step in task.remaining():
            await step.run(lambda: "x" * 10_000, in_doubt="verify", verify=lambda key: None)
        await task.transaction("booked", lambda connection: None)
        await task.decide("go on", because="it works")
        await task.child("part", lambda child: 1)
        await store.signal(id_, "approval", "yes")
        await task.wait_for("approval")
        await task.sleep(0.001)
        await task.checkpoint()
        await task.resume_context()
        await task.finish("done", remember=True)


async def work_on(store: AsyncStore, id_: str) -> None:
    """What can be done with a state."""
    state = store.state(id_)
    await state.save({"turn": 1})
    await state.save({"turn": 2})
    first, *_ = await state.history()
    await state.load()
    await state.at(first.position)
    await state.diff(first.position)
    await state.restore(first.position)
    await store.state(f"fork of {id_}").delete()
    await state.fork(f"fork of {id_}")
    await state.compact()
    await state.label(of="alice")
    await state.delete()


async def learn(store: AsyncStore, id_: str) -> None:
    """What can be done with a memory."""
    memory = store.memory(id_)
    known = await memory.remember("Orders are sent on Mondays.")
    other = await memory.remember("Orders are sent on Fridays.")
    await memory.recall("When are orders sent?")
    await memory.update(known.id, "Orders are sent on Tuesdays.")
    await memory.confirm(known.id)
    await memory.mark_used(known.id)
    await memory.contradict(known.id, other.id)
    await memory.forget(other.id)
    await memory.consolidate(lambda alike: "Orders are sent.")
    await memory.reindex()


async def manage(store: AsyncStore, id_: str) -> None:
    """What can be done with a store."""
    await store.task(id_).delete()
    await store.submit("report", id_, "Fetch them", input={"of": "May"})
    await store.pause(id_)
    await store.resume(id_)
    await store.cancel(id_)
    await store.resume(id_)
    await store.run(id_, "Fetch them", plan=["fetch"], execute=lambda step: 1)
    await store.in_doubt()
    await store.sweep()


async def make_calls(store: AsyncStore, id_: str) -> None:
    """What an integration makes once each."""
    async with RecordedCalls(store.scope, "toybot", id_) as calls:
        try:
            await calls.make("c1", lambda: 1)
        except CallsInDoubt:
            await store.resolve(id_, "c1", "retry", kind="toybot")
            await calls.make("c1", lambda: 1)


@pytest.mark.parametrize(
    "work",
    [converse, perform, work_on, pytest.param(learn, marks=pytest.mark.slow), manage, make_calls],
)
def test_a_model_whose_caller_is_cancelled_holds_nothing(work: Work, tmp_path: Path) -> None:
    """At every await of what it can do."""
    play(work, tmp_path)


# -- integrations ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_chat_whose_caller_is_cancelled_holds_nothing(tmp_path: Path) -> None:
    """Or every later turn of the conversation would be refused while the process lives."""

    def look() -> str:
        """Where the order is."""
        return "on its way"

    def answer(request: Request) -> Answer:
        return Answer("Done.") if request.results else Answer(calls=(("look", {}),))

    async def speak(store: AsyncStore, id_: str) -> None:
        http = DefaultAsyncHttpxClient(verify=False, timeout=60)
        async with AsyncOpenAI(
            base_url=server.url, api_key="none", max_retries=0, http_client=http
        ) as client:
            chat = AsyncChat(client, store.conversation(id_), model="gpt-5", tools=[look], wait=0)
            await chat.resume()
            await chat.send("Where is my order?")
            async with chat.stream("And now?") as pieces:
                async for _ in pieces:
                    pass
            await chat.usage()

    with Server(brain=answer) as server:
        play(speak, tmp_path)
        server.errors.clear()  # of requests that were cut off


# The SDK leaves coroutines behind that it never awaited, if it is cancelled just then.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_session_and_a_run_of_the_agents_sdk_whose_caller_is_cancelled_hold_nothing(
    tmp_path: Path,
) -> None:
    """A run that waited for an approval can be resumed by the next request."""

    @function_tool(needs_approval=True)
    def pay(to: str) -> str:
        """Pay somebody."""
        return f"{to} is paid"

    async def run(store: AsyncStore, id_: str) -> None:
        session, runs = LimpetSession(store, id_), AsyncRuns(store)
        await session.clear_session()
        await session.add_items([{"role": "user", "content": "Hello"}])
        await session.pop_item()
        await runs.delete(id_)
        model = strict(call(("pay", "c1"), to="Bob"), say("Bob is paid."))
        teller = Agent(name="teller", model=model, tools=[pay])
        result = await Runner.run(teller, "Pay Bob.", session=session)
        for ask in await runs.save(id_, result):
            await runs.approve(id_, ask.call_id)
        await runs.resume(id_, teller, session=session, wait=0)
        await runs.output(id_)
        await session.get_items()

    play(run, tmp_path)
    gc.collect()


def test_a_kept_agent_whose_caller_is_cancelled_holds_nothing(tmp_path: Path) -> None:
    """Its lease is given up, and it can be run again."""

    async def run(store: AsyncStore, id_: str) -> None:
        kept = await autogen.keep(agent("anna"), store, id_, hold=True, wait=0)
        await kept.run(task="Hello")
        await kept.save_state()

    play(run, tmp_path)
