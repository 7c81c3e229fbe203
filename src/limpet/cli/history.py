"""``limpet history``: the versions of a task, state, conversation or thread, and what changed."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from limpet.backends.facts import human_size
from limpet.cli.options import (
    StoreOptions,
    find,
    head_of,
    json_option,
    pass_store,
    store_options,
)
from limpet.cli.output import Screen
from limpet.conversations import conversation, transcript
from limpet.core.runtime import run_to_end
from limpet.integrations.langgraph import reading, thread
from limpet.states import state
from limpet.states.diff import document_changes, lines_of
from limpet.tasks import task
from limpet.views import threads
from limpet.views.messages import summary
from limpet.views.text import json_document, safe, timestamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet import Entry, StateVersion, Store
    from limpet.backends.contract import Head
    from limpet.tasks.task import TaskVersion

    #: The number of a version, when it was made, and what it is.
    Line = tuple[int, datetime, str]

__all__ = ["history"]

#: Entries of a conversation that only say what is a message of it.
_OF_MESSAGES = {
    *(transcript.MESSAGE, transcript.COPIED, transcript.FORKED),
    *(transcript.POPPED, transcript.CLEARED),
}
_COLOURS = {"-": "red", "+": "green", "~": "yellow", "@": "dim"}


@click.command(short_help="Print the versions of something, or compare two.")
@click.argument("id_", metavar="ID")
@click.argument("a", metavar="[A]", required=False)
@click.argument("b", metavar="[B]", required=False)
@click.option("--diff", is_flag=True, help="Print what changed from version A to version B.")
@click.option(
    "-n", "last", type=click.IntRange(min=1), metavar="N", help="Only the N newest. [default: all]"
)
@json_option
@store_options
@pass_store
def history(
    options: StoreOptions,
    *,
    id_: str,
    a: str | None,
    b: str | None,
    diff: bool,
    last: int | None,
    as_json: bool,
) -> None:
    """Print what happened to a task, the saves of a state, or the entries of a conversation.

    One line each: number, time, what. The numbers are what --diff takes, and in a program
    task.versions.at(), .fork() and .rewind(), restore() of a state, or fork() of a conversation.
    Of a thread of LangGraph it is the checkpoints: the step, the nodes that ran, what they changed,
    and the id, which get_state() takes. What is not on the line of the newest is marked as a fork.

    With --diff, compare version A with B; without B, with the newest; without A, the last two with
    each other. What was taken away has a -, what was added a +, and what has another place in a
    plan a ~. A checkpoint may be named by its id too, or by a beginning that no other has.

    ID is an id, or KIND/ID. Where several have the same id, the task is meant, else the state, else
    the conversation.
    """
    if a is not None and not diff:
        raise click.UsageError("The numbers of versions are for --diff.")
    if last is not None and diff:
        raise click.UsageError("-n is for the list; --diff takes the numbers of two versions.")
    with options.open() as store:
        named = id_.partition("/")[0] in _VERSIONS
        found = [] if named else [head_of(store, kind, id_) for kind in _VERSIONS]
        head = next((one for one in found if one is not None), None) or find(store, id_)
        make = _VERSIONS.get(head.key.kind)
        if make is None:
            raise click.UsageError(f"{id_!r} is a {head.key.kind}, which has no versions.")
        versions = make(store, head)
        if diff:
            print_diff(versions, a, b, as_json=as_json)
        else:
            print_versions(versions, last, as_json=as_json)


class Versions:
    """The versions of a task; others differ in what is one, and how two are compared."""

    def __init__(self, store: Store, head: Head) -> None:
        self.store = store
        self.head = head

    def lines(self, last: int | None) -> tuple[Sequence[Any], list[Line]]:
        """The *last* versions for programs, and a line of each for people."""
        versions: list[TaskVersion] = self.store.task(self.head.key.id).versions.list()
        found = versions[-last:] if last else versions
        return found, [(one.seq, one.at, one.what) for one in found]

    def newest(self) -> list[int]:
        """The numbers of the last two."""
        head = self.head  # each entry makes a version
        return [seq for seq in (head.seq - 1, head.seq) if seq >= head.first]

    def number(self, named: str) -> int:
        """The number that somebody has *named*."""
        head = self.head
        number: int = click.types.convert_type(click.IntRange(min=1))(named)
        if not head.first <= number <= head.seq:
            there = f"{head.first:,} to {head.seq:,}"
            msg = f"There is no entry {number:,}: {head.key.id!r} has {there}."
            raise click.UsageError(msg)
        return number

    def compare(self, a: int, b: int) -> str:
        """What changed from *a* to *b*, in lines."""
        text: str = self.store.task(self.head.key.id).versions.compare(a, b)
        return text


class StateVersions(Versions):
    """The saves of a state."""

    def lines(self, last: int | None) -> tuple[Sequence[Any], list[Line]]:
        saves: list[StateVersion] = self.store.state(self.head.key.id).history(last=last)
        return saves, [(one.position, one.at, describe_save(one)) for one in saves]

    def newest(self) -> list[int]:
        saves: list[StateVersion] = self.store.state(self.head.key.id).history(last=2)
        return [one.position for one in saves]

    def compare(self, a: int, b: int) -> str:
        text: str = self.store.state(self.head.key.id).diff(a, b)
        return text


class ConversationVersions(Versions):
    """The entries of a conversation."""

    def lines(self, last: int | None) -> tuple[Sequence[Any], list[Line]]:
        journal = self.store.journal(conversation.KIND, self.head.key.id)
        entries = journal.read() if last is None else journal.read(reverse=True, limit=last)[::-1]
        lines = [(one.seq, one.at, describe_entry(one)) for one in entries]
        return [{"seq": seq, "at": at, "what": what} for seq, at, what in lines], lines

    def compare(self, a: int, b: int) -> str:
        journal = self.store.journal(conversation.KIND, self.head.key.id)
        return compare_conversation(journal.read(upto=max(a, b)), self.head.key.id, a, b)


class ThreadVersions(Versions):
    """The checkpoints of a thread of LangGraph's."""

    def __init__(self, store: Store, head: Head) -> None:
        super().__init__(store, head)
        self.log = run_to_end(threads.read(store.scope.as_sync(), head))

    def lines(self, last: int | None) -> tuple[Sequence[Any], list[Line]]:
        found = reading.checkpoints_of(self.log)
        begun: set[int] = set()
        lines = []
        for one in found:
            line = threads.checkpoint_line(one, begins=one.line not in begun)
            lines.append((one.number, datetime.fromisoformat(one.at), line))
            begun.add(one.line)
        return (found[-last:], lines[-last:]) if last else (found, lines)

    def newest(self) -> list[int]:
        node = self.log.newest("")
        before = None if node is None or node.parent is None else self.log.node("", node.parent)
        return [one.seq for one in (before, node) if one is not None]

    def number(self, named: str) -> int:
        try:
            return reading.node_of(self.log, named).seq
        except LookupError as error:
            listed = f"`limpet history {shlex.quote(self.head.key.id)}` lists them."
            raise click.UsageError(f"{error.args[0]} {listed}") from error

    def compare(self, a: int, b: int) -> str:
        old, new = reading.node_of(self.log, str(a)), reading.node_of(self.log, str(b))
        lines = [f"{mark} {one.seq}, {one.id}" for mark, one in (("---", old), ("+++", new))]
        changes = lines_of(
            document_changes(threads.comparable(self.log, old), threads.comparable(self.log, new))
        )
        return "\n".join([*lines, *(changes or ["Nothing differs."])])


#: What has versions; the first is meant where several have the same id.
_VERSIONS: dict[str, type[Versions]] = {
    task.KIND: Versions,
    state.KIND: StateVersions,
    conversation.KIND: ConversationVersions,
    thread.KIND: ThreadVersions,
}


def print_versions(versions: Versions, last: int | None, *, as_json: bool) -> None:
    """Each version on a line, or all as JSON."""
    found, lines = versions.lines(last)
    if as_json:
        click.echo(json_document(found))
        return
    screen = Screen()
    for number, at, what in lines:
        when = f"{number:>5}  {screen.time(at)}  "
        screen.line((when, "dim"), safe(what), cut=True)


def describe_save(save: StateVersion) -> str:
    """What was saved, in a sentence."""
    if save.damaged:
        return "cannot be read"
    what = f"{'all of it' if save.full else 'changes'}, {human_size(save.bytes)}"
    return f"version {save.version}, {what}" + (f": {save.note}" if save.note else "")


def describe_entry(entry: Entry) -> str:
    """What an entry of a conversation says; of a message, who said what."""
    text = summary(entry, conversation.KIND)
    return text if entry.type == transcript.MESSAGE else f"{entry.type}: {text}".rstrip(": ")


def print_diff(versions: Versions, a: str | None, b: str | None, *, as_json: bool) -> None:
    """What changed from version *a* to version *b*; by default, between the last two."""
    kind, id_ = versions.head.key.kind, versions.head.key.id
    if a is None:
        numbers = versions.newest()
        if len(numbers) < 2:  # noqa: PLR2004 - it takes two to compare
            raise click.UsageError(f"{kind}/{id_} has one version only: nothing to compare.")
    elif b is None:
        newest = versions.newest()
        numbers = [versions.number(a), newest[-1] if kind == thread.KIND else versions.head.seq]
    else:
        numbers = [versions.number(a), versions.number(b)]
    first, last = numbers
    text = versions.compare(first, last)
    if as_json:
        about = {"kind": kind, "id": id_, "from": first, "to": last}
        click.echo(json_document(about | {"diff": text}))
        return
    screen = Screen()
    for line in safe(text).split("\n"):
        indent = 4 if line.startswith("  ") else 0
        style = _COLOURS.get(line.lstrip()[:1], "" if indent else "bold")
        screen.hanging(Text(line, style), indent=indent)


def compare_conversation(entries: list[Entry], id_: str, a: int, b: int) -> str:
    """The messages that were added and taken back from entry *a* to *b*, and what else happened."""
    times = {entry.seq: timestamp(entry.at) for entry in entries}
    lines = [f"--- {id_}, {times.get(a, a)}", f"+++ {id_}, {times.get(b, b)}"]

    def messages_at(seq: int) -> dict[int, Entry]:
        messages = transcript.Messages()
        for entry in entries:
            if entry.seq <= seq:
                messages.take(entry.type, [entry])
        return {entry.seq: entry for entry in messages.found}

    def said(entry: Entry) -> str:
        return summary(entry, conversation.KIND)

    before, after = messages_at(a), messages_at(b)
    changes = [f"  - {said(before[seq])}" for seq in before if seq not in after]
    changes += [f"  + {said(after[seq])}" for seq in after if seq not in before]
    lines += ["messages", *changes] if changes else []
    mark = "+" if a < b else "-"
    between = (e for e in entries if min(a, b) < e.seq and e.type not in _OF_MESSAGES)
    notes = [f"  {mark} {describe_entry(entry)}" for entry in between]
    lines += ["notes", *notes] if notes else []
    return "\n".join(lines if changes or notes else [*lines, "Nothing differs."])
