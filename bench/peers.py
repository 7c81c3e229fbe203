"""The same steps by DBOS, on SQLite and on PostgreSQL, in turn with ours and with a raw insert."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from bench._measure import Bench, Contest, Row, milliseconds
from bench.resume import KILLED_AT, STEPS, WORKER, expect, start
from tests.support.servers import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

WAYS = ("raw", "limpet", "limpet-async", "dbos", "dbos-async")
TARGET = 5  # times as fast, and as soon
BLOCK = 20  # steps at a turn: as a task takes them, one after the other


def measure(bench: Bench) -> list[Row]:
    """Every way in a process of its own, some steps each by turns; then workers are killed."""
    turns = 3 if bench.quick else 10
    with PostgresServer() as server:
        places = [_Files(bench), _Databases(server)]
        with ExitStack() as stack:
            races = {place: _Race(place, stack) for place in places}
            for number in bench.rounds(6, quick=1):
                for place, race in races.items():
                    race.round(turns)
                    if number % 2 == 0:
                        place.kill_and_resume()
    return [row for place in places for row in (*races[place].rows(), place.resumed())]


class _Race:
    """The five ways to record a step in one place."""

    def __init__(self, place: _Place, stack: ExitStack) -> None:
        self._name = place.name
        self._contest = Contest()
        self._walkers = {
            way: stack.enter_context(_Walker(way, place.new(way.partition("-")[0]))) for way in WAYS
        }
        self._play(Contest(), 1)  # to warm up

    def round(self, turns: int) -> None:
        self._play(self._contest, turns)

    def _play(self, contest: Contest, turns: int) -> None:
        contest.round({way: walker.steps for way, walker in self._walkers.items()}, turns)

    def rows(self) -> Iterator[Row]:
        """What it came to, sync and async."""
        for word, suffix in (("", ""), (", async", "-async")):
            ours, theirs = f"limpet{suffix}", f"dbos{suffix}"
            yield Row(
                name=f"{self._name}, record a step{word}, against raw",
                value=self._contest.ratio(ours, to="raw"),
                at_most=1.5 if self._name == "SQLite" and not suffix else None,
                note=f"{self._shown(ours)}, raw {self._shown('raw')}",
            )
            yield Row(
                name=f"{self._name}, record a step{word}, DBOS against ours",
                value=self._contest.ratio(theirs, to=ours),
                at_least=TARGET,
                note=f"DBOS {self._shown(theirs)}, ours {self._shown(ours)};"
                f" DBOS against raw {self._contest.ratio(theirs, to='raw'):.1f}",
            )

    def _shown(self, way: str) -> str:
        return milliseconds(self._contest.typical(way))


class _Walker:
    """A process that takes steps when it is told, and says how long each took."""

    def __init__(self, way: str, url: str) -> None:
        self._way = way
        self._process = start("-m", "bench._walker", way, url)

    def __enter__(self) -> Self:
        self._heard()  # it is ready
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    def steps(self) -> float:
        """Take some, and say what one of them takes."""
        if self._process.stdin is not None:
            self._process.stdin.write("\n" * BLOCK)
            self._process.stdin.flush()
        return median(self._heard() for _ in range(BLOCK))

    def _heard(self) -> float:
        said = self._process.stdout.readline() if self._process.stdout else ""
        if not said:
            raise RuntimeError(f"{self._way} has ended before its time")
        return float(said)


# -- killed ----------------------------------------------------------------------------------------


class _Place:
    """Where stores and databases come from, and what came of workers that were killed there."""

    name: str

    def __init__(self) -> None:
        self._contest = Contest()
        self._imports: list[float] = []  # what DBOS took before it did anything

    def new(self, whose: str) -> str:
        """A place that nobody has used."""
        raise NotImplementedError

    def kill_and_resume(self) -> None:
        """Kill a worker of each at step 501, and see when the next process has done step 502."""
        ours, theirs = self.new("limpet"), self.new("dbos")
        self._ours(ours, KILLED_AT, KILLED_AT)
        self._dbos(theirs, KILLED_AT, KILLED_AT, "begin")
        self._contest.round(
            {
                "limpet": partial(self._ours, ours, KILLED_AT + 1, 1),
                "dbos": partial(self._dbos, theirs, KILLED_AT + 1, 1, "resume"),
            }
        )

    def _ours(self, url: str, last: int, new: int) -> float:
        began = perf_counter()
        with start(str(WORKER), url, str(last)) as worker:
            expect(worker, f"step {last}, {new} new")
            took = perf_counter() - began
            worker.kill()
        return took

    def _dbos(self, url: str, last: int, new: int, how: str) -> float:
        began = perf_counter()
        with start("-m", "bench._dbos", url, str(last), how) as worker:
            expect(worker, "imported")
            self._imports.append(perf_counter() - began)
            expect(worker, f"step {last}, {new} new")
            took = perf_counter() - began
            worker.kill()
        return took

    def resumed(self) -> Row:
        """How much sooner ours does something new."""
        ours, theirs = self._contest.typical("limpet"), self._contest.typical("dbos")
        return Row(
            name=f"{self.name}, killed at step {KILLED_AT} of {STEPS:,}, to the first new step,"
            " DBOS against ours",
            value=self._contest.ratio("dbos", to="limpet"),
            at_least=TARGET,
            note=f"DBOS {milliseconds(theirs)}, of which {milliseconds(median(self._imports))} to"
            f" import; ours {milliseconds(ours)}; from the start of the process",
        )


class _Files(_Place):
    name = "SQLite"

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self._bench = bench

    def new(self, whose: str) -> str:
        return str(self._bench.path(whose).resolve())


class _Databases(_Place):
    name = "PostgreSQL"

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._server = server
        self._count = 0

    def new(self, whose: str) -> str:
        if whose != "dbos":
            return self._server.place()
        self._count += 1  # DBOS creates a database by itself
        return f"{self._server.url().rpartition('/')[0]}/dbos_{self._count}"
