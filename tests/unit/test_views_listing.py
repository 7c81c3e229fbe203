"""The list: what fits, what a row says, where to go on, and what that costs."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.core.runtime import run_to_end
from limpet.errors import InvalidId, TaskWaiting
from limpet.views.listing import Filters, Listing, Row, listing, where
from tests.support.doubtful import leave_in_doubt
from tests.support.filled import counted, fill_tasks, task_request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MESSAGE = {"role": "user", "content": "hello"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[limpet.Store]:
    """An empty one."""
    with limpet.open(tmp_path / "agents.db") as opened:
        yield opened


def page_of(store: limpet.Store, filters: Filters | None = None, **options: Any) -> Listing:
    """A page of the list."""
    return run_to_end(listing(store.scope.as_sync(), filters or Filters(), **options))


def ids(found: Listing) -> list[str]:
    """The ids on a page."""
    return [row.head.id for row in found.rows]


def all_pages(store: limpet.Store, filters: Filters, **options: Any) -> list[list[str]]:
    """The ids on each page, to the end."""
    pages, after = [], None
    while True:
        found = page_of(store, filters, after=after, **options)
        pages.append(ids(found))
        after = found.after
        if after is None:
            return pages


def only(store: limpet.Store, id_: str) -> Row:
    """The row of one journal."""
    (row,) = page_of(store, Filters(prefix=id_)).rows
    return row


def test_pages_of_all_kinds_have_each_journal_once(store: limpet.Store) -> None:
    """Our models first, then the user's own kinds; a page may begin in one and end in another."""
    for number in range(3):
        store.conversation(f"c{number}").append(MESSAGE)
        store.journal("board", f"b{number}").append(("moved", 1))
    fill_tasks(store, 4)
    pages = all_pages(store, Filters(), most=4)
    assert [len(page) for page in pages] == [4, 4, 2]
    assert [id_ for page in pages for id_ in page] == [
        *("c0", "c1", "c2", "t000000", "t000001", "t000002", "t000003", "b0", "b1", "b2"),
    ]


def test_a_page_that_ends_with_the_last_one_leads_nowhere(store: limpet.Store) -> None:
    """No link to an empty page."""
    fill_tasks(store, 4)
    assert all_pages(store, Filters(), most=2) == [["t000000", "t000001"], ["t000002", "t000003"]]
    assert all_pages(store, Filters(text="t0"), most=4) == [[f"t00000{n}" for n in range(4)]]


#: A time to come; a fixed one, so that every process names the cases alike.
FAR = datetime(9999, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (Filters(kinds=["conversation"]), ["alice", "bob"]),
        (Filters(kinds=["nosuch"]), []),
        (Filters(prefix="a"), ["alice"]),
        (Filters(status="failed"), ["pay"]),
        (Filters(labels={"channel": "web"}), ["alice"]),
        (Filters(labels={"channel": "web", "team": "red"}), []),
        (Filters(text="WEB"), ["alice"]),
        (Filters(text="invoice"), ["pay"]),
        (Filters(text="pay"), ["pay"]),
        (Filters(larger=200), ["bob"]),
        (Filters(since=FAR), []),
        (Filters(before=FAR, prefix="b"), ["bob"]),
        (Filters(order="size", text="o"), ["bob", "pay"]),
        (Filters(order="updated", kinds=["conversation"]), ["bob", "alice"]),
    ],
    ids=str,
)
def test_all_that_is_asked_for_must_hold(
    store: limpet.Store, filters: Filters, found: list[str]
) -> None:
    """By what the backend filters, and by what only we do."""
    store.conversation("alice", labels={"channel": "web"}).append(MESSAGE)
    with store.task("pay", goal="Settle the invoice") as task:
        task.fail("no")
    store.conversation("bob").append({"role": "user", "content": "o" * 400})
    assert ids(page_of(store, filters)) == found


def test_what_cannot_be_asked_for_is_refused(store: limpet.Store) -> None:
    """Whatever comes in a link; and a link goes on only in what it was made for."""
    fill_tasks(store, 3)
    for filters in (Filters(status="a\x00b"), Filters(labels={"": "x"})):
        with pytest.raises(InvalidId):
            page_of(store, filters)
    for filters, after in (
        (Filters(), "nosuch/x"),
        (Filters(order="size"), "task/t000001"),
        (Filters(order="size"), "9" * 5_000),
    ):
        with pytest.raises(ValueError, match="begin again"):
            page_of(store, filters, after=after)


def test_a_task_is_listed_with_its_goal_and_how_far_it_is(store: limpet.Store) -> None:
    """What one looks for in a list of tasks."""
    with store.task("plan", goal="Two of three") as task:
        task.plan(["fetch", "add", "send"])
        task.step("fetch", lambda: 1)
        task.step("add", lambda: 2)
        row = only(store, "plan")
        assert (row.task and row.task.progress, where(row)) == ("2/3", "at send")
        assert row.head.holder is not None
        assert row.head.holder.alive is True
    assert where(only(store, "plan")) == "next: send"
    with store.task("free", goal="No plan") as task:
        task.step("look", lambda: 1)
        task.finish("ok")
    row = only(store, "free")
    assert (row.task and row.task.progress, where(row)) == ("1", "")


def test_a_row_says_what_a_task_waits_for_or_came_to_grief_by(store: limpet.Store) -> None:
    """Without opening each."""
    with pytest.raises(TaskWaiting), store.task("wait", goal="Wait") as task:
        task.wait_for("approval")
    assert where(only(store, "wait")) == "waits for approval"
    with pytest.raises(ZeroDivisionError), store.task("zero", goal="Divide") as task:
        task.step("divide", lambda: 1 / 0)
    assert where(only(store, "zero")).startswith("stopped in divide: ZeroDivisionError")
    with store.task("fail", goal="Fail") as task:
        task.fail("the disk is on fire")
    assert where(only(store, "fail")) == "the disk is on fire"
    store.conversation("chat").append(MESSAGE)
    leave_in_doubt(store, "conversation", "chat", "pay")
    assert where(only(store, "chat")) == "in doubt: pay (c1)"


def test_of_a_long_task_only_the_goal_is_read(store: limpet.Store) -> None:
    """A list of a hundred tasks of a year must not read a hundred years."""
    steps = [("step", {"name": f"s{number}", "result": 1}) for number in range(1_000)]
    store.backend.append(task_request(store, "long", *steps))
    row, costs = counted(store, lambda: only(store, "long"))
    assert row.task is not None
    assert (row.task.goal, row.task.whole, row.task.progress) == ("Goal of long", False, "")
    assert costs["read"] == 1
    large = ("step", {"name": "large", "result": os.urandom(1_000_000).hex()})
    store.backend.append(task_request(store, "vast", large))
    row, costs = counted(store, lambda: only(store, "vast"))
    assert row.task is not None
    assert (row.task.goal, costs["read"]) == ("", 0)


def test_a_page_of_middling_tasks_reads_only_so_much(store: limpet.Store) -> None:
    """Each would be read alone; all of them together are too much."""
    steps = [("step", {"name": f"s{number}", "result": 1}) for number in range(900)]
    requests = [task_request(store, f"t{number:02}", *steps) for number in range(30)]
    store.backend.append_all(requests)
    whole = [row.task is not None and row.task.whole for row in page_of(store).rows]
    assert whole == [True] * 11 + [False] * 19
    every = page_of(store, budget=None, most=None, look=None)
    assert all(row.task is not None and row.task.whole for row in every.rows)


def test_what_matches_little_stops_and_says_where_to_go_on(store: limpet.Store) -> None:
    """A page looks at so many heads, however many there are."""
    fill_tasks(store, 1_200)
    filters = Filters(text="t0011")
    found, costs = counted(store, lambda: page_of(store, filters, look=500))
    assert (ids(found), found.looked, costs["scan"]) == ([], 500, 500)
    assert found.after is not None
    pages = all_pages(store, filters, look=500)
    assert [len(page) for page in pages] == [0, 0, 50, 50]
    by_size = page_of(store, Filters(order="size"), look=500)
    assert (by_size.looked, by_size.partial) == (500, True)


def test_odd_entries_are_rows_too(store: limpet.Store) -> None:
    """Somebody else's journal of the kind task; a goal that is no text; a damaged thread."""
    store.journal("task", "odd").append(("created", {"goal": {"a": 1}}), ("planned", {"steps": 5}))
    store.journal("task", "odder").append(("created", ["x"]))
    store.journal("task", "goal").append(("created", {"goal": {"a": 1}}))
    store.journal("thread", "odd").append(("checkpoint", 1), status="interrupted")
    rows = {(row.head.kind, row.head.id): row for row in page_of(store).rows}
    assert len(rows) == 4
    assert where(rows["task", "odd"]) == where(rows["thread", "odd"]) != ""
    assert where(rows["task", "odder"]) == "damaged: see limpet doctor"
    goal = rows["task", "goal"].task
    assert goal is not None
    assert goal.goal == '{"a":1}'
    assert ids(page_of(store, Filters(text="zzz"))) == []


@pytest.mark.slow
def test_a_page_costs_the_same_with_a_hundred_and_a_hundred_thousand_journals(
    tmp_path: Path,
) -> None:
    """The first one, and the next: counted in calls, heads and records."""
    costs: dict[int, list[object]] = {}
    for size in (100, 100_000):
        with limpet.open(tmp_path / f"{size}.db") as store:
            fill_tasks(store, size, failed=1)
            for filters in (Filters(), Filters(kinds=["task"]), Filters(status="failed")):
                for after in (None, "task/t000049"):
                    _, cost = counted(store, partial(page_of, store, filters, after=after))
                    costs.setdefault(size, []).append(cost)
    assert costs[100] == costs[100_000]
