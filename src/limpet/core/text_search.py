"""Full text over journals of several kinds: brings the index up to them, then asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from limpet.core.codec import Codec
from limpet.core.text_index import Known, index_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal
    from limpet.core.scope import Scope
    from limpet.core.text_index import Document, Hit, TextIndex

    #: The texts of a journal: what came since it was known like that, and that; or all, and None.
    News = Callable[
        [AsyncJournal, Head, Known | None], Awaitable[tuple[Known | None, list[Document]]]
    ]

__all__ = ["Source", "search"]

#: How often what another process does at the same time may come between.
TRIES = 20


class Source(NamedTuple):
    """Journals of one kind, and what reads their texts."""

    kind: str
    news: News


async def search(
    scope: Scope,
    query: str,
    sources: Sequence[Source],
    *,
    k: int = 10,
    prefix: str = "",
    labels: Mapping[str, str] | None = None,
) -> list[Hit]:
    """The *k* texts that fit *query* best, in the journals of one tenant.

    The index is first brought to where the journals are, so that it finds what was said until now,
    and nothing of what was deleted or has expired.
    """
    call = scope.runtime.call
    # What somebody took care to encrypt is not written out beside it.
    private = type(scope.store.codec) is not Codec
    index = await call(index_of, scope.backend, private=private)
    try:
        among: dict[str, set[str]] = {}
        for source in sources:
            among[source.kind] = {
                head.key.id
                for head in await _catch_up(scope, index, source)
                if head.key.id.startswith(prefix) and (labels or {}).items() <= head.labels.items()
            }
        return await call(index.find, query, scope.tenant, k=k, among=among)
    finally:
        await call(index.let_go)


async def _catch_up(scope: Scope, index: TextIndex, source: Source) -> list[Head]:
    """Bring *index* to where the journals of a *source* are; those."""
    call, tenant, kind = scope.runtime.call, scope.tenant, source.kind
    heads: list[Head] = []
    for _ in range(TRIES):
        known = await call(index.known, tenant, kind)
        # After the index: what others take in meanwhile must not look like another journal.
        heads = await call(list, scope.backend.heads(tenant, kind, damaged=[]))
        gone = known.keys() - {head.key.id for head in heads}
        if gone:
            await call(index.forget, tenant, kind, gone)
        undisturbed = True  # by another process, which may have taken in less than there is
        for head in heads:
            before, now = known.get(head.key.id), Known.of(head)
            if before != now:
                journal = scope.journal(kind, head.key.id)
                base, documents = await source.news(journal, head, before)
                added = await call(index.add, head.key, base, now, documents)
                undisturbed = undisturbed and added
        if undisturbed:
            break
    return heads
