"""The right to speak in a conversation, and what was said since the user last spoke.

A chat's state is its journal, and nothing else. Beside messages it has entries of its own, which
are never sent: what a request cost, which tool calls were begun, and the text of a reply that has
not come to its end.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from limpet.conversations.transcript import MESSAGE
from limpet.core.leases import LeaseKeeper, LeaseLock
from limpet.errors import Conflict, IdReused, InvalidMessage, LeaseHeld, besides
from limpet.integrations.openai.wire import Call, calls_in, text_of
from limpet.llm.messages import results_of
from limpet.llm.messages.shape import role_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from limpet.conversations.conversation import AsyncConversation
    from limpet.core.journal import Entry

    Message = dict[str, Any]

__all__ = [
    "BEGUN",
    "CUT",
    "CUT_OFF",
    "DROPPED",
    "PIECE",
    "REQUEST",
    "Floor",
    "Reader",
    "Turn",
    "is_question",
]

# Entry types of a chat, beside those of the conversation.
REQUEST = "request"  # what is known about the reply before it: model, usage, how long it took
BEGUN = "begun"  # these tool calls are about to run
DROPPED = "dropped"  # these tool calls are left out: nobody knows what came of them
PIECE = "piece"  # of a reply that comes as a stream
CUT = "cut"  # the message before it is the beginning of a reply, and its end never came

#: What a model reads where a reply was cut off.
CUT_OFF = "\n\n[limpet: this reply was cut off here.]"

#: Entries to a page: most turns are no longer.
PAGE = 16
#: A position that no journal comes to.
NOWHERE = 2**53


class Turn(Struct):
    """What the user said last, and all that came of it."""

    asked: Message | None = None
    #: Where the newest message is.
    position: int = 0
    messages: list[Message] = []
    requests: list[dict[str, Any]] = []
    #: The tool calls without a result, and which of them were begun.
    pending: list[Call] = []
    begun: set[str] = set()
    #: The beginning of a reply whose end never came.
    partial: str = ""
    #: Whether the last message is one, or its end was popped.
    cut: bool = False

    def take(self, position: int, kind: str, body: Any) -> None:
        """Add the next entry."""
        if kind == MESSAGE:
            self.position = position
            self._say(body)
        elif kind == REQUEST:
            self.requests.append(body)
            # It was stored with a reply, right behind it.
            self.partial, self.cut = "", position != self.position + 1
        elif kind == BEGUN:
            self.begun.update(body["calls"])
        elif kind == DROPPED:
            self._settle(body["calls"])
        elif kind == PIECE:
            self.partial = (self.partial if body.get("more") else "") + body["text"]
        elif kind == CUT:
            self.cut = True

    def _say(self, message: Message) -> None:
        self.messages.append(message)
        self.partial, self.cut = "", False
        # In their order: there are models that number their calls anew in every reply.
        self._settle(results_of(message))
        self.pending += calls_in(message)

    def _settle(self, ids: list[str]) -> None:
        self.pending = [call for call in self.pending if call.id not in ids]
        self.begun.difference_update(ids)

    @property
    def answered(self) -> bool:
        """Whether the model has had the last word."""
        spoken = [message for message in self.messages if role_of(message) in ("assistant", "tool")]
        if not spoken or self.cut or self.pending:
            return False
        return not (results_of(spoken[-1]) or calls_in(spoken[-1]))

    @property
    def final(self) -> list[Message]:
        """What the model said after the last tool had answered."""
        found: list[Message] = []
        for message in self.messages:
            if results_of(message):
                found.clear()
            elif role_of(message) == "assistant":
                found.append(message)
        return found

    def text(self, key: str = "text") -> str:
        """What the reply says."""
        return "".join(text_of(message, key) for message in self.final)


def is_question(message: Message) -> bool:
    """Whether a turn begins with *message*."""
    return message.get("role") == "user" and not results_of(message)


class Reader:
    """Who goes on with a stream: the task or thread that last did; nobody, once it is let go."""

    def __init__(self) -> None:
        self.who: object = None

    def is_here(self) -> None:
        """The one who calls this."""
        self.who = _caller()


def _caller() -> object:
    """The task that is running, or where there is none the thread."""
    import asyncio  # noqa: PLC0415 - sync programs have it from openai only

    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()


class Floor:
    """A conversation while one of those who use it has the right to speak.

    That is a lease on it, so that nobody takes a tool that is running for one that a crash has cut
    short, and a process that was thought dead writes nothing more.
    """

    def __init__(
        self,
        conversation: AsyncConversation,
        keeper: LeaseKeeper,
        *,
        lease: float,
        wait: float,
        others: set[Floor],
        reader: Reader | None = None,
    ) -> None:
        self._conversation = conversation
        self._transcript = conversation.transcript
        journal = self._transcript.journal
        self._hold = LeaseLock(journal.runtime, keeper, journal.key, lease, agent="a chat")
        self._wait = wait
        self._others = others  # of the same chat, who speak just now
        self._reader = reader or Reader()
        self._streams = reader is not None
        self._tools: set[object] = set()  # the tasks or threads in which tools run

    async def __aenter__(self) -> Self:
        """Wait for the right to speak; `LeaseHeld`, if that takes too long, or for ever."""
        caller, others = _caller(), tuple(self._others)  # which other threads change
        tool = any(caller in floor._tools for floor in others)  # noqa: SLF001 - one of us
        reads = any(floor._reader.who == caller for floor in others)  # noqa: SLF001
        try:
            # Whoever has it himself cannot let go of it while he waits here.
            await self._hold.acquire(0 if tool or reads else self._wait)
        except LeaseHeld as held:
            why = self._why(tool=tool)
            raise LeaseHeld(why, held.holder, held.until, held.epoch) if why else held from None
        self._others.add(self)
        return self

    def _why(self, *, tool: bool) -> str | None:
        """What there is to say of those of the same chat that keep us from speaking."""
        where = repr(self._conversation.id)
        if tool:
            return (
                f"This chat in {where} is running this tool, and what that says here would have "
                "to wait for its own end. Let it return that, or say it in another conversation."
            )
        if any(floor._streams for floor in tuple(self._others)):  # noqa: SLF001 - one of us
            return (
                f"A stream of this chat in {where} is still open, and one speaks at a time. Read "
                "it to its end, or close it: with chat.stream(…) as pieces, or pieces.close()."
            )
        return None

    @contextmanager
    def running(self) -> Iterator[None]:
        """While a tool runs here, which cannot speak in the chat that runs it."""
        caller = _caller()
        self._tools.add(caller)
        try:
            yield
        finally:
            self._tools.discard(caller)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let others speak."""
        self._others.discard(self)
        with besides(error, f"{self._conversation!r} could not be let go"):
            await self._hold.release()

    async def write(self, *entries: tuple[str, Any], id: str | None = None, **more: Any) -> int:
        """Make *entries* durable, all or none; the position of the last one."""
        held = self._hold.held
        assert held is not None, "within its block"  # noqa: S101 - a mistake of ours
        done = await self._transcript.write(entries, id=id, lease=held.lease, **more)
        return done.seq

    async def find(self, message: Message, id: str) -> tuple[Turn | None, str]:
        """The turn that *message* began under *id*, if it did; `IdReused`, if another did.

        One that was popped or replaced since is asked as if for the first time. Its id is taken by
        then, so there is another one, which is the same for all who ask again.
        """
        while (position := await self._find(message, id)) is not None:
            turn = await self.turn_at(position)
            if turn.asked is not None:
                return turn, id
            digest = hashlib.sha256(f"{position} {id}".encode()).hexdigest()
            id = f"again-{digest[:32]}"
        return None, id

    async def _find(self, message: Message, id: str) -> int | None:
        """Where *message* was stored under *id*."""
        try:
            # An id that is known goes before any condition, and this one never holds.
            return await self.write((MESSAGE, message), id=id, expect=NOWHERE)
        except IdReused:
            raise
        except Conflict:
            return None

    async def turn(self) -> Turn:
        """What was said since the user last spoke."""
        turn, entries = await self._since()
        for entry in entries:
            self._take(turn, *entry)
        return turn

    def _take(self, turn: Turn, position: int, kind: str, body: Any) -> None:
        """Add an entry to *turn*. It may be of somebody else: an import, or a program of theirs."""
        try:
            turn.take(position, kind, body)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error!s:.80}".rstrip(".")
            msg = (
                f"Entry {position} of conversation {self._conversation.id!r} is none that a chat "
                f"can go on from: a {kind} without what belongs to it ({why}). Nothing was "
                "changed. Take it back with pop(), or put others in its place with replace(…)."
            )
            raise InvalidMessage(msg) from error

    async def turn_at(self, position: int) -> Turn:
        """What came of what was asked at *position*, up to the model's answer.

        If that was popped or replaced, nothing was asked; and a reply that was is no answer.
        """
        turn, entries = await self._since(position)
        for at, kind, body in entries if turn.asked is not None else ():
            if kind == MESSAGE and is_question(body):
                if turn.answered:
                    return turn
                continue
            self._take(turn, at, kind, body)
            # It stands behind the last message of a reply. Amid them nobody can tell.
            if kind == REQUEST and turn.answered:
                return turn
        return turn

    async def _since(self, asked: int = 0) -> tuple[Turn, list[tuple[int, str, Any]]]:
        """The turn of the question at position *asked*, or the newest, and what is behind it."""
        found: list[tuple[int, str, Any]] = []
        turn = Turn()

        def take(position: int, message: Message) -> bool:
            if position == asked if asked else is_question(message):
                turn.position, turn.asked = position, message
                return False
            found.append((position, MESSAGE, message))
            return True

        def see(entry: Entry) -> None:
            found.append((entry.seq, entry.type, entry.body))

        after = max(0, asked - 1)
        await self._transcript.newest_first(take, PAGE, after=after, see=see)
        return turn, found[::-1]
