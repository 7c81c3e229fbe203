"""Steps in doubt are named in the head of their task: found by a look at it, and resolved there."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Retry, Store, TaskHeld, TaskWaiting
from limpet.backends.contract import Append, Appended
from limpet.core.calls import Call, all_in_doubt, calls_in_doubt
from limpet.core.meta import Meta
from limpet.core.runtime import run_to_end
from limpet.errors import EffectsWarning
from tests.support import stores
from tests.support.dying import Calls, die, dying, ended_by, killed
from tests.support.stores import Place

place, store = stores.place, stores.store

GOAL = "Pay the bills"


class Boom(Exception):
    """What goes wrong in these tests."""


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Store]:
    """A store for code that blocks."""
    with limpet.open(tmp_path / "db") as store:
        yield store


def named(store: Any, task: str = "t") -> dict[str, Call]:
    """The calls that the head of a task names."""
    head = store.backend.head(store.journal("task", task).key)
    assert head is not None
    return dict(Meta.of(head).calls)


def doubtful(store: Any, task: str = "t") -> list[str]:
    """Those of them that nobody is making."""
    head = store.backend.head(store.journal("task", task).key)
    assert head is not None
    return [call.id for call in calls_in_doubt(head)]


def test_a_step_is_named_in_the_head_while_it_runs(place: Place, store: Store) -> None:
    """From its beginning to its end, and with its policy; a plain step costs nothing of that."""
    beside, seen = place.beside(), []

    def look() -> None:
        seen.append({name: call.policy for name, call in named(beside).items()})

    with store.task("t", GOAL) as task:
        task.step("plain", look)
        task.step("pay", look, in_doubt="ask")
        assert named(beside) == {}
        task.step("send", look, verify=lambda _key: None)
        with pytest.raises(Boom):
            task.step("print", Calls(Boom("no paper")), in_doubt="skip")
        assert {name: call.error for name, call in named(beside).items()} == {
            "print": "Boom: no paper"
        }
    assert seen == [{}, {"pay": "ask"}, {"send": "verify"}]


def test_what_is_in_doubt_in_a_store_is_found_by_its_heads(place: Place, store: Store) -> None:
    """Not while it runs; from when its process died until somebody has said what became of it."""
    beside = place.beside()
    with killed(), store.task("t", GOAL) as task:

        def pay() -> None:
            assert doubtful(beside) == []
            die(task)

        task.step("pay", pay, in_doubt="ask")
    found = run_to_end(all_in_doubt(beside._core.scope))
    assert [(one.kind, one.id, one.call.id, one.call.policy) for one in found] == [
        ("task", "t", "pay", "ask")
    ]
    store.resolve("t", "pay", "done", result="receipt", by="Ann")
    assert run_to_end(all_in_doubt(beside._core.scope)) == []
    with place.open().task("t") as task:
        assert task.step("pay", Calls(), in_doubt="ask") == "receipt"


def test_a_step_that_failed_can_be_resolved_while_others_run(place: Place, store: Store) -> None:
    """It is known not to run; one that was left by an earlier run neither."""
    beside = place.beside()
    with killed(), store.task("t", GOAL) as task:
        task.step("pay", dying(task), in_doubt="ask")
    with place.open().task("t") as task:
        with pytest.raises(Boom):
            task.step("send", Calls(Boom()), in_doubt="ask")
        assert sorted(doubtful(beside)) == ["pay", "send"]
        beside.resolve("t", "pay", "done", result="receipt")
        beside.resolve("t", "send", "skip")
        assert named(beside) == {}
        assert task.step("pay", Calls(), in_doubt="ask") == "receipt"
        assert task.step("send", Calls(), in_doubt="ask") is None

        def body() -> None:
            with pytest.raises(TaskHeld, match="Step 'print' of task 't' is running, by "):
                beside.resolve("t", "print", "retry")

        task.step("print", body, in_doubt="ask")


def test_a_step_that_is_resolved_between_two_attempts_is_not_run_again(
    place: Place, store: Store
) -> None:
    """A person has found out meanwhile, and nothing is left in doubt."""
    beside, pay = place.beside(), Calls(ConnectionRefusedError("full"), "again")
    retry = Retry(attempts=2, wait=0.01, on=ConnectionRefusedError)
    with store.task("t", GOAL) as task:
        record = task.runner.record
        runtime: Any = record.runtime

        class Meanwhile:
            def __getattr__(self, name: str) -> Any:
                return getattr(runtime, name)

            async def sleep(self, seconds: float) -> None:
                beside.resolve("t", "pay", "done", result="receipt")
                await runtime.sleep(seconds)

        record.runtime = Meanwhile()
        assert task.step("pay", pay, in_doubt="ask", retry=retry) == "receipt"
        assert task.in_doubt == []
    assert len(pay.calls) == 1
    assert named(beside) == {}


def test_steps_side_by_side_are_all_named(opened: Store) -> None:
    """Whoever's beginning was written last; and when all have ended, none is."""
    together = threading.Barrier(8)
    seen: list[set[str]] = []

    def pay(number: int) -> int:
        together.wait(30)
        seen.append(set(named(opened)))
        together.wait(30)
        return number

    with opened.task("t", GOAL) as task, ThreadPoolExecutor(8) as pool:
        ran = pool.map(lambda n: task.step(f"pay {n}", pay, n, in_doubt="ask"), range(8))
        assert list(ran) == list(range(8))
        assert task.in_doubt == []
    assert seen == [{f"pay {n}" for n in range(8)}] * 8
    assert named(opened) == {}


def test_plain_and_async_effects_of_one_task_are_named_together(tmp_path: Path) -> None:
    """They reach the store by two ways, and write of each other's calls."""
    seen: list[int] = []

    async def main() -> None:
        async with limpet.open_async(tmp_path / "db") as store:
            begun = asyncio.Event()

            @limpet.effect
            def send(number: int) -> None:
                seen.append(len(named(store)))

            @limpet.effect
            async def pay(number: int) -> None:
                begun.set()
                await asyncio.sleep(0.01)

            async with store.task("t", GOAL) as task, asyncio.TaskGroup() as group:
                for number in range(4):
                    group.create_task(pay(number))
                await begun.wait()
                send(0)
                await asyncio.to_thread(send, 1)
            assert len(task.results) == 6
            assert named(store) == {}

    asyncio.run(main())
    assert all(1 <= count <= 5 for count in seen)


def test_what_somebody_resolves_at_the_same_moment_stays_resolved(opened: Store) -> None:
    """The head would name it again, by whoever did not know of that yet."""
    with killed(), opened.task("t", GOAL) as task:
        task.step("pay", dying(task), in_doubt="ask")
    with opened.task("t") as task:
        record = task.runner.record
        runtime: Any = record.runtime
        answered: list[bool] = []

        class Meanwhile:
            def __getattr__(self, name: str) -> Any:
                return getattr(runtime, name)

            async def append(self, request: Append) -> Appended:
                if not answered:
                    answered.append(True)
                    opened.resolve("t", "pay", "done", result="receipt")
                done: Appended = await runtime.append(request)
                return done

        record.runtime = Meanwhile()
        assert task.step("send", lambda: sorted(named(opened)), in_doubt="ask") == ["send"]
        assert task.results["pay"] == "receipt"


def test_an_earlier_version_has_its_doubts_and_an_end_has_none(place: Place, store: Store) -> None:
    """A fork names them, and a task that goes back; of a task that is done nobody asks any more."""
    beside = place.beside()
    with store.task("t", GOAL) as task:
        with pytest.raises(Boom):
            task.step("pay", Calls(Boom()), in_doubt="ask")
        here = task.info().position
        task.step("look", Calls("all is well"))
        assert task.finish("paid, by all we know") == "paid, by all we know"
    assert named(beside) == {}
    with pytest.raises(limpet.errors.TaskFinished, match="is done, so it cannot be resolved"):
        store.resolve("t", "pay", "done")
    store.task("t").versions.fork("t2", at=here)
    assert doubtful(beside, "t2") == ["pay"]
    with store.task("t") as task:
        task.versions.rewind(to=here)
        assert doubtful(beside) == ["pay"]
    with ended_by(TaskWaiting, place.open().task("t2")) as task:
        task.step("pay", Calls(), in_doubt="ask")
    with pytest.warns(EffectsWarning, match="pay"):
        store.task("t").versions.fork("t3", at=1)
    assert named(beside, "t3") == {}


def test_a_step_that_an_edited_program_runs_otherwise_is_no_longer_named(
    place: Place, store: Store
) -> None:
    """As a plain step, or a transaction: its result ends what was in doubt."""
    beside = place.beside()
    with killed(), store.task("t", GOAL) as task:
        task.step("pay", dying(task), in_doubt="ask")
    with place.open().task("t") as task:
        assert list(named(beside)) == ["pay"]
        if store.backend.transactional:
            assert task.transaction("pay", lambda _connection: "paid") == "paid"
        else:
            assert task.step("pay", Calls("paid")) == "paid"
        assert task.in_doubt == []
    assert named(beside) == {}


def test_a_long_error_is_short_in_the_head(place: Place, store: Store) -> None:
    """It is read with every list; the record has all of it."""
    with pytest.raises(Boom), store.task("t", GOAL) as task:
        task.step("pay", Calls(Boom("x" * 5_000)), in_doubt="ask")
    error = named(place.beside())["pay"].error
    assert error is not None
    assert error.startswith("Boom: xxx")
    assert len(error) <= 200
    assert len(str(task.runner.live.state.calls.open["pay"].error)) > 5_000
