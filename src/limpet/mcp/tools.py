"""What the server can do, within the scope that it was started with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from limpet.core.ids import check_id, check_prefix
from limpet.errors import (
    EmbeddingFailed,
    IdReused,
    InvalidId,
    LimpetError,
    NotFound,
    NotStorable,
    StoreBusy,
    StoreError,
    StoreReadOnly,
    TaskNotFound,
    TooLarge,
    WindowTooSmall,
)
from limpet.mcp import asking, telling

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from limpet import AsyncStore
    from limpet.memory import AsyncMemory

__all__ = ["Answer", "Spec", "Tools"]

log = logging.getLogger(__name__)

#: Tasks that `status` names; kinds, and characters of a memory, in `snapshot`.
TASKS, KINDS, GLIMPSE = 20, 50, 200

NO_WRITING = (
    "This server only reads: nothing was changed. It was started without --allow-write, and only "
    "the person who runs it can change that."
)
NO_NAME = (
    "A name that was given cannot be one; nothing was changed. Kind, tags, source, key and ids are "
    "each on one line, without space at an end, and have up to 512 bytes; a kind has 64."
)
BROKEN = "That did not work, by no fault of yours. Whoever runs this server can see why."

# Of the model's own making: it is told what is wrong with what it gave.
_MISTAKES = (IdReused, InvalidId, NotFound, NotStorable, TooLarge, WindowTooSmall)
# The first that fits.
_WORDS: tuple[tuple[type[LimpetError], str], ...] = (
    (TaskNotFound, "There is no task with that id here. `status` lists open ones."),
    (NotFound, "There is no memory with that id here. `recall` finds what there is."),
    (InvalidId, NO_NAME),
    (IdReused, "That key stands for other words already, and nothing was written. Use another."),
    (StoreReadOnly, NO_WRITING),
    (StoreBusy, "The store is busy; nothing was changed. Try again in a moment."),
    (StoreError, "The store cannot be used now. Whoever runs this server can see why."),
    (EmbeddingFailed, "Nothing can be looked up by its meaning now. Try again in a moment."),
    (WindowTooSmall, "The record does not fit into so few tokens. Allow more with max_tokens."),
)


class Spec(NamedTuple):
    """A tool as clients are told of it."""

    name: str
    arguments: type[asking.Arguments]
    description: str
    writes: bool = False
    destroys: bool = False


class Answer(NamedTuple):
    """What a call came to: a text for the model, and whether it says that it failed."""

    text: str
    failed: bool = False


SPECS = (
    Spec(
        "recall",
        asking.Recall,
        "Find what earlier tasks and conversations have left that bears on a question. Call it "
        "before you begin something, and whenever you are about to ask for what may be known.",
    ),
    Spec(
        "remember",
        asking.Remember,
        "Keep one fact, decision or finding for later tasks, in words that make sense on their "
        "own. No secrets. The same text again is kept once.",
        writes=True,
    ),
    Spec(
        "update",
        asking.Update,
        "Replace a memory that is no longer right by a newer text. The older one stays in its "
        "history, and is not recalled any more.",
        writes=True,
    ),
    Spec(
        "forget",
        asking.Forget,
        "Remove memories for good, with their history. For what is wrong or must not be kept; "
        "for what has changed, use update.",
        writes=True,
        destroys=True,
    ),
    Spec("related", asking.Related, "Find the memories that are linked to one of them."),
    Spec(
        "status",
        asking.Status,
        "How many memories there are, whether this server may write, and which tasks are open.",
    ),
    Spec(
        "snapshot",
        asking.Snapshot,
        "An overview of the memory: how many of each kind, and the newest of each.",
    ),
    Spec(
        "checkpoint",
        asking.Checkpoint,
        "What a task has come to: goal, plan, results, decisions, discoveries, as data.",
    ),
    Spec(
        "resume_context",
        asking.ResumeContext,
        "The text from which to take up an interrupted task: what is done, what was decided, "
        "what is next, and what earlier tasks knew of it.",
    ),
)


class Tools:
    """The tools over one memory, and the tasks of its tenant whose ids begin with *tasks*."""

    def __init__(
        self,
        store: AsyncStore,
        memory: AsyncMemory,
        *,
        writes: bool = False,
        tasks: str = "",
        by: str = "mcp",
        trust: float | None = None,
    ) -> None:
        self._store = store
        self._memory = memory
        self._prefix = check_prefix(tasks)
        self._by = check_id(by, "writer")
        self._trust = trust
        self.writes = writes
        self.specs = [spec for spec in SPECS if writes or not spec.writes]

    async def call(self, name: str, arguments: dict[str, Any]) -> Answer:
        """Do what a model asks for. Whatever goes wrong, it is told in words that are ours."""
        spec = next((spec for spec in SPECS if spec.name == name), None)
        if spec is None:
            known = ", ".join(spec.name for spec in self.specs)
            return Answer(f"There is no such tool. There are: {known}.", failed=True)
        if spec.writes and not self.writes:
            return Answer(NO_WRITING, failed=True)
        run: Callable[[Any], Awaitable[str]] = getattr(self, f"_{name}")
        try:
            return Answer(await run(asking.read(arguments, spec.arguments)))
        except asking.Misfit as error:
            return Answer(str(error), failed=True)
        except LimpetError as error:
            if not isinstance(error, _MISTAKES):
                log.warning("%s: %s: %s", name, type(error).__name__, error)
            return Answer(_told(error), failed=True)
        except Exception:
            log.exception("%s failed", name)
            return Answer(BROKEN, failed=True)

    # -- reading ---------------------------------------------------------------------------------

    async def _recall(self, asked: asking.Recall) -> str:
        hits = await self._memory.recall(
            asked.query,
            k=asked.k,
            kinds=asked.kinds or None,
            tags=asked.tags or None,
            since=asked.since,
            min_score=asked.min_score or None,
        )
        return telling.lines(
            f"{_count(len(hits))}, the best first.",
            map(telling.memory, hits),
            none="Nothing that fits is remembered here.",
        )

    async def _related(self, asked: asking.Related) -> str:
        hits = await self._memory.related(asked.id, k=asked.k)
        return telling.lines(
            f"{_count(len(hits))} that are linked to it.",
            map(telling.memory, hits),
            none="Nothing is linked to it.",
        )

    async def _status(self, _asked: asking.Status) -> str:
        stats = await self._memory.stats()
        tasks: list[dict[str, Any]] = []
        async for info in self._store.tasks(prefix=self._prefix, status="open"):
            tasks.append({"task": info.id, "status": info.status})
            if len(tasks) > TASKS:
                break  # there may be a million
        writing = "read and write" if self.writes else "read only"
        some = "Some of the open tasks:" if len(tasks) > TASKS else "The open tasks:"
        listed = telling.lines(some, tasks[:TASKS], none="No task is open.")
        return f"Access: {writing}. {_count(stats.memories)}.\n{listed}"

    async def _snapshot(self, asked: asking.Snapshot) -> str:
        kinds = (await self._memory.stats()).kinds
        found = [
            {"kind": kind, "count": count, "newest": await self._newest(kind, asked.per_kind)}
            for kind, count in list(kinds.items())[:KINDS]
        ]
        left = f" {len(kinds) - KINDS} more kinds are not shown." if len(kinds) > KINDS else ""
        return telling.lines(
            f"By kind ({len(kinds)}), with the newest of each.{left}",
            found,
            none="Nothing is remembered yet.",
        )

    async def _newest(self, kind: str, most: int) -> list[dict[str, Any]]:
        newest = await self._memory.list(kinds=[kind], limit=most)
        return [telling.memory(one, GLIMPSE) for one in newest]

    async def _checkpoint(self, asked: asking.Checkpoint) -> str:
        return telling.checkpoint(await self._store.task(self._allowed(asked.task)).checkpoint())

    async def _resume_context(self, asked: asking.ResumeContext) -> str:
        task = self._store.task(self._allowed(asked.task))
        return await task.resume_context(max_tokens=asked.max_tokens, memories=self._memory)

    def _allowed(self, task: str) -> str:
        # What may not be seen is not there: the answer tells no difference.
        if not task.startswith(self._prefix):
            raise TaskNotFound
        return task

    # -- writing ---------------------------------------------------------------------------------

    async def _remember(self, asked: asking.Remember) -> str:
        made = await self._memory.remember(
            asked.text,
            kind=asked.kind,
            tags=asked.tags,
            source=asked.source or None,
            by=self._by,
            trust=self._trust,
            context=asked.context or None,
            key=asked.key or None,
        )
        return f"Remembered as {made.id}."

    async def _update(self, asked: asking.Update) -> str:
        # Whoever said the older version did not say this.
        made = await self._memory.update(
            asked.id, asked.text, asked.because or None, by=self._by, trust=self._trust
        )
        return f"Updated: {made.id} now stands for it."

    async def _forget(self, asked: asking.Forget) -> str:
        gone = (await self._memory.forget(*asked.ids)).ids
        return f"Forgot {_count(len(gone))}, older versions included."


def _count(number: int) -> str:
    return "1 memory" if number == 1 else f"{number:,} memories"


def _told(error: LimpetError) -> str:
    """What a model is told of *error*: nothing of paths, of other scopes, or of what is stored."""
    found = next((words for kind, words in _WORDS if isinstance(error, kind)), None)
    if found is None and isinstance(error, _MISTAKES):
        return f"That cannot be stored or looked up: {error}"
    return found or BROKEN
