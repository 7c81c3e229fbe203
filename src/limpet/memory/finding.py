"""What the index finds for a query: by words, by meaning, and both in one order."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from limpet.memory import ranking
from limpet.memory.hits import MemoryHit, Why
from limpet.memory.lookup import candidates, counts, matches
from limpet.memory.ranking import Gist, Parts, activation, fused, ideal, rarity, same
from limpet.memory.vectors import vectors_of
from limpet.memory.words import matching, terms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.memory.hits import Remembered
    from limpet.memory.index import Index
    from limpet.memory.vectors import Vectors

__all__ = ["Query", "find"]

#: How many candidates each way of looking gives at least, and for each hit that is wanted.
LEAST, EACH = 50, 5
#: And how many times as many, when too few of those count.
WIDER = 4
#: Texts that are scored for a query: where more have a word of it, those that have a rare one; and
#: how many of its words count as rare in any case.
ENOUGH, SURE = 4_000, 3
#: Texts under which BM25 has too few to count.
SMALL = 100


class Query(Struct, frozen=True, kw_only=True):
    """What is asked for."""

    text: str
    k: int
    now: int
    vector: Any = None
    filters: dict[str, Any] = {}
    min_score: float | None = None
    #: Whether what says the same as a better hit is left out.
    distinct: bool = True
    #: How many times as many candidates as usual are looked at.
    wider: int = 1
    weights: tuple[float, float] = (ranking.WORDS, ranking.MEANING)

    @property
    def most(self) -> int:
        """Candidates to look at."""
        return max(LEAST, EACH * self.k) * self.wider


class _Scored(Struct, frozen=True, gc=False):
    """A memory by its row, with its score and what that is made of."""

    score: float
    at: int
    n: int
    parts: Parts
    older: bool


def find(index: Index, query: Query) -> list[MemoryHit]:
    """The memories that fit *query* best; those of one score newest first."""
    with index.lock:
        vectors = None if query.vector is None else vectors_of(index)
        while True:
            scored, more = _scored(index, vectors, query)
            hits = _distinct(index, query, scored)
            if len(hits) == query.k or not more or _too_low(query, scored):
                return hits
            # Many versions of one, many that say the same, or that do not count: behind them are
            # others.
            query = structs.replace(query, wider=WIDER * query.wider)


def _too_low(query: Query, scored: list[_Scored]) -> bool:
    """Whether those that come after *scored* fit too little."""
    return bool(query.min_score is not None and scored and scored[-1].score < query.min_score)


def _scored(index: Index, vectors: Vectors | None, query: Query) -> tuple[list[_Scored], bool]:
    """What was found, the best first; and whether there may be more."""
    words = _by_words(index, query)
    near = {} if vectors is None else vectors.near(index, query)
    best: dict[int, _Scored] = {}
    for row in candidates(index, words.keys() | near.keys(), query.now):
        meaning = None if vectors is None else near.get(row.found) or vectors.score(row.found)
        ages = [(query.now - at) / 1e6 for at in (row.at, *row.uses)]
        parts = Parts(words.get(row.found, 0.0), meaning, activation(ages))
        one = _Scored(fused(parts, *query.weights), row.at, row.n, parts, row.n != row.found)
        known = best.get(row.n)
        # Both a memory and an older version of it may fit: the better fit counts.
        if known is None or known.score < one.score:
            best[row.n] = one
    found = sorted(best.values(), key=lambda one: (-one.score, -one.at, -one.n))
    return found, max(len(words), len(near)) >= query.most


def _by_words(index: Index, query: Query) -> dict[int, float]:
    """Rows by how much of the query they have, from 0 to 1."""
    words = terms(query.text)
    total, known = counts(index, words)
    found = {word: count for word, count in known.items() if count}
    if not found:
        return {}
    if total < SMALL:
        return _covered(index, query, total, known)
    rows = _matching(index, query, found, total)
    # A text may have a word more than once, and so more than all of the query.
    most = max([ideal(total, known.values()), *(score for _, score in rows)])
    return {n: score / most for n, score in rows}


def _matching(
    index: Index, query: Query, counts: dict[str, int], total: int
) -> list[tuple[int, float]]:
    """Rows with any of the words; where those are many, at best only rows with a rare one."""
    asked = (index, matching(counts), query.filters, query.now, query.most)
    if sum(counts.values()) > ENOUGH:
        rows = matches(*asked, among=matching(_telling(counts, total)))
        # Fewer, if filters let others pass.
        if len(rows) == query.most:
            return rows
    return matches(*asked)


def _telling(counts: dict[str, int], total: int) -> Iterator[str]:
    """The rarest words, until they are in so many texts that the best have one of them."""
    rows = 0
    for number, (word, count) in enumerate(sorted(counts.items(), key=lambda pair: pair[1])):
        rows += count
        if number and 2 * count > total:
            return  # BM25 gives nothing for a word that most have
        if number >= SURE and rows > ENOUGH:
            return
        yield word


def _covered(index: Index, query: Query, total: int, known: dict[str, int]) -> dict[int, float]:
    """The same for few texts, where FTS5 takes a word that half of them have for worth nothing."""
    most = sum(rarity(total, count) for count in known.values())
    found: dict[int, float] = {}
    for word, count in known.items():
        worth = rarity(total, count) / most
        said = _having(index, query, f'text : "{word}"', total) if count else set()
        near = _having(index, query, f'context : "{word}"', total) if count else set()
        for n in said | near:
            found[n] = found.get(n, 0.0) + worth * (1 if n in said else ranking.CONTEXT)
    return found


def _having(index: Index, query: Query, match: str, total: int) -> set[int]:
    return {n for n, _ in matches(index, match, query.filters, query.now, total)}


def _distinct(index: Index, query: Query, scored: list[_Scored]) -> list[MemoryHit]:
    """The first of *scored*; what says the same as a better one is only named there."""
    chosen: list[MemoryHit] = []
    said: list[Gist] = []
    for one, memory in _rows(index, query, scored):
        gist = Gist.of(memory.text)
        twins = (at for at, other in enumerate(said) if same(gist, other))
        twin = next(twins, None) if query.distinct else None
        if twin is not None:
            chosen[twin] = _with_same(chosen[twin], memory.id)
        elif len(chosen) == query.k:
            break
        else:
            said.append(gist)
            chosen.append(_hit(query, one, memory))
    return chosen


def _rows(
    index: Index, query: Query, scored: list[_Scored]
) -> Iterator[tuple[_Scored, Remembered]]:
    """What is good enough, with its memory, read a few at a time."""
    least = query.min_score
    good = [one for one in scored if least is None or one.score >= least]
    step = query.k + 2
    for start in range(0, len(good), step):
        some = good[start : start + step]
        memories = index.rows([one.n for one in some])
        yield from ((one, memories[one.n]) for one in some if one.n in memories)


def _hit(query: Query, one: _Scored, memory: Remembered) -> MemoryHit:
    parts = one.parts
    why = Why(parts.words, parts.meaning, parts.activation, one.older)
    age = timedelta(microseconds=max(query.now - one.at, 0))
    return MemoryHit(**structs.asdict(memory), score=one.score, why=why, age=age)


def _with_same(hit: MemoryHit, id_: str) -> MemoryHit:
    return structs.replace(hit, why=structs.replace(hit.why, same=(*hit.why.same, id_)))
