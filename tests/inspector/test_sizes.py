"""Journals of a hundred entries and of a hundred thousand: the first page and the next cost alike.

Counted are bytes, and what is asked of the backend; `make bench ARGS=inspector` measures times.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import partial
from html import unescape
from typing import TYPE_CHECKING

import httpx
import pytest

import limpet
from limpet.inspector.pages import PAGES
from limpet.views import versions
from tests.support import stores
from tests.support.browser import inspected
from tests.support.filled import LONG, counted, fill_long

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from tests.support.browser import Inspected

SIZES = (100, 100_000)


cache = stores.cache


class Browser:
    """Asks for pages of a store, and counts what they cost."""

    def __init__(self, store: limpet.Store, served: Inspected, client: httpx.Client) -> None:
        self._store = store
        self._url = served.url
        self._client = client
        client.get(served.link())

    def get(self, path: str) -> tuple[str, Counter[str]]:
        """A page, and what it asked of the backend; the second time, as most people see it."""
        ask = partial(self._client.get, self._url + path)
        ask()
        found, costs = counted(self._store, ask)
        assert found.status_code == 200, found.text
        return found.text, costs


@contextmanager
def browsing(store: limpet.Store) -> Iterator[Browser]:
    """A browser at an inspector of *store*."""
    with inspected(store) as served, httpx.Client(follow_redirects=True, timeout=60) as client:
        yield Browser(store, served, client)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """A store of short journals, and one of long ones."""
    place = tmp_path_factory.mktemp("long")
    urls = {size: f"sqlite:{place / str(size)}.db?durability=normal" for size in SIZES}
    for size, url in urls.items():
        with limpet.open(url) as store:
            fill_long(store, size)
    return urls


def pages_of_journals() -> dict[str, str]:
    """The pages that show a journal of `LONG`, by the name of what they show."""
    found = {}
    for kind, id_ in LONG.items():
        which = f"kind={kind}&id={id_}"
        found[f"entries of a {kind}"] = f"/journal?{which}"
        if kind in versions.KINDS:
            found[f"versions of a {kind}"] = f"/versions?{which}"
            found[f"the last change of a {kind}"] = f"/diff?{which}"
        own = [page for page in PAGES if kind in page.kinds]
        found |= {f"{page.name} of a {kind}": f"{page.path}?{which}" for page in own}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", pages_of_journals().values(), ids=pages_of_journals().keys())
def test_a_page_of_a_journal_costs_the_same_however_long_it_is(
    places: dict[int, str], path: str
) -> None:
    """The first page and the next: bytes of the answer, and records and heads that were read."""
    sizes: dict[int, list[int]] = {}
    costs: dict[int, list[int]] = {}
    for size, url in places.items():
        with limpet.open(url) as store, browsing(store) as browser:
            following: str | None = path
            for _ in range(2):
                if following is not None:
                    page, cost = browser.get(following)
                    sizes.setdefault(size, []).append(len(page))
                    costs.setdefault(size, []).append(cost["read"] + cost["head"] + cost["scan"])
                    following = next_of(page)
    short, long = SIZES
    assert len(sizes[short]) == len(sizes[long])
    assert max(sizes[long]) <= 1.3 * max(sizes[short])
    assert max(costs[long]) <= 1.3 * max(costs[short])


def next_of(page: str) -> str | None:
    """Where a page says that the next one is."""
    found = re.search(r'<a href="([^"]+)" rel="next"', page)
    return unescape(found[1]) if found else None
