"""Transactions in which callers have a part: what the backends that offer them share."""

from __future__ import annotations

import threading
from abc import abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from limpet.backends.contract import Backend
from limpet.errors import TransactionMisused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from limpet.backends.contract import Append, Appended, Transaction

__all__ = ["OpenTransaction", "TransactionalBackend", "already_ended"]


class OpenTransaction:
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

    def is_to_commit(self) -> bool:
        """Whether to commit it, now that its block is left."""
        if self._done is None:
            msg = (
                "The block of a transaction was left without an append, and nothing was kept. "
                "Append within it, or use a connection of your own."
            )
            raise TransactionMisused(msg)
        return not self._done.repeated


def already_ended() -> TransactionMisused:
    """The error for a transaction that was over before its block was left."""
    return TransactionMisused(
        "This transaction has ended before its block was left: by a statement that commits or "
        "rolls back, by close(), or by a fork. Its record was not written; rows that were "
        "committed stay. Leave the end to the block; to undo a part, use a savepoint."
    )


class TransactionalBackend(Backend):
    """A backend whose database may hold its callers' own tables."""

    splits: ClassVar[bool] = True
    transactional: ClassVar[bool] = True

    def __init__(self, url: str, *, readonly: bool = False) -> None:
        super().__init__(url, readonly=readonly)
        self._inside: set[int] = set()  # threads that are within a transaction

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Transaction]:
        """`transaction`, for a thread that is not within another."""

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self.check_writable()
        thread = threading.get_ident()
        try:
            self._inside.add(thread)
            with self._transaction() as opened:
                yield opened
        finally:
            self._inside.discard(thread)

    def check_writable(self) -> None:
        """Also: `TransactionMisused`, if its transaction could not undo what this thread writes."""
        super().check_writable()
        self._check_outside()

    def _check_outside(self) -> None:
        if self._inside and threading.get_ident() in self._inside:
            msg = (
                f"A transaction on {self.url} is open in this thread, and what you now write would "
                "not be a part of it. Write to the store before the block or after it."
            )
            raise TransactionMisused(msg)

    def close(self) -> None:
        self._check_outside()
        super().close()

    def _forget_other_threads(self) -> None:
        """In a forked child: only this thread exists here, perhaps in a transaction."""
        self._inside &= {threading.get_ident()}
