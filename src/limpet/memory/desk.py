"""A namespace's journal and its index, kept together: what is written, and what is derived."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from limpet.backends.contract import from_micros
from limpet.core.text_index import Known
from limpet.errors import Conflict
from limpet.memory import learning
from limpet.memory.entries import Told, identity
from limpet.memory.places import index_of

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from limpet.backends.contract import Append, Backend, Head, Record
    from limpet.core.checkpoint import Checkpoint
    from limpet.core.journal import AsyncJournal
    from limpet.memory.entries import Draft
    from limpet.memory.index import Index

    Progress = Callable[[int, int], object]
    #: What was found, and what is to be written.
    Decision = tuple[T, Sequence[tuple[str, Any]]]

__all__ = ["Desk", "now"]

log = logging.getLogger(__name__)

#: Entries that the index takes in at once.
PORTION = 10_000
#: How often what another process does at the same time may come between.
TRIES = 20
#: What an index is thrown away for: the file itself is at fault. A full disk, or a process that has
#: too many files open, is no reason to make all vectors anew.
DAMAGE = (
    *(apsw.CorruptError, apsw.NotADBError, apsw.SQLError),
    *(apsw.ConstraintError, apsw.MismatchError),
)


class Desk:
    """Reads, writes and follows one namespace's journal."""

    def __init__(self, journal: AsyncJournal, *, private: bool) -> None:
        self.journal = journal
        self._runtime = journal.runtime
        self._private = private

    @property
    def backend(self) -> Backend:
        """What keeps the journal."""
        return self._runtime.backend

    @property
    def namespace(self) -> str:
        """What the memories are kept under."""
        return self.journal.key.id

    async def call(self, method: Callable[..., T], *values: Any) -> T:
        """What blocks, where it may."""
        return await self._runtime.call(method, *values)

    async def user(self, function: Callable[..., Any], *values: Any) -> Any:
        """A function of the user's."""
        return await self._runtime.invoke(function, *values)

    def identify(self, draft: Draft) -> str:
        """The id of what *draft* says."""
        return identity((self.journal.key.tenant, self.journal.key.id), draft)

    # -- the journal ---------------------------------------------------------------------------

    async def write(self, entries: Sequence[tuple[str, Any]], expect: int | None = None) -> int:
        """Append *entries*, all or none; when that was."""
        # What was learned is to outlast the rest: it does not expire with the store's ttl.
        at: int = (await self.journal.write(entries, expect=expect, ttl=None)).at
        return at

    async def told(self, after: int, upto: int) -> list[Told]:
        """What the journal says between two positions."""
        found: list[Told] = []
        while after < upto:
            records = await self.journal.page(after=after, upto=upto)
            if not records:
                break
            for record in records:
                found += self._said(record)
            after = records[-1].seq
        return [one for one in found if one.seq <= upto] if after > upto else found

    def _said(self, record: Record) -> Iterator[Told]:
        """The entries of *record*, without the cost of an `Entry` each."""
        entries = self.journal.decode(record.seq, record.body)
        for seq, (type_, body) in enumerate(entries, record.seq - record.count + 1):
            yield Told.of(seq, record.at, type_, body)

    # -- the index -----------------------------------------------------------------------------

    def _index(self) -> Index:
        key = self.journal.key
        return index_of(self._runtime.backend, key.tenant, key.id, private=self._private)

    async def ask(self, question: Callable[..., T], *values: Any) -> T:
        """What *question* makes of the index, which is first brought to where the journal is.

        It sees one state of the index, and writes nothing to it.
        """

        async def answer() -> T:
            while True:
                index, reached = await self.follow()
                answers = await self._runtime.call(_answers, index, reached, question, values)
                if answers:
                    return answers[0]

        return await self._with_index(answer)

    async def work(self, act: Callable[..., T], *values: Any) -> T:
        """What *act* makes of the index, as `ask`: for what changes it, or takes its time.

        It takes the lock itself, where it needs it.
        """

        async def done() -> T:
            index, _ = await self.follow()
            return await self._runtime.call(act, index, *values)

        return await self._with_index(done)

    async def decide(self, question: Callable[..., Decision[T]], *values: Any) -> tuple[T, int]:
        """Write what *question* makes of the index, unless others write first: then ask again.

        What it found besides, and when that was written; 0 if there was nothing to write.
        """
        while True:
            (found, entries), position = await self.place(question, *values)
            if not entries:
                return found, 0
            with contextlib.suppress(Conflict):
                return found, await self.write(entries, expect=position)

    async def place(self, question: Callable[..., T], *values: Any) -> tuple[T, int]:
        """What *question* makes of the index, and how far in the journal that holds."""
        return await self.ask(_placed, question, *values)

    async def to_learn(self, checkpoint: Checkpoint) -> list[Append]:
        """What `AsyncMemory.learn` would write, for a task that writes it together with its end.

        They count together or not at all, and only if nobody writes first (`Conflict`).
        """
        values = (checkpoint, self.identify, from_micros(now()), None)
        (_, entries), position = await self.place(learning.lessons, *values)
        size = learning.PORTION
        return [
            self.journal.request(entries[start : start + size], expect=position + start, ttl=None)
            for start in range(0, len(entries), size)
        ]

    async def _with_index(self, act: Callable[[], Awaitable[T]]) -> T:
        """What *act* comes to. An index of no use is made anew; one that cannot be, in memory."""
        anew = False
        while True:
            try:
                return await act()
            except apsw.Error as error:
                if self._private:
                    raise
                if not anew and isinstance(error, DAMAGE):
                    anew = True
                    await self._runtime.call(self._throw_away)
                else:
                    # A full disk, a file that may not be written, or that another does not give up:
                    # it stays as it is, for those who can use it.
                    log.warning("The index of a memory cannot be kept in its file: %s", error)
                    self._private = True

    def _throw_away(self) -> None:
        with contextlib.suppress(OSError):
            self._index().start_anew()

    async def follow(self, progress: Progress | None = None) -> tuple[Index, Known | None]:
        """The index, with all that the journal says by now; and how far that is."""
        index, known = await self._runtime.call(self._known)
        for _ in range(TRIES):
            # After the index: what others take in meanwhile must not look like another journal.
            head = await self.journal.head()
            if head is None:
                if known is not None:
                    await self._runtime.call(index.empty)
                return index, None
            if known == Known.of(head) or await self._take(index, head, known, progress):
                return index, Known.of(head)
            index, known = await self._runtime.call(self._known)
        return index, known  # others bring it up to date at this very moment

    def _known(self) -> tuple[Index, Known | None]:
        index = self._index()
        return index, index.known()

    async def _take(
        self, index: Index, head: Head, known: Known | None, progress: Progress | None
    ) -> bool:
        """Bring *index* from *known* to *head*; False if another process came between."""
        if known is not None and not await self._goes_on(known, head):
            known = None
        after = (head.first - 1) if known is None else known.seen
        while True:
            upto = min(after + PORTION, head.seq)
            told = await self.told(after, upto)
            now = Known.of(head, upto)
            if not await self._runtime.call(index.add, known, now, told):
                return False
            if progress is not None:
                progress(upto - (head.first - 1), head.seq - (head.first - 1))
            if upto >= head.seq:
                return True
            known, after = now, upto

    async def _goes_on(self, known: Known, head: Head) -> bool:
        """Whether what was read so far is still the beginning of what is there.

        What was compacted away unread may have said that something is forgotten.
        """
        if known.incarnation != head.incarnation or not head.first - 1 <= known.seen <= head.seq:
            return False
        last = await self.journal.page(after=known.seen - 1, upto=known.seen)
        return all(known.has(record.at) for record in last)

    async def renew(self, progress: Progress | None) -> None:
        """Throw the index away and make it anew."""
        await self._runtime.call(self._throw_away)
        await self._with_index(lambda: self.follow(progress))


def _answers(
    index: Index, reached: Known | None, question: Callable[..., T], values: tuple[Any, ...]
) -> list[T]:
    """What *question* makes of the index; nothing if it is no longer where it was.

    Another may have begun to make it anew, and not be done yet: much is not there then.
    """
    with index.reading():
        if reached is not None and not reached.within(index.known()):
            return []
        return [question(index, *values)]


def _placed(index: Index, question: Callable[..., T], *values: Any) -> tuple[T, int]:
    known = index.known()
    return question(index, *values), 0 if known is None else known.seen


def now() -> int:
    """The present, by this machine's clock."""
    return time.time_ns() // 1000
