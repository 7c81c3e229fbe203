"""Conversations: messages in order, durable one by one, and the part of them that fits a model."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from holdfast import tokens
from holdfast._faces import Face, blocking
from holdfast._window import Window
from holdfast.backends.base import UNSET, Head, UnsetType, from_micros
from holdfast.codec import convert, plain
from holdfast.errors import Conflict, ConversationNotFound, InvalidMessage
from holdfast.ids import check_ttl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.journal import AsyncJournal

    Message = Mapping[str, Any]

__all__ = ["AsyncConversation", "Conversation", "ConversationInfo"]

KIND = "conversation"

# Entry types.
MESSAGE = "message"
CLEARED = "cleared"  # what came before it is no longer part of the conversation
COPIED = "copied"  # a message of the conversation this one was forked from …
FORKED = "forked"  # … which counts once all of them are here

# Statuses, kept with the head. Most conversations have none.
FORKING = "forking"  # a fork that is not all here
CLEARED_AT = "cleared at "  # and the position: it begins behind that

#: Messages to a record in a fork, and their size: reading the end must not mean reading all of it.
CHUNK = 32
CHUNK_BYTES = 1024 * 1024
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
        self._ttl = check_ttl(ttl)

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
        entries = [(MESSAGE, _checked(message, n)) for n, message in enumerate(messages, 1)]
        record = await self._journal.write(
            entries, expect=expect, id=id, labels=self._labels, ttl=self._ttl
        )
        return record.seq

    async def messages(self, *, last: int | None = None, as_: Any = None) -> list[Any]:
        """Every message, oldest first, or the *last* few; each as the type *as_* if one is named.

        The last few may begin with the result of a tool call that is not among them; what to send
        to a model is `window`.
        """
        if last is not None and last < 0:
            msg = f"messages(last={last}): say how many, from 0 up; without it you get all of them."
            raise ValueError(msg)
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

        def take(message: dict[str, Any]) -> bool:
            found.append(message)
            return len(found) < count

        if count:
            await self._newest_first(take, count)
        return found[::-1]

    async def _newest_first(
        self,
        take: Callable[[dict[str, Any]], bool],
        size: int,
        *,
        after: int = 0,
        upto: int | None = None,
        wanted: Iterable[str] = (MESSAGE,),
    ) -> None:
        """Give *take* messages from the end, in pages of about *size*, until it returns False.

        *wanted*: entry types that count.
        """
        wanted = set(wanted)
        async for entries in self._journal.pages(after=after, upto=upto, reverse=True, size=size):
            for entry in entries:
                if entry.type == CLEARED:
                    return
                if entry.type == FORKED:
                    wanted.add(COPIED)
                elif entry.type in wanted and not take(entry.body):
                    return

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
        head = await self._journal.head()
        if head is None:
            return []
        opening = await self._opening(head)
        for _, message in opening:
            window.keep(message)
        after = opening[-1][0] if opening else _start(head)
        size = max_messages or (max_tokens or 4000) // 100  # a guess: a first page that will do
        await self._newest_first(window.take, size, after=after)
        return window.messages()

    async def _opening(self, head: Head) -> list[tuple[int, dict[str, Any]]]:
        """The system messages before all others, with their positions."""
        found: list[tuple[int, dict[str, Any]]] = []
        silent = (FORKED, COPIED) if head.status == FORKING else (FORKED,)
        async for entries in self._journal.pages(after=_start(head), size=8):
            for entry in entries:
                if entry.type == CLEARED:
                    found.clear()
                elif entry.type not in silent:
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
        # In a fork of a fork, what says that its copy is whole may lie behind *at*.
        wanted = (MESSAGE,) if head.status == FORKING else (MESSAGE, COPIED)
        found: list[dict[str, Any]] = []

        def take(message: dict[str, Any]) -> bool:
            found.append(message)
            return True

        await self._newest_first(take, PAGE, after=_start(head), upto=at, wanted=wanted)
        if not found:
            msg = f"Conversation {self.id!r} has no messages up to {at}; a fork needs at least one."
            raise InvalidMessage(msg)
        target = self._elsewhere(id)
        ttl = _ttl(head) if self._ttl is UNSET else self._ttl
        try:
            origin = {"from": self.id, "at": at}
            await _copy(found[::-1], target, origin, labels=head.labels, ttl=ttl)
        except Conflict as error:
            msg = f"There is a conversation {id!r} already. Fork to another id, or delete it first."
            raise Conflict(msg, error.expected, error.actual) from error
        return AsyncConversation(target, self._elsewhere, ttl=ttl)

    async def clear(self) -> None:
        """Start afresh: the messages are removed, id, labels and positions go on."""
        while (head := await self._journal.head()) is not None:
            # In this order: a crash between the two leaves room unfreed, never half a conversation.
            # The status is for those who read from the beginning, and would not know till the end.
            position = head.seq + 1
            try:
                await self._journal.append(
                    (CLEARED, None), expect=head.seq, status=f"{CLEARED_AT}{position}"
                )
            except Conflict:
                continue
            await self._journal.compact(position)
            return

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
        if self._labels is not UNSET:
            self._labels = {**self._labels, **labels}

    async def expire(self, ttl: float | None) -> None:
        """Let it end *ttl* seconds after the last append, from now on; None: never."""
        await self._change(ttl=check_ttl(ttl))
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
        """A new conversation *id* that begins with this one's messages up to position *at*.

        The two are then independent. A fork cut short by a crash has no messages, and is finished
        by the same call again. `Conflict` if there is another conversation with that id.
        """
        return Conversation(self._fork(id, at=at))


async def _copy(
    messages: list[dict[str, Any]], target: AsyncJournal, origin: dict[str, Any], **changes: Any
) -> None:
    """Write *messages* to an empty *target*, in chunks that a repeated call takes up again."""
    entries = [*((COPIED, message) for message in messages), (FORKED, origin)]
    done = position = 0
    for chunk in chunks(entries):
        status = None if done + len(chunk) == len(entries) else FORKING
        position = await target.append(
            *chunk, id=f"fork-{done}", expect=position, status=status, **changes
        )
        done += len(chunk)


def chunks(entries: list[tuple[str, Any]]) -> Iterator[list[tuple[str, Any]]]:
    chunk: list[tuple[str, Any]] = []
    size = 0
    for entry in entries:
        weight = len(msgspec.json.encode(entry[1]))
        if chunk and (len(chunk) == CHUNK or size + weight > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += weight
    yield chunk


def _start(head: Head) -> int:
    """The position behind which the conversation begins."""
    status = head.status or ""
    return int(status.removeprefix(CLEARED_AT)) if status.startswith(CLEARED_AT) else 0


def _ttl(head: Head) -> float | None:
    """How many seconds after its last append a conversation expires."""
    return None if head.ttl is None else head.ttl / 1e6


def _checked(message: object, number: int) -> Message:
    """*message* as a dict, if it is one or can become one."""
    if message.__class__ is dict and isinstance(message.get("role"), str):
        return message  # as nearly all are
    found = message if isinstance(message, Mapping) else plain(message, f"message {number}")
    if isinstance(found, Mapping) and (
        isinstance(found.get("role"), str) or isinstance(found.get("type"), str)
    ):
        return found
    if isinstance(message, (list, tuple)):
        msg = f"Message {number} is a list. To append several messages: append(*messages)."
        raise InvalidMessage(msg)
    what = "a dict without a role" if isinstance(found, Mapping) else f"a {type(message).__name__}"
    msg = (
        f"Message {number} is {what}. A message is a dict with a role, for example "
        "{'role': 'user', 'content': 'Hello'}."
    )
    raise InvalidMessage(msg)


def _not_found(id_: str) -> ConversationNotFound:
    return ConversationNotFound(f"There is no conversation {id_!r} (or it has expired).")
