"""Telling a page that something has changed, by server-sent events.

An event carries a number and nothing else; the page then asks for what it shows. Whoever is slow
gets the newest number only, so that nothing is queued for anybody. One watcher looks at a journal,
or at the two of a thread, however many follow it, and ends with the last of them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, Response, StreamingResponse

from limpet.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from limpet.backends.contract import Key
    from limpet.core.scope import Scope

__all__ = ["Followers", "Topic"]

#: Seconds between two looks at a journal that somebody follows.
LOOK = 0.5
#: Seconds of silence after which a client is sent a word, so that one that has gone is noticed.
SILENCE = 15.0
#: Clients that may follow at the same time.
MOST = 1_000


class Topic:
    """Something with a number that changes, and those who wait for that."""

    def __init__(self) -> None:
        self.number = 0
        self.followers = 0
        self.watched = asyncio.Event()  # set when somebody looks at what it stands for
        self.newest = 0  # of journals: their newest entries' numbers then, added up
        self._changed = asyncio.Event()

    def change(self, number: int | None = None) -> None:
        """Tell everybody the new *number*, by default the next one."""
        number = self.number + 1 if number is None else number
        if number != self.number:
            self.number = number
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def next(self, seen: int) -> int:
        """The number, as soon as it is not the one that was *seen*."""
        while self.number == seen:
            await self._changed.wait()
        return self.number


class Followers:
    """All who follow something of one store."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._topics: dict[tuple[Key, ...], Topic] = {}
        self._watchers: set[asyncio.Task[None]] = set()  # which the event loop does not hold
        self._count = 0

    def journals(self, keys: Sequence[Key], seen: int | None = None) -> Response:
        """Events whenever a journal under one of *keys* has new entries, or other attributes.

        *seen*: the number of the newest entry on the page that follows, of several journals the
        sum; what came between that and now is an event, too.
        """
        return self._stream(self._journal_events(tuple(keys), seen))

    def topic(self, topic: Topic, seen: int | None = None) -> Response:
        """Events whenever *topic* changes; what came since its number was *seen* is one, too."""
        return self._stream(self._events(topic, seen))

    def _stream(self, events: AsyncIterator[bytes]) -> Response:
        if self._count >= MOST:
            return PlainTextResponse("Too many pages follow this store.", status_code=503)
        return StreamingResponse(
            events,
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )

    async def _events(self, topic: Topic, seen: int | None = None) -> AsyncGenerator[bytes]:
        topic.followers += 1
        self._count += 1
        number = topic.number if seen is None else seen
        try:
            yield b": following\n\n"
            while True:
                try:
                    number = await asyncio.wait_for(topic.next(number), SILENCE)
                    yield f"data: {number}\n\n".encode()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._count -= 1
            topic.followers -= 1

    async def _journal_events(
        self, keys: tuple[Key, ...], seen: int | None
    ) -> AsyncIterator[bytes]:
        topic = self._topics.get(keys)
        if topic is None:
            topic = self._topics[keys] = Topic()
            self._watchers.add(watcher := asyncio.create_task(self._watch(keys, topic)))
            watcher.add_done_callback(self._watchers.discard)
        events = self._events(topic)
        try:
            yield await anext(events)
            # The watcher looks first, so that whatever is new to us now, or later, is told.
            await topic.watched.wait()
            if seen is not None and topic.newest != seen:
                yield b"data: 0\n\n"
            async for event in events:
                yield event
        finally:
            await events.aclose()

    async def _watch(self, keys: tuple[Key, ...], topic: Topic) -> None:
        """Look at the heads while somebody follows."""
        backend = self._scope.backend
        seen: object = None
        while True:
            with suppress(StoreError):  # a server that is away comes back
                heads = [await self._scope.runtime.call(backend.head, key) for key in keys]
                now = [
                    head and (head.incarnation, head.seq, head.status, head.meta, head.labels)
                    for head in heads
                ]
                if topic.watched.is_set() and now != seen:
                    topic.change()
                seen, topic.newest = now, sum(head.seq for head in heads if head is not None)
                topic.watched.set()
            await asyncio.sleep(LOOK)
            if not topic.followers:
                del self._topics[keys]
                return
