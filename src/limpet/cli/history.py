"""``limpet history``: the versions of a task, a state or a conversation, and what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from limpet.backends.facts import human_size
from limpet.cli.messages import summary
from limpet.cli.options import (
    StoreOptions,
    find,
    head_of,
    json_option,
    pass_store,
    store_options,
)
from limpet.cli.output import Screen, json_document, safe, timestamp
from limpet.conversations import conversation, transcript
from limpet.states import state
from limpet.tasks import task

if TYPE_CHECKING:
    from datetime import datetime

    from limpet import Entry, StateVersion, Store
    from limpet.backends.contract import Head
    from limpet.tasks.task import TaskVersion

__all__ = ["history"]

#: What has versions; the first is meant where several have the same id.
_KINDS = (task.KIND, state.KIND, conversation.KIND)
#: Entries of a conversation that only say what is a message of it.
_OF_MESSAGES = {
    *(transcript.MESSAGE, transcript.COPIED, transcript.FORKED),
    *(transcript.POPPED, transcript.CLEARED),
}
_COLOURS = {"-": "red", "+": "green", "~": "yellow", "@": "dim"}


@click.command(short_help="Print the versions of something, or compare two.")
@click.argument("id_", metavar="ID")
@click.argument("a", type=click.IntRange(min=1), metavar="[A]", required=False)
@click.argument("b", type=click.IntRange(min=1), metavar="[B]", required=False)
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
    a: int | None,
    b: int | None,
    diff: bool,
    last: int | None,
    as_json: bool,
) -> None:
    """Print what happened to a task, the saves of a state, or the entries of a conversation.

    One line each: number, time, what. The numbers are what --diff takes, and in a program
    task.versions.at(), .fork() and .rewind(), restore() of a state, or fork() of a conversation.

    With --diff, compare version A with B; without B, with the newest; without A, the last two with
    each other. What was taken away has a -, what was added a +, and what has another place in a
    plan a ~.

    ID is an id, or KIND/ID. Where several have the same id, the task is meant, else the state.
    """
    if a is not None and not diff:
        raise click.UsageError("The numbers of versions are for --diff.")
    if last is not None and diff:
        raise click.UsageError("-n is for the list; --diff takes the numbers of two versions.")
    with options.open() as store:
        named = id_.partition("/")[0] in _KINDS
        found = [] if named else [head_of(store, kind, id_) for kind in _KINDS]
        head = next((one for one in found if one is not None), None) or find(store, id_)
        if head.key.kind not in _KINDS:
            raise click.UsageError(f"{id_!r} is a {head.key.kind}, which has no versions.")
        if diff:
            print_diff(store, head, a, b, as_json=as_json)
        else:
            print_versions(store, head, last, as_json=as_json)


def print_versions(store: Store, head: Head, last: int | None, *, as_json: bool) -> None:
    """Each version on a line, or all as JSON."""
    kind, id_ = head.key.kind, head.key.id
    lines: list[tuple[int, datetime, str]]
    found: list[Any]
    if kind == state.KIND:
        saves: list[StateVersion] = store.state(id_).history(last=last)
        found, lines = saves, [(one.position, one.at, describe_save(one)) for one in saves]
    elif kind == task.KIND:
        versions: list[TaskVersion] = store.task(id_).versions.list()
        found = versions[-last:] if last else versions
        lines = [(one.seq, one.at, one.what) for one in found]
    else:
        journal = store.journal(kind, id_)
        entries = journal.read() if last is None else journal.read(reverse=True, limit=last)[::-1]
        lines = [(one.seq, one.at, describe_entry(one)) for one in entries]
        found = [{"seq": seq, "at": at, "what": what} for seq, at, what in lines]
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


def print_diff(store: Store, head: Head, a: int | None, b: int | None, *, as_json: bool) -> None:
    """What changed from version *a* to version *b*; by default, between the last two."""
    kind, id_ = head.key.kind, head.key.id
    if a is None:
        if kind == state.KIND:
            saves: list[StateVersion] = store.state(id_).history(last=2)
            numbers = [one.position for one in saves]
        else:  # each entry makes a version
            numbers = [seq for seq in (head.seq - 1, head.seq) if seq >= head.first]
        if len(numbers) < 2:  # noqa: PLR2004 - it takes two to compare
            raise click.UsageError(f"{kind}/{id_} has one version only: nothing to compare.")
        a, b = numbers
    b = head.seq if b is None else b
    for number in (a, b):
        if not head.first <= number <= head.seq:
            there = f"{head.first:,} to {head.seq:,}"
            raise click.UsageError(f"There is no entry {number:,}: {id_!r} has {there}.")
    text: str
    if kind == state.KIND:
        text = store.state(id_).diff(a, b)
    elif kind == task.KIND:
        text = store.task(id_).versions.compare(a, b)
    else:
        text = compare_conversation(store.journal(kind, id_).read(upto=max(a, b)), id_, a, b)
    if as_json:
        about = {"kind": kind, "id": id_, "from": a, "to": b}
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
