"""Calls in doubt on the pages: every kind is listed, and a person's answer is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import limpet
from limpet.core.runtime import run_to_end
from limpet.views import survey as surveys
from limpet.views.doubts import doubts_page
from limpet.views.survey import Survey, look_further
from tests.support.browser import axe, inspected, page_of, screenshot, wide
from tests.support.doubtful import leave_in_doubt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser


@pytest.fixture
def store(tmp_path: Path) -> Iterator[limpet.Store]:
    """One with two calls of a conversation that were cut off, and one of a kind of the user's."""
    with limpet.open(tmp_path / "agents.db") as opened:
        opened.conversation("alice").append({"role": "user", "content": "Pay"})
        leave_in_doubt(opened, "conversation", "alice", "pay", "send")
        leave_in_doubt(opened, "order", "o-1", "ship")
        yield opened


def test_a_person_resolves_a_call_by_a_click(store: limpet.Store, browser: Browser) -> None:
    """What no other page of this field offers."""
    with inspected(store, write=True) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/doubts")
        assert page.locator(".card.doubt").count() == 3
        axe(page)
        screenshot(page, "doubts")
        card = page.locator(".card.doubt", has_text="pay (c1)")
        card.get_by_text("Say what became of it").click()
        card.locator("textarea").fill('{"paid": true}')
        card.get_by_role("button", name="It has happened").click()
        assert "It has happened" in page.locator(".notice").inner_text()
        assert [(one.id, one.call.id) for one in store.in_doubt()] == [
            ("alice", "c2"),
            ("o-1", "c1"),
        ]
        resolved = store.journal("conversation", "alice").read()[-1]
        assert resolved.body == {
            "id": "c1",
            "how": "done",
            "result": {"paid": True},
            "by": "tester",
        }


def test_an_answer_that_cannot_be_is_refused(store: limpet.Store, browser: Browser) -> None:
    """Nothing is recorded, and the page says why."""
    with inspected(store, write=True) as served, page_of(browser, served) as page:
        served.expected.append("status of 400")
        for text, answer, reason in (
            ("paid", "It has happened", "not JSON"),
            ("1", "Make it again", "for a call that has happened"),
        ):
            page.goto(f"{served.url}/doubts")
            card = page.locator(".card.doubt", has_text="ship")
            card.get_by_text("Say what became of it").click()
            card.locator("textarea").fill(text)
            with page.expect_response(lambda response: response.status == 400):
                card.get_by_role("button", name=answer).click()
            assert reason in page.locator("main").inner_text()
        assert len(store.in_doubt()) == 3


def test_who_may_only_read_is_offered_no_answer(store: limpet.Store, browser: Browser) -> None:
    """The page is the same, without the form."""
    with inspected(store) as served, page_of(browser, served, dark=True, width=360) as page:
        page.goto(f"{served.url}/doubts")
        assert page.locator(".card.doubt").count() == 3
        assert page.locator("main form").count() == 0
        assert not wide(page)
        axe(page)


def test_a_page_has_the_next_of_what_the_survey_has_found(store: limpet.Store) -> None:
    """Those that were resolved since are left out, and nothing is skipped for it."""
    scope = store.scope.as_sync()
    survey = Survey()
    kinds = ["conversation", "order"]
    assert run_to_end(look_further(scope, survey, kinds, None, 100))[0] is None
    first = run_to_end(doubts_page(scope, survey, limit=1))
    assert [one.kind for one in first.doubts] == ["order"]
    store.resolve("o-1", "c1", "skip", kind="order")
    second = run_to_end(doubts_page(scope, survey, before=first.older, limit=1))
    assert [one.call.id for one in second.doubts] == ["c1", "c2"]
    assert second.older is None
    assert run_to_end(doubts_page(scope, survey, limit=1)).doubts == []
    with pytest.raises(ValueError, match="begin again"):
        run_to_end(doubts_page(scope, survey, before="yesterday"))


def test_what_is_not_remembered_is_said(
    store: limpet.Store, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The survey remembers the newest ones, and counts all."""
    monkeypatch.setattr(surveys, "SOME", 1)
    with inspected(store) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/doubts")
        assert page.locator(".card.doubt").count() == 1
        assert "1 journal more" in page.locator("main").inner_text()
