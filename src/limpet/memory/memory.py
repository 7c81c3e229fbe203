"""Memory across tasks: what was learned in one is recalled in the next."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any

from msgspec import structs

from limpet.backends.contract import UNSET, Expect, UnsetType, from_micros, micros, to_micros
from limpet.core.ids import check_id, name_fields
from limpet.core.index_files import is_private
from limpet.core.runtime import SyncWrapper, sync
from limpet.memory import remember
from limpet.memory.embeddings import Embeddings
from limpet.memory.entries import (
    CONFIRMED,
    REMEMBERED,
    USED,
    Draft,
    check_aware,
    is_id,
    memory_id,
)
from limpet.memory.forget import forget, would_forget
from limpet.memory.index import Index
from limpet.memory.indexed_journal import IndexedJournal, now_micros
from limpet.memory.recall import Query, find, related, similar_groups
from limpet.memory.rendering import messages
from limpet.memory.results import MemoryHit, MemoryPage, Receipt, Remembered, Stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from limpet.backends.contract import Append
    from limpet.core.checkpoint import Checkpoint
    from limpet.core.scope import Scope
    from limpet.llm.tokens import Counter

__all__ = ["KIND", "AsyncMemory", "Memory"]

KIND = "memory"
name_fields(KIND, "id", "ids", "other", "key", "source", "by", "tags", "supersedes", "kind", "from")

#: The largest number of memories that can be asked for: SQLite takes no larger one.
MOST = 2**31


class AsyncMemory:
    """The memories of one namespace; see `Memory`."""

    def __init__(self, scope: Scope, namespace: str, *, embed: Any = None) -> None:
        self.scope = scope
        self._journal = scope.journal(KIND, namespace)
        self._key = self._journal.key
        private = is_private(scope.backend, scope.store.codec)
        self._indexed = IndexedJournal(self._journal, private=private)
        self._embeddings = Embeddings(self._indexed, embed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.namespace!r})"

    @property
    def namespace(self) -> str:
        """The name of this memory. Nothing of other namespaces can be seen from here."""
        return self._key.id

    # -- remember ------------------------------------------------------------------------------

    async def remember(
        self,
        text: str,
        *,
        kind: str = "fact",
        tags: Iterable[str] = (),
        source: str | None = None,
        by: str | None = None,
        trust: float | None = None,
        context: str | None = None,
        said_at: datetime | None = None,
        valid_from: datetime | None = None,
        ttl: float | None = None,
        key: str | None = None,
    ) -> Remembered:
        """Store *text* as it is; durable on return. The same words again are the same memory.

        *source*: the task, conversation or step that it comes from; *by*: who said it; *trust*:
        how far to trust them, from 0 to 1. *context*: a few words that it is found by as well,
        such as the goal, or what was said before. *said_at*: when it was said, if not now: by that
        its "yesterday" is understood. *valid_from*: since when it is so; *ttl*: for how many
        seconds. A *key* is the caller's own: used again for other words, it is refused with
        `IdReused`.
        """
        fields = {
            "text": text,
            "kind": kind,
            "tags": tags,
            "source": source,
            "by": by,
            "trust": trust,
            "context": context,
            "said_at": said_at,
            "valid_from": valid_from,
            "ttl": ttl,
            "key": key,
        }
        (made,) = await self.remember_all([fields])
        return made

    async def remember_all(
        self, items: Iterable[str | Mapping[str, Any] | Draft]
    ) -> list[Remembered]:
        """Several at once, all or none: texts, or dicts of what `remember` takes."""
        if isinstance(items, (str, Mapping)):
            raise TypeError("remember_all() takes a list of memories; for one there is remember().")
        drafts = [self._redacted(Draft.of(item)) for item in items]
        if not drafts:
            return []
        named = [(memory_id(self._key, draft), draft) for draft in drafts]
        known: dict[str, Remembered] = {}
        if any(draft.key for draft in drafts):
            now = from_micros(now_micros())
            known, at = await self._indexed.decide(remember.remember_keyed, self._key, named, now)
        else:
            at = await self._indexed.write([(REMEMBERED, draft.body(id_)) for id_, draft in named])
        return [known.get(id_) or _written(id_, draft, at) for id_, draft in named]

    async def learn(self, checkpoint: Checkpoint) -> list[Remembered]:
        """Remember a task's outcome, decisions and discoveries, with where they come from.

        A second call for the same task adds nothing, and another outcome replaces its first, as
        with `update`. What the task had recalled is not new, and does not change.
        """
        found: dict[str, Remembered] = {}
        question = partial(remember.learn, redacted=self._redacted)
        while True:
            now = from_micros(now_micros())
            task, at = await self._indexed.decide(question, self._key, checkpoint, now)
            found |= task.known
            found |= {id_: _written(id_, task.drafts[id_], at) for id_ in task.new}
            if not task.more:
                return [found[id_] for id_ in task.drafts]

    async def prepare_learn(self, checkpoint: Checkpoint) -> list[Append]:
        """The appends of `learn`, for a task that commits them together with its end.

        They hold together or not at all, and only if nobody writes first (`Conflict`).
        """
        now = from_micros(now_micros())
        question = partial(remember.learn, redacted=self._redacted)
        (_, entries), (incarnation, seq) = await self._indexed.query_at(
            question, self._key, checkpoint, now, None
        )
        size = remember.PORTION
        return [
            self._journal.request(
                entries[start : start + size], expect=Expect(incarnation, seq + start), ttl=None
            )
            for start in range(0, len(entries), size)
        ]

    def _redacted(self, draft: Draft) -> Draft:
        """*draft* as it will be stored: its id is made of its words."""
        if self.scope.store.redactor is None:
            return draft
        text, context = self.scope.redacted((draft.text, draft.context))
        return structs.replace(draft, text=text, context=context)

    # -- recall --------------------------------------------------------------------------------

    async def recall(
        self,
        query: str,
        k: int = 5,
        *,
        kinds: Iterable[str] | None = None,
        tags: Iterable[str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        now: datetime | None = None,
        min_score: float | None = None,
        confirm: bool = False,
    ) -> list[MemoryHit]:
        """The *k* memories that match *query* best, each with why it does.

        Of *kinds*, with all of *tags*, said *since* then and before *until*, with at least
        *min_score*. The newest version of each, and nothing that has expired. A time in the query
        ("last week", "in May", "before the move") raises what was said then, or tells of it; *now*
        is when it is asked. With *confirm* they count as used at
        once; else say which of them helped, with `mark_used`.
        """
        k = _whole(k, "k")
        if k < 1:
            return []
        if not isinstance(query, str):
            raise TypeError(f"A query is text, not {type(query).__name__}.")
        if not isinstance(min_score, (int, float, NoneType)):
            raise TypeError(f"min_score is a number, not {type(min_score).__name__}.")
        vectors = await self._embeddings.of_query(query)
        wanted = Query(
            text=query,
            k=k,
            now=now_micros(),
            vectors=vectors,
            filters=_filters(kinds, tags, since, until),
            min_score=min_score,
            asked_at=datetime.now(UTC) if now is None else check_aware(now, "now"),
        )
        hits = await self._indexed.query(find, wanted)
        if confirm and hits:
            await self.mark_used(*(hit.id for hit in hits))
        return hits

    async def messages(
        self,
        query: str,
        k: int = 5,
        *,
        kinds: Iterable[str] | None = None,
        tags: Iterable[str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        now: datetime | None = None,
        min_score: float | None = None,
        standing: bool = True,
        max_tokens: int | None = None,
        count: Callable[[str], int] | Counter | None = None,
        passages: bool = False,
    ) -> list[dict[str, Any]]:
        """What `recall` finds as chat messages, quoted as data; none if it finds nothing.

        In at most *max_tokens*, the best first; of long texts, the *passages* that match, if you
        say so. Before that, in a share of it, all that is `standing`, whatever the query; unless
        *standing* is False.
        """
        hits = await self.recall(
            query,
            k,
            kinds=kinds,
            tags=tags,
            since=since,
            until=until,
            now=now,
            min_score=min_score,
        )
        if passages:
            hits = [structs.replace(hit, text=hit.passage.strip()) for hit in hits]
        wishes = await self.standing() if standing else []
        return messages(hits, max_tokens, count, standing=wishes)

    async def standing(self) -> list[Remembered]:
        """What is to be regarded whatever is done: instructions and preferences, newest first.

        Memories of the kinds ``instruction`` and ``preference`` that are valid now.
        """
        return await self._indexed.query(Index.standing, now_micros())

    async def related(self, id: str, k: int = 5) -> list[MemoryHit]:
        """The *k* memories that have most to do with this one: by names, words, tags and source."""
        most = _whole(k, "k")

        def find_related(index: Index) -> list[MemoryHit]:
            (one,) = index.existing([id], self._key)
            return related(index, one, most, now_micros())

        return await self._indexed.query(find_related)

    # -- one by one ----------------------------------------------------------------------------

    async def get(self, id: str) -> Remembered:
        """The memory *id*, superseded or not; `MemoryNotFound` if it is not in this namespace."""
        (found,) = await self._indexed.query(Index.existing, [id], self._key)
        return found

    async def history(self, id: str) -> list[Remembered]:
        """The versions of a memory, oldest first: what it replaced, and what replaced it."""

        def versions(index: Index) -> list[Remembered]:
            index.existing([id], self._key)
            older, newer = index.versions([id])
            found = index.get([*older, id, *newer])
            return sorted(found.values(), key=lambda one: (one.at, one.id in newer, one.id == id))

        return await self._indexed.query(versions)

    async def update(
        self,
        id: str,
        text: str,
        because: str | None = None,
        *,
        by: str | UnsetType | None = UNSET,
        trust: float | UnsetType | None = UNSET,
    ) -> Remembered:
        """Replace what memory *id* says, or its newest version. `history` shows them all.

        *by* and *trust* are those of the older version, unless others are given: whoever changes
        somebody else's text should say so.
        """
        text = self.scope.redacted(text)
        given = {"by": by, "trust": trust}
        changes = {name: value for name, value in given.items() if value is not UNSET}
        question = partial(remember.update, because=because, changes=changes)
        made, at = await self._indexed.decide(question, self._key, id, text)
        return made if isinstance(made, Remembered) else _written(*made, at)

    async def confirm(self, id: str, *, by: str | None = None) -> Remembered:
        """Record that it is true; that counts as a use."""
        if by is not None:
            check_id(by, "memory's by")
        await self.get(id)
        await self._indexed.write([(CONFIRMED, {"ids": [id]} | ({"by": by} if by else {}))])
        return await self.get(id)

    async def mark_used(self, *ids: str) -> None:
        """Record that these helped: memories that were used are recalled more easily."""
        if ids:
            await self._indexed.query(Index.existing, ids, self._key)
            await self._indexed.write([(USED, {"ids": list(dict.fromkeys(ids))})])

    async def contradict(self, id: str, other: str, *, because: str | None = None) -> Remembered:
        """Record that memory *id* is disputed by an *other*: its id, or a text, to be remembered.

        Both stay, and recall shows it. If it is known which of them is right, `update` it.
        """
        other = other if is_id(other) else self.scope.redacted(other)
        question = partial(remember.contradict, because=because)
        await self._indexed.decide(question, self._key, id, other)
        return await self.get(id)

    # -- less ----------------------------------------------------------------------------------

    async def forget(
        self,
        *ids: str,
        source: str | None = None,
        tag: str | None = None,
        subject: str | None = None,
        expired: bool = False,
    ) -> Receipt:
        """Remove memories for good, by id, *source*, *tag* or *subject*; the receipt lists them.

        A *subject* is a name: all that has it as a tag, or in its words. Other versions of them go
        too, and what was made from them. With *expired*, all that has expired. Several conditions
        narrow it down.
        """
        filters = _to_forget(ids, source, tag, subject, expired)
        return await forget(self._indexed, ids, filters)

    async def would_forget(
        self,
        *ids: str,
        source: str | None = None,
        tag: str | None = None,
        subject: str | None = None,
        expired: bool = False,
    ) -> Receipt:
        """What `forget` would remove now; nothing is changed. The receipt has no time."""
        filters = _to_forget(ids, source, tag, subject, expired)
        return await would_forget(self._indexed, ids, filters)

    async def consolidate(
        self,
        merge: Callable[[list[Remembered]], Any],
        *,
        kinds: Iterable[str] | None = None,
        alike: float = 0.5,
    ) -> list[Remembered]:
        """Let *merge* make one text of similar memories; returns the new memories.

        It gets a list of memories, oldest first, and returns a text, or None to leave them. The
        new memory replaces them, as `update` does, and names them. *alike*: the share of words
        from which on two are put together.
        """
        filters = _filters(kinds, None)
        made = []
        for group in await self._indexed.change_index(similar_groups, filters, alike, now_micros()):
            text = await self.scope.runtime.invoke(merge, group)
            if text is not None:
                draft = remember.successor(group, self.scope.redacted(text))
                id_ = memory_id(self._key, draft)
                merged, at = await self._indexed.decide(remember.merge, group, id_, draft)
                made += [_written(id_, draft, at)] if merged else []
        return made

    # -- the whole -----------------------------------------------------------------------------

    async def stats(self) -> Stats:
        """The namespace in figures."""
        figures = await self._indexed.query(Index.stats, now_micros())
        head = await self._journal.head()
        return Stats(
            namespace=self.namespace,
            position=head.seq if head else 0,
            size=head.size if head else 0,
            **figures,
        )

    async def embedded_by(self) -> str | None:
        """The name of the model that has made the vectors there are; None if there are none."""
        return await self._indexed.query(Index.embedded_by)

    async def embed(self, progress: Callable[[int, int], object] | None = None) -> int:
        """Compute all missing vectors, calling *progress*; returns how many there were.

        A recall does some of it by itself; after a change of the model, or of many memories, this
        does all of it.
        """
        return await self._embeddings.embed_all(progress)

    async def reindex(self, progress: Callable[[int, int], object] | None = None) -> int:
        """Build the index on this machine again, calling *progress*; returns how many memories."""
        await self._indexed.rebuild(progress)
        return (await self.stats()).memories

    async def page(
        self,
        *,
        before: int | None = None,
        limit: int = 50,
        kinds: Iterable[str] | None = None,
        tags: Iterable[str] | None = None,
        source: str | None = None,
        superseded: bool = False,
    ) -> MemoryPage:
        """A page of what `list` gives, at a cost that does not grow with how many there are.

        *before* is the *older* of the page before. In the order in which they were remembered.
        """
        filters = _filters(kinds, tags) | {"source": source}
        most = max(_whole(limit, "limit"), 1)
        page = partial(Index.page, live=not superseded)
        return await self._indexed.query(page, filters, now_micros(), before, most)

    # The last method: after it, `list` is no longer the builtin for a type checker.
    async def list(
        self,
        *,
        kinds: Iterable[str] | None = None,
        tags: Iterable[str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        source: str | None = None,
        superseded: bool = False,
        limit: int | None = None,
    ) -> list[Remembered]:
        """The memories that are valid now, newest first; with *superseded* all others, too."""
        filters = _filters(kinds, tags, since, until) | {"source": source}
        most = None if limit is None else max(_whole(limit, "limit"), 0)
        filtered = partial(Index.filtered, live=not superseded)
        return await self._indexed.query(filtered, filters, now_micros(), most)


class Memory(SyncWrapper[AsyncMemory]):
    """The memories of one namespace, shared by all tasks.

    >>> import limpet
    >>> with limpet.open("memory:") as store:
    ...     memory = store.memory("acme/support")
    ...     made = memory.remember("Ada prefers e-mail", tags=["contact"], source="report-42")
    ...     [hit.text for hit in memory.recall("how do we reach Ada by mail?")]
    ['Ada prefers e-mail']
    """

    @property
    def scope(self) -> Scope:
        """Where it is: the store, and whose state."""
        return self._core.scope

    @property
    def namespace(self) -> str:
        """The name of this memory. Nothing of other namespaces can be seen from here."""
        return self._core.namespace

    remember = sync(AsyncMemory.remember)
    remember_all = sync(AsyncMemory.remember_all)
    learn = sync(AsyncMemory.learn)
    recall = sync(AsyncMemory.recall)
    messages = sync(AsyncMemory.messages)
    standing = sync(AsyncMemory.standing)
    related = sync(AsyncMemory.related)
    get = sync(AsyncMemory.get)
    list = sync(AsyncMemory.list)
    page = sync(AsyncMemory.page)
    history = sync(AsyncMemory.history)
    update = sync(AsyncMemory.update)
    confirm = sync(AsyncMemory.confirm)
    mark_used = sync(AsyncMemory.mark_used)
    contradict = sync(AsyncMemory.contradict)
    forget = sync(AsyncMemory.forget)
    would_forget = sync(AsyncMemory.would_forget)
    consolidate = sync(AsyncMemory.consolidate)
    stats = sync(AsyncMemory.stats)
    embedded_by = sync(AsyncMemory.embedded_by)
    embed = sync(AsyncMemory.embed)
    reindex = sync(AsyncMemory.reindex)


_SAME = (
    *("text", "kind", "tags", "source", "by", "trust", "context", "key", "valid_from"),
    *("said_at", "supersedes"),
)


def _written(id_: str, draft: Draft, at: int) -> Remembered:
    """What *draft* is once it was written *at* that time."""
    fields = {name: getattr(draft, name) for name in _SAME}
    ends = None if draft.ttl is None else from_micros(at + micros(draft.ttl))
    return Remembered(id=id_, at=from_micros(at), expires_at=ends, **fields)


def _filters(
    kinds: Iterable[str] | None,
    tags: Iterable[str] | None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> dict[str, Any]:
    def several(names: Iterable[str] | None) -> list[str] | None:
        return None if names is None else [names] if isinstance(names, str) else list(names)

    return {
        "kinds": several(kinds),
        "tags": several(tags),
        "since": None if since is None else to_micros(check_aware(since, "since")),
        "until": None if until is None else to_micros(check_aware(until, "until")),
    }


def _to_forget(
    ids: Iterable[str], source: str | None, tag: str | None, subject: str | None, expired: Any
) -> dict[str, Any]:
    given = {"source": source, "tag": tag, "subject": subject, "expired": expired or None}
    filters = {name: value for name, value in given.items() if value is not None}
    if not ids and not filters:
        raise ValueError("Say what to forget: ids, source=, tag=, subject= or expired=True.")
    return filters


def _whole(number: Any, name: str) -> int:
    """*number*, as one that SQLite takes."""
    if not isinstance(number, int):
        raise TypeError(f"{name} is a whole number, not {type(number).__name__}.")
    return min(number, MOST)
