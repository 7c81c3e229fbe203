"""How many texts to embed at once, when some of them are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BATCH", "Refusals"]

#: Texts that are embedded in one call.
BATCH = 64
#: Seconds after which one that was refused by itself is tried again.
AGAIN = 600.0


class Refusals:
    """What an embedding function refused, in this process.

    Of a batch that failed one text may be to blame (too long, say), and which is not said. So half
    as many are tried next; one that fails by itself is left for a while, and hinders no other.
    """

    def __init__(self) -> None:
        self._size: int | None = None
        self._until: dict[str, float] = {}

    @property
    def size(self) -> int:
        """How many to try next."""
        return BATCH if self._size is None else self._size

    def failed(self, ids: Sequence[str], now: float) -> None:
        """None of *ids* got a vector."""
        self._size = max(len(ids) // 2, 1)
        if len(ids) == 1:
            self._until[ids[0]] = now + AGAIN

    def succeeded(self) -> None:
        """All of a batch did."""
        self._size = None if 2 * self.size >= BATCH else 2 * self.size

    def now(self, now: float) -> list[str]:
        """Which are not to be tried yet."""
        self._until = {id_: until for id_, until in self._until.items() if until > now}
        return list(self._until)

    def clear(self) -> None:
        """Another function is asked from now on."""
        self._size = None
        self._until.clear()
