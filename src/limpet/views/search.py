"""One search over everything that agents have said, done, saved and remembered."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.backends.contract import from_micros
from limpet.conversations.search import SOURCE as CONVERSATIONS
from limpet.core import text_search
from limpet.integrations.langgraph.search import SOURCE as THREADS
from limpet.integrations.langgraph.search import place
from limpet.memory.search import SOURCE as MEMORIES
from limpet.memory.search import memory_of
from limpet.states.search import SOURCE as STATES
from limpet.states.search import save_of
from limpet.tasks.search import SOURCE as TASKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from limpet.core.scope import Scope
    from limpet.core.text_index import Hit

__all__ = ["KINDS", "Damaged", "SearchGroup", "SearchHit", "SearchView", "marked", "search_view"]

SOURCES = {one.kind: one for one in (CONVERSATIONS, TASKS, STATES, THREADS, MEMORIES)}
#: The kinds that are searched.
KINDS = tuple(SOURCES)


class SearchHit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A text that fits: where it is, and what it is there, its *role*.

    That is who said it, or what it is to a task (the goal, a decision, the result of a step), where
    it is in a state, what kind of memory it is.
    """

    kind: str
    id: str
    position: int  # of the entry
    at: datetime
    role: str
    excerpt: str
    score: float
    checkpoint: str | None = None  # of a thread: the first one that had it
    memory: str | None = None  # the id of a memory


class SearchGroup(Struct, frozen=True):
    """What was found in one journal, in the order in which it was recorded."""

    kind: str
    id: str
    hits: list[SearchHit]


class Damaged(Struct, frozen=True):
    """A journal that could not be searched, and why."""

    kind: str
    id: str
    why: str


class SearchView(Struct, frozen=True):
    """What was found, the best first; and what could not be looked through."""

    query: str
    kinds: tuple[str, ...]
    hits: list[SearchHit]
    damaged: list[Damaged]
    more: bool  # whether more fits than was asked for

    @property
    def groups(self) -> list[SearchGroup]:
        """The same by journal, that of the best hit first."""
        found: dict[tuple[str, str], list[SearchHit]] = {}
        for hit in self.hits:
            found.setdefault((hit.kind, hit.id), []).append(hit)
        return [
            SearchGroup(kind, id_, sorted(hits, key=lambda hit: hit.position))
            for (kind, id_), hits in found.items()
        ]


async def search_view(
    scope: Scope,
    query: str,
    *,
    kinds: Iterable[str] = (),
    k: int = 10,
    prefix: str = "",
    labels: Mapping[str, str] | None = None,
) -> SearchView:
    """The *k* texts that fit *query* best, of all *kinds* or of some."""
    chosen = tuple(kind for kind in KINDS if kind in set(kinds)) or KINDS
    damaged: text_search.Damaged = []
    hits = await text_search.search(
        scope,
        query,
        [SOURCES[kind] for kind in chosen],
        k=k + 1,
        prefix=prefix,
        labels=labels,
        damaged=damaged,
    )
    return SearchView(
        query=query,
        kinds=chosen,
        hits=[_shown(hit) for hit in hits[:k]],
        damaged=[Damaged(key.kind, key.id, str(error)) for key, error in damaged],
        more=len(hits) > k,
    )


def _shown(hit: Hit) -> SearchHit:
    position, role = hit.position, hit.label
    checkpoint = memory = None
    if hit.kind == THREADS.kind:
        position, checkpoint, role = place(hit.position, hit.label)
    elif hit.kind == STATES.kind:
        position = save_of(hit.position)
    elif hit.kind == MEMORIES.kind:
        memory, role = memory_of(hit.label)
    return SearchHit(
        kind=hit.kind,
        id=hit.id,
        position=position,
        at=from_micros(hit.at),
        role=role,
        excerpt=hit.excerpt,
        score=hit.score,
        checkpoint=checkpoint,
        memory=memory,
    )


def marked(excerpt: str, query: str) -> list[tuple[str, bool]]:
    """*excerpt* in pieces, each with whether it is a word of *query*.

    >>> marked("Where is my order?", "order*")
    [('Where is my ', False), ('order', True), ('?', False)]
    """
    words = sorted(re.findall(r"\w+", query), key=len, reverse=True)
    if not words:
        return [(excerpt, False)]
    found = re.split(rf"(?i)\b({'|'.join(map(re.escape, words))})", excerpt)
    return [(text, bool(at % 2)) for at, text in enumerate(found) if text]
