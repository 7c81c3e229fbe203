"""One namespace's journal together with its index: what is stored, and what is derived from it."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, TypeVar

import apsw
import msgspec

from limpet.backends.contract import Expect
from limpet.core.text_index import Known
from limpet.errors import Conflict
from limpet.memory.entries import MemoryEntry
from limpet.memory.index import open_index

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal
    from limpet.memory.index import Index

    Progress = Callable[[int, int], object]
    #: What was found, and the entries to write.
    Decision = tuple[T, Sequence[tuple[str, Any]]]

__all__ = ["IndexedJournal", "now_micros"]

log = logging.getLogger(__name__)

#: Entries that the index reads in one transaction.
PORTION = 10_000
#: How often another process may change the index while this one brings it up to date.
TRIES = 20
#: Errors for which an index is deleted and made again: the file itself is at fault. A full disk, or
#: too many open files, is no reason to make all vectors again.
DAMAGE = (
    *(apsw.CorruptError, apsw.NotADBError, apsw.SQLError),
    *(apsw.ConstraintError, apsw.MismatchError),
)


def now_micros() -> int:
    """The present, by this machine's clock."""
    return time.time_ns() // 1000


class IndexedJournal:
    """Reads and writes one namespace's journal, and keeps its index up to date.

    What is asked of the index is a function of it, which runs on a thread where it may block.
    *private*: the index is only in memory, and written to no file.
    """

    def __init__(self, journal: AsyncJournal, *, private: bool) -> None:
        self.journal = journal
        self.key = journal.key
        self.runtime = journal.runtime
        self._private = private

    # -- the journal ---------------------------------------------------------------------------

    async def write(self, entries: Sequence[tuple[str, Any]], expect: Expect | None = None) -> int:
        """Append *entries*, all or none; the time of that."""
        # Memories are to outlast everything else: they do not expire with the store's ttl.
        return (await self.journal.write(entries, expect=expect, ttl=None)).at

    async def read(self, after: int, upto: int) -> list[MemoryEntry]:
        """The entries numbered over *after*, up to and with *upto*."""
        found: list[MemoryEntry] = []
        while after < upto:
            records = await self.journal.page(after=after, upto=upto)
            if not records:
                break
            for record in records:
                # By hand: an `Entry` each, with a datetime, would double the time this takes.
                first = record.seq - record.count + 1
                for seq, (type_, body) in enumerate(self.journal.pairs(record), first):
                    if seq > upto:
                        break
                    try:
                        found.append(MemoryEntry.of(seq, record.at, type_, body))
                    except msgspec.ValidationError as error:
                        why = f"it is not what is stored as {type_!r} ({error})."
                        raise self.journal.unreadable(seq, why) from error
            after = records[-1].seq
        return found

    # -- the index -----------------------------------------------------------------------------

    async def query(self, question: Callable[..., T], *args: Any) -> T:
        """What *question* makes of the index, which is first brought up to date.

        It sees one snapshot of the index, and writes nothing to it.
        """

        async def answer() -> T:
            while True:
                index, reached = await self._catch_up()
                answers = await self.runtime.call(_ask, index, reached, question, args)
                if answers:
                    return answers[0]

        return await self._recovering(answer)

    async def query_at(self, question: Callable[..., T], *args: Any) -> tuple[T, Expect]:
        """`query`, and what an append expects that relies on the answer."""

        def ask(index: Index) -> tuple[T, Expect]:
            known = index.known()
            at = Expect(None, 0) if known is None else Expect(known.incarnation, known.seen)
            return question(index, *args), at

        return await self.query(ask)

    async def decide(self, question: Callable[..., Decision[T]], *args: Any) -> tuple[T, int]:
        """Write the entries that *question* makes of the index; asked again after a `Conflict`.

        Returns what else it found, and the time of the write; 0 if there was nothing to write.
        """
        while True:
            (found, entries), expect = await self.query_at(question, *args)
            if not entries:
                return found, 0
            with contextlib.suppress(Conflict):
                return found, await self.write(entries, expect)

    async def change_index(self, change: Callable[..., T], *args: Any) -> T:
        """What *change* returns, called with the index brought up to date.

        For what writes to it or takes long; it takes the lock itself, where it needs it.
        """

        async def run() -> T:
            index, _ = await self._catch_up()
            return await self.runtime.call(change, index, *args)

        return await self._recovering(run)

    async def rebuild(self, progress: Progress | None) -> None:
        """Delete the index and make it again, with *progress* of entries."""
        await self.runtime.call(self._discard)
        await self._recovering(lambda: self._catch_up(progress))

    def open_index(self) -> Index:
        """The index as it is, up to date or not."""
        return open_index(self.runtime.backend, self.key, private=self._private)

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            self.open_index().discard()

    async def _recovering(self, act: Callable[[], Awaitable[T]]) -> T:
        """What *act* returns. A damaged index is made again; one without a file, in memory."""
        discarded = False
        while True:
            try:
                return await act()
            except apsw.Error as error:
                if self._private:
                    raise
                if not discarded and isinstance(error, DAMAGE):
                    discarded = True
                    await self.runtime.call(self._discard)
                else:
                    # A full disk, a file that is read-only, or that another process has locked: it
                    # is left as it is, for those who can use it.
                    log.warning("The index of a memory cannot be kept in its file: %s", error)
                    self._private = True

    # -- bringing it up to date ----------------------------------------------------------------

    async def _catch_up(self, progress: Progress | None = None) -> tuple[Index, Known | None]:
        """The index after all new entries have been read, and how far that is."""
        index, known = await self.runtime.call(self._open_known)
        for _ in range(TRIES):
            # After the index: else what others add meanwhile would look like another journal.
            head = await self.journal.head()
            if head is None:
                if known is not None:
                    await self.runtime.call(index.clear)
                return index, None
            if known == Known.of(head) or await self._read_new(index, known, head, progress):
                return index, Known.of(head)
            index, known = await self.runtime.call(self._open_known)
        return index, known  # other processes bring it up to date at this very moment

    def _open_known(self) -> tuple[Index, Known | None]:
        index = self.open_index()
        return index, index.known()

    async def _read_new(
        self, index: Index, known: Known | None, head: Head, progress: Progress | None
    ) -> bool:
        """Bring *index* from *known* to *head*; False if another process has changed it."""
        if known is not None and not await self._continues(known, head):
            known = None
        start = head.first - 1
        after = start if known is None else known.seen
        while True:
            upto = min(after + PORTION, head.seq)
            entries, reached = await self.read(after, upto), Known.of(head, upto)
            last = upto >= head.seq
            if not await self.runtime.call(index.add, known, reached, entries, last=last):
                return False
            if progress is not None:
                progress(upto - start, head.seq - start)
            if last:
                return True
            known, after = reached, upto

    async def _continues(self, known: Known, head: Head) -> bool:
        """Whether the index can go on reading where it stopped: what it has read is still there.

        If not, the journal was deleted and has begun again; or it was compacted before all was
        read, and what is gone may have said that something is forgotten; or the store was restored
        from a backup, and other entries were written since.
        """
        if known.incarnation != head.incarnation or not head.first - 1 <= known.seen <= head.seq:
            return False
        last = await self.journal.page(after=known.seen - 1, upto=known.seen)
        return all(known.has(record.at) for record in last)


def _ask(
    index: Index, reached: Known | None, question: Callable[..., T], args: tuple[Any, ...]
) -> list[T]:
    """What *question* makes of the index; nothing if that is not as far as it had *reached*.

    Another process may have begun to make it again, and much is then missing for a while.
    """
    with index.reading():
        if reached is not None and not reached.within(index.known()):
            return []
        return [question(index, *args)]
