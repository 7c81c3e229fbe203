"""What the head of a journal says: the facts of it that no reading is needed for."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.backends.contract import Head, Key, from_micros
from limpet.backends.decide import holder_for_people
from limpet.core.calls import Call, calls_in_doubt
from limpet.core.ids import check_id, make_key
from limpet.core.leases import is_dead, is_on_this_machine
from limpet.errors import NotFound, StoreError, Unreadable
from limpet.states.format import KIND as STATE
from limpet.states.format import StateMeta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet.core.scope import Scope

__all__ = ["HeadView", "HeadsSlice", "Holder", "head_of", "kinds_of", "scan_heads"]

#: Heads that one request to the backend asks for.
REQUEST = 1_000

DAMAGED = "damaged: see limpet doctor"


class Holder(Struct, frozen=True):
    """Who has the lease on a journal, and whether that process lives (None: on another machine)."""

    name: str
    until: datetime
    alive: bool | None


class HeadView(Struct, frozen=True):
    """A journal without its entries."""

    kind: str
    id: str
    status: str  # "" where it has none; of a state its version
    labels: dict[str, str]
    first: int  # number of the oldest entry that is there
    seq: int  # number of the newest entry
    size: int
    created: datetime
    updated: datetime
    expires: datetime | None
    holder: Holder | None
    doubts: list[Call]
    incarnation: str
    damaged: bool  # the meta cannot be read
    type: str | None = None  # of a state: what its document says that it is

    @classmethod
    def of(cls, head: Head) -> HeadView:
        """The view of *head*."""
        status, doubts, damaged, type_ = head.status or "", [], False, None
        try:
            doubts = calls_in_doubt(head)
            if head.key.kind == STATE:
                meta = StateMeta.of(head)
                type_ = meta.type
                status = status if meta.version is None else f"version {meta.version}"
        except Unreadable:
            status, damaged = DAMAGED, True
        return cls(
            kind=head.key.kind,
            id=head.key.id,
            status=status,
            labels=head.labels,
            first=head.first,
            seq=head.seq,
            size=head.size,
            created=from_micros(head.created),
            updated=from_micros(head.updated),
            expires=head.expires_at,
            holder=_holder(head),
            doubts=doubts,
            incarnation=head.incarnation,
            damaged=damaged,
            type=type_,
        )

    @property
    def entries(self) -> int:
        """How many entries are there."""
        return self.seq - (self.first - 1)

    @property
    def held(self) -> bool:
        """Whether somebody may be at work on it: who has the lease is not known to be dead."""
        return self.holder is not None and self.holder.alive is not False


def _holder(head: Head) -> Holder | None:
    if head.lease is None:
        return None
    name = head.lease.holder
    alive = not is_dead(name) if is_on_this_machine(name) else None
    return Holder(holder_for_people(name), from_micros(head.lease.until), alive)


async def head_of(scope: Scope, kind: str, id_: str) -> Head:
    """The head of a journal; `NotFound` if there is none."""
    head = await scope.runtime.call(scope.backend.head, make_key(scope.tenant, kind, id_))
    if head is None:
        raise NotFound(f"There is no {kind} {id_!r} (or it has expired).")
    return head


async def kinds_of(scope: Scope) -> list[str]:
    """The kinds of which the tenant has journals."""
    pairs = await scope.runtime.call(scope.backend.kinds)
    return [kind for tenant, kind in pairs if tenant == scope.tenant]


class HeadsSlice(Struct, frozen=True):
    """Some heads, and where to go on: *after* is None at the end."""

    heads: list[Head]
    damaged: list[tuple[Key, StoreError]]
    after: str | None


async def scan_heads(
    scope: Scope,
    kinds: Sequence[str],
    *,
    after: str | None = None,
    most: int = REQUEST,
    prefix: str = "",
    status: str | None = None,
    labels: dict[str, str] | None = None,
) -> HeadsSlice:
    """The next heads of *kinds*, in this order, at most *most*: bounded, however many there are.

    *after* is that of the slice before, and may come from a link.
    """
    heads: list[Head] = []
    damaged: list[tuple[Key, StoreError]] = []
    kind, _, cursor = (after or "").partition("/")
    left = list(kinds)
    if after is not None:
        if kind not in left:
            raise ValueError("There is nothing to go on from: begin again.")
        del left[: left.index(kind)]
        if cursor:
            check_id(cursor, "place to go on from")
    while left and len(heads) < most:
        page = await scope.runtime.call(
            scope.backend.scan,
            scope.tenant,
            left[0],
            prefix=prefix,
            status=status,
            labels=labels,
            cursor=cursor or None,
            limit=min(REQUEST, most - len(heads)),
        )
        heads += page.heads
        damaged += page.damaged
        cursor = page.cursor or ""
        if not cursor:
            del left[0]
    return HeadsSlice(heads, damaged, f"{left[0]}/{cursor}" if left else None)
