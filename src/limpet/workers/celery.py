"""Tasks run by Celery: one Celery task that carries a task's id.

Where workers and callers both come by::

    tasks = register(app, registry, url)

and then::

    tasks.start("report-42")
    tasks.signal("report-42", "approval", True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.errors import MissingExtra
from limpet.tasks.steps import INTERRUPTS
from limpet.workers.engine import (
    DEFAULT_TENANT,
    OFTEN,
    SOON,
    JobRunner,
    TaskFailed,
    failure_message,
)
from limpet.workers.registry import AWAY

try:
    from celery import Celery  # noqa: TC002 - also says early that it is missing
    from celery.exceptions import SoftTimeLimitExceeded
except ImportError as error:
    raise MissingExtra.of("limpet.workers.celery", "celery", "celery") from error

if TYPE_CHECKING:
    from celery import Task
    from celery.result import AsyncResult

    from limpet.workers.engine import Opener
    from limpet.workers.registry import Registry

__all__ = ["Tasks", "register"]

#: Seconds. A broker that hands out again what is not acknowledged in time (Redis after an hour,
#: SQS after half of one) does so with messages that wait for their hour, too. So a task that has
#: longer to wait is looked at in between, which costs one read.
LONGEST = 600.0

INTERRUPTS.add(SoftTimeLimitExceeded)


class Tasks:
    """Starts tasks and sends them signals; made by `register`."""

    def __init__(self, job: Task, jobs: JobRunner, tenant: str) -> None:
        self._job = job
        self._jobs = jobs
        self._tenant = tenant

    def start(self, task_id: str, *, tenant: str | None = None, **options: Any) -> AsyncResult:
        """Have the task run by a worker. Its result will be the task's status.

        *options* are those of ``apply_async``: queue, priority, countdown, …
        """
        return self._job.apply_async((task_id, tenant or self._tenant), **options)

    def signal(
        self,
        task_id: str,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,
        tenant: str | None = None,
        **options: Any,
    ) -> AsyncResult:
        """Send the task a signal in the store, which keeps the payload, and `start` it again."""
        top = self._jobs.signal(task_id, tenant or self._tenant, name, payload, id=id)
        return self.start(top, tenant=tenant, **options)


def register(
    app: Celery,
    registry: Registry,
    url: Opener = None,
    *,
    tenant: str = DEFAULT_TENANT,
    name: str = "limpet.run",
    **options: Any,
) -> Tasks:
    """Teach *app* to run the tasks of *registry*, found in the store at *url*.

    Call it where workers and callers both come by. *url* may be a function that opens the store.
    *tenant*: whose tasks are started, unless `Tasks.start` says otherwise. *name* is what Celery
    calls its task, and *options* are further settings of it: queue, rate_limit, …
    """
    jobs = JobRunner(registry, url)
    settings = {
        # Acknowledged when it has run: what a killed worker had comes back, and goes on.
        "acks_late": True,
        "reject_on_worker_lost": True,
        "max_retries": None,
        "throws": (TaskFailed,),  # no traceback in the log: the store has it
        **options,
    }

    @app.task(name=name, bind=True, **settings)  # type: ignore[untyped-decorator]
    def run(self: Task, task_id: str, tenant: str) -> str:
        return run_job(self, jobs, task_id, tenant)

    return Tasks(run, jobs, tenant)


def run_job(job: Task, jobs: JobRunner, task_id: str, tenant: str) -> str:
    """What the Celery task *job* does: run a task, and have itself retried when it is time."""
    try:
        result = jobs.run(task_id, tenant)
    except AWAY as error:
        raise job.retry(exc=error, countdown=OFTEN) from error
    except SoftTimeLimitExceeded as error:  # the task is open, and goes on with its time anew
        raise job.retry(exc=error, countdown=SOON) from error
    if result.status == "failed":
        raise TaskFailed(failure_message(task_id))
    # Eager jobs are retried at once, in the caller: who would wait for ever.
    if result.again is not None and not job.request.is_eager:
        raise job.retry(countdown=min(result.again, LONGEST))
    return result.status
