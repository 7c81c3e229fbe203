"""The crash matrix: a task with every kind of step, killed at each of its write boundaries.

``python -m tests.support.matrix URL sync`` prints a line a boundary, then one with the sum. It
forks for each run, so that hundreds of them take seconds.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import limpet
from limpet import Retry, TaskWaiting, current_step
from limpet.core.runtime import run_to_end
from limpet.testing.boundaries import Boundaries
from tests.support.processes import in_a_process

if TYPE_CHECKING:
    from collections.abc import Callable

GOAL = "Do one of each"
AT_ONCE = Retry(attempts=3, wait=0)
ONCE = ("verified", "asked", "effect", "paid")
KEPT = "".join(f"{n * 7919 % 100003}" for n in range(4000))


class World:
    """What a task has an effect on: a file that says which step's body ran, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def ran(self, name: str, result: Any = None) -> Any:
        """The body of a step."""
        with self.path.open("a") as file:
            file.write(f"{name}\n")
        return name.upper() if result is None else result

    def runs(self) -> Counter[str]:
        """How often each body ran."""
        return Counter(self.path.read_text().split() if self.path.exists() else [])

    def happened(self, key: str) -> str | None:
        """What a user's verify function finds out."""
        name = key.rpartition(":")[2]
        return name.upper() if self.runs()[name] else None


class Job:
    """The task, as a user would write it."""

    def __init__(self, world: World, *, transactions: bool) -> None:
        self.world = world
        self.transactions = transactions

    async def run(self, task: Any, call: Callable[[Any], Any]) -> dict[str, Any]:
        """Everything once; *call* awaits what an async task returns."""
        ran, world = self.world.ran, self.world
        await call(task.plan(["first", "second"]))
        for step in task.remaining():
            await call(step.run(ran, step.name))
        await call(task.decide("go on", because="all is well"))
        await call(task.step("plain", ran, "plain"))
        await call(task.step("retried", self.flaky, retry=AT_ONCE))
        await call(task.step("verified", ran, "verified", verify=world.happened))
        await call(task.step("asked", ran, "asked", in_doubt="ask"))
        await call(task.step("skipped", ran, "skipped", in_doubt="skip"))
        await call(task.step("reporting", self.report))
        await call(task.step("large", ran, "large", KEPT))
        await call(task.plan.insert("third", because="there is more to do"))
        for step in task.remaining():
            await call(step.run(ran, step.name))
        await call(task.wait_for("approval", block=0))
        await call(task.sleep(0.001))
        await self.child(task, call)
        if self.transactions:
            await call(task.transaction("paid", self.pay))
        await call(task.discover("it works"))
        results = await call(task.load())
        results["skipped"] = "either way"  # in doubt, it is left out
        results["large"] = results["large"] == KEPT
        return dict(results)

    def flaky(self) -> str:
        """It fails the first time."""
        self.world.ran("retried")
        if current_step().attempt == 1:
            raise ConnectionError
        return "RETRIED"

    def report(self) -> str:
        """It says how far it has come."""
        self.world.ran("reporting")
        current_step().progress(0.5, "half", now=True)
        return "REPORTING"

    async def child(self, task: Any, call: Callable[[Any], Any]) -> None:
        """A task within the task."""
        if isinstance(task, limpet.Task):
            task.child("child", lambda child: child.step("inner", self.world.ran, "inner"))
        else:

            async def work(child: Any) -> Any:
                return await child.step("inner", self.world.ran, "inner")

            await call(task.child("child", work))

    def pay(self, connection: Any) -> str:
        """A row of the user's own."""
        connection.execute("INSERT INTO paid VALUES ('paid')")
        return "PAID"


# -- one run, in a process of its own --------------------------------------------------------------


def run(url: str, face: str, world: World, kill_at: int | None) -> tuple[str, list[str]]:
    """Run the task, or what is left of it. How it ended, and the boundaries it passed."""
    return (
        asyncio.run(_async(url, world, kill_at)) if face == "async" else _sync(url, world, kill_at)
    )


def _sync(url: str, world: World, kill_at: int | None) -> tuple[str, list[str]]:
    with limpet.open(url) as store:
        job = Job(world, transactions=store.backend.transactional)
        boundaries = Boundaries(store.backend, kill_at)

        async def call(value: Any) -> Any:
            return value

        try:
            with store.task("t") as task:
                if not task.done:
                    task.finish(run_to_end(job.run(task, call)))
                return json.dumps(task.outcome, sort_keys=True), boundaries.passed
        except TaskWaiting as waiting:
            return f"waits for {waiting.waits_for}", boundaries.passed


async def _async(url: str, world: World, kill_at: int | None) -> tuple[str, list[str]]:
    async with limpet.open_async(url) as store:
        job = Job(world, transactions=store.backend.transactional)
        boundaries = Boundaries(store.backend, kill_at)

        async def call(value: Any) -> Any:
            return await value

        try:
            async with store.task("t") as task:
                if not task.done:
                    await task.finish(await job.run(task, call))
                return json.dumps(task.outcome, sort_keys=True), boundaries.passed
        except TaskWaiting as waiting:
            return f"waits for {waiting.waits_for}", boundaries.passed


# -- one boundary ----------------------------------------------------------------------------------


class Trial:
    """A task in a fresh place, run to its end whatever happens to it."""

    def __init__(self, url: str, face: str, world: World) -> None:
        self.url = url
        self.face = face
        self.world = world
        self.asked = False

    def prepare(self) -> list[str]:
        """The task is there, with what it will wait for; the user's table is empty."""
        with limpet.open(self.url) as store:
            for kind in ("task", "task-result"):
                for id_ in ("t", "t/child"):
                    store.journal(kind, id_).delete()
            with store.task("t", GOAL):
                store.signal("t", "approval", "yes")
            if store.backend.transactional:
                with store.backend.transaction() as made:
                    made.connection.execute("CREATE TABLE IF NOT EXISTS paid (what TEXT)")
                    made.connection.execute("DELETE FROM paid")
                    made.append(store.journal("note", "made")._core.request([("made", None)]))
        self.world.path.unlink(missing_ok=True)
        return []

    def run(self, kill_at: int | None = None) -> tuple[int, Any]:
        """One process at it."""
        return in_a_process(lambda: run(self.url, self.face, self.world, kill_at))

    def finish(self) -> str:
        """Go on until it is done; be the person that it asks."""
        while True:
            _, (how, _) = self.run()
            if not how.startswith("waits for"):
                return str(how)
            assert how == "waits for asked", how
            self.asked = True
            in_a_process(self.answer)

    def answer(self) -> list[str]:
        """Look whether the step happened, and say so."""
        happened = self.world.happened("asked")
        with limpet.open(self.url) as store:
            how = "retry" if happened is None else "done"
            store.resolve("t", "asked", how, result=happened, by="the matrix")
        return []

    def recorded(self) -> list[str]:
        """The steps that are on record."""
        with limpet.open(self.url) as store:
            found = list(store.task("t").checkpoint().results)
            if store.journal("task", "t/child").head() is not None:
                found += store.task("t/child").checkpoint().results
        return found

    def payments(self) -> list[int]:
        """How many rows of the user's there are."""
        with limpet.open(self.url) as store:
            if not store.backend.transactional:
                return [1]
            with store.backend.transaction() as looking:
                rows = list(looking.connection.execute("SELECT count(*) FROM paid"))
                looking.append(store.journal("note", "made")._core.request([("looked", None)]))
        return [int(rows[0][0])]


def check(trial: Trial, kill_at: int, expected: str) -> str:
    """Kill the task at one boundary, let it be resumed, and say what came of it."""
    trial.asked = False
    in_a_process(trial.prepare)
    code, _ = trial.run(kill_at)
    assert code == signal.SIGKILL, f"boundary {kill_at} was not reached"
    before = Counter(trial.world.runs())
    _, recorded = in_a_process(trial.recorded)
    outcome = trial.finish()
    runs = trial.world.runs()
    assert outcome == expected, f"the outcome is {outcome}, not {expected}"
    again = [name for name in recorded if runs[name] != before[name]]
    assert not again, f"finished, and run again: {again}"
    assert runs["verified"] == 1, f"verified ran {runs['verified']} times"
    assert runs["asked"] == 1, f"asked ran {runs['asked']} times"
    assert in_a_process(trial.payments)[1] == [1], "paid twice, or not at all"
    twice = [name for name, count in runs.items() if count > 1 + (name == "retried")]
    return ("asked a person; " if trial.asked else "") + (
        f"ran again: {', '.join(twice)}" if twice else "nothing ran twice"
    )


def main(url: str, face: str) -> int:
    """The matrix of one backend through one face."""
    limpet.open(url).close()  # its driver is imported here, not in each process
    directory = tempfile.mkdtemp(prefix="matrix-")
    trial = Trial(url, face, World(Path(directory) / "world"))
    try:
        in_a_process(trial.prepare)
        _, (expected, passed) = trial.run()
        assert not expected.startswith("waits"), expected
        failures = 0
        for number, moment in enumerate(passed, 1):
            try:
                verdict = check(trial, number, expected)
            except AssertionError as error:
                failures += 1
                verdict = f"FAILED: {error}"
            print(f"{number:3} {moment:28} {verdict}", flush=True)
        print(f"{len(passed)} boundaries, {failures} failures")
    finally:
        shutil.rmtree(directory)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
