"""``limpet demo``: an agent is killed in the middle of a step, and carries on.

What happened is a `Story`, reported by the agent; whether that is what Limpet promises, `judge`
finds out from what is there afterwards. A terminal gets a live table, a pipe plain lines.
"""

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
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import click
from msgspec import Struct, field
from rich.console import Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

import limpet
from limpet.cli.demo_agent import CHAT, SCRIPT, TASK
from limpet.cli.options import Failure
from limpet.cli.output import Screen
from limpet.views.messages import parts, role
from limpet.views.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from rich.console import RenderableType

__all__ = ["Evidence", "Finding", "Run", "Story", "demo", "judge"]

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
    files = DemoFiles(directory)
    screen = Screen()
    screen.line(("An agent is killed in the middle of a step, and carries on.", "bold"))
    screen.line("The model is a script: no key, no network. Process, kill and disk are real.")
    screen.line()
    try:
        story = perform(files, screen, FAST if fast else PACE)
    except KeyboardInterrupt:
        files.leave()
        Screen(stderr=True).line("Stopped. Nothing of it is left running.")
        raise click.exceptions.Exit(INTERRUPTED) from None
    findings = list(judge(STEPS, story, gather(files)))
    screen.line()
    for finding in findings:
        mark, style = ("✓", "green") if finding.kept else ("✗", "bold red")
        screen.hanging(Text.assemble((f"{mark} ", style), finding.text), indent=2)
    if story.answer:
        screen.line()
        screen.block(story.answer, indent=8, first="Answer:")
    name = own_command()
    screen.line()
    screen.line(("Try next", "bold"), " (README.md shows the same for an agent of your own)")
    for line in (
        f"export LIMPET_URL={shlex.quote(os.path.abspath(files.store))}",
        f"{name} ls",
        f"{name} show {TASK}",
        f"{name} tail {TASK}",
        f"{name} doctor",
    ):
        screen.verbatim(f"  {line}")
    broken = [finding.text for finding in findings if not finding.kept]
    if broken:
        raise Failure("A promise was broken: " + "; ".join(broken), "This should not happen")


def own_command() -> str:
    """How to call ourselves from the shell that called us."""
    script = os.path.join(os.path.dirname(sys.executable), "limpet")
    if not os.path.exists(script):
        return f"{shlex.quote(sys.executable)} -m limpet"
    known = shutil.which("limpet")
    if known and os.path.samefile(known, script):
        return "limpet"
    return shlex.quote(min(script, os.path.relpath(script), key=len))


class DemoFiles:
    """The directory of a demo: a store, the file of executions, the agent's standard error."""

    def __init__(self, directory: str | None) -> None:
        self._ours = directory is None
        self.directory = directory or tempfile.mkdtemp(prefix="limpet-demo-")
        os.makedirs(self.directory, exist_ok=True)
        self.store = os.path.join(self.directory, "demo.db")
        self.log = os.path.join(self.directory, "executions.log")
        self.errors = os.path.join(self.directory, "agent.log")
        for path in (self.store, self.log):
            if os.path.exists(path):
                msg = f"There was a demo in {self.directory} already. Name another directory."
                raise click.BadParameter(msg, param_hint="--dir")

    def leave(self) -> None:
        """Remove a directory that was made for this, after a demo that did not come to its end."""
        if self._ours:
            shutil.rmtree(self.directory, ignore_errors=True)


# -- both runs -------------------------------------------------------------------------------------


def perform(files: DemoFiles, screen: Screen, pace: float) -> Story:
    """Start the agent, kill it in the middle of `VICTIM`, start it again, and let it finish."""
    story = Story()
    view = (LiveView if screen.terminal else PlainView)(screen, STEPS, story)
    with view:
        play(files, view, pace, kill_in=VICTIM)
        time.sleep(2 * pace)
        play(files, view, pace)
        time.sleep(pace)
    return story


def play(files: DemoFiles, view: PlainView, pace: float, kill_in: str | None = None) -> None:
    """One run of the agent: to its end, or until it is killed while it waits for a tool."""
    with agent(files) as (child, events):
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
                    raise _failed(files)
                view.story.kill()
                view.killed()
                return
            if child.stdin is not None:
                with suppress(BrokenPipeError):  # it has ended by itself, as we are about to see
                    child.stdin.write("\n")  # the tool answers
                    child.stdin.flush()
        if child.wait() != 0 or kill_in is not None:
            raise _failed(files)


@contextmanager
def agent(files: DemoFiles) -> Iterator[tuple[subprocess.Popen[str], Iterator[dict[str, Any]]]]:
    """A process of the agent, and the events it reports. It does not outlive this in any case."""
    command = [sys.executable, "-m", "limpet.cli.demo_agent", files.store, files.log]
    with open(files.errors, "ab") as errors:
        child = subprocess.Popen(  # noqa: S603 - our own agent
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
        )
    watchdog = threading.Timer(PATIENCE, child.kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        lines = child.stdout or ()
        # A line that was not ended was cut short by the kill.
        yield child, (json.loads(line) for line in lines if line.endswith("\n"))
    finally:
        watchdog.cancel()
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def _failed(files: DemoFiles) -> Failure:
    with open(files.errors, encoding="utf-8", errors="replace") as file:
        last = file.read().rstrip().rpartition("\n")[2]
    return Failure(f"The agent ended by itself. {last}\nMore is in {files.errors}")


# -- what came of it -------------------------------------------------------------------------------


def gather(files: DemoFiles) -> Evidence:
    """Look at the file of executions and, with eyes of our own, at the store."""
    with open(files.log, encoding="utf-8") as file:
        log = [line.strip() for line in file]
    with limpet.open(files.store, create=False, readonly=True) as store:
        task = store.task(TASK)
        task.checkpoint()
        return Evidence(log, store.conversation(CHAT).messages(), task.status, task.outcome)


# What became of a step in a run.
RUNNING = "running"
RAN = "ran"
KILLED = "killed here"
SKIPPED = "not repeated"


class Run(Struct):
    """One process: its steps so far, and how soon it had the task."""

    pid: int
    steps: dict[str, str] = field(default_factory=dict)
    took: float | None = None


class Story(Struct):
    """Both runs as the agent reported them; acknowledged messages by their position."""

    runs: list[Run] = field(default_factory=list)
    messages: dict[int, dict[str, Any]] = field(default_factory=dict)
    before_kill: int = 0
    answer: str | None = None

    def begin(self, pid: int) -> None:
        """A process was started."""
        self.runs.append(Run(pid))

    def take(self, event: dict[str, Any]) -> None:
        """Take in an event that the agent reported."""
        run = self.runs[-1]
        match event:
            case {"event": "opened", "done": done, "took": took}:
                run.took = took
                run.steps = dict.fromkeys(done, SKIPPED)
            case {"event": "began", "step": step}:
                run.steps[step] = RUNNING
            case {"event": "done", "step": step}:
                run.steps[step] = RAN
            case {"event": "message", "position": position, "message": message}:
                self.messages[position] = message
            case {"event": "answer", "text": text}:
                self.answer = text

    def kill(self) -> None:
        """The process was killed."""
        run = self.runs[-1]
        run.steps = {
            step: KILLED if state == RUNNING else state for step, state in run.steps.items()
        }
        self.before_kill = len(self.messages)


class Evidence(Struct):
    """What is there afterwards: the lines of the file of executions, and what the store holds."""

    log: list[str]
    messages: list[dict[str, Any]]
    status: str
    outcome: Any


class Finding(Struct, frozen=True):
    """One promise: whether it was kept, and what was seen."""

    kept: bool
    text: str


def judge(steps: Sequence[str], story: Story, evidence: Evidence) -> Iterator[Finding]:
    """Hold what happened against what is promised; numbers are counted, not believed."""
    counts = Counter(evidence.log)
    # Neighbours that fared the same, in one line.
    groups: list[tuple[Finding, list[int]]] = []
    for number, step in enumerate(steps, 1):
        finding = judge_step(step, story, counts)
        if groups and groups[-1][0] == finding:
            groups[-1][1].append(number)
        else:
            groups.append((finding, [number]))
    for finding, numbers in groups:
        one = len(numbers) == 1
        which = f"step {numbers[0]}" if one else f"steps {numbers[0]}-{numbers[-1]}"
        yield Finding(finding.kept, f"{which} {finding.text}")
    planned = counts["planned"]
    yield Finding(planned == 1, f"the plan was made {_times(planned)}")
    stored = evidence.messages
    lost = [
        position
        for position, message in story.messages.items()
        if not 0 < position <= len(stored) or stored[position - 1] != message
    ]
    doubled = len(stored) - len(story.messages)
    if lost or doubled:
        text = f"{len(lost)} acknowledged messages are not there, {doubled} are there twice"
        yield Finding(kept=False, text=text)
    else:
        text = f"{len(stored)} messages, none lost, none twice"
        yield Finding(kept=True, text=f"{text} ({story.before_kill} from before the kill)")
    if evidence.status != "done" or story.answer is None or evidence.outcome != story.answer:
        yield Finding(kept=False, text=f"the task is {evidence.status}, without the answer")


def judge_step(step: str, story: Story, counts: Counter[str]) -> Finding:
    """Whether one step ran as often as it should."""
    began, ended = counts[f"began {step}"], counts[f"ended {step}"]
    first = story.runs[0].steps.get(step)
    if first == KILLED and (began, ended) == (2, 1):
        return Finding(kept=True, text="was cut short, and ran again")
    again = ", and were not repeated" if first == RAN else ""
    if first != KILLED and (began, ended) == (1, 1):
        return Finding(kept=True, text=f"ran once{again}")
    return Finding(kept=False, text=f"ran {_times(began)}, finished {_times(ended)}")


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


# -- how it looks ----------------------------------------------------------------------------------

#: The newest messages that the live view shows.
LINES = 4

_STYLES = {RUNNING: "yellow", RAN: "green", KILLED: "bold red", SKIPPED: "cyan"}
_MARKS = {RAN: "✓ ", KILLED: "✗ ", SKIPPED: "- "}


class PlainView:
    """Each change as a line."""

    def __init__(self, screen: Screen, steps: Sequence[str], story: Story) -> None:
        self.screen = screen
        self.steps = steps
        self.story = story
        self._printed: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""

    def started(self) -> None:
        """A process was started."""
        self._printed.clear()
        number, run = len(self.story.runs), self.story.runs[-1]
        self.screen.line(f"run {number}: the agent starts as process {run.pid}")

    def changed(self) -> None:
        """Something happened in it."""
        run = self.story.runs[-1]
        if run.took is not None and not self._printed and len(self.story.runs) > 1:
            self._printed[""] = SKIPPED
            self.screen.line(f"run {len(self.story.runs)}: it took over in {_duration(run.took)}")
        for step, state in self.story.runs[-1].steps.items():
            if state != RUNNING and self._printed.get(step) != state:
                self._printed[step] = state
                what = _outcome(self.story, step, len(self.story.runs) - 1)
                number = self.steps.index(step) + 1
                count = len(self.story.messages)
                self.screen.line(f"  step {number} {step:<10} {what:<13} {count} messages so far")

    def killed(self) -> None:
        """It was killed."""
        self.changed()
        run = self.story.runs[-1]
        self.screen.line(f"run {len(self.story.runs)}: process {run.pid} was killed with SIGKILL")


class LiveView(PlainView):
    """The whole story as a table that changes in place."""

    def __init__(self, screen: Screen, steps: Sequence[str], story: Story) -> None:
        super().__init__(screen, steps, story)
        self._spinner = Spinner("dots", "running", style="yellow")
        self._over = False
        self._live = Live(get_renderable=self.render, console=screen.console, refresh_per_second=12)

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the table on the screen, without what moves."""
        self._over = True
        self._live.stop()

    def started(self) -> None:
        """Draw it at once: a quick step would otherwise never be seen to run."""
        self._live.refresh()

    changed = killed = started

    def render(self) -> RenderableType:
        """The table, and the newest messages until it is over."""
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        table.add_column("step", no_wrap=True)
        for number in (1, 2):  # as wide as they will need to be, so that nothing jumps
            width = max(map(len, _STYLES)) + (0 if self.screen.narrow else 2)
            table.add_column(f"run {number}", no_wrap=True, min_width=width)
        for number, step in enumerate(self.steps):
            table.add_row(f"{number + 1} {step}", *(self.cell(step, at) for at in range(2)))
        processes = ["", ""]
        for at, run in enumerate(self.story.runs[:2]):
            processes[at] = str(run.pid)
            if at and run.took is not None and not self.screen.narrow:
                processes[at] += f", took over in {_duration(run.took)}"
        table.add_row("process", *processes, style="dim")
        if self._over:
            return table
        messages = sorted(self.story.messages.items())
        lines = [Text(f"conversation: {len(messages)} messages", "bold")]
        for _, message in messages[-LINES:]:
            text = " ".join(part.mark + part.text for part in parts(message))
            line = Text.assemble((f"{role(message):<10}", "dim"), one_line(text))
            line.truncate(self.screen.width - 1, overflow="ellipsis")
            lines.append(line)
        return Group(table, "", *lines)

    def cell(self, step: str, at: int) -> RenderableType:
        """What became of *step* in the run *at*."""
        if at >= len(self.story.runs) or step not in self.story.runs[at].steps:
            return Text("·", "dim")
        state = self.story.runs[at].steps[step]
        if state == RUNNING:
            return self._spinner
        mark = "" if self.screen.narrow else _MARKS[state]
        return Text(mark + _outcome(self.story, step, at), _STYLES[state])


def _outcome(story: Story, step: str, at: int) -> str:
    """What became of *step* in a run, knowing the run before."""
    state = story.runs[at].steps[step]
    again = at > 0 and state == RAN and story.runs[at - 1].steps.get(step) == KILLED
    return "ran again" if again else state


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
