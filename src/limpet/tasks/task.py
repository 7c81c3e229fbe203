"""Tasks: a goal, a plan, steps that run once, and a record that any process can go on from."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from msgspec import UNSET, Struct

from limpet.backends.contract import Head, from_micros
from limpet.backends.decide import holder_for_people
from limpet.core.checkpoint import Checkpoint, Decision
from limpet.core.codec import fresh
from limpet.core.ids import check_ttl
from limpet.core.journal import listed_fields
from limpet.core.runtime import AsyncEntered, SyncWrapper, run_to_end, sync
from limpet.errors import NotLoaded, TaskHalted, TaskNotOpen, besides
from limpet.tasks import entries as kinds
from limpet.tasks.context import Outside, StepContext, current_step, effect, open_task
from limpet.tasks.control import cancel
from limpet.tasks.ending import Ending
from limpet.tasks.entries import KIND, text
from limpet.tasks.memories import TaskMemories
from limpet.tasks.plan import AsyncPlan, AsyncStep, Plan, Remaining, Step
from limpet.tasks.record import LiveTask, TaskOptions, check_labels_are_free, not_found
from limpet.tasks.retry import InDoubt, Retry, StepPolicy
from limpet.tasks.state import Large, Progress
from limpet.tasks.steps import StepRunner, not_a_function, typed
from limpet.tasks.transaction import Block, Transactions
from limpet.tasks.versions import AsyncVersions, TaskVersion, Versions
from limpet.tasks.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from limpet.core.scope import Scope
    from limpet.llm.tokens import Counter
    from limpet.tasks.memories import Memories
    from limpet.tasks.state import TaskState

__all__ = [
    "KIND",
    "AsyncPlan",
    "AsyncStep",
    "AsyncTask",
    "AsyncVersions",
    "InDoubt",
    "Outside",
    "Plan",
    "Progress",
    "Retry",
    "Step",
    "StepContext",
    "Task",
    "TaskInfo",
    "TaskVersion",
    "Versions",
    "current_step",
    "current_task",
    "effect",
]

T = TypeVar("T")


class TaskInfo(Struct, frozen=True):
    """A task in a list. ``held_by`` says who works on it now, if anybody does."""

    id: str
    status: str
    held_by: str | None
    held_until: datetime | None
    position: int
    size: int
    created_at: datetime
    updated_at: datetime
    labels: dict[str, str]
    #: What it was submitted as.
    kind: str | None = None
    #: When it is to be woken, if it waits for a time.
    due: datetime | None = None
    expires_at: datetime | None = None

    @classmethod
    def of(cls, head: Head) -> TaskInfo:
        """The view of a journal's *head*."""
        due = head.labels.get(kinds.DUE)
        return cls(
            **listed_fields(head),
            status=head.status or kinds.OPEN,
            held_by=holder_for_people(head.lease.holder) if head.lease else None,
            held_until=from_micros(head.lease.until) if head.lease else None,
            kind=head.labels.get(kinds.RUN),
            due=datetime.fromisoformat(due) if due and head.status == kinds.WAITING else None,
        )


class _TaskView:
    """What a task shows without asking the store, sync and async alike."""

    @property
    def _state(self) -> TaskState:
        raise NotImplementedError

    @property
    def id(self) -> str:
        """What the task is known by."""
        return self._state.task_id

    @property
    def goal(self) -> str:
        """What the task is for."""
        return self._state.goal

    @property
    def kind(self) -> str | None:
        """The kind it was submitted as: which function of a `Registry` runs it."""
        return self._state.kind

    @property
    def input(self) -> Any:
        """What it was submitted with."""
        return fresh(self._state.input)

    @property
    def deadline(self) -> datetime | None:
        """When it must be done."""
        return self._state.deadline

    @property
    def status(self) -> str:
        """``open``, ``waiting``, ``paused``, ``done``, ``failed`` or ``cancelled``."""
        return self._state.status

    @property
    def done(self) -> bool:
        """Whether it is finished, and has an outcome."""
        return self._state.status == kinds.DONE

    @property
    def results(self) -> dict[str, Any]:
        """What each finished step returned, by name, as it is stored.

        Large results are stored separately. A sync task loads them here; an async one raises
        `NotLoaded`: there, ``await task.load()`` gives the same, and ``load(name)`` one of them.
        """
        return {name: self.result(name) for name in list(self._state.results)}

    @property
    def in_doubt(self) -> list[str]:
        """The steps that began, and nobody knows whether they happened."""
        return list(self._state.calls.open)

    @property
    def decisions(self) -> list[Decision]:
        """What was decided, and why."""
        return list(self._state.decisions)

    @property
    def discoveries(self) -> list[str]:
        """What was found out."""
        return list(self._state.discoveries)

    @property
    def outcome(self) -> Any:
        """What `finish` was given; None before."""
        return self._state.outcome

    @property
    def error(self) -> str | None:
        """The last error, if nothing has succeeded since."""
        return self._state.error

    @overload
    def result(self, name: str, as_: type[T]) -> T: ...
    @overload
    def result(self, name: str, as_: Any = None) -> Any: ...
    def result(self, name: str, as_: Any = None) -> Any:
        """One step's result, as the type *as_* if one is named; `KeyError` if it is not done."""
        found = self._state.results[name]
        if isinstance(found, Large):
            return self._load_large(name, as_)
        return typed(found, as_, self.id, name)

    def _load_large(self, name: str, as_: Any) -> Any:
        raise NotImplementedError


class AsyncTask(_TaskView, AsyncEntered):
    """A task that survives its process; see `Task`."""

    def __init__(self, scope: Scope, id_: str, options: TaskOptions) -> None:
        live = LiveTask(scope, id_, options)
        self.scope = scope
        #: Runs steps under names of your choice: for integrations, which make steps of tool calls.
        self.runner = StepRunner(live.through(scope))
        self.plan = AsyncPlan(self.runner.record)
        self.versions = AsyncVersions(
            self.runner, lambda id_, options: AsyncTask(scope, id_, options)
        )
        #: What is stored nowhere: connections, clients, caches. Each process has its own.
        self.scratch: dict[str, Any] = {}
        self._live = live
        self._record = self.runner.record
        self._memories = TaskMemories(self._record)
        self._waits = Waits(self.runner)
        self._transactions = Transactions(self.runner)
        self._ending = Ending(self.runner, self._memories)
        self._outer: AsyncTask | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @property
    def _state(self) -> TaskState:
        return self._live.state

    def _load_large(self, name: str, as_: Any) -> Any:  # noqa: ARG002 - as the sync one has it
        msg = f"The result of step {name!r} is large and kept apart: await task.load({name!r})."
        raise NotLoaded(msg)

    # -- opening and closing -----------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Take the lease, then create the task or read what it has come to."""
        outer = open_task.get()
        await self._record.open()
        try:
            if self.done:
                await self._ending.complete()
            self._outer = outer
            open_task.set(self)
        except BaseException:
            open_task.set(outer)
            await self._live.lock.release()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Note what went wrong, if anything did, and give up the lease."""
        lock = self._live.lock
        try:
            open_task.set(self._outer)
            if lock.is_parents:
                return  # a fork that leaves the block of its parent: that goes on
            with besides(error, f"task {self.id!r} could not be closed"):
                try:
                    if error is not None:
                        await self._ending.record_error(error)
                    else:  # not after an error: whoever comes next must find that it is done
                        await self._ending.remove()
                finally:  # or the lease would be renewed for ever
                    await lock.release()
        finally:  # an interrupt may have come before that
            await lock.release()

    def leave(self) -> None:
        """For `Task`, blocking: see to it that it is closed, if an interrupt came before that."""
        if self._live.lock.held is not None:
            open_task.set(self._outer)
            self._live.lock.release_now()

    # -- steps -------------------------------------------------------------------------------

    # A result is what was stored, by whatever the function was then, so what it returns today is
    # no promise: only what is converted is of a type. And its arguments cannot be checked beside
    # options of our own: a ParamSpec leaves no room for those.
    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        as_: type[T],
        in_doubt: InDoubt | None = None,
        verify: Callable[[str], Any] | None = None,
        retry: Retry | int | None = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        as_: Any = None,
        in_doubt: InDoubt | None = None,
        verify: Callable[[str], Any] | None = None,
        retry: Retry | int | None = None,
        **kwargs: Any,
    ) -> Any: ...
    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        as_: Any = None,
        in_doubt: InDoubt | None = None,
        verify: Callable[[str], Any] | None = None,
        retry: Retry | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run *function* as the step *name* and return its result; if it is done, only return that.

        The result is returned as it is stored, so a first run and a resumed one see the same;
        name a type with *as_* to have it back. A second step of the same name is name#2; the same
        again after an error is the same step; a step within a step is outer/name.

        *in_doubt* says what happens if a process dies within the step: "retry" runs it again;
        "verify" calls the function *verify*, which is given the idempotency key and returns the
        step's result, or None if it did not happen; "ask" lets the task wait until a person has
        answered (`Store.resolve`); "skip" goes on without it. All but "retry" record the beginning
        first. *retry*: a `Retry`, or how many attempts.
        """
        policy = StepPolicy.of(in_doubt, verify, retry)
        return await self.runner.step(name, function, args, kwargs, policy, as_=as_)

    @overload
    async def load(self, name: None = None) -> dict[str, Any]: ...
    @overload
    async def load(self, name: str, as_: type[T]) -> T: ...
    @overload
    async def load(self, name: str, as_: Any = None) -> Any: ...
    async def load(self, name: str | None = None, as_: Any = None) -> Any:
        """One step's result, however large; without a *name*, a dict of all of them."""
        if name is None:
            return {name: await self.runner.load(name) for name in list(self._state.results)}
        return await self.runner.load(name, as_)

    @overload
    async def transaction(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        as_: type[T],
        retry: Retry | int | None = None,
    ) -> T: ...
    @overload
    async def transaction(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        as_: Any = None,
        retry: Retry | int | None = None,
    ) -> Any: ...
    async def transaction(
        self,
        name: str,
        function: Callable[..., Any] | None = None,
        /,
        *args: Any,
        as_: Any = None,
        retry: Retry | int | None = None,
    ) -> Any:
        """Run ``function(connection, *args)`` as a step that happens exactly once.

        What it writes with the connection (apsw's for SQLite, psycopg's for PostgreSQL) and the
        step's result are committed together or not at all: it is never in doubt. A step
        that is done returns its result, and the function is not called. Other effects of the
        function are not part of it. *retry* as in `step`: for a database that rolled it back
        (`TransactionUndone`), for example.

        A sync task also takes it as a block, whose body has to ask: ``with
        task.transaction("pay") as pay: if not pay.done: pay.execute(…)``.
        """
        if function is None:
            msg = "An async task takes a transaction as a function: transaction(name, function)."
            raise TypeError(msg)
        policy = StepPolicy.of(retry=retry)
        return await self._transactions.run(name, function, args, policy, as_)

    def remaining(self) -> Iterator[AsyncStep]:
        """The planned steps without a result, one after the other; each is offered once.

        A plan that is changed meanwhile is followed as it then is. What the loop does is part
        of the step's turn: a wait for "approval" is that of this step, "name/approval".
        """
        return Remaining(self._live, lambda name, item: AsyncStep(self, name, item))

    # -- waiting -----------------------------------------------------------------------------

    async def wait_for(
        self,
        signal: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - of the signal, not of the call
        default: Any = UNSET,
        block: float = 0,
    ) -> Any:
        """The payload of the next *signal*, from `Store.signal` or ``limpet task signal``.

        If it is not there, the wait is recorded and `TaskWaiting` leaves the block: the process is
        free, and whoever opens the task after the signal continues after this call. *block*: first
        wait in this process for up to so many seconds. After *timeout* seconds, counted from the
        first time and over all restarts, it returns *default*, or raises `WaitTimedOut`.
        """
        return await self._waits.wait_for(signal, timeout, default, block)

    async def sleep(self, seconds: float, *, block: float = 60) -> None:
        """Go on *seconds* after this was first called, whatever happens to the process meanwhile.

        With no more than *block* seconds to go it waits here; with more, `TaskWaiting` leaves the
        block, and the process is free. ``limpet work`` opens the task again in time.
        """
        await self._waits.sleep(seconds, block)

    # -- what was learned ------------------------------------------------------------------------

    async def decide(self, decision: str, *, because: str | None = None) -> None:
        """Record a decision and its reason. The same once more, as on a resume, adds nothing."""
        made = Decision(text(decision, "decision"), because and text(because, "reason"))
        if made not in self._state.decisions:
            await self._record.check_open_to("decision")
            mark = self._memories.mark(decision, made.sentence)
            value = {"decision": decision, "because": because, **mark}
            await self._record.write(kinds.DECIDED, value)

    async def discover(self, discovery: str) -> None:
        """Record something found out. The same once more, as on a resume, adds nothing."""
        discovery = self.scope.redacted(text(discovery, "discovery"))
        if discovery not in self._state.discoveries:
            await self._record.check_open_to("discovery")
            value = {"discovery": discovery, **self._memories.mark(discovery)}
            await self._record.write(kinds.DISCOVERED, value)

    # -- the end -----------------------------------------------------------------------------

    async def finish(
        self,
        outcome: Any = None,
        *,
        keep: float | bool = True,
        remember: Memories | str | bool = False,
    ) -> Any:
        """End the task with *outcome* and return it as stored. The first outcome stays.

        *keep* says what becomes of the task: it stays (for its ttl, if it has one), stays for so
        many seconds, or is deleted (False) when the block ends. *remember*: outcome, decisions and
        discoveries go into this memory, or this namespace of the store (True: "tasks"); whoever
        `Store.on_finish` names is called with the checkpoint. Both happen before it is deleted, and
        after a crash whoever opens the task next does the rest. On SQLite and PostgreSQL, outcome
        and a memory of the same store are written in one commit.
        """
        await self._ending.finish(outcome, keep, remember)
        return self.outcome

    async def fail(self, error: object) -> None:
        """Mark the task as failed, with the reason. Opening it again resumes it."""
        await self._ending.fail(error)

    async def delete(self) -> bool:
        """Remove the task. False if it was not there. A worker that has it open loses its lease."""
        return await self._record.delete()

    # -- looking at it -----------------------------------------------------------------------------

    async def checkpoint(self) -> Checkpoint:
        """The task as it is now. Works from any process, also while another runs it."""
        return (await self._record.look()).checkpoint()

    async def resume_context(
        self,
        *,
        max_tokens: int | None = None,
        count: Callable[[str], int] | Counter | None = None,
        memories: Memories | str | bool | Iterable[Any] = (),
    ) -> str:
        """The text that a fresh model context starts from: done, decided, found, and what is next.

        Stored text is quoted as data. What does not fit *max_tokens* is cut by importance, and the
        text says what was; *count* counts tokens exactly where an estimate will not do. *memories*
        are what earlier tasks have left: a memory, a namespace of the store or True ("tasks"), of
        which it takes what fits the goal and the next step; or what you have recalled yourself.
        """
        from limpet.tasks.resume_text import resume_context  # noqa: PLC0415 - not every task needs it

        state = await self._record.look()
        recalled = await self._memories.recall(state, memories)
        return resume_context(state, max_tokens, count, recalled)

    async def resume_messages(
        self,
        *,
        max_tokens: int | None = None,
        count: Callable[[str], int] | Counter | None = None,
        memories: Memories | str | bool | Iterable[Any] = (),
    ) -> list[dict[str, Any]]:
        """The same as chat messages: the instructions from the system, the record as data."""
        from limpet.tasks.resume_text import resume_messages  # noqa: PLC0415 - as above

        state = await self._record.look()
        recalled = await self._memories.recall(state, memories)
        return resume_messages(state, max_tokens, count, recalled)

    async def info(self) -> TaskInfo:
        """Status, holder, size and times."""
        head = await self._record.journal.head()
        if head is None:
            raise not_found(self.id)
        return TaskInfo.of(head)

    async def label(self, /, **labels: str | None) -> None:
        """Set labels; None removes one. They are what `store.tasks(labels=…)` finds by."""
        check_labels_are_free(labels)
        await self._record.change(labels=labels)

    async def expire(self, ttl: float | None) -> None:
        """Let it end *ttl* seconds after its last entry, from now on; None: never.

        Not while it is open: the time counts, but a task does not end in the middle of a step.
        """
        await self._record.change(ttl=check_ttl(ttl))

    # -- the whole of it ---------------------------------------------------------------------------

    async def run(
        self,
        *,
        plan: object,
        execute: Callable[[Any], Any],
        finish: Callable[[dict[str, Any]], Any] | None = None,
        remember: Memories | str | bool = False,
    ) -> Any:
        """Plan, execute each step, finish: whatever of that is not done. Returns the outcome.

        ``execute(step)`` runs each planned step; ``finish(results)`` makes the outcome. *remember*
        as in `finish`.
        """

        async def whole() -> Any:
            await self.plan(plan)
            for step in self.remaining():
                given = Step(step, Task(self)) if self.scope.is_sync else step
                await step.run(execute, given)
            results = await self.load()
            return results if finish is None else await self._record.runtime.invoke(finish, results)

        return await self._open_and_finish(whole, remember=remember)

    async def work(
        self, function: Callable[..., Any], /, *args: Any, remember: Memories | str | bool = False
    ) -> Any:
        """Open the task, call ``function(task, *args)``, and finish with what that returns.

        If the function finished the task itself, that outcome stays. A task that is done only
        returns it. *remember* as in `finish`.
        """

        async def call() -> Any:
            return await self._record.runtime.invoke(function, _as_opened(self), *args)

        return await self._open_and_finish(call, remember=remember)

    async def _open_and_finish(
        self, body: Callable[[], Any], *, remember: Memories | str | bool = False
    ) -> Any:
        async with self:
            outcome = None if self.done else await body()
            if remember is not False or not self.done:
                await self.finish(outcome, remember=remember)
            return self.outcome

    async def child(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        goal: str | None = None,
        retry: Retry | int | None = None,
    ) -> Any:
        """Run ``function(child, *args)`` as a task of its own, ``id/name``, and as a step of this.

        Its outcome is the step's result. If the child has to wait, so does this task; what wakes
        the child wakes both. Without a *goal* it has the step's name for one.
        """
        if not callable(function):
            raise not_a_function(function, f"child({name!r}, …)")
        body = self._record.runtime.as_function(self._run_child)
        try:
            return await self.step(name, body, goal or name, function, args, retry=retry)
        except (TaskHalted, BaseExceptionGroup) as error:
            # Now, and not when it leaves the block: somebody may catch it before that.
            await self._ending.wait_for_children(error)
            raise

    async def _run_child(
        self, goal: str, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> Any:
        own, step, runtime = self._live.options, current_step(), self._record.runtime
        options = TaskOptions(
            goal=goal,
            agent=own.agent,
            lease=own.lease,
            # Who had both may have renewed this lease last: it ends a little after ours did.
            wait=max(own.wait, own.lease),
            heartbeat=own.heartbeat,
            deadline=self.deadline,
            parent=self.id,
            ttl=own.ttl,
        )
        child = AsyncTask(self.scope, f"{self.id}/{step.name}", options)

        async def call() -> Any:
            # A cancellation reaches the children that are there. Had it not come by now, it would
            # have found this one.
            await self._record.catch_up()
            if self.status == kinds.CANCELLED:
                await cancel(self.scope, child.id, self.error, parent=self.id)
                await child._record.catch_up()
                child._live.check_running("work")
            done = len(child._state.results)
            if done:  # it is our progress too: see `TaskState.fruitless`
                step.progress(None, f"{done} steps of the child are done", done)
                await runtime.call(self._live.heartbeat)
            return await runtime.invoke(function, _as_opened(child), *args)

        return await child._open_and_finish(call)


class Task(_TaskView, SyncWrapper[AsyncTask]):
    """A task that survives its process: a step that is done is never run again.

    >>> import limpet
    >>> with limpet.open("memory:") as store:
    ...     with store.task("report-42", goal="Count the incidents") as task:
    ...         task.step("fetch", lambda: [3, 4])
    ...         task.step("add", sum, task.results["fetch"])
    ...         task.finish({"incidents": 7})
    [3, 4]
    7
    {'incidents': 7}
    """

    def __init__(self, core: AsyncTask) -> None:
        super().__init__(core)
        self.plan = Plan(core.plan)
        self.versions = Versions(core.versions)

    @property
    def scope(self) -> Scope:
        """Where the task lives: for integrations."""
        return self._core.scope

    @property
    def runner(self) -> StepRunner:
        """Runs steps under names of your choice: for integrations that make steps of tool calls."""
        return self._core.runner

    @property
    def scratch(self) -> dict[str, Any]:
        """What is stored nowhere: connections, clients, caches. Each process has its own."""
        return self._core.scratch

    @property
    def _state(self) -> TaskState:
        return self._core.runner.live.state

    def _load_large(self, name: str, as_: Any) -> Any:
        return run_to_end(self._core.load(name, as_))

    _enter = sync(AsyncTask.__aenter__)
    _exit = sync(AsyncTask.__aexit__)

    def __enter__(self) -> Self:
        """Take the lease, then create the task or read what it has come to."""
        self._enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Note what went wrong, if anything did, and give up the lease."""
        try:
            self._exit(kind, error, trace)
        finally:  # an interrupt may have come before that began
            self._core.leave()

    step = sync(AsyncTask.step)
    load = sync(AsyncTask.load)
    wait_for = sync(AsyncTask.wait_for)
    sleep = sync(AsyncTask.sleep)
    decide = sync(AsyncTask.decide)
    discover = sync(AsyncTask.discover)
    finish = sync(AsyncTask.finish)
    fail = sync(AsyncTask.fail)
    delete = sync(AsyncTask.delete)
    checkpoint = sync(AsyncTask.checkpoint)
    resume_context = sync(AsyncTask.resume_context)
    resume_messages = sync(AsyncTask.resume_messages)
    info = sync(AsyncTask.info)
    label = sync(AsyncTask.label)
    expire = sync(AsyncTask.expire)
    run = sync(AsyncTask.run)
    work = sync(AsyncTask.work)
    child = sync(AsyncTask.child)

    _transaction = sync(AsyncTask.transaction)

    @overload
    def transaction(self, name: str, /) -> Block: ...
    @overload
    def transaction(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        as_: type[T],
        retry: Retry | int | None = None,
    ) -> T: ...
    @overload
    def transaction(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        as_: Any = None,
        retry: Retry | int | None = None,
    ) -> Any: ...
    def transaction(
        self,
        name: str,
        function: Callable[..., Any] | None = None,
        /,
        *args: Any,
        as_: Any = None,
        retry: Retry | int | None = None,
    ) -> Any:
        if function is None:
            return Block(Transactions(self.runner), name)
        return self._transaction(name, function, *args, as_=as_, retry=retry)

    transaction.__doc__ = AsyncTask.transaction.__doc__

    def remaining(self) -> Iterator[Step]:
        """The planned steps without a result, one after the other; each is offered once.

        A plan that is changed meanwhile is followed as it then is. What the loop does is part
        of the step's turn: a wait for "approval" is that of this step, "name/approval".
        """
        return Remaining(
            self.runner.live, lambda name, item: Step(AsyncStep(self._core, name, item), self)
        )


def current_task() -> Any:
    """The task that is open here: a `Task`, or in async code an `AsyncTask`.

    `TaskNotOpen` outside of one.
    """
    found = open_task.get()
    if found is None:
        msg = "No task is open here. Call this within `with store.task(…):`."
        raise TaskNotOpen(msg)
    return _as_opened(found)


def _as_opened(task: AsyncTask) -> AsyncTask | Task:
    """*task* as the user's functions know it: blocking, if its store is."""
    return Task(task) if task.scope.is_sync else task
