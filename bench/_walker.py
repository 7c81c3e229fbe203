"""A contestant of `bench.peers`: for each line that it reads, one step, and how long that took.

``python -m bench._walker WAY URL``, where WAY is raw, limpet, limpet-async, dbos or dbos-async.
Each is a process of its own, so that nobody's threads are in another's way.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

import limpet
from bench._measure import Raw, settle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

TASK, GOAL = "walk", "Take many steps"


def work(number: int) -> dict[str, object]:
    """What a step does."""
    return {"number": number, "status": "ok"}


def walk(step: Callable[[int], object]) -> None:
    """Take a step for each line."""
    for number in _turns():
        began = perf_counter()
        step(number)
        _tell(perf_counter() - began)


async def walk_async(step: Callable[[int], Awaitable[object]]) -> None:
    """The same, awaited; the event loop goes on while nobody asks for a step."""
    turns = _turns()
    while (number := await asyncio.to_thread(next, turns, None)) is not None:
        began = perf_counter()
        await step(number)
        _tell(perf_counter() - began)


def _turns() -> Iterator[int]:
    _tell(0)  # ready
    for number in count():
        if not sys.stdin.readline():
            return
        yield number


def _tell(seconds: float) -> None:
    print(seconds, flush=True)


def _is_sqlite(url: str) -> bool:
    return "://" not in url


# -- the ways --------------------------------------------------------------------------------------


def raw(url: str) -> None:
    """Only an INSERT of what somebody else has encoded."""
    insert = _raw_sqlite(url) if _is_sqlite(url) else _raw_postgresql(url)
    bodies = map(_body, count())
    walk(lambda _: insert(next(bodies)))


def _body(number: int) -> bytes:
    return msgspec.json.encode({"name": f"step-{number}", "result": work(number)})


def _raw_sqlite(path: str) -> Callable[[bytes], object]:
    floor = Raw(Path(path))
    floor.settle()
    return partial(floor.insert, TASK)


def _raw_postgresql(url: str) -> Callable[[bytes], object]:
    from bench.backends import PostgresFloor  # noqa: PLC0415 - brings much else

    return PostgresFloor(url).write


def ours(url: str) -> None:
    """`limpet.Task.step`."""
    with limpet.open(url) as store:
        if _is_sqlite(url):
            settle(store)
        with store.task(TASK, GOAL) as task:
            walk(lambda number: task.step(f"step-{number}", work, number))


def ours_async(url: str) -> None:
    """The same, awaited."""

    async def main() -> None:
        async with limpet.open_async(url) as store, store.task(TASK, GOAL) as task:
            await walk_async(lambda number: task.step(f"step-{number}", work, number))

    if _is_sqlite(url):
        with limpet.open(url) as store:
            settle(store)
    asyncio.run(main())


def dbos(url: str) -> None:
    """A step of a workflow of DBOS."""
    from bench import _dbos  # noqa: PLC0415 - takes long, and is not always installed

    _dbos.launch(url)
    _dbos.walking()


def dbos_async(url: str) -> None:
    """The same, awaited."""
    from bench import _dbos  # noqa: PLC0415 - as above

    _dbos.launch(url)
    asyncio.run(_dbos.walking_async())


WAYS = {
    "raw": raw,
    "limpet": ours,
    "limpet-async": ours_async,
    "dbos": dbos,
    "dbos-async": dbos_async,
}

if __name__ == "__main__":
    WAYS[sys.argv[1]](sys.argv[2])
