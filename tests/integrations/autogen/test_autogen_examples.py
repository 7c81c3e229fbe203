"""The page about AutoGen and its examples do what they say; the examples also when killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from limpet.states.migrations import migrations
from tests.support.autogen_teams import played
from tests.support.paths import ROOT
from tests.support.places import find

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples" / "autogen"
PAGE = (ROOT / "docs" / "autogen.md").read_text("utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


def started(name: str, *args: str, cwd: Path, **env: str) -> subprocess.Popen[str]:
    """An example, as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *args],
        cwd=cwd,
        env={**os.environ, "LIMPET_URL": f"sqlite:{cwd}/agents.db", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(name: str, *args: str, cwd: Path, **env: str) -> list[str]:
    """What an example prints."""
    with started(name, *args, cwd=cwd, **env) as process:
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output.splitlines()


def killed(name: str, *args: str, at: str, cwd: Path, **env: str) -> list[str]:
    """What an example prints until it is killed: as soon as a line begins with *at*."""
    shown: list[str] = []
    with started(name, *args, cwd=cwd, **env) as process:
        assert process.stdout is not None
        while not shown or not shown[-1].startswith(at):
            line = process.stdout.readline()
            assert line, f"it ended before {at!r}: {shown}"
            shown.append(line.rstrip())
        process.kill()
    assert process.returncode in (-signal.SIGKILL, 0)  # 0: it had nothing more to do
    return shown


def test_an_agent_runs_and_forgets(tmp_path: Path) -> None:
    """The first script: it needs nothing, and keeps nothing."""
    assert said("run.py", cwd=tmp_path)[-1].endswith("You have asked me 2 things.")
    assert list(tmp_path.iterdir()) == []


def test_what_was_captured_is_restored_in_another_process(tmp_path: Path) -> None:
    """The second and the third: the first process is killed between them."""
    shown = killed("capture.py", at="saved at 1", cwd=tmp_path)
    assert shown[0] == "Ticket 7 is open."
    assert said("restore.py", cwd=tmp_path) == ["You have asked me 2 things."]


@pytest.mark.slow
def test_a_kept_agent_goes_on_in_a_second_process(tmp_path: Path) -> None:
    """The fourth and the fifth: killed while the model answers the third question."""
    shown = killed("each_turn.py", at="And ticket 8?", cwd=tmp_path, PACE="0.3")
    assert shown[0] == "0 of 4 are answered"
    shown = said("second_process.py", cwd=tmp_path)
    assert "  support: Ticket 8 is closed." in shown
    answered = sum(line.startswith("  support:") for line in shown)
    shown = said("each_turn.py", cwd=tmp_path)
    assert shown[0] == f"{answered} of 4 are answered"
    assert shown[-1].endswith("You have asked me 4 things.")
    assert len(shown) == 1 + 4 - answered
    again = said("second_process.py", cwd=tmp_path)
    assert again[0] == "all is answered"
    assert sum(line.startswith("  user:") for line in again) == 4


@pytest.mark.slow
def test_a_team_goes_on_with_the_right_speaker(tmp_path: Path) -> None:
    """A run that was killed ends as one that was not."""
    whole = said("team.py", cwd=tmp_path, LIMPET_URL=f"sqlite:{tmp_path}/other.db")
    killed("team.py", at="critic: Whose hand?", cwd=tmp_path, PACE="0.3")
    shown = said("team.py", cwd=tmp_path)
    assert shown == ["goes on", *whole]


@pytest.mark.slow
def test_what_fits_a_question_is_shown_and_not_saved(tmp_path: Path) -> None:
    """In the process that was killed and in the next one."""
    shown = killed("recall.py", at="  remembered from ticket-7", cwd=tmp_path, PACE="0.2")
    assert shown[0] == "How do we reach Ada? By e-mail."
    shown = said("recall.py", cwd=tmp_path)
    assert shown[-2] == "  remembered from ticket-7: Reach Ada by e-mail, not by phone."
    assert shown[-1] == "6 messages are saved, and no memory among them"


def test_an_agent_of_an_old_version_goes_on_in_the_new_one(tmp_path: Path) -> None:
    """Prompt and tool have changed; the history of the old one is migrated."""
    killed("new_version.py", "1", at="the history calls find_ticket", cwd=tmp_path)
    shown = said("new_version.py", "2", cwd=tmp_path)
    assert shown[0].startswith("changed: the prompt is another; new tools: search")
    assert "Version 2 at your service" in shown[1]
    assert shown[2:] == ["the history calls search"]


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("place", ["postgresql", "redis"])
def test_instances_share_a_server(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Two at the same time, for the same user: each question is counted."""
    url = find(place, request).url
    questions = ("What about ticket 7?", "And ticket 8?")
    two = [
        started("on_a_server.py", "alice", text, cwd=tmp_path, LIMPET_URL=url) for text in questions
    ]
    answers = []
    for process in two:
        with process:
            output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        answers.append(output.strip())
    assert sorted(answers) == [f"alice: That was question {number}." for number in (1, 2)]
    assert said("on_a_server.py", "bob", "Hello?", cwd=tmp_path, LIMPET_URL=url) == [
        "bob: That was question 1."
    ]


@pytest.mark.filterwarnings("ignore::limpet.errors.ChangedWarning")
def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, in one async function, as somebody would who types it in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(migrations, "_steps", {})  # what the page registers is for the page
    code = "async def page(model):\n" + textwrap.indent("\n".join(PYTHON), "    ")
    names: dict[str, Any] = {}
    exec(compile(code, "docs/autogen.md", "exec"), names)  # noqa: S102 - it is our own page
    asyncio.run(names["page"](played()))
