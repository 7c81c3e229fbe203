"""Full text over conversations: what was said in them, for the index."""

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
from limpet.core import text_search
from limpet.core.text_index import Document
from limpet.llm.messages.shape import role_of
from limpet.llm.messages.text import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal, Entry
    from limpet.core.scope import Scope
    from limpet.core.text_index import Known

__all__ = ["SOURCE", "ConversationHit", "search"]

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
    hits = await text_search.search(scope, query, [SOURCE], k=k, prefix=prefix, labels=labels)
    return [
        ConversationHit(
            hit.id, hit.position, from_micros(hit.at), hit.label, hit.excerpt, hit.score
        )
        for hit in hits
    ]


async def _news(
    journal: AsyncJournal, head: Head, before: Known | None
) -> tuple[Known | None, list[Document]]:
    """What was said since *before*, and that; or all there is, and None."""
    new = await text_search.new_entries(journal, head, before)
    if new is not None and not any(entry.type in _TURNS for entry in new):
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


#: The texts of conversations.
SOURCE = text_search.Source(KIND, _news)
