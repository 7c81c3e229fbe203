"""Copies of messages into a new conversation: in records of some size, and whole or not at all.

A copy counts once all of it is there. Whoever writes the records one after the other, each under
an id of its own, may be cut short and begin again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from limpet.conversations.transcript import COPIED, FORKED, SUMMARY, ConversationMeta

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from limpet.conversations.transcript import Item, Summary

__all__ = ["CHUNK", "chunks", "copies"]

#: Messages to a record, and their size: reading the end must not mean reading all of it.
CHUNK = 32
CHUNK_BYTES = 1024 * 1024


def copies(
    items: Sequence[Item],
    origin: dict[str, Any],
    *,
    summary: Summary | None = None,
    pins: Iterable[int] = (),
) -> Iterator[tuple[list[tuple[str, Any]], ConversationMeta]]:
    """The records of a conversation that begins with *items*, each with the meta after it.

    *origin* says where they are from. *summary* and *pins* are those of the conversation that they
    were in; here they get positions from 1 on.
    """
    entries: list[tuple[str, Any]] = [(COPIED, message) for _, message in items]
    places = {position: place for place, (position, _) in enumerate(items, 1)}
    meta = ConversationMeta(pins=tuple(places[pin] for pin in pins if pin in places))
    if summary is not None:
        upto = sum(position <= summary.upto for position in places)
        body = {"upto": upto, "messages": summary.messages, "text": summary.text, "previous": 0}
        entries.append((SUMMARY, body))
        meta = meta.but(summary=len(entries))
    entries.append((FORKED, origin))  # the last: from it on, the copy counts
    written = 0
    for chunk in chunks(entries):
        written += len(chunk)
        if written < len(entries):
            yield chunk, ConversationMeta(forking=True, others=written)
        else:
            yield chunk, meta.but(others=written - len(items))


def chunks(entries: Iterable[tuple[str, Any]]) -> Iterator[list[tuple[str, Any]]]:
    """*entries* in runs that are not too long and not too large."""
    chunk: list[tuple[str, Any]] = []
    size = 0
    for entry in entries:
        weight = len(msgspec.json.encode(entry[1]))
        if chunk and (len(chunk) == CHUNK or size + weight > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += weight
    yield chunk
