"""What a change is written as, given what there is: questions for `Desk.decide`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from limpet.errors import IdReused, MemoryNotFound
from limpet.memory import entries
from limpet.memory.entries import Draft, link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet.memory.desk import Desk
    from limpet.memory.hits import Remembered
    from limpet.memory.index import Index

    Entries = list[tuple[str, Any]]

__all__ = ["contradiction", "keyed", "merged", "present", "replacing", "update"]


def present(index: Index, ids: Sequence[str], namespace: str) -> list[Remembered]:
    """The memories of these *ids*, superseded or not; `MemoryNotFound` if one is not there."""
    for id_ in ids:
        given: Any = id_
        if not isinstance(given, str):
            raise TypeError(f"The id of a memory is text, not {type(given).__name__}: hit.id.")
    found = index.get(ids)
    for id_ in ids:
        if id_ not in found:
            msg = (
                f"There is no memory {id_!r:.80} in {namespace!r}. It was forgotten, or belongs to "
                "another namespace; recall() and all() show which there are."
            )
            raise MemoryNotFound(msg)
    return [found[id_] for id_ in ids]


def keyed(
    index: Index, named: list[tuple[str, Draft]], namespace: str, now: Any
) -> tuple[dict[str, Remembered], Entries]:
    """Those that are there, so that only the others are written; `IdReused` for another's key."""
    keys: dict[str, str] = {}
    for id_, draft in named:
        if draft.key:
            found = index.keyed(draft.key)
            if keys.setdefault(draft.key, id_ if found is None else found.id) != id_:
                msg = (
                    f"The key {draft.key!r} was used in memory {namespace!r} for other words, and "
                    "nothing was written. Give new words a new key, or update() the memory."
                )
                raise IdReused(msg)
    known = {
        id_: one
        for id_, one in index.get([id_ for id_, _ in named]).items()
        if one.expires_at is None or one.expires_at > now
    }
    new = [
        (entries.REMEMBERED, draft.body(id_))
        for id_, draft in named
        if id_ not in known or (draft.key and known[id_].key is None)
    ]
    return known, new


def update(
    index: Index, desk: Desk, id_: str, text: str, *, because: str | None, said: dict[str, Any]
) -> tuple[tuple[str, Draft] | Remembered, Entries]:
    """A newer version of a memory, told as is *said*; if it says that already, the memory."""
    (old,) = present(index, [id_], desk.namespace)
    while old.superseded_by is not None:
        (old,) = present(index, [old.superseded_by], desk.namespace)
    draft = structs.replace(entries.successor([old], text), **said)
    if old.text.split() == text.split():
        return old, []
    made = desk.identify(draft)
    return (made, draft), replacing([old], made, draft, because)


def replacing(old: Sequence[Remembered], id_: str, draft: Draft, because: str | None) -> Entries:
    """That *draft* takes the place of *old* memories."""
    links = [(entries.SUPERSEDED, link(one.id, id_, because)) for one in old]
    return [(entries.REMEMBERED, draft.body(id_)), *links]


def merged(
    index: Index, group: Sequence[Remembered], id_: str, draft: Draft
) -> tuple[bool, Entries]:
    """A text made from a *group*, if all of it still counts: one that was forgotten must not."""
    found = index.get([one.id for one in group])
    counts = [one for one in found.values() if one.superseded_by is None]
    if len(counts) < len(group):
        return False, []
    return True, replacing(group, id_, draft, "consolidated")


def contradiction(
    index: Index, desk: Desk, id_: str, by: str, *, because: str | None
) -> tuple[None, Entries]:
    """That a memory is disputed: *by* another one, or by a text, which is remembered with it."""
    (old,) = present(index, [id_], desk.namespace)
    new: Entries = []
    if entries.is_id(by):
        present(index, [by], desk.namespace)
    else:
        draft = Draft(text=by, kind=old.kind, tags=old.tags, context=old.context)
        by = desk.identify(draft)
        new = [(entries.REMEMBERED, draft.body(by))]
    if by == id_:
        raise ValueError("A memory cannot dispute itself: give another, or other words.")
    return None, [*new, (entries.CONTRADICTED, link(id_, by, because))]
