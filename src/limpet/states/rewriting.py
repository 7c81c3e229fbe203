"""A state's saves once more, with other documents: patches and digests made anew for those."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from limpet.core import deltas
from limpet.core.codec import fresh
from limpet.states.format import (
    IMPORTED,
    CopyBody,
    Damage,
    SaveInfo,
    Snapshot,
    next_snapshot,
    read_body,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.core.journal import Entry

__all__ = ["Rewriter"]


class Rewriter:
    """Takes the saves of one state in their order; *change* makes of a value what is to be there.

    Whole copies stay whole copies and patches patches, so the head need not know.
    """

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self._change = change
        self._snapshot: Snapshot | None = None
        self._document: Any = None
        self._differs = False  # the document from what it was

    def take(self, entry: Entry) -> Any:
        """The body that the save in *entry* is to have: its own, if nothing changes.

        `Damage`, if it cannot be loaded.
        """
        body = read_body(entry)
        before = self._document
        self._snapshot = next_snapshot(self._snapshot, entry)
        # A copy: the next patch changes the snapshot's own document in place.
        document = fresh(self._change(self._snapshot.document))
        self._document = document
        was, info = self._snapshot.info, self._snapshot.info
        info = SaveInfo(
            info.version, info.type, self._change(info.fingerprint), self._change(info.note)
        )
        encoded = deltas.encode(document)
        differs = encoded != deltas.encode(self._snapshot.document)
        goes_on = isinstance(body, CopyBody) or not self._differs
        self._differs = differs
        if goes_on and not differs and info == was:
            return entry.body
        if entry.type == IMPORTED:
            return document
        digest = info.digest(deltas.Digest(encoded).text)
        stored: dict[str, Any] = dict(entry.body)
        stored |= {"total": len(encoded), "digest": digest}
        for name in ("fingerprint", "note"):
            if name in stored:
                stored[name] = getattr(info, name)
        if isinstance(body, CopyBody):
            stored["state"] = document
        else:
            stored["patch"] = _patch(before, document)
        return stored


def _patch(old: Any, new: Any) -> Any:
    """What makes *new* of *old*; `Damage`, if no patch does."""
    if deltas.encode(old) == deltas.encode(new):
        return None
    patch = deltas.diff(old, new, exact=True)
    made = deltas.apply(fresh(old), fresh(msgspec.to_builtins(patch)))
    if deltas.encode(made) != deltas.encode(new):
        raise Damage("no patch can be made for it")
    return patch
