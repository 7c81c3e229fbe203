"""The newest messages that fit a budget, with tool calls and their results kept together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.errors import WindowTooSmall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.tokens import Counter

__all__ = ["Window"]


class Window:
    """Takes messages newest first and keeps those that fit.

    Messages come in units: most are one message; an assistant's tool calls and all their results
    are one unit, which fits as a whole or not at all. What no model takes is left out: a result
    that belongs to no call before it, and a call that went unanswered before something else was
    said. The newest calls may still be waiting for their results, and stay.
    """

    def __init__(self, max_tokens: int | None, max_messages: int | None, count: Counter) -> None:
        self._max_tokens = max_tokens
        self._max_messages = max_messages
        self._tokens = 0
        self._count = count
        self._kept: list[dict[str, Any]] = []
        self._taken: list[dict[str, Any]] = []  # newest first
        self._results: list[dict[str, Any]] = []  # those whose call is still to come
        self._newest = True  # until something else than a result has come

    def keep(self, message: dict[str, Any]) -> None:
        """Put in a message of the opening (a system message): it stays whatever comes."""
        if not self._add([message], self._kept):
            raise self._too_small("The system message")

    def take(self, message: dict[str, Any]) -> bool:
        """Add the next older message. False when the window is full."""
        if message.get("role") == "tool":
            self._results.append(message)
            return True
        calls = _call_ids(message)
        results = [result for result in self._results if _result_id(result) in calls]
        answered = {_result_id(result) for result in results}
        newest, self._newest, self._results = self._newest, False, []
        if calls - answered and not newest:
            return True
        if self._add([*results, message], self._taken):
            return True
        if not self._taken:
            raise self._too_small("The newest message, with what belongs to it,")
        return False

    def messages(self) -> list[dict[str, Any]]:
        """The opening and what was taken, oldest first."""
        return self._kept + self._taken[::-1]

    def _add(self, unit: list[dict[str, Any]], to: list[dict[str, Any]]) -> bool:
        """Add *unit* if it fits."""
        if self._max_messages is not None:
            messages = len(self._kept) + len(self._taken) + len(unit)
            if messages > self._max_messages:
                return False
        if self._max_tokens is not None:
            tokens = self._tokens + sum(self._count(message) for message in unit)
            if tokens > self._max_tokens:
                return False
            self._tokens = tokens
        to += unit
        return True

    def _too_small(self, what: str) -> WindowTooSmall:
        limits = (self._max_tokens, "tokens"), (self._max_messages, "messages")
        budget = " and ".join(f"{most:,} {unit}" for most, unit in limits if most is not None)
        return WindowTooSmall(f"{what} does not fit {budget}. Allow more, or shorten it.")


def _call_ids(message: Mapping[str, Any]) -> set[str]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return set()
    ids = [call.get("id") for call in calls if isinstance(call, dict)]
    return {id_ for id_ in ids if isinstance(id_, str)}


def _result_id(message: Mapping[str, Any]) -> str | None:
    id_ = message.get("tool_call_id")
    return id_ if isinstance(id_, str) else None
