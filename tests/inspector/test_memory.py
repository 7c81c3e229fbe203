"""Memory on the pages: what is known, how well it fits, where it is from, how it is forgotten."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import httpx
import pytest

import limpet
from limpet.core.runtime import run_to_end
from limpet.memory.local_model import LocalModel
from limpet.views.memory import memories_page
from tests.support import stores
from tests.support.browser import axe, inspected, page_of, screenshot, wide

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

cache = stores.cache

HOSTILE = "<img src=x onerror=alert(1)> \x1b[31m \u202e javascript:alert(1) \x00"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a namespace that has all there can be."""
    path = tmp_path / "agents.db"
    with limpet.open(path) as store:
        with store.task("report-42", goal="Audit the orders") as task:
            task.discover("Orders take long")
        memory = store.memory("acme/support")
        ada = memory.remember(
            "Ada prefers e-mail",
            tags=["contact"],
            source="report-42",
            by="clerk",
            context="How to reach customers",
        )
        memory.update(ada.id, "Ada prefers letters", because="an e-mail came back")
        day = memory.remember("Invoices go out on the first", source="elsewhere", trust=0.5)
        memory.contradict(day.id, "Invoices go out on the fifth")
        memory.remember("It held for a moment", ttl=1e-6)
        memory.remember(HOSTILE, tags=[f"t{n}" for n in range(20)])
        memory.remember("long " * 100_000, kind="novel")
        for number in range(60):
            memory.remember(f"Customer {number} pays within {number} days", tags=["customer"])
    return path


@pytest.fixture
def store(path: Path) -> Iterator[limpet.Store]:
    """The same, open."""
    with limpet.open(path) as opened:
        yield opened


def settled(page: Page, url: str) -> None:
    """Go there, and look at what every page has to be."""
    page.goto(url)
    axe(page)
    assert not wide(page)


def test_a_namespace_is_listed_searched_and_followed_to_its_sources(
    store: limpet.Store, browser: Browser
) -> None:
    """From the list to a hit, why it fits, what it was before, and the task that it is from."""
    with inspected(store) as served, page_of(browser, served) as page:
        settled(page, f"{served.url}/memory?kind=memory&id=acme/support")
        assert page.locator(".memory").count() == 50
        assert "65 memories that count" in page.locator("main").inner_text()
        assert page.locator("[data-row]").first.inner_text().startswith("Customer 59")
        page.keyboard.press("o")
        page.wait_for_selector("text=Newest")
        axe(page)
        assert page.locator(".memory").count() == 15
        page.get_by_role("link", name="Also what was replaced").click()
        page.wait_for_url("**all=1**")
        assert page.get_by_role("link", name="Only what counts now").is_visible()

        page.keyboard.press("/")
        page.keyboard.type("how do we reach Ada by e-mail")
        page.keyboard.press("Enter")
        page.wait_for_selector(".hit")
        screenshot(page, "memory-search")
        axe(page)
        assert "By words." in page.locator("main").inner_text()
        first = page.locator(".hit").first
        assert re.fullmatch(r"[01]\.\d\d", first.locator("strong").inner_text())
        shown = re.findall(r"adds (\d\.\d\d)", first.inner_text())
        assert sum(map(float, shown)) == pytest.approx(
            float(first.locator("strong").inner_text()), abs=0.02
        )
        assert "An older version fits" in first.inner_text()
        first.locator("a.said").click()

        page.wait_for_selector("text=History")
        screenshot(page, "memory-one")
        axe(page)
        assert page.locator(".versions .memory").count() == 2
        assert "an e-mail came back" in page.locator(".versions").inner_text()
        page.locator(".versions a.said").click()
        page.wait_for_selector("text=Replaced by")
        page.wait_for_load_state()
        assert page.get_by_role("link", name="task/report-42").is_visible()
        assert page.get_by_role("link", name="Forget").count() == 0  # it is read-only


def test_what_was_remembered_is_only_text_and_fits_a_phone(
    store: limpet.Store, browser: Browser
) -> None:
    """Nothing in it is obeyed, and nothing breaks the layout; dark, and without JavaScript."""
    memory = store.memory("acme/support")
    hostile = next(one for one in memory.list() if "onerror" in one.text)
    disputed = next(one for one in memory.list() if one.contradicted_by)
    novel = next(one for one in memory.list() if one.kind == "novel")
    base = "memory?kind=memory&id=acme/support"
    with (
        inspected(store) as served,
        page_of(browser, served, dark=True, width=360, javascript=False) as page,
    ):
        for query, words in (
            ("&before=30", "onerror=alert(1)"),
            (f"&memory={hostile.id}", "\\e[31m"),
            (f"&memory={disputed.id}", "Disputed by"),
            (f"&memory={novel.id}", "more characters"),
            ("&of=novel", "more characters"),
            ("&q=javascript+alert", "onerror=alert(1)"),
            ("&q=nothingofthatkind", "Nothing that counts now"),
            ("&tag=customer&all=1", "with #customer"),
            ("&source=elsewhere", "from elsewhere"),
        ):
            page.goto(f"{served.url}/{base}{query}")
            assert not wide(page), query
            assert words in page.locator("main").inner_text(), query
            assert page.locator("main img").count() == 0
        screenshot(page, "memory-phone")


def test_forgetting_shows_what_would_go_and_gives_a_receipt(
    store: limpet.Store, browser: Browser, tmp_path: Path
) -> None:
    """Nothing goes by looking; then it does, for good, and the receipt says so."""
    memory = store.memory("acme/support")
    with inspected(store, write=True) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/memory?kind=memory&id=acme/support")
        page.get_by_text("Forget several").click()
        page.get_by_label("About", exact=True).fill("Ada")
        page.get_by_label("About", exact=True).press("Enter")
        page.wait_for_selector("text=What would be forgotten")
        axe(page)
        screenshot(page, "memory-forget")
        assert "2 memories" in page.locator("main").inner_text()
        assert len(memory.list(superseded=True)) == 67
        page.get_by_role("button", name="Forget for good").click()
        page.wait_for_selector("text=2 memories forgotten")
        axe(page)
        screenshot(page, "memory-forgotten")
        with page.expect_download() as download:
            page.get_by_role("link", name="Download the receipt").click()
        saved = tmp_path / "receipt.json"
        download.value.save_as(saved)
        receipt = json.loads(saved.read_text())
        assert len(receipt["ids"]) == 2
        assert receipt["journals"] == ["memory/acme/support"]
        assert len(memory.list(superseded=True)) == 65

        one = memory.list()[0]
        page.goto(f"{served.url}/memory?kind=memory&id=acme/support&memory={one.id}")
        page.get_by_role("link", name="Forget it").click()
        page.get_by_role("button", name="Forget for good").click()
        page.wait_for_selector("text=1 memory forgotten")
        served.expected.append("status of 404")
        page.goto(f"{served.url}/memory?kind=memory&id=acme/support&memory={one.id}")
        assert "There is no memory" in page.locator("main").inner_text()


def test_a_new_memory_appears_by_itself(store: limpet.Store, browser: Browser) -> None:
    """The list follows the journal."""
    with inspected(store) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/memory?kind=memory&id=acme/support&of=news")
        page.wait_for_selector(".live")
        store.memory("acme/support").remember("The harbour has opened", kind="news")
        page.wait_for_selector("text=The harbour has opened")


@pytest.fixture
def visitor(path: Path) -> Iterator[httpx.Client]:
    """Somebody who was let in to a store that is open to be read only."""
    with (
        limpet.open(path, create=False, readonly=True) as store,
        inspected(store) as served,
        httpx.Client(base_url=served.url, follow_redirects=True) as client,
    ):
        client.get(served.link())
        yield client


def test_a_read_only_store_is_searched_too(visitor: httpx.Client) -> None:
    """Its index is the reader's own."""
    assert "Ada prefers letters" in visitor.get("/memory?id=acme/support&q=ada").text
    assert "take long" in visitor.get("/search?q=orders").text
    preview = visitor.get("/memory/forget?id=acme/support&subject=Ada")
    assert "limpet memory forget" in preview.text
    assert "Forget for good" not in preview.text
    assert visitor.get("/memory/forget?id=acme/support").status_code == 400
    assert visitor.post("/memory/forget", data={"id": "acme/support"}).status_code == 403
    assert visitor.get("/memory?id=nobody").status_code == 404


def test_a_model_is_loaded_only_by_asking_for_it(
    path: Path, visitor: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes 200 MB and a moment; a page says by what it has searched."""
    with limpet.open(path) as store:
        store.memory("acme/support", embed=_Embedding()).embed()
    loaded: list[_Embedding] = []

    def load() -> _Embedding:
        loaded.append(_Embedding())
        return loaded[-1]

    monkeypatch.setattr(LocalModel, "shared", load)
    page = visitor.get("/memory?id=acme/support&q=ada").text
    assert "not by meaning, though there are vectors" in page
    assert "meaning=1" in page
    assert loaded == []
    page = visitor.get("/memory?id=acme/support&q=ada&meaning=1").text
    assert loaded
    assert f"by meaning, as {LocalModel.model}" in page
    assert "meaning 0" in page or "meaning 1" in page


class _Embedding:
    """Stands for the local model."""

    model = LocalModel.model

    def __call__(self, texts: list[str]) -> list[list[float]]:
        return [[1.0, len(text) % 7, len(text) % 3] for text in texts]


def test_a_page_of_memories_costs_what_is_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: the index reads as many rows for a page of many as of few."""
    with limpet.open(tmp_path / "agents.db") as store:
        memory = store.memory("many")
        for start in range(0, 3_000, 500):
            memory.remember_all([f"Number {n}" for n in range(start, start + 500)])
        scope = store.scope.as_sync()
        before: int | None = None
        seen: list[str] = []
        while True:
            page = run_to_end(memories_page(scope, "many", before=before, limit=500))
            seen += [one.memory.text for one in page.memories]
            before = page.older
            if before is None:
                break
        assert seen == [f"Number {n}" for n in range(2_999, -1, -1)]
