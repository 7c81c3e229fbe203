"""Tasks run by Temporal, on its own server, with workers that are killed."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from limpet.workers import temporal
from tests.support import engines
from tests.support.engines import EXAMPLES, Stage, TemporalServer, Worker, run_example
from tests.support.processes import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.server, pytest.mark.slow]

stage = engines.stage

#: Seconds. A dead worker is known by its silence.
HEARTBEAT = 2.0


@pytest.fixture(scope="module")
def server() -> Iterator[TemporalServer]:
    """A Temporal server."""
    with TemporalServer() as started:
        yield started


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A task queue of the test's own."""
    return str(request.node.name)


@pytest.fixture
def worker(server: TemporalServer, stage: Stage, queue: str) -> Iterator[Worker]:
    """A worker that is there from the beginning."""
    with start_worker(server, stage, queue) as started:
        yield started


def start_worker(server: TemporalServer, stage: Stage, queue: str) -> Worker:
    """A worker process for the queue."""
    place = [server.place(), queue, stage.url]
    command = [sys.executable, "-m", "tests.support.dispatched", "temporal", *place]
    return Worker(command, "ready", stage.directory / "worker.log")


def ask(server: TemporalServer, question: Callable[[Client], Awaitable[Any]]) -> Any:
    """What *question* answers when it has a client."""

    async def main() -> Any:
        return await question(await Client.connect(server.place()))

    return asyncio.run(main())


def run(server: TemporalServer, task_id: str, queue: str) -> str:
    """Start the task and wait for its end."""

    async def question(client: Client) -> str:
        return await (await begin(client, task_id, queue)).result()

    return str(ask(server, question))


async def begin(
    client: Client, task_id: str, queue: str
) -> WorkflowHandle[temporal.TaskWorkflow, str]:
    """Start the task from within an event loop."""
    return await temporal.start(client, task_id, task_queue=queue, heartbeat=HEARTBEAT)


def start(server: TemporalServer, task_id: str, queue: str) -> None:
    """Start the task, and do not wait."""
    ask(server, lambda client: begin(client, task_id, queue))


def result(server: TemporalServer, task_id: str) -> str:
    """What the task's workflow returns."""
    id_ = temporal.workflow_id(task_id)
    return str(ask(server, lambda client: client.get_workflow_handle(id_).result()))


@pytest.mark.slow
def test_a_task_is_run_to_its_end(
    server: TemporalServer, stage: Stage, queue: str, worker: Worker
) -> None:
    """Temporal is told how the task stands; what came of it is in the store."""
    assert run(server, stage.submit(queue), queue) == "done"
    assert stage.outcome(queue) == {"steps": ["one", "two", "three"], "answer": None}
    assert stage.diary.steps() == ["one", "two", "three"]


@pytest.mark.slow
def test_a_killed_worker_is_succeeded_at_the_step_it_was_in(
    server: TemporalServer, stage: Stage, queue: str, worker: Worker
) -> None:
    """Temporal notices the silence, and the next worker repeats nothing that was done."""
    stage.diary.hold_up("two")
    start(server, stage.submit(queue), queue)
    stage.wait_for_step("two")
    stage.diary.kill("two")
    stage.diary.let_go("two")
    with start_worker(server, stage, queue):
        assert result(server, queue) == "done"
    assert stage.diary.steps() == ["one", "two", "two", "three"]


@pytest.mark.slow
def test_a_worker_that_is_told_to_end_does_so_and_is_succeeded(
    server: TemporalServer, stage: Stage, queue: str, worker: Worker
) -> None:
    """A deploy does not wait for a task that takes hours."""
    stage.diary.hold_up("two")
    start(server, stage.submit(queue), queue)
    stage.wait_for_step("two")
    worker.stop()
    stage.diary.let_go("two")
    with start_worker(server, stage, queue):
        assert result(server, queue) == "done"
    assert stage.diary.steps() == ["one", "two", "two", "three"]


def test_a_task_that_is_started_twice_is_one_workflow(
    server: TemporalServer, stage: Stage, queue: str, worker: Worker
) -> None:
    """Temporal knows the workflow by the task's id."""
    stage.submit(queue)

    async def twice(client: Client) -> list[str]:
        handles = [await begin(client, queue, queue) for _ in range(2)]
        assert len({handle.result_run_id for handle in handles}) == 1
        return [await handle.result() for handle in handles]

    assert ask(server, twice) == ["done", "done"]
    assert stage.diary.steps() == ["one", "two", "three"]


@pytest.mark.slow
def test_a_task_in_two_workflows_runs_each_step_once(
    server: TemporalServer, stage: Stage, queue: str, worker: Worker
) -> None:
    """Should Temporal run it twice all the same, the second loses at the lease."""
    stage.diary.hold_up("two")
    start(server, stage.submit(queue), queue)
    stage.wait_for_step("two")

    async def second(client: Client) -> str:
        other = await client.start_workflow(
            "LimpetTask", {"task_id": queue}, id="another", task_queue=queue, result_type=str
        )
        while await other.query("status") != "held":  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)
        stage.diary.let_go("two")
        return str(await other.result())

    assert ask(server, second) == "done"
    assert result(server, queue) == "done"
    assert stage.diary.steps() == ["one", "two", "three"]


def test_a_waiting_task_goes_on_after_a_signal(
    server: TemporalServer, stage: Stage, queue: str, worker: Worker
) -> None:
    """It takes no worker's time until a person has spoken."""
    start(server, stage.submit(queue, asks=True), queue)
    stage.wait_for(queue, "waiting")

    async def speak(client: Client) -> str:
        handle = await temporal.signal(
            client, stage.store, queue, "word", "aye", task_queue=queue, heartbeat=HEARTBEAT
        )
        return await handle.result()

    assert ask(server, speak) == "done"
    assert stage.outcome(queue)["answer"] == "aye"
    assert stage.diary.steps() == ["one", "two", "three"]


@pytest.mark.slow
def test_a_signal_that_came_another_way_is_found_at_the_next_look(
    server: TemporalServer, stage: Stage, queue: str, worker: Worker
) -> None:
    """Whoever speaks to the store alone, as the command line does, is heard in the end."""
    stage.submit(queue, asks=True)

    async def patient(client: Client) -> str:
        handle = await temporal.start(client, queue, task_queue=queue, look=1)
        await asyncio.to_thread(stage.wait_for, queue, "waiting")
        await asyncio.to_thread(stage.store.signal, queue, "word", "aye")
        return await handle.result()

    assert ask(server, patient) == "done"
    assert stage.diary.steps() == ["one", "two", "three"]


@pytest.mark.slow
def test_a_task_may_wait_for_years(
    server: TemporalServer, stage: Stage, queue: str, worker: Worker
) -> None:
    """A workflow that has looked often begins a new history, before the old one is too long."""
    stage.submit(queue, asks=True)

    async def patient(client: Client) -> str:
        first = await temporal.start(client, queue, task_queue=queue, look=0.05)
        now = client.get_workflow_handle(first.id)
        while (await now.describe()).run_id == first.result_run_id:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)
        await temporal.signal(client, stage.store, queue, "word", "aye", task_queue=queue)
        return await first.result()

    assert ask(server, patient) == "done"
    assert stage.diary.steps() == ["one", "two", "three"]


def test_a_waiting_task_survives_the_worker_that_ran_it(
    server: TemporalServer, stage: Stage, queue: str, worker: Worker
) -> None:
    """What it waits for is in the store, and that it waits is in Temporal."""
    start(server, stage.submit(queue, asks=True), queue)
    stage.wait_for(queue, "waiting")
    worker.kill()
    with start_worker(server, stage, queue):
        ask(
            server,
            lambda client: temporal.signal(
                client, stage.store, queue, "word", "aye", task_queue=queue
            ),
        )
        assert result(server, queue) == "done"
    assert stage.diary.steps() == ["one", "two", "three"]


@pytest.mark.slow
def test_a_sleeping_task_is_woken_by_a_timer(
    server: TemporalServer, stage: Stage, queue: str, worker: Worker
) -> None:
    """Temporal's own, which outlives every worker."""
    assert run(server, stage.submit(queue, sleeps=1), queue) == "done"
    assert stage.diary.steps() == ["one", "two", "three"]


def test_a_failed_task_fails_its_workflow_and_can_be_mended(
    server: TemporalServer, stage: Stage, queue: str, worker: Worker
) -> None:
    """People who look at Temporal see it; what the error said stays in the store."""
    stage.diary.spoil("two")
    with pytest.raises(WorkflowFailureError) as failure:
        run(server, stage.submit(queue), queue)
    assert "has failed" in str(failure.value.cause)
    assert "went wrong" not in str(failure.value.cause)
    stage.diary.mend("two")
    stage.store.resume(queue)
    assert run(server, queue, queue) == "done"
    assert stage.diary.steps() == ["one", "two", "two", "three"]


def test_a_task_that_is_not_there_fails_its_workflow(
    server: TemporalServer, stage: Stage, queue: str, worker: Worker
) -> None:
    """A wrong id is not tried for ever."""
    with pytest.raises(WorkflowFailureError):
        run(server, "nowhere", queue)


def test_to_cancel_the_workflow_is_to_cancel_the_task(
    server: TemporalServer, stage: Stage, queue: str, worker: Worker
) -> None:
    """A task that waits for somebody can be called off in Temporal."""
    start(server, stage.submit(queue, asks=True), queue)
    stage.wait_for(queue, "waiting")
    id_ = temporal.workflow_id(queue)
    ask(server, lambda client: client.get_workflow_handle(id_).cancel())
    with pytest.raises(WorkflowFailureError):
        result(server, queue)
    assert stage.status(queue) == "cancelled"


def test_a_task_that_runs_is_cancelled_at_its_next_step(
    server: TemporalServer, stage: Stage, queue: str, worker: Worker
) -> None:
    """A step that has begun is not torn apart."""
    stage.diary.hold_up("two")
    start(server, stage.submit(queue), queue)
    stage.wait_for_step("two")
    id_ = temporal.workflow_id(queue)
    ask(server, lambda client: client.get_workflow_handle(id_).cancel())
    with pytest.raises(WorkflowFailureError):
        result(server, queue)
    stage.diary.let_go("two")
    assert until(lambda: stage.store.task(queue).info().held_by is None)
    assert stage.status(queue) == "cancelled"
    assert stage.diary.steps() == ["one", "two"]


def test_tenants_do_not_meet(
    server: TemporalServer, stage: Stage, queue: str, worker: Worker
) -> None:
    """The same id of two tenants is two tasks, and two workflows."""
    assert temporal.workflow_id("b/c", "a") != temporal.workflow_id("c", "a/b")
    stage.submit(queue)

    async def elsewhere(client: Client) -> None:
        handle = await temporal.start(client, queue, task_queue=queue, tenant="acme")
        await handle.result()

    with pytest.raises(WorkflowFailureError):
        ask(server, elsewhere)
    assert stage.diary.steps() == []


@pytest.mark.slow
def test_the_example_does_what_it_says(server: TemporalServer, queue: str, tmp_path: Path) -> None:
    """People begin by copying it."""
    where = {
        "TEMPORAL_ADDRESS": server.place(),
        "TEMPORAL_QUEUE": queue,
        "LIMPET_URL": f"sqlite:{tmp_path}/agents.db",
    }
    command = [sys.executable, str(EXAMPLES / "temporal_app.py"), "worker"]
    with Worker(command, "working", tmp_path / "worker.log", **where):
        said = run_example("temporal_app.py", "refund", "order-17", "180", **where)
        assert said == "order-17 is being looked at\n"
        said = run_example("temporal_app.py", "approve", "order-17", "yes", **where)
        assert re.fullmatch(r"order-17: paid 180\.00 \(default:order-17:\w+:pay\)\n", said)
