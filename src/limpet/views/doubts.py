"""Calls in doubt, in journals of whatever kind: they began, and may or may not have happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.core.calls import CallInDoubt
from limpet.core.ids import make_key
from limpet.integrations.langgraph import thread
from limpet.views.heads import HeadView, kinds_of, scan_heads

if TYPE_CHECKING:
    from limpet.core.scope import Scope

__all__ = ["DoubtsPage", "doubts_about", "doubts_of", "doubts_page"]

#: Heads that are looked at for one page.
LOOK = 5_000


class DoubtsPage(Struct, frozen=True):
    """What was found among the heads that were looked at; *after* is where to go on."""

    doubts: list[CallInDoubt]
    looked: int
    after: str | None


def doubts_of(view: HeadView) -> list[CallInDoubt]:
    """The calls in doubt of one journal."""
    return [CallInDoubt(view.kind, view.id, call) for call in view.doubts]


async def doubts_about(scope: Scope, view: HeadView) -> list[CallInDoubt]:
    """The same; of a thread of LangGraph's those of its nodes, too, whose journal is another."""
    found = doubts_of(view)
    if view.kind == thread.KIND:
        key = make_key(scope.tenant, thread.EFFECTS, view.id)
        effects = await scope.runtime.call(scope.backend.head, key)
        found += [] if effects is None else doubts_of(HeadView.of(effects))
    return found


async def doubts_page(scope: Scope, *, after: str | None = None, most: int = LOOK) -> DoubtsPage:
    """The calls in doubt of the tenant, in the next *most* journals."""
    kinds = await kinds_of(scope)
    found = await scan_heads(scope, kinds, after=after, most=most)
    doubts = [doubt for head in found.heads for doubt in doubts_of(HeadView.of(head))]
    return DoubtsPage(doubts, len(found.heads), found.after)
