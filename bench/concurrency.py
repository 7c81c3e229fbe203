"""64 appenders at once, asyncio tasks and threads, each with its own conversation; and one await.

Beside them a bare loop that writes the same batches to the same tables, with nobody to wait for it:
the best that can be.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from contextlib import closing
from functools import partial
from itertools import count, cycle
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import apsw

import limpet
from bench._measure import (
    FILLER,
    Bench,
    Contest,
    Raw,
    Row,
    Stopwatch,
    Took,
    make_bodies,
    make_turns,
    milliseconds,
    settle,
    slice_of_threads,
    timed,
)
from limpet.backends.sqlite.appender import QUERIES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

APPENDERS = 64
TURNS = make_turns(APPENDERS)


def measure(bench: Bench) -> list[Row]:
    """Give each way a slice of time in turn; a rate is what was durable by the end of its slice."""
    seconds = 0.3 if bench.quick else 0.7
    syncs: list[tuple[float, float]] = []
    counts: dict[str, list[list[int]]] = {"raw": [], "bare": [], "asyncio": [], "threads": []}
    cpu: dict[str, list[float]] = {way: [] for way in counts}
    with (
        closing(Raw(bench.path("raw"))) as raw,
        closing(_Bare(bench.path("bare"))) as bare,
        limpet.open(bench.path("threads")) as store,
        closing(Loop(bench.path("asyncio"))) as loop,
    ):
        ways: list[tuple[str, Callable[[float], list[int]]]] = [
            ("raw", partial(_raw_slice, raw)),
            ("bare", bare.slice),
            ("asyncio", loop.slice),
            ("threads", partial(thread_slice, store)),
        ]
        raw.settle()  # the other two do that while they warm up
        for _, way in ways:
            way(0.5)
        for _ in bench.rounds(10, quick=2):
            syncs.append(_sync_times(bench.path("sync")))
            for name, way in ways:
                began = process_time()
                counts[name].append(way(seconds))
                cpu[name].append((process_time() - began) / max(1, sum(counts[name][-1])))
            ways.append(ways.pop(0))
    raw_rates, bare_rates = (
        [sum(done) / seconds for done in counts[way]] for way in ("raw", "bare")
    )
    takes = {
        way: f"CPU {statistics.median(times) * 1e6:.1f} µs an append" for way, times in cpu.items()
    }
    return [
        Row(
            name="fdatasync of 4 KiB appended to a file",
            value=statistics.median(appended for appended, _ in syncs) * 1e3,
            unit="ms",
            note=f"overwritten {milliseconds(statistics.median(over for _, over in syncs))};"
            " the next targets are for about 0.16 ms",
        ),
        Row(
            name=f"a bare loop with batches of {APPENDERS}, appends a second",
            value=_share(bare_rates, raw_rates),
            note=f"{statistics.median(bare_rates):,.0f}; {takes['bare']}, raw {takes['raw']}",
        ),
        *_rows("asyncio tasks", counts["asyncio"], raw_rates, seconds, at_least=5),
        _row_of_share("asyncio tasks", counts["asyncio"], bare_rates, seconds, takes["asyncio"]),
        *_rows("threads", counts["threads"], raw_rates, seconds, at_least=3),
        _row_of_share("threads", counts["threads"], bare_rates, seconds, takes["threads"]),
        _awaited(bench),
    ]


def _share(rates: list[float], of: list[float]) -> float:
    return statistics.median(rate / other for rate, other in zip(rates, of, strict=True))


def _row_of_share(
    what: str, counts: list[list[int]], bare: list[float], seconds: float, takes: str
) -> Row:
    rates = [sum(done) / seconds for done in counts]
    return Row(name=f"{APPENDERS} {what}, to the bare loop", value=_share(rates, bare), note=takes)


def _awaited(bench: Bench) -> Row:
    """One append awaited on a loop that has nothing else to do, against one that is called."""
    contest = Contest()

    async def measure() -> None:
        async with limpet.open_async(bench.path("awaited")) as other:
            with limpet.open(bench.path("called")) as store:
                settle(store)
                await other.conversation("filler").append({"role": "user", "content": FILLER})
                chats, turns = (
                    (store.conversation("chat"), other.conversation("chat")),
                    cycle(TURNS),
                )

                async def called() -> float:
                    return timed(partial(chats[0].append, *next(turns)))()

                async def awaited() -> Took:
                    began = Stopwatch()
                    await chats[1].append(*next(turns))
                    return began.took()

                for _ in range(2 if bench.quick else 12):
                    await contest.round_async({"called": called, "awaited": awaited}, calls=100)

    asyncio.run(measure())
    return Row(
        name="append a turn, awaited on an idle loop, to a call",
        value=contest.ratio("awaited", to="called"),
        note=f"{milliseconds(contest.typical('awaited'))},"
        f" called {milliseconds(contest.typical('called'))};"
        f" {contest.cpu('awaited', to='called')}",
    )


def _rows(
    what: str,
    counts: list[list[int]],
    raw_rates: list[float],
    seconds: float,
    *,
    at_least: float,
) -> list[Row]:
    rates = [sum(done) / seconds for done in counts]
    rate, raw_rate = statistics.median(rates), statistics.median(raw_rates)
    return [
        Row(
            name=f"{APPENDERS} {what}, appends a second",
            value=statistics.median(rate / raw for rate, raw in zip(rates, raw_rates, strict=True)),
            at_least=at_least,
            note=f"{rate:,.0f}, one raw writer {raw_rate:,.0f}",
            figures={"appends_a_second": rate, "raw_a_second": raw_rate},
        ),
        Row(
            name=f"{APPENDERS} {what}, the least served to a fair share",
            value=min(min(done) / statistics.fmean(done) for done in counts),
            at_least=1 / 3,
            note="in the worst slice",
        ),
    ]


def _sync_times(path: Path, times: int = 100) -> tuple[float, float]:
    """How long this disk takes for 4 KiB more of a file, and for as much overwritten.

    The latter is what a commit pays whose log has its full size.
    """
    handle = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        appended = [_sync_time(handle) for _ in range(times)]
        os.lseek(handle, 0, os.SEEK_SET)
        return statistics.median(appended), statistics.median(
            _sync_time(handle) for _ in range(times)
        )
    finally:
        os.close(handle)


def _sync_time(handle: int) -> float:
    os.write(handle, bytes(4096))
    return timed(partial(os.fdatasync, handle))()


def _raw_slice(raw: Raw, seconds: float) -> list[int]:
    bodies = cycle(make_bodies(TURNS))
    deadline = perf_counter() + seconds
    for done in count():
        raw.insert("chat", next(bodies))
        if perf_counter() > deadline:
            return [done]
    raise AssertionError


class _Bare:
    """A store's tables, and a loop that writes batches to them."""

    def __init__(self, path: Path) -> None:
        limpet.open(path).close()
        self._connection = apsw.Connection(str(path))
        self._connection.execute("PRAGMA synchronous = FULL")
        row = "(?, ?, 2, ?, ?, NULL, ?)"
        self._insert = QUERIES["insert_records"] + ", ".join([row] * APPENDERS)
        self._bodies = make_bodies(TURNS)
        self._batch = 0

    def slice(self, seconds: float) -> list[int]:
        """How many records were durable in so many *seconds*."""
        execute, deadline, done = self._connection.execute, perf_counter() + seconds, 0
        while True:
            self._batch += 1
            values = [
                value
                for journal, body in enumerate(self._bodies)
                for value in (journal, 2 * self._batch, self._batch, 600 * self._batch, body)
            ]
            execute("BEGIN IMMEDIATE")
            execute(self._insert, values)
            execute("COMMIT")
            if perf_counter() > deadline:
                return [done]
            done += APPENDERS

    def close(self) -> None:
        self._connection.close()


class Loop:
    """An event loop with an async store, kept from slice to slice."""

    def __init__(self, path: Path, keys: limpet.Keys | None = None) -> None:
        self._runner = asyncio.Runner()
        self._store = limpet.open_async(path, keys=keys)
        self._chats = [self._store.conversation(f"chat-{n}") for n in range(APPENDERS)]

    def slice(self, seconds: float) -> list[int]:
        """How often each was done in so many *seconds*."""
        return self._runner.run(self._slice(seconds))

    async def _slice(self, seconds: float) -> list[int]:
        deadline = perf_counter() + seconds
        return await asyncio.gather(
            *(self._append(number, deadline) for number in range(APPENDERS))
        )

    async def _append(self, number: int, deadline: float) -> int:
        chat, turn = self._chats[number], TURNS[number]
        done = 0
        while True:
            await chat.append(*turn)
            if perf_counter() > deadline:
                return done
            done += 1

    def close(self) -> None:
        """Close the store, and then the loop."""
        self._runner.run(self._store.close())
        self._runner.close()


def thread_slice(store: limpet.Store, seconds: float) -> list[int]:
    """The same by threads."""
    chats = [store.conversation(f"chat-{number}") for number in range(APPENDERS)]
    return slice_of_threads(
        [partial(chat.append, *turn) for chat, turn in zip(chats, TURNS, strict=True)], seconds
    )
