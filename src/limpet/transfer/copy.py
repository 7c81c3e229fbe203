"""Copies of whole stores: every journal with its numbers, times, ids, attributes and expiry.

    with limpet.open("agents.db", readonly=True) as old, limpet.open("postgresql://…") as new:
        for journal in copying.copy(old.backend, new.backend):
            print(journal.key, journal.outcome, journal.why)

A copy has the incarnation of its source, and by that it is known again. One that was cut short is
taken up by the same call, and one that is complete is left as it is. Records go over one by one, in
order; status, labels, meta and time to live come last, so that half a task is in nobody's list of
open tasks, and does not expire half-way. Everything is read back and compared. What is already
there is never overwritten and never merged: a journal that is not the source's, or has gone on by
itself, is reported and left alone. Of one that cannot be read to its end nothing is left in the
target. Leases are not copied.

Where a repair took entries out, and recorded that, the copy has as many of the type "limpet.lost".
With *salvage* it has them wherever entries are missing or cannot be read, and says which.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import zip_longest
from typing import TYPE_CHECKING, cast

from msgspec import Struct, structs

from limpet.backends.contract import Append, Backend, Expect, Head, Key, Origin, Record
from limpet.backends.decide import holder_for_people
from limpet.core.codec import COMPRESS_OVER, COMPRESSED, FORMAT, LOST, Codec
from limpet.errors import (
    Conflict,
    InvalidURL,
    LimpetError,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    TooLarge,
    Unreadable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator

    from limpet.errors import StoreError

__all__ = ["Copied", "Survey", "check", "copy", "survey"]

# What became of a journal.
NEW = "new"  # all of it was copied
CONTINUED = "continued"  # what was new in it was added to an earlier copy
SAME = "same"  # the copy was there, and complete
GONE = "gone"  # deleted in the source, or expired, while it was copied: there is no copy
DIFFERS = "differs"  # the target has something else under this name, which was left alone
FAILED = "failed"  # it could not be read, or not be written

#: Journals on their way at the same time; within one, records keep their order.
THREADS = 8
#: Records a call, and about how many bytes of them.
PAGE = 500
PAGE_BYTES = 8 * 1024 * 1024
#: A journal that changes while it is copied is looked at anew, so many times.
ATTEMPTS = 3
#: Lost entries to a record.
PORTION = 10_000
#: What a backend takes in one record, by the contract.
MAX_BODY = 64 * 1024 * 1024

_UNCOMPRESSED = bytes((FORMAT, 0))
_COMPRESSED = bytes((FORMAT, COMPRESSED))

# Errors that are about a store and not about one journal: they end the whole copy.
_OF_THE_STORE = (StoreUnavailable, StoreFull, StoreBusy, StoreReadOnly, StoreClosed)


class Survey(Struct):
    """How much there is to copy."""

    journals: int = 0
    entries: int = 0
    size: int = 0  # bytes


class Copied(Struct, frozen=True, kw_only=True):
    """What became of one journal; in a dry run, what would."""

    key: Key
    outcome: str
    records: int = 0  # added to the target, like the next two
    entries: int = 0
    size: int = 0  # bytes
    verified: int = 0  # entries that were read from both and are the same
    moved: bool = False  # the source has gone on meanwhile: copy again to catch up
    held_by: str | None = None  # who had the lease in the source
    lost: tuple[tuple[int, int], ...] = ()  # entries that are not there: first and last of each run
    why: str = ""  # it differs, or failed

    @property
    def ok(self) -> bool:
        """Whether the target has what the source has, as it was when it was looked at."""
        return self.outcome not in (DIFFERS, FAILED)


def survey(
    source: Backend, *, tenants: Collection[str] = (), kinds: Collection[str] = ()
) -> Survey:
    """What `copy` with the same arguments will find."""
    found = Survey()
    for head in heads(source, tenants, kinds, damaged=[]):
        found.journals += 1
        found.entries += head.seq - head.first + 1
        found.size += head.size
    return found


def copy(
    source: Backend,
    target: Backend | None,
    *,
    tenants: Collection[str] = (),
    kinds: Collection[str] = (),
    dry_run: bool = False,
    salvage: bool = False,
    progress: Callable[[float], object] | None = None,
    threads: int = THREADS,
) -> Generator[Copied, None, None]:
    """Copy every journal from *source* to *target*, and say what became of each, in any order.

    *tenants* and *kinds*: only these, if any are named. *dry_run*: write nothing; a *target* of
    None is then one that is not there yet. *salvage*: copy what is left of a damaged journal.
    *progress* is called, from several threads, with bytes that are done. An error of a store (it is
    away, it is full) ends the copy; run it again.
    """
    if target is None and not dry_run:
        raise ValueError("A copy needs a target; only a dry run can do without.")
    if target is not None and _are_one(source, target):
        raise InvalidURL(f"{source.url} and {target.url} are the same store.")
    run = _Run(source, target, dry_run=dry_run, salvage=salvage, progress=progress)
    pending: set[Future[Copied]] = set()
    damaged: list[tuple[Key, StoreError]] = []

    def finished() -> list[Copied]:
        ended = wait(pending, return_when=FIRST_COMPLETED).done
        pending.difference_update(ended)
        return [future.result() for future in ended]

    with ThreadPoolExecutor(threads, thread_name_prefix="limpet-copy") as pool:
        try:
            for head in heads(source, tenants, kinds, damaged=damaged):
                pending.add(pool.submit(_JournalCopy(run, head).copy))
                while len(pending) >= 2 * threads:
                    yield from finished()
            while pending:
                yield from finished()
            for key, error in damaged:
                yield Copied(key=key, outcome=FAILED, why=str(error))
        finally:
            run.stopped.set()
            for future in pending:
                future.cancel()


def heads(
    source: Backend,
    tenants: Collection[str],
    kinds: Collection[str],
    *,
    damaged: list[tuple[Key, StoreError]] | None = None,
) -> Iterator[Head]:
    """The journals of these *tenants* and *kinds*, or of all; *damaged* as in `Backend.heads`.

    A kind comes with what belongs to it: "task-result" is of "task".
    """
    for tenant, kind in source.kinds():
        wanted = not kinds or any(kind == one or kind.startswith(f"{one}-") for one in kinds)
        if wanted and (not tenants or tenant in tenants):
            yield from source.heads(tenant, kind, damaged=damaged)


def _are_one(source: Backend, target: Backend) -> bool:
    """Whether both are the same place, as far as their names tell."""
    if source is target:
        return True
    paths = [getattr(backend, "path", None) for backend in (source, target)]
    if all(isinstance(path, (str, os.PathLike)) and os.path.exists(path) for path in paths):
        return os.path.samefile(*paths)  # type: ignore[arg-type]
    return source.blocks and source.url == target.url  # each memory: is its own


class _Run:
    """What all journals of one copy have in common."""

    def __init__(
        self,
        source: Backend,
        target: Backend | None,
        *,
        dry_run: bool,
        salvage: bool,
        progress: Callable[[float], object] | None,
    ) -> None:
        self.source = source
        self.target = target
        self.dry_run = dry_run
        self.salvage = salvage
        self.progress = progress or (lambda _: None)
        self.stopped = threading.Event()
        self.bodies = _Bodies(source, target)


class _Bodies:
    """Bodies on their way from one store to another.

    Where people read what is stored, nothing is compressed. What comes from there is, where nobody
    reads it.
    """

    def __init__(self, source: Backend, target: Backend | None) -> None:
        self._to_readable = target is not None and target.readable
        self._recodes = self._to_readable or source.readable
        self._plain = Codec(max_bytes=MAX_BODY, max_depth=MAX_BODY, compress_over=None)
        self._packed = Codec(max_bytes=MAX_BODY, max_depth=MAX_BODY)

    def recoded(self, body: bytes) -> bytes:
        """*body* as the target would have written it; or as it is, if only its writer can read it.

        That it still means the same is seen when it is read back.
        """
        made: bytes | None = None
        if not self._recodes:
            return body
        if self._to_readable:
            made = self._plainly(body) if body[:2] == _COMPRESSED else None
        elif body[:2] == _UNCOMPRESSED and len(body) > COMPRESS_OVER and self._plainly(body):
            made = self._packed.encode(self._plain.decode(body))
        return body if made is None or len(made) > MAX_BODY else made

    def are_same(self, one: bytes, other: bytes) -> bool:
        """Whether two bodies are the same, or mean the same where they may be written otherwise."""
        if one == other or not self._recodes:
            return one == other
        plainly = self._plainly(one)
        return plainly is not None and plainly == self._plainly(other)

    def _plainly(self, body: bytes) -> bytes | None:
        """*body* in its plainest form; None for what cannot be read here (encrypted, not ours)."""
        try:
            return self._plain.encode(self._plain.decode(body))
        except Exception:  # noqa: BLE001 - whatever it is, the bytes are copied as they are
            return None


class _Differs(Exception):
    """Source and target do not have the same journal here; the text says how they differ."""


class _Incomplete(_Differs):
    """The source does not have all that it should."""


class _Stopped(Exception):
    """Nobody waits for the outcome any more."""


class _Attributes(Struct, frozen=True):
    """What a head has that may change without a record."""

    status: str | None = None
    labels: dict[str, str] = {}
    meta: bytes | None = None
    ttl: int | None = None
    expires: int | None = None

    @classmethod
    def of(cls, head: Head) -> _Attributes:
        return cls(head.status, head.labels, head.meta, head.ttl, head.expires)


#: Those of a copy that is not complete.
BLANK = _Attributes()


class _JournalCopy:
    """The copy of one journal."""

    def __init__(self, run: _Run, head: Head) -> None:
        self._run = run
        self._source = run.source
        self._head = head  # the source's, as it was when we looked
        self._began = 0  # the number up to which the copy is our own, if we began it
        self._had: _Attributes | None = None  # what we took from a copy that was there
        self._records = self._entries = self._size = self._verified = 0
        self._advanced = 0.0
        self._lost: dict[int, int] = {}  # first and last of each run of entries that are not there

    @property
    def _target(self) -> Backend:
        return cast("Backend", self._run.target)  # `copy` has seen to it

    def copy(self) -> Copied:
        """Copy it, or find out why not."""
        try:
            outcome, why = self._try()
        except _OF_THE_STORE:
            raise
        except LimpetError as error:
            outcome, why = FAILED, str(error)
        if outcome in (DIFFERS, FAILED):
            self._take_back()  # half of it would pass for all of it
        self._advance(self._head.size - self._advanced)
        moved = False
        if outcome in (NEW, CONTINUED, SAME):
            now = self._source.head(self._head.key)
            moved = now is None or comparable(now) != comparable(self._head)
        lease = self._head.lease
        return Copied(
            key=self._head.key,
            outcome=outcome,
            records=self._records,
            entries=self._entries,
            size=self._size,
            verified=self._verified,
            moved=moved,
            held_by=holder_for_people(lease.holder) if lease else None,
            lost=tuple(_joined(sorted(self._lost.items()))),
            why=why,
        )

    def _try(self) -> tuple[str, str]:
        why, left = "", ATTEMPTS
        while left:
            left -= 1
            try:
                return self._once(), ""
            except (Conflict, _Differs) as error:
                why = str(error)
                if isinstance(error, Conflict) and error.actual > error.expected:
                    left += 1  # another copy is at it; if it is something else, we shall see that
                head, now = self._head, self._source.head(self._head.key)
                same = now is not None and now.expect == head.expect and now.first == head.first
                if isinstance(error, _Differs) and same:
                    return FAILED if isinstance(error, _Incomplete) else DIFFERS, why
                if now is None:
                    self._take_back()
                    return GONE, ""
                if now.incarnation != head.incarnation or now.first > self._began + 1:
                    self._take_back()
                self._head = now
        return DIFFERS, why

    def _take_back(self) -> None:
        """Undo what we began and cannot finish, if nobody else has touched it.

        A new copy goes; one that was there keeps what was added, with its attributes of before.
        """
        there = self._target.head(self._head.key) if self._began or self._had else None
        if there and _Attributes.of(there) == BLANK and not there.lease:
            if self._had:
                self._set(self._had, there.seq)
            elif there.seq == self._began:
                self._target.delete(self._head.key)
        if self._began:
            self._records = self._entries = self._size = 0
        self._had, self._began = None, 0

    def _once(self) -> str:
        head, self._verified = self._head, 0
        there = None if self._run.target is None else self._target.head(head.key)
        if there is not None:
            self._check(there)
            self._compare(max(head.first, there.first) - 1, there.seq)
            if comparable(there) == comparable(head):
                return SAME
            if there.lease:
                raise _Differs(f"{holder_for_people(there.lease.holder)} is working on the copy.")
        if self._run.dry_run:
            self._entries = head.seq - (there.seq if there else head.first - 1)
            self._size = 0 if there else head.size
        else:
            self._write(there)
        return CONTINUED if there else NEW

    def _check(self, there: Head) -> None:
        """Raise if what is *there* cannot be an earlier copy of the same journal."""
        head = self._head
        if there.incarnation != head.incarnation:
            raise _Differs("There is another one of this name, which is no copy of it.")
        if there.seq > head.seq:
            at = f"it is at {there.seq}, and the source at {head.seq}"
            raise _Differs(f"The copy has gone on by itself: {at}.")
        if there.first > head.first:
            raise _Differs(f"The copy was compacted by itself: up to {there.first - 1}.")
        if there.seq < head.first - 1:
            raise _Differs(
                f"Entries up to {head.first - 1} have been compacted away since the copy, which "
                f"ends at {there.seq}. Delete the copy to have it made anew."
            )
        if there.seq == head.seq and _Attributes.of(there) not in (BLANK, _Attributes.of(head)):
            raise _Differs(f"At the same position, {_difference(head, there)}.")

    def _write(self, there: Head | None) -> None:
        """Bring the copy from where it is, *there*, to where the source was."""
        head = self._head
        after = head.first - 1 if there is None else there.seq
        attributes = BLANK if there is None else _Attributes.of(there)
        if attributes != BLANK and after < head.seq:
            self._set(BLANK, after, labels=attributes.labels)
            self._had, attributes = attributes, BLANK
        self._append(after, expect=0 if there is None else after)
        self._compare(after, head.seq, again=True)
        if head.first > head.seq or (there and there.first < head.first):
            self._target.compact(head.key, head.first)
        if attributes != _Attributes.of(head):
            self._set(_Attributes.of(head), head.seq)
        now = self._target.head(head.key)
        if now is None and head.expires is not None:
            return  # it had little time left, or none but for a lease
        if now is None or comparable(now) != comparable(head):
            what = "it is not there any more" if now is None else _difference(head, now)
            raise _Differs(f"Right after it was copied, {what}.")

    def _append(self, after: int, *, expect: int) -> None:
        """Add the source's records behind *after*."""
        head, last = self._head, after
        for record in self._read(self._source, after, head.seq):
            if record.seq - record.count != last:
                break
            body = self._run.bodies.recoded(record.body)
            self._send(record, body, expect, first=head.first)
            self._records += 1
            self._entries += record.count
            self._size += len(body)
            self._advance(len(record.body) / 2)
            expect = last = record.seq
        if head.first > head.seq and not expect:
            # Nothing but its numbers is left. A record brings them over, and is compacted away: it
            # is none of the source's, and does not count.
            filler = Codec().encode([("compacted", None)])
            self._send(Record(head.seq, 1, head.updated, filler), filler, 0, first=head.seq)
        if last != head.seq:
            raise _Incomplete(
                f"Entries are missing in the source, behind {last}. "
                "`limpet salvage FROM TO` copies what is left."
            )

    def _send(self, record: Record, body: bytes, expect: int, *, first: int) -> None:
        head = self._head
        done = self._target.append(
            Append(
                key=head.key,
                body=body,
                count=record.count,
                id=record.id,
                note=head.note if record.seq == head.seq else None,
                expect=Expect(head.incarnation, expect),
                origin=Origin(record.at, head.created, first, head.incarnation),
            )
        )
        if done.seq != record.seq:
            raise _Differs(f"The copy knows the id of record {record.seq} from record {done.seq}.")
        if not expect or self._began:
            self._began = record.seq

    def _set(
        self, attributes: _Attributes, expect: int, *, labels: dict[str, str] | None = None
    ) -> None:
        """Give the copy these *attributes*; *labels* are those that it has."""
        head, ttl = self._head, attributes.ttl
        at = head.updated
        if ttl is not None and attributes.expires is not None:
            at = attributes.expires - ttl
        self._target.append(
            Append(
                key=head.key,
                expect=Expect(head.incarnation, expect),
                status=attributes.status,
                labels={**dict.fromkeys(labels or ()), **attributes.labels},
                meta=attributes.meta,
                ttl=None if ttl is None else ttl / 1e6,
                origin=Origin(at, head.created, head.first, head.incarnation),
            )
        )

    def _compare(self, after: int, upto: int, *, again: bool = False) -> None:
        """Read both, behind *after* and up to *upto*; raise at the first difference."""
        ours = self._read(self._source, after, upto)
        theirs = self._read(self._target, after, upto)
        same = self._run.bodies.are_same
        for one, other in zip_longest(ours, theirs):
            if (
                one is None
                or other is None
                or (one.seq, one.count, one.at, one.id)
                != (other.seq, other.count, other.at, other.id)
                or not same(one.body, other.body)
            ):
                found = one or other
                first = 0 if found is None else found.seq - found.count + 1
                raise _Differs(f"The copy has something else at {first}.")
            self._verified += one.count
            self._advance(len(one.body) / (2 if again else 1))

    def _read(self, backend: Backend, after: int, upto: int) -> Iterator[Record]:
        """The records of a journal, with others in the place of those that are known to be lost."""
        head, lost, salvage = self._head, None, self._run.salvage and backend is self._source
        at, after = head.created, max(after, head.first - 1)
        for record in _records(backend, head, after, upto, damaged=salvage):
            if self._run.stopped.is_set():
                raise _Stopped
            begin = record.seq - record.count
            if after < begin:
                lost = backend.lost(head.key) if lost is None else lost
                if salvage or _within(after + 1, begin, lost):
                    yield from self._fillers(after, begin, at)
            content = _content(record) if salvage else None
            if salvage and content is None:
                yield from self._fillers(begin, record.seq, record.at)
            else:
                if content == {LOST}:  # since an earlier salvage
                    self._lost[begin + 1] = record.seq
                yield record
            after, at = record.seq, record.at
        if after < upto and (salvage or _within(after + 1, upto, backend.lost(head.key))):
            yield from self._fillers(after, upto, at)

    def _fillers(self, after: int, upto: int, at: int) -> Iterator[Record]:
        """What stands in the place of the entries behind *after*, up to *upto*."""
        self._lost[after + 1] = upto
        for begin in range(after, upto, PORTION):
            end = min(begin + PORTION, upto)
            body = Codec().encode([(LOST, None)] * (end - begin))
            yield Record(end, end - begin, at, body)

    def _advance(self, size: float) -> None:
        self._advanced += size
        self._run.progress(size)


def check(store: Backend) -> Survey:
    """Read all that is in *store*, and say how much it is; `StoreCorrupt` if that cannot be."""
    found = Survey()
    for head in heads(store, (), ()):
        found.journals += 1
        found.size += head.size
        last = head.first - 1
        gaps: list[tuple[int, int]] = []
        for record in _records(store, head, last, head.seq):
            if record.seq - record.count != last:
                gaps.append((last + 1, record.seq - record.count))
            if _content(record) is None:
                gaps.append((record.seq - record.count + 1, record.seq))
            last = record.seq
            found.entries += record.count
        if last < head.seq:
            gaps.append((last + 1, head.seq))
        lost = store.lost(head.key) if gaps else ()
        for first, end in gaps:
            if not _within(first, end, lost):
                msg = (
                    f"Entries {first} to {end} of {head.key.kind} {head.key.id!r} cannot be read. "
                    "`limpet doctor` finds all such entries."
                )
                raise StoreCorrupt(msg)
    return found


def _records(
    backend: Backend, head: Head, after: int, upto: int, *, damaged: bool = False
) -> Iterator[Record]:
    """The records that are there, in pages that are small enough to be held by every thread.

    *damaged*: also those that cannot be read, which then have no body.
    """
    limit = PAGE if head.size <= PAGE_BYTES else 1
    while after < upto:
        if damaged:
            examined = backend.examine(head.key, after=after, upto=upto, limit=limit)
            page = [record for record, _ in examined]
        else:
            page = backend.read(head.key, after=after, upto=upto, limit=limit)
        if not page:
            return
        yield from page
        after = page[-1].seq
        size = sum(len(record.body) for record in page)
        limit = min(PAGE, PAGE_BYTES * len(page) // (size + 1) + 1, 2 * limit)


_CODEC = Codec(max_bytes=MAX_BODY, max_depth=MAX_BODY)


def _content(record: Record) -> set[str] | None:
    """The types of the entries in *record*; None if it cannot be read."""
    if record.body[:1] == _UNCOMPRESSED[:1] and record.body[1:2] > _COMPRESSED[1:]:
        return set()  # encrypted: only its writer can read it
    try:
        entries = _CODEC.decode(record.body)
    except (Unreadable, TooLarge):
        return None
    return {kind for kind, _ in entries} if len(entries) == record.count else None


def _within(first: int, last: int, runs: Collection[tuple[int, int]]) -> bool:
    return any(begin <= first and last <= end for begin, end in runs)


def _joined(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """*runs* in order, those that follow on as one."""
    last: tuple[int, int] | None = None
    for run in runs:
        if last is not None and run[0] <= last[1] + 1:
            last = last[0], max(last[1], run[1])
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last


def comparable(head: Head) -> Head:
    """*head* without what a copy need not have in common with its source."""
    return structs.replace(head, size=0, lease=None)


def _difference(head: Head, other: Head) -> str:
    """What differs, in words."""
    ours, theirs = comparable(head), comparable(other)
    return ", ".join(
        f"{name} is {getattr(ours, name)!r} in the source and {getattr(theirs, name)!r} in the copy"
        for name in Head.__struct_fields__
        if getattr(ours, name) != getattr(theirs, name)
    )
