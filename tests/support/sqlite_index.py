"""SQLite's index, put in order more often than a store does it, so that a small test meets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.backends.sqlite import database

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["migrations_with_an_index_moved_every"]

_MOVED = "% 1024 = 0"


def migrations_with_an_index_moved_every(records: int) -> Callable[[], list[tuple[int, str]]]:
    """To be put in the place of `database.migrations` while a store is made."""
    steps = database.migrations()
    assert sum(_MOVED in sql for _, sql in steps) == 1
    made = [(number, sql.replace(_MOVED, f"% {records} = 0")) for number, sql in steps]
    return lambda: made
