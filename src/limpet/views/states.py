"""A state as it is, or as one of its saves left it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.errors import StateDamaged
from limpet.states.format import KIND, StateVersion
from limpet.states.reader import Reader

if TYPE_CHECKING:
    from limpet.backends.contract import Head
    from limpet.core.scope import Scope

__all__ = ["StateView", "state_view"]


class StateView(Struct, frozen=True):
    """The document of one save, and what is known of that.

    *damage* says why there is none. *previous* is the position of the save before it.
    """

    position: int
    at: datetime | None
    version: int | None
    type: str | None
    note: str | None
    fingerprint: dict[str, Any] | None
    total: int | None  # the size of the document as JSON
    document: Any
    damage: str | None
    previous: int | None
    saved: StateVersion | None


async def state_view(scope: Scope, head: Head, at: int | None = None) -> StateView:
    """The newest save, or the newest one up to number *at*; `StateNotFound` if there is none."""
    reader = Reader(scope.journal(KIND, head.key.id))
    snapshot, damage = None, None
    try:
        snapshot = (await reader.newest(head))[1] if at is None else await reader.at(at)
    except StateDamaged as error:
        damage = str(error)
    position = (at or head.seq) if snapshot is None else snapshot.position
    saves = await reader.history(2, position + 1)
    saved = next((one for one in saves if one.position == position), None)
    earlier = [one.position for one in saves if one.position < position]
    return StateView(
        position=position,
        at=None if saved is None else saved.at,
        version=None if snapshot is None else snapshot.info.version,
        type=None if snapshot is None else snapshot.info.type,
        note=None if snapshot is None else snapshot.info.note,
        fingerprint=None if snapshot is None else snapshot.info.fingerprint,
        total=None if snapshot is None else snapshot.total,
        document=None if snapshot is None else snapshot.document,
        damage=damage,
        previous=earlier[-1] if earlier else None,
        saved=saved,
    )
