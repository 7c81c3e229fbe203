"""The checkpoint that people are shown, and the words that a task's journal is written in."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, field

from limpet.core.codec import convert
from limpet.errors import WrongType

__all__ = ["Checkpoint", "Decision"]

# Entry types of a task's journal.
CREATED = "created"
RESUMED = "resumed"
PLANNED = "planned"
REPLANNED = "replanned"
BEGAN = "began"  # a step whose effect must not be doubled is about to run
PROGRESS = "progress"
TRIED = "tried"  # an attempt at a step failed
STEP = "step"
SKIPPED = "skipped"
RESOLVED = "resolved"  # a person has said what became of a step in doubt
WAITING = "waiting"  # also the status
SIGNALLED = "signalled"
DECIDED = "decided"
DISCOVERED = "discovered"
STOPPED = "stopped"  # an error left the task's block; it can be resumed
PAUSED = "paused"  # also the status
CANCELLED = "cancelled"  # also the status
FORKING = "forking"  # what follows is copied from another task; also the status meanwhile
FORKED = "forked"  # all of it is here
REWOUND = "rewound"
FINISHED = "finished"
HANDED = "handed"  # the outcome has been handed on
REMEMBERED = "remembered"  # what was learned is in a memory
FAILED = "failed"  # also the status

# Statuses, by which tasks are listed.
OPEN = "open"
DONE = "done"

# Labels that mean something.
RUN = "run"  # the kind of a submitted task: what workers find it by
DUE = "due"  # when a waiting task is to be woken, in ISO 8601
PARENT = "parent"  # the task of which this one is a step


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
    status: str = OPEN
    outcome: Any = None
    error: str | None = None
    in_doubt: list[str] = field(default_factory=list)
    waiting_for: list[str] = field(default_factory=list)
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


def withdraw(name: str, seen: dict[str, int]) -> None:
    """Let *name*, which `numbered` gave, be given again."""
    seen.pop(name, None)
    base, _, number = name.rpartition("#")
    if base in seen and number.isdecimal():
        seen[base] = min(seen[base], int(number) - 1)
