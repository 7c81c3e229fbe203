"""Which journal a namespace is stored in: its id, and the way back.

LangGraph's namespaces are tuples of text; its own stores join them with full stops, and so do we:
``("users", "ann")`` is ``users.ann``. What an id cannot hold, and what would make it ambiguous, is
written with per cent signs, as in a URL. One that is too long for an id ends in a digest, and its
journal's meta has it in full.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from limpet.core.ids import MAX_ID_BYTES, name_fields
from limpet.core.meta import Meta
from limpet.errors import InvalidId

if TYPE_CHECKING:
    from limpet.backends.contract import Head

__all__ = ["DIGEST", "KIND", "NamespaceMeta", "id_of", "ids_begin", "namespace_of"]

#: The kind of the journals.
KIND = "langgraph-store"
name_fields(KIND, "key", "keys")

#: The id of the namespace that is an empty tuple, and the label that is an empty text. Of no other:
#: elsewhere two digits follow a per cent sign.
TOP = "%%"
EMPTY = "%"

#: In an id that is shortened: how many bytes of the long one it begins with, and what follows them.
KEPT_BYTES = 400
DIGEST = "%~"


class NamespaceMeta(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """What a namespace's head says of it.

    *namespace* is there where the id is a digest. *lasting*: the last write has put an item that
    does not expire, so that the namespace is known to be not empty.
    """

    namespace: list[str] | None = None
    lasting: bool = False


def id_of(namespace: tuple[str, ...]) -> str:
    """The id of the journal of a *namespace*; no two have the same."""
    text = _written(namespace)
    if len(text.encode()) <= MAX_ID_BYTES:
        return text
    return f"{_cut(text)}{DIGEST}{sha256(text.encode()).hexdigest()}"


def ids_begin(prefix: tuple[str, ...]) -> str:
    """What the ids of all namespaces within *prefix* begin with; some of others may, too."""
    return _cut(_written(prefix) + ".") if prefix else ""


def namespace_of(head: Head) -> tuple[str, ...]:
    """The namespace whose journal has this *head*."""
    if DIGEST in head.key.id:
        return tuple(NamespaceMeta.of(head).namespace or ())
    if head.key.id == TOP:
        return ()
    labels = head.key.id.split(".")
    return tuple("" if one == EMPTY else unquote(one, errors="surrogatepass") for one in labels)


def _written(namespace: tuple[str, ...]) -> str:
    if not all(isinstance(label, str) for label in namespace):
        msg = f"A namespace is a tuple of text, and {namespace!r:.80} is not. Write it as text."
        raise InvalidId(msg)
    return ".".join(_quoted(label) or EMPTY for label in namespace) if namespace else TOP


def _quoted(label: str) -> str:
    if label.isascii() and label.isalnum():  # as most are
        return label
    last = len(label) - 1
    return "".join(
        quote(char, safe="", errors="surrogatepass")
        if char in "%." or not char.isprintable() or (char == " " and at in (0, last))
        else char
        for at, char in enumerate(label)
    ).replace(".", "%2E")  # which `quote` leaves as it is


def _cut(text: str) -> str:
    return text.encode()[:KEPT_BYTES].decode(errors="ignore")
