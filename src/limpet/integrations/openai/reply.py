"""What comes back from a chat: replies, whole or in pieces, and what they cost."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from limpet.core.runtime import AsyncEntered, SyncWrapper, run_to_end, sync
from limpet.errors import LimpetError
from limpet.integrations.openai.apis import (
    MALFORMED,
    NO_JSON,
    ToolCall,
    calls_in,
    reading,
    with_whole_characters,
)
from limpet.integrations.openai.turn import PIECE
from limpet.llm.messages import results_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from limpet.core.journal import Entry
    from limpet.core.runtime import Runtime
    from limpet.integrations.openai.apis import ModelReply, ReplyAssembly
    from limpet.integrations.openai.turn import StreamReader, Turn, TurnLock

__all__ = [
    "AsyncReplyStream",
    "IncomingReply",
    "Reply",
    "ReplyStream",
    "Request",
    "StreamCut",
    "Usage",
]

#: A reply that comes as a stream is stored when so much is new, or so many seconds have passed.
PIECE_CHARACTERS = 2_000
PIECE_SECONDS = 1.0


class StreamCut(LimpetError, ConnectionError):
    """A stream ended before the reply did. What came is stored."""


class Usage(Struct, frozen=True):
    """Tokens, as the provider counted them, over some requests."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    #: Of the input, what the provider had in its cache; of the output, what was thought.
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens

    @classmethod
    def of(cls, stored: dict[str, int]) -> Usage:
        """That of one request."""
        return msgspec.convert({**stored, "requests": 1}, cls)

    @classmethod
    def sum(cls, usages: Iterable[Usage]) -> Usage:
        """All of them together."""
        rows = [[getattr(usage, name) for name in cls.__struct_fields__] for usage in usages]
        return cls(*map(sum, zip(*rows, strict=True)))


class Request(Struct, frozen=True):
    """What is known about one request that the model has answered."""

    at: datetime
    model: str
    response_id: str
    request_id: str | None
    finish_reason: str | None
    seconds: float
    usage: Usage

    @classmethod
    def of(cls, entry: Entry) -> Request:
        """The view of an *entry*."""
        body = entry.body
        return cls(
            at=entry.at,
            model=body["model"],
            response_id=body["response_id"],
            request_id=body.get("request_id"),
            finish_reason=body.get("finish_reason"),
            seconds=body["seconds"],
            usage=Usage.of(body["usage"]),
        )


class Reply(Struct, frozen=True, kw_only=True):
    """What the model said to the user, and what it did before.

    ``messages`` are all that came of the user's message, as they are stored, ``calls`` the tool
    calls among them with their results; ``finish_reason`` is "stop", or why there is no more:
    "length", "content_filter". ``stored``: it was there before, and no model was asked.
    """

    text: str
    refusal: str | None
    messages: list[dict[str, Any]]
    calls: list[ToolCall]
    usage: Usage
    finish_reason: str | None
    model: str | None
    request_id: str | None
    stored: bool

    def __repr__(self) -> str:
        size = f"{len(self.text)} characters, {len(self.calls)} calls"
        return f"Reply({size}, finish_reason={self.finish_reason!r}, stored={self.stored})"

    def __str__(self) -> str:
        return self.text

    @property
    def message(self) -> dict[str, Any]:
        """The last one."""
        return self.messages[-1]

    @classmethod
    def of(cls, turn: Turn, *, stored: bool = False) -> Reply:
        """The reply that ends *turn*."""
        calls: list[ToolCall] = []
        for message in turn.messages:
            calls += calls_in(message)
            result = message.get("content", message.get("output"))
            for id_ in results_of(message):
                # The last one of that id: there are models that number them anew in every reply.
                at = max((n for n, call in enumerate(calls) if call.id == id_), default=None)
                if at is not None:
                    calls[at] = replace(calls[at], result=result)
        last = turn.requests[-1] if turn.requests else {}
        return cls(
            text=turn.text(),
            refusal=turn.text("refusal") or None,
            messages=turn.messages,
            calls=calls,
            usage=Usage.sum(Usage.of(request["usage"]) for request in turn.requests),
            finish_reason=last.get("finish_reason"),
            model=last.get("model"),
            request_id=last.get("request_id"),
            stored=stored,
        )


# -- in pieces -------------------------------------------------------------------------------------


class IncomingReply:
    """A reply while it comes in: stored once in a while, and also if its end never comes.

    Where something is redacted, it is stored at its end only.
    """

    def __init__(
        self,
        lock: TurnLock,
        runtime: Runtime,
        events: Any,
        assembly: ReplyAssembly,
        started: float,
    ) -> None:
        self._lock = lock
        self._runtime = runtime
        self._events = events
        self._assembly = assembly
        self._started = self._stored_at = started
        self._unstored: list[str] = []
        self._half = ""  # of a character, whose other half is to come
        self._stored = False
        self._whole: ModelReply | None = None
        self.seconds = 0.0

    async def pull(self) -> str | None:
        """The text of the next event, which may be none; None at the end."""
        following = anext if hasattr(self._events, "__anext__") else next
        with reading(*NO_JSON):
            event = await self._runtime.invoke(following, self._events, None)
        if event is None:
            return None
        with reading(*MALFORMED):
            piece = self._assembly.take(event)
        if piece:
            # The half of a character at its end goes with the next piece.
            piece = self._half + piece
            is_half = "\ud800" <= piece[-1] <= "\udbff"
            self._half = piece[-1] if is_half else ""
            piece = str(with_whole_characters(piece[:-1] if is_half else piece))
        if piece and not self._lock.redacts:  # half of a secret would not be known for one
            self._unstored.append(piece)
            late = time.monotonic() - self._stored_at >= PIECE_SECONDS
            if late or sum(map(len, self._unstored)) >= PIECE_CHARACTERS:
                await self._store()
        return piece

    async def _store(self) -> None:
        text = "".join(self._unstored)
        await self._lock.write((PIECE, {"text": text, "more": self._stored}))
        self._unstored.clear()
        self._stored, self._stored_at = True, time.monotonic()

    def finish(self) -> ModelReply:
        """All of it; `StreamCut` if its end has not come."""
        self.seconds = time.monotonic() - self._started
        response = getattr(self._events, "response", None)
        request_id = response and response.headers.get("x-request-id")
        with reading(*MALFORMED):
            self._whole = self._assembly.finish(request_id)
        if self._whole is None:
            msg = (
                "The stream ended before the reply did. What has come is stored (partial()); "
                "resume() asks again."
            )
            raise StreamCut(msg)
        return self._whole

    async def close(self) -> None:
        """Close the connection. What came of a reply that is not whole is stored."""
        try:
            if self._whole is None and self._unstored:
                await self._store()
        finally:
            await self._runtime.invoke(self._events.close)


class AsyncReplyStream(AsyncEntered):
    """The pieces of a reply, as they come; when they have come, ``reply``.

    To leave it early, close it: ``async with chat.stream(…) as pieces``, or `close`.
    """

    def __init__(
        self, pieces: AsyncGenerator[str, None], done: list[Reply], reader: StreamReader
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
        """Stop here. What has come is stored, as that of a reply whose end never came."""
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
