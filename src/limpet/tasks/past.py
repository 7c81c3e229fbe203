"""The past of a task: every version can be read, compared, and gone on from."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, Self

from limpet.errors import Conflict, EffectsWarning, TaskNotFound
from limpet.tasks import entries as kinds
from limpet.tasks.core import KIND, RESULTS, folded
from limpet.tasks.history import TaskVersion, compare, effects_after, versions
from limpet.tasks.state import TaskState
from limpet.tasks.terms import Terms
from limpet.tasks.waits import Waits

if TYPE_CHECKING:
    from limpet.core.checkpoint import Checkpoint
    from limpet.core.journal import Entry

__all__ = ["Past"]

#: Entries to a record in a fork.
CHUNK = 64

#: Entries that a fork does not take over: they are about the other task's runs.
_LEFT_BEHIND = {
    *(kinds.RESUMED, kinds.STOPPED, kinds.PAUSED, kinds.CANCELLED, kinds.FAILED),
    *(kinds.FORKING, kinds.FORKED),
}


class Past(Waits):
    """What a task was, at any time."""

    async def at(self, seq: int) -> Checkpoint:
        """The task as it was after entry *seq*; see `history`."""
        return (await self._state_at(seq)).checkpoint()

    async def history(self) -> list[TaskVersion]:
        """Every version of the task: its number, when it came to be, and what happened."""
        return versions(await self._entries())

    async def compare(self, a: int, b: int) -> str:
        """What changed from entry *a* to entry *b*, for people."""
        return compare(await self.at(a), await self.at(b))

    async def _state_at(self, seq: int) -> TaskState:
        state = await folded(self._journal, seq)
        if not state.exists or state.seq != seq:
            msg = f"Task {self.id!r} has no version {seq}; see its history()."
            raise TaskNotFound(msg)
        return state

    async def _entries(self) -> list[Entry]:
        found = await self._journal.read()
        if not found:
            raise self._not_found()
        return found

    def _not_found(self) -> TaskNotFound:
        return TaskNotFound(f"There is no task {self.id!r} (or it has expired).")

    async def fork(self, id: str, *, at: int | None = None, step: str | None = None) -> Self:
        """A new task *id* that begins with what this one was after entry *at*, or before *step*.

        Without either, as it is now. The two are then independent, and have other idempotency
        keys: what the new one does again, it does for real. An `EffectsWarning` lists the effects
        that this task has had after that point. A fork cut short by a crash is finished by the same
        call again; `Conflict` if there is another task with that id.
        """
        entries = await self._entries()
        at = _point(entries, at, step)
        _warn(entries, at, f"Task {id!r} begins")
        kept = [entry for entry in entries if entry.seq <= at and entry.type not in _LEFT_BEHIND]
        await self._copy(kept, id, {"from": self.id, "at": at})
        terms = self._terms
        fresh = Terms(agent=terms.agent, lease=terms.lease, wait=terms.wait)
        return type(self)(self._scope, id, fresh)

    async def _copy(self, entries: list[Entry], id_: str, origin: dict[str, Any]) -> None:
        state = TaskState(id_)
        for entry in entries:
            state.apply(entry)
        status = kinds.DONE if state.status == kinds.DONE else kinds.OPEN
        head = await self._journal.head()
        labels = {} if head is None else {**head.labels, kinds.DUE: None, kinds.PARENT: None}
        try:
            await self._begin_fork(id_, origin, labels)
            copied = [(entry.type, await self._moved(entry, id_)) for entry in entries]
            await self._fill(id_, [*copied, (kinds.FORKED, origin)], status)
        except Conflict as error:
            msg = f"There is a task {id_!r} already. Fork to another id, or delete it first."
            raise Conflict(msg, error.expected, error.actual) from error

    async def _begin_fork(
        self, id_: str, origin: dict[str, Any], labels: dict[str, str | None]
    ) -> None:
        """Let there be a task first: `Store.sweep` takes away what is kept apart for none."""
        target = self._scope.journal(KIND, id_)
        if await target.head() is None:  # one of that id may have expired
            await self._scope.journal(RESULTS, id_).delete()
        begin = (kinds.FORKING, origin)
        await target.append(begin, id="fork", expect=0, status=kinds.FORKING, labels=labels)

    async def _fill(self, id_: str, copied: list[tuple[str, Any]], status: str) -> None:
        target = self._scope.journal(KIND, id_)
        for done in range(0, len(copied), CHUNK):
            chunk = copied[done : done + CHUNK]
            last = done + len(chunk) == len(copied)
            await target.append(
                *chunk,
                id=f"fork-{done}",
                expect=done + 1,
                status=status if last else kinds.FORKING,
            )

    async def _moved(self, entry: Entry, id_: str) -> Any:
        """An entry's body for the task *id_*, with what was kept apart copied over."""
        large = entry.body.get("large") if entry.type == kinds.STEP else None
        if large is None:
            return entry.body
        result = await self._fetch(entry.body["name"], large["seq"])
        apart = self._scope.journal(RESULTS, id_)
        # The id makes a repeated fork find what the first one copied.
        seq = await apart.append(("result", result), id=f"fork-{entry.seq}", ttl=None)
        return {**entry.body, "large": {**large, "seq": seq}}

    async def rewind(self, *, to: int | None = None, step: str | None = None) -> None:
        """Let the task be what it was after entry *to*, or before *step*, and go on from there.

        Nothing is deleted: `history` still has it. The steps that come again have the same
        idempotency keys as before; an `EffectsWarning` lists those that have had effects. To do
        them for real once more, `fork`.
        """
        self._own()
        if to is None and step is None:
            msg = "rewind() needs to= or step=: how far back?"
            raise ValueError(msg)
        entries = await self._entries()
        to = _point(entries, to, step)
        _warn(entries, to, f"Task {self.id!r} goes back")
        before = await self._state_at(to)
        body = {
            "to": to,
            "forget": [name for name in self._touched() if name not in before.results],
            "in_doubt": {
                name: [doubt.policy, doubt.error] for name, doubt in before.in_doubt.items()
            },
            "plan": before.plan,
            "changes": list(before.changes),
            "decisions": len(before.decisions),
            "discoveries": len(before.discoveries),
        }
        await self._record(kinds.REWOUND, body, status=kinds.OPEN)
        self._leaving = False
        self._seen.clear()
        self._changing_seen.clear()

    def _touched(self) -> list[str]:
        """Every step of which something is known."""
        state = self._state
        known = (state.results, state.in_doubt, state.progress, state.tried, state.waits)
        return list(dict.fromkeys(name for kept in known for name in kept))


def _point(entries: list[Entry], at: int | None, step: str | None) -> int:
    """The number of the entry up to which the past is to stand."""
    if at is not None and step is not None:
        msg = "Say a number or a step, not both."
        raise ValueError(msg)
    if step is None:
        return entries[-1].seq if at is None else at
    about = (kinds.BEGAN, kinds.STEP, kinds.SKIPPED, kinds.TRIED, kinds.PROGRESS, kinds.WAITING)
    for entry in entries:
        if entry.type in about and entry.body.get("name") == step:
            return entry.seq - 1
    msg = f"There is no step {step!r} in this task's history."
    raise ValueError(msg)


def _warn(entries: list[Entry], at: int, what: str) -> None:
    effects = effects_after(entries, at)
    if effects:
        msg = (
            f"{what} at entry {at}, and after that these steps had effects, which stay: "
            f"{', '.join(effects)}."
        )
        warnings.warn(EffectsWarning(msg), stacklevel=_outside())


def _outside() -> int:
    """How far up the stack the user's own line is: another number for each face."""
    frame, level = sys._getframe(1), 1  # noqa: SLF001 - the only way there is
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("limpet."):
        frame, level = frame.f_back, level + 1
    return level
