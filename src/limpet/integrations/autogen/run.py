"""A run of an agent or a team, as it is stored while it is not over.

AutoGen's own state is whole between turns only. So a save within a turn is that of its beginning,
with a log of what models answered and tools did since. Whoever goes on begins the turn once more,
and is given from the log what is known already; only what is not there is done.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from limpet.core.calls import RESOLVED, Call, Ledger, Resolution

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from limpet.core.journal import Entry

__all__ = [
    "DONE",
    "EXECUTOR",
    "SECTION",
    "SKIPPED",
    "ActorLog",
    "Run",
    "TurnLog",
    "as_exception",
    "call_key",
    "exported",
    "is_same_task",
]

Message = dict[str, Any]

#: The key of a stored document under which there is what AutoGen's own state has not.
SECTION = "limpet"

#: The ids that AutoGen gives to messages whose sender gave them none.
_RANDOM_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
#: What differs in a message that is sent a second time.
_NEW_EACH_TIME = ("id", "created_at", "models_usage", "metadata")

#: The name of what runs code, as tools have names.
EXECUTOR = "code executor"

#: What a model reads in place of a result, when a person has resolved a call in doubt.
DONE = "[limpet: this call was made, as a person has confirmed. Its result was not recorded.]"
SKIPPED = (
    "[limpet: this call was interrupted, and a person decided to go on without it. "
    "It is not made again.]"
)


class Run(Struct):
    """What a run was asked, how far it has come, and what it has put out."""

    task: list[Message]
    output: list[Message] = field(default_factory=list)
    output_before: int = 0  # how much of that was put out before the turn that is not over
    started: bool = False  # whether a turn has ended, so that the task is in AutoGen's own state
    resumed: int = 0  # how often
    done: bool = False
    reason: str | None = None
    forgotten: bool = False  # whether the agent has raised, and knows nothing of its task

    @property
    def ids(self) -> list[str]:
        """The ids of its task's messages, if their sender gave them ids of their own."""
        found = [str(message.get("id") or "") for message in self.task]
        return [] if any(not id_ or _RANDOM_ID.fullmatch(id_) for id_ in found) else found

    def dump(self, thread: list[Message], log: dict[str, Any]) -> dict[str, Any]:
        """What is stored. What the team's *thread* has already is stored by its id."""
        known = {message.get("id"): message for message in thread}
        output: list[Message | str] = [
            message["id"] if known.get(message.get("id")) == message else message
            for message in self.output[: self.output_before]
        ]
        found: dict[str, Any] = {"task": [_slim(message) for message in self.task]}
        found |= {"output": output} if output else {}
        found |= {"started": True} if self.started else {}
        found |= {"resumed": self.resumed} if self.resumed else {}
        found |= {"done": True, "reason": self.reason} if self.done else {}
        found |= {"forgotten": True} if self.forgotten else {}
        found |= {"log": log} if log else {}
        return found

    @classmethod
    def load(cls, saved: dict[str, Any], thread: list[Message]) -> Run:
        """The run that was stored. What a migration has taken out of the *thread* is left out."""
        known = {message.get("id"): message for message in thread}
        output = [
            known.get(item) if isinstance(item, str) else item for item in saved.get("output", ())
        ]
        found = [message for message in output if message is not None]
        names = ("started", "resumed", "done", "reason", "forgotten")
        facts = {name: saved[name] for name in names if name in saved}
        return cls(saved["task"], found, len(found), **facts)


def _slim(message: Message) -> Message:
    """A message without its empty fields: it is stored with every question."""
    empty: Message = {"models_usage": None, "metadata": {}}
    slim = {name: value for name, value in message.items() if value != empty.get(name, message)}
    if _RANDOM_ID.fullmatch(str(slim.get("id"))):  # it gets another, as if it were sent again
        del slim["id"]
    return slim


def is_same_task(one: list[Message], other: list[Message]) -> bool:
    """Whether two tasks have the same content, though they may be other objects."""

    def content(task: list[Message]) -> list[Message]:
        return [{k: v for k, v in message.items() if k not in _NEW_EACH_TIME} for message in task]

    return content(one) == content(other)


def exported(document: Any) -> Any:
    """A saved *document* as AutoGen's ``load_state`` takes it; one of somebody else's as it is."""
    section = document.get(SECTION) if isinstance(document, dict) else None
    if not isinstance(section, dict) or "format" not in section:
        return document
    return {name: value for name, value in document.items() if name != SECTION}


def as_exception(error: BaseException) -> Exception:
    """*error* in a form that AutoGen can handle: it waits for ever for what is no `Exception`.

    `Keeper.cause` finds the original again.
    """
    if isinstance(error, Exception):
        return error
    halted = RuntimeError(str(error))
    halted.__cause__ = error
    return halted


# -- the log of a turn -----------------------------------------------------------------------------


#: The turns that this is part of, by their logs, and whether it is recorded there. What a tool does
#: is not: its call is one thing, and is not made again where its result is known.
_around: ContextVar[Mapping[TurnLog, tuple[int, bool]]] = ContextVar(
    "limpet_autogen_turns", default=MappingProxyType({})
)


class TurnLog:
    """What models answered and tools did in one turn. Between turns it is closed: no recording.

    Tool calls that began and have no result yet are in ``ledger``, which `AsyncState.save` puts
    into the journal's head, so that `limpet.core.calls.all_in_doubt` finds them.
    """

    def __init__(
        self, flush: Callable[[], Awaitable[None]], note: Callable[..., None] = lambda *_: None
    ) -> None:
        self.flush = flush
        self.note = note
        self.is_open = False
        self.turn = 0  # another number for every turn that begins or is broken off
        self.changes = 0  # how often anything was added to it
        self.refused: BaseException | None = None  # why the turn cannot go on
        self.epoch = 0  # of the lease of this run, if it has one
        self.ledger = Ledger()
        self._actors: dict[str, ActorLog] = {}

    @property
    def is_recording(self) -> bool:
        """Whether what is done here is recorded in it: not between turns, and not within a tool."""
        return self.is_open and _around.get().get(self) != (self.turn, False)

    def is_around(self) -> bool:
        """Whether this is called from within the turn: by the agent itself, or by a tool."""
        return self.is_open and _around.get().get(self, (None,))[0] == self.turn

    @contextmanager
    def around(self, *, recorded: bool) -> Iterator[None]:
        """What is done within is part of the turn; *recorded*: whether piece by piece."""
        token = _around.set({**_around.get(), self: (self.turn, recorded)})
        try:
            yield
        finally:
            with suppress(ValueError):  # a generator may be closed in another context
                _around.reset(token)

    def actor(self, path: str) -> ActorLog:
        """The part of the agent, or the manager, at *path*."""
        return self._actors.setdefault(path, ActorLog(self, path))

    def __iter__(self) -> Iterator[ActorLog]:
        return iter(self._actors.values())

    def refuse(self, error: BaseException) -> None:
        """The turn cannot go on: the store has not taken a part of it, or its task is halted."""
        if self.refused is None:
            self.refused = error

    def is_refused(self) -> bool:
        """Whether the turn cannot go on."""
        return self.refused is not None

    def check(self) -> None:
        """Raise the error for which the turn cannot go on."""
        if self.refused is not None:
            raise as_exception(self.refused)

    def clear(self) -> None:
        """A turn begins, of which nothing is known."""
        self.turn += 1
        self.refused = None
        self.ledger = Ledger()
        for actor in self:
            actor.clear()

    def load(self, saved: dict[str, Any]) -> None:
        """What is known of a turn that is begun once more. A call without a result is in doubt."""
        self.clear()
        for path, part in saved.items():
            self.actor(path).load(part)
        self.ledger.abandon()

    def resolve(self, entries: Iterable[Entry]) -> None:
        """Do what a person said of calls in doubt, as the *entries* behind the save have it."""
        for entry in entries:
            if entry.type == RESOLVED:
                resolution = msgspec.convert(entry.body, Resolution)
                for actor in self:
                    actor.resolve(resolution)

    def dump(self) -> dict[str, Any]:
        """What is stored of it."""
        found = {actor.path: actor.dump() for actor in self}
        return {path: part for path, part in found.items() if part}

    def steps(self) -> list[str]:
        """The names of the steps that calls were begun as."""
        return [call["step"] for actor in self for call in actor.calls.values() if "step" in call]

    def break_off(self) -> None:
        """The turn has ended before its time: calls that are still running are in doubt."""
        self.turn += 1
        self.ledger.abandon()

    def in_doubt(self) -> list[Call]:
        """The calls of which nobody knows the outcome, but for steps: those are their task's."""
        return [call for id_, call in self.ledger.open.items() if id_ in self.ledger.abandoned]


class ActorLog:
    """The part of a log that is one agent's, or one manager's.

    ``calls`` are those of its tools: with a result; or with the id that they have in the ledger; or
    with the task and the step that they are.
    """

    def __init__(self, log: TurnLog, path: str) -> None:
        self.log = log
        self.path = path
        self.clear()

    def clear(self) -> None:
        """Nothing is known."""
        self.replies: list[Any] = []
        self.calls: dict[str, dict[str, Any]] = {}
        self._given = 0  # how many of the replies were given out since the turn began
        self._loaded = 0  # how many of them are as the store has them
        self._made: Counter[str] = Counter()
        self.running = 0  # how many of its tools are

    def load(self, saved: dict[str, Any]) -> None:
        """What was stored. A call without a result is put into the ledger."""
        self.replies = list(saved.get("replies", ()))
        self._loaded = len(self.replies)
        self.calls = {key: dict(call) for key, call in saved.get("calls", {}).items()}
        for call in self.calls.values():
            if "result" not in call and "step" not in call:
                self.log.ledger.begin(Call(call["id"], call["tool"], self.path))

    def dump(self) -> dict[str, Any]:
        """What is stored of it."""
        found: dict[str, Any] = {}
        if self.replies:
            found["replies"] = list(self.replies)
        if self.calls:
            found["calls"] = {key: dict(call) for key, call in self.calls.items()}
        return found

    # -- models ------------------------------------------------------------------------------------

    def next_reply(self) -> Any | None:
        """What the model answered to this question, if that is known."""
        self.log.check()
        if self._given >= len(self.replies):
            return None
        self._given += 1
        return self.replies[self._given - 1]

    @property
    def is_repeating(self) -> bool:
        """Whether what the model has asked for last is what the store has of it."""
        return 0 < self._given <= self._loaded

    def add_reply(self, reply: Any) -> None:
        """The model has answered."""
        self.replies.append(reply)
        self._given += 1
        self.log.changes += 1

    # -- tools -------------------------------------------------------------------------------------

    def key(self, call_id: str | None) -> str:
        """The key of the next call: some models count from one again, or give no ids."""
        return call_key(self._given, call_id, self._made)

    def result(self, key: str) -> Any | None:
        """The result of a call, if it is known."""
        return self.calls.get(key, {}).get("result")

    def is_in_doubt(self, key: str) -> bool:
        """Whether a run that is no more has begun it."""
        return self.calls.get(key, {}).get("id") in self.log.ledger.abandoned

    def begin(self, key: str, tool: str, step: dict[str, str]) -> None:
        """The tool is about to run; *step* says as which step of which task, if it is one."""
        if step:
            if key not in self.calls:
                self.calls[key] = {"tool": tool, **step}
                self.log.changes += 1
            return
        ledger, known = self.log.ledger, self.calls.get(key)
        if known is None:
            first = id_ = key.partition(":")[2] or tool
            number = 1
            while id_ in ledger:  # another agent's, whose model counts like this one
                number += 1
                id_ = f"{first}#{number}"
            known = self.calls[key] = {"tool": tool, "id": id_}
        ledger.begin(Call(known["id"], tool, self.path, epoch=self.log.epoch))
        self.log.changes += 1

    def step(self, key: str) -> dict[str, str]:
        """Of which task a call that was begun is a step, and which; nothing, if it is none."""
        call = self.calls.get(key, {})
        return {"task": call["task"], "step": call["step"]} if "step" in call else {}

    def take_back(self, key: str) -> None:
        """A call that was begun is to be made again: it had no effect, or its step knows of it."""
        if not self.step(key) and not self.is_in_doubt(key):
            self._forget(key)
            self.log.changes += 1

    def end(self, key: str, tool: str, result: Any) -> None:
        """The call has a result."""
        self._forget(key)
        self.calls[key] = {"tool": tool, "result": result}
        self.log.changes += 1

    def resolve(self, resolution: Resolution) -> None:
        """Do what a person said of a call, if it is one of these."""
        key = next((k for k, call in self.calls.items() if call.get("id") == resolution.id), None)
        if key is None:
            return
        if resolution.how == "retry":
            self._forget(key)
            return
        text: Any = SKIPPED
        if resolution.how == "done":
            text = DONE if resolution.result is None else resolution.result
        if not isinstance(text, str):
            text = msgspec.json.encode(text).decode()
        tool, is_error = self.calls[key]["tool"], resolution.how == "skip"
        if tool == EXECUTOR:
            self.end(key, tool, {"exit_code": int(is_error), "output": text})
            return
        content = [{"type": "TextResultContent", "content": text}]
        result = {"type": "ToolResult", "name": tool, "result": content, "is_error": is_error}
        self.end(key, tool, result)

    def drop_doubtful(self, idempotent: frozenset[str]) -> list[Call]:
        """Leave out calls in doubt, as if their model had not made them; which there were.

        If it made no others with them, it is asked again. Tools in *idempotent* just run again.
        """
        dropped = [
            key
            for key, call in self.calls.items()
            if self.is_in_doubt(key) and call["tool"] not in idempotent
        ]
        found = [call for key in dropped if (call := self._forget(key)) is not None]
        numbers = {int(key.partition(":")[0]) for key in dropped}
        for number in sorted(numbers - {0}, reverse=True):  # 0: no model had a part in it
            reply, made = self.replies[number - 1], Counter[str]()
            rest = [
                call
                for call in ([] if isinstance(reply["content"], str) else reply["content"])
                if call_key(number, call.get("id"), made) not in dropped
            ]
            self.replies[number - 1 :] = [{**reply, "content": rest}] if rest else []
        self._loaded = min(self._loaded, len(self.replies))
        return found

    def _forget(self, key: str) -> Call | None:
        call = self.calls.pop(key, {})
        return self.log.ledger.end(call.get("id", ""))


def call_key(number: int, call_id: str | None, made: Counter[str]) -> str:
    """The key of a call, of those that the reply of this *number* has *made* so far."""
    name = f"{number}:{call_id or ''}"
    made[name] += 1
    return name if made[name] == 1 else f"{name}#{made[name]}"
