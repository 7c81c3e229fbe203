"""The newest messages that fit a budget, in units that mean something, such as a model takes them.

In front of them stand the system's messages, a summary, and what is pinned. The others come newest
first, and no more of them are read than are needed. They are cut only between units: most are one
message; from a tool call to the last of its results is one, however many calls are made at once and
whatever was said meanwhile; and so is, in items of OpenAI's Responses, all that the model said and
called after one thought.

The first unit that does not fit ends a window that is half full. Where it is not, that unit takes
over half of it by itself: it alone is left out, words that say so stand in its place, and older
ones go on. Otherwise one large message would hide all that was said before it. And where much was
said between a call and its result, which does not fit with them, these stay together without it:
otherwise a late result would hide all that was said while it was waited for.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.conversations.repair import Notes
from limpet.conversations.transcript import ConversationMeta, Item, Summary
from limpet.core.codec import fresh
from limpet.errors import WindowTooSmall
from limpet.llm import tokens
from limpet.llm.messages.repair import Repair, repair_made
from limpet.llm.messages.shape import (
    binds_next,
    calls_of,
    ids_of,
    results_of,
    role_of,
    shape_of_all,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from limpet.backends.contract import Head
    from limpet.conversations.transcript import Transcript
    from limpet.llm.messages.repair import Rule
    from limpet.llm.messages.shape import Shape
    from limpet.llm.tokens import Count

__all__ = ["Budget", "Front", "Units", "View", "Window", "Windows"]

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


# -- units -----------------------------------------------------------------------------------------


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
        position, message = item
        if self._held and not self._wanted:
            if binds_next(message) and _is_item_of_model(self._held[-1][1]):
                self._held = [*(older for unit in self._ready for older in unit), *self._held]
                self._ready.clear()
            else:
                yield from self._cut_before(message)
        calls, results = ids_of(message)
        # One of many results, or of many calls, that stand together.
        goes_on = results or (calls and self._held and calls_of(self._held[-1][1]))
        self._held.append(item)
        for id_ in calls:
            self._wanted.pop(id_, None)
        for id_ in results:
            if (position, id_) not in self.orphans:
                self._wanted[id_] = 0
        if not goes_on:
            for id_ in self._wanted:
                self._wanted[id_] += 1
            if any(since > REACH for since in self._wanted.values()):
                yield from self._again()
        if not self._wanted and is_plain(message):  # no thought leads to it
            yield from self.rest()

    def _cut_before(self, older: Mapping[str, Any]) -> Iterator[list[Item]]:
        """Cut between *older* and what is held; for good if no thought can be before that."""
        self._ready.append(self._held)
        self._held = []
        of_model = _is_item_of_model(self._ready[-1][-1][1]) and _is_item_of_model(older)
        if not of_model or sum(map(len, self._ready)) > REACH:
            yield from self._ready
            self._ready = []

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


# -- how much fits ---------------------------------------------------------------------------------


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
        limits: dict[str, object] = {
            "max_tokens": max_tokens,
            "max_messages": max_messages,
            "reserve": reserve,
        }
        for name, value in limits.items():
            if value is not None and (not isinstance(value, int) or value < 0):
                raise ValueError(f"{name}={value!r}: say how many, as a number from 0 up.")
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
        fixed = f" (of which {self.fixed:,} are set aside)" if self.fixed > tokens.PRIMING else ""
        return WindowTooSmall(f"{what} does not fit {budget}{fixed}. Allow more, or shorten it.")


# -- one window ------------------------------------------------------------------------------------


class View(Struct, frozen=True):
    """A window: its messages, what was wrong in the history, and whether any were left out.

    ``items`` are the messages as they were taken, before anything was repaired, with their
    positions: 0 is the summary's, and under 0 are words in place of what was too large, which
    begins at that position. ``made_of`` says of which of them each message was made; None: they are
    the same. ``omitted`` are the units that were left out amid others, each being too large: their
    first and last position, and how many messages they are.
    """

    messages: list[dict[str, Any]]
    repairs: list[tuple[int, Repair]]
    cut: bool
    items: list[Item]
    made_of: list[tuple[int, ...]] | None = None
    omitted: list[tuple[int, int, int]] = []

    def positions(self) -> list[tuple[int, ...]]:
        """Of each message the positions that it is from; none of one that was put in."""
        if self.made_of is None:
            return [(position,) for position, _ in self.items]
        return [tuple(self.items[at][0] for at in indexes) for indexes in self.made_of]


class Window:
    """Takes messages newest first and keeps those that fit."""

    def __init__(
        self,
        budget: Budget,
        *,
        rule: Rule = "stub",
        shape: Shape | None = None,
        notes: Notes | None = None,
    ) -> None:
        self._budget = budget
        self._notes = notes or Notes()
        self._rule: Rule = rule
        self._shape = shape
        self._front: list[Item] = []  # system messages and a summary
        self._pins: dict[int, dict[str, Any]] = {}
        self._taken: list[list[Item]] = []  # units, as they were taken: the newest first
        self._used = self._number = 0  # tokens and messages
        self._front_used = self._front_number = 0  # of those, the ones that stay in front
        self._omitted: list[tuple[int, int, int]] = []
        self._units = Units()
        self._idle = True  # no unit is begun
        self._plain = shape is None  # so far there is nothing to repair
        self._full = False

    def put_front(self, front: Front) -> None:
        """Put in what stays in *front* of every window."""
        for item in front.opening:
            self.keep(item, "The system message")
        summary = None if front.summary is None else front.summary.message
        if summary is not None:
            self.keep((0, summary), "The summary")
        opening = dict(front.opening)
        for position, message in front.pins:
            if position not in opening:
                self._pins[position] = message
                self._reserve(message, "A pinned message")

    def keep(self, item: Item, what: str) -> None:
        """Put in a message that stays in front whatever comes; *what* it is, for an error."""
        self._front.append(item)
        self._reserve(item[1], what)

    def _reserve(self, message: dict[str, Any], what: str) -> None:
        self._plain = self._plain and is_plain(message)
        self._used += self._budget.cost(message)
        self._number += 1
        self._front_used, self._front_number = self._used, self._number
        if not self._budget.allows(self._used, self._number):
            raise self._budget.too_small(what)

    def take(self, position: int, message: dict[str, Any]) -> bool:
        """Add the next older message. False when the window is full."""
        plain = is_plain(message)
        if plain and self._idle and position not in self._pins:
            # The quick way, for most messages of most conversations.
            budget = self._budget
            used, number = self._used + budget.cost(message), self._number + 1
            if used <= budget.room and number <= budget.places:
                self._used, self._number = used, number
                self._taken.append([(position, message)])
                return True
            return self._add([[(position, message)]])
        self._plain = self._plain and plain
        orphans = self._notes.orphans(position)
        self._units.orphans.update((position, id_) for id_ in orphans)
        shown = self._notes.show(position, message)
        found = self._add(self._units.feed((position, shown)))
        self._idle = self._units.idle
        return found

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
        calls, meanwhile = _apart(unit)
        if meanwhile:
            return self._fits(calls) and all(self._fits([item]) for item in meanwhile)
        if not any(map(self._is_shown, self._taken)):
            raise self._too_small()
        return self._omits(unit)

    def _omits(self, unit: list[Item]) -> bool:
        """Leave *unit* out, and no other, if the window is not half full without it."""
        budget, (last, first) = self._budget, (unit[0][0], unit[-1][0])
        what = f"{len(unit):,} messages (positions {first} to {last}) were"
        what = f"a message (position {first}) was" if len(unit) == 1 else what
        # The user's, as a summary is: a record, and no instruction.
        marker = {"role": "user", "content": TOO_LARGE.format(what)}
        used, number = self._used + budget.cost(marker), self._number + 1
        half_full = not budget.allows(
            2 * self._used - self._front_used, 2 * self._number - self._front_number
        )
        if half_full or len(self._omitted) == OMITTED or not budget.allows(used, number):
            return False
        self._used, self._number = used, number
        self._omitted.append((first, last, len(unit)))
        self._taken.append([(-first, marker)])  # no message's position, and yet its place
        return True

    def _is_shown(self, unit: list[Item]) -> bool:
        return not all(map(self._units.is_lost, unit))

    def _too_small(self) -> WindowTooSmall:
        return self._budget.too_small("The newest message, with what belongs to it,")

    def view(self) -> View:
        """What was taken, oldest first, such that a model takes it."""
        self._add(self._units.rest())
        cut = self._full or bool(self._omitted)
        while True:
            # Calls may have been taken before what was said after them.
            units = self._taken if self._plain else sorted(self._taken, key=_place, reverse=True)
            tail = [item for unit in reversed(units) for item in reversed(unit)]
            within = {position for position, _ in tail}
            pins = [item for item in sorted(self._pins.items()) if item[0] not in within]
            items = [*self._front, *pins, *tail]
            messages = [message for _, message in items]
            if self._plain:
                return View(messages, [], cut, items, omitted=self._omitted)
            shape = self._shape or shape_of_all(messages)
            made, repairs = repair_made(messages, shape, self._rule, keep_open=True)
            repaired = [message for _, message in made]
            if self._budget.allows(sum(map(self._budget.cost, repaired)), len(repaired)):
                found = [(items[repair.index][0], repair) for repair in repairs]
                made_of = [indexes for indexes, _ in made]
                return View(repaired, found, cut, items, made_of, self._omitted)
            # What stands in for what is missing takes room, too.
            if not any(map(self._is_shown, self._taken[:-1])):
                raise self._too_small()
            self._taken.pop()
            cut = True


def is_plain(message: Mapping[str, Any]) -> bool:
    """Whether there is nothing in *message* to repair: a role and a text, as most have."""
    content = message.get("content")
    if not content or content.__class__ is not str or len(message) > len(_PLAIN):
        return False
    return message.get("role") in _SPEAKERS


def _place(unit: list[Item]) -> int:
    return abs(unit[-1][0])


def _apart(unit: list[Item]) -> tuple[list[Item], list[Item]]:
    """The calls and results in *unit*, with what a thought led to; and what was said meanwhile."""
    thought = any(binds_next(message) for _, message in unit)
    calls: list[Item] = []
    meanwhile: list[Item] = []
    for item in unit:
        message = item[1]
        bound = binds_next(message) or (thought and _is_item_of_model(message))
        (calls if bound or any(ids_of(message)) else meanwhile).append(item)
    return (calls, meanwhile) if calls else (unit, [])


def _is_item_of_model(message: Mapping[str, Any]) -> bool:
    return isinstance(message.get("type"), str) and role_of(message) == "assistant"


# -- windows of a stored conversation --------------------------------------------------------------


class Front(Struct, frozen=True):
    """What stands in front of every window, each kind by itself."""

    opening: list[Item]
    summary: Summary | None
    pins: list[Item]

    def copy(self) -> Front:
        """The same, for another to change."""
        opening, pins = (
            [(position, fresh(message)) for position, message in items]
            for items in (self.opening, self.pins)
        )
        return Front(opening, self.summary, pins)

    def end(self, meta: ConversationMeta) -> int:
        """The position behind which messages are neither the system's first nor in the summary."""
        summed_up = 0 if self.summary is None else self.summary.upto
        return max(meta.start, summed_up, self.opening[-1][0] if self.opening else 0)


class Windows:
    """Reads windows of one conversation from its end, and no further than they need."""

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self._front: tuple[tuple[str, ConversationMeta], Front] | None = None  # the last one

    async def front(self, head: Head) -> Front:
        """What stands in front of the conversation with this *head*; the caller's own."""
        meta = ConversationMeta.of(head)
        # Within an incarnation no position is used twice, so only the meta can change it.
        key = (head.incarnation, meta.but(others=0, calls={}))
        if self._front is not None and self._front[0] == key:
            return self._front[1].copy()
        opening, complete = await self.transcript.opening(meta)
        summary = await self.transcript.summary(meta.summary)
        front = Front(opening, summary, await self.transcript.at(meta.pins))
        if complete:
            self._front = (key, front.copy())
        return front

    async def view(
        self,
        head: Head,
        budget: Budget,
        *,
        rule: Rule = "stub",
        shape: Shape | None = None,
        keep_system: bool = True,
    ) -> tuple[View, Notes]:
        """What fits *budget*, and the notes that were met on the way."""
        front, notes = await self.front(head), Notes()
        if not keep_system:
            front = Front([], front.summary, front.pins)
        window = Window(budget, rule=rule, shape=shape, notes=notes)
        window.put_front(front)
        if budget.max_tokens is None:
            size = budget.max_messages or 100
        else:
            # How many records it will take, by a guess: two messages each, of the usual size.
            estimated = not getattr(budget.count, "exact", True)
            per_token = tokens.ESTIMATED_BYTES if estimated else tokens.BYTES_PER_TOKEN
            usual = max(1, head.size // max(1, head.seq - (head.first - 1))) / per_token
            size = min(budget.places, int(budget.room / usual * 0.6) + 4)
        after = front.end(ConversationMeta.of(head))
        await self.transcript.newest_first(
            window.take, size, after=after, upto=head.seq, see=notes.see
        )
        return window.view(), notes

    async def items(self, head: Head, front: Front) -> list[Item]:
        """All messages behind what is in *front*, as they are shown."""
        notes = Notes()
        after = front.end(ConversationMeta.of(head))
        found = await self.transcript.items(after=after, see=notes.see)
        return [(position, notes.show(position, message)) for position, message in found]

    async def check(self, message: dict[str, Any], budget: Budget) -> None:
        """`WindowTooSmall` if *message*, said now, would not fit with what stands in front."""
        window = Window(budget)
        head = await self.transcript.journal.head()
        if head is not None:
            window.put_front(await self.front(head))
        window.keep((0, message), "This message, which was not stored,")
