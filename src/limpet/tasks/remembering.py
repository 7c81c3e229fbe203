"""What a task and long-term memory have to say to each other: where it goes, what is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import structs

from limpet.core.journal import AsyncJournal
from limpet.core.runtime import SyncWrapper
from limpet.tasks.state import Debt, plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.backends.contract import Append
    from limpet.core.checkpoint import Checkpoint
    from limpet.core.runtime import Runtime
    from limpet.core.scope import Scope
    from limpet.tasks.state import TaskState

__all__ = [
    "DEFAULT",
    "Memories",
    "asked",
    "debt",
    "lessons",
    "news",
    "others",
    "question",
    "recalled",
]

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


def debt(scope: Scope, remember: object) -> Debt | None:
    """Where *remember* is: a memory, a namespace of this store, True, or nowhere."""
    if remember is None or remember is False:
        return None
    if remember is True or isinstance(remember, str):
        namespace = DEFAULT if remember is True else remember
        return Debt(scope.journal("memory", namespace).key.id, here=True)
    if not hasattr(remember, "learn"):
        msg = (
            "remember= takes a memory, the name of a namespace of this store, or True; not "
            f"{type(remember).__name__}."
        )
        raise TypeError(msg)
    name = str(getattr(remember, "namespace", type(remember).__name__))
    return Debt(name, here=_lives_in(scope, remember))


def _lives_in(scope: Scope, memory: object) -> bool:
    """Whether *memory* is a namespace of the tenant that has this *scope*."""
    core = memory._core if isinstance(memory, SyncWrapper) else memory  # noqa: SLF001 - its other half
    journal = getattr(core, "_journal", None)
    if not isinstance(journal, AsyncJournal) or journal.key.kind != "memory":
        return False
    at_home = journal.runtime.backend is scope.runtime.backend
    return at_home and journal.key.tenant == scope.tenant


async def lessons(scope: Scope, where: Debt, point: Checkpoint) -> list[Append]:
    """What a memory of this store has to write of a task, to be done in one act with the rest."""
    found: list[Append] = await scope.memory(where.namespace).prepare_learn(point)
    return found


async def asked(port: Runtime, method: Callable[..., Any], *values: Any) -> Any:
    """What a memory's *method* returns: it blocks, is to be awaited, or is the user's own."""
    if isinstance(getattr(method, "__self__", None), SyncWrapper):
        return await port.call(method, *values)
    return await port.invoke(method, *values)


def news(state: TaskState) -> Checkpoint:
    """A task's checkpoint without the decisions and discoveries that it was told itself."""
    known = state.recalled
    return structs.replace(
        state.checkpoint(),
        decisions=[made for made in state.decisions if plain(made.sentence) not in known],
        discoveries=[found for found in state.discoveries if plain(found) not in known],
    )


def recalled(memories: Any) -> list[Any]:
    """What whoever called us has recalled."""
    found = list(memories) if isinstance(memories, Iterable) else [memories]
    for one in found:
        if not hasattr(one, "text"):
            msg = (
                "memories= takes a memory, the name of a namespace of this store, True, or a list "
                f"of hits or Recalled; not {type(one).__name__}."
            )
            raise TypeError(msg)
    return found


def question(state: TaskState) -> str:
    """What to recall for a task: what bears on its goal, and on what it does next."""
    planned = zip(state.planned_names(), state.plan or (), strict=True)
    left = [item for name, item in planned if name not in state.results]
    words = [word for item in left[:1] for word in _words(item)]
    return "\n".join([state.goal, *words])[:LONGEST]


def _words(item: Any) -> Iterable[str]:
    """The texts in a planned step."""
    if isinstance(item, str):
        return [item]
    return [value for value in item.values() if isinstance(value, str)]


def others(state: TaskState, hits: Iterable[Any]) -> list[Any]:
    """*hits* without what this task has said itself: that is in its record."""
    own = {plain(found) for found in state.discoveries}
    own |= {plain(made.sentence) for made in state.decisions}
    found = [hit for hit in hits if hit.source != state.task_id and plain(hit.text) not in own]
    return found[:MOST]
