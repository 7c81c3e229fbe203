"""Conversations: messages in order, durable one by one, and the part of them that fits a model."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast import tokens
from holdfast._faces import Face, blocking
from holdfast._window import Window
from holdfast.backends.base import UNSET, Head, UnsetType, from_micros
from holdfast.codec import convert, plain
from holdfast.errors import Conflict, ConversationNotFound, InvalidMessage, NotStorable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from holdfast.journal import AsyncJournal

    Message = Mapping[str, Any]

__all__ = ["AsyncConversation", "Conversation", "ConversationInfo"]

KIND = "conversation"

# Entry types.
MESSAGE = "message"
CLEARED = "cleared"  # what came before it is no longer part of the conversation
COPIED = "copied"  # a message of the conversation this one was forked from …
FORKED = "forked"  # … which counts once all of them are here

#: Messages to a record in a fork: reading the end of it must not mean reading all of it.
CHUNK = 32
PAGE = 1000


class ConversationInfo(Struct, frozen=True):
    """A conversation in a list: everything about it but its messages."""

    id: str
    position: int
    size: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    labels: dict[str, str]

    @classmethod
    def of(cls, head: Head) -> ConversationInfo:
        """The view of a journal's *head*."""
        return cls(
            id=head.key.id,
            position=head.seq,
            size=head.size,
            created_at=from_micros(head.created),
            updated_at=from_micros(head.updated),
            expires_at=None if head.expires is None else from_micros(head.expires),
            labels=head.labels,
        )


class AsyncConversation:
    """A conversation with one user, session or agent; see `Conversation`."""

    def __init__(
        self,
        journal: AsyncJournal,
        elsewhere: Callable[[str], AsyncJournal],
        *,
        labels: Mapping[str, str | None] | UnsetType = UNSET,
        ttl: float | UnsetType | None = UNSET,
    ) -> None:
        self._journal = journal
        self._elsewhere = elsewhere
        self._labels = labels
        self._ttl = ttl

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @property
    def id(self) -> str:
        """What the conversation is known by."""
        return self._journal.key.id

    async def append(
        self,
        *messages: object,
        expect: int | None = None,
        id: str | None = None,
    ) -> int:
        """Add *messages* at the end, all or none; returns the position of the last one.

        Each is a dict with a role, or a model object that becomes one. Durable on return. Two
        writers both keep what they said, in one order; with *expect*, a position returned before,
        the second gets a `Conflict` instead. An *id* makes a retried append harmless: the same id
        again adds nothing and returns the first position.
        """
        if not messages:
            msg = "append() needs at least one message, for example {'role': 'user', 'content': …}."
            raise InvalidMessage(msg)
        entries = [(MESSAGE, _checked(message, at)) for at, message in enumerate(messages)]
        try:
            return await self._journal.append(
                *entries, expect=expect, id=id, labels=self._labels, ttl=self._ttl
            )
        except NotStorable as error:
            raise error.under(MESSAGE, "message") from error

    async def messages(self, *, last: int | None = None, as_: Any = None) -> list[Any]:
        """Every message, oldest first, or the *last* few; each as the type *as_* if one is named.

        The last few may begin with the result of a tool call that is not among them; what to send
        to a model is `window`.
        """
        found = await (self._all() if last is None else self._last(last))
        return found if as_ is None else [convert(message, as_) for message in found]

    async def _all(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        copied: list[dict[str, Any]] = []
        async for runs in self._journal.runs():
            for run in runs:
                kind = run[0]
                del run[0]
                if kind == MESSAGE:
                    found += run
                elif kind == COPIED:
                    copied += run
                elif kind == FORKED:
                    found += copied
                elif kind == CLEARED:
                    found.clear()
        return found

    async def _last(self, count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        async for message in self._newest_first(count):
            if len(found) == count:
                break
            found.append(message)
        return found[::-1]

    async def _newest_first(
        self, size: int, *, after: int = 0, upto: int | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Messages from the end, in pages of about *size*."""
        wanted = {MESSAGE}
        async for entries in self._journal.pages(after=after, upto=upto, reverse=True, size=size):
            for entry in entries:
                if entry.type == CLEARED:
                    return
                if entry.type == FORKED:
                    wanted.add(COPIED)
                elif entry.type in wanted:
                    yield entry.body

    async def last(self) -> dict[str, Any] | None:
        """The newest message, or None."""
        found = await self._last(1)
        return found[0] if found else None

    async def length(self) -> int:
        """How many messages there are. Reads all of them; `info().position` costs nothing."""
        return len(await self._all())

    async def window(
        self,
        *,
        max_tokens: int | None = None,
        max_messages: int | None = None,
        count: tokens.Counter | None = None,
    ) -> list[dict[str, Any]]:
        """What to send to the model: the newest messages that fit.

        System messages at the very beginning stay in front. A tool call and its results go together
        or not at all. *count* says how many tokens a message takes; without it they are estimated
        (see `holdfast.tokens`). Reads from the end, and no further than it must. `WindowTooSmall`
        if the newest message, with what belongs to it, is over the budget by itself.
        """
        window = Window(max_tokens, max_messages, count or tokens.estimate)
        opening = await self._opening()
        for _, message in opening:
            window.keep(message)
        after = opening[-1][0] if opening else 0
        size = max_messages or (max_tokens or 4000) // 100  # a guess: a first page that will do
        async for message in self._newest_first(size, after=after):
            if not window.take(message):
                break
        return window.messages()

    async def _opening(self) -> list[tuple[int, dict[str, Any]]]:
        """The system messages before all others, with their positions."""
        found: list[tuple[int, dict[str, Any]]] = []
        async for entries in self._journal.pages(size=8):
            for entry in entries:
                if entry.type == CLEARED:
                    found.clear()
                elif entry.type != FORKED:
                    if entry.body.get("role") not in ("system", "developer"):
                        return found
                    found.append((entry.seq, entry.body))
        return found

    async def fork(self, id: str, *, at: int | None = None) -> AsyncConversation:
        """A new conversation *id* that begins with this one's messages up to position *at*.

        The two are then independent. A fork cut short by a crash has no messages, and is finished
        by the same call again. `Conflict` if there is another conversation with that id.
        """
        head = await self._journal.head()
        if head is None:
            raise _not_found(self.id)
        at = head.seq if at is None else min(at, head.seq)
        messages = [m async for m in self._newest_first(PAGE, upto=at)][::-1]
        if not messages:
            msg = f"Conversation {self.id!r} has no messages up to {at}; a fork needs at least one."
            raise InvalidMessage(msg)
        target = self._elsewhere(id)
        try:
            await self._copy(messages, target, {"from": self.id, "at": at}, head.labels)
        except Conflict as error:
            msg = f"There is a conversation {id!r} already. Fork to another id, or delete it first."
            raise Conflict(msg, error.expected, error.actual) from error
        return AsyncConversation(target, self._elsewhere)

    @staticmethod
    async def _copy(
        messages: list[dict[str, Any]],
        target: AsyncJournal,
        origin: dict[str, Any],
        labels: Mapping[str, str],
    ) -> None:
        position = 0
        for start in range(0, len(messages), CHUNK):
            entries: list[tuple[str, Any]] = [(COPIED, m) for m in messages[start : start + CHUNK]]
            if start + CHUNK >= len(messages):
                entries.append((FORKED, origin))
            position = await target.append(
                *entries, id=f"fork-{start}", expect=position, labels=labels
            )

    async def clear(self) -> None:
        """Start afresh: the messages are removed, id, labels and positions go on."""
        if await self._journal.head() is None:
            return
        # In this order: a crash between the two leaves room unfreed, never half a conversation.
        position = await self._journal.append((CLEARED, None))
        await self._journal.compact(position)

    async def delete(self) -> bool:
        """Remove the conversation. False if it was not there."""
        return await self._journal.delete()

    async def info(self) -> ConversationInfo:
        """Labels, size, times and position."""
        head = await self._journal.head()
        if head is None:
            raise _not_found(self.id)
        return ConversationInfo.of(head)

    async def label(self, /, **labels: str | None) -> None:
        """Set labels; None removes one. They are what `store.conversations(labels=…)` finds by."""
        await self._change(labels=labels)

    async def expire(self, ttl: float | None) -> None:
        """Let it end *ttl* seconds after the last append, from now on; None: never."""
        await self._change(ttl=ttl)
        self._ttl = ttl

    async def _change(self, **changes: Any) -> None:
        if not await self._journal.append(**changes):
            raise _not_found(self.id)


class Conversation(Face[AsyncConversation]):
    """A conversation with one user, session or agent.

    Messages are dicts with a role, as the OpenAI SDK has them; any other keys are kept.

    >>> import holdfast
    >>> with holdfast.open("memory:") as store:
    ...     chat = store.conversation("alice")
    ...     chat.append({"role": "user", "content": "I prefer e-mail."})
    ...     chat.messages()
    1
    [{'role': 'user', 'content': 'I prefer e-mail.'}]
    """

    @property
    def id(self) -> str:
        """What the conversation is known by."""
        return self._core.id

    append = blocking(AsyncConversation.append)
    messages = blocking(AsyncConversation.messages)
    last = blocking(AsyncConversation.last)
    length = blocking(AsyncConversation.length)
    window = blocking(AsyncConversation.window)
    clear = blocking(AsyncConversation.clear)
    delete = blocking(AsyncConversation.delete)
    info = blocking(AsyncConversation.info)
    label = blocking(AsyncConversation.label)
    expire = blocking(AsyncConversation.expire)
    _fork = blocking(AsyncConversation.fork)

    def fork(self, id: str, *, at: int | None = None) -> Conversation:
        """A new conversation *id* that begins with this one's messages up to position *at*."""
        return Conversation(self._fork(id, at=at))


def _checked(message: object, index: int) -> Message:
    """*message* as a dict, if it is one or can become one."""
    found = message if isinstance(message, Mapping) else plain(message)
    if isinstance(found, Mapping) and (
        isinstance(found.get("role"), str) or isinstance(found.get("type"), str)
    ):
        return found
    what = "a dict without a role" if isinstance(found, Mapping) else f"a {type(message).__name__}"
    msg = (
        f"Message {index + 1} is {what}. A message is a dict with a role, for example "
        "{'role': 'user', 'content': 'Hello'}."
    )
    raise InvalidMessage(msg)


def _not_found(id_: str) -> ConversationNotFound:
    return ConversationNotFound(f"There is no conversation {id_!r} (or it has expired).")
