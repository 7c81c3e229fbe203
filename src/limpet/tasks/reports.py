"""What steps report of their progress, on its way into the record."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Reports"]


class Reports:
    """The newest report of each step, until a heartbeat has stored it. For any thread."""

    def __init__(self) -> None:
        self._newest: dict[str, dict[str, Any]] = {}
        self._changing = threading.Lock()
        self._storing = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._newest)

    def take(self, name: str, body: dict[str, Any]) -> None:
        """Let *body* be the newest report of the step *name*."""
        with self._changing:
            self._newest[name] = body

    def store(self, record: Callable[[dict[str, Any]], None]) -> None:
        """*record* each; what cannot be recorded now is there for the next heartbeat."""
        with self._storing:  # or an older report could be stored behind a newer one
            with self._changing:
                waiting = list(self._newest.items())
            for name, body in waiting:
                record(body)
                with self._changing:
                    if self._newest.get(name) is body:
                        del self._newest[name]
