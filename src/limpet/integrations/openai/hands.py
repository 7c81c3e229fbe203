"""Running the tools that a model calls: each once, with every result durable when it is there."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import msgspec

from limpet.conversations.transcript import MESSAGE
from limpet.core.codec import plain
from limpet.core.runtime import AsyncRuntime
from limpet.errors import CallsInDoubt, StepTimedOut
from limpet.integrations.openai.floor import BEGUN, DROPPED
from limpet.integrations.openai.tools import BadArguments
from limpet.llm.messages.repair import INTERRUPTED
from limpet.tasks.context import open_task
from limpet.tasks.entries import describe
from limpet.tasks.retry import StepPolicy
from limpet.tasks.steps import ABOUT_THE_TASK

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from limpet.core.runtime import Runtime
    from limpet.integrations.openai.floor import Floor, Turn
    from limpet.integrations.openai.tools import Tool
    from limpet.integrations.openai.wire import Call

    Entries = list[tuple[str, Any]]

__all__ = ["NOT_RUN", "CallsInDoubt", "Hands"]

#: What a model reads about a call that came to nothing because the user went on.
NOT_RUN = "[limpet: this call was interrupted before it was run. It had no effect.]"

#: How a tool that says nothing about itself comes back when it is in doubt, as a step of a task.
_IN_DOUBT = {"stub": "skip", "drop": "skip", "raise": "ask"}


class Hands:
    """The tools of a chat."""

    def __init__(self, port: Runtime, tools: dict[str, Tool], task: Any, repair: str) -> None:
        self.tools = tools
        self._runtime = port
        self._at_once = isinstance(port, AsyncRuntime)
        self._task = getattr(task, "_core", task)
        self._repair = repair
        for tool in tools.values():
            if tool.awaits and not self._at_once:
                msg = (
                    f"The tool {tool.name!r} is async, and this store is not. Open the store with "
                    "limpet.open_async(), or pass a plain function."
                )
                raise TypeError(msg)

    # -- what is in doubt ------------------------------------------------------------------------

    def sorted(self, turn: Turn, ours: Iterable[str] = ()) -> tuple[list[Call], list[Call]]:
        """The calls of *turn* that are in doubt, and those that may be run.

        In doubt is a call that was begun, by somebody who is no more, and that must not run twice.
        """
        begun = turn.begun - set(ours)
        doubtful = [call for call in turn.pending if call.id in begun and not self._again(call)]
        return doubtful, [call for call in turn.pending if call not in doubtful]

    def _again(self, call: Call) -> bool:
        """Whether *call* may run a second time."""
        tool = self.tools.get(call.name)
        return tool is not None and (tool.idempotent or self._task_of(tool) is not None)

    async def leave(self, turn: Turn) -> Entries:
        """What is recorded of the calls of a *turn* that nobody goes on with."""
        doubtful, others = self.sorted(turn)
        entries = self.repairs(doubtful)
        for call in others:
            last = INTERRUPTED if call.id in turn.begun else NOT_RUN
            entries.append((MESSAGE, call.answered(await self._recorded(call) or last)))
        return entries

    async def _recorded(self, call: Call) -> str | None:
        """What came of *call*, if a task knows."""
        tool = self.tools.get(call.name)
        task = tool and self._task_of(tool)
        name = f"{call.name}:{call.id}"
        if not task:
            return None
        state = task.runner.live.state
        if name not in state.results or name in state.skipped:
            return None
        return self.worded(await task.load(name))

    def repairs(self, doubtful: list[Call]) -> Entries:
        """What is recorded in place of what came of them."""
        if not doubtful:
            return []
        if self._repair == "raise":
            raise _in_doubt(doubtful)
        if self._repair == "drop":
            return [(DROPPED, {"calls": [call.id for call in doubtful]})]
        return [(MESSAGE, call.answered(INTERRUPTED)) for call in doubtful]

    # -- running ---------------------------------------------------------------------------------

    def first(self, calls: list[Call]) -> list[str]:
        """Which of *calls*, that are just being stored, are to be marked as begun with that."""
        return [call.id for call in (calls if self._at_once else calls[:1]) if self._marked(call)]

    def _marked(self, call: Call) -> bool:
        """Whether its beginning is durable before it begins: of all but those that do nothing.

        That costs no write of its own, and holds for whoever goes on, though he may have no task.
        """
        return call.name in self.tools

    async def run(self, floor: Floor, turn: Turn, ours: set[str]) -> None:
        """Run what is to be run of *turn*. *ours* are calls whose mark we have just written."""
        doubtful, ready = self.sorted(turn, ours)
        entries = self.repairs(doubtful)
        if not self._at_once:
            await self._in_turn(floor, ready, ours, entries)
            return
        begun = [call.id for call in ready if self._marked(call) and call.id not in ours]
        if begun:
            entries.append((BEGUN, {"calls": begun}))
        if entries:
            await floor.write(*entries)
        await _together([self._one(floor, call) for call in ready])

    async def _in_turn(
        self, floor: Floor, ready: list[Call], ours: set[str], entries: Entries
    ) -> None:
        """One after the other. With the result of one goes the mark of the next."""
        for call in ready:
            if self._marked(call) and call.id not in ours:
                entries.append((BEGUN, {"calls": [call.id]}))
            if entries:
                await floor.write(*entries)
            with floor.running():
                entries = [(MESSAGE, call.answered(await self._outcome(call)))]
        if entries:
            await floor.write(*entries)

    async def _one(self, floor: Floor, call: Call) -> None:
        with floor.running():
            outcome = await self._outcome(call)
        await floor.write((MESSAGE, call.answered(outcome)))

    async def _outcome(self, call: Call) -> str:
        """What the model is told: the result, or what went wrong, as data."""
        tool = self.tools.get(call.name)
        if tool is None:
            there = ", ".join(self.tools) or "none"
            return _error(f"There is no tool {call.name!r}. The tools are: {there}.")
        try:
            arguments = tool.arguments(call.arguments)
        except BadArguments as error:
            return _error(f"{call.name} cannot be called like this: {error}")
        heard = _Heard(_inner(tool))
        try:
            return self.worded(await self._perform(tool, call, heard.function, arguments))
        except ABOUT_THE_TASK:
            raise
        except Exception as error:
            if error is not heard.raised and not isinstance(error, StepTimedOut):
                raise
            if heard.returned:
                # A model that took this for a failure would do it again.
                return _error(f"{call.name} has run, but what it returned cannot be told: {error}")
            return _error(describe(error))

    async def _perform(
        self, tool: Tool, call: Call, function: Callable[..., Any], arguments: dict[str, Any]
    ) -> Any:
        task = self._task_of(tool)
        if task is None:
            return await self._runtime.invoke(function, **arguments)
        name = f"{tool.name}:{call.id}"
        # Not by `step`: a second call under the same name, as by resume(), would be a second step.
        result = await task.runner.run(name, function, (), arguments, self._step_policy(tool))
        skipped = name in task.runner.live.state.skipped  # what a result cannot say
        return INTERRUPTED if skipped else result

    def _step_policy(self, tool: Tool) -> StepPolicy:
        """How a call of *tool* is run as a step."""
        policy = "retry" if tool.idempotent else _IN_DOUBT[self._repair]
        return _effect(tool) or StepPolicy.of(policy)

    def _task_of(self, tool: Tool) -> Any:
        """The task that a call of *tool* is a step of: the chat's, or for effects any open one."""
        return self._task or (open_task.get() if _effect(tool) else None)

    def worded(self, result: Any) -> str:
        """A tool's result as text: JSON, if it is not text."""
        if isinstance(result, str):
            return result
        return msgspec.json.encode(plain(result, "result")).decode()


class _Heard:
    """A tool's function that remembers what it has raised: that, and no more, is for the model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.raised: Exception | None = None
        self.returned = False
        self._function = function
        awaits = inspect.iscoroutinefunction(function)
        self.function: Callable[..., Any] = self._awaited if awaits else self._called

    def _called(self, **arguments: Any) -> Any:
        try:
            result = self._function(**arguments)
            return result if hasattr(result, "__await__") else self._plain(result)
        except StopIteration as error:  # which no coroutine lets through
            self.raised = RuntimeError("the tool raised StopIteration")
            raise self.raised from error
        except Exception as error:
            self.raised = error
            raise

    async def _awaited(self, **arguments: Any) -> Any:
        try:
            return self._plain(await self._function(**arguments))
        except Exception as error:
            self.raised = error
            raise

    def _plain(self, result: Any) -> Any:
        self.returned = True
        return plain(result, "result")


def _effect(tool: Tool) -> StepPolicy | None:
    """The settings of `limpet.effect`, if it is one."""
    found = getattr(tool.function, "limpet", None)
    return found if isinstance(found, StepPolicy) else None


def _inner(tool: Tool) -> Callable[..., Any]:
    """The function itself: that it is an effect is known, and once a step is enough."""
    return tool.function.__wrapped__ if _effect(tool) else tool.function  # type: ignore[attr-defined]


def _error(what: str) -> str:
    return msgspec.json.encode({"error": what}).decode()


def _in_doubt(calls: list[Call]) -> CallsInDoubt:
    names = ", ".join(f"{call.name} ({call.id})" for call in calls)
    msg = (
        f"Nobody knows whether these tool calls took effect before their process ended: {names}. "
        "Find out, then say so: resolve(call_id, result); or let the model be told that it is not "
        'known: repair="stub".'
    )
    return CallsInDoubt(msg, calls)


async def _together(runs: list[Coroutine[Any, Any, None]]) -> None:
    """All at once; when one of them fails, none is left running."""
    import asyncio  # noqa: PLC0415 - sync programs never pay for it

    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
