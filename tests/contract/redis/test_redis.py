"""Redis, Valkey and clusters of them: the contract, and what is their own.

What servers with other settings do is in `test_redis_servers`, what a bad network does in
`test_network`, and what becomes of it all when a server is killed in `test_restart`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import redis

import limpet
from limpet.backends.contract import Append, Appended, Expect, Key, Lease
from limpet.backends.redis import backend as module
from limpet.backends.redis.backend import RedisBackend
from limpet.backends.redis.client import Client
from limpet.backends.redis.errors import RedisErrors
from limpet.backends.redis.servers import Servers, packed
from limpet.testing.conformance import BackendContract
from limpet.testing.machine import contract_machine
from tests.support.processes import until
from tests.support.servers import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from limpet.backends.contract import Backend
    from tests.support.servers import Server

KEY = Key("acme", "note", "one")

NAMES = ("redis_server", "valkey_server", "redis_cluster")


def place_on(server: Server) -> str:
    """An empty place; no write waits for Valkey to sync, which takes a tenth of a second each."""
    return server.place().replace("durability=full", "durability=second")


class TestRedis(BackendContract):
    """A lone Redis that syncs at every write."""

    backend = RedisBackend

    @pytest.fixture
    def url(self, redis_server: Server) -> str:
        """A prefix of its own for each test."""
        return place_on(redis_server)


class TestValkey(BackendContract):
    """A lone Valkey."""

    backend = RedisBackend

    @pytest.fixture
    def url(self, valkey_server: Server) -> str:
        """As above."""
        return place_on(valkey_server)


class TestCluster(BackendContract):
    """Three masters."""

    backend = RedisBackend

    @pytest.fixture
    def url(self, redis_cluster: Server) -> str:
        """As above."""
        return place_on(redis_cluster)


def a_prefix_on(name: str) -> Callable[[], AbstractContextManager[Callable[[], Backend]]]:
    """Places for the machine."""

    @contextmanager
    def place() -> Iterator[Callable[[], Backend]]:
        url = place_on(shared(name))
        yield lambda: RedisBackend.from_url(url)

    return place


TestRedisMachine = pytest.mark.server(contract_machine(a_prefix_on("redis_server"), examples=50))
TestValkeyMachine = pytest.mark.server(contract_machine(a_prefix_on("valkey_server"), examples=50))
TestClusterMachine = pytest.mark.server(contract_machine(a_prefix_on("redis_cluster"), examples=15))


@pytest.fixture(params=NAMES)
def url(request: pytest.FixtureRequest) -> str:
    """An empty place on each kind of server."""
    return place_on(request.getfixturevalue(request.param))


@pytest.fixture
def backend(url: str) -> Iterator[RedisBackend]:
    """The same, open."""
    opened = RedisBackend.from_url(url)
    yield opened
    opened.close()


@pytest.fixture
def lone(redis_server: Server) -> Iterator[RedisBackend]:
    """A place on the lone Redis, for what is the same everywhere."""
    opened = RedisBackend.from_url(place_on(redis_server))
    yield opened
    opened.close()


def append(backend: Backend, body: bytes = b"x", key: Key = KEY, **request: Any) -> Appended:
    """One record of one entry, unless it says otherwise."""
    return backend.append(Append(**{"key": key, "body": body, "count": 1, **request}))


def bodies(backend: Backend, key: Key = KEY) -> list[bytes]:
    """What is in a journal."""
    return [body for _, body in backend.bodies(key)]


def ask(backend: RedisBackend, key: bytes, *words: str | bytes | int) -> Any:
    """A plain command about one key."""
    return backend._client.command(key, *words)


# -- once ----------------------------------------------------------------------------------------


class Tape:
    """Every message that goes to a server, to be played again."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sent: list[Callable[[], Any]] = []
        for name in ("send", "send_each"):
            patch.setattr(Servers, name, self._recorded(getattr(Servers, name)))

    def _recorded(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def record(servers: Servers, *message: Any, **options: Any) -> Any:
            self.sent.append(lambda: send(servers, *message, **options))
            return send(servers, *message, **options)

        return record


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Tape:
    """What was sent since the test began."""
    return Tape(monkeypatch)


def test_a_call_that_arrives_twice_is_carried_out_once(
    url: str, backend: RedisBackend, tape: Tape
) -> None:
    """And answered twice, also when the journal is no longer what it was."""
    append(backend, b"first")
    done = append(backend, b"second", labels={"a": "b"})
    again = tape.sent[-1]
    assert again() == [b"done", done.seq, done.at, done.incarnation.encode()]
    with closing(RedisBackend.from_url(url)) as other:
        assert other.delete(KEY) is True
    assert again() == [b"done", done.seq, done.at, done.incarnation.encode()]
    assert backend.head(KEY) is None


def test_a_call_that_arrives_late_does_nothing(backend: RedisBackend, tape: Tape) -> None:
    """A delete that was stuck in the network does not hit the journal that came after."""
    append(backend, b"old")
    late_append = tape.sent[-1]
    assert backend.delete(KEY) is True
    late_delete = tape.sent[-1]
    append(backend, b"new")
    lease = backend.acquire(KEY, "me", 60)
    backend.release(KEY, lease)
    late_release = tape.sent[-1]
    backend.renew(KEY, lease, 60)
    for late in (late_append, late_delete, late_release):
        assert late() == [b"late"]
    assert bodies(backend) == [b"new"]
    head = backend.head(KEY)
    assert head is not None
    assert head.lease is not None


def test_a_first_append_that_arrives_late_does_nothing(
    backend: RedisBackend, tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its two calls the first one found nothing; others have used its writer meanwhile."""
    write = Client.write

    def taken(client: Client, *args: Any, **options: Any) -> list[Any]:
        answer = write(client, *args, **options)
        client._writers.clear()
        return answer

    monkeypatch.setattr(Client, "write", taken)
    append(backend, b"once")
    assert tape.sent[0]() == [b"late"]
    assert bodies(backend) == [b"once"]


def test_a_call_that_found_nothing_to_do_does_nothing_later_either(
    url: str, backend: RedisBackend, tape: Tape
) -> None:
    """It was repeated and answered; its first copy arrives when others have begun the journal."""
    calls: list[Callable[[], object]] = [
        lambda: backend.delete(KEY),
        lambda: backend.compact(KEY, 2),
        lambda: append(backend, b"", count=0, status="old"),
    ]
    late = []
    for call in calls:
        call()
        late.append(tape.sent[-1])
        backend._client._writers.clear()  # so that each is the last call of its writer
    with closing(RedisBackend.from_url(url)) as other:
        append(other, b"first", status="new")
        append(other, b"second")
        answers = [again() for again in late]
        head = other.head(KEY)
        assert head is not None
        assert (head.seq, head.first, head.status) == (2, 1, "new")
    assert [answer[:2] for answer in answers] == [[b"done", 0]] * 3


def test_a_lease_whose_answer_was_lost_is_found_again(backend: RedisBackend, tape: Tape) -> None:
    """Whoever asks again is not held up by itself."""
    lease = backend.acquire(KEY, "me", 60)
    assert tape.sent[-1]() == [b"done", lease.epoch, lease.until]


def test_a_compaction_whose_answer_was_lost_says_what_it_did(
    backend: RedisBackend, tape: Tape
) -> None:
    """Though there is nothing left to drop."""
    for _ in range(3):
        append(backend)
    assert backend.compact(KEY, 3) == 2
    assert tape.sent[-1]() == [b"done", 2, 0]


def test_what_is_remembered_of_client_does_not_grow_with_them(backend: RedisBackend) -> None:
    """One line for each that writes at the same time; those of long ago are forgotten."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: append(backend), range(100)))
        assert 1 <= len(remembered(backend)) <= 4
        backend.delete(KEY)
        assert 1 <= len(remembered(backend)) <= 4
        backend._client._remember = 0
        other = KEY._replace(id="two")
        list(pool.map(lambda _: append(backend, key=other), range(100)))
    assert len(remembered(backend, other)) == 1


def remembered(backend: RedisBackend, journal: Key = KEY) -> dict[str, Any]:
    """What a journal's head says of calls, by their writers."""
    key = backend._keys.journal(journal)
    found: dict[str, Any] = msgspec.msgpack.decode(ask(backend, key, "HGET", key, "head"))
    return found["writers"]  # type: ignore[no-any-return]


def test_a_cloned_process_is_not_taken_for_the_other(url: str) -> None:
    """A machine was copied while it ran. Both copies are the same writer, and both are heard."""
    one, two = RedisBackend.from_url(url), RedisBackend.from_url(url)
    append(one, b"before")
    (writer,) = one._client._writers
    clone = type(writer)()
    clone.name, clone.number = writer.name, writer.number
    two._client._writers.append(clone)
    for number in range(3):
        append(one, b"one %d" % number)
        append(two, b"two %d" % number)
    assert len(bodies(one)) == 7
    one.close()
    two.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(url: str) -> None:
    """Both go on, also with other threads at work while it forks."""
    with limpet.open(url) as store:
        stop = threading.Event()
        thread = threading.Thread(target=write_until, args=(store, stop))
        thread.start()
        children = [fork(store, f"child{number}") for number in range(4)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        stop.set()
        thread.join()
        assert codes == [0] * 4
        assert [store.conversation(f"child{n}").length() for n in range(4)] == [20] * 4
        facts = {fact.name: fact.value for fact in store.backend.facts(deep=True)}
        assert facts["integrity"] == "ok"


def write_until(store: limpet.Store, stop: threading.Event) -> None:
    """Write and write."""
    while not stop.is_set():
        store.conversation("parent").append({"role": "user", "content": "x"})


def fork(store: limpet.Store, name: str) -> int:
    """A child that writes."""
    child = os.fork()
    if child:
        return child
    try:
        for _ in range(20):
            store.conversation(name).append({"role": "user", "content": "x"})
        ok = store.conversation(name).length() == 20
        store.close()
    except BaseException:  # noqa: BLE001 - a child of pytest must never go on as pytest
        os._exit(1)
    os._exit(0 if ok else 2)


# -- the index -----------------------------------------------------------------------------------


def test_the_index_never_disagrees_with_the_journals(url: str) -> None:
    """Journals come, go, expire and are swept, all at the same time, under the same few names."""
    keys = [KEY._replace(id=f"n{number}") for number in range(3)]
    backend = RedisBackend.from_url(url)

    def come_and_go(turn: int) -> None:
        for number in range(60):
            key = keys[(turn + number) % 3]
            append(backend, key=key, ttl=0.01 if number % 3 else None)
            backend.delete(key) if number % 2 else backend.sweep()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(come_and_go, range(4)))
    for key in keys:
        append(backend, key=key, ttl=None)
    assert [head.key for head in backend.scan("acme", "note").heads] == keys
    for key in keys:
        assert backend.delete(key) is True
    assert backend.kinds() == backend._indexed_kinds() == []
    backend.close()


def test_a_scan_over_many_journals_reads_each_once(backend: RedisBackend) -> None:
    """In order, over all shards, in pages of any size, with and without filters."""
    ids = sorted(f"{number * 7919 % 1000:03}" for number in range(600))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda id_: append(backend, key=KEY._replace(id=id_), status=id_[0]), ids))
    wanted: list[tuple[int, dict[str, Any]]]
    wanted = [(37, {}), (1000, {}), (50, {"status": "3"}), (7, {"prefix": "12"})]
    for limit, filters in wanted:
        found: list[str] = []
        cursor = None
        while True:
            page = backend.scan("acme", "note", cursor=cursor, limit=limit, **filters)
            assert len(page.heads) <= limit
            found += [head.key.id for head in page.heads]
            cursor = page.cursor
            if cursor is None:
                break
        start = "".join(filters.values())
        assert found == [id_ for id_ in ids if id_.startswith(start)]


def test_ids_of_what_is_gone_are_passed_over_many_at_a_time(lone: RedisBackend, tape: Tape) -> None:
    """A store that was never swept says what is in it without a call for every two of them."""
    append(lone, key=KEY._replace(id="z"))
    index = lone._keys.index("acme", "note", 0)
    gone = [word for number in range(3000) for word in (0, f"n{number:05}")]
    ask(lone, index.members, "ZADD", index.members, *gone)
    tape.sent.clear()
    assert lone.kinds() == [("acme", "note")]
    assert len(tape.sent) < 40
    assert [head.key.id for head in lone.heads("acme", "note")] == ["z"]


def test_the_server_frees_what_has_expired(backend: RedisBackend) -> None:
    """When its last calls are forgotten, with nobody sweeping; a sweep only tidies up the index."""
    backend._client._remember = 0
    append(backend, id="a", ttl=0.05)
    append(backend, key=KEY._replace(id="stays"))
    assert until(lambda: not is_stored(backend))
    part = backend._keys.index("acme", "note", backend._keys.shard(KEY))
    assert ask(backend, part.members, "ZSCORE", part.members, KEY.id) is not None
    assert backend.sweep() == 1
    assert ask(backend, part.members, "ZSCORE", part.members, KEY.id) is None
    assert backend.sweep() == 0


def is_stored(backend: RedisBackend) -> bool:
    """Whether there is anything of the journal."""
    key = backend._keys.journal(KEY)
    return bool(ask(backend, key, "EXISTS", key))


def lasts(backend: RedisBackend) -> int:
    """Seconds until the server frees the journal; -1 for never."""
    key = backend._keys.journal(KEY)
    return int(ask(backend, key, "TTL", key))


def test_a_leased_journal_is_freed_when_the_lease_ends(backend: RedisBackend) -> None:
    """Not before, and not never."""
    backend._client._remember = 0
    lease = backend.acquire(KEY, "me", 60)
    append(backend, ttl=0.05)
    time.sleep(0.1)
    assert bodies(backend) == [b"x"]
    backend.renew(KEY, lease, 0.05)
    assert until(lambda: not is_stored(backend))
    assert backend.acquire(KEY, "you", 1).epoch > lease.epoch


def test_nothing_is_left_behind_in_the_end(backend: RedisBackend) -> None:
    """Leases that came to nothing, calls that are remembered: all goes, but journals stay."""
    backend.acquire(KEY, "me", 60)
    assert 3600 < lasts(backend) < 3900
    append(backend)
    assert lasts(backend) == -1
    append(backend, body=b"", count=0, ttl=1000)
    assert 1000 <= lasts(backend) < 1200
    append(backend, body=b"", count=0, ttl=None)
    assert lasts(backend) == -1
    backend.delete(KEY)
    assert 0 < lasts(backend) < 200


# -- much at once --------------------------------------------------------------------------------


def test_much_is_read_in_portions(backend: RedisBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not keep others waiting while it gathers gigabytes."""
    for number in range(30):
        append(backend, b"%02d" % number * 50, count=1 + number % 3, id=str(number))
    whole, back = backend.read(KEY), backend.read(KEY, reverse=True)
    monkeypatch.setattr(module, "PORTION", 250)
    assert backend.read(KEY) == whole
    assert backend.read(KEY, reverse=True) == back == whole[::-1]
    assert backend.read(KEY, after=9, upto=30, limit=7) == [r for r in whole if r.seq > 9][:7]
    assert [record.id for record in whole] == [str(number) for number in range(30)]


@pytest.mark.parametrize("anew", [False, True])
def test_a_journal_that_is_deleted_while_it_is_read_is_not_mixed_with_the_next(
    lone: RedisBackend, monkeypatch: pytest.MonkeyPatch, *, anew: bool
) -> None:
    """All that is returned is of one journal."""
    for number in range(10):
        append(lone, b"old %d" % number)
    monkeypatch.setattr(module, "PORTION", 20)
    run = lone._client.run

    def meddle(*call: Any) -> Any:
        answer = run(*call)
        monkeypatch.setattr(lone._client, "run", run)
        lone.delete(KEY)
        if anew:
            append(lone, b"new", count=5)
        return answer

    monkeypatch.setattr(lone._client, "run", meddle)
    assert bodies(lone) == ([b"new"] if anew else [])


def test_much_is_compacted_in_portions(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also past a record that is longer than a portion; ids are forgotten, the others kept."""
    monkeypatch.setattr(module, "NUMBERS", 3)
    for number, count in enumerate((1, 1, 7, 1, 1, 2)):
        append(backend, b"12345", count=count, id=str(number))
    assert backend.compact(KEY, 12) == 11
    head = backend.head(KEY)
    assert head is not None
    assert (head.seq, head.first, head.size) == (13, 12, 5)
    assert append(backend, id="5").repeated
    assert not append(backend, id="4").repeated
    key = backend._keys.journal(KEY)
    assert ask(backend, key, "HLEN", key) == 7  # the head, and two records with their ids


def test_a_body_of_many_megabytes(backend: RedisBackend) -> None:
    """As large as bodies may be, in the order of size."""
    body = os.urandom(1 << 20) * 20
    append(backend, body, id="large")
    append(backend, b"small")
    assert bodies(backend) == [body, b"small"]
    assert append(backend, body, id="large").repeated


# -- the place -----------------------------------------------------------------------------------


def test_a_server_that_has_forgotten_the_scripts_is_told_them_again(
    redis_server: Server, lone: RedisBackend
) -> None:
    """After SCRIPT FLUSH, a restart or a failover."""
    append(lone)
    redis.Redis(port=redis_server.port).script_flush()
    assert append(lone).seq == 2
    redis.Redis(port=redis_server.port).script_flush()
    assert len(lone.scan("acme", "note").heads) == 1


def test_connections_that_the_server_has_closed_are_replaced(
    redis_server: Server, lone: RedisBackend
) -> None:
    """The caller does not notice."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: append(lone), range(20)))
        redis.Redis(port=redis_server.port).client_kill_filter(_type="normal", skipme=True)
        list(pool.map(lambda _: append(lone), range(20)))
    assert lone.read(KEY)[-1].seq == 40


def test_an_idle_connection_is_not_trusted_for_ever(
    lone: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall may have forgotten it, and then nobody answers."""
    monkeypatch.setattr("limpet.backends.redis.servers.IDLE", 0.0)
    assert [append(lone).seq for _ in range(3)] == [1, 2, 3]


def test_as_many_connections_stay_as_were_asked_for(redis_server: Server) -> None:
    """More are made when more are needed, and closed afterwards."""
    backend = RedisBackend.from_url(redis_server.place(), pool=2)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: append(backend), range(50)))
    assert len(backend._client._servers.first()._idle) <= 2
    backend.close()


def test_a_connection_that_comes_back_after_the_end_is_closed(lone: RedisBackend) -> None:
    """A call may be under way while the store is closed."""
    server = lone._client._servers.first()
    connection = server._take()
    lone.close()
    server._give_back(connection)
    assert not server._idle


def test_prefixes_are_different_stores(redis_server: Server) -> None:
    """Many can share a server, and one may begin with another's name."""
    one, two = (
        RedisBackend(redis_server.place().partition("?")[0], prefix=prefix)
        for prefix in ("shared", "shared:two")
    )
    append(one)
    assert two.head(KEY) is None
    assert two.kinds() == []
    one.close()
    two.close()


def test_tenants_with_slashes_are_different_tenants(backend: RedisBackend) -> None:
    """Whatever is in their names, also what we write between the parts of a key."""
    keys = [
        Key("a/b", "note", "c"),
        Key("a", "note", "b/note/c"),
        Key("a%2Fb", "note", "c"),
        Key("a{0}", "note", "{1}"),
        Key("a{", "note", "}{1}:head:"),
    ]
    for key in keys:
        append(backend, key.tenant.encode(), key)
    for key in keys:
        assert bodies(backend, key) == [key.tenant.encode()]
    assert backend.kinds() == sorted({(key.tenant, key.kind) for key in keys})


def test_a_store_is_there_when_it_was_made(redis_server: Server) -> None:
    """Not by looking for it."""
    url = redis_server.place()
    for options in ({"create": False}, {"readonly": True}):
        with pytest.raises(limpet.errors.StoreNotFound, match="no store at"):
            RedisBackend.from_url(url, **options)
    with closing(RedisBackend.from_url(url)) as made:
        append(made)
    with closing(RedisBackend.from_url(url, create=False)) as found:
        assert bodies(found) == [b"x"]


def test_a_store_that_is_only_read_takes_no_writes(redis_server: Server) -> None:
    """None of any kind."""
    url = redis_server.place()
    with closing(RedisBackend.from_url(url)) as made:
        append(made)
    backend = RedisBackend.from_url(url, readonly=True)
    lease = Lease("me", 1, 1)
    writes: list[Callable[[], object]] = [
        lambda: append(backend),
        lambda: backend.delete(KEY),
        lambda: backend.compact(KEY, 2),
        backend.sweep,
        lambda: backend.acquire(KEY, "me", 1),
        lambda: backend.renew(KEY, lease, 1),
        lambda: backend.release(KEY, lease),
    ]
    for write in writes:
        with pytest.raises(limpet.errors.StoreReadOnly, match="readonly"):
            write()
    assert bodies(backend) == [b"x"]
    backend.close()


@pytest.mark.parametrize("content", ["hello", "", "limpet", "limpetish 1 shards 1"])
def test_a_key_that_is_not_ours_is_left_alone(redis_server: Server, content: str) -> None:
    """Somebody else uses these names."""
    url = redis_server.place()
    prefix = url.partition("prefix=")[2]
    client = redis.Redis(port=redis_server.port)
    client.set(f"{prefix}:format", content)
    with pytest.raises(limpet.errors.NotAStore, match="another prefix"):
        RedisBackend.from_url(url)
    client.delete(f"{prefix}:format")
    client.rpush(f"{prefix}:format", content)
    with pytest.raises(limpet.errors.NotAStore, match="another prefix"):
        RedisBackend.from_url(url)


def test_a_store_of_a_newer_release_is_not_touched(redis_server: Server) -> None:
    """Whatever it may mean by its keys."""
    url = redis_server.place()
    prefix = url.partition("prefix=")[2]
    redis.Redis(port=redis_server.port).set(f"{prefix}:format", "limpet 2 in another way")
    with pytest.raises(limpet.errors.SchemaTooNew, match=r"format 2.*up to 1"):
        RedisBackend.from_url(url)


def test_a_key_of_another_type_is_reported(redis_server: Server, lone: RedisBackend) -> None:
    """Somebody has written over one of ours."""
    redis.Redis(port=redis_server.port).set(lone._keys.journal(KEY), "x")
    with pytest.raises(limpet.errors.StoreCorrupt, match="something else"):
        append(lone)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis:localhost", "names no server"),
        ("redis://localhost:port", "a port is a number"),
        ("redis://ann:se/cret@localhost", "a port is a number"),
        ("redis://ann:[cret@localhost", "names no server"),
        ("redis://localhost:116045", "a port is a number"),
        ("redis://localhost/agents", "number of a database, not 'agents'"),
        ("redis://ann:se#cret@localhost", "special characters"),
        ("redis://ann:se?cret@localhost", "special characters"),
        ("redis://localhost?prefix=a{b}", "prefix cannot be"),
        ("redis://localhost?durability=always", "full, second or none"),
        ("redis://localhost?timeout=soon", "timeout cannot be"),
        ("redis://localhost?pool=-1", "pool cannot be"),
        ("redis://localhost?ssl_ca_certs=ca.pem", "rediss://"),
        ("redis://localhost?color=red", "parameter 'color'"),
    ],
)
def test_a_url_that_cannot_be_is_explained(url: str, words: str) -> None:
    """Before anything is tried; and no secret is shown."""
    with pytest.raises(limpet.errors.InvalidURL, match=words) as caught:
        limpet.open(url)
    assert "cret" not in str(caught.value)


def test_a_server_that_is_not_there_is_named(redis_server: Server) -> None:
    """And looked for during the timeout only."""
    with pytest.raises(limpet.StoreUnavailable, match=r"127.0.0.1:1 cannot be reached.*refused"):
        limpet.open("redis://127.0.0.1:1", timeout=0.1)


def test_a_database_that_is_not_there_is_refused(redis_server: Server) -> None:
    """Most servers have sixteen."""
    with pytest.raises(limpet.StoreError, match="out of range"):
        limpet.open(f"redis://127.0.0.1:{redis_server.port}/99")


def test_databases_are_different_places(redis_server: Server) -> None:
    """Named behind the host, or as a parameter."""
    url, query = redis_server.place().split("?")
    with closing(RedisBackend.from_url(f"{url}/3?{query}")) as third:
        append(third)
    for place, found in ((f"{url}?{query}&db=3", [b"x"]), (f"{url}?{query}", [])):
        with closing(RedisBackend.from_url(place)) as other:
            assert bodies(other) == found


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("MISCONF Redis is configured to save RDB snapshots", limpet.StoreUnavailable),
        ("OOM command not allowed", limpet.errors.StoreFull),
        ("READONLY You can't write against a read only replica.", limpet.errors.StoreReadOnly),
        ("CLUSTERDOWN The cluster is down", limpet.StoreUnavailable),
        ("MASTERDOWN Link with MASTER is down", limpet.StoreUnavailable),
        ("NOREPLICAS Not enough good replicas to write.", limpet.StoreUnavailable),
        ("BUSY Redis is busy running a script.", limpet.StoreUnavailable),
        ("TRYAGAIN Multiple keys request during rehashing of slot", limpet.StoreUnavailable),
        ("MOVED 1 127.0.0.1:7000", limpet.StoreUnavailable),
        ("NOPERM this user has no permissions", limpet.StoreError),
        ("NOAUTH Authentication required.", limpet.StoreError),
        ("ERR unknown command", limpet.StoreError),
    ],
)
def test_what_a_server_says_is_said_in_our_words(
    reply: str, error: type[limpet.StoreError]
) -> None:
    """With the server's behind them."""
    said = redis.connection.DefaultParser.parse_error(reply)  # type: ignore[no-untyped-call]
    made = RedisErrors("redis://here").translated(said, writes=True)
    assert type(made) is error
    assert str(made).startswith("redis://here")
    assert reply.rstrip(".").rpartition(" ")[2] in str(made)


def test_a_missing_package_is_named() -> None:
    """With the command that installs it."""
    code = "import sys; sys.modules['redis'] = None; import limpet; limpet.open('redis://x')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtra: Redis needs the package redis" in done.stderr
    assert "pip install '.[redis]' in Limpet's source, or pip install redis." in done.stderr


# -- facts ---------------------------------------------------------------------------------------


def test_facts_tell_of_the_server_and_of_what_is_there(backend: RedisBackend) -> None:
    """At once, and in depth."""
    append(backend, b"12345", count=2)
    append(backend, key=Key("other", "note", "x"))
    quick = {fact.name: fact for fact in backend.facts()}
    assert quick["engine"].value.split()[0] in ("Redis", "Valkey")
    assert quick["notes"].value == "2"
    assert {"durability", "memory", "eviction"} <= quick.keys()
    deep = {fact.name: fact for fact in backend.facts(deep=True)}
    assert deep["notes"].value == "2 with 3 entries, 6 B"
    assert (deep["integrity"].value, deep["integrity"].ok) == ("ok", True)


def test_lost_and_changed_records_are_found(lone: RedisBackend) -> None:
    """Keys can be evicted, or changed by hand."""
    key = lone._keys.journal(KEY)
    for _ in range(3):
        append(lone, b"abc")
    ask(lone, key, "HSET", key, 2, b"\0" * 11 + b"\x01\0longer")
    assert integrity(lone) == "note 'one' has 12 bytes and should have 9"
    ask(lone, key, "HDEL", key, 2)
    assert integrity(lone) == "note 'one' lacks entries from 2 on"
    ask(lone, key, "HDEL", key, 1, 3)
    assert integrity(lone) == "note 'one' lacks entries from 1 on"


def integrity(backend: Backend) -> str:
    """What is wrong."""
    (fact,) = [fact for fact in backend.facts(deep=True) if fact.name == "integrity"]
    assert fact.ok is False
    return fact.value


# -- what is sent --------------------------------------------------------------------------------


def test_long_words_are_sent_in_pieces_and_not_copied() -> None:
    """Each piece has the whole timeout to go out."""
    long = os.urandom(600_000)
    message = packed((b"SET", "é", long, 7), ("PING",))
    assert len(message) == 5
    assert b"".join(message) == (
        b"*4\r\n$3\r\nSET\r\n$2\r\n\xc3\xa9\r\n$600000\r\n" + long + b"\r\n$1\r\n7\r\n"
        b"*1\r\n$4\r\nPING\r\n"
    )


def test_an_append_is_one_round_trip(lone: RedisBackend, tape: Tape) -> None:
    """The first one of a journal is two, unless it says that it is the first."""
    append(lone)
    assert len(tape.sent) == 2
    append(lone)
    assert len(tape.sent) == 3
    append(lone, key=KEY._replace(id="two"), expect=Expect(None, 0))
    assert len(tape.sent) == 4


def test_the_record_behind_one_that_is_missing_does_not_stand_in_for_it(
    backend: RedisBackend,
) -> None:
    """Whoever reads up to the missing one is given what is before it."""
    for number in range(1, 5):
        append(backend, b"%d" % number, count=2)
    name = backend._keys.journal(KEY)
    backend._client.command(name, "HDEL", name, 6, writes=True)
    for upto, found in ((8, [2, 4, 8]), (7, [2, 4, 8]), (6, [2, 4]), (5, [2, 4]), (3, [2, 4])):
        assert [record.seq for record in backend.read(KEY, upto=upto)] == found
        reverse = backend.read(KEY, upto=upto, reverse=True)
        assert [record.seq for record in reverse] == found[::-1]
