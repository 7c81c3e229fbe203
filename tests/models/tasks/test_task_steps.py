"""Steps that are tried again, that report, and that nobody knows whether they happened."""

import asyncio
import threading
import time
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import LeaseLost, NotStorable, Retry, Store, TaskHeld, TaskWaiting, current_step
from limpet.errors import NotFound, StepTimedOut, WrongType
from limpet.tasks.record import ProgressReports
from tests.support import stores
from tests.support.dying import Calls, die, dying, ended_by, killed
from tests.support.stores import Place

place, store, everywhere = stores.place, stores.store, stores.everywhere

GOAL = "Tell everybody"
AT_ONCE = Retry(attempts=3, wait=0)


class Boom(Exception):
    """What goes wrong in these tests."""


def types(store: Store, task: str = "t") -> list[str]:
    """The types of a task's entries."""
    return [entry.type for entry in store.journal("task", task).read()]


# -- in doubt --------------------------------------------------------------------------------------


def test_a_step_in_doubt_is_run_again_unless_it_says_otherwise(place: Place, store: Store) -> None:
    """And nothing was written before it ran: idempotent steps pay for one entry."""
    fetch = Calls("a", "b")
    with killed(), store.task("t", GOAL) as task:
        task.step("fetch", dying(task, fetch))
    assert types(store) == ["created"]
    with place.open().task("t") as task:
        assert task.step("fetch", fetch) == "b"


def test_a_verified_step_takes_its_result_from_what_happened(everywhere: Place) -> None:
    """The function is asked with the idempotency key, and the step is not run again."""
    sent: dict[str, str] = {}

    def send() -> str:
        sent[current_step().idempotency_key] = "receipt 7"
        return "receipt 7"

    with killed(), everywhere.open().task("t", GOAL) as task:
        task.step("send", dying(task, send), in_doubt="verify", verify=sent.get)
    send_again = Calls()
    with everywhere.open().task("t") as task:
        assert task.in_doubt == ["send"]
        assert task.step("send", send_again, verify=sent.get) == "receipt 7"
        assert task.in_doubt == []
    assert send_again.calls == []
    assert list(sent.values()) == ["receipt 7"]


def test_a_verified_step_that_did_not_happen_is_run(place: Place, store: Store) -> None:
    """The function's None says so."""
    with killed(), store.task("t", GOAL) as task:
        task.step("send", dying(task), verify=lambda key: None)
    send = Calls("sent")
    with place.open().task("t") as task:
        assert task.step("send", send, verify=lambda key: None) == "sent"
    assert types(store) == ["created", "began", "resumed", "began", "step"]


def test_a_step_whose_verification_fails_stays_in_doubt(place: Place, store: Store) -> None:
    """It is neither run again nor taken for done."""
    with killed(), store.task("t", GOAL) as task:
        task.step("send", dying(task), verify=Calls())
    send = Calls()
    with pytest.raises(Boom), place.open().task("t") as task:
        task.step("send", send, verify=Calls(Boom("no network")))
    with place.open().task("t") as task:
        assert task.in_doubt == ["send"]
    assert send.calls == []


def test_a_step_that_asks_waits_for_a_person(everywhere: Place) -> None:
    """The task pauses, says what to do, and goes on with what the person said."""
    store = everywhere.open()
    with killed(), store.task("t", GOAL) as task:
        task.step("send", dying(task), in_doubt="ask")
    send = Calls()
    with (
        pytest.raises(TaskWaiting, match="limpet task resolve t send done"),
        store.task("t") as task,
    ):
        task.step("send", send, in_doubt="ask")
    assert [found.id for found in store.tasks(status="waiting")] == ["t"]
    store.resolve("t", "send", "done", result="receipt 7", by="alice")
    assert store.task("t").info().status == "open"
    with everywhere.open().task("t") as task:
        assert task.step("send", send, in_doubt="ask") == "receipt 7"
    assert send.calls == []


def test_a_task_does_not_end_before_a_person_was_asked(place: Place, store: Store) -> None:
    """Also if the program that goes on does not come to the step; but an error, it has seen."""
    with killed(), store.task("t", GOAL) as task:
        task.step("charge", dying(task), in_doubt="ask")
    with ended_by(TaskWaiting, place.open().task("t"), "limpet task resolve t charge done") as task:
        task.finish("all done")
    assert [found.id for found in store.tasks(status="waiting")] == ["t"]
    store.resolve("t", "charge", "done")
    with place.open().task("t") as task:
        with pytest.raises(Boom):
            task.step("send", Calls(Boom()), in_doubt="ask")
        assert task.in_doubt == ["send"]
        assert task.finish("all but that") == "all but that"


@pytest.mark.parametrize(("answer", "result"), [("retry", "sent"), ("skip", None)])
def test_a_person_may_say_again_or_never_mind(
    place: Place, store: Store, answer: str, result: str | None
) -> None:
    """A retry runs it, with its beginning recorded anew; a skip leaves it without a result."""
    with killed(), store.task("t", GOAL) as task:
        task.step("send", dying(task), in_doubt="ask")
    with pytest.raises(TaskWaiting), store.task("t") as task:
        task.step("send", Calls(), in_doubt="ask")
    store.resolve("t", "send", answer)
    send = Calls("sent")
    with place.open().task("t") as task:
        assert task.step("send", send, in_doubt="ask") == result
    assert len(send.calls) == (answer == "retry")


def test_only_what_is_in_doubt_can_be_resolved(store: Store) -> None:
    """And only as one of three."""
    with store.task("t", GOAL) as task:
        task.step("send", Calls())
    with pytest.raises(NotFound, match=r"^Step 'send' of task 't' is not in doubt\. .*: none"):
        store.resolve("t", "send", "done")
    with pytest.raises(ValueError, match="one of done, retry, skip; not 'maybe'"):
        store.resolve("t", "send", "maybe")
    with pytest.raises(ValueError, match="Only a step that is done has a result"):
        store.resolve("t", "send", "retry", result=1)
    with pytest.raises(limpet.errors.TaskNotFound):
        store.resolve("nobody", "send", "done")


def test_a_step_that_runs_cannot_be_resolved(place: Place, store: Store) -> None:
    """Its mark would be gone, and if its process died it would run twice."""
    beside = place.beside()
    send = Calls()
    with killed(), store.task("t", GOAL) as task:

        def body() -> None:
            send()
            with pytest.raises(TaskHeld, match="'send' of task 't' is running"):
                beside.resolve("t", "send", "retry")
            die(task)

        task.step("send", body, in_doubt="ask")
    with ended_by(TaskWaiting, place.open().task("t")) as task:
        task.step("send", send, in_doubt="ask")
    assert len(send.calls) == 1


def test_a_step_to_be_skipped_is_left_out_when_in_doubt(place: Place, store: Store) -> None:
    """It has no result, and the record says why."""
    with killed(), store.task("t", GOAL) as task:
        task.step("notify", dying(task), in_doubt="skip")
    notify = Calls()
    with place.open().task("t") as task:
        assert task.step("notify", notify, in_doubt="skip") is None
        assert task.results == {"notify": None}
    assert notify.calls == []
    assert store.journal("task", "t").read()[-1].body["because"] == "it was in doubt"


def test_an_error_leaves_a_marked_step_in_doubt(place: Place, store: Store) -> None:
    """A timeout does not say whether the mail went out; the person sees the error."""
    with pytest.raises(Boom), store.task("t", GOAL) as task:
        task.step("send", Calls(Boom("no answer")), in_doubt="ask")
    with ended_by(TaskWaiting, place.open().task("t")) as task:
        assert "no answer" in str(task.runner.live.state.calls.open["send"].error)
        task.step("send", Calls(), in_doubt="ask")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_doubt": "pray"}, "in_doubt is one of retry, verify, ask, skip; not 'pray'"),
        ({"in_doubt": "verify"}, "go together"),
        ({"in_doubt": "ask", "verify": Calls()}, "go together"),
        ({"in_doubt": "ask", "retry": 3}, "Name those after which it certainly has not"),
        ({"retry": 0}, "attempts and a factor of at least 1"),
    ],
    ids=["policy", "no-function", "no-use", "any-error", "no-attempt"],
)
def test_options_that_make_no_sense_are_refused(
    store: Store, options: dict[str, Any], message: str
) -> None:
    """Before the step runs."""
    send = Calls()
    with pytest.raises(ValueError, match=message), store.task("t", GOAL) as task:
        task.step("send", send, **options)
    assert send.calls == []


@pytest.mark.parametrize("retry", [True, False, "often", 2.5])
def test_what_is_no_number_of_attempts_is_refused(store: Store, retry: Any) -> None:
    """True would be one attempt, which nobody means by it."""
    send = Calls()
    with ended_by(TypeError, store.task("t", GOAL), "a number of attempts, or a Retry; ") as task:
        task.step("send", send, retry=retry)
    with pytest.raises(TypeError, match=f"a number of attempts, or a Retry; not {retry!r}"):
        limpet.effect(retry=retry)
    assert send.calls == []


# -- retries ---------------------------------------------------------------------------------------


def test_a_step_is_tried_again_and_its_errors_are_recorded(place: Place, store: Store) -> None:
    """As often as is said, with what went wrong."""
    fetch = Calls(Boom("one"), Boom("two"), "rows")
    with store.task("t", GOAL) as task:
        assert task.step("fetch", fetch, retry=AT_ONCE) == "rows"
    tried = [entry.body for entry in store.journal("task", "t").read() if entry.type == "tried"]
    assert [(one["attempt"], one["error"]) for one in tried] == [(1, "Boom: one"), (2, "Boom: two")]


def test_after_the_last_attempt_the_task_has_failed_and_can_be_resumed(
    place: Place, store: Store
) -> None:
    """After a fix, with all its attempts again."""
    with pytest.raises(Boom, match="three"), store.task("t", GOAL) as task:
        task.step("fetch", Calls(Boom("one"), Boom("two"), Boom("three")), retry=AT_ONCE)
    assert store.task("t").info().status == "failed"
    with place.open().task("t") as task:
        fetch = Calls(Boom("four"), Boom("five"), "rows")
        assert task.step("fetch", fetch, retry=AT_ONCE) == "rows"


def test_a_last_error_that_is_caught_fails_nothing(store: Store) -> None:
    """The task may know another way."""
    with store.task("t", GOAL) as task:
        with pytest.raises(Boom):
            task.step("fetch", Calls(Boom(), Boom(), Boom()), retry=AT_ONCE)
        assert task.step("cached", lambda: "rows") == "rows"
        task.finish("rows")
    assert store.task("t").info().status == "done"


def test_the_same_step_after_an_error_is_the_same_step(place: Place, store: Store) -> None:
    """Whoever tries again by hand finds it under its name when the task is resumed."""
    fetch = Calls(Boom("one"), "rows")

    def by_hand(store: Store) -> Any:
        with store.task("t", GOAL) as task:
            try:
                return task.step("fetch", fetch)
            except Boom:
                return task.step("fetch", fetch)

    assert by_hand(store) == by_hand(place.open()) == "rows"
    assert store.task("t").checkpoint().completed == ["fetch"]
    assert len(fetch.calls) == 2


def test_only_errors_worth_it_are_tried_again(store: Store) -> None:
    """Another try does not mend a wrong argument."""
    fetch = Calls(Boom("one"), ValueError("wrong"), "rows")
    with pytest.raises(ValueError, match="wrong"), store.task("t", GOAL) as task:
        task.step("fetch", fetch, retry=Retry(attempts=5, on=Boom, wait=0))
    assert len(fetch.calls) == 2


def test_attempts_are_counted_over_restarts(place: Place, store: Store) -> None:
    """A step that kills its process is not tried for ever."""
    seen: list[int] = []
    with killed(), store.task("t", GOAL) as task:
        fail = Calls(Boom("one"))

        def body() -> None:
            seen.append(current_step().attempt)
            fail() if len(seen) == 1 else die(task)

        task.step("fetch", body, retry=AT_ONCE)
    with pytest.raises(Boom), place.open().task("t") as task:
        task.step("fetch", Calls(Boom("two"), Boom("three")), retry=AT_ONCE)
    assert seen == [1, 2]
    assert store.task("t").info().status == "failed"


def test_a_step_to_be_verified_is_verified_before_the_next_attempt(store: Store) -> None:
    """An error may come after the effect."""
    send = Calls(Boom("lost the reply"))
    with store.task("t", GOAL) as task:
        assert task.step("send", send, verify=lambda _key: "found", retry=AT_ONCE) == "found"
    assert len(send.calls) == 1


def test_an_attempt_that_takes_too_long_is_given_up(store: Store) -> None:
    """And counts as a failure."""
    gate = threading.Event()
    slow = Retry(attempts=2, wait=0, timeout=0.05)
    with ended_by(
        StepTimedOut, store.task("t", GOAL), "2 at step 'fetch' of task 't'.*0.05"
    ) as task:
        task.step("fetch", gate.wait, retry=slow)
    gate.set()
    assert types(store) == ["created", "tried", "tried", "failed"]
    with store.task("t") as task:
        assert task.step("fetch", lambda: "rows", retry=Retry(attempts=2, timeout=60)) == "rows"
        with pytest.raises(TimeoutError, match="own"):
            task.step("own", Calls(TimeoutError("own")), retry=Retry(attempts=1, timeout=60))


def test_what_is_not_a_function_is_named_before_anything_is_written(tmp_path: Path) -> None:
    """To pass what it returns is the first mistake that everybody makes."""

    def fetch() -> list[int]:
        return [1]

    async def fetch_too() -> list[int]:
        return [1]

    async def main() -> None:
        async with limpet.open_async(tmp_path / "db") as store, store.task("t", GOAL) as task:
            with pytest.raises(
                TypeError, match=r"step\('fetch', …\) takes a function, .*coroutine"
            ):
                await task.step("fetch", fetch_too())  # type: ignore[call-overload]
            with pytest.raises(TypeError, match=r"child\('part', …\) takes a function"):
                await task.child("part", fetch())  # type: ignore[arg-type]

    asyncio.run(main())
    with limpet.open(tmp_path / "db") as store, store.task("t", GOAL) as task:
        with pytest.raises(
            TypeError, match=r"of type list\. Pass the function, .*not f\(x\), but f"
        ):
            task.step("fetch", fetch(), in_doubt="ask")  # type: ignore[call-overload]
        assert task.in_doubt == []
        assert task.step("fetch", fetch) == [1]
        with pytest.raises(WrongType, match="The result of step 'fetch' of task 't' does not fit"):
            task.result("fetch", as_=int)


def test_an_awaited_attempt_that_takes_too_long_is_cancelled(tmp_path: Path) -> None:
    """Nothing of it goes on."""
    ended = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def main() -> None:
        async with limpet.open_async(tmp_path / "db") as store:
            with pytest.raises(StepTimedOut):
                async with store.task("t", GOAL) as task:
                    await task.step("slow", slow, retry=Retry(attempts=1, timeout=0.05))
        assert ended == [True]

    asyncio.run(main())


def test_a_step_that_was_cancelled_is_the_same_when_it_is_called_again(tmp_path: Path) -> None:
    """By its name: as another one it would be paid for again after a crash."""
    charge = Calls("charged")

    async def hang() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        async with limpet.open_async(tmp_path / "db") as store:
            async with store.task("t", GOAL) as task:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(task.step("charge", hang), 0.01)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(task.wait_for("word", block=60), 0.01)
                await store.signal("t", "word", "aye")
                await task.wait_for("word")
                await task.step("charge", charge)
            async with store.task("t", GOAL) as task:
                assert await task.step("charge", charge) == "charged"
                assert set(task.results) == {"charge", "word"}

    asyncio.run(main())
    assert len(charge.calls) == 1


def test_an_attempt_that_ends_as_it_is_given_up_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result is there, so it is taken."""
    given_up = threading.Event()
    result = Future.result

    def late(self: Future[Any], timeout: float | None = None) -> Any:
        try:
            return result(self, timeout)
        except TimeoutError:
            given_up.set()
            wait([self])
            raise

    monkeypatch.setattr(Future, "result", late)
    with limpet.open("memory:") as store, store.task("t", GOAL) as task:
        slow = Retry(attempts=1, timeout=0.01)
        assert task.step("fetch", lambda: given_up.wait(30) and "rows", retry=slow) == "rows"


def test_waits_grow_up_to_a_limit_and_are_left_to_chance() -> None:
    """So that many who failed together do not come back together."""
    steady = Retry(attempts=100, wait=1, factor=2, most=10, jitter=0)
    assert [steady.delay(n, Boom()) for n in (1, 2, 3, 4, 5, 99)] == [1, 2, 4, 8, 10, 10]
    assert steady.delay(100, Boom()) is None
    assert Retry(attempts=10_000, factor=5, jitter=0).delay(5_000, Boom()) == 60
    spread = [Retry(wait=1, jitter=0.5).delay(1, Boom()) for _ in range(100)]
    assert all(0.5 <= delay <= 1 for delay in spread if delay)
    assert len(set(spread)) > 50


# -- progress --------------------------------------------------------------------------------------


def test_a_resumed_step_can_read_how_far_it_had_come(everywhere: Place) -> None:
    """The progress it asked to store at once is there after the crash."""
    with killed(), everywhere.open().task("t", GOAL) as task:

        def scan() -> None:
            assert current_step().last_progress is None
            current_step().progress(0.4, "page 12", {"page": 12}, now=True)
            die(task)

        task.step("scan", scan)
    with everywhere.open().task("t") as task:

        def resumed() -> Any:
            found = current_step().last_progress
            assert found is not None
            return [found.fraction, found.note, found.data]

        assert task.step("scan", resumed) == [0.4, "page 12", {"page": 12}]
        assert task.runner.live.state.progress == {}


def test_the_heartbeat_stores_what_was_reported_last(place: Place, store: Store) -> None:
    """Not each report: the newest, with the lease."""
    beside = place.beside()

    def scan() -> None:
        for page in range(100):
            current_step().progress(page / 100, f"page {page}")
        deadline = time.monotonic() + 30
        while "progress" not in types(beside) and time.monotonic() < deadline:
            time.sleep(0.01)

    with store.task("t", GOAL, heartbeat=0.05) as task:
        task.step("scan", scan)
    stored = [entry.body for entry in store.journal("task", "t").read() if entry.type == "progress"]
    assert stored[-1]["note"] == "page 99"
    assert len(stored) < 100


def test_progress_of_a_step_that_failed_is_kept(place: Place, store: Store) -> None:
    """An error is no reason to begin at the beginning."""

    def scan() -> None:
        current_step().progress(0.5, "half")
        raise Boom

    with pytest.raises(Boom), store.task("t", GOAL) as task:
        task.step("scan", scan)
    with place.open().task("t") as task:
        note = task.step("scan", lambda: getattr(current_step().last_progress, "note", None))
    assert note == "half"


def test_an_older_report_is_not_stored_behind_a_newer_one() -> None:
    """A heartbeat has taken it, and is slow, when the next one is stored at once."""
    reports, stored = ProgressReports(), Calls()
    under_way, go_on = threading.Event(), threading.Event()

    def slowly(body: dict[str, Any]) -> None:
        under_way.set()
        assert go_on.wait(30)
        stored(body)

    reports.add("scan", {"page": 1})
    heartbeat = threading.Thread(target=reports.store, args=(slowly,))
    heartbeat.start()
    assert under_way.wait(30)
    reports.add("scan", {"page": 2})
    at_once = threading.Thread(target=reports.store, args=(stored,))
    at_once.start()
    at_once.join(0.05)  # it would have overtaken
    go_on.set()
    heartbeat.join()
    at_once.join()
    assert stored.calls == [({"page": 1},), ({"page": 2},)]
    assert not reports


def test_progress_that_goes_nowhere_is_no_progress(place: Place, store: Store) -> None:
    """A step that reports the same and dies each time comes to nothing each time."""
    for fraction, fruitless in ((0.5, 0), (0.5, 1), (0.5, 2), (0.6, 0)):
        with ended_by(Boom, place.open().task("t", GOAL)) as task:

            def scan(fraction: float = fraction) -> None:
                current_step().progress(fraction, now=True)
                raise Boom

            task.step("scan", scan)
        assert task.runner.live.state.fruitless == fruitless


def test_progress_that_cannot_be_stored_is_refused_where_it_is_said(store: Store) -> None:
    """Not a minute later, on another thread."""
    with store.task("t", GOAL) as task, pytest.raises(NotStorable):
        task.step("scan", lambda: current_step().progress(0.1, data=threading.Lock()))
    with store.task("t") as task, pytest.raises(ValueError, match="from 0 to 1; not 40"):
        task.step("scan", lambda: current_step().progress(40))


# -- opened and closed ----------------------------------------------------------------------------


def test_an_open_task_cannot_be_opened_again_and_keeps_its_numbers(store: Store) -> None:
    """Or its second step of a name would be taken for the first."""
    with store.task("t", GOAL) as task:
        assert task.step("a", lambda: 1) == 1
        with pytest.raises(TaskHeld), task:
            pass
        assert task.step("a", lambda: 2) == 2
        assert list(task.results) == ["a", "a#2"]


def test_a_worker_that_was_fenced_off_does_not_try_again(store: Store) -> None:
    """Whoever has taken over does."""
    fetch = Calls(Boom())
    with ended_by(LeaseLost, store.task("t", GOAL)) as task:
        store.journal("task", "t").delete()
        task.step("fetch", fetch, retry=AT_ONCE)
    assert len(fetch.calls) == 1


def test_the_scratch_is_never_stored(place: Place, store: Store) -> None:
    """It may hold what cannot be."""
    with store.task("t", GOAL) as task:
        task.scratch["lock"] = threading.Lock()
        task.step("use", task.scratch["lock"].locked)
    with place.open().task("t") as task:
        assert task.scratch == {}
