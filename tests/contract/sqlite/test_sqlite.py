"""SQLite: one file, many threads and processes, and everything that can be wrong with a file."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import limpet
from limpet.backends.contract import Append, Expect, Key
from limpet.backends.sqlite import SqliteBackend, database
from limpet.testing.crash import Program, ack, run
from tests.support.paths import DATA
from tests.support.sqlite_index import migrations_with_an_index_moved_every

if TYPE_CHECKING:
    from collections.abc import Callable

HELLO = {"role": "user", "content": "hello"}
KEY = Key("default", "note", "one")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a store may be."""
    return str(tmp_path / "agents.db")


@pytest.fixture
def filled(path: str) -> str:
    """A store with some conversations, closed."""
    with limpet.open(path) as store:
        for name in ("alice", "bob"):
            for number in range(200):
                store.conversation(name).append({"role": "user", "content": f"{number} " * 50})
    return path


def python(code: str, *args: str, **how: object) -> subprocess.Popen[str]:
    """A child that runs *code*."""
    command = [sys.executable, "-c", textwrap.dedent(code), *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **how)  # type: ignore[call-overload, no-any-return]


def finish(child: subprocess.Popen[str]) -> str:
    """What the child printed, if it ended well and in time."""
    try:
        out, _ = child.communicate(timeout=240)
    finally:
        child.kill()  # if it hangs, it does so alone
    assert child.returncode == 0, out
    return out


# -- the file --------------------------------------------------------------------------------------


def test_files_can_be_read_by_their_owner_only(path: str) -> None:
    """The store, its log and its index."""
    os.umask(os.umask(0))  # whatever the umask is
    with limpet.open(path) as store:
        store.conversation("alice").append(HELLO)
        for name in (path, path + "-wal", path + "-shm"):
            assert stat.S_IMODE(Path(name).stat().st_mode) == 0o600


def test_every_commit_is_synced(path: str) -> None:
    """Write-ahead log, synchronous=FULL, on writer and readers."""
    with limpet.open(path) as store:
        database = store.backend._database  # type: ignore[attr-defined]
        with database.reader() as reader:
            for connection in (database.writer(), reader):
                assert connection.pragma("journal_mode") == "wal"
                assert connection.pragma("synchronous") == 2


def test_closing_leaves_one_file(path: str) -> None:
    """The log is folded in: the file alone can be copied."""
    with limpet.open(path) as store:
        store.conversation("alice").append(HELLO)
    assert [file.name for file in Path(path).parent.iterdir()] == ["agents.db"]


def test_a_file_may_hold_the_users_tables_too(path: str) -> None:
    """Our tables have our name in front, and user_version is left alone."""
    own = apsw.Connection(path)
    own.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY); PRAGMA user_version = 7")
    own.execute("INSERT INTO orders VALUES (1)")
    own.close()
    with limpet.open(path) as store:
        store.conversation("alice").append(HELLO)
    own = apsw.Connection(path)
    tables = {row[0] for row in own.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert own.pragma("user_version") == 7
    own.close()
    assert "orders" in tables
    assert all(name.startswith(("limpet_", "orders")) for name in tables)


# -- heads that are known --------------------------------------------------------------------------


def note(body: bytes, **request: Any) -> Append:
    """One entry of the note."""
    return Append(key=KEY, body=body, count=1, **request)


def begin_anew(other: SqliteBackend) -> None:
    """Delete it, and write to another one of that name."""
    other.delete(KEY)
    other.append(note(b"theirs"))


@pytest.mark.parametrize(
    ("meanwhile", "there"),
    [
        (lambda other: other.append(note(b"theirs")), [b"first", b"theirs", b"ours"]),
        (lambda other: other.delete(KEY), [b"ours"]),
        (begin_anew, [b"theirs", b"ours"]),
        (lambda other: other.compact(KEY, 2), [b"ours"]),
        (lambda other: other.append(Append(key=KEY, status="done")), [b"first", b"ours"]),
        (lambda other: other.acquire(KEY, "they", 60), [b"first", b"ours"]),
    ],
    ids=["appended", "deleted", "begun anew", "compacted", "changed", "leased"],
)
def test_what_another_process_did_since_is_seen_by_the_next_append(
    path: str, meanwhile: Callable[[SqliteBackend], object], there: list[bytes]
) -> None:
    """Whoever knows a head asks SQLite, as it commits, whether it is still so."""
    with closing(SqliteBackend(path)) as backend, closing(SqliteBackend(path)) as other:
        backend.append(note(b"first"))
        backend.append(Append(key=KEY._replace(id="two"), body=b"x", count=1))
        meanwhile(other)
        before = other.head(KEY)
        done = backend.append(note(b"ours"))
        assert [body for _, body in other.bodies(KEY)] == there
        after = other.head(KEY)
        assert after is not None
        assert (after.seq, after.incarnation) == (done.seq, done.incarnation)
        if before is not None:
            assert (after.incarnation, after.status, after.lease) == (
                before.incarnation,
                before.status,
                before.lease,
            )
        assert in_order(backend)


def test_conditions_are_never_decided_by_an_old_head(path: str) -> None:
    """Neither a refusal nor a success."""
    with closing(SqliteBackend(path)) as backend, closing(SqliteBackend(path)) as other:
        mine = backend.acquire(KEY, "me", 60)
        backend.append(note(b"first", epoch=mine.epoch))
        other.append(note(b"theirs"))
        assert backend.append(note(b"third", expect=Expect(None, 2))).seq == 3
        other.append(note(b"fourth"))
        with pytest.raises(limpet.Conflict):
            backend.append(note(b"ours", expect=Expect(None, 3)))
        theirs = other.acquire(KEY, "they", 60, over=mine.epoch)
        with pytest.raises(limpet.LeaseLost):
            backend.append(note(b"ours", epoch=mine.epoch))
        assert backend.append(note(b"fifth", epoch=theirs.epoch)).seq == 5


# -- the index -------------------------------------------------------------------------------------


def in_order(backend: SqliteBackend) -> bool:
    """Whether the index has each record once."""
    return next(fact.ok for fact in backend.facts(deep=True) if fact.name == "index")


def test_an_index_that_is_put_in_order_again_and_again_has_every_record(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was in the small part of it: journals, read, shortened, deleted and begun anew."""
    monkeypatch.setattr(database, "migrations", migrations_with_an_index_moved_every(7))
    draw = random.Random(1)
    with closing(SqliteBackend(path)) as backend, closing(SqliteBackend(path)) as other:
        said: dict[str, list[bytes]] = {}
        for number in range(600):
            id_ = draw.choice("abcde")
            key, writer = Key("t", "note", id_), draw.choice([backend, other])
            if draw.random() < 0.02:
                writer.delete(key)
                said.pop(id_, None)
                continue
            body = b"%d" % number
            note = draw.choice([None, body])
            writer.append(Append(key=key, body=body, count=1, note=note))
            said.setdefault(id_, []).append(body)
            head = other.head(key)
            assert head is not None
            assert head.note == note
            assert [body for _, body in other.bodies(key)] == said[id_]
            last = [record.body for record in backend.read(key, reverse=True, limit=3)]
            assert last == said[id_][:-4:-1]
        assert in_order(backend)
        for id_, bodies in said.items():
            assert backend.compact(Key("t", "note", id_), len(bodies)) == len(bodies) - 1
        assert in_order(backend)


def test_an_append_with_a_note_is_one_statement(path: str) -> None:
    """Which commits by itself, as one without: that is what encryption costs the least with."""
    with closing(SqliteBackend(path)) as backend:
        for note in (None, b"first"):
            backend.append(Append(key=KEY, body=b"x", count=1, note=note))
        seen: list[str] = []

        def trace(_: apsw.Cursor, sql: str, __: object) -> bool:
            seen.append(sql)
            return True

        backend._database.writer().exec_trace = trace
        backend.append(Append(key=KEY, body=b"x", count=1, note=b"second"))
        assert [sql.split(" (")[0] for sql in seen] == ["INSERT INTO limpet_noted"]
        head = backend.head(KEY)
        assert head is not None
        assert head.note == b"second"


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM limpet_index_recent",
        "DELETE FROM limpet_records WHERE record = 1",
        "INSERT INTO limpet_index SELECT journal, seq, record FROM limpet_index_recent",
        "UPDATE limpet_index_recent SET record = record + 10",
    ],
)
def test_an_index_that_was_tampered_with_is_found_out(filled: str, damage: str) -> None:
    """SQLite's own check knows nothing of it."""
    own = apsw.Connection(filled)
    own.execute(damage)
    own.close()
    with closing(SqliteBackend(filled)) as backend:
        assert not in_order(backend)


def test_a_journal_whose_last_record_is_missing_is_damaged(filled: str) -> None:
    """It is not taken for an empty one, and no number is given out twice."""
    own = apsw.Connection(filled)
    own.execute("DELETE FROM limpet_records")
    own.close()
    with limpet.open(filled) as store:
        with pytest.raises(limpet.errors.StoreCorrupt, match="last record"):
            store.conversation("alice").append(HELLO)
        with pytest.raises(limpet.errors.StoreCorrupt, match="last record"):
            store.conversation("alice").info()


# -- schema ----------------------------------------------------------------------------------------


def test_a_store_of_a_newer_release_is_refused(filled: str) -> None:
    """The message says which version, and what to do."""
    own = apsw.Connection(filled)
    own.execute("UPDATE limpet_schema SET version = 99")
    own.close()
    with pytest.raises(limpet.errors.SchemaTooNew, match=r"schema 99.*reads up to 3(?s:.*)Upgrade"):
        limpet.open(filled)


def test_migrations_are_numbered_without_gaps() -> None:
    """1, 2, 3."""
    numbers = [number for number, _ in database.migrations()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_migrating_step_by_step_gives_the_schema_of_a_new_store(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However old the file was when it came to us."""
    steps = database.migrations()
    with monkeypatch.context() as patch:
        for count in range(1, len(steps) + 1):
            patch.setattr(database, "migrations", lambda count=count: steps[:count])
            patch.setattr(database, "_files", lambda count=count: _FILES[:count])
            limpet.open(path).close()
    limpet.open(path + "2").close()
    assert _schema(path) == _schema(path + "2")


_FILES = database._files()


def _schema(path: str) -> list[object]:
    connection = apsw.Connection(path)
    rows = connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()
    connection.close()
    return list(rows)


def test_processes_that_start_at_once_create_one_store(path: str) -> None:
    """One migrates, the others find it done."""
    code = """
        import sys, limpet
        with limpet.open(sys.argv[1]) as store:
            store.conversation("all").append({"role": "user", "content": sys.argv[2]})
    """
    for child in [python(code, path, str(number)) for number in range(6)]:
        finish(child)
    with limpet.open(path) as store:
        said = [message["content"] for message in store.conversation("all").messages()]
    assert sorted(said) == [str(number) for number in range(6)]


@pytest.mark.parametrize("release", sorted(DATA.glob("store-*.db")))
def test_what_an_older_release_wrote_can_be_read(release: Path, tmp_path: Path) -> None:
    """For ever: one file for each release that changed what is stored."""
    copy = tmp_path / "old.db"
    copy.write_bytes(release.read_bytes())
    with limpet.open(copy, tenant="acme") as store:
        chat = store.conversation("alice")
        assert chat.messages() == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "I prefer e-mail. 😀"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]},
            {"role": "tool", "tool_call_id": "c1", "content": "x" * 20_000},
        ]
        assert chat.info().labels == {"team": "red"}
        with store.task("report-42") as task:
            assert task.goal == "Summarise open incidents"
            assert task.step("fetch", pytest.fail) == [1, 2, {"n": None}]
            assert [step.name for step in task.remaining()] == ["write"]
            assert task.decisions == [limpet.Decision("use the replica", "of the rate limit")]
            assert task.discoveries == ["100 calls a minute"]
        assert store.task("done-1").checkpoint().results == {"only": "result"}
        assert [info.id for info in store.tasks(status="done")] == ["done-1"]


# -- files that are not as they should be -------------------------------------------------------


def test_missing_directories_are_made_for_their_owner_only(tmp_path: Path) -> None:
    """As for a file: store; but not where nothing is to be created."""
    path = tmp_path / "state" / "of" / "agents.db"
    with pytest.raises(limpet.errors.StoreNotFound, match=r"(?s)of does not exist.*mkdir -p"):
        limpet.open(path, create=False)
    assert list(tmp_path.iterdir()) == []
    with limpet.open(path) as store:
        store.conversation("alice").append(HELLO)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_file_in_the_place_of_a_directory_is_named(tmp_path: Path) -> None:
    """Nobody is told to make a directory that cannot be made."""
    (tmp_path / "plain").write_text("text")
    for below in ("plain/agents.db", "plain/more/agents.db"):
        with pytest.raises(limpet.errors.StoreNotFound, match="plain is no directory"):
            limpet.open(tmp_path / below)


def test_a_link_to_a_store_opens_it(filled: str, tmp_path: Path) -> None:
    """Its log lies beside the file itself, for whoever opens that one."""
    (tmp_path / "linked.db").symlink_to(filled)
    with limpet.open(tmp_path / "linked.db") as store, limpet.open(filled) as other:
        store.conversation("carol").append(HELLO)
        assert other.conversation("carol").messages() == [HELLO]
        assert not (tmp_path / "linked.db-wal").exists()


@pytest.mark.parametrize("url", ["a\0b.db", "sqlite:a\0b.db", "file:a\0b"])
def test_a_path_that_cannot_be_is_refused_with_a_reason(url: str) -> None:
    """Not by a bare ValueError of the system's."""
    with pytest.raises(limpet.errors.InvalidURL, match="NUL"):
        limpet.open(url)


def test_a_missing_file_is_not_created_unasked(path: str) -> None:
    """With create=False."""
    with pytest.raises(limpet.errors.StoreNotFound, match="no store at"):
        limpet.open(path, create=False)
    assert not Path(path).exists()


def test_a_directory_is_not_a_store(tmp_path: Path) -> None:
    """The message names a file in it."""
    with pytest.raises(limpet.errors.NotAStore, match="is a directory"):
        limpet.open(tmp_path)


@pytest.mark.parametrize("content", [b'{"messages": []}' * 100, os.urandom(5000), b"x"])
def test_a_file_that_is_no_database_is_left_as_it_is(path: str, content: bytes) -> None:
    """It may be somebody's only copy of something."""
    Path(path).write_bytes(content)
    with pytest.raises(limpet.errors.NotAStore, match="not a SQLite database"):
        limpet.open(path)
    assert Path(path).read_bytes() == content


def test_an_empty_file_becomes_a_store(path: str) -> None:
    """What a crash at the moment of creation leaves behind."""
    Path(path).touch()
    with limpet.open(path) as store:
        assert store.conversation("alice").append(HELLO) == 1


def test_damage_is_reported_and_nothing_is_changed(filled: str) -> None:
    """Pages overwritten in the middle of the file."""
    content = bytearray(Path(filled).read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096 : page * 4096 + 200] = b"\xaa" * 200
    Path(filled).write_bytes(content)
    with (
        pytest.raises(limpet.errors.StoreCorrupt, match=r"(?s)damaged.*copy the file"),
        limpet.open(filled) as store,
    ):
        store.conversation("alice").messages()
    assert Path(filled).read_bytes() == bytes(content)


def test_a_flipped_bit_in_a_message_is_noticed(filled: str) -> None:
    """SQLite itself would not: bodies carry a checksum."""
    content = bytearray(Path(filled).read_bytes())
    content[content.index(b"199 199 199")] ^= 1
    Path(filled).write_bytes(content)
    with limpet.open(filled) as store:
        broken = [_error(store, name) for name in ("alice", "bob")]
    assert sorted(map(str, broken)) == ["", "Unreadable"]


def _error(store: limpet.Store, name: str) -> str:
    try:
        store.conversation(name).messages()
    except limpet.LimpetError as error:
        return type(error).__name__
    return ""


def test_a_read_only_store_says_so_and_can_be_read(filled: str) -> None:
    """For a user who may not write: the root user may always, so this runs as nobody."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    Path(filled).chmod(0o444)
    for directory in (Path(filled).parent, *Path(filled).parent.parents):
        if directory.stat().st_uid == 0 and directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o555)
    code = """
        import os, sys
        import urllib.parse, limpet
        with limpet.open(sys.argv[1], readonly=True) as store:
            store.conversation("alice").messages()  # all is imported while it can be
        os.setgid(65534); os.setuid(65534)
        try:
            with limpet.open(sys.argv[1]) as store:
                store.conversation("alice").append({"role": "user", "content": "x"})
        except limpet.errors.StoreReadOnly as error:
            print("refused:", error)
        with limpet.open(sys.argv[1], readonly=True) as store:
            print("read:", len(store.conversation("alice").messages()))
    """
    out = finish(python(code, filled))
    assert "refused: " in out
    assert "read-only for this user" in out
    assert "read: 200" in out


def test_a_file_that_is_taken_away_is_missed(filled: str) -> None:
    """SQLite would go on writing to what has no name any more, and nobody would ever find that."""
    away = filled + ".away"
    with limpet.open(filled) as store:
        chat = store.conversation("alice")
        chat.append(HELLO)
        for name in (filled, filled + "-wal", filled + "-shm"):
            Path(name).rename(name.replace(filled, away))
        with pytest.raises(limpet.errors.StoreNotFound, match="is no longer there"):
            chat.append(HELLO)
        with pytest.raises(limpet.errors.StoreNotFound, match="is no longer there"):
            chat.length()
        Path(filled).write_bytes(b"")
        with pytest.raises(
            limpet.errors.StoreNotFound, match="is no longer the file that was opened"
        ):
            chat.append(HELLO)
        for name in (filled, filled + "-wal", filled + "-shm"):
            Path(name.replace(filled, away)).rename(name)
        assert chat.append(HELLO) == 202


def test_a_store_opened_for_reading_refuses_writes(filled: str) -> None:
    """With readonly=True."""
    with limpet.open(filled, readonly=True) as store:
        assert store.conversation("alice").length() == 200
        with pytest.raises(limpet.errors.StoreReadOnly, match="read-only"):
            store.conversation("alice").append(HELLO)


# -- threads and processes -------------------------------------------------------------------------


def test_processes_share_a_file_and_lose_nothing(path: str) -> None:
    """Four of them, on one conversation and on their own."""
    code = """
        import sys, limpet
        with limpet.open(sys.argv[1]) as store:
            for number in range(100):
                message = {"role": "user", "content": f"{sys.argv[2]}:{number}"}
                store.conversation("all").append(message)
                store.conversation(sys.argv[2]).append(message)
    """
    for child in [python(code, path, f"p{number}") for number in range(4)]:
        finish(child)
    with limpet.open(path) as store:
        said = [message["content"] for message in store.conversation("all").messages()]
        for name in ("p0", "p1", "p2", "p3"):
            own = [f"{name}:{number}" for number in range(100)]
            assert [text for text in said if text.startswith(name)] == own
            assert store.conversation(name).length() == 100


def test_readers_do_not_wait_for_a_writer(filled: str) -> None:
    """Another process is in the middle of a transaction, and stays there."""
    other = apsw.Connection(filled)
    other.execute("BEGIN IMMEDIATE; DELETE FROM limpet_records")
    with limpet.open(filled, timeout=0) as store:
        assert store.conversation("alice").length() == 200
        assert len(list(store.conversations())) == 2
        with pytest.raises(limpet.errors.StoreBusy, match="held the write lock"):
            store.conversation("alice").append(HELLO)
        other.execute("ROLLBACK")
        assert store.conversation("alice").append(HELLO) == 201
    other.close()


def test_a_batch_fails_only_for_who_spoilt_it(path: str) -> None:
    """The others of the group commit are not punished."""
    backend = SqliteBackend(path)
    huge = Append(key=KEY, body=b"x" * 100, count=1)
    backend._database.writer().limit(apsw.SQLITE_LIMIT_LENGTH, 10_000)

    def write(number: int) -> str:
        body = b"x" * (20_000 if number == 5 else 10)
        try:
            backend.append(Append(key=KEY, body=body, count=1))
        except limpet.StoreError as error:
            return type(error).__name__
        return "fine"

    with ThreadPoolExecutor(12) as pool:
        with backend._group.alone():
            futures = [pool.submit(write, 0)]
            _wait_until(lambda: backend._group._shared.batch_waits)
            for number in range(1, 12):
                futures.append(pool.submit(write, number))
                _wait_until(lambda: len(backend._group._shared.queue) == number)  # noqa: B023
        found = [future.result() for future in futures]
    assert found == ["fine"] * 5 + ["StoreError"] + ["fine"] * 6
    assert backend.append(huge).seq == 12
    backend.close()


def test_an_append_outwaits_its_timeout_behind_no_thread(path: str) -> None:
    """Nor behind a transaction that came in after it had looked whether there is one."""
    backend = SqliteBackend(path, timeout=0.05)
    with ThreadPoolExecutor(1) as pool:
        with backend._database.writing, pytest.raises(limpet.errors.StoreBusy, match="transaction"):
            pool.submit(_add, backend).result(60)
        assert pool.submit(_add, backend).result(60) == 1
    backend.close()


def _wait_until(true: object, tries: int = 3000) -> None:
    for _ in range(tries):
        if true():  # type: ignore[operator]
            return
        threading.Event().wait(0.01)
    pytest.fail("it did not come to pass")


# -- fork and exit ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_store_of_its_own(path: str) -> None:
    """Both go on reading and writing, also with other threads at work while it forks."""
    with limpet.open(path) as store:
        store.conversation("parent").append(HELLO)
        stop = threading.Event()
        with _writing(store, stop):
            children = [_fork(store, f"child{number}") for number in range(5)]
            for child in children:
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            stop.set()
        store.conversation("parent").append(HELLO)
        for number in range(5):
            assert store.conversation(f"child{number}").length() == 20
        facts = {fact.name: fact for fact in store.backend.facts(deep=True)}
        assert facts["integrity"].value == "ok"
        written = store.conversation("thread").length()
        assert written == store.conversation("thread").info().position > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_can_hold_tasks_of_its_own(path: str) -> None:
    """While its parent holds one, which goes on being renewed by the parent alone."""
    with limpet.open(path) as store, store.task("parent", "goal", lease=0.3) as task:
        for number in range(10):
            child = os.fork()
            if not child:
                _run_a_task(store, f"child{number}")
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        task.step("last", int)
        assert [info.id for info in store.tasks(status="done")] == [f"child{n}" for n in range(10)]


def _run_a_task(store: limpet.Store, name: str) -> None:
    try:
        with store.task(name, "goal", lease=0.3) as task:
            threading.Event().wait(0.15)
            task.finish("done")
        store.close()
    except BaseException:  # noqa: BLE001 - a child of pytest must never go on as pytest
        os._exit(1)
    os._exit(0)


class _writing:  # noqa: N801 - reads as a verb
    """Another thread that writes until it is told to stop."""

    def __init__(self, store: limpet.Store, stop: threading.Event) -> None:
        self._thread = threading.Thread(target=self._run, args=(store, stop))

    @staticmethod
    def _run(store: limpet.Store, stop: threading.Event) -> None:
        while not stop.is_set():
            store.conversation("thread").append(HELLO)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()


def _fork(store: limpet.Store, name: str) -> int:
    child = os.fork()
    if child:
        return child
    try:
        for _ in range(20):
            store.conversation(name).append(HELLO)
        ok = store.conversation(name).length() == 20
        store.close()
    except BaseException:  # noqa: BLE001 - a child of pytest must never go on as pytest
        os._exit(1)
    os._exit(0 if ok else 2)


def _watched(child: int) -> int:
    """The exit code of *child*, once it has ended."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _in_a_fork(work: Callable[[], bool]) -> int:
    """Fork; the child ends with 0 if *work* is true there, and does not wait for ever."""
    child = os.fork()
    if child:
        return child
    try:
        signal.alarm(60)
        code = 0 if work() else 2
    except BaseException:  # noqa: BLE001 - a child of pytest must never go on as pytest
        os._exit(1)
    os._exit(code)


def test_two_threads_may_fork_at_once(path: str) -> None:
    """The second comes while the first has prepared the store for its own fork."""
    # In a process of its own: filelock, which some frameworks load, refuses such forks.
    (outcome,) = run(Program("tests.contract.sqlite.test_sqlite:fork_in_two_threads", (path,)))
    assert outcome.acked == ["[0, 0] 3"]


def fork_in_two_threads(path: str) -> None:
    """A program: how both children ended, and how many entries there are then."""
    backend, first, second = SqliteBackend(path), threading.Event(), threading.Event()
    prepare = backend.before_fork

    def prepared() -> None:
        prepare()
        if not first.is_set():
            first.set()
            assert second.wait(60)
            time.sleep(0.1)  # for it to get as far as it does

    def fork_second() -> int:
        assert first.wait(60)
        second.set()
        return _in_a_fork(lambda: _add(backend) > 0)

    backend.before_fork = prepared  # type: ignore[method-assign]
    with ThreadPoolExecutor(3) as pool:
        forks = [pool.submit(fork_second), pool.submit(_in_a_fork, lambda: _add(backend) > 0)]
        codes = [_watched(fork.result(60)) for fork in forks]
        ack(f"{codes} {pool.submit(_add, backend).result(60)}")
    backend.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_nobody_begins_to_read_in_the_middle_of_a_fork(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection would be in two processes."""
    backend, prepared = SqliteBackend(path), threading.Event()
    _add(backend)
    done: list[bool] = []
    prepare = backend.before_fork

    def read() -> object:
        assert prepared.wait(60)
        return backend.bodies(KEY)

    def prepare_and_look() -> None:
        prepare()
        prepared.set()
        time.sleep(0.1)  # for it to get as far as it does
        done.append(reading.done())

    monkeypatch.setattr(backend, "before_fork", prepare_and_look)
    with ThreadPoolExecutor(1) as pool:
        # Submitted before: a pool's own lock may be taken in a fork.
        reading = pool.submit(read)
        assert _watched(_in_a_fork(lambda: _add(backend) == 2)) == 0
        assert done == [False]
        assert reading.result(60) in ([(1, b"x")], [(1, b"x"), (2, b"x")])
    assert _add(backend) == 3
    backend.close()


def _add(backend: SqliteBackend) -> int:
    return backend.append(Append(key=KEY, body=b"x", count=1)).seq


LEFT_OPEN = {
    "a conversation": "store.conversation('x').append(m)",
    "a task": "task = store.task('t', 'goal').__enter__(); task.step('a', int)",
    "a thread": """
import threading
threading.Thread(target=lambda: [store.conversation('y').append(m) for _ in range(50)]).start()
""",
    "an async store": """
import asyncio
other = limpet.open_async(sys.argv[1])
asyncio.run(other.conversation('z').append(m))
""",
    "a loop that was stopped": """
import asyncio
other, loop = limpet.open_async(sys.argv[1]), asyncio.new_event_loop()
task = loop.create_task(other.conversation('z').append(m))
loop.call_later(0.001, loop.stop)
loop.run_forever()
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("left_open", LEFT_OPEN)
def test_a_store_left_open_does_not_hold_up_the_exit(path: str, left_open: str) -> None:
    """Nor does a task under its lease, a thread at work, or an abandoned event loop."""
    before = """
import sys, warnings, limpet
warnings.simplefilter("ignore")
m = {"role": "user", "content": "x"}
store = limpet.open(sys.argv[1])
"""
    code = before + LEFT_OPEN[left_open] + "\nprint('end', flush=True)"
    assert finish(python(code, path, stderr=subprocess.DEVNULL)) == "end\n"
    with limpet.open(path) as store:
        assert [fact for fact in store.backend.facts(deep=True) if not fact.ok] == []


INTERRUPTED = """
import os, random, signal, sys, threading, time, limpet

store = limpet.open(sys.argv[1])
stop = threading.Event()
acknowledged = [0] * 8
armed = False

def interrupt(*_):
    global armed
    if armed:  # once a try, so that the program itself is not struck while it counts
        armed = False
        raise KeyboardInterrupt

def write(writer):
    chat = store.conversation(f"w{writer}")
    while not stop.is_set():
        number = acknowledged[writer]
        chat.append({"role": "user", "content": f"{number}a"},
                    {"role": "assistant", "content": f"{number}b"}, id=f"n{number}")
        acknowledged[writer] += 1

def disturb():
    while not stop.is_set():
        time.sleep(random.uniform(0, 0.004))
        os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, interrupt)
threads = [threading.Thread(target=write, args=(n,)) for n in range(1, 8)]
threads.append(threading.Thread(target=disturb))
for thread in threads:
    thread.start()
for _ in range(int(sys.argv[2]) if sys.argv[2:] else 300):
    try:
        armed = True
        write(0)
    except KeyboardInterrupt:
        pass
stop.set()
for thread in threads:
    thread.join()
for writer in range(8):
    said = [message["content"] for message in store.conversation(f"w{writer}").messages()]
    count = len(said) // 2
    assert said == [f"{n}{x}" for n in range(count) for x in "ab"], said[-5:]
    # The main thread may have been struck between the write and its own count of it.
    assert count - acknowledged[writer] in ((0, 1) if writer == 0 else (0,))
store.close()
print("whole", any(acknowledged))
"""


OPENED_AGAIN = """
import sys, threading, limpet
from limpet.testing.crash import Program, ack, run
from tests.support.paths import DATA

def write(writer):
    for number in range(15):
        with limpet.open(sys.argv[1]) as store:
            store.conversation("all").append({"role": "user", "content": f"{writer}.{number}"})

threads = [threading.Thread(target=write, args=(f"{sys.argv[2]}{n}",)) for n in "abc"]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.slow
def test_opening_and_closing_gives_up_nobodys_locks(path: str) -> None:
    """Threads of four processes open and close one store again and again.

    A process that closes any handle of a file loses all its locks on it, also those of its other
    connections: whoever looks into the file other than through SQLite corrupts it.
    """
    for child in [python(OPENED_AGAIN, path, str(number)) for number in range(4)]:
        finish(child)
    with limpet.open(path) as store:
        assert store.conversation("all").length() == 4 * 3 * 15
        assert [fact for fact in store.backend.facts(deep=True) if not fact.ok] == []


def test_a_store_that_could_not_be_opened_is_no_trouble_to_a_fork(tmp_path: Path) -> None:
    """It was never made, though an error may still hold on to it."""
    with pytest.raises(limpet.errors.StoreNotFound) as caught:
        limpet.open(tmp_path / "nowhere.db", create=False)
    pid = os.fork()
    if not pid:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert caught.value.__traceback__ is not None
