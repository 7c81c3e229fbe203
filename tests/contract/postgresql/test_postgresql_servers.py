"""PostgreSQL servers as they are run in earnest: TLS, a pooler, read-only, and a failover."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import limpet
from limpet.backends.contract import Append, Key
from limpet.backends.postgresql import PostgresBackend
from tests.support.processes import until
from tests.support.servers import PgBouncer, PostgresServer, PostgresStandby, certify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from limpet.backends.contract import Appended, Backend

pytestmark = pytest.mark.server

KEY = Key("acme", "note", "one")


def add(body: bytes = b"x", id: str | None = None, key: Key = KEY, **request: Any) -> Append:
    """One record of one entry."""
    return Append(key=key, body=body, count=1, id=id, **request)


def append(backend: Backend, body: bytes = b"x", **request: Any) -> Appended:
    """The same, to be stored."""
    return backend.append(add(body, **request))


def bodies(backend: Backend, key: Key = KEY) -> list[bytes]:
    """What is in the journal."""
    return [body for _, body in backend.bodies(key)]


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encrypted() -> Iterator[PostgresServer]:
    """A server with a certificate for localhost that vouches for itself."""
    with PostgresServer(ssl="on") as server:
        yield server


def test_a_server_that_proves_its_name_is_spoken_to_by_tls(encrypted: PostgresServer) -> None:
    """And the doctor says so."""
    url = encrypted.place().replace("127.0.0.1", "localhost")
    more = f"&sslmode=verify-full&sslrootcert={encrypted.certificate}"
    with closing(PostgresBackend.from_url(url + more)) as backend:
        assert append(backend).seq == 1
        assert {fact.name: fact.value for fact in backend.facts()}["encrypted"] == "yes"


@pytest.mark.parametrize(
    ("host", "root", "words"),
    [
        ("localhost", "other", "certificate verify failed"),
        ("127.0.0.1", "own", 'for "localhost".* does not match host name'),
        ("localhost", "none", "root certificate file .* does not exist"),
    ],
)
def test_a_server_that_does_not_prove_its_name_is_refused_at_once(
    encrypted: PostgresServer, tmp_path: Path, host: str, root: str, words: str
) -> None:
    """It is no server that is away: to wait for it, or to start it, would not help."""
    roots = {
        "own": encrypted.certificate,
        "other": certify(tmp_path / "other.crt", tmp_path / "other.key")[0],
        "none": tmp_path / "none.crt",
    }
    url = f"{encrypted.place()}&sslmode=verify-full&sslrootcert={roots[root]}"
    with pytest.raises(limpet.StoreError, match=f"(?s){words}.*Check sslmode, sslrootcert") as it:
        limpet.open(url.replace("127.0.0.1", host))
    assert not isinstance(it.value, limpet.StoreUnavailable)
    assert isinstance(it.value.__cause__, psycopg.OperationalError)


def test_a_server_without_tls_is_refused_where_the_url_asks_for_it(
    postgresql_server: PostgresServer,
) -> None:
    """What is meant to be secret is not sent in the clear."""
    with pytest.raises(limpet.StoreError, match=r"SSL was required.*Check sslmode") as caught:
        limpet.open(f"{postgresql_server.place()}&sslmode=require")
    assert not isinstance(caught.value, limpet.StoreUnavailable)


# -- a pooler --------------------------------------------------------------------------------------


def test_a_pooler_in_transaction_mode_is_told_by_what_it_refuses(pooler: PgBouncer) -> None:
    """The error says which parameter is missing."""
    with pytest.raises(limpet.StoreError, match="Add prepare=false to the URL"):
        limpet.open(pooler.place().replace("&prepare=false", ""))


def test_many_clients_of_a_pooler_share_few_sessions_and_lose_nothing(pooler: PgBouncer) -> None:
    """Sixteen threads of two stores; ten sessions, which change hands after each transaction."""
    url = f"{pooler.place()}&pool=8"
    with (
        closing(PostgresBackend.from_url(url)) as one,
        closing(PostgresBackend.from_url(url)) as other,
        ThreadPoolExecutor(16) as threads,
    ):

        def work(number: int) -> None:
            backend, mine = (one, other)[number % 2], KEY._replace(id=f"n{number % 4}")
            for turn in range(5):
                append(backend, key=mine, id=f"{number}-{turn}", labels={f"l{number}": "x"})
            with backend.transaction() as transaction:
                transaction.connection.execute("SELECT 1")
                transaction.append(add(key=mine))

        list(threads.map(work, range(16)))
        assert [head.seq for head in one.scan("acme", "note").heads] == [24] * 4
        assert all(len(head.labels) == 4 for head in one.scan("acme", "note").heads)
        assert append(one, key=KEY._replace(id="n0"), id="0-0").repeated


def test_a_restart_behind_a_pooler_is_waited_for() -> None:
    """The pooler's own words for a server that is away are known to pass."""
    with (
        PostgresServer() as server,
        PgBouncer(server) as pooler,
        closing(PostgresBackend.from_url(pooler.place())) as backend,
        ThreadPoolExecutor(1) as thread,
    ):
        append(backend, b"before")
        server.kill()
        waiting = thread.submit(append, backend, b"meanwhile", id="a")
        server.start()
        assert waiting.result().seq == 2
        pooler.kill()
        waiting = thread.submit(append, backend, b"after", id="b")
        pooler.start()
        assert waiting.result().seq == 3
        assert bodies(backend) == [b"before", b"meanwhile", b"after"]


# -- read-only -------------------------------------------------------------------------------------


@pytest.fixture
def database(postgresql_server: PostgresServer) -> Iterator[str]:
    """The URL of a database that writes nothing unless it is told to, and of a store there."""
    url = postgresql_server.place().replace("/postgres?", "/shut?")
    with psycopg.connect(postgresql_server.url(), autocommit=True) as own:
        own.execute("CREATE DATABASE shut")
        with closing(PostgresBackend.from_url(url)) as backend:
            append(backend, b"before")
        own.execute("ALTER DATABASE shut SET default_transaction_read_only = on")
        yield url
        own.execute("DROP DATABASE shut WITH (FORCE)")


def test_a_database_that_is_set_to_read_only_is_read_and_not_written(
    database: str, postgresql_server: PostgresServer
) -> None:
    """By nothing, a transaction of the caller's included: whoever set it so had a reason."""
    with closing(PostgresBackend.from_url(database)) as backend:
        assert bodies(backend) == [b"before"]

        def transact() -> None:
            with backend.transaction() as transaction:
                transaction.append(add())

        for call in (
            lambda: append(backend),
            lambda: backend.append_all([add()]),
            transact,
            lambda: backend.delete(KEY),
            lambda: backend.compact(KEY, 1),
            lambda: backend.acquire(KEY, "me", 60),
        ):
            with pytest.raises(limpet.errors.StoreReadOnly, match="set to read-only"):
                call()
        with pytest.raises(limpet.StoreUnavailable, match="target_session_attrs"):
            PostgresBackend.from_url(f"{database}&target_session_attrs=read-write")

        with psycopg.connect(postgresql_server.url(), autocommit=True) as own:
            own.execute("ALTER DATABASE shut RESET default_transaction_read_only")
        transact()  # on a new session: those that could not write were closed
        assert append(backend, b"after").seq == 3
        assert bodies(backend) == [b"before", b"x", b"after"]


# -- failover --------------------------------------------------------------------------------------


class Pair:
    """A primary whose commits wait for its standby, and one URL for both."""

    def __init__(self, primary: PostgresServer, standby: PostgresStandby) -> None:
        self.primary = primary
        self.standby = standby
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        place = primary.place().replace(f"127.0.0.1:{primary.port}", hosts)
        self.url = f"{place}&target_session_attrs=read-write"

    def fail_over(self) -> None:
        """End the primary without a warning, and let the standby take its place."""
        self.primary.kill()
        self.standby.promote()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two servers of its own for each test: they do not live long."""
    with (
        PostgresServer(synchronous_standby_names="*") as primary,
        PostgresStandby(primary) as standby,
    ):
        yield Pair(primary, standby)


def test_a_failover_keeps_what_was_acknowledged_and_the_store_goes_on(pair: Pair) -> None:
    """Four threads write all the while: each write is there once. A task takes its next step."""
    with (
        limpet.open(pair.url) as store,
        closing(PostgresBackend.from_url(pair.url)) as backend,
        ThreadPoolExecutor(4) as threads,
        store.task("report", goal="outlive a server") as task,
    ):
        task.step("first", lambda: "done before")
        over = False
        counts = [0] * 4  # of what each has been told is there

        def write(number: int) -> None:
            after = 0
            while after < 5:
                after += over
                name = f"{number}-{counts[number]}"
                append(backend, name.encode(), id=name)
                counts[number] += 1

        writers = [threads.submit(write, number) for number in range(4)]
        assert until(lambda: min(counts) > 5)
        pair.fail_over()
        over = True
        for writer in writers:
            writer.result()
        names = {f"{number}-{one}".encode() for number in range(4) for one in range(counts[number])}
        assert set(bodies(backend)) == names
        assert len(bodies(backend)) == len(names)
        again = append(backend, b"0-0", id="0-0")
        assert (again.repeated, bodies(backend)[again.seq - 1]) == (True, b"0-0")
        assert task.step("second", lambda: "done after") == "done after"
        assert task.results == {"first": "done before", "second": "done after"}


def test_what_no_standby_has_is_not_acknowledged(pair: Pair) -> None:
    """A commit that waits for a standby is done here all the same, and is lost with the server.

    Nobody knows then whether it will be there: that is what is said, until the standby has it.
    """
    with (
        closing(PostgresBackend.from_url(f"{pair.url}&timeout=2")) as hasty,
        closing(PostgresBackend.from_url(pair.url)) as backend,
    ):
        one, other, gone = (KEY._replace(id=name) for name in ("one", "other", "gone"))
        for key in (one, other, gone):
            append(hasty, b"before", key=key)
        pair.standby.kill()

        def transact() -> None:
            with hasty.transaction() as transaction:
                transaction.append(add(b"after", "b", other))

        for call in (
            lambda: append(hasty, b"after", id="a"),
            lambda: append(hasty, b"after", id="a"),  # which is there, and only there
            lambda: hasty.append_all([add(b"after all", "c")]),
            transact,
            lambda: hasty.delete(gone),
        ):
            with pytest.raises(limpet.StoreUnavailable, match="a write may or may not be there"):
                call()
        pair.standby.start()
        assert append(backend, b"after", id="a").repeated
        pair.fail_over()
        assert bodies(backend, one) == [b"before", b"after", b"after all"]
        assert bodies(backend, other) == [b"before", b"after"]
        assert backend.head(gone) is None


def test_a_standby_is_read_and_takes_no_writes(pair: Pair) -> None:
    """By itself; by a URL that asks for a server which can be written, it is waited for."""
    with closing(PostgresBackend.from_url(pair.url)) as backend:
        append(backend, b"before")
        there = pair.standby.url() + "?" + pair.url.partition("?")[2].partition("&")[0]
        with closing(PostgresBackend.from_url(there)) as reader:
            assert until(lambda: bodies(reader) == [b"before"])
            with pytest.raises(limpet.errors.StoreReadOnly, match="it is a standby"):
                append(reader)
        with pytest.raises(limpet.StoreUnavailable, match=r"target_session_attrs.*is promoted"):
            limpet.open(f"{there}&target_session_attrs=read-write")
        pair.primary.kill()
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(append, backend, b"after")
            pair.standby.promote()
            assert waiting.result().seq == 2
