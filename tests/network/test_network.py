"""Every backend over a network against a network that fails."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

import pytest

from limpet.backends.url import connect
from limpet.testing.network import NetworkContract, OpenedThrough
from limpet.testing.proxy import Proxy
from tests.support.processes import until
from tests.support.servers import RedisCluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from limpet.backends.contract import Backend
    from tests.support.servers import RedisServer, Server

pytestmark = pytest.mark.server


class _Network(NetworkContract):
    """For all of them: a place is a URL."""

    @pytest.fixture
    def opened_through(self, server: Server) -> OpenedThrough:
        """Places of its own for each test."""
        places: defaultdict[int, str] = defaultdict(server.place)

        def opened(port: int, *, place: int = 0, timeout: float = 30) -> Backend:
            return connect(server.through(places[place], port), timeout=timeout)

        return opened


class TestPostgresql(_Network):
    """PostgreSQL."""

    @pytest.fixture
    def server(self, postgresql_server: Server) -> Server:
        """The one of the session."""
        return postgresql_server


class TestRedis(_Network):
    """Redis."""

    @pytest.fixture
    def server(self, redis_server: Server) -> Server:
        """The one of the session."""
        return redis_server


@pytest.mark.long
class TestRedisCluster(_Network):
    """Three masters. Each tells every client where the others are: by way of the same network."""

    # These tests want several networks, and a node can be known under one address only.
    test_a_half_open_connection_is_not_waited_for_without_end = None  # type: ignore[assignment]
    test_a_slow_network_is_waited_for = None  # type: ignore[assignment]

    @pytest.fixture(scope="module")
    @staticmethod
    def behind() -> Iterator[tuple[RedisCluster, Proxy]]:
        """A cluster of its own and the network before it, set up once: the news spreads slowly."""
        with RedisCluster() as cluster, Proxy(cluster.host, cluster.port) as proxy:
            first, *others = cluster.nodes
            ports = {first: proxy.port}
            ports |= {node: proxy.add(node.host, node.port) for node in others}
            for node, port in ports.items():
                node.ask("CONFIG", "SET", "cluster-announce-port", str(port))
            assert until(lambda: all(map(partial(_knows, ports.values()), cluster.nodes)))
            yield cluster, proxy

    @pytest.fixture
    def server(self, behind: tuple[RedisCluster, Proxy]) -> RedisCluster:
        """The cluster."""
        return behind[0]

    @pytest.fixture
    def network(self, behind: tuple[RedisCluster, Proxy], _leaves_nothing: None) -> Iterator[Proxy]:
        """The way to it, in good health."""
        yield behind[1]
        behind[1].heal()
        behind[1].cut()


def _knows(ports: Iterable[int], node: RedisServer) -> bool:
    addresses = node.ask("CLUSTER", "NODES")
    return all(f"127.0.0.1:{port}@" in addresses for port in ports)


@pytest.mark.long
class TestValkey(_Network):
    """Valkey."""

    @pytest.fixture
    def server(self, valkey_server: Server) -> Server:
        """The one of the session."""
        return valkey_server


class TestDynamodb(_Network):
    """DynamoDB."""

    @pytest.fixture
    def server(self, dynamodb_server: Server) -> Server:
        """The one of the session."""
        return dynamodb_server
