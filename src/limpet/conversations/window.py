"""The newest messages that fit a budget, in units that mean something, such as a model takes them.

Messages come newest first, and no more of them than are needed. They are cut only between units:
most are one message; from a tool call to the last of its results is one, however many calls are
made at once and whatever was said meanwhile; and so is, in items of OpenAI's Responses, all that
the model said and called after one thought.

The first unit that does not fit ends a window that is half full. Where it is not, that unit takes
over half of it by itself: it alone is left out, words that say so stand in its place, and older
ones go on. Otherwise one large message would hide all that was said before it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.errors import WindowTooSmall
from limpet.llm import tokens
from limpet.llm.messages.repair import Repair, repair
from limpet.llm.messages.shape import binds_next, calls_of, results_of, role_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from limpet.llm.messages.repair import Rule
    from limpet.llm.messages.shape import Shape
    from limpet.llm.tokens import Count

    Item = tuple[int, dict[str, Any]]
    #: What is known of a message that has to do with tools: how it is shown, and the calls that
    #: results in it are known to lack.
    Look = Callable[[int, dict[str, Any]], tuple[dict[str, Any], Iterable[str]]]

__all__ = ["Budget", "Units", "View", "Window"]

#: How many messages may lie between a call and its result, or a thought and what it led to; calls
#: that are made at once count as one, and their results not at all. A result further off counts as
#: one without a call: looking for that must not mean reading all.
REACH = 64

#: How many units may be left out amid others: each is read, and all of it for nothing.
OMITTED = 8
#: What a model reads in their place.
TOO_LARGE = "[limpet: {} left out here, being too large to be shown with the rest.]"

_PLAIN = ("role", "content")
_SPEAKERS = ("user", "assistant", "system", "developer")


class Units:
    """Puts messages that come newest first together to units."""

    def __init__(self) -> None:
        self._held: list[Item] = []  # newest first, in which there is no place to cut
        self._ready: list[list[Item]] = []  # units that a thought before them would still join
        self._wanted: dict[str, int] = {}  # results whose call is to come, and how many came since
        #: Results that have none: the position, and the id that they answer.
        self.orphans: set[tuple[int, str]] = set()

    @property
    def idle(self) -> bool:
        """Whether nothing is held, and the next message that stands alone is a unit at once."""
        return not (self._held or self._ready or self._wanted)

    def feed(self, item: Item) -> Iterator[list[Item]]:
        """Take the next older message; gives the units that are now known, each newest first."""
        if self._held and not self._wanted:
            if binds_next(item[1]) and _is_item_of_model(self._held[-1][1]):
                self._held = [*(older for unit in self._ready for older in unit), *self._held]
                self._ready.clear()
            else:
                yield from self._part(item)
        self._hold(item)
        if not _goes_on(*(message for _, message in self._held[:-3:-1])):
            yield from self._lose_patience()
        if not self._wanted and is_plain(item[1]):  # no thought leads to it
            yield from self.rest()

    def _part(self, item: Item) -> Iterator[list[Item]]:
        """Cut between what is held and the older *item*; for good if no thought can be before."""
        self._ready.append(self._held)
        self._held = []
        own = _is_item_of_model(self._ready[-1][-1][1]) and _is_item_of_model(item[1])
        if not own or sum(map(len, self._ready)) > REACH:
            yield from self._ready
            self._ready = []

    def _hold(self, item: Item) -> None:
        position, message = item
        self._held.append(item)
        for id_ in calls_of(message):
            self._wanted.pop(id_, None)
        for id_ in results_of(message):
            if (position, id_) not in self.orphans:
                self._wanted[id_] = 0

    def _lose_patience(self) -> Iterator[list[Item]]:
        for id_ in self._wanted:
            self._wanted[id_] += 1
        if any(since > REACH for since in self._wanted.values()):
            yield from self._again()

    def is_lost(self, item: Item) -> bool:
        """Whether *item* is nothing but results without a call, which nobody will be shown."""
        if role_of(item[1]) != "tool":
            return False
        return all((item[0], id_) in self.orphans for id_ in results_of(item[1]))

    def rest(self) -> Iterator[list[Item]]:
        """There is nothing older: the units that are left."""
        while self._wanted:
            yield from self._again()
        yield from self._ready
        if self._held:
            yield self._held
        self._ready, self._held = [], []

    def _again(self) -> Iterator[list[Item]]:
        """Go through what is held once more, without the calls that did not come."""
        late = max(self._wanted.values())
        lost = {id_ for id_, since in self._wanted.items() if since == late}
        held, self._held, self._wanted = self._held, [], {}
        self.orphans |= {(at, id_) for at, m in held for id_ in lost.intersection(results_of(m))}
        for item in held:
            yield from self.feed(item)


class Budget:
    """How much may go into a window."""

    def __init__(
        self,
        max_tokens: int | None,
        max_messages: int | None = None,
        count: Count | str | None = None,
        *,
        reserve: int = 0,
        tools: Sequence[Mapping[str, Any]] | None = None,
        whole: bool = False,
    ) -> None:
        for name, value in (("max_tokens", max_tokens), ("max_messages", max_messages)):
            _check(name, value)
        _check("reserve", reserve)
        # To know that a message is too large it need not be counted to its end.
        self._most = None if whole else max_tokens
        self.max_tokens = max_tokens
        self.max_messages = max_messages
        self.count = tokens.counter(count) if isinstance(count, str) else count or tokens.estimate
        self.reserve = reserve
        self.fixed = 0
        self._costs: dict[int, tuple[Mapping[str, Any], int]] = {}
        self.places = sys.maxsize if max_messages is None else max_messages
        self.room = sys.maxsize
        if max_tokens is not None:
            priming = self.count.priming if isinstance(self.count, tokens.Counter) else 0
            self.fixed = reserve + priming + tokens.of_tools(tools or (), self.count)
            self.room = max_tokens - self.fixed

    def cost(self, message: Mapping[str, Any]) -> int:
        """The tokens of *message*, which is counted once."""
        if self.max_tokens is None:
            return 0
        known = self._costs.get(id(message))
        if known is None:
            count = self.count
            exact = isinstance(count, tokens.Counter)
            size = count(message, self._most) if exact else count(message)  # type: ignore[call-arg]
            # Held, so that nothing else can come to have its id.
            known = self._costs[id(message)] = (message, size)
        return known[1]

    def allows(self, used: int, number: int) -> bool:
        """Whether *number* messages of *used* tokens are not too much."""
        return used <= self.room and number <= self.places

    def too_small(self, what: str) -> WindowTooSmall:
        """The error for *what* must be in the window, and is too large."""
        limits = (self.max_tokens, "tokens"), (self.max_messages, "messages")
        budget = " and ".join(f"{most:,} {unit}" for most, unit in limits if most is not None)
        kept = f" (of which {self.fixed:,} are set aside)" if self.fixed > tokens.PRIMING else ""
        return WindowTooSmall(f"{what} does not fit {budget}{kept}. Allow more, or shorten it.")


def _check(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, int) or value < 0):
        raise ValueError(f"{name}={value!r}: say how many, as a number from 0 up.")


class View(Struct, frozen=True):
    """A window: its messages, what was wrong in the history, and whether any were left out."""

    messages: list[dict[str, Any]]
    repairs: list[tuple[int, Repair]]
    cut: bool


class Window:
    """Takes messages newest first and keeps those that fit."""

    def __init__(
        self,
        budget: Budget,
        *,
        rule: Rule = "stub",
        shape: Shape | None = None,
        look: Look | None = None,
    ) -> None:
        self._budget = budget
        self._look = look
        self._rule: Rule = rule
        self._shape = shape
        self._front: list[Item] = []  # system messages and a summary
        self._pins: dict[int, dict[str, Any]] = {}
        self._taken: list[list[Item]] = []  # units, newest first
        self._used = self._number = 0
        self._front_used = self._standing = 0  # of that, what stays in front: tokens and messages
        self._omitted = 0
        self._units = Units()
        self._idle = True  # no unit is begun
        self._plain = shape is None  # so far there is nothing to repair
        self._full = False

    def keep(self, item: Item, what: str) -> None:
        """Put in a message that stays in front whatever comes; *what* it is, for an error."""
        self._front.append(item)
        self._reserve(item[1], what)

    def pin(self, item: Item) -> None:
        """Put in a message that stays, in front of what is taken unless it is among that."""
        self._pins[item[0]] = item[1]
        self._reserve(item[1], "A pinned message")

    def _reserve(self, message: dict[str, Any], what: str) -> None:
        self._plain = self._plain and is_plain(message)
        self._used += self._budget.cost(message)
        self._number += 1
        self._front_used, self._standing = self._used, self._number
        if not self._budget.allows(self._used, self._number):
            raise self._budget.too_small(what)

    def take(self, position: int, message: dict[str, Any]) -> bool:
        """Add the next older message. False when the window is full."""
        plain = is_plain(message)
        if plain and self._idle and position not in self._pins:
            return self._take_plain(position, message)
        self._plain = self._plain and plain
        if self._look is not None:
            message, lost = self._look(position, message)
            self._units.orphans.update((position, id_) for id_ in lost)
        found = self._add(self._units.feed((position, message)))
        self._idle = self._units.idle
        return found

    def _take_plain(self, position: int, message: dict[str, Any]) -> bool:
        """The quick way, for most messages of most conversations."""
        budget = self._budget
        used, number = self._used + budget.cost(message), self._number + 1
        if used <= budget.room and number <= budget.places:
            self._used, self._number = used, number
            self._taken.append([(position, message)])
            return True
        return self._add([[(position, message)]])

    def _add(self, units: Iterable[list[Item]]) -> bool:
        for unit in units:
            if not self._full:
                self._full = not self._fits(unit)
        return not self._full

    def _fits(self, unit: list[Item]) -> bool:
        shown = unit if self._plain else [i for i in unit if not self._units.is_lost(i)]
        used, number = self._used, self._number
        for position, message in shown:
            if position not in self._pins:
                used += self._budget.cost(message)
                number += 1
        if self._budget.allows(used, number):
            self._used, self._number = used, number
            self._taken.append(unit)
            return True
        if not any(map(self._is_shown, self._taken)):
            raise self._too_small()
        return self._omits(unit)

    def _omits(self, unit: list[Item]) -> bool:
        """Leave *unit* out, and no other, if the window is not half full without it."""
        budget, marker = self._budget, _omission(unit)
        used, number = self._used + budget.cost(marker), self._number + 1
        early = budget.allows(2 * self._used - self._front_used, 2 * self._number - self._standing)
        if not early or self._omitted == OMITTED or not budget.allows(used, number):
            return False
        self._used, self._number = used, number
        self._omitted += 1
        self._taken.append([(0, marker)])
        return True

    def _is_shown(self, unit: list[Item]) -> bool:
        return not all(map(self._units.is_lost, unit))

    def _too_small(self) -> WindowTooSmall:
        return self._budget.too_small("The newest message, with what belongs to it,")

    def view(self) -> View:
        """What was taken, oldest first, such that a model takes it."""
        self._add(self._units.rest())
        cut = self._full or self._omitted > 0
        if self._plain:
            return View([message for _, message in self._items()], [], cut)
        while True:
            messages, repairs = self._repaired(self._items())
            if self._budget.allows(sum(map(self._budget.cost, messages)), len(messages)):
                return View(messages, repairs, cut)
            # What stands in for what is missing takes room, too.
            if not any(map(self._is_shown, self._taken[:-1])):
                raise self._too_small()
            self._taken.pop()
            cut = True

    def _items(self) -> list[Item]:
        tail = [item for unit in reversed(self._taken) for item in reversed(unit)]
        within = {position for position, _ in tail}
        pins = [item for item in sorted(self._pins.items()) if item[0] not in within]
        return [*self._front, *pins, *tail]

    def _repaired(self, items: list[Item]) -> tuple[list[dict[str, Any]], list[tuple[int, Repair]]]:
        messages = [message for _, message in items]
        done = repair(messages, self._rule, shape=self._shape, keep_open=True)
        return done.messages, [(items[found.index][0], found) for found in done.repairs]


def _omission(unit: list[Item]) -> dict[str, Any]:
    """What stands in place of *unit*; the user's, as a summary is: a record, and no instruction."""
    last, first = unit[0][0], unit[-1][0]
    what = f"{len(unit):,} messages (positions {first} to {last}) were"
    what = f"a message (position {first}) was" if len(unit) == 1 else what
    return {"role": "user", "content": TOO_LARGE.format(what)}


def is_plain(message: Mapping[str, Any]) -> bool:
    """Whether there is nothing in *message* to repair: a role and a text, as most have."""
    content = message.get("content")
    if not content or content.__class__ is not str or len(message) > len(_PLAIN):
        return False
    return message.get("role") in _SPEAKERS


def _goes_on(message: Mapping[str, Any], newer: Mapping[str, Any] | None = None) -> bool:
    """Whether *message* is one of many results, or of many calls, that stand together."""
    return bool(results_of(message) or (newer and calls_of(message) and calls_of(newer)))


def _is_item_of_model(message: Mapping[str, Any]) -> bool:
    return isinstance(message.get("type"), str) and role_of(message) == "assistant"
