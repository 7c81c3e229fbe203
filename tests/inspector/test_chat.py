"""The pages of chats: who said what, what a model would be sent, and forks."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx
import pytest

import limpet
from limpet import inspector
from limpet.backends.contract import Append
from limpet.core.ids import make_key
from limpet.llm import tokens
from tests.support import chats
from tests.support.browser import axe, inspected, page_of, screenshot, wide
from tests.support.doubtful import leave_in_doubt
from tests.support.filled import counted

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>{{7*7}}"
ENDS = "</summary></details></article>\"'&amp;"
HOSTILE = f"{MARKUP}\x1b[31m\u202e\u200b\x00{ENDS}javascript:alert(3)"


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
        ("desk", "waits for a yes or no", '"number": "7"', "s2"),
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


# -- a page of messages ----------------------------------------------------------------------------


def test_a_call_is_folded_with_its_arguments_and_what_came_of_it(
    full: limpet.Store, browser: Browser
) -> None:
    """What failed, and what nobody knows, is seen while it is folded."""
    with inspected(full) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/chat?kind=conversation&id=alice")
        call = page.locator("details.call", has_text="find_order")
        assert "Arguments" not in call.inner_text()
        call.locator("summary").click()
        text = " ".join(call.inner_text().split())
        assert 'c1 Arguments { "number": 7 }' in text
        assert '{"status": "sent", "by": "ship"}' in text
        refund = page.locator("details.call", has_text="refund")
        assert refund.locator(".badge.warn").inner_text() == "no result"
        assert page.locator("article.past").inner_text().splitlines()[-1] == "Nobody can say that."
        page.goto(f"{served.url}/chat?kind=thread&id=thread-1")
        failed = page.locator("details.call")
        assert failed.locator(".badge.bad").first.inner_text() == "failed"
        failed.locator("summary").click()
        axe(page)
        screenshot(page, "chat thread unfolded")


def test_a_conversation_is_read_with_the_keyboard(store: limpet.Store, browser: Browser) -> None:
    """Messages and calls are rows; older ones, the filter, and each message by its link."""
    for number in range(60):
        tool = chats.tool(f"c{number}", "look", json.dumps({"n": number}))
        store.conversation("long").append(
            {"role": "user", "content": f"Question {number}"},
            {"role": "assistant", "content": None, "tool_calls": [tool]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"Found {number}"},
        )
    with inspected(store) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/chat?kind=conversation&id=long")
        first = numbers(page)
        assert (len(first), first[-1]) == (33, 179)
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("Enter")  # a call: it unfolds
        assert page.locator("details.call[open]").count() == 1
        page.keyboard.press("k")
        page.keyboard.press("Enter")  # a message: its page
        page.wait_for_url("**message=**")
        assert page.locator("article.message").count() == 1
        page.go_back()
        with page.expect_navigation():
            page.keyboard.press("o")
        second = numbers(page)
        assert first[0] - second[-1] in (1, 2)  # no more than a result between them
        with page.expect_navigation():  # and what makes keys work is loaded
            page.get_by_role("link", name="Newest").first.click()
        assert numbers(page) == first
        page.keyboard.press("/")
        page.keyboard.type("found 7")
        with page.expect_navigation():
            page.keyboard.press("Enter")
        assert numbers(page) == [23]
        assert "1 message has these words, of the" in main(page)
        page.get_by_role("link", name="All messages").click()
        assert numbers(page) == first
        page.get_by_role("link", name="entry 179").click()
        assert "Entry 179" in main(page)


def test_a_message_has_a_page_with_all_of_it(store: limpet.Store, browser: Browser) -> None:
    """However long it is; a result is on that of its call."""
    chat = store.conversation("long")
    tool = chats.tool("c1", "look", json.dumps({"text": "y" * 9_000}))
    chat.append({"role": "user", "content": "x" * 1_000_000})
    chat.append({"role": "assistant", "content": None, "tool_calls": [tool]})
    chat.append({"role": "tool", "tool_call_id": "c1", "content": "z" * 9_000})
    with inspected(store) as served, page_of(browser, served, width=360) as page:
        page.goto(f"{served.url}/chat?kind=conversation&id=long")
        assert len(page.content()) < 20_000
        assert not wide(page)
        page.get_by_role("link", name="996,000 more characters").click()
        assert len(page.locator(".message .said").inner_text()) == 1_000_000
        assert not wide(page)
        page.goto(f"{served.url}/chat?kind=conversation&id=long&message=3")
        pre = page.locator("details.call pre").all_inner_texts()
        assert [len(text) for text in pre] == [9_016, 9_000]
        page.get_by_role("link", name="Among the others").click()
        assert numbers(page) == [1, 2]
        served.expected.append("status of 404")
        page.goto(f"{served.url}/chat?kind=conversation&id=long&message=4")
        assert "no message 4" in main(page)


def test_a_chat_comes_by_itself_and_what_is_unfolded_stays(
    store: limpet.Store, browser: Browser
) -> None:
    """A reply that is just being made is there, too; and whoever reads the end stays there."""
    chat, journal = store.conversation("live"), store.journal("conversation", "live")
    chat.append(*({"role": "user", "content": f"Question {n}"} for n in range(30)))
    tool = chats.tool("c1", "look", "{}")
    chat.append({"role": "assistant", "content": None, "tool_calls": [tool]})
    with inspected(store) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/chat?kind=conversation&id=live")
        page.locator("[data-follow].live").wait_for()
        assert "no result yet" in main(page)
        page.locator("details.call summary").click()
        chat.append({"role": "tool", "tool_call_id": "c1", "content": "It is there."})
        page.get_by_text("← It is there.").wait_for()
        assert "It is there." in page.locator("details.call[open] pre").last.inner_text()
        page.locator("[name=text]").fill("half a w")
        page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        journal.append(("piece", {"text": "I see", "more": False}))
        page.locator("#writing", has_text="I see").wait_for()
        assert page.locator("details.call[open]").count() == 1
        assert page.locator("[name=text]").input_value() == "half a w"
        chat.append({"role": "assistant", "content": "I see it." + "\n" * 60})
        page.locator("#m34", has_text="I see it.").wait_for()
        assert page.locator("#writing").count() == 0
        page.wait_for_function(
            "innerHeight + scrollY >= document.documentElement.scrollHeight - 40"
        )


def test_a_team_is_read_from_each_side_and_as_it_was(full: limpet.Store, browser: Browser) -> None:
    """What each agent knows; earlier saves and checkpoints; and home leads to the chat."""
    with inspected(full) as served, page_of(browser, served) as page:
        page.locator("#all a.name", has_text="writers").click()
        page.wait_for_url("**/chat?**")
        page.get_by_role("link", name="What anna knows").click()
        assert "of=context%3Aanna" in page.url
        assert page.locator(".chips [aria-current]").inner_text() == "What anna knows 5"
        assert len(numbers(page)) == 5
        page.get_by_role("link", name="Versions").click()
        page.locator("tr[data-row] a").nth(-2).click()
        page.get_by_role("link", name="As a chat").click()
        page.wait_for_url("**/chat?**at=**")
        assert "an old version" in main(page)
        assert len(numbers(page)) < 9
        page.get_by_role("link", name="Its document").click()
        page.wait_for_url("**/state?**at=**")
        page.goto(f"{served.url}/versions?kind=thread&id=thread-1")
        page.locator("tr[data-row] a").nth(-1).click()
        page.wait_for_url("**/chat?**at=**")
        assert numbers(page) == []
        page.get_by_role("link", name="The newest").click()
        assert numbers(page) == [1, 2, 4]
        served.expected += ["status of 404"]
        for path in ("kind=task&id=x", "kind=state&id=writers&of=dora", "kind=thread&id=gone"):
            answer = page.goto(f"{served.url}/chat?{path}")
            assert answer is not None
            assert answer.status == 404, path


def test_what_is_no_chat_has_no_such_page(store: limpet.Store, browser: Browser) -> None:
    """A state is a chat only where an agent or a team has saved it; damage is said in its place."""
    store.state("plain").save({"a": 1})
    journal = store.journal("conversation", "odd")
    journal.append(("message", 7), ("message", {"role": "user"}), ("later", {"of": "a release"}))
    store.state("broken", type="TeamState").save({"message_thread": [1, None, {}, "x"]})
    store.state("ill", type="TeamState").save({"message_thread": []})
    store.journal("thread", "ill").append(("checkpoint", {"id": "1"}))
    for kind in ("state", "thread"):
        key = make_key(store.tenant, kind, "ill")
        store.backend.append(Append(key=key, body=b"\xffrubbish", count=1))
    with inspected(store) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/state?kind=state&id=plain")
        assert page.locator(".tabs").get_by_text("Chat").count() == 0
        page.goto(f"{served.url}/chat?kind=conversation&id=odd")
        assert "1 entry cannot be read" in main(page)
        assert numbers(page) == [2]
        page.goto(f"{served.url}/chat?kind=state&id=broken")
        assert numbers(page) == [1, 2, 3, 4]
        for kind in ("state", "thread"):
            page.goto(f"{served.url}/chat?kind={kind}&id=ill")
            assert "cannot be read" in main(page)
            axe(page)
        served.expected.append("status of 404")
        page.goto(f"{served.url}/chat?kind=state&id=plain")
        assert "it is no chat" in main(page)


def test_messages_of_every_shape_look_alike(store: limpet.Store, browser: Browser) -> None:
    """Of Anthropic's API and of OpenAI's Responses: thoughts, calls, results, images, refusals."""
    image = {"type": "base64", "media_type": "image/png", "data": "A" * 4_000}
    store.conversation("anthropic").append(
        {"role": "user", "content": [{"type": "image", "source": image}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "A parcel, I think.", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "find_order", "input": {"number": 7}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": "no such order",
                    "is_error": True,
                }
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "It cannot be found."}]},
    )
    store.conversation("responses").append(
        {"role": "user", "content": [{"type": "input_file", "filename": "a.pdf", "file_id": "f1"}]},
        {
            "type": "reasoning",
            "id": "r1",
            "summary": [{"type": "summary_text", "text": "A parcel, I think."}],
        },
        {
            "type": "function_call",
            "call_id": "t1",
            "name": "find_order",
            "arguments": '{"number": 7}',
        },
        {"type": "function_call_output", "call_id": "t1", "output": "on a ship"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "refusal", "refusal": "I may not say it."}],
        },
    )
    with inspected(store) as served, page_of(browser, served) as page:
        for id_, parts in (
            ("anthropic", ("image: image/png, 3.0 KB", "failed", "It cannot be found.")),
            ("responses", ("file: a.pdf", "← on a ship", "refused", "I may not say it.")),
        ):
            page.goto(f"{served.url}/chat?kind=conversation&id={id_}")
            text = main(page)
            for part in (*parts, "thought: A parcel, I think.", "find_order(number=7)"):
                assert part in text, (id_, part)
            assert page.locator("details.call").count() == 1
            for folded in page.locator(".chat summary").all():
                folded.click()
            axe(page)
            screenshot(page, f"chat {id_}")
            page.goto(f"{served.url}/window?kind=conversation&id={id_}&model=gpt-5")
            assert "Nothing: all" in main(page)


# -- hostile texts ---------------------------------------------------------------------------------


def hostile_conversation(store: limpet.Store) -> None:
    """In every place where a framework, a model or a tool may put text."""
    chat = store.conversation(MARKUP, labels={"evil": MARKUP})
    deep = "[" * 50_000
    tools = [
        chats.tool(f"c{number} {MARKUP}", HOSTILE, arguments)
        for number, arguments in enumerate(
            (HOSTILE, json.dumps({HOSTILE: HOSTILE}), deep, '{"half": "\\ud800"}', "9" * 5_000)
        )
    ]
    chat.append(
        {"role": "system", "content": HOSTILE},
        {"role": "user", "name": HOSTILE, "content": "1 MB in a line " + "x" * 1_000_000},
        {"role": "user", "content": [{"type": "text", "text": HOSTILE}] * 200},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "javascript:alert(4)" + HOSTILE}},
                {"type": "file", "file": {"filename": HOSTILE, "file_data": chats.PNG}},
            ],
        },
        {"role": "assistant", "content": HOSTILE, "tool_calls": tools},
        *({"role": "tool", "tool_call_id": one["id"], "content": HOSTILE} for one in tools[1:]),
        {"role": "user", "content": "שלום \u202e evil \u2066 עולם"},
    )
    chat.compact(lambda messages: HOSTILE, keep_tokens=10)
    chat.append({"role": "user", "content": "And?"})


def hostile_team(store: limpet.Store) -> None:
    """A team whose agents have such names."""
    said = {"type": "TextMessage", "source": HOSTILE, "content": HOSTILE, "created_at": HOSTILE}
    thought = {"type": "ThoughtEvent", "source": HOSTILE, "content": HOSTILE}
    call = {"id": HOSTILE, "name": HOSTILE, "arguments": HOSTILE}
    asked = {"type": "ToolCallRequestEvent", "source": HOSTILE, "content": [call]}
    result = {"call_id": HOSTILE, "content": HOSTILE, "is_error": True}
    answered = {"type": "ToolCallExecutionEvent", "source": HOSTILE, "content": [result]}
    context = {"messages": [said, asked, answered]}
    agent = {"agent_state": {"llm_context": context}}
    thread = [said, thought, asked, answered, {"type": HOSTILE, "content": {HOSTILE: 1}}]
    store.state("evil team", type="TeamState").save(
        {
            "agent_states": {
                HOSTILE: agent,
                "RoundRobinGroupChatManager": {"message_thread": thread},
            },
            "limpet": {"run": {"done": False, "task": [said], "log": {HOSTILE: {}}}},
        }
    )


@pytest.mark.parametrize(("dark", "width", "javascript"), [(True, 360, True), (False, 1280, False)])
def test_nothing_but_text_is_made_of_what_was_said(
    store: limpet.Store, browser: Browser, *, dark: bool, width: int, javascript: bool
) -> None:
    """No markup, script, link, control character or turned text, wherever it stood."""
    hostile_conversation(store)
    hostile_team(store)
    with (
        inspected(store, write=True) as served,
        page_of(browser, served, dark=dark, width=width, javascript=javascript) as page,
    ):
        about = {"kind": "conversation", "id": MARKUP}
        team = {"kind": "state", "id": "evil team"}
        for number, (path, query) in enumerate(
            (
                ("chat", about),
                ("chat", about | {"message": "5"}),
                ("chat", about | {"text": "javascript:"}),
                ("fork", about | {"at": "5"}),
                ("window", about | {"model": HOSTILE}),
                ("window", about | {"max_tokens": "10"}),
                ("window", about | {"max_tokens": "4000000", "all": "1"}),
                ("chat", team),
                ("chat", team | {"of": f"context:{HOSTILE}"}),
            )
        ):
            answer = page.goto(str(httpx.URL(f"{served.url}/{path}", params=query)))
            assert answer is not None
            assert answer.status == 200, main(page)
            assert page.locator("main img, main script, main a[href^=javascript]").count() == 0
            assert "{{7*7}}" in main(page), query
            shown = page.locator("main").text_content() or ""
            assert not set(shown) & set("\x00\x1b\u202e\u200b\u2066\ud800"), query
            assert not wide(page), query
            assert page.locator(".message, .card, .lead").count(), query
            if javascript:
                for call in page.locator("details.call > summary:visible").all()[:2]:
                    call.click()
                axe(page)
            screenshot(page, f"chat hostile {number} {width}")


# -- the window ------------------------------------------------------------------------------------


def test_a_window_is_what_would_be_sent_and_why_the_rest_is_not(
    full: limpet.Store, browser: Browser
) -> None:
    """For a model and a budget of one's choice; looking at it changes nothing."""
    chat = full.conversation("alice")
    before = full.journal("conversation", "alice").read()
    with inspected(full) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/chat?kind=conversation&id=alice")
        page.get_by_role("link", name="Window", exact=True).click()
        assert "an estimate" in main(page)
        page.get_by_label("Model").fill("gpt-5")
        page.get_by_label("Tokens at most").fill("4000")
        page.get_by_label("Set aside for the reply").fill("500")
        page.get_by_role("button", name="Show the window").click()
        page.wait_for_url("**reserve=500**")
        window = chat.window(max_tokens=4_000, count="gpt-5", reserve=500)
        text = main(page)
        assert f"{len(window)} messages would be sent" in text
        for part in (
            *("counted exactly", "as o200k_base does", "of 4,000 tokens", "pinned", "repaired"),
            *("the summary of 5 messages", "put in, so that a model accepts the rest"),
            *("behind the summary", "the system's, at the beginning"),
        ):
            assert part in text, part
        roles = page.locator(".chat > [id^=s] > header strong").all_inner_texts()
        assert roles == [message["role"] for message in window]
        bar = page.locator("svg.budget").get_attribute("aria-label") or ""
        assert "goes to: set aside for the reply: 500 tokens; system: 13 tokens; user: " in bar
        axe(page)
        screenshot(page, "window")
        left = page.locator("section.left")
        left.locator("details > summary").first.click()
        assert "Where is my order 7?" in left.inner_text()
        left.get_by_role("link", name="In the chat").click()
        assert numbers(page)[-1] == 6
        page.go_back()
        page.get_by_label("Tokens at most").fill("20")
        page.get_by_role("button", name="Show the window").click()
        page.wait_for_url("**max_tokens=20**")
        assert "No window fits" in main(page)
        served.expected.append("status of 400")
        page.goto(f"{served.url}/window?kind=conversation&id=alice&max_tokens=many")
        assert "max_tokens is to be a number" in main(page)
    assert full.journal("conversation", "alice").read()[: len(before)] == before


def test_other_pages_are_answered_while_the_tokens_of_a_window_are_counted(
    full: limpet.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large budget that takes seconds, and somebody else is looking at a task."""
    counting, answered = threading.Event(), threading.Event()

    def count(text: str) -> int:
        counting.set()
        assert answered.wait(60)
        return len(text)

    monkeypatch.setattr(tokens, "estimate", tokens.Counter("slow", count, exact=False))
    with (
        inspected(full) as served,
        httpx.Client(follow_redirects=True, timeout=60) as client,
        ThreadPoolExecutor(1) as others,
    ):
        client.get(served.link())
        asked = others.submit(client.get, f"{served.url}/window?kind=conversation&id=alice")
        assert counting.wait(60)
        assert client.get(f"{served.url}/chat?kind=conversation&id=alice").status_code == 200
        answered.set()
        assert "would be sent" in asked.result().text


@pytest.mark.parametrize("javascript", [True, False])
def test_a_window_is_read_on_a_phone(
    store: limpet.Store, browser: Browser, *, javascript: bool
) -> None:
    """In the dark; of a long one the newest, and all of it at a click."""
    chat = store.conversation("long")
    chat.append(*({"role": "user", "content": f"Question {n} " + "why " * 20} for n in range(300)))
    with (
        inspected(store) as served,
        page_of(browser, served, dark=True, width=360, javascript=javascript) as page,
    ):
        page.goto(f"{served.url}/window?kind=conversation&id=long&max_messages=250")
        text = main(page)
        assert "250 messages would be sent" in text
        assert "older than what fits" in text
        assert page.locator(".chat > [id^=s]").count() == 100
        assert not wide(page)
        if javascript:
            axe(page)
            screenshot(page, "window on a phone")
        page.get_by_role("link", name="All 250, with nothing cut").click()
        assert page.locator(".chat > [id^=s]").count() == 250


# -- forks and answers -----------------------------------------------------------------------------


def test_a_conversation_is_forked_from_any_message(full: limpet.Store, browser: Browser) -> None:
    """What it would end with is looked at first, and what would be left without a result."""
    with inspected(full, write=True) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/chat?kind=conversation&id=alice")
        page.get_by_role("link", name="Fork after message 6").click()
        text = main(page)
        assert "Fork after message 6" in text
        assert "2 calls have no result up to there" in text
        assert numbers(page)[-1] == 6
        assert "Rotterdam" not in page.locator("#m6").inner_text()  # which was said later
        axe(page)
        assert not wide(page)
        screenshot(page, "chat fork")
        page.locator("input[name=at]:not([type=hidden])").fill("8")
        page.get_by_role("button", name="Look").click()
        page.wait_for_url("**at=8**")
        assert "no result up to there" not in main(page)
        page.locator("[name=new]").fill("session-1")
        served.expected.append("status of 409")
        with page.expect_response(lambda response: response.status == 409):
            page.get_by_role("button", name="Fork").click()
        assert "session-1" in main(page)
        page.go_back()
        page.locator("[name=new]").fill("alice again")
        page.get_by_role("button", name="Fork").click()
        page.wait_for_url("**id=alice+again**")
        assert notice(page) == "alice again begins with alice up to message 8."
        assert "A fork of alice, at 8" in main(page)
    messages = full.conversation("alice").messages()
    assert full.conversation("alice again").messages() == messages[:7]


def test_a_team_is_forked_and_a_thread_is_not(full: limpet.Store, browser: Browser) -> None:
    """As it is or as it was, by a form that needs no JavaScript; LangGraph forks its threads."""
    with (
        inspected(full, write=True) as served,
        page_of(browser, served, javascript=False) as page,
    ):
        page.goto(f"{served.url}/chat?kind=state&id=writers&at=8")
        page.get_by_role("link", name="Fork…").click()
        page.locator("[name=new]").fill("readers")
        page.get_by_role("button", name="Fork").click()
        assert notice(page) == "readers begins with writers up to save 8."
        assert page.locator(".tabs [aria-current]").inner_text() == "Chat"
        page.goto(f"{served.url}/chat?kind=thread&id=thread-1")
        assert page.get_by_role("link", name="Fork").count() == 0
        served.expected.append("status of 404")
        page.goto(f"{served.url}/fork?kind=thread&id=thread-1")
        assert "forked by the framework" in main(page)
    assert full.state("readers").load() == full.state("writers").at(8)


DOUBTFUL: dict[str, tuple[Callable[[limpet.Store], None], str, str]] = {
    "chat": (chats.doubtful_chat, "conversation", "chat"),
    "session": (chats.doubtful_run, "agents-run", "payment"),
    "team": (chats.doubtful_team, "state", "bank"),
    "thread": (chats.doubtful_thread, "thread", "payer"),
}


@pytest.fixture(params=DOUBTFUL)
def doubtful(request: pytest.FixtureRequest, store: limpet.Store) -> tuple[str, str]:
    """A chat of which nobody knows whether a call has happened, and where it is."""
    make, kind, id_ = DOUBTFUL[request.param]
    make(store)
    return kind, id_


def test_a_person_says_in_the_chat_what_became_of_a_call(
    doubtful: tuple[str, str], store: limpet.Store, browser: Browser
) -> None:
    """Of a chat, a run with a session, a team and a thread, where it stands; and is back there."""
    kind, id_ = doubtful
    (doubt,) = store.in_doubt()
    with inspected(store, write=True) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/chat?kind={kind}&id={id_}")
        card = page.locator(".card.doubt")
        assert "pay" in card.inner_text()
        axe(page)
        screenshot(page, f"chat in doubt {kind}")
        card.get_by_text("Say what became of it").click()
        card.locator("textarea").fill('"paid, says Ann"')
        card.get_by_role("button", name="It has happened").click()
        assert "It has happened" in notice(page)
        page.wait_for_url(f"**/chat?kind={kind}&id={id_}")
        assert page.locator(".card.doubt").count() == 0
    assert store.in_doubt() == []
    resolved = [e for e in store.journal(doubt.kind, id_).read() if e.type == "resolved"]
    assert [(entry.body["id"], entry.body["by"]) for entry in resolved] == [
        (doubt.call.id, "tester")
    ]


def test_a_doubt_of_a_node_comes_to_the_page_of_its_thread(
    full: limpet.Store, browser: Browser
) -> None:
    """By itself, though it is in another journal; and goes when somebody has said what it is."""
    with inspected(full) as served, page_of(browser, served) as page:
        page.goto(f"{served.url}/chat?kind=thread&id=thread-1")
        page.locator("[data-follow].live").wait_for()
        leave_in_doubt(full, "thread-effects", "thread-1", "pay")
        card = page.locator(".card.doubt")
        card.wait_for()
        assert "pay" in card.inner_text()
        full.resolve("thread-1", "c1", "skip", kind="thread-effects")
        card.wait_for(state="detached")


@pytest.mark.parametrize(
    ("answer", "fields", "decided"),
    [
        ("Approve", {}, {"approved": True, "by": "tester", "always": False, "message": None}),
        (
            "Reject",
            {"message": "Too much."},
            {"approved": False, "by": "tester", "always": False, "message": "Too much."},
        ),
    ],
)
def test_a_person_says_yes_or_no_to_a_call_that_a_run_waits_for(
    full: limpet.Store,
    browser: Browser,
    answer: str,
    fields: dict[str, str],
    decided: dict[str, object],
) -> None:
    """Home leads there; who said it is recorded, and the first answer stands."""
    with inspected(full, write=True) as served, page_of(browser, served) as page:
        page.locator("#needs a.name", has_text="refund-7").click()
        page.wait_for_url("**/chat?**")
        card = page.locator(".card.ask")
        card.get_by_text("Say yes or no").click()
        for name, text in fields.items():
            card.locator(f"[name={name}]").fill(text)
        axe(page)
        screenshot(page, "chat asks")
        card.get_by_role("button", name=answer).click()
        assert "It counts when the run is resumed" in notice(page)
        assert page.locator(".card.ask").count() == 0
        assert f"{'approved' if decided['approved'] else 'rejected'} by tester" in main(page)
    (entry,) = [e for e in full.journal("agents-run", "refund-7").read() if e.type == "decided"]
    assert entry.body == {"call_id": "s2", **decided}


def test_who_may_only_read_is_offered_no_change(full: limpet.Store, browser: Browser) -> None:
    """No form but the filter; and a fork can be looked at."""
    with inspected(full) as served, page_of(browser, served) as page:
        for query, _ in KINDS.values():
            page.goto(f"{served.url}/chat?{query}")
            assert page.locator("main form[method=post]").count() == 0
            assert page.get_by_role("link", name="Fork").count() == 0
        page.goto(f"{served.url}/fork?kind=conversation&id=alice&at=4")
        assert "read-only" in main(page)
        assert page.locator("main form[method=post]").count() == 0


# -- what a page costs -----------------------------------------------------------------------------


def costs(store: limpet.Store, path: str) -> tuple[str, Counter[str]]:
    """A page, and what it asked of the backend."""
    app = inspector.app(store, authorize=lambda _request: "tester")

    async def get() -> str:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return (await client.get(path)).raise_for_status().text

    return counted(store, lambda: asyncio.run(get()))


def test_the_first_page_and_the_next_cost_the_same_however_long_it_is() -> None:
    """In bytes and in what is read, for a hundred messages and for a hundred thousand."""
    found: dict[tuple[int, str], tuple[int, int, int]] = {}
    with limpet.open("memory:") as store:
        for length in (100, 100_000):
            chat = store.conversation(f"of {length}")
            for start in range(0, length, 100):
                chat.append(
                    *({"role": "user", "content": f"{n:07}"} for n in range(start, start + 100))
                )
            here = f"/chat?kind=conversation&id=of+{length}"
            pages = {"first": here, "next": f"{here}&before={length - 49}"}
            for name, path in pages.items():
                text, cost = costs(store, path)
                found[length, name] = len(text), cost["calls"], cost["read"]
    for name in ("first", "next"):
        for short, long in zip(found[100, name], found[100_000, name], strict=True):
            assert long <= 1.3 * short, (name, found)
