"""The versions of a task: what happened, what changed, and how to go on from any of them."""

from __future__ import annotations

import builtins
import warnings
from bisect import bisect_left
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from limpet.backends.facts import human_size
from limpet.core.changes import Change, as_lines
from limpet.core.runtime import SyncWrapper, sync, sync_wrapped
from limpet.errors import Conflict, EffectsWarning, TaskNotFound, outside
from limpet.tasks import entries as kinds
from limpet.tasks.entries import KIND, RESULTS, item_name, numbered, one_line
from limpet.tasks.record import TaskOptions, calls_meta, not_found, read_state
from limpet.tasks.state import Large, TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from limpet.core.checkpoint import Checkpoint
    from limpet.core.journal import Entry
    from limpet.tasks.steps import StepRunner
    from limpet.tasks.task import AsyncTask, Task

__all__ = [
    "AsyncVersions",
    "TaskVersion",
    "Versions",
    "changes_between",
    "compare",
    "describe_entries",
    "effects_after",
    "fork_task",
    "point_of",
]

#: Entries to a record in a fork.
CHUNK = 64

#: Entries that a fork does not take over: they are about the other task's runs.
_LEFT_BEHIND = {
    *(kinds.RESUMED, kinds.STOPPED, kinds.PAUSED, kinds.CANCELLED, kinds.FAILED),
    *(kinds.FORKING, kinds.FORKED),
}

#: Characters of a reason or an error in a sentence, and of a large result in a comparison.
SENTENCE = 80
PREVIEW = 160
MOMENT, MINUTE = 0.1, 60


class TaskVersion(Struct, frozen=True):
    """A task as it was after entry *seq*: when that was, and what had happened, in a sentence."""

    seq: int
    at: datetime
    what: str


class AsyncVersions:
    """The versions of a task; see `Versions`."""

    def __init__(
        self, runner: StepRunner, open_task: Callable[[str, TaskOptions], AsyncTask]
    ) -> None:
        self._runner = runner
        self._record = runner.record
        self._live = runner.live
        self._open_task = open_task

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._live.id!r})"

    async def list(self) -> list[TaskVersion]:
        """Every version of the task: its number, its time, and what happened."""
        return describe_entries(await self._entries())

    async def at(self, seq: int) -> Checkpoint:
        """The task as it was after entry *seq*; see `list`."""
        return (await self._state_at(seq)).checkpoint()

    async def compare(self, a: int, b: int) -> str:
        """What changed from entry *a* to entry *b*, for people."""
        return compare(await self.at(a), await self.at(b))

    async def _entries(self) -> builtins.list[Entry]:
        found = await self._record.journal.read()
        if not found:
            raise not_found(self._live.id)
        return found

    async def _state_at(self, seq: int) -> TaskState:
        state = await read_state(self._record.journal, seq)
        if not state.exists or state.seq != seq:
            msg = f"Task {self._live.id!r} has no version {seq}; see its versions.list()."
            raise TaskNotFound(msg)
        return state

    async def fork(self, id: str, *, at: int | None = None, step: str | None = None) -> AsyncTask:
        """A new task *id* that begins with what this one was after entry *at*, or before *step*.

        Without either, as it is now. The two are then independent, and have other idempotency
        keys: what the new one does again, it does for real. An `EffectsWarning` lists the effects
        that this task has had after that point. A fork cut short by a crash is finished by the same
        call again; `Conflict` if there is another task with that id.
        """
        entries = await self._entries()
        at = point_of(entries, at, step)
        _warn_of_effects(entries, at, f"Task {id!r} begins")
        return await self._fork(entries, id, at)

    async def _fork(self, entries: builtins.list[Entry], id: str, at: int) -> AsyncTask:
        kept = [entry for entry in entries if entry.seq <= at and entry.type not in _LEFT_BEHIND]
        try:
            await self._copy(kept, id, {"from": self._live.id, "at": at})
        except Conflict as error:
            msg = f"There is a task {id!r} already. Fork to another id, or delete it first."
            raise Conflict(msg, error.expected, error.actual) from error
        own = self._live.options
        return self._open_task(id, TaskOptions(agent=own.agent, lease=own.lease, wait=own.wait))

    async def _copy(self, entries: builtins.list[Entry], id_: str, origin: dict[str, Any]) -> None:
        """Write *entries* as those of the task *id_*, in as many records as they need."""
        scope = self._record.scope
        target, large_results = scope.journal(KIND, id_), scope.journal(RESULTS, id_)
        head = await self._record.journal.head()
        labels = {} if head is None else {**head.labels, kinds.DUE: None, kinds.PARENT: None}
        # Let there be a task first: `Store.sweep` takes away what is kept apart for none.
        if await target.head() is None:  # one of that id may have expired
            await large_results.delete()
        begin = (kinds.FORKING, origin)
        await target.append(begin, id="fork", expect=0, status=kinds.FORKING, labels=labels)

        state = TaskState(id_)
        copied = []
        for entry in entries:
            state.apply(entry)
            value = entry.body
            large = value.get("large") if entry.type == kinds.STEP else None
            if large is not None:
                result = await self._runner.read_large(value["name"], large["seq"])
                # The id makes a repeated fork find what the first one copied.
                seq = await large_results.append(
                    ("result", result), id=f"fork-{entry.seq}", ttl=None
                )
                value = {**value, "large": {**large, "seq": seq}}
            copied.append((entry.type, value))
        copied.append((kinds.FORKED, origin))
        for done in range(0, len(copied), CHUNK):
            chunk = copied[done : done + CHUNK]
            changes: dict[str, Any] = {"status": kinds.FORKING}
            if done + len(chunk) == len(copied):
                status = kinds.DONE if state.status == kinds.DONE else kinds.OPEN
                changes = {"status": status, "meta": calls_meta(state.calls.open)}
            await target.append(*chunk, id=f"fork-{done}", expect=done + 1, **changes)

    async def rewind(self, *, to: int | None = None, step: str | None = None) -> None:
        """Take the task back to what it was after entry *to*, or before *step*.

        Nothing is deleted: `list` still has it. The steps that come again have the same
        idempotency keys as before; an `EffectsWarning` lists those that have had effects. To do
        them for real once more, `fork`.
        """
        live = self._live
        live.held()
        if to is None and step is None:
            msg = "rewind() needs to= or step=: how far back?"
            raise ValueError(msg)
        entries = await self._entries()
        to = point_of(entries, to, step)
        _warn_of_effects(entries, to, f"Task {live.id!r} goes back")
        before, now = await self._state_at(to), live.state
        touched = (now.results, now.calls.open, now.progress, now.tried, now.waits)
        names = dict.fromkeys(name for known in touched for name in known)
        value = {
            "to": to,
            "forget": [name for name in names if name not in before.results],
            "calls": msgspec.to_builtins(builtins.list(before.calls.open.values())),
            "plan": before.plan,
            "changes": builtins.list(before.change_ids),
            "decisions": len(before.decisions),
            "discoveries": len(before.discoveries),
        }
        meta = calls_meta(before.calls.open)
        await self._record.write(kinds.REWOUND, value, status=kinds.OPEN, meta=meta)
        live.run.seen.clear()
        live.run.seen_changes.clear()


async def fork_task(versions: AsyncVersions, id: str, at: int) -> AsyncTask:
    """`fork`, for somebody who has been shown the effects, and warned of them, before."""
    return await versions._fork(await versions._entries(), id, at)  # noqa: SLF001 - of this module


class Versions(SyncWrapper[AsyncVersions]):
    """The versions of a task: each entry of its journal is one, to look at or continue from.

    >>> import limpet
    >>> with limpet.open("memory:") as store, store.task("t", goal="Count") as task:
    ...     _ = task.step("count", lambda: 3)
    ...     task.versions.at(1).completed, task.versions.at(2).completed
    ([], ['count'])
    """

    list = sync(AsyncVersions.list)
    at = sync(AsyncVersions.at)
    compare = sync(AsyncVersions.compare)
    rewind = sync(AsyncVersions.rewind)
    fork = sync_wrapped(AsyncVersions.fork, lambda task: _sync_task(task))  # noqa: PLW0108 - see there


def _sync_task(task: AsyncTask) -> Task:
    from limpet.tasks.task import Task  # noqa: PLC0415 - which is made of versions, among others

    return Task(task)


def point_of(entries: list[Entry], at: int | None, step: str | None) -> int:
    """The number of the entry up to which the past is to stand: *at*, or before *step*."""
    if at is not None and step is not None:
        msg = "Say a number or a step, not both."
        raise ValueError(msg)
    if step is None:
        return entries[-1].seq if at is None else at
    about = (kinds.BEGAN, kinds.STEP, kinds.SKIPPED, kinds.TRIED, kinds.PROGRESS, kinds.WAITING)
    for entry in entries:
        if entry.type in about and _step_of(entry) == step:
            return entry.seq - 1
    msg = f"There is no step {step!r} in this task's history."
    raise ValueError(msg)


def _warn_of_effects(entries: list[Entry], at: int, what: str) -> None:
    effects = effects_after(entries, at)
    if effects:
        msg = (
            f"{what} at entry {at}, and after that these steps had effects, which stay: "
            f"{', '.join(effects)}."
        )
        warnings.warn(EffectsWarning(msg), stacklevel=outside())


def effects_after(entries: Iterable[Entry], seq: int) -> list[str]:
    """The steps with an effect that began or ended after entry *seq*: going back undoes none."""
    effects: set[str] = set()
    found: dict[str, None] = {}
    for entry in entries:
        name = _step_of(entry)
        if name is None:
            continue
        done = entry.type == kinds.STEP
        began = entry.type == kinds.BEGAN
        if began or (done and (entry.body.get("effect") or entry.body.get("transaction"))):
            effects.add(name)
        resolved = entry.type == kinds.RESOLVED and entry.body.get("how") == "done"
        if entry.seq > seq and name in effects and (began or done or resolved):
            found[name] = None
    return list(found)


def _step_of(entry: Entry) -> str | None:
    """The step that *entry* is about, if it is about one."""
    key = "id" if entry.type in (kinds.BEGAN, kinds.RESOLVED) else "name"
    name = entry.body.get(key) if isinstance(entry.body, dict) else None
    return name if isinstance(name, str) else None


# -- what happened ---------------------------------------------------------------------------------


def describe_entries(entries: Iterable[Entry]) -> list[TaskVersion]:
    """One version for each entry: its number, its time, and what it says, but no stored value."""
    begun: dict[str, None] = {}  # steps that began and have not ended, in order
    found = []
    for entry in entries:
        what = _sentence(entry)
        if entry.type == kinds.RESUMED and begun:
            what += "; in doubt: " + ", ".join(f"step {name!r}" for name in begun)
        found.append(TaskVersion(entry.seq, entry.at, what))
        name = _step_of(entry)
        if entry.type == kinds.BEGAN and name is not None:
            begun[name] = None
        elif entry.type in (kinds.STEP, kinds.RESOLVED, kinds.SKIPPED):
            begun.pop(name or "", None)
        elif entry.type == kinds.REWOUND:
            begun.clear()
    return found


def _sentence(entry: Entry) -> str:
    say = _SENTENCES.get(entry.type)
    if say is None or not isinstance(entry.body, dict):
        return one_line(entry.type)
    try:
        return say(entry.body)
    except (LookupError, TypeError, ValueError, AttributeError):  # our name, another's shape
        return one_line(entry.type)


def _created(body: dict[str, Any]) -> str:
    parts = [
        f"created by {one_line(body['agent'])}" if body.get("agent") else "created",
        f", of kind {body['kind']!r}" if body.get("kind") else "",
        f", as a part of {body['parent']!r}" if body.get("parent") else "",
    ]
    deadline = body.get("deadline")
    if isinstance(deadline, str):
        parts.append(f", to be done by {_moment(deadline)}")
    elif deadline is not None:
        parts.append(f", to be done within {deadline:g} s")
    return "".join(parts)


def _replanned(body: dict[str, Any]) -> str:
    return f"plan changed, now {_many(len(body['steps']), 'step')}" + _why(body, "because")


def _began(body: dict[str, Any]) -> str:
    attempt = body.get("attempt", 1)
    again = f", attempt {attempt}" if attempt != 1 else ""
    return f"step {body['id']!r} begins{again} (if in doubt: {one_line(body['policy'])})"


def _progress(body: dict[str, Any]) -> str:
    fraction = body.get("fraction")
    how_far = "goes on" if fraction is None else f"is at {fraction:.0%}"
    return f"step {body['name']!r} {how_far}" + _why(body, "note")


def _tried(body: dict[str, Any]) -> str:
    failed = f"attempt {body['attempt']} at step {body['name']!r} failed" + _why(body, "error")
    return failed + (f"; again in {_took(body['wait'])}" if body.get("wait") is not None else "")


def _step(body: dict[str, Any]) -> str:
    name = f"step {body['name']!r}"
    if "signal" in body:
        return f"{name} took the signal {body['signal']!r}"
    if body.get("timed_out"):
        return f"{name} waited in vain"
    large = body.get("large")
    apart = f" (its result of {human_size(large['size'])} is kept apart)" if large else ""
    if body.get("verified"):
        return f"{name} found to be done{apart}"
    return f"{name} done" + (f" in {_took(body['took'])}" if "took" in body else "") + apart


def _resolved(body: dict[str, Any]) -> str:
    by = f" by {one_line(body['by'])}" if body.get("by") else ""
    return f"step {body['id']!r} resolved{by}: {one_line(body['how'])}"


def _waiting(body: dict[str, Any]) -> str:
    until = f" until {_moment(body['until'])}" if body.get("until") else ""
    if body["kind"] == "sleep":
        return f"sleeps{until}"
    if body["kind"] == "ask":
        return f"step {body['name']!r} in doubt: waits for a person to say what became of it"
    return f"waits for {body['name']!r}{until}"


def _rewound(body: dict[str, Any]) -> str:
    forgot = len(body.get("forget", ()))
    return f"went back to {body['to']}" + (f", {_many(forgot, 'step')} undone" if forgot else "")


_SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    kinds.CREATED: _created,
    kinds.RESUMED: lambda body: (
        "resumed" + (f" by {one_line(body['agent'])}" if body.get("agent") else "")
    ),
    kinds.PLANNED: lambda body: f"planned: {_many(len(body['steps']), 'step')}",
    kinds.REPLANNED: _replanned,
    kinds.BEGAN: _began,
    kinds.PROGRESS: _progress,
    kinds.TRIED: _tried,
    kinds.STEP: _step,
    kinds.SKIPPED: lambda body: f"step {body['name']!r} skipped" + _why(body, "because"),
    kinds.RESOLVED: _resolved,
    kinds.WAITING: _waiting,
    kinds.SIGNALLED: lambda body: f"signal {body['name']!r} came",
    kinds.DECIDED: lambda body: "decided" + _why(body, "decision"),
    kinds.DISCOVERED: lambda body: "discovered" + _why(body, "discovery"),
    kinds.STOPPED: lambda body: "stopped" + _in_step(body) + _why(body, "error") + _where(body),
    kinds.PAUSED: lambda body: "paused" + _why(body, "because"),
    kinds.CANCELLED: lambda body: "cancelled" + _why(body, "because"),
    kinds.FORKING: lambda body: f"becomes a fork of {body['from']!r} at {body['at']}",
    kinds.FORKED: lambda body: f"forked from {body['from']!r} at {body['at']}",
    kinds.REWOUND: _rewound,
    kinds.FINISHED: lambda _body: "finished",
    kinds.HANDED: lambda _body: "outcome handed on",
    kinds.REMEMBERED: lambda body: f"remembered in {one_line(body['namespace'])}",
    kinds.FAILED: lambda body: "failed" + _in_step(body) + _why(body, "error") + _where(body),
}


def _why(body: dict[str, Any], key: str) -> str:
    return f": {one_line(body[key])}" if body.get(key) else ""


def _in_step(body: dict[str, Any]) -> str:
    return f" in step {one_line(body['step'])!r}" if body.get("step") else ""


def _where(body: dict[str, Any]) -> str:
    """The file and line of the failure, without the way to the file."""
    return f" ({one_line(str(body['place']).rpartition('/')[2])})" if body.get("place") else ""


def _many(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count:,} {what}s"


def _took(seconds: float) -> str:
    if seconds < MOMENT:
        return f"{seconds * 1000:.0f} ms" if seconds >= MOMENT / 100 else "under 1 ms"
    if seconds < MINUTE:
        return f"{seconds:.1f} s"
    return f"{seconds // MINUTE:.0f} min {seconds % MINUTE:.0f} s"


def _moment(at: str | datetime) -> str:
    found = at if isinstance(at, datetime) else datetime.fromisoformat(at)
    return f"{found.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


# -- what changed ----------------------------------------------------------------------------------

#: What stands in a checkpoint for a result that is kept apart has these.
_APART = Large(0, 0, "").summary().keys()


def compare(a: Checkpoint, b: Checkpoint) -> str:
    """What changed from *a* to *b*, section by section: lines with -, + and, for moves, ~."""
    heading = [
        f"--- {one_line(a.task_id)}, {_moment(a.updated_at)}",
        f"+++ {one_line(b.task_id)}, {_moment(b.updated_at)}",
    ]
    return "\n".join([*heading, *(as_lines(changes_between(a, b)) or ["Nothing differs."])])


def changes_between(a: Checkpoint, b: Checkpoint) -> Iterator[Change]:
    """What makes the task *b* of the task *a*, section by section."""
    yield from _texts("goal", a.goal, b.goal)
    yield from _texts("agent", a.agent_id, b.agent_id)
    yield from _texts("status", a.status, b.status)
    yield from _plans("plan", a.plan, b.plan)
    yield from _results("steps", a.results, b.results)
    decisions = [[one.sentence for one in found.decisions] for found in (a, b)]
    yield from _lists("decisions", *decisions)
    yield from _lists("discoveries", a.discoveries, b.discoveries)
    yield from _lists("in doubt", a.in_doubt, b.in_doubt)
    yield from _lists("waits for", a.waiting_for, b.waiting_for)
    yield from _texts("error", a.error, b.error)
    yield from _texts("outcome", a.outcome, b.outcome)


def _texts(place: str, a: Any, b: Any, name: str = "") -> Iterator[Change]:
    """The change of one value; of texts of several lines, as they are."""
    if a == b:
        return
    if isinstance(a, str) and isinstance(b, str):
        change = Change(place, name, _printable(a), _printable(b))
        if change.multiline:
            yield change
            return
    before = None if a is None and not name else _value(a)
    after = None if b is None and not name else _value(b)
    yield Change(place, name, before, after)


def _value(value: Any) -> str:
    """*value* on one line."""
    if isinstance(value, dict) and value.keys() == _APART:
        return f"{one_line(value['preview'], PREVIEW)} ({human_size(value['bytes'])}, kept apart)"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return one_line(text, len(text))


def _printable(text: str) -> str:
    return "\n".join(
        "".join(c if c.isprintable() else "\ufffd" for c in line) for line in text.splitlines()
    )


def _plans(place: str, a: Sequence[Any], b: Sequence[Any]) -> Iterator[Change]:
    """Steps that were dropped, added, changed, or have another place."""
    old, new = _by_name(a), _by_name(b)
    for name in old:
        if name not in new:
            yield Change(place, before=one_line(name))
    places = {name: number for number, name in enumerate(new, 1)}
    moved = _moved([name for name in old if name in new], places)
    for name, item in new.items():
        if name not in old:
            yield Change(place, after=one_line(name), note=f"at {places[name]}")
        elif old[name] != item:
            yield from _texts(place, old[name], item)
        if name in moved:
            yield Change(place, one_line(name), note=f"now at {places[name]}")


def _by_name(plan: Sequence[Any]) -> dict[str, Any]:
    seen: dict[str, int] = {}
    return {numbered(item_name(item), seen): item for item in plan}


def _moved(names: list[str], places: dict[str, int]) -> set[str]:
    """The fewest of *names* that must move for the others to be in their new order already."""
    ends: list[int] = []  # the smallest place in which a run of each length can end
    last: list[str] = []  # the name there
    before: dict[str, str | None] = {}
    for name in names:
        at = bisect_left(ends, places[name])
        ends[at : at + 1] = [places[name]]
        last[at : at + 1] = [name]
        before[name] = last[at - 1] if at else None
    stay: set[str | None] = set()
    name_ = last[-1] if last else None
    while name_ is not None:
        stay.add(name_)
        name_ = before[name_]
    return set(names) - stay


def _results(place: str, a: dict[str, Any], b: dict[str, Any]) -> Iterator[Change]:
    """Steps that are no longer done, are done by now, or have another result."""
    for name in a:
        if name not in b:
            yield Change(place, before=one_line(name))
    for name, result in b.items():
        if name not in a:
            yield Change(place, one_line(name), after=_value(result))
        else:
            yield from _texts(place, a[name], result, one_line(name))


def _lists(place: str, a: Sequence[str], b: Sequence[str]) -> Iterator[Change]:
    old, new = dict.fromkeys(a), dict.fromkeys(b)
    yield from (Change(place, before=_value(text)) for text in old if text not in new)
    yield from (Change(place, after=_value(text)) for text in new if text not in old)
