"""A long life of a store: every model at work for as long as one likes, and processes are killed.

``python -m tests.support.endurance DIRECTORY MINUTES`` keeps a SQLite and a ``file:`` store in use.
One process has both open from the first minute to the last; others are killed by the thousand. A
line a minute says what was done and what it took; the last one is the verdict: whether anything
acknowledged was lost, and whether memory, descriptors and the stores stopped growing.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import limpet
from limpet.testing.crash import (
    TALK,
    Moment,
    Program,
    Talk,
    Work,
    ack,
    crash,
    run,
    seeded,
    talk,
    talk_async,
    visit,
    work,
    work_async,
)
from limpet.transfer.backup import backup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Self

#: How often processes are started and killed before everything is finished, saved and cleared.
ROUNDS = 10
#: How many of the facts are remembered from then on.
REMEMBERED = 50
NOTES = "notes"
#: Seconds after which a short conversation is to be swept away.
SHORT = 2.0


# -- what is known, and what is done ---------------------------------------------------------------


def fact(number: int) -> str:
    """What is remembered as the *number*-th."""
    return f"Parcel {number} weighs {number * 37 % 1000} grams and goes to gate {number % 23}."


class Notes:
    """One process saves a state again and again, and remembers a fact each time."""

    def __init__(self) -> None:
        self.saved = self.remembered = self.forgotten = 0

    def learn(self, acked: Sequence[str]) -> None:
        """Take in what was acknowledged."""
        for line in acked:
            what, number = line.split()
            if what == "state":
                self.saved = int(number)
            else:
                self.remembered = int(number)

    def check(self, store: limpet.Store) -> None:
        """All that was acknowledged is there, once, and at most one thing more."""
        if self.remembered:
            found = store.memory(NOTES).list()
            numbers = sorted(int(one.text.split()[1]) for one in found)
            newest = self.remembered + (len(numbers) > self.remembered - self.forgotten)
            assert numbers == list(range(self.forgotten + 1, newest + 1)), "memories"
            assert {one.text for one in found} == {fact(number) for number in numbers}
        if self.saved:
            document = store.state(NOTES).load()
            assert document["number"] - self.saved in (0, 1), "the state"
            assert document == document_of(document["number"])

    def forget_old(self, store: limpet.Store) -> None:
        """So that neither grows for ever."""
        memory = store.memory(NOTES)
        old = sorted(memory.list(), key=lambda one: int(one.text.split()[1]))[:-REMEMBERED]
        if old:
            memory.forget(*(one.id for one in old))
            self.forgotten += len(old)
        if self.saved:
            store.state(NOTES).compact()


def document_of(number: int) -> dict[str, Any]:
    """The *number*-th state that is saved."""
    newest = range(max(1, number - 20), number + 1)
    return {"number": number, "newest": {str(one): fact(one) for one in newest}}


def keep(url: str) -> None:
    """Remember and save for ever: a program that is killed."""
    with limpet.open(url) as store:
        memory, state = store.memory(NOTES), store.state(NOTES)
        try:
            number = state.load()["number"]
        except limpet.NotFound:
            number = 0
        while True:
            number += 1
            memory.remember(fact(number), key=str(number))
            ack(f"memory {number}")
            state.save(document_of(number))
            ack(f"state {number}")


class Chores:
    """What the process that lives does all the time, in a thread: it reads, tidies up and talks."""

    def __init__(self, store: limpet.Store, rng: Random) -> None:
        self.done = 0
        #: Held for each of them.
        self.lock = threading.Lock()
        self._store = store
        self._rng = rng
        self._said = self._length = self._saved = 0

    def one(self) -> None:
        """Do one of them."""
        store, chat = self._store, self._store.conversation(TALK)
        match self._rng.randrange(8):
            case 0:
                chat.window(max_tokens=20_000, compact=summary)
            case 1:
                assert chat.last() is None or chat.length() > 0
            case 2:
                for task in store.tasks():
                    store.task(task.id).resume_context()
            case 3:
                store.memory(NOTES).recall("Which parcel goes to gate 7?", k=5)
            case 4:
                store.search_conversations("parcel gate", k=3)
            case 5:
                self._look_at_the_state()
            case 6:
                store.sweep()
            case _:
                self._talk()
        self.done += 1

    def _look_at_the_state(self) -> None:
        try:
            number = self._store.state(NOTES).load()["number"]
        except limpet.NotFound:
            number = 0
        assert number >= self._saved, "the state has gone back"
        self._saved = number

    def _talk(self) -> None:
        """A conversation of ten messages after the other, each of which is soon swept away."""
        id_, before = divmod(self._said, 10)
        chat = self._store.conversation(f"short-{id_}", ttl=SHORT)
        number = chat.append({"role": "user", "content": fact(self._said)})
        # It may have been swept away, and begun anew.
        assert number == 1 or (before and number == self._length + 1), (number, self._length)
        self._length = number
        self._said += 1


def summary(messages: list[dict[str, Any]]) -> str:
    """What a model would make of them."""
    return f"{len(messages)} messages were left out."


# -- the life of one store -------------------------------------------------------------------------


class Life:
    """A store in use. What it holds is finished, saved elsewhere and cleared every few rounds."""

    def __init__(self, url: str, directory: Path, rng: Random) -> None:
        self.url = url
        self.kills = self.eras = self._acked = 0
        self._directory = directory
        self._rng = rng
        self._notes = Notes()
        self._begin()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._store = stack.enter_context(limpet.open(self.url))
            self._chores = Chores(self._store, Random(self._rng.random()))
            self._over = threading.Event()
            thread = stack.enter_context(ThreadPoolExecutor(1))
            stack.callback(self._over.set)
            self._doing = thread.submit(self._do_chores)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        if error[0] is None:
            self._doing.result()

    def _do_chores(self) -> None:
        while not self._over.wait(0.02):
            with self._chores.lock:
                self._chores.one()

    def _begin(self) -> None:
        self._talk = Talk(self.url)
        self._work = Work(self.url, f"{self._directory}/side-{self.eras}")

    @property
    def operations(self) -> int:
        """How many writes were acknowledged, and chores done."""
        return self._acked + self._chores.done

    def size(self) -> int:
        """Bytes of its files."""
        found = 0
        for path in self._directory.rglob("*"):
            try:
                found += path.stat().st_size
            except FileNotFoundError:  # just removed
                continue
        return found

    def round(self) -> None:
        """Start processes, kill each, and look at what is left."""
        rng = self._rng
        programs = [
            self._talk.program("ann", "ben", way=rng.choice((talk, talk_async, visit))),
            self._work.program("team", way=rng.choice((work, work_async))),
            self._work.program("team", way=rng.choice((work, work_async))),
            Program("tests.support.endurance:keep", (self.url,)),
        ]
        moments = [Moment.random(rng, acks=60, seconds=0.5) for _ in programs]
        talked, *worked, noted = crash(programs, moments, patience=600)
        self.kills += sum(one.killed for one in (talked, *worked, noted))
        self._acked += sum(len(one.acked) for one in (talked, *worked, noted))
        self._talk.learn([talked])
        self._work.learn(worked)
        self._notes.learn(noted.acked)
        self._check(self._store)  # it has not written any of that, and knew something older
        if rng.random() < 0.5:
            with limpet.open(self.url) as store:
                self._check(store)
        if self._doing.done():
            self._doing.result()

    def _check(self, store: limpet.Store) -> None:
        assert self._talk.check(store) == 0, "acknowledged turns are lost"
        assert self._work.check(store) == 0, "acknowledged steps are lost"
        self._notes.check(store)

    def close_era(self) -> None:
        """Finish what is begun, save all of it in another place, and clear the store."""
        with self._chores.lock:
            tasks = sorted(self._store.tasks(), key=lambda task: int(task.id.rpartition("-")[2]))
            if tasks:
                newest = int(tasks[-1].id.rpartition("-")[2])
                self._work.learn(run(self._work.program("team", upto=newest), patience=600))
            self._store.conversation(TALK).compact(summary, keep_tokens=500)
            self._check(self._store)
            self._check_backup()
            self._clear([task.id for task in tasks])
        self.eras += 1
        self._begin()

    def _check_backup(self) -> None:
        """A copy, of its own kind or of the other, has it all."""
        for scheme in ("sqlite", "file"):
            target = self._directory.parent / f"backup-{scheme}"
            backup(self.url, f"{scheme}:{target}", replace=True)
            with limpet.open(f"{scheme}:{target}") as copy:
                self._check(copy)

    def _clear(self, tasks: list[str]) -> None:
        store = self._store
        if store.conversation(TALK).length():
            store.conversation(TALK).expire(0.001)
            time.sleep(0.01)
        deleted = {id_: store.task(id_).delete() for id_ in tasks}
        assert all(deleted.values()), deleted
        self._notes.forget_old(store)
        store.sweep()
        left = [(task.id, task.status) for task in store.tasks()]
        assert left == [], f"{left} are there, after {tasks} were deleted"
        assert store.conversation(TALK).messages() == []
        self._notes.check(store)
        assert [fact for fact in store.backend.facts(deep=True) if not fact.ok] == []
        Path(f"{self._directory}/side-{self.eras}").unlink(missing_ok=True)


# -- the whole, and what it took -------------------------------------------------------------------


class Gauge:
    """Memory and descriptors of this process, and the sizes of the stores, minute by minute."""

    def __init__(self) -> None:
        self.series: dict[str, list[float]] = {}

    def read(self, lives: Sequence[Life]) -> str:
        """Note them, and say how they are."""
        with Path("/proc/self/statm").open() as file:
            pages = int(file.read().split()[1])
        now = {
            "memory, MB": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "threads": threading.active_count(),
        }
        for life in lives:
            now[f"{life.url.partition(':')[0]}, MB"] = life.size() / 1e6
        for name, value in now.items():
            self.series.setdefault(name, []).append(value)
        return " · ".join(f"{name} {value:.1f}" for name, value in now.items())

    def growing(self) -> list[str]:
        """What was clearly more in the last quarter than in the second, which is past the start."""
        found = []
        for name, values in self.series.items():
            quarter = len(values) // 4
            before = max(values[quarter : 2 * quarter], default=0)
            after = max(values[len(values) - quarter :], default=0)
            if quarter and after > 1.25 * before + 2:
                found.append(f"{name}: {before:.1f}, then {after:.1f}")
        return found


@contextmanager
def all_at_once(directory: Path, rng: Random) -> Iterator[list[Life]]:
    """The stores, open."""
    with ExitStack() as stack:
        lives = []
        for scheme in ("sqlite", "file"):
            place = directory / scheme
            place.mkdir(parents=True)
            life = Life(f"{scheme}:{place}/agents", place, rng)
            lives.append(stack.enter_context(life))
        yield lives


def main(directory: Path, minutes: float) -> None:
    """Live for so many minutes, and say how that was."""
    os.environ["LIMPET_CACHE"] = f"{directory}/cache"
    began, gauge, said = time.monotonic(), Gauge(), 0
    with seeded() as rng, all_at_once(directory, rng) as lives:
        while (passed := (time.monotonic() - began) / 60) < minutes:
            for _ in range(ROUNDS):
                for life in lives:
                    life.round()
                passed = (time.monotonic() - began) / 60
                if passed >= said + 1:
                    said = int(passed)
                    done = " · ".join(
                        f"{life.url.partition(':')[0]} {life.operations:,} operations, "
                        f"{life.kills:,} kills, {life.eras} eras"
                        for life in lives
                    )
                    print(f"{said} min: {done} · {gauge.read(lives)}", flush=True)
            for life in lives:
                life.close_era()
        kills, operations = (sum(getattr(x, n) for x in lives) for n in ("kills", "operations"))
    growing = gauge.growing()
    print(
        f"{passed:.0f} minutes, {operations:,} operations, {kills:,} kills: nothing acknowledged "
        f"was lost, and {'these grew: ' + '; '.join(growing) if growing else 'nothing grew'}."
    )
    sys.exit(bool(growing))


if __name__ == "__main__":
    home = Path(sys.argv[1]).absolute()
    shutil.rmtree(home, ignore_errors=True)
    main(home, float(sys.argv[2]))
