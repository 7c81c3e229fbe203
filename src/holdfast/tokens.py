"""How many tokens a message takes.

Without a tokenizer this is an estimate, and is called one: about four bytes of UTF-8 text a token,
and four tokens of framing a message. Pass your own counter where the exact number matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Counter = Callable[[Mapping[str, Any]], int]

__all__ = ["estimate", "estimate_text"]

BYTES_PER_TOKEN = 4
PER_MESSAGE = 4


def estimate(message: Mapping[str, Any]) -> int:
    """About how many tokens *message* takes: text, tool calls and all else that is sent."""
    content = message.get("content")
    size = len(content.encode()) if isinstance(content, str) else len(msgspec.json.encode(content))
    rest = {k: v for k, v in message.items() if k not in ("role", "content")}
    if rest:
        size += len(msgspec.json.encode(rest))
    return PER_MESSAGE + -(-size // BYTES_PER_TOKEN)


def estimate_text(text: str) -> int:
    """About how many tokens *text* takes."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)
