"""How much the result depends on what was chosen: the numbers of `limpet.memory.ranking`.

Each is set to others, one at a time, and every question of every set is asked again. A number that
is best at one value for one set and elsewhere for another has been fitted to a set.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from msgspec import Struct
from rich import box
from rich.table import Table

from bench._locomo import Question
from bench._paraphrases import PAIRS
from bench._recallers import Ours
from limpet.memory import ranking, recall

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from bench._locomo import Sample
    from bench._recallers import Embedder

#: What is set to what; the value that is used is among them.
VALUES: tuple[tuple[ModuleType, str, tuple[float, ...]], ...] = (
    (ranking, "MEANING", (0.75, 1.0, 1.25)),
    (ranking, "RARE", (0.5, 0.6, 0.7)),
    (ranking, "WELL_COVERED", (0.001, 0.2, 0.35, 0.5)),
    (ranking, "WORD_BY_WORD", (0.0, 0.5, 0.75, 1.0)),
    (ranking, "SPEAKER", (0.0, 0.25, 0.35, 0.45)),
    (ranking, "INSTRUCTION", (0.0, 0.3, 0.5, 0.7)),
    (ranking, "NEIGHBOUR", (0.0, 0.05, 0.1, 0.15)),
    (ranking, "CONTEXT", (0.0, 0.7, 0.85, 1.0)),
    (recall, "LOOK_CLOSER", (50, 100, 150)),
)


class Point(Struct, frozen=True):
    """One value, and the evidence recall@10 of each set: by words alone, and with embeddings."""

    name: str
    value: float
    used: bool
    words: dict[str, float]
    embedded: dict[str, float]


class _Asked(Struct, frozen=True):
    """The questions of some conversations, each with the memory that has that conversation."""

    ways: list[tuple[Ours, list[Question]]]

    def recall(self) -> float:
        """Evidence recall@10, in percent."""
        return 100 * fmean(
            len(asked.evidence.intersection(way.recall(asked.text, 10))) / len(asked.evidence)
            for way, questions in self.ways
            for asked in questions
        )

    def close(self) -> None:
        """Let go of all."""
        for way, _ in self.ways:
            way.close()


def _ask(samples: Sequence[Sample], place: Path, embed: Embedder | None) -> _Asked:
    ways = []
    for sample in samples:
        way = Ours(place, embed)
        way.index(sample.turns)
        ways.append((way, sample.questions))
    return _Asked(ways)


def measure(
    sets: Mapping[str, Sequence[Sample]],
    place: Path,
    embed: Embedder | None,
    tell: Callable[[float], object],
) -> list[Point]:
    """Every value."""
    words = {name: _ask(samples, place, None) for name, samples in sets.items()}
    embedded = {name: _ask(samples, place, embed) for name, samples in sets.items() if embed}
    points = []
    for module, name, values in VALUES:
        used = getattr(module, name)
        for value in values:
            setattr(module, name, value)
            try:
                points.append(
                    Point(
                        name,
                        value,
                        value == used,
                        {of: asked.recall() for of, asked in words.items()},
                        {of: asked.recall() for of, asked in embedded.items()},
                    )
                )
            finally:
                setattr(module, name, used)
            tell(1)
    for asked in [*words.values(), *embedded.values()]:
        asked.close()
    return points


def paraphrased(way: Ours, noise: Sample) -> float:
    """How many paraphrases, in percent, find their fact among the turns of a conversation, at 5."""
    facts = [type(noise.turns[0])(f"fact-{at}", fact, "") for at, (fact, _) in enumerate(PAIRS)]
    way.index([*noise.turns, *facts])
    return 100 * fmean(
        f"fact-{at}" in way.recall(question, 5) for at, (_, question) in enumerate(PAIRS)
    )


def as_table(points: Sequence[Point]) -> Table:
    """A row a value; the one that is used is marked."""
    caption = "Evidence recall@10, %, with one number of ours set to another."
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left")
    sets = list(points[0].words)
    ways = [f"{name}, {way}" for name in sets for way in ("words", "embeddings")]
    for name in ("", "value", *ways):
        table.add_column(name, justify="right")
    table.add_column()
    for point in points:
        figures = [
            f"{found[name]:.1f}" if name in found else ""
            for name in sets
            for found in (point.words, point.embedded)
        ]
        mark = "as used" if point.used else ""
        table.add_row(point.name, f"{point.value:g}", *figures, mark)
    return table
