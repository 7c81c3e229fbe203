"""Calls that began and did not end, in journals of any kind: as a process leaves them that died."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from limpet.core.calls import BEGAN, Call
from limpet.core.meta import Meta

if TYPE_CHECKING:
    from limpet import Store

__all__ = ["leave_in_doubt"]


def leave_in_doubt(store: Store, kind: str, id_: str, *names: str) -> None:
    """Let the calls c1, c2, … of the tools *names* begin in the journal *id_* of *kind*."""
    calls = {f"c{at}": Call(f"c{at}", name, policy="ask") for at, name in enumerate(names, 1)}
    entries = [(BEGAN, msgspec.to_builtins(call)) for call in calls.values()]
    store.journal(kind, id_).append(*entries, meta=Meta(calls=calls).encode())
