"""``limpet search``: who said, did, saved and learned what."""

from __future__ import annotations

import click

from limpet.cli.options import (
    FAILED,
    StoreOptions,
    audited,
    best_option,
    json_option,
    label_option,
    pass_store,
    store_options,
)
from limpet.cli.output import Screen
from limpet.core.runtime import run_to_end
from limpet.views.search import KINDS, search_view
from limpet.views.text import count, json_document, safe

__all__ = ["search"]


@click.command(short_help="Find what was said, done and learned.")
@click.argument("query", metavar="QUERY...", nargs=-1, required=True)
@click.option(
    "--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only this; again for more."
)
@best_option(10)
@click.option("--prefix", metavar="TEXT", default="", help="Only ids that begin with this.")
@label_option
@json_option
@store_options
@pass_store
@audited("searched")
@click.pass_context
def search(
    context: click.Context,
    options: StoreOptions,
    *,
    query: tuple[str, ...],
    kinds: tuple[str, ...],
    most: int,
    prefix: str,
    labels: dict[str, str],
    as_json: bool,
) -> None:
    """Find the texts in which the words QUERY... are: all of them, else some.

    That is messages of conversations and of LangGraph's threads, there with the checkpoint that had
    them first; goals, plans, results, decisions, discoveries, outcomes and errors of tasks; what is
    in the newest save of a state, such as what a team of agents has said; and memories, of all
    namespaces (`limpet memory search` says how well those of one fit).

    "several words" in quotes are found only next to each other, and a word that ends in * is the
    beginning of one. The index that this needs is local and made of the store: it is kept in a
    cache directory ($LIMPET_CACHE, or none for memory only) and brought up to date at each
    search. The first one takes a while. Exit code 1 if something could not be looked through.
    """
    with options.open() as store:
        view = run_to_end(
            search_view(
                store.scope.as_sync(),
                " ".join(query),
                kinds=kinds,
                k=most,
                prefix=prefix,
                labels=labels,
            )
        )
    if as_json:
        click.echo(json_document(view.hits))
    else:
        if not view.hits:
            where = f"{options.name}, tenant {options.tenant!r}"
            Screen(stderr=True).line(f"Nothing with these words is in {where}.")
        screen = Screen()
        for number, group in enumerate(view.groups):
            if number:
                screen.line()
            screen.line((f"{group.kind}/", "dim"), (safe(group.id), "bold"))
            for hit in group.hits:
                about = f"{hit.position} {hit.role} · {screen.since(hit.at)}"
                if hit.checkpoint or hit.memory:
                    about += f" · {hit.checkpoint or hit.memory}"
                screen.line("  ", (about, "dim"))
                screen.block(hit.excerpt, indent=4)
    if view.damaged:
        screen = Screen(stderr=True)
        journals = count(len(view.damaged), "journal")
        screen.line((f"{journals} could not be looked through:", "bold red"))
        for damaged in view.damaged:
            screen.block(f"{damaged.kind}/{damaged.id}: {damaged.why}", indent=2)
        screen.line(options.in_commands("`limpet doctor` lists every record that cannot be read."))
        context.exit(FAILED)
