"""The tests' own servers: private, durable, and gone when the tests are."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import psycopg
import pytest
import redis

from limpet.testing.proxy import Proxy
from tests.support import servers
from tests.support.paths import ROOT
from tests.support.processes import alive, children_of, until
from tests.support.servers import (
    SHARED,
    DynamoServer,
    PostgresServer,
    RedisCluster,
    RedisServer,
    Server,
    ServerError,
    ValkeyServer,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.server

SYSV = Path("/proc/sysvipc/shm")
KINDS = pytest.mark.parametrize("kind", SHARED.values(), ids=lambda kind: kind.__name__)


def write_to_postgresql(server: Server) -> Callable[[], bool]:
    """Write something; whether it is there."""
    assert isinstance(server, PostgresServer)
    with psycopg.connect(server.url()) as connection:
        connection.execute("CREATE TABLE kept (it int)")

    def there() -> bool:
        with psycopg.connect(server.url()) as connection:
            return connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)

    return there


def write_to_redis(server: Server) -> Callable[[], bool]:
    """Write something; whether it is there."""
    assert isinstance(server, RedisServer)
    server.ask("SET", "kept", "it")
    return lambda: server.ask("GET", "kept") == "it"


def write_to_cluster(server: Server) -> Callable[[], bool]:
    """Write something of each node; whether it is there."""

    def client() -> redis.RedisCluster:
        return redis.RedisCluster(host=server.host, port=server.port)

    names = [f"kept-{number}" for number in range(30)]
    with client() as cluster:
        for name in names:
            cluster.set(name, "it")

    def there() -> bool:
        with client() as cluster:
            return all(cluster.get(name) == b"it" for name in names)

    return there


def write_to_dynamodb(server: Server) -> Callable[[], bool]:
    """Write something; whether it is there."""
    client = boto3.client("dynamodb", endpoint_url=f"http://{server.host}:{server.port}")
    client.create_table(
        TableName="kept",
        AttributeDefinitions=[{"AttributeName": "it", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "it", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    client.put_item(TableName="kept", Item={"it": {"S": "x"}})
    return lambda: client.scan(TableName="kept")["Count"] == 1


WRITES = {
    PostgresServer: write_to_postgresql,
    RedisServer: write_to_redis,
    RedisCluster: write_to_cluster,
    ValkeyServer: write_to_redis,
    DynamoServer: write_to_dynamodb,
}


@KINDS
def test_what_was_acknowledged_is_there_when_a_killed_server_is_started_again(
    kind: type[Server], aws_environment: None
) -> None:
    """At the same port, more than once, and also when it was stopped."""
    with kind() as server:
        port = server.port
        there = WRITES[kind](server)
        for end in (server.kill, server.kill, server.stop):
            end()
            assert not server.running
            server.start()
            assert there()
        assert server.port == port


@KINDS
def test_a_place_is_given_to_one_only(kind: type[Server]) -> None:
    """Tests on one server do not see each other."""
    server = kind()
    places = [server.place() for _ in range(3)]
    assert len(set(places)) == 3
    assert all(f":{server.port}" in place for place in places)
    assert f":{server.port}" not in server.through(places[0], 1)


@KINDS
def test_a_server_leaves_nothing_behind(kind: type[Server]) -> None:
    """No process, no file."""
    with kind() as server:
        nodes: list[Server] = list(server.nodes) if isinstance(server, RedisCluster) else [server]
        pids = [node._process.pid for node in nodes if node._process is not None]
        pids += [child for pid in pids for child in children_of(pid)]
        directories = [node.directory for node in nodes]
        assert pids
        assert all(alive(node._process.pid) for node in nodes if node._process is not None)
    assert not any(map(alive, pids))
    assert not any(directory.exists() for directory in directories)


def shared_memory(pid: int) -> list[str]:
    """The pieces of it that *pid* has made, and not given back."""
    lines = SYSV.read_text().splitlines()[1:] if SYSV.exists() else []
    return [line for line in lines if line.split()[4] == str(pid)]


CHILD = """
import sys, time
from tests.support import servers
from tests.support.paths import ROOT
server = getattr(servers, sys.argv[1])().__enter__()
print(server._process.pid, server.directory, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("kind", [PostgresServer, RedisServer, DynamoServer])
def test_a_server_dies_with_the_tests(kind: type[Server]) -> None:
    """Also if they are killed and have no time to clean up."""
    tests = subprocess.Popen(
        [sys.executable, "-c", CHILD, kind.__name__],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with tests:
        assert tests.stdout is not None
        pid, directory = tests.stdout.readline().split()
        try:
            assert alive(int(pid))
            tests.send_signal(signal.SIGKILL)
            assert until(lambda: not alive(int(pid)))
            assert shared_memory(int(pid)) == []
        finally:
            tests.kill()
            shutil.rmtree(directory)


def test_a_server_takes_other_settings() -> None:
    """For tests of stores that promise less."""
    with (
        RedisServer(appendfsync="no", requirepass="secret") as server,
        redis.Redis(server.host, server.port, password="secret") as client,  # noqa: S106 - not one
    ):
        assert client.config_get("appendfsync") == {"appendfsync": "no"}
        assert ":secret@" in server.place()
    with (
        PostgresServer(synchronous_commit="off") as other,
        psycopg.connect(other.url()) as connection,
    ):
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)


def test_postgresql_wants_its_password_and_orders_words_as_people_do(
    postgresql_server: PostgresServer,
) -> None:
    """So that a test can fail which gives a wrong one, or forgets that bytes have another order."""
    url = postgresql_server.url()
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(url.replace("s3cret", "wrong"))
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT 'a' < 'B', 'a' < 'B' COLLATE \"C\"").fetchone() == (
            True,
            False,
        )
        assert connection.execute("SHOW fsync").fetchone() == ("on",)


def test_a_server_is_reached_through_a_proxy(redis_server: RedisServer) -> None:
    """The address changes, and nothing else of the URL."""
    with Proxy(redis_server.host, redis_server.port) as network:
        url = redis_server.through(redis_server.place(), network.port)
        assert "prefix=place" in url
        with redis.Redis.from_url(url.partition("?")[0]) as client:
            assert client.ping()
    assert network.requests > 0


def test_a_test_that_asks_for_a_server_is_marked(
    redis_server: Server, request: pytest.FixtureRequest
) -> None:
    """`make test-fast` leaves it out."""
    assert request.node.get_closest_marker("server") is not None


def test_a_server_that_does_not_start_says_why() -> None:
    """The end of its log is in the error."""
    with (
        pytest.raises(ServerError, match=r"(?s)Redis does not start.*nonsense"),
        RedisServer(maxmemory="nonsense"),
    ):
        pass


@pytest.mark.parametrize("kind", [PostgresServer, RedisServer, ValkeyServer, DynamoServer])
def test_a_server_that_is_not_installed_is_an_error_that_says_what_to_do(
    kind: type[Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Never a test that is left out in silence."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(servers, "DOWNLOADS", tmp_path)
    monkeypatch.setattr(servers, "DEBIAN", tmp_path)
    monkeypatch.setattr(servers, "find_spec", lambda _: None)
    with pytest.raises(ServerError, match=r"not installed\. Run: make servers"), kind():
        pass


def test_without_root_the_set_up_says_what_to_install(tmp_path: Path) -> None:
    """And how to do without."""
    for name in ("sh", "dirname", "sed", "tr", "cmp", "apt-get"):
        (tmp_path / name).symlink_to(shutil.which(name) or "/bin/true")
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o700)
    done = subprocess.run(
        [str(ROOT / "tools" / "servers")],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "apt-get install" in done.stderr
    assert "redis-server default-jre-headless" in done.stderr
    assert "make test-fast" in done.stderr
