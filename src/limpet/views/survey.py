"""A look at every head of a tenant: what no index finds, and sums over all of them.

It is made piece by piece, so that nobody waits for it: what was found so far counts so far.
"""

from __future__ import annotations

import heapq
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from limpet.backends.contract import Key, from_micros, to_micros
from limpet.tasks import entries as task
from limpet.views.heads import HeadView, scan_heads
from limpet.views.sizes import Sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet.core.scope import Scope

__all__ = ["Newest", "Survey", "is_stuck", "look_further"]

#: Journals that are remembered of each sort, the newest ones; all are counted.
SOME = 1_000

#: How long an open task of nobody may rest before it is called stuck: whoever works on it by turns
#: (a worker that tries again, a program that is started by a clock) leaves it for a while, too.
REST = timedelta(minutes=2)


class Newest:
    """The journals that were written to last, of all that are added."""

    def __init__(self) -> None:
        self.count = 0
        self._heap: list[tuple[datetime, Key]] = []

    def add(self, view: HeadView) -> None:
        """One more."""
        self.count += 1
        item = (view.updated, Key("", view.kind, view.id))
        if len(self._heap) < SOME:
            heapq.heappush(self._heap, item)
        else:
            heapq.heappushpop(self._heap, item)

    @property
    def beyond(self) -> int:
        """How many were counted, and are not remembered."""
        return self.count - len(self._heap)

    def names(self, most: int = SOME) -> list[tuple[str, str]]:
        """Kind and id of the *most* newest, the newest first."""
        return [(key.kind, key.id) for _, key in heapq.nlargest(most, self._heap)]

    def page(self, before: str | None, limit: int) -> tuple[list[tuple[str, str]], str | None]:
        """The next *limit* of them, and what to give as *before* for those that follow.

        That is a place among them, and stays one whatever is added or goes; `ValueError`.
        """
        left = self._heap
        if before is not None:
            place = re.fullmatch(r"([0-9]{1,17})/([^/]+)/(.+)", before, re.DOTALL)
            if place is None:
                raise ValueError("There is nothing to go on from: begin again.")
            last = from_micros(int(place[1])), Key("", place[2], place[3])
            left = [one for one in left if one < last]
        found = heapq.nlargest(limit + 1, left)
        names = [(key.kind, key.id) for _, key in found[:limit]]
        if len(found) <= limit:
            return names, None
        at, key = found[limit - 1]
        return names, f"{to_micros(at)}/{key.kind}/{key.id}"


class Survey:
    """What the heads that were looked at come to. *complete*: those were all."""

    def __init__(self) -> None:
        self.began = datetime.now(UTC)
        self.looked = 0
        self.complete = False
        self.doubtful = Newest()
        self.stuck = Newest()
        self.unreadable = 0
        self.sizes = Sizes(self.began)

    def take(self, view: HeadView) -> None:
        """Take one more head in."""
        self.looked += 1
        self.sizes.take(view)
        self.unreadable += view.damaged
        if view.doubts:
            self.doubtful.add(view)
        elif is_stuck(view, self.began):
            self.stuck.add(view)


def is_stuck(view: HeadView, now: datetime) -> bool:
    """Whether *view* is of a task that is open and was begun, and nobody works on it.

    What was submitted and not begun waits for its turn.
    """
    if view.kind != task.KIND or view.status != task.OPEN or view.held or view.seq == 1:
        return False
    return view.holder is not None or now - view.updated > REST


async def look_further(
    scope: Scope, survey: Survey, kinds: Sequence[str], after: str | None, most: int
) -> tuple[str | None, list[HeadView]]:
    """Take the next *most* heads into *survey*; where to go on, and what was looked at."""
    piece = await scan_heads(scope, kinds, after=after, most=most)
    views = [HeadView.of(head) for head in piece.heads]
    for view in views:
        survey.take(view)
    survey.unreadable += len(piece.damaged)
    survey.complete = piece.after is None
    return piece.after, views
