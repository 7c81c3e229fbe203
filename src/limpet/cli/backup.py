"""``limpet backup``, ``restore`` and ``salvage``: all of a store elsewhere, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import limpet
from limpet.backends.facts import human_size
from limpet.backends.url import DEFAULT_TENANT
from limpet.cli.options import FAILED, StoreOptions, audited, json_option, pass_store, store_options
from limpet.cli.output import Screen
from limpet.transfer import backup as backups
from limpet.transfer.salvage import salvage as salvaging
from limpet.views.text import count, json_document, safe

if TYPE_CHECKING:
    from limpet.transfer.copy import Copied

__all__ = ["backup", "restore", "salvage"]


@click.command(short_help="Back up the store, also while it is in use.")
@click.argument("target", metavar="DEST")
@click.option(
    "--replace", is_flag=True, help="Replace an earlier backup, when the new one is whole."
)
@json_option
@store_options
@pass_store
@audited("exported")
def backup(options: StoreOptions, *, target: str, replace: bool, as_json: bool) -> None:
    """Write all of the store, of all tenants, to DEST, and check that it can be read.

    DEST is a new file, or the URL of any kind of store. Programs may go on meanwhile. Of a SQLite
    store into a file it is one moment of all of it, your own tables too; otherwise each journal
    is copied as it is at a moment of its own. If not all can be read, there is no new backup, and
    the exit code is 1.

    Do not copy the file of a SQLite store yourself: what was written last is in its log.
    """
    saved = backups.backup(options.source, target, replace=replace)
    show(saved, as_json=as_json)


@click.command(short_help="Put a backup in the place of the store.")
@click.argument("source", metavar="BACKUP")
@click.option("--replace", is_flag=True, help="Replace the store, and keep it under another name.")
@json_option
@store_options
@pass_store
@audited("restored")
def restore(options: StoreOptions, *, source: str, replace: bool, as_json: bool) -> None:
    """Make the store what BACKUP is: what `limpet backup` has written, or any other store.

    BACKUP is read and checked before anything is changed. A store that is there is left alone
    unless you say --replace: then it gets another name, with its log, and is not deleted. While
    programs have it open it is refused, as far as that can be known: stop them first. A server's
    store must be empty.

    Do not put a SQLite file in place yourself: a log that a killed process has left would be
    read into it.
    """
    saved = backups.restore(source, options.source, replace=replace)
    show(saved, as_json=as_json)


def show(saved: backups.Saved, *, as_json: bool) -> None:
    """Say what was written."""
    if as_json:
        click.echo(json_document(saved))
        return
    screen = Screen()
    journals, entries = count(saved.journals, "journal"), count(saved.entries, "entry", "entries")
    size = human_size(saved.size)
    screen.line(f"{safe(saved.url)}: {journals}, {entries} ({size}), all readable.")
    if saved.replaced:
        screen.line(f"The store that was there is now {safe(saved.replaced)}.")


@click.command(short_help="Write what a damaged store still has to a new one.")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@json_option
@click.pass_context
def salvage(context: click.Context, *, source: str, target: str, as_json: bool) -> None:
    """Read what can be read of the damaged store FROM, and write it to the new store TO.

    FROM is only read. Of a SQLite file every page is looked at for itself, so that a damaged one
    costs what was in it and nothing else; tables of your own are not looked at. Entries keep
    their numbers, times and ids. Those that are lost are named, journal by journal, and the exit
    code is 1; in TO, entries of the type "limpet.lost" stand in their place. Copy FROM away
    first, with its -wal file if there is one: a disk that fails may give less the next time.
    """
    with limpet.open(target) as store:
        journals = sorted(salvaging(source, store), key=lambda journal: journal.key)
        url = store.backend.url
    damaged = [journal for journal in journals if journal.lost or not journal.ok]
    if as_json:
        found = {
            "to": url,
            "ok": not damaged,
            "journals": len(journals),
            "entries": sum(journal.entries - missing(journal) for journal in journals),
            "lost": [
                journal.key._asdict() | {"entries": journal.lost, "why": journal.why}
                for journal in damaged
            ],
        }
        click.echo(json_document(found))
    else:
        screen = Screen()
        left = count(sum(one.entries - missing(one) for one in journals), "entry", "entries")
        screen.line(f"{safe(url)}: {count(len(journals), 'journal')}, {left}.")
        if damaged:
            screen.line(("Lost:", "bold red"))
        for one in damaged:
            name = f"{one.key.kind}/{one.key.id}"
            name += f" (tenant {one.key.tenant})" if one.key.tenant != DEFAULT_TENANT else ""
            runs = (f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in one.lost)
            screen.block(f"{name}: {one.why or 'entries ' + ', '.join(runs)}")
    context.exit(FAILED if damaged else 0)


def missing(journal: Copied) -> int:
    """How many entries of it are lost."""
    return sum(last - first + 1 for first, last in journal.lost)
