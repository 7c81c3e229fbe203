"""What `limpet doctor` reports of a Redis or Valkey store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.backends.facts import Fact, human_size
from limpet.backends.redis.durability import weakest
from limpet.errors import NotDurable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from limpet.backends.contract import Backend, Head
    from limpet.backends.redis.durability import Durability, Standing
    from limpet.backends.redis.layout import Keys

__all__ = ["journal_facts", "server_facts"]


def server_facts(
    standings: Sequence[Standing], durability: Durability, keys: Keys
) -> Iterator[Fact]:
    """What the servers say of themselves, and how safe that makes a write."""
    version = ".".join(map(str, standings[0].version))
    cluster = f", a cluster of {len(standings)}" if len(standings) > 1 else ""
    slots = f", in {keys.shards} hash slots" if keys.shards > 1 else ""
    yield Fact("engine", f"{standings[0].engine} {version}{cluster}")
    yield Fact("keys", f"{keys.prefix}:…{slots}")
    yield _durability(standings, durability)

    replicas = sum(standing.replicas or 0 for standing in standings)
    if replicas:
        risk = (
            f"each write waits for {durability.replicas}; a failover to another one can lose what "
            "it acknowledged"
            if durability.replicas
            else "a failover to one can lose the last writes that were acknowledged: they are "
            "copied afterwards (replicas=N waits for N of them)"
        )
        yield Fact("replicas", f"{replicas}; {risk}")

    if any(standing.used is None for standing in standings):
        yield Fact("memory", "unknown (INFO is not allowed)")
        return
    used = human_size(sum(standing.used or 0 for standing in standings))
    limit = sum(standing.limit or 0 for standing in standings)
    policies = ", ".join(sorted({standing.policy or "unknown" for standing in standings}))
    yield Fact("memory", f"{used} of {human_size(limit)}" if limit else f"{used}, no limit")
    yield Fact(
        "eviction",
        policies if limit else f"{policies} (without a limit nothing is evicted)",
        ok=not any(standing.evicts for standing in standings),
        advice="It drops data when memory is short: set maxmemory-policy noeviction.",
    )


def _durability(standings: Sequence[Standing], durability: Durability) -> Fact:
    try:
        for standing in standings:
            durability.confirmation(standing)
    except NotDurable as refusal:
        advice = "Till then nobody can write to it by this URL. Or ask for less with durability=."
        return Fact("durability", str(refusal), ok=False, advice=advice)
    worst = weakest(standings)
    return Fact("durability", worst.loss, ok=worst.level == "full", advice=worst.advice)


def journal_facts(backend: Backend, heads: Iterable[Head]) -> Iterator[Fact]:
    """How much there is of each kind, and whether every journal has all its records."""
    totals: dict[str, list[int]] = {}
    found: list[str] = []
    for head in heads:
        total = totals.setdefault(head.key.kind, [0, 0, 0])
        for index, more in enumerate((1, head.seq - head.first + 1, head.size)):
            total[index] += more
        damage = _damage(backend, head)
        if damage:
            now = backend.head(head.key)  # it may have been compacted or deleted meanwhile
            if now is not None and (now.incarnation, now.first) == (head.incarnation, head.first):
                found.append(f"{head.key.kind} {head.key.id!r} {damage}")
    for kind, sums in sorted(totals.items()):
        yield Fact.of_kind(kind, *sums)
    yield Fact(
        "integrity",
        "; ".join(found[:5]) or "ok",
        ok=not found,
        advice="Keys were lost or changed from outside. Restore the server from a backup of its "
        "own; or `limpet restore BACKUP` to an empty prefix or server.",
    )


def _damage(backend: Backend, head: Head) -> str:
    """What is wrong with the records of the journal; "" if nothing is."""
    last, size = head.first - 1, 0
    while last < head.seq:
        page = backend.read(head.key, after=last, upto=head.seq)
        for record in page:
            if record.seq - record.count != last:
                return f"lacks entries from {last + 1} on"
            last, size = record.seq, size + len(record.body)
        if not page:
            return f"lacks entries from {last + 1} on"
    return "" if size == head.size else f"has {size} bytes and should have {head.size}"
