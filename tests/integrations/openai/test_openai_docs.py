"""The page about OpenAI and the two examples do what they say, the examples also when killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import limpet
from tests.support.openai_rig import texts
from tests.support.openai_server import Answer, Request, Server, Trouble
from tests.support.paths import ROOT
from tests.support.processes import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "openai.md").read_text("utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


def environment(server: Server, directory: Path) -> dict[str, str]:
    """For a program that asks *server* and keeps its state in *directory*."""
    return {
        **os.environ,
        "OPENAI_BASE_URL": server.url,
        "OPENAI_API_KEY": "none",
        "LIMPET_URL": f"sqlite:{directory}/agents.db",
    }


def helpful(request: Request) -> Answer:
    """A model that does what the page asks of it."""
    asked = request.asked
    if "Pay ten" in asked and not request.results:
        calls = ("pay", {"account": "7", "amount": 10}), ("balance", {"account": "7"})
        return Answer(calls=calls)
    if "Welcome" in asked and not request.results:
        return Answer(calls=(("send_mail", {"to": "alice", "text": "Welcome!"}),))
    return Answer(f"So it is. {' '.join(request.results)}")


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    """All of them, in one program, as somebody would who types them in."""
    (tmp_path / "all.py").write_text("\n".join([*PYTHON, "client.close()", "store.close()"]))
    with Server(brain=helpful) as server:
        done = subprocess.run(
            [sys.executable, "-W", "error", "all.py"],
            cwd=tmp_path,
            env=environment(server, tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "paid 10.0 into 7 17.5" in done.stdout
    assert done.stdout.startswith("So it is. \nSo it is.  stop ")
    assert server.refused == []


def started(name: str, server: Server, directory: Path) -> subprocess.Popen[str]:
    """An example, as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name), "alice"],
        env=environment(server, directory),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def say(program: subprocess.Popen[str], text: str) -> None:
    """Type a line."""
    assert program.stdin is not None
    program.stdin.write(f"{text}\n")
    program.stdin.flush()


def hear(program: subprocess.Popen[str]) -> str:
    """Read a line."""
    assert program.stdout is not None
    return program.stdout.readline().strip()


@pytest.mark.parametrize("name", ["chat.py", "chat_async.py"])
def test_an_example_says_how_it_is_called(name: str) -> None:
    """To whoever has just tried it."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"usage: python {name} NAME")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chat.py", "chat_async.py"])
def test_an_example_is_killed_and_goes_on_in_the_next_process(name: str, tmp_path: Path) -> None:
    """While the model is thinking; the question is not asked again, and nothing is forgotten."""
    script = (
        Answer("Nice to meet you, Alice."),
        Trouble(hang=60),
        Answer("Blue, I think."),
        Answer("Alice, of course."),
    )
    with Server(*script) as server:
        first = started(name, server, tmp_path)
        say(first, "I am Alice.")
        assert hear(first) == "Nice to meet you, Alice."
        say(first, "What is my colour?")
        assert until(lambda: len(server.requests) == 2)
        first.send_signal(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
        second = started(name, server, tmp_path)
        assert hear(second) == "Blue, I think."
        say(second, "Who am I?")
        assert hear(second) == "Alice, of course."
        second.communicate()
        assert second.returncode == 0
        first.communicate()
    with limpet.open(tmp_path / "agents.db") as store:
        assert texts(store.conversation("alice").messages()) == [
            "user: I am Alice.",
            "assistant: Nice to meet you, Alice.",
            "user: What is my colour?",
            "assistant: Blue, I think.",
            "user: Who am I?",
            "assistant: Alice, of course.",
        ]
    assert server.refused == []
