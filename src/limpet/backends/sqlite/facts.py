"""What `limpet doctor` asks of a SQLite file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import apsw

from limpet.backends.facts import Fact, human_size
from limpet.backends.sqlite.appender import QUERIES
from limpet.backends.sqlite.database import schema_version

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["facts"]

#: Where the header says how the file is to be written and read, how many bytes that is, and what
#: stands there if by a write-ahead log.
_VERSIONS = (18, 2)
_LOGGED = b"\2\2"


def facts(connection: apsw.Connection, path: str, durability: str, *, deep: bool) -> list[Fact]:
    """All of it."""
    found = [_engine(), *_settings(connection, path, durability), *_sizes(connection, path)]
    if deep:
        found.append(_integrity(connection))
        if found[-1].ok:
            found.append(_index(connection))
    return found


def _engine() -> Fact:
    version = apsw.sqlite_lib_version()
    fixed = tuple(int(part) for part in version.split(".")) >= (3, 51, 3)
    return Fact(
        "engine",
        f"SQLite {version} (apsw {apsw.apsw_version()})",
        ok=fixed,
        advice="SQLite 3.7.0 to 3.51.2 can corrupt a log that is reset: pip install -U apsw",
    )


def _settings(connection: apsw.Connection, path: str, durability: str) -> Iterator[Fact]:
    permissions = os.stat(path).st_mode & 0o777
    mode = _journal_mode(connection)
    full = durability == "full"
    yield Fact("file", path)
    yield Fact(
        "file mode",
        f"{permissions:o}",
        ok=not permissions & 0o077,
        advice=f"Other users of this machine can open it: chmod 600 {path}",
    )
    yield Fact("schema", str(schema_version(connection)))
    advice = "Open it once for writing."
    yield Fact("journal mode", mode, ok=mode.startswith("wal"), advice=advice)
    yield Fact(
        "durability",
        "every acknowledged write survives power loss (synchronous=FULL)"
        if full
        else "a power loss may undo the last writes (synchronous=NORMAL)",
        ok=full,
        advice="Leave out durability=normal.",
    )


def _journal_mode(connection: apsw.Connection) -> str:
    """What the file says of itself: where it is read as it is, SQLite says "delete" of any."""
    mode = str(connection.pragma("journal_mode"))
    fixed = mode != "wal" and connection.read("main", 0, *_VERSIONS) == (True, _LOGGED)
    return "wal; read as it is, for its directory cannot be written" if fixed else mode


def _sizes(connection: apsw.Connection, path: str) -> Iterator[Fact]:
    log = path + "-wal"
    free = int(connection.pragma("freelist_count")) * int(connection.pragma("page_size"))
    yield Fact("size", human_size(os.path.getsize(path)))
    yield Fact("log", human_size(os.path.getsize(log) if os.path.exists(log) else 0))
    yield Fact("free inside", human_size(free))
    for kind, journals, entries, size in connection.execute(QUERIES["sizes"]):
        yield Fact.of_kind(kind, journals, entries, size)


def _integrity(connection: apsw.Connection) -> Fact:
    found = [row[0] for row in connection.execute("PRAGMA integrity_check(5)")]
    return Fact(
        "integrity",
        "ok" if found == ["ok"] else "; ".join(found),
        ok=found == ["ok"],
        advice="Copy the file and its -wal away. Then go back to a backup (`limpet restore BACKUP "
        "--replace`), or write what can be read to a new store (`limpet salvage FROM NEW`). If "
        "somebody has put this file in place by hand, the log beside it may be another file's.",
    )


def _index(connection: apsw.Connection) -> Fact:
    """Whether the index has each record once; SQLite does not know that it is one."""
    ((missing, stray, twice),) = connection.execute(QUERIES["index_faults"])
    wrong = [
        f"{count:,} {what}"
        for count, what in (
            (missing, "records are not in it"),
            (stray, "entries have no record"),
            (twice, "records are in it twice"),
        )
        if count
    ]
    return Fact(
        "index",
        "; ".join(wrong) or "ok",
        ok=not wrong,
        advice="Somebody has changed the tables by hand, or put the file beside a log that is not "
        "its own: go back to a backup (`limpet restore BACKUP --replace`).",
    )
