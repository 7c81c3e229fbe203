"""People and events: a task waits, nobody need keep a process for it, and it goes on."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import NotStorable, Store, TaskWaiting
from limpet.backends.contract import Key
from limpet.errors import (
    DeadlinePassed,
    GoalMismatch,
    InvalidId,
    TaskCancelled,
    TaskFinished,
    TaskNotFound,
    TaskPaused,
    WaitTimedOut,
)
from limpet.tasks.record import LiveTask
from tests.support import stores
from tests.support.dying import Calls, die, ended_by, killed
from tests.support.stores import Driven, Place

place, store, everywhere = stores.place, stores.store, stores.everywhere

GOAL = "Refund the customer"


def types(store: Store, task: str = "t") -> list[str]:
    """The types of a task's entries."""
    return [entry.type for entry in store.journal("task", task).read()]


# -- signals ---------------------------------------------------------------------------------------


def test_a_task_waits_for_a_signal_and_frees_its_process(everywhere: Place) -> None:
    """Whoever opens it after the signal goes on with its payload."""
    store = everywhere.open()
    with (
        pytest.raises(TaskWaiting, match="limpet task signal t approval") as caught,
        store.task("t", GOAL) as task,
    ):
        task.wait_for("approval")
    assert (caught.value.task_id, caught.value.waits_for, caught.value.until) == (
        "t",
        "approval",
        None,
    )
    info = store.task("t").info()
    assert (info.status, info.held_by) == ("waiting", None)
    everywhere.open().signal("t", "approval", {"ok": True})
    assert store.task("t").info().status == "open"
    with store.task("t") as task:
        assert task.wait_for("approval") == {"ok": True}
        assert task.results == {"approval": {"ok": True}}


def test_a_signal_that_is_not_waited_for_wakes_nobody(everywhere: Place) -> None:
    """A name with a typo is stored, as one that comes early is, and the task waits as before."""
    store = everywhere.open()
    with pytest.raises(TaskWaiting), store.task("t", GOAL) as task:
        task.wait_for("approval")
    store.signal("t", "aproval", "typo")
    assert store.task("t").info().status == store.task("t").checkpoint().status == "waiting"
    store.signal("t", "approval", "yes")
    assert store.task("t").info().status == store.task("t").checkpoint().status == "open"
    with store.task("t") as task:
        assert task.wait_for("approval") == "yes"
        assert task.wait_for("aproval") == "typo"


def test_a_signal_wakes_by_the_name_that_the_program_gave(store: Store) -> None:
    """In the turn of a planned step the wait has the step's name before its own."""
    with ended_by(TaskWaiting, store.task("t", GOAL)) as task:
        task.plan(["collect/all"])
        for _ in task.remaining():
            task.wait_for("approval#2")
    store.signal("t", "approval#2", "yes")
    assert store.task("t").checkpoint().status == "open"
    with store.task("t") as task:
        for _ in task.remaining():
            assert task.wait_for("approval#2") == "yes"


def test_a_signal_that_comes_first_is_waiting(place: Place, store: Store) -> None:
    """Nothing depends on who is early."""
    with store.task("t", GOAL) as task:
        place.open().signal("t", "approval", "yes")
        assert task.wait_for("approval") == "yes"


def test_each_signal_is_taken_once_in_the_order_they_came(place: Place, store: Store) -> None:
    """Also over a restart."""
    with store.task("t", GOAL) as task:
        for number in range(3):
            store.signal("t", "line", number)
        assert [task.wait_for("line"), task.wait_for("line")] == [0, 1]
    with place.open().task("t") as task:
        assert [task.wait_for("line") for _ in range(3)] == [0, 1, 2]
        with pytest.raises(TaskWaiting):
            task.wait_for("line")


def test_a_signal_sent_twice_with_an_id_counts_once(store: Store) -> None:
    """A retry after a lost reply does not approve the next request too."""
    with store.task("t", GOAL):
        pass
    for _ in range(2):
        store.signal("t", "approval", "yes", id="click-1")
    with store.task("t") as task:
        assert task.wait_for("approval") == "yes"
        with pytest.raises(TaskWaiting):
            task.wait_for("approval")
    with pytest.raises(limpet.errors.IdReused):
        store.signal("t", "approval", "no", id="click-1")


def test_a_task_can_wait_in_its_process_for_a_while(place: Place, store: Store) -> None:
    """Short waits need no restart; when they end, the process is free."""
    with pytest.raises(TaskWaiting), store.task("t", GOAL) as task:
        task.wait_for("approval", block=0.05)
    assert types(store) == ["created", "waiting", "waiting"]


def test_a_wait_may_end_without_a_signal(
    place: Place, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time counts from the first call, over restarts, and how it ended is remembered."""
    with pytest.raises(TaskWaiting) as caught, store.task("t", GOAL) as task:
        task.wait_for("approval", timeout=60)
    until = caught.value.until
    assert until is not None
    assert store.task("t").info().due == until
    monkeypatch.setattr(LiveTask, "now", lambda _: until)
    with store.task("t") as task, pytest.raises(WaitTimedOut, match="'approval' came to task 't'"):
        task.wait_for("approval", timeout=60)
    store.signal("t", "approval", "too late")
    with place.open().task("t") as task:
        assert task.wait_for("approval", default="no") == "no"
        assert task.wait_for("approval") == "too late"


def test_a_signal_needs_a_task_that_goes_on(store: Store) -> None:
    """Otherwise whoever sent it would think that it was heard."""
    with pytest.raises(TaskNotFound):
        store.signal("nobody", "approval")
    with store.task("t", GOAL) as task:
        task.finish()
    with pytest.raises(TaskFinished, match="Task 't' is done, so it cannot be signalled"):
        store.signal("t", "approval")
    with pytest.raises(InvalidId):
        store.signal("t", "")


def test_a_signal_does_not_disturb_who_is_working(place: Place, store: Store) -> None:
    """Two who write to one journal both count, in one order."""
    with store.task("t", GOAL) as task:
        assert task.step("a", lambda: 1) == 1
        place.open().signal("t", "approval", "yes")
        assert task.step("b", lambda: 2) == 2
        assert task.wait_for("approval") == "yes"
    assert types(store) == ["created", "step", "signalled", "step", "step"]


def test_waits_side_by_side_take_a_signal_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen the first; the one that comes second takes the second."""

    async def main() -> None:
        async with limpet.open_async(tmp_path / "db") as store, store.task("t", GOAL) as task:
            for payload in ("first", "second"):
                await store.signal("t", "line", payload)
            record = task.runner.record
            catch_up, both, calls = record.catch_up, asyncio.Barrier(2), Calls()

            async def together() -> None:
                await catch_up()
                if calls() <= 2:
                    await both.wait()

            monkeypatch.setattr(record, "catch_up", together)
            found = await asyncio.gather(task.wait_for("line"), task.wait_for("line"))
            assert sorted(found) == ["first", "second"]
            assert task.runner.live.state.signals == {"line": []}

    asyncio.run(main())


def test_a_wait_that_the_program_no_longer_has_wakes_nobody(
    place: Place, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is long past, and would wake the task for ever."""
    with ended_by(TaskWaiting, store.task("t", GOAL)) as task:
        task.wait_for("approval", timeout=60)
    due = store.task("t").info().due
    assert due is not None
    monkeypatch.setattr(LiveTask, "now", lambda _: due)
    with ended_by(TaskWaiting, place.open().task("t")) as task:
        task.wait_for("another")
    assert store.task("t").info().due is None


def test_a_wait_that_is_swallowed_is_still_a_wait(place: Place, store: Store) -> None:
    """Nothing begins, nothing is said or finished, until the signal is there."""
    pay = Calls("paid", "paid too")
    with store.task("t", GOAL) as task:
        with pytest.raises(TaskWaiting):
            task.wait_for("approval")
        for policy in (None, "ask"):
            with pytest.raises(TaskWaiting, match=r"'pay' is not begun.*has caught TaskWaiting"):
                task.step("pay", pay, in_doubt=policy)
        for say in (task.decide, task.discover, lambda word: task.plan([word])):
            with pytest.raises(TaskWaiting, match=r"waits for 'approval', so it takes no "):
                say("pay")
        with pytest.raises(TaskWaiting, match=r"is not finished.*has caught TaskWaiting"):
            task.finish()
        assert task.in_doubt == []
        assert types(store) == ["created", "waiting"]
        place.open().signal("t", "approval", "yes")
        assert task.step("pay", pay, in_doubt="ask") == "paid"
        assert task.step("pay", pay) == "paid too"
    assert len(pay.calls) == 2


def test_a_step_that_swallows_its_wait_has_no_result() -> None:
    """What a framework made of the refusal would be the step's answer for good."""

    def agent() -> str:
        try:
            return str(task.step("look", lambda: task.wait_for("approval")))
        except Exception as error:  # noqa: BLE001 - as frameworks do around tools
            return f"the tool failed: {error}"

    with limpet.open("memory:") as store:
        with ended_by(TaskWaiting, store.task("t", GOAL), "waits for the signal") as task:
            task.step("agent", agent)
        assert types(store) == ["created", "waiting"]
        store.signal("t", "approval", "yes")
        with store.task("t") as task:
            assert task.step("agent", agent) == "yes"


def test_what_runs_beside_a_wait_is_recorded() -> None:
    """It was begun before; what it has found and done is not to be done again."""

    async def main() -> None:
        async with limpet.open_async("memory:") as store, store.task("t", GOAL) as task:
            waits = asyncio.Event()

            async def look() -> str:
                await waits.wait()
                await task.discover("it is late")
                return "looked"

            async def wait() -> None:
                try:
                    await task.wait_for("approval")
                finally:
                    waits.set()

            both = asyncio.gather(task.step("look", look), wait(), return_exceptions=True)
            looked, refused = await both
            assert (looked, type(refused)) == ("looked", TaskWaiting)
            assert task.discoveries == ["it is late"]
            with pytest.raises(TaskWaiting, match="'pay' is not begun"):
                await task.step("pay", Calls())

    asyncio.run(main())


def test_those_who_wait_on_a_loop_take_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The few there are serve everybody's calls."""

    async def main() -> None:
        async with limpet.open_async("memory:") as store:
            looks: list[float] = []

            def look(key: Key, *, after: int, timeout: float) -> bool:
                looks.append(timeout)
                head = store.backend.head(key)
                return head is not None and head.seq > after

            monkeypatch.setattr(store.backend, "wait", look)

            async def wait(id_: str) -> Any:
                async with store.task(id_, GOAL) as task:
                    return await task.wait_for("word", block=60)

            ids = [f"t{number}" for number in range(20)]
            waiting = [asyncio.create_task(wait(id_)) for id_ in ids]
            while len(looks) < len(ids):  # noqa: ASYNC110 - the backend knows no loop
                await asyncio.sleep(0.01)
            for id_ in ids:
                await store.signal(id_, "word", "go")
            assert await asyncio.gather(*waiting) == ["go"] * len(ids)
            assert set(looks) == {0.0}

    asyncio.run(main())


# -- sleep -----------------------------------------------------------------------------------------


def test_a_short_sleep_is_slept_here(store: Store) -> None:
    """And only once."""
    with store.task("t", GOAL) as task:
        task.sleep(0.01)
    assert types(store) == ["created", "waiting", "step"]
    with store.task("t") as task:
        task.sleep(600)


def test_a_long_sleep_frees_the_process_until_it_is_due(place: Place, store: Store) -> None:
    """The time is in the record; opening it early waits again, for what is left."""
    with pytest.raises(TaskWaiting, match="sleeps until") as caught, store.task("t", GOAL) as task:
        task.sleep(60, block=0)
    due = caught.value.until
    assert store.task("t").info().due == due
    with pytest.raises(TaskWaiting) as caught, place.open().task("t") as task:
        task.sleep(60, block=0)
    assert caught.value.until == due


def test_a_sleep_cut_short_by_a_crash_goes_on_from_its_first_second(
    place: Place, store: Store
) -> None:
    """The wait is recorded before it begins."""
    with killed(), store.task("t", GOAL) as task:
        record = task.runner.record
        record.runtime = Dying(record.runtime, task)
        task.sleep(0.05)
    until = store.journal("task", "t").read()[-1].body["until"]
    with place.open().task("t") as task:
        task.sleep(60)
        assert datetime.now(UTC) >= datetime.fromisoformat(until)
    assert store.task("t").info().due is None


class Dying:
    """A runtime that dies when it is to sleep."""

    def __init__(self, runtime: Any, task: Any) -> None:
        self._runtime = runtime
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    async def sleep(self, seconds: float) -> None:
        """The end."""
        die(self._task)


# -- pause, cancel, resume, deadline ---------------------------------------------------------------


def test_a_paused_task_is_not_opened_until_it_is_resumed(everywhere: Place) -> None:
    """The message says how."""
    store = everywhere.open()
    with store.task("t", GOAL) as task:
        task.step("a", lambda: 1)
    store.pause("t", because="the customer called")
    with pytest.raises(TaskPaused, match=r"limpet task resume t"), store.task("t"):
        pass
    store.resume("t")
    with store.task("t") as task:
        assert task.step("a", Calls()) == 1


@pytest.mark.parametrize(
    ("how", "error"), [("pause", TaskPaused), ("cancel", TaskCancelled)], ids=["pause", "cancel"]
)
def test_who_works_on_it_stops_before_the_next_step_but_one(
    place: Place, store: Store, how: str, error: type[BaseException]
) -> None:
    """The step under way ends, and is recorded; then it is noticed."""
    after = Calls()
    with ended_by(error, store.task("t", GOAL)) as task:
        getattr(place.open(), how)("t")
        task.step("a", lambda: 1)
        task.step("b", after)
    assert after.calls == []
    assert store.task("t").checkpoint().completed == ["a"]
    assert "stopped" not in types(store)


def test_a_cancelled_task_is_over_unless_somebody_thinks_better_of_it(store: Store) -> None:
    """It says why; it takes no signal; it can be resumed."""
    with store.task("t", GOAL):
        pass
    store.cancel("t", because="a duplicate")
    assert store.task("t").checkpoint().error == "a duplicate"
    with pytest.raises(TaskFinished, match="is cancelled"):
        store.signal("t", "approval")
    with pytest.raises(TaskCancelled), store.task("t"):
        pass
    store.resume("t")
    with store.task("t") as task:
        task.finish()
    with pytest.raises(TaskFinished, match="is done"):
        store.cancel("t")


@pytest.mark.parametrize(("how", "status"), [("pause", "paused"), ("cancel", "cancelled")])
def test_an_error_does_not_undo_what_somebody_said_meanwhile(
    place: Place, store: Store, how: str, status: str
) -> None:
    """After the last attempt the task would have failed; it stays halted, and has the error."""
    fetch = Calls(OSError("gone"))
    with ended_by(OSError, store.task("t", GOAL)) as task:
        try:
            task.step("fetch", fetch, retry=1)
        finally:
            getattr(place.open(), how)("t")
    assert store.task("t").info().status == status
    assert store.task("t").checkpoint().error == "OSError: gone"
    assert types(store)[-1] == "stopped"


def test_a_task_has_until_its_deadline(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it takes nothing more, and has failed."""
    with ended_by(DeadlinePassed, store.task("t", GOAL, deadline=3600), "had until") as task:
        deadline = task.deadline
        assert deadline is not None
        task.step("a", int)
        monkeypatch.setattr(LiveTask, "now", lambda _: deadline)
        task.step("b", Calls())
    assert store.task("t").info().status == "failed"
    assert store.task("t").checkpoint().completed == ["a"]


def test_a_task_that_waits_is_due_at_its_deadline(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or nobody would open it to find that it has failed."""
    with ended_by(TaskWaiting, store.task("t", GOAL, deadline=60)) as task:
        task.wait_for("approval")
    assert store.task("t").info().due == task.deadline
    later = datetime.now(UTC) + timedelta(hours=1)
    monkeypatch.setattr(LiveTask, "now", lambda _: later)
    with ended_by(DeadlinePassed, store.task("t")) as task:
        task.wait_for("approval")
    assert store.task("t").info().status == "failed"


@pytest.mark.parametrize("deadline", [0, -1, datetime(2026, 1, 1)], ids=["0", "-1", "naive"])  # noqa: DTZ001
def test_a_deadline_is_a_time_to_come(store: Store, deadline: Any) -> None:
    """A time without a zone is another time elsewhere."""
    with pytest.raises(ValueError, match="deadline"):
        store.task("t", GOAL, deadline=deadline)


def test_a_deadline_may_be_a_moment(store: Store) -> None:
    """In any time zone."""
    moment = datetime.now(UTC) + timedelta(hours=1)
    with store.task("t", GOAL, deadline=moment) as task:
        assert task.deadline == moment


# -- submitting ------------------------------------------------------------------------------------


def test_a_submitted_task_is_there_for_a_worker(everywhere: Place) -> None:
    """With its kind, its input, and nobody who works on it."""
    store = everywhere.open()
    info = store.submit("refund", "t", GOAL, input={"order": 7}, labels={"team": "a"})
    assert (info.id, info.kind, info.status, info.held_by) == ("t", "refund", "open", None)
    assert info.labels == {"team": "a", "run": "refund"}
    with everywhere.open().task("t") as task:
        assert (task.goal, task.kind, task.input) == (GOAL, "refund", {"order": 7})


def test_submitting_again_changes_nothing(store: Store) -> None:
    """A retry after a lost reply is harmless; another task with that id is refused."""
    for _ in range(2):
        store.submit("refund", "t", GOAL, input={"orders": (1, 2)})
    assert types(store) == ["created"]
    with pytest.raises(GoalMismatch, match="Task 't' was submitted with another input"):
        store.submit("refund", "t", GOAL, input={"orders": (1, 3)})
    with pytest.raises(GoalMismatch, match="There is a task 't' already: a refund"):
        store.submit("invoice", "t", GOAL)
    with pytest.raises(NotStorable, match="input"):
        store.submit("refund", "u", GOAL, input=object())


# -- the end ---------------------------------------------------------------------------------------


def test_a_finished_task_is_handed_on_before_it_goes(place: Place, store: Store) -> None:
    """Whoever wants to learn from it gets the whole of it; then nothing is left."""
    handed: list[Any] = []
    store.on_finish(handed.append)
    with store.task("t", GOAL) as task:
        task.discover("the API allows 100 calls a minute")
        assert task.finish("done", keep=False) == "done"
    assert [(point.task_id, point.outcome) for point in handed] == [("t", "done")]
    assert handed[0].discoveries == ["the API allows 100 calls a minute"]
    assert store.journal("task", "t").head() is None


def test_a_finished_task_goes_while_it_is_ours_or_not_at_all(store: Store) -> None:
    """The next one of its id is another worker's."""
    key = store.journal("task", "t").key
    with store.task("t", GOAL) as task:
        task.finish("done", keep=False)
        lease = store.backend.head(key).lease  # type: ignore[union-attr]
        assert lease is not None
        store.backend.acquire(key, "rival", 60, over=lease.epoch)
    assert store.task("t").checkpoint().outcome == "done"


def test_what_was_not_handed_on_is_handed_on_later(place: Place, store: Store) -> None:
    """A crash before the callback loses nothing; whoever was handed it does not get it again."""
    store.on_finish(Calls(limpet.StoreUnavailable("not now")))
    with pytest.raises(limpet.StoreUnavailable), store.task("t", GOAL) as task:
        task.finish("done")
    later = place.open()
    callback = Calls()
    later.on_finish(callback)
    for _ in range(2):
        with later.task("t") as task:
            assert task.outcome == "done"
    assert len(callback.calls) == 1


def test_what_is_left_to_do_for_a_finished_task_is_there_for_a_worker(store: Store) -> None:
    """It is listed as open until it has been handed on, or is gone."""
    store.on_finish(Calls(limpet.StoreUnavailable("not now")))
    with pytest.raises(limpet.StoreUnavailable), store.task("t", GOAL) as task:
        task.finish("done", keep=False)
    assert [found.id for found in store.tasks(status="open")] == ["t"]
    with store.task("t") as task:
        assert task.done
    assert store.journal("task", "t").head() is None


def test_labels_that_mean_something_are_not_the_users(store: Store) -> None:
    """A worker would look for the wrong tasks."""
    for name in ("run", "due", "parent"):
        with pytest.raises(InvalidId, match="set by Limpet"):
            store.task("t", GOAL, labels={name: "x"})
    with store.task("t", GOAL) as task, pytest.raises(InvalidId):
        task.label(due="soon")


def test_a_finished_task_may_stay_for_a_while(store: Store) -> None:
    """As long as it is told to."""
    with store.task("t", GOAL) as task:
        task.finish("done", keep=0.01)
    time.sleep(0.02)
    assert store.journal("task", "t").head() is None


def test_a_function_can_be_the_whole_task(place: Place, store: Store) -> None:
    """What it returns is the outcome, and it is not called for a task that is done."""
    function = Calls("done")
    assert store.task("t", GOAL).work(function, 1) == "done"
    assert place.open().task("t").work(function, 1) == "done"
    assert len(function.calls) == 1
    shown = function.calls[0][0]
    assert isinstance(shown, limpet.AsyncTask if isinstance(store, Driven) else limpet.Task)


# -- what others say at the wrong moment -----------------------------------------------------------


def test_a_cancel_that_comes_before_the_effect_prevents_it(place: Place, store: Store) -> None:
    """It is noticed when the beginning is recorded, and leaves no doubt behind."""
    send = Calls()
    with ended_by(TaskCancelled, store.task("t", GOAL)) as task:
        place.open().cancel("t")
        task.step("send", send, in_doubt="ask")
    assert send.calls == []
    store.resume("t")
    with store.task("t") as task:
        assert task.in_doubt == []
        assert task.step("send", Calls("sent"), in_doubt="ask") == "sent"


def test_a_cancel_while_a_task_is_opened_is_not_lost(
    place: Place, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens it looks again if somebody spoke in between."""
    with store.task("t", GOAL):
        pass
    task, other = store.task("t"), place.open()
    refresh = task.runner.record.refresh
    spoken: list[bool] = []

    async def interrupted() -> None:
        await refresh()
        if not spoken:
            spoken.append(True)
            place.beside().cancel("t")

    monkeypatch.setattr(task.runner.record, "refresh", interrupted)
    with pytest.raises(TaskCancelled), task:
        pass
    assert other.task("t").info().status == "cancelled"


def test_a_signal_repeated_after_the_end_is_still_harmless(store: Store) -> None:
    """With its id: the answer to the first was lost, and the task has gone on meanwhile."""
    with store.task("t", GOAL) as task:
        store.signal("t", "approval", "yes", id="click-1")
        task.finish(task.wait_for("approval"))
    store.signal("t", "approval", "yes", id="click-1")
    with pytest.raises(TaskFinished):
        store.signal("t", "approval", "yes", id="click-2")


def test_what_has_no_callback_here_is_not_left_to_workers(place: Place, store: Store) -> None:
    """They would open it again and again; whoever has one finds it by opening it."""
    store.on_finish(Calls(limpet.StoreUnavailable("not now")))
    with pytest.raises(limpet.StoreUnavailable), store.task("t", GOAL) as task:
        task.finish("done")
    with place.open().task("t") as task:
        assert task.done
    assert list(store.tasks(status="open")) == []
    with store.task("t") as task:
        assert task.runner.live.state.handed_on


def test_errors_in_a_group_count_one_by_one(tmp_path: Any) -> None:
    """As a TaskGroup raises them: a step that is given up fails the task, a wait does not."""

    async def main() -> None:
        async with limpet.open_async(tmp_path / "db") as store:
            with pytest.raises(ExceptionGroup):
                async with store.task("a", GOAL) as task, asyncio.TaskGroup() as group:
                    group.create_task(task.step("x", Calls(ValueError()), retry=1))
            with pytest.raises(BaseExceptionGroup):
                async with store.task("b", GOAL) as task, asyncio.TaskGroup() as group:
                    group.create_task(task.wait_for("approval"))
            assert (await store.task("a").info()).status == "failed"
            assert (await store.task("b").info()).status == "waiting"

    asyncio.run(main())
