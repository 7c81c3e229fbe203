"""What a model wants to know of a journal without reading it, kept in its head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import Struct

from limpet.core.calls import Call, unreadable_meta

if TYPE_CHECKING:
    from limpet.backends.contract import Head

__all__ = ["Meta"]


class Meta(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What all models have in common there: the calls that have begun and not ended.

    A model adds fields of its own by a subclass. Small, all of it: it is read with every list.
    """

    calls: dict[str, Call] = {}
    #: Of a journal that is a list of something (a conversation, of messages): the entries that are
    #: not items of it, so that its length is known by its head.
    others: int = 0

    @classmethod
    def of(cls, head: Head | None) -> Self:
        """The meta of *head*; all defaults where there is none."""
        if head is None or head.meta is None:
            return cls()
        try:
            return msgspec.json.decode(head.meta, type=cls)
        except msgspec.DecodeError as error:
            raise unreadable_meta(head, error) from error

    def encode(self) -> bytes | None:
        """What is stored: nothing, where it says nothing."""
        encoded = msgspec.json.encode(self)
        return None if encoded == b"{}" else encoded

    def but(self, **changes: Any) -> Self:
        """The same with *changes*."""
        return msgspec.structs.replace(self, **changes)
