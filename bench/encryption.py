"""What encryption costs: an append, a step and a window, with it and without, in the same run."""

from __future__ import annotations

import statistics
from contextlib import ExitStack, closing
from functools import partial
from operator import truediv
from time import process_time
from typing import TYPE_CHECKING, Any

import limpet
from bench._measure import Bench, Contest, Row, make_turns, milliseconds, settle, timed
from bench.concurrency import APPENDERS, Loop, thread_slice

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

LENGTH = 1_000
KEYS = limpet.Keys({1: b"1" * 32})


def measure(bench: Bench) -> list[Row]:
    """Interleaved, call by call."""
    appends, steps, reads = Contest(), Contest(), Contest()
    calls = 200 if bench.quick else 500
    turns = make_turns(LENGTH)
    with ExitStack() as stack:
        plain = stack.enter_context(limpet.open(bench.path("plain")))
        sealed = stack.enter_context(limpet.open(bench.path("encrypted"), keys=KEYS))
        stores = {"plain": plain, "encrypted": sealed}
        for store in stores.values():
            settle(store)
            store.conversation("long").append(*[one for turn in turns for one in turn])
        for number in bench.rounds(8, quick=2):
            chats = {name: store.conversation("alice") for name, store in stores.items()}
            following = {name: iter(turns * calls) for name in stores}

            def append(chats: dict[str, Any], following: dict[str, Any], name: str) -> None:
                chats[name].append(*next(following[name]))

            appends.round(_timed(partial(append, chats, following), stores), calls)
            running = {name: _steps(one, f"t{number}", calls) for name, one in stores.items()}
            for one in running.values():
                next(one)  # opens the task

            def step(running: dict[str, Generator[None]], name: str) -> None:
                next(running[name])

            steps.round(_timed(partial(step, running), stores), calls)
            for one in running.values():
                one.close()
            reads.round(
                _timed(lambda name: stores[name].conversation("long").messages(), stores), 20
            )
    return [
        _row("append a turn, encrypted", appends, at_most=1.1),
        _row("record a step, encrypted", steps, at_most=1.1),
        _row(f"load {2 * LENGTH:,} messages, encrypted", reads, at_most=None),
        *_many_at_once(bench),
    ]


def _many_at_once(bench: Bench) -> list[Row]:
    """How many records 64 appenders write, in alternating slices of time."""
    seconds = 0.3 if bench.quick else 0.7
    rates: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    with ExitStack() as stack:
        ways = []
        for name, keys in (("plain", None), ("encrypted", KEYS)):
            loop = stack.enter_context(closing(Loop(bench.path(f"{name}-tasks"), keys)))
            store = stack.enter_context(limpet.open(bench.path(f"{name}-threads"), keys=keys))
            ways += [(f"{name} tasks", loop.slice)]
            ways += [(f"{name} threads", partial(thread_slice, store))]
        for _, way in ways:
            way(0.5)
        for _ in range(2 if bench.quick else 6):
            for name, way in ways:
                began = process_time()
                done = sum(way(seconds))
                rates.setdefault(name, []).append(done / seconds)
                cpu.setdefault(name, []).append((process_time() - began) / max(1, done))
            ways.append(ways.pop(0))

    def row(what: str) -> Row:
        ours, theirs = f"encrypted {what}", f"plain {what}"
        one, other = statistics.median(rates[ours]), statistics.median(rates[theirs])
        takes, took = (statistics.median(cpu[name]) * 1e6 for name in (ours, theirs))
        return Row(
            name=f"{APPENDERS} {what}, encrypted, appends a second",
            value=statistics.median(map(truediv, rates[ours], rates[theirs])),
            note=f"{one:,.0f}, plain {other:,.0f}; CPU {takes:.1f} µs an append to {took:.1f}",
        )

    return [row("tasks"), row("threads")]


def _timed(call: Callable[[str], object], names: dict[str, Any]) -> dict[str, Any]:
    return {name: timed(partial(call, name)) for name in names}


def _row(name: str, contest: Contest, *, at_most: float | None) -> Row:
    return Row(
        name=name,
        value=contest.ratio("encrypted", to="plain"),
        at_most=at_most,
        note=f"{milliseconds(contest.typical('encrypted'))},"
        f" plain {milliseconds(contest.typical('plain'))};"
        f" {contest.cpu('encrypted', to='plain')}",
    )


def _steps(store: limpet.Store, id_: str, count: int) -> Generator[None]:
    with store.task(id_, goal="Take many steps") as task:
        yield
        for number in range(count):
            task.step(f"step-{number}", lambda: {"status": "ok"})
            yield
        task.finish()
