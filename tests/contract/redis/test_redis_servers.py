"""Redis and Valkey servers of all sorts: how durable they are, who gets in, and where slots go."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest
import redis

import limpet
from limpet.backends.contract import Append, Key
from limpet.backends.redis.backend import RedisBackend
from limpet.backends.redis.durability import Confirmation
from limpet.backends.redis.errors import Unconfirmed
from limpet.backends.url import connect
from tests.support.processes import free_port, until
from tests.support.servers import RedisCluster, RedisSentinel, RedisServer, ValkeyServer, certify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from limpet.backends.contract import Appended, Backend
    from limpet.backends.facts import Fact

pytestmark = pytest.mark.server

KEY = Key("acme", "note", "one")


@pytest.fixture(scope="module")
def own_redis() -> Iterator[RedisServer]:
    """A Redis that nobody else uses."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def own_valkey() -> Iterator[ValkeyServer]:
    """A Valkey that nobody else uses."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture(params=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server whose settings a test may change; they are set back afterwards."""
    own: RedisServer = request.getfixturevalue(f"own_{request.param}")
    client = redis.Redis(port=own.port)
    names = ["appendonly", "appendfsync", "no-appendfsync-on-rewrite"]
    names += ["maxmemory", "maxmemory-policy", "busy-reply-threshold"]
    before: dict[Any, Any] = client.config_get(*names)
    yield own
    for name, value in before.items():
        client.config_set(name, value)


def change(server: RedisServer, **settings: str) -> None:
    """Change the settings of a running server."""
    for name, value in settings.items():
        server.ask("CONFIG", "SET", name.replace("_", "-"), value)


def place(server: RedisServer, **parameters: str) -> str:
    """An empty place, with these parameters only."""
    prefix = server.place().partition("prefix=")[2].partition("&")[0]
    more = "".join(f"&{name}={value}" for name, value in parameters.items())
    return f"{server.url()}?prefix={prefix}{more}"


def append(backend: Backend, body: bytes = b"x", **request: Any) -> Appended:
    """One record of one entry."""
    return backend.append(Append(**{"key": KEY, "body": body, "count": 1, **request}))


def durability(backend: Backend) -> Fact:
    """What the doctor says."""
    (fact,) = [fact for fact in backend.facts() if fact.name == "durability"]
    return fact


# -- durability ----------------------------------------------------------------------------------

LEVELS = {
    "full": {"appendonly": "yes", "appendfsync": "always"},
    "second": {"appendonly": "yes", "appendfsync": "everysec"},
    "gaps": {"appendonly": "yes", "appendfsync": "always", "no_appendfsync_on_rewrite": "yes"},
    "no": {"appendonly": "yes", "appendfsync": "no"},
    "none": {"appendonly": "no"},
}


@pytest.mark.parametrize(
    ("level", "loss"),
    [
        ("second", r"last second or two of writes \(appendfsync everysec\)"),
        ("gaps", r"no-appendfsync-on-rewrite yes"),
        ("no", r"half a minute .*appendfsync no"),
        ("none", r"all writes since its last snapshot.*appendonly no"),
    ],
)
def test_a_server_that_may_forget_is_used_as_it_is_with_a_warning(
    server: RedisServer, level: str, loss: str
) -> None:
    """It says what can be lost and how to change that; the doctor says it again."""
    change(server, **LEVELS[level])
    with pytest.warns(limpet.errors.DurabilityWarning, match=f"(?s){loss}.*Set append.*Or accept"):
        backend = RedisBackend.from_url(place(server))
    assert append(backend).seq == 1
    fact = durability(backend)
    assert fact.ok is False
    assert "appendfsync always" in fact.advice
    backend.close()


def test_a_command_says_it_in_a_line_for_people(server: RedisServer) -> None:
    """Without the file and the line of our code that Python prints with a warning."""
    change(server, **LEVELS["none"])
    command = [sys.executable, "-m", "limpet", "--store", place(server)]
    command += ["task", "submit", "report", "t", "--goal", "Report"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "t is open, for a worker that runs 'report'.\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("Note: ")
    assert "appendonly no" in line
    assert "Warning" not in line


def test_a_server_that_syncs_every_write_needs_no_warning(server: RedisServer) -> None:
    """What was acknowledged is on its disk."""
    change(server, **LEVELS["full"])
    for parameters in ({}, {"durability": "full"}, {"durability": "second"}):
        with closing(RedisBackend.from_url(place(server, **parameters))) as backend:
            assert durability(backend).ok is True
            assert append(backend).seq == 1


def test_who_only_reads_is_told_what_writers_get_by_that_url(server: RedisServer) -> None:
    """The doctor writes nothing, and must not say that what the URL asks for is missing."""
    there = place(server)
    RedisBackend.from_url(f"{there}&durability=none").close()
    for level, wanted, ok, told in (
        ("full", "full", True, "survives power loss"),
        ("second", "full", False, "is not as durable as durability=full asks"),
        ("second", "second", False, "appendfsync everysec"),
        ("none", "full", False, "is not as durable as durability=full asks"),
    ):
        change(server, **LEVELS[level])
        url = f"{there}&durability={wanted}"
        with closing(RedisBackend.from_url(url, readonly=True, create=False)) as backend:
            fact = durability(backend)
        assert (fact.ok, told in fact.value) == (ok, True), fact


@pytest.mark.parametrize(
    ("wanted", "level", "enough"),
    [
        ("second", "second", True),
        ("second", "gaps", True),
        ("second", "no", False),
        ("second", "none", False),
        ("full", "none", False),
        ("full", "second", False),
        ("full", "gaps", False),
        ("none", "none", True),
        ("none", "no", True),
    ],
)
def test_less_than_was_asked_for_is_refused(
    server: RedisServer, wanted: str, level: str, *, enough: bool
) -> None:
    """And as much as was asked for is taken without a word."""
    change(server, **LEVELS[level])
    url = place(server, durability=wanted)
    if enough:
        RedisBackend.from_url(url).close()
        return
    with pytest.raises(limpet.StoreError, match=f"not as durable as durability={wanted} asks"):
        RedisBackend.from_url(url)
    assert server.ask("EXISTS", url.partition("prefix=")[2].partition("&")[0] + ":format") == "0"


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ([0], "0 of 1 replicas"),
        ([redis.ResponseError("no time")], "cannot be confirmed: no time"),
        ([1], None),
    ],
)
def test_the_counts_that_come_back_are_looked_at(replies: list[Any], words: str | None) -> None:
    """WAIT answers at the end of its time, too."""
    confirmation = Confirmation(replicas=1, patience=1)
    if words is None:
        confirmation.check(replies)
        return
    with pytest.raises(Unconfirmed, match=words):
        confirmation.check(replies)


@pytest.mark.parametrize("kind", [RedisServer, ValkeyServer])
@pytest.mark.parametrize("wanted", ["full", "second"])
def test_a_server_that_came_back_with_less_gets_no_more_writes(
    kind: type[RedisServer], wanted: str
) -> None:
    """A new connection is looked at before its first write, and the old ones are gone."""
    with (
        kind() as server,
        closing(RedisBackend.from_url(place(server, durability=wanted))) as backend,
    ):
        append(backend, b"before")
        restart(server, appendonly="no")
        with pytest.raises(limpet.StoreUnavailable, match=f"durability={wanted} asks"):
            append(backend, id="a")  # of a connection that was cut, who knows
        with pytest.raises(
            limpet.errors.NotDurable, match=f"durability={wanted} asks.*appendonly no"
        ):
            append(backend, id="a")
        assert backend.read(KEY) == []
        assert durability(backend).ok is False
        restart(server, appendonly="yes")
        assert append(backend, b"after", id="a").seq == 2
        assert [body for _, body in backend.bodies(KEY)] == [b"before", b"after"]


def restart(server: RedisServer, **settings: str) -> None:
    """Stop it, and start it with other settings."""
    server.stop()
    server.settings |= settings
    server.start()


def test_a_server_that_came_back_and_syncs_less_often_gets_no_more_writes() -> None:
    """It would answer before a write is on its disk."""
    with (
        ValkeyServer() as server,
        closing(RedisBackend.from_url(place(server, durability="full"))) as backend,
    ):
        append(backend)
        restart(server, appendfsync="everysec")
        with pytest.raises(limpet.StoreUnavailable, match="durability=full asks"):
            append(backend, id="a")
        restart(server, appendfsync="always")
        assert append(backend, id="a").seq == 2


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_no_store(server: RedisServer, policy: str) -> None:
    """It drops what it has acknowledged when memory is short."""
    change(server, **LEVELS["full"], maxmemory="100mb", maxmemory_policy=policy)
    with pytest.raises(limpet.StoreError, match="maxmemory-policy noeviction"):
        RedisBackend.from_url(place(server, durability="full"))
    with pytest.warns(limpet.errors.DurabilityWarning, match="maxmemory-policy noeviction"):
        backend = RedisBackend.from_url(place(server))
    facts = {fact.name: fact for fact in backend.facts()}
    assert (facts["eviction"].value, facts["eviction"].ok) == (policy, False)
    backend.close()
    change(server, maxmemory="0")
    with closing(RedisBackend.from_url(place(server, durability="full"))) as backend:
        facts = {fact.name: fact for fact in backend.facts()}
        assert facts["eviction"].ok is True


def test_a_full_server_says_so_and_can_be_emptied(server: RedisServer) -> None:
    """What was there can be read, deleted and compacted; leases can be kept."""
    with closing(RedisBackend.from_url(place(server, durability="none"))) as backend:
        append(backend, b"one")
        append(backend, b"two")
        lease = backend.acquire(KEY, "me", 60)
        change(server, maxmemory="1")
        with pytest.raises(limpet.errors.StoreFull, match="Raise maxmemory"):
            append(backend)
        head = backend.head(KEY)
        assert head is not None
        assert head.seq == 2
        assert [body for _, body in backend.bodies(KEY)] == [b"one", b"two"]
        assert backend.renew(KEY, lease, 60).epoch == lease.epoch
        backend.release(KEY, lease)
        assert backend.compact(KEY, 2) == 1
        assert backend.sweep() == 0
        with closing(RedisBackend.from_url(place_again(backend, server))) as other:
            assert other.delete(KEY) is True


def place_again(backend: RedisBackend, server: RedisServer) -> str:
    """The place that *backend* has open."""
    return f"{server.url()}?prefix={backend._keys.prefix}&durability=none"


# -- replicas ------------------------------------------------------------------------------------


def test_a_replica_can_be_read_and_waited_for(own_redis: RedisServer) -> None:
    """It takes no writes, and who waits for it waits in vain when it is away."""
    url = place(own_redis, replicas="1")
    change(own_redis, repl_diskless_sync_delay="0")
    with (
        RedisServer(replicaof=f"127.0.0.1 {own_redis.port}") as replica,
        closing(RedisBackend.from_url(url)) as backend,
    ):
        assert until(lambda: "state=online" in own_redis.ask("INFO", "replication"))
        append(backend)
        facts = {fact.name: fact.value for fact in backend.facts()}
        assert facts["replicas"].startswith("1; each write waits for 1")
        there = f"{replica.url()}?prefix={backend._keys.prefix}"
        with pytest.raises(limpet.errors.StoreReadOnly, match="is a replica"):
            RedisBackend.from_url(there)
        with closing(RedisBackend.from_url(there, readonly=True)) as reader:
            assert [body for _, body in reader.bodies(KEY)] == [b"x"]
            assert len(reader.scan("acme", "note").heads) == 1
        replica.kill()
        with (
            closing(RedisBackend.from_url(f"{url}&timeout=0.5")) as hasty,
            pytest.raises(limpet.StoreUnavailable, match="0 of 1 replicas"),
        ):
            append(hasty, id="a")
        head = backend.head(KEY)
        assert head is not None
        assert head.seq == 2


@pytest.mark.parametrize("parameters", [{}, {"durability": "full"}])
def test_a_master_that_became_a_replica_is_left_for_the_new_one(
    own_redis: RedisServer, parameters: dict[str, str]
) -> None:
    """Its name may stand for another server by then; here it becomes the master again."""
    client = redis.Redis(port=own_redis.port)
    client.config_resetstat()
    with (
        closing(RedisBackend.from_url(place(own_redis, **parameters))) as backend,
        ThreadPoolExecutor(1) as pool,
    ):
        append(backend)
        client.replicaof("127.0.0.1", free_port())
        waiting = pool.submit(append, backend)
        assert until(lambda: "READONLY" in refusals(client))
        client.replicaof("NO", "ONE")
        assert waiting.result().seq == 2


def refusals(client: redis.Redis) -> set[str]:
    """The errors that a server has given out, by their first words."""
    errors: dict[str, Any] = client.info("errorstats")
    return {name.removeprefix("errorstat_") for name in errors}


# -- sentinels -----------------------------------------------------------------------------------


class Watched:
    """A master with two replicas, one of which takes its place when it is gone."""

    def __init__(self, kind: type[RedisServer], **replicas: str) -> None:
        servers = ExitStack()
        self.close = servers.close
        settings = {"repl_diskless_sync_delay": "0"}
        self.master = servers.enter_context(kind(**settings))
        settings |= {"replicaof": f"127.0.0.1 {self.master.port}", **replicas}
        self.replicas = [servers.enter_context(kind(**settings)) for _ in range(2)]
        assert until(lambda: self.master.ask("INFO", "replication").count("state=online") == 2)
        self.sentinel = servers.enter_context(RedisSentinel(self.master))
        assert until(lambda: "status=ok" in self.about() and "slaves=2" in self.about())

    def about(self) -> str:
        """What the Sentinel knows."""
        return self.sentinel.ask("INFO", "sentinel")

    def fail_over(self) -> None:
        """End the master, and wait for the next one."""
        self.master.kill()
        ports = [f"address=127.0.0.1:{replica.port}," for replica in self.replicas]
        assert until(lambda: any(port in self.about() for port in ports))

    def place(self, **parameters: str) -> str:
        """An empty place, by way of a Sentinel that is away and of this one."""
        url = place(self.sentinel, sentinel="main", **parameters)
        return url.replace("127.0.0.1", f"127.0.0.1:{free_port()},127.0.0.1")


@pytest.mark.parametrize("kind", [RedisServer, ValkeyServer])
def test_a_failover_by_sentinel_keeps_what_the_replicas_confirmed(kind: type[RedisServer]) -> None:
    """The store finds the new master by itself. What was under way is there once when repeated."""
    with closing(Watched(kind)) as watched:
        url = watched.place(durability="full")
        with (
            closing(RedisBackend.from_url(url)) as backend,
            closing(RedisBackend.from_url(url, replicas=2, timeout=1)) as careful,
            ThreadPoolExecutor(4) as pool,
        ):
            counts = [0] * 4  # of what each has been told is there

            def write(number: int) -> None:
                while True:
                    name = f"{number}-{counts[number]}"
                    append(careful, name.encode(), id=name)
                    counts[number] += 1

            writers = [pool.submit(write, number) for number in range(4)]
            assert until(lambda: min(counts) > 5)
            watched.fail_over()
            for writer in writers:
                with pytest.raises(limpet.StoreUnavailable, match="with the same id"):
                    writer.result()
            for number, count in enumerate(counts):
                name = f"{number}-{count}"
                append(backend, name.encode(), id=name)
            names = {
                f"{one}-{turn}".encode() for one in range(4) for turn in range(counts[one] + 1)
            }
            found = [body for _, body in backend.bodies(KEY)]
            assert (set(found), len(found)) == (names, len(names))
            assert durability(backend).ok is True


def test_a_new_master_that_promises_less_gets_no_writes() -> None:
    """The settings of a replica are its own; they are looked at when it takes over."""
    with (
        closing(Watched(RedisServer, appendonly="no")) as watched,
        closing(RedisBackend.from_url(watched.place(durability="full"))) as backend,
    ):
        append(backend, b"before")
        watched.fail_over()
        with pytest.raises(limpet.StoreError, match=r"durability=full asks.*appendonly no"):
            append(backend, id="a")
        for replica in watched.replicas:
            change(replica, appendonly="yes")
        assert append(backend, b"after", id="a").seq == len(backend.read(KEY))
        assert backend.read(KEY)[-1].body == b"after"
        # While one writes its first log, it does not end.
        assert until(lambda: all(map(_has_its_log, watched.replicas)))


def _has_its_log(server: RedisServer) -> bool:
    state = server.ask("INFO", "persistence")
    return "aof_rewrite_in_progress:0" in state and "aof_rewrite_scheduled:0" in state


def test_what_is_wrong_with_sentinels_is_said() -> None:
    """A name that they do not know, none of them there, and a URL that takes one for a server."""
    with RedisServer() as master, RedisSentinel(master) as sentinel:
        with pytest.raises(limpet.StoreError, match=r"know no master 'other'.*sentinel monitor"):
            RedisBackend.from_url(f"{sentinel.url()},127.0.0.1:1?sentinel=other")
        with pytest.raises(limpet.StoreError, match=r"is a Sentinel.*sentinel=NAME"):
            RedisBackend.from_url(sentinel.url())
        with pytest.raises(limpet.errors.InvalidURL, match=r"several servers.*sentinel=NAME"):
            RedisBackend.from_url(f"redis://one:s3cret@{sentinel.host}:1,{sentinel.host}:2")
        with pytest.raises(limpet.StoreError, match=r"(?i)unknown command"):
            RedisBackend.from_url(f"{master.url()}?sentinel=main")
    with pytest.raises(limpet.StoreUnavailable, match="Connection refused"):
        RedisBackend.from_url(f"{sentinel.url()}?sentinel=main", timeout=0.1)


def test_sentinels_have_a_password_of_their_own() -> None:
    """And that of the master is not for them."""
    with (
        RedisServer(requirepass="s3cret") as master,
        RedisSentinel(master, requirepass="0ther") as sentinel,
    ):
        url = f"redis://:s3cret@127.0.0.1:{sentinel.port}?sentinel=main&sentinel_password="
        with closing(connect(f"{url}0ther")) as backend:
            assert append(backend).seq == 1
            assert "0ther" not in backend.url
        with pytest.raises(limpet.StoreError, match="does not let us in") as caught:
            connect(f"{url}wr0ng")
        assert "wr0ng" not in str(caught.value)


# -- who gets in ---------------------------------------------------------------------------------


def test_a_wrong_password_is_refused_at_once() -> None:
    """And not shown."""
    with RedisServer(requirepass="s3cret") as server:
        url = place(server)
        with closing(RedisBackend.from_url(url)) as backend:
            assert append(backend).seq == 1
            assert "s3cret" not in backend.url
        for wrong in (url.replace("s3cret", "gue55"), url.replace(":s3cret@", "")):
            with pytest.raises(limpet.StoreError, match="does not let us in") as caught:
                RedisBackend.from_url(wrong)
            assert isinstance(caught.value.__cause__, redis.AuthenticationError)
            assert "gue55" not in str(caught.value)


def test_a_server_that_may_not_be_asked_is_unknown(server: RedisServer) -> None:
    """As some that are rented. What it does not say, nobody relies on."""
    change(server, **LEVELS["full"])
    server.ask("ACL", "SETUSER", "app", "on", ">a/b@c", "~*", "+@all", "-@dangerous")
    url = place(server).replace("://", "://app:a%2Fb%40c@")
    with pytest.warns(limpet.errors.DurabilityWarning, match="does not say what survives"):
        backend = RedisBackend.from_url(url)
    assert append(backend).seq == 1
    facts = {fact.name: fact for fact in backend.facts(deep=True)}
    assert facts["durability"].ok is False
    assert facts["memory"].value.startswith("unknown")
    backend.close()
    for wanted in ("second", "full"):
        with pytest.raises(limpet.StoreError, match="does not say"):
            RedisBackend.from_url(url, durability=wanted)


def test_a_user_without_rights_is_told_which(server: RedisServer) -> None:
    """The server's own words name the command or the key."""
    server.ask("ACL", "SETUSER", "guest", "on", ">pw", "~other:*", "+@all")
    url = place(server).replace("://", "://guest:pw@")
    with pytest.raises(limpet.StoreError, match=r"this user may not.*ACL SETUSER"):
        RedisBackend.from_url(url, durability="none")


def test_a_socket_file_and_tls_lead_to_the_same_server(tmp_path: Path) -> None:
    """Every way in."""
    certificate, key = certify(tmp_path / "cert.pem", tmp_path / "key.pem")
    port = free_port()
    with RedisServer(
        tls_port=str(port),
        tls_cert_file=str(certificate),
        tls_key_file=str(key),
        tls_ca_cert_file=str(certificate),
        tls_auth_clients="no",
        unixsocket=str(tmp_path / "redis.sock"),
    ) as server:
        urls = [
            server.url(),
            f"redis://{tmp_path}/redis.sock",
            f"rediss://localhost:{port}?ssl_ca_certs={certificate}",
            f"valkeys://127.0.0.1:{port}?ssl_ca_certs={certificate}&ssl_check_hostname=false",
        ]
        for number, url in enumerate(urls, 1):
            with closing(RedisBackend.from_url(url)) as backend:
                assert append(backend).seq == number
        for untrusted in (
            f"rediss://localhost:{port}",
            f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}",
        ):
            with pytest.raises(
                limpet.StoreError, match=r"certificate verify failed.*Check the name"
            ) as caught:
                RedisBackend.from_url(untrusted)
            assert not isinstance(caught.value, limpet.StoreUnavailable)


def test_a_server_that_is_too_old_is_named(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first one that will do."""
    monkeypatch.setattr("limpet.backends.redis.client.OLDEST", (99, 0))
    with pytest.raises(limpet.StoreError, match=r"is Redis 7.*too old\. Redis 7\.0, or any"):
        RedisBackend.from_url(place(own_redis))


def test_a_restart_is_not_noticed() -> None:
    """Connections are made anew, scripts are sent again, and everything is there."""
    with RedisServer() as server, closing(RedisBackend.from_url(place(server))) as backend:
        append(backend, b"before")
        server.kill()
        server.start()
        append(backend, b"after")
        assert [body for _, body in backend.bodies(KEY)] == [b"before", b"after"]


def test_a_busy_server_is_not_taken_for_one_that_may_forget(server: RedisServer) -> None:
    """It does not say what it promises while somebody's script runs; it is asked again."""
    change(server, **LEVELS["full"], busy_reply_threshold="1")
    client = redis.Redis(port=server.port)
    with (
        closing(RedisBackend.from_url(place(server, durability="full"))) as backend,
        ThreadPoolExecutor(2) as pool,
    ):
        append(backend)
        backend._client._servers.first().drop_idle()
        endless = pool.submit(redis.Redis(port=server.port).eval, "while true do end", 0)
        assert until(lambda: is_busy(client))
        try:
            waiting = pool.submit(append, backend)
            time.sleep(0.1)
            assert not waiting.done()
        finally:
            client.script_kill()
        assert waiting.result().seq == 2
        assert isinstance(endless.exception(), redis.ResponseError)


def is_busy(client: redis.Redis) -> bool:
    """Whether it runs a script and has no time for us."""
    try:
        client.ping()
    except redis.ResponseError as error:
        return str(error).startswith("BUSY")
    return False


# -- clusters ------------------------------------------------------------------------------------


class ValkeyCluster(RedisCluster):
    """The same of Valkey."""

    name = "Valkey Cluster"

    def __init__(self) -> None:
        super().__init__()
        settings = [(node.port, node.settings["cluster_port"]) for node in self.nodes]
        for index, (port, cluster_port) in enumerate(settings):
            node = self.nodes[index] = ValkeyServer(
                cluster_enabled="yes", cluster_port=cluster_port, cluster_node_timeout="2000"
            )
            node.port = port


@pytest.fixture(scope="module", params=[RedisCluster, ValkeyCluster])
def cluster(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    """One whose slots may be moved."""
    with request.param() as servers:
        yield servers


def place_on(cluster: RedisCluster) -> str:
    """An empty place, as durable as the server is."""
    return f"{cluster.place()}&durability=second"


def test_the_journals_of_a_cluster_lie_on_all_servers(cluster: RedisCluster) -> None:
    """And any of them can be named."""
    url = place_on(cluster)
    with closing(RedisBackend.from_url(url)) as backend:
        for number in range(60):
            append(backend, key=KEY._replace(id=f"n{number:02}"))
        prefix = backend._keys.prefix
    for node in cluster.nodes:
        found = list(redis.Redis(port=node.port).scan_iter(f"{prefix}:*:journal:*"))
        assert len(found) > 5
        with closing(
            RedisBackend.from_url(node.url(), prefix=prefix, durability="second")
        ) as backend:
            assert len(backend.scan("acme", "note").heads) == 60
            engine = backend.facts()[0].value
            assert "a cluster of 3" in engine


def test_a_slot_moves_while_its_journals_are_written_to(cluster: RedisCluster) -> None:
    """Calls go where the journal is. Only what begins or ends one waits: that needs the index."""
    url = place_on(cluster)
    with closing(RedisBackend.from_url(url)) as backend, ThreadPoolExecutor(1) as pool:
        names = backend._keys
        others = (KEY._replace(id=str(number)) for number in range(10_000))
        other = next(key for key in others if names.shard(key) == names.shard(KEY))
        append(backend, id="a")
        slot = names.slot(KEY)
        source, target = ends(cluster, slot)
        there, here = (ask(side, "CLUSTER MYID") for side in (target, source))
        ask(target, "CLUSTER SETSLOT", slot, "IMPORTING", here)
        ask(source, "CLUSTER SETSLOT", slot, "MIGRATING", there)
        assert append(backend).seq == 2
        assert backend.head(other) is None  # not here: we are sent to the other side

        keys: list[bytes] = ask(source, "CLUSTER GETKEYSINSLOT", slot, 100)
        migrate(source, target, [names.journal(KEY)])
        assert append(backend).seq == 3
        assert [head.seq for head in backend.scan("acme", "note").heads] == [3]
        begun = pool.submit(append, backend, key=other)
        assert until(lambda: "TRYAGAIN" in refusals(source))
        migrate(source, target, [key for key in keys if key != names.journal(KEY)])
        assert append(backend).seq == 4
        assert not begun.done()
        for side in (target, source):
            ask(side, "CLUSTER SETSLOT", slot, "NODE", there)
        assert begun.result().seq == 1
        assert append(backend).seq == 5
        assert [record.seq for record in backend.read(KEY)] == [1, 2, 3, 4, 5]
        assert append(backend, id="a").repeated
        assert {head.key for head in backend.scan("acme", "note").heads} == {KEY, other}


def ends(cluster: RedisCluster, slot: int) -> tuple[redis.Redis, redis.Redis]:
    """The server that has keys in *slot*, and another one."""
    clients = [redis.Redis(port=node.port) for node in cluster.nodes]
    clients.sort(key=lambda client: -ask(client, "CLUSTER COUNTKEYSINSLOT", slot))
    return clients[0], clients[1]


def ask(client: redis.Redis, *words: Any) -> Any:
    """Any command."""
    return client.execute_command(*words)  # type: ignore[no-untyped-call]


def migrate(source: redis.Redis, target: redis.Redis, keys: list[bytes]) -> None:
    """Move *keys* from one server to the other."""
    port = target.connection_pool.connection_kwargs["port"]
    ask(source, "MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)


def test_a_server_of_a_cluster_that_promises_less_gets_no_more_writes() -> None:
    """Its journals are refused, the others go on; a slot may move to such a server, too."""
    with RedisCluster() as cluster:
        url = f"{cluster.place()}&durability=full"
        with closing(RedisBackend.from_url(url)) as backend:
            keys = [KEY._replace(id=str(number)) for number in range(20)]
            for key in keys:
                append(backend, key=key)
            weak = redis.Redis(port=cluster.nodes[1].port)
            weak.config_set("appendonly", "no")
            weak.client_kill_filter(_type="normal", skipme=True)
            refused = 0
            for key in keys:
                try:
                    append(backend, key=key)
                except limpet.StoreError as error:
                    assert "not as durable as durability=full asks" in str(error)  # noqa: PT017
                    refused += 1
            assert 0 < refused < len(keys)


def test_a_store_that_was_made_on_a_lone_server_works_on_a_cluster(cluster: RedisCluster) -> None:
    """All in one slot then, as it was made: how many shards there are is kept with the store."""
    url = place_on(cluster)
    key = url.partition("prefix=")[2].partition("&")[0] + ":format"
    redis.RedisCluster("127.0.0.1", cluster.port).set(key, "limpet 1 shards 1")
    with closing(RedisBackend.from_url(url)) as backend:
        for number in range(9):
            append(backend, key=KEY._replace(id=str(number)))
        assert len(backend.scan("acme", "note", limit=4).heads) == 4
        assert len({backend._keys.slot(KEY._replace(id=i)) for i in "0123"}) == 1


def test_warnings_name_the_place(own_redis: RedisServer) -> None:
    """Whoever has several stores must know which."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with RedisServer(appendonly="no") as server:
            limpet.open(place(server)).close()
    (warning,) = caught
    assert str(warning.message).startswith(server.url())
