"""Model clients, tools and code executors that keep a log of what came of each call."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from autogen_core.code_executor import CodeExecutor, CodeResult
from autogen_core.models import ChatCompletionClient, CreateResult
from autogen_core.tools import (
    StaticStreamWorkbench,
    TextResultContent,
    ToolResult,
    Workbench,
)
from pydantic import TypeAdapter

from limpet.errors import TaskHalted, TaskNotOpen
from limpet.integrations.autogen.tools import Calling, calling, halt_in, step_for
from limpet.llm.messages.repair import INTERRUPTED
from limpet.tasks.context import open_task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from limpet.integrations.autogen.log import Actor

__all__ = [
    "CODE",
    "EXECUTOR",
    "RecordedClient",
    "RecordedExecutor",
    "RecordedTools",
    "recorded_tools",
]

#: How the result of code is stored.
CODE = TypeAdapter(CodeResult)
#: What code is run by, as tools have names.
EXECUTOR = "code executor"


class _Recorded:
    """What stands before *inner*, and is it in all but what is recorded."""

    def __init__(self, inner: Any, actor: Actor) -> None:
        self.inner = inner
        self.actor = actor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def dump_component(self) -> Any:
        return self.inner.dump_component()


class RecordedClient(_Recorded, ChatCompletionClient):
    """A model client. What the model has said in this turn it does not say again.

    *eager*: whether a reply is made durable at once, because the end of the turn is far away.
    """

    def __init__(self, inner: Any, actor: Actor, eager: Callable[[], bool]) -> None:
        super().__init__(inner, actor)
        self.is_eager = eager

    async def create(self, messages: Any, **options: Any) -> CreateResult:
        if not self.actor.log.is_open:
            return await self.inner.create(messages, **options)  # type: ignore[no-any-return]
        known = self.actor.next_reply()
        if known is not None:
            return CreateResult.model_validate(known)
        reply: CreateResult = await self.inner.create(messages, **options)
        await self._keep(reply)
        return reply

    async def create_stream(
        self, messages: Any, **options: Any
    ) -> AsyncGenerator[str | CreateResult, None]:
        known = self.actor.next_reply() if self.actor.log.is_open else None
        if known is not None:
            yield CreateResult.model_validate(known)
            return
        async for piece in self.inner.create_stream(messages, **options):
            if isinstance(piece, CreateResult) and self.actor.log.is_open:
                await self._keep(piece)
            yield piece

    async def _keep(self, reply: CreateResult) -> None:
        self.actor.heard(reply.model_dump(mode="json", exclude_none=True))
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


class _Calls(_Recorded):
    """Calls that may have an effect: that one begins is durable before it does, and its result.

    *again*: the names of those that may run twice, of which a result is kept and no beginning.
    """

    def __init__(self, inner: Any, actor: Actor, again: frozenset[str]) -> None:
        super().__init__(inner, actor)
        self._again = again

    def _may_run(self, key: str, name: str) -> bool:
        return name in self._again or not self.actor.is_doubtful(key) or bool(self.actor.step(key))

    async def _begin(self, key: str, name: str, step: dict[str, str] | None = None) -> None:
        if step or name not in self._again:
            self.actor.begin(key, name, step or {})
            await self.actor.log.flush()

    def _note(self, call_id: str | None, name: str) -> None:
        what = f"{name!r} was interrupted, and nobody knows whether it took effect; so it was told"
        self.actor.log.note(self.actor.path, call_id, name, what)

    async def _end(self, key: str, name: str, result: Any) -> None:
        self.actor.end(key, name, result)
        await self.actor.log.flush()


class RecordedTools(_Calls, Workbench):
    """A workbench. What a tool has done in this turn it does not do again.

    AutoGen waits for ever for a call that raises. So what the store refuses is kept, and so is what
    says that a task stands still; it is raised when the agent next says anything, asks its model,
    or when the turn ends; until then no tool runs.

    *steps*: the names of those that are effects: steps of the task that is open.
    """

    def __init__(
        self, inner: Any, actor: Actor, again: frozenset[str], steps: frozenset[str]
    ) -> None:
        super().__init__(inner, actor, again)
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
        """What a call comes to; its last piece is the result."""
        actor, log = self.actor, self.actor.log
        if not log.is_open:
            async for piece in self._run(*call):
                yield piece
            return
        key, turn = actor.key(call[3]), log.turn
        known = actor.result(key)
        if known is not None:
            yield ToolResult.model_validate(known)
            return
        actor.busy += 1
        try:
            async for piece in self._made(key, *call):
                yield piece
        finally:
            if log.turn == turn:
                actor.busy -= 1

    async def _made(self, key: str, *call: Any) -> AsyncGenerator[Any, None]:
        """What a call comes to of which nothing is known."""
        name, _, _, call_id = call
        log, turn, result = self.actor.log, self.actor.log.turn, None
        if not self._may_run(key, name):
            result = _unknown(name)
            self._note(call_id, name)
        elif await self._is_begun(key, name, call_id):
            now = Calling(self.actor.step(key).get("step"))
            calling.set(now)
            try:
                async for piece in self._run(*call):
                    if result is not None:
                        yield result
                    result = piece
            except (Exception, TaskHalted) as error:  # noqa: BLE001 - `Log.check` raises it
                now.stop = now.stop or halt_in(error) or error
            finally:
                now.step = None
            if now.stop is not None and log.turn == turn:
                await self._stop(key, now.stop)
                result = None
        if result is None:
            yield _unknown(name)  # nobody hears of it
            return
        if log.turn == turn:  # else its run was cancelled meanwhile: it is in doubt
            try:
                await self._end(key, name, result.model_dump(mode="json"))
            except Exception as error:  # noqa: BLE001 - `Log.check` raises it
                log.refuse(error)
        yield result

    async def _is_begun(self, key: str, name: str, call_id: str | None) -> bool:
        """Whether the store knows of it, as of all before it: else it must not run."""
        log = self.actor.log
        if log.is_refused():
            return False
        try:
            await self._begin(key, name, self._step(key, name, call_id))
        except Exception as error:  # noqa: BLE001 - `Log.check` raises it
            self.actor.take_back(key)
            log.refuse(error)
        else:
            if log.is_refused():  # by another call, while the store was asked
                await self._take_back(key)
        return not log.is_refused()

    async def _stop(self, key: str, error: BaseException) -> None:
        """End the run with *error*; if it says nothing about the tool, that is called again."""
        self.actor.log.refuse(error)
        if halt_in(error) is not None:
            await self._take_back(key)

    async def _take_back(self, key: str) -> None:
        self.actor.take_back(key)
        with suppress(Exception):  # then it is in doubt
            await self.actor.log.flush()

    def _step(self, key: str, name: str, call_id: str | None) -> dict[str, str]:
        """Which step of which task the call is made as; nothing, if as none."""
        known, task = self.actor.step(key), open_task.get()
        if not known:
            return step_for(task, name, call_id, self.actor.log) if name in self._steps else {}
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


class RecordedStream(RecordedTools, StaticStreamWorkbench):
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


class RecordedExecutor(_Calls, CodeExecutor):
    """A code executor. What it has run in this turn it does not run again."""

    async def execute_code_blocks(self, code_blocks: Any, cancellation_token: Any) -> CodeResult:
        if not self.actor.log.is_open:
            return await self._run(code_blocks, cancellation_token)
        self.actor.log.check()
        key = self.actor.key("code")
        known = self.actor.result(key)
        if known is not None:
            return CODE.validate_python(known)
        if self._may_run(key, EXECUTOR):
            await self._begin(key, EXECUTOR)
            result = await self._run(code_blocks, cancellation_token)
        else:
            result = CodeResult(exit_code=1, output=INTERRUPTED)
            self._note(None, EXECUTOR)
        await self._end(
            key, EXECUTOR, CODE.dump_python(CodeResult(result.exit_code, result.output))
        )
        return result

    async def _run(self, *call: Any) -> CodeResult:
        return await self.inner.execute_code_blocks(*call)  # type: ignore[no-any-return]

    async def start(self) -> None:
        await self.inner.start()

    async def stop(self) -> None:
        await self.inner.stop()

    async def restart(self) -> None:
        await self.inner.restart()


def recorded_tools(
    inner: Any, actor: Actor, again: frozenset[str], steps: frozenset[str]
) -> RecordedTools:
    """What stands before the workbench *inner*."""
    kind = RecordedStream if isinstance(inner, StaticStreamWorkbench) else RecordedTools
    return kind(inner, actor, again, steps)


def _unknown(name: str) -> ToolResult:
    """In place of a result that a crash has taken."""
    return ToolResult(name=name, result=[TextResultContent(content=INTERRUPTED)], is_error=True)
