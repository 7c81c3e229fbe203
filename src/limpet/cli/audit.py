"""``limpet audit``: who did what through commands, the inspector and MCP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from limpet.cli.options import (
    COMMAND,
    Commands,
    Failure,
    Missing,
    StoreOptions,
    json_option,
    pass_store,
    store_options,
    user_name,
)
from limpet.cli.output import Screen
from limpet.core import audit as acts
from limpet.core.runtime import run_to_end
from limpet.views.text import count, json_document, safe

if TYPE_CHECKING:
    from limpet.core.audit import Act

__all__ = ["audit"]


@click.group(cls=Commands, short_help="Who did what: record it, show it, verify it.")
def audit() -> None:
    """Record who did what, and to what: opened, signalled, resolved, forked, exported, forgot.

    What commands, the inspector and the MCP server do is recorded, once `limpet audit on` was given
    for the tenant. An act never has any content in it. Each is chained to the one before it.
    """


@audit.command("on", short_help="Record acts from now on.")
@store_options
@pass_store
def turn_on(options: StoreOptions) -> None:
    """Record acts from now on, for this tenant. It cannot be turned off again: only deleted."""
    with options.open(readonly=False) as store:
        run_to_end(acts.begin(store.scope, via=COMMAND, who=user_name()))
    click.echo("Acts are recorded.")


@audit.command(short_help="List acts, the newest last.")
@click.option(
    "--last",
    type=click.IntRange(min=1),
    metavar="N",
    default=50,
    help="The newest N. [default: 50]",
)
@json_option
@store_options
@pass_store
def show(options: StoreOptions, *, last: int, as_json: bool) -> None:
    """List acts: when, who, through what, what, and to what."""
    with options.open() as store:
        found = run_to_end(acts.acts(store.scope, last=last))
    if as_json:
        click.echo(json_document(found))
        return
    if not found:
        raise Missing("No acts are recorded. `limpet audit on` begins that.")
    screen = Screen()
    for act in found:
        screen.line((safe(act.at), "dim"), f"  {line(act)}")


def line(act: Act) -> str:
    """An act on one line."""
    about = ", ".join(f"{name} {value}" for name, value in (act.about or {}).items())
    target = f"{act.kind}/{act.id}" if act.kind and act.id else act.id or act.kind or ""
    words = [act.who or "somebody", f"({act.via})", act.what, target, f"({about})" if about else ""]
    return safe(" ".join(filter(None, words)))


@audit.command(short_help="Check that no act was changed or removed.")
@click.option("--last", metavar="HASH", help="A last hash of earlier: it must still be there.")
@json_option
@store_options
@pass_store
def verify(options: StoreOptions, *, last: str | None, as_json: bool) -> None:
    """Check that every act is as it was recorded, in its place, and that none is missing.

    Keep the last hash that is printed elsewhere, and give it as --last the next time: whoever can
    write to the store could make the whole chain anew, or cut off its end.
    """
    with options.open() as store:
        found = run_to_end(acts.verify(store.scope, last=last))
    if as_json:
        click.echo(json_document(found))
    if found.problem is not None:
        raise Failure(f"{found.problem} {count(found.acts, 'act')} before that hold.", "Tampered")
    if not as_json:
        screen = Screen()
        screen.line(f"{count(found.acts, 'act')}, each as it was recorded.")
        screen.line(("last hash: ", "dim"), found.last or "none")
