"""A task as people see it: what its entries tell, whatever they are."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import limpet
from limpet import Entry, Retry, current_step
from limpet.backends.contract import Append, Key
from limpet.core.runtime import run_to_end
from limpet.views import PAGE, WHOLE
from limpet.views.heads import head_of
from limpet.views.task import TaskView, task_view
from limpet.views.timeline import Axis, Span, StepLog, StepView
from tests.models.test_damage import seal
from tests.support.dying import Calls, dying, ended_by, killed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet import Store

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty one."""
    with limpet.open("memory:") as opened:
        yield opened


def look(store: Store, id_: str = "t", **options: Any) -> TaskView:
    """The view of a task, which any program can be given as JSON."""
    scope = store.scope.as_sync()
    found = run_to_end(task_view(scope, run_to_end(head_of(scope, "task", id_)), **options))
    assert json.loads(msgspec.json.encode(found))
    return found


def steps(view: TaskView) -> dict[str, StepView]:
    """The steps of a view by name."""
    return {step.name: step for step in view.steps}


def states(view: TaskView) -> dict[str, str]:
    """Their states."""
    return {step.name: step.state for step in view.steps}


def at(second: float) -> datetime:
    """A moment."""
    return START + timedelta(seconds=second)


def log_of(*entries: tuple[float, str, dict[str, Any]]) -> StepLog:
    """The log of some entries, each with its second."""
    log = StepLog("t")
    for seq, (second, kind, body) in enumerate(entries, 1):
        log.apply(Entry(seq, at(second), kind, body))
    return log


def spans(step: StepView | None) -> list[tuple[str, float, float | None]]:
    """What a step did, by seconds."""
    assert step is not None
    return [
        (
            span.kind,
            (span.start - START).total_seconds(),
            None if span.end is None else (span.end - START).total_seconds(),
        )
        for span in step.spans
    ]


# -- steps over time -------------------------------------------------------------------------------


def test_a_step_that_records_only_its_end_ran_as_long_as_that_says() -> None:
    """Most steps: one entry, and a bar."""
    log = log_of((10, "step", {"name": "a", "result": 1, "took": 4.0}))
    step = log.step("a")
    assert spans(step) == [("ran", 6, 10)]
    assert step is not None
    assert (step.state, step.started, step.ended, step.attempts) == ("done", at(6), at(10), 1)


def test_attempts_and_the_pauses_between_them_are_parts_of_a_bar() -> None:
    """The second attempt begins when the pause ends; when the first began, no entry says."""
    log = log_of(
        (5, "tried", {"name": "a", "attempt": 1, "error": "E: 1", "wait": 2.0}),
        (9, "tried", {"name": "a", "attempt": 2, "error": "E: 2", "wait": 1.0}),
        (12, "step", {"name": "a", "result": 1, "took": 1.5}),
    )
    step = log.step("a")
    assert spans(step) == [
        *(("failed", 5, 5), ("waited", 5, 7), ("failed", 7, 9), ("waited", 9, 10)),
        ("ran", 10.5, 12),
    ]
    assert step is not None
    assert (step.attempts, step.retried, step.errors) == (3, True, ["E: 1", "E: 2"])


def test_a_step_of_a_worker_that_died_is_taken_over_and_in_doubt() -> None:
    """It began; somebody else opened the task; a person said that it had not happened."""
    log = log_of(
        (1, "began", {"id": "pay", "policy": "ask", "attempt": 1}),
        (5, "resumed", {"agent": None}),
        (6, "waiting", {"name": "pay", "kind": "ask", "until": None, "away": True}),
        (9, "resolved", {"id": "pay", "how": "retry", "by": "Ann"}),
        (10, "resumed", {"agent": None}),
        (11, "began", {"id": "pay", "policy": "ask", "attempt": 1}),
        (13, "step", {"name": "pay", "result": None, "took": 2.0, "effect": True}),
    )
    step = log.step("pay")
    assert spans(step) == [("taken over", 1, 5), ("in doubt", 5, 9), ("ran", 11, 13)]
    assert step is not None
    assert step.taken_over
    assert (step.state, step.attempts, step.policy) == ("done", 2, "ask")


def test_a_wait_is_as_long_as_the_signal_took() -> None:
    """A wait is a step: of what it came to, the signal is named."""
    log = log_of(
        (1, "waiting", {"name": "go", "kind": "signal", "until": None, "signal": "go"}),
        (7, "signalled", {"name": "go", "payload": 5}),
        (8, "step", {"name": "go", "result": 5, "signal": "go"}),
        (9, "waiting", {"name": "t/part", "kind": "child", "until": None}),
    )
    assert spans(log.step("go")) == [("waited", 1, 8)]
    found = log.step("go")
    assert found is not None
    assert found.source == "signal go"
    assert spans(log.step("part")) == [("waited", 9, None)]


def test_a_step_that_was_undone_begins_anew() -> None:
    """What it did before is still on its bar."""
    log = log_of(
        (2, "step", {"name": "a", "result": 1, "took": 1.0}),
        (3, "rewound", {"to": 1, "forget": ["a"]}),
        (9, "step", {"name": "a", "result": 2, "took": 1.0}),
    )
    step = log.step("a")
    assert spans(step) == [("ran", 1, 2), ("ran", 8, 9)]
    assert step is not None
    assert (step.result, step.attempts) == ("2", 1)


def test_an_axis_is_in_proportion_while_something_runs_and_cuts_long_pauses() -> None:
    """A day of waiting between two seconds of work would leave nothing to be seen of these."""
    work = [Span("ran", at(0), at(1), 1), Span("ran", at(86_401), at(86_402), 2)]
    axis = Axis([*work, Span("waited", at(1), at(86_401), 2)], at(86_402))
    assert axis.place(at(0)) == 0
    assert axis.place(at(1)) == pytest.approx(0.25)
    assert axis.place(at(0.5)) == pytest.approx(axis.place(at(1)) / 2)
    assert axis.place(None) == pytest.approx(1)
    (cut,) = axis.cuts
    assert cut.seconds == 86_400
    assert Axis([Span("waited", at(0), None, 1)], at(5)).place(at(5)) == 1
    assert Axis([], at(5)).place(at(5)) == 0


# -- a task ----------------------------------------------------------------------------------------


def flaky() -> str:
    """It works the third time."""
    if current_step().attempt < 3:
        raise ConnectionError("no")
    return "ok"


def test_what_a_task_came_to_is_in_its_view(store: Store) -> None:
    """Done with several attempts, in doubt, waiting, next: each as what it is."""
    with store.task("t", "Do it", agent="ann", deadline=60) as task:
        task.plan(["a", "b", "c"])
        task.step("a", flaky, retry=Retry(attempts=3, wait=0))
        task.decide("go on", because="all is well")
        task.discover("it is cold")
        task.plan.drop("b", because="nobody reads it")
        store.signal("t", "extra", {"n": 1})
        store.signal("t", "go", "yes")
        assert task.wait_for("go") == "yes"
    with killed(), store.task("t") as task:
        task.step("mail", dying(task), in_doubt="ask")
    with ended_by(limpet.TaskWaiting, store.task("t")) as task:
        task.step("mail", Calls(), in_doubt="ask")
    view = look(store)
    assert states(view) == {"a": "done", "go": "done", "mail": "in doubt", "c": "next"}
    assert (steps(view)["a"].attempts, steps(view)["mail"].taken_over) == (3, True)
    assert [step.name for step in view.plan] == ["a", "c"]
    assert [(change.because, change.names) for change in view.plan_changes] == [
        ("nobody reads it", ["a", "c"])
    ]
    assert [(note.text, note.because) for note in view.decisions] == [("go on", "all is well")]
    assert [note.text for note in view.discoveries] == ["it is cold"]
    assert [(s.name, s.payload, s.taken) for s in view.signals] == [
        ("extra", {"n": 1}, False),
        ("go", "yes", True),
    ]
    assert [(wait.name, wait.kind) for wait in view.waits] == [("mail", "ask")]
    assert (view.goal, view.agent, view.status) == ("Do it", "ann", "waiting")
    assert view.deadline is not None
    assert view.history[-1].text == "Do it"
    assert view.history[0].seq == view.head.seq


def test_a_failure_names_its_step_and_its_place(store: Store) -> None:
    """Whoever is to mend it wants to know where."""
    with ended_by(ZeroDivisionError, store.task("t", "Divide")) as task:
        task.step("divide", lambda: 1 / 0, retry=Retry(attempts=2, wait=0))
    view = look(store)
    assert (view.status, view.failed_step) == ("failed", "divide")
    assert view.error == "ZeroDivisionError: division by zero"
    assert view.place is not None
    assert "test_views_task.py:" in view.place
    step = steps(view)["divide"]
    assert (step.state, step.attempts) == ("failed", 2)
    store.resume("t")
    assert (look(store).error, look(store).status) == (None, "open")


def test_a_step_is_running_while_somebody_runs_it(store: Store) -> None:
    """And before it has an end, only a step whose beginning is recorded is known to run."""
    seen: list[TaskView] = []
    with store.task("t", "Do it") as task:
        task.plan(["a", "b"])
        task.step("a", lambda: seen.append(look(store)))
        task.step("b", lambda: seen.append(look(store)), in_doubt="ask")
    first, second = seen
    assert states(first) == {"a": "next"}
    assert first.head.held
    assert states(second) == {"a": "done", "b": "running"}
    with killed(), store.task("t") as task:
        task.step("slow", dying(task, lambda: current_step().progress(0.4, "far", now=True)))
    lost = steps(look(store))["slow"]
    assert (lost.state, lost.progress, lost.note) == ("interrupted", 0.4, "far")


def test_children_parents_and_forks_are_named(store: Store) -> None:
    """Each leads to the others."""
    with store.task("t", "Do it") as task:
        task.step("a", lambda: 1)
        task.child("part", lambda child: child.step("inner", lambda: 2))
        task.versions.fork("twin", at=2)
    view = look(store)
    assert [(child.id, child.status) for child in view.children] == [("t/part", "done")]
    assert look(store, "t/part").parent == "t"
    origin = look(store, "twin").origin
    assert origin is not None
    assert (origin.id, origin.at) == ("t", 2)


def test_what_was_undone_is_not_among_the_decisions(store: Store) -> None:
    """A task that went back has not decided what came after."""
    with store.task("t", "Do it") as task:
        task.decide("one")
        task.step("a", lambda: 1)
        task.decide("two")
        task.versions.rewind(to=2)
    view = look(store)
    assert [note.text for note in view.decisions] == ["one"]
    assert states(view) == {"a": "undone"}


def test_the_view_agrees_with_the_task_itself(store: Store) -> None:
    """Two folds of the same entries: what one calls done, the other does."""
    with store.task("t", "Do it") as task:
        task.plan(["a", "b"])
        for step in task.remaining():
            step.run(Calls({"big": "x" * 20_000}, "small"))
        assert task.wait_for("never", timeout=0.001, default=None, block=60) is None
        task.sleep(0.001)
        task.finish("all")
    view = look(store)
    done = {n for n, state in states(view).items() if state in ("done", "timed out", "skipped")}
    assert done == set(store.task("t").checkpoint().completed)
    large = steps(view)["a"]
    assert large.size is not None
    assert large.size > 20_000
    assert large.result is not None
    assert len(large.result) <= 300
    assert (view.outcome, view.outcome_seq) == ("all", view.head.seq)


# -- pages, long tasks, filters --------------------------------------------------------------------


def fill(store: Store, id_: str, count: int) -> None:
    """A task of *count* entries, quickly: as many steps, each a record."""
    key = Key(store.tenant, "task", id_)
    encode = store.scope.store.codec.encode
    entries: list[tuple[str, Any]] = [
        ("created", {"goal": f"Work on {id_}"}),
        ("planned", {"steps": ["step-0", "step-1", "last"]}),
    ]
    entries += [
        ("step", {"name": f"step-{n:06}", "result": f"row {n:06}", "took": 0.01})
        for n in range(count - 2)
    ]
    for one in entries:
        store.backend.append(Append(key=key, body=encode([one]), count=1, status="open"))


class Reads:
    """Counts what a backend reads."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records = 0
        read = store.backend.read

        def counted(*args: Any, **options: Any) -> Any:
            found = read(*args, **options)
            self.records += len(found)
            return found

        monkeypatch.setattr(store.backend, "read", counted)

    def during(self, call: Any) -> int:
        """Records that *call* reads."""
        before = self.records
        call()
        return self.records - before


def test_a_page_of_a_long_task_costs_no_more_than_one_of_a_short_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first page and the next, of a hundred entries and of a hundred thousand."""
    for id_, length in (("short", 100), ("long", 100_000)):
        fill(store, id_, length)
    reads = Reads(store, monkeypatch)
    cost, size = {}, {}
    for id_ in ("short", "long"):
        older = look(store, id_).older
        for name, before in (("first", None), ("next", older)):
            cost[id_, name] = reads.during(lambda: look(store, id_, before=before))  # noqa: B023 - called at once
            size[id_, name] = len(msgspec.json.encode(look(store, id_, before=before)))
    for name in ("first", "next"):
        assert cost["long", name] <= 1.3 * cost["short", name]
        assert size["long", name] <= 1.3 * size["short", name]
    began = time.monotonic()
    assert look(store, "long", whole=True).whole
    assert time.monotonic() - began < 60


def test_a_long_task_shows_its_end_and_its_beginning(store: Store) -> None:
    """Without a fold: the newest page of entries, and the goal, and the plan that it began with."""
    fill(store, "t", WHOLE + 500)
    view = look(store)
    assert (view.whole, view.plan_is_first, view.goal) == (False, True, "Work on t")
    assert len(view.steps) == len(view.history) == PAGE
    assert (view.first, view.last, view.newer) == (1451, 1500, None)
    older = look(store, before=view.older)
    assert (older.first, older.last, older.newer) == (1401, 1450, 1501)
    assert older.goal == "Work on t"
    whole = look(store, whole=True)
    assert whole.whole
    assert whole.next == "step-0"
    assert len(whole.history) == PAGE
    oldest = look(store, before=3)
    assert [line.seq for line in oldest.history] == [2, 1]
    assert oldest.older is None


# -- what is odd -----------------------------------------------------------------------------------

ODD = [
    b"5",
    b'["step",5]',
    b'["step",{"name":5}]',
    b'["began",{}]',
    b'["tried",{"name":"a","attempt":"x","error":null}]',
    b'["planned",{"steps":7}]',
    b'["signalled",null]',
    b'["rewound",{"to":"x"}]',
    b'["stopped",{"error":5,"step":["x"]}]',
    b'["waiting",{"name":"x","kind":"signal","until":"tomorrow"}]',
    b'["created",{"goal":5,"agent":[1]}]',
    b'["decided",{"decision":5,"because":{}}]',
    b'["failed",{"error":5,"place":7}]',
    b'["nobody\'s",[1]]',
]


@pytest.mark.parametrize("payload", ODD, ids=bytes.decode)
def test_an_odd_entry_is_named_and_hides_nothing(store: Store, payload: bytes) -> None:
    """One that cannot be read, or is not what its type says; what comes after is shown."""
    with store.task("t", "Do it") as task:
        task.step("a", lambda: 1)
    store.backend.append(Append(key=Key(store.tenant, "task", "t"), body=seal(payload), count=1))
    store.journal("task", "t").append(("step", {"name": "b", "result": 2, "took": 1}))
    view = look(store)
    assert {"a", "b"} <= steps(view).keys()
    assert view.goal in ("Do it", "5")
    assert all(isinstance(text, str | None) for text in (view.agent, view.error, view.place))
    kind = json.loads(payload)[0] if payload != b"5" else None
    readable = {"created", "decided", "failed", "nobody's"}
    assert [one.seq for one in view.damaged] == ([] if kind in readable else [3])


def test_a_task_that_does_not_begin_is_shown_too(store: Store) -> None:
    """A journal of that kind, made by somebody else."""
    store.journal("task", "t").append(("noted", {"x": 1}), ("step", {"name": "a", "result": None}))
    view = look(store)
    assert (view.goal, view.status) == ("", "open")
    assert states(view) == {"a": "done"}
