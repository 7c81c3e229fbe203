"""Tests of the registry: which function runs a task, and how a run ends."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet import AsyncTask, Registry, RunResult, Store, StoreUnavailable, Task
from limpet.core.ids import make_key
from limpet.errors import UnknownKind
from limpet.store import as_async

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FACES = ["sync", "async"]


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store."""
    with limpet.open("memory:") as opened:
        yield opened


class Runs:
    """Runs tasks from one of the two faces of a store."""

    def __init__(self, store: Store, face: str) -> None:
        self.store = store
        self.registry = Registry()
        self._face = face

    def __call__(self, task_id: str, **options: Any) -> RunResult:
        """Run a task."""
        if self._face == "sync":
            return self.registry.run(self.store, task_id, **options)
        return asyncio.run(self.registry.run_async(as_async(self.store), task_id, **options))

    def of(self, function: Callable[..., Any], **options: Any) -> RunResult:
        """Submit a task that is run by *function*, and run it."""
        self.registry.task("job", **options)(function)
        self.store.submit("job", "t", "Do it", input=[1, 2])
        return self("t")


@pytest.fixture(params=FACES)
def run(request: pytest.FixtureRequest, store: Store) -> Runs:
    """From each face."""
    return Runs(store, request.param)


def entries(store: Store, task_id: str = "t") -> list[str]:
    """The types of a task's entries."""
    return [entry.type for entry in store.journal("task", task_id).read()]


# -- which function --------------------------------------------------------------------------------


def test_what_a_plain_function_returns_is_the_outcome(run: Runs) -> None:
    """A function need not know how tasks end."""

    def add(task: Task) -> int:
        assert type(task) is Task
        return int(task.step("add", sum, task.input))

    ran = run.of(add)
    assert (ran.id, ran.status, ran.outcome) == ("t", "done", 3)
    assert entries(run.store) == ["created", "resumed", "step", "finished"]


def test_what_an_async_function_returns_is_the_outcome(run: Runs) -> None:
    """It gets a task to await, whether or not the program that runs it is async."""

    async def add(task: AsyncTask) -> Any:
        assert type(task) is AsyncTask
        await asyncio.sleep(0)
        return await task.step("add", sum, task.input)

    ran = run.of(add)
    assert (ran.status, ran.outcome) == ("done", 3)


def test_an_object_that_is_called_may_be_async(run: Runs) -> None:
    """A framework's agent is often one."""

    class Agent:
        async def __call__(self, task: AsyncTask) -> str:
            return task.goal

    assert run.of(Agent()).outcome == "Do it"


def test_a_plain_function_does_not_hold_up_an_event_loop(store: Store) -> None:
    """It runs in a thread, so that it may block."""
    runs = Runs(store, "async")

    def where(task: Task) -> bool:
        return threading.current_thread() is threading.main_thread()

    assert runs.of(where).outcome is False


def test_within_an_event_loop_an_async_function_is_awaited(store: Store) -> None:
    """The error says by what."""
    registry = Registry()

    @registry.task("job")
    async def nothing(task: AsyncTask) -> None:
        pass

    async def wrong() -> None:
        registry.run(store, "t")

    store.submit("job", "t", "Do it")
    with pytest.raises(RuntimeError, match=r"await registry\.run_async"):
        asyncio.run(wrong())
    assert store.task("t").info().status == "open"


def test_a_kind_has_one_function(store: Store) -> None:
    """Or nobody knows which one would be called."""
    registry = Registry()
    registry.task("job")(print)
    with pytest.raises(ValueError, match="already"):
        registry.task("job")
    assert "job" in registry
    assert [kind.name for kind in registry] == ["job"]
    assert registry["job"].function is print


def test_limits_and_leases_are_checked_where_they_are_given() -> None:
    """Not in a worker, at night."""
    registry = Registry()
    with pytest.raises(ValueError, match="at least 1"):
        registry.task("job", limit=0)
    with pytest.raises(ValueError, match="lease"):
        registry.task("job", lease=0)
    with pytest.raises(limpet.errors.InvalidId):
        registry.task("")


def test_the_decorated_function_stays_what_it_was() -> None:
    """It can be called, and tested, without a worker."""
    registry = Registry()

    @registry.task("job")
    def double(task: Any) -> Any:
        return 2 * task

    assert double(21) == 42


def test_a_task_of_another_kind_is_not_run(run: Runs) -> None:
    """The error names the kinds that there are."""
    run.registry.task("job")(print)
    run.store.submit("other", "t", "Do it")
    with pytest.raises(UnknownKind, match=r"kind 'other'.*it has: 'job'"):
        run("t")


def test_a_task_that_was_not_submitted_is_not_run(run: Runs) -> None:
    """It is somebody's own, and has no kind."""
    with run.store.task("t", "Do it"):
        pass
    with pytest.raises(UnknownKind, match="was not submitted"):
        run("t")


def test_a_task_that_is_not_there_is_not_found(run: Runs) -> None:
    """It may have expired."""
    with pytest.raises(limpet.errors.TaskNotFound):
        run("t")


# -- how it ends -----------------------------------------------------------------------------------


def test_a_function_may_finish_by_itself(run: Runs) -> None:
    """What it returns then does not matter."""

    def finish(task: Task) -> str:
        task.finish("mine")
        return "returned"

    assert run.of(finish).outcome == "mine"


@pytest.mark.parametrize("error", [KeyError("secret"), limpet.Conflict("no")])
def test_an_error_fails_the_task(run: Runs, error: BaseException) -> None:
    """And is recorded; nothing runs it again until somebody says so."""
    calls = []

    def break_(task: Task) -> None:
        calls.append(task.id)
        raise error

    ran = run.of(break_)
    assert ran.status == "failed"
    assert ran.error is not None
    assert ran.error.startswith(f"{ran.raised}: ")
    again = run("t")
    assert (again.status, again.error) == (ran.status, ran.error)
    assert calls == ["t"]
    run.store.resume("t")
    run("t")
    assert calls == ["t", "t"]


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_what_ends_the_process_leaves_the_task_open(store: Store, end: type[BaseException]) -> None:
    """In the main thread it is a signal that speaks, and the next process goes on."""
    registry = Registry()

    @registry.task("job")
    def interrupted(task: Task) -> str:
        task.step("first", lambda: None)
        if store.task("t").info().position < 5:
            raise end
        return "fine"

    store.submit("job", "t", "Do it")
    with pytest.raises(end):
        registry.run(store, "t")
    assert (store.task("t").info().status, store.task("t").info().held_by) == ("open", None)
    assert entries(store) == ["created", "resumed", "step", "stopped"]
    assert registry.run(store, "t").outcome == "fine"


def test_a_function_that_exits_in_a_thread_has_failed(store: Store) -> None:
    """There it ends nothing but itself, and would do so again."""
    registry = Registry()
    registry.task("job")(lambda task: sys.exit(3))
    store.submit("job", "t", "Do it")
    with ThreadPoolExecutor() as pool:
        assert pool.submit(registry.run, store, "t").result().error == "SystemExit: 3"


def test_an_error_of_an_async_function_fails_the_task(run: Runs) -> None:
    """As that of a plain one."""

    async def break_(task: AsyncTask) -> None:
        raise ValueError("no")

    assert run.of(break_).error == "ValueError: no"


def test_an_outcome_that_cannot_be_stored_fails_the_task(run: Runs) -> None:
    """It would fail again and again."""
    ran = run.of(lambda task: threading.Lock())
    assert ran.status == "failed"
    assert ran.error is not None
    assert "NotStorable" in ran.error


def test_a_task_that_fails_itself_has_failed(run: Runs) -> None:
    """Without an error."""
    ran = run.of(lambda task: task.fail("no such customer"))
    assert (ran.status, ran.error) == ("failed", "no such customer")


def test_a_step_tried_in_vain_fails_the_task(run: Runs) -> None:
    """The function's error is the step's, and is recorded once."""

    def break_(task: Task) -> None:
        task.step("try", lambda: 1 / 0, retry=limpet.Retry(attempts=2, wait=0))

    assert run.of(break_).status == "failed"
    assert entries(run.store).count("failed") == 1


def test_a_task_that_waits_ends_the_run(run: Runs) -> None:
    """The worker is free; the signal makes the task one that can be run."""

    def ask(task: Task) -> Any:
        return task.wait_for("approval")

    ran = run.of(ask)
    assert (ran.status, ran.waits_for, ran.error) == ("waiting", "approval", None)
    run.store.signal("t", "approval", {"by": "Ann"})
    assert run("t").outcome == {"by": "Ann"}


@pytest.mark.parametrize("what", ["pause", "cancel"])
def test_a_halted_task_is_not_run(run: Runs, what: str) -> None:
    """Nor is it an error: the status says so."""
    run.store.submit("job", "t", "Do it")
    getattr(run.store, what)("t")
    run.registry.task("job")(pytest.fail)
    assert run("t").status == {"pause": "paused", "cancel": "cancelled"}[what]
    assert entries(run.store) == ["created", {"pause": "paused", "cancel": "cancelled"}[what]]


def test_a_task_that_is_cancelled_while_it_runs_ends(run: Runs) -> None:
    """Before its next step."""

    def work(task: Task) -> None:
        task.step("one", run.store.cancel, "t")
        task.step("two", pytest.fail)

    assert run.of(work).status == "cancelled"


@pytest.mark.parametrize(("what", "status"), [("pause", "paused"), ("cancel", "cancelled")])
def test_an_error_of_a_halted_task_does_not_fail_it(run: Runs, what: str, status: str) -> None:
    """What a person has said stands; the error is on record."""

    def work(task: Task) -> None:
        getattr(run.store, what)("t")
        raise ValueError("no")

    ran = run.of(work)
    assert (ran.status, ran.raised, ran.error) == (status, "ValueError", "ValueError: no")
    assert run.store.task("t").info().status == status
    assert entries(run.store) == ["created", "resumed", status, "stopped"]


def test_why_it_was_cancelled_is_worth_more_than_the_error(run: Runs) -> None:
    """The error is in the history."""

    def work(task: Task) -> None:
        run.store.cancel("t", because="a duplicate")
        raise ValueError("no")

    assert run.of(work).error == "a duplicate"


def test_a_wait_that_the_function_swallows_ends_the_run(run: Runs) -> None:
    """The task waits all the same, and what the function returns is no outcome."""

    def work(task: Task) -> Any:
        with contextlib.suppress(Exception):
            task.wait_for("approval")
        return "paid"

    assert run.of(work).status == "waiting"
    run.store.signal("t", "approval")
    assert run("t").outcome == "paid"


def test_a_task_past_its_deadline_has_failed(run: Runs) -> None:
    """It is not begun, however long it has been in the queue."""
    run.store.submit("job", "t", "Do it", deadline=0.01)
    run.registry.task("job")(lambda task: task.step("late", pytest.fail))
    threading.Event().wait(0.02)
    ran = run("t")
    assert ran.status == "failed"
    assert run.store.task("t").info().status == "failed"


def test_a_task_of_another_worker_is_held(run: Runs) -> None:
    """A double dispatch loses here."""
    run.registry.task("job")(pytest.fail)
    run.store.submit("job", "t", "Do it")
    key = make_key("default", "task", "t")
    run.store.backend.acquire(key, "somebody", 60)
    assert run("t").status == "held"


def test_a_task_that_is_taken_over_is_lost(run: Runs) -> None:
    """The late worker writes nothing, not even that it has failed."""

    def work(task: Task) -> None:
        key = make_key("default", "task", "t")
        head = run.store.backend.head(key)
        assert head is not None
        assert head.lease is not None
        run.store.backend.acquire(key, "successor", 60, over=head.lease.epoch)
        task.step("late", lambda: None)

    assert run.of(work).status == "lost"
    assert entries(run.store) == ["created", "resumed"]


def test_a_task_that_is_done_stays_so(run: Runs) -> None:
    """A second run returns the outcome, and calls nothing."""
    calls: list[str] = []
    ran = run.of(lambda task: calls.append(task.id))
    assert ran.status == "done"
    assert run("t") == ran
    assert calls == ["t"]
    assert entries(run.store)[-1] == "finished"


def test_a_task_that_goes_when_it_is_done_is_done(run: Runs) -> None:
    """What is left of it is the outcome in the hand of the one who ran it."""
    ran = run.of(lambda task: task.finish("fine", keep=False))
    assert (ran.status, ran.outcome) == ("done", "fine")
    assert list(run.store.tasks()) == []


def test_a_store_that_is_away_does_not_fail_the_task(run: Runs) -> None:
    """It is no fault of the task's; it can be run again."""
    away = [True]

    def work(task: Task) -> str:
        if away:
            away.clear()
            raise StoreUnavailable("gone for lunch")
        return "fine"

    with pytest.raises(StoreUnavailable):
        run.of(work)
    assert run.store.task("t").info().status == "open"
    assert run("t").outcome == "fine"


def test_a_task_that_comes_to_nothing_is_given_up(run: Runs) -> None:
    """One that kills its process again and again does not do so for ever."""
    run.registry.task("job")(pytest.fail)
    run.store.submit("job", "t", "Do it")
    for _ in range(3):  # as by processes that died
        with run.store.task("t"):
            pass
    ran = run("t", give_up_after=3)
    assert ran.status == "failed"
    assert ran.error is not None
    assert "given up: 3 runs" in ran.error


def test_a_task_that_gets_on_is_not_given_up(run: Runs) -> None:
    """However often its process dies."""
    run.store.submit("job", "t", "Do it")
    for number in range(6):
        with run.store.task("t") as task:
            task.step(str(number), lambda: None)
    run.registry.task("job")(lambda task: "fine")
    assert run("t", give_up_after=1).outcome == "fine"


def test_nothing_of_a_task_is_in_a_representation() -> None:
    """What is logged by accident is no secret."""
    assert repr(RunResult("t", "done", "secret", "secret")) == "RunResult('t', status='done')"
    registry = Registry()
    registry.task("job")(print)
    assert repr(registry) == "Registry(job)"


def test_who_opens_a_task_is_called(run: Runs) -> None:
    """When it is theirs, and only then."""
    calls: list[str] = []
    run.registry.task("job")(lambda task: calls.append("run"))
    run.store.submit("job", "t", "Do it")
    run("t", on_open=lambda: calls.append("open"))
    run("t", on_open=lambda: calls.append("open"))
    assert calls == ["open", "run"]


def test_the_agent_is_recorded(run: Runs) -> None:
    """So that one can see who did what."""
    run.registry.task("job")(lambda task: None)
    run.store.submit("job", "t", "Do it")
    run("t", agent="night-shift")
    assert run.store.task("t").checkpoint().agent_id == "night-shift"


def test_a_registry_costs_no_event_loop() -> None:
    """A sync program that has one does not load asyncio for it."""
    assert sys.modules["limpet.workers.registry"].__dict__.get("asyncio") is None
