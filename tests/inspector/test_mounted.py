"""The inspector within another app, below a path of it: with that app's own way of letting in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import Mount, Route

import limpet
from limpet import inspector
from limpet.inspector import Access
from tests.support import stores
from tests.support.browser import Served, page_of
from tests.support.crawling import crawl
from tests.support.dying import ended_by

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser
    from starlette.requests import Request
    from starlette.responses import Response

cache = stores.cache

PATH = "/our agents/live"
QUOTED = "/our%20agents/live"


class App(Served):
    """An app with a login of its own, and two tenants of a store."""

    def __init__(self, store: limpet.Store) -> None:
        async def login(_request: Request) -> Response:
            response = RedirectResponse(f"{QUOTED}/")
            response.set_cookie("user", "maria", httponly=True, samesite="strict")
            return response

        async def other(_request: Request) -> Response:
            return PlainTextResponse("of the app's own")

        def maria(request: Request) -> Access | None:
            user = request.cookies.get("user")
            return Access(by=user, write=True) if user == "maria" else None

        def make(_host: str) -> Starlette:
            return Starlette(
                routes=[
                    Route("/login", login),
                    Mount(PATH, inspector.app(store, authorize=maria)),
                    Mount(
                        "/theirs",
                        inspector.app(store.as_tenant("acme"), authorize=lambda _request: True),
                    ),
                    Route("/{rest:path}", other),
                ]
            )

        super().__init__(make, QUOTED)

    def link(self) -> str:
        """Where one logs in."""
        return f"http://{self.host}/login"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[limpet.Store]:
    """One with something of each kind, and a tenant."""
    with limpet.open(tmp_path / "agents.db") as opened:
        opened.conversation("alice").append({"role": "user", "content": "Where is the okapi?"})
        with ended_by(limpet.TaskWaiting, opened.task("w", "Wait")) as task:
            task.step("look", lambda: "done")
            task.wait_for("approval")
        for number in range(3):
            opened.state("team").save({"turn": number})
        opened.memory("facts").remember("An okapi is a giraffe")
        opened.as_tenant("acme").conversation("theirs").append({"role": "user", "content": "Hi"})
        yield opened


def test_every_link_form_and_file_is_below_its_path(store: limpet.Store) -> None:
    """Whatever the path is: one with a space in it, too."""
    with App(store) as served, httpx.Client(base_url=f"http://{served.host}") as client:
        assert client.get(f"{QUOTED}/").status_code == 403
        client.get("/login")
        found = list(crawl(client, "/search?q=okapi", root=QUOTED))
        assert [(one.url, one.wrong) for one in found if one.wrong] == []
        kinds = {one.shape[:2] for one in found}
        assert {(f"{QUOTED}/task", "task"), (f"{QUOTED}/state", "state")} <= kinds
        assert len(found) > 40
        assert client.get(f"{QUOTED}/static/limpet.css").status_code == 200
        assert client.get("/static/limpet.css").text == "of the app's own"


def test_a_person_uses_it_in_a_browser(store: limpet.Store, browser: Browser) -> None:
    """Files, events, forms, and cookies that go nowhere but to it."""
    with App(store) as served, page_of(browser, served) as page:
        served.expected.append(served.link())  # outside of the pages, as it should be
        page.locator(".home.live").wait_for()
        store.conversation("bob").append({"role": "user", "content": "Hello"})
        page.locator("#all a.name", has_text="bob").wait_for()
        page.locator("#all a.name", has_text="task/w").click()
        page.wait_for_url(f"{served.url}/task?**")
        assert page.locator("[data-follow]").evaluate("e => getComputedStyle(e).display") == "block"
        page.get_by_text("Send a signal").first.click()
        page.locator("#do-signal button").click()
        page.wait_for_selector("text=Sent approval to w.")
        port = served.host.partition(":")[2]
        cookies = {one["name"]: one for one in page.context.cookies(served.url)}
        ours = cookies[f"limpet-{port}"]
        assert (ours["path"], ours["httpOnly"], ours["sameSite"]) == (QUOTED, True, "Strict")
        assert set(cookies) == {"user", f"limpet-{port}"}  # the notice was said, and is gone
        elsewhere = page.context.cookies(f"http://{served.host}/other")
        assert [one["name"] for one in elsewhere] == ["user"]
        page.reload()
        assert "Sent approval" not in page.content()
    assert store.journal("task", "w").read()[-1].body["name"] == "approval"


def test_another_apps_tenant_is_another_store(store: limpet.Store) -> None:
    """Two of them in one app: neither lets in for, or shows, the other."""
    with App(store) as served, httpx.Client(base_url=f"http://{served.host}") as client:
        found = list(crawl(client, root="/theirs"))
        assert [(one.url, one.wrong) for one in found if one.wrong] == []
        assert not any("alice" in one.url for one in found)
        assert client.get("/theirs/journal?kind=conversation&id=alice").status_code == 404
        assert client.get("/theirs/journal?kind=conversation&id=theirs").status_code == 200
        assert client.get(f"{QUOTED}/").status_code == 403
