"""Following every link of the inspector, as a program; what a page may not have fails by itself.

Which pages there are is nowhere listed: they are found by their links and forms, from home on.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from html.parser import HTMLParser
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

from limpet.views.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

__all__ = ["MOST_BYTES", "Found", "crawl"]

#: Bytes of a page that nobody has asked to have all of something.
MOST_BYTES = 600_000
#: What asks for all of something: a place in a document, a change, a message.
WHOLE = {"path", "change", "raw", "message"}
#: Pages of one shape that are visited: of the same path, kind and names in the query.
EACH = 3

_TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "link",
        "script",
        "body",
        "header",
        "main",
        "nav",
        "section",
    ),
    *("article", "aside", "div", "span", "dialog", "h1", "h2", "h3", "h4", "p", "br", "hr", "pre"),
    *("a", "ul", "ol", "li", "dl", "dt", "dd", "blockquote", "figure", "figcaption", "details"),
    *("summary", "table", "thead", "tbody", "tr", "th", "td", "form", "label", "input", "select"),
    *(
        "option",
        "datalist",
        "textarea",
        "button",
        "progress",
        "meter",
        "code",
        "kbd",
        "strong",
        "b",
    ),
    *("i", "em", "small", "mark", "time", "svg", "rect", "line", "path", "img", "audio", "video"),
}
_ADDRESSES = {"href", "src", "action", "formaction", "data-follow", "hx-get", "hx-post", "poster"}


class Found(NamedTuple):
    """A page that was visited; *wrong*: what it may not have."""

    url: str
    shape: tuple[str, ...]
    status: int
    size: int
    whole: bool  # all of something, because it was asked for
    wrong: list[str]


class _Page(HTMLParser):
    """The links of a page, and what should not be on it."""

    def __init__(self, url: str, root: str) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[str] = []
        self.wrong: list[str] = []
        self._url = url
        self._root = root
        self._form: tuple[str, list[tuple[str, str]]] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag not in _TAGS or (
            tag == "script" and not values["src"].startswith(f"{self._root}/static/")
        ):
            self.wrong.append(f"<{tag}>")
        for name, value in values.items():
            if name.startswith(("on", "hx-on")) or name in ("style", "srcdoc"):
                self.wrong.append(f"{name}={value!r:.80}")
            elif name in _ADDRESSES:
                self._follow(tag, name, value)
            elif name in ("title", "aria-label", "alt"):
                self._check(value, name)
        if tag == "form":
            here = values.get("action") or urlsplit(self._url).path
            get = values.get("method", "get").lower() == "get"
            self._form = (here, []) if get else None
        elif tag == "input" and self._form:
            if "required" in values and not values.get("value"):
                self._form = None  # a browser would not send it
            elif values.get("type") not in ("radio", "checkbox") or "checked" in values:
                self._form[1].append((values.get("name", ""), values.get("value", "")))

    def _follow(self, tag: str, name: str, address: str) -> None:
        """An address leads to this very host, or is data that no browser obeys."""
        data = {"a": "data:application/json", "img": "data:image/(png|jpeg|gif|webp);base64,"}
        if tag in data and re.match(data[tag], address):
            return
        if not re.match(rf"{self._root}/(?!/)|#|\?|$", address):
            self.wrong.append(f"{tag} {name}={address!r:.80}")
        elif tag == "a":
            self.links.append(address)

    def handle_endtag(self, tag: str) -> None:
        if tag == "form" and self._form:
            action, fields = self._form
            query = urlencode([field for field in fields if all(field)])
            self.links.append(f"{action.partition('#')[0]}?{query}")
            self._form = None

    def handle_data(self, data: str) -> None:
        self._check(data, "text")

    def _check(self, text: str, where: str) -> None:
        if safe(text) != text:
            self.wrong.append(f"{where}: {text[:200]!r}")


def crawl(client: httpx.Client, *starts: str, root: str = "") -> Iterator[Found]:
    """Visit everything that links lead to, from home and *starts* on; all are below *root*."""
    waiting = deque(f"{root}{start}" for start in ("/", *starts))
    seen, shapes = set[str](), Counter[tuple[str, ...]]()
    while waiting:
        url = waiting.popleft()
        shape = _shape(url)
        if url in seen or shapes[shape] >= EACH:
            continue
        seen.add(url)
        shapes[shape] += 1
        answer = client.get(url)
        size = len(answer.content)
        wrong = [] if answer.status_code == 200 else [f"{answer.status_code}: {answer.text[-400:]}"]
        if not answer.headers["content-type"].startswith("text/html"):
            if wrong:
                yield Found(url, shape, answer.status_code, size, whole=True, wrong=wrong)
            continue
        page = _Page(url, root)
        page.feed(answer.text)
        asked = WHOLE & dict(parse_qsl(urlsplit(url).query)).keys()
        if size > MOST_BYTES and not asked:
            wrong.append(f"it has {size:,} bytes")
        wrong += page.wrong
        yield Found(url, shape, answer.status_code, size, whole=bool(asked), wrong=wrong)
        for link in page.links:
            target = urljoin(url, link).partition("#")[0]
            if target not in seen:
                waiting.append(target)


def _shape(url: str) -> tuple[str, ...]:
    """What pages have in common that are made alike."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    kind = next((value for name, value in query if name == "kind"), "")
    return parts.path, kind, *sorted({name for name, _ in query})
