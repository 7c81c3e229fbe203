"""Who says something: the name that a memory comes from, and whether it speaks of its speaker.

A question names whom it asks about: "What did Ada plan?", or "When is my exam?", which asks about
the user. What such a person said bears on it more than what others said in the same words.
"""

from __future__ import annotations

import re

__all__ = ["Asked", "first_person", "speaker_of"]

# As transcripts have it: "Ada Lovelace: I have written to him."
_NAME = r"[^\W\d_a-z][\w.'-]*"
_LABEL = re.compile(rf"\s*({_NAME}(?: {_NAME}){{0,2}}|user|assistant):\s")
_WORD = re.compile(r"\w+")

_FIRST_PERSON = frozenset({"i", "me", "mine", "my", "myself"})
#: Those who ask, and those who answer, by the names that chats have for them.
_ASKS = frozenset({"customer", "human", "user"})
_ANSWERS = frozenset({"ai", "assistant", "bot", "model", "system", "tool"})
#: One word in so many is of the first person where somebody speaks of nothing but themselves.
DENSE = 16


def speaker_of(text: str, by: str | None) -> str | None:
    """Who says *text*: its writer, if known, or whom it begins with, as in a transcript."""
    if by:
        return by.casefold()
    label = _LABEL.match(text)
    return label[1].casefold() if label else None


def first_person(text: str) -> float:
    """How much *text* speaks of who says it, from 0 to 1.

    >>> first_person("My exam is on Friday, and I am late")
    1.0
    >>> first_person("The exam is on Friday")
    0.0
    """
    words = _WORD.findall(text.casefold())
    count = sum(map(_FIRST_PERSON.__contains__, words))
    return min(DENSE * count / len(words), 1.0) if count else 0.0


class Asked:
    """Whom *query* asks about; words that are *ignored* are no names."""

    def __init__(self, query: str, ignored: frozenset[str]) -> None:
        words = set(_WORD.findall(query.casefold()))
        self._first = not words.isdisjoint(_FIRST_PERSON)
        self._names = words - ignored

    def about(self, speaker: str | None, first: float) -> float:
        """How much it asks about *speaker*, whose text is in the *first* person; from 0 to 1."""
        if speaker is not None and not self._names.isdisjoint(_WORD.findall(speaker)[:1]):
            return 1.0
        if not self._first or speaker in _ANSWERS:
            return 0.0
        return 1.0 if speaker in _ASKS else first
