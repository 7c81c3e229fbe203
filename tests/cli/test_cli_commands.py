"""Every command is run once, quickly and in this process, and says what it should."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
import uvicorn

import limpet
from limpet.cli import main
from limpet.mcp import server
from limpet.transfer.backup import backup
from tests.support.commands import run
from tests.support.doubtful import leave_in_doubt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.mcp.tools import Tools

APP = """
import limpet

registry = limpet.Registry()
ours = limpet.Migrations()


@registry.task("greet")
def greet(task):
    return f"Hello, {task.input}!"


@ours.migration("settings", 1, 2)
def rename(document):
    return {"color": document["colour"]}
"""

#: What each command is called with, and what its output has in it.
CALLS: dict[str, tuple[list[str], str]] = {
    "demo": (["--fast", "--dir", "demo"], "Try next"),
    "inspect": ([], "/enter?token="),
    "ls": ([], "conversation/alice"),
    "show": (["alice"], "Where is my order?"),
    "search": (["order"], "Where is my"),
    "tail": (["alice"], "user: Where is my order?"),
    "history": (["settings", "--diff"], '+ "blue"'),
    "memory add": (["acme", "Likes", "coffee"], "m"),
    "memory search": (["acme", "tea"], "Likes tea"),
    "memory show": (["acme"], "Likes tea"),
    "memory forget": (["acme", "--all", "--yes"], "forgot "),
    "memory stats": (["acme"], "memories"),
    "memory reindex": (["acme"], "1 memory, 0 with a vector."),
    "task submit": (["greet", "bob", "--goal", "Greet Bob"], "bob is open"),
    "task signal": (["greet-1", "word", "7"], "Sent 'word' to greet-1."),
    "task cancel": (["greet-1"], "Cancelled greet-1."),
    "task pause": (["greet-1"], "Paused greet-1."),
    "task resume": (["failed"], "failed is open again."),
    "task resolve": (["pay", "c1", "skip"], "Step 'c1' of pay: skip."),
    "in-doubt": ([], "limpet resolve task/pay c1 done"),
    "resolve": (["task/pay", "c1", "retry"], "Call 'c1' of task/pay: retry."),
    "delete": (["alice", "--yes"], "removed conversation/alice"),
    "expire": (["alice", "30d"], "conversation/alice expires at 2"),
    "sweep": ([], "Nothing to do."),
    "forget": (["--conversation", "alice", "--yes"], "forgot conversation/alice"),
    "retention set": (["conversation 90d"], "From the next sweep on: conversation 90d"),
    "retention remove": (["task 30d"], "Removed: task 30d"),
    "audit on": ([], "Acts are recorded."),
    "audit show": ([], "began to record"),
    "audit verify": ([], "1 act, each as it was recorded."),
    "work": (["app:registry", "--until-idle", "--poll", "0.05"], ""),
    "mcp": (["acme"], ""),
    "keys new": (["others"], "others: key 1 is new"),
    "keys use": (["1"], "the current key is 1"),
    "keys status": ([], "key 1: 2 journals: "),
    "keys rotate": ([], "2 data keys encrypted under key 2."),
    "keys retire": (["3"], "key 3 is now in keys.retired-3"),
    "backup": (["backup.db"], "backup.db"),
    "restore": (["kept.db", "--replace"], "The store that was there is now "),
    "salvage": (["agents.db", "new.db"], "new.db"),
    "doctor": ([], "All is well."),
    "copy": (["agents.db", "copy.db"], "verified."),
    "export": (["alice", "--messages"], "Where is my order?"),
    "import": (["chat.json"], "conversation/chat: 1 message; imported"),
    "migrate": (["app:ours"], "settings  1 → 2"),
}


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A bit of everything, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIMPET_CACHE", "none")
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("app.py").write_text(APP)
    Path("chat.json").write_text(json.dumps([{"role": "user", "content": "Hello"}]))
    with limpet.open("agents.db") as store:
        store.conversation("alice").append({"role": "user", "content": "Where is my order?"})
        for colour in ("red", "blue"):
            store.state("settings").save({"colour": colour})
        store.memory("acme").remember("Likes tea")
        store.submit("greet", "greet-1", "Greet Ann", input="Ann")
        with store.task("failed", "Fail") as task:
            task.fail("on purpose")
        leave_in_doubt(store, "task", "pay", "send")
        store.set_retention("task 30d")
    with limpet.open("agents.db", audit=True):
        pass
    backup("agents.db", "kept.db")
    yield
    sys.modules.pop("app", None)


def leaves(group: click.Group, above: str = "") -> Iterator[str]:
    """The names of all commands, with those of their groups."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, f"{above}{name} ")
        else:
            yield above + name


def test_no_command_is_left_out() -> None:
    """A new command gets a line above."""
    assert sorted(CALLS) == sorted(leaves(main))


@pytest.mark.parametrize("name", CALLS)
def test_a_command_does_its_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the store named in the environment."""
    if name not in ("copy", "demo"):
        monkeypatch.setenv("LIMPET_URL", "agents.db")
    if name.startswith("keys "):
        encrypted(monkeypatch)
    if name == "mcp":
        monkeypatch.setattr(server, "serve_stdio", recalling)
    if name == "inspect":
        monkeypatch.setattr(uvicorn, "Server", Unasked)
    options, expected = CALLS[name]
    result = run(*name.split(), *options)
    assert expected in result.stdout
    assert "Traceback" not in result.stderr
    if name == "work":
        with limpet.open("agents.db") as store:
            assert store.task("greet-1").info().status == "done"


def encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store be an encrypted one, in the middle of a rotation, with a key to spare."""
    limpet.Keys.generate().save("keys")
    with limpet.open("encrypted.db", keys="keys") as store:
        store.conversation("alice").append({"role": "user", "content": "Where is my order?"})
    limpet.Keys.load("keys").with_new().with_new(current=False).save("keys")
    monkeypatch.setenv("LIMPET_URL", "encrypted.db")
    monkeypatch.setenv("LIMPET_KEYS", "keys")


class Unasked(uvicorn.Server):
    """A server that ends as soon as it has begun."""

    async def main_loop(self) -> None:
        """Nobody asks for anything."""


async def recalling(tools: Tools) -> None:
    """In place of a client: one that asks what there is, and may not write."""
    found: Any = await tools.call("recall", {"query": "tea"})
    assert "Likes tea" in found.text
    assert (await tools.call("remember", {"text": "Likes coffee"})).failed
