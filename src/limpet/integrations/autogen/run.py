"""A run of an agent or a team, as it is stored while it is not over."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field

__all__ = ["OURS", "Run", "exported", "same_task"]

Message = dict[str, Any]

#: Where a document has what AutoGen's own state has not.
OURS = "limpet"

#: What AutoGen calls a message that nobody has given an id.
_ANY = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
#: What is new in a message that is sent a second time.
_EACH_TIME = ("id", "created_at", "models_usage", "metadata")


class Run(Struct):
    """What a run was asked, how far it has come, and what it has put out."""

    task: list[Message]
    said: list[Message] = field(default_factory=list)
    sure: int = 0  # how much of that was put out before the turn that is not over
    started: bool = False  # whether a turn has ended, so that the task is in AutoGen's own state
    taken: int = 0  # how often it was taken up again
    done: bool = False
    reason: str | None = None

    @property
    def ids(self) -> list[str]:
        """The ids of its task's messages, if their sender gave them some of his own."""
        found = [str(message.get("id") or "") for message in self.task]
        return [] if any(not id_ or _ANY.fullmatch(id_) for id_ in found) else found

    def dump(self, thread: list[Message], log: dict[str, Any]) -> dict[str, Any]:
        """What is stored. What the team's *thread* has already is stored by its id."""
        known = {message.get("id"): message for message in thread}
        said: list[Message | str] = [
            message["id"] if known.get(message.get("id")) == message else message
            for message in self.said[: self.sure]
        ]
        found: dict[str, Any] = {"task": [_slim(message) for message in self.task]}
        found |= {"said": said} if said else {}
        found |= {"started": True} if self.started else {}
        found |= {"taken": self.taken} if self.taken else {}
        found |= {"done": True, "reason": self.reason} if self.done else {}
        found |= {"log": log} if log else {}
        return found

    @classmethod
    def load(cls, saved: dict[str, Any], thread: list[Message]) -> Run:
        """The run that was stored. What a migration has taken out of the *thread* is left out."""
        known = {message.get("id"): message for message in thread}
        kept = [
            known.get(item) if isinstance(item, str) else item for item in saved.get("said", ())
        ]
        said = [message for message in kept if message is not None]
        names = ("started", "taken", "done", "reason")
        facts = {name: saved[name] for name in names if name in saved}
        return cls(saved["task"], said, len(said), **facts)


def _slim(message: Message) -> Message:
    """A message without what says nothing: it is stored with every question."""
    empty: Message = {"models_usage": None, "metadata": {}}
    slim = {name: value for name, value in message.items() if value != empty.get(name, message)}
    if _ANY.fullmatch(str(slim.get("id"))):  # it gets another, as if it were asked again
        del slim["id"]
    return slim


def same_task(one: list[Message], other: list[Message]) -> bool:
    """Whether two tasks say the same, though they may be other objects."""
    return [_said(message) for message in one] == [_said(message) for message in other]


def _said(message: Message) -> Message:
    return {name: value for name, value in message.items() if name not in _EACH_TIME}


def exported(document: Any) -> Any:
    """A saved *document* as AutoGen's ``load_state`` takes it; one that was not kept as it is."""
    ours = document.get(OURS) if isinstance(document, dict) else None
    if not isinstance(ours, dict) or "format" not in ours:
        return document
    return {name: value for name, value in document.items() if name != OURS}
