"""Steps that commit together with rows of the user's own, where the store's database holds both."""

from __future__ import annotations

import contextvars
import time
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from limpet.backends.contract import Record
from limpet.core.ids import MAX_ID_BYTES
from limpet.errors import TaskFinished
from limpet.tasks import entries as kinds
from limpet.tasks.context import within
from limpet.tasks.past import Past
from limpet.tasks.retry import How
from limpet.tasks.steps import NOT_THE_STEPS, called

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from limpet.backends.contract import Append, Appended, Transaction
    from limpet.tasks.retry import Retry

__all__ = ["Block", "Transactions"]

T = TypeVar("T")


class Transactions(Past):
    """Steps of a task that are transactions."""

    @overload
    async def transaction(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        as_: type[T],
        retry: Retry | int | None = None,
    ) -> T: ...
    @overload
    async def transaction(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        as_: Any = None,
        retry: Retry | int | None = None,
    ) -> Any: ...
    async def transaction(
        self,
        name: str,
        function: Callable[..., Any] | None = None,
        /,
        *args: Any,
        as_: Any = None,
        retry: Retry | int | None = None,
    ) -> Any:
        """Run ``function(connection, *args)`` as a step that happens exactly once.

        What it writes with the connection (apsw's for SQLite, psycopg's for PostgreSQL) and the
        step's result are committed together or not at all: there is no doubt to resolve. A step
        that is done returns its result, and the function is not called. Other effects of the
        function are not part of it. *retry* as in `step`: for a database that gave way to another
        (`TransactionUndone`), for example.

        A sync task also takes it as a block, whose body has to ask: ``with
        task.transaction("pay") as pay: if not pay.done: pay.execute(…)``.
        """
        if function is None:
            msg = "An async task takes a transaction as a function: transaction(name, function)."
            raise TypeError(msg)
        how = How.of(None, None, retry)
        name = self._named(name)
        try:
            if name not in self._state.results:
                self._check_running(f"step {name!r}")
                await self._check_going_on(f"step {name!r} is not begun")
                while not await self._tried(name, function, args, how):
                    pass
            return await self.load(name, as_)
        except BaseException:  # also of a cancellation: the same call again is the same step
            self._withdraw(name)
            raise

    async def _tried(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], how: How
    ) -> bool:
        """Whether it worked; False if it did not, and is to be tried again."""
        try:
            await self._transact(name, function, args)
        except NOT_THE_STEPS:
            raise
        except Exception as error:
            if not await self._again(self._context(name), how, error):
                raise
            return False
        return True

    async def _transact(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        began = time.monotonic()
        made: list[Append] = []

        def work(connection: Any) -> Any:
            with within(self._context(name)):
                return function(connection, *args)

        def request(result: Any) -> Append:
            made.append(self._result(name, result, began))
            return made[0]

        # An executor's thread has no context of its own.
        context = contextvars.copy_context()
        _, done = await self._runtime.transact(lambda given: context.run(work, given), request)
        await self._committed(done, made[0])

    async def _committed(self, done: Appended, request: Append) -> None:
        """Let a transaction's result count: if it is known by its id, the one that was recorded."""
        if done.repeated:
            await self._catch_up()
        else:
            await self._let_count(Record(done.seq, 1, done.at, request.body))

    def _result(self, name: str, result: Any, began: float) -> Append:
        """The append that ends a transaction.

        Its id lets a second try under this lease find out that the first one was committed; after a
        rewind it is another step.
        """
        lease = self._own().lease
        took = round(time.monotonic() - began, 6)
        body = {"name": name, "result": result, "took": took, "transaction": True}
        with called("step['result']", f"results[{name!r}]"):
            return self._journal.request(
                ((kinds.STEP, body),),
                lease=lease,
                id=_known_by(f"{lease.epoch}.{self._state.rewinds}", name),
            )


class Block:
    """A step as a block: the connection, for as long as the step is not done.

    ``result`` is what the step returned; set it before the block ends.
    """

    def __init__(self, core: Transactions, name: str, settle: Callable[[Any], Any]) -> None:
        self._core = core
        self._name = core._named(name)  # noqa: SLF001 - a part of the same noun
        self._settle = settle
        self._opening: AbstractContextManager[Transaction] | None = None
        self._opened: Transaction | None = None
        self._within: within | None = None
        self._began = 0.0
        self.result: Any = None

    def __repr__(self) -> str:
        return f"Block({self._name!r}, done={self.done})"

    @property
    def done(self) -> bool:
        """Whether the step was done before: then there is nothing to do, and no connection."""
        return self._opened is None and self._name in self._core._state.results  # noqa: SLF001

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
            self.result = self._settle(self._core.load(self._name))
            return self
        try:
            self._begin()
        except BaseException:
            self._core._withdraw(self._name)  # noqa: SLF001 - a part of the same noun
            raise
        return self

    def _begin(self) -> None:
        core = self._core
        core._check_running(f"step {self._name!r}")  # noqa: SLF001 - a part of the same noun
        self._settle(core._check_going_on(f"step {self._name!r} is not begun"))  # noqa: SLF001
        self._began = time.monotonic()
        self._opening = core._runtime.backend.transaction()  # noqa: SLF001
        self._opened = self._opening.__enter__()
        self._within = within(core._context(self._name))  # noqa: SLF001
        self._within.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._within is not None:
                self._within.__exit__()
            self._end(kind, error, trace)
        finally:
            self._core._withdraw(self._name)  # noqa: SLF001 - if it is not done

    def _end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        opening, opened, self._opening = self._opening, self._opened, None
        if opening is None or opened is None:
            return
        core = self._core
        ended: tuple[Appended, Append] | None = None
        try:
            if error is None:
                request = core._result(self._name, self.result, self._began)  # noqa: SLF001
                ended = opened.append(request), request
        except BaseException as trouble:
            opening.__exit__(type(trouble), trouble, trouble.__traceback__)
            raise
        opening.__exit__(kind, error, trace)
        self._opened = None
        if ended is not None:
            self._settle(core._committed(*ended))  # noqa: SLF001 - a part of the same noun


def _known_by(turn: str, name: str) -> str:
    """What a transaction is known by, in one *turn* at the task."""
    found = f"{turn} {name}"
    if len(found.encode()) <= MAX_ID_BYTES:
        return found
    import hashlib  # noqa: PLC0415 - slow to import, and names are hardly ever so long

    return f"{turn} {hashlib.sha256(name.encode()).hexdigest()}"
