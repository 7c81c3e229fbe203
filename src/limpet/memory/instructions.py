"""Texts that say how things are to be done from now on, and when.

"Always cite in APA style when I ask about references" bears on every question about references, and
shares few words with any. So it is compared by what it is about, too: "references". English only.
"""

from __future__ import annotations

import re

__all__ = ["about_what", "instructs"]

#: Characters; a longer text that begins so says other things as well.
LONGEST = 400

_SAYS = re.compile(
    r"""^\W*(?:please[ ,]+)?(?:always|never|from\ now\ on|whenever|do(?:\ not|n['\u2019]t)\ ever)\b
    |\bwhen(?:ever)?\ I\ ask\b""",
    re.IGNORECASE | re.VERBOSE,
)
_WHEN = (
    re.compile(r"\bask(?:ing)? (?:you )?(?:about|for) ([^.\n]+)", re.IGNORECASE),
    re.compile(r"\b(?:when(?:ever)?|if|where) (?:I|we|you) ([^.,\n]+)", re.IGNORECASE),
)


def instructs(text: str) -> bool:
    """Whether *text* says how things are to be done from now on.

    >>> instructs("Always answer in French.")
    True
    >>> instructs("I have always liked French food.")
    False
    """
    return len(text) <= LONGEST and _SAYS.search(text) is not None


def about_what(text: str) -> str | None:
    """When an instruction is to be followed, if it says so.

    >>> about_what("Always give page numbers when I ask about sources.")
    'sources'
    """
    found = next(filter(None, (pattern.search(text) for pattern in _WHEN)), None)
    return found[1].strip(" ->") or None if found else None
