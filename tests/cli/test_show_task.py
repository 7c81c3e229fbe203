"""`limpet show` of a task: what became of each step, where it stands, and what is damaged."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet import Retry, current_step
from limpet.backends.contract import Append, Key
from tests.models.test_damage import seal
from tests.support.commands import run
from tests.support.dying import Calls, dying, ended_by, killed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from limpet import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The one that the command finds by itself."""
    monkeypatch.chdir(tmp_path)
    for name in ("LIMPET_URL", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    with limpet.open() as opened:
        yield opened


def shown(id_: str) -> str:
    """What people are shown."""
    return run("show", id_).stdout


def data(id_: str) -> Any:
    """What programs are given."""
    return json.loads(run("show", id_, "--json").stdout)


def slow_and_flaky() -> str:
    """It takes its time, and works the second time."""
    time.sleep(0.15)
    if current_step().attempt < 2:
        raise ConnectionError("no")
    return "ok"


def test_a_step_has_its_time_and_its_attempts(store: Store) -> None:
    """The first two questions about a slow task; of quick steps the time is left out."""
    with store.task("t", "Do it") as task:
        task.step("quick", lambda: 1)
        task.step("slow", slow_and_flaky, retry=Retry(attempts=2, wait=0))
    text = shown("t")
    assert "  ✓ quick  1\n" in text
    assert re.search(r"\n  ✓ slow  ok \(1\d\d ms, 2 attempts\)\n", text)
    quick, slow = data("t")["steps"]
    assert (quick["state"], quick["attempts"], slow["attempts"]) == ("done", 1, 2)
    assert 0.1 < slow["took"] < 60
    assert [span["kind"] for span in slow["spans"]] == ["failed", "waited", "ran"]
    assert slow["errors"] == ["ConnectionError: no"]


def test_a_failure_is_shown_with_its_step_and_its_place(store: Store) -> None:
    """In the list of steps, too, so that nobody has to look for it."""
    with ended_by(ZeroDivisionError, store.task("t", "Divide")) as task:
        task.plan(["look", "divide", "file"])
        for step in task.remaining():
            step.run(lambda name: 1 / (name != "divide"), step.name)
    text = shown("t")
    assert re.search(r"\n  ✗ divide  .*1 attempt failed, the last: ZeroDivisionError: ", text)
    place = r"Last error\n  in step divide: ZeroDivisionError: division by zero\n  at .*\.py:\d+\n"
    assert re.search(place, text)
    assert "test_show_task.py:" in data("t")["place"]


def test_a_step_that_somebody_else_went_on_with_says_so(store: Store) -> None:
    """Who looks for what was done twice begins here."""
    with killed(), store.task("t", "Pay") as task:
        task.step("pay", dying(task), verify=lambda _key: None)
    assert "  ? pay  in doubt (verify) since 2" in shown("t")
    with store.task("t") as task:
        task.step("pay", Calls("paid"), verify=lambda _key: None)
    assert "  ✓ pay  paid (2 attempts, taken over)\n" in shown("t")


def test_what_a_task_belongs_to_is_named(store: Store) -> None:
    """Parents, children, forks; and signals that nobody has taken."""
    with store.task("t", "Do it") as task:
        task.child("part", lambda child: child.step("inner", lambda: 2))
        task.versions.fork("twin")
    store.signal("t", "hint", {"tone": "formal"})
    text = shown("t")
    assert "\nTasks that are steps of it\n  - t/part  done\n" in text
    assert '\nSignals that it has not come to\n  - hint  {"tone":"formal"}\n' in text
    assert "\na step of task t\n" in shown("t/part")
    assert "\nforked from t at entry " in shown("twin")
    found = data("twin")
    assert found["forked_from"]["id"] == "t"
    assert data("t")["children"] == [{"id": "t/part", "status": "done"}]
    assert data("t/part")["parent"] == "t"


def test_what_can_be_read_of_a_damaged_task_is_shown_before_the_error(store: Store) -> None:
    """A script learns that it is damaged, and a person what is left."""
    with store.task("t", "Do it") as task:
        task.step("a", lambda: 1)
    store.backend.append(Append(key=Key("default", "task", "t"), body=seal(b"5"), count=1))
    said = run("show", "t", code=1)
    assert "  ✓ a  1\n" in said.stdout
    assert "Entry 3 of task 't'" in " ".join(said.stderr.split())
    assert run("show", "t", "--json", code=1).stdout == ""


def test_a_task_that_does_not_begin_is_shown_as_it_is(store: Store) -> None:
    """Half a fork, or a journal that somebody else has made."""
    store.journal("task", "half").append(("forking", {"from": "t", "at": 3}), status="forking")
    assert "task half · forking\n" in shown("half")
    assert data("half")["checkpoint"] is None
