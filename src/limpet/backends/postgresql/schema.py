"""The tables of the PostgreSQL backend: finding, creating and upgrading them.

The version is a row. Whoever has something to do locks it, in one transaction with all that there
is to do: others who start at the same time wait for the row, or for the name of the table that
is being created, and then find it done.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psycopg

from limpet.errors import SchemaTooNew, StoreError, StoreNotFound, StoreReadOnly

if TYPE_CHECKING:
    from collections.abc import Mapping

    from limpet.backends.postgresql.connections import Connection

__all__ = ["check_server", "migrations", "prepare", "quoted", "version"]

MIGRATIONS = os.path.join(os.path.dirname(__file__), "migrations")

#: The oldest server: the first with all that the statements need. As libpq numbers them.
OLDEST = 110000


def quoted(name: str) -> str:
    """*name* as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def migrations() -> list[tuple[int, str]]:
    """The numbered steps, oldest first, as (number, SQL)."""
    steps = []
    for name in sorted(os.listdir(MIGRATIONS)):
        if name.endswith(".sql"):
            with open(os.path.join(MIGRATIONS, name), encoding="utf-8") as file:
                steps.append((int(name[:4]), file.read()))
    return steps


def check_server(connection: Connection, place: str) -> None:
    """Refuse a server, or a database, that cannot hold a store."""
    if connection.pgconn.server_version < OLDEST:
        found = connection.info.parameter_status("server_version")
        msg = (
            f"{place} has PostgreSQL {found}; {OLDEST // 10000} is the oldest that Limpet can "
            "use. Upgrade the server."
        )
        raise StoreError(msg)
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in ("UTF8", None):
        msg = (
            f"The database of {place} has the encoding {encoding}, in which not every text can be "
            "stored. Create one with: createdb --encoding=UTF8 --template=template0"
        )
        raise StoreError(msg)


def prepare(
    connection: Connection,
    queries: Mapping[str, str],
    schema: str,
    place: str,
    *,
    create: bool,
    readonly: bool,
) -> None:
    """Make sure that the tables are there and of the newest form, or say why they are not."""
    newest = migrations()[-1][0]
    found = version(connection, queries)
    if found == newest:
        return
    if found > newest:
        msg = (
            f"{place} has schema {found}, but this version reads up to {newest}.\n"
            "A newer release wrote to it. "
            "Upgrade limpet, or restore a copy made before the upgrade."
        )
        raise SchemaTooNew(msg)
    if not found and (readonly or not create):
        msg = f"There is no store on {place} in the schema {schema!r}. Check the URL (schema=…)."
        raise StoreNotFound(msg, hint="To begin a store there, open it with create=True.")
    if readonly:
        msg = f"{place} was written by an older release. Open it once for writing to upgrade it."
        raise StoreReadOnly(msg)
    with connection.transaction():
        # Not IF NOT EXISTS alone: that asks for the right to create even what is there.
        if connection.row(queries["find_schema"], name=schema) is None:
            connection.run(f"CREATE SCHEMA {quoted(schema)}")
        connection.run(queries["create_version"])
        connection.run(queries["first_version"])
        done = connection.rows(queries["lock_version"])[0][0]
        for number, sql in migrations():
            if number > done:
                connection.run(sql.replace("{schema}", quoted(schema)))
                connection.run(queries["set_version"], version=number)


def version(connection: Connection, queries: Mapping[str, str]) -> int:
    """The last migration that the schema has had; 0 where there is none of our tables."""
    try:
        return int(connection.rows(queries["version"])[0][0])
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return 0
