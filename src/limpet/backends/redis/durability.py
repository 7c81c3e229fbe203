"""How safe a write is on a server: what it says of itself, and what we can ask of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from redis.exceptions import ResponseError

from limpet.backends.redis.errors import Unconfirmed
from limpet.backends.redis.wire import Node, Word, packed
from limpet.errors import NotDurable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Barrier", "Standing", "advise", "choose", "describe", "survey", "weakest"]

#: From the least to the most. Servers that are rented may not say: unknown.
LEVELS = ("none", "unknown", "second", "full")

_SETTINGS = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite")


class Standing(Struct, frozen=True):
    """What one server says of itself; None where it may not be asked."""

    engine: str
    version: tuple[int, ...]
    logged: bool | None  # appendonly
    synced: str | None  # appendfsync
    gaps: bool  # not while it rewrites its log
    replicas: int | None
    used: int | None
    limit: int | None  # of memory; 0 for none
    policy: str | None

    @property
    def level(self) -> str:
        """What an acknowledged write has become."""
        if self.logged is False or self.synced == "no":
            return "none"
        if self.logged is None or self.synced is None:
            return "unknown"
        return "full" if self.synced == "always" and not self.gaps else "second"

    @property
    def evicts(self) -> bool:
        """Whether it drops data when memory is short."""
        return bool(self.limit) and self.policy not in (None, "noeviction")

    @property
    def can_wait(self) -> bool:
        """Whether it can tell when a write is on its disk (WAITAOF)."""
        new = self.engine == "Valkey" or self.version >= (7, 2)
        return new and self.logged is not False


class Barrier:
    """Commands that go behind each write, and come back when it is as safe as was asked for."""

    def __init__(self, *, disk: bool, replicas: int, patience: float) -> None:
        self.disk = disk
        self.replicas = replicas
        self.commands: list[tuple[Word, ...]] = []
        if disk:
            self.commands.append((b"WAITAOF", 1, 0, round(patience * 1000)))
        if replicas:
            self.commands.append((b"WAIT", replicas, round(patience * 1000)))

    def check(self, replies: Sequence[Any]) -> None:
        """Raise if *replies* do not say that the write is safe: they come back at the end, too."""
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise Unconfirmed(f"the write is done, but cannot be confirmed: {reply}") from reply
        if self.disk and replies[0][0] < 1:
            raise Unconfirmed("the write is done, but the server has not synced it to its disk")
        if self.replicas and replies[-1] < self.replicas:
            raise Unconfirmed(
                f"the write is done, but only {replies[-1]} of {self.replicas} replicas have it"
            )


def survey(node: Node, engine: str, version: tuple[int, ...]) -> Standing:
    """Ask *node* about itself."""
    replies = node.exchange(
        packed(("INFO", "persistence", "memory", "replication"), ("CONFIG", "GET", *_SETTINGS)),
        2,
    )
    info = _lines(replies[0])
    config = _pairs(replies[1])
    logged = config.get("appendonly") or {"1": "yes", "0": "no"}.get(info.get("aof_enabled", ""))
    return Standing(
        engine=engine,
        version=version,
        logged=None if logged is None else logged == "yes",
        synced=config.get("appendfsync"),
        gaps=config.get("no-appendfsync-on-rewrite") == "yes",
        replicas=_number(info.get("connected_slaves")),
        used=_number(info.get("used_memory")),
        limit=_number(info.get("maxmemory")),
        policy=info.get("maxmemory_policy"),
    )


def weakest(standings: Sequence[Standing]) -> Standing:
    """The one with the lowest level: a cluster is as safe as that."""
    return min(standings, key=lambda standing: LEVELS.index(standing.level))


def choose(
    standings: Sequence[Standing], url: str, *, durability: str | None, replicas: int, wait: float
) -> tuple[Barrier | None, str | None]:
    """What to send behind each write, and what to warn of."""
    worst = weakest(standings)
    disk = durability == "full" and worst.level != "full"
    barrier = None
    if disk or replicas:
        barrier = Barrier(disk=disk, replicas=replicas, patience=wait)
    if durability == "full":
        if any(standing.evicts for standing in standings):
            raise NotDurable(f"{url} is not as durable as durability=full asks: {_EVICTS}")
        if disk and not all(standing.can_wait for standing in standings):
            raise _refused(url, durability, worst)
    if durability == "second" and worst.level not in ("full", "second"):
        raise _refused(url, durability, worst)
    if durability is not None:
        return barrier, None
    if any(standing.evicts for standing in standings):
        return barrier, f"{url}: {_EVICTS} Or accept it with durability=none."
    if worst.level == "full":
        return barrier, None
    return barrier, f"{url}: {describe(worst)}. {advise(worst)} Or accept it with {_accept(worst)}."


_EVICTS = (
    "it drops data when its memory is full (maxmemory-policy). "
    "Set maxmemory-policy noeviction in its configuration."
)


def describe(standing: Standing) -> str:
    """What becomes of an acknowledged write when the power fails."""
    if standing.level == "full":
        return "every acknowledged write survives power loss (appendfsync always)"
    if standing.level == "second":
        return (
            f"a power loss may undo the last second or two of writes (appendfsync {standing.synced}"
            + (", no-appendfsync-on-rewrite yes)" if standing.gaps else ")")
        )
    if standing.level == "unknown":
        return "it does not say what survives a power loss (CONFIG GET is not allowed)"
    if standing.logged:
        return "a power loss may undo half a minute of writes or more (appendfsync no)"
    return "a restart undoes all writes since its last snapshot, if it makes any (appendonly no)"


def advise(standing: Standing) -> str:
    """How to have more."""
    if standing.level == "full":
        return ""
    if standing.level == "unknown":
        text = "Ask whoever runs it for appendonly yes and appendfsync always."
    elif standing.gaps:
        text = "Set appendfsync always and no-appendfsync-on-rewrite no in its configuration."
    else:
        text = "Set appendonly yes and appendfsync always in its configuration."
    if standing.can_wait:
        text += " Or open it with durability=full: each write then waits until it is on disk."
    return text


def _accept(standing: Standing) -> str:
    return "durability=second" if standing.level == "second" else "durability=none"


def _refused(url: str, wanted: str, standing: Standing) -> NotDurable:
    return NotDurable(
        f"{url} is not as durable as durability={wanted} asks: {describe(standing)}. "
        f"{advise(standing)}"
    )


def _lines(reply: Any) -> dict[str, str]:
    """What INFO says; nothing if it is not allowed."""
    if isinstance(reply, ResponseError):
        return {}
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def _pairs(reply: Any) -> dict[str, str]:
    """What CONFIG GET says; nothing if it is not allowed."""
    if isinstance(reply, ResponseError):
        return {}
    words = [word.decode(errors="replace") for word in reply]
    return dict(zip(words[::2], words[1::2], strict=False))


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None
