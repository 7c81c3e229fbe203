"""Tasks run by Ray: a remote function that carries a task's id.

From a driver::

    tasks = Tasks(registry, url)
    tasks.run_many(["report-42", "report-43"])
    tasks.signal("report-42", "approval", True)
"""

from __future__ import annotations

import heapq
import time
from typing import TYPE_CHECKING, Any

from limpet.errors import MissingExtra
from limpet.workers.engine import DEFAULT_TENANT, JobResult, JobRunner
from limpet.workers.registry import AWAY

try:
    import ray
except ImportError as error:
    raise MissingExtra.of("limpet.workers.ray", "ray", "ray") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from limpet.workers.engine import Opener
    from limpet.workers.registry import Registry

__all__ = ["JobResult", "Tasks"]


class Tasks:
    """Runs the tasks of *registry*, found in the store at *url*, on the Ray cluster.

    *url* may be a function that opens the store. *max_retries*: how many workers of a task may die
    before it is left alone. *options* are further settings of the remote function: num_cpus, …
    """

    def __init__(
        self,
        registry: Registry,
        url: Opener = None,
        *,
        tenant: str = DEFAULT_TENANT,
        max_retries: int = 3,
        **options: Any,
    ) -> None:
        self._jobs = JobRunner(registry, url)
        self._tenant = tenant

        def run(jobs: JobRunner, task_id: str, tenant: str) -> JobResult:
            return jobs.run(task_id, tenant)

        self._job = ray.remote(run).options(
            max_retries=max_retries,
            retry_exceptions=list(AWAY),
            **options,
        )

    def start(self, task_id: str, *, tenant: str | None = None) -> ray.ObjectRef[JobResult]:
        """Have the task run by a worker, once: its status, and when it is to be started again."""
        return self._job.remote(self._jobs, task_id, tenant or self._tenant)

    def signal(
        self,
        task_id: str,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,
        tenant: str | None = None,
    ) -> ray.ObjectRef[JobResult]:
        """Send the task a signal in the store, which keeps the payload, and `start` it again."""
        top = self._jobs.signal(task_id, tenant or self._tenant, name, payload, id=id)
        return self.start(top, tenant=tenant)

    def run_many(
        self, task_ids: Iterable[str], *, tenant: str | None = None, wait: bool = True
    ) -> dict[str, str]:
        """Run them all, until none can go on by itself; the status of each.

        Whoever sleeps, or is held by another worker, is started again in time; unless *wait* is
        false. Those whose workers died too often are raised together, when the others have run.
        """
        batch = _Batch(lambda task_id: self.start(task_id, tenant=tenant))
        for task_id in dict.fromkeys(task_ids):
            batch.start(task_id)
        while batch.busy:
            batch.turn(wait=wait)
        if batch.errors:
            raise ExceptionGroup("Some tasks could not be run; start them again.", batch.errors)
        return batch.statuses


class _Batch:
    """The loop of a caller: what runs now, and what is to be started again later."""

    def __init__(self, start: Callable[[str], ray.ObjectRef[JobResult]]) -> None:
        self._start = start
        self._running: dict[ray.ObjectRef[JobResult], str] = {}
        self._later: list[tuple[float, str]] = []  # a heap
        self.statuses: dict[str, str] = {}
        self.errors: list[Exception] = []

    @property
    def busy(self) -> bool:
        return bool(self._running or self._later)

    def start(self, task_id: str) -> None:
        self.statuses[task_id] = "open"
        self._running[self._start(task_id)] = task_id

    def turn(self, *, wait: bool) -> None:
        """Wait until something ends or is due, and deal with it."""
        left = max(self._later[0][0] - time.monotonic(), 0) if self._later else None
        ended: list[ray.ObjectRef[JobResult]] = []
        if self._running:
            ended = ray.wait(list(self._running), timeout=left, fetch_local=False)[0]
        else:
            time.sleep(left or 0)
        for job in ended:
            task_id = self._running.pop(job)
            try:
                result = ray.get(job)
            except Exception as error:  # noqa: BLE001 - the others go on
                error.add_note(f"This was task {task_id!r}.")
                self.errors.append(error)
                continue
            self.statuses[task_id] = result.status
            if wait and result.again is not None:
                heapq.heappush(self._later, (time.monotonic() + result.again, task_id))
        while self._later and self._later[0][0] <= time.monotonic():
            self.start(heapq.heappop(self._later)[1])
