"""One recorded step, over a task of 1,000, and what the ten thousandth costs."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import msgspec

import limpet
from bench._measure import Bench, Contest, Raw, Row, milliseconds, settle, timed

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

STEPS = 1_000
MANY, PART = 10_000, 1_000


def measure(bench: Bench) -> list[Row]:
    """Run new tasks of 1,000 steps; the floor stores each step's name and result."""
    contest, long = Contest(), Contest()
    many, part = (2_000, 200) if bench.quick else (MANY, PART)
    with closing(Raw(bench.path("raw"))) as raw, limpet.open(bench.path("limpet")) as store:
        raw.settle()
        settle(store)
        _round(Contest(), raw, store, "to warm up")
        for number in bench.rounds(8, quick=2):
            _round(contest, raw, store, f"task-{number}")
            if number % 4 == 0:
                _round(long, raw, store, f"long-{number}", many)
    first = contest.within("limpet", slice(100))
    last = contest.within("limpet", slice(STEPS - 100, None))
    return [
        Row(
            name=f"record a step, over {STEPS:,}",
            value=contest.ratio("limpet", to="raw"),
            at_most=1.3,
            note=f"{milliseconds(contest.typical('limpet'))},"
            f" raw {milliseconds(contest.typical('raw'))};"
            f" {contest.cpu('limpet', to='raw')};"
            f" means {contest.mean_ratio('limpet', to='raw'):.2f};"
            f" the last 100 steps to the first 100 {last / first:.2f}",
        ),
        _growth(long, many, part),
    ]


def _growth(contest: Contest, many: int, part: int) -> Row:
    """What a step costs at the end of a long task; the floor says what the disk did meanwhile."""

    def grown(way: str) -> float:
        return contest.within(way, slice(many - part, None)) / contest.within(way, slice(part))

    return Row(
        name=f"record a step, the last {part:,} of {many:,} against the first {part:,}",
        value=grown("limpet") / grown("raw"),
        at_most=1.1,
        note=f"{milliseconds(contest.within('limpet', slice(many - part, None)))} against"
        f" {milliseconds(contest.within('limpet', slice(part)))};"
        f" raw meanwhile {grown('raw'):.2f}",
    )


def _round(contest: Contest, raw: Raw, store: limpet.Store, task: str, count: int = STEPS) -> None:
    with closing(_steps(store, task, count)) as steps:
        next(steps)  # opens the task
        contest.round(
            {
                "raw": timed(partial(next, _inserts(raw, task, count))),
                "limpet": timed(partial(next, steps)),
            },
            calls=count,
        )


def _steps(store: limpet.Store, id_: str, count: int) -> Generator[None]:
    with store.task(id_, goal="Take many steps") as task:
        yield
        for number in range(count):
            task.step(f"step-{number}", _work, number)
            yield
        task.finish()


def _inserts(raw: Raw, id_: str, count: int) -> Iterator[None]:
    for number in range(count):
        raw.insert(id_, msgspec.json.encode({"name": f"step-{number}", "result": _work(number)}))
        yield


def _work(number: int) -> dict[str, object]:
    return {"number": number, "status": "ok"}
