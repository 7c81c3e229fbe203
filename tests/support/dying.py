"""A process that dies in the middle of a task, played within the test's own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Calls", "Killed", "die", "dying", "ended_by", "killed"]


class Killed(BaseException):
    """The end of a process: nothing of it is recorded."""


class Calls:
    """A function that notes how it was called, and returns or raises what it is told to."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results)
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *args: Any) -> Any:
        """As it was told."""
        self.calls.append(args)
        result = self.results.pop(0) if self.results else len(self.calls)
        if isinstance(result, BaseException):
            raise result
        return result


def die(task: Any) -> None:
    """Let go of *task* as the end of its process would, and leave its block."""
    task.runner.live.lock.release_now()
    raise Killed


def dying(task: Any, function: Callable[..., Any] = lambda: None) -> Callable[..., Any]:
    """A step's body that does its work, and then the process dies."""

    def body(*args: Any) -> None:
        function(*args)
        die(task)

    return body


@contextmanager
def ended_by(error: type[BaseException], opened: Any, match: str | None = None) -> Iterator[Any]:
    """A block that does not end well."""
    with pytest.raises(error, match=match), opened as inner:
        yield inner


def killed() -> Any:
    """The block ends with the process."""
    return pytest.raises(Killed)
