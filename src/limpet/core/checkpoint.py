"""A task at one moment, as plain data: what people are shown, and what memory learns from."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, field

from limpet.core.codec import convert
from limpet.errors import WrongType

__all__ = ["Checkpoint", "Decision"]


class Decision(Struct, frozen=True):
    """What was decided, and why."""

    decision: str
    because: str | None = None

    @property
    def sentence(self) -> str:
        """Both in one text."""
        return self.decision + (f" (because {self.because})" if self.because else "")


class Checkpoint(Struct, frozen=True, kw_only=True):
    """A task at one moment, as plain data.

    >>> from datetime import UTC, datetime
    >>> now = datetime(2026, 1, 1, tzinfo=UTC)
    >>> point = Checkpoint(agent_id="a", task_id="t", goal="g", created_at=now, updated_at=now)
    >>> Checkpoint.from_dict(point.to_dict()) == point
    True
    """

    agent_id: str | None
    task_id: str
    goal: str
    plan: list[Any] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    discoveries: list[str] = field(default_factory=list)
    status: str = "open"
    outcome: Any = None
    error: str | None = None
    in_doubt: list[str] = field(default_factory=list)
    waiting_for: list[str] = field(default_factory=list)
    created_at: datetime
    updated_at: datetime

    def to_dict(self) -> dict[str, Any]:
        """Dicts, lists, text and numbers only; times as ISO 8601."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Checkpoint:
        """The reverse of `to_dict`; `WrongType` if a field is missing or of another type."""
        return convert(data, cls)

    def to_json(self) -> str:
        """The same as JSON text."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Checkpoint:
        """The reverse of `to_json`; `WrongType` if it is something else."""
        try:
            data = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise WrongType(f"A checkpoint is JSON text, and this is not: {error}") from error
        return cls.from_dict(data)
