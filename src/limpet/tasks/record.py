"""The record of a task: its journal, the lease under which it is written, and what it has come to.

A `LiveTask` is the task as this process has it. A `TaskRecord` reads and writes its journal through
one runtime. There may be two of them over one live task, for code that blocks and for code that
awaits: a plain tool of an async agent is a step of the same task as its async ones.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from limpet.backends.contract import UNSET, Record, UnsetType, from_micros
from limpet.backends.decide import holder_for_people
from limpet.core.ids import check_id, check_seconds, check_ttl, make_key
from limpet.core.leases import is_on_this_machine, is_this_process
from limpet.core.meta import Meta
from limpet.core.runtime import run_to_end
from limpet.errors import (
    Conflict,
    DeadlinePassed,
    GoalMismatch,
    InvalidId,
    LeaseHeld,
    LeaseLost,
    StoreWentBack,
    TaskCancelled,
    TaskFinished,
    TaskHeld,
    TaskNotFound,
    TaskNotOpen,
    TaskPaused,
    TaskWaiting,
)
from limpet.tasks import entries as kinds
from limpet.tasks.context import StepContext, Turn, running_step
from limpet.tasks.entries import (
    KIND,
    RESULTS,
    is_composed,
    item_name,
    numbered,
    text,
    withdraw,
)
from limpet.tasks.state import TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from limpet.backends.contract import Append, Appended
    from limpet.core.calls import Call
    from limpet.core.journal import AsyncJournal, Entry
    from limpet.core.leases import HeldLease
    from limpet.core.scope import Scope

__all__ = [
    "LiveTask",
    "ProgressReports",
    "TaskOptions",
    "TaskRecord",
    "calls_meta",
    "check_labels_are_free",
    "not_found",
    "read_state",
]

#: What is left as it is in an idempotency key, besides letters and digits: all that is printable
#: ASCII, as HTTP headers want it, but for what escapes and what separates.
_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F)).translate({37: None, 58: None})

#: Characters of an error in the head's meta, which is read with every list.
ERROR = 200


class TaskOptions(Struct, frozen=True, kw_only=True):
    """How a task is opened, and with what it begins."""

    goal: str | None = None
    agent: str | None = None
    lease: float = 60
    wait: float = 0
    heartbeat: float = 60
    labels: dict[str, str | None] = {}
    parent: str | None = None
    ttl: float | UnsetType | None = UNSET
    deadline: float | datetime | None = None

    def __post_init__(self) -> None:
        if self.goal is not None:
            text(self.goal, "goal")
        if self.agent is not None:
            check_id(self.agent, "agent id", 128)
        check_seconds(self.lease, "lease")
        check_seconds(self.heartbeat, "heartbeat")
        check_ttl(self.ttl)
        check_labels_are_free(self.labels)
        if isinstance(self.deadline, datetime):
            if self.deadline.tzinfo is None:
                msg = "A deadline needs a time zone: datetime.now(UTC) + …, or a number of seconds."
                raise ValueError(msg)
        elif self.deadline is not None:
            check_seconds(self.deadline, "deadline")

    def all_labels(self) -> dict[str, str | None]:
        """The labels, agent and parent among them."""
        agent = {} if self.agent is None else {"agent": self.agent}
        parent = {} if self.parent is None else {kinds.PARENT: self.parent}
        return {**agent, **self.labels, **parent}

    def first_entry(self) -> dict[str, Any]:
        """The body of the entry that creates the task."""
        body: dict[str, Any] = {"goal": self.goal, "agent": self.agent}
        if isinstance(self.deadline, datetime):
            body["deadline"] = self.deadline.astimezone(UTC).isoformat()
        elif self.deadline is not None:  # counted from when it is created, by the store's clock
            body["deadline"] = self.deadline
        return body


def check_labels_are_free(labels: Mapping[str, str | None]) -> None:
    """Raise if one of *labels* is not the user's to set."""
    for name in (kinds.RUN, kinds.DUE, kinds.PARENT):
        if name in labels:
            raise InvalidId(f"The label {name!r} is set by Limpet. Use another name.")


class Run:
    """One opening of a task: what its program has come to so far, which is recorded nowhere."""

    def __init__(self) -> None:
        #: Names of steps, and of changes of the plan, that were given out; see `numbered`.
        self.seen: dict[str, int] = {}
        self.seen_changes: dict[str, int] = {}
        #: What the program calls the steps whose names are composed; see `LiveTask.given`.
        self.given: dict[str, str] = {}
        #: Changes that made no difference to the plan as it then was.
        self.idle_changes: list[str] = []
        #: The planned steps that `remaining` has offered, while their turns last; the last counts.
        self.turns: list[Turn] = []
        #: Waits that were come to.
        self.waits: set[str] = set()
        #: The last errors that steps ended with, and the innermost step of each.
        self.failed: deque[tuple[BaseException, str]] = deque(maxlen=16)
        #: The last errors after which a step was not tried again.
        self.exhausted: deque[BaseException] = deque(maxlen=16)
        #: Calls whose beginning, or end, is just being written.
        self.opening_calls: dict[str, Call] = {}
        self.closing_calls: set[str] = set()
        #: The calls that the head's meta names, and the newest entry when that was written.
        self.named_calls: dict[str, Call] = {}
        self.named_at = 0


class ProgressReports:
    """The newest report of each step, until a heartbeat has stored it. For any thread."""

    def __init__(self) -> None:
        self._newest: dict[str, dict[str, Any]] = {}
        self._changing = threading.Lock()
        self._storing = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._newest)

    def add(self, name: str, body: dict[str, Any]) -> None:
        """Let *body* be the newest report of the step *name*."""
        with self._changing:
            self._newest[name] = body

    def store(self, write: Callable[[dict[str, Any]], None]) -> None:
        """*write* each; what cannot be written now is there for the next heartbeat."""
        with self._storing:  # or an older report could be stored behind a newer one
            with self._changing:
                waiting = list(self._newest.items())
            for name, body in waiting:
                write(body)
                with self._changing:
                    if self._newest.get(name) is body:
                        del self._newest[name]


class LiveTask:
    """A task as this process has it: what it has come to, the lease on it, and the present run.

    One for all who reach the task, from any thread, blocking or awaiting. Nothing here asks the
    store, but for the heartbeat.
    """

    def __init__(self, scope: Scope, id_: str, options: TaskOptions) -> None:
        self.scope = scope
        self.options = options
        self.key = make_key(scope.tenant, KIND, id_)
        self.id = self.key.id
        self.state = TaskState(self.id)
        #: Of its journal; known from the first write on.
        self.incarnation = ""
        self.run = Run()
        self.reports = ProgressReports()
        self.lock = scope.lock(
            KIND,
            id_,
            options.lease,
            agent=options.agent,
            on_renewed=self.heartbeat,
            every=options.heartbeat,
        )
        #: What was found out when the store was not as far as the task is.
        self.went_back: StoreWentBack | None = None
        self._records: dict[bool, TaskRecord] = {}
        self._folding = threading.Lock()
        self._naming = threading.Lock()
        #: Ours, and the store's clock, at the same moment.
        self._clock = (0.0, datetime.now(UTC))

    def through(self, scope: Scope) -> TaskRecord:
        """The record, for code that reaches the store through the runtime of *scope*."""
        found = self._records.get(scope.is_sync)
        return found or self._records.setdefault(scope.is_sync, TaskRecord(self, scope))

    # -- what it has come to -------------------------------------------------------------------

    def apply(self, entries: Iterable[Entry]) -> bool:
        """Let *entries* count, each once. False if some that come before them are missing."""
        with self._folding:
            for entry in entries:
                if entry.seq > self.state.seq + 1:
                    return False
                if entry.seq > self.state.seq:
                    self.state.apply(entry)
        return True

    def apply_result(self, done: Appended, name: str, result: Any) -> bool:
        """The same for the entry of a step's *result*, which we have just written."""
        at = from_micros(done.at)
        self._clock = (time.monotonic(), at)
        with self._folding:
            if done.seq != self.state.seq + 1:
                return False
            self.state.add_result(done.seq, at, name, result)
        return True

    def snapshot(self) -> TaskState:
        """What it has come to, which stays as it is while others record."""
        with self._folding:
            return self.state.copy()

    def set_clock(self, at: datetime) -> None:
        """The store's clock shows *at*."""
        self._clock = (time.monotonic(), at)

    def now(self) -> datetime:
        """The time by the store's clock: no two machines' clocks are compared."""
        then, at = self._clock
        return at + timedelta(seconds=time.monotonic() - then)

    @contextmanager
    def changing_calls(self, opens: Call | None, closes: str | None) -> Iterator[dict[str, Call]]:
        """The calls that are open when the call *opens* is, and the one called *closes* is not.

        While the entry for that is being written, others take it into account.
        """
        run = self.run
        with self._folding:
            if opens is not None:
                run.opening_calls[opens.id] = opens
            if closes is not None:
                run.closing_calls.add(closes)
            found = {**self.state.calls.open, **run.opening_calls}
            found = {name: call for name, call in found.items() if name not in run.closing_calls}
        try:
            yield found
        finally:
            with self._folding:
                if opens is not None:
                    run.opening_calls.pop(opens.id, None)
                if closes is not None:
                    run.closing_calls.discard(closes)

    def calls_at_rest(self) -> dict[str, Call] | None:
        """The calls that are open; None while something is being written of one."""
        with self._folding:
            if self.run.opening_calls or self.run.closing_calls:
                return None
            return dict(self.state.calls.open)

    # -- names of steps ------------------------------------------------------------------------

    def step_here(self) -> StepContext | None:
        """The step of this task whose function is running where this is called, if one is."""
        found = running_step.get()
        return found if found is not None and found.task_id == self.id else None

    def around(self, name: str = "") -> StepContext | None:
        """What *name* is within: a step that runs, or the turn of one that `remaining` offered.

        A planned step is within nothing, whoever's turn it is.
        """
        found = running_step.get()
        if found is not None and found.task_id == self.id:
            return found
        turns = self.run.turns
        return turns[-1] if turns and name not in self.state.planned else None

    def name_step(self, name: str) -> str:
        """*name* as it is recorded: numbered if it came before, below the step it is part of."""
        outer, run = self.around(name), self.run
        composed = name if outer is None else f"{outer.name}/{name}"
        check_id(composed, "step name")

        def taken(found: str) -> bool:
            return self._given_name(found) not in (None, name)

        with self._naming:
            found = numbered(composed, run.seen if outer is None else outer.seen, taken)
            if is_composed(found):
                run.given[found] = name
        return found

    def _given_name(self, name: str) -> str | None:
        """What the program calls the step *name*, if that is known."""
        given = self.run.given.get(name) or self.state.given.get(name)
        if given is None and name in self.state.planned:
            given = item_name(self.state.planned[name])
        return given

    def given(self, name: str) -> dict[str, str]:
        """What an entry about the step *name* says of what the program calls it.

        "docs/readme" may be the step "readme" within "docs", or be called just so; "pay#2" the
        second "pay". Whoever resumes the task can tell by this, and takes neither for the other.
        """
        given = self._given_name(name) if is_composed(name) else None
        return {} if given is None else {"given": given}

    def idempotency_key(self, name: str) -> str:
        """See `StepContext.idempotency_key`."""
        from urllib.parse import quote  # noqa: PLC0415 - slow to import, and not every task needs it

        if not self.incarnation:
            self.check_running("step", name)
        task = (quote(part, _PRINTABLE) for part in (self.key.tenant, self.id, self.incarnation))
        return ":".join((*task, quote(name, f"{_PRINTABLE}:")))  # behind the last one, no matter

    @contextmanager
    def named(self, name: str) -> Iterator[str]:
        """*name* as it is recorded, for a block in which the step ends; see `name_step`."""
        name = self.name_step(name)
        try:
            yield name
        except BaseException:  # also of a cancellation: the same call again is the same step
            self.withdraw_name(name)
            raise

    def withdraw_name(self, name: str) -> None:
        """Let the same call after an error be the same step, as it will be on a resume."""
        if name not in self.state.results:
            outer = self.around(name)
            with self._naming:
                withdraw(name, self.run.seen if outer is None else outer.seen)

    def name_change(self, change: str) -> str:
        """The same for a *change* of the plan."""
        outer = self.around()
        with self._naming:
            if outer is None:
                return numbered(change, self.run.seen_changes)
            return numbered(f"{outer.name}: {change}", outer.seen)

    # -- whether it can be written to ----------------------------------------------------------

    def held(self) -> HeldLease:
        """Our lease on the task; `TaskNotOpen` if we have none."""
        if self.went_back is not None:
            raise StoreWentBack(*self.went_back.args)
        held = self.lock.held
        if held is None:
            msg = f"Task {self.id!r} is not open: write to it within `with store.task(…) as task:`."
            raise TaskNotOpen(msg)
        if held.lost is not None and held.is_parents:
            raise TaskHeld(*held.lost.args)
        return held

    def check_running(self, what: str, name: str | None = None) -> None:
        """Raise, before any work is done, if *what* could not be recorded after it."""
        held, state = self.lock.held, self.state
        if (
            held is not None
            and held.lost is None
            and self.went_back is None
            and state.deadline is None
            and state.status in (kinds.OPEN, kinds.WAITING)
        ):  # as nearly always
            return
        what = what if name is None else f"{what} {name!r}"
        if state.status == kinds.DONE:
            msg = (
                f"Task {self.id!r} is done and takes no {what}; task.outcome has what came of it. "
                "What is new belongs to a task with a new id."
            )
            raise TaskFinished(msg)
        lost = self.held().lost
        if isinstance(lost, LeaseLost):
            raise LeaseLost(*lost.args) from lost
        if state.status == kinds.FAILED:
            msg = f"Task {self.id!r} has failed and takes no {what}. Open it again to resume it."
            raise TaskFinished(msg)
        self.check_not_halted(f"takes no {what}")
        if state.deadline is not None and self.now() >= state.deadline:
            moment = f"{state.deadline:%Y-%m-%d %H:%M:%S %Z}"
            msg = f"Task {self.id!r} had until {moment}, and takes no {what}."
            raise DeadlinePassed(msg)

    def check_follows(self, known: int, actual: int) -> None:
        """`StoreWentBack` if the journal was at *actual*, when *known* entries had been read."""
        if actual >= known:
            return
        self.went_back = StoreWentBack(
            f"Task {self.id!r} was at {known} in {self.scope.backend.url}, and is at {actual} "
            "there: a backup was put in its place, or a server took over that was behind. What "
            "this process knows is not what is stored, so it goes no further. Open the task again "
            "to resume it as it is there; what it did since then may be done once more."
        )
        raise self.went_back

    def check_not_halted(self, what: str) -> None:
        """Raise if somebody has halted it, so that *what*."""
        status = self.state.status
        if status == kinds.FORKING:
            msg = f"Task {self.id!r} is half a fork. Finish it by the same fork() again."
            raise TaskNotOpen(msg)
        if status in (kinds.PAUSED, kinds.CANCELLED):
            by_command = self.scope.command("task", "resume", self.id)
            way_out = f"To let it go on: store.resume({self.id!r}), or {by_command}."
            if status == kinds.PAUSED:
                msg = f"Task {self.id!r} is paused, and {what}. {way_out}"
                raise TaskPaused(msg, self.id)
            msg = f"Task {self.id!r} was cancelled, and {what}. {way_out}"
            raise TaskCancelled(msg, self.id)

    # -- progress --------------------------------------------------------------------------------

    def report(self, name: str, body: dict[str, Any], now: bool) -> None:  # noqa: FBT001
        """Take a step's progress. What cannot be stored is refused here, not at the heartbeat."""
        body |= self.given(name)
        self.scope.store.codec.encode([(kinds.PROGRESS, body)])
        self.reports.add(name, body)
        if now:
            self.heartbeat()

    def heartbeat(self) -> None:
        """Store the newest progress of each step, blocking. Called on any thread."""
        if self.reports:
            record = self.through(self.scope.as_sync())

            def write(body: dict[str, Any]) -> None:
                if body["name"] not in self.state.results:
                    run_to_end(record.write(kinds.PROGRESS, body))

            self.reports.store(write)


class TaskRecord:
    """A task's journal, read and written through one runtime."""

    def __init__(self, live: LiveTask, scope: Scope) -> None:
        self.live = live
        self.scope = scope
        self.runtime = scope.runtime
        self.journal = scope.journal(KIND, live.id)

    @property
    def state(self) -> TaskState:
        """What the task has come to, as far as it is known here."""
        return self.live.state

    # -- opening -----------------------------------------------------------------------------

    async def open(self) -> None:
        """Take the lease, then create the task, or read what it has come to and resume it."""
        live = self.live
        try:
            await live.lock.acquire(live.options.wait)
            live.run, live.went_back = Run(), None
            while not await self._begin():
                pass  # somebody wrote in between, perhaps to cancel it
        except LeaseHeld as error:
            who = holder_for_people(error.holder)
            msg = _held_by_another(live.id, error)
            raise TaskHeld(msg, who, error.until, error.epoch) from error
        except BaseException:
            await live.lock.release()
            raise

    async def _begin(self) -> bool:
        """Read what the task has come to, and record that we go on; False if that was old."""
        await self.refresh()
        state, options = self.live.state, self.live.options
        try:
            if not state.exists:
                self.live.check_not_halted("is not opened")  # half a fork
                if options.goal is None:
                    msg = f"There is no task {self.live.id!r}. To create it, open it with a goal."
                    raise TaskNotFound(msg)
                await self.write(
                    kinds.CREATED,
                    options.first_entry(),
                    expect=0,
                    status=kinds.OPEN,
                    labels=options.all_labels(),
                    ttl=options.ttl,
                )
                return True
            wanted = self.scope.redacted(options.goal)
            if wanted is not None and wanted != self.scope.redacted(state.goal):
                msg = (
                    f"Task {self.live.id!r} has the goal {state.goal!r}, not {options.goal!r}. "
                    "Give a new task a new id; to go on with this one, open it without a goal."
                )
                raise GoalMismatch(msg)
            self.live.check_not_halted("is not opened")
            if state.status != kinds.DONE:
                await self.write(
                    kinds.RESUMED,
                    {"agent": options.agent},
                    expect=state.seq,
                    status=kinds.OPEN,
                    labels={**options.all_labels(), kinds.DUE: None},
                    meta=calls_meta(state.calls.open),
                    ttl=options.ttl,
                )
        except Conflict:
            return False
        return True

    # -- reading -----------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Read what the task has come to: from its beginning, for it may be another one by now."""
        self.live.state = await read_state(self.journal)

    async def catch_up(self) -> None:
        """Read what others have added: signals, a cancellation."""
        self.live.apply(await self.journal.read(after=self.live.state.seq))

    async def look(self) -> TaskState:
        """What the task has come to, which stays as it is; `TaskNotFound` if there is none."""
        lock = self.live.lock
        if lock.held is None or lock.is_parents or self.live.went_back is not None:
            await self.refresh()
        if not self.live.state.exists:
            raise not_found(self.live.id)
        return self.live.snapshot()

    async def check_not_waiting(self, what: str) -> None:
        """Raise if it waits, so that *what*: somebody has caught what was to leave the block."""
        if self.live.state.status == kinds.WAITING:
            await self.catch_up()
        if self.live.state.status == kinds.WAITING:
            waits_for = next(reversed(self.live.state.waits), "")
            msg = (
                f"Task {self.live.id!r} waits for {waits_for!r}, so {what}. Code of yours, or of a "
                "framework, has caught TaskWaiting: let it pass."
            )
            raise TaskWaiting(msg, self.live.id, waits_for)

    async def check_open_to(self, what: str) -> None:
        """Raise if it takes no *what*. If it waits, it takes what was found by a step that runs."""
        self.live.check_running(what)
        if self.live.state.status == kinds.WAITING and self.live.step_here() is None:
            await self.check_not_waiting(f"it takes no {what}")

    # -- writing -----------------------------------------------------------------------------

    async def write(self, kind: str, value: dict[str, Any], **changes: Any) -> Appended:
        """Make an entry durable under the lease, then let it count.

        *changes* are those of `AsyncJournal.request`.
        """
        request = self.journal.request(((kind, value),), lease=self.live.held().lease, **changes)
        done = await self.append(request)
        await self.apply(request, done)
        return done

    async def append(self, request: Append) -> Appended:
        """Have it appended behind all that we know of; `StoreWentBack`, if that is not there."""
        known = self.live.state.seq
        try:
            done = await self.runtime.append(request)
        except Conflict as error:
            self.live.check_follows(known, error.actual)
            raise
        except LeaseLost as error:
            held = self.live.lock.held
            if held is not None and not held.is_parents and held.lease.epoch == request.epoch:
                held.lost = error  # nothing more is begun until that is found out by a renewal
            raise
        if not done.repeated:
            self.live.check_follows(known, done.seq - request.count)
        return done

    async def apply(self, request: Append, done: Appended) -> None:
        """Let what was written count, and what others have written before it."""
        written = self.journal.entries(Record(done.seq, request.count, done.at, request.body))
        self.live.set_clock(written[-1].at)
        self.live.incarnation = done.incarnation
        if not self.live.apply(written):
            # Somebody wrote in between: a signal, a cancellation, another thread of ours.
            found = await self.journal.read(after=self.live.state.seq, upto=done.seq)
            self.live.apply(found)

    async def write_call(
        self,
        kind: str,
        value: dict[str, Any],
        *,
        opens: Call | None = None,
        closes: str | None = None,
        **changes: Any,
    ) -> None:
        """`write` for an entry by which a call begins, fails or ends; see `limpet.core.calls`.

        The head's meta names all calls that are open, so whoever writes it must know of the
        others'. Where several are written at once, or one is resolved from outside, the meta may be
        that of an earlier moment. Whoever is done last sees that, and puts it right.
        """
        live, run = self.live, self.live.run
        with live.changing_calls(opens, closes) as calls:
            done = await self.write(kind, value, meta=calls_meta(calls), **changes)
        if done.seq > run.named_at:
            run.named_calls, run.named_at = calls, done.seq
        while (now := live.calls_at_rest()) is not None and now != run.named_calls:
            seq = await self.change(meta=calls_meta(now))
            if seq >= run.named_at:
                run.named_calls, run.named_at = now, seq
            await self.catch_up()

    async def change(self, **changes: Any) -> int:
        """Change what the head says, and add no entry; under the lease, if we have it.

        Returns the number of the newest entry.
        """
        held, known = self.live.lock.held, self.live.state.seq
        lease = None if held is None else held.lease
        seq = await self.journal.append(lease=lease, **changes)
        if not seq:
            raise not_found(self.live.id)
        if held is not None:
            self.live.check_follows(known, seq)
        return seq

    async def write_wait(
        self,
        name: str,
        kind: str,
        until: datetime | None,
        *,
        away: bool,
        expect: int | None = None,
        signal: str | None = None,
    ) -> None:
        """Record that the task waits; *away*: and that nobody need work on it until then."""
        body = {"name": name, "kind": kind, "until": until and until.isoformat()}
        body |= self.live.given(name)
        if signal is not None:
            body["signal"] = signal
        if not away:
            await self.write(kinds.WAITING, body, expect=expect)
            return
        # Only what was come to in this run: the program may no longer wait for the rest.
        waits, run = self.live.state.waits, self.live.run
        moments = [until, self.live.state.deadline]
        moments += [waits[other].until for other in run.waits if other in waits]
        first = min((moment for moment in moments if moment is not None), default=None)
        await self.write(
            kinds.WAITING,
            {**body, "away": True},
            status=kinds.WAITING,
            labels={kinds.DUE: None if first is None else first.isoformat()},
            expect=expect,
        )

    async def delete(self) -> bool:
        """Remove the task. False if it was not there. A worker that has it open loses its lease."""
        # Before the task: while that is there, nobody begins another with results of its own.
        await self.scope.journal(RESULTS, self.live.id).delete()
        return await self.journal.delete()


async def read_state(journal: AsyncJournal, upto: int | None = None) -> TaskState:
    """What a task's journal amounts to, up to entry *upto*."""
    state = TaskState(journal.key.id)
    async for page in journal.pages(upto=upto):
        for entry in page:
            state.apply(entry)
            if not state.exists and entry.type != kinds.FORKING:
                why = f"a task begins with {kinds.CREATED!r}, and this is {entry.type!r}."
                raise journal.unreadable(entry.seq, why)
    return state


def calls_meta(calls: dict[str, Call]) -> bytes | None:
    """What the head of a task with these open *calls* has as its meta."""
    if not calls:
        return None
    short = {
        name: call if call.error is None else structs.replace(call, error=call.error[:ERROR])
        for name, call in calls.items()
    }
    return Meta(calls=short).encode()


def not_found(id_: str) -> TaskNotFound:
    """The error for a task that is not there."""
    return TaskNotFound(f"There is no task {id_!r} (or it has expired).")


def _held_by_another(task_id: str, error: LeaseHeld) -> str:
    """Who has the task, and what that means for whoever wants it."""
    held = f"Task {task_id!r} is held by {holder_for_people(error.holder)}"
    if is_this_process(error.holder):
        return f"{held}: this process has it open. Go on with that one, or close it first."
    now = f"(now until {error.until:%Y-%m-%d %H:%M:%S} UTC)"
    if is_on_this_machine(error.holder):
        return (
            f"{held}. That process is at work, and renews its lease {now}: store.task(…, wait=60) "
            "waits for it. If it dies, the task is free at once."
        )
    return (
        f"{held}, which renews its lease while it works {now}: store.task(…, wait=60) waits for "
        "it. If it has died, the task is free when that lease ends."
    )
