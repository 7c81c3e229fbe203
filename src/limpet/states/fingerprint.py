"""Fingerprints: what an agent was when it saved its state, compared with what it is now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from limpet.llm.messages.shape import calls_of, name_of

__all__ = ["FingerprintChange", "compare"]

Pair = tuple[Any, Any]

#: The fields of a fingerprint that mean something; others are compared too.
TOOLS, MEMBERS = "tools", "members"
_KNOWN = ("name", "type", "prompt", "model")


class FingerprintChange(Struct, frozen=True, kw_only=True):
    """What differs between the agent that saved a state and the one that is to have it.

    Each pair is what it was and what it is.
    """

    name: Pair | None = None
    type: Pair | None = None
    prompt: Pair | None = None
    model: Pair | None = None
    tools_added: list[str] = field(default_factory=list)
    tools_removed: list[str] = field(default_factory=list)
    tools_changed: list[str] = field(default_factory=list)
    #: Those of the removed tools that the saved history still calls: a model may call them again.
    still_called: list[str] = field(default_factory=list)
    members_added: list[str] = field(default_factory=list)
    members_removed: list[str] = field(default_factory=list)
    members: dict[str, FingerprintChange] = field(default_factory=dict)
    others: dict[str, Pair] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._phrases())

    def __str__(self) -> str:
        return "; ".join(self._phrases())

    def _phrases(self) -> list[str]:
        """In words; without the prompts themselves, for they may be long."""
        found = [
            f"{what} {_short(pair[0])} is now {_short(pair[1])}"
            for what in ("name", "type", "model")
            if (pair := getattr(self, what)) is not None
        ]
        if self.prompt is not None:
            found.append("the prompt is another")
        for names, what in (
            (self.tools_added, "new tools: {}"),
            (self.tools_removed, "tools that are gone: {}"),
            (self.still_called, "the saved history still calls {}, which is gone"),
            (self.tools_changed, "tools that take something else: {}"),
            (self.members_added, "new members: {}"),
            (self.members_removed, "members that are gone: {}"),
            (list(self.others), "also other: {}"),
        ):
            if names:
                found.append(what.format(", ".join(names)))
        return found + [f"{name}: {change}" for name, change in self.members.items()]


def compare(
    was: Mapping[str, Any] | None, is_: Mapping[str, Any] | None, document: Any = None
) -> FingerprintChange | None:
    """What differs between two fingerprints; None if nothing does, or if one of them is missing.

    *document* is the state that was saved: it may still call tools that are gone.
    """
    if was is None or is_ is None:
        return None
    old, new = _tools(was.get(TOOLS)), _tools(is_.get(TOOLS))
    removed = [name for name in old if name not in new]
    before, now = _members(was), _members(is_)
    within = {name: compare(before[name], now[name], document) for name in before if name in now}
    # Tools and members are compared one by one above, if they are of a form that is known.
    forms = (Mapping, list, tuple, type(None))
    pairs = {
        name: (was.get(name), is_.get(name))
        for name in dict.fromkeys([*was, *is_])
        if was.get(name) != is_.get(name)
        and not (
            name in (TOOLS, MEMBERS)
            and isinstance(was.get(name), forms)
            and isinstance(is_.get(name), forms)
        )
    }
    called = _called_tools(document) if removed else set()
    found = FingerprintChange(
        **{name: pairs.pop(name, None) for name in _KNOWN},
        tools_added=[name for name in new if name not in old],
        tools_removed=removed,
        tools_changed=[name for name in old if name in new and old[name] != new[name]],
        still_called=[name for name in removed if name in called],
        members_added=[name for name in now if name not in before],
        members_removed=[name for name in before if name not in now],
        members={name: change for name, change in within.items() if change is not None},
        others=pairs,
    )
    return found or None


def _called_tools(document: Any) -> set[str]:
    """The names of the tools that messages in *document*, wherever they are, call."""
    found: set[str] = set()
    stack = [document]
    while stack:  # no recursion: documents may be deep
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, dict):
            stack.extend(value.values())
            for call in calls_of(value):
                found.add(name_of(value, call) or call.removeprefix("function:"))
            # AutoGen's: a message whose content is a list of calls, with id, name and arguments.
            content = value.get("content")
            for part in content if isinstance(content, list) else ():
                if isinstance(part, dict) and "arguments" in part:
                    name = part.get("name")
                    found.update({name} if isinstance(name, str) else ())
    return found


def _tools(tools: Any) -> dict[str, Any]:
    """Tools by name, with what is known of each: from a dict, a list of names or of schemas."""
    if isinstance(tools, Mapping):
        return {str(name): schema for name, schema in tools.items()}
    found: dict[str, Any] = {}
    for tool in tools if isinstance(tools, (list, tuple)) else ():
        if isinstance(tool, str):
            found[tool] = None
        elif isinstance(tool, Mapping):
            inner = tool.get("function")
            inner = inner if isinstance(inner, Mapping) else tool
            found[str(inner.get("name") or tool.get("type"))] = tool
    return found


def _members(fingerprint: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Members by name, with the fingerprint of each: from a dict, or a list of names."""
    members = fingerprint.get(MEMBERS)
    if isinstance(members, Mapping):
        return {
            name: one if isinstance(one, Mapping) else {"type": one}
            for name, one in members.items()
        }
    return {str(name): {} for name in members} if isinstance(members, (list, tuple)) else {}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"  # noqa: PLR2004 - a line
