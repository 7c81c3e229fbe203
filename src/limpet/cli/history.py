"""``limpet history`` and ``limpet diff``: what a task or a state was before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.text import Text

from limpet.backends.facts import human_size
from limpet.cli.errors import Missing
from limpet.cli.screen import Screen
from limpet.cli.text import document, safe
from limpet.cli.where import Where, find, pass_where, store_options
from limpet.states import state
from limpet.tasks import task

if TYPE_CHECKING:
    from limpet import StateVersion, Store
    from limpet.backends.contract import Head
    from limpet.tasks.task import TaskVersion

__all__ = ["diff", "history"]

_COLOURS = {"-": "red", "+": "green", "~": "yellow", "@": "dim"}


@click.command(short_help="Print what happened to a task or a state.")
@click.argument("id_", metavar="ID")
@click.option(
    "-n", "count", type=click.IntRange(min=1), metavar="N", help="Only the N newest. [default: all]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@store_options
@pass_where
def history(where: Where, *, id_: str, count: int | None, as_json: bool) -> None:
    """Print what happened to a task, or the saves of a state, one line each: number, time, what.

    The numbers are what `limpet diff` takes, and in a program task.versions.at(), .fork() and
    .rewind(), or restore() of a state. ID is an id, or state/ID where a task has the same.
    """
    with where.open() as store:
        head = _past(store, id_)
        if head.key.kind == state.KIND:
            saves: list[StateVersion] = store.state(head.key.id).history()
            lines = [(one.position, one.at, _save(one)) for one in saves]
            found: list[StateVersion] | list[TaskVersion] = saves
        else:
            versions: list[TaskVersion] = store.task(head.key.id).versions.list()
            lines = [(version.seq, version.at, version.what) for version in versions]
            found = versions
    if as_json:
        click.echo(document(found[-count:] if count else found))
        return
    screen = Screen()
    for number, at, what in lines[-count:] if count else lines:
        told = (f"{number:>5}  ", "dim"), (f"{screen.time(at)}  ", "dim"), safe(what)
        screen.line(*told, cut=True)


def _save(one: StateVersion) -> str:
    """What was saved, in a sentence."""
    if one.damaged:
        return "cannot be read"
    what = f"{'all of it' if one.full else 'changes'}, {human_size(one.bytes)}"
    return f"version {one.version}, {what}" + (f": {one.note}" if one.note else "")


@click.command(short_help="Compare two versions of a task or a state.")
@click.argument("id_", metavar="ID")
@click.argument("a", type=click.IntRange(min=1), metavar="A")
@click.argument("b", type=click.IntRange(min=1), metavar="[B]", required=False)
@store_options
@pass_where
def diff(where: Where, *, id_: str, a: int, b: int | None) -> None:
    """Print what changed in the task or state ID from its entry A to its entry B, or the newest.

    `limpet history` has the numbers. What was taken away has a -, what was added a +, and what
    has another place in the plan a ~.
    """
    with where.open() as store:
        head = _past(store, id_)
        b = head.seq if b is None else b
        for number in (a, b):
            if not (head.first - 1) < number <= head.seq:
                there = f"{head.first:,} to {head.seq:,}"
                raise click.UsageError(f"There is no entry {number:,}: {id_!r} has {there}.")
        is_state = head.key.kind == state.KIND
        if is_state:
            text: str = store.state(head.key.id).diff(a, b)
        else:
            text = store.task(head.key.id).versions.compare(a, b)
    screen = Screen()
    for line in safe(text).split("\n"):
        indent = 4 if line.startswith("  ") else 0
        style = _COLOURS.get(line.lstrip()[:1], "" if indent else "bold")
        screen.hanging(Text(line, style), indent=indent)


def _past(store: Store, name: str) -> Head:
    """The task that *name* means, or else the state: an id, or KIND/ID as elsewhere."""
    if name.startswith((f"{task.KIND}/", f"{state.KIND}/")):
        return find(store, name)
    try:
        return find(store, f"{task.KIND}/{name}")
    except Missing as missing:
        try:
            return find(store, f"{state.KIND}/{name}")
        except Missing:
            raise missing from None
