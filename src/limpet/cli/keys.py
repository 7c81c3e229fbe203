"""``limpet keys``: what a store is encrypted with, and how that is changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, TextColumn

from limpet.cli.options import (
    FAILED,
    Commands,
    Failure,
    audited,
    json_option,
    pass_store,
    store_options,
)
from limpet.cli.output import Screen, progress_bar
from limpet.crypto.keys import Keys
from limpet.crypto.rotation import Needs, rotate, status
from limpet.crypto.sealed import Sealed
from limpet.views.text import count, json_document, safe

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.cli.options import StoreOptions

__all__ = ["keys"]

NO_KEYS = "No keys are named. Set $LIMPET_KEYS to the file that `limpet keys new FILE` makes."


@click.group(cls=Commands, short_help="Make, look at and rotate the keys of an encrypted store.")
def keys() -> None:
    """Make the keys that a store is encrypted with, see what needs them, and rotate them.

    A store that is made with $LIMPET_KEYS set to a file of keys is encrypted. To rotate: `limpet
    keys new` adds a key and makes it the current one, `limpet keys rotate` encrypts all data keys
    under it, `limpet keys retire` takes the old one out of the file.
    """


def file_of(path: str | None) -> str:
    """The key file that is meant."""
    found = path or os.environ.get("LIMPET_KEYS", "").strip()
    if not found:
        raise Failure(NO_KEYS)
    if not path and "=" in found and not os.path.exists(os.path.expanduser(found)):
        raise Failure("$LIMPET_KEYS has the keys themselves. Name a file, as $LIMPET_KEYS or here.")
    return os.path.expanduser(found)


@keys.command(short_help="Make a file with a key in it, or add a key.")
@click.argument("path", metavar="[FILE]", required=False)
@click.option("--spare", is_flag=True, help="Only add it: the current key stays what it is.")
def new(*, path: str | None, spare: bool) -> None:
    """Make FILE with a key in it, or add one to it, which becomes the current key.

    Without FILE, the one that $LIMPET_KEYS names. Only its owner may read it. Keep a copy where
    the store's backups are not: without its keys nobody reads an encrypted store again. Programs
    that share the file take the new key by themselves; give it to those on other machines first,
    with --spare, and then make it the current one with `limpet keys use`.
    """
    file = file_of(path)
    there = os.path.lexists(file)
    made = Keys.load(file).with_new(current=not spare) if there else Keys.generate()
    made.save(file)
    Screen().line(
        f"{safe(file)}: key {made.numbers[-1]} is new; the current key is {made.current}."
    )


@keys.command(short_help="Make another key the current one.")
@click.argument("number", metavar="N", type=click.IntRange(min=1))
@click.argument("path", metavar="[FILE]", required=False)
def use(*, number: int, path: str | None) -> None:
    """Make key N of FILE the current one, under which new data keys are encrypted."""
    file = file_of(path)
    Keys.load(file).with_current(number).save(file)
    Screen().line(f"{safe(file)}: the current key is {number}.")


@keys.command(name="status", short_help="Say which keys the store needs.")
@json_option
@store_options
@pass_store
@click.pass_context
def status_(context: click.Context, options: StoreOptions, *, as_json: bool) -> None:
    """Say which keys the store needs, and how many journals need each.

    Of all tenants. Nothing is changed. Exit code 1 if of some it cannot be told.
    """
    needs, current = walked(options, status, readonly=True)
    show(needs, current, as_json=as_json)
    context.exit(FAILED if needs.unknown else 0)


@keys.command(name="rotate", short_help="Bring all journals under the current key.")
@json_option
@store_options
@pass_store
@audited("rotated the keys")
@click.pass_context
def rotate_(context: click.Context, options: StoreOptions, *, as_json: bool) -> None:
    """Encrypt the data keys of all journals under the current key.

    What was encrypted with them is not written again, so it costs one small write a journal.
    Programs may go on meanwhile. It may be interrupted: run it again, and it goes on. Exit code 1
    if something could not be done; it is named.
    """
    needs, current = walked(options, rotate, readonly=False)
    show(needs, current, as_json=as_json)
    context.exit(FAILED if needs.unknown else 0)


@keys.command(short_help="Take a key out that nothing needs any more.")
@click.argument("number", metavar="N", type=click.IntRange(min=1))
@store_options
@pass_store
def retire(options: StoreOptions, *, number: int) -> None:
    """Take key N out of the file that $LIMPET_KEYS names, if nothing in the store needs it.

    It is kept beside the file, as FILE.retired-N: backups from before the rotation need it. Remove
    that when there are none of them any more. If several stores share the file, look at each of
    them with `limpet keys status` first; and before, restart the programs that do not share it.
    """
    file = file_of(None)
    before = Keys.load(file)
    after = before.without(number)
    needs, _ = walked(options, status, readonly=True)
    if needs.unknown:
        key, why = needs.unknown[0]
        raise Failure(f"Of {key.kind}/{key.id} it cannot be told which key it needs: {why}")
    if needs.journals.get(number):
        total = count(needs.journals[number], "journal")
        msg = (
            f"Key {number} is still needed by {total}: {names(needs, number)}. `limpet keys rotate`"
        )
        raise Failure(f"{msg} encrypts their data keys under the current one.")
    Keys({number: before.secret(number)}).save(f"{file}.retired-{number}")
    after.save(file)
    options.record("retired a key", about={"key": number})
    Screen().line(f"{safe(file)}: key {number} is now in {safe(file)}.retired-{number}.")


def walked(
    options: StoreOptions, walk: Callable[..., Needs], *, readonly: bool
) -> tuple[Needs, int]:
    """What *walk* finds in the store, with progress; and the current key."""
    with options.open(readonly=readonly) as store:
        backend = store.backend
        if not isinstance(backend, Sealed):
            raise Failure(NO_KEYS)
        with progress_bar(TextColumn("{task.completed:,} journals"), BarColumn()) as bar:
            job = bar.add_task("", total=None)
            needs = walk(backend, None if bar.disable else lambda more: bar.advance(job, more))
        return needs, backend.keys.current


def show(needs: Needs, current: int, *, as_json: bool) -> None:
    """What needs which key, in words or as JSON."""
    if as_json:
        data: dict[str, Any] = {
            "current": current,
            "rewrapped": needs.rewrapped,
            "journals": {str(number): many for number, many in sorted(needs.journals.items())},
            "unknown": [key._asdict() | {"why": why} for key, why in needs.unknown],
        }
        click.echo(json_document(data))
        return
    screen = Screen()
    if needs.rewrapped:
        screen.line(f"{count(needs.rewrapped, 'data key')} encrypted under key {current}.")
    for number, many in sorted(needs.journals.items()):
        what = " (the current one)" if number == current else f": {names(needs, number)}"
        screen.line(f"key {number}: {count(many, 'journal')}{what}")
    for key, why in needs.unknown:
        screen.block(f"{key.kind}/{key.id} of tenant {key.tenant}: {why}", style="bold red")


def names(needs: Needs, number: int) -> str:
    """Some of the journals that need a key."""
    named = needs.named[number]
    more = ", …" if needs.journals[number] > len(named) else ""
    return safe(", ".join(f"{key.kind}/{key.id}" for key in named)) + more
