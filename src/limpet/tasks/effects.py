"""Effects: functions that are steps of whatever task is open where they are called."""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

import msgspec

from limpet.core.codec import plain
from limpet.core.runtime import run_to_end
from limpet.errors import NotStorable, TaskNotOpen
from limpet.tasks.retry import ASK, VERIFY, How, InDoubt, Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.tasks.steps import Steps

__all__ = ["Outside", "effect", "opened"]

P = ParamSpec("P")
R = TypeVar("R")

#: What an effect is where no task is open: an error, or just a call.
Outside = Literal["raise", "call"]

#: The task that is open here.
opened: ContextVar[Steps | None] = ContextVar("limpet_task", default=None)


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
    of a task it raises `TaskNotOpen`; with "call" it is then just a call.

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
    how = How.of(in_doubt or (ASK if verify is None else VERIFY), verify, retry, effect=True)

    def marked(given: Callable[..., Any]) -> Callable[..., Any]:
        return _marked(given, how, name, key, outside)

    return marked if function is None else marked(function)


def _marked(
    function: Callable[..., Any],
    how: How,
    name: str | None,
    key: Callable[..., str] | None,
    outside: Outside,
) -> Callable[..., Any]:
    """*function* as an effect."""
    import inspect  # noqa: PLC0415 - slow to import, and not every program has effects

    called_ = name or function.__name__

    given = _given(function)

    def step_name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return f"{called_}:{key(*args, **kwargs) if key else _digest(called_, given(args, kwargs))}"

    def task() -> Steps | None:
        found = opened.get()
        if found is None and outside == "raise":
            msg = (
                f"{called_} is an effect, and no task is open here, so it would not be recorded. "
                "Call it within `with store.task(…):`, in the same thread or context, or mark it "
                "with limpet.effect(outside='call')."
            )
            raise TaskNotOpen(msg)
        return found

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            found = task()
            if found is None:
                return await function(*args, **kwargs)
            return await found._through(found._scope.as_async())._effect(  # noqa: SLF001 - a part of the same noun
                step_name(args, kwargs), function, args, kwargs, how
            )
    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            found = task()
            if found is None:
                return function(*args, **kwargs)
            core = found._through(found._scope.as_sync())  # noqa: SLF001 - a part of the same noun
            return run_to_end(core._effect(step_name(args, kwargs), function, args, kwargs, how))  # noqa: SLF001

    wrapper.limpet = how  # type: ignore[attr-defined] # how adapters know an effect
    return wrapper


def _given(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a call of *function* is given: by name, so that ``f(1)`` and ``f(x=1)`` are the same."""
    import inspect  # noqa: PLC0415 - as above

    try:
        signature = inspect.signature(function)
    except ValueError:  # some that are written in C do not tell
        return lambda args, kwargs: [args, kwargs]
    return lambda args, kwargs: signature.bind(*args, **kwargs).arguments


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
