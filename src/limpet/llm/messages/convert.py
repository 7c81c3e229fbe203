"""From any shape of messages to one: what to send to OpenAI, or to Anthropic.

What both sides can say is said. What the other cannot say is left out, named in ``left_out`` with
the thing itself, and there again in `Converted.restore`: the way back loses nothing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from limpet.llm.messages import anthropic, chat, responses
from limpet.llm.messages.repair import Repair, repair_made
from limpet.llm.messages.shape import kind_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import ModuleType

    from limpet.llm.messages.parts import Turn
    from limpet.llm.messages.repair import Rule
    from limpet.llm.messages.shape import Shape
    from limpet.llm.messages.tidy import Made

    Message = Mapping[str, Any]

__all__ = ["Converted", "LeftOut", "to_anthropic", "to_chat", "to_responses"]

_SHAPES: dict[str, ModuleType] = {"chat": chat, "responses": responses, "anthropic": anthropic}
_INSTRUCTS = ("system", "developer")


class LeftOut(Struct, frozen=True):
    """Something that a shape cannot say: in which message, what, why, and the thing itself."""

    index: int
    kind: str
    what: str
    value: Any = None

    def __repr__(self) -> str:
        return f"LeftOut({self.index}, {self.kind!r}, {self.what!r})"


class Converted(Struct, frozen=True):
    """Messages in one shape, what was left out of them, and the way back.

    ``system`` is what Anthropic takes beside the messages; None in the other shapes.
    """

    messages: list[dict[str, Any]]
    system: list[dict[str, Any]] | None
    left_out: list[LeftOut]
    repairs: list[Repair]
    sources: list[dict[str, Any]] = field(default_factory=list)
    made_of: list[tuple[int, ...]] = field(default_factory=list)

    def __repr__(self) -> str:
        return (
            f"Converted({len(self.messages)} messages, left_out={self.left_out!r}, "
            f"repairs={self.repairs!r})"
        )

    def restore(self, messages: Iterable[Message] | None = None) -> list[dict[str, Any]]:
        """The messages that these were made of, for as many of them as are in *messages*.

        What is new in *messages* stays where it is. Without *messages*, all that was converted.
        """
        return _Restoring(self).run(self.messages if messages is None else messages)


def to_chat(
    messages: Sequence[Message],
    *,
    system: Any = None,
    rule: Rule = "stub",
    keep_open: bool = False,
) -> Converted:
    """*messages*, of any shape, as OpenAI's Chat Completions takes them.

    *system*: what Anthropic has beside the messages, text or blocks. *rule* and *keep_open*: as for
    `repair`, which sees to it that calls and results are where the provider looks for them.

    >>> use = {"type": "tool_use", "id": "t1", "name": "now", "input": {}}
    >>> result = {"type": "tool_result", "tool_use_id": "t1", "content": "12:00"}
    >>> both = {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}
    >>> [message["role"] for message in to_chat(both).messages]
    ['assistant', 'tool']
    """
    return _convert(messages, "chat", system, rule, keep_open=keep_open)


def to_responses(
    messages: Sequence[Message],
    *,
    system: Any = None,
    rule: Rule = "stub",
    keep_open: bool = False,
) -> Converted:
    """The same, as the input of OpenAI's Responses."""
    return _convert(messages, "responses", system, rule, keep_open=keep_open)


def to_anthropic(
    messages: Sequence[Message],
    *,
    system: Any = None,
    rule: Rule = "stub",
    keep_open: bool = False,
) -> Converted:
    """The same, as Anthropic's Messages takes them; instructions go into ``system``."""
    return _convert(messages, "anthropic", system, rule, keep_open=keep_open)


def alone(message: Message, target: Shape) -> list[dict[str, Any]]:
    """What becomes of *message* in the shape *target*, before it is put together with others."""
    work = _Conversion(target)
    work.take(message, 0, shape_of(message))
    work.flush()
    return [made for _, made in work.made]


class _Conversion:
    """One history on its way into one shape."""

    def __init__(self, target: Shape) -> None:
        self.target = target
        self.module = _SHAPES[target]
        self.left_out: list[LeftOut] = []
        self.made: Made = []
        self.system: list[dict[str, Any]] = []
        self._turns: list[Turn] = []  # of another shape, in a row, not yet written
        self._begun = False

    def note(self, index: int, kind: str, what: str, value: Any) -> None:
        self.left_out.append(LeftOut(index, kind, what, value))

    def take_system(self, system: Any) -> None:
        """What stood beside the messages."""
        turn = anthropic.system_turn(system)
        if self.target == "anthropic":
            self.system += anthropic.write_system([turn], self.note)
        else:
            # It was in no message, so no message is what it is made of.
            self.made += [((), message) for _, message in self.module.write([turn], self.note)]

    def take(self, message: Message, index: int, shape: Shape | None) -> None:
        read = _SHAPES[shape or "chat"].read
        if self.target == "anthropic" and message.get("role") in _INSTRUCTS:
            # Instructions stand beside the messages, before all of them.
            if self._begun:
                self.note(index, "system", "instructions amid the messages go before them", message)
            self.system += anthropic.write_system(read(message, index), self.note)
            return
        self._begun = True
        content = message.get("content")
        # A message without a shape of its own may be the same here.
        same = isinstance(content, str) or self.target != "responses"
        if shape is None and same and (content or self.target != "anthropic"):
            shape = self.target
        if shape == self.target:
            self.flush()
            self.made.append(((index,), self.module.as_sent(message, index, self.note)))
        else:
            self._turns += read(message, index)

    def flush(self) -> None:
        """Write what is to be written together."""
        self.made += self.module.write(self._turns, self.note)
        self._turns = []


def _convert(
    messages: Sequence[Message], target: Shape, system: Any, rule: Rule, *, keep_open: bool
) -> Converted:
    work = _Conversion(target)
    if system:
        work.take_system(system)
    shapes = _shapes(messages)
    for index, (message, shape) in enumerate(zip(messages, shapes, strict=True)):
        work.take(message, index, shape)
    work.flush()
    given = [message for _, message in work.made]
    made, repairs = repair_made(given, target, rule, keep_open=keep_open)
    made_of = [
        tuple(sorted({source for number in numbers for source in work.made[number][0]}))
        for numbers, _ in made
    ]
    return Converted(
        messages=[message for _, message in made],
        system=work.system if target == "anthropic" else None,
        left_out=work.left_out,
        # Each with the number of the message that the caller knows.
        repairs=[
            msgspec.structs.replace(found, index=next(iter(work.made[found.index][0]), 0))
            for found in repairs
        ],
        sources=[dict(message) for message in messages],
        made_of=made_of,
    )


def _shapes(messages: Sequence[Message]) -> list[Shape | None]:
    """The shape of each; what an assistant says just before an item is an item too."""
    found = [shape_of(message) for message in messages]
    for index in range(len(messages) - 2, -1, -1):
        plain = found[index] is None and messages[index].get("role") == "assistant"
        after = messages[index + 1]
        if plain and found[index + 1] == "responses" and kind_of(after) != "message":
            found[index] = "responses"
    return found


class _Restoring:
    """The way back: each message is known by what it says."""

    def __init__(self, converted: Converted) -> None:
        self._sources = converted.sources
        self._silent = set(range(len(self._sources)))  # those of which nothing was made
        self._made: dict[bytes, deque[tuple[int, ...]]] = {}
        for message, numbers in zip(converted.messages, converted.made_of, strict=True):
            self._made.setdefault(_key(message), deque()).append(numbers)
            self._silent -= set(numbers)
        self._done: set[int] = set()

    def run(self, messages: Iterable[Message]) -> list[dict[str, Any]]:
        restored: list[dict[str, Any]] = []
        known: set[int] = set()  # sources of the messages since the last new one
        for message in messages:
            queue = self._made.get(_key(message))
            if queue:
                known |= set(queue.popleft())
            else:
                restored += self._given(known)
                known = set()
                restored.append(dict(message))
        restored += self._given(known)
        return restored

    def _given(self, known: set[int]) -> list[dict[str, Any]]:
        """The sources *known*, in their order, with the silent ones around them."""
        found: list[int] = []
        for number in sorted(known - self._done):
            first = number
            while first - 1 in self._silent and first - 1 not in self._done:
                first -= 1
            found += range(first, number + 1)
        last = found[-1] + 1 if found else len(self._sources)
        while last in self._silent:
            found.append(last)
            last += 1
        self._done |= set(found)
        return [self._sources[number] for number in dict.fromkeys(found)]


def _key(message: Message) -> bytes:
    return msgspec.json.encode(message, order="sorted")
