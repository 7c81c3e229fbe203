"""Forgetting: what is meant, what goes with it, and how it goes.

First memories, then texts in other journals, then journals with nothing named last: what is named
is what the rest is found by. So whoever is cut short gives the same command again, and it finishes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.backends.contract import Head, Key, from_micros
from limpet.backends.decide import holder_for_people
from limpet.backends.logs import warn
from limpet.conversations.conversation import KIND as CONVERSATION
from limpet.conversations.transcript import COPIED, FORKED
from limpet.core.ids import OWN, written_out
from limpet.core.leases import is_dead
from limpet.core.text_index import forget_journal
from limpet.erasure.mentions import UNREADABLE, Mentions
from limpet.erasure.receipt import Digests, Erasure, Gone, Mention
from limpet.errors import LeaseHeld, LimpetError, StoreCorrupt, Unreadable
from limpet.memory.forget import same_name
from limpet.memory.memory import KIND as MEMORY
from limpet.states.format import KIND as STATE
from limpet.tasks.entries import FORKING, PARENT
from limpet.tasks.entries import KIND as TASK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from limpet.backends.contract import Expect
    from limpet.core.scope import Scope
    from limpet.errors import StoreError
    from limpet.memory.memory import AsyncMemory
    from limpet.memory.results import Receipt

__all__ = [
    "RULES",
    "Chosen",
    "all_heads",
    "delete_journal",
    "forget",
    "goes_with",
    "holder_of",
    "rule_of",
]

THREAD = "thread"  # of LangGraph's, whose package need not be there
#: How a thread's id is written out that cannot be one as it is.
THREAD_PREFIX = "thread-id:"

#: What can be named, and the kind of journal that it is; None: several.
RULES: dict[str, str | None] = {
    "conversation": CONVERSATION,
    "task": TASK,
    "state": STATE,
    "thread": THREAD,
    "session": None,
    "source": None,
    "label": None,
    "subject": None,
}

NAMED, RESULTS, CHILD, FORK = "named", "belongs to it", "a step of it", "a copy of it"
LABELLED = "its label or id names the subject"

PAGE = 256


def rule_of(selectors: Mapping[str, str | Mapping[str, str] | None]) -> tuple[str, str]:
    """The one selector that is given, and its value; `ValueError` if that is not one."""
    given = {name: value for name, value in selectors.items() if value is not None}
    if len(given) != 1:
        names = ", ".join(f"{name}=" for name in RULES)
        raise ValueError(f"Say what to forget, by one of {names}.")
    ((rule, value),) = given.items()
    if isinstance(value, Mapping):
        if len(value) != 1:
            raise ValueError("label= takes one label: 'name=value', or {'name': 'value'}.")
        value = "=".join(next(iter(value.items())))
    if not value.strip():
        raise ValueError(f"{rule}= takes text that is not empty.")
    return rule, value


class Chosen(Struct, frozen=True):
    """A journal that is to go, and why."""

    head: Head
    why: str


async def forget(
    scope: Scope, rule: str, value: str, *, dry_run: bool, forks: bool, by: str | None
) -> Erasure:
    """Forget all that the *rule* says of *value*; with *dry_run*, say what that would be."""
    call, backend = scope.runtime.call, scope.backend
    digests = Digests()
    damaged: list[Key] = []
    heads = await all_heads(scope, damaged)
    chosen = [] if rule == "source" else await _choose(scope, heads, rule, value, forks=forks)
    if not dry_run:
        _check_free(chosen)
    memories = await _memories(scope, heads, chosen, (rule, value), damaged, dry_run=dry_run)
    for ids in memories.values():
        for id_ in ids:
            digests.add_name(id_)
    mentions = [Mention(*key[1:], 1, UNREADABLE) for key in damaged]
    if rule == "subject":
        finder = Mentions(scope, value)
        passed = {*damaged, *(one.head.key for one in chosen)}
        for head in [*heads, *await all_heads(scope, damaged, own=True)]:
            if head.key not in passed:
                mentions += await finder.replace(
                    head,
                    digests,
                    dry_run=dry_run,
                    held=holder_of(head) is not None,
                    gone=memories.get(head.key.id, ()),
                )
    gone = []
    for one in reversed(chosen):  # what is named comes last
        await _add_records(scope, one.head, digests)
        if not dry_run:
            await delete_journal(scope, one.head)
        entries = one.head.seq - (one.head.first - 1)
        gone.append(Gone(*one.head.key[1:], entries, one.head.size, one.why))
    scrubbed = False if dry_run else await call(backend.scrub)
    return Erasure(
        rule=rule,
        value=value,
        journals=tuple(reversed(gone)),
        memories=memories,
        mentions=tuple(mentions),
        scrubbed=scrubbed,
        remains=(*backend.keeps, *_INDEXES),
        salt=digests.salt,
        named=digests.of(value),
        digest=digests.digest,
        store=backend.url.partition(":")[0],
        tenant=scope.tenant,
        by=by,
        at=None if dry_run else datetime.now(UTC),
    )


_INDEXES = (
    "Indexes on other machines lose it when they next look; of tasks, when they are made anew.",
    "What programs hold in memory, have logged, or have sent to a model is not reached.",
)


async def all_heads(scope: Scope, damaged: list[Key], *, own: bool = False) -> list[Head]:
    """The heads of all that one tenant has, but for what the store keeps for itself; or of that.

    What cannot be listed is added to *damaged*.
    """
    backend, found = scope.backend, list[Head]()
    broken: list[tuple[Key, StoreError]] = []
    for tenant, kind in await scope.runtime.call(backend.kinds):
        if tenant == scope.tenant and kind.startswith(OWN) == own:
            heads = partial(backend.heads, tenant, kind, damaged=broken)
            found += await scope.runtime.call(lambda heads: list(heads()), heads)
    damaged += [key for key, _ in broken]
    return found


# -- what is meant ---------------------------------------------------------------------------------


async def _choose(
    scope: Scope, heads: list[Head], rule: str, value: str, *, forks: bool
) -> list[Chosen]:
    """The journals that go whole: what is named first, then what goes with it."""
    is_named = _named_by(rule, value)
    why = LABELLED if rule == "subject" else NAMED
    chosen = {head.key: Chosen(head, why) for head in heads if is_named(head)}
    origins = await _origins(scope, heads) if forks and chosen else {}
    size = -1
    while size < len(chosen):  # a child has children, and a fork results
        size = len(chosen)
        for head in heads:
            if head.key not in chosen and (also := goes_with(head, chosen, origins)):
                chosen[head.key] = Chosen(head, also)
    return list(chosen.values())


def _named_by(rule: str, value: str) -> Callable[[Head], bool]:
    if rule == "label":
        # Both may have an equals sign in them.
        return lambda head: (
            value in head.labels or value in {"=".join(label) for label in head.labels.items()}
        )
    if rule == "subject":
        return lambda head: (
            same_name(head.key.id, value)
            or any(same_name(label, value) for label in head.labels.values())
        )
    ids = {value, written_out(value, THREAD_PREFIX)} if rule in ("thread", "session") else {value}
    kind = RULES[rule]
    return lambda head: (
        head.key.id in ids and (head.key.kind == kind or (kind is None and head.key.kind != MEMORY))
    )


def goes_with(head: Head, chosen: Mapping[Key, Chosen], origins: Mapping[Key, str]) -> str | None:
    """Why *head* goes with what is *chosen*; None if it does not."""
    tenant, kind, id_ = head.key
    owner = kind.rpartition("-")[0]
    if owner and Key(tenant, owner, id_) in chosen:
        return RESULTS
    parent = head.labels.get(PARENT)
    if kind == TASK and parent is not None and Key(tenant, TASK, parent) in chosen:
        return CHILD
    origin = origins.get(head.key)
    return FORK if origin is not None and Key(tenant, kind, origin) in chosen else None


async def _origins(scope: Scope, heads: Iterable[Head]) -> dict[Key, str]:
    """What each journal that is a fork was forked from."""
    found: dict[Key, str] = {}
    for head in heads:
        if head.key.kind not in (CONVERSATION, TASK):
            continue
        journal = scope.journal(head.key.kind, head.key.id)
        after = head.first - 1
        try:
            while page := await journal.page(after=after, upto=head.seq, limit=PAGE):
                entries = [entry for record in page for entry in journal.entries(record)]
                origin = next((e.body for e in entries if e.type in (FORKING, FORKED)), None)
                if isinstance(origin, dict) and isinstance(origin.get("from"), str):
                    found[head.key] = origin["from"]
                # A fork begins with its origin, or with what was copied of it.
                if origin is not None or entries[-1].type != COPIED:
                    break
                after = page[-1].seq
        except LimpetError as error:
            warn("%s %r cannot be read, and may be a copy: %s", head.key.kind, head.key.id, error)
    return found


def holder_of(head: Head) -> str | None:
    """Who works on it, if anybody does."""
    if head.lease is None or is_dead(head.lease.holder):
        return None
    return holder_for_people(head.lease.holder)


def _check_free(chosen: list[Chosen]) -> None:
    for one in chosen:
        holder, lease = holder_of(one.head), one.head.lease
        if holder is not None and lease is not None:
            until = from_micros(lease.until)
            msg = (
                f"{one.head.key.kind} {one.head.key.id!r} is worked on by {holder}, and nothing "
                "was forgotten. Stop that first, or forget again when it has ended."
            )
            raise LeaseHeld(msg, holder, until, lease.epoch)


# -- how it goes -----------------------------------------------------------------------------------


async def _memories(
    scope: Scope,
    heads: list[Head],
    chosen: list[Chosen],
    named: tuple[str, str],
    damaged: list[Key],
    *,
    dry_run: bool,
) -> dict[str, tuple[str, ...]]:
    """Forget what was remembered of it: the ids, by namespace. Add what is *damaged*."""
    rule, value = named
    going = {one.head.key for one in chosen}
    sources = [one.head.key for one in chosen if one.why != RESULTS]
    filters = [{"source": source} for key in sources for source in (key.id, f"{key.kind}/{key.id}")]
    if rule in ("source", "subject"):
        filters.append({rule: value})
    elif rule in ("conversation", "task", "state", "thread", "session"):
        filters += [{"source": value}, {"source": f"{rule}/{value}"}]  # though it may be gone
    distinct = {tuple(one.items()): one for one in filters}.values()
    found: dict[str, tuple[str, ...]] = {}
    for head in heads:
        if head.key.kind != MEMORY or head.seq < head.first:
            continue
        memory: AsyncMemory = scope.memory(head.key.id)
        ids: dict[str, None] = {}
        try:
            if head.key in going:
                everything = [one.id for one in await memory.list(superseded=True)]
                ids |= dict.fromkeys(everything)
                if everything and not dry_run:
                    await memory.forget(*everything)
            else:
                act = memory.would_forget if dry_run else memory.forget
                for one in distinct:
                    gone: Receipt = await act(source=one.get("source"), subject=one.get("subject"))
                    ids |= dict.fromkeys(gone.ids)
        except (StoreCorrupt, Unreadable):  # which keeps nothing else from being forgotten
            damaged.append(head.key)
        if ids:
            found[head.key.id] = tuple(ids)
    return found


async def _add_records(scope: Scope, head: Head, digests: Digests) -> None:
    """Let the receipt's digest be of every record that goes, as far as it can be read."""
    call, after = scope.runtime.call, head.first - 1
    with suppress(StoreCorrupt, Unreadable):
        while page := await call(scope.backend.read, head.key, after=after, limit=PAGE):
            for record in page:
                digests.add(head.key, record)
            after = page[-1].seq


async def delete_journal(scope: Scope, head: Head, *, expect: Expect | None = None) -> None:
    """Delete it, and what the local index has of it; `Conflict` if it is not as *expect* says."""
    await scope.journal(head.key.kind, head.key.id).delete(expect=expect)
    await scope.runtime.call(forget_journal, scope.backend, head.key)
