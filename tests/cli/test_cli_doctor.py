"""`limpet doctor` on a directory of files, and what it does about damage when it is asked to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import limpet
from tests.support.commands import run


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the reader's own setting leaks in."""
    monkeypatch.chdir(tmp_path)
    for name in ("LIMPET_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with two conversations of two tenants."""
    for tenant in ("default", "acme"):
        with limpet.open(f"file:{tmp_path}/state", tenant=tenant) as store:
            for number in range(1, 7):
                message = {"role": "user", "content": f"This is number {number}."}
                store.conversation("alice").append(message)
    return tmp_path / "state"


def damage(root: Path, tenant: str = "default") -> Path:
    """Alter one letter; the file that it is in."""
    path = root / tenant / "conversation" / "alice.jsonl"
    path.write_bytes(path.read_bytes().replace(b"number 3", b"number 8"))
    return path


def test_doctor_finds_a_healthy_directory_well(root: Path) -> None:
    """Engine, mode, durability, sizes, every line, every record."""
    shown = run("--store", f"file:{root}", "doctor").stdout
    names = ("engine", "directory mode", "format", "durability", "size", "integrity", "records")
    for name in names:
        assert re.search(rf"^✓ {name} ", shown, re.MULTILINE), name
    assert "2 with 12 entries" in shown
    assert shown.endswith("All is well.\n")


def test_doctor_names_the_damaged_line_and_changes_nothing(root: Path) -> None:
    """The advice is to copy the directory, and then --repair."""
    path = damage(root)
    before = path.read_bytes()
    shown = run("--store", f"file:{root}", "doctor", code=1).stdout
    assert re.search(r"✗ damaged +.*alice.jsonl, line 4: it does not match its checksum", shown)
    assert "limpet doctor --repair" in shown
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_doctor_says_when_other_users_can_look_in(root: Path) -> None:
    """And how to change that."""
    root.chmod(0o755)
    shown = run("--store", f"file:{root}", "doctor", code=1).stdout
    assert "✗ directory mode" in shown
    assert f"chmod 700 {root}" in shown


def test_doctor_shows_a_last_line_that_was_never_finished(root: Path) -> None:
    """That is no problem: nobody was told that it is safe."""
    path = root / "default" / "conversation" / "alice.jsonl"
    with path.open("ab") as file:
        file.write(b'{"seq":7,"cou')
    shown = run("--store", f"file:{root}", "doctor").stdout
    assert re.search(r"! unfinished +.*alice.jsonl, line 8: 13 bytes", shown)


def test_doctor_does_not_call_a_file_harmless_that_may_have_been_cut_off(root: Path) -> None:
    """In the middle of what was acknowledged, it looks like an append that was cut short."""
    path = root / "default" / "conversation" / "alice.jsonl"
    path.write_bytes(path.read_bytes()[:-300])
    shown = " ".join(run("--store", f"file:{root}", "doctor").stdout.split())
    assert "Nobody can tell by the file: if no process died, restore a backup" in shown
    assert "All is well" not in shown


def test_repair_sets_aside_what_is_damaged_and_keeps_the_rest(root: Path) -> None:
    """Of every tenant; afterwards all is well, and what was lost is not forgotten."""
    paths = [damage(root), damage(root, "acme")]
    shown = run("--store", f"file:{root}", "doctor", "--repair").stdout
    for path in paths:
        assert f"{path}: line 4 (lost: entry 3) moved to {path}.damaged-1." in shown
        assert b"number 8" in Path(f"{path}.damaged-1").read_bytes()
    assert re.search(r"✓ taken out +.*alice.jsonl: entry 3, by a repair", shown)
    assert re.search(r"✓ set aside +.*alice.jsonl.damaged-1", shown)
    assert shown.endswith("All is well.\n")
    with limpet.open(f"file:{root}") as store:
        said = [message["content"] for message in store.conversation("alice").messages()]
        tenants = [store, store.as_tenant("acme")]
        assert [tenant.conversation("alice").length() for tenant in tenants] == [5, 5]
    assert said == [f"This is number {number}." for number in (1, 2, 4, 5, 6)]
    again = run("--store", f"file:{root}", "doctor", "--repair").stdout
    assert "repaired" not in again
    assert "✓ taken out" in again


@pytest.mark.parametrize("line", [3, 4])
def test_a_task_of_which_a_repair_took_something_out_is_paused_once(root: Path, line: int) -> None:
    """A step that was done would run again; whoever has looked at it lets it go on, for good."""
    with limpet.open(f"file:{root}") as store:
        with store.task("report", goal="Report") as task:
            for name in ("a", "b", "c"):
                task.step(name, str, name)
        with store.task("whole", goal="Report") as task:
            task.step("a", str, "a")
    path = root / "default" / "task" / "report.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(b'"at"', b'"AT"')
    path.write_bytes(b"".join(lines))
    shown = run("--store", f"file:{root}", "doctor", "--repair").stdout
    assert "Task 'report' is paused: a step that was done may run again" in shown
    with limpet.open(f"file:{root}") as store:
        assert {info.id: info.status for info in store.tasks()} == {
            "report": "paused",
            "whole": "open",
        }
        store.resume("report")
    damage(root)
    shown = run("--store", f"file:{root}", "doctor", "--repair").stdout
    assert "is paused" not in shown


def test_repair_reports_to_programs(root: Path) -> None:
    """What was done is in the document."""
    damage(root)
    found: dict[str, Any] = json.loads(
        run("--store", f"file:{root}", "doctor", "--repair", "--json").stdout
    )
    assert found["ok"] is True
    assert [("line 4" in text) for text in found["repaired"]] == [True]


def test_repair_does_not_create_a_store(tmp_path: Path) -> None:
    """A misspelt name is an error."""
    result = run("--store", "file:missing", "doctor", "--repair", code=1)
    assert result.stderr.startswith("StoreNotFound: ")
    assert list(tmp_path.iterdir()) == []


def test_repair_is_refused_where_it_cannot_be_done(tmp_path: Path) -> None:
    """A SQLite file is not a text whose lines can be told apart."""
    with limpet.open(tmp_path / "agents.db") as store:
        store.conversation("alice").append({"role": "user", "content": "Hello"})
    result = run("--store", "agents.db", "doctor", "--repair", code=1)
    assert "cannot be repaired in place" in result.stderr


# -- heads -----------------------------------------------------------------------------------------

BROKEN = [b"\xff", b'{"calls": 7}', b'{"calls": {"c1": {"name": 7}}}', b'{"others": "many"}']


@pytest.mark.parametrize("meta", BROKEN, ids=repr)
def test_doctor_names_each_journal_with_a_damaged_meta_and_goes_on(meta: bytes) -> None:
    """Its journal and number; what lies behind it in the store is looked at as well."""
    with limpet.open("agents.db") as store:
        for name in ("alice", "bob", "carol"):
            store.conversation(name).append({"role": "user", "content": "Hello"})
            store.state(name).save({"a": 1})
            with store.task(name, "Go") as task:
                task.step("look", lambda: 1)
            store.journal("note", name).append(("added", 1), meta=b"anything")
        for kind in ("conversation", "state", "task"):
            for name in ("alice", "carol"):
                store.journal(kind, name).append(meta=meta)
        store.journal("note", "bob").append(meta=b'"calls": half')
        numbers = {
            f"{head.key.kind}/{head.key.id}": head.seq
            for kind in ("conversation", "note", "state", "task")
            for head in store.backend.heads("default", kind)
        }
    found = json.loads(run("--store", "agents.db", "doctor", "--json", code=1).stdout)
    broken = [
        *("conversation/alice", "conversation/carol", "note/bob"),
        *("state/alice", "state/carol", "task/alice", "task/carol"),
    ]
    assert [(one["journal"], one["seq"]) for one in found["unreadable"]] == [
        (name, numbers[name]) for name in broken
    ]
    why = [one["problem"] for one in found["unreadable"]]
    assert all(text.startswith("The meta of its head cannot be read: ") for text in why)
    assert (found["ok"], found["journals"]) == (False, 12)
    shown = run("--store", "agents.db", "doctor", code=1).stdout
    for name in broken:
        assert f" {name} at {numbers[name]}: The meta of its head" in shown
    assert "state/alice" in run("--store", "agents.db", "ls").stdout


def test_a_damaged_meta_is_one_clear_error_elsewhere() -> None:
    """It sends its reader to the doctor."""
    with limpet.open("agents.db") as store:
        store.journal("note", "x").append(("added", 1), meta=b'{"calls": 7}')
    for command in (["in-doubt"], ["resolve", "note/x", "c1", "done"]):
        said = run("--store", "agents.db", *command, code=1).stderr
        assert said.startswith("Unreadable: The head of note 'x' has a meta that cannot be read")
        assert "limpet doctor" in said
