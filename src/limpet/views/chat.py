"""Who said what, whatever framework stored it: messages with their tool calls and the results.

What reads a journal makes a `Stored` of each message; `together` pairs calls with their results,
and gives what people are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, field, structs

from limpet.llm.messages.shape import role_of
from limpet.views.messages import Spoken, spoken

__all__ = [
    "DAMAGED",
    "REACH",
    "Event",
    "Line",
    "Mark",
    "Message",
    "Part",
    "Result",
    "Stored",
    "Usage",
    "called_in",
    "timestamp_in",
    "together",
    "usage_in",
]

#: How many messages may lie between a call and its result, on a page: as in windows.
REACH = 64

#: What an event is called that stands for entries which cannot be read.
DAMAGED = "damaged"

#: What Limpet writes in place of a result that is not known begins with this.
STANDS_IN = "[limpet:"


class Usage(Struct, frozen=True):
    """The model that made a message, what that took, and how it ended; None: nobody stored it."""

    model: str | None = None
    input: int | None = None  # tokens
    output: int | None = None
    seconds: float | None = None
    ended: str | None = None  # why, where it did not simply stop


class Mark(Struct, frozen=True):
    """Something to know of a message: ``pinned``, ``repaired``, ``taken back``, …, and in words."""

    kind: str
    text: str = ""


class Result(Struct, frozen=True):
    """What a tool returned; *number* is that of the message which says so."""

    text: str
    number: int
    error: bool = False

    @property
    def stands_in(self) -> bool:
        """Whether it says that the result is not known."""
        return self.text.startswith(STANDS_IN)


class Part(Spoken, frozen=True):
    """A piece of a message in a chat.

    A call has its *result*, where that is known, and where not a *note* that says why. A part of
    kind ``result`` is one whose call is not here.
    """

    result: Result | None = None
    note: str = ""

    @property
    def failed(self) -> bool:
        """Whether a tool failed, or nobody knows what it did."""
        result = self.result
        return self.error or (result is not None and (result.error or result.stands_in))


class Message(Struct, frozen=True):
    """What one speaker says at once."""

    number: int
    role: str
    parts: list[Part]
    name: str | None = None  # who it is, where there are several
    at: datetime | None = None
    usage: Usage = Usage()
    marks: list[Mark] = []
    entry: int | None = None  # the number of the journal's entry that it is in

    @property
    def counts(self) -> bool:
        """Whether it is still a part of the conversation."""
        return not any(mark.kind in ("taken back", "replaced") for mark in self.marks)


class Event(Struct, frozen=True):
    """Something that happened between messages: *what* in a word, and in a sentence."""

    number: int
    at: datetime | None
    what: str
    text: str
    detail: str = ""


Line = Message | Event


class Stored(Struct):
    """A message as some framework stored it, and what is known of it besides.

    *message* is in one of the shapes of `limpet.llm.messages`. *failed*: its results are errors.
    """

    number: int
    message: Mapping[str, Any]
    at: datetime | None = None
    role: str | None = None
    name: str | None = None
    usage: Usage | None = None
    marks: list[Mark] = field(default_factory=list)
    failed: bool = False
    entry: int | None = None


def together(
    stored: Sequence[Stored],
    later: Sequence[Stored] = (),
    *,
    complete: bool = True,
    notes: Mapping[str, str] | None = None,
) -> list[Message]:
    """*stored*, oldest first, as what was said: each result with its call.

    *later* are the messages behind them, of which only results count; *complete*: those are all
    that there are. *notes* say of calls, by their ids, why they have no result.
    """
    pairs = _Pairs(stored)
    for index, one in enumerate([*stored, *later]):
        for said in spoken(one.message):
            pairs.take(index, one, said)
    missing = "no result" if complete else f"no result in the {len(later)} messages after it"
    pairs.explain(notes or {}, missing, waits=complete)
    return [
        _message(one, pairs.parts[index])
        for index, one in enumerate(stored)
        if pairs.parts[index] or index not in pairs.merged
    ]


class _Pairs:
    """Takes what is said, oldest first, and puts results where their calls are."""

    def __init__(self, stored: Sequence[Stored]) -> None:
        self.stored = stored
        self.parts: list[list[Part]] = [[] for _ in stored]
        self.merged: set[int] = set()  # messages that have results which are shown elsewhere
        # By id the calls without a result, the newest last; None is one behind what is shown.
        self._waiting: dict[str, list[tuple[int, int] | None]] = {}
        self._spoke = -1  # the newest message that is more than results of calls

    def take(self, index: int, one: Stored, said: Spoken) -> None:
        """Take in the next piece, which is of message number *index*."""
        waiting = self._waiting.get(said.id) if said.kind == "result" and said.id else None
        if waiting is not None:
            if waiting and (place := waiting.pop()) is not None:
                result = Result(said.text, one.number, said.error or one.failed)
                self._change(place, result=result)
                if index < len(self.stored):
                    self.merged.add(index)
                    marks = [mark for mark in one.marks if mark.kind != "pinned"]
                    self.stored[place[0]].marks += [
                        mark for mark in marks if mark not in self.stored[place[0]].marks
                    ]
            return
        self._spoke = index
        shown = index < len(self.stored)
        if said.kind == "call" and said.id:
            here = (index, len(self.parts[index])) if shown else None
            self._waiting.setdefault(said.id, []).append(here)
        if shown:
            error = said.error or (one.failed and said.kind == "result")
            self.parts[index].append(
                Part(said.kind, said.text, said.id, said.name, said.arguments, error)
            )

    def explain(self, notes: Mapping[str, str], missing: str, *, waits: bool) -> None:
        """Say of each call that has no result why; *waits*: it may come, at the very end."""
        for id_, places in self._waiting.items():
            for place in places:
                if place is not None:
                    at_end = waits and place[0] == self._spoke
                    note = notes.get(id_, "no result yet" if at_end else missing)
                    self._change(place, note=note)

    def _change(self, place: tuple[int, int], **changes: Any) -> None:
        index, number = place
        self.parts[index][number] = structs.replace(self.parts[index][number], **changes)


def _message(one: Stored, parts: list[Part]) -> Message:
    name, role = one.name, one.role or role_of(one.message)
    if name is None and "role" in one.message:  # of an item without a role it is a tool's
        name = one.message.get("name")
    return Message(
        number=one.number,
        role=role,
        parts=parts,
        name=name if isinstance(name, str) and name not in ("", role) else None,
        at=one.at,
        usage=one.usage or usage_in(one.message),
        marks=one.marks,
        entry=one.entry,
    )


def called_in(stored: Sequence[Stored]) -> set[str]:
    """The calls, by their ids, whose results are among *stored*, oldest first, without them."""
    missing: set[str] = set()
    for one in reversed(stored):
        for said in reversed(spoken(one.message)):
            if said.kind == "result" and said.id:
                missing.add(said.id)
            elif said.kind == "call":
                missing.discard(said.id)
    return missing


# -- what frameworks store beside what is said -----------------------------------------------------


def usage_in(message: Mapping[str, Any]) -> Usage:
    """Model and tokens, where a stored *message* says so, as providers and frameworks write it."""
    about = message.get("response_metadata")
    about = about if isinstance(about, Mapping) else {}
    places = [message.get(key) for key in ("usage_metadata", "usage", "models_usage")]
    places += [about.get(key) for key in ("token_usage", "usage")]
    usage = next((place for place in places if isinstance(place, Mapping) and place), {})
    named = (message.get("model"), about.get("model_name"), about.get("model"))
    ended = message.get("finish_reason") or message.get("stop_reason") or about.get("finish_reason")
    return Usage(
        model=next((name for name in named if isinstance(name, str) and name), None),
        input=_tokens(usage, "input_tokens", "prompt_tokens"),
        output=_tokens(usage, "output_tokens", "completion_tokens"),
        ended=ended if ended in ("length", "max_tokens", "content_filter", "refusal") else None,
    )


def _tokens(usage: Mapping[str, Any], *keys: str) -> int | None:
    found = next((usage[key] for key in keys if key in usage), None)
    return found if found.__class__ is int and found >= 0 else None


def timestamp_in(value: Any) -> datetime | None:
    """A time as frameworks write it; None if it is none."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
