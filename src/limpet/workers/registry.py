"""Which function runs which kind of task, and how a run ends."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from limpet.core.ids import MAX_LABEL_BYTES, check_id, check_seconds
from limpet.core.runtime import core_of, run_to_end
from limpet.errors import (
    DeadlinePassed,
    LeaseLost,
    StoreBusy,
    StoreFull,
    StoreUnavailable,
    TaskCancelled,
    TaskHalted,
    TaskHeld,
    TaskPaused,
    TaskWaiting,
    UnknownKind,
)
from limpet.store import AsyncStore, as_async
from limpet.tasks import entries as kinds
from limpet.tasks.entries import flatten, frames
from limpet.tasks.steps import INTERRUPTS
from limpet.tasks.task import Task, TaskInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.store import Store
    from limpet.tasks.task import AsyncTask

__all__ = ["AWAY", "GIVE_UP_AFTER", "Kind", "Registry", "RunResult"]

F = TypeVar("F", bound="Callable[..., Any]")

# How a run can end besides the statuses of a task: it is another worker's.
HELD = "held"  # and was when we came
LOST = "lost"  # it took the task over while we ran it

#: The store is not there for now, which is no fault of the task.
AWAY = (StoreUnavailable, StoreBusy, StoreFull)

#: Runs in a row that may come to nothing, for example because the task kills its process.
GIVE_UP_AFTER = 5

#: What is not recorded as a failure by us.
_NOT_FAILED = (TaskHalted, DeadlinePassed, *AWAY)

#: What ends a run and is no error of the function's.
_ENDS: dict[type[BaseException], str] = {
    TaskWaiting: kinds.WAITING,
    TaskPaused: kinds.PAUSED,
    TaskCancelled: kinds.CANCELLED,
    DeadlinePassed: kinds.FAILED,
}


class Kind(Struct, frozen=True):
    """A kind of task: the function that runs it, how many at once, under which lease."""

    name: str
    function: Any
    limit: int | None
    lease: float
    is_async: bool


class RunResult(Struct, frozen=True):
    """How a run of a task ended.

    ``status`` is that of the task: done, failed, waiting, paused, cancelled. Or it is "held":
    another worker has the task; or "lost": another took it over meanwhile. ``error`` says why it
    failed, and ``failed_step`` in which step. ``raised`` is the class of the error that the
    function ended with, and ``frames`` are the places that it came through: neither says anything
    of what the task knows.
    """

    id: str
    status: str
    outcome: Any = None
    error: str | None = None
    waits_for: str | None = None
    failed_step: str | None = None
    raised: str | None = None
    frames: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, status={self.status!r})"


class Registry:
    """Functions by the kind of task that they run.

    A function takes the open task. What it returns is the outcome, unless it calls ``finish``
    itself; an error that leaves it fails the task. A plain function gets a `Task`, an async one an
    `AsyncTask`, whichever store it is run from.

    >>> import limpet
    >>> registry = Registry()
    >>> @registry.task("sum")
    ... def add(task):
    ...     return task.step("add", sum, task.input)
    >>> with limpet.open("memory:") as store:
    ...     _ = store.submit("sum", "sum-1", "Add up", input=[1, 2, 3])
    ...     registry.run(store, "sum-1").outcome
    6
    """

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._kinds)})"

    def __iter__(self) -> Iterator[Kind]:
        """The kinds that there are."""
        return iter(self._kinds.values())

    def __getitem__(self, kind: str) -> Kind:
        """One of them."""
        return self._kinds[kind]

    def __contains__(self, kind: object) -> bool:
        return kind in self._kinds

    def task(self, kind: str, *, limit: int | None = None, lease: float = 60) -> Callable[[F], F]:
        """Let the function below run the tasks of *kind*: those that were submitted as such.

        *limit*: how many of them a worker runs at once. *lease*: after so many seconds the task of
        a worker that died is another's.
        """
        check_id(kind, "kind of task", MAX_LABEL_BYTES)
        check_seconds(lease, "lease")
        if kind in self._kinds:
            raise ValueError(f"There is a function for tasks of kind {kind!r} already.")
        if limit is not None and limit < 1:
            raise ValueError(f"A limit is at least 1, not {limit}.")

        def add(function: F) -> F:
            from inspect import iscoroutinefunction  # noqa: PLC0415 - slow to import

            called = getattr(function, "__call__", None)  # noqa: B004 - it may be an object's own
            is_async = iscoroutinefunction(function) or iscoroutinefunction(called)
            self._kinds[kind] = Kind(kind, function, limit, lease, is_async)
            return function

        return add

    def run(
        self,
        store: Store,
        task_id: str,
        *,
        agent: str | None = None,
        give_up_after: int = GIVE_UP_AFTER,
        on_open: Callable[[], object] | None = None,
    ) -> RunResult:
        """Open a submitted task, run its function, and finish or fail it; how that ended.

        If *give_up_after* runs in a row came to nothing, the task is failed instead. *on_open* is
        called when the task is ours. Raises only if there is no such task, if its kind is not
        registered, and if the store is away. What ends the process passes, and the task stays open:
        KeyboardInterrupt; and SystemExit in the main thread, where signal handlers raise it.
        """
        core = core_of(store)
        kind, info = run_to_end(self._look(core, task_id))
        run = _Run(kind, info, agent, give_up_after, on_open)
        if not kind.is_async:
            return run_to_end(run.on(core))
        import asyncio  # noqa: PLC0415 - sync programs never pay for it

        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - documented, and never raises
            raise RuntimeError(f"{kind.name!r} is async: await registry.run_async(…) here.")
        return asyncio.run(run.on(as_async(store)))

    async def run_async(
        self,
        store: AsyncStore,
        task_id: str,
        *,
        agent: str | None = None,
        give_up_after: int = GIVE_UP_AFTER,
        on_open: Callable[[], object] | None = None,
    ) -> RunResult:
        """The same for async code. A plain function runs in a thread."""
        kind, info = await self._look(store, task_id)
        run = _Run(kind, info, agent, give_up_after, on_open)
        if kind.is_async:
            return await run.on(store)
        import asyncio  # noqa: PLC0415 - as above

        return await asyncio.to_thread(run_to_end, run.on(AsyncStore(store.scope.as_sync())))

    async def _look(self, store: AsyncStore, task_id: str) -> tuple[Kind, TaskInfo]:
        info = await store.task(task_id).info()
        kind = self._kinds.get(info.kind or "")
        if kind is not None:
            return kind, info
        if info.kind is None:
            msg = (
                f"Task {info.id!r} was not submitted, so it has no kind and no function here. "
                "Create tasks for workers with store.submit(kind, id, goal)."
            )
        else:
            there = ", ".join(map(repr, self._kinds)) or "none"
            msg = (
                f"Task {info.id!r} is of kind {info.kind!r}, and this registry has no function for "
                f"it (it has: {there}). Register one with @registry.task({info.kind!r})."
            )
        raise UnknownKind(msg)


class _Run(Struct, frozen=True):
    """One run of one task."""

    kind: Kind
    info: TaskInfo
    agent: str | None
    give_up_after: int
    on_open: Any

    async def on(self, store: AsyncStore) -> RunResult:
        """On *store*, which is sync or async as the function is."""
        task = store.task(self.info.id, agent=self.agent, lease=self.kind.lease)
        if self.info.status not in (kinds.OPEN, kinds.WAITING):  # opening it would resume it
            await task.checkpoint()
            return _result_of(task)
        try:
            async with task:
                if self.on_open is not None:
                    self.on_open()
                if task.runner.live.state.fruitless > self.give_up_after:
                    await task.fail(
                        f"given up: {self.give_up_after} runs in a row ended, or killed their "
                        "process, before anything was done"
                    )
                    return _result_of(task)
                return _result_of(task, None if task.done else await self.call(store, task))
        except TaskHeld:
            return RunResult(task.id, HELD)
        except LeaseLost:
            return RunResult(task.id, LOST)
        except (TaskHalted, DeadlinePassed) as end:
            return _result_of(task, end)

    async def call(self, store: AsyncStore, task: AsyncTask) -> BaseException | None:
        """Call the function, and finish or fail the task; the error, if there was one."""
        try:
            given = Task(task) if store.scope.is_sync else task
            outcome = await store.scope.runtime.invoke(self.kind.function, given)
            if task.status == kinds.OPEN:
                await task.finish(outcome)
        except (Exception, SystemExit, BaseExceptionGroup) as error:
            in_main_thread = threading.current_thread() is threading.main_thread()
            if isinstance(error, SystemExit) and in_main_thread:
                raise  # as a rule of a signal handler's: the process ends, which is no failure
            # A TaskGroup wraps what its parts end with.
            errors = flatten(error)
            if not all(isinstance(one, (Exception, SystemExit, TaskHalted)) for one in errors):
                raise  # KeyboardInterrupt, for one
            for one in errors:  # itself, and not its group: the engine has to know it
                if isinstance(one, tuple(INTERRUPTS)):
                    raise one from None
            if all(isinstance(one, _NOT_FAILED) for one in errors):
                raise errors[0] from None
            if task.status == kinds.OPEN:  # or it is recorded already
                await task._ending.give_up(error)  # noqa: SLF001 - not `fail`, which is the user's
            return error
        return None


def _result_of(task: AsyncTask, error: BaseException | None = None) -> RunResult:
    status = next((status for end, status in _ENDS.items() if isinstance(error, end)), task.status)
    if isinstance(error, TaskHalted) and error.task_id != task.id:
        # For a child, unless somebody has halted both.
        status = task.status if task.status in kinds.HALTED else kinds.WAITING
    failure = None if isinstance(error, TaskHalted) else error
    return RunResult(
        task.id,
        status,
        task.outcome,
        task.error,
        waits_for=getattr(error, "waits_for", None),
        failed_step=task.runner.live.state.failed_step,
        raised=None if failure is None else type(failure).__name__,
        frames=() if failure is None else frames(failure),
    )
