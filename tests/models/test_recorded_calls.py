"""Calls of an integration that has no task: each is made once, also if the process is killed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.core.calls import SKIPPED, Call
from limpet.core.recorded_calls import RecordedCalls
from limpet.core.runtime import run_to_end
from limpet.errors import CallsInDoubt, Conflict, LeaseHeld, LeaseLost, NotStorable, Unreadable
from limpet.store import as_async

if TYPE_CHECKING:
    from pathlib import Path

KIND, ID = "toybot", "alice"


def recorded(store: Any, **options: Any) -> RecordedCalls:
    """The calls of one journal in *store*."""
    return RecordedCalls(store.scope, KIND, ID, **options)


def names(store: limpet.Store) -> list[str]:
    """The calls that are in doubt, as another process sees it."""
    return [doubt.call.id for doubt in store.in_doubt()]


async def say(text: str) -> str:
    """A tool."""
    await asyncio.sleep(0)
    return f"said {text}"


async def never() -> None:
    """A tool that must not be called."""
    pytest.fail("it was called")


def test_calls_side_by_side_are_each_made_once(tmp_path: Path) -> None:
    """One that ends does not take another for ended that began meanwhile."""
    begun, rest = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        begun.set()
        await rest.wait()
        return "slow"

    async def main() -> None:
        async with limpet.open_async(tmp_path / "db") as store, recorded(store) as calls:
            first = asyncio.create_task(calls.make("slow", slow))
            await begun.wait()
            texts = [calls.make(f"c{at}", say, str(at)) for at in range(20)]
            assert await asyncio.gather(*texts) == [f"said {at}" for at in range(20)]
            head = await store.journal(KIND, ID).head()
            assert head is not None
            assert head.meta is not None
            assert b'"slow"' in head.meta
            rest.set()
            assert await first == "slow"
            assert await calls.make("slow", never) == "slow"
        async with limpet.open_async(tmp_path / "db") as store:
            assert await store.in_doubt() == []
            async with recorded(store) as calls:
                assert await calls.make("c7", never) == "said 7"

    asyncio.run(main())


def test_a_running_call_is_not_in_doubt_and_cannot_be_resolved(tmp_path: Path) -> None:
    """Somebody is just making it; nor can anybody else begin one."""

    async def main() -> None:
        with limpet.open(tmp_path / "db") as other:

            async def look() -> list[str]:
                with pytest.raises(LeaseHeld, match="'c1' of toybot 'alice' is running"):
                    other.resolve(ID, "c1", "done", kind=KIND)
                with pytest.raises(LeaseHeld):
                    await recorded(as_async(other)).__aenter__()
                with pytest.raises(Conflict, match="Each call needs its own id"):
                    await calls.make("c1", never)
                return names(other)

            async with limpet.open_async(tmp_path / "db") as store, recorded(store) as calls:
                assert await calls.make("c1", look) == []

    asyncio.run(main())


PROGRAM = """
import asyncio, os, signal, sys
import limpet
from limpet.core.recorded_calls import RecordedCalls

async def quick():
    return "quick"

async def die():
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        while b'"c2"' not in (await journal.head()).meta:  # until both have begun
            await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

async def wait():
    await asyncio.sleep(60)

async def main():
    global journal
    async with limpet.open_async(sys.argv[1]) as store:
        journal = store.journal("toybot", "alice")
        async with RecordedCalls(store.scope, "toybot", "alice") as calls:
            await calls.make("c0", quick)
            await asyncio.gather(calls.make("c1", die), calls.make("c2", wait))

asyncio.run(main())
"""


def test_what_was_running_when_the_process_was_killed_is_in_doubt_until_it_is_resolved(
    tmp_path: Path,
) -> None:
    """Exactly that; and the next run honours what was said of it."""
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "db")]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with limpet.open(tmp_path / "db") as store:
        assert names(store) == ["c1", "c2"]

        async def main() -> list[Any]:
            async with recorded(as_async(store)) as calls:
                assert await calls.make("c0", never) == "quick"
                with pytest.raises(CallsInDoubt, match="`limpet resolve toybot/alice c1 done"):
                    await calls.make("c1", never)
                # While it is open: nobody is making these.
                store.resolve(ID, "c1", "done", result="sent", by="Ann", kind=KIND)
                store.resolve(ID, "c2", "retry", kind=KIND)
                assert await calls.make("c3", say, "hello") == "said hello"
                assert names(store) == []
                return [await calls.make("c1", never), await calls.make("c2", say, "again")]

        assert asyncio.run(main()) == ["sent", "said again"]
        entries = [entry.body for entry in store.journal(KIND, ID).read()]
        assert entries[-2].get("attempt") == 2
        assert names(store) == []


def test_a_call_that_raised_is_in_doubt_at_once() -> None:
    """A connection that broke says nothing of what was done at its other end."""

    def fail() -> None:
        raise ConnectionError("no answer")

    with limpet.open("memory:") as store:
        calls = recorded(store)
        run_to_end(calls.__aenter__())
        with pytest.raises(ConnectionError):
            run_to_end(calls.make("c1", fail))
        assert [doubt.call.error for doubt in store.in_doubt()] == ["ConnectionError: no answer"]
        with pytest.raises(NotStorable):
            run_to_end(calls.make("c2", object))
        with pytest.raises(
            CallsInDoubt, match=r"fail \(c1\) .* may have happened .*: Conn.* no an"
        ):
            run_to_end(calls.make("c1", fail))
        store.resolve(ID, "c1", "skip", kind=KIND)
        assert run_to_end(calls.make("c1", fail)) == SKIPPED
        run_to_end(calls.__aexit__(None, None, None))
        assert names(store) == ["c2"]


def test_a_call_that_was_cancelled_is_in_doubt_when_the_block_is_left() -> None:
    """Nobody knows how far it had come."""

    async def main() -> None:
        async with limpet.open_async("memory:") as store:
            async with recorded(store) as calls:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(calls.make("c1", asyncio.sleep, 60), 0.05)
                with pytest.raises(CallsInDoubt, match="its process ended before it did"):
                    await calls.make("c1", never)
            assert [doubt.call.id for doubt in await store.in_doubt()] == ["c1"]

    asyncio.run(main())


def test_the_end_of_the_block_waits_for_calls_that_are_running() -> None:
    """What one that raised leaves behind can still record its end."""

    async def fail() -> None:
        raise ConnectionError("no answer")

    async def together(store: limpet.AsyncStore) -> None:
        async with recorded(store) as calls:
            slow = calls.make("c1", asyncio.sleep, 0.2, "slow")
            await asyncio.gather(slow, calls.make("c2", fail))

    async def main() -> None:
        async with limpet.open_async("memory:") as store:
            with pytest.raises(ConnectionError):
                await together(store)
            assert [doubt.call.id for doubt in await store.in_doubt()] == ["c2"]
            async with recorded(store) as calls:
                assert await calls.make("c1", never) == "slow"

    asyncio.run(main())


def test_threads_make_calls_side_by_side(tmp_path: Path) -> None:
    """A sync store does the same without an event loop."""
    together = threading.Barrier(4)

    def meet(at: int) -> int:
        together.wait(60)
        return at

    def make(at: int) -> Any:
        return run_to_end(calls.make(str(at), meet, at))

    with limpet.open(tmp_path / "db") as store, ThreadPoolExecutor(4) as pool:
        calls = recorded(store)
        run_to_end(calls.__aenter__())
        work = [pool.submit(make, at) for at in range(4)]
        assert [one.result(60) for one in work] == [0, 1, 2, 3]
        run_to_end(calls.__aexit__(None, None, None))
        assert names(store) == []


def test_whoever_lost_the_lease_makes_no_call() -> None:
    """Another process may be making it."""

    async def main() -> None:
        async with limpet.open_async("memory:") as store:
            calls = recorded(store)
            with pytest.raises(LeaseLost, match="The lease on toybot 'alice' is not ours"):
                await calls.make("c1", never)
            async with calls:
                await calls.make("c1", say, "hello")
                await store.journal(KIND, ID).delete()
                with pytest.raises(LeaseLost):
                    await calls.make("c2", never)
            async with calls:  # what was deleted is not known any more
                assert await calls.make("c1", say, "again") == "said again"

    asyncio.run(main())


def test_what_no_recorded_call_has_written_is_refused() -> None:
    """And the lease is not left behind."""

    async def main() -> None:
        async with limpet.open_async("memory:") as store:
            await store.journal(KIND, ID).append(("note", 1), ("ended", "c1"))
            for _ in range(2):
                with pytest.raises(Unreadable, match="Entry 2 of toybot 'alice' is not what was"):
                    await recorded(store).__aenter__()

    asyncio.run(main())


@pytest.mark.parametrize("times", [1, 2])
def test_what_is_forgotten_is_gone_and_what_is_known_otherwise_stays(
    times: int, tmp_path: Path
) -> None:
    """By those who have made it, and by who reads the journal later."""
    with limpet.open(tmp_path / "db") as store:
        made = RecordedCalls(store.scope, KIND, ID)

        async def begin(id: str, of: str) -> None:
            assert await made.begin(Call(id, of=of))
            made.leave(id)

        async def make() -> None:
            async with made:
                for id in ("old", "new", "skipped", "open", "failed", "undone"):
                    await begin(id, "one" if id == "old" else "two")
                await made.end("old", "secret")
                await made.end("new", "result")
                await made.fail("failed", OSError("lost"))
                await made.undo("undone", "nobody")

        async def forget() -> None:
            async with made:
                await made.forget("one".__eq__)

        async def look(calls: RecordedCalls) -> None:
            async with calls:
                assert "old" not in calls
                assert "undone" not in calls
                assert calls.result("new") == "result"
                assert calls.result("skipped") is SKIPPED
                doubtful = await calls.doubtful("failed")
                assert doubtful is not None
                assert doubtful.error == "OSError: lost"
                assert await calls.doubtful("open") is not None
                assert await calls.doubtful("undone") is None
                assert await calls.begin(Call("undone", of="two"))
                calls.leave("undone")
                await calls.undo("undone", "nobody")

        run_to_end(make())
        store.resolve(ID, "skipped", "skip", kind=KIND)
        for _ in range(times):
            run_to_end(forget())
        run_to_end(look(made))
        run_to_end(look(RecordedCalls(store.scope, KIND, ID)))
        assert sorted(names(store)) == ["failed", "open"]
        assert "secret" not in str(store.journal(KIND, ID).read())


def test_a_journal_of_which_all_is_forgotten_begins_anew(tmp_path: Path) -> None:
    """Under the same lease."""

    async def main() -> None:
        async with limpet.open_async(tmp_path / "db") as store, recorded(store) as calls:
            await calls.make("a", say, "a")
            await calls.forget(lambda _: True)
            assert [entry.type for entry in await store.journal(KIND, ID).read()] == ["forgotten"]
            assert await calls.make("a", say, "b") == "said b"

    asyncio.run(main())
