"""A task's function may be changed between crash and resume: a step is known by its name."""

import pytest

from limpet import Store
from tests.support import stores
from tests.support.dying import Calls, die, killed
from tests.support.stores import Place

place, store = stores.place, stores.store

GOAL = "Write the report"


def first_version(store: Store, ran: list[str]) -> None:
    """Fetch, clean, send; and then it dies."""
    with killed(), store.task("t", GOAL) as task:
        for name in ("fetch", "clean", "send"):
            task.step(name, lambda name=name: ran.append(name))
        die(task)


@pytest.mark.parametrize(
    ("steps", "new"),
    [
        (["check", "fetch", "clean", "send", "file"], ["check", "file"]),
        (["fetch", "tidy", "send"], ["tidy"]),
        (["fetch", "send"], []),
        (["send", "fetch"], []),
        (["fetch", "clean", "clean", "send"], ["clean#2"]),
    ],
    ids=["added", "renamed", "removed", "reordered", "repeated"],
)
def test_nothing_recorded_is_repeated_and_what_is_new_is_run(
    place: Place, store: Store, steps: list[str], new: list[str]
) -> None:
    """No determinism rules: what was recorded is returned, what was not is run."""
    ran: list[str] = []
    first_version(store, ran)
    with place.open().task("t") as task:
        for name in steps:
            task.step(name, lambda: ran.append("new"))
        task.finish()
        assert [name for name in task.results if name not in ("fetch", "clean", "send")] == new
    assert ran == ["fetch", "clean", "send", *("new" for _ in new)]


def test_a_step_may_be_given_another_policy(place: Place, store: Store) -> None:
    """The code that runs now decides how a step in doubt comes back."""
    with killed(), store.task("t", GOAL) as task:
        task.step("send", lambda: die(task), in_doubt="ask")
    with place.open().task("t") as task:
        assert task.step("send", Calls("x"), verify=lambda _key: "found") == "found"
