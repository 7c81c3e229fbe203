"""What docs/workers.md and the examples of workers show is what happens."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "workers.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
PYTHON = [code for language, code in BLOCKS if language == "python"]

COMMANDS = {
    "limpet": f"{sys.executable} -m limpet",
    "python": sys.executable,
}
TIME = re.compile(r"^\S+  ", re.MULTILINE)
TOOK = re.compile(r"[\d.]+ s")


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory with copies of the examples."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIMPET_URL", raising=False)
    for example in ("worker_app.py", "approval.py"):
        shutil.copy(EXAMPLES / example, tmp_path)


def said(command: str) -> list[str]:
    """What a command prints, without times and sorted: tasks run side by side."""
    for name, real in COMMANDS.items():
        command = re.sub(rf"(^|\| ){name} ", rf"\1{real} ", command)
    done = subprocess.run(  # noqa: S602 - a line of our own page
        command, shell=True, capture_output=True, text=True, check=True, timeout=60
    )
    return told(done.stdout + done.stderr)


def told(text: str) -> list[str]:
    """The lines of *text*, as `said` has them."""
    return sorted(TOOK.sub("N s", TIME.sub("", line)) for line in text.splitlines())


def steps(session: str) -> list[tuple[str, str]]:
    """The commands of a session, each with what is shown below it."""
    found = [step.partition("\n") for step in session.split("$ ")[1:]]
    return [(command, output) for command, _, output in found]


def test_the_page_shows_the_example_as_it_is() -> None:
    """One file, in two places."""
    assert PYTHON[1] == (EXAMPLES / "worker_app.py").read_text()


@pytest.mark.slow
def test_the_commands_print_what_is_shown() -> None:
    """From the first task to the last."""
    Path("app.py").write_text(PYTHON[0])
    first, second = (steps(text) for language, text in BLOCKS if language == "console")
    assert (len(first), len(second)) == (3, 4)
    for command, output in [*first, *second]:
        assert said(command) == told(output), command
    assert len(Path("outbox.jsonl").read_text().splitlines()) == 1


def test_the_other_examples_run() -> None:
    """In one program, behind the first."""
    Path("all.py").write_text("\n".join(PYTHON))
    assert said("python -W error all.py") == ["done up"]


@pytest.mark.slow
def test_a_person_approves() -> None:
    """The example does what its first lines show, and pays once."""
    text = Path("approval.py").read_text().split('"""')[1]
    session = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    for command, output in steps(session):
        shown = said(command)
        if output:
            assert shown == told(output), command
    assert len(Path("payments.jsonl").read_text().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ('{"approved": false, "by": "Bob"}', "not paid, said Bob"),
        ('{"approved": true, "by": "Bob"}', "paid 120 for A-17, approved by Bob"),
    ],
    ids=["no", "yes"],
)
def test_the_answer_decides(answer: str, outcome: str) -> None:
    """Whoever gives it."""
    store = "limpet --store refunds.db"
    assert said("python approval.py") == ["refund-17 waits for approval"]
    said(f"{store} task signal refund-17 approval {shlex.quote(answer)}")
    said(f"{store} work approval:registry --until-idle")
    assert said("python approval.py") == [f"refund-17: {outcome}"]
    assert Path("payments.jsonl").exists() == outcome.startswith("paid")
