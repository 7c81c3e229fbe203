"""Home: what needs somebody, everything with its filters, sizes; live, and bounded."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import httpx
import pytest

import limpet
from limpet.errors import TaskWaiting
from limpet.inspector import walker as walkers
from limpet.inspector.walker import Walker
from limpet.views import survey as surveys
from tests.support.browser import axe, inspected, page_of, screenshot, wide
from tests.support.doubtful import leave_in_doubt
from tests.support.filled import counted, fill_tasks, task_request
from tests.support.processes import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from tests.support.browser import Inspected

MESSAGE = {"role": "user", "content": "hello"}
HOSTILE = "<img src=x onerror=alert(1)>javascript:alert(2)'\"&amp;{{7*7}}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[limpet.Store]:
    """An empty one."""
    with limpet.open(tmp_path / "agents.db") as opened:
        yield opened


def names(page: Page, section: str = "#all") -> list[str]:
    """The journals in a section, in their order."""
    return page.locator(f"{section} a.name").all_inner_texts()


def trouble(store: limpet.Store) -> None:
    """One journal of each sort that needs somebody."""
    store.conversation("alice", labels={"channel": "web"}).append(MESSAGE)
    leave_in_doubt(store, "conversation", "alice", "pay")
    store.submit("refund", "refund", "Refund order 77")
    with suppress(TaskWaiting), store.task("refund") as task:
        task.step("look up", lambda: 1)
        task.wait_for("approval")
    with store.task("broken", goal="Print") as task:
        task.fail("the disk is on fire")
    with store.task("report", goal="Count the open incidents") as task:
        task.plan(["fetch", "count", "write"])
        task.step("fetch", lambda: 1)
    with store.task("paused", goal="Later"):
        pass
    store.pause("paused")


def test_what_needs_somebody_comes_first(
    store: limpet.Store, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with why, and a link to where something can be done about it."""
    monkeypatch.setattr(surveys, "REST", timedelta(0))
    trouble(store)
    with inspected(store, write=True) as served, page_of(browser, served) as page:
        groups = page.locator("#needs .group")
        assert groups.locator("h3").all_inner_texts() == [
            "In doubt began, and nobody knows whether it happened",
            "Waits for an answer a signal, an approval, a reply",
            "Failed until somebody lets it go on",
            "Nobody works on it begun and open, and its process has ended or let go of it",
            "Paused until somebody lets it go on",
        ]
        assert [text.split("\n")[0] for text in groups.locator(".why").all_inner_texts()] == [
            *("in doubt: pay (c1)", "waits for approval", "the disk is on fire", "next: count", ""),
        ]
        assert "5 journals, looked through" in page.locator(".looked").inner_text()
        row = page.locator("#all tr", has_text="Count the open incidents")
        assert row.locator("progress").get_attribute("max") == "3"
        assert "1/3" in row.inner_text()
        assert "task" in page.locator("#sizes").inner_text()
        axe(page)
        screenshot(page, "home")
        page.get_by_role("link", name="Say what became of them").click()
        page.wait_for_url("**/doubts")
        page.go_back()
        page.locator("#needs a.name", has_text="refund").click()
        page.wait_for_url("**id=refund*")


@pytest.mark.parametrize("javascript", [True, False])
def test_it_is_readable_in_the_dark_on_a_phone_and_without_scripts(
    store: limpet.Store, browser: Browser, *, javascript: bool
) -> None:
    """Nothing is wider than the screen, also with texts that would like to be code."""
    trouble(store)
    with store.task("evil", goal=HOSTILE * 20, labels={"x": "y" * 200}) as task:
        task.plan([HOSTILE])
        task.fail(HOSTILE)
    store.conversation(f"{HOSTILE}{'0123456789' * 20}").append(MESSAGE)
    with (
        inspected(store) as served,
        page_of(browser, served, dark=True, width=360, javascript=javascript) as page,
    ):
        assert page.locator("img").count() == 0
        assert HOSTILE in page.locator("#needs .failed").inner_text()
        assert not wide(page)
        if javascript:
            axe(page)
            screenshot(page, "home on a phone")
        page.get_by_label("Text").fill("ONERROR")
        page.get_by_role("button", name="Filter").click()
        assert len(names(page)) == 2


def test_filters_narrow_the_list_and_stay_in_the_form(
    store: limpet.Store, browser: Browser
) -> None:
    """By a form that any browser sends; its link can be passed on."""
    fill_tasks(store, 60, failed=20)
    store.conversation("alice", labels={"channel": "web"}).append(MESSAGE)
    with inspected(store) as served, page_of(browser, served) as page:
        form = page.get_by_role("search")
        form.get_by_label("Kind").select_option("task")
        form.get_by_label("Status").fill("failed")
        form.get_by_label("Order").select_option("updated")
        form.get_by_role("button").click()
        assert set(names(page)) == {"task/t000000", "task/t000020", "task/t000040"}
        assert form.get_by_label("Status").input_value() == "failed"
        page.locator("#all .label", has_text="team=blue").first.click()
        page.wait_for_url("**label=team%3Dblue**")
        assert len(names(page)) == 3
        form.get_by_label("Label", exact=True).fill("channel=web")
        form.get_by_role("button").click()
        assert "There is nothing like that" in page.locator("#all").inner_text()
        assert not page.locator("a[rel=next]").count()
        page.get_by_title("without this label").first.click()
        page.get_by_role("link", name="Show all").click()
        assert len(names(page)) == 50
        form.get_by_text("More").click()
        form.get_by_label("Id begins with").fill("al")
        form.get_by_label("Written within").fill("1 h")
        form.get_by_role("button").click()
        assert names(page) == ["conversation/alice"]
        served.expected.append("status of 400")
        for query in ("larger=much", "order=colour", "label=web", "after=nosuch/x", "older=1e9y"):
            answer = page.goto(f"{served.url}/?{query}")
            assert answer is not None
            assert answer.status == 400, query
        assert page.goto(f"{served.url}/?older=999999999999999y") is not None
        assert "There is nothing like that" in page.locator("#all").inner_text()


def test_pages_and_keys(store: limpet.Store, browser: Browser) -> None:
    """Fifty at a time: o for the next ones, j and k through rows, / to the filter."""
    fill_tasks(store, 120)
    with inspected(store) as served, page_of(browser, served) as page:
        seen = names(page)
        page.keyboard.press("o")
        page.wait_for_url("**after=**")
        seen += names(page)
        page.get_by_role("link", name="Next").click()
        page.wait_for_url("**t000099**")
        seen += names(page)
        assert seen == [f"task/t{number:06}" for number in range(120)]
        assert not page.locator("a[rel=next]").count()
        page.get_by_role("link", name="First").click()
        page.wait_for_url(f"{served.url}/")
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        focus = "document.activeElement.textContent"
        assert page.evaluate(focus) == "task/t000000"
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.name") == "q"


def test_a_filter_that_matches_little_says_how_to_look_further(
    store: limpet.Store, browser: Browser
) -> None:
    """A page looks at so many journals; the next one goes on behind them."""
    fill_tasks(store, 2_100)
    with inspected(store) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/?q=t0020")
        assert names(page) == []
        assert "2,000 journals were looked at" in page.locator("#all").inner_text()
        page.get_by_role("link", name="Look further").click()
        page.wait_for_url("**after=**")
        assert len(names(page)) == 50
        page.goto(f"{served.url}/?order=size")
        assert "the first 2,000 journals only" in page.locator("#all").inner_text()


def test_it_is_live(store: limpet.Store, browser: Browser) -> None:
    """A new row comes by itself; the focus, and what is being typed, stay."""
    store.conversation("alice").append(MESSAGE)
    with store.task("busy", goal="Work") as task, inspected(store) as served:
        task.plan(["one", "two"])
        with page_of(browser, served) as page:
            page.locator(".home.live").wait_for()
            page.get_by_label("Status").fill("unfinished")
            page.locator("#all a.name", has_text="busy").focus()
            store.conversation("bob").append(MESSAGE)
            page.locator("#all a.name", has_text="bob").wait_for()
            assert page.evaluate("document.activeElement.textContent") == "task/busy"
            assert page.get_by_label("Status").input_value() == "unfinished"
            task.step("one", lambda: 1)
            page.locator("#all .steps", has_text="1/2").wait_for()
            leave_in_doubt(store, "conversation", "bob", "pay")
            page.locator("#needs .doubt a.name", has_text="bob").wait_for()
            assert "3 journals" in page.locator(".looked").inner_text()
            store.resolve("bob", "c1", "skip", kind="conversation")
            page.locator("#needs .doubt").wait_for(state="detached")


@pytest.mark.slow
def test_it_costs_the_same_with_a_hundred_and_a_hundred_thousand_journals(tmp_path: Path) -> None:
    """The first page and the next: bytes, and what is asked of the backend before all was seen."""
    costs: dict[int, list[object]] = {}
    sizes: dict[int, list[int]] = {}
    for size in (200, 100_000):
        with limpet.open(tmp_path / f"{size}.db") as store:
            fill_tasks(store, size, failed=1)
            leave_in_doubt(store, "order", "o-1", "ship")
            with inspected(store) as served, httpx.Client(follow_redirects=True) as browser:
                browser.get(served.link())
                browser.get(served.url)
                until_round(served)
                for path in ("/", "/?after=task/t000049", "/?status=failed", "/doubts"):
                    get = partial(browser.get, served.url + path)
                    found, cost = counted(store, get)
                    assert found.status_code == 200
                    sizes.setdefault(size, []).append(len(found.content))
                    costs.setdefault(size, []).append((cost["kinds"], cost["read"], cost["head"]))
    assert costs[200] == costs[100_000]
    for small, large in zip(sizes[200], sizes[100_000], strict=True):
        assert large < 1.3 * small


def until_round(served: Inspected) -> None:
    """Wait until the walker has been round once."""
    walker: Walker = served.inspector._parts.shared["walker"]
    assert until(lambda: walker.ended is not None)


# -- the walker ------------------------------------------------------------------------------------


async def another_round(walker: Walker) -> None:
    """Wait until it has been round once more."""
    before = walker.ended
    while walker.ended == before:  # noqa: ASYNC110 - nobody but this test needs to know
        await asyncio.sleep(0.01)


def test_one_walker_serves_everybody_and_rests_when_nobody_looks(
    store: limpet.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inspector that is left open costs nothing."""
    monkeypatch.setattr(walkers, "LINGER", 0.0)
    monkeypatch.setattr(walkers, "REST", 0.01)
    fill_tasks(store, 450)

    async def look() -> None:
        walker = Walker(store.scope.as_async())
        await asyncio.gather(*(walker.look() for _ in range(20)))
        assert walker.survey.looked == walkers.SLICE  # a page waits for no more than that
        task = walker._task
        assert task is not None
        await asyncio.wait_for(task, 60)
        assert (walker.survey.looked, walker.survey.complete) == (450, True)
        await walker.look()  # what was found stays until more is known
        assert walker.survey.complete
        assert walker._task is not task

    asyncio.run(look())


def test_the_walker_tells_of_changes_and_of_nothing_else(
    store: limpet.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is told asks again: so only if it would look otherwise."""
    monkeypatch.setattr(walkers, "REST", 0.01)
    fill_tasks(store, 5)

    async def look() -> None:
        walker = Walker(store.scope.as_async())
        await walker.look()
        assert walker.topic.number == 1
        for change in (
            lambda: store.backend.append(task_request(store, "new")),
            lambda: store.journal("task", "new").append(("decided", {"decision": "x"})),
            lambda: store.pause("new"),
            lambda: store.journal("task", "new").delete(),
            lambda: leave_in_doubt(store, "order", "o-1", "ship"),
        ):
            seen = walker.topic.number
            await another_round(walker)
            assert walker.topic.number == seen
            await asyncio.to_thread(change)
            await asyncio.wait_for(walker.topic.next(seen), 60)
            await another_round(walker)

    asyncio.run(look())


def test_a_store_that_is_away_comes_back(
    store: limpet.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is not kept waiting, and the walker goes on when it can; a closed one ends it."""
    monkeypatch.setattr(walkers, "REST", 0.01)
    fill_tasks(store, 5)

    async def look() -> None:
        scope = store.scope.as_async()
        kinds = scope.backend.kinds

        def away() -> list[tuple[str, str]]:
            raise limpet.StoreUnavailable("It is away.")

        monkeypatch.setattr(scope.backend, "kinds", away)
        walker = Walker(scope)
        await asyncio.wait_for(walker.look(), 60)
        assert walker.survey.looked == 0
        monkeypatch.setattr(scope.backend, "kinds", kinds)
        await another_round(walker)
        assert walker.survey.complete
        task = walker._task
        assert task is not None
        await asyncio.to_thread(store.close)
        await asyncio.wait_for(task, 60)

    asyncio.run(look())
