"""What the server can do, within the scope that it was started with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from limpet.core import audit
from limpet.core.ids import check_id, check_prefix
from limpet.core.recalled import STANDING
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
from limpet.mcp import arguments
from limpet.mcp.rendering import render_checkpoint, render_lines
from limpet.memory import KIND
from limpet.tasks import entries as task
from limpet.views.listing import Filters, listing, where
from limpet.views.memory import fields
from limpet.views.text import count, shorten

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from limpet import AsyncStore
    from limpet.memory import AsyncMemory

__all__ = ["Answer", "Spec", "Tools", "UnknownTool"]

log = logging.getLogger(__name__)

#: Tasks that `status` names; kinds in `snapshot`; characters of a goal, a place or a memory in one.
TASKS, KINDS, EXCERPT = 20, 50, 200

READ_ONLY = (
    "This server only reads: nothing was changed. It was started without --allow-write, and only "
    "the person who runs it can change that."
)
BAD_NAME = (
    "A name that was given cannot be one; nothing was changed. Kind, tags, source, key and ids are "
    "each on one line, without space at an end, and have up to 512 bytes; a kind has 64."
)
BROKEN = "That did not work, by no fault of yours. Whoever runs this server can see why."

# Errors that the model itself has caused, and can correct; all others are logged.
_MISTAKES = (IdReused, InvalidId, NotFound, NotStorable, TooLarge, WindowTooSmall)
# What a model is told of an error, by the first class that it is of.
_MESSAGES: tuple[tuple[type[LimpetError], str], ...] = (
    (TaskNotFound, "There is no task with that id here. `status` lists open ones."),
    (NotFound, "There is no memory with that id here. `recall` finds what there is."),
    (InvalidId, BAD_NAME),
    (IdReused, "That key stands for other words already, and nothing was written. Use another."),
    (StoreReadOnly, READ_ONLY),
    (StoreBusy, "The store is busy; nothing was changed. Try again in a moment."),
    (StoreError, "The store cannot be used now. Whoever runs this server can see why."),
    (EmbeddingFailed, "Nothing can be looked up by its meaning now. Try again in a moment."),
    (WindowTooSmall, "The record does not fit into so few tokens. Allow more with max_tokens."),
)


#: What tools that write are recorded as.
_PAST = {"remember": "remembered", "update": "updated", "forget": "forgot"}


class UnknownTool(LookupError):
    """A call of a tool that there is not; the message says which there are."""


class Spec(NamedTuple):
    """A tool as clients see it."""

    name: str
    arguments: type[arguments.Arguments]
    description: str
    writes: bool = False
    destroys: bool = False


class Answer(NamedTuple):
    """The answer to a call: a text for the model, and whether the call failed."""

    text: str
    failed: bool = False


SPECS = (
    Spec(
        "recall",
        arguments.Recall,
        "Find what earlier tasks and conversations have left that bears on a question. Call it "
        "before you begin something, and whenever you are about to ask for what may be known.",
    ),
    Spec(
        "remember",
        arguments.Remember,
        "Store one fact, decision or finding for later tasks, in words that make sense on their "
        "own. No secrets. The same text again is stored once.",
        writes=True,
    ),
    Spec(
        "update",
        arguments.Update,
        "Replace a memory that is no longer right by a newer text. The older one stays in its "
        "history, and is not recalled any more.",
        writes=True,
    ),
    Spec(
        "forget",
        arguments.Forget,
        "Remove memories for good, with their history. For what is wrong or must not be stored; "
        "for what has changed, use update.",
        writes=True,
        destroys=True,
    ),
    Spec("related", arguments.Related, "Find the memories that are linked to one of them."),
    Spec(
        "status",
        arguments.Status,
        "How many memories there are, whether this server may write, and which tasks are open: how "
        "far each has come, and what is next in it.",
    ),
    Spec(
        "snapshot",
        arguments.Snapshot,
        "An overview of the memory: how many of each kind, and the newest of each; first what the "
        "user wants of every task.",
    ),
    Spec(
        "checkpoint",
        arguments.Checkpoint,
        "What a task has come to: goal, plan, results, decisions, discoveries, as data.",
    ),
    Spec(
        "resume_context",
        arguments.ResumeContext,
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

    async def call(self, name: str, given: dict[str, Any]) -> Answer:
        """Call the tool *name*. If it fails, the answer says why, in words of ours only.

        Nothing in it tells of paths, of other scopes, or of what is stored. `UnknownTool` if there
        is none of that name.
        """
        spec = next((spec for spec in SPECS if spec.name == name), None)
        if spec is None:
            known = ", ".join(spec.name for spec in self.specs)
            raise UnknownTool(f"There is no such tool. There are: {known}.")
        if spec.writes and not self.writes:
            return Answer(READ_ONLY, failed=True)
        try:
            tool: Callable[[Any], Awaitable[str]] = getattr(self, spec.name)  # one of those below
            return Answer(await self._recorded(spec, tool(arguments.parse(given, spec.arguments))))
        except arguments.InvalidArguments as error:
            return Answer(str(error), failed=True)
        except LimpetError as error:
            mistake = isinstance(error, _MISTAKES)
            if not mistake:
                log.warning("%s: %s: %s", name, type(error).__name__, error)
            message = next((text for kind, text in _MESSAGES if isinstance(error, kind)), None)
            unknown = f"That cannot be stored or looked up: {error}" if mistake else BROKEN
            return Answer(message or unknown, failed=True)
        except Exception:
            log.exception("%s failed", name)
            return Answer(BROKEN, failed=True)

    async def _recorded(self, spec: Spec, call: Awaitable[str]) -> str:
        """What *call* returns, which is recorded as an act if it writes."""
        text = await call
        if spec.writes:
            await audit.record(
                self._store.scope,
                _PAST[spec.name],
                via="mcp",
                who=self._by,
                kind=KIND,
                id=self._memory.namespace,
            )
        return text

    # -- reading ---------------------------------------------------------------------------------

    async def recall(self, asked: arguments.Recall) -> str:
        hits = await self._memory.recall(
            asked.query,
            k=asked.k,
            kinds=asked.kinds or None,
            tags=asked.tags or None,
            since=asked.since,
            until=asked.until,
            min_score=asked.min_score or None,
        )
        return render_lines(
            f"{_memories(len(hits))}, the best first.",
            map(fields, hits),
            none="Nothing that fits is remembered here.",
        )

    async def related(self, asked: arguments.Related) -> str:
        hits = await self._memory.related(asked.id, k=asked.k)
        return render_lines(
            f"{_memories(len(hits))} that are linked to it.",
            map(fields, hits),
            none="Nothing is linked to it.",
        )

    async def status(self, _asked: arguments.Status) -> str:
        stats = await self._memory.stats()
        filters = Filters(kinds=[task.KIND], prefix=self._prefix, status=task.OPEN)
        found = await listing(self._store.scope, filters, most=TASKS + 1)  # there may be a million
        for key, error in found.damaged:
            log.warning("%s %r is left out of status: %s", key.kind, key.id, error)
        tasks = []
        for row in found.rows[:TASKS]:
            line = {"task": row.head.id, "status": row.head.status}
            if row.task is not None:
                line |= {"goal": shorten(row.task.goal, EXCERPT), "progress": row.task.progress}
            line["where"] = shorten(where(row), EXCERPT)
            tasks.append({name: text for name, text in line.items() if text})
        writing = "read and write" if self.writes else "read only"
        some = "Some of the open tasks:" if len(found.rows) > TASKS else "The open tasks:"
        listed = render_lines(some, tasks, none="No task is open.")
        if found.damaged:
            listed += f"\nLeft out, being damaged: {count(len(found.damaged), 'task')}."
        return f"Access: {writing}. {_memories(stats.memories)}.\n{listed}"

    async def snapshot(self, asked: arguments.Snapshot) -> str:
        counts = (await self._memory.stats()).kinds
        first = [kind for kind in STANDING if kind in counts]
        kinds = {kind: counts[kind] for kind in [*first, *counts]}
        found = []
        for kind, number in list(kinds.items())[:KINDS]:
            newest = await self._memory.list(kinds=[kind], limit=asked.per_kind)
            shown = [fields(one, EXCERPT) for one in newest]
            found.append({"kind": kind, "count": number, "newest": shown})
        left = f" {len(kinds) - KINDS} more kinds are not shown." if len(kinds) > KINDS else ""
        return render_lines(
            f"By kind ({len(kinds)}), with the newest of each.{left}",
            found,
            none="Nothing is remembered yet.",
        )

    async def checkpoint(self, asked: arguments.Checkpoint) -> str:
        return render_checkpoint(await self._store.task(self._allowed(asked.task)).checkpoint())

    async def resume_context(self, asked: arguments.ResumeContext) -> str:
        found = self._store.task(self._allowed(asked.task))
        return await found.resume_context(max_tokens=asked.max_tokens, memories=self._memory)

    def _allowed(self, id_: str) -> str:
        # What may not be seen is not there: the answer tells no difference.
        if not id_.startswith(self._prefix):
            raise TaskNotFound
        return id_

    # -- writing ---------------------------------------------------------------------------------

    async def remember(self, asked: arguments.Remember) -> str:
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

    async def update(self, asked: arguments.Update) -> str:
        # Whoever said the older version did not say this.
        made = await self._memory.update(
            asked.id, asked.text, asked.because or None, by=self._by, trust=self._trust
        )
        return f"Updated: {made.id} now stands for it."

    async def forget(self, asked: arguments.Forget) -> str:
        gone = (await self._memory.forget(*asked.ids)).ids
        return f"Forgot {_memories(len(gone))}, older versions included."


def _memories(number: int) -> str:
    return count(number, "memory", "memories")
