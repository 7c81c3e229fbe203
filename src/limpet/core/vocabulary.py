"""The words that a collection of texts has: what a word may stand for that is in none of them.

A table beside a full-text index counts how often each word is written, without regard to capitals
and accents. A word that is in no text is looked for in those that are there: as
a part of a longer one, or with one or two typing errors. For words that are there it costs nothing.
"""

from __future__ import annotations

import functools
import json
import os
import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import apsw

__all__ = ["TABLE", "bare", "count_texts", "has", "nearest"]

#: The table. A *space* keeps the words of those apart who must not know of each other.
TABLE = """
CREATE TABLE vocabulary(
    space TEXT NOT NULL, word TEXT NOT NULL, times INTEGER NOT NULL, PRIMARY KEY(space, word)
) STRICT, WITHOUT ROWID;
"""

# Scripts whose words have letters, endings, and typing errors.
_WORD = re.compile(r"(?<!\w)[a-z\u00df-\u024f\u0370-\u052f]{4,40}(?!\w)")

#: Letters of a word that may have two typing errors; of one that may be a part of another, and of
#: one that may be made of others; and those that the rest of the longer one has, at least.
TWO_ERRORS, PART, COMPOUND, REST = 8, 5, 8, 3
#: Words that one may stand for: with a typing error; as a part.
MOST_ERRORS, MOST_PARTS = 3, 8

_COUNT = """
INSERT INTO vocabulary(space, word, times) VALUES(?, ?, ?)
ON CONFLICT DO UPDATE SET times = times + excluded.times
"""
_DROP = "DELETE FROM vocabulary WHERE space = ? AND word = ? AND times <= 0"

# One look at each word, by comparisons that are quick. With few errors, its beginning or its end is
# as it should be.
_LIKE = """
SELECT word, times FROM vocabulary WHERE space = :space AND length(word) >= length(:word) - :most
AND (instr(word, :word) OR length(word) <= length(:word) + :most
                           AND substr(word, -length(:end)) = :end)
UNION
SELECT word, times FROM vocabulary
WHERE space = :space AND word >= :start AND word < :start || :last
AND length(word) BETWEEN length(:word) - :most AND length(:word) + :most
"""
_THESE = """
SELECT word, times FROM vocabulary
WHERE space = ? AND word IN (SELECT value FROM json_each(?))
"""

_ENGLISH = os.path.join(os.path.dirname(__file__), "wordpieces.txt")


def count_texts(database: apsw.Connection, texts: Iterable[str], by: int, space: str = "") -> None:
    """Count the words of *texts* that come, with *by* 1, or go, with -1."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(_WORD.findall(bare(text)))
    database.executemany(_COUNT, [(space, word, by * count) for word, count in words.items()])
    if by < 0:
        database.executemany(_DROP, [(space, word) for word in words])


def has(database: apsw.Connection, word: str, space: str = "") -> bool:
    """Whether a text has *word*; True of what is no word that would be counted."""
    plain = bare(word)
    if not _WORD.fullmatch(plain):
        return True
    return database.execute(_THESE, (space, json.dumps([plain]))).fetchone() is not None


def nearest(database: apsw.Connection, word: str, space: str = "") -> list[str]:
    """The words that are there and that *word* may stand for, which is not; the likeliest first.

    None for one that English has: it is no typing error, and what it is a part of means another
    thing.
    """
    plain = bare(word)
    if not _WORD.fullmatch(plain) or plain in _english():
        return []
    size, most = len(plain), 2 if len(plain) >= TWO_ERRORS else 1
    half, letters = (size - 1) // 2, set(plain)
    given = {"space": space, "word": plain, "most": most, "last": chr(0x10FFFF)}
    given |= {"start": plain[: half if most == 1 else size // 3], "end": plain[-half:]}
    errors: dict[int, list[tuple[int, str]]] = {1: [], 2: []}
    longer: list[tuple[int, str]] = []
    for other, times in database.execute(_LIKE, given):
        if plain in other:
            if _is_part(plain, other):
                longer.append((-times, other))
            elif len(other) <= size + most:
                errors[max(len(other) - size, 1)].append((-times, other))
        # Each error makes a difference of two letters at most: that is soon seen.
        elif len(letters.symmetric_difference(other)) <= 2 * most:
            far = distance(plain, other, most)
            if far <= most:
                errors[far].append((-times, other))
    shorter = _made_of(database, plain, space)
    near = sorted(errors[1])[:MOST_ERRORS]
    parts = [*sorted(longer), *shorter][:MOST_PARTS]
    return [found for _, found in near + parts or sorted(errors[2])[:MOST_ERRORS]]


def _is_part(word: str, longer: str) -> bool:
    """Whether *word* can be one of those that *longer* is made of."""
    at_end = longer.startswith(word) or longer.endswith(word)
    return len(word) >= (PART if at_end else PART + 1) and len(longer) >= len(word) + REST


def _made_of(database: apsw.Connection, word: str, space: str) -> list[tuple[int, str]]:
    """The words that *word* begins or ends with, the longest first."""
    if len(word) < COMPOUND:
        return []
    sizes = range(PART, len(word) - REST + 1)
    parts = [part for size in sizes for part in (word[:size], word[-size:])]
    found = database.execute(_THESE, (space, json.dumps(parts)))
    return sorted(((-times, part) for part, times in found), key=lambda one: -len(one[1]))


def distance(one: str, other: str, most: int) -> int:
    """Letters to add, drop, change or swap with the next until they are the same; or over *most*.

    >>> distance("recieve", "receive", 2), distance("pidgeon", "pigeon", 2)
    (1, 1)
    """
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        last, before, row = before, row, [at]
        for to, its in enumerate(other, 1):
            cost = min(before[to] + 1, row[to - 1] + 1, before[to - 1] + (letter != its))
            if at > 1 and to > 1 and letter == other[to - 2] and one[at - 2] == its:
                cost = min(cost, last[to - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return row[-1]


def bare(text: str) -> str:
    """*text* without capitals and accents."""
    if text.isascii():
        return text.lower()
    letters = unicodedata.normalize("NFD", text.lower())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


@functools.cache
def _english() -> frozenset[str]:
    """Words of English, as far as the local model knows them; read when the first is asked for."""
    with open(_ENGLISH, encoding="utf-8") as file:
        return frozenset(filter(_WORD.fullmatch, file.read().split("\n")))
