"""What the job of any engine does: run one task in this process, and say when to look again."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from limpet.backends.url import DEFAULT_TENANT
from limpet.core.leases import store_now
from limpet.core.runtime import run_to_end
from limpet.errors import TaskFailed, TaskFinished, TaskNotFound
from limpet.store import open as open_store
from limpet.tasks.entries import PARENT

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from limpet.store import AsyncStore, Store
    from limpet.tasks.task import TaskInfo
    from limpet.workers.registry import Registry

__all__ = ["DEFAULT_TENANT", "Opener", "Runs", "TaskFailed", "Went", "failed", "give"]

#: Where the store is: a URL, as for `limpet.open`, or a function that opens it.
Opener: TypeAlias = "str | Callable[[], Store] | None"

#: Seconds. Nobody looks again sooner: clocks differ, and a lease may end a moment late.
SOON = 1.0
#: Somebody who holds a task may give it up long before the lease ends.
OFTEN = 15.0

#: How a task stands when there is nothing more to do for an engine.
ENDED = frozenset({"done", "failed", "cancelled", "paused"})


def failed(task_id: str) -> str:
    """What to say of a task that has failed. Its error stays in the store: it may quote data."""
    return (
        f"Task {task_id!r} has failed; its store says why. When that is mended, call "
        f"store.resume({task_id!r}) and dispatch it again: it goes on at the step that failed."
    )


@dataclass(frozen=True)
class Went:
    """How a task stands, and in how many seconds to look again; None: only when told to."""

    status: str
    again: float | None = None


class Runs:
    """Runs the tasks of *registry* in the store at *url*; or in what the function *url* opens.

    It is opened when it is needed, once in each process.
    """

    def __init__(self, registry: Registry, url: Opener) -> None:
        self._registry = registry
        self._url = url
        self._mark = os.urandom(8).hex()  # the same when it comes out of a pickle, as with Ray

    def run(self, task_id: str, tenant: str) -> Went:
        """Run the task to its end, to where it has to wait, or to where another worker has it."""
        store = self.store(tenant)
        if not _waits(store, info := store.task(task_id).info()):
            status = self._registry.run(store, task_id).status
            if status in ENDED:
                return Went(status)
            info = store.task(task_id).info()
            if status != "waiting":
                return Went(status, _until_free(store, info))
        return Went("waiting", _until_due(store, info))

    def signal(self, task_id: str, tenant: str, *signal: Any, id: str | None) -> str:
        """Give a signal; the task to be started for it."""
        return run_to_end(give(self.store(tenant)._core, task_id, *signal, id=id))  # noqa: SLF001

    def cancel(self, task_id: str, tenant: str, because: str) -> None:
        """End the task without an outcome, unless it has one."""
        with suppress(TaskFinished, TaskNotFound):
            self.store(tenant).cancel(task_id, because=because)

    def store(self, tenant: str) -> Store:
        """The store as *tenant* sees it. All tenants share what is open."""
        return _opened(self._mark, self._url).as_tenant(tenant)


async def give(store: AsyncStore, task_id: str, name: str, payload: Any, *, id: str | None) -> str:
    """Give a task a signal; the task to be started for it, which is the one at the top."""
    await store.signal(task_id, name, payload, id=id)
    info = await store.task(task_id).info()
    while info.kind is None and PARENT in info.labels:
        info = await store.task(info.labels[PARENT]).info()
    return info.id


def _waits(store: Store, info: TaskInfo) -> bool:
    """Whether it is known, without opening it, that there is nothing to do."""
    return info.status == "waiting" and (info.due is None or _seconds_to(store, info.due) > 0)


def _until_due(store: Store, info: TaskInfo) -> float | None:
    if info.status != "waiting":
        return SOON  # a signal has come meanwhile
    return None if info.due is None else max(_seconds_to(store, info.due), SOON)


def _until_free(store: Store, info: TaskInfo) -> float:
    """The time to a look at a task of another worker: when its lease ends, if it has died."""
    left = SOON if info.held_until is None else _seconds_to(store, info.held_until)
    return min(max(left, SOON), OFTEN)


def _seconds_to(store: Store, moment: datetime) -> float:
    return (moment - store_now(store.backend, store.tenant)).total_seconds()


# -- one open store a process ------------------------------------------------------------------

_stores: dict[tuple[int, str], Store] = {}
_opening = threading.Lock()


def _opened(mark: str, url: Opener) -> Store:
    # By process: Celery's workers fork, and may do so after the store was opened. Never closed:
    # other jobs of the process use it, and ending without it is what a store is made for.
    key = (os.getpid(), mark)
    with _opening:
        if key not in _stores:
            _stores[key] = url() if callable(url) else open_store(url)
        return _stores[key]
