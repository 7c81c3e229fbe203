"""A task as `limpet show` shows it: the record of its work."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from limpet.backends.contract import from_micros
from limpet.backends.facts import human_size
from limpet.cli.ls import holder
from limpet.cli.show_journal import JournalView, print_sections
from limpet.core.leases import is_dead
from limpet.tasks.state import Large
from limpet.views.messages import written
from limpet.views.text import count, one_line, safe, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from limpet import Checkpoint, Store, Task
    from limpet.backends.contract import Head
    from limpet.cli.options import StoreOptions
    from limpet.cli.output import Screen
    from limpet.cli.show_journal import Row
    from limpet.tasks.state import TaskState

__all__ = ["TaskView"]

#: Characters of a step's result, and of what a task was submitted with; ``--json`` has all of it.
RESULT = 160
INPUT = 1_000


class TaskView(JournalView):
    """The record of a task's work."""

    def __init__(self, options: StoreOptions, store: Store, head: Head, last: int | None) -> None:
        super().__init__(options, store, head, last)
        self.task: Task = store.task(head.key.id)
        self.point: Checkpoint = self.task.checkpoint()
        self.state: TaskState = self.task._state  # noqa: SLF001 - what a checkpoint leaves out
        self.held = head.lease is not None and not is_dead(head.lease.holder)

    def data(self) -> dict[str, Any]:
        state = self.state
        return {
            "checkpoint": self.point.to_dict(),
            "outcome": self.task.outcome,
            "error": self.task.error,
            "failed_step": state.failed_step,
            "submitted": state.kind and {"kind": state.kind, "input": state.input},
            "deadline": state.deadline,
            "in_doubt": {
                name: {"policy": call.policy, "error": call.error, "at": state.calls.since[name]}
                for name, call in state.calls.open.items()
            },
            "progress": state.progress,
            "tried": state.tried,
            "skipped": state.skipped,
            "waits": state.waits,
            "replans": state.plan_changes,
        }

    def print_in_doubt(self, screen: Screen) -> None:
        """Nothing: they are among the steps, and what the task waits for is under "To go on"."""

    def context(self) -> str:
        text: str = self.task.resume_context()
        return text

    def print(self, screen: Screen) -> None:
        lease = self.head.lease
        if lease and is_dead(lease.holder):
            line = f"its process is dead ({holder(self.head)}): open it, and it goes on"
            screen.block(line, indent=0)
        elif lease:
            until = screen.time(from_micros(lease.until))
            line = f"held by {holder(self.head)}, which renews its lease while it works"
            screen.block(f"{line} (until {until})", indent=0)
        elif self.task.status == "open":
            screen.line(f"nobody works on it; last agent: {safe(self.point.agent_id or 'unnamed')}")
        if self.state.deadline and not self.task.done:
            screen.line(f"to be done by {screen.time(self.state.deadline)}")
        print_sections(self.sections(screen), screen)

    def sections(self, screen: Screen) -> Iterator[tuple[str, Iterable[Row]]]:
        """The parts of the record, each with its title; one without rows is not shown."""
        yield "To go on", (("", text, "") for text in self.next_commands(screen))
        yield "Goal", [("", self.point.goal, "")]
        if self.state.input is not None:
            yield "Input", [("", shorten(written(self.state.input), INPUT), "")]
        planned = self.state.planned
        known = (self.state.results, self.state.calls.open, self.state.progress, self.state.tried)
        others = dict.fromkeys(name for names in known for name in names if name not in planned)
        yield "Plan", self.steps(planned, screen)
        yield "Steps that were not planned" if planned else "Steps", self.steps(others, screen)
        because = (change.because for change in self.state.plan_changes)
        yield "The plan was changed, because", (("- ", why, "") for why in because if why)
        decisions = (
            d.decision + (f" (because {d.because})" if d.because else "")
            for d in self.point.decisions
        )
        yield "Decisions", (("- ", text, "") for text in decisions)
        yield "Discoveries", (("- ", text, "") for text in self.point.discoveries)
        if self.task.done:
            yield "Outcome", [("", written(self.task.outcome), "")]
        if self.task.error:
            cancelled = self.task.status == "cancelled"
            title = "Cancelled, because" if cancelled else "Last error"
            step = self.state.failed_step
            mark = f"in step {safe(step)}: " if step else ""
            yield title, [("", f"{mark}{self.task.error}", "red")]

    def next_commands(self, screen: Screen) -> Iterator[str]:
        """What a task that stands still waits for, and the command that lets it go on."""
        id_, command = shlex.quote(self.head.key.id), self.options.command
        if self.task.status in ("paused", "cancelled", "failed"):
            yield command(f"task resume {id_}")
        waits = self.state.waits if self.task.status == "waiting" else {}
        for name, wait in waits.items():
            until = f" (until {screen.time(wait.until)})" if wait.until else ""
            if wait.kind == "signal":
                signal = shlex.quote(wait.signal or name)
                yield f"it waits for a signal{until}: {command(f'task signal {id_} {signal}')}"
            elif wait.kind == "ask":
                asked = command(f"task resolve {id_} {shlex.quote(name)} done --result JSON")
                yield f"nobody knows whether {name} has happened: {asked} (or retry, or skip)"
            else:
                yield f"it waits: {name}{until}"

    def steps(self, names: Iterable[str], screen: Screen) -> Iterator[Row]:
        """The steps *names*, with ticks."""
        state = self.state
        upcoming = next((name for name in state.planned if name not in state.results), None)
        if self.task.status in ("done", "cancelled"):
            upcoming = None
        for name in names:
            if name in state.skipped:
                because = state.skipped[name]
                yield "- ", f"{name}  skipped" + (f": {because}" if because else ""), "dim"
            elif name in state.timed_out:
                yield "- ", f"{name}  waited in vain", "dim"
            elif name in state.results:
                result = state.results[name]
                size = f" ({human_size(result.size)})" if isinstance(result, Large) else ""
                result = result.preview if isinstance(result, Large) else result
                yield "✓ ", f"{name}  {shorten(one_line(result), RESULT)}{size}", ""
            else:
                notes = list(self.unfinished(name, screen))
                if name == upcoming and not self.held:
                    notes.insert(0, "(next)")
                elif name == upcoming and name not in state.calls:
                    notes.insert(0, "(under way, or next)")  # most steps record only their end
                text = name + ("  " + "; ".join(notes) if notes else "")
                yield ("? ", text, "yellow") if name in state.calls else ("· ", text, "dim")

    def unfinished(self, name: str, screen: Screen) -> Iterator[str]:
        """What is known of a step that has no result."""
        state = self.state
        if name in state.calls:
            what = "under way" if self.held else f"in doubt ({state.calls.open[name].policy})"
            yield f"{what} since {screen.time(state.calls.since[name])}"
        if name in state.progress:
            progress = state.progress[name]
            far = "some way" if progress.fraction is None else f"{progress.fraction:.0%}"
            yield f"{far} done" + (f", {progress.note}" if progress.note else "")
        if name in state.tried:
            errors = state.tried[name]
            last = shorten(one_line(errors[-1]), RESULT)
            yield f"{count(len(errors), 'attempt')} failed, the last: {last}"
