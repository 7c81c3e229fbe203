"""Which memories have to do with each other: those that share a name, rare words, a tag, a source.

A light graph, never stored: its edges are what the index knows anyway, so that nothing is left of
a memory that was forgotten. `recall` does not follow it: measured, neighbours of the best hits are
found anyway, or push out better ones (docs/memory.md has the figures).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import structs

from limpet.memory.finding import Query, find
from limpet.memory.hits import MemoryHit, Why
from limpet.memory.ranking import alike, words_of

if TYPE_CHECKING:
    from limpet.memory.hits import Remembered
    from limpet.memory.index import Index

__all__ = ["groups", "names_in", "related"]

#: What a shared tag and a shared source add to the words that two memories have in common.
TAG, SOURCE = 0.2, 0.1
#: How many neighbours by words are looked at for each that is wanted.
WIDER = 4

# A name: words with a capital that do not begin a sentence, one after the other.
_WORD = r"[^\W\d_a-z]\w*(?:\+\+|(?<=\b\w)#)?"
_NAME = re.compile(rf"(?<![.!?:\u2026] )(?<!^)\b{_WORD}(?: {_WORD})*")


def names_in(text: str) -> list[str]:
    """The names in a text, as far as capitals show them.

    >>> names_in("We met Ada Lovelace in London.")
    ['Ada Lovelace', 'London']
    >>> names_in("We know C, C++ and C#.")
    ['C', 'C++', 'C#']
    """
    return list(dict.fromkeys(found for found in _NAME.findall(text) if found[0].isupper()))


def related(index: Index, of: list[Remembered], k: int, now: int) -> list[MemoryHit]:
    """The *k* that have most to do with a memory."""
    if k < 1:
        return []
    (one,) = of
    # Names first, should the text be long: what it is about says more than how it says it.
    text = " ".join([*names_in(one.text), *one.tags, one.text])
    found = {hit.id: hit for hit in find(index, _query(text, WIDER * k + 1, now))}
    for filters in _edges(one):
        near = index.all(filters, now, WIDER * k)
        missing = [other for other in near if other.id not in found]
        found |= {hit.id: hit for hit in (_plain(other, now) for other in missing)}
    family = {one.id, *one.supersedes, one.superseded_by}
    hits = [_raised(one, hit) for key, hit in found.items() if key not in family]
    return sorted(hits, key=lambda hit: (-hit.score, hit.age, hit.id))[:k]


def _query(text: str, k: int, now: int) -> Query:
    return Query(text=text, k=k, now=now)


def _edges(one: Remembered) -> list[dict[str, Any]]:
    return [{"tags": [tag]} for tag in one.tags] + ([{"source": one.source}] if one.source else [])


def _plain(other: Remembered, now: int) -> MemoryHit:
    """Found by no word: only by what it shares."""
    age = max(datetime.fromtimestamp(now / 1e6, UTC) - other.at, timedelta(0))
    return MemoryHit(**structs.asdict(other), score=0.0, why=Why(0.0, None, 0.0), age=age)


def _raised(one: Remembered, hit: MemoryHit) -> MemoryHit:
    shared = bool(set(one.tags) & set(hit.tags))
    added = TAG * shared + SOURCE * (one.source is not None and one.source == hit.source)
    return structs.replace(hit, score=min(hit.score * (1 - TAG - SOURCE) + added, 1.0))


def groups(index: Index, filters: dict[str, Any], share: float, now: int) -> list[list[Remembered]]:
    """Memories of one kind that say much the same, oldest first in each group; each in one only."""
    taken: set[str] = set()
    found = []
    for one in reversed(index.all(filters, now)):
        if one.id in taken:
            continue
        words = words_of(one.text)
        query = Query(text=one.text, k=20, now=now, filters={"kinds": [one.kind]}, distinct=False)
        near = [hit for hit in find(index, query) if hit.id not in taken]
        ids = [hit.id for hit in near if alike(words, words_of(hit.text)) >= share]
        group = sorted(index.get(ids).values(), key=lambda other: (other.at, other.id))
        if len(group) > 1:
            taken.update(ids)
            found.append(group)
    return found
