"""How a text becomes words, for an index of them and for what is asked of it.

SQLite's full text takes what is between spaces and punctuation for a word. That leaves out emoji,
divides nothing in Chinese or Thai, and knows neither that ``getUserName`` has a *user* in it nor
that 1,000 is 1000. `indexed` writes a text so that it does; `phrases` asks for the same. Both are
pure, so that what was indexed can be named again when it is removed. A text of plain English words
goes through as it is.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TOKENIZER", "indexed", "phrases", "required"]

#: For FTS5: with marks, which in many scripts are the vowels of a word.
TOKENIZER = "unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'"

# Scripts without a space between words. Of the first, two signs say as much as a word; of Korean,
# whose words take endings, as well. Of the others, which are letters with marks, three do.
_HAN = "\u2e80-\u2fff\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3040-\u30ff\u31f0-\u31ff"
_HAN += "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HANGUL = "\uac00-\ud7a3"
_LETTERS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\uaa60-\uaa7f"
# With what stands above, below or round a letter. (Written out: `re` knows no categories.)
_MARKS = "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece"
_MARKS += "\u102b-\u103e\u1056-\u1059\u105e-\u1060\u1062-\u1064\u1071-\u1074\u1082-\u108d"
_MARKS += "\u17b4-\u17d3\u17dd\uaa7b-\uaa7d"
_SIGN = re.compile(f"[{_HAN}{_HANGUL}]|[{_LETTERS}][{_MARKS}]*")
_RUN = re.compile(f"([{_HAN}{_HANGUL}]+)|([{_LETTERS}]+)")

_EMOJI = re.compile(
    "[\U0001f1e6-\U0001f1ff]{2}"
    "|[\u231a\u231b\u23e9-\u23fa\u2600-\u27bf\u2b50\u2b55\U0001f000-\U0001faff]"
)
#: Their numbers in letters, which nobody takes for parts of a word.
_LETTERED = str.maketrans("0123456789", "ghijklmnop")
# What only says how the sign before is to be drawn or read aloud: variants, tones of skin, the
# points of Hebrew and Arabic. And trademarks, which would be letters of the word before them.
_DRAWN = re.compile(
    "[\ufe00-\ufe0f\U0001f3fb-\U0001f3ff\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    "\u0640\u064b-\u065f\u0670\u2120\u2122]"
)

# Where a word of a program has parts: aB, ABc, a1. In numbers, what stands between thousands. All
# other texts have nothing like `_ODD`, which takes little time to find out.
_UP, _LOW = "A-Z\u00c0-\u00d6\u00d8-\u00de", "a-z\u00df-\u00f6\u00f8-\u00ff"
_ODD = re.compile(f"[{_LOW}][{_UP}\\d]|[{_UP}](?:\\d|[{_UP}][{_LOW}])|\\d\\D\\d")
_PART = re.compile(f"[{_UP}]+(?![{_LOW}])|[{_UP}]?[{_LOW}]+|\\d+")
_THOUSANDS = re.compile(
    r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+(?![\w]|,\d)|\d{1,3}(?:\.\d{3})+(?![\w]|\.\d)"
    r"|\d{1,3}(?:['\u2019]\d{3})+(?!\w))"
)
_SEVERAL = re.compile(
    f"(?<![^\\W_])(?:[{_UP}]?[{_LOW}\\d]+[{_UP}]|[{_UP}]{{2,}}[{_LOW}]|[{_UP}{_LOW}]+\\d)[^\\W_]*"
)
_VERSION = re.compile(r"\b[vV](\d+(?:\.\d+)+)")
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_CHUNK = re.compile(r"[^\s\"\u201c\u201d\u201e\u00ab\u00bb()\[\]{}<>,;!?\u3000-\u3002\uff0c]+")
# Between the parts of one name: a path, an address, a version, a flag.
_JOINED = re.compile(r"[^\W_][_./:@\\#=&?%+~-]+[^\W_]")


def _plain(text: str) -> str:
    """*text* in the usual one of several ways to write the same: full width, points, ligatures."""
    found = unicodedata.normalize("NFKC", _DRAWN.sub("", text))
    return found.replace("ß", "ss").replace("\0", " ")


def indexed(text: str) -> str:
    """*text* as it is given to an index: with the parts of its identifiers and numbers behind it.

    Each sign of a script that puts no space between words is a word, and each emoji.

    >>> indexed("getUserName returns 1,000")
    'getUserName returns 1,000 get User Name 1000'
    >>> indexed("東京 2024")
    ' 東  京  2024'
    """
    if text.isascii():
        found = text.replace("\0", " ")
    else:
        found = _SIGN.sub(r" \g<0> ", _EMOJI.sub(_named, _plain(text)))
    if not _ODD.search(found):
        return found
    extra = [part for word in _SEVERAL.findall(found) for part in _parts(word)]
    extra += [re.sub(r"\D", "", number) for number in _THOUSANDS.findall(found)]
    extra += _VERSION.findall(found)
    return " ".join([found, *extra]) if extra else found


def _named(emoji: re.Match[str]) -> str:
    numbers = "".join(f"{ord(sign):x}" for sign in emoji[0])
    return f" emoji{numbers.translate(_LETTERED)} "


def _parts(word: str) -> list[str]:
    """The parts of an identifier, if it has several; a single letter is none."""
    found = _PART.findall(word)
    parts = [part for part in found if len(part) > 1 or part.isdigit()]
    return parts if len(found) > 1 and any(map(str.isalpha, parts)) else []


def phrases(query: str) -> Iterator[str]:
    """What *query* asks an index of `indexed` texts for: words, and words that go together.

    Those of one phrase have a space between them. Identifiers, addresses and numbers are asked for
    by their parts, and as a whole.

    >>> list(phrases("where is user_id set?"))
    ['where', 'is', 'user', 'id', 'user id', 'set']
    >>> list(phrases("getUserName"))
    ['getusername', 'get', 'user', 'name', 'get user name']
    >>> list(phrases("東京都"))
    ['東 京', '京 都']
    """
    text = query
    if not text.isascii():
        text = _EMOJI.sub(_named, _plain(query))
        for letters in _RUN.finditer(text):
            yield from _grams(letters)
        text = _RUN.sub(" ", text)
    if not (_ODD.search(text) or _JOINED.search(text)):
        for word in _words(text):
            yield from map(_lower, _halves(word))
        return
    yield from (re.sub(r"\D", "", number) for number in _THOUSANDS.findall(text))
    yield from (version.replace(".", " ") for version in _VERSION.findall(text))
    for chunk in _CHUNK.findall(_THOUSANDS.sub(" ", text)):
        whole: list[str] = []
        for word in _words(chunk):
            for half in _halves(word):
                yield _lower(half)
                parts = _parts(half) if _SEVERAL.fullmatch(half) else []
                yield from map(_lower, parts)
                whole += parts or [half]
        if len(whole) > 1 and (_JOINED.search(chunk) or _ODD.search(chunk)):
            yield " ".join(map(_lower, whole))


def required(chunk: str) -> Iterator[str]:
    """What an index of `indexed` texts must find for a *chunk* without spaces: queries for FTS5.

    As it is; or as a program, or a person, writes the same elsewhere.

    >>> list(required("getUserName"))
    ['("getUserName" OR "get User Name")']
    """
    text = chunk
    if not text.isascii():
        text = _EMOJI.sub(_named, _plain(chunk))
        for letters in _RUN.finditer(text):
            yield from (f'"{gram}"' for gram in _grams(letters))
        text = _RUN.sub(" ", text)
    words = [half for word in _words(text) for half in _halves(word)]
    parts = [part for word in words for part in (_parts(word) or [word])]
    numbers = [re.sub(r"\D", "", number) for number in _THOUSANDS.findall(text)]
    versions = [version.replace(".", " ") for version in _VERSION.findall(text)]
    ways = dict.fromkeys([" ".join(words), " ".join(parts), *numbers, *versions])
    named = [f'"{way}"' for way in ways if way]
    if named:
        yield named[0] if len(named) == 1 else f"({' OR '.join(named)})"


def _words(text: str) -> list[str]:
    """Its words, with apostrophes in them."""
    if text.isascii():
        return _WORD.findall(text)
    signs = (
        sign if sign.isalnum() or sign in "'\u2019" or unicodedata.category(sign)[0] == "M" else " "
        for sign in text
    )
    return "".join(signs).split()


def _halves(word: str) -> list[str]:
    """What is before and behind an apostrophe."""
    return [half for half in re.split(r"['\u2019]", word) if half]


def _lower(word: str) -> str:
    """Letters beyond ASCII are left to FTS5, which has its own idea of their capitals."""
    return word.lower() if word.isascii() else word


def _grams(letters: re.Match[str]) -> Iterator[str]:
    """The pairs of signs in a run of them, or threes of letters; a shorter run as it is."""
    signs, most = _SIGN.findall(letters[0]), 2 if letters[1] else 3
    last = max(len(signs) - most, 0)
    yield from (" ".join(signs[at : at + most]) for at in range(last + 1) if signs)
