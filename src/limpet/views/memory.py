"""Memories as people see them: what was learned, from where, what became of it, how well it fits.

A namespace is shown by its index on this machine, which each look brings up to the journal.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.core.ids import make_key
from limpet.errors import InvalidId
from limpet.memory import Receipt, Remembered
from limpet.views import PAGE, WHOLE
from limpet.views.heads import kinds_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from limpet.backends.contract import Head
    from limpet.core.scope import Scope
    from limpet.memory import MemoryHit, Stats

__all__ = [
    "ForgetView",
    "HitView",
    "MemoriesPage",
    "MemoryDetail",
    "MemoryView",
    "Origin",
    "ScorePart",
    "SearchedMemory",
    "facts",
    "fields",
    "forget_view",
    "hit_view",
    "memories_page",
    "memory_detail",
    "memory_search",
    "memory_stats",
    "memory_view",
]

#: Versions, and memories that dispute one or are related to it, that are shown of it.
VERSIONS, RELATED = 100, 5

#: Characters of one memory where several are listed for a model; tags of it.
LISTED, TAGS = 4_000, 16


class Origin(Struct, frozen=True):
    """The journal that a memory says it comes from."""

    kind: str
    id: str


class MemoryView(Struct, frozen=True):
    """A memory, where it comes from, and whether it counts now: *state* is "" if so.

    Else it is "replaced", "expired" or "not yet valid". *origin* is None if its source names no
    journal that is there.
    """

    memory: Remembered
    state: str
    origin: Origin | None = None

    @property
    def disputed(self) -> bool:
        """Whether another memory contradicts it."""
        return bool(self.memory.contradicted_by)


def memory_view(memory: Remembered, origins: dict[str, Origin] | None = None) -> MemoryView:
    """The view of *memory*; *origins* are the journals that sources name."""
    now = datetime.now(UTC)
    if memory.superseded_by:
        state = "replaced"
    elif memory.expires_at is not None and memory.expires_at <= now:
        state = "expired"
    elif memory.valid_from is not None and memory.valid_from > now:
        state = "not yet valid"
    else:
        state = ""
    return MemoryView(memory, state, (origins or {}).get(memory.source or ""))


def facts(memory: Remembered) -> list[str]:
    """What a line says of a memory besides its text and its age."""
    view = memory_view(memory)
    return [
        memory.kind,
        *(f"#{tag}" for tag in memory.tags),
        *([f"from {memory.source}"] if memory.source else []),
        *([f"by {memory.by}"] if memory.by else []),
        *([view.state] if view.state else []),
        *(["disputed"] if view.disputed else []),
    ]


async def origins_of(scope: Scope, memories: Iterable[Remembered]) -> dict[str, Origin]:
    """The journals that the sources of *memories* name: ``task/report``, or ``report`` alone."""
    sources = dict.fromkeys(one.source for one in memories if one.source)
    if not sources:
        return {}
    there = await kinds_of(scope)
    usual = [kind for kind in ("task", "conversation", "thread", "state") if kind in there]
    found: dict[str, Origin] = {}
    for source in sources:
        kind, slash, rest = source.partition("/")
        named = [(kind, rest)] if slash and kind in there else []
        for where in (*named, *((kind, source) for kind in usual)):
            try:
                key = make_key(scope.tenant, *where)
            except InvalidId:
                continue
            if await scope.runtime.call(scope.backend.head, key) is not None:
                found[source] = Origin(*where)
                break
    return found


# -- search ----------------------------------------------------------------------------------------


class ScorePart(Struct, frozen=True):
    """A part of a score: how good it is in itself, from 0 to 1, and what it *adds* to the score."""

    name: str
    value: float
    adds: float


class HitView(Struct, frozen=True):
    """A memory that fits, and why: its score is the sum of what its parts add.

    *older*: an older version fits, which this one replaced. *same*: the ids of memories that say
    the same, and were left out for it. *newer_than*: those of hits that say otherwise, and are
    *outdated*. *near*: words of the query with those that it was found by instead.
    """

    view: MemoryView
    score: float
    parts: list[ScorePart]
    older: bool
    same: tuple[str, ...]
    newer_than: tuple[str, ...] = ()
    outdated: bool = False
    near: tuple[tuple[str, str], ...] = ()


class SearchedMemory(Struct, frozen=True):
    """What fits, the best first. *model*: the one that compared meanings; None: by words alone."""

    query: str
    hits: list[HitView]
    model: str | None


def hit_view(hit: MemoryHit, origins: dict[str, Origin] | None = None) -> HitView:
    """The view of a *hit* of `Memory.recall`."""
    why, shares = hit.why, hit.why.shares()
    values = (
        ("words", why.words, shares.words),
        ("meaning", why.meaning, shares.meaning),
        ("word by word", why.word_by_word, shares.word_by_word),
        ("speaker", why.speaker, shares.speaker),
        ("standing", why.standing, shares.standing),
        ("neighbour", why.neighbour, shares.neighbour),
        ("use and recency", why.activation, shares.activation),
        ("time", why.time, shares.time),
    )
    parts = [
        ScorePart(name, value, adds)
        for name, value, adds in values
        if value is not None and adds is not None
    ]
    return HitView(
        *(memory_view(hit, origins), hit.score, parts, why.older, why.same),
        newer_than=why.newer_than,
        outdated=why.outdated,
        near=why.near,
    )


async def memory_search(
    scope: Scope, namespace: str, query: str, *, k: int = 20, embed: Any = False, **filters: Any
) -> SearchedMemory:
    """The *k* memories that fit *query* best; by meaning too, if there is a model to *embed*."""
    memory = scope.memory(namespace, embed)
    hits = await memory.recall(query, k, **filters)
    origins = await origins_of(scope, hits)
    model = None if embed is False else await memory.embedded_by()
    return SearchedMemory(query, [hit_view(hit, origins) for hit in hits], model)


# -- a list, and one of it -------------------------------------------------------------------------


class MemoriesPage(Struct, frozen=True):
    """Some memories, newest first; *older* is what to give as *before* for the next ones."""

    memories: list[MemoryView]
    older: int | None


async def memories_page(
    scope: Scope, namespace: str, *, before: int | None = None, limit: int = PAGE, **filters: Any
) -> MemoriesPage:
    """The memories before some number; *filters* are those of `Memory.page`."""
    found = await scope.memory(namespace).page(before=before, limit=limit, **filters)
    origins = await origins_of(scope, found.memories)
    return MemoriesPage([memory_view(one, origins) for one in found.memories], found.older)


async def memory_stats(scope: Scope, head: Head, *, whole: bool = False) -> Stats | None:
    """The namespace in figures, for which all of it is counted; None if that takes long."""
    if not whole and head.seq - head.first >= WHOLE:
        return None
    stats: Stats = await scope.memory(head.key.id).stats()
    return stats


class MemoryDetail(Struct, frozen=True):
    """One memory with its versions (oldest first; itself among them), disputes, and neighbours."""

    view: MemoryView
    versions: list[MemoryView]
    disputed_by: list[MemoryView]
    related: list[MemoryView]


async def memory_detail(scope: Scope, namespace: str, id_: str) -> MemoryDetail:
    """The memory *id_*; `MemoryNotFound` if it is not in the namespace."""
    memory = scope.memory(namespace)
    versions = (await memory.history(id_))[-VERSIONS:]
    one = await memory.get(id_)
    disputing = [other for other in one.contradicted_by[:VERSIONS] if other != id_]
    disputes = [await memory.get(other) for other in disputing]
    related = await memory.related(id_, RELATED)
    origins = await origins_of(scope, [one, *versions, *disputes, *related])
    return MemoryDetail(
        view=memory_view(one, origins),
        versions=[memory_view(other, origins) for other in versions],
        disputed_by=[memory_view(other, origins) for other in disputes],
        related=[memory_view(other, origins) for other in related],
    )


# -- forgetting ------------------------------------------------------------------------------------


class ForgetView(Struct, frozen=True):
    """What forgetting would remove: in the receipt all of it, and the first memories."""

    receipt: Receipt
    memories: list[MemoryView]


async def forget_view(
    scope: Scope,
    namespace: str,
    *ids: str,
    source: str | None = None,
    tag: str | None = None,
    subject: str | None = None,
) -> ForgetView:
    """What would go with *ids*, or with a *source*, *tag* or *subject*; nothing is changed."""
    memory = scope.memory(namespace)
    receipt = await memory.would_forget(*ids, source=source, tag=tag, subject=subject)
    shown = [await memory.get(id_) for id_ in receipt.ids[:PAGE]]
    return ForgetView(receipt, [memory_view(one) for one in shown])


# -- for programs and models -----------------------------------------------------------------------

# Of a memory, in this order; what is empty is left out.
_FIELDS = (
    *("id", "text", "kind", "tags", "source", "by", "said_at", "at", "trust", "contradicted_by"),
    *("score", "why"),
)


def fields(memory: Remembered, most: int = LISTED) -> dict[str, Any]:
    """A memory, or a hit, in a list for a model, with *most* characters of its text."""
    values = {name: getattr(memory, name, None) for name in _FIELDS}
    shown = {name: value for name, value in values.items() if value not in (None, "", (), [], {})}
    size = len(memory.text)
    if size > most:
        shown["text"] = f"{memory.text[:most]}… (cut: {size - most:,} of {size:,} characters)"
    if len(memory.tags) > TAGS:
        shown["tags"] = [*memory.tags[:TAGS], f"… {len(memory.tags) - TAGS:,} more"]
    if "score" in shown:
        shown |= {"score": round(shown["score"], 3), "why": str(shown["why"])}
    return shown
