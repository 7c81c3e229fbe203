"""One run of a thread at a time: while it is under way it holds the lease on the thread's journal.

LangGraph tells a checkpointer when a run begins, by asking for the newest checkpoint with the
config of a run, and tells callbacks when it has ended, however that was: normally, by an interrupt
or an error, with its stream closed, or cancelled. The two are brought together here. All that
belongs to one run has the same `RunControl` in its config, the subgraphs too.
"""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

from limpet.backends.decide import holder_for_people
from limpet.core.runtime import run_to_end
from limpet.errors import LeaseHeld, LeaseLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from types import TracebackType
    from uuid import UUID

    from limpet.core.leases import LeaseLock
    from limpet.core.scope import Scope

__all__ = ["RUNTIME", "Exclusively", "RunLeases"]

#: What is in the config of a graph that runs, and of no one else who asks for a checkpoint.
RUNTIME = "__pregel_runtime"
#: What is in the config of a graph that is run by a node of another one, on the same thread.
TASK_ID = "__pregel_task_id"


class _Run:
    """A run that LangChain has told us of."""

    def __init__(self, id_: UUID) -> None:
        self.id = id_
        self.ended = False


#: The run that has begun last here: between that and its question for a checkpoint no other does.
_begun: ContextVar[_Run | None] = ContextVar("limpet_langgraph_run", default=None)

#: The runs that somebody still may ask for.
_runs: WeakValueDictionary[UUID, _Run] = WeakValueDictionary()

#: What is to be done when runs have ended.
_ends: dict[UUID, Callable[[], None]] = {}


class _ChainHandler(BaseCallbackHandler):
    """Hears of chains, and a graph is one."""

    ignore_llm = True
    ignore_chat_model = True
    ignore_agent = True
    ignore_retriever = True
    ignore_retry = True
    ignore_custom_event = True


class _Begin(_ChainHandler):
    """Hears of the beginning, in the context of the run."""

    run_inline = True

    def on_chain_start(self, *_: Any, run_id: UUID, **__: Any) -> None:
        run = _runs[run_id] = _Run(run_id)
        _begun.set(run)


class _End(_ChainHandler):
    """Hears of the end; in a thread, where the run is async: to release a lease blocks."""

    @property
    def run_inline(self) -> bool:  # type: ignore[override]
        # With nothing to do it costs nothing. It may change meanwhile: an end that comes twice is
        # none the second time, and one that does not come had nothing to do.
        return not _ends

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:  # noqa: ARG002
        self._ended(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:  # noqa: ARG002
        self._ended(run_id)

    def _ended(self, run_id: UUID) -> None:
        run = _runs.pop(run_id, None)
        if run is not None:
            run.ended = True
        release = _ends.pop(run_id, None)
        if release is not None:
            release()


_handlers = [
    ContextVar[BaseCallbackHandler | None](f"limpet_{type(handler).__name__}", default=handler)
    for handler in (_Begin(), _End())
]
_registering = threading.Lock()


def _listen() -> None:
    """Let LangChain tell us of runs, from the first saver on that has to know."""
    with _registering:
        while _handlers:
            register_configure_hook(_handlers.pop(), inheritable=True)


class _Held:
    """A lease on a thread that is held here, and the runs that belong to it."""

    def __init__(self, lock: LeaseLock, *controls: object) -> None:
        self.lock = lock
        self.controls = list(controls)

    def covers(self, conf: Mapping[str, Any]) -> bool:
        """Whether what has this config may write under it."""
        control = _control(conf)
        return self in _blocks.get() or any(control is one for one in self.controls)


#: The leases whose blocks this code is in.
_blocks: ContextVar[tuple[_Held, ...]] = ContextVar("limpet_langgraph_exclusively", default=())


class RunLeases:
    """The leases of a saver's runs, in this process; of every run, if it is *always* exclusive."""

    def __init__(self, seconds: float, *, always: bool) -> None:
        self.always = always
        self._seconds = seconds
        self._held: dict[str, _Held] = {}
        if always:
            _listen()

    async def begin(self, scope: Scope, kind: str, id_: str, conf: Mapping[str, Any]) -> None:
        """A run begins, or something in it; `LeaseHeld`, if there is another run of the thread."""
        if RUNTIME not in conf or TASK_ID in conf:
            return
        held = self._held.get(id_)
        if held is not None and held.covers(conf):
            held.controls.append(_control(conf))
            return
        if not self.always:
            return
        run = _begun.get()
        if run is None or run.ended or run.id in _ends:
            msg = (
                f"LangChain has not told of the run of thread {id_!r} that begins, so nobody would "
                "tell of its end, and its lease cannot be taken. Nothing was run. Run it within "
                "`with saver.exclusively(thread_id):`, which needs no callbacks."
            )
            raise RuntimeError(msg)
        held = await self.acquire(scope, kind, id_, _control(conf))
        _ends[run.id] = lambda: self.release(id_, held)

    async def acquire(self, scope: Scope, kind: str, id_: str, *controls: object) -> _Held:
        """Hold the lease from now on; `LeaseHeld` says who does, if another does."""
        lock = scope.lock(kind, id_, self._seconds, agent="a run")
        try:
            await lock.acquire(0)
        except LeaseHeld as error:
            msg = (
                f"Thread {id_!r} is held by {holder_for_people(error.holder)}, whose run is not to "
                "meet another: nothing was run, or stored. Try again when that run has ended; or, "
                f"if its process has died on another machine, after {error.until:%H:%M:%S} UTC."
            )
            raise LeaseHeld(msg, error.holder, error.until, error.epoch) from error
        held = self._held[id_] = _Held(lock, *controls)
        return held

    def release(self, id_: str, held: _Held) -> None:
        """Hold it no longer; blocking."""
        if self._held.get(id_) is held:
            del self._held[id_]
        held.lock.release_now()

    @asynccontextmanager
    async def writing(
        self, scope: Scope, kind: str, id_: str, conf: Mapping[str, Any]
    ) -> AsyncIterator[LeaseLock | None]:
        """A block that changes a thread, with the lease to write under; None if none is needed.

        What is not of a run, such as an update of the state, is only done while there is none.
        """
        held = self._held.get(id_)
        if held is not None and held.covers(conf):
            yield held.lock
            return
        if self.always and RUNTIME in conf:
            msg = (
                f"The run of thread {id_!r} does not hold its lease any more, and so has written "
                "nothing. Run the thread again, to go on from where it is."
            )
            raise LeaseLost(msg)
        if not self.always:
            yield None
            return
        held = await self.acquire(scope, kind, id_)
        try:
            yield held.lock
        finally:
            await scope.runtime.call(self.release, id_, held)


class Exclusively:
    """A block in which nobody else runs a thread: entered with ``with`` or ``async with``."""

    def __init__(self, leases: RunLeases, scope: Scope, kind: str, id_: str) -> None:
        self._leases = leases
        self._scope = scope
        self._kind = kind
        self._id = id_

        self._held: _Held | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._id!r})"

    def __enter__(self) -> Self:
        """Take the lease; `LeaseHeld`, if another has it."""
        run_to_end(self._enter(self._scope.as_sync()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it back."""
        run_to_end(self._leave(self._scope.as_sync()))

    async def __aenter__(self) -> Self:
        """Take the lease; `LeaseHeld`, if another has it."""
        await self._enter(self._scope.as_async())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it back."""
        await self._leave(self._scope.as_async())

    async def _enter(self, scope: Scope) -> None:
        if self._held is not None:
            raise RuntimeError(f"{self!r} is entered already. Make another one for another block.")
        self._held = await self._leases.acquire(scope, self._kind, self._id)
        _blocks.set((*_blocks.get(), self._held))

    async def _leave(self, scope: Scope) -> None:
        held, self._held = self._held, None
        if held is not None:
            _blocks.set(tuple(one for one in _blocks.get() if one is not held))
            await scope.runtime.call(self._leases.release, self._id, held)


def _control(conf: Mapping[str, Any]) -> object:
    """What all that belongs to one run has in common; something new outside of a run."""
    return getattr(conf.get(RUNTIME), "control", None) or object()
