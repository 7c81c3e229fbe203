"""What people are told of a task that went wrong, or that somebody else has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from limpet.backends.decide import holder_for_people
from limpet.core.leases import is_on_this_machine, is_this_process

if TYPE_CHECKING:
    from limpet.errors import LeaseHeld

__all__ = ["described", "frames", "held_by", "place", "single"]

#: The innermost frames that are told of: a function that calls itself has a thousand.
FRAMES = 20

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: What is in the names of files that are not the user's own.
_INSTALLED = ("site-packages", "dist-packages", os.path.dirname(os.__file__) + os.sep, "<frozen ")


def held_by(task_id: str, error: LeaseHeld) -> str:
    """Who has the task, and what that means for whoever wants it."""
    held = f"Task {task_id!r} is held by {holder_for_people(error.holder)}"
    if is_this_process(error.holder):
        return f"{held}: this process has it open. Go on with that one, or close it first."
    now = f"(now until {error.until:%Y-%m-%d %H:%M:%S} UTC)"
    if is_on_this_machine(error.holder):
        return (
            f"{held}. That process is at work, and renews its lease {now}: store.task(…, wait=60) "
            "waits for it. If it dies, the task is free at once."
        )
    return (
        f"{held}, which renews its lease while it works {now}: store.task(…, wait=60) waits for "
        "it. If it has died, the task is free when that lease ends."
    )


def frames(error: BaseException) -> tuple[str, ...]:
    """Where *error* comes from, the innermost place last: files, lines, functions; no values."""
    return tuple(f"{file}:{line} in {function}" for file, line, function in _frames(error, set()))


def place(error: object) -> dict[str, str]:
    """File and line of the innermost frame in the user's own code, for the record."""
    found = _frames(error, set()) if isinstance(error, BaseException) else []
    own = [frame for frame in found if not any(part in frame[0] for part in _INSTALLED)]
    return {"place": "{}:{}".format(*(own or found)[-1])} if found else {}


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


def single(error: BaseException) -> list[BaseException]:
    """The errors that *error* is: those of a group, as a TaskGroup raises it, one by one."""
    if isinstance(error, BaseExceptionGroup):
        return [one for part in error.exceptions for one in single(part)]
    return [error]


def described(error: object) -> str:
    """An *error* in a line that can be stored."""
    try:
        found = str(error)
    except Exception:  # noqa: BLE001 - an error of the user's, which cannot tell of itself
        found = ""
    if isinstance(error, BaseException):
        found = f"{type(error).__name__}: {found}".removesuffix(": ")
    return found.encode(errors="backslashreplace").decode()  # file names may have half a character
