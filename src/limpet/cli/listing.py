"""``limpet ls``: what is in the store."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.table import Table
from rich.text import Text

from limpet.backends.contract import from_micros
from limpet.backends.decide import holder_for_people
from limpet.backends.facts import human_size
from limpet.cli.screen import Screen
from limpet.cli.text import document, safe
from limpet.cli.where import KINDS, Where, heads, pass_where, store_options
from limpet.memory import KIND as MEMORY
from limpet.states.format import KIND as STATE
from limpet.states.format import StateMeta

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.backends.contract import Head

__all__ = [
    "best_option",
    "entries",
    "facts_of",
    "holder",
    "label_option",
    "labels_of",
    "ls",
    "status_of",
    "status_style",
]

C = TypeVar("C", bound="Callable[..., Any]")

#: What is listed unless a kind is named, and how people may call it.
_NOUNS = {f"{kind}s": kind for kind in KINDS} | {"memories": MEMORY}
_STYLES = {"open": "yellow", "done": "green", "failed": "red"}


def status_of(head: Head) -> str:
    """The status; of a state its version."""
    if head.key.kind == STATE and (version := StateMeta.of(head).version) is not None:
        return f"version {version}"
    return head.status or ""


def status_style(status: str | None) -> str:
    """The colour of a status."""
    return _STYLES.get(status or "", "")


def holder(head: Head) -> str:
    """Who works on it, for people: without the mark in brackets that is for the machine."""
    return safe(holder_for_people(head.lease.holder)) if head.lease else ""


def labels_of(head: Head) -> str:
    """The labels, as they are given to ``--label``."""
    return safe(", ".join(f"{name}={value}" for name, value in sorted(head.labels.items())))


def entries(head: Head) -> str:
    """How many entries there are."""
    count = head.seq - (head.first - 1)
    return "1 entry" if count == 1 else f"{count:,} entries"


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
    }


class _Measure(click.ParamType[float]):
    """A number with a unit; without one it is of the first."""

    def __init__(self, name: str, units: dict[str, float]) -> None:
        self.name = name
        self._units = units

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """How much *value* says, in the smallest of the units."""
        if isinstance(value, (int, float)):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-zA-Z]*)", value)
        scale = self._units.get(found[2].lower()) if found else None
        if found is None or scale is None:
            units = ", ".join(unit for unit in self._units if unit)
            self.fail(f"{value!r} is not a number with one of the units {units}.", param, ctx)
        return float(found[1]) * scale


AGE = _Measure(
    "AGE", {"": 1, "s": 1, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800, "y": 31_557_600}
)
SIZE = _Measure(
    "SIZE", {"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20}
)

_ORDERS: dict[str, Callable[[Head], Any]] = {
    "id": lambda head: head.key.id,
    "updated": lambda head: head.updated,
    "size": lambda head: head.size,
}


def _fitting(
    older: float | None, newer: float | None, larger: float | None
) -> Callable[[Head], bool]:
    """Whether a journal is of that age, by this machine's clock, and of that size."""
    now = datetime.now(UTC)

    def fits(head: Head) -> bool:
        age = (now - from_micros(head.updated)).total_seconds()
        return (
            (older is None or age > older)
            and (newer is None or age <= newer)
            and (larger is None or head.size > larger)
        )

    return fits


def _kinds(_context: click.Context, _parameter: click.Parameter, kind: str | None) -> list[str]:
    """The kinds that are asked for; "tasks" is "task"."""
    return list(_NOUNS.values()) if kind is None else [_NOUNS.get(kind, kind)]


def _labels(
    _context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise click.BadParameter(f"{pair!r} is not of the form NAME=VALUE.")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


label_option = click.option(
    "--label",
    "labels",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_labels,
    help="Only what has this label; give it again for more.",
)


def best_option(count: int) -> Callable[[C], C]:
    """The option ``-k``: how many that fit best, *count* unless it is given."""
    return click.option(
        "-k",
        "most",
        type=click.IntRange(min=1),
        metavar="N",
        default=count,
        help=f"The N that fit best. [default: {count}]",
    )


@click.command(short_help="List conversations, tasks, states and memories.")
@click.argument("kinds", metavar="[KIND]", required=False, callback=_kinds)
@click.option("--prefix", metavar="TEXT", default="", help="Only ids that begin with this.")
@click.option(
    "--status",
    type=click.Choice(["open", "waiting", "paused", "done", "failed", "cancelled"]),
    help="Only tasks that are so.",
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@store_options
@pass_where
def ls(
    where: Where,
    *,
    kinds: list[str],
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

    That is conversations, tasks, states, memories (by namespace), or a kind of your own.
    """
    fits = _fitting(older_than, newer_than, larger_than)
    with where.open() as store:
        found = [
            head
            for kind in kinds
            for head in heads(store, kind, prefix=prefix, status=status, labels=labels)
            if fits(head)
        ]
    if sort != "id":
        found.sort(key=_ORDERS[sort], reverse=True)
    if as_json:
        click.echo(document([facts_of(head) for head in found]))
    elif not found:
        asked = (len(kinds) == 1, prefix, status, labels, older_than, newer_than, larger_than)
        what = "nothing like that" if any(asked) else "nothing yet"
        Screen(stderr=True).line(f"There is {what} in {where.name} for tenant {where.tenant!r}.")
    else:
        _print(found, Screen())


def _print(found: list[Head], screen: Screen) -> None:
    if screen.narrow:
        for head in found:
            _lines(head, screen)
    else:
        screen.show(_table(found, screen))


def _name(head: Head) -> Text:
    return Text.assemble((f"{head.key.kind}/", "dim"), (safe(head.key.id), "bold"))


def _state(head: Head) -> Text:
    words = [
        part
        for part in ((status_of(head), status_style(head.status)), (labels_of(head), "cyan"))
        if part[0]
    ]
    return Text(" ").join(Text(safe(text), style) for text, style in words)


def _table(found: list[Head], screen: Screen) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("id", overflow="fold")
    table.add_column("status, labels", overflow="fold")
    table.add_column("entries", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("updated", no_wrap=True)
    held = any(head.lease for head in found)
    if held:
        table.add_column("held by", overflow="fold")
    for head in found:
        cells = [f"{head.seq - (head.first - 1):,}", human_size(head.size), _updated(head, screen)]
        table.add_row(_name(head), _state(head), *cells, *([holder(head)] if held else []))
    return table


def _lines(head: Head, screen: Screen) -> None:
    """The same for a narrow screen."""
    screen.line(_name(head))
    state = _state(head)
    if state:
        screen.line("  ", state)
    screen.block(f"{entries(head)} · {human_size(head.size)} · {_updated(head, screen)}")
    if head.lease:
        screen.block(f"held by {holder(head)}")


def _updated(head: Head, screen: Screen) -> str:
    return screen.since(from_micros(head.updated))
