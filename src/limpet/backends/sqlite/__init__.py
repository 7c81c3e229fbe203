"""See `SqliteBackend`."""

from limpet.backends.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
