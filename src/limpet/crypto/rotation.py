"""Which key every journal is encrypted under, and how that becomes another one.

A journal's content is encrypted under a data key, and that under one of the user's keys. To rotate
is to wrap the data keys anew: nothing is written but a journal's head, and what was encrypted
stays as it is. Each journal is done in one act of its own, so a rotation can be cut short at any
moment, and done again; what is done already is passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from limpet.backends.contract import Key
from limpet.crypto.envelope import Forged, key_of_meta, wrapped_under
from limpet.crypto.sealed import WRAPPED
from limpet.errors import LimpetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.backends.contract import Head
    from limpet.crypto.sealed import Sealed
    from limpet.errors import StoreError

__all__ = ["Needs", "rotate", "status"]

#: Journals that are named of those that need a key.
NAMED = 5


class Needs(Struct):
    """What needs which key: journals by the key's number, some of them by name; and troubles."""

    journals: dict[int, int] = field(default_factory=dict)
    named: dict[int, list[Key]] = field(default_factory=dict)
    #: Journals of which it cannot be told, and why.
    unknown: list[tuple[Key, str]] = field(default_factory=list)
    rewrapped: int = 0

    def add(self, number: int, key: Key) -> None:
        """The journal *key* needs the key of this *number*."""
        self.journals[number] = self.journals.get(number, 0) + 1
        named = self.named.setdefault(number, [])
        if len(named) < NAMED:
            named.append(key)


def status(backend: Sealed, progress: Callable[[int], object] | None = None) -> Needs:
    """Which keys the journals of all tenants need; *progress* is told of each one."""
    return _walk(backend, lambda _: False, progress)


def rotate(backend: Sealed, progress: Callable[[int], object] | None = None) -> Needs:
    """Wrap every data key by the current key, and say what then needs which.

    What cannot be is named, and does not keep the others from it.
    """
    return _walk(backend, backend.rewrap, progress)


def _walk(
    backend: Sealed, change: Callable[[Head], bool], progress: Callable[[int], object] | None
) -> Needs:
    needs = Needs()
    for head in _heads(backend, needs):
        try:
            if change(head):
                needs.rewrapped += 1
                now = backend.inner.head(head.key)
            else:
                now = head
            for number in {} if now is None else _numbers(now):
                needs.add(number, head.key)
        except (LimpetError, Forged) as error:
            needs.unknown.append((head.key, str(error)))
        if progress is not None:
            progress(1)
    return needs


def _heads(backend: Sealed, needs: Needs) -> Iterator[Head]:
    damaged: list[tuple[Key, StoreError]] = []
    for tenant, kind in backend.inner.kinds():
        yield from backend.inner.heads(tenant, kind, damaged=damaged)
    needs.unknown += [(key, str(error)) for key, error in damaged]


def _numbers(head: Head) -> set[int]:
    """The keys that a journal needs: one; two, if its meta was set before it began."""
    wrapped = head.labels.get(WRAPPED)
    if wrapped is None:
        raise Forged("it is not encrypted.")
    own = None if head.meta is None else key_of_meta(head.meta)
    return {wrapped_under(text) for text in (wrapped, own) if text is not None}
