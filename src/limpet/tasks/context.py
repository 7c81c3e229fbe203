"""Which task is open and which step is running, wherever the code that asks was called from."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from limpet.errors import TaskNotOpen

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.tasks.state import Progress

__all__ = ["StepContext", "Turn", "current_step", "running", "within"]


class StepContext:
    """The step that is running: what to call it elsewhere, and how to say how far it has come."""

    __slots__ = ("_report", "attempt", "halted", "last_progress", "name", "seen", "task_id")

    def __init__(
        self,
        task_id: str,
        name: str,
        attempt: int = 1,
        last_progress: Progress | None = None,
        report: Callable[[str, dict[str, Any], bool], None] | None = None,
    ) -> None:
        self.task_id = task_id
        self.name = name
        #: 1 the first time, then 2, and so on; also in another process.
        self.attempt = attempt
        #: What an earlier attempt had reported, in this process or in one that died.
        self.last_progress = last_progress
        self.seen: dict[str, int] = {}
        #: What was to leave the step's function, and perhaps did not: its task stands still.
        self.halted: Exception | None = None
        self._report = report

    def __repr__(self) -> str:
        return f"StepContext({self.idempotency_key!r}, attempt={self.attempt})"

    @property
    def idempotency_key(self) -> str:
        """``task:step``: the same on every retry and every machine. Give it to the API you call."""
        return f"{self.task_id}:{self.name}"

    def progress(
        self,
        fraction: float | None = None,
        note: str = "",
        data: Any = None,
        *,
        now: bool = False,
    ) -> None:
        """Say how far the step has come: it is stored at the next heartbeat, with the lease.

        If the step is cut short, `last_progress` of the next attempt has it. *now* stores it before
        the call returns: for what must not be done again, such as a page that was paid for.
        """
        if fraction is not None and not 0 <= fraction <= 1:
            raise ValueError(f"A fraction is a number from 0 to 1; not {fraction!r:.80}.")
        if self._report is not None:
            body = {"name": self.name, "fraction": fraction, "note": note, "data": data}
            self._report(self.name, body, now)


class Turn(StepContext):
    """The turn of a planned step, in which it may run. A *brief* one ends when it has."""

    __slots__ = ("brief",)

    def __init__(self, task_id: str, name: str, *, brief: bool) -> None:
        super().__init__(task_id, name)
        self.brief = brief


_step: ContextVar[StepContext | None] = ContextVar("limpet_step", default=None)


def current_step() -> StepContext:
    """The step whose function is running; `TaskNotOpen` outside of one."""
    found = _step.get()
    if found is None:
        msg = "No step is running here. Call this within a function that task.step() runs."
        raise TaskNotOpen(msg)
    return found


def running(task_id: str) -> StepContext | None:
    """The step of this task that is running here, if one is."""
    found = _step.get()
    return found if found is not None and found.task_id == task_id else None


class within:  # noqa: N801 - reads as a word of the sentence that it is used in
    """Let *step* be the current one."""

    __slots__ = ("_step", "_token")

    def __init__(self, step: StepContext) -> None:
        self._step = step

    def __enter__(self) -> None:
        self._token = _step.set(self._step)

    def __exit__(self, *_: object) -> None:
        _step.reset(self._token)
