"""Copies of messages into another journal, in chunks that a repeated call takes up again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from limpet.conversations.marks import Marks
from limpet.conversations.notes import SUMMARY
from limpet.conversations.transcript import COPIED, FORKED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from limpet.conversations.notes import Summary
    from limpet.conversations.transcript import Item
    from limpet.core.journal import AsyncJournal

__all__ = ["CHUNK", "FORKING", "as_fork", "chunks", "copy"]

#: Messages to a record in a fork, and their size: reading the end must not mean reading all of it.
CHUNK = 32
CHUNK_BYTES = 1024 * 1024

#: The status of a fork that is not all here.
FORKING = "forking"


def as_fork(
    items: list[Item], origin: dict[str, Any], summary: Summary | None, pins: Iterable[int]
) -> tuple[list[tuple[str, Any]], str | None]:
    """The entries of a conversation that begins with *items*, and its status; positions from 1."""
    entries: list[tuple[str, Any]] = [(COPIED, message) for _, message in items]
    entries.append((FORKED, origin))
    places = {position: place for place, (position, _) in enumerate(items, 1)}
    marks = Marks(pins=tuple(places[pin] for pin in pins if pin in places))
    if summary is not None:
        upto = sum(position <= summary.upto for position in places)
        body = {"upto": upto, "messages": summary.messages, "text": summary.text, "previous": 0}
        entries.append((SUMMARY, body))
        marks = marks.but(summary=len(entries))
    return entries, marks.text


async def copy(
    entries: list[tuple[str, Any]], target: AsyncJournal, *, status: str | None, **changes: Any
) -> None:
    """Write *entries* to an empty *target*, which has *status* once all of them are there."""
    done = position = 0
    for chunk in chunks(entries):
        whole = done + len(chunk) == len(entries)
        position = await target.append(
            *chunk,
            id=f"fork-{done}",
            expect=position,
            status=status if whole else FORKING,
            **changes,
        )
        done += len(chunk)


def chunks(entries: list[tuple[str, Any]]) -> Iterator[list[tuple[str, Any]]]:
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
