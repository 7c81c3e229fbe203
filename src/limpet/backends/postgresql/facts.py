"""What `limpet doctor` asks of a PostgreSQL server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from limpet.backends.facts import Fact, human_size
from limpet.backends.postgresql import schema as tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from limpet.backends.postgresql.connections import Connection

__all__ = ["durability", "facts"]

#: The settings that decide whether an acknowledged write survives power loss, in the order of the
#: query; what it means if one is off, and what to do.
_SETTINGS = {
    "synchronous_commit": (
        "commits do not wait for the disk (synchronous_commit=off)",
        "Leave out durability=normal; behind a pooler, set it on for the role or the database.",
    ),
    "fsync": (
        "the server never waits for the disk (fsync=off)",
        "Set fsync=on in postgresql.conf: without it a power loss can destroy the database.",
    ),
    "full_page_writes": (
        "a page that is half written cannot be restored (full_page_writes=off)",
        "Set full_page_writes=on, unless the disk itself writes whole pages only.",
    ),
}


def durability(connection: Connection, queries: Mapping[str, str]) -> Fact:
    """Whether what this session commits survives power loss, and if not, why."""
    _, *values = connection.rows(queries["settings"])[0]
    found = dict(zip(_SETTINGS, values, strict=True))
    off = [name for name, value in found.items() if value == "off"]
    if not off:
        # Not every engine that speaks PostgreSQL has all of them.
        known = ", ".join(f"{name}={value}" for name, value in found.items() if value)
        return Fact("durability", f"every acknowledged write survives power loss ({known})")
    return Fact(
        "durability",
        "; ".join(_SETTINGS[name][0] for name in off),
        ok=False,
        advice=" ".join(_SETTINGS[name][1] for name in off),
    )


def facts(
    connection: Connection, queries: Mapping[str, str], schema: str, *, deep: bool
) -> list[Fact]:
    """All of it."""
    info = connection.info
    engine = str(connection.rows(queries["engine"])[0][0]).partition(" on ")[0]
    found = [
        Fact("engine", f"{engine} (psycopg {psycopg.__version__})"),
        Fact("server", f"{info.host}:{info.port}, database {info.dbname}, user {info.user}"),
        Fact("encrypted", "yes" if connection.pgconn.ssl_in_use else "no"),
        Fact("schema", f"{schema}, version {tables.version(connection, queries)}"),
        durability(connection, queries),
        *_sizes(connection, queries),
    ]
    if deep:
        found.append(_integrity(connection, queries))
    return found


def _sizes(connection: Connection, queries: Mapping[str, str]) -> Iterator[Fact]:
    try:
        (size,) = connection.rows(queries["table_size"])[0]
        yield Fact("size", human_size(size))
    except psycopg.Error:  # not every engine that speaks PostgreSQL knows
        pass
    for kind, journals, entries, size in connection.rows(queries["sizes"]):
        yield Fact.of_kind(kind, journals, entries, size)
    (expired,) = connection.rows(queries["count_expired"])[0]
    if expired:
        yield Fact("expired", f"{expired:,} journals to be swept")


def _integrity(connection: Connection, queries: Mapping[str, str]) -> Fact:
    """Reads every body; may take longer than any other call is given."""
    limit, connection.max_silence = connection.max_silence, float("inf")
    try:
        with connection.transaction():
            connection.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.run("SET LOCAL statement_timeout = 0")
            faults = ["/".join(key) for key in connection.rows(queries["faults"])]
            (strays,) = connection.rows(queries["strays"])[0]
    finally:
        connection.max_silence = limit
    if strays:
        faults.append(f"{strays:,} records that belong to no journal")
    return Fact(
        "integrity",
        "ok" if not faults else "records are missing or too many: " + "; ".join(faults),
        ok=not faults,
        advice="Take a dump of the schema. Then restore a backup (`limpet restore BACKUP`, into an "
        "empty schema), or write what can be read to a new store (`limpet salvage FROM NEW`).",
    )
