"""What the workers of engines run in the tests, and the workers themselves.

A task of kind "story" has three steps that note themselves in a file, one line a call; what else
happens is in its input.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpet.workers.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

    from limpet import Task
    from limpet.workers.celery import Tasks

__all__ = ["Diary", "celery_tasks", "registry"]

registry = Registry()


class Diary:
    """A directory in which steps note that they ran, and by which tests hold them up."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, step: str) -> str:
        """Add a line. The lines of several processes do not mix: each is one write."""
        with (self.path / "steps").open("a") as file:
            file.write(f"{step} {os.getpid()}\n")
        return step

    def lines(self) -> list[list[str]]:
        """Step and process of every call."""
        path = self.path / "steps"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def steps(self) -> list[str]:
        """Which steps were called."""
        return [step for step, _ in self.lines()]

    def kill(self, step: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End the process that was last in *step*."""
        pid = next(int(pid) for name, pid in reversed(self.lines()) if name == step)
        os.kill(pid, number)

    def hold_up(self, step: str) -> None:
        """From now on, whoever is in *step* stays there, until `let_go`."""
        (self.path / f"{step}.held").touch()

    def let_go(self, step: str) -> None:
        """Those who come to *step*, or are there, may go on. Or the dead are past."""
        (self.path / f"{step}.held").unlink()

    def spoil(self, step: str) -> None:
        """From now on *step* fails, until `mend`."""
        (self.path / f"{step}.spoilt").touch()

    def mend(self, step: str) -> None:
        """It does not fail any more."""
        (self.path / f"{step}.spoilt").unlink()

    def check(self, step: str) -> None:
        """Fail, if that is wanted."""
        if (self.path / f"{step}.spoilt").exists():
            raise ValueError(f"{step} went wrong")

    def stay(self, step: str) -> None:
        """Be held up, if that is wanted."""
        while (self.path / f"{step}.held").exists():
            time.sleep(0.02)


@registry.task("story", lease=3)
def story(task: Task) -> dict[str, Any]:
    """Three steps; between the last two it may wait for a word, or for a while."""
    wishes: Mapping[str, Any] = task.input
    diary = Diary(Path(wishes["diary"]))

    def step(name: str) -> str:
        diary.note(name)
        diary.stay(name)
        diary.check(name)
        return name

    done = [task.step(name, step, name) for name in ("one", "two")]
    if "sleeps" in wishes:
        task.sleep(wishes["sleeps"], block=0)
    answer = task.wait_for("word") if wishes.get("asks") else None
    return {"steps": [*done, task.step("three", step, "three")], "answer": answer}


# -- workers: `python -m tests.support.dispatched ENGINE …`


def celery_tasks(broker: str, queue: str, url: str) -> tuple[Celery, Tasks]:
    """The app of workers and callers, and what starts tasks."""
    from celery import Celery  # noqa: PLC0415 - other workers have no Celery

    from limpet.workers.celery import register  # noqa: PLC0415

    app = Celery("tests", broker=broker, backend=broker, set_as_current=False)
    app.conf.update(
        task_default_queue=queue,
        broker_connection_retry_on_startup=True,
        # Seconds after which a message of a worker that is gone is another's.
        broker_transport_options={
            "visibility_timeout": 3,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
    )
    return app, register(app, registry, url)


def celery(broker: str, queue: str, url: str) -> None:
    """Be a Celery worker with two processes, until SIGTERM."""
    app, _ = celery_tasks(broker, queue, url)
    app.worker_main(["worker", "--concurrency=2", "--loglevel=info", "--without-mingle"])


def temporal(address: str, queue: str, url: str) -> None:
    """Be a Temporal worker, until SIGTERM."""
    asyncio.run(_temporal(address, queue, url))


async def _temporal(address: str, queue: str, url: str) -> None:
    from temporalio.client import Client  # noqa: PLC0415 - other workers have no Temporal
    from temporalio.worker import Worker  # noqa: PLC0415

    from limpet.workers.temporal import TaskWorkflow, activities  # noqa: PLC0415

    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with Worker(
        await Client.connect(address),
        task_queue=queue,
        workflows=[TaskWorkflow],
        activities=activities(registry, url),
        # Or Temporal waits ten seconds for a worker that had the workflow in its memory, and died.
        max_cached_workflows=0,
    ):
        print("ready", flush=True)
        await over.wait()


if __name__ == "__main__":
    {"celery": celery, "temporal": temporal}[sys.argv[1]](*sys.argv[2:])
