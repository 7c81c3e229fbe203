"""What a task has come to: the fold of its entries, and the checkpoint that people are shown."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec import Struct, field

from holdfast.codec import convert, fresh
from holdfast.errors import WrongType

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.journal import Entry

__all__ = ["Checkpoint", "Decision", "TaskState"]

# Entry types of a task's journal.
CREATED = "created"
RESUMED = "resumed"
PLANNED = "planned"
STEP = "step"
DECIDED = "decided"
DISCOVERED = "discovered"
STOPPED = "stopped"  # an error left the task's block; it can be resumed
FINISHED = "finished"
FAILED = "failed"

# Statuses, by which tasks are listed.
OPEN = "open"
DONE = "done"


class Decision(Struct, frozen=True):
    """What was decided, and why."""

    decision: str
    because: str | None = None


class Checkpoint(Struct, frozen=True, kw_only=True):
    """A task at one moment, as plain data.

    >>> from datetime import UTC, datetime
    >>> now = datetime(2026, 1, 1, tzinfo=UTC)
    >>> point = Checkpoint(agent_id="a", task_id="t", goal="g", created_at=now, updated_at=now)
    >>> Checkpoint.from_dict(point.to_dict()) == point
    True
    """

    agent_id: str | None
    task_id: str
    goal: str
    plan: list[Any] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    discoveries: list[str] = field(default_factory=list)
    created_at: datetime
    updated_at: datetime

    def to_dict(self) -> dict[str, Any]:
        """Dicts, lists, text and numbers only; times as ISO 8601."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Checkpoint:
        """The reverse of `to_dict`; `WrongType` if a field is missing or of another type."""
        return convert(data, cls)

    def to_json(self) -> str:
        """The same as JSON text."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Checkpoint:
        """The reverse of `to_json`; `WrongType` if it is something else."""
        try:
            data = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise WrongType(f"A checkpoint is JSON text, and this is not: {error}") from error
        return cls.from_dict(data)


class TaskState:
    """The fold of a task's entries. The same entries give the same state, in any process."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self.seq = 0
        self.goal = ""
        self.agent: str | None = None
        self.status = OPEN
        self.plan: list[Any] | None = None
        self.results: dict[str, Any] = {}
        self.decisions: list[Decision] = []
        self.discoveries: list[str] = []
        self.outcome: Any = None
        self.error: str | None = None
        self.created_at: datetime | None = None
        self.updated_at: datetime | None = None

    @property
    def exists(self) -> bool:
        """Whether there is such a task."""
        return self.created_at is not None

    def apply(self, entry: Entry) -> None:
        """Take in one more entry. Types this release does not know change nothing."""
        self.seq = entry.seq
        self.updated_at = entry.at
        change = self.CHANGES.get(entry.type)
        if change is not None:
            change(self, entry.body, entry.at)

    def _created(self, body: dict[str, Any], at: datetime) -> None:
        self.goal, self.agent = body["goal"], body.get("agent")
        self.created_at = at

    def _resumed(self, body: dict[str, Any], _at: datetime) -> None:
        self.agent = body.get("agent") or self.agent
        self.status, self.error = OPEN, None

    def _planned(self, body: dict[str, Any], _at: datetime) -> None:
        self.plan = body["steps"]

    def _step(self, body: dict[str, Any], _at: datetime) -> None:
        self.results[body["name"]] = body["result"]

    def _decided(self, body: dict[str, Any], _at: datetime) -> None:
        self.decisions.append(Decision(body["decision"], body.get("because")))

    def _discovered(self, body: dict[str, Any], _at: datetime) -> None:
        self.discoveries.append(body["discovery"])

    def _stopped(self, body: dict[str, Any], _at: datetime) -> None:
        self.error = body["error"]

    def _finished(self, body: dict[str, Any], _at: datetime) -> None:
        self.status, self.outcome, self.error = DONE, body["outcome"], None

    def _failed(self, body: dict[str, Any], _at: datetime) -> None:
        self.status, self.error = FAILED, body["error"]

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
            results=fresh(self.results),
            decisions=list(self.decisions),
            discoveries=list(self.discoveries),
            created_at=self.created_at,
            updated_at=self.updated_at,
        )

    # What each type of entry changes.
    CHANGES: ClassVar[dict[str, Callable[[TaskState, Any, datetime], None]]] = {
        CREATED: _created,
        RESUMED: _resumed,
        PLANNED: _planned,
        STEP: _step,
        DECIDED: _decided,
        DISCOVERED: _discovered,
        STOPPED: _stopped,
        FINISHED: _finished,
        FAILED: _failed,
    }


def item_name(item: Any) -> str:
    """A planned step's name: the item itself, or its "name"."""
    return item if isinstance(item, str) else str(item["name"])


def numbered(name: str, seen: dict[str, int]) -> str:
    """*name* the first time, then name#2, name#3, and so on; never one that was given before."""
    found = name
    while found in seen:
        seen[name] += 1
        found = f"{name}#{seen[name]}"
    seen[found] = 1
    return found
