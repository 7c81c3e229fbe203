"""Methods of one object replaced by others, and put back."""

from __future__ import annotations

from typing import Any

__all__ = ["Hooks"]


class Hooks:
    """What was put in the way of objects' own methods."""

    def __init__(self) -> None:
        self._put: list[tuple[Any, str, dict[str, Any]]] = []

    def put(self, it: Any, name: str, function: Any) -> Any:
        """Let *function* be called for the method *name* of this one object; returns the method."""
        own, before = getattr(it, name), getattr(it, "__dict__", {})
        was = {name: before[name]} if name in before else {}
        try:
            setattr(it, name, function)
        except AttributeError as error:
            msg = f"A {type(it).__name__} has __slots__, and cannot be kept."
            raise TypeError(msg) from error
        self._put.append((it, name, was))
        return own

    def release(self) -> None:
        """Let the objects be as they were."""
        while self._put:
            it, name, was = self._put.pop()
            vars(it).pop(name, None)
            vars(it).update(was)
