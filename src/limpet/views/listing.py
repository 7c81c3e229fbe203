"""The list: rows over all kinds or some, filtered; what `limpet ls` prints and home shows.

Work per page is bounded: so many heads are looked at, and so many entries read. A page that found
little says where to go on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from msgspec import Struct

from limpet import memory
from limpet.backends.contract import Head, Key, from_micros
from limpet.conversations import conversation
from limpet.core.ids import OWN, check_id, check_labels, check_prefix
from limpet.core.journal import MALFORMED
from limpet.errors import StoreCorrupt, StoreError, Unreadable
from limpet.integrations.langgraph import thread
from limpet.states.format import KIND as STATE
from limpet.tasks import entries as task
from limpet.tasks.state import TaskState, Wait
from limpet.views import PAGE, WHOLE, threads
from limpet.views.heads import HeadView, kinds_of, scan_heads
from limpet.views.messages import written
from limpet.views.text import one_line, shorten, timestamp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from limpet.core.scope import Scope

T = TypeVar("T")
R = TypeVar("R")

__all__ = [
    "BUDGET",
    "LOOK",
    "MODELS",
    "Budget",
    "Filters",
    "Listing",
    "Order",
    "Row",
    "TaskFacts",
    "listing",
    "ordered_kinds",
    "rows_of",
    "where",
]

#: The kinds of our models, in the order in which they are listed; others come after them.
MODELS = (conversation.KIND, task.KIND, STATE, thread.KIND, memory.KIND)

#: Heads that are looked at for one page, and how many at a time.
LOOK = 2_000
SLICE = 250

#: Entries, and bytes, that are read for one page; and bytes of one journal.
BUDGET = 10_000
BYTES = 4_000_000
LARGE = 1_000_000

#: Characters of an error in a line.
ERROR = 200

#: Bytes of an entry, on average, up to which the first one of a long journal is read.
HANDY = 50_000

Order = Literal["id", "updated", "size"]

_ORDERS: dict[str, Callable[[Head], Any]] = {
    "updated": lambda head: head.updated,
    "size": lambda head: head.size,
}


class Filters(Struct, frozen=True):
    """What is listed: all of it must hold. *text* is in the id, a label, or a task's goal."""

    kinds: Sequence[str] | None = None
    prefix: str = ""
    status: str | None = None
    labels: dict[str, str] = {}
    text: str = ""
    before: datetime | None = None  # last written to
    since: datetime | None = None
    larger: float | None = None  # than so many bytes
    order: Order = "id"  # of each kind; the newest, or largest, of all kinds first

    def fits(self, head: Head) -> bool:
        """Whether what the backend does not filter by holds, but for the text."""
        updated = from_micros(head.updated)
        return (
            (self.before is None or updated < self.before)
            and (self.since is None or updated >= self.since)
            and (self.larger is None or head.size > self.larger)
        )

    @property
    def narrows(self) -> bool:
        """Whether it leaves anything out."""
        return self != Filters(order=self.order)


class TaskFacts(Struct, frozen=True):
    """What the entries of a task come to. Of a long one only the goal is known."""

    goal: str
    whole: bool = True
    done: int = 0  # of those that were planned, if there is a plan
    planned: int | None = None
    step: str = ""  # the one that runs, if somebody works on it, or the next
    waits: dict[str, Wait] = {}
    error: str = ""
    failed_step: str = ""

    @property
    def progress(self) -> str:
        """How far it has come: 2/6, or 2 where nothing is planned; "" if that says nothing."""
        if not self.whole or (self.planned is None and self.done == 0):
            return ""
        return str(self.done) if self.planned is None else f"{self.done}/{self.planned}"

    @property
    def awaited(self) -> list[str]:
        """The signals that it waits for."""
        return [wait.signal for wait in self.waits.values() if wait.signal is not None]


class Row(Struct, frozen=True):
    """A journal in a list. *damaged*: why its entries cannot be read.

    *thread*: what is ``asked`` in it, and what else `threads.facts` says where all were read.
    """

    stored: Head
    head: HeadView
    task: TaskFacts | None = None
    thread: dict[str, Any] = {}
    damaged: str = ""


class Listing(Struct, frozen=True):
    """Some rows; *after* is where to go on, None at the end.

    *looked*: at so many heads. *partial*: there are more, which were not put in order with these.
    """

    rows: list[Row]
    after: str | None
    looked: int
    damaged: list[tuple[Key, StoreError]]
    partial: bool = False


class Budget:
    """Entries and bytes that may still be read; None: any number."""

    def __init__(self, entries: int | None = BUDGET) -> None:
        self._entries = entries
        self._bytes = BYTES

    def take(self, head: Head, most: int = WHOLE) -> bool:
        """Whether all of *head*'s journal, of up to *most* entries, is to be read."""
        entries = head.seq - (head.first - 1)
        if entries > most or head.size > LARGE:
            return False
        if self._entries is None:
            return True
        if entries > self._entries or head.size > self._bytes:
            return False
        self._entries -= entries
        self._bytes -= head.size
        return True


async def ordered_kinds(scope: Scope, named: Collection[str] = ()) -> list[str]:
    """The kinds that there are: those of our models first, then others by name.

    What the store keeps for itself is nobody's data: its kinds are there if they are *named*.
    """
    there = [kind for kind in await kinds_of(scope) if kind in named or not kind.startswith(OWN)]
    return [
        *(kind for kind in MODELS if kind in there),
        *(kind for kind in there if kind not in MODELS),
    ]


async def listing(
    scope: Scope,
    filters: Filters,
    *,
    after: str | None = None,
    most: int | None = PAGE,
    look: int | None = LOOK,
    budget: int | None = BUDGET,
    every_thread: bool = False,
) -> Listing:
    """The next rows that fit *filters*: at most *most*, of *look* heads; None: of all.

    *budget*: entries that are read for them. *every_thread*: read each thread, not only those that
    wait for an answer.
    """
    check_prefix(filters.prefix)
    check_labels(filters.labels)
    if filters.status is not None:
        check_id(filters.status, "status")
    kinds = await ordered_kinds(scope, filters.kinds or ())
    if filters.kinds is not None:
        kinds = [kind for kind in kinds if kind in filters.kinds]
    search = _Search(scope, filters, kinds, look)
    if filters.order == "id":
        heads, after = await search.by_id(after, most)
    else:
        heads, after = await search.in_order(after, most)
    rows = await rows_of(scope, heads, Budget(budget), every_thread=every_thread)
    return Listing(rows, after, search.looked, search.damaged, search.partial)


class _Search:
    """The heads for one page, and what is known of the search for them."""

    def __init__(
        self, scope: Scope, filters: Filters, kinds: Sequence[str], look: int | None
    ) -> None:
        self._scope = scope
        self._filters = filters
        self._kinds = kinds
        self._look = look
        self._after: str | None = None
        self.looked = 0
        self.damaged: list[tuple[Key, StoreError]] = []
        self.partial = False

    @property
    def _left(self) -> int:
        """How many heads to ask for next."""
        return SLICE if self._look is None else min(SLICE, self._look - self.looked)

    async def by_id(self, after: str | None, most: int | None) -> tuple[list[Head], str | None]:
        """Heads in the order in which the backend has them; and where to go on."""
        heads: list[Head] = []
        self._after = after
        while self._left:
            size = self._left
            if most is not None and self._filters == _of_backend(self._filters):
                size = min(size, most - len(heads))  # each will fit
            fitting = await self._next(size)
            for head in fitting:
                heads.append(head)
                if len(heads) == most:
                    if head is not fitting[-1] or self._after is not None:
                        self._after = f"{head.key.kind}/{head.key.id}"
                    return heads, self._after
            if self._after is None:
                break
        return heads, self._after

    async def in_order(self, after: str | None, most: int | None) -> tuple[list[Head], str | None]:
        """Heads in another order: each page looks at the same ones, and shows its part of them."""
        if after is not None and not re.fullmatch(r"\d{1,9}", after, re.ASCII):
            raise ValueError("There is nothing to go on from: begin again.")
        heads: list[Head] = []
        while self._left:
            heads += await self._next(self._left)
            if self._after is None:
                break
        self.partial = self._after is not None
        heads.sort(key=_ORDERS[self._filters.order], reverse=True)
        begin = int(after or 0)
        end = len(heads) if most is None else begin + most
        return heads[begin:end], str(end) if end < len(heads) else None

    async def _next(self, most: int) -> list[Head]:
        """Look at the next *most* heads, and return those that fit."""
        piece = await scan_heads(
            self._scope,
            self._kinds,
            after=self._after,
            most=most,
            prefix=self._filters.prefix,
            status=self._filters.status,
            labels=self._filters.labels,
        )
        self.looked += len(piece.heads)
        self.damaged += piece.damaged
        self._after = piece.after
        fitting = [head for head in piece.heads if self._filters.fits(head)]
        if not self._filters.text:
            return fitting
        words = self._filters.text.casefold()
        has = await _each(self._scope, lambda head: _has(self._scope, head, words), fitting)
        return [head for head, one in zip(fitting, has, strict=True) if one]


def _of_backend(filters: Filters) -> Filters:
    """The same without what the backend does not filter by."""
    return Filters(
        filters.kinds, filters.prefix, filters.status, filters.labels, order=filters.order
    )


async def _has(scope: Scope, head: Head, words: str) -> bool:
    """Whether *words* are in the id of *head*, in a label, or in the goal of a task."""
    texts = [head.key.id, *(f"{name}={value}" for name, value in head.labels.items())]
    if any(words in text.casefold() for text in texts):
        return True
    return head.key.kind == task.KIND and words in (await _goal(scope, head)).casefold()


# -- rows ------------------------------------------------------------------------------------------


async def rows_of(
    scope: Scope, heads: Iterable[Head], budget: Budget, *, every_thread: bool = False
) -> list[Row]:
    """A row for each of *heads*, with what *budget* lets be read of their entries."""
    plan = []
    for head in heads:
        asks = head.key.kind == thread.KIND and head.status == thread.INTERRUPTED
        if head.key.kind == task.KIND or asks:
            plan.append((head, budget.take(head)))
        else:
            plan.append((head, every_thread and head.key.kind == thread.KIND))

    async def make(one: tuple[Head, bool]) -> Row:
        head, whole = one
        if head.key.kind == task.KIND:
            return await _task_row(scope, head, whole=whole)
        return (
            await _thread_row(scope, head, every=every_thread)
            if whole
            else Row(head, HeadView.of(head))
        )

    return await _each(scope, make, plan)


async def _thread_row(scope: Scope, head: Head, *, every: bool) -> Row:
    view = HeadView.of(head)
    try:
        facts = await threads.facts(scope, head)
    except (StoreCorrupt, *MALFORMED) as error:
        return Row(head, view, damaged=str(error))
    if not facts:
        return Row(head, view, damaged="Its entries are not those of a thread.")
    return Row(head, view, thread=facts if every else {"asked": facts.get("asked", [])})


async def _task_row(scope: Scope, head: Head, *, whole: bool) -> Row:
    view = HeadView.of(head)
    if not whole:
        return Row(head, view, TaskFacts(await _goal(scope, head), whole=False))
    journal = scope.journal(task.KIND, head.key.id)
    state = TaskState(head.key.id)
    try:
        for record in await journal.page(after=head.first - 1, upto=head.seq, limit=WHOLE):
            for entry in journal.entries(record):
                state.apply(entry)
        return Row(head, view, _facts(state, held=view.held))
    except (Unreadable, StoreCorrupt, *MALFORMED) as error:
        return Row(head, view, damaged=str(error))


def _facts(state: TaskState, *, held: bool) -> TaskFacts:
    left = state.steps_left()
    under_way = [*state.calls.open, *state.progress] if held else []
    ended = state.status in (task.DONE, task.FAILED, task.CANCELLED)
    return TaskFacts(
        goal=written(state.goal),
        done=len(state.planned) - len(left) if state.plan else len(state.results),
        planned=len(state.planned) if state.plan else None,
        step="" if ended else next(iter([*under_way, *left]), ""),
        waits=state.waits if state.status == task.WAITING else {},
        error=written(state.error or ""),
        failed_step=state.failed_step or "",
    )


async def _goal(scope: Scope, head: Head) -> str:
    """The goal of a task, which its first entry says; "" where that may be large, or is damaged."""
    if head.size > HANDY * (head.seq - (head.first - 1)):
        return ""
    journal = scope.journal(task.KIND, head.key.id)
    try:
        records = await journal.page(after=head.first - 1, upto=head.seq, limit=1)
        kind, body = journal.pairs(records[0])[0]
        return written(body["goal"]) if kind == task.CREATED else ""
    except (Unreadable, StoreCorrupt, *MALFORMED):
        return ""


async def _each(scope: Scope, make: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """What *make* returns for each of *items*; side by side, where it awaits."""
    if scope.is_sync:
        return [await make(one) for one in items]
    import asyncio  # noqa: PLC0415 - commands never pay for it

    return list(await asyncio.gather(*map(make, items)))


# -- in words --------------------------------------------------------------------------------------


def where(row: Row) -> str:
    """Where it is, on one line: what is in doubt, asked, awaited, next, or has gone wrong."""
    if row.damaged:
        return "damaged: see limpet doctor"
    words = []
    if row.head.doubts:
        words.append("in doubt: " + ", ".join(call.title for call in row.head.doubts))
    if row.thread:
        known = "checkpoints" in row.thread
        asked = (f"asks {threads.asked_line(one)}" for one in row.thread["asked"])
        words += [threads.facts_line(row.thread)] if known else asked
    if row.task is not None:
        words += _of_task(row.task, row.head)
    return one_line("; ".join(words))


def _of_task(facts: TaskFacts, head: HeadView) -> list[str]:
    if facts.error and not head.held:
        how = ["stopped"] if head.status == task.OPEN else []
        how += [f"in {facts.failed_step}"] if facts.failed_step else []
        error = shorten(one_line(facts.error), ERROR)
        return [f"{' '.join(how)}: {error}" if how else error]
    if facts.waits:
        return [_wait(name, wait) for name, wait in facts.waits.items() if wait.kind != "ask"]
    if not facts.step or head.doubts:
        return []
    return [f"at {facts.step}" if head.held else f"next: {facts.step}"]


def _wait(name: str, wait: Wait) -> str:
    until = f" until {timestamp(wait.until)}" if wait.until else ""
    if wait.kind == "sleep":
        return f"waits{until}" if until else f"waits: {name}"
    what = f"task {name}" if wait.kind == "child" else wait.signal or name
    return f"waits for {what}{until}"
