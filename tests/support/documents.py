"""Random documents, as agents have them, and what may happen to them between two saves."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["documents", "edited", "histories"]

# Keys and texts that could pass for something else: for structure, for a path, for a word of a
# patch, for each other.
KEYS = st.sampled_from(
    [
        *(
            "a",
            "b",
            "A",
            "",
            " ",
            "a.b",
            "a/b",
            "~0",
            "~1",
            "[0]",
            "0",
            "1",
            "-1",
            '"',
            "\\",
            "\\n",
        ),
        *("put", "add", "in", "drop", "order", "at", "cut", "null"),
        *("é", "e\u0301", "\u2028", "\x00"),
    ]
)
TEXTS = st.one_of(
    st.text(max_size=8),
    st.text(alphabet='[]{}"\\,:nul ', max_size=8),
    st.sampled_from(["word " * 20, "😀" * 45, "é" * 41 + '"\\']),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 1.0, 0.0, -0.0, 2**63, -(2**63) - 1, 2**64, 10**40, 1e22, 5e-324]),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@st.composite
def documents(draw: Any) -> Any:
    """A document: mostly a dict with a history in it, sometimes anything."""
    if draw(st.integers(0, 5)) == 0:
        return draw(VALUES)
    document = draw(st.dictionaries(KEYS, VALUES, max_size=4))
    document["messages"] = draw(st.lists(VALUES, max_size=6))
    return document


@st.composite
def edited(draw: Any, document: Any) -> Any:
    """What may have become of *document*."""
    made = copy.deepcopy(document)
    for _ in range(draw(st.integers(0, 4))):
        made = _edit(draw, made)
    return made


@st.composite
def histories(draw: Any, most: int = 6) -> list[Any]:
    """Documents that became of each other, oldest first."""
    found = [draw(documents())]
    for _ in range(draw(st.integers(1, most))):
        found.append(draw(edited(found[-1])))
    return found


def _edit(draw: Callable[[Any], Any], value: Any) -> Any:
    """*value* with one change, in it or below it."""
    if isinstance(value, dict) and value:
        return _edit_dict(draw, value)
    if isinstance(value, list):
        return _edit_list(draw, value)
    if isinstance(value, str) and draw(st.booleans()):
        return _edit_text(draw, value)
    return draw(st.one_of(VALUES, st.just(_twin(value))))


def _edit_dict(draw: Callable[[Any], Any], value: dict[str, Any]) -> Any:
    what = draw(st.integers(0, 9))
    key = draw(st.sampled_from(list(value)))
    if what == 0:
        del value[key]
    elif what == 1:
        return dict(draw(st.permutations(list(value.items()))))
    elif what == 2:
        return draw(documents())
    elif what <= 4:
        value[draw(KEYS)] = draw(VALUES)
    else:
        value[key] = _edit(draw, value[key])
    return value


def _edit_list(draw: Callable[[Any], Any], value: list[Any]) -> Any:
    what = draw(st.integers(0, 9))
    at = draw(st.integers(0, len(value)))
    if what <= 3 or not value:
        value += draw(st.lists(VALUES, min_size=1, max_size=3))
    elif what == 4:
        value[at:at] = draw(st.lists(VALUES, max_size=2))
    elif what == 5:
        del value[:at]
        value += draw(st.lists(VALUES, max_size=2))
    elif what == 6:
        del value[at : at + 2]
    elif what == 7:
        return list(draw(st.permutations(value)))
    else:
        value[at - 1] = _edit(draw, value[at - 1])
    return value


def _edit_text(draw: Callable[[Any], Any], value: str) -> str:
    at = draw(st.integers(0, len(value)))
    what = draw(st.integers(0, 3))
    return (
        value + draw(TEXTS),
        value[:at] + draw(TEXTS) + value[at:],
        value[:at],
        value[:at] + value[at + 1 :],
    )[what]


def _twin(value: Any) -> Any:
    """What Python takes for the same, and JSON does not."""
    if isinstance(value, bool):
        return int(value)
    if value in (0, 1) and isinstance(value, int):
        return bool(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
