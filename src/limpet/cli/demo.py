"""``limpet demo``: an agent is killed in the middle of a step, and carries on."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

import click

import limpet
from limpet.cli.demo_agent import CHAT, SCRIPT, TASK
from limpet.cli.demo_story import Evidence, Finding, Story, judge
from limpet.cli.demo_view import LiveView, PlainView, conclude, introduce
from limpet.cli.errors import Failure
from limpet.cli.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["demo"]

STEPS = [turn.step for turn in SCRIPT]

#: The step in the middle of which the agent is killed.
VICTIM = STEPS[2]

#: Seconds that a tool takes, and that the demo rests where there is something to see.
PACE = 0.7
FAST = 0.02

#: An agent that takes longer than this will not come to an end.
PATIENCE = 60.0

INTERRUPTED = 130


@click.command(short_help="Watch an agent get killed and carry on.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Where to put the store. [default: a new temporary directory]",
)
@click.option("--fast", is_flag=True, help="Do not wait for anybody to watch.")
def demo(*, directory: str | None, fast: bool) -> None:
    """Watch an agent get killed in the middle of a step, and carry on.

    Takes some seconds. The agent runs in a process of its own, on a new SQLite store; it is killed
    with SIGKILL and started again. Its model is a script: there is no key and no network. Exit code
    1 if a finished step ran twice or an acknowledged message was lost.
    """
    place = Place(directory)
    screen = Screen()
    introduce(screen)
    try:
        story = perform(place, screen, FAST if fast else PACE)
    except KeyboardInterrupt:
        place.leave()
        Screen(stderr=True).line("Stopped. Nothing of it is left running.")
        raise click.exceptions.Exit(INTERRUPTED) from None
    findings = list(judge(STEPS, story, gather(place)))
    conclude(screen, story, findings)
    _next(screen, place)
    _answer_for(findings)


class Place:
    """The directory of a demo: a store, the file of executions, what the agent complained of."""

    def __init__(self, directory: str | None) -> None:
        self._ours = directory is None
        self.directory = directory or tempfile.mkdtemp(prefix="limpet-demo-")
        os.makedirs(self.directory, exist_ok=True)
        self.store = os.path.join(self.directory, "demo.db")
        self.log = os.path.join(self.directory, "executions.log")
        self.complaints = os.path.join(self.directory, "agent.log")
        for path in (self.store, self.log):
            if os.path.exists(path):
                msg = f"There was a demo in {self.directory} already. Name another directory."
                raise click.BadParameter(msg, param_hint="--dir")

    def leave(self) -> None:
        """Remove a directory that was made for this, after a demo that did not come to its end."""
        if self._ours:
            shutil.rmtree(self.directory, ignore_errors=True)


# -- the play --------------------------------------------------------------------------------------


def perform(place: Place, screen: Screen, pace: float) -> Story:
    """Start the agent, kill it in the middle of `VICTIM`, start it again, and let it finish."""
    story = Story()
    view = (LiveView if screen.terminal else PlainView)(screen, STEPS, story)
    with view:
        play(place, view, pace, kill_in=VICTIM)
        time.sleep(2 * pace)
        play(place, view, pace)
        time.sleep(pace)
    return story


def play(place: Place, view: PlainView, pace: float, kill_in: str | None = None) -> None:
    """One run of the agent: to its end, or until it is killed while it waits for a tool."""
    with agent(place) as (child, events):
        view.story.begin(child.pid)
        view.started()
        for event in events:
            view.story.take(event)
            view.changed()
            if event["event"] != "waiting":
                continue
            time.sleep(pace)
            if event["step"] == kill_in:
                child.kill()
                if child.wait() != -signal.SIGKILL:
                    raise _failed(place)
                view.story.kill()
                view.killed()
                return
            _let_go_on(child)
        if child.wait() != 0 or kill_in is not None:
            raise _failed(place)


@contextmanager
def agent(place: Place) -> Iterator[tuple[subprocess.Popen[str], Iterator[dict[str, Any]]]]:
    """A process of the agent, and what it tells. Whatever happens, it does not outlive this."""
    command = [sys.executable, "-m", "limpet.cli.demo_agent", place.store, place.log]
    with open(place.complaints, "ab") as complaints:
        child = subprocess.Popen(  # noqa: S603 - our own agent
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            encoding="utf-8",
        )
    watchdog = threading.Timer(PATIENCE, child.kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield child, _events(child.stdout)
    finally:
        watchdog.cancel()
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def _events(pipe: IO[str] | None) -> Iterator[dict[str, Any]]:
    for line in pipe or ():
        if line.endswith("\n"):  # else it ended in the middle of a word
            yield json.loads(line)


def _let_go_on(child: subprocess.Popen[str]) -> None:
    if child.stdin is not None:
        with suppress(BrokenPipeError):  # it has ended by itself, and we are about to find out
            child.stdin.write("\n")
            child.stdin.flush()


def _failed(place: Place) -> Failure:
    with open(place.complaints, encoding="utf-8", errors="replace") as file:
        last = file.read().rstrip().rpartition("\n")[2]
    return Failure(f"The agent ended by itself. {last}\nMore is in {place.complaints}")


# -- what came of it -------------------------------------------------------------------------------


def gather(place: Place) -> Evidence:
    """Look at the file of executions and, with eyes of our own, at the store."""
    with open(place.log, encoding="utf-8") as file:
        log = [line.strip() for line in file]
    with limpet.open(place.store, create=False, readonly=True) as store:
        task = store.task(TASK)
        task.checkpoint()
        return Evidence(log, store.conversation(CHAT).messages(), task.status, task.outcome)


def _answer_for(findings: list[Finding]) -> None:
    broken = [finding.text for finding in findings if not finding.kept]
    if broken:
        raise Failure("A promise was broken: " + "; ".join(broken), "This should not happen")


def _next(screen: Screen, place: Place) -> None:
    """What to try next."""
    name = _command()
    screen.line()
    screen.line(("Try next", "bold"), " (README.md shows the same for an agent of your own)")
    store = os.path.abspath(place.store)
    lines = [
        f"export LIMPET_URL={shlex.quote(store)}",
        f"{name} ls",
        f"{name} show {TASK}",
        f"{name} tail {TASK}",
        f"{name} doctor",
    ]
    for line in lines:
        screen.verbatim(f"  {line}")


def _command() -> str:
    """How to call ourselves from the shell that called us."""
    script = os.path.join(os.path.dirname(sys.executable), "limpet")
    if not os.path.exists(script):
        return f"{shlex.quote(sys.executable)} -m limpet"
    known = shutil.which("limpet")
    if known and os.path.samefile(known, script):
        return "limpet"
    return shlex.quote(min(script, os.path.relpath(script), key=len))
