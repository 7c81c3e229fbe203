"""A document on a page: folded, or as JSON; all of it, or what is at one place in it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.views.document import Node, at_path, keys_of, outline

if TYPE_CHECKING:
    from starlette.requests import Request

    from limpet.inspector.site import Site

__all__ = ["Shown", "shown"]

#: Values up to which nothing is folded; of more, what is deeper than this.
UNFOLDED = 60
DEPTH = 2
#: Characters of a text that is all of a document.
MOST_TEXT = 100_000


class Shown(Struct, frozen=True):
    """What a template has of a document. *here*: the URL of this page with other parameters."""

    value: Any
    node: Node
    path: str
    start: int
    raw: bool
    depth: int  # down to which it is unfolded
    crumbs: list[tuple[str, str]]  # the places above, each with its path
    here: Callable[..., str]


def shown(request: Request, site: Site, document: Any, here: Callable[..., str]) -> Shown:
    """*document* as the query asks for it: *path* and *start* say where, *raw* that as JSON."""
    path = request.query_params.get("path", "")
    if not path.startswith("/"):
        path = ""
    start = site.number("start") or 0
    value = at_path(document, path)
    raw = request.query_params.get("raw") == "1"
    options = {}
    if isinstance(value, str):  # it is all that there is: asked for by its path, or as it is, whole
        options["text"] = sys.maxsize if path or raw else MOST_TEXT
    node = outline(value, path, start=start, **options)
    parts = path.split("/")[1:]
    crumbs = [(key, "/".join(["", *parts[:number]])) for number, key in enumerate(keys_of(path), 1)]
    depth = sys.maxsize if _size(node) <= UNFOLDED else DEPTH
    return Shown(value, node, path, start, raw, depth, crumbs, here)


def _size(node: Node) -> int:
    return 1 + sum(map(_size, node.inner))
