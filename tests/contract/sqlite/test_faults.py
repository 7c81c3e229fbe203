"""Disks that are full or broken: a typed error, nothing lost or half there, and on it goes."""

import asyncio
import os
import resource
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

import limpet
from limpet.backends.sqlite.backend import SqliteBackend
from limpet.testing.crash import TALK, Program, Talk, ack, run, turn, turns_of
from limpet.testing.faults import Faults


@pytest.fixture
def disk() -> Iterator[Faults]:
    """A disk that fails on demand."""
    with Faults() as disk:
        yield disk


@pytest.fixture
def store(disk: Faults, tmp_path: Path) -> Iterator[limpet.Store]:
    """A store on that disk, with a few turns in it and a log that is copied back often."""
    with limpet.open(tmp_path / "agents.db", vfs=disk.vfs) as store:
        backend(store)._database.writer().execute("PRAGMA wal_autocheckpoint = 25")
        for number in range(1, 4):
            say(store, number)
        yield store
        disk.disarm()  # SQLite closes a store on a failing disk as well, but apsw would say so


def backend(store: limpet.Store | limpet.AsyncStore) -> SqliteBackend:
    """The store's backend, to look inside."""
    assert isinstance(store.backend, SqliteBackend)
    return store.backend


def say(store: limpet.Store, number: int, writer: str = "ann", id: str | None = None) -> int:
    """Append one turn."""
    return store.conversation(TALK).append(*turn(writer, number), id=id)


def said(store: limpet.Store, writer: str = "ann") -> int:
    """How many turns are there, all of them whole and in order; and the file is in order too."""
    assert [fact for fact in store.backend.facts(deep=True) if not fact.ok] == []
    return turns_of(store)[writer]


def say_until_it_fails(store: limpet.Store) -> tuple[int, Exception]:
    """How many turns were acknowledged in all, and what ended that."""
    number = said(store)
    try:
        while number < 1000:
            say(store, number + 1)
            number += 1
    except limpet.LimpetError as error:
        return number, error
    raise AssertionError("nothing failed")


def reopened(store: limpet.Store) -> limpet.Store:
    """The same file as another process sees it, through no faulty disk."""
    return limpet.open(backend(store).path)


# -- one writer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [*range(12), 17, 23, 37, 64, 101, 222])
def test_a_disk_that_fills_up_at_any_write_loses_nothing(
    disk: Faults, store: limpet.Store, after: int
) -> None:
    """The call raises, what was acknowledged stays, and with room again the same store goes on."""
    disk.arm(error="full", where="journal", after=after)
    acked, error = say_until_it_fails(store)
    assert isinstance(error, limpet.errors.StoreFull)
    assert said(store) == acked
    disk.disarm()
    say(store, acked + 1)
    with reopened(store) as other:
        assert said(other) == acked + 1


@pytest.mark.parametrize("after", [*range(12), 17, 37, 101])
def test_a_write_that_fails_raises_store_unavailable_and_loses_nothing(
    disk: Faults, store: limpet.Store, after: int
) -> None:
    """An I/O error is not a full disk: waiting for room would not help."""
    disk.arm(error="ioerr", where="journal", after=after)
    acked, error = say_until_it_fails(store)
    assert isinstance(error, limpet.StoreUnavailable)
    assert said(store) == acked
    disk.disarm()
    say(store, acked + 1)
    with reopened(store) as other:
        assert said(other) == acked + 1


@pytest.mark.parametrize("error", ["ioerr", "full"])
@pytest.mark.parametrize("after", range(8))
def test_an_append_whose_sync_failed_can_be_repeated_under_its_id(
    disk: Faults, store: limpet.Store, after: int, error: Literal["ioerr", "full"]
) -> None:
    """Nobody knows whether it is there, and that is said; with the same id it is there once."""
    no_checkpoints(store)
    disk.arm(error=error, op="sync", where="journal", after=after)
    for number in range(4, 4 + after):
        say(store, number, id=f"{number}")
    before = backend(store)._database.writer()
    with pytest.raises(limpet.StoreUnavailable, match="may be there") as caught:
        say(store, 4 + after, id=f"{4 + after}")
    assert "not kept" not in str(caught.value)
    disk.disarm()
    assert backend(store)._database.writer() is not before  # what that one knows is not trusted
    say(store, 4 + after, id=f"{4 + after}")
    assert said(store) == 4 + after


def test_a_transaction_whose_sync_failed_is_there_once_when_it_is_repeated(
    disk: Faults, store: limpet.Store
) -> None:
    """With the rows of the caller's own; what the connections then know is not trusted either."""
    no_checkpoints(store)

    def pay(connection: Any) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS paid (step TEXT)")
        connection.execute("INSERT INTO paid VALUES ('pay')")

    with store.task("bill", goal="Pay") as task:
        before = backend(store)._database.writer()
        disk.arm(error="ioerr", op="sync", where="journal")
        with pytest.raises(limpet.StoreUnavailable, match="may be there"):
            task.transaction("pay", pay)
        assert backend(store)._database.writer() is not before
        disk.disarm()
        task.transaction("pay", pay)
        assert list(task.results) == ["pay"]
    with backend(store)._database.reader() as connection:
        assert connection.execute("SELECT count(*) FROM paid").get == 1


def test_an_error_of_the_disk_keeps_what_sqlite_said_as_its_cause(
    disk: Faults, store: limpet.Store
) -> None:
    """Whoever looks into it finds the driver's own words."""
    disk.arm(error="full", where="journal")
    with pytest.raises(limpet.errors.StoreFull, match=r"no room left .* Free some space") as caught:
        say(store, 4)
    assert "disk is full" in str(caught.value.__cause__)


def test_reading_goes_on_while_the_disk_is_full(disk: Faults, store: limpet.Store) -> None:
    """An agent that cannot write can still look up what it knew."""
    disk.arm(error="full")
    with pytest.raises(limpet.errors.StoreFull):
        say(store, 4)
    assert said(store) == 3


def test_a_log_that_cannot_be_copied_into_the_database_loses_nothing(
    disk: Faults, store: limpet.Store
) -> None:
    """The log keeps what the database has no room for."""
    # apsw raises here what SQLite would pass over: the append stands although its call raises.
    disk.arm(error="full", where="database")
    acked, _ = say_until_it_fails(store)
    assert said(store) == acked + 1
    disk.disarm()
    say(store, acked + 2)
    with reopened(store) as other:
        assert said(other) == acked + 2


def test_a_new_store_on_a_full_disk_raises_and_can_be_created_later(
    disk: Faults, tmp_path: Path
) -> None:
    """Whatever is left of the attempt is no hindrance."""
    for after in range(25):  # a new store takes a few writes more
        disk.arm(error="full", after=after)
        with pytest.raises(limpet.errors.StoreFull):
            limpet.open(tmp_path / f"{after}.db", vfs=disk.vfs)
        disk.disarm()
        with limpet.open(tmp_path / f"{after}.db", vfs=disk.vfs) as store:
            say(store, 1)
            assert said(store) == 1


# -- a task ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", range(0, 24, 3))
def test_a_task_goes_on_when_there_is_room_again(
    disk: Faults, store: limpet.Store, after: int
) -> None:
    """The step that could not be stored runs again; those before it do not."""
    ran: list[str] = []
    with pytest.raises(limpet.errors.StoreFull):
        run_steps(store, ran, 100, lambda: disk.arm(error="full", where="journal", after=after))
    disk.disarm()
    # The lease could not be given back either, and runs to its end.
    stored, unstored = ran[:-1], ran[-1]
    assert list(store.task("report").checkpoint().results) == stored
    run_steps(store, ran, len(stored) + 3)
    assert Counter(ran) == Counter(names(len(stored) + 3)) + Counter([unstored])
    assert list(store.task("report").checkpoint().results) == names(len(stored) + 3)


def run_steps(
    store: limpet.Store, ran: list[str], count: int, begun: Callable[[], object] = lambda: None
) -> None:
    """Run steps of a task, each of which notes in *ran* that it did."""
    with store.task("report", "Count", lease=0.5, wait=10) as task:
        begun()
        for name in names(count):
            task.step(name, ran.append, name)


def names(count: int) -> list[str]:
    """The names of the first steps."""
    return [f"step-{number}" for number in range(count)]


# -- many callers in one commit --------------------------------------------------------------------


@contextmanager
def gathered(store: limpet.Store, calls: list[Callable[[], Any]]) -> Iterator[list[Future[Any]]]:
    """The calls, in threads of their own, gathered behind a commit that waits for this block."""
    group = backend(store)._group
    with ThreadPoolExecutor(len(calls)) as threads, group.alone():
        futures = [threads.submit(calls[0])]
        wait_until(lambda: group._shared.batch_waits)
        futures += [threads.submit(call) for call in calls[1:]]
        # The writer has the first and waits for the lock; the others are in the queue.
        wait_until(lambda: len(group._shared.queue) == len(calls) - 1)
        yield futures


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what other threads are about to do."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def calls_by(store: limpet.Store, writers: list[str]) -> list[Callable[[], Any]]:
    """One append by each writer."""
    return [partial(say, store, 1, writer) for writer in writers]


WRITERS = [f"writer-{number}" for number in range(20)]


Fault: TypeAlias = tuple[Literal["full", "ioerr"], Literal["write", "sync"]]

FAULTS: dict[Fault, type[limpet.StoreError]] = {
    ("full", "write"): limpet.errors.StoreFull,
    ("ioerr", "write"): limpet.StoreUnavailable,
    ("ioerr", "sync"): limpet.StoreUnavailable,
}


@pytest.mark.slow
@pytest.mark.parametrize("after", range(0, 60, 4))
@pytest.mark.parametrize("fault", FAULTS, ids="-".join)
def test_each_of_many_threads_is_told_the_truth_about_its_own_append(
    disk: Faults, store: limpet.Store, after: int, fault: Fault
) -> None:
    """Those told that it is stored find it there; those told that it failed find nothing of it."""
    no_checkpoints(store)
    with gathered(store, calls_by(store, WRITERS)) as futures:
        disk.arm(error=fault[0], op=fault[1], where="journal", after=after)
    errors = [future.exception() for future in futures]
    disk.disarm()
    check_answers(store, errors, fault)


@pytest.mark.slow
@pytest.mark.parametrize("after", range(0, 60, 4))
@pytest.mark.parametrize("fault", FAULTS, ids="-".join)
def test_each_of_many_asyncio_tasks_is_told_the_truth_about_its_own_append(
    disk: Faults, store: limpet.Store, after: int, fault: Fault
) -> None:
    """The same for those who share a commit on an event loop."""

    async def say_all() -> list[int | BaseException]:
        async with limpet.open_async(backend(store).path, vfs=disk.vfs) as shared:
            no_checkpoints(shared)
            chat = shared.conversation(TALK)
            disk.arm(error=fault[0], op=fault[1], where="journal", after=after)
            calls = [chat.append(*turn(writer, 1)) for writer in WRITERS]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            disk.disarm()
            return answers

    answers = asyncio.run(say_all())
    errors = [answer if isinstance(answer, BaseException) else None for answer in answers]
    check_answers(store, errors, fault)


def check_answers(store: limpet.Store, errors: list[BaseException | None], fault: Fault) -> None:
    """Each writer has one turn stored, or an error of its own; and the store goes on.

    Of one whose sync has failed nobody knows; but it is not there twice.
    """
    raised = [error for error in errors if error is not None]
    assert {type(error) for error in raised} <= {FAULTS[fault]}
    assert len({id(error) for error in raised}) == len(raised)
    stored = turns_of(store)
    known = fault[1] == "write"
    for writer, error in zip(WRITERS, errors, strict=True):
        assert stored[writer] in ({1} if error is None else {0} if known else {0, 1})
    say(store, 4)
    assert said(store) == 4


def no_checkpoints(store: limpet.Store | limpet.AsyncStore) -> None:
    """A failing one is SQLite's own affair, but apsw would raise its error from the append."""
    backend(store)._database.writer().execute("PRAGMA wal_autocheckpoint = 0")


def test_a_fault_that_passes_in_a_shared_commit_harms_nobody(
    disk: Faults, store: limpet.Store
) -> None:
    """A commit for many that failed is tried again for each, and nothing is there twice."""
    with gathered(store, calls_by(store, WRITERS)) as futures:
        disk.arm(error="full", where="journal", after=6, once=True)
    assert [future.exception() for future in futures] == [None] * len(WRITERS)
    assert disk.failures == 1
    stored = turns_of(store)
    assert [stored[writer] for writer in WRITERS] == [1] * len(WRITERS)


# -- real limits -----------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "tiny"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)  # noqa: S607 - wherever it is


def test_a_really_full_disk_loses_nothing_and_goes_on_when_there_is_room(tiny: Path) -> None:
    """The kernel's own word for it: until it is full, while it is, and after."""
    ballast = tiny / "ballast"
    ballast.write_bytes(bytes(300_000))
    with limpet.open(tiny / "agents.db") as store:
        acked, error = say_until_it_fails(store)
        assert isinstance(error, limpet.errors.StoreFull)
        assert turns_of(store)["ann"] == acked
        assert acked > 10
        ballast.unlink()
        say(store, acked + 1)
        assert said(store) == acked + 1
    with limpet.open(tiny / "agents.db") as store:
        assert said(store) == acked + 1


def test_a_store_on_a_really_full_disk_can_be_closed_and_opened_again(tiny: Path) -> None:
    """A restart on a full disk loses nothing either, whether or not it gets to open the store."""
    ballast = tiny / "ballast"
    ballast.write_bytes(bytes(300_000))
    with limpet.open(tiny / "agents.db") as store:
        acked, _ = say_until_it_fails(store)
    fill(tiny / "rest")
    try:
        with limpet.open(tiny / "agents.db") as store:
            assert turns_of(store)["ann"] == acked
    except limpet.StoreError as error:
        print("opening on a full disk:", repr(error))
    ballast.unlink()
    with limpet.open(tiny / "agents.db") as store:
        assert said(store) == acked


def fill(path: Path) -> None:
    """Leave no room at all."""
    try:
        with path.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(512))
    except OSError:
        return


def test_one_append_too_large_for_the_disk_does_not_fail_the_small_ones_beside_it(
    tiny: Path,
) -> None:
    """In one commit: the large one is told that there is no room, the others are stored."""
    with limpet.open(tiny / "agents.db") as store:
        say(store, 1)
        large = {"role": "user", "content": os.urandom(800_000).hex()}
        calls = [*calls_by(store, WRITERS), lambda: store.conversation("large").append(large)]
        with gathered(store, calls) as futures:
            pass
        assert [future.exception() for future in futures[:-1]] == [None] * len(WRITERS)
        assert isinstance(futures[-1].exception(), limpet.errors.StoreFull)
        assert store.conversation("large").messages() == []
        assert said(store) == 1


@pytest.mark.slow
def test_a_limit_on_the_size_of_files_loses_nothing(tmp_path: Path) -> None:
    """What a service manager or a shell's ulimit sets; needs no root."""
    talk = Talk(f"sqlite:{tmp_path}/agents.db")
    (outcome,) = run(Program(f"{__name__}:talk_under_a_limit", (talk.url, "300000")))
    assert outcome.acked.pop() == "StoreFull"
    talk.learn([outcome])
    assert talk.acked["ann"] > 10
    with limpet.open(talk.url) as store:
        assert talk.check(store) == 0
        assert said(store) in (talk.acked["ann"], talk.acked["ann"] + 1)


def talk_under_a_limit(url: str, size: str) -> None:
    """A program for the test above."""
    with limpet.open(url) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))
        try:
            for number in range(1, 100_000):
                say(store, number)
                ack(f"ann {number}")
        except limpet.StoreError as error:
            ack(type(error).__name__)
