"""What stands between a store and its PostgreSQL server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.servers import PgBouncer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import PostgresServer


@pytest.fixture(scope="session")
def pooler(postgresql_server: PostgresServer) -> Iterator[PgBouncer]:
    """A PgBouncer in front of the session's PostgreSQL."""
    with PgBouncer(postgresql_server) as server:
        yield server
