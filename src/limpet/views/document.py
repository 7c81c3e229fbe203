"""A JSON document as people read it: folded, and cut where it is long, with the way to the rest."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

from msgspec import Struct, field

from limpet.errors import NotFound
from limpet.views.text import count, json_line, one_line, shorten

__all__ = ["Node", "at_path", "keys_of", "outline"]

#: Values that an outline shows, items of one list or object, and characters of one text.
NODES = 400
ITEMS = 100
TEXT = 2_000
#: Values in a hint, and characters of each.
HINTS, HINT = 3, 60


class Node(Struct):
    """A value of a document, and where it is: *path* is a JSON pointer.

    *text* is what it says: of an object or list how much is in it, of text the text itself, or
    its beginning (*cut* more characters follow), of anything else its JSON. *left* of what is in
    it are not shown: `outline` of its path has them. *hint* says what an object is about.
    """

    key: str | None  # its name, or index, in what it is in
    path: str
    kind: str  # "object", "list", "text", or "value"
    text: str
    inner: list[Node] = field(default_factory=list)
    left: int = 0
    cut: int = 0
    hint: str = ""


def outline(
    document: Any, path: str = "", *, start: int = 0, nodes: int = NODES, text: int = TEXT
) -> Node:
    """What is in *document*, which stands at *path*, from item *start* on: at most *nodes* values.

    Breadth first: what is far down is left out before what is near the top.
    """
    root = _node(None, path, document, text)
    waiting = deque([(root, document, start)])
    nodes -= 1
    while waiting:
        node, value, begin = waiting.popleft()
        items = _items(value)
        shown = items[begin : begin + min(ITEMS, nodes)]
        node.left = len(items) - begin - len(shown)
        nodes -= len(shown)
        for key, inner in shown:
            below = _node(key, f"{node.path}/{_escaped(key)}", inner, text)
            node.inner.append(below)
            if below.kind in ("object", "list"):
                waiting.append((below, inner, 0))
    return root


def at_path(document: Any, path: str) -> Any:
    """The value of *document* at the JSON pointer *path*; `NotFound` if there is none."""
    found = document
    for key in keys_of(path):
        try:
            found = found[int(key)] if isinstance(found, list) else dict(found)[key]
        except (LookupError, ValueError, TypeError) as error:
            raise NotFound(f"There is nothing at {path!r} in this document.") from error
    return found


def keys_of(path: str) -> list[str]:
    """The names on the way of a JSON pointer, as they are in the document."""
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _items(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list):
        return [(str(index), item) for index, item in enumerate(value)]
    return []


def _node(key: str | None, path: str, value: Any, most: int) -> Node:
    if isinstance(value, dict):
        return Node(key, path, "object", count(len(value), "key"), hint=_hint(value))
    if isinstance(value, list):
        return Node(key, path, "list", count(len(value), "item"))
    if isinstance(value, str):
        return Node(key, path, "text", value[:most], cut=max(len(value) - most, 0))
    return Node(key, path, "value", json_line(value))


def _hint(value: dict[str, Any]) -> str:
    """What is short in an object: enough to know it by while it is folded."""
    scalars = ((key, one) for key, one in value.items() if not isinstance(one, (dict, list)))
    texts = (
        (key, one_line(one[:HINT]) if isinstance(one, str) else json_line(one))
        for key, one in islice(scalars, HINTS)
    )
    return ", ".join(f"{shorten(key, HINT)}: {shorten(text, HINT)}" for key, text in texts)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
