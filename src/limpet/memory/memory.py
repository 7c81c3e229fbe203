"""Memory across tasks: what was learned in one is recalled in the next."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

from limpet.backends.contract import UNSET, UnsetType, from_micros
from limpet.core.codec import Codec
from limpet.core.ids import check_id
from limpet.core.runtime import SyncWrapper, sync
from limpet.memory import entries
from limpet.memory.changing import contradiction, keyed, merged, present, update
from limpet.memory.desk import Desk, now
from limpet.memory.entries import micros
from limpet.memory.finding import Query, find
from limpet.memory.forgetting import forget
from limpet.memory.hits import MemoryHit, Receipt, Remembered, Stats
from limpet.memory.learning import lessons
from limpet.memory.meaning import Meaning
from limpet.memory.relating import groups, related
from limpet.memory.rendering import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from limpet.core.checkpoint import Checkpoint
    from limpet.core.scope import Scope
    from limpet.llm.tokens import Counter
    from limpet.memory.entries import Draft
    from limpet.memory.index import Index

__all__ = ["KIND", "AsyncMemory", "Memory"]

T = TypeVar("T")

KIND = "memory"

#: Memories that can be asked for at once.
MOST = 2**31


class AsyncMemory:
    """What is remembered in one namespace; see `Memory`."""

    def __init__(self, scope: Scope, namespace: str, *, embed: Any = None) -> None:
        self._journal = scope.journal(KIND, namespace)
        # What somebody took care to encrypt is not written out beside it.
        self._desk = Desk(self._journal, private=type(scope.store.codec) is not Codec)
        self._meaning = Meaning(self._desk, embed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.namespace!r})"

    @property
    def namespace(self) -> str:
        """What the memories are kept under; those of others cannot be seen from here."""
        return self._journal.key.id

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
        valid_from: datetime | None = None,
        ttl: float | None = None,
        key: str | None = None,
    ) -> Remembered:
        """Keep *text* as it was said; durable on return. The same words again are the same memory.

        *source*: the task, conversation or step that it comes from; *by*: who said it; *trust*:
        how far to believe them, from 0 to 1. *context*: a few words that it is found by as well,
        such as the goal, or what was said before. *valid_from*: since when it is so; *ttl*: for how
        many seconds. A *key* is the caller's own: a second time with other words it is refused with
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
        drafts = [entries.Draft.of(item) for item in items]
        if not drafts:
            return []
        named = [(self._desk.identify(draft), draft) for draft in drafts]
        if any(draft.key for draft in drafts):
            return await self._remember_keyed(named)
        at = await self._desk.write([(entries.REMEMBERED, one.body(id_)) for id_, one in named])
        return [_made(id_, draft, at) for id_, draft in named]

    async def _remember_keyed(self, named: list[tuple[str, Draft]]) -> list[Remembered]:
        known, at = await self._desk.decide(keyed, named, self.namespace, from_micros(now()))
        return [known.get(id_) or _made(id_, draft, at) for id_, draft in named]

    async def learn(self, checkpoint: Checkpoint) -> list[Remembered]:
        """Remember a task's outcome, decisions and discoveries, with where they come from.

        Of the same task again nothing is doubled, and another outcome takes the place of its first,
        as with `update`. What it had recalled is not new, and stays as it was.
        """
        found: dict[str, Remembered] = {}
        while True:
            moment = from_micros(now())
            left, at = await self._desk.decide(lessons, checkpoint, self._desk.identify, moment)
            found |= left.known | {id_: _made(id_, left.drafts[id_], at) for id_ in left.new}
            if not left.more:
                return [found[id_] for id_ in left.drafts]

    # -- recall --------------------------------------------------------------------------------

    async def recall(
        self,
        query: str,
        k: int = 5,
        *,
        kinds: Iterable[str] | None = None,
        tags: Iterable[str] | None = None,
        since: datetime | None = None,
        min_score: float | None = None,
        confirm: bool = False,
    ) -> list[MemoryHit]:
        """The *k* memories that fit *query* best, each with why it does.

        Of *kinds*, with all of *tags*, told *since* then, with at least *min_score*. The newest
        version of each, and nothing that has expired. With *confirm* they count as used at once;
        else say which of them helped, with `used`.
        """
        k = _whole(k, "k")
        if k < 1:
            return []
        if not isinstance(query, str):
            raise TypeError(f"A query is text, not {type(query).__name__}.")
        if not isinstance(min_score, (int, float, NoneType)):
            raise TypeError(f"min_score is a number, not {type(min_score).__name__}.")
        vector = await self._meaning.of(query)
        asked = Query(
            text=query,
            k=k,
            now=now(),
            vector=vector,
            filters=_filters(kinds, tags, since),
            min_score=min_score,
        )
        hits = await self._desk.ask(find, asked)
        if confirm and hits:
            await self.used(*(hit.id for hit in hits))
        return hits

    async def messages(
        self,
        query: str,
        k: int = 5,
        *,
        kinds: Iterable[str] | None = None,
        tags: Iterable[str] | None = None,
        since: datetime | None = None,
        min_score: float | None = None,
        max_tokens: int | None = None,
        count: Callable[[str], int] | Counter | None = None,
    ) -> list[dict[str, Any]]:
        """What `recall` finds as chat messages, fenced as data; none if it finds nothing.

        In at most *max_tokens*, the best first.
        """
        hits = await self.recall(query, k, kinds=kinds, tags=tags, since=since, min_score=min_score)
        return messages(hits, max_tokens, count)

    async def related(self, id: str, k: int = 5) -> list[MemoryHit]:
        """The *k* memories that have most to do with this one: by names, words, tags and source."""
        return await self._about([id], related, _whole(k, "k"), now())

    # -- one by one ----------------------------------------------------------------------------

    async def get(self, id: str) -> Remembered:
        """The memory *id*, superseded or not; `MemoryNotFound` if it is not in this namespace."""
        return await self._about([id], _itself)

    async def _about(self, ids: list[str], question: Callable[..., T], *values: Any) -> T:
        """What *question* makes of the index and these memories, which are there."""

        def ask(index: Index) -> T:
            return question(index, present(index, ids, self.namespace), *values)

        return await self._desk.ask(ask)

    async def all(
        self,
        *,
        kinds: Iterable[str] | None = None,
        tags: Iterable[str] | None = None,
        since: datetime | None = None,
        source: str | None = None,
        superseded: bool = False,
        limit: int | None = None,
    ) -> list[Remembered]:
        """The memories that count now, newest first; with *superseded* those that do not, too."""
        filters = _filters(kinds, tags, since) | {"source": source}
        limit = limit if limit is None else max(_whole(limit, "limit"), 0)
        return await self._desk.ask(_all, filters, now(), limit, not superseded)

    async def history(self, id: str) -> list[Remembered]:
        """The versions of a memory, oldest first: what it replaced, and what replaced it."""
        return await self._about([id], _history)

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

        *by* and *trust* are those of the older version, unless others are given: who changes what
        somebody else has said should say so.
        """
        given = {"by": by, "trust": trust}
        said = {name: value for name, value in given.items() if value is not UNSET}
        question = partial(update, because=because, said=said)
        made, at = await self._desk.decide(question, self._desk, id, text)
        return made if isinstance(made, Remembered) else _made(*made, at)

    async def confirm(self, id: str, *, by: str | None = None) -> Remembered:
        """Note that it is so; that counts as a use."""
        await self._note("confirmed", [id], by)
        return await self.get(id)

    async def used(self, *ids: str) -> None:
        """Note that these helped: what is of use comes to mind more easily."""
        if ids:
            await self._note("used", list(ids))

    async def _note(self, what: str, ids: list[str], by: str | None = None) -> None:
        if by is not None:
            check_id(by, "memory's by")
        await self._about(ids, _itself)
        said = {"ids": list(dict.fromkeys(ids))} | ({"by": by} if by else {})
        await self._desk.write([(what, said)])

    async def contradict(self, id: str, other: str, *, because: str | None = None) -> Remembered:
        """Note that memory *id* is disputed by an *other*: its id, or a text, to be remembered.

        Both stay, and recall shows it. If it is known which of them is right, `update` it.
        """
        question = partial(contradiction, because=because)
        await self._desk.decide(question, self._desk, id, other)
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
        """Remove memories for good, and say what went: by id, *source*, *tag*, *subject*.

        A *subject* is a name: all that has it as a tag, or in its words. Other versions of them go
        too, and what was made from them. With *expired*, all that has expired.
        """
        wanted = {"source": source, "tag": tag, "subject": subject, "expired": expired or None}
        chosen = {name: value for name, value in wanted.items() if value is not None}
        if not ids and not chosen:
            raise ValueError("Say what to forget: ids, source=, tag=, subject= or expired=True.")
        return await forget(self._desk, ids, chosen)

    async def consolidate(
        self,
        merge: Callable[[list[Remembered]], Any],
        *,
        kinds: Iterable[str] | None = None,
        alike: float = 0.5,
    ) -> list[Remembered]:
        """Have *merge* make one text of memories that say much the same; the texts it made.

        It gets a list of memories, oldest first, and returns a text, or None to leave them. The
        new memory replaces them, as `update` does, and names them. *alike*: the share of words
        from which on two are put together.
        """
        made = []
        for group in await self._desk.work(groups, _filters(kinds, None, None), alike, now()):
            text = await self._desk.user(merge, group)
            if text is not None:
                draft = entries.successor(group, text)
                id_ = self._desk.identify(draft)
                # One that was forgotten while it was merged must not live on in other words.
                written, at = await self._desk.decide(merged, group, id_, draft)
                made += [_made(id_, draft, at)] if written else []
        return made

    # -- the whole -----------------------------------------------------------------------------

    async def stats(self) -> Stats:
        """The namespace in figures."""
        figures, size = await self._desk.ask(_figures, now())
        head = await self._journal.head()
        return Stats(
            namespace=self.namespace,
            position=head.seq if head else 0,
            size=head.size if head else 0,
            index_size=size,
            **figures,
        )

    async def embed(self, progress: Callable[[int, int], object] | None = None) -> int:
        """Give every memory its vector, with *progress* of how many; how many there were to do.

        A recall does some of it by itself; after a change of model, or of many memories, this does
        all of it.
        """
        return await self._meaning.all(progress)

    async def reindex(self, progress: Callable[[int, int], object] | None = None) -> int:
        """Make the index on this machine anew, with *progress* of entries; how many memories."""
        await self._desk.renew(progress)
        return (await self.stats()).memories


class Memory(SyncWrapper[AsyncMemory]):
    """What is remembered in one namespace, over all tasks.

    >>> import limpet
    >>> with limpet.open("memory:") as store:
    ...     memory = store.memory("acme/support")
    ...     kept = memory.remember("Ada prefers e-mail", tags=["contact"], source="report-42")
    ...     [hit.text for hit in memory.recall("how do we reach Ada by mail?")]
    ['Ada prefers e-mail']
    """

    @property
    def namespace(self) -> str:
        """What the memories are kept under; those of others cannot be seen from here."""
        return self._core.namespace

    remember = sync(AsyncMemory.remember)
    remember_all = sync(AsyncMemory.remember_all)
    learn = sync(AsyncMemory.learn)
    recall = sync(AsyncMemory.recall)
    messages = sync(AsyncMemory.messages)
    related = sync(AsyncMemory.related)
    get = sync(AsyncMemory.get)
    all = sync(AsyncMemory.all)
    history = sync(AsyncMemory.history)
    update = sync(AsyncMemory.update)
    confirm = sync(AsyncMemory.confirm)
    used = sync(AsyncMemory.used)
    contradict = sync(AsyncMemory.contradict)
    forget = sync(AsyncMemory.forget)
    consolidate = sync(AsyncMemory.consolidate)
    stats = sync(AsyncMemory.stats)
    embed = sync(AsyncMemory.embed)
    reindex = sync(AsyncMemory.reindex)


def _itself(_: Index, found: list[Remembered]) -> Remembered:
    return found[0]


def _all(
    index: Index,
    filters: dict[str, Any],
    now: int,
    limit: int | None,
    live: bool,  # noqa: FBT001 - handed on
) -> list[Remembered]:
    return index.all(filters, now, limit, live=live)


def _history(index: Index, of: list[Remembered]) -> list[Remembered]:
    id_ = of[0].id
    older, newer = index.family([id_])
    found = index.get([*older, id_, *newer])
    return sorted(found.values(), key=lambda one: (one.at, one.id in newer, one.id == id_))


def _figures(index: Index, now: int) -> tuple[dict[str, Any], int]:
    return index.figures(now), index.size


def _made(id_: str, draft: Draft, at: int) -> Remembered:
    """A memory that was written *at* that moment."""
    fields = {name: getattr(draft, name) for name in _SAME}
    ends = None if draft.ttl is None else from_micros(at + round(draft.ttl * 1_000_000))
    return Remembered(id=id_, at=from_micros(at), expires_at=ends, **fields)


_SAME = (
    *("text", "kind", "tags", "source", "by", "trust", "context", "key", "valid_from"),
    "supersedes",
)


def _filters(
    kinds: Iterable[str] | None, tags: Iterable[str] | None, since: datetime | None
) -> dict[str, Any]:
    return {
        "kinds": _several(kinds),
        "tags": _several(tags),
        "since": None if since is None else micros(since, "since"),
    }


def _several(names: Iterable[str] | None) -> list[str] | None:
    return None if names is None else [names] if isinstance(names, str) else list(names)


def _whole(number: Any, name: str) -> int:
    """*number*, as one that SQLite takes."""
    if not isinstance(number, int):
        raise TypeError(f"{name} is a whole number, not {type(number).__name__}.")
    return min(number, MOST)
