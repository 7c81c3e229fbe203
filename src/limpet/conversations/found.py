"""What a search over conversations finds."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.backends.contract import from_micros

if TYPE_CHECKING:
    from limpet.core.text_index import Hit

__all__ = ["ConversationHit"]


class ConversationHit(Struct, frozen=True):
    """A message that fits a query: in which conversation, where, who said it, and its words."""

    id: str
    position: int
    at: datetime
    role: str
    excerpt: str
    score: float

    def __repr__(self) -> str:
        return (
            f"ConversationHit({self.id!r}, {self.position}, {self.role!r}, score={self.score:.2f})"
        )

    @classmethod
    def of(cls, hit: Hit) -> ConversationHit:
        """What the index found."""
        at = from_micros(hit.at)
        return cls(hit.id, hit.position, at, hit.label, hit.excerpt, hit.score)
