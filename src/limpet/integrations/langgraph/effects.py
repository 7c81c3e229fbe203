"""Effects in nodes and tools of a graph: each is made once, whatever becomes of the process.

A node that was cut short is run again, by LangGraph, from its beginning. What it did to the world
before that must not happen again, so each call of a `limpet.effect` is recorded before it is made,
and when it has ended: in a journal beside the thread's, of a kind of its own.

A call is known by LangGraph's id of the task that the node is run as, which is the same when the
node is run again on the same checkpoint, and by the effect's name and arguments. So another
checkpoint (the next turn, a fork, time travel) makes calls of its own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphBubbleUp, GraphInterrupt

from limpet.core.calls import SKIPPED, Call
from limpet.core.codec import fresh, plain
from limpet.core.recorded_calls import RecordedCalls
from limpet.core.runtime import run_to_end
from limpet.errors import CallsInDoubt, NotDurable, StepTimedOut, besides
from limpet.integrations.langgraph.thread import EFFECTS
from limpet.tasks.context import StepContext, recorders, running_step
from limpet.tasks.entries import numbered, withdraw
from limpet.tasks.retry import RETRY, SKIP, VERIFY

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.backends.contract import UnsetType
    from limpet.core.scope import Scope
    from limpet.integrations.langgraph.saver import LimpetSaver
    from limpet.tasks.record import LiveTask
    from limpet.tasks.retry import StepPolicy

__all__ = ["Effects", "GraphEffectInDoubt", "GraphTask", "copy_effects"]

#: Threads whose effects are held in memory; those in use always are.
HELD_THREADS = 100

#: Runs of nodes of one thread whose calls are counted at the same time.
HELD_RUNS = 10_000


class GraphEffectInDoubt(CallsInDoubt, GraphBubbleUp):
    """Nobody knows whether an effect of a graph has happened.

    To LangGraph it is what leaves a graph: no tool node tells a model of it, who might call the
    same tool again, and no retry policy runs the node again.
    """


class _ThreadEffects:
    """The effects of one thread, in this process: sync and async, of nodes side by side.

    Its methods block.
    """

    def __init__(self, scope: Scope, id_: str, ttl: float | UnsetType | None) -> None:
        self.calls = RecordedCalls(scope.as_sync(), EFFECTS, id_, ttl=ttl)
        self.users = 0
        self._mutex = threading.Lock()
        #: Of each run of a node: what tells it from another run of it, and the names given out.
        self._runs: OrderedDict[str, tuple[object, dict[str, int]]] = OrderedDict()

    def enter(self) -> None:
        """Begin to make a call; `LeaseHeld`, if another process makes some of the thread."""
        with self._mutex:
            if not self.users:
                run_to_end(self.calls.__aenter__())
            self.users += 1

    def leave(self) -> None:
        """It is over. Nobody makes one now, if it was the last."""
        with self._mutex:
            self.users -= 1
            if not self.users:
                run_to_end(self.calls.__aexit__(None, None, None))

    def forget(self, gone: Callable[[str], bool]) -> None:
        """Delete what is known of effects that stood on checkpoints which are *gone*."""
        self.enter()
        try:
            run_to_end(self.calls.forget(gone))
        finally:
            self.leave()

    def names(self, task: str, run: object) -> dict[str, int]:
        """The names that were given out in this *run* of a *task*."""
        with self._mutex:
            known = self._runs.get(task)
            if known is None or known[0] is not run:
                known = self._runs[task] = (run, {})
            self._runs.move_to_end(task)
            if len(self._runs) > HELD_RUNS:
                self._runs.popitem(last=False)
        return known[1]

    def name_call(self, name: str, seen: dict[str, int]) -> str:
        with self._mutex:
            return numbered(name, seen)

    def withdraw_name(self, name: str, seen: dict[str, int]) -> None:
        """Let the same call after an error be the same call, as it is when the node runs again."""
        with self._mutex:
            withdraw(name, seen)


class Effects:
    """The effects of a saver's threads."""

    def __init__(self) -> None:
        self._threads: OrderedDict[str, _ThreadEffects] = OrderedDict()
        self._mutex = threading.Lock()

    def of(self, scope: Scope, id_: str, ttl: float | UnsetType | None) -> _ThreadEffects:
        """Those of the thread whose journal is *id_*."""
        with self._mutex:
            found = self._threads.get(id_)
            if found is None:
                found = self._threads[id_] = _ThreadEffects(scope, id_, ttl)
            self._threads.move_to_end(id_)
            if len(self._threads) > HELD_THREADS:
                unused = [known for known, one in self._threads.items() if not one.users]
                for known in unused[: len(self._threads) - HELD_THREADS]:
                    if known != id_:
                        del self._threads[known]
            return found


class GraphTask:
    """What LangGraph runs a node as, through one runtime: what records its effects."""

    def __init__(self, saver: LimpetSaver, conf: dict[str, Any], scope: Scope) -> None:
        self._saver = saver
        self._conf = conf
        self._scope = scope
        self.thread = str(conf["thread_id"])
        self.task: str = conf["__pregel_task_id"]
        #: For `StepContext`.
        self.id = self.thread

    def through(self, scope: Scope) -> GraphTask:
        """The same through another runtime."""
        return GraphTask(self._saver, self._conf, scope)

    def idempotency_key(self, name: str) -> str:
        """``tenant:thread:task/call``, each escaped: that of no other call."""
        thread = (quote(part, "") for part in (self._scope.tenant, self.thread))
        return ":".join((*thread, quote(name, "/:#")))  # behind the last one, no matter

    def report(self, name: str, body: dict[str, Any], now: bool) -> None:  # noqa: FBT001 - as a task
        """Nothing: the progress of an effect of a graph is not kept."""

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        policy: StepPolicy,
    ) -> Any:
        """What *function* has returned when this call was made, or returns now."""
        await self._saver.wait_for(self._scope, self._conf)
        journal = self._saver.journal_id(self.thread)
        effects = self._saver.effects.of(self._scope, journal, self._saver.ttl)
        outer = running_step.get()
        if outer is not None and outer.name.startswith(f"{self.task}/"):
            seen, whole = outer.seen, f"{outer.name}/{name}"
        else:
            execution = self._conf["__pregel_runtime"].execution_info
            # A new object each time that LangGraph runs the node, or tries it again.
            seen, whole = effects.names(self.task, execution), f"{self.task}/{name}"
        id_ = effects.name_call(whole, seen)
        call = self._scope.runtime.call
        try:
            await call(effects.enter)
            try:
                node = self._conf["checkpoint_ns"].rpartition("|")[2].partition(":")[0]
                # The checkpoint of the innermost graph, whose namespace is the longest.
                checkpoint = max(self._conf["checkpoint_map"].items(), key=_length)[1]
                began = Call(
                    id_,
                    name.partition(":")[0],
                    agent=node,
                    policy=policy.in_doubt,
                    of=checkpoint,
                )
                await self._make(effects.calls, began, function, (args, kwargs), policy)
                result = effects.calls.result(id_)
                # As that of a step which was skipped: a function's type has no place for a text.
                return None if result is SKIPPED else fresh(result)
            finally:
                await call(effects.leave)
        except BaseException:
            effects.withdraw_name(id_, seen)
            raise

    async def _make(
        self,
        calls: RecordedCalls,
        began: Call,
        function: Callable[..., Any],
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        policy: StepPolicy,
    ) -> None:
        """See to it that the call has a result."""
        runtime, id_ = self._scope.runtime, began.id
        failed_safely = False
        while id_ not in calls:
            doubtful = await runtime.call(_blocking(calls.doubtful), id_)
            if doubtful is not None and not failed_safely:
                answer = await self._resolve(doubtful, policy, calls)
                if answer is not None:
                    await runtime.call(_blocking(calls.end), id_, answer[0])
                    return
            if not await runtime.call(_blocking(calls.begin), began, again=doubtful is not None):
                return
            step = StepContext(cast("LiveTask", self), id_, calls.attempts(id_))
            token = running_step.set(step)
            try:
                try:
                    result = await self._call(step, function, arguments, policy)
                finally:
                    running_step.reset(token)
                await runtime.call(_blocking(calls.end), id_, plain(result, "result"))
            except GraphInterrupt as error:
                # It asks a human before it does anything, and is called again with the answer.
                with besides(error, f"it could not be recorded that {id_!r} was interrupted"):
                    await runtime.call(_blocking(calls.undo), id_, "it was interrupted")
                raise
            except Exception as error:
                with besides(error, f"it could not be recorded that {id_!r} has failed"):
                    await runtime.call(_blocking(calls.fail), id_, error)
                wait = None if policy.retry is None else policy.retry.delay(step.attempt, error)
                if wait is None:
                    raise
                await runtime.sleep(wait)
                failed_safely = policy.in_doubt != VERIFY
            finally:
                calls.leave(id_)

    async def _call(
        self,
        step: StepContext,
        function: Callable[..., Any],
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        policy: StepPolicy,
    ) -> Any:
        runtime, (args, kwargs) = self._scope.runtime, arguments
        if policy.retry is None or policy.retry.timeout is None:
            return await runtime.invoke(function, *args, **kwargs)
        try:
            return await runtime.invoke_within(policy.retry.timeout, function, *args, **kwargs)
        except StepTimedOut as error:
            if error.step:
                raise  # that of an effect within this one
            msg = (
                f"Attempt {step.attempt} at {step.name!r} of thread {self.thread!r} took longer "
                f"than its {policy.retry.timeout:g} seconds, and was given up."
            )
            raise StepTimedOut(msg, step.name) from error.__cause__

    async def _resolve(
        self, call: Call, policy: StepPolicy, calls: RecordedCalls
    ) -> tuple[Any] | None:
        """What is known of a call in doubt, by its policy; None if it is to be made again."""
        if policy.verify is not None:
            step = StepContext(cast("LiveTask", self), call.id, calls.attempts(call.id) + 1)
            token = running_step.set(step)
            try:
                answer = await self._scope.runtime.invoke(policy.verify, step.idempotency_key)
            finally:
                running_step.reset(token)
            return None if answer is None else (plain(answer, "answer"),)
        if policy.in_doubt == SKIP:
            return (None,)
        if policy.in_doubt == RETRY:
            return None
        id_ = self._saver.journal_id(self.thread)
        command = self._scope.command("resolve", f"{EFFECTS}/{id_}", call.id, "done")
        ended = "its process died" if call.error is None else f"it ended with {call.error:.200}"
        msg = (
            f"Nobody knows whether {call.name} (in {call.agent}, thread {self.thread!r}) happened "
            f"before {ended}. Find out, then say so: {command} (or retry, or skip), or "
            f"store.resolve({id_!r}, {call.id!r}, 'done', kind={EFFECTS!r}); then run the thread "
            "again."
        )
        raise GraphEffectInDoubt(msg, [call])


async def copy_effects(
    scope: Scope, source: str, target: str, ttl: float | UnsetType | None
) -> None:
    """Let a thread that is a copy have had the effects of the other, in doubt or not.

    Not one that has some of its own: nobody calls the same task of both.
    """
    copied = scope.journal(EFFECTS, target, ttl=ttl)
    journal = scope.journal(EFFECTS, source)
    head = await journal.head()
    if head is None or await copied.head() is not None:
        return
    entries = [(entry.type, entry.body) async for page in journal.pages() for entry in page]
    # In one act, since the head says what is in doubt of all of it.
    await copied.append(*entries, meta=head.meta)


def _length(item: tuple[str, str]) -> int:
    return len(item[0])


def _blocking(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `RecordedCalls`, over the runtime that blocks, as a function that blocks."""
    return lambda *args, **kwargs: run_to_end(method(*args, **kwargs))


def _find() -> tuple[GraphTask, Scope] | None:
    """What records effects here, if a node runs of a graph that a `LimpetSaver` stores."""
    from limpet.integrations.langgraph.saver import LimpetSaver  # noqa: PLC0415 - it imports us

    config = var_child_runnable_config.get()
    conf: dict[str, Any] = (config or {}).get("configurable") or {}
    saver = conf.get("__pregel_checkpointer")
    if not isinstance(saver, LimpetSaver) or "__pregel_task_id" not in conf:
        return None
    if conf.get("__pregel_durability") == "exit":
        msg = (
            'An effect was called in a run with durability="exit", which stores nothing before it '
            "ends: if it were killed, nobody could tell that the effect has happened, and the next "
            'run would make it again. Nothing was done. Run with durability="sync" or "async".'
        )
        raise NotDurable(msg)
    scope = saver.scope
    return GraphTask(saver, conf, scope), scope


recorders.append(_find)
