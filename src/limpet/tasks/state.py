"""What a task has come to: the fold of its entries."""

from __future__ import annotations

import copy
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec import Struct

from limpet.core.calls import Call, Ledger
from limpet.core.checkpoint import Checkpoint, Decision
from limpet.core.codec import fresh
from limpet.core.journal import MALFORMED
from limpet.errors import Unreadable
from limpet.tasks import entries as kinds
from limpet.tasks.entries import item_name, numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.core.journal import Entry

__all__ = [
    "FRUITLESS",
    "Large",
    "MemoryTarget",
    "PlanChange",
    "Progress",
    "TaskState",
    "Wait",
    "normalized",
]


class Progress(Struct, frozen=True):
    """How far a step had come when it last said so."""

    fraction: float | None
    note: str
    data: Any
    at: datetime


class Wait(Struct, frozen=True):
    """What a task waits for: a signal, a time ("sleep"), a person's word ("ask"), a child task."""

    kind: str
    until: datetime | None
    #: The signal's name, as the program gave it.
    signal: str | None = None


class PlanChange(Struct, frozen=True):
    """A change of the plan, and why."""

    because: str | None
    at: datetime


class Large(Struct, frozen=True):
    """A result in a journal of its own, by its number there; it is read when it is asked for."""

    seq: int
    size: int
    preview: str

    def summary(self) -> dict[str, Any]:
        """What stands for it in a checkpoint."""
        return {"large": True, "bytes": self.size, "preview": self.preview}


class MemoryTarget(Struct, frozen=True):
    """Where a task is to be remembered. *here*: in its own store, where whoever opens it can."""

    namespace: str
    here: bool


class TaskState:
    """The fold of a task's entries. The same entries give the same state, in any process."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self.seq = 0
        self.goal = ""
        self.agent: str | None = None
        self.kind: str | None = None
        self.input: Any = None
        self.deadline: datetime | None = None
        self.status = kinds.OPEN
        self.plan: list[Any] | None = None
        #: The same by the names of its steps, the second "fetch" as "fetch#2". Never changed in
        #: place: another plan is another dict.
        self.planned: dict[str, Any] = {}
        self.plan_changes: list[PlanChange] = []
        #: What the changes are known by, so that a resumed task makes none twice.
        self.change_ids: dict[str, None] = {}
        self.results: dict[str, Any] = {}
        self.skipped: dict[str, str | None] = {}
        #: What the program calls the steps whose names are composed; see `LiveTask.given`.
        self.given: dict[str, str] = {}
        #: The steps that began and did not end, of those whose beginning is recorded.
        self.calls = Ledger()
        self.progress: dict[str, Progress] = {}
        self.tried: dict[str, list[str]] = {}
        self.waits: dict[str, Wait] = {}
        self.signals: dict[str, list[Any]] = {}
        self.timed_out: set[str] = set()
        self.decisions: list[Decision] = []
        self.discoveries: list[str] = []
        self.outcome: Any = None
        #: How long the record of a finished task is kept, as `finish` was told.
        self.keep: float | bool = True
        #: Whether the on_finish callbacks have been called.
        self.handed_on = False
        #: Where it is to be remembered, and where it is.
        self.memory_target: MemoryTarget | None = None
        self.remembered: set[MemoryTarget] = set()
        #: What it has said that it knew from memory.
        self.recalled: set[str] = set()
        #: How often it went back: a step of the same name is then another one.
        self.rewinds = 0
        self.error: str | None = None
        #: The step that it came out of, if it was one.
        self.failed_step: str | None = None
        #: The parent with which it was cancelled last, if it was.
        self.cancelled_with: str | None = None
        self.created_at: datetime | None = None
        self.updated_at: datetime | None = None
        #: How often in a row it was opened and nothing came of it.
        self.fruitless = 0

    @property
    def exists(self) -> bool:
        """Whether there is such a task."""
        return self.created_at is not None

    @property
    def memory_pending(self) -> bool:
        """Whether it is yet to be remembered."""
        return self.memory_target is not None and not self.remembered

    @property
    def untouched(self) -> bool:
        """Whether nothing has come of it yet."""
        done = (self.results, self.calls, self.progress, self.tried, self.waits, self.plan_changes)
        learned = (self.decisions, self.discoveries, self.error)
        return self.status == kinds.OPEN and not any((*done, *learned))

    def copy(self) -> TaskState:
        """The same, as it is now: for a reader whose other threads go on."""
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (dict, list, set, Ledger)):
                setattr(twin, name, value.copy())
        return twin

    def apply(self, entry: Entry) -> None:
        """Take in one more entry. Types this release does not know change nothing."""
        self.seq = entry.seq
        self.updated_at = entry.at
        if entry.type not in FRUITLESS:
            self.fruitless = 0
        change = self.CHANGES.get(entry.type)
        if change is not None:
            try:
                change(self, entry.body, entry.at)
                if "given" in entry.body:
                    self.given[entry.body.get("name") or entry.body["id"]] = entry.body["given"]
            except MALFORMED as error:
                msg = (
                    f"Entry {entry.seq} of task {self.task_id!r} cannot be read: it is not what is "
                    f"stored as {entry.type!r} ({type(error).__name__}: {error}). `limpet doctor` "
                    "finds all such entries."
                )
                raise Unreadable(msg) from error

    def add_result(self, seq: int, at: datetime, name: str, result: Any) -> None:
        """`apply` for the entry of a step that has just ended, by far the most frequent one."""
        self.seq = seq
        self.updated_at = at
        self.fruitless = 0
        self.results[name] = result
        self._close_step(name)

    # -- from beginning to end ---------------------------------------------------------------

    def _created(self, body: dict[str, Any], at: datetime) -> None:
        self.goal, self.agent = body["goal"], body.get("agent")
        self.kind, self.input = body.get("kind"), body.get("input")
        self.created_at = at
        deadline = body.get("deadline")  # a time, or seconds from now
        if isinstance(deadline, str):
            self.deadline = datetime.fromisoformat(deadline)
        elif deadline is not None:
            self.deadline = at + timedelta(seconds=deadline)

    def _resumed(self, body: dict[str, Any], _at: datetime) -> None:
        self.agent = body.get("agent") or self.agent
        if self.status == kinds.FAILED:
            self.tried.clear()  # somebody thinks that it will go better now
        self.status, self.error, self.failed_step = kinds.OPEN, None, None
        # A child that is come to again says for itself whether it still has to be waited for.
        self.waits = {name: wait for name, wait in self.waits.items() if wait.kind != "child"}
        self.fruitless += 1
        self.calls.abandon()

    def _forking(self, _body: dict[str, Any], _at: datetime) -> None:
        self.status = kinds.FORKING

    def _forked(self, _body: dict[str, Any], _at: datetime) -> None:
        if self.status in (kinds.FORKING, kinds.WAITING):
            self.status = kinds.OPEN

    def _stopped(self, body: dict[str, Any], _at: datetime) -> None:
        if self.status != kinds.CANCELLED or self.error is None:  # why it was is worth more
            self.error, self.failed_step = body["error"], body.get("step")

    def _paused(self, _body: dict[str, Any], _at: datetime) -> None:
        self.status = kinds.PAUSED

    def _cancelled(self, body: dict[str, Any], _at: datetime) -> None:
        self.status, self.error = kinds.CANCELLED, body.get("because")
        self.failed_step = None
        self.cancelled_with = body.get("parent")

    def _finished(self, body: dict[str, Any], _at: datetime) -> None:
        self.status, self.outcome, self.error = kinds.DONE, body["outcome"], None
        self.failed_step = None
        self.keep = body.get("keep", True)
        target = body.get("remember")
        self.memory_target = None if target is None else MemoryTarget(**target)
        self.waits.clear()

    def _remembered(self, body: dict[str, Any], _at: datetime) -> None:
        self.remembered.add(MemoryTarget(body["namespace"], body["here"]))

    def _handed(self, _body: dict[str, Any], _at: datetime) -> None:
        self.handed_on = True

    def _failed(self, body: dict[str, Any], _at: datetime) -> None:
        self.status, self.error = kinds.FAILED, body["error"]
        self.failed_step = body.get("step")

    # -- plan and steps ------------------------------------------------------------------------

    def _planned(self, body: dict[str, Any], _at: datetime) -> None:
        self._set_plan(body["steps"])

    def _replanned(self, body: dict[str, Any], at: datetime) -> None:
        self._set_plan(body["steps"])
        self.plan_changes.append(PlanChange(body.get("because"), at))
        self.change_ids |= dict.fromkeys([*body.get("besides", ()), body.get("change", "")])

    def _set_plan(self, plan: list[Any] | None) -> None:
        seen: dict[str, int] = {}
        planned: dict[str, Any] = {}
        for item in plan or ():
            given = item_name(item)
            taken = partial(self._is_anothers, given)
            planned[numbered(given, seen, taken)] = item
        self.plan, self.planned = plan, planned

    def _is_anothers(self, given: str, name: str) -> bool:
        """Whether the step *name* is recorded, and the program calls it otherwise than *given*."""
        return self.given.get(name, given) != given

    def _began(self, body: dict[str, Any], at: datetime) -> None:
        self.calls.begin(msgspec.convert(body, Call), at)

    def _progress(self, body: dict[str, Any], at: datetime) -> None:
        name = body["name"]
        if name in self.results:  # the heartbeat may come a moment too late
            return
        last = self.progress.get(name)
        found = Progress(body.get("fraction"), body.get("note", ""), body.get("data"), at)
        self.progress[name] = found
        if last is None or (last.fraction, last.data) != (found.fraction, found.data):
            self.fruitless = 0

    def _tried(self, body: dict[str, Any], _at: datetime) -> None:
        name, error = body["name"], body["error"]
        self.tried.setdefault(name, []).append(error)
        self.calls.fail(name, error)

    def _step(self, body: dict[str, Any], _at: datetime) -> None:
        name = body["name"]
        large = body.get("large")
        self.results[name] = body["result"] if large is None else msgspec.convert(large, Large)
        if "signal" in body:  # which is taken by that
            waiting = self.signals.get(body["signal"])
            if waiting:
                waiting.pop(0)
        elif "timed_out" in body:
            self.timed_out.add(name)
        self._close_step(name)

    def _skipped(self, body: dict[str, Any], _at: datetime) -> None:
        self.results[body["name"]] = None
        self.skipped[body["name"]] = body.get("because")
        self._close_step(body["name"])

    def _resolved(self, body: dict[str, Any], _at: datetime) -> None:
        name = body["id"]
        if body["how"] == "done":
            self.results[name] = body.get("result")
        elif body["how"] == "skip":
            self.results[name] = None
            self.skipped[name] = "a person said so"
        self._close_step(name)
        self._wake()

    def _close_step(self, name: str) -> None:
        """Nothing more is known of a step but its result, if it has one."""
        if self.calls.open or self.progress or self.tried or self.waits:  # hardly ever
            self.calls.end(name)
            for known in (self.progress, self.tried, self.waits):
                known.pop(name, None)

    def _rewound(self, body: dict[str, Any], at: datetime) -> None:
        for name in body["forget"]:
            self.results.pop(name, None)
            self.skipped.pop(name, None)
            self.given.pop(name, None)
            self.timed_out.discard(name)
            self._close_step(name)
        self.calls = Ledger(msgspec.convert(body["calls"], list[Call]), at)
        self.rewinds += 1
        self._set_plan(body["plan"])
        self.change_ids = dict.fromkeys(body["changes"])
        del self.decisions[body["decisions"] :]
        del self.discoveries[body["discoveries"] :]
        self.status, self.outcome, self.handed_on = kinds.OPEN, None, False
        self.memory_target = None
        self.remembered.clear()

    # -- waiting -------------------------------------------------------------------------------

    def _waiting(self, body: dict[str, Any], _at: datetime) -> None:
        until = body.get("until")
        moment = datetime.fromisoformat(until) if until else None
        signal = body.get("signal", body["name"]) if body["kind"] == "signal" else None
        self.waits[body["name"]] = Wait(body["kind"], moment, signal)
        if body.get("away"):
            self.status = kinds.WAITING

    def _signalled(self, body: dict[str, Any], _at: datetime) -> None:
        self.signals.setdefault(body["name"], []).append(body.get("payload"))
        if body["name"] in self.signals_awaited():
            self._wake()

    def _wake(self) -> None:
        if self.status == kinds.WAITING:
            self.status = kinds.OPEN

    # -- what was learned ----------------------------------------------------------------------

    def _decided(self, body: dict[str, Any], _at: datetime) -> None:
        self.decisions.append(Decision(body["decision"], body.get("because")))
        if "recalled" in body:
            self.recalled.add(normalized(self.decisions[-1].sentence))

    def _discovered(self, body: dict[str, Any], _at: datetime) -> None:
        self.discoveries.append(body["discovery"])
        if "recalled" in body:
            self.recalled.add(normalized(body["discovery"]))

    # -- looking at it -------------------------------------------------------------------------

    def signals_awaited(self) -> list[str]:
        """The names of the signals that it waits for."""
        return [wait.signal for wait in self.waits.values() if wait.signal is not None]

    def steps_left(self) -> dict[str, Any]:
        """The planned steps that have no result, by name."""
        return {name: item for name, item in self.planned.items() if name not in self.results}

    def checkpoint(self) -> Checkpoint:
        """This state as a `Checkpoint`, independent of what comes after."""
        if self.created_at is None or self.updated_at is None:
            msg = "a task that is not there has no checkpoint"
            raise ValueError(msg)
        return Checkpoint(
            agent_id=self.agent,
            task_id=self.task_id,
            goal=self.goal,
            plan=fresh(self.plan or []),
            completed=list(self.results),
            results={
                name: result.summary() if isinstance(result, Large) else fresh(result)
                for name, result in self.results.items()
            },
            decisions=list(self.decisions),
            discoveries=list(self.discoveries),
            status=self.status,
            outcome=fresh(self.outcome),
            error=self.error,
            in_doubt=list(self.calls.open),
            waiting_for=list(self.waits),
            created_at=self.created_at,
            updated_at=self.updated_at,
        )

    # What each type of entry changes.
    CHANGES: ClassVar[dict[str, Callable[[TaskState, Any, datetime], None]]] = {
        kinds.CREATED: _created,
        kinds.RESUMED: _resumed,
        kinds.PLANNED: _planned,
        kinds.REPLANNED: _replanned,
        kinds.BEGAN: _began,
        kinds.PROGRESS: _progress,
        kinds.TRIED: _tried,
        kinds.STEP: _step,
        kinds.SKIPPED: _skipped,
        kinds.RESOLVED: _resolved,
        kinds.WAITING: _waiting,
        kinds.SIGNALLED: _signalled,
        kinds.DECIDED: _decided,
        kinds.DISCOVERED: _discovered,
        kinds.STOPPED: _stopped,
        kinds.PAUSED: _paused,
        kinds.CANCELLED: _cancelled,
        kinds.FORKING: _forking,
        kinds.FORKED: _forked,
        kinds.REWOUND: _rewound,
        kinds.FINISHED: _finished,
        kinds.HANDED: _handed,
        kinds.REMEMBERED: _remembered,
        kinds.FAILED: _failed,
    }


#: Entries that a task writes each time it is opened, whether or not anything comes of it.
FRUITLESS = frozenset({kinds.RESUMED, kinds.BEGAN, kinds.STOPPED, kinds.PROGRESS})


def normalized(text: str) -> str:
    """*text* without what does not make it another memory."""
    return " ".join(text.split())
