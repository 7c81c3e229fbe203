"""Ten thousand journals: listed, filtered and swept, against reading as many rows."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import apsw

import limpet
from bench._measure import Bench, Contest, Contestant, Row, milliseconds, timed
from limpet.backends.contract import Append, Key

if TYPE_CHECKING:
    from pathlib import Path

    from limpet.backends.contract import Backend

JOURNALS = 10_000
STATUSES = ("open", "done", "failed", "waiting")


def measure(bench: Bench) -> list[Row]:
    """The floor is one SELECT of a table that has a row for each, with its status and a label."""
    contest, path, count = Contest(), bench.path("rows"), 2_000 if bench.quick else JOURNALS
    with (
        closing(_rows(path, count)) as rows,
        limpet.open(bench.path("lists"), durability="normal") as store,
    ):
        backend = store.backend
        _fill(backend, count)
        select = "SELECT * FROM journals"
        contestants: dict[str, Contestant] = {
            "floor": timed(lambda: rows.execute(f"{select} ORDER BY id").fetchall()),
            "all": timed(partial(_list, backend)),
            "floor, one status": timed(
                lambda: rows.execute(f"{select} WHERE status = 'open' ORDER BY id").fetchall()
            ),
            "by status": timed(partial(_list, backend, status="open")),
            "by label": timed(partial(_list, backend, labels={"team": "3"})),
            "nothing to sweep": timed(backend.sweep),
        }
        for _ in bench.rounds(10, quick=2):
            contest.round(contestants, calls=2)
    return [
        _row(contest, f"list {count:,} journals", "all", "floor"),
        _row(contest, f"list those of {count:,} with one status", "by status", "floor, one status"),
        _row(contest, f"list those of {count:,} with one label", "by label", "floor, one status"),
        Row(
            name=f"sweep {count:,} journals of which none has expired",
            value=contest.typical("nothing to sweep") * 1e3,
            unit="ms",
        ),
    ]


def _row(contest: Contest, name: str, ours: str, floor: str) -> Row:
    return Row(
        name=f"{name}, to reading as many rows",
        value=contest.ratio(ours, to=floor),
        note=f"{milliseconds(contest.typical(ours))}, {milliseconds(contest.typical(floor))}",
    )


def _list(backend: Backend, **filters: Any) -> int:
    return sum(1 for _ in backend.heads("default", "task", limit=1_000, **filters))


def _fill(backend: Backend, count: int) -> None:
    for number in range(count):
        key = Key("default", "task", f"task-{number:05}")
        backend.append(
            Append(
                key=key,
                body=b"x" * 300,
                count=1,
                status=STATUSES[number % 4],
                labels={"team": str(number % 10)},
                ttl=3_600 if number % 5 == 0 else None,
            )
        )
        for _ in range(3):
            backend.append(Append(key=key, body=b"y" * 300, count=1))


def _rows(path: Path, count: int) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.execute(
        "CREATE TABLE journals (id TEXT PRIMARY KEY, status TEXT, team TEXT, seq INTEGER,"
        " size INTEGER, created INTEGER, updated INTEGER);"
        "CREATE INDEX by_status ON journals (status, id)"
    )
    with connection:
        connection.executemany(
            "INSERT INTO journals VALUES (?, ?, ?, 4, 1200, 1, 2)",
            (
                (f"task-{number:05}", STATUSES[number % 4], str(number % 10))
                for number in range(count)
            ),
        )
    return connection
