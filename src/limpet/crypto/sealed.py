"""A backend that seals what another one stores, so that nobody else knows of encryption.

Bodies and meta go in sealed and come out as they were; ids, labels, status and times are stored as
they are. Beside a journal's labels, in its head, lie some of ours, which nobody is shown: its
wrapped data key, and notes of what was compacted away. The key is written in one act with the first
record, so there is no moment at which a journal is without it.

A record is sealed for its number, behind the tag of the one before it. So every append is
conditional on the head that it was sealed for; where another writer was first, it is sealed again.
A journal that begins anew has a new data key: by that, what belongs to an earlier one is known.

With every record goes a note of the end: what was cut off at the end is known by that.
"""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from msgspec import UNSET, Struct, structs

from limpet.backends import decide, forks
from limpet.backends.contract import (
    HIDDEN,
    Append,
    Appended,
    Backend,
    Expect,
    Head,
    Page,
    Record,
)
from limpet.backends.facts import Fact
from limpet.crypto.envelope import (
    OVERHEAD,
    START,
    DataKey,
    Forged,
    chain_of,
    is_sealed,
    key_of_meta,
    tag_of,
    wrapped_under,
)
from limpet.crypto.opening import MARKER
from limpet.errors import (
    Conflict,
    KeyMissing,
    LimpetError,
    NotEncrypted,
    StoreBusy,
    StoreError,
    Tampered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from limpet.backends.contract import Key, Lease, Transaction
    from limpet.crypto.keys import Keys

__all__ = ["CUT", "END", "WRAPPED", "Sealed"]

#: Our labels. No label of a user's begins so. END is where the note of the end was before backends
#: kept one with the record; it is read where there is none, and goes with the next record.
WRAPPED = HIDDEN + "key"
END = HIDDEN + "end"
CUT = HIDDEN + "cut-"

#: Behind the incarnation of a journal that was rewritten and is to be taken for the same: what is
#: behind it is another each time, so that nobody writes behind a record that is not there any more.
AGAIN = "~"

#: Journals of which something is remembered; where there are more, all is read again.
MOST_JOURNALS = 10_000
#: Tags that are remembered of a journal: those at the edges of the pages that were read.
MOST_TAGS = 64
#: How often a journal is looked at anew that seems to be forged: it may have begun anew meanwhile.
LOOKS = 3
#: How often a journal may conflict where nobody else has written.
TRIES = 10
#: Appends to one journal come one by one; so many that have nothing to do with each other do not.
LOCKS = 256

# What no journal is at: it is expected where the caller's own expectation does not hold, so that
# the backend says what comes before that (a known id, a lease that was lost), and writes nothing.
_NOWHERE = Expect("", (1 << 53) - 1)

#: What a backend says of itself that is not what the inner one says.
_OF_OUR_OWN = {"private", "overhead", "keeps", "append_async"}

#: What a receipt says beside what it says of the place itself.
_KEEPS = (
    "The data keys of what was deleted are deleted with it. Backups made before have them still: "
    "whoever has one and your key of then reads it there. `limpet keys new`, `limpet keys rotate`, "
    "`limpet keys retire N`, and every copy of key N destroyed, make all backups from before the "
    "rotation unreadable, for you too."
)


class _Plain(Forged):
    """It is not encrypted."""


class _Unchained(Forged):
    """It was written at this number, but not behind what is there before it."""


class _Journal:
    """What is known of one incarnation of a journal: its key, and tags of its records."""

    def __init__(self, incarnation: str, wrapped: str, key: DataKey) -> None:
        self.incarnation = incarnation  # as the inner backend has it
        self.wrapped = wrapped
        self.key = key
        #: The newest note of its end that was seen, and the number in it.
        self.note: tuple[bytes | str | None, int] = (None, 0)
        self.has_end_label = False
        self.tags: dict[int, bytes] = {}  # of the records that end at these numbers

    def know(self, seq: int, tag: bytes) -> None:
        """Remember the *tag* of the record that ends at *seq*."""
        if len(self.tags) > MOST_TAGS:
            noted = self.note[1]
            self.tags = {noted: self.tags[noted]} if noted in self.tags else {}
        self.tags[seq] = tag


class _Place(Struct, frozen=True, gc=False):
    """Where a journal stands, for what comes next: its last number, and that record's tag."""

    seq: int
    tag: bytes
    journal: _Journal | None  # None: there is none

    @property
    def expect(self) -> Expect:
        # One that begins in the same act has no incarnation yet.
        return Expect((self.journal and self.journal.incarnation) or None, self.seq)

    def fits(self, expect: Expect | None) -> bool:
        """Whether this is where a caller expects it."""
        if expect is None:
            return True
        ours = _shown(self.journal.incarnation) if self.journal else None
        return expect.seq == self.seq and (not self.seq or expect.incarnation in (None, ours))


class Sealed(Backend):
    """*inner*, whose content nobody reads without *keys*."""

    private = True

    def __init__(self, inner: Backend, keys: Keys, *, damaged: bool = False) -> None:
        super().__init__(inner.url, readonly=inner.readonly)
        self._damaged = damaged  # what is missing is not refused: each record is looked at
        self.inner = inner
        self.keys = keys
        self.path = getattr(inner, "path", None)
        self.overhead = inner.overhead + OVERHEAD
        for name in Backend.__annotations__.keys() - _OF_OUR_OWN:
            setattr(self, name, getattr(inner, name))
        vars(self)["keeps"] = (*inner.keeps, _KEEPS)
        if inner.append_async is not None:
            self.append_async = self._append_async
        self._start()
        forks.register(self)

    def _start(self) -> None:
        self._locks = [threading.Lock() for _ in range(LOCKS)]
        self._journals: dict[Key, _Journal] = {}
        self._places: dict[Key, _Place] = {}
        self._mutex = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        raise TypeError(f"A sealed backend is made of another one, not of {url!r} ({options}).")

    # -- writing -----------------------------------------------------------------------------

    def append(self, request: Append) -> Appended:
        if not request.count and _goes_as_it_is(request):
            return _answer(self.inner.append(request))
        # One by one, or all but one of those that come together would be sealed for nothing.
        with self._locks[hash(request.key) % LOCKS]:
            return self._append(request, self.inner.append)

    def _append(self, request: Append, send: Callable[[Append], Appended]) -> Appended:
        """Seal *request* and *send* it, anew for as long as others come between."""
        key, tries = request.key, 0
        place = self._places.get(key)
        if place is None or not place.fits(request.expect):
            place = self._look(key)
        while True:
            sealed, following = self._next(request, place)
            try:
                done = send(sealed)
            except Conflict as conflict:
                before, place = place, self._look(key)
                if not place.fits(request.expect) and not before.fits(request.expect):
                    raise decide.conflict(request.key, request.expect, place.seq) from conflict
                # If it fits no more it is sent once again: it may be there by now, under its id.
                tries += place.expect == before.expect
                if tries == TRIES:
                    raise
                time.sleep(random.uniform(0, 0.01 * tries))  # noqa: S311 - no secret
            except BaseException:
                self._places.pop(key, None)  # it may have been written, or not
                raise
            else:
                if not done.repeated:
                    self._keep(sealed, following, done)
                return _answer(done)

    async def _append_async(self, request: Append) -> Appended:
        """`append` for async callers: on their loop, while nobody comes between."""
        assert self.inner.append_async is not None  # noqa: S101 - or this is not called
        if not request.count and _goes_as_it_is(request):
            return _answer(await self.inner.append_async(request))
        place = self._places.get(request.key)
        if place is not None and place.fits(request.expect):
            sealed, following = self._next(request, place)
            try:
                done = await self.inner.append_async(sealed)
            except Conflict:
                self._places.pop(request.key, None)
            except BaseException:
                self._places.pop(request.key, None)
                raise
            else:
                if not done.repeated:
                    self._keep(sealed, following, done)
                return _answer(done)
        import asyncio  # noqa: PLC0415 - sync programs never pay for it
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - as above

        from limpet.core.runtime import finished  # noqa: PLC0415 - as above

        # What has to be read first, or to wait for its turn, goes on a thread.
        self.inner.check_writable()
        with self._mutex:
            if self._threads is None:
                most = self.inner.concurrency
                self._threads = ThreadPoolExecutor(most, thread_name_prefix="limpet-sealed")
        loop = asyncio.get_running_loop()
        return await finished(loop.run_in_executor(self._threads, self.append, request))

    def _look(self, key: Key) -> _Place:
        """Where a journal stands now."""
        for _ in range(TRIES):
            head = self.inner.head(key)
            if head is None:
                return _Place(0, START, None)
            journal = self._journal_of(head)
            tag = journal.tags.get(head.seq)
            if tag is None and head.first <= head.seq:
                last = self.inner.read(key, after=head.seq - 1, limit=2)
                if len(last) != 1 or last[0].seq != head.seq:
                    continue  # somebody has written, or compacted, meanwhile
                found = self._opened(journal, last)[0]
                if isinstance(found, Forged):
                    raise self._error(key, found)
                tag = tag_of(last[0].body)
            return _Place(head.seq, START if tag is None else tag, journal)
        raise self._error(key, Forged("its last record is not where its head says."))

    def _next(self, request: Append, place: _Place) -> tuple[Append, _Place]:
        """*request*, sealed for a journal at *place*; and where that is when it was done.

        Mostly there is one record, and nothing else to be sealed. That case comes first, and by
        itself: what comes right after a wait for the disk finds cold caches, and takes three times
        as long as it would in a loop.
        """
        journal = place.journal
        if (
            journal is None
            or journal.has_end_label
            or not request.count
            or request.earlier
            or request.meta is not UNSET
        ):
            return self._next_with_all(request, place)
        count, seq = request.count, place.seq + request.count
        body = journal.key.seal(request.body, seq=seq, count=count, chain=place.tag)
        tag = tag_of(body)
        note = journal.key.end_note(seq, tag)
        fits = request.expect is None or place.fits(request.expect)
        expect = place.expect if fits else _NOWHERE
        return structs.replace(request, body=body, note=note, expect=expect), _Place(
            seq, tag, journal
        )

    def _next_with_all(self, request: Append, place: _Place) -> tuple[Append, _Place]:
        """The same of a request that has other things in it, or for a journal that begins."""
        key, origin, journal = request.key, request.origin, place.journal
        seq, tag = place.seq, place.tag
        ours: dict[str, str | None] = {}
        expect = place.expect if place.fits(request.expect) else _NOWHERE
        if journal is None:
            if not request.count:
                return self._early(request, place)
            made = DataKey.new(key)
            journal = _Journal("", made.wrapped(self.keys), made)
            ours[WRAPPED] = journal.wrapped
            if origin is not None and origin.first > 1:
                seq = origin.first - 1
                ours[_cut_name()] = made.cut_note(seq)
        data = journal.key
        earlier = []
        for count, body in request.earlier:
            seq += count
            sealed = data.seal(body, seq=seq, count=count, chain=tag)
            earlier.append((count, sealed))
            tag = tag_of(sealed)
        body = request.body
        if request.count:
            seq += request.count
            body = data.seal(body, seq=seq, count=request.count, chain=tag)
            tag = tag_of(body)
        meta = request.meta
        if meta is not UNSET and meta is not None:
            meta = data.seal_meta(meta, seq)
        note = None
        if request.count:
            note = data.end_note(seq, tag)
            if journal.has_end_label:
                ours[END] = None
        labels: Mapping[str, str | None] | Any = request.labels
        if ours:
            labels = ours if labels is UNSET else {**labels, **ours}
        sealed_request = structs.replace(
            request,
            body=body,
            earlier=earlier,
            meta=meta,
            labels=labels,
            note=note,
            expect=expect,
        )
        return sealed_request, _Place(seq, tag, journal)

    def _early(self, request: Append, place: _Place) -> tuple[Append, _Place]:
        """*request*, which adds no record to a journal that is not there.

        Under a lease it prepares what the journal has when it begins. Nobody knows its key yet, so
        meta has one of its own.
        """
        meta = request.meta
        if meta is not UNSET and meta is not None:
            made = DataKey.new(request.key)
            meta = made.seal_meta(meta, 0, made.wrapped(self.keys))
        expect = place.expect if place.fits(request.expect) else _NOWHERE
        return structs.replace(request, meta=meta, expect=expect), place

    def _keep(self, sealed: Append, place: _Place, done: Appended) -> None:
        """Remember what an append has come to."""
        journal, key = place.journal, sealed.key
        if journal is None or done.seq != place.seq:
            self._places.pop(key, None)
            return
        if not journal.incarnation:
            journal.incarnation = done.incarnation
            self._remember(key, journal)
        note = sealed.note
        if note is not None and place.seq >= journal.note[1]:
            journal.note = note, place.seq
            journal.has_end_label = False
        journal.know(place.seq, place.tag)
        if len(self._places) > MOST_JOURNALS:
            self._places.clear()
        self._places[key] = place

    def append_all(self, requests: Sequence[Append]) -> list[Appended]:
        if not self.inner.transactional:
            return self.inner.append_all(requests)
        self.inner.check_writable()
        known: set[int] = set()  # those that are there already, under their ids
        for _ in range(TRIES * TRIES):
            before = {key: self._look(key) for key in {request.key for request in requests}}
            made, misfits = self._next_all(requests, before, known)
            try:
                done = self.inner.append_all(made)
            except Conflict as conflict:
                now = {key: self._look(key) for key in before}
                if any(now[key].expect != before[key].expect for key in now):
                    continue
                found = {
                    number
                    for number, request in enumerate(requests)
                    if request.id is not None and self._knows(request)
                }
                if found - known:
                    known |= found
                    continue
                if misfits:
                    misfit = misfits[0]
                    actual = now[misfit.key].seq
                    raise decide.conflict(misfit.key, misfit.expect, actual) from conflict
                raise
            finally:
                for key in before:
                    self._places.pop(key, None)
            return [_answer(one) for one in done]
        first = requests[0]
        raise decide.conflict(first.key, first.expect, self._look(first.key).seq)

    def _next_all(
        self, requests: Sequence[Append], places: Mapping[Key, _Place], known: set[int]
    ) -> tuple[list[Append], list[Append]]:
        """*requests*, sealed for journals at these *places*; those that expect them elsewhere.

        Those whose numbers are *known* are there already, and add nothing.
        """
        now = dict(places)
        made, misfits = [], []
        for number, request in enumerate(requests):
            place = now[request.key]
            sealed, following = self._next(request, place)
            made.append(sealed)
            if number not in known:
                misfits += [] if place.fits(request.expect) else [request]
                now[request.key] = following
        return made, misfits

    def _knows(self, request: Append) -> bool:
        """Whether there is a record under the id of *request*."""
        upto = None
        while page := self.inner.read(request.key, upto=upto, limit=1000, reverse=True):
            if any(record.id == request.id for record in page):
                return True
            upto = page[-1].seq - page[-1].count
            if upto <= 0:
                break
        return False

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self.inner.transaction() as opened:
            block = _SealedTransaction(self, opened)
            try:
                yield block
            finally:
                # Whether it is committed is not known yet.
                for key in block.keys:
                    self._places.pop(key, None)

    def within(self, opened: Transaction, request: Append) -> Appended:
        """Append *request* within a transaction of the inner backend's."""
        self._places.pop(request.key, None)
        return self._append(request, opened.append)

    def delete(self, key: Key, *, expect: Expect | None = None) -> bool:
        self._forget(key)
        return self.inner.delete(key, expect=expect)

    def compact(self, key: Key, before: int) -> int:
        for _ in range(TRIES * TRIES):
            self.inner.check_writable()
            head = self.inner.head(key)
            upto = 0 if head is None else min(before - 1, head.seq)
            if head is None or upto < head.first:
                break
            journal = self._journal_of(head)
            # First, so that nobody sees less than he is told; and each under a name of its own, so
            # that no other's note is written over, which may reach further.
            labels: dict[str, str | None] = dict.fromkeys(
                name for name, reach in self._cuts(head, journal).items() if reach <= upto
            )
            labels[_cut_name()] = journal.key.cut_note(upto)
            try:
                self.inner.append(Append(key=key, expect=head.expect, labels=labels))
            except Conflict:
                continue
            break
        else:
            raise StoreBusy(
                f"Others write to {key.kind} {key.id!r} all the time: it was not compacted. Try "
                "again when there is less to do."
            )
        return self.inner.compact(key, before)

    def rewrite(
        self,
        key: Key,
        bodies: Mapping[int, bytes],
        *,
        expect: Expect,
        renewed: str | None = None,
        labels: Mapping[str, str] | None = None,
        note: bytes | None = None,
    ) -> int:
        if not self.rewrites:
            return self.inner.rewrite(key, bodies, expect=expect)  # which refuses it
        self.inner.check_writable()
        with self._locks[hash(key) % LOCKS]:
            try:
                head = self.inner.head(key)
                if head is None or Expect(_shown(head.incarnation), head.seq) != expect:
                    return 0
                made, note = self._sealed_anew(self._journal_of(head), head, bodies)
                if made and max(made) != head.seq:
                    return 0  # somebody compacts it
                count = self.inner.rewrite(
                    key,
                    made,
                    expect=head.expect,
                    # Always another journal to the inner backend: places that anybody remembers in
                    # it are behind a record that has another tag now.
                    renewed=renewed or f"{expect.incarnation}{AGAIN}{os.urandom(8).hex()}",
                    labels=labels,
                    note=note,
                )
            finally:
                self._forget(key)
        # Those that were compacted away meanwhile came first.
        there = sorted(made)[len(made) - count :]
        return sum(seq in bodies for seq in there)

    def _sealed_anew(
        self, journal: _Journal, head: Head, bodies: Mapping[int, bytes]
    ) -> tuple[dict[int, bytes], bytes | None]:
        """The records from the first of *bodies* on, sealed behind each other; and a note of that.

        What stands behind a record is sealed for its tag, so one that changes, changes all of them.
        """
        made: dict[int, bytes] = {}
        tag: bytes | None = None
        after = min(bodies, default=head.seq + 1) - 1
        while page := self.inner.read(head.key, after=after, upto=head.seq):
            for record, opened in zip(page, self._opened(journal, page), strict=True):
                if isinstance(opened, Forged):
                    raise self._error(head.key, opened)
                if tag is not None or record.seq in bodies:
                    made[record.seq] = journal.key.seal(
                        bodies.get(record.seq, opened.body),
                        seq=record.seq,
                        count=record.count,
                        chain=chain_of(record.body) if tag is None else tag,
                    )
                    tag = tag_of(made[record.seq])
            after = page[-1].seq
        if tag is None:
            return {}, None
        return made, journal.key.end_note(head.seq, tag)

    def rewrap(self, head: Head) -> bool:
        """Wrap the data key of a journal, whose *head* the inner backend gave, by the current key.

        False if it was already, or the journal has gone. Nothing else of it is changed.
        """
        key = head.key
        for _ in range(TRIES * TRIES):
            wrapped = head.labels.get(WRAPPED)
            if wrapped is None:
                raise self._error(key, _Plain("it has no data key."))
            try:
                if wrapped_under(wrapped) == self.keys.current:
                    return False
                again = DataKey.unwrapped(wrapped, self.keys, key).wrapped(self.keys)
            except Forged as why:
                raise self._error(key, why) from None
            try:
                self.inner.append(Append(key=key, expect=head.expect, labels={WRAPPED: again}))
            except Conflict:
                now = self.inner.head(key)
                if now is None:
                    return False
                head = now
            else:
                return True
        raise decide.conflict(key, head.expect, head.seq)

    # -- reading -----------------------------------------------------------------------------

    def read(
        self,
        key: Key,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
    ) -> list[Record]:
        found = self._read(key, after=after, upto=upto, limit=limit, reverse=reverse)
        records: list[Record] = []
        for one in found:
            if isinstance(one, Forged):
                raise self._error(key, one)
            records.append(one)
        return records

    def examine(
        self, key: Key, *, after: int = 0, upto: int | None = None, limit: int = 1000
    ) -> list[tuple[Record, str | None]]:
        looks = 0
        while True:
            records = self.inner.read(key, after=after, upto=upto, limit=limit)
            try:
                journal = self._find(key)
            except (Tampered, NotEncrypted, KeyMissing) as error:
                return [(structs.replace(record, body=b""), str(error)) for record in records]
            if journal is None:
                return []
            all_opened = self._opened(journal, records)
            looks += 1
            if looks == LOOKS or not any(isinstance(one, Forged) for one in all_opened):
                break
            self._forget(key)  # it may be another since we saw it
        found: list[tuple[Record, str | None]] = []
        for record, opened in zip(records, all_opened, strict=True):
            if isinstance(opened, Record):
                found.append((opened, None))
            else:
                # What is only in a wrong place was written by who has the keys, and can be saved.
                authentic = isinstance(opened, _Unchained)
                body = self._body(journal, record) if authentic else b""
                found.append((structs.replace(record, body=body), f"Not as written: {opened}"))
        return found

    def _read(self, key: Key, *, reverse: bool, **where: Any) -> list[Record | Forged]:
        looks = 0
        while True:
            journal = self._find(key)
            records = self.inner.read(key, reverse=reverse, **where)
            if not records:
                return []
            if journal is not None:
                found = self._opened(journal, records[::-1] if reverse else records)
                if not any(isinstance(one, Forged) for one in found):
                    return found[::-1] if reverse else found
            else:
                found = [Forged("there are records, and no head.")]
            # It may have been deleted and begun anew since we saw its key.
            self._forget(key)
            now = self._find(key)
            looks += 1
            same = (
                now is not None and journal is not None and now.incarnation == journal.incarnation
            )
            if looks == LOOKS or (same and any(isinstance(one, _Unchained) for one in found)):
                return found

    def _find(self, key: Key) -> _Journal | None:
        found = self._journals.get(key)
        if found is None and (head := self.inner.head(key)) is not None:
            found = self._journal_of(head)
        return found

    def _opened(self, journal: _Journal, records: Sequence[Record]) -> list[Record | Forged]:
        """What is in *records*, which come oldest first, or why it cannot be had."""
        found: list[Record | Forged] = []
        tags, last, last_tag = journal.tags, -1, b""
        for record in records:
            body, begin = record.body, record.seq - record.count
            try:
                plain = self._body(journal, record)
                tag, chain = tag_of(body), chain_of(body)
                if tags.get(record.seq, tag) != tag:
                    raise _Unchained(f"another record stood at {record.seq}.")
                before = last_tag if last == begin else tags.get(begin)
                if before is not None and before != chain:
                    raise _Unchained(
                        f"the record at {record.seq} was written behind another one than is there."
                    )
            except Forged as why:
                found.append(why)
                continue
            if not found and begin > 0:
                journal.know(begin, chain)
            found.append(Record(record.seq, record.count, record.at, plain, record.id))
            last, last_tag = record.seq, tag
        if last > 0:
            journal.know(last, last_tag)
        return found

    def _body(self, journal: _Journal, record: Record) -> bytes:
        if not is_sealed(record.body):
            if len(record.body) > 1 and not record.body[1] & 0b10:
                raise _Plain(f"the record that ends at {record.seq} is not encrypted.")
            raise Forged(f"the record that ends at {record.seq} does not match its checksum.")
        return journal.key.open(record.body, seq=record.seq, count=record.count)

    def head(self, key: Key) -> Head | None:
        found = self.inner.head(key)
        return None if found is None else self._shown(found)

    def has(self, key: Key) -> bool:
        return self.inner.has(key)

    def _shown(self, head: Head) -> Head:
        """A *head* of the inner backend's as it is without encryption."""
        journal = self._journal_of(head)
        meta = head.meta
        if meta is not None:
            try:
                own = key_of_meta(meta)
                data = journal.key if own is None else DataKey.unwrapped(own, self.keys, head.key)
                meta = data.open_meta(meta, head.seq)
            except Forged as why:
                raise self._error(head.key, why) from None
        labels = {name: text for name, text in head.labels.items() if name[:1] != HIDDEN}
        return structs.replace(
            head, labels=labels, meta=meta, note=None, incarnation=_shown(head.incarnation)
        )

    def _journal_of(self, head: Head) -> _Journal:
        """What there is to know of the journal with this *head*, whose notes are checked."""
        try:
            wrapped = head.labels.get(WRAPPED)
            if wrapped is None:
                raise _Plain("it has no data key.")
            journal = self._journals.get(head.key)
            if (
                journal is None
                or journal.incarnation != head.incarnation
                or journal.wrapped != wrapped
            ):
                data = DataKey.unwrapped(wrapped, self.keys, head.key)
                journal = _Journal(head.incarnation, wrapped, data)
                self._remember(head.key, journal)
            if not self._damaged:
                self._check_notes(head, journal)
        except Forged as why:
            raise self._error(head.key, why) from None
        return journal

    def _check_notes(self, head: Head, journal: _Journal) -> None:
        label = head.labels.get(END)
        end = label if head.note is None else head.note
        if end is None:
            self._check_is_sealed(journal, head, after=head.seq - 1)
            raise Forged("the note of its end is missing.")
        journal.has_end_label = label is not None
        known, noted = journal.note
        if end != known:
            key = journal.key
            noted, tag = key.read_end_label(end) if isinstance(end, str) else key.read_end(end)
            if journal.tags.get(noted, tag) != tag:
                self._forget(head.key)  # an older store was put in its place, and has gone on
                raise Forged(f"another record stood at {noted}.")
            journal.know(noted, tag)
            if noted >= journal.note[1]:
                journal.note = end, noted
        if head.seq < noted:
            self._forget(head.key)
            raise Forged(f"it ends at {head.seq}, and was at {noted} already.")
        if head.seq > noted:
            self._forget(head.key)
            self._check_is_sealed(journal, head, after=noted)
            raise Forged(f"it ends at {head.seq}, and nobody with its key has written that.")
        if head.first > 1 and head.first - 1 > max(self._cuts(head, journal).values(), default=0):
            raise Forged(f"entries before {head.first} are gone, and nobody has compacted them.")

    def _check_is_sealed(self, journal: _Journal, head: Head, *, after: int) -> None:
        """Raise what is to be said of the record behind *after*, if somebody wrote it plainly."""
        for record in self.inner.read(head.key, after=after, limit=1):
            self._body(journal, record)

    def _cuts(self, head: Head, journal: _Journal) -> dict[str, int]:
        """The names of the notes of what was compacted away, and how far they go."""
        return {
            name: journal.key.read_cut(note)
            for name, note in head.labels.items()
            if name.startswith(CUT)
        }

    def scan(self, tenant: str, kind: str, **filters: Any) -> Page:
        page = self.inner.scan(tenant, kind, **filters)
        heads: list[Head] = []
        damaged = list(page.damaged)
        for head in page.heads:
            try:
                heads.append(self._shown(head))
            except StoreError as error:
                damaged.append((head.key, error))
        return Page(heads, page.cursor, damaged)

    def kinds(self) -> list[tuple[str, str]]:
        return [found for found in self.inner.kinds() if found != MARKER[:2]]

    def wait(self, key: Key, *, after: int = 0, timeout: float) -> bool:
        return self.inner.wait(key, after=after, timeout=timeout)

    # -- what has nothing to do with content -----------------------------------------------------

    def scrub(self) -> bool:
        return self.inner.scrub()

    def sweep(self, limit: int = 1000) -> int:
        return self.inner.sweep(limit)

    def acquire(self, key: Key, holder: str, ttl: float, *, over: int | None = None) -> Lease:
        return self.inner.acquire(key, holder, ttl, over=over)

    def renew(self, key: Key, lease: Lease, ttl: float) -> Lease:
        return self.inner.renew(key, lease, ttl)

    def release(self, key: Key, lease: Lease) -> None:
        self.inner.release(key, lease)

    def facts(self, *, deep: bool = False) -> list[Fact]:
        under = f"AES-256-GCM, under key {self.keys.current}"
        marker = Fact.of_kind(MARKER.kind, 1).name  # which nobody lists otherwise
        facts = [fact for fact in self.inner.facts(deep=deep) if fact.name != marker]
        return [*facts, Fact("encryption", under)]

    def repair(self) -> list[str]:
        self._start()
        return self.inner.repair()

    def lost(self, key: Key) -> list[tuple[int, int]]:
        return self.inner.lost(key)

    def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()
        self.inner.close()
        super().close()

    def _close(self) -> None:
        self._journals.clear()
        self._places.clear()

    def before_fork(self) -> None:
        """Nothing of its own: the inner backend comes to rest by itself."""

    def after_fork_in_parent(self) -> None:
        """Nothing of its own, as before."""

    def after_fork_in_child(self) -> None:
        """Locks may be held by threads of the parent's."""
        self._start()

    # -- what is remembered ----------------------------------------------------------------------

    def _remember(self, key: Key, journal: _Journal) -> None:
        if len(self._journals) > MOST_JOURNALS:
            self._journals.clear()
        self._journals[key] = journal

    def _forget(self, key: Key) -> None:
        self._journals.pop(key, None)
        self._places.pop(key, None)

    def _error(self, key: Key, why: Forged) -> LimpetError:
        """What users are told of something that is not as it was written."""
        what = f"{key.kind} {key.id!r} in {self.url}"
        if isinstance(why, _Plain):
            return NotEncrypted(
                f"{what} is not encrypted, as all in this store should be: {why} Somebody has "
                "written to it without the keys, or put another in its place. Nothing was changed."
            )
        return Tampered(
            f"{what} is not what was written there: {why} Nothing was changed, and nothing of it "
            "is given. `limpet doctor` finds all such places. Go back to a backup (`limpet restore "
            "BACKUP --replace`), or write all that is authentic to a new store (`limpet salvage "
            "FROM NEW`)."
        )


class _SealedTransaction:
    """A transaction of the inner backend's, whose append is sealed."""

    def __init__(self, backend: Sealed, opened: Transaction) -> None:
        self._backend = backend
        self._opened = opened
        self.keys: set[Key] = set()

    @property
    def connection(self) -> Any:
        """The driver's."""
        return self._opened.connection

    def append(self, request: Append) -> Appended:
        """`Backend.append` as a part of it."""
        self.keys.add(request.key)
        if not request.count:
            return self._opened.append(request)  # which refuses it
        return self._backend.within(self._opened, request)


def _goes_as_it_is(request: Append) -> bool:
    """Whether nothing in *request*, which adds no record, is to be sealed or expected."""
    return (request.meta is UNSET or request.meta is None) and request.expect is None


def _shown(incarnation: str) -> str:
    """The incarnation that a journal has for everybody above."""
    return incarnation.partition(AGAIN)[0]


def _answer(done: Appended) -> Appended:
    """*done* by the inner backend, as everybody above is told of it."""
    if AGAIN not in done.incarnation:
        return done
    return structs.replace(done, incarnation=_shown(done.incarnation))


def _cut_name() -> str:
    return CUT + os.urandom(4).hex()
