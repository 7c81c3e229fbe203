"""Forgetting for good: which memories go, what goes with them, and a receipt of it."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from limpet.backends.contract import from_micros
from limpet.core.ids import check_id
from limpet.errors import Conflict, MemoryNotFound
from limpet.memory.changing import present
from limpet.memory.desk import now
from limpet.memory.entries import FORGOTTEN, quoting
from limpet.memory.hits import Receipt
from limpet.memory.index import ONE_OF
from limpet.memory.rewriting import rewrite, scrub
from limpet.memory.subjects import Subject, same_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet.memory.desk import Desk
    from limpet.memory.index import Index

    #: What goes; whose context quotes it; how many vectors that are.
    Going = tuple[list[str], list[str], int]

__all__ = ["forget"]


async def forget(desk: Desk, ids: Sequence[str], chosen: dict[str, Any]) -> Receipt:
    """Forget *ids* and what is *chosen*: first it is said, then done.

    From that word on nobody recalls them; whoever forgets next, be it something that is not there,
    finishes what a crash left undone.
    """
    try:
        (going, contexts, vectors), at = await _said(desk, ids, chosen)
    except MemoryNotFound:
        await _finish(desk)
        raise
    if not going:
        await _finish(desk)
        return Receipt()
    done = await rewrite(desk)
    scrubbed = await scrub(desk)
    return Receipt(
        ids=tuple(going),
        contexts=tuple(contexts),
        journals=(f"{desk.journal.key.kind}/{desk.namespace}",),
        entries=done.entries,
        bytes=done.bytes,
        indexed=len(going),
        vectors=vectors,
        scrubbed=scrubbed,
        at=from_micros(at),
    )


async def _said(desk: Desk, ids: Sequence[str], chosen: dict[str, Any]) -> tuple[Going, int]:
    """What goes, once that is said; and when that was."""
    while True:
        found, position = await desk.place(_going, ids, chosen, now(), desk.namespace)
        going = found[0]
        known: int | None = position
        while going and known is not None:
            with contextlib.suppress(Conflict):
                return found, await desk.write([(FORGOTTEN, {"ids": going})], expect=known)
            known = await _unconcerned(desk, known, frozenset(going))
        if not going:
            return found, 0


async def _unconcerned(desk: Desk, known: int, going: frozenset[str]) -> int | None:
    """How far the journal is by now, if what is new there has nothing to do with *going*.

    To ask anew takes its time, and a busy writer would always be first.
    """
    head = await desk.journal.head()
    if head is None or (head.first - 1) > known:
        return None
    told = await desk.told(known, head.seq)
    # What was made from these meanwhile must not outlast them.
    made = any(one.type == FORGOTTEN or one.body.get("id") in going for one in told)
    return None if made else head.seq


async def _finish(desk: Desk) -> None:
    """Do what somebody has said before, who then came to grief."""
    head = await desk.journal.head()
    if head is not None:
        told = await desk.told((head.first - 1), head.seq)
        if any(one.type == FORGOTTEN for one in told):
            await rewrite(desk)
        await scrub(desk)


def _going(
    index: Index, ids: Sequence[str], chosen: dict[str, Any], at: int, namespace: str
) -> Going:
    """What goes; whose context quotes it; how many vectors that are."""
    present(index, ids, namespace)
    named = list(dict.fromkeys([*ids, *_chosen(index, chosen, at)]))
    older, newer = index.family(named)
    # What was made from these goes with them; what else that was made from stays, and counts again.
    going = list(dict.fromkeys([*named, *older, *newer]))
    gone = index.get(going)
    rows = index.run("SELECT id, context FROM memory WHERE context NOTNULL")
    quoted = quoting({one.text for one in gone.values()}, (context for _, context in rows))
    contexts = [id_ for id_, context in rows if id_ not in gone and context in quoted]
    vectors = f"SELECT count(*) FROM vector JOIN memory USING (n) WHERE id {ONE_OF}"  # noqa: S608
    return going, contexts, index.value(vectors, [json.dumps(going)])


def _chosen(index: Index, chosen: dict[str, Any], at: int) -> list[str]:
    found: list[list[str]] = []
    for name in chosen.keys() - {"expired"}:
        check_id(chosen[name], f"{name} to forget")
    if "source" in chosen:
        found.append(index.ids("m.source = ?", chosen["source"]))
    if "tag" in chosen:
        tagged = "m.n IN (SELECT t.n FROM tag t WHERE t.tag = ?)"
        found.append(index.ids(tagged, chosen["tag"]))
    if "subject" in chosen:
        found.append(_about(index, chosen["subject"]))
    if "expired" in chosen:
        # An older version takes no newer one with it.
        found.append(index.ids("m.expires <= ? AND m.superseded IS NULL", at))
    # Several conditions narrow it down.
    common = set(found[0]).intersection(*found[1:]) if found else set()
    return [id_ for id_ in found[0] if id_ in common] if found else []


def _about(index: Index, subject: str) -> list[str]:
    """Those with *subject* as a tag or in their words: as it is, while recall takes word stems."""
    names = Subject(subject)
    return [
        one.id
        for one in index.get(index.about(subject)).values()
        if any(same_name(tag, subject) for tag in one.tags)
        or names(one.text)
        or names(one.context or "")
    ]
