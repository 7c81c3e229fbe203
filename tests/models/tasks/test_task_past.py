"""The past of a task: every version can be read, and gone on from, with a word about effects."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import limpet
from limpet import AsyncJournal, Conflict, Store, TaskWaiting
from limpet.backends.contract import Append, Appended
from limpet.errors import EffectsWarning, TaskNotFound, TaskNotOpen
from limpet.tasks.steps import LARGE
from tests.support import stores
from tests.support.dying import Calls, ended_by
from tests.support.stores import Place

place, store, everywhere = stores.place, stores.store, stores.everywhere

GOAL = "Write the report"
#: Too large to be kept with the rest.
ROWS = [f"row {n} {n * n}" for n in range(LARGE // 4)]


def worked_on(store: Store, id_: str = "t") -> None:
    """A task with a plan, three steps, one of them with an effect, and an outcome."""
    with store.task(id_, GOAL, agent="agent-01") as task:
        task.plan(["fetch", "send", "file"])  # 2
        task.step("fetch", lambda: [3, 4])  # 3
        task.decide("send one mail")  # 4
        task.step("send", lambda: "sent", in_doubt="ask")  # 5, 6
        task.discover("the API is slow")  # 7
        task.step("file", lambda: "filed")  # 8
        task.finish("all done")  # 9


def test_every_version_can_be_read(store: Store) -> None:
    """As it was then, while later ones go on."""
    worked_on(store)
    task = store.task("t")
    assert task.versions.at(1).completed == []
    assert task.versions.at(3).results == {"fetch": [3, 4]}
    assert task.versions.at(5).in_doubt == ["send"]
    assert (task.versions.at(8).status, task.versions.at(9).status) == ("open", "done")
    assert [version.seq for version in task.versions.list()] == list(range(1, 10))
    assert "filed" in task.versions.compare(3, 9)
    with pytest.raises(TaskNotFound):
        store.task("nobody").versions.list()
    with pytest.raises(TaskNotFound):
        task.versions.at(0)


def test_a_fork_goes_on_from_an_earlier_point(everywhere: Place) -> None:
    """With what was done by then, a warning about what was sent since, and nothing shared."""
    store = everywhere.open()
    worked_on(store)
    with pytest.warns(EffectsWarning, match=r"at entry 4.*these steps had effects.*send"):
        fork = store.task("t").versions.fork("t2", at=4)
    send = Calls("sent again")
    with fork as task:
        assert (task.goal, task.status) == (GOAL, "open")
        assert task.step("fetch", Calls()) == [3, 4]
        assert task.step("send", send, in_doubt="ask") == "sent again"
        assert task.finish("another end") == "another end"
    assert len(send.calls) == 1
    assert store.task("t").checkpoint().outcome == "all done"
    assert store.task("t2").info().labels["agent"] == "agent-01"


def test_a_fork_may_begin_before_a_step(store: Store) -> None:
    """By its name, whichever entry that is."""
    worked_on(store)
    with pytest.warns(EffectsWarning):
        fork = store.task("t").versions.fork("t2", step="send")
    assert fork.checkpoint().completed == ["fetch"]
    with pytest.raises(ValueError, match="no step 'nothing'"):
        store.task("t").versions.fork("t3", step="nothing")
    with pytest.raises(ValueError, match="not both"):
        store.task("t").versions.fork("t3", step="send", at=3)


def test_a_fork_of_now_warns_of_nothing(store: Store) -> None:
    """All its effects are in its past too."""
    worked_on(store)
    fork = store.task("t").versions.fork("t2", at=8)
    assert fork.checkpoint().completed == ["fetch", "send", "file"]


def test_a_fork_takes_large_results_with_it(store: Store) -> None:
    """It does not lose them with the task it came from."""
    with store.task("t", GOAL) as task:
        task.step("fetch", lambda: ROWS)
    fork = store.task("t").versions.fork("t2")
    store.task("t").delete()
    with fork as task:
        assert task.load("fetch") == ROWS


@pytest.mark.parametrize("writes", [1, 2])
def test_a_fork_cut_short_is_finished_by_the_same_call(
    place: Place, store: Store, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then nobody can take it for a task; another task of that name is left alone."""
    with store.task("t", GOAL) as task:
        for number in range(100):
            task.step(f"n{number}", lambda: "x")
    monkeypatch.setattr("limpet.tasks.versions.CHUNK", 40)
    backend = store.backend
    append, left = backend.append, [writes]

    def failing(request: Append) -> Appended:
        if not left[0]:
            raise limpet.StoreUnavailable("away")
        left[0] -= 1
        return append(request)

    with monkeypatch.context() as patch:
        patch.setattr(backend, "append", failing)
        if place.is_async:
            patch.setattr(backend, "append_async", awaited(failing))
        with pytest.raises(limpet.StoreUnavailable):
            store.task("t").versions.fork("t2")
    with pytest.raises(TaskNotOpen, match="half a fork"), store.task("t2"):
        pass
    for say in (store.resume, store.pause, store.cancel, lambda id_: store.signal(id_, "x")):
        with pytest.raises(TaskNotOpen, match="half a fork"):
            say("t2")
    fork = store.task("t").versions.fork("t2")
    assert len(fork.checkpoint().completed) == 100
    with pytest.raises(Conflict, match="There is a task 't' already"):
        store.task("t2").versions.fork("t")


def test_a_fork_of_a_finished_task_is_finished(store: Store) -> None:
    """Also where there are callbacks: a worker would run it for ever."""
    store.on_finish(Calls())
    worked_on(store)
    assert store.task("t").versions.fork("t2").info().status == "done"
    assert [info.id for info in store.tasks(status="open")] == []


def test_a_sweep_during_a_fork_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept apart is copied for a task that is there."""
    opened = limpet.open("memory:")
    append = AsyncJournal.append

    async def swept(self: AsyncJournal, *entries: Any, **options: Any) -> int:
        if options.get("id") == "fork-0":
            assert opened.sweep() == 0
        return await append(self, *entries, **options)

    with opened as store:
        with store.task("t", GOAL) as task:
            task.step("fetch", lambda: ROWS)
        monkeypatch.setattr(AsyncJournal, "append", swept)
        with store.task("t").versions.fork("t2") as fork:
            assert fork.load("fetch") == ROWS


def test_a_fork_finds_nothing_of_a_task_that_has_expired(store: Store) -> None:
    """One of the same id, a fork too, had results of its own, and was not swept yet."""
    for name, rows in (("s", ROWS[::-1]), ("t", ROWS)):
        with store.task(name, GOAL) as task:
            task.step("fetch", lambda rows=rows: rows)
    store.task("s").versions.fork("t2").expire(0.01)
    time.sleep(0.02)
    with store.task("t").versions.fork("t2") as fork:
        assert fork.load("fetch") == ROWS


def awaited(function: Callable[[Append], Appended]) -> Callable[[Append], Awaitable[Appended]]:
    """The same, to be awaited."""

    async def twin(request: Append) -> Appended:
        return function(request)

    return twin


def test_a_task_can_be_wound_back_to_a_step(place: Place, store: Store) -> None:
    """It forgets what came after, keeps it in its history, and warns of effects."""
    worked_on(store)
    with store.task("t") as task:
        with pytest.warns(EffectsWarning, match="goes back at entry 4"):
            task.versions.rewind(step="send")
        assert (task.status, task.outcome) == ("open", None)
        assert list(task.results) == ["fetch"]
        assert [decision.decision for decision in task.decisions] == ["send one mail"]
        assert task.discoveries == []
    with place.open().task("t") as task:
        assert task.step("send", Calls("again"), in_doubt="ask") == "again"
        assert [step.name for step in task.remaining()] == ["file"]
    assert store.task("t").versions.at(9).outcome == "all done"


def test_what_was_in_doubt_then_is_in_doubt_again(place: Place, store: Store) -> None:
    """Nobody knows more of it for having gone back."""
    send = Calls(TimeoutError("no answer"))
    with store.task("t", GOAL) as task:
        with pytest.raises(TimeoutError):
            task.step("send", send, in_doubt="ask")
        task.step("b", Calls())
        here = task.info().position
        task.step("c", Calls())
        task.versions.rewind(to=here)
    with ended_by(TaskWaiting, place.open().task("t"), "no answer") as task:
        assert (task.in_doubt, list(task.results)) == (["send"], ["b"])
        task.step("send", send, in_doubt="ask")
    assert len(send.calls) == 1


def test_a_rewind_needs_the_task_and_a_point(store: Store) -> None:
    """Nobody rewinds what another works on."""
    worked_on(store)
    with pytest.raises(TaskNotOpen):
        store.task("t").versions.rewind(to=3)
    with store.task("t") as task, pytest.raises(ValueError, match="how far back"):
        task.versions.rewind()
