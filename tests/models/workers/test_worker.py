"""Tests of workers: what they find, how much they run at once, how they end."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

import limpet
from limpet import AsyncTask, Registry, Store, StoreUnavailable, Task
from limpet.core.ids import make_key
from limpet.errors import StoreCorrupt, UnknownKind
from limpet.testing.proxy import Proxy
from limpet.workers.worker import Worker
from tests.support import places
from tests.support.processes import mortal, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.backends.contract import Page

#: The command as it was installed.
LIMPET = str(Path(sys.executable).parent / "limpet")
POLL = 0.05

where = places.where


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    urls = {"memory": "memory:", "sqlite": f"sqlite:{tmp_path}/agents.db"}
    with limpet.open(urls[request.param]) as opened:
        yield opened


@pytest.fixture
def registry() -> Registry:
    """An empty registry."""
    return Registry()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """What a worker has logged so far."""
    caplog.set_level(logging.INFO, "limpet.workers.worker")
    return lambda: "\n".join(record.getMessage() for record in caplog.records)


class At:
    """A worker at work in a thread."""

    def __init__(self, registry: Registry, store: Store, **options: Any) -> None:
        self.worker = Worker(registry, store, **{"poll": POLL, **options})
        self.left: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.left = self.worker.run()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> list[str]:
        """Let it end; what it has left."""
        self.worker.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.left


def work(registry: Registry, store: Store, **options: Any) -> list[str]:
    """Let a worker do what there is to do."""
    return Worker(registry, store, **{"poll": POLL, **options}).run(until_idle=True)


def statuses(store: Store) -> dict[str, str]:
    """How each task stands."""
    return {info.id: info.status for info in store.tasks()}


def is_so(store: Store, task_id: str, status: str) -> Callable[[], bool]:
    """Whether the task stands so by now."""
    return lambda: bool(store.task(task_id).info().status == status)


# -- what it finds ---------------------------------------------------------------------------------


def test_it_runs_what_was_submitted(registry: Registry, store: Store) -> None:
    """Plain functions and async ones, side by side."""

    @registry.task("plain")
    def plain(task: Task) -> Any:
        return task.step("add", sum, task.input)

    @registry.task("async")
    async def later(task: AsyncTask) -> Any:
        return await task.step("add", sum, task.input)

    for kind in ("plain", "async"):
        for number in range(10):
            store.submit(kind, f"{kind}-{number}", "Add up", input=[number, 1])
    assert work(registry, store) == []
    assert set(statuses(store).values()) == {"done"}
    outcomes = {info.id: store.task(info.id).checkpoint().outcome for info in store.tasks()}
    assert outcomes == {f"{kind}-{n}": n + 1 for kind in ("plain", "async") for n in range(10)}


def test_it_leaves_alone_what_is_not_of_its_kinds(registry: Registry, store: Store) -> None:
    """Nor what was not submitted at all."""
    registry.task("mine")(lambda task: None)
    registry.task("not-today")(lambda task: None)
    for kind in ("mine", "not-today", "unknown"):
        store.submit(kind, kind, "Do it")
    with store.task("by-hand", "Do it"):
        pass
    work(registry, store, kinds=["mine"])
    assert statuses(store) == {
        "by-hand": "open",
        "mine": "done",
        "not-today": "open",
        "unknown": "open",
    }


def test_it_works_for_one_tenant(registry: Registry, tmp_path: Path) -> None:
    """Those of others are for others' workers."""
    registry.task("job")(lambda task: None)
    url = f"sqlite:{tmp_path}/agents.db"
    with limpet.open(url, tenant="acme") as acme, limpet.open(url, tenant="bond") as bond:
        acme.submit("job", "t", "Do it")
        bond.submit("job", "t", "Do it")
        work(registry, acme)
        assert (statuses(acme), statuses(bond)) == ({"t": "done"}, {"t": "open"})


def test_kinds_that_it_cannot_run_are_refused(registry: Registry, store: Store) -> None:
    """A worker that waits for what never comes is worse than none."""
    with pytest.raises(ValueError, match="registry is empty"):
        Worker(registry, store)
    registry.task("job")(print)
    with pytest.raises(UnknownKind, match="'jobs'; it has: 'job'"):
        Worker(registry, store, kinds=["jobs"])
    with pytest.raises(ValueError, match="at least 1"):
        Worker(registry, store, concurrency=0)


@pytest.mark.parametrize(
    "option",
    [
        {"poll": 0},
        {"poll": math.nan},
        {"drain": -1},
        {"concurrency": 0},
        {"give_up_after": 0},
    ],
    ids=lambda option: next(iter(option)),
)
def test_what_would_never_look_never_end_or_never_rest_is_refused(
    registry: Registry, store: Store, option: dict[str, Any]
) -> None:
    """Where it is given, and not in the middle of the night."""
    registry.task("job")(pytest.fail)
    with pytest.raises(ValueError, match=r"over 0|at least 1"):
        Worker(registry, store, **option)


@pytest.mark.slow
def test_more_tasks_than_fit_a_page_are_all_run(registry: Registry, store: Store) -> None:
    """Each once, though only a few are looked at in a time."""
    calls: Counter[str] = Counter()
    registry.task("job")(lambda task: calls.update([task.id]))
    for number in range(230):
        store.submit("job", f"t-{number:03}", "Do it")
    work(registry, store, concurrency=8)
    assert calls == {f"t-{number:03}": 1 for number in range(230)}


def test_what_a_task_submits_is_run_too(registry: Registry, store: Store) -> None:
    """It is not idle while a run may make work."""

    @registry.task("job")
    def more(task: Task) -> None:
        if task.input:
            task.step("next", lambda: store.submit("job", f"t{task.input}", "Go on", input=0).id)

    store.submit("job", "t", "Begin", input=1)
    work(registry, store)
    assert statuses(store) == {"t": "done", "t1": "done"}


@pytest.mark.slow
def test_a_sleeping_task_is_woken(registry: Registry, store: Store) -> None:
    """Its time comes without anybody who calls."""

    @registry.task("job")
    def sleep(task: Task) -> str:
        task.sleep(0.3, block=0)
        return "awake"

    store.submit("job", "t", "Sleep")
    with At(registry, store):
        assert until(is_so(store, "t", "done"))
    types = [entry.type for entry in store.journal("task", "t").read()]
    assert (types[2], types[-1]) == ("waiting", "finished")


def test_a_wait_that_times_out_is_noticed(registry: Registry, store: Store) -> None:
    """By the worker: nobody sends the signal."""
    registry.task("job")(lambda task: task.wait_for("never", timeout=0.2, default="nothing"))
    store.submit("job", "t", "Wait")
    with At(registry, store):
        assert until(is_so(store, "t", "done"))
    assert store.task("t").checkpoint().outcome == "nothing"


def test_a_signal_wakes_a_task(registry: Registry, store: Store) -> None:
    """It goes on behind the wait, and does nothing twice."""
    calls: list[str] = []

    @registry.task("job")
    async def ask(task: AsyncTask) -> Any:
        await task.step("before", lambda: calls.append("before"))
        return await task.wait_for("approval")

    store.submit("job", "t", "Ask")
    with At(registry, store):
        assert until(is_so(store, "t", "waiting"))
        store.signal("t", "approval", "yes")
        assert until(is_so(store, "t", "done"))
    assert (store.task("t").checkpoint().outcome, calls) == ("yes", ["before"])


@pytest.mark.slow
def test_tasks_are_found_on_every_backend(registry: Registry, where: places.Where) -> None:
    """New ones, one that is signalled, one whose time has come."""

    @registry.task("job")
    def job(task: Task) -> Any:
        if task.id == "sleeps":
            task.sleep(1, block=0)
        return task.wait_for("word") if task.id == "waits" else task.step("do", lambda: 1)

    with limpet.open(where.url) as store:
        for name in ("new", "sleeps", "waits"):
            store.submit("job", name, "Do it")
        with At(registry, store):
            assert until(is_so(store, "waits", "waiting"))
            store.signal("waits", "word", "go")
            assert until(lambda: set(statuses(store).values()) == {"done"})


def test_what_waits_for_a_signal_is_not_run_meanwhile(registry: Registry, store: Store) -> None:
    """Nor does it keep a worker that is to end when there is nothing to do."""
    registry.task("job")(lambda task: task.wait_for("approval"))
    store.submit("job", "t", "Ask")
    work(registry, store)
    work(registry, store)
    types = [entry.type for entry in store.journal("task", "t").read()]
    assert types == ["created", "resumed", "waiting"]


def test_what_a_lapsed_lease_has_left_is_taken_over(registry: Registry, store: Store) -> None:
    """A worker on another machine has died."""
    registry.task("job")(lambda task: None)
    store.submit("job", "t", "Do it")
    key = make_key("default", "task", "t")
    lease = store.backend.acquire(key, "a worker far away", 60)
    work(registry, store)
    assert statuses(store) == {"t": "open"}
    store.backend.renew(key, lease, 0.1)
    with At(registry, store):
        assert until(is_so(store, "t", "done"))


def test_what_was_begun_goes_before_what_is_new(registry: Registry, store: Store) -> None:
    """A task that was taken from a dead worker does not go to the end of the queue."""
    order: list[str] = []
    registry.task("job")(lambda task: order.append(task.id))
    for number in range(20):
        store.submit("job", f"t-{number:02}", "Do it")
    for begun in ("t-07", "t-13"):
        with store.task(begun):
            pass
    work(registry, store, concurrency=1)
    assert sorted(order[:2]) == ["t-07", "t-13"]


@pytest.mark.slow
def test_what_was_begun_is_found_behind_very_many_new_ones(
    registry: Registry, store: Store
) -> None:
    """A task of a dead worker is not one among all that nobody has begun."""
    order: list[str] = []
    registry.task("job")(lambda task: order.append(task.id))
    for number in range(250):
        store.submit("job", f"t-{number:03}", "Do it")
    with store.task("t-240"):
        pass
    work(registry, store, concurrency=1)
    assert order[0] == "t-240"
    assert len(order) == len(set(order)) == 250


def test_workers_share_the_tasks(registry: Registry, tmp_path: Path) -> None:
    """Each task is run by one of them."""
    calls: Counter[str] = Counter()
    registry.task("job")(lambda task: task.step("do", lambda: calls.update([task.id])))
    url = f"sqlite:{tmp_path}/agents.db"
    with limpet.open(url) as one, limpet.open(url) as two:
        for number in range(30):
            one.submit("job", f"t-{number}", "Do it")
        with At(registry, one), At(registry, two):
            assert until(lambda: set(statuses(one).values()) == {"done"})
    assert calls == {f"t-{number}": 1 for number in range(30)}


# -- how much --------------------------------------------------------------------------------------


class Crowd:
    """Counts how many are inside at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def enter(self, *names: str) -> None:
        """One more of each."""
        with self._lock:
            self._now.update(names)
            self.most |= self._now

    def leave(self, *names: str) -> None:
        """One less."""
        with self._lock:
            self._now.subtract(names)


@pytest.mark.slow
def test_no_more_run_at_once_than_may(registry: Registry, store: Store) -> None:
    """In all, and of each kind."""
    crowd = Crowd()

    def plain(task: Task) -> None:
        crowd.enter("all", str(task.kind))
        time.sleep(0.02)
        crowd.leave("all", str(task.kind))

    async def later(task: AsyncTask) -> None:
        crowd.enter("all", str(task.kind))
        await asyncio.sleep(0.02)
        crowd.leave("all", str(task.kind))

    registry.task("many")(plain)
    registry.task("few", limit=2)(plain)
    registry.task("single", limit=1)(later)
    for kind in ("many", "few", "single"):
        for number in range(12):
            store.submit(kind, f"{kind}-{number}", "Do it")
    work(registry, store, concurrency=5)
    assert set(statuses(store).values()) == {"done"}
    assert crowd.most["all"] <= 5
    assert crowd.most["few"] <= 2
    assert crowd.most["single"] == 1
    assert crowd.most["many"] > 1


def test_async_functions_share_an_event_loop(registry: Registry, store: Store) -> None:
    """And so the clients that they have open."""
    loops = set()

    @registry.task("job")
    async def where(task: AsyncTask) -> None:
        loops.add(id(asyncio.get_running_loop()))

    for number in range(5):
        store.submit("job", f"t-{number}", "Do it")
    work(registry, store)
    assert len(loops) == 1
    assert set(statuses(store).values()) == {"done"}


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_who_exits_on_the_event_loop_takes_no_other_along(
    registry: Registry, store: Store, end: type[BaseException]
) -> None:
    """In a task of asyncio's own, that would end the loop for all."""
    begun, loops = threading.Event(), set()

    async def leave() -> None:
        await asyncio.to_thread(begun.wait, 60)
        raise end

    def has_left() -> bool:
        return bool(store.task("t-1").info().position > 2)

    @registry.task("exits")
    async def exits(task: AsyncTask) -> None:
        await asyncio.gather(leave())

    @registry.task("stays")
    async def stays(task: AsyncTask) -> None:
        loops.add(id(asyncio.get_running_loop()))
        begun.set()
        await asyncio.to_thread(until, has_left)

    store.submit("exits", "t-1", "Leave")
    store.submit("stays", "t-2", "Stay")
    with At(registry, store):
        assert until(is_so(store, "t-2", "done"))
        store.submit("stays", "t-3", "Stay")
        assert until(is_so(store, "t-3", "done"))
    assert len(loops) == 1


def test_a_function_that_blocks_holds_up_no_other(registry: Registry, store: Store) -> None:
    """Not even an async one that should not."""
    release = threading.Event()

    @registry.task("rude")
    async def rude(task: AsyncTask) -> bool:
        return release.wait(60)

    registry.task("job")(lambda task: None)
    store.submit("rude", "rude", "Block")
    with At(registry, store):
        assert until(lambda: bool(store.task("rude").info().held_by))
        store.submit("job", "t", "Do it")
        assert until(is_so(store, "t", "done"))
        release.set()
        assert until(is_so(store, "rude", "done"))


# -- what goes wrong -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_store_that_is_away_does_not_end_it(
    registry: Registry,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    told: Callable[[], str],
) -> None:
    """It says so, and looks again, ever less often."""
    registry.task("job")(lambda task: None)
    store.submit("job", "t", "Do it")
    scan, failures = store.backend.scan, iter([True] * 3)

    def flaky(*args: Any, **kwargs: Any) -> Page:
        if next(failures, None):
            raise StoreUnavailable("the server is away")
        return scan(*args, **kwargs)

    monkeypatch.setattr(store.backend, "scan", flaky)
    work(registry, store)
    assert statuses(store) == {"t": "done"}
    assert told().count("the store is away, next look in") == 3
    assert "the store is back" in told()


def test_a_task_that_loses_the_store_is_tried_again(
    registry: Registry, store: Store, told: Callable[[], str]
) -> None:
    """After a while; it has not failed."""
    tries = iter([True, True])

    @registry.task("job")
    def unlucky(task: Task) -> str:
        if next(tries, None):
            raise StoreUnavailable("gone for lunch")
        return "fine"

    store.submit("job", "t", "Do it")
    work(registry, store)
    assert statuses(store) == {"t": "done"}
    assert told().count("the store is away; it is tried again") == 2


def test_a_task_that_is_deleted_meanwhile_is_no_trouble(
    registry: Registry, store: Store, monkeypatch: pytest.MonkeyPatch, told: Callable[[], str]
) -> None:
    """It was found, and then it was gone."""
    registry.task("job")(pytest.fail)
    store.submit("job", "t", "Do it")
    scan = store.backend.scan

    def late(*args: Any, **kwargs: Any) -> Page:
        found = scan(*args, **kwargs)
        store.task("t").delete()
        return found

    monkeypatch.setattr(store.backend, "scan", late)
    work(registry, store)
    assert "t: no longer there" in told()


def test_a_damaged_task_does_not_end_it(
    registry: Registry, tmp_path: Path, told: Callable[[], str]
) -> None:
    """The others are run; it is told of, and left to the doctor."""
    registry.task("job")(lambda task: task.step("do", lambda: None))
    with limpet.open(f"file:{tmp_path}/agents") as store:
        for name in ("damaged", "well"):
            store.submit("job", name, "Do it")
            with store.task(name):
                pass
        (path,) = tmp_path.rglob("damaged.jsonl")
        path.write_bytes(path.read_bytes().replace(b"Do it", b"Do_it", 1))
        work(registry, store)
        assert store.task("well").info().status == "done"
    assert "damaged: stopped, and is tried again: StoreCorrupt: " in told()


def test_a_store_that_cannot_be_searched_ends_it_when_what_runs_has_ended(
    registry: Registry, store: Store, monkeypatch: pytest.MonkeyPatch, told: Callable[[], str]
) -> None:
    """Nothing is cut short for a damage that is elsewhere."""
    release = threading.Event()
    scan = store.backend.scan

    def damaged(*args: Any, **kwargs: Any) -> Page:
        raise StoreCorrupt("line 1 is damaged")

    @registry.task("job")
    def slow(task: Task) -> bool:
        monkeypatch.setattr(store.backend, "scan", damaged)
        return release.wait(60)

    store.submit("job", "t", "Do it")
    failed: list[Exception] = []

    def run() -> None:
        try:
            Worker(registry, store, poll=POLL).run()
        except StoreCorrupt as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert until(lambda: "the store cannot be searched, next look in" in told())
    release.set()
    thread.join(120)
    assert [str(error) for error in failed] == ["line 1 is damaged"]
    monkeypatch.setattr(store.backend, "scan", scan)
    assert statuses(store) == {"t": "done"}


def test_it_tells_what_happens_and_nothing_of_what_tasks_know(
    registry: Registry, store: Store, told: Callable[[], str]
) -> None:
    """One line an event, and why, in which step and where it failed; logs are read by many."""

    def fail(_secret: str) -> None:
        raise ValueError("no such\norder")

    @registry.task("job")
    def job(task: Task) -> Any:
        task.step("look", lambda: "secret")
        if task.id == "bad":
            task.step("fail", fail, "secret")
        if task.id == "worse":
            task.fail("it is known")
        return task.wait_for("word") if task.id == "asks" else "secret"

    for name in ("good", "bad", "worse", "asks"):
        store.submit("job", name, "secret", input="secret")
    work(registry, store)
    lines = sorted(re.sub(r"[\d.]+ s", "N s", line) for line in told().splitlines())
    name = "test_it_tells_what_happens_and_nothing_of_what_tasks_know.<locals>"
    place = f"{__file__}:{fail.__code__.co_firstlineno + 1}"
    assert lines == [
        f"  {place} in {name}.fail",
        f"  {__file__}:{job.__code__.co_firstlineno + 4} in {name}.job",
        "asks: begins (job)",
        "asks: waits (word)",
        "bad: begins (job)",
        "bad: failed after N s in step 'fail': ValueError: no such order",
        "good: begins (job)",
        "good: done after N s",
        "worse: begins (job)",
        "worse: failed after N s: it is known",
    ]
    assert store.journal("task", "bad").read()[-1].body["place"] == place
    file, _, line = place.rpartition("/")[2].rpartition(":")
    assert (
        store.task("bad").versions.list()[-1].what
        == f"failed in step 'fail': ValueError: no such order ({file}:{line})"
    )


# -- how it ends -----------------------------------------------------------------------------------


def test_it_lets_what_runs_end_and_takes_no_more(
    registry: Registry, store: Store, told: Callable[[], str]
) -> None:
    """That is how a deployment begins."""
    begun, release = threading.Event(), threading.Event()

    @registry.task("job")
    def slow(task: Task) -> bool:
        begun.set()
        return release.wait(60)

    store.submit("job", "t-1", "Do it")
    with At(registry, store, concurrency=1) as at:
        assert begun.wait(60)
        store.submit("job", "t-2", "Do it")
        at.worker.stop()
        at.worker.stop()
        assert until(lambda: "stopping; 1 has 30 s to end" in told())
        release.set()
        assert at.stop() == []
    assert statuses(store) == {"t-1": "done", "t-2": "open"}


def test_who_is_told_to_stop_before_or_while_it_looks_takes_nothing(
    registry: Registry, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has found then is for others; and nobody waits for tasks that do not run."""
    registry.task("job")(pytest.fail)
    store.submit("job", "t", "Do it")
    worker = Worker(registry, store)
    worker.stop()
    assert worker.run() == []
    scan, worker = store.backend.scan, Worker(registry, store)

    def slowly(*args: Any, **kwargs: Any) -> Page:
        worker.stop()
        return scan(*args, **kwargs)

    monkeypatch.setattr(store.backend, "scan", slowly)
    assert worker.run() == []
    assert statuses(store) == {"t": "open"}


def test_who_is_told_to_stop_does_not_wait_for_a_store_that_does_not_answer(
    registry: Registry, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take half a minute to give up, and whoever deploys has less patience."""
    registry.task("job")(pytest.fail)
    looking, release = threading.Event(), threading.Event()
    scan = store.backend.scan

    def unanswered(*args: Any, **kwargs: Any) -> Page:
        looking.set()
        assert release.wait(60)
        return scan(*args, **kwargs)

    monkeypatch.setattr(store.backend, "scan", unanswered)
    with At(registry, store) as at:
        assert looking.wait(60)
        assert at.stop() == []
        assert not release.is_set()
        release.set()


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("server", ["postgresql_server", "redis_server"])
def test_a_process_whose_store_does_not_answer_ends_when_it_is_told_to(
    directory: Path, server: str, request: pytest.FixtureRequest
) -> None:
    """Though the store would be asked again for ten minutes."""
    there: Any = request.getfixturevalue(server)
    with Proxy(there.host, there.port) as network:
        url = there.through(there.place(), network.port)
        url += f"{'&' if '?' in url else '?'}timeout=600"
        process = Process(directory, "--store", url)
        assert process.says("working on")
        asked = network.requests
        assert until(lambda: network.requests > asked + 2)  # it looks for tasks
        network.refuse()
        process.send(signal.SIGTERM)
        assert process.ends() == 0
        network.heal()


@pytest.mark.slow
def test_what_async_functions_leave_behind_does_not_hold_it_up(
    registry: Registry, store: Store, told: Callable[[], str]
) -> None:
    """Their task is done; what they have begun besides gets as long as tasks have to end."""
    release, ended = threading.Event(), threading.Event()

    async def stubborn() -> None:
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        ended.set()

    @registry.task("job")
    async def leave(task: AsyncTask) -> None:
        left.append(asyncio.create_task(stubborn()))
        await asyncio.sleep(0)

    left: list[asyncio.Task[None]] = []
    store.submit("job", "t", "Do it")
    worker = Worker(registry, store, poll=POLL, drain=0)
    assert worker.run(until_idle=True) == []
    assert worker.lingers
    assert "what does not end; it is cut off" in told()
    assert statuses(store) == {"t": "done"}
    release.set()
    assert ended.wait(60)
    assert Worker(registry, store, poll=POLL).run(until_idle=True) == []


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_what_does_not_end_in_time_is_named(registry: Registry, store: Store, kind: str) -> None:
    """It is left to its lease, and to another worker."""
    begun, release = threading.Event(), threading.Event()

    @registry.task("plain")
    def plain(task: Task) -> bool:
        begun.set()
        return release.wait(60)

    @registry.task("async")
    async def later(task: AsyncTask) -> bool:
        begun.set()
        return await asyncio.to_thread(release.wait, 60)

    store.submit(kind, "t", "Do it")
    with At(registry, store, drain=0.05) as at:
        assert begun.wait(60)
        assert at.stop() == ["t"]
        assert store.task("t").info().held_by is not None
        release.set()
        assert until(is_so(store, "t", "done"))


# -- processes -------------------------------------------------------------------------------------

APP = """
import os, signal, sys, time
import limpet

registry = limpet.Registry()


@registry.task("count")
def count(task):
    for number in range(int(task.input)):
        task.step(f"{number}", time.sleep, 0.05)


@registry.task("block", lease=60)
def block(task):
    if not task.step("first", lambda: task.id):
        return
    if os.path.exists("go-on"):
        return "fine"
    time.sleep(600)


@registry.task("poison")
def poison(task):
    with open("runs", "a") as file:
        file.write("x")
    time.sleep(float(task.input or 0))
    os.kill(os.getpid(), signal.SIGKILL)


@registry.task("slow")
def slow(task):
    task.step("slowly", time.sleep, 0.5)
"""


class Process:
    """A worker in a process of its own, and what it says."""

    def __init__(self, directory: Path, *options: str) -> None:
        command = [*mortal(signal.SIGKILL, None), LIMPET, "work", "app:registry"]
        self.said = directory / "said"
        with self.said.open("ab") as said:
            self._process = subprocess.Popen(
                [*command, "--store", "agents.db", "--poll", "0.05", *options],
                cwd=directory,
                stdout=said,
                stderr=said,
            )

    def says(self, text: str) -> bool:
        """Whether it says so, sooner or later."""
        return until(lambda: text in self.said.read_text())

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def ends(self) -> int:
        """Its exit code, when it has one."""
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where there is an app."""
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def shared(directory: Path) -> Iterator[Store]:
    """The store that the processes work on."""
    with limpet.open(f"sqlite:{directory}/agents.db") as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_drains_when_it_is_told_to_end(
    directory: Path, shared: Store, number: signal.Signals
) -> None:
    """The task that runs is finished; the next one is left to others."""
    shared.submit("count", "t-1", "Count", input=20)
    process = Process(directory, "--concurrency", "1")
    assert process.says("t-1: begins (count)")
    shared.submit("count", "t-2", "Count", input=20)
    process.send(number)
    assert process.ends() == 0
    assert statuses(shared) == {"t-1": "done", "t-2": "open"}
    assert "t-2" not in process.said.read_text()


@pytest.mark.slow
def test_a_process_leaves_what_does_not_end_to_another(directory: Path, shared: Store) -> None:
    """Which takes it over at once, for on the same machine it is known who has died."""
    shared.submit("block", "t", "Block")
    process = Process(directory, "--drain", "0.1")
    assert until(lambda: shared.task("t").info().position == 3)
    process.send(signal.SIGTERM)
    assert process.ends() == 1
    assert process.says("left to their leases: t")
    (directory / "go-on").touch()
    assert Process(directory, "--until-idle").ends() == 0
    assert shared.task("t").checkpoint().outcome == "fine"


def test_a_second_signal_ends_a_process_at_once(directory: Path, shared: Store) -> None:
    """Somebody is in a hurry, and knows that nothing is lost."""
    shared.submit("block", "t", "Block")
    process = Process(directory, "--drain", "600")
    assert until(lambda: shared.task("t").info().position == 3)
    process.send(signal.SIGTERM)
    assert process.says("stopping")
    process.send(signal.SIGTERM)
    assert process.ends() == -signal.SIGTERM


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="nothing here is always full")
def test_a_process_whose_words_nobody_can_read_works_on(directory: Path, shared: Store) -> None:
    """A log that is full, or whose reader has died, is no reason to leave tasks undone."""
    shared.submit("count", "t", "Count", input=2)
    with Path("/dev/full").open("wb") as full:
        command = [LIMPET, "work", "app:registry", "--store", "agents.db", "--until-idle"]
        done = subprocess.run(command, cwd=directory, stderr=full, check=False, timeout=120)
    assert statuses(shared) == {"t": "done"}
    assert shared.journal("task", "t").read()[1].type == "resumed"
    assert shared.task("t").info().position == 5
    assert done.returncode == 0


@pytest.mark.slow
def test_a_poison_task_is_given_up(directory: Path, shared: Store) -> None:
    """It kills its worker, and the next one, and the next; then it has failed."""
    shared.submit("poison", "t", "Kill")
    shared.submit("count", "after", "Count", input=1)
    codes: list[int] = []
    while len(codes) < 10 and (not codes or codes[-1] != 0):
        codes.append(Process(directory, "--until-idle", "--give-up-after", "3").ends())
    assert codes == [-signal.SIGKILL] * 3 + [0]
    assert (directory / "runs").read_text() == "xxx"
    assert statuses(shared) == {"after": "done", "t": "failed"}
    error = shared.task("t").checkpoint().error
    assert error is not None
    assert "given up" in error


@pytest.mark.slow
def test_a_poison_task_does_not_take_others_with_it(directory: Path, shared: Store) -> None:
    """They die with its workers a few times, and are not given up: they did nothing wrong."""
    innocent = {f"slow-{number}": "done" for number in range(3)}
    for name in innocent:
        shared.submit("slow", name, "Take your time")
    shared.submit("poison", "t", "Kill", input=0.2)
    codes: list[int] = []
    while len(codes) < 20 and (not codes or codes[-1] != 0):
        codes.append(Process(directory, "--until-idle", "--give-up-after", "5").ends())
    assert codes == [-signal.SIGKILL] * 5 + [0]
    assert statuses(shared) == {**innocent, "t": "failed"}
