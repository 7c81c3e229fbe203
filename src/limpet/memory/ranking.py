"""How well memories match a query: scores of words and of meaning on one scale, and added up.

How far the best stands out is read from what each way of searching has found for this query: from
what is usual among all memories up to the best. So neither has to be weighed anew for texts of
another kind. The parts say how good a match is in itself, from 0 to 1; the score of the best hit
is what these amount to, so that `min_score` means something. All here is plain arithmetic.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "ACTIVATION",
    "CONTEXT",
    "INSTRUCTION",
    "MEANING",
    "NEIGHBOUR",
    "SAME",
    "SPEAKER",
    "STOP_WORDS",
    "WHOLE",
    "WORDS",
    "WORD_BY_WORD",
    "Gist",
    "Parts",
    "Usual",
    "activation",
    "alike",
    "covered",
    "ideal",
    "rarity",
    "same",
    "score",
    "shares",
    "weight_of_words",
    "with_neighbours",
    "words_of",
]

#: What the parts of a fit weigh, how far it counts who said it, and that it is an instruction.
#: docs/memory.md has what is found with other numbers: none of them is a fine point.
WORDS, MEANING, WORD_BY_WORD, SPEAKER, INSTRUCTION = 1.0, 1.0, 0.75, 0.35, 0.5
#: What the better of its two neighbours adds to a memory: what was said next to a good match bears
#: on the query more often than what was said elsewhere.
NEIGHBOUR = 0.1
#: How rare the words of a query must be on average for words to weigh that much, where a word that
#: one text has is 1. Of common ones, many texts have as many, and meaning decides.
RARE = 0.6
#: How much of a query the best text must have for words to weigh that much, where there is meaning:
#: if it has less, the question was put in other words.
WELL_COVERED = 0.35
#: What use and recency weigh: enough to decide between equals, too little to bury a good match.
ACTIVATION = 0.05
#: What the time weighs, where a question asks about one.
TIME = 0.45
#: How much of what a text lacks of the query its context can make up for.
CONTEXT = 0.85
#: What the vector of the whole counts that a text is a part of, where that of the text counts 1.
WHOLE = 1.0
#: Of the pairs of words of two texts, the share in common from which on they say the same.
SAME = 0.9

# Words that questions are made of, and that say nothing about what is asked.
STOP_WORDS = frozenset(
    """a about all also am an and any are as at be because been before being but by can could
    did do does doing don for from get had has have having he her here hers him his how i if in
    into is it its itself just ll me more most my no not now of on once only or other our out
    over own re s same she should so some such t than that the their them then there these they
    this those through to too under until up ve very was we were what when where which while who
    whom whose why will with would you your yours""".split()  # noqa: SIM905 - as people read it
)

_WORD = re.compile(r"\w+")
_DIGIT = re.compile(r"\d")
_DAY = 86_400.0
#: A difference that is none.
_NOTHING = 1e-9
#: Uses within a minute are as one that is a minute old.
_YOUNGEST = 60.0


class Parts(Struct, frozen=True, gc=False):
    """The parts of a score, each from 0 to 1; None of what was not looked at.

    *words*: how much of the query it has. *meaning*: how near it is to the query; *word_by_word*:
    to each of its words. *speaker*: whether the query asks about whoever said it. *activation*: how
    recently and how often it was used. *time*: how well it fits the time that the query asks about.
    *standing*: how far to trust an instruction or a preference. *neighbour*: how good the better
    one is of those that were remembered right before and after it.
    """

    words: float
    meaning: float | None = None
    word_by_word: float | None = None
    speaker: float | None = None
    activation: float = 0.0
    time: float | None = None
    standing: float | None = None
    neighbour: float | None = None


class Usual(Struct, frozen=True):
    """What is usual among all memories, and is the zero of a part's scale."""

    meaning: float = 0.0
    word_by_word: float = 0.0


def shares(found: Sequence[Parts], usual: Usual, words: float = WORDS) -> list[Parts]:
    """What each part adds to the scores of what was *found* for a query: a score is their sum.

    *words* is what `weight_of_words` gives for those of the query.

    >>> [found] = shares([Parts(words=1.0, activation=0.5)], Usual())
    >>> (found.words, found.activation)
    (0.95, 0.025)
    """
    if any(one.meaning is not None for one in found):
        words *= min(max(*(one.words for one in found), _NOTHING) / WELL_COVERED, 1.0)
    scales = (
        _Scale([one.words for one in found], 0.0, words),
        _Scale([one.meaning for one in found], usual.meaning, MEANING),
        _Scale([one.word_by_word for one in found], usual.word_by_word, WORD_BY_WORD),
    )
    each: list[Sequence[float | None]] = []
    if scales[1].known or scales[2].known:
        whole = sum(scale.weight for scale in scales if scale.known)
        for one in found:
            values = (one.words, one.meaning, one.word_by_word)
            # What has no vector yet is judged by what is known of it.
            pairs = list(zip(scales, values, strict=True))
            by = whole / sum(scale.weight for scale, value in pairs if value is not None)
            each.append([None if value is None else by * scale(value) for scale, value in pairs])
    else:
        each = [(scales[0](one.words), None, None) for one in found]
    best = max((sum(filter(None, line)) for line in each), default=0.0)
    top = max(map(_quality, found), default=0.0)
    of_speakers = [SPEAKER * one.speaker if one.speaker else 0.0 for one in found]
    # An instruction counts for as much as it is near to the query: by meaning, or else by words.
    nearness = [
        min((in_words or 0.0) / words if meaning is None else meaning / MEANING, 1.0)
        for in_words, meaning, _ in each
    ]
    of_instructions = [
        INSTRUCTION * one.standing * near if one.standing else 0.0
        for one, near in zip(found, nearness, strict=True)
    ]
    most = max(map(sum, zip(of_speakers, of_instructions, strict=True)), default=0.0)
    rest = 1.0 if all(one.time is None for one in found) else 1 - TIME
    unit = rest * (1 - ACTIVATION) * top / (1 + most)
    fit = unit / best if best else 0.0
    return [
        Parts(
            (in_words or 0.0) * fit,
            None if meaning is None else meaning * fit,
            None if near is None else near * fit,
            None if one.speaker is None else by_speaker * unit,
            rest * ACTIVATION * one.activation,
            None if one.time is None else TIME * one.time,
            None if one.standing is None else by_standing * unit,
        )
        for one, (in_words, meaning, near), by_speaker, by_standing in zip(
            found, each, of_speakers, of_instructions, strict=True
        )
    ]


def with_neighbours(
    found: Sequence[Parts], adds: Sequence[Parts], neighbours: Sequence[Sequence[int]]
) -> tuple[list[Parts], list[Parts]]:
    """What was *found* and what it *adds*, each with the better of its neighbours.

    *neighbours* are the places of each one's. The score of the best stays as high as it is.

    >>> found = [Parts(words=1.0), Parts(words=0.5)]
    >>> score(with_neighbours(found, found, [[], [0]])[1][1])
    0.6
    """
    scores = [score(one) for one in adds]
    near = [max((scores[at] for at in some), default=None) for some in neighbours]
    joined = [
        structs.replace(one, neighbour=None if its is None else NEIGHBOUR * its)
        for one, its in zip(adds, near, strict=True)
    ]
    most = max(map(score, joined), default=0.0)
    by = max(scores) / most if most else 1.0
    return (
        [structs.replace(one, neighbour=its) for one, its in zip(found, near, strict=True)],
        [
            structs.replace(
                one,
                **{
                    name: by * part
                    for name, part in structs.asdict(one).items()
                    if part is not None
                },
            )
            for one in joined
        ],
    )


def score(parts: Parts) -> float:
    """The sum of `shares`."""
    fit = parts.words + (parts.meaning or 0.0) + (parts.word_by_word or 0.0)
    more = (parts.speaker or 0.0) + (parts.standing or 0.0) + (parts.neighbour or 0.0)
    return fit + more + parts.activation + (parts.time or 0.0)


class _Scale:
    """From what is usual, which is 0, up to the best of *values*, which is the *weight*."""

    def __init__(self, values: Sequence[float | None], usual: float, weight: float) -> None:
        there = [value for value in values if value is not None]
        best = max(there, default=0.0)
        self.known = bool(there)
        self.weight = weight
        self._usual = usual
        self._by = weight / (best - usual) if best - usual > _NOTHING else 0.0

    def __call__(self, value: float) -> float:
        return max(value - self._usual, 0.0) * self._by


def _quality(parts: Parts) -> float:
    """How good a match is in itself, by words and by meaning, whatever else there is."""
    return parts.words if parts.meaning is None else (parts.words + parts.meaning) / 2


def covered(text: float, context: float, best: float) -> float:
    """How much of a query a memory has, by its *text* and, as far as that lacks it, its *context*.

    *best* is what the best text has: of one that has as much, the context does not count.
    """
    return text + CONTEXT * context * max(1 - text / best, 0.0) if best else CONTEXT * context


def ideal(total: int, counts: Iterable[int]) -> float:
    """What BM25 gives to a text of usual length that has every word of a query once.

    *total* is how many texts there are, *counts* how many have each of the words.
    """
    # As FTS5 has it: what is not positive is next to nothing.
    return sum(max(math.log((total - n + 0.5) / (n + 0.5)), 1e-6) for n in counts)


def rarity(total: int, count: int) -> float:
    """How much a word says that *count* of *total* texts have; never 0."""
    return math.log(1 + (total - count + 0.5) / (count + 0.5))


def weight_of_words(total: int, counts: Sequence[int]) -> float:
    """What the words of a query weigh that *counts* of *total* texts have, one or more of each."""
    if not counts:
        return WORDS
    mean = sum(rarity(total, count) for count in counts) / len(counts) / rarity(total, 1)
    return WORDS * min(mean / RARE, 1.0)


def activation(ages: Sequence[float]) -> float:
    """How active a memory is that was used so many seconds ago: ACT-R's base level, from 0 to 1.

    >>> activation([86_400.0])
    0.5
    >>> activation([86_400.0 * 100]) < activation([86_400.0 * 100, 86_400.0 * 10]) < 0.5
    True
    """
    total = sum([math.sqrt(_DAY / max(age, _YOUNGEST)) for age in ages])
    return total / (1 + total)  # the logistic function of the logarithm of the sum


def alike(one: frozenset[Any], other: frozenset[Any]) -> float:
    """The share of what two texts are made of that is in both."""
    if not one or not other:
        return 0.0
    common = len(one & other)
    return common / (len(one) + len(other) - common)


def words_of(text: str) -> frozenset[str]:
    """The words of a text, for `alike`."""
    return frozenset(_WORD.findall(text.casefold()))


class Gist(Struct, frozen=True):
    """A text for `same`: its words two by two, so that their order counts, and its numbers."""

    pairs: frozenset[tuple[str, str]]
    numbers: frozenset[str]

    @classmethod
    def of(cls, text: str) -> Gist:
        """What *text* amounts to."""
        words = _WORD.findall(text.casefold())
        pairs = frozenset(zip(["", *words], [*words, ""], strict=True))
        numbers = filter(_DIGIT.search, words) if _DIGIT.search(text) else ()
        return cls(pairs, frozenset(numbers))


def same(one: Gist, other: Gist) -> bool:
    """Whether two texts say the same, but for a word or a comma; with other numbers they do not.

    >>> same(Gist.of("Ada likes tea."), Gist.of("ada likes tea"))
    True
    >>> same(Gist.of("Ada told Bob"), Gist.of("Bob told Ada"))
    False
    """
    few, many = len(one.pairs), len(other.pairs)
    if few < SAME * many or many < SAME * few or one.numbers != other.numbers:
        return False
    return alike(one.pairs, other.pairs) >= SAME
