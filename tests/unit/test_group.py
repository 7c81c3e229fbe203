"""Group commit: who leads, who follows, and what becomes of them when somebody is struck."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from limpet.backends.group_commit import GroupCommit, Ticket
from limpet.errors import StoreFull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Disk:
    """Commits that happen when the test says so."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.began = threading.Event()
        self.batches: list[list[Any]] = []
        self.threads: list[str] = []
        self.strike: BaseException | None = None
        self.after_commit = False

    def commit(self, batch: list[Ticket]) -> None:
        """Wait for the gate, then do what was asked, or be struck."""
        self.began.set()
        assert self.gate.wait(30)
        strike, self.strike = self.strike, None
        if strike is None or self.after_commit:
            self.batches.append([ticket.work for ticket in batch])
            self.threads.append(threading.current_thread().name)
            for ticket in batch:
                ticket.result = ticket.work
                ticket.settled = strike is not None
        if strike is not None:
            raise strike


@pytest.fixture
def disk() -> Disk:
    """A disk that is not busy."""
    disk = Disk()
    disk.gate.set()
    return disk


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for callers and helpers."""
    with ThreadPoolExecutor(16, thread_name_prefix="pool") as pool:
        yield pool


@pytest.fixture
def group(disk: Disk, pool: ThreadPoolExecutor) -> GroupCommit:
    """A group that commits to the disk."""
    return GroupCommit(disk.commit, pool.submit)


def queued(group: GroupCommit, count: int) -> None:
    """Wait until *count* callers are in the queue."""
    for _ in range(3000):
        if len(group._queue) == count:
            return
        threading.Event().wait(0.01)
    pytest.fail(f"{len(group._queue)} are waiting, not {count}")


def test_a_lone_caller_commits_in_its_own_thread(group: GroupCommit, disk: Disk) -> None:
    """No hop, no queue."""
    assert group.run("one") == "one"
    assert disk.threads == [threading.current_thread().name]
    assert group._leader is None


def test_those_who_come_meanwhile_share_the_next_commit(
    group: GroupCommit, disk: Disk, pool: ThreadPoolExecutor
) -> None:
    """In the order of their coming, each with its own result."""
    disk.gate.clear()
    calls = [pool.submit(group.run, 0)]
    assert disk.began.wait(30)
    for number in range(1, 6):
        calls.append(pool.submit(group.run, number))
        queued(group, number)
    disk.gate.set()
    assert [call.result(30) for call in calls] == [0, 1, 2, 3, 4, 5]
    assert disk.batches == [[0], [1, 2, 3, 4, 5]]
    assert group._leader is None


def test_async_callers_share_a_commit_and_never_block_their_loop(
    group: GroupCommit, disk: Disk
) -> None:
    """Threads and tasks of two loops in one queue."""

    async def many() -> list[Any]:
        return await asyncio.gather(*(group.run_async(number) for number in range(20)))

    assert asyncio.run(many()) == list(range(20))
    assert asyncio.run(many()) == list(range(20))
    assert sum(len(batch) for batch in disk.batches) == 40
    assert len(disk.batches) < 40
    assert group._leader is None


def test_an_error_of_the_commit_reaches_everybody(
    group: GroupCommit, disk: Disk, pool: ThreadPoolExecutor
) -> None:
    """Each gets one of its own, with the cause; and the group goes on."""
    disk.gate.clear()
    first = pool.submit(group.run, 0)
    assert disk.began.wait(30)
    others = [pool.submit(group.run, number) for number in (1, 2, 3)]
    queued(group, 3)

    def full(batch: list[Ticket]) -> None:
        raise StoreFull("no room") from OSError(28)

    disk.gate.set()
    group._commit = full
    assert first.result(30) == 0
    errors = [call.exception(30) for call in others]
    assert [type(error) for error in errors] == [StoreFull] * 3
    assert len({id(error) for error in errors}) == 3
    assert all(isinstance(error.__cause__, OSError) for error in errors if error)
    group._commit = disk.commit
    assert group.run("more") == "more"


def test_an_interrupted_leader_hands_the_others_on(
    group: GroupCommit, disk: Disk, pool: ThreadPoolExecutor
) -> None:
    """An interrupt is its own affair: the rest of its batch is committed by the next."""
    disk.gate.clear()
    first = pool.submit(group.run, 0)
    assert disk.began.wait(30)
    calls = [pool.submit(group.run, 1)]
    queued(group, 1)
    calls += [pool.submit(group.run, number) for number in (2, 3)]
    queued(group, 3)
    original = disk.commit

    def struck(batch: list[Ticket]) -> None:
        group._commit = original
        raise KeyboardInterrupt

    group._commit = struck
    disk.gate.set()
    assert first.result(30) == 0
    assert isinstance(calls[0].exception(30), KeyboardInterrupt)
    assert sorted(call.result(30) for call in calls[1:]) == [2, 3]
    assert sorted(work for batch in disk.batches for work in batch) == [0, 2, 3]
    assert group._leader is None


def test_an_interrupt_among_single_commits_repeats_none_of_them(
    group: GroupCommit, disk: Disk, pool: ThreadPoolExecutor
) -> None:
    """What is settled is announced, what is not goes to the next leader."""
    disk.gate.clear()
    first = pool.submit(group.run, 0)
    assert disk.began.wait(30)
    calls = []
    for number in (1, 2, 3):
        calls.append(pool.submit(group.run, number))
        queued(group, number)
    original = disk.commit

    def one_by_one(batch: list[Ticket]) -> None:
        group._commit = original
        for ticket in batch[:2]:
            original([ticket])
            ticket.settled = True
        raise KeyboardInterrupt

    group._commit = one_by_one
    disk.gate.set()
    assert first.result(30) == 0
    assert isinstance(calls[0].exception(30), KeyboardInterrupt)
    assert [call.result(30) for call in calls[1:]] == [2, 3]
    assert disk.batches == [[0], [1], [2], [3]]


def test_an_interrupt_right_after_the_commit_is_no_loss(group: GroupCommit, disk: Disk) -> None:
    """What was committed stays committed, although the caller hears only of the interrupt."""
    disk.strike, disk.after_commit = KeyboardInterrupt(), True
    with pytest.raises(KeyboardInterrupt):
        group.run("one")
    assert disk.batches == [["one"]]
    assert group.run("two") == "two"


def test_a_task_cancelled_before_its_turn_never_happens(
    group: GroupCommit, disk: Disk, pool: ThreadPoolExecutor
) -> None:
    """It is taken out of the queue, and the cancellation goes on at once."""

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
    assert disk.batches == [["first"]]


@pytest.mark.parametrize("cancellations", [1, 3])
def test_a_task_cancelled_under_way_is_settled_first(
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


def test_async_callers_are_told_when_no_helper_can_be_had(disk: Disk) -> None:
    """The store is closing: an error, not silence."""

    def closed(_: Callable[[], None]) -> None:
        raise StoreFull("closing")

    group = GroupCommit(disk.commit, closed)
    with pytest.raises(StoreFull, match="closing"):
        asyncio.run(group.run_async("one"))
    assert disk.batches == []
    assert group.run("two") == "two"


def test_a_loop_that_is_gone_harms_nobody_else(group: GroupCommit, disk: Disk) -> None:
    """Its write is committed; the others of the batch are told."""
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
    assert ["abandoned"] in disk.batches
