"""The pages of chats: who said what, what a model would be sent, and forks."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import limpet
from limpet import inspector
from limpet.core.calls import BEGAN, Call
from limpet.core.meta import Meta
from limpet.integrations import autogen
from tests.integrations.autogen.test_autogen_calls import left_in_doubt
from tests.support import chats
from tests.support.browser import axe, inspected, page_of, screenshot, wide
from tests.support.doubtful import leave_in_doubt
from tests.support.filled import counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>{{7*7}}"
HOSTILE = f'{MARKUP}\x1b[31m\u202e\u200b\x00</summary></details></article>"\'&amp;javascript:alert(3)'


@pytest.fixture
def store(tmp_path: Path) -> Iterator[limpet.Store]:
    """An empty one."""
    with limpet.open(tmp_path / "agents.db") as opened:
        yield opened


@pytest.fixture
def full(store: limpet.Store) -> limpet.Store:
    """One chat of each kind; ask for it before the browser, which has an event loop."""
    chats.a_conversation(store)
    chats.a_session(store)
    chats.a_thread(store)
    chats.a_state(store, "single", "helper")
    chats.a_state(store, "round robin", "writers")
    return store


def main(page: Page) -> str:
    """What the page says."""
    return page.locator("main").inner_text()


def notice(page: Page) -> str:
    """What it says of the last action."""
    return page.locator(".notice").inner_text()


def numbers(page: Page) -> list[int]:
    """The messages on it, in their order."""
    found = page.locator(".chat > .message[id^=m]").evaluate_all("all => all.map(one => one.id)")
    return [int(id_[1:]) for id_ in found]


#: Every kind of chat, and what is on its page.
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "conversation": (
        "kind=conversation&id=alice",
        (
            *("12 messages", "pinned", "repaired", "taken back", "image: image/png, 3.0 KB"),
            *("find_order", "A summary stands in windows", "no result"),
        ),
    ),
    "session": (
        "kind=conversation&id=session-1",
        ("Where is order 7?", "find_order", "order 7 is on a ship", "no result yet"),
    ),
    "run": (
        "kind=agents-run&id=refund-7",
        ("desk", "waits for a yes or no", "Waits for a yes or no", "s2"),
    ),
    "thread": (
        "kind=thread&id=thread-1",
        (
            *("clerk", "gpt-5-mini", "21 → 9 tokens", "failed", "no such order"),
            *("Asks, and waits for an answer", "Shall I ask the carrier?"),
        ),
    ),
    "agent": ("kind=state&id=helper", ("helper", "look")),
    "team": (
        "kind=state&id=writers",
        ("What was said", "What anna knows", "n3 found", "8 tokens", "cleo"),
    ),
}


@pytest.mark.parametrize(
    ("dark", "width", "javascript"),
    [(False, 1280, True), (True, 360, True), (False, 360, False)],
    ids=["wide and light", "phone and dark", "without scripts"],
)
def test_every_kind_of_chat_is_read_as_who_said_what(
    full: limpet.Store, browser: Browser, *, dark: bool, width: int, javascript: bool
) -> None:
    """As the frameworks themselves have stored them."""
    with (
        inspected(full, write=True) as served,
        page_of(browser, served, dark=dark, width=width, javascript=javascript) as page,
    ):
        for name, (query, parts) in KINDS.items():
            page.goto(f"{served.url}/chat?{query}")
            text = main(page)
            for part in parts:
                assert part in text, (name, part)
            assert page.locator(".tabs [aria-current]").inner_text() == "Chat"
            assert not wide(page), name
            screenshot(page, f"chat {name} {width} {'dark' if dark else 'light'}")
            if javascript:
                axe(page)
