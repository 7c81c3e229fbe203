"""``limpet ls``: its columns, limits and filters; thousands of rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from rich.cells import cell_len

import limpet
from tests.cli.test_cli import HOSTILE, OBEYED, data, in_terminal, lines_of
from tests.support.commands import run
from tests.support.doubtful import leave_in_doubt
from tests.support.filled import fill_tasks

if TYPE_CHECKING:
    from pathlib import Path

MESSAGE = {"role": "user", "content": "hello"}


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with a task of each sort, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("LIMPET_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    with limpet.open("limpet.db") as opened:
        opened.conversation("alice").append(MESSAGE)
        leave_in_doubt(opened, "conversation", "alice", "pay")
        with opened.task("charge", goal="Charge the customer", agent="a-1") as task:
            task.plan(["look up", "charge", "receipt"])
            task.step("look up", lambda: 1)


def rows() -> dict[str, str]:
    """The lines that are printed, by their first word."""
    return {line.split()[0]: line for line in run("ls").stdout.splitlines()}


def test_a_task_is_a_line_with_its_progress_and_what_is_next() -> None:
    """And what is in doubt, of whatever kind."""
    shown = rows()
    assert shown["id"].split("  ")[0] == "id"
    assert shown["id"].endswith("  where it is         goal")
    assert shown["task/charge"].endswith("  next: charge        Charge the customer")
    assert " 1/3 " in shown["task/charge"]
    assert shown["conversation/alice"].endswith("  in doubt: pay (c1)")


def test_programs_get_all_of_it() -> None:
    """The facts of the task, and each call in doubt."""
    found = {row["id"]: row for row in data("ls")}
    task = found["charge"]["task"]
    assert (task["goal"], task["done"], task["planned"]) == ("Charge the customer", 1, 3)
    assert (task["step"], task["whole"]) == ("charge", True)
    (call,) = found["alice"]["in_doubt"]
    assert (call["id"], call["name"]) == ("c1", "pay")
    assert "task" not in found["alice"]


def test_a_limit_is_never_silent() -> None:
    """Whoever counts the lines must know that there are more."""
    one = run("ls", "--limit", "1")
    assert len(one.stdout.splitlines()) == 2
    assert "Cut off after 1 row" in one.stderr
    assert run("ls", "--limit", "2").stderr == ""
    assert len(data("ls", "--limit", "1")) == 1
    assert "--limit" in run("ls", "--limit", "0", code=2).stderr


def test_any_status_and_any_text_can_be_asked_for() -> None:
    """A kind of the user's own has statuses of its own."""
    with limpet.open("limpet.db") as store:
        store.journal("order", "o-1").append(("placed", 1), status="shipped")
    assert [row["id"] for row in data("ls", "--status", "shipped")] == ["o-1"]
    assert [row["id"] for row in data("ls", "--text", "CUSTOMER")] == ["charge"]
    assert "nothing like that" in run("ls", "--text", "nobody").stderr


def test_a_list_cannot_play_with_the_terminal() -> None:
    """Goals, errors and labels are other people's text; each row stays one line."""
    with limpet.open("limpet.db") as store:
        with store.task("evil", goal=HOSTILE + "\n\nx", labels={"a": "x\u202ey\u200bz"}) as task:
            task.fail(HOSTILE)
        leave_in_doubt(store, "conversation", "evil", HOSTILE)
    shown = run("ls").stdout
    assert not OBEYED.search(shown)
    assert len(shown.splitlines()) == 5


def test_wide_characters_are_aligned() -> None:
    """A column begins where its title does, whatever is before it."""
    with limpet.open("limpet.db") as store, store.task("日本語", goal="Überprüfung") as task:
        task.finish()
    lines = run("ls", "tasks").stdout.splitlines()
    places = {
        cell_len(line[: line.index(word)])
        for line, word in zip(lines, ("status", "open", "done"), strict=True)
    }
    assert len(places) == 1


@pytest.mark.slow
def test_thousands_of_rows_take_well_under_a_second() -> None:
    """With what each task has come to: all of them are read."""
    with limpet.open("many.db") as store:
        fill_tasks(store, 5_000)
    run("ls", "--limit", "1", "--store", "many.db")  # what is loaded once
    began = time.process_time()
    shown = run("ls", "--store", "many.db").stdout
    assert time.process_time() - began < 2  # 0.4 s where nothing else runs
    assert shown.count(" 2/4 ") == 5_000


@pytest.mark.slow
def test_a_terminal_gets_so_many_and_is_told() -> None:
    """A hundred thousand lines are of use to nobody; a pipe gets all."""
    with limpet.open("many.db") as store:
        fill_tasks(store, 1_100)
    shown = lines_of(in_terminal("ls", "--store", "many.db", columns=100))
    assert len(shown) == 1_002
    assert "Cut off after 1,000 rows" in shown[-1]
    assert max(map(cell_len, shown)) <= 100
    assert len(run("ls", "--store", "many.db").stdout.splitlines()) == 1_101
