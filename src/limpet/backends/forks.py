"""What must come to rest before a process forks, and start anew in the child.

A connection, a lock or a thread must not be in two processes. Whoever holds one registers here.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

__all__ = ["Forked", "register"]


class Forked(Protocol):
    """What is told of forks."""

    @property
    def closed(self) -> bool:
        """Whether it is of no use any more, and need not be told."""

    def before_fork(self) -> None:
        """Come to rest: hold what must not be forked in the middle of something."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """The parent's threads do not exist here, and its connections are its own: start anew."""


_registered: weakref.WeakSet[Forked] = weakref.WeakSet()
_forking: list[Forked] = []

#: Held for the length of a fork: another thread's would undo what this one has prepared.
_fork = threading.Lock()


def register(one: Forked) -> None:
    """Tell *one* of every fork from now on, for as long as it exists."""
    _registered.add(one)


def _before() -> None:
    _fork.acquire()
    _forking[:] = [one for one in _registered if not one.closed]
    for one in _forking:
        one.before_fork()


def _after_in_parent() -> None:
    try:
        while _forking:
            _forking.pop().after_fork_in_parent()
    finally:
        _fork.release()


def _after_in_child() -> None:
    try:
        while _forking:
            _forking.pop().after_fork_in_child()
    finally:
        _fork.release()  # it was this very thread that took it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before,
        after_in_parent=_after_in_parent,
        after_in_child=_after_in_child,
    )
