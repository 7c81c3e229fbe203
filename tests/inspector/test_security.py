"""Who may come in, and what a browser may do: what others tried elsewhere is refused here."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Mount

import limpet
from limpet import inspector
from limpet.errors import StoreReadOnly
from limpet.inspector.app import ENTRY, Inspector
from limpet.inspector.security import Access, Callback, Tokens
from limpet.inspector.site import Action, Done, Page, field
from tests.support.browser import inspected, page_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from playwright.sync_api import Browser
    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.inspector.site import Site

HOST = "127.0.0.1:8000"


async def home(_request: Request, site: Site) -> Response:
    """A page with a form."""
    return HTMLResponse(f'<link rel="icon" href="{site.static("icon.svg")}">{site.form_token()}')


async def note(_request: Request, site: Site, form: Mapping[str, str]) -> Done:
    """A change: a message of whoever is let in."""
    message = {"role": "user", "content": f"{site.access.by}: {field(form, 'text')}"}
    await limpet.AsyncStore(site.scope).conversation("notes").append(message)
    return Done("Noted <b>it</b>.", to=site.url("home"))


PAGES = (Page("home", "/", home, "Home"), Page("events", "/events", home))
ACTIONS = (Action("note", "/note", note),)


class Visitor:
    """A program that asks as a browser does, with the cookies that it was given."""

    def __init__(self, app: Any, host: str = HOST) -> None:
        self.host = host
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url=f"http://{host}"
        )

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Ask for a page."""
        return asyncio.run(self.client.get(path, headers=_named(headers)))

    def head(self, path: str) -> httpx.Response:
        """Ask what a page is like."""
        return asyncio.run(self.client.head(path))

    def post(self, path: str, form: Mapping[str, str], **headers: str) -> httpx.Response:
        """Send a form, as a page of ours would."""
        given = {"origin": f"http://{self.host}"} | _named(headers)
        return asyncio.run(self.client.post(path, data=dict(form), headers=given))

    def form_token(self, path: str = "/") -> str:
        """What a page of ours has in its forms."""
        token: str
        (token,) = re.findall('value="(.*)"', self.get(path).text)
        return token


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.fixture
def store() -> Iterator[limpet.Store]:
    """An empty one."""
    with limpet.open("memory:") as opened:
        yield opened


@pytest.fixture
def gate() -> Tokens:
    """Links that work once."""
    return Tokens(by="ada")


@pytest.fixture
def visitor(store: limpet.Store, gate: Tokens) -> Visitor:
    """Somebody who was not let in yet."""
    return Visitor(Inspector(store, gate, write=True, hosts=[HOST], pages=PAGES, actions=ACTIONS))


def enter(visitor: Visitor, gate: Tokens) -> Visitor:
    """The same, let in."""
    assert visitor.get(f"{ENTRY}?token={gate.link()}").status_code == 200
    return visitor


def notes(store: limpet.Store) -> list[str]:
    """What was noted."""
    return [message["content"] for message in store.conversation("notes").messages()]


def test_whoever_has_no_token_sees_nothing(visitor: Visitor) -> None:
    """Anybody on the machine can call a port of it."""
    for path in ("/", "/events?kind=task&id=a", "/anything", ENTRY, f"{ENTRY}?token=guessed"):
        assert visitor.get(path).status_code == 403, path


def test_a_link_lets_one_browser_in_once(visitor: Visitor, gate: Tokens) -> None:
    """A link stays in the shell's history, and in the browser's."""
    link = f"{ENTRY}?token={gate.link()}"
    entered = visitor.get(link)
    cookie = entered.headers["set-cookie"]
    assert entered.status_code == 200
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    assert visitor.get("/").status_code == 200
    visitor.client.cookies.clear()
    assert visitor.get(link).status_code == 403
    assert visitor.get("/").status_code == 403


def test_looking_at_a_link_does_not_use_it_up(visitor: Visitor, gate: Tokens) -> None:
    """Chat programs ask for the head of every link that they see."""
    link = f"{ENTRY}?token={gate.link()}"
    assert visitor.head(link).status_code == 403
    assert visitor.get(link).status_code == 200


def test_an_old_cookie_is_refused(
    visitor: Visitor, gate: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was let in in the morning is not in at night."""
    enter(visitor, gate)
    monkeypatch.setattr("limpet.inspector.security.STAY", -1)
    other = Visitor(visitor.client._transport.app)  # type: ignore[attr-defined]
    enter(other, gate)
    assert visitor.get("/").status_code == 200
    assert other.get("/").status_code == 403


def test_a_name_that_somebody_points_to_us_is_refused(visitor: Visitor, gate: Tokens) -> None:
    """DNS rebinding: a page's own name leads to this machine, and so its scripts may read us."""
    enter(visitor, gate)
    for host in ("evil.example", "evil.example:8000", "127.0.0.1:9", "127.0.0.1", ""):
        assert visitor.get("/", host=host).status_code == 421, host
    assert visitor.get("/", host=HOST).status_code == 200


def test_what_another_page_asks_for_is_refused(visitor: Visitor, gate: Tokens) -> None:
    """A page at another port of this machine is same-site: our cookie is sent with what it asks."""
    enter(visitor, gate)
    for site in ("cross-site", "same-site"):
        for mode, dest in (("no-cors", "image"), ("cors", "empty"), ("navigate", "iframe")):
            headers = {"sec_fetch_site": site, "sec_fetch_mode": mode, "sec_fetch_dest": dest}
            assert visitor.get("/", **headers).status_code == 403, headers
        followed = {"sec_fetch_site": site, "sec_fetch_mode": "navigate"}
        assert visitor.get("/", **followed, sec_fetch_dest="document").status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://127.0.0.1:8001", "null", "", f"ftp://{HOST}"]
)
def test_a_script_of_another_origin_reads_nothing(
    visitor: Visitor, gate: Tokens, origin: str
) -> None:
    """Events too; where a browser sends no Sec-Fetch-Site, as it does not without TLS."""
    enter(visitor, gate)
    for path in ("/", "/events?kind=task&id=a", "/static/limpet.js", ENTRY):
        assert visitor.get(path, origin=origin).status_code == 403, path
        assert visitor.get(path, origin=f"http://{HOST}").status_code in (200, 404), path


def test_there_are_no_websockets(visitor: Visitor) -> None:
    """No policy of a browser keeps other pages from opening one."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    app = visitor.client._transport.app  # type: ignore[attr-defined]
    asyncio.run(app({"type": "websocket", "path": "/", "headers": []}, receive, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_the_page_behind_the_link_tells_nobody_its_address(visitor: Visitor, gate: Tokens) -> None:
    """The token is in it; it is used up, and yet nobody's business."""
    entered = visitor.get(f"{ENTRY}?token={gate.link()}")
    assert entered.headers["referrer-policy"] == "no-referrer"
    assert "token" not in entered.text


def test_what_an_action_has_said_is_not_said_by_a_page_of_another_port(
    visitor: Visitor, gate: Tokens
) -> None:
    """Such a page can set cookies that come here: a sentence of its own is not shown."""
    pages = (Page("home", "/", plain_home),)
    app = Inspector(
        limpet.open("memory:"), gate, write=True, hosts=[HOST], pages=pages, actions=ACTIONS
    )
    visitor = enter(Visitor(app), gate)
    (token,) = re.findall("[0-9a-f]{64}", visitor.get("/").text)
    made = visitor.post("/note", {"text": "x", "form_token": token})
    assert "limpet-notice-8000=" in made.headers["set-cookie"]
    shown = visitor.get("/").text
    assert "Noted &lt;b&gt;it&lt;/b&gt;." in shown
    assert "Noted" not in visitor.get("/").text
    for forged in ("Run%20rm", f"{'0' * 64}.Run%20rm", ".Run%20rm"):
        visitor.client.cookies.set("limpet-notice-8000", forged, domain="127.0.0.1")
        assert "Run" not in visitor.get("/").text


async def plain_home(_request: Request, site: Site) -> Response:
    """A page of ours, with what forms need."""
    return site.page("failed.html", title="t", said=str(site.form_token()), damaged=False)


@pytest.mark.parametrize(
    ("mount", "name", "path"),
    [("", "__Host-limpet", "/"), ("/agents", "__Secure-limpet", "/agents")],
)
def test_with_tls_nobody_else_can_set_our_cookie(
    store: limpet.Store, mount: str, name: str, path: str
) -> None:
    """Not a page of another port, nor one without TLS of the same name."""
    app: Any = inspector.app(store, authorize=lambda _request: True, write=True)
    app = Starlette(routes=[Mount(mount, app)]) if mount else app
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="https://agents.example"
    )
    cookie = asyncio.run(client.get(f"{mount}/")).headers["set-cookie"]
    assert cookie.startswith(f"{name}=")
    assert f"Path={path};" in cookie
    assert "Secure" in cookie


def test_events_are_not_sent_to_who_asks_for_their_head(store: limpet.Store, gate: Tokens) -> None:
    """It would be made for ever, and arrive nowhere."""
    store.conversation("a").append({"role": "user", "content": "hello"})
    visitor = enter(Visitor(Inspector(store, gate, hosts=[HOST])), gate)
    for path in (
        "/events?kind=conversation&id=a",
        "/home/events",
        "/export?kind=conversation&id=a",
    ):
        answer = visitor.head(path)
        assert (answer.status_code, answer.content) == (200, b""), path


def test_a_form_of_ours_changes_something_and_says_so_once(
    visitor: Visitor, gate: Tokens, store: limpet.Store
) -> None:
    """A change is recorded under the name of whoever made it."""
    enter(visitor, gate)
    form = {"text": "hello", "form_token": visitor.form_token()}
    made = visitor.post("/note", form)
    assert (made.status_code, made.headers["location"]) == (303, "/")
    assert "hello" not in made.headers["location"]
    assert notes(store) == ["ada: hello"]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"form_token": ""}, 403),
        ({"form_token": "0" * 64}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:8001"}, 403),
        ({"origin": f"http://evil.example/{HOST}"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site", "sec_fetch_mode": "navigate"}, 403),
        ({"content_type": "text/plain"}, 400),
        ({"content_type": "application/json"}, 400),
        ({"host": "evil.example"}, 421),
    ],
)
def test_a_forged_form_is_refused(
    visitor: Visitor, gate: Tokens, store: limpet.Store, change: dict[str, str], status: int
) -> None:
    """Another page can send us a form; it cannot know what one of ours carries."""
    enter(visitor, gate)
    form = {"text": "forged", "form_token": visitor.form_token()}
    form |= {name: change[name] for name in change if name in form}
    headers = {name: value for name, value in change.items() if name not in form}
    assert visitor.post("/note", form, **headers).status_code == status
    assert notes(store) == []


def test_a_form_of_another_visitor_is_refused(
    visitor: Visitor, gate: Tokens, store: limpet.Store
) -> None:
    """What one browser was given is of no use in another."""
    enter(visitor, gate)
    other = enter(Visitor(visitor.client._transport.app), gate)  # type: ignore[attr-defined]
    form = {"text": "borrowed", "form_token": other.form_token()}
    assert visitor.post("/note", form).status_code == 403
    assert notes(store) == []


@pytest.mark.parametrize("path", ["/note", ENTRY])
def test_a_body_that_is_no_form_is_refused(visitor: Visitor, gate: Tokens, path: str) -> None:
    """Uploads, JSON, what is not UTF-8, a thousand fields: a sentence, and no traceback."""
    if path != ENTRY:
        enter(visitor, gate)
    form = "application/x-www-form-urlencoded"
    for kind, body in (
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n--x--"),
        ("application/json", b"{}"),
        ("", b"a=b"),
        (form, b"\xff\xfe"),
        (form, b"a=b&" * 1_000),
        (form, b"a" * 2_000_000),
    ):
        headers = {"origin": f"http://{HOST}", "content-type": kind}
        answer = asyncio.run(visitor.client.post(path, content=body, headers=headers))
        assert answer.status_code == 400, (kind, body[:9])


def test_a_form_that_never_comes_to_its_end_holds_nothing_up(
    visitor: Visitor, gate: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sends a byte now and then is not waited for; nor who goes away half way."""
    monkeypatch.setattr("limpet.inspector.security.PATIENCE", 0.05)
    app = visitor.client._transport.app  # type: ignore[attr-defined]
    headers = {"host": HOST, "origin": f"http://{HOST}"}
    headers["content-type"] = "application/x-www-form-urlencoded"
    scope = {
        "type": "http",
        "method": "POST",
        "path": ENTRY,
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }

    async def slow() -> Any:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"a", "more_body": True}

    async def gone() -> Any:
        return {"type": "http.disconnect"}

    for receive in (slow, gone):
        sent: list[Any] = []

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        asyncio.run(app(dict(scope), receive, send))
        assert sent[0]["status"] == 400


def test_a_form_that_is_too_large_is_refused(visitor: Visitor, gate: Tokens) -> None:
    """Whoever was let in cannot fill the memory by accident."""
    enter(visitor, gate)
    form = {"text": "x" * 1_100_000, "form_token": visitor.form_token()}
    assert visitor.post("/note", form).status_code == 400


def test_a_change_is_a_post_and_nothing_else(visitor: Visitor, gate: Tokens) -> None:
    """A link, or an image, can make a browser GET anything."""
    enter(visitor, gate)
    assert visitor.get(f"/note?text=x&form_token={visitor.form_token()}").status_code == 405
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        answer = asyncio.run(visitor.client.request(method, "/note"))
        assert answer.status_code == 405, method


def test_without_write_nothing_can_be_changed(store: limpet.Store, gate: Tokens) -> None:
    """Read-only is what it is unless somebody asks for more."""
    visitor = Visitor(Inspector(store, gate, hosts=[HOST], pages=PAGES, actions=ACTIONS))
    enter(visitor, gate)
    form = {"text": "hello", "form_token": visitor.form_token()}
    refused = visitor.post("/note", form)
    assert refused.status_code == 403
    assert "read-only" in refused.text
    assert notes(store) == []


def test_writing_needs_a_store_that_can_be_written(tmp_path: Any) -> None:
    """Buttons that can only fail are shown to nobody."""
    limpet.open(tmp_path / "a.db").close()
    with (
        limpet.open(tmp_path / "a.db", readonly=True) as readonly,
        pytest.raises(StoreReadOnly),
    ):
        Inspector(readonly, Tokens(), write=True)


def test_a_path_out_of_the_root_is_not_there(visitor: Visitor, gate: Tokens) -> None:
    """The files that are served are those of the package."""
    for path in (
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/%2fetc/passwd",
        "/static//etc/passwd",
        "/static/..%5capp.py",
        "/static/%00",
        "/static/limpet.css%00.js",
        "/static/",
        "/static",
        "/static/templates/../../app.py",
    ):
        answer = visitor.get(path)
        assert answer.status_code in (403, 404), path
        assert "Inspector" not in answer.text
    assert visitor.get("/static/limpet.css").status_code == 200
    enter(visitor, gate)
    assert visitor.get("/static/%2e%2e/app.py").status_code == 404


def test_no_way_of_writing_a_path_leads_past_the_gate(store: limpet.Store) -> None:
    """What is let through unasked is what looks like a file of ours, and that is all it gets."""
    store.conversation("secret").append({"role": "user", "content": "the password"})
    ours = Inspector(store, Tokens(), hosts=[HOST])
    for mount in ("", "/agents"):
        visitor = Visitor(Starlette(routes=[Mount(mount, ours)]) if mount else ours)
        for path in (
            "/static/../journal?kind=conversation&id=secret",
            "/static/..%2fjournal?kind=conversation&id=secret",
            "//static/../?q=", "/static//", "/./", "//", "/static/%2e%2e/", "/agents/static/../",
            "/journal/static/?kind=conversation&id=secret", "/static/?/../journal",
            "/%73tatic/../export?kind=conversation&id=secret", "/enter/static/", "/STATIC/",
        ):  # fmt: skip
            answer = visitor.get(f"http://{HOST}{mount}{path}")
            assert answer.status_code in (307, 400, 403, 404, 405), (mount, path)
            assert "secret" not in answer.text.replace("id=secret", "")
            assert not answer.headers.get("location", "/").startswith("//")


def test_a_name_of_the_path_is_no_other_host(store: limpet.Store) -> None:
    """Where an app is mounted may be other people's text: links stay on this host."""
    ours = inspector.app(store, authorize=lambda _request: True)
    visitor = Visitor(Starlette(routes=[Mount("/{name:path}/agents", ours)]))
    text = visitor.get(f"http://{HOST}//evil.example/agents/").text
    links = re.findall(r'(?:href|src|action|data-follow|hx-get)="([^"#]+)"', text)
    assert links
    assert [link for link in links if link.startswith("//")] == []


def test_every_answer_forbids_what_no_page_needs(visitor: Visitor, gate: Tokens) -> None:
    """Were a stored script ever to reach a page, the browser would not run it."""
    refused = visitor.get("/")
    enter(visitor, gate)
    for answer in (
        refused,
        visitor.get("/"),
        visitor.get("/nothing"),
        visitor.get("/static/limpet.js"),
    ):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers


def test_a_token_of_the_users_is_asked_for_by_a_form(store: limpet.Store) -> None:
    """Where others can reach it, a link would be seen by all on the way."""
    gate = Tokens(token="a long token of the user's")  # noqa: S106 - for this test
    visitor = Visitor(Inspector(store, gate, hosts=[HOST], pages=PAGES, actions=ACTIONS))
    assert 'type="password"' in visitor.get("/").text
    right = "a long token of the user's"
    assert visitor.get(f"{ENTRY}?token={right}").status_code == 403
    assert visitor.post(ENTRY, {"token": "wrong"}).status_code == 403
    assert visitor.post(ENTRY, {"token": right}, origin="http://evil.example").status_code == 403
    assert visitor.post(ENTRY, {"token": right}).status_code == 200
    assert visitor.get("/").status_code == 200


def mounted(store: limpet.Store, authorize: Callable[[Request], Any], **options: Any) -> Visitor:
    """Somebody who visits another app, with ours in it."""
    ours = inspector.app(store, authorize=authorize, **options)
    return Visitor(Starlette(routes=[Mount("/agents", ours)]))


@pytest.mark.parametrize("answer", [None, False, 0, "", "later"])
def test_mounted_it_lets_in_whom_the_app_says(store: limpet.Store, answer: Any) -> None:
    """Only a clear yes is one."""

    async def later(_request: Request) -> bool:
        return False

    refuses = later if answer == "later" else lambda _request: answer
    assert mounted(store, refuses).get("/agents/").status_code == 403
    for yes in (True, "ada", Access(by="ada")):
        assert mounted(store, lambda _request, yes=yes: yes).get("/agents/").status_code == 200  # type: ignore[misc]


def test_mounted_its_links_stay_below_its_path(store: limpet.Store) -> None:
    """An app has paths of its own."""
    store.conversation("a").append({"role": "user", "content": "hello"})
    text = mounted(store, lambda _request: True).get("/agents/").text
    links = re.findall(r'(?:href|src|action|data-follow|hx-get)="([^"#]+)"', text)
    assert links
    assert [link for link in links if not link.startswith("/agents/")] == []


def test_mounted_a_form_needs_its_token_too(store: limpet.Store) -> None:
    """The app around it may know nothing of forgery."""
    ours = Inspector(
        store,
        Callback(lambda _request: "ada"),
        write=True,
        pages=PAGES,
        actions=ACTIONS,
    )
    visitor = Visitor(Starlette(routes=[Mount("/agents", ours)]))
    assert visitor.post("/agents/note", {"text": "forged"}).status_code == 403
    token = visitor.form_token("/agents/")
    assert visitor.post("/agents/note", {"text": "mine", "form_token": token}).status_code == 303
    assert notes(store) == ["ada: mine"]


def test_what_breaks_says_so_without_what_is_stored(
    store: limpet.Store, gate: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    """Logs are read by others than those who may see the store."""

    async def broken(_request: Request, _site: Site) -> Response:
        return PlainTextResponse({"secret": 1}["no such key"])

    pages = (Page("home", "/", home), Page("broken", "/broken", broken))
    visitor = Visitor(Inspector(store, gate, hosts=[HOST], pages=pages, actions=()))
    enter(visitor, gate)
    with pytest.raises(KeyError):  # which the server logs
        visitor.get("/broken")
    assert "secret" not in caplog.text


def test_a_foreign_page_gets_nothing_in_a_real_browser(
    browser: Browser, store: limpet.Store, tmp_path: Any
) -> None:
    """What a header promises, a browser has to keep: here is one, with our cookie."""
    store.conversation("secret").append({"role": "user", "content": "the password"})
    evil = tmp_path / "evil.html"
    with (
        inspected(store, write=True, pages=PAGES, actions=ACTIONS) as served,
        inspected(store) as other,
        page_of(browser, served) as page,
    ):
        evil.write_text(f"<iframe src='{served.url}/'></iframe><img src='{served.url}/'>")
        context = page.context
        foreign = context.new_page()
        foreign.goto(f"{other.url}/static/icon.svg")  # another port: the same site, another origin
        answered = foreign.evaluate(
            """async (url) => {
                const said = [];
                for (const mode of ["cors", "no-cors"]) {
                    try {
                        const got = await fetch(url, {mode, credentials: "include"});
                        said.push(got.type + " " + (await got.text()).length);
                    } catch (error) { said.push("refused"); }
                    try {
                        const got = await fetch(url + "note", {mode, method: "POST",
                            credentials: "include", body: new URLSearchParams({text: "forged"})});
                        said.push(got.type + " " + (await got.text()).length);
                    } catch (error) { said.push("refused"); }
                }
                return said;
            }""",
            f"{served.url}/",
        )
        assert set(answered) <= {"refused", "opaque 0"}
        foreign.goto(evil.as_uri())
        frame = foreign.frames[1]
        assert "the password" not in frame.content()
        foreign.close()
    assert notes(store) == []
