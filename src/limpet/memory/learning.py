"""What a finished task leaves to those after it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs

from limpet.memory.changing import replacing
from limpet.memory.entries import Draft
from limpet.memory.hits import Remembered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from limpet.core.checkpoint import Checkpoint
    from limpet.memory.index import Index

__all__ = ["Lessons", "learned", "lessons"]

#: Characters of an outcome, and of the goal that is its context: enough to find and to use it.
LONGEST, CONTEXT = 8_000, 300

#: Memories that are written at once: as many as any store takes, however long each is.
PORTION = 100

#: Why an outcome gives way to another.
REPLACED = "the task went back, and came to another outcome"

OUTCOME, DECISION, DISCOVERY = "outcome", "decision", "discovery"


def learned(checkpoint: Checkpoint) -> Iterator[Draft]:
    """Outcome, decisions and discoveries of a task, in the words in which they were stored."""
    goal = _cut(checkpoint.goal, CONTEXT)
    where: dict[str, Any] = {"source": checkpoint.task_id, "by": checkpoint.agent_id}
    if checkpoint.outcome not in (None, ""):
        text = f"{goal}: {_cut(_text(checkpoint.outcome), LONGEST)}"
        yield Draft(text=text, kind=OUTCOME, key=_key(checkpoint), **where)
    for made in checkpoint.decisions:
        text = _cut(made.sentence, LONGEST)
        if text.strip():
            yield Draft(text=text, kind=DECISION, context=goal, **where)
    for found in checkpoint.discoveries:
        text = _cut(_text(found), LONGEST)
        if text.strip():
            yield Draft(text=text, kind=DISCOVERY, context=goal, **where)


class Lessons(Struct, frozen=True):
    """What a task leaves, by id and each once: known already, written now, or to be written yet."""

    drafts: dict[str, Draft]
    known: dict[str, Remembered]
    new: list[str]
    more: bool


def lessons(
    index: Index,
    checkpoint: Checkpoint,
    identify: Callable[[Draft], str],
    now: datetime,
    most: int | None = PORTION,
) -> tuple[Lessons, list[tuple[str, Any]]]:
    """What a task leaves, and what of it is to be written now: *most* of it, or all.

    An outcome that is not the one which this task had before takes that one's place.
    """
    drafts: dict[str, Draft] = {}
    for draft in learned(checkpoint):
        id_, placed = _placed(index, draft, identify)
        drafts.setdefault(id_, placed)
    known = {
        id_: one
        for id_, one in index.get(drafts).items()
        if one.expires_at is None or one.expires_at > now
    }
    fresh = [id_ for id_ in drafts if id_ not in known]
    some = fresh[:most]
    left = Lessons(drafts, known, some, more=len(fresh) > len(some))
    return left, [entry for id_ in some for entry in _written(index, id_, drafts[id_])]


def _placed(index: Index, draft: Draft, identify: Callable[[Draft], str]) -> tuple[str, Draft]:
    """*draft* by its id: that of a version which says the same, or of one more version."""
    before = _versions(index, draft.key) if draft.key else []
    if before:
        draft = structs.replace(draft, key=None, supersedes=(before[-1].id,))
    same = (one.id for one in before if one.text.split() == draft.text.split())
    return next(same, None) or identify(draft), draft


def _written(index: Index, id_: str, draft: Draft) -> list[tuple[str, Any]]:
    old = index.get(draft.supersedes) if draft.supersedes else {}
    return replacing(list(old.values()), id_, draft, REPLACED)


def _versions(index: Index, key: str) -> list[Remembered]:
    """The memory of that *key*, and what has replaced it since."""
    found: list[Remembered] = []
    one = index.keyed(key)
    while one is not None:
        found.append(one)
        newer = one.superseded_by
        one = None if newer is None else index.get([newer]).get(newer)
    return found


def _key(checkpoint: Checkpoint) -> str:
    """What the outcome of a task is known by, whatever it is.

    Not by the task's id alone: one that begins anew under it is another, and so is one in another
    store.
    """
    parts = (checkpoint.task_id, checkpoint.goal, checkpoint.created_at.isoformat())
    digest = hashlib.blake2b(msgspec.json.encode(parts), digest_size=12)
    return f"{OUTCOME}-{digest.hexdigest()}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
