"""Full text over conversations: brings the index up to the journals, then asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.backends.contract import to_micros
from limpet.conversations import conversation
from limpet.conversations.found import ConversationHit
from limpet.conversations.transcript import CLEARED, COPIED, FORKED, MESSAGE, POPPED
from limpet.core.codec import Codec
from limpet.core.text_index import Document, Known, index_of
from limpet.llm.messages.shape import role_of
from limpet.llm.messages.text import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal, Entry
    from limpet.core.runtime import Runtime
    from limpet.core.text_index import TextIndex

__all__ = ["search"]

#: How often what another process does at the same time may come between.
TRIES = 20

# Entries after which what was read before is no longer the conversation.
_TURNS = (CLEARED, POPPED, COPIED, FORKED)


async def search(
    port: Runtime,
    tenant: str,
    journal: Callable[[str, str], AsyncJournal],
    codec: Codec,
    query: str,
    *,
    k: int = 10,
    prefix: str = "",
    labels: Mapping[str, str] | None = None,
) -> list[ConversationHit]:
    """The *k* messages that fit *query* best, of the conversations of this *tenant*.

    The index is first brought to where the journals are, so that it finds what was said until now,
    and nothing of what was deleted or has expired.
    """
    # What somebody took care to encrypt is not written out beside it.
    index = await port.call(index_of, port.backend, private=type(codec) is not Codec)
    try:
        heads = await _catch_up(port, tenant, journal, index)
        wanted = {
            head.key.id
            for head in heads
            if head.key.id.startswith(prefix) and (labels or {}).items() <= head.labels.items()
        }
        hits = await port.call(index.find, query, tenant, conversation.KIND, k=k, among=wanted)
    finally:
        await port.call(index.let_go)
    return [ConversationHit.of(hit) for hit in hits]


async def _catch_up(
    port: Runtime, tenant: str, journal: Callable[[str, str], AsyncJournal], index: TextIndex
) -> list[Head]:
    """Bring *index* to where the journals are; those."""
    heads: list[Head] = []
    for _ in range(TRIES):
        known = await port.call(index.known, tenant, conversation.KIND)
        # After the index: what others take in meanwhile must not look like another journal.
        heads = await port.call(list, port.backend.heads(tenant, conversation.KIND))
        gone = known.keys() - {head.key.id for head in heads}
        if gone:
            await port.call(index.forget, tenant, conversation.KIND, gone)
        if await _take(port, journal, index, heads, known):
            break
    return heads


async def _take(
    port: Runtime,
    journal: Callable[[str, str], AsyncJournal],
    index: TextIndex,
    heads: list[Head],
    known: dict[str, Known],
) -> bool:
    """Take in what is new; False if another process came between, and may not have all of it."""
    undisturbed = True
    for head in heads:
        before = known.get(head.key.id)
        if before != Known.of(head):
            source = journal(conversation.KIND, head.key.id)
            base, documents = await _news(source, head, before)
            added = await port.call(index.add, head.key, base, Known.of(head), documents)
            undisturbed = undisturbed and added
    return undisturbed


async def _news(
    journal: AsyncJournal, head: Head, before: Known | None
) -> tuple[Known | None, list[Document]]:
    """What was said since *before*, and that; or all there is, and None."""
    same = before is not None and (before.incarnation, before.first) == (
        head.incarnation,
        head.first,
    )
    if before is not None and same and before.seen <= head.seq:
        entries = await journal.read(after=before.seen - 1, upto=head.seq)
        known, new = entries[:1], entries[1:]
        goes_on = all(before.has(to_micros(entry.at)) for entry in known)
        if goes_on and not any(entry.type in _TURNS for entry in new):
            return before, [_document(entry) for entry in new if entry.type == MESSAGE]
    return None, await _everything(journal, head)


async def _everything(journal: AsyncJournal, head: Head) -> list[Document]:
    """The messages of the conversation as it is now; see `Transcript`."""
    found: list[Document] = []
    copied: list[Document] = []
    async for entries in journal.pages(upto=head.seq):
        for entry in entries:
            if entry.type == MESSAGE:
                found.append(_document(entry))
            elif entry.type == COPIED:
                copied.append(_document(entry))
            elif entry.type == FORKED:
                found += copied
            elif entry.type == CLEARED:
                found.clear()
            elif entry.type == POPPED and found:
                found.pop()
    return found


def _document(entry: Entry) -> Document:
    text = text_of(entry.body) if isinstance(entry.body, dict) else ""
    return Document(entry.seq, to_micros(entry.at), role_of(entry.body), text)
