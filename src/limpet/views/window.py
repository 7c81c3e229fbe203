"""What a model would be sent of a conversation: exactly that, and what is left out, and why.

The window is made by the conversation's own code. Nothing is written: a repair that it makes is
shown, and not recorded, and nothing is compacted.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.conversations.conversation import KIND
from limpet.conversations.transcript import ConversationMeta, Transcript
from limpet.conversations.window import Budget, Windows
from limpet.errors import BrokenHistory, EstimateWarning, WindowTooSmall
from limpet.llm import tokens
from limpet.llm.messages.shape import role_of
from limpet.views import PAGE, WHOLE
from limpet.views.chat import Line, Mark, Message
from limpet.views.conversations import read_part
from limpet.views.messages import Spoken, spoken
from limpet.views.text import count

if TYPE_CHECKING:
    from limpet.backends.contract import Head
    from limpet.conversations.window import Front, View
    from limpet.core.scope import Scope
    from limpet.llm.messages.repair import Rule

__all__ = ["LeftOut", "Sent", "WindowView", "window_view"]


class Sent(Struct, frozen=True):
    """A message that is sent: the positions that it is from, none of one that was put in.

    *why* it is there, where it is not one of the newest. *marks*: how it differs from what is
    stored.
    """

    role: str
    parts: list[Spoken]
    positions: list[int]
    tokens: int
    why: str = ""
    marks: list[Mark] = []


class LeftOut(Struct, frozen=True):
    """Messages that are not sent, and why; how many, if that is known, and the newest of them."""

    why: str
    count: int | None
    detail: str = ""
    lines: list[Line] = []
    stored: bool = True  # whether the count is of messages that were not taken at all


class WindowView(Struct, frozen=True):
    """A window for a budget; *problem*: why there is none.

    *tokens* are those of all that is sent, with the *fixed* ones: what is set aside for the reply,
    and what it begins with. *exact*: they are counted as the model's provider does.
    """

    sent: list[Sent]
    left_out: list[LeftOut]
    tokens: int
    fixed: int
    counter: str
    exact: bool
    total: int  # messages of the conversation
    problem: str = ""


async def window_view(
    scope: Scope,
    head: Head,
    *,
    max_tokens: int | None = None,
    max_messages: int | None = None,
    model: str = "",
    reserve: int = 0,
    rule: Rule = "stub",
) -> WindowView:
    """What ``window()`` with these options gives for the conversation of *head*."""
    counter = await scope.runtime.call(_counter, model)
    budget = Budget(max_tokens, max_messages, counter, reserve=reserve)
    windows = Windows(Transcript(scope.journal(KIND, head.key.id)))
    meta = ConversationMeta.of(head)
    total = meta.length(head.seq)
    try:
        view, notes = await windows.view(head, budget, rule=rule)
    except (WindowTooSmall, BrokenHistory) as error:
        return WindowView(
            [], [], 0, budget.fixed, counter.name, counter.exact, total, problem=str(error)
        )
    front = await windows.front(head)
    explained = _Explained(view, front, notes.cut)
    sent = [
        explained.sent(message, positions, counter(message))
        for message, positions in zip(view.messages, view.positions(), strict=True)
    ]
    return WindowView(
        sent=sent,
        left_out=await _left_out(scope, head, meta, view, front),
        tokens=budget.fixed + sum(one.tokens for one in sent),
        fixed=budget.fixed,
        counter=counter.name,
        exact=counter.exact,
        total=total,
    )


def _counter(model: str) -> tokens.Counter:
    """What counts for *model*; without one, or where it is not known, an estimate, and it says so.

    It may have to load a vocabulary, which takes a moment.
    """
    if not model:
        return tokens.estimate
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EstimateWarning)  # the view says it
        return tokens.counter(model)


class _Explained:
    """Knows why each message of a window is there."""

    def __init__(self, view: View, front: Front, cut: set[int]) -> None:
        self._opening = {position for position, _ in front.opening}
        self._pins = {position for position, _ in front.pins}
        self._cut = cut
        self._sent: set[int] = set()
        self._summary = front.summary
        self._repairs: dict[int, list[Mark]] = {}
        for position, repair in view.repairs:
            self._repairs.setdefault(position, []).append(Mark("repaired", repair.what))

    def sent(self, message: dict[str, object], positions: tuple[int, ...], size: int) -> Sent:
        """*message* with what there is to know of it."""
        stored = [position for position in positions if position > 0]
        if not positions or (stored and self._sent.issuperset(stored)):
            why = "put in, so that a model accepts the rest"
            return Sent(role_of(message), spoken(message), stored, size, why)
        self._sent.update(stored)
        marks = [mark for position in stored for mark in self._repairs.get(position, ())]
        if self._cut.intersection(stored):
            marks.append(Mark("shortened", "its output is longer in the store"))
        return Sent(
            role_of(message), spoken(message), stored, size, self._why(positions, stored), marks
        )

    def _why(self, positions: tuple[int, ...], stored: list[int]) -> str:
        if not stored:
            if positions[0] < 0:
                return "in place of what is too large"
            number = 0 if self._summary is None else self._summary.messages
            return f"the summary of {count(number, 'message')}"
        if self._opening.issuperset(stored):
            return "the system's, at the beginning"
        return "pinned" if self._pins.issuperset(stored) else ""


async def _left_out(
    scope: Scope, head: Head, meta: ConversationMeta, view: View, front: Front
) -> list[LeftOut]:
    """What is not sent, the newest first."""
    begin, pins = front.end(meta), set(meta.pins)
    taken = {position for position, _ in view.items if position > 0}
    newest = [position for position in taken if position > begin and position not in pins]
    oldest = min([*newest, *(first for first, _, _ in view.omitted)], default=head.seq + 1)
    found = await _within(scope, head, view, taken, oldest)

    transcript = Transcript(scope.journal(KIND, head.key.id))
    summed_up = 0 if front.summary is None else front.summary.messages
    # A pin that came or went since the summary is counted there as it was then: so they are counted
    # themselves. Without a summary the head knows exactly how many there are.
    if front.summary is not None and oldest - begin <= WHOLE:
        items = await transcript.items(after=begin, upto=oldest - 1)
        older = sum(position not in taken for position, _ in items)
    else:
        older = meta.length(head.seq) - len(taken) - summed_up
        older -= sum(one.count or 0 for one in found if one.stored)
    if older > 0:
        lines = await _before(scope, head, oldest, begin, taken)
        found.append(LeftOut("older than what fits", older, lines=lines))
    if front.summary is not None:
        what = "behind the summary" if front.summary.text else "left out by compact()"
        detail = f"messages up to {front.summary.upto:,}"
        lines = await _before(scope, head, front.summary.upto + 1, meta.start, taken)
        found.append(LeftOut(what, summed_up, detail, lines))
    if meta.start:
        detail = f"everything up to entry {meta.start:,}"
        found.append(LeftOut("replaced or removed", None, detail, stored=False))
    return found


async def _within(
    scope: Scope, head: Head, view: View, taken: set[int], oldest: int
) -> list[LeftOut]:
    """What is left out amid the messages that are sent: from the *oldest* on."""
    found: list[LeftOut] = []
    whats = {position: repair.what for position, repair in view.repairs}
    made = {position for positions in view.positions() for position in positions}
    for position in sorted(taken - made, reverse=True):
        what = whats.get(position, "no model takes it")
        found.append(LeftOut("repaired", 1, f"message {position:,}: {what}", stored=False))
    for first, last, number in view.omitted:
        where = f"message {first:,}" if first == last else f"messages {first:,} to {last:,}"
        found.append(LeftOut("too large to be sent with the rest", number, where))
    if oldest <= head.seq:
        transcript = Transcript(scope.journal(KIND, head.key.id))
        items = await transcript.items(after=oldest - 1, upto=head.seq)
        between = [
            position
            for position, _ in items
            if position not in taken
            and not any(first <= position <= last for first, last, _ in view.omitted)
        ]
        if between:
            where = f"messages {', '.join(f'{position:,}' for position in between[:20])}"
            found.append(
                LeftOut("said between a call and its result, and too much", len(between), where)
            )
    return found


async def _before(scope: Scope, head: Head, before: int, after: int, taken: set[int]) -> list[Line]:
    """The newest messages that are left out in front of number *before*."""
    part = await read_part(scope, head, before=before, size=PAGE)
    return [
        line
        for line in part.lines
        if isinstance(line, Message)
        and line.counts
        and line.number > after
        and line.number not in taken
    ]
