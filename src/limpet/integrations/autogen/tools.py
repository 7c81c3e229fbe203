"""What ends a run from within a tool; and tools that are effects: steps of the task that is open.

AutoGen makes a text of all that a tool raises, and its model reads it. But that a task waits, is
paused or was taken over says nothing about the tool: the run has to end, and the call to be made
again when the task goes on.
"""

# ruff: noqa: SLF001 - AutoGen has no hook at these places

from __future__ import annotations

import asyncio
import hashlib
import inspect
import itertools
import re
from contextlib import aclosing
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from autogen_agentchat.tools._task_runner_tool import TaskRunnerTool
from autogen_core.tools import (
    FunctionTool,
    StaticStreamWorkbench,
    StaticWorkbench,
    TextResultContent,
    ToolResult,
)

from limpet.core.codec import plain
from limpet.errors import StepTimedOut, TaskHalted
from limpet.integrations.autogen.log import as_exception
from limpet.llm.messages.repair import INTERRUPTED
from limpet.tasks.context import open_task
from limpet.tasks.retry import StepPolicy
from limpet.tasks.steps import ABOUT_THE_TASK

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from limpet.integrations.autogen.hooks import Hooks
    from limpet.integrations.autogen.log import Log

__all__ = [
    "Calling",
    "as_steps",
    "calling",
    "halt_in",
    "listen",
    "listen_to_agent",
    "runners_in",
    "step_for",
]


class Calling:
    """A tool call that is being made: the step it is, if it is one, and what is to end the run."""

    def __init__(self, step: str | None = None) -> None:
        self.step = step
        self.stop: BaseException | None = None


#: Names of steps that are taken as they are: a task gives a meaning to some other characters.
_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)

#: The attribute of a function that was put in the place of an effect.
_OURS = "limpet_step"

#: The call that is being made here.
calling: ContextVar[Calling | None] = ContextVar("limpet_autogen_call", default=None)


# -- what ends a run -------------------------------------------------------------------------------


def halt_in(error: BaseException | None) -> BaseException | None:
    """What in *error*, or in what it came of, says nothing about the function that raised it."""
    while error is not None:
        if isinstance(error, ABOUT_THE_TASK):
            return error
        if isinstance(error, BaseExceptionGroup):
            return next(filter(None, map(halt_in, error.exceptions)), None)
        error = error.__cause__
    return None


def listen(bench: Any, hooks: Hooks) -> None:
    """Hear of what *bench* makes a text of; and make one of what it would let pass.

    For what leaves a tool call AutoGen would wait for ever.
    """
    if not isinstance(bench, StaticWorkbench):
        return  # AutoGen's others run no function of this program
    own: Callable[[Exception], str]
    own_call: Callable[..., Any]
    own_stream: Callable[..., Any]

    def heard(error: Exception) -> str:
        call = calling.get()
        if call is not None and call.stop is None:
            call.stop = halt_in(error)
        return own(error)

    async def call_tool(name: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return await own_call(name, *args, **kwargs)
        except TaskHalted as halt:
            return _stopped(name, halt)

    async def call_tool_stream(name: str, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        try:
            async with aclosing(own_stream(name, *args, **kwargs)) as pieces:
                async for piece in pieces:
                    yield piece
        except TaskHalted as halt:
            yield _stopped(name, halt)

    own = hooks.put(bench, "_format_errors", heard)
    own_call = hooks.put(bench, "call_tool", call_tool)
    if isinstance(bench, StaticStreamWorkbench):
        own_stream = hooks.put(bench, "call_tool_stream", call_tool_stream)


def listen_to_agent(agent: Any, hooks: Hooks) -> None:
    """The same for what leaves an *agent* that is a tool, or part of a team that is one."""
    own: Callable[..., Any]

    async def on_messages_stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        try:
            async with aclosing(own(*args, **kwargs)) as items:
                async for item in items:
                    yield item
        except TaskHalted as halt:
            call = calling.get()
            if call is not None:
                call.stop = call.stop or halt
            raise as_exception(halt) from halt

    own = hooks.put(agent, "on_messages_stream", on_messages_stream)


def _stopped(name: str, halt: TaskHalted) -> ToolResult:
    """The result of a call in which the task was halted, which nobody hears of: the run ends."""
    call = calling.get()
    if call is None:
        raise halt
    call.stop = call.stop or halt
    return ToolResult(name=name, result=[TextResultContent(content=str(halt))], is_error=True)


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
        policy = getattr(function, "limpet", None)
        if function is not None and isinstance(policy, StepPolicy):
            if not hasattr(function, _OURS):  # two agents may have the same tool
                hooks.put(tool, "_func", _as_step(function, policy))
            renamed = bench._tool_overrides.get(tool.name)
            found |= {tool.name, (renamed and renamed.name) or tool.name}
    return frozenset(found)


def step_for(task: Any, tool: str, call_id: str | None, log: Log) -> dict[str, str]:
    """A step of the open *task* for a call of *tool*; nothing, if none is open."""
    if task is None:
        return {}
    state, begun = task.runner.live.state, log.steps()
    taken = (state.results, state.calls, state.tried, begun)
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
    outer = task.runner.live.around(name)
    return name if outer is None else f"{outer.name}/{name}"


def _as_step(function: Callable[..., Any], policy: StepPolicy) -> Callable[..., Any]:
    """The effect *function* for AutoGen, which would lose sight of the task in another thread."""
    inner: Any = function.__wrapped__  # type: ignore[attr-defined]

    async def effect(**arguments: Any) -> Any:
        call, task = calling.get(), open_task.get()
        if call is None or call.step is None or task is None:
            return await _awaited(function, arguments)
        name, call.step = call.step, None  # what is called within it is another step
        heard, runner = _Heard(inner), task.runner.through(task.scope.as_async())
        try:
            # Not by `step`: the same call once more, as by a resume, would be a second step.
            result = await runner.run(name, heard.call, (), arguments, policy)
        except (Exception, TaskHalted) as error:
            if error is not heard.raised and not isinstance(error, StepTimedOut):
                call.stop = error
            raise
        return INTERRUPTED if name in runner.live.state.skipped else result

    # `__wrapped__` has the source, which AutoGen's ``dump_component`` asks for.
    vars(effect).update({"__wrapped__": function, "limpet": policy, _OURS: True})
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
