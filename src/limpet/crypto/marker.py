"""What says that a store is encrypted: a journal of its own, that nobody lists."""

from __future__ import annotations

from limpet.backends.contract import Key

__all__ = ["MARKER"]

#: Sealed as every other journal, so that wrong keys are noticed when the store is opened.
MARKER = Key("limpet", "limpet-encryption", "marker")
