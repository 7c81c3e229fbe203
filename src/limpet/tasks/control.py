"""What reaches a task from outside: it is submitted, signalled, resolved, paused, resumed.

None of it needs the lease. Each is one append at the position that was read, so two at once both
count, one after the other.
"""

from __future__ import annotations

from contextlib import suppress
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
    TaskNotFound,
    TaskNotOpen,
)
from limpet.tasks import entries as kinds
from limpet.tasks.entries import KIND, error_path
from limpet.tasks.record import not_found, read_state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal
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
    if (scope.redacted(state.goal), state.kind) != (scope.redacted(options.goal), kind):
        msg = (
            f"There is a task {id_!r} already: a {state.kind or 'task of no kind'} with the goal "
            f"{state.goal!r}. Give a new task a new id."
        )
        raise GoalMismatch(msg)
    with error_path("created['input']", "input"):
        stored = journal.encode([(kinds.CREATED, journal.redacted(value))])
    if scope.redacted(state.input) != journal.decode(1, stored)[0][1]["input"]:
        msg = (
            f"Task {id_!r} was submitted with another input, which it keeps. Give a new task a new "
            "id; to submit the same one again, give it the same input."
        )
        raise GoalMismatch(msg)
    return head


async def signal(scope: Scope, id_: str, name: str, payload: Any, append_id: str | None) -> None:
    """Send *payload* to a task. If it waits for that, wake it, and what waits for it."""
    check_id(name, "signal")
    entry = (kinds.SIGNALLED, {"name": name, "payload": payload})
    with error_path("signalled['payload']", "payload"):
        head = await _append(scope, id_, entry, refused=_ENDED, append_id=append_id)
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


async def cancel(scope: Scope, id_: str, because: str | None, parent: str | None = None) -> None:
    """End a task without an outcome, and its children with it; it may be that of its *parent*."""
    value = {"because": because} if parent is None else {"because": because, "parent": parent}
    entry = (kinds.CANCELLED, value)
    await _append(scope, id_, entry, refused=(kinds.DONE,), status=kinds.CANCELLED)
    async for child in _children(scope, id_, (kinds.OPEN, kinds.WAITING)):
        with suppress(TaskFinished, TaskNotFound):
            await cancel(scope, child, because, id_)


async def resume(scope: Scope, id_: str) -> None:
    """Let a task go on that was paused, was cancelled, has failed, or waits.

    The children that were cancelled with it go on too.
    """
    entry = (kinds.RESUMED, {"agent": None})
    head = await _append(scope, id_, entry, refused=(kinds.DONE,), status=kinds.OPEN)
    if head.status == kinds.CANCELLED:
        async for child in _children(scope, id_, (kinds.CANCELLED,)):
            if (await read_state(scope.journal(KIND, child))).cancelled_with == id_:
                await resume(scope, child)
    await _wake_parent(scope, head)


def _children(scope: Scope, id_: str, statuses: Sequence[str]) -> AsyncIterator[str]:
    """The tasks that are steps of this one, of those that have one of these *statuses*."""
    return scope.list(
        KIND,
        lambda head: head.key.id,
        prefix=f"{id_}/",
        fits=lambda head: head.labels.get(kinds.PARENT) == id_ and head.status in statuses,
    )


async def _append(
    scope: Scope,
    id_: str,
    entry: tuple[str, Any],
    *,
    refused: Sequence[str],
    status: str | UnsetType = UNSET,
    append_id: str | None = None,
) -> Head:
    """Append *entry*, unless the task's status is *refused*; the head it was appended to.

    The *status* is then that. A signal changes it if the task waits for that signal.
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
        wakes = entry[0] == kinds.SIGNALLED and await _waits_for(journal, head, entry[1]["name"])
        to = kinds.OPEN if wakes else status
        try:
            await journal.append(entry, id=append_id, expect=head.expect, status=to)
        except IdReused:
            raise
        except Conflict:
            continue
        return head
    raise not_found(id_)


async def _waits_for(journal: AsyncJournal, head: Head, signal: str) -> bool:
    """Whether a task with this *head* stands still until *signal* comes."""
    if head.status != kinds.WAITING:
        return False
    return signal in (await read_state(journal, upto=head.seq)).signals_awaited()


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
    child = await scope.journal(KIND, head.key.id).head()
    if child is not None and child.status in kinds.HALTED:
        return  # a signal that it does not wait for
    above = await scope.journal(KIND, parent).head()
    if above is not None and above.status == kinds.WAITING:
        await resume(scope, parent)
