"""Group commit: many callers, one transaction, one sync to disk.

A lone caller commits in its own thread, under the lock, with no other thread woken. Where several
come at once, and for async callers, one writer thread commits all that have gathered. No signal
strikes that thread: whatever it begins with, it ends, and everybody is told. A caller may also
have the lock to itself for a while, for a transaction of its own; the two take turns.

Threads are told in a chain: the writer wakes the first, which wakes the next. Were all woken at
once, they would stand between the writer and Python's global lock, and keep it from the next batch.
"""

from __future__ import annotations

import copy
import threading
import time
import weakref
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from limpet.errors import StoreBusy, StoreClosed

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable, Iterator

__all__ = ["GroupCommit", "Ticket", "tell"]

#: A batch this large is committed although more are waiting, so that nobody waits for long.
MOST = 512

#: Seconds for which the writer stays awake when it has nothing to do: who just came comes again.
LINGER = 0.002

#: Seconds after which a thread that waits looks by itself: an interrupt may have cut the chain.
LOOK_AGAIN = 0.5

#: Seconds between two looks of one who lets another go first.
YIELD = 0.0002


class Ticket:
    """One caller's work and its outcome."""

    __slots__ = (
        *("_claim", "done", "error", "future", "loop", "next", "result", "since"),
        *("waiting", "work"),
    )

    def __init__(self, work: Any) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False  # the outcome is known
        self.since = 0.0  # when it was submitted
        self.waiting: threading.Lock | None = None  # of a thread; held until it is to look
        self.next: Ticket | None = None  # the thread to be woken after this one
        self.loop: AbstractEventLoop | None = None  # of an async caller, with its future
        self.future: Future[Any] | None = None
        self._claim = threading.Lock()

    def claim(self) -> bool:
        """True for the first who asks: the writer, to do it, or its caller, to withdraw it."""
        return self._claim.acquire(blocking=False)

    def outcome(self) -> Any:
        """The work's value, or its error raised."""
        if self.error is not None:
            raise self.error
        return self.result


class GroupCommit:
    """Has callers' work done in shared transactions, under *lock*.

    *commit* gets a list of tickets, does each one's work within one transaction, and returns when
    that is durable. It puts a refusal into a ticket's ``error`` and a value into ``result``. If it
    raises, none of it was done. A ticket that it takes out of the list is to have its outcome
    later, from `tell`. *what* is what errors call the place.
    """

    def __init__(
        self,
        commit: Callable[[list[Ticket]], None],
        lock: threading.RLock,
        *,
        timeout: float,
        what: str,
    ) -> None:
        self._commit = commit
        self._lock: Any = lock
        self._timeout = timeout
        self._what = what
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._shared = _Shared()

    def run(self, work: Any) -> Any:
        """Have *work* committed and return its value."""
        ticket, shared = Ticket(work), self._shared
        if not (shared.awake or shared.committing):
            try:
                # Of two who come to this at once the second waits for the first, and is alone then.
                if not self._lock.acquire(True, self._timeout):  # noqa: FBT003 - quicker than names
                    raise _busy(self._what)
                shared.committing = True
                _perform(self._commit, [ticket])
                shared.committing = False
            finally:
                # An RLock can be released by its holder only: where an interrupt came before it was
                # taken, this does no harm.
                try:  # noqa: SIM105 - an interrupt might come before the methods of `suppress`
                    self._lock.release()
                except RuntimeError:
                    pass
            return ticket.outcome()
        ticket.waiting = threading.Lock()
        ticket.waiting.acquire()
        try:
            self._submit(ticket)
            while not ticket.done:
                ticket.waiting.acquire(timeout=LOOK_AGAIN)
        except BaseException:  # an interrupt: withdraw it, or wait for its end, then let it go on
            while not (ticket.done or ticket.claim()):
                try:
                    ticket.waiting.acquire(timeout=LOOK_AGAIN)
                except KeyboardInterrupt:
                    continue
            raise
        finally:
            if ticket.next is not None:
                _wake(ticket.next)
        return ticket.outcome()

    async def run_async(self, work: Any) -> Any:
        """The same for a task of any event loop, which is never blocked."""
        import asyncio  # noqa: PLC0415 - sync programs never pay for it

        ticket = Ticket(work)
        ticket.loop = asyncio.get_running_loop()
        ticket.future = ticket.loop.create_future()
        try:
            self._submit(ticket)
            return await ticket.future
        except (KeyboardInterrupt, SystemExit):
            ticket.claim()  # the loop ends, and nobody waits; what is under way ends by itself
            raise
        except asyncio.CancelledError:
            # Withdraw it, or wait for its end through any number of cancellations. The old future
            # is cancelled; `_resolve`, which runs on this loop, finds the new one.
            while not (ticket.done or ticket.claim()):
                ticket.future = ticket.loop.create_future()
                try:
                    await ticket.future
                except asyncio.CancelledError:
                    continue
                except Exception:  # noqa: BLE001 - the write failed, and the cancellation goes on
                    break
            raise

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep everybody else from committing, until the end of the block."""
        shared, deadline = self._shared, time.monotonic() + self._timeout
        while shared.batch_waits and time.monotonic() < deadline:
            time.sleep(YIELD)  # it has waited for the last transaction already
        counted = 0
        try:
            shared.transactions, counted = shared.transactions + 1, 1
            if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise _busy(self._what)
            shared.committing = True
            yield
        finally:
            shared.committing, shared.transactions = False, shared.transactions - counted
            try:  # noqa: SIM105 - as in `run`
                self._lock.release()
            except RuntimeError:
                pass

    def _submit(self, ticket: Ticket) -> None:
        ticket.since = time.monotonic()
        with self._mutex:
            if self._closed:
                msg = f"The store {self._what} was closed before this was written. Nothing was."
                raise StoreClosed(msg)
            if self._thread is None or not self._thread.is_alive():
                # It knows the queue and what to call, and not us: a store that is dropped can go.
                commit = weakref.WeakMethod(self._commit)
                writer = _Writer(self._shared, commit, self._lock, self._timeout, self._what)
                self._thread = threading.Thread(
                    target=writer.run, name="limpet-writer", daemon=True
                )
                weakref.finalize(self, self._shared.queue.put, None)
                self._thread.start()
            self._shared.awake = True
            self._shared.queue.put(ticket)

    def close(self) -> None:
        """Finish what has come, and take no more. On return nothing is under way."""
        with self._mutex:
            self._closed = True
            if self._thread is not None:
                self._shared.queue.put(None)
        if self._thread is not None:
            self._thread.join()


class _Shared:
    """What callers and the writer thread tell each other."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Ticket | None] = SimpleQueue()
        self.committing = False  # somebody commits in its own thread
        self.awake = False  # the writer has something to do, or had a moment ago
        self.transactions = 0  # how many callers wait to have the lock to themselves
        self.batch_waits = False  # the writer waits for the lock


class _Writer:
    """The thread that commits what gathers, until a None comes."""

    def __init__(
        self,
        shared: _Shared,
        commit: weakref.WeakMethod[Callable[[list[Ticket]], None]],
        lock: Any,
        timeout: float,
        what: str,
    ) -> None:
        self._shared = shared
        self._commit = commit
        self._lock = lock
        self._timeout = timeout
        self._what = what

    def run(self) -> None:
        shared, queue = self._shared, self._shared.queue
        while True:
            try:
                one = queue.get(timeout=LINGER)
            except Empty:
                shared.awake = shared.committing = False  # an interrupt may have left the latter
                one = queue.get()
                shared.awake = True
            batch: list[Ticket] = []
            while one is not None:
                if one.claim():
                    batch.append(one)
                if len(batch) == MOST:
                    break
                try:
                    one = queue.get_nowait()
                except Empty:
                    break
            if batch:
                self._write(batch)
            if one is None:
                queue.put(None)  # for another one, which an interrupt while starting may have left
                return
            del batch, one  # nothing of a caller's is kept while there is nothing to do

    def _write(self, batch: list[Ticket]) -> None:
        commit = self._commit()
        assert commit is not None  # noqa: S101 - whoever waits holds it
        for _ in range(50):  # a transaction goes first: it has waited for the last batch already
            if not self._shared.transactions:
                break
            time.sleep(YIELD)
        while not self._lock.acquire(blocking=False):
            self._shared.batch_waits = True
            left = min(ticket.since for ticket in batch) + self._timeout - time.monotonic()
            if self._lock.acquire(timeout=max(0.0, left)):
                break
            late = [one for one in batch if one.since + self._timeout <= time.monotonic()]
            for ticket in late:
                ticket.error = _busy(self._what)
            tell(late)
            batch = [ticket for ticket in batch if ticket not in late]
            if not batch:
                return
        try:
            self._shared.batch_waits = False
            _perform(commit, batch)
        finally:
            self._lock.release()
        tell(batch)


def _perform(commit: Callable[[list[Ticket]], None], batch: list[Ticket]) -> None:
    """Commit *batch*; if that fails, each who was not refused anyway is told why."""
    try:
        commit(batch)
    except Exception as error:  # noqa: BLE001 - handed to every caller
        for ticket in batch:
            ticket.result = None
            if ticket.error is None:
                ticket.error = copy.copy(error)  # one each: a raised error has its own traceback
                ticket.error.__cause__ = error.__cause__


def tell(batch: list[Ticket]) -> None:
    """Let every caller know of its outcome: a chain of threads, one callback an event loop."""
    loops: dict[AbstractEventLoop, list[Ticket]] = {}
    first = last = None
    for ticket in batch:
        if ticket.loop is not None:
            loops.setdefault(ticket.loop, []).append(ticket)
        elif last is None:
            first = last = ticket
        else:
            last.next = ticket
            last = ticket
    for ticket in batch:
        ticket.done = True
    if first is not None:
        _wake(first)
    for loop, tickets in loops.items():
        try:
            loop.call_soon_threadsafe(_resolve, tickets)
        except RuntimeError:  # it is closed, and nobody waits there any more
            continue


def _resolve(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        future = ticket.future
        if future is None or future.done():
            continue
        if ticket.error is not None:
            future.set_exception(ticket.error)
        else:
            future.set_result(ticket.result)


def _wake(ticket: Ticket) -> None:
    """Let a thread look at its ticket."""
    try:
        if ticket.waiting is not None:
            ticket.waiting.release()
    except RuntimeError:  # it has looked by itself meanwhile
        return


def _busy(what: str) -> StoreBusy:
    return StoreBusy(
        f"A transaction of this process kept {what} for longer than the timeout. Keep its block "
        "short, or open the store with a larger timeout=."
    )
