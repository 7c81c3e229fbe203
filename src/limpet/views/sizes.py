"""How large a store is, and how it grew, as far as heads tell."""

from __future__ import annotations

import heapq
from datetime import UTC, date, datetime, timedelta

from msgspec import Struct

from limpet.views.heads import HeadView

__all__ = ["Day", "KindSize", "Sizes", "SizesView"]

#: The largest journals that are named.
LARGEST = 8
#: Days that are told apart.
DAYS = 14


class KindSize(Struct, frozen=True):
    """How many journals, entries and bytes there are of a kind."""

    kind: str
    journals: int
    entries: int
    size: int


class Day(Struct, frozen=True):
    """The journals that began on a day (UTC) and are still there, with what they hold now."""

    day: date
    journals: int
    size: int


class SizesView(Struct, frozen=True):
    """Sizes by kind, the largest first; and the newest days, the oldest of them first.

    *earlier*: what began before those days, by the day on which the oldest began.
    """

    kinds: list[KindSize]
    total: KindSize
    largest: list[HeadView]
    days: list[Day]
    earlier: Day | None
    written: int  # journals that were written to within a day


class Sizes:
    """The sums over heads, taken in one by one."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._kinds: dict[str, list[int]] = {}
        self._days: dict[date, list[int]] = {}
        self._largest: list[tuple[int, int, HeadView]] = []
        self._written = 0
        self._count = 0

    def take(self, view: HeadView) -> None:
        """Count a journal."""
        self._count += 1
        for sums, added in (
            (self._kinds.setdefault(view.kind, [0, 0, 0]), (1, view.entries, view.size)),
            (self._days.setdefault(view.created.date(), [0, 0]), (1, view.size)),
        ):
            for number, more in enumerate(added):
                sums[number] += more
        self._written += self._now - view.updated < timedelta(days=1)
        item = (view.size, -self._count, view)  # the number, so that no two are compared further
        if len(self._largest) < LARGEST:
            heapq.heappush(self._largest, item)
        elif item > self._largest[0]:
            heapq.heapreplace(self._largest, item)

    def view(self) -> SizesView:
        """What they come to."""
        kinds = [KindSize(kind, *sums) for kind, sums in self._kinds.items()]
        kinds.sort(key=lambda one: one.size, reverse=True)
        today = self._now.astimezone(UTC).date()
        first = today - timedelta(days=DAYS - 1)
        before = sorted(day for day in self._days if day < first)
        earlier = [self._days[day] for day in before]
        return SizesView(
            kinds=kinds,
            total=KindSize(
                "",
                sum(one.journals for one in kinds),
                sum(one.entries for one in kinds),
                sum(one.size for one in kinds),
            ),
            largest=[view for _, _, view in sorted(self._largest, reverse=True)],
            days=[
                Day(day, *self._days.get(day, (0, 0)))
                for day in (first + timedelta(days=number) for number in range(DAYS))
            ],
            earlier=Day(before[0], *map(sum, zip(*earlier, strict=True))) if before else None,
            written=self._written,
        )
