"""Writes a state: a whole copy, or what has changed; tried out before it is stored.

A save is one append, with the incarnation and the number that this writer has last seen as its
condition: if somebody else has saved since, or the state was deleted and begun anew, it is refused,
and nothing needs to be read to know that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from limpet.backends.contract import UNSET, Appended, Expect, UnsetType
from limpet.backends.decide import conflict
from limpet.core import deltas
from limpet.core.codec import CHECK, HEADER, Codec
from limpet.errors import (
    Conflict,
    NotStorable,
    StateDamaged,
    StateNotFound,
    StateTooNew,
    TooLarge,
    WrongState,
)
from limpet.states.format import (
    PATCHED,
    SAVED,
    SaveInfo,
    Snapshot,
    StateMeta,
    patch_weight,
    type_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from limpet.backends.contract import Head
    from limpet.core.calls import Call
    from limpet.core.journal import AsyncJournal
    from limpet.states.reader import Reader

__all__ = ["Draft", "Writer"]

#: From so many bytes on a save is compressed: it is read seldom, and its like has much in common.
COMPRESS_OVER = 256


# -- the document ----------------------------------------------------------------------------------


class Draft:
    """A document about to be saved, as its user has it, and the JSON of it.

    What JSON has not (a model, a set, a number that is none) msgspec may write in silence as
    something else. Whoever finds a difference to what is read back makes it plain: that says where.
    """

    def __init__(self, document: Any, codec: Codec, name: str = "state") -> None:
        self.document = document
        #: The digest of what was saved before: it has much in common with this one.
        self.before: deltas.Digest | None = None
        self._codec = codec
        self._name = name
        self._content: deltas.Digest | None = None
        self._is_plain = False
        if document.__class__ in (dict, list):  # as nearly all are
            try:
                self.encoded = deltas.encode(document)
            except (TypeError, ValueError, OverflowError, RecursionError):
                self.make_plain()  # a value that the codec knows, or can say what is wrong with
        else:
            self.make_plain()

    @property
    def content(self) -> deltas.Digest:
        """The digest of the document."""
        if self._content is None:
            self._content = deltas.Digest(self.encoded, self.before)
        return self._content

    def diff(self, old: Snapshot, *, exact: bool) -> dict[str, Any] | None:
        """The patch that makes it of *old*; see `deltas.diff`."""
        if exact:
            self.make_plain()
        elif old.grew is not None and old.content is not None:  # then it may have done so again
            patch = deltas.growth(
                old.document, self.document, old.grew, old.content.encoded, self.encoded
            )
            if patch is not None:
                return patch
        try:
            return deltas.diff(old.document, self.document, exact=exact)
        except deltas.NotPlain:
            self.make_plain()
            return deltas.diff(old.document, self.document, exact=exact)

    def make_plain(self) -> None:
        """Let it be what it will be read back as; `NotStorable` or `TooLarge` if it cannot be."""
        if self._is_plain:
            return
        limits = {"max_bytes": self._codec.max_bytes, "max_depth": self._codec.max_depth}
        body = Codec(compress_over=None, **limits).encode([(self._name, self.document)])
        payload = msgspec.json.decode(body[HEADER:-CHECK], type=tuple[str, msgspec.Raw])[1]
        plain = msgspec.json.decode(payload)
        self.encoded, self._content = deltas.encode(plain), None
        self.document, self._is_plain = plain, True


# -- the save --------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """The state as this writer last saw it, by reading it or by writing it."""

    expect: Expect  # where its journal was
    at: int  # when something was last appended to it
    calls: dict[str, Call]  # those that had begun and not ended
    newest: Snapshot | None  # the newest save, ours to change; None: it is to be read again

    @classmethod
    def of(cls, head: Head, newest: Snapshot | None) -> Seen:
        """What *head* says, and the *newest* save, if it can be loaded."""
        return cls(head.expect, head.updated, StateMeta.of(head).calls, newest)

    def is_at(self, head: Head) -> bool:
        """Whether nothing has been appended since.

        The time tells it from a backup that was brought back, which has the same incarnation.
        """
        return (self.expect, self.at) == (head.expect, head.updated)


#: No state.
NOTHING = Seen(Expect(None, 0), 0, {}, None)


class Writer:
    """Writes to one state, with the labels and the time to live of its journal."""

    def __init__(self, journal: AsyncJournal, reader: Reader) -> None:
        self.seen: Seen | None = None  # None: never
        self._journal = journal
        self._reader = reader
        #: The number and the digest of a save that was sent, as long as nobody knows whether it
        #: has arrived.
        self._sent: tuple[int, str] | None = None

    async def newest(self) -> Snapshot | None:
        """The newest save, which is *seen* by that; None if there is no state.

        It stays ours: nobody else may change it.
        """
        head = await self._journal.head()
        if head is None:
            self.seen = NOTHING
        elif self.seen is None or self.seen.newest is None or not self.seen.is_at(head):
            self.seen = await self._read(head)
        self._sent = None  # if it has arrived, it was seen now
        return self.seen.newest

    async def is_current(self) -> bool:
        """Whether nothing was appended since it was last seen."""
        head = await self._journal.head()
        if head is None:
            return self.seen in (None, NOTHING)
        return self.seen is not None and self.seen.is_at(head)

    async def delete(self) -> bool:
        """Remove the state; False if it was not there."""
        existed = await self._journal.delete()
        self.seen = NOTHING
        return existed

    async def save(
        self,
        draft: Draft,
        info: SaveInfo,
        *,
        expect: int | None,
        again: bool = False,
        calls: Mapping[str, Call] | None = None,
        labels: Mapping[str, str | None] | UnsetType = UNSET,
        ttl: float | UnsetType | None = UNSET,
    ) -> int:
        """Store *draft*; its position, which is the old one if nothing has changed.

        *again*: it was saved before, and is to be as it was, also of an older version.
        """
        seen = await self._take(expect)
        base = seen.newest
        if base is not None:
            draft.before = base.content
        if not again:
            info = self._completed(info, base, draft)
        open_calls = dict(seen.calls if calls is None else calls)
        unchanged = info.note is None and open_calls == seen.calls
        if unchanged and base is not None and _is_same(base, draft, info):
            head = await self._journal.head()
            if head is not None:
                if not seen.is_at(head):
                    raise self._conflict(seen.expect, head.seq)
                self.seen, self._sent = seen, None
                return base.position

        position = seen.expect.seq + 1
        patched = None if base is None else self._patched(base, draft, info, position)
        made, body = patched or self._whole_copy(draft, info, position)
        try:
            done = await self._append(made, body, seen, open_calls, labels=labels, ttl=ttl)
        except Conflict as error:
            if expect is not None or error.actual:
                raise
            # It was deleted, or has expired: there is nobody to be in conflict with.
            made, body = self._whole_copy(draft, info, 1)
            done = await self._append(made, body, NOTHING, open_calls, labels=labels, ttl=ttl)
        # In this order: an interrupt in between must not leave our own save unknown to us.
        self.seen = Seen(done.expect, done.at, open_calls, made)
        self._sent = None
        return done.seq

    async def _append(
        self, made: Snapshot, body: bytes, seen: Seen, calls: dict[str, Call], **attributes: Any
    ) -> Appended:
        is_whole = made.copy == made.position
        if is_whole or calls != seen.calls:
            meta = StateMeta(
                version=made.info.version, copy=made.copy, type=made.info.type, calls=calls
            )
            attributes["meta"] = meta.encode()
        entry = (SAVED if is_whole else PATCHED, None)  # its body is made already
        self._sent = made.position, made.digest
        try:
            return await self._journal.write([entry], body=body, expect=seen.expect, **attributes)
        except Conflict:
            self._sent = None
            raise

    # -- what is there -----------------------------------------------------------------------------

    async def _take(self, expect: int | None) -> Seen:
        """What to compare with and to append behind, or `Conflict`.

        The snapshot is the caller's to change. If the save fails in between it is read again.
        """
        seen = self.seen
        if seen is not None:
            self.seen = seen._replace(newest=None)
        if self._sent is not None:
            return await self._look(seen, expect)
        if expect == 0 or (expect is None and seen == NOTHING):
            return NOTHING  # whether that is so, the append finds out
        if seen is None or seen.newest is None:
            return await self._look(seen, expect)
        if expect is not None and not seen.newest.position <= expect <= seen.expect.seq:
            return await self._look(seen, expect)
        return seen

    async def _look(self, seen: Seen | None, expect: int | None) -> Seen:
        """The same, read from the store; *seen* is what is known of it."""
        head, now = await self._journal.head(), NOTHING
        if head is not None:
            try:
                now = await self._read(head)
            except StateDamaged:
                now = Seen.of(head, None)  # then a whole copy is written, which can be loaded
        if now == NOTHING and not expect:
            return NOTHING  # a state that is gone begins anew
        last = now.expect.seq
        oldest = last if now.newest is None else now.newest.position
        if now.newest and self._sent == (now.newest.position, now.newest.digest):
            # It is the save of ours that was not answered. It is remembered now, because the next
            # one may not be answered either, and come to nothing.
            self.seen = now._replace(newest=None)
            oldest -= 1
        elif expect is None and seen is not None and seen[:2] != now[:2]:
            raise self._conflict(seen.expect, last)
        if expect is not None and not oldest <= expect <= last:
            raise self._conflict(Expect(None, expect), last)
        return now

    async def _read(self, head: Head) -> Seen:
        """The state as it is now; *head* was just read."""
        try:
            return Seen.of(*await self._reader.newest(head))
        except StateNotFound:
            return NOTHING

    def _conflict(self, expect: Expect, actual: int) -> Conflict:
        return conflict(self._journal.key, expect, actual)

    def _completed(self, info: SaveInfo, base: Snapshot | None, draft: Draft) -> SaveInfo:
        """*info* with what the state was before, where it says nothing itself.

        `StateTooNew` if a newer version is there. `WrongState`: of one version, a state cannot
        become one of another type.
        """
        own = type_of(draft.document)
        if base is None:
            return msgspec.structs.replace(info, type=info.type or own)
        id_, before, was = self._journal.key.id, base.info.version, base.info.type
        if before > info.version:
            msg = (
                f"State {id_!r} was saved as version {before}, and this program would save "
                f"version {info.version} in its place. A newer one is at work: update this one."
            )
            raise StateTooNew(msg)
        type_ = info.type or own
        if info.type is None and own == type_of(base.document):
            type_ = was or own  # it may have been given another name than its own
        elif before == info.version and None not in (type_, was) and type_ != was:
            msg = (
                f"State {id_!r} is of type {was!r}, and {type_!r} cannot be saved in its place. "
                "Use another id; or, if it has become another, a new version, with a migration."
            )
            raise WrongState(msg)
        return msgspec.structs.replace(
            info,
            type=type_ or was,
            fingerprint=base.info.fingerprint if info.fingerprint is None else info.fingerprint,
        )

    # -- what is written ---------------------------------------------------------------------------

    def _patched(
        self, base: Snapshot, draft: Draft, info: SaveInfo, position: int
    ) -> tuple[Snapshot, bytes] | None:
        """What the state becomes, and the patch that makes it so, as a body.

        It is applied to *base* itself. None if a whole copy is better.
        """
        was, before = base.info, base.content
        is_another = (was.version, was.type) != (info.version, info.type)
        loses_fingerprint = info.fingerprint is None and was.fingerprint is not None
        # The limit is on documents: a patch must not get round it.
        is_too_large = len(draft.encoded) > self._journal.codec.max_bytes
        if before is None or is_another or loses_fingerprint or is_too_large:
            return None
        for exact in (False, True):
            patch = draft.diff(base, exact=exact)
            if patch is None and not exact and draft.content.text != before.text:
                continue  # equal for Python and not as JSON, such as 1 and True
            body = self._encoded_patch(base, draft, info, patch)
            if body is None:
                return None
            # From here on it is done as every reader will do it.
            patch = self._journal.decode(position, body)[0][1]["patch"]
            weight, total = base.weight + patch_weight(patch), len(draft.encoded)
            # So that writing stays linear, and that reading it back reads no more than twice of it.
            if weight >= base.copy_total or base.copy_total + weight > 2 * total:
                return None
            document, is_right = base.document, before.encoded == draft.encoded
            if patch is not None:
                document = deltas.apply(document, patch)
                is_right = deltas.is_patched(document, patch, before.encoded, draft.encoded)
            if is_right:
                made = Snapshot(
                    position=position,
                    info=info,
                    document=document,
                    digest=info.digest(draft.content.text),
                    total=total,
                    copy=base.copy,
                    copy_total=base.copy_total,
                    weight=weight,
                    content=draft.content,
                    grew=deltas.grown_list(patch) or base.grew,
                )
                return made, body
            # Something else in it is equal for Python, and not as JSON.
            base.document = msgspec.json.decode(before.encoded)
        return None

    def _encoded_patch(
        self, base: Snapshot, draft: Draft, info: SaveInfo, patch: dict[str, Any] | None
    ) -> bytes | None:
        """The body of a patch; None if it cannot be stored."""
        stored: dict[str, Any] = {
            "version": info.version,
            "copy": base.copy,
            "total": len(draft.encoded),
            "digest": info.digest(draft.content.text),
            "patch": patch,
        }
        if info.fingerprint != base.info.fingerprint:
            stored["fingerprint"] = info.fingerprint
        if info.note is not None:
            stored["note"] = info.note
        try:
            return self._journal.encode([(PATCHED, stored)], COMPRESS_OVER)
        except (NotStorable, TooLarge):  # a whole copy can be stored, or says what is wrong
            return None

    def _whole_copy(self, draft: Draft, info: SaveInfo, position: int) -> tuple[Snapshot, bytes]:
        """The same by a whole copy."""
        body, document = self._encoded_whole(draft, info, position)
        if deltas.encode(document) != draft.encoded:
            draft.make_plain()
            body, document = self._encoded_whole(draft, info, position)
        made = Snapshot(
            position=position,
            info=info,
            document=document,
            digest=info.digest(draft.content.text),
            total=len(draft.encoded),
            copy=position,
            copy_total=len(draft.encoded),
            content=draft.content,
        )
        return made, body

    def _encoded_whole(self, draft: Draft, info: SaveInfo, position: int) -> tuple[bytes, Any]:
        """The body of a whole copy, and the document as it is read back."""
        stored: dict[str, Any] = {
            "version": info.version,
            "total": len(draft.encoded),
            "digest": info.digest(draft.content.text),
        }
        extra = {"type": info.type, "fingerprint": info.fingerprint, "note": info.note}
        stored |= {name: value for name, value in extra.items() if value is not None}
        stored["state"] = draft.document
        try:
            body = self._journal.encode([(SAVED, stored)], COMPRESS_OVER)
        except (NotStorable, TooLarge) as error:
            draft.make_plain()  # which says where, in the caller's words
            raise error.under("saved['state']", "state") from error
        return body, self._journal.decode(position, body)[0][1]["state"]


def _is_same(base: Snapshot, draft: Draft, info: SaveInfo) -> bool:
    """Whether there is nothing to write."""
    was = base.info
    if (was.version, was.type, was.fingerprint) != (info.version, info.type, info.fingerprint):
        return False
    if base.content is None or draft.content.text != base.content.text:
        return False
    if b"null" in draft.encoded and draft.document != base.document:
        draft.make_plain()  # null is what msgspec makes of NaN, silently
    return True
