"""The doctor's page: what is so of the place at once, every record when somebody asks for it."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.backends.contract import Append, Key
from limpet.inspector import checker as checkers
from limpet.views.doctor import Report, check_journals, diagnosis
from tests.models.test_damage import seal
from tests.support.browser import axe, inspected, page_of, screenshot, wide
from tests.support.processes import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

MESSAGE = {"role": "user", "content": "hello"}


@pytest.fixture(params=["{}/agents.db", "file:{}/state"], ids=["sqlite", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[limpet.Store]:
    """One with a conversation of each of two tenants."""
    with limpet.open(request.param.format(tmp_path)) as opened:
        opened.conversation("alice").append(MESSAGE)
        opened.as_tenant("acme").conversation("their-secret").append(MESSAGE)
        yield opened


def main(page: Page) -> str:
    """What the page says."""
    return page.locator("main").inner_text()


def damage(store: limpet.Store, id_: str = "ill<b>") -> None:
    """A task with an entry that is none."""
    store.backend.append(Append(key=Key(store.tenant, "task", id_), body=seal(b"5"), count=1))


def test_the_place_is_shown_and_every_record_read_by_a_click(
    store: limpet.Store, browser: Browser
) -> None:
    """Each damaged record with a link to it, and what to do."""
    with inspected(store, place=True) as served, page_of(browser, served) as page:
        page.get_by_role("link", name="Doctor").click()
        page.wait_for_selector("text=durability")
        assert "Nothing is known to be wrong." in main(page)
        assert "They have not been read" in main(page)
        axe(page)
        page.get_by_role("link", name="Read every record").click()
        page.wait_for_selector("text=All is well.")
        assert "1 journal, 1 record, 1 entry" in main(page)
        damage(store)
        page.reload()  # which does not read it all again
        assert "1 journal, 1 record, 1 entry" in main(page)
        page.get_by_role("link", name="Read them again").click()
        page.wait_for_selector("text=What cannot be read")
        page.get_by_role("link", name="Read them again").wait_for()
        assert "checks found a problem" in main(page)
        assert "limpet salvage FROM NEW" in main(page)
        assert main(page).count("durability") == 1
        axe(page)
        assert not wide(page)
        screenshot(page, "doctor")
        page.get_by_role("link", name="task/ill<b>").click()
        page.wait_for_url("**/journal?**seq=1**")


def test_it_is_of_use_on_a_phone_and_without_scripts(browser: Browser, tmp_path: Path) -> None:
    """In the dark, with the shortest of windows."""
    with limpet.open(tmp_path / f"{'long' * 40}.db") as store:
        damage(store, "x" * 300)
        with (
            inspected(store, place=True) as served,
            page_of(browser, served, dark=True, width=360, javascript=False) as page,
        ):
            page.goto(f"{served.url}/doctor?check=1")
            assert until(lambda: page.reload() is not None and "checks found" in main(page))
            assert not wide(page)
            screenshot(page, "doctor on a phone")


def test_a_tenant_learns_nothing_of_the_others(store: limpet.Store, browser: Browser) -> None:
    """The place holds all of them: an app shows it only where that was asked for."""
    theirs = store.as_tenant("acme")
    damage(theirs, "their-damage")
    with inspected(store) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/doctor?check=1")
        page.wait_for_selector("text=All is well.")
        html = page.content()
        for secret in ("acme", "their-secret", "their-damage", "durability"):
            assert secret not in html


def test_a_check_is_begun_once_and_ends_when_nobody_looks(
    store: limpet.Store, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is loaded again does not begin it again, and no thread reads on for ever."""
    monkeypatch.setattr(checkers, "LINGER", 0.0)
    monkeypatch.setattr(checkers, "TELL", 0.05)
    going, begun = threading.Event(), []
    heads = store.backend.heads

    def slow(*args: Any, **options: Any) -> Any:
        begun.append(args)
        for head in heads(*args, **options):
            going.wait(60)
            yield head

    monkeypatch.setattr(store.backend, "heads", slow)
    with inspected(store) as served:
        with page_of(browser, served) as page:
            page.goto(f"{served.url}/doctor?check=1")
            page.locator(".live").wait_for()
            assert "They are being read" in main(page)
            page.reload()
            assert len(begun) == 1
            page.goto(f"{served.url}/doctor?check=2")  # one at a time
            assert "They are being read" in main(page)
        checker = served.inspector._parts.shared["checker"]
        assert until(lambda: not checker.topic.followers)
        assert until(checker.records._unwanted.is_set)
        going.set()
        assert until(lambda: not checker._reading or checker._reading.done())
        assert checker.records.stopped
        assert (checker.count, len(begun)) == (1, 1)


def test_what_is_read_at_once_is_bounded_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five hundred records of a megabyte would be half a gigabyte."""
    with limpet.open(tmp_path / "agents.db") as store:
        for _ in range(40):
            store.journal("blob", "b").append(("x", random.randbytes(750_000)))
        read, most = store.backend.read, list[int]()

        def counting(*args: Any, **options: Any) -> Any:
            most.append(options["limit"])
            return read(*args, **options)

        monkeypatch.setattr(store.backend, "read", counting)
        report = Report("s", store.tenant)
        check_journals(store, report)
        assert report.records == 40
        assert 1 < max(most) < 40


def test_a_diagnosis_of_a_part_promises_nothing_of_the_rest() -> None:
    """That all is well can be said only when all was looked at."""
    report = Report("s", "default")
    assert diagnosis(report).verdict == "All is well."
    assert diagnosis(report, complete=False).verdict == "Nothing is known to be wrong."
    assert [one.name for one in diagnosis(report, complete=False).findings] == []
