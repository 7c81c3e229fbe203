"""See `PostgresBackend`."""

from limpet.backends.postgresql.backend import PostgresBackend

__all__ = ["PostgresBackend"]
