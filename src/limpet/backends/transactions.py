"""Transactions in which callers have a part: what the backends that offer them share."""

from __future__ import annotations

import threading
from abc import abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from limpet.backends.contract import Backend, settle
from limpet.errors import TransactionMisused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import ThreadPoolExecutor
    from contextlib import AbstractContextManager

    from limpet.backends.contract import Append, Appended, Transaction

__all__ = ["Opened", "Transactional", "ended"]

T = TypeVar("T")


class Opened:
    """A transaction that is open, and what has become of its append. *add* adds a record to it."""

    def __init__(self, connection: Any, add: Callable[[Append], Appended]) -> None:
        self.connection = connection
        self._add = add
        self._done: Appended | None = None

    def append(self, request: Append) -> Appended:
        """`Transaction.append`."""
        if not request.count:
            msg = "A transaction appends a record; to change attributes alone, use append."
            raise ValueError(msg)
        if self._done is not None:
            msg = "This transaction has its append; put all entries into that one."
            raise TransactionMisused(msg)
        self._done = self._add(request)
        return self._done

    def to_commit(self) -> bool:
        """Whether it is to be kept, now that its block is left."""
        if self._done is None:
            msg = (
                "The block of a transaction was left without an append, and nothing was kept. "
                "Append within it, or use a connection of your own."
            )
            raise TransactionMisused(msg)
        return not self._done.repeated


def ended() -> TransactionMisused:
    """The error for a transaction that was over before its block was left."""
    return TransactionMisused(
        "This transaction has ended before its block was left: by a statement that commits or "
        "rolls back, by close(), or by a fork. Its record was not written; rows that were "
        "committed stay. Leave the end to the block; to undo a part, use a savepoint."
    )


class Transactional(Backend):
    """A backend whose database may hold its callers' own tables."""

    transactional: ClassVar[bool] = True

    #: How many transactions of async callers may be under way at the same time.
    lends: int = 1

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._inside: set[int] = set()  # threads that are within a transaction
        self._bodies: ThreadPoolExecutor | None = None

    @abstractmethod
    def append_all(self, requests: Sequence[Append]) -> list[Appended]:
        """`Backend.append_all`."""

    @abstractmethod
    def _lend(self) -> AbstractContextManager[Transaction]:
        """`transaction`, for a thread that is not within another."""

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self._check_open()
        self._check_outside()
        thread = threading.get_ident()
        try:
            self._inside.add(thread)
            with self._lend() as opened:
                yield opened
        finally:
            self._inside.discard(thread)

    async def transact_async(
        self, work: Callable[[Any], T], request: Callable[[T], Append]
    ) -> tuple[T, Appended]:
        """On threads for nothing else: however many wait for their turn, reads go on."""
        import asyncio  # noqa: PLC0415 - sync programs never pay for it

        loop = asyncio.get_running_loop()
        return await settle(loop.run_in_executor(self._lenders(), self.transact, work, request))

    def _lenders(self) -> ThreadPoolExecutor:
        self._check_open()
        with self._pool_lock:
            if self._bodies is None:
                from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - as above

                self._bodies = ThreadPoolExecutor(self.lends, thread_name_prefix="limpet-lent")
            return self._bodies

    def _check_outside(self) -> None:
        """Raise if this thread would wait for itself, or write what its transaction cannot undo."""
        if self._inside and threading.get_ident() in self._inside:
            msg = (
                f"A transaction on {self.url} is open in this thread, and what you now write would "
                "not be a part of it. Write to the store before the block or after it."
            )
            raise TransactionMisused(msg)

    def close(self) -> None:
        self._check_outside()
        super().close()

    def _close(self) -> None:
        if self._bodies is not None:
            self._bodies.shutdown()

    def _after_fork_in_child(self) -> None:
        super()._after_fork_in_child()
        self._bodies = None
        self._inside &= {threading.get_ident()}  # the only thread that is here, too
