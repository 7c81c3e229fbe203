"""``limpet import``: what agents have kept in JSON files, as conversations, tasks and states."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

import limpet
from limpet.cli.errors import Failure
from limpet.cli.export import take_in
from limpet.cli.screen import Screen
from limpet.cli.text import document, safe
from limpet.cli.where import Where, pass_where, store_options
from limpet.conversations import conversation
from limpet.errors import NotImportable, NotStorable, StoreNotFound, TooLarge
from limpet.tasks import task
from limpet.transfer import export as _transfer
from limpet.transfer import imports as importing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.transfer.imports import Item

__all__ = ["import_"]

KINDS = (conversation.KIND, task.KIND, importing.STATE)

#: Suffixes of JSON Lines.
LINES = (".jsonl", ".ndjson")


@click.command("import", short_help="Import JSON files of agents.")
@click.argument(
    "path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option(
    "--as",
    "as_",
    type=click.Choice(KINDS),
    help="What the file is to become, if its shape does not say.",
)
@click.option("--id", "id_", metavar="ID", help="What it is to be known by. [default: see above]")
@click.option("--goal", metavar="TEXT", help="The goal of a checkpoint that has none.")
@click.option("--dry-run", is_flag=True, help="Say what would be imported, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@store_options
@pass_where
def import_(
    where: Where,
    *,
    path: str,
    as_: str | None,
    id_: str | None,
    goal: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Import FILE, which an agent or a framework has written, into the store.

    \b
    What it can be, found out by its shape:
      messages    a list of them, {"messages": [...]}, or JSON Lines, in the
                  shape of OpenAI, of Anthropic or of LangChain
                  -> a conversation, known by the file's name
      AutoGen     what save_state() of an agent or a team returns
                  -> a conversation for each agent (of a team: NAME/AGENT), and
                  the whole document, as an entry "imported" of state/NAME
      checkpoint  goal, plan, completed, results, decisions, discoveries
                  -> a task, known by its task_id, that goes on after the
                  steps that are completed
      many        a list of these, or an object with one under each id
      export      what `limpet export` has written -> the same conversations,
                  with their positions, times, labels and summaries

    A file with more in it than that has a place for is kept whole as well, as state/NAME; with
    --as state, any file is. FILE may be - for standard input.

    Importing a file again adds nothing. A file that has changed since is refused: import it under
    another --id. An import that was interrupted is finished by the same command.
    """  # noqa: D301 - click's mark for lines that are not to be wrapped
    found = _parsed(path)
    if _transfer.is_export(found) and as_ in (None, conversation.KIND):
        _take_in(where, found, path, id_=id_, dry_run=dry_run, as_json=as_json)
        return
    items = _items(found, path, as_, id_, goal)
    try:
        with _opened(where, dry_run=dry_run) as store:
            outcomes = _looked(store, items) if dry_run else _put(store, items)
    except StoreNotFound:
        if not dry_run:
            raise
        outcomes = [importing.NEW] * len(items)
    if as_json:
        click.echo(document([_facts(*pair) for pair in zip(items, outcomes, strict=True)]))
        return
    screen = Screen()
    for item, outcome in zip(items, outcomes, strict=True):
        _print(screen, item, outcome, dry_run=dry_run)
    if dry_run:
        screen.line("Nothing was written.")


# -- reading ---------------------------------------------------------------------------------------


def _parsed(path: str) -> Any:
    """The document in the file."""
    lines = os.path.splitext(path)[1].lower() in LINES
    with _blamed(path):
        return importing.parse(_read(path), lines=lines)


def _items(found: Any, path: str, as_: str | None, id_: str | None, goal: str | None) -> list[Item]:
    """What is in the file."""
    stem = os.path.splitext(os.path.basename(path))[0]
    if path == "-" and id_ is None:
        raise click.UsageError("What comes from standard input has no name: give it an --id.")
    with _blamed(path):
        return importing.understand(found, name=stem, id=id_, as_=as_, goal=goal)


@contextmanager
def _blamed(path: str) -> Iterator[None]:
    """Name the file in what is wrong with it."""
    try:
        yield
    except (NotImportable, NotStorable, TooLarge) as error:
        name = "standard input" if path == "-" else os.path.basename(path)
        raise Failure(f"{name}: {error}", type(error).__name__) from error


def _read(path: str) -> bytes:
    with click.open_file(path, "rb") as file:
        # One byte over the limit is enough to be refused.
        return bytes(file.read(importing.MAX_FILE + 1))


# -- writing ---------------------------------------------------------------------------------------


@contextmanager
def _opened(where: Where, *, dry_run: bool) -> Iterator[limpet.Store]:
    """The store: to look at it, or to write, and then it is created if need be."""
    store = where.open() if dry_run else where.open(create=True, readonly=False)
    with store:
        yield store


def _take_in(where: Where, found: Any, path: str, **options: Any) -> None:
    """Import what ``limpet export`` has written; a dry run needs no store."""
    try:
        store = _opened(where, dry_run=options["dry_run"])
        with store as opened, _blamed(path):
            take_in(opened, found, **options)
    except StoreNotFound:
        if not options["dry_run"]:
            raise
        with limpet.open("memory:", tenant=where.tenant) as empty, _blamed(path):
            take_in(empty, found, **options)


def _looked(store: limpet.Store, items: list[Item]) -> list[str]:
    """What there is of each; the first that has an id of somebody else's ends it."""
    outcomes = [importing.look(store, item) for item in items]
    for item, outcome in zip(items, outcomes, strict=True):
        if outcome == importing.OTHER:
            raise importing.taken(item)
    return outcomes


def _put(store: limpet.Store, items: list[Item]) -> list[str]:
    outcomes = _looked(store, items)  # all of them, before anything is written
    with _progress(items) as advance:
        for item in items:
            importing.put(store, item, advance)
    return outcomes


@contextmanager
def _progress(items: list[Item]) -> Iterator[Callable[[int], object]]:
    """A bar of entries, if somebody is watching."""
    screen = Screen(stderr=True)
    if not screen.terminal:
        yield lambda _: None
        return
    columns = (BarColumn(bar_width=None), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=screen.console, transient=True, expand=True) as bar:
        whole = bar.add_task("", total=sum(len(item.entries) for item in items))
        yield lambda count: bar.advance(whole, count)


# -- telling ---------------------------------------------------------------------------------------

_SAID = {
    importing.NEW: ("imported", "would be imported"),
    importing.PART: ("imported, from where it had been interrupted", "would be finished"),
    importing.THERE: ("there already; nothing was added", "is there already"),
}


def _print(screen: Screen, item: Item, outcome: str, *, dry_run: bool) -> None:
    said = _SAID[outcome][dry_run]
    screen.line((f"{item.kind}/", "dim"), (safe(item.id), "bold"), f": {safe(item.about)}; {said}")
    for note in item.notes:
        screen.block(note, style="yellow")


def _facts(item: Item, outcome: str) -> dict[str, object]:
    return {
        "kind": item.kind,
        "id": item.id,
        "entries": len(item.entries),
        "about": item.about,
        "was": outcome,
        "notes": item.notes,
    }
