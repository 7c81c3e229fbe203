"""Which entries a change of the memory is written as, given what is there.

Each function here is a question for `IndexedJournal.decide`: it returns what it found, and the
entries to write. If another writer comes first, it is asked again.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs

from limpet.core.recalled import OF_TASKS
from limpet.errors import IdReused
from limpet.memory.entries import (
    CONTRADICTED,
    REMEMBERED,
    SUPERSEDED,
    Draft,
    is_id,
    link,
    memory_id,
)
from limpet.memory.results import Remembered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from limpet.backends.contract import Key
    from limpet.core.checkpoint import Checkpoint
    from limpet.memory.index import Index

    Entries = list[tuple[str, Any]]

__all__ = [
    "LearnedTask",
    "contradict",
    "learn",
    "lessons",
    "merge",
    "remember_keyed",
    "successor",
    "update",
]

#: Characters of an outcome, and of the goal that is its context: enough to find and to use it.
LONGEST, CONTEXT = 8_000, 300

#: Memories of a task that are written at once: as many as any store takes, however long each is.
PORTION = 100

#: Why an outcome gives way to another.
REPLACED = "the task went back, and came to another outcome"

OUTCOME, DECISION, DISCOVERY = OF_TASKS


def remember_keyed(
    index: Index, key: Key, named: list[tuple[str, Draft]], now: datetime
) -> tuple[dict[str, Remembered], Entries]:
    """Drafts by their ids, some with a key of the caller's; finds those that are there already.

    `IdReused` if a key stands for other words.
    """
    keys: dict[str, str] = {}
    for id_, draft in named:
        if draft.key:
            found = index.with_key(draft.key)
            if keys.setdefault(draft.key, id_ if found is None else found.id) != id_:
                msg = (
                    f"The key {draft.key!r} was used in memory {key.id!r} for other words, and "
                    "nothing was written. Give new words a new key, or update() the memory."
                )
                raise IdReused(msg)
    known = _unexpired(index, [id_ for id_, _ in named], now)
    new = [
        (REMEMBERED, draft.body(id_))
        for id_, draft in named
        if id_ not in known or (draft.key and known[id_].key is None)
    ]
    return known, new


def _unexpired(index: Index, ids: Iterable[str], now: datetime) -> dict[str, Remembered]:
    found = index.get(ids).items()
    return {id_: one for id_, one in found if one.expires_at is None or one.expires_at > now}


def update(
    index: Index, key: Key, id_: str, text: str, *, because: str | None, changes: dict[str, Any]
) -> tuple[tuple[str, Draft] | Remembered, Entries]:
    """A newer version with this *text* and *changes*; or the memory, if it says that already."""
    (old,) = index.existing([id_], key)
    while old.superseded_by is not None:
        (old,) = index.existing([old.superseded_by], key)
    draft = structs.replace(successor([old], text), **changes)
    if old.text.split() == text.split():
        return old, []
    new = memory_id(key, draft)
    return (new, draft), _replacing([old], new, draft, because)


def merge(
    index: Index, group: Sequence[Remembered], id_: str, draft: Draft
) -> tuple[bool, Entries]:
    """A *draft* made from a *group* takes its place; not if one of them no longer counts.

    While it was made, one of them may have been forgotten, and must not live on in other words.
    """
    found = index.get([one.id for one in group])
    if sum(one.superseded_by is None for one in found.values()) < len(group):
        return False, []
    return True, _replacing(group, id_, draft, "consolidated")


def successor(old: Sequence[Remembered], text: str) -> Draft:
    """A draft that says *text* in the place of *old* memories, with what they have in common."""
    first = old[0]
    same = {
        name: value
        for name in ("source", "by", "trust", "context")
        if len({getattr(one, name) for one in old}) == 1
        and (value := getattr(first, name)) is not None
    }
    # It must not outlive the one that ends first, nor count before the last of them does.
    lives = [one.expires_at - one.at for one in old if one.expires_at is not None]
    begins = [one.valid_from for one in old if one.valid_from is not None]
    later = [begin for begin in begins if begin > datetime.now(UTC)]
    return Draft(
        text=text,
        kind=first.kind,
        tags=tuple(dict.fromkeys(tag for one in old for tag in one.tags)),
        valid_from=max(later, default=None),
        ttl=min(lives).total_seconds() if lives else None,
        supersedes=tuple(one.id for one in old),
        **same,
    )


def _replacing(old: Iterable[Remembered], id_: str, draft: Draft, because: str | None) -> Entries:
    """*draft*, and that it takes the place of *old* memories."""
    links = [(SUPERSEDED, link(one.id, id_, because)) for one in old]
    return [(REMEMBERED, draft.body(id_)), *links]


def contradict(
    index: Index, key: Key, id_: str, other: str, *, because: str | None
) -> tuple[None, Entries]:
    """That a memory is disputed by an *other*: its id, or a text, which is then remembered."""
    (old,) = index.existing([id_], key)
    new: Entries = []
    if is_id(other):
        index.existing([other], key)
    else:
        draft = Draft(text=other, kind=old.kind, tags=old.tags, context=old.context)
        other = memory_id(key, draft)
        new = [(REMEMBERED, draft.body(other))]
    if other == id_:
        raise ValueError("A memory cannot dispute itself: give another, or other words.")
    return None, [*new, (CONTRADICTED, link(id_, other, because))]


# -- what a task has learned -----------------------------------------------------------------------


class LearnedTask(Struct, frozen=True):
    """What a task has learned, by id: the drafts, those known already, and those written now."""

    drafts: dict[str, Draft]
    known: dict[str, Remembered]
    new: list[str]
    more: bool  # some are still to be written


def learn(
    index: Index,
    key: Key,
    checkpoint: Checkpoint,
    now: datetime,
    most: int | None = PORTION,
    *,
    redacted: Callable[[Draft], Draft],
) -> tuple[LearnedTask, Entries]:
    """What a task has learned, to be written up to *most* at once.

    An outcome takes the place of the one that the same task had before.
    """
    drafts: dict[str, Draft] = {}
    for lesson in map(redacted, lessons(checkpoint)):
        before = _versions(index, lesson.key) if lesson.key else []
        draft = lesson
        if before:
            draft = structs.replace(lesson, key=None, supersedes=(before[-1].id,))
        same = [one.id for one in before if one.text.split() == draft.text.split()]
        drafts.setdefault(same[0] if same else memory_id(key, draft), draft)
    known = _unexpired(index, drafts, now)
    missing = [id_ for id_ in drafts if id_ not in known]
    new = missing[:most]
    entries: Entries = []
    for id_ in new:
        old = index.get(drafts[id_].supersedes).values() if drafts[id_].supersedes else ()
        entries += _replacing(old, id_, drafts[id_], REPLACED)
    return LearnedTask(drafts, known, new, more=len(missing) > len(new)), entries


def lessons(checkpoint: Checkpoint) -> Iterator[Draft]:
    """Outcome, decisions and discoveries of a task, in the words in which they were recorded."""
    goal = _cut(checkpoint.goal, CONTEXT)
    where: dict[str, Any] = {"source": checkpoint.task_id, "by": checkpoint.agent_id}
    if checkpoint.outcome not in (None, ""):
        # Known by more than the task's id: a task that begins again under it is another one, and so
        # is one of that id in another store.
        parts = (checkpoint.task_id, checkpoint.goal, checkpoint.created_at.isoformat())
        digest = hashlib.blake2b(msgspec.json.encode(parts), digest_size=12).hexdigest()
        text = f"{goal}: {_cut(_text(checkpoint.outcome), LONGEST)}"
        yield Draft(text=text, kind=OUTCOME, key=f"{OUTCOME}-{digest}", **where)
    for kind, found in (
        (DECISION, [made.sentence for made in checkpoint.decisions]),
        (DISCOVERY, [_text(discovery) for discovery in checkpoint.discoveries]),
    ):
        for text in (_cut(one, LONGEST) for one in found):
            if text.strip():
                yield Draft(text=text, kind=kind, context=goal, **where)


def _versions(index: Index, key: str) -> list[Remembered]:
    """The memory with that *key*, and what has replaced it since."""
    found: list[Remembered] = []
    one = index.with_key(key)
    while one is not None:
        found.append(one)
        newer = one.superseded_by
        one = None if newer is None else index.get([newer]).get(newer)
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
