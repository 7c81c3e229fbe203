"""Processes that are stopped in the middle of their work, and rivals that take over meanwhile.

A `Worker` is a process of its own, with a clock of its own, that does to a store what it is told::

    with Worker() as late, Worker(ahead=3600) as rival:
        late.do("open", url)
        rival.do("open", url)
        late.do("acquire", 0.2)
        late.stop()
        rival.do("acquire", 60, wait=30)
        late.tell("append", "too late")  # it hears of it when it goes on
        late.go_on()
        with pytest.raises(LeaseLost):
            late.hear()

What it can do are the methods of `Actions`. An error there is raised here, as its class.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

import limpet
from limpet import errors
from limpet.backends.contract import Append, Key, Lease
from limpet.errors import LeaseHeld, LeaseLost, LimpetError

if TYPE_CHECKING:
    from typing import Self

__all__ = ["GOAL", "KEY", "TASK", "Actions", "Worker", "main"]

#: What they work on: a journal, and a task.
KEY = Key("default", "note", "shared")
TASK = "report"
GOAL = "Summarise open incidents"

# The clock is set before anything else is imported: whoever asks for the time gets the wrong one.
# Durations are right, as they are on a machine whose clock was set wrongly long ago.
_START = """
import time

def shifted(clock, by):
    return lambda: clock() + by

time.time = shifted(time.time, {ahead})
time.time_ns = shifted(time.time_ns, {ahead} * 10**9)

from limpet.testing.takeover import main
main()
"""


class Worker:
    """A process that does as it is told, one thing at a time; its clock is *ahead* by seconds."""

    def __init__(self, *, ahead: int = 0, patience: float = 60) -> None:
        self.busy = False
        self._patience = patience
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(ahead=ahead)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def do(self, what: str, *args: Any, **kwargs: Any) -> Any:
        """Let it do something, and wait for what comes of it."""
        self.tell(what, *args, **kwargs)
        return self.hear()

    def tell(self, what: str, *args: Any, **kwargs: Any) -> None:
        """Tell it what to do. If it is stopped, it hears of it when it goes on."""
        assert not self.busy, "it has not said yet what came of the last thing"
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode([what, args, kwargs]) + b"\n")
        self._process.stdin.flush()
        self.busy = True

    def hear(self) -> Any:
        """What came of the last thing that it was told to do."""
        pipe = self._process.stdout
        assert pipe is not None
        assert select.select([pipe], [], [], self._patience)[0], "it does not come to an end"
        line = pipe.readline()
        assert line, "it died; its last words are on stderr"
        self.busy = False
        error, answer = msgspec.json.decode(line)
        if error is not None:
            raise _named(error, answer)
        return answer

    def stop(self) -> None:
        """Let it stand still, wherever it is: SIGSTOP. On return it does."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def go_on(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def _named(name: str, message: str) -> Exception:
    """The error that the worker has met, as far as a class and a message go."""
    kind = getattr(errors, name, None)
    if kind is None:
        return AssertionError(f"{name}: {message}")
    error: Exception = kind.__new__(kind, message)
    error.args = (message,)
    return error


def main() -> None:
    """Be a worker."""
    hands = Actions()
    for line in sys.stdin.buffer:
        what, args, kwargs = msgspec.json.decode(line)
        try:
            answer: list[Any] = [None, getattr(hands, what)(*args, **kwargs)]
        except Exception as error:  # noqa: BLE001 - for the one who told us to
            answer = [type(error).__name__, str(error)]
        os.write(1, msgspec.json.encode(answer) + b"\n")


class Actions:
    """What a worker can do."""

    def __init__(self) -> None:
        self._store: limpet.Store | None = None
        self._lease: Lease | None = None
        self._task: limpet.Task | None = None
        self._ran: list[str] = []

    @property
    def store(self) -> limpet.Store:
        """The store that is open."""
        assert self._store is not None
        return self._store

    def open(self, url: str, environment: dict[str, str] | None = None) -> None:
        """Open a store, in this *environment*."""
        os.environ.update(environment or {})
        self._ran.clear()
        self._store = limpet.open(url)

    def close(self) -> None:
        """Close what is open, and forget it."""
        if self._store is not None:
            self._store.close()
        self.__init__()  # type: ignore[misc]  # as if it were new

    # -- a journal -----------------------------------------------------------------------------

    def acquire(self, ttl: float, *, wait: float = 0, dead: bool = False) -> int:
        """Take the lease within *wait* seconds, or at once if its holder is said to be *dead*.

        Returns its epoch.
        """
        deadline, over = time.monotonic() + wait, None
        while True:
            try:
                self._lease = self.store.backend.acquire(KEY, self._name(), ttl, over=over)
            except LeaseHeld as held:
                if dead and over is None:
                    over = held.epoch
                elif time.monotonic() > deadline:
                    raise
                else:
                    time.sleep(0.02)
            else:
                return self._lease.epoch

    def renew(self, ttl: float) -> None:
        """Renew the lease."""
        self._lease = self.store.backend.renew(KEY, self._held(), ttl)

    def release(self) -> None:
        """Give the lease up."""
        self.store.backend.release(KEY, self._held())

    def append(self, body: str) -> int:
        """Append under the lease."""
        return self._append(body, self._held().epoch)

    def append_freely(self, body: str) -> int:
        """Append under no lease."""
        return self._append(body, None)

    def append_on(self, name: str, most: int = 100_000) -> int:
        """Append under the lease until that is refused; how many were acknowledged."""
        for number in range(most):
            try:
                self.append(f"{name}-{number}")
            except LeaseLost:
                return number
        raise AssertionError("it was never refused")

    def delete(self) -> bool:
        """Remove the journal."""
        return self.store.backend.delete(KEY)

    def bodies(self) -> list[str]:
        """What is in the journal."""
        return [record.body.decode() for record in self.store.backend.read(KEY, limit=100_000)]

    def holder(self) -> str | None:
        """Who has the lease."""
        head = self.store.backend.head(KEY)
        return head.lease.holder if head and head.lease else None

    def _append(self, body: str, epoch: int | None) -> int:
        request = Append(key=KEY, body=body.encode(), count=1, epoch=epoch)
        return self.store.backend.append(request).seq

    def _held(self) -> Lease:
        assert self._lease is not None
        return self._lease

    @staticmethod
    def _name() -> str:
        return f"process {os.getpid()}"

    # -- a task --------------------------------------------------------------------------------

    def begin(self, *, lease: float = 60, wait: float = 0, goal: str = GOAL) -> dict[str, Any]:
        """Open the task; what is done of it."""
        self._task = self.store.task(TASK, goal, lease=lease, wait=wait)
        try:
            self._task.__enter__()
        except LimpetError:
            self._task = None
            raise
        return self._task.results

    def step(self, name: str) -> str:
        """Do a step, whose result is its name."""
        return str(self._opened().step(name, self._run, name))

    def _run(self, name: str) -> str:
        self._ran.append(name)
        return name

    def ran(self) -> list[str]:
        """The steps whose function was called in this process."""
        return self._ran

    def finish(self, outcome: str) -> str:
        """End the task."""
        return str(self._opened().finish(outcome))

    def leave(self) -> None:
        """Leave the ``with`` block of the task."""
        task, self._task = self._opened(), None
        task.__exit__(None, None, None)

    def notice(self, within: float = 30) -> str:
        """Wait until the one who renews the lease has noticed that it is lost; by which error."""
        held = self._opened()._core._own()  # noqa: SLF001 - nobody else is told
        deadline = time.monotonic() + within
        while not isinstance(held.lost, LeaseLost):
            assert time.monotonic() < deadline, f"it has not noticed: {held.lost!r}"
            time.sleep(0.01)
        return type(held.lost).__name__

    def results(self) -> dict[str, Any]:
        """What is done of the task, for everybody to see."""
        return self.store.task(TASK).checkpoint().results

    def entries(self) -> list[str]:
        """The types of all entries of the task."""
        return [entry.type for entry in self.store.journal("task", TASK).read()]

    def delete_task(self) -> bool:
        """Remove the task."""
        return self.store.task(TASK).delete()

    def _opened(self) -> limpet.Task:
        assert self._task is not None
        return self._task
