"""A chat on the OpenAI SDK that survives its process.

>>> import limpet
>>> from limpet.integrations.openai import Chat
>>> from openai import OpenAI
>>> def ask(question):
...     with limpet.open("agents.db") as store:
...         chat = Chat(OpenAI(), store.conversation("alice"), model="gpt-5")
...         return chat.send(question).text

What the user says is durable before the model is asked, and the reply before `send` returns. A tool
runs once. Wherever the process was killed, `send` with the same words, or `resume`, goes on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from limpet.conversations.conversation import KIND, AsyncConversation, Conversation
from limpet.conversations.transcript import MESSAGE
from limpet.conversations.window import Budget
from limpet.core.calls import Resolution, resolve_call
from limpet.core.codec import plain
from limpet.core.ids import check_seconds
from limpet.core.runtime import SyncWrapper, core_of, sync, wrapped
from limpet.errors import InvalidMessage, LimpetError, MissingExtra
from limpet.integrations.openai.apis import (
    APIS,
    MALFORMED,
    NO_JSON,
    ModelReply,
    count_as_sent,
    reading,
    with_whole_characters,
)
from limpet.integrations.openai.reply import (
    AsyncReplyStream,
    IncomingReply,
    Reply,
    ReplyStream,
    Request,
    Usage,
)
from limpet.integrations.openai.tool_calls import IN_DOUBT, ToolRunner
from limpet.integrations.openai.tools import Tool, sort_tools
from limpet.integrations.openai.turn import (
    CUT,
    CUT_OFF,
    REDACTED,
    REQUEST,
    StreamReader,
    Turn,
    TurnLock,
    is_question,
)
from limpet.llm import tokens
from limpet.llm.messages.check import fault_of
from limpet.tasks.task import AsyncTask, Task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from openai import AsyncOpenAI, OpenAI

    from limpet.core.calls import Answer
    from limpet.llm.messages.repair import Rule
    from limpet.llm.tokens import Count

    Content = str | list[Any] | Mapping[str, Any]

__all__ = ["AsyncChat", "Chat", "TooManyRounds"]

#: What would have the provider keep the history, or answer in a way that is not stored.
_OURS = ("messages", "input", "stream", "previous_response_id", "conversation", "background")


class TooManyRounds(LimpetError):
    """The model called tools in every round that it was allowed."""


class AsyncChat:
    """A persistent chat on an `AsyncOpenAI` client; see `Chat`."""

    def __init__(
        self,
        client: AsyncOpenAI | Any,
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
        in_doubt: Literal["skip", "ask", "retry"] = "skip",
        repair: Rule = "stub",
        task: AsyncTask | Task | None = None,
        max_rounds: int = 16,
        lease: float = 60,
        wait: float = 60,
        **params: Any,
    ) -> None:
        _check_conversation(conversation, AsyncConversation)
        for name, value, known in (
            ("api", api, APIS),
            ("in_doubt", in_doubt, IN_DOUBT),
            ("repair", repair, ("stub", "drop", "raise")),
        ):
            if value not in known:
                raise ValueError(f"{name} is one of {', '.join(known)}; not {value!r}.")
        self.conversation = conversation
        self.model = model
        scope = conversation.scope
        _check_client(client, awaits=not scope.is_sync)
        self._client = client
        self._runtime = scope.runtime
        self._instructions = instructions
        functions, self._hosted = sort_tools(tools)
        self._tools = ToolRunner(
            scope,
            conversation.id,
            functions,
            task=core_of(task) if isinstance(task, Task) else task,
            in_doubt=in_doubt,
            drop=repair == "drop",
        )
        self._max_tokens = max_tokens
        # Exact counting loads a vocabulary, which takes a moment: not where nothing is counted.
        counted = count or (tokens.counter(model) if max_tokens else tokens.estimate)
        self._count = count_as_sent(counted, api)
        self._compact = compact
        self._reserve = reserve
        self._api = APIS[api]
        self._repair: Rule = repair
        self._max_rounds = max_rounds
        self._held: set[TurnLock] = set()
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
        with self._turn_lock() as lock:
            async with lock:
                known = await self._begin(lock, content, id)
                if known is not None:
                    return Reply.of(known, stored=True)
                return await self._finish(lock, params)

    async def resume(self, /, **params: Any) -> Reply | None:
        """Answer what is unanswered, and finish what was cut short; None if there is nothing."""
        _checked(params)
        with self._turn_lock() as lock:
            async with lock:
                turn = await lock.turn()
                if turn.asked is None or turn.answered:
                    return None
                return await self._finish(lock, params)

    def stream(
        self, content: Content | None = None, /, *, id: str | None = None, **params: Any
    ) -> AsyncReplyStream:
        """`send` in pieces: ``async for piece in chat.stream("…")``; then its ``reply``.

        What has come is stored once in a while. Without *content* it is `resume` in pieces.
        """
        done: list[Reply] = []
        reader = StreamReader()
        pieces = self._stream(reader, done, content, id, _checked(params))
        return AsyncReplyStream(pieces, done, reader)

    async def resolve(
        self, call_id: str, how: Answer, *, result: Any = None, by: str | None = None
    ) -> None:
        """Say what became of a tool call in doubt: it is "done", with *result*; "retry"; or "skip".

        The next turn goes by it. *by* is recorded with it: who said so.
        """
        resolution = Resolution(call_id, how, result, by)
        await resolve_call(self.conversation.scope, KIND, self.conversation.id, resolution)

    def _turn_lock(self, reader: StreamReader | None = None) -> TurnLock:
        return TurnLock(
            self.conversation, lease=self._lease, wait=self._wait, held=self._held, reader=reader
        )

    async def _begin(self, lock: TurnLock, content: Content, id: str | None) -> Turn | None:
        """Make *content* durable, unless it is; returns its turn if that has been answered."""
        given = content if isinstance(content, Mapping) else {"role": "user", "content": content}
        message: dict[str, Any] = plain(given, "content")
        if not (is_question(message) and isinstance(message.get("content"), (str, list))):
            msg = (
                "What is sent is the user's: text, a list of parts, or a message with the role "
                "'user'."
            )
            raise InvalidMessage(msg)
        if (fault := fault_of(message)) is not None:
            raise InvalidMessage(f"What is sent {fault}")
        # As it is stored: the same words again are compared with that.
        message = self.conversation.transcript.journal.redacted(message)
        if id is not None:
            found, id = await lock.find(message, id)
            if found is not None:
                return found if found.answered else None
        turn = await lock.turn()
        if id is None and turn.asked == message and not turn.answered:
            return None
        if self._max_tokens is not None:
            # Before it is stored: nobody could ever answer it, and later windows would go round it.
            budget = Budget(count=self._count, **self._budget())
            await self.conversation.windows.check(message, budget)
        if turn.asked is not None and not turn.answered:
            # The user has gone on to something else, and nobody will finish this turn.
            entries = await self._tools.leave(turn, lock)
            if turn.partial:
                cut = {"role": "assistant", "content": turn.partial + CUT_OFF}
                entries += [(MESSAGE, cut), (CUT, None)]
            if entries:
                await lock.write(*entries)
        await lock.write((MESSAGE, message), id=id)
        return None

    async def _finish(self, lock: TurnLock, params: dict[str, Any]) -> Reply:
        """Run tools and ask the model until it has had the last word."""
        for left in range(self._max_rounds, -1, -1):  # none in the last round: only tools run
            turn = await self._run_tools(lock)
            if turn.answered:
                return Reply.of(turn)
            if not left:
                break
            body = await self._request_body(params)
            started = time.monotonic()
            with reading(*NO_JSON):
                answer = await self._runtime.invoke(self._api.create(self._client), **body)
            with reading(*MALFORMED):
                reply = self._api.read(answer)
            await self._store(lock, reply, time.monotonic() - started)
        raise self._too_many_rounds()

    async def _run_tools(self, lock: TurnLock) -> Turn:
        """The turn, when every tool that was called has answered."""
        turn = await lock.turn()
        if turn.pending:
            await self._tools.run(turn, lock)
            turn = await lock.turn()
        return turn

    async def _store(self, lock: TurnLock, reply: ModelReply, seconds: float) -> None:
        """Store a reply and what it cost, and that the calls which run next begin."""
        with reading(*MALFORMED):
            reply.check()
            reply = reply.with_own_ids()
            calls = reply.calls()
        messages = [(MESSAGE, with_whole_characters(message)) for message in reply.messages]
        entries = [*messages, (REQUEST, reply.about(seconds))]
        redacted = lock.take(calls, [message for _, message in messages])
        if redacted:
            entries.append((REDACTED, {"calls": redacted}))
        await lock.write(*entries, *self._tools.begin(self._tools.first(calls), lock))

    def _too_many_rounds(self) -> TooManyRounds:
        msg = (
            f"The model called tools {self._max_rounds} times in a row, and max_rounds allows no "
            "more. All of it is stored; resume() lets it go on."
        )
        return TooManyRounds(msg)

    # -- what is sent --------------------------------------------------------------------------

    async def _request_body(self, params: dict[str, Any], **default: Any) -> dict[str, Any]:
        """The request, with as much of the conversation as fits beside what is always there."""
        budget = self._budget()
        window = await self.conversation.window(
            **budget, count=self._count, repair=self._repair, compact=self._compact
        )
        body = self._api.body(self._api.convert(window, self._repair), self._instructions)
        if budget["tools"]:
            body["tools"] = budget["tools"]
        return {"model": self.model, **body, **default, **self._params, **params}

    def _budget(self) -> dict[str, Any]:
        """How much may be sent, and what is always sent beside the conversation."""
        reserve = self._reserve
        if self._instructions is not None and self._max_tokens is not None:
            reserve += int(self._count({"role": "system", "content": self._instructions}))
        tools = [*self._api.tools(self._tools.tools.values()), *self._hosted]
        return {"max_tokens": self._max_tokens, "reserve": reserve, "tools": tools}

    # -- in pieces -----------------------------------------------------------------------------

    async def _stream(
        self,
        reader: StreamReader,
        done: list[Reply],
        content: Content | None,
        id: str | None,
        params: dict[str, Any],
    ) -> AsyncGenerator[str, None]:
        """The pieces of a reply; at their end, *done* has all of it."""
        with self._turn_lock(reader) as lock:
            async with lock:
                if content is None:
                    turn = await lock.turn()
                    if turn.asked is None or turn.answered:
                        return
                else:
                    known = await self._begin(lock, content, id)
                    if known is not None:
                        done.append(Reply.of(known, stored=True))
                        yield done[0].text
                        return
                for left in range(self._max_rounds, -1, -1):  # as in `_finish`
                    turn = await self._run_tools(lock)
                    if turn.answered:
                        done.append(Reply.of(turn))
                        return
                    if not left:
                        break
                    body = await self._request_body(params, **self._api.streamed)
                    started = time.monotonic()
                    events = await self._runtime.invoke(self._api.create(self._client), **body)
                    incoming = IncomingReply(
                        lock, self._runtime, events, self._api.assembly(), started
                    )
                    try:
                        while (piece := await incoming.pull()) is not None:
                            if piece:
                                yield piece
                        reply = incoming.finish()
                    finally:
                        await incoming.close()
                    await self._store(lock, reply, incoming.seconds)
                raise self._too_many_rounds()

    async def partial(self) -> str | None:
        """The beginning of a reply whose end has not come, as far as it is stored."""
        turn = await self._turn_lock().turn()
        return turn.partial or None

    # -- what it cost --------------------------------------------------------------------------

    async def requests(self) -> list[Request]:
        """Every request that was answered: model, usage, how long it took. Reads everything."""
        found: list[Request] = []
        journal = self.conversation.transcript.journal
        async for entries in journal.pages():
            stored = (entry for entry in entries if entry.type == REQUEST)
            found.extend(journal.understand(entry, Request.of) for entry in stored)
        return found

    async def usage(self) -> Usage:
        """What this conversation has used. Reads everything."""
        return Usage.sum(request.usage for request in await self.requests())


class Chat(SyncWrapper[AsyncChat]):
    """A persistent chat on the user's own `OpenAI` client, in a conversation of a Limpet store.

    *instructions* go in front of what is sent, and are not stored. *tools* are functions (see
    `tool`), or dicts for tools that the provider runs. *max_tokens* is the budget for what is sent,
    with *reserve* of it left for the reply; *count* counts, and *compact* is what `window` takes by
    that name, for what no longer fits. *api*: "chat" for Chat Completions, "responses" for
    Responses; a conversation may change from one to the other. *in_doubt*: what becomes of a tool
    call that a crash has cut short and that may have happened ("skip": the model is told so; "ask":
    `CallsInDoubt`, until a person has resolved it; "retry": it runs again). *repair* is that of
    `window`; with "drop" the model never sees a call that was skipped. With a *task*, each tool
    call is a step of it. *max_rounds* is how often the model may call tools before it answers. One
    process speaks at a time, under a lease of *lease* seconds that renews itself; others wait for
    up to *wait* seconds. All other *params* go to the provider.

    For an `AsyncOpenAI` client and an async store there is `AsyncChat`.
    """

    def __init__(
        self,
        client: OpenAI | Any,
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
        in_doubt: Literal["skip", "ask", "retry"] = "skip",
        repair: Rule = "stub",
        task: AsyncTask | Task | None = None,
        max_rounds: int = 16,
        lease: float = 60,
        wait: float = 60,
        **params: Any,
    ) -> None:
        _check_conversation(conversation, Conversation)
        core = AsyncChat(
            client,
            core_of(conversation),
            model=model,
            instructions=instructions,
            tools=tools,
            max_tokens=max_tokens,
            reserve=reserve,
            count=count,
            compact=compact,
            api=api,
            in_doubt=in_doubt,
            repair=repair,
            task=task,
            max_rounds=max_rounds,
            lease=lease,
            wait=wait,
            **params,
        )
        super().__init__(core)
        self.conversation = conversation

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


def _checked(params: dict[str, Any]) -> dict[str, Any]:
    """*params*, if none of them is for the chat to say."""
    ours = [name for name in _OURS if name in params]
    if params.get("n", 1) != 1:
        ours.append("n")
    if ours:
        raise TypeError(f"A chat says {', '.join(ours)} by itself: leave that out.")
    return params


def _check_conversation(given: object, wanted: type) -> None:
    """`TypeError` if it is not a *wanted* one, which names the class that goes with it."""
    if isinstance(given, wanted):
        return
    if isinstance(given, Conversation):
        msg = (
            "An AsyncChat takes a conversation of an async store, and this is a sync one: open the "
            "store with limpet.open_async(), or use Chat with an OpenAI client."
        )
    elif isinstance(given, AsyncConversation):
        msg = (
            "A Chat takes a conversation of limpet.open(), and this is of an async store: use "
            "AsyncChat, with an AsyncOpenAI client."
        )
    else:
        msg = f"A chat is about a conversation: store.conversation(…), not {given!r:.80}."
    raise TypeError(msg)


def _check_client(client: Any, *, awaits: bool) -> None:
    """`TypeError` if *client* is of the other kind, and so goes with the other class."""
    try:
        import openai  # noqa: PLC0415 - optional, and slow to import
    except ImportError as error:
        raise MissingExtra.of("A chat", "openai", "openai") from error
    if awaits and isinstance(client, openai.OpenAI):
        msg = "An AsyncChat takes an AsyncOpenAI client. For an OpenAI client use Chat"
        raise TypeError(f"{msg}, with a conversation of limpet.open().")
    if not awaits and isinstance(client, openai.AsyncOpenAI):
        msg = "A Chat takes an OpenAI client. For an AsyncOpenAI client use AsyncChat"
        raise TypeError(f"{msg}, with a conversation of limpet.open_async().")
