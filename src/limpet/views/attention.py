"""What needs somebody: in doubt, waiting for an answer, failed, stuck, paused.

What a status says is found by the backend's index of it, now. Calls in doubt and tasks that nobody
works on are found by looking at all heads (`limpet.views.survey`); each is looked at again before
it is shown, so that what is resolved is gone at once.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.backends.contract import Head, Key
from limpet.integrations.langgraph import thread
from limpet.tasks import entries as task
from limpet.views.heads import HeadView
from limpet.views.listing import Budget, Row, rows_of
from limpet.views.survey import is_stuck

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.core.scope import Scope
    from limpet.views.survey import Newest, Survey

__all__ = ["Attention", "Group", "attention"]

#: Rows of each group that are shown; heads of a status, and journals of a survey, that are looked
#: at for them.
SHOWN = 6
HEADS = 100
TRIED = 20

#: Runs of the Agents SDK that wait for an approval: the kind, which is known where that is not
#: installed, too.
AGENTS_RUN = "agents-run"

# What the backend's index of statuses finds: the group, kind and status.
_BY_STATUS = (
    ("asked", task.KIND, task.WAITING),
    ("asked", thread.KIND, thread.INTERRUPTED),
    ("asked", AGENTS_RUN, task.WAITING),
    ("failed", task.KIND, task.FAILED),
    ("paused", task.KIND, task.PAUSED),
)


class Group(Struct, frozen=True):
    """Journals that need somebody for one reason; the newest ones, *more* if there are others."""

    name: str
    rows: list[Row]
    more: bool


class Attention(Struct, frozen=True):
    """The groups that have something in them, the most urgent first."""

    groups: list[Group]


async def attention(scope: Scope, survey: Survey | None) -> Attention:
    """What needs somebody, with what the *survey* has found so far."""
    now, budget = datetime.now(UTC), Budget()
    found: dict[str, Group] = {}
    if survey is not None:
        for name, newest, holds in (
            ("doubt", survey.doubtful, lambda view: bool(view.doubts)),
            ("stuck", survey.stuck, lambda view: is_stuck(view, now)),
        ):
            heads = await _still(scope, newest, holds)
            rows = await rows_of(scope, heads[:SHOWN], budget)
            found[name] = Group(name, rows, len(heads) > SHOWN)
    by_group: dict[str, list[Head]] = {}
    for name, kind, status in _BY_STATUS:
        page = await scope.runtime.call(
            scope.backend.scan, scope.tenant, kind, status=status, limit=HEADS
        )
        by_group.setdefault(name, []).extend(page.heads)
    for name, heads in by_group.items():
        heads.sort(key=lambda head: head.updated, reverse=True)
        rows = await rows_of(scope, heads[: TRIED if name == "asked" else SHOWN], budget)
        asking = [row for row in rows if name != "asked" or _asks_somebody(row)]
        shown = asking[:SHOWN]
        found[name] = Group(name, shown, len(asking) > SHOWN or len(heads) > len(rows))
    order = ("doubt", "asked", "failed", "stuck", "paused")
    return Attention([found[name] for name in order if name in found and found[name].rows])


async def _still(scope: Scope, newest: Newest, holds: Callable[[HeadView], bool]) -> list[Head]:
    """Of what a survey has found, those of which it *holds* now; one more than are shown."""
    heads: list[Head] = []
    for kind, id_ in newest.names(TRIED):
        head = await scope.runtime.call(scope.backend.head, Key(scope.tenant, kind, id_))
        if head is not None and holds(HeadView.of(head)):
            heads.append(head)
        if len(heads) > SHOWN:
            break
    return heads


def _asks_somebody(row: Row) -> bool:
    """Whether it waits for a signal or an answer: not for a time, a child task, or a resolution."""
    if row.task is None or not row.task.whole:
        return not row.head.doubts
    return bool(row.task.awaited)
