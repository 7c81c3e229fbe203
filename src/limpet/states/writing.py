"""Writes a state: what has changed, or a whole copy; proved before it is stored."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, structs

from limpet.backends.contract import Append, Appended, Expect, Record, from_micros
from limpet.backends.decide import conflict
from limpet.core import deltas
from limpet.errors import (
    Conflict,
    NotFound,
    NotStorable,
    StateDamaged,
    StateTooNew,
    TooLarge,
    WrongState,
)
from limpet.states.drafts import Draft
from limpet.states.kept import PATCHED, SAVED, About, Damage, Kept, Marks, type_of, weigh

if TYPE_CHECKING:
    from limpet.backends.contract import Head
    from limpet.core.codec import Codec
    from limpet.core.journal import AsyncJournal
    from limpet.states.reading import Reader

__all__ = ["Writer"]

#: For so many seconds a state is taken for the one that was seen, if its position is the same.
#: Then it is asked for: it may have been deleted, and have come to the same position again.
FRESH = 1.0
#: Up to here it is always asked for: where a new one begins, it may be there again at once.
EARLY = 8

#: From so many bytes on a save is compressed: it is read seldom, and its like has much in common.
COMPRESS_OVER = 256


class Writer:
    """Writes to one state, with the labels and the time to live that it is to have."""

    def __init__(
        self,
        journal: AsyncJournal,
        reader: Reader,
    ) -> None:
        self._journal = journal
        self._reader = reader
        #: The state at the position that was seen last, ours to change; None if that is not known.
        self._base: Kept | None = None
        self._seen: int | None = None
        self._met = 0.0
        #: What was written last, if nobody knows whether it got there.
        self._tried: tuple[int, str] | None = None

    @property
    def codec(self) -> Codec:
        """How the store writes bodies."""
        return self._journal.codec

    @property
    def position(self) -> int | None:
        """Where the state was when it was seen last; None if it never was."""
        return self._seen

    def see(self, kept: Kept | None) -> None:
        """Let *kept*, which nobody else may change, be what the next save is compared with."""
        self._base, self._seen = kept, 0 if kept is None else kept.position
        self._met = monotonic()

    async def newest(self) -> Kept | None:
        """The state as it is now; *seen* by that. Not to be changed."""
        head = await self._journal.head()
        base = self._base
        if base is None or head is None or not base.is_at(head):
            self.see(await self._reader.newest(head) if head else None)
        return self._base

    async def save(
        self,
        draft: Draft,
        *,
        version: int,
        type_: str | None,
        fingerprint: dict[str, Any] | None,
        note: str | None,
        expect: int | None,
        back: bool = False,
    ) -> int:
        """Store *draft*; the position of it, which is the old one if nothing has changed.

        *back*: it is as it was, of an older version than what is there, too.
        """
        base, position = await self._take(expect)
        if base is not None:
            draft.follow(base.proof)
            if not back:
                type_ = self._type(base, version, type_, type_of(draft.document))
                fingerprint = base.about.fingerprint if fingerprint is None else fingerprint
        elif type_ is None:
            type_ = type_of(draft.document)
        about = About(version, type_, fingerprint, note)
        if base is not None and note is None and _is_same(base, draft, about):
            head = await self._journal.head()
            if head is not None:
                if head.seq != position:
                    raise conflict(
                        Append(key=self._journal.key, expect=Expect(None, position)), head.seq
                    )
                self._check_same(base, created=head.created)
                if base.is_at(head) or (await self._look(base, head, position))[0]:
                    self.see(base)
                    return position
                base = None  # it is damaged
        return await self._write(base, draft, about, position, forced=expect is not None)

    def _type(self, base: Kept, version: int, given: str | None, own: str | None) -> str | None:
        """What the state goes on to be: of one version it cannot become another.

        *given* is what its user says that it is, *own* what the document says.
        """
        id_, before, was = self._journal.key.id, base.about.version, base.about.type
        if before > version:
            msg = (
                f"State {id_!r} was saved as version {before}, and this program would save "
                f"version {version} in its place. A newer one is at work: update this one."
            )
            raise StateTooNew(msg)
        if given is None and own == type_of(base.document):
            return was or own
        type_ = given or own
        if before < version or type_ in (None, was):
            return type_ or was
        if was is None:
            return type_
        msg = (
            f"State {id_!r} is of type {was!r}, and {type_!r} cannot be saved in its place. Use "
            "another id; or, if it has become another, a new version of it, with a migration."
        )
        raise WrongState(msg)

    async def _take(self, expect: int | None) -> tuple[Kept | None, int]:
        """What to compare with, ours alone from now on, and the position that it is expected at.

        It is given back by `see`. Whoever fails in between leaves nothing, and it is read again.
        """
        base, self._base = self._base, None
        if base is not None and expect not in (None, base.position):
            base = None
        if base is not None and self._is_sure(base):
            return base, base.position
        head = await self._journal.head()
        if head is None:
            if expect:
                raise conflict(Append(key=self._journal.key, expect=Expect(None, expect)), 0)
            return None, 0
        if base is not None and base.created and head.seq == base.position:
            self._check_same(base, created=head.created)
            if base.is_at(head):
                return base, base.position
        return await self._look(base, head, self._seen if expect is None else expect)

    async def _look(
        self, base: Kept | None, head: Head, wanted: int | None
    ) -> tuple[Kept | None, int]:
        """The same, read from the store; *base* is what we believe it to be."""
        try:
            found = await self._reader.newest(head)
        except StateDamaged:  # then a whole copy, which can be read
            found = None
        position = head.seq if found is None else found.position
        if self._is_ours(found):
            self._seen = position  # the next may be cut off too, and have come to nothing
        elif wanted not in (None, position):
            raise conflict(
                Append(key=self._journal.key, expect=Expect(None, wanted or 0)), position
            )
        if base is not None and found is not None and position == base.position:
            self._check_same(base, digest=found.digest)
        return found, position

    def _is_sure(self, base: Kept) -> bool:
        """Whether it was seen so shortly ago that nobody need be asked."""
        known = base.created and base.position > EARLY
        return bool(known) and monotonic() - self._met < FRESH

    def _check_same(self, base: Kept, *, created: int = 0, digest: str = "") -> None:
        """That what is at the position of *base* now is no other state, which has come there."""
        if created in (0, base.created) and digest in ("", base.digest):
            return
        self._base = base  # until somebody has loaded what is there
        raise self._begun_anew(base.position)

    def _begun_anew(self, position: int) -> Conflict:
        msg = (
            f"state {self._journal.key.id!r} was deleted and begun anew since it was loaded "
            "here. Load what there is, decide again, and save."
        )
        return Conflict(msg, position, position)

    def _is_ours(self, base: Kept | None) -> bool:
        """Whether *base* is what we wrote, and were cut off before we were told that it is."""
        return base is not None and self._tried == (base.position, base.digest)

    async def _write(
        self, base: Kept | None, draft: Draft, about: About, position: int, *, forced: bool
    ) -> int:
        created, ground = (0, None) if base is None else (base.created, (base.copy, base.digest))
        kept, body = await self._next(base, draft, about, position)
        kept.created = created
        self._tried = (kept.position, kept.digest)
        try:
            record = await self._store(kept, body, position)
        except Conflict as error:
            if forced or error.actual:
                raise
            # It has expired, or was deleted: there is nobody to be in conflict with.
            kept, body = self._copy(draft, about, 0)
            record = await self._store(kept, body, 0)
        if not await self._is_upon(kept, position, ground):
            kept, body = self._copy(draft, about, kept.position)
            kept.created = created
            self._tried = (kept.position, kept.digest)
            record = await self._store(kept, body, kept.copy - 1)
        self._tried = None
        kept.at = from_micros(record.at)
        self.see(kept)
        return record.seq

    async def _is_upon(self, kept: Kept, position: int, ground: tuple[int, str] | None) -> bool:
        """Whether *kept*, written behind *position*, is upon what it was made for.

        It was held to the position, and to nothing else. If the state was deleted, and another has
        come just there, that one is put back, and the save was in vain: `Conflict`. Who is killed
        before he gets here was told nothing, and what the other has saved is in the history.
        False: it is a patch, and upon damage.
        """
        if kept.copy == kept.position:
            head = await self._journal.head() if kept.created else None
            same = head is None or head.created == kept.created
        else:
            try:
                found = await self._reader.ground(position)
            except Damage:
                return False
            same = found in (None, ground)  # None: it has been deleted, or compacted, since
        if same:
            return True
        self._tried = None
        await self._put_back(position)
        raise self._begun_anew(position)

    async def _put_back(self, position: int) -> None:
        """Let what was saved at *position* be the newest, in place of what we wrote behind it."""
        with suppress(NotFound, StateDamaged, Conflict):  # or somebody else has saved it whole
            was = await self._reader.at(position)
            about = structs.replace(was.about, note=f"restored from {position}")
            kept, body = self._copy(Draft(was.document, self.codec), about, position + 1)
            await self._store(kept, body, position + 1)

    async def _store(self, kept: Kept, body: bytes, expect: int) -> Appended:
        whole = kept.copy == kept.position
        status = Marks(kept.about.version, kept.copy).text if whole else UNSET
        entry = (SAVED if whole else PATCHED, None)  # its body is there already
        return await self._journal.write([entry], body=body, expect=expect, status=status)

    async def _next(
        self, base: Kept | None, draft: Draft, about: About, position: int
    ) -> tuple[Kept, bytes]:
        """What the state becomes, and the body that makes it so: of a patch if one will do."""
        if len(draft.encoded) > self.codec.max_bytes:
            base = None
        for exact in (False, True):
            if base is None or not _can_patch(base, about):
                break
            made = self._patch(base, draft, about, exact=exact)
            if made is None:
                break
            body, said = made
            if self._apply(base, draft, about, said):
                return base, body
            # Equal for Python and not the same as JSON, such as 1 and True.
            base = await self._again(position)
        return self._copy(draft, about, position)

    async def _again(self, position: int) -> Kept | None:
        """What there is to compare with, once more: what we had is spoiled."""
        try:
            return await self._reader.at(position)
        except (NotFound, StateDamaged):
            return None

    def _patch(
        self, base: Kept, draft: Draft, about: About, *, exact: bool
    ) -> tuple[bytes, dict[str, Any]] | None:
        """The body of a patch, and what will be read of it; None if a whole copy is better."""
        if exact:
            draft.make_plain()
        try:
            patch = deltas.diff(base.document, draft.document, exact=exact)
        except deltas.NotPlain:
            draft.make_plain()
            patch = deltas.diff(base.document, draft.document, exact=exact)
        if patch is None and not exact and draft.content != base.content:
            return self._patch(base, draft, about, exact=True)
        said: dict[str, Any] = {
            "version": about.version,
            "copy": base.copy,
            "total": len(draft.encoded),
            "digest": about.seal(draft.content),
            "patch": patch,
        }
        if about.fingerprint != base.about.fingerprint:
            said["fingerprint"] = about.fingerprint
        if about.note is not None:
            said["note"] = about.note
        try:
            body = self._journal.encode([(PATCHED, said)], COMPRESS_OVER)
        except (NotStorable, TooLarge):  # a whole copy can be had, or says what is wrong
            return None
        read = self._read(body)
        weight = base.weight + weigh(read)
        # So that writing stays linear, and that reading it back reads no more than twice of it.
        small = weight < base.copied and base.copied + weight <= 2 * len(draft.encoded)
        return (body, read) if small else None

    def _apply(self, base: Kept, draft: Draft, about: About, said: dict[str, Any]) -> bool:
        """Let *base* become what every reader of *said* will make of it: False if not *draft*."""
        weight = weigh(said)  # before its parts are the document's
        patch, before = said["patch"], base.proof
        if patch is not None:
            base.document = deltas.apply(base.document, patch)
        base.about, base.digest, base.total = about, said["digest"], said["total"]
        base.proof = draft.proof
        base.weight += weight
        base.position += 1
        if patch is None or before is None:
            return deltas.encode(base.document) == draft.encoded
        return deltas.is_patched(base.document, patch, before.encoded, draft.encoded)

    def _copy(self, draft: Draft, about: About, position: int) -> tuple[Kept, bytes]:
        """The same by a whole copy."""
        body, document = self._whole(draft, about)
        if deltas.encode(document) != draft.encoded:
            draft.make_plain()
            body, document = self._whole(draft, about)
        seq, total = position + 1, len(draft.encoded)
        at = from_micros(0)  # that is not known yet
        digest = about.seal(draft.content)
        kept = Kept(seq, at, about, document, digest, total, seq, total, proof=draft.proof)
        return kept, body

    def _whole(self, draft: Draft, about: About) -> tuple[bytes, Any]:
        said: dict[str, Any] = {
            "version": about.version,
            "total": len(draft.encoded),
            "digest": about.seal(draft.content),
        }
        extra = {"type": about.type, "fingerprint": about.fingerprint, "note": about.note}
        said |= {name: value for name, value in extra.items() if value is not None}
        try:
            body = self._journal.encode([(SAVED, said | {"state": draft.document})], COMPRESS_OVER)
        except (NotStorable, TooLarge) as error:
            draft.make_plain()  # which says where, in the caller's words
            raise error.under("saved['state']", "state") from error
        return body, self._read(body)["state"]

    def _read(self, body: bytes) -> Any:
        """What an entry will be read as."""
        return self._journal.entries(Record(1, 1, 0, body))[0].body


def _can_patch(base: Kept, about: About) -> bool:
    """Whether only the document has changed, or what it depends on."""
    same = (base.about.version, base.about.type) == (about.version, about.type)
    return same and not (about.fingerprint is None and base.about.fingerprint is not None)


def _is_same(base: Kept, draft: Draft, about: About) -> bool:
    """Whether there is nothing to write."""
    was = base.about
    if (was.version, was.type, was.fingerprint) != (about.version, about.type, about.fingerprint):
        return False
    if draft.content != base.content:
        return False
    if b"null" in draft.encoded and draft.document != base.document:
        draft.make_plain()  # null is what msgspec makes of NaN, silently
    return True
