"""All of a store elsewhere, also while it is in use, and back in the place of what was there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

import limpet
from limpet.errors import (
    InvalidURL,
    NotAStore,
    StoreBusy,
    StoreCorrupt,
    StoreExists,
    StoreNotFound,
)
from limpet.transfer.backup import backup, restore
from tests.support import places
from tests.support.commands import run
from tests.support.paths import DATA

if TYPE_CHECKING:
    from tests.support.places import Where

where = places.where

#: A process that appends messages, says so, and dies.
DYING = """
import os, signal, sys
import limpet
store = limpet.open(sys.argv[1])
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    store.conversation("alice").append({"role": "user", "content": f"Number {number}. " * 20})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the reader's own setting leaks in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIMPET_URL", raising=False)


def write(url: str, begin: int, end: int) -> None:
    """Append the messages from *begin* up to *end*."""
    with limpet.open(url) as store:
        for number in range(begin, end):
            store.conversation("alice").append(message(number))


def write_and_die(url: str, begin: int, end: int) -> None:
    """The same in a process that is killed then, and leaves its log."""
    command = [sys.executable, "-c", DYING, url, str(begin), str(end)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


def message(number: int) -> dict[str, str]:
    """One of them."""
    return {"role": "user", "content": f"Number {number}. " * 20}


def numbers(url: str) -> list[int]:
    """Which messages are in a store."""
    with limpet.open(url, create=False) as store:
        found = store.conversation("alice").messages()
    return [int(one["content"].split()[1][:-1]) for one in found]


def stores() -> list[str]:
    """What is in this directory; whoever only reads a SQLite store leaves an empty log."""
    names = sorted(path.name for path in Path().iterdir())
    return [name for name in names if not name.endswith(("-wal", "-shm"))]


# -- everywhere ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["backup.db", "file:backup"])
def test_every_store_is_backed_up_and_restored(where: Where, form: str, tmp_path: Path) -> None:
    """Into a file or a directory, and from there to where there was none, or it is empty."""
    with limpet.open(where.url) as store:
        store.conversation("alice", labels={"team": "red"}).append(message(1), message(2))
        with store.task("report", goal="Count") as task:
            task.step("fetch", lambda: [1, 2])
        store.as_tenant("acme").state("robot", type="arm").save({"at": 1})
        saved = backup(where.url, form)  # while it is open
        assert saved.journals == 3
        store.conversation("alice").append(message(3))
    restore(form, "restored.db")
    restore(form, "file:restored")
    for url in (form, "restored.db", "file:restored"):
        assert numbers(url) == [1, 2]
        with limpet.open(url) as store:
            assert [info.labels for info in store.conversations()] == [{"team": "red"}]
            assert store.as_tenant("acme").state("robot", type="arm").load() == {"at": 1}
            with store.task("report", goal="Count") as task:
                assert task.step("fetch", lambda: pytest.fail("It has run.")) == [1, 2]
    left = {path.name for path in tmp_path.iterdir()} - {"agents.db", "agents"}
    assert left == {form.removeprefix("file:"), "restored.db", "restored"}


@pytest.mark.parametrize("name", [pytest.param("postgresql", marks=pytest.mark.server)])
def test_a_servers_store_is_restored_only_where_it_is_empty(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Nothing on a server is overwritten: there is no name to keep it under."""
    url = places.find(name, request).url
    write("backup.db", 1, 4)
    restore("backup.db", url)
    assert numbers(url) == [1, 2, 3]
    with pytest.raises(StoreExists, match="Name an empty place"):
        restore("backup.db", url, replace=True)


# -- backup ----------------------------------------------------------------------------------------


def test_a_backup_is_one_moment_of_a_store_that_is_written_to() -> None:
    """Nobody waits, and what two journals have in common is the same in both."""
    stop, written = threading.Event(), 0
    with limpet.open("agents.db") as store:

        def work() -> None:
            nonlocal written
            while not stop.is_set():
                written += 1
                store.conversation("first").append(message(written))
                store.conversation("second").append(message(written))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for number in range(5):
                before = written
                backup("agents.db", f"backup-{number}.db")
                with limpet.open(f"backup-{number}.db", readonly=True) as other:
                    first, second = (other.conversation(i).length() for i in ("first", "second"))
                assert first - second in (0, 1)
                assert first >= before - 1
        finally:
            stop.set()
            thread.join()


def test_a_backup_has_what_is_only_in_the_log_of_a_killed_process() -> None:
    """The file alone, copied by hand, has less."""
    write_and_die("agents.db", 0, 50)
    assert Path("agents.db-wal").stat().st_size
    run("--store", "agents.db", "backup", "backup.db")
    assert numbers("backup.db") == list(range(50))


def test_a_backup_has_the_tables_of_the_user_and_is_its_owners_only() -> None:
    """They are in the same file, so that they are committed together."""
    write("agents.db", 1, 3)
    with apsw.Connection("agents.db") as connection:
        connection.execute("CREATE TABLE bookings (room); INSERT INTO bookings VALUES ('blue')")
    backup("agents.db", "backup.db")
    assert apsw.Connection("backup.db").execute("SELECT room FROM bookings").get == "blue"
    assert Path("backup.db").stat().st_mode & 0o777 == 0o600


def test_an_earlier_backup_is_replaced_only_when_that_is_asked_for() -> None:
    """And nothing of it is left then."""
    write("agents.db", 1, 3)
    backup("agents.db", "backup.db")
    write("agents.db", 3, 5)
    refused = run("--store", "agents.db", "backup", "backup.db", code=1).stderr
    assert "is there already, and was left alone" in refused
    assert "--replace" in refused
    assert numbers("backup.db") == [1, 2]
    shown = run("--store", "agents.db", "backup", "backup.db", "--replace").stdout
    assert shown.startswith("sqlite:backup.db: 1 journal, 4 entries (")
    assert numbers("backup.db") == [1, 2, 3, 4]
    assert stores() == ["agents.db", "backup.db"]
    run("--store", "agents.db", "backup", "file:backup")
    run("--store", "agents.db", "backup", "file:backup", "--replace")
    assert stores() == ["agents.db", "backup", "backup.db"]


def test_a_damaged_store_makes_no_backup_and_leaves_the_last_one() -> None:
    """A backup that lacks something must not pass for one, least of all in place of a whole one."""
    write("agents.db", 0, 200)
    backup("agents.db", "backup.db")
    content = bytearray(Path("agents.db").read_bytes())
    middle = content.index(b"Number 100.") // 4096 * 4096
    content[middle : middle + 4096] = os.urandom(4096)
    Path("agents.db").write_bytes(content)
    with pytest.raises(StoreCorrupt, match="limpet salvage"):
        backup("agents.db", "backup.db", replace=True)
    assert numbers("backup.db") == list(range(200))
    assert stores() == ["agents.db", "backup.db"]


def test_a_record_that_has_changed_makes_no_backup() -> None:
    """The pages are sound, and what is in one is not what was written."""
    write("agents.db", 0, 20)
    write("file:state", 0, 20)
    damaged = Path("agents.db").read_bytes().replace(b"Number 10.", b"Number 99.", 1)
    Path("agents.db").write_bytes(damaged)
    journal = Path("state/default/conversation/alice.jsonl")
    journal.write_bytes(journal.read_bytes().replace(b"Number 10.", b"Number 99.", 1))
    for url in ("agents.db", "file:state"):
        for target in ("backup.db", "file:backup"):
            with pytest.raises(StoreCorrupt):
                backup(url, target)
    assert stores() == ["agents.db", "state"]


def test_a_backup_of_nothing_or_of_something_else_says_so() -> None:
    """And makes nothing."""
    with pytest.raises(StoreNotFound):
        backup("agents.db", "backup.db")
    apsw.Connection("other.db").execute("CREATE TABLE t (x)")
    with pytest.raises(NotAStore, match="no Limpet store in it"):
        backup("other.db", "backup.db")
    write("agents.db", 1, 2)
    with pytest.raises(InvalidURL, match="is the store itself"):
        backup("agents.db", "sqlite:agents.db", replace=True)
    assert stores() == ["agents.db", "other.db"]


# -- restore ---------------------------------------------------------------------------------------


def test_a_restored_store_is_what_was_backed_up_whatever_a_killed_process_left() -> None:
    """By hand, with cp, its log would be read into the file: neither the one nor the other."""
    write("agents.db", 0, 100)
    backup("agents.db", "backup.db")
    write("agents.db", 100, 200)
    write_and_die("agents.db", 200, 300)
    assert Path("agents.db-wal").stat().st_size
    shown = run("--store", "agents.db", "restore", "backup.db", "--replace").stdout
    assert "The store that was there is now " in shown
    assert numbers("agents.db") == list(range(100))
    run("--store", "agents.db", "doctor")
    assert numbers("agents.db.replaced-1") == list(range(300))  # with its log
    assert numbers("backup.db") == list(range(100))


def test_a_log_that_lies_where_a_store_is_restored_is_moved_away() -> None:
    """Somebody has deleted the file, and only that."""
    write("agents.db", 0, 20)
    backup("agents.db", "backup.db")
    write_and_die("agents.db", 20, 40)
    Path("agents.db").unlink()
    restore("backup.db", "agents.db")
    assert numbers("agents.db") == list(range(20))
    assert Path("agents.db.replaced-1-wal").stat().st_size


def test_a_store_that_is_there_is_not_overwritten_unasked() -> None:
    """The command says what to do; each that was replaced is kept."""
    write("backup.db", 1, 3)
    write("agents.db", 3, 5)
    write("file:state", 3, 5)
    for url in ("agents.db", "file:state"):
        refused = run("--store", url, "restore", "backup.db", code=1).stderr
        assert "--replace" in refused
        assert numbers(url) == [3, 4]
        for _ in range(2):
            run("--store", url, "restore", "backup.db", "--replace")
            assert numbers(url) == [1, 2]
    assert numbers("agents.db.replaced-1") == numbers("file:state.replaced-1") == [3, 4]
    assert numbers("agents.db.replaced-2") == numbers("file:state.replaced-2") == [1, 2]


def test_a_store_in_use_is_not_replaced() -> None:
    """The program would go on with a file that has lost its name."""
    write("backup.db", 1, 3)
    for url in ("agents.db", "file:state"):
        with limpet.open(url) as store:
            store.conversation("alice").append(message(7))
            with store.task("report", goal="Count"), pytest.raises(StoreBusy, match="in use"):
                restore("backup.db", url, replace=True)
            assert store.conversation("alice").length() == 1
        restore("backup.db", url, replace=True)
        assert numbers(url) == [1, 2]


def test_a_damaged_backup_changes_nothing() -> None:
    """It is read to its end before anything is replaced."""
    write("agents.db", 3, 5)
    write("backup.db", 0, 20)
    damaged = Path("backup.db").read_bytes().replace(b"Number 10.", b"Number 99.", 1)
    Path("backup.db").write_bytes(damaged)
    with pytest.raises(StoreCorrupt):
        restore("backup.db", "agents.db", replace=True)
    with pytest.raises(StoreNotFound):
        restore("missing.db", "agents.db", replace=True)
    assert numbers("agents.db") == [3, 4]
    assert stores() == ["agents.db", "backup.db"]


def test_a_damaged_store_is_replaced() -> None:
    """That is what backups are for."""
    write("backup.db", 1, 3)
    Path("agents.db").write_bytes(os.urandom(10_000))
    restore("backup.db", "agents.db", replace=True)
    assert numbers("agents.db") == [1, 2]


def test_a_backup_of_an_older_release_is_restored() -> None:
    """As it is: the program that opens it first upgrades it."""
    shutil.copy(DATA / "store-0.1.0.db", "backup.db")
    restore("backup.db", "agents.db")
    with limpet.open("agents.db", tenant="acme") as store:
        assert list(store.conversations())


def test_programs_are_told_what_was_written() -> None:
    """Where, and how much."""
    write("agents.db", 1, 3)
    shown = json.loads(run("--store", "agents.db", "backup", "backup.db", "--json").stdout)
    assert shown.pop("size") > 0
    assert shown == {"url": "sqlite:backup.db", "journals": 1, "entries": 2, "replaced": None}


def test_a_log_that_a_killed_process_left_is_not_read_into_a_backup() -> None:
    """One that is put in place by hand stays what it is, and the error says what to do."""
    write("agents.db", 0, 10)
    backup("agents.db", "monday.db")
    write_and_die("agents.db", 10, 40)
    shutil.copy("monday.db", "agents.db")
    before = Path("agents.db").read_bytes()
    with pytest.raises(StoreCorrupt, match=r"agents\.db-wal does not belong to"):
        limpet.open("agents.db")
    run("--store", "agents.db", "doctor", code=1)
    assert Path("agents.db").read_bytes() == before
    for ending in ("-wal", "-shm"):
        Path(f"agents.db{ending}").unlink()
    assert numbers("agents.db") == list(range(10))
