"""64 appenders at once, asyncio tasks and threads, each with its own conversation."""

from __future__ import annotations

import asyncio
import os
import statistics
from contextlib import closing
from functools import partial
from itertools import count, cycle
from time import perf_counter
from typing import TYPE_CHECKING

import limpet
from bench._measure import (
    Bench,
    Raw,
    Row,
    make_bodies,
    make_turns,
    milliseconds,
    slice_of_threads,
    timed,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

APPENDERS = 64
TURNS = make_turns(APPENDERS)


def measure(bench: Bench) -> list[Row]:
    """Give each way a slice of time in turn; a rate is what was durable by the end of its slice."""
    seconds = 0.3 if bench.quick else 0.7
    syncs: list[tuple[float, float]] = []
    counts: dict[str, list[list[int]]] = {"raw": [], "asyncio": [], "threads": []}
    with (
        closing(Raw(bench.path("raw"))) as raw,
        limpet.open(bench.path("threads")) as store,
        closing(_Loop(bench.path("asyncio"))) as loop,
    ):
        ways: list[tuple[str, Callable[[float], list[int]]]] = [
            ("raw", partial(_raw_slice, raw)),
            ("asyncio", loop.slice),
            ("threads", partial(_thread_slice, store)),
        ]
        raw.settle()  # the other two do that while they warm up
        for _, way in ways:
            way(0.5)
        for _ in bench.rounds(10, quick=2):
            syncs.append(_sync_times(bench.path("sync")))
            for name, way in ways:
                counts[name].append(way(seconds))
            ways.append(ways.pop(0))
    raw_rates = [sum(done) / seconds for done in counts["raw"]]
    return [
        Row(
            name="fdatasync of 4 KiB appended to a file",
            value=statistics.median(appended for appended, _ in syncs) * 1e3,
            unit="ms",
            note=f"overwritten {milliseconds(statistics.median(over for _, over in syncs))};"
            " the next targets are for about 0.3 ms",
        ),
        *_rows("asyncio tasks", counts["asyncio"], raw_rates, seconds, at_least=6),
        *_rows("threads", counts["threads"], raw_rates, seconds, at_least=4),
    ]


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


class _Loop:
    """An event loop with an async store, kept from slice to slice."""

    def __init__(self, path: Path) -> None:
        self._runner = asyncio.Runner()
        self._store = limpet.open_async(path)
        self._chats = [self._store.conversation(f"chat-{n}") for n in range(APPENDERS)]

    def slice(self, seconds: float) -> list[int]:
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
        self._runner.run(self._store.close())
        self._runner.close()


def _thread_slice(store: limpet.Store, seconds: float) -> list[int]:
    chats = [store.conversation(f"chat-{number}") for number in range(APPENDERS)]
    return slice_of_threads(
        [partial(chat.append, *turn) for chat, turn in zip(chats, TURNS, strict=True)], seconds
    )
