"""``limpet show`` and ``limpet tail``: one journal as it is, and as it grows.

A conversation is shown as chat, a task as the record of its work, a state as JSON; of a memory,
what is remembered; of a thread of LangGraph's, where it is and what was said.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from limpet import memory
from limpet.backends.contract import from_micros
from limpet.backends.facts import human_size
from limpet.cli.ls import entries, facts_of, holder, labels_of, status_of, status_style
from limpet.cli.memory import print_memory
from limpet.cli.options import (
    Missing,
    StoreOptions,
    find,
    pass_store,
    store_options,
)
from limpet.cli.output import Screen
from limpet.cli.tasks import print_call
from limpet.conversations import conversation
from limpet.core.calls import calls_in_doubt
from limpet.core.leases import is_dead
from limpet.core.runtime import run_to_end
from limpet.errors import Unreadable
from limpet.integrations.langgraph import reading, thread
from limpet.states import state
from limpet.tasks import task
from limpet.tasks.state import Large
from limpet.views import threads
from limpet.views.messages import parts, role, summary, written
from limpet.views.text import count, json_document, json_line, one_line, safe, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from limpet import Checkpoint, Entry, State, StateVersion, Store, Task
    from limpet.backends.contract import Head
    from limpet.core.calls import Call
    from limpet.integrations.langgraph.reading import ThreadCheckpoint
    from limpet.integrations.langgraph.thread import Node
    from limpet.memory import Remembered
    from limpet.tasks.state import TaskState

__all__ = ["show", "tail"]

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


# -- show ------------------------------------------------------------------------------------------


@click.command(short_help="Show a conversation, task, state, memory or thread.")
@click.argument("id_", metavar="ID")
@click.option(
    "--last",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the N newest messages, memories or, with --json, checkpoints.",
)
@click.option(
    "--context", is_flag=True, help="The text that a model resumes the task from, and only that."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, nothing shortened.")
@store_options
@pass_store
def show(
    options: StoreOptions, *, id_: str, last: int | None, context: bool, as_json: bool
) -> None:
    """Show a conversation as chat, a task with its plan, results and decisions, or a saved state.

    Of a memory, by its namespace, all that counts now; `limpet memory show` has more of it. Of a
    thread of LangGraph, who said what, the other values of its newest checkpoint, what is next and
    what it asks, its forks and the subgraphs in it. ID is an id, or KIND/ID where a conversation
    and a task have the same id.
    """
    with options.open() as store:
        head = find(store, id_)
        kind = head.key.kind
        if context and kind != task.KIND:
            raise click.UsageError(f"--context is for tasks, and {id_!r} is a {kind}.")
        if last and kind in (task.KIND, state.KIND):
            msg = f"--last is for conversations, memories and threads, and {id_!r} is a {kind}."
            raise click.UsageError(msg)
        view = _VIEWS.get(kind, JournalView)(options, store, head, last)
        if as_json:
            extra = {"context": view.context()} if context else {}
            in_doubt = {"in_doubt": {call.id: call for call in view.in_doubt()}}
            click.echo(json_document(facts_of(head) | in_doubt | view.data() | extra))
        elif context:
            click.echo(safe(view.context()))
        else:
            screen = Screen()
            view.print_heading(screen)
            view.print_in_doubt(screen)
            view.print(screen)


class JournalView:
    """Any journal: its entries, as they are."""

    def __init__(self, options: StoreOptions, store: Store, head: Head, last: int | None) -> None:
        self.options = options
        self.store = store
        self.head = head
        self.last = last

    def print_heading(self, screen: Screen) -> None:
        """What the head says."""
        head = self.head
        title = Text.assemble((head.key.kind, "dim"), " ", (safe(head.key.id), "bold"))
        if status := status_of(head):
            title.append(" · ").append(safe(status), status_style(head.status))
        screen.line(title)
        updated = f"updated {screen.since(from_micros(head.updated))}"
        facts = [entries(head), human_size(head.size), updated, labels_of(head)]
        screen.block(" · ".join(fact for fact in facts if fact), indent=0, style="dim")

    def in_doubt(self) -> list[Call]:
        """The calls in doubt; none, if the meta that they are in cannot be read."""
        try:
            return calls_in_doubt(self.head)
        except Unreadable:  # which must not hide the entries; the heading and the doctor say it
            return []

    def print_in_doubt(self, screen: Screen) -> None:
        """The calls in doubt, each with the commands that say what became of it."""
        for number, call in enumerate(self.in_doubt()):
            if number == 0:
                screen.line()
                screen.line(("In doubt", "bold"))
            print_call(self.options, screen, self.head.key.kind, self.head.key.id, call)

    def found(self) -> list[Any]:
        """What there is to show."""
        journal = self.store.journal(self.head.key.kind, self.head.key.id)
        if self.last is None:
            return journal.read()
        return journal.read(reverse=True, limit=self.last)[::-1]

    def data(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {"journal": self.found()}

    def context(self) -> str:
        """What a model resumes from: of tasks only."""
        raise NotImplementedError

    def print(self, screen: Screen) -> None:
        """All of it, for people."""
        for entry in self.found():
            screen.line()
            screen.line((f"{entry.seq} ", "dim"), (safe(entry.type), "bold"))
            screen.block(written(entry.body) if entry.body is not None else "")


class ConversationView(JournalView):
    """Messages as chat."""

    def found(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.store.conversation(self.head.key.id).messages(
            last=self.last
        )
        return messages

    def data(self) -> dict[str, Any]:
        return {"messages": self.found()}

    def print(self, screen: Screen) -> None:
        found = self.found()
        for message in found:
            screen.line()
            print_message(message, screen)
        if not found:
            screen.line("It has no messages.")


def print_message(message: Mapping[str, Any], screen: Screen) -> None:
    """Who says it, and what."""
    who = role(message)
    about = [message.get(key) for key in ("name", "tool_call_id", "call_id")]
    known = " ".join(one_line(value) for value in about if value)
    screen.line((safe(who), _ROLES.get(who, "bold")), (f" {known}" if known else "", "dim"))
    for part in parts(message):
        screen.block(part.text, indent=4 if part.mark else 2, first=f"  {part.mark}")


class MemoryView(JournalView):
    """What is remembered, the newest last."""

    def found(self) -> list[Remembered]:
        return self.store.memory(self.head.key.id).list(limit=self.last)[::-1]

    def data(self) -> dict[str, Any]:
        return {"memories": self.found()}

    def print(self, screen: Screen) -> None:
        found = self.found()
        for one in found:
            screen.line()
            print_memory(one, screen)
        if not found:
            screen.line("It has no memories that count now.")


class StateView(JournalView):
    """The newest document, as it was saved."""

    def __init__(self, options: StoreOptions, store: Store, head: Head, last: int | None) -> None:
        super().__init__(options, store, head, last)
        saved: State = store.state(head.key.id)
        self.newest: StateVersion = saved.history(last=1)[-1]
        self.document = saved.at(self.newest.position, migrate=False)

    def data(self) -> dict[str, Any]:
        return {"saved": self.newest, "document": self.document}

    def print(self, screen: Screen) -> None:
        facts = [f"of type {self.newest.type}" if self.newest.type else "", self.newest.note or ""]
        screen.block(" · ".join(fact for fact in facts if fact), indent=0)
        screen.line()
        screen.block(json_document(self.document), indent=0)


#: A line of a section: the mark before it, its text, and its style.
Row = tuple[str, str, str]


def print_sections(sections: Iterable[tuple[str, Iterable[Row]]], screen: Screen) -> None:
    """Parts of a record, each with its title; one without rows is not shown."""
    for title, rows in sections:
        for number, (mark, text, style) in enumerate(rows):
            if number == 0:
                screen.line()
                screen.line((title, "bold"))
            screen.block(text, indent=2 + len(mark), first=f"  {mark}", style=style)


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


class ThreadView(JournalView):
    """A thread of LangGraph's: where it is, what was said, and what else it knows."""

    def __init__(self, options: StoreOptions, store: Store, head: Head, last: int | None) -> None:
        super().__init__(options, store, head, last)
        self.log = run_to_end(threads.read(store.scope.as_sync(), head))
        self.newest = self.log.newest("")
        self.checkpoints = reading.checkpoints_of(self.log)

    def data(self) -> dict[str, Any]:
        found = reading.state_of(self.log, self.head)
        if self.last is not None:
            found["checkpoints"] = found["checkpoints"][-self.last :]
        return found

    def print(self, screen: Screen) -> None:
        name = reading.name_of(self.log, self.head)
        if name != self.head.key.id:
            screen.block(f"LangGraph calls it {name!r}", indent=0)
        if self.newest is None:
            screen.line("It has no checkpoints.")
            return
        print_sections(self.sections(self.newest), screen)
        values = reading.values_of(self.log, self.newest)
        said = {channel: reading.messages_in(value) for channel, value in values.items()}
        for channel, messages in said.items():
            if messages is not None:
                screen.line()
                screen.line((safe(channel), "bold"), (f" {count(len(messages), 'message')}", "dim"))
                for message in messages[-self.last :] if self.last else messages:
                    screen.line()
                    print_message(message, screen)
        others = [channel for channel in values if said[channel] is None]
        for number, channel in enumerate(others):
            if number == 0:
                screen.line()
                screen.line(("Other values", "bold"))
            screen.block(f"{one_line(channel)}  {threads.value_line(values[channel])}")

    def sections(self, newest: Node) -> Iterator[tuple[str, Iterable[Row]]]:
        """What is known of the thread beside its values; one without rows is not shown."""
        every = [one for one in self.checkpoints if not one.namespace]
        at = next(one for one in every if one.number == newest.seq)
        known = f"{newest.id}, {threads.step_line(at)}, the newest of {len(every):,}"
        yield "Checkpoint", [("", known, "")]
        asked = reading.asked_of(self.log, newest)
        yield (
            "Asks, and waits for an answer",
            (("- ", threads.asked_line(one), "yellow") for one in asked),
        )
        errors = reading.errors_of(self.log, newest)
        yield (
            "Failed",
            (("- ", f"{node}: {text}".removeprefix(": "), "red") for node, text in errors),
        )
        yield "Next", (("- ", name, "") for name in reading.next_of(self.log, newest))
        yield "Forks", (("- ", text, "") for text in self.forks())
        spaces = [ns for ns in self.log.nodes if ns]
        yield "Subgraphs", (("- ", text, "") for text in map(self.subgraph, spaces))

    def forks(self) -> Iterator[str]:
        """Where other lines begin, and how far they went."""
        lines: dict[int, list[ThreadCheckpoint]] = {}
        for one in self.checkpoints:
            if one.line:
                lines.setdefault(one.line, []).append(one)
        for number, line in lines.items():
            begin = line[0].parent
            where = "from the beginning" if begin is None else f"from {begin}"
            last = f"to {line[-1].number} ({threads.step_line(line[-1])})"
            inner = f" in {line[0].namespace}" if line[0].namespace else ""
            length = count(len(line), "checkpoint")
            yield f"fork {number}{inner}: {where} {last}, {length}"

    def subgraph(self, ns: str) -> str:
        """How far a subgraph is."""
        every = [one for one in self.checkpoints if one.namespace == ns]
        return f"{ns}: {count(len(every), 'checkpoint')}, {threads.step_line(every[-1])}"


_VIEWS: dict[str, type[JournalView]] = {
    thread.KIND: ThreadView,
    conversation.KIND: ConversationView,
    task.KIND: TaskView,
    state.KIND: StateView,
    memory.KIND: MemoryView,
}


# -- tail ------------------------------------------------------------------------------------------

#: Seconds that we wait for more before we look whether the journal is still there.
PATIENCE = 2.0

#: Columns of an entry's type, where there is room to align what follows it.
TYPE = 10


@click.command(short_help="Print the newest entries of a journal.")
@click.argument("id_", metavar="ID")
@click.option(
    "-n",
    "limit",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="How many entries.",
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new ones, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON Lines: one object an entry.")
@store_options
@pass_store
def tail(options: StoreOptions, *, id_: str, limit: int, follow: bool, as_json: bool) -> None:
    """Print the newest entries under ID, one line each: number, time, type, summary.

    ID is an id, or KIND/ID where a conversation and a task have the same id.
    """
    screen = Screen()

    def put(entry: Entry) -> None:
        if as_json:
            click.echo(json_line(entry))
            return
        screen.line(
            (f"{entry.seq:>5}  ", "dim"),
            (f"{screen.time(entry.at)}  ", "dim"),
            (safe(entry.type).ljust(0 if screen.narrow else TYPE), "bold"),
            "  ",
            summary(entry, head.key.kind),
            cut=True,
        )

    with options.open() as store:
        head = find(store, id_)
        journal = store.journal(head.key.kind, head.key.id)
        for entry in journal.read(upto=head.seq, limit=limit, reverse=True)[::-1] if limit else ():
            put(entry)
        try:
            for entry in new_entries(store, head) if follow else ():
                put(entry)
        except KeyboardInterrupt:
            pass  # how following ends, not a failure


def new_entries(store: Store, head: Head) -> Iterator[Entry]:
    """The entries behind *head*, as they come, for ever."""
    journal = store.journal(head.key.kind, head.key.id)
    seq = head.seq
    while True:
        store.backend.wait(journal.key, after=seq, timeout=PATIENCE)
        now = journal.head()
        if now is None:
            raise Missing(f"{head.key.kind}/{head.key.id} is no longer there.")
        if now.created != head.created:  # deleted, and begun anew
            head, seq = now, 0
        if now.seq > seq:
            for entry in journal.read(after=seq):
                seq = entry.seq
                yield entry
