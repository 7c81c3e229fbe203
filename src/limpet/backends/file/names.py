"""Where a journal lies: names that any file system can hold, whatever its key is.

An id that is a good file name is one: ``alice.jsonl``. Any other becomes what is readable of it and
a hash: ``acme-support~5f2b….jsonl``. Names are in small letters only, so that they stay apart where
case does not count; the true key is in the file's first line.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from limpet.backends.contract import Key

__all__ = ["LEASES", "LOCKS", "PRIVATE", "STRIPES", "SUFFIX", "Place", "is_plain", "name_of"]

#: What is nobody's business but this machine's: locks, leases, files being written.
PRIVATE = ".limpet"
LOCKS = f"{PRIVATE}/locks"
LEASES = f"{PRIVATE}/journals"

#: Every journal ends so, and nothing else does.
SUFFIX = ".jsonl"

#: How many locks all journals share. Each costs an open file. Part of the format: releases that
#: count differently would not keep each other out.
STRIPES = 16

# Names that Windows keeps for itself, whatever follows the dot.
_FREE = r"(?!(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$))"
_DIRECTORY = re.compile(_FREE + r"[a-z0-9_][a-z0-9_-]{0,79}")
_FILE = re.compile(_FREE + r"[a-z0-9_][a-z0-9_.@+-]{0,79}")


class Place(NamedTuple):
    """The files of one journal: *name* is ``tenant/kind/id``, as they are written there."""

    name: str
    path: str
    lease: str
    spare: str  # a new form of the journal, until it is whole
    stripe: int

    @classmethod
    def of(cls, root: str, name: str) -> Place:
        """The place of that *name*."""
        return _place(root, name)


@lru_cache(maxsize=4096)
def _place(root: str, name: str) -> Place:
    private = os.path.join(root, LEASES, name)
    return Place(
        name,
        os.path.join(root, name + SUFFIX),
        private + ".lease",
        private + ".new",
        zlib.crc32(name.encode()) % STRIPES,
    )


@lru_cache(maxsize=4096)
def name_of(key: Key) -> str:
    """The name of the place of *key*."""
    tenant, kind = _name(key.tenant, _DIRECTORY), _name(key.kind, _DIRECTORY)
    return f"{tenant}/{kind}/{_name(key.id, _FILE)}"


def is_plain(name: str) -> bool:
    """Whether a part of a name is what it stands for."""
    return "~" not in name


def _name(text: str, plain: re.Pattern[str]) -> str:
    if plain.fullmatch(text):
        return text
    readable = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].rstrip("-")
    return f"{readable}~{hashlib.sha256(text.encode()).hexdigest()[:20]}"
