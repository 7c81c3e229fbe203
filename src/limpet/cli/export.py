"""``limpet export``: conversations and states as JSON, and their way back in."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import click

from limpet.cli.errors import Failure
from limpet.cli.listing import label_option
from limpet.cli.screen import Screen
from limpet.cli.text import document, json_line, safe
from limpet.cli.where import Where, pass_where, store_options
from limpet.integrations.autogen.run import exported
from limpet.transfer import copy as copying
from limpet.transfer import export as _transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.backends.contract import Head
    from limpet.states.state import State
    from limpet.store import Store
    from limpet.transfer.copy import Copied

__all__ = ["export", "take_in"]


@click.command(short_help="Write conversations, or a state, to JSON.")
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option("--prefix", metavar="TEXT", default="", help="Only ids that begin with this.")
@label_option
@click.option(
    "--messages", "only_messages", is_flag=True, help="Only what was said, as models take it."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "json"]),
    help="JSON Lines or one document. [default: by the name of FILE, else jsonl]",
)
@click.option("--state", metavar="ID", help="This state, as the program that saved it loads it.")
@click.option(
    "--at", type=click.IntRange(min=1), metavar="N", help="With --state: as it was at its save N."
)
@click.option(
    "--output", "-o", "path", metavar="FILE", help="Write to this new file, and not to the screen."
)
@store_options
@pass_where
def export(
    where: Where,
    *,
    ids: tuple[str, ...],
    prefix: str,
    labels: dict[str, str],
    only_messages: bool,
    form: str | None,
    state: str | None,
    at: int | None,
    path: str | None,
) -> None:
    """Write the conversations ID..., or all of this tenant, in a form that programs read.

    A whole export has every entry with its position and time, labels, summaries and all else:
    `limpet import` makes the same conversation of it, in any store. With --messages it has only
    the messages: of one conversation a list of them, of several one line or key for each.

    With --state it is one document: the newest save of that state, or another (`limpet history`
    has their numbers). Of an AutoGen agent or team it is what load_state() takes in plain AutoGen.

    What is exported can be read by anybody who has the file, whatever the store was.
    """
    if state is not None:
        if ids or prefix or labels or only_messages or form:
            raise click.UsageError("--state goes with --at and --output only.")
        _export_state(where, state, at, path)
        return
    if at is not None:
        raise click.UsageError("--at is for a state: say which with --state.")
    form = form or ("json" if path and path.endswith(".json") else "jsonl")
    with where.open() as store:
        found = list(_transfer.heads(store, ids, prefix=prefix, labels=labels))
        if not found:
            Screen(stderr=True).line(f"There is no conversation like that in {where.name}.")
        write = _messages if only_messages else _whole
        with _written(path) as put:
            for text in write(store, found, form, single=len(ids) == 1):
                put(text)
    if path:
        count = "1 conversation" if len(found) == 1 else f"{len(found):,} conversations"
        Screen(stderr=True).line(f"{count} written to {safe(path)}.")


def _export_state(where: Where, id_: str, at: int | None, path: str | None) -> None:
    with where.open() as store:
        state: State = store.state(id_)
        position = state.info().position if at is None else at
        found = exported(state.at(position, migrate=False))
    with _written(path) as put:
        put(document(found))
    if path:
        told = f"State {safe(id_)}, as it was saved at {position:,}, was written to {safe(path)}."
        Screen(stderr=True).line(told)


def _whole(store: Store, found: list[Head], form: str, *, single: bool) -> Iterator[str]:  # noqa: ARG001 - as _messages
    if form == "json":
        yield document(_transfer.document(store, found))
    else:
        yield from (json_line(line) for line in _transfer.lines(store, found))


def _messages(store: Store, found: list[Head], form: str, *, single: bool) -> Iterator[str]:
    lines = _transfer.messages_lines(store, found)
    if single:
        messages: list[Any] = next(iter(lines))["messages"]
        yield from [document(messages)] if form == "json" else map(json_line, messages)
    elif form == "json":
        yield document({line["id"]: line["messages"] for line in lines})
    else:
        yield from map(json_line, lines)


@contextlib.contextmanager
def _written(path: str | None) -> Iterator[Callable[[str], object]]:
    """Where lines go: the screen, or a file that was not there, and is not if it fails."""
    if path is None:
        yield click.echo
        return
    try:
        file = open(path, "x", encoding="utf-8")  # noqa: SIM115 - closed below
    except FileExistsError as error:
        msg = f"There is a file {path} already, and it is left alone. Name another."
        raise Failure(msg, "FileExistsError") from error
    try:
        with file:
            yield lambda text: file.write(text + "\n")
    except BaseException:
        os.remove(path)
        raise


# -- and back --------------------------------------------------------------------------------------

_SAID = {
    copying.NEW: ("imported", "would be imported"),
    copying.CONTINUED: ("imported, from where it had been interrupted", "would be finished"),
    copying.SAME: ("there already; nothing was added", "is there already"),
    copying.GONE: ("left out: its time to live is over", "would be left out: its time is over"),
}


def take_in(store: Store, found: Any, *, id_: str | None, dry_run: bool, as_json: bool) -> None:
    """Import what `export` has written."""
    done = _transfer.put(store, found, id=id_, dry_run=dry_run)
    for copied in done:
        if not copied.ok:
            raise _left_alone(copied)
    if as_json:
        click.echo(document([_facts(copied) for copied in done]))
        return
    screen = Screen()
    for copied in done:
        count = copied.entries or copied.verified
        entries = "1 entry" if count == 1 else f"{count:,} entries"
        name = (f"{copied.key.kind}/", "dim"), (safe(copied.key.id), "bold")
        screen.line(*name, f": {entries}; {_SAID[copied.outcome][dry_run]}")
    if dry_run:
        screen.line("Nothing was written.")


def _left_alone(copied: Copied) -> Failure:
    msg = (
        f"There is a conversation {copied.key.id!r} already, and it is not what is in this file. "
        f"It was left alone. {copied.why} Import the file under another id (--id), or delete it."
    )
    return Failure(msg, "Conflict")


def _facts(copied: Copied) -> dict[str, object]:
    return {
        "kind": copied.key.kind,
        "id": copied.key.id,
        "entries": copied.entries or copied.verified,
        "was": copied.outcome,
    }
