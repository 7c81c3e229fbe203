"""What a fork of a task would begin with, what it would do again, and what has happened already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.errors import NotFound
from limpet.tasks import entries as kinds
from limpet.tasks.state import TaskState
from limpet.tasks.versions import effects_after, point_of

if TYPE_CHECKING:
    from limpet.backends.contract import Head
    from limpet.core.scope import Scope

__all__ = ["ForkView", "fork_view"]


class ForkView(Struct, frozen=True):
    """A fork that begins with what the task was after entry *at*."""

    id: str
    at: int
    newest: int
    goal: str
    #: The steps that are done in it from the beginning; those that this task has done since, and
    #: the fork would do again; those of the plan that are left besides.
    done: list[str]
    again: list[str]
    left: list[str]
    #: Of what this task has done since, the steps with an effect: they stay.
    effects: list[str]
    #: Those of which nobody knew at that point whether they had happened.
    doubts: list[str]
    #: What it was submitted as: a worker that runs that takes the fork up.
    submitted: str | None


async def fork_view(
    scope: Scope, head: Head, *, at: int | None = None, step: str | None = None
) -> ForkView:
    """The fork of a task after entry *at*, or before *step*; without either, as it is now."""
    id_ = head.key.id
    entries = await scope.journal(kinds.KIND, id_).read(upto=head.seq)
    point = point_of(entries, at, step)
    before, now = TaskState(id_), TaskState(id_)
    for entry in entries:
        now.apply(entry)
        if entry.seq <= point:
            before.apply(entry)
    if not before.exists or before.seq != point:
        raise NotFound(f"Task {id_!r} has no entry {point} from which it could go on.")
    again = [name for name in now.results if name not in before.results]
    return ForkView(
        id=id_,
        at=point,
        newest=head.seq,
        goal=before.goal,
        done=list(before.results),
        again=again,
        left=[name for name in before.steps_left() if name not in again],
        effects=effects_after(entries, point),
        doubts=list(before.calls.open),
        submitted=before.kind,
    )
