"""How a kept agent and a kept team run: as AutoGen's own, and durable.

A team stops for a moment between its turns, so that it can be saved whole. AutoGen's manager lets
the next speak while messages of the last one are still on their way, and its ``save_state`` takes
what it finds. Here the choice of the next speaker waits until the runtime is idle: then nothing is
on its way, the state is saved, and the manager goes on.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from autogen_agentchat.base import Response, TaskResult
from autogen_agentchat.messages import BaseChatMessage, ModelClientStreamingChunkEvent, TextMessage
from autogen_core import CancellationToken, MessageHandlerContext

from limpet.errors import TaskHalted
from limpet.integrations.autogen import internals
from limpet.integrations.autogen.internals import GroupChatStart, GroupChatTermination
from limpet.integrations.autogen.keeper import KNOWN, NEW, RESUMED
from limpet.integrations.autogen.members import AgentMember, TeamMember
from limpet.integrations.autogen.recording import Patches, find_halt
from limpet.integrations.autogen.run import as_exception

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
    from contextlib import AbstractContextManager

    from limpet.integrations.autogen.keeper import Keeper

__all__ = ["AgentRunner", "TeamRunner", "runner_for"]


def runner_for(keeper: Keeper) -> AgentRunner | TeamRunner:
    """What runs the agent or the team of *keeper* from now on."""
    if isinstance(keeper.member, TeamMember):
        return TeamRunner(keeper, keeper.member)
    return AgentRunner(keeper)


class AgentRunner:
    """Runs a kept agent: its question is durable before its model is asked, then its answer."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._listener: object = None  # the asyncio task that is given what a run puts out
        self.patches = Patches()
        agent, put = keeper.member.it, self.patches.put
        self._on_messages = put(agent, "on_messages", self.on_messages)
        self._on_messages_stream = put(agent, "on_messages_stream", self.on_messages_stream)
        self._on_reset = put(agent, "on_reset", self.on_reset)
        put(agent, "load_state", self.load_state)
        self._run = put(agent, "run", self.run)
        self._run_stream = put(agent, "run_stream", self.run_stream)

    async def run(self, *, task: Any = None, **options: Any) -> TaskResult:
        """As AutoGen's; without a task it answers what was left unanswered."""
        given = task if task is not None or self._is_within() else await self._unanswered()
        return await self._run(task=given, **options)  # type: ignore[no-any-return]

    async def run_stream(self, *, task: Any = None, **options: Any) -> AsyncGenerator[Any, None]:
        """The same in pieces."""
        given = task if task is not None or self._is_within() else await self._unanswered()
        async with aclosing(self._run_stream(task=given, **options)) as items:
            async for item in items:
                yield item

    async def _unanswered(self) -> list[Any] | None:
        """The task of a run that was broken off."""
        run = await self._keeper.unfinished()
        return None if run is None else self._keeper.created(run.task) or None

    def _is_within(self) -> bool:
        """Whether it runs, and is called by itself, by one of its tools, or by who listens to it.

        Who waits there for the end of the run would wait for ever. It is part of the run, and is
        durable with it.
        """
        return self._keeper.log.is_around() or (
            self._listener is not None and self._listener is asyncio.current_task()
        )

    def _within(self) -> AbstractContextManager[None]:
        """What is done there is recorded as the caller is; a listener is no part of the turn."""
        log = self._keeper.log
        return nullcontext() if log.is_around() else log.around(recorded=False)

    async def on_messages(self, messages: Sequence[Any], cancellation_token: Any) -> Response:
        """As AutoGen's, and durable."""
        if self._is_within():
            with self._within():
                return await self._on_messages(messages, cancellation_token)  # type: ignore[no-any-return]
        response = None
        async for item in self._stream(messages, cancellation_token, is_streamed=False):
            response = item
        assert isinstance(response, Response)  # noqa: S101 - the last one always is
        return response

    async def on_messages_stream(
        self, messages: Sequence[Any], cancellation_token: Any
    ) -> AsyncGenerator[Any, None]:
        """The same in pieces; without messages it answers what was left unanswered."""
        if self._is_within():
            with self._within():
                async for item in self._on_messages_stream(messages, cancellation_token):
                    yield item
            return
        async with aclosing(self._stream(messages, cancellation_token, is_streamed=True)) as items:
            async for item in items:
                yield item

    async def _stream(
        self, messages: Sequence[Any], cancellation_token: Any, *, is_streamed: bool
    ) -> AsyncGenerator[Any, None]:
        """An answer in pieces; *is_streamed*: whether the caller sees each as it comes."""
        keeper = self._keeper
        response: Response | None = None
        async with keeper.using():
            how = await keeper.begin([dict(message.dump()) for message in messages])
            if how == KNOWN:
                answer = keeper.created(keeper.current.output)
                if not answer or not isinstance(answer[-1], BaseChatMessage):
                    raise keeper.wrong_state(ValueError("what it answered is not there"))
                response = Response(chat_message=answer[-1], inner_messages=answer[:-1])
                for item in answer[:-1]:
                    yield item
            else:
                given = [*keeper.undelivered, *messages]
                if how == RESUMED:
                    given = keeper.created(keeper.current.task)
                async with aclosing(self._answer(given, cancellation_token)) as items:
                    async for item in items:
                        if isinstance(item, Response):
                            response = item
                            continue
                        if is_streamed and not isinstance(item, ModelClientStreamingChunkEvent):
                            await keeper.flush()  # or another process might put out something else
                        yield item
        yield response

    async def _answer(
        self, messages: list[Any], cancellation_token: Any
    ) -> AsyncGenerator[Any, None]:
        """The agent's own answer, whose last piece comes when it is durable."""
        keeper = self._keeper
        response: Response | None = None
        self._listener = asyncio.current_task()
        try:
            async with aclosing(self._on_messages_stream(messages, cancellation_token)) as items:
                while True:
                    with keeper.log.around(recorded=True):
                        item = await anext(items, None)
                    if item is None:
                        break
                    if isinstance(item, Response):
                        response = item
                    else:
                        yield item
            if keeper.current.ids and response is not None:
                answer = [*(response.inner_messages or ()), response.chat_message]
                keeper.current.output = [dict(message.dump()) for message in answer]
            await keeper.end()
        except BaseException as error:
            cause = keeper.cause(error)
            if isinstance(error, Exception) and cause is error:
                await keeper.fail()
            keeper.break_off()
            if cause is not error:
                raise cause from None
            raise
        finally:
            self._listener = None
        yield response

    async def on_reset(self, cancellation_token: Any) -> None:
        """As AutoGen's, and durable."""
        if self._is_within():
            await self._on_reset(cancellation_token)
            return
        async with self._keeper.using():
            await self._on_reset(cancellation_token)
            await self._keeper.clear()

    async def load_state(self, state: Any) -> None:
        """As AutoGen's; it is durable with the next turn."""
        async with nullcontext() if self._is_within() else self._keeper.using():
            await self._keeper.load_state(state)


class TeamRunner:
    """Runs a kept team: it is saved when a turn has ended, before the next one begins."""

    def __init__(self, keeper: Keeper, member: TeamMember) -> None:
        self._keeper = keeper
        self._member = member
        self._next: Callable[[], Awaitable[None]] | None = None  # lets the next one speak
        self._is_used = False  # whether it runs, or is reset or loaded
        self._is_checked = False  # whether AutoGen's manager has taken the task of this run
        self._has_chosen: bool | None = None  # whether the first speaker is chosen; False: in vain
        self._first_error: BaseException | None = None  # why not
        self._is_left = False  # whether nobody listens any more
        self._is_at_boundary = False  # whether the turn that begins is the one that was broken off
        self._is_streamed = False  # whether the caller sees what is put out as it comes
        self._is_over = False  # whether nothing more will be put out
        self._at_work = 0  # how many messages are being handled, in a runtime of the user's
        #: By the ids of messages: what has to be durable before each is put out.
        self._required: dict[str, tuple[int, int | None]] = {}
        self.patches = Patches()
        team, put = member.it, self.patches.put
        self._run_stream = put(team, "run_stream", self.run_stream)
        put(team, "run", self.run)
        self._reset = put(team, "reset", self.reset)
        put(team, "load_state", self.load_state)
        if member.manager is not None:
            self._validate = put(member.manager, "validate_group_state", self._on_validate)
        if not member.stops_between_turns:
            for it in [member.manager, *member.containers] if member.manager is not None else ():
                put(it, "on_message_impl", partial(self._on_run_message, it.on_message_impl))
            return
        manager, queue = member.manager, internals.output_queue(team)
        runtime = internals.runtime_of(team)
        self._stop_when_idle = put(runtime, "stop_when_idle", self._stop_between_turns)
        self._put = put(queue, "put", self._on_put)
        self._get = put(queue, "get", self._on_get)
        self._choose = put(manager, internals.speaker_choice(manager), self._choose_later)
        if internals.plans_at_start(manager):
            self._receive = put(manager, "on_message_impl", self._on_message)

    async def run(self, **options: Any) -> TaskResult:
        """As AutoGen's, and durable; without a task it goes on where it was broken off."""
        result = None
        async for item in self._stream(is_streamed=False, **options):
            result = item
        assert isinstance(result, TaskResult)  # noqa: S101 - the last one always is
        return result

    async def run_stream(self, **options: Any) -> AsyncGenerator[Any, None]:
        """The same in pieces. What a run has put out before it was broken off comes again."""
        async with aclosing(self._stream(is_streamed=True, **options)) as items:
            async for item in items:
                yield item

    async def _stream(
        self,
        *,
        is_streamed: bool,
        task: Any = None,
        cancellation_token: Any = None,
        output_task_messages: bool = True,
    ) -> AsyncGenerator[Any, None]:
        """A run in pieces; *is_streamed*: whether the caller sees each as it comes."""
        keeper, messages = self._keeper, self._task_messages(task)
        result: TaskResult | None = None
        refusal = "The team is already running, it cannot run again until it is stopped."
        async with self._using(ValueError(refusal)):
            self._is_checked = False
            dumped = [message.dump() for message in messages]
            how = await keeper.begin(dumped, lambda: self._check(messages))
            run = keeper.current
            before = keeper.created(run.output) if how != NEW else []
            for item in before:
                yield item
            if how == KNOWN:
                result = TaskResult(messages=[], stop_reason=run.reason)
            else:
                self._is_streamed = is_streamed
                self._has_chosen = self._first_error = None
                self._is_at_boundary = how == RESUMED and run.started
                given = [*keeper.undelivered, *messages]
                if how == RESUMED:  # if it has started, the task is in the team's state already
                    given = [] if run.started else keeper.created(run.task)
                stream = self._run_to_end(
                    task=given or None,
                    cancellation_token=self._token_for_run(cancellation_token),
                    output_task_messages=output_task_messages,
                )
                async with aclosing(stream) as items:
                    async for item in items:
                        if isinstance(item, TaskResult):
                            result = item
                        else:
                            yield item
        assert result is not None  # noqa: S101 - AutoGen ends every run with one
        yield TaskResult(messages=[*before, *result.messages], stop_reason=result.stop_reason)

    async def _run_to_end(self, **options: Any) -> AsyncGenerator[Any, None]:
        """AutoGen's run, whose result comes when it is durable."""
        self._next, self._is_left, self._is_over = None, False, False
        self._required.clear()
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
            if result is not None and not self._member.stops_between_turns:
                output = [dict(message.dump()) for message in result.messages]
                self._keeper.current.output = output
            await self._keeper.end(result.stop_reason if result else None)
        except BaseException as error:
            await self._break_off(options["cancellation_token"])
            cause = self._keeper.cause(error)
            if cause is error and isinstance(error, RuntimeError) and self._first_error is not None:
                cause = self._first_error
            if cause is not error:
                raise cause from None
            raise
        for item in late:
            yield item
        yield result

    async def reset(self) -> None:
        """As AutoGen's, and durable."""
        refusal = "The group chat is currently running. It must be stopped before it can be reset."
        async with self._using(RuntimeError(refusal)):
            await self._reset()
            await self._keeper.clear()

    async def load_state(self, state: Any) -> None:
        """As AutoGen's; it is durable with the next turn."""
        refusal = "The team cannot be loaded while it is running."
        async with self._using(RuntimeError(refusal)):
            await self._keeper.load_state(state)

    @asynccontextmanager
    async def _using(self, refusal: Exception) -> AsyncIterator[None]:
        """As `Keeper.using`; but as AutoGen's team, one that is used already is not waited for."""
        if self._is_used:
            raise refusal
        self._is_used = True
        try:
            await self._until_idle()
            async with self._keeper.using():
                yield
        finally:
            self._is_used = False

    # -- in a runtime of the user's ----------------------------------------------------------------
    # There AutoGen goes on with a run that was broken off, beside the next one, and amid what that
    # loads. So each run has a token of its own, by which it is known to be over.

    def _token_for_run(self, given: CancellationToken | None) -> CancellationToken | None:
        """One of its own, which is cancelled with the one that was *given*."""
        if self._member.stops_between_turns:
            return given
        token = CancellationToken()
        if given is not None:
            given.add_callback(token.cancel)
        return token

    async def _break_off(self, token: CancellationToken) -> None:
        """Give up a run; who speaks comes to an end first, as AutoGen has it in its own runtime."""
        self._keeper.break_off()
        if not self._member.stops_between_turns:
            token.cancel()
            await self._until_idle()

    async def _on_run_message(
        self, receive: Callable[[Any, Any], Awaitable[Any]], message: Any, ctx: Any
    ) -> Any:
        """In place of what a manager or a container does with *message*: nothing, if it is late."""
        if not isinstance(message, internals.OF_A_RUN):
            return await receive(message, ctx)
        if ctx.cancellation_token.is_cancelled():
            return None
        self._at_work += 1
        try:
            return await receive(message, ctx)
        finally:
            self._at_work -= 1
            self._keeper.wake()

    async def _until_idle(self) -> None:
        """Wait for those who are at work."""
        await self._keeper.until(lambda: self._at_work == 0)

    # -- what it is asked --------------------------------------------------------------------------

    def _task_messages(self, task: Any) -> list[Any]:
        """The messages of a task, as AutoGen makes them; `ValueError` for what it refuses."""
        if task is None:
            return []
        if isinstance(task, str):
            return [TextMessage(content=task, source="user")]
        if not isinstance(task, (BaseChatMessage, list)):
            msg = "Task must be a string, a BaseChatMessage, or a list of BaseChatMessage."
            raise ValueError(msg)  # noqa: TRY004 - as AutoGen
        messages = [task] if isinstance(task, BaseChatMessage) else task
        if not messages:
            raise ValueError("Task list cannot be empty.")
        factory = internals.message_factory(self._member.it)
        for message in messages:
            if not isinstance(message, BaseChatMessage):
                msg = "All messages in task list must be valid BaseChatMessage types"
                raise ValueError(msg)  # noqa: TRY004 - as AutoGen
            if not factory.is_registered(type(message)):
                msg = (
                    f"Message type {type(message)} is not registered with the message factory. "
                    "Please register it with the message factory by adding it to the "
                    "custom_message_types list when creating the team."
                )
                raise ValueError(msg)
        return list(messages)

    async def _check(self, messages: list[Any]) -> None:
        """What AutoGen's manager raises of a new task, raised before anything is stored."""
        manager, condition = self._member.manager, internals.termination_condition(self._member.it)
        if manager is None or (condition is not None and condition.terminated):
            return  # far away; or it says that it has ended, whatever the task is
        if not messages and internals.plans_at_start(manager):
            msg = "MagenticOneGroupChat needs a task: there is no run of it that could go on."
            raise AssertionError(msg)  # as AutoGen
        with MessageHandlerContext.populate_context(manager.id):
            await self._validate(messages or None)
        self._is_checked = True

    async def _on_validate(self, messages: Any) -> None:
        """In place of the manager's own check, which may have been made already."""
        is_checked, self._is_checked = self._is_checked, False
        if not is_checked:
            await self._validate(messages)

    # -- what is put out ---------------------------------------------------------------------------

    async def _on_put(self, message: Any) -> None:
        """The team puts *message* into its output queue."""
        keeper, run = self._keeper, self._keeper.run
        is_recorded = not isinstance(
            message, (GroupChatTermination, ModelClientStreamingChunkEvent)
        )
        if run is not None and keeper.log.is_open and is_recorded:
            run.output.append(message.dump())
            turns = None  # an event need not wait for the turn that it is a part of
            member = self._member.members.get(message.source)
            if isinstance(member, AgentMember) and member.answer == message.id:
                # An answer of no model is nowhere until the turn has ended: a person's, for one.
                is_logged = bool(keeper.log.actor(member.path).dump())
                turns = keeper.turns + (not is_logged)
            self._required[message.id] = (keeper.log.changes, turns)
        await self._put(message)
        if isinstance(message, GroupChatTermination):
            self._is_over = True
            keeper.wake()

    async def _on_get(self) -> Any:
        """AutoGen's run waits for a message; if that is cancelled, nobody listens any more."""
        try:
            return await self._get()
        except asyncio.CancelledError:
            self._is_left = True
            raise

    async def _is_durable(self, message: Any) -> bool:
        """Whether who goes on after a crash puts out *message* too; else it waits for the end.

        A member's answer is durable with its turn, for which this waits; all else is made so.
        """
        keeper = self._keeper
        if not self._is_streamed:
            return True
        if self._member.stops_between_turns:
            # AutoGen puts out nothing of a run whose first speaker cannot be chosen.
            await keeper.until(lambda: self._is_over or self._has_chosen is not None)
            if not self._has_chosen:
                return False
        if isinstance(message, ModelClientStreamingChunkEvent):
            return True
        changes, turns = self._required.pop(message.id, (keeper.log.changes, None))
        if turns is None:
            await keeper.flush(changes)
            return True

        def is_stored() -> bool:
            return keeper.durable >= changes and keeper.turns >= turns

        await keeper.until(lambda: self._is_over or is_stored())
        return is_stored()

    # -- between turns -----------------------------------------------------------------------------

    async def _choose_later(self, cancellation_token: Any) -> None:
        """In place of the choice of the next speaker: it is made when nothing is on its way."""
        self._next = lambda: self._choose(cancellation_token)

    async def _stop_between_turns(self) -> None:
        """In place of ``stop_when_idle`` of the team's runtime: idle is where a turn has ended."""
        runtime = internals.runtime_of(self._member.it)
        try:
            while True:
                await internals.join(runtime)
                choose, self._next = self._next, None
                if choose is None or internals.is_runtime_done(runtime):
                    break
                if not self._is_at_boundary:
                    await self._keeper.end_turn()
                    await asyncio.sleep(0)  # who now sees the output may leave
                self._is_at_boundary = False
                if self._is_left:
                    break
                await self._let_speak(choose)
        finally:
            await self._stop_when_idle()

    async def _let_speak(self, choose: Callable[[], Awaitable[None]]) -> None:
        """Let the manager *choose* the next speaker, within a handler of its own.

        By that AutoGen knows whose topics are meant.
        """
        manager = self._member.manager
        is_first, is_chosen = self._has_chosen is None, False
        with MessageHandlerContext.populate_context(manager.id):
            try:
                await choose()
                is_chosen = True
            except (Exception, TaskHalted) as error:
                if (halt := find_halt(error)) is not None:
                    self._keeper.log.refuse(halt)
                if is_first:  # then AutoGen raises it as it is, and else a text of it
                    self._first_error = error
                await internals.signal_error(manager, as_exception(error))
                raise
            finally:
                self._has_chosen = is_chosen
                self._keeper.wake()

    async def _on_message(self, message: Any, ctx: Any) -> Any:
        """MagenticOne would make a new plan at every start; one that goes on has its plan."""
        run = self._keeper.run
        is_start = isinstance(message, GroupChatStart) and message.messages is None
        if is_start and run is not None and run.started:
            return await self._choose_later(ctx.cancellation_token)
        return await self._receive(message, ctx)
