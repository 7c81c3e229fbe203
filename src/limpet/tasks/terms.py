"""Where tasks live, and the terms on which one is opened."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from limpet.backends.contract import UNSET, UnsetType
from limpet.backends.url import command, is_default
from limpet.core.codec import Codec
from limpet.core.ids import check_id, check_seconds, check_ttl, make_key
from limpet.core.journal import AsyncJournal
from limpet.core.leases import Keeper
from limpet.core.runtime import Port
from limpet.errors import InvalidId
from limpet.tasks import checkpoint as kinds
from limpet.tasks.checkpoint import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Home", "Terms", "check_own", "text"]


class Home(Struct, frozen=True):
    """Where tasks live: what a store gives to each of them."""

    tenant: str
    port: Port
    codec: Codec
    ttl: float | None
    keeper: Keeper
    #: Who is handed the checkpoint of a task that has finished.
    heirs: list[Callable[[Checkpoint], Any]]
    #: Makes the memory of a journal: that noun is none of ours.
    remembers: Callable[..., Any]

    def journal(self, kind: str, id_: str) -> AsyncJournal:
        """The journal *id_* of some *kind*."""
        return AsyncJournal(self.port, self.codec, make_key(self.tenant, kind, id_), self.ttl)

    def memory(self, namespace: str, embed: Any = None) -> Any:
        """What is remembered in a *namespace* of this tenant."""
        # What somebody took care to encrypt is not written out beside it.
        private = type(self.codec) is not Codec
        return self.remembers(self.journal("memory", namespace), embed=embed, private=private)

    def command(self, *words: str) -> str:
        """The command ``limpet`` *words* for this store, as errors name it: it can be pasted."""
        import shlex  # noqa: PLC0415 - for errors only

        url = self.port.backend.url
        named = None if is_default(url) else url
        return f"`{command(shlex.join(words), url=named, tenant=self.tenant)}`"

    def through(self, port: Port) -> Home:
        """The same place by another way."""
        return structs.replace(self, port=port)


class Terms(Struct, frozen=True, kw_only=True):
    """How a task is opened, and with what it begins."""

    goal: str | None = None
    agent: str | None = None
    lease: float = 60
    wait: float = 0
    heartbeat: float = 60
    labels: dict[str, str | None] = {}
    parent: str | None = None
    ttl: float | UnsetType | None = UNSET
    deadline: float | datetime | None = None

    def __post_init__(self) -> None:
        if self.goal is not None:
            text(self.goal, "goal")
        if self.agent is not None:
            check_id(self.agent, "agent id", 128)
        check_seconds(self.lease, "lease")
        check_seconds(self.heartbeat, "heartbeat")
        check_ttl(self.ttl)
        check_own(self.labels)
        if isinstance(self.deadline, datetime):
            if self.deadline.tzinfo is None:
                msg = "A deadline needs a time zone: datetime.now(UTC) + …, or a number of seconds."
                raise ValueError(msg)
        elif self.deadline is not None:
            check_seconds(self.deadline, "deadline")

    def labelled(self) -> dict[str, str | None]:
        """The labels, the agent among them."""
        agent = {} if self.agent is None else {"agent": self.agent}
        parent = {} if self.parent is None else {kinds.PARENT: self.parent}
        return {**agent, **self.labels, **parent}

    def created(self) -> dict[str, Any]:
        """The first entry's body."""
        body: dict[str, Any] = {"goal": self.goal, "agent": self.agent}
        if self.deadline is not None:
            body["deadline"] = _told(self.deadline)
        return body


def _told(deadline: float | datetime) -> float | str:
    """A time, or so many seconds: by the store's clock, which is not asked for that."""
    if isinstance(deadline, datetime):
        return deadline.astimezone(UTC).isoformat()
    return deadline


def check_own(labels: Mapping[str, str | None]) -> None:
    """Raise if one of *labels* is not the user's to set."""
    for name in (kinds.RUN, kinds.DUE, kinds.PARENT):
        if name in labels:
            raise InvalidId(f"The label {name!r} is set by Limpet. Use another name.")


def text(value: str, what: str) -> str:
    """*value*, if it is text."""
    if not isinstance(value, str):
        raise TypeError(f"A {what} is text, not a {type(value).__name__}.")
    return value
