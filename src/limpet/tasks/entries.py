"""The vocabulary of a task's journal: types of entries, statuses, labels, names of steps."""

from __future__ import annotations

from typing import Any

__all__ = ["item_name", "numbered", "withdraw"]

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
