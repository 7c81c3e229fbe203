"""How a state lies in its journal: one entry a save, each a whole copy or what has changed.

    saved       a whole copy of the document
    patched     what changed since the save before; it says where its whole copy is
    imported    a document from a file, of which nothing else is known; a whole copy, too

A save is known by the number of its entry, its *position*. Between saves there may be entries about
calls (`limpet.core.calls`), such as what a person said of one in doubt: a patch goes on from the
save before it, whatever lies between. What a state was at any number is the newest save up to it.

Every save has a digest of its document, version, type, fingerprint and note. Whoever reads it puts
the document together from the whole copy on, and compares: what is not what was saved is `Damage`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from limpet.backends.contract import from_micros
from limpet.core import deltas
from limpet.core.calls import BEGAN, RESOLVED
from limpet.core.ids import name_fields
from limpet.core.meta import Meta

if TYPE_CHECKING:
    from collections.abc import Iterable

    from limpet.backends.contract import Record
    from limpet.core.journal import Entry

__all__ = [
    "IMPORTED",
    "KIND",
    "PATCHED",
    "SAVED",
    "SAVES",
    "CopyBody",
    "Damage",
    "SaveChecker",
    "SaveInfo",
    "Snapshot",
    "StateMeta",
    "StateVersion",
    "copy_of",
    "is_save",
    "next_snapshot",
    "patch_weight",
    "read_body",
    "replay",
    "type_of",
    "versions",
]

KIND = "state"
name_fields(KIND, "id", "name", "call_id", "calls", "agent", "policy", "how", "by", "of")

# Entry types.
SAVED = "saved"
PATCHED = "patched"
IMPORTED = "imported"
SAVES = frozenset({SAVED, PATCHED, IMPORTED})
#: What may lie between saves, and changes nothing in them.
BETWEEN = frozenset({BEGAN, RESOLVED})

#: What a patch weighs at least, though it may change next to nothing.
LEAST_WEIGHT = 32


class StateMeta(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """What the head of a state's journal says without a read: it changes with each whole copy."""

    version: int | None = None  # of the newest save
    copy: int = 0  # the position of its whole copy; 0: not known
    type: str | None = None  # what its document says it is, as AutoGen's do; see `type_of`


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
    damaged: bool = False  # it cannot be loaded: its entry, or one that it goes back to, is damaged


class SaveInfo(Struct, frozen=True):
    """What a save says besides its document."""

    version: int
    type: str | None = None
    fingerprint: dict[str, Any] | None = None
    note: str | None = None

    def digest(self, document: str) -> str:
        """The digest of the whole save, given that of its *document*."""
        parts = [self.version, self.type, self.fingerprint, self.note, document]
        return deltas.digest(deltas.encode(parts))


# -- entries -------------------------------------------------------------------------------------


class CopyBody(Struct, frozen=True):
    """The body of a whole copy."""

    version: int
    total: int
    digest: str
    state: Any
    type: str | None = None
    fingerprint: dict[str, Any] | None = None
    note: str | None = None


class PatchBody(Struct, frozen=True):
    """The body of a patch. It has the version and the type of its whole copy."""

    version: int
    copy: int  # where the whole copy is that it goes back to
    total: int
    digest: str
    patch: dict[str, Any] | None  # None: the document is the same
    fingerprint: dict[str, Any] | None = None  # None: that of the save before
    note: str | None = None


class Damage(ValueError):
    """Why a saved state cannot be loaded."""


def is_save(entry: Entry) -> bool:
    """Whether it is a save; `Damage` if it may be one that this release does not know."""
    if entry.type in SAVES or entry.type in BETWEEN:
        return entry.type in SAVES
    raise Damage(f"entry {entry.seq} is of a type that this release does not know")


def read_body(entry: Entry) -> CopyBody | PatchBody:
    """The body of an entry that is a save; `Damage` if it is none."""
    if entry.type == IMPORTED:  # taken for the first version that there is
        encoded = deltas.encode(entry.body)
        info = SaveInfo(1, type_of(entry.body), None, IMPORTED)
        digest = info.digest(deltas.digest(encoded))
        return CopyBody(1, len(encoded), digest, entry.body, info.type, None, info.note)
    try:
        if entry.type == PATCHED:
            return msgspec.convert(entry.body, PatchBody)
        return msgspec.convert(entry.body, CopyBody)
    except msgspec.ValidationError as error:
        raise Damage(f"entry {entry.seq} is not a save: {error}") from error


def _info(body: CopyBody | PatchBody, before: SaveInfo) -> SaveInfo:
    """What a save says besides its document; a patch leaves out what is as *before*."""
    if isinstance(body, CopyBody):
        return SaveInfo(body.version, body.type, body.fingerprint, body.note)
    fingerprint = before.fingerprint if body.fingerprint is None else body.fingerprint
    return SaveInfo(body.version, before.type, fingerprint, body.note)


def copy_of(entry: Entry) -> int:
    """The position of the whole copy that the save in *entry* goes back to."""
    body = read_body(entry)
    return body.copy if isinstance(body, PatchBody) else entry.seq


def patch_weight(patch: Any) -> int:
    """How much there is to read in a patch, whether or not it is compressed in the store."""
    return LEAST_WEIGHT + len(deltas.encode(patch))


def type_of(document: Any) -> str | None:
    """What a document says it is, if it is one of those that do: AutoGen's.

    >>> type_of({"type": "AssistantAgentState", "version": "1.0.0", "llm_context": {}})
    'AssistantAgentState'
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("version"), str):
        return None
    name = document.get("type")
    return name if isinstance(name, str) and name.endswith("State") else None


# -- the state at one position ---------------------------------------------------------------------


class Snapshot(Struct):
    """A state as one save left it, and how it lies in the journal."""

    position: int
    info: SaveInfo
    document: Any
    digest: str  # of the whole save, as it is stored
    total: int  # the size of the document as JSON
    copy: int  # the position of its whole copy
    copy_total: int  # the size of that one's document
    weight: int = 0  # of the patches since
    content: deltas.Digest | None = None  # of the document, once it was compared with `digest`
    grew: list[str] | None = None  # the path to the list that has grown, if nothing else changed

    def verify(self) -> None:
        """`Damage`, if it is not what was saved."""
        self.content = deltas.Digest(deltas.encode(self.document), self.content)
        size, digest = len(self.content.encoded), self.info.digest(self.content.text)
        if (size, digest) != (self.total, self.digest):
            raise Damage("it does not match its digest, so it is not what was saved")


def replay(entries: Iterable[Entry]) -> Snapshot:
    """The state after *entries*, of which the first save is a whole copy; `Damage` if not."""
    snapshot: Snapshot | None = None
    for entry in entries:
        if is_save(entry):
            snapshot = next_snapshot(snapshot, entry)
    if snapshot is None:
        raise Damage("there is no whole copy of it")
    snapshot.verify()
    return snapshot


def next_snapshot(snapshot: Snapshot | None, entry: Entry) -> Snapshot:
    """What the save in *entry* makes of *snapshot*, which it changes; not verified yet."""
    body = read_body(entry)
    if isinstance(body, CopyBody):
        return Snapshot(
            position=entry.seq,
            info=SaveInfo(body.version, body.type, body.fingerprint, body.note),
            document=body.state,
            digest=body.digest,
            total=body.total,
            copy=entry.seq,
            copy_total=body.total,
        )
    if snapshot is None:
        raise Damage(f"entry {entry.seq} is a patch, and what it changes is not there")
    if (body.copy, body.version) != (snapshot.copy, snapshot.info.version):
        raise Damage(f"entry {entry.seq} does not go on from the save before it")
    snapshot.weight += patch_weight(body.patch)  # now: its parts become the document's
    if body.patch is not None:
        try:
            snapshot.document = deltas.apply(snapshot.document, body.patch)
        except deltas.BadPatch as error:
            raise Damage(f"the patch in entry {entry.seq} cannot be used: {error}") from error
    snapshot.info = _info(body, snapshot.info)
    snapshot.position, snapshot.digest, snapshot.total = entry.seq, body.digest, body.total
    return snapshot


# -- all of them -----------------------------------------------------------------------------------


def versions(records: Iterable[tuple[Record, list[Entry] | None]]) -> list[StateVersion]:
    """The saves in *records*, for a history. Each record comes with its entries.

    Those are None for a record that cannot be read: it is listed as a damaged save.
    """
    found: list[StateVersion] = []
    info, last = SaveInfo(0), 0
    broken = True  # whether what a patch would go on from is damaged, or missing
    for record, entries in records:
        broken = broken or record.seq - record.count != last
        last, at, size = record.seq, from_micros(record.at), len(record.body)
        bodies: list[tuple[int, CopyBody | PatchBody | None]] = [(last, None)]
        if entries is not None:
            bodies = [(entry.seq, _body_or_none(entry)) for entry in entries if entry.type in SAVES]
            broken = broken or any(entry.type not in SAVES | BETWEEN for entry in entries)
        for seq, body in bodies:
            if body is None:
                broken = True
                lost = StateVersion(seq, at, info.version, size, 0, full=False, damaged=True)
                found.append(lost)
                continue
            full = isinstance(body, CopyBody)
            broken = broken and not full
            info = _info(body, info)
            version = StateVersion(
                position=seq,
                at=at,
                version=info.version,
                bytes=size,
                total=body.total,
                full=full,
                note=info.note,
                fingerprint=info.fingerprint,
                type=info.type,
                damaged=broken,
            )
            found.append(version)
    return found


def _body_or_none(entry: Entry) -> CopyBody | PatchBody | None:
    try:
        return read_body(entry)
    except Damage:
        return None


class SaveChecker:
    """Checks the saves of one state, entry by entry: for ``limpet doctor``.

    A damaged save is reported once: what goes back to it is no further problem, up to the next
    whole copy.
    """

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._broken = False
        #: Whether the newest save cannot be loaded, and that was not reported.
        self.unreported = False

    def lose(self, *, reported: bool) -> None:
        """Entries are missing here, or cannot be read; *reported*: that is known already."""
        self._snapshot, self._broken, self.unreported = None, True, not reported

    def problem(self, entry: Entry) -> str | None:
        """Why the save in *entry* cannot be loaded; None if it can be, or it was reported."""
        if self._broken and entry.type == PATCHED:
            return None
        try:
            if not is_save(entry):
                return None
            self._snapshot = next_snapshot(self._snapshot, entry)
            self._snapshot.verify()
        except Damage as error:
            self.lose(reported=True)
            return f"The save cannot be loaded: {error}."
        self._broken = self.unreported = False
        return None
