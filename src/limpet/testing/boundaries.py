"""The write boundaries of a program: counted, so that it can be killed at each of them.

A boundary is the moment before a backend writes, and the moment after it has written and before
anybody knows. A process that dies at every one of them in turn has died in every way that matters::

    boundaries = Boundaries(store.backend)  # counts
    boundaries = Boundaries(store.backend, kill_at=7)  # and ends the process, by SIGKILL
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from limpet.backends.contract import Append, Key
from limpet.core.codec import Codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.backends.contract import Backend

__all__ = ["Boundaries"]

#: What a backend changes something by. Renewals are left out: they come when they come.
WRITES = ("append", "append_all", "acquire", "release", "delete", "compact", "rewrite", "scrub")


class Boundaries:
    """The moments before and after each write of *backend*, as they are passed.

    ``passed`` names them. At number *kill_at* (1, 2, …) the process kills itself. A write within a
    write counts once: as the outer one.
    """

    def __init__(self, backend: Backend, kill_at: int | None = None) -> None:
        self.passed: list[str] = []
        self._kill_at = kill_at
        self._lock = threading.Lock()
        self._inside = threading.local()
        for name in WRITES:
            setattr(backend, name, self._watched(getattr(backend, name), name))
        if backend.append_async is not None:
            backend.append_async = self._awaited(backend.append_async)
        backend.transaction = self._around(backend.transaction)  # type: ignore[method-assign]

    def _watched(self, write: Callable[..., Any], name: str) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "operation", None) is not None:
                return write(*args, **kwargs)
            self._inside.operation = name
            try:
                self._pass(f"before {self._what(name, args)}")
                done = write(*args, **kwargs)
                self._pass(f"after {self._what(name, args)}")
                return done
            finally:
                self._inside.operation = None

        return watched

    def _around(self, transaction: Callable[[], Any]) -> Callable[[], Any]:
        @contextmanager
        def watched() -> Iterator[Any]:
            self._pass("before transact")
            with transaction() as opened:
                yield opened
            self._pass("after transact")

        return watched

    def _awaited(self, write: Callable[..., Any]) -> Callable[..., Any]:
        async def watched(*args: Any) -> Any:
            self._pass(f"before {self._what('append', args)}")
            done = await write(*args)
            self._pass(f"after {self._what('append', args)}")
            return done

        return watched

    @staticmethod
    def _what(name: str, args: tuple[Any, ...]) -> str:
        """The write in words: what it is about, and of what type its entries are."""
        request = args[0] if args else None
        if isinstance(request, list):
            return " ".join([name, " + ".join(map(_said, request))])
        if isinstance(request, Append):
            return f"{name} {_said(request)}"
        return f"{name} {request.kind}" if isinstance(request, Key) else name

    def _pass(self, moment: str) -> None:
        with self._lock:
            self.passed.append(moment)
            if len(self.passed) == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def _said(request: Append) -> str:
    types = [kind for kind, _ in Codec().decode(request.body)] if request.count else []
    return " ".join([request.key.kind, *dict.fromkeys(types)])
