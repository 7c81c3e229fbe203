"""Writers of files are killed at random moments; nothing acknowledged is lost, or done twice."""

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

#: How often four processes are started and killed, each at its own moment or all at one.
ROUNDS = {talk: 9, talk_async: 5, visit: 5, work: 9, work_async: 5, "team": 6, "new": 6}
ROUNDS_AT_ONCE = 5


@pytest.fixture
def said(tmp_path: Path) -> Talk:
    """A conversation in a new store."""
    return Talk(f"file:{tmp_path}/agents")


@pytest.fixture
def done(tmp_path: Path) -> Work:
    """Tasks in a new store."""
    return Work(f"file:{tmp_path}/agents", f"{tmp_path}/side")


def storm(
    ledger: Talk | Work,
    rng: Random,
    rounds: int,
    programs: Callable[[], Sequence[Program]],
    *,
    at_once: bool = False,
) -> None:
    """Start the programs, kill them, look at what is left; again and again on one store."""
    for _ in range(rounds * soak()):
        moments = [Moment.random(rng, acks=50, seconds=0.3) for _ in FOUR]
        outcomes = crash(programs(), moments[:1] if at_once else moments)
        assert all(outcome.killed for outcome in outcomes)
        ledger.learn(outcomes)
        look(ledger, rng)


def look(ledger: Talk | Work, rng: Random) -> None:
    """Check the store, or a copy of it: the next program then finds it as the kill has left it."""
    path = Path(ledger.url.removeprefix("file:"))
    if rng.random() < 0.5 and path.exists():
        copy = path.parent / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        path = shutil.copytree(path, copy)
    with limpet.open(f"file:{path}") as store:
        assert ledger.check(store) == 0, "acknowledged, and not there"
        assert [fact for fact in store.backend.facts(deep=True) if not fact.ok] == []


def finish(done: Work, rng: Random, way: Way) -> None:
    """Let fresh processes, which nobody kills, do what is left; then everything must be done."""
    with limpet.open(done.url) as store:
        tasks = sorted(store.tasks(), key=lambda task: task.created_at)
    newest = {task.id.rpartition("-")[0]: int(task.id.rpartition("-")[2]) for task in tasks}
    done.learn(run(*(done.program(worker, upto=n, way=way) for worker, n in newest.items())))
    look(done, rng)
    with limpet.open(done.url) as store:
        assert {task.status for task in store.tasks()} == {"done"}


@pytest.mark.soak
@pytest.mark.parametrize("way", [talk, talk_async])
def test_four_killed_processes_lose_nothing_of_one_conversation(said: Talk, way: Way) -> None:
    """They append to the same file, and none harms another."""
    with seeded() as rng:
        storm(said, rng, ROUNDS[way], lambda: [said.program(name, way=way) for name in FOUR])


@pytest.mark.soak
def test_processes_killed_at_once_lose_nothing_of_one_conversation(said: Talk) -> None:
    """Each with two threads, so that somebody is always in the middle of a write."""
    with seeded() as rng:
        storm(
            said,
            rng,
            ROUNDS_AT_ONCE,
            lambda: [said.program(f"{name}-1", f"{name}-2") for name in FOUR],
            at_once=True,
        )


@pytest.mark.soak
def test_processes_that_open_and_close_the_store_for_every_turn_lose_nothing(said: Talk) -> None:
    """What one left unfinished, the next that comes along clears away."""
    with seeded() as rng:
        storm(
            said,
            rng,
            ROUNDS[visit],
            lambda: [said.program(f"{name}-1", f"{name}-2", way=visit) for name in FOUR],
        )


@pytest.mark.soak
@pytest.mark.parametrize("way", [work, work_async])
def test_four_killed_workers_resume_and_repeat_no_finished_step(done: Work, way: Way) -> None:
    """Each has tasks of its own, in one directory."""
    with seeded() as rng:
        storm(done, rng, ROUNDS[way], lambda: [done.program(name, way=way) for name in FOUR])
        finish(done, rng, way)


@pytest.mark.soak
def test_the_next_worker_takes_over_from_a_killed_one_and_repeats_nothing(done: Work) -> None:
    """Four want the same task; one has it, is killed, and another goes on at once."""
    with seeded() as rng:
        storm(done, rng, ROUNDS["team"], lambda: [done.program("team") for _ in FOUR])
        finish(done, rng, work)


@pytest.mark.soak
def test_a_store_whose_creation_was_cut_short_is_created_by_the_next_process(
    tmp_path: Path,
) -> None:
    """A kill among the first milliseconds leaves nothing that cannot be opened."""
    with seeded() as rng:
        for number in range(ROUNDS["new"] * soak()):
            said = Talk(f"file:{tmp_path}/{number}/agents")
            moments = [Moment(0, rng.uniform(0, 0.05)) for _ in FOUR]
            said.learn(crash([said.program(name) for name in FOUR], moments))
            look(said, rng)


def test_two_hundred_processes_are_killed() -> None:
    """The promise of this file, should somebody change its numbers."""
    assert len(FOUR) * (sum(ROUNDS.values()) + ROUNDS_AT_ONCE) >= 200
