"""What changed between two documents, as a patch that is data too.

A document is what JSON has: dicts with text for keys, lists, text, numbers, booleans, None. A patch
has the shape of the document that it changes, so that no path has to be written, or escaped::

    {"put": value}                                      another value altogether
    {"add": [item, …]}   {"add": "text"}                a list, or a text, that goes on
    {"in": {key: patch}, "drop": [key], "order": [key]} a dict; what is new goes to its end, unless
                                                        all its keys are given in their order
    {"at": [[index, patch]], "cut": [[at, count, [item, …]]]}
                                                        a list: first items that changed where they
                                                        are, then splices, one after the other
    {"cut": [at, count, "text"]}                        a text of which one piece changed

Patches are small where documents grow at the end, as histories do. They need not be the smallest:
whoever writes one tries it out by `apply` first, and a digest tells every reader that it is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Patch = dict[str, Any]

__all__ = [
    "BadPatch",
    "Digest",
    "NotPlain",
    "apply",
    "diff",
    "digest",
    "encode",
    "ends",
    "grown_list",
    "growth",
    "is_patched",
]

#: A text that is no longer than this is put anew: saying where it changed takes as much room.
SHORT = 40

#: A digest can be taken up again after every so many bytes.
BLOCK = 64 * 1024

#: How often to look for the beginning of a list further back in the one before.
LOOKS = 16

_PLAIN = frozenset({dict, list, str, int, float, bool, type(None)})

#: The one form of a document that is compared and digested: JSON, keys in their order.
encode = msgspec.json.Encoder().encode


class NotPlain(TypeError):
    """A document holds what JSON has not; make it plain first."""


class BadPatch(ValueError):
    """A patch that does not fit its document, or is none."""


def digest(encoded: bytes) -> str:
    """The digest of a document, given as `encode` has it."""
    import hashlib  # noqa: PLC0415 - most programs that import us never need it

    return hashlib.sha256(encoded).hexdigest()[:32]


class Digest:
    """The same for a document that is much like another one, whose digest is *before*.

    What both begin with is not gone through again: hashing goes on at the last block in common.
    """

    def __init__(self, encoded: bytes, before: Digest | None = None) -> None:
        import hashlib  # noqa: PLC0415 - as above

        self.encoded = encoded
        #: The state of the hash after each block.
        self._blocks = [] if before is None else before._in_common(encoded)  # noqa: SLF001 - its own kind
        state = self._blocks[-1].copy() if self._blocks else hashlib.sha256()
        done = len(self._blocks) * BLOCK
        while len(encoded) - done >= BLOCK:
            state.update(encoded[done : done + BLOCK])
            self._blocks.append(state.copy())
            done += BLOCK
        state.update(encoded[done:])
        self.text = state.hexdigest()[:32]

    def _in_common(self, encoded: bytes) -> list[Any]:
        """The blocks that *encoded* begins with, too."""
        for number in range(len(self._blocks)):
            block = slice(number * BLOCK, (number + 1) * BLOCK)
            if not encoded.startswith(self.encoded[block], block.start):
                return self._blocks[:number]
        return self._blocks[:]


# -- what changed ----------------------------------------------------------------------------------


def diff(old: Any, new: Any, *, exact: bool = False) -> Patch | None:
    """What makes *new* of *old*; None if they are equal.

    By Python's ``==``, which is quick, but for which True is 1 and the order of keys is nothing;
    *exact*: by what they are stored as. *old* must be plain. Where *new* is not, `NotPlain` may be
    raised; the parts of it that are in the patch are *new*'s own, and may hold anything.

    >>> diff({"said": ["Hello"], "turn": 1}, {"said": ["Hello", "Good day"], "turn": 2})
    {'in': {'said': {'add': ['Good day']}, 'turn': {'put': 2}}}
    """
    if encode(old) == encode(new) if exact else old == new:
        return None
    if new.__class__ not in _PLAIN:
        raise NotPlain(type(new).__name__)
    if old.__class__ is not new.__class__:
        return {"put": new}
    if new.__class__ is dict:
        return _diff_dict(old, new, exact=exact)
    if new.__class__ is list:
        return _diff_list(old, new, exact=exact)
    if new.__class__ is str:
        return _diff_text(old, new)
    return {"put": new}


def _diff_dict(old: dict[str, Any], new: dict[str, Any], *, exact: bool) -> Patch:
    changed: dict[str, Patch] = {}
    for key, value in new.items():
        if key not in old:
            if key.__class__ is not str:
                raise NotPlain(type(key).__name__)
            changed[key] = {"put": value}
        elif (patch := diff(old[key], value, exact=exact)) is not None:
            changed[key] = patch
    found: Patch = {"in": changed} if changed else {}
    dropped = [key for key in old if key not in new]
    if dropped:
        found["drop"] = dropped
    added = [key for key in changed if key not in old]
    order = [key for key in old if key in new] + added
    if order != list(new):
        found["order"] = list(new)
    return found


def _diff_list(old: list[Any], new: list[Any], *, exact: bool) -> Patch:
    # What is compared: the items, or what they are stored as.
    was, is_ = (list(map(encode, old)), list(map(encode, new))) if exact else (old, new)
    if len(new) > len(old) and is_[: len(old)] == was:
        return {"add": new[len(old) :]}
    start, end = ends(was, is_)
    gone, come = len(old) - end - start, len(new) - end - start
    shift = _shift(was[start : len(old) - end], is_[start : len(new) - end])
    if shift:
        kept = gone - shift
        rest = new[start + kept : len(new) - end]
        return {"cut": [[start, shift, []], *([[start + kept, 0, rest]] if rest else [])]}
    if gone > come:
        return {"cut": [[start, gone, new[start : start + come]]]}
    # Items that changed where they are, and behind them those that came.
    found: Patch = {}
    changed = {
        index: patch
        for index in range(start, start + gone)
        if (patch := diff(old[index], new[index], exact=exact)) is not None
    }
    if len(changed) > 1 and all("put" in patch for patch in changed.values()):
        return {"cut": [[start, gone, new[start : start + come]]]}
    if changed:
        found["at"] = [list(pair) for pair in changed.items()]
    if come > gone:
        found["cut"] = [[start + gone, 0, new[start + gone : start + come]]]
    return found


def _diff_text(old: str, new: str) -> Patch:
    if len(new) <= SHORT:
        return {"put": new}
    if new.startswith(old):
        return {"add": new[len(old) :]}
    start, end = ends(old, new)
    if start + end <= SHORT:
        return {"put": new}
    return {"cut": [start, len(old) - end - start, new[start : len(new) - end]]}


def ends(old: Sequence[Any], new: Sequence[Any]) -> tuple[int, int]:
    """How many items are the same at the beginning, and behind those at the end."""
    most = min(len(old), len(new))
    start = _longest(most, lambda low, high: bool(old[low:high] == new[low:high]))
    most -= start
    was, is_ = len(old), len(new)

    def same_end(low: int, high: int) -> bool:
        return bool(old[was - high : was - low] == new[is_ - high : is_ - low])

    return start, _longest(most, same_end)


def _longest(most: int, same: Callable[[int, int], bool]) -> int:
    """How far two runs are the same, by halves: each look is one comparison in C."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if same(low, middle):
            low = middle
        else:
            high = middle - 1
    return low


def _shift(old: list[Any], new: list[Any]) -> int:
    """How many items went at the beginning, where the rest is what *new* begins with; 0: none did.

    So it is in a history that keeps the newest so many messages.
    """
    at = 0  # there they differ
    for _ in range(LOOKS):
        if not new or new[0] not in old[at + 1 :]:
            return 0
        at = old.index(new[0], at + 1)
        if old[at:] == new[: len(old) - at]:
            return at
    return 0


def growth(old: Any, new: Any, at: Sequence[str], before: bytes, after: bytes) -> Patch | None:
    """What makes *new* of *old*, if only the list at the path *at* has grown; None if it is more.

    *before* and *after* are what both are stored as, and are compared instead of them: that takes
    a tenth of the time.

    >>> growth({"said": [1]}, {"said": [1, 2]}, ["said"], b'{"said":[1]}', b'{"said":[1,2]}')
    {'in': {'said': {'add': [2]}}}
    """
    was, is_ = old, new
    for key in at:
        if was.__class__ is not dict or is_.__class__ is not dict:
            return None
        was, is_ = was.get(key), is_.get(key)
    if was.__class__ is not list or is_.__class__ is not list or len(is_) <= len(was):
        return None
    patch: Patch = {"add": is_[len(was) :]}
    for key in reversed(at):
        patch = {"in": {key: patch}}
    end = _grown_end(new, patch, before)
    return patch if end is not None and _has_grown(before, after, *end) else None


def grown_list(patch: Patch | None) -> list[str] | None:
    """The path to the list that *patch* adds to, if that is all it does."""
    path: list[str] = []
    while patch is not None and patch.keys() == {"in"} and len(patch["in"]) == 1:
        ((key, patch),) = patch["in"].items()
        path.append(key)
    is_list = patch is not None and patch.keys() == {"add"} and patch["add"].__class__ is list
    return path if is_list else None


# -- making the new one ----------------------------------------------------------------------------


def apply(document: Any, patch: Any) -> Any:
    """*document* with *patch*: the lists and dicts in it are changed in place.

    `BadPatch` if they do not fit; then *document* may be half changed, and is of no use.

    >>> apply({"said": ["Hello"]}, {"in": {"said": {"add": ["Good day"]}}})
    {'said': ['Hello', 'Good day']}
    """
    try:
        return _apply(document, patch)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError) as error:
        if isinstance(error, BadPatch):
            raise
        raise BadPatch(f"it does not fit what it changes ({type(error).__name__})") from error


def _apply(document: Any, patch: dict[str, Any]) -> Any:
    if patch.__class__ is not dict or not patch or not patch.keys() <= _WORDS:
        raise BadPatch("it says what this release does not know")
    if "put" in patch:
        return _only(patch, "put")
    if document.__class__ is dict:
        return _apply_dict(document, patch)
    if document.__class__ is list:
        return _apply_list(document, patch)
    if document.__class__ is str:
        return _apply_text(document, patch)
    raise BadPatch("it changes a part of what has no parts")


_WORDS = frozenset({"put", "add", "in", "drop", "order", "at", "cut"})


def _only(patch: dict[str, Any], word: str) -> Any:
    if len(patch) > 1:
        raise BadPatch(f"it says more than {word!r}")
    return patch[word]


def _apply_dict(document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    if not patch.keys() <= {"in", "drop", "order"}:
        raise BadPatch("it takes a dict for something else")
    for key in patch.get("drop", ()):
        del document[key]
    for key, inner in patch.get("in", {}).items():
        document[key] = _apply(document.get(key), inner)
    if "order" in patch:
        ordered = {key: document[key] for key in patch["order"]}
        if len(ordered) != len(document):
            raise BadPatch("its order is of other keys")
        document.clear()
        document.update(ordered)
    return document


def _apply_list(document: list[Any], patch: dict[str, Any]) -> list[Any]:
    if "add" in patch:
        added = _only(patch, "add")
        if added.__class__ is not list:
            raise BadPatch("it adds to a list what is none")
        document += added
        return document
    if not patch.keys() <= {"at", "cut"}:
        raise BadPatch("it takes a list for something else")
    for index, inner in patch.get("at", ()):
        document[_index(index, len(document) - 1)] = _apply(document[index], inner)
    for at, count, items in patch.get("cut", ()):
        end = _index(at + count, len(document))
        if items.__class__ is not list:
            raise BadPatch("it adds to a list what is none")
        document[_index(at, end) : end] = items
    return document


def _apply_text(document: str, patch: dict[str, Any]) -> str:
    if "add" in patch:
        return document + _text(_only(patch, "add"))
    at, count, text = _only(patch, "cut")
    end = _index(at + count, len(document))
    return document[: _index(at, end)] + _text(text) + document[end:]


def _text(text: Any) -> str:
    if text.__class__ is not str:
        raise BadPatch("it adds to a text what is none")
    return str(text)


def _index(index: Any, most: int) -> int:
    if index.__class__ is not int or not 0 <= index <= most:
        raise BadPatch("it speaks of a place that is not there")
    return int(index)


# -- making sure -----------------------------------------------------------------------------------


def is_patched(document: Any, patch: Patch, before: bytes, after: bytes) -> bool:
    """Whether *document*, to which *patch* was applied, is *after*; it was *before*.

    Both as `encode` has them. Histories only grow: where all that came is items of one list, those
    alone are encoded, and what is behind the list; of the rest that was known when it was *before*.

    >>> is_patched(
    ...     {"said": [1, 2]}, {"in": {"said": {"add": [2]}}}, b'{"said":[1]}', b'{"said":[1,2]}'
    ... )
    True
    """
    end = _grown_end(document, patch, before)
    if end is None:
        return encode(document) == after
    return _has_grown(before, after, *end)


def _has_grown(before: bytes, after: bytes, grown: bytes, behind: bytes) -> bool:
    """Whether *after* is *before* with *grown* in the place of its end, *behind*."""
    kept = len(before) - len(behind)
    return (
        len(after) == kept + len(grown)
        and after.endswith(grown)
        and after.startswith(before[:kept])
    )


def _grown_end(document: Any, patch: Patch, before: bytes) -> tuple[bytes, bytes] | None:
    """If *patch* adds to a list, and does nothing else: what that list and all ends with.

    First as it is now, from the first new item on, and then as it was *before*.
    """
    behind = b""
    while patch.keys() == {"in"} and len(patch["in"]) == 1:
        ((key, patch),) = patch["in"].items()
        keys = list(document)
        rest = {other: document[other] for other in keys[keys.index(key) + 1 :]}
        behind = (b"," + encode(rest)[1:] if rest else b"}") + behind
        document = document[key]
    behind = b"]" + behind
    if patch.keys() != {"add"} or document.__class__ is not list or not before.endswith(behind):
        return None
    added = encode(patch["add"])[1:-1]
    comma = b"," if added and len(document) > len(patch["add"]) else b""
    return comma + added + behind, behind
