"""Two saves of a state compared, for people to read."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from limpet.core import deltas
from limpet.states.fingerprint import compare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.states.format import Snapshot

    #: Where something changed, and the lines that say how.
    Change = tuple[str, list[str]]

__all__ = ["changes_between", "describe"]

#: Characters of a value in a line, and of a text around what changed in it.
VALUE = 200
AROUND = 30
#: Lines under one place, and places; of more only the number is given.
LINES = 20
PLACES = 100


def describe(before: Snapshot, after: Snapshot) -> str:
    """What makes *after* of *before*, in lines."""
    lines = []
    was, is_ = before.info, after.info
    for what, old, new in (("version", was.version, is_.version), ("type", was.type, is_.type)):
        if old != new:
            lines += [what, f"  - {old}", f"  + {new}"]
    change = compare(was.fingerprint, is_.fingerprint, after.document)
    if change is not None:
        lines += ["saved by", f"  ~ {change}"]
    lines += changes_between(before.document, after.document)
    return "\n".join(lines) or "Nothing changed."


def changes_between(before: Any, after: Any) -> list[str]:
    """What makes the document *after* of *before*, in lines; none if they are the same."""
    lines: list[str] = []
    patch = deltas.diff(before, after, exact=True)
    changes = iter(()) if patch is None else _changes("", before, after, patch)
    for place, shown in islice(changes, PLACES):
        lines.append(place or "document")
        lines += [f"  {line}" for line in shown[:LINES]]
        if len(shown) > LINES:
            lines.append(f"  … and {len(shown) - LINES:,} more")
    if more := sum(1 for _ in changes):
        lines.append(f"… and {more:,} more places")
    return lines


def _changes(place: str, old: Any, new: Any, patch: dict[str, Any]) -> Iterator[Change]:
    """What *patch*, which makes *new* of *old*, changes at *place* and below it."""
    if "put" in patch:
        yield place, [f"- {_value(old)}", f"+ {_value(new)}"]
    elif isinstance(old, dict):
        yield from _dict_changes(place, old, new, patch)
    elif isinstance(old, list):
        yield from _list_changes(place, old, new, patch)
    else:
        yield place, _text_change(old, new)


def _dict_changes(
    place: str, old: dict[str, Any], new: dict[str, Any], patch: dict[str, Any]
) -> Iterator[Change]:
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
            yield from _changes(below, old[key], new[key], inner)


def _list_changes(
    place: str, old: list[Any], new: list[Any], patch: dict[str, Any]
) -> Iterator[Change]:
    for index, inner in patch.get("at", ()):
        yield from _changes(f"{place}[{index}]", old[index], new[index], inner)
    items = list(old)
    lines = []
    splices = [[len(old), 0, patch["add"]]] if "add" in patch else patch.get("cut", ())
    gone = 0
    for at, count, added in splices:
        lines += [f"- [{at + n + gone}] {_value(items[at + n])}" for n in range(count)]
        lines += [f"+ [{at + n}] {_value(item)}" for n, item in enumerate(added)]
        items[at : at + count] = added
        gone += count
    if lines:
        yield place, lines


def _text_change(old: str, new: str) -> list[str]:
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
