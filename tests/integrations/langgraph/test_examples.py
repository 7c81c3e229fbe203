"""The example of the guide, as its first lines show it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "langgraph_agent.py"


def said(tmp_path: Path, *words: str) -> str:
    """What one process of it prints; and that it was killed, as a shell says it."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -9), done.stderr
    return done.stdout + ("Killed\n" if done.returncode else "")


def shown() -> list[tuple[list[str], str]]:
    """The commands in its first lines, and what they print."""
    lines = re.findall(r"^    (.*\n)", EXAMPLE.read_text().split('"""')[1], flags=re.MULTILINE)
    session = re.split(r"^\$ python langgraph_agent\.py (.*)\n", "".join(lines), flags=re.MULTILINE)
    return [(words.split(), text) for words, text in zip(session[1::2], session[2::2], strict=True)]


@pytest.mark.slow
def test_the_example_does_what_it_says(tmp_path: Path) -> None:
    """It waits for a person in one process, dies in the next, and pays once."""
    commands = shown()
    assert len(commands) == 3
    for words, text in commands:
        assert said(tmp_path, *words) == text
    assert len((tmp_path / "bank.jsonl").read_text().splitlines()) == 1


@pytest.mark.slow
def test_who_says_no_pays_nothing(tmp_path: Path) -> None:
    """And the agent says so."""
    said(tmp_path, "ask")
    assert said(tmp_path, "no") == "The agent says: Somebody has said no.\n"
    assert not (tmp_path / "bank.jsonl").exists()
