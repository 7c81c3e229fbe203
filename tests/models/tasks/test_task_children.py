"""Tasks within tasks: a child's outcome is a step's result, and its news are its parent's."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import AsyncTask, Registry, Task, TaskHalted, TaskWaiting
from limpet.core.ids import make_key
from limpet.errors import TaskCancelled
from limpet.tasks.ending import Ending
from limpet.tasks.record import LiveTask
from tests.support.dying import Calls, Killed, dying, killed

GOAL = "Refund the customer"


def job(function: Any) -> Registry:
    """A registry in which *function* runs the one kind there is."""
    registry = Registry()
    registry.task("job")(function)
    return registry


def test_a_child_is_a_task_and_a_step(tmp_path: Path) -> None:
    """Its outcome is the step's result, and what it has done it does not do again."""
    count = Calls(3)

    def work(child: limpet.Task, add: int) -> int:
        return int(child.step("count", count)) + add

    with limpet.open(tmp_path / "db") as store:
        with killed(), store.task("t", GOAL) as task:
            task.child("sub", dying(task, lambda child: work(child, 4)))
        with store.task("t") as task:
            assert task.child("sub", work, 4, goal="sub") == 7
        assert store.task("t/sub").info().labels["parent"] == "t"
        assert store.task("t/sub").outcome is None
        assert store.task("t/sub").checkpoint().outcome == 7
    assert len(count.calls) == 1


def test_a_child_that_waits_lets_its_parent_wait(tmp_path: Path) -> None:
    """And the signal wakes both."""
    with limpet.open(tmp_path / "db") as store:

        def run() -> Any:
            with store.task("t", GOAL) as task:
                return task.child("sub", lambda child: child.wait_for("approval"))

        with pytest.raises(TaskWaiting):
            run()
        assert [(found.id, found.status) for found in store.tasks()] == [
            ("t", "waiting"),
            ("t/sub", "waiting"),
        ]
        store.signal("t/sub", "approval", "yes")
        assert {found.status for found in store.tasks()} == {"open"}
        assert run() == "yes"


def test_a_signal_that_a_child_does_not_wait_for_wakes_nobody() -> None:
    """Its parent would be opened, find the child waiting, and wait again."""

    def statuses() -> list[str]:
        return [found.status for found in store.tasks()]

    with limpet.open("memory:") as store:
        with pytest.raises(TaskWaiting), store.task("t", GOAL) as task:
            task.child("sub", lambda child: child.wait_for("approval"))
        store.signal("t/sub", "aproval")
        assert statuses() == ["waiting", "waiting"]
        store.signal("t/sub", "approval")
        assert statuses() == ["open", "open"]


def test_a_parent_that_catches_its_childs_wait_waits_all_the_same() -> None:
    """Or a framework that catches everything would go on without what the child waits for."""
    after = Calls("after")
    with limpet.open("memory:") as store:

        def run() -> Any:
            with store.task("t", GOAL) as task:
                try:
                    found = task.child("sub", lambda child: child.wait_for("approval"))
                except BaseException:  # noqa: BLE001 - as such a framework does
                    found = None
                return [found, task.step("after", after)]

        with pytest.raises(TaskWaiting, match="has caught TaskWaiting"):
            run()
        assert [(found.id, found.status) for found in store.tasks()] == [
            ("t", "waiting"),
            ("t/sub", "waiting"),
        ]
        assert not after.calls
        store.signal("t/sub", "approval", "yes")
        assert run() == ["yes", "after"]


def test_a_parent_is_woken_for_the_first_of_its_children_that_sleeps() -> None:
    """Whichever of them came to it last."""

    async def both(task: AsyncTask) -> None:
        begun = asyncio.Barrier(2)

        async def nap(child: AsyncTask) -> None:
            await begun.wait()
            await child.sleep(600, block=0)

        async def ask(child: AsyncTask) -> None:
            await begun.wait()
            await child.wait_for("approval")

        children = task.child("nap", nap), task.child("ask", ask)
        await asyncio.gather(*children, return_exceptions=True)
        await task.step("after", Calls())

    with limpet.open("memory:") as store:
        store.submit("job", "t", GOAL)
        assert job(both).run(store, "t").status == "waiting"
        assert store.task("t").info().due == store.task("t/nap").info().due is not None
        assert sorted(store.task("t").checkpoint().waiting_for) == ["t/ask", "t/nap"]


def test_cancelling_a_task_cancels_its_children_and_resuming_it_resumes_those() -> None:
    """A worker that runs one of them would go on with it for nobody."""
    asked = Calls("yes")

    def inner(child: Task) -> Any:
        return child.child("inner", lambda grandchild: grandchild.wait_for("approval"))

    def outer(task: Task) -> Any:
        task.child("done", lambda _child: 1)
        return [task.child("sub", inner), task.step("asked", asked)]

    def statuses() -> dict[str, str]:
        return {found.id: found.status for found in store.tasks()}

    with limpet.open("memory:") as store:
        store.submit("job", "t", GOAL)
        assert job(outer).run(store, "t").status == "waiting"
        with store.task("t/another", GOAL):  # whose id begins the same, and is no child
            pass
        store.cancel("t", because="the customer has left")
        cancelled = {"t": "cancelled", "t/sub": "cancelled", "t/sub/inner": "cancelled"}
        assert statuses() == {**cancelled, "t/another": "open", "t/done": "done"}
        assert store.task("t/sub/inner").checkpoint().error == "the customer has left"
        store.resume("t")
        assert {statuses()[id_] for id_ in cancelled} == {"open"}
        store.signal("t/sub/inner", "approval", "yes")
        assert job(outer).run(store, "t").outcome == ["yes", "yes"]


def test_a_child_that_is_begun_as_its_parent_is_cancelled_is_cancelled_too() -> None:
    """It was not there yet when the cancellation looked for children; nothing of it is done."""
    ran: list[str] = []

    def sub(child: Task) -> None:
        child.step("work", ran.append, "work")

    def work(task: Task) -> None:
        store.cancel("t", because="the customer has left")
        task.child("sub", sub)

    with limpet.open("memory:") as store:
        with pytest.raises(TaskCancelled, match="'t/sub'"):
            store.task("t", GOAL).work(work)
        assert {found.id: found.status for found in store.tasks()} == {
            "t": "cancelled",
            "t/sub": "cancelled",
        }
        assert store.task("t/sub").checkpoint().error == "the customer has left"
        assert ran == []
        store.resume("t")
        store.task("t").work(lambda task: task.child("sub", sub))
    assert ran == ["work"]


def test_a_child_that_was_cancelled_by_itself_stays_so_when_its_parent_is_resumed() -> None:
    """Somebody meant it."""
    with limpet.open("memory:") as store:
        with pytest.raises(TaskWaiting), store.task("t", GOAL) as task:
            task.child("sub", lambda child: child.wait_for("approval"))
        store.cancel("t/sub", because="not this one")
        store.cancel("t")
        store.resume("t")
        assert store.task("t/sub").checkpoint().error == "not this one"
        assert store.task("t/sub").info().status == "cancelled"


def test_a_worker_whose_task_is_cancelled_within_a_child_says_so() -> None:
    """The child stops before its next step, and its parent with it."""
    later = Calls()

    def sub(child: Task) -> None:
        store.cancel("t")
        child.step("now", Calls())
        child.step("later", later)

    with limpet.open("memory:") as store:
        store.submit("job", "t", GOAL)
        assert job(lambda task: task.child("sub", sub)).run(store, "t").status == "cancelled"
        assert {found.status for found in store.tasks()} == {"cancelled"}
    assert not later.calls


def test_a_signal_between_the_waits_of_child_and_parent_wakes_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever sent it did not find the parent waiting yet."""
    registry = job(lambda task: task.child("sub", lambda child: child.wait_for("approval")))
    wait_for_child = Ending._wait_for_child

    async def late(self: Ending, halted: TaskHalted) -> None:
        store.signal("t/sub", "approval", "yes")
        await wait_for_child(self, halted)

    with limpet.open("memory:") as store:
        store.submit("job", "t", GOAL)
        with monkeypatch.context() as patch:
            patch.setattr(Ending, "_wait_for_child", late)
            registry.run(store, "t")
        assert store.task("t").info().status == "open"
        assert registry.run(store, "t").outcome == "yes"


def test_a_child_of_a_worker_that_died_is_waited_for() -> None:
    """Its lease may end a little after its parent's."""
    with limpet.open("memory:") as store:
        with store.task("t/sub", "sub"):
            pass
        store.backend.acquire(make_key("default", "task", "t/sub"), "a worker far away", 0.2)
        store.submit("job", "t", GOAL)
        ran = job(lambda task: task.child("sub", Calls("done"))).run(store, "t")
    assert (ran.status, ran.outcome) == ("done", "done")


@pytest.mark.parametrize("how", ["pause", "cancel"])
def test_a_halted_child_lets_its_parent_wait(how: str) -> None:
    """It is no error of the parent's; when the child is resumed, both go on."""
    work = Calls(Killed(), "done")
    registry = job(lambda task: task.child("sub", work))
    with limpet.open("memory:") as store:
        store.submit("job", "t", GOAL)
        with killed():
            registry.run(store, "t")
        getattr(store, how)("t/sub")
        assert registry.run(store, "t").status == "waiting"
        assert store.task("t").info().status == "waiting"
        store.resume("t/sub")
        assert store.task("t").info().status == "open"
        assert registry.run(store, "t").outcome == "done"


def test_children_that_wait_side_by_side_let_their_parent_wait() -> None:
    """A TaskGroup wraps what they raise, and it is still no error."""

    async def both(task: AsyncTask) -> None:
        async with asyncio.TaskGroup() as group:
            for name in ("a", "b"):
                group.create_task(task.child(name, lambda child: child.wait_for("approval")))

    with limpet.open("memory:") as store:
        store.submit("job", "t", GOAL)
        ran = job(both).run(store, "t")
        assert (ran.status, ran.error, ran.raised) == ("waiting", None, None)
        assert store.task("t").info().status == "waiting"


def test_a_child_that_has_slept_leaves_no_time_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or its parent, which waits for something else by now, would be woken for ever."""

    def nap(task: Task) -> None:
        task.child("nap", lambda child: child.sleep(60, block=0))
        task.wait_for("approval")

    with limpet.open("memory:") as store:
        store.submit("job", "t", GOAL)
        registry = job(nap)
        registry.run(store, "t")
        due = store.task("t").info().due
        assert due is not None
        monkeypatch.setattr(LiveTask, "now", lambda _: due)
        assert registry.run(store, "t").waits_for == "approval"
        assert store.task("t").info().due is None
        assert store.task("t").checkpoint().waiting_for == ["approval"]


def test_what_a_child_has_done_is_its_parents_progress() -> None:
    """A parent whose child gets on a little in each run is not given up."""

    def on(child: Task) -> None:
        child.step(f"part {len(child.results)}", Calls())
        raise Killed

    with limpet.open("memory:") as store:
        store.submit("job", "t", GOAL)
        registry = job(lambda task: task.child("sub", on))
        for _ in range(8):
            with killed():
                registry.run(store, "t")
        assert len(store.task("t/sub").checkpoint().completed) == 8


def test_a_child_has_the_deadline_of_its_parent() -> None:
    """It would go on working for nobody."""
    with limpet.open("memory:") as store, store.task("t", GOAL, deadline=60) as task:
        assert task.deadline is not None
        found = task.child("sub", lambda child: child.deadline.isoformat())
        assert found == task.deadline.isoformat()
