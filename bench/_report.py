"""What a run found, as a table for people and as JSON for programs."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

import limpet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench._measure import Row

_MARKS = {
    True: Text("✓ met", style="green"),
    False: Text("✗ missed", style="bold red"),
    None: Text(""),
}


def as_table(rows: Sequence[Row]) -> Table:
    """One row each, with its mark and its note."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=_caption(), caption_justify="left")
    table.add_column("measurement", ratio=3)
    table.add_column("target", justify="right", no_wrap=True)
    table.add_column("found", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("made of", ratio=4, style="dim")
    for row in rows:
        table.add_row(row.name, target(row), value(row), _MARKS[row.met], row.note)
    return table


def as_json(rows: Sequence[Row], *, quick: bool) -> bytes:
    """The same, and the figures behind it."""
    report = {
        "quick": quick,
        **_versions(),
        "rows": [_row(row) for row in rows],
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def value(row: Row) -> str:
    """The measured value with its unit."""
    return f"{row.value:.2f}{_unit(row)}"


def target(row: Row) -> str:
    """What the value is held to."""
    if row.at_most is not None:
        return f"≤ {row.at_most:.3g}{_unit(row)}"
    if row.at_least is not None:
        return f"≥ {row.at_least:.2g}{_unit(row)}"
    return ""


def _unit(row: Row) -> str:
    return f" {row.unit}" if row.unit else ""


def _row(row: Row) -> dict[str, Any]:
    return {**msgspec.structs.asdict(row), "met": row.met}


def _versions() -> dict[str, Any]:
    return {
        "limpet": limpet.__version__,
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "processors": os.cpu_count(),
    }


def _caption() -> str:
    found = _versions()
    return (
        f"Limpet {found['limpet']}, Python {found['python']}, SQLite {found['sqlite']}, "
        f"{found['processors']} processors. "
        "Raw: one INSERT, WAL, synchronous=FULL, measured in turn with ours."
    )
