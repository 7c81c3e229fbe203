"""Calls in doubt, in journals of whatever kind: they began, and may or may not have happened.

Which journals have some, a `limpet.views.survey` finds; each is looked at again before it is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.backends.contract import Key
from limpet.core.calls import CallInDoubt
from limpet.core.ids import make_key
from limpet.integrations.langgraph import thread
from limpet.views import PAGE
from limpet.views.heads import HeadView

if TYPE_CHECKING:
    from limpet.core.scope import Scope
    from limpet.views.survey import Survey

__all__ = ["DoubtsPage", "doubts_of", "doubts_page", "effects_of"]


class DoubtsPage(Struct, frozen=True):
    """Calls in doubt, those of the journals first that were written to last.

    *older* is what to give as *before* for those that come next. *beyond*: journals that were
    counted, and are not remembered, so that no page shows them.
    """

    doubts: list[CallInDoubt]
    older: str | None
    beyond: int


def doubts_of(*views: HeadView | None) -> list[CallInDoubt]:
    """The calls in doubt of these journals; None: of one that is not there."""
    return [
        CallInDoubt(view.kind, view.id, call)
        for view in views
        if view is not None
        for call in view.doubts
    ]


async def effects_of(scope: Scope, view: HeadView) -> HeadView | None:
    """The journal of what the nodes of a thread of LangGraph's do, in which their doubts are.

    None if nothing is in it yet, or *view* is not of a thread.
    """
    if view.kind != thread.KIND:
        return None
    key = make_key(scope.tenant, thread.EFFECTS, view.id)
    head = await scope.runtime.call(scope.backend.head, key)
    return None if head is None else HeadView.of(head)


async def doubts_page(
    scope: Scope, survey: Survey, *, before: str | None = None, limit: int = PAGE
) -> DoubtsPage:
    """The calls in doubt of the next *limit* journals that the *survey* has found."""
    names, older = survey.doubtful.page(before, limit)
    doubts: list[CallInDoubt] = []
    for kind, id_ in names:
        head = await scope.runtime.call(scope.backend.head, Key(scope.tenant, kind, id_))
        if head is not None:
            doubts += doubts_of(HeadView.of(head))
    return DoubtsPage(doubts, older, survey.doubtful.beyond)
