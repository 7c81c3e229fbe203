"""Every page by the keyboard alone: each control is reached, is seen to be, and the keys work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import limpet
from tests.support import stores
from tests.support.browser import inspected, page_of
from tests.support.doubtful import leave_in_doubt
from tests.support.dying import ended_by
from tests.support.filled import fill_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

cache = stores.cache

PAGES = (
    "/",
    "/task?kind=task&id=w",
    "/task/fork?id=w",
    "/state?kind=state&id=team",
    "/versions?kind=state&id=team",
    "/diff?kind=state&id=team",
    "/journal?kind=conversation&id=alice",
    "/journal?kind=conversation&id=alice&seq=1",
    "/memory?kind=memory&id=facts",
    "/memory?kind=memory&id=facts&q=okapi",
    "/doubts",
    "/search?q=okapi",
    "/doctor",
)

#: What is to be reached: all that can be used and is shown; of radio buttons what is chosen.
CONTROLS = """document.querySelectorAll(
    "a[href], button, select, textarea, summary,"
    + "input:not([type=hidden], [type=radio]:not(:checked))")
"""
MISSED = f"""[...{CONTROLS}].filter((one) => one.checkVisibility() && !one.dataset.reached)
    .map((one) => one.outerHTML.slice(0, 120))"""

#: What has the focus: which of them it is, and whether that can be seen.
FOCUSED = """() => {
    const one = document.activeElement;
    if (one === document.body) return null;
    const style = getComputedStyle(one), box = one.getBoundingClientRect();
    const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2
        && box.width > 0 && box.right > 0 && box.bottom > 0 && box.top < innerHeight;
    one.dataset.reached = "1";
    return [one.outerHTML.slice(0, 120), seen];
}"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[limpet.Store]:
    """One with something on each page."""
    with limpet.open(tmp_path / "agents.db") as opened:
        chat = opened.conversation("alice", labels={"channel": "web"})
        chat.append(*({"role": "user", "content": f"okapi {n}"} for n in range(3)))
        leave_in_doubt(opened, "conversation", "alice", "pay")
        with ended_by(limpet.TaskWaiting, opened.task("w", "Wait")) as task:
            task.plan(["look", "ask"])
            task.step("look", lambda: {"found": "x" * 500})
            task.wait_for("approval")
        for number in range(3):
            opened.state("team").save({"turn": number, "okapi": ["a", {"b": [1, 2]}] * 40})
        opened.memory("facts").remember("An okapi is a giraffe", tags=["zoo"])
        yield opened


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_control_is_reached_and_seen(
    store: limpet.Store, browser: Browser, *, dark: bool
) -> None:
    """By Tab alone, the link to the content first; with the focus in sight."""
    with (
        inspected(store, write=True, place=True) as served,
        page_of(browser, served, dark=dark, width=360 if dark else 1280) as page,
    ):
        for path in PAGES:
            page.goto(served.url + path, wait_until="load")
            page.evaluate("document.activeElement.blur()")  # search has the focus by itself
            unseen: list[str] = []
            first = ""
            for number in range(1_000):
                page.keyboard.press("Tab")
                found = page.evaluate(FOCUSED)
                if found is None:
                    break
                first = first if number else found[0]
                unseen += [] if found[1] else [found[0]]
            assert 'class="skip"' in first or path.startswith("/search"), path
            assert unseen == [], path
            missed = page.evaluate(MISSED)
            assert missed == [], path


def press(page: Page, key: str) -> None:
    """One key, when the page knows it."""
    page.wait_for_load_state()
    page.keyboard.press(key)


def test_the_keys_that_the_page_names_do_what_it_says(
    store: limpet.Store, browser: Browser
) -> None:
    """And are letters again where somebody types."""
    fill_tasks(store, 60)
    with inspected(store) as served, page_of(browser, served) as page:
        focus = "document.activeElement.getAttribute('name') ?? document.activeElement.className"
        press(page, "?")
        assert page.locator("dialog").is_visible()
        named = page.locator("dialog kbd").all_inner_texts()
        assert named == ["/", "s", "j", "k", "o", "h", "?"]
        press(page, "h")  # nothing but closing works while it is open
        assert page.locator("dialog").is_visible()
        press(page, "Escape")
        assert page.locator("dialog").is_hidden()
        press(page, "Tab")
        page.goto(served.url)
        press(page, "Tab")
        assert page.evaluate(focus) == "skip"
        press(page, "Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        press(page, "/")
        assert page.evaluate("document.activeElement.closest('.filters') !== null")
        page.keyboard.type("jkoh?s/")
        assert page.evaluate("document.activeElement.value") == "jkoh?s/"
        page.evaluate("document.activeElement.blur()")
        press(page, "j")
        assert page.evaluate(focus) == "name"
        press(page, "j")
        second = page.evaluate("document.activeElement.id")
        press(page, "j")
        press(page, "k")
        assert page.evaluate("document.activeElement.id") == second
        press(page, "o")
        page.wait_for_url("**after=**")
        press(page, "h")
        page.wait_for_url(f"{served.url}/")
        press(page, "s")
        page.keyboard.type("okapi")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search?q=okapi")
