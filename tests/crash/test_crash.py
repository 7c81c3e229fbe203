"""Processes are killed at random moments; nothing that was acknowledged is lost, or done twice."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import TypeAlias

import pytest

import limpet
from limpet.testing.crash import (
    Moment,
    Program,
    Talk,
    Work,
    crash,
    run,
    seeded,
    soak,
    talk,
    talk_async,
    visit,
    work,
    work_async,
)

Way: TypeAlias = Callable[..., None]

FOUR = ("ann", "ben", "cleo", "dan")

KILLS_OF_ONE = 12
ROUNDS_OF_FOUR = 3
KILLS_AT_CREATION = 12

talking = pytest.mark.parametrize("way", [talk, talk_async], ids=["sync", "async"])
working = pytest.mark.parametrize("way", [work, work_async], ids=["sync", "async"])
together_or_not = pytest.mark.parametrize("together", [True, False], ids=["at-once", "one-by-one"])


@pytest.fixture
def said(tmp_path: Path) -> Talk:
    """A conversation in a new store."""
    return Talk(f"sqlite:{tmp_path}/agents.db")


@pytest.fixture
def done(tmp_path: Path) -> Work:
    """Tasks in a new store."""
    return Work(f"sqlite:{tmp_path}/agents.db", f"{tmp_path}/side")


def storm(
    ledger: Talk | Work,
    rng: Random,
    rounds: int,
    programs: Callable[[], Sequence[Program]],
    moments: Callable[[], Sequence[Moment]],
) -> None:
    """Start the programs, kill them, look at what is left; again and again on one store."""
    for _ in range(rounds * soak()):
        outcomes = crash(programs(), moments())
        assert all(outcome.killed for outcome in outcomes)
        ledger.learn(outcomes)
        look(ledger, rng)


def look(ledger: Talk | Work, rng: Random) -> None:
    """Check the store, or a copy of it: the next program then finds it as the kill has left it."""
    path = Path(ledger.url.removeprefix("sqlite:"))
    if rng.random() < 0.5 and path.exists():
        path = copied(path)
    with limpet.open(path) as store:
        assert ledger.check(store) == 0, "acknowledged, and not there"
        assert [fact for fact in store.backend.facts(deep=True) if not fact.ok] == []


def copied(path: Path) -> Path:
    """A copy of the store as it lies there; its ``-shm`` means nothing without its processes."""
    target = path.parent / "copy" / path.name
    shutil.rmtree(target.parent, ignore_errors=True)
    target.parent.mkdir()
    for name in (path.name, f"{path.name}-wal", f"{path.name}-journal"):
        if (path.parent / name).exists():
            shutil.copy(path.parent / name, target.parent)
    return target


def one_moment(rng: Random) -> list[Moment]:
    """When a program is killed."""
    return [Moment.random(rng)]


def some_moments(rng: Random, *, together: bool) -> list[Moment]:
    """When four programs are killed: at one moment, or each at its own."""
    if together:
        return [Moment.random(rng, acks=200, seconds=0.3)]
    return [Moment.random(rng, acks=50, seconds=0.3) for _ in FOUR]


def finish(done: Work, rng: Random, way: Way) -> None:
    """Let fresh processes, which nobody kills, do what is left; then everything must be done."""
    with limpet.open(done.url) as store:
        tasks = sorted(store.tasks(), key=lambda task: task.created_at)
    newest = {task.id.rpartition("-")[0]: int(task.id.rpartition("-")[2]) for task in tasks}
    done.learn(run(*(done.program(worker, upto=n, way=way) for worker, n in newest.items())))
    look(done, rng)
    with limpet.open(done.url) as store:
        assert {task.status for task in store.tasks()} == {"done"}


# -- conversations ---------------------------------------------------------------------------------


@pytest.mark.soak
@talking
@pytest.mark.parametrize("writers", [1, 4])
def test_what_a_killed_process_was_told_is_safe_stays_in_the_conversation(
    said: Talk, writers: int, way: Way
) -> None:
    """One process, with one writer or with four that share commits."""
    with seeded() as rng:
        storm(
            said,
            rng,
            KILLS_OF_ONE,
            lambda: [said.program(*FOUR[:writers], way=way)],
            lambda: one_moment(rng),
        )


@pytest.mark.soak
@talking
@together_or_not
def test_four_killed_processes_lose_nothing_of_one_conversation(
    said: Talk, way: Way, *, together: bool
) -> None:
    """They append to the same conversation in the same file, and none harms another."""
    with seeded() as rng:
        storm(
            said,
            rng,
            ROUNDS_OF_FOUR,
            lambda: [said.program(writer, way=way) for writer in FOUR],
            lambda: some_moments(rng, together=together),
        )


@pytest.mark.soak
def test_processes_that_open_and_close_the_store_for_every_turn_lose_nothing(said: Talk) -> None:
    """Closing it in one thread must not give up the locks of another: POSIX would have it so."""
    with seeded() as rng:
        storm(
            said,
            rng,
            ROUNDS_OF_FOUR,
            lambda: [said.program(f"{name}-1", f"{name}-2", way=visit) for name in FOUR],
            lambda: some_moments(rng, together=False),
        )


# -- tasks -----------------------------------------------------------------------------------------


@pytest.mark.soak
@working
def test_a_killed_worker_resumes_and_repeats_no_finished_step(done: Work, way: Way) -> None:
    """Whatever step it was killed in, the next process goes on from there."""
    with seeded() as rng:
        storm(
            done,
            rng,
            2 * KILLS_OF_ONE,
            lambda: [done.program("ann", way=way)],
            lambda: one_moment(rng),
        )
        finish(done, rng, way)


@pytest.mark.soak
@working
@together_or_not
def test_four_killed_workers_resume_and_repeat_no_finished_step(
    done: Work, way: Way, *, together: bool
) -> None:
    """Each has tasks of its own, in one file."""
    with seeded() as rng:
        storm(
            done,
            rng,
            ROUNDS_OF_FOUR,
            lambda: [done.program(worker, way=way) for worker in FOUR],
            lambda: some_moments(rng, together=together),
        )
        finish(done, rng, way)


@pytest.mark.soak
@working
def test_the_next_worker_takes_over_from_a_killed_one_and_repeats_nothing(
    done: Work, way: Way
) -> None:
    """Four want the same task; one has it, is killed, and another goes on at once."""
    with seeded() as rng:
        storm(
            done,
            rng,
            ROUNDS_OF_FOUR,
            lambda: [done.program("team", way=way) for _ in FOUR],
            lambda: some_moments(rng, together=False),
        )
        finish(done, rng, way)


# -- new stores ------------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_store_whose_creation_was_cut_short_is_created_by_the_next_process(
    tmp_path: Path,
) -> None:
    """A kill among the first milliseconds of a new file leaves nothing that cannot be opened."""
    with seeded() as rng:
        for number in range(KILLS_AT_CREATION * soak()):
            (tmp_path / str(number)).mkdir()
            said = Talk(f"sqlite:{tmp_path}/{number}/agents.db")
            said.learn(crash([said.program("ann")], [Moment(0, rng.uniform(0, 0.03))]))
            look(said, rng)


def test_more_than_two_hundred_processes_are_killed() -> None:
    """The promise of this file, should somebody change its numbers."""
    of_one = (4 + 2 * 2) * KILLS_OF_ONE
    of_four = (4 + 1 + 4 + 2) * ROUNDS_OF_FOUR * len(FOUR)
    assert of_one + of_four + KILLS_AT_CREATION >= 200


# -- the harness itself ----------------------------------------------------------------------------

HASTY = """
import sys, time, limpet
from limpet.testing.crash import TALK, ack, turn
chat = limpet.open(sys.argv[1]).conversation(TALK)
for number in range(1, 21):
    ack(f"ann {number}")
    time.sleep(60 if number == 20 else 0)
    chat.append(*turn("ann", number))
"""


def test_a_program_that_acknowledges_too_early_is_found_out(tmp_path: Path, said: Talk) -> None:
    """A harness that cannot see a loss would prove nothing."""
    (tmp_path / "hasty.py").write_text(HASTY)
    said.learn(crash([Program(f"{tmp_path}/hasty.py", (said.url,))], [Moment(20, 0)]))
    with limpet.open(said.url) as store:
        assert said.check(store) == 1


def test_a_step_that_ran_after_it_was_done_is_found_out(tmp_path: Path, done: Work) -> None:
    """The same for work that is repeated."""
    done.learn(run(done.program("ann", upto=1)))
    with limpet.open(done.url) as store:
        assert done.check(store) == 0
        with (tmp_path / "side").open("a") as lines:
            lines.write("run-2 ann-1:step-07\n")
        with pytest.raises(AssertionError, match=r"run-1 had done it, then run-2 ran it"):
            done.check(store)


def test_a_program_that_fails_by_itself_is_not_taken_for_a_killed_one() -> None:
    """Its last words are in the error."""
    with pytest.raises(AssertionError, match=r"TypeError"):
        run(Program("operator:truediv", ("1", "0")))


WHERE = """
import os
from limpet.testing.crash import ack
ack(f"{os.getcwd()} {os.environ['LIMPET_CACHE']} {os.getpgrp() == os.getpid()}")
"""


def test_a_program_has_the_directory_and_the_environment_of_the_test_that_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is forked from a process that was there before the test."""
    (tmp_path / "where.py").write_text(WHERE)
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        monkeypatch.setenv("LIMPET_CACHE", place)
        (outcome,) = run(Program(f"{tmp_path}/where.py"))
        assert outcome.acked == [f"{tmp_path / place} {place} True"]


def test_a_program_that_never_comes_to_its_moment_is_not_waited_for(said: Talk) -> None:
    """It is killed, and the error says how far it had come."""
    with pytest.raises(TimeoutError, match=r"talk.* lines"):
        run(said.program("ann"), patience=0.5)
