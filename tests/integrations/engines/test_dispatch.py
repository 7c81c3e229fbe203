"""What all engines have in common: a task's id, and a store that decides who may work on it."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.workers.engine import JobResult, JobRunner
from limpet.workers.registry import Registry
from tests.support import engines
from tests.support.dispatched import registry
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from tests.support.engines import Stage

stage = engines.stage

HOUR = 60 * 60


def ran(statement: str) -> str:
    """What a fresh interpreter says to *statement*."""
    command = [sys.executable, "-c", statement]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("engine", "package"), [("temporal", "temporalio"), ("celery", "celery"), ("ray", "ray")]
)
def test_a_missing_engine_is_named_with_its_extra(engine: str, package: str) -> None:
    """People are told what to install, and not that some module has no attribute."""
    said = ran(
        f"import sys; sys.modules[{package!r}] = None\n"
        f"import limpet\n"
        f"try: import limpet.workers.{engine}\n"
        f"except limpet.errors.MissingExtra as error: print(error)"
    )
    assert f"needs the package {package}" in said
    assert f"pip install '.[{engine}]' in Limpet's source, or pip install {package}." in said


def test_no_engine_is_loaded_before_it_is_wanted() -> None:
    """A program without engines pays for none."""
    said = ran("import limpet.workers, sys; print(*sys.modules)")
    assert {"temporalio", "celery", "ray"}.isdisjoint(said.split())


def test_a_task_that_waits_is_not_opened(stage: Stage) -> None:
    """An engine may look at it as often as it likes, and its journal does not grow."""
    runs = JobRunner(registry, stage.url)
    stage.submit("tale", sleeps=HOUR)
    first = runs.run("tale", "default")
    position = stage.store.task("tale").info().position
    again = [runs.run("tale", "default") for _ in range(10)]
    assert {went.status for went in [first, *again]} == {"waiting"}
    assert all(went.again is not None and 0 < went.again <= HOUR for went in [first, *again])
    assert stage.store.task("tale").info().position == position


def test_a_task_that_waits_for_a_person_is_not_looked_at_again(stage: Stage) -> None:
    """It may take weeks. Who gives the signal starts it."""
    runs = JobRunner(registry, stage.url)
    stage.submit("tale", asks=True)
    assert runs.run("tale", "default") == JobResult("waiting", None)
    assert runs.signal("tale", "default", "word", "aye", id=None) == "tale"
    assert runs.run("tale", "default") == JobResult("done", None)


def test_a_held_task_is_looked_at_again_when_its_lease_may_have_ended(stage: Stage) -> None:
    """A worker of another machine that died cannot say so."""
    stage.submit("tale")
    with stage.store.task("tale", lease=5):
        went = JobRunner(registry, stage.url).run("tale", "default")
    assert went.status == "held"
    assert went.again is not None
    assert 1 <= went.again <= 5


@pytest.mark.parametrize(("do", "status"), [("pause", "paused"), ("cancel", "cancelled")])
def test_a_task_that_was_stopped_is_left_alone(stage: Stage, do: str, status: str) -> None:
    """A message that was on its way does not bring it back."""
    stage.submit("tale")
    getattr(stage.store, do)("tale")
    assert JobRunner(registry, stage.url).run("tale", "default") == JobResult(status, None)
    assert stage.diary.steps() == []


def test_to_cancel_what_has_ended_changes_nothing(stage: Stage) -> None:
    """The engine may learn of it late."""
    runs = JobRunner(registry, stage.url)
    stage.submit("tale")
    runs.run("tale", "default")
    runs.cancel("tale", "default", "too late")
    runs.cancel("nowhere", "default", "nobody there")
    assert stage.status("tale") == "done"


def test_tenants_share_a_connection_and_nothing_else(stage: Stage) -> None:
    """A worker for a thousand customers opens one store."""
    runs = JobRunner(registry, stage.url)
    stage.submit("tale")
    with pytest.raises(limpet.errors.TaskNotFound):
        runs.run("tale", "acme")
    assert runs.store("acme").backend is runs.store("default").backend
    with pytest.raises(limpet.errors.InvalidId):
        runs.store("")


def test_a_signal_for_a_child_starts_the_task_at_the_top(stage: Stage) -> None:
    """A child is a step of its parent, which is what engines know."""
    family = Registry()

    @family.task("parent")
    def parent(task: limpet.Task) -> Any:
        return task.child("child", lambda child: child.wait_for("word"), goal="Listen")

    runs = JobRunner(family, stage.url)
    stage.store.submit("parent", "elder", "Have a child")
    assert runs.run("elder", "default").status == "waiting"
    assert runs.signal("elder/child", "default", "word", "aye", id=None) == "elder"
    assert runs.run("elder", "default") == JobResult("done")
    assert stage.outcome("elder") == "aye"


def test_async_functions_are_run_too(stage: Stage) -> None:
    """Which sort of function a kind has is no engine's business."""
    modern = Registry()

    @modern.task("modern")
    async def run(task: limpet.AsyncTask) -> Any:
        return await task.step("one", lambda: 1)

    stage.store.submit("modern", "new", "Be modern")
    assert JobRunner(modern, stage.url).run("new", "default") == JobResult("done")
    assert stage.outcome("new") == 1


def test_the_store_may_be_opened_by_a_function(stage: Stage) -> None:
    """For what a URL cannot say: a codec, a hook."""
    opened: list[limpet.Store] = []

    def open_store() -> limpet.Store:
        opened.append(limpet.open(stage.url))
        return opened[-1]

    runs = JobRunner(registry, open_store)
    stage.submit("tale")
    assert runs.run("tale", "default") == JobResult("done")
    assert runs.run("tale", "default") == JobResult("done")
    assert len(opened) == 1


@pytest.mark.parametrize("engine", ["temporal", "celery", "ray"])
def test_the_page_shows_what_is_in_the_examples(engine: str) -> None:
    """What is shown is what the tests of each engine run."""
    page = (ROOT / "docs" / "dispatch.md").read_text()
    section = page.partition(f"\n## {engine.title()}\n")[2].partition("\n## ")[0]
    shown = re.findall(r"^```python\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)
    example = (engines.EXAMPLES / f"{engine}_app.py").read_text()
    assert shown
    assert [block for block in shown if block not in example] == []
