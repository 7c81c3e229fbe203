"""Group commit: many callers, one transaction, one sync to disk.

The first caller to find nobody leading becomes the leader and commits its own work in place, with
no thread hop. Those who come meanwhile queue up. When the leader is done it hands the lead to the
first thread in the queue, which commits for all that have gathered; if only async callers wait, a
helper thread leads. Each waits for its own outcome, never for a lock, and is served in turn.

Threads are told of their outcomes in a chain: the leader wakes the first, who wakes the next. Were
all woken at once, they would queue for Python's global lock, in front of the leader, who then could
not begin the next commit.

An interrupt (Ctrl-C) may strike the leader between any two steps, also amid those that would hand
the lead on. So nobody relies on its last words: whoever waits looks now and then whether the leader
is still there, and otherwise sees to it that another goes on. Being there means holding a lock in a
``with`` statement, which Python lets go whatever strikes; a method of ours it might never begin.
What the leader had begun with is then either committed and told, or done by the next one.
"""

from __future__ import annotations

import copy
import threading
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, TimerHandle
    from collections.abc import Callable

__all__ = ["GroupCommit", "Ticket"]

#: Seconds after which one who waits looks whether the leader is still there.
PATIENCE = 0.5

#: A batch this large is committed although more are waiting, so that nobody waits for long.
MOST = 512


class Ticket:
    """One caller's work and its outcome."""

    __slots__ = (
        *("error", "future", "hired", "inside", "loop", "next", "result", "settled", "told"),
        *("waiting", "watch", "work"),
    )

    def __init__(self, work: Any) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self.settled = False  # has an outcome
        self.told = False  # an async caller's future has been given it
        self.inside = threading.Lock()  # held until its caller has left
        self.hired = False  # a helper's, which is sure to come
        self.waiting: threading.Lock | None = None  # of a thread; held until there is news
        self.next: Ticket | None = None  # the thread to be woken after this one
        self.loop: AbstractEventLoop | None = None  # of an async caller, with its future
        self.future: Future[Any] | None = None
        self.watch: TimerHandle | None = None  # of an async caller that looks after a leader

    @property
    def gone(self) -> bool:
        """Whether its caller has left, perhaps without a word."""
        return not (self.inside.locked() or self.hired)

    def outcome(self) -> Any:
        """The work's value, or its error raised."""
        if self.error is not None:
            raise self.error
        return self.result


class GroupCommit:
    """Has callers' work done in shared transactions.

    *commit* gets a list of tickets, does each one's work within one transaction, and returns when
    that is durable. It puts a refusal into a ticket's ``error`` and a value into ``result``. If it
    raises, it has kept nothing but the tickets on which it has set ``settled``. Where it would do
    harm to do them twice, it sets that as soon as they are durable: an interrupt may come next.
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
        self._batch: list[Ticket] = []  # taken out of the queue, and not all told yet
        self._leader: Ticket | None = None  # never None while somebody is in either

    @property
    def busy(self) -> bool:
        """Whether somebody leads at this moment; only a hint, for it may be over at once."""
        return self._leader is not None

    def run(self, work: Any) -> Any:
        """Have *work* committed and return its value: as the leader, or as one of the led."""
        ticket = Ticket(work)
        with ticket.inside:
            try:
                if self._join(ticket):
                    self._lead([ticket])
                else:
                    self._follow(ticket)
            except BaseException:  # an interrupt: settle what is under way, then let it go on
                self._settle(ticket)
                raise
            finally:
                # Always so after leading; after an interrupt it may be so at any point.
                if self._leader is ticket:
                    self._pass_on(ticket)
                if ticket.next is not None:
                    _wake(ticket.next)
        return ticket.outcome()

    async def run_async(self, work: Any) -> Any:
        """The same for a task of any event loop, which is never blocked."""
        import asyncio  # noqa: PLC0415 - sync programs never pay for it

        ticket = Ticket(work)
        ticket.loop = asyncio.get_running_loop()
        ticket.future = ticket.loop.create_future()
        with ticket.inside:
            self._join_async(ticket)
            try:
                return await ticket.future
            except asyncio.CancelledError:
                # Not by `settle`: shielding every future would cost as much as all else here.
                await self._settle_async(ticket)
                raise
            finally:
                if ticket.watch is not None:
                    ticket.watch.cancel()

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

    def _join_async(self, ticket: Ticket) -> None:
        """Queue up, and see to it that somebody leads."""
        with self._mutex:
            self._queue.append(ticket)
            leader = self._leader
            alone = leader is None
            if leader is None:
                leader = self._leader = Ticket(None)
        if alone:
            self._call(leader)
        elif not leader.hired:  # a helper leads until nobody waits, and no interrupt strikes it
            self._watch(ticket)

    def _watch(self, ticket: Ticket) -> None:
        """Look after the leader until *ticket* is told, as threads do."""
        self._mend()
        if ticket.loop is not None:
            ticket.watch = ticket.loop.call_later(PATIENCE, self._watch, ticket)

    def _follow(self, ticket: Ticket) -> None:
        """Wait for the outcome, or for the lead."""
        self._mend()
        while ticket.waiting is not None:
            ticket.waiting.acquire(timeout=PATIENCE)
            if ticket.settled:
                return
            if self._leader is ticket:
                self._lead(self._take(ticket))
                return
            self._mend()

    def _take(self, leader: Ticket) -> list[Ticket]:
        """The next batch; none if *leader* came too late, and another leads in its place."""
        with self._mutex:
            if self._leader is not leader:
                return []
            batch = [ticket for ticket in self._queue[:MOST] if ticket.inside.locked()]
            self._batch, self._queue = batch, self._queue[MOST:]  # no interrupt comes between
            return batch

    def _pass_on(self, leader: Ticket) -> None:
        """Hand on the lead of *leader*, who is done, or struck."""
        with self._mutex:
            if self._leader is not leader:
                return
            if not (self._queue or self._batch):  # as it mostly is
                self._leader = None
                return
            helper = self._elect()
        if helper is not None:
            self._call(helper)

    def _mend(self) -> None:
        """Go on for a leader that was struck and has left without a word."""
        leader = self._leader
        if leader is None or not leader.gone:
            return
        with self._mutex:
            # Asked again: a helper may have come meanwhile.
            helper = self._elect() if self._leader is leader and leader.gone else None
        if helper is not None:
            self._call(helper)

    def _elect(self) -> Ticket | None:
        """Let the first thread that waits lead. If only async callers do, a helper: to be called.

        Under the mutex. An interrupt finds each change made or not made, and nothing lost.
        """
        if self._batch:  # the leader was struck amid it
            self._recover(self._batch)
        if not self._queue:
            self._leader = None
            return None
        heir = next((one for one in self._queue if one.waiting is not None and not one.gone), None)
        if heir is None:
            self._leader = helper = Ticket(None)
            return helper
        # First in the batch that it will lead.
        queue = [heir, *(ticket for ticket in self._queue if ticket is not heir)]
        self._queue, self._leader = queue, heir
        _wake(heir)
        return None

    def _recover(self, batch: list[Ticket]) -> None:
        """Tell those of *batch* that are settled, and put the others back in front of the queue."""
        left = [ticket for ticket in batch if ticket is not self._leader and not ticket.gone]
        _tell([ticket for ticket in left if ticket.settled])
        queue = [*(ticket for ticket in left if not ticket.settled), *self._queue]
        self._batch, self._queue = [], queue

    def _call(self, helper: Ticket) -> None:
        try:
            self._hire(partial(self._help, helper))
            helper.hired = True
        except Exception as error:  # noqa: BLE001 - the store is closing: say so to all who wait
            if batch := self._take(helper):
                _fail(batch, error)
                _tell(batch)
                self._batch = []
            self._pass_on(helper)

    def _help(self, helper: Ticket) -> None:
        """Lead on a helper thread for as long as anybody waits."""
        with helper.inside:
            try:
                while batch := self._take(helper):
                    self._lead(batch)
            finally:
                self._pass_on(helper)

    def _withdraw(self, ticket: Ticket) -> bool:
        """Take *ticket* out of the queue. False if it is under way; True: it does not happen."""
        with self._mutex:
            if ticket in self._queue:
                self._queue.remove(ticket)
            return ticket not in self._batch

    def _settle(self, ticket: Ticket) -> None:
        """Withdraw *ticket*, or wait for its end, through any interrupt: at most one commit.

        A leader that was struck has nobody to wait for: it hands on what it has begun with.
        """
        while not ticket.settled:
            try:
                if self._withdraw(ticket) or self._leader is ticket or ticket.waiting is None:
                    return
                ticket.waiting.acquire(timeout=0.1)
                self._mend()
            except KeyboardInterrupt:
                continue

    # -- the work itself -----------------------------------------------------------------------

    def _lead(self, batch: list[Ticket]) -> None:
        """Commit *batch* and tell everybody in it. A thread's own ticket is the first."""
        try:
            self._commit(batch)
        except Exception as error:  # noqa: BLE001 - handed to every caller
            _fail(batch, error)
        _tell(batch)
        self._batch = []


def _fail(batch: list[Ticket], error: Exception) -> None:
    for ticket in batch:
        if not ticket.settled:
            ticket.error = copy.copy(error)  # one each: a raised error collects its own traceback
            ticket.error.__cause__ = error.__cause__


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
    """Wake its thread; if that has left already, the one after it."""
    while ticket.next is not None and not ticket.inside.locked():
        ticket = ticket.next
    try:
        if ticket.waiting is not None:
            ticket.waiting.release()
    except RuntimeError:  # somebody else was quicker
        return
