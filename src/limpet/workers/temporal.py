"""Tasks run by Temporal: a workflow that carries a task's id, and the activity that runs the task.

On the worker::

    Worker(
        client,
        task_queue="agents",
        workflows=[temporal.TaskWorkflow],
        activities=temporal.activities(registry, url),
    )

and from anywhere::

    await temporal.start(client, "report-42", task_queue="agents")
    await temporal.signal(client, store, "report-42", "approval", True, task_queue="agents")
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from limpet.core.runtime import in_thread
from limpet.errors import MissingExtra
from limpet.store import as_async
from limpet.workers.engine import (
    DEFAULT_TENANT,
    JobResult,
    JobRunner,
    failure_message,
    send_signal,
)

try:
    from temporalio import activity, workflow
    from temporalio.common import RetryPolicy
    from temporalio.exceptions import ApplicationError, is_cancelled_exception
except ImportError as error:
    raise MissingExtra.of("limpet.workers.temporal", "temporalio", "temporal") from error

if TYPE_CHECKING:
    from collections.abc import Callable

    from temporalio.client import Client, WorkflowHandle

    from limpet.store import AsyncStore, Store
    from limpet.workers.engine import Opener
    from limpet.workers.registry import Registry

__all__ = ["Order", "TaskWorkflow", "activities", "signal", "start", "workflow_id"]

T = TypeVar("T")

RUN = "limpet.run"
CANCEL = "limpet.cancel"

#: Temporal wants some limit. That a worker died is known by its heartbeat, not by this.
LONGEST = timedelta(days=365)


@dataclass(frozen=True)
class Order:
    """All that Temporal knows: which task, whose, and two times in seconds; see `start`."""

    task_id: str
    tenant: str = DEFAULT_TENANT
    heartbeat: float = 30.0
    look: float = 3600.0


# -- the workflow ------------------------------------------------------------------------------

# Without the sandbox, which would import the store's drivers anew for each task. What it guards
# against is not here: the workflow sees ids, statuses and Temporal's own clock.


@workflow.defn(name="LimpetTask", sandboxed=False)
class TaskWorkflow:
    """Runs a task until it has ended, and returns its status; a failed task fails the workflow.

    While the task waits, so does the workflow: until the time is due, or until `look` is called.
    To cancel the workflow is to cancel the task.
    """

    def __init__(self) -> None:
        self._look = False
        self._status = "open"

    @workflow.run
    async def run(self, order: Order) -> str:
        """Run it to its end."""
        try:
            return await self._finish(order)
        except BaseException as error:
            if is_cancelled_exception(error):
                await workflow.execute_activity(
                    CANCEL,
                    order,
                    start_to_close_timeout=timedelta(minutes=1),
                    schedule_to_close_timeout=timedelta(hours=1),  # if the store is away so long
                )
            raise

    @workflow.signal
    def look(self) -> None:
        """Something has happened to the task: go on with it if it waits."""
        self._look = True

    @workflow.query
    def status(self) -> str:
        """How the task stood when it last stopped."""
        return self._status

    async def _finish(self, order: Order) -> str:
        while True:
            self._look = False  # what happened before now, the activity will see
            result: JobResult = await workflow.execute_activity(
                RUN,
                order,
                result_type=JobResult,
                start_to_close_timeout=LONGEST,
                heartbeat_timeout=timedelta(seconds=order.heartbeat),
                retry_policy=RetryPolicy(
                    maximum_interval=timedelta(minutes=1),
                    non_retryable_error_types=["TaskNotFound", "UnknownKind", "InvalidId"],
                ),
            )
            self._status = result.status
            if result.status == "failed":
                msg = failure_message(order.task_id)
                raise ApplicationError(msg, type="TaskFailed", non_retryable=True)
            if result.again is None and result.status != "waiting":
                return result.status
            with suppress(TimeoutError):
                seconds = min(result.again or order.look, order.look)
                await workflow.wait_condition(lambda: self._look, timeout=seconds)
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(order)


# -- the activities ----------------------------------------------------------------------------


def activities(registry: Registry, url: Opener = None) -> list[Callable[..., Any]]:
    """What a Temporal worker needs to run the tasks of *registry*, found in the store at *url*.

    *url* may be a function that opens the store. Each task runs in a thread of its own: how many at
    once is the worker's ``max_concurrent_activities``.
    """
    jobs = JobRunner(registry, url)

    @activity.defn(name=RUN)
    async def run(order: Order) -> JobResult:
        return await run_with_heartbeats(partial(jobs.run, order.task_id, order.tenant))

    @activity.defn(name=CANCEL)
    async def cancel(order: Order) -> None:
        await asyncio.to_thread(jobs.cancel, order.task_id, order.tenant, "cancelled in Temporal")

    return [run, cancel]


async def run_with_heartbeats(work: Callable[[], T]) -> T:
    """What *work* returns, with heartbeats while it jobs.

    If the activity is cancelled, because its worker shuts down, the thread goes on to the end of
    the process. Whoever is given the task next finds it held, or at the step where that end came.
    """
    timeout = activity.info().heartbeat_timeout or timedelta(seconds=30)
    # A daemon thread: an executor's would hold up the end of a worker for as long as a task takes.
    job = asyncio.wrap_future(in_thread(work, "limpet-task"))
    while not job.done():
        activity.heartbeat()
        await asyncio.wait({job}, timeout=timeout.total_seconds() / 3)
    return job.result()


# -- from anywhere -----------------------------------------------------------------------------


def workflow_id(task_id: str, tenant: str = DEFAULT_TENANT) -> str:
    """``tenant/task``: what a task's workflow is known by, so that Temporal has it only once."""
    return f"{quote(tenant, safe='')}/{task_id}"


async def start(
    client: Client,
    task_id: str,
    *,
    task_queue: str,
    tenant: str = DEFAULT_TENANT,
    heartbeat: float = 30.0,
    look: float = 3600.0,
    **options: Any,
) -> WorkflowHandle[TaskWorkflow, str]:
    """Have a worker of *task_queue* run the task; if its workflow is there, have that look again.

    *heartbeat*: a worker that is silent for so many seconds is dead, and another gets the task.
    *look*: how often to look after a task that waits, should nobody let Temporal know that it need
    not any more. *options* are those of ``client.start_workflow``.
    """
    return await client.start_workflow(
        TaskWorkflow.run,
        Order(task_id, tenant, heartbeat, look),
        id=workflow_id(task_id, tenant),
        task_queue=task_queue,
        start_signal="look",
        **options,
    )


async def signal(
    client: Client,
    store: Store | AsyncStore,
    task_id: str,
    name: str,
    payload: Any = None,
    *,
    task_queue: str,
    id: str | None = None,
    **options: Any,
) -> WorkflowHandle[TaskWorkflow, str]:
    """Send the task a signal in the *store*, which keeps the payload, and `start` it again."""
    top = await send_signal(as_async(store), task_id, name, payload, id=id)
    return await start(client, top, task_queue=task_queue, tenant=store.tenant, **options)
