"""What the measurements share: rows with targets, the raw floor, turns, and interleaved timing."""

from __future__ import annotations

import gc
import random
import statistics
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
from msgspec import Struct, field

import limpet
from limpet.core.runtime import run_to_end

if TYPE_CHECKING:
    from pathlib import Path

TIMES = "\N{MULTIPLICATION SIGN}"

Message = dict[str, str]
Turn = tuple[Message, Message]


class Took(float):
    """Seconds by the clock, and of the processors' time."""

    cpu: float


Contestant = Callable[[], float]
AsyncContestant = Callable[[], Coroutine[Any, Any, float]]


class Row(Struct, frozen=True, kw_only=True):
    """One measured value, the target it is held to if it has one, and what it was made of."""

    name: str
    value: float
    unit: str = TIMES
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.at_most is not None:
            return self.value <= self.at_most
        if self.at_least is not None:
            return self.value >= self.at_least
        return None


class Bench:
    """Where to measure, how long, and whom to tell of the progress."""

    def __init__(self, directory: Path, *, quick: bool, advance: Callable[[float], object]) -> None:
        self._directory = directory
        self._advance = advance
        self._paths = 0
        self.quick = quick

    def path(self, name: str) -> Path:
        """A file that nobody has used, on the disk under test."""
        self._paths += 1
        return self._directory / f"{self._paths:02}-{name}.db"

    def rounds(self, full: int, quick: int = 2) -> Iterator[int]:
        """As many rounds as this run has time for."""
        count = quick if self.quick else full
        for number in range(count):
            yield number
            self._advance(1 / count)


# -- timing ----------------------------------------------------------------------------------------


def timed(function: Callable[[], object]) -> Contestant:
    """*function* as a contestant: a call of it returns how long it took."""

    def contestant() -> Took:
        began = Stopwatch()
        function()
        return began.took()

    return contestant


class Stopwatch:
    """Runs from when it was made."""

    def __init__(self) -> None:
        self._cpu, self._began = process_time(), perf_counter()

    def took(self) -> Took:
        """How long it has run."""
        took = Took(perf_counter() - self._began)
        took.cpu = process_time() - self._cpu
        return took


class Contest:
    """Several ways to do a thing, timed in turn, call by call: noise strikes all of them alike.

    A figure is the median of the rounds, of which each has the median of its calls. The garbage
    collector stays on, as it is for users, but does not look at what was there before a round. The
    processor's time is measured beside that of the clock: on a shared host it is the steadier one.
    """

    def __init__(self) -> None:
        self._rounds: list[dict[str, list[float]]] = []
        self._cpu: list[dict[str, list[float]]] = []

    def round(self, contestants: dict[str, Contestant], calls: int = 1) -> None:
        """Call everybody *calls* times, each time beginning with another."""

        def awaited(contestant: Contestant) -> AsyncContestant:
            async def call() -> float:
                return contestant()

            return call

        run_to_end(self.round_async({k: awaited(v) for k, v in contestants.items()}, calls))

    async def round_async(self, contestants: dict[str, AsyncContestant], calls: int = 1) -> None:
        """The same for some that are awaited."""
        times: dict[str, list[float]] = {name: [] for name in contestants}
        cpu: dict[str, list[float]] = {name: [] for name in contestants}
        order = list(contestants.items())
        gc.collect()
        gc.freeze()
        for _ in range(calls):
            for name, contestant in order:
                began = process_time()
                took = await contestant()
                times[name].append(took)
                cpu[name].append(took.cpu if isinstance(took, Took) else process_time() - began)
            order.append(order.pop(0))
        gc.unfreeze()
        self._rounds.append(times)
        self._cpu.append(cpu)

    def cpu(self, name: str, to: str) -> str:
        """How much of the processors' time *name* takes, and to that of *to*; for a note."""
        ours, theirs = self.typical_cpu(name), self.typical_cpu(to)
        return f"CPU {ours / theirs:.2f} ({ours * 1e6:,.0f} µs to {theirs * 1e6:,.0f})"

    def cpu_ratio(self, name: str, to: str) -> float:
        """How many times as much of it *name* takes as *to*."""
        return self.typical_cpu(name) / self.typical_cpu(to)

    def typical_cpu(self, name: str) -> float:
        """How many seconds of a processor *name* takes."""
        return statistics.median(statistics.median(cpu[name]) for cpu in self._cpu)

    def ratio(self, name: str, to: str) -> float:
        """How many times as long *name* takes as *to*."""
        return statistics.median(
            statistics.median(times[name]) / statistics.median(times[to]) for times in self._rounds
        )

    def mean_ratio(self, name: str, to: str) -> float:
        """The same of all calls' means: with the rare slow ones, in which SQLite checkpoints."""
        return self._mean(name) / self._mean(to)

    def _mean(self, name: str) -> float:
        return statistics.fmean(second for times in self._rounds for second in times[name])

    def typical(self, name: str) -> float:
        """How many seconds *name* takes."""
        return statistics.median(statistics.median(times[name]) for times in self._rounds)

    def within(self, name: str, part: slice) -> float:
        """The same for only a *part* of each round's calls."""
        return statistics.median(statistics.median(times[name][part]) for times in self._rounds)


def slice_of_threads(calls: Sequence[Callable[[], object]], seconds: float) -> list[int]:
    """Make each of *calls* over and over, on a thread of its own; how often each was done in time.

    What a thread has under way at the end does not count.
    """
    counts = [0] * len(calls)
    deadline = 0.0

    def start() -> None:
        nonlocal deadline
        deadline = perf_counter() + seconds

    barrier = threading.Barrier(len(calls), action=start)

    def repeat(number: int) -> None:
        barrier.wait()
        while True:
            calls[number]()
            if perf_counter() > deadline:
                return
            counts[number] += 1

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


def milliseconds(seconds: float) -> str:
    """*seconds* for people."""
    return f"{seconds * 1e3:.{2 if seconds < 0.01 else 1}f} ms"


# -- what is stored --------------------------------------------------------------------------------

_TEXT = (
    "The customer wrote on Monday that the second invoice shows a price from before the change, "
    "and asks for a new one by e-mail. I looked at the order, found both figures, and put them "
    "into the report. The tool for refunds needs a manager's approval over 500; I have asked for "
    "it, and will go on with the shipping address until there is an answer. Can that wait? "
)

# More than SQLite lets into its log before it starts again at the log's beginning, also compressed.
FILLER = random.Random(2).randbytes(5_000_000).hex()


def make_turns(count: int) -> list[Turn]:
    """Turns of a user and an assistant, about 600 bytes of JSON each; always the same ones."""
    draw = random.Random(1)

    def text(size: int) -> str:
        start = draw.randrange(len(_TEXT))
        return (_TEXT * 3)[start : start + size]

    return [
        (
            {"role": "user", "content": text(draw.randint(100, 240))},
            {"role": "assistant", "content": text(draw.randint(300, 440))},
        )
        for _ in range(count)
    ]


def make_bodies(turns: Iterable[Turn]) -> list[bytes]:
    """The same as JSON: what the raw floor is given, for free."""
    return [msgspec.json.encode(turn) for turn in turns]


class Raw:
    """The floor: one table, one INSERT a write, WAL, ``synchronous=FULL``, and nothing else."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.pragma("journal_mode", "wal")
        self._connection.pragma("synchronous", "full")
        self._connection.pragma("cache_size", -8000)  # as much memory as Limpet has
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS raw"
            " (id INTEGER PRIMARY KEY, conversation TEXT NOT NULL, body BLOB NOT NULL)"
        )
        self._decode = msgspec.json.Decoder().decode

    def insert(self, conversation: str, body: bytes) -> None:
        """One durable write."""
        self._connection.execute(
            "INSERT INTO raw (conversation, body) VALUES (?, ?)", (conversation, body)
        )

    def fill(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Many rows in one transaction: only to prepare."""
        with self._connection:
            self._connection.executemany("INSERT INTO raw (conversation, body) VALUES (?, ?)", rows)

    def settle(self) -> None:
        """Bring the log to its full size; see `settle`."""
        self.insert("filler", FILLER.encode())

    def load(self, conversation: str) -> list[Any]:
        """All messages of a conversation."""
        found: list[Any] = []
        decode = self._decode
        for (body,) in self._connection.execute(
            "SELECT body FROM raw WHERE conversation = ? ORDER BY id", (conversation,)
        ):
            found += decode(body)
        return found

    def close(self) -> None:
        """Close the file, which moves everything from the log into it."""
        self._connection.close()


def settle(store: limpet.Store) -> None:
    """Bring *store*'s log to its full size, as it is after some hundred appends.

    A log that grows makes every sync dearer (about twice, on ext4), and Limpet's is full sooner
    than the floor's: measured across that point, one would be compared with the other's worse half.
    """
    store.conversation("filler").append({"role": "user", "content": FILLER})


def fill_store(path: Path, conversations: Iterable[str], turns: Iterable[Turn]) -> None:
    """Append *turns* to each of *conversations*, one by one, without waiting for the disk."""
    turns = list(turns)
    with limpet.open(path, durability="normal") as store:
        for id_ in conversations:
            chat = store.conversation(id_)
            for turn in turns:
                chat.append(*turn)


def fill_raw(path: Path, conversations: Iterable[str], turns: Iterable[Turn]) -> None:
    """The same for the floor."""
    bodies = make_bodies(turns)
    raw = Raw(path)
    raw.fill((id_, body) for id_ in conversations for body in bodies)
    raw.close()
