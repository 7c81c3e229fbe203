"""The README, pages without tests of their own, and the examples in docstrings do what they say."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
PYTHON = [code for language, code in BLOCKS if language == "python"]
COMMANDS = [text for language, text in BLOCKS if language == "console" and "$ limpet" in text]


def commands(session: str) -> list[tuple[str, str]]:
    """Each command of a *session*, and what is shown below it."""
    parted = [step.partition("\n") for step in session.split("$ ")[1:]]
    return [(command, output) for command, _, output in parted]


def run(command: str, directory: Path) -> str:
    """What ``limpet …`` prints in *directory*, with nothing to complain about."""
    arguments = [sys.executable, "-m", "limpet", *command.split()[1:]]
    done = subprocess.run(arguments, cwd=directory, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


def without_times(text: str) -> str:
    """*text* without times, and without sizes, which have the time that a step took in them."""
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|\d+ B", "…", text)


def test_the_first_example_survives_a_crash_as_shown(tmp_path: Path) -> None:
    """The commands, run as they stand, print what stands below them."""
    (tmp_path / "agent.py").write_text(PYTHON[0])
    session = next(text for language, text in BLOCKS if language == "console")
    shown = session.split("$ ")[1:]
    assert len(shown) == 3
    for step in shown:
        command, _, output = step.partition("\n")
        arguments = [sys.executable, *command.split()[1:]]
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.stdout == output
        assert (done.returncode == 0) == ("--crash" not in command)
    afterwards = commands(COMMANDS[0])
    assert [command for command, _ in afterwards] == ["limpet ls", "limpet show report-42"]
    for command, output in afterwards:
        assert without_times(run(command, tmp_path)) == without_times(output)


@pytest.mark.slow
def test_the_commands_print_what_is_shown(tmp_path: Path) -> None:
    """Import and copy, one after the other, with the files of the examples."""
    for file in (ROOT / "examples").glob("*.json"):
        shutil.copy(file, tmp_path)
    steps = [step for session in COMMANDS[1:] for step in commands(session)]
    assert len(steps) == 3
    for command, output in steps:
        assert run(command, tmp_path) == output


def test_the_other_examples_run(tmp_path: Path) -> None:
    """All of them, in one program, as somebody would who types them in."""
    (tmp_path / "all.py").write_text("\n".join(PYTHON[1:]))
    command = [sys.executable, "-W", "error", "all.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sent")


def blocks(page: str) -> list[str]:
    """The Python code of a *page*, block by block."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index.md", "which.md", "memory.md", "messages.md", "mcp.md"])
def test_the_examples_of_a_page_run(page: str, tmp_path: Path) -> None:
    """One after the other, in one program."""
    (tmp_path / "page.py").write_text("\n".join(blocks(page)))
    command = [sys.executable, "-W", "error", "page.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_backend_and_the_integration_that_are_explained_work(tmp_path: Path) -> None:
    """A newcomer who types them in has a backend that keeps the whole contract."""
    for code in blocks("extending.md"):
        name = re.match(r"# (\w+\.py)\n", code)
        (tmp_path / (name[1] if name else "main.py")).write_text(code)
    program = [sys.executable, "-W", "error", "main.py"]
    suite = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_onefile.py"]
    for command in (program, suite):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Those to files of this project."""
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


SOURCE = ROOT / "src"
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.slow
@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_in_docstrings_do_as_shown(module: str) -> None:
    """They are the first thing that an editor shows of a name."""
    found = doctest.testmod(import_module(module))
    assert found.attempted > 0
    assert found.failed == 0
