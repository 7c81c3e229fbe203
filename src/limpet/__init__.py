"""Durable state for AI agents: what an agent knows and has done, safe from the end of its process.

>>> import limpet
>>> store = limpet.open("memory:")
>>> chat = store.conversation("alice")
>>> chat.append({"role": "user", "content": "I prefer e-mail."})
1
>>> store.close()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from limpet.backends.contract import Lease
from limpet.conversations.conversation import (
    AsyncConversation,
    Conversation,
    ConversationInfo,
    RecordedRepair,
    Summary,
)
from limpet.core.calls import CallInDoubt
from limpet.core.checkpoint import Checkpoint, Decision
from limpet.core.codec import Codec
from limpet.core.journal import AsyncJournal, Entry, Journal
from limpet.errors import (
    CallsInDoubt,
    Conflict,
    LeaseHeld,
    LeaseLost,
    LimpetError,
    NotFound,
    NotStorable,
    StoreError,
    StoreUnavailable,
    TaskHalted,
    TaskHeld,
    TaskWaiting,
    TooLarge,
)
from limpet.store import AsyncStore, Store, open, open_async
from limpet.tasks.task import (
    AsyncPlan,
    AsyncStep,
    AsyncTask,
    AsyncVersions,
    Plan,
    Progress,
    Retry,
    Step,
    StepContext,
    Task,
    TaskInfo,
    TaskVersion,
    Versions,
    current_step,
    current_task,
    effect,
)

if TYPE_CHECKING:
    from limpet.conversations.search import ConversationHit
    from limpet.core.recalled import Recalled
    from limpet.crypto.keys import Keys
    from limpet.memory import AsyncMemory, Memory, MemoryHit, Receipt, Remembered
    from limpet.states.migrations import Migrations, migration
    from limpet.states.state import AsyncState, FingerprintChange, State, StateInfo, StateVersion
    from limpet.workers.registry import Registry, RunResult

__version__ = "0.1.0"

#: What many programs do without, by the module in which it is found when somebody asks for it.
_LATE = {
    "ConversationHit": "conversations.search",
    "Keys": "crypto.keys",
    "Recalled": "core.recalled",
    **dict.fromkeys(("AsyncMemory", "MemoryHit", "Memory", "Receipt", "Remembered"), "memory"),
    **dict.fromkeys(("Migrations", "migration"), "states.migrations"),
    **dict.fromkeys(("RunResult", "Registry"), "workers.registry"),
    **dict.fromkeys(
        ("AsyncState", "FingerprintChange", "StateVersion", "State", "StateInfo"), "states.state"
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *_LATE]


__all__ = [
    "AsyncConversation",
    "AsyncJournal",
    "AsyncMemory",
    "AsyncPlan",
    "AsyncState",
    "AsyncStep",
    "AsyncStore",
    "AsyncTask",
    "AsyncVersions",
    "CallInDoubt",
    "CallsInDoubt",
    "Checkpoint",
    "Codec",
    "Conflict",
    "Conversation",
    "ConversationHit",
    "ConversationInfo",
    "Decision",
    "Entry",
    "FingerprintChange",
    "Journal",
    "Keys",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "LimpetError",
    "Memory",
    "MemoryHit",
    "Migrations",
    "NotFound",
    "NotStorable",
    "Plan",
    "Progress",
    "Recalled",
    "Receipt",
    "RecordedRepair",
    "Registry",
    "Remembered",
    "Retry",
    "RunResult",
    "State",
    "StateInfo",
    "StateVersion",
    "Step",
    "StepContext",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "Summary",
    "Task",
    "TaskHalted",
    "TaskHeld",
    "TaskInfo",
    "TaskVersion",
    "TaskWaiting",
    "TooLarge",
    "Versions",
    "current_step",
    "current_task",
    "effect",
    "migration",
    "open",
    "open_async",
]
