"""The page of a task: its steps over time, its record, and every button on it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet import Retry, current_step
from limpet.backends.contract import Append, Key
from limpet.core.ids import make_key
from limpet.core.leases import holder_name
from tests.models.test_damage import seal
from tests.support.browser import axe, inspected, page_of, screenshot, wide
from tests.support.dying import Calls, dying, ended_by, killed
from tests.support.processes import in_a_process, until
from tests.unit.test_views_task import fill

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

GOAL = "Summarise the open incidents"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[limpet.Store]:
    """An empty one."""
    with limpet.open(tmp_path / "agents.db") as opened:
        yield opened


def flaky() -> dict[str, int]:
    """It works the third time."""
    if current_step().attempt < 3:
        raise ConnectionError("503")
    return {"network": 2}


def report(store: limpet.Store) -> None:
    """A task with much of what there can be, whose newest step is in doubt."""
    with store.task("report", GOAL, agent="agent-01", deadline=3600) as task:
        task.plan(["collect", "group", "send", "archive"])
        task.step("collect", lambda: "x" * 20_000)
        task.step("group", flaky, retry=Retry(attempts=3, wait=0.01))
        task.decide("use the replica", because="the API is limited")
        task.discover("The API allows 100 calls")
        task.plan.drop("archive", because="nobody reads it")
        store.signal("report", "hint", {"tone": "formal"})
        task.child("part", lambda child: child.step("inner", lambda: 2))
    with killed(), store.task("report") as task:
        task.step("send", dying(task), in_doubt="ask")
    with ended_by(limpet.TaskWaiting, store.task("report")) as task:
        task.step("send", Calls(), in_doubt="ask")


def waiting(store: limpet.Store, id_: str = "w") -> None:
    """A task that waits for an approval."""
    with ended_by(limpet.TaskWaiting, store.task(id_, "Wait")) as task:
        task.wait_for("approval")


def main(page: Page) -> str:
    """What the page says."""
    return page.locator("main").inner_text()


def notice(page: Page) -> str:
    """What it says of the last action."""
    return page.locator(".notice").inner_text()


def press(page: Page, label: str, **fields: str) -> None:
    """Open the form of an action, fill it in, and send it."""
    form = page.locator(f"details:has(> summary:text-is('{label}'))")
    form.locator("summary").click()
    for name, value in fields.items():
        form.locator(f"[name={name}]").fill(value)
    form.get_by_role("button", name=label).click()


def bodies(store: limpet.Store, id_: str, kind: str) -> list[Any]:
    """What the entries of a type say."""
    return [entry.body for entry in store.journal("task", id_).read() if entry.type == kind]


# -- what it shows ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dark", "width", "javascript"), [(False, 1280, True), (True, 360, True), (False, 900, False)]
)
def test_a_task_is_shown_over_time(
    store: limpet.Store, browser: Browser, *, dark: bool, width: int, javascript: bool
) -> None:
    """Bars that can be read out, and what was decided, found out and sent beside them."""
    report(store)
    with (
        inspected(store, write=True) as served,
        page_of(browser, served, dark=dark, width=width, javascript=javascript) as page,
    ):
        page.goto(f"{served.url}/task?kind=task&id=report")
        text = main(page)
        for part in (
            *(GOAL, "agent-01", "3 attempts", "ConnectionError: 503", "in doubt", "taken over"),
            *("use the replica", "because the API is limited", "The API allows 100 calls"),
            *("nobody reads it", "hint", "not taken yet", "report/part", "all 20"),
        ):
            assert part in text, part
        said = page.locator("tr", has_text="group").locator("svg").first.get_attribute("aria-label")
        assert said is not None
        assert re.match(r"failed at .*; waited for .*; failed for .*; ran for .*, from 2", said)
        assert not wide(page)
        if javascript:
            axe(page)
        screenshot(page, f"task-{width}")
        page.get_by_role("link", name="all 20").click()
        assert "task-result" in page.url


def bars(page: Page, step: str) -> list[str]:
    """What the bars of a step are, from left to right; each is seen, and has a legend."""
    row = page.locator("table.timeline tr", has=page.get_by_role("link", name=step, exact=True))
    found: list[str] = row.locator("svg.bar rect:not(.lane, .event)").evaluate_all(
        """all => all.map(one => [one.getBoundingClientRect(), one.className.baseVal])
            .filter(([box]) => box.width > 1 && box.height > 1).map(([, kind]) => kind)"""
    )
    legend = page.locator(".legend").inner_text()
    assert all(kind.replace("-", " ") in legend for kind in found)
    return found


def test_each_bar_is_of_what_really_happened(store: limpet.Store, browser: Browser) -> None:
    """It ran, waited, failed and was tried again; its worker died, another one took it over."""
    with inspected(store) as served, page_of(browser, served) as page:

        def look() -> list[str]:
            page.goto(f"{served.url}/task?id=t")
            until(lambda: bars(page, "send") != [])  # what has changed since is just exchanged
            return bars(page, "send")

        def never(_key: str) -> None:
            """It has not happened."""

        with killed(), store.task("t", "Report") as task:
            task.step("group", flaky, retry=Retry(attempts=3, wait=0.01))
            task.step("send", dying(task), in_doubt="verify", verify=never)
        assert look() == ["in-doubt"]
        with store.task("t") as task:
            assert task.step("send", look, in_doubt="verify", verify=never)[-1] == "running"
            with killed():
                task.step("pay", dying(task), in_doubt="ask")
        with ended_by(limpet.TaskWaiting, store.task("t")) as task:
            task.step("pay", Calls(), in_doubt="ask")
        assert look() == ["taken-over", "in-doubt", "ran"]
        assert bars(page, "group") == ["failed", "waited", "failed", "waited", "ran"]
        assert bars(page, "pay") == ["taken-over", "in-doubt"]
        store.resolve("t", "pay", "done")
        with ended_by(limpet.TaskWaiting, store.task("t")) as task:
            task.wait_for("approval")
        look()
        assert bars(page, "approval") == ["waited"]
        assert "taken over" in page.locator("table.timeline tr", has_text="send").inner_text()
        screenshot(page, "task-bars")


def test_a_task_is_read_with_the_keyboard(store: limpet.Store, browser: Browser) -> None:
    """Rows, the filter, and each entry by its link."""
    report(store)
    with inspected(store) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/task?id=report")
        page.keyboard.press("j")
        assert page.evaluate("document.activeElement.textContent") == "collect"
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**/journal?**")
        assert "group" in main(page)
        page.go_back()
        page.keyboard.press("/")
        page.keyboard.type("replica")
        page.keyboard.press("Enter")
        page.wait_for_url("**text=replica**")
        assert "1 entry fits of the" in main(page)
        page.locator("select[name=type]").select_option("step")
        page.get_by_role("button", name="Filter").click()
        page.wait_for_url("**type=step**")
        assert "0 entries fit" in main(page)
        assert page.locator("main form").count() == 1  # nothing can be changed


def test_every_sort_of_task_has_its_page(store: limpet.Store, browser: Browser) -> None:
    """Failed, paused, submitted, a child, a fork, gone back, of a dead worker, odd, damaged."""
    report(store)
    with ended_by(ZeroDivisionError, store.task("failed", "Divide")) as task:
        task.step("divide", lambda: 1 / 0, retry=Retry(attempts=1))
    store.submit("refund", "submitted", "Refund", input={"order": "x" * 1_000_000})
    store.task("report").versions.fork("twin")
    with store.task("rewound", "Go back") as task:
        task.step("a", lambda: 1)
        task.versions.rewind(to=1)
    with store.task("dead", "Work") as task:
        task.step("a", lambda: "y" * 1_000_000)
        task.discover("z" * 1_000_000)
    gone = in_a_process(lambda: holder_name("agent-02"))[1]
    store.backend.acquire(make_key(store.tenant, "task", "dead"), gone, 600)
    with store.task("done", "End") as task:
        task.sleep(0.001)
        task.finish({"answer": 42})
    waiting(store)
    store.pause("w", because="holidays")
    store.backend.append(Append(key=Key(store.tenant, "task", "twin"), body=seal(b"5"), count=1))
    store.journal("task", "odd").append(("noted", 5))
    expected = {
        "failed": ("in step divide", "ZeroDivisionError", "test_task.py:"),
        "submitted": ("Submitted as", "more characters"),
        "report/part": ("A step of", "report"),
        "twin": ("Forked from", "1 entry cannot be read"),
        "rewound": ("undone",),
        "dead": ("Its worker has ended", "more characters"),
        "done": ("Outcome", '{"answer":42}'),
        "w": ("holidays",),
        "odd": ("noted",),
    }
    with inspected(store, write=True) as served, page_of(browser, served) as page:
        for id_, parts in expected.items():
            page.goto(f"{served.url}/task?id={id_}")
            text = main(page)
            assert len(text) < 20_000
            for part in parts:
                assert part in text, (id_, part)
            assert not wide(page)
            axe(page)


def test_the_first_page_and_the_next_cost_the_same_however_long_it_is(browser: Browser) -> None:
    """In bytes; `test_views_task` counts what is read."""
    size: dict[tuple[str, str], int] = {}
    fetched = "fetch(location.href).then(r => r.text()).then(t => t.length)"
    with (
        limpet.open("memory:") as store,
        inspected(store) as served,
        page_of(browser, served) as page,
    ):
        fill(store, "short", 100)
        fill(store, "long", 3_000)
        for id_ in ("short", "long"):
            page.goto(f"{served.url}/task?id={id_}")
            size[id_, "first"] = page.evaluate(fetched)
            page.keyboard.press("o")
            page.wait_for_url("**before=**")
            size[id_, "next"] = page.evaluate(fetched)
        assert "entries 2,901 to 2,950 of 3,000" in main(page)
        page.get_by_role("link", name="Newer").click()
        assert "entries 2,951 to 3,000 of 3,000" in main(page)
        assert "Plan, as it was at first" in main(page)
        page.get_by_role("link", name="Read all of it").click()
        assert "Plan, as it was at first" not in main(page)
        page.goto(f"{served.url}/task?id=long&text=row+001500")
        assert "0 entries fit of the" in main(page)
        page.get_by_role("link", name="Look further back").click()
        page.wait_for_url("**before=**")
        assert "1 entry fits" in main(page)
    for which in ("first", "next"):
        assert size["long", which] <= 1.3 * size["short", which]


def test_a_page_follows_its_task_and_leaves_what_is_being_typed(
    store: limpet.Store, browser: Browser
) -> None:
    """Whoever writes a payload does not lose it because the agent goes on."""
    with (
        store.task("live", "Go on") as task,
        inspected(store, write=True) as served,
        page_of(browser, served) as page,
    ):
        page.goto(f"{served.url}/task?id=live")
        page.locator("[data-follow].live").wait_for()
        page.locator("summary", has_text="Send a signal").click()
        page.locator("[name=payload]").fill('{"half": ')
        task.step("first", lambda: 1)
        page.get_by_role("link", name="first", exact=True).wait_for()
        assert page.locator("[name=payload]").input_value() == '{"half": '
        task.finish("done")
        page.get_by_role("heading", name="Outcome").wait_for()


# -- what can be done ------------------------------------------------------------------------------


def test_a_signal_is_sent_once_to_a_task_that_waits_for_it(
    store: limpet.Store, browser: Browser
) -> None:
    """The name is offered; a typo, or what is no JSON, is refused and says why."""
    waiting(store)
    with inspected(store, write=True) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/task?id=w")
        assert "for the signal approval" in main(page)
        served.expected.append("status of 400")
        for fields, reason in (
            ({"name": "aproval"}, "waits for 'approval', and not for 'aproval'"),
            ({"payload": "yes"}, "payload is not JSON"),
        ):
            with page.expect_response(lambda response: response.status == 400):
                press(page, "Send a signal", **fields)
            assert reason in main(page)
            page.goto(f"{served.url}/task?id=w")
        assert bodies(store, "w", "signalled") == []
        page.locator("#do-signal [name=payload]").evaluate("""field => {
            field.value = '{"by": "Ann"}';
            const body = new URLSearchParams(new FormData(field.form));
            return fetch(field.form.action, {method: "POST", body});
        }""")
        page.locator("#do-signal summary").click()  # a second click on the same form
        page.locator("#do-signal button").click()
        assert notice(page) == "Sent approval to w."
    assert bodies(store, "w", "signalled") == [{"name": "approval", "payload": {"by": "Ann"}}]
    with store.task("w") as task:
        assert task.wait_for("approval") == {"by": "Ann"}


def test_a_task_is_paused_resumed_and_cancelled_for_a_reason(
    store: limpet.Store, browser: Browser
) -> None:
    """The reason is recorded, and who gave it; without JavaScript, too."""
    waiting(store)
    with (
        inspected(store, write=True) as served,
        page_of(browser, served, javascript=False) as page,
    ):
        page.goto(f"{served.url}/task?id=w")
        press(page, "Pause", because="holidays")
        assert "Paused w" in notice(page)
        assert "holidays (by tester)" in main(page)
        press(page, "Resume")
        assert "is open again" in notice(page)
        press(page, "Cancel the task")
        assert store.task("w").info().status == "cancelled"
        assert "by tester" in main(page)
        press(page, "Resume")
    assert store.task("w").info().status == "open"
    assert bodies(store, "w", "paused") == [{"because": "holidays (by tester)"}]
    assert bodies(store, "w", "cancelled") == [{"because": "by tester"}]


def test_what_failed_and_what_is_in_doubt_is_tried_again(
    store: limpet.Store, browser: Browser
) -> None:
    """Each by its own word: a failed task is resumed, a step in doubt is made again."""
    report(store)
    with ended_by(ZeroDivisionError, store.task("failed", "Divide")) as task:
        task.step("divide", lambda: 1 / 0, retry=Retry(attempts=1))
    with inspected(store, write=True) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/task?id=failed")
        press(page, "Retry")
        assert "goes on where it stopped" in notice(page)
        page.goto(f"{served.url}/task?id=report")
        page.get_by_text("Say what became of it", exact=True).click()
        page.get_by_role("button", name="Make it again").click()
        assert "It is to be made again" in notice(page)
    assert store.task("failed").info().status == "open"
    assert store.in_doubt() == []
    assert bodies(store, "report", "resolved") == [{"id": "send", "how": "retry", "by": "tester"}]


def test_a_fork_is_looked_at_before_it_is_made(store: limpet.Store, browser: Browser) -> None:
    """What runs again, what has happened already; then the new task, under an id of one's own."""
    report(store)
    with inspected(store, write=True) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/task?id=report")
        page.get_by_role("link", name="Fork before group").click()
        text = main(page)
        assert "1 step had an effect after that point" in text
        again = page.locator("section", has_text="Would run again").inner_text()
        assert re.findall(r"^(?:collect|group|part|send)$", again, re.MULTILINE) == [
            *("group", "part", "send")
        ]
        axe(page)
        assert not wide(page)
        screenshot(page, "task-fork")
        page.locator("[name=new]").fill("report")
        served.expected.append("status of 409")
        with page.expect_response(lambda response: response.status == 409):
            page.get_by_role("button", name="Fork, and let these happen again").click()
        assert "There is a task 'report' already" in main(page)
        page.go_back()
        page.locator("[name=new]").fill("report again")
        page.get_by_role("button", name="Fork, and let these happen again").click()
        page.wait_for_url("**id=report+again**")
        assert "begins with what report was after entry" in notice(page)
        assert "Forked from" in main(page)
        page.goto(f"{served.url}/task/fork?id=report&at=2")
        assert "Fork after entry 2" in main(page)
        served.expected.append("status of 404")
        with page.expect_response(lambda response: response.status == 404):
            page.goto(f"{served.url}/task/fork?id=report&at=999")
    assert store.task("report again").checkpoint().completed == ["collect"]
    with store.task("report again") as task:
        assert task.step("group", lambda: "anew") == "anew"


def test_who_may_only_read_is_offered_nothing_else(store: limpet.Store, browser: Browser) -> None:
    """No form but the filter; and a fork can be looked at."""
    report(store)
    with inspected(store) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/task?id=report")
        assert page.locator("main form[method=post]").count() == 0
        assert page.get_by_role("link", name="Fork").count() == 0
        page.goto(f"{served.url}/task/fork?id=report&step=group")
        assert "read-only" in main(page)
        assert page.locator("main form[method=post]").count() == 0
