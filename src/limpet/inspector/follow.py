"""Telling a page that something has changed, by server-sent events.

An event carries a number and nothing else; the page then asks for what it shows. Whoever is slow
gets the newest number only, so that nothing is queued for anybody. One watcher looks at a journal,
however many follow it, and ends with the last of them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, Response, StreamingResponse

from limpet.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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
        self._topics: dict[Key, Topic] = {}
        self._count = 0

    def journal(self, key: Key) -> Response:
        """Events whenever the journal under *key* has new entries, or other attributes."""
        return self.stream(self._topics.get(key) or Topic(), key)

    def stream(self, topic: Topic, key: Key | None = None) -> Response:
        """Events whenever *topic* changes."""
        if self._count >= MOST:
            return PlainTextResponse("Too many pages follow this store.", status_code=503)
        return StreamingResponse(
            self._events(topic, key),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )

    async def _events(self, topic: Topic, key: Key | None) -> AsyncIterator[bytes]:
        watcher = None
        if key is not None:
            topic = self._topics.setdefault(key, topic)
            if topic.followers == 0:
                watcher = asyncio.create_task(self._watch(key, topic))
        topic.followers += 1
        self._count += 1
        try:
            seen = topic.number
            yield b": following\n\n"
            while True:
                try:
                    seen = await asyncio.wait_for(topic.next(seen), SILENCE)
                    yield f"data: {seen}\n\n".encode()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._count -= 1
            topic.followers -= 1
            # Whoever began to watch may leave before the others: the watcher ends by itself.
            if watcher is not None and topic.followers == 0:
                watcher.cancel()

    async def _watch(self, key: Key, topic: Topic) -> None:
        """Look at the head while somebody follows."""
        backend = self._scope.backend
        seen: object = None
        first = True
        try:
            while first or topic.followers:
                with suppress(StoreError):  # a server that is away comes back
                    head = await self._scope.runtime.call(backend.head, key)
                    now = head and (head.incarnation, head.seq, head.status, head.meta, head.labels)
                    if not first and now != seen:
                        topic.change()
                    seen, first = now, False
                await asyncio.sleep(LOOK)
        finally:
            if self._topics.get(key) is topic and not topic.followers:
                del self._topics[key]
