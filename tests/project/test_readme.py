"""The README, pages without tests of their own, and the examples in docstrings do what they say."""

from __future__ import annotations

import doctest
import re
import shlex
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

import limpet
from limpet.backends.contract import Key
from limpet.errors import InvalidURL, LeaseHeld, NotAStore, StoreNotFound
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
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|\d+ B|\d+\.\d KB", "…", text)


@pytest.mark.slow
def test_whoever_follows_the_page_from_top_to_bottom_sees_what_is_shown(tmp_path: Path) -> None:
    """In one directory, in order: no example is in the way of a later one."""
    (tmp_path / "agent.py").write_text(PYTHON[0])
    session = next(text for language, text in BLOCKS if language == "console")
    shown = commands(session)
    assert len(shown) == 3
    for command, output in shown:
        arguments = [sys.executable, *command.split()[1:]]
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.stdout == output
        assert (done.returncode == 0) == ("--crash" not in command)
    afterwards = commands(COMMANDS[0])
    assert [command for command, _ in afterwards] == ["limpet ls", "limpet show report-42"]
    for command, output in afterwards:
        assert without_times(run(command, tmp_path)) == without_times(output)

    # The other examples in one program, as somebody would who types them in.
    (tmp_path / "all.py").write_text("\n".join(PYTHON[1:]))
    program = [sys.executable, "-W", "error", "all.py"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sent")
    with limpet.open(tmp_path / "limpet.db") as store:
        assert len(store.conversation("alice").summaries()) == 1

    for file in (ROOT / "examples").glob("*.json"):
        shutil.copy(file, tmp_path)
    steps = [step for session in COMMANDS[1:] for step in commands(session)]
    assert [command.split()[1] for command, _ in steps] == ["import", "import", "copy"]
    for command, output in steps:
        assert without_times(run(command, tmp_path)) == without_times(output)


def blocks(page: str) -> list[str]:
    """The Python code of a *page*, block by block."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    ["index.md", "which.md", "memory.md", "messages.md", "mcp.md", "inspector.md", "privacy.md"],
)
def test_the_examples_of_a_page_run(page: str, tmp_path: Path) -> None:
    """One after the other, in one program."""
    (tmp_path / "page.py").write_text("\n".join(blocks(page)))
    command = [sys.executable, "-W", "error", "page.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def write_modules(directory: Path) -> None:
    """The blocks of the page on extending, each as the file that its first line names."""
    for code in blocks("extending.md"):
        name = re.match(r"# (\w+\.py)\n", code)
        (directory / (name[1] if name else "main.py")).write_text(code)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "-W error main.py",
        "-W error leases.py",
        "-W error notes.py",
        "-m pytest -q -p no:cacheprovider test_onefile.py",
    ],
)
def test_the_backend_and_the_integrations_that_are_explained_work(
    command: str, tmp_path: Path
) -> None:
    """A newcomer who types them in has a backend that keeps the whole contract."""
    write_modules(tmp_path)
    arguments = [sys.executable, *command.split()]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_calls_of_the_integration_that_is_explained_are_made_once(tmp_path: Path) -> None:
    """Also if it is killed while several are running, as the page shows it."""
    write_modules(tmp_path)
    text = (ROOT / "docs" / "extending.md").read_text("utf-8")
    (session,) = re.findall(r"^```console\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    for command, output in commands(session):
        program, *arguments = shlex.split(command)
        python = [sys.executable, *(["-m", "limpet"] if program == "limpet" else []), *arguments]
        done = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.stdout == output
        assert done.returncode == (-signal.SIGKILL if "--crash" in command else 0)


def test_the_backend_that_is_explained_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the errors of the library; and it stays where it was opened."""
    write_modules(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    backend = import_module("onefile").OneFileBackend
    for place, options in (
        ("none/journals", {}),
        ("new", {"readonly": True}),
        ("new", {"create": False}),
    ):
        with pytest.raises(StoreNotFound):
            backend(place, **options)
    with pytest.raises(NotAStore, match="is not a store, or is damaged"):
        backend("onefile.py")
    with pytest.raises(InvalidURL, match="onefile:journals"):
        backend.from_url("onefile:journals?colour=red")

    opened = backend.from_url("onefile:~/journals")
    monkeypatch.chdir("/")
    opened.acquire(Key("default", "note", "n"), "me", 60)
    assert (tmp_path / "journals").exists()
    monkeypatch.chdir(tmp_path)
    relative = backend("journals")
    monkeypatch.chdir("/")
    with pytest.raises(LeaseHeld):
        relative.acquire(Key("default", "note", "n"), "you", 60)


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
