"""``limpet tail``: the newest entries of a journal, and those that come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from limpet.cli.options import Missing, StoreOptions, audited, find, pass_store, store_options
from limpet.cli.output import Screen
from limpet.views.messages import summary
from limpet.views.text import json_line, safe

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
@audited("opened", "id_")
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
