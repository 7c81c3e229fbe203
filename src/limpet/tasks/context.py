"""Which task is open and which step is running where code is called; and effects.

An effect is a function that is a step of whatever task is open where it is called. So it can be
given to any framework as a tool. Where none is open, an integration may record it: `recorders`.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, overload

import msgspec

from limpet.backends.logs import warn
from limpet.core.codec import plain
from limpet.core.runtime import run_to_end
from limpet.errors import NotStorable, TaskNotOpen
from limpet.tasks.retry import ASK, VERIFY, InDoubt, Retry, StepPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from limpet.core.scope import Scope
    from limpet.tasks.record import LiveTask
    from limpet.tasks.state import Progress
    from limpet.tasks.task import AsyncTask

__all__ = [
    "Outside",
    "Recorder",
    "StepContext",
    "Turn",
    "current_step",
    "effect",
    "open_task",
    "recorders",
    "running",
    "running_step",
]

P = ParamSpec("P")
R = TypeVar("R")


class StepContext:
    """The step that is running: its idempotency key, and how to report its progress."""

    __slots__ = ("_live", "attempt", "last_progress", "name", "seen")

    def __init__(
        self, live: LiveTask, name: str, attempt: int = 1, last_progress: Progress | None = None
    ) -> None:
        self._live = live
        self.name = name
        #: 1 the first time, then 2, and so on; also in another process.
        self.attempt = attempt
        #: What an earlier attempt had reported, in this process or in one that died.
        self.last_progress = last_progress
        #: The names of steps within it that were given out; see `entries.numbered`.
        self.seen: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"StepContext({self.task_id!r}, {self.name!r}, attempt={self.attempt})"

    @property
    def task_id(self) -> str:
        """The task that it is a step of."""
        return self._live.id

    @property
    def idempotency_key(self) -> str:
        """``tenant:task:incarnation:step``, each escaped. Give it to the API that you call.

        The same on every retry and every machine, and that of no other step: not of another
        tenant's, nor of a task that was deleted and begun anew under the same id.
        """
        return self._live.idempotency_key(self.name)

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
        body = {"name": self.name, "fraction": fraction, "note": note, "data": data}
        self._live.report(self.name, body, now)


class Turn(StepContext):
    """The turn of a planned step, in which it may run. A *brief* one ends when it has."""

    __slots__ = ("brief",)

    def __init__(self, live: LiveTask, name: str, *, brief: bool) -> None:
        super().__init__(live, name)
        self.brief = brief


#: The task that is open here, and the step whose function is running here.
open_task: ContextVar[AsyncTask | None] = ContextVar("limpet_task", default=None)
running_step: ContextVar[StepContext | None] = ContextVar("limpet_step", default=None)


def current_step() -> StepContext:
    """The step whose function is running; `TaskNotOpen` outside of one."""
    found = running_step.get()
    if found is None:
        msg = "No step is running here. Call this within a function that task.step() runs."
        raise TaskNotOpen(msg)
    return found


class running:  # noqa: N801 - reads as a word of the sentence that it is used in
    """Let *step* be the one that is running."""

    __slots__ = ("_step", "_token")

    def __init__(self, step: StepContext) -> None:
        self._step = step

    def __enter__(self) -> None:
        self._token = running_step.set(self._step)

    def __exit__(self, *_: object) -> None:
        running_step.reset(self._token)


# -- effects -----------------------------------------------------------------------------------


class Recorder(Protocol):
    """What records effects, through one runtime: the steps of a task, or what is like a task."""

    def through(self, scope: Scope) -> Recorder:
        """The same, for code that reaches the store through the runtime of *scope*."""

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        policy: StepPolicy,
    ) -> Coroutine[Any, Any, Any]:
        """What *function* returned when it was called as the step *name*, or returns now."""


#: Asked in turn, where no task is open, for what records effects there: integrations add functions
#: that know whether code is run by their framework, on behalf of something that Limpet stores.
recorders: list[Callable[[], tuple[Recorder, Scope] | None]] = []

#: What an effect is where no task is open: an error, or just a call.
Outside = Literal["raise", "call"]


@overload
def effect(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def effect(
    *,
    name: str | None = None,
    key: Callable[..., str] | None = None,
    in_doubt: InDoubt | None = None,
    verify: Callable[[str], Any] | None = None,
    retry: Retry | int | None = None,
    outside: Outside = "raise",
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def effect(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    key: Callable[..., str] | None = None,
    in_doubt: InDoubt | None = None,
    verify: Callable[[str], Any] | None = None,
    retry: Retry | int | None = None,
    outside: Outside = "raise",
) -> Any:
    """Make a function a step of the task that is open where it is called: for an agent's tools.

    A call is known by its arguments, however they are passed, not by its place: a resumed agent
    that makes the same calls in another order gets the recorded answers, and nothing happens twice.
    (The same call a second time in one run is a second step; one within a step is part of that
    step, and in another step another call.) *key* makes the distinction from the arguments, where
    they cannot be stored, or differ and mean the same. *in_doubt*, *verify* and *retry* are those
    of `Task.step`, but for the default: "ask", because an effect must not happen twice. *outside*
    of a task it raises `TaskNotOpen`; with "call" it is then just a call. In a graph of LangGraph's
    with a `LimpetSaver` it needs no task: the thread has it.

    Its result comes back as it is stored, as that of a step: of the type that the function names
    if that is one of JSON's. A dataclass comes back as a dict, and a checker cannot know.

    >>> import limpet
    >>> @limpet.effect
    ... def send(to):
    ...     print("sent to", to)
    >>> with limpet.open("memory:") as store, store.task("t", "Tell them") as task:
    ...     send("alice")
    ...     list(task.results)
    sent to alice
    ['send:eef87b3a8b0c102c']
    """
    if outside not in ("raise", "call"):
        raise ValueError(f"outside is 'raise' or 'call'; not {outside!r}.")
    in_doubt = in_doubt or (ASK if verify is None else VERIFY)
    policy = StepPolicy.of(in_doubt, verify, retry, effect=True)

    def marked(given: Callable[..., Any]) -> Callable[..., Any]:
        return _as_effect(given, policy, name or given.__name__, key, outside)

    return marked if function is None else marked(function)


def _as_effect(
    function: Callable[..., Any],
    policy: StepPolicy,
    name: str,
    key: Callable[..., str] | None,
    outside: Outside,
) -> Callable[..., Any]:
    import inspect  # noqa: PLC0415 - slow to import, and not every program has effects

    from limpet.core.redaction import is_marked  # noqa: PLC0415 - as above

    try:
        # By name, so that f(1) and f(x=1) are the same call.
        bind: Any = inspect.signature(function).bind
    except ValueError:  # some functions that are written in C have no signature
        bind = None

    # What is before the first colon is the effect: "a" for "b:c" is not "a:b" for "c".
    escaped = name.replace("%", "%25").replace(":", "%3A")

    def step_name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if is_marked((args, kwargs)):
            warn(
                "The effect %r is called with arguments in which something was redacted or "
                "forgotten: what goes on from a store does not have what was there.",
                name,
            )
        if key is not None:
            return f"{escaped}:{key(*args, **kwargs)}"
        given = [args, kwargs] if bind is None else bind(*args, **kwargs).arguments
        return f"{escaped}:{_digest(name, given)}"

    # The task may be one of the other sort: an async tool in a task that blocks, or the reverse.
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            found = _find_recorder(name, outside)
            if found is None:
                return await function(*args, **kwargs)
            recorder = found[0].through(found[1].as_async())
            return await recorder.step(step_name(args, kwargs), function, args, kwargs, policy)
    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            found = _find_recorder(name, outside)
            if found is None:
                return function(*args, **kwargs)
            step = found[0].through(found[1].as_sync()).step
            return run_to_end(step(step_name(args, kwargs), function, args, kwargs, policy))

    wrapper.limpet = policy  # type: ignore[attr-defined] # how adapters know an effect
    return wrapper


def _find_recorder(name: str, outside: Outside) -> tuple[Recorder, Scope] | None:
    """What records the effect *name* here, and its store; None if it is just a call."""
    task = open_task.get()
    if task is not None:
        return task.runner, task.scope
    for find in recorders:
        found = find()
        if found is not None:
            return found
    if outside == "raise":
        msg = (
            f"{name} is an effect, and no task is open here, so it would not be recorded. Call it "
            "within `with store.task(…):`, in the same thread or context, or mark it with "
            "limpet.effect(outside='call')."
        )
        raise TaskNotOpen(msg)
    return None


def _digest(name: str, given: Any) -> str:
    """What tells two calls apart: their arguments."""
    import hashlib  # noqa: PLC0415 - slow to import

    try:
        encoded = msgspec.json.encode(plain(given, "arguments"), order="sorted")
    except (NotStorable, TypeError) as error:
        msg = (
            f"The arguments of {name} cannot be stored, so nobody could tell one call from another "
            f"({error}). Say what tells them apart: limpet.effect(key=lambda …: …)."
        )
        raise NotStorable(msg) from error
    return hashlib.sha256(encoded).hexdigest()[:16]
