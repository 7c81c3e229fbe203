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
    are one unit, which fits as a whole or not at all. A result that belongs to no call before it
    cannot be sent to any model and is left out.
    """

    def __init__(self, max_tokens: int | None, max_messages: int | None, count: Counter) -> None:
        self._max_tokens = max_tokens
        self._tokens_left = max_tokens
        self._messages_left = max_messages
        self._count = count
        self._kept: list[dict[str, Any]] = []
        self._taken: list[dict[str, Any]] = []  # newest first
        self._unit: list[dict[str, Any]] = []  # results whose call is still to come

    def keep(self, message: dict[str, Any]) -> None:
        """Put in a message of the opening (a system message): it stays whatever comes."""
        if not self._fits([message]):
            raise self._too_small("The system message")
        self._charge([message])
        self._kept.append(message)

    def take(self, message: dict[str, Any]) -> bool:
        """Add the next older message. False when the window is full."""
        if message.get("role") == "tool":
            self._unit.append(message)
            # No need to look further for the call of results that are too much already.
            return self._fits(self._unit) or self._refuse()
        calls = _call_ids(message)
        unit = [result for result in self._unit if result.get("tool_call_id") in calls]
        self._unit = []
        unit.append(message)
        if not self._fits(unit):
            return self._refuse()
        self._charge(unit)
        self._taken += unit
        return True

    def messages(self) -> list[dict[str, Any]]:
        """The opening and what was taken, oldest first."""
        return self._kept + self._taken[::-1]

    def _fits(self, unit: list[dict[str, Any]]) -> bool:
        if self._messages_left is not None and len(unit) > self._messages_left:
            return False
        return self._tokens_left is None or self._cost(unit) <= self._tokens_left

    def _cost(self, unit: list[dict[str, Any]]) -> int:
        return sum(self._count(message) for message in unit)

    def _charge(self, unit: list[dict[str, Any]]) -> None:
        if self._messages_left is not None:
            self._messages_left -= len(unit)
        if self._tokens_left is not None:
            self._tokens_left -= self._cost(unit)

    def _refuse(self) -> bool:
        if not self._taken:
            raise self._too_small("The newest message, with what belongs to it,")
        return False

    def _too_small(self, what: str) -> WindowTooSmall:
        budget = "the window" if self._max_tokens is None else f"{self._max_tokens:,} tokens"
        return WindowTooSmall(f"{what} does not fit {budget}. Allow more, or shorten it.")


def _call_ids(message: Mapping[str, Any]) -> set[str]:
    return {call.get("id", "") for call in message.get("tool_calls") or ()}
