"""What a task has come to: the fold of its entries."""

from __future__ import annotations

import copy
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from limpet.core.checkpoint import Checkpoint, Decision
from limpet.core.codec import fresh
from limpet.tasks import entries as kinds
from limpet.tasks.entries import item_name, numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.core.journal import Entry

__all__ = [
    "FRUITLESS",
    "Debt",
    "Doubt",
    "Large",
    "Progress",
    "Replan",
    "TaskState",
    "Wait",
    "plain",
]


class Doubt(Struct, frozen=True):
    """A step that began and did not end: how it is to come back, and its last error if any."""

    policy: str
    error: str | None
    at: datetime


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


class Replan(Struct, frozen=True):
    """A change of the plan, and why."""

    because: str | None
    at: datetime


class Large(Struct, frozen=True):
    """A result that is kept apart, by its number there, and is loaded when it is asked for."""

    seq: int
    size: int
    preview: str

    def shown(self) -> dict[str, Any]:
        """What stands for it in a checkpoint."""
        return {"large": True, "bytes": self.size, "preview": self.preview}


class Debt(Struct, frozen=True):
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
        self.replans: list[Replan] = []
        self.changes: dict[str, None] = {}
        self.results: dict[str, Any] = {}
        self.skipped: dict[str, str | None] = {}
        self.in_doubt: dict[str, Doubt] = {}
        #: Those of them that began since the task was last opened, and have not failed.
        self.under_way: set[str] = set()
        #: Those that an earlier run has left so: nobody who runs now has seen what became of them.
        self.left: set[str] = set()
        self.progress: dict[str, Progress] = {}
        self.tried: dict[str, list[str]] = {}
        self.waits: dict[str, Wait] = {}
        self.signals: dict[str, list[Any]] = {}
        self.timed_out: set[str] = set()
        self.decisions: list[Decision] = []
        self.discoveries: list[str] = []
        self.outcome: Any = None
        self.keep: float | bool = True
        self.handed = False
        #: Where it is to be remembered, and where it is.
        self.debt: Debt | None = None
        self.remembered: set[Debt] = set()
        #: What it has said after it was told so from memory.
        self.recalled: set[str] = set()
        #: How often it went back: a step of the same name is then another one.
        self.rewinds = 0
        self.error: str | None = None
        self.created_at: datetime | None = None
        self.updated_at: datetime | None = None
        #: How often in a row it was opened and nothing came of it.
        self.fruitless = 0

    @property
    def exists(self) -> bool:
        """Whether there is such a task."""
        return self.created_at is not None

    @property
    def owes(self) -> bool:
        """Whether it is yet to be remembered."""
        return self.debt is not None and not self.remembered

    @property
    def untouched(self) -> bool:
        """Whether nothing has come of it yet."""
        done = (self.results, self.in_doubt, self.progress, self.tried, self.waits, self.replans)
        said = (self.decisions, self.discoveries, self.error)
        return self.status == kinds.OPEN and not any((*done, *said))

    def copy(self) -> TaskState:
        """The same, as it is now: for a reader whose other threads go on."""
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (dict, list, set)):
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
            change(self, entry.body, entry.at)

    # -- from beginning to end ---------------------------------------------------------------

    def _created(self, body: dict[str, Any], at: datetime) -> None:
        self.goal, self.agent = body["goal"], body.get("agent")
        self.kind, self.input = body.get("kind"), body.get("input")
        self.deadline = _moment(body.get("deadline"), at)
        self.created_at = at

    def _resumed(self, body: dict[str, Any], _at: datetime) -> None:
        self.agent = body.get("agent") or self.agent
        if self.status == kinds.FAILED:
            self.tried.clear()  # somebody thinks that it will go better now
        self.status, self.error = kinds.OPEN, None
        # A child that is come to again says for itself whether it still has to be waited for.
        self.waits = {name: wait for name, wait in self.waits.items() if wait.kind != "child"}
        self.fruitless += 1
        self.under_way.clear()
        self.left = set(self.in_doubt)

    def _forking(self, _body: dict[str, Any], _at: datetime) -> None:
        self.status = kinds.FORKING

    def _forked(self, _body: dict[str, Any], _at: datetime) -> None:
        if self.status in (kinds.FORKING, kinds.WAITING):
            self.status = kinds.OPEN

    def _stopped(self, body: dict[str, Any], _at: datetime) -> None:
        if self.status != kinds.CANCELLED or self.error is None:  # why it was is worth more
            self.error = body["error"]

    def _paused(self, _body: dict[str, Any], _at: datetime) -> None:
        self.status = kinds.PAUSED

    def _cancelled(self, body: dict[str, Any], _at: datetime) -> None:
        self.status, self.error = kinds.CANCELLED, body.get("because")

    def _finished(self, body: dict[str, Any], _at: datetime) -> None:
        self.status, self.outcome, self.error = kinds.DONE, body["outcome"], None
        self.keep = body.get("keep", True)
        owed = body.get("remember")
        self.debt = None if owed is None else Debt(owed["namespace"], owed["here"])
        self.waits.clear()

    def _remembered(self, body: dict[str, Any], _at: datetime) -> None:
        self.remembered.add(Debt(body["namespace"], body["here"]))

    def _handed(self, _body: dict[str, Any], _at: datetime) -> None:
        self.handed = True

    def _failed(self, body: dict[str, Any], _at: datetime) -> None:
        self.status, self.error = kinds.FAILED, body["error"]

    # -- plan and steps ------------------------------------------------------------------------

    def _planned(self, body: dict[str, Any], _at: datetime) -> None:
        self.plan = body["steps"]

    def _replanned(self, body: dict[str, Any], at: datetime) -> None:
        self.plan = body["steps"]
        self.replans.append(Replan(body.get("because"), at))
        self.changes |= dict.fromkeys([*body.get("besides", ()), body.get("change", "")])

    def _began(self, body: dict[str, Any], at: datetime) -> None:
        self.in_doubt[body["name"]] = Doubt(body["policy"], None, at)
        self.under_way.add(body["name"])
        self.left.discard(body["name"])

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
        self.under_way.discard(name)
        self.left.discard(name)
        doubt = self.in_doubt.get(name)
        if doubt is not None:
            self.in_doubt[name] = Doubt(doubt.policy, error, doubt.at)

    def _step(self, body: dict[str, Any], _at: datetime) -> None:
        name = body["name"]
        large = body.get("large")
        self.results[name] = body["result"] if large is None else Large(**large)
        if "signal" in body:
            self._take(body["signal"])
        elif "timed_out" in body:
            self.timed_out.add(name)
        self._settle(name)

    def _skipped(self, body: dict[str, Any], _at: datetime) -> None:
        self.results[body["name"]] = None
        self.skipped[body["name"]] = body.get("because")
        self._settle(body["name"])

    def _resolved(self, body: dict[str, Any], at: datetime) -> None:
        if body["how"] == "done":
            self._step({"name": body["name"], "result": body.get("result")}, at)
        elif body["how"] == "skip":
            self._skipped({"name": body["name"], "because": "a person said so"}, at)
        else:
            self._settle(body["name"])
        self._wake()

    def _settle(self, name: str) -> None:
        """Nothing more is known, or asked, of a step but its result."""
        if self.in_doubt or self.progress or self.tried or self.waits:  # hardly ever
            for kept in (self.in_doubt, self.progress, self.tried, self.waits):
                kept.pop(name, None)
            self.under_way.discard(name)
            self.left.discard(name)

    def _rewound(self, body: dict[str, Any], at: datetime) -> None:
        for name in body["forget"]:
            self.results.pop(name, None)
            self.skipped.pop(name, None)
            self.timed_out.discard(name)
            self._settle(name)
        for name, (policy, error) in body.get("in_doubt", {}).items():
            self.in_doubt[name] = Doubt(policy, error, at)
            self.left.add(name)
        self.rewinds += 1
        self.plan = body["plan"]
        self.changes = dict.fromkeys(body["changes"])
        del self.decisions[body["decisions"] :]
        del self.discoveries[body["discoveries"] :]
        self.status, self.outcome, self.handed = kinds.OPEN, None, False
        self.debt = None
        self.remembered.clear()

    # -- waiting -------------------------------------------------------------------------------

    def _waiting(self, body: dict[str, Any], _at: datetime) -> None:
        until = body.get("until")
        found = Wait(body["kind"], datetime.fromisoformat(until) if until else None)
        self.waits[body["name"]] = found
        if body.get("away"):
            self.status = kinds.WAITING

    def _signalled(self, body: dict[str, Any], _at: datetime) -> None:
        self.signals.setdefault(body["name"], []).append(body.get("payload"))
        self._wake()

    def _take(self, signal: str) -> None:
        """A signal has become the result of a step."""
        left = self.signals.get(signal)
        if left:
            left.pop(0)

    def _wake(self) -> None:
        if self.status == kinds.WAITING:
            self.status = kinds.OPEN

    # -- what was learned ----------------------------------------------------------------------

    def _decided(self, body: dict[str, Any], _at: datetime) -> None:
        self.decisions.append(Decision(body["decision"], body.get("because")))
        if "recalled" in body:
            self.recalled.add(plain(self.decisions[-1].sentence))

    def _discovered(self, body: dict[str, Any], _at: datetime) -> None:
        self.discoveries.append(body["discovery"])
        if "recalled" in body:
            self.recalled.add(plain(body["discovery"]))

    # -- looking at it -------------------------------------------------------------------------

    def planned_names(self) -> list[str]:
        """The names of the planned steps, the second "fetch" as "fetch#2"."""
        seen: dict[str, int] = {}
        return [numbered(item_name(item), seen) for item in self.plan or ()]

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
            results={name: _shown(result) for name, result in self.results.items()},
            decisions=list(self.decisions),
            discoveries=list(self.discoveries),
            status=self.status,
            outcome=fresh(self.outcome),
            error=self.error,
            in_doubt=list(self.in_doubt),
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


def plain(text: str) -> str:
    """*text* without what does not make it another memory."""
    return " ".join(text.split())


def _moment(deadline: float | str | None, at: datetime) -> datetime | None:
    """What the first entry says of it: a time, or seconds from then."""
    if deadline is None or isinstance(deadline, str):
        return datetime.fromisoformat(deadline) if deadline else None
    return at + timedelta(seconds=deadline)


def _shown(result: Any) -> Any:
    return result.shown() if isinstance(result, Large) else fresh(result)
