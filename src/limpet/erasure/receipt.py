"""What was forgotten: to be looked at now, and to be kept, with nothing of the content."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from limpet.backends.contract import Key, Record

__all__ = ["Digests", "Erasure", "Gone", "Mention"]


class Gone(Struct, frozen=True):
    """A journal that goes, or is gone: all of it. *why* it is among those that were meant."""

    kind: str
    id: str
    entries: int
    bytes: int
    why: str


class Mention(Struct, frozen=True):
    """A journal of something else, in which the subject was mentioned in so many texts.

    *stays* says why they could not be replaced; None: they were.
    """

    kind: str
    id: str
    texts: int
    stays: str | None = None


class Erasure(Struct, frozen=True, kw_only=True):
    """What `Store.forget` has removed, or would; `receipt` is what can be kept of it.

    False, if that was nothing.
    """

    #: Which selector was given, and what it was.
    rule: str
    value: str
    #: Journals that went whole: conversations, tasks, their results and children, and so on.
    journals: tuple[Gone, ...] = ()
    #: Ids of memories, by their namespace.
    memories: dict[str, tuple[str, ...]] = {}
    #: Where else the subject was mentioned: texts that were replaced, and those that stay.
    mentions: tuple[Mention, ...] = ()
    #: Whether the places were overwritten, as far as the store can.
    scrubbed: bool = False
    #: What this place, and others, may still have: nobody should believe otherwise.
    remains: tuple[str, ...] = ()
    #: Random, and what the digests are made with: so that nobody can guess at what was removed.
    salt: str = ""
    #: Of the rule's value, and of all that was removed.
    named: str = ""
    digest: str = ""
    store: str = ""
    tenant: str = ""
    by: str | None = None
    #: None: nothing was changed yet.
    at: datetime | None = None

    def __bool__(self) -> bool:
        return bool(self.journals or self.memories or self.mentions)

    def receipt(self) -> dict[str, Any]:
        """What was forgotten, when, by which rule and how much: no text, no name, no id.

        With the name at hand, `is_about` tells whether a receipt is about it; with a backup, the
        digest tells whether that is what was removed.
        """
        kinds: dict[str, Counter[str]] = {}
        for gone in self.journals:
            part = {"journals": 1, "entries": gone.entries, "bytes": gone.bytes}
            kinds.setdefault(gone.kind, Counter()).update(part)
        replaced = [one for one in self.mentions if one.stays is None]
        stays = Counter((one.kind, one.stays) for one in self.mentions if one.stays is not None)
        return {
            "limpet": "receipt",
            "version": 1,
            "at": None if self.at is None else self.at.isoformat(),
            "by": self.by,
            "store": self.store,
            "tenant": self.tenant,
            "rule": self.rule,
            "named": self.named,
            "removed": {kind: dict(counted) for kind, counted in sorted(kinds.items())},
            "memories": sum(map(len, self.memories.values())),
            "replaced": {
                "journals": len(replaced),
                "texts": sum(one.texts for one in replaced),
            },
            "stays": [
                {"kind": kind, "why": why, "journals": count}
                for (kind, why), count in sorted(stays.items(), key=str)
            ],
            "digest": self.digest,
            "salt": self.salt,
            "scrubbed": self.scrubbed,
            "remains": list(self.remains),
        }


def is_about(receipt: dict[str, Any], value: str) -> bool:
    """Whether a kept *receipt* is about *value*: an id, a label, a subject."""
    return bool(receipt["named"] == _digest(receipt["salt"], value))


def _digest(salt: str, value: str) -> str:
    return hashlib.sha256(f"{salt}\0{value}".encode(errors="surrogatepass")).hexdigest()


class Digests:
    """Makes the digests of a receipt."""

    def __init__(self) -> None:
        self.salt = os.urandom(16).hex()
        self._all = hashlib.sha256(self.salt.encode())

    def add(self, key: Key, record: Record) -> None:
        """Add a *record* that goes, or whose texts are replaced."""
        place = "\0".join([key.kind, key.id, str(record.seq)]).encode(errors="surrogatepass")
        self._all.update(len(place).to_bytes(8) + place)
        self._all.update(len(record.body).to_bytes(8) + record.body)

    def add_name(self, name: str) -> None:
        """Add what goes and is named by a digest of itself."""
        self._all.update(name.encode(errors="surrogatepass"))

    def of(self, value: str) -> str:
        """The digest of one *value*."""
        return _digest(self.salt, value)

    @property
    def digest(self) -> str:
        """That of all that was added."""
        return self._all.hexdigest()
