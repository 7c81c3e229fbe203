"""What a type checker makes of the public API. mypy reads this file; the tests also run it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, assert_type

import limpet
from limpet import (
    AsyncConversation,
    AsyncJournal,
    AsyncStep,
    AsyncStore,
    AsyncTask,
    Checkpoint,
    Conversation,
    ConversationInfo,
    Decision,
    Entry,
    Journal,
    Step,
    StepContext,
    Store,
    Task,
    TaskInfo,
    TaskVersion,
)
from limpet.backends.contract import Backend, Head
from limpet.tasks.transaction import Block


def test_a_sync_program_is_typed() -> None:
    """Every method, as the README shows them."""
    assert_type(limpet.open("memory:"), Store)
    with limpet.open("memory:", tenant="acme", ttl=60, codec=limpet.Codec()) as store:
        assert_type(store, Store)
        assert_type(store.tenant, str)
        assert_type(store.backend, Backend)
        assert_type(store.sweep(), int)
        conversations(store)
        tasks(store)
        journals(store)
    store.close()


def conversations(store: Store) -> None:
    """Of a conversation."""
    chat = store.conversation("alice", labels={"team": "red"}, ttl=None)
    assert_type(chat, Conversation)
    assert_type(chat.id, str)
    assert_type(chat.append({"role": "user", "content": "hello"}, expect=0, id="turn"), int)
    assert_type(chat.messages(last=1, as_=None), list[dict[str, Any]])
    assert_type(chat.messages(as_=dict[str, str]), list[dict[str, str]])
    assert_type(chat.messages(last=0, as_=str | int), list[Any])
    assert_type(chat.last(), dict[str, Any] | None)
    assert_type(chat.length(), int)
    assert_type(chat.window(max_tokens=100, max_messages=5, count=len), list[dict[str, Any]])
    assert_type(chat.fork("bob", at=1), Conversation)
    assert_type(chat.info(), ConversationInfo)
    assert_type(chat.info().expires_at, datetime | None)
    assert_type(store.conversations(prefix="a", labels={}), Iterator[ConversationInfo])
    chat.label(team=None)
    chat.expire(None)
    chat.clear()
    assert_type(chat.delete(), bool)


def tasks(store: Store) -> None:
    """Of a task."""
    assert_type(store.task("report", "goal", agent="a", lease=5, wait=0), Task)
    with store.task("report", goal="goal") as task:
        assert_type(task, Task)
        assert_type(task.plan(["fetch"]), list[Any])
        assert_type(task.plan.insert("send", because="why"), list[Any])
        assert_type(task.plan.steps, list[Any])
        assert_type(task.versions.list(), list[TaskVersion])
        assert_type(task.versions.at(1), Checkpoint)
        assert_type(task.versions.fork("another"), Task)
        assert_type(task.remaining(), Iterator[Step])
        for step in task.remaining():
            assert_type(step.name, str)
            assert_type(step.data, dict[str, Any])
            assert_type(step.done, bool)
            assert_type(step.task, Task)
            assert_type(step.run(context, as_=None), Any)
        assert_type(task.step("add", sum, [1, 2], as_=int), int)
        task.decide("x", because="y")
        task.discover("z")
        assert_type(task.finish({"a": 1}), Any)
        assert_type(task.results, dict[str, Any])
        assert_type(task.decisions, list[Decision])
        assert_type(task.discoveries, list[str])
        assert_type(task.result("add", int), int)
        assert_type((task.status, task.done, task.error), tuple[str, bool, str | None])
    assert_type(task.checkpoint(), Checkpoint)
    assert_type(task.checkpoint().to_dict(), dict[str, Any])
    assert_type(Checkpoint.from_json(task.checkpoint().to_json()), Checkpoint)
    assert_type(task.resume_context(max_tokens=1000, count=len), str)
    assert_type(task.info(), TaskInfo)
    assert_type(store.tasks(status="done", prefix="r"), Iterator[TaskInfo])
    assert_type(store.run("report", "goal", plan=["a"], execute=context, finish=len), Any)
    assert_type(store.on_finish(goal)(task.checkpoint()), str)
    assert_type(task.delete(), bool)


def goal(done: Checkpoint) -> str:
    """An heir, which stays what it is."""
    return done.goal


def context(*_: object) -> str:
    """Which step is running."""
    assert_type(limpet.current_step(), StepContext)
    return assert_type(limpet.current_step().idempotency_key, str)


def journals(store: Store) -> None:
    """Of a journal."""
    journal = store.journal("note", "todo")
    assert_type(journal, Journal)
    assert_type(journal.append(("added", 1), ("added", 2), expect=0), int)
    assert_type(journal.read(after=0, reverse=True), list[Entry])
    assert_type(journal.pages(size=1), Iterator[list[Entry]])
    assert_type(journal.head(), Head | None)
    assert_type(journal.compact(1), int)
    assert_type(journal.delete(), bool)


def test_an_async_program_is_typed() -> None:
    """The same, awaited."""
    asyncio.run(main())


async def main() -> None:
    """Every method, awaited."""
    assert_type(limpet.open_async("memory:"), AsyncStore)
    async with limpet.open_async("memory:") as store:
        assert_type(store, AsyncStore)
        assert_type(await store.sweep(), int)
        chat = store.conversation("alice")
        assert_type(chat, AsyncConversation)
        assert_type(await chat.append({"role": "user", "content": "hello"}), int)
        assert_type(await chat.messages(), list[dict[str, Any]])
        assert_type(await chat.messages(as_=dict[str, str]), list[dict[str, str]])
        assert_type(await chat.last(), dict[str, Any] | None)
        assert_type(await chat.window(max_tokens=100), list[dict[str, Any]])
        assert_type(await chat.fork("bob"), AsyncConversation)
        assert_type(await chat.info(), ConversationInfo)
        assert_type(store.conversations(), AsyncIterator[ConversationInfo])
        async for info in store.conversations():
            assert_type(info, ConversationInfo)
        async with store.task("report", goal="goal") as task:
            assert_type(task, AsyncTask)
            assert_type(await task.plan(["fetch"]), list[Any])
            assert_type(await task.plan.drop("fetch"), list[Any])
            assert_type(await task.plan.replace(["fetch"]), list[Any])
            assert_type(await task.versions.list(), list[TaskVersion])
            assert_type(await task.versions.fork("other"), AsyncTask)
            for step in task.remaining():
                assert_type(step, AsyncStep)
                assert_type(await step.run(context), Any)
            assert_type(await task.step("add", sum, [1, 2]), Any)
            assert_type(await task.finish(), Any)
        assert_type(await task.checkpoint(), Checkpoint)
        assert_type(await task.resume_context(), str)
        assert_type(store.tasks(), AsyncIterator[TaskInfo])
        assert_type(await store.run("report", "goal", plan=["a"], execute=context), Any)
        journal = store.journal("note", "todo")
        assert_type(journal, AsyncJournal)
        assert_type(await journal.append(("added", 1)), int)
        assert_type(await journal.read(), list[Entry])
        assert_type(journal.pages(), AsyncIterator[list[Entry]])


@dataclass
class Report:
    """What a step returns; stored, it is a dict."""

    pages: int


def test_what_is_read_as_a_type_is_of_that_type(tmp_path: Path) -> None:
    """And nothing else is promised: without as_ it is what was stored, by whatever code."""
    with limpet.open(tmp_path / "a.db") as store:
        with store.task("report", goal="goal") as task:
            task.plan(["print"])
            assert_type(task.step("write", Report, pages=1), Any)
            assert assert_type(task.step("read", Report, 1, as_=Report), Report) == Report(1)
            assert_type(task.step("again", Report, 1, as_=Report, retry=3), Report)
            assert_type(task.step("list", lambda: [1], as_=list[int]), list[int])
            for step in task.remaining():
                assert assert_type(step.run(Report, 1, as_=Report), Report) == Report(1)
            assert_type(task.result("write"), Any)
            assert assert_type(task.result("write", Report), Report) == Report(1)
            assert_type(task.load("write"), Any)
            assert assert_type(task.load("write", Report), Report) == Report(1)
            assert_type(task.load(), dict[str, Any])
            assert_type(task.transaction("pay", paid), Any)
            assert assert_type(task.transaction("pay", paid, as_=Report), Report) == Report(1)
            with task.transaction("block") as block:
                assert_type(block, Block)
            assert_type(book("Dune", copies=2), str)
        state = store.state("report")
        assert_type(state.load(as_=Report, default=None), Report | None)
        state.save(Report(1))
        assert_type(state.load(), Any)
        assert assert_type(state.load(as_=Report, on_change="ignore"), Report) == Report(1)
        assert_type(state.at(1), Any)
        assert assert_type(state.at(1, as_=Report, migrate=False), Report) == Report(1)
    asyncio.run(awaited(tmp_path / "a.db"))


async def awaited(path: Path) -> None:
    """The same on the async face."""
    async with limpet.open_async(path) as store:
        async with store.task("again", goal="goal") as task:
            await task.plan(["print"])
            assert_type(await task.step("write", Report, 1), Any)
            assert assert_type(await task.step("read", Report, 1, as_=Report), Report) == Report(1)
            for step in task.remaining():
                assert assert_type(await step.run(Report, 1, as_=Report), Report) == Report(1)
            assert assert_type(await task.load("write", Report), Report) == Report(1)
            assert_type(await task.load(), dict[str, Any])
            assert assert_type(await task.transaction("pay", paid, as_=Report), Report) == Report(1)
            assert_type(await order("Dune"), str)
        state = store.state("report")
        assert assert_type(await state.load(as_=Report), Report) == Report(1)
        assert_type(await state.load(as_=Report, default=None), Report | None)
        assert assert_type(await state.at(1, as_=Report), Report) == Report(1)


def paid(_connection: Any, pages: int = 1) -> Report:
    """A transaction."""
    return Report(pages)


@limpet.effect
def book(title: str, copies: int = 1) -> str:
    """An effect: it can be called as it is written."""
    return title * copies


@limpet.effect(in_doubt="skip")
async def order(title: str) -> str:
    """One that has options, and is async."""
    return title


def test_what_is_wrong_is_noticed_before_it_runs() -> None:
    """An ignore that is not needed is an error of its own: so each of these is one."""
    with limpet.open("memory:") as store:
        calls = [
            lambda: store.conversation(5),  # type: ignore[arg-type]
            lambda: store.task("a", "b", leese=5),  # type: ignore[call-arg]
            lambda: store.conversation("a").append({"role": "user"}, expect="1"),  # type: ignore[arg-type]
            lambda: store.conversation("a").window(max_token=1),  # type: ignore[call-arg]
            lambda: store.conversations()[0],  # type: ignore[index]
            lambda: store.task("a").step("a", len, "b", in_doubt="wait"),  # type: ignore[call-overload]
            lambda: store.task("a").step("a", len("b")),  # type: ignore[call-overload]
            lambda: store.state("a").load(defautl=None),  # type: ignore[call-overload]
            lambda: store.run("a", "b", plan=[], execute=main),  # type: ignore[arg-type]
            lambda: book(5),  # type: ignore[arg-type]
            lambda: order("Dune", copies=2),  # type: ignore[call-arg]
        ]
        assert len(calls) == 11
