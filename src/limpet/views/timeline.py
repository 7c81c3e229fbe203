"""The steps of a task over time: when each ran, how often, and what came of it.

Made of entries alone, of all of a journal or of any stretch of it. A step that may simply run
again records only its end, with how long it took; one with an effect records its beginning first.
What no entry says is not guessed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from limpet.tasks import entries as kinds
from limpet.views.messages import written
from limpet.views.text import one_line, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from limpet.core.journal import Entry

__all__ = [
    "Axis",
    "Cut",
    "Event",
    "Span",
    "StepLog",
    "StepView",
]

#: Characters of a step's result or error; the entry has all of it.
PREVIEW = 300

# What a step is doing in a span, and what it has come to.
RAN = "ran"
FAILED = "failed"
WAITED = "waited"
LOST = "taken over"  # whoever ran it is gone
DOUBT = "in doubt"
RUNNING = "running"

DONE = "done"
SKIPPED = "skipped"
TIMED_OUT = "timed out"
WAITING = "waiting"
INTERRUPTED = "interrupted"  # it ran, and nobody goes on with it now
UNDONE = "undone"  # the task went back to before it
NEXT = "next"
PLANNED = "planned"
LATER = "goes on later"  # in entries that are not looked at


class Span(Struct, frozen=True):
    """What a step did for a while. *end* is None where that goes on; *seq*: the entry that says so.

    Of an attempt of which only the end is known, *start* is that end.
    """

    kind: str
    start: datetime
    end: datetime | None
    seq: int


class Event(Struct, frozen=True):
    """What happened to the whole task: it was resumed, paused, stopped by an error."""

    seq: int
    at: datetime
    type: str


class StepView(Struct, frozen=True, kw_only=True):
    """A step, as far as it is known."""

    name: str
    state: str
    planned: bool = False
    #: Its first entry, its newest one, and the one with its result.
    first: int = 0
    seq: int = 0
    ended_by: int | None = None
    started: datetime | None = None
    ended: datetime | None = None
    #: Seconds that its last attempt took.
    took: float | None = None
    attempts: int = 0
    errors: list[str] = []
    taken_over: bool = False
    #: Whether its beginning is recorded, because it must not happen twice; what if it is in doubt.
    effect: bool = False
    policy: str = ""
    #: The beginning of what it returned; of a large result, its size, and its number among those.
    result: str | None = None
    size: int | None = None
    large: int | None = None
    #: How its result is known, if not by its own return: a signal, a person, a verification.
    source: str = ""
    because: str | None = None
    progress: float | None = None
    note: str = ""
    spans: list[Span] = []

    @property
    def retried(self) -> bool:
        """Whether it was tried more than once."""
        return self.attempts > 1


class _Step:
    """What the entries have said of one step so far."""

    def __init__(self, name: str, seq: int) -> None:
        self.name = name
        self.first = seq
        self.seq = seq
        self.state = ""
        self.started: datetime | None = None
        self.spans: list[Span] = []
        self.attempts = 0
        self.errors: list[str] = []
        self.taken_over = False
        self.effect = False
        self.policy = ""
        self.progress: float | None = None
        self.note = ""
        #: What it is doing, and since when; the kind of the span that will be.
        self.doing: tuple[str, datetime] | None = None
        #: When its next attempt begins, after one that failed.
        self.again_at: datetime | None = None
        self.end: dict[str, Any] = {}

    def start(self, at: datetime) -> None:
        """It did something at that time, at the latest."""
        self.started = at if self.started is None else min(self.started, at)

    def span(self, kind: str, start: datetime, end: datetime, seq: int) -> None:
        """It did something for a while."""
        self.start(start)
        self.spans.append(Span(kind, start, end, seq))
        self.doing = None

    def close(self, kind: str, at: datetime, seq: int) -> None:
        """What it was doing since whenever ends, and was that."""
        if self.doing is not None:
            self.span(kind, min(self.doing[1], at), at, seq)


class StepLog:
    """The steps that entries tell of; `apply` takes these in their order."""

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id
        self._steps: dict[str, _Step] = {}
        self.events: list[Event] = []

    def apply(self, entry: Entry) -> None:
        """Take in one more entry, which is what is stored under its type."""
        change = self._CHANGES.get(entry.type)
        if change is not None:
            change(self, entry.body, entry)

    def _step(self, name: str, entry: Entry) -> _Step:
        step = self._steps.get(name)
        if step is None:
            step = self._steps[name] = _Step(name, entry.seq)
        step.seq = entry.seq
        return step

    def _began(self, body: dict[str, Any], entry: Entry) -> None:
        step = self._step(body["id"], entry)
        step.close(DOUBT, entry.at, entry.seq)
        step.effect, step.policy = True, body.get("policy", "")
        step.attempts = max(step.attempts + 1, body.get("attempt", 1))
        step.state, step.doing, step.again_at = RUNNING, (RUNNING, entry.at), None
        step.start(entry.at)
        step.end = {}

    def _progress(self, body: dict[str, Any], entry: Entry) -> None:
        step = self._step(body["name"], entry)
        step.progress, step.note = body.get("fraction"), body.get("note") or ""
        if step.doing is None and not step.end:  # it is at work since then, at the latest
            step.state, step.doing = RUNNING, (RUNNING, step.again_at or entry.at)
            step.start(entry.at)

    def _tried(self, body: dict[str, Any], entry: Entry) -> None:
        step = self._step(body["name"], entry)
        start = step.doing[1] if step.doing else step.again_at or entry.at
        step.span(FAILED, min(start, entry.at), entry.at, entry.seq)
        step.attempts = max(step.attempts, body["attempt"])
        step.errors.append(shorten(one_line(body["error"]), PREVIEW))
        step.state, step.again_at = FAILED, None
        if body.get("wait") is not None:
            step.again_at = entry.at + timedelta(seconds=body["wait"])
            step.spans.append(Span(WAITED, entry.at, step.again_at, entry.seq))
            step.state = RUNNING
        elif step.effect:
            step.state, step.doing = DOUBT, (DOUBT, entry.at)

    def _ended(self, body: dict[str, Any], entry: Entry) -> None:
        step = self._step(body["name"], entry)
        large = body.get("large")
        end: dict[str, Any] = {"ended": entry.at, "ended_by": entry.seq}
        if "took" in body:
            start = entry.at - timedelta(seconds=body["took"])
            if step.doing is not None and step.doing[0] == DOUBT:
                step.close(DOUBT, start, entry.seq)
            step.span(RAN, start, entry.at, entry.seq)
            step.attempts = max(step.attempts, len(step.errors) + 1)
            step.effect = step.effect or bool(body.get("effect") or body.get("transaction"))
            end["took"] = body["took"]
        elif body.get("verified"):
            step.close(DOUBT, entry.at, entry.seq)
        else:
            step.close(WAITED, entry.at, entry.seq)
        if "timed_out" in body:
            step.state = TIMED_OUT
        else:
            step.state = DONE
            value = body["result"] if large is None else large["preview"]
            end["result"] = _preview(value)
        if large is not None:
            end |= {"size": large["size"], "large": large["seq"]}
        if body.get("verified"):
            end["source"] = "found to be done"
        elif "signal" in body:
            end["source"] = f"signal {body['signal']}"
        elif body.get("transaction"):
            end["source"] = "transaction"
        step.end, step.doing = end, None

    def _skipped(self, body: dict[str, Any], entry: Entry) -> None:
        step = self._step(body["name"], entry)
        step.close(DOUBT, entry.at, entry.seq)
        step.state = SKIPPED
        step.end = {"ended": entry.at, "ended_by": entry.seq, "because": body.get("because")}

    def _resolved(self, body: dict[str, Any], entry: Entry) -> None:
        step = self._step(body["id"], entry)
        step.close(DOUBT, entry.at, entry.seq)
        by = f"said by {body['by']}" if body.get("by") else "said by a person"
        end = {"ended": entry.at, "ended_by": entry.seq, "source": by}
        if body["how"] == "done":
            step.state, step.end = DONE, {**end, "result": _preview(body.get("result"))}
        elif body["how"] == "skip":
            step.state, step.end = SKIPPED, {**end, "because": "a person said so"}
        else:
            step.state, step.end = INTERRUPTED, {"source": f"to be done again, {by}"}

    def _waiting(self, body: dict[str, Any], entry: Entry) -> None:
        name = body["name"]
        if body["kind"] == "child":
            name = name.removeprefix(f"{self._task_id}/")
        step = self._step(name, entry)
        if body["kind"] == "ask":
            if step.state != DOUBT:
                step.close(LOST, entry.at, entry.seq)
                step.state, step.doing = DOUBT, (DOUBT, entry.at)
        elif step.state != WAITING:
            step.close(RAN, entry.at, entry.seq)
            step.state, step.doing = WAITING, (WAITED, entry.at)
            step.start(entry.at)

    def _resumed(self, _body: dict[str, Any], entry: Entry) -> None:
        for step in self._steps.values():
            if step.state == RUNNING:
                step.close(LOST, entry.at, entry.seq)
                step.taken_over = True
                if step.effect and not step.end:
                    step.state, step.doing = DOUBT, (DOUBT, entry.at)
                else:
                    step.state = INTERRUPTED
        self.events.append(Event(entry.seq, entry.at, entry.type))

    def _stopped(self, body: dict[str, Any], entry: Entry) -> None:
        name, error = body.get("step"), shorten(one_line(body["error"]), PREVIEW)
        if isinstance(name, str) and name not in self._steps:
            self._step(name, entry)
        step = self._steps.get(name or "")
        if step is not None and not step.end:
            if step.errors[-1:] != [error]:  # or the attempt has been recorded by itself
                step.close(FAILED, entry.at, entry.seq)
                step.errors.append(error)
                step.attempts += 1
                if step.spans[-1:] == [] or step.spans[-1].seq != entry.seq:
                    step.span(FAILED, entry.at, entry.at, entry.seq)
            step.seq = entry.seq
            if step.state != DOUBT:
                step.state = FAILED
        self._happened(body, entry)

    def _happened(self, _body: dict[str, Any], entry: Entry) -> None:
        self.events.append(Event(entry.seq, entry.at, entry.type))

    def _rewound(self, body: dict[str, Any], entry: Entry) -> None:
        for name in body["forget"]:
            step = self._steps.get(name)
            if step is not None:
                step.close(LOST, entry.at, entry.seq)
                step.state, step.end, step.attempts, step.errors = UNDONE, {}, 0, []
                step.progress, step.note, step.taken_over = None, "", False
        self.events.append(Event(entry.seq, entry.at, entry.type))

    def steps(self, first: int, last: int) -> list[StepView]:
        """The steps that did something between entries *first* and *last*, in their order."""
        return [
            self._view(step)
            for step in self._steps.values()
            if step.first <= last and step.seq >= first
        ]

    def step(self, name: str) -> StepView | None:
        """One of them, if there are entries of it."""
        found = self._steps.get(name)
        return None if found is None else self._view(found)

    @staticmethod
    def _view(step: _Step) -> StepView:
        spans = list(step.spans)
        if step.doing is not None:
            spans.append(Span(step.doing[0], step.doing[1], None, step.seq))
        return StepView(
            name=step.name,
            state=step.state,
            first=step.first,
            seq=step.seq,
            started=step.started,
            attempts=step.attempts,
            errors=list(step.errors),
            taken_over=step.taken_over,
            effect=step.effect,
            policy=step.policy,
            progress=step.progress,
            note=step.note,
            spans=spans,
            **step.end,
        )

    _CHANGES: ClassVar[dict[str, Callable[[StepLog, Any, Entry], None]]] = {
        kinds.CREATED: _happened,
        kinds.BEGAN: _began,
        kinds.PROGRESS: _progress,
        kinds.TRIED: _tried,
        kinds.STEP: _ended,
        kinds.SKIPPED: _skipped,
        kinds.RESOLVED: _resolved,
        kinds.WAITING: _waiting,
        kinds.RESUMED: _resumed,
        kinds.STOPPED: _stopped,
        kinds.FAILED: _stopped,
        kinds.PAUSED: _happened,
        kinds.CANCELLED: _happened,
        kinds.FORKED: _happened,
        kinds.FINISHED: _happened,
        kinds.REWOUND: _rewound,
    }


def _preview(value: Any) -> str:
    """The beginning of *value*, on one line."""
    text = value[: 4 * PREVIEW] if isinstance(value, str) else written(value)
    return shorten(one_line(text), PREVIEW)


# -- time as a width -------------------------------------------------------------------------------


class Cut(Struct, frozen=True):
    """A pause that is shown shorter than it was: where it ends, and how long it was in seconds."""

    at: float
    seconds: float


class Axis:
    """Places of times between 0 and 1: in proportion while something runs, long pauses cut.

    All pauses together take no more room than the work, if there is any.

    A task that worked for a second, waited for a day and worked for another second is otherwise
    a line with a dot at each end.
    """

    def __init__(self, spans: Iterable[Span], now: datetime) -> None:
        spans = list(spans)
        self._now = now
        times = sorted({t for span in spans for t in (span.start, span.end or now)})
        busy = sorted(
            (span.start, span.end or now) for span in spans if span.kind in (RAN, FAILED, RUNNING)
        )
        lengths: list[tuple[float, bool]] = []  # of each stretch; whether it is a pause
        until, at = datetime.min.replace(tzinfo=now.tzinfo), 0
        for start, end in pairwise(times):
            while at < len(busy) and busy[at][0] <= start:
                until = max(until, busy[at][1])
                at += 1
            lengths.append(((end - start).total_seconds(), until <= start))
        work = sum(length for length, pause in lengths if not pause)
        pauses = [length for length, pause in lengths if pause]
        most = work / len(pauses) if 0 < work < sum(pauses) else float("inf")
        total = sum(min(length, most) if pause else length for length, pause in lengths) or 1.0
        self.cuts: list[Cut] = []
        self._places = [(times[0], 0.0)] if times else []
        place = 0.0
        for (length, pause), end in zip(lengths, times[1:], strict=True):
            shown = min(length, most) if pause else length
            place += shown / total
            if shown < length:
                self.cuts.append(Cut(min(place, 1.0), length))
            self._places.append((end, min(place, 1.0)))

    def place(self, at: datetime | None) -> float:
        """Where *at* is; None is now."""
        at = at or self._now
        before: tuple[datetime, float] | None = None
        for time, place in self._places:
            if time >= at:
                if before is None or time == at:
                    return place
                part = (at - before[0]) / (time - before[0])
                return before[1] + part * (place - before[1])
            before = (time, place)
        return 1.0 if self._places else 0.0
