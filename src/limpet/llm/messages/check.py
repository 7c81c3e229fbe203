"""What no provider takes for a message, found before it is stored.

Only what is wrong in all three shapes: a provider would refuse the whole history for it later, when
nobody remembers where it came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ROLES", "fault_of"]

#: Who can speak, in any of the shapes.
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})

# What has no text in it. Objects are left to whoever stores them: they may become parts.
_NO_TEXT = (bool, int, float, Mapping)
_NO_PART = (str, bool, int, float, list, tuple, type(None))


def fault_of(message: Mapping[str, Any]) -> str | None:
    """What is wrong with *message*, in words; None if nothing is.

    Items that are no messages, such as a tool call of Responses, are whatever their type says.

    >>> fault_of({"role": "usr", "content": "Hello"})
    "has the role 'usr'. Did you mean 'user'?"
    """
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or message.get("type", "message") != "message":
        return None
    if role not in ROLES:
        from difflib import get_close_matches  # noqa: PLC0415 - slow to import, and few need it

        close = get_close_matches(role.lower(), sorted(ROLES), 1)
        known = f"Did you mean {close[0]!r}?" if close else f"Roles are {', '.join(sorted(ROLES))}."
        return f"has the role {role!r:.40}. {known}"
    if isinstance(content, _NO_TEXT):
        return f"has content of type {type(content).__name__}. It is text, or a list of parts."
    for number, part in enumerate(content if isinstance(content, (list, tuple)) else (), 1):
        if isinstance(part, _NO_PART):
            kind = type(part).__name__
            return f"has content whose part {number} is of type {kind}. A part is a dict."
        if isinstance(part, Mapping) and not isinstance(part.get("type"), str):
            return f"has content whose part {number} has no 'type', such as 'text'."
    return None
