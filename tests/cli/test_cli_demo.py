"""Tests of the demo: that it shows what is so, and would say if it were not."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import limpet
from limpet.cli import demo, main
from limpet.cli.demo import Evidence, Finding, Story, judge
from limpet.cli.demo_agent import ANSWER, CHAT, TASK
from tests.cli.test_cli import LIMPET, in_terminal, lines_of

STEPS = ["one", "two", "three", "four"]

FOUND = [
    "✓ steps 1-2 ran once, and were not repeated",
    "✓ step 3 was cut short, and ran again",
    "✓ steps 4-6 ran once",
    "✓ the plan was made once",
    "✓ 14 messages, none lost, none twice (6 from before the kill)",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory of a demo that has run, and what it printed."""
    directory = tmp_path_factory.mktemp("demo") / "new"
    command = [LIMPET, "demo", "--fast", "--dir", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return directory, done.stdout


@pytest.mark.slow
def test_demo_shows_what_was_repeated_and_what_was_not(place: tuple[Path, str]) -> None:
    """The promise, in the order in which it was kept."""
    shown = place[1].splitlines()
    steps = [line.split("  ")[1:] for line in shown if line.startswith("  step")]
    told = [re.sub(r"\s+\d+ messages so far", "", " ".join(words)).split() for words in steps]
    assert [" ".join(words) for words in told] == [
        *("step 1 alerts ran", "step 2 logs ran", "step 3 deploys killed here"),
        *("step 1 alerts not repeated", "step 2 logs not repeated"),
        *("step 3 deploys ran again", "step 4 compare ran", "step 5 roll-back ran"),
        "step 6 tell ran",
    ]
    assert [line for line in shown if line.startswith(("✓", "✗"))] == FOUND


@pytest.mark.slow
def test_demo_says_that_its_model_is_a_script(place: tuple[Path, str]) -> None:
    """Nobody should believe that a model was asked."""
    assert "The model is a script: no key, no network." in place[1]


@pytest.mark.slow
def test_demo_ends_with_the_answer_and_what_to_try_next(place: tuple[Path, str]) -> None:
    """Each command it names works as it stands."""
    shown = place[1]
    assert f"Answer: {ANSWER}\n" in shown
    assert "README.md" in shown
    lines = shown.partition("Try next")[2].splitlines()[1:]
    script = "\n".join(["set -e", *(line.strip() for line in lines)])
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    assert "All is well." in done.stdout
    assert f"task/{TASK}" in done.stdout


def test_demo_counts_executions_outside_the_store(place: tuple[Path, str]) -> None:
    """The file is written by the agent itself, so the store's word is not taken for it."""
    log = (place[0] / "executions.log").read_text().splitlines()
    assert log.count("began alerts") == log.count("ended alerts") == 1
    assert (log.count("began deploys"), log.count("ended deploys")) == (2, 1)


def test_demo_leaves_a_store_in_which_the_kill_can_be_seen(place: tuple[Path, str]) -> None:
    """One creation, one resumption, six steps, and every tool call with its result."""
    with limpet.open(place[0] / "demo.db", create=False) as store:
        types = [entry.type for entry in store.journal("task", TASK).read()]
        messages = store.conversation(CHAT).messages()
    assert (types.count("created"), types.count("resumed"), types.count("step")) == (1, 1, 6)
    assert [message["role"] for message in messages] == [
        "user",
        *["assistant", "tool"] * 6,
        "assistant",
    ]


def test_successor_does_not_wait_for_the_dead_ones_lease(place: tuple[Path, str]) -> None:
    """The lease had seconds to run; the kernel says that its holder is gone."""
    assert re.search(r"^run 2: it took over in (\d+ ms|[123]\.\d s)$", place[1], re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 80])
def test_demo_draws_a_live_table_in_a_terminal(tmp_path: Path, columns: int) -> None:
    """It fits the screen, and what stays on it is the whole story."""
    shown = in_terminal("demo", "--fast", "--dir", str(tmp_path / "d"), columns=columns)
    lines = [line.rstrip() for line in lines_of(shown)]
    last = lines[max(at for at, line in enumerate(lines) if line.startswith("step ")) :]
    assert "running" in shown
    assert [" ".join(re.sub("[✓✗-] ", "", line).split()) for line in last[1:7]] == [
        "1 alerts ran not repeated",
        "2 logs ran not repeated",
        "3 deploys killed here ran again",
        "4 compare · ran",
        "5 roll-back · ran",
        "6 tell · ran",
    ]
    # The commands at the end are there to be copied, and are as long as the paths in them.
    story, _, advice = "\n".join(last).partition("Try next")
    commands = [line for line in advice.splitlines() if line.startswith("  ")]
    assert len(commands) == 5
    rest = [*story.splitlines(), *advice.splitlines()]
    assert [line for line in rest if len(line) > columns and line not in commands] == []


def test_demo_stays_out_of_a_directory_that_has_one(place: tuple[Path, str]) -> None:
    """Executions of two demos in one file could not be told apart."""
    result = CliRunner().invoke(main, ["demo", "--dir", str(place[0])])
    assert result.exit_code == 2
    assert "Name another directory" in result.stderr


def gone(pid: int) -> bool:
    """Whether there is no such process any more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_for(condition: Callable[[], bool]) -> bool:
    """Whether *condition* comes true within some seconds."""
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_agent_does_not_outlive_the_demo(tmp_path: Path, how: signal.Signals, code: int) -> None:
    """Ctrl-C cleans up; and if the demo itself is killed, its agent notices."""
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [LIMPET, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    ) as child:
        assert child.stdout is not None
        started = next(line for line in child.stdout if line.startswith("run 1"))
        pid = int(started.split()[-1])
        next(line for line in child.stdout if "step 1" in line)
        child.send_signal(how)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == code
    assert "Traceback" not in errors
    assert wait_for(lambda: gone(pid))
    if how == signal.SIGINT:
        assert list(tmp_path.iterdir()) == []


# -- broken promises -------------------------------------------------------------------------------


def kept() -> tuple[Story, Evidence]:
    """Four steps, killed in the third, all as it should be."""
    story = Story()
    messages = [{"role": "user", "content": text} for text in "abcd"]
    story.begin(1)
    for step in STEPS[:2]:
        story.take({"event": "began", "step": step})
        story.take({"event": "done", "step": step})
    story.take({"event": "began", "step": "three"})
    story.take({"event": "message", "position": 1, "message": messages[0]})
    story.take({"event": "message", "position": 2, "message": messages[1]})
    story.kill()
    story.begin(2)
    story.take({"event": "opened", "done": STEPS[:2], "took": 0.01})
    for position, message in enumerate(messages[1:], 2):
        story.take({"event": "message", "position": position, "message": message})
    story.take({"event": "answer", "text": "42"})
    log = ["planned", *(f"{what} {step}" for step in STEPS for what in ("began", "ended"))]
    return story, Evidence([*log, "began three"], messages, "done", "42")


def verdict(story: Story, evidence: Evidence) -> list[Finding]:
    """What is found."""
    return list(judge(STEPS, story, evidence))


def test_kept_promises_are_found_kept() -> None:
    """The other tests below change one thing each."""
    assert [finding.kept for finding in verdict(*kept())] == [True] * 5


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"log": "began one"}, "step 1 ran twice, finished once"),
        ({"log": "ended three"}, "step 3 ran twice, finished twice"),
        ({"log": "planned"}, "the plan was made twice"),
        ({"messages": []}, "4 acknowledged messages are not there"),
        ({"messages": [{"role": "user", "content": "a"}] * 5}, "1 are there twice"),
        ({"outcome": "41"}, "without the answer"),
        ({"status": "open"}, "the task is open"),
    ],
)
def test_broken_promises_are_found(change: dict[str, Any], complaint: str) -> None:
    """A demo that cannot fail shows nothing."""
    story, evidence = kept()
    for name, value in change.items():
        setattr(evidence, name, [*evidence.log, value] if name == "log" else value)
    broken = [finding.text for finding in verdict(story, evidence) if not finding.kept]
    assert any(complaint in text for text in broken)


@pytest.mark.slow
def test_demo_ends_with_1_if_a_promise_was_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says which."""
    honest = demo.gather

    def forgetful(place: Any) -> Evidence:
        evidence: Evidence = honest(place)
        evidence.log.append("began alerts")
        evidence.messages.pop()
        return evidence

    monkeypatch.setattr(demo, "gather", forgetful)
    result = CliRunner().invoke(main, ["demo", "--fast", "--dir", str(tmp_path / "d")])
    assert result.exit_code == 1
    assert "A promise was broken: step 1 ran twice" in result.stderr
    assert "1 acknowledged messages are not there" in result.stderr


def test_agent_that_fails_by_itself_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo does not pass off a crash of its own as the one it meant."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    result = CliRunner().invoke(main, ["demo", "--fast", "--dir", str(tmp_path / "d")])
    assert result.exit_code == 1
    assert "The agent ended by itself." in result.stderr


def test_demo_notices_if_the_agent_was_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that went through shows nothing about crashes."""
    monkeypatch.setattr(demo, "VICTIM", "nosuch")
    result = CliRunner().invoke(main, ["demo", "--fast", "--dir", str(tmp_path / "d")])
    assert result.exit_code == 1
