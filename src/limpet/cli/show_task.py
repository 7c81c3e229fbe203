"""A task as `limpet show` shows it: the record of its work."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from limpet.backends.contract import from_micros
from limpet.backends.facts import human_size
from limpet.cli.ls import holder
from limpet.cli.show_journal import JournalView, print_sections
from limpet.core.leases import is_dead
from limpet.core.runtime import run_to_end
from limpet.errors import Unreadable
from limpet.views import task as views
from limpet.views import timeline
from limpet.views.messages import written
from limpet.views.text import count, duration, one_line, safe, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from limpet import Store
    from limpet.backends.contract import Head
    from limpet.cli.options import StoreOptions
    from limpet.cli.output import Screen
    from limpet.cli.show_journal import Row
    from limpet.views.timeline import StepView

__all__ = ["TaskView"]

#: Characters of a step's result, and of what a task was submitted with; ``--json`` has all of it.
RESULT = 160
INPUT = 1_000
#: Seconds from which on it is said how long a step took.
WORTH = 0.1

_MARKS = {
    timeline.DONE: ("✓ ", ""),
    timeline.SKIPPED: ("- ", "dim"),
    timeline.TIMED_OUT: ("- ", "dim"),
    timeline.FAILED: ("✗ ", "red"),
    timeline.DOUBT: ("? ", "yellow"),
    timeline.RUNNING: ("? ", "yellow"),
}


class TaskView(JournalView):
    """The record of a task's work."""

    def __init__(self, options: StoreOptions, store: Store, head: Head, last: int | None) -> None:
        super().__init__(options, store, head, last)
        self.view = run_to_end(views.task_view(store.scope.as_sync(), head, most=None))

    def check(self) -> None:
        """`Unreadable`, if some of it is damaged: what was shown is not all of it."""
        if self.view.damaged:
            raise Unreadable(self.view.damaged[0].why)

    def data(self) -> dict[str, Any]:
        self.check()
        fold = run_to_end(views.fold_task(self.store.scope.as_sync(), self.head))
        state, view = fold.state, self.view
        return {
            "checkpoint": state.checkpoint().to_dict(),
            "outcome": state.outcome,
            "error": state.error,
            "failed_step": state.failed_step,
            "place": view.place,
            "submitted": state.kind and {"kind": state.kind, "input": state.input},
            "deadline": state.deadline,
            "parent": view.parent,
            "forked_from": view.origin,
            "children": view.children,
            "in_doubt": {
                name: {"policy": call.policy, "error": call.error, "at": state.calls.since[name]}
                for name, call in state.calls.open.items()
            },
            "progress": state.progress,
            "tried": state.tried,
            "skipped": state.skipped,
            "waits": state.waits,
            "replans": state.plan_changes,
            "steps": view.steps,
            "signals": view.signals,
        }

    def print_in_doubt(self, screen: Screen) -> None:
        """Nothing: they are among the steps, and what the task waits for is under "To go on"."""

    def context(self) -> str:
        text: str = self.store.task(self.head.key.id).resume_context()
        return text

    def print(self, screen: Screen) -> None:
        view, lease = self.view, self.head.lease
        if lease and is_dead(lease.holder):
            line = f"its process is dead ({holder(self.head)}): open it, and it goes on"
            screen.block(line, indent=0)
        elif lease:
            until = screen.time(from_micros(lease.until))
            line = f"held by {holder(self.head)}, which renews its lease while it works"
            screen.block(f"{line} (until {until})", indent=0)
        elif view.status == "open":
            screen.line(f"nobody works on it; last agent: {safe(view.agent or 'unnamed')}")
        if view.deadline and view.status != "done":
            screen.line(f"to be done by {screen.time(view.deadline)}")
        if view.parent:
            screen.line(f"a step of task {safe(view.parent)}")
        if view.origin:
            screen.line(f"forked from {safe(view.origin.id)} at entry {view.origin.at}")
        print_sections(self.sections(screen), screen)
        self.check()

    def sections(self, screen: Screen) -> Iterator[tuple[str, Iterable[Row]]]:
        """The parts of the record, each with its title; one without rows is not shown."""
        view = self.view
        yield "To go on", (("", text, "") for text in self.next_commands(screen))
        yield "Goal", [("", view.goal, "")]
        if view.input is not None:
            yield "Input", [("", shorten(written(view.input), INPUT), "")]
        others = [step for step in view.steps if not step.planned]
        yield "Plan", (self.step(step, screen) for step in view.plan)
        title = "Steps that were not planned" if view.plan else "Steps"
        yield title, (self.step(step, screen) for step in others)
        because = (change.because for change in view.plan_changes)
        yield "The plan was changed, because", (("- ", why, "") for why in because if why)
        yield "Tasks that are steps of it", self.children()
        decisions = (
            d.text + (f" (because {d.because})" if d.because else "") for d in view.decisions
        )
        yield "Decisions", (("- ", text, "") for text in decisions)
        yield "Discoveries", (("- ", note.text, "") for note in view.discoveries)
        waiting = (signal for signal in view.signals if not signal.taken)
        yield (
            "Signals that it has not come to",
            (("- ", f"{s.name}  {shorten(one_line(s.payload), RESULT)}", "") for s in waiting),
        )
        if view.status == "done":
            yield "Outcome", [("", written(view.outcome), "")]
        if view.error:
            title = "Cancelled, because" if view.status == "cancelled" else "Last error"
            mark = f"in step {safe(view.failed_step)}: " if view.failed_step else ""
            rows = [("", f"{mark}{view.error}", "red")]
            yield title, [*rows, ("", f"at {view.place}", "dim")] if view.place else rows

    def next_commands(self, screen: Screen) -> Iterator[str]:
        """What a task that stands still waits for, and the command that lets it go on."""
        id_, command, view = shlex.quote(self.head.key.id), self.options.command, self.view
        if view.status in ("paused", "cancelled", "failed"):
            yield command(f"task resume {id_}")
        for wait in view.waits if view.status == "waiting" else ():
            until = f" (until {screen.time(wait.until)})" if wait.until else ""
            if wait.kind == "signal":
                signal = shlex.quote(wait.signal or wait.name)
                yield f"it waits for a signal{until}: {command(f'task signal {id_} {signal}')}"
            elif wait.kind == "ask":
                asked = command(f"task resolve {id_} {shlex.quote(wait.name)} done --result JSON")
                yield f"nobody knows whether {wait.name} has happened: {asked} (or retry, or skip)"
            else:
                yield f"it waits: {wait.name}{until}"

    def children(self) -> Iterator[Row]:
        """The tasks that are steps of it, as far as they are listed."""
        for child in self.view.children:
            yield "- ", f"{child.id}  {child.status}", ""
        if self.view.more_children:
            yield "  ", f"and more: {self.options.command(f'ls tasks --prefix {self.id}/')}", "dim"

    @property
    def id(self) -> str:
        """The task's, as it is pasted."""
        return shlex.quote(self.head.key.id)

    def step(self, step: StepView, screen: Screen) -> Row:
        """A step, with a tick if it is done."""
        mark, style = _MARKS.get(step.state, ("· ", "dim"))
        if step.state == timeline.SKIPPED:
            because = f": {step.because}" if step.because else ""
            return mark, f"{step.name}  skipped{because}", style
        if step.state == timeline.TIMED_OUT:
            return mark, f"{step.name}  waited in vain", style
        if step.state == timeline.DONE:
            facts = [
                human_size(step.size) if step.size is not None else "",
                duration(step.took) if step.took is not None and step.took >= WORTH else "",
                count(step.attempts, "attempt") if step.retried else "",
                "taken over" if step.taken_over else "",
            ]
            known = ", ".join(fact for fact in facts if fact)
            result = shorten(step.result or "", RESULT)
            return mark, f"{step.name}  {result}" + (f" ({known})" if known else ""), style
        notes = "; ".join(self.unfinished(step, screen))
        return mark, step.name + (f"  {notes}" if notes else ""), style

    def unfinished(self, step: StepView, screen: Screen) -> Iterator[str]:
        """What is known of a step that has no result."""
        if step.name == self.view.next:
            if not self.view.head.held:
                yield "(next)"
            elif step.state != timeline.RUNNING:  # most steps record only their end
                yield "(under way, or next)"
        since = f" since {screen.time(step.started)}" if step.started else ""
        words = {
            timeline.RUNNING: f"under way{since}",
            timeline.DOUBT: f"in doubt ({step.policy}){since}",
            timeline.WAITING: f"waiting{since}",
            timeline.INTERRUPTED: f"under way{since}, and interrupted",
            timeline.UNDONE: "undone: the task went back",
        }
        if step.state in words:
            yield words[step.state]
        if step.progress is not None or step.note:
            far = "some way" if step.progress is None else f"{step.progress:.0%}"
            yield f"{far} done" + (f", {step.note}" if step.note else "")
        if step.errors:
            last = shorten(step.errors[-1], RESULT)
            yield f"{count(len(step.errors), 'attempt')} failed, the last: {last}"
