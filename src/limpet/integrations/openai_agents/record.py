"""What a run has come to: its entries folded, without the SDK and without its agents."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct, ValidationError, convert

from limpet.backends.decide import holder_for_people
from limpet.core.calls import BEGAN, RESOLVED, Call, Ledger, Resolution
from limpet.core.ids import name_fields
from limpet.core.journal import listed_fields
from limpet.core.redaction import FORGOTTEN
from limpet.errors import Conflict, LeaseHeld, LimpetError, NotFound, Unreadable

if TYPE_CHECKING:
    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal, Entry

__all__ = [
    "ArgumentsRedacted",
    "Ask",
    "RunFinished",
    "RunHeld",
    "RunInfo",
    "RunNotFound",
    "RunRecord",
    "not_found",
]

KIND = "agents-run"
name_fields(KIND, "id", "name", "call_id", "calls", "agent", "policy", "how", "by")

# Entry types, beside those of calls: BEGAN and RESOLVED, of limpet.core.calls.
STATE = "state"  # the SDK's snapshot, and what it waits for
DECIDED = "decided"  # somebody's yes or no to one call
ENDED = "ended"  # there is an output, and nothing more to do

# Statuses, in the journal's head.
WAITING = "waiting"
RUNNING = "running"
DONE = "done"


class RunNotFound(NotFound):
    """There is no run with this id."""


class RunHeld(LeaseHeld):
    """The run is being resumed by somebody else."""


class RunFinished(LimpetError, RuntimeError):
    """The run has ended: there is nothing to save, to decide or to resume."""


class ArgumentsRedacted(LimpetError, ValueError):
    """The call cannot be made: what the model called it with is not what is stored."""


class Ask(Struct, frozen=True):
    """A tool call that waits for a yes or no, and who said which; ``approved`` is None before.

    ``arguments`` are the model's own words, as JSON. ``redacted``: something in them was replaced
    when they were stored, or forgotten since, so the call cannot be made.
    """

    call_id: str
    tool: str | None
    agent: str | None
    arguments: str | None
    approved: bool | None = None
    by: str | None = None
    redacted: bool = False

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
    redacted: bool = False


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


class _Ended(Struct):
    output: Any


_BODIES: dict[str, Any] = {
    STATE: _Saved,
    DECIDED: _Decided,
    BEGAN: Call,
    RESOLVED: Resolution,
    ENDED: _Ended,
}


class RunRecord:
    """A run's entries, folded.

    ``calls`` are the approved calls that began and of which no snapshot has the result;
    ``resolutions`` are what people said of such calls.
    """

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.position = 0
        self.saved: dict[str, Any] = {}
        self.ended: dict[str, Any] | None = None
        self.calls = Ledger()
        self.resolutions: dict[str, Resolution] = {}
        self.decisions: dict[str, dict[str, Any]] = {}

    @classmethod
    async def read(cls, journal: AsyncJournal) -> RunRecord:
        """All of it; `RunNotFound` if there is nothing."""
        record = cls(journal.key.id)
        async for page in journal.pages():
            for entry in page:
                record.take(entry)
        if not record.saved:
            raise not_found(record.id)
        return record

    def take(self, entry: Entry) -> None:
        """Apply *entry*; `Unreadable` if it is not what is written here."""
        try:
            found = convert(entry.body, _BODIES.get(entry.type, Any))
        except ValidationError as error:
            msg = (
                f"Entry {entry.seq} of run {self.id!r} is not what was written: {error}. Nothing "
                "was changed. Go back to a backup (`limpet restore BACKUP --replace`), or delete "
                "the run and start it anew."
            )
            raise Unreadable(msg) from error
        self.position = entry.seq
        if entry.type == STATE:
            self.saved, self.calls = entry.body, Ledger()
        elif entry.type == DECIDED:
            # Also when a newer snapshot comes: that may still wait for the same call.
            self.decisions[found.call_id] = entry.body
        elif entry.type == BEGAN:
            self.calls.begin(found, entry.at)
            self.resolutions.pop(found.id, None)
        elif entry.type == RESOLVED:
            self.resolve(found)
        elif entry.type == ENDED:
            self.ended, self.calls = entry.body, Ledger()

    def resolve(self, resolution: Resolution) -> None:
        """It is known, or decided, what became of a call."""
        self.calls.end(resolution.id)
        self.resolutions[resolution.id] = resolution

    def asks(self) -> list[Ask]:
        """What the newest snapshot waits for, decided or not."""
        if self.ended is not None:
            return []
        found: list[Ask] = []
        for ask in self.saved["asks"]:
            decision = self.decisions.get(ask["call_id"] or "", {})
            decided = {"approved": decision.get("approved"), "by": decision.get("by")}
            redacted = ask.get("redacted", False) or FORGOTTEN in (ask["arguments"] or "")
            found.append(Ask(**{**ask, **decided, "redacted": redacted}))
        return found

    @property
    def redacted(self) -> set[str | None]:
        """The calls that cannot be made, since what the model called them with is not stored."""
        return {ask.call_id for ask in self.asks() if ask.redacted}

    def calls_to_make(self) -> list[Ask]:
        """The calls that are made when the run goes on: not those that are resolved or redacted.

        A snapshot may have been approved before it was stored, without a decision that we know.
        """
        asks = self.asks()
        undecided = all(ask.approved is None for ask in asks)
        known = {id_ for id_, resolution in self.resolutions.items() if resolution.how != "retry"}
        return [
            ask
            for ask in asks
            if (ask.approved or undecided) and ask.call_id not in known and not ask.redacted
        ]

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
        if ask.redacted and decision["approved"]:
            msg = (
                f"The call {call_id!r} of run {self.id!r} cannot be made: something in its "
                "arguments was redacted when they were stored, or forgotten since. Reject it, or "
                "let the run go on: the model is told, and may make the call again."
            )
            raise ArgumentsRedacted(msg)
        if ask.approved is None or ask.approved == decision["approved"]:
            return ask.approved is None
        decided = "approved" if ask.approved else "rejected"
        msg = f"The call {call_id!r} of run {self.id!r} was {decided} by {ask.by or 'somebody'}."
        raise Conflict(f"{msg} The first decision stands.", self.position, self.position)


def not_found(id_: str) -> RunNotFound:
    """The error for a run that is not there."""
    return RunNotFound(f"There is no run {id_!r} (or it has expired).")
