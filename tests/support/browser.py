"""A real browser for the inspector's pages: the system's Chromium, driven by Playwright.

What no page may do fails the test by itself: an error in the console, a request to another host, a
script or style that the policy had to stop.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import uvicorn
from playwright.sync_api import sync_playwright

from limpet.inspector.app import ENTRY, Inspector
from limpet.inspector.security import Tokens
from tests.support.paths import ROOT
from tests.support.processes import mortal, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page
    from starlette.types import ASGIApp

    from limpet import Store

__all__ = [
    "Inspected",
    "Served",
    "axe",
    "chromium",
    "connected",
    "inspected",
    "page_of",
    "screenshot",
    "wide",
]

AXE = ROOT / ".servers" / "node_modules" / "axe-core" / "axe.min.js"
#: Where screenshots of a run go; pytest prints the path with the test's output.
SHOTS = Path(os.environ.get("LIMPET_SHOTS", ROOT / "build" / "shots"))


class Served:
    """An app that is served, by a real server, from a thread of this process."""

    def __init__(self, make: Callable[[str], ASGIApp], path: str = "") -> None:
        """What *make* makes, given the host with its port; its first page is below *path*."""
        #: What the browser may report in its console: the status of an answer that a test wants.
        self.expected: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.url = f"http://{self.host}{path}"
        config = uvicorn.Config(
            make(self.host),
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.run(self._server.serve([self._socket]))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._socket.close()

    def link(self) -> str:
        """What leads to the first page."""
        return self.url


class Inspected(Served):
    """An inspector that is served by itself."""

    def __init__(self, store: Store, *, write: bool = False, **options: Any) -> None:
        self.gate = Tokens(by="tester")

        def make(host: str) -> Inspector:
            self.inspector = Inspector(store, self.gate, write=write, hosts=[host], **options)
            return self.inspector

        super().__init__(make)

    def link(self) -> str:
        """A link that lets in, once."""
        return f"{self.url}{ENTRY}?token={self.gate.link()}"


def inspected(store: Store, *, write: bool = False, **options: Any) -> Inspected:
    """*store*, served for the length of a block."""
    return Inspected(store, write=write, **options)


@contextmanager
def chromium(directory: Path) -> Iterator[str]:
    """The system's Chromium, without a window, with its files in *directory*; its address."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    assert path is not None, "Chromium is not installed: run `make servers`."
    options = [
        "--headless=new",
        "--no-sandbox",  # which a container does not have
        "--no-first-run",
        "--disable-gpu",
        "--hide-scrollbars",  # in a picture they are of no use
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--remote-debugging-port=0",
        f"--user-data-dir={directory}",
        "about:blank",
    ]
    command = [*mortal(signal.SIGKILL, None), path, *options]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    written = directory / "DevToolsActivePort"
    try:
        assert until(lambda: written.exists() and written.read_text().count("\n") > 0)
        yield f"http://127.0.0.1:{written.read_text().split()[0]}"
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def connected(address: str) -> Iterator[Browser]:
    """The browser at *address*, for one test: Playwright keeps an event loop while it is in use."""
    with sync_playwright() as playwright:
        yield playwright.chromium.connect_over_cdp(address)


@contextmanager
def page_of(
    browser: Browser,
    served: Served,
    *,
    dark: bool = False,
    width: int = 1280,
    javascript: bool = True,
) -> Iterator[Page]:
    """A page of a browser that was let in, at home; what no page may do fails the test."""
    context = browser.new_context(
        color_scheme="dark" if dark else "light",
        viewport={"width": width, "height": 900},
        java_script_enabled=javascript,
    )
    page = context.new_page()
    trouble: list[str] = []
    page.on("console", lambda m: trouble.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("dialog", lambda dialog: trouble.append(f"a dialog: {dialog.message}"))
    page.on(
        "request",
        lambda r: None if r.url.startswith(f"{served.url}/") else trouble.append(f"asks {r.url}"),
    )
    page.set_default_timeout(60_000)  # other tests share the machine
    try:
        page.goto(served.link())
        page.wait_for_url(f"{served.url}/")
        yield page
        trouble = [one for one in trouble if not any(text in one for text in served.expected)]
        assert trouble == [], trouble
    finally:
        context.close()


def axe(page: Page) -> None:
    """Look for what keeps people from using the page: no serious finding."""
    # Into a world of its own: the policy of the page, which lets no other script run, holds on.
    found = page.context.new_cdp_session(page)
    tree = found.send("Page.getFrameTree")
    world = found.send("Page.createIsolatedWorld", {"frameId": tree["frameTree"]["frame"]["id"]})
    context = world["executionContextId"]
    found.send("Runtime.evaluate", {"expression": AXE.read_text("utf-8"), "contextId": context})
    answer = found.send(
        "Runtime.evaluate",
        {
            "expression": "axe.run(document, {resultTypes: ['violations']}).then("
            "r => r.violations.filter(v => ['serious', 'critical'].includes(v.impact))"
            ".map(v => v.id + ': ' + v.nodes.map(n => n.target.join(' ')).join(', ')))",
            "awaitPromise": True,
            "returnByValue": True,
            "contextId": context,
        },
    )
    assert "exceptionDetails" not in answer, answer
    assert answer["result"]["value"] == []


def wide(page: Page) -> bool:
    """Whether the page is wider than its window: something in it breaks the layout."""
    found: bool = page.evaluate(
        "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    )
    return found


def screenshot(page: Page, name: str, *, full: bool = True) -> Path:
    """A picture of all of the page, or of what is in its window, into the test's output."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    path = SHOTS / f"{re.sub(r'[^a-z0-9-]+', '-', name.lower())}.png"
    page.screenshot(path=path, full_page=full)
    print(f"screenshot: {path}")
    return path
