"""The power fails at random moments; nothing that was acknowledged is lost, and nothing is torn."""

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import limpet
from limpet.backends.facts import Fact
from limpet.backends.sqlite import database
from limpet.backends.sqlite.backend import SqliteBackend
from limpet.testing.crash import PLAN, TALK, result_of, seeded, soak, steps_of, turn, turns_of
from limpet.testing.powerloss import Ack, CrashState, Event, Recorder, Sync, Write, crash_states
from tests.support.sqlite_index import migrations_with_an_index_moved_every

STATES = 1000

WRITERS = ("ann", "ben", "cleo", "dan")
TURNS = 40
TASKS = 4


BULK = 40


@pytest.fixture(autouse=True)
def a_small_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that new entries of the index are moved to the others many times in a small test."""
    monkeypatch.setattr(database, "migrations", migrations_with_an_index_moved_every(16))


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in memory where that can be had: nothing here has to outlast the test."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a private one in it
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


@dataclass
class Seen:
    """What a series of power cuts came to."""

    states: int = 0
    acked: int = 0
    lost: int = 0


def recorded(
    path: Path, work: Callable[[limpet.Store, Recorder], object], durability: str = "full"
) -> Sequence[Event]:
    """What happened to the files while *work* was done on a store, from its opening to its end."""
    # A sync takes a while, so that writers gather behind it and share the next one.
    with Recorder(sync_seconds=0.0005) as recorder:
        with limpet.open(path, vfs=recorder.vfs, durability=durability) as store:
            checkpoint_often(store)
            work(store, recorder)
        return recorder.log


def checkpoint_often(store: limpet.Store) -> None:
    """So that the log is copied into the database, and begun anew, many times in a small test."""
    assert isinstance(store.backend, SqliteBackend)
    store.backend._database.writer().execute("PRAGMA wal_autocheckpoint = 20")


def everything(store: limpet.Store, recorder: Recorder) -> None:
    """Four writers in one conversation and two workers with their tasks, each in a thread."""
    with ThreadPoolExecutor() as threads:
        jobs = [threads.submit(talk, store, recorder, writer) for writer in WRITERS]
        jobs += [threads.submit(work, store, recorder, name) for name in ("eve", "fay")]
        jobs.append(threads.submit(tell_at_once, store, recorder))
    for job in jobs:
        job.result()


def talk(store: limpet.Store, recorder: Recorder, writer: str, turns: int = TURNS) -> None:
    """Say *turns* things, each acknowledged when it is stored."""
    chat = store.conversation(TALK)
    for number in range(1, turns + 1):
        chat.append(*turn(writer, number))
        recorder.ack(("turn", writer))


def tell_at_once(store: limpet.Store, recorder: Recorder) -> None:
    """Append many messages at a time: several records, all or none of them."""
    chat = store.conversation("bulk")
    for number in range(1, 9):
        chat.append(*({"role": "user", "content": str(number)} for _ in range(BULK)))
        recorder.ack(("bulk", str(number)))


def work(store: limpet.Store, recorder: Recorder, worker: str) -> None:
    """Do some tasks, each step acknowledged when it is stored."""
    for number in range(1, TASKS // 2 + 1):
        with store.task(f"{worker}-{number}", "Finish the plan") as task:
            task.plan(PLAN)
            for step in task.remaining():
                step.run(result_of, f"{task.id}:{step.name}")
                recorder.ack(("step", f"{task.id}:{step.name}"))
            task.finish(len(task.results))


def after(states: Iterator[CrashState], directory: Path) -> Seen:
    """Open what each power cut left, and check all of it."""
    seen = Seen()
    directory.mkdir(exist_ok=True)
    for state in states:
        state.write_to(directory)
        try:
            with limpet.open(directory / "agents.db") as store:
                seen.lost += lost(store, state)
        except BaseException as error:
            error.add_note(f"The power failed after event {state.point}.")
            raise
        seen.states += 1
        seen.acked += len(state.acked)
    return seen


def lost(store: limpet.Store, state: CrashState) -> int:
    """How many acknowledged turns and steps are not there. What is there must be right."""
    assert [fact for fact in store.backend.facts(deep=True) if not is_well(fact)] == []
    return (
        lost_turns(turns_of(store), state)
        + lost_steps(steps_of(store), state)
        + lost_bulks(store, state)
    )


def is_well(fact: Fact) -> bool:
    """Rebuilt files have the mode that the test gave them."""
    return fact.ok or fact.name == "file mode"


def lost_turns(stored: Counter[str], state: CrashState) -> int:
    """Acknowledged turns that are missing; of each writer one more may be there, if in flight."""
    acked = Counter(what for kind, what in labels(state) if kind == "turn")
    for writer in stored:
        assert stored[writer] <= acked[writer] + 1, f"{writer}: more is stored than was said"
    return (acked - stored).total()


def lost_bulks(store: limpet.Store, state: CrashState) -> int:
    """The same for appends of many messages: each is there whole, or not at all."""
    stored = Counter(message["content"] for message in store.conversation("bulk").messages())
    assert set(stored.values()) <= {BULK}
    acked = {what for kind, what in labels(state) if kind == "bulk"}
    assert len(stored.keys() - acked) <= 1
    return len(acked - stored.keys())


def lost_steps(stored: set[str], state: CrashState) -> int:
    """The same for steps; each worker has one in flight."""
    acked = {what for kind, what in labels(state) if kind == "step"}
    in_flight = Counter(step.partition("-")[0] for step in stored - acked)
    assert max(in_flight.values(), default=0) <= 1, f"not acknowledged: {stored - acked}"
    return len(acked - stored)


def labels(state: CrashState) -> Iterator[tuple[str, str]]:
    """What was acknowledged: its kind and what it was."""
    for label in state.acked:
        assert isinstance(label, tuple)
        yield label


@pytest.mark.soak
def test_no_acknowledged_entry_is_lost_in_a_thousand_power_cuts(place: Path) -> None:
    """Durable on return: the promise that everything else stands on."""
    with seeded() as rng:
        log = recorded(place / "agents.db", everything)
        seen = after(crash_states(log, rng, STATES * soak()), place / "after")
        print(seen)
        assert seen.states >= 1000
        assert seen.lost == 0


def test_the_workload_shares_commits_and_starts_the_log_anew(place: Path) -> None:
    """The moments at which a log could go wrong are among those that the power fails in."""
    log = recorded(place / "agents.db", everything)
    syncs = [event for event in log if isinstance(event, Sync)]
    acks = [event for event in log if isinstance(event, Ack)]
    headers = [event for event in log if isinstance(event, Write) and is_header(event)]
    assert len(acks) == len(WRITERS) * TURNS + TASKS * len(PLAN) + 8
    assert len([sync for sync in syncs if sync.file.endswith("-wal")]) < len(acks)
    assert len([sync for sync in syncs if sync.file == "agents.db"]) > 10
    assert len(headers) > 10


def is_header(event: Write) -> bool:
    """The log's first bytes: written when it is begun."""
    return event.file.endswith("-wal") and event.offset == 0


@pytest.mark.soak
def test_the_harness_sees_what_durability_normal_loses(place: Path) -> None:
    """With durability="normal" acknowledged entries are lost, and even then nothing is torn."""
    with seeded() as rng:
        log = recorded(place / "agents.db", everything, durability="normal")
        seen = after(crash_states(log, rng, 200 * soak()), place / "after")
        print(seen)
        assert seen.lost > 0


@pytest.mark.soak
def test_a_new_store_can_be_opened_wherever_its_creation_was_cut_off(place: Path) -> None:
    """From the first byte of the file: before the first acknowledgement it is simply empty."""
    with seeded() as rng:
        log = recorded(place / "agents.db", lambda store, recorder: talk(store, recorder, "ann", 3))
        first = next(at for at, event in enumerate(log) if isinstance(event, Ack))
        seen = after(crash_states(log[:first], rng, 200 * soak()), place / "before")
        assert (seen.acked, seen.lost) == (0, 0)
        seen = after(crash_states(log, rng, 200 * soak()), place / "after")
        assert seen.acked > 0
        assert seen.lost == 0


@pytest.mark.soak
def test_a_second_power_cut_while_recovering_from_the_first_loses_nothing(place: Path) -> None:
    """Whoever opens a store after a power cut may be cut off too."""
    with seeded() as rng:
        log = recorded(place / "agents.db", everything)
        for number, state in enumerate(crash_states(log, rng, 20 * soak())):
            directory = place / str(number)
            directory.mkdir()
            state.write_to(directory)
            again = recorded(
                directory / "agents.db", lambda store, recorder: talk(store, recorder, "gus", 3)
            )
            states = (continued(state, later) for later in crash_states(again, rng, 10))
            seen = after(states, directory / "after")
            assert seen.lost == 0, f"the first power cut was after event {state.point}"


def continued(before: CrashState, after: CrashState) -> CrashState:
    """*after*, from a log that began with what *before* had left: what that says still holds.

    A file that was not opened again yet is not in the second log, but as it was.
    """
    return CrashState(after.point, (*before.acked, *after.acked), {**before.files, **after.files})
