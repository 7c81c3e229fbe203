"""What encryption costs: an append, a step and a window, with it and without, in the same run."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import limpet
from bench._measure import Bench, Contest, Row, make_turns, milliseconds, settle, timed

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
    ]


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
