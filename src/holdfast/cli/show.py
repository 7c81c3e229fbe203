"""``holdfast show``: a conversation as chat, a task as the record of its work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from holdfast import conversation, task
from holdfast.backends.base import from_micros, shown_size
from holdfast.checkpoint import item_name, numbered
from holdfast.cli.listing import entries, facts_of, holder, labels_of, status_style
from holdfast.cli.messages import parts, role, written
from holdfast.cli.screen import Screen
from holdfast.cli.text import document, one_line, safe, shorten
from holdfast.cli.where import Where, find, pass_where, store_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast import Checkpoint, Entry, Store, Task
    from holdfast.backends.base import Head

__all__ = ["show"]

_ROLES = {
    "user": "bold cyan",
    "assistant": "bold green",
    "tool": "bold yellow",
    "function": "bold yellow",
    "system": "bold magenta",
    "developer": "bold magenta",
}

#: Characters of a step's result; ``--json`` has all of it.
RESULT = 160


@click.command(short_help="Show a conversation or a task.")
@click.argument("id_", metavar="ID")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the N newest messages.")
@click.option(
    "--context", is_flag=True, help="The text that a model resumes the task from, and only that."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, nothing shortened.")
@store_options
@pass_where
def show(where: Where, *, id_: str, last: int | None, context: bool, as_json: bool) -> None:
    """Show a conversation as chat, or a task with its plan, results and decisions.

    ID is an id, or KIND/ID where a conversation and a task have the same id.
    """
    with where.open() as store:
        head = find(store, id_)
        is_task = head.key.kind == task.KIND
        if context and not is_task:
            raise click.UsageError(f"--context is for tasks, and {id_!r} is a {head.key.kind}.")
        if last and is_task:
            raise click.UsageError(f"--last is for conversations, and {id_!r} is a task.")
        view = _VIEWS.get(head.key.kind, _Journal)(store, head, last)
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
    if head.status:
        title.append(" · ").append(safe(head.status), status_style(head.status))
    screen.line(title)
    facts = [
        entries(head),
        shown_size(head.size),
        f"updated {screen.since(from_micros(head.updated))}",
        labels_of(head),
    ]
    screen.block(" · ".join(fact for fact in facts if fact), indent=0, style="dim")


class _Journal:
    """Any journal: its entries, as they are."""

    def __init__(self, store: Store, head: Head, last: int | None) -> None:
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


class _Task(_Journal):
    """The record of a task's work."""

    def __init__(self, store: Store, head: Head, last: int | None) -> None:
        super().__init__(store, head, last)
        self.task: Task = store.task(head.key.id)
        self.point: Checkpoint = self.task.checkpoint()

    def data(self) -> dict[str, Any]:
        return {
            "checkpoint": self.point.to_dict(),
            "outcome": self.task.outcome,
            "error": self.task.error,
        }

    def context(self) -> str:
        text: str = self.task.resume_context()
        return text

    def print(self, screen: Screen) -> None:
        self._print_state(screen)
        _section("Plan" if self.point.plan else "Steps", self._steps(), screen)
        decisions = (
            ("- ", d.decision + (f" (because {d.because})" if d.because else ""), "")
            for d in self.point.decisions
        )
        _section("Decisions", decisions, screen)
        _section("Discoveries", (("- ", text, "") for text in self.point.discoveries), screen)
        if self.task.done:
            _section("Outcome", [("", written(self.task.outcome), "")], screen)
        if self.task.error:
            _section("Last error", [("", self.task.error, "red")], screen)

    def _print_state(self, screen: Screen) -> None:
        if self.head.lease:
            until = from_micros(self.head.lease.until)
            screen.block(f"held by {holder(self.head)}, until {screen.time(until)}", indent=0)
        elif self.task.status == "open":
            screen.line(f"nobody works on it; last agent: {safe(self.point.agent_id or 'unnamed')}")
        _section("Goal", [("", self.point.goal, "")], screen)

    def _steps(self) -> Iterator[tuple[str, str, str]]:
        """The plan with ticks, then the steps that were not planned."""
        seen: dict[str, int] = {}
        planned = [numbered(item_name(item), seen) for item in self.point.plan]
        results = self.point.results
        upcoming = next((name for name in planned if name not in results), None)
        for name in [*planned, *(name for name in results if name not in planned)]:
            if name in results:
                yield "✓ ", f"{name}  {shorten(one_line(results[name]), RESULT)}", ""
            else:
                yield "· ", name + ("  (next)" if name == upcoming else ""), "dim"


def _section(title: str, rows: Iterator[tuple[str, str, str]] | list[Any], screen: Screen) -> None:
    """*title* and its *rows*, each a mark, a text and a style; nothing at all without rows."""
    for number, (mark, text, style) in enumerate(rows):
        if number == 0:
            screen.line()
            screen.line((title, "bold"))
        screen.block(text, indent=2 + len(mark), first=f"  {mark}", style=style)


_VIEWS: dict[str, type[_Journal]] = {conversation.KIND: _Conversation, task.KIND: _Task}
