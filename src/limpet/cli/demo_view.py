"""How the demo looks: a live table in a terminal, plain lines in a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.console import Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from limpet.cli.demo_story import KILLED, RAN, RUNNING, SKIPPED, Finding, Run, Story
from limpet.cli.messages import parts, role
from limpet.cli.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from rich.console import RenderableType

    from limpet.cli.screen import Screen

__all__ = ["LiveView", "PlainView", "conclude", "introduce"]

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
        self._told: dict[str, str] = {}

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
        self._told.clear()
        number, run = len(self.story.runs), self.story.runs[-1]
        self.screen.line(f"run {number}: the agent starts as process {run.pid}")

    def changed(self) -> None:
        """Something happened in it."""
        run = self.story.runs[-1]
        if run.took is not None and not self._told and len(self.story.runs) > 1:
            self._told[""] = SKIPPED
            self.screen.line(f"run {len(self.story.runs)}: it took over in {_span(run.took)}")
        for step, state in self.story.runs[-1].steps.items():
            if state != RUNNING and self._told.get(step) != state:
                self._told[step] = state
                self._tell(step, _said(self.story, step, len(self.story.runs) - 1))

    def _tell(self, step: str, state: str) -> None:
        number = self.steps.index(step) + 1
        count = len(self.story.messages)
        self.screen.line(f"  step {number} {step:<10} {state:<13} {count} messages so far")

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
        self._live = Live(
            get_renderable=self._render, console=screen.console, refresh_per_second=12
        )

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

    def _render(self) -> RenderableType:
        return self._table() if self._over else Group(self._table(), "", *self._conversation())

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        table.add_column("step", no_wrap=True)
        for number in (1, 2):  # as wide as they will need to be, so that nothing jumps
            width = max(map(len, _STYLES)) + (0 if self.screen.narrow else 2)
            table.add_column(f"run {number}", no_wrap=True, min_width=width)
        for number, step in enumerate(self.steps):
            cells = [self._cell(step, at) for at in range(2)]
            table.add_row(f"{number + 1} {step}", *cells)
        runs = [*self.story.runs, None, None][:2]
        table.add_row("process", *(self._process(run) for run in runs), style="dim")
        return table

    def _cell(self, step: str, at: int) -> RenderableType:
        if at >= len(self.story.runs) or step not in self.story.runs[at].steps:
            return Text("·", "dim")
        state = self.story.runs[at].steps[step]
        if state == RUNNING:
            return self._spinner
        mark = "" if self.screen.narrow else _MARKS[state]
        return Text(mark + _said(self.story, step, at), _STYLES[state])

    def _process(self, run: Run | None) -> str:
        if run is None:
            return ""
        if run.took is None or run is self.story.runs[0] or self.screen.narrow:
            return str(run.pid)
        return f"{run.pid}, took over in {_span(run.took)}"

    def _conversation(self) -> Iterable[Text]:
        messages = sorted(self.story.messages.items())
        yield Text(f"conversation: {len(messages)} messages", "bold")
        for _, message in messages[-LINES:]:
            text = " ".join(part.mark + part.text for part in parts(message))
            line = Text.assemble((f"{role(message):<10}", "dim"), one_line(text))
            line.truncate(self.screen.width - 1, overflow="ellipsis")
            yield line


def _said(story: Story, step: str, at: int) -> str:
    """What became of *step* in a run, knowing the run before."""
    state = story.runs[at].steps[step]
    again = at > 0 and state == RAN and story.runs[at - 1].steps.get(step) == KILLED
    return "ran again" if again else state


def _span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def introduce(screen: Screen) -> None:
    """What there will be to see."""
    screen.line(("An agent is killed in the middle of a step, and carries on.", "bold"))
    screen.line("The model is a script: no key, no network. Process, kill and disk are real.")
    screen.line()


def conclude(screen: Screen, story: Story, findings: Iterable[Finding]) -> None:
    """What was found, and the answer."""
    screen.line()
    for finding in findings:
        mark, style = ("✓", "green") if finding.kept else ("✗", "bold red")
        screen.hanging(Text.assemble((f"{mark} ", style), finding.text), indent=2)
    if story.answer:
        screen.line()
        screen.block(story.answer, indent=8, first="Answer:")
