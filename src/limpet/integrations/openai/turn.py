"""A turn of a chat: what the user said last, all that came of it, and the right to go on with it.

A chat's state is its journal, and nothing else. Beside messages it has entries of its own, which
are never sent: what a request cost, which tool calls began and how they were resolved, and the text
of a reply that has not come to its end.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import Struct, field

from limpet.conversations.transcript import MESSAGE, ConversationMeta
from limpet.core.calls import BEGAN, RESOLVED, Call, Ledger, Resolution
from limpet.errors import Conflict, IdReused, InvalidMessage, LeaseHeld, besides
from limpet.integrations.openai.apis import ToolCall, calls_in, text_of
from limpet.llm.messages import results_of
from limpet.llm.messages.shape import calls_of, role_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from limpet.backends.contract import Head
    from limpet.conversations.conversation import AsyncConversation
    from limpet.core.journal import Entry

    Message = dict[str, Any]
    #: Position, type and body of an entry.
    Placed = tuple[int, str, Any]

__all__ = [
    "CUT",
    "CUT_OFF",
    "DROPPED",
    "PIECE",
    "REDACTED",
    "REQUEST",
    "StreamReader",
    "Turn",
    "TurnLock",
    "is_question",
]

# Entry types of a chat, beside those of the conversation, and those of calls (limpet.core.calls).
REQUEST = "request"  # what is known about the reply before it: model, usage, how long it took
REDACTED = "redacted"  # the arguments of these tool calls are not stored as the model wrote them
DROPPED = "dropped"  # these tool calls are left out: nobody knows what came of them
PIECE = "piece"  # of a reply that comes as a stream
CUT = "cut"  # the message before it is the beginning of a reply, and its end never came

#: What a model reads where a reply was cut off.
CUT_OFF = "\n\n[limpet: this reply was cut off here.]"

#: Entries to a page: most turns are no longer.
PAGE = 16
#: What comes of an entry that no chat has written.
MALFORMED = (AttributeError, LookupError, TypeError, ValueError)
#: A position that no journal comes to.
NOWHERE = 2**53


class Turn(Struct):
    """What the user said last, and all that came of it."""

    asked: Message | None = None
    #: Where the newest message is.
    position: int = 0
    messages: list[Message] = []
    requests: list[dict[str, Any]] = []
    #: The tool calls without a result; those of them that began; and those that were resolved.
    pending: list[ToolCall] = []
    calls: Ledger = field(default_factory=Ledger)
    resolutions: dict[str, Resolution] = {}
    #: Those of the pending ones whose arguments are not stored as the model wrote them.
    redacted: set[str] = set()
    #: The calls that the conversation's head names: those that people can resolve.
    listed: frozenset[str] = frozenset()
    #: The beginning of a reply whose end never came.
    partial: str = ""
    #: Whether the last message is one, or its end was popped.
    cut: bool = False

    def take(self, position: int, kind: str, body: Any) -> None:
        """Add the next entry."""
        if kind == MESSAGE:
            self.position = position
            self.messages.append(body)
            self.partial, self.cut = "", False
            # In their order: there are models that number their calls anew in every reply.
            self._close(results_of(body))
            for call in calls_in(body):
                self.calls.end(call.id)  # of an earlier one, that was popped
                self.resolutions.pop(call.id, None)
                self.redacted.discard(call.id)
                self.pending.append(call)
        elif kind == REQUEST:
            self.requests.append(body)
            # It was stored with a reply, right behind it.
            self.partial, self.cut = "", position != self.position + 1
        elif kind == BEGAN:
            began = msgspec.convert(body, Call)
            self.calls.begin(began)
            self.resolutions.pop(began.id, None)
        elif kind == RESOLVED:
            resolution = msgspec.convert(body, Resolution)
            self.calls.end(resolution.id)
            self.resolutions[resolution.id] = resolution
        elif kind == REDACTED:
            self.redacted.update(body["calls"])
        elif kind == DROPPED:
            self._close(body["calls"])
        elif kind == PIECE:
            self.partial = (self.partial if body.get("more") else "") + body["text"]
        elif kind == CUT:
            self.cut = True

    def _close(self, ids: Iterable[str]) -> None:
        """Nothing more is to be done about these calls."""
        for id_ in ids:
            self.pending = [call for call in self.pending if call.id != id_]
            self.calls.end(id_)
            self.resolutions.pop(id_, None)

    @property
    def answered(self) -> bool:
        """Whether the model has had the last word."""
        spoken = [message for message in self.messages if role_of(message) in ("assistant", "tool")]
        if not spoken or self.cut or self.pending:
            return False
        return not (results_of(spoken[-1]) or calls_in(spoken[-1]))

    def text(self, key: str = "text") -> str:
        """What the model said after the last tool had answered; see `text_of` for the *key*."""
        found: list[Message] = []
        for message in self.messages:
            if results_of(message):
                found.clear()
            elif role_of(message) == "assistant":
                found.append(message)
        return "".join(text_of(message, key) for message in found)


def is_question(message: Message) -> bool:
    """Whether a turn begins with *message*."""
    return message.get("role") == "user" and not results_of(message)


class StreamReader:
    """Who reads a stream: the task or thread that last did; nobody, once it is let go."""

    def __init__(self) -> None:
        self.who: object = None

    def is_here(self) -> None:
        """It is the one who calls this."""
        self.who = _caller()


def _caller() -> object:
    """The task that is running, or where there is none the thread."""
    import asyncio  # noqa: PLC0415 - sync programs have it from openai only

    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()


class TurnLock:
    """The right to go on with a conversation, which one of those who use it has at a time.

    It is a lease on the conversation: nobody takes a tool that is running for one that a crash has
    cut short, and a process that was thought dead writes nothing more. *held* are the locks that
    the same chat has just now; *reader* reads the stream that this lock is for, if it is for one.

    It is taken by ``async with``, within a ``with`` that sees to it that it is given up, if an
    interrupt comes before the end of the other one has begun.
    """

    def __init__(
        self,
        conversation: AsyncConversation,
        *,
        lease: float,
        wait: float,
        held: set[TurnLock],
        reader: StreamReader | None = None,
    ) -> None:
        self._conversation = conversation
        self._transcript = conversation.transcript
        scope, key = conversation.scope, conversation.transcript.journal.key
        self._lock = scope.lock(key.kind, key.id, lease, agent="a chat")
        self._writing = scope.runtime.lock("A write of a chat within another one.")
        self._wait = wait
        self._held = held
        self.reader = reader
        #: The calls that a model has made in this turn, as it wrote them: what is stored of their
        #: arguments may be something else.
        self.made: dict[str, ToolCall] = {}
        #: The tasks or threads in which tools run.
        self.running_tools: set[object] = set()

    def __enter__(self) -> Self:
        """Not taken yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let others go on, at the latest."""
        if self._lock.held is not None:
            self._held.discard(self)
            self._lock.release_now()

    async def __aenter__(self) -> Self:
        """Wait for the others; `LeaseHeld`, if that takes too long, or would take for ever."""
        caller, others = _caller(), tuple(self._held)  # which other threads change
        in_tool = any(caller in other.running_tools for other in others)
        streams = [other.reader for other in others if other.reader is not None]
        reads = any(reader.who == caller for reader in streams)
        try:
            # Whoever has it himself cannot release it while he waits here.
            await self._lock.acquire(0 if in_tool or reads else self._wait)
        except LeaseHeld as error:
            where = repr(self._conversation.id)
            if in_tool:
                msg = (
                    f"This chat in {where} is running this tool, and what that says here would "
                    "have to wait for its own end. Let it return that, or say it in another "
                    "conversation."
                )
            elif any(other.reader is not None for other in tuple(self._held)):
                msg = (
                    f"A stream of this chat in {where} is still open, and one speaks at a time. "
                    "Read it to its end, or close it: with chat.stream(…) as pieces, or "
                    "pieces.close()."
                )
            else:
                raise
            raise LeaseHeld(msg, error.holder, error.until, error.epoch) from None
        try:
            self._held.add(self)
        except BaseException:  # an interrupt
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let others go on."""
        try:
            self._held.discard(self)
            with besides(error, f"{self._conversation!r} could not be released"):
                await self._lock.release()
        finally:  # an interrupt may have come before that
            await self._lock.release()

    @contextmanager
    def running_tool(self) -> Iterator[None]:
        """While a tool runs here, which cannot speak in the chat that runs it."""
        caller = _caller()
        self.running_tools.add(caller)
        try:
            yield
        finally:
            self.running_tools.discard(caller)

    # -- writing ---------------------------------------------------------------------------------

    @property
    def redacts(self) -> bool:
        """Whether what is written is looked through: a piece of a secret looks like none."""
        return self._conversation.scope.store.redactor is not None

    @property
    def epoch(self) -> int:
        """The number of the lease: what began under it, began in this turn of ours."""
        return self._lock.lease.epoch

    def take(self, calls: Iterable[ToolCall], messages: Iterable[Message]) -> list[str]:
        """Note *calls* of a reply as the model wrote them: the ids of those that are redacted.

        *messages* are the reply, as it is going to be stored.
        """
        redacted = self._transcript.journal.redacted
        stored = [call for message in messages for call in calls_in(redacted(message))]
        self.made.update({call.id: call for call in calls})
        return [call.id for call in stored if call.arguments != self.made[call.id].arguments]

    async def write(
        self,
        *entries: tuple[str, Any],
        id: str | None = None,
        expect: int | None = None,
        unresolved: Iterable[str] = (),
    ) -> int:
        """Make *entries* durable, all or none; the position of the last one.

        The calls that begin or end by them are in the meta of the conversation's head by the same
        act: `limpet.core.calls` finds those that are in doubt there. `Conflict`, if somebody has
        resolved one of those that are *unresolved* as far as we know.
        """
        began: dict[str, Call] = {}
        ended: set[str] = set()
        for kind, body in entries:
            if kind == BEGAN:
                began[body["id"]] = msgspec.convert(body, Call)
            elif kind in (MESSAGE, DROPPED):
                ended.update(results_of(body) if kind == MESSAGE else body["calls"])

        def changed(head: Head | None) -> ConversationMeta:
            meta = ConversationMeta.of(head)
            if not meta.calls.keys() >= set(unresolved):
                raise Conflict("A call in doubt was resolved.")
            calls = {id_: call for id_, call in meta.calls.items() if id_ not in ended}
            return meta.but(calls={**calls, **began})

        async def write() -> int:
            change = changed if began or ended else None
            done = await self._transcript.write(entries, change, id=id, expect=expect, lease=lease)
            return done.seq

        lease = self._lock.lease
        # One after the other: tools that run side by side would only be in each other's way.
        return await self._writing.run(write)

    # -- reading ---------------------------------------------------------------------------------

    async def find(self, message: Message, id: str) -> tuple[Turn | None, str]:
        """The turn that *message* began under *id*, if it did; `IdReused`, if another did.

        One that was popped or replaced since is asked as if for the first time. Its id is taken by
        then, so there is another one, which is the same for all who ask again.
        """
        while True:
            try:
                # An id that is known goes before any condition, and this one never holds.
                position = await self.write((MESSAGE, message), id=id, expect=NOWHERE)
            except IdReused:
                raise
            except Conflict:
                return None, id
            turn = await self._turn_at(position)
            if turn.asked is not None:
                return turn, id
            digest = hashlib.sha256(f"{position} {id}".encode()).hexdigest()
            id = f"again-{digest[:32]}"

    async def turn(self) -> Turn:
        """What came since the user last spoke.

        With the calls from before that which began, or were resolved, and have no result yet:
        another program may have appended what the user said. So it reads on, to the last answer.
        """
        head = await self._transcript.journal.head()
        turn, before = Turn(listed=frozenset(ConversationMeta.of(head).calls)), Turn()
        missing = set(turn.listed)  # calls that are not found yet
        answered: set[str] = set()
        since: list[Placed] = []
        earlier: list[Placed] = []

        def take(position: int, message: Message) -> bool:
            missing.difference_update(calls_of(message))
            answered.update(results_of(message))
            if turn.asked is None and is_question(message):
                turn.position, turn.asked = position, message
            else:
                place = since if turn.asked is None else earlier
                place.append((position, MESSAGE, message))
            is_answer = role_of(message) == "assistant" and not calls_of(message)
            return turn.asked is None or bool(missing) or not is_answer

        def see(entry: Entry) -> None:
            if entry.type == RESOLVED and entry.body["id"] not in answered:
                missing.add(entry.body["id"])
            place = since if turn.asked is None else earlier
            place.append((entry.seq, entry.type, entry.body))

        await self._transcript.newest_first(take, PAGE, see=see)
        for entry in reversed(earlier):
            with suppress(*MALFORMED):  # no chat has begun a call like that
                before.take(*entry)
        turn.pending, turn.calls = list(before.pending), before.calls
        turn.resolutions, turn.redacted = before.resolutions, before.redacted
        for entry in reversed(since):
            self._take(turn, *entry)
        # What had not even begun is not run now: the user has gone on.
        turn.pending = [
            call
            for call in turn.pending
            if call not in before.pending or call.id in turn.calls or call.id in turn.resolutions
        ]
        return turn

    async def _turn_at(self, asked: int) -> Turn:
        """What came of what was asked at a position, up to the model's answer.

        If that was popped or replaced, nothing was asked; and a reply that was is no answer.
        """
        turn = Turn()
        found: list[Placed] = []

        def take(position: int, message: Message) -> bool:
            if position == asked:
                turn.position, turn.asked = position, message
                return False
            found.append((position, MESSAGE, message))
            return True

        def see(entry: Entry) -> None:
            found.append((entry.seq, entry.type, entry.body))

        await self._transcript.newest_first(take, PAGE, after=max(0, asked - 1), see=see)
        for position, kind, body in reversed(found) if turn.asked is not None else ():
            if kind == MESSAGE and is_question(body):
                if turn.answered:
                    return turn
                continue
            self._take(turn, position, kind, body)
            # It stands behind the last message of a reply. Amid them nobody can tell.
            if kind == REQUEST and turn.answered:
                return turn
        return turn

    def _take(self, turn: Turn, position: int, kind: str, body: Any) -> None:
        """Add an entry to *turn*. Somebody else may have written it: an import, another program."""
        try:
            turn.take(position, kind, body)
        except MALFORMED as error:
            why = f"{type(error).__name__}: {error!s:.80}".rstrip(".")
            msg = (
                f"Entry {position} of conversation {self._conversation.id!r} is none that a chat "
                f"can go on from: a {kind} without what belongs to it ({why}). Nothing was "
                "changed. Take it back with pop(), or put others in its place with replace(…)."
            )
            raise InvalidMessage(msg) from error
