"""Servers are killed under running tasks, clients are killed over servers; nothing is lost."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

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
    work,
    work_async,
)
from tests.support.servers import (
    SHARED,
    DynamoServer,
    PostgresServer,
    RedisCluster,
    RedisServer,
    Server,
    ValkeyServer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path
    from random import Random

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("aws_environment")]

TASKS = 200
PLAN = ["look", "think", "act", "tell"]
RESTARTS = 4
KILLS = 8


T = TypeVar("T")


class OneNode(RedisCluster):
    """A cluster of which now one master is killed, now another; the others go on."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = 0

    def kill(self) -> None:
        """End one of them."""
        self._turn += 1
        self.nodes[self._turn % len(self.nodes)].kill()


def others_long(first: T, *others: T) -> list[Any]:
    """Parameters of which `make test` tries the first and `make soak` all."""
    return [first, *(pytest.param(other, marks=pytest.mark.long) for other in others)]


MORTAL = (PostgresServer, RedisServer, RedisCluster, OneNode, ValkeyServer, DynamoServer)


@pytest.fixture(params=others_long(*MORTAL), ids=lambda kind: kind.__name__)
def mortal(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that nobody else uses."""
    with request.param() as server:
        yield server


@pytest.fixture(params=others_long(*SHARED))
def shared(request: pytest.FixtureRequest) -> Server:
    """Each server of the session."""
    server: Server = request.getfixturevalue(request.param)
    return server


# -- servers that are killed -----------------------------------------------------------------------


class Ledger:
    """Which steps ran, and which of them were acknowledged."""

    def __init__(self, rng: Random) -> None:
        self.ran: Counter[tuple[str, str]] = Counter()
        self.acked: set[tuple[str, str]] = set()
        self._pauses = [rng.uniform(0, 0.05) for _ in range(1000)]

    def act(self, name: str) -> dict[str, str]:
        """What a step does."""
        task = limpet.current_step().task_id
        self.ran[task, name] += 1
        return result_of(task, name)

    def pause(self) -> float:
        """How long it takes."""
        return self._pauses[len(self.acked) % len(self._pauses)]

    def work(self, store: limpet.Store, id_: str) -> None:
        """Do one task."""
        with store.task(id_, "Finish the plan") as task:
            task.plan(PLAN)
            for step in task.remaining():
                time.sleep(self.pause())
                step.run(self.act, step.name)
                self.acked.add((id_, step.name))
            task.finish("done")

    async def work_async(self, store: limpet.AsyncStore, id_: str) -> None:
        """The same, awaited."""
        async with store.task(id_, "Finish the plan") as task:
            await task.plan(PLAN)
            for step in task.remaining():
                await asyncio.sleep(self.pause())
                await step.run(self.act, step.name)
                self.acked.add((id_, step.name))
            await task.finish("done")


def result_of(task: str, name: str) -> dict[str, str]:
    """What a step returns."""
    return {"step": f"{task}:{name}", "text": name * 20}


def in_threads(url: str, ledger: Ledger, ids: list[str]) -> None:
    """Do tasks, each in a thread of its own."""
    with limpet.open(url) as store, ThreadPoolExecutor(len(ids)) as pool:
        list(pool.map(lambda id_: ledger.work(store, id_), ids))


def on_a_loop(url: str, ledger: Ledger, ids: list[str]) -> None:
    """Do tasks, all on one event loop."""

    async def all_of_them() -> None:
        async with limpet.open_async(url) as store:
            await asyncio.gather(*(ledger.work_async(store, id_) for id_ in ids))

    asyncio.run(all_of_them())


def restart(server: Server, ledger: Ledger, working: list[Future[None]], rng: Random) -> int:
    """Kill the server again and again while work goes on, and start it; how often."""
    total = TASKS * len(PLAN)
    for number in range(RESTARTS):
        while len(ledger.acked) < total * number // RESTARTS + total // 10:
            if all(one.done() for one in working):
                return number
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.02))
        server.kill()
        time.sleep(rng.uniform(0, 0.3))
        server.start()
    return RESTARTS


def test_two_hundred_tasks_outlive_the_server_they_stand_on(mortal: Server) -> None:
    """It is killed and comes back; no step is lost, none runs or is recorded twice, all finish."""
    url = mortal.place()
    ids = [f"task-{number:03}" for number in range(TASKS)]
    with seeded() as rng, ThreadPoolExecutor(2) as pool:
        ledger = Ledger(rng)
        working = [
            pool.submit(in_threads, url, ledger, ids[::2]),
            pool.submit(on_a_loop, url, ledger, ids[1::2]),
        ]
        times = restart(mortal, ledger, working, rng)
        for one in working:
            one.result()
    assert times == RESTARTS, "it was all done before the server was killed that often"
    with limpet.open(url) as store:
        assert {task.id for task in store.tasks(status="done")} == set(ids)
        for id_ in ids:
            steps = [entry.body for entry in store.journal("task", id_).read() if is_step(entry)]
            assert [step["name"] for step in steps] == PLAN, f"{id_} has lost or doubled a step"
            assert [step["result"] for step in steps] == [result_of(id_, name) for name in PLAN]
    assert set(ledger.ran.values()) == {1}, "a step ran twice"
    assert len(ledger.acked) == len(ledger.ran) == TASKS * len(PLAN)


def is_step(entry: limpet.Entry) -> bool:
    """Whether *entry* records a step."""
    return entry.type == "step"


# -- clients that are killed -----------------------------------------------------------------------


def storm(ledger: Talk | Work, rng: Random, program: Callable[[], Program]) -> None:
    """Start a client, kill it, look at what the server has; again and again."""
    for _ in range(KILLS * soak()):
        outcomes = crash([program()], [Moment.random(rng, acks=12, seconds=0.5)])
        ledger.learn(outcomes)
        with limpet.open(ledger.url) as store:
            assert ledger.check(store) == 0, "acknowledged, and not there"


@pytest.mark.soak
def test_what_a_killed_client_was_told_is_safe_stays_on_the_server(shared: Server) -> None:
    """Four writers in one process, which is killed again and again; sync and async in turn."""
    said, ways = Talk(shared.place()), itertools.cycle([talk, talk_async])
    with seeded() as rng:
        storm(said, rng, lambda: said.program("ann", "ben", "cleo", "dan", way=next(ways)))


@pytest.mark.soak
def test_a_killed_worker_resumes_from_the_server_and_repeats_no_finished_step(
    shared: Server, tmp_path: Path
) -> None:
    """The next process goes on at the step where the last was killed; sync and async in turn."""
    url = shared.place()
    done, ways = Work(url, f"{tmp_path}/side"), itertools.cycle([work, work_async])
    with seeded() as rng:
        storm(done, rng, lambda: done.program("ann", way=next(ways)))
        with limpet.open(url) as store:
            newest = max(int(task.id.rpartition("-")[2]) for task in store.tasks())
        done.learn(run(done.program("ann", upto=newest, way=work)))
        with limpet.open(url) as store:
            assert done.check(store) == 0, "acknowledged, and not there"
            assert {task.status for task in store.tasks()} == {"done"}
