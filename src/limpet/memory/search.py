"""Full text over the memories of all namespaces, for the search over everything.

`Memory.recall` is what finds memories by how well they match a question. Here they are texts like
others: the newest version of each, as long as it counts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from limpet.backends.contract import to_micros
from limpet.core.index_files import is_private
from limpet.core.text_index import Document
from limpet.core.text_search import Source, new_entries
from limpet.memory.entries import FORGOTTEN, REMEMBERED, REWRITTEN
from limpet.memory.index import LIVE, ONE_OF, Index
from limpet.memory.indexed_journal import IndexedJournal, now_micros
from limpet.memory.memory import KIND

if TYPE_CHECKING:
    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal
    from limpet.core.text_index import Hit, Known

__all__ = ["SOURCE", "memory_of"]


def memory_of(label: str) -> tuple[str, str]:
    """The id and the kind of the memory that was found with a *label*."""
    kind, _, id_ = label.rpartition(" ")
    return id_, kind


def _indexed(journal: AsyncJournal) -> IndexedJournal:
    return IndexedJournal(journal, private=is_private(journal.runtime.backend, journal.codec))


async def _news(
    journal: AsyncJournal, head: Head, before: Known | None
) -> tuple[Known | None, list[Document]]:
    """What was remembered since *before*, and that; or all there is, and None."""
    indexed = _indexed(journal)
    new = await new_entries(journal, head, before)
    start = head.first - 1
    if before is None or new is None or any(one.type in (FORGOTTEN, REWRITTEN) for one in new):
        before = None
    else:
        start = before.seen
    entries = [one for one in await indexed.read(start, head.seq) if one.type == REMEMBERED]
    # The namespace's own index says what there is; the entries, where it came to be.
    memories = await indexed.query(Index.get, [one.body["id"] for one in entries])
    documents: dict[str, Document] = {}
    for entry in entries:
        memory = memories.get(entry.body["id"])
        if memory is not None and to_micros(memory.at) == entry.at:
            text = " ".join([memory.text, *(f"#{tag}" for tag in memory.tags)])
            label = f"{memory.kind} {memory.id}"
            documents.setdefault(memory.id, Document(entry.seq, entry.at, label, text))
    return before, list(documents.values())


async def _current(journal: AsyncJournal, hits: list[Hit]) -> list[Hit]:
    """Those that were not replaced, and are valid now."""
    ids = [memory_of(hit.label)[0] for hit in hits]

    def live(index: Index) -> set[str]:
        now = now_micros()
        sql = f"SELECT m.id FROM memory m WHERE m.id {ONE_OF} AND {LIVE}"  # noqa: S608 - all of it is ours
        return {id_ for (id_,) in index.run(sql, [json.dumps(ids), now, now])}

    found = await _indexed(journal).query(live)
    return [hit for hit, id_ in zip(hits, ids, strict=True) if id_ in found]


#: The texts of memories.
SOURCE = Source(KIND, _news, _current)
