"""Plans that change: what is done stays, what is not may be replaced, and why is on record."""

import pytest

import limpet
from limpet import Store, TaskWaiting
from limpet.errors import TaskFinished
from tests.support import stores
from tests.support.dying import Calls
from tests.support.stores import Place

place, store = stores.place, stores.store

GOAL = "Write the report"


def test_what_is_not_done_can_be_replaced_for_a_reason(place: Place, store: Store) -> None:
    """What is done stays where it was, and the reason is recorded."""
    with store.task("t", GOAL) as task:
        task.plan(["fetch", "clean", "send"])
        step = next(iter(task.remaining()))
        step.run(Calls("rows"))
        assert task.plan.replace(["check", "send"], because="the rows are clean") == [
            "fetch",
            "check",
            "send",
        ]
    with place.open().task("t") as task:
        assert [step.name for step in task.remaining()] == ["check", "send"]
        assert task.checkpoint().completed == ["fetch"]
    assert store.journal("task", "t").read()[-2].body["because"] == "the rows are clean"


def test_a_loop_over_what_remains_follows_the_plan_as_it_changes(store: Store) -> None:
    """The model may think of something while it works."""
    ran = []
    with store.task("t", GOAL) as task:
        task.plan(["a", "b", "c"])
        for step in task.remaining():
            ran.append(step.name)
            step.run(Calls(1))
            if step.name == "a":
                task.plan.insert("a2", after="a")
                task.plan.drop("c", because="not needed")
                task.plan.insert({"name": "d", "how": "well"})
    assert ran == ["a", "a2", "b", "d"]


def test_what_the_loop_waits_for_is_each_steps_own(place: Place, store: Store) -> None:
    """The approval of one step is not taken for that of the next, also after a restart."""
    approved = []

    def go_on(store: Store) -> None:
        with store.task("t", GOAL) as task:
            task.plan(["a", "b"])
            for step in task.remaining():
                approved.append((step.name, task.wait_for("approval")))
                step.run(Calls(1))

    for who in ("Ann", "Bob"):
        with pytest.raises(TaskWaiting):
            go_on(place.open())
        store.signal("t", "approval", who)
    go_on(place.open())
    assert approved == [("a", "Ann"), ("b", "Bob")]
    assert list(store.task("t").checkpoint().results) == ["a/approval", "a", "b/approval", "b"]


@pytest.mark.parametrize("way", ["in place", "held", "an iterator", "an error", "before", "next"])
def test_what_comes_after_the_loop_is_no_part_of_a_step(way: str) -> None:
    """However the loop is left, and whoever still has what it went by: or it would run again."""
    kept: list[object] = []  # nothing of it goes before the end

    def one_step(task: limpet.Task) -> None:
        steps = task.remaining() if way != "an iterator" else iter(task.remaining())
        kept.append(steps)
        if way == "next":
            next(steps).run(Calls(1))
            return
        for step in task.remaining() if way == "in place" else steps:
            task.step("draft", Calls(1))
            if way == "before":
                break
            step.run(Calls(1))
            task.step("log", Calls(1))
            if way == "an error":
                raise ValueError(step.name)
            break

    with limpet.open("memory:") as store:
        for number in range(2):
            with store.task("t", GOAL) as task:
                task.plan(["x", "y"])
                try:
                    one_step(task)
                except ValueError as error:
                    kept.append(error)
                task.step("notify", Calls(number))
        found = list(store.task("t").checkpoint().results)
    whole = ["x/draft", "x", "x/log", "notify", "y/draft", "y", "y/log"]
    assert found == {"before": ["x/draft", "notify"], "next": ["x", "notify", "y"]}.get(way, whole)


def test_the_same_change_in_two_steps_is_two_changes() -> None:
    """Also if the task was resumed in between, and knows only of the first."""

    def execute(step: limpet.Step) -> str:
        if step.name in ("a", "b"):
            step.task.plan.insert("check")
        return step.name

    with limpet.open("memory:") as store:
        with store.task("t", GOAL) as task:
            task.plan(["a", "b"])
            step = next(task.remaining())
            step.run(execute, step)
        with store.task("t") as task:
            for step in task.remaining():
                step.run(execute, step)
            assert list(task.results) == ["a", "b", "check", "check#2"]


def test_a_change_that_made_no_difference_makes_none_later(place: Place, store: Store) -> None:
    """On a resume it would undo the change that came after it."""
    for opened in (store, place.open()):
        with opened.task("t", GOAL) as task:
            task.plan(["a", "b"])
            task.plan.replace(["a", "b"])
            assert task.plan.replace(["c"]) == ["c"]


def test_steps_can_be_put_in_and_taken_out_and_moved(store: Store) -> None:
    """By their names."""
    with store.task("t", GOAL) as task:
        task.plan(["a", "b", "c"])
        assert task.plan.insert("x", before="b") == ["a", "x", "b", "c"]
        assert task.plan.insert("y", "z", after="b") == ["a", "x", "b", "y", "z", "c"]
        assert task.plan.drop("x", "z") == ["a", "b", "y", "c"]
        assert task.plan.reorder(["c", "a"], because="c first") == ["c", "a", "b", "y"]


def test_a_change_that_changes_nothing_is_not_recorded(store: Store) -> None:
    """Whether it is made twice in one run, or makes no difference."""
    with store.task("t", GOAL) as task:
        task.plan(["a", "b"])
        for _ in range(2):
            task.plan.replace(["b", "a"], because="b first")
    types = [entry.type for entry in store.journal("task", "t").read()]
    assert types == ["created", "planned", "replanned"]


def test_a_resumed_task_makes_no_change_twice(place: Place, store: Store) -> None:
    """It comes to the same calls again, and finds them made."""

    def begin(store: Store) -> list[object]:
        with store.task("t", GOAL) as task:
            task.plan(["a", "b", "c"])
            task.step("a", Calls(1))
            task.plan.insert("x", after="a")
            task.plan.insert("x", after="a")
            task.plan.drop("b", because="not needed")
            task.plan.reorder(["c", "x"])
            return list(task.checkpoint().plan)

    assert begin(store) == begin(place.open()) == ["a", "c", "x", "x"]


def test_a_plan_that_is_not_there_can_be_made_by_changing_it(store: Store) -> None:
    """Some agents think of one step at a time."""
    with store.task("t", GOAL) as task:
        assert task.plan.insert("a") == ["a"]
        assert task.plan(["never asked"]) == ["a"]


def test_what_is_done_or_unknown_cannot_be_moved(store: Store) -> None:
    """The message says what is left."""
    with store.task("t", GOAL) as task:
        task.plan(["a", "b"])
        task.step("a", Calls(1))
        with pytest.raises(ValueError, match=r"'a' of task 't' is done, and stays\. Left are: b"):
            task.plan.drop("a")
        with pytest.raises(ValueError, match="'q' of task 't' is not in the plan"):
            task.plan.insert("x", before="q")
        with pytest.raises(ValueError, match="not both"):
            task.plan.insert("x", before="b", after="b")
        with pytest.raises(TypeError, match="A planned step is a name"):
            task.plan.replace([7])
        task.finish()
        with pytest.raises(TaskFinished):
            task.plan.replace(["c"])
