"""Pages of a store whose every text is hostile: nothing of it is obeyed, hidden, or too large.

A program follows every link and form from home on, and looks at each page's markup; a browser then
shows a page of each sort, light and dark, on a wide screen and on a phone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

import limpet
from tests.support import stores
from tests.support.browser import axe, inspected, page_of, screenshot, wide
from tests.support.chats import every_chat
from tests.support.crawling import crawl
from tests.support.hostile import fill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

    from tests.support.browser import Inspected
    from tests.support.crawling import Found

cache = stores.cache

pytestmark = pytest.mark.slow

#: Where the crawl begins, besides home: what only a person would type.
STARTS = (
    *(
        f"/task?kind=task&id={id_}"
        for id_ in ("failed", "waits", "paused", "cancelled", "submitted", "done", "many")
    ),
    "/search?q=okapi",
    "/search?q=%3Cscript%3E+alert",
    "/doctor?check=1",
    "/?q=%3Cscript%3E&status=%3Cb%3E&prefix=%E2%80%AE&label=%3Cb%3E%3D%3Cb%3E",
)


#: What in a query makes another page of it.
SORTS = {"memory", "q", "seq", "at", "step", "text", "check"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inspected]:
    """The store, served with all that can be changed in it."""
    path = tmp_path_factory.mktemp("hostile") / "agents.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIMPET_CACHE", str(path.parent / "cache"))
        with limpet.open(path) as store:
            fill(store)
            every_chat(store)
            with inspected(store, write=True, place=True) as found:
                yield found


@pytest.fixture(scope="module")
def found(served: Inspected) -> list[Found]:
    """Every page that links and forms lead to."""
    with httpx.Client(base_url=served.url, timeout=60) as client:
        client.get(served.link())
        return list(crawl(client, *STARTS))


def test_no_page_has_markup_of_the_store(found: list[Found]) -> None:
    """No tag, handler, style or address but ours; nothing hidden or turned round; none too large.

    Each link leads to a page, or, of a journal that is damaged, to what says so.
    """
    wrong = {
        one.url: one.wrong[:5]
        for one in found
        if one.wrong and not (one.status == 409 and "id=ill" in one.url)
    }
    assert wrong == {}
    paths = {one.shape[0] for one in found}
    for path in ("/", "/task", "/state", "/memory", "/journal", "/versions", "/diff", "/doubts",
                 "/search", "/doctor", "/task/fork", "/memory/forget"):  # fmt: skip
        assert path in paths, path
    print(f"{len(found)} pages of {len({one.shape for one in found})} sorts")


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_obeys_nothing_of_it(
    served: Inspected, found: list[Found], browser: Browser, *, dark: bool, width: int
) -> None:
    """No dialog, no error, no request to another host; and nothing is wider than its window."""
    # The largest of each sort that is a page, and not all of something that was asked for.
    sorts = {
        (*one.shape[:2], *(SORTS & set(one.shape)), one.url if one.url in STARTS else ""): one
        for one in sorted(found, key=lambda one: one.size)
        if one.status == 200 and not one.whole
    }
    too_wide = []
    with page_of(browser, served, dark=dark, width=width) as page:
        for number, one in enumerate(sorts.values()):
            page.goto(served.url + one.url)
            if wide(page):
                too_wide.append(one.url)
            assert page.locator("main img, main script, main iframe, main style").count() == 0
            assert "hacked" not in page.title() or "<script" in page.title()
            if dark == (width < 1000):  # both schemes, and both widths
                axe(page)
            name = f"hostile {number} {one.shape[0]} {one.shape[1]} {dark} {width}"
            screenshot(page, name, full=False)
    assert too_wide == []
