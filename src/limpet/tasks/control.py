"""What reaches a task from outside: it is submitted, signalled, resolved, paused, resumed.

None of it needs the lease. Each is one append at the position that was read, so two at once both
count, one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET, UnsetType

from limpet.core.calls import Answer, Resolution, check_answer, resolve_call
from limpet.core.ids import check_id
from limpet.errors import (
    Conflict,
    GoalMismatch,
    IdReused,
    LeaseHeld,
    NotFound,
    TaskFinished,
    TaskHeld,
    TaskNotOpen,
)
from limpet.tasks import entries as kinds
from limpet.tasks.entries import KIND, error_path
from limpet.tasks.record import not_found, read_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet.backends.contract import Head
    from limpet.core.scope import Scope
    from limpet.tasks.record import TaskOptions

__all__ = ["cancel", "pause", "resolve", "resume", "signal", "submit"]

_ENDED = (kinds.DONE, kinds.FAILED, kinds.CANCELLED)


async def submit(scope: Scope, kind: str, id_: str, options: TaskOptions, given: Any) -> Head:
    """Create an open task that a worker will find; one that is there already is left alone."""
    check_id(kind, "kind of task", 128)
    journal = scope.journal(KIND, id_)
    value = {**options.first_entry(), "kind": kind, "input": given}
    while (head := await journal.head()) is None:
        try:
            with error_path("created['input']", "input"):
                await journal.append(
                    (kinds.CREATED, value),
                    expect=0,
                    status=kinds.OPEN,
                    labels={**options.all_labels(), kinds.RUN: kind},
                    ttl=options.ttl,
                )
        except Conflict:
            continue
    state = await read_state(journal, upto=1)
    if (state.goal, state.kind) != (options.goal, kind):
        msg = (
            f"There is a task {id_!r} already: a {state.kind or 'task of no kind'} with the goal "
            f"{state.goal!r}. Give a new task a new id."
        )
        raise GoalMismatch(msg)
    with error_path("created['input']", "input"):
        stored = journal.encode([(kinds.CREATED, value)])
    if state.input != journal.decode(1, stored)[0][1]["input"]:
        msg = (
            f"Task {id_!r} was submitted with another input, which it keeps. Give a new task a new "
            "id; to submit the same one again, give it the same input."
        )
        raise GoalMismatch(msg)
    return head


async def signal(scope: Scope, id_: str, name: str, payload: Any, append_id: str | None) -> None:
    """Send *payload* to a task, and wake it, and what waits for it."""
    check_id(name, "signal")
    entry = (kinds.SIGNALLED, {"name": name, "payload": payload})
    with error_path("signalled['payload']", "payload"):
        head = await _append(scope, id_, entry, refused=_ENDED, wakes=True, append_id=append_id)
    await _wake_parent(scope, head)


async def resolve(
    scope: Scope, id_: str, step: str, how: str, *, result: Any, by: str | None
) -> None:
    """Record what a person says of a step in doubt."""
    check_answer(how, result, "step")
    head = await scope.journal(KIND, id_).head()
    if head is None:
        raise not_found(id_)
    _check_takes(head, kinds.RESOLVED, refused=(kinds.DONE,))
    resolution = Resolution(step, cast("Answer", how), result, by)
    wakes = {kinds.WAITING: kinds.OPEN}
    try:
        with error_path("resolved['result']", "result"):
            head = await resolve_call(scope, KIND, id_, resolution, wakes=wakes)
    except NotFound as error:
        raise NotFound(f"Step {error}") from error
    except LeaseHeld as held:
        raise TaskHeld(f"Step {held}", held.holder, held.until, held.epoch) from held
    await _wake_parent(scope, head)


async def pause(scope: Scope, id_: str, because: str | None) -> None:
    """Let nobody work on a task until it is resumed."""
    entry = (kinds.PAUSED, {"because": because})
    await _append(scope, id_, entry, refused=_ENDED, status=kinds.PAUSED)


async def cancel(scope: Scope, id_: str, because: str | None) -> None:
    """End a task without an outcome."""
    entry = (kinds.CANCELLED, {"because": because})
    await _append(scope, id_, entry, refused=(kinds.DONE,), status=kinds.CANCELLED)


async def resume(scope: Scope, id_: str) -> None:
    """Let a task go on that was paused, was cancelled, has failed, or waits."""
    entry = (kinds.RESUMED, {"agent": None})
    head = await _append(scope, id_, entry, refused=(kinds.DONE,), status=kinds.OPEN)
    await _wake_parent(scope, head)


async def _append(
    scope: Scope,
    id_: str,
    entry: tuple[str, Any],
    *,
    refused: Sequence[str],
    status: str | UnsetType = UNSET,
    wakes: bool = False,
    append_id: str | None = None,
) -> Head:
    """Append *entry*, unless the task's status is *refused*; the head it was appended to.

    The *status* is then that; *wakes*: a task that waits is open then.
    """
    journal = scope.journal(KIND, id_)
    while (head := await journal.head()) is not None:
        try:
            _check_takes(head, entry[0], refused)
        except TaskFinished:
            if append_id is None:
                raise
            try:  # A repetition comes late, not wrong: where there is an entry, this appends none.
                await journal.append(entry, id=append_id, expect=0)
            except IdReused:
                raise
            except Conflict:
                pass
            else:
                return head
            raise
        to = kinds.OPEN if wakes and head.status == kinds.WAITING else status
        try:
            await journal.append(entry, id=append_id, expect=head.expect, status=to)
        except IdReused:
            raise
        except Conflict:
            continue
        return head
    raise not_found(id_)


def _check_takes(head: Head, what: str, refused: Sequence[str]) -> None:
    """Raise if a task with this *head* cannot be *what*: paused, signalled."""
    id_ = head.key.id
    if head.status == kinds.FORKING:
        msg = f"Task {id_!r} is half a fork. Finish it by the same fork() again."
        raise TaskNotOpen(msg)
    if head.status in refused:
        raise TaskFinished(f"Task {id_!r} is {head.status}, so it cannot be {what}.")


async def _wake_parent(scope: Scope, head: Head) -> None:
    """A child's news are news for the task that waits for it."""
    parent = head.labels.get(kinds.PARENT)
    if parent is None:
        return
    above = await scope.journal(KIND, parent).head()
    if above is not None and above.status == kinds.WAITING:
        await resume(scope, parent)
