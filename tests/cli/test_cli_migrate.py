"""Tests of ``limpet migrate``, and of the commands that show states."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.states import migrations
from tests.support.commands import run

if TYPE_CHECKING:
    from collections.abc import Iterator

APP = """
import limpet

ours = limpet.Migrations()


@ours.migration("Support", 1, 2)
def listed(document):
    return {"tickets": [document["ticket"]]}


@ours.migration("Support", 2, 3)
def named(document):
    return {"tickets": {f"t{number}": number for number in document["tickets"]}}


@limpet.migration("case/*", 1, 2)
def of_the_program(document):
    return [*document, "two"]
"""


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty directory, and without what was imported from it, or registered, afterwards."""
    monkeypatch.chdir(tmp_path)
    for name in ("LIMPET_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(migrations.migrations, "_steps", {})
    known = set(sys.modules)
    Path("app.py").write_text(APP)
    yield
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def store() -> Iterator[limpet.Store]:
    """Some states of version 1, and one of version 2."""
    with limpet.open("limpet.db") as opened:
        for number in (1, 2, 3):
            opened.state(f"support/{number}", type="Support").save({"ticket": number})
        opened.state("support/new", version=2, type="Support").save({"tickets": [4]})
        opened.state("case/1").save(["one"])
        opened.state("other").save({"nothing": "to do"})
        yield opened


def outcomes(*args: str, code: int = 0) -> dict[str, Any]:
    """What became of each state, for programs."""
    found = json.loads(run("migrate", *args, "--json", code=code).stdout)
    return {one["id"]: (one["outcome"], one["since"], one["to"]) for one in found["states"]}


MIGRATED = {
    "case/1": ("current", 1, 1),
    "other": ("current", 1, 1),
    **{f"support/{number}": ("migrated", 1, 3) for number in (1, 2, 3)},
    "support/new": ("migrated", 2, 3),
}


def test_all_states_of_a_store_are_brought_to_the_newest_version(store: limpet.Store) -> None:
    """Each by its own way; and a second run finds nothing to do."""
    assert outcomes("app:ours") == MIGRATED
    state = store.state("support/2", version=3, type="Support")
    assert state.load() == {"tickets": {"t2": 2}}
    assert [one.note for one in state.history()] == [None, "migrated from version 1"]
    assert state.at(1, migrate=False) == {"ticket": 2}
    assert {outcome for outcome, _, _ in outcomes("app:ours").values()} == {"current"}
    assert state.info().position == 2


def test_a_dry_run_says_the_same_and_writes_nothing(store: limpet.Store) -> None:
    """It runs the migrations, so that what would fail does."""
    assert outcomes("app:ours", "--dry-run") == MIGRATED
    assert [info.version for info in store.states()] == [1, 1, 1, 1, 1, 2]
    shown = run("migrate", "app:ours", "--dry-run").stdout
    assert "support/1  1 → 3\n" in shown
    assert "states: 4 would be migrated, 2 as they are.\nNothing was written.\n" in shown


def test_functions_with_the_decorator_need_only_their_module(store: limpet.Store) -> None:
    """As the documentation shows it."""
    found = run("migrate", "app").stdout
    assert found == (
        "case/1  1 → 2\n"
        "states: 1 migrated, 5 as they are.\n"
        "What was saved before is kept until you run this with --confirm.\n"
    )
    assert store.state("case/1", version=2).load() == ["one", "two"]


def test_one_that_fails_is_named_and_the_others_go_on(store: limpet.Store) -> None:
    """With the step that failed; repaired, the same command does the rest."""
    store.state("support/2", type="Support").save({"tikcet": 2})
    found = run("migrate", "app:ours", code=1).stdout
    assert "support/2, version 1\n" in found
    assert "MigrationFailed: The migration 'Support' 1 → 2 (listed) of state 'support/2'" in found
    assert "raised KeyError: 'ticket'" in found
    assert "states: 3 migrated, 2 as they are, 1 failed." in found
    store.state("support/2", type="Support").save({"ticket": 2})
    assert outcomes("app:ours")["support/2"] == ("migrated", 1, 3)


def test_what_cannot_be_read_is_one_that_fails(store: limpet.Store) -> None:
    """It says so, and the others go on."""
    store.journal("state", "unheard").append(("of a newer release", {}))
    found = run("migrate", "app:ours", code=1).stdout
    assert "unheard\n  Unreadable: There is no save in it that this release knows." in found
    assert "states: 4 migrated, 2 as they are, 1 failed." in found


def test_a_damaged_head_is_one_that_fails(store: limpet.Store) -> None:
    """It is named, and those before and behind it go on."""
    store.journal("state", "support/2").append(meta=b"\xff")
    found = run("migrate", "app:ours", code=1).stdout
    assert "  Unreadable: The head of state 'support/2' has a meta that cannot be read" in found
    assert "states: 3 migrated, 2 as they are, 1 failed." in found
    assert outcomes("app:ours", "--prefix", "support/3") == {"support/3": ("current", 3, 3)}


def test_what_somebody_else_has_migrated_meanwhile_is_as_it_should_be(
    store: limpet.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two may run it at once; one that an agent has saved meanwhile is left for the next run."""
    load = limpet.State.load

    def meanwhile(state: limpet.State) -> Any:
        made = load(state)
        if state.id == "support/1":
            store.state(state.id, version=3).save(made)
        elif state.id == "support/2":
            store.state(state.id).save({"ticket": 22})
        return made

    with monkeypatch.context() as patch:
        patch.setattr(limpet.State, "load", meanwhile)
        found = outcomes("app:ours", code=1)
    assert found["support/1"] == ("current", 3, 3)
    assert found["support/2"] == ("failed", 1, None)
    assert outcomes("app:ours")["support/2"] == ("migrated", 1, 3)
    assert [one.version for one in store.state("support/1").history()] == [1, 3]


def test_only_some_of_them(store: limpet.Store) -> None:
    """By the beginning of their ids, or by their type."""
    assert list(outcomes("app:ours", "--prefix", "support/n")) == ["support/new"]
    found = outcomes("app:ours", "--type", "Support", "--dry-run")
    assert list(found) == ["support/1", "support/2", "support/3", "support/new"]
    assert "no states" in run("migrate", "app:ours", "--prefix", "nobody", code=3).stderr
    assert store.state("support/1").info().version == 1


def test_what_was_before_is_forgotten_when_it_is_confirmed(store: limpet.Store) -> None:
    """Not before: until then everything can be taken back."""
    found = run("migrate", "app:ours", "--confirm", code=1).stdout
    assert "it is still at version 1: migrate it first" in found
    run("migrate", "app:ours")
    newer = store.state("support/1", version=3)
    newer.save({"tickets": {}})
    would = run("migrate", "app:ours", "--confirm", "--dry-run").stdout
    assert "support/1  1 save before version 3\n" in would
    assert [one.version for one in newer.history()] == [1, 3, 3]
    run("migrate", "app:ours", "--confirm")
    assert [one.version for one in newer.history()] == [3, 3]
    assert newer.load() == {"tickets": {}}
    assert newer.at(2) == {"tickets": {"t1": 1}}
    assert {outcome for outcome, _, _ in outcomes("app:ours", "--confirm").values()} == {"current"}


@pytest.mark.parametrize(
    ("app", "why"),
    [
        ("nowhere", "There is no module 'nowhere'"),
        ("app:nothing", "app:nothing is nothing of that name"),
        ("app:named", "app:named is a function"),
        ("empty", "The module empty registers no migrations"),
    ],
)
@pytest.mark.usefixtures("store")
def test_where_there_are_no_migrations_it_is_said(app: str, why: str) -> None:
    """And what they are."""
    Path("empty.py").touch()
    assert why in " ".join(run("migrate", app, code=1).stderr.split())


def test_nothing_is_created_by_it() -> None:
    """A wrong path is a mistake."""
    assert "limpet.db" in run("migrate", "app:ours", code=1).stderr
    assert not Path("limpet.db").exists()


# -- what is in them -------------------------------------------------------------------------------


@pytest.fixture
def saved() -> Iterator[limpet.State]:
    """A state that was saved three times."""
    with limpet.open("limpet.db") as opened:
        state = opened.state("agent", version=2, type="Agent")
        state.save({"log": "x" * 400, "said": ["one"]}, note="the first")
        state.save({"log": "x" * 400, "said": ["one", "two \x1b[31m"]})
        yield state


@pytest.mark.usefixtures("saved")
def test_a_state_is_listed_and_shown() -> None:
    """With its version and type; and control characters do nothing."""
    assert "state/agent  version 2 " in run("ls").stdout
    shown = run("show", "agent").stdout
    assert "state agent · version 2\n" in shown
    assert "of type Agent\n" in shown
    assert '"two \\u001b[31m"' in shown
    found = json.loads(run("show", "state/agent", "--json").stdout)
    assert found["document"]["said"] == ["one", "two \x1b[31m"]
    assert found["saved"]["version"] == 2
    assert "is a state" in run("show", "agent", "--last", "3", code=2).stderr
    assert "There is nothing called 'nobody'" in run("show", "nobody", code=3).stderr


def rewritten(position: int, body: bytes | None) -> None:
    """Let the save at *position* be something else, or nothing."""
    with closing(sqlite3.connect("limpet.db")) as database, database:
        if body is None:
            database.execute("DELETE FROM limpet_records WHERE seq = ?", (position,))
        else:
            database.execute("UPDATE limpet_records SET body = ? WHERE seq = ?", (body, position))


def test_the_doctor_proves_every_save(saved: limpet.State) -> None:
    """By its digest: somebody may have written what can be read, and was not saved."""
    saved.save({"log": "x" * 400, "said": ["one", "two", "three"]})
    saved.save("another")
    saved.save("the last")
    assert run("doctor").stdout.endswith("All is well.\n")
    said = {"version": 2, "copy": 1, "total": 436, "digest": "0" * 32, "patch": {"put": 1}}
    rewritten(2, limpet.Codec().encode([("patched", said)]))
    rewritten(4, None)
    found = json.loads(run("doctor", "--json", code=1).stdout)["unreadable"]
    assert [(one["journal"], one["seq"]) for one in found] == [
        ("state/agent", 2),
        ("state/agent", 4),
    ]
    assert "does not match its digest" in found[0]["problem"]
    rewritten(5, b"")
    found = json.loads(run("doctor", "--json", code=1).stdout)["unreadable"]
    assert [one["seq"] for one in found] == [2, 4, 5]


@pytest.mark.parametrize("lost", [2, 3])
def test_the_doctor_says_what_a_repair_has_left(lost: int) -> None:
    """The file is well again; the newest save is not, until there is another."""
    with limpet.open("file:place") as store:
        state = store.state("agent")
        for number in (1, 2, 3):
            state.save({"log": "x" * 400, "number": f"<{number}>"})
    (path,) = Path("place").rglob("agent.jsonl")
    path.write_bytes(path.read_bytes().replace(b"<%d>" % lost, b"[%d]" % lost))
    shown = run("--store", "file:place", "doctor", "--repair", code=1).stdout
    assert "state/agent at 3: The newest save goes back to entries that a repair took out" in shown
    with limpet.open("file:place") as store:
        store.state("agent").restore(1)
    assert run("--store", "file:place", "doctor").stdout.endswith("All is well.\n")


def test_the_saves_of_a_state_are_listed_and_compared(saved: limpet.State) -> None:
    """By the numbers that at() and restore() take."""
    first, second = run("history", "agent").stdout.splitlines()
    assert re.search(r"version 2, all of it, \d+ B: the first$", first)
    assert "version 2, changes, " in second
    assert run("history", "state/agent", "-n", "1").stdout.splitlines() == [second]
    found = json.loads(run("history", "agent", "--json").stdout)
    assert [one["position"] for one in found] == [1, 2]
    old, new, *lines = run("history", "agent", "--diff", "1").stdout.splitlines()
    assert (old[:11], new[:11]) == ("--- agent, ", "+++ agent, ")
    assert lines == ["said", '  + [1] "two \\u001b[31m"']
    assert "There is no entry 7" in run("history", "agent", "--diff", "1", "7", code=2).stderr
    with limpet.open("limpet.db") as store, store.task("agent", "A task of the same id"):
        pass
    assert "created" in run("history", "agent").stdout
    assert run("history", "state/agent").stdout.splitlines() == [first, second]
    assert saved.info().position == 2
    assert "nobody" in run("history", "nobody", code=3).stderr
