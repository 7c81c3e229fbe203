"""Full text over journals of several kinds: brings the index up to them, then asks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from limpet.backends.contract import to_micros
from limpet.core.ids import make_key
from limpet.core.index_files import is_private
from limpet.core.text_index import Known, Read, index_of
from limpet.errors import StoreCorrupt, Unreadable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from limpet.backends.contract import Head, Key
    from limpet.core.journal import AsyncJournal, Entry
    from limpet.core.scope import Scope
    from limpet.core.text_index import Document, Hit, TextIndex
    from limpet.errors import LimpetError, StoreError

    #: The texts of a journal: what came since it was known like that, and that; or all, and None.
    News = Callable[
        [AsyncJournal, Head, Known | None], Awaitable[tuple[Known | None, list[Document]]]
    ]
    #: Those hits, all of one journal, whose texts still count.
    Current = Callable[[AsyncJournal, list[Hit]], Awaitable[list[Hit]]]
    #: Journals that cannot be read, and why.
    Damaged = list[tuple[Key, LimpetError]]

__all__ = ["Damaged", "Source", "new_entries", "search", "words_in"]

#: How often what another process does at the same time may come between.
TRIES = 20
#: What is taken into the index in one commit, at most: journals, and characters of their texts.
JOURNALS, CHARACTERS = 500, 1_000_000
#: How many times as many are looked for, when too few of those that were found still count.
WIDER = 4


class Source(NamedTuple):
    """Journals of one kind, and what reads their texts.

    *current*: which of them count now, where a text can cease to do so without a new entry.
    """

    kind: str
    news: News
    current: Current | None = None


async def search(
    scope: Scope,
    query: str,
    sources: Sequence[Source],
    *,
    k: int = 10,
    prefix: str = "",
    labels: Mapping[str, str] | None = None,
    damaged: Damaged | None = None,
) -> list[Hit]:
    """The *k* texts that fit *query* best, in the journals of one tenant.

    The index is first brought to where the journals are, so that it finds what was said until now,
    and nothing of what was deleted or has expired. Journals that cannot be read are added to
    *damaged*, and nothing of them is found; without that, the error is raised.
    """
    call = scope.runtime.call
    private = is_private(scope.backend, scope.store.codec)
    index = await call(index_of, scope.backend, private=private)
    try:
        among: dict[str, set[str]] = {}
        for source in sources:
            heads = await _catch_up(scope, index, source, damaged)
            among[source.kind] = {
                head.key.id
                for head in heads
                if head.key.id.startswith(prefix) and (labels or {}).items() <= head.labels.items()
            }
        checks = {one.kind: one.current for one in sources if one.current is not None}
        wanted = k
        while True:
            found = await call(index.find, query, scope.tenant, k=wanted, among=among)
            current = await _current(scope, found, checks)
            if len(current) >= k or len(found) < wanted:
                return current[:k]
            wanted *= WIDER
    finally:
        await call(index.let_go)


async def _current(scope: Scope, found: list[Hit], checks: dict[str, Current]) -> list[Hit]:
    """Those of *found* that count now, in the same order."""
    journals: dict[tuple[str, str], list[Hit]] = {}
    for hit in found:
        if hit.kind in checks:
            journals.setdefault((hit.kind, hit.id), []).append(hit)
    current = {
        (kind, id_, hit.position)
        for (kind, id_), hits in journals.items()
        for hit in await checks[kind](scope.journal(kind, id_), hits)
    }
    return [
        hit
        for hit in found
        if hit.kind not in checks or (hit.kind, hit.id, hit.position) in current
    ]


async def _catch_up(
    scope: Scope, index: TextIndex, source: Source, damaged: Damaged | None
) -> list[Head]:
    """Bring *index* to where the journals of a *source* are; those, but for damaged ones."""
    call, tenant, kind = scope.runtime.call, scope.tenant, source.kind
    heads: list[Head] = []
    unreadable: dict[str, LimpetError] = {}
    for _ in range(TRIES):
        known = await call(index.known, tenant, kind)
        unlisted: list[tuple[Key, StoreError]] = []
        # After the index: what others take in meanwhile must not look like another journal.
        heads = await call(list, scope.backend.heads(tenant, kind, damaged=unlisted))
        unreadable |= {key.id: error for key, error in unlisted}
        gone = known.keys() - {head.key.id for head in heads}
        if gone:
            await call(index.forget, tenant, kind, gone)
        seen = [(head, known.get(head.key.id)) for head in heads]
        new = [(head, before) for head, before in seen if before != Known.of(head)]
        damage = unreadable if damaged is not None else None
        if await _take_in(scope, index, source, new, damage):
            break
    if damaged is not None:
        damaged += [
            (make_key(tenant, kind, id_), error) for id_, error in sorted(unreadable.items())
        ]
    return [head for head in heads if head.key.id not in unreadable]


async def _take_in(
    scope: Scope,
    index: TextIndex,
    source: Source,
    new: Sequence[tuple[Head, Known | None]],
    damaged: dict[str, LimpetError] | None,
) -> bool:
    """Take what is *new* in journals, since they were known, into *index*: several at a time.

    False if another process came between, which may have taken in less than there is.
    """
    undisturbed = True
    reads: list[Read] = []
    size = 0  # of their texts
    for head, before in new:
        journal = scope.journal(source.kind, head.key.id)
        try:
            base, documents = await source.news(journal, head, before)
        except (Unreadable, StoreCorrupt) as error:
            if damaged is None:
                raise
            damaged[head.key.id] = error
            continue
        reads.append(Read(head.key, base, Known.of(head), documents))
        size += sum(len(one.text) for one in documents)
        if len(reads) == JOURNALS or size >= CHARACTERS:
            undisturbed = await scope.runtime.call(index.add, reads) and undisturbed
            reads, size = [], 0
    if reads:
        undisturbed = await scope.runtime.call(index.add, reads) and undisturbed
    return undisturbed


# -- for those who read texts ----------------------------------------------------------------------


async def new_entries(
    journal: AsyncJournal, head: Head, before: Known | None
) -> list[Entry] | None:
    """The entries since the journal was known as *before*; None if it is not that any more."""
    if before is None or not before.within(Known.of(head)):
        return None
    entries = await journal.read(after=before.seen - 1, upto=head.seq)
    known, new = entries[:1], entries[1:]
    return new if all(before.has(to_micros(entry.at)) for entry in known) else None


def words_in(value: Any, *, leaving: Collection[str] = ()) -> str:
    """All words in *value*: texts and numbers, and the keys before them; none under *leaving*.

    >>> words_in({"invoice": 17, "to": ["Ada", None]})
    'invoice 17 to Ada'
    """
    found: list[str] = []
    ahead = [value]  # and no recursion: JSON may be nested deeper than Python goes
    while ahead:
        one = ahead.pop()
        if isinstance(one, Mapping):
            pairs = [(key, inner) for key, inner in one.items() if key not in leaving]
            ahead += [part for pair in reversed(pairs) for part in reversed(pair)]
        elif isinstance(one, (list, tuple)):
            ahead += reversed(one)
        elif one is not None and one != "" and not isinstance(one, bool):
            found.append(str(one))
    return " ".join(found)
