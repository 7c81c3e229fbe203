"""A task as people see it: what it is for, how far it is, what it waits for, and what happened.

All of a task of up to `WHOLE` entries is folded; so is a longer one when that is asked for. Else a
page of its newest entries is, with the first ones: the goal, and the plan that it began with.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct, structs

from limpet.core.journal import MALFORMED
from limpet.errors import Unreadable
from limpet.tasks import entries as kinds
from limpet.tasks.state import TaskState
from limpet.views import PAGE, WHOLE, timeline
from limpet.views.heads import HeadView
from limpet.views.journal import EntryLine, Gap, line_of, read_slice
from limpet.views.messages import written
from limpet.views.timeline import Event, StepLog, StepView

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.backends.contract import Head
    from limpet.core.journal import Entry
    from limpet.core.scope import Scope
    from limpet.views.journal import Slice

__all__ = [
    "ENDED",
    "TYPES",
    "Child",
    "Note",
    "Origin",
    "PlanChange",
    "Signal",
    "TaskFold",
    "TaskView",
    "Wait",
    "fold_task",
    "task_view",
]

#: The first entries of a long task, in which its goal and its plan are.
FIRST = 16
#: Stored bytes up to which it is folded without being asked.
WHOLE_BYTES = 16_000_000
#: Children that are listed.
CHILDREN = 20

#: What an entry of a task's history may be.
TYPES = tuple(TaskState.CHANGES)

#: The statuses of a task that nobody works on any more.
ENDED = (kinds.DONE, kinds.FAILED, kinds.CANCELLED)


class Note(Struct, frozen=True):
    """Something that was decided or discovered; by which entry, and when."""

    seq: int
    at: datetime
    text: str
    because: str | None = None


class PlanChange(Struct, frozen=True):
    """A plan, by the names of its steps; why it took the place of the one before."""

    seq: int
    at: datetime
    names: list[str]
    because: str | None


class Signal(Struct, frozen=True):
    """A signal that came; and whether a wait has taken it."""

    seq: int
    at: datetime
    name: str
    payload: Any
    taken: bool


class Wait(Struct, frozen=True):
    """What a task waits for: a "signal", a "sleep", a "child", or an answer ("ask")."""

    name: str
    kind: str
    until: datetime | None
    signal: str | None


class Origin(Struct, frozen=True):
    """Where a fork begins."""

    id: str
    at: int


class Child(Struct, frozen=True):
    """A task that is a step of this one."""

    id: str
    status: str


class TaskView(Struct, frozen=True, kw_only=True):
    """A task; *whole*: all of it, and not only its first entries and some of the others."""

    head: HeadView
    whole: bool
    status: str
    goal: str = ""
    agent: str | None = None
    submitted: str | None = None  # as what, for workers
    input: Any = None
    deadline: datetime | None = None
    parent: str | None = None
    origin: Origin | None = None
    children: list[Child] = []
    more_children: bool = False
    #: The steps that did something within this page of entries, and those that come next.
    steps: list[StepView] = []
    #: The plan as it is now, or as it was at first; see `plan_is_first`.
    plan: list[StepView] = []
    plan_is_first: bool = False
    #: The first step of the plan that is not done, unless the task has ended.
    next: str | None = None
    plan_changes: list[PlanChange] = []
    decisions: list[Note] = []
    discoveries: list[Note] = []
    signals: list[Signal] = []
    waits: list[Wait] = []
    outcome: Any = None
    outcome_seq: int | None = None
    #: The last error, or why it was cancelled or paused; the step, and the place in the code.
    error: str | None = None
    error_seq: int | None = None
    failed_step: str | None = None
    place: str | None = None
    paused_because: str | None = None
    events: list[Event] = []
    history: list[EntryLine] = []
    damaged: list[Gap] = []
    #: What was looked at: from this entry to that one, and when the last of them was.
    first: int = 0
    last: int = 0
    until: datetime
    #: What to give as *before* for what came before it, and for what came after.
    older: int | None = None
    newer: int | None = None

    @property
    def awaited(self) -> list[str]:
        """The signals that it waits for."""
        return [wait.signal for wait in self.waits if wait.signal is not None]

    @property
    def not_planned(self) -> list[StepView]:
        """The steps of this page that are in no plan."""
        return [step for step in self.steps if not step.planned]


class TaskFold:
    """What entries of a task tell: its state, its steps over time, and what people look for."""

    def __init__(self, id_: str) -> None:
        self.state = TaskState(id_)
        self.log = StepLog(id_)
        self.origin: Origin | None = None
        self.plans: list[PlanChange] = []
        self.decisions: list[Note] = []
        self.discoveries: list[Note] = []
        self.signals: list[Entry] = []
        self.taken: set[int] = set()  # the numbers of those of them that a wait has taken
        self.outcome_seq: int | None = None
        self.trouble: Entry | None = None  # the entry with the last error
        self.paused: Entry | None = None
        self.damaged: list[Gap] = []

    async def read(self, scope: Scope, head: Head, first: int, last: int) -> list[Entry]:
        """Take in the entries *first* to *last*, which are returned."""
        return self.take(await read_slice(scope, head, first=first, last=last))

    def take(self, found: Slice) -> list[Entry]:
        """Take in more entries, which are returned; what is damaged among them is noted."""
        self.damaged += found.damaged
        for entry in found.entries:
            self._take(entry)
        return found.entries

    def _take(self, entry: Entry) -> None:
        """One more; if it is not what is stored under its type, that is noted."""
        try:
            self.state.apply(entry)
            self.log.apply(entry)
            note = self._NOTES.get(entry.type)
            if note is not None:
                note(self, entry)
        except Unreadable as error:
            self.damaged.append(Gap(entry.seq, entry.seq, str(error)))
        except MALFORMED as error:
            why = f"it is not what is stored as {entry.type!r} ({type(error).__name__}: {error})"
            what = f"Entry {entry.seq} of task {self.state.task_id!r}"
            why = f"{what} cannot be read: {why}."
            self.damaged.append(Gap(entry.seq, entry.seq, why))

    def _forked(self, entry: Entry) -> None:
        self.origin = Origin(str(entry.body["from"]), int(entry.body["at"]))

    def _planned(self, entry: Entry) -> None:
        because = _text(entry.body.get("because"))
        self.plans.append(PlanChange(entry.seq, entry.at, list(self.state.planned), because))

    def _decided(self, entry: Entry) -> None:
        body = entry.body
        self.decisions.append(
            Note(entry.seq, entry.at, _text(body["decision"]) or "", _text(body.get("because")))
        )

    def _discovered(self, entry: Entry) -> None:
        self.discoveries.append(Note(entry.seq, entry.at, _text(entry.body["discovery"]) or ""))

    def _signalled(self, entry: Entry) -> None:
        self.signals.append(entry)

    def _step(self, entry: Entry) -> None:
        name = entry.body.get("signal")
        if name is not None:
            left = (s.seq for s in self.signals if s.body["name"] == name)
            self.taken |= {next((seq for seq in left if seq not in self.taken), 0)}

    def _rewound(self, entry: Entry) -> None:
        del self.decisions[entry.body["decisions"] :]
        del self.discoveries[entry.body["discoveries"] :]

    def _stopped(self, entry: Entry) -> None:
        self.trouble = entry

    def _cancelled(self, entry: Entry) -> None:
        if entry.body.get("because"):
            self.trouble = entry

    def _paused(self, entry: Entry) -> None:
        self.paused = entry

    def _finished(self, entry: Entry) -> None:
        self.outcome_seq = entry.seq

    _NOTES: ClassVar[dict[str, Callable[[TaskFold, Entry], None]]] = {
        kinds.FORKING: _forked,
        kinds.FORKED: _forked,
        kinds.PLANNED: _planned,
        kinds.REPLANNED: _planned,
        kinds.DECIDED: _decided,
        kinds.DISCOVERED: _discovered,
        kinds.SIGNALLED: _signalled,
        kinds.STEP: _step,
        kinds.REWOUND: _rewound,
        kinds.STOPPED: _stopped,
        kinds.FAILED: _stopped,
        kinds.CANCELLED: _cancelled,
        kinds.PAUSED: _paused,
        kinds.FINISHED: _finished,
    }


async def fold_task(scope: Scope, head: Head) -> TaskFold:
    """All of a task, whatever its length."""
    fold = TaskFold(head.key.id)
    await fold.read(scope, head, head.first, head.seq)
    return fold


async def task_view(
    scope: Scope,
    head: Head,
    *,
    before: int | None = None,
    most: int | None = PAGE,
    whole: bool = False,
) -> TaskView:
    """The task of *head*, with the *most* newest entries numbered under *before*; None: with all.

    *whole*: fold all of it, also if it is long.
    """
    last = head.seq if before is None else min(max(before - 1, head.first), head.seq)
    first = head.first if most is None else max(head.first, last - most + 1)
    small = head.seq - head.first < WHOLE and head.size <= WHOLE_BYTES
    whole = whole or most is None or small
    fold = TaskFold(head.key.id)
    if whole:
        entries = await fold.read(scope, head, head.first, head.seq)
        shown = [entry for entry in entries if first <= entry.seq <= last]
    else:
        found = await read_slice(scope, head, first=first, last=last, bounded=True)
        first = found.first
        upto = min(head.first + FIRST, first) - 1
        await fold.read(scope, head, head.first, upto)
        shown = fold.take(found)
    children, more_children = await _children(scope, head)
    view = _Viewer(fold, HeadView.of(head), whole=whole, newest=last == head.seq)
    now = max(datetime.now(UTC), view.head.updated)
    return view.make(
        children=children,
        more_children=more_children,
        first=first,
        last=last,
        until=now if whole or last == head.seq or not shown else shown[-1].at,
        history=[line_of(entry, kinds.KIND) for entry in shown[::-1]],
        older=first if first > head.first else None,
        newer=None if last == head.seq else last + 1 + (most or 0),
    )


def _text(value: Any) -> str | None:
    """What should be text, and is so if we have written it."""
    return None if value is None else written(value)


async def _children(scope: Scope, head: Head) -> tuple[list[Child], bool]:
    """The first of the tasks that are steps of this one; and whether there are more."""
    page = await scope.runtime.call(
        scope.backend.scan,
        scope.tenant,
        kinds.KIND,
        prefix=f"{head.key.id}/",
        labels={kinds.PARENT: head.key.id},
        limit=CHILDREN,
    )
    found = [Child(one.key.id, one.status or "") for one in page.heads]
    return found, page.cursor is not None


class _Viewer:
    """Makes the view of a fold."""

    def __init__(self, fold: TaskFold, head: HeadView, *, whole: bool, newest: bool) -> None:
        self.fold = fold
        self.state = fold.state
        self.head = head
        self.whole = whole
        self.newest = newest
        self.doubts = {call.id for call in head.doubts}
        # What the newest entries say stands in the head too: it is there for any page.
        self.status = head.status or self.state.status
        self.ended = self.status in ENDED
        left = (name for name in self.state.planned if name not in self.state.results)
        self.next = None if self.ended or not whole else next(left, None)

    def make(self, **about: Any) -> TaskView:
        fold, state = self.fold, self.state
        trouble = fold.trouble.body if fold.trouble is not None and state.error else {}
        paused = fold.paused.body if fold.paused and self.status == kinds.PAUSED else {}
        plans = fold.plans
        return TaskView(
            head=self.head,
            whole=self.whole,
            status=self.status,
            goal=_text(state.goal) or "",
            agent=_text(state.agent),
            submitted=_text(state.kind),
            input=state.input,
            deadline=state.deadline,
            parent=self.head.labels.get(kinds.PARENT),
            origin=fold.origin,
            steps=self.steps(about["first"], about["last"]),
            plan=[self.planned(name) for name in state.planned],
            plan_is_first=not self.whole,
            next=self.next,
            plan_changes=[
                change
                for number, change in enumerate(plans)
                if number or change.because is not None
            ],
            decisions=fold.decisions,
            discoveries=fold.discoveries,
            signals=[
                Signal(
                    one.seq,
                    one.at,
                    one.body["name"],
                    one.body.get("payload"),
                    one.seq in fold.taken,
                )
                for one in fold.signals
            ],
            waits=[
                Wait(name, wait.kind, wait.until, wait.signal)
                for name, wait in state.waits.items()
                if not self.ended
            ],
            outcome=state.outcome,
            outcome_seq=fold.outcome_seq if state.status == kinds.DONE else None,
            error=_text(state.error),
            error_seq=fold.trouble.seq if trouble and fold.trouble else None,
            failed_step=_text(state.failed_step),
            place=_text(trouble.get("place")),
            paused_because=_text(paused.get("because")),
            events=[one for one in fold.log.events if about["first"] <= one.seq <= about["last"]],
            damaged=sorted(fold.damaged, key=lambda one: one.seq),
            **about,
        )

    def steps(self, first: int, last: int) -> list[StepView]:
        found = [self.known(step) for step in self.fold.log.steps(first, last)]
        if self.newest and self.next is not None and all(one.name != self.next for one in found):
            found.append(self.planned(self.next))
        return found

    def planned(self, name: str) -> StepView:
        """A step of the plan, of which there may be no entry yet."""
        return self.known(self.fold.log.step(name) or StepView(name=name, state=""))

    def known(self, step: StepView) -> StepView:
        """A *step*, with what the task, and who has it, say of its state."""
        state, spans = step.state, step.spans
        if not (self.newest or self.whole):
            if state in (timeline.RUNNING, timeline.DOUBT):
                state = timeline.LATER
        elif step.name in self.doubts:
            state = timeline.DOUBT
        elif state in (timeline.RUNNING, timeline.DOUBT):
            at_work = self.head.held and not self.ended
            state = timeline.RUNNING if at_work else timeline.INTERRUPTED
        elif state in ("", timeline.UNDONE) and self.whole:
            state = timeline.NEXT if step.name == self.next else state or timeline.PLANNED
        if spans and spans[-1].end is None and state in (timeline.DOUBT, timeline.INTERRUPTED):
            kind = timeline.DOUBT if state == timeline.DOUBT else timeline.LOST
            spans = [*spans[:-1], structs.replace(spans[-1], kind=kind)]
        planned = step.name in self.state.planned
        return structs.replace(step, state=state, spans=spans, planned=planned)
