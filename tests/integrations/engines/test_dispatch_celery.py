"""Tasks run by Celery, on a real broker, with workers that are killed."""

from __future__ import annotations

import signal
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from celery.exceptions import SoftTimeLimitExceeded

import limpet
from limpet.workers.celery import LONGEST, run_job
from limpet.workers.engine import JobRunner, TaskFailed
from tests.support import engines
from tests.support.dispatched import celery_tasks, registry
from tests.support.dying import Calls
from tests.support.engines import EXAMPLES, Stage, Worker, run_example
from tests.support.processes import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from limpet.workers.celery import Tasks
    from tests.support.servers import RedisServer

pytestmark = pytest.mark.slow

stage = engines.stage

#: Seconds for a result; on a busy machine a worker takes its time.
PATIENCE = 60


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue of the test's own."""
    return str(request.node.name)


@pytest.fixture
def place(redis_server: RedisServer, stage: Stage, queue: str) -> list[str]:
    """Broker, queue and store."""
    return [f"{redis_server.url()}/1", queue, stage.url]


@pytest.fixture
def worker(stage: Stage, place: list[str]) -> Iterator[Worker]:
    """A worker that is there from the beginning."""
    with start_worker(stage, place) as started:
        yield started


@pytest.fixture
def tasks(place: list[str], worker: Worker) -> Iterator[Tasks]:
    """What starts tasks."""
    app, made = celery_tasks(*place)
    with app:
        yield made


def start_worker(stage: Stage, place: list[str]) -> Worker:
    """A worker, which has two processes that run tasks."""
    command = [sys.executable, "-m", "tests.support.dispatched", "celery", *place]
    return Worker(command, " ready.", stage.directory / "worker.log")


def test_a_task_is_run_to_its_end(stage: Stage, tasks: Tasks) -> None:
    """Celery is told how the task stands; what came of it is in the store."""
    assert tasks.start(stage.submit("tale")).get(PATIENCE) == "done"
    assert stage.outcome("tale") == {"steps": ["one", "two", "three"], "answer": None}
    assert stage.diary.steps() == ["one", "two", "three"]


def test_a_killed_worker_is_succeeded_at_the_step_it_was_in(stage: Stage, tasks: Tasks) -> None:
    """The message comes back, and the next worker repeats nothing that was done."""
    stage.diary.hold_up("two")
    started = tasks.start(stage.submit("tale"))
    stage.wait_for_step("two")
    stage.diary.kill("two")
    stage.diary.let_go("two")
    assert started.get(PATIENCE) == "done"
    assert stage.diary.steps() == ["one", "two", "two", "three"]


@pytest.mark.slow
def test_a_worker_that_is_gone_altogether_is_succeeded_when_the_broker_gives_it_up(
    stage: Stage, place: list[str], tasks: Tasks, worker: Worker
) -> None:
    """As when its machine dies: nobody is left to give the message back."""
    stage.diary.hold_up("two")
    started = tasks.start(stage.submit("tale"))
    stage.wait_for_step("two")
    worker.kill()
    stage.diary.let_go("two")
    with start_worker(stage, place):
        assert started.get(PATIENCE) == "done"
    assert stage.diary.steps() == ["one", "two", "two", "three"]


@pytest.mark.slow
def test_a_task_that_is_started_twice_runs_each_step_once(stage: Stage, tasks: Tasks) -> None:
    """Brokers deliver twice, and so do people. The second loses at the lease, and looks again."""
    stage.diary.hold_up("two")
    first = tasks.start(stage.submit("tale"))
    stage.wait_for_step("two")
    second = tasks.start("tale")
    assert until(lambda: second.state == "RETRY")
    stage.diary.let_go("two")
    assert [first.get(PATIENCE), second.get(PATIENCE)] == ["done", "done"]
    assert stage.diary.steps() == ["one", "two", "three"]


def test_a_waiting_task_goes_on_after_a_signal(stage: Stage, tasks: Tasks) -> None:
    """It takes no worker's time until a person has spoken."""
    assert tasks.start(stage.submit("tale", asks=True)).get(PATIENCE) == "waiting"
    assert tasks.signal("tale", "word", "aye").get(PATIENCE) == "done"
    assert stage.outcome("tale")["answer"] == "aye"
    assert stage.diary.steps() == ["one", "two", "three"]


@pytest.mark.slow
def test_a_sleeping_task_is_woken_when_it_is_due(stage: Stage, tasks: Tasks) -> None:
    """By a message with a time, which the broker keeps."""
    assert tasks.start(stage.submit("tale", sleeps=1)).get(PATIENCE) == "done"
    assert stage.diary.steps() == ["one", "two", "three"]


def test_a_failed_task_fails_the_job_and_can_be_mended(stage: Stage, tasks: Tasks) -> None:
    """A chain does not go on; what the error said stays in the store."""
    stage.diary.spoil("two")
    with pytest.raises(TaskFailed, match="has failed") as failure:
        tasks.start(stage.submit("tale")).get(PATIENCE)
    assert "went wrong" not in str(failure.value)
    stage.diary.mend("two")
    stage.store.resume("tale")
    assert tasks.start("tale").get(PATIENCE) == "done"
    assert stage.diary.steps() == ["one", "two", "two", "three"]


def test_a_job_that_is_terminated_leaves_its_task_open(stage: Stage, tasks: Tasks) -> None:
    """Its process was told to end, which is no fault of the task."""
    stage.diary.hold_up("two")
    started = tasks.start(stage.submit("tale"))
    stage.wait_for_step("two")
    started.revoke(terminate=True)
    assert until(lambda: stage.store.task("tale").info().held_by is None)
    assert stage.status("tale") == "open"
    stage.diary.let_go("two")
    assert tasks.start("tale").get(PATIENCE) == "done"
    assert stage.diary.steps() == ["one", "two", "two", "three"]


def test_a_soft_time_limit_leaves_the_task_open_and_it_goes_on(stage: Stage, tasks: Tasks) -> None:
    """It is the job that has no time left, and not the task that has failed."""
    stage.diary.hold_up("two")
    started = tasks.start(stage.submit("tale"), soft_time_limit=1)
    assert until(lambda: started.state == "RETRY")
    assert stage.status("tale") == "open"
    stage.diary.let_go("two")
    assert started.get(PATIENCE) == "done"
    steps = stage.diary.steps()
    assert (steps[0], set(steps[1:-1]), steps[-1]) == ("one", {"two"}, "three")


@pytest.mark.slow
def test_a_worker_that_is_told_to_end_at_once_leaves_its_task_to_another(
    stage: Stage, place: list[str], tasks: Tasks, worker: Worker
) -> None:
    """Who is told by SIGTERM finishes it; SIGQUIT is for those in a hurry."""
    stage.diary.hold_up("two")
    started = tasks.start(stage.submit("tale"))
    stage.wait_for_step("two")
    worker.send(signal.SIGQUIT)
    assert until(lambda: stage.store.task("tale").info().held_by is None)
    assert stage.status("tale") == "open"
    stage.diary.let_go("two")
    with start_worker(stage, place):
        assert started.get(PATIENCE) == "done"
    assert stage.diary.steps() == ["one", "two", "two", "three"]


@pytest.mark.slow
def test_the_example_does_what_it_says(redis_server: RedisServer, tmp_path: Path) -> None:
    """People begin by copying it."""
    where = {
        "BROKER_URL": f"{redis_server.url()}/2",
        "LIMPET_URL": f"sqlite:{tmp_path}/agents.db",
        "OUTBOX": str(tmp_path / "outbox.txt"),
    }
    celery = [sys.executable, "-m", "celery", "--app", "celery_app", "--workdir", str(EXAMPLES)]
    command = [*celery, "worker", "--loglevel", "info", "--concurrency", "1"]
    with Worker(command, " ready.", tmp_path / "worker.log", **where):
        assert run_example("celery_app.py", "write", "june", **where) == "june: waiting\n"
        said = run_example("celery_app.py", "release", "june", **where)
        assert said.splitlines() == ["june: done", "{'topics': 2, 'sent': 2}"]


# -- what needs no broker --------------------------------------------------------------------------


def test_a_step_is_not_tried_again_after_a_soft_time_limit() -> None:
    """Whatever its policy: the process has been asked to end."""
    fetch = Calls(SoftTimeLimitExceeded())
    interrupted = limpet.Registry()
    interrupted.task("job")(lambda task: task.step("fetch", fetch, retry=3))
    with limpet.open("memory:") as store:
        store.submit("job", "t", "Fetch it")
        with pytest.raises(SoftTimeLimitExceeded):
            interrupted.run(store, "t")
        assert store.task("t").info().status == "open"
    assert len(fetch.calls) == 1


def test_a_soft_time_limit_in_a_group_is_one_too(tmp_path: Path) -> None:
    """A TaskGroup wraps what its parts end with; the job is retried, and the task stays open."""

    def job(task: limpet.Task) -> None:
        raise ExceptionGroup("parts", [ValueError("cut short"), SoftTimeLimitExceeded()])

    interrupted = limpet.Registry()
    interrupted.task("job")(job)
    url = f"sqlite:{tmp_path}/agents.db"
    with limpet.open(url) as store:
        store.submit("job", "t", "Fetch it")
        with pytest.raises(Retried):
            run_job(Job(), JobRunner(interrupted, url), "t", "default")
        assert store.task("t").info().status == "open"
        assert store.task("t").info().held_by is None


class Retried(Exception):
    """Raised as Celery does, with when to retry."""


class Job:
    """A Celery task, as far as the adapter sees it."""

    def __init__(self, *, is_eager: bool = False) -> None:
        self.request = SimpleNamespace(is_eager=is_eager)

    def retry(self, *, countdown: float, exc: Exception | None = None) -> Retried:
        """The error to raise."""
        return Retried(countdown)


def test_a_long_sleep_is_cut_into_pieces(stage: Stage) -> None:
    """A message that is kept for longer than the broker's patience would be delivered again."""
    stage.submit("tale", sleeps=24 * 60 * 60)
    runs = JobRunner(registry, stage.url)
    for _ in range(10):
        with pytest.raises(Retried) as retried:
            run_job(Job(), runs, "tale", "default")
        assert retried.value.args == (LONGEST,)
    assert stage.status("tale") == "waiting"
    assert stage.diary.steps() == ["one", "two"]


def test_an_eager_job_is_not_retried(stage: Stage) -> None:
    """It would be, at once and for ever, in the caller's own process."""
    stage.submit("tale", sleeps=60)
    assert (
        run_job(Job(is_eager=True), JobRunner(registry, stage.url), "tale", "default") == "waiting"
    )


@pytest.mark.parametrize(
    "error", [limpet.StoreUnavailable, limpet.errors.StoreBusy, limpet.errors.StoreFull]
)
def test_a_store_that_is_away_is_tried_again(error: type[limpet.StoreError]) -> None:
    """That is no fault of the task."""

    def away() -> limpet.Store:
        raise error("not now")

    with pytest.raises(Retried):
        run_job(Job(), JobRunner(registry, away), "tale", "default")
