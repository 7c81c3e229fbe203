"""``limpet tail``: the newest entries of a journal, and those to come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from limpet.cli.errors import Missing
from limpet.cli.messages import summary
from limpet.cli.screen import Screen
from limpet.cli.text import json_line, safe
from limpet.cli.where import Where, find, pass_where, store_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet import Entry, Store
    from limpet.backends.contract import Head

__all__ = ["tail"]

#: Seconds that we wait for more before we look whether the journal is still there.
PATIENCE = 2.0

#: Columns of an entry's type, where there is room to align what follows it.
TYPE = 10


@click.command(short_help="Print the newest entries of a journal.")
@click.argument("id_", metavar="ID")
@click.option(
    "-n",
    "count",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="How many entries.",
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new ones, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON Lines: one object an entry.")
@store_options
@pass_where
def tail(where: Where, *, id_: str, count: int, follow: bool, as_json: bool) -> None:
    """Print the newest entries under ID, one line each: number, time, type, summary.

    ID is an id, or KIND/ID where a conversation and a task have the same id.
    """
    screen = Screen()
    with where.open() as store:
        head = find(store, id_)
        try:
            for entry in _entries(store, head, count, follow=follow):
                if as_json:
                    click.echo(json_line(entry))
                else:
                    _print(entry, screen)
        except KeyboardInterrupt:  # how following ends, not a failure
            if not follow:
                raise


def _entries(store: Store, head: Head, count: int, *, follow: bool) -> Iterator[Entry]:
    journal = store.journal(head.key.kind, head.key.id)
    seq = head.seq
    for entry in journal.read(upto=seq, limit=count, reverse=True)[::-1] if count else ():
        yield entry
    while follow:
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


def _print(entry: Entry, screen: Screen) -> None:
    screen.line(
        (f"{entry.seq:>5}  ", "dim"),
        (f"{screen.time(entry.at)}  ", "dim"),
        (safe(entry.type).ljust(0 if screen.narrow else TYPE), "bold"),
        "  ",
        summary(entry),
        cut=True,
    )
