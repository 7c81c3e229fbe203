"""Tests of ``limpet memory``: add, search, show, forget, stats, reindex."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

import limpet
from limpet.cli import main
from tests.cli.test_cli import HOSTILE, OBEYED, data, in_terminal
from tests.support.commands import run

if TYPE_CHECKING:
    from pathlib import Path

TENANTS = ("acme", "globex")
SCOPES = ("support", "sales")


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the reader's own setting leaks in, and nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIMPET_CACHE", str(tmp_path / "cache"))
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LIMPET_URL", str(tmp_path / "agents.db"))


@pytest.fixture(autouse=True)
def _filled(_own_directory: None) -> None:
    """Two tenants with two namespaces each, and something of its own in each."""
    for tenant in TENANTS:
        with limpet.open(tenant=tenant) as store:
            for scope in SCOPES:
                memory = store.memory(scope)
                memory.remember(f"{tenant} {scope} likes tea", kind="preference", tags=["drink"])
                memory.remember(f"{tenant} {scope} is in room 7", source="report-1", by="agent")


def acme(command: str, namespace: str = "support", *args: str, code: int = 0) -> str:
    """What a command of the tenant acme prints."""
    return run("memory", command, namespace, *args, "--tenant", "acme", code=code).output


def acme_data(command: str, *args: str) -> list[dict[str, object]]:
    """The same, for programs."""
    found = data("memory", command, *args, "--tenant", "acme")
    assert isinstance(found, list)
    return found


def everything() -> dict[tuple[str, str], list[str]]:
    """All that is remembered."""
    found = {}
    for tenant in TENANTS:
        with limpet.open(tenant=tenant) as store:
            for scope in SCOPES:
                texts = [one.text for one in store.memory(scope).list()]
                found[tenant, scope] = sorted(texts)
    return found


def test_what_was_added_is_found_and_by_nobody_else() -> None:
    """A memory belongs to one tenant and one namespace."""
    before = everything()
    id_ = acme("add", "support", "Invoices", "go", "out", "on", "Fridays", "--tag", "billing")
    (hit, *_) = acme_data("search", "support", "invoices")
    assert (hit["id"], hit["text"]) == (id_.strip(), "Invoices go out on Fridays")
    assert hit["tags"] == ["billing"]
    after = everything()
    assert [place for place in after if after[place] != before[place]] == [("acme", "support")]
    assert "Nothing" in run("memory", "search", "support", "invoices", "--tenant", "globex").stderr
    assert "Nothing" in run("memory", "search", "sales", "invoices", "--tenant", "acme").stderr


def test_namespaces_are_listed_with_all_else() -> None:
    """`ls` shows whatever there is, of one tenant."""
    with limpet.open(tenant="acme") as store:
        store.conversation("support").append({"role": "user", "content": "hello"})
    rows = data("ls", "--tenant", "acme")
    found = [(row["kind"], row["id"], row["entries"]) for row in rows]
    assert found == [
        ("conversation", "support", 1),
        ("memory", "sales", 2),
        ("memory", "support", 2),
    ]
    for kind in ("memories", "memory"):
        assert data("ls", kind, "--tenant", "acme") == rows[1:]
    assert "memory/sales" in run("ls", "--tenant", "globex").stdout
    assert "memory" not in run("ls", "--tenant", "nobody").stdout


def test_the_same_added_again_is_kept_once() -> None:
    """A script may run twice."""
    ids = {acme("add", "support", "Tea is at five") for _ in range(3)}
    assert len(ids) == 1
    assert len(everything()["acme", "support"]) == 3


def test_each_line_of_standard_input_is_a_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes that exist are taken in by one command, however many they are."""
    monkeypatch.setattr("limpet.cli.memory.AT_ONCE", 2)
    result = CliRunner().invoke(
        main, ["memory", "add", "support", "-", "--tenant", "acme"], input="One\n\nTwo\nThree\n"
    )
    assert result.exit_code == 0
    assert len(result.stdout.split()) == 3
    assert {"One", "Two", "Three"} <= set(everything()["acme", "support"])
    assert everything()["globex", "support"] == [
        "globex support is in room 7",
        "globex support likes tea",
    ]


def test_several_lines_have_no_key_in_common() -> None:
    """All but one would be lost."""
    args = ["memory", "add", "support", "-", "--key", "k", "--tenant", "acme"]
    result = CliRunner().invoke(main, args, input="One\nTwo\n")
    assert (result.exit_code, "--key" in result.output) == (2, True)


@pytest.mark.parametrize(
    "wrong", [[""], [" "], ["x", "--ttl", "0s"], ["x", "--kind", ""], ["x", "--tag", " a"]]
)
def test_what_cannot_be_added_is_told_in_a_line(wrong: list[str]) -> None:
    """Not by the inside of a program; and no store is made for it."""
    before = everything()
    result = CliRunner().invoke(main, ["memory", "add", "support", *wrong, "--tenant", "acme"])
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit)
    assert "Error: " in result.output or "InvalidId: " in result.output
    assert everything() == before


def test_adding_creates_the_store_and_searching_does_not(tmp_path: Path) -> None:
    """A command that only looks leaves nothing behind."""
    url = str(tmp_path / "new.db")
    run("memory", "search", "support", "tea", "--store", url, code=1)
    run("memory", "stats", "--store", url, code=1)
    assert not (tmp_path / "new.db").exists()
    run("memory", "add", "support", "Tea", "--store", url)
    assert run("memory", "search", "support", "tea", "--store", url).stdout


def test_a_search_is_limited_by_kind_tag_age_and_score() -> None:
    """A person asks for what they mean."""
    texts = {"acme support likes tea", "acme support is in room 7"}
    assert {hit["text"] for hit in acme_data("search", "support", "acme", "support")} == texts
    for option in (("--kind", "preference"), ("--tag", "drink"), ("-k", "1")):
        assert len(acme_data("search", "support", "acme", "tea", *option)) == 1
    assert acme_data("search", "support", "acme", "--newer-than", "1h")
    assert acme_data("search", "support", "acme", "--min-score", "1") == []
    assert acme_data("search", "support", "tea", "--kind", "nothing") == []


def test_a_search_says_why() -> None:
    """Score, parts, source and age of each hit are printed."""
    shown = acme("search", "support", "which room?")
    first, text, why = shown.splitlines()[:3]
    assert "from report-1" in first
    assert "by agent" in first
    assert text == "    acme support is in room 7"
    assert why.startswith("    words ")
    assert "globex" not in shown
    assert "sales" not in shown


def test_a_namespace_is_shown_as_any_other_thing() -> None:
    """What `ls` lists, `show` knows: as memories, not as the entries that they are kept in."""
    with limpet.open(tenant="acme") as store:
        gone = store.memory("acme/support").remember("The desk is closed")
        store.memory("acme/support").remember("The desk opens at 8")
        store.memory("acme/support").forget(gone.id)  # what stays is written anew
        store.conversation("sales").append({"role": "user", "content": "Hello"})
    for name in ("acme/support", "memory/acme/support"):
        assert "The desk opens at 8" in run("show", name, "--tenant", "acme").stdout
        (one,) = data("show", name, "--tenant", "acme")["memories"]
        assert one["text"] == "The desk opens at 8"
    assert "acme support is in room 7" in run("show", "support", "--tenant", "acme").stdout
    assert len(data("show", "support", "--last", "1", "--tenant", "acme")["memories"]) == 1
    assert "memory/sales" in run("show", "sales", "--tenant", "acme", code=2).stderr
    assert "--all" in run("delete", "acme/support", "-y", "--tenant", "acme", code=1).stderr
    assert run("show", "acme/support", "--tenant", "globex", code=3).stdout == ""


def test_one_memory_is_shown_with_its_history() -> None:
    """What was true before can be seen."""
    with limpet.open(tenant="acme") as store:
        memory = store.memory("support")
        old = memory.remember("The desk opens at 8", context="opening hours")
        new = memory.update(old.id, "The desk opens at 9", because="winter")
    shown = acme("show", "support", new.id)
    assert "The desk opens at 8" in shown
    assert "The desk opens at 9" in shown
    assert "because: winter" in shown
    assert {one["id"] for one in acme_data("show", "support", new.id)} == {old.id, new.id}
    for place in (("--tenant", "globex"), ("--tenant", "acme")):
        scope = "support" if "globex" in place else "sales"
        missing = run("memory", "show", scope, new.id, *place, code=3).output
        assert "desk" not in missing


def test_the_newest_are_listed_without_an_id() -> None:
    """To see what is there, nobody needs a question."""
    assert len(acme_data("show", "support")) == 2
    (newest,) = acme_data("show", "support", "--last", "1")
    assert newest["text"] == "acme support is in room 7"
    (liked,) = acme_data("show", "support", "--kind", "preference")
    assert liked["text"] == "acme support likes tea"
    assert "globex" not in acme("show", "support")


@pytest.mark.parametrize("how", ["id", "source", "tag"])
def test_what_is_forgotten_is_gone_there_and_only_there(how: str, tmp_path: Path) -> None:
    """By id, source or tag: one memory of one scope goes, from the store's files too."""
    before = everything()
    (hit, *_) = acme_data("search", "support", "tea" if how == "tag" else "room")
    named = {"id": [str(hit["id"])], "source": ["--source", "report-1"], "tag": ["--tag", "drink"]}
    shown = acme("forget", "support", *named[how])
    assert f"forgot {hit['id']}" in shown
    left = [text for text in before["acme", "support"] if text != hit["text"]]
    assert everything() == before | {("acme", "support"): left}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if str(hit["text"]).encode() in path.read_bytes()] == []


def test_forgetting_what_is_not_there_is_an_error() -> None:
    """An id of another scope is as one that never was."""
    before = everything()
    (other,) = data("memory", "show", "support", "--last", "1", "--tenant", "globex")
    for id_ in (other["id"], "m-" + "0" * 24):
        told = acme("forget", "support", id_, code=3)
        assert "globex" not in told
    acme("forget", "support", "--tag", "nothing", code=3)
    acme("forget", "support", code=2)
    acme("forget", "support", other["id"], "--tag", "drink", code=2)
    assert everything() == before


def test_figures_are_those_of_one_scope() -> None:
    """How much there is, and of what."""
    found = data("memory", "stats", "support", "--tenant", "acme")
    assert (found["memories"], found["kinds"]) == (2, {"preference": 1, "fact": 1})
    shown = acme("stats")
    assert "preference 1" in shown
    assert "globex" not in shown
    names = [one["namespace"] for one in data("memory", "stats", "--tenant", "globex")]
    assert names == ["sales", "support"]
    listed = run("memory", "stats", "--tenant", "globex").stdout
    assert [line.split()[0] for line in listed.splitlines()] == ["sales", "support"]
    assert "No memory yet" in run("memory", "stats", "--tenant", "nobody").stderr


def test_an_index_made_anew_finds_the_same() -> None:
    """The index is never the truth."""
    before = [hit["id"] for hit in acme_data("search", "support", "acme", "tea")]
    assert "2 memories" in acme("reindex")
    assert [hit["id"] for hit in acme_data("search", "support", "acme", "tea")] == before


@pytest.mark.parametrize("command", ["search", "show", "forget", "stats", "reindex"])
def test_a_namespace_that_is_not_there_is_not_found(command: str) -> None:
    """A typing error is not an empty memory, and tells nothing of others."""
    more = {"search": ["tea"], "forget": ["--tag", "drink"]}.get(command, [])
    told = acme(command, "suport", *more, code=3)
    assert "'suport'" in told
    assert "globex" not in told


def test_a_hostile_memory_cannot_play_with_the_terminal() -> None:
    """Stored text is other people's text."""
    with limpet.open(tenant="acme") as store:
        memory = store.memory("support")
        made = memory.remember(f"tea {HOSTILE.replace(chr(0), '')}")
    for args in (("search", "support", "tea"), ("show", "support"), ("show", "support", made.id)):
        assert not OBEYED.search(acme(*args).replace("\n", ""))


@pytest.mark.slow
def test_it_fits_the_terminal() -> None:
    """Nothing is broken in the middle of a word for want of room."""
    for args in (("search", "support", "tea"), ("stats", "support"), ("show", "support")):
        shown = in_terminal("memory", *args, "--tenant", "acme", columns=40)
        assert "likes" in shown or "memories" in shown
