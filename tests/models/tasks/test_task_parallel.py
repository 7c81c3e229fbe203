"""Steps side by side, and within each other: each is recorded by itself."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Retry, Store
from tests.support import stores
from tests.support.dying import Calls

place, store = stores.place, stores.store

GOAL = "Tell everybody"


class Boom(Exception):
    """What goes wrong in these tests."""


def test_steps_may_run_side_by_side_in_threads(tmp_path: Path) -> None:
    """Each is recorded once, and found by its name."""
    with limpet.open(tmp_path / "db") as store:
        with store.task("t", GOAL) as task, ThreadPoolExecutor(8) as pool:
            done = pool.map(lambda n: task.step(f"n{n}", lambda: n * n), range(64))
            assert list(done) == [n * n for n in range(64)]
        again = Calls()
        with store.task("t") as task, ThreadPoolExecutor(8) as pool:
            done = pool.map(lambda n: task.step(f"n{n}", again), range(64))
            assert list(done) == [n * n for n in range(64)]
    assert again.calls == []


def test_steps_may_run_side_by_side_in_an_event_loop(tmp_path: Path) -> None:
    """And what failed among them is all that is run again."""

    async def main() -> None:
        async with limpet.open_async(tmp_path / "db") as store:

            async def square(n: int) -> int:
                await asyncio.sleep(0)
                if n == 7 and not mended:
                    raise Boom
                ran.append(n)
                return n * n

            async def all_of_them() -> list[int]:
                async with store.task("t", GOAL) as task:
                    steps = [task.step(f"n{n}", square, n) for n in range(64)]
                    found: list[Any] = await asyncio.gather(*steps, return_exceptions=True)
                    for one in found:
                        if isinstance(one, BaseException):
                            raise one
                    return found

            ran: list[int] = []
            mended = False
            with pytest.raises(Boom):
                await all_of_them()
            mended = True
            assert await all_of_them() == [n * n for n in range(64)]
            assert sorted(ran) == list(range(64))

    asyncio.run(main())


def test_steps_within_a_step_are_found_again_by_its_next_attempt(store: Store) -> None:
    """Their names are those of the step they are part of, and are counted anew each time."""
    page = Calls("a", "b", "c")
    crash = Calls(Boom(), "ok")
    with store.task("t", GOAL) as task:

        def pages() -> list[Any]:
            found = [task.step("page", page), task.step("page", page)]
            crash()
            return found

        if isinstance(task, stores.Driven):
            return  # a driven loop cannot be entered twice
        assert task.step("pages", pages, retry=Retry(attempts=3, wait=0)) == ["a", "b"]
        assert list(task.results) == ["pages/page", "pages/page#2", "pages"]
