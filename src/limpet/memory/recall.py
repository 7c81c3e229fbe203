"""Which memories match a query: by words, by meaning, and both in one order.

`related` and `similar_groups` ask the same way, with the words of a memory for a query.
"""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from limpet.backends.contract import from_micros
from limpet.core.vocabulary import bare
from limpet.core.words import indexed, phrases
from limpet.memory import ranking
from limpet.memory.index import LIVE, ONE_OF, condition
from limpet.memory.ranking import (
    Gist,
    Parts,
    activation,
    alike,
    fused,
    ideal,
    rarity,
    same,
    words_of,
)
from limpet.memory.results import MemoryHit, Why

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from limpet.memory.index import Index
    from limpet.memory.results import Remembered

__all__ = ["Query", "any_of", "find", "names_in", "related", "similar_groups", "terms"]

#: How many candidates each way of searching gives at least, and for each hit that is wanted.
LEAST, EACH = 50, 5
#: How many times as many, when too few of those count.
WIDER = 4
#: Texts that are scored for a query: where more have a word of it, only those with a rare one; and
#: how many of its words count as rare in any case.
ENOUGH, SURE = 4_000, 3
#: Under so many texts, their number is too small for BM25.
SMALL = 100
#: Words of a query that are looked at: what is longer is a text, not a question.
MOST_TERMS = 64
#: What a shared tag and a shared source add to the words that two related memories have in common.
TAG, SOURCE = 0.2, 0.1

_NEWEST = f"""
WITH RECURSIVE line(found, n, next, depth) AS (
    SELECT m.n, m.n, m.superseded, 0 FROM memory m WHERE m.n {ONE_OF}
    UNION ALL
    SELECT line.found, m.n, m.superseded, depth + 1 FROM line JOIN memory m ON m.id = line.next
    WHERE depth < 1000
)
SELECT line.found, m.n, m.at, (SELECT group_concat(u.at) FROM used u WHERE u.n = m.n)
FROM line JOIN memory m ON m.n = line.n
WHERE line.next IS NULL AND {LIVE} ORDER BY line.found
"""  # noqa: S608 - all of it is ours


class Words(Struct, frozen=True):
    """The words of a query: in how many of *total* texts each is.

    *found* are those to search by: *near* has others for words that are in no text.
    """

    total: int
    counts: dict[str, int]
    found: dict[str, int]
    near: dict[str, list[str]]


class Query(Struct, frozen=True, kw_only=True):
    """What is searched for."""

    text: str
    k: int
    now: int
    vector: Any = None
    filters: dict[str, Any] = {}
    min_score: float | None = None
    #: Whether to leave out what says the same as a better hit.
    distinct: bool = True
    #: How many times as many candidates as usual are looked at.
    wider: int = 1
    weights: tuple[float, float] = (ranking.WORDS, ranking.MEANING)
    #: The words of the text, once they were looked up.
    words: Words | None = None

    @property
    def most(self) -> int:
        """How many candidates are looked at."""
        return max(LEAST, EACH * self.k) * self.wider


class _Scored(Struct, frozen=True, gc=False):
    """A memory by its row, with its score and what that is made of."""

    score: float
    at: int
    n: int
    parts: Parts
    older: bool


def find(index: Index, query: Query) -> list[MemoryHit]:
    """The memories that match *query* best; of equal scores the newest first."""
    with index.lock:
        query = structs.replace(query, words=_look_up(index, query.text))
        while True:
            scored, more = _score(index, query)
            hits = _distinct(index, query, scored)
            least = query.min_score
            too_low = least is not None and scored and scored[-1].score < least
            if len(hits) == query.k or not more or too_low:
                return hits
            # Many of them are versions of one memory, say the same, or do not count: look further.
            query = structs.replace(query, wider=WIDER * query.wider)


def _score(index: Index, query: Query) -> tuple[list[_Scored], bool]:
    """The candidates, best first; and whether there may be more."""
    by_words = _by_words(index, query)
    vectors, near = None, {}
    if query.vector is not None:
        vectors = index.vectors
        near = vectors.nearest(index, query.vector, query.most, _passing(index, query.filters))
    best: dict[int, _Scored] = {}
    listed = json.dumps(list(by_words.keys() | near.keys()))
    # Each row that was found stands for the newest version of its memory, row n.
    for found, n, at, uses in index.run(_NEWEST, [listed, query.now, query.now]):
        meaning = None if vectors is None else near.get(found) or vectors.score(found)
        times = [at, *map(int, uses.split(","))] if uses else [at]
        active = activation([(query.now - time) / 1e6 for time in times])
        parts = Parts(by_words.get(found, 0.0), meaning, active)
        one = _Scored(fused(parts, *query.weights), at, n, parts, n != found)
        known = best.get(n)
        # Both a memory and an older version of it may match: the better match counts.
        if known is None or known.score < one.score:
            best[n] = one
    scored = sorted(best.values(), key=lambda one: (-one.score, -one.at, -one.n))
    return scored, max(len(by_words), len(near)) >= query.most


def _passing(index: Index, filters: dict[str, Any]) -> list[int] | None:
    """The rows that *filters* let pass; None if that is all of them."""
    where, values = condition(filters)
    if where == "1":
        return None
    sql = f"SELECT m.n FROM memory m WHERE {where}"  # noqa: S608 - conditions of ours
    return [n for (n,) in index.run(sql, values)]


def _distinct(index: Index, query: Query, scored: list[_Scored]) -> list[MemoryHit]:
    """The first of *scored*; what says the same as a better one is only named there."""
    least = query.min_score
    good = [one for one in scored if least is None or one.score >= least]
    hits: list[MemoryHit] = []
    gists: list[Gist] = []
    for one, memory in _memories(index, good, query.k + 2):
        gist = Gist.of(memory.text)
        twins = (at for at, other in enumerate(gists) if same(gist, other))
        twin = next(twins, None) if query.distinct else None
        if twin is not None:
            why = hits[twin].why
            why = structs.replace(why, same=(*why.same, memory.id))
            hits[twin] = structs.replace(hits[twin], why=why)
        elif len(hits) == query.k:
            break
        else:
            gists.append(gist)
            parts = one.parts
            near = _near_in(query.words.near, memory) if query.words else ()
            why = Why(parts.words, parts.meaning, parts.activation, one.older, near=near)
            hits.append(_hit(memory, one.score, why, query.now))
    return hits


def _near_in(near: dict[str, list[str]], memory: Remembered) -> tuple[tuple[str, str], ...]:
    """The words of a query with those of *memory* that it was found by instead."""
    if not near:
        return ()
    there = words_of(bare(indexed(f"{memory.text} {memory.context or ''}")))
    return tuple(
        (word, other) for word, others in near.items() for other in others if other in there
    )


def _memories(
    index: Index, scored: list[_Scored], step: int
) -> Iterator[tuple[_Scored, Remembered]]:
    """Each of *scored* with its memory, read *step* at a time: most are never asked for."""
    for start in range(0, len(scored), step):
        some = scored[start : start + step]
        memories = index.rows([one.n for one in some])
        yield from ((one, memories[one.n]) for one in some if one.n in memories)


def _hit(memory: Remembered, score: float, why: Why, now: int) -> MemoryHit:
    age = max(from_micros(now) - memory.at, timedelta(0))
    return MemoryHit(**structs.asdict(memory), score=score, why=why, age=age)


# -- by words --------------------------------------------------------------------------------------

# Words that questions are made of, and that say nothing about what is asked.
_STOP = frozenset(
    """a about all also am an and any are as at be because been before being but by can could
    did do does doing don for from get had has have having he her here hers him his how i if in
    into is it its itself just ll me more most my no not now of on once only or other our out
    over own re s same she should so some such t than that the their them then there these they
    this those through to too under until up ve very was we were what when where which while who
    whom whose why will with would you your yours""".split()  # noqa: SIM905 - as people read it
)


def terms(query: str) -> list[str]:
    """The words of *query* that matter, each once; all of them if none does."""
    words = dict.fromkeys(phrases(query))
    matter = [word for word in words if word not in _STOP]
    return (matter or list(words))[:MOST_TERMS]


def any_of(words: Iterable[str]) -> str:
    """A query for FTS5: texts with any of *words*. All are quoted, so nothing in them is syntax."""
    return " OR ".join(f'"{word}"' for word in words)


def _look_up(index: Index, text: str) -> Words:
    total, counts = index.count_words(terms(text))
    found = {word: count for word, count in counts.items() if count}
    if len(found) == len(counts):
        return Words(total, counts, found, {})
    near = index.near_words([word for word in counts if word not in found])
    for word, others in near.items():
        _, known = index.count_words(others)
        counts[word] = min(known.values())  # one of them is as good as the word
        found |= known
    return Words(total, counts, found, near)


def _by_words(index: Index, query: Query) -> dict[int, float]:
    """Rows by how much of the query they have, from 0 to 1."""
    words = query.words or _look_up(index, query.text)
    total, counts, found = words.total, words.counts, words.found
    if not found:
        return {}
    if total < SMALL:
        return _by_coverage(index, query, total, counts, found)
    rows: list[tuple[int, float]] = []
    if sum(found.values()) > ENOUGH:
        rows = _matches(index, query, any_of(found), among=any_of(_rarest(found, total)))
    if len(rows) < query.most:  # there are few texts; or filters let few with a rare word pass
        rows = _matches(index, query, any_of(found))
    # A text may have a word more than once, and so score more than all of the query once.
    most = max([ideal(total, counts.values()), *(score for _, score in rows)])
    return {n: score / most for n, score in rows}


def _rarest(counts: dict[str, int], total: int) -> Iterator[str]:
    """The rarest words, until they are in so many texts that the best have one of them."""
    rows = 0
    for number, (word, count) in enumerate(sorted(counts.items(), key=lambda pair: pair[1])):
        rows += count
        if number and 2 * count > total:
            return  # BM25 gives nothing for a word that most have
        if number >= SURE and rows > ENOUGH:
            return
        yield word


def _by_coverage(
    index: Index, query: Query, total: int, counts: dict[str, int], words: dict[str, int]
) -> dict[int, float]:
    """The same for few texts, where BM25 gives nothing for a word that half of them have."""
    most = sum(rarity(total, count) for count in counts.values())
    found: dict[int, float] = {}
    for word, count in words.items():
        worth = rarity(total, count) / most
        in_text, in_context = (
            {n for n, _ in _matches(index, query, f'{column} : "{word}"', limit=total)}
            for column in ("text", "context")
        )
        for n in in_text | in_context:
            found[n] = found.get(n, 0.0) + worth * (1 if n in in_text else ranking.CONTEXT)
    return {n: min(score, 1.0) for n, score in found.items()}


def _matches(
    index: Index, query: Query, match: str, *, among: str | None = None, limit: int | None = None
) -> list[tuple[int, float]]:
    """Rows that *match*, and *among*, with what BM25 gives them, the best first."""
    where, values = condition(query.filters)
    if among is not None:
        # With a plus, SQLite only sieves by it what *match* has found: to score a row costs most.
        where += " AND +words.rowid IN (SELECT rowid FROM words WHERE words MATCH ?)"
        values.append(among)
    if index.value("SELECT 1 FROM memory WHERE expires NOTNULL LIMIT 1"):
        where += " AND (m.expires IS NULL OR m.expires > ?)"
        values.append(query.now)
    # Only where it must be: a row of the table costs more than one of the words.
    joined = "JOIN memory m ON m.n = words.rowid" if "m." in where else ""
    # Not by FTS5's own "rank", which takes half as long again.
    sql = (
        f"SELECT words.rowid, bm25(words, 1.0, {ranking.CONTEXT}) AS score FROM words {joined}"  # noqa: S608 - all of it is ours
        f" WHERE words MATCH ? AND {where} ORDER BY score LIMIT ?"
    )
    most = query.most if limit is None else limit
    return [(n, -score) for n, score in index.run(sql, [match, *values, most])]


# -- related ---------------------------------------------------------------------------------------

# A name: words with a capital that do not begin a sentence, one after the other.
_CAPITAL = r"[^\W\d_a-z]\w*(?:\+\+|(?<=\b\w)#)?"
_NAME = re.compile(rf"(?<![.!?:\u2026] )(?<!^)\b{_CAPITAL}(?: {_CAPITAL})*")


def names_in(text: str) -> list[str]:
    """The names in a text, as far as capitals show them.

    >>> names_in("We met Ada Lovelace in London.")
    ['Ada Lovelace', 'London']
    >>> names_in("We know C, C++ and C#.")
    ['C', 'C++', 'C#']
    """
    return list(dict.fromkeys(found for found in _NAME.findall(text) if found[0].isupper()))


def related(index: Index, one: Remembered, k: int, now: int) -> list[MemoryHit]:
    """The *k* memories that share most with *one*: a name, rare words, a tag, the source.

    A graph that is never stored: its edges are what the index has anyway, and nothing is left in it
    of a memory that was forgotten. `find` does not follow it: measured, neighbours of the best hits
    are found anyway, or push out better ones (docs/memory.md has the figures).
    """
    if k < 1:
        return []
    # Names first, in case the text is long: what it is about says more than how it says it.
    text = " ".join([*names_in(one.text), *one.tags, one.text])
    found = {hit.id: hit for hit in find(index, Query(text=text, k=WIDER * k + 1, now=now))}
    shared: list[dict[str, Any]] = [{"tags": [tag]} for tag in one.tags]
    shared += [{"source": one.source}] if one.source else []
    for filters in shared:
        for other in index.filtered(filters, now, WIDER * k):
            if other.id not in found:
                found[other.id] = _hit(other, 0.0, Why(0.0, None, 0.0), now)
    versions = {one.id, *one.supersedes, one.superseded_by}
    hits = []
    for hit in found.values():
        if hit.id not in versions:
            added = TAG * bool(set(one.tags) & set(hit.tags))
            added += SOURCE * (one.source is not None and one.source == hit.source)
            score = min(hit.score * (1 - TAG - SOURCE) + added, 1.0)
            hits.append(structs.replace(hit, score=score))
    return sorted(hits, key=lambda hit: (-hit.score, hit.age, hit.id))[:k]


def similar_groups(
    index: Index, filters: dict[str, Any], share: float, now: int
) -> list[list[Remembered]]:
    """Memories of one kind that share so many of their words, oldest first; each in one group."""
    taken: set[str] = set()
    groups = []
    for one in reversed(index.filtered(filters, now)):
        if one.id in taken:
            continue
        words = words_of(one.text)
        query = Query(text=one.text, k=20, now=now, filters={"kinds": [one.kind]}, distinct=False)
        near = [hit for hit in find(index, query) if hit.id not in taken]
        ids = [hit.id for hit in near if alike(words, words_of(hit.text)) >= share]
        group = sorted(index.get(ids).values(), key=lambda other: (other.at, other.id))
        if len(group) > 1:
            taken.update(ids)
            groups.append(group)
    return groups
