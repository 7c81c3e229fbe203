"""How far a termination condition has counted, which AutoGen saves nowhere."""

from __future__ import annotations

import inspect
import time
from typing import Any

from autogen_agentchat.conditions import TimeoutTermination
from autogen_agentchat.messages import StopMessage

__all__ = ["Counters"]

_PLAIN = (bool, int, float, str, type(None))
_SINCE = "_start_time"  # by a clock that only this process has
_STOPS = "_stop_messages"
_PARTS = "_conditions"


class Counters:
    """The counters of a condition, and of those that it is made of.

    A counter is what has changed since the condition was made: how far it may count is the
    program's to say, not the stored state's.
    """

    def __init__(self, condition: Any) -> None:
        self._condition = condition
        self._first = self._now()
        self._parts = [Counters(part) for part in getattr(condition, _PARTS, ())]

    def _now(self) -> dict[str, Any]:
        found = {name: v for name, v in vars(self._condition).items() if isinstance(v, _PLAIN)}
        if isinstance(self._condition, TimeoutTermination):
            found.pop(_SINCE, None)
        return found

    async def save(self) -> dict[str, Any]:
        """How far it has come."""
        condition = self._condition
        found: dict[str, Any] = {"class": type(condition).__name__}
        own = getattr(condition, "save_state", None)
        if own is not None:
            found["own"] = await _awaited(own())
            return found
        now = self._now()
        found |= {name: now[name] for name in now if now[name] != self._first.get(name)}
        if isinstance(condition, TimeoutTermination):
            found[_SINCE] = time.monotonic() - condition._start_time  # noqa: SLF001 - saved nowhere
        if getattr(condition, _STOPS, None):
            found[_STOPS] = [message.dump() for message in getattr(condition, _STOPS)]
        if self._parts:
            found[_PARTS] = [await part.save() for part in self._parts]
        return found

    async def load(self, saved: dict[str, Any] | None) -> None:
        """Be as far as *saved* says; at the beginning, if that is about another condition."""
        condition = self._condition
        if saved is None or saved.get("class") != type(condition).__name__:
            await condition.reset()
            return
        if "own" in saved and hasattr(condition, "load_state"):
            await _awaited(condition.load_state(saved["own"]))
            return
        for name, value in self._first.items():
            setattr(condition, name, self._counted(name, saved.get(name, value)))
        if isinstance(condition, TimeoutTermination):
            condition._start_time = time.monotonic() - saved.get(_SINCE, 0)  # noqa: SLF001
        if hasattr(condition, _STOPS):
            stops = [StopMessage.model_validate(message) for message in saved.get(_STOPS, ())]
            setattr(condition, _STOPS, stops)
        kept: list[Any] = saved.get(_PARTS, [])
        same = len(kept) == len(self._parts)
        for part, inner in zip(
            self._parts, kept if same else [None] * len(self._parts), strict=True
        ):
            await part.load(inner)

    def _counted(self, name: str, value: Any) -> Any:
        """*value* if it can be that of *name*: what is stored may have been altered."""
        first = self._first[name]
        # A class of somebody's own may put text where it had a number.
        own = not type(self._condition).__module__.startswith("autogen_")
        if isinstance(value, _PLAIN if own or first is None else type(first)):
            return value
        raise TypeError(f"{name} of {type(self._condition).__name__} is a {type(value).__name__}")


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
