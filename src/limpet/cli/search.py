"""``limpet search``: who said what."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from limpet.backends.contract import from_micros
from limpet.cli.options import (
    StoreOptions,
    best_option,
    json_option,
    label_option,
    pass_store,
    store_options,
)
from limpet.cli.output import Screen
from limpet.conversations.search import SOURCE as CONVERSATIONS
from limpet.core import text_search
from limpet.core.runtime import run_to_end
from limpet.integrations.langgraph.search import SOURCE as THREADS
from limpet.integrations.langgraph.search import place
from limpet.integrations.langgraph.thread import KIND as THREAD
from limpet.views.text import json_document, safe

if TYPE_CHECKING:
    from limpet.core.text_index import Hit

__all__ = ["search"]


@click.command(short_help="Find what was said.")
@click.argument("query", metavar="QUERY...", nargs=-1, required=True)
@best_option(10)
@click.option("--prefix", metavar="TEXT", default="", help="Only ids that begin with this.")
@label_option
@json_option
@store_options
@pass_store
def search(
    options: StoreOptions,
    *,
    query: tuple[str, ...],
    most: int,
    prefix: str,
    labels: dict[str, str],
    as_json: bool,
) -> None:
    """Find the messages in which the words QUERY... are: all of them, else some.

    That is messages of conversations and of LangGraph's threads, there with the checkpoint that had
    them first.

    "several words" in quotes are found only next to each other, and a word that ends in * is the
    beginning of one. The index that this needs is local and made of the store: it is kept in a
    cache directory ($LIMPET_CACHE, or none for memory only) and brought up to date at each
    search. The first one takes a while.
    """
    with options.open() as store:
        sources, scope = [CONVERSATIONS, THREADS], store.scope.as_sync()
        search_all = text_search.search(
            scope, " ".join(query), sources, k=most, prefix=prefix, labels=labels
        )
        found = [hit_of(hit) for hit in run_to_end(search_all)]
    if as_json:
        click.echo(json_document(found))
        return
    if not found:
        screen = Screen(stderr=True)
        screen.line(f"Nobody said that in {options.name}, tenant {options.tenant!r}.")
    screen = Screen()

    def journal(hit: dict[str, Any]) -> tuple[str, str]:
        return hit["kind"], hit["id"]

    # Journals by their best hit, and within each in the order in which it was said.
    order = {key: number for number, key in enumerate(dict.fromkeys(map(journal, found)))}
    hits = sorted(found, key=lambda hit: (order[journal(hit)], hit["position"]))
    for number, ((kind, id_), group) in enumerate(groupby(hits, key=journal)):
        if number:
            screen.line()
        screen.line((f"{kind}/", "dim"), (safe(id_), "bold"))
        for hit in group:
            about = f"{hit['position']} {safe(hit['role'])} · {screen.since(hit['at'])}"
            if "checkpoint" in hit:
                about += f" · {safe(hit['checkpoint'])}"
            screen.line("  ", (about, "dim"))
            screen.block(hit["excerpt"], indent=4)


def hit_of(hit: Hit) -> dict[str, Any]:
    """What was found, for JSON; of a thread with the checkpoint that had it first."""
    found = {
        "kind": hit.kind,
        "id": hit.id,
        "position": hit.position,
        "at": from_micros(hit.at),
        "role": hit.label,
        "excerpt": hit.excerpt,
        "score": hit.score,
    }
    if hit.kind == THREAD:
        position, checkpoint, role = place(hit.position, hit.label)
        found |= {"position": position, "checkpoint": checkpoint, "role": role}
    return found
