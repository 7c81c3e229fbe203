"""Leases: each is renewed by itself, and stays with the process that took it."""

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import LeaseHeld, LeaseLost, TaskHeld
from limpet.backends.contract import Key, Lease
from limpet.backends.memory import MemoryBackend
from limpet.core import leases
from limpet.core.leases import HeldLease, LeaseKeeper, store_now
from limpet.core.runtime import run_to_end
from tests.support.processes import in_a_process, until

# The parent has a thread that renews: a fork of it is what these are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

GOAL = "Fetch them"


@limpet.effect
def pay() -> None:
    """What must not happen in two processes."""
    pytest.fail("it ran")


def refused(error: type[LeaseHeld], *calls: Callable[[], Any]) -> int:
    """How many of *calls* are refused, in the right words."""
    for call in calls:
        with pytest.raises(error, match=r"is open in process \d+, and this is a fork of that"):
            call()
    return len(calls)


def test_a_fork_has_no_part_in_its_parents_task(tmp_path: Path) -> None:
    """It can read what is done, and write nothing; when it leaves the block, the parent has it."""

    def fork() -> Any:
        calls: list[Callable[[], Any]] = [
            lambda: task.step("b", pay),
            lambda: task.decide("go on"),
            lambda: task.finish("done"),
            pay,
        ]
        count = refused(TaskHeld, *calls)
        task.__exit__(SystemExit, SystemExit(0), None)
        return [count, task.result("a"), task.checkpoint().completed]

    with limpet.open(tmp_path / "db") as store, store.task("t", GOAL) as task:
        task.step("a", lambda: 1)
        assert in_a_process(fork) == (0, [4, 1, ["a"]])
        with limpet.open(tmp_path / "db") as other, pytest.raises(TaskHeld):
            other.task("t").__enter__()
        assert task.step("b", lambda: 2) == 2
        task.finish("done")
        types = [entry.type for entry in store.journal("task", "t").read()]
    assert types == ["created", "step", "step", "finished"]


def test_a_fork_neither_writes_under_a_hold_of_its_parent_nor_ends_it(tmp_path: Path) -> None:
    """Whatever it is that is held: a conversation, a run of agents, a team."""
    with limpet.open(tmp_path / "db") as store:
        journal = store.journal("chat", "c")
        journal.append(("said", 1))
        lock = store.scope.lock(journal.key.kind, journal.key.id)
        run_to_end(lock.acquire(0))
        held = lock.held
        assert held is not None

        def fork() -> int:
            count = refused(LeaseHeld, lambda: journal.append(("said", 2), lease=held.lease))
            lock.release_now()
            return count

        assert in_a_process(fork) == (0, 1)
        assert journal.append(("said", 3), lease=held.lease) == 2
        lock.release_now()


# -- renewals ------------------------------------------------------------------------------------


class Renewals(MemoryBackend):
    """A place where the renewal of "stuck" does not come to an end before it is *freed*."""

    def __init__(self) -> None:
        super().__init__()
        self.freed = threading.Event()
        self.begun = threading.Event()

    def renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        """`Backend.renew`, at some time."""
        if key.id == "stuck":
            self.begun.set()
            assert self.freed.wait(60)
        return super().renew(key, lease, ttl)


def key(id_: str) -> Key:
    """The key of a task."""
    return Key("default", "task", id_)


def test_a_renewal_that_gets_no_answer_keeps_no_other_waiting() -> None:
    """One file may be locked, one server of many away."""
    backend = Renewals()
    keeper = LeaseKeeper(backend)
    keeper.take(key("stuck"), 0.01)
    assert backend.begun.wait(60)
    well = [keeper.take(key(f"well {n}"), 0.01) for n in range(5)]
    ends = [held.lease.until for held in well]
    assert until(lambda: all(held.lease.until > end for held, end in zip(well, ends, strict=True)))
    backend.freed.set()
    keeper.stop()


def test_a_lease_whose_taker_is_interrupted_on_the_way_back_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or it would be renewed for as long as the process lives, and nobody would have it."""
    take = LeaseKeeper.take

    def interrupted(*args: Any, **options: Any) -> HeldLease:
        take(*args, **options)
        raise KeyboardInterrupt

    with limpet.open("memory:") as store:
        monkeypatch.setattr(LeaseKeeper, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.task("t", GOAL).__enter__()
        monkeypatch.undo()
        assert store.scope.store.leases._held == []
        with store.task("t", GOAL):
            pass


def test_what_is_given_up_on_the_thread_that_renews_it_does_not_wait_for_itself() -> None:
    """The garbage collector may end a stream there."""
    backend = Renewals()
    keeper = LeaseKeeper(backend)
    given_up, kept = threading.Event(), list[HeldLease]()

    def beat() -> None:
        if until(lambda: bool(kept)):
            keeper.drop(kept[0])
            given_up.set()

    kept.append(keeper.take(key("stream"), 0.01, on_renewed=beat, every=0.01))
    assert given_up.wait(60)
    keeper.stop()


def test_a_heartbeat_that_exits_does_not_end_the_renewals() -> None:
    """Whatever it raises: its thread renews the others' leases too."""
    keeper = LeaseKeeper(MemoryBackend())
    beats: list[None] = []

    def beat() -> None:
        beats.append(None)
        raise SystemExit

    held = keeper.take(key("t"), 0.03, on_renewed=beat, every=0.01)
    assert until(lambda: len(beats) > 2)
    keeper.drop(held)
    keeper.stop()


# -- left behind ---------------------------------------------------------------------------------


def test_what_an_interrupt_left_is_taken_over_by_the_same_process_at_once(tmp_path: Path) -> None:
    """Nobody renews it and nobody will release it: it is not held for as long as it lasts."""
    with limpet.open(tmp_path / "db") as store:
        store.backend.acquire(key("t"), leases.holder_name(None), 600)  # struck right behind this
        lock = store.scope.lock("task", "t")
        run_to_end(lock.acquire(0))
        with limpet.open(tmp_path / "db") as other:
            second = other.scope.lock("task", "t")
            with pytest.raises(LeaseHeld):  # which another store of this process has
                run_to_end(second.acquire(0))
        lock.release_now()


def test_the_lease_of_a_scope_is_held_for_a_block(tmp_path: Path) -> None:
    """What is written under it, is written by who has it; others wait for as long as they say."""

    async def main() -> None:
        async with limpet.open_async(tmp_path / "db") as store:
            journal = store.journal("board", "b")
            async with store.scope.lock("board", "b", agent="a player") as lock:
                await journal.append(("moved", "e4"), lease=lock.lease)
                with pytest.raises(LeaseHeld, match="a player"):
                    await store.scope.lock("board", "b").__aenter__()
                waits = asyncio.create_task(store.scope.lock("board", "b", wait=60).__aenter__())
                old = lock.lease
            with pytest.raises(LeaseLost, match="The lease on board 'b' is not ours"):
                _ = lock.lease
            second = await waits
            with pytest.raises(LeaseLost):
                await journal.append(("moved", "e5"), lease=old)
            await second.release()
            with pytest.raises(ValueError, match="A lease is a number of seconds over 0"):
                store.scope.lock("board", "b", 0)

    asyncio.run(main())


# -- the time ------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_machine_whose_clock_is_wrong_goes_by_the_stores(
    hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker wakes what sleeps when it is due there, and a deadline is that of the store."""

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + timedelta(hours=hours)

    with limpet.open("memory:") as store:
        with store.task("t", GOAL, deadline=600) as task:
            deadline = task.deadline
        assert deadline is not None
        before = datetime.now(UTC)
        monkeypatch.setattr(leases, "datetime", Wrong)
        assert before - timedelta(minutes=5) < store_now(store.backend, "acme") < deadline
        assert list(store.backend.kinds()) == [("default", "task")]
