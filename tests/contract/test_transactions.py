"""Rows of the user's own and a record, committed together: all of it or nothing."""
# ruff: noqa: S608  # the numbers are these tests' own

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import apsw
import psycopg
import pytest
from psycopg.rows import dict_row

from limpet.backends.contract import Append, Appended, Expect, Key
from limpet.backends.group_commit import Ticket
from limpet.backends.postgresql.backend import PostgresBackend
from limpet.backends.sqlite.backend import SqliteBackend
from limpet.backends.url import connect
from limpet.core.runtime import AsyncRuntime, SyncRuntime, run_to_end
from limpet.errors import (
    Conflict,
    LeaseLost,
    NotTransactional,
    StoreBusy,
    StoreClosed,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    TransactionMisused,
    TransactionUndone,
)
from limpet.testing.crash import Moment, Program, crash, run, seeded, soak
from limpet.testing.faults import Faults
from limpet.testing.powerloss import Recorder, crash_states
from limpet.testing.proxy import Proxy
from tests.support.processes import until
from tests.support.servers import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from limpet.backends.contract import Backend, Transaction
    from limpet.testing.proxy import Fault

KEY = Key("acme", "note", "one")
KILLS = 10

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


class Place:
    """A store, and a table of the user's in the same database."""

    def __init__(self, url: str, server: str | None = None) -> None:
        self.url = url
        self._server = server
        connect(url).close()
        self.own("CREATE TABLE IF NOT EXISTS mine (n INTEGER UNIQUE)")

    def own(self, sql: str) -> list[tuple[Any, ...]]:
        """Do *sql* without Limpet."""
        if self._server is None:
            with closing(apsw.Connection(self.url.removeprefix("sqlite:"))) as file:
                return file.execute(sql).fetchall()
        with psycopg.connect(self._server, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def rows(self) -> list[int]:
        """The user's rows."""
        return [n for (n,) in self.own("SELECT n FROM mine ORDER BY n")]

    def empty(self) -> None:
        """Take them away."""
        self.own("DELETE FROM mine")


def find_place(name: str, request: pytest.FixtureRequest) -> Place:
    """An empty one."""
    if name == "sqlite":
        return Place(f"sqlite:{request.getfixturevalue('tmp_path')}/agents.db")
    server: PostgresServer = request.getfixturevalue("postgresql_server")
    place = Place(server.place(), server.url())
    place.empty()
    return place


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def place(request: pytest.FixtureRequest) -> Place:
    """On each backend that can."""
    return find_place(request.param, request)


@pytest.fixture
def backend(place: Place) -> Iterator[Backend]:
    """A store there."""
    with closing(connect(place.url)) as backend:
        yield backend


@pytest.fixture
def file(tmp_path: Path) -> Place:
    """One in a SQLite file."""
    return Place(f"sqlite:{tmp_path}/agents.db")


@pytest.fixture
def sqlite(file: Place) -> Iterator[SqliteBackend]:
    """The store in it."""
    with closing(SqliteBackend(file.url.removeprefix("sqlite:"))) as backend:
        yield backend


@pytest.fixture
def table(postgresql_server: PostgresServer) -> Place:
    """One on a PostgreSQL server."""
    place = Place(postgresql_server.place(), postgresql_server.url())
    place.empty()
    return place


@pytest.fixture
def postgresql(table: Place) -> Iterator[PostgresBackend]:
    """The store beside it."""
    with closing(PostgresBackend.from_url(table.url)) as backend:
        yield backend


@pytest.fixture
def runtime(backend: Backend) -> Iterator[AsyncRuntime]:
    """How async callers reach the store."""
    with closing(AsyncRuntime(backend)) as runtime:
        yield runtime


def add(body: bytes = b"x", **request: Any) -> Append:
    """A record of one entry; a number to expect will do."""
    if isinstance(request.get("expect"), int):
        request["expect"] = Expect(None, request["expect"])
    return Append(**{"key": KEY, "body": body, "count": 1, **request})


def insert(opened: Transaction, n: int) -> None:
    """A row of the user's."""
    opened.connection.execute(f"INSERT INTO mine VALUES ({n})")


Act: TypeAlias = "Callable[[Transaction], object]"


def block(backend: Backend, *acts: Act) -> None:
    """A transaction in which *acts* are done, one after the other."""
    with backend.transaction() as opened:
        for act in acts:
            act(opened)


def row(n: int) -> Act:
    """`insert`, in a block."""
    return lambda opened: insert(opened, n)


def record(body: bytes = b"x", **request: Any) -> Act:
    """The append, in a block."""
    return lambda opened: opened.append(add(body, **request))


def does(sql: str) -> Act:
    """Some statement of the user's, in a block."""
    return lambda opened: opened.connection.execute(sql)


def tries(act: Act, *errors: type[Exception]) -> Act:
    """*act*, of which the user catches what goes wrong."""

    def attempt(opened: Transaction) -> None:
        with suppress(*errors):
            act(opened)

    return attempt


def fails(error: BaseException) -> Act:
    """Something goes wrong."""

    def fail(_: Transaction) -> None:
        raise error

    return fail


def transact(backend: Backend, n: int, **request: Any) -> Appended:
    """A row, and a record that says which."""

    def work(connection: Any) -> int:
        connection.execute(f"INSERT INTO mine VALUES ({n})")
        return n

    runtime = SyncRuntime(backend)
    made, done = run_to_end(runtime.transact(work, lambda made: add(b"%d" % made, **request)))
    assert made == n
    return done


def records(backend: Backend, key: Key = KEY) -> list[int]:
    """What the records say."""
    return [int(body) for _, body in backend.bodies(key, limit=100_000)]


# -- all of it or nothing --------------------------------------------------------------------------


def test_rows_and_record_are_there_together(place: Place, backend: Backend) -> None:
    """The step's result and what it did are one."""
    with backend.transaction() as opened:
        insert(opened, 1)
        assert (place.rows(), records(backend)) == ([], [])
        done = opened.append(add(b"1", status="open", labels={"a": "b"}, ttl=600))
        assert (place.rows(), records(backend)) == ([], [])
    assert (place.rows(), records(backend)) == ([1], [1])
    head = backend.head(KEY)
    assert head is not None
    assert (done.seq, done.at, done.repeated) == (1, head.updated, False)
    assert (head.status, head.labels, head.ttl) == ("open", {"a": "b"}, 600_000_000)
    assert backend.append(add()).seq == 2


def test_an_exception_undoes_both_and_goes_on(place: Place, backend: Backend) -> None:
    """It is the user's own, and nobody else's."""
    for error in (ZeroDivisionError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            block(backend, row(1), record(), fails(error))
    assert (place.rows(), records(backend)) == ([], [])
    assert transact(backend, 1).seq == 1


def test_a_late_worker_is_fenced_off_with_its_rows(place: Place, backend: Backend) -> None:
    """What a worker does after its task was taken over never happened."""
    late = backend.acquire(KEY, "late", 60)
    new = backend.acquire(KEY, "new", 60, over=late.epoch)
    with pytest.raises(LeaseLost, match="taken over"):
        transact(backend, 1, epoch=late.epoch)
    assert (place.rows(), records(backend)) == ([], [])
    transact(backend, 2, epoch=new.epoch)
    assert (place.rows(), records(backend)) == ([2], [2])


def test_a_conflict_undoes_the_rows(place: Place, backend: Backend) -> None:
    """Compare and set, with rows."""
    backend.append(add(b"1"))
    with pytest.raises(Conflict) as conflict:
        transact(backend, 2, expect=0)
    assert (conflict.value.expected, conflict.value.actual) == (0, 1)
    transact(backend, 3, expect=1)
    assert (place.rows(), records(backend)) == ([3], [1, 3])


def test_a_known_id_adds_no_rows(place: Place, backend: Backend) -> None:
    """They are there from the first time: so a repeated transaction is there once."""
    first = transact(backend, 1, id="pay")
    again = transact(backend, 2, id="pay")
    assert (again.seq, again.at, again.repeated) == (first.seq, first.at, True)
    assert (place.rows(), records(backend)) == ([1], [1])
    assert transact(backend, 3).seq == 2


def test_a_refused_append_that_is_caught_undoes_all_the_same(
    place: Place, backend: Backend
) -> None:
    """Rows without their record are what this is to prevent."""
    backend.append(add(b"1"))
    with pytest.raises(TransactionMisused, match="without an append"):
        block(backend, row(2), tries(record(expect=5), Conflict))
    assert (place.rows(), records(backend)) == ([], [1])


def test_an_expired_journal_begins_anew(place: Place, backend: Backend) -> None:
    """As for every append."""
    backend.append(add(b"1", ttl=0.01, id="pay"))
    time.sleep(0.05)
    done, head = transact(backend, 2, id="pay"), backend.head(KEY)
    assert head is not None
    assert done == Appended(1, head.updated, head.incarnation)
    assert (place.rows(), records(backend)) == ([2], [2])


def test_a_part_can_be_undone_by_a_savepoint(place: Place, backend: Backend) -> None:
    """By the means of the driver: apsw's ``with connection``, psycopg's ``transaction()``."""
    with backend.transaction() as opened:
        insert(opened, 1)
        part = getattr(opened.connection, "transaction", lambda: opened.connection)
        with suppress(apsw.ConstraintError, psycopg.errors.UniqueViolation), part():
            insert(opened, 2)
            insert(opened, 1)
        insert(opened, 3)
        opened.append(add(b"1"))
    assert (place.rows(), records(backend)) == ([1, 3], [1])


# -- what is refused -------------------------------------------------------------------------------


def test_a_block_has_exactly_one_append(place: Place, backend: Backend) -> None:
    """And that one has a record."""
    with pytest.raises(TransactionMisused, match="without an append"):
        block(backend, row(1))
    with pytest.raises(TransactionMisused, match="has its append"):
        block(backend, row(1), record(), record())
    with pytest.raises(ValueError, match="appends a record"):
        block(backend, row(1), record(b"", count=0, status="done"))
    assert (place.rows(), records(backend)) == ([], [])


WRITES: dict[str, Callable[[Backend], object]] = {
    "append": lambda backend: backend.append(add()),
    "append-all": lambda backend: backend.append_all([add()]),
    "append-async": lambda backend: asyncio.run(AsyncRuntime(backend).append(add())),
    "delete": lambda backend: backend.delete(KEY),
    "compact": lambda backend: backend.compact(KEY, 1),
    "sweep": lambda backend: backend.sweep(),
    "acquire": lambda backend: backend.acquire(KEY, "me", 60),
    "transaction": lambda backend: block(backend, record()),
    "close": lambda backend: backend.close(),
}


@pytest.mark.parametrize("write", WRITES)
def test_writing_to_the_store_within_the_block_is_refused(
    place: Place, backend: Backend, write: str
) -> None:
    """It would wait for itself, or stay although the block is undone."""
    with pytest.raises(TransactionMisused, match="not be a part of it"):
        block(backend, row(1), lambda _: WRITES[write](backend))
    assert place.rows() == []
    transact(backend, 2)
    assert place.rows() == [2]


def test_reading_the_store_within_the_block_is_fine(place: Place, backend: Backend) -> None:
    """It sees what is committed."""
    backend.append(add(b"1"))
    with backend.transaction() as opened:
        head = backend.head(KEY)
        assert head is not None
        insert(opened, head.seq)
        assert (records(backend), backend.kinds()) == ([1], [("acme", "note")])
        opened.append(add(b"2"))
    assert (place.rows(), records(backend)) == ([1], [1, 2])


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK", "commit; begin"])
def test_a_block_cannot_end_its_transaction(place: Place, backend: Backend, sql: str) -> None:
    """The record is never written without the rows; and who committed by himself is told."""
    with pytest.raises(TransactionMisused):
        block(backend, row(1), does(sql), record())
    assert records(backend) == []
    place.empty()
    transact(backend, 2)
    assert (place.rows(), records(backend)) == ([2], [2])


def test_the_connection_is_of_no_use_after_its_block(place: Place, backend: Backend) -> None:
    """The session is somebody else's by then."""
    with backend.transaction() as opened:
        insert(opened, 1)
        opened.append(add(b"1"))
    with pytest.raises((apsw.ConnectionClosedError, TransactionMisused)):
        insert(opened, 2)
    with pytest.raises((TransactionMisused, apsw.ConnectionClosedError)):
        opened.append(add())
    assert (place.rows(), records(backend)) == ([1], [1])


def test_what_a_block_sets_on_its_connection_is_gone_with_it(backend: Backend) -> None:
    """Neither the store nor the next block notices."""
    for _ in range(3):
        with backend.transaction() as opened:
            connection = opened.connection
            connection.execute("CREATE TEMP TABLE scratch (n INTEGER)")
            if isinstance(connection, apsw.Connection):
                assert connection.row_trace is None
                connection.row_trace = lambda _, row: {"row": row}
                connection.convert_binding = lambda *_: None
            else:
                assert connection.execute("SELECT 1").fetchone() == (1,)
                connection.row_factory = dict_row
                connection.cursor_factory = psycopg.ClientCursor
            opened.append(add(labels={"a": "b"}))
    assert len(backend.read(KEY)) == 3


@pytest.mark.parametrize("url", ["memory:", "file:{}/state"])
def test_other_stores_say_which_ones_can(url: str, tmp_path: Path) -> None:
    """And what to do instead."""
    with closing(connect(url.format(tmp_path))) as backend:
        assert not backend.transactional
        with pytest.raises(NotTransactional, match="SQLite and PostgreSQL stores can"):
            backend.transaction()
        with pytest.raises(NotTransactional, match="idempotency key"):
            asyncio.run(AsyncRuntime(backend).transact(lambda _: None, lambda _: add()))


def test_a_store_that_is_closed_or_read_only_refuses(place: Place) -> None:
    """As for every write."""
    with closing(connect(place.url, readonly=True)) as backend:
        assert backend.transactional
        with pytest.raises(StoreReadOnly):
            transact(backend, 1)
    with pytest.raises(StoreClosed):
        transact(backend, 1)
    assert place.rows() == []


# -- several appends, without rows -----------------------------------------------------------------

OTHER = Key("acme", "list", "other")


def pair(body: bytes = b"1", **request: Any) -> list[Append]:
    """The same to two journals; what *request* says is said of the first."""
    return [add(body, **request), add(body, key=OTHER)]


def test_acts_of_many_threads_are_there_as_a_whole(backend: Backend) -> None:
    """Whichever journal each begins with, and whoever else is refused at the same moment."""

    def act(number: int) -> None:
        requests = pair(b"%d" % number)
        if number % 3 == 0:
            with pytest.raises(Conflict):
                backend.append_all(pair(b"0", expect=1_000))
        if number % 3 == 1:
            backend.append(add(key=Key("acme", "note", f"n{number}")))
        backend.append_all(requests[:: -1 if number % 2 else 1])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(act, range(1, 61)))
    assert sorted(records(backend)) == list(range(1, 61))
    assert records(backend) == records(backend, OTHER)


def test_a_refused_act_spoils_nothing_for_those_who_commit_with_it(sqlite: SqliteBackend) -> None:
    """It is undone alone, whatever goes before and behind it in the group."""
    acts = [pair(b"2", expect=9)[::-1], pair(b"3")]
    works = [lambda appender, at, act=act: appender.append_all(act, at) for act in acts]
    tickets = [Ticket(work) for work in (add(b"1"), *works, add(b"4", key=OTHER))]
    sqlite._commit(tickets)
    assert [type(ticket.error) for ticket in tickets] == [type(None), Conflict, *[type(None)] * 2]
    assert (records(sqlite), records(sqlite, OTHER)) == ([1, 3], [3, 4])


# -- at the same time ------------------------------------------------------------------------------


def test_transactions_and_appends_of_many_threads_all_arrive(
    place: Place, backend: Backend
) -> None:
    """Both get their turn, and nothing is out of place."""

    def write(number: int) -> None:
        if number % 2:
            transact(backend, number)
        else:
            backend.append(add(b"%d" % number))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(100)))
    assert sorted(records(backend)) == list(range(100))
    assert [record.seq for record in backend.read(KEY)] == list(range(1, 101))
    assert place.rows() == list(range(1, 100, 2))


def test_transactions_of_many_processes_all_arrive(
    place: Place, backend: Backend, tmp_path: Path
) -> None:
    """The same for writers that share nothing but the database."""
    run(*(paying(tmp_path, place, "sync", n * 100, 15) for n in range(3)))
    expected = sorted(n * 100 + m for n in range(3) for m in range(15))
    assert place.rows() == sorted(records(backend)) == expected


def test_an_append_waits_for_a_block_no_longer_than_the_timeout(file: Place) -> None:
    """Whoever waits for a block that waits for him is told, and so is everybody else."""
    path = file.url.removeprefix("sqlite:")
    with (
        closing(SqliteBackend(path, timeout=0.2)) as backend,
        ThreadPoolExecutor(2) as threads,
        backend.transaction() as opened,
    ):
        insert(opened, 1)
        with pytest.raises(StoreBusy, match="of this process"):
            threads.submit(backend.append, add()).result()
        with pytest.raises(StoreBusy, match="of this process"):
            threads.submit(transact, backend, 2).result()
        opened.append(add(b"1"))
    assert file.rows() == [1]


def test_neither_transactions_nor_appends_starve(sqlite: SqliteBackend) -> None:
    """While one group waits, no second transaction goes before it."""
    with ThreadPoolExecutor(3) as threads, sqlite.transaction() as opened:
        jobs: list[Future[Any]] = [threads.submit(sqlite.append, add(b"1"))]
        assert until(lambda: sqlite._group._shared.batch_waits)
        jobs += [threads.submit(block, sqlite, record(b"2")) for _ in range(2)]
        opened.append(add(b"0"))
    for job in jobs:
        job.result()
    assert records(sqlite) == [0, 1, 2, 2]


# -- async -----------------------------------------------------------------------------------------


async def transact_async(runtime: AsyncRuntime, n: int, body: Callable[[], object] = int) -> None:
    """`transact`, awaited."""

    def work(connection: Any) -> None:
        body()
        connection.execute(f"INSERT INTO mine VALUES ({n})")

    await runtime.transact(work, lambda _: add(b"%d" % n))


def test_async_callers_have_transactions_too(
    place: Place, backend: Backend, runtime: AsyncRuntime
) -> None:
    """Many at once, among appends."""

    async def main() -> None:
        await asyncio.gather(
            *(transact_async(runtime, n) for n in range(20)),
            *(runtime.append(add(b"%d" % n)) for n in range(20, 40)),
        )

    asyncio.run(main())
    assert place.rows() == list(range(20))
    assert sorted(records(backend)) == list(range(40))


def test_async_reads_go_on_while_transactions_wait(
    place: Place, backend: Backend, runtime: AsyncRuntime
) -> None:
    """However many there are."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    def body() -> None:
        begun.release()
        assert go_on.wait(30)

    async def main() -> None:
        waiting = [asyncio.create_task(transact_async(runtime, n, body)) for n in range(30)]
        await asyncio.to_thread(begun.acquire)
        assert await runtime.call(backend.bodies, KEY) == []
        go_on.set()
        await asyncio.gather(*waiting)

    asyncio.run(main())
    assert place.rows() == list(range(30))


def test_a_cancelled_transaction_is_settled_first(
    place: Place, backend: Backend, runtime: AsyncRuntime
) -> None:
    """Nothing lands after its caller was told that it is over."""
    begun, go_on = threading.Event(), threading.Event()

    def body() -> None:
        begun.set()
        assert go_on.wait(30)

    async def main() -> None:
        task = asyncio.create_task(transact_async(runtime, 1, body))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.sleep(0.05)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (place.rows(), records(backend)) == ([1], [1])

    asyncio.run(main())


# -- death -----------------------------------------------------------------------------------------


#: Transactions for ever, or so many.
PAY = """
import asyncio, itertools, sys
from contextlib import closing
from limpet.backends.contract import Append, Key
from limpet.backends.url import connect
from limpet.core.runtime import AsyncRuntime, SyncRuntime
from limpet.testing.crash import ack

url, way, first, count = sys.argv[1:]

def transaction(n):
    return (lambda connection: connection.execute(f"INSERT INTO mine VALUES ({n})"),
            lambda _: Append(key=Key("acme", "note", "one"), body=b"%d" % n, count=1))

async def pay(runtime, numbers):
    for n in numbers:
        await runtime.transact(*transaction(n))
        ack(str(n))

with closing(connect(url)) as backend:
    runtime = SyncRuntime(backend) if way == "sync" else AsyncRuntime(backend)
    asyncio.run(pay(runtime, itertools.islice(itertools.count(int(first)), int(count) or None)))
"""


def paying(directory: Path, place: Place, way: str, first: int, count: int = 0) -> Program:
    """A process that runs `PAY`."""
    script = directory / "pay.py"
    script.write_text(PAY)
    return Program(str(script), (place.url, way, str(first), str(count)))


@pytest.mark.soak
@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_killed_process_leaves_rows_and_record_or_neither(
    place: Place, backend: Backend, tmp_path: Path, way: str
) -> None:
    """Whenever it is killed, before, within or after the commit."""
    last = 0
    with seeded() as rng:
        for _ in range(KILLS * soak()):
            moment = Moment.random(rng, acks=30, seconds=0.5)
            (outcome,) = crash([paying(tmp_path, place, way, last + 1)], [moment])
            assert outcome.killed
            acked = int(outcome.acked[-1]) if outcome.acked else last
            rows = settled(place, backend)
            last = len(rows)
            assert rows == list(range(1, last + 1))
            assert acked <= last <= acked + 1


def settled(place: Place, backend: Backend) -> list[int]:
    """The rows, with their records: a server may have had a commit on its way."""
    assert until(lambda: place.rows() == records(backend))
    return place.rows()


@pytest.mark.soak
def test_a_power_cut_leaves_rows_and_record_or_neither(tmp_path: Path) -> None:
    """And both if they were acknowledged."""
    (tmp_path / "after").mkdir()
    path = tmp_path / "agents.db"
    with seeded() as rng, Recorder(sync_seconds=0.0005) as recorder:
        with closing(SqliteBackend(str(path), vfs=recorder.vfs)) as backend:
            backend._database.writer().execute("PRAGMA wal_autocheckpoint = 20")
            block(
                backend,
                does("CREATE TABLE mine (n INTEGER)"),
                record(key=KEY._replace(id="table")),
            )
            pay_and_talk(backend, recorder)
        states = 0
        for state in crash_states(recorder.log, rng, 300 * soak()):
            state.write_to(tmp_path / "after")
            check_state(tmp_path / "after" / "agents.db", len(state.acked))
            states += 1
        assert states >= 300


def pay_and_talk(backend: Backend, recorder: Recorder) -> None:
    """Transactions, acknowledged, among appends that share their commits."""
    stop = threading.Event()

    def talk() -> None:
        while not stop.is_set():
            backend.append(add(key=KEY._replace(id="talk")))

    with ThreadPoolExecutor(3) as threads:
        talking = [threads.submit(talk) for _ in range(3)]
        for n in range(40):
            transact(backend, n)
            recorder.ack(n)
        stop.set()
    for job in talking:
        job.result()


def check_state(path: Path, acked: int) -> None:
    """What a power cut has left."""
    with closing(SqliteBackend(str(path))) as backend:
        assert all(fact.ok or fact.name == "file mode" for fact in backend.facts(deep=True))
        if not backend.head(KEY._replace(id="table")):
            assert acked == 0
            return
        with closing(apsw.Connection(str(path))) as own:
            rows = [n for (n,) in own.execute("SELECT n FROM mine ORDER BY n")]
        assert rows == records(backend) == list(range(len(rows)))
        assert acked <= len(rows) <= acked + 1


@pytest.mark.parametrize("after", range(12))
def test_a_full_disk_undoes_both(tmp_path: Path, after: int) -> None:
    """Wherever in the transaction the room ends."""
    path = str(tmp_path / "agents.db")
    with Faults() as disk, closing(SqliteBackend(path, vfs=disk.vfs)) as backend:
        place = Place(f"sqlite:{path}")
        transact(backend, 1)
        disk.arm(after=after, where="journal")
        with suppress(StoreFull):
            transact(backend, 2)
        failed = disk.failures > 0
        disk.disarm()
        kept = [1] if failed else [1, 2]
        assert place.rows() == records(backend) == kept
        transact(backend, 3)
        assert place.rows() == records(backend) == [*kept, 3]


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_within_the_block_harms_nobody(place: Place, backend: Backend) -> None:
    """The child has no part in it; in SQLite, where nothing may be forked, it is undone."""
    with suppress(TransactionMisused, apsw.ConnectionClosedError), backend.transaction() as opened:
        insert(opened, 1)
        child = os.fork()
        if not child:
            with suppress(BaseException):
                opened.append(add(b"1"))
                opened.connection.execute("COMMIT")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        opened.append(add(b"1"))
    assert place.rows() == records(backend)
    before = place.rows()
    transact(backend, 2)
    backend.append(add(b"3"))
    assert (place.rows(), records(backend)) == ([*before, 2], [*before, 2, 3])


INTERRUPTED = """
import os, random, signal, sys, threading, time
from contextlib import closing
from limpet.backends.contract import Append, Key
from limpet.backends.url import connect

key, armed, done, stop = Key("acme", "note", "one"), False, 0, threading.Event()

def interrupt(*_):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt

def disturb():
    while not stop.is_set():
        time.sleep(random.uniform(0, 0.004))
        os.kill(os.getpid(), signal.SIGINT)

def write():
    while not stop.is_set():
        backend.append(Append(key=key._replace(id="other"), body=b"x", count=1))

signal.signal(signal.SIGINT, interrupt)
with closing(connect(sys.argv[1])) as backend:
    threads = [threading.Thread(target=run) for run in (disturb, write, write)]
    for thread in threads:
        thread.start()
    for n in range(150):
        try:
            armed = True
            while True:
                with backend.transaction() as opened:
                    opened.connection.execute(f"INSERT INTO mine VALUES ({done})")
                    opened.append(Append(key=key, body=b"%d" % done, count=1, id=f"n{done}"))
                done += 1
        except KeyboardInterrupt:
            done = len(backend.read(key, limit=100_000))
    armed = False
    stop.set()
    for thread in threads:
        thread.join()
print("done")
"""


@pytest.mark.soak
def test_interrupts_leave_rows_and_record_or_neither(place: Place, backend: Backend) -> None:
    """Ctrl-C 150 times, at any point of a transaction, among threads that append."""
    from tests.contract.sqlite.test_sqlite import finish, python  # noqa: PLC0415 - theirs is the way to start one

    assert finish(python(INTERRUPTED, place.url)) == "done\n"
    assert place.rows() == sorted(int(record.body) for record in backend.read(KEY, limit=100_000))


# -- SQLite alone ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("INSERT INTO limpet_labels VALUES (1, 'a', 'b')", "the store's own"),
        ("DROP TABLE Limpet_Records", "the store's own"),
        ("CREATE TEMP TABLE limpet_journals (n)", "the store's own"),
        ("CREATE TRIGGER t AFTER INSERT ON limpet_records BEGIN SELECT 1; END", "store's own"),
        ("ATTACH 'other.db' AS other", "not atomic"),
        ("SAVEPOINT a; COMMIT", "leaving the block commits"),
    ],
    ids=["insert", "drop", "shadow", "trigger", "attach", "commit"],
)
def test_a_block_keeps_off_what_is_not_its_own(
    file: Place, sqlite: SqliteBackend, sql: str, why: str
) -> None:
    """It has the right to write the whole file; it does not do so by mistake."""
    with pytest.raises(TransactionMisused, match=why):
        block(sqlite, row(1), does(sql), record())
    assert file.rows() == []
    transact(sqlite, 2)


def test_our_tables_can_be_read_in_a_block(sqlite: SqliteBackend) -> None:
    """A join with what is stored, say."""
    sqlite.append(add())
    with sqlite.transaction() as opened:
        assert opened.connection.execute("SELECT seq FROM limpet_records").get == 1
        opened.append(add())


def test_nothing_runs_after_a_statement_that_rolled_back(
    file: Place, sqlite: SqliteBackend
) -> None:
    """After ``OR ROLLBACK`` SQLite would commit every further statement by itself."""
    spoilt = tries(does("INSERT OR ROLLBACK INTO mine VALUES (1)"), apsw.ConstraintError)
    with pytest.raises(TransactionMisused, match="has ended"):
        block(sqlite, row(1), spoilt, row(2))
    assert (file.rows(), records(sqlite)) == ([], [])


def test_a_connection_that_is_closed_in_its_block_undoes_it(
    file: Place, sqlite: SqliteBackend
) -> None:
    """Closing is no commit."""
    with pytest.raises(TransactionMisused, match="has ended"):
        block(sqlite, row(1), record(), lambda opened: opened.connection.close())
    assert (file.rows(), records(sqlite)) == ([], [])


def test_a_deferred_constraint_is_the_users_error(file: Place, sqlite: SqliteBackend) -> None:
    """It comes up at the commit, as he knows it."""
    file.own("CREATE TABLE theirs (n REFERENCES mine (n) DEFERRABLE INITIALLY DEFERRED)")
    apsw.connection_hooks.append(enforce)
    try:
        with pytest.raises(apsw.ConstraintError):
            block(sqlite, does("INSERT INTO theirs VALUES (7)"), record())
    finally:
        apsw.connection_hooks.remove(enforce)
    assert (file.own("SELECT n FROM theirs"), records(sqlite)) == ([], [])


def enforce(connection: apsw.Connection) -> None:
    """Foreign keys cannot be switched on within a transaction."""
    connection.pragma("foreign_keys", True)  # noqa: FBT003 - SQLite's own


# -- PostgreSQL alone ------------------------------------------------------------------------------

#: What a transaction sends: BEGIN, the user's statement, the append, COMMIT, DISCARD ALL.
COMMITS = 4
FAULTS: tuple[Fault, ...] = ("before", "during", "after", "late", "silent", "unheard")


@pytest.mark.server
@pytest.mark.parametrize("at", range(1, 6))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_network_that_fails_leaves_what_the_caller_is_told(
    table: Place, postgresql_server: PostgresServer, fault: Fault, at: int
) -> None:
    """Both are there and he is told so, or neither; also if the answer to the commit is lost."""
    patience = 2 if fault in ("silent", "unheard") else 30
    with (
        Proxy(postgresql_server.host, postgresql_server.port) as network,
        closing(connect(postgresql_server.through(table.url, network.port), timeout=patience)) as b,
    ):
        transact(b, 1)
        network.arm(fault, at=at)
        told = True
        try:
            transact(b, 2, id="pay")
        except TransactionUndone:
            told = False
        network.heal()
        assert network.struck == 1
        assert told is (at in (1, 5) or (at == COMMITS and fault in ("after", "unheard")))
        expected = [1, 2] if told else [1]
        assert table.rows() == records(b) == expected
        assert transact(b, 3, id="pay").repeated is told


@pytest.mark.server
def test_an_act_whose_answer_is_lost_is_there_once(
    table: Place, postgresql_server: PostgresServer
) -> None:
    """Wherever the connection breaks; with ids of the caller's or of ours, and with conditions."""
    faults: tuple[Fault, ...] = ("before", "during", "after", "late")
    names = ((), ("id",), ("expect",), ("id", "expect"))
    cases = [(COMMITS, fault, given) for fault in faults for given in names]
    cases += [(at, "after", ()) for at in range(1, COMMITS)]
    with (
        Proxy(postgresql_server.host, postgresql_server.port) as network,
        closing(connect(postgresql_server.through(table.url, network.port))) as backend,
    ):
        for count, (at, fault, given) in enumerate(cases):
            backend.append(add(key=Key("acme", "note", "warm")))  # the connection
            said: dict[str, Any] = {"id": f"{count}", "expect": count}
            network.arm(fault, at=at)
            done = backend.append_all(pair(b"%d" % count, **{name: said[name] for name in given}))
            network.heal()
            assert network.struck == count + 1
            assert [one.seq for one in done] == [count + 1] * 2
        assert records(backend) == records(backend, OTHER) == list(range(len(cases)))


@pytest.mark.server
def test_an_id_that_comes_in_meanwhile_is_repeated_in_an_act(
    table: Place, postgresql: PostgresBackend
) -> None:
    """The rest of the act is done."""
    postgresql.append(add(b"0"))
    with ThreadPoolExecutor(1) as threads:
        with postgresql.transaction() as opened:
            opened.append(add(b"1", id="pay"))
            job = threads.submit(postgresql.append_all, pair(b"2", id="pay"))
            assert until(lambda: bool(waiters(table)))  # it waits for the head's row
        assert [one.repeated for one in job.result()] == [True, False]
    assert (records(postgresql), records(postgresql, OTHER)) == ([0, 1], [2])


@pytest.mark.server
def test_a_commit_of_which_nobody_can_know_is_there_once_when_repeated(
    table: Place, postgresql_server: PostgresServer
) -> None:
    """The server is away for longer than anybody waits."""
    with (
        Proxy(postgresql_server.host, postgresql_server.port) as network,
        closing(connect(postgresql_server.through(table.url, network.port), timeout=1)) as backend,
    ):
        transact(backend, 1)
        network.arm("after", at=COMMITS, stays=True)
        with pytest.raises(StoreUnavailable):
            transact(backend, 2, id="pay")
        network.heal()
        assert transact(backend, 3, id="pay").repeated
        assert table.rows() == records(backend) == [1, 2]


@pytest.mark.server
@pytest.mark.parametrize("fault", ["before", "after"])
def test_behind_a_pooler_a_lost_commit_is_never_called_undone(
    table: Place, postgresql_server: PostgresServer, fault: Fault
) -> None:
    """Its session cannot be ended there, so it might still come."""
    with Proxy(postgresql_server.host, postgresql_server.port) as network:
        url = postgresql_server.through(table.url, network.port) + "&prepare=false"
        with closing(connect(url)) as backend:
            transact(backend, 1)
            network.arm(fault, at=COMMITS)
            if fault == "after":
                transact(backend, 2, id="pay")
            else:
                with pytest.raises(StoreUnavailable, match="may or may not"):
                    transact(backend, 2, id="pay")
                transact(backend, 2, id="pay")
            assert table.rows() == records(backend) == [1, 2]


@pytest.mark.server
def test_a_session_that_died_in_the_pool_is_replaced(
    table: Place, postgresql: PostgresBackend
) -> None:
    """Before the block begins, so that nobody notices."""
    transact(postgresql, 1)
    table.own(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'limpet' AND state = 'idle'"
    )
    transact(postgresql, 2)
    assert table.rows() == records(postgresql) == [1, 2]


@pytest.mark.server
def test_who_gives_way_in_a_deadlock_is_undone_and_told(
    table: Place, postgresql: PostgresBackend
) -> None:
    """He may run it again; whether that is right only he knows."""
    table.own("INSERT INTO mine VALUES (1), (2)")
    both = threading.Barrier(2)

    def lock(first: int, second: int) -> None:
        block(
            postgresql,
            does("SET LOCAL deadlock_timeout = '50ms'"),
            does(f"UPDATE mine SET n = n + 10 WHERE n = {first}"),
            lambda _: both.wait(30),
            does(f"UPDATE mine SET n = n + 20 WHERE n = {second}"),
            record(),
        )

    with ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(lock, 1, 2), threads.submit(lock, 2, 1)]
    (undone,) = [error for job in jobs if (error := job.exception()) is not None]
    assert isinstance(undone, TransactionUndone)
    assert isinstance(undone.__cause__, psycopg.errors.DeadlockDetected)
    assert table.rows() in ([11, 22], [12, 21])
    assert len(postgresql.read(KEY)) == 1


@pytest.mark.server
def test_an_id_that_comes_in_meanwhile_counts_and_the_rows_do_not(
    table: Place, postgresql: PostgresBackend
) -> None:
    """Two run the same transaction at the same moment: it is there once."""
    postgresql.append(add(b"0"))
    results: list[bool] = []
    first_in = threading.Event()

    def late() -> None:
        assert first_in.wait(30)
        results.append(transact(postgresql, 2, id="pay").repeated)

    with ThreadPoolExecutor(1) as threads:
        with postgresql.transaction() as opened:
            insert(opened, 1)
            opened.append(add(b"1", id="pay"))
            job = threads.submit(late)
            first_in.set()
            assert until(lambda: bool(waiters(table)))  # it waits for the head's row
        job.result()
    assert results == [True]
    assert (table.rows(), records(postgresql)) == ([1], [0, 1])


def waiters(table: Place) -> list[tuple[Any, ...]]:
    """Sessions that wait for a lock."""
    return table.own("SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'")


@pytest.mark.server
def test_an_error_that_was_caught_is_not_forgotten(
    table: Place, postgresql: PostgresBackend
) -> None:
    """PostgreSQL would turn the commit into a rollback without a word."""
    with pytest.raises(TransactionMisused, match="has failed"):
        block(postgresql, row(1), record(), tries(row(1), psycopg.errors.UniqueViolation))
    nowhere = tries(does("SELECT 1 FROM nowhere"), psycopg.errors.UndefinedTable)
    with pytest.raises(TransactionMisused, match="has failed"):
        block(postgresql, row(1), nowhere, record())
    assert (table.rows(), records(postgresql)) == ([], [])


@pytest.mark.server
@pytest.mark.parametrize("method", ["commit", "rollback", "close"])
def test_a_connection_does_not_end_what_its_block_ends(
    table: Place, postgresql: PostgresBackend, method: str
) -> None:
    """Refused before anything is sent."""
    with pytest.raises(TransactionMisused, match="Not in the block"):
        block(postgresql, row(1), lambda opened: getattr(opened.connection, method)())
    assert table.rows() == []


@pytest.mark.server
def test_with_connection_is_not_taken_for_a_savepoint(
    table: Place, postgresql: PostgresBackend
) -> None:
    """In psycopg it commits and closes; an error in it is passed on as it is."""

    def within(*acts: Act) -> Act:
        def inner(opened: Transaction) -> None:
            with opened.connection:
                for act in acts:
                    act(opened)

        return inner

    with pytest.raises(TransactionMisused, match="with connection"):
        block(postgresql, within(row(1)))
    with pytest.raises(ZeroDivisionError):
        block(postgresql, within(fails(ZeroDivisionError())))
    assert table.rows() == []


@pytest.mark.server
def test_a_session_is_as_new_for_the_next_block(table: Place, postgresql: PostgresBackend) -> None:
    """Settings, locks, temporary tables and prepared statements end with the block."""
    with postgresql.transaction() as opened:
        connection = opened.connection
        pid = connection.info.backend_pid
        connection.execute("SET search_path = nowhere")
        connection.execute("SELECT pg_advisory_lock(7)")
        connection.execute("SELECT %s::int", (1,), prepare=True)
        opened.append(add())
    assert table.own("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)]
    with postgresql.transaction() as opened:
        connection = opened.connection
        assert connection.info.backend_pid == pid
        assert connection.execute("SHOW search_path").fetchone() != ("nowhere",)
        assert connection.execute("SELECT name FROM pg_prepared_statements").fetchall() == []
        connection.execute("SELECT %s::int", (1,), prepare=True)
        opened.append(add())


@pytest.mark.server
@pytest.mark.parametrize(("durability", "commits"), [("full", "on"), ("normal", "off")])
def test_a_commit_is_as_durable_as_every_append(
    table: Place, durability: str, commits: str
) -> None:
    """Also if the user's own setting is another."""
    table.own("""
        DROP TABLE IF EXISTS seen; CREATE TABLE seen (commits text);
        CREATE OR REPLACE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
        DROP TRIGGER IF EXISTS looks ON mine;
        CREATE CONSTRAINT TRIGGER looks AFTER INSERT ON mine DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION look()""")
    try:
        with closing(connect(table.url, durability=durability)) as backend:
            for theirs in ("on", "off"):
                with backend.transaction() as opened:
                    opened.connection.execute(f"SET synchronous_commit = {theirs}")
                    insert(opened, len(theirs))
                    opened.append(add())
    finally:
        table.own("DROP TRIGGER looks ON mine")
    assert table.own("SELECT DISTINCT commits FROM seen") == [(commits,)]


@pytest.mark.server
def test_blocks_take_no_connection_from_the_calls_of_the_store(table: Place) -> None:
    """A lease is renewed and a journal read however many blocks are open."""
    with (
        closing(connect(table.url, pool=1)) as backend,
        ThreadPoolExecutor(1) as threads,
        backend.transaction() as opened,
    ):
        insert(opened, 1)
        assert threads.submit(backend.append, add()).result().seq == 1
        assert backend.bodies(KEY) == [(1, b"x")]
        opened.append(add())
    assert table.rows() == [1]


@pytest.mark.server
def test_a_server_that_dies_leaves_rows_and_record_or_neither() -> None:
    """Killed under four threads that write without pause."""
    with PostgresServer() as server:
        place = Place(server.place(), server.url())
        with closing(connect(place.url)) as backend:
            stop = threading.Event()

            def go(first: int) -> list[int]:
                told: list[int] = []
                for n in itertools.count(first, 4):
                    if stop.is_set():
                        return told
                    with suppress(TransactionUndone):
                        transact(backend, n, id=f"n{n}")
                        told.append(n)
                return told

            with ThreadPoolExecutor(4) as threads:
                jobs = [threads.submit(go, n) for n in range(4)]
                for _ in range(3):
                    time.sleep(0.5)
                    server.kill()
                    server.start()
                time.sleep(0.5)
                stop.set()
            told = sorted(n for job in jobs for n in job.result())
            assert place.rows() == sorted(records(backend)) == told
