"""How a task ends: its outcome, who is told of it, when its record goes; or with an error."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, structs

from limpet.backends.contract import Record, to_micros
from limpet.core.ids import check_ttl
from limpet.errors import Conflict, DeadlinePassed, LeaseLost, TaskHalted
from limpet.tasks import entries as kinds
from limpet.tasks.entries import KIND, error_path, failure, flatten
from limpet.tasks.retry import ASK

if TYPE_CHECKING:
    from limpet.backends.contract import Append
    from limpet.tasks.memories import TaskMemories
    from limpet.tasks.state import MemoryTarget, TaskState
    from limpet.tasks.steps import StepRunner

__all__ = ["Ending"]


class Ending:
    """The end of a task, and of each run of it."""

    def __init__(self, runner: StepRunner, memories: TaskMemories) -> None:
        self._runner = runner
        self._record = runner.record
        self._live = runner.live
        self._memories = memories
        self._on_finish = runner.record.scope.store.on_finish

    # -- finished --------------------------------------------------------------------------------

    async def finish(self, outcome: Any, keep: float | bool, remember: Any) -> None:  # noqa: FBT001 - as `Task.finish` has it
        """End the task with *outcome*; see `Task.finish`."""
        live, record = self._live, self._record
        target = self._memories.target(remember)
        if live.state.status != kinds.DONE:
            live.check_running("outcome")
            await record.check_not_waiting("it is not finished")
            for name in sorted(live.state.calls.abandoned):
                call = live.state.calls.open.get(name)
                if call is not None and call.policy == ASK:
                    await self._runner.ask(name)
            value: dict[str, Any] = {"outcome": outcome}
            if keep is not True:
                value["keep"] = keep
            if target is not None:  # for whoever opens the task after us
                value["remember"] = structs.asdict(target)
            if target is None or not await self._finish_at_once(value, target):
                changes = self._closes_calls()
                if target is None and not self._on_finish:
                    changes |= _done(keep)
                # Else it is listed as open while something is left to do, so that a worker does it.
                with error_path("finished['outcome']", "outcome"):
                    await record.write(kinds.FINISHED, value, **changes)
        await self._complete(target, remember)

    def _closes_calls(self) -> dict[str, Any]:
        """What changes in the head of a finished task: nobody is asked any more about its calls."""
        return {"meta": None} if self._live.state.calls else {}

    async def _finish_at_once(self, value: dict[str, Any], target: MemoryTarget) -> bool:
        """Record the outcome and remember it in one act, if the store can; False if it cannot.

        If others wrote first, to the task or to the memory, it is worked out anew what to remember.
        """
        live, record, backend = self._live, self._record, self._record.runtime.backend
        if not (target.here and backend.transactional):
            return False
        ends = ((kinds.FINISHED, value), (kinds.REMEMBERED, structs.asdict(target)))
        changes = {} if self._on_finish else _done(value.get("keep", True))
        while live.state.status != kinds.DONE:
            lease, expect = live.held().lease, live.state.seq
            with error_path("finished['outcome']", "outcome"):
                request = record.journal.request(
                    ends, lease=lease, expect=expect, **changes, **self._closes_calls()
                )
            try:
                learned = await self._memories.requests(target, self._after(request))
            except Exception:  # noqa: BLE001 - it comes up again, when the outcome is safe
                return False
            try:
                done, *_ = await record.runtime.call(backend.append_all, [request, *learned])
            except Conflict as error:
                if error.expected == expect:
                    live.check_follows(expect, error.actual)
                await record.catch_up()
                # It may have been our own act, of which the answer was lost; but if it was another
                # worker's, this changes nothing and is refused.
                if live.state.status == kinds.DONE:
                    await record.change()
            else:
                await record.apply(request, done)
        return True

    def _after(self, request: Append) -> TaskState:
        """What the task comes to if *request* is written."""
        state = self._live.snapshot()
        record = Record(
            state.seq + request.count, request.count, to_micros(self._live.now()), request.body
        )
        for entry in self._record.journal.entries(record):
            state.apply(entry)
        return state

    async def complete(self) -> None:
        """Do what is left to do of a finished task: a process may have died before it had."""
        record, live = self._record, self._live
        await self._complete(live.state.memory_target)
        if self._on_finish or self._goes:
            return
        # There is nobody here to call. That is left to others, but not to workers.
        head = await record.journal.head()
        if head is not None and head.status == kinds.OPEN:
            await record.change(**self._all_done())

    async def _complete(self, target: MemoryTarget | None, memory: Any = None) -> None:
        """Remember it, and call the on_finish callbacks: each once, as far as a crash allows."""
        live, record = self._live, self._record
        if target is not None and target not in live.state.remembered:
            live.held()
            # The outcome is on record before: whoever comes after us remembers the same.
            if await self._memories.learn(target, memory):
                last = live.state.handed_on or not self._on_finish
                changes = _done(live.state.keep) if last else {}
                # So that what is forgotten later is not learned again when the task is opened.
                await record.write(kinds.REMEMBERED, structs.asdict(target), **changes)
        if self._on_finish and not live.state.handed_on:
            checkpoint = live.state.checkpoint()
            for callback in self._on_finish:
                await record.runtime.invoke(callback, checkpoint)
            await record.write(kinds.HANDED, {}, **self._all_done())

    def _all_done(self) -> dict[str, Any]:
        """What the head says when all is done; but nothing goes that is not remembered."""
        state = self._live.state
        return _done(True if state.memory_pending else state.keep)

    @property
    def _goes(self) -> bool:
        """Whether the record goes when the task is closed."""
        state = self._live.state
        if state.status != kinds.DONE or state.keep is not False or state.memory_pending:
            return False
        return state.handed_on or not self._on_finish

    async def remove(self) -> None:
        """Delete the task if it is to go, while it is ours: the next of this id is another's."""
        if self._goes and self._live.went_back is None:
            with suppress(LeaseLost):  # it was taken over, by somebody who finds it done
                await self._record.runtime.call(self._live.lock.confirm)
                await self._record.delete()

    # -- stopped, failed -------------------------------------------------------------------------

    async def fail(self, error: object) -> None:
        """Mark the task as failed, with the reason."""
        self._live.check_running("failure")
        await self._record.check_not_waiting("it is not called failed")
        await self._record.write(kinds.FAILED, self._failure(error), status=kinds.FAILED)

    async def record_error(self, error: BaseException) -> None:
        """Record what ended the task's block."""
        live, record = self._live, self._record
        if live.state.status not in (kinds.OPEN, kinds.WAITING) or live.went_back is not None:
            return
        errors = flatten(error)
        exhausted = set(map(id, live.run.exhausted))
        if any(id(one) in exhausted or isinstance(one, DeadlinePassed) for one in errors):
            await self.give_up(error)
        elif not all(isinstance(one, (LeaseLost, TaskHalted)) for one in errors):
            await record.write(kinds.STOPPED, self._failure(error))
        else:
            await self.wait_for_children(error)

    def _failure(self, error: object) -> dict[str, str]:
        """What an entry says of *error*: also in which step it arose, if it is one's."""
        errors = flatten(error) if isinstance(error, BaseException) else []
        failed = self._live.run.failed
        steps = (name for one in errors for known, name in failed if known is one)
        step = next(steps, None)
        return failure(error) if step is None else {**failure(error), "step": step}

    async def wait_for_children(self, error: BaseException) -> None:
        """Wait as the children do that raised *error*, if it is no more than that."""
        errors = flatten(error)
        if all(isinstance(one, (LeaseLost, TaskHalted)) for one in errors):
            for one in errors:
                if isinstance(one, TaskHalted) and one.task_id != self._live.id:
                    await self._wait_for_child(one)

    async def give_up(self, error: object) -> None:
        """Mark it as failed. If somebody has halted it meanwhile, it stays so, with a note."""
        live, record = self._live, self._record
        await record.catch_up()
        while live.state.status in (kinds.OPEN, kinds.WAITING):
            try:
                await record.write(
                    kinds.FAILED, self._failure(error), expect=live.state.seq, status=kinds.FAILED
                )
            except Conflict:
                await record.catch_up()
        if live.state.status in (kinds.PAUSED, kinds.CANCELLED):
            await record.write(kinds.STOPPED, self._failure(error))

    async def _wait_for_child(self, halted: TaskHalted) -> None:
        """Wait as a child of ours does, unless somebody has just halted this task, or woken it."""
        live, record = self._live, self._record
        if halted.task_id in live.run.waits:
            return  # it is recorded already
        live.run.waits.add(halted.task_id)
        await record.catch_up()
        while live.state.status in (kinds.OPEN, kinds.WAITING):
            try:
                await record.write_wait(
                    halted.task_id, "child", halted.until, away=True, expect=live.state.seq
                )
            except Conflict:
                await record.catch_up()
                continue
            # Whoever let the child go on before this was recorded did not find us waiting.
            child = await record.scope.journal(KIND, halted.task_id).head()
            if child is None or child.status not in kinds.HALTED:
                await record.write(kinds.RESUMED, {"agent": None}, status=kinds.OPEN)
            return


def _done(keep: float | bool) -> dict[str, Any]:  # noqa: FBT001 - as `finish` has it
    """What a task's head says when all is done; of one that goes, a worker may have to do that."""
    if keep is False:
        return {}
    return {"status": kinds.DONE, "ttl": UNSET if isinstance(keep, bool) else check_ttl(keep)}
