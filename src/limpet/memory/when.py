"""How well memories fit the time that a question asks about.

By when they were said, and by the times that their texts name. That is a preference, not a filter:
what else fits the question well is found as before. `since` and `until` are filters.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.backends.contract import to_micros
from limpet.memory.dates import read_question, spans_in
from limpet.memory.index import ONE_OF, condition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from limpet.memory.index import Index
    from limpet.memory.results import MemoryHit

__all__ = ["When", "asked_about"]

#: How well something fits that was said at that time, where what names that time fits in full.
SAID = 0.8
#: Microseconds: a time that reaches further than this has no middle to be near to.
DAY, LONG = 86_400_000_000, 400 * 86_400_000_000
#: What the side of an event counts, where a time that is named counts 1: "after" it is often told
#: with it.
SIDE = 0.3
#: How much of the words of an event a memory must have to be taken for it.
EVENT = 0.6


class When(Struct, frozen=True):
    """The spans of time that a question asks about, in microseconds; *rest*: its other words.

    The less they are sure to be what is asked for, the less each *counts*.
    """

    spans: list[tuple[int, int]]
    rest: str
    counts: float = 1.0

    def is_known(self, index: Index) -> bool:
        """Whether there is a memory of that time: else it says nothing about which to prefer."""
        return any(
            index.value("SELECT 1 FROM memory WHERE said >= ? AND said < ? LIMIT 1", span)
            or index.value(
                "SELECT 1 FROM dated d WHERE d.start < ? AND d.end > ? AND d.start >= ? LIMIT 1",
                (span[1], span[0], span[0] - LONG),
            )
            for span in self.spans
        )

    def rows(self, index: Index, filters: dict[str, Any], most: int) -> list[int]:
        """The rows that fit by their time alone, newest first; none for a long time."""
        where, values = condition(filters)
        found: list[int] = []
        for start, end in self.spans:
            if end - start > LONG:
                continue
            sql = (
                f"SELECT m.n FROM memory m WHERE {where} AND (m.said >= ? AND m.said < ? OR m.n IN"  # noqa: S608 - conditions of ours
                " (SELECT d.n FROM dated d WHERE d.start < ? AND d.end > ? AND d.start >= ?))"
                " ORDER BY m.said DESC, m.n DESC LIMIT ?"
            )
            given = [*values, start, end, end, start, start - LONG, most]
            found += [n for (n,) in index.run(sql, given)]
        return found

    def fits(self, index: Index, rows: Iterable[int]) -> dict[int, float]:
        """How well the memories in *rows* fit, from 0 to 1."""
        listed = [json.dumps(list(rows))]
        said = index.run(f"SELECT m.n, m.said FROM memory m WHERE m.n {ONE_OF}", listed)  # noqa: S608 - all of it is ours
        named: dict[int, list[tuple[int, int]]] = {}
        for n, start, end in index.run(
            f"SELECT d.n, d.start, d.end FROM dated d WHERE d.n {ONE_OF}",  # noqa: S608 - as above
            listed,
        ):
            named.setdefault(n, []).append((start, end))
        fits = {
            n: max(self._fit(span, at, named.get(n, ())) for span in self.spans) for n, at in said
        }
        return {n: 1 - self.counts * (1 - fit) for n, fit in fits.items()}

    def _fit(self, span: tuple[int, int], said: int, named: Iterable[tuple[int, int]]) -> float:
        start, end = span
        if any(first < end and start < last for first, last in named):
            return 1.0
        if start <= said < end:
            return SAID
        # What is told of a time is often told a little later.
        far = start - said if said < start else said - end
        room = min(max(end - start, DAY), LONG)
        return SAID * max(0.0, 1 - far / room) if end - start <= LONG else 0.0


def asked_about(text: str, now: datetime, search: Callable[[str], list[MemoryHit]]) -> When | None:
    """The time that the question *text* asks about; None if it asks about none.

    *search* finds the event that it names for a time.
    """
    asked = read_question(text, now)
    if asked is None:
        return None
    if asked.event is None:
        return When([(to_micros(a), to_micros(b)) for a, b in asked.spans], asked.rest)
    event = next(iter(search(asked.event)), None)
    if event is None or event.why.words < EVENT:
        return None
    said = event.said_at or event.at
    times = [to_micros(start) for start, _ in spans_in(event.text, said)] or [to_micros(said)]
    ever, never = -LONG * 1000, LONG * 10_000
    span = (ever, min(times)) if asked.before else (min(times), never)
    return When([span], asked.rest, SIDE)
