"""Where tasks live, and the terms on which one is opened."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.backends.contract import UNSET, UnsetType
from limpet.core.ids import check_id, check_seconds, check_ttl
from limpet.errors import InvalidId
from limpet.tasks import entries as kinds

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Terms", "check_own", "text"]


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
