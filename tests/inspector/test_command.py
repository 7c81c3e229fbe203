"""``limpet inspect``, as people start it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

import limpet
from tests.support.commands import run
from tests.support.processes import HOST, free_port, until

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "a long token of the user's"  # noqa: S105 - for these tests
LOG = Path("inspect.log")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIMPET_INSPECT_TOKEN", raising=False)
    with limpet.open("limpet.db") as opened:
        opened.conversation("alice").append({"role": "user", "content": "Where is my order?"})


@contextmanager
def started(*options: str, **environment: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command, with the link that it printed; ended by Ctrl-C."""
    command = [sys.executable, "-m", "limpet", "inspect", *options]
    with (
        LOG.open("w") as log,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | environment,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def test_it_prints_a_link_and_ends_by_ctrl_c() -> None:
    """Nothing to sign up for, nothing to build, nothing left behind."""
    with started() as (link, process), httpx.Client(follow_redirects=True) as client:
        assert link.startswith(f"http://{HOST}:")
        assert client.get(link).status_code == 200
        page = client.get(link.partition("/enter")[0])
        assert "limpet.db" in page.text
        assert "read-only" in page.text
    assert process.returncode == 0
    assert "Traceback" not in LOG.read_text()


def test_the_doctor_says_what_is_so_of_the_place() -> None:
    """Whoever starts it can read all of the file, and runs the command else; it ends at once."""
    with started() as (link, process), httpx.Client(follow_redirects=True) as client:
        client.get(link)
        page = f"{link.partition('/enter')[0]}/doctor?check=1"
        assert until(lambda: "All is well." in client.get(page).text)
        assert "synchronous=FULL" in client.get(page).text
    assert process.returncode == 0
    assert "Traceback" not in LOG.read_text()


def test_the_token_is_in_no_log() -> None:
    """A log is kept for longer than the twelve hours that a visitor may stay."""
    with started() as (link, _), httpx.Client() as client:
        client.get(link)
        client.get(f"{link}x")
    assert link.partition("token=")[2] not in LOG.read_text()


def test_read_only_is_what_the_store_is_opened_as() -> None:
    """Not even a mistake of ours can then change it."""
    before = Path("limpet.db").read_bytes()
    with started() as (link, _), httpx.Client(follow_redirects=True) as client:
        client.get(link)
        assert client.get(link.partition("/enter")[0]).status_code == 200
    assert Path("limpet.db").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "token", "says", "code"),
    [
        (["--host", "0.0.0.0"], TOKEN, "--allow-remote", 2),  # noqa: S104 - it is refused
        (["--host", "0.0.0.0", "--allow-remote"], TOKEN, "--allow-host", 2),  # noqa: S104 - as above
        (["--allow-remote"], "", "LIMPET_INSPECT_TOKEN", 2),
        (["--allow-remote"], "short", "can be guessed", 1),
    ],
)
def test_others_reach_it_only_where_that_is_meant(
    monkeypatch: pytest.MonkeyPatch, options: list[str], token: str, says: str, code: int
) -> None:
    """A page that anybody on the network can open is how others came into the news."""
    monkeypatch.setenv("LIMPET_INSPECT_TOKEN", token)
    result = run("inspect", *options, code=code)
    assert says in result.stderr


def test_others_come_in_with_the_token_of_the_users() -> None:
    """Through a name that was allowed, and by a form: never by a link."""
    port = free_port()
    options = ("--allow-remote", "--port", str(port), "--allow-host", "agents.example:8443")
    with started(*options, LIMPET_INSPECT_TOKEN=TOKEN) as (link, _), httpx.Client() as client:
        assert "token" not in link
        named = {"host": "agents.example:8443", "origin": "https://agents.example:8443"}
        entry = f"{link}enter"
        assert client.get(link, headers={"host": "other.example"}).status_code == 421
        assert client.get(link, headers=named).status_code == 403
        assert client.post(entry, data={"token": "x"}, headers=named).status_code == 403
        assert client.post(entry, data={"token": TOKEN}, headers=named).status_code == 200
        assert client.get(link, headers=named).status_code == 200


def test_a_store_that_is_not_there_is_said() -> None:
    """Looking creates nothing."""
    result = run("inspect", "--store", "other.db", code=1)
    assert "limpet demo" in result.stderr
    assert not Path("other.db").exists()
