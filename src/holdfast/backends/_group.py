"""Group commit: many callers, one transaction, one sync to disk.

The first caller to find nobody leading becomes the leader and commits its own work in place, with
no thread hop. Those who come meanwhile queue up. When the leader is done it hands the lead to the
first thread in the queue, which commits for all that have gathered; if only async callers wait, a
helper thread leads. Each waits for its own outcome, never for a lock, and is served in turn.

Threads are told of their outcomes in a chain: the leader wakes the first, who wakes the next. Were
all woken at once, they would queue for Python's global lock, in front of the leader, who then could
not begin the next commit.

An interrupt (Ctrl-C) may strike the leader between any two steps. What it leads is then either
committed and announced, or put back in the queue for the next leader; see `GroupCommit.run`.
"""

from __future__ import annotations

import copy
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable

__all__ = ["GroupCommit", "Ticket"]

#: A batch this large is committed although more are waiting, so that nobody waits for long.
MOST = 512


class Ticket:
    """One caller's work and its outcome."""

    __slots__ = ("error", "future", "loop", "next", "result", "settled", "told", "waiting", "work")

    def __init__(self, work: Any) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self.settled = False  # has an outcome
        self.told = False  # an async caller's future has been given it
        self.waiting: threading.Lock | None = None  # of a thread; held until there is news
        self.next: Ticket | None = None  # the thread to be woken after this one
        self.loop: AbstractEventLoop | None = None  # of an async caller, with its future
        self.future: Future[Any] | None = None

    def outcome(self) -> Any:
        """The work's value, or its error raised."""
        if self.error is not None:
            raise self.error
        return self.result


#: Stands for the helper thread where a leader's ticket would.
HELPER = Ticket(None)


class GroupCommit:
    """Has callers' work done in shared transactions.

    *commit* gets a list of tickets, does each one's work within one transaction, and returns when
    that is durable. It puts a refusal into a ticket's ``error`` and a value into ``result``. If it
    raises, it has kept nothing but the tickets on which it has set ``settled``.
    *hire* runs a function on another thread.
    """

    def __init__(
        self,
        commit: Callable[[list[Ticket]], None],
        hire: Callable[[Callable[[], None]], object],
    ) -> None:
        self._commit = commit
        self._hire = hire
        self._mutex = threading.Lock()
        self._queue: list[Ticket] = []
        self._leader: Ticket | None = None  # never None while somebody is in the queue

    @property
    def busy(self) -> bool:
        """Whether somebody leads at this moment; only a hint, for it may be over at once."""
        return self._leader is not None

    def run(self, work: Any) -> Any:
        """Have *work* committed and return its value: as the leader, or as one of the led."""
        ticket = Ticket(work)
        try:
            if self._join(ticket):
                self._lead([ticket])
            else:
                self._follow(ticket)
        finally:
            # Always so after leading; after an interrupt it may be so at any point.
            if self._leader is ticket:
                self._pass_on()
            if ticket.next is not None:
                _wake(ticket.next)
        return ticket.outcome()

    async def run_async(self, work: Any) -> Any:
        """The same for a task of any event loop, which is never blocked."""
        import asyncio  # noqa: PLC0415 - sync programs never pay for it

        ticket = Ticket(work)
        ticket.loop = asyncio.get_running_loop()
        ticket.future = ticket.loop.create_future()
        with self._mutex:
            self._queue.append(ticket)
            alone = self._leader is None
            if alone:
                self._leader = HELPER
        if alone:
            self._call_helper()
        try:
            return await ticket.future
        except asyncio.CancelledError:
            # Not by `settle`: shielding every future would cost as much as all else here.
            await self._settle_async(ticket)
            raise

    async def _settle_async(self, ticket: Ticket) -> None:
        """Withdraw *ticket*, or wait for its end, through any number of cancellations."""
        import asyncio  # noqa: PLC0415 - as above

        while not (ticket.told or self._withdraw(ticket)):
            # The old future is cancelled; `_resolve`, which runs on this loop, finds the new one.
            ticket.future = asyncio.get_running_loop().create_future()
            try:
                await ticket.future
            except asyncio.CancelledError:
                continue
            except Exception:  # noqa: BLE001 - the write failed, and the cancellation goes on
                return

    # -- leading and following ---------------------------------------------------------------

    def _join(self, ticket: Ticket) -> bool:
        """True if *ticket* leads; otherwise it is in the queue."""
        with self._mutex:
            if self._leader is None:
                self._leader = ticket
                return True
            ticket.waiting = threading.Lock()
            ticket.waiting.acquire()
            self._queue.append(ticket)
            return False

    def _follow(self, ticket: Ticket) -> None:
        """Wait for the outcome, or for the lead."""
        try:
            if ticket.waiting is not None:
                ticket.waiting.acquire()
        except BaseException:  # an interrupt: settle what is under way, then let it go on
            self._settle(ticket)
            raise
        if not ticket.settled:
            self._lead(self._take())

    def _take(self) -> list[Ticket]:
        with self._mutex:
            batch, self._queue = self._queue[:MOST], self._queue[MOST:]
        return batch

    def _pass_on(self) -> None:
        """Hand the lead to the first thread that waits; to a helper if only async callers do."""
        with self._mutex:
            if not self._queue:
                self._leader = None
                return
            heir = next((ticket for ticket in self._queue if ticket.waiting is not None), None)
            if heir is not None:
                self._queue.remove(heir)
                self._queue.insert(0, heir)  # first in the batch that it will lead
                self._leader = heir
                _wake(heir)
                return
            self._leader = HELPER
        self._call_helper()

    def _call_helper(self) -> None:
        try:
            self._hire(self._help)
        except Exception as error:  # noqa: BLE001 - the store is closing: say so to all who wait
            self._fail(self._take(), error)
            self._pass_on()

    def _help(self) -> None:
        """Lead on a helper thread for as long as anybody waits."""
        while True:
            self._lead(self._take())
            with self._mutex:
                if not self._queue:
                    self._leader = None
                    return

    def _withdraw(self, ticket: Ticket) -> bool:
        """Take *ticket* out of the queue if nobody has begun with it. True: it never happened."""
        with self._mutex:
            if ticket not in self._queue:
                return False
            self._queue.remove(ticket)
            return True

    def _settle(self, ticket: Ticket) -> None:
        """Withdraw *ticket*, or wait for its end, through any interrupt: at most one commit."""
        while not (ticket.settled or self._withdraw(ticket)):
            try:
                if ticket.waiting is not None:
                    ticket.waiting.acquire(timeout=0.1)
            except KeyboardInterrupt:
                continue

    # -- the work itself -----------------------------------------------------------------------

    def _lead(self, batch: list[Ticket]) -> None:
        """Commit *batch* and tell everybody in it. A thread's own ticket is the first."""
        try:
            self._commit(batch)
        except Exception as error:  # noqa: BLE001 - handed to every caller
            self._fail(batch, error)
        except BaseException:  # an interrupt of this thread, which is not the others' affair
            with self._mutex:
                self._queue[:0] = [ticket for ticket in batch[1:] if not ticket.settled]
            _announce([ticket for ticket in batch if ticket.settled])
            raise
        else:
            _announce(batch)

    def _fail(self, batch: list[Ticket], error: Exception) -> None:
        for ticket in batch:
            ticket.error = copy.copy(error)  # one each: a raised error collects its own traceback
            ticket.error.__cause__ = error.__cause__
        _announce(batch)


def _announce(batch: list[Ticket]) -> None:
    try:
        _tell(batch)
    except BaseException:  # an interrupt: nobody may be left waiting for a word that never comes
        _tell(batch)
        raise


def _tell(batch: list[Ticket]) -> None:
    """Let every caller know of its outcome: a chain of threads, one callback an event loop."""
    if len(batch) == 1 and batch[0].waiting is None and batch[0].loop is None:
        batch[0].settled = True  # a lone leader, who knows
        return
    loops: dict[AbstractEventLoop, list[Ticket]] = {}
    threads = [ticket for ticket in batch if ticket.waiting is not None]
    for ticket, following in pairwise(threads):
        ticket.next = following
    for ticket in batch:
        ticket.settled = True
        if ticket.loop is not None:
            loops.setdefault(ticket.loop, []).append(ticket)
    if threads:
        _wake(threads[0])
    for loop, tickets in loops.items():
        try:
            loop.call_soon_threadsafe(_resolve, tickets)
        except RuntimeError:
            continue


def _resolve(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        ticket.told = True
        future = ticket.future
        if future is None or future.done():
            continue
        if ticket.error is not None:
            future.set_exception(ticket.error)
        else:
            future.set_result(ticket.result)


def _wake(ticket: Ticket) -> None:
    if ticket.waiting is not None and ticket.waiting.locked():
        ticket.waiting.release()
