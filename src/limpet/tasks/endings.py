"""How a task ends: its outcome, what is remembered of it, who is handed it, and when it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET, structs

from limpet.backends.contract import Record, micros
from limpet.core.ids import check_ttl
from limpet.errors import Conflict
from limpet.tasks import entries as kinds
from limpet.tasks.core import described
from limpet.tasks.remembering import (
    DEFAULT,
    LOOKED_AT,
    Memories,
    asked,
    debt,
    lessons,
    news,
    others,
    question,
    recalled,
)
from limpet.tasks.state import Debt, plain
from limpet.tasks.steps import called
from limpet.tasks.transactions import Transactions
from limpet.tasks.words import place

if TYPE_CHECKING:
    from limpet.backends.contract import Append
    from limpet.tasks.state import TaskState

__all__ = ["Endings"]


class Endings(Transactions):
    """The end of a task, and what goes from one task to another."""

    async def finish(
        self,
        outcome: Any = None,
        *,
        keep: float | bool = True,
        remember: Memories | str | bool = False,
    ) -> Any:
        """End the task with *outcome* and return it as stored. The first outcome stays.

        *keep* says what becomes of the record: it stays (for the task's ttl, if it has one), stays
        for so many seconds, or goes (False) when the block ends. *remember*: outcome, decisions and
        discoveries go into this memory, or this namespace of the store (True: "tasks"); whoever
        `Store.on_finish` names is handed the checkpoint. Both come before the record goes, and
        after a crash whoever opens the task next does what is left of them. On SQLite and
        PostgreSQL, outcome and a memory of the same store are written in one act.
        """
        where = debt(self._scope, remember)
        if not self.done:
            self._check_running("outcome")
            await self._check_awake("it is not finished")
            body: dict[str, Any] = {"outcome": outcome}
            if keep is not True:
                body["keep"] = keep
            if where is not None:  # for whoever opens the task after us
                body["remember"] = structs.asdict(where)
            if where is None or not await self._finish_at_once(body, where):
                # While something is left to do it is listed as open, so that a worker does it.
                last = where is None and not self._scope.store.on_finish
                with called("finished['outcome']", "outcome"):
                    await self._record(kinds.FINISHED, body, **(_done(keep) if last else {}))
        await self._settle_up(where, remember)
        return self.outcome

    async def _finish_at_once(self, body: dict[str, Any], where: Debt) -> bool:
        """Record the outcome and remember it in one act, if the store can; False if it cannot.

        If others wrote first, to the task or to the memory, what there is to remember is told anew.
        """
        if not (where.here and self._runtime.backend.transactional):
            return False
        ends = ((kinds.FINISHED, body), (kinds.REMEMBERED, structs.asdict(where)))
        changes = {} if self._scope.store.on_finish else _done(body.get("keep", True))
        while not self.done:
            lease, seq = self._own().lease, self._state.seq
            with called("finished['outcome']", "outcome"):
                request = self._journal.request(ends, lease=lease, expect=seq, **changes)
            try:
                learned = await lessons(self._scope, where, news(self._after(request)))
            except Exception:  # noqa: BLE001 - it comes up again, when the outcome is safe
                return False
            try:
                done, *_ = await self._runtime.call(
                    self._runtime.backend.append_all, [request, *learned]
                )
            except Conflict:
                await self._find_out()
            else:
                await self._let_count(Record(done.seq, request.count, done.at, request.body))
        return True

    def _after(self, request: Append) -> TaskState:
        """What the task comes to if *request* is written."""
        with self._folding:
            state = self._state.copy()
        at, seq = micros(self._now().timestamp()), state.seq + request.count
        for entry in self._journal.entries(Record(seq, request.count, at, request.body)):
            state.apply(entry)
        return state

    async def _find_out(self) -> None:
        """Read what was written before us: perhaps our own act, of which the answer was lost."""
        await self._catch_up()
        if self.done:
            await self._change()  # nothing; but if it was another worker's, we are fenced off

    async def _resume(self) -> None:
        await super()._resume()
        if self.done:  # a process may have died before it had handed it on
            await self._settle_up(self._state.debt)
            await self._list_as_done()

    async def _settle_up(self, where: Debt | None, memory: Any = None) -> None:
        """Remember it, hand it on, and let it go: each once, as far as a crash allows."""
        if where is not None and where not in self._state.remembered:
            await self._remember(where, memory)
        if self._scope.store.on_finish and not self._state.handed:
            point = self._state.checkpoint()
            for heir in self._scope.store.on_finish:
                await self._runtime.invoke(heir, point)
            await self._record(kinds.HANDED, {}, **self._over())
        self._leaving = self._state.keep is False and not self._state.owes

    async def _remember(self, where: Debt, memory: Any) -> None:
        """Write what was learned to memory, then note it; a crash in between doubles nothing.

        The outcome is on record before: whoever comes after us remembers the same.
        """
        self._own()
        state = self._state
        point = news(state)
        if where.here:
            await self._scope.memory(where.namespace).learn(point)
        elif hasattr(memory, "learn"):
            await asked(self._runtime, memory.learn, point)
        else:
            return  # in another store, which only the task's own program knows
        last = state.handed or not self._scope.store.on_finish
        # Noted, so that what is forgotten later is not learned again when the task is opened.
        changes = _done(state.keep) if last else {}
        await self._record(kinds.REMEMBERED, structs.asdict(where), **changes)

    async def _list_as_done(self) -> None:
        """If there is nobody here to hand it on to, leave that to others, but not to workers."""
        if self._scope.store.on_finish or self._leaving:
            return
        head = await self._journal.head()
        if head is not None and head.status == kinds.OPEN:
            await self._change(**self._over())

    def _over(self) -> dict[str, Any]:
        """What the head says now: that all is done; but nothing goes that is not remembered."""
        return _done(True if self._state.owes else self._state.keep)

    async def _change(self, **changes: Any) -> None:
        """Change what is not in the journal; under the lease, if we have it."""
        held = self._hold.held
        lease = None if held is None else held.lease
        if not await self._journal.append(lease=lease, **changes):
            raise self._not_found()

    async def fail(self, error: object) -> None:
        """Mark the task as failed, with the reason. Opening it again resumes it."""
        self._check_running("failure")
        await self._check_going_on("it is not called failed")
        body = {"error": described(error), **place(error)}
        await self._record(kinds.FAILED, body, status=kinds.FAILED)

    # -- what comes from other tasks ---------------------------------------------------------------

    async def _recalled(self, state: TaskState, memories: Any) -> list[Any]:
        """What *memories* have for this task, or are; to say so again is no news."""
        found = await self._recall(state, memories)
        self._told |= {plain(one.text) for one in found}
        return found

    def _repeats(self, *texts: str) -> dict[str, bool]:
        """A mark for what the task was told before it says so: then it is not remembered anew."""
        return {} if self._told.isdisjoint(map(plain, texts)) else {"recalled": True}

    async def _recall(self, state: TaskState, memories: Any) -> list[Any]:
        if memories is None or memories is False:
            return []
        if memories is True or isinstance(memories, str):
            memory = self._scope.memory(DEFAULT if memories is True else memories)
            return others(state, await memory.recall(question(state), LOOKED_AT))
        if not hasattr(memories, "recall"):
            return recalled(memories)
        hits = await asked(self._runtime, memories.recall, question(state), LOOKED_AT)
        return others(state, hits)


def _done(keep: float | bool) -> dict[str, Any]:  # noqa: FBT001 - as `finish` has it
    """What a task's head says when all is done; of one that goes, a worker may have to do that."""
    if keep is False:
        return {}
    return {"status": kinds.DONE, "ttl": UNSET if isinstance(keep, bool) else check_ttl(keep)}
