"""The search over everything, on its page and from every other one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import limpet
from limpet.backends.contract import Append, Key
from tests.models.test_damage import seal
from tests.support import stores
from tests.support.browser import axe, inspected, page_of, screenshot, wide

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

cache = stores.cache


@pytest.fixture
def store(tmp_path: Path) -> Iterator[limpet.Store]:
    """One with an okapi in a journal of each kind, and in many messages."""
    with limpet.open(tmp_path / "agents.db") as opened:
        opened.conversation("zoo").append(
            {"role": "user", "content": "Where is the okapi? <b>bold</b> \x1b[31m"}
        )
        opened.conversation("many").append(
            *({"role": "user", "content": f"okapi number {n}"} for n in range(80))
        )
        with opened.task("find", goal="Find the okapi") as task:
            task.discover("The okapi hides")
        opened.state("profile").save({"animal": "okapi"})
        opened.memory("facts").remember("An okapi is a giraffe")
        yield opened


def test_everything_is_found_from_any_page(store: limpet.Store, browser: Browser) -> None:
    """By a key, in each kind, with a link to the very entry."""
    with inspected(store) as served, page_of(browser, served) as page:
        page.keyboard.press("s")
        page.keyboard.type("okapi")
        page.keyboard.press("Enter")
        page.wait_for_selector(".hits")
        axe(page)
        screenshot(page, "search")
        assert page.locator("mark").first.inner_text() == "okapi"
        page.keyboard.press("o")
        page.wait_for_url("**most=200**")
        kinds = set(page.locator(".hits h2 .badge").all_inner_texts())
        assert kinds == {"conversation", "task", "state", "memory"}
        assert page.locator(".hits li").count() == 85
        page.locator(".chips a", has_text="task").click()
        page.wait_for_url("**kind=task**")
        assert page.locator(".hits li").count() == 2
        page.keyboard.press("j")
        assert page.evaluate("document.activeElement.textContent") == "find"
        page.get_by_role("link", name="discovery").click()
        page.wait_for_url("**/journal?**")
        assert "The okapi hides" in page.locator("main").inner_text()
        page.keyboard.press("s")
        page.keyboard.type("giraffe")
        page.keyboard.press("Enter")
        page.locator(".hits a.where").click()
        page.wait_for_url("**/memory?**memory=m-**")
        page.keyboard.press("s")
        page.keyboard.type('"number 40"')
        page.keyboard.press("Enter")
        page.wait_for_url("**number+40**")
        page.locator(".hits a.where").click()
        page.wait_for_url("**/chat?**")
        assert page.locator(".message:target .said").inner_text() == "okapi number 40"
        assert page.locator(".message").count() == 50  # what was said around it


def test_what_is_found_is_only_text_and_fits_a_phone(store: limpet.Store, browser: Browser) -> None:
    """Dark, without JavaScript; what cannot be read is named."""
    store.backend.append(Append(key=Key("default", "task", "ill"), body=seal(b"5"), count=1))
    with (
        inspected(store) as served,
        page_of(browser, served, dark=True, width=360, javascript=False) as page,
    ):
        page.goto(f"{served.url}/search")
        assert not wide(page)
        page.locator(".find input").fill("bold where")
        page.locator(".find input").press("Enter")
        page.wait_for_url("**/search?q=bold**")
        assert "<b>bold</b> \\e[31m" in page.locator(".hits").inner_text()
        assert page.locator(".hits b").count() == 0
        assert "task/ill" in page.locator("main").inner_text()
        assert not wide(page)
        page.goto(f"{served.url}/search?q=nothingofthatkind")
        assert "Nothing has these words" in page.locator("main").inner_text()
        served.expected.append("status of 400")
        page.goto(f"{served.url}/search?q=x&kind=nonsense")
        assert "kind is one of" in page.locator("main").inner_text()
