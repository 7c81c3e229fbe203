"""How safe a write is on a server: what it says of itself, and what it can be asked to confirm."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from redis.exceptions import ReadOnlyError, ResponseError

from limpet.backends.redis.errors import RedisErrors, Unconfirmed
from limpet.backends.redis.servers import Message, Word, packed
from limpet.errors import NotDurable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Exchange = Callable[[Message, int], list[Any]]

__all__ = ["Confirmation", "Durability", "Standing", "survey", "weakest"]

#: From the least to the most. Servers that are rented may not say: unknown.
LEVELS = ("none", "unknown", "second", "full")

_SURVEY = packed(
    ("HELLO",),
    ("INFO", "persistence", "memory", "replication"),
    ("CONFIG", "GET", "appendonly", "appendfsync", "no-appendfsync-on-rewrite"),
)

_EVICTS = (
    "it drops data when its memory is full (maxmemory-policy). "
    "Set maxmemory-policy noeviction in its configuration."
)


class Standing(Struct, frozen=True, kw_only=True):
    """What one server says of itself; None where it may not be asked."""

    engine: str
    version: tuple[int, ...]
    mode: str  # standalone, cluster or sentinel
    master: bool
    logged: bool | None = None  # appendonly
    synced: str | None = None  # appendfsync
    gaps: bool = False  # it does not sync while it rewrites its log
    replicas: int | None = None
    used: int | None = None
    limit: int | None = None  # of memory; 0 for none
    policy: str | None = None

    @property
    def clustered(self) -> bool:
        """Whether it is one of a cluster."""
        return self.mode == "cluster"

    @property
    def level(self) -> str:
        """How safe an acknowledged write is."""
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
    def loss(self) -> str:
        """What becomes of an acknowledged write when the power fails."""
        if self.level == "full":
            return "every acknowledged write survives power loss (appendfsync always)"
        if self.level == "second":
            return (
                f"a power loss may undo the last second or two of writes (appendfsync {self.synced}"
                + (", no-appendfsync-on-rewrite yes)" if self.gaps else ")")
            )
        if self.level == "unknown":
            return "it does not say what survives a power loss (CONFIG GET is not allowed)"
        if self.logged:
            return "a power loss may undo half a minute of writes or more (appendfsync no)"
        return (
            "a restart undoes all writes since its last snapshot, if it makes any (appendonly no)"
        )

    @property
    def advice(self) -> str:
        """How to lose less."""
        if self.level == "full":
            return ""
        if self.level == "unknown":
            return "Ask whoever runs it for appendonly yes and appendfsync always."
        if self.gaps:
            return "Set appendfsync always and no-appendfsync-on-rewrite no in its configuration."
        return "Set appendonly yes and appendfsync always in its configuration."


def survey(exchange: Exchange) -> Standing:
    """Ask the server behind *exchange* about itself."""
    hello, info, config = replies = exchange(_SURVEY, 3)
    for reply in replies:
        if isinstance(reply, ResponseError) and (reply is hello or RedisErrors.passes(reply)):
            raise reply
    about = _pairs(hello)
    # Either of the next two may not be allowed.
    lines = [] if isinstance(info, ResponseError) else info.decode(errors="replace").splitlines()
    state = dict(line.split(":", 1) for line in lines if ":" in line)
    settings = {} if isinstance(config, ResponseError) else _pairs(config)

    def number(name: str) -> int | None:
        text = state.get(name, "")
        return int(text) if text.isdecimal() else None

    logged = settings.get("appendonly") or {"1": "yes", "0": "no"}.get(state.get("aof_enabled", ""))
    return Standing(
        engine=about["server"].capitalize(),
        version=tuple(int(part) for part in re.findall(r"\d+", about["version"])),
        mode=about["mode"],
        master=about.get("role") == "master",
        logged=None if logged is None else logged == "yes",
        synced=settings.get("appendfsync"),
        gaps=settings.get("no-appendfsync-on-rewrite") == "yes",
        replicas=number("connected_slaves"),
        used=number("used_memory"),
        limit=number("maxmemory"),
        policy=state.get("maxmemory_policy"),
    )


def _pairs(reply: Sequence[Any]) -> dict[str, str]:
    """Names and values in turn, as a dict of texts."""
    words = [
        word.decode(errors="replace") if isinstance(word, bytes) else str(word) for word in reply
    ]
    return dict(zip(words[::2], words[1::2], strict=False))


def weakest(standings: Sequence[Standing]) -> Standing:
    """The one with the lowest level: a cluster is as safe as that."""
    return min(standings, key=lambda standing: LEVELS.index(standing.level))


class Confirmation:
    """What goes behind each write, and answers when so many replicas have it.

    There is none for the server's own disk. WAITAOF is meant for that, but with ``appendfsync
    everysec`` Valkey (9.1 is the newest now) and Redis 7.4 answer it before they sync.
    """

    def __init__(self, *, replicas: int, patience: float) -> None:
        self._replicas = replicas
        self.count = 1 if replicas else 0
        wait: tuple[Word, ...] = (b"WAIT", replicas, round(patience * 1000))
        self.message = packed(wait) if replicas else []

    def check(self, replies: Sequence[Any]) -> None:
        """Raise if *replies* do not confirm the write: they come when the time is up, too."""
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise Unconfirmed(f"the write is done, but cannot be confirmed: {reply}") from reply
            if reply < self._replicas:
                raise Unconfirmed(
                    f"the write is done, but only {reply} of {self._replicas} replicas have it"
                )


class Durability:
    """How safe each write is to be before it is acknowledged; see `RedisBackend`.

    *patience*: the seconds that a server has to confirm one.
    """

    def __init__(self, url: str, wanted: str | None, *, replicas: int, patience: float) -> None:
        self._url = url
        self._wanted = wanted
        self.replicas = replicas
        self._confirmation = Confirmation(replicas=replicas, patience=patience)

    def check(self, exchange: Exchange) -> Confirmation:
        """How the server of a new connection confirms its writes; `NotDurable` if it cannot."""
        if self._wanted in (None, "none"):  # it is taken as it is, and need not be asked
            return self._confirmation
        standing = survey(exchange)
        if not standing.master:
            raise ReadOnlyError("READONLY this server is a replica")
        return self.confirmation(standing)

    def confirmation(self, standing: Standing) -> Confirmation:
        """The same for a server that has been asked."""
        if self._wanted == "full" and standing.evicts:
            raise NotDurable(f"{self._url} is not as durable as durability=full asks: {_EVICTS}")
        enough = {"full": ("full",), "second": ("second", "full")}.get(self._wanted or "", LEVELS)
        if standing.level not in enough:
            raise NotDurable(
                f"{self._url} is not as durable as durability={self._wanted} asks: "
                f"{standing.loss}. {standing.advice}"
            )
        return self._confirmation

    def warning(self, standings: Sequence[Standing]) -> str | None:
        """What to warn of, where nothing was asked for."""
        worst = weakest(standings)
        if self._wanted is not None:
            return None
        if any(standing.evicts for standing in standings):
            return f"{self._url}: {_EVICTS} Or accept it with durability=none."
        if worst.level == "full":
            return None
        enough = "second" if worst.level == "second" else "none"
        return f"{self._url}: {worst.loss}. {worst.advice} Or accept it with durability={enough}."
