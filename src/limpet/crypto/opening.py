"""Whether a store is encrypted, and that it is opened as what it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from limpet.backends.contract import Append, Backend, Expect, Key
from limpet.core.codec import Codec
from limpet.errors import Conflict, KeyMissing, NotEncrypted, StoreReadOnly, Tampered

if TYPE_CHECKING:
    from limpet.crypto.keys import Keys

__all__ = ["MARKER", "as_it_is", "check_plain", "given", "is_encrypted", "opened"]

#: The journal that says so. It is sealed as all are, so that wrong keys are noticed at once.
MARKER = Key("limpet", "limpet-encryption", "marker")


def given(keys: Keys | str | os.PathLike[str] | None) -> Keys | None:
    """The keys that a caller gave: as they are, in a file, or in ``$LIMPET_KEYS``."""
    if keys is None and not os.environ.get("LIMPET_KEYS"):
        return None
    from limpet.crypto.keys import Keys  # noqa: PLC0415 - most stores have none

    if keys is None:
        return Keys.from_environment()
    return keys if isinstance(keys, Keys) else Keys.load(keys)


def is_encrypted(backend: Backend) -> bool:
    """Whether what *backend* holds is encrypted."""
    return backend.has(MARKER)


def check_plain(backend: Backend) -> None:
    """`KeyMissing` if what *backend* holds is encrypted."""
    if is_encrypted(backend):
        raise KeyMissing(
            f"The store {backend.url} is encrypted. Name a file of its keys in $LIMPET_KEYS.",
            hint="Or give them: limpet.open(…, keys=limpet.Keys.load(FILE)).",
        )


def opened(backend: Backend, keys: Keys | str | os.PathLike[str] | None) -> Backend:
    """*backend* as it is used with *keys*, or without; closed, if it cannot be used so.

    A store that is empty becomes an encrypted one. One that has something in it stays what it is.
    """
    try:
        if keys is None and not backend.blocks:  # of this process alone: $LIMPET_KEYS is for others
            return backend
        found = given(keys)
        if found is not None:
            return _sealed(backend, found)
        check_plain(backend)
    except BaseException:
        backend.close()
        raise
    return backend


def as_it_is(backend: Backend) -> Backend:
    """*backend* with the keys of ``$LIMPET_KEYS`` if it is encrypted, and without if it is not."""
    return opened(backend, None) if is_encrypted(backend) else backend


def _sealed(backend: Backend, keys: Keys) -> Backend:
    from limpet.crypto.sealed import Sealed  # noqa: PLC0415 - most stores are not encrypted

    sealed = Sealed(backend, keys)
    if not is_encrypted(backend):
        if backend.kinds():
            raise NotEncrypted(
                f"The store {backend.url} is not encrypted, and keys were given. Copy it into an "
                "encrypted one (`limpet copy FROM TO`, with $LIMPET_KEYS set), or unset "
                "$LIMPET_KEYS."
            )
        try:
            body = Codec().encode([("encrypted", None)])
            sealed.append(Append(key=MARKER, body=body, count=1, expect=Expect(None, 0)))
        except (Conflict, StoreReadOnly):
            return sealed  # another was first; or there is nothing to be read
    try:
        sealed.read(MARKER)
    except Tampered as error:
        raise KeyMissing(
            f"The keys that were given are not those of the store {backend.url}, or what says that "
            "it is encrypted was changed. Name the right file in $LIMPET_KEYS."
        ) from error
    return sealed
