"""How a state lies in its journal: an entry a save, each a whole copy or what has changed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs

from limpet.backends.contract import from_micros
from limpet.core import deltas

if TYPE_CHECKING:
    from limpet.backends.contract import Head
    from limpet.core.journal import Entry

__all__ = [
    "PATCHED",
    "SAVED",
    "About",
    "Damage",
    "Kept",
    "Marks",
    "StateVersion",
    "copy_of",
    "fold",
    "follow",
    "ground_of",
    "listed",
    "type_of",
    "weigh",
]

#: What any save weighs, though it may change next to nothing.
EACH = 32

# Entry types of a state's journal.
SAVED = "saved"  # a whole copy
PATCHED = "patched"  # what changed since the save before
IMPORTED = "imported"  # a whole copy from a file, of which nothing else is known

_VERSION = "version"
_COPY = "copy at"


def type_of(document: Any) -> str | None:
    """What a document says it is, if it is one of those that do: AutoGen's.

    >>> type_of({"type": "AssistantAgentState", "version": "1.0.0", "llm_context": {}})
    'AssistantAgentState'
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("version"), str):
        return None
    said = document.get("type")
    return said if isinstance(said, str) and said.endswith("State") else None


class StateVersion(Struct, frozen=True):
    """One save in a history: its position and time, and all about it but the document."""

    position: int
    at: datetime
    version: int
    bytes: int  # what it takes in the store
    total: int  # the size of the document as JSON
    full: bool  # whether it is a whole copy, or what changed since the save before
    note: str | None = None
    fingerprint: dict[str, Any] | None = None
    type: str | None = None
    damaged: bool = False  # it cannot be had: its entry, or one that it goes back to, is damaged


class About(Struct, frozen=True):
    """What a save says besides its document."""

    version: int
    type: str | None = None
    fingerprint: dict[str, Any] | None = None
    note: str | None = None

    def seal(self, content: str) -> str:
        """The digest of a save, given that of its document."""
        said = [self.version, self.type, self.fingerprint, self.note, content]
        return deltas.digest(deltas.encode(said))


class Copied(Struct, frozen=True):
    """The body of a whole copy."""

    version: int
    total: int
    digest: str
    state: Any
    type: str | None = None
    fingerprint: dict[str, Any] | None = None
    note: str | None = None


class Patched(Struct, frozen=True):
    """The body of what changed. It has the version and the type of its copy."""

    version: int
    copy: int  # where the whole copy is that it goes back to
    total: int
    digest: str
    patch: dict[str, Any] | None  # None: the document is the same
    fingerprint: dict[str, Any] | None = None  # None: that of the save before
    note: str | None = None


class Damage(ValueError):
    """Why a saved state cannot be had."""


class Kept(Struct):
    """A state as it is at one position, and what it took to read it."""

    position: int
    at: datetime
    about: About
    document: Any
    digest: str  # of all of the save, as it is stored
    total: int
    copy: int  # where its whole copy is
    copied: int  # the size of that as JSON
    weight: int = 0  # the size of what was patched since, as JSON
    proof: deltas.Proof | None = None  # the digest of the document, once it is proved
    created: int = 0  # when the journal came to be, if that is known

    @property
    def content(self) -> str:
        """The digest of the document."""
        return "" if self.proof is None else self.proof.digest

    def prove(self) -> None:
        """`Damage` if it is not what was saved."""
        self.proof = deltas.Proof(deltas.encode(self.document), self.proof)
        if (len(self.proof.encoded), self.about.seal(self.content)) != (self.total, self.digest):
            raise Damage("it does not match its digest, so it is not what was saved")

    def is_at(self, head: Head) -> bool:
        """Whether it is the state that *head* is the head of."""
        there = (head.seq, head.created, from_micros(head.updated))
        return (self.position, self.created, self.at) == there


class Marks(Struct, frozen=True):
    """What the head of a state's journal remembers, as its status: "version 2, copy at 57"."""

    version: int | None = None
    copy: int = 0

    @classmethod
    def of(cls, head: Head) -> Marks:
        """The marks of *head*; words that this release does not know mean nothing."""
        version, copy = None, 0
        for phrase in (head.status or "").split(", "):
            word, _, number = phrase.rpartition(" ")
            if word == _VERSION and number.isdecimal():
                version = int(number)
            elif word == _COPY and number.isdecimal():
                copy = int(number)
        return cls(version, copy)

    @property
    def text(self) -> str:
        """The status that says so."""
        return f"{_VERSION} {self.version}, {_COPY} {self.copy}"


def fold(entries: list[Entry]) -> Kept:
    """The state at the last of *entries*, of which the first is a whole copy; `Damage` if not."""
    kept: Kept | None = None
    for entry in entries:
        kept = follow(kept, entry)
    if kept is None:
        raise Damage("there is no whole copy of it")
    kept.prove()
    return kept


def follow(kept: Kept | None, entry: Entry) -> Kept:
    """What *entry* makes of *kept*; not proved yet."""
    if entry.type in (SAVED, IMPORTED):
        return _copied(entry)
    if kept is None or entry.type != PATCHED:
        raise Damage(f"entry {entry.seq} is none that a state goes back to")
    _patch(kept, entry)
    return kept


def _copied(entry: Entry) -> Kept:
    body = _read(entry)
    about = About(body.version, body.type, body.fingerprint, body.note)
    return Kept(
        entry.seq, entry.at, about, body.state, body.digest, body.total, entry.seq, body.total
    )


def _patch(kept: Kept, entry: Entry) -> None:
    """Let *kept* be what *entry* makes of it."""
    body = _read(entry)
    kept.weight += weigh(entry.body)  # before its parts are the document's
    expected = (kept.copy, kept.position + 1, kept.about.version)
    if (body.copy, entry.seq, body.version) != expected:
        raise Damage(f"entry {entry.seq} does not go on from the one before it")
    if body.patch is not None:
        try:
            kept.document = deltas.apply(kept.document, body.patch)
        except deltas.BadPatch as error:
            raise Damage(f"the patch in entry {entry.seq} cannot be used: {error}") from error
    fingerprint = kept.about.fingerprint if body.fingerprint is None else body.fingerprint
    kept.about = About(body.version, kept.about.type, fingerprint, body.note)
    kept.position, kept.at = entry.seq, entry.at
    kept.digest, kept.total = body.digest, body.total


def weigh(said: Any) -> int:
    """How much there is to apply in a save, whether or not it is compressed in the store."""
    return EACH + len(deltas.encode(said["patch"]))


def copy_of(entry: Entry) -> int:
    """Where the whole copy is that *entry* goes back to."""
    return int(_read(entry).copy) if entry.type == PATCHED else entry.seq


def ground_of(entry: Entry) -> tuple[int, str]:
    """What a patch behind *entry* must be made for: its copy, and its digest."""
    return copy_of(entry), _read(entry).digest


def _read(entry: Entry) -> Any:
    """The body of *entry*: `Copied` or `Patched`."""
    if entry.type == IMPORTED:
        return _imported(entry.body)
    try:
        return msgspec.convert(entry.body, Patched if entry.type == PATCHED else Copied)
    except msgspec.ValidationError as error:
        raise Damage(f"entry {entry.seq} is not a save: {error}") from error


def _imported(document: Any) -> Copied:
    """What came from a file is taken for the first version there is."""
    encoded, about = deltas.encode(document), About(1, type_of(document), None, IMPORTED)
    seal = about.seal(deltas.digest(encoded))
    return Copied(1, len(encoded), seal, document, about.type, None, about.note)


def listed(entries: list[tuple[Entry | None, int, int, int]]) -> list[StateVersion]:
    """The saves in *entries*, each with its number, its time and its record's size, for a history.

    None stands for one that cannot be read.
    """
    found: list[StateVersion] = []
    about, whole = About(0), 0  # what was saved last, and up to where it can be had
    for entry, seq, at, size in entries:
        try:
            saved, about = _listed(entry, size, about)
        except Damage:
            lost = StateVersion(
                seq, from_micros(at), about.version, size, 0, full=False, damaged=True
            )
            found.append(lost)
            continue
        if saved is None:
            continue
        if saved.full or whole == seq - 1:
            whole = seq
        found.append(saved if whole == seq else structs.replace(saved, damaged=True))
    return found


def _listed(entry: Entry | None, size: int, before: About) -> tuple[StateVersion | None, About]:
    if entry is None:
        raise Damage("it cannot be read")
    if entry.type not in (SAVED, PATCHED, IMPORTED):
        return None, before
    body = _read(entry)
    full = isinstance(body, Copied)
    fingerprint = before.fingerprint if not full and body.fingerprint is None else body.fingerprint
    about = About(body.version, body.type if full else before.type, fingerprint, body.note)
    saved = StateVersion(
        position=entry.seq,
        at=entry.at,
        version=body.version,
        bytes=size,
        total=body.total,
        full=full,
        note=body.note,
        fingerprint=fingerprint,
        type=about.type,
    )
    return saved, about
