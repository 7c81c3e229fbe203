"""The vocabulary of a task's journal: types of entries, statuses, labels, names, errors."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from limpet.core.calls import BEGAN, RESOLVED
from limpet.core.ids import name_fields
from limpet.errors import NotStorable, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "BEGAN",
    "RESOLVED",
    "describe",
    "error_path",
    "failure",
    "flatten",
    "frames",
    "is_composed",
    "item_name",
    "numbered",
    "one_line",
    "text",
    "withdraw",
]

#: What journals of tasks are called; and those of their large results, which have the same ids.
KIND = "task"
RESULTS = "task-result"

name_fields(
    KIND,
    *("name", "id", "step", "given", "agent", "kind", "parent", "signal", "namespace", "from"),
    *("until", "change", "besides", "changes", "forget", "calls", "plan", "steps", "by", "policy"),
)

# Entry types of a task's journal; `BEGAN` and `RESOLVED` are those of every journal that has calls.
CREATED = "created"
RESUMED = "resumed"
PLANNED = "planned"
REPLANNED = "replanned"
PROGRESS = "progress"
TRIED = "tried"  # an attempt at a step failed
STEP = "step"
SKIPPED = "skipped"
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
HANDED = "handed"  # the on_finish callbacks have been called
REMEMBERED = "remembered"  # what was learned is in a memory
FAILED = "failed"  # also the status

# Statuses, by which tasks are listed.
OPEN = "open"
DONE = "done"
HALTED = (WAITING, PAUSED, CANCELLED)

# Labels that mean something.
RUN = "run"  # the kind of a submitted task: what workers find it by
DUE = "due"  # when a waiting task is to be woken, in ISO 8601
PARENT = "parent"  # the task of which this one is a step


# -- names and texts -----------------------------------------------------------------------------


def item_name(item: Any) -> str:
    """A planned step's name: the item itself, or its "name"."""
    return item if isinstance(item, str) else str(item["name"])


def numbered(
    name: str, seen: dict[str, int], taken: Callable[[str], bool] = lambda _name: False
) -> str:
    """*name* the first time, then name#2, name#3, and so on; never one that was given before.

    Nor one that is *taken*: by a step that the program calls otherwise.
    """
    found = name
    while found in seen or taken(found):
        seen[name] = seen.get(name, 1) + 1
        found = f"{name}#{seen[name]}"
    seen[found] = 1
    return found


def is_composed(name: str) -> bool:
    """Whether *name* may be a step's within another, or have a number: or was given just so."""
    return "/" in name or "#" in name


def withdraw(name: str, seen: dict[str, int]) -> None:
    """Let *name*, which `numbered` gave, be given again."""
    seen.pop(name, None)
    base, _, number = name.rpartition("#")
    if base in seen and number.isdecimal():
        seen[base] = min(seen[base], int(number) - 1)


def text(value: str, what: str) -> str:
    """*value*, if it is text."""
    if not isinstance(value, str):
        raise TypeError(f"A {what} is text, not a {type(value).__name__}.")
    return value


def one_line(value: object, most: int = 80) -> str:
    """*value* on one line that is not long, with nothing in it that a terminal obeys."""
    line = " ".join(str(value).split())
    line = "".join(char if char.isprintable() else "\ufffd" for char in line[: most + 1])
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


@contextmanager
def error_path(inner: str, outer: str) -> Iterator[None]:
    """Let an error about a value in an entry, at *inner*, call it what the user does: *outer*."""
    try:
        yield
    except (NotStorable, TooLarge) as error:
        named = error.under(inner, outer).under(inner.partition("[")[0], outer)
        raise named from error.__cause__


# -- errors, as they are recorded ----------------------------------------------------------------

#: The innermost frames that are named: a function that calls itself has a thousand.
FRAMES = 20

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: What is in the names of files that are not the user's own.
_INSTALLED = ("site-packages", "dist-packages", os.path.dirname(os.__file__) + os.sep, "<frozen ")


def failure(error: object) -> dict[str, str]:
    """What an entry says of an *error*, and in which line of the user's own code it arose."""
    found = _frames(error, set()) if isinstance(error, BaseException) else []
    own = [frame for frame in found if not any(part in frame[0] for part in _INSTALLED)]
    place = {"place": "{}:{}".format(*(own or found)[-1])} if found else {}
    return {"error": describe(error), **place}


def describe(error: object) -> str:
    """An *error* in a line that can be stored."""
    try:
        found = str(error)
    except Exception:  # noqa: BLE001 - an error of the user's, which cannot describe itself
        found = ""
    if isinstance(error, BaseException):
        found = f"{type(error).__name__}: {found}".removesuffix(": ")
    return found.encode(errors="backslashreplace").decode()  # file names may have half a character


def frames(error: BaseException) -> tuple[str, ...]:
    """Where *error* comes from, the innermost place last: files, lines, functions; no values."""
    return tuple(f"{file}:{line} in {function}" for file, line, function in _frames(error, set()))


def _frames(error: BaseException, seen: set[int]) -> list[tuple[str, int, str]]:
    """What *error* was raised from first, then its own frames, then those of a group's parts."""
    if id(error) in seen:
        return []
    seen.add(id(error))
    found = [] if error.__cause__ is None else _frames(error.__cause__, seen)
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(_OURS):  # ours say nothing to people
            # A file's name may be no Unicode.
            file = code.co_filename.encode(errors="backslashreplace").decode()
            found.append((file, trace.tb_lineno, code.co_qualname))
        trace = trace.tb_next
    for part in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        found += _frames(part, seen)
    return found[-FRAMES:]


def flatten(error: BaseException) -> list[BaseException]:
    """The errors that *error* is: those of a group, as a TaskGroup raises it, one by one."""
    if isinstance(error, BaseExceptionGroup):
        return [one for part in error.exceptions for one in flatten(part)]
    return [error]
