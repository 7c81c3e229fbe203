"""A task's hold on its journal: the lease, the record, and what both faces show without asking."""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from limpet.backends.contract import Record
from limpet.backends.decide import holder_for_people
from limpet.core.codec import convert, fresh
from limpet.core.leases import HeldLease, LeaseLock
from limpet.core.runtime import run_to_end
from limpet.errors import (
    Conflict,
    DeadlinePassed,
    GoalMismatch,
    LeaseHeld,
    LeaseLost,
    NotLoaded,
    TaskCancelled,
    TaskFinished,
    TaskHalted,
    TaskHeld,
    TaskNotFound,
    TaskNotOpen,
    TaskPaused,
    WrongType,
    besides,
)
from limpet.tasks import entries as kinds
from limpet.tasks.context import StepContext, Turn, running
from limpet.tasks.reports import Reports
from limpet.tasks.state import Large, TaskState
from limpet.tasks.terms import Terms
from limpet.tasks.words import described, held_by, place, single

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from limpet.core.checkpoint import Decision
    from limpet.core.journal import AsyncJournal, Entry
    from limpet.core.scope import Scope

__all__ = ["HALTED", "Core", "Terms", "View", "described", "single", "typed"]

KIND = "task"
HALTED = (kinds.WAITING, kinds.PAUSED, kinds.CANCELLED)
#: Results that are kept apart have a journal of this kind, with the id of their task.
RESULTS = "task-result"

T = TypeVar("T")


class View:
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

        Large results are kept apart, and a sync task loads them for this; an async one raises
        `NotLoaded`: there, ``await task.load()`` gives the same, and ``load(name)`` one of them.
        """
        return {name: self.result(name) for name in list(self._state.results)}

    @property
    def in_doubt(self) -> list[str]:
        """The steps that began, and nobody knows whether they happened."""
        return list(self._state.in_doubt)

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

    @overload
    def result(self, name: str, as_: type[T]) -> T: ...
    @overload
    def result(self, name: str, as_: Any = None) -> Any: ...
    def result(self, name: str, as_: Any = None) -> Any:
        """One step's result, as the type *as_* if one is named; `KeyError` if it is not done."""
        found = self._state.results[name]
        if isinstance(found, Large):
            return self._load(name, as_)
        return typed(found, as_, self.id, name)

    def _load(self, name: str, as_: Any = None) -> Any:  # noqa: ARG002 - the sync face has its own
        msg = f"The result of step {name!r} is large and kept apart: await task.load({name!r})."
        raise NotLoaded(msg)


class Core(View):
    """A task's journal, held by a lease."""

    def __init__(self, scope: Scope, id_: str, terms: Terms) -> None:
        self._scope = scope
        self._runtime = scope.runtime
        self._journal = scope.journal(KIND, id_)
        self._terms = terms
        self._hold = LeaseLock(
            scope.runtime,
            scope.store.leases,
            self._journal.key,
            terms.lease,
            agent=terms.agent,
            on_renewed=self._beat,
            every=terms.heartbeat,
        )
        self._state = TaskState(self._journal.key.id)
        self._folding = threading.Lock()
        #: Names of steps that were given out in this run.
        self._seen: dict[str, int] = {}
        self._changing_seen: dict[str, int] = {}
        #: Changes of this run that made no difference to the plan as it then was.
        self._idle_changes: list[str] = []
        #: The planned steps that `remaining` has offered, while their turns last; the last counts.
        self._turns: list[Turn] = []
        self._counting = threading.Lock()
        #: Waits that were come to in this run.
        self._awaited: set[str] = set()
        #: Progress that waits for the next heartbeat.
        self._reports = Reports()
        #: The last errors after which a step was not tried again. Shared with our twins.
        self._exhausted: deque[BaseException] = deque(maxlen=16)
        #: Ours, and the store's clock, at the same moment.
        self._clock = (0.0, datetime.now(UTC))
        #: What it was told from memory in this process, in plain words.
        self._told: set[str] = set()
        #: Whether the record goes when the task is closed.
        self._leaving = False
        #: What is stored nowhere: connections, clients, caches. Each process has its own.
        self.scratch: dict[str, Any] = {}
        #: What the user's functions get to see of a task or a step: the sync face has its own.
        self._shown: Callable[[Any], Any] = lambda noun: noun

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    def _through(self, scope: Scope) -> Self:
        """The same open task for a caller who blocks, or for one who awaits."""
        if scope is self._scope:
            return self
        twin = copy.copy(self)
        twin._go_through(scope)  # noqa: SLF001 - its own twin
        return twin

    def _go_through(self, scope: Scope) -> None:
        self._runtime = scope.runtime
        self._scope = scope
        self._journal = self._scope.journal(KIND, self.id)

    # -- opening and closing -----------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Take the lease, then create the task or read what it has come to."""
        try:
            await self._hold.acquire(self._terms.wait)
            self._seen.clear()
            self._changing_seen.clear()
            self._exhausted.clear()
            self._turns.clear()
            self._idle_changes.clear()
            self._awaited.clear()
            while not await self._begin():
                pass  # somebody spoke in between, perhaps to cancel it
        except LeaseHeld as error:
            who = holder_for_people(error.holder)
            raise TaskHeld(held_by(self.id, error), who, error.until, error.epoch) from error
        except BaseException:
            await self._hold.release()
            raise
        return self

    async def _begin(self) -> bool:
        """Read what the task has come to, and record that we go on; False if that was old."""
        await self._refresh()
        try:
            await (self._resume() if self._state.exists else self._create())
        except Conflict:
            return False
        return True

    async def _create(self) -> None:
        if self._terms.goal is None:
            msg = f"There is no task {self.id!r}. To create it, open it with a goal."
            raise TaskNotFound(msg)
        await self._record(
            kinds.CREATED,
            self._terms.created(),
            expect=0,
            status=kinds.OPEN,
            labels=self._terms.labelled(),
            ttl=self._terms.ttl,
        )

    async def _resume(self) -> None:
        goal = self._terms.goal
        if goal is not None and goal != self._state.goal:
            msg = (
                f"Task {self.id!r} has the goal {self._state.goal!r}, not {goal!r}. "
                "Give a new task a new id; to go on with this one, open it without a goal."
            )
            raise GoalMismatch(msg)
        self._check_not_halted("is not opened")
        if not self.done:
            await self._record(
                kinds.RESUMED,
                {"agent": self._terms.agent},
                expect=self._state.seq,
                status=kinds.OPEN,
                labels={**self._terms.labelled(), kinds.DUE: None},
                ttl=self._terms.ttl,
            )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Note what went wrong, if anything did, and give up the lease."""
        if self._hold.is_parents:
            return  # a fork that leaves the block of its parent: that goes on
        with besides(error, f"task {self.id!r} could not be closed"):
            try:
                if error is not None and self.status in (kinds.OPEN, kinds.WAITING):
                    await self._note(error)
                # Not after an error: whoever comes to it next must find that it is done.
                if self._leaving and error is None:
                    await self._go()
            finally:  # or the lease would be renewed for ever
                await self._hold.release()

    async def _go(self) -> None:
        """Delete the task while it is ours: the next one of this id is somebody else's."""
        with suppress(LeaseLost):  # it was taken over, by somebody who finds it done and lets it go
            await self._runtime.call(self._hold.confirm)
            await self.delete()

    async def _note(self, error: BaseException) -> None:
        """Record what ended the block."""
        errors = single(error)
        exhausted = set(map(id, self._exhausted))
        if any(id(one) in exhausted or isinstance(one, DeadlinePassed) for one in errors):
            await self._give_up(error)
        elif not all(isinstance(one, (LeaseLost, TaskHalted)) for one in errors):
            await self._record(kinds.STOPPED, {"error": described(error), **place(error)})
        else:
            for one in errors:
                if isinstance(one, TaskHalted) and one.task_id != self.id:
                    await self._wait_for_child(one)

    async def _give_up(self, error: object) -> None:
        """Mark it as failed. If somebody has halted it meanwhile, it stays so, with a note."""
        body = {"error": described(error), **place(error)}
        await self._catch_up()
        while self.status in (kinds.OPEN, kinds.WAITING):
            try:
                await self._record(kinds.FAILED, body, expect=self._state.seq, status=kinds.FAILED)
            except Conflict:
                await self._catch_up()
        if self.status in (kinds.PAUSED, kinds.CANCELLED):
            await self._record(kinds.STOPPED, body)

    async def _wait_for_child(self, halted: TaskHalted) -> None:
        """Wait as a child of ours does, unless somebody has just halted this task, or woken it."""
        await self._catch_up()
        while self.status == kinds.OPEN:
            try:
                await self._leave(halted.task_id, "child", halted.until, expect=self._state.seq)
            except Conflict:
                await self._catch_up()
                continue
            # Whoever let the child go on before this was recorded did not find us waiting.
            child = await self._scope.journal(KIND, halted.task_id).head()
            if child is None or child.status not in HALTED:
                await self._record(kinds.RESUMED, {"agent": None}, status=kinds.OPEN)
            return

    # -- reading and writing -------------------------------------------------------------------

    async def _refresh(self) -> None:
        """Read what the task has come to: from its beginning, for it may be another one by now."""
        self._state = await folded(self._journal)

    async def _catch_up(self) -> None:
        """Read what others have added: signals, a cancellation."""
        self._take_in(await self._journal.read(after=self._state.seq))

    async def _record(
        self, kind: str, body: dict[str, Any], encoded: bytes | None = None, **changes: Any
    ) -> None:
        """Make an entry durable under the lease, then let it count."""
        entries = ((kind, body),)
        body_ = self._journal.encode(entries) if encoded is None else encoded
        done = await self._journal.write(entries, lease=self._own().lease, body=body_, **changes)
        await self._let_count(Record(done.seq, 1, done.at, body_))

    async def _let_count(self, record: Record) -> None:
        stored = self._journal.entries(record)
        self._clock = (time.monotonic(), stored[-1].at)
        if not self._take_in(stored):
            # Somebody wrote in between: a signal, a cancellation, another thread of ours.
            self._take_in(await self._journal.read(after=self._state.seq, upto=stored[-1].seq))

    def _take_in(self, entries: Iterable[Entry]) -> bool:
        """Let *entries* count, each once. False if some that come before them are missing."""
        with self._folding:
            for entry in entries:
                if entry.seq > self._state.seq + 1:
                    return False
                if entry.seq > self._state.seq:
                    self._state.apply(entry)
        return True

    def _around(self, name: str = "") -> StepContext | None:
        """What *name* is within: a step that runs, or the turn of one that `remaining` offered.

        A planned step is within nothing, whoever's turn it is.
        """
        found = running(self._state.task_id)
        if found is None and self._turns:
            return None if name in self._state.planned_names() else self._turns[-1]
        return found

    def _own(self) -> HeldLease:
        """Our hold on the task, if we have one."""
        held = self._hold.held
        if held is None:
            msg = f"Task {self.id!r} is not open: write to it within `with store.task(…) as task:`."
            raise TaskNotOpen(msg)
        if held.lost is not None and held.is_parents:
            raise TaskHeld(*held.lost.args)
        return held

    def _now(self) -> datetime:
        """The time by the store's clock: no two machines' clocks are compared."""
        then, at = self._clock
        return at + timedelta(seconds=time.monotonic() - then)

    def _check_running(self, what: str, name: str | None = None) -> None:
        """Raise, before any work is done, if *what* could not be recorded after it."""
        state = self._state
        held = self._hold.held
        if (
            held is None
            or held.lost is not None
            or state.deadline is not None
            or state.status not in (kinds.OPEN, kinds.WAITING)
        ):  # hardly ever
            self._check_closely(what if name is None else f"{what} {name!r}")

    def _check_closely(self, what: str) -> None:
        if self.status == kinds.DONE:
            msg = (
                f"Task {self.id!r} is done and takes no {what}; task.outcome has what came of it. "
                "What is new belongs to a task with a new id."
            )
            raise TaskFinished(msg)
        lost = self._own().lost
        if isinstance(lost, LeaseLost):
            raise LeaseLost(*lost.args) from lost
        if self.status == kinds.FAILED:
            msg = f"Task {self.id!r} has failed and takes no {what}. Open it again to resume it."
            raise TaskFinished(msg)
        self._check_not_halted(f"takes no {what}")
        deadline = self._state.deadline
        if deadline is not None and self._now() >= deadline:
            moment = f"{deadline:%Y-%m-%d %H:%M:%S %Z}"
            msg = f"Task {self.id!r} had until {moment}, and takes no {what}."
            raise DeadlinePassed(msg)

    def _check_not_halted(self, what: str) -> None:
        if self.status not in (kinds.PAUSED, kinds.CANCELLED, kinds.FORKING):  # as nearly always
            return
        by_command = self._scope.command("resume", self.id)
        way_out = f"To let it go on: store.resume({self.id!r}), or {by_command}."
        if self.status == kinds.PAUSED:
            msg = f"Task {self.id!r} is paused, and {what}. {way_out}"
            raise self._halting(TaskPaused(msg, self.id))
        if self.status == kinds.CANCELLED:
            msg = f"Task {self.id!r} was cancelled, and {what}. {way_out}"
            raise self._halting(TaskCancelled(msg, self.id))
        if self.status == kinds.FORKING:
            msg = f"Task {self.id!r} is half a fork. Finish it by the same fork() again."
            raise TaskNotOpen(msg)

    def _halting(self, error: TaskHalted) -> TaskHalted:
        """*error*, which the function of the step that runs here is to let pass."""
        step = running(self.id)
        if step is not None and error.task_id == self.id:
            step.halted = error
        return error

    async def _leave(
        self, name: str, kind: str, until: datetime | None, *, expect: int | None = None
    ) -> None:
        """Record that the task waits, and that nobody need work on it until then."""
        body = {"name": name, "kind": kind, "until": until and until.isoformat(), "away": True}
        # Only what was come to in this run: the program may no longer wait for the rest.
        waits = self._state.waits
        untils = [
            until,
            self.deadline,
            *(waits[other].until for other in self._awaited if other in waits),
        ]
        first = min((moment for moment in untils if moment is not None), default=None)
        await self._record(
            kinds.WAITING,
            body,
            status=kinds.WAITING,
            labels={kinds.DUE: None if first is None else first.isoformat()},
            expect=expect,
        )

    # -- heartbeat -------------------------------------------------------------------------------

    def _report(self, name: str, body: dict[str, Any], now: bool) -> None:  # noqa: FBT001
        """Take a step's progress. What cannot be stored is refused here, not at the heartbeat."""
        self._journal.encode([(kinds.PROGRESS, body)])
        self._reports.take(name, body)
        if now:
            self._beat()

    def _beat(self) -> None:
        """Store the newest progress of each step. Called on any thread: the keeper, a step."""
        twin = self._through(self._scope.as_sync())
        self._reports.store(lambda body: run_to_end(twin._record_progress(body)))  # noqa: SLF001

    async def _record_progress(self, body: dict[str, Any]) -> None:
        if body["name"] not in self._state.results:
            await self._record(kinds.PROGRESS, body)

    # -- what a store or a child needs -------------------------------------------------------------

    async def delete(self) -> bool:
        """Remove the task. False if it was not there. A worker that has it open is fenced off."""
        # Before the task: while that is there, nobody begins another with results of its own.
        await self._scope.journal(RESULTS, self.id).delete()
        return await self._journal.delete()


async def folded(journal: AsyncJournal, upto: int | None = None) -> TaskState:
    """What a task's journal amounts to, up to entry *upto*."""
    state = TaskState(journal.key.id)
    async for page in journal.pages(upto=upto):
        for entry in page:
            state.apply(entry)
    return state


def typed(value: Any, as_: Any, task_id: str, step: str) -> Any:
    """A copy of what a step has stored, as the type *as_* if one is named."""
    if as_ is None:
        return fresh(value)
    try:
        return convert(value, as_)
    except WrongType as error:
        msg = str(error).replace("stored value", f"result of step {step!r} of task {task_id!r}", 1)
        raise WrongType(msg) from error.__cause__
