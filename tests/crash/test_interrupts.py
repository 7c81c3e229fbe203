"""Ctrl-C, wherever it strikes: nobody waits for ever, nothing is there twice, no lock is kept."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

import limpet
from limpet.backends import group_commit
from limpet.backends.contract import Append, Key
from limpet.backends.dynamodb import table
from limpet.backends.file.writing import MOST_LOOKS, OpenJournal
from limpet.backends.group_commit import GroupCommit, Ticket
from limpet.backends.postgresql import wakeups
from limpet.backends.url import connect
from limpet.core import leases
from limpet.errors import TaskHeld, TaskNotOpen
from limpet.tasks.task import current_task
from limpet.testing.crash import soak
from tests.contract.sqlite.test_sqlite import INTERRUPTED, finish, python
from tests.support import places
from tests.support.processes import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from limpet.backends.contract import Backend

KEY = Key("default", "note", "one")
SOURCE = str(Path(limpet.__file__).parent)
GROUP = (group_commit.__file__,)
STORES = ["sqlite", "file"]


class Strike:
    """Ctrl-C at the *nth* place where Python looks for one, in the files *where*.

    It does so where a function begins, and where one that is written in C has returned. The file of
    `threading`, among them, is what these call there, and nobody else. *since*:
    the function from whose beginning on they count. *before*: the one that ends the count.
    """

    def __init__(
        self, nth: int, where: tuple[str, ...], since: str | None, before: str | None
    ) -> None:
        self.hit = False
        self._left = nth
        self._where = where
        self._since = since
        self._before = before

    def __enter__(self) -> Self:
        # What another round left behind is not to be collected in this one: Python 3.11 crashes if
        # a profiler raises, and so ends, in a finalizer that runs amid an instruction.
        gc.collect()
        gc.disable()
        sys.setprofile(self._look)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.setprofile(None)
        gc.enable()
        return kind is KeyboardInterrupt

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        code, caller = frame.f_code, frame
        while caller.f_code.co_filename == threading.__file__ in self._where and caller.f_back:
            caller = caller.f_back
        place = caller.f_code.co_filename
        if event not in ("call", "c_return") or not place.startswith(self._where):
            return
        if event == "call" and code.co_name == "__exit__":
            return  # before its first line, nothing of it can help
        if code.co_name == self._since:
            self._since = None
        if code.co_name == self._before:
            sys.setprofile(None)
        elif self._since is None:
            self._left -= 1
        if not self._left and not self.hit:
            self.hit = True
            raise KeyboardInterrupt


def strikes(*where: str, since: str | None = None, before: str | None = None) -> Iterator[Strike]:
    """One at every such place of what is done in a block of each; and one that finds none."""
    for nth in count(1):
        strike = Strike(nth, where, since, before)
        yield strike
        if not strike.hit:
            assert nth > 5, "it should have struck"
            return


def struck(strike: Strike, group: GroupCommit) -> None:
    """A caller who is."""
    with strike:
        group.run("struck")


# Python forgets an interrupt that comes as a generator is thrown away, but says so.
forgotten = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


# -- group commit ----------------------------------------------------------------------------------


class Disk:
    """Commits when the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.began = threading.Event()
        self.done: Counter[Any] = Counter()

    def commit(self, batch: list[Ticket]) -> None:
        """Do what was asked."""
        self.began.set()
        assert self.gate.wait(60)
        for ticket in batch:
            self.done[ticket.work] += 1
            ticket.result = ticket.work

    def commit_one(self, work: Any) -> Any:
        """The same for one."""
        ticket = Ticket(work)
        self.commit([ticket])
        return ticket.outcome()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for callers."""
    with ThreadPoolExecutor(16) as pool:
        yield pool


def grouped(disk: Disk) -> GroupCommit:
    """A group that commits to the disk."""
    return GroupCommit(
        disk.commit, disk.commit_one, threading.RLock(), timeout=60, what="agents.db"
    )


def check(group: GroupCommit, disk: Disk, pool: ThreadPoolExecutor, *others: Any) -> None:
    """All others were served, once, and the group goes on, also for whoever wants it alone."""
    assert pool.submit(group.run, "after").result(60) == "after"
    with group.alone():
        pass
    assert until(lambda: group._shared.grouping < time.monotonic())
    assert group._shared.transactions == 0
    group.close()
    assert disk.done.pop("struck", 1) == 1
    assert disk.done == Counter(["after", *others])


def test_a_lone_caller_that_is_struck_leaves_the_way_free(pool: ThreadPoolExecutor) -> None:
    """As in a notebook: the next cell writes."""
    for strike in strikes(*GROUP):
        disk = Disk()
        disk.gate.set()
        group = grouped(disk)
        assert group.run("first") == "first"
        struck(strike, group)
        check(group, disk, pool, "first")


def test_a_caller_that_is_struck_while_it_waits_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    """On its way into the queue, in it, or when it wakes the next; and leaves no ghost there."""
    monkeypatch.setattr(group_commit, "LOOK_AGAIN", 0.01)
    for strike in strikes(*GROUP):
        disk = Disk()
        group = grouped(disk)
        first = pool.submit(group.run, "first")
        assert disk.began.wait(60)
        others = {"second": pool.submit(group.run, "second")}
        second = pool.submit(struck, strike, group)
        others["task"] = pool.submit(asyncio.run, group.run_async("task"))
        others["third"] = pool.submit(group.run, "third")
        assert until(lambda: second.done() or group._shared.batch_waits)  # noqa: B023 - now
        disk.gate.set()
        second.result(60)
        assert [other.result(60) for other in others.values()] == list(others)
        assert first.result(60) == "first"
        check(group, disk, pool, "first", *others)


@forgotten
def test_an_async_caller_that_is_struck_is_in_nobodys_way(pool: ThreadPoolExecutor) -> None:
    """The loop is over, and the writer perhaps never started: the next caller sees to it."""
    for strike in strikes(*GROUP):
        disk = Disk()
        disk.gate.set()
        group = grouped(disk)
        with closing(asyncio.new_event_loop()) as loop, strike:
            loop.run_until_complete(group.run_async("struck"))
        assert asyncio.run(group.run_async("first")) == "first"
        check(group, disk, pool, "first")


def test_whoever_is_struck_in_a_transaction_leaves_the_way_free(pool: ThreadPoolExecutor) -> None:
    """While it waits for its turn, within it, or as it leaves."""
    for strike in strikes(*GROUP):
        disk = Disk()
        disk.gate.set()
        group = grouped(disk)
        with strike, group.alone():
            pass
        check(group, disk, pool)


# -- stores ----------------------------------------------------------------------------------------


def place(store: str, directory: Path) -> str:
    """A new one, which need not outlast the machine."""
    return f"{store}:{directory}/{store}?durability=normal"


def add(backend: Backend, body: str) -> int:
    """A record that says which it is."""
    return backend.append(Append(key=KEY, body=body.encode(), count=1)).seq


def said(backend: Backend) -> list[str]:
    """What the records say."""
    return [body.decode() for _, body in backend.bodies(KEY, limit=100_000)]


@forgotten
@pytest.mark.parametrize("store", STORES)
def test_a_write_that_is_struck_is_there_once_or_never(
    store: str, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    """And threads of this process, and other processes, write on: no lock is kept."""
    url = place(store, tmp_path)
    with closing(connect(url)) as backend, closing(connect(url)) as other:
        add(backend, "first")
        told, expected = [], ["first"]
        for number, strike in enumerate(strikes(SOURCE)):
            with strike:
                add(backend, f"struck {number}")
                told.append(f"struck {number}")
            pool.submit(add, backend, f"thread {number}").result(60)
            add(other, f"process {number}")
            expected += [f"thread {number}", f"process {number}"]
        found = said(other)
        assert len(set(found)) == len(found)
        assert [body for body in found if not body.startswith("struck")] == expected
        assert set(told) <= set(found)


def test_an_append_to_a_file_that_is_struck_at_any_line_is_there_once(tmp_path: Path) -> None:
    """Tried again under its id, and whatever this process knew of the file by then."""
    code = OpenJournal.append.__code__
    with closing(connect(place("file", tmp_path))) as backend:
        for number in range(MOST_LOOKS + 1):  # from then on the ids are kept in mind
            backend.append(Append(key=KEY, body=b"first", count=1, id=f"first {number}"))
        expected = []
        for nth in count(1):
            left = nth

            def strike(frame: FrameType, event: str, _: object) -> Any:
                nonlocal left
                if event == "line":
                    left -= 1
                    if not left:
                        raise KeyboardInterrupt
                return strike if frame.f_code is code else None

            sys.settrace(strike)
            with suppress(KeyboardInterrupt):
                backend.append(Append(key=KEY, body=b"", count=1, id=f"struck {nth}"))
            sys.settrace(None)
            for what in ("struck", "after"):
                backend.append(Append(key=KEY, body=b"", count=1, id=f"{what} {nth}"))
                expected.append(f"{what} {nth}")
            if left > 0:
                break
        assert nth > 10, "it should have struck"
        assert [one.id for one in backend.read(KEY, after=MOST_LOOKS + 1)] == expected


@forgotten
@pytest.mark.parametrize("store", STORES)
def test_a_read_that_is_struck_is_in_nobodys_way(
    store: str, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    """Neither of readers and writers, nor of whoever closes the store."""
    with closing(connect(place(store, tmp_path))) as backend:
        add(backend, "first")
        for strike in strikes(SOURCE):
            with strike:
                assert said(backend) == ["first"]
            assert pool.submit(said, backend).result(60) == ["first"]
            database = getattr(backend, "_database", None)
            assert database is None or database._busy == 0


def test_a_connection_opened_as_the_strike_came_is_known_again(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    """Not taken for a file that was put in the place of another."""
    with closing(connect(place("sqlite", tmp_path))) as backend:
        for number, strike in enumerate(strikes(SOURCE)):
            backend._database._close_all(patience=0)  # type: ignore[attr-defined]
            with strike:
                add(backend, f"struck {number}")
            assert pool.submit(add, backend, "after").result(60)


@forgotten
@pytest.mark.server
def test_who_waits_for_a_server_and_is_struck_keeps_no_other_from_it(
    request: pytest.FixtureRequest, pool: ThreadPoolExecutor
) -> None:
    """The next one listens in its place."""
    url = f"{places.find('postgresql', request).url}&wakeups=true"
    with closing(connect(url)) as backend:
        for strike in strikes(wakeups.__file__, threading.__file__):
            with strike:
                backend.wait(KEY, after=0, timeout=0.01)
            assert not pool.submit(backend.wait, KEY, after=0, timeout=0.01).result(60)


@forgotten
@pytest.mark.server
def test_a_call_of_dynamodb_that_is_struck_keeps_no_other_from_it(
    request: pytest.FixtureRequest, pool: ThreadPoolExecutor
) -> None:
    """And no fork waits for it."""
    with closing(connect(places.find("dynamodb", request).url)) as backend:
        add(backend, "first")
        for strike in strikes(table.__file__, threading.__file__):
            with strike:
                said(backend)
            assert pool.submit(said, backend).result(60) == ["first"]
            assert backend._table._calls == 0  # type: ignore[attr-defined]


@pytest.mark.soak
@pytest.mark.parametrize("store", STORES)
def test_interrupts_leave_whole_entries_and_no_deadlock(store: str, tmp_path: Path) -> None:
    """Ctrl-C a hundred times, in a program whose main thread and seven others all write."""
    program = python(INTERRUPTED, place(store, tmp_path), str(100 * soak()))
    assert finish(program) == "whole True\n"


# -- leases ----------------------------------------------------------------------------------------


@forgotten
def test_a_task_whose_opening_or_closing_is_struck_is_nobodys(tmp_path: Path) -> None:
    """It is not renewed, and the next cell of the notebook opens it."""
    url = place("sqlite", tmp_path)
    with limpet.open(url) as opened, limpet.open(url) as other:
        keeper = opened.scope.store.leases
        for number, strike in enumerate(strikes(SOURCE)):
            id_ = f"t{number}"  # a new one: whoever opens one reads all of it
            task = opened.task(id_, "Fetch them")
            with strike, task:
                pass
            assert keeper._held == []
            with pytest.raises(TaskNotOpen):
                current_task()
            with other.task(id_, "Fetch them"), pytest.raises(TaskHeld):
                opened.task(id_).__enter__()
            with task:
                pass


@forgotten
def test_a_struck_process_goes_on_renewing_its_leases(tmp_path: Path) -> None:
    """Or another process would take over, and run the same step at the same time."""
    with limpet.open(place("sqlite", tmp_path)) as opened:
        for strike in strikes(leases.__file__, threading.__file__):
            with strike, opened.task("struck", "Fetch them"):
                pass
            with opened.task("kept", "Fetch them", lease=0.03) as task:
                held = task._core._live.held()
                first = held.lease.until
                assert until(lambda: held.lease.until > first)  # noqa: B023 - now


@forgotten
def test_a_save_that_is_struck_leaves_the_state_usable(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    """Here, in other threads, and without a word about a save within a save."""
    with limpet.open(place("sqlite", tmp_path)) as opened:
        state = opened.state("s")
        state.save({"turn": 0})
        for number, strike in enumerate(strikes(SOURCE)):
            with strike:
                state.save({"turn": number, "struck": True})
            assert pool.submit(state.save, {"turn": number}).result(60)
            assert state.load() == {"turn": number}
