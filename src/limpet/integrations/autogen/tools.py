"""What ends a run from within a tool; and tools that are effects: steps of the task that is open.

AutoGen makes a text of all that a tool raises, and its model reads it. But that a task waits, is
paused or was taken over says nothing about the tool: the run has to end, and the call to be made
again when the task goes on.
"""

# ruff: noqa: SLF001 - AutoGen has no hook at these places, and a step of a task no other name

from __future__ import annotations

import asyncio
import hashlib
import inspect
import itertools
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from autogen_agentchat.tools._task_runner_tool import TaskRunnerTool
from autogen_core.tools import FunctionTool, StaticWorkbench

from limpet.core.codec import plain
from limpet.errors import StepTimedOut
from limpet.llm.messages.repair import INTERRUPTED
from limpet.tasks.effects import opened
from limpet.tasks.retry import How
from limpet.tasks.steps import NOT_THE_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.integrations.autogen.hooks import Hooks
    from limpet.integrations.autogen.log import Log

__all__ = ["Calling", "as_steps", "calling", "halt_in", "listen", "runners_in", "step_for"]


class Calling:
    """A tool call that is being made: the step it is, if it is one, and what is to end the run."""

    def __init__(self, step: str | None = None) -> None:
        self.step = step
        self.stop: Exception | None = None


#: Names of steps that are taken as they are: a task gives a meaning to some other characters.
_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)

#: The attribute of a function that was put in the place of an effect.
_OURS = "limpet_step"

#: The call that is being made here.
calling: ContextVar[Calling | None] = ContextVar("limpet_autogen_call", default=None)


# -- what ends a run -------------------------------------------------------------------------------


def halt_in(error: BaseException | None) -> Exception | None:
    """What in *error*, or in what it came of, says nothing about the function that raised it."""
    while error is not None:
        if isinstance(error, NOT_THE_STEPS):
            return error
        if isinstance(error, BaseExceptionGroup):
            return next(filter(None, map(halt_in, error.exceptions)), None)
        error = error.__cause__
    return None


def listen(bench: Any, hooks: Hooks) -> None:
    """Hear of what *bench* makes a text of."""
    if not isinstance(bench, StaticWorkbench):
        return  # AutoGen's others run no function of this program
    own: Callable[[Exception], str]

    def heard(error: Exception) -> str:
        call = calling.get()
        if call is not None and call.stop is None:
            call.stop = halt_in(error)
        return own(error)

    own = hooks.put(bench, "_format_errors", heard)


def runners_in(bench: Any) -> list[Any]:
    """The agents and teams that are tools of *bench*."""
    tools = bench._tools if isinstance(bench, StaticWorkbench) else ()
    return [tool._task_runner for tool in tools if isinstance(tool, TaskRunnerTool)]


# -- steps -----------------------------------------------------------------------------------------


def as_steps(bench: Any, hooks: Hooks) -> frozenset[str]:
    """Let the effects among the tools of *bench* be steps by their calls; what they are called."""
    if not isinstance(bench, StaticWorkbench):
        return frozenset()
    found = set()
    for tool in bench._tools:
        function = tool._func if isinstance(tool, FunctionTool) else None
        how = getattr(function, "limpet", None)
        if function is not None and isinstance(how, How):
            if not hasattr(function, _OURS):  # two agents may have the same tool
                hooks.put(tool, "_func", _as_step(function, how))
            renamed = bench._tool_overrides.get(tool.name)
            found |= {tool.name, (renamed and renamed.name) or tool.name}
    return frozenset(found)


def step_for(task: Any, tool: str, call_id: str | None, log: Log) -> dict[str, str]:
    """A step of the open *task* for a call of *tool*; nothing, if none is open."""
    if task is None:
        return {}
    state, begun = task._state, log.steps()
    taken = (state.results, state.in_doubt, state.tried, begun)
    first = name = _named(task, tool, call_id)
    for number in itertools.count(2):  # some models count from one again, or give no ids
        if not any(name in known for known in taken):
            break
        name = f"{first}#{number}"
    return {"task": task.id, "step": name}


def _named(task: Any, tool: str, call_id: str | None) -> str:
    """What a call is to be called as a step, if it is the first of that id."""
    name = f"{tool}:{call_id or ''}"
    if not _ID.fullmatch(name):  # it is a model's, and may be anything
        name = f"{tool}:{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    outer = task._around(name)
    return name if outer is None else f"{outer.name}/{name}"


def _as_step(function: Callable[..., Any], how: How) -> Callable[..., Any]:
    """The effect *function* for AutoGen, which would lose sight of the task in another thread."""
    inner: Any = function.__wrapped__  # type: ignore[attr-defined]

    async def effect(**arguments: Any) -> Any:
        call, task = calling.get(), opened.get()
        if call is None or call.step is None or task is None:
            return await _awaited(function, arguments)
        name, call.step = call.step, None  # what is called within it is another step
        heard, core = _Heard(inner), task._through(task._scope.as_async())
        try:
            # Not by `step`: the same call once more, as by a resume, would be a second step.
            result = await core._run(name, heard.call, (), arguments, how)
        except Exception as error:
            if error is not heard.raised and not isinstance(error, StepTimedOut):
                call.stop = error
            raise
        return INTERRUPTED if name in core._state.skipped else result

    # `__wrapped__` has the source, which AutoGen's ``dump_component`` asks for.
    vars(effect).update({"__wrapped__": function, "limpet": how, _OURS: True})
    return effect


class _Heard:
    """An effect's function that remembers what it has raised: that, and no more, is the model's."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.raised: Exception | None = None
        self._function = function

    async def call(self, **arguments: Any) -> Any:
        """As the function."""
        try:
            return plain(await _awaited(self._function, arguments), "result")
        except Exception as error:
            self.raised = error
            raise


async def _awaited(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """What *function* returns; one that blocks has a thread, as AutoGen gives it one."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    return await asyncio.to_thread(function, **arguments)
