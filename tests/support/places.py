"""Every backend, for tests that are the same for all of them.

    from tests.support import places

    where = places.where


    def test_something(where: Where) -> None:
        with limpet.open(where.url) as store: ...

A server starts when the first test wants it, and such a test has the mark ``server``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers import Server

__all__ = ["EVERYWHERE", "LOCAL", "SERVERS", "Where", "find", "where"]

#: Backends in files of this machine, whose clock is that of the process: name, and its URL.
LOCAL = {"sqlite": "sqlite:{}/agents.db", "file": "file:{}/agents"}

#: Backends over a network, whose clock is the server's: name, and the fixture of the server.
SERVERS = {
    "postgresql": "postgresql_server",
    "redis": "redis_server",
    "redis-cluster": "redis_cluster",
    "valkey": "valkey_server",
    "dynamodb": "dynamodb_server",
}

#: All of them, as parameters.
EVERYWHERE = [*LOCAL, *(pytest.param(name, marks=pytest.mark.server) for name in SERVERS)]


@dataclass(frozen=True)
class Where:
    """An empty place that several processes can open."""

    name: str
    url: str

    @property
    def has_a_clock(self) -> bool:
        """Whether the place has a clock of its own, so that those of its clients do not matter."""
        return self.name not in LOCAL


def find(name: str, request: pytest.FixtureRequest) -> Where:
    """An empty place of the backend *name*."""
    if name in LOCAL:
        directory: Path = request.getfixturevalue("tmp_path")
        return Where(name, LOCAL[name].format(directory))
    server: Server = request.getfixturevalue(SERVERS[name])
    return Where(name, server.place())


@pytest.fixture(params=EVERYWHERE)
def where(request: pytest.FixtureRequest) -> Where:
    """An empty place of each backend."""
    return find(request.param, request)
