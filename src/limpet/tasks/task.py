"""Tasks: a goal, a plan, steps that run once, and a record that any process can go on from."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from msgspec import Struct

from limpet.backends.contract import Head, from_micros
from limpet.backends.decide import holder_for_people
from limpet.core.checkpoint import Checkpoint, Decision
from limpet.core.ids import check_ttl
from limpet.core.journal import listed_fields
from limpet.core.recalled import Recalled
from limpet.core.runtime import SyncWrapper, run_to_end, sync, sync_wrapped
from limpet.errors import TaskNotOpen
from limpet.tasks import entries as kinds
from limpet.tasks.context import StepContext, current_step
from limpet.tasks.core import KIND, View
from limpet.tasks.effects import Outside, effect, opened
from limpet.tasks.endings import Endings
from limpet.tasks.history import TaskVersion
from limpet.tasks.plans import AsyncStep, Remaining
from limpet.tasks.resume_text import resume_context, resume_messages
from limpet.tasks.retry import InDoubt, Retry
from limpet.tasks.state import Progress
from limpet.tasks.steps import no_function
from limpet.tasks.terms import Terms, check_own, text
from limpet.tasks.transactions import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from limpet.core.scope import Scope
    from limpet.llm.tokens import Counter
    from limpet.tasks.remembering import Memories
    from limpet.tasks.state import TaskState

__all__ = [
    "KIND",
    "AsyncStep",
    "AsyncTask",
    "InDoubt",
    "Outside",
    "Progress",
    "Recalled",
    "Retry",
    "Step",
    "StepContext",
    "Task",
    "TaskInfo",
    "TaskVersion",
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


class AsyncTask(Endings):
    """A task that survives its process; see `Task`."""

    def __init__(self, scope: Scope, id_: str, terms: Terms) -> None:
        super().__init__(scope, id_, terms)
        self._outer: Any = None

    async def __aenter__(self) -> Self:
        """Take the lease, then create the task or read what it has come to."""
        await super().__aenter__()
        self._outer = opened.get()
        opened.set(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Note what went wrong, if anything did, and give up the lease."""
        opened.set(self._outer)
        await super().__aexit__(kind, error, trace)

    # -- what was learned ------------------------------------------------------------------------

    async def decide(self, decision: str, *, because: str | None = None) -> None:
        """Record a decision and its reason. The same once more, as on a resume, adds nothing."""
        made = Decision(text(decision, "decision"), because and text(because, "reason"))
        if made not in self._state.decisions:
            await self._check_open_to("decision")
            mark = self._repeats(decision, made.sentence)
            await self._record(kinds.DECIDED, {"decision": decision, "because": because, **mark})

    async def discover(self, discovery: str) -> None:
        """Record something found out. The same once more, as on a resume, adds nothing."""
        if text(discovery, "discovery") not in self._state.discoveries:
            await self._check_open_to("discovery")
            body = {"discovery": discovery, **self._repeats(discovery)}
            await self._record(kinds.DISCOVERED, body)

    # -- looking at it -----------------------------------------------------------------------------

    async def checkpoint(self) -> Checkpoint:
        """The task as it is now. Works from any process, also while another runs it."""
        return (await self._look()).checkpoint()

    async def resume_context(
        self,
        *,
        max_tokens: int | None = None,
        count: Callable[[str], int] | Counter | None = None,
        memories: Memories | str | bool | Iterable[Any] = (),
    ) -> str:
        """The text that a fresh model context starts from: done, decided, found, and what is next.

        Stored text is fenced as data. What does not fit *max_tokens* is cut by importance, and the
        text says what was; *count* counts tokens exactly where an estimate will not do. *memories*
        are what earlier tasks have left: a memory, a namespace of the store or True ("tasks"), of
        which it takes what bears on the goal and the next step; or what you have recalled yourself.
        """
        state = await self._look()
        return resume_context(state, max_tokens, count, await self._recalled(state, memories))

    async def resume_messages(
        self,
        *,
        max_tokens: int | None = None,
        count: Callable[[str], int] | Counter | None = None,
        memories: Memories | str | bool | Iterable[Any] = (),
    ) -> list[dict[str, Any]]:
        """The same as chat messages: the instructions from the system, the record as data."""
        state = await self._look()
        return resume_messages(state, max_tokens, count, await self._recalled(state, memories))

    async def info(self) -> TaskInfo:
        """Status, holder, size and times."""
        head = await self._journal.head()
        if head is None:
            raise self._not_found()
        return TaskInfo.of(head)

    async def label(self, /, **labels: str | None) -> None:
        """Set labels; None removes one. They are what `store.tasks(labels=…)` finds by."""
        check_own(labels)
        await self._change(labels=labels)

    async def expire(self, ttl: float | None) -> None:
        """Let it end *ttl* seconds after its last entry, from now on; None: never.

        Not while it is open: the time counts, but a task does not end in the middle of a step.
        """
        await self._change(ttl=check_ttl(ttl))

    async def _look(self) -> TaskState:
        """What the task has come to, which stays as it is while others record."""
        if self._hold.held is None or self._hold.is_parents:
            await self._refresh()
        if not self._state.exists:
            raise self._not_found()
        with self._folding:
            return self._state.copy()

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

        async def whole(_task: object) -> Any:
            await self.plan(plan)
            for step in self.remaining():
                await step.run(execute, self._shown(step))
            results = await self.load()
            return results if finish is None else await self._runtime.invoke(finish, results)

        return await self._work(whole, remember=remember)

    async def work(
        self, function: Callable[..., Any], /, *args: Any, remember: Memories | str | bool = False
    ) -> Any:
        """Open the task, call ``function(task, *args)``, and finish with what that returns.

        If the function finished the task itself, that outcome stays. A task that is done only
        returns it. *remember* as in `finish`.
        """
        return await self._work(
            lambda task: self._runtime.invoke(function, self._shown(task), *args), remember=remember
        )

    async def _work(
        self, function: Callable[..., Any], *, remember: Memories | str | bool = False
    ) -> Any:
        async with self:
            outcome = None if self.done else await function(self)
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
            raise no_function(function, f"child({name!r}, …)")
        body = self._runtime.as_function(self._child)
        return await self.step(name, body, goal or name, function, args, retry=retry)

    async def _child(self, goal: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        terms = self._terms
        child = type(self)(
            self._scope,
            f"{self.id}/{current_step().name}",
            Terms(
                goal=goal,
                agent=terms.agent,
                lease=terms.lease,
                # Who had both may have renewed this lease last: it ends a little after ours did.
                wait=max(terms.wait, terms.lease),
                heartbeat=terms.heartbeat,
                deadline=self.deadline,
                parent=self.id,
                ttl=terms.ttl,
            ),
        )
        child._shown = self._shown  # noqa: SLF001 - its own kind

        async def begun(opened: Any) -> Any:
            done = len(opened._state.results)  # noqa: SLF001 - its own kind
            if done:  # it is our progress too: see `TaskState.fruitless`
                current_step().progress(None, f"{done} steps of the child are done", done)
                await self._runtime.call(self._beat)
            return await self._runtime.invoke(function, child._shown(opened), *args)  # noqa: SLF001

        return await child._work(begun)  # noqa: SLF001


def current_task() -> Any:
    """The task that is open here, as its block has it; `TaskNotOpen` outside of one."""
    found = opened.get()
    if not isinstance(found, AsyncTask):
        msg = "No task is open here. Call this within `with store.task(…):`."
        raise TaskNotOpen(msg)
    return found._shown(found)  # noqa: SLF001 - its own part


class Step(SyncWrapper[AsyncStep]):
    """One planned step: ``name``, ``data`` (the plan's item), ``done``, and `run`."""

    def __init__(self, core: AsyncStep, task: Task) -> None:
        super().__init__(core)
        self.task = task

    @property
    def name(self) -> str:
        """What the step is known by."""
        return self._core.name

    @property
    def data(self) -> dict[str, Any]:
        """The plan's item, if it is a dict; otherwise its name."""
        return self._core.data

    @property
    def done(self) -> bool:
        """Whether it has a result."""
        return self._core.done

    @property
    def idempotency_key(self) -> str:
        """``task:step``, the same on every retry."""
        return self._core.idempotency_key

    run = sync(AsyncStep.run)


class Task(View, SyncWrapper[AsyncTask]):
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
        core._shown = self._show  # noqa: SLF001 - its own other half

    def _show(self, noun: Any) -> Any:
        """What the user's functions get to see in the place of a core."""
        if isinstance(noun, AsyncStep):
            return Step(noun, self)
        return self if noun is self._core else Task(noun)

    @property
    def scratch(self) -> dict[str, Any]:
        """What is stored nowhere: connections, clients, caches. Each process has its own."""
        return self._core.scratch

    def _load(self, name: str, as_: Any = None) -> Any:
        return run_to_end(self._core.load(name, as_))

    @property
    def _state(self) -> TaskState:  # type: ignore[override]
        return self._core._state  # noqa: SLF001 - its own other half

    _enter = sync(AsyncTask.__aenter__)

    def __enter__(self) -> Self:
        """Take the lease, then create the task or read what it has come to."""
        self._enter()
        return self

    __exit__ = sync(AsyncTask.__aexit__)
    plan = sync(AsyncTask.plan)
    step = sync(AsyncTask.step)
    decide = sync(AsyncTask.decide)
    discover = sync(AsyncTask.discover)
    finish = sync(AsyncTask.finish)
    fail = sync(AsyncTask.fail)
    checkpoint = sync(AsyncTask.checkpoint)
    resume_context = sync(AsyncTask.resume_context)
    resume_messages = sync(AsyncTask.resume_messages)
    info = sync(AsyncTask.info)
    label = sync(AsyncTask.label)
    expire = sync(AsyncTask.expire)
    delete = sync(AsyncTask.delete)
    run = sync(AsyncTask.run)
    work = sync(AsyncTask.work)
    child = sync(AsyncTask.child)
    load = sync(AsyncTask.load)
    replan = sync(AsyncTask.replan)
    insert = sync(AsyncTask.insert)
    drop = sync(AsyncTask.drop)
    reorder = sync(AsyncTask.reorder)
    wait_for = sync(AsyncTask.wait_for)
    sleep = sync(AsyncTask.sleep)
    at = sync(AsyncTask.at)
    history = sync(AsyncTask.history)
    compare = sync(AsyncTask.compare)
    rewind = sync(AsyncTask.rewind)
    fork = sync_wrapped(AsyncTask.fork, lambda core: Task(core))  # noqa: PLW0108 - not made yet

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
            return Block(self._core, name, run_to_end)
        return self._transaction(name, function, *args, as_=as_, retry=retry)

    transaction.__doc__ = AsyncTask.transaction.__doc__

    def remaining(self) -> Iterator[Step]:
        """The planned steps without a result, one after the other; each is offered once.

        A plan that is changed meanwhile is followed as it then is. What the loop does is part
        of the step's turn: a wait for "approval" is that of this step, "name/approval".
        """
        return Remaining(self._core, lambda step: Step(step, self))
