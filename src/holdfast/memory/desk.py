"""A namespace's journal and its index, kept together: what is written, and what is derived."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from holdfast._textindex import Known
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.backends.base import Backend, Head, Record
    from holdfast.journal import AsyncJournal
    from holdfast.memory.entries import Draft
    from holdfast.memory.index import Index

    Progress = Callable[[int, int], object]

__all__ = ["Desk"]

T = TypeVar("T")

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
        """What *question* makes of the index, which is first brought to where the journal is.

        An index that turns out to be damaged is made anew.
        """
        try:
            index = await self.follow()
            return await self._port.call(question, index, *values)
        except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.IOError):
            index = await self._port.call(self._index)
            await self._port.call(index.start_anew)
        index = await self.follow()
        return await self._port.call(question, index, *values)

    async def follow(self, progress: Progress | None = None) -> Index:
        """The index, with all that the journal says by now."""
        index = await self._port.call(self._index)
        for _ in range(TRIES):
            head = await self.journal.head()
            known = await self._port.call(index.known)
            if head is None:
                if known is not None:
                    await self._port.call(index.empty)
                return index
            if known == Known.of(head) or await self._take(index, head, known, progress):
                return index
        return index  # others bring it up to date at this very moment

    async def _take(
        self, index: Index, head: Head, known: Known | None, progress: Progress | None
    ) -> bool:
        """Bring *index* from *known* to *head*; False if another process came between."""
        if known is not None and not _continues(known, head):
            known = None
        after = head.floor if known is None else known.seen
        while True:
            upto = min(after + PORTION, head.seq)
            told = await self.told(after, upto)
            now = Known(head.created, head.floor, upto)
            if not await self._port.call(index.add, known, now, told):
                return False
            if progress is not None:
                progress(upto - head.floor, head.seq - head.floor)
            if upto >= head.seq:
                return True
            known, after = now, upto

    async def renew(self, progress: Progress | None) -> Index:
        """Throw the index away and make it anew."""
        index = await self._port.call(self._index)
        await self._port.call(index.start_anew)
        return await self.follow(progress)

    # -- meaning -------------------------------------------------------------------------------

    async def vector(self, text: str) -> Any:
        """What *text* means; None where nothing is embedded."""
        if self._embed is None:
            return None
        await self.embed(AT_RECALL)
        return (await self._embedded([text]))[0]

    async def embed(self, most: int | None, progress: Progress | None = None) -> int:
        """Embed up to *most* memories that have no vector yet, newest first; how many."""
        if self._embed is None:
            return 0
        model = model_of(self._embed)
        index = await self.follow()
        await self._port.call(settle_model, index, model)
        total = await self._port.call(missing, index) if progress or most is None else 0
        done = 0
        while most is None or done < most:
            size = BATCH if most is None else min(BATCH, most - done)
            rows = await self._port.call(unembedded, index, size)
            if not rows:
                break
            vectors = packed(await self._meant(rows))
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
        found = await self._port.call(embed, texts)
        if hasattr(found, "__await__"):
            found = await self._port.ask(lambda: found)
        if len(found) != len(texts):
            msg = f"The embedding function returned {len(found)} vectors for {len(texts)} texts."
            raise ValueError(msg)
        return found


def _continues(known: Known, head: Head) -> bool:
    """Whether what was read so far is still the beginning of what is there.

    What was compacted away unread may have said that something is forgotten.
    """
    return known.created == head.created and head.floor <= known.seen <= head.seq


def now() -> int:
    """The present, by this machine's clock."""
    return time.time_ns() // 1000
