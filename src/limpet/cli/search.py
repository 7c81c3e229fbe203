"""``limpet search``: who said what, in all conversations."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import click

from limpet.cli.listing import best_option, label_option
from limpet.cli.screen import Screen
from limpet.cli.text import document, safe
from limpet.cli.where import Where, pass_where, store_options

if TYPE_CHECKING:
    from limpet import ConversationHit

__all__ = ["search"]


@click.command(short_help="Find what was said.")
@click.argument("query", metavar="QUERY...", nargs=-1, required=True)
@best_option(10)
@click.option("--prefix", metavar="TEXT", default="", help="Only ids that begin with this.")
@label_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@store_options
@pass_where
def search(
    where: Where,
    *,
    query: tuple[str, ...],
    most: int,
    prefix: str,
    labels: dict[str, str],
    as_json: bool,
) -> None:
    """Find the messages in which the words QUERY... are: all of them, else some.

    "several words" in quotes are found only next to each other, and a word that ends in * is the
    beginning of one. The index that this needs is local and made of the store: it is kept in a
    cache directory ($LIMPET_CACHE, or none for memory only) and brought up to date at each
    search. The first one takes a while.
    """
    with where.open() as store:
        found = store.search_conversations(" ".join(query), k=most, prefix=prefix, labels=labels)
    if as_json:
        click.echo(document(found))
    elif not found:
        Screen(stderr=True).line(f"Nobody said that in {where.name}, tenant {where.tenant!r}.")
    else:
        _print(found, Screen())


def _print(found: list[ConversationHit], screen: Screen) -> None:
    order = {id_: number for number, id_ in enumerate(dict.fromkeys(hit.id for hit in found))}
    hits = sorted(found, key=lambda hit: (order[hit.id], hit.position))
    for number, (id_, group) in enumerate(groupby(hits, key=lambda hit: hit.id)):
        if number:
            screen.line()
        screen.line(("conversation/", "dim"), (safe(id_), "bold"))
        for hit in group:
            where = f"{hit.position} {safe(hit.role)} · {screen.since(hit.at)}"
            screen.line("  ", (where, "dim"))
            screen.block(hit.excerpt, indent=4)
