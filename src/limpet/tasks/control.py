"""What is said to a task from outside: it is there, go on, stop, this has happened.

None of it needs the lease. Each is one append at the position that was read, so two who speak at
once are both heard, one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import UNSET, UnsetType

from limpet.backends.contract import Record, from_micros
from limpet.backends.decide import holder_for_people
from limpet.core.ids import check_id
from limpet.core.leases import is_dead
from limpet.errors import (
    Conflict,
    GoalMismatch,
    IdReused,
    TaskFinished,
    TaskHeld,
    TaskNotFound,
    TaskNotOpen,
)
from limpet.tasks import entries as kinds
from limpet.tasks.core import KIND, folded
from limpet.tasks.steps import called

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal
    from limpet.core.scope import Scope
    from limpet.tasks.terms import Terms

__all__ = ["Answer", "cancel", "pause", "resolve", "resume", "signal", "submit"]

_ENDED = (kinds.DONE, kinds.FAILED, kinds.CANCELLED)

#: What a person may say of a step in doubt.
Answer = Literal["done", "retry", "skip"]
ANSWERS: tuple[Answer, ...] = get_args(Answer)


async def submit(scope: Scope, kind: str, id_: str, terms: Terms, given: Any) -> Head:
    """Create an open task that a worker will find; one that is there already is left alone."""
    check_id(kind, "kind of task", 128)
    journal = scope.journal(KIND, id_)
    body = {**terms.created(), "kind": kind, "input": given}
    while (head := await journal.head()) is None:
        try:
            with called("created['input']", "input"):
                await journal.append(
                    (kinds.CREATED, body),
                    expect=0,
                    status=kinds.OPEN,
                    labels={**terms.labelled(), kinds.RUN: kind},
                    ttl=terms.ttl,
                )
        except Conflict:
            continue
    state = await folded(journal, upto=1)
    if (state.goal, state.kind) != (terms.goal, kind):
        msg = (
            f"There is a task {id_!r} already: a {state.kind or 'task of no kind'} with the goal "
            f"{state.goal!r}. Give a new task a new id."
        )
        raise GoalMismatch(msg)
    if state.input != _as_stored(journal, body):
        msg = (
            f"Task {id_!r} was submitted with another input, which it keeps. Give a new task a new "
            "id; to submit the same one again, give it the same input."
        )
        raise GoalMismatch(msg)
    return head


def _as_stored(journal: AsyncJournal, body: dict[str, Any]) -> Any:
    """The input that *body* has, as it is read back."""
    with called("created['input']", "input"):
        stored = journal.encode([(kinds.CREATED, body)])
    return journal.entries(Record(1, 1, 0, stored))[0].body["input"]


async def signal(scope: Scope, id_: str, name: str, payload: Any, append_id: str | None) -> None:
    """Send *payload* to a task, and wake it, and what waits for it."""
    check_id(name, "signal")
    with called("signalled['payload']", "payload"):
        head = await _say(
            scope,
            id_,
            (kinds.SIGNALLED, {"name": name, "payload": payload}),
            refused=_ENDED,
            wakes=(kinds.WAITING,),
            append_id=append_id,
        )
    await _wake_parent(scope, head)


async def resolve(
    scope: Scope, id_: str, step: str, how: str, *, result: Any, by: str | None
) -> None:
    """Record what a person says of a step in doubt."""
    if how not in ANSWERS:
        raise ValueError(
            f"A step in doubt is resolved as one of {', '.join(ANSWERS)}; not {how!r}."
        )
    if result is not None and how != "done":
        raise ValueError(f"Only a step that is done has a result; this one is {how!r}.")
    journal = scope.journal(KIND, id_)
    state = await folded(journal)
    head = await journal.head()
    if not state.exists or head is None:
        raise _not_found(id_)
    if step in state.under_way and head.lease is not None and not is_dead(head.lease.holder):
        msg = (
            f"Step {step!r} of task {id_!r} is running, by {holder_for_people(head.lease.holder)}. Say "
            "what became of it when it has ended, or when that worker's lease has."
        )
        raise TaskHeld(msg, head.lease.holder, from_micros(head.lease.until), head.lease.epoch)
    if step not in state.in_doubt:
        known = ", ".join(state.in_doubt) or "none"
        msg = f"Step {step!r} of task {id_!r} is not in doubt. In doubt: {known}."
        raise TaskNotOpen(msg)
    body = {"name": step, "how": how, "result": result, "by": by}
    with called("resolved['result']", "result"):
        head = await _say(
            scope,
            id_,
            (kinds.RESOLVED, body),
            refused=(kinds.DONE,),
            wakes=(kinds.WAITING,),
            append_id=None,
        )
    await _wake_parent(scope, head)


async def pause(scope: Scope, id_: str, because: str | None) -> None:
    """Let nobody work on a task until it is resumed."""
    entry = (kinds.PAUSED, {"because": because})
    await _say(scope, id_, entry, refused=_ENDED, status=kinds.PAUSED)


async def cancel(scope: Scope, id_: str, because: str | None) -> None:
    """End a task without an outcome."""
    entry = (kinds.CANCELLED, {"because": because})
    await _say(scope, id_, entry, refused=(kinds.DONE,), status=kinds.CANCELLED)


async def resume(scope: Scope, id_: str) -> None:
    """Let a task go on that was paused, was cancelled, has failed, or waits."""
    entry = (kinds.RESUMED, {"agent": None})
    head = await _say(scope, id_, entry, refused=(kinds.DONE,), status=kinds.OPEN)
    await _wake_parent(scope, head)


async def _say(
    scope: Scope,
    id_: str,
    entry: tuple[str, Any],
    *,
    refused: Sequence[str],
    status: str | UnsetType = UNSET,
    wakes: Sequence[str] = (),
    append_id: str | None = None,
) -> Head:
    """Append *entry*; the head it was appended to. Its status decides whether it can be."""
    journal = scope.journal(KIND, id_)
    while (head := await journal.head()) is not None:
        if head.status == kinds.FORKING:
            msg = f"Task {id_!r} is half a fork. Finish it by the same fork() again."
            raise TaskNotOpen(msg)
        if head.status in refused:
            if append_id is not None and await _said(journal, entry, append_id):
                return head
            msg = f"Task {id_!r} is {head.status}, so it cannot be {entry[0]}."
            raise TaskFinished(msg)
        to = kinds.OPEN if head.status in wakes else status
        try:
            await journal.append(entry, id=append_id, expect=head.seq, status=to)
        except Conflict as error:
            if append_id is not None and type(error) is not Conflict:
                raise  # the id was used for something else
            continue
        return head
    raise _not_found(id_)


async def _said(journal: AsyncJournal, entry: tuple[str, Any], append_id: str) -> bool:
    """Whether *entry* was appended under this id before: a repetition comes late, not wrong."""
    try:
        await journal.append(entry, id=append_id, expect=0)  # appends nothing: there is an entry
    except IdReused:
        raise
    except Conflict:
        return False
    return True


async def _wake_parent(scope: Scope, head: Head) -> None:
    """A child's news are news for the task that waits for it."""
    parent = head.labels.get(kinds.PARENT)
    if parent is None:
        return
    above = await scope.journal(KIND, parent).head()
    if above is not None and above.status == kinds.WAITING:
        await resume(scope, parent)


def _not_found(id_: str) -> TaskNotFound:
    return TaskNotFound(f"There is no task {id_!r} (or it has expired).")
