"""What needs somebody, and what the store comes to: from statuses, and from a look at all heads."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.core.ids import make_key
from limpet.core.runtime import run_to_end
from limpet.errors import TaskWaiting
from limpet.views import survey as surveys
from limpet.views.attention import SHOWN, Attention, attention
from limpet.views.heads import HeadView
from limpet.views.listing import ordered_kinds
from limpet.views.sizes import DAYS, LARGEST, Sizes
from limpet.views.survey import SOME, Newest, Survey, look_further
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


def surveyed(store: limpet.Store, most: int = 100) -> Survey:
    """A look at every head, *most* at a time."""

    async def look() -> Survey:
        scope = store.scope.as_sync()
        found, after = Survey(), None
        kinds = await ordered_kinds(scope)
        while True:
            after, _ = await look_further(scope, found, kinds, after, most)
            if after is None:
                return found

    return run_to_end(look())


def needs(store: limpet.Store, survey: Survey | None = None) -> dict[str, list[str]]:
    """The ids in each group."""
    found: Attention = run_to_end(attention(store.scope.as_sync(), survey))
    return {group.name: [row.head.id for row in group.rows] for group in found.groups}


def test_each_reason_is_a_group(store: limpet.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The most urgent first; what is well is in none."""
    monkeypatch.setattr(surveys, "REST", timedelta(0))
    store.conversation("chat").append(MESSAGE)
    leave_in_doubt(store, "conversation", "chat", "pay")
    leave_in_doubt(store, "order", "o-1", "ship")
    with pytest.raises(TaskWaiting), store.task("approve", goal="Wait") as task:
        task.wait_for("approval")
    with pytest.raises(TaskWaiting), store.task("sleep", goal="Sleep") as task:
        task.sleep(3_600)
    with store.task("broken", goal="Fail") as task:
        task.fail("no")
    with store.task("left", goal="Left") as task:
        task.step("one", lambda: 1)
    with store.task("held", goal="Held") as held:
        held.step("one", lambda: 1)
        store.submit("kind", "queued", "Queued")
        with store.task("paused", goal="Paused"):
            pass
        store.pause("paused")
        store.journal("thread", "asks").append(("x", 1), status="interrupted")
        store.journal("agents-run", "run").append(("x", 1), status="waiting")
        found = needs(store, surveyed(store))
    assert list(found) == ["doubt", "asked", "failed", "stuck", "paused"]
    assert set(found["doubt"]) == {"chat", "o-1"}
    assert set(found["asked"]) == {"approve", "asks", "run"}
    assert found["failed"] == ["broken"]
    assert found["stuck"] == ["left"]
    assert found["paused"] == ["paused"]


def test_a_task_whose_holder_has_died_is_stuck_at_once(store: limpet.Store) -> None:
    """And one that rests for a moment, or is held from elsewhere, is not."""
    for id_ in ("dead", "resting", "elsewhere"):
        store.backend.append(task_request(store, id_))
    key = make_key("default", "task", "elsewhere")
    store.backend.acquire(key, "somebody on another machine, process 1", 60)
    assert surveyed(store).stuck.names() == []
    script = (
        "import limpet, os, signal, sys; limpet.open(sys.argv[1]).task('dead').__enter__();"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    arguments = [sys.executable, "-c", script, store.backend.url]
    assert subprocess.run(arguments, check=False).returncode == -9
    assert needs(store, surveyed(store)) == {"stuck": ["dead"]}


def test_what_was_resolved_since_the_look_is_not_shown(store: limpet.Store) -> None:
    """A person who has just answered must not be asked again."""
    store.conversation("chat").append(MESSAGE)
    leave_in_doubt(store, "conversation", "chat", "pay")
    leave_in_doubt(store, "order", "gone", "ship")
    found = surveyed(store)
    assert set(needs(store, found)["doubt"]) == {"chat", "gone"}
    store.resolve("chat", "c1", "retry", kind="conversation")
    store.journal("order", "gone").delete()
    assert needs(store, found) == {}


def test_the_newest_of_many_are_shown(store: limpet.Store) -> None:
    """And that there are others."""
    fill_tasks(store, 30, failed=1)
    store.backend.append(task_request(store, "a-new-one", status="failed"))
    found = run_to_end(attention(store.scope.as_sync(), None))
    (group,) = found.groups
    assert (len(group.rows), group.more) == (SHOWN, True)
    assert group.rows[0].head.id == "a-new-one"


def test_attention_costs_the_same_however_many_there_are(
    store: limpet.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many heads of each status, and so many that a look has found."""
    monkeypatch.setattr(surveys, "SOME", 100)
    fill_tasks(store, 400, failed=1)
    for number in range(60):
        leave_in_doubt(store, "order", f"o{number}", "ship")
    few = counted(store, lambda: needs(store, surveyed(store, 50)))[1]
    _, first = counted(store, lambda: needs(store, Survey()))
    fill_tasks(store, 3_000, failed=1, prefix="u")
    for number in range(60, 400):
        leave_in_doubt(store, "order", f"o{number}", "ship")
    _, again = counted(store, lambda: needs(store, Survey()))
    assert first == again
    found = surveyed(store)
    assert found.doubtful.count == 400
    assert (len(found.doubtful.names()), found.doubtful.beyond) == (100, 300)
    _, cost = counted(store, lambda: needs(store, found))
    assert cost["head"] <= 20
    assert few["scan"] >= 460


def test_a_look_goes_through_all_heads_piece_by_piece(store: limpet.Store) -> None:
    """Each once; and it says when that was all."""
    fill_tasks(store, 250)
    scope = store.scope.as_sync()
    found = Survey()
    after, views = run_to_end(look_further(scope, found, ["task"], None, 100))
    assert (found.looked, found.complete, len(views)) == (100, False, 100)
    after, _ = run_to_end(look_further(scope, found, ["task"], after, 100))
    after, views = run_to_end(look_further(scope, found, ["task"], after, 100))
    assert (after, found.looked, found.complete, len(views)) == (None, 250, True, 50)


def view(id_: str, **changes: Any) -> HeadView:
    """A head of some journal."""
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    known: dict[str, Any] = {
        "kind": "task",
        "id": id_,
        "status": "",
        "labels": {},
        "first": 1,
        "seq": 2,
        "size": 10,
        "created": now,
        "updated": now,
        "expires": None,
        "holder": None,
        "doubts": [],
        "incarnation": "",
        "damaged": False,
    }
    return HeadView(**known | changes)


def test_sizes_are_the_sums_over_heads() -> None:
    """By kind and by day; the largest by name."""
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    sizes = Sizes(now)
    for number in range(20):
        sizes.take(view(f"t{number}", size=number, created=now - timedelta(days=number)))
    sizes.take(view("c", kind="chat", size=1_000, updated=now - timedelta(days=2)))
    found = sizes.view()
    assert [(one.kind, one.journals, one.entries, one.size) for one in found.kinds] == [
        ("chat", 1, 2, 1_000),
        ("task", 20, 40, 190),
    ]
    assert (found.total.journals, found.total.size, found.written) == (21, 1_190, 20)
    assert [one.id for one in found.largest] == ["c", *(f"t{n}" for n in range(19, 12, -1))]
    assert len(found.largest) == LARGEST
    assert len(found.days) == DAYS
    assert (found.days[-1].day, found.days[-1].journals) == (date(2026, 3, 1), 2)
    assert found.earlier is not None
    assert (found.earlier.day, found.earlier.journals) == (date(2026, 2, 10), 6)
    assert Sizes(now).view().earlier is None


def test_of_many_the_newest_are_remembered() -> None:
    """However many there are."""
    newest, now = Newest(), datetime.now(UTC)
    for number in range(3 * SOME):
        newest.add(view(f"t{number}", updated=now + timedelta(seconds=number)))
    assert (newest.count, len(newest.names())) == (3 * SOME, SOME)
    assert newest.names()[0] == ("task", f"t{3 * SOME - 1}")
