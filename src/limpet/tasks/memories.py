"""What a task and long-term memory exchange: what it leaves there, and what it recalls.

A task knows a memory only by its methods: that of a store is made by its scope.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import structs

from limpet.core.runtime import SyncWrapper
from limpet.core.scope import Scope
from limpet.tasks.state import MemoryTarget, normalized

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.backends.contract import Append
    from limpet.core.checkpoint import Checkpoint
    from limpet.tasks.record import TaskRecord
    from limpet.tasks.state import TaskState

__all__ = ["Memories", "TaskMemories"]

#: The namespace that True stands for: one for all tasks of a tenant, so that what one has learned
#: the next one finds, whatever it is called.
DEFAULT = "tasks"

#: Memories that a context is given, and how many are looked at for those that are not its own.
MOST, LOOKED_AT = 5, 20

#: Characters of a question: the goal, and what is next.
LONGEST = 1_000


class Memories(Protocol):
    """A `Memory`, an `AsyncMemory`, or an object of your own that learns and recalls like one."""

    @property
    def namespace(self) -> str:
        """What it is known by."""

    def learn(self, checkpoint: Checkpoint, /) -> Any:
        """Remember what a task leaves; of the same task again, nothing twice."""

    def recall(self, query: str, k: int, /) -> Any:
        """The *k* memories that fit *query* best: text, source, at, score."""


class TaskMemories:
    """What one task remembers, and what it recalls."""

    def __init__(self, record: TaskRecord) -> None:
        self._record = record
        self._scope = record.scope
        #: What the task was shown from memory in this process.
        self._recalled: set[str] = set()

    # -- remember ------------------------------------------------------------------------------

    def target(self, remember: object) -> MemoryTarget | None:
        """Where *remember* is: a memory, a namespace of this store, True, or nowhere."""
        if remember is None or remember is False:
            return None
        if remember is True or isinstance(remember, str):
            namespace = DEFAULT if remember is True else remember
            return MemoryTarget(self._scope.journal("memory", namespace).key.id, here=True)
        if not hasattr(remember, "learn"):
            msg = (
                "remember= takes a memory, the name of a namespace of this store, or True; not "
                f"{type(remember).__name__}."
            )
            raise TypeError(msg)
        name = str(getattr(remember, "namespace", type(remember).__name__))
        place = getattr(remember, "scope", None)
        here = isinstance(place, Scope) and (
            place.backend is self._scope.backend and place.tenant == self._scope.tenant
        )
        return MemoryTarget(name, here=here)

    async def learn(self, target: MemoryTarget, memory: Any) -> bool:
        """Write what was learned to the *target*, or to *memory* if that is in another store.

        False if it cannot be reached from here.
        """
        checkpoint = self.news(self._record.state)
        if target.here:
            await self._scope.memory(target.namespace).learn(checkpoint)
        elif hasattr(memory, "learn"):
            await self._call(memory.learn, checkpoint)
        else:
            return False  # in another store, which only the task's own program knows
        return True

    async def requests(self, target: MemoryTarget, state: TaskState) -> list[Append]:
        """What a memory of this store would write of *state*, to be written with the outcome."""
        memory = self._scope.memory(target.namespace)
        found: list[Append] = await memory.prepare_learn(self.news(state))
        return found

    def news(self, state: TaskState) -> Checkpoint:
        """A task's checkpoint without the decisions and discoveries that it knew from memory."""
        known = state.recalled
        return structs.replace(
            state.checkpoint(),
            decisions=[one for one in state.decisions if normalized(one.sentence) not in known],
            discoveries=[one for one in state.discoveries if normalized(one) not in known],
        )

    def mark(self, *texts: str) -> dict[str, bool]:
        """What marks an entry that says one of *texts*, if that was recalled: it is no news."""
        return {} if self._recalled.isdisjoint(map(normalized, texts)) else {"recalled": True}

    # -- recall --------------------------------------------------------------------------------

    async def recall(self, state: TaskState, memories: Any) -> list[Any]:
        """What *memories* have for this task, or are."""
        found = await self._find(state, memories)
        self._recalled |= {normalized(one.text) for one in found}
        return found

    async def _find(self, state: TaskState, memories: Any) -> list[Any]:
        if memories is None or memories is False:
            return []
        if memories is True or isinstance(memories, str):
            memory = self._scope.memory(DEFAULT if memories is True else memories)
            wishes = await memory.standing()
            return _with_others(state, wishes, await memory.recall(_question(state), LOOKED_AT))
        if hasattr(memories, "recall"):
            # One of the user's own need not know of instructions and preferences.
            wishes = await self._call(memories.standing) if hasattr(memories, "standing") else []
            hits = await self._call(memories.recall, _question(state), LOOKED_AT)
            return _with_others(state, wishes, hits)
        found = list(memories) if isinstance(memories, Iterable) else [memories]
        for one in found:
            if not hasattr(one, "text"):
                msg = (
                    "memories= takes a memory, the name of a namespace of this store, True, or a "
                    f"list of hits or Recalled; not {type(one).__name__}."
                )
                raise TypeError(msg)
        return found

    async def _call(self, method: Callable[..., Any], *values: Any) -> Any:
        """What a memory's *method* returns: it blocks, is to be awaited, or is the user's own."""
        runtime = self._record.runtime
        if isinstance(getattr(method, "__self__", None), SyncWrapper):
            return await runtime.call(method, *values)
        return await runtime.invoke(method, *values)


def _question(state: TaskState) -> str:
    """What to recall for a task: what bears on its goal, and on what it does next."""
    item = next(iter(state.steps_left().values()), "")
    texts = [item] if isinstance(item, str) else [v for v in item.values() if isinstance(v, str)]
    return "\n".join([state.goal, *filter(None, texts)])[:LONGEST]


def _with_others(state: TaskState, wishes: Iterable[Any], hits: Iterable[Any]) -> list[Any]:
    """*wishes*, and other *hits*, but for what this task said itself: that is in its record."""
    standing = list(wishes)
    own = {normalized(one.text) for one in standing}
    own |= {normalized(found) for found in state.discoveries}
    own |= {normalized(made.sentence) for made in state.decisions}
    found = [hit for hit in hits if hit.source != state.task_id and normalized(hit.text) not in own]
    return standing + found[:MOST]
