"""Memory across tasks: what was learned in one is recalled in the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast._faces import Face, blocking
from holdfast.backends.base import from_micros
from holdfast.errors import IdReused, MemoryNotFound
from holdfast.memory.hits import Hit, Receipt, Remembered, Stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from holdfast.checkpoint import Checkpoint
    from holdfast.journal import AsyncJournal
    from holdfast.memory.entries import Draft
    from holdfast.memory.index import Index
    from holdfast.tokens import Counter

__all__ = ["KIND", "AsyncMemory", "Memory"]

KIND = "memory"


class AsyncMemory:
    """What is remembered in one namespace; see `Memory`."""

    def __init__(self, journal: AsyncJournal, *, embed: Any = None, private: bool = False) -> None:
        from holdfast.memory.desk import Desk  # noqa: PLC0415 - most programs remember nothing

        self._journal = journal
        self._desk = Desk(journal, embed=embed, private=private)

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
        from holdfast.memory import entries  # noqa: PLC0415 - as above

        drafts = [entries.Draft.of(item) for item in items]
        if not drafts:
            return []
        named = [(self._desk.identify(draft), draft) for draft in drafts]
        known = await self._known(named) if any(draft.key for draft in drafts) else {}
        new = [(id_, draft) for id_, draft in named if id_ not in known]
        at = 0
        if new:
            bodies = [(entries.REMEMBERED, draft.body(id_)) for id_, draft in new]
            at = await self._desk.write(bodies)
        return [known.get(id_) or _made(id_, draft, at) for id_, draft in named]

    async def _known(self, named: list[tuple[str, Draft]]) -> dict[str, Remembered]:
        """Which of them there are; `IdReused` if a key stands for something else."""
        keys = {draft.key: id_ for id_, draft in named if draft.key}

        def look(index: Index) -> tuple[dict[str, Remembered], dict[str, Remembered | None]]:
            return index.get([id_ for id_, _ in named]), {key: index.keyed(key) for key in keys}

        known, keyed = await self._desk.ask(look)
        for key, found in keyed.items():
            if found is not None and found.id != keys[key]:
                msg = (
                    f"The key {key!r} was used in memory {self.namespace!r} for other words, and "
                    "nothing was written. Give new words a new key, or update() the memory."
                )
                raise IdReused(msg)
        return known

    async def learn(self, checkpoint: Checkpoint) -> list[Remembered]:
        """Remember a task's outcome, decisions and discoveries, with where they come from.

        Of the same task again nothing is doubled; what it had recalled is not new, and stays as it
        was.
        """
        from holdfast.memory.learning import learned  # noqa: PLC0415 - as above

        drafts = [(self._desk.identify(draft), draft) for draft in learned(checkpoint)]
        known = await self._desk.ask(_get, [id_ for id_, _ in drafts])
        fresh = [draft for id_, draft in drafts if id_ not in known]
        made = {one.id: one for one in await self.remember_all(fresh)}
        return list({id_: known.get(id_) or made[id_] for id_, _ in drafts}.values())

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
    ) -> list[Hit]:
        """The *k* memories that fit *query* best, each with why it does.

        Of *kinds*, with all of *tags*, told *since* then, with at least *min_score*. The newest
        version of each, and nothing that has expired. With *confirm* they count as used at once;
        else say which of them helped, with `used`.
        """
        from holdfast.memory.desk import now  # noqa: PLC0415 - as above
        from holdfast.memory.finding import Query, find  # noqa: PLC0415

        if k < 1:
            return []
        vector = await self._desk.vector(query)
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
        from holdfast.memory.fencing import messages  # noqa: PLC0415 - as above

        hits = await self.recall(query, k, kinds=kinds, tags=tags, since=since, min_score=min_score)
        return messages(hits, max_tokens, count)

    async def related(self, id: str, k: int = 5) -> list[Hit]:
        """The *k* memories that have most to do with this one: by names, words, tags and source."""
        from holdfast.memory.desk import now  # noqa: PLC0415 - as above
        from holdfast.memory.relating import related  # noqa: PLC0415

        await self.get(id)
        return await self._desk.ask(related, id, k, now())

    # -- one by one ----------------------------------------------------------------------------

    async def get(self, id: str) -> Remembered:
        """The memory *id*, superseded or not; `MemoryNotFound` if it is not in this namespace."""
        found = (await self._desk.ask(_get, [id])).get(id)
        if found is None:
            msg = (
                f"There is no memory {id!r} in {self.namespace!r}. It was forgotten, or belongs to "
                "another namespace; recall() and all() show which there are."
            )
            raise MemoryNotFound(msg)
        return found

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
        from holdfast.memory.desk import now  # noqa: PLC0415 - as above

        filters = _filters(kinds, tags, since) | {"source": source}
        return await self._desk.ask(_all, filters, now(), limit, not superseded)

    async def history(self, id: str) -> list[Remembered]:
        """The versions of a memory, oldest first: what it replaced, and what replaced it."""
        await self.get(id)
        return await self._desk.ask(_history, id)

    async def update(self, id: str, text: str, because: str | None = None) -> Remembered:
        """Replace what memory *id* says, or its newest version. `history` shows them all."""
        from holdfast.memory import entries  # noqa: PLC0415 - as above

        old = await self.get(id)
        while old.superseded_by is not None:
            old = await self.get(old.superseded_by)
        if " ".join(old.text.split()) == " ".join(text.split()):
            return old
        draft = entries.successor([old], text)
        return await self._supersede([old], draft, because)

    async def _supersede(
        self, old: list[Remembered], draft: Draft, because: str | None
    ) -> Remembered:
        from holdfast.memory import entries  # noqa: PLC0415 - as above

        id_ = self._desk.identify(draft)
        new = [(entries.REMEMBERED, draft.body(id_))]
        new += [(entries.SUPERSEDED, entries.link(one.id, id_, because)) for one in old]
        return _made(id_, draft, await self._desk.write(new))

    async def confirm(self, id: str, *, by: str | None = None) -> Remembered:
        """Note that it is so; that counts as a use."""
        await self._note("confirmed", [id], by)
        return await self.get(id)

    async def used(self, *ids: str) -> None:
        """Note that these helped: what is of use comes to mind more easily."""
        if ids:
            await self._note("used", list(dict.fromkeys(ids)))

    async def _note(self, what: str, ids: list[str], by: str | None = None) -> None:
        for id_ in ids:
            await self.get(id_)
        await self._desk.write([(what, {"ids": ids} | ({"by": by} if by else {}))])

    async def contradict(self, id: str, by: str, *, because: str | None = None) -> Remembered:
        """Note that memory *id* is disputed, *by* another memory's id, or by a text to remember.

        Both stay, and recall shows it. If it is known which of them is right, `update` it.
        """
        from holdfast.memory import entries  # noqa: PLC0415 - as above

        old = await self.get(id)
        if entries.is_id(by):
            other = (await self.get(by)).id
        else:
            said = await self.remember(by, kind=old.kind, tags=old.tags, context=old.context)
            other = said.id
        await self._desk.write([(entries.CONTRADICTED, entries.link(id, other, because))])
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
        from holdfast.memory.forgetting import forget  # noqa: PLC0415 - as above

        for id_ in ids:
            await self.get(id_)
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
        from holdfast.memory import entries  # noqa: PLC0415 - as above
        from holdfast.memory.desk import now  # noqa: PLC0415
        from holdfast.memory.relating import groups  # noqa: PLC0415

        made = []
        for group in await self._desk.ask(groups, _filters(kinds, None, None), alike, now()):
            text = await self._desk.user(merge, group)
            if text is not None:
                draft = entries.successor(group, text)
                made.append(await self._supersede(group, draft, "consolidated"))
        return made

    # -- the whole -----------------------------------------------------------------------------

    async def stats(self) -> Stats:
        """The namespace in figures."""
        from holdfast.memory.desk import now  # noqa: PLC0415 - as above

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
        return await self._desk.embed(None, progress)

    async def reindex(self, progress: Callable[[int, int], object] | None = None) -> int:
        """Make the index on this machine anew, with *progress* of entries; how many memories."""
        await self._desk.renew(progress)
        return (await self.stats()).memories


class Memory(Face[AsyncMemory]):
    """What is remembered in one namespace, over all tasks.

    >>> import holdfast
    >>> with holdfast.open("memory:") as store:
    ...     memory = store.memory("acme/support")
    ...     kept = memory.remember("Ada prefers e-mail", tags=["contact"], source="report-42")
    ...     [hit.text for hit in memory.recall("how do we reach Ada by mail?")]
    ['Ada prefers e-mail']
    """

    @property
    def namespace(self) -> str:
        """What the memories are kept under; those of others cannot be seen from here."""
        return self._core.namespace

    remember = blocking(AsyncMemory.remember)
    remember_all = blocking(AsyncMemory.remember_all)
    learn = blocking(AsyncMemory.learn)
    recall = blocking(AsyncMemory.recall)
    messages = blocking(AsyncMemory.messages)
    related = blocking(AsyncMemory.related)
    get = blocking(AsyncMemory.get)
    all = blocking(AsyncMemory.all)
    history = blocking(AsyncMemory.history)
    update = blocking(AsyncMemory.update)
    confirm = blocking(AsyncMemory.confirm)
    used = blocking(AsyncMemory.used)
    contradict = blocking(AsyncMemory.contradict)
    forget = blocking(AsyncMemory.forget)
    consolidate = blocking(AsyncMemory.consolidate)
    stats = blocking(AsyncMemory.stats)
    embed = blocking(AsyncMemory.embed)
    reindex = blocking(AsyncMemory.reindex)


def _get(index: Index, ids: list[str]) -> dict[str, Remembered]:
    return index.get(ids)


def _all(
    index: Index,
    filters: dict[str, Any],
    now: int,
    limit: int | None,
    live: bool,  # noqa: FBT001 - handed on
) -> list[Remembered]:
    return index.all(filters, now, limit, live=live)


def _history(index: Index, id_: str) -> list[Remembered]:
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
    if since is not None and since.tzinfo is None:
        raise ValueError("since needs a time zone: datetime.now(UTC) - timedelta(days=7), say.")
    return {
        "kinds": _several(kinds),
        "tags": _several(tags),
        "since": None if since is None else round(since.timestamp() * 1_000_000),
    }


def _several(names: Iterable[str] | None) -> list[str] | None:
    return None if names is None else [names] if isinstance(names, str) else list(names)
