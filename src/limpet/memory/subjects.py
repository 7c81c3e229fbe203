"""Whether a text is about a subject: names told apart as people do, by their words and signs."""

from __future__ import annotations

import re
import unicodedata

from limpet.core.text_index import spaced

__all__ = ["Subject", "plain", "same_name"]

# Signs that make a name another one belong to it; all others stand by themselves.
_PARTS = re.compile(
    r"""
    [^\W_]*\.(?:js|ts|net|io|ai)(?![^\W_])                    # .NET, Node.js
    | (?<![^\W_])[a-z](?:\#+|\+\++|\+(?![^\W_]))              # C#, C++, C++11, an A+; but not A+B
    | [^\W_]+(?:\+\+)?                                        # a word; Notepad++
    | \.(?=[^\W_]) | [^\w\s.]
    """,
    re.VERBOSE,
)
#: Signs that count, with those that Unicode calls symbols, where the subject has them.
_TELLING = "&%."


class Subject:
    """Called with a text, whether it has these words, whole and in this order; or many of them.

    >>> about = Subject("C++")
    >>> about("We moved to c++20."), about("C, then C#")
    (True, False)
    >>> Subject("ada lovelace")("Met Áda-Lovelace's mother")
    True
    """

    def __init__(self, name: str) -> None:
        words = plain(name)
        self._signs = {part for part in _PARTS.findall(words) if _tells(part)}
        self._wanted = " ".join(self._read(words))

    def __call__(self, text: str) -> bool:
        """Whether *text* is about it."""
        if not self._wanted:
            return False  # a full stop is nobody's name
        said = f" {' '.join(self._read(plain(text)))} "
        # The second, of many or of somebody.
        return f" {self._wanted} " in said or f" {self._wanted}s " in said

    def _read(self, words: str) -> list[str]:
        return [part for part in _PARTS.findall(words) if part in self._signs or _is_word(part)]


def _is_word(part: str) -> bool:
    return any(map(str.isalnum, part))


def _tells(part: str) -> bool:
    return part in _TELLING or (len(part) == 1 and unicodedata.category(part)[0] == "S")


def same_name(one: str, other: str) -> bool:
    """Whether two names differ in capitals and accents at most."""
    return one == other or plain(one) == plain(other)


def plain(text: str) -> str:
    """*text* without capitals and accents."""
    letters = unicodedata.normalize("NFKD", spaced(text)).casefold()
    return "".join(letter for letter in letters if not unicodedata.combining(letter))
