"""Conversations: messages in order, durable one by one, and the part of them that fits a model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload

from msgspec import Struct, structs

from limpet.backends.contract import UNSET, Expect, Head, UnsetType
from limpet.conversations.compaction import Compactor, steps_of
from limpet.conversations.forks import copies
from limpet.conversations.repair import Notes, RecordedRepair
from limpet.conversations.transcript import (
    CLEARED,
    MESSAGE,
    PINNED,
    POPPED,
    UNPINNED,
    ConversationMeta,
    Summary,
    Transcript,
    is_system,
)
from limpet.conversations.window import Budget, Windows
from limpet.core.calls import BEGAN, Call
from limpet.core.codec import convert, plain
from limpet.core.ids import name_fields
from limpet.core.journal import listed_fields
from limpet.core.runtime import SyncWrapper, sync, sync_wrapped
from limpet.errors import Conflict, ConversationNotFound, InvalidMessage
from limpet.llm.messages.check import ROLES, fault_of
from limpet.llm.messages.repair import check_options
from limpet.llm.messages.repair import repair as repaired
from limpet.llm.messages.shape import binds_next, calls_of, results_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from limpet.conversations.compaction import Step
    from limpet.conversations.transcript import Item
    from limpet.core.journal import Entry
    from limpet.core.scope import Scope
    from limpet.llm.messages.repair import Rule
    from limpet.llm.messages.shape import Shape
    from limpet.llm.tokens import Count

    Message = Mapping[str, Any]

R = TypeVar("R")

__all__ = [
    "KIND",
    "AsyncConversation",
    "Conversation",
    "ConversationInfo",
    "RecordedRepair",
    "Summary",
]

KIND = "conversation"
name_fields(KIND, "id", "name", "tool_call_id", "call_id", "calls", "agent", "policy", "how", "by")


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
        return cls(**listed_fields(head))


class AsyncConversation:
    """A conversation with one user, session or agent; see `Conversation`."""

    def __init__(
        self,
        scope: Scope,
        id: str,
        *,
        labels: Mapping[str, str | None] | UnsetType = UNSET,
        ttl: float | UnsetType | None = UNSET,
    ) -> None:
        self._journal = scope.journal(KIND, id, labels=labels, ttl=ttl)
        # For integrations, which write more than messages, and make windows of their own.
        self.scope = scope
        self.transcript = Transcript(self._journal)
        self.windows = Windows(self.transcript)
        self._compactor = Compactor(self.windows)

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
        pin: bool = False,
        check: bool = True,
    ) -> int:
        """Add *messages* at the end, all or none; returns the position of the last one.

        Each is a dict with a role, or a model object that becomes one. Durable on return. If two
        write at once, both are stored, in one order; with *expect*, a position returned before,
        the second gets a `Conflict` instead. An *id* makes a retried append harmless: the same id
        again adds nothing and returns the first position. With *pin* they stay in every window.
        A role or a content that no provider takes is an `InvalidMessage`; without *check* it is
        stored as it is.
        """
        if not messages:
            msg = "append() needs at least one message, for example {'role': 'user', 'content': …}."
            raise InvalidMessage(msg)
        for message in messages:  # nearly all are as they should be
            if (
                message.__class__ is not dict
                or (role := message.get("role")).__class__ is not str
                or role not in ROLES
                or message.get("content").__class__ is not str
            ):
                messages = _checked(messages, check=check)
                break
        if not pin:
            return await self._journal.add(MESSAGE, messages, expect=expect, id=id)
        _check_pins(messages)
        entries = [(MESSAGE, message) for message in messages]

        def pinned(head: Head | None) -> ConversationMeta:
            first = 2 if head is None else head.seq + 2  # behind the note
            return ConversationMeta.of(head).pinned(range(first, first + len(entries)))

        note = (PINNED, {"next": len(entries)})
        done = await self.transcript.write([note, *entries], pinned, expect=expect, id=id)
        return done.seq

    async def pin(self, *positions: int) -> None:
        """Keep the messages at *positions* in every window, at the front if they are old.

        A tool call or its result cannot be pinned: no model accepts one without the other.
        """
        while positions:
            head = await self._journal.head()
            items = dict(await self.transcript.items(after=min(positions) - 1))
            missing = [position for position in positions if position not in items]
            if missing:
                msg = (
                    f"Conversation {self.id!r} has no message at {missing[0]}. "
                    "items() gives the positions that there are."
                )
                raise InvalidMessage(msg)
            _check_pins(items[position] for position in positions)
            # Only what was there then: it may be popped or replaced just now.
            with suppress(Conflict):
                where = Expect(None, 0) if head is None else head.expect
                meta = ConversationMeta.of(head).pinned(positions)
                note = (PINNED, {"positions": list(positions)})
                await self.transcript.write_at(where, [note], meta)
                return

    async def unpin(self, *positions: int) -> None:
        """Unpin the messages at *positions*. Positions that are not pinned are ignored."""
        while (head := await self._journal.head()) is not None:
            meta = ConversationMeta.of(head)
            if not set(meta.pins).intersection(positions):
                return
            with suppress(Conflict):
                note = (UNPINNED, {"positions": list(positions)})
                await self.transcript.write_at(head.expect, [note], meta.unpinned(positions))
                return

    async def pinned(self) -> list[tuple[int, dict[str, Any]]]:
        """The pinned messages with their positions."""
        return await self.transcript.at(ConversationMeta.of(await self._journal.head()).pins)

    async def replace(
        self,
        *messages: object,
        expect: int | None = None,
        id: str | None = None,
        check: bool = True,
    ) -> int:
        """Put *messages* in the place of all others, in one write; returns the position.

        What they replace stays in the journal, and in ``messages(everything=True)``. *expect*, *id*
        and *check* mean the same as for `append`.
        """

        def begins_here(head: Head | None) -> ConversationMeta:
            return ConversationMeta(start=1 if head is None else head.seq + 1)

        new = [(MESSAGE, message) for message in _checked(messages, check=check)]
        entries = [(CLEARED, {"replaced": True}), *new]
        done = await self.transcript.write(entries, begins_here, expect=expect, id=id)
        return done.seq

    async def pop(self) -> dict[str, Any] | None:
        """Remove the newest message and return it; None if there is none.

        It stays in the journal, and in ``messages(everything=True)``. If two pop at the same
        time, each gets another message.
        """
        while True:
            head = await self._journal.head()
            found = await self.transcript.last(2)
            if head is None or not found:
                return None
            position, message = found.pop()
            meta = await self._meta_without(position, message, found, head)
            with suppress(Conflict):
                entry = (POPPED, {"position": position})
                await self.transcript.write_at(head.expect, [entry], meta)
                return message

    async def _meta_without(
        self, position: int, message: Message, left: list[Item], head: Head
    ) -> ConversationMeta:
        """The meta of *head* without the *message* at *position*; *left* has the one before it."""
        meta = ConversationMeta.of(head).unpinned([position])
        open_calls = {id_: call for id_, call in meta.calls.items() if id_ not in calls_of(message)}
        meta = meta.but(others=meta.others + 1, calls=open_calls)
        # A summary that speaks of it no longer stands, but the one before it may.
        while (summary := await self.transcript.summary(meta.summary)) is not None:
            if summary.upto < position:
                break
            meta = meta.but(summary=summary.previous)
        # The first messages are read from the beginning, and there it must be known what is gone.
        newest = left[-1][0] if left else meta.start
        if not left or is_system(left[-1][1]):
            opening, _ = await self.transcript.opening(meta)
            if not left or newest in dict(opening):
                meta = meta.without(newest + 1, head.seq + 1)
        return meta

    @overload
    async def messages(
        self,
        *,
        last: int | None = None,
        everything: bool = False,
        repair: Rule | None = None,
        as_: None = None,
    ) -> list[dict[str, Any]]: ...
    @overload
    async def messages(
        self,
        *,
        last: int | None = None,
        everything: bool = False,
        repair: Rule | None = None,
        as_: type[R],
    ) -> list[R]: ...
    @overload
    async def messages(
        self,
        *,
        last: int | None = None,
        everything: bool = False,
        repair: Rule | None = None,
        as_: Any,
    ) -> list[Any]: ...
    async def messages(
        self,
        *,
        last: int | None = None,
        everything: bool = False,
        repair: Rule | None = None,
        as_: Any = None,
    ) -> list[Any]:
        """Every message, oldest first, or the *last* few; each as the type *as_* if one is named.

        The last few may begin with the result of a tool call that is not among them; what to send
        to a model is `window`. *everything*: also those that were popped or replaced. *repair*: all
        as a model accepts them (see `window`); without it they come as they were stored.
        """
        if last is not None and last < 0:
            msg = f"messages(last={last}): say how many, from 0 up; without it you get all of them."
            raise ValueError(msg)
        if repair is not None:
            notes = Notes()
            items = await self.transcript.items(see=notes.see)
            done = repaired([message for _, message in items], repair, keep_open=True)
            damage = [(items[one.index][0], one) for one in done.repairs]
            await notes.record(self.transcript, damage, repair)
            found = done.messages
        elif last is None or everything:
            found = await self.transcript.all(everything=everything)
        else:
            found = [message for _, message in await self.transcript.last(last)]
        if last is not None and last < len(found):
            found = found[len(found) - last :]
        return found if as_ is None else [convert(message, as_) for message in found]

    async def repairs(self) -> list[RecordedRepair]:
        """What windows have repaired in this conversation, oldest first.

        For instance a tool call whose result a crash has prevented. The stored messages are not
        changed.
        """
        notes = Notes()
        async for entries in self._journal.pages():
            for entry in entries:
                self._journal.understand(entry, notes.see)
        return notes.repairs

    async def items(self, *, after: int = 0) -> list[tuple[int, dict[str, Any]]]:
        """The messages after position *after*, oldest first, each with its position."""
        return await self.transcript.items(after=after)

    async def last(self) -> dict[str, Any] | None:
        """The newest message, or None."""
        found = await self.transcript.last(1)
        return found[0][1] if found else None

    async def length(self) -> int:
        """How many messages there are. Reads none of them."""
        return await self.transcript.length()

    async def window(
        self,
        *,
        max_tokens: int | None = None,
        max_messages: int | None = None,
        keep_system: bool = True,
        reserve: int = 0,
        count: Count | str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        repair: Rule = "stub",
        shape: Shape | None = None,
        compact: Step | Sequence[Step] | None = None,
    ) -> list[dict[str, Any]]:
        """What to send to the model: the newest messages that fit.

        In front stay the system messages at the very beginning (unless *keep_system* is off), the
        summary if there is one, and what is pinned. A tool call and all its results go together or
        not at all. *count* is the model's name, or a function that says how many tokens a message
        takes; without it they are estimated (see `limpet.llm.tokens`). *tools* count too, and
        *reserve* tokens are left for the reply. `WindowTooSmall` if the newest message, with what
        belongs to it, is over the budget by itself. An older one that takes over half of the budget
        and does not fit is left out alone: a note replaces it, and older ones follow.

        A call that has no result, or the reverse, is repaired by the rule *repair*, so that a model
        accepts it: ``"stub"`` answers it with a note, ``"drop"`` leaves it out,
        ``"raise"`` raises `BrokenHistory`; `repairs` lists what was done. Calls at the very end
        may still be waiting and stay as they are. *shape*: whose rules, where the messages do not
        show it. *compact*: what to do, as for `compact`, before older messages are left out.

        It is read from the end, and no further than needed.
        """
        check_options(repair, shape)
        steps = [] if compact is None else steps_of(compact)
        if steps and max_tokens is None:
            msg = "window(compact=…) needs max_tokens, to know when there is too much."
            raise ValueError(msg)
        budget = Budget(max_tokens, max_messages, count, reserve=reserve, tools=tools)
        found = await self._compactor.window(
            budget, steps, rule=repair, shape=shape, keep_system=keep_system
        )
        if found is None:
            return []
        view, notes = found
        await notes.record(self.transcript, view.repairs, repair)
        return view.messages

    async def compact(
        self,
        how: Step | Sequence[Step],
        *,
        keep_tokens: int = 4_000,
        over: int | None = None,
        count: Count | str | None = None,
    ) -> Summary | None:
        """Replace all but the newest *keep_tokens*, in windows, by a summary; returns it.

        *how* is a function that makes a text of a list of messages, of which the first is the
        previous summary, if there is one. Or ``"trim"``: leave them out without a summary;
        ``"outputs"``: only shorten what tools returned; or several in a list, one after the other.
        With *over*, nothing is done while the messages since the last summary take fewer tokens.

        Nothing is deleted: `messages` still returns all of them. If two compact at the same time,
        one wins, and both get its summary.
        """
        return await self._compactor.run(steps_of(how), keep=keep_tokens, count=count, over=over)

    async def summaries(self) -> list[Summary]:
        """The summaries that are in use, oldest first, each with the last position it covers."""
        found: list[Summary] = []
        position = ConversationMeta.of(await self._journal.head()).summary
        while (summary := await self.transcript.summary(position)) is not None:
            found.append(summary)
            position = summary.previous
        return found[::-1]

    async def fork(self, id: str, *, at: int | None = None) -> AsyncConversation:
        """A new conversation *id* that begins with this one's messages up to position *at*.

        The two are then independent. A fork cut short by a crash has no messages, and is finished
        by the same call again. `Conflict` if there is another conversation with that id. A tool
        call that began before *at*, and has no result by then, is in doubt in the fork too.
        """
        head = await self._journal.head()
        if head is None:
            raise self._not_found()
        meta = ConversationMeta.of(head)
        at = head.seq if at is None else min(at, head.seq)
        # In a fork of a fork, what says that its copy is whole may lie behind *at*.
        whole = not meta.forking
        began: dict[str, Call] = {}

        def see(entry: Entry) -> None:
            if entry.type == BEGAN:
                call = convert(entry.body, Call)
                began.setdefault(call.id, structs.replace(call, epoch=0))  # no lease of the fork's

        items = await self.transcript.items(after=meta.start, upto=at, copied=whole, see=see)
        if not items:
            msg = f"Conversation {self.id!r} has no messages up to {at}; a fork needs at least one."
            raise InvalidMessage(msg)
        summary = await self.transcript.summary(meta.summary)
        while summary is not None and summary.position > at:
            summary = await self.transcript.summary(summary.previous)
        ttl = self._journal.ttl
        if ttl is UNSET:
            ttl = None if head.ttl is None else head.ttl / 1e6
        target = AsyncConversation(self.scope, id, ttl=ttl)
        origin, where = {"from": self.id, "at": at}, Expect(None, 0)
        try:
            for entries, after in copies(
                items, origin, summary=summary, pins=meta.pins, began=began
            ):
                done = await target.transcript.journal.write(
                    entries,
                    id=f"fork-{where.seq}",
                    expect=where,
                    labels=head.labels,
                    meta=after.encode(),
                )
                where = done.expect
        except Conflict as error:
            msg = f"There is a conversation {id!r} already. Fork to another id, or delete it first."
            raise Conflict(msg, error.expected, error.actual) from error
        return target

    async def label(self, /, **labels: str | None) -> None:
        """Set labels; None removes one. Lists can be filtered by them."""
        if not await self._journal.label(labels):
            raise self._not_found()

    async def expire(self, ttl: float | None) -> None:
        """Let it end *ttl* seconds after it was last added to, from now on; None: never."""
        if not await self._journal.expire(ttl):
            raise self._not_found()

    async def clear(self) -> None:
        """Remove all messages; id and labels stay, and positions continue."""
        while (head := await self._journal.head()) is not None:
            # In this order: a crash between the two leaves room unfreed, never half a conversation.
            # The meta is for those who read from the beginning, and would not know till the end.
            meta = ConversationMeta(start=head.seq + 1)
            with suppress(Conflict):
                await self.transcript.write_at(head.expect, [(CLEARED, None)], meta)
                await self._journal.compact(meta.start)
                return

    async def delete(self) -> bool:
        """Remove the conversation. False if it was not there."""
        return await self._journal.delete()

    async def info(self) -> ConversationInfo:
        """Labels, size, times and position."""
        head = await self._journal.head()
        if head is None:
            raise self._not_found()
        return ConversationInfo.of(head)

    def _not_found(self) -> ConversationNotFound:
        return ConversationNotFound(f"There is no conversation {self.id!r} (or it has expired).")


class Conversation(SyncWrapper[AsyncConversation]):
    """A conversation with one user, session or agent.

    Messages are dicts with a role, as the OpenAI SDK has them; any other keys are stored too.

    >>> import limpet
    >>> with limpet.open("memory:") as store:
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

    append = sync(AsyncConversation.append)
    replace = sync(AsyncConversation.replace)
    pop = sync(AsyncConversation.pop)
    pin = sync(AsyncConversation.pin)
    unpin = sync(AsyncConversation.unpin)
    pinned = sync(AsyncConversation.pinned)
    repairs = sync(AsyncConversation.repairs)
    compact = sync(AsyncConversation.compact)
    summaries = sync(AsyncConversation.summaries)
    messages = sync(AsyncConversation.messages)
    items = sync(AsyncConversation.items)
    last = sync(AsyncConversation.last)
    length = sync(AsyncConversation.length)
    window = sync(AsyncConversation.window)
    clear = sync(AsyncConversation.clear)
    delete = sync(AsyncConversation.delete)
    info = sync(AsyncConversation.info)
    label = sync(AsyncConversation.label)
    expire = sync(AsyncConversation.expire)
    fork = sync_wrapped(AsyncConversation.fork, lambda core: Conversation(core))  # noqa: PLW0108 - it has no name yet


def _checked(messages: tuple[object, ...], *, check: bool) -> tuple[Message, ...]:
    """*messages*, if each is a dict with a role, or can become one; *check* looks into them."""
    checked: list[Message] = []
    for number, message in enumerate(messages, 1):
        found = message if isinstance(message, Mapping) else plain(message, f"message {number}")
        if isinstance(found, Mapping) and (
            isinstance(found.get("role"), str) or isinstance(found.get("type"), str)
        ):
            fault = fault_of(found) if check else None
            if fault is not None:
                msg = f"Message {number} {fault} To store it all the same: check=False."
                raise InvalidMessage(msg)
            checked.append(found)
            continue
        if isinstance(message, (list, tuple)):
            msg = f"Message {number} is a list. To append several messages: append(*messages)."
            raise InvalidMessage(msg)
        dict_ = isinstance(found, Mapping)
        what = "a dict without a role" if dict_ else f"a {type(message).__name__}"
        msg = (
            f"Message {number} is {what}. A message is a dict with a role, for example "
            "{'role': 'user', 'content': 'Hello'}."
        )
        raise InvalidMessage(msg)
    return tuple(checked)


def _check_pins(messages: Iterable[Any]) -> None:
    for message in messages:
        if calls_of(message) or results_of(message) or binds_next(message):
            msg = (
                "A tool call, its result and a thought before it cannot be pinned: "
                "no model takes one without the others. Pin what was said."
            )
            raise InvalidMessage(msg)
