"""A single agent that is kept: what it is asked is durable before its model is, then its answer."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from autogen_agentchat.base import Response
from autogen_agentchat.messages import (
    BaseChatMessage,
    MessageFactory,
    ModelClientStreamingChunkEvent,
    StructuredMessage,
)

from limpet.integrations.autogen.hooks import Hooks
from limpet.integrations.autogen.keeping import KNOWN, NEW

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from autogen_agentchat.agents import BaseChatAgent
    from autogen_agentchat.base import TaskResult

    from limpet.integrations.autogen.keeping import Keeping
    from limpet.integrations.autogen.run import Run

__all__ = ["KeptAgent", "factory_of"]


class KeptAgent:
    """How an agent answers when it is kept."""

    def __init__(self, keeping: Keeping, agent: Any) -> None:
        self._keeping = keeping
        self._inside: object = None  # the asyncio task in which the agent is at work
        self.hooks = Hooks()
        put = self.hooks.put
        self._on_messages = put(agent, "on_messages", self.on_messages)
        self._on_messages_stream = put(agent, "on_messages_stream", self.on_messages_stream)
        self._on_reset = put(agent, "on_reset", self.on_reset)
        put(agent, "load_state", keeping.loaded)
        self._run = put(agent, "run", self.run)
        self._run_stream = put(agent, "run_stream", self.run_stream)

    async def run(self, *, task: Any = None, **options: Any) -> TaskResult:
        """As AutoGen's; without a task it answers what was left unanswered."""
        given = await self._left() if task is None else task
        return await self._run(task=given, **options)  # type: ignore[no-any-return]

    async def run_stream(self, *, task: Any = None, **options: Any) -> AsyncGenerator[Any, None]:
        """The same in pieces."""
        given = await self._left() if task is None else task
        async with aclosing(self._run_stream(task=given, **options)) as items:
            async for item in items:
                yield item

    async def _left(self) -> list[Any] | None:
        """The task of a run that was broken off."""
        run = await self._keeping.unfinished()
        if run is None:
            return None
        return self._keeping.created(run.task) or None

    async def on_messages(self, messages: Sequence[Any], cancellation_token: Any) -> Response:
        """As AutoGen's, and durable."""
        if self._inside is asyncio.current_task():  # it asks itself
            return await self._on_messages(messages, cancellation_token)  # type: ignore[no-any-return]
        response = None
        async for item in self._stream(messages, cancellation_token, is_heard=False):
            response = item
        assert isinstance(response, Response)  # noqa: S101 - the last one always is
        return response

    async def on_messages_stream(
        self, messages: Sequence[Any], cancellation_token: Any
    ) -> AsyncGenerator[Any, None]:
        """The same in pieces; without messages it answers what was left unanswered."""
        if self._inside is asyncio.current_task():  # it asks itself
            async for item in self._on_messages_stream(messages, cancellation_token):
                yield item
            return
        async with aclosing(self._stream(messages, cancellation_token, is_heard=True)) as items:
            async for item in items:
                yield item

    async def _stream(
        self, messages: Sequence[Any], cancellation_token: Any, *, is_heard: bool
    ) -> AsyncGenerator[Any, None]:
        """An answer in pieces; *is_heard*: whether somebody hears each as it comes."""
        keeping = self._keeping
        response: Response | None = None
        async with keeping.using():
            how = await keeping.begin([dict(message.dump()) for message in messages])
            run = keeping.begun
            if how == KNOWN:
                response = self._known(run)
                for item in response.inner_messages or ():
                    yield item
            else:
                given = [*keeping.unheard, *messages] if how == NEW else keeping.created(run.task)
                async with aclosing(self._answered(given, cancellation_token)) as items:
                    async for item in items:
                        if isinstance(item, Response):
                            response = item
                            continue
                        if is_heard and not isinstance(item, ModelClientStreamingChunkEvent):
                            await keeping.flush()  # or another process might say something else
                        yield item
        yield response

    async def _answered(
        self, messages: list[Any], cancellation_token: Any
    ) -> AsyncGenerator[Any, None]:
        """The agent's own answer, whose last piece comes when it is durable."""
        keeping = self._keeping
        response: Response | None = None
        self._inside = asyncio.current_task()
        try:
            async with aclosing(self._on_messages_stream(messages, cancellation_token)) as items:
                async for item in items:
                    if isinstance(item, Response):
                        response = item
                    else:
                        yield item
            if keeping.begun.ids and response is not None:
                answer = [*(response.inner_messages or ()), response.chat_message]
                keeping.begun.said = [dict(message.dump()) for message in answer]
            await keeping.end()
        except BaseException as error:
            keeping.distrust()
            cause = keeping.cause(error)
            if cause is not error:
                raise cause from None
            raise
        finally:
            self._inside = None
        yield response

    def _known(self, run: Run) -> Response:
        """The answer that was given before."""
        answer = self._keeping.created(run.said)
        if not answer or not isinstance(answer[-1], BaseChatMessage):
            raise self._keeping.misfit(ValueError("what it answered is not there"))
        return Response(chat_message=answer[-1], inner_messages=answer[:-1])

    async def on_reset(self, cancellation_token: Any) -> None:
        """As AutoGen's, and durable."""
        async with self._keeping.using():
            await self._on_reset(cancellation_token)
            await self._keeping.clear()


def factory_of(agent: BaseChatAgent, types: Iterable[type[Any]]) -> MessageFactory:
    """What makes messages of what is stored: AutoGen's own, the agent's, and *types*."""
    factory = MessageFactory()
    content = getattr(agent, "_output_content_type", None)
    known: list[Any] = [] if content is None else [StructuredMessage.__class_getitem__(content)]
    for kind in (*known, *types):
        if not factory.is_registered(kind):
            factory.register(kind)
    return factory
