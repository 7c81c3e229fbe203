"""Two saves of a state compared, for people to read."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from limpet.core import deltas
from limpet.states.changes import compare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.states.kept import Kept

__all__ = ["told"]

#: Characters of a value in a line, and of a text around what changed in it.
VALUE = 200
AROUND = 30
#: Lines under one place, and places; then it is only said how many more there are.
SHOWN = 20
PLACES = 100

NOTHING_CHANGED = "Nothing changed."


def told(before: Kept, after: Kept) -> str:
    """What makes *after* of *before*, in lines."""
    lines = []
    was, is_ = before.about, after.about
    for what, old, new in (("version", was.version, is_.version), ("type", was.type, is_.type)):
        if old != new:
            lines += [what, f"  - {old}", f"  + {new}"]
    change = compare(was.fingerprint, is_.fingerprint, after.document)
    if change is not None:
        lines += ["saved by", f"  ~ {change}"]
    places = _places("", before.document, after.document)
    for place, shown in islice(places, PLACES):
        lines.append(place or "document")
        lines += [f"  {line}" for line in shown[:SHOWN]]
        if len(shown) > SHOWN:
            lines.append(f"  … and {len(shown) - SHOWN:,} more")
    if more := sum(1 for _ in places):
        lines.append(f"… and {more:,} more places")
    return "\n".join(lines) or NOTHING_CHANGED


def _places(place: str, old: Any, new: Any) -> Iterator[tuple[str, list[str]]]:
    """Where two documents differ, and how, from the outside in."""
    patch = deltas.diff(old, new, exact=True)
    if patch is not None:
        yield from _told(place, old, new, patch)


def _told(place: str, old: Any, new: Any, patch: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    if "put" in patch:
        yield place, [f"- {_value(old)}", f"+ {_value(new)}"]
    elif isinstance(old, dict):
        yield from _dict(place, old, new, patch)
    elif isinstance(old, list):
        yield from _list(place, old, new, patch)
    else:
        yield place, _text(old, new)


def _dict(place: str, old: Any, new: Any, patch: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    changed = patch.get("in", {})
    keys = [f"- {_key(key)}: {_value(old[key])}" for key in patch.get("drop", ())]
    keys += [f"+ {_key(key)}: {_value(new[key])}" for key in changed if key not in old]
    if "order" in patch and not keys and not changed:
        keys = ["~ the same keys in another order"]
    if keys:
        yield place, keys
    for key, inner in changed.items():
        if key in old:
            below = f"{place}.{_key(key)}" if place else _key(key)
            yield from _told(below, old[key], new[key], inner)


def _list(place: str, old: Any, new: Any, patch: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for index, inner in patch.get("at", ()):
        yield from _told(f"{place}[{index}]", old[index], new[index], inner)
    items = list(old)
    lines = []
    cuts = patch.get("cut", ())
    if "add" in patch:
        cuts = [[len(old), 0, patch["add"]]]
    gone = 0
    for at, count, come in cuts:
        lines += [f"- [{at + n + gone}] {_value(items[at + n])}" for n in range(count)]
        lines += [f"+ [{at + n}] {_value(item)}" for n, item in enumerate(come)]
        items[at : at + count] = come
        gone += count
    if lines:
        yield place, lines


def _text(old: str, new: str) -> list[str]:
    """A long text of which a piece changed: the piece, and a little of what is around it."""
    start, end = deltas.ends(old, new)
    left = old[max(start - AROUND, 0) : start]
    right = old[len(old) - end :][:AROUND]
    before, after = old[start : len(old) - end], new[start : len(new) - end]
    left = f"…{left}" if start > AROUND else left
    right = f"{right}…" if end > AROUND else right
    return [f"- {_value(left + before + right)}", f"+ {_value(left + after + right)}"]


def _key(key: str) -> str:
    return key if key.isidentifier() else _value(key)


def _value(value: Any) -> str:
    text = deltas.encode(value).decode()
    return text if len(text) <= VALUE else f"{text[:VALUE]}… ({len(text):,} characters)"
