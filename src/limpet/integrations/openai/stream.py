"""Replies that come in pieces: stored once in a while, and kept if their end never comes."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from limpet.core.runtime import SyncWrapper, run_to_end, sync
from limpet.errors import LimpetError
from limpet.integrations.openai.floor import PIECE
from limpet.integrations.openai.wire import sound

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from limpet.core.runtime import Runtime
    from limpet.integrations.openai.floor import Floor, Reader
    from limpet.integrations.openai.reply import Reply
    from limpet.integrations.openai.wire import Assembly, Said

__all__ = ["AsyncReplyStream", "Live", "ReplyStream", "StreamCut"]

#: A reply that comes as a stream is stored when so much is new, or so many seconds have passed.
PIECE_CHARACTERS = 2_000
PIECE_SECONDS = 1.0


class StreamCut(LimpetError, ConnectionError):
    """A stream ended before the reply did. What came is kept."""


class Live:
    """A reply while it comes in."""

    def __init__(
        self, floor: Floor, port: Runtime, events: Any, assembly: Assembly, started: float
    ) -> None:
        self._floor = floor
        self._runtime = port
        self._events = events
        self._assembly = assembly
        self._started = self._stored_at = started
        self._unstored: list[str] = []
        self._half = ""  # of a character, whose other half is to come
        self._stored = False
        self._whole: Said | None = None
        self.seconds = 0.0

    async def pull(self) -> str | None:
        """The text of the next event, which may be none; None at the end."""
        following = anext if hasattr(self._events, "__anext__") else next
        event = await self._runtime.invoke(following, self._events, None)
        if event is None:
            return None
        piece = self._joined(self._assembly.take(event))
        if piece:
            self._unstored.append(piece)
            if self._due():
                await self._store()
        return piece

    def _joined(self, piece: str) -> str:
        """*piece*, without the half of a character at its end, which goes with the next one."""
        if not piece:
            return ""
        piece = self._half + piece
        cut = "\ud800" <= piece[-1] <= "\udbff"
        self._half = piece[-1] if cut else ""
        return str(sound(piece[:-1] if cut else piece))

    def _due(self) -> bool:
        late = time.monotonic() - self._stored_at >= PIECE_SECONDS
        return late or sum(map(len, self._unstored)) >= PIECE_CHARACTERS

    async def _store(self) -> None:
        text = "".join(self._unstored)
        await self._floor.write((PIECE, {"text": text, "more": self._stored}))
        self._unstored.clear()
        self._stored, self._stored_at = True, time.monotonic()

    def said(self) -> Said:
        """All of it, if its end has come."""
        self.seconds = time.monotonic() - self._started
        response = getattr(self._events, "response", None)
        self._whole = self._assembly.said(response and response.headers.get("x-request-id"))
        if self._whole is None:
            msg = (
                "The stream ended before the reply did. What has come is kept (partial()); "
                "resume() asks again."
            )
            raise StreamCut(msg)
        return self._whole

    async def close(self) -> None:
        """Let go of the connection. What came of a reply that is not whole is kept."""
        try:
            if self._whole is None and self._unstored:
                await self._store()
        finally:
            await self._runtime.invoke(self._events.close)


class AsyncReplyStream:
    """The pieces of a reply, as they come; when they have come, ``reply``.

    To leave it early, close it: ``async with chat.stream(…) as pieces``, or `close`.
    """

    def __init__(
        self, pieces: AsyncGenerator[str, None], done: list[Reply], reader: Reader
    ) -> None:
        # The generator must not know us: a stream that nobody holds any more is closed at once.
        self._pieces = pieces
        self._done = done
        self._reader = reader

    @property
    def reply(self) -> Reply | None:
        """All of it, when the last piece has come."""
        return self._done[0] if self._done else None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        self._reader.is_here()
        return await anext(self._pieces)

    async def close(self) -> None:
        """Stop here. What has come is kept, as that of a reply whose end never came."""
        await self._pieces.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        # Its loop is about to close it: others wait for that.
        self._reader.who = None


class ReplyStream(SyncWrapper[AsyncReplyStream]):
    """The pieces of a reply, as they come; when they have come, ``reply``."""

    @property
    def reply(self) -> Reply | None:
        """All of it, when the last piece has come."""
        return self._core.reply

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        try:
            return run_to_end(self._core.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    close = sync(AsyncReplyStream.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Of a loop that was left: or nobody else could speak until the lease ends.
        with suppress(Exception):
            self.close()
