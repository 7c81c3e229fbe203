"""Group chats that stop for a moment between their turns, so that they can be saved whole.

AutoGen's manager asks the next speaker while messages of the last one are still on their way, and
its ``save_state`` takes what it finds. Here the choice of the next speaker waits until the runtime
is idle: then nothing is on its way, the state is saved, and the manager goes on.
"""

# ruff: noqa: SLF001 - AutoGen has no hook at this place, and its last release will not get one

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import BaseChatMessage, ModelClientStreamingChunkEvent, TextMessage
from autogen_agentchat.teams._group_chat._events import (
    GroupChatStart,
    GroupChatTermination,
    SerializableException,
)
from autogen_core._message_handler_context import MessageHandlerContext

from limpet.errors import TaskHalted
from limpet.integrations.autogen.hooks import Hooks
from limpet.integrations.autogen.keeping import KNOWN, NEW, RESUMED
from limpet.integrations.autogen.log import as_exception
from limpet.integrations.autogen.parts import AgentPart
from limpet.integrations.autogen.tools import halt_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from limpet.integrations.autogen.keeping import Keeping
    from limpet.integrations.autogen.parts import TeamPart

__all__ = ["KeptTeam"]


class KeptTeam:
    """How a team runs when it is kept."""

    def __init__(self, keeping: Keeping, part: TeamPart) -> None:
        self._keeping = keeping
        self._part = part
        self._team = part.it
        self._next: Callable[[], Awaitable[None]] | None = None
        self._is_left = False  # whether nobody listens any more
        self._is_there = False  # whether the turn that begins is the one that was broken off
        self._is_heard = False  # whether somebody hears what is said as it is
        self._is_over = False  # whether nothing more will be said
        self._due: dict[str, tuple[int, int | None]] = {}  # what messages wait for, by their ids
        self.hooks = Hooks()
        self._hook()

    def _hook(self) -> None:
        team, put = self._team, self.hooks.put
        self._run_stream = put(team, "run_stream", self.run_stream)
        put(team, "run", self.run)
        self._reset = put(team, "reset", self.reset)
        put(team, "load_state", self._keeping.loaded)
        if not self._part.is_steered:
            return
        manager, queue = self._part.manager, team._output_message_queue
        self._stop_when_idle = put(team._runtime, "stop_when_idle", self._steer)
        self._put = put(queue, "put", self._said)
        self._get = put(queue, "get", self._heard)
        # All managers choose the next speaker in the one; MagenticOne's has a way of its own.
        step = "_orchestrate_step" if hasattr(manager, "_orchestrate_step") else None
        self._choose = put(manager, step or "_transition_to_next_speakers", self._wait)
        if step:
            self._receive = put(manager, "on_message_impl", self._on_message)

    # -- running -----------------------------------------------------------------------------------

    async def run(
        self, *, task: Any = None, cancellation_token: Any = None, output_task_messages: bool = True
    ) -> TaskResult:
        """As AutoGen's, and durable; without a task it goes on where it was broken off."""
        result = None
        options = {
            "cancellation_token": cancellation_token,
            "output_task_messages": output_task_messages,
        }
        async for item in self._stream(task, options, is_heard=False):
            result = item
        assert isinstance(result, TaskResult)  # noqa: S101 - the last one always is
        return result

    async def run_stream(
        self, *, task: Any = None, cancellation_token: Any = None, output_task_messages: bool = True
    ) -> AsyncGenerator[Any, None]:
        """The same in pieces. What a run has put out before it was broken off comes again."""
        options = {
            "cancellation_token": cancellation_token,
            "output_task_messages": output_task_messages,
        }
        async with aclosing(self._stream(task, options, is_heard=True)) as items:
            async for item in items:
                yield item

    async def _stream(
        self, task: Any, options: dict[str, Any], *, is_heard: bool
    ) -> AsyncGenerator[Any, None]:
        """A run in pieces; *is_heard*: whether somebody hears each as it comes."""
        keeping = self._keeping
        messages = _messages(task)
        result: TaskResult | None = None
        async with keeping.using():
            how = await keeping.begin([message.dump() for message in messages])
            run = keeping.begun
            before = keeping.created(run.said) if how != NEW else []
            for item in before:
                yield item
            self._is_heard = is_heard
            given = {"task": self._given(messages, how), **options}
            stream = _ended(run.reason) if how == KNOWN else self._driven(given)
            async with aclosing(stream) as items:
                async for item in items:
                    if isinstance(item, TaskResult):
                        result = item
                    else:
                        yield item
        assert result is not None  # noqa: S101 - AutoGen ends every run with one
        yield TaskResult(messages=[*before, *result.messages], stop_reason=result.stop_reason)

    def _given(self, messages: list[Any], how: str) -> list[Any] | None:
        """What AutoGen is to start with: nothing, if the task is in the team's state already."""
        run = self._keeping.begun
        self._is_there = how == RESUMED and run.started
        if how == NEW:
            return [*self._keeping.unheard, *messages] or None
        return None if run.started else self._keeping.created(run.task) or None

    async def _driven(self, options: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """AutoGen's run, whose result comes when it is durable."""
        self._next, self._is_left, self._is_over = None, False, False
        self._due.clear()
        result: TaskResult | None = None
        late: list[Any] = []
        try:
            async with aclosing(self._run_stream(**options)) as items:
                async for item in items:
                    if isinstance(item, TaskResult):
                        result = item
                        continue
                    try:
                        if late or not await self._is_durable(item):
                            late.append(item)
                        else:
                            yield item
                    except (GeneratorExit, asyncio.CancelledError):
                        self._is_left = True
                        raise
            if result is not None and not self._part.is_steered:
                self._keeping.begun.said = [dict(message.dump()) for message in result.messages]
            await self._keeping.end(result.stop_reason if result else None)
        except BaseException as error:
            self._keeping.distrust()
            cause = self._keeping.cause(error)
            if cause is not error:
                raise cause from None
            raise
        for item in late:
            yield item
        yield result

    async def _is_durable(self, message: Any) -> bool:
        """Whether who goes on after a crash puts out *message* too; else it waits for the end.

        What a member answers is durable with its turn, for which this waits; all else is made so.
        """
        keeping = self._keeping
        if not self._is_heard or isinstance(message, ModelClientStreamingChunkEvent):
            return True
        changes, turns = self._due.pop(message.id, (keeping.log.changes, None))
        if turns is None:
            await keeping.secure(changes)
            return True

        def is_stored() -> bool:
            return keeping.durable >= changes and keeping.turns >= turns

        await keeping.until(lambda: self._is_over or is_stored())
        return is_stored()

    def _due_with(self, message: Any) -> tuple[int, int | None]:
        """What has to be durable before *message* is put out: so much of the log, so many turns.

        No turns: it is no member's answer, and need not wait for the turn that it is a part of.
        """
        keeping, part = self._keeping, self._part.parts.get(message.source)
        if not isinstance(part, AgentPart) or part.answer != message.id:
            return keeping.log.changes, None
        # An answer that no model gave is nowhere until the turn has ended: a person's, for one.
        recorded = bool(keeping.log.actor(part.path).dump())
        return keeping.log.changes, keeping.turns + (not recorded)

    async def reset(self) -> None:
        """As AutoGen's, and durable."""
        async with self._keeping.using():
            await self._reset()
            await self._keeping.clear()

    # -- between turns -----------------------------------------------------------------------------

    async def _wait(self, cancellation_token: Any) -> None:
        """In place of the choice of the next speaker: it is made when nothing is on its way."""
        self._next = lambda: self._choose(cancellation_token)

    async def _steer(self) -> None:
        """In place of ``stop_when_idle`` of the team's runtime: idle is where a turn has ended."""
        runtime = self._team._runtime
        try:
            while True:
                await runtime._message_queue.join()
                go_on, self._next = self._next, None
                if go_on is None or runtime._run_context._run_task.done():
                    break
                if not self._is_there:
                    await self._keeping.boundary()
                    await asyncio.sleep(0)  # who hears now what was said may leave
                self._is_there = False
                if self._is_left:
                    break
                await self._go_on(go_on)
        finally:
            await self._stop_when_idle()

    async def _go_on(self, choose: Callable[[], Awaitable[None]]) -> None:
        manager = self._part.manager
        # Within a handler of its own, by which AutoGen knows whose topics are meant.
        with MessageHandlerContext.populate_context(manager.id):
            try:
                await choose()
            except (Exception, TaskHalted) as error:
                if (halt := halt_in(error)) is not None:
                    self._keeping.log.refuse(halt)
                said = SerializableException.from_exception(as_exception(error))
                await manager._signal_termination_with_error(said)
                raise

    async def _on_message(self, message: Any, ctx: Any) -> Any:
        """MagenticOne would make a new plan at every start; one that goes on has its plan."""
        if isinstance(message, GroupChatStart) and message.messages is None:
            if not self._keeping.run or not self._keeping.run.started:
                msg = "MagenticOneGroupChat needs a task: there is no run of it that could go on."
                raise ValueError(msg)
            return await self._wait(ctx.cancellation_token)
        return await self._receive(message, ctx)

    async def _said(self, message: Any) -> None:
        """What the team puts out, noted as it does."""
        run = self._keeping.run
        mute = isinstance(message, (GroupChatTermination, ModelClientStreamingChunkEvent))
        if run is not None and self._keeping.log.is_open and not mute:
            run.said.append(message.dump())
            self._due[message.id] = self._due_with(message)
        await self._put(message)
        if isinstance(message, GroupChatTermination):
            self._is_over = True
            self._keeping.tell()

    async def _heard(self) -> Any:
        """What AutoGen's run waits for; if the wait is cancelled, nobody listens any more."""
        try:
            return await self._get()
        except asyncio.CancelledError:
            self._is_left = True
            raise


async def _ended(reason: str | None) -> AsyncGenerator[Any, None]:
    """The end of a run that has ended before."""
    yield TaskResult(messages=[], stop_reason=reason)


def _messages(task: Any) -> list[Any]:
    """The messages of a task, as AutoGen makes them."""
    if task is None:
        return []
    if isinstance(task, str):
        return [TextMessage(content=task, source="user")]
    messages = [task] if isinstance(task, BaseChatMessage) else list(task)
    if not messages:
        raise ValueError("Task list cannot be empty.")
    if not all(isinstance(message, BaseChatMessage) for message in messages):
        raise ValueError("All messages in task list must be valid BaseChatMessage types")
    return messages
