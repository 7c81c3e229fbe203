"""Which index belongs to which namespace: one each in a process, kept open for the next time."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from limpet.core.text_index import MEMORY, own_file
from limpet.memory.index import Index

if TYPE_CHECKING:
    from limpet.backends.contract import Backend

__all__ = ["index_of"]

#: Indexes a store keeps open; more are opened again when they are asked for.
OPEN = 32

_OPEN: weakref.WeakKeyDictionary[Backend, dict[tuple[str, str, str], Index]]
_OPEN = weakref.WeakKeyDictionary()
#: Those that are in use though no longer kept open, too.
_EVERY: weakref.WeakSet[Index] = weakref.WeakSet()
_GUARD = threading.Lock()


def index_of(backend: Backend, tenant: str, namespace: str, *, private: bool = False) -> Index:
    """The index of a *namespace*; *private*: nothing of it may be written anywhere."""
    path = None if private else own_file(backend, "memory", tenant, namespace)
    name = (tenant, namespace, path or MEMORY)
    with _GUARD:
        indexes = _OPEN.setdefault(backend, {})
        index = indexes.pop(name, None) or Index(path or MEMORY)
        indexes[name] = index  # the last to go
        _EVERY.add(index)
        while len(indexes) > OPEN:
            del indexes[next(iter(indexes))]  # closed when the last who uses it is done
    return index


_resting: list[Index] = []


def _before_fork() -> None:
    """No connection may be in two processes."""
    _GUARD.acquire()
    _resting[:] = _EVERY
    for index in _resting:
        index.lock.acquire()
        index.let_go()


def _after_fork() -> None:
    while _resting:
        _resting.pop().lock.release()
    _GUARD.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )
