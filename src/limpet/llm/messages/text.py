"""The words in a message, whatever its shape: for search, and for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from limpet.llm.messages import anthropic, chat, responses
from limpet.llm.messages.parts import arguments_text
from limpet.llm.messages.shape import blocks_of, kind_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from limpet.llm.messages.parts import Part

__all__ = ["parts_of", "text_of", "thought"]

_READERS = {"chat": chat.read, "responses": responses.read, "anthropic": anthropic.read}


def parts_of(message: Mapping[str, Any]) -> list[Part]:
    """What *message* says, piece by piece."""
    read = _READERS[shape_of(message) or "chat"]
    return [part for turn in read(message, 0) for part in turn.parts]


def text_of(message: Mapping[str, Any]) -> str:
    """All words in *message*: what is said and thought, names and arguments of calls, results.

    >>> text_of({"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"})
    'now {}'
    """
    return "\n".join(words for words in _words(parts_of(message)) if words)


def _words(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        if part.kind in ("text", "refusal"):
            yield part.text
        elif part.kind in ("call", "custom"):
            yield f"{part.name} {arguments_text(part)}"
        elif part.kind == "result":
            yield from _words(part.parts)
        elif part.kind == "thought":
            yield thought(part.body)
        elif part.kind == "file":
            yield part.name


def thought(body: Any) -> str:
    """What a model thought, as far as its provider says it."""
    if not hasattr(body, "get"):
        return ""
    if isinstance(body.get("thinking"), str):
        return str(body["thinking"])
    summary = body.get("summary")
    pieces = [*(summary if isinstance(summary, list) else ()), *blocks_of(body)]
    texts = [p.get("text") for p in pieces if isinstance(p, Mapping) and kind_of(p)]
    return "\n".join(text for text in texts if isinstance(text, str))
