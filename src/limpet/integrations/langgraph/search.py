"""Full text over threads: which messages are in them, for the index.

A message is found where a checkpoint has it first: forks share it, and what a node has written
counts when it has become part of the state.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from limpet.backends.contract import to_micros
from limpet.core import text_search
from limpet.core.text_index import Document, Known
from limpet.integrations.langgraph.reading import (
    delta_channels,
    is_own,
    message_of,
    read_thread,
)
from limpet.integrations.langgraph.thread import KIND, NONE, Listed, encode
from limpet.llm.messages.shape import role_of
from limpet.llm.messages.text import text_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal
    from limpet.integrations.langgraph.thread import Node, ThreadLog

__all__ = ["SOURCE", "place"]

#: How many messages an entry can have, each with a position of its own.
MOST = 1 << 20


def place(position: int, label: str) -> tuple[int, str, str]:
    """The entry, the checkpoint's id and the role, of what was found at a *position*."""
    role, _, checkpoint = label.rpartition(" ")
    return position // MOST, checkpoint, role


async def _news(
    journal: AsyncJournal, head: Head, before: Known | None
) -> tuple[Known | None, list[Document]]:
    """What was said since *before*, and that; or all there is, and None."""
    # What an entry means depends on those before it, so all are read; what is indexed is not again.
    documents = list(_documents(await read_thread(journal, head)))
    if before is not None and before.within(Known.of(head)):
        known = await journal.read(after=before.seen - 1, upto=before.seen)
        if all(before.has(to_micros(entry.at)) for entry in known):
            after = (before.seen + 1) * MOST
            return before, [one for one in documents if one.position >= after]
    return None, documents


def _documents(log: ThreadLog) -> Iterator[Document]:
    parts: set[bytes] = set()
    seen: set[bytes] = set()
    counts: dict[int, int] = {}
    newest = [node for ns in log.nodes if (node := log.newest(ns)) is not None]
    deltas = {name for node in newest for name in delta_channels(log.about(node))}
    for node in sorted(log.all_nodes(), key=lambda node: node.seq):
        for seq, value in _values(log, node, deltas, parts):
            message = message_of(value)
            if message is None or (data := encode(value)) in seen:
                continue
            seen.add(data)
            number = counts[seq] = counts.get(seq, -1) + 1
            if number < MOST:
                at = to_micros(datetime.fromisoformat(log.about(node)["checkpoint"]["ts"]))
                label = f"{role_of(message)} {node.id}"
                yield Document(seq * MOST + number, at, label, text_of(message))


def _values(
    log: ThreadLog, node: Node, deltas: Collection[str], parts: set[bytes]
) -> Iterator[tuple[int, Any]]:
    """What is new at a checkpoint, and the entry that has it. *parts* have been seen before."""
    before = log.node(node.ns, node.parent) if node.parent is not None else None
    for channel, (_, value) in node.values.items():
        known = None if before is None else before.values.get(channel)
        if is_own(channel) or value is NONE or (known is not None and known[1] is value):
            continue
        if isinstance(value, Listed):
            earlier = known[1] if known is not None else None
            goes_on = isinstance(earlier, Listed) and earlier.parts is value.parts
            start = earlier.length if isinstance(earlier, Listed) and goes_on else 0
            for part in value.parts[start : value.length]:
                if part.data not in parts:
                    parts.add(part.data)
                    yield node.seq, log.values.load(part.data)
        else:
            loaded = log.value(value)
            for item in loaded if isinstance(loaded, list) else [loaded]:
                yield node.seq, item
    for write in log.pending(node) if deltas else ():
        if write.channel in deltas:
            loaded = log.load(write.shape)
            for item in loaded if isinstance(loaded, list) else [loaded]:
                yield write.seq, item


#: The messages of threads.
SOURCE = text_search.Source(KIND, _news)
