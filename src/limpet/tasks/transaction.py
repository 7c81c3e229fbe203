"""Steps that commit together with rows of the user's own, where the store's database holds both."""

from __future__ import annotations

import contextvars
import time
from typing import TYPE_CHECKING, Any, Self

from limpet.backends.contract import UNSET
from limpet.core.ids import MAX_ID_BYTES
from limpet.core.runtime import run_to_end
from limpet.errors import TaskFinished
from limpet.tasks import entries as kinds
from limpet.tasks.context import running
from limpet.tasks.entries import error_path
from limpet.tasks.record import calls_meta

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from limpet.backends.contract import Append, Appended, Transaction
    from limpet.tasks.retry import StepPolicy
    from limpet.tasks.steps import StepRunner

__all__ = ["Block", "Transactions"]


class Transactions:
    """The steps of a task that are transactions."""

    def __init__(self, runner: StepRunner) -> None:
        self.runner = runner
        self._record = runner.record
        self._live = runner.live

    async def run(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        policy: StepPolicy,
        as_: Any,
    ) -> Any:
        """Run ``function(connection, *args)`` as a step; see `Task.transaction`."""
        with self._live.named(name) as recorded:
            if recorded not in self._live.state.results:
                await self.check(recorded)
                while not await self._try(recorded, function, args, policy):
                    pass
            return await self.runner.load(recorded, as_)

    async def check(self, name: str) -> None:
        """Raise if the step *name* cannot begin."""
        self._live.check_running("step", name)
        await self._record.check_not_waiting(f"step {name!r} is not begun")

    async def _try(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], policy: StepPolicy
    ) -> bool:
        """Whether it worked; False if it did not, and is to be tried again."""
        began = time.monotonic()
        step = self.runner.context(name)
        known = self._live.state.seq
        made: list[Append] = []

        def work(connection: Any) -> Any:
            with running(step):
                return function(connection, *args)

        def request(result: Any) -> Append:
            made.append(self.request(name, result, began))
            return made[0]

        # An executor's thread has no context of its own.
        context = contextvars.copy_context()
        try:
            _, done = await self._record.runtime.transact(
                lambda connection: context.run(work, connection), request
            )
            await self.apply(made[0], done, known)
        except Exception as error:
            if not await self.runner.try_again(step, policy, error):
                raise
            return False
        return True

    def request(self, name: str, result: Any, began: float) -> Append:
        """The append that ends a transaction.

        Its id lets a second try under this lease find out that the first one was committed; after a
        rewind it is another step.
        """
        lease, calls = self._live.held().lease, dict(self._live.state.calls.open)
        took = round(time.monotonic() - began, 6)
        value = {"name": name, "result": result, "took": took, "transaction": True}
        value |= self._live.given(name)
        turn = f"{lease.epoch}.{self._live.state.rewinds}"
        id_ = f"{turn} {name}"
        if len(id_.encode()) > MAX_ID_BYTES:
            import hashlib  # noqa: PLC0415 - slow to import, and names are hardly ever so long

            id_ = f"{turn} {hashlib.sha256(name.encode()).hexdigest()}"
        # An earlier version of the program may have left it in doubt, as a step of another sort.
        meta = calls_meta(calls) if calls.pop(name, None) else UNSET
        with error_path("step['result']", f"results[{name!r}]"):
            return self._record.journal.request(
                ((kinds.STEP, value),), lease=lease, id=id_, meta=meta
            )

    async def apply(self, request: Append, done: Appended, known: int) -> None:
        """Let a transaction's result count: if it is known by its id, the one that was recorded."""
        if done.repeated:
            await self._record.catch_up()
        else:
            self._live.check_follows(known, done.seq - request.count)
            await self._record.apply(request, done)


class Block:
    """A step as a block: the connection, for as long as the step is not done.

    ``result`` is what the step returned; set it before the block ends.
    """

    def __init__(self, transactions: Transactions, name: str) -> None:
        self._transactions = transactions
        self._runner = transactions.runner
        self._live = transactions.runner.live
        self._name = self._live.name_step(name)
        self._opening: AbstractContextManager[Transaction] | None = None
        self._opened: Transaction | None = None
        self._running: running | None = None
        self._began = 0.0
        self.result: Any = None

    def __repr__(self) -> str:
        return f"Block({self._name!r}, done={self.done})"

    @property
    def done(self) -> bool:
        """Whether the step was done before: then there is nothing to do, and no connection."""
        return self._opened is None and self._name in self._live.state.results

    @property
    def connection(self) -> Any:
        """The driver's connection, within the transaction."""
        if self._opened is None:
            msg = (
                f"Step {self._name!r} is done, so it has no transaction. Ask first: "
                f"`with task.transaction({self._name!r}) as it: if not it.done: …`."
            )
            raise TaskFinished(msg)
        return self._opened.connection

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.connection, name)

    def __enter__(self) -> Self:
        if self.done:
            self.result = run_to_end(self._runner.load(self._name))
            return self
        try:
            run_to_end(self._transactions.check(self._name))
            self._began = time.monotonic()
            self._opening = self._runner.record.runtime.backend.transaction()
            self._opened = self._opening.__enter__()
            self._running = running(self._runner.context(self._name))
            self._running.__enter__()
        except BaseException:
            self._live.withdraw_name(self._name)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._running is not None:
                self._running.__exit__()
            self._end(kind, error, trace)
        finally:
            self._live.withdraw_name(self._name)  # if it is not done

    def _end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        opening, opened, self._opening = self._opening, self._opened, None
        if opening is None or opened is None:
            return
        ended: tuple[Append, Appended, int] | None = None
        try:
            if error is None:
                known = self._live.state.seq
                request = self._transactions.request(self._name, self.result, self._began)
                ended = request, opened.append(request), known
        except BaseException as trouble:
            opening.__exit__(type(trouble), trouble, trouble.__traceback__)
            raise
        opening.__exit__(kind, error, trace)
        self._opened = None
        if ended is not None:
            run_to_end(self._transactions.apply(*ended))
