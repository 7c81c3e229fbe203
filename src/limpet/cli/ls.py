"""``limpet ls``: what is in the store."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from limpet.backends.contract import from_micros
from limpet.backends.decide import holder_for_people
from limpet.backends.facts import human_size
from limpet.cli.options import (
    AGE,
    MODELS,
    SIZE,
    Missing,
    StoreOptions,
    heads,
    json_option,
    kinds_of,
    label_option,
    pass_store,
    store_options,
)
from limpet.cli.output import Screen
from limpet.core.calls import calls_in_doubt
from limpet.core.leases import is_dead, is_on_this_machine
from limpet.core.runtime import run_to_end
from limpet.errors import Unreadable
from limpet.integrations.langgraph.thread import INTERRUPTED
from limpet.integrations.langgraph.thread import KIND as THREAD
from limpet.states.format import KIND as STATE
from limpet.states.format import StateMeta
from limpet.views import threads
from limpet.views.text import count, json_document, safe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from limpet import Store
    from limpet.backends.contract import Head, Key

__all__ = [
    "entries",
    "facts_of",
    "holder",
    "labels_of",
    "ls",
    "status_of",
    "status_style",
]

_STYLES = {"open": "yellow", INTERRUPTED: "yellow", "done": "green", "failed": "red"}


# -- what a head says ------------------------------------------------------------------------------


def status_of(head: Head) -> str:
    """The status; of a state its version. That the meta cannot be read goes before both."""
    try:
        version = StateMeta.of(head).version if head.key.kind == STATE else None
        calls_in_doubt(head)
    except Unreadable:
        return "damaged: see limpet doctor"
    return (head.status or "") if version is None else f"version {version}"


def status_style(status: str | None) -> str:
    """The colour of a status."""
    return _STYLES.get(status or "", "")


def holder(head: Head) -> str:
    """Who works on it, for people: without the mark in brackets that is for the machine."""
    return safe(holder_for_people(head.lease.holder)) if head.lease else ""


def is_alive(head: Head) -> bool | None:
    """Whether the process that holds it lives; None if nobody does, or on another machine."""
    if head.lease is None or not is_on_this_machine(head.lease.holder):
        return None
    return not is_dead(head.lease.holder)


def holding(head: Head, screen: Screen) -> str:
    """Who holds it, and what is known of that: a lease outlives its holder."""
    if head.lease is None:
        return ""
    alive = is_alive(head)
    if alive is None:
        return f"{holder(head)}, until {screen.time(from_micros(head.lease.until))}"
    return holder(head) if alive else f"nobody: {holder(head)} has ended"


def labels_of(head: Head) -> str:
    """The labels, as they are given to ``--label``."""
    return safe(", ".join(f"{name}={value}" for name, value in sorted(head.labels.items())))


def entries(head: Head) -> str:
    """How many entries there are."""
    return count(head.seq - (head.first - 1), "entry", "entries")


def facts_of(head: Head) -> dict[str, Any]:
    """What is known of a journal without reading it, for JSON."""
    return {
        "kind": head.key.kind,
        "id": head.key.id,
        "status": head.status,
        "labels": head.labels,
        "entries": head.seq - (head.first - 1),
        "position": head.seq,
        "size": head.size,
        "created_at": from_micros(head.created),
        "updated_at": from_micros(head.updated),
        "expires_at": head.expires_at,
        "held_by": head.lease.holder if head.lease else None,
        "held_until": from_micros(head.lease.until) if head.lease else None,
        "holder_alive": is_alive(head),
    }


# -- ls --------------------------------------------------------------------------------------------

_ORDERS: dict[str, Callable[[Head], Any]] = {
    "id": lambda head: head.key.id,
    "updated": lambda head: head.updated,
    "size": lambda head: head.size,
}


@click.command(short_help="List conversations, tasks, states, memories, threads.")
@click.argument("kind", metavar="[KIND]", required=False)
@click.option("--prefix", metavar="TEXT", default="", help="Only ids that begin with this.")
@click.option(
    "--status",
    type=click.Choice(["open", "waiting", "paused", "done", "failed", "cancelled", INTERRUPTED]),
    help="Only tasks that are so; interrupted: only threads that wait for an answer.",
)
@label_option
@click.option(
    "--older-than", type=AGE, help="Only what was last written to so long ago: 30d, 12h, 90min."
)
@click.option("--newer-than", type=AGE, help="Only what was written to since then.")
@click.option("--larger-than", type=SIZE, help="Only what takes more room: 500kB, 2MB.")
@click.option(
    "--sort",
    type=click.Choice(list(_ORDERS)),
    default="id",
    help="By what: id; updated, the newest first; size, the largest first. [default: id]",
)
@json_option
@store_options
@pass_store
def ls(
    options: StoreOptions,
    *,
    kind: str | None,
    prefix: str,
    status: str | None,
    labels: dict[str, str],
    older_than: float | None,
    newer_than: float | None,
    larger_than: float | None,
    sort: str,
    as_json: bool,
) -> None:
    """List what is in the store, or only KIND.

    That is conversations, tasks, states, memories (by namespace), threads of LangGraph, and kinds
    of your own. `limpet ls threads` reads each, and says at which step it is and what it asks.
    """
    now = datetime.now(UTC)

    def fits(head: Head) -> bool:
        age = (now - from_micros(head.updated)).total_seconds()
        return (
            (older_than is None or age > older_than)
            and (newer_than is None or age <= newer_than)
            and (larger_than is None or head.size > larger_than)
        )

    with options.open() as store:
        there = kinds_of(store)
        if kind is None:  # our models first, then others
            own = [one for one in there if one not in MODELS]
            kinds = [*(one for one in MODELS if one in there), *own]
        else:
            kinds = [kind_named(store, kind, there)]
        found = [
            head
            for one in kinds
            for head in heads(store, one, prefix=prefix, status=status, labels=labels)
            if fits(head)
        ]
        named_threads = kind is not None and kinds == [THREAD]
        # What a head does not say of a thread costs reading it: only where threads are asked for.
        read = {
            head.key: run_to_end(threads.facts(store.scope.as_sync(), head))
            for head in found
            if named_threads
        }
    if sort != "id":
        found.sort(key=_ORDERS[sort], reverse=True)
    if as_json:
        click.echo(json_document([facts_of(head) | read.get(head.key, {}) for head in found]))
    elif not found:
        asked = (kind, prefix, status, labels, older_than, newer_than, larger_than)
        what = "nothing like that" if any(asked) else "nothing yet"
        screen = Screen(stderr=True)
        screen.line(f"There is {what} in {options.name} for tenant {options.tenant!r}.")
    else:
        print_heads(found, Screen(), {key: threads.facts_line(one) for key, one in read.items()})


def kind_named(store: Store, name: str, there: list[str]) -> str:
    """The kind that *name* is, or is the plural of: one of our models, or that is *there*."""
    known = dict.fromkeys([*MODELS, *there])
    plurals = {f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s": kind for kind in known}
    kind = name if name in known else plurals.get(name)
    if kind is None:
        which = f"There are {', '.join(there)}." if there else "There is nothing yet."
        raise Missing(f"There is no kind {name!r} for tenant {store.tenant!r}. {which}")
    return kind


def print_heads(found: list[Head], screen: Screen, read: Mapping[Key, str]) -> None:
    """A table, a row for each; or some lines for each, where a table would not fit.

    *read* is what was found of some by reading them.
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("id", overflow="fold")
    table.add_column("status, labels", overflow="fold")
    table.add_column("entries", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("updated", no_wrap=True)
    held = any(head.lease for head in found)
    if held:
        table.add_column("held by", overflow="fold")
    if read:
        table.add_column("where it is", overflow="fold")
    for head in found:
        name = Text.assemble((f"{head.key.kind}/", "dim"), (safe(head.key.id), "bold"))
        parts = ((status_of(head), status_style(head.status)), (labels_of(head), "cyan"))
        state = Text(" ").join(Text(safe(text), style) for text, style in parts if text)
        size, updated = human_size(head.size), screen.since(from_micros(head.updated))
        if screen.narrow:
            screen.line(name)
            if state:
                screen.line("  ", state)
            screen.block(f"{entries(head)} · {size} · {updated}")
            if head.lease:
                screen.block(f"held by {holding(head, screen)}")
            screen.block(read.get(head.key, ""))
        else:
            length = f"{head.seq - (head.first - 1):,}"
            more = [holding(head, screen)] if held else []
            more += [safe(read[head.key])] if read else []
            table.add_row(name, state, length, size, updated, *more)
    if not screen.narrow:
        screen.show(table)
