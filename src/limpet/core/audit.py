"""Who did what through commands, the inspector and MCP: an optional journal, chained by hash.

Each act names the hash of the one before it, so that none can be changed, removed or put between
others unnoticed. Whoever can write to the store can make the whole chain anew, or cut off its end:
the last hash, kept elsewhere, shows that too. An act says nothing of any content.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from limpet.core.journal import MALFORMED
from limpet.errors import Conflict, StoreCorrupt, Unreadable

if TYPE_CHECKING:
    from limpet.core.journal import AsyncJournal
    from limpet.core.scope import Scope

__all__ = ["KIND", "Act", "Verified", "acts", "begin", "is_on", "record", "verify"]

KIND = "limpet-audit"
ID = "acts"

ACT = "act"
BEGUN = "began to record"

#: How often another writer may come first.
TRIES = 100


class Act(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One act: *what* was done to the journal *kind*/*id*, through what, and by whom."""

    at: str
    what: str
    via: str  # "command", "inspector", "mcp"
    who: str | None = None
    kind: str | None = None
    id: str | None = None
    #: Figures and digests: how many, by which rule.
    about: dict[str, Any] | None = None
    previous: str = ""
    hash: str = ""

    def computed_hash(self) -> str:
        """What its hash is to be."""
        plain = msgspec.structs.replace(self, hash="")
        return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()


class Verified(Struct, frozen=True):
    """What `verify` has found: how many acts hold, the last hash, and what is wrong."""

    acts: int
    last: str
    problem: str | None = None


def _journal(scope: Scope) -> AsyncJournal:
    # Without a time to live of the store's, and with nothing redacted: an act is as it was.
    return scope.journal(KIND, ID, ttl=None, redactor=None)


async def is_on(scope: Scope) -> bool:
    """Whether acts are recorded in this store, for this tenant."""
    return await _journal(scope).head() is not None


async def begin(scope: Scope, *, via: str, who: str | None) -> None:
    """Record acts from now on; nothing, if they are recorded already."""
    if not await is_on(scope):
        await _append(scope, Act(at=_now(), what=BEGUN, via=via, who=who))


async def record(
    scope: Scope,
    what: str,
    *,
    via: str,
    who: str | None,
    kind: str | None = None,
    id: str | None = None,
    about: dict[str, Any] | None = None,
) -> None:
    """Record an act, durably; nothing where none are recorded."""
    if await is_on(scope):
        act = Act(at=_now(), what=what, via=via, who=who, kind=kind, id=id, about=about)
        await _append(scope, act)


async def _append(scope: Scope, act: Act) -> None:
    journal = _journal(scope)
    for _ in range(TRIES):
        head = await journal.head()
        before = "" if head is None else (await _last(journal)).hash
        chained = msgspec.structs.replace(act, previous=before)
        chained = msgspec.structs.replace(chained, hash=chained.computed_hash())
        try:
            await journal.append(
                (ACT, msgspec.to_builtins(chained)), expect=0 if head is None else head.expect
            )
        except Conflict:
            continue
        return
    raise Conflict("An act could not be recorded: others are always first.", 0, 0)


async def _last(journal: AsyncJournal) -> Act:
    for entry in await journal.read(limit=1, reverse=True):
        return journal.understand(entry, lambda one: msgspec.convert(one.body, Act))
    raise StoreCorrupt(
        "The journal of acts has no entry that can be read: see `limpet audit verify`."
    )


async def acts(scope: Scope, *, last: int | None = None) -> list[Act]:
    """All acts, oldest first; or the *last* few."""
    journal = _journal(scope)
    found = await journal.read(limit=last, reverse=True)
    return [
        journal.understand(entry, lambda one: msgspec.convert(one.body, Act))
        for entry in reversed(found)
    ]


async def verify(scope: Scope, *, last: str | None = None) -> Verified:
    """Whether every act is as it was recorded, in its place, with none missing.

    *last*: a hash that was noted earlier; it must still be one of them.
    """
    journal = _journal(scope)
    head = await journal.head()
    count, previous, seen = 0, "", last is None
    if head is None or head.first != 1:
        gone = head is not None or not seen
        return Verified(0, "", "Acts were removed from the beginning." if gone else None)
    problem: str | None = None
    try:
        async for page in journal.pages():
            for entry in page:
                act = msgspec.convert(entry.body, Act)
                if act.previous != previous:
                    problem = f"Act {entry.seq:,} does not follow from the one before it."
                elif act.hash != act.computed_hash():
                    problem = f"Act {entry.seq:,} is not what was recorded."
                if problem is not None:
                    return Verified(count, previous, problem)
                count, previous = count + 1, act.hash
                seen = seen or act.hash == last
    except (*MALFORMED, Unreadable, StoreCorrupt) as error:
        problem = f"What is behind act {count:,} cannot be read: {error}"
    if problem is None and not seen:
        problem = f"No act has the hash {last}: some were removed."
    return Verified(count, previous, problem)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
