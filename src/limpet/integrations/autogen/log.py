"""What models said and tools did within a turn that is not over.

AutoGen's own state is whole between turns only. So a save within a turn is that of its beginning,
and beside it this log. Whoever goes on begins the turn once more, and is given from the log what
was said and done already: what was recorded is returned, what was not is run.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

__all__ = ["Actor", "Doubt", "Log", "as_exception"]

#: What is kept of a call that is a step: the task's id, and the step's name.
_STEP = ("task", "step")


class Doubt(Struct, frozen=True):
    """A tool call that was begun before a process ended, and nobody knows what came of it."""

    call_id: str
    tool: str
    agent: str  # where it sits in the team: "writer", "research/writer"; "" for a lone agent


def as_exception(error: BaseException) -> Exception:
    """*error* as AutoGen can deal with it: it would wait for ever for what is no `Exception`.

    `Keeping.cause` has what it was.
    """
    if isinstance(error, Exception):
        return error
    halted = RuntimeError(str(error))
    halted.__cause__ = error
    return halted


class Log:
    """The log of one turn. Outside of turns it is closed, and nothing is recorded."""

    def __init__(
        self, flush: Callable[[], Awaitable[None]], note: Callable[..., None] = lambda *_: None
    ) -> None:
        self.flush = flush
        self.note = note
        self.is_open = False
        self.turn = 0  # another number for every turn that begins or is broken off
        self.changes = 0  # how often anything was added to it
        self.refused: BaseException | None = None  # why the turn cannot go on
        self._actors: dict[str, Actor] = {}

    def actor(self, path: str) -> Actor:
        """Who sits at *path*."""
        return self._actors.setdefault(path, Actor(self, path))

    def refuse(self, error: BaseException) -> None:
        """The turn cannot go on: the store has not taken a part of it, or its task stands still."""
        if self.refused is None:
            self.refused = error

    def is_refused(self) -> bool:
        """Whether the turn cannot go on."""
        return self.refused is not None

    def check(self) -> None:
        """Raise what the turn cannot go on for."""
        if self.refused is not None:
            raise as_exception(self.refused)

    def clear(self) -> None:
        """A turn begins, of which nothing is known."""
        self.turn += 1
        self.refused = None
        for actor in self._actors.values():
            actor.forget()

    def load(self, saved: dict[str, Any]) -> None:
        """What is known of a turn that is begun once more."""
        self.clear()
        for path, part in saved.items():
            self.actor(path).load(part)

    def dump(self) -> dict[str, Any]:
        """What is stored of it."""
        found = {path: actor.dump() for path, actor in self._actors.items()}
        return {path: part for path, part in found.items() if part}

    def __iter__(self) -> Iterator[Actor]:
        """Who has said or done anything."""
        return (actor for actor in self._actors.values() if actor.dump())

    def steps(self) -> list[str]:
        """The names of the steps that calls were begun as."""
        return [
            step["step"]
            for actor in self._actors.values()
            for step in map(actor.step, actor.calls)
            if step
        ]

    def doubt(self) -> None:
        """The turn was broken off."""
        self.turn += 1
        for actor in self._actors.values():
            actor.doubt()

    def doubts(self) -> list[Doubt]:
        """The calls that are in doubt."""
        return [doubt for actor in self._actors.values() for doubt in actor.doubts()]


class Actor:
    """The part of a log that is one agent's, or one manager's."""

    def __init__(self, log: Log, path: str) -> None:
        self.log = log
        self.path = path
        self.forget()

    def forget(self) -> None:
        """Nothing is known."""
        self.replies: list[Any] = []
        self.calls: dict[str, dict[str, Any]] = {}
        self._heard = 0  # how many of the replies were given out since the turn began
        self._made: Counter[str] = Counter()
        self._doubtful: set[str] = set()
        self.busy = 0  # how many of its tools are running

    def load(self, saved: dict[str, Any]) -> None:
        """What was stored. A call without a result is in doubt: who ran it is no more."""
        self.replies = list(saved.get("replies", ()))
        self.calls = {key: dict(call) for key, call in saved.get("calls", {}).items()}
        self.doubt()

    def doubt(self) -> None:
        """Who ran what has no result does so no more."""
        self._doubtful = {key for key, call in self.calls.items() if "result" not in call}

    def dump(self) -> dict[str, Any]:
        """What is stored of it."""
        found: dict[str, Any] = {}
        if self.replies:
            found["replies"] = list(self.replies)
        if self.calls:
            found["calls"] = {key: dict(call) for key, call in self.calls.items()}
        return found

    # -- what a model said -------------------------------------------------------------------------

    def next_reply(self) -> Any | None:
        """What the model said to this question, if that is known."""
        self.log.check()
        if self._heard >= len(self.replies):
            return None
        self._heard += 1
        return self.replies[self._heard - 1]

    def heard(self, reply: Any) -> None:
        """The model has answered."""
        self.replies.append(reply)
        self._heard += 1
        self.log.changes += 1

    # -- what tools did ----------------------------------------------------------------------------

    def key(self, call_id: str | None) -> str:
        """What the next call is known by: some models count from one again, or give no ids."""
        return _key(self._heard, call_id, self._made)

    def result(self, key: str) -> Any | None:
        """What came of a call, if that is known."""
        return self.calls.get(key, {}).get("result")

    def is_doubtful(self, key: str) -> bool:
        """Whether a process that is no more has begun it."""
        return key in self._doubtful

    def begin(self, key: str, tool: str, step: dict[str, str]) -> None:
        """The tool is about to run; *step* says as which of which task, if it is one."""
        if key not in self.calls:
            self.calls[key] = {"tool": tool, **step}
            self.log.changes += 1

    def step(self, key: str) -> dict[str, str]:
        """Of which task a call that was begun is a step, and which; nothing, if it is none."""
        call = self.calls.get(key, {})
        return {name: call[name] for name in _STEP} if call.keys() >= set(_STEP) else {}

    def take_back(self, key: str) -> None:
        """A call that was begun is to be made again: it had no effect, or its step knows of it."""
        if not self.step(key) and not self.is_doubtful(key):
            self.calls.pop(key, None)
            self.log.changes += 1

    def end(self, key: str, tool: str, result: Any) -> None:
        """What came of it."""
        self._doubtful.discard(key)
        self.calls[key] = {"tool": tool, "result": result}
        self.log.changes += 1

    def doubts(self) -> list[Doubt]:
        """The calls of which nobody knows what came; but of a step, its task decides."""
        return [
            Doubt(key.partition(":")[2], call["tool"], self.path)
            for key, call in self.calls.items()
            if key in self._doubtful and not self.step(key)
        ]

    def resolve(self, call_id: str, result: str) -> bool:
        """A person says what came of a call; False if it is not in doubt."""
        for key in self._doubtful:
            if key.partition(":")[2] == call_id:
                tool = self.calls[key]["tool"]
                content = [{"type": "TextResultContent", "content": result}]
                self.end(key, tool, {"type": "ToolResult", "name": tool, "result": content})
                return True
        return False

    def leave_out(self, again: frozenset[str]) -> list[Doubt]:
        """Let calls in doubt be as if their model had not made them; which there were.

        If it made no others with them, it is asked again. Tools in *again* just run again.
        """
        gone = [
            key
            for key in self._doubtful
            if self.calls[key]["tool"] not in again and not self.step(key)
        ]
        found = [doubt for doubt in self.doubts() if doubt.tool not in again]
        for key in gone:
            del self.calls[key]
            self._doubtful.discard(key)
        numbers = {int(key.partition(":")[0]) for key in gone} - {0}  # 0: no model had a part in it
        for number in sorted(numbers, reverse=True):
            reply = self.replies[number - 1]
            left = [] if isinstance(reply["content"], str) else _left(reply, number, gone)
            self.replies[number - 1 :] = [{**reply, "content": left}] if left else []
        return found


def _left(reply: dict[str, Any], number: int, gone: list[str]) -> list[Any]:
    """The calls in the reply of this *number* without those of the keys *gone*."""
    made: Counter[str] = Counter()
    return [call for call in reply["content"] if _key(number, call.get("id"), made) not in gone]


def _key(number: int, call_id: str | None, made: Counter[str]) -> str:
    """What a call is known by, of those that the reply of this *number* has *made* so far."""
    name = f"{number}:{call_id or ''}"
    made[name] += 1
    return name if made[name] == 1 else f"{name}#{made[name]}"
