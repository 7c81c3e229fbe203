"""PostgreSQL: the contract, concurrency, connections, fork, restart, wake-ups."""
# ruff: noqa: S608  # the schema is named by these tests

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
import pytest

import limpet
from limpet.backends.contract import Append, Appended, Expect, Key, Origin
from limpet.backends.group_commit import Ticket
from limpet.backends.postgresql import PostgresBackend, wakeups
from limpet.backends.postgresql.appender import Write
from limpet.core.runtime import AsyncRuntime
from limpet.testing.conformance import BackendContract
from limpet.testing.crash import seeded
from limpet.testing.leaks import nothing_left
from limpet.testing.machine import contract_machine
from limpet.testing.proxy import Proxy
from tests.contract.sqlite.test_sqlite import INTERRUPTED, finish, python
from tests.support.processes import until
from tests.support.servers import PgBouncer, PostgresServer, shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from random import Random

    from limpet.backends.contract import Backend
    from limpet.backends.facts import Fact

pytestmark = pytest.mark.server

KEY = Key("acme", "note", "one")


# -- the contract ----------------------------------------------------------------------------------


class _Contract(BackendContract):
    """A schema of its own for each test."""

    backend = PostgresBackend
    parameters: ClassVar[str]

    @pytest.fixture
    def url(self, postgresql_server: PostgresServer) -> str:
        """A place that nobody has used."""
        return postgresql_server.place() + self.parameters


class TestPostgresql(_Contract):
    """As it is by default."""

    parameters = ""


class TestBehindAPooler(BackendContract):
    """PgBouncer in transaction mode: nothing is prepared, and nothing asked of a session."""

    backend = PostgresBackend

    @pytest.fixture
    def url(self, pooler: PgBouncer) -> str:
        """A place that nobody has used."""
        return pooler.place()


class TestWithWakeups(_Contract):
    """Appends notify, and waiters listen."""

    parameters = "&wakeups=true"


@contextmanager
def a_schema() -> Iterator[Callable[[], Backend]]:
    """A place for the machine."""
    url = shared("postgresql_server").place()
    yield lambda: PostgresBackend.from_url(url)


TestPostgresqlMachine = pytest.mark.usefixtures("postgresql_server")(
    contract_machine(a_schema, examples=25)
)


# -- what the tests share --------------------------------------------------------------------------


@pytest.fixture
def url(postgresql_server: PostgresServer) -> str:
    """A place that nobody has used."""
    return postgresql_server.place()


@pytest.fixture
def backend(url: str) -> Iterator[PostgresBackend]:
    """A store there."""
    with closing(PostgresBackend.from_url(url)) as backend:
        yield backend


@pytest.fixture
def own(postgresql_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A connection without Limpet."""
    with psycopg.connect(postgresql_server.url(), autocommit=True) as connection:
        yield connection


def add(key: Key = KEY, body: bytes = b"x", **request: Any) -> Append:
    """A record of one entry; a number to expect will do."""
    if isinstance(request.get("expect"), int):
        request["expect"] = Expect(None, request["expect"])
    return Append(**{"key": key, "body": body, "count": 1, **request})


def key(number: object) -> Key:
    """One of many."""
    return KEY._replace(id=f"n{number}")


def facts(backend: Backend) -> dict[str, Fact]:
    """All of them, by name."""
    return {fact.name: fact for fact in backend.facts(deep=True)}


def connections(own: psycopg.Connection[Any], name: str) -> set[int]:
    """The server's processes for the clients of that name."""
    sql = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
    return {row[0] for row in own.execute(sql, (name,))}


def idle(backend: PostgresBackend) -> Any:
    """A connection that nobody uses."""
    return backend._connections.pool._idle[-1].connection


# -- one round trip --------------------------------------------------------------------------------


def test_an_append_is_one_round_trip(postgresql_server: PostgresServer, url: str) -> None:
    """Head, record, labels and conditions; why it was refused takes another one."""
    with Proxy(postgresql_server.host, postgresql_server.port) as network:
        through = postgresql_server.through(url, network.port)
        with closing(PostgresBackend.from_url(through)) as backend:
            lease = backend.acquire(KEY, "me", 60)
            requests: list[dict[str, Any]] = [
                {},
                {"id": "mine"},
                {"epoch": lease.epoch, "status": "open", "labels": {"a": "b"}, "ttl": 60},
            ]
            for request in requests:
                trips = []
                for again in range(3):  # the second time it is prepared
                    named = {"id": f"mine{again}"} if "id" in request else {}
                    before = network.requests
                    backend.append(add(**request | named))
                    trips.append(network.requests - before)
                assert trips[-1] == 1
            before = network.requests
            with pytest.raises(limpet.Conflict):
                backend.append(add(expect=99))
            assert network.requests - before <= 2


def test_an_append_changes_no_column_that_is_in_an_index(
    backend: PostgresBackend, own: psycopg.Connection[Any]
) -> None:
    """Only then the server need not touch the indexes of the heads with every append."""
    indexes = own.execute(
        "SELECT indexdef FROM pg_indexes WHERE schemaname = %s AND tablename = %s",
        (backend.schema, "limpet_journals"),
    ).fetchall()
    assert len(indexes) > 1
    for (text,) in indexes:
        columns = set(text.partition(" USING ")[2].replace("(", " ").replace(",", " ").split())
        assert not columns & {"seq", "size", "updated", "expires", "until", "ttl", "epoch"}, text


def test_a_body_of_sixty_four_megabytes(backend: PostgresBackend) -> None:
    """As large as bodies may be; the connection does not keep it."""
    body = os.urandom(1 << 20) * 64
    backend.append(add(body=body))
    assert backend.bodies(KEY) == [(1, body)]


# -- many at once ----------------------------------------------------------------------------------


def together(backend: PostgresBackend, *requests: Append) -> list[Ticket]:
    """Those who ask for this at the same moment, after the first try."""
    tickets = [Ticket(Write(request, time.monotonic() + 60)) for request in requests]
    backend._appender._commit(list(tickets))
    return tickets


def alone(backend: PostgresBackend, ticket: Ticket) -> Appended:
    """What a caller is answered who could not be served at the first try."""
    return backend._appender._alone(ticket.work)


def test_who_appends_together_is_served_by_one_transaction(
    postgresql_server: PostgresServer, url: str
) -> None:
    """In one round trip, whatever the number, to one journal or to many."""
    with Proxy(postgresql_server.host, postgresql_server.port) as network:
        through = postgresql_server.through(url, network.port)
        with closing(PostgresBackend.from_url(through)) as backend:
            requests = [add(key(number % 5)) for number in range(20)]
            for request in requests:
                backend.append(request)
            together(backend, *requests)
            together(backend, *requests)  # the second time it is prepared
            before = network.requests
            tickets = together(backend, *requests)
            assert network.requests - before == 1
            assert [ticket.result.seq for ticket in tickets] == [
                seq for seq in range(13, 17) for _ in range(5)
            ]


def test_who_is_refused_goes_on_alone(backend: PostgresBackend) -> None:
    """Whatever they ask for, the others are done at the first try."""
    backend.append(add(key("known"), id="mine"))
    backend.append(add(key("stale"), id="x"))
    backend.append(add(key("twice")))
    lease = backend.acquire(key("leased"), "me", 60)
    tickets = together(
        backend,
        *(add(key(number), f"{number}".encode()) for number in range(20)),
        *(add(key("twice"), body) for body in (b"first", b"second")),
        add(key("leased"), epoch=lease.epoch, status="open"),
        add(key("dressed"), labels={"a": "1", "b": None}, ttl=60, status="open", meta=b"{}"),
        add(key("new"), expect=0),
        add(key("never"), body=b"", count=0, status="open"),
        add(key("known"), id="mine"),
        add(key("stale"), expect=7),
    )
    assert [ticket.result and ticket.result.seq for ticket in tickets] == [
        *[1] * 20,
        *(2, 3),
        *(1, 1, 1),
        *(None, None, None),
    ]
    assert [backend.bodies(key(number)) for number in range(20)] == [
        [(1, f"{number}".encode())] for number in range(20)
    ]
    assert [body for _, body in backend.bodies(key("twice"))] == [b"x", b"first", b"second"]
    head = backend.head(key("dressed"))
    assert head is not None
    assert (head.labels, head.ttl, head.status) == ({"a": "1"}, 60_000_000, "open")
    assert head.meta == b"{}"
    never, known, stale = tickets[-3:]
    assert alone(backend, never).seq == 0
    assert alone(backend, known).repeated
    with pytest.raises(limpet.Conflict):
        alone(backend, stale)


def test_async_callers_who_are_refused_are_told_why(backend: PostgresBackend) -> None:
    """Although they have no thread of their own; the store closes when they have been."""
    backend.append(add())

    async def tasks() -> list[Appended | BaseException]:
        requests = [add(key(number), expect=number % 2) for number in range(40)]
        appends = map(backend.append_async, requests)
        return await asyncio.gather(*appends, return_exceptions=True)

    done = asyncio.run(tasks())
    assert [type(one) for one in done] == [Appended, limpet.Conflict] * 20
    with nothing_left():
        backend.close()


def test_together_comes_to_the_same_as_one_after_the_other(
    postgresql_server: PostgresServer,
) -> None:
    """Appends of every shape, to journals that are there, leased, or not there."""
    stores = [PostgresBackend.from_url(postgresql_server.place()) for _ in range(2)]
    first, second = stores
    with seeded() as rng, closing(first), closing(second):
        for _ in range(15):
            kinds = [_any_kind(rng) for _ in range(3)]
            makers = [partial(rng.choice(kinds), key(number)) for number in range(20)]
            epochs = [_prepare(store) for store in stores]
            # The same for both, but for the epochs.
            tickets = together(first, *(make(epochs[0]) for make in makers))
            served = [_outcome(first, ticket) for ticket in tickets]
            assert served == [_outcome(second, make(epochs[1])) for make in makers]
            assert _present(first) == _present(second)
        assert facts(first)["integrity"].value == "ok"


def _prepare(store: PostgresBackend) -> dict[Key, int]:
    """Empty, but for three journals with a record and six leases."""
    for number in range(20):
        store.delete(key(number))
    for number in range(3):
        store.append(add(key(number), id="used"))
    return {key(number): store.acquire(key(number), "me", 60).epoch for number in range(2, 8)}


def _any_kind(rng: Random) -> Callable[[Key, Mapping[Key, int]], Append]:
    """A way to make requests of one shape."""
    adds = rng.random() < 0.8
    made: dict[str, Any] = {"id": rng.choice([None, None, "used", "new"])}
    made |= {"body": b"x" * rng.randrange(9), "count": 2} if adds else {"body": b"", "count": 0}
    choices: dict[str, list[Any]] = {
        "expect": [0, 0, 1, 7, Expect("another", 0), Expect("another", 1)],
        "status": [None, "open", "done"],
        "labels": [{}, {"a": "1"}, {"b": "2", "c": "3"}, {"a": None, "d": "4"}],
        "meta": [None, b"{}", b'{"a":1}'],
        "ttl": [None, 600],
        "default_ttl": [300],
        "origin": [Origin(at=5_000_000_000_000_000, created=3, first=5, incarnation="abc")],
    }
    made |= {what: rng.choice(some) for what, some in choices.items() if rng.random() < 0.3}
    leased = rng.random() < 0.4
    return lambda key, epochs: add(key, **made, epoch=epochs.get(key, 1) if leased else None)


def _outcome(store: PostgresBackend, work: Ticket | Append) -> object:
    """Number and whether it was repeated, or what it was refused with."""
    try:
        if isinstance(work, Append):
            done = store.append(work)
        else:
            done = alone(store, work) if work.result is None else work.result
    except limpet.LimpetError as error:
        return type(error).__name__
    return done.seq, done.repeated


def _present(store: PostgresBackend) -> list[object]:
    """All that there is, but for times."""
    page = store.scan("acme", "note", limit=1000)
    return [
        (
            (head.key, head.seq, head.first, head.size, head.ttl),
            (head.status, head.labels, head.meta),
            [(r.seq, r.count, r.body, r.id) for r in store.read(head.key)],
        )
        for head in page.heads
    ]


def test_an_id_that_came_in_just_now_spoils_it_for_nobody(backend: PostgresBackend) -> None:
    """The transaction fails as a whole; each is then done alone, and none twice."""
    requests = [add(key(number)) for number in range(4)]
    for request in requests:
        backend.append(request)
    tickets = [Ticket(Write(request, time.monotonic() + 60)) for request in requests]
    alone(backend, tickets[2])
    tickets[2].work.tried = False  # as if it were a rival's, of which nobody knows yet
    backend._appender._commit(list(tickets))
    assert [ticket.result for ticket in tickets] == [None] * 4
    done = [alone(backend, ticket) for ticket in tickets]
    assert [(one.seq, one.repeated) for one in done] == [(2, False)] * 4
    assert all(len(backend.read(key(number))) == 2 for number in range(4))


def test_a_batch_keeps_the_order_of_each_journal(backend: PostgresBackend) -> None:
    """Although its journals are locked in the order of their keys."""
    with seeded() as rng:
        requests = [add(key(rng.randrange(30)), b"%d" % number) for number in range(200)]
    for number in range(30):
        backend.append(add(key(number)))
    tickets = together(backend, *requests)
    for number in range(30):
        own = [one for one in tickets if one.work.request.key == key(number)]
        assert [one.result.seq for one in own] == list(range(2, len(own) + 2))
        bodies = [body for _, body in backend.bodies(key(number))][1:]
        assert bodies == [one.work.request.body for one in own]


def test_many_tasks_of_a_loop_and_many_threads_lose_nothing(
    backend: PostgresBackend, url: str
) -> None:
    """Two stores, threads and coroutines, on twelve journals."""
    other = PostgresBackend.from_url(url)

    runtime = AsyncRuntime(backend)

    async def tasks() -> list[Appended]:
        requests = [add(key(number % 12)) for number in range(240)]
        return await asyncio.gather(*map(runtime.append, requests))

    with closing(other), closing(runtime), ThreadPoolExecutor(8) as pool:
        threads = [pool.submit(other.append, add(key(number % 12))) for number in range(240)]
        done = [*asyncio.run(tasks()), *(thread.result() for thread in threads)]
    assert sorted(one.seq for one in done) == sorted(list(range(1, 41)) * 12)
    assert facts(backend)["integrity"].value == "ok"


def test_labels_of_many_writers_are_all_kept(backend: PostgresBackend, url: str) -> None:
    """Each sets and removes its own, over and over; a merge never starts from an old row."""
    other = PostgresBackend.from_url(url)
    backend.append(add())

    def write(writer: int) -> None:
        store = (backend, other)[writer % 2]
        for number in range(15):
            labels = {f"set{writer}": str(number), f"gone{writer}": "x"}
            store.append(Append(key=KEY, labels=labels))
            store.append(Append(key=KEY, labels={f"gone{writer}": None}))

    with closing(other), ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    head = backend.head(KEY)
    assert head is not None
    assert head.labels == {f"set{writer}": "14" for writer in range(6)}


def test_journals_that_come_and_go_leave_nothing_behind(backend: PostgresBackend, url: str) -> None:
    """Appends, deletions, compactions, expiry and sweeps at once: heads and records agree."""
    other = PostgresBackend.from_url(url)

    def play(seed: int) -> None:
        with seeded() as rng:
            rng.seed(seed)
            store = (backend, other)[seed % 2]
            for _ in range(60):
                name = key(rng.randrange(3))
                act = rng.choice(["append"] * 4 + ["short", "delete", "compact", "sweep"])
                if act == "append":
                    store.append(add(name, ttl=rng.choice([None, 60.0])))
                elif act == "short":
                    store.append(add(name, ttl=0.001))
                elif act == "delete":
                    store.delete(name)
                elif act == "compact":
                    store.compact(name, rng.randrange(6))
                else:
                    store.sweep()

    with closing(other), ThreadPoolExecutor(6) as pool:
        list(pool.map(play, range(6)))
    assert facts(backend)["integrity"].value == "ok"
    for number in range(3):
        backend.delete(key(number))
    backend.sweep()
    for table in ("journals", "records"):
        sql = f"SELECT count(*) FROM {backend.schema}.limpet_{table}"
        assert backend._connections.rows(sql) == [(0,)]


def test_a_row_that_somebody_has_locked_holds_up_nobody_else(
    backend: PostgresBackend, own: psycopg.Connection[Any]
) -> None:
    """Its own writer waits; the others, who would have gone with it, do not."""
    backend.append(add(key("stuck")))
    table = f"{backend.schema}.limpet_journals"
    with ThreadPoolExecutor(6) as pool:
        with own.transaction():
            own.execute(f"SELECT 1 FROM {table} FOR UPDATE")
            stuck = [pool.submit(backend.append, add(key("stuck"))) for _ in range(4)]
            done = [pool.submit(backend.append, add(key(number))) for number in range(20)]
            assert [one.result().seq for one in done] == [1] * 20
            assert not any(one.done() for one in stuck)
        assert sorted(one.result().seq for one in stuck) == [2, 3, 4, 5]


def test_a_lock_that_stays_is_reported(url: str, own: psycopg.Connection[Any]) -> None:
    """After the timeout, and with what to do."""
    with closing(PostgresBackend.from_url(url, timeout=8)) as backend:
        backend.append(add())
        with own.transaction():
            own.execute(f"SELECT 1 FROM {backend.schema}.limpet_journals FOR UPDATE")
            with pytest.raises(limpet.errors.StoreBusy, match=r"held a row.*larger timeout="):
                backend.append(add())
        assert backend.append(add()).seq == 2


def test_a_sweep_takes_nothing_that_is_revived_meanwhile(
    backend: PostgresBackend, own: psycopg.Connection[Any]
) -> None:
    """It is locked when the sweep comes, and alive when it is asked again."""
    backend.append(add(ttl=0.001))
    backend.append(add(key("other"), ttl=0.001))
    time.sleep(0.01)
    sql = f"UPDATE {backend.schema}.limpet_journals SET expires = NULL WHERE id = 'one'"
    with own.transaction():
        own.execute(sql)
        assert backend.sweep() == 1
    assert backend.sweep() == 0
    assert [record.seq for record in backend.read(KEY)] == [1]


# -- connections -----------------------------------------------------------------------------------


def test_one_caller_after_the_other_needs_one_connection(
    url: str, own: psycopg.Connection[Any]
) -> None:
    """Also from several threads; many at once get no more than was said."""
    with closing(PostgresBackend.from_url(f"{url}&application_name=few&pool=3")) as backend:
        for number in range(5):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(backend.append, add(key(number))).result()
        assert len(connections(own, "few")) == 1
        with ThreadPoolExecutor(12) as pool:
            heads = list(pool.map(backend.head, [key(n % 5) for n in range(60)]))
        assert all(head is not None for head in heads)
        assert 1 < len(connections(own, "few")) <= 3
    assert until(lambda: not connections(own, "few"))


def test_a_pool_that_is_used_up_is_reported(url: str) -> None:
    """With what to do; and when a connection is given back, who waits gets it."""
    with closing(PostgresBackend.from_url(url, pool=1, timeout=0)) as backend:
        pool = backend._connections.pool
        slot = pool.take(0)
        with pytest.raises(limpet.errors.StoreBusy, match=r"All 1 connections.*larger pool="):
            backend.head(KEY)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(pool.take, time.monotonic() + 60)
            assert until(lambda: len(pool._waiting) == 1)
            pool.give(slot)
            assert waiting.result() is slot
        pool.give(slot)
        assert backend.head(KEY) is None


def test_connections_that_the_server_has_ended_are_replaced(
    backend: PostgresBackend, own: psycopg.Connection[Any]
) -> None:
    """A call notices nothing of it."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(backend.append, [add(key(number)) for number in range(8)]))
    for pid in connections(own, "limpet"):
        own.execute("SELECT pg_terminate_backend(%s)", (pid,))
    assert backend.append(add()).seq == 1
    assert [backend.append(add(key(number))).seq for number in range(8)] == [2] * 8


def test_a_server_that_is_restarted_is_waited_for(
    backend: PostgresBackend, postgresql_server: PostgresServer
) -> None:
    """Calls go on where they were; what was written is there."""
    backend.append(add())
    postgresql_server.stop()
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(backend.append, add()) for _ in range(4)]
        reading = pool.submit(backend.head, KEY)
        time.sleep(0.2)
        assert not reading.done()
        assert not any(call.done() for call in calls)
        postgresql_server.start()
        assert sorted(call.result().seq for call in calls) == [2, 3, 4, 5]
        assert reading.result() is not None


def test_closing_waits_for_calls_that_are_under_way(
    backend: PostgresBackend, own: psycopg.Connection[Any]
) -> None:
    """They end well; the next one is told that the store is closed."""
    backend.append(add())
    with ThreadPoolExecutor(2) as pool:
        with own.transaction():
            own.execute(f"SELECT 1 FROM {backend.schema}.limpet_journals FOR UPDATE")
            writing = pool.submit(backend.append, add())
            assert until(
                lambda: len(backend._connections.pool._slots) > len(backend._connections.pool._idle)
            )
            closed = pool.submit(backend.close)
            assert until(lambda: backend._connections.pool.closed)
        assert writing.result().seq == 2
        closed.result()
    with pytest.raises(limpet.errors.StoreClosed):
        backend.head(KEY)


def test_interrupts_leave_whole_entries_and_no_deadlock(url: str) -> None:
    """Ctrl-C 300 times, in a program whose main thread and seven others all write."""
    assert finish(python(INTERRUPTED, url)) == "whole True\n"
    with closing(PostgresBackend.from_url(url)) as backend:
        assert facts(backend)["integrity"].value == "ok"


# -- fork ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(url: str) -> None:
    """Both go on, while other threads are at work; the child's end is not the parent's."""
    with closing(PostgresBackend.from_url(url)) as backend:
        stop = threading.Event()

        def write() -> int:
            written = 0
            while not stop.is_set():
                written = backend.append(add(key("thread"))).seq
            return written

        with ThreadPoolExecutor(2) as pool:
            writing = [pool.submit(write) for _ in range(2)]
            children = [_fork(backend, f"child{number}") for number in range(4)]
            ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            stop.set()
            written = max(one.result() for one in writing)
        assert ends == [0] * 4
        session = idle(backend).session
        for number in range(4):
            assert len(backend.read(key(f"child{number}"))) == 11
        assert idle(backend).session == session  # the parent's connection has survived
        head = backend.head(key("thread"))
        assert head is not None
        assert head.seq == written
        assert facts(backend)["integrity"].value == "ok"


def _fork(backend: PostgresBackend, name: str) -> int:
    parents = {
        slot.connection.session for slot in backend._connections.pool._slots if slot.connection
    }
    child = os.fork()
    if child:
        return child
    try:
        for _ in range(10):
            backend.append(add(key(name)))
            gc.collect()  # what is left of the parent's connections does not touch ours
        ok = idle(backend).session not in parents
        runtime = AsyncRuntime(backend)
        ok = ok and asyncio.run(runtime.append(add(key(name)))).seq == 11
        backend.close()
    except BaseException:  # noqa: BLE001 - a child of pytest must never go on as pytest
        os._exit(1)
    os._exit(0 if ok else 2)


# -- wake-ups --------------------------------------------------------------------------------------


@pytest.fixture
def listening(url: str) -> Iterator[PostgresBackend]:
    """A store with wake-ups."""
    named = f"{url}&wakeups=true&application_name=listening"
    with closing(PostgresBackend.from_url(named)) as backend:
        yield backend


def test_waiters_are_woken_and_do_not_ask(
    listening: PostgresBackend,
    url: str,
    own: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several, for journals of their own, over one connection; each by its own append."""
    monkeypatch.setattr(wakeups, "LOOK_AGAIN", 1000)
    with (
        closing(PostgresBackend.from_url(url, wakeups=True)) as other,
        ThreadPoolExecutor(6) as pool,
    ):
        waiting = [pool.submit(listening.wait, key(n), timeout=1000) for n in range(6)]
        assert until(lambda: len(listening._wakeups._waiters) == 6)
        other.append(add(key("else")))
        other.append(add(key(3)))
        assert waiting[3].result() is True
        assert not any(one.done() for one in waiting[:3] + waiting[4:])
        for number in (5, 4, 2, 1, 0):
            other.append(add(key(number)))
        assert all(one.result() for one in waiting)
        assert listening.wait(key("nobody"), timeout=0.05) is False
    listeners = own.execute(
        "SELECT query FROM pg_stat_activity WHERE application_name = 'listening'"
        " AND query LIKE '%LISTEN%'"
    ).fetchall()
    assert [text.split()[0] for (text,) in listeners] == ["UNLISTEN"]


def test_a_waiter_outlives_its_connection(
    listening: PostgresBackend, own: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It listens again, and has missed nothing meanwhile."""
    monkeypatch.setattr(wakeups, "LOOK_AGAIN", 1000)
    with ThreadPoolExecutor(1) as pool:
        for seq in range(3):
            waiting = pool.submit(listening.wait, KEY, after=seq, timeout=1000)
            assert until(lambda: listening._wakeups._listens)
            for pid in connections(own, "listening"):
                own.execute("SELECT pg_terminate_backend(%s)", (pid,))
            listening.append(add())
            assert waiting.result() is True


def test_a_writer_without_wakeups_is_noticed_all_the_same(
    listening: PostgresBackend, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later: the waiter looks by itself now and then."""
    monkeypatch.setattr(wakeups, "LOOK_AGAIN", 0.1)
    with closing(PostgresBackend.from_url(url)) as other, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(listening.wait, KEY, timeout=1000)
        assert until(lambda: listening._wakeups._listens)
        other.append(add())
        assert waiting.result() is True


def test_closing_ends_the_waiting(listening: PostgresBackend) -> None:
    """Whoever waits is told that the store is closed."""
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(listening.wait, key(n), timeout=1000) for n in range(2)]
        assert until(lambda: len(listening._wakeups._waiters) == 2)
        listening.close()
        for one in waiting:
            assert isinstance(one.exception(), limpet.errors.StoreClosed)
