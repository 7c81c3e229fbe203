"""A namespace's journal and its index, kept together: what is written, and what is derived."""

from __future__ import annotations

import contextlib
import inspect
import logging
import time
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from holdfast._textindex import Known
from holdfast.backends.base import from_micros
from holdfast.errors import Conflict
from holdfast.memory import learning
from holdfast.memory.embeddings import chosen, model_of
from holdfast.memory.entries import Told, identity
from holdfast.memory.places import index_of
from holdfast.memory.vectors import (
    missing,
    mixed,
    packed,
    put_vectors,
    settle_model,
    unembedded,
)

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from holdfast.backends.base import Append, Backend, Head, Record
    from holdfast.checkpoint import Checkpoint
    from holdfast.journal import AsyncJournal
    from holdfast.memory.entries import Draft
    from holdfast.memory.index import Index

    Progress = Callable[[int, int], object]
    #: What was found, and what is to be written.
    Decision = tuple[T, Sequence[tuple[str, Any]]]

__all__ = ["Desk", "now"]

log = logging.getLogger(__name__)

#: Texts that are embedded in one call, and those that a recall does before it answers.
BATCH, AT_RECALL = 64, 64
#: Entries that the index takes in at once.
PORTION = 10_000
#: How often what another process does at the same time may come between.
TRIES = 20


class Desk:
    """Reads, writes and follows one namespace's journal."""

    def __init__(self, journal: AsyncJournal, *, embed: Any, private: bool) -> None:
        self.journal = journal
        self._port = journal._port  # noqa: SLF001 - how a noun reaches its backend
        self._embed = chosen(embed)
        self._private = private

    @property
    def backend(self) -> Backend:
        """What keeps the journal."""
        return self._port.backend

    @property
    def namespace(self) -> str:
        """What the memories are kept under."""
        return self.journal.key.id

    async def call(self, method: Callable[..., T], *values: Any) -> T:
        """What blocks, where it may."""
        return await self._port.call(method, *values)

    async def user(self, function: Callable[..., Any], *values: Any) -> Any:
        """A function of the user's."""
        return await self._port.ask(function, *values)

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
        entries = self.journal._decode(record.seq, record.body)  # noqa: SLF001 - as any noun may
        for seq, (type_, body) in enumerate(entries, record.seq - record.count + 1):
            yield Told.of(seq, record.at, type_, body)

    # -- the index -----------------------------------------------------------------------------

    def _index(self) -> Index:
        key = self.journal.key
        return index_of(self._port.backend, key.tenant, key.id, private=self._private)

    async def ask(self, question: Callable[..., T], *values: Any) -> T:
        """What *question* makes of the index, which is first brought to where the journal is."""

        async def answer() -> T:
            index = await self.follow()
            return await self._port.call(question, index, *values)

        return await self._with_index(answer)

    async def decide(self, question: Callable[..., Decision[T]], *values: Any) -> tuple[T, int]:
        """Write what *question* makes of the index, unless others write first: then ask again.

        What it found besides, and when that was written; 0 if there was nothing to write.
        """
        while True:
            (found, entries), position = await self.ask(_placed, question, *values)
            if not entries:
                return found, 0
            with contextlib.suppress(Conflict):
                return found, await self.write(entries, expect=position)

    async def to_learn(self, checkpoint: Checkpoint) -> list[Append]:
        """What `AsyncMemory.learn` would write, for a task that writes it together with its end.

        They count together or not at all, and only if nobody writes first (`Conflict`).
        """
        values = (checkpoint, self.identify, from_micros(now()), None)
        (_, entries), position = await self.ask(_placed, learning.lessons, *values)
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
                if not anew and not isinstance(error, apsw.BusyError):
                    anew = True
                    await self._port.call(self._throw_away)
                else:
                    # A full disk, a file that may not be written, or that another does not give up.
                    log.warning("The index of a memory cannot be kept in its file: %s", error)
                    self._private = True

    def _throw_away(self) -> None:
        with contextlib.suppress(OSError):
            self._index().start_anew()

    async def follow(self, progress: Progress | None = None) -> Index:
        """The index, with all that the journal says by now."""
        index, known = await self._port.call(self._known)
        for _ in range(TRIES):
            # After the index: what others take in meanwhile must not look like another journal.
            head = await self.journal.head()
            if head is None:
                if known is not None:
                    await self._port.call(index.empty)
                return index
            if known == Known.of(head) or await self._take(index, head, known, progress):
                return index
            index, known = await self._port.call(self._known)
        return index  # others bring it up to date at this very moment

    def _known(self) -> tuple[Index, Known | None]:
        index = self._index()
        return index, index.known()

    async def _take(
        self, index: Index, head: Head, known: Known | None, progress: Progress | None
    ) -> bool:
        """Bring *index* from *known* to *head*; False if another process came between."""
        if known is not None and not await self._goes_on(known, head):
            known = None
        after = head.floor if known is None else known.seen
        while True:
            upto = min(after + PORTION, head.seq)
            told = await self.told(after, upto)
            now = Known.of(head, upto)
            if not await self._port.call(index.add, known, now, told):
                return False
            if progress is not None:
                progress(upto - head.floor, head.seq - head.floor)
            if upto >= head.seq:
                return True
            known, after = now, upto

    async def _goes_on(self, known: Known, head: Head) -> bool:
        """Whether what was read so far is still the beginning of what is there.

        What was compacted away unread may have said that something is forgotten.
        """
        if known.created != head.created or not head.floor <= known.seen <= head.seq:
            return False
        last = await self.journal.page(after=known.seen - 1, upto=known.seen)
        return all(known.has(record.at) for record in last)

    async def renew(self, progress: Progress | None) -> None:
        """Throw the index away and make it anew."""
        await self._port.call(self._throw_away)
        await self._with_index(lambda: self.follow(progress))

    # -- meaning -------------------------------------------------------------------------------

    async def vector(self, text: str) -> Any:
        """What *text* means; None where nothing is embedded."""
        if self._embed is None:
            return None
        (found,) = await self._embedded([text])
        await self._with_index(lambda: self._embed_some(AT_RECALL, None, packed([found])))
        return found

    async def embed(self, most: int | None, progress: Progress | None = None) -> int:
        """Embed up to *most* memories that have no vector yet, newest first; how many."""
        if self._embed is None:
            return 0
        return await self._with_index(lambda: self._embed_some(most, progress))

    async def _embed_some(
        self, most: int | None, progress: Progress | None, like: Sequence[bytes] = ()
    ) -> int:
        """`embed`; what is there is to be *like* some vectors, or is made anew."""
        model = model_of(self._embed)
        index = await self.follow()
        await self._port.call(settle_model, index, model)
        await self._port.call(_settle_length, index, like)
        total = await self._port.call(missing, index) if progress or most is None else 0
        done = 0
        while most is None or done < most:
            size = BATCH if most is None else min(BATCH, most - done)
            rows = await self._port.call(unembedded, index, size)
            if not rows:
                break
            vectors = packed(await self._meant(rows))
            await self._port.call(_settle_length, index, vectors)
            new = [(n, id_, value) for (n, id_, *_), value in zip(rows, vectors, strict=True)]
            await self._port.call(put_vectors, index, model, new)
            done += len(rows)
            if progress is not None:
                progress(done, max(total, done))
        return done

    async def _meant(self, rows: list[tuple[int, str, str, str | None]]) -> list[Any]:
        """What the texts of *rows* mean, and what their contexts add to that."""
        words = [part for *_, text, context in rows for part in (text, context) if part]
        each = list(dict.fromkeys(words))  # many memories of a task have one context
        found = dict(zip(each, await self._embedded(each), strict=True))
        return [
            mixed(found[text], found[context] if context else None) for *_, text, context in rows
        ]

    async def _embedded(self, texts: list[str]) -> Any:
        """What the user's function makes of *texts*, on a thread unless it is async."""
        embed: Any = self._embed
        if any(map(inspect.iscoroutinefunction, (embed, type(embed).__call__))):
            found = await self._port.ask(embed, texts)
        else:
            found = await self._port.call(embed, texts)
            if hasattr(found, "__await__"):
                found = await self._port.ask(lambda: found)
        count = len(found) if hasattr(found, "__len__") else "no list of"
        if count != len(texts):
            msg = f"The embedding function returned {count} vectors for {len(texts)} texts."
            raise ValueError(msg)
        return found


def _settle_length(index: Index, like: Sequence[bytes]) -> None:
    """Vectors of another length are another model's, whatever it is called."""
    length = index.value("SELECT length(value) FROM vector LIMIT 1")
    if like and length not in (None, len(like[0])):
        with index.writing() as database:
            database.execute("DELETE FROM vector")


def _placed(index: Index, question: Callable[..., T], *values: Any) -> tuple[T, int]:
    """What *question* makes of the index, and how far in the journal that holds."""
    with index.lock:
        known = index.known()
        return question(index, *values), 0 if known is None else known.seen


def now() -> int:
    """The present, by this machine's clock."""
    return time.time_ns() // 1000
