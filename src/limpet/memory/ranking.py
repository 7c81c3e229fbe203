"""How well memories match a query: scores of words and of meaning, added up; a little for use.

By score, not by rank: that the second best is far behind the best is worth knowing. Both parts say
how good a match is in itself, from 0 to 1, so that scores of different queries can be compared, and
`min_score` means something. All here is plain arithmetic on what the index found.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "ACTIVATION",
    "CONTEXT",
    "MEANING",
    "SAME",
    "WORDS",
    "Gist",
    "Parts",
    "activation",
    "alike",
    "fused",
    "ideal",
    "rarity",
    "same",
    "shares",
    "words_of",
]

#: What words and meaning weigh where both are known. That is not a fine point: docs/memory.md.
WORDS, MEANING = 0.5, 0.5
#: What use and recency weigh: enough to decide between equals, too little to bury a good match.
ACTIVATION = 0.05
#: What the time weighs, where a question asks about one.
TIME = 0.45
#: What a word in the context counts, where one in the text counts 1.
CONTEXT = 0.5
#: Of the pairs of words of two texts, the share in common from which on they say the same.
SAME = 0.9

_WORD = re.compile(r"\w+")
_DIGIT = re.compile(r"\d")
_DAY = 86_400.0
#: Uses within a minute are as one that is a minute old.
_YOUNGEST = 60.0


class Parts(Struct, frozen=True, gc=False):
    """The parts of a score, each from 0 to 1; *meaning* is None where there are no embeddings.

    *time* is None where none was asked for.
    """

    words: float
    meaning: float | None
    activation: float
    time: float | None = None


def fused(parts: Parts, words: float = WORDS, meaning: float = MEANING) -> float:
    """One score from 0 to 1."""
    added = shares(parts, words, meaning)
    return added.words + (added.meaning or 0.0) + added.activation + (added.time or 0.0)


def shares(parts: Parts, words: float = WORDS, meaning: float = MEANING) -> Parts:
    """What each part adds to the score, which is their sum.

    >>> shares(Parts(1.0, None, 0.5))
    Parts(words=0.95, meaning=None, activation=0.025, time=None)
    """
    time = None if parts.time is None else TIME * parts.time
    whole = 1.0 if time is None else 1 - TIME
    fit = whole * (1 - ACTIVATION)
    active = whole * ACTIVATION * parts.activation
    if parts.meaning is None:
        return Parts(fit * parts.words, None, active, time)
    fit /= words + meaning
    return Parts(fit * words * parts.words, fit * meaning * parts.meaning, active, time)


def ideal(total: int, counts: Iterable[int]) -> float:
    """What BM25 gives to a text of usual length that has every word of a query once.

    *total* is how many texts there are, *counts* how many have each of the words.
    """
    # As FTS5 has it: what is not positive is next to nothing.
    return sum(max(math.log((total - n + 0.5) / (n + 0.5)), 1e-6) for n in counts)


def rarity(total: int, count: int) -> float:
    """How much a word says that *count* of *total* texts have; never 0."""
    return math.log(1 + (total - count + 0.5) / (count + 0.5))


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
