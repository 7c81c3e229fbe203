"""What `limpet doctor` asks of a PostgreSQL server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from limpet.backends.contract import Fact, shown_size
from limpet.backends.postgresql import schema as tables
from limpet.backends.postgresql.sql import NOW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.backends.postgresql.connections import Connection
    from limpet.backends.postgresql.sql import Statements

__all__ = ["Settings", "facts", "settings"]

#: Server settings that decide whether an acknowledged write survives power loss.
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


class Settings(dict[str, str | None]):
    """Those settings, as they are for this session; None where the server has no such thing."""

    at = 0  # by the server's clock

    def fact(self) -> Fact:
        """Whether an acknowledged write survives power loss, and if not, why."""
        off = self._off()
        if not off:
            told = ", ".join(f"{name}={value}" for name, value in self.items() if value)
            return Fact("durability", f"every acknowledged write survives power loss ({told})")
        return Fact(
            "durability",
            "; ".join(_SETTINGS[name][0] for name in off),
            ok=False,
            advice=" ".join(_SETTINGS[name][1] for name in off),
        )

    def _off(self) -> list[str]:
        return [name for name, value in self.items() if value == "off"]


def settings(connection: Connection) -> Settings:
    """How durable a commit of this session is."""
    asked = ", ".join(f"current_setting('{name}', true)" for name in _SETTINGS)
    *values, at = connection.rows(f"SELECT {asked}, {NOW}")[0]
    found = Settings(zip(_SETTINGS, values, strict=True))
    found.at = at
    return found


def facts(connection: Connection, schema: str, sql: Statements, *, deep: bool) -> list[Fact]:
    """All of it."""
    found = [*_place(connection, schema), settings(connection).fact(), *_sizes(connection, sql)]
    if deep:
        found.append(_integrity(connection, sql))
    return found


def _place(connection: Connection, schema: str) -> Iterator[Fact]:
    info = connection.info
    engine = str(connection.rows("SELECT version()")[0][0]).partition(" on ")[0]
    yield Fact("engine", f"{engine} (psycopg {psycopg.__version__})")
    yield Fact("server", f"{info.host}:{info.port}, database {info.dbname}, user {info.user}")
    yield Fact("encrypted", "yes" if connection.pgconn.ssl_in_use else "no")
    yield Fact("schema", f"{schema}, version {tables.version(connection, schema)}")


def _sizes(connection: Connection, sql: Statements) -> Iterator[Fact]:
    try:
        asked = "SELECT pg_total_relation_size($1::regclass) + pg_total_relation_size($2::regclass)"
        (size,) = connection.rows(asked, (sql.journals, sql.records))[0]
        yield Fact("size", shown_size(size))
    except psycopg.Error:  # not every engine that speaks PostgreSQL knows
        pass
    for kind, journals, entries, size in connection.rows(sql.sizes):
        yield Fact.of_kind(kind, journals, entries, size)
    (expired,) = connection.rows(sql.expired)[0]
    if expired:
        yield Fact("expired", f"{expired:,} journals to be swept")


def _integrity(connection: Connection, sql: Statements) -> Fact:
    """Reads every body; may take longer than any other call is given."""
    patience, connection.patience = connection.patience, float("inf")
    try:
        with connection.transaction():
            connection.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.run("SET LOCAL statement_timeout = 0")
            faults = ["/".join(key) for key in connection.rows(sql.faults)]
            (strays,) = connection.rows(sql.strays)[0]
    finally:
        connection.patience = patience
    if strays:
        faults.append(f"{strays:,} records that belong to no journal")
    return Fact(
        "integrity",
        "ok" if not faults else "records are missing or too many: " + "; ".join(faults),
        ok=not faults,
        advice="Take a dump of the schema, then restore these journals from a backup.",
    )
