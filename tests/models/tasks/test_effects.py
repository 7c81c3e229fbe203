"""Effects: an agent's tools as steps of the task that is open."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import NotStorable, Retry, TaskWaiting, current_step, current_task, effect
from limpet.errors import TaskNotOpen
from tests.support.dying import Calls, die, killed

GOAL = "Tell everybody"


def test_an_effect_is_a_step_of_the_open_task(tmp_path: Path) -> None:
    """A resumed agent that makes the same calls in another order gets the recorded answers."""
    sent: list[str] = []

    @effect
    def send(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return f"{current_step().task_id}: sent to {to}"

    with limpet.open(tmp_path / "db") as store:
        with store.task("t", GOAL):
            assert [send("alice"), send(to="bob")] == ["t: sent to alice", "t: sent to bob"]
        with store.task("t"):
            assert [send(to="bob"), send("alice")] == ["t: sent to bob", "t: sent to alice"]
            assert send("carol") == "t: sent to carol"
    assert sent == ["alice", "bob", "carol"]
    assert (send.__name__, send.__doc__) == ("send", "Send a mail.")


def test_a_call_is_the_same_however_its_arguments_are_passed() -> None:
    """A model, or a framework, passes them by name one time and by place the next."""
    sent = Calls()

    @effect
    def send(to: str, text: str = "hello", *more: str, **options: str) -> None:
        sent(to, text)

    with limpet.open("memory:") as store:
        with store.task("t", GOAL):
            send("ann", "hi")
        with store.task("t") as task:
            send(text="hi", to="ann")
            assert [len(name.partition(":")[2]) for name in task.results] == [16]
            send("ann", "hi", "more")
            send("ann", "hi", urgent="yes")
            with pytest.raises(TypeError, match="missing a required argument: 'to'"):
                send()  # type: ignore[call-arg]
    assert len(sent.calls) == 3


def test_a_function_that_does_not_tell_its_arguments_can_be_an_effect() -> None:
    """Some of those written in C do not."""
    with limpet.open("memory:") as store:
        for _ in range(2):
            with store.task("t", GOAL) as task:
                assert effect(in_doubt="retry")(max)(3, 4) == 4
                assert len(task.results) == 1


def test_a_call_within_a_step_is_part_of_that_step() -> None:
    """The same call in another step is another call."""
    sent = Calls()
    send = effect(name="send")(sent)
    with limpet.open("memory:") as store:
        for _ in range(2):
            with store.task("t", GOAL) as task:
                for turn in ("one", "two"):
                    task.step(turn, send, "ann")
    assert len(sent.calls) == 2


def test_a_colon_in_an_effects_name_makes_it_no_other_effect() -> None:
    """What "mail" does for "to:ann" is not what "mail:to" does for "ann", in whichever order."""
    mail, mail_to, odd = Calls("mail"), Calls("mail:to"), Calls("mail%3Ato")
    effects = [
        effect(name="mail", key=lambda to: f"to:{to}")(mail),
        effect(name="mail:to", key=lambda to: to)(mail_to),
        effect(name="mail%3Ato", key=lambda to: to)(odd),
    ]
    with limpet.open("memory:") as store:
        for order in (1, -1):
            with store.task("t", GOAL) as task:
                found = [send("ann") for send in effects[::order]]
                assert found[::order] == ["mail", "mail:to", "mail%3Ato"]
                assert len(task.results) == 3


def test_the_same_call_after_an_error_is_the_same_call() -> None:
    """A model that tries again does not send twice what may have been sent."""
    sent = Calls(TimeoutError("no answer"))
    send = effect(name="send")(sent)
    with limpet.open("memory:") as store, store.task("t", GOAL) as task:
        with pytest.raises(TimeoutError):
            send("ann")
        with pytest.raises(TaskWaiting, match="no answer"):
            send("ann")
        assert len(task.in_doubt) == 1
    assert len(sent.calls) == 1


def test_a_plain_effect_tried_in_vain_fails_an_async_task() -> None:
    """As an async one does."""
    once = effect(name="once", in_doubt="retry", retry=1)

    async def main() -> None:
        async with limpet.open_async("memory:") as store:
            with pytest.raises(OSError, match="gone"):
                async with store.task("t", GOAL):
                    once(Calls(OSError("gone")))()
            assert (await store.task("t").info()).status == "failed"

    asyncio.run(main())


def test_the_same_call_twice_in_one_run_happens_twice(tmp_path: Path) -> None:
    """A model that asks for the weather again wants to know it again."""
    look = Calls("rain", "sun")
    look.__name__ = "look"  # type: ignore[attr-defined]
    looked = effect(look)
    with limpet.open(tmp_path / "db") as store:
        for _ in range(2):
            with store.task("t", GOAL):
                assert [looked("Paris"), looked("Paris")] == ["rain", "sun"]
    assert len(look.calls) == 2


def test_an_effect_in_doubt_asks_a_person_unless_it_can_be_verified(tmp_path: Path) -> None:
    """What must not happen twice is not run again by itself."""
    with limpet.open(tmp_path / "db") as store:

        @effect
        def send(to: str) -> None:
            die(current_task())

        @effect(verify=lambda key: "found")
        def pay(amount: int) -> None:
            die(current_task())

        with killed(), store.task("t", GOAL):
            send("alice")
        with pytest.raises(TaskWaiting, match="happened before its process died"), store.task("t"):
            send("alice")
        with killed(), store.task("u", GOAL):
            pay(7)
        with store.task("u"):
            assert pay(7) == "found"


def test_effects_await_where_they_are_awaited(tmp_path: Path) -> None:
    """An async tool, and a plain one that the framework runs in a thread, in one async task."""
    calls: list[str] = []

    @effect(in_doubt="skip")
    async def fetch(page: int) -> str:
        await asyncio.sleep(0)
        calls.append(f"fetch {page}")
        return f"page {page}"

    @effect(in_doubt="retry", retry=Retry(attempts=2, wait=0))
    def save(page: int) -> int:
        calls.append(f"save {page}")
        return page

    async def agent() -> list[Any]:
        async with limpet.open_async(tmp_path / "db") as store, store.task("t", GOAL) as task:
            assert current_task() is task
            return [await fetch(1), save(1), await asyncio.to_thread(save, 2)]

    for _ in range(2):
        assert asyncio.run(agent()) == ["page 1", 1, 2]
    assert calls == ["fetch 1", "save 1", "save 2"]


def test_an_async_effect_can_be_part_of_a_sync_task(tmp_path: Path) -> None:
    """Where a program opens a task and then runs a loop in it."""

    @effect
    async def fetch(page: int) -> int:
        return page

    with limpet.open(tmp_path / "db") as store, store.task("t", GOAL) as task:
        assert asyncio.run(fetch(3)) == 3
        assert task.load() == task.results
        assert list(task.results.values()) == [3]


def test_an_effect_outside_of_a_task_is_an_error_unless_it_may_be_just_a_call() -> None:
    """It would not be recorded, and nobody would know."""

    @effect
    def send() -> None:
        raise AssertionError

    with pytest.raises(TaskNotOpen, match="send is an effect, and no task is open here"):
        send()
    with pytest.raises(TaskNotOpen, match="No task is open here"):
        current_task()

    @effect(outside="call")
    def look() -> str:
        return "seen"

    @effect(outside="call")
    async def look_async() -> str:
        return "seen"

    assert look() == asyncio.run(look_async()) == "seen"
    with pytest.raises(ValueError, match="outside is 'raise' or 'call'"):
        effect(outside="maybe")(look)  # type: ignore[call-overload]


def test_arguments_that_cannot_be_stored_need_a_key(tmp_path: Path) -> None:
    """Otherwise nobody could tell one call from another."""

    @effect
    def send(connection: object, to: str) -> str:
        return to

    @effect(name="mail", key=lambda connection, to: to)
    def keyed(connection: object, to: str) -> str:
        return to

    with limpet.open(tmp_path / "db") as store, store.task("t", GOAL) as task:
        with pytest.raises(NotStorable, match=r"limpet\.effect\(key="):
            send(object(), "alice")
        assert keyed(object(), "alice") == "alice"
        assert list(task.results) == ["mail:alice"]


def test_tasks_within_tasks_each_have_their_own_effects(tmp_path: Path) -> None:
    """An effect belongs to the task that was opened last."""

    @effect
    def note() -> str:
        return str(current_task().id)

    with limpet.open(tmp_path / "db") as store, store.task("outer", GOAL):
        with store.task("inner", GOAL):
            assert note() == "inner"
        assert note() == "outer"
