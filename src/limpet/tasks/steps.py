"""Steps: run once, tried as often as is said, and brought back by their policy when in doubt."""

from __future__ import annotations

import time
from types import CoroutineType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from limpet.core.calls import Call
from limpet.core.codec import convert, fresh, is_plain, plain, uncompressed_size
from limpet.errors import (
    Conflict,
    DeadlinePassed,
    LeaseLost,
    NotStorable,
    StepTimedOut,
    StoreWentBack,
    TaskHalted,
    TaskNotOpen,
    TaskWaiting,
    TooLarge,
    Unreadable,
)
from limpet.tasks import entries as kinds
from limpet.tasks.context import StepContext, running_step
from limpet.tasks.entries import RESULTS, describe, error_path
from limpet.tasks.retry import ASK, PLAIN, SKIP, VERIFY, StepPolicy
from limpet.tasks.state import Large

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.core.scope import Scope
    from limpet.tasks.record import TaskRecord

__all__ = ["ABOUT_THE_TASK", "INTERRUPTS", "StepRunner", "not_a_function", "typed"]

#: Bytes over which a result has a place of its own, so that resuming a task does not read it.
LARGE = 8 * 1024
PREVIEW = 300

#: Bytes up to which it is quicker to see that a result is plain data than to read it back.
QUICK = 1024

#: What is raised about the task, and says nothing about the step it came out of.
ABOUT_THE_TASK = (TaskHalted, LeaseLost, StoreWentBack, TaskNotOpen, DeadlinePassed)

#: By what an engine asks a run to end where that is an Exception; `limpet.workers.celery` adds its
#: own. It is no failure: the step is not tried again in this run, and the task stays open.
INTERRUPTS: set[type[Exception]] = set()


class StepRunner:
    """Runs the steps of one task, through one runtime, and has their results.

    For a task's own methods, for effects, and for adapters that make steps of tool calls.
    """

    def __init__(self, record: TaskRecord) -> None:
        self.record = record
        self.live = record.live

    def through(self, scope: Scope) -> StepRunner:
        """The same, for code that reaches the store through the runtime of *scope*."""
        record = self.live.through(scope)
        return self if record is self.record else StepRunner(record)

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        policy: StepPolicy = PLAIN,
        *,
        as_: Any = None,
    ) -> Any:
        """Run *function* as the step *name*, or as name#2 if there was one of that name before."""
        name = self.live.name_step(name)
        try:
            return await self.run(name, function, args, kwargs, policy, as_=as_)
        except BaseException:  # also of a cancellation: the same call again is the same step
            self.live.withdraw_name(name)
            raise

    async def run(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        policy: StepPolicy = PLAIN,
        *,
        as_: Any = None,
    ) -> Any:
        """Run *function* as the step *name*, exactly; if that is done, only return its result."""
        live = self.live
        state = live.state
        if name not in state.results:
            live.check_running("step", name)
            if name not in state.calls.open or not await self._resolve_doubt(name, policy):
                await self._perform(name, function, args, kwargs or {}, policy)
        found = live.state.results[name]
        if as_ is None and found.__class__ is not Large:  # as nearly always
            return fresh(found)
        return await self.load(name, as_)

    async def _perform(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        policy: StepPolicy,
    ) -> None:
        """Try until it works, or until it is not to be tried again."""
        if not callable(function):
            raise not_a_function(function, f"step({name!r}, …)")
        live, runtime = self.live, self.record.runtime
        while True:
            step = self.context(name)
            if policy is not PLAIN or live.state.status == kinds.WAITING:
                await self.record.check_not_waiting(f"step {name!r} is not begun")
                if policy.marked and not await self._begin(step, policy):
                    return
            began = time.monotonic()
            token = running_step.set(step)
            try:
                try:
                    if policy.retry is None or policy.retry.timeout is None:
                        result = await runtime.invoke(function, *args, **kwargs)
                    else:
                        timeout = policy.retry.timeout
                        result = await self._invoke_within(timeout, step, function, args, kwargs)
                finally:
                    running_step.reset(token)
            except Exception as error:
                if not await self.try_again(step, policy, error):
                    raise
                if policy.in_doubt == VERIFY and await self._resolve_doubt(name, policy):
                    return
            else:
                took = round(time.monotonic() - began, 6)
                about = {"took": took, "effect": True} if policy.effect else {"took": took}
                await self.record_result(name, result, about)
                return

    def context(self, name: str) -> StepContext:
        """What the function of the step *name* gets to know."""
        live, state = self.live, self.live.state
        attempt = len(state.tried.get(name, ())) + 1
        return StepContext(live, name, attempt, state.progress.get(name))

    async def _begin(self, step: StepContext, policy: StepPolicy) -> bool:
        """Record that a step is about to have its effect; False if it is not to have it any more.

        Somebody may have halted the task, or said what became of the step, before that was
        recorded. It has not run then, and no doubt is left behind.
        """
        live, record = self.live, self.record
        epoch = live.held().lease.epoch
        call = Call(step.name, policy=policy.in_doubt, attempt=step.attempt, epoch=epoch)
        body = {**msgspec.to_builtins(call), **live.given(step.name)}
        await record.write_call(kinds.BEGAN, body, opens=call)
        halted: BaseException | None = None
        try:
            live.check_running("step", step.name)
        except (TaskHalted, DeadlinePassed) as error:
            halted = error
        if halted is None and step.name not in live.state.results:
            return True
        never = {"id": step.name, "how": "retry", "by": "it never ran"}
        await record.write_call(kinds.RESOLVED, never, closes=step.name)
        if halted is not None:
            raise halted
        return False

    async def _invoke_within(
        self,
        seconds: float,
        step: StepContext,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        try:
            return await self.record.runtime.invoke_within(seconds, function, *args, **kwargs)
        except StepTimedOut as error:
            if error.step:
                raise  # that of a step within this one
            msg = (
                f"Attempt {step.attempt} at step {step.name!r} of task {self.live.id!r} took "
                f"longer than its {seconds:g} seconds, and was given up."
            )
            raise StepTimedOut(msg, step.name) from error.__cause__

    async def try_again(self, step: StepContext, policy: StepPolicy, error: Exception) -> bool:
        """Record that an attempt failed, and wait for the next; False if there is none."""
        live, record = self.live, self.record
        if isinstance(error, (*ABOUT_THE_TASK, *INTERRUPTS)):
            return False
        if all(error is not known for known, _ in live.run.failed):  # or it is an inner step's
            live.run.failed.append((error, step.name))
        if live.reports:
            await record.runtime.call(live.heartbeat)
        if policy.retry is None and not policy.marked:
            return False  # as nearly all are; the end of the task's block records it
        wait = None if policy.retry is None else policy.retry.delay(step.attempt, error)
        failed = {"name": step.name, "attempt": step.attempt, "error": describe(error)}
        failed |= live.given(step.name)
        if wait is not None:
            failed["wait"] = wait
        call = live.state.calls.open.get(step.name)
        if call is None:
            await record.write(kinds.TRIED, failed)
        else:
            call = structs.replace(call, error=failed["error"])
            await record.write_call(kinds.TRIED, failed, opens=call)
        if wait is None:
            if policy.retry is not None:
                live.run.exhausted.append(error)
            return False
        await record.runtime.sleep(wait)
        live.check_running("step", step.name)
        return True

    # -- in doubt ----------------------------------------------------------------------------------

    async def _resolve_doubt(self, name: str, policy: StepPolicy) -> bool:
        """Whether a step that may have happened needs no run: by its policy."""
        if name not in self.live.state.calls.open:
            return name in self.live.state.results
        if policy.verify is not None:
            step = self.context(name)
            token = running_step.set(step)
            try:
                answer = await self.record.runtime.invoke(policy.verify, step.idempotency_key)
            finally:
                running_step.reset(token)
            if answer is not None:
                await self.record_result(name, answer, {"verified": True, "effect": True})
            return answer is not None
        if policy.in_doubt == SKIP:
            skipped = {"name": name, "because": "it was in doubt"}
            await self.record.write_call(kinds.SKIPPED, skipped, closes=name)
            return True
        return policy.in_doubt == ASK and await self.ask(name)

    async def ask(self, name: str) -> bool:
        """Leave it to a person whether a step has happened; unless one has just said so."""
        live = self.live
        while name in live.state.calls.open:
            live.check_running("step", name)
            try:
                await self.record.write_wait(name, "ask", None, away=True, expect=live.state.seq)
            except Conflict:  # somebody wrote in between, perhaps to cancel the task
                await self.record.catch_up()
                continue
            error = live.state.calls.open[name].error
            ended = "its process died" if error is None else f"it ended with {error!s:.200}"
            words = ("task", "resolve", live.id, name, "done", "--result", "JSON")
            by_command = self.record.scope.command(*words)
            msg = (
                f"Nobody knows whether step {name!r} of task {live.id!r} happened before {ended}. "
                f"Find out, then say so: store.resolve({live.id!r}, {name!r}, 'done' | 'retry' | "
                f"'skip'), or {by_command} (or retry, or skip)."
            )
            raise TaskWaiting(msg, live.id, name)
        return name in live.state.results

    # -- results -----------------------------------------------------------------------------------

    async def record_result(
        self, name: str, result: Any, about: dict[str, Any], *, expect: int | None = None
    ) -> None:
        """Record a step's result; a large one apart, so that only those who ask for it read it.

        *about* is what else the entry says.
        """
        record, live = self.record, self.live
        about |= live.given(name)
        result = record.scope.redacted(result)
        value = {"name": name, "result": result, **about}
        try:
            encode = record.journal.codec.encode_run
            encoded = encode([kinds.STEP, value])
            size = uncompressed_size(encoded)
            if size > LARGE:
                value = {"name": name, "large": await self._put_apart(result, size), **about}
                encoded = encode([kinds.STEP, value])
        except (NotStorable, TooLarge):  # caught first: what nearly always works has no overhead
            with error_path("step['result']", f"results[{name!r}]"):
                raise
        if name in live.state.calls.open:
            await record.write_call(kinds.STEP, value, closes=name, body=encoded, expect=expect)
            return
        lease = live.held().lease
        request = record.journal.request(
            ((kinds.STEP, value),), lease=lease, body=encoded, expect=expect
        )
        done = await record.append(request)
        # Plain data is what would be read back. What a wait ended with says more than a result.
        known = "took" in about and size <= QUICK and is_plain(result)
        if not (known and live.apply_result(done, name, fresh(result))):
            await record.apply(request, done)

    async def _put_apart(self, result: Any, size: int) -> dict[str, Any]:
        # First this, then the entry that points to it: a crash in between leaves something that
        # nobody points to, and `Store.sweep` takes it away with the task.
        apart = self.record.scope.journal(RESULTS, self.live.id)
        seq = await apart.append(("result", result), ttl=None)
        found = plain(result, "result")
        preview = found if isinstance(found, str) else msgspec.json.encode(found).decode()
        return {"seq": seq, "size": size, "preview": preview[:PREVIEW]}

    async def load(self, name: str, as_: Any = None) -> Any:
        """A step's result, from where it is stored, as the type *as_* if one is named."""
        found = self.live.state.results[name]
        if isinstance(found, Large):
            found = await self.read_large(name, found.seq)
        return typed(found, as_, self.live.id, name)

    async def read_large(self, name: str, seq: int) -> Any:
        """The result that the step *name* has put apart."""
        apart = self.record.scope.journal(RESULTS, self.live.id)
        for entry in await apart.read(after=seq - 1, upto=seq):
            return entry.body
        msg = (
            f"The result of step {name!r} of task {self.live.id!r} was kept apart (entry {seq} of "
            f"{RESULTS} {self.live.id!r}), and is not there. Restore it, or rewind to that step."
        )
        raise Unreadable(msg)


def typed(value: Any, as_: Any, task_id: str, step: str) -> Any:
    """A copy of what a step has stored, as the type *as_* if one is named."""
    if as_ is None:
        return fresh(value)
    return convert(value, as_, f"result of step {step!r} of task {task_id!r}")


def not_a_function(value: Any, call: str) -> TypeError:
    """The error for a *call* that was given what a function returned, in the function's place."""
    if isinstance(value, CoroutineType):
        value.close()  # nobody awaits it now
    return TypeError(
        f"{call} takes a function, and this is a value of type {type(value).__name__}. Pass the "
        "function, not what it returns, and its arguments behind it: not f(x), but f, x."
    )
