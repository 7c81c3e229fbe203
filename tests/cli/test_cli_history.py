"""Tests of `limpet history`, also with --diff, and of what doctor says of tasks that are large."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from tests.support.commands import run

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "a\x1b[31mb\u202ec\x9b2Jd"


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the reader's own setting leaks in."""
    monkeypatch.chdir(tmp_path)
    for name in ("LIMPET_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store with a task, and a conversation of the same name."""
    url = str(tmp_path / "agents.db")
    with limpet.open(url) as store:
        store.conversation("report").append({"role": "user", "content": "Hello"})
        with store.task("report", "Summarise incidents", agent="agent-01") as task:
            task.plan(["fetch", "count"])
            task.step("fetch", lambda: {"rows": 3})
            task.decide("use the replica", because="the API is rate limited")
            task.step("count", lambda: 3)
    return url


# -- history ---------------------------------------------------------------------------------------


def test_history_tells_what_happened_line_by_line(path: str) -> None:
    """Number, time, sentence; a task is meant even where a conversation has the same id."""
    lines = run("--store", path, "history", "report").stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == [1, 2, 3, 4, 5]
    assert re.fullmatch(r" +1  \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  created by agent-01", lines[0])
    assert re.search(r"step 'fetch' done in (under )?\d+ ms$", lines[2])
    assert lines[3].endswith("decided: use the replica")
    assert run("--store", path, "history", "task/report").stdout.splitlines() == lines


def test_history_prints_only_the_newest(path: str) -> None:
    """The end of a long story is what one usually wants."""
    shown = run("--store", path, "history", "report", "-n", "2").stdout
    assert [line.split()[0] for line in shown.splitlines()] == ["4", "5"]


def test_history_gives_the_same_to_programs(path: str) -> None:
    """One JSON list."""
    found: Any = json.loads(run("--store", path, "history", "report", "--json").stdout)
    assert [version["seq"] for version in found] == [1, 2, 3, 4, 5]
    assert found[1] == {"seq": 2, "at": found[1]["at"], "what": "planned: 2 steps"}


# -- diff ------------------------------------------------------------------------------------------


def test_diff_shows_what_changed_between_two_entries(path: str) -> None:
    """The numbers are those of the history."""
    shown = run("--store", path, "history", "report", "--diff", "2", "4").stdout
    heading, rest = shown.split("\n", 2)[:2], shown.split("\n", 2)[2]
    assert [line[:11] for line in heading] == ["--- report,", "+++ report,"]
    assert rest == (
        'steps\n  + fetch: {"rows":3}\n'
        "decisions\n  + use the replica (because the API is rate limited)\n"
    )


def test_diff_goes_up_to_the_newest_entry(path: str) -> None:
    """Without a second number."""
    shown = run("--store", path, "history", "report", "--diff", "4").stdout
    assert shown.endswith("steps\n  + count: 3\n")
    assert run("--store", path, "history", "report", "--diff", "5").stdout.endswith(
        "Nothing differs.\n"
    )


def test_diff_also_goes_back(path: str) -> None:
    """What a rewind would undo."""
    assert run("--store", path, "history", "report", "--diff", "5", "4").stdout.endswith(
        "steps\n  - count\n"
    )


@pytest.mark.parametrize("numbers", [["9"], ["1", "9"], ["0", "1"], ["x"]], ids=" ".join)
def test_diff_refuses_numbers_that_are_not_there(path: str, numbers: list[str]) -> None:
    """And says which are."""
    shown = run("--store", path, "history", "report", "--diff", *numbers, code=2).stderr
    assert "Usage:" in shown
    assert "9" not in numbers or "There is no entry 9: 'report' has 1 to 5." in shown


def test_diff_compares_the_last_two_versions(path: str) -> None:
    """Without numbers: what happened last, of a task, a state or a conversation."""
    with limpet.open(path) as store:
        store.state("settings").save({"colour": "red"})
        store.state("settings").save({"colour": "blue"})
        store.conversation("alice").append({"role": "user", "content": "Hello"})
        store.conversation("alice").append({"role": "assistant", "content": "Good morning"})
    shown = run("--store", path, "history", "report", "--diff").stdout
    assert shown == run("--store", path, "history", "report", "--diff", "4", "5").stdout
    shown = run("--store", path, "history", "settings", "--diff").stdout
    assert ('- "red"' in shown, '+ "blue"' in shown) == (True, True)
    shown = run("--store", path, "history", "alice", "--diff").stdout
    assert shown.endswith("messages\n  + assistant: Good morning\n")


def test_diff_needs_two_versions(path: str) -> None:
    """One alone has nothing to be compared with."""
    with limpet.open(path) as store:
        store.state("settings").save({"colour": "red"})
    for name in ("settings", "conversation/report"):
        said = run("--store", path, "history", name, "--diff", code=2).stderr
        assert "has one version only" in said


def test_diff_gives_the_same_to_programs(path: str) -> None:
    """With the numbers that were compared."""
    found: Any = json.loads(run("--store", path, "history", "report", "--diff", "--json").stdout)
    assert (found["kind"], found["id"], found["from"], found["to"]) == ("task", "report", 4, 5)
    assert found["diff"].endswith("steps\n  + count: 3")


@pytest.mark.parametrize("options", [["1"], ["--diff", "-n", "2"]], ids=" ".join)
def test_numbers_are_for_diff_and_n_is_for_the_list(path: str, options: list[str]) -> None:
    """An option that is ignored is a question that was not answered."""
    assert "Usage:" in run("--store", path, "history", "report", *options, code=2).stderr


def test_something_without_versions_is_refused(path: str) -> None:
    """A memory has a history of its own, of each thing remembered."""
    with limpet.open(path) as store:
        store.memory("acme").remember("Likes tea")
    assert "no versions" in run("--store", path, "history", "acme", code=2).stderr


# -- of conversations ------------------------------------------------------------------------------


@pytest.fixture
def talk(path: str) -> str:
    """A conversation in which something was taken back, and pinned."""
    with limpet.open(path) as store:
        chat = store.conversation("alice")
        chat.append({"role": "user", "content": "Hello"})
        chat.append({"role": "assistant", "content": "Good night"})
        chat.pop()
        chat.append({"role": "assistant", "content": "Good morning"})
        chat.pin(1)
    return path


def test_history_of_a_conversation_is_what_was_said_and_done(talk: str) -> None:
    """Each entry on a line, and the same to programs."""
    lines = run("--store", talk, "history", "alice").stdout.splitlines()
    assert [line[29:] for line in lines[:2]] == ["user: Hello", "assistant: Good night"]
    assert lines[2][29:] == "popped: the message at 2"
    assert lines[4][29:].startswith("pinned")
    found: Any = json.loads(run("--store", talk, "history", "alice", "-n", "2", "--json").stdout)
    assert (found[0]["seq"], found[0]["what"]) == (4, "assistant: Good morning")


def test_diff_of_a_conversation_shows_what_was_taken_back(talk: str) -> None:
    """And what was said instead; notes about messages are apart."""
    shown = run("--store", talk, "history", "alice", "--diff", "2").stdout
    assert re.fullmatch(
        r"--- alice, \S+\n\+\+\+ alice, \S+\nmessages\n  - assistant: Good night\n"
        r"  \+ assistant: Good morning\nnotes\n  \+ pinned.*\n",
        shown,
    )
    back = run("--store", talk, "history", "alice", "--diff", "5", "4").stdout
    assert re.search(r"notes\n  - pinned.*\n$", back)
    assert run("--store", talk, "history", "alice", "--diff", "3", "3").stdout.endswith(
        "Nothing differs.\n"
    )


# -- what is not there -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [["history", "nobody"], ["history", "nobody", "--diff", "1"]], ids=" ".join
)
def test_a_task_that_is_not_there_ends_with_3(path: str, command: list[str]) -> None:
    """As for all commands."""
    assert "nobody" in run("--store", path, *command, code=3).stderr


@pytest.mark.parametrize(
    "command", [["history", "x"], ["history", "x", "--diff", "1"]], ids=" ".join
)
def test_reading_the_past_does_not_create_a_store(tmp_path: Path, command: list[str]) -> None:
    """A misspelt name is an error, not an empty store."""
    assert run("--store", "missing.db", *command, code=1).stderr.startswith("StoreNotFound: ")
    assert list(tmp_path.iterdir()) == []


def test_control_characters_never_reach_the_terminal(tmp_path: Path) -> None:
    """Stored text is other people's text."""
    with limpet.open("hostile.db") as store, store.task("t", "Go") as task:
        task.decide(HOSTILE, because=HOSTILE)
        task.step("x", lambda: f"{HOSTILE}\n{HOSTILE}")
        task.fail(HOSTILE)
    for command in (["history", "t"], ["history", "t", "--diff", "1"]):
        shown = run("--store", "hostile.db", *command).stdout
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)


# -- doctor ----------------------------------------------------------------------------------------


def test_doctor_names_tasks_that_are_large(path: str) -> None:
    """That is no fault, and comes with advice; the largest come first."""
    with limpet.open(path) as store:
        for name, size in (("big", 30), ("bigger", 50)):
            with store.task(name, "Grow") as task:
                for number in range(size):
                    task.discover(f"{number} {'x' * 1000}")
    shown = run("--store", path, "doctor").stdout
    found = re.search(r"^! large tasks +(.*)$", shown, re.MULTILINE)
    assert found is not None
    sizes = r"2 over 10.0 KB: task/bigger \(5\d\.\d KB\), task/big \(3\d\.\d KB\)"
    assert re.fullmatch(sizes, found[1])
    assert "give them a ttl" in shown
    assert shown.endswith("All is well.\n")
    report: Any = json.loads(run("--store", path, "doctor", "--json").stdout)
    assert report["large"] == 2
    assert [one["journal"] for one in report["largest"]] == ["task/bigger", "task/big"]


def test_doctor_names_only_the_ten_largest(path: str) -> None:
    """And says that there are more."""
    with limpet.open(path) as store:
        for number in range(12):
            with store.task(f"big-{number:02}", "Grow") as task:
                for n in range(11):
                    task.discover(f"{n} {'x' * (1000 + number * 10)}")
    shown = run("--store", path, "doctor").stdout
    assert re.search(r"! large tasks +12 over .*task/big-11 .*task/big-02 .*, …\n", shown)
    assert "big-01" not in shown


def test_a_large_result_does_not_make_a_task_large(path: str) -> None:
    """It is kept by reference, so resuming the task does not read it."""
    with limpet.open(path) as store, store.task("report") as task:
        task.step("crawl", lambda: "".join(f"{n:x}" for n in range(50_000)))
    assert "large tasks" not in run("--store", path, "doctor").stdout
