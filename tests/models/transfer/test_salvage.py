"""What can be read of a damaged store is written to a new one, and what is lost is named."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.backends.contract import Key
from limpet.errors import NotAStore, StoreCorrupt, StoreExists
from limpet.transfer.salvage import salvage
from tests.support.commands import run
from tests.support.paths import DATA

PAGE = 4096


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the reader's own setting leaks in, and nothing is left in the system's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIMPET_URL", raising=False)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


def fill(url: str, messages: int, together: int = 4) -> None:
    """A long conversation, a task, a state, a large message, and a journal that was compacted."""
    with limpet.open(url) as store:
        chat = store.conversation("alice", labels={"team": "red"})
        for start in range(0, messages, together):
            chat.append(*(message(number) for number in range(start, start + together)))
        store.conversation("large").append({"role": "user", "content": "x" * 50_000})
        with store.task("report", goal="Count") as task:
            task.step("fetch", lambda: [1, 2])
        store.as_tenant("acme").state("robot", type="arm").save({"at": 1})
        notes = store.journal("note", "compacted")
        for number in range(5):
            notes.append(("added", number))
        notes.compact(4)


def message(number: int) -> dict[str, str]:
    """One of them."""
    return {"role": "user", "content": f"Number {number}. " * 5}


def damaged(content: bytes, page: int) -> bytes:
    """*content* with one page of noise."""
    noise = random.Random(page).randbytes(PAGE)
    return content[: page * PAGE] + noise + content[(page + 1) * PAGE :]


def check(url: str, lost: dict[Key, tuple[tuple[int, int], ...]], messages: int) -> int:
    """That *url* has everything but what was *lost*; how many messages are there."""
    alice = Key("default", "conversation", "alice")
    gone = {number for first, last in lost.get(alice, ()) for number in range(first, last + 1)}
    with limpet.open(url) as store:
        chat = store.conversation("alice")
        left = [message(number) for number in range(messages) if number + 1 not in gone]
        assert chat.messages() == left
        assert chat.length() == len(left)
        assert chat.append(message(messages)) == messages + 1
        if Key("default", "conversation", "large") not in lost:
            assert [len(m["content"]) for m in store.conversation("large").messages()] == [50_000]
        if Key("default", "task", "report") not in lost:
            with store.task("report", goal="Count") as task:
                assert task.step("fetch", lambda: pytest.fail("It has run.")) == [1, 2]
        if Key("acme", "state", "robot") not in lost:
            assert store.as_tenant("acme").state("robot", type="arm").load() == {"at": 1}
        if Key("default", "note", "compacted") not in lost:
            assert [e.body for e in store.journal("note", "compacted").read()] == [3, 4]
    run("--store", url, "doctor")
    return len(left)


@pytest.mark.slow
def test_one_damaged_page_costs_what_was_in_it_and_nothing_else() -> None:
    """Of 4,000 messages most are there, whatever page it was; the damaged file is only read."""
    fill("agents.db", 4000, together=20)
    content = Path("agents.db").read_bytes()
    pages = len(content) // PAGE
    rescued = []
    for page in [*range(8), *range(8, pages, pages // 8), pages - 1]:
        Path("damaged.db").write_bytes(damaged(content, page))
        Path("rescued.db").unlink(missing_ok=True)
        with limpet.open("rescued.db") as store:
            found = list(salvage("damaged.db", store))
        assert {one.outcome for one in found} == {"new"}
        lost = {one.key: one.lost for one in found if one.lost}
        assert Path("damaged.db").read_bytes() == damaged(content, page)
        if any(one.key.kind == "salvaged" for one in found):
            continue  # the page of the journals' names, and see below
        rescued.append(check("rescued.db", lost, 4000))
    assert min(rescued) > 3850
    assert len(rescued) > 10
    assert 4000 in rescued
    assert list(Path("tmp").iterdir()) == []


def test_a_journal_whose_row_is_lost_keeps_its_name() -> None:
    """The index has it; what was known of it otherwise is not."""
    fill("agents.db", 40)
    content = Path("agents.db").read_bytes()
    row = b"defaultconversationalice"
    at = content.index(b'{"team":"red"}')
    assert content.count(row) > 1
    Path("agents.db").write_bytes(damaged(content, at // PAGE))
    with limpet.open("rescued.db") as store:
        found = {one.key: one for one in salvage("agents.db", store)}
        assert Key("default", "conversation", "alice") in found
        assert store.conversation("alice").messages() == [message(n) for n in range(40)]


def test_a_task_that_has_lost_entries_is_paused() -> None:
    """A step that was done may be among them: it must not run again before somebody has looked."""
    with limpet.open("old.db") as store, store.task("pay", goal="Pay") as task:
        for number in range(200):
            task.step(f"pay {number}", lambda: "x" * 200)
    content = Path("old.db").read_bytes()
    number = next(
        n for n in range(len(content) // PAGE) if content.count(b"pay 99", n * PAGE, (n + 1) * PAGE)
    )
    Path("old.db").write_bytes(damaged(content, number))
    with limpet.open("new.db") as store:
        lost = [journal.lost for journal in salvage("old.db", store)]
        assert any(lost)
        with pytest.raises(limpet.errors.TaskPaused), store.task("pay") as task:
            task.step("pay 99", pytest.fail, "it runs again")
        store.resume("pay")
        with store.task("pay") as task:
            assert task.step("pay 150", pytest.fail) == "x" * 200


def test_the_command_names_what_is_lost_and_ends_with_1() -> None:
    """Where the store cannot be copied, and its error names this command."""
    fill("agents.db", 400)
    content = Path("agents.db").read_bytes()
    Path("agents.db").write_bytes(damaged(content, content.index(b"Number 200.") // PAGE))
    refusal = pytest.raises(StoreCorrupt, match=r"limpet salvage .*agents.db NEW")
    with refusal, limpet.open("agents.db") as store:
        store.conversation("alice").messages()
    shown = run("salvage", "agents.db", "rescued.db", code=1).stdout
    assert "sqlite:rescued.db: 5 journals, " in shown
    assert "conversation/alice: entries " in shown
    shown = run("salvage", "agents.db", "file:rescued", "--json", code=1).stdout
    found: dict[str, Any] = json.loads(shown)
    ((first, last),) = found["lost"][0]["entries"]
    assert first <= 201 <= last < first + 100
    assert found["entries"] == 405 + 1 - (last - first + 1)
    refused = run("salvage", "agents.db", "rescued.db", code=1).stderr
    assert "There is something in sqlite:rescued.db already" in refused


def test_what_is_only_in_the_log_is_rescued() -> None:
    """A killed process has left it, and the file is damaged as well."""
    program = (
        "import os, signal, sys; import limpet; store = limpet.open('agents.db')\n"
        "for n in range(300): store.conversation('alice').append("
        "{'role': 'user', 'content': f'Number {n}. ' * 5})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL
    before = Path("agents.db-wal").read_bytes()
    Path("agents.db").write_bytes(os.urandom(Path("agents.db").stat().st_size))
    with limpet.open("rescued.db") as store:
        (found,) = salvage("agents.db", store)
        assert found.lost == ()
        assert store.conversation("alice").messages() == [message(n) for n in range(300)]
    assert Path("agents.db-wal").read_bytes() == before


def test_a_last_page_that_is_lost_is_known_by_the_index() -> None:
    """Numbers that were given out are not given out again."""
    fill("agents.db", 400)
    content = Path("agents.db").read_bytes()
    Path("agents.db").write_bytes(damaged(content, content.rindex(b"Number 399.") // PAGE))
    with limpet.open("rescued.db") as store:
        found = {one.key: one.lost for one in salvage("agents.db", store)}
        ((first, last),) = found[Key("default", "conversation", "alice")]
        assert first < last == 400
        assert store.conversation("alice").append(message(400)) == 401


def test_what_was_deleted_is_not_brought_back() -> None:
    """A page that is free holds nothing any more."""
    fill("agents.db", 400)
    with limpet.open("agents.db") as store:
        store.conversation("alice").delete()
        store.conversation("bob").append(message(1))
    with limpet.open("rescued.db") as store:
        assert all(one.lost == () for one in salvage("agents.db", store))
        assert sorted(info.id for info in store.conversations()) == ["bob", "large"]


def test_a_store_of_an_older_release_is_salvaged() -> None:
    """It may be the one that is damaged."""
    shutil.copy(DATA / "store-0.1.0.db", "agents.db")
    with limpet.open("rescued.db", tenant="acme") as store:
        assert all(one.lost == () for one in salvage("agents.db", store))
        assert list(store.conversations())


def test_a_damaged_directory_is_salvaged_too() -> None:
    """What a repair would keep, and the directory stays as it is."""
    fill("file:state", 40)
    journal = Path("state/default/conversation/alice.jsonl")
    journal.write_bytes(journal.read_bytes().replace(b"Number 20.", b"Number 99.", 1))
    before = journal.read_bytes()
    with limpet.open("rescued.db") as store:
        found = {one.key: one.lost for one in salvage("file:state", store)}
    alice = Key("default", "conversation", "alice")
    assert found[alice] == ((21, 24),)  # one append
    assert check("rescued.db", {alice: found[alice]}, 40) == 36
    assert journal.read_bytes() == before
    assert list(Path("tmp").iterdir()) == []


def test_what_is_no_store_is_refused() -> None:
    """Nothing is made of noise, nor is anything added to a store that is there."""
    Path("noise.db").write_bytes(os.urandom(50_000))
    with limpet.open("rescued.db") as store:
        with pytest.raises(NotAStore, match="Nothing of a Limpet store"):
            list(salvage("noise.db", store))
        store.conversation("alice").append(message(1))
        with pytest.raises(StoreExists):
            list(salvage("noise.db", store))
    assert list(Path("tmp").iterdir()) == []
