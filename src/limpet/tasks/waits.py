"""Waiting: for a signal, for a time. The wait is in the journal, and the process is free."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from limpet.core.ids import check_seconds
from limpet.errors import Conflict, TaskWaiting, WaitTimedOut

if TYPE_CHECKING:
    from datetime import datetime

    from limpet.tasks.steps import StepRunner

__all__ = ["Waits"]

#: Seconds between looks at the store, where nothing wakes us earlier.
LOOK = 1.0


class Waits:
    """What a task waits for. A wait is a step: what it ended with is recorded as its result."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._record = runner.record
        self._live = runner.live

    async def wait_for(self, signal: str, seconds: float | None, default: Any, block: float) -> Any:
        """The payload of the next *signal*; see `Task.wait_for`."""
        live = self._live
        with live.named(signal) as name:
            until = self._until(name, seconds)
            patience = time.monotonic() + block
            while name not in live.state.results:
                live.check_running(f"wait for {signal!r}")
                await self._record.catch_up()
                await self._wait_on(name, signal, until, patience)
            if name not in live.state.timed_out:
                return await self._runner.load(name)
            if default is not UNSET:
                return default
            raise WaitTimedOut(f"No signal {signal!r} came to task {live.id!r} in time.")

    async def _wait_on(
        self, name: str, signal: str, until: datetime | None, patience: float
    ) -> None:
        """Take the signal if it is there, or go on waiting for it: here, while *patience* lasts."""
        live, record = self._live, self._record
        expect = live.state.seq  # read first: what changes from here on is a conflict
        waiting = live.state.signals.get(signal)
        if waiting:
            with suppress(Conflict):  # another wait took it
                about = {"signal": signal}
                await self._runner.record_result(name, waiting[0], about, expect=expect)
        elif until is not None and live.now() >= until:
            await self._runner.record_result(name, None, {"timed_out": True})
        elif name not in live.state.waits or time.monotonic() >= patience:
            away = time.monotonic() >= patience
            written = await self._write(
                name, "signal", until, away=away, expect=expect, signal=signal
            )
            if written and away:
                when = "" if until is None else f" until {until:%Y-%m-%d %H:%M:%S %Z}"
                by_command = record.scope.command("task", "signal", live.id, signal)
                msg = (
                    f"Task {live.id!r} waits for the signal {signal!r}{when}. Send it with "
                    f"store.signal({live.id!r}, {signal!r}, …) or {by_command}, "
                    "then open the task again, or let `limpet work` do it."
                )
                raise TaskWaiting(msg, live.id, signal, until)
        else:
            left = patience - time.monotonic()
            if until is not None:
                left = min(left, (until - live.now()).total_seconds())
            if left > 0:
                await record.runtime.wait(live.key, live.state.seq, min(left, LOOK))

    async def sleep(self, seconds: float, block: float) -> None:
        """Go on *seconds* after this was first called; see `Task.sleep`."""
        check_seconds(seconds, "sleep")
        live = self._live
        with live.named("sleep") as name:
            until = self._until(name, seconds)
            while name not in live.state.results:
                live.check_running("sleep")
                left = 0.0 if until is None else (until - live.now()).total_seconds()
                away, expect = left > block, live.state.seq
                if left <= 0:
                    await self._runner.record_result(name, None, {})
                elif name in live.state.waits and not away:
                    await self._record.runtime.sleep(min(left, LOOK))
                elif await self._write(name, "sleep", until, away=away, expect=expect) and away:
                    msg = (
                        f"Task {live.id!r} sleeps until {until:%Y-%m-%d %H:%M:%S %Z}. Open it "
                        "again then, or let `limpet work` do it."
                    )
                    raise TaskWaiting(msg, live.id, name, until)

    def _until(self, name: str, seconds: float | None) -> datetime | None:
        """When the wait ends: as it was recorded, or so many *seconds* from now."""
        self._live.run.waits.add(name)
        known = self._live.state.waits.get(name)
        if known is not None:
            return known.until
        return None if seconds is None else self._live.now() + timedelta(seconds=seconds)

    async def _write(self, name: str, kind: str, until: datetime | None, **about: Any) -> bool:
        """Record the wait; False if something came in between."""
        try:
            await self._record.write_wait(name, kind, until, **about)
        except Conflict:
            await self._record.catch_up()
            return False
        return True
