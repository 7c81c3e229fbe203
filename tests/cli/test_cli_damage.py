"""Commands on a store with a record that is whole, and is not what its model stores."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

import limpet
from limpet.backends.contract import Append, Key
from tests.models.test_damage import DEEP, seal
from tests.support import places
from tests.support.commands import run

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ("conversation", "task", "state", "memory")

#: What may be sealed in place of a record: of no model, and of each.
SHAPES = {
    **dict.fromkeys((b"5", b"null", b"[]", DEEP), KINDS),
    b'["message",5]': ("conversation",),
    b'["step",5]': ("task",),
    b'["saved",5]': ("state",),
    b'["remembered",5]': ("memory",),
}

#: Commands that read the journal X of a kind, and so cannot do what they are asked.
READING = {
    "conversation": (
        *(["show", "X"], ["show", "X", "--json"], ["search", "hello"]),
        ["export", "x", "--messages"],
    ),
    "task": (["show", "X"], ["show", "X", "--json"], ["show", "X", "--context"]),
    "state": (["show", "X"], ["show", "X", "--json"]),
    "memory": (
        *(["show", "X"], ["memory", "show", "x"], ["memory", "search", "x", "hello"]),
        *(["memory", "stats", "x"], ["memory", "reindex", "x"]),
    ),
}
#: Those that give entries as they are, whatever these are to a model.
ENTRIES = {
    "conversation": (["history", "X"], ["history", "X", "--diff"], ["export", "x"], ["export"]),
    "task": (["history", "X"],),
    "state": (),
    "memory": (),
}


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the reader's own setting leaks in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIMPET_CACHE", "none")
    monkeypatch.delenv("LIMPET_URL", raising=False)


def fill(url: str, kind: str, shape: bytes) -> None:
    """One of each model called x, of which that of *kind* is damaged; and another conversation."""
    with limpet.open(url) as store:
        for id_ in ("x", "zoe"):
            store.conversation(id_).append({"role": "user", "content": "hello"})
        with store.task("x", goal="Report") as task:
            task.step("a", str, "a")
        store.state("x").save({"a": 1})
        store.memory("x").remember("hello world")
        store.backend.append(Append(key=Key("default", kind, "x"), body=seal(shape), count=1))


CASES = [
    pytest.param(kind, shape, id=f"{kind} {shape[:20].decode()}")
    for shape, kinds in SHAPES.items()
    for kind in kinds
]


@pytest.mark.parametrize(("kind", "shape"), CASES)
@pytest.mark.parametrize("name", ["sqlite", "file"])
def test_every_command_says_where_the_damage_is(
    name: str, kind: str, shape: bytes, request: pytest.FixtureRequest
) -> None:
    """The journal and the number, never a traceback; and the other journals are as well as ever."""
    url = places.find(name, request).url
    fill(url, kind, shape)
    number = 3 if kind == "task" else 2
    entries = ENTRIES[kind] if len(SHAPES[shape]) > 1 else ()
    for words in (*READING[kind], *entries):
        command = [word.replace("X", f"{kind}/x") for word in words]
        said = run("--store", url, *command, code=1)
        assert re.search(rf"(?i)\bentry {number}\b", said.stderr), said.output
        assert re.search(r"'x'", said.stderr), said.output
    for words in (["ls"], ["in-doubt"], ["sweep"], ["show", "conversation/zoe"]):
        run("--store", url, *words)
    for other in set(KINDS) - {kind}:
        run("--store", url, "show", f"{other}/x")


@pytest.mark.parametrize(("kind", "shape"), CASES)
@pytest.mark.parametrize("name", ["sqlite", "file"])
def test_the_doctor_names_the_damage_and_goes_on(
    name: str, kind: str, shape: bytes, request: pytest.FixtureRequest
) -> None:
    """All journals are looked at, and only one is found to be damaged."""
    url = places.find(name, request).url
    fill(url, kind, shape)
    report = json.loads(run("--store", url, "doctor", "--json", code=1).stdout)
    (found,) = report["unreadable"]
    assert (found["journal"], found["seq"]) == (f"{kind}/x", 3 if kind == "task" else 2)
    assert report["journals"] == 5
    assert f"{kind}/x at {found['seq']}" in run("--store", url, "doctor", code=1).stdout


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_a_copy_of_what_is_damaged_is_damaged_in_the_same_place(
    tmp_path: Path, kind: str, shape: bytes
) -> None:
    """To copy is not to judge; everything arrives, and nothing looks better than it is."""
    url = f"sqlite:{tmp_path}/agents.db"
    fill(url, kind, shape)
    run("copy", url, "file:copied")
    for place in (url, "file:copied"):
        report = json.loads(run("--store", place, "doctor", "--json", code=1).stdout)
        (found,) = report["unreadable"]
        assert (found["journal"], report["journals"]) == (f"{kind}/x", 5)
