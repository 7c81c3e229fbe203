"""``limpet search``: over everything that agents have said, done, saved and learned."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from tests.support import stores
from tests.support.commands import run

if TYPE_CHECKING:
    from pathlib import Path

cache = stores.cache


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with an okapi in a journal of each kind."""
    monkeypatch.chdir(tmp_path)
    for name in ("LIMPET_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    with limpet.open("limpet.db") as store:
        store.conversation("zoo").append({"role": "user", "content": "Where is the okapi?"})
        with store.task("find", goal="Find the okapi") as task:
            task.discover("The okapi hides")
            task.step("feed", lambda: {"eaten": "two leaves by the okapi"})
        store.state("profile").save({"animals": ["okapi"]})
        store.memory("facts").remember("An okapi is a giraffe")


def found(*options: str) -> list[tuple[str, str, str]]:
    """Kind, id and role of each hit."""
    hits: list[dict[str, Any]] = json.loads(run("search", "okapi", *options, "--json").stdout)
    return [(hit["kind"], hit["id"], hit["role"]) for hit in hits]


def test_tasks_states_and_memories_are_searched_too() -> None:
    """What was said, intended, found out, done, saved and remembered."""
    assert sorted(found()) == [
        ("conversation", "zoo", "user"),
        ("memory", "facts", "fact"),
        ("state", "profile", "animals[0]"),
        ("task", "find", "discovery"),
        ("task", "find", "goal"),
        ("task", "find", "result of feed"),
    ]
    text = run("search", "okapi").stdout
    for name in ("conversation/zoo", "memory/facts", "state/profile", "task/find"):
        assert f"{name}\n" in text


def test_what_is_new_is_found_and_what_is_forgotten_is_not() -> None:
    """The index follows the journals, and keeps nothing for itself."""
    assert len(found()) == 6
    with limpet.open("limpet.db") as store:
        (fact,) = store.memory("facts").list()
        store.memory("facts").forget(fact.id)
        store.state("profile").save({"animals": ["tapir"]})
        with store.task("find") as task:
            task.decide("leave the okapi in peace")
    kinds = [kind for kind, _, _ in found()]
    assert sorted(kinds) == ["conversation", *["task"] * 4]
