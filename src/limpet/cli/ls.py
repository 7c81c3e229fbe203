"""``limpet ls``: what is in the store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from limpet.backends.contract import from_micros
from limpet.backends.decide import holder_for_people
from limpet.backends.facts import human_size
from limpet.cli.options import (
    AGE,
    MODELS,
    SIZE,
    Missing,
    StoreOptions,
    json_option,
    kinds_of,
    label_option,
    pass_store,
    store_options,
)
from limpet.cli.output import Screen
from limpet.cli.table import Column, Table
from limpet.core.calls import calls_in_doubt
from limpet.core.leases import is_dead, is_on_this_machine
from limpet.core.runtime import run_to_end
from limpet.errors import Unreadable
from limpet.integrations.langgraph.thread import INTERRUPTED
from limpet.integrations.langgraph.thread import KIND as THREAD
from limpet.states.format import KIND as STATE
from limpet.states.format import StateMeta
from limpet.views.listing import Filters, Order, listing, where
from limpet.views.text import count, json_document, one_line, safe, shorten

if TYPE_CHECKING:
    from limpet import Store
    from limpet.backends.contract import Head
    from limpet.cli.table import Cell
    from limpet.views.listing import Row

__all__ = [
    "entries",
    "facts_of",
    "holder",
    "labels_of",
    "ls",
    "status_of",
    "status_style",
]

_STYLES = {
    **dict.fromkeys(("open", "waiting", "paused", INTERRUPTED), "yellow"),
    "done": "green",
    "failed": "red",
}


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

#: Rows that a terminal is given, unless it is asked for more.
ON_A_TERMINAL = 1_000

#: Characters of a goal; ``--json`` has all of it.
GOAL = 200


@click.command(short_help="List conversations, tasks, states, memories, threads.")
@click.argument("kind", metavar="[KIND]", required=False)
@click.option("--prefix", metavar="TEXT", default="", help="Only ids that begin with this.")
@click.option(
    "--status",
    metavar="STATUS",
    help="Only what is so: tasks are open, waiting, paused, done, failed or cancelled; threads "
    "that wait for an answer are interrupted.",
)
@label_option
@click.option(
    "--text", metavar="TEXT", default="", help="Only what has this in its id, labels or goal."
)
@click.option(
    "--older-than", type=AGE, help="Only what was last written to so long ago: 30d, 12h, 90min."
)
@click.option("--newer-than", type=AGE, help="Only what was written to since then.")
@click.option("--larger-than", type=SIZE, help="Only what takes more room: 500kB, 2MB.")
@click.option(
    "--sort",
    type=click.Choice(["id", "updated", "size"]),
    default="id",
    help="By what: id; updated, the newest first; size, the largest first. [default: id]",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"The first N. [default: {ON_A_TERMINAL} on a terminal, else all]",
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
    text: str,
    older_than: float | None,
    newer_than: float | None,
    larger_than: float | None,
    sort: Order,
    limit: int | None,
    as_json: bool,
) -> None:
    """List what is in the store, or only KIND.

    That is conversations, tasks, states, memories (by namespace), threads of LangGraph, and kinds
    of your own. Of tasks it says how many of the planned steps are done, and which is next. `limpet
    ls threads` reads each, and says at which step it is and what it asks.
    """
    now, screen = datetime.now(UTC), Screen()
    with options.open() as store:
        kinds = None if kind is None else [kind_named(store, kind, kinds_of(store))]
        filters = Filters(
            kinds=kinds,
            prefix=prefix,
            status=status,
            labels=labels,
            text=text,
            before=None if older_than is None else now - timedelta(seconds=older_than),
            since=None if newer_than is None else now - timedelta(seconds=newer_than),
            larger=larger_than,
            order=sort,
        )
        if limit is None and screen.terminal and not as_json:
            limit = ON_A_TERMINAL
        found = run_to_end(
            listing(
                store.scope.as_sync(),
                filters,
                most=None if limit is None else limit + 1,  # to know whether there are more
                look=None,
                budget=None,
                every_thread=kinds == [THREAD],
            )
        )
    for key, error in found.damaged:
        click.echo(f"{key.kind}/{safe(key.id)} cannot be listed: {safe(str(error))}", err=True)
    rows = found.rows[:limit]
    if as_json:
        click.echo(json_document([json_row(row) for row in rows]))
    elif not rows:
        what = "nothing like that" if filters.narrows else "nothing yet"
        screen = Screen(stderr=True)
        screen.line(f"There is {what} in {options.name} for tenant {options.tenant!r}.")
    else:
        print_rows(rows, screen)
    if len(found.rows) > len(rows):
        more = f"Cut off after {count(len(rows), 'row')}: there are more. --limit N shows N."
        Screen(stderr=True).line(more)


def kind_named(store: Store, name: str, there: list[str]) -> str:
    """The kind that *name* is, or is the plural of: one of our models, or that is *there*."""
    known = dict.fromkeys([*MODELS, *there])
    plurals = {f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s": kind for kind in known}
    kind = name if name in known else plurals.get(name)
    if kind is None:
        which = f"There are {', '.join(there)}." if there else "There is nothing yet."
        raise Missing(f"There is no kind {name!r} for tenant {store.tenant!r}. {which}")
    return kind


def json_row(row: Row) -> dict[str, Any]:
    """All that is known of a row, for programs."""
    found = facts_of(row.stored) | {"in_doubt": row.head.doubts} | row.thread
    if row.task is not None:
        found["task"] = row.task
    if row.damaged:
        found["damaged"] = row.damaged
    return found


def print_rows(rows: list[Row], screen: Screen) -> None:
    """A table, a row for each; or some lines for each, where a table would not fit."""
    table = Table(screen, _COLUMNS, (_cells(row, screen) for row in rows))
    if not screen.narrow and table.fits:
        table.print()
        return
    for row in rows:
        name, state, steps, length, size, updated, held, now, goal = _cells(row, screen)
        screen.line(*name)
        if state:
            screen.line("  ", *state)
        length = ((entries(row.stored), ""),)
        steps = ((f"steps: {steps[0][0]}", ""),) if steps else ()
        facts = [text for cell in (steps, length, size, updated) for text, _ in cell]
        screen.block(" · ".join(facts))
        for mark, cell in (("held by ", held), ("", now), ("", goal)):
            screen.block("".join([mark, *(text for text, _ in cell)]) if cell else "")


_COLUMNS = [
    Column("id", folds=True, least=18),
    Column("status, labels", folds=True, least=9),
    Column("steps", right=True),
    Column("entries", right=True),
    Column("size", right=True),
    Column("updated"),
    Column("held by", folds=True, least=12),
    Column("where it is", cut=True, least=12),
    Column("goal", cut=True, least=12, optional=True),
]


def _cells(row: Row, screen: Screen) -> list[Cell]:
    head = row.head
    state = ((head.status, status_style(head.status)), (labels_of(row.stored), "cyan"))
    now = where(row)
    return [
        ((f"{head.kind}/", "dim"), (head.id, "bold")),
        tuple(
            (f" {text}" if number else text, style)
            for number, (text, style) in enumerate(one for one in state if one[0])
        ),
        ((row.task.progress, ""),) if row.task and row.task.progress else (),
        ((f"{head.entries:,}", ""),),
        ((human_size(head.size), ""),),
        ((screen.since(head.updated), ""),),
        ((holding(row.stored, screen), ""),) if head.holder else (),
        ((now, "magenta" if head.doubts else ""),) if now else (),
        ((shorten(one_line(row.task.goal), GOAL), "dim"),) if row.task and row.task.goal else (),
    ]
