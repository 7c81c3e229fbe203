"""Pages of any journal, of states, of versions and their differences, and the file of a journal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

import limpet
from limpet.backends.contract import Append
from limpet.core.ids import make_key
from limpet.inspector.pages.export import disposition
from limpet.transfer import export as exporting
from tests.support.browser import axe, inspected, page_of, screenshot, wide

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

MARKUP = '<img src=x onerror="alert(1)">{{7*7}}'
HOSTILE = f"{MARKUP}\x1b[31m\u202e\x00</summary></details>"


@pytest.fixture(params=["{}/agents.db", "file:{}/state"], ids=["sqlite", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[limpet.Store]:
    """A store with one of each that has versions, in two sorts of place."""
    with limpet.open(request.param.format(tmp_path)) as opened:
        fill(opened)
        yield opened


def fill(store: limpet.Store) -> None:
    """A long conversation with a large message, a state that was saved often, and a task."""
    chat = store.conversation("alice")
    for number in range(60):
        chat.append(
            {"role": "user", "content": f"Question {number}"},
            {"role": "assistant", "content": f"Answer {number}"},
        )
    chat.append({"role": "user", "content": "x" * 1_000_000})
    state = store.state("team")
    for number in range(60):
        members = {f"m{n}": {"notes": ["calm"] * n, "text": "word " * n} for n in range(20)}
        state.save({"turn": number, "members": members, "list": list(range(number))})
    with store.task("report", "Summarise", agent="a1") as task:
        task.plan(["write", "send"])
        task.step("write", lambda: "first\nsecond\nthird")
        task.versions.rewind(to=2)
        task.step("write", lambda: "first\nother\nthird")
    store.journal("note", MARKUP).append((MARKUP, {HOSTILE: [HOSTILE, {"deep": HOSTILE * 50}]}))


def keys(page: Page, *pressed: str) -> None:
    """Press keys, one after the other."""
    for key in pressed:
        page.keyboard.press(key)


def test_a_journal_is_gone_through_entry_by_entry(store: limpet.Store, browser: Browser) -> None:
    """By links and keys, filtered, and each entry has a link of its own."""
    with inspected(store) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/journal?kind=conversation&id=alice")
        rows = page.locator("tr[data-row]")
        assert rows.count() == 50
        assert rows.first.inner_text().split()[0] == "121"
        assert "more characters" in rows.first.inner_text()
        axe(page)
        screenshot(page, "journal")
        with page.expect_navigation():
            keys(page, "o")
        assert rows.first.inner_text().split()[0] == "71"
        keys(page, "j", "j")
        with page.expect_navigation():
            keys(page, "Enter")
        assert "Entry 70" in page.locator("main h2").inner_text()
        assert page.get_by_text("assistant: Answer 34").count() == 1
        axe(page)
        with page.expect_navigation():
            keys(page, "o")
        assert "Entry 69" in page.locator("main h2").inner_text()
        page.get_by_role("link", name="In the list").click()
        assert rows.first.inner_text().split()[0] == "69"
        page.wait_for_load_state()  # or its script is not there yet, which knows the key
        keys(page, "/")
        page.keyboard.type("answer 7")
        with page.expect_navigation():
            keys(page, "Enter")
        assert [text.split()[0] for text in rows.all_inner_texts()] == ["16"]
        assert "1 entry fits of the 121 that were looked at" in page.locator("main").inner_text()
        page.get_by_role("link", name="All entries").click()
        page.locator("tr[data-row] a").first.click()
        page.get_by_role("link", name="more characters").last.click()
        assert len(page.locator("pre.text").inner_text()) == 1_000_000
        assert not wide(page)


def test_new_entries_come_by_themselves(store: limpet.Store, browser: Browser) -> None:
    """While somebody looks at the list, or at a state."""
    with inspected(store) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/journal?kind=conversation&id=alice")
        page.locator(".live").wait_for()
        store.conversation("alice").append({"role": "user", "content": "Just now"})
        page.get_by_text("user: Just now").wait_for()
        page.goto(f"{served.url}/state?kind=state&id=team")
        page.locator(".live").wait_for()
        store.state("team").save({"turn": "the newest"})
        page.get_by_text("the newest", exact=True).wait_for()


def test_a_state_is_forked_as_it_is_or_was(store: limpet.Store, browser: Browser) -> None:
    """What the new one would begin with is looked at first; the page is that of chats, too."""
    with (
        inspected(store, write=True) as served,
        page_of(browser, served, javascript=False) as page,
    ):
        page.goto(f"{served.url}/state?kind=state&id=team")
        page.get_by_role("link", name="Fork…").click()
        assert "Fork after save 60, the newest" in page.locator("main").inner_text()
        page.goto(f"{served.url}/state?kind=state&id=team&at=12")
        page.get_by_role("link", name="Fork…").click()
        assert page.locator(".tree > ul > li").first.inner_text() == "turn 11"
        page.get_by_role("link", name="As JSON").click()
        assert '"turn": 11' in page.locator("pre.text").inner_text()
        assert "Fork after save 12" in page.locator("h1").inner_text()
        assert not wide(page)
        page.locator("[name=new]").fill("twin")
        page.get_by_role("button", name="Fork").click()
        assert "twin begins with team up to save 12." in page.locator("body").inner_text()
        assert page.locator(".tabs [aria-current]").inner_text() == "State"
        served.expected.append("status of 404")
        page.goto(f"{served.url}/fork?kind=task&id=report")
        assert "a task on its own page" in page.locator("main").inner_text()
    assert store.state("twin").load() == store.state("team").at(12)
    with inspected(store) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/state?kind=state&id=team")
        assert page.get_by_role("link", name="Fork").count() == 0
        page.goto(f"{served.url}/fork?kind=state&id=team&at=3")
        assert "limpet inspect --write" in page.locator("main").inner_text()
        axe(page)
        assert page.get_by_role("button", name="Fork").count() == 0


def test_a_state_is_shown_folded_and_as_it_was(store: limpet.Store, browser: Browser) -> None:
    """What is folded opens, what is cut has a link, every version has a page."""
    with inspected(store) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/state?kind=state&id=team")
        assert page.locator("svg.bars rect").count() == 50
        axe(page)
        screenshot(page, "state")
        member = page.locator("summary", has_text="m12")
        member.click()
        assert page.locator("details", has_text="m12").last.locator("li").count() >= 2
        page.get_by_role("link", name="As JSON", exact=True).click()
        assert json.loads(page.locator("pre.text").first.inner_text())["turn"] == 59
        page.goto(f"{served.url}/state?kind=state&id=team&path=/members/m3")
        assert page.locator(".tree").inner_text().split()[:3] == ["notes", "3", "items"]
        page.goto(f"{served.url}/state?kind=state&id=team&at=12")
        main = page.locator("main")
        assert "after save 12 of 60" in main.inner_text()
        assert "turn 11" in " ".join(main.inner_text().split())
        axe(page)
        page.get_by_role("link", name="Older").click()
        assert "after save 11 of 60" in main.inner_text()
        page.get_by_role("link", name="What it changed").click()
        assert page.locator(".changes li").count() == 2
        page.go_back()
        page.get_by_role("link", name="What changed since").click()
        assert page.locator(".changes .path").first.inner_text().endswith("turn")


def test_any_two_versions_are_compared_by_a_click(store: limpet.Store, browser: Browser) -> None:
    """Of a state, a task and a conversation; nobody else shows that of any two."""
    with inspected(store) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/versions?kind=state&id=team")
        assert page.locator("tr[data-row]").count() == 50
        axe(page)
        screenshot(page, "versions")
        page.locator("input[name=a][value='40']").check()
        page.get_by_role("button", name="Compare the two").click()
        assert page.locator(".changes li").count() == 21
        assert page.locator("main h2").first.inner_text() == "From 40 to 60"
        axe(page)
        screenshot(page, "diff")
        page.get_by_role("link", name="The other way round").click()
        assert page.locator(".changes .gone").count() == 21
        form = page.locator("form.compare")
        form.locator("input[name=a]").fill("3")
        form.locator("input[name=b]").fill("3")
        form.get_by_role("button").click()
        page.get_by_text("Nothing differs.").wait_for()
        page.goto(f"{served.url}/diff?kind=task&id=report&a=3&b=5")
        lines = page.locator("pre.text").inner_text().splitlines()
        assert "- second" in lines
        assert "+ other" in lines
        page.locator(".changes .path a").first.click()
        assert page.locator("pre.text").count() == 3
        page.goto(f"{served.url}/diff?kind=conversation&id=alice")
        page.get_by_role("link", name="more characters").click()
        assert len(page.locator(".changes .new .said").inner_text()) > 1_000_000
        assert not wide(page)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_pages_are_of_use_on_a_phone(
    store: limpet.Store, browser: Browser, *, dark: bool
) -> None:
    """And without JavaScript; of a journal whose every text is hostile, too."""
    with (
        inspected(store) as served,
        page_of(browser, served, dark=dark, width=360, javascript=dark) as page,
    ):
        for path in (
            "/journal?kind=conversation&id=alice",
            "/journal?kind=conversation&id=alice&seq=121",
            "/state?kind=state&id=team",
            "/versions?kind=task&id=report",
            "/diff?kind=state&id=team&a=1&b=60",
        ):
            page.goto(f"{served.url}{path}")
            assert not wide(page), path
            if dark:
                axe(page)
        for query in ({}, {"seq": 1}, {"seq": 1, "raw": 1}):
            about = urlencode({"kind": "note", "id": MARKUP, **query})
            page.goto(f"{served.url}/journal?{about}")
            assert page.locator("img").count() == 0
            assert "onerror" in page.locator("main").inner_text()
            assert not wide(page)
            screenshot(page, f"hostile entry {query} {dark}")


def test_what_is_not_there_is_a_page_that_says_so(store: limpet.Store, browser: Browser) -> None:
    """A journal, an entry, a version, a place in a document."""
    with inspected(store) as served, page_of(browser, served) as page:
        served.expected += ["status of 404", "status of 400"]
        for path, status in (
            ("/journal?kind=conversation&id=nobody", 404),
            ("/journal?kind=conversation&id=alice&seq=999", 404),
            ("/journal?kind=conversation&id=alice&seq=x", 400),
            ("/state?kind=state&id=team&at=99", 404),
            ("/state?kind=state&id=team&path=/nowhere", 404),
            ("/versions?kind=note&id=x", 404),
            ("/diff?kind=task&id=report&a=1&b=99", 404),
            ("/diff?kind=state&id=team&a=1&b=2&change=99", 404),
        ):
            answer = page.goto(served.url + path)
            assert answer is not None
            assert answer.status == status, path
            assert page.locator("h1").count() == 1


def test_what_is_damaged_is_shown_in_its_place(tmp_path: Path, browser: Browser) -> None:
    """The others are there; the state says that it cannot be loaded, and has its earlier saves."""
    with limpet.open(tmp_path / "agents.db") as store:
        store.state("s").save({"a": 1})
        key = make_key(store.tenant, "state", "s")
        store.backend.append(Append(key=key, body=b"\xffrubbish", count=1))
        with inspected(store) as served, page_of(browser, served) as page:
            for path in ("journal", "journal", "state", "versions"):
                page.goto(f"{served.url}/{path}?kind=state&id=s")
                assert page.locator("main").get_by_text("cannot be read").count() >= 1
            page.goto(f"{served.url}/journal?kind=state&id=s&seq=2")
            assert page.locator("main").get_by_text("cannot be read").count() >= 1
            page.goto(f"{served.url}/state?kind=state&id=s&at=1")
            assert "a 1" in " ".join(page.locator("main").inner_text().split())


def test_a_journal_is_taken_home_as_a_file(
    store: limpet.Store, browser: Browser, tmp_path: Path
) -> None:
    """From every page's header; what limpet export writes, which import takes."""
    with inspected(store) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/state?kind=state&id=team")
        with page.expect_download() as download:
            page.get_by_role("link", name="Export as JSON").click()
        assert download.value.suggested_filename == "state-team.json"
        found = json.loads(download.value.path().read_bytes())
        assert (found["limpet"], found["id"], len(found["records"])) == ("state", "team", 60)
        page.goto(f"{served.url}/journal?kind=conversation&id=alice")
        with page.expect_download() as download:
            page.get_by_role("link", name="Export as JSON").click()
        exported: Any = json.loads(download.value.path().read_bytes())
    head = store.backend.head(make_key(store.tenant, "conversation", "alice"))
    assert head is not None
    assert exported == exporting.document(store, [head])
    with limpet.open(tmp_path / "other.db") as other:
        exporting.put(other, exported)
        assert other.conversation("alice").length() == 121


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ('a"b;c.json', "attachment; filename=\"a_b_c.json\"; filename*=UTF-8''a_b%3Bc.json"),
        ("../x\r\ny.json", "attachment; filename=\".._x__y.json\"; filename*=UTF-8''.._x__y.json"),
        ("\u202egnp.json", "attachment; filename=\"_gnp.json\"; filename*=UTF-8''_gnp.json"),
        (f"{'x' * 500}.json", f"attachment; filename=\"{'x' * 100}.json\"; filename*=UTF-8''"),
    ],
    ids=["quotes", "paths and lines", "direction", "length"],
)
def test_a_files_name_has_nothing_that_is_not_a_name(name: str, header: str) -> None:
    """An id is other people's text."""
    assert disposition(name).startswith(header)
