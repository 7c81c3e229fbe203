"""Tests of ``limpet delete``, ``expire`` and ``sweep``, and of forgetting a whole namespace."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

import limpet
from limpet.cli import main
from limpet.core.ids import make_key
from tests.support.commands import run
from tests.support.processes import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[limpet.Store]:
    """What the commands are about: a conversation, a state and tasks, two of one id."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIMPET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LIMPET_URL", str(tmp_path / "agents.db"))
    with limpet.open() as opened:
        for name in ("alice", "twin", "order-1", "order-2"):
            opened.conversation(name).append({"role": "user", "content": "Hello"})
        opened.state("order-3").save({"a": 1})
        with opened.task("twin", goal="Be one of two") as task:
            task.step("large", lambda: "x" * 100_000)
        opened.journal("note", "todo").append(("added", {"text": "water the plants"}))
        yield opened


def answering(answer: str, *args: str) -> Result:
    """Run the command, and give it an *answer* to what it asks."""
    return CliRunner().invoke(main, args, input=answer)


def names(store: limpet.Store) -> list[str]:
    """All that is there."""
    return sorted(
        f"{kind}/{head.key.id}"
        for tenant, kind in store.backend.kinds()
        for head in store.backend.scan(tenant, kind).heads
    )


def test_nothing_goes_without_a_yes(store: limpet.Store) -> None:
    """It says what would go, and asks; whoever is not there to answer has not said yes."""
    before = names(store)
    for answer in ("n\n", "\n", ""):
        result = answering(answer, "delete", "alice", "order-1")
        assert result.exit_code == 1
        assert "conversation/alice (1 entry, " in result.stderr
        assert "Remove these 2 for good? [y/N]" in result.stderr
    assert names(store) == before
    assert answering("y\n", "delete", "alice").stdout.startswith("removed conversation/alice (1")
    assert names(store) == [name for name in before if name != "conversation/alice"]


def test_what_goes_is_told_to_programs(store: limpet.Store) -> None:
    """As `ls` tells it; what a task has kept apart goes with it."""
    found = json.loads(run("delete", "task/twin", "note/todo", "--yes", "--json").stdout)
    assert [(one["kind"], one["id"]) for one in found] == [("task", "twin"), ("note", "todo")]
    assert names(store) == [
        *("conversation/alice", "conversation/order-1", "conversation/order-2"),
        *("conversation/twin", "state/order-3"),
    ]


def test_all_or_nothing_goes(store: limpet.Store) -> None:
    """One id that is wrong, or may mean two things, and all stay."""
    before = names(store)
    run("delete", "alice", "nobody", "--yes", code=3)
    assert "conversation/twin or task/twin" in run("delete", "alice", "twin", "-y", code=2).stderr
    run("delete", "alice", "--tenant", "acme", "--yes", code=3)
    assert names(store) == before


def test_a_pattern_needs_a_yes_from_the_start(store: limpet.Store) -> None:
    """Nobody reads a list of thousands before they say so."""
    before = names(store)
    assert "--yes" in answering("y\n", "delete", "order-*").stderr
    run("delete", "nothing-*", "--yes", code=3)
    assert names(store) == before
    assert run("delete", "conversation/order-*", "--yes").stdout.count("removed ") == 2
    assert "state/order-3" in run("delete", "order-*", "--yes").stdout
    assert names(store) == [name for name in before if "order" not in name]


def test_a_task_that_is_worked_on_stays(store: limpet.Store) -> None:
    """Whoever works on it would only find out at its next write."""
    before = names(store)
    key = make_key(store.tenant, "task", "twin")
    lease = store.backend.acquire(key, "agent@elsewhere", 3600)
    said = run("delete", "alice", "task/twin", "--yes", code=1).stderr
    assert said.startswith("TaskHeld: task/twin is worked on by agent@elsewhere, until ")
    assert "`limpet task cancel twin`" in said
    assert names(store) == before
    store.backend.release(key, lease)
    run("delete", "alice", "task/twin", "--yes")


def test_something_ends_by_itself_or_never(store: limpet.Store) -> None:
    """The same as expire() in a program."""
    assert run("expire", "alice", "30d").stdout.startswith("conversation/alice expires at 2")
    (info,) = store.conversations(prefix="alice")
    assert info.expires_at is not None
    assert (info.expires_at - info.created_at).days == 30
    assert run("expire", "alice", "never").stdout == "conversation/alice never expires\n"
    (info,) = store.conversations(prefix="alice")
    assert info.expires_at is None
    for name in ("task/twin", "state/order-3", "note/todo"):
        assert json.loads(run("expire", name, "2h", "--json").stdout)["expires_at"]
    run("expire", "nobody", "30d", code=3)
    run("expire", "alice", "soon", code=2)
    run("expire", "alice", "0", code=2)


def test_what_has_expired_is_swept(store: limpet.Store) -> None:
    """Its room is free for others then."""
    assert run("sweep").stdout == "Nothing to do.\n"
    run("expire", "order-1", "0.001s")
    assert until(lambda: "conversation/order-1" not in names(store))
    assert json.loads(run("sweep", "--json").stdout) == {"swept": 1}


def test_a_whole_namespace_is_forgotten(store: limpet.Store) -> None:
    """With every version of what it knew, and what has expired; after asking."""
    memory = store.memory("acme")
    first = memory.remember("Likes tea")
    memory.update(first.id, "Likes coffee")
    memory.remember("Was here", ttl=0.001)
    memory.remember("Is in room 7")
    assert memory.recall("tea")
    assert re.search(r"✓ search cache +\S+cache: 1 index of 1 store, ", run("doctor").stdout)
    said = run("delete", "memory/acme", "--yes", code=1).stderr
    assert "`limpet memory forget acme --all`" in said
    assert answering("n\n", "memory", "forget", "acme", "--all").exit_code == 1
    assert len(memory.list()) == 2
    run("memory", "forget", "acme", "--all", "--tag", "tea", code=2)
    done = json.loads(run("memory", "forget", "acme", "--all", "--yes", "--json").stdout)
    assert len(done["ids"]) == 4
    assert memory.list(superseded=True) == []
    run("memory", "forget", "acme", "--all", "--yes", code=3)
    assert "removed memory/acme (0 entries" in run("delete", "memory/acme", "--yes").stdout
    memory.remember("Is in room 8")
    assert [one.text for one in memory.list()] == ["Is in room 8"]
