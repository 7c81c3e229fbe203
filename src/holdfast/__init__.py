"""Durable state for AI agents: what an agent knows and has done, safe from the end of its process.

>>> import holdfast
>>> store = holdfast.open("memory:")
>>> chat = store.conversation("alice")
>>> chat.append({"role": "user", "content": "I prefer e-mail."})
1
>>> store.close()
"""

from holdfast.backends.base import Lease
from holdfast.checkpoint import Checkpoint, Decision
from holdfast.codec import Codec
from holdfast.conversation import AsyncConversation, Conversation, ConversationInfo
from holdfast.errors import (
    Conflict,
    ConversationNotFound,
    DurabilityWarning,
    Fenced,
    GoalMismatch,
    HoldfastError,
    IdReused,
    InvalidId,
    InvalidMessage,
    InvalidURL,
    LeaseHeld,
    MissingExtra,
    NotAStore,
    NotDurable,
    NotFound,
    NotImportable,
    NotStorable,
    SchemaTooNew,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreNotFound,
    StoreReadOnly,
    StoreUnavailable,
    TaskFinished,
    TaskHeld,
    TaskNotFound,
    TaskNotOpen,
    TooLarge,
    Unreadable,
    WindowTooSmall,
    WrongType,
)
from holdfast.journal import AsyncJournal, Entry, Journal
from holdfast.store import AsyncStore, Store, open, open_async
from holdfast.task import (
    AsyncStep,
    AsyncTask,
    Step,
    StepContext,
    Task,
    TaskInfo,
    current_step,
)

__version__ = "0.1.0"

__all__ = [
    "AsyncConversation",
    "AsyncJournal",
    "AsyncStep",
    "AsyncStore",
    "AsyncTask",
    "Checkpoint",
    "Codec",
    "Conflict",
    "Conversation",
    "ConversationInfo",
    "ConversationNotFound",
    "Decision",
    "DurabilityWarning",
    "Entry",
    "Fenced",
    "GoalMismatch",
    "HoldfastError",
    "IdReused",
    "InvalidId",
    "InvalidMessage",
    "InvalidURL",
    "Journal",
    "Lease",
    "LeaseHeld",
    "MissingExtra",
    "NotAStore",
    "NotDurable",
    "NotFound",
    "NotImportable",
    "NotStorable",
    "SchemaTooNew",
    "Step",
    "StepContext",
    "Store",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreNotFound",
    "StoreReadOnly",
    "StoreUnavailable",
    "Task",
    "TaskFinished",
    "TaskHeld",
    "TaskInfo",
    "TaskNotFound",
    "TaskNotOpen",
    "TooLarge",
    "Unreadable",
    "WindowTooSmall",
    "WrongType",
    "current_step",
    "open",
    "open_async",
]
