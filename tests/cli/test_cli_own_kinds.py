"""Tests of the command line with journals of users' own kinds, and with their calls in doubt."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

import pytest

import limpet
from limpet.errors import NotFound, TaskNotFound
from tests.support.commands import run
from tests.support.doubtful import leave_in_doubt

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that has a bot of a user's own kind with a call in doubt, and others of its name."""
    monkeypatch.chdir(tmp_path)
    for name in ("LIMPET_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    with limpet.open() as store:
        leave_in_doubt(store, "minibot", "async", "pay")
        store.journal("policy", "refunds").append(("added", "ask first"))
        store.conversation("async").append({"role": "user", "content": "Hi"})
        store.state("async").save({"a": 1})


# -- ls --------------------------------------------------------------------------------------------


def test_ls_lists_every_kind() -> None:
    """Our models first, then the others by name: as many as the doctor counts."""
    found = [f"{row['kind']}/{row['id']}" for row in json.loads(run("ls", "--json").stdout)]
    assert found == ["conversation/async", "state/async", "minibot/async", "policy/refunds"]
    assert json.loads(run("doctor", "--json").stdout)["journals"] == len(found)
    assert "minibot/async" in run("ls").stdout


@pytest.mark.parametrize("name", ["minibot", "minibots", "policy", "policies"])
def test_a_kind_of_ones_own_may_be_named_in_the_plural(name: str) -> None:
    """As tasks and memories may."""
    (row,) = json.loads(run("ls", name, "--json").stdout)
    assert row["kind"] == {"m": "minibot", "p": "policy"}[name[0]]


def test_ls_of_an_unknown_kind_says_which_there_are() -> None:
    """It ends as what is not found does; a model of ours is known where there is none of it yet."""
    error = run("ls", "robots", code=3).stderr
    assert "There is no kind 'robots' for tenant 'default'." in error
    assert "There are conversation, minibot, policy, state." in error
    assert "There is nothing like that" in run("ls", "tasks").stderr


# -- show and tail ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["minibot", "conversation", "state"])
def test_show_says_what_is_in_doubt_whatever_its_kind(kind: str) -> None:
    """With the commands that resolve it."""
    with limpet.open() as store:
        if kind != "minibot":
            head = store.journal(kind, "async").head()
            assert head is not None
            calls = b'"calls":{"c1":{"id":"c1","name":"pay","policy":"ask"}}'
            meta = (head.meta or b"{}").removesuffix(b"}")
            joined = meta + (b"," if meta != b"{" else b"") + calls + b"}"
            store.journal(kind, "async").append(meta=joined)
    shown = run("show", f"{kind}/async").stdout
    begin = shown.index("\nIn doubt\n")
    assert shown[begin:].splitlines()[2:6] == [
        f"{kind}/async  pay (c1)  ask",
        f"  limpet resolve {kind}/async c1 done --result JSON",
        f"  limpet resolve {kind}/async c1 retry",
        f"  limpet resolve {kind}/async c1 skip",
    ]
    found = json.loads(run("show", f"{kind}/async", "--json").stdout)
    assert found["in_doubt"]["c1"]["name"] == "pay"
    run("resolve", f"{kind}/async", "c1", "retry")
    assert "In doubt" not in run("show", f"{kind}/async").stdout


def test_a_damaged_meta_does_not_hide_the_entries() -> None:
    """Lists and headings say that it is damaged."""
    with limpet.open() as store:
        store.journal("policy", "refunds").append(meta=b'"calls": half')
    shown = run("show", "policy/refunds").stdout
    assert shown.startswith("policy refunds · damaged: see limpet doctor\n")
    assert "ask first" in shown
    assert "damaged: see limpet doctor" in run("ls", "policy").stdout


def test_tail_calls_a_call_a_call() -> None:
    """Only tasks have steps."""
    run("resolve", "minibot/async", "c1", "skip", "--by", "Ann")
    lines = run("tail", "minibot/async").stdout.splitlines()
    assert [re.split(r"Z  ", line)[1] for line in lines] == [
        "began       call pay (c1) begins (if in doubt: ask)",
        "resolved    call c1 resolved by Ann: skip",
    ]


# -- resolve ---------------------------------------------------------------------------------------


def test_resolve_looks_among_the_calls_in_doubt_first() -> None:
    """Where several have the same id, the one that has this call in doubt is meant."""
    said = run("resolve", "async", "c1", "done", "--result", "7").stdout
    assert said == "Call 'c1' of minibot/async: done.\n"
    with limpet.open() as store:
        assert store.in_doubt() == []


def test_an_id_that_has_that_call_in_doubt_twice_is_ambiguous() -> None:
    """And only those are named that have it."""
    with limpet.open() as store:
        leave_in_doubt(store, "robot", "async", "pay")
    error = run("resolve", "async", "c1", "skip", code=2).stderr
    assert "Say which: minibot/async or robot/async" in error
    run("resolve", "robot/async", "c1", "skip")
    assert "minibot/async" in run("resolve", "async", "c1", "skip").stdout


def test_resolve_of_what_is_not_in_doubt_says_what_is() -> None:
    """An id alone finds a kind of one's own too; a damaged neighbour does not matter."""
    with limpet.open() as store:
        leave_in_doubt(store, "minibot", "alone", "pay")
        store.journal("policy", "alone").append(("added", 1), meta=b'"calls": half')
    assert "In doubt: c1" in run("resolve", "minibot/alone", "c9", "done", code=3).stderr
    run("resolve", "alone", "c1", "retry")
    with limpet.open() as store:
        store.journal("policy", "alone").delete()
    assert "In doubt: none" in run("resolve", "alone", "c1", "done", code=3).stderr


@pytest.mark.parametrize("command", [["show"], ["tail"], ["resolve"]], ids=" ".join)
def test_what_is_not_there_is_not_said_to_be_of_our_kinds(command: list[str]) -> None:
    """The name may be of any kind."""
    more = ["c1", "done"] if command == ["resolve"] else []
    error = run(*command, "minibot/nope", *more, code=3).stderr
    assert "There is nothing called 'minibot/nope' for tenant 'default'" in error


def test_an_answer_that_is_pasted_without_a_result_is_refused() -> None:
    """A tool must not return None because nobody filled in what it returned."""
    lines = run("in-doubt").stdout.splitlines()
    assert lines == [
        "minibot/async  pay (c1)  ask",
        "  limpet resolve minibot/async c1 done --result JSON",
        "  limpet resolve minibot/async c1 retry",
        "  limpet resolve minibot/async c1 skip",
    ]
    assert "'JSON' is not JSON" in run(*shlex.split(lines[1])[1:], code=2).stderr
    run(*shlex.split(lines[3])[1:])


def test_a_program_that_forgets_the_kind_is_told_which_has_that_call() -> None:
    """Without it a task is meant, and there may be one of that id as well."""
    with limpet.open() as store:
        with pytest.raises(TaskNotFound, match=r"no task 'async'.*minibot/async.*kind='minibot'"):
            store.resolve("async", "c1", "done")
        with pytest.raises(TaskNotFound) as caught:
            store.resolve("async", "c2", "done")
        assert "minibot" not in str(caught.value)
        with store.task("async", "Go") as task:
            task.step("look", lambda: 1)
        with pytest.raises(NotFound, match=r"Step 'c1' of task 'async' is not.*kind='minibot'"):
            store.resolve("async", "c1", "done")
        store.resolve("async", "c1", "done", kind="minibot")
