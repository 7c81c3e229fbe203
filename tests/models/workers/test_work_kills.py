"""Workers are killed while they work, one after the other; the work gets done, each effect once."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

import limpet
from limpet.testing.crash import seeded, soak
from tests.support.orders import PARTS, Ledger
from tests.support.paths import ROOT
from tests.support.processes import mortal

if TYPE_CHECKING:
    from random import Random

    from limpet import Entry, Store
    from tests.support.servers import Server

LIMPET = str(Path(sys.executable).parent / "limpet")

#: Seconds between two looks of an idle worker, and how long all of it may take.
POLL = 0.25
PATIENCE = 240.0

#: Seconds, as few as a busy machine bears.
LEASE = 5.0

#: The longest that a task may be nobody's. These tell a takeover in its time from one that waited
#: for the usual lease of a minute; they do not time it, for on a busy machine a new worker may take
#: many seconds to start. The gaps are printed.
AT_ONCE = 60.0 / 2
IN_TURN = LEASE + AT_ONCE


class Crew:
    """Worker processes, of which one can be killed and replaced."""

    def __init__(
        self, directory: Path, url: str, ledger: str, *, count: int, concurrency: int, lease: str
    ) -> None:
        self._command = [
            *(*mortal(signal.SIGKILL, None), LIMPET, "work", "tests.support.orders:registry"),
            *("--store", url, "--concurrency", str(concurrency), "--poll", str(POLL)),
            *("--give-up-after", "50"),
        ]
        self._environment = {**os.environ, "ORDERS_LEDGER": ledger, "ORDERS_LEASE": lease}
        self._count = count
        self.said = directory / "said"
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._workers = [self._start() for _ in range(self._count)]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.said.open("ab") as said:
            return subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=said, stderr=said
            )

    def kill(self, rng: Random, store: Store) -> bool:
        """SIGKILL one that is at work, and start another; False if none is."""
        ended = [worker for worker in self._workers if worker.poll() is not None]
        assert not ended, "it ended by itself:\n" + self.said.read_text()
        holders = {info.held_by.rpartition(" ")[2] for info in store.tasks() if info.held_by}
        busy = [worker for worker in self._workers if str(worker.pid) in holders]
        if not busy:
            return False
        victim = rng.choice(busy)
        victim.kill()
        victim.wait()
        self._workers.remove(victim)
        self._workers.append(self._start())
        return True


def submit(store: Store, count: int) -> list[str]:
    """So many orders, every other one for an async function."""
    ids = [f"order-{number:03}" for number in range(count)]
    for number, id_ in enumerate(ids):
        store.submit(("order", "order-async")[number % 2], id_, "Charge for each part once")
    return ids


def is_done(store: Store) -> bool:
    """Whether all is."""
    return all(info.status == "done" for info in store.tasks())


def kill_until_done(store: Store, crew: Crew, every: float, rng: Random) -> int:
    """Kill one at work *every* so many seconds until everything is done; how many that were."""
    kills, began = 0, time.monotonic()
    while not is_done(store):
        assert time.monotonic() - began < PATIENCE, crew.said.read_text()[-4000:]
        time.sleep(every)
        kills += crew.kill(rng, store)
    return kills


def charges(ids: list[str]) -> list[str]:
    """What is to be charged, in order."""
    return sorted(f"{id_}:charge-{part}" for id_ in ids for part in range(PARTS))


def steps(journal: list[Entry]) -> Counter[str]:
    """How often each step was recorded."""
    return Counter(entry.body["name"] for entry in journal if entry.type == "step")


def takeovers(journal: list[Entry]) -> list[float]:
    """How long nothing was written before each `resumed` but the first: by those who had died."""
    return [
        (entry.at - before.at).total_seconds()
        for before, entry in itertools.pairwise(journal)
        if entry.type == "resumed" and before.type != "created"
    ]


def check(store: Store, ledger: Ledger, ids: list[str], *, kills: int, within: float) -> None:
    """Each effect happened once, each step is recorded once; who died had a successor in time."""
    # By task and step: a key also has the tenant, and the task's incarnation.
    assert sorted(":".join(key.split(":")[1::2]) for key in ledger.all()) == charges(ids)
    names = {f"{what}-{part}": 1 for what in ("pack", "charge") for part in range(PARTS)}
    gaps: list[float] = []
    for id_ in ids:
        journal: list[Any] = store.journal("task", id_).read()
        assert steps(journal) == names, id_
        gaps += takeovers(journal)
    print(f"{kills} workers killed, {len(gaps)} takeovers, the longest after {max(gaps):.2f} s")
    assert len(gaps) >= kills > 0
    assert max(gaps) <= within


@pytest.mark.slow
def test_killed_workers_on_postgresql_do_everything_once(
    postgresql_server: Server, tmp_path: Path
) -> None:
    """50 tasks, 4 workers as on machines of their own, and every second one of them dies."""
    url = postgresql_server.place()
    place = url.partition("?")[0]
    ledger = Ledger(place)
    ledger.create()
    try:
        with seeded() as rng, limpet.open(url) as store:
            ids = submit(store, 50 * soak())
            room, lease = len(ids) // 2, str(LEASE)
            with Crew(tmp_path, url, place, count=4, concurrency=room, lease=lease) as crew:
                kills = kill_until_done(store, crew, 1.0, rng)
            check(store, ledger, ids, kills=kills, within=IN_TURN)
    finally:
        ledger.close()


@pytest.mark.slow
def test_killed_workers_on_sqlite_do_everything_once(tmp_path: Path) -> None:
    """On one machine a dead worker is succeeded at once: nobody waits for its lease."""
    url, ledger = f"sqlite:{tmp_path}/agents.db", Ledger(f"{tmp_path}/charges.db")
    ledger.create()
    try:
        with seeded() as rng, limpet.open(url) as store:
            ids = submit(store, 8 * soak())
            path = f"{tmp_path}/charges.db"
            with Crew(tmp_path, url, path, count=2, concurrency=len(ids), lease="") as crew:
                kills = kill_until_done(store, crew, 0.8, rng)
            check(store, ledger, ids, kills=kills, within=AT_ONCE)
    finally:
        ledger.close()
