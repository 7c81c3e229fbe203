"""Copies of messages into a new conversation: in records of some size, and whole or not at all.

A copy counts once all of it is there. Whoever writes the records one after the other, each under
an id of its own, may be cut short and begin again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from limpet.conversations.transcript import COPIED, FORKED, SUMMARY, ConversationMeta
from limpet.core.calls import BEGAN
from limpet.llm.messages.shape import calls_of, results_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from limpet.conversations.transcript import Item, Summary
    from limpet.core.calls import Call

__all__ = ["CHUNK", "chunks", "copies"]

#: Messages to a record, and their size: reading the end must not mean reading all of it.
CHUNK = 16
CHUNK_BYTES = 1024 * 1024


def copies(
    items: Sequence[Item],
    origin: dict[str, Any],
    *,
    summary: Summary | None = None,
    pins: Iterable[int] = (),
    began: Mapping[str, Call] | None = None,
) -> Iterator[tuple[list[tuple[str, Any]], ConversationMeta]]:
    """The records of a conversation that begins with *items*, each with the meta after it.

    *origin* says where they are from. *summary* and *pins* are those of the conversation that they
    were in; here they get positions from 1 on. *began* has the tool calls that began there. Those
    without a result among *items* are in doubt here: nobody may make them as if they had not begun.
    """
    entries: list[tuple[str, Any]] = [(COPIED, message) for _, message in items]
    places = {position: place for place, (position, _) in enumerate(items, 1)}
    meta = ConversationMeta(pins=tuple(places[pin] for pin in pins if pin in places))
    if summary is not None:
        upto = sum(position <= summary.upto for position in places)
        body = {"upto": upto, "messages": summary.messages, "text": summary.text, "previous": 0}
        entries.append((SUMMARY, body))
        meta = meta.but(summary=len(entries))
    unanswered: dict[str, None] = {}
    for _, message in items:
        unanswered |= dict.fromkeys(calls_of(message))
        for call_id in results_of(message):
            unanswered.pop(call_id, None)
    meta = meta.but(calls={id_: began[id_] for id_ in unanswered if began and id_ in began})
    entries += [(BEGAN, msgspec.to_builtins(call)) for call in meta.calls.values()]
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
