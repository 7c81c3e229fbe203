"""Two saves of a state compared, for people to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.core import deltas
from limpet.core.changes import Change, as_lines
from limpet.states.fingerprint import compare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.states.format import Snapshot

__all__ = ["changes_between", "describe", "document_changes", "lines_of"]

#: Characters of a text around what changed in it.
AROUND = 30
#: Lines under one place, and places; of more only the number is given.
LINES = 20
PLACES = 100


def describe(before: Snapshot, after: Snapshot) -> str:
    """What makes *after* of *before*, in lines."""
    return "\n".join(lines_of(changes_between(before, after))) or "Nothing changed."


def lines_of(changes: Iterator[Change]) -> list[str]:
    """*changes* of documents in lines; none if there are none."""
    return as_lines(changes, places=PLACES, lines=LINES)


def changes_between(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    """What makes the save *after* of the save *before*."""
    was, is_ = before.info, after.info
    for what, old, new in (("version", was.version, is_.version), ("type", was.type, is_.type)):
        if old != new:
            yield Change(what, "", str(old), str(new))
    change = compare(was.fingerprint, is_.fingerprint, after.document)
    if change is not None:
        yield Change("saved by", note=str(change))
    yield from document_changes(before.document, after.document)


def document_changes(before: Any, after: Any) -> Iterator[Change]:
    """What makes the document *after* of *before*; nothing if they are the same."""
    patch = deltas.diff(before, after, exact=True)
    return iter(()) if patch is None else _changes("", before, after, patch)


def _changes(place: str, old: Any, new: Any, patch: dict[str, Any]) -> Iterator[Change]:
    """What *patch*, which makes *new* of *old*, changes at *place* and below it."""
    if "put" in patch:
        yield Change(place, "", _value(old), _value(new))
    elif isinstance(old, dict):
        yield from _dict_changes(place, old, new, patch)
    elif isinstance(old, list):
        yield from _list_changes(place, old, new, patch)
    else:
        yield Change(place, "", *_text_change(old, new))


def _dict_changes(
    place: str, old: dict[str, Any], new: dict[str, Any], patch: dict[str, Any]
) -> Iterator[Change]:
    changed = patch.get("in", {})
    keys = [Change(place, _key(key), before=_value(old[key])) for key in patch.get("drop", ())]
    keys += [Change(place, _key(key), after=_value(new[key])) for key in changed if key not in old]
    if "order" in patch and not keys and not changed:
        keys = [Change(place, note="the same keys in another order")]
    yield from keys
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
    splices = [[len(old), 0, patch["add"]]] if "add" in patch else patch.get("cut", ())
    gone = 0
    for at, count, added in splices:
        for number in range(count):
            yield Change(place, f"[{at + number + gone}]", before=_value(items[at + number]))
        for number, item in enumerate(added):
            yield Change(place, f"[{at + number}]", after=_value(item))
        items[at : at + count] = added
        gone += count


def _text_change(old: str, new: str) -> tuple[str, str]:
    """A long text of which a piece changed: the piece, and a little of what is around it."""
    start, end = deltas.ends(old, new)
    left = old[max(start - AROUND, 0) : start]
    right = old[len(old) - end :][:AROUND]
    before, after = old[start : len(old) - end], new[start : len(new) - end]
    left = f"…{left}" if start > AROUND else left
    right = f"{right}…" if end > AROUND else right
    return _value(left + before + right), _value(left + after + right)


def _key(key: str) -> str:
    return key if key.isidentifier() else _value(key)


def _value(value: Any) -> str:
    return deltas.encode(value).decode()
