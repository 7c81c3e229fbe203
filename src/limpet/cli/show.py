"""``limpet show``: a conversation as chat, a task as the record of its work, a state as JSON.

Of a memory, what is remembered.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from limpet import memory
from limpet.backends.contract import from_micros
from limpet.backends.facts import human_size
from limpet.cli.listing import entries, facts_of, holder, labels_of, status_of, status_style
from limpet.cli.memory import print_memory
from limpet.cli.messages import parts, role, written
from limpet.cli.screen import Screen
from limpet.cli.text import document, one_line, safe, shorten
from limpet.cli.where import Where, find, pass_where, store_options
from limpet.conversations import conversation
from limpet.core.leases import is_dead
from limpet.states import state
from limpet.tasks import task
from limpet.tasks.state import Large

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from limpet import Checkpoint, Entry, State, StateVersion, Store, Task
    from limpet.backends.contract import Head, Lease
    from limpet.memory import Remembered
    from limpet.tasks.state import TaskState

__all__ = ["show"]

_ROLES = {
    "user": "bold cyan",
    "assistant": "bold green",
    "tool": "bold yellow",
    "function": "bold yellow",
    "system": "bold magenta",
    "developer": "bold magenta",
}

#: Characters of a step's result, and of what a task was submitted with; ``--json`` has all of it.
RESULT = 160
INPUT = 1_000


@click.command(short_help="Show a conversation, task, state or memory.")
@click.argument("id_", metavar="ID")
@click.option(
    "--last",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the N newest messages, or memories.",
)
@click.option(
    "--context", is_flag=True, help="The text that a model resumes the task from, and only that."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, nothing shortened.")
@store_options
@pass_where
def show(where: Where, *, id_: str, last: int | None, context: bool, as_json: bool) -> None:
    """Show a conversation as chat, a task with its plan, results and decisions, or a saved state.

    Of a memory, by its namespace, all that counts now; `limpet memory show` has more of it. ID is
    an id, or KIND/ID where a conversation and a task have the same id.
    """
    with where.open() as store:
        head = find(store, id_)
        is_task = head.key.kind == task.KIND
        if context and not is_task:
            raise click.UsageError(f"--context is for tasks, and {id_!r} is a {head.key.kind}.")
        if last and head.key.kind in (task.KIND, state.KIND):
            raise click.UsageError(
                f"--last is for conversations and memories, and {id_!r} is a {head.key.kind}."
            )
        view = _VIEWS.get(head.key.kind, _Journal)(where, store, head, last)
        if as_json:
            extra = {"context": view.context()} if context else {}
            click.echo(document(facts_of(head) | view.data() | extra))
        elif context:
            click.echo(safe(view.context()))
        else:
            screen = Screen()
            _heading(head, screen)
            view.print(screen)


def _heading(head: Head, screen: Screen) -> None:
    title = Text.assemble((head.key.kind, "dim"), " ", (safe(head.key.id), "bold"))
    if status := status_of(head):
        title.append(" · ").append(safe(status), status_style(head.status))
    screen.line(title)
    facts = [
        entries(head),
        human_size(head.size),
        f"updated {screen.since(from_micros(head.updated))}",
        labels_of(head),
    ]
    screen.block(" · ".join(fact for fact in facts if fact), indent=0, style="dim")


class _Journal:
    """Any journal: its entries, as they are."""

    def __init__(self, where: Where, store: Store, head: Head, last: int | None) -> None:
        self.where = where
        self.store = store
        self.head = head
        self.last = last

    def _entries(self) -> list[Entry]:
        journal = self.store.journal(self.head.key.kind, self.head.key.id)
        if self.last is None:
            return journal.read()
        return journal.read(reverse=True, limit=self.last)[::-1]

    def data(self) -> dict[str, Any]:
        return {"journal": self._entries()}

    def context(self) -> str:
        raise NotImplementedError

    def print(self, screen: Screen) -> None:
        for entry in self._entries():
            screen.line()
            screen.line((f"{entry.seq} ", "dim"), (safe(entry.type), "bold"))
            screen.block(written(entry.body) if entry.body is not None else "")


class _Conversation(_Journal):
    """Messages as chat."""

    def _messages(self) -> list[dict[str, Any]]:
        chat = self.store.conversation(self.head.key.id)
        found: list[dict[str, Any]] = chat.messages(last=self.last)
        return found

    def data(self) -> dict[str, Any]:
        return {"messages": self._messages()}

    def print(self, screen: Screen) -> None:
        found = self._messages()
        for message in found:
            screen.line()
            _print_message(message, screen)
        if not found:
            screen.line("It has no messages.")


def _print_message(message: Mapping[str, Any], screen: Screen) -> None:
    who = role(message)
    about = [message.get(key) for key in ("name", "tool_call_id", "call_id")]
    known = " ".join(one_line(value) for value in about if value)
    screen.line((safe(who), _ROLES.get(who, "bold")), (f" {known}" if known else "", "dim"))
    for part in parts(message):
        screen.block(part.text, indent=4 if part.mark else 2, first=f"  {part.mark}")


class _Memory(_Journal):
    """What is remembered, the newest last."""

    def _memories(self) -> list[Remembered]:
        return self.store.memory(self.head.key.id).list(limit=self.last)[::-1]

    def data(self) -> dict[str, Any]:
        return {"memories": self._memories()}

    def print(self, screen: Screen) -> None:
        found = self._memories()
        for one in found:
            screen.line()
            print_memory(one, screen)
        if not found:
            screen.line("It has no memories that count now.")


class _State(_Journal):
    """The newest document, as it was saved."""

    def __init__(self, where: Where, store: Store, head: Head, last: int | None) -> None:
        super().__init__(where, store, head, last)
        saved: State = store.state(head.key.id)
        self.newest: StateVersion = saved.history(last=1)[-1]
        self.document = saved.at(self.newest.position, migrate=False)

    def data(self) -> dict[str, Any]:
        return {"saved": self.newest, "document": self.document}

    def print(self, screen: Screen) -> None:
        facts = [f"of type {self.newest.type}" if self.newest.type else "", self.newest.note or ""]
        screen.block(" · ".join(fact for fact in facts if fact), indent=0)
        screen.line()
        screen.block(document(self.document), indent=0)


class _Task(_Journal):
    """The record of a task's work."""

    def __init__(self, where: Where, store: Store, head: Head, last: int | None) -> None:
        super().__init__(where, store, head, last)
        self.task: Task = store.task(head.key.id)
        self.point: Checkpoint = self.task.checkpoint()
        self.state: TaskState = self.task._state  # noqa: SLF001 - what a checkpoint leaves out

    def data(self) -> dict[str, Any]:
        state = self.state
        return {
            "checkpoint": self.point.to_dict(),
            "outcome": self.task.outcome,
            "error": self.task.error,
            "submitted": state.kind and {"kind": state.kind, "input": state.input},
            "deadline": state.deadline,
            "in_doubt": state.in_doubt,
            "progress": state.progress,
            "tried": state.tried,
            "skipped": state.skipped,
            "waits": state.waits,
            "replans": state.replans,
        }

    def context(self) -> str:
        text: str = self.task.resume_context()
        return text

    def print(self, screen: Screen) -> None:
        self._print_state(screen)
        _section("Plan" if self.point.plan else "Steps", self._steps(screen), screen)
        changes = (("- ", change.because, "") for change in self.state.replans if change.because)
        _section("The plan was changed, because", changes, screen)
        decisions = (
            ("- ", d.decision + (f" (because {d.because})" if d.because else ""), "")
            for d in self.point.decisions
        )
        _section("Decisions", decisions, screen)
        _section("Discoveries", (("- ", text, "") for text in self.point.discoveries), screen)
        if self.task.done:
            _section("Outcome", [("", written(self.task.outcome), "")], screen)
        if self.task.error:
            cancelled = self.task.status == "cancelled"
            title = "Cancelled, because" if cancelled else "Last error"
            _section(title, [("", self.task.error, "red")], screen)

    def _print_state(self, screen: Screen) -> None:
        if self.head.lease:
            screen.block(self._holder(self.head.lease, screen), indent=0)
        elif self.task.status == "open":
            screen.line(f"nobody works on it; last agent: {safe(self.point.agent_id or 'unnamed')}")
        if self.state.deadline and not self.task.done:
            screen.line(f"to be done by {screen.time(self.state.deadline)}")
        _section("To go on", (("", text, "") for text in self._ways_on(screen)), screen)
        _section("Goal", [("", self.point.goal, "")], screen)
        if self.state.input is not None:
            given = shorten(written(self.state.input), INPUT)
            _section("Input", [("", given, "")], screen)

    def _holder(self, lease: Lease, screen: Screen) -> str:
        if is_dead(lease.holder):
            return f"its process is dead ({holder(self.head)}): open it, and it goes on"
        until = screen.time(from_micros(lease.until))
        return f"held by {holder(self.head)}, which renews its lease while it works (until {until})"

    def _ways_on(self, screen: Screen) -> Iterator[str]:
        """What a task that stands still waits for, and the command that lets it go on."""
        id_, command = shlex.quote(self.head.key.id), self.where.command
        if self.task.status in ("paused", "cancelled", "failed"):
            yield command(f"resume {id_}")
        waits = self.state.waits if self.task.status == "waiting" else {}
        for name, wait in waits.items():
            until = f" (until {screen.time(wait.until)})" if wait.until else ""
            if wait.kind == "signal":
                signal = shlex.quote(name.rpartition("/")[2].partition("#")[0])
                yield f"it waits for a signal{until}: {command(f'signal {id_} {signal}')}"
            elif wait.kind == "ask":
                asked = command(f"resolve {id_} {shlex.quote(name)} done")
                yield f"nobody knows whether {name} has happened: {asked} (or retry, or skip)"
            else:
                yield f"it waits: {name}{until}"

    def _steps(self, screen: Screen) -> Iterator[tuple[str, str, str]]:
        """The plan with ticks, then the steps that were not planned."""
        state, planned = self.state, self.state.planned_names()
        upcoming = next((name for name in planned if name not in state.results), None)
        known = (planned, state.results, state.in_doubt, state.progress, state.tried)
        for name in dict.fromkeys(name for names in known for name in names):
            if name in state.skipped:
                because = state.skipped[name]
                yield "- ", f"{name}  skipped" + (f": {because}" if because else ""), "dim"
            elif name in state.timed_out:
                yield "- ", f"{name}  waited in vain", "dim"
            elif name in state.results:
                yield "✓ ", f"{name}  {_result(state.results[name])}", ""
            else:
                notes = [*(["(next)"] if name == upcoming else []), *self._begun(name, screen)]
                told = name + ("  " + "; ".join(notes) if notes else "")
                in_doubt = name in state.in_doubt
                yield ("? ", told, "yellow") if in_doubt else ("· ", told, "dim")

    def _begun(self, name: str, screen: Screen) -> Iterator[str]:
        """What is known of a step that has no result."""
        state = self.state
        if name in state.in_doubt:
            doubt = state.in_doubt[name]
            lease = self.head.lease
            held = lease is not None and not is_dead(lease.holder)
            what = "under way" if held else f"in doubt ({doubt.policy})"
            yield f"{what} since {screen.time(doubt.at)}"
        if name in state.progress:
            come = state.progress[name]
            far = "some way" if come.fraction is None else f"{come.fraction:.0%}"
            yield f"{far} done" + (f", {come.note}" if come.note else "")
        if name in state.tried:
            errors = state.tried[name]
            count = "1 attempt" if len(errors) == 1 else f"{len(errors):,} attempts"
            yield f"{count} failed, the last: {shorten(one_line(errors[-1]), RESULT)}"


def _result(result: Any) -> str:
    if isinstance(result, Large):
        return f"{shorten(one_line(result.preview), RESULT)} ({human_size(result.size)})"
    return shorten(one_line(result), RESULT)


def _section(title: str, rows: Iterator[tuple[str, str, str]] | list[Any], screen: Screen) -> None:
    """*title* and its *rows*, each a mark, a text and a style; nothing at all without rows."""
    for number, (mark, text, style) in enumerate(rows):
        if number == 0:
            screen.line()
            screen.line((title, "bold"))
        screen.block(text, indent=2 + len(mark), first=f"  {mark}", style=style)


_VIEWS: dict[str, type[_Journal]] = {
    conversation.KIND: _Conversation,
    task.KIND: _Task,
    state.KIND: _State,
    memory.KIND: _Memory,
}
