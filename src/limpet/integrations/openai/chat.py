"""A chat on the OpenAI SDK that survives its process.

>>> import limpet
>>> from limpet.integrations.openai import Chat
>>> from openai import OpenAI
>>> def ask(question):
...     with limpet.open("agents.db") as store:
...         chat = Chat(OpenAI(), store.conversation("alice"), model="gpt-5")
...         return chat.send(question).text

What the user says is durable before the model is asked, and the reply before `send` returns. A tool
runs once. Whatever the process was killed in, `send` with the same words, or `resume`, goes on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from limpet.conversations.conversation import AsyncConversation, Conversation
from limpet.conversations.transcript import MESSAGE
from limpet.conversations.window import Budget
from limpet.core.codec import plain
from limpet.core.ids import check_seconds
from limpet.core.runtime import AsyncRuntime, sync, wrapped
from limpet.errors import CallsInDoubt, InvalidMessage, LimpetError, MissingExtra
from limpet.integrations.openai.floor import (
    BEGUN,
    CUT,
    CUT_OFF,
    REQUEST,
    Floor,
    Reader,
    Turn,
    is_question,
)
from limpet.integrations.openai.hands import Hands
from limpet.integrations.openai.reply import Made, Reply, Request, Usage, sum_of
from limpet.integrations.openai.stream import AsyncReplyStream, Live, ReplyStream, StreamCut
from limpet.integrations.openai.tools import Tool, tool, toolbox
from limpet.integrations.openai.wire import WIRES, Call, ModelFailed, Said, as_sent, sound
from limpet.llm import tokens

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from openai import AsyncOpenAI

    from limpet.llm.messages.repair import Rule
    from limpet.llm.tokens import Count
    from limpet.tasks.task import AsyncTask, Task

    Content = str | list[Any] | Mapping[str, Any]

__all__ = [
    "AsyncChat",
    "AsyncReplyStream",
    "Call",
    "CallsInDoubt",
    "Chat",
    "Made",
    "ModelFailed",
    "Reply",
    "ReplyStream",
    "Request",
    "StreamCut",
    "TooManyRounds",
    "Tool",
    "Usage",
    "tool",
]

#: What would have the provider keep the history, or answer in a way that is not stored.
_OURS = ("messages", "input", "stream", "previous_response_id", "conversation", "background")


class TooManyRounds(LimpetError):
    """The model called tools in every round that it was allowed."""


class AsyncChat:
    """A persistent chat on an `AsyncOpenAI` client; see `Chat`."""

    def __init__(
        self,
        client: AsyncOpenAI | Any,
        conversation: AsyncConversation | Any,
        *,
        model: str,
        instructions: str | None = None,
        tools: Iterable[Callable[..., Any] | Tool | dict[str, Any]] = (),
        max_tokens: int | None = None,
        reserve: int = 0,
        count: Count | None = None,
        compact: Any = None,
        api: Literal["chat", "responses"] = "chat",
        repair: Rule = "stub",
        task: AsyncTask | Task | None = None,
        max_rounds: int = 16,
        lease: float = 60,
        wait: float = 60,
        **params: Any,
    ) -> None:
        if not isinstance(conversation, AsyncConversation):
            raise _no_conversation(conversation)
        if api not in WIRES:
            raise ValueError(f'api is "chat" or "responses"; not {api!r}.')
        if repair not in ("stub", "drop", "raise"):
            raise ValueError(f'repair is "stub", "drop" or "raise"; not {repair!r}.')
        self.conversation: AsyncConversation = conversation
        self.model = model
        self._runtime = conversation.scope.runtime
        _check_client(client, awaits=isinstance(self._runtime, AsyncRuntime))
        self._client = client
        self._instructions = instructions
        functions, self._hosted = toolbox(tools)
        self._hands = Hands(self._runtime, functions, task, repair)
        self._max_tokens = max_tokens
        # Exact counting loads a vocabulary, which takes a moment: not where nothing is counted.
        counted = count or (tokens.counter(model) if max_tokens else tokens.estimate)
        self._count = as_sent(counted, api)
        self._compact = compact
        self._reserve = reserve
        self._wire = WIRES[api]
        self._repair: Rule = repair
        self._max_rounds = max_rounds
        self._keeper = conversation.scope.store.leases
        self._speaking: set[Floor] = set()
        self._lease = check_seconds(lease, "lease")
        self._wait = wait
        self._params = _checked(params)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.conversation.id!r}, model={self.model!r})"

    # -- speaking ------------------------------------------------------------------------------

    async def send(self, content: Content, /, *, id: str | None = None, **params: Any) -> Reply:
        """Say *content* and return the model's reply, when both are durable.

        *content* is text, a list of parts, or a whole message. The same again after a crash, or
        after an error of the provider's, goes on with what is stored. An *id* makes that certain:
        under it, *content* is stored and answered once, and the stored answer is returned.
        *params* go to the provider, before those of the chat.
        """
        _checked(params)
        async with self._floor() as floor:
            known = await self._begin(floor, content, id)
            if known is not None:
                return Reply.of(known, stored=True)
            return await self._finish(floor, params)

    async def resume(self, /, **params: Any) -> Reply | None:
        """Answer what is unanswered, and finish what was cut short; None if there is nothing."""
        _checked(params)
        async with self._floor() as floor:
            if not await self._unanswered(floor):
                return None
            return await self._finish(floor, params)

    def stream(
        self, content: Content | None = None, /, *, id: str | None = None, **params: Any
    ) -> AsyncReplyStream:
        """`send` in pieces: ``async for piece in chat.stream("…")``; then its ``reply``.

        What has come is stored once in a while. Without *content* it is `resume` in pieces.
        """
        done: list[Reply] = []
        reader = Reader()
        pieces = self._stream(reader, done, content, id, _checked(params))
        return AsyncReplyStream(pieces, done, reader)

    async def resolve(self, call_id: str, result: Any) -> None:
        """Say what came of a tool call that is in doubt."""
        async with self._floor() as floor:
            for call in (await floor.turn()).pending:
                if call.id == call_id:
                    await floor.write((MESSAGE, call.answered(self._hands.worded(result))))
                    return
        raise ValueError(f"No tool call {call_id!r} is waiting for a result.")

    def _floor(self, reader: Reader | None = None) -> Floor:
        return Floor(
            self.conversation,
            self._keeper,
            lease=self._lease,
            wait=self._wait,
            others=self._speaking,
            reader=reader,
        )

    async def _unanswered(self, floor: Floor) -> bool:
        turn = await floor.turn()
        return turn.asked is not None and not turn.answered

    async def _begin(self, floor: Floor, content: Content, id: str | None) -> Turn | None:
        """Make *content* durable, unless it is; returns its turn if that has been answered."""
        message = _message(content)
        if id is not None:
            found, id = await floor.find(message, id)
            if found is not None:
                return found if found.answered else None
        turn = await floor.turn()
        if id is None and turn.asked == message and not turn.answered:
            return None
        if self._max_tokens is not None:
            # Before it is stored: nobody could ever answer it, and later windows would go round it.
            budget = Budget(count=self._count, **self._budget())
            await self.conversation.windows.check(message, budget)
        await self._leave(floor, turn)
        await floor.write((MESSAGE, message), id=id)
        return None

    async def _leave(self, floor: Floor, turn: Turn) -> None:
        """End a turn that was cut short, because the user has gone on to something else."""
        if turn.asked is None or turn.answered:
            return
        entries = await self._hands.leave(turn)
        if turn.partial:
            cut = {"role": "assistant", "content": turn.partial + CUT_OFF}
            entries += [(MESSAGE, cut), (CUT, None)]
        if entries:
            await floor.write(*entries)

    async def _finish(self, floor: Floor, params: dict[str, Any]) -> Reply:
        """Run tools and ask the model until it has had the last word."""
        begun: set[str] = set()
        for left in self._rounds():
            turn = await self._caught_up(floor, begun)
            if turn.answered:
                return Reply.of(turn)
            if not left:
                break
            body = await self._body(params)
            started = time.monotonic()
            reply = await self._runtime.invoke(self._wire.create(self._client), **body)
            said = self._wire.said(reply)
            begun = await self._keep(floor, said, time.monotonic() - started)
        raise self._too_many()

    def _rounds(self) -> range:
        """The requests that are left in each round; none in the last, in which only tools run."""
        return range(self._max_rounds, -1, -1)

    async def _caught_up(self, floor: Floor, begun: set[str]) -> Turn:
        """The turn, when every tool that was called has answered."""
        turn = await floor.turn()
        if turn.pending:
            await self._hands.run(floor, turn, begun)
            turn = await floor.turn()
        return turn

    async def _keep(self, floor: Floor, said: Said, seconds: float) -> set[str]:
        """Store a reply and what it cost; the calls that are about to run are marked with it."""
        entries: list[tuple[str, Any]] = [(MESSAGE, sound(message)) for message in said.messages]
        entries.append((REQUEST, said.about(seconds)))
        begun = self._hands.first(said.calls())
        if begun:
            entries.append((BEGUN, {"calls": begun}))
        await floor.write(*entries)
        return set(begun)

    def _too_many(self) -> TooManyRounds:
        msg = (
            f"The model called tools {self._max_rounds} times in a row, and max_rounds allows no "
            "more. All of it is stored; resume() lets it go on."
        )
        return TooManyRounds(msg)

    # -- what is sent --------------------------------------------------------------------------

    async def _body(self, params: dict[str, Any], **default: Any) -> dict[str, Any]:
        """The request, with as much of the conversation as fits beside what is always there."""
        budget = self._budget()
        window = await self.conversation.window(
            **budget, count=self._count, repair=self._repair, compact=self._compact
        )
        body = self._wire.body(self._wire.shaped(window, self._repair), self._instructions)
        if budget["tools"]:
            body["tools"] = budget["tools"]
        return {"model": self.model, **body, **default, **self._params, **params}

    def _budget(self) -> dict[str, Any]:
        """How much may be sent, and what is always sent beside the conversation."""
        functions = self._hands.tools.values()
        return {
            "max_tokens": self._max_tokens,
            "reserve": self._reserve + self._told(),
            "tools": [*self._wire.tools(functions), *self._hosted],
        }

    def _told(self) -> int:
        """The tokens of the instructions."""
        if self._instructions is None or self._max_tokens is None:
            return 0
        return int(self._count({"role": "system", "content": self._instructions}))

    # -- in pieces -----------------------------------------------------------------------------

    async def _stream(
        self,
        reader: Reader,
        done: list[Reply],
        content: Content | None,
        id: str | None,
        params: dict[str, Any],
    ) -> AsyncGenerator[str, None]:
        """The pieces of a reply; at their end, *done* has all of it."""
        async with self._floor(reader) as floor:
            if content is None and not await self._unanswered(floor):
                return
            known = None if content is None else await self._begin(floor, content, id)
            if known is not None:
                done.append(Reply.of(known, stored=True))
                yield done[0].text
                return
            begun: set[str] = set()
            for left in self._rounds():
                turn = await self._caught_up(floor, begun)
                if turn.answered:
                    done.append(Reply.of(turn))
                    return
                if not left:
                    break
                live = await self._open(floor, params)
                try:
                    while (piece := await live.pull()) is not None:
                        if piece:
                            yield piece
                    said = live.said()
                finally:
                    await live.close()
                begun = await self._keep(floor, said, live.seconds)
            raise self._too_many()

    async def _open(self, floor: Floor, params: dict[str, Any]) -> Live:
        body = await self._body(params, **self._wire.streamed)
        started = time.monotonic()
        events = await self._runtime.invoke(self._wire.create(self._client), **body)
        return Live(floor, self._runtime, events, self._wire.assembly(), started)

    async def partial(self) -> str | None:
        """The beginning of a reply whose end has not come, as far as it is stored."""
        turn = await self._floor().turn()
        return turn.partial or None

    # -- what it cost --------------------------------------------------------------------------

    async def requests(self) -> list[Request]:
        """Every request that was answered: model, usage, how long it took. Reads everything."""
        found: list[Request] = []
        async for entries in self.conversation.transcript.journal.pages():
            found += [Request.of(entry) for entry in entries if entry.type == REQUEST]
        return found

    async def usage(self) -> Usage:
        """What this conversation has used. Reads everything."""
        return sum_of(request.usage for request in await self.requests())


class Chat:
    """A persistent chat on the user's own client, in a conversation of a Limpet store.

    *instructions* go in front of what is sent, and are not stored. *tools* are functions (see
    `tool`), or dicts for tools that the provider runs. *max_tokens* is the budget for what is sent,
    with *reserve* of it left for the reply; *count* counts, and *compact* is what `window` takes by
    that name, for what no longer fits. *api*: "chat" for Chat Completions,
    "responses" for Responses; a conversation may change from one to the other. *repair*: what
    becomes of a tool call that was cut short by a crash and may not run again ("stub": the model is
    told so; "drop": it is left out; "raise": `CallsInDoubt`). With a *task*, each tool call is a
    step of it. *max_rounds* is how often the model may call tools before it answers. One process
    speaks at a time, under a lease of *lease* seconds that renews itself; others wait for up to
    *wait* seconds. All other *params* go to the provider.

    With an `AsyncOpenAI` and a conversation of an async store this is an `AsyncChat`.
    """

    _core: AsyncChat
    conversation: Conversation

    # No __init__: mypy would go by that, and not by what comes back from here.
    # The options are those of an AsyncChat, written out for whoever has a type checker.
    @overload
    def __new__(
        cls,
        client: Any,
        conversation: Conversation,
        *,
        model: str,
        instructions: str | None = None,
        tools: Iterable[Callable[..., Any] | Tool | dict[str, Any]] = (),
        max_tokens: int | None = None,
        reserve: int = 0,
        count: Count | None = None,
        compact: Any = None,
        api: Literal["chat", "responses"] = "chat",
        repair: Rule = "stub",
        task: AsyncTask | Task | None = None,
        max_rounds: int = 16,
        lease: float = 60,
        wait: float = 60,
        **params: Any,
    ) -> Self: ...
    @overload
    def __new__(  # type: ignore[misc] # not one of its own kind, and that is the point
        cls,
        client: Any,
        conversation: AsyncConversation,
        *,
        model: str,
        instructions: str | None = None,
        tools: Iterable[Callable[..., Any] | Tool | dict[str, Any]] = (),
        max_tokens: int | None = None,
        reserve: int = 0,
        count: Count | None = None,
        compact: Any = None,
        api: Literal["chat", "responses"] = "chat",
        repair: Rule = "stub",
        task: AsyncTask | Task | None = None,
        max_rounds: int = 16,
        lease: float = 60,
        wait: float = 60,
        **params: Any,
    ) -> AsyncChat: ...
    def __new__(cls, client: Any, conversation: Any, **options: Any) -> Any:
        """The face that goes with *conversation*."""
        if not isinstance(conversation, Conversation):
            return AsyncChat(client, conversation, **options)
        chat = super().__new__(cls)
        chat._core = AsyncChat(client, conversation._core, **options)  # noqa: SLF001 - its other half
        chat.conversation = conversation
        return chat

    __signature__ = signature(AsyncChat)  # for help() and notebooks

    def __repr__(self) -> str:
        return repr(self._core).replace("Async", "", 1)

    @property
    def model(self) -> str:
        """Which model is asked."""
        return self._core.model

    send = sync(AsyncChat.send)
    resume = sync(AsyncChat.resume)
    resolve = sync(AsyncChat.resolve)
    stream = wrapped(AsyncChat.stream, ReplyStream)
    partial = sync(AsyncChat.partial)
    requests = sync(AsyncChat.requests)
    usage = sync(AsyncChat.usage)


def _message(content: Content) -> dict[str, Any]:
    message = content if isinstance(content, Mapping) else {"role": "user", "content": content}
    found: dict[str, Any] = plain(message, "content")
    if not (is_question(found) and isinstance(found.get("content"), (str, list))):
        msg = (
            "What is sent is the user's: text, a list of parts, or a message with the role 'user'."
        )
        raise InvalidMessage(msg)
    return found


def _no_conversation(given: object) -> TypeError:
    if isinstance(given, Conversation):
        msg = (
            "An AsyncChat is about a conversation of an async store, and this is of another: open "
            "the store with limpet.open_async(), or use Chat with an OpenAI client."
        )
        return TypeError(msg)
    return TypeError(f"A chat is about a conversation: store.conversation(…), not {given!r:.80}.")


def _checked(params: dict[str, Any]) -> dict[str, Any]:
    """*params*, if none of them is for the chat to say."""
    ours = [name for name in _OURS if name in params]
    if params.get("n", 1) != 1:
        ours.append("n")
    if ours:
        raise TypeError(f"A chat says {', '.join(ours)} by itself: leave that out.")
    return params


def _check_client(client: Any, *, awaits: bool) -> None:
    try:
        import openai  # noqa: PLC0415 - optional, and slow to import
    except ImportError as error:
        raise MissingExtra.of("A chat", "openai", "openai") from error
    wrong = openai.OpenAI if awaits else openai.AsyncOpenAI
    if isinstance(client, wrong):
        msg = (
            f"{type(client).__name__} does not go with this store. An OpenAI client goes with "
            "limpet.open(), an AsyncOpenAI client with limpet.open_async()."
        )
        raise TypeError(msg)
