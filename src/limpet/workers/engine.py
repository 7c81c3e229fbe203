"""What a job of any engine does: run one task in this process, and say when to look again."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from limpet.backends.url import DEFAULT_TENANT
from limpet.core.leases import store_now
from limpet.core.runtime import core_of, run_to_end
from limpet.errors import TaskFailed, TaskFinished, TaskNotFound
from limpet.store import open as open_store
from limpet.tasks.entries import PARENT

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from limpet.store import AsyncStore, Store
    from limpet.workers.registry import Registry

__all__ = [
    "DEFAULT_TENANT",
    "JobResult",
    "JobRunner",
    "Opener",
    "TaskFailed",
    "failure_message",
    "send_signal",
]

#: Where the store is: a URL, as for `limpet.open`, or a function that opens it.
Opener: TypeAlias = "str | Callable[[], Store] | None"

#: Seconds. Nobody looks again sooner: clocks differ, and a lease may end a moment late.
SOON = 1.0
#: Somebody who holds a task may give it up long before the lease ends.
OFTEN = 15.0

#: How a task stands when there is nothing more to do for an engine.
ENDED = frozenset({"done", "failed", "cancelled", "paused"})


def failure_message(task_id: str) -> str:
    """That a task has failed. Its error stays in the store: it may quote data."""
    return (
        f"Task {task_id!r} has failed; its store says why. When that is fixed, call "
        f"store.resume({task_id!r}) and dispatch it again: it goes on at the step that failed."
    )


@dataclass(frozen=True)
class JobResult:
    """The status of a task, and in how many seconds to look again; None: only when asked to."""

    status: str
    again: float | None = None


class JobRunner:
    """Runs the tasks of *registry* in the store at *url*; or in what the function *url* opens.

    It is opened when it is needed, once in each process.
    """

    def __init__(self, registry: Registry, url: Opener) -> None:
        self._registry = registry
        self._url = url
        self._mark = os.urandom(8).hex()  # the same when it comes out of a pickle, as with Ray

    def run(self, task_id: str, tenant: str) -> JobResult:
        """Run the task to its end, to where it has to wait, or to where another worker has it."""
        store = self.store(tenant)

        def seconds_to(moment: datetime) -> float:
            return (moment - store_now(store.backend, store.tenant)).total_seconds()

        info = store.task(task_id).info()
        # Whether it is known, without opening it, that there is nothing to do.
        if info.status != "waiting" or (info.due is not None and seconds_to(info.due) <= 0):
            status = self._registry.run(store, task_id).status
            if status in ENDED:
                return JobResult(status)
            info = store.task(task_id).info()
            if status != "waiting":
                # Another worker's: its lease ends then, if it has died.
                left = SOON if info.held_until is None else seconds_to(info.held_until)
                return JobResult(status, min(max(left, SOON), OFTEN))
        if info.status != "waiting":
            return JobResult("waiting", SOON)  # a signal has come meanwhile
        return JobResult("waiting", None if info.due is None else max(seconds_to(info.due), SOON))

    def signal(self, task_id: str, tenant: str, *signal: Any, id: str | None) -> str:
        """Send a signal; the task to be started for it."""
        return run_to_end(send_signal(core_of(self.store(tenant)), task_id, *signal, id=id))

    def cancel(self, task_id: str, tenant: str, because: str) -> None:
        """End the task without an outcome, unless it has one."""
        with suppress(TaskFinished, TaskNotFound):
            self.store(tenant).cancel(task_id, because=because)

    def store(self, tenant: str) -> Store:
        """The store as *tenant* sees it. All tenants share what is open."""
        # By process: Celery's workers fork, and may do so after the store was opened. Never closed:
        # other jobs of the process use it, and ending without it is what a store is made for.
        key = (os.getpid(), self._mark)
        with _opening:
            if key not in _stores:
                _stores[key] = self._url() if callable(self._url) else open_store(self._url)
            return _stores[key].as_tenant(tenant)


#: The store that each process has opened for each `JobRunner`.
_stores: dict[tuple[int, str], Store] = {}
_opening = threading.Lock()


async def send_signal(
    store: AsyncStore, task_id: str, name: str, payload: Any, *, id: str | None
) -> str:
    """Send a task a signal; the task to be started for it, which is the one at the top."""
    await store.signal(task_id, name, payload, id=id)
    info = await store.task(task_id).info()
    while info.kind is None and PARENT in info.labels:
        info = await store.task(info.labels[PARENT]).info()
    return info.id
