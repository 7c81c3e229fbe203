"""Waiting: for a signal, for a time. The wait is in the journal, and the process is free."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from limpet.core.ids import check_seconds
from limpet.errors import Conflict, TaskWaiting, WaitTimedOut
from limpet.tasks import entries as kinds
from limpet.tasks.plans import Plans

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["Waits"]

#: Seconds between looks at the store, where nothing wakes us earlier.
LOOK = 1.0


class Waits(Plans):
    """What a task waits for."""

    async def wait_for(
        self,
        signal: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - of the signal, not of the call
        default: Any = UNSET,
        block: float = 0,
    ) -> Any:
        """The payload of the next *signal*, from `Store.signal` or ``limpet signal``.

        If it is not there, the wait is recorded and `TaskWaiting` leaves the block: the process is
        free, and whoever opens the task after the signal goes on behind this call. *block*: wait in
        this process for up to so many seconds first. After *timeout* seconds, counted from the
        first time and over all restarts, it returns *default*, or raises `WaitTimedOut`.
        """
        name = self._named(signal)
        try:
            return await self._wait_for(name, signal, timeout, default, block)
        except BaseException:  # also of a cancellation: the same call again is the same step
            self._withdraw(name)
            raise

    async def _wait_for(
        self, name: str, signal: str, seconds: float | None, default: Any, block: float
    ) -> Any:
        until = self._until(name, seconds)
        patience = time.monotonic() + block
        while name not in self._state.results:
            self._check_running(f"wait for {signal!r}")
            await self._catch_up()
            if self._state.signals.get(signal):
                await self._take_signal(name, signal)
            elif until is not None and self._now() >= until:
                await self._keep(name, None, {"timed_out": True})
            elif name not in self._state.waits or time.monotonic() >= patience:
                away = time.monotonic() >= patience
                await self._wait(name, "signal", until, away=away, signal=signal)
            else:
                await self._linger(patience, until)
        if name in self._state.timed_out:
            if default is not UNSET:
                return default
            raise WaitTimedOut(f"No signal {signal!r} came to task {self.id!r} in time.")
        return await self.load(name)

    async def _take_signal(self, name: str, signal: str) -> None:
        """Let the first *signal* be the result of the wait *name*, unless another took it."""
        expect = self._state.seq  # read first: what changes from here on is a conflict
        waiting = self._state.signals[signal]
        try:
            if waiting:
                await self._keep(name, waiting[0], {"signal": signal}, expect=expect)
        except Conflict:
            pass

    async def sleep(self, seconds: float, *, block: float = 60) -> None:
        """Go on *seconds* after this was first called, whatever happens to the process meanwhile.

        With no more than *block* seconds to go it waits here; with more, `TaskWaiting` leaves the
        block, and the process is free. ``limpet work`` opens the task again in time.
        """
        check_seconds(seconds, "sleep")
        name = self._named("sleep")
        try:
            await self._sleep(name, self._until(name, seconds), block)
        except BaseException:
            self._withdraw(name)
            raise

    async def _sleep(self, name: str, until: datetime | None, block: float) -> None:
        while name not in self._state.results:
            self._check_running("sleep")
            left = (until - self._now()).total_seconds() if until is not None else 0
            if left <= 0:
                await self._keep(name, None, {})
            elif name not in self._state.waits or left > block:
                await self._wait(name, "sleep", until, away=left > block)
            else:
                await self._runtime.sleep(min(left, LOOK))

    def _until(self, name: str, seconds: float | None) -> datetime | None:
        """When the wait ends: as it was recorded, or so many *seconds* from now."""
        self._awaited.add(name)
        known = self._state.waits.get(name)
        if known is not None:
            return known.until
        return None if seconds is None else self._now() + timedelta(seconds=seconds)

    async def _wait(
        self, name: str, kind: str, until: datetime | None, *, away: bool, signal: str = ""
    ) -> None:
        """Record the wait, unless something came in between; if *away*, leave."""
        expect = self._state.seq
        try:
            if not away:
                body = {"name": name, "kind": kind, "until": until and until.isoformat()}
                await self._record(kinds.WAITING, body, expect=expect)
                return
            await self._leave(name, kind, until, expect=expect)
        except Conflict:
            await self._catch_up()
            return
        waiting = TaskWaiting(self._why(signal, until), self.id, signal or name, until)
        raise self._halting(waiting)

    def _why(self, signal: str, until: datetime | None) -> str:
        when = "" if until is None else f" until {until:%Y-%m-%d %H:%M:%S %Z}"
        if not signal:
            return f"Task {self.id!r} sleeps{when}. Open it again then, or let `limpet work` do it."
        by_command = self._scope.command("signal", self.id, signal)
        return (
            f"Task {self.id!r} waits for the signal {signal!r}{when}. Send it with "
            f"store.signal({self.id!r}, {signal!r}, …) or {by_command}, "
            "then open the task again, or let `limpet work` do it."
        )

    async def _linger(self, patience: float, until: datetime | None) -> None:
        """Wait here for news, until somebody's patience ends."""
        left = patience - time.monotonic()
        if until is not None:
            left = min(left, (until - self._now()).total_seconds())
        if left > 0:
            await self._runtime.wait(self._journal.key, self._state.seq, min(left, LOOK))
