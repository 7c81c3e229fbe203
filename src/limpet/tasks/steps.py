"""Steps: run once, tried as often as is said, and brought back by their policy when in doubt."""

from __future__ import annotations

import time
import zlib
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from limpet.core.codec import CHECK, COMPRESSED, FORMAT, HEADER, fresh, plain
from limpet.core.ids import check_id
from limpet.errors import (
    Conflict,
    DeadlinePassed,
    LeaseLost,
    NotStorable,
    StepTimedOut,
    TaskHalted,
    TaskNotOpen,
    TaskWaiting,
    TooLarge,
    Unreadable,
)
from limpet.tasks import entries as kinds
from limpet.tasks.context import StepContext, running, within
from limpet.tasks.core import HALTED, RESULTS, Core, typed
from limpet.tasks.entries import numbered, withdraw
from limpet.tasks.retry import ASK, PLAIN, SKIP, VERIFY, How, InDoubt, Retry
from limpet.tasks.state import Large
from limpet.tasks.words import described

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NOT_THE_STEPS", "Steps", "called", "no_function"]

#: Bytes over which a result is kept apart, so that resuming a task does not read it.
LARGE = 8 * 1024
PREVIEW = 300
_COMPRESSED = bytes((FORMAT, COMPRESSED))

T = TypeVar("T")

#: Errors that say nothing about the step they came out of.
NOT_THE_STEPS = (TaskHalted, LeaseLost, TaskNotOpen, DeadlinePassed)


class Steps(Core):
    """The steps of a task."""

    # A result is what was stored, by whatever the function was then, so what it returns today is
    # no promise: only what is converted is of a type. And its arguments cannot be checked beside
    # options of our own: a ParamSpec leaves no room for those.
    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        as_: type[T],
        in_doubt: InDoubt | None = None,
        verify: Callable[[str], Any] | None = None,
        retry: Retry | int | None = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        as_: Any = None,
        in_doubt: InDoubt | None = None,
        verify: Callable[[str], Any] | None = None,
        retry: Retry | int | None = None,
        **kwargs: Any,
    ) -> Any: ...
    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        as_: Any = None,
        in_doubt: InDoubt | None = None,
        verify: Callable[[str], Any] | None = None,
        retry: Retry | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run *function* as the step *name* and return its result; if it is done, only return that.

        The result is returned as it is stored, so a first run and a resumed one see the same;
        name a type with *as_* to have it back. A second step of the same name is name#2; the same
        again after an error is the same step; a step within a step is outer/name.

        *in_doubt* says what happens if a process dies within the step: "retry" runs it again;
        "verify" asks the function *verify*, which is given the idempotency key and returns the
        step's result, or None if it did not happen; "ask" pauses the task until a person has said
        (`Store.resolve`); "skip" goes on without it. All but "retry" record the beginning first.
        *retry*: a `Retry`, or how many attempts.
        """
        how = How.of(in_doubt, verify, retry)
        name = self._named(name)
        try:
            return await self._run(name, function, args, kwargs, how, as_=as_)
        except BaseException:  # also of a cancellation: the same call again is the same step
            self._withdraw(name)
            raise

    async def _effect(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        how: How,
    ) -> Any:
        """`step`, for a function that was marked as an effect."""
        name = self._named(name)
        try:
            return await self._run(name, function, args, kwargs, how)
        except BaseException:
            self._withdraw(name)
            raise

    def _named(self, name: str) -> str:
        """*name* as it is recorded: numbered if it came before, below the step it is part of."""
        outer = self._around(name)
        if outer is not None:
            name = f"{outer.name}/{name}"
        check_id(name, "step name")
        with self._counting:
            return numbered(name, self._seen if outer is None else outer.seen)

    def _withdraw(self, name: str) -> None:
        """Let the same call after an error be the same step, as it will be on a resume."""
        if name not in self._state.results:
            outer = self._around(name)
            with self._counting:
                withdraw(name, self._seen if outer is None else outer.seen)

    async def _run(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        how: How = PLAIN,
        *,
        as_: Any = None,
    ) -> Any:
        state = self._state
        if name not in state.results:
            self._check_running("step", name)
            if name not in state.in_doubt or not await self._settled(name, how):
                await self._perform(name, function, args, kwargs, how)
        found = self._state.results[name]
        if as_ is None and not isinstance(found, Large):  # as nearly always
            return fresh(found)
        return await self.load(name, as_)

    async def _perform(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        how: How,
    ) -> None:
        """Try until it works, or until it is not to be tried again."""
        if not callable(function):
            raise no_function(function, f"step({name!r}, …)")
        while True:
            step = self._context(name)
            if how.marked or self._state.status == kinds.WAITING:
                await self._announce(step, how)
            began = time.monotonic()
            try:
                with within(step):
                    if how.retry is None:  # as nearly always, and without a coroutine more
                        result = await self._runtime.invoke(function, *args, **kwargs)
                    else:
                        result = await self._call(step, how.retry, function, args, kwargs)
            except Exception as error:
                if not await self._again(step, how, error):
                    raise
                if how.in_doubt == VERIFY and await self._settled(name, how):
                    return
            else:
                if step.halted is not None:
                    self._check_heeded(step.halted)
                took = round(time.monotonic() - began, 6)
                await self._keep(name, result, {"took": took, **_mark(how)})
                return

    async def _announce(self, step: StepContext, how: How) -> None:
        """Record that a step begins, if that matters; but a task that waits begins none."""
        await self._check_going_on(f"step {step.name!r} is not begun")
        if how.marked:
            mark = {"name": step.name, "policy": how.in_doubt, "attempt": step.attempt}
            await self._record(kinds.BEGAN, mark)
            await self._check_wanted(step.name)

    def _check_heeded(self, halted: Exception) -> None:
        """Raise what a step's function has caught: what it then returned is not its result."""
        if self.status in HALTED:
            raise halted

    async def _check_awake(self, what: str) -> None:
        """Raise if it waits, or if it is to wait for a person to say what became of a step."""
        await self._check_going_on(what)
        for name in sorted(self._state.left):
            doubt = self._state.in_doubt.get(name)
            if doubt is not None and doubt.policy == ASK:
                await self._ask(name)

    async def _check_open_to(self, what: str) -> None:
        """Raise if it takes no *what*. If it waits, it takes what was found by a step that runs."""
        self._check_running(what)
        if self.status == kinds.WAITING and running(self.id) is None:
            await self._check_going_on(f"it takes no {what}")

    async def _check_going_on(self, what: str) -> None:
        """Raise if it waits: somebody has caught what was to leave the block."""
        if self.status == kinds.WAITING:
            await self._catch_up()
        if self.status == kinds.WAITING:
            waits_for = next(reversed(self._state.waits), "")
            msg = (
                f"Task {self.id!r} waits for {waits_for!r}, so {what}. Code of yours, or of a "
                "framework, has caught TaskWaiting: let it pass."
            )
            raise self._halting(TaskWaiting(msg, self.id, waits_for))

    async def _check_wanted(self, name: str) -> None:
        """Stop before the effect if somebody has said so meanwhile, and leave no doubt behind."""
        try:
            self._check_running(f"step {name!r}")
        except (TaskHalted, DeadlinePassed):
            await self._record(kinds.RESOLVED, {"name": name, "how": "retry", "by": "it never ran"})
            raise

    def _context(self, name: str) -> StepContext:
        state = self._state
        attempt = len(state.tried.get(name, ())) + 1
        return StepContext(state.task_id, name, attempt, state.progress.get(name), self._report)

    async def _call(
        self,
        step: StepContext,
        retry: Retry,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if retry.timeout is None:
            return await self._runtime.invoke(function, *args, **kwargs)
        try:
            return await self._runtime.invoke_within(retry.timeout, function, *args, **kwargs)
        except StepTimedOut as error:
            if error.step:
                raise  # that of a step within this one
            msg = (
                f"Attempt {step.attempt} at step {step.name!r} of task {self.id!r} took longer "
                f"than its {retry.timeout:g} seconds, and was given up."
            )
            raise StepTimedOut(msg, step.name) from error.__cause__

    async def _again(self, step: StepContext, how: How, error: Exception) -> bool:
        """Record that an attempt failed, and wait for the next; False if there is none."""
        if isinstance(error, NOT_THE_STEPS):
            if isinstance(error, TaskHalted):
                self._halting(error)  # the step around this one is to let it pass, too
            return False
        if self._reports:
            await self._runtime.call(self._beat)
        if how.retry is None and not how.marked:
            return False  # as nearly all are; the end of the task's block records it
        wait = None if how.retry is None else how.retry.delay(step.attempt, error)
        failure = {"name": step.name, "attempt": step.attempt, "error": described(error)}
        await self._record(kinds.TRIED, failure | ({} if wait is None else {"wait": wait}))
        if wait is None:
            if how.retry is not None:
                self._exhausted.append(error)
            return False
        await self._runtime.sleep(wait)
        self._check_running(f"step {step.name!r}")
        return True

    async def _settled(self, name: str, how: How) -> bool:
        """Whether a step that may have happened needs no run: by its policy."""
        if name not in self._state.in_doubt:
            return False
        if how.in_doubt == VERIFY and how.verify is not None:
            step = self._context(name)
            with within(step):
                answer = await self._runtime.invoke(how.verify, step.idempotency_key)
            if answer is not None:
                await self._keep(name, answer, {"verified": True, **_mark(how)})
            return answer is not None
        if how.in_doubt == SKIP:
            await self._record(kinds.SKIPPED, {"name": name, "because": "it was in doubt"})
            return True
        return how.in_doubt == ASK and await self._ask(name)

    async def _ask(self, name: str) -> bool:
        """Leave it to a person whether a step has happened; unless one has just said so."""
        while name in self._state.in_doubt:
            self._check_running(f"step {name!r}")
            try:
                await self._leave(name, "ask", None, expect=self._state.seq)
            except Conflict:  # somebody spoke in between, perhaps to cancel the task
                await self._catch_up()
            else:
                raise self._halting(TaskWaiting(self._asked(name), self.id, name))
        return name in self._state.results

    def _asked(self, name: str) -> str:
        error = self._state.in_doubt[name].error
        ended = "its process died" if error is None else f"it ended with {error!s:.200}"
        by_command = self._scope.command("resolve", self.id, name, "done")
        return (
            f"Nobody knows whether step {name!r} of task {self.id!r} happened before {ended}. "
            f"Find out, then say so: store.resolve({self.id!r}, {name!r}, 'done' | 'retry' | "
            f"'skip'), or {by_command}."
        )

    # -- results -----------------------------------------------------------------------------------

    async def _keep(
        self, name: str, result: Any, about: dict[str, Any], *, expect: int | None = None
    ) -> None:
        """Record a step's result; a large one apart, so that only those who ask for it read it."""
        body = {"name": name, "result": result, **about}
        try:
            encoded = self._journal.encode(((kinds.STEP, body),))
            size = _size(encoded)
            if size > LARGE:
                body = {"name": name, "large": await self._put_apart(result, size), **about}
                encoded = self._journal.encode(((kinds.STEP, body),))
        except (NotStorable, TooLarge):  # caught first: what nearly always works has no overhead
            with called("step['result']", f"results[{name!r}]"):
                raise
        await self._record(kinds.STEP, body, encoded, expect=expect)

    async def _put_apart(self, result: Any, size: int) -> dict[str, Any]:
        # First this, then the entry that points to it: a crash in between leaves something that
        # nobody points to, and `Store.sweep` takes it away with the task.
        seq = await self._scope.journal(RESULTS, self.id).append(("result", result), ttl=None)
        return {"seq": seq, "size": size, "preview": _preview(result)}

    @overload
    async def load(self, name: None = None) -> dict[str, Any]: ...
    @overload
    async def load(self, name: str, as_: type[T]) -> T: ...
    @overload
    async def load(self, name: str, as_: Any = None) -> Any: ...
    async def load(self, name: str | None = None, as_: Any = None) -> Any:
        """One step's result, from where it is kept; without a *name*, a dict of all of them."""
        if name is None:
            return {name: await self.load(name) for name in list(self._state.results)}
        found = self._state.results[name]
        if isinstance(found, Large):
            found = await self._fetch(name, found.seq)
        return typed(found, as_, self.id, name)

    async def _fetch(self, name: str, seq: int) -> Any:
        for entry in await self._scope.journal(RESULTS, self.id).read(after=seq - 1, upto=seq):
            return entry.body
        msg = (
            f"The result of step {name!r} of task {self.id!r} was kept apart (entry {seq} of "
            f"{RESULTS} {self.id!r}), and is not there. Restore it, or rewind to that step."
        )
        raise Unreadable(msg)


def _mark(how: How) -> dict[str, Any]:
    return {"effect": True} if how.effect else {}


def _size(encoded: bytes) -> int:
    """How long it is before it is compressed: a copy of it, in a `file:` store, is that long."""
    if encoded[:2] != _COMPRESSED:
        return len(encoded)
    return len(zlib.decompress(encoded[HEADER:-CHECK]))


def _preview(result: Any) -> str:
    """The beginning of it, for people and models."""
    found = plain(result, "result")
    if not isinstance(found, str):
        found = msgspec.json.encode(found).decode()
    return found[:PREVIEW]


def no_function(value: Any, call: str) -> TypeError:
    """The error for a *call* that was given what a function returned, in the function's place."""
    if isinstance(value, CoroutineType):
        value.close()  # nobody awaits it now
    return TypeError(
        f"{call} takes a function, and this is a value of type {type(value).__name__}. Pass the "
        "function, not what it returns, and its arguments behind it: not f(x), but f, x."
    )


class called:  # noqa: N801 - reads as a word of the sentence that it is used in
    """Lets an error about a value that cannot be stored speak in the words of the caller."""

    def __init__(self, inner: str, outer: str) -> None:
        self._inner = inner
        self._outer = outer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (NotStorable, TooLarge)):
            type_ = self._inner.partition("[")[0]
            named = error.under(self._inner, self._outer).under(type_, self._outer)
            raise named from error.__cause__
