"""Stores: a URL in, models out; tenants apart, threads and event loops together."""

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

import limpet
from limpet import AsyncStore, Conflict, LeaseHeld, NotFound, Store, Task, TaskHeld
from limpet import store as limpet_store
from limpet.backends import url as backends_url
from limpet.errors import InvalidURL, StoreClosed, StoreNotFound, StoreReadOnly, TaskNotFound
from limpet.testing.leaks import nothing_left
from tests.support import stores
from tests.support.doubtful import leave_in_doubt
from tests.support.stores import Driven, Place, user

place, store = stores.place, stores.store

GOAL = "Summarise open incidents"


# -- URLs ----------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to work in, and no URL in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIMPET_URL", raising=False)
    return tmp_path


Opener = Callable[..., Store]


@pytest.fixture(params=["sync", "async"])
def opener(request: pytest.FixtureRequest) -> Iterator[Opener]:
    """`limpet.open`, or `open_async` driven as if it were that."""
    loop = asyncio.new_event_loop()

    def open_async(*args: Any, **options: Any) -> Store:
        return cast("Store", Driven(limpet.open_async(*args, **options), loop))

    yield limpet.open if request.param == "sync" else open_async
    loop.close()


def files(directory: Path) -> list[str]:
    """The stores in *directory*."""
    return sorted(path.name for path in directory.iterdir() if "-" not in path.suffix)


def test_without_a_url_it_is_a_file_in_this_directory(here: Path, opener: Opener) -> None:
    """The first try needs nothing to be set up."""
    with opener() as store:
        store.conversation("alice").append(user("hello"))
        assert repr(store.backend.url) in repr(store._core if isinstance(store, Driven) else store)
    assert files(here) == ["limpet.db"]
    with opener("limpet.db") as store:
        assert store.conversation("alice").messages() == [user("hello")]


def test_the_environment_names_the_store(
    here: Path, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program moves to another place without a change; an argument goes first."""
    monkeypatch.setenv("LIMPET_URL", "sqlite:from-env.db?timeout=5")
    with opener() as store:
        assert store.backend.url == "sqlite:from-env.db?timeout=5"
    with opener("argument.db"):
        pass
    monkeypatch.setenv("LIMPET_URL", "")
    with opener():
        pass
    assert files(here) == ["argument.db", "from-env.db", "limpet.db"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("agents.db", "agents.db"),
        (Path("agents.db"), "agents.db"),
        ("./agents.db", "agents.db"),
        ("sqlite:agents.db", "agents.db"),
        ("SQLite:agents.db", "agents.db"),
        ("sqlite:agents.db?timeout=2.5&durability=normal", "agents.db"),
        ("sqlite:with%20space.db", "with space.db"),
        ("with space.db", "with space.db"),
        ("what?.db", "what?.db"),
        ("100%.db", "100%.db"),
        ("100%25.db", "100%25.db"),
        (Path("sqlite:odd.db"), "sqlite:odd.db"),
        (Path("odd?a=b.db"), "odd?a=b.db"),
        ("~nobody.db", "~nobody.db"),
        ("sqlite:a:b.db", "a:b.db"),
        ("no-suffix", "no-suffix"),
    ],
)
def test_a_file_is_named_by_path_or_url(here: Path, opener: Opener, url: Any, name: str) -> None:
    """Whatever is in its name; only a URL has escapes and parameters."""
    with opener(url) as store:
        store.conversation("alice").append(user("hello"))
    assert files(here) == [name]
    with opener(here / name) as store:
        assert store.conversation("alice").messages() == [user("hello")]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://host/db", r"mysql: is not a kind of store.*sqlite:, file:, postgresql:"),
        ("agents:db", r"agents: is not a kind of store.*write sqlite:PATH"),
        ("sqlite://agents.db", r"ambiguous\. Write sqlite:agents.db"),
        ("sqlite:///var/agents.db", r"ambiguous"),
        ("sqlite:", "names no file"),
        ("", "names no file"),
        ("sqlite::memory:", "names no file.* memory:"),
        (":memory:", "names no file.* memory:"),
        ("sqlite:agents.db?tiemout=5", "a parameter 'tiemout'; known here are timeout"),
        ("sqlite:agents.db?timeout=soon", "timeout cannot be 'soon'"),
        ("sqlite:agents.db?durability=none", "durability cannot be 'none'"),
        ("sqlite:agents.db?vfs=nosuch", "no VFS 'nosuch'"),
        ("agents.db?durability=normal", r"Write sqlite:agents.db\?durability=normal"),
        ("./a?b.db?timeout=5&x", "of that name sqlite:./a%3Fb.db%3Ftimeout=5&x"),
        ("memory:shared", "Each memory: store is new"),
    ],
)
def test_a_url_that_says_nothing_we_know_is_refused(
    here: Path, opener: Opener, url: str, message: str
) -> None:
    """With what was meant instead; no file is made by mistake."""
    with pytest.raises(InvalidURL, match=message) as caught:
        opener(url)
    assert isinstance(caught.value, ValueError)
    assert files(here) == []


@pytest.mark.parametrize("url", ["~/agents.db", "sqlite:~/agents.db?timeout=1", "file:~/agents"])
def test_a_path_from_home_is_one(
    here: Path, opener: Opener, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As no shell has seen what stands in a .env file."""
    home = here / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    with opener(url):
        pass
    assert files(here) == ["home"]
    assert files(home) == [url.partition("~/")[2].partition("?")[0]]


def test_options_are_arguments_too(here: Path, opener: Opener) -> None:
    """And go before the URL's parameters."""
    with pytest.raises(StoreNotFound, match="no store at"):
        opener("agents.db", create=False)
    with opener("agents.db"):
        pass
    with opener("sqlite:agents.db?create=1", create=False, timeout=1):
        pass
    with pytest.raises(InvalidURL):
        opener("memory:", timeout=1)


def test_memory_stores_are_each_their_own(opener: Opener) -> None:
    """Two tests never meet in one."""
    with opener("memory:") as one, opener("memory:") as two:
        one.conversation("alice").append(user("hello"))
        assert two.conversation("alice").messages() == []


# -- closing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["memory:", "agents.db"])
def test_a_closed_store_says_so(here: Path, opener: Opener, url: str) -> None:
    """Every model, reading or writing; not an error of the driver's."""
    store = opener(url)
    chat, task, journal = store.conversation("a"), store.task("t", GOAL), store.journal("n", "j")
    chat.append(user("hello"))
    with task:
        task.step("fetch", lambda: 1)
    store.close()
    store.close()
    uses: list[Callable[[], object]] = [
        lambda: chat.append(user("x")),
        chat.messages,
        chat.window,
        chat.info,
        chat.clear,
        chat.delete,
        lambda: chat.label(a="b"),
        lambda: chat.fork("b"),
        task.__enter__,
        task.checkpoint,
        task.info,
        task.delete,
        lambda: journal.append(("a", 1)),
        journal.read,
        journal.head,
        lambda: list(store.conversations()),
        lambda: list(store.tasks()),
        lambda: store.run("t", GOAL, plan=[], execute=lambda step: None),
        store.sweep,
    ]
    for use in uses:
        with pytest.raises(StoreClosed, match=r"is closed\. Open it again"):
            use()


def test_leaving_the_block_closes_it_whatever_happened(opener: Opener) -> None:
    """And lets the error through."""
    with pytest.raises(KeyError), opener("memory:") as store:
        raise KeyError
    with pytest.raises(StoreClosed):
        store.conversation("alice").messages()


def test_a_store_closed_with_a_task_open_gives_it_up(here: Path) -> None:
    """The block of the task hears of it; nothing goes on renewing in the background."""
    with nothing_left():
        store = limpet.open("agents.db")
        task = store.task("report", GOAL, lease=0.3)
        with pytest.raises(StoreClosed), task:
            close_and_go_on(store, task)


def close_and_go_on(store: Store, task: Task) -> None:
    """As a program does that has lost its order."""
    store.close()
    task.step("fetch", lambda: 1)


FORGETFUL = """
import asyncio, sys
import limpet

store = limpet.open(sys.argv[1])
task = store.task("sync", "goal")
task.__enter__()

async def main():
    asyncio.get_running_loop().slow_callback_duration = 60  # that the machine is busy is no matter
    store = limpet.open_async(sys.argv[1])
    await store.conversation("alice").append({"role": "user", "content": "hello"})
    await store.task("async", "goal").__aenter__()
    return store

kept = asyncio.run(main())
print("end")
"""


def test_a_program_that_forgets_to_close_still_ends(tmp_path: Path) -> None:
    """With open stores and tasks of both kinds; what it wrote is there."""
    path = tmp_path / "agents.db"
    command = [sys.executable, "-X", "dev", "-c", FORGETFUL, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
    with limpet.open(path) as store:
        assert store.conversation("alice").messages() == [user("hello")]
        with store.task("sync"), store.task("async"):
            pass


# -- tenants -------------------------------------------------------------------------------------


def test_tenants_cannot_see_each_other(place: Place) -> None:
    """Every model, every listing, by the very same ids."""
    acme, rival = place.open(tenant="acme"), place.open(tenant="rival")
    acme.conversation("alice", labels={"team": "red"}).append(user("secret"), id="turn")
    with acme.task("report", GOAL, labels={"team": "red"}) as task:
        task.step("fetch", lambda: "secret")
    acme.journal("note", "todo").append(("added", "secret"))

    chat = rival.conversation("alice")
    assert chat.messages() == chat.window() == chat.messages(last=1) == []
    assert chat.delete() is rival.task("report").delete() is False
    assert rival.journal("note", "todo").read() == []
    assert rival.journal("note", "todo").head() is None
    assert rival.journal("note", "todo").delete() is False
    for filters in ({}, {"prefix": ""}, {"labels": {"team": "red"}}):
        assert list(rival.conversations(**cast("Any", filters))) == []
        assert list(rival.tasks(**cast("Any", filters))) == []
    with pytest.raises(TaskNotFound):
        rival.task("report").checkpoint()
    assert chat.append(user("mine"), id="turn", expect=0) == 1
    assert acme.conversation("alice").messages() == [user("secret")]
    assert (acme.tenant, rival.tenant) == ("acme", "rival")


def test_tenants_do_not_stand_in_each_others_way(place: Place) -> None:
    """Two may hold a task of the same name; a fork stays in its house."""
    acme, rival = place.open(tenant="acme"), place.open(tenant="rival")
    with acme.task("report", GOAL), rival.task("report", "Another goal") as task:
        assert task.goal == "Another goal"
        with pytest.raises(TaskHeld):
            place.open(tenant="acme").task("report").__enter__()
    acme.conversation("alice").append(user("secret"))
    acme.conversation("alice").fork("copy")
    rival.conversation("copy").append(user("mine"), expect=0)
    assert acme.conversation("copy").messages() == [user("secret")]


def test_without_a_tenant_it_is_the_default_one(place: Place, store: Store) -> None:
    """Which is a tenant like any other, and no way to see them all."""
    place.open(tenant="acme").conversation("alice").append(user("secret"))
    store.conversation("bob").append(user("mine"))
    assert [chat.id for chat in store.conversations()] == ["bob"]
    assert store.tenant == "default"
    assert [chat.id for chat in place.open(tenant="default").conversations()] == ["bob"]


def test_the_stores_ttl_is_for_all_that_do_not_say_otherwise(place: Place) -> None:
    """One setting for a whole deployment."""
    store = place.open(ttl=100)
    store.conversation("a").append(user("x"))
    store.conversation("b", ttl=None).append(user("x"))
    with store.task("t", GOAL):
        pass
    infos = list(store.conversations())
    assert [info.expires_at is not None for info in infos] == [True, False]
    assert store.journal("task", "t").head().expires is not None  # type: ignore[union-attr]


# -- the journal below ---------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [0, -5, 1e14, float("inf"), float("nan"), "60"])
def test_a_journals_ttl_is_checked_before_anything_is_written(ttl: Any) -> None:
    """What one backend would take and another not is taken by none."""
    with limpet.open("memory:") as store:
        with pytest.raises(ValueError, match="A ttl is a number of seconds over 0"):
            store.journal("note", "todo").append(("added", "water"), ttl=ttl)
        assert store.journal("note", "todo").head() is None


def test_a_journal_is_there_for_models_of_ones_own(store: Store) -> None:
    """What all models are made of, in public."""
    journal = store.journal("note", "todo")
    assert journal.append(("added", "water"), ("added", "call"), expect=0) == 2
    assert journal.append(("done", {"n": 1}), id="x") == 3
    assert journal.append(("done", {"n": 1}), id="x") == 3
    with pytest.raises(Conflict):
        journal.append(("done", 2), expect=2)
    entries = journal.read()
    assert [(e.seq, e.type, e.body) for e in entries] == [
        (1, "added", "water"),
        (2, "added", "call"),
        (3, "done", {"n": 1}),
    ]
    assert entries[0].at == entries[1].at <= entries[2].at
    assert [e.seq for e in journal.read(reverse=True)] == [3, 2, 1]
    assert [e.seq for e in journal.read(after=1, upto=2)] == [2]
    assert [e.seq for e in journal.read(limit=2)] == [1, 2]
    assert [[e.seq for e in page] for page in journal.pages(size=1)] == [[1, 2], [3]]
    assert journal.key.id == "todo"
    assert journal.compact(3) == 2
    assert [e.seq for e in journal.read()] == [3]
    assert journal.delete() is True


# -- calls in doubt --------------------------------------------------------------------------------


def in_doubt(store: Store) -> list[str]:
    """What a store says of the calls of which nobody knows whether they happened."""
    return [f"{one.kind}/{one.id}: {one.call.title}" for one in store.in_doubt()]


KINDS = ("agents-run", "conversation", "note", "state", "task")


def test_a_store_knows_what_is_in_doubt_whatever_its_kind(place: Place, store: Store) -> None:
    """Of one tenant; not what somebody is just doing."""
    assert store.in_doubt() == []
    for kind in KINDS:
        leave_in_doubt(store, kind, "alice", "pay", "send")
    leave_in_doubt(store.as_tenant("acme"), "task", "bob", "pay")
    each = [f"{kind}/alice: {name}" for kind in KINDS for name in ("pay (c1)", "send (c2)")]
    assert in_doubt(store) == each
    assert in_doubt(store.as_tenant("acme")) == ["task/bob: pay (c1)"]
    with store.task("t", GOAL) as task:
        task.step("look", lambda: in_doubt(place.beside()) == each, in_doubt="ask")
        assert task.results == {"look": True}


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_in_doubt_is_resolved_whatever_its_kind(store: Store, kind: str) -> None:
    """What a person says is recorded, by their name, and it is in doubt no more."""
    leave_in_doubt(store, kind, "alice", "pay", "send")
    store.resolve("alice", "c1", "done", result={"receipt": 7}, by="Ann", kind=kind)
    assert in_doubt(store) == [f"{kind}/alice: send (c2)"]
    store.resolve("alice", "c2", "skip", kind=kind)
    assert in_doubt(store) == []
    said = [e.body for e in store.journal(kind, "alice").read() if e.type == "resolved"]
    assert said == [
        {"id": "c1", "how": "done", "result": {"receipt": 7}, "by": "Ann"},
        {"id": "c2", "how": "skip"},
    ]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "task"])
def test_what_cannot_be_resolved_is_refused_whatever_its_kind(store: Store, kind: str) -> None:
    """Tasks have errors of their own, which the tests of tasks look at."""
    with pytest.raises(NotFound, match=f"no {kind} 'alice'"):
        store.resolve("alice", "c1", "done", kind=kind)
    leave_in_doubt(store, kind, "alice", "pay")
    with pytest.raises(NotFound, match=f"'c2' of {kind} 'alice' is not in doubt. In doubt: c1"):
        store.resolve("alice", "c2", "done", kind=kind)
    for how, result in (("maybe", None), ("retry", 1)):
        with pytest.raises(ValueError, match=how):
            store.resolve("alice", "c1", how, result=result, kind=kind)
    key = store.journal(kind, "alice").key
    lease = store.backend.acquire(key, "an agent far away", 60)
    assert store.in_doubt() == []
    with pytest.raises(LeaseHeld, match="is running, by an agent far away"):
        store.resolve("alice", "c1", "done", kind=kind)
    store.backend.release(key, lease)
    store.resolve("alice", "c1", "retry", kind=kind)
    assert store.in_doubt() == []


# -- threads and event loops -----------------------------------------------------------------------


def use_everything(store: Store, worker: int) -> None:
    """One thread's work with all models, some of it shared with others."""
    mine, ours = store.conversation(f"mine-{worker}"), store.conversation("ours")
    for n in range(5):
        mine.append(user(str(n)))
        ours.append(user(f"{worker}-{n}"))
        store.journal("note", f"of-{worker}").append(("n", n))
    assert mine.messages() == [user(str(n)) for n in range(5)]
    assert mine.window(max_messages=2) == [user("3"), user("4")]
    outcome = store.run(f"task-{worker}", GOAL, plan=["a", "b"], execute=lambda step: worker)
    assert outcome == {"a": worker, "b": worker}
    mine.fork(f"fork-{worker}").append(user("5"))
    assert f"mine-{worker}" in [chat.id for chat in store.conversations(prefix="mine-")]


def in_threads(*works: Callable[[], object]) -> None:
    """Do all *works* at once; raise what any of them raised."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("url", ["memory:", "agents.db"])
def test_sixteen_threads_share_one_store(here: Path, url: str) -> None:
    """All models, all at once, and nothing is lost or mixed up."""
    with limpet.open(url) as store:
        in_threads(*(lambda worker=worker: use_everything(store, worker) for worker in range(16)))
        ours = [message["content"] for message in store.conversation("ours").messages()]
        assert sorted(ours) == sorted(f"{worker}-{n}" for worker in range(16) for n in range(5))
        for worker in range(16):
            said = [text for text in ours if text.startswith(f"{worker}-")]
            assert said == [f"{worker}-{n}" for n in range(5)]
        assert len(list(store.tasks(status="done"))) == 16


@pytest.mark.parametrize("url", ["memory:", "agents.db"])
def test_several_event_loops_share_one_store(here: Path, url: str) -> None:
    """Each in its own thread; and one after the other in the same."""
    store = limpet.open_async(url)

    async def say(loop: int) -> None:
        chat = store.conversation("ours")
        for n in range(10):
            await asyncio.gather(*(chat.append(user(f"{loop}-{n}-{k}")) for k in range(5)))
        async with store.task(f"task-{loop}", GOAL) as task:
            assert await task.step("fetch", asyncio.sleep, 0, loop) == loop

    in_threads(*(lambda loop=loop: asyncio.run(say(loop)) for loop in range(4)))
    asyncio.run(say(4))

    async def check() -> None:
        messages = await store.conversation("ours").messages()
        assert len({message["content"] for message in messages}) == len(messages) == 5 * 50
        assert len([task async for task in store.tasks()]) == 5
        await store.close()

    asyncio.run(check())


def test_a_cancelled_append_is_settled_before_the_cancellation_goes_on(tmp_path: Path) -> None:
    """Wholly there or not at all, and never later: whoever was cancelled can look, and know."""
    path = tmp_path / "agents.db"
    seed = random.randrange(2**32)
    print("seed", seed)
    moments = random.Random(seed)

    async def cancelled(store: AsyncStore, looking: Store, n: int) -> bool:
        chat = store.conversation("alice")
        both = user(f"{n}a"), user(f"{n}b")
        writing = asyncio.ensure_future(chat.append(*both))
        for _ in range(moments.randrange(6)):
            await asyncio.sleep(0)
        if moments.random() < 0.5:
            await asyncio.sleep(moments.random() * 0.002)
        for _ in range(moments.randrange(1, 4)):  # being impatient changes nothing
            writing.cancel()
            await asyncio.sleep(0)
        with suppress(asyncio.CancelledError):
            await writing
        said = [m["content"] for m in looking.conversation("alice").messages()]
        there = (f"{n}a" in said, f"{n}b" in said)
        assert there in ((True, True), (False, False))
        if not writing.cancelled():
            assert there == (True, True)
        return there[0]

    async def main() -> list[bool]:
        async with limpet.open_async(path) as store:
            with limpet.open(path) as looking:
                found: list[bool] = []
                for start in range(0, 200, 4):
                    some = (cancelled(store, looking, n) for n in range(start, start + 4))
                    found += await asyncio.gather(*some)
                return found

    found = asyncio.run(main())
    assert {True, False} == set(found)
    with limpet.open(path) as store:
        said = {m["content"] for m in store.conversation("alice").messages()}
    assert said == {f"{n}{half}" for n, there in enumerate(found) if there for half in "ab"}


def test_any_other_cancelled_call_is_settled_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is deleted after its caller was told that it is over."""

    async def main() -> None:
        async with limpet.open_async(tmp_path / "agents.db") as store:
            begun, settled = threading.Event(), threading.Event()

            def delete(_: object, **__: object) -> bool:
                begun.set()
                time.sleep(0.05)
                settled.set()
                return True

            monkeypatch.setattr(store.backend, "delete", delete)
            deleting = asyncio.ensure_future(store.conversation("alice").delete())
            await asyncio.to_thread(begun.wait)
            deleting.cancel()
            await asyncio.sleep(0)
            deleting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await deleting
            assert settled.is_set()

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12 and up
def test_a_forked_child_uses_the_store_as_its_own(here: Path) -> None:
    """As web servers do that load the program once and fork."""
    with limpet.open("agents.db") as store, store.task("report", GOAL) as task:
        store.conversation("alice").append(user("parent"))
        pid = os.fork()
        if pid == 0:
            try:
                store.conversation("alice").append(user("child"))
                with store.task("of-the-child", GOAL) as own:
                    own.step("fetch", lambda: 1)
                try:
                    store.task("report").__enter__()
                except TaskHeld:
                    os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        task.step("fetch", lambda: 1)
        assert store.conversation("alice").messages() == [user("parent"), user("child")]
        assert store.task("of-the-child").checkpoint().results == {"fetch": 1}


def test_a_store_can_be_seen_as_another_tenant(place: Place, store: Store) -> None:
    """One connection serves many; none of them sees another's state."""
    store.conversation("alice").append(user("Hello"))
    acme = store.as_tenant("acme")
    assert acme.tenant == "acme"
    assert [chat.id for chat in acme.conversations()] == []
    acme.conversation("bob").append(user("Hi"))
    with acme.task("t", "Greet them"):
        pass
    assert [chat.id for chat in place.open(tenant="acme").conversations()] == ["bob"]
    assert [chat.id for chat in store.conversations()] == ["alice"]
    assert list(store.tasks()) == []
    with pytest.raises(limpet.errors.InvalidId):
        store.as_tenant("")


def test_a_store_that_cannot_be_audited_is_closed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What raises gives nothing to close."""
    limpet.open(tmp_path / "s.db").close()
    opened: list[Any] = []

    def connect(*args: Any, **options: Any) -> Any:
        opened.append(backends_url.connect(*args, **options))
        return opened[-1]

    monkeypatch.setattr(limpet_store, "connect", connect)
    with pytest.raises(StoreReadOnly):
        limpet.open(tmp_path / "s.db", readonly=True, audit=True)
    assert [one.closed for one in opened] == [True]
