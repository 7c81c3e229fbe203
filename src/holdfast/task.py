"""Tasks: a goal, a plan, steps that run once, and a record that any process can go on from."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from holdfast import checkpoint as kinds
from holdfast._faces import Face, blocking
from holdfast._recovery import resume_context
from holdfast.backends.base import UNSET, Head, UnsetType, for_people, from_micros
from holdfast.checkpoint import Checkpoint, Decision, TaskState, item_name, numbered
from holdfast.codec import convert, fresh, plain
from holdfast.errors import (
    Fenced,
    GoalMismatch,
    HoldfastError,
    LeaseHeld,
    NotStorable,
    TaskFinished,
    TaskHeld,
    TaskNotFound,
    TaskNotOpen,
    TooLarge,
)
from holdfast.ids import check_id, check_seconds, check_ttl
from holdfast.leases import Held, Keeper, holder_name, take

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from holdfast._faces import Port
    from holdfast.journal import AsyncJournal

__all__ = [
    "AsyncStep",
    "AsyncTask",
    "Step",
    "StepContext",
    "Task",
    "TaskInfo",
    "current_step",
]

KIND = "task"


class StepContext(Struct, frozen=True):
    """Which step is running."""

    task_id: str
    name: str

    @property
    def idempotency_key(self) -> str:
        """``task:step``: the same on every retry and every machine. Give it to the API you call."""
        return f"{self.task_id}:{self.name}"


_current: ContextVar[StepContext | None] = ContextVar("holdfast_step", default=None)


def current_step() -> StepContext:
    """The step whose function is running; `TaskNotOpen` outside of one."""
    found = _current.get()
    if found is None:
        msg = "No step is running here. Call this within a function that task.step() runs."
        raise TaskNotOpen(msg)
    return found


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

    @classmethod
    def of(cls, head: Head) -> TaskInfo:
        """The view of a journal's *head*."""
        return cls(
            id=head.key.id,
            status=head.status or kinds.OPEN,
            held_by=for_people(head.lease.holder) if head.lease else None,
            held_until=from_micros(head.lease.until) if head.lease else None,
            position=head.seq,
            size=head.size,
            created_at=from_micros(head.created),
            updated_at=from_micros(head.updated),
            labels=head.labels,
        )


class _View:
    """What both faces of a task show without asking the store."""

    _state: TaskState

    @property
    def id(self) -> str:
        """What the task is known by."""
        return self._state.task_id

    @property
    def goal(self) -> str:
        """What the task is for."""
        return self._state.goal

    @property
    def status(self) -> str:
        """``open``, ``done`` or ``failed``."""
        return self._state.status

    @property
    def done(self) -> bool:
        """Whether it is finished, and has an outcome."""
        return self._state.status == kinds.DONE

    @property
    def results(self) -> dict[str, Any]:
        """What each finished step returned, by name, as it is stored."""
        return dict(self._state.results)

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
        """The last error, if it was not overcome."""
        return self._state.error

    def result(self, name: str, as_: Any = None) -> Any:
        """One step's result, as the type *as_* if one is named; `KeyError` if it is not done."""
        return _typed(self._state.results[name], as_)


class AsyncStep:
    """One planned step; see `Step`."""

    def __init__(self, task: AsyncTask, name: str, item: Any) -> None:
        self.name = name
        self.task = task
        self.data: dict[str, Any] = fresh(item) if isinstance(item, dict) else {"name": item}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, done={self.done})"

    @property
    def done(self) -> bool:
        """Whether it has a result."""
        return self.name in self.task._state.results  # noqa: SLF001 - its own task

    @property
    def idempotency_key(self) -> str:
        """``task:step``, the same on every retry."""
        return StepContext(self.task.id, self.name).idempotency_key

    async def run(
        self, function: Callable[..., Any], /, *args: Any, as_: Any = None, **kwargs: Any
    ) -> Any:
        """Call *function* and store what it returns; if the step is done, only return that."""
        return await self.task._run(self.name, function, args, kwargs, as_)  # noqa: SLF001


class AsyncTask(_View):
    """A task that survives its process; see `Task`."""

    def __init__(
        self,
        journal: AsyncJournal,
        port: Port,
        keeper: Keeper,
        *,
        goal: str | None,
        agent: str | None,
        lease: float,
        wait: float,
        labels: Mapping[str, str | None] | UnsetType = UNSET,
        ttl: float | UnsetType | None = UNSET,
    ) -> None:
        self._journal = journal
        self._port = port
        self._keeper = keeper
        self._goal = None if goal is None else _text(goal, "goal")
        self._agent = None if agent is None else check_id(agent, "agent id", 128)
        self._lease = check_seconds(lease, "lease")
        self._wait = wait
        self._labels = dict(labels) if labels is not UNSET else {}
        if agent is not None:
            self._labels.setdefault("agent", agent)
        self._ttl = check_ttl(ttl)
        self._held: Held | None = None
        self._state = TaskState(journal.key.id)
        self._seen: dict[str, int] = {}
        self._counting = threading.Lock()
        #: What the user's functions get to see of a step: the sync face puts its own here.
        self._shown: Callable[[AsyncStep], Any] = lambda step: step

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    # -- opening and closing -----------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Take the lease, then create the task or read what it has come to."""
        self._seen.clear()
        try:
            await take(self._port, self._hold, self._wait)
            await self._refresh()
            await (self._resume() if self._state.exists else self._create())
        except LeaseHeld as error:
            who = for_people(error.holder)
            raise TaskHeld(str(error), who, error.until, error.epoch) from error
        except BaseException:
            await self._let_go()
            raise
        return self

    async def _create(self) -> None:
        if self._goal is None:
            msg = f"There is no task {self.id!r}. To create it, open it with a goal."
            raise TaskNotFound(msg)
        await self._record(
            kinds.CREATED,
            {"goal": self._goal, "agent": self._agent},
            status=kinds.OPEN,
            labels=self._labels,
            ttl=self._ttl,
        )

    async def _resume(self) -> None:
        if self._goal is not None and self._goal != self._state.goal:
            msg = (
                f"Task {self.id!r} has the goal {self._state.goal!r}, not {self._goal!r}. "
                "Give a new task a new id; to go on with this one, open it without a goal."
            )
            raise GoalMismatch(msg)
        if not self.done:
            await self._record(
                kinds.RESUMED,
                {"agent": self._agent},
                status=kinds.OPEN,
                labels=self._labels,
                ttl=self._ttl,
            )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Note what went wrong, if anything did, and give up the lease."""
        try:
            try:
                if error is not None and not isinstance(error, Fenced) and not self.done:
                    await self._record(kinds.STOPPED, {"error": _describe(error)})
            finally:  # or the lease would be renewed for ever
                await self._let_go()
        except HoldfastError as trouble:
            if error is None:
                raise
            error.add_note(f"Besides, task {self.id!r} could not be closed: {trouble}")

    def _hold(self, over: int | None) -> None:
        key, holder = self._journal.key, holder_name(self._agent)
        lease = self._port.backend.acquire(key, holder, self._lease, over=over)
        self._held = self._keeper.keep(key, lease, self._lease)

    async def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            await self._port.call(self._end, held)

    def _end(self, held: Held) -> None:
        self._keeper.drop(held)
        self._port.backend.release(held.key, held.lease)

    async def _refresh(self) -> None:
        """Read what the task has come to: from its beginning, for it may be another one by now."""
        state = TaskState(self.id)
        async for page in self._journal.pages():
            for entry in page:
                state.apply(entry)
        self._state = state

    async def _record(self, kind: str, body: dict[str, Any], **changes: Any) -> None:
        """Make an entry durable under the lease, then let it count."""
        entry = (kind, body)
        for stored in await self._journal.record(entry, lease=self._own().lease, **changes):
            self._state.apply(stored)

    def _own(self) -> Held:
        """Our hold on the task, if we have one."""
        if self._held is None:
            msg = f"Task {self.id!r} is not open: write to it within `with store.task(…) as task:`."
            raise TaskNotOpen(msg)
        return self._held

    # -- plan and steps ------------------------------------------------------------------------

    async def plan(self, plan: object) -> list[Any]:
        """The plan: a list, or a function that makes one and is called once, ever.

        Steps are names, or dicts with a "name". The function gets the goal if it needs an argument.
        """
        if self._state.plan is None:
            self._check_running("plan")
            made = plan
            if callable(plan):
                made = await self._port.ask(plan, *([self.goal] if _needs_one(plan) else []))
            with _called("planned['steps']", "plan"):
                await self._record(kinds.PLANNED, {"steps": _checked_plan(made)})
        return list(fresh(self._state.plan or []))

    def remaining(self) -> Iterator[AsyncStep]:
        """The planned steps without a result, one after the other; each is offered once."""
        offered: set[str] = set()
        while True:
            names = self._state.planned_names()
            left = (
                (name, item)
                for name, item in zip(names, self._state.plan or (), strict=True)
                if name not in self._state.results and name not in offered
            )
            name, item = next(left, (None, None))
            if name is None:
                return
            offered.add(name)
            yield AsyncStep(self, name, item)

    async def step(
        self, name: str, function: Callable[..., Any], /, *args: Any, as_: Any = None, **kwargs: Any
    ) -> Any:
        """Run *function* as the step *name* and return its result; if it is done, only return that.

        The result is returned as it is stored, so a first run and a resumed one see the same;
        name a type with *as_* to have it back. A second step of the same name is name#2.
        """
        check_id(name, "step name")
        with self._counting:
            name = numbered(name, self._seen)
        return await self._run(name, function, args, kwargs, as_)

    async def _run(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        as_: Any,
    ) -> Any:
        if name not in self._state.results:
            self._check_running(f"step {name!r}")
            began = time.monotonic()
            token = _current.set(StepContext(self.id, name))
            try:
                result = await self._port.ask(function, *args, **kwargs)
            finally:
                _current.reset(token)
            took = round(time.monotonic() - began, 6)
            with _called("step['result']", f"results[{name!r}]"):
                await self._record(kinds.STEP, {"name": name, "result": result, "took": took})
        return _typed(self._state.results[name], as_)

    def _check_running(self, what: str) -> None:
        """Raise, before any work is done, if *what* could not be recorded after it."""
        if self.status == kinds.DONE:
            msg = f"Task {self.id!r} is done and takes no {what}. Start a task with a new id."
            raise TaskFinished(msg)
        lost = self._own().lost
        if isinstance(lost, Fenced):
            raise Fenced(*lost.args) from lost
        if self.status == kinds.FAILED:
            msg = f"Task {self.id!r} has failed and takes no {what}. Open it again to resume it."
            raise TaskFinished(msg)

    # -- what was learned ------------------------------------------------------------------------

    async def decide(self, decision: str, *, because: str | None = None) -> None:
        """Record a decision and its reason. The same once more, as on a resume, adds nothing."""
        made = Decision(_text(decision, "decision"), because and _text(because, "reason"))
        if made not in self._state.decisions:
            self._check_running("decision")
            await self._record(kinds.DECIDED, {"decision": decision, "because": because})

    async def discover(self, discovery: str) -> None:
        """Record something found out. The same once more, as on a resume, adds nothing."""
        if _text(discovery, "discovery") not in self._state.discoveries:
            self._check_running("discovery")
            await self._record(kinds.DISCOVERED, {"discovery": discovery})

    async def finish(self, outcome: Any = None) -> Any:
        """End the task with *outcome* and return it as stored. The first outcome stays."""
        if not self.done:
            self._check_running("outcome")
            with _called("finished['outcome']", "outcome"):
                await self._record(kinds.FINISHED, {"outcome": outcome}, status=kinds.DONE)
        return self.outcome

    async def fail(self, error: object) -> None:
        """Mark the task as failed, with the reason. Opening it again resumes it."""
        self._check_running("failure")
        await self._record(kinds.FAILED, {"error": _describe(error)}, status=kinds.FAILED)

    # -- looking at it -----------------------------------------------------------------------------

    async def checkpoint(self) -> Checkpoint:
        """The task as it is now. Works from any process, also while another runs it."""
        await self._look()
        return self._state.checkpoint()

    async def resume_context(
        self, *, max_tokens: int | None = None, count: Callable[[str], int] | None = None
    ) -> str:
        """The text that a fresh model context starts from: done, decided, found, and what is next.

        Stored text is fenced as data. Results are cut to fit *max_tokens*, and the text says so;
        *count* counts tokens exactly where an estimate will not do.
        """
        await self._look()
        return resume_context(self._state, max_tokens, count)

    async def info(self) -> TaskInfo:
        """Status, holder, size and times."""
        head = await self._journal.head()
        if head is None:
            raise self._not_found()
        return TaskInfo.of(head)

    async def label(self, /, **labels: str | None) -> None:
        """Set labels; None removes one. They are what `store.tasks(labels=…)` finds by."""
        await self._change(labels=labels)

    async def expire(self, ttl: float | None) -> None:
        """Let it end *ttl* seconds after its last entry, from now on; None: never.

        Not while it is open: the time counts, but a task does not end in the middle of a step.
        """
        await self._change(ttl=check_ttl(ttl))

    async def _change(self, **changes: Any) -> None:
        """Change what is not in the journal; under the lease, if we have it."""
        lease = None if self._held is None else self._held.lease
        if not await self._journal.append(lease=lease, **changes):
            raise self._not_found()

    async def delete(self) -> bool:
        """Remove the task. False if it was not there. A worker that has it open is fenced off."""
        return await self._journal.delete()

    async def _look(self) -> None:
        if self._held is None:
            await self._refresh()
        if not self._state.exists:
            raise self._not_found()

    def _not_found(self) -> TaskNotFound:
        return TaskNotFound(f"There is no task {self.id!r} (or it has expired).")

    # -- the whole loop --------------------------------------------------------------------------

    async def run(
        self,
        *,
        plan: object,
        execute: Callable[..., Any],
        finish: Callable[..., Any] | None = None,
    ) -> Any:
        """Plan, execute each step, finish: whatever of that is not done. Returns the outcome.

        ``execute(step)`` runs each planned step; ``finish(results)`` makes the outcome.
        """
        async with self:
            if not self.done:
                await self.plan(plan)
                for step in self.remaining():
                    await step.run(execute, self._shown(step))
                outcome = self.results
                if finish is not None:
                    outcome = await self._port.ask(finish, self.results)
                await self.finish(outcome)
            return self.outcome


class Step(Face[AsyncStep]):
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

    run = blocking(AsyncStep.run)


class Task(_View, Face[AsyncTask]):
    """A task that survives its process: a step that is done is never run again.

    >>> import holdfast
    >>> with holdfast.open("memory:") as store:
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
        core._shown = lambda step: Step(step, self)  # noqa: SLF001 - its own other half

    @property
    def _state(self) -> TaskState:  # type: ignore[override]
        return self._core._state  # noqa: SLF001 - its own other half

    _enter = blocking(AsyncTask.__aenter__)

    def __enter__(self) -> Self:
        """Take the lease, then create the task or read what it has come to."""
        self._enter()
        return self

    __exit__ = blocking(AsyncTask.__aexit__)
    plan = blocking(AsyncTask.plan)
    step = blocking(AsyncTask.step)
    decide = blocking(AsyncTask.decide)
    discover = blocking(AsyncTask.discover)
    finish = blocking(AsyncTask.finish)
    fail = blocking(AsyncTask.fail)
    checkpoint = blocking(AsyncTask.checkpoint)
    resume_context = blocking(AsyncTask.resume_context)
    info = blocking(AsyncTask.info)
    label = blocking(AsyncTask.label)
    expire = blocking(AsyncTask.expire)
    delete = blocking(AsyncTask.delete)
    run = blocking(AsyncTask.run)

    def remaining(self) -> Iterator[Step]:
        """The planned steps without a result, one after the other; each is offered once."""
        return (Step(step, self) for step in self._core.remaining())


def _typed(value: Any, as_: Any) -> Any:
    return fresh(value) if as_ is None else convert(value, as_)


class _called:  # noqa: N801 - reads as a word of the sentence that it is used in
    """Lets an error about a value that cannot be stored speak in the words of the caller."""

    def __init__(self, inner: str, outer: str) -> None:
        self._inner = inner
        self._outer = outer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (NotStorable, TooLarge)):
            type_ = self._inner.partition("[")[0]
            named = error.under(self._inner, self._outer).under(type_, self._outer)
            raise named from error.__cause__


def _text(value: str, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"A {what} is text, not a {type(value).__name__}.")
    return value


def _describe(error: object) -> str:
    text = str(error)
    if isinstance(error, BaseException):
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    return text.encode(errors="backslashreplace").decode()  # file names may have half a character


def _needs_one(function: Callable[..., Any]) -> bool:
    """Whether *function* cannot be called without an argument."""
    import inspect  # noqa: PLC0415 - slow to import, needed once a task

    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):  # or it is a builtin that does not say
        return True
    return False


def _checked_plan(made: object) -> list[Any]:
    if isinstance(made, (str, bytes, Mapping)) or not isinstance(made, Iterable):
        msg = f"A plan is a list of steps, not a {type(made).__name__}."
        raise TypeError(msg)
    return [_checked_item(item, at) for at, item in enumerate(made)]


def _checked_item(item: object, at: int) -> Any:
    found = item if isinstance(item, str) else plain(item, f"plan[{at}]")
    if not isinstance(found, str) and not (isinstance(found, dict) and "name" in found):
        msg = f"A planned step is a name, or a dict with a 'name'; not {item!r:.80}."
        raise TypeError(msg)
    check_id(item_name(found), "step name")
    return found
