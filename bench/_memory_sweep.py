"""How much the result depends on what was chosen: the weights, and how much context there is.

For the weights, one deep recall of each question gives the candidates with the parts of their
scores; each setting then puts them in its own order.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from msgspec import Struct
from rich import box
from rich.table import Table

from bench._locomo import BEFORE, CONTEXT, load
from bench._recallers import Ours
from holdfast.memory.ranking import ACTIVATION, MEANING, WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bench._locomo import Question, Sample
    from bench._recallers import Embedder
    from holdfast.memory import Hit

DEEP = 100
#: The share of words; what is left is meaning's.
SHARES = (1.0, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.0)
CONTEXTS = (0, 1, 2, 3)
OURS = WORDS / (WORDS + MEANING)


class Point(Struct, frozen=True):
    """One setting, and what it finds at 10, in percent."""

    words: float
    recall: float


def measure(
    samples: Sequence[Sample], place: Path, embed: Embedder | None, tell: Callable[[float], object]
) -> list[Point]:
    """Every share of words. The part of use is left as it is: here all memories are of one age."""
    if embed is None:
        return []
    found: dict[float, list[float]] = {share: [] for share in SHARES}
    way = Ours(place, embed)
    for sample in samples:
        way.index(sample.turns)
        for question in sample.questions:
            hits = way.hits(question.text, DEEP)
            for words, shares in found.items():
                shares.append(_share(question, hits, words))
        tell(1)
    way.close()
    return [Point(words, 100 * fmean(shares)) for words, shares in found.items()]


def _share(question: Question, hits: Sequence[Hit], words: float) -> float:
    def total(hit: Hit) -> float:
        fit = words * hit.why.words + (1 - words) * (hit.why.meaning or 0)
        return (1 - ACTIVATION) * fit + ACTIVATION * hit.why.activation

    best = sorted(hits, key=total, reverse=True)[:10]
    return len(question.evidence & {hit.source for hit in best}) / len(question.evidence)


def measure_context(
    data: Path, some: int | None, place: Path, tell: Callable[[float], object]
) -> dict[int, float]:
    """Evidence recall@10 by full text, in percent, with so many turns of context."""
    found = {}
    for before in CONTEXTS:
        way, shares = Ours(place), []
        for sample in load(data, before)[:some]:
            way.index(sample.turns)
            for question in sample.questions:
                ids = way.recall(question.text, 10)
                shares.append(len(question.evidence.intersection(ids)) / len(question.evidence))
        way.close()
        tell(1)
        found[before] = 100 * fmean(shares)
    return found


def as_context_table(found: dict[int, float]) -> Table:
    """A row a length of context; the one that the other tables have is marked."""
    caption = f"Evidence recall@10, %, by full text; of each turn before, {CONTEXT} characters."
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left")
    table.add_column("turns of context", justify="right")
    table.add_column("recall@10", justify="right")
    table.add_column()
    for before, recall in found.items():
        table.add_row(str(before), f"{recall:.1f}", "as used" if before == BEFORE else "")
    return table


def as_table(points: Sequence[Point]) -> Table:
    """A row a setting; the one that is used is marked."""
    caption = "Evidence recall@10, %, over the 100 best of each question in another order."
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left")
    for name in ("words", "meaning", "recall@10"):
        table.add_column(name, justify="right")
    table.add_column()
    for point in points:
        mark = "as used" if point.words == OURS else ""
        shares = f"{point.words:.1f}", f"{1 - point.words:.1f}"
        table.add_row(*shares, f"{point.recall:.1f}", mark)
    return table
