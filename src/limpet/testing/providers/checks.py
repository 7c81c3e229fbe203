"""How a rule is stated: what must hold, where, and why it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    Messages = Sequence[Mapping[str, Any]]

__all__ = ["Refused", "each", "keys", "listed", "need", "refuse", "text"]


class Refused(AssertionError, ValueError):
    """The provider would answer this request with an error."""


def refuse(where: str, why: str) -> NoReturn:
    raise Refused(f"{where}: {why}")


def need(condition: object, where: str, why: str) -> None:
    if not condition:
        refuse(where, why)


def keys(thing: Mapping[str, Any], allowed: Collection[str], where: str) -> None:
    extra = sorted(set(thing) - set(allowed))
    need(not extra, where, f"unknown keys {', '.join(extra)}.")


def text(thing: Mapping[str, Any], key: str, where: str, *, empty: bool = True) -> str:
    """The text under *key*, which must be there."""
    value = thing.get(key)
    if not isinstance(value, str) or not (value or empty):
        refuse(where, f"{key} must be text{'' if empty else ' that is not empty'}.")
    return value


def each(messages: Messages, name: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The messages, each with its place as the provider names it."""
    need(messages, name, "there must be at least one.")
    found = [(f"{name}[{number}]", message) for number, message in enumerate(messages)]
    for where, message in found:
        need(isinstance(message, Mapping), where, "must be an object.")
    return found


def listed(content: Any, where: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The parts of a list of contents, each with its place."""
    need(isinstance(content, list), where, "content must be text or a list.")
    parts = [(f"{where}.content[{number}]", part) for number, part in enumerate(content)]
    for place, part in parts:
        need(isinstance(part, Mapping), place, "must be an object.")
        text(part, "type", place)
    return parts
