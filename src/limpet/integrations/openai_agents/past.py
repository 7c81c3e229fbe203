"""What a run has come to: its entries folded, without the SDK and without its agents."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct, ValidationError, convert

from limpet.backends.decide import holder_for_people
from limpet.core.journal import listed_fields
from limpet.errors import Conflict, LeaseHeld, LimpetError, NotFound, Unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal, Entry

__all__ = ["Ask", "Past", "RunFinished", "RunHeld", "RunInDoubt", "RunInfo", "RunNotFound"]

KIND = "agents-run"

# Entry types.
STATE = "state"  # the SDK's snapshot, and what it waits for
DECIDED = "decided"  # somebody's yes or no to one call
RESUMED = "resumed"  # a worker goes on with it, and these calls are approved
ENDED = "ended"  # there is an output, and nothing more to do

# Statuses, kept with the head.
WAITING = "waiting"
RUNNING = "running"
DONE = "done"


class RunNotFound(NotFound):
    """There is no run with this id."""


class RunHeld(LeaseHeld):
    """The run is being resumed by somebody else."""


class RunFinished(LimpetError, RuntimeError):
    """The run has ended: there is nothing to save, to decide or to resume."""


class RunInDoubt(LimpetError, RuntimeError):
    """A worker died while it made approved calls; ``calls`` has their ids and tools."""

    def __init__(self, message: str, calls: Mapping[str, str | None]) -> None:
        super().__init__(message, calls)
        self.calls = calls

    def __str__(self) -> str:
        return str(self.args[0])


class Ask(Struct, frozen=True):
    """A tool call that waits for a yes or no, and who said which; ``approved`` is None before.

    ``arguments`` are the model's own words, as JSON.
    """

    call_id: str
    tool: str | None
    agent: str | None
    arguments: str | None
    approved: bool | None = None
    by: str | None = None

    def __repr__(self) -> str:
        # Not the arguments: they are somebody's data.
        return f"Ask({self.call_id!r}, tool={self.tool!r}, approved={self.approved})"


class RunInfo(Struct, frozen=True):
    """A run in a list: ``waiting``, ``running`` or ``done``. ``held_by`` says who resumes it now.

    A run that is running and that nobody holds was left by a worker that died.
    """

    id: str
    status: str
    held_by: str | None
    position: int
    size: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    labels: dict[str, str]

    @classmethod
    def of(cls, head: Head) -> RunInfo:
        """The view of a journal's *head*."""
        return cls(
            **listed_fields(head),
            status=head.status or WAITING,
            held_by=holder_for_people(head.lease.holder) if head.lease else None,
        )


# What the bodies of entries are, as far as they are used here.


class _Asked(Struct):
    call_id: str | None
    tool: str | None
    agent: str | None
    arguments: str | None


class _Saved(Struct):
    schema: str
    sdk: str
    asks: list[_Asked]
    state: dict[str, Any]


class _Decided(Struct):
    call_id: str
    approved: bool
    always: bool
    by: str | None
    message: str | None


class _Resumed(Struct):
    calls: dict[str, str | None]


class _Ended(Struct):
    output: Any


_BODIES: dict[str, Any] = {STATE: _Saved, DECIDED: _Decided, RESUMED: _Resumed, ENDED: _Ended}


class Past:
    """A run's entries, folded."""

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.position = 0
        self.saved: dict[str, Any] = {}
        self.ended: dict[str, Any] | None = None
        self.doubtful: dict[str, str | None] = {}  # calls that may have happened: id and tool
        self._decisions: dict[str, dict[str, Any]] = {}

    @classmethod
    async def read(cls, journal: AsyncJournal) -> Past:
        """All of it; `RunNotFound` if there is nothing."""
        past = cls(journal.key.id)
        async for page in journal.pages():
            for entry in page:
                past._take(entry)
        if not past.saved:
            raise not_found(past.id)
        return past

    def _take(self, entry: Entry) -> None:
        """Apply *entry*; `Unreadable` if it is not what is written here."""
        try:
            self._apply(entry)
        except ValidationError as error:
            msg = (
                f"Entry {entry.seq} of run {self.id!r} is not what was written: {error}. Nothing "
                "was changed. Restore it from a backup, or delete the run and start it anew."
            )
            raise Unreadable(msg) from error

    def _apply(self, entry: Entry) -> None:
        self.position = entry.seq
        convert(entry.body, _BODIES.get(entry.type, Any))
        if entry.type == STATE:
            self.saved, self.doubtful = entry.body, {}
        elif entry.type == DECIDED:
            # Kept when a newer snapshot comes: that may still wait for the same call.
            self._decisions[entry.body["call_id"]] = entry.body
        elif entry.type == RESUMED:
            self.doubtful = entry.body["calls"]
        elif entry.type == ENDED:
            self.ended, self.doubtful = entry.body, {}

    def asks(self) -> list[Ask]:
        """What the newest snapshot waits for, decided or not."""
        if self.ended is not None:
            return []
        return [Ask(**ask, **self._said(ask["call_id"])) for ask in self.saved["asks"]]

    def _said(self, call_id: str) -> dict[str, Any]:
        made = self.decision(call_id) or {}
        return {"approved": made.get("approved"), "by": made.get("by")}

    def decision(self, call_id: str | None) -> dict[str, Any] | None:
        """What was decided on a call."""
        return self._decisions.get(call_id or "")

    def approved(self) -> dict[str, str | None]:
        """The calls that will be made now. A snapshot may have been approved before it was kept."""
        asks = self.asks()
        undecided = all(ask.approved is None for ask in asks)
        return {ask.call_id: ask.tool for ask in asks if ask.approved or undecided}

    def wants(self, decision: dict[str, Any]) -> bool:
        """Whether *decision* is still to be made; raises if it cannot be."""
        if self.ended is not None:
            msg = f"Run {self.id!r} has ended, and nothing is left to decide."
            raise RunFinished(msg)
        call_id = decision["call_id"]
        ask = next((ask for ask in self.asks() if ask.call_id == call_id), None)
        if ask is None:
            msg = f"Run {self.id!r} does not wait for a call {call_id!r}; its asks() say for which."
            raise NotFound(msg)
        if ask.approved is None or ask.approved == decision["approved"]:
            return ask.approved is None
        said = "approved" if ask.approved else "rejected"
        msg = f"The call {call_id!r} of run {self.id!r} was {said} by {ask.by or 'somebody'}."
        raise Conflict(f"{msg} The first decision stands.", self.position, self.position)


def not_found(id_: str) -> RunNotFound:
    """The error for a run that is not there."""
    return RunNotFound(f"There is no run {id_!r} (or it has expired).")
