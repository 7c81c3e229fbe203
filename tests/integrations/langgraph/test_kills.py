"""Graphs that are killed come to the end that they would have come to; two at once never fork."""

from __future__ import annotations

import json
import signal
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from limpet.integrations.langgraph import LimpetSaver
from limpet.testing.crash import Moment, Program, crash, run, seeded, soak
from tests.support import langgraph_graphs as graphs
from tests.support.processes import in_a_process

if TYPE_CHECKING:
    from pathlib import Path

ways = pytest.mark.parametrize("way", ["sync", "async"])
kinds = pytest.mark.parametrize("kind", list(graphs.KINDS))


@pytest.mark.slow
@kinds
@ways
def test_killed_at_every_write_a_graph_ends_as_if_nothing_had_been(
    kind: str, way: str, tmp_path: Path
) -> None:
    """No node's work is lost or done into the state twice, and the human's answer is kept."""
    # What a process has written outlives it whether the disk has it or not.
    url = f"sqlite:{tmp_path}/agents.db?durability=normal"
    expected, passed = graphs.run(url, "whole", kind, way)
    assert len(expected["log"]) == 1 + 5 * graphs.ROUNDS
    for number, moment in enumerate(passed, 1):
        code, _ = in_a_process(partial(graphs.run, url, f"{number}", kind, way, number))
        assert code == signal.SIGKILL, f"{moment} was not reached"
        _, (found, _) = in_a_process(partial(graphs.run, url, f"{number}", kind, way))
        assert found == json.loads(json.dumps(expected)), f"killed {moment}, number {number}"
    assert len(passed) >= 2 * 3 * graphs.ROUNDS


class Killed:
    """Threads of one kind, one after the other, in processes that are killed."""

    def __init__(self, url: str, kind: str, way: str) -> None:
        self._url = url
        self._kind = kind
        self._way = way
        self._expected, _ = graphs.run(url, "whole", kind, way)
        self._first = 1
        self._seen: Counter[str] = Counter()

    def strike(self, moment: Moment, durability: str) -> None:
        """Let a process go on, kill it, and look at what is there."""
        args = (self._url, self._kind, self._way, durability, str(self._first))
        (outcome,) = crash([Program(f"{graphs.__name__}:work", args)], [moment])
        assert outcome.killed
        for line in outcome.acked:
            thread, what = line.split()
            if what == "done":
                assert thread == f"{self._kind}-{self._first}"
                self._first += 1
            elif durability == "sync":
                self._seen[thread] = max(self._seen[thread], int(what))
        self._check()

    def _check(self) -> None:
        """What was acknowledged is there."""
        with LimpetSaver(self._url) as saver:
            graph = graphs.KINDS[self._kind](saver)
            for number in range(max(1, self._first - 3), self._first + 1):
                thread = f"{self._kind}-{number}"
                found = graph.get_state(graphs.config_of(thread)).values
                if number < self._first:
                    assert graphs.told(found) == self._expected, f"{thread} is not as it was"
                assert graphs.seen(found) >= self._seen[thread], f"{thread} has lost work"


@pytest.mark.soak
@ways
def test_killed_at_any_moment_a_graph_has_all_that_was_acknowledged(
    way: str, tmp_path: Path
) -> None:
    """Whoever goes on finds every state that a node was given, and comes to the same end."""
    with seeded() as rng:
        threads = {kind: Killed(f"sqlite:{tmp_path}/{kind}.db", kind, way) for kind in graphs.KINDS}
        for number in range(10 * soak()):
            kind = rng.choice(list(threads))
            moment = Moment(rng.randint(1, 12), rng.uniform(0, rng.choice([0.0005, 0.02])))
            threads[kind].strike(moment, "async" if number % 3 == 2 else "sync")


# -- two processes on one thread -------------------------------------------------------------------


def history(url: str) -> list[Any]:
    """The checkpoints of the shared thread, the newest first."""
    with LimpetSaver(url) as saver:
        return list(saver.list(graphs.config_of("shared")))


def is_a_line(found: list[Any]) -> bool:
    """Whether each is the parent of the one before it in the list."""
    ids = [one.config["configurable"]["checkpoint_id"] for one in found]
    parents = [one.parent_config and one.parent_config["configurable"] for one in found]
    return [one and one["checkpoint_id"] for one in parents] == [*ids[1:], None]


def two(
    url: str, way: str, options: str, ann: tuple[str, str], bob: tuple[str, str]
) -> list[list[str]]:
    """What became of both; each is told when to begin, and when to end its second node."""
    target = f"{graphs.__name__}:clash"
    return [
        outcome.acked
        for outcome in run(
            Program(target, (url, way, options, "ann", *ann)),
            Program(target, (url, way, options, "bob", *bob)),
        )
    ]


@pytest.mark.slow
@ways
def test_a_run_that_was_overtaken_gets_a_conflict_and_forks_nothing(
    way: str, tmp_path: Path
) -> None:
    """Bob ran through while Ann was within a node: her next checkpoint would have lost his."""
    url = f"sqlite:{tmp_path}/agents.db"
    ann, bob = two(url, way, "", ("ready-ann", "done-bob"), ("in-ann", ""))
    assert bob == ["ended"]
    assert len(ann) == 1
    assert ann[0].startswith("Conflict ")
    found = history(url)
    assert is_a_line(found)
    assert found[0].checkpoint["channel_values"]["log"][-4:] == ["bob", "bob 1", "bob 2", "bob 3"]


@pytest.mark.slow
@ways
def test_the_second_run_of_an_exclusive_thread_is_refused_with_who_holds_it(
    way: str, tmp_path: Path
) -> None:
    """Nothing of Bob's is run, and Ann comes to her end."""
    url = f"sqlite:{tmp_path}/agents.db"
    ann, bob = two(url, way, "exclusive", ("ready-ann", "done-bob"), ("in-ann", ""))
    assert ann == ["ended"]
    assert len(bob) == 1
    assert bob[0].startswith("LeaseHeld ")
    found = history(url)
    assert is_a_line(found)
    assert found[0].checkpoint["channel_values"]["log"] == ["ann", "ann 1", "ann 2", "ann 3"]


@pytest.mark.soak
@ways
@pytest.mark.parametrize("options", ["", "exclusive"])
def test_of_two_runs_at_once_no_branch_is_lost(way: str, options: str, tmp_path: Path) -> None:
    """However they meet: whoever was not refused is in the line, and nobody else half-way in it."""
    for number in range(soak()):
        (tmp_path / str(number)).mkdir()
        url = f"sqlite:{tmp_path / str(number)}/agents.db"
        said = two(url, way, options, ("ready-bob", ""), ("ready-ann", ""))
        found = history(url)
        assert is_a_line(found)
        log = found[0].checkpoint["channel_values"]["log"]
        for who, (outcome,) in zip(("ann", "bob"), said, strict=True):
            assert outcome == "ended" or outcome.startswith(("Conflict ", "LeaseHeld "))
            assert outcome != "ended" or f"{who} 3" in log
