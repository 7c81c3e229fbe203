"""What `limpet doctor` reports of a Redis or Valkey store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.backends.contract import Fact, shown_size
from limpet.backends.redis.durability import advise, describe, weakest
from limpet.errors import NotDurable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from limpet.backends.contract import Head, Key, Record
    from limpet.backends.redis.durability import Barrier, Standing

__all__ = ["examine", "settings"]


def settings(
    standings: Sequence[Standing], promise: Barrier | NotDurable | None, shards: int, prefix: str
) -> list[Fact]:
    """What the servers say of themselves; *promise*: what writers get of them, or why nothing."""
    first = standings[0]
    version = ".".join(map(str, first.version))
    cluster = f", a cluster of {len(standings)}" if len(standings) > 1 else ""
    return [
        Fact("engine", f"{first.engine} {version}{cluster}"),
        Fact("keys", f"{prefix}:…" + (f", in {shards} hash slots" if shards > 1 else "")),
        _durability(standings, promise),
        *_replication(standings, promise),
        *_memory(standings),
    ]


def _durability(standings: Sequence[Standing], promise: Barrier | NotDurable | None) -> Fact:
    worst = weakest(standings)
    if isinstance(promise, NotDurable):
        advice = "Till then nobody can write to it by this URL. Or ask for less with durability=."
        return Fact("durability", str(promise), ok=False, advice=advice)
    if promise is not None and promise.disk:
        return Fact(
            "durability",
            "every acknowledged write survives power loss (each waits for WAITAOF)",
        )
    return Fact("durability", describe(worst), ok=worst.level == "full", advice=advise(worst))


def _replication(standings: Sequence[Standing], promise: Barrier | NotDurable | None) -> list[Fact]:
    known = [standing.replicas for standing in standings if standing.replicas is not None]
    if not any(known):
        return []
    waits = 0 if promise is None or isinstance(promise, NotDurable) else promise.replicas
    what = (
        f"each write waits for {waits}; a failover to another one can lose what it acknowledged"
        if waits
        else "a failover to one can lose the last writes that were acknowledged: they are copied "
        "afterwards (replicas=N waits for N of them)"
    )
    return [Fact("replicas", f"{sum(known)}; {what}")]


def _memory(standings: Sequence[Standing]) -> list[Fact]:
    if any(standing.used is None for standing in standings):
        return [Fact("memory", "unknown (INFO is not allowed)")]
    used = sum(standing.used or 0 for standing in standings)
    limit = sum(standing.limit or 0 for standing in standings)
    policies = sorted({standing.policy or "unknown" for standing in standings})
    return [
        Fact("memory", shown_size(used) + (f" of {shown_size(limit)}" if limit else ", no limit")),
        Fact(
            "eviction",
            ", ".join(policies) + ("" if limit else " (without a limit nothing is evicted)"),
            ok=not any(standing.evicts for standing in standings),
            advice="It drops data when memory is short: set maxmemory-policy noeviction.",
        ),
    ]


def examine(
    heads: Iterable[Head],
    head_of: Callable[[Key], Head | None],
    read: Callable[..., list[Record]],
) -> list[Fact]:
    """How much there is of each kind, and whether every journal has all its records."""
    totals: dict[str, list[int]] = {}
    found: list[str] = []
    for head in heads:
        total = totals.setdefault(head.key.kind, [0, 0, 0])
        for index, more in enumerate((1, head.seq - head.floor, head.size)):
            total[index] += more
        trouble = _trouble(head, read)
        if trouble:
            now = head_of(head.key)  # it may have been compacted or deleted meanwhile
            if now is not None and (now.created, now.floor) == (head.created, head.floor):
                found.append(f"{head.key.kind} {head.key.id!r} {trouble}")
    facts = [Fact.of_kind(kind, *sums) for kind, sums in sorted(totals.items())]
    advice = "Keys were lost or changed from outside. Restore the server from a backup."
    return [
        *facts,
        Fact("integrity", "; ".join(found[:5]) or "ok", ok=not found, advice=advice),
    ]


def _trouble(head: Head, read: Callable[..., list[Record]]) -> str:
    last, size = head.floor, 0
    while last < head.seq:
        page = read(head.key, after=last, upto=head.seq)
        for record in page:
            if record.seq - record.count != last:
                return f"lacks entries from {last + 1} on"
            last, size = record.seq, size + len(record.body)
        if not page:
            return f"lacks entries from {last + 1} on"
    return "" if size == head.size else f"has {size} bytes and should have {head.size}"
