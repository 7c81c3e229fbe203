"""What can be read of a damaged store, in a new one.

    with limpet.open("rescued.db") as new:
        for journal in salvage("agents.db", new):
            print(journal.key, journal.lost)

Numbers that were given out stay so: where entries are lost, the new store has others of the type
"limpet.lost", which every model passes over. A task that has lost some is paused.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING

from limpet.backends.url import find, safe_url
from limpet.conversations import conversation
from limpet.conversations.transcript import ConversationMeta
from limpet.crypto.opening import check_plain
from limpet.crypto.sealed import Sealed
from limpet.errors import Conflict, StoreExists, TaskFinished, Unreadable
from limpet.tasks import task
from limpet.transfer.copy import copy

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from limpet.backends.contract import Backend
    from limpet.store import Store
    from limpet.transfer.copy import Copied

__all__ = ["pause", "recount", "salvage"]


def salvage(source: str | os.PathLike[str], target: Store) -> Iterator[Copied]:
    """Copy what can be read of *source* to *target*, and say what became of each journal.

    *source* is only read, and need not be one that can be opened. If it is encrypted, *target* is
    to be opened with its keys, and is encrypted too. `StoreExists` if there is anything in
    *target*.
    """
    if target.backend.kinds():
        url = target.backend.url
        raise StoreExists(
            f"There is something in {url} already, and it was left alone. Name another."
        )
    kind, url = find(source)
    with closing(kind.from_damaged(url)) as old:
        old.url = safe_url(url)
        for journal in copy(_as_encrypted(old, target), target.backend, salvage=True):
            if journal.ok and journal.lost:
                store = target.as_tenant(journal.key.tenant)
                if journal.key.kind == conversation.KIND:
                    recount(store, journal.key.id)
                elif journal.key.kind == task.KIND:
                    pause(store, journal.key.id, journal.lost)
            yield journal


def _as_encrypted(old: Backend, target: Store) -> Backend:
    """What is damaged, with the keys of *target*: it was encrypted under them, or not at all."""
    if isinstance(target.backend, Sealed):
        return Sealed(old, target.backend.keys, damaged=True)
    check_plain(old)
    return old


def pause(store: Store, id_: str, lost: Sequence[tuple[int, int]]) -> None:
    """Let nobody work on a task before a person has looked at it.

    The result of a step may be among the entries that are *lost*, and the step would run again.
    """
    runs = ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in lost)
    with suppress(TaskFinished):  # nobody works on that
        store.pause(
            id_,
            because=f"Entries {runs} are lost: a step that was done may run again.",
        )


def recount(store: Store, id_: str) -> None:
    """Let the head of a conversation say how many messages are left."""
    journal = store.journal(conversation.KIND, id_)
    head = journal.head()
    if head is None:
        return
    left = len(store.conversation(id_).messages())
    # If somebody writes to it meanwhile, or its meta cannot be read, it stays as it is: its length
    # may be wrong, and `limpet doctor` reports the meta.
    with suppress(Conflict, Unreadable):
        meta = ConversationMeta.of(head).with_length(head.seq, left)
        journal.append(expect=head.expect, meta=meta.encode())
