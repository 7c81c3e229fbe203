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

from bench._locomo import CHOSEN_ON, CONTEXT, WINDOW, Turn, load
from bench._paraphrases import PAIRS
from bench._recallers import Ours
from limpet.memory.ranking import ACTIVATION, MEANING, WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from bench._locomo import Sample
    from bench._recallers import Embedder
    from limpet.memory import MemoryHit

DEEP = 100
#: The share of words; what is left is meaning's.
SHARES = (1.0, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.0)
#: Turns before and after that are the context.
WINDOWS = ((0, 0), (1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (2, 2))
#: Those that are embedded, too, which takes long: what was chosen, and what is known at once.
EMBEDDED = (WINDOW, (2, 0))
OURS = WORDS / (WORDS + MEANING)


class Halves(Struct, frozen=True):
    """Evidence recall@10 in percent: of all questions, and of the last conversations."""

    all: float
    rest: float | None


class Point(Struct, frozen=True):
    """One share of words, and what it finds: at 10 in LoCoMo, at 5 of the paraphrases."""

    words: float
    locomo: Halves
    paraphrases: float


class Window(Struct, frozen=True):
    """One context, and what is found with it."""

    before: int
    after: int
    text: Halves
    embedded: Halves | None


def halves(shares: Sequence[Sequence[float]]) -> Halves:
    """The mean over questions, of which there is a list for each conversation."""
    rest = [share for one in shares[CHOSEN_ON:] for share in one]
    every = [share for one in shares for share in one]
    return Halves(100 * fmean(every), 100 * fmean(rest) if rest else None)


# -- weights ---------------------------------------------------------------------------------------


def measure(
    samples: Sequence[Sample], place: Path, embed: Embedder | None, tell: Callable[[float], object]
) -> list[Point]:
    """Every share of words. The part of use is left as it is: here all memories are of one age."""
    if embed is None:
        return []
    locomo: dict[float, list[list[float]]] = {share: [] for share in SHARES}
    way = Ours(place, embed)
    for sample in samples:
        way.index(sample.turns)
        found = [(asked.evidence, way.hits(asked.text, DEEP)) for asked in sample.questions]
        for words, shares in locomo.items():
            shares.append([_share(evidence, hits, words, 10) for evidence, hits in found])
        tell(1)
    others = _paraphrased(way, samples[0])
    way.close()
    return [
        Point(
            words,
            halves(shares),
            100 * fmean(_share(wanted, hits, words, 5) for wanted, hits in others),
        )
        for words, shares in locomo.items()
    ]


def _paraphrased(way: Ours, noise: Sample) -> list[tuple[set[str], list[MemoryHit]]]:
    """What is found of each paraphrase, among all of them and the turns of a conversation."""
    facts = [Turn(f"fact-{at}", fact, "") for at, (fact, _) in enumerate(PAIRS)]
    way.index([*noise.turns, *facts])
    return [({f"fact-{at}"}, way.hits(asked, DEEP)) for at, (_, asked) in enumerate(PAIRS)]


def _share(wanted: Collection[str], hits: Sequence[MemoryHit], words: float, depth: int) -> float:
    def fit(hit: MemoryHit) -> float:
        return words * hit.why.words + (1 - words) * (hit.why.meaning or 0)

    def total(hit: MemoryHit) -> float:
        return (1 - ACTIVATION) * fit(hit) + ACTIVATION * hit.why.activation

    # What only the other part has found would not have been.
    found = [hit for hit in hits if fit(hit) > 0]
    best = {hit.source for hit in sorted(found, key=total, reverse=True)[:depth]}
    return len(best.intersection(wanted)) / len(wanted)


def as_table(points: Sequence[Point]) -> Table:
    """A row a setting; the one that is used is marked."""
    caption = (
        f"%, over the {DEEP} best of each question in another order. Paraphrases: {len(PAIRS)} "
        "questions that have no word in common with their answer."
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left")
    for name in ("words", "meaning", "LoCoMo @10", "rest", "paraphrases @5"):
        table.add_column(name, justify="right")
    table.add_column()
    for point in points:
        mark = "as used" if point.words == OURS else ""
        shares = f"{point.words:.1f}", f"{1 - point.words:.1f}"
        table.add_row(*shares, *_figures(point.locomo), f"{point.paraphrases:.1f}", mark)
    return table


# -- context ---------------------------------------------------------------------------------------


def measure_context(
    data: Path, some: int | None, place: Path, embed: Embedder | None, tell: Callable[[float], None]
) -> list[Window]:
    """Every context, by full text; some with embeddings, too."""
    found = []
    for window in WINDOWS:
        samples = load(data, window)[:some]
        meant = embed if window in EMBEDDED else None
        embedded = None if meant is None else _found(samples, Ours(place, meant))
        found.append(Window(*window, _found(samples, Ours(place)), embedded))
        tell(1)
    return found


def _found(samples: Sequence[Sample], way: Ours) -> Halves:
    shares = []
    for sample in samples:
        way.index(sample.turns)
        shares.append(
            [
                len(asked.evidence.intersection(way.recall(asked.text, 10))) / len(asked.evidence)
                for asked in sample.questions
            ]
        )
    way.close()
    return halves(shares)


def as_context_table(found: Sequence[Window]) -> Table:
    """A row a context; the one that the other tables have is marked."""
    caption = f"Evidence recall@10, %; of each turn of the context up to {CONTEXT} characters."
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left")
    for name in ("before", "after", "full text", "rest", "with embeddings", "rest"):
        table.add_column(name, justify="right")
    table.add_column()
    for one in found:
        mark = "as used" if (one.before, one.after) == WINDOW else ""
        embedded = ("", "") if one.embedded is None else _figures(one.embedded)
        table.add_row(str(one.before), str(one.after), *_figures(one.text), *embedded, mark)
    return table


def _figures(found: Halves) -> tuple[str, str]:
    return f"{found.all:.1f}", "" if found.rest is None else f"{found.rest:.1f}"
