"""Tasks run by Ray, on a small cluster of this machine, with workers that are killed."""

from __future__ import annotations

import signal
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING

import pytest
import ray

from limpet.workers.ray import JobResult, Tasks
from tests.support import engines
from tests.support.dispatched import registry
from tests.support.engines import Stage, run_example
from tests.support.processes import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.server, pytest.mark.slow]

stage = engines.stage


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster with two processors and little memory."""
    # Short: the names of sockets, which are in it, are.
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(prefix="limpet-ray-") as place:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init(
            num_cpus=2,
            object_store_memory=80_000_000,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=place,
        )
        yield ray.get_runtime_context().gcs_address
        ray.shutdown()


@pytest.fixture
def tasks(cluster: str, stage: Stage) -> Tasks:
    """What starts tasks."""
    return Tasks(registry, stage.url)


@pytest.mark.slow
def test_tasks_are_run_to_their_end(stage: Stage, tasks: Tasks) -> None:
    """Ray is told how they stand; what came of them is in the store."""
    names = [stage.submit(f"tale-{number}") for number in range(4)]
    assert tasks.run_many(names) == dict.fromkeys(names, "done")
    assert stage.outcome("tale-3") == {"steps": ["one", "two", "three"], "answer": None}
    assert sorted(stage.diary.steps()) == sorted(["one", "two", "three"] * 4)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_worker_is_succeeded_at_the_step_it_was_in(
    stage: Stage, tasks: Tasks, number: signal.Signals
) -> None:
    """Ray starts the job again, and what was done is not repeated."""
    stage.diary.hold_up("two")
    started = tasks.start(stage.submit("tale"))
    stage.wait_for_step("two")
    stage.diary.kill("two", number)
    stage.diary.let_go("two")
    assert ray.get(started) == JobResult("done")
    assert stage.diary.steps() == ["one", "two", "two", "three"]


def test_a_job_that_is_cancelled_leaves_its_task_open(stage: Stage, tasks: Tasks) -> None:
    """It is interrupted; whoever starts the task again has it go on at the step."""
    stage.diary.hold_up("two")
    started = tasks.start(stage.submit("tale"))
    stage.wait_for_step("two")
    ray.cancel(started)
    assert until(lambda: stage.store.task("tale").info().held_by is None)
    assert stage.status("tale") == "open"
    stage.diary.let_go("two")
    assert tasks.run_many(["tale"]) == {"tale": "done"}
    assert stage.diary.steps() == ["one", "two", "two", "three"]


def test_a_task_whose_workers_die_too_often_is_raised(stage: Stage, cluster: str) -> None:
    """The caller learns of it when the others have run; the task can be started again."""
    stage.diary.hold_up("two")
    stage.submit("tale")
    patient = Tasks(registry, stage.url, max_retries=0)

    def murder() -> None:
        stage.wait_for_step("two")
        stage.diary.kill("two")

    Thread(target=murder).start()
    with pytest.raises(ExceptionGroup) as failure:
        patient.run_many(["tale"])
    assert isinstance(failure.value.exceptions[0], ray.exceptions.WorkerCrashedError)
    assert failure.value.exceptions[0].__notes__ == ["This was task 'tale'."]
    stage.diary.let_go("two")
    assert patient.run_many(["tale"]) == {"tale": "done"}
    assert stage.diary.steps() == ["one", "two", "two", "three"]


@pytest.mark.slow
def test_a_task_that_is_started_twice_runs_each_step_once(stage: Stage, tasks: Tasks) -> None:
    """The second loses at the lease, and is told when to look again."""
    stage.diary.hold_up("two")
    first = tasks.start(stage.submit("tale"))
    stage.wait_for_step("two")
    second = ray.get(tasks.start("tale"))
    assert second.status == "held"
    assert second.again is not None
    stage.diary.let_go("two")
    assert tasks.run_many(["tale", "tale"]) == {"tale": "done"}
    assert ray.get(first) == JobResult("done")
    assert stage.diary.steps() == ["one", "two", "three"]


def test_a_waiting_task_goes_on_after_a_signal(stage: Stage, tasks: Tasks) -> None:
    """It takes no worker's time until a person has spoken."""
    assert tasks.run_many([stage.submit("tale", asks=True)]) == {"tale": "waiting"}
    assert ray.get(tasks.signal("tale", "word", "aye")) == JobResult("done")
    assert stage.outcome("tale")["answer"] == "aye"
    assert stage.diary.steps() == ["one", "two", "three"]


@pytest.mark.slow
def test_a_sleeping_task_is_woken_by_the_caller(stage: Stage, tasks: Tasks) -> None:
    """Ray has no timers; who does not want to wait is told what sleeps."""
    stage.submit("tale", sleeps=1)
    assert tasks.run_many(["tale"], wait=False) == {"tale": "waiting"}
    assert tasks.run_many(["tale"]) == {"tale": "done"}
    assert stage.diary.steps() == ["one", "two", "three"]


def test_a_failed_task_holds_up_no_other_and_can_be_mended(stage: Stage, tasks: Tasks) -> None:
    """Each has its own status."""
    stage.submit("good", asks=True)
    stage.diary.spoil("three")
    stage.submit("bad")
    assert tasks.run_many(["good", "bad"]) == {"good": "waiting", "bad": "failed"}
    stage.diary.mend("three")
    stage.store.resume("bad")
    assert tasks.run_many(["bad"]) == {"bad": "done"}
    assert stage.diary.steps().count("one") == 2


@pytest.mark.slow
def test_the_example_does_what_it_says(cluster: str, tmp_path: Path) -> None:
    """People begin by copying it; and a second run finds everything done."""
    where = {"RAY_ADDRESS": cluster, "LIMPET_URL": f"sqlite:{tmp_path}/agents.db"}
    expected = [
        "minutes: done: We met on Monday.",
        "letter: done: We ate it all.",
        "report: done: Sales are up.",
    ]
    for _ in range(2):
        assert run_example("ray_app.py", **where).splitlines() == expected
