"""The parts that a long text is found by: as long as a paragraph, each a little into the next.

A text of many subjects is near to no question as a whole, and an embedding model reads only its
beginning. A short text is its own only passage.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["WHOLE", "passages"]

#: Characters up to which a text stays whole; of a passage; and up to how many two of them share.
WHOLE, LONGEST, SHARED = 800, 600, 150

_END = re.compile(r"(?<=[.!?。！？])\s+|\n+|(?<=[。！？])")  # noqa: RUF001 - as Chinese has them


def passages(text: str) -> list[str]:
    """The passages of *text*, in order.

    >>> passages("A short text.")
    ['A short text.']
    """
    if len(text) <= WHOLE:
        return [text]
    ends = list(_ends(text))
    starts = [0, *ends[:-1]]
    found = []
    first = 0
    while True:
        last = first
        while last + 1 < len(ends) and ends[last + 1] - starts[first] <= LONGEST:
            last += 1
        found.append(text[starts[first] : ends[last]])
        if last + 1 == len(ends):
            return found
        # The next one begins with the last sentences of this one, as far as they are short.
        first, before = last + 1, first
        while first - 1 > before and ends[last] - starts[first - 1] <= SHARED:
            first -= 1


def _ends(text: str) -> Iterator[int]:
    """Where *text* may be cut: behind a sentence or a line; a longer one between words."""
    start = 0
    for end in [*(found.end() for found in _END.finditer(text)), len(text)]:
        while end - start > LONGEST:
            start = text.rfind(" ", start + LONGEST // 2, start + LONGEST) + 1 or start + LONGEST
            yield start
        if end > start:
            yield end
            start = end
