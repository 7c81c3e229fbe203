"""Text in the pieces of words that the local model was taught with.

``wordpieces.txt`` is the vocabulary of BERT (uncased), published by Google under the Apache Licence
2.0: a piece a line, its number being that of its line; one that continues a word begins with ##.
"""

from __future__ import annotations

import functools
import os
import unicodedata

__all__ = ["WordPieces"]

#: A word of more characters is not known.
LONGEST = 100

_FILE = os.path.join(os.path.dirname(__file__), "wordpieces.txt")


class WordPieces:
    """Turns text into numbers."""

    def __init__(self) -> None:
        with open(_FILE, encoding="utf-8") as file:
            self._numbers = {line.rstrip("\n"): number for number, line in enumerate(file)}
        self._unknown = self._numbers["[UNK]"]
        self._first, self._last = self._numbers["[CLS]"], self._numbers["[SEP]"]
        # Per instance: the same words come again and again.
        self._pieces = functools.lru_cache(maxsize=20_000)(self._split)

    def numbers(self, text: str, most: int) -> list[int]:
        """The pieces of *text*, up to *most* with those that mark its beginning and its end."""
        found = [self._first]
        for word in _words(text):
            found += self._pieces(word)
            if len(found) >= most:
                break
        return [*found[: most - 1], self._last]

    def _split(self, word: str) -> tuple[int, ...]:
        """The longest pieces that *word* is made of, from its beginning."""
        if len(word) > LONGEST:
            return (self._unknown,)
        found: list[int] = []
        start = 0
        while start < len(word):
            for end in range(len(word), start, -1):
                number = self._numbers.get(("##" if start else "") + word[start:end])
                if number is not None:
                    found.append(number)
                    start = end
                    break
            else:
                return (self._unknown,)
        return tuple(found)


def _words(text: str) -> list[str]:
    """Words without capitals and accents; each sign of punctuation is one."""
    lower = unicodedata.normalize("NFD", text.lower())
    return "".join(map(_part, lower)).split()


@functools.lru_cache(maxsize=10_000)
def _part(sign: str) -> str:
    """What becomes of one character."""
    if sign.isascii():
        return sign if sign.isalnum() else " " if sign.isspace() else _ascii(sign)
    category = unicodedata.category(sign)
    if category == "Mn" or sign == "\ufffd":
        return ""
    if category == "Zs":
        return " "
    if category.startswith("C"):
        return ""
    return f" {sign} " if category.startswith("P") or _is_chinese(ord(sign)) else sign


def _ascii(sign: str) -> str:
    return f" {sign} " if sign.isprintable() else ""


def _is_chinese(point: int) -> bool:
    """Signs that are words by themselves, as the vocabulary has them."""
    blocks = (
        *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
        *((0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
    )
    return any(low <= point <= high for low, high in blocks)
