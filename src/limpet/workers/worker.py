"""Workers: they find the tasks of a registry's kinds in a store, and run them.

Which worker runs a task is decided by its lease, in the store; a worker only has to look. It finds
tasks that are open and nobody's: new ones, those that a signal has woken, and those of a worker
that died, as soon as its lease ends. And waiting ones whose time has come.

The user's functions never run in the thread that looks: plain ones have a thread each, async ones
share an event loop. So a function that blocks holds up no signal, and no other task's start.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from limpet.core.ids import check_seconds
from limpet.core.runtime import in_thread
from limpet.errors import LimpetError, NotFound, UnknownKind
from limpet.store import as_async
from limpet.tasks import entries as kinds
from limpet.tasks.entries import describe, frames, one_line
from limpet.workers import registry as runs
from limpet.workers.registry import AWAY, GIVE_UP_AFTER, RunResult
from limpet.workers.search import PATIENCE, Found, Room, Search

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterator
    from concurrent.futures import Future

    from limpet.store import Store
    from limpet.workers.registry import Registry

    _Event: TypeAlias = "_Run | float | Future[list[Found]]"

__all__ = ["Worker"]

log = logging.getLogger("limpet.workers.worker")

#: Seconds. So long, at least, an event loop has to end what is left on it.
GRACE = 1.0

#: Seconds between two looks for what is older than the rules of the store allow.
RETAIN_EVERY = 3600.0

#: Characters of an error in the log; the task's record has all of it.
ERROR = 500


class Worker:
    """Runs the tasks of a registry's kinds, *concurrency* at once, and of each up to its limit.

    *kinds*: only these. *poll*: seconds between two looks while there is nothing to do. *drain*:
    how many seconds running tasks get to end after `stop`. *agent*: a name to be known by.

    >>> import limpet
    >>> registry = limpet.Registry()
    >>> @registry.task("greet")
    ... def greet(task):
    ...     print(f"Hello {task.input}!")
    >>> with limpet.open("memory:") as store:
    ...     _ = store.submit("greet", "greet-1", "Be polite", input="Ann")
    ...     Worker(registry, store).run(until_idle=True)
    Hello Ann!
    []
    """

    def __init__(
        self,
        registry: Registry,
        store: Store,
        *,
        concurrency: int = 4,
        kinds: Collection[str] | None = None,
        agent: str | None = None,
        poll: float = 1.0,
        drain: float = 30.0,
        give_up_after: int = GIVE_UP_AFTER,
    ) -> None:
        check_seconds(poll, "poll")
        check_seconds(drain or 1, "drain")  # it may be none at all
        if give_up_after < 1:
            raise ValueError(f"A task is given up after at least 1 run, not {give_up_after}.")
        self._registry = registry
        self._store = store
        self._options: dict[str, Any] = {"agent": agent, "give_up_after": give_up_after}
        self._drain = drain
        self._room = Room(_limits(registry, kinds, concurrency), concurrency)
        self._search = Search(store, poll)
        #: Runs and looks that have ended, and when `stop` was called. Signal handlers may put into
        #: it.
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._loop = _Loop()
        #: The removal of what is older than the rules of the store allow, and when it comes again.
        self._retaining: Future[Any] | None = None
        self._retain_again = 0.0
        self._stop_by: float | None = None
        #: Whether `run` has returned although something that async functions left behind, a thread
        #: or a task of asyncio's, has not ended. It may hold up the interpreter's exit.
        self.lingers = False

    def stop(self) -> None:
        """Take no more tasks, and end with those that run, or when *drain* seconds have passed.

        May be called from any thread, and from a signal handler.
        """
        self._events.put(time.monotonic())

    def run(self, *, until_idle: bool = False) -> list[str]:
        """Work until `stop` is called, or with *until_idle* until there is nothing to do now.

        Returns the tasks that did not end in time. They still run: end the process, and others take
        them over.
        """
        self._handle_events()
        while True:
            if self._stop_by is not None:
                if not self._room.running or time.monotonic() >= self._stop_by:
                    break
            elif self._room.kinds() and time.monotonic() >= self._search.again:
                self._retain_if_due()
                self._start_what_is_found()
            if until_idle and not self._room.running and self._search.idle:
                break
            # Wait until a run ends, we are to stop, or it is time to look again.
            now = time.monotonic()
            until = self._search.again if self._room.kinds() else now + PATIENCE
            if self._stop_by is not None:  # as it may have become while we looked
                until = self._stop_by if self._room.running else now
            self._handle_events(timeout=max(until - now, 0))
        left = sorted(self._room.running)
        if self._retaining is not None:  # the store may be closed after this
            wait([self._retaining], GRACE)
        if not left:
            # End the event loop; but nothing that functions have left there holds us up for ever.
            now = time.monotonic()
            patience = self._drain if self._stop_by is None else self._stop_by - now
            self.lingers = not self._loop.close(max(patience, GRACE))
            self._loop = _Loop()
            if self.lingers:
                log.warning("async functions have left behind what does not end; it is cut off")
        return left

    def _start_what_is_found(self) -> None:
        looked = self._look()
        self._handle_events()  # a store that does not answer may have kept us for a while
        if self._stop_by is not None:
            return
        for found in looked:
            if not self._room.take(found):
                continue
            run = _Run(found)
            if self._registry[found.kind].is_async:
                self._loop.start(self._run_async(run))
            else:
                # A daemon: what does not end in time is left to its lease, and holds up no exit.
                name = f"limpet {found.id}"
                threading.Thread(target=self._run, args=(run,), name=name, daemon=True).start()

    def _retain_if_due(self) -> None:
        """Remove what is older than the rules of the store allow, on a thread, now and then."""
        if time.monotonic() < self._retain_again or not (
            self._retaining is None or self._retaining.done()
        ):
            return
        self._retain_again = time.monotonic() + RETAIN_EVERY
        self._retaining = in_thread(self._retain, "limpet-retention")

    def _retain(self) -> None:
        try:
            count = self._store.apply_retention().count
        except LimpetError as error:  # the next time it is tried again
            log.warning("what is older than the rules allow could not be removed: %s", error)
        else:
            if count:
                log.info("removed %d that were older than the rules allow", count)

    def _look(self) -> list[Found]:
        """What can be run; nothing, if `stop` is called before a store that is away has answered.

        On another thread, which is then left alone: the store may take half a minute to give up.
        """
        looking = in_thread(lambda: self._search.look(self._room), "limpet-look")
        looking.add_done_callback(self._events.put)
        events: list[_Event] = []
        while (event := self._events.get()) is not looking:
            events.append(event)
            if isinstance(event, float):
                break
        for event in reversed(events):  # `stop` first: then nobody else uses the search
            self._events.put(event)
        return looking.result() if looking.done() else []

    def _handle_events(self, timeout: float = 0) -> None:
        """Deal with runs that have ended, and with `stop`; wait for the first up to *timeout*."""
        with suppress(Empty):
            event = self._events.get(timeout=timeout)
            while True:
                if isinstance(event, _Run):
                    self._room.give_back(event.found)
                    event.log_end()
                    result = event.result
                    if self._stop_by is not None:
                        pass  # there is no other look
                    elif isinstance(result, RunResult):
                        pause = result.status in (runs.HELD, runs.LOST, kinds.WAITING)
                        self._search.ended(event.found, pause=pause)
                    else:
                        self._search.troubled(event.found, passing=isinstance(result, AWAY))
                elif isinstance(event, float) and self._stop_by is None:
                    self._stop_by = event + self._drain
                    running = len(self._room.running)
                    has = "1 has" if running == 1 else f"{running} have"
                    log.info("stopping; %s %g s to end", has, self._drain)
                event = self._events.get_nowait()

    # -- running -------------------------------------------------------------------------------

    def _run(self, run: _Run) -> None:
        with run.ending(self._events):
            run.result = self._registry.run(
                self._store, run.found.id, on_open=run.opened, **self._options
            )

    async def _run_async(self, run: _Run) -> None:
        with run.ending(self._events):
            run.result = await self._registry.run_async(
                as_async(self._store), run.found.id, on_open=run.opened, **self._options
            )


def _limits(registry: Registry, names: Collection[str] | None, concurrency: int) -> dict[str, int]:
    """How many of each kind may run at once."""
    if concurrency < 1:
        raise ValueError(f"A worker runs at least 1 task at once, not {concurrency}.")
    found = [kind for kind in registry if names is None or kind.name in names]
    there = ", ".join(repr(kind.name) for kind in registry) or "none"
    for name in names or ():
        if name not in registry:
            raise UnknownKind(f"The registry has no function for kind {name!r}; it has: {there}.")
    if not found:
        raise ValueError("The registry is empty: give it functions with @registry.task(kind).")
    return {kind.name: kind.limit or concurrency for kind in found}


# -- one run ---------------------------------------------------------------------------------------


class _Run:
    """One run of a task: when it began, how it ended, and what is logged of that."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.result: RunResult | BaseException | None = None
        self._began: float | None = None
        self._took = 0.0

    def opened(self) -> None:
        """The task is ours, and its function is about to be called."""
        self._began = time.monotonic()
        what = "begins" if self.found.new else "goes on"
        log.info("%s: %s (%s)", self.found.id, what, self.found.kind)

    @contextmanager
    def ending(self, events: SimpleQueue[_Event]) -> Iterator[None]:
        """Let the thread that looks know, whatever happens."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - it is dealt with there
            self.result = error
        if self._began is not None:
            self._took = time.monotonic() - self._began
        events.put(self)

    def log_end(self) -> None:
        """One line, with nothing that the task was given or has found, but for an error's text.

        Below that, where it failed.
        """
        result, after = self.result, f"after {self._took:.1f} s"
        level, text = logging.INFO, "no longer there"
        if isinstance(result, AWAY):
            level, text = logging.WARNING, "stopped, for the store is away; it is tried again"
        elif not isinstance(result, (RunResult, NotFound)):
            places = frames(result) if isinstance(result, BaseException) else ()
            why = f"stopped, and is tried again: {one_line(describe(result), ERROR)}"
            level, text = logging.ERROR, "\n  ".join([why, *places])
        elif isinstance(result, RunResult):
            if self._began is None:
                return
            if result.status == kinds.WAITING:
                text = f"waits ({result.waits_for})"
            elif result.status == runs.LOST:
                level, text = logging.WARNING, f"taken over by another worker {after}"
            elif result.status == kinds.FAILED:
                step = f" in step {result.failed_step!r}" if result.failed_step else ""
                why = f"failed {after}{step}: {one_line(result.error, ERROR)}"
                level, text = logging.ERROR, "\n  ".join([why, *result.frames])
            else:
                text = f"{result.status} {after}"
        log.log(level, "%s: %s", self.found.id, text)


# -- async functions -------------------------------------------------------------------------------


class _Loop:
    """One event loop for all async functions, so that they can share their clients."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._ended = False

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* there."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="limpet-loop", daemon=True)
            self._thread.start()
        self._ready.wait()
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def _serve(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._ready.set()
            while not self._ended:
                # What calls sys.exit in a task of asyncio's own ends the loop. Whoever awaits that
                # task has the error too, and it is logged; the others have nothing to do with it.
                with suppress(SystemExit, KeyboardInterrupt):
                    self._loop.run_forever()

    def close(self, seconds: float) -> bool:
        """End it, with what functions have left there; False if that does not end in time."""
        if self._thread is None:
            return True

        def end() -> None:
            self._ended = True
            self._loop.stop()

        self._loop.call_soon_threadsafe(end)
        self._thread.join(seconds)
        return not self._thread.is_alive()
