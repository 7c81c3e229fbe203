"""A question in words, for FTS5: everything quoted, so that nothing in it is syntax."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from limpet.core.text_index import spaced

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["matching", "terms"]

#: Words of a query that are looked at: what is longer is a text, not a question.
MOST = 64

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
# Words that questions are made of, and that say nothing about what is asked.
_STOP = frozenset(
    """a about all also am an and any are as at be because been before being but by can could
    did do does doing don for from get had has have having he her here hers him his how i if in
    into is it its itself just ll me more most my no not now of on once only or other our out
    over own re s same she should so some such t than that the their them then there these they
    this those through to too under until up ve very was we were what when where which while who
    whom whose why will with would you your yours""".split()  # noqa: SIM905 - as people read it
)


def terms(query: str) -> list[str]:
    """The words of *query* that matter, each once; all of them if none does."""
    # Other letters are left to FTS5, which knows their capitals in its own way: ß is one for it.
    found = (word.lower() if word.isascii() else word for word in _WORD.findall(spaced(query)))
    words = dict.fromkeys(part for word in found for part in re.split(r"['\u2019]", word))
    matter = [word for word in words if word not in _STOP]
    return (matter or list(words))[:MOST]


def matching(words: Iterable[str]) -> str:
    """What FTS5 is asked for: any of *words*."""
    return " OR ".join(f'"{word}"' for word in words)
