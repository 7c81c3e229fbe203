"""Calls that began, and of which nobody knows whether they happened.

A step of a task, a tool that a model called, an approved call of a run: whoever makes one that must
not happen twice records that it *began* before it begins. When it has ended, its outcome is
recorded. If its process dies in between, the call is *in doubt*: it may have happened or not, and
only a policy, or a person, can say how to go on. A person's answer is recorded as *resolved*.

The calls that began and did not end are also in the meta of the journal's head, so that all that
is in doubt in a store is found by looking at heads, whatever kind of journal they are of.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
from msgspec import Struct, structs

from limpet.backends.contract import UNSET, from_micros
from limpet.backends.decide import holder_for_people
from limpet.core.leases import is_dead
from limpet.errors import Conflict, LeaseHeld, NotFound, Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from limpet.backends.contract import Head
    from limpet.core.scope import Scope

__all__ = [
    "BEGAN",
    "RESOLVED",
    "SKIPPED",
    "Answer",
    "Call",
    "CallInDoubt",
    "Ledger",
    "Resolution",
    "all_in_doubt",
    "calls_in_doubt",
    "check_answer",
    "kinds_in_doubt",
    "resolve_call",
    "unreadable_meta",
]

# Entry types of any journal that has calls.
BEGAN = "began"  # its body is a `Call`
RESOLVED = "resolved"  # its body is a `Resolution`

#: What a person may say of a call in doubt: it happened; make it (again); go on without it.
Answer = Literal["done", "retry", "skip"]
ANSWERS: tuple[str, ...] = get_args(Answer)

#: What a model reads in place of the result of a call that a person said to go on without.
SKIPPED = (
    "[limpet: this call was skipped, as a person decided. "
    "It is not known whether it took effect before that.]"
)


class Call(Struct, frozen=True, omit_defaults=True):
    """A call that began. ``id`` is unique among those of its journal that have not ended."""

    id: str
    name: str = ""  # of the tool or function, where the id does not say it
    agent: str = ""  # who made it, where there are several
    policy: str = ""  # what happens if it is in doubt, where it has a policy of its own
    attempt: int = 1
    error: str | None = None  # how its last attempt ended, if that was an error
    epoch: int = 0  # of the lease under which it began, if there was one
    of: str = ""  # what it is a part of, where that may be deleted before the journal is

    @property
    def title(self) -> str:
        """What to call it in a sentence."""
        return f"{self.name} ({self.id})" if self.name else self.id


class Resolution(Struct, frozen=True, omit_defaults=True):
    """What a person says of a call in doubt; *by* is who."""

    id: str
    how: Answer
    result: Any = None
    by: str | None = None


class Ledger:
    """The calls of one journal that began and did not end, as its entries tell of them.

    A call is *running* from when it began in this run until it fails or ends; it is *abandoned* if
    an earlier run has left it so: nobody who is at work now has seen what became of it. ``since``
    says when each began, where that is known.
    """

    def __init__(self, calls: Iterable[Call] = (), at: datetime | None = None) -> None:
        self.open: dict[str, Call] = {call.id: call for call in calls}
        self.running: set[str] = set()
        self.abandoned: set[str] = set(self.open)
        self.since: dict[str, datetime] = {} if at is None else dict.fromkeys(self.open, at)

    def __bool__(self) -> bool:
        return bool(self.open)

    def __contains__(self, id_: object) -> bool:
        return id_ in self.open

    def begin(self, call: Call, at: datetime | None = None) -> None:
        """*call* is about to be made."""
        self.open[call.id] = call
        if at is not None:
            self.since[call.id] = at
        self.running.add(call.id)
        self.abandoned.discard(call.id)

    def fail(self, id_: str, error: str) -> None:
        """An attempt has ended with *error*: whether the call happened is not known."""
        call = self.open.get(id_)
        if call is not None:
            self.open[id_] = structs.replace(call, error=error)
            self.running.discard(id_)
            self.abandoned.discard(id_)

    def end(self, id_: str) -> Call | None:
        """Its outcome is known, or it is to be made anew."""
        self.running.discard(id_)
        self.abandoned.discard(id_)
        self.since.pop(id_, None)
        return self.open.pop(id_, None)

    def abandon(self) -> None:
        """Whoever was at work is gone, and another takes over."""
        self.running.clear()
        self.abandoned = set(self.open)

    def copy(self) -> Ledger:
        """The same, as it is now."""
        twin = Ledger()
        twin.open, twin.since = dict(self.open), dict(self.since)
        twin.running, twin.abandoned = set(self.running), set(self.abandoned)
        return twin


# -- over all journals ---------------------------------------------------------------------------


class CallInDoubt(Struct, frozen=True):
    """A call in doubt, and the journal that it is in."""

    kind: str
    id: str
    call: Call


def calls_in_doubt(head: Head) -> list[Call]:
    """The calls of a journal that began and did not end, unless somebody is just making them.

    Whatever the kind of the journal: what a model keeps in the meta besides does not matter here.
    """
    if head.meta is None or b'"calls"' not in head.meta:
        return []
    try:
        calls = msgspec.json.decode(head.meta, type=_Calls).calls.values()
    except msgspec.DecodeError as error:
        raise unreadable_meta(head, error) from error
    return [call for call in calls if not _is_running(call, head)]


def unreadable_meta(head: Head, error: msgspec.DecodeError) -> Unreadable:
    """The meta of a journal's *head* cannot be read."""
    msg = (
        f"The head of {head.key.kind} {head.key.id!r} has a meta that cannot be read: {error}. "
        "`limpet doctor` finds all such journals."
    )
    return Unreadable(msg)


def _is_running(call: Call, head: Head) -> bool:
    """Whether whoever has the lease may be making *call*: it is theirs, and it did not fail."""
    if head.lease is None or call.error is not None or is_dead(head.lease.holder):
        return False
    return call.epoch in (0, head.lease.epoch)


class _Calls(Struct):
    """All that this module reads of a meta; see `limpet.core.meta`."""

    calls: dict[str, Call] = {}


async def all_in_doubt(scope: Scope) -> list[CallInDoubt]:
    """Every call in doubt of one tenant, in journals of whatever kind."""
    found: list[CallInDoubt] = []
    for tenant, kind in await scope.runtime.call(scope.backend.kinds):
        cursor: str | None = None
        while tenant == scope.tenant:
            page = await scope.runtime.call(scope.backend.scan, tenant, kind, cursor=cursor)
            for head in page.heads:
                found += (CallInDoubt(kind, head.key.id, call) for call in calls_in_doubt(head))
            cursor = page.cursor
            if cursor is None:
                break
    return found


async def kinds_in_doubt(scope: Scope, id_: str, call: str) -> list[str]:
    """The kinds whose journal *id_* has this *call* in doubt."""
    found = []
    for tenant, kind in await scope.runtime.call(scope.backend.kinds):
        head = await scope.journal(kind, id_).head() if tenant == scope.tenant else None
        # A head that cannot be read has no call that could be resolved.
        with suppress(Unreadable):
            if head is not None and any(one.id == call for one in calls_in_doubt(head)):
                found.append(kind)
    return found


async def resolve_call(
    scope: Scope,
    kind: str,
    id_: str,
    resolution: Resolution,
    *,
    wakes: Mapping[str, str] | None = None,
) -> Head:
    """Record what a person says of a call in doubt; whoever goes on with the journal heeds it.

    *wakes* says which status becomes which other by that. Returns the head that there was before.
    """
    check_answer(resolution.how, resolution.result)
    journal = scope.journal(kind, id_)
    while True:
        head = await journal.head()
        if head is None:
            raise NotFound(f"There is no {kind} {id_!r} (or it has expired).")
        try:
            calls = msgspec.json.decode(head.meta or b"{}", type=_Calls).calls
        except msgspec.DecodeError as error:
            raise unreadable_meta(head, error) from error
        if resolution.id not in calls:
            known = ", ".join(calls) or "none"
            msg = f"{resolution.id!r} of {kind} {id_!r} is not in doubt. In doubt: {known}."
            raise NotFound(msg)
        call = calls[resolution.id]
        if head.lease is not None and _is_running(call, head):
            holder = holder_for_people(head.lease.holder)
            msg = (
                f"{call.id!r} of {kind} {id_!r} is running, by {holder}. Say what became of it "
                "when it has ended, or when that worker's lease has."
            )
            raise LeaseHeld(msg, holder, from_micros(head.lease.until), head.lease.epoch)
        # What the model of that kind has in the meta besides stays as it is.
        meta = msgspec.json.decode(head.meta or b"{}")
        del meta["calls"][call.id]
        if not meta["calls"]:
            del meta["calls"]
        if "others" in meta:  # which the entry below is one of
            meta["others"] += 1
        entry = (RESOLVED, {k: v for k, v in structs.asdict(resolution).items() if v is not None})
        try:
            status = (wakes or {}).get(head.status or "", UNSET)
            encoded = msgspec.json.encode(meta) if meta else None
            await journal.append(entry, expect=head.expect, status=status, meta=encoded)
        except Conflict:
            continue
        return head


def check_answer(how: str, result: Any, what: str = "call") -> None:
    """`ValueError`, if a call cannot be resolved like that; *what* is what errors call it."""
    if how not in ANSWERS:
        msg = f"A {what} in doubt is resolved as one of {', '.join(ANSWERS)}; not {how!r}."
        raise ValueError(msg)
    if result is not None and how != "done":
        raise ValueError(f"Only a {what} that is done has a result; this one is {how!r}.")
