"""Group commit: many callers, one transaction, one sync to disk.

A lone caller commits in its own thread, under the lock, with no other thread woken. Where several
come at once, and for async callers, one writer thread commits all that have gathered. No signal
strikes that thread: whatever it begins with, it ends, and everybody is told. A caller may also
have the lock to itself for a while, for a transaction of its own; the two take turns.

What a hop to the writer and back costs is mostly what it takes to wake a thread. The writer sleeps
in a read of a pipe: the kernel takes a write to one as a hint that whoever writes is about to
sleep, and wakes the reader on the same processor, which is three times as fast as to wake another
one. Tasks of an event loop that come together wake it once, when all of them have come; and their
loop is woken once, for all of a batch. Threads are told in a chain: the writer wakes the first,
which wakes the next. Were all woken at once, they would stand between the writer and Python's
global lock, and keep it from the next batch.
"""

from __future__ import annotations

import copy
import os
import sys
import threading
import time
import weakref
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from limpet.errors import StoreBusy, StoreClosed

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable, Iterator

__all__ = ["GroupCommit", "Ticket", "tell"]

#: A batch this large is committed although more are waiting, so that nobody waits for long.
MOST = 512

#: Seconds for which callers still go to the writer when it has nothing to do: who just came comes
#: again.
LINGER = 0.002

#: Seconds after which a thread that waits looks by itself: an interrupt may have cut the chain.
LOOK_AGAIN = 0.5

#: Seconds between two looks of one who lets another go first.
YIELD = 0.0002

#: A batch of so many came from one caller, or from two that wait for each other.
FEW = 2


class Ticket:
    """One caller's work and its outcome."""

    __slots__ = (
        *("_claim", "done", "error", "future", "inbox", "next", "result", "since"),
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
        self.inbox: _Inbox | None = None  # of an async caller's loop, with its future
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
    later, from `tell`. *commit_one* does the same for the work of a lone caller, and returns its
    value or raises. *what* is what errors call the place.
    """

    def __init__(
        self,
        commit: Callable[[list[Ticket]], None],
        commit_one: Callable[[Any], Any],
        lock: threading.RLock,
        *,
        timeout: float,
        what: str,
    ) -> None:
        self._commit = commit
        self._commit_one = commit_one
        self._lock: Any = lock
        self._timeout = timeout
        self._what = what
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._shared = _Shared()
        self._inboxes: weakref.WeakKeyDictionary[AbstractEventLoop, _Inbox]
        self._inboxes = weakref.WeakKeyDictionary()

    def run(self, work: Any) -> Any:
        """Have *work* committed and return its value."""
        shared = self._shared
        if shared.committing or shared.grouping > time.monotonic():
            return self._run_with_others(work)
        try:
            # Of two who come to this at once the second waits for the first, and is alone then.
            if not self._lock.acquire(True, self._timeout):  # noqa: FBT003 - quicker than names
                raise _busy(self._what)
            shared.committing = True
            return self._commit_one(work)
        finally:
            shared.committing = False
            # An RLock can be released by its holder only: where an interrupt came before it was
            # taken, this does no harm.
            try:  # noqa: SIM105 - an interrupt might come before the methods of `suppress`
                self._lock.release()
            except RuntimeError:
                pass

    def _run_with_others(self, work: Any) -> Any:
        ticket = Ticket(work)
        ticket.waiting = threading.Lock()
        ticket.waiting.acquire()
        try:
            self._submit(ticket)
            self._shared.wake()
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

        ticket, shared = Ticket(work), self._shared
        loop = asyncio.get_running_loop()
        ticket.inbox = self._inboxes.get(loop)
        if ticket.inbox is None:
            ticket.inbox = self._inboxes[loop] = _Inbox(loop)
        ticket.future = loop.create_future()
        try:
            self._submit(ticket)
            if shared.last > FEW:  # then others are about to come, too
                loop.call_soon(shared.wake)
            else:
                shared.wake()
            return await ticket.future
        except (KeyboardInterrupt, SystemExit):
            ticket.claim()  # the loop ends, and nobody waits; what is under way ends by itself
            raise
        except asyncio.CancelledError:
            # Withdraw it, or wait for its end through any number of cancellations. The old future
            # is cancelled; `_resolve`, which runs on this loop, finds the new one.
            while not (ticket.done or ticket.claim()):
                ticket.future = loop.create_future()
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
        """Put it where the writer finds it; the caller is to wake that."""
        shared = self._shared
        ticket.since = time.monotonic()
        with self._mutex:
            if self._closed:
                msg = f"The store {self._what} was closed before this was written. Nothing was."
                raise StoreClosed(msg)
            if self._thread is None or not self._thread.is_alive():
                # It knows the queue and what to call, and not us: a store that is dropped can go.
                commit = weakref.WeakMethod(self._commit)
                pipe = shared.new_pipe()
                writer = _Writer(
                    shared, pipe, commit, lock=self._lock, timeout=self._timeout, what=self._what
                )
                self._thread = threading.Thread(
                    target=writer.run, name="limpet-writer", daemon=True
                )
                weakref.finalize(self, shared.end)
                self._thread.start()
            shared.grouping = float("inf")
            shared.queue.append(ticket)

    def close(self) -> None:
        """Finish what has come, and take no more. On return nothing is under way."""
        with self._mutex:
            self._closed = True
        self._shared.end()
        if self._thread is not None:
            self._thread.join()
        for inbox in list(self._inboxes.values()):
            inbox.close()

    def after_fork_in_child(self) -> None:
        """Let go of what is the parent's: its threads and loops have it there."""
        self._shared.forget_pipe()
        for inbox in list(self._inboxes.values()):
            inbox.forget()
        self._inboxes.clear()


class _Shared:
    """What callers and the writer thread tell each other."""

    def __init__(self) -> None:
        self.queue: deque[Ticket] = deque()
        self.committing = False  # somebody commits in its own thread
        self.grouping = 0.0  # until when those who come go to the writer
        self.last = 0  # how many were in the last batch
        self.asleep = False  # the writer waits to be woken
        self.transactions = 0  # how many callers wait to have the lock to themselves
        self.batch_waits = False  # the writer waits for the lock
        self._pipe: tuple[int, int] | None = None  # what the writer sleeps in: its end, and ours
        self._using = threading.Lock()  # our end of it: nobody may close it meanwhile

    def new_pipe(self) -> int:
        """The end of a pipe in which a writer is to sleep, until we wake it or are gone."""
        self.end()
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)  # what is full wakes as well
        return self._pipe[0]

    def wake(self) -> None:
        """See to it that the writer looks at the queue."""
        # It says itself that it is no longer asleep: here an interrupt might come before the write.
        if self.asleep:
            with self._using:
                if self._pipe is not None:
                    try:
                        os.write(self._pipe[1], b"\0")
                    except BlockingIOError:
                        return

    def end(self) -> None:
        """Let the writer end when it has done what is in the queue."""
        with self._using:
            pipe, self._pipe = self._pipe, None
            if pipe is not None:
                os.close(pipe[1])

    def forget_pipe(self) -> None:
        """Close both ends: in a forked child nobody has them, nor the lock."""
        for end in self._pipe or ():
            os.close(end)
        self._pipe, self._using = None, threading.Lock()


class _Writer:
    """The thread that commits what gathers, until the other end of its *pipe* is closed."""

    def __init__(
        self,
        shared: _Shared,
        pipe: int,
        commit: weakref.WeakMethod[Callable[[list[Ticket]], None]],
        *,
        lock: Any,
        timeout: float,
        what: str,
    ) -> None:
        self._shared = shared
        self._pipe = pipe
        self._commit = commit
        self._lock = lock
        self._timeout = timeout
        self._what = what

    def run(self) -> None:
        shared, ended = self._shared, False
        while True:
            if self._write_batch():
                continue
            if ended:
                os.close(self._pipe)
                return
            shared.grouping = time.monotonic() + LINGER
            shared.asleep = True
            if not shared.queue:  # whoever comes from now on finds it asleep
                ended = not os.read(self._pipe, 4096)
            shared.asleep = False
            shared.grouping = float("inf")

    def _write_batch(self) -> bool:
        """Commit what is in the queue; False if there is nothing."""
        queue = self._shared.queue
        batch: list[Ticket] = []
        while queue and len(batch) < MOST:
            ticket = queue.popleft()
            if ticket.claim():
                batch.append(ticket)
        if batch:
            self._shared.last = len(batch)
            self._write(batch)
        return bool(batch)

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
        del commit  # whoever is told may drop the store, and it is to go then
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
    """Let every caller know of its outcome: a chain of threads, one call for an event loop."""
    inboxes: dict[_Inbox, list[Ticket]] = {}
    first = last = None
    for ticket in batch:
        ticket.done = True
        if ticket.inbox is not None:
            inboxes.setdefault(ticket.inbox, []).append(ticket)
        elif last is None:
            first = last = ticket
        else:
            last.next = ticket
            last = ticket
    if first is not None:
        _wake(first)
    for inbox, tickets in inboxes.items():
        inbox.put(tickets)


class _Inbox:
    """Where an event loop is told of outcomes.

    Through a file that the loop watches, where it can: `call_soon_threadsafe` makes a callback each
    time, and takes twice as long.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._told: deque[list[Ticket]] = deque()
        self._loop = weakref.ref(loop)
        self._handle = -1
        self._unwatch: Any = None
        self._using = threading.Lock()  # the file: nobody may close it meanwhile
        if hasattr(os, "eventfd"):
            handle = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            try:
                loop.add_reader(handle, _open, handle, self._told)
            except NotImplementedError:  # some loops, as on Windows, watch no files
                os.close(handle)
            else:
                self._handle = handle
                self._unwatch = weakref.finalize(self, _unwatch, self._loop, handle, self._told)

    def put(self, tickets: list[Ticket]) -> None:
        """Have the futures of *tickets* resolved on the loop."""
        self._told.append(tickets)
        with self._using:
            if self._unwatch is not None and self._unwatch.alive:
                os.write(self._handle, _ONE)
                return
        loop = self._loop()
        try:
            if loop is not None:
                loop.call_soon_threadsafe(_resolve, self._told)
        except RuntimeError:  # it is closed, and nobody waits there any more
            return

    def close(self) -> None:
        """Let go of the file. Who is still to be told is told without it."""
        if self._unwatch is not None:
            with self._using:
                self._unwatch()

    def forget(self) -> None:
        """The same in a forked child: what its parent's loop watches is none of its business."""
        if self._unwatch is not None and self._unwatch.detach() is not None:
            os.close(self._handle)


def _unwatch(
    loop_of: weakref.ref[AbstractEventLoop], handle: int, told: deque[list[Ticket]]
) -> None:
    """Close a file that a loop watches, when that has been told not to.

    Otherwise it would take the next file with that number for the one that it watches already.
    """
    loop = loop_of()

    def close() -> None:
        if loop is not None and not loop.is_closed():
            loop.remove_reader(handle)
            _resolve(told)  # of which it would not be told any more
        os.close(handle)

    try:
        if loop is not None and loop.is_running():  # perhaps in another thread
            loop.call_soon_threadsafe(close)
            return
    except RuntimeError:  # it was closed just now
        pass
    close()


_ONE = (1).to_bytes(8, sys.byteorder)


def _open(handle: int, told: deque[list[Ticket]]) -> None:
    """On the loop that watches *handle*, when it was told of something."""
    os.read(handle, 8)
    _resolve(told)


def _resolve(told: deque[list[Ticket]]) -> None:
    """On the loop: resolve the futures of those of whom it was *told*."""
    while told:
        for ticket in told.popleft():
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
