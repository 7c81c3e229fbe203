"""Tests of the commands for conversations: show, search, ls, export, import."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.views.messages import parts
from tests.cli.test_cli import data
from tests.support.commands import run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the reader's own setting leaks in, and nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIMPET_CACHE", str(tmp_path / "cache"))
    for name in ("LIMPET_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store with three conversations."""
    url = str(tmp_path / "agents.db")
    with limpet.open(url) as store:
        store.conversation("alice", labels={"team": "red"}).append(
            {"role": "user", "content": "Where is my zebra?"},
            {"role": "assistant", "content": "In Berlin. " + "Patience. " * 50},
        )
        store.conversation("bob").append({"role": "user", "content": "Hello"})
        store.conversation("carol").append({"role": "user", "content": "A zebra, in Berlin"})
    return url


PNG = "data:image/png;base64," + "A" * 4000


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]},
            [("", "[image: image/png, 3.0 KB]")],
        ),
        (
            {"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]},
            [("", "[image: file-1]")],
        ),
        (
            {
                "role": "user",
                "content": [{"type": "image", "source": {"type": "url", "url": "https://a.b/c"}}],
            },
            [("", "[image: https://a.b/c]")],
        ),
        (
            {
                "role": "user",
                "content": [{"type": "file", "file": {"filename": "a.pdf", "file_id": "file-1"}}],
            },
            [("", "[file: a.pdf, file-1]")],
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "input_audio", "input_audio": {"data": "A" * 400, "format": "wav"}}
                ],
            },
            [("", "[audio: wav, 300 B]")],
        ),
        (
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "tool_use", "id": "t1", "name": "now", "input": {"zone": "UTC"}},
                ],
            },
            [
                ("~ ", "Hm."),
                ("~ ", "(what it thought, its provider keeps to itself)"),
                ("→ ", 'now(zone="UTC")'),
            ],
        ),
        (
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "12:00"}],
                        "is_error": True,
                    },
                    {"type": "text", "text": "So?"},
                ],
            },
            [("← ", "(error) 12:00"), ("", "So?")],
        ),
        (
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
            [("~ ", "Hm.")],
        ),
        (
            {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}},
            [("→ ", 'shell(action={"commands":["ls"]})')],
        ),
        (
            {"type": "mcp_call", "name": "read", "arguments": '{"path": "a"}', "output": "text"},
            [("→ ", 'read(path="a")'), ("← ", "text")],
        ),
        (
            {"type": "web_search_call", "id": "ws_1", "action": {"query": "x"}},
            [("→ ", 'web_search(action={"query":"x"})')],
        ),
        (
            {"role": "assistant", "content": None, "refusal": "No."},
            [("", "(refused) No.")],
        ),
        (
            {"type": "image_generation_call", "id": "ig_1", "prompt": "A" * 900},
            [("→ ", 'image_generation(prompt="AAAAAAAAAAAAAAAAAAAA… (900 characters)")')],
        ),
    ],
)
def test_messages_of_all_shapes_are_shown_in_words(
    message: dict[str, Any], shown: list[tuple[str, str]]
) -> None:
    """Pictures are described, thoughts are marked, and no page is filled with base64."""
    assert parts(message) == shown


def test_search_shows_where_it_was_said(path: str) -> None:
    """By conversation, the best first, with position and who."""
    shown = run("--store", path, "search", "zebra").stdout
    assert [line for line in shown.splitlines() if line.startswith("conv")] == [
        "conversation/carol",
        "conversation/alice",
    ]
    assert "Where is my zebra?" in shown
    assert "1 user · " in shown


def test_search_gives_programs_the_same(path: str) -> None:
    """And takes labels, a prefix and a number."""
    found = data("--store", path, "search", "zebra", "berlin", "-k", "1")
    assert [(hit["id"], hit["position"], hit["role"]) for hit in found] == [("carol", 1, "user")]
    red = data("--store", path, "search", "zebra", "--label", "team=red")
    assert [hit["id"] for hit in red] == ["alice"]
    assert data("--store", path, "search", "zebra", "--prefix", "b") == []
    assert "Nothing with these words" in run("--store", path, "search", "giraffe").stderr


def test_search_creates_no_store(tmp_path: Path) -> None:
    """Looking for something does not make it."""
    run("--store", "nothing.db", "search", "zebra", code=1)
    assert not (tmp_path / "nothing.db").exists()


def test_ls_chooses_by_size_and_age_and_sorts(path: str) -> None:
    """What to clean up is found first."""

    def ids(*options: str) -> list[str]:
        return [item["id"] for item in data("--store", path, "ls", "conversations", *options)]

    assert ids("--larger-than", "200B") == ["alice"]
    assert ids("--larger-than", "1MB") == []
    assert ids("--older-than", "1h") == []
    assert ids("--newer-than", "1h") == ["alice", "bob", "carol"]
    assert ids("--sort", "size")[0] == "alice"
    assert ids("--sort", "updated") == ["carol", "bob", "alice"]
    assert "There is nothing like that" in run("--store", path, "ls", "--older-than", "2d").stderr


@pytest.mark.parametrize("value", ["soon", "3 parsecs", "-1h", ""])
def test_ls_refuses_an_age_that_is_none(path: str, value: str) -> None:
    """A typing error lists nothing by accident."""
    run("--store", path, "ls", "--older-than", value, code=2)


def test_an_export_is_imported_as_the_same(path: str, tmp_path: Path) -> None:
    """Out of one store, into another, and twice adds nothing."""
    run("--store", path, "export", "-o", "all.jsonl")
    done = data("--store", "other.db", "import", "all.jsonl")
    assert [(item["id"], item["was"]) for item in done] == [
        ("alice", "new"),
        ("bob", "new"),
        ("carol", "new"),
    ]
    again = run("--store", "other.db", "import", "all.jsonl").stdout
    assert "conversation/alice: 2 entries; there already; nothing was added" in again
    run("--store", "other.db", "export", "-o", "again.jsonl")
    assert (tmp_path / "again.jsonl").read_text() == (tmp_path / "all.jsonl").read_text()


def test_an_export_is_for_its_owner_only(path: str, tmp_path: Path) -> None:
    """What people said is in it, as it is in the store."""
    run("--store", path, "export", "-o", "all.jsonl")
    assert (tmp_path / "all.jsonl").stat().st_mode & 0o777 == 0o600


def test_one_export_can_have_another_id(path: str) -> None:
    """And a dry run of it needs no store."""
    run("--store", path, "export", "alice", "-o", "alice.json")
    shown = run("--store", "new.db", "import", "alice.json", "--dry-run").stdout
    assert shown.splitlines() == [
        "conversation/alice: 2 entries; would be imported",
        "Nothing was written.",
    ]
    run("--store", path, "import", "alice.json", "--id", "alice-2")
    assert data("--store", path, "show", "alice-2")["messages"][0]["role"] == "user"


def test_an_export_of_something_else_under_the_same_id_is_refused(path: str) -> None:
    """What is there is left alone."""
    run("--store", path, "export", "alice", "-o", "alice.jsonl")
    with limpet.open("other.db") as store:
        store.conversation("alice").append({"role": "user", "content": "mine"})
    refused = run("--store", "other.db", "import", "alice.jsonl", code=1).stderr
    assert "There is a conversation 'alice' already" in refused
    assert "--id" in refused


def test_a_cut_export_is_refused_and_named(path: str, tmp_path: Path) -> None:
    """A disk that was full does not become half a conversation."""
    run("--store", path, "export", "alice", "-o", "alice.jsonl")
    whole = (tmp_path / "alice.jsonl").read_text()
    (tmp_path / "cut.jsonl").write_text(whole.splitlines()[0] + "\n")
    refused = run("--store", "other.db", "import", "cut.jsonl", code=1).stderr
    assert "cut.jsonl: It is cut off: the line that ends an export is missing" in refused


def test_messages_alone_are_what_models_take(path: str) -> None:
    """As a list, as lines, and by id; import reads them too."""
    one = run("--store", path, "export", "bob", "--messages").stdout
    assert [json.loads(line) for line in one.splitlines()] == [{"role": "user", "content": "Hello"}]
    listed = run("--store", path, "export", "bob", "--messages", "--format", "json").stdout
    assert json.loads(listed) == [{"role": "user", "content": "Hello"}]
    every = run("--store", path, "export", "--messages", "-o", "all.json")
    assert "3 conversations written to all.json" in every.stderr
    run("--store", "other.db", "import", "all.json")
    assert [item["id"] for item in data("--store", "other.db", "ls")] == ["alice", "bob", "carol"]


def test_export_overwrites_no_file(path: str, tmp_path: Path) -> None:
    """A typing error costs nothing."""
    (tmp_path / "mine.json").write_text("precious")
    refused = run("--store", path, "export", "-o", "mine.json", code=1).stderr
    assert "There is a file mine.json already" in refused
    assert (tmp_path / "mine.json").read_text() == "precious"


def test_export_of_what_is_not_there_leaves_no_file(path: str, tmp_path: Path) -> None:
    """It ends with 3, as everywhere."""
    run("--store", path, "export", "nobody", "-o", "x.json", code=3)
    assert not (tmp_path / "x.json").exists()
    assert "no conversation like that" in run("--store", path, "export", "--prefix", "z").stderr
