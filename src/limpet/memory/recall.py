"""Which memories match a query: by words, by meaning, and both in one order.

`related` and `similar_groups` ask the same way, with the words of a memory for a query.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from limpet.backends.contract import from_micros
from limpet.core.recalled import OF_TASKS
from limpet.core.vocabulary import bare
from limpet.core.words import indexed, phrases
from limpet.memory import ranking
from limpet.memory.index import LIVE, ONE_OF, condition
from limpet.memory.passages import WHOLE
from limpet.memory.ranking import (
    Gist,
    Parts,
    Usual,
    activation,
    alike,
    covered,
    ideal,
    rarity,
    same,
    score,
    shares,
    weight_of_words,
    with_neighbours,
    words_of,
)
from limpet.memory.results import MemoryHit, Why
from limpet.memory.speakers import Asked
from limpet.memory.updates import is_telling, outdated
from limpet.memory.vectors import TextVectors, word_by_word
from limpet.memory.when import When, asked_about

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from limpet.memory.index import Index
    from limpet.memory.results import Remembered
    from limpet.memory.vectors import WordVectors

__all__ = ["Query", "any_of", "find", "names_in", "related", "similar_groups", "terms"]

#: How many candidates each way of searching gives at least, and for each hit that is wanted.
LEAST, EACH = 50, 5
#: Of how many candidates, the best, each word is compared with each of the query's.
LOOK_CLOSER = 100
#: How many times as many, when too few of those count.
WIDER = 4
#: Texts that are scored for a query: where more have a word of it, only those with a rare one; and
#: how many of its words count as rare in any case.
ENOUGH, SURE = 4_000, 3
#: Under so many texts, their number is too small for BM25.
SMALL = 100
#: Words of a query that are looked at: what is longer is a text, not a question.
MOST_TERMS = 64
#: How many of those that just missed being hits are looked at for what makes a hit outdated, and
#: how good they must be against the last one.
BEHIND, NEAR = 8, 0.4
#: Microseconds between two memories that may belong together, because one was remembered right
#: after the other.
TOGETHER = 3_600_000_000
#: What a shared tag and a shared source add to the words that two related memories have in common.
TAG, SOURCE = 0.2, 0.1

_OF_A_TASK = "IN ({})".format(", ".join(f"'{kind}'" for kind in OF_TASKS))
_NEWEST = f"""
WITH RECURSIVE line(found, n, next, depth) AS (
    SELECT m.n, m.n, m.superseded, 0 FROM memory m WHERE m.n {ONE_OF}
    UNION ALL
    SELECT line.found, m.n, m.superseded, depth + 1 FROM line JOIN memory m ON m.id = line.next
    WHERE depth < 1000
)
SELECT line.found, m.n, m.at, (SELECT group_concat(u.at) FROM used u WHERE u.n = m.n),
       f.speaker, f.first, CASE WHEN f.standing THEN coalesce(f.trust, 1) END, f.said,
       CASE WHEN f.kind {_OF_A_TASK} THEN f.source END
FROM line JOIN memory m ON m.n = line.n JOIN memory f ON f.n = line.found
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

    @property
    def weight(self) -> float:
        """What they weigh beside meaning."""
        return weight_of_words(self.total, list(self.found.values()))


class Query(Struct, frozen=True, kw_only=True):
    """What is searched for."""

    text: str
    k: int
    now: int
    vectors: TextVectors | None = None
    filters: dict[str, Any] = {}
    min_score: float | None = None
    #: Whether to leave out what says the same as a better hit.
    distinct: bool = True
    #: How many times as many candidates as usual are looked at.
    wider: int = 1
    #: When it is asked, if a time in it is to count; and what that amounts to, once looked up.
    asked_at: datetime | None = None
    when: When | None = None
    #: The words of the text, once they were looked up.
    words: Words | None = None

    @property
    def most(self) -> int:
        """How many candidates are looked at."""
        least = LEAST if self.vectors is None else LOOK_CLOSER
        return max(least, EACH * self.k) * self.wider


class _Found(Struct, gc=False):
    """What the ways of searching found of a memory."""

    words: float = 0.0
    #: The passages that match best, by words and by meaning.
    passages: tuple[int, ...] = ()


class _Row(Struct, frozen=True, gc=False):
    """A memory that was found by its row, or by that of an older version: what _NEWEST returns."""

    found: int
    n: int
    at: int
    uses: str | None
    speaker: str | None
    first: float
    standing: float | None
    said: int
    task: str | None  # that it is from, if a task has written it

    def activation(self, now: int) -> float:
        """How active it is."""
        times = [self.at, *map(int, self.uses.split(","))] if self.uses else [self.at]
        return activation([(now - time) / 1e6 for time in times])


class _Scored(Struct, frozen=True, gc=False):
    """A memory by its row, with its score, what that is made of, and the passage that fits best."""

    score: float
    at: int
    n: int
    parts: Parts
    adds: Parts
    older: bool
    passage: int | None


def find(index: Index, query: Query) -> list[MemoryHit]:
    """The memories that match *query* best; of equal scores the newest first."""
    with index.lock:
        when = None
        if query.asked_at is not None:

            def event(text: str) -> list[MemoryHit]:
                return find(index, Query(text=text, k=1, now=query.now))

            when = asked_about(query.text, query.asked_at, event)
            when = when if when is not None and when.is_known(index) else None
        asked = when.rest if when is not None and terms(when.rest) else query.text
        query = structs.replace(query, when=when, words=_look_up(index, asked))
        while True:
            scored, more = _score(index, query)
            hits = _distinct(index, query, scored)
            # Who asks about a time asks for what was so then.
            if query.distinct and query.when is None:
                hits = _newest_first(index, query, hits, scored)
            least = query.min_score
            too_low = least is not None and scored and scored[-1].score < least
            if len(hits) == query.k or not more or too_low:
                return hits
            # Many of them are versions of one memory, say the same, or do not count: look further.
            query = structs.replace(query, wider=WIDER * query.wider)


def _score(index: Index, query: Query) -> tuple[list[_Scored], bool]:
    """The candidates, best first; and whether there may be more."""
    found, many = _by_words(index, query)
    vectors, usual = None, Usual()
    if query.vectors is not None:
        vectors = index.vectors
        passing = _passing(index, query.filters)
        near = vectors.nearest(index, query.vectors.vector, query.most, passing)
        usual = Usual(near.usual)
        for n, p in near.passages.items():
            known = found.setdefault(n, _Found())
            known.passages = tuple(dict.fromkeys([p, *known.passages]))
        many = max(many, len(near.scores))
    fits: dict[int, float] = {}
    if query.when is not None:
        for n in query.when.rows(index, query.filters, query.most):
            found.setdefault(n, _Found())
        fits = query.when.fits(index, found)
    rows = [
        _Row(*row) for row in index.run(_NEWEST, [json.dumps(list(found)), query.now, query.now])
    ]
    asked = Asked(query.text, ranking.STOP_WORDS)
    about = [asked.about(row.speaker, row.first) for row in rows]
    parts = [
        Parts(
            found[row.found].words,
            None if vectors is None else vectors.score(row.found),
            speaker=its if any(about) else None,
            activation=row.activation(query.now),
            time=fits.get(row.found),
            standing=row.standing,
        )
        for row, its in zip(rows, about, strict=True)
    ]
    weight = ranking.WORDS if query.words is None else query.words.weight
    parts, adds = with_neighbours(parts, shares(parts, usual, weight), _neighbours(rows))
    best_passages: dict[int, int] = {}
    words = None if query.vectors is None else query.vectors.words
    if words is not None and words.words:
        order = sorted(range(len(rows)), key=lambda at: -score(adds[at]))
        order = order[: max(LOOK_CLOSER, 2 * query.k) * query.wider]
        rows = [rows[at] for at in order]
        passages = {row.found: found[row.found].passages for row in rows}
        near_words, best_passages = _word_by_word(index, words, passages)
        parts = [
            structs.replace(parts[at], word_by_word=near_words[row.found])
            for at, row in zip(order, rows, strict=True)
        ]
        least = min((near for near in near_words.values() if near is not None), default=0.0)
        adds = shares(parts, Usual(usual.meaning, least), weight)
        parts, adds = with_neighbours(parts, adds, _neighbours(rows))
    best: dict[int, _Scored] = {}
    # Each row that was found stands for the newest version of its memory, row n.
    for row, one, added in zip(rows, parts, adds, strict=True):
        passage = best_passages.get(row.found) or next(iter(found[row.found].passages), None)
        older = row.n != row.found
        scored = _Scored(score(added), row.at, row.n, one, added, older, passage)
        other = best.get(row.n)
        # Both a memory and an older version of it may match: the better match counts.
        if other is None or other.score < scored.score:
            best[row.n] = scored
    ordered = sorted(best.values(), key=lambda one: (-one.score, -one.at, -one.n))
    return ordered, many >= query.most


def _neighbours(rows: Sequence[_Row]) -> list[list[int]]:
    """The places among *rows* of what was remembered right before and after each, and soon.

    What one task has found out belongs to nothing that another one has.
    """
    places = {row.found: at for at, row in enumerate(rows)}
    return [
        [
            at
            for n in (row.found - 1, row.found + 1)
            if (at := places.get(n)) is not None
            and abs(rows[at].said - row.said) <= TOGETHER
            and rows[at].task == row.task
        ]
        for row in rows
    ]


def _word_by_word(
    index: Index, query: WordVectors, passages: dict[int, tuple[int, ...]]
) -> tuple[dict[int, float | None], dict[int, int]]:
    """How near memories come to each word of *query*, by their *passages*; and the best of these.

    None of those that have no vectors yet.
    """
    total, counts = index.count_words(query.words)
    weights = [rarity(total, counts[word]) for word in query.words]
    listed = json.dumps([p for some in passages.values() for p in some])
    sql = f"SELECT p, words FROM vector WHERE p {ONE_OF} AND words NOTNULL"  # noqa: S608 - all of it is ours
    stored = dict(index.run(sql, [listed]))
    near = dict(zip(stored, word_by_word(query, weights, list(stored.values())), strict=True))
    scores: dict[int, float | None] = {}
    best = {}
    for n, some in passages.items():
        known = [(float(near[p]), p) for p in some if p in near]
        scores[n] = max(known)[0] if known else None
        if known:
            best[n] = max(known)[1]
    return scores, best


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
            why = _why(query, one, memory)
            hits.append(_hit(memory, one.score, why, query.now, _passage(index, one, memory)))
    return hits


def _newest_first(
    index: Index, query: Query, hits: list[MemoryHit], scored: list[_Scored]
) -> list[MemoryHit]:
    """*hits*, with what says otherwise about the same, and was said later, before each.

    A newer one may have just missed being among them, and then takes the place of the last.
    """
    place = {hit.id: at for at, hit in enumerate(hits)}
    least = query.min_score or 0.0
    if hits:
        least = max(least, NEAR * hits[-1].score)
    behind = [one for one in scored[len(hits) : len(hits) + BEHIND] if one.score >= least]
    sql = f"SELECT n, text FROM memory WHERE n {ONE_OF}"  # noqa: S608 - all of it is ours
    texts = dict(index.run(sql, [json.dumps([one.n for one in behind])])) if behind else {}
    telling = [one for one in behind if is_telling(texts[one.n])]
    others = {
        memory.id: (one, memory)
        for one, memory in _memories(index, telling, BEHIND)
        if memory.id not in place
    }
    news = outdated([*hits, *(memory for _, memory in others.values())])
    news = {newer: [id_ for id_ in older if id_ in place] for newer, older in news.items()}
    for newer, older in news.items():
        if not older:
            continue
        if newer not in place:
            one, memory = others[newer]
            why = _why(query, one, memory)
            hits = [*hits, _hit(memory, one.score, why, query.now, _passage(index, one, memory))]
        at = {hit.id: at for at, hit in enumerate(hits)}
        first = min(at[id_] for id_ in older)
        found = hits.pop(at[newer])
        why = structs.replace(found.why, newer_than=tuple(older))
        hits.insert(min(first, at[newer]), structs.replace(found, why=why))
    old = {id_ for older in news.values() for id_ in older}
    return [
        structs.replace(hit, why=structs.replace(hit.why, outdated=True)) if hit.id in old else hit
        for hit in hits[: query.k]
    ]


def _why(query: Query, one: _Scored, memory: Remembered) -> Why:
    parts = one.parts
    near = _near_in(query.words.near, memory) if query.words else ()
    return Why(
        *(parts.words, parts.meaning, parts.activation, one.older),
        near=near,
        word_by_word=parts.word_by_word,
        speaker=parts.speaker,
        adds=one.adds,
        time=parts.time,
        standing=parts.standing,
        neighbour=parts.neighbour,
    )


def _passage(index: Index, one: _Scored, memory: Remembered) -> str | None:
    """The text of the passage that fits best; None if that is all of a memory."""
    # Of an older version that matches, the passage is not in the newest.
    if one.older or one.passage is None or len(memory.text) <= WHOLE:
        return None
    text: str | None = index.value("SELECT text FROM passage WHERE p = ?", [one.passage])
    return text


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


def _hit(
    memory: Remembered, score: float, why: Why, now: int, passage: str | None = None
) -> MemoryHit:
    age = max(from_micros(now) - (memory.said_at or memory.at), timedelta(0))
    fields = structs.asdict(memory)
    return MemoryHit(**fields, score=score, why=why, age=age, passage=passage or memory.text)


# -- by words --------------------------------------------------------------------------------------


def terms(query: str) -> list[str]:
    """The words of *query* that matter, each once; all of them if none does."""
    words = dict.fromkeys(phrases(query))
    matter = [word for word in words if word not in ranking.STOP_WORDS]
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


def _by_words(index: Index, query: Query) -> tuple[dict[int, _Found], int]:
    """Rows by how much of the query they have, from 0 to 1; and how many passages that were."""
    words = query.words or _look_up(index, query.text)
    if not words.found:
        return {}, 0
    if words.total < SMALL:
        in_texts, in_contexts = _by_coverage(index, query, words)
        most = 1.0
    else:
        in_texts = _matches(index, query, words, _TEXTS)
        in_contexts = _matches(index, query, words, _CONTEXTS)
        most = ideal(words.total, words.counts.values())
    texts: dict[int, tuple[Any, ...]] = {}
    for n, p, fit in in_texts:  # the best first, which decides
        texts.setdefault(n, (fit, p))
    contexts = {n: fit for n, _, fit in in_contexts}
    # Of few texts, the best may have little of the query: there, what all of it is worth counts.
    best = max((fit for fit, _ in texts.values()), default=0.0)
    best = best if words.total >= SMALL else most
    found: dict[int, _Found] = {}
    for n in texts.keys() | contexts.keys():
        fit, *passage = texts.get(n, (0.0,))
        found[n] = _Found(covered(fit, contexts.get(n, 0.0), best), tuple(passage))
    # A text may have a word more than once, and so score more than all of the query once.
    most = max([most, *(one.words for one in found.values())])
    for one in found.values():
        one.words /= most
    return found, len(in_texts)


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
    index: Index, query: Query, words: Words
) -> tuple[list[tuple[int, int, float]], list[tuple[int, int, float]]]:
    """What texts and contexts match, where they are few.

    BM25 gives nothing for a word that half of them have.
    """
    most = sum(rarity(words.total, count) for count in words.counts.values())
    both = []
    for table in (_TEXTS, _CONTEXTS):
        found: dict[tuple[int, int], float] = {}
        for word, count in words.found.items():
            worth = rarity(words.total, count) / most
            for n, p, _ in _matching(index, query, table, any_of([word]), limit=words.total):
                found[n, p] = min(found.get((n, p), 0.0) + worth, 1.0)
        order = sorted(found.items(), key=lambda one: -one[1])
        both.append([(n, p, score) for (n, p), score in order])
    return both[0], both[1]


def _matches(
    index: Index, query: Query, words: Words, table: _Table
) -> list[tuple[int, int, float]]:
    """Rows of memories and their passages that match, with what BM25 gives them, the best first."""
    match, rows = any_of(words.found), []
    if sum(words.found.values()) > ENOUGH:
        rare = any_of(_rarest(words.found, words.total))
        rows = _matching(index, query, table, match, among=rare)
    if len(rows) < query.most:  # there are few texts; or filters let few with a rare word pass
        rows = _matching(index, query, table, match)
    return rows


class _Table(Struct, frozen=True):
    """An index of words, and how it is asked."""

    name: str
    sql: str
    #: What leads from its rows to those of memories.
    joined: str
    #: All rows that match.
    rowids: str


# Not by FTS5's own "rank", which takes half as long again.
_TEXTS = _Table(
    "words",
    """
    SELECT passage.n, passage.p, -score FROM (
        SELECT words.rowid AS p, bm25(words) AS score FROM words {joined}
        WHERE words MATCH ? AND {where} ORDER BY score LIMIT ?
    ) JOIN passage USING (p) ORDER BY score
    """,
    "JOIN passage q ON q.p = words.rowid JOIN memory m ON m.n = q.n",
    "SELECT rowid FROM words WHERE words MATCH ?",
)
_CONTEXTS = _Table(
    "around",
    """
    SELECT around.rowid, NULL, -bm25(around) AS score FROM around {joined}
    WHERE around MATCH ? AND {where} ORDER BY score DESC LIMIT ?
    """,
    "JOIN memory m ON m.n = around.rowid",
    "SELECT rowid FROM around WHERE around MATCH ?",
)


def _matching(
    index: Index,
    query: Query,
    table: _Table,
    match: str,
    *,
    among: str | None = None,
    limit: int | None = None,
) -> list[tuple[int, int, float]]:
    where, values = condition(query.filters)
    if among is not None:
        # With a plus, SQLite only sieves by it what *match* has found: to score a row costs most.
        where += f" AND +{table.name}.rowid IN ({table.rowids})"
        values.append(among)
    if index.value("SELECT 1 FROM memory WHERE expires NOTNULL LIMIT 1"):
        where += " AND (m.expires IS NULL OR m.expires > ?)"
        values.append(query.now)
    # Only where it must be: a row of the table costs more than one of the words.
    joined = table.joined if "m." in where else ""
    most = query.most if limit is None else limit
    return index.run(table.sql.format(joined=joined, where=where), [match, *values, most])


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
