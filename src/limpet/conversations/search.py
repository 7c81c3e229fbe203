"""Full text over conversations: brings the index up to the journals, then asks it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.backends.contract import from_micros, to_micros
from limpet.conversations.conversation import KIND
from limpet.conversations.transcript import (
    CLEARED,
    COPIED,
    FORKED,
    MESSAGE,
    NO_MESSAGE,
    POPPED,
    Messages,
)
from limpet.core.codec import Codec
from limpet.core.text_index import Document, Known, index_of
from limpet.llm.messages.shape import role_of
from limpet.llm.messages.text import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal, Entry
    from limpet.core.scope import Scope
    from limpet.core.text_index import TextIndex

__all__ = ["ConversationHit", "search"]

#: How often what another process does at the same time may come between.
TRIES = 20

# Entries after which what was read before is no longer the conversation.
_TURNS = (CLEARED, POPPED, COPIED, FORKED)


class ConversationHit(Struct, frozen=True):
    """A message that fits a query: in which conversation, where, who said it, and its words."""

    id: str
    position: int
    at: datetime
    role: str
    excerpt: str
    score: float

    def __repr__(self) -> str:
        return (
            f"ConversationHit({self.id!r}, {self.position}, {self.role!r}, score={self.score:.2f})"
        )


async def search(
    scope: Scope,
    query: str,
    *,
    k: int = 10,
    prefix: str = "",
    labels: Mapping[str, str] | None = None,
) -> list[ConversationHit]:
    """The *k* messages that fit *query* best, of the conversations of one tenant.

    The index is first brought to where the journals are, so that it finds what was said until now,
    and nothing of what was deleted or has expired.
    """
    call = scope.runtime.call
    # What somebody took care to encrypt is not written out beside it.
    private = type(scope.store.codec) is not Codec
    index = await call(index_of, scope.backend, private=private)
    try:
        heads = await _catch_up(scope, index)
        wanted = {
            head.key.id
            for head in heads
            if head.key.id.startswith(prefix) and (labels or {}).items() <= head.labels.items()
        }
        hits = await call(index.find, query, scope.tenant, KIND, k=k, among=wanted)
    finally:
        await call(index.let_go)
    return [
        ConversationHit(
            hit.id, hit.position, from_micros(hit.at), hit.label, hit.excerpt, hit.score
        )
        for hit in hits
    ]


async def _catch_up(scope: Scope, index: TextIndex) -> list[Head]:
    """Bring *index* to where the journals are; those."""
    call, tenant = scope.runtime.call, scope.tenant
    heads: list[Head] = []
    for _ in range(TRIES):
        known = await call(index.known, tenant, KIND)
        # After the index: what others take in meanwhile must not look like another journal.
        heads = await call(list, scope.backend.heads(tenant, KIND, damaged=[]))
        gone = known.keys() - {head.key.id for head in heads}
        if gone:
            await call(index.forget, tenant, KIND, gone)
        undisturbed = True  # by another process, which may have taken in less than there is
        for head in heads:
            before, now = known.get(head.key.id), Known.of(head)
            if before != now:
                journal = scope.journal(KIND, head.key.id)
                base, documents = await _news(journal, head, before)
                added = await call(index.add, head.key, base, now, documents)
                undisturbed = undisturbed and added
        if undisturbed:
            break
    return heads


async def _news(
    journal: AsyncJournal, head: Head, before: Known | None
) -> tuple[Known | None, list[Document]]:
    """What was said since *before*, and that; or all there is, and None."""
    if before is not None and before.within(Known.of(head)):
        entries = await journal.read(after=before.seen - 1, upto=head.seq)
        known, new = entries[:1], entries[1:]
        goes_on = all(before.has(to_micros(entry.at)) for entry in known)
        if goes_on and not any(entry.type in _TURNS for entry in new):
            return before, [_document(journal, entry) for entry in new if entry.type == MESSAGE]
    messages = Messages()
    async for entries in journal.pages(upto=head.seq):
        for entry in entries:
            is_message = entry.type in (MESSAGE, COPIED)
            messages.take(entry.type, [_document(journal, entry) if is_message else entry.body])
    return None, messages.found


def _document(journal: AsyncJournal, entry: Entry) -> Document:
    message = entry.body
    if not isinstance(message, dict):
        raise journal.unreadable(entry.seq, NO_MESSAGE)
    return Document(entry.seq, to_micros(entry.at), role_of(message), text_of(message))
