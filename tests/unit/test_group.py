"""Group commit: who commits where, who waits for whom, and what becomes of those who leave."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from limpet.backends.group_commit import GroupCommit, Ticket, tell
from limpet.errors import StoreBusy, StoreClosed, StoreFull
from tests.support.processes import until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Disk:
    """Commits that happen when the test says so."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.began = threading.Event()
        self.batches: list[list[Any]] = []
        self.threads: list[str] = []
        self.strike: BaseException | None = None

    def commit(self, batch: list[Ticket]) -> None:
        """Wait for the gate, then do what was asked; and be struck, if it is to be."""
        self.began.set()
        assert self.gate.wait(30)
        self.batches.append([ticket.work for ticket in batch])
        self.threads.append(threading.current_thread().name)
        for ticket in batch:
            ticket.result = ticket.work
        strike, self.strike = self.strike, None
        if strike is not None:
            raise strike

    def commit_one(self, work: Any) -> Any:
        """The same for one."""
        ticket = Ticket(work)
        self.commit([ticket])
        return ticket.outcome()

    @property
    def done(self) -> list[Any]:
        """What was committed, in its order."""
        return [work for batch in self.batches for work in batch]


@pytest.fixture
def disk() -> Disk:
    """A disk that is not busy."""
    disk = Disk()
    disk.gate.set()
    return disk


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for callers."""
    with ThreadPoolExecutor(16, thread_name_prefix="pool") as pool:
        yield pool


def made(disk: Disk, timeout: float = 60) -> GroupCommit:
    """A group that commits to the disk."""
    return GroupCommit(
        disk.commit, disk.commit_one, threading.RLock(), timeout=timeout, what="agents.db"
    )


@pytest.fixture
def group(disk: Disk) -> Iterator[GroupCommit]:
    """A group that commits to the disk, closed afterwards."""
    group = made(disk)
    yield group
    disk.gate.set()
    group.close()


def queued(group: GroupCommit, count: int) -> None:
    """Wait until *count* callers are in the queue."""
    assert until(lambda: len(group._shared.queue) == count)


def test_a_lone_caller_commits_in_its_own_thread(group: GroupCommit, disk: Disk) -> None:
    """No hop, no queue, no thread."""
    assert group.run("one") == "one"
    assert disk.threads == [threading.current_thread().name]
    assert group._thread is None


def test_those_who_come_meanwhile_share_the_next_commit(
    group: GroupCommit, disk: Disk, pool: ThreadPoolExecutor
) -> None:
    """In the order of their coming, each with its own result."""
    disk.gate.clear()
    calls = [pool.submit(group.run, 0)]
    assert disk.began.wait(30)
    calls.append(pool.submit(group.run, 1))
    assert until(lambda: group._shared.batch_waits)  # the writer has it, and waits for the lock
    for number in range(2, 6):
        calls.append(pool.submit(group.run, number))
        queued(group, number - 1)
    disk.gate.set()
    assert [call.result(30) for call in calls] == [0, 1, 2, 3, 4, 5]
    assert disk.batches == [[0], [1], [2, 3, 4, 5]]
    assert set(disk.threads[1:]) == {"limpet-writer"}


def test_when_the_crowd_has_gone_a_lone_caller_commits_in_its_own_thread_again(
    group: GroupCommit, disk: Disk
) -> None:
    """The writer goes to sleep when nobody has come for a moment."""
    assert asyncio.run(group.run_async("first")) == "first"
    assert until(lambda: group._shared.grouping < time.monotonic())
    group.run("second")
    assert disk.threads == ["limpet-writer", threading.current_thread().name]


def test_async_callers_share_a_commit_and_never_block_their_loop(
    group: GroupCommit, disk: Disk
) -> None:
    """Tasks of two loops, one after the other."""

    async def many() -> list[Any]:
        disk.gate.clear()
        calls = [asyncio.ensure_future(group.run_async(number)) for number in range(20)]
        await asyncio.sleep(0)  # all of them have come, and the writer has gone with one at least
        disk.gate.set()
        return await asyncio.gather(*calls)

    assert asyncio.run(many()) == list(range(20))
    assert asyncio.run(many()) == list(range(20))
    assert len(disk.done) == 40
    assert len(disk.batches) < 40


class Full:
    """A disk without room."""

    def commit(self, batch: list[Ticket]) -> None:
        """Refuse all of it."""
        raise StoreFull("no room") from OSError(28)

    def commit_one(self, work: Any) -> Any:
        """Refuse it."""
        self.commit([Ticket(work)])


def test_an_error_of_the_commit_reaches_everybody() -> None:
    """Each gets one of its own, with the cause: a raised error collects its own traceback."""
    full = Full()
    group = GroupCommit(
        full.commit, full.commit_one, threading.RLock(), timeout=60, what="agents.db"
    )

    async def many() -> list[Any]:
        calls = (group.run_async(number) for number in range(3))
        return await asyncio.gather(*calls, return_exceptions=True)

    errors = asyncio.run(many())
    assert [type(error) for error in errors] == [StoreFull] * 3
    assert len({id(error) for error in errors}) == 3
    assert all(isinstance(error.__cause__, OSError) for error in errors)
    assert until(lambda: group._shared.grouping < time.monotonic())
    with pytest.raises(StoreFull):
        group.run("alone")
    group.close()


def test_an_interrupted_caller_is_in_nobodys_way(
    group: GroupCommit, disk: Disk, pool: ThreadPoolExecutor
) -> None:
    """What was committed stays committed, although it hears only of the interrupt."""
    disk.strike = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        group.run("one")
    assert pool.submit(group.run, "two").result(30) == "two"
    assert group.run("three") == "three"
    assert disk.done == ["one", "two", "three"]


def test_a_task_cancelled_before_its_turn_never_happens(group: GroupCommit, disk: Disk) -> None:
    """It is withdrawn, and the cancellation goes on at once."""

    async def cancelled() -> None:
        disk.gate.clear()
        first = asyncio.ensure_future(group.run_async("first"))
        await asyncio.to_thread(disk.began.wait, 30)
        second = asyncio.ensure_future(group.run_async("second"))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        disk.gate.set()
        assert await first == "first"

    asyncio.run(cancelled())
    group.close()
    assert disk.batches == [["first"]]


@pytest.mark.parametrize("cancellations", [1, 3])
def test_a_task_cancelled_under_way_ends_first(
    group: GroupCommit, disk: Disk, cancellations: int
) -> None:
    """The cancellation goes on when the write has ended, however often it comes."""

    async def cancelled() -> bool:
        disk.gate.clear()
        write = asyncio.ensure_future(group.run_async("one"))
        await asyncio.to_thread(disk.began.wait, 30)
        for _ in range(cancellations):
            write.cancel()
            await asyncio.sleep(0.01)
            assert not write.done()
        disk.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await write
        return disk.batches == [["one"]]

    assert asyncio.run(cancelled())


def test_after_closing_nothing_is_taken_and_nobody_waits(group: GroupCommit, disk: Disk) -> None:
    """An error, not silence; what had come is done."""
    assert asyncio.run(group.run_async("one")) == "one"
    group.close()
    with pytest.raises(StoreClosed):
        asyncio.run(group.run_async("two"))
    assert disk.done == ["one"]


def test_who_was_served_as_the_group_closed_is_told(group: GroupCommit, disk: Disk) -> None:
    """Its loop has not heard of it yet, and is about to stop listening."""

    async def main() -> None:
        disk.gate.set()
        task = asyncio.create_task(group.run_async("a"))
        await asyncio.sleep(0)
        group.close()  # on return it is committed, and this loop has not run meanwhile
        assert await asyncio.wait_for(task, 30) == "a"

    asyncio.run(main())
    assert disk.done == ["a"]


def test_who_is_served_after_the_group_has_closed_is_told(disk: Disk) -> None:
    """By another thread, which finishes what the writer has begun."""
    taken: list[Ticket] = []

    class Slow:
        def commit(self, batch: list[Ticket]) -> None:
            taken.extend(batch)
            batch.clear()

    slow = Slow()
    group = GroupCommit(slow.commit, disk.commit_one, threading.RLock(), timeout=60, what="it")

    async def main() -> None:
        task = asyncio.create_task(group.run_async("a"))
        await asyncio.sleep(0)
        group.close()
        await asyncio.sleep(0)  # the loop lets go of the file
        taken[0].result = "done"
        tell(taken)
        assert await asyncio.wait_for(task, 30) == "done"

    asyncio.run(main())


def test_a_loop_that_is_gone_harms_nobody_else(group: GroupCommit, disk: Disk) -> None:
    """Its write is committed; the others are told."""
    disk.gate.clear()
    loop = asyncio.new_event_loop()
    task = loop.create_task(group.run_async("abandoned"))
    loop.run_until_complete(asyncio.sleep(0.01))
    task.add_done_callback(lambda _: None)
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # abandoned on purpose
    task.get_coro().close()
    loop.close()
    disk.gate.set()
    assert group.run("after") == "after"
    assert set(disk.done) <= {"abandoned", "after"}


def test_groups_that_are_dropped_leave_a_running_loop_as_it_was(disk: Disk) -> None:
    """The next one is told, though its file may have the number of one that is gone."""

    async def drop_many() -> int:
        for number in range(50):
            assert await made(disk).run_async(number) == number
            gc.collect()
        await asyncio.sleep(0)
        return len([link for link in links() if "eventfd" in link])

    before = len([link for link in links() if "eventfd" in link])
    assert asyncio.run(drop_many()) <= before + 2
    assert disk.done == list(range(50))


def links() -> list[str]:
    """What the files are that are open."""
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(handle.readlink()))
    return found


# -- alone -----------------------------------------------------------------------------------------


def test_whoever_has_it_alone_keeps_all_others_waiting(
    group: GroupCommit, disk: Disk, pool: ThreadPoolExecutor
) -> None:
    """And they go on when it is over: threads, tasks, and the next that wants it alone."""
    with group.alone():
        waiting = pool.submit(group.run, "thread")
        task = pool.submit(asyncio.run, group.run_async("task"))
        assert until(lambda: group._shared.batch_waits)
        assert disk.done == []
    assert (waiting.result(30), task.result(30)) == ("thread", "task")
    with group.alone():
        pass


def test_who_waits_too_long_for_another_is_told_so(disk: Disk, pool: ThreadPoolExecutor) -> None:
    """Nothing of it is written, then or later."""
    group = made(disk, timeout=0.05)
    with group.alone():
        for call in (
            pool.submit(group.run, "thread"),
            pool.submit(asyncio.run, group.run_async("task")),
        ):
            assert isinstance(call.exception(30), StoreBusy)
        assert isinstance(pool.submit(group.alone().__enter__).exception(30), StoreBusy)
    group.close()
    assert disk.done == []


@pytest.mark.slow
def test_transactions_and_batches_take_turns(
    group: GroupCommit, disk: Disk, pool: ThreadPoolExecutor
) -> None:
    """Neither starves, though the other comes again and again."""
    over = threading.Event()
    turns = []

    def transactions() -> None:
        while not over.is_set():
            with group.alone():
                turns.append(len(disk.done))

    def batches() -> None:
        while not over.is_set():
            asyncio.run(group.run_async("one"))

    calls = [pool.submit(work) for work in (transactions, transactions, batches, batches)]
    try:
        assert until(lambda: len(turns) > 20 and len(disk.done) > 20)
    finally:
        over.set()
    assert [call.result(30) for call in calls] == [None] * 4


@pytest.mark.slow
def test_a_group_that_nobody_uses_goes_and_its_thread_with_it(disk: Disk) -> None:
    """A store that was dropped without being closed."""
    group = made(disk)
    assert asyncio.run(group.run_async("one")) == "one"
    thread, gone = group._thread, weakref.ref(group)
    assert thread is not None
    del group
    gc.collect()
    assert gone() is None
    thread.join(30)
    assert not thread.is_alive()
