"""Running the tools that a model calls: each once, with every result durable when it is there.

That a call begins is recorded before it does, and so is in doubt if its process dies. What happens
then is what the tool, the chat or a person says: see `ToolRunner.sort`.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from limpet.conversations.transcript import MESSAGE
from limpet.core.calls import BEGAN, SKIPPED, Call
from limpet.core.codec import plain
from limpet.core.redaction import FORGOTTEN
from limpet.errors import CallsInDoubt, Conflict, StepTimedOut
from limpet.integrations.openai.tools import BadArguments
from limpet.integrations.openai.turn import DROPPED
from limpet.llm.messages.repair import INTERRUPTED, REDACTED
from limpet.tasks.context import open_task
from limpet.tasks.entries import describe
from limpet.tasks.retry import ASK, RETRY, StepPolicy
from limpet.tasks.steps import ABOUT_THE_TASK, INTERRUPTS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from limpet.core.scope import Scope
    from limpet.integrations.openai.apis import ToolCall
    from limpet.integrations.openai.tools import Tool
    from limpet.integrations.openai.turn import Turn, TurnLock
    from limpet.tasks.task import AsyncTask

    Entries = list[tuple[str, Any]]

__all__ = ["IN_DOUBT", "NOT_RUN", "ToolRunner"]

#: What a model reads about a call that came to nothing because the user went on.
NOT_RUN = "[limpet: this call was interrupted before it was run. It had no effect.]"

#: What may happen with a call in doubt, as for a step of a task. There is nothing to verify by.
IN_DOUBT = ("skip", ASK, RETRY)


class ToolRunner:
    """Runs the tools of a chat.

    *in_doubt* is for tools that say nothing about themselves; with *drop*, the model is not told of
    a call that was skipped, but never sees that it made it.
    """

    def __init__(
        self,
        scope: Scope,
        conversation_id: str,
        tools: dict[str, Tool],
        *,
        task: AsyncTask | None,
        in_doubt: str,
        drop: bool,
    ) -> None:
        self.tools = tools
        self._scope = scope
        self._conversation_id = conversation_id
        self._task = task
        self._in_doubt = in_doubt
        self._drop = drop
        for tool in tools.values():
            if tool.awaits and scope.is_sync:
                msg = (
                    f"The tool {tool.name!r} is async, and this store is not. Open the store with "
                    "limpet.open_async(), or pass a plain function."
                )
                raise TypeError(msg)

    # -- what is in doubt ------------------------------------------------------------------------

    def sort(self, turn: Turn, lock: TurnLock) -> tuple[list[ToolCall], Entries]:
        """The pending calls of *turn* that are to be run, and what is recorded of the others.

        In doubt is a call that began under another lease than ours, unless a person has resolved
        it or it may run again. `CallsInDoubt`, if a person is to be asked.
        """
        ready: list[ToolCall] = []
        doubtful: list[ToolCall] = []
        entries: Entries = []
        for call in turn.pending:
            began, resolution = turn.calls.open.get(call.id), turn.resolutions.get(call.id)
            tool = self.tools.get(call.name)
            if resolution is not None and resolution.how != RETRY:
                text = SKIPPED if resolution.how == "skip" else as_text(resolution.result)
                entries.append((MESSAGE, call.answer(text)))
            elif began is None or began.epoch == lock.epoch:
                ready.append(call)
            elif tool and (self._task_for(tool) or self._policy(tool).in_doubt == RETRY):
                ready.append(call)  # a task has rules of its own
            else:
                doubtful.append(call)
        if doubtful and self._in_doubt == ASK:
            names = ", ".join(f"{call.name} ({call.id})" for call in doubtful)
            msg = (
                f"Nobody knows whether these tool calls in conversation {self._conversation_id!r} "
                f"took effect before their process ended: {names}. Find out, then say so: "
                "chat.resolve(call_id, 'done' | 'retry' | 'skip'); or let the model be told that "
                "it is not known: in_doubt='skip'."
            )
            raise CallsInDoubt(msg, doubtful)
        if doubtful and self._drop:
            entries.append((DROPPED, {"calls": [call.id for call in doubtful]}))
        else:
            entries += [(MESSAGE, call.answer(INTERRUPTED)) for call in doubtful]
        return ready, entries

    async def leave(self, turn: Turn, lock: TurnLock) -> Entries:
        """What is recorded of the calls of a *turn* that nobody goes on with."""
        ready, entries = self.sort(turn, lock)
        for call in ready:
            began = call.id in turn.calls or call.id in turn.resolutions
            text = INTERRUPTED if began else NOT_RUN
            tool = self.tools.get(call.name)
            task = self._task_for(tool) if tool else None
            if task is not None:
                name, state = f"{call.name}:{call.id}", task.runner.live.state
                if name in state.results and name not in state.skipped:
                    text = as_text(await task.load(name))
            entries.append((MESSAGE, call.answer(text)))
        return entries

    # -- running ---------------------------------------------------------------------------------

    def begin(self, calls: list[ToolCall], lock: TurnLock, turn: Turn | None = None) -> Entries:
        """What is recorded of *calls* that are about to run; see `limpet.core.calls`.

        Of all but those that do nothing: it costs no write of its own, and tells whoever goes on,
        though he may have no task.
        """
        entries: Entries = []
        for call in calls:
            tool = self.tools.get(call.name)
            earlier = turn and turn.calls.open.get(call.id)
            if tool is None or (earlier and earlier.epoch == lock.epoch):
                continue
            began = Call(
                call.id,
                name=call.name,
                policy=self._policy(tool).in_doubt,
                attempt=earlier.attempt + 1 if earlier else 1,
                epoch=lock.epoch,
            )
            if turn is not None:
                turn.calls.begin(began)
            entries.append((BEGAN, msgspec.to_builtins(began)))
        return entries

    def first(self, calls: list[ToolCall]) -> list[ToolCall]:
        """Those of *calls* that run first: all at once, or on a sync store one by one."""
        return calls[:1] if self._scope.is_sync else calls

    async def run(self, turn: Turn, lock: TurnLock) -> None:
        """Run what is to be run of *turn*, and store what comes of it."""
        while True:
            ready, entries = self.sort(turn, lock)
            calls = turn.calls.open
            doubtful = {id_ for id_ in turn.listed & set(calls) if calls[id_].epoch != lock.epoch}
            # What runs again is begun at once: from then on nobody can say what became of it.
            again = [call for call in ready if call.id in calls]
            entries += self.begin([*self.first(ready), *again], lock, turn)
            try:
                if entries:
                    await lock.write(*entries, unresolved=doubtful)
                break
            except Conflict:  # a person has just said what became of one
                turn = await lock.turn()
        # As the model wrote them, where this process knows that.
        forgotten = {call.id for call in ready if FORGOTTEN in call.arguments}
        redacted = (turn.redacted | forgotten) - lock.made.keys()
        ready = [lock.made.get(call.id, call) for call in ready]
        if not self._scope.is_sync:
            await _together([self._run_one(call, lock, redacted) for call in ready])
            return
        entries = []
        for call in ready:
            # With the result of one it is recorded that the next begins.
            entries += self.begin([call], lock, turn)
            if entries:
                await lock.write(*entries)
            with lock.running_tool():
                entries = [(MESSAGE, call.answer(await self._outcome(call, redacted)))]
        if entries:
            await lock.write(*entries)

    async def _run_one(self, call: ToolCall, lock: TurnLock, redacted: set[str]) -> None:
        with lock.running_tool():
            outcome = await self._outcome(call, redacted)
        await lock.write((MESSAGE, call.answer(outcome)))

    async def _outcome(self, call: ToolCall, redacted: set[str]) -> str:
        """What the model is told: the result, or what went wrong, as data.

        The *redacted* are not made; a task may know what became of one that was made before.
        """
        tool = self.tools.get(call.name)
        if tool is None:
            there = ", ".join(self.tools) or "none"
            return _error(f"There is no tool {call.name!r}. The tools are: {there}.")
        is_whole = call.id not in redacted
        if not is_whole and not self._has_begun(tool, call):
            return REDACTED
        try:
            arguments = tool.arguments(call.arguments)
        except BadArguments as error:
            return _error(f"{call.name} cannot be called like this: {error}")
        # That a function is an effect is known by its policy, and one step is enough.
        inner = tool.function.__wrapped__ if _effect(tool) else tool.function  # type: ignore[attr-defined]
        function = _ObservedFunction(inner if is_whole else _refuse(inner))
        try:
            return as_text(await self._perform(tool, call, function.call, arguments))
        except ABOUT_THE_TASK:
            raise
        except Exception as error:
            if isinstance(error, tuple(INTERRUPTS)):
                raise
            if error is not function.raised and not isinstance(error, StepTimedOut):
                raise
            if function.returned:
                # A model that took this for a failure would do it again.
                return _error(
                    f"{call.name} has run, but the model cannot be shown its result: {error}"
                )
            return _error(describe(error))

    async def _perform(
        self, tool: Tool, call: ToolCall, function: Callable[..., Any], arguments: dict[str, Any]
    ) -> Any:
        task = self._task_for(tool)
        if task is None:
            return await self._scope.runtime.invoke(function, **arguments)
        name = f"{tool.name}:{call.id}"
        # Not by `step`: a second call under the same name, as by resume(), would be a second step.
        result = await task.runner.run(name, function, (), arguments, self._policy(tool))
        skipped = name in task.runner.live.state.skipped  # what a result cannot say
        return INTERRUPTED if skipped else result

    def _has_begun(self, tool: Tool, call: ToolCall) -> bool:
        """Whether the call is a step of a task that has begun, or is done."""
        task = self._task_for(tool)
        if task is None:
            return False
        name, state = f"{tool.name}:{call.id}", task.runner.live.state
        return name in state.results or name in state.calls.open

    def _policy(self, tool: Tool) -> StepPolicy:
        """What happens when a call of *tool* is in doubt; as a step of a task, how it is run."""
        effect = _effect(tool)
        if effect is not None and self._task_for(tool) is not None:
            return effect
        return StepPolicy.of(RETRY if tool.idempotent else self._in_doubt)

    def _task_for(self, tool: Tool) -> Any:
        """The task that a call of *tool* is a step of: the chat's, or for effects any open one."""
        return self._task or (open_task.get() if _effect(tool) else None)


def _refuse(function: Callable[..., Any]) -> Callable[..., Any]:
    """In the place of *function*, sync or async as that is."""

    def refuse(**_: Any) -> NoReturn:
        raise BadArguments(REDACTED)

    async def refuse_async(**_: Any) -> NoReturn:
        raise BadArguments(REDACTED)

    return refuse_async if inspect.iscoroutinefunction(function) else refuse


class _ObservedFunction:
    """A tool's function that remembers what it has raised: only that is for the model to read."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.raised: Exception | None = None
        self.returned = False
        self._function = function
        awaits = inspect.iscoroutinefunction(function)
        self.call: Callable[..., Any] = self._await if awaits else self._call

    def _call(self, **arguments: Any) -> Any:
        try:
            result = self._function(**arguments)
            return result if hasattr(result, "__await__") else self._plain(result)
        except StopIteration as error:  # which no coroutine lets through
            self.raised = RuntimeError("the tool raised StopIteration")
            raise self.raised from error
        except Exception as error:
            self.raised = error
            raise

    async def _await(self, **arguments: Any) -> Any:
        try:
            return self._plain(await self._function(**arguments))
        except Exception as error:
            self.raised = error
            raise

    def _plain(self, result: Any) -> Any:
        self.returned = True
        return plain(result, "result")


def as_text(result: Any) -> str:
    """A tool's result as text: JSON, if it is not text."""
    if isinstance(result, str):
        return result
    return msgspec.json.encode(plain(result, "result")).decode()


def _effect(tool: Tool) -> StepPolicy | None:
    """The policy of `limpet.effect`, if it is one."""
    found = getattr(tool.function, "limpet", None)
    return found if isinstance(found, StepPolicy) else None


def _error(what: str) -> str:
    return msgspec.json.encode({"error": what}).decode()


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
