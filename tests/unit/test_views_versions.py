"""Views of versions and of what differs between two: what they show, and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.backends.contract import Append
from limpet.core.ids import make_key
from limpet.core.runtime import run_to_end
from limpet.errors import NotFound, StateNotFound
from limpet.integrations.langgraph.thread import CHECKPOINT
from limpet.views.diff import diff_lines, diff_view
from limpet.views.heads import head_of
from limpet.views.states import state_view
from limpet.views.versions import find_version, last_two, versions_page

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from limpet.backends.contract import Record
    from limpet.views.diff import Diff
    from limpet.views.states import StateView
    from limpet.views.versions import VersionsPage


@pytest.fixture(params=["{}/agents.db", "memory:"], ids=["sqlite", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[limpet.Store]:
    """A store, in a file and in memory."""
    with limpet.open(request.param.format(tmp_path)) as opened:
        yield opened


def versions(store: limpet.Store, kind: str, id_: str = "x", **options: Any) -> VersionsPage:
    """A page of versions."""
    scope = store.scope.as_sync()
    return run_to_end(versions_page(scope, run_to_end(head_of(scope, kind, id_)), **options))


def compared(store: limpet.Store, kind: str, a: int, b: int, **options: Any) -> Diff:
    """What differs between two versions of x."""
    scope = store.scope.as_sync()
    return run_to_end(diff_view(scope, run_to_end(head_of(scope, kind, "x")), a, b, **options))


def saved(store: limpet.Store, at: int | None = None) -> StateView:
    """The state x."""
    scope = store.scope.as_sync()
    return run_to_end(state_view(scope, run_to_end(head_of(scope, "state", "x")), at))


def every(store: limpet.Store, kind: str, **options: Any) -> list[Any]:
    """All versions, page by page, oldest first."""
    found: list[Any] = []
    before = None
    while True:
        page = versions(store, kind, before=before, **options)
        found += page.versions
        before = page.older
        if before is None:
            return found[::-1]


def test_versions_of_a_state_are_its_saves_page_by_page(store: limpet.Store) -> None:
    """The same as its history, however many pages; each with the size of its document."""
    state = store.state("x")
    for number in range(130):
        state.save({"n": number, "list": list(range(number))}, note="n" if number == 7 else None)
    found = every(store, "state")
    assert [one.facts for one in found] == state.history()
    assert [one.number for one in found] == list(range(1, 131))
    assert found[7].what.endswith(": n")
    assert found[129].size == state.history(last=1)[0].total
    assert [len(versions(store, "state", before=before).versions) for before in (None, 31)] == [
        50,
        30,
    ]


def test_a_state_is_shown_as_it_was(store: limpet.Store) -> None:
    """With the save before it, and none of what came later."""
    state = store.state("x", type="Team")
    for number in range(5):
        state.save({"n": number}, fingerprint={"model": "m"})
    newest, old = saved(store), saved(store, 2)
    assert (newest.position, newest.document, newest.previous) == (5, {"n": 4}, 4)
    assert (old.position, old.document, old.previous, old.type) == (2, {"n": 1}, 1, "Team")
    assert (saved(store, 1).previous, old.fingerprint) == (None, {"model": "m"})
    with pytest.raises(StateNotFound):
        saved(store, 6)


def test_a_damaged_save_hides_none_of_the_others(store: limpet.Store) -> None:
    """Neither in the list nor where it is looked at."""
    state = store.state("x")
    for number in range(60):
        state.save({"n": number, "text": "x" * 500})
    key = make_key(store.tenant, "state", "x")
    store.backend.append(Append(key=key, body=b"\xffrubbish", count=1))
    assert saved(store).document is None
    assert "cannot be loaded" in (saved(store).damage or "")
    page = versions(store, "state")
    assert (page.versions[0].damaged, page.versions[1].damaged) == (True, False)
    assert len(page.versions) == 50
    assert saved(store, 60).document["n"] == 59


def test_versions_of_a_task_are_its_entries(store: limpet.Store) -> None:
    """In the same words as its own list, which reads all of them."""
    with store.task("x", "Go") as task:
        for number in range(70):
            task.step(f"s{number}", lambda: 1)
            task.decide(f"d{number}")
        listed = [(one.seq, one.what) for one in task.versions.list()]
    assert [(one.number, one.what) for one in every(store, "task")] == listed


def test_a_resumption_names_what_was_in_doubt_though_it_began_on_another_page(
    store: limpet.Store,
) -> None:
    """A little of what is before a page is read, too."""
    began = ("began", {"id": "pay", "name": "pay", "policy": "ask"})
    store.journal("task", "x").append(("created", {"goal": "Go"}), began)
    store.journal("task", "x").append(("resumed", {"agent": "b"}))
    (one,) = versions(store, "task", limit=1).versions
    assert one.what == "resumed by b; in doubt: step 'pay'"


def test_versions_of_a_conversation_are_its_entries(store: limpet.Store) -> None:
    """Who said what, and what was done."""
    chat = store.conversation("x")
    for number in range(120):
        chat.append({"role": "user", "content": f"No. {number}"})
    chat.pop()
    found = every(store, "conversation")
    assert len(found) == 121
    assert (found[0].what, found[-1].what) == ("user: No. 0", "popped: the message at 120")


def test_a_long_thread_is_listed_without_being_read(store: limpet.Store) -> None:
    """Its checkpoints, marked as less than all there is to say."""
    entries = [
        (CHECKPOINT, {"id": f"c{number:05}", "ts": 0, "put": {"n": number}})
        for number in range(3_000)
    ]
    store.journal("thread", "x").append(*entries)
    page = versions(store, "thread")
    assert page.partial
    assert (page.versions[0].number, page.versions[0].name) == (3_000, "c02999")
    assert page.versions[0].what == "c02999: n"
    assert page.older == 2_951
    assert compared(store, "thread", 1, 3_000).unread == 3_000


def test_a_damaged_entry_is_a_version_that_cannot_be_read(store: limpet.Store) -> None:
    """And the others are listed."""
    store.conversation("x").append({"role": "user", "content": "Hello"})
    key = make_key(store.tenant, "conversation", "x")
    store.backend.append(Append(key=key, body=b"\xffrubbish", count=1))
    store.conversation("x").append({"role": "user", "content": "Bye"})
    found = versions(store, "conversation").versions
    assert [one.damaged for one in found] == [False, True, False]


@pytest.mark.parametrize("kind", ["state", "conversation", "task"])
def test_a_list_costs_the_same_however_long_the_history(
    store: limpet.Store, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first page, and the next."""
    costs = []
    for id_, length in (("short", 150), ("long", 20_000)):
        if kind == "state":
            state = store.state(id_)
            for number in range(150):
                state.save({"turn": number % 10, "text": "x" * 300})
            if id_ == "long":  # the same saves again and again
                journal = store.journal(kind, id_)
                whole = journal.read(limit=1)[0]
                journal.append(*[(whole.type, whole.body)] * length)
                for number in range(150):
                    state = store.state(id_)
                    state.save({"turn": number % 10, "text": "x" * 300})
        else:
            entry = ("message", {"role": "user", "content": "x" * 50})
            if kind == "task":
                store.journal(kind, id_).append(("created", {"goal": "Go"}))
                entry = ("decided", {"decision": "x" * 50})
            for _ in range(length // 50):
                store.journal(kind, id_).append(*[entry] * 50)
        read, cost = store.backend.read, [0, 0]

        def count(*args: Any, **options: Any) -> list[Record]:
            records = read(*args, **options)  # noqa: B023 - called in this round only
            cost[0] += 1  # noqa: B023
            cost[1] += len(records)  # noqa: B023
            return records

        with monkeypatch.context() as patched:
            patched.setattr(store.backend, "read", count)
            older = versions(store, kind, id_).older
            assert len(versions(store, kind, id_, before=older).versions) == 50
        costs.append(cost)
    (reads, records), (more_reads, more_records) = costs
    assert more_reads <= reads + 2
    assert more_records <= records * 1.3 + 10


# -- differences -----------------------------------------------------------------------------------


def test_what_changed_in_a_state_is_said_with_its_place(store: limpet.Store) -> None:
    """What was there and what is, whole, and how that reads in lines."""
    state = store.state("x")
    state.save({"colour": "red", "list": [1, 2], "gone": 1})
    state.save({"colour": "blue" * 200, "list": [1, 2, 3], "new": {"a": 1}})
    found = compared(store, "state", 1, 2)
    assert [(one.path, one.mark, one.before) for one in found.changes] == [
        ("gone", "-", "1"),
        ("new", "+", None),
        ("colour", "~", '"red"'),
        ("list[2]", "+", None),
    ]
    assert found.changes[2].after == f'"{"blue" * 200}"'
    assert diff_lines(found)[2:4] == ["document", "  - gone: 1"]
    assert compared(store, "state", 1, 1).changes == []
    assert diff_lines(compared(store, "state", 1, 1))[-1] == "Nothing differs."


def test_only_what_lies_between_is_read_of_a_conversation(
    store: limpet.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless something from before was taken back; of a long one that takes being asked."""
    chat = store.conversation("x")
    chat.append(*({"role": "user", "content": f"No. {number}"} for number in range(1_500)))
    chat.append({"role": "assistant", "content": "Yes"})
    chat.append({"role": "assistant", "content": "No"})
    chat.pop()
    reads: list[int] = []
    read = store.backend.read

    def count(*args: Any, **options: Any) -> list[Record]:
        records = read(*args, **options)
        reads.append(sum(record.count for record in records))
        return records

    with monkeypatch.context() as patched:
        patched.setattr(store.backend, "read", count)
        found = compared(store, "conversation", 1_500, 1_503)
    assert sum(reads) < 100
    assert [(one.place, one.mark, one.after) for one in found.changes] == [
        ("messages", "+", "assistant: Yes")
    ]
    back = compared(store, "conversation", 1_502, 1_503)
    assert (back.changes, back.unread) == ([], 1_503)
    back = compared(store, "conversation", 1_502, 1_503, whole=True)
    assert [(one.mark, one.before) for one in back.changes] == [("-", "assistant: No")]
    forth = compared(store, "conversation", 1_503, 1_502, whole=True)
    assert [(one.mark, one.after) for one in forth.changes] == [("+", "assistant: No")]


def test_a_long_task_is_compared_when_that_is_asked_for(store: limpet.Store) -> None:
    """Until then it says how much there is to read."""
    with store.task("x", "Go") as task:
        task.step("a", lambda: "first\nsecond")
        task.versions.rewind(to=1)
        task.step("a", lambda: "other")
    entries = [("decided", {"decision": f"d{number}"}) for number in range(1_500)]
    store.journal("task", "x").append(*entries)
    last = store.journal("task", "x").head().seq  # type: ignore[union-attr]
    assert compared(store, "task", 1, last).unread == last
    assert len(compared(store, "task", 1, last, whole=True).changes) == 1_000
    assert compared(store, "task", 1, last, whole=True).more > 400
    assert [one.path for one in compared(store, "task", 1, 2).changes] == ["steps.a"]


def test_versions_that_are_not_there_are_said_to_be_so(store: limpet.Store) -> None:
    """Also of a kind that has none."""
    store.conversation("x").append({"role": "user", "content": "Hello"})
    store.journal("note", "x").append(("added", 1))
    scope = store.scope.as_sync()
    head = run_to_end(head_of(scope, "conversation", "x"))
    assert run_to_end(last_two(scope, head)) == [1]
    for named in ("0", "2", "x", "²", "-1", ""):
        with pytest.raises(NotFound):
            run_to_end(find_version(scope, head, named))
    with pytest.raises(ValueError, match="no versions"):
        versions(store, "note")
    with pytest.raises(ValueError, match="no versions"):
        compared(store, "note", 1, 1)
    with store.task("x", "Go"):
        pass
    with pytest.raises(NotFound):
        compared(store, "task", 1, 9)
