"""PostgreSQL: URLs, opening, tables and their migrations, errors, and what the doctor is told."""
# ruff: noqa: S608  # the schema is named by these tests

from __future__ import annotations

import subprocess
import sys
import warnings
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pytest

import limpet
from limpet.backends.contract import Append, Key, Lease
from limpet.backends.postgresql import schema as tables
from limpet.backends.postgresql.backend import PostgresBackend
from limpet.backends.postgresql.connections import Connection
from limpet.backends.postgresql.errors import PostgresErrors, ServerSilent
from tests.support.processes import free_port
from tests.support.servers import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.backends.contract import Backend
    from limpet.backends.facts import Fact

pytestmark = pytest.mark.server

KEY = Key("acme", "note", "one")


@pytest.fixture
def url(postgresql_server: PostgresServer) -> str:
    """A place that nobody has used."""
    return postgresql_server.place()


@pytest.fixture
def own(postgresql_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A connection without Limpet."""
    with psycopg.connect(postgresql_server.url(), autocommit=True) as connection:
        yield connection


def write(url: str, **options: Any) -> None:
    """Open a store, append, close."""
    with closing(PostgresBackend.from_url(url, **options)) as backend:
        backend.append(Append(key=KEY, body=b"x", count=1))


def facts(backend: Backend) -> dict[str, Fact]:
    """All of them, by name."""
    return {fact.name: fact for fact in backend.facts(deep=True)}


def schema_of(url: str) -> str:
    """The schema that *url* names."""
    return url.rpartition("schema=")[2]


# -- the URL ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("schema=" + quote('x"; DROP SCHEMA public; --'), "a schema has up to 63"),
        ("schema=pg_catalog", "not with pg_"),
        ("schema=", "begins with a letter"),
        ("schema=" + "x" * 64, "up to 63"),
        ("pool=0", "at least one connection"),
        ("pool=many", "pool cannot be 'many'"),
        ("timeout=-1", "number of seconds"),
        ("durability=some", "full or normal"),
        ("create=maybe", "true or false"),
        ("wakeups=true&prepare=false", "session of their own"),
        ("pooll=3", "'pooll', which neither Limpet .* nor PostgreSQL"),
        ("sslmode=blue", "sslmode"),
        ("connect_timeout=soon", "connect_timeout"),
        ("options=-c%20colour%3Dblue", "colour"),
    ],
)
def test_a_url_that_cannot_be_is_explained(
    postgresql_server: PostgresServer, query: str, words: str
) -> None:
    """By what is wrong with it, and without the password."""
    with pytest.raises(limpet.errors.InvalidURL, match=words) as caught:
        limpet.open(f"{postgresql_server.url()}?{query}")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:s3cret%zz@db/agents",
        "postgresql://ann:s3cret@[::1/agents",
        "postgresql://ann:s3cret/@db:port/agents",
        "postgresql://ann:top@s3cret@db/agents",
        "postgresql://ann:s3cret?s3cret@127.0.0.1:1/agents?schema=mine&timeout=0.1",
        "postgresql://ann:s3cret?@127.0.0.1:1/agents?pooll=3",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    """Not in the message, nor in what it came from, whatever libpq quotes."""
    with pytest.raises(limpet.LimpetError) as caught:
        limpet.open(url)
    shown = [str(caught.value), str(caught.value.__cause__), repr(caught.value.__cause__)]
    assert "s3cret" not in "".join(shown)


def test_what_is_not_ours_is_libpqs(url: str, own: psycopg.Connection[Any]) -> None:
    """Also its options, to which ours are added."""
    more = "&application_name=mine&options=-c%20work_mem%3D5MB"
    with closing(PostgresBackend.from_url(url + more)) as backend:
        assert own.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mine'"
        ).fetchone() == (1,)
        asked = "SELECT current_setting('work_mem'), current_setting('statement_timeout')"
        assert backend._connections.rows(asked) == [("5MB", "30s")]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that brings it."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "limpet.backends.postgresql")
    monkeypatch.delitem(sys.modules, "limpet.backends.postgresql.backend")
    with pytest.raises(limpet.errors.MissingExtra, match=r"pip install '\.\[postgres\]'"):
        limpet.open("postgresql://db/agents")


# -- opening ---------------------------------------------------------------------------------------


def test_a_store_is_not_created_unasked(url: str, own: psycopg.Connection[Any]) -> None:
    """With create=False, or for reading only."""
    for options in ({"create": False}, {"readonly": True}):
        with pytest.raises(limpet.errors.StoreNotFound, match=r"no store on .* create=True"):
            PostgresBackend.from_url(url, **options)
    sql = "SELECT count(*) FROM pg_namespace WHERE nspname = %s"
    assert own.execute(sql, (schema_of(url),)).fetchone() == (0,)
    write(url)
    write(url, create=False)


def test_a_store_opened_for_reading_refuses_writes(url: str) -> None:
    """All of them; reading is as ever."""
    write(url)
    with closing(PostgresBackend.from_url(url, readonly=True)) as backend:
        head = backend.head(KEY)
        assert head is not None
        lease = Lease("me", 1, 1)
        for call in (
            lambda: backend.append(Append(key=KEY, body=b"x", count=1)),
            lambda: backend.delete(KEY),
            lambda: backend.compact(KEY, 1),
            backend.sweep,
            lambda: backend.acquire(KEY, "me", 1),
            lambda: backend.renew(KEY, lease, 1),
            lambda: backend.release(KEY, lease),
        ):
            with pytest.raises(limpet.errors.StoreReadOnly, match="readonly=True"):
                call()
        assert backend.head(KEY) == head


def test_schemas_are_different_stores(url: str, postgresql_server: PostgresServer) -> None:
    """In one database."""
    other = postgresql_server.place()
    write(url)
    with closing(PostgresBackend.from_url(other)) as backend:
        assert (backend.head(KEY), backend.kinds()) == (None, [])
        backend.delete(KEY)
    with closing(PostgresBackend.from_url(url)) as backend:
        assert backend.head(KEY) is not None


def test_nothing_that_users_say_is_taken_for_sql(url: str) -> None:
    """Tenants, kinds, ids, labels, states, holders."""
    evil = "'); DROP TABLE limpet_records; -- $1 %s {} \\ \" "
    key = Key(evil, evil, evil)
    with closing(PostgresBackend.from_url(url, wakeups=True)) as backend:
        backend.append(Append(key=key, body=b"x", count=1, id=evil, status=evil))
        backend.append(Append(key=key, labels={evil: evil, "a": "b"}))
        backend.acquire(key, evil, 60)
        page = backend.scan(evil, evil, prefix=evil, status=evil, labels={evil: evil})
        (head,) = page.heads
        assert (head.key, head.status, head.labels[evil]) == (key, evil, evil)
        assert head.lease is not None
        assert head.lease.holder == evil
        assert backend.scan(evil, evil, labels={evil: "%"}).heads == []


# -- tables ----------------------------------------------------------------------------------------


def test_a_store_of_a_newer_release_is_refused(url: str, own: psycopg.Connection[Any]) -> None:
    """The message says which version, and what to do."""
    write(url)
    own.execute(f"UPDATE {schema_of(url)}.limpet_schema SET version = 99")
    with pytest.raises(
        limpet.errors.SchemaTooNew, match=r"schema 99.*reads up to \d+(?s:.*)Upgrade"
    ):
        PostgresBackend.from_url(url)


def test_a_store_of_an_older_release_is_upgraded_by_a_writer_only(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader says what to do."""
    write(url)
    steps = tables.migrations()
    newest = steps[-1][0]
    steps.append((newest + 1, "CREATE TABLE {schema}.limpet_later (one integer)"))
    monkeypatch.setattr(tables, "migrations", lambda: steps)
    with pytest.raises(limpet.errors.StoreReadOnly, match="older release"):
        PostgresBackend.from_url(url, readonly=True)
    write(url, create=False)
    with closing(PostgresBackend.from_url(url, readonly=True)) as backend:
        assert facts(backend)["schema"].value.endswith(f"version {newest + 1}")


def test_a_migration_that_fails_leaves_nothing_behind(
    url: str, own: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the schema."""
    steps = [*tables.migrations(), (99, "CREATE TABLE {schema}.x (one integer); SELECT 1 / 0")]
    with monkeypatch.context() as patch:
        patch.setattr(tables, "migrations", lambda: steps)
        with pytest.raises(limpet.StoreError, match="division by zero"):
            PostgresBackend.from_url(url)
    sql = "SELECT count(*) FROM pg_namespace WHERE nspname = %s"
    assert own.execute(sql, (schema_of(url),)).fetchone() == (0,)
    write(url)


def test_migrations_are_numbered_without_gaps() -> None:
    """1, 2, 3."""
    numbers = [number for number, _ in tables.migrations()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_migrating_step_by_step_gives_the_tables_of_a_new_store(
    postgresql_server: PostgresServer,
    own: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However old it was when it came to us."""
    old, new = postgresql_server.place(), postgresql_server.place()
    steps = tables.migrations()
    with monkeypatch.context() as patch:
        for count in range(1, len(steps) + 1):
            patch.setattr(tables, "migrations", lambda count=count: steps[:count])
            PostgresBackend.from_url(old).close()
    write(old)
    write(new)
    assert _tables(own, schema_of(old)) == _tables(own, schema_of(new))
    assert len(_tables(own, schema_of(new))) > 20


def _tables(own: psycopg.Connection[Any], schema: str) -> list[str]:
    """Columns, indexes and constraints, in words."""
    columns = "table_name, column_name, data_type, collation_name, is_nullable, column_default"
    questions = (
        f"SELECT {columns} FROM information_schema.columns WHERE table_schema = %s ORDER BY 1, 2",
        "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = %s ORDER BY 2",
        """SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
           WHERE connamespace = %s::regnamespace ORDER BY 1, 2""",
        "SELECT relname, reloptions FROM pg_class WHERE relnamespace = %s::regnamespace ORDER BY 1",
    )
    return [
        str(row).replace(schema, "SCHEMA")
        for question in questions
        for row in own.execute(question, (schema,))
    ]


STARTED = """
import sys, limpet, limpet.backends.postgresql.backend
print("ready", flush=True)
for url in sys.stdin:
    with limpet.open(url.strip()) as store:
        store.conversation("all").append({"role": "user", "content": sys.argv[1]})
    print("done", flush=True)
"""


def test_processes_that_start_at_once_create_one_store(postgresql_server: PostgresServer) -> None:
    """One of eight migrates, the others find it done; five times over."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children: list[Any] = [
        subprocess.Popen([sys.executable, "-c", STARTED, str(number)], **pipes)
        for number in range(8)
    ]
    try:
        assert [child.stdout.readline() for child in children] == ["ready\n"] * 8
        for _ in range(5):
            url = postgresql_server.place()
            for child in children:
                child.stdin.write(url + "\n")
                child.stdin.flush()
            assert [child.stdout.readline() for child in children] == ["done\n"] * 8
            with limpet.open(url) as store:
                said = [message["content"] for message in store.conversation("all").messages()]
            assert sorted(said) == [str(number) for number in range(8)]
    finally:
        for child in children:
            child.communicate()


# -- what can be wrong -----------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening does not try for half a minute."""
    tries = []
    connect = Connection.connect

    def count(**parameters: Any) -> Connection:
        tries.append(parameters)
        return connect(**parameters)

    monkeypatch.setattr(Connection, "connect", count)
    port = free_port()
    with pytest.raises(limpet.StoreUnavailable, match=f":{port}.*Connection refused.*Start the"):
        limpet.open(f"postgresql://ann:s3cret@127.0.0.1:{port}/agents")
    assert len(tries) == 1


def test_a_server_that_is_starting_is_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there, and says so."""
    connect = Connection.connect
    words = "connection failed: FATAL:  the database system is starting up"
    answers = [psycopg.OperationalError(words)] * 2

    def later(**parameters: Any) -> Connection:
        if answers:
            raise answers.pop()
        return connect(**parameters)

    monkeypatch.setattr(Connection, "connect", later)
    write(url)
    assert answers == []


def test_a_wrong_password_or_database_is_named(postgresql_server: PostgresServer) -> None:
    """And tried once."""
    url = postgresql_server.url()
    with pytest.raises(limpet.StoreError, match=r"did not let us in.*password") as caught:
        limpet.open(url.replace("s3cret", "wrong"))
    assert not isinstance(caught.value, limpet.StoreUnavailable)
    with pytest.raises(limpet.errors.StoreNotFound, match=r'no such database.*"nowhere".*createdb'):
        limpet.open(url.replace("/postgres", "/nowhere"))


@pytest.fixture
def guest(own: psycopg.Connection[Any], postgresql_server: PostgresServer) -> Iterator[str]:
    """The URL for a user who may do little."""
    own.execute("CREATE ROLE guest LOGIN PASSWORD 'guest' CONNECTION LIMIT 1")
    yield f"postgresql://guest:guest@127.0.0.1:{postgresql_server.port}/postgres"
    own.execute("DROP OWNED BY guest; DROP ROLE guest")


def test_a_user_who_may_not_create_the_schema_is_told_so(
    guest: str, url: str, own: psycopg.Connection[Any]
) -> None:
    """It can be created for him; then he needs no more than that."""
    schema = schema_of(url)
    with pytest.raises(limpet.errors.StoreReadOnly, match=r"may not do that.*CREATE SCHEMA"):
        PostgresBackend.from_url(f"{guest}?schema={schema}")
    own.execute(f"CREATE SCHEMA {schema} AUTHORIZATION guest")
    write(f"{guest}?schema={schema}")


def test_a_server_that_has_no_connection_left_says_so(
    guest: str, url: str, own: psycopg.Connection[Any]
) -> None:
    """It is waited for as a server that is away, and the message says what to do."""
    schema = schema_of(url)
    own.execute(f"CREATE SCHEMA {schema} AUTHORIZATION guest")
    with psycopg.connect(guest):
        own.execute("SELECT 1")
        with pytest.raises(limpet.StoreUnavailable, match=r"no connection left.*smaller pool="):
            PostgresBackend.from_url(f"{guest}?schema={schema}")


def test_a_standby_can_only_be_read(url: str) -> None:
    """Here a session that may not write."""
    write(url)
    only = "&options=-c%20default_transaction_read_only%3Don"
    with closing(PostgresBackend.from_url(url + only)) as backend:
        assert backend.head(KEY) is not None
        with pytest.raises(limpet.errors.StoreReadOnly, match="standby"):
            backend.append(Append(key=KEY, body=b"x", count=1))


def test_an_old_server_or_another_encoding_is_refused(
    url: str,
    postgresql_server: PostgresServer,
    own: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is created."""
    with monkeypatch.context() as patch:
        patch.setattr(tables, "OLDEST", 990000)
        with pytest.raises(limpet.StoreError, match=r"99 is the oldest.*Upgrade the server"):
            PostgresBackend.from_url(url)
    own.execute(
        "CREATE DATABASE latin ENCODING LATIN1 LOCALE 'C' LOCALE_PROVIDER libc TEMPLATE template0"
    )
    with pytest.raises(limpet.StoreError, match=r"LATIN1.*--encoding=UTF8"):
        limpet.open(postgresql_server.url().replace("/postgres", "/latin"))


def test_a_schema_that_is_dropped_while_it_is_open_is_missed(
    url: str, own: psycopg.Connection[Any]
) -> None:
    """And comes to be when it is opened again."""
    with closing(PostgresBackend.from_url(url)) as backend:
        own.execute(f"DROP SCHEMA {schema_of(url)} CASCADE")
        with pytest.raises(limpet.errors.StoreNotFound, match="Open the store again"):
            backend.append(Append(key=KEY, body=b"x", count=1))
    write(url)


@pytest.mark.parametrize(
    ("error", "meaning", "passes"),
    [
        (psycopg.errors.DiskFull("no space left on device"), "StoreFull", False),
        (psycopg.errors.ReadOnlySqlTransaction("read-only"), "StoreReadOnly", False),
        (psycopg.errors.TooManyConnections("sorry"), "StoreUnavailable", True),
        (psycopg.errors.AdminShutdown("terminating"), "StoreUnavailable", True),
        (psycopg.errors.CannotConnectNow("starting"), "StoreUnavailable", True),
        (psycopg.errors.IdleInTransactionSessionTimeout("idle"), "StoreUnavailable", True),
        (psycopg.errors.ConnectionFailure("gone"), "StoreUnavailable", True),
        (psycopg.DataError("text fields cannot contain NUL"), "StoreError", False),
        (psycopg.errors.SerializationFailure("retry"), "StoreBusy", True),
        (psycopg.errors.DeadlockDetected("deadlock"), "StoreBusy", True),
        (psycopg.errors.LockNotAvailable("lock"), "StoreBusy", True),
        (psycopg.errors.QueryCanceled("statement timeout"), "StoreUnavailable", False),
        (psycopg.errors.IoError("could not read"), "StoreUnavailable", False),
        (psycopg.errors.DataCorrupted("invalid page"), "StoreCorrupt", False),
        (psycopg.errors.InvalidSqlStatementName("_pg3_0"), "StoreError", False),
        (psycopg.errors.ProgramLimitExceeded("index row"), "TooLarge", False),
        (psycopg.OperationalError("server closed the connection"), "StoreUnavailable", True),
        (psycopg.OperationalError("FATAL: unsupported startup parameter"), "StoreError", False),
        (psycopg.InterfaceError("the connection is closed"), "StoreUnavailable", True),
        (ServerSilent("15.0 s"), "StoreUnavailable", True),
        (psycopg.errors.SyntaxError("near FROM"), "StoreError", False),
    ],
)
def test_what_a_server_says_is_said_in_our_words(
    error: psycopg.Error, meaning: str, *, passes: bool
) -> None:
    """And only what may pass is tried again."""
    errors = PostgresErrors("postgresql://db/agents")
    ours = errors.translated(error, writes=False)
    assert type(ours).__name__ == meaning
    assert "db/agents" in str(ours)
    assert errors.passes(error) is passes


# -- durability and facts --------------------------------------------------------------------------


def test_facts_tell_of_the_server_and_of_what_is_there(
    url: str, own: psycopg.Connection[Any]
) -> None:
    """Nothing is wrong, and nothing secret."""
    with closing(PostgresBackend.from_url(url)) as backend:
        backend.append(Append(key=KEY, body=b"abc", count=2))
        backend.append(Append(key=KEY._replace(id="gone"), body=b"x", count=1, ttl=0.001))
        backend.acquire(KEY._replace(id="leased"), "me", 60)
        found = facts(backend)
    assert all(fact.ok for fact in found.values())
    assert found["engine"].value.startswith("PostgreSQL 1")
    assert found["notes"].value == "1 with 2 entries, 3 B"
    assert found["expired"].value == "1 journals to be swept"
    assert found["schema"].value.startswith(f"{schema_of(url)}, version")
    assert "synchronous_commit=on" in found["durability"].value
    assert "s3cret" not in str(found)


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM {}.limpet_records WHERE seq = 2",
        "DELETE FROM {}.limpet_records WHERE seq = 1",
        "DELETE FROM {}.limpet_records WHERE seq = 3",
        "DELETE FROM {}.limpet_records",
        "UPDATE {}.limpet_records SET body = body || body WHERE seq = 2",
        "DELETE FROM {}.limpet_journals",
    ],
)
def test_lost_and_changed_records_are_found(
    url: str, own: psycopg.Connection[Any], damage: str
) -> None:
    """By looking at every one."""
    with closing(PostgresBackend.from_url(url)) as backend:
        for _ in range(3):
            backend.append(Append(key=KEY, body=b"x", count=1))
        own.execute(damage.format(schema_of(url)))
        assert not facts(backend)["integrity"].ok


def test_a_server_that_does_not_sync_is_warned_of(url: str) -> None:
    """At opening, and by the doctor; it is refused to who asks for more, and fine for less."""
    with PostgresServer(fsync="off", full_page_writes="off", synchronous_commit="off") as server:
        place = server.place()
        with pytest.warns(limpet.errors.DurabilityWarning, match="fsync=off"):
            backend = PostgresBackend.from_url(place)
        with closing(backend):
            fact = facts(backend)["durability"]
            assert not fact.ok
            assert "fsync=off" in fact.value
            assert "full_page_writes=off" in fact.value
            assert "synchronous_commit" not in fact.value  # that one we have set ourselves
        with pytest.warns(limpet.errors.DurabilityWarning, match="synchronous_commit=off"):
            PostgresBackend.from_url(place, prepare=False).close()
        with pytest.raises(limpet.errors.NotDurable, match=r"fsync=off.*postgresql.conf"):
            PostgresBackend.from_url(place, durability="full")
        with warnings.catch_warnings(action="error"):
            PostgresBackend.from_url(place, durability="normal").close()
    with closing(PostgresBackend.from_url(url, durability="normal")) as backend:
        backend.append(Append(key=KEY, body=b"x", count=1))
        fact = facts(backend)["durability"]
        assert (fact.ok, "synchronous_commit=off" in fact.value) == (False, True)


def test_a_default_that_forgets_is_overruled(url: str) -> None:
    """Whatever the role, the database or the server says; a stronger one is left as it is."""
    for default, becomes in {"off": "on", "on": "on", "remote_apply": "remote_apply"}.items():
        given = f"&options=-c%20synchronous_commit%3D{default}"
        with closing(PostgresBackend.from_url(url + given)) as backend:
            assert backend._connections.rows("SHOW synchronous_commit") == [(becomes,)]
