"""``holdfast history`` and ``holdfast diff``: what a task was before, and what has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.text import Text

from holdfast import task
from holdfast.cli.screen import Screen
from holdfast.cli.text import document, safe
from holdfast.cli.where import Where, find, pass_where, store_options

if TYPE_CHECKING:
    from holdfast import Store
    from holdfast.backends.base import Head
    from holdfast.task import Version

__all__ = ["diff", "history"]

_COLOURS = {"-": "red", "+": "green", "~": "yellow", "@": "dim"}


@click.command(short_help="Print what happened to a task.")
@click.argument("id_", metavar="TASK")
@click.option(
    "-n", "count", type=click.IntRange(min=1), metavar="N", help="Only the N newest. [default: all]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@store_options
@pass_where
def history(where: Where, *, id_: str, count: int | None, as_json: bool) -> None:
    """Print what happened to TASK, one line each: number, time, a sentence.

    The numbers are what `holdfast diff` takes, and task.at(), task.fork() and task.rewind().
    """
    with where.open() as store:
        found: list[Version] = store.task(_task(store, id_).key.id).history()
    shown = found[-count:] if count else found
    if as_json:
        click.echo(document(shown))
        return
    screen = Screen()
    for version in shown:
        number, at = f"{version.seq:>5}  ", f"{screen.time(version.at)}  "
        screen.line((number, "dim"), (at, "dim"), safe(version.what), cut=True)


@click.command(short_help="Compare two versions of a task.")
@click.argument("id_", metavar="TASK")
@click.argument("a", type=click.IntRange(min=1), metavar="A")
@click.argument("b", type=click.IntRange(min=1), metavar="[B]", required=False)
@store_options
@pass_where
def diff(where: Where, *, id_: str, a: int, b: int | None) -> None:
    """Print what changed in TASK from its entry A to its entry B, or to the newest.

    `holdfast history` has the numbers. What was taken away has a -, what was added a +, and what
    has another place in the plan a ~.
    """
    with where.open() as store:
        head = _task(store, id_)
        b = head.seq if b is None else b
        for number in (a, b):
            if not head.floor < number <= head.seq:
                there = f"{head.floor + 1:,} to {head.seq:,}"
                raise click.UsageError(f"There is no entry {number:,}: {id_!r} has {there}.")
        text: str = store.task(head.key.id).compare(a, b)
    screen = Screen()
    for line in safe(text).split("\n"):
        indent = 4 if line.startswith("  ") else 0
        style = _COLOURS.get(line.lstrip()[:1], "" if indent else "bold")
        screen.hanging(Text(line, style), indent=indent)


def _task(store: Store, name: str) -> Head:
    """The task that *name* means: its id, or task/ID as other commands take it."""
    return find(store, name if name.startswith(f"{task.KIND}/") else f"{task.KIND}/{name}")
