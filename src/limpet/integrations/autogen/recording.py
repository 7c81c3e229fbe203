"""Model clients, tools and code executors that record what came of each call.

AutoGen makes a text of all that a tool raises, and its model reads it. But that a task waits, is
paused or was taken over says nothing about the tool: the run has to end, and the call to be made
again when the task goes on. And a tool that is a `limpet.effect` is a step of the open task.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import itertools
import re
from contextlib import aclosing, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from autogen_core.code_executor import CodeExecutor, CodeResult
from autogen_core.models import ChatCompletionClient, CreateResult
from autogen_core.tools import (
    StaticStreamWorkbench,
    StaticWorkbench,
    TextResultContent,
    ToolResult,
    Workbench,
)
from pydantic import TypeAdapter

from limpet.core.codec import plain
from limpet.core.redaction import is_marked
from limpet.errors import StepTimedOut, TaskHalted, TaskNotOpen
from limpet.integrations.autogen import internals
from limpet.integrations.autogen.run import EXECUTOR, as_exception
from limpet.llm.messages.repair import INTERRUPTED, REDACTED
from limpet.tasks.context import open_task
from limpet.tasks.retry import StepPolicy
from limpet.tasks.steps import ABOUT_THE_TASK

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from limpet.integrations.autogen.run import ActorLog

__all__ = [
    "CODE_RESULT",
    "Patches",
    "RecordingClient",
    "RecordingExecutor",
    "RecordingWorkbench",
    "catch_halts",
    "catch_halts_of_agent",
    "find_halt",
    "recording_workbench",
    "run_effects_as_steps",
]

#: How the result of code is stored.
CODE_RESULT = TypeAdapter(CodeResult)


class Patches:
    """Methods of single objects that were replaced by others, and can be put back."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, dict[str, Any]]] = []

    def put(self, it: Any, name: str, function: Any) -> Any:
        """Let *function* be called for the method *name* of this one object; returns the method."""
        own, before = getattr(it, name), getattr(it, "__dict__", {})
        was = {name: before[name]} if name in before else {}
        try:
            setattr(it, name, function)
        except AttributeError as error:
            msg = f"A {type(it).__name__} has __slots__, and cannot be kept."
            raise TypeError(msg) from error
        self._replaced.append((it, name, was))
        return own

    def release(self) -> None:
        """Let the objects be as they were."""
        while self._replaced:
            it, name, was = self._replaced.pop()
            vars(it).pop(name, None)
            vars(it).update(was)


# -- models ----------------------------------------------------------------------------------------


class _Recording:
    """What stands before *inner*, and is like it in all but what is recorded."""

    def __init__(self, inner: Any, actor: ActorLog) -> None:
        self.inner = inner
        self.actor = actor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def dump_component(self) -> Any:
        return self.inner.dump_component()


class RecordingClient(_Recording, ChatCompletionClient):
    """A model client. A reply that is in the log is given again, without a request.

    *is_eager*: whether a reply is made durable at once, because the end of the turn is far away.
    """

    def __init__(self, inner: Any, actor: ActorLog, is_eager: Callable[[], bool]) -> None:
        super().__init__(inner, actor)
        self.is_eager = is_eager

    async def create(self, messages: Any, **options: Any) -> CreateResult:
        if not self.actor.log.is_recording:
            return await self.inner.create(messages, **options)  # type: ignore[no-any-return]
        known = self.actor.next_reply()
        if known is not None:
            return CreateResult.model_validate(known)
        reply: CreateResult = await self.inner.create(messages, **options)
        await self._record(reply)
        return reply

    async def create_stream(
        self, messages: Any, **options: Any
    ) -> AsyncGenerator[str | CreateResult, None]:
        known = self.actor.next_reply() if self.actor.log.is_recording else None
        if known is not None:
            yield CreateResult.model_validate(known)
            return
        async for piece in self.inner.create_stream(messages, **options):
            if isinstance(piece, CreateResult) and self.actor.log.is_recording:
                await self._record(piece)
            yield piece

    async def _record(self, reply: CreateResult) -> None:
        self.actor.add_reply(reply.model_dump(mode="json", exclude_none=True))
        if self.is_eager():
            await self.actor.log.flush()

    async def close(self) -> None:
        await self.inner.close()

    def actual_usage(self) -> Any:
        return self.inner.actual_usage()

    def total_usage(self) -> Any:
        return self.inner.total_usage()

    def count_tokens(self, messages: Any, **options: Any) -> int:
        return self.inner.count_tokens(messages, **options)  # type: ignore[no-any-return]

    def remaining_tokens(self, messages: Any, **options: Any) -> int:
        return self.inner.remaining_tokens(messages, **options)  # type: ignore[no-any-return]

    @property
    def capabilities(self) -> Any:
        return self.inner.capabilities

    @property
    def model_info(self) -> Any:
        return self.inner.model_info


# -- tools and code --------------------------------------------------------------------------------


class _RecordingCalls(_Recording):
    """Calls that may have an effect: the beginning of each is durable before it, then its result.

    Of those named in *idempotent*, which may run twice, only the result is recorded. With *retry*,
    calls in doubt are made again.
    """

    def __init__(
        self, inner: Any, actor: ActorLog, *, idempotent: frozenset[str], retry: bool
    ) -> None:
        super().__init__(inner, actor)
        self._idempotent = idempotent
        self._retry = retry

    def _may_run(self, key: str, name: str) -> bool:
        """Whether it is not in doubt, or does not matter if it is, or its step decides."""
        is_safe = self._retry or name in self._idempotent or bool(self.actor.step(key))
        return is_safe or not self.actor.is_in_doubt(key)

    async def _begin(self, key: str, name: str, step: dict[str, str]) -> None:
        if step or name not in self._idempotent:
            self.actor.begin(key, name, step)
            await self.actor.log.flush()

    def _note_interrupted(self, call_id: str | None, name: str) -> None:
        what = (
            f"{name!r} was interrupted, and nobody knows whether it took effect; its model reads so"
        )
        self.actor.log.note(self.actor.path, call_id, name, what)

    async def _end(self, key: str, name: str, result: Any) -> None:
        self.actor.end(key, name, result)
        await self.actor.log.flush()


class RecordingWorkbench(_RecordingCalls, Workbench):
    """A workbench. A result that is in the log is given again, without a call.

    AutoGen waits for ever for a call that raises. So an error of the store, or one that says that a
    task is halted, is put into the log; it is raised when the agent next puts something out, calls
    its model, or when the turn ends. Until then no tool runs.

    *steps*: the names of tools that are effects: steps of the task that is open.
    """

    def __init__(self, inner: Any, actor: ActorLog, *, steps: frozenset[str], **rules: Any) -> None:
        super().__init__(inner, actor, **rules)
        self._steps = steps

    async def list_tools(self) -> Any:
        return await self.inner.list_tools()

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: Any = None,
        call_id: str | None = None,
    ) -> ToolResult:
        call = self._called(name, arguments, cancellation_token, call_id)
        return [piece async for piece in call][-1]  # type: ignore[no-any-return]

    async def _called(self, *call: Any) -> AsyncGenerator[Any, None]:
        """The pieces of a call; the last one is its result."""
        actor, log = self.actor, self.actor.log
        if not log.is_recording:
            async for piece in self._run(*call):
                yield piece
            return
        key, turn = actor.key(call[3]), log.turn
        known = actor.result(key)
        if known is not None:
            yield ToolResult.model_validate(known)
            return
        actor.running += 1
        try:
            async for piece in self._recorded(key, *call):
                yield piece
        finally:
            if log.turn == turn:
                actor.running -= 1

    async def _recorded(self, key: str, *call: Any) -> AsyncGenerator[Any, None]:
        """The same of a call that has no result in the log."""
        name, arguments, _, call_id = call
        log, turn = self.actor.log, self.actor.log.turn
        result: Any = self._instead(key, name, arguments, call_id)
        if result is None and await self._is_begun(key, name, call_id):
            running = _Running(self.actor.step(key).get("step"))
            _current.set(running)
            try:
                with log.around(recorded=False):
                    async for piece in self._run(*call):
                        if result is not None:
                            yield result
                        result = piece
            except (Exception, TaskHalted) as error:  # noqa: BLE001 - `TurnLog.check` raises it
                running.stop = running.stop or find_halt(error) or error
            finally:
                running.step = None
            if running.stop is not None and log.turn == turn:
                await self._refuse(key, running.stop)
                result = None
        if result is None:
            yield _told(name, INTERRUPTED)  # nobody reads it
            return
        if log.turn == turn:  # else its run was cancelled meanwhile: it is in doubt
            try:
                await self._end(key, name, result.model_dump(mode="json"))
            except Exception as error:  # noqa: BLE001 - `TurnLog.check` raises it
                log.refuse(error)
        yield result

    def _instead(
        self, key: str, name: str, arguments: Mapping[str, Any] | None, call_id: str | None
    ) -> ToolResult | None:
        """What the model is told of a call that is not to be made."""
        if not self._may_run(key, name):
            self._note_interrupted(call_id, name)
            return _told(name, INTERRUPTED)
        is_whole = not self.actor.is_repeating or not is_marked(dict(arguments or {}))
        # A step of a task may have been made, and its task knows.
        return None if is_whole or self.actor.step(key) else _told(name, REDACTED)

    async def _is_begun(self, key: str, name: str, call_id: str | None) -> bool:
        """Whether the store knows of it, as of all before it: else it must not run."""
        log = self.actor.log
        if log.is_refused():
            return False
        try:
            await self._begin(key, name, self._step(key, name, call_id))
        except Exception as error:  # noqa: BLE001 - `TurnLog.check` raises it
            self.actor.take_back(key)
            log.refuse(error)
        else:
            if log.is_refused():  # by another call, during the write
                await self._take_back(key)
        return not log.is_refused()

    async def _refuse(self, key: str, error: BaseException) -> None:
        """End the run with *error*; if it says nothing about the tool, that is called again."""
        self.actor.log.refuse(error)
        if find_halt(error) is not None:
            await self._take_back(key)

    async def _take_back(self, key: str) -> None:
        self.actor.take_back(key)
        with suppress(Exception):  # then it is in doubt
            await self.actor.log.flush()

    def _step(self, key: str, name: str, call_id: str | None) -> dict[str, str]:
        """Which step of which task the call is made as; nothing, if as none."""
        known, task = self.actor.step(key), open_task.get()
        if not known:
            if name not in self._steps or task is None:
                return {}
            step = _new_step(task, name, call_id, taken=self.actor.log.steps())
            return {"task": task.id, "step": step}
        if name in self._steps and task is not None and task.id == known["task"]:
            return known
        msg = (
            f"A call of {name!r} was begun as step {known['step']!r} of task {known['task']!r}, "
            "which knows what became of it. Go on with the run where that task is open, and the "
            "tool a limpet.effect; or begin another run."
        )
        raise TaskNotOpen(msg)

    async def _run(self, *call: Any) -> AsyncGenerator[Any, None]:
        yield await self.inner.call_tool(*call)

    async def start(self) -> None:
        await self.inner.start()

    async def stop(self) -> None:
        await self.inner.stop()

    async def reset(self) -> None:
        await self.inner.reset()

    async def save_state(self) -> Mapping[str, Any]:
        return await self.inner.save_state()  # type: ignore[no-any-return]

    async def load_state(self, state: Mapping[str, Any]) -> None:
        await self.inner.load_state(state)


class RecordingStreamWorkbench(RecordingWorkbench, StaticStreamWorkbench):
    """The workbench that an agent makes of a list of tools; AutoGen knows it by its class."""

    async def call_tool_stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: Any = None,
        call_id: str | None = None,
    ) -> AsyncGenerator[Any, None]:
        async for piece in self._called(name, arguments, cancellation_token, call_id):
            yield piece

    async def _run(self, *call: Any) -> AsyncGenerator[Any, None]:
        async for piece in self.inner.call_tool_stream(*call):
            yield piece


class RecordingExecutor(_RecordingCalls, CodeExecutor):
    """A code executor. Code whose result is in the log is not run again."""

    async def execute_code_blocks(self, code_blocks: Any, cancellation_token: Any) -> CodeResult:
        run = self.inner.execute_code_blocks
        if not self.actor.log.is_recording:
            return await run(code_blocks, cancellation_token)  # type: ignore[no-any-return]
        self.actor.log.check()
        key = self.actor.key("code")
        known = self.actor.result(key)
        if known is not None:
            return CODE_RESULT.validate_python(known)
        if any(is_marked(block.code) for block in code_blocks):
            result = CodeResult(exit_code=1, output=REDACTED)
        elif self._may_run(key, EXECUTOR):
            await self._begin(key, EXECUTOR, {})
            result = await run(code_blocks, cancellation_token)
        else:
            result = CodeResult(exit_code=1, output=INTERRUPTED)
            self._note_interrupted(None, EXECUTOR)
        # An executor may return a class of its own, with more than that.
        stored = CodeResult(result.exit_code, result.output)
        await self._end(key, EXECUTOR, CODE_RESULT.dump_python(stored))
        return result

    async def start(self) -> None:
        await self.inner.start()

    async def stop(self) -> None:
        await self.inner.stop()

    async def restart(self) -> None:
        await self.inner.restart()


def recording_workbench(inner: Any, actor: ActorLog, **rules: Any) -> RecordingWorkbench:
    """What stands before the workbench *inner*."""
    is_stream = isinstance(inner, StaticStreamWorkbench)
    kind = RecordingStreamWorkbench if is_stream else RecordingWorkbench
    return kind(inner, actor, **rules)


def _told(name: str, text: str) -> ToolResult:
    """In place of a result that there is not."""
    return ToolResult(name=name, result=[TextResultContent(content=text)], is_error=True)


# -- what halts a task ends the run ----------------------------------------------------------------


class _Running:
    """A tool call that is being made: the step it is, if it is one, and what is to end the run."""

    def __init__(self, step: str | None) -> None:
        self.step = step
        self.stop: BaseException | None = None


_current: ContextVar[_Running | None] = ContextVar("limpet_autogen_call", default=None)


def find_halt(error: BaseException | None) -> BaseException | None:
    """What in *error*, or in its causes, says nothing about the function that raised it."""
    while error is not None:
        if isinstance(error, ABOUT_THE_TASK):
            return error
        if isinstance(error, BaseExceptionGroup):
            return next(filter(None, map(find_halt, error.exceptions)), None)
        error = error.__cause__
    return None


def catch_halts(bench: Any, patches: Patches) -> None:
    """Notice which errors *bench* makes a text of; and make one of those that it would let pass.

    For what leaves a tool call AutoGen would wait for ever.
    """
    if not isinstance(bench, StaticWorkbench):
        return  # AutoGen's others run no function of this program
    own_format: Callable[[Exception], str]
    own_call: Callable[..., Any]
    own_stream: Callable[..., Any]

    def format_errors(error: Exception) -> str:
        call = _current.get()
        if call is not None and call.stop is None:
            call.stop = find_halt(error)
        return own_format(error)

    async def call_tool(name: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return await own_call(name, *args, **kwargs)
        except TaskHalted as halt:
            return _halted(name, halt)

    async def call_tool_stream(name: str, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        try:
            async with aclosing(own_stream(name, *args, **kwargs)) as pieces:
                async for piece in pieces:
                    yield piece
        except TaskHalted as halt:
            yield _halted(name, halt)

    own_format = patches.put(bench, internals.FORMAT_ERRORS, format_errors)
    own_call = patches.put(bench, "call_tool", call_tool)
    if isinstance(bench, StaticStreamWorkbench):
        own_stream = patches.put(bench, "call_tool_stream", call_tool_stream)


def _halted(name: str, halt: TaskHalted) -> ToolResult:
    """A result that nobody reads: the run ends."""
    call = _current.get()
    if call is None:
        raise halt
    call.stop = call.stop or halt
    return ToolResult(name=name, result=[TextResultContent(content=str(halt))], is_error=True)


def catch_halts_of_agent(agent: Any, patches: Patches) -> None:
    """The same for what leaves an *agent* that is a tool, or part of a team that is one."""
    own: Callable[..., Any]

    async def on_messages_stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        try:
            async with aclosing(own(*args, **kwargs)) as items:
                async for item in items:
                    yield item
        except TaskHalted as halt:
            call = _current.get()
            if call is not None:
                call.stop = call.stop or halt
            raise as_exception(halt) from halt

    own = patches.put(agent, "on_messages_stream", on_messages_stream)


# -- effects are steps -----------------------------------------------------------------------------

#: Names of steps that are taken as they are: a task gives a meaning to some other characters.
_STEP_NAME = re.compile(r"[\w.:-]{1,128}", re.ASCII)

#: The attribute of a function that was put in the place of an effect.
_IS_STEP = "limpet_step"


def run_effects_as_steps(bench: Any, patches: Patches) -> frozenset[str]:
    """Let each call of an effect among the tools of *bench* be a step; the names of the effects."""
    found = set()
    for tool in internals.tools_of(bench):
        function = internals.function_of(tool)
        policy = getattr(function, "limpet", None)
        if function is not None and isinstance(policy, StepPolicy):
            if not hasattr(function, _IS_STEP):  # two agents may have the same tool
                patches.put(tool, internals.TOOL_FUNCTION, _as_step(function, policy))
            found |= {tool.name, internals.shown_name(bench, tool)}
    return frozenset(found)


def _new_step(task: Any, tool: str, call_id: str | None, *, taken: list[str]) -> str:
    """The name of a step of *task* for a call of *tool*, which neither it nor *taken* has."""
    name = f"{tool}:{call_id or ''}"
    if not _STEP_NAME.fullmatch(name):  # the id is a model's, and may be anything
        name = f"{tool}:{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    live = task.runner.live
    outer = live.around(name)
    first = name = name if outer is None else f"{outer.name}/{name}"
    known = (live.state.results, live.state.calls, live.state.tried, taken)
    for number in itertools.count(2):  # some models count from one again, or give no ids
        if not any(name in names for names in known):
            break
        name = f"{first}#{number}"
    return name


def _as_step(function: Callable[..., Any], policy: StepPolicy) -> Callable[..., Any]:
    """The effect *function* for AutoGen, which would lose sight of the task in another thread."""
    inner: Any = function.__wrapped__  # type: ignore[attr-defined]

    async def effect(**arguments: Any) -> Any:
        call, task = _current.get(), open_task.get()
        if call is None or call.step is None or task is None:
            return await _called(function, arguments)
        name, call.step = call.step, None  # what is called within it is another step
        raised: list[Exception] = []  # by the function: that, and no more, is the model's to read

        async def made(**given: Any) -> Any:
            try:
                return plain(await _called(inner, given), "result")
            except Exception as error:
                raised.append(error)
                raise

        runner = task.runner.through(task.scope.as_async())
        try:
            # Not by `step`: the same call once more, as by a resume, would be a second step.
            result = await runner.run(name, made, (), arguments, policy)
        except (Exception, TaskHalted) as error:
            is_the_tools = bool(raised) and error is raised[-1]
            if not is_the_tools and not isinstance(error, StepTimedOut):
                call.stop = error
            raise
        return INTERRUPTED if name in runner.live.state.skipped else result

    # `__wrapped__` has the source, which AutoGen's ``dump_component`` asks for.
    vars(effect).update({"__wrapped__": function, "limpet": policy, _IS_STEP: True})
    return effect


async def _called(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """What *function* returns; one that blocks has a thread, as AutoGen gives it one."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    return await asyncio.to_thread(function, **arguments)
