"""What stands in front of every window: the system's messages, a summary, what is pinned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.conversations.marks import Marks
from limpet.conversations.notes import Summary, find_summary
from limpet.conversations.transcript import Item
from limpet.core.codec import fresh

if TYPE_CHECKING:
    from limpet.backends.contract import Head
    from limpet.conversations.transcript import Transcript
    from limpet.core.journal import AsyncJournal

__all__ = ["Front", "Fronts"]


class Front(Struct, frozen=True):
    """The messages in front, each kind by itself."""

    opening: list[Item]
    summary: Summary | None
    pins: list[Item]

    def after(self, marks: Marks) -> int:
        """The position behind which messages are neither the system's first nor in the summary."""
        reached = 0 if self.summary is None else self.summary.upto
        return max(marks.start, reached, self.opening[-1][0] if self.opening else 0)


class Fronts:
    """Finds what stands in front, and reads it again only when it may be something else."""

    def __init__(self, journal: AsyncJournal, said: Transcript) -> None:
        self._journal = journal
        self._said = said
        self._known: tuple[tuple[int, str | None], Front] | None = None

    async def of(self, head: Head) -> Front:
        """What stands in front of the conversation with this *head*; the caller's own."""
        # Positions are never used again, so this can only change with the status, or the journal.
        key = (head.created, head.status)
        if self._known is not None and self._known[0] == key:
            found = self._known[1]
            return Front(fresh_items(found.opening), found.summary, fresh_items(found.pins))
        marks = Marks.of(head)
        opening, complete = await self._said.opening(marks)
        summary = await find_summary(self._journal, marks.summary)
        pins = await self._said.at(marks.pins)
        front = Front(opening, summary, pins)
        if complete:
            self._known = (key, Front(fresh_items(opening), summary, fresh_items(pins)))
        return front


def fresh_items(items: list[Item]) -> list[Item]:
    """The same, for another to change."""
    return [(position, fresh(message)) for position, message in items]
