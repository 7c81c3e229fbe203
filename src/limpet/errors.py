"""What can go wrong, as one tree.

    LimpetError
    ├── StoreError                  the place where state lives
    │   ├── StoreNotFound           (FileNotFoundError) no file, no directory, no server there
    │   ├── NotAStore               (ValueError) something is there, and it is not ours
    │   ├── StoreExists             (FileExistsError) it would be overwritten
    │   ├── StoreCorrupt            damaged; nothing was changed
    │   │   └── Tampered            (Unreadable) encrypted, and not what was written there
    │   ├── KeyMissing              (Unreadable) encrypted, under a key that is not there
    │   ├── NotEncrypted            (Unreadable) keys were given, and it is not encrypted
    │   ├── StoreWentBack           it is as it was before, and what came since is gone
    │   ├── StoreReadOnly           (PermissionError)
    │   ├── StoreFull               (OSError) the disk or a quota is full
    │   ├── StoreBusy               (TimeoutError) another process holds the write lock
    │   ├── StoreUnavailable        (ConnectionError) I/O failed, or the server is away
    │   ├── StoreClosed             (RuntimeError) used after close()
    │   ├── NotDurable              it cannot give the durability that was asked for
    │   ├── NotTransactional        (NotImplementedError) it holds no rows of yours
    │   ├── TransactionMisused      (RuntimeError) something that a transaction cannot go with
    │   ├── TransactionUndone       the database gave way to another; run it again
    │   └── SchemaTooNew            a newer release wrote it
    ├── Conflict                    somebody else wrote first
    │   └── IdReused                the same append id, with other content
    ├── LeaseHeld                   somebody else may write now; says who, and until when
    │   └── TaskHeld
    ├── LeaseLost                   our lease was taken over: this writer is the late one
    ├── NotFound                    (LookupError)
    │   ├── ConversationNotFound
    │   ├── MemoryNotFound
    │   ├── StateNotFound
    │   ├── TaskNotFound
    │   └── UnknownKind             a task that no function is registered for
    ├── InvalidId                   (ValueError) a tenant, kind, id or label that cannot be one
    ├── InvalidKeys                 (ValueError) keys of a wrong size, or that others can read
    ├── InvalidURL                  (ValueError) a store URL that says nothing we know
    ├── InvalidMessage              (ValueError) not a dict with a role
    ├── NotImportable               (ValueError) a file that says nothing we know; says where
    ├── NotStorable                 (TypeError) a value no store can keep; says where it sits
    ├── TooLarge                    (ValueError) over a limit on size or depth; says where it sits
    ├── Unreadable                  (ValueError) stored bytes this release cannot decode
    │   └── StateDamaged            a saved state that is not what was saved; earlier ones may be
    ├── WrongType                   (ValueError) stored data does not fit the type asked for
    ├── WindowTooSmall              (ValueError) the newest message alone is over the budget
    ├── BrokenHistory               (ValueError) messages that no provider would take
    ├── CallsInDoubt                an agent's tools were running when its process ended
    ├── WrongState                  (ValueError) a state of another type than the one asked for
    ├── StateTooNew                 (ValueError) saved by a newer version of the user's program
    ├── StateChanged                (ValueError) saved by an agent with other tools, prompt, model
    ├── NoMigration                 (LookupError) no way from the saved version to this one
    ├── MigrationFailed             (RuntimeError) a migration raised, or made what cannot be stored
    ├── GoalMismatch                (ValueError) a task id used again for another goal or input
    ├── TaskNotOpen                 (RuntimeError) written to outside its `with` block
    ├── TaskFinished                (RuntimeError) new work for a task that has ended
    ├── TaskFailed                  (RuntimeError) the task that a job of an engine ran has failed
    ├── DeadlinePassed              (TimeoutError) the task had until then
    ├── StepTimedOut                (TimeoutError) an attempt took longer than it may
    ├── WaitTimedOut                (TimeoutError) the signal did not come in time
    ├── EmbeddingFailed             (RuntimeError) the user's embedding function raised
    ├── NotLoaded                   (LookupError) a large result, which is to be asked for
    └── MissingExtra                (ImportError) an optional dependency is not installed

    TaskHalted                      the task stands still and can go on later: nothing went wrong
    ├── TaskWaiting                 for a signal, a time or a person; says for what, and until when
    ├── TaskPaused
    └── TaskCancelled

`TaskHalted` is no error, and so neither a `LimpetError` nor an `Exception`: it has to leave the
task's block, and what a tool or a framework does with ``except Exception`` must not keep it from
that. As `KeyboardInterrupt` and `asyncio.CancelledError`, it derives from `BaseException`.

Adapters have some of their own, all of them below `LimpetError`.
Each says what happened, why, and what to do; the driver's own error is its ``__cause__``.
Some things are worth a warning: a `DurabilityWarning`, for a store that may forget what it
acknowledged; an `EffectsWarning`, for a past that is taken up again though its effects are out; a
`ChangedWarning`, for a state that is loaded into an agent which is not the one that saved it; an
`EstimateWarning`, for tokens that are estimated and could be counted.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime
    from typing import Any, Self

__all__ = [
    "BrokenHistory",
    "CallsInDoubt",
    "ChangedWarning",
    "Conflict",
    "ConversationNotFound",
    "DeadlinePassed",
    "DurabilityWarning",
    "EffectsWarning",
    "EmbeddingFailed",
    "EstimateWarning",
    "GoalMismatch",
    "IdReused",
    "InvalidId",
    "InvalidKeys",
    "InvalidMessage",
    "InvalidURL",
    "KeyMissing",
    "LeaseHeld",
    "LeaseLost",
    "LimpetError",
    "MemoryNotFound",
    "MigrationFailed",
    "MissingExtra",
    "NoMigration",
    "NotAStore",
    "NotDurable",
    "NotEncrypted",
    "NotFound",
    "NotImportable",
    "NotLoaded",
    "NotStorable",
    "NotTransactional",
    "SchemaTooNew",
    "StateChanged",
    "StateDamaged",
    "StateNotFound",
    "StateTooNew",
    "StepTimedOut",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreExists",
    "StoreFull",
    "StoreNotFound",
    "StoreReadOnly",
    "StoreUnavailable",
    "StoreWentBack",
    "Tampered",
    "TaskCancelled",
    "TaskFailed",
    "TaskFinished",
    "TaskHalted",
    "TaskHeld",
    "TaskNotFound",
    "TaskNotOpen",
    "TaskPaused",
    "TaskWaiting",
    "TooLarge",
    "TransactionMisused",
    "TransactionUndone",
    "UnknownKind",
    "Unreadable",
    "WaitTimedOut",
    "WindowTooSmall",
    "WrongState",
    "WrongType",
]


class LimpetError(Exception):
    """The base of everything this package raises on purpose."""


class DurabilityWarning(UserWarning):
    """This store acknowledges writes that a power loss can undo."""


class EffectsWarning(UserWarning):
    """A task goes back to a point after which it has had effects, and may have them again."""


class EstimateWarning(UserWarning):
    """Tokens are estimated that could be counted, if a package was there."""


class ChangedWarning(UserWarning):
    """A state was saved by an agent that had other tools, another prompt, model or name."""


class StoreError(LimpetError):
    """The place where state lives could not be opened, read or written.

    ``hint`` is advice that only a program can follow, such as an argument of `limpet.open`. The
    error's text ends with it; ``message`` is the text without it, for people who have no program.
    """

    def __init__(self, *args: object, hint: str = "") -> None:
        super().__init__(*args)
        self.hint = hint

    @property
    def message(self) -> str:
        """What happened, without the hint."""
        return super().__str__()

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class StoreNotFound(StoreError, FileNotFoundError):
    """There is no store at this address."""


class NotAStore(StoreError, ValueError):
    """Something is there, but it is not a Limpet store."""


class StoreExists(StoreError, FileExistsError):
    """There is a store already where one was to be written. It was left alone."""


class StoreCorrupt(StoreError):
    """The store is damaged. Nothing was changed by finding out."""


class StoreWentBack(StoreError):
    """The store is as it was at an earlier moment: a backup, or a replica that was behind."""


class StoreReadOnly(StoreError, PermissionError):
    """The store can be read but not written."""


class StoreFull(StoreError, OSError):
    """There is no room for the write; nothing of it was kept."""


class StoreBusy(StoreError, TimeoutError):
    """Another process held the write lock for longer than the timeout."""


class StoreUnavailable(StoreError, ConnectionError):
    """The disk or the server did not do what it was asked."""


class StoreClosed(StoreError, RuntimeError):
    """The store was used after it was closed."""


class NotDurable(StoreError):
    """The store cannot promise what ``durability=`` asks for."""


class NotTransactional(StoreError, NotImplementedError):
    """This store cannot commit a caller's own rows together with a record."""


class TransactionMisused(StoreError, RuntimeError):
    """Something was done within a transaction, or after it, that it cannot go with."""


class TransactionUndone(StoreError):
    """The database undid a transaction. Nothing of it was kept, and it can be run again."""


class SchemaTooNew(StoreError):
    """A newer release has written to this store."""


class Conflict(LimpetError):
    """Another writer got there first: the journal's head is not where *expect* said.

    ``expected`` and ``actual`` are positions.
    """

    def __init__(self, message: str, expected: int = 0, actual: int = 0) -> None:
        super().__init__(message, expected, actual)
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return str(self.args[0])


class IdReused(Conflict):
    """An append id that was used before came again with other content."""


class LeaseHeld(LimpetError):
    """Somebody else has the right to write now: ``holder``, ``until`` and the lease's ``epoch``."""

    def __init__(self, message: str, holder: str, until: datetime, epoch: int) -> None:
        super().__init__(message, holder, until, epoch)
        self.holder = holder
        self.until = until
        self.epoch = epoch

    def __str__(self) -> str:
        return str(self.args[0])


class TaskHeld(LeaseHeld):
    """The task is being worked on by somebody else."""


class LeaseLost(LimpetError):
    """The lease this write relied on is no longer the newest. Nothing was written."""


class NotFound(LimpetError, LookupError):
    """There is nothing under this id."""


class ConversationNotFound(NotFound):
    """There is no conversation with this id."""


class MemoryNotFound(NotFound):
    """There is no memory with this id in this namespace."""


class StateNotFound(NotFound):
    """There is no saved state with this id, or none at this position."""


class TaskNotFound(NotFound):
    """There is no task with this id."""


class UnknownKind(NotFound):
    """A task of a kind that the registry has no function for."""


class InvalidId(LimpetError, ValueError):
    """A tenant, kind, id or label that cannot be one."""


class InvalidKeys(LimpetError, ValueError):
    """Keys that cannot be: of a wrong size, in a file that others can read, or in no file."""


class InvalidURL(LimpetError, ValueError):
    """A store URL that cannot be understood."""


class InvalidMessage(LimpetError, ValueError):
    """A message is a dict with a role."""


class NotImportable(LimpetError, ValueError):
    """A file that cannot be read, that is nothing we know, or that may mean several things."""


class _Located(LimpetError):
    """An error about a value within a value; ``path`` says where it sits."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message, path)
        self.path = path

    def __str__(self) -> str:
        return str(self.args[0])

    def under(self, inner: str, outer: str) -> Self:
        """The same error with the path in the words of the caller: *outer* for *inner*."""
        if not self.path.startswith(inner):
            return self
        path = outer + self.path.removeprefix(inner)
        return type(self)(str(self).replace(self.path, path, 1), path)


class NotStorable(_Located, TypeError):
    """A value that has no stored form; ``path`` says where it sits."""


class TooLarge(_Located, ValueError):
    """A value over the store's limit on size or depth; ``path`` says where it sits."""


class Unreadable(LimpetError, ValueError):
    """Stored bytes that this release cannot decode."""


class Tampered(StoreCorrupt, Unreadable):
    """What is in an encrypted store is not what was written there."""


class KeyMissing(StoreError, Unreadable):
    """The store is encrypted, under a key that is not there."""


class NotEncrypted(StoreError, Unreadable):
    """Keys were given, and what is there is not encrypted."""


class StateDamaged(Unreadable):
    """A saved state does not match its digest, or a part of it is missing; none of it is given."""


class WrongType(LimpetError, ValueError):
    """Stored data that does not fit the type the caller asked for."""


class WindowTooSmall(LimpetError, ValueError):
    """What must be in the window does not fit the budget."""


class BrokenHistory(LimpetError, ValueError):
    """A history that no provider would take; ``repairs`` is what would make it whole."""

    def __init__(self, message: str, repairs: Sequence[Any] = ()) -> None:
        super().__init__(message, tuple(repairs))
        self.repairs = list(repairs)

    def __str__(self) -> str:
        return str(self.args[0])


class WrongState(LimpetError, ValueError):
    """The saved state is of another type: a team's, where an agent's was asked for."""


class StateTooNew(LimpetError, ValueError):
    """A newer version of the user's program has saved this state."""


class StateChanged(LimpetError, ValueError):
    """The state was saved by an agent that was another: ``change`` says in what."""

    def __init__(self, message: str, change: Any = None) -> None:
        super().__init__(message, change)
        self.change = change

    def __str__(self) -> str:
        return str(self.args[0])


class NoMigration(LimpetError, LookupError):
    """There is no way of migrations from the version that was saved to the one asked for."""


class MigrationFailed(LimpetError, RuntimeError):
    """A migration raised, or made what no store can keep. Nothing was written."""


class CallsInDoubt(LimpetError):
    """Tools were running when a process ended; ``calls`` are those of which nobody knows more."""

    def __init__(self, message: str, calls: Sequence[Any] = ()) -> None:
        super().__init__(message, tuple(calls))
        self.calls = list(calls)

    def __str__(self) -> str:
        return str(self.args[0])


class GoalMismatch(LimpetError, ValueError):
    """The task exists, and has another goal; or it was submitted with another input."""


class TaskNotOpen(LimpetError, RuntimeError):
    """The task was written to by somebody who does not hold it."""


class TaskFinished(LimpetError, RuntimeError):
    """The task has ended and takes no new work."""


class TaskFailed(LimpetError, RuntimeError):
    """The task that a job of an engine ran has failed."""


class TaskHalted(BaseException):
    """The task ``task_id`` stands still, and nothing went wrong: it goes on when somebody lets it.

    If it waits, ``waits_for`` says for what, and ``until`` for how long at most. It is not an
    `Exception`: let it leave the task's block, and catch it outside, by its name.
    """

    def __init__(
        self, message: str, task_id: str, waits_for: str = "", until: datetime | None = None
    ) -> None:
        super().__init__(message, task_id, waits_for, until)
        self.task_id = task_id
        self.waits_for = waits_for
        self.until = until

    def __str__(self) -> str:
        return str(self.args[0])


class TaskWaiting(TaskHalted):
    """The task waits, and its process is free."""


class TaskPaused(TaskHalted):
    """Somebody has paused the task."""


class TaskCancelled(TaskHalted):
    """Somebody has cancelled the task."""


class DeadlinePassed(LimpetError, TimeoutError):
    """The task was to be done by now."""


class StepTimedOut(LimpetError, TimeoutError):
    """One attempt at ``step`` took longer than `Retry.timeout` allows."""

    def __init__(self, message: str, step: str = "") -> None:
        super().__init__(message, step)
        self.step = step

    def __str__(self) -> str:
        return str(self.args[0])


class WaitTimedOut(LimpetError, TimeoutError):
    """What a task waited for did not come in time."""


class EmbeddingFailed(LimpetError, RuntimeError):
    """The user's embedding function raised; what it did is the ``__cause__``."""


class NotLoaded(LimpetError, LookupError):
    """A large result is kept apart, and these fields load nothing by themselves."""


def outside() -> int:
    """How far up the stack the user's own line is, for a warning about it."""
    frame, level = sys._getframe(1), 1  # noqa: SLF001 - the only way there is
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("limpet."):
        frame, level = frame.f_back, level + 1
    return level


@contextmanager
def besides(error: BaseException | None, what: str) -> Iterator[None]:
    """Let trouble in closing something not hide the *error* that it is closed for: it is a note."""
    try:
        yield
    except LimpetError as trouble:
        if error is None:
            raise
        error.add_note(f"Besides, {what}: {trouble}")


class MissingExtra(LimpetError, ImportError):
    """An optional dependency is not installed; the message names the extra."""

    @classmethod
    def of(cls, what: str, package: str, extra: str, alone: str | None = None) -> Self:
        """The error for *what* needs *package*, which comes with *extra*, or with pip *alone*."""
        return cls(
            f"{what} needs the package {package}, which the extra [{extra}] brings: pip install "
            f"'.[{extra}]' in Limpet's source, or pip install {alone or package}."
        )
